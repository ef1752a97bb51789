"""``repair`` of codex-mem: its full-text index is emptied, and filled with the searchable notes alone.

FTS5's own "rebuild" would make excluded notes findable (``docs/formats/codex_mem.md``, "Full text").
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import apsw

from checks.audit import foreign_schema
from checks.audit.findings import FINDINGS, Finding
from checks.cherry_v2.findings import CORRUPT, UNREADABLE
from checks.codex_mem import findings as codex
from regraft import sqlite, untouched
from regraft.formats.codex_mem.database import FULL_TEXT, NOTES
from regraft.report import notices
from repair.changes.plan import Action, Left, Plan, RowsChange
from repair.changes.store import Store
from repair.cherry_v2.rules import schema
from repair.cherry_v2.rules.planner import Wish

#: Findings that are mended.
NAMES = (codex.FTS_MISSING, codex.FTS_EXTRA, codex.FTS_SKEWED, codex.FTS_WORDS)
#: Where FTS5 keeps the index; a change of the virtual table is one of their rows.
_SHADOWS = tuple(f"{FULL_TEXT}_{name}" for name in ("data", "idx", "docsize"))


def plan(store: Store, wish: Wish) -> Plan:
    """Return what is going to be mended; nothing is written."""
    found: dict[str, list[Finding]] = defaultdict(list)
    for finding in store.findings():
        found[finding.name].append(finding)
    made = Plan()
    names = [name for name in NAMES if name in found and name in (wish.only or NAMES)]
    damage = [one for every in found.values() for one in every if _keeps_from(one)]
    if damage:
        said = f"{damage[0].message}: that has to be mended first"
        made.left = [replace(_left(one), reason=said, repair=None) for name in names for one in found[name]]
    elif names:
        made.changes.append(_refill(store, names))
        # One index: what mends one of them mends all.
        made.mends = {(one.name, one.base) for name in NAMES for one in found[name]}
    if not damage:
        schema.beside(store, found, wish.only, made, {store.found.path.name: foreign_schema.of_codex_mem})
    if not wish.only:
        others = (one for name, every in found.items() if name not in (*NAMES, *schema.NAMES) for one in every)
        made.left += [_left(one) for one in others if _counts(one)]
    return made


def _keeps_from(finding: Finding) -> bool:
    """Tell whether nobody can fill the full-text index while this is so."""
    if finding.name == codex.TRIGGER:
        return FULL_TEXT in finding.samples
    return finding.name in (UNREADABLE, CORRUPT, codex.SCHEMA)


def _counts(finding: Finding) -> bool:
    return notices.at_least(finding.severity, "warning")


def _left(finding: Finding) -> Left:
    said = f"{finding.message}; {FINDINGS[finding.name].mended_by}"
    return Left(finding.name, said, finding.base, finding.subject, finding.count, finding.severity, finding.repair)


def _refill(store: Store, names: list[str]) -> RowsChange:
    path = store.found.path
    with sqlite.reading(path) as db:
        notes = db.execute(f"SELECT count(*) FROM {NOTES} WHERE searchable = 1").get
        size = db.execute(f"SELECT ifnull(sum(octet_length(block)), 0) FROM {FULL_TEXT}_data").get
    said = f"index the {notes:,} searchable notes anew for the search by words"
    action = Action("rebuild-full-text", said, None, path.name, notes, size, names[0])
    # The old index goes and a new one comes.
    return RowsChange(path.name, (action,), refill, _SHADOWS, 2 * size)


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
