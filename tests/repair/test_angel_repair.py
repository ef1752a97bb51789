"""``regraft repair`` of AngelMemory: the records follow the files below ``raw/``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from angel_store import READ_AT, AngelStore, build, check, double_short_id, needs_samples, never_read, sample, untouched
from harness import Outcome, run, snapshot

from repair.changes import changesets

LATER = READ_AT + 100
EARLIER = READ_AT - 100


@pytest.fixture
def store(tmp_path: Path) -> AngelStore:
    return build(tmp_path / "data")


def repair(store: AngelStore | Path, *options: str) -> Outcome:
    path = store.root if isinstance(store, AngelStore) else store
    done = run("repair", path, "--json", *options)
    assert done.status in (0, 1), done.stderr
    return done


def content(store: AngelStore) -> dict[str, bytes]:
    """Return what is in every file of a data folder but regraft's own."""
    return {name: parts[2] for name, parts in snapshot(store.root).items() if not name.startswith(".regraft")}


def actions(done: Outcome) -> list[str]:
    return [action["action"] for action in done.document["actions"]]


def of_path(store: AngelStore, path: str) -> list[tuple[str, int | None, str]]:
    return [(one.headings[0], one.short_id, one.file_id) for one in store.records() if one.path == path]


def indexed(store: AngelStore) -> dict[str, tuple[int, int]]:
    rows = store.rows("SELECT relative_path, id, file_timestamp FROM file_index_global", path=store.file_index)
    return {path: (number, seconds) for path, number, seconds in rows}


# --- what the system's own scan would do -----------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("seconds", [LATER, EARLIER], ids=["seen", "unseen"])
def test_the_records_of_a_changed_file_are_replaced(store: AngelStore, seconds: int) -> None:
    others = [one for one in store.records() if one.path != "notes/dup.md"]
    gone = sorted(one.short_id for one in store.records() if one.path == "notes/dup.md" and one.short_id is not None)
    highest = max(number for number, _ in indexed(store).values())
    store.write("notes/dup.md", "# Same\n# New\n", seconds=seconds)
    done = repair(store)
    assert actions(done) == ["index-files", "replace-records"]
    action = done.document["actions"][1]
    assert (action["gone"], action["come"]) == (gone, [11, 12])
    ids = ", ".join(map(str, gone)) if len(gone) < 2 else f"{gone[0]}–{gone[-1]}"
    assert action["message"] == f"update the records of notes/dup.md, which changed: delete {ids}, add 11–12"
    assert of_path(store, "notes/dup.md") == [("Same", 11, str(highest + 1)), ("New", 12, str(highest + 1))]
    assert [one for one in store.records() if one.path != "notes/dup.md"] == others
    assert indexed(store)["notes/dup.md"] == (highest + 1, seconds)
    assert store.rows("SELECT next_id FROM note_short_id_seq") == [(13,)]


def test_what_is_left_is_for_other_commands(store: AngelStore) -> None:
    store.write("notes/dup.md", "# Another\n", seconds=LATER)
    done = repair(store)
    # Nothing is left of the tag of the headings that were there.
    assert set(check(store)) == {"angel.vector-missing", "angel.vector-orphan", "angel.tag-unused"}
    assert done.document["left"] == []
    assert done.document["undo"] is not None


def test_a_vector_stays_right_whose_note_did_not_change(store: AngelStore) -> None:
    store.write("notes/plain.txt", "three\nlines\nnow\n", seconds=LATER)
    repair(store)
    assert check(store) == {}


def test_records_of_a_file_that_is_gone_are_removed(store: AngelStore) -> None:
    (store.raw / "notes/plan.md").unlink()
    done = repair(store)
    assert actions(done) == ["index-files", "delete-records"]
    assert of_path(store, "notes/plan.md") == []
    assert "notes/plan.md" not in indexed(store)
    assert store.rows("SELECT next_id FROM note_short_id_seq") == [(11,)]
    found = check(store)
    assert set(found) == {"angel.vector-orphan", "angel.tag-unused"}


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_a_file_without_a_record_gets_one(store: AngelStore, known: bool) -> None:
    if known:
        never_read(store)
    else:
        store.write("new.md", "# New\n")
    done = repair(store)
    assert actions(done) == ["index-files", "add-records"]
    ((heading, short_id, file_id),) = of_path(store, "new.md")
    assert (heading, short_id) == ("New", 11)
    assert indexed(store)["new.md"] == (int(file_id), READ_AT)
    assert set(check(store)) == {"angel.vector-missing"}


def test_short_ids_are_never_given_twice(store: AngelStore) -> None:
    (store.raw / "notes/中文/笔记.md").unlink()
    repair(store)
    store.execute("UPDATE note_short_id_seq SET next_id = 3")
    store.write("new.txt", "x")
    done = repair(store)
    assert "set-sequence" in actions(done)
    highest = max(one.short_id or 0 for one in store.records() if one.path != "new.txt")
    assert of_path(store, "new.txt")[0][1] == highest + 1
    assert store.rows("SELECT next_id FROM note_short_id_seq") == [(highest + 2,)]


def test_a_missing_sequence_is_made(store: AngelStore) -> None:
    store.execute("DELETE FROM note_short_id_seq")
    assert actions(repair(store)) == ["set-sequence"]
    assert store.rows("SELECT * FROM note_short_id_seq") == [(1, 11)]


def test_who_was_stored_first_keeps_a_short_id(store: AngelStore) -> None:
    keys = dict(store.rows("SELECT note_short_id, source_id FROM note_index_records"))
    double_short_id(store)
    assert actions(repair(store)) == ["renumber-records"]
    now = {one.source_id: one.short_id for one in store.records()}
    assert (now[keys[1]], now[keys[2]]) == (1, 11)
    assert check(store) == {}


def test_a_tag_that_is_there_is_used(store: AngelStore) -> None:
    before = dict(store.rows("SELECT name, id FROM global_tags"))
    store.write("notes/plain2.txt", "x")
    repair(store)
    after = dict(store.rows("SELECT name, id FROM global_tags"))
    assert after == {**before, "plain2.txt": max(before.values()) + 1}


def test_relations_left_of_an_earlier_record_go(store: AngelStore) -> None:
    (record,) = [one for one in store.records() if one.path == "data.csv"]
    store.execute("DELETE FROM note_index_records WHERE source_id = ?", record.source_id)
    store.execute("INSERT INTO note_tag_rel VALUES (?, 99999)", record.source_id)
    repair(store)
    assert check(store) == {}


def test_records_without_an_id_are_replaced(store: AngelStore) -> None:
    store.execute("DELETE FROM note_tag_rel")
    store.execute("UPDATE note_index_records SET source_id = NULL")
    assert set(actions(repair(store))) == {"index-files", "replace-records"}
    assert check(store) == {}


def test_an_id_under_another_path_is_taken_over(store: AngelStore) -> None:
    store.execute("UPDATE note_index_records SET source_file_path = 'zz.csv' WHERE note_short_id = 0")
    done = repair(store)
    assert actions(done) == ["index-files", "add-records", "delete-records"]
    assert check(store) == {}


# --- as every command that changes a store ---------------------------------------------------------------------------


def spoil(store: AngelStore) -> None:
    store.write("notes/dup.md", "# Other\n", seconds=EARLIER)
    (store.raw / "data.csv").unlink()
    store.write("new.md", "# New\n")
    store.execute("UPDATE note_short_id_seq SET next_id = 0")


def test_a_second_run_changes_nothing(store: AngelStore) -> None:
    spoil(store)
    repair(store)
    before = content(store)
    done = repair(store)
    assert done.document["actions"] == []
    assert content(store) == before


def test_a_dry_run_touches_nothing(store: AngelStore) -> None:
    spoil(store)
    with untouched(store.root):
        planned = repair(store, "--dry-run")
    done = repair(store)
    assert planned.document["actions"] == done.document["actions"]


def test_a_run_can_be_taken_back(store: AngelStore) -> None:
    spoil(store)
    records, known = store.records(), indexed(store)
    repair(store)
    assert store.records() != records
    assert run("undo", store.root).status == 0
    assert (store.records(), indexed(store)) == (records, known)


def short_ids(store: AngelStore, path: str) -> set[int]:
    rows = store.rows("SELECT note_short_id FROM note_index_records WHERE source_file_path = ?", path)
    return {number for (number,) in rows}


@pytest.mark.thorough
@pytest.mark.parametrize("largest", [None, -1], ids=["rows", "whole file"])
def test_undo_never_frees_a_short_id(store: AngelStore, largest: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if largest is not None:
        # A change that is larger is made on a copy of the file, which undo then puts back as a whole.
        monkeypatch.setattr(changesets, "LARGEST_CHANGESET", largest)
    before = store.rows("SELECT * FROM note_index_records ORDER BY 1")
    store.write("first.md", "# One\n# Two\n")
    repair(store)
    given = short_ids(store, "first.md")
    assert run("undo", store.root).status == 0
    assert store.rows("SELECT * FROM note_index_records ORDER BY 1") == before
    store.write("second.md", "# Three\n")
    repair(store)
    second = short_ids(store, "second.md") | short_ids(store, "first.md")
    assert len(second) == 3
    assert given.isdisjoint(second)
    assert min(second) > max(given)
    # The system itself gives the next id by the same counter.
    assert store.rows("SELECT next_id FROM note_short_id_seq") == [(max(second) + 1,)]


@pytest.mark.thorough
def test_several_runs_are_taken_back_and_the_counter_stays(store: AngelStore) -> None:
    before = store.rows("SELECT * FROM note_index_records ORDER BY 1")
    for number in range(3):
        store.write(f"new {number}.txt", "x")
        repair(store)
    (highest,) = store.rows("SELECT next_id FROM note_short_id_seq")
    for _ in range(3):
        assert run("undo", store.root).status == 0
    assert store.rows("SELECT * FROM note_index_records ORDER BY 1") == before
    assert store.rows("SELECT next_id FROM note_short_id_seq") == [highest]


def test_a_run_is_taken_back_after_the_system_gave_out_ids(store: AngelStore) -> None:
    before = store.rows("SELECT * FROM note_index_records ORDER BY 1")
    store.write("first.txt", "x")
    repair(store)
    store.execute("UPDATE note_short_id_seq SET next_id = next_id + 5")
    (counter,) = store.rows("SELECT next_id FROM note_short_id_seq")
    assert run("undo", store.root).status == 0
    assert store.rows("SELECT * FROM note_index_records ORDER BY 1") == before
    assert store.rows("SELECT next_id FROM note_short_id_seq") == [counter]


def test_only_what_was_named_is_mended(store: AngelStore) -> None:
    spoil(store)
    done = repair(store, "--only", "angel.file-missing")
    assert actions(done) == ["index-files", "delete-records"]
    assert {"angel.record-changed", "angel.record-missing"} <= set(check(store))


def test_what_nobody_can_mend_is_left(store: AngelStore) -> None:
    store.execute("UPDATE note_index_records SET source_file_path = '../x' WHERE note_short_id = 0")
    (store.raw / "data.csv").unlink()
    done = repair(store)
    assert done.status == 1
    assert [left["finding"] for left in done.document["left"]] == ["angel.file-outside"]
    assert done.document["actions"] == []


def test_without_an_index_of_files_records_stay(store: AngelStore) -> None:
    spoil(store)
    store.file_index.unlink()
    done = repair(store)
    assert actions(done) == ["set-sequence"]
    assert "angel.unreadable" in {left["finding"] for left in done.document["left"]}


def test_a_file_that_changes_meanwhile_takes_the_run_back(store: AngelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from repair.angel_memory import records

    store.write("notes/dup.md", "# Other\n", seconds=LATER)
    add: Callable[..., Any] = records._insert_note

    def adding(*arguments: Any) -> None:
        store.write("notes/dup.md", "# And another\n", seconds=LATER)
        add(*arguments)

    monkeypatch.setattr(records, "_insert_note", adding)
    before = store.records()
    assert run("repair", store.root, "--json").document["error"]["code"] == "NotMended"
    assert store.records() == before


@pytest.mark.parametrize("command", ["backfill", "upgrade", "rebuild"])
def test_commands_for_other_stores_refuse_it(store: AngelStore, command: str) -> None:
    done = run(command, store.root, "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "NotChanged")


@needs_samples
def test_the_damaged_sample_follows_its_files(tmp_path: Path) -> None:
    root = sample("damaged", tmp_path).root
    changed = root / "raw/notes/family/travel/plan.md"
    os.utime(changed, (EARLIER, EARLIER))
    done = repair(root)
    assert actions(done) == ["index-files", "replace-records", "delete-records", "set-sequence"]
    assert not any(name.startswith(("angel.record", "angel.file", "angel.short")) for name in check(root))
    assert repair(root).document["actions"] == []
