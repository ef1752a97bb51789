"""What the ledger has of bases that stand in a target, checked before anything is written.

Rules: ``docs/formats/library.md``, "Values". A library may come from somebody else, with its ledger.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import apsw
import msgspec

from migrators.pipeline.published import BaseEntry, read_entry
from regraft.formats.cherry_v2 import catalog
from regraft.formats.cherry_v2.catalog import BaseRecord, ItemRow
from regraft.language import tr
from regraft.ledger.ledger import Entry, Ledger
from regraft.ledger.values import Count, UnfitValue
from regraft.locate import INDEX_FILE, KNOWLEDGE_FOLDER
from regraft.report import notices

#: The ledger's subjects besides base ids.
CATALOG = "catalog"
REPORT = "report"
#: What a mark of a database is: its size and time of change (ns).
_Mark = tuple[Count, Count]
_HASH = re.compile(r"([0-9a-f]{64})?", re.ASCII)
_RAW_MARK = re.compile(r"([0-9a-f]{32})?", re.ASCII)
#: What the catalog's own rules, or SQLite, refuse a row for.
_REFUSED = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError, OverflowError, TypeError, ValueError)


class _Known(msgspec.Struct):
    """What of an entry is numbers and words of regraft's own."""

    position: Count
    index_mark: _Mark | None
    raw_mark: str
    index_hash: str = ""
    raw_hash: str = ""
    command: Literal["migrate", "import"] = "migrate"


def base_entry(subject: str, entry: Entry) -> BaseEntry:
    """Return what the ledger has of a base.

    Raises:
        UnfitValue, msgspec.MsgspecError: it is not what regraft writes.
    """
    found = read_entry(entry)
    known = msgspec.json.decode(entry.detail, type=_Known)
    report = found.report
    if report.lacks(known.command):
        raise UnfitValue(tr("what it has of base {subject} is not whole", subject=subject))
    if not found.record.base.id == report.id == subject:
        raise UnfitValue(tr("what it has of base {subject} is of another one", subject=subject))
    if report.index is not None and report.index.path != f"{KNOWLEDGE_FOLDER}/{subject}/{INDEX_FILE}":
        raise UnfitValue(tr("it has the index of base {subject} elsewhere", subject=subject))
    reasons = {*report.rows.skipped, *(report.skipped_items or ())}
    unknown = {*reasons, *(notice.code for notice in found.notices)} - set(notices.EVERY_CODE)
    if unknown:
        raise UnfitValue(
            tr("it has {unknown!r} of base {subject}, which is not a code", unknown=min(unknown), subject=subject)
        )
    if not (_HASH.fullmatch(known.index_hash) and _HASH.fullmatch(known.raw_hash)):
        raise UnfitValue(tr("it has no hash of what is in base {subject}", subject=subject))
    if _RAW_MARK.fullmatch(known.raw_mark) is None or any(notice.count < 0 for notice in found.notices):
        raise UnfitValue(tr("it has what no run says of base {subject}", subject=subject))
    return found


def base_entries(entries: dict[str, Entry]) -> dict[str, BaseEntry]:
    """Return those entries of a ledger that are bases.

    Raises:
        UnfitValue, msgspec.MsgspecError: one is not what regraft writes.
    """
    bases = ((subject, entry) for subject, entry in entries.items() if subject not in (CATALOG, REPORT))
    return {subject: base_entry(subject, entry) for subject, entry in bases}


class CatalogMark(msgspec.Struct, frozen=True, array_like=True):
    """The catalog that a run wrote, as the ledger records it."""

    size: Count
    #: Its modification time (ns). It identifies the catalog only in records that have no hash.
    changed_ns: Count
    #: The SHA-256 of its bytes; empty in records of versions that kept none.
    sha256: str = ""


def catalog_mark_of(entries: dict[str, Entry]) -> CatalogMark | None:
    """Return the record of the catalog that regraft wrote, None where it wrote none.

    Raises:
        UnfitValue, msgspec.MsgspecError: it is not what regraft writes.
    """
    known = entries.get(CATALOG)
    if known is None:
        return None
    mark = msgspec.json.decode(known.detail, type=CatalogMark)
    if _HASH.fullmatch(mark.sha256) is None:
        raise UnfitValue(tr("it has no hash of the catalog"))
    return mark


def items_of(parts: Iterator[bytes], base_id: str) -> Iterator[ItemRow]:
    """Stream the items of a base out of the parts of its entry.

    Raises:
        UnfitValue, msgspec.MsgspecError: a part is none of them.
    """
    for part in parts:
        item = msgspec.json.decode(part, type=ItemRow)
        if item.base_id != base_id:
            raise UnfitValue(tr("it has an item of another base among those of {base_id}", base_id=base_id))
        yield item


def demand_fit(ledger: Ledger) -> dict[str, Entry]:
    """Return what stands in a target, once all that the ledger has of it makes a catalog, as do its open steps.

    Raises:
        UnfitValue, msgspec.MsgspecError: it does not.
        LedgerUnreadable, apsw.Error
    """
    entries = ledger.entries()
    catalog_mark_of(entries)
    standing = base_entries(entries)
    rows = {base: (entry, items_of(ledger.parts(base), base)) for base, entry in standing.items()}
    _prove(list(rows.values()))
    steps = [step for step in ledger.open_steps() if step.subject not in (CATALOG, REPORT)]
    if steps:
        rows = {base: (entry, items_of(ledger.parts(base), base)) for base, entry in standing.items()}
        for step in steps:
            parts = items_of(ledger.parts_of(step), step.subject)
            rows[step.subject] = base_entry(step.subject, step.entry), parts
        _prove(list(rows.values()))
    return entries


def _prove(rows: list[tuple[BaseEntry, Iterator[ItemRow]]]) -> None:
    rows.sort(key=lambda one: (one[0].position, one[0].record.base.id))
    records: Iterator[tuple[BaseRecord, Iterator[ItemRow]]] = ((entry.record, items) for entry, items in rows)
    try:
        catalog.prove(records)
    except (UnfitValue, msgspec.MsgspecError):
        raise
    except _REFUSED as error:
        raise UnfitValue(tr("its bases and items cannot stand in a catalog: {error}", error=error)) from error
