"""Damage planted in a codex-mem database, by the finding that has to name it."""

from __future__ import annotations

import math
import shutil
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import apsw
import codex_mem_store as store
import pytest
from codex_mem_store import note_id, project_id, run_sql

from regraft.formats.codex_mem import database

FIRST, SECOND, THIRD = (note_id(0, number) for number in range(3))
#: A note that is excluded from the beginning.
EXCLUDED = note_id(0, 6)
COLUMNS = list(database.COLUMNS)


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a database before it had vectors, and one whose searchable notes all have theirs."""
    place = tmp_path_factory.mktemp("templates")
    pristine = store.write(place / "pristine", excluded=1)
    store.embed(store.write(place / "whole", excluded=1))
    return {"pristine": pristine.parent, "whole": place / "whole"}


def copied(templates: dict[str, Path], name: str, tmp_path: Path) -> Path:
    shutil.copytree(templates[name], tmp_path / "memory")
    return tmp_path / "memory" / database.FILE


def floats(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def put(note: str, vector: bytes, path: Path) -> None:
    """Write a vector of any kind for a note."""
    store.put_vector(path, note, vector_for=lambda _: vector)


def edited_without_triggers(path: Path) -> None:
    run_sql(path, "UPDATE memory_items SET content = 'quite other' WHERE id = ?", FIRST, triggers=False)


def without_record(path: Path) -> None:
    run_sql(path, "DELETE FROM schema_migrations WHERE version = 6")


def without_column(path: Path) -> None:
    run_sql(path, "ALTER TABLE memory_items DROP COLUMN embedding_error_at")


def migrated_alone(path: Path) -> None:
    """Leave metadata that say ready, and no vectors."""
    database.sidecar_path(path).unlink()


def replaced(content: bytes, path: Path) -> None:
    database.sidecar_path(path).write_bytes(content)


def another_database(path: Path) -> None:
    database.sidecar_path(path).unlink()
    run_sql(database.sidecar_path(path), "CREATE TABLE notes (id)")


def of_a_note_that_is_gone(path: Path) -> None:
    store.delete(path, FIRST)


def a_trigger_that_indexes_all(path: Path) -> None:
    changed = store.TRIGGERS["memory_items_ai"].replace("WHEN new.searchable = 1", "")
    run_sql(path, f"DROP TRIGGER memory_items_ai; CREATE TRIGGER memory_items_ai {changed}")


def reindexed(path: Path) -> None:
    """Make the full-text table with other words, and fill it rightly."""
    triggers = "; ".join(f"CREATE TRIGGER {name} {body}" for name, body in store.TRIGGERS.items())
    run_sql(
        path,
        f"""DROP TABLE memory_items_fts;
        CREATE VIRTUAL TABLE memory_items_fts
          USING fts5 (title, content, content = 'memory_items', content_rowid = 'rowid', tokenize = 'trigram');
        INSERT INTO memory_items_fts (rowid, title, content)
          SELECT rowid, title, content FROM memory_items WHERE searchable = 1;
        DROP TRIGGER memory_items_ai; DROP TRIGGER memory_items_au; DROP TRIGGER memory_items_ad;
        {triggers}""",
    )


def added(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as db:
        store.add_note(db, 0, 20)


def lone(path: Path, status: str) -> None:
    """Leave a note with a status and without a vector."""
    run_sql(database.sidecar_path(path), "DELETE FROM embedding WHERE note_id = ?", FIRST)
    store.set_metadata(path, FIRST, status=status)


@dataclass(frozen=True)
class Planting:
    """A damage to a database whose notes all have their vectors, and the findings that it is."""

    damage: Callable[[Path], object]
    findings: dict[str, int]
    #: What the first finding's command is, the path apart; None where none mends it.
    repair: str | None
    base: str | None = None


P0 = project_id(0)
PLANTINGS = {
    "an excluded note was updated": Planting(
        store.skew, {"codex.fts-skewed": 1}, "repair PATH --only codex.fts-skewed"
    ),
    "a note left the full-text index": Planting(
        store.unindex, {"codex.fts-missing": 1}, "repair PATH --only codex.fts-missing"
    ),
    "the full-text index was rebuilt": Planting(
        store.index_excluded, {"codex.fts-extra": 2}, "repair PATH --only codex.fts-extra"
    ),
    "a note changed and the index heard nothing": Planting(
        edited_without_triggers, {"codex.fts-words": 1, "codex.stale": 1}, "repair PATH --only codex.fts-words"
    ),
    "a trigger is gone": Planting(
        lambda path: run_sql(path, "DROP TRIGGER memory_items_ad"), {"codex.trigger": 1}, None
    ),
    "a trigger indexes excluded notes": Planting(a_trigger_that_indexes_all, {"codex.trigger": 1}, None),
    "the full-text table has another tokenizer": Planting(reindexed, {"codex.trigger": 1}, None),
    "a table is gone": Planting(lambda path: run_sql(path, "DROP TABLE handoffs"), {"codex.schema": 1}, None),
    "an exclusion without a reason": Planting(
        lambda path: run_sql(
            path, "UPDATE memory_items SET exclusion_reason = ' ' WHERE id = ?", EXCLUDED, triggers=False
        ),
        {"codex.exclusion-reason": 1},
        None,
        P0,
    ),
    "a handoff excluded without a reason": Planting(
        lambda path: run_sql(path, "UPDATE handoffs SET searchable = 0 WHERE id = 'handoff_0'"),
        {"codex.exclusion-reason": 1},
        None,
        P0,
    ),
    "a note of a session that is gone": Planting(
        lambda path: run_sql(path, "UPDATE memory_items SET session_id = 'x' WHERE id = ?", FIRST, triggers=False),
        {"codex.scope": 1},
        None,
        P0,
    ),
    "a note in another project's workspace": Planting(
        lambda path: run_sql(path, "UPDATE memory_items SET workspace_id = 'ws_1' WHERE id = ?", FIRST, triggers=False),
        {"codex.scope": 1},
        None,
        P0,
    ),
    "a workspace of no project": Planting(
        lambda path: run_sql(path, "UPDATE workspaces SET project_id = 'x' WHERE id = 'ws_0'"),
        {"codex.scope": 1 + 6 + 1 + 1 + 1},
        None,
    ),
    "no record of the migration": Planting(without_record, {"codex.migration": 1}, "backfill PATH"),
    "a column is missing": Planting(without_column, {"codex.migration": 1}, "backfill PATH"),
    "vectors beside notes that know of none": Planting(
        lambda path: [run_sql(path, f"ALTER TABLE memory_items DROP COLUMN {name}") for name in COLUMNS],
        {"codex.migration": 1},
        "backfill PATH",
    ),
    "the sidecar is gone": Planting(migrated_alone, {"codex.index-missing": 1}, "rebuild PATH"),
    "the sidecar is no database": Planting(
        partial(replaced, b"nothing of the kind"), {"codex.index-missing": 1}, "rebuild PATH"
    ),
    "the sidecar is empty": Planting(partial(replaced, b""), {"codex.index-incompatible": 1}, "rebuild PATH"),
    "the sidecar is another database": Planting(another_database, {"codex.index-incompatible": 1}, "rebuild PATH"),
    "the sidecar is of another layout": Planting(
        lambda path: store.set_sidecar(path, version=2), {"codex.index-incompatible": 1}, "rebuild PATH"
    ),
    "the sidecar is of another model": Planting(
        lambda path: store.set_sidecar(path, model_id="embed-large"), {"codex.index-incompatible": 1}, "rebuild PATH"
    ),
    "the sidecar is of other dimensions": Planting(
        lambda path: store.set_sidecar(path, dimensions=9), {"codex.index-incompatible": 1}, "rebuild PATH"
    ),
    "the texts were made by another rule": Planting(
        lambda path: run_sql(database.sidecar_path(path), "UPDATE embedding SET content_version = 2"),
        {"codex.index-incompatible": 1},
        "rebuild PATH",
    ),
    "a rebuild was stopped": Planting(
        lambda path: store.set_sidecar(path, state="rebuilding"), {"codex.rebuilding": 1}, "rebuild PATH"
    ),
    "a new note": Planting(added, {"codex.pending": 1}, f"backfill PATH --base {P0}", P0),
    "a note changed": Planting(
        lambda path: store.edit(path, FIRST), {"codex.stale": 1}, f"reconcile PATH --base {P0}", P0
    ),
    "a note of another model": Planting(
        lambda path: store.set_metadata(path, FIRST, model_id="embed-large"),
        {"codex.stale": 1},
        f"reconcile PATH --base {P0}",
        P0,
    ),
    "a crash after a vector of another model": Planting(
        lambda path: store.set_metadata(path, FIRST, model_id="older", embedded_at="2026-03-01T00:00:00Z"),
        {"codex.orphan": 1},
        f"reconcile PATH --base {P0}",
        P0,
    ),
    "a note said to be stale": Planting(
        lambda path: [store.edit(path, FIRST), store.set_metadata(path, FIRST, status="stale")],
        {"codex.stale": 1},
        f"reconcile PATH --base {P0}",
        P0,
    ),
    "a note that failed": Planting(
        lambda path: store.mark_failed(path, FIRST), {"codex.failed": 1}, f"clear-failed PATH --base {P0}", P0
    ),
    "a crash between the two writes": Planting(
        lambda path: store.set_metadata(path, FIRST, **dict.fromkeys(COLUMNS)),
        {"codex.orphan": 1},
        f"reconcile PATH --base {P0}",
        P0,
    ),
    "a vector of a note that is gone": Planting(of_a_note_that_is_gone, {"codex.orphan": 1}, "reconcile PATH"),
    "a vector of a note that is not to have one": Planting(
        lambda path: store.set_metadata(path, FIRST, eligible=0, status="not_applicable"),
        {"codex.orphan": 1},
        None,
        P0,
    ),
    "a note was excluded after it had its vector": Planting(
        lambda path: store.exclude(path, FIRST), {"codex.excluded-vector": 1}, None, P0
    ),
    "ready without a vector": Planting(
        lambda path: run_sql(database.sidecar_path(path), "DELETE FROM embedding WHERE note_id = ?", FIRST),
        {"codex.metadata": 1},
        f"reconcile PATH --base {P0}",
        P0,
    ),
    "a status that there is not": Planting(
        lambda path: [store.edit(path, FIRST), lone(path, "done")],
        {"codex.metadata": 1},
        f"reconcile PATH --base {P0}",
        P0,
    ),
    "eligible and not applicable": Planting(
        lambda path: lone(path, "not_applicable"), {"codex.metadata": 1}, f"reconcile PATH --base {P0}", P0
    ),
    "ready and not to be embedded": Planting(
        lambda path: [
            run_sql(database.sidecar_path(path), "DELETE FROM embedding WHERE note_id = ?", FIRST),
            store.set_metadata(path, FIRST, eligible=0),
        ],
        {"codex.metadata": 1},
        f"reconcile PATH --base {P0}",
        P0,
    ),
    "a vector with NaN": Planting(
        partial(put, FIRST, floats(math.nan, *[0.0] * 7)), {"codex.vector": 1}, f"reconcile PATH --base {P0}", P0
    ),
    "a vector of zeros": Planting(
        partial(put, FIRST, bytes(32)), {"codex.vector": 1}, f"reconcile PATH --base {P0}", P0
    ),
    "a short vector": Planting(
        partial(put, FIRST, floats(1, 0)), {"codex.vector": 1}, f"reconcile PATH --base {P0}", P0
    ),
}
