"""Space inside index files: whether giving it back pays (``docs/formats/index.md``, "How the store behaves")."""

from __future__ import annotations

from checks.audit.findings import Finding
from checks.cherry_v2 import findings as v2
from regraft import sqlite
from regraft.formats.cherry_v2.index import reclaim
from regraft.report.progress import human_bytes
from repair.changes.plan import Action, Plan, Reclaim, Unresolved
from repair.cherry_v2.gc.rows import IndexFile


def plan(file: IndexFile, made: Plan) -> None:
    """Add giving back the free space of a file to a plan, where that pays once its rows are removed."""
    with sqlite.reading(file.store.root / file.name) as db:
        size, free = reclaim.sizes(db)
    free += file.freed
    if not reclaim.pays(size, free):
        return
    # Where bodies go, the full-text index is built anew.
    desync = None if "search_text" in file.tables else _desync(file)
    if desync is not None:
        reason = f"free space is not given back before the full-text index is mended: {desync.message}"
        made.left.append(
            Unresolved(
                finding=desync.name,
                reason=reason,
                base=file.base,
                subject=file.name,
                count=desync.count,
                repair=desync.repair,
            )
        )
        return
    message = f"give about {human_bytes(free)} of {human_bytes(size)} in the index file back to the disk"
    action = Action(action="vacuum", message=message, base=file.base, subject=file.name, bytes=free)
    made.reclaims.append(Reclaim(file.name, action, size))


def _desync(file: IndexFile) -> Finding | None:
    return next((file.findings[name] for name in (v2.FTS_DESYNC, v2.BODY_ROWID) if name in file.findings), None)
