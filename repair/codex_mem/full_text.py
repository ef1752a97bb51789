"""``repair`` of codex-mem: its full-text index is emptied, and filled with the searchable notes alone.

FTS5's own "rebuild" would make excluded notes findable (``docs/formats/codex_mem.md``, "Full text").
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import apsw

from checks.audit import foreign_schema
from checks.audit.file_findings import CORRUPT, UNREADABLE
from checks.audit.findings import FINDINGS, Finding
from checks.codex_mem import findings as codex
from regraft import sqlite, untouched
from regraft.formats.codex_mem.database import FULL_TEXT, NOTES
from regraft.report import notices
from repair.changes import foreign_definitions
from repair.changes.plan import Action, Plan, RowsChange, Unresolved
from repair.changes.store import Store
from repair.options import RepairOptions

#: Findings that are mended.
NAMES = (codex.FTS_MISSING, codex.FTS_EXTRA, codex.FTS_SKEWED, codex.FTS_WORDS)
#: Where FTS5 keeps the index; a change of the virtual table is one of their rows.
_SHADOWS = tuple(f"{FULL_TEXT}_{name}" for name in ("data", "idx", "docsize"))


def plan(store: Store, options: RepairOptions) -> Plan:
    """Return what is going to be mended; nothing is written."""
    found: dict[str, list[Finding]] = defaultdict(list)
    for finding in store.findings():
        found[finding.name].append(finding)
    made = Plan()
    names = [name for name in NAMES if name in found and name in (options.only or NAMES)]
    damage = [one for every in found.values() for one in every if _keeps_from(one)]
    if damage:
        message = f"{damage[0].message}: that has to be mended first"
        made.left = [replace(_left(one), reason=message, repair=None) for name in names for one in found[name]]
    elif names:
        made.changes.append(_refill(store, names))
        # One index: what mends one of them mends all.
        made.resolves = {(one.name, one.base) for name in NAMES for one in found[name]}
    if not damage:
        foreign_definitions.beside(
            store, found, options.only, made, {store.found.path.name: foreign_schema.of_codex_mem}
        )
    if not options.only:
        others = (
            one for name, every in found.items() if name not in (*NAMES, *foreign_definitions.NAMES) for one in every
        )
        made.left += [_left(one) for one in others if _counts(one)]
    return made


def _keeps_from(finding: Finding) -> bool:
    """Tell whether nobody can fill the full-text index while this is so."""
    if finding.name == codex.TRIGGER:
        return FULL_TEXT in finding.samples
    return finding.name in (UNREADABLE, CORRUPT, codex.SCHEMA)


def _counts(finding: Finding) -> bool:
    return notices.at_least(finding.severity, "warning")


def _left(finding: Finding) -> Unresolved:
    message = f"{finding.message}; {FINDINGS[finding.name].remedy}"
    return Unresolved(
        finding=finding.name,
        reason=message,
        base=finding.base,
        subject=finding.subject,
        count=finding.count,
        severity=finding.severity,
        repair=finding.repair,
    )


def _refill(store: Store, names: list[str]) -> RowsChange:
    path = store.found.path
    with sqlite.reading(path) as db:
        notes = db.execute(f"SELECT count(*) FROM {NOTES} WHERE searchable = 1").get
        size = db.execute(f"SELECT ifnull(sum(octet_length(block)), 0) FROM {FULL_TEXT}_data").get
    message = f"index the {notes:,} searchable notes anew for the search by words"
    action = Action(
        action="rebuild-full-text",
        message=message,
        base=None,
        subject=path.name,
        count=notes,
        bytes=size,
        finding=names[0],
    )
    # The old index goes and a new one comes.
    return RowsChange(path=path.name, actions=(action,), apply=refill, tables=_SHADOWS, bytes=2 * size)


def refill(db: apsw.Connection) -> None:
    """Empty the full-text index and fill it with the searchable notes, in the caller's transaction."""
    untouched.demand_no_text_index(db)
    db.execute(f"INSERT INTO {FULL_TEXT} ({FULL_TEXT}) VALUES ('delete-all')")
    db.execute(
        f"INSERT INTO {FULL_TEXT} (rowid, title, content)"
        f" SELECT rowid, title, content FROM {NOTES} WHERE searchable = 1 ORDER BY rowid"
    )
    # FTS5 holds rows back until then: what takes this back is read off its tables before the transaction ends.
    db.execute("SAVEPOINT flushed")
    db.execute("RELEASE flushed")
