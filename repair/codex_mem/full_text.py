"""``repair`` of codex-mem: its full-text index is emptied, and filled with the searchable notes alone.

FTS5's own "rebuild" would make excluded notes findable (``docs/formats/codex_mem.md``, "Full text").
"""

from __future__ import annotations

import apsw

from checks.audit.file_findings import CORRUPT, UNREADABLE
from checks.audit.findings import Finding
from checks.codex_mem import findings as codex
from checks.codex_mem import foreign_schema
from regraft import sqlite, untouched
from regraft.formats.codex_mem.database import FULL_TEXT, FULL_TEXT_TABLES, NOTES
from regraft.language import tr
from repair.changes import foreign_definitions
from repair.changes.found import besides, by_name
from repair.changes.plan import Action, Plan, RowsChange, Unresolved
from repair.changes.store import Store
from repair.options import RepairOptions

#: Findings that are mended.
NAMES = (codex.FTS_MISSING, codex.FTS_EXTRA, codex.FTS_SKEWED, codex.FTS_WORDS)
#: Where FTS5 keeps the index; a change of the virtual table is one of their rows.


def plan(store: Store, options: RepairOptions) -> Plan:
    """Return what is going to be mended; nothing is written."""
    found = by_name(store.findings())
    wanted = options.wanted(NAMES).intersection(found)
    names = [name for name in NAMES if name in wanted]
    damage = _damage(found)
    if damage is not None:
        message = tr("{message_}: that has to be mended first", message_=damage.message)
        made = Plan(left=[Unresolved.of(one, message) for name in names for one in found[name]])
    else:
        looks = {store.found.path.name: foreign_schema.of_notes}
        made = foreign_definitions.beside(_own(store, found, names), store, found, options.only, looks)
    if not options.only:
        others = besides(found, (*NAMES, *foreign_definitions.NAMES))
        made.left += [Unresolved.with_remedy(one, repair=one.repair) for one in others]
    return made


def _own(store: Store, found: dict[str, list[Finding]], names: list[str]) -> Plan:
    if not names:
        return Plan()
    # One index: what mends one of them mends all.
    resolves = {(one.name, one.base) for name in NAMES for one in found.get(name, ())}
    return Plan([_refill(store, names)], resolves=resolves)


def _damage(found: dict[str, list[Finding]]) -> Finding | None:
    return next((one for every in found.values() for one in every if _keeps_from(one)), None)


def _keeps_from(finding: Finding) -> bool:
    """Tell whether nobody can fill the full-text index while this is so."""
    if finding.name == codex.TRIGGER:
        return FULL_TEXT in finding.samples
    return finding.name in (UNREADABLE, CORRUPT, codex.SCHEMA)


def _refill(store: Store, names: list[str]) -> RowsChange:
    path = store.found.path
    with sqlite.reading(path) as db:
        notes = db.execute(f"SELECT count(*) FROM {NOTES} WHERE searchable = 1").get
        size = db.execute(f"SELECT ifnull(sum(octet_length(block)), 0) FROM {FULL_TEXT}_data").get
    message = tr("index the {notes:,} searchable notes anew for the search by words", notes=notes)
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
    return RowsChange(path=path.name, actions=(action,), apply=refill, tables=FULL_TEXT_TABLES, bytes=2 * size)


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
