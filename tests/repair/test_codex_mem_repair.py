"""codex-mem's database is changed so that a search by words finds the same, in the same order, to the last bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import codex_mem_store as made
import pytest
from codex_mem_rows import another_process, every_row, full_text, names, same_words, undo
from faults import REFUSED, fails, posix, said, untouched
from harness import NOW_MS, run
from toys import QuickDisk, killed, moments, quick_disk, steps_of

from regraft.disk import sqlite, untrusted_sqlite
from regraft.formats.codex_mem import database
from regraft.report.document import encoded
from regraft.report.progress import SilentProgress
from repair.changes import changesets
from repair.changes.run import run_command
from repair.codex_mem import note_changes

EXCLUDED = made.note_id(0, 6)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write a database whose row numbers have gaps, which a VACUUM would close."""
    found = made.write(tmp_path / "codex", excluded=2)
    made.delete(found, made.note_id(0, 2))
    return found


@pytest.fixture(scope="module")
def disk() -> Iterator[QuickDisk]:
    with quick_disk() as found:
        yield found


# --- what a search by words goes by ----------------------------------------------------------------------------------


# --- migration 006 ---------------------------------------------------------------------------------------------------


def migrate(path: Path, **more: Any) -> dict[str, Any]:
    """Do what a command does first whose work needs the columns."""
    planner = partial(note_changes.plan_migration, now_ms=NOW_MS)
    return encoded(run_command("backfill", path, planner, progress=SilentProgress(), **more))


def recorded(path: Path) -> list[tuple[Any, ...]]:
    return made.rows(path, "SELECT name, applied_at FROM schema_migrations WHERE version = 6")


def test_migration_006_adds_columns_and_a_record_and_changes_nothing_else(path: Path) -> None:
    before, raw = every_row(path), path.read_bytes()
    with same_words(path):
        document = migrate(path)
    assert [(one["action"], one["count"]) for one in document["actions"]] == [("migrate-metadata", 8)]
    after = every_row(path)
    for table in after.keys() - {"", "memory_items", "schema_migrations"}:
        assert after[table] == before[table], table
    assert [row[:-8] for row in after["memory_items"]] == before["memory_items"]
    assert {row[-8:] for row in after["memory_items"]} == {(None,) * 8}
    assert recorded(path) == [("006_note_embedding_metadata.sql", "2026-11-21T12:00:00.000Z")]
    assert made.rows(path, "PRAGMA journal_mode") in ([("wal",)], [("delete",)])
    assert path.read_bytes()[18:20] == raw[18:20] == b"\2\2", "it keeps a log, as before"
    undo(path)
    assert path.read_bytes() == raw


ADD_COLUMN = "ALTER TABLE memory_items ADD COLUMN"
MIXED: dict[str, tuple[int, Callable[[Path], None]]] = {
    "some columns": (5, lambda path: made.add_columns(path, ["embedding_status", "embedded_at", "embedding_eligible"])),
    "a column in capitals": (7, lambda path: made.run_sql(path, f"{ADD_COLUMN} EMBEDDING_STATUS TEXT")),
    "columns without a record": (1, made.add_columns),
    "a record without columns": (8, made.record),
    "some columns and a record": (7, lambda path: [made.add_columns(path, ["embedded_at"]), made.record(path)][0]),
}


@pytest.mark.thorough
@pytest.mark.parametrize("state", MIXED)
def test_what_is_there_of_migration_006_is_completed_once(path: Path, state: str) -> None:
    count, plant = MIXED[state]
    plant(path)
    raw = path.read_bytes()
    with same_words(path):
        assert [one["count"] for one in migrate(path)["actions"]] == [count]
    assert sorted(made.codex_mem_columns(path)) == sorted(database.COLUMNS)
    assert [name for name, _ in recorded(path)] == ["006_note_embedding_metadata.sql"]
    with untouched(path):
        assert migrate(path)["actions"] == []
    undo(path)
    assert path.read_bytes() == raw


def test_a_dry_run_of_the_migration_touches_nothing(path: Path) -> None:
    with untouched(path.parent):
        document = migrate(path, dry_run=True)
    assert [one["action"] for one in document["actions"]] == ["migrate-metadata"]
    assert not (path.parent / ".regraft").exists()


@posix
def test_the_migration_is_refused_while_the_application_has_the_file_open(path: Path) -> None:
    with another_process(path):
        before = every_row(path)
        with fails("StoreBusy"):
            migrate(path)
        assert every_row(path) == before
        assert not (path.parent / ".regraft").exists()
    assert migrate(path)["actions"]


def test_what_the_applications_log_holds_is_migrated_too(path: Path, tmp_path: Path) -> None:
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA wal_autocheckpoint = 0")
        made.add_note(db, 0, 40)
        killed_there = tmp_path / "killed"
        shutil.copytree(path.parent, killed_there)
    found = killed_there / path.name
    assert untrusted_sqlite.find_companions(found)
    with same_words(found):
        migrate(found)
    assert made.note_id(0, 40) in made.searchable(found)
    assert recorded(found)


@pytest.mark.parametrize(
    "statement",
    [
        f"{ADD_COLUMN} embedding_eligible INTEGER NOT NULL DEFAULT 0",
        "INSERT INTO schema_migrations VALUES (6, '006_something_else.sql', '2026-05-01T00:00:00Z')",
    ],
)
def test_a_migration_of_another_kind_is_refused(path: Path, statement: str) -> None:
    made.run_sql(path, statement)
    with untouched(path), fails("MigrationForeign"):
        migrate(path)
    assert not (path.parent / ".regraft").exists()


def test_a_migration_of_another_name_with_all_columns_is_that(path: Path) -> None:
    made.add_columns(path)
    made.record(path, "006_embeddings.sql")
    with untouched(path):
        assert migrate(path)["actions"] == []


def holds_through_kills(path: Path, disk: QuickDisk, place: Path, work: Callable[[Path], object]) -> None:
    """Kill what changes a copy at every step: it is as before or as after, and the next run finishes it."""
    before = every_row(path)
    changed = shutil.copytree(path.parent, place / "changed") / path.name
    steps = steps_of(disk, lambda: work(changed))
    after = every_row(changed)
    for at in moments(steps):
        shutil.rmtree(place / "copy", ignore_errors=True)
        copy = shutil.copytree(path.parent, place / "copy") / path.name
        killed(disk, at, lambda copy=copy: work(copy))
        assert every_row(copy) in (before, after), steps[at - 1]
        work(copy)
        assert every_row(copy) == after, steps[at - 1]


@pytest.mark.slow
@posix
def test_a_kill_of_the_migration_at_any_step_leaves_the_old_or_the_new_file(
    path: Path, disk: QuickDisk, tmp_path: Path
) -> None:
    holds_through_kills(path, disk, tmp_path, migrate)


@made.needs_samples
@pytest.mark.parametrize("name", ["codex-mem.db", "codex-mem-excluded.db"])
def test_a_real_database_is_migrated(tmp_path: Path, name: str) -> None:
    found = tmp_path / name
    shutil.copyfile(made.SAMPLES / name, found)
    with closing(apsw.Connection(str(found))) as db:
        words = "SELECT rowid, bm25(memory_items_fts) FROM memory_items_fts WHERE memory_items_fts MATCH 'note'"
        ranks = list(db.execute(words))
        before = [list(db.execute(f"SELECT * FROM memory_items_fts_{one}")) for one in ("data", "idx", "docsize")]
    assert ranks
    migrate(found)
    assert [made.rows(found, f"SELECT * FROM memory_items_fts_{one}") for one in ("data", "idx", "docsize")] == before
    assert made.rows(found, words) == ranks
    assert migrate(found)["actions"] == []


# --- the full-text index ---------------------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[Path], None]] = {
    "codex.fts-skewed": made.skew,
    "codex.fts-missing": made.unindex,
    "codex.fts-extra": made.index_excluded,
}


@pytest.mark.thorough
@pytest.mark.parametrize("finding", DAMAGE)
@pytest.mark.parametrize("on_copy", [False, True])
def test_the_full_text_index_is_filled_with_the_searchable_notes_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch, finding: str, on_copy: bool
) -> None:
    if on_copy:
        monkeypatch.setattr(changesets, "LARGEST_CHANGESET", 0)
    healthy = full_text(path)
    notes = made.rows(path, "SELECT rowid, * FROM memory_items")
    DAMAGE[finding](path)
    assert finding in names(path)
    damaged = every_row(path)
    assert full_text(path)["ranks"] != healthy["ranks"]
    document = run("repair", path, "--only", finding, "--yes", "--json").document
    assert [(one["action"], one["finding"]) for one in document["actions"]] == [("rebuild-full-text", finding)]
    assert full_text(path)["ranks"] == healthy["ranks"]
    assert full_text(path)["docsize"] == healthy["docsize"]
    assert made.rows(path, "SELECT rowid, * FROM memory_items") == notes
    assert not DAMAGE.keys() & names(path)
    with untouched(path):
        assert run("repair", path, "--yes", "--json").document["actions"] == []
    undo(path)
    assert every_row(path) == damaged


@made.needs_samples
def test_a_real_database_is_mended(tmp_path: Path) -> None:
    whole, found = tmp_path / "whole.db", tmp_path / "codex-mem.db"
    shutil.copyfile(made.SAMPLES / "codex-mem.db", whole)
    shutil.copyfile(made.SAMPLES / "codex-mem-excluded.db", found)
    assert names(found) == {"codex.fts-skewed", "codex.exclusion-reason"}
    assert run("repair", found, "--yes").status == 0
    assert names(found) == {"codex.exclusion-reason"}
    words = "SELECT rowid, bm25(memory_items_fts) FROM memory_items_fts WHERE memory_items_fts MATCH 'note'"
    assert made.rows(found, words) == made.rows(whole, words)


def test_what_another_command_mends_is_left(path: Path) -> None:
    made.skew(path, EXCLUDED)
    made.add_columns(path, ["embedding_status"])
    made.run_sql(path, "DROP TRIGGER memory_items_ai")
    outcome = run("repair", path, "--yes", "--json")
    assert [one["action"] for one in outcome.document["actions"]] == ["rebuild-full-text"]
    assert [one["finding"] for one in outcome.document["left"]] == ["codex.trigger", "codex.migration"]
    assert outcome.status == 1


def test_a_full_text_table_of_another_kind_is_left(path: Path) -> None:
    made.run_sql(path, "DROP TABLE memory_items_fts")
    made.run_sql(path, "CREATE VIRTUAL TABLE memory_items_fts USING fts5 (title, content, tokenize = 'trigram')")
    with untouched(path):
        outcome = run("repair", path, "--yes", "--json")
    assert outcome.document["actions"] == []
    assert [one["finding"] for one in outcome.document["left"]] == ["codex.fts-missing", "codex.trigger"]


def test_a_dry_run_of_repair_touches_nothing(path: Path) -> None:
    made.skew(path, EXCLUDED)
    with untouched(path.parent):
        assert run("repair", path, "--dry-run", "--json").document["actions"]


@pytest.mark.thorough
@posix
def test_the_full_text_index_is_mended_under_the_application(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 0)
    healthy = full_text(path)
    made.skew(path, EXCLUDED)
    with another_process(path, "BEGIN IMMEDIATE"):
        said(run("repair", path, "--yes", "--json"), "StoreBusy", REFUSED)
    assert full_text(path) != healthy
    with another_process(path):
        assert run("repair", path, "--yes").status == 0
    assert full_text(path)["ranks"] == healthy["ranks"]


def test_a_note_that_came_since_keeps_the_old_index_away(path: Path) -> None:
    made.skew(path, EXCLUDED)
    run("repair", path, "--yes")
    made.edit(path, made.note_id(0, 0))
    with same_words(path):
        said(run("undo", path, "--yes", "--json"), "UndoRefused", REFUSED)


@pytest.mark.slow
@posix
def test_a_kill_of_repair_at_any_step_leaves_the_old_or_the_new_index(
    path: Path, disk: QuickDisk, tmp_path: Path
) -> None:
    made.index_excluded(path)

    def repair(found: Path) -> None:
        assert run("repair", found, "--yes").status == 0

    holds_through_kills(path, disk, tmp_path, repair)


# --- metadata --------------------------------------------------------------------------------------------------------


def test_metadata_are_written_past_the_triggers_and_never_to_an_excluded_note(path: Path) -> None:
    made.migrate(path)
    with same_words(path), sqlite.open_writable(path) as db:
        with sqlite.transaction(db), note_changes.metadata_update(db):
            note_changes.set_status(db, ((note, "pending") for note in (*made.searchable(path), EXCLUDED)))
        with (
            pytest.raises(apsw.ConstraintError, match="excluded"),
            sqlite.transaction(db),
            note_changes.metadata_update(db),
        ):
            db.execute("UPDATE memory_items SET embedding_status = 'pending'")
        assert db.execute("SELECT name FROM temp.sqlite_schema").get is None
    statuses = made.rows(path, "SELECT DISTINCT searchable, embedding_status FROM memory_items ORDER BY 1")
    assert statuses == [(0, None), (1, "pending")]


# --- clear-failed ----------------------------------------------------------------------------------------------------


@pytest.fixture
def failed(path: Path) -> Path:
    """Write a database with failed notes of both projects, one of them excluded since."""
    made.embed(path, [made.note_id(1, 0)])
    for note in (made.note_id(0, 0), made.note_id(0, 1), made.note_id(0, 3), made.note_id(1, 1)):
        made.mark_failed(path, note)
    made.exclude(path, made.note_id(0, 3))
    return path


def failures(path: Path) -> list[str]:
    return [note for (note,) in made.rows(path, "SELECT id FROM memory_items WHERE embedding_status = 'failed'")]


def test_failed_notes_are_pending_again(failed: Path) -> None:
    before = every_row(failed)
    with same_words(failed):
        outcome = run("clear-failed", failed, "--yes", "--json")
    actions = [(one["action"], one["base"], one["count"]) for one in outcome.document["actions"]]
    assert actions == [("clear-failed", "proj_0", 2), ("clear-failed", "proj_1", 1)]
    assert outcome.status == 0
    assert failures(failed) == [made.note_id(0, 3)], "nothing is written to an excluded note"
    errors = "SELECT DISTINCT embedding_error_code, embedding_error_at FROM memory_items"
    assert made.rows(failed, f"{errors} WHERE embedding_status = 'pending'") == [(None, None)]
    after = every_row(failed)
    assert [row[:-8] for row in after["memory_items"]] == [row[:-8] for row in before["memory_items"]]
    with untouched(failed):
        assert run("clear-failed", failed, "--yes", "--json").document["actions"] == []
    undo(failed)
    assert every_row(failed) == before


def test_failed_notes_of_one_project_are_cleared_alone(failed: Path) -> None:
    outcome = run("clear-failed", failed, "--base", "proj_1", "--yes")
    assert outcome.status == 0
    assert "mark 1 failed note as pending" in outcome.stdout
    assert failures(failed) == [made.note_id(0, 0), made.note_id(0, 1), made.note_id(0, 3)]


def test_a_dry_run_of_clear_failed_touches_nothing(failed: Path) -> None:
    with untouched(failed.parent):
        assert run("clear-failed", failed, "--dry-run", "--json").document["actions"]


def test_clear_failed_has_nothing_to_do_before_the_migration(path: Path) -> None:
    with untouched(path):
        assert run("clear-failed", path, "--json").document["actions"] == []


def test_clear_failed_is_for_codex_mem(tmp_path: Path) -> None:
    from toys import library

    said(run("clear-failed", library(tmp_path), "--json"), "NotChanged", REFUSED)


def test_an_undo_never_writes_to_a_note_that_was_excluded_since(failed: Path) -> None:
    run("clear-failed", failed, "--yes")
    made.exclude(failed, made.note_id(0, 0))
    before = every_row(failed)
    with same_words(failed):
        for more in (["--dry-run"], ["--yes"]):
            message = said(run("undo", failed, *more, "--json"), "UndoRefused", REFUSED)
            assert "its rows (memory_items) changed since" in message
    assert every_row(failed) == before
