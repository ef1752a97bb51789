"""``regraft restore`` of profiles that the application's upgrade left behind: no text is paid for twice."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer, Reply, Request, right, vector_of
from faults import untouched
from harness import GOLDEN, Outcome, golden, run
from lacking import configured
from stranded import base_of, profile, some_source

from checks.audit.findings import Finding
from regraft import identity
from repair.changes import run as changing

KB = base_of("kb")
MODEL = "acme::embed-small"
NEW = identity.restored_base_id(KB, MODEL, 8, None)
OPENAI = "openai::embed-small"
STRANDED = GOLDEN / "profile_208_stranded"
#: The catalog of the made profile, and of the golden one.
DATABASES = ("cherrystudio.sqlite", "Data/cherrystudio.sqlite")


def query(path: Path, sql: str, *values: object) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql, values).fetchall()


def catalog(store: Path) -> Path:
    return next(store / name for name in DATABASES if (store / name).is_file())


def items(store: Path, base: str) -> list[tuple[Any, ...]]:
    """Return type, status, error and parent's source of every item of a base, in order."""
    return query(
        catalog(store),
        "SELECT i.type, i.status, i.error, json_extract(g.data, '$.source') FROM knowledge_item i"
        " LEFT JOIN knowledge_item g ON g.id = i.group_id WHERE i.base_id = ? ORDER BY i.rowid",
        base,
    )


def restore(store: Path, config: Path, base: str, *more: object, model: str = MODEL) -> Outcome:
    words = ("--base", base, "--model", model, "--config", config, "--json")
    return run("restore", store, *words, *more)


def assert_vectors(store: Path, base: str) -> set[str]:
    """Assert that every text of a base has the server's vector, byte for byte, and return the texts."""
    index = store / "Data" / "KnowledgeBase" / base / ".cherry" / "index.sqlite"
    found = query(
        index,
        "SELECT t.text, e.vector_blob FROM search_text t LEFT JOIN embedding e"
        " ON e.embedding_text_hash = t.embedding_text_hash",
    )
    assert found
    assert dict(found) == {text: vector_of(text) for text, _ in found}
    assert query(index, "SELECT base_id FROM meta") == [(base,)]
    return {text for text, _ in found}


def paid_for(server: FaultServer, texts: set[str]) -> list[str]:
    """Return the texts of a base that the server was sent, with repetitions."""
    return sorted(text for text in server.texts if text in texts)


def refusing(request: Request) -> Reply:
    return Reply(400, b'{"error": {"message": "no model of this name"}}')


@pytest.fixture
def config(server: FaultServer, tmp_path: Path) -> Path:
    return configured(tmp_path / "regraft.yaml", server, model_ids=[MODEL, OPENAI, "acme::other"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a profile whose base ``kb`` failed: its folders are tombstones, and only its notes still have texts."""
    store = profile(tmp_path_factory.mktemp("stranded"), some_source(), ("kb",))
    with closing(sqlite3.connect(catalog(store))) as db, db:
        sections = "\n\n".join(f"Section {number}. " + "The ferry leaves at noon. " * 30 for number in range(9))
        db.execute(
            "UPDATE knowledge_item SET data = json_set(data, '$.content', ?)"
            " WHERE base_id = ? AND json_extract(data, '$.source') = 'Remember the lamp'",
            (sections, KB),
        )
    return store


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "profile")


# --- folders that the upgrade left behind ----------------------------------------------------------------------------


@pytest.mark.thorough
def test_tombstones_are_reported_and_do_not_undo_the_run(store: Path, server: FaultServer, config: Path) -> None:
    old = items(store, KB)
    dry = restore(store, config, KB, "--dimensions", 8, "--dry-run")
    done = restore(store, config, KB)
    assert done.status == 1, done.stderr
    assert [one["finding"] for one in done.document["left"]].count("item.tombstone") == 2
    assert [(one["finding"], one["reason"]) for one in dry.document["left"]] == [
        (one["finding"], one["reason"]) for one in done.document["left"]
    ]
    tombstones = {one["subject"] for one in done.document["left"] if one["finding"] == "item.tombstone"}
    failed = "SELECT id FROM knowledge_item WHERE base_id = ? AND error = 'directory_not_migrated'"
    assert tombstones == {key for (key,) in query(catalog(store), failed, NEW)}
    assert items(store, KB) == old
    assert [(kind, source) for kind, _, _, source in items(store, NEW)] == [(kind, above) for kind, _, _, above in old]
    assert ("directory", "failed", "directory_not_migrated", None) in items(store, NEW)
    assert query(catalog(store), "SELECT status, error, dimensions FROM knowledge_base WHERE id = ?", NEW) == [
        ("completed", None, 8)
    ]
    texts = assert_vectors(store, NEW)
    assert len(texts) > 5
    assert paid_for(server, texts) == sorted(texts)


@pytest.mark.thorough
def test_a_second_run_pays_nothing(store: Path, server: FaultServer, config: Path) -> None:
    assert restore(store, config, KB).status == 1
    sent = len(server.texts)
    again = restore(store, config, KB)
    assert (again.status, again.document["error"]["code"]) == (2, "NotRestored")
    assert "it was restored already, as base " in again.document["error"]["message"]
    assert len(server.texts) == sent


@pytest.mark.thorough
def test_errors_of_copied_rows_are_reported(store: Path, server: FaultServer, config: Path) -> None:
    """Values of a wrong type in a row that is copied stay what they are, and are no reason to undo the run."""
    with closing(sqlite3.connect(catalog(store))) as db, db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        update = "UPDATE knowledge_item SET created_at = x'00' WHERE base_id = ? AND type = 'note'"
        db.execute(update, (KB,))
    found = run("check", store, "--json", "--base", KB).document["findings"]
    assert "catalog.value" in {one["name"] for one in found}
    done = restore(store, config, KB)
    assert done.status == 1, done.stderr
    assert ("catalog.value", NEW) in {(one["finding"], one["base"]) for one in done.document["left"]}
    assert paid_for(server, texts := assert_vectors(store, NEW)) == sorted(texts)


# --- refused once the embedder was paid ------------------------------------------------------------------------------


@pytest.mark.thorough
def test_an_undone_run_keeps_its_vectors(
    store: Path, server: FaultServer, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any error of the new base that its rows do not explain still undoes all of the run but what was paid for."""
    before = query(catalog(store), "SELECT * FROM knowledge_base"), items(store, KB)
    damaged = Finding(name="unit.id", severity="error", message="x", base=NEW, subject=None, count=1, samples=())
    with monkeypatch.context() as patched:
        patched.setattr(changing, "_audit_after", lambda *_: iter([damaged]))
        first = restore(store, config, KB)
    assert (first.status, first.document["error"]["code"]) == (3, "NotMended")
    assert "unit.id, so it was undone completely" in first.document["error"]["message"]
    assert (query(catalog(store), "SELECT * FROM knowledge_base"), items(store, KB)) == before
    assert not (store / "Data" / "KnowledgeBase" / NEW).exists()
    sent = len(server.texts)
    assert restore(store, config, KB).status == 1
    assert len(server.texts) == sent
    assert paid_for(server, texts := assert_vectors(store, NEW)) == sorted(texts)


@pytest.mark.thorough
def test_a_base_that_changes_meanwhile_pays_only_for_new_texts(store: Path, server: FaultServer, config: Path) -> None:
    def changing_the_base(request: Request) -> Reply:
        if not any(text.startswith("Section") for text in request.texts):
            return right(request)
        with closing(sqlite3.connect(catalog(store))) as db, db:
            update = "UPDATE knowledge_item SET data = json_set(data, '$.content', 'A new text') WHERE base_id = ?"
            db.execute(f"{update} AND json_extract(data, '$.source') = 'never indexed'", (KB,))
        return right(request)

    server.behave = changing_the_base
    first = restore(store, config, KB)
    assert (first.status, first.document["error"]["code"]) == (3, "BackfillStopped"), first.stderr
    assert "the base was changed while its texts were embedded" in first.document["error"]["message"]
    assert items(store, NEW) == []
    server.behave = right
    sent = len(server.texts)
    assert restore(store, config, KB).status == 1
    texts = assert_vectors(store, NEW)
    assert "A new text" in texts
    *compared, new = [text for text in server.texts[sent:] if text in texts]
    assert new == "A new text"
    # Before it fills, the embedder is compared with eight of the vectors that the stopped run has paid for.
    assert len(compared) == len(set(compared)) == 8


@pytest.mark.thorough
def test_another_name_uses_the_vectors_of_a_refused_run(
    store: Path, server: FaultServer, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = Finding(name="unit.id", severity="error", message="x", base=NEW, subject=None, count=1, samples=())
    with monkeypatch.context() as patched:
        patched.setattr(changing, "_audit_after", lambda *_: iter([damaged]))
        assert restore(store, config, KB).status == 3
    sent = len(server.texts)
    assert restore(store, config, KB, "--name", "Again").status == 1
    assert len(server.texts) == sent
    [(again,)] = query(catalog(store), "SELECT id FROM knowledge_base WHERE name = 'Again'")
    assert paid_for(server, texts := assert_vectors(store, again)) == sorted(texts)
    # A base with another model does not take them.
    assert restore(store, config, KB, model="acme::other").status == 1
    assert paid_for(server, texts) == sorted([*texts, *texts])


@pytest.mark.thorough
def test_a_link_among_the_kept_vectors_is_not_followed(
    store: Path, server: FaultServer, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = Finding(name="unit.id", severity="error", message="x", base=NEW, subject=None, count=1, samples=())
    with monkeypatch.context() as patched:
        patched.setattr(changing, "_audit_after", lambda *_: iter([damaged]))
        assert restore(store, config, KB).status == 3
    restoring = store / ".regraft" / "restoring"
    shutil.move(restoring / NEW, tmp_path / "elsewhere")
    (restoring / "another").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    sent = len(server.texts)
    refused = restore(store, config, KB)
    assert (refused.status, refused.document["error"]["code"]) == (2, "LinkInStore")
    assert items(store, NEW) == []
    assert [text for text in server.texts[sent:] if text.startswith("Section")] == []


# --- refused before -------------------------------------------------------------------------------------------------


def test_what_cannot_be_restored_is_refused_before_anything_is_sent(
    store: Path, server: FaultServer, config: Path
) -> None:
    with closing(sqlite3.connect(catalog(store))) as db, db:
        db.execute("DELETE FROM knowledge_item WHERE base_id = ? AND type = 'note'", (KB,))
    with untouched(store):
        no_text = restore(store, config, KB)
        no_provider = restore(store, config, base_of("other"), model=OPENAI)
    assert (no_text.status, no_provider.status) == (2, 2)
    assert "none of its items has a readable text; for example, " in no_text.document["error"]["message"]
    assert "the profile has no provider openai" in no_provider.document["error"]["message"]
    assert server.texts == []


# --- a real profile -------------------------------------------------------------------------------------------------


#: Whether a base has a text that can be embedded, by its name.
BASES = {
    "standalone after directory": True,
    "standalone before directory": False,
    "overlapping directories": False,
    "fully shadowed directories": True,
    "odd directory items": True,
    "same loader ids as dirC": True,
    "child with unusable vectors": True,
}


@pytest.mark.one_in(4)
@golden
@pytest.mark.parametrize("name", BASES)
def test_every_base_of_a_real_stranded_profile(name: str, server: FaultServer, config: Path, tmp_path: Path) -> None:
    store = shutil.copytree(STRANDED, tmp_path / "profile")
    [(base,)] = query(catalog(store), "SELECT id FROM knowledge_base WHERE name = ?", name)
    old = items(store, base)
    first = restore(store, config, base, model=OPENAI)
    second = restore(store, config, base, model=OPENAI)
    assert (second.status, second.document["error"]["code"]) == (2, "NotRestored")
    assert items(store, base) == old
    if not BASES[name]:
        assert (first.status, first.document["error"]["code"]) == (2, "NotRestored")
        assert server.texts == []
        return
    new = identity.restored_base_id(base, OPENAI, 8, None)
    left = [one["finding"] for one in first.document["left"]]
    assert first.status == (1 if left else 0), first.stderr
    assert set(left) <= {"item.tombstone", "item.no-material"}
    assert [(kind, above) for kind, _, _, above in items(store, new)] == [(kind, above) for kind, _, _, above in old]
    texts = assert_vectors(store, new)
    assert paid_for(server, texts) == sorted(texts)


@pytest.mark.thorough
def test_a_run_that_goes_on_speaks_its_own_language(
    made: Path, tmp_path: Path, config: Path, server: FaultServer
) -> None:
    store = tmp_path / "store"
    shutil.copytree(made, store)
    server.behave = lambda request: right(request) if len(server.requests) < 4 else Reply(500)
    assert restore(store, config, KB, "--dimensions", 8).status == 3
    server.behave = right
    words = ("restore", store, "--base", KB, "--model", MODEL, "--dimensions", 8, "--config", config, "--yes")
    environment = {**os.environ, "LC_ALL": "zh_CN.UTF-8", "PYTHONUTF8": "1"}
    environment.pop("REGRAFT_LANG", None)
    command = [sys.executable, "-P", "-m", "regraft", *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8", check=False)
    assert "report.pdf 不是纯文本：请在应用中索引它 [item.no-material]" in done.stdout, done.stdout + done.stderr
    assert "index it in the application" not in done.stdout


@pytest.mark.parametrize("more", [(), ("--dimensions", 8)])
def test_a_server_that_refuses_whatever_is_sent_is_named(
    made: Path, tmp_path: Path, config: Path, server: FaultServer, more: tuple[object, ...]
) -> None:
    store = tmp_path / "store"
    shutil.copytree(made, store)
    server.behave = refusing
    with untouched(store / "Data", catalog(store)):
        done = restore(store, config, KB, *more)
    assert done.status == 2
    assert done.document["error"]["code"] == "EveryTextRejected"
    assert "rejects every text (400: no model of this name" in done.document["error"]["message"]
    assert server.paid == []
