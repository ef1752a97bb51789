"""Items of the type external, which later releases draft: in a profile that has them, and in one that has not."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from faults import files_of, untouched
from generations import changed, dangling, database, dump, profile, query, with_bases
from harness import NOW, Outcome, run
from lacking import KB, index, library

DOCUMENT = "0198c0de-0000-7000-8000-00000000d0c1"
STAGED = "0198c0de-0000-7000-8000-00000000d0c2"
#: It looks like a snapshot's head, and is the document's own text.
TEXT = '---\ntype: "Note"\n---\n\n# The lamp\n\nIt is lit at dusk.\n'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("made"))


@pytest.fixture
def newer(made: Path, tmp_path: Path) -> Path:
    """Return a profile of the drafted generation: one item of its first base is a document, another is being staged."""
    store = with_bases(tmp_path / "newer", "external", made)
    [(item, path)] = query(
        store,
        "SELECT id, json_extract(data, '$.relativePath') FROM knowledge_item"
        f" WHERE base_id = '{KB}' AND type = 'file' ORDER BY id LIMIT 1",
    )
    raw = store / "Data" / "KnowledgeBase" / KB / "raw"
    (raw / str(path)).rename(raw / "Lamp of the harbour.md")
    (raw / "Lamp of the harbour.md").write_bytes(TEXT.encode())
    with closing(sqlite3.connect(index(store / "Data", KB))) as db, db:
        db.execute("UPDATE material SET relative_path = 'Lamp of the harbour.md' WHERE material_id = ?", (item,))
    data = {"source": "https://acme.example/d/1", "title": "Lamp", "relativePath": "Lamp of the harbour.md"}
    times = "1, 1"
    changed(
        store,
        f"UPDATE knowledge_item SET type = 'external', data = '{json.dumps(data)}' WHERE id = '{item}'",
        f"INSERT INTO knowledge_item VALUES ('{STAGED}', '{KB}', NULL, 'external',"
        f" '{json.dumps({**data, 'title': 'Not there yet'})}', 'deleting', NULL, {times})",
        "INSERT INTO external_knowledge_connection VALUES"
        f" ('c', 'feishu', 'app', 'custom-app', 'connected', 'key', '[]', NULL, {times})",
        "INSERT INTO external_knowledge_source VALUES"
        f" ('s', '{KB}', 'c', 'feishu', 't', 'sp', '{{}}', 'S', 'active', 0, {times})",
        "INSERT INTO external_knowledge_document VALUES"
        f" ('d', 's', 'r', 'n', '[]', 'Lamp', 'https://acme.example/d/1', 1, 'active', '{item}', {times})",
    )
    assert dangling(store) == []
    return store


def install(source: Path, target: Path, *options: object) -> Outcome:
    return run("install", source, "--profile", target, "--now", NOW, "--json", "--base", KB, *options)


def types(store: Path) -> dict[str, int]:
    return dict(query(store, f"SELECT type, count(*) FROM knowledge_item WHERE base_id = '{KB}' GROUP BY 1"))  # type: ignore[arg-type]


def vectors(store: Path) -> list[tuple[str, bytes]]:
    with closing(sqlite3.connect(index(store / "Data", KB))) as db:
        return db.execute("SELECT embedding_text_hash, vector_blob FROM embedding ORDER BY 1").fetchall()


def test_a_profile_without_such_items_is_named_them(newer: Path, tmp_path: Path) -> None:
    store = profile(tmp_path / "older", "2.1")
    before = dump(store)
    with untouched(newer):
        outcome = install(newer, store)
    assert dump(store) == before
    assert not (store / "Data" / "KnowledgeBase").exists()
    assert outcome.status == 1, outcome
    [left] = outcome.document["left"]
    assert left["base"] == KB
    assert left["finding"] == "item.foreign-type"
    assert left["reason"].startswith("the profile's application does not support 2 items of type external (")
    assert left["reason"].endswith("; use --external-as-files to install them as files")
    assert "Not there yet" in left["reason"]
    assert "Lamp" in left["reason"]
    assert "CHECK" not in outcome.stdout + outcome.stderr


def test_they_come_as_files_with_their_text_as_it_is(newer: Path, tmp_path: Path) -> None:
    store = profile(tmp_path / "older", "2.1")
    before, was = dump(store), types(newer)
    outcome = install(newer, store, "--external-as-files")
    assert outcome.status == 1, outcome
    [left] = outcome.document["left"]
    assert "Not there yet" in left["reason"]
    assert types(store) == {**{kind: n for kind, n in was.items() if kind != "external"}, "file": was["file"] + 1}
    [(data,)] = query(
        store, "SELECT data FROM knowledge_item WHERE type = 'file' AND data LIKE '%Lamp of the harbour.md%'"
    )
    assert json.loads(str(data)) == {"source": "https://acme.example/d/1", "relativePath": "Lamp of the harbour.md"}
    raw = store / "Data" / "KnowledgeBase" / KB / "raw" / "Lamp of the harbour.md"
    assert raw.read_bytes() == TEXT.encode()
    assert vectors(store) == vectors(newer)
    assert dangling(store) == []
    assert [one for one in run("check", store, "--json").document["findings"] if one["severity"] == "error"] == []
    again = install(newer, store, "--external-as-files")
    assert again.document["actions"] == []
    assert run("undo", store, "-y").status == 0
    assert dump(store) == before


def test_a_document_without_its_file_keeps_its_base_out_by_name(newer: Path, tmp_path: Path) -> None:
    store = profile(tmp_path / "older", "2.1")
    (newer / "Data" / "KnowledgeBase" / KB / "raw" / "Lamp of the harbour.md").unlink()
    before = dump(store)
    outcome = install(newer, store, "--external-as-files")
    assert dump(store) == before
    assert not (store / "Data" / "KnowledgeBase").exists()
    assert outcome.status == 1, outcome
    [left] = outcome.document["left"]
    assert (left["finding"], left["base"]) == ("raw.missing", KB)
    assert "1 item of type external without a file (Lamp)" in left["reason"]


def test_a_profile_that_has_such_items_gets_them_as_they_are(newer: Path, tmp_path: Path) -> None:
    store = profile(tmp_path / "other", "external")
    assert install(newer, store).status == 0
    assert types(store) == types(newer)
    assert dangling(store) == []


def test_no_other_command_touches_them(newer: Path) -> None:
    before, files = dump(newer), files_of(newer)
    for command in (("repair",), ("gc",), ("reconcile",), ("fix",), ("upgrade",)):
        assert run(*command, newer, "--json", "--yes").document["actions"] == [], command
    assert (dump(newer), files_of(newer)) == (before, files)
    found = [one for one in run("check", newer, "--json").document["findings"] if one["name"] == "item.foreign-type"]
    assert [one["count"] for one in found] == [1, 1]


def test_they_are_packed_and_come_out_of_the_pack(newer: Path, tmp_path: Path) -> None:
    pack, store = tmp_path / "bases.zip", profile(tmp_path / "other", "external")
    assert run("pack", newer, pack, "--base", KB, "--now", NOW, "--json").status in (0, 1)
    assert install(pack, store).status == 0
    assert types(store) == types(newer)
    older = profile(tmp_path / "older", "2.0.9")
    assert "--external-as-files" in install(pack, older).document["left"][0]["reason"]
    assert install(pack, older, "--external-as-files").status == 1
    assert "external" not in types(older)
    assert database(older).is_file()


def test_what_the_application_linked_to_them_meanwhile_is_not_deleted_with_them(made: Path, tmp_path: Path) -> None:
    """Taking an installation back would delete a source of the user's, and a document refers to an item."""
    store = profile(tmp_path / "profile", "external")
    assert install(made, store).status == 0
    [(item,)] = query(store, f"SELECT id FROM knowledge_item WHERE base_id = '{KB}' AND type = 'file' LIMIT 1")
    account = "('c', 'feishu', 'app', 'custom-app', 'connected', 'key', '[]', NULL, 1, 1)"
    space = f"('s', '{KB}', 'c', 'feishu', 't', 'sp', '{{}}', 'S', 'active', 0, 1, 1)"
    document = f"('d', 's', 'r', 'n', '[]', 'Lamp', 'https://acme.example/d/1', 1, 'active', '{item}', 1, 1)"
    changed(
        store,
        f"INSERT INTO external_knowledge_connection VALUES {account}",
        f"INSERT INTO external_knowledge_source VALUES {space}",
    )
    for more in ((), (f"INSERT INTO external_knowledge_document VALUES {document}",)):
        changed(store, *more)
        before = dump(store)
        refused = run("undo", store, "-y")
        assert refused.status == 2
        assert "nothing was undone" in refused.stderr
        assert dump(store) == before
