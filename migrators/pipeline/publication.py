"""Moving finished bases, the catalog and the report into place, through the ledger."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Literal

import apsw
import msgspec

from migrators.pipeline.source import FoundOnDisk
from regraft.disk import durable, file_paths, sqlite, untrusted_sqlite
from regraft.disk.trees import file_hash, folder_hash
from regraft.formats.cherry_v2 import catalog
from regraft.formats.cherry_v2.catalog import BaseRecord, ItemRow, write_catalog
from regraft.formats.cherry_v2.layout import REPORT_FILE, REPORT_PAGE
from regraft.language import tr
from regraft.ledger.ledger import FOLDER, Ledger, LedgerEntry, LedgerStep
from regraft.ledger.values import Count, InvalidValue
from regraft.report import notices
from regraft.report.migration import BaseReport
from regraft.report.notices import Notice
from regraft.stores.locate import CATALOG_FILE, INDEX_FILE, KNOWLEDGE_FOLDER, RAW_FOLDER

# What the ledger keeps of a base that was published, and how that stands now (``docs/upgrade.md``).


class BaseEntry(msgspec.Struct, frozen=True):
    """What the ledger keeps of a migrated base besides its items: its catalog rows and its part of the report."""

    position: int
    record: BaseRecord
    report: BaseReport
    items: dict[str, str]
    children: dict[str, str]
    notices: list[Notice]
    has_files: bool
    #: What tells whether the published index was written to since: its size and time of change (ns).
    index_mark: tuple[int, int] | None
    #: The same for the files under ``raw/``.
    raw_mark: str
    #: What was found on disk; nothing in entries of versions that did not keep it.
    found: FoundOnDisk = FoundOnDisk()
    #: The command that wrote it; entries of versions that had one only do not say.
    command: str = "migrate"
    #: Whether texts were to come along whose vector could not.
    carry_text: bool = False
    #: SHA-256 of the index, and of the names and bytes under ``raw/``; empty in entries of versions that kept none.
    index_hash: str = ""
    raw_hash: str = ""

    @property
    def has_bare_texts(self) -> bool:
        """Tell whether there are texts that came along without a vector."""
        return bool(self.report.rows.without_vector)


def read_entry(entry: LedgerEntry) -> BaseEntry:
    """Return what an entry of the ledger says of a base."""
    return msgspec.json.decode(entry.detail, type=BaseEntry)


class BaseState(Enum):
    """How a base stands."""

    #: Its index, or its folder of files, is not there.
    GONE = "gone"
    #: Its index is not what was written, and is damaged.
    DAMAGED = "damaged"
    #: Somebody has changed its index or its files.
    CHANGED = "changed"
    #: Every file is what was written, by its bytes; times do not count.
    WHOLE = "whole"


def base_state(target: Path, base_id: str, known: BaseEntry, *, verify: bool = False) -> BaseState:
    """Return how a base stands that an earlier run published.

    Args:
        target: the library.
        base_id: the base's id.
        known: what the ledger has of it.
        verify: read every byte, also of files whose size and time are what they were.
    """
    folder = base_folder(target, base_id)
    if not is_present(target, base_id, known):
        return BaseState.GONE
    is_changed = False
    if known.index_mark is not None and (verify or index_mark(folder) != known.index_mark):
        index = folder / INDEX_FILE
        is_changed = (
            bool(untrusted_sqlite.find_companions(index))
            or not known.index_hash
            or file_hash(index) != known.index_hash
        )
        if is_changed and _is_damaged(index):
            return BaseState.DAMAGED
    if known.raw_mark and (verify or raw_mark(folder) != known.raw_mark):
        is_changed = is_changed or not known.raw_hash or raw_hash(folder) != known.raw_hash
    return BaseState.CHANGED if is_changed else BaseState.WHOLE


def is_present(target: Path, base_id: str, known: BaseEntry) -> bool:
    """Tell whether what an earlier run published of a base is still in its place."""
    folder = base_folder(target, base_id)
    index_stands = known.index_mark is None or untrusted_sqlite.is_database(folder / INDEX_FILE)
    return index_stands and (not known.raw_mark or file_paths.is_folder(folder / RAW_FOLDER))


def base_folder(target: Path, base_id: str) -> Path:
    """Return the folder of a base in a library."""
    return target / KNOWLEDGE_FOLDER / base_id


def _is_damaged(index: Path) -> bool:
    # A full-text table whose own settings are damaged is no error of the file, but of the statement.
    try:
        with sqlite.open_readonly(index) as db:
            return str(db.execute("PRAGMA integrity_check(1)").get) != "ok"
    except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, UnicodeDecodeError):
        return True


def index_mark(folder: Path) -> tuple[int, int] | None:
    """Return what tells whether a published index was written to since; None where none stands any more."""
    return untrusted_sqlite.database_mark(folder / INDEX_FILE)


def index_hash(folder: Path) -> str:
    """Return the SHA-256 of a base's index; "" where there is none."""
    index = folder / INDEX_FILE
    return file_hash(index) if file_paths.is_file(index) else ""


def raw_mark(folder: Path) -> str:
    """Return what tells whether a file under a base's ``raw/`` was added, changed or removed; "" without ``raw/``."""
    hasher = hashlib.blake2b(digest_size=16)
    for path in _raw_files(folder):
        status = file_paths.lstat(path)
        hasher.update(f"{path.relative_to(folder)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return hasher.hexdigest() if file_paths.is_folder(folder / RAW_FOLDER) else ""


def raw_hash(folder: Path) -> str:
    """Return the SHA-256 of the names and bytes of all files under a base's ``raw/``; "" without ``raw/``."""
    return folder_hash(folder, RAW_FOLDER)


def _raw_files(folder: Path) -> list[Path]:
    return sorted(file_paths.iterate_below(folder / RAW_FOLDER))


# What the ledger has of bases that stand in a target, checked before anything is written.
#
# Rules: ``docs/formats/library.md``, "Values". A library may come from somebody else, with its ledger.


#: The ledger's subjects besides base ids.
CATALOG_SUBJECT = "catalog"
REPORT_SUBJECT = "report"
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


def check_base_entry(subject: str, entry: LedgerEntry) -> BaseEntry:
    """Return what the ledger has of a base.

    Raises:
        UnfitValue, msgspec.MsgspecError: it is not what regraft writes.
    """
    found = read_entry(entry)
    known = msgspec.json.decode(entry.detail, type=_Known)
    report = found.report
    if report.lacks(known.command):
        raise InvalidValue(tr("what it has of base {subject} is not whole", subject=subject))
    if not found.record.base.id == report.id == subject:
        raise InvalidValue(tr("what it has of base {subject} is of another one", subject=subject))
    if report.index is not None and report.index.path != f"{KNOWLEDGE_FOLDER}/{subject}/{INDEX_FILE}":
        raise InvalidValue(tr("it has the index of base {subject} elsewhere", subject=subject))
    reasons = {*report.rows.skipped, *(report.skipped_items or ())}
    unknown = {*reasons, *(notice.code for notice in found.notices)} - set(notices.EVERY_CODE)
    if unknown:
        raise InvalidValue(
            tr("it has {unknown!r} of base {subject}, which is not a code", unknown=min(unknown), subject=subject)
        )
    if not (_HASH.fullmatch(known.index_hash) and _HASH.fullmatch(known.raw_hash)):
        raise InvalidValue(tr("it has no hash of what is in base {subject}", subject=subject))
    if _RAW_MARK.fullmatch(known.raw_mark) is None or any(notice.count < 0 for notice in found.notices):
        raise InvalidValue(tr("it has what no run says of base {subject}", subject=subject))
    return found


def check_base_entries(entries: dict[str, LedgerEntry]) -> dict[str, BaseEntry]:
    """Return those entries of a ledger that are bases.

    Raises:
        UnfitValue, msgspec.MsgspecError: one is not what regraft writes.
    """
    bases = ((subject, entry) for subject, entry in entries.items() if subject not in (CATALOG_SUBJECT, REPORT_SUBJECT))
    return {subject: check_base_entry(subject, entry) for subject, entry in bases}


class CatalogMark(msgspec.Struct, frozen=True, array_like=True):
    """The catalog that a run wrote, as the ledger records it."""

    size: Count
    #: Its modification time (ns). It identifies the catalog only in records that have no hash.
    changed_ns: Count
    #: The SHA-256 of its bytes; empty in records of versions that kept none.
    sha256: str = ""


def read_catalog_mark(entries: dict[str, LedgerEntry]) -> CatalogMark | None:
    """Return the record of the catalog that regraft wrote, None where it wrote none.

    Raises:
        UnfitValue, msgspec.MsgspecError: it is not what regraft writes.
    """
    known = entries.get(CATALOG_SUBJECT)
    if known is None:
        return None
    mark = msgspec.json.decode(known.detail, type=CatalogMark)
    if _HASH.fullmatch(mark.sha256) is None:
        raise InvalidValue(tr("it has no hash of the catalog"))
    return mark


def read_items(parts: Iterator[bytes], base_id: str) -> Iterator[ItemRow]:
    """Stream the items of a base out of the parts of its entry.

    Raises:
        UnfitValue, msgspec.MsgspecError: a part is none of them.
    """
    for part in parts:
        item = msgspec.json.decode(part, type=ItemRow)
        if item.base_id != base_id:
            raise InvalidValue(tr("it has an item of another base among those of {base_id}", base_id=base_id))
        yield item


def check_ledger(ledger: Ledger) -> dict[str, LedgerEntry]:
    """Return what stands in a target, once all that the ledger has of it makes a catalog, as do its open steps.

    Raises:
        UnfitValue, msgspec.MsgspecError: it does not.
        LedgerUnreadable, apsw.Error
    """
    entries = ledger.entries()
    read_catalog_mark(entries)
    standing = check_base_entries(entries)
    rows = {base: (entry, read_items(ledger.parts(base), base)) for base, entry in standing.items()}
    _prove(list(rows.values()))
    steps = [step for step in ledger.open_steps() if step.subject not in (CATALOG_SUBJECT, REPORT_SUBJECT)]
    if steps:
        rows = {base: (entry, read_items(ledger.parts(base), base)) for base, entry in standing.items()}
        for step in steps:
            parts = read_items(ledger.parts_of(step), step.subject)
            rows[step.subject] = check_base_entry(step.subject, step.entry), parts
        _prove(list(rows.values()))
    return entries


def _prove(rows: list[tuple[BaseEntry, Iterator[ItemRow]]]) -> None:
    rows.sort(key=lambda one: (one[0].position, one[0].record.base.id))
    records: Iterator[tuple[BaseRecord, Iterator[ItemRow]]] = ((entry.record, items) for entry, items in rows)
    try:
        catalog.check_records(records)
    except (InvalidValue, msgspec.MsgspecError):
        raise
    except _REFUSED as error:
        raise InvalidValue(tr("its bases and items cannot stand in a catalog: {error}", error=error)) from error


logger = logging.getLogger(__name__)

PUBLISH = "publish"
#: Publishing where an earlier base of the same id stands, which waits aside until its successor is recorded.
REPLACE = "replace"


#: The folders below ``.regraft`` in which something is made or waits while a run is at work.
STAGING, REPLACED, WORK = "staging", "replaced", "work"


class TargetLibrary:
    """The folders of a target and the moves between them.

    What a run builds lies in folders of its own: what still lives of a killed one cannot write into them.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        self.own = path / FOLDER
        #: Where bases are built.
        self.staging = self.own / STAGING / run_id
        #: Where a base that is carried anew waits until its successor stands.
        self.replaced = self.own / REPLACED
        #: Where vector files of an archive are extracted.
        self.work = self.own / WORK / run_id

    def clean(self) -> None:
        """Remove what this run, and every unfinished one before it, left beside the target; needs its lock."""
        for name in (STAGING, REPLACED, WORK):
            durable.remove_leftovers(self.own / name)

    def make_staging(self) -> None:
        """Make the folder in which bases are built."""
        durable.make_folders(self.staging)

    @property
    def catalog(self) -> Path:
        """Return where the catalog is."""
        return self.path / CATALOG_FILE

    def is_catalog_as_written(self, ledger: Ledger) -> bool:
        """Whether the catalog in place has the bytes that a run wrote, whatever its path and times are now."""
        entries = ledger.entries()
        known = read_catalog_mark(entries)
        if known is None or untrusted_sqlite.find_companions(self.catalog):
            return False
        if known.sha256:
            return file_hash(self.catalog) == known.sha256
        if untrusted_sqlite.database_mark(self.catalog) == (known.size, known.changed_ns):
            return True
        # The record has no hash: the catalog follows from the bases that it was written of, where these are the same.
        if entries[CATALOG_SUBJECT].fingerprint != catalog_fingerprint(entries):
            return False
        with durable.temporary_folder() as folder:
            again = folder / CATALOG_FILE
            _write_catalog(again, ledger)
            return _without_versions(again) == _without_versions(self.catalog)

    def throw_away(self) -> None:
        """Remove what was being built, without a word to the ledger: open intents can still be settled after this."""
        for name in (STAGING, WORK):
            durable.remove_leftovers(self.own / name)

    def recover(self, ledger: Ledger) -> None:
        """Finish or give up every intent of an earlier run that was killed, end that run, and remove what it left."""
        for step in ledger.open_steps():
            logger.info("an earlier run was stopped while it wrote %s; that is settled", step.subject)
            if step.subject == REPORT_SUBJECT:
                ledger.drop(step)
            elif step.subject == CATALOG_SUBJECT:
                self._recover_catalog(ledger, step)
            else:
                self._recover_base(ledger, step)
        ledger.stop_runs()
        self.clean()

    def _recover_catalog(self, ledger: Ledger, step: LedgerStep) -> None:
        """Settle the catalog: it was moved into place if what stands there is what was to be moved."""
        mark = read_catalog_mark({CATALOG_SUBJECT: step.entry})
        if mark is not None and mark.sha256:
            moved = untrusted_sqlite.is_database(self.catalog) and file_hash(self.catalog) == mark.sha256
        else:
            moved = msgspec.json.encode(untrusted_sqlite.database_mark(self.catalog)) == step.entry.detail
        (ledger.done if moved else ledger.drop)(step)

    def _recover_base(self, ledger: Ledger, step: LedgerStep) -> None:
        """Settle one base: the move into place is one step, so it either happened or did not.

        What it replaces is moved aside first and removed last, after the step is recorded as done: an earlier base that
        is still in its place has no successor yet.
        """
        final, old = base_folder(self.path, step.subject), self.replaced / step.subject
        has_files = read_entry(step.entry).has_files
        if (final.exists() or not has_files) and (step.action != REPLACE or old.exists()):
            ledger.done(step)
            return
        if old.exists():
            durable.replace(old, final)
        ledger.drop(step)

    def publish_base(self, ledger: Ledger, base: BaseEntry, fingerprint: str, items: Iterable[ItemRow]) -> None:
        """Move a staged base into place and record it; an earlier one of the same id makes room first."""
        base_id = base.record.base.id
        final, old = base_folder(self.path, base_id), self.replaced / base_id
        action = REPLACE if final.exists() else PUBLISH
        logger.info("base %s: %s", base_id, action)
        step = ledger.intend(
            base_id, action, pack_entry(base, fingerprint), (msgspec.json.encode(item) for item in items)
        )
        if step.action == REPLACE:
            durable.make_folders(self.replaced)
            durable.replace(final, old)
        if base.has_files:
            durable.make_folders(final.parent)
            durable.replace(self.staging / base_id, final)
            durable.sync_folder(self.path)
        ledger.done(step)
        durable.remove_tree(old)

    def move_in_order(self, ledger: Ledger, base_id: str, position: int) -> None:
        """Record that a base which stands unchanged has another place in v1's order now."""
        moved = msgspec.structs.replace(read_entry(ledger.entries()[base_id]), position=position)
        ledger.amend(base_id, pack_entry(moved, "").detail)

    def catalog_is_current(self, entries: dict[str, LedgerEntry]) -> bool:
        """Tell whether the catalog in place is that of these entries."""
        known = entries.get(CATALOG_SUBJECT)
        return (
            known is not None
            and known.fingerprint == catalog_fingerprint(entries)
            and untrusted_sqlite.is_database(self.catalog)
        )

    def publish_catalog(self, ledger: Ledger) -> None:
        """Write the catalog of every base in the target, in v1's order."""
        self.make_staging()
        staged = self.staging / CATALOG_FILE
        durable.remove_tree(staged)
        _write_catalog(staged, ledger)
        durable.sync_file(staged)
        status = staged.stat()
        mark = CatalogMark(status.st_size, status.st_mtime_ns, file_hash(staged))
        step = ledger.intend(
            CATALOG_SUBJECT, PUBLISH, LedgerEntry(catalog_fingerprint(ledger.entries()), msgspec.json.encode(mark))
        )
        durable.replace(staged, self.catalog)
        ledger.done(step)

    def report_is_current(self, entries: dict[str, LedgerEntry]) -> bool:
        """Tell whether a report of these bases is in place."""
        known = entries.get(REPORT_SUBJECT)
        there = all((self.path / name).is_file() for name in (REPORT_FILE, REPORT_PAGE))
        return known is not None and known.fingerprint == catalog_fingerprint(entries) and there

    def publish_report(self, ledger: Ledger, document: str, page: str) -> None:
        """Write ``report.json`` and ``report.html``."""
        self.make_staging()
        step = ledger.intend(REPORT_SUBJECT, PUBLISH, LedgerEntry(catalog_fingerprint(ledger.entries()), b""))
        for name, text in ((REPORT_FILE, document), (REPORT_PAGE, page)):
            durable.write_text_atomically(self.path / name, text, self.staging / name)
        ledger.done(step)


def _write_catalog(path: Path, ledger: Ledger) -> None:
    """Write the catalog of every base that the ledger has, in v1's order."""
    known = sorted(
        check_base_entries(ledger.entries()).values(), key=lambda entry: (entry.position, entry.record.base.id)
    )
    write_catalog(path, ((entry.record, _items(ledger, entry)) for entry in known))


def _without_versions(path: Path) -> bytes:
    """Return the bytes of a catalog without the counters and versions of the SQLite that wrote it."""
    content = bytearray(path.read_bytes())
    for part in (slice(24, 28), slice(92, 100)):
        content[part] = bytes(len(content[part]))
    return bytes(content)


def _items(ledger: Ledger, entry: BaseEntry) -> Iterator[ItemRow]:
    base_id = entry.record.base.id
    return read_items(ledger.parts(base_id), base_id)


def catalog_fingerprint(entries: dict[str, LedgerEntry]) -> str:
    """Return a hash over the entries of all bases: the catalog's content follows from them."""
    hasher = hashlib.blake2b(digest_size=20)
    for subject, entry in sorted(entries.items()):
        if subject not in (CATALOG_SUBJECT, REPORT_SUBJECT):
            hasher.update(f"{subject} {entry.fingerprint} {len(entry.detail)}\n".encode())
            hasher.update(entry.detail)
    return hasher.hexdigest()


def pack_entry(entry: BaseEntry, fingerprint: str) -> LedgerEntry:
    """Return the ledger's entry of a base."""
    return LedgerEntry(fingerprint, msgspec.json.encode(entry, order="deterministic"))
