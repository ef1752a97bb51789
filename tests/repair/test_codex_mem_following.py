"""``reconcile`` of codex-mem: vectors follow the notes, metadata the vectors, and nothing is embedded for it."""

from __future__ import annotations

import math
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import codex_mem_store as made
import pytest
from codex_mem_rows import another_process, every_row, names, same_words, undo
from faults import REFUSED, forked, give_up_rights, posix, said, untouched
from harness import run
from toys import QuickDisk, killed, moments, quick_disk, steps_of

from regraft.disk import sqlite, writable
from regraft.formats.codex_mem import database, sidecar

NOTE, OTHER, LATER = made.note_id(0, 0), made.note_id(1, 0), "2026-05-01T00:00:00Z"
EXCLUDED = made.note_id(0, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write a database with a good vector for every searchable note."""
    found = made.write(tmp_path / "codex", notes=4, excluded=1)
    made.embed(found)
    return found


@pytest.fixture(scope="module")
def disk() -> Iterator[QuickDisk]:
    with quick_disk() as found:
        yield found


def both(path: Path) -> tuple[Any, Any]:
    """Return all that the database and its sidecar hold; the row numbers of vectors say nothing."""
    vectors = made.rows(database.sidecar_path(path), f"SELECT * FROM {sidecar.TABLE} ORDER BY note_id")
    return every_row(path), (made.rows(database.sidecar_path(path), "SELECT * FROM meta"), vectors)


def reconcile(path: Path, *more: object) -> dict[str, Any]:
    return run("reconcile", path, "--yes", "--json", *more).document


def metadata(path: Path, note: str) -> tuple[Any, ...]:
    """Return status, model, hash, time and error of a note."""
    columns = "embedding_status, embedding_model_id, embedding_content_hash, embedded_at, embedding_error_code"
    [found] = made.rows(path, f"SELECT {columns} FROM memory_items WHERE id = ?", note)
    return found


def status(path: Path, note: str) -> Any:
    return metadata(path, note)[0]


def has_vector(path: Path, note: str) -> bool:
    query = f"SELECT 1 FROM {sidecar.TABLE} WHERE note_id = ?"
    return bool(made.rows(database.sidecar_path(path), query, note))


def set_vector(path: Path, note: str, **columns: Any) -> None:
    setting = ", ".join(f"{name} = ?" for name in columns)
    query = f"UPDATE {sidecar.TABLE} SET {setting} WHERE note_id = ?"
    made.run_sql(database.sidecar_path(path), query, *columns.values(), note)


def drop_vector(path: Path, note: str) -> None:
    made.run_sql(database.sidecar_path(path), f"DELETE FROM {sidecar.TABLE} WHERE note_id = ?", note)


def floats(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


# --- what is planted, and what comes of it ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Something that keeps a note and its vector apart."""

    plant: Callable[[Path], object]
    actions: tuple[str, ...]
    #: Of the note afterwards.
    status: object = "ready"
    keeps_vector: bool = True
    #: What is left of it.
    left: tuple[str, ...] = ()
    note: str = NOTE
    project: str | None = field(default="proj_0")
    #: Findings that are named: a note may use its vector again.
    only: tuple[str, ...] = ()


def killed_between(path: Path, **before: Any) -> None:
    """Leave what a run does that is killed after the vector and before the metadata."""
    empty = dict.fromkeys(("eligible", "status", "model_id", "content_hash", "content_version", "embedded_at"))
    made.set_metadata(path, NOTE, **{**empty, **before})


def killed_again(path: Path) -> None:
    """Edit a note, and give it its new vector alone."""
    made.edit(path, NOTE)
    made.put_vector(path, NOTE, embedded_at=LATER)


def edited(path: Path) -> None:
    made.edit(path, NOTE)


def of_another_model(path: Path) -> None:
    made.set_metadata(path, NOTE, model_id="older")


def killed_with_another_model(path: Path) -> None:
    made.set_metadata(path, NOTE, model_id="older", embedded_at="2026-03-01T00:00:00Z")


def without_note(path: Path) -> None:
    made.delete(path, NOTE)


def excluded(path: Path) -> None:
    """Exclude a note that has its vector; what is said of it stays."""
    made.exclude(path, NOTE)


def excluded_and_claiming_nothing(path: Path) -> None:
    made.put_vector(path, EXCLUDED)


def decided_against(path: Path) -> None:
    made.set_metadata(path, NOTE, eligible=0)


ADOPTED, PENDING, STALE = "adopt-embeddings", "mark-pending", "mark-stale"
#: The vectors of excluded notes go only where they are named.
NAMED = ("codex.excluded-vector", "codex.metadata")
GONE, NOT_APPLICABLE, WITHDRAWN = "delete-embeddings", "mark-not-applicable", "withdraw-status"
CASES = {
    "killed between the two writes": Case(killed_between, (ADOPTED,)),
    "killed between them, of a pending note": Case(lambda path: killed_between(path, status="pending"), (ADOPTED,)),
    "killed between them, of a failed note": Case(
        lambda path: killed_between(path, status="failed", error_code="refused"), (ADOPTED,)
    ),
    "killed between them, of an edited note": Case(killed_again, (ADOPTED,)),
    "killed between them, of another model before": Case(killed_with_another_model, (ADOPTED,)),
    "a status nobody knows, and a vector": Case(lambda path: made.set_metadata(path, NOTE, status="done"), (ADOPTED,)),
    "edited since": Case(edited, (STALE,), "stale", True, ("codex.stale",)),
    "metadata of another model": Case(of_another_model, (STALE, GONE), "stale", False, ("codex.stale",)),
    "a vector by other rules": Case(
        lambda path: set_vector(path, NOTE, content_version=7), (STALE, GONE), "stale", False, ("codex.stale",)
    ),
    "marked as ready without a vector": Case(
        lambda path: drop_vector(path, NOTE), (PENDING,), "pending", False, ("codex.pending",)
    ),
    "a status nobody knows": Case(
        lambda path: [drop_vector(path, NOTE), made.set_metadata(path, NOTE, status="done")],
        (PENDING,),
        "pending",
        False,
        ("codex.pending",),
    ),
    "to be embedded after all": Case(
        lambda path: [drop_vector(path, NOTE), made.set_metadata(path, NOTE, eligible=1, status="not_applicable")],
        (PENDING,),
        "pending",
        False,
        ("codex.pending",),
    ),
    "no longer to be embedded": Case(
        decided_against, (NOT_APPLICABLE, GONE), "not_applicable", False, only=("codex.orphan", "codex.metadata")
    ),
    "not to be embedded": Case(
        lambda path: made.set_metadata(path, NOTE, eligible=None, status="not_applicable"),
        (GONE,),
        "not_applicable",
        False,
        only=("codex.orphan",),
    ),
    "deleted": Case(without_note, (GONE,), None, False, project=None),
    "excluded since": Case(excluded, (WITHDRAWN, GONE), "not_applicable", False, only=NAMED),
    "excluded, ready without a vector": Case(
        lambda path: [excluded(path), drop_vector(path, NOTE)], (WITHDRAWN,), "not_applicable", False
    ),
    "excluded, and failed before": Case(
        lambda path: [drop_vector(path, NOTE), made.mark_failed(path, NOTE), excluded(path)],
        (WITHDRAWN,),
        "not_applicable",
        False,
    ),
    "excluded, and nothing says that it may be embedded": Case(
        lambda path: [made.set_metadata(path, NOTE, eligible=None), excluded(path)],
        (WITHDRAWN, GONE),
        "not_applicable",
        False,
        only=NAMED,
    ),
    "a vector of an excluded note": Case(
        excluded_and_claiming_nothing, (GONE,), None, False, note=EXCLUDED, only=NAMED
    ),
    "a vector cut off": Case(
        lambda path: set_vector(path, NOTE, vector=floats(1, 2, 3)),
        (PENDING, GONE),
        "pending",
        False,
        ("codex.pending",),
    ),
    "a vector of zeros": Case(
        lambda path: set_vector(path, NOTE, vector=floats(*[0] * 8)),
        (PENDING, GONE),
        "pending",
        False,
        ("codex.pending",),
    ),
    "a vector of no numbers": Case(
        lambda path: set_vector(path, NOTE, vector=floats(*[math.nan] * 8)),
        (PENDING, GONE),
        "pending",
        False,
        ("codex.pending",),
    ),
    "never looked at": Case(
        lambda path: [drop_vector(path, NOTE), killed_between(path)], (), None, False, ("codex.pending",)
    ),
    "failed": Case(lambda path: made.mark_failed(path, NOTE), (), "failed", False, ("codex.failed",)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_what_keeps_a_note_and_its_vector_apart_is_settled_once(path: Path, name: str) -> None:
    case = CASES[name]
    case.plant(path)
    before = both(path)
    assert names(path), "check names it"
    options = [word for name in case.only for word in ("--only", name)]
    with same_words(path):
        document = reconcile(path, *options)
        assert names(path) == set(case.left)
        assert [one["action"] for one in document["actions"]] == list(case.actions)
        assert {one["base"] for one in document["actions"]} <= {case.project}
        assert [one["finding"] for one in document["left"]] == list(case.left)
        if case.plant is not without_note:
            assert status(path, case.note) == case.status
        assert has_vector(path, case.note) is case.keeps_vector
        with untouched(path, database.sidecar_path(path)):
            again = reconcile(path, *options)
        assert (again["actions"], again["left"]) == ([], document["left"])
        if case.actions:
            undo(path)
    assert both(path) == before


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name, one in CASES.items() if one.only])
def test_a_vector_that_its_note_may_use_again_stays(path: Path, name: str) -> None:
    case = CASES[name]
    case.plant(path)
    document = reconcile(path)
    assert GONE not in [one["action"] for one in document["actions"]]
    assert any(f"--only {case.only[0]} to delete it" in one["reason"] for one in document["left"])
    assert has_vector(path, case.note)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [(), ("--only", "codex.orphan")])
def test_where_many_notes_are_gone_at_once_their_vectors_stay(path: Path, options: tuple[str, ...]) -> None:
    gone = [made.note_id(project, number) for project in (0, 1) for number in (0, 1)][:3]
    for note in gone:
        made.delete(path, note)
    document = reconcile(path, *options)
    assert document["actions"] == []
    assert any("disappeared at once" in one["reason"] for one in document["left"])
    assert all(has_vector(path, note) for note in gone)


def test_an_adopted_vector_is_told_of_as_if_it_had_just_been_written(path: Path) -> None:
    whole = every_row(path)
    killed_between(path, status="failed", error_code="refused")
    reconcile(path)
    assert every_row(path) == whole


def test_nothing_has_to_be_done_where_all_agrees(path: Path) -> None:
    with untouched(path, database.sidecar_path(path)):
        document = reconcile(path)
    assert (document["actions"], document["left"]) == ([], [])


def test_what_is_left_says_what_goes_on(path: Path) -> None:
    drop_vector(path, NOTE)
    made.mark_failed(path, OTHER)
    made.exclude(path, made.note_id(0, 1))
    made.edit(path, made.note_id(1, 1))
    outcome = run("reconcile", path, "--yes", "--json")
    assert outcome.status == 1
    assert [(one["base"], one["finding"], one["severity"], one["repair"]) for one in outcome.document["left"]] == [
        ("proj_0", "codex.excluded-vector", "error", None),
        ("proj_0", "codex.pending", "warning", f"regraft backfill {path} --base proj_0"),
        ("proj_1", "codex.failed", "warning", f"regraft clear-failed {path} --base proj_1"),
        ("proj_1", "codex.stale", "error", f"regraft backfill {path} --base proj_1"),
    ]
    assert ("withdraw-status", "proj_0", "codex.metadata") in [
        (one["action"], one["base"], one["finding"]) for one in outcome.document["actions"]
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("eligible", [1, None])
def test_a_note_whose_status_was_withdrawn_is_embedded_once_it_is_searchable_again(
    path: Path, eligible: int | None
) -> None:
    made.set_metadata(path, NOTE, eligible=eligible, status="ready")
    excluded(path)
    reconcile(path, *(word for name in NAMED for word in ("--only", name)))
    made.run_sql(path, f"UPDATE memory_items SET searchable = 1 WHERE id = '{NOTE}'", triggers=False)
    left = reconcile(path)["left"]
    assert [(one["base"], one["finding"], one["count"]) for one in left] == [("proj_0", "codex.pending", 1)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    ["title = 'x'", "embedding_status = 'pending'", "embedding_status = 'not_applicable', embedding_eligible = 0"],
)
def test_nothing_else_of_an_excluded_note_can_be_written(path: Path, change: str) -> None:
    excluded(path)
    statement = f"UPDATE memory_items SET {change} WHERE id = ?"
    with writable.allow_writes(path.parent), sqlite.open_writable(path) as db, database.guard_excluded_notes(db):
        with pytest.raises(apsw.ConstraintError, match="only the status"):
            db.execute(statement, (NOTE,))
        db.execute("UPDATE memory_items SET embedding_status = 'not_applicable' WHERE id = ?", (NOTE,))
        db.execute("UPDATE memory_items SET embedding_status = 'ready' WHERE id = ?", (NOTE,))


def test_one_project_is_reconciled_alone(path: Path) -> None:
    for note in (NOTE, OTHER):
        made.set_metadata(path, note, status="pending")
    made.put_vector(path, EXCLUDED)
    made.delete(path, made.note_id(1, 1))
    document = reconcile(path, "--base", "p-1")
    assert document["bases"] == [{"id": "proj_1", "name": "P 1"}]
    assert [(one["action"], one["base"]) for one in document["actions"]] == [("adopt-embeddings", "proj_1")]
    assert (status(path, NOTE), status(path, OTHER)) == ("pending", "ready")
    assert has_vector(path, EXCLUDED)
    assert has_vector(path, made.note_id(1, 1)), "whose it was nobody can tell"


def test_many_notes_are_counted_by_project(path: Path) -> None:
    made.run_sql(path, "UPDATE memory_items SET embedding_status = 'pending' WHERE searchable = 1", triggers=False)
    document = reconcile(path)
    assert [(one["base"], one["count"], one["message"]) for one in document["actions"]] == [
        ("proj_0", 4, "mark 4 notes as embedded: their vectors exist"),
        ("proj_1", 4, "mark 4 notes as embedded: their vectors exist"),
    ]


# --- where nothing can be done ---------------------------------------------------------------------------------------


def left_alone(path: Path) -> list[tuple[str, str | None]]:
    """Reconcile what must not be changed, and return what is left of it with what mends it."""
    with untouched(*(place for place in path.parent.iterdir() if place.name != ".regraft")):
        document = reconcile(path)
    assert document["actions"] == []
    return [(one["finding"], one["repair"]) for one in document["left"]]


def test_a_database_before_the_migration_has_nothing_to_follow(tmp_path: Path) -> None:
    assert left_alone(made.write(tmp_path)) == []


def test_a_database_with_half_a_migration_waits_for_the_rest(tmp_path: Path) -> None:
    path = made.write(tmp_path)
    made.add_columns(path, ["embedding_status"])
    assert left_alone(path) == [("codex.migration", f"regraft backfill {path}")]


def test_without_a_sidecar_what_was_said_of_it_stays(path: Path) -> None:
    database.sidecar_path(path).unlink()
    assert left_alone(path) == [("codex.index-missing", f"regraft rebuild {path}")]


def test_without_a_sidecar_and_without_claims_all_is_pending(path: Path) -> None:
    database.sidecar_path(path).unlink()
    made.run_sql(path, "UPDATE memory_items SET embedding_status = NULL WHERE searchable = 1", triggers=False)
    project = "codex.pending", f"regraft backfill {path} --base proj_"
    assert left_alone(path) == [(project[0], f"{project[1]}{number}") for number in (0, 1)]


def spoilt(path: Path) -> None:
    database.sidecar_path(path).write_bytes(b"not a database")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("finding", "plant"),
    [
        ("codex.index-missing", spoilt),
        ("codex.index-incompatible", lambda path: made.set_sidecar(path, version=2)),
        ("codex.index-incompatible", lambda path: made.set_sidecar(path, model_id="another")),
        ("codex.index-incompatible", lambda path: made.set_sidecar(path, dimensions=16)),
    ],
    ids=["no database", "another layout", "another model than all notes", "another length than all vectors"],
)
def test_a_sidecar_that_fits_nothing_is_left_to_a_rebuild(
    path: Path, finding: str, plant: Callable[[Path], None]
) -> None:
    plant(path)
    killed_between(path)
    assert left_alone(path) == [(finding, f"regraft rebuild {path}")]


def test_in_an_unfinished_rebuild_what_is_there_is_adopted(path: Path) -> None:
    made.set_sidecar(path, state="rebuilding")
    killed_between(path)
    document = reconcile(path)
    assert [one["action"] for one in document["actions"]] == ["adopt-embeddings"]
    assert [(one["finding"], one["repair"]) for one in document["left"]] == [
        ("codex.rebuilding", f"regraft rebuild {path}")
    ]


# --- two files -------------------------------------------------------------------------------------------------------


@pytest.fixture
def apart(path: Path) -> Path:
    """Keep the two files apart in ways that change both."""
    killed_between(path)
    made.put_vector(path, EXCLUDED)
    set_vector(path, made.note_id(0, 1), vector=floats(*[0] * 8))
    made.edit(path, made.note_id(0, 2))
    made.delete(path, made.note_id(1, 1))
    made.set_metadata(path, OTHER, model_id="older")
    return path


@pytest.mark.thorough
def test_a_dry_run_touches_nothing(apart: Path) -> None:
    with untouched(apart.parent):
        planned = reconcile(apart, "--dry-run")
    done = reconcile(apart)
    assert [{**one} for one in done["actions"]] == planned["actions"]


@pytest.mark.slow
@posix
def test_a_kill_at_any_step_leaves_what_the_next_run_settles(apart: Path, disk: QuickDisk, tmp_path: Path) -> None:
    before = both(apart)
    changed = shutil.copytree(apart.parent, tmp_path / "changed") / apart.name
    steps = steps_of(disk, lambda: reconcile(changed))
    after = both(changed)
    seen = set()
    for at in moments(steps):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        copy = shutil.copytree(apart.parent, tmp_path / "copy") / apart.name
        killed(disk, at, lambda copy=copy: reconcile(copy))
        found = both(copy)
        assert all(found[file] in (before[file], after[file]) for file in (0, 1)), steps[at - 1]
        seen.add((found[0] == after[0], found[1] == after[1]))
        with same_words(copy):
            reconcile(copy)
        assert both(copy) == after, steps[at - 1]
        if at % 3 == 0:
            while run("undo", copy, "--yes").status == 0:
                pass
            assert both(copy) == before, steps[at - 1]
    assert seen == {(False, False), (True, False), (True, True)}


@pytest.mark.thorough
@posix
def test_it_works_under_the_application_and_not_against_a_writer(apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 0)
    before = both(apart)
    with another_process(apart, "BEGIN IMMEDIATE"):
        said(run("reconcile", apart, "--yes", "--json"), "StoreBusy", REFUSED)
    assert both(apart) == before
    with another_process(apart):
        assert reconcile(apart)["actions"]
    assert both(apart) != before


@pytest.mark.thorough
@posix
def test_a_read_only_file_is_refused(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        for command, read_only in (
            (reconcile, database.FILE),
            (lambda found: reconcile(found, "--only", "codex.excluded-vector"), database.sidecar_path(path).name),
            (lambda found: run("clear-failed", found, "--yes", "--json").document, database.FILE),
        ):
            root = shutil.copytree(path.parent, Path(folder, "codex"))
            killed_between(root / path.name)
            made.put_vector(root / path.name, EXCLUDED)
            made.mark_failed(root / path.name, OTHER)
            for place in (root, *root.iterdir()):
                place.chmod(0o777)
            (root / read_only).chmod(0o444)
            assert forked(lambda command=command, root=root: refused_as_nobody(root, command)) == 0
            shutil.rmtree(root)


def refused_as_nobody(root: Path, command: Callable[[Path], dict[str, Any]]) -> None:
    give_up_rights()
    with untouched(*root.iterdir()):
        assert command(root / database.FILE)["error"]["code"] == "StoreNotWritable"
    assert not (root / ".regraft").exists()


@pytest.mark.thorough
def test_notes_whose_ids_are_no_text_are_let_be(apart: Path) -> None:
    made.run_sql(apart, "UPDATE memory_items SET id = NULL WHERE id = ?", made.note_id(1, 3), triggers=False)
    with same_words(apart):
        reconcile(apart)
    assert made.rows(apart, "SELECT embedding_status FROM memory_items WHERE id IS NULL") == [("ready",)]


@pytest.mark.thorough
def test_what_the_application_wrote_into_its_log_counts(apart: Path) -> None:
    with closing(apsw.Connection(str(apart))) as db:
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("UPDATE memory_items SET searchable = 0, exclusion_reason = 'privacy' WHERE id = ?", (NOTE,))
        document = reconcile(apart)
    assert "adopt-embeddings" not in {one["action"] for one in document["actions"] if one["base"] == "proj_0"}
    left = {one["finding"]: one["reason"] for one in document["left"]}
    assert "--only codex.excluded-vector to delete it" in left["codex.excluded-vector"]
    assert has_vector(apart, NOTE)
    reconcile(apart, "--only", "codex.excluded-vector")
    assert not has_vector(apart, NOTE)
    assert status(apart, NOTE) is None
