"""Space inside index files: whether giving it back pays (``docs/formats/index.md``, "How the store behaves")."""

from __future__ import annotations

from checks.audit.findings import Finding
from checks.cherry_v2 import findings as v2
from regraft import sqlite
from regraft.formats.cherry_v2.index import reclaim
from regraft.language import tr
from regraft.report.progress import human_bytes
from repair.changes.plan import Action, Plan, Reclaim, RowsChange, Unresolved
from repair.cherry_v2.gc.rows import IndexFile


def plan(file: IndexFile, removal: Plan) -> Plan:
    """Return what gives back the free space of a file, where that pays once its rows are removed."""
    with sqlite.reading(file.store.root / file.name) as db:
        size, free = reclaim.sizes(db)
    free += sum(action.bytes for action in removal.actions)
    if not reclaim.pays(size, free):
        return Plan()
    # Where bodies go, the full-text index is built anew.
    bodies_go = any(isinstance(change, RowsChange) and change.bodies for change in removal.changes)
    desync = None if bodies_go else _desync(file)
    if desync is not None:
        reason = tr(
            "free space is not given back before the full-text index is mended: {message_}", message_=desync.message
        )
        stays = Unresolved(
            finding=desync.name,
            reason=reason,
            base=file.base,
            subject=file.name,
            count=desync.count,
            repair=desync.repair,
        )
        return Plan(left=[stays])
    message = tr(
        "give about {free} of {size} in the index file back to the disk", free=human_bytes(free), size=human_bytes(size)
    )
    action = Action(action="vacuum", message=message, base=file.base, subject=file.name, bytes=free)
    return Plan(reclaims=[Reclaim(file.name, action, size)])


def _desync(file: IndexFile) -> Finding | None:
    return next((file.findings[name] for name in (v2.FTS_DESYNC, v2.BODY_ROWID) if name in file.findings), None)
