"""``regraft gc`` of AngelMemory: tags, relations and folders that nothing uses, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import angel_store
import pytest
from angel_store import OTHER_PROVIDER, PROVIDER, AngelStore
from faults import said, untouched
from harness import Outcome, run
from toys import contents


@pytest.fixture
def store(tmp_path: Path) -> AngelStore:
    """Return a healthy data folder with a memory that shares a tag with a note, and has one of its own."""
    made = angel_store.build(tmp_path / "data")
    made.remember("m1", "notes", "of memories alone")
    return made


#: What lets gc move the folder of a provider.
NAMED = ("--only", "angel.provider-leftover")


def gc(store: AngelStore, *options: object) -> Outcome:
    return run("gc", store.root, "--json", *options)


def actions(done: Outcome) -> list[tuple[str, int, str]]:
    return [(one["action"], one["count"], one["finding"]) for one in done.document["actions"]]


def found(store: AngelStore) -> set[str]:
    return {one["name"] for one in run("check", store.root, "--json").document["findings"]}


def tags(store: AngelStore) -> set[str]:
    return {name for (name,) in store.rows("SELECT name FROM global_tags")}


def plant(store: AngelStore) -> None:
    """Plant a tag that nothing has, relations to and of nothing (one is both), and a tag that only such one has."""
    key = next(iter(store.texts()))
    store.add_tag("unused")
    of_nothing = store.add_tag("of nothing")
    store.execute("INSERT INTO note_tag_rel VALUES ('note_gone', ?)", of_nothing)
    store.execute("INSERT INTO memory_tag_rel VALUES ('m_gone', 1)")
    store.execute("INSERT INTO note_tag_rel VALUES (?, 99999)", key)
    store.execute("INSERT INTO memory_tag_rel VALUES ('m_gone', 99998)")


def test_nothing_goes_where_all_is_used(store):
    before = contents(store.root)
    done = gc(store)
    assert (done.status, done.document["actions"], done.document["undo"]) == (0, [], None)
    assert contents(store.root) == before


def test_what_nothing_uses_goes(store):
    before, had = contents(store.root), tags(store)
    plant(store)
    planted = contents(store.root)
    with untouched(store.root):
        planned = gc(store, "--dry-run")
    done = gc(store)
    assert actions(planned) == actions(done)
    assert sorted(actions(done)) == [
        ("delete-relations", 1, "angel.relation-dangling"),
        ("delete-relations", 1, "angel.relation-dangling"),
        ("delete-relations", 1, "angel.relation-orphan"),
        ("delete-relations", 1, "angel.relation-orphan"),
        ("delete-tags", 2, "angel.tag-unused"),
    ]
    assert tags(store) == had
    assert "of memories alone" in tags(store)
    assert found(store) == set()
    # All but what SQLite remembers of the highest id.
    database = "memory_center/index/simple_memory.db"
    rows: Any = contents(store.root)
    assert {key: value for key, value in rows.pop(database).items() if key != "sqlite_sequence"} == {
        key: value for key, value in before.pop(database).items() if key != "sqlite_sequence"
    }
    assert rows == before
    assert gc(store).document["actions"] == []
    assert run("undo", store.root, "-y").status == 0
    assert contents(store.root) == planted


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "count"), [("angel.relation-dangling", 2), ("angel.relation-orphan", 3), ("angel.tag-unused", 1)]
)
def test_one_finding_at_a_time(store, name, count):
    """A relation that leads from nothing to nothing is of both; a tag that only such one has goes after it."""
    plant(store)
    done = gc(store, "--only", name)
    assert {finding for _, _, finding in actions(done)} == {name}
    assert sum(number for _, number, _ in actions(done)) == count
    left = [(one["finding"], one["count"]) for one in done.document["left"]]
    assert left == ([(name, 1)] if name == "angel.tag-unused" else [])
    assert done.status == int(bool(left))
    assert gc(store).status == 0
    assert found(store) == set()


@pytest.mark.thorough
def test_records_may_differ_from_their_files(store):
    """What nothing uses goes in any order: tags that a file needs come back with its records."""
    plant(store)
    store.write("notes/plain.txt", "other\ntext\nnow\n", seconds=angel_store.READ_AT + 5)
    store.write("new/n.md", "# Trip\n")
    assert gc(store).status == 0
    assert run("repair", store.root, "-y", "--fail-on", "never").status == 0
    assert gc(store).document["actions"] == []
    assert not found(store) & {"angel.relation-dangling", "angel.relation-orphan", "angel.tag-unused"}


# --- providers -------------------------------------------------------------------------------------------------------


def test_the_folder_of_a_provider_that_is_not_in_use(store):
    store.fill("old")
    folder = store.root / "memory_old"
    before = contents(folder)
    done = gc(store)
    assert (done.status, done.document["actions"]) == (1, [])
    assert "to the trash only with --only angel.provider-leftover" in done.document["left"][0]["reason"]
    assert contents(folder) == before
    done = gc(store, *NAMED)
    assert actions(done) == [("trash-folder", 1, "angel.provider-leftover")]
    assert not folder.exists()
    assert store.chroma(PROVIDER).is_file()
    assert found(store) == set()
    assert run("undo", store.root, "-y").status == 0
    assert contents(folder) == before
    assert gc(store, *NAMED, "--grace", "0").status == 0
    assert not folder.exists()
    assert not (store.root / ".regraft" / "trash").exists()


def test_folders_in_use_or_due_stay(store):
    store.fill(OTHER_PROVIDER, {})
    before = contents(store.root)
    assert gc(store).document["actions"] == []
    assert contents(store.root) == before


def test_nobody_knows_what_is_in_use_without_the_state_file(store):
    store.fill("old")
    store.state_file.write_text("{")
    done = gc(store)
    assert (done.status, done.document["actions"]) == (1, [])
    assert [one["finding"] for one in done.document["left"]] == ["angel.provider-leftover"]


def test_what_may_be_nowhere_else_stays_unless_it_is_named(store):
    """Early versions kept memories in a collection."""
    store.fill("old")
    rename = "UPDATE collections SET name = ?"
    store.execute(rename, "memories", path=store.chroma("old"))
    done = gc(store)
    assert (done.status, done.document["actions"]) == (1, [])
    assert "memories" in done.document["left"][0]["reason"]
    assert gc(store, "--only", "angel.provider-leftover").status == 0
    assert not (store.root / "memory_old").exists()


# --- many at once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["note_index_records", "memory_records"])
def test_where_many_owners_are_gone_at_once_nothing_goes(store, table):
    relation, key = ("note_tag_rel", "source_id") if table == "note_index_records" else ("memory_tag_rel", "memory_id")
    for number in range(3):
        store.execute(f"INSERT INTO {relation} ({key}, tag_id) SELECT ?, min(id) FROM global_tags", f"gone {number}")
    before = contents(store.root)
    done = gc(store)
    assert (done.status, done.document["actions"]) == (1, [])
    assert "disappeared at once" in done.document["left"][0]["reason"]
    assert contents(store.root) == before


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--vacuum", "--v1-leftovers"])
def test_options_that_say_nothing_here(store, option):
    before = contents(store.root)
    assert option in said(gc(store, option), "WrongUsage", 2)
    assert contents(store.root) == before


def test_a_system_that_is_running(store):
    plant(store)
    before = contents(store.root)
    with store.opened(store.file_index) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("SELECT * FROM file_index_global").fetchall()
        said(gc(store), "ApplicationOpen", 2)
    assert contents(store.root) == before


def test_a_database_that_cannot_be_read(store):
    store.execute("DROP TABLE memory_tag_rel")
    assert "memory_tag_rel" in said(gc(store), "SourceUnreadable", 2)
