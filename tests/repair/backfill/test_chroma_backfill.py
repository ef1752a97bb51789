"""``backfill`` of folders of Chroma: what a repair names as lost gets vectors, and no other vector changes."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import fleet_work
import pytest
from chroma_store import (
    DIMENSION,
    ChromaStore,
    check,
    cut_elements,
    extract,
    opened,
    overwrite_links,
    read_vectors,
    remove_labels,
)
from extras import needs
from fault_server import FaultServer, Request, answer, failing, vector_of
from faults import forked, posix
from harness import Outcome, run, snapshot
from stand_ins import KILLED, die
from toys import killed_at_or_before, quick_disk, steps_of

from regraft import identity
from regraft.formats.chroma import core

pytest.importorskip("openai", reason="the client of embedding servers is not installed")
CHROMA = needs("chroma")


def serve(server: FaultServer, store: ChromaStore, name: str = "plain") -> None:
    """Answer with the vectors that a collection had."""
    known = {one["document"]: bytes.fromhex(one["vector"]) for one in store.expected[name].values()}
    server.dimensions = DIMENSION

    def behave(request: Request) -> Any:
        return answer(request, [known.get(text) or vector_of(text, DIMENSION) for text in request.texts])

    server.behave = behave


@pytest.fixture
def settings(server: FaultServer, tmp_path: Path) -> Path:
    path = tmp_path / "regraft.yaml"
    lines = ("provider: openai", f"base_url: {server.url}", "model: embed-3", "price_per_million_tokens: 1")
    path.write_text(
        "embedders:\n  one:\n" + "".join(f"    {line}\n" for line in (*lines, "batch: {texts: 5}")), "utf-8"
    )
    return path


def fill(store: ChromaStore, settings: Path, *options: object) -> Outcome:
    return run("backfill", store.root, "--config", settings, "--json", *options)


def lost_ids(store: ChromaStore, name: str = "plain") -> set[str]:
    """Repair a folder, and return the ids that are named as lost."""
    done = run("repair", store.root, "--yes", "--json")
    assert done.status == 1, done
    base = store.collection_id(name)
    return {
        one["subject"]
        for one in done.document["left"]
        if (one["finding"], one["base"]) == ("chroma.vector-missing", base)
    }


def cut_store(server: FaultServer, folder: Path) -> tuple[ChromaStore, set[str]]:
    """Extract and repair a folder whose elements are cut in half; the server answers with the vectors that are lost."""
    store = extract("1.5", folder)
    cut_elements(store)
    lost = lost_ids(store)
    serve(server, store)
    return store, lost


def documents(store: ChromaStore, ids: set[str], name: str = "plain") -> list[str]:
    return sorted(store.expected[name][key]["document"] for key in ids)


def sent(server: FaultServer, store: ChromaStore, ids: set[str], name: str = "plain") -> list[str]:
    """Return the texts of lost ids that were sent, each as often as it was; the others are those of the comparison."""
    wanted = set(documents(store, ids, name))
    return sorted(text for text in server.texts if text in wanted)


def read_back(store: ChromaStore, copy: Path, name: str = "plain") -> dict[str, str | None]:
    with opened(store.root, copy) as client:
        return read_vectors(client, name)


def vectors_of(store: ChromaStore, name: str = "plain") -> dict[str, str]:
    return {key: one["vector"] for key, one in store.expected[name].items()}


# --- filling ---------------------------------------------------------------------------------------------------------


@CHROMA
def test_lost_entries_get_vectors_and_no_other_changes(server: FaultServer, settings: Path, tmp_path: Path) -> None:
    store, lost = cut_store(server, tmp_path)
    rows = store.rows("SELECT * FROM embedding_metadata ORDER BY id, key")
    before = snapshot(tmp_path)
    planned = fill(store, settings, "--dry-run")
    (scope,) = [one for one in planned.document["scopes"] if one["scope"] == store.collection_id("plain")]
    assert scope["planned"]["texts"] == len(lost)
    assert (planned.status, server.texts, snapshot(tmp_path)) == (0, [], before)

    done = fill(store, settings, "--yes")
    assert (done.status, done.document["left"]) == (0, [])
    assert sent(server, store, lost) == documents(store, lost)
    assert check(store.root) == {}
    assert store.rows("SELECT * FROM embedding_metadata ORDER BY id, key") == rows
    assert not list(store.root.rglob("reconciling"))
    assert read_back(store, tmp_path / "copy") == vectors_of(store)

    again = len(server.texts)
    assert fill(store, settings, "--yes").status == 0
    assert len(server.texts) == again
    assert run("undo", store.root, "--yes").status == 0
    assert check(store.root)["vector-missing"][0]["count"] == len(lost)


@pytest.mark.thorough
@CHROMA
@pytest.mark.parametrize("version", ["0.6", "1.5"])
def test_cosine_vectors_differ_by_the_rounding_of_chroma_only(
    version: str, server: FaultServer, settings: Path, tmp_path: Path
) -> None:
    import numpy as np

    store = extract(version, tmp_path)
    cut_elements(store, "angles")
    lost = lost_ids(store, "angles")
    serve(server, store, "angles")
    assert fill(store, settings, "--yes").status == 0
    assert check(store.root) == {}
    expected, found = vectors_of(store, "angles"), read_back(store, tmp_path / "copy", "angles")
    assert found.keys() == expected.keys()
    for key, vector in found.items():
        assert vector is not None
        if key in lost:
            pair = [np.frombuffer(bytes.fromhex(one), "<f4") for one in (vector, expected[key])]
            assert np.allclose(*pair, rtol=4e-7, atol=1e-8)
        elif version == "1.5":
            assert vector == expected[key]
    if version == "0.6":
        # Versions up to 0.6 load nothing but an instance of their own class.
        assert b"PersistentData" in (store.folder("angles") / "index_metadata.pickle").read_bytes()


@pytest.mark.thorough
@CHROMA
@pytest.mark.parametrize("version", ["0.4", "0.6"])
def test_a_collection_without_any_proven_vector_is_embedded_whole(
    version: str, server: FaultServer, settings: Path, tmp_path: Path
) -> None:
    store = extract(version, tmp_path)
    remove_labels(store)
    store.execute("DELETE FROM embeddings_queue")
    old = snapshot(store.folder("plain"))
    segment = store.folder("plain").name
    rows = {
        key
        for (key,) in store.rows(
            "SELECT embedding_id FROM embeddings WHERE segment_id = ?", store.segment("plain", "METADATA")
        )
    }
    # Each is named, with the text that was inserted.
    named = run("repair", store.root, "--yes", "--base", "plain", "--json").document
    assert [one["action"] for one in named["actions"]] == ["keep-segment", "remove-segment"]
    reasons = {one["subject"]: one["reason"] for one in named["left"] if one["finding"] == "chroma.vector-missing"}
    assert reasons.keys() == rows
    for key, reason in reasons.items():
        assert key not in store.expected["plain"] or f"({store.expected['plain'][key]['document']})" in reason
    serve(server, store)
    assert fill(store, settings, "--yes", "--base", "plain").status == 0
    known = rows & store.expected["plain"].keys()
    assert sent(server, store, known) == documents(store, known)
    found = read_back(store, tmp_path / "copy")
    expected = vectors_of(store)
    assert found.keys() == rows
    assert {key: found[key] for key in rows & expected.keys()} == {key: expected[key] for key in rows & expected.keys()}
    # The old files may be the last copy of vectors that a person can still tell apart.
    kept = snapshot(store.root / f"{segment}.unproven")
    assert {name: one[2] for name, one in kept.items() if name != "regraft.json"} == {
        name: one[2] for name, one in old.items()
    }


@pytest.mark.thorough
@CHROMA
def test_equal_texts_are_sent_once_and_a_known_text_is_not_sent(
    server: FaultServer, settings: Path, tmp_path: Path
) -> None:
    store = extract("1.5", tmp_path)
    cut_elements(store)
    lost = sorted(lost_ids(store))
    kept = min(store.expected["plain"].keys() - set(lost))

    def set_document(key: str, text: str) -> None:
        query = """UPDATE embedding_metadata SET string_value = ? WHERE key = 'chroma:document' AND id =
                     (SELECT id FROM embeddings WHERE embedding_id = ? AND segment_id = ?)"""
        store.execute(query, text, key, store.segment("plain", "METADATA"))

    set_document(lost[0], "one text")
    set_document(lost[1], "one text")
    set_document(lost[2], store.expected["plain"][kept]["document"])
    serve(server, store)
    assert fill(store, settings, "--yes").status == 0
    assert server.texts.count("one text") == 1
    found = read_back(store, tmp_path / "copy")
    assert found[lost[0]] == found[lost[1]] == vector_of("one text", DIMENSION).hex()
    assert found[lost[2]] == found[kept] == store.expected["plain"][kept]["vector"]


@pytest.mark.thorough
@CHROMA
def test_a_backup_gives_its_vectors_and_nothing_is_sent(server: FaultServer, settings: Path, tmp_path: Path) -> None:
    store = extract("1.5", tmp_path)
    shutil.copytree(store.root, tmp_path / "backup")
    cut_elements(store)
    lost_ids(store)
    server.behave = failing(500)
    done = fill(store, settings, "--yes", "--reuse", tmp_path / "backup", "--base", "plain")
    assert (done.status, server.texts) == (0, []), done
    assert read_back(store, tmp_path / "copy") == vectors_of(store)


@pytest.mark.thorough
@CHROMA
def test_limits_keep_what_was_paid_and_the_next_run_goes_on(
    server: FaultServer, settings: Path, tmp_path: Path
) -> None:
    store, lost = cut_store(server, tmp_path)
    assert fill(store, settings, "--yes", "--limit", 10).status == 0
    assert len(sent(server, store, lost)) == 10
    assert check(store.root)["vector-missing"][0]["count"] == len(lost) - 10
    assert fill(store, settings, "--yes").status == 0
    assert sent(server, store, lost) == documents(store, lost)
    assert read_back(store, tmp_path / "copy") == vectors_of(store)


@CHROMA
def test_vectors_of_a_stopped_run_and_of_another_model_are_not_mixed(
    server: FaultServer, settings: Path, tmp_path: Path
) -> None:
    """The collection has no vector that an embedder could be compared with."""
    store = extract("0.6", tmp_path)
    remove_labels(store)
    store.execute("DELETE FROM embeddings_queue")
    assert run("repair", store.root, "--yes", "--base", "plain", "--json").status == 1
    serve(server, store)
    rightly, asked = server.behave, []

    def behave(request: Request) -> Any:
        asked.append(request)
        return rightly(request) if len(asked) < 4 else failing(401)(request)

    server.behave = behave
    assert fill(store, settings, "--yes", "--base", "plain").status == 3
    server.behave = lambda request: answer(request, [vector_of(f"other {text}", DIMENSION) for text in request.texts])
    settings.write_text(settings.read_text("utf-8") + "    encoding: float\n", "utf-8")
    done = fill(store, settings, "--yes", "--base", "plain")
    assert (done.status, done.document["error"]["code"]) == (2, "EmbedderDiffers")


@pytest.mark.thorough
@CHROMA
def test_vectors_that_arrived_before_a_failure_are_not_paid_for_again(
    server: FaultServer, settings: Path, tmp_path: Path
) -> None:
    store, lost = cut_store(server, tmp_path)
    before = snapshot(store.root)
    rightly, asked = server.behave, []

    def behave(request: Request) -> Any:
        asked.append(request)
        return rightly(request) if len(asked) < 6 else failing(401)(request)

    server.behave = behave
    stopped = fill(store, settings, "--yes")
    assert stopped.status != 0
    assert stopped.document["error"]["code"] in ("BackfillStopped", "EmbedderRefused")
    after = snapshot(store.root)
    assert {name: one for name, one in after.items() if not name.startswith(".regraft")} == {
        name: one for name, one in before.items() if not name.startswith(".regraft")
    }
    paid = set(server.paid)
    server.behave = rightly
    begun = len(server.texts)
    assert fill(store, settings, "--yes").status == 0
    assert not paid & set(server.texts[begun:]) & set(documents(store, lost))
    assert read_back(store, tmp_path / "copy") == vectors_of(store)


@pytest.mark.thorough
@CHROMA
@posix
def test_a_kill_leaves_the_old_or_the_new_segment_and_nothing_is_paid_twice(
    server: FaultServer, settings: Path, tmp_path: Path
) -> None:
    store, _ = cut_store(server, tmp_path / "store")
    old = (store.folder("plain") / "data_level0.bin").read_bytes()
    expected = vectors_of(store)

    def work(one: ChromaStore) -> Outcome:
        return fill(one, settings, "--yes")

    with quick_disk() as disk:
        first = store.copy_into(tmp_path)
        steps = steps_of(disk, lambda: work(first))
        for at in (len(steps) // 3, len(steps) - 20, len(steps) - 2):
            one = killed_at_or_before(disk, at, lambda: store.copy_into(tmp_path), work)
            elements = one.folder("plain") / "data_level0.bin"
            assert not elements.exists() or elements.read_bytes() == old or "vector-missing" not in check(one.root)
            staged = staged_keys(one.root)
            begun = len(server.texts)
            again = fill(one, settings, "--yes")
            assert again.status == 0, (at, again.document["left"])
            assert not list(one.root.rglob("reconciling"))
            assert check(one.root) == {}
            assert read_back(one, tmp_path / f"copy-{at}") == expected
            sent_again = {identity.text_hash(text) for text in server.texts[begun:]}
            assert not staged & sent_again, at


@pytest.mark.thorough
@CHROMA
@posix
def test_a_segment_that_a_killed_run_moved_away_is_no_damage(
    server: FaultServer, settings: Path, tmp_path: Path
) -> None:
    """The old folder is moved to the undo data, and the new one to its place: a kill between leaves neither there."""
    store, _ = cut_store(server, tmp_path / "store")
    kill_in_the_swap(store, lambda: fill(store, settings, "--yes"))
    begun = len(server.texts)
    again = fill(store, settings, "--yes")
    assert again.status == 0, again.document["left"]
    assert check(store.root) == {}
    assert read_back(store, tmp_path / "copy") == vectors_of(store)
    assert len(server.texts) == begun


@pytest.mark.thorough
@CHROMA
@posix
@needs("parquet")
def test_a_dry_run_takes_a_segment_that_was_moved_away_for_no_damage(
    server: FaultServer, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run settles it first, and so does a fleet before it looks for texts."""
    fleet_work.put_in_place(monkeypatch)
    store, lost = cut_store(server, tmp_path / "store")
    kill_in_the_swap(store, lambda: fill(store, settings, "--yes"))
    before, begun = snapshot(tmp_path), len(server.texts)
    message = (
        f"{store.root}: a run that was stopped, or is still at work, has moved {store.segment('plain')} away; wait "
        "until it has finished, or run this command without --dry-run, which completes or reverts the change first."
    )
    for words in (("backfill", store.root, "--config", settings), ("repair", store.root)):
        dry = run(*words, "--dry-run", "--json")
        assert (dry.status, dry.stderr) == (2, f"regraft: {message}\n")
        assert dry.document["error"]["code"] == "ChangeUnfinished"
    assert snapshot(tmp_path) == before
    (store.root.parent / "expected.json").unlink()
    before = snapshot(tmp_path)
    fleet = ("fleet", "backfill", store.root.parent, "--config", settings, "--results", tmp_path / "out.parquet")
    dry = run(*fleet, "--workers", 1, "--json", "--dry-run")
    assert dry.status == 2
    assert [row["message"] for row in dry.document["failed"]] == [message]
    assert (snapshot(tmp_path), len(server.texts)) == (before, begun)

    done = run(*fleet, "--workers", 1, "--json", "--yes")
    assert done.status == 0, done
    assert check(store.root) == {}
    assert read_back(store, tmp_path / "copy") == vectors_of(store)
    assert not set(documents(store, lost)) & set(server.texts[begun:])


def kill_in_the_swap(store: ChromaStore, work: Callable[[], object]) -> None:
    """Kill a run between the move of the old segment of "plain" to the undo data and that of the new one."""
    folder = store.folder("plain")

    def killed() -> None:
        with pytest.MonkeyPatch.context() as patch:
            real = os.replace

            def replaced(*given: Any, **named: Any) -> None:
                real(*given, **named)
                if not folder.exists():
                    die()

            patch.setattr(os, "replace", replaced)
            work()

    assert forked(killed) == KILLED
    assert not folder.exists()


def staged_keys(root: Path) -> set[str]:
    """Return the hashes of the texts whose vectors wait for their segment."""
    found: set[str] = set()
    for path in root.rglob("reconciling/*.sqlite"):
        with closing(sqlite3.connect(path)) as db:
            found.update(key for (key,) in db.execute("SELECT key FROM vector"))
    return found


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@CHROMA
@pytest.mark.parametrize("kind", ["length", "model"])
def test_another_model_is_refused_before_anything_is_written(
    kind: str, server: FaultServer, settings: Path, tmp_path: Path
) -> None:
    store = extract("1.5", tmp_path)
    cut_elements(store)
    lost = lost_ids(store)
    server.dimensions = 8 if kind == "length" else DIMENSION
    before = snapshot(tmp_path)
    found = fill(store, settings, "--yes")
    ended = (1, "AnswerUnfit") if kind == "length" else (2, "EmbedderDiffers")
    assert (found.status, found.document["error"]["code"]) == ended
    assert snapshot(tmp_path) == before
    assert sent(server, store, lost) == []


def test_without_chromadb_nothing_is_sent(
    server: FaultServer, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "is_installed", lambda: False)
    store = extract("1.5", tmp_path)
    lose_vector(store)
    before = snapshot(tmp_path)
    assert fill(store, settings, "--dry-run").document["scopes"][0]["planned"]["texts"] == 1
    found = fill(store, settings, "--yes")
    assert found.status == 2
    assert 'pip install "regraft[chroma]"' in found.document["error"]["message"]
    assert (server.texts, snapshot(tmp_path)) == ([], before)


def lose_vector(store: ChromaStore, name: str = "plain") -> str:
    """Let the database have an entry that no other file knows."""
    key = "nobody"
    segment = store.segment(name, "METADATA")
    with closing(sqlite3.connect(store.database)) as db, db:
        (number,) = db.execute("SELECT max(id) + 1 FROM embeddings").fetchone()
        db.execute(
            "INSERT INTO embeddings (id, segment_id, embedding_id, seq_id) VALUES (?, ?, ?, 1)", (number, segment, key)
        )
        db.execute(
            "INSERT INTO embedding_metadata (id, key, string_value) VALUES (?, 'chroma:document', 'Lost')", (number,)
        )
    return key


def test_a_damaged_segment_is_repaired_first(server: FaultServer, settings: Path, tmp_path: Path) -> None:
    store = extract("1.5", tmp_path)
    lose_vector(store)
    overwrite_links(store)
    (store.folder("plain") / "index_metadata.pickle").write_bytes(b"no pickle")
    before = snapshot(tmp_path)
    found = fill(store, settings, "--dry-run")
    (left,) = found.document["left"]
    assert left["finding"] == "chroma.vector-missing"
    assert "run regraft repair first" in left["reason"]
    assert (server.texts, snapshot(tmp_path)) == ([], before)


def test_a_recorded_model_must_be_that_of_the_embedder(server: FaultServer, settings: Path, tmp_path: Path) -> None:
    store = extract("1.5", tmp_path)
    lose_vector(store)
    store.execute(
        "INSERT INTO collection_metadata (collection_id, key, str_value) VALUES (?, 'embedding_model', 'acme::other')",
        store.collection_id("plain"),
    )
    before = snapshot(tmp_path)
    found = fill(store, settings, "--yes")
    assert (found.status, found.document["error"]["code"]) == (2, "ModelDiffers")
    assert "the vectors of plain were made by acme::other" in found.document["error"]["message"]
    assert (server.texts, snapshot(tmp_path)) == ([], before)


def test_entries_without_a_document_are_named(server: FaultServer, settings: Path, tmp_path: Path) -> None:
    store = extract("1.5", tmp_path)
    lose_vector(store)
    store.execute("DELETE FROM embedding_metadata WHERE string_value = 'Lost'")
    found = fill(store, settings, "--dry-run")
    assert [one["reason"] for one in found.document["left"]] == [
        "no text to embed: 1 entry with neither vector nor document"
    ]
    assert found.document["scopes"][0]["planned"]["texts"] == 0


@posix
def test_a_folder_in_use_is_refused(server: FaultServer, settings: Path, tmp_path: Path) -> None:
    store = extract("1.5", tmp_path)
    lose_vector(store)
    serve(server, store)
    hold = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT 1 FROM collections'); "
    with subprocess.Popen(
        [sys.executable, "-c", hold + "print('open', flush=True); sys.stdin.read()", store.database],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        before = snapshot(tmp_path)
        found = fill(store, settings, "--yes")
        holder.communicate()
    if core.is_installed():
        assert (found.status, found.document["error"]["code"]) == (2, "ApplicationOpen")
    assert (server.texts, snapshot(tmp_path)) == ([], before)


def test_a_check_names_the_command(tmp_path: Path) -> None:
    store = extract("1.5", tmp_path)
    lose_vector(store)
    (found,) = check(store.root)["vector-missing"]
    assert found["repair"] == f"regraft backfill {store.root}"
    assert found["samples"] == ["nobody"]
