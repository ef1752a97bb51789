"""The full-text index of Chroma's database: damage is found by ``check`` and rebuilt by ``repair``."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from angel_store import FULL_TEXT as TABLE
from angel_store import OTHER_PROVIDER, AngelStore, add_full_text, build, check, collection, embed, untouched
from extras import needs
from harness import run

from regraft.errors import RegraftError
from repair.chroma import full_text

DAMAGE = {
    "the index is overwritten": f"UPDATE {TABLE}_data SET block = x'00000001ff7fff7f' WHERE id >= 10",
    "the structure is gone": f"DELETE FROM {TABLE}_data WHERE id = 10",
    "the index is empty": f"DELETE FROM {TABLE}_data",
    "the averages are zeros": f"UPDATE {TABLE}_data SET block = zeroblob(0) WHERE id = 1",
    "no counts": f"DELETE FROM {TABLE}_docsize",
    "another format": f"UPDATE {TABLE}_config SET v = 99 WHERE k = 'version'",
    "no format": f"DELETE FROM {TABLE}_config",
    "another text": f"UPDATE {TABLE}_content SET c0 = 'something else' WHERE id = 1",
    "a text is gone": f"DELETE FROM {TABLE}_content WHERE id = 1",
    "no text": f"DELETE FROM {TABLE}_content",
}


@pytest.fixture
def store(tmp_path: Path) -> AngelStore:
    made = build(tmp_path / "data")
    add_full_text(made, made.chroma())
    assert check(made) == {}
    return made


def plant(path: Path, statement: str) -> None:
    with closing(apsw.Connection(str(path))) as db:
        db.execute(statement)


def others(path: Path) -> dict[str, list[Any]]:
    """Return the rows of every table but those of the index."""
    with closing(sqlite3.connect(path)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in names if not name.startswith(TABLE)}


def index_rows(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        parts = ("data", "idx", "docsize", "content", "config")
        return [db.execute(f"SELECT * FROM {TABLE}_{part}").fetchall() for part in parts]


def demand_sound(path: Path, folder: Path) -> None:
    """Ask another SQLite, in a copy: FTS5's own check, and every document by its own words."""
    copy = Path(shutil.copyfile(path, folder / "copy.sqlite"))
    with closing(sqlite3.connect(copy)) as db:
        db.execute(f"INSERT INTO {TABLE} ({TABLE}, rank) VALUES ('integrity-check', 1)")
        documents = db.execute("SELECT id, string_value FROM embedding_metadata WHERE key = 'chroma:document'")
        for number, text in documents.fetchall():
            assert db.execute(f"SELECT string_value FROM {TABLE} WHERE rowid = ?", (number,)).fetchone() == (text,)
            if len(text) >= 3:
                found = db.execute(f"SELECT rowid FROM {TABLE} WHERE {TABLE} MATCH ?", (f'"{text}"',)).fetchall()
                assert (number,) in found


def test_a_rebuild_that_fails_in_the_copy_says_why_and_a_full_disk_is_no_damage(
    store: AngelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.chroma()
    plant(path, f"CREATE INDEX foreign_index ON {TABLE}_docsize (sz)")
    rows = others(path)
    with pytest.raises(RegraftError) as refused:
        full_text.rebuild_in_copy(path, tmp_path / "copy.sqlite3")
    assert refused.value.code == "FullTextNotRebuilt"
    reason = "foreign_index is an index on a table of the full-text index"
    assert str(refused.value) == (
        f"{path}: its full-text index could not be rebuilt ({reason}); nothing was changed. Restore the file from a "
        "backup."
    )

    plant(path, "DROP INDEX foreign_index")
    rebuild = full_text.rebuild

    def on_a_full_disk(db: apsw.Connection) -> None:
        rebuild(db)
        db.pragma("max_page_count", 1)
        db.execute("CREATE TABLE large AS SELECT zeroblob(1000000)")

    monkeypatch.setattr(full_text, "rebuild", on_a_full_disk)
    with pytest.raises(apsw.FullError):
        full_text.rebuild_in_copy(path, tmp_path / "other.sqlite3")
    assert others(path) == rows


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_index_is_found_and_rebuilt_and_taken_back(store: AngelStore, name: str, tmp_path: Path) -> None:
    path = store.chroma()
    plant(path, DAMAGE[name])
    before, damaged = others(path), index_rows(path)
    with untouched(store.root):
        assert set(check(store)) == {"angel.full-text"}
        assert set(check(store, "--deep")) == {"angel.full-text"}
    with untouched(store.root):
        dry = run("repair", store.root, "--dry-run", "--json")
    done = run("repair", store.root, "--json")
    assert (done.status, done.document["actions"]) == (0, dry.document["actions"])
    (action,) = done.document["actions"]
    name_of_file = path.relative_to(store.root).as_posix()
    assert (action["action"], action["subject"]) == ("rebuild-full-text", name_of_file)
    assert action["message"] == f"rebuild the full-text index of {name_of_file} from its documents"
    assert others(path) == before
    demand_sound(path, tmp_path)
    assert check(store, "--deep") == {}
    assert run("repair", store.root, "--json").document["actions"] == []
    assert run("undo", store.root).status == 0
    assert (others(path), index_rows(path)) == (before, damaged)


def test_texts_of_no_document_stay(store: AngelStore, tmp_path: Path) -> None:
    plant(store.chroma(), f"INSERT INTO {TABLE}_content VALUES (999, 'a text of no document')")
    assert set(check(store)) == {"angel.full-text"}
    assert run("repair", store.root).status == 0
    demand_sound(store.chroma(), tmp_path)
    with closing(sqlite3.connect(store.chroma())) as db:
        found = db.execute(f"SELECT rowid FROM {TABLE} WHERE {TABLE} MATCH 'document'").fetchall()
    assert found == [(999,)]


@pytest.mark.thorough
def test_every_provider_is_looked_at(store: AngelStore) -> None:
    store.fill(OTHER_PROVIDER)
    add_full_text(store, store.chroma(OTHER_PROVIDER))
    for provider in (OTHER_PROVIDER, "openai-embed_v1"):
        plant(store.chroma(provider), DAMAGE["the index is overwritten"])
    samples = check(store)["angel.full-text"]
    assert samples
    done = run("repair", store.root, "--only", "angel.full-text", "--json")
    assert [action["action"] for action in done.document["actions"]] == ["rebuild-full-text"] * 2
    assert "angel.full-text" not in check(store)


def test_a_quick_check_does_not_read_the_index(store: AngelStore) -> None:
    plant(store.chroma(), DAMAGE["the index is overwritten"])
    assert check(store, "--quick") == {}


def test_what_cannot_be_rebuilt_is_named_and_the_rest_is_repaired(store: AngelStore) -> None:
    """With such an index, FTS5's rebuild would end the process."""
    plant(store.chroma(), DAMAGE["the index is overwritten"])
    store.execute(f"CREATE INDEX foreign_index ON {TABLE}_data (1)", path=store.chroma())
    store.execute("UPDATE note_short_id_seq SET next_id = 3")
    before = store.chroma().read_bytes()
    found = set(check(store))
    assert found >= {"angel.full-text", "angel.short-id-sequence"}
    done = run("repair", store.root, "--json")
    assert done.status == 1
    assert [action["finding"] for action in done.document["actions"]] == ["angel.short-id-sequence"]
    (reason,) = [one["reason"] for one in done.document["left"] if one["finding"] == "angel.full-text"]
    assert "foreign_index is an index on a table of the full-text index" in reason
    assert store.chroma().read_bytes() == before
    assert set(check(store)) == found - {"angel.short-id-sequence"}


@needs("chroma")
def test_chromadb_writes_to_a_rebuilt_database(tmp_path: Path) -> None:
    store = build(tmp_path / "data", real=True)
    assert check(store) == {}
    plant(store.chroma(), DAMAGE["the index is overwritten"])
    assert set(check(store)) == {"angel.full-text"}
    assert run("repair", store.root).status == 0
    demand_sound(store.chroma(), tmp_path)
    with collection(store.chroma().parent) as found:
        before = found.count()
        found.upsert(
            ids=["new"], documents=["a new document"], embeddings=[embed("x")], metadatas=[{"source_id": "new"}]
        )
        assert found.count() == before + 1
        assert found.get(where_document={"$contains": "new document"})["ids"] == ["new"]
