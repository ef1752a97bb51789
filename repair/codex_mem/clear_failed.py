"""``regraft clear-failed``: notes that an embedder refused are pending again; their texts stay as they are."""

from __future__ import annotations

from typing import Any

import apsw

from checks.codex_mem import findings as codex
from regraft import sqlite
from regraft.errors import PlanOutdated
from regraft.formats.codex_mem import database
from regraft.formats.codex_mem.database import NOTES
from regraft.language import tr
from regraft.text import counted
from repair.changes.plan import Action, Plan, RowsChange
from repair.changes.store import Store
from repair.codex_mem import writing

_FAILED = "embedding_status = 'failed'"


def plan(store: Store) -> Plan:
    """Return which notes are going to be pending again; nothing is written."""
    path = store.found.path
    with sqlite.reading(path) as db:
        if not database.is_migrated(db):
            return Plan()
        failed = f"{_FAILED} AND {database.eligible(db)}"
        query = f"SELECT project_id, count(*) FROM {NOTES} WHERE {failed} GROUP BY project_id"
        found: list[Any] = db.execute(query).fetchall()
    counts = {project: count for project, count in found if store.wants(project)}
    if not counts:
        return Plan()

    def apply(db: apsw.Connection) -> None:
        update = f"""UPDATE {NOTES} SET embedding_status = 'pending', embedding_error_code = NULL,
            embedding_error_at = NULL WHERE {failed} AND project_id = ?"""
        before = db.total_changes()
        with writing.metadata(db):
            db.executemany(update, ((project,) for project in counts))
        if db.total_changes() - before != sum(counts.values()):
            raise PlanOutdated(path=path, reason=tr("other notes have failed now than were planned"))

    actions = tuple(
        Action(
            action="clear-failed",
            message=tr("mark {failed_notes} as pending", failed_notes=counted(count, "failed note")),
            base=base,
            subject=None,
            count=count,
            bytes=0,
            finding=codex.FAILED,
        )
        for base, count in ((_base_of(project), count) for project, count in counts.items())
    )
    change = RowsChange(
        path=path.name, actions=actions, apply=apply, tables=(NOTES,), bytes=writing.SIZE * sum(counts.values())
    )
    return Plan([change], resolves={(codex.FAILED, _base_of(project)) for project in counts})


def _base_of(project: object) -> str | None:
    """Return the project that notes are of; None where a note names none that could be one."""
    return project if isinstance(project, str) else None
