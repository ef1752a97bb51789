"""Bases in the target library: their ledger entries, their state on disk, and publishing new ones through the ledger.

A library and its ledger may come from an untrusted source, so ledger entries are validated before anything is written.
Rules: ``docs/formats/library.md``, "Values"; ``docs/upgrade.md``.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Literal

import apsw
import msgspec

from migrators.pipeline.source import FoundOnDisk
from regraft.disk import durable, file_paths, scratch, sqlite, untrusted_sqlite
from regraft.disk.trees import file_hash, folder_hash
from regraft.formats.cherry_v2 import catalog
from regraft.formats.cherry_v2.catalog import BaseRecord, ItemRow, write_catalog
from regraft.formats.cherry_v2.layout import REPORT_FILE, REPORT_PAGE
from regraft.language import tr
from regraft.ledger.ledger import FOLDER, Ledger, LedgerEntry, LedgerStep
from regraft.ledger.values import Count, FileStamp, InvalidValue
from regraft.report import notices
from regraft.report.migration import BaseReport
from regraft.report.notices import Notice
from regraft.stores.locate import CATALOG_FILE, INDEX_FILE, KNOWLEDGE_FOLDER, RAW_FOLDER

# --- ledger entries and state on disk ------------------------------------------------------------------------------


class BaseEntry(msgspec.Struct, frozen=True):
    """The ledger's record of a migrated base: its catalog rows without items, and its part of the report."""

    position: int
    record: BaseRecord
    report: BaseReport
    items: dict[str, str]
    children: dict[str, str]
    notices: list[Notice]
    has_files: bool
    #: Size and modification time (ns) of the published index.
    index_mark: tuple[int, int] | None
    #: A hash of the names, sizes and modification times of the files in ``raw/``.
    raw_mark: str
    #: Facts found on disk. Empty in entries of earlier versions.
    found: FoundOnDisk = FoundOnDisk()
    #: The command that wrote the base. Entries of earlier versions have no command.
    command: str = "migrate"
    #: Whether texts were migrated without vectors (``--carry-text``).
    carry_text: bool = False
    #: SHA-256 of the index, and of the names and bytes in ``raw/``. Empty in entries of earlier versions.
    index_hash: str = ""
    raw_hash: str = ""

    @property
    def has_texts_without_vectors(self) -> bool:
        """Whether some texts were migrated without a vector."""
        return bool(self.report.rows.without_vector)


def read_entry(entry: LedgerEntry) -> BaseEntry:
    """Decode the ledger entry of a base."""
    return msgspec.json.decode(entry.detail, type=BaseEntry)


class BaseState(Enum):
    """State of a published base."""

    #: The index or the folder of files is missing.
    GONE = "gone"
    #: The index is not what was written, and SQLite finds it damaged.
    DAMAGED = "damaged"
    #: The index or the files were changed by another program.
    CHANGED = "changed"
    #: All files have the bytes that were written. Modification times may differ.
    WHOLE = "whole"


def base_state(target: Path, base_id: str, known: BaseEntry, *, verify: bool = False) -> BaseState:
    """Compare a base that an earlier run published with its ledger entry.

    Args:
        target: the library.
        base_id: id of the base.
        known: its ledger entry.
        verify: read all bytes, even if size and time of a file are unchanged.
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
    """Whether the index and the folder of files that an earlier run wrote for a base (``known``) still exist."""
    folder = base_folder(target, base_id)
    index_stands = known.index_mark is None or untrusted_sqlite.is_database(folder / INDEX_FILE)
    return index_stands and (not known.raw_mark or file_paths.is_folder(folder / RAW_FOLDER))


def base_folder(target: Path, base_id: str) -> Path:
    """Return the folder of a base in a library."""
    return target / KNOWLEDGE_FOLDER / base_id


def _is_damaged(index: Path) -> bool:
    """Whether SQLite cannot read an index or finds damage in it."""
    # A full-text table with damaged settings raises an error of the statement, not of the file.
    try:
        with sqlite.open_readonly(index) as db:
            return str(db.execute("PRAGMA integrity_check(1)").get) != "ok"
    except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, UnicodeDecodeError):
        return True


def index_mark(folder: Path) -> tuple[int, int] | None:
    """Return size and modification time (ns) of the index in a base's folder, or None if it does not exist."""
    return untrusted_sqlite.database_mark(folder / INDEX_FILE)


def index_hash(folder: Path) -> str:
    """Return the SHA-256 of the index in a base's folder, or "" if it does not exist."""
    index = folder / INDEX_FILE
    return file_hash(index) if file_paths.is_file(index) else ""


def count_lost_vectors(target: Path, staged: Path, base_id: str) -> int:
    """Count the texts that have a vector in the base in the target, and none in its staged successor.

    A base that is missing, or cannot be read, or failed has none.
    """
    old, new = base_folder(target, base_id) / INDEX_FILE, staged / INDEX_FILE
    if not file_paths.is_file(new):
        try:
            with sqlite.open_readonly(old) as db:
                return int(db.execute("SELECT count(*) FROM embedding").get)
        except (apsw.Error, OSError):
            return 0
    query = (
        "SELECT count(*) FROM existing.embedding AS old WHERE NOT EXISTS"
        " (SELECT 1 FROM main.embedding AS new WHERE new.embedding_text_hash = old.embedding_text_hash)"
    )
    with sqlite.open_readonly(new) as db:
        try:
            with sqlite.attach_readonly(db, old, "existing"):
                return int(db.execute(query).get)
        except (apsw.Error, OSError):
            return 0


def raw_mark(folder: Path) -> str:
    """Hash names, sizes and modification times of the files in ``raw/`` of a base's folder; "" without ``raw/``."""
    hasher = hashlib.blake2b(digest_size=16)
    for path in sorted(file_paths.iterate_below(folder / RAW_FOLDER), key=lambda path: path.parts):
        status = file_paths.lstat(path)
        hasher.update(f"{path.relative_to(folder).as_posix()} {status.st_size} {status.st_mtime_ns}\n".encode())
    return hasher.hexdigest() if file_paths.is_folder(folder / RAW_FOLDER) else ""


def raw_hash(folder: Path) -> str:
    """Return the SHA-256 of the names and bytes of all files in ``raw/`` of a base's folder; "" without ``raw/``."""
    return folder_hash(folder, RAW_FOLDER)


# --- recognizing files after an undo -------------------------------------------------------------------------------


def stamp_before_change(ledger: Ledger, target: Path, name: str) -> FileStamp | None:
    """Return the stamp of a published file that is about to be changed; None if no migration wrote it, or it has a log.

    If the file still has the bytes that the migration wrote, but other times (in a copied library), its new stamp is
    recorded first, so that :func:`follow_undo` recognizes it.

    Args:
        ledger: the open ledger of the library.
        target: the library.
        name: the path of the index of a base or of the catalog, below the library.
    """
    known = _recorded_file(ledger, name)
    now = read_stamp(target / name)
    if known is None or now is None:
        return None
    if now != known.stamp and now[0] == known.stamp[0] and known.sha256 and file_hash(target / name) == known.sha256:
        _record_file(ledger, msgspec.structs.replace(known, stamp=now))
    return now


def follow_undo(ledger: Ledger, target: Path, name: str, before: FileStamp) -> None:
    """Record that a published file has the rows again that it had when its stamp was ``before``, in other bytes.

    Nothing is recorded if a migration did not write the file with that stamp. The other arguments are those of
    :func:`stamp_before_change`.
    """
    known = _recorded_file(ledger, name)
    now = read_stamp(target / name)
    if known is not None and known.stamp == before and now is not None:
        _record_file(ledger, msgspec.structs.replace(known, stamp=now, sha256=file_hash(target / name)))


def read_stamp(path: Path) -> FileStamp | None:
    """Return size and modification time (ns) of a database; None if there is none, or it has a log or journal."""
    return None if untrusted_sqlite.find_companions(path) else untrusted_sqlite.database_mark(path)


class _RecordedFile(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger records of a published file, to recognize it."""

    subject: str
    stamp: FileStamp
    sha256: str


def _recorded_file(ledger: Ledger, name: str) -> _RecordedFile | None:
    """Return the record of a published file, named by its path below the library; None if the ledger has none."""
    inside = name.removeprefix(f"{KNOWLEDGE_FOLDER}/").removesuffix(f"/{INDEX_FILE}")
    is_index = name == f"{KNOWLEDGE_FOLDER}/{inside}/{INDEX_FILE}"
    subject = inside if is_index else CATALOG_SUBJECT
    entry = ledger.entry(subject) if is_index or name == CATALOG_FILE else None
    if entry is None:
        return None
    with suppress(InvalidValue, msgspec.MsgspecError):
        if subject == CATALOG_SUBJECT:
            mark = read_catalog_mark({subject: entry})
            if mark is not None:
                return _RecordedFile(subject=subject, stamp=(mark.size, mark.changed_ns), sha256=mark.sha256)
        else:
            base = check_base_entry(subject, entry)
            if base.index_mark is not None:
                return _RecordedFile(subject=subject, stamp=base.index_mark, sha256=base.index_hash)
    return None


def _record_file(ledger: Ledger, file: _RecordedFile) -> None:
    """Replace what the ledger records of a published file. Catalog and report stay current if they were."""
    if file.subject == CATALOG_SUBJECT:
        ledger.amend(CATALOG_SUBJECT, msgspec.json.encode(CatalogMark(*file.stamp, file.sha256)))
        return
    entries = ledger.entries()
    base = read_entry(entries[file.subject])
    changed = msgspec.structs.replace(base, index_mark=file.stamp, index_hash=file.sha256)
    packed = pack_entry(changed, entries[file.subject].fingerprint)
    ledger.amend(file.subject, packed.detail)
    current = catalog_fingerprint(entries)
    for subject in (CATALOG_SUBJECT, REPORT_SUBJECT):
        if subject in entries and entries[subject].fingerprint == current:
            ledger.set_fingerprint(subject, catalog_fingerprint({**entries, file.subject: packed}))


# --- validation of ledger entries ----------------------------------------------------------------------------------


#: Subjects of the ledger that are not base ids.
CATALOG_SUBJECT = "catalog"
REPORT_SUBJECT = "report"
_HASH = re.compile(r"([0-9a-f]{64})?", re.ASCII)
_RAW_HASH = re.compile(r"([0-9a-f]{32})?", re.ASCII)
#: Errors that SQLite or the constraints of the catalog raise for an invalid row.
_INVALID_ROW_ERRORS = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError, OverflowError, TypeError, ValueError)


class _OwnFields(msgspec.Struct):
    """The fields of an entry that only regraft sets."""

    position: Count
    index_mark: FileStamp | None
    raw_mark: str
    index_hash: str = ""
    raw_hash: str = ""
    command: Literal["migrate", "import"] = "migrate"


def check_base_entry(subject: str, entry: LedgerEntry) -> BaseEntry:
    """Decode the ledger entry of the base with the id ``subject``, and validate it.

    Raises:
        InvalidValue, msgspec.MsgspecError: regraft did not write this entry.
    """
    found = read_entry(entry)
    known = msgspec.json.decode(entry.detail, type=_OwnFields)
    report = found.report
    if report.lacks(known.command):
        raise InvalidValue(tr("the entry of base {subject} is incomplete", subject=subject))
    if not found.record.base.id == report.id == subject:
        raise InvalidValue(tr("the entry of base {subject} belongs to another base", subject=subject))
    if report.index is not None and report.index.path != f"{KNOWLEDGE_FOLDER}/{subject}/{INDEX_FILE}":
        raise InvalidValue(tr("the entry of base {subject} has a different path for the index", subject=subject))
    reasons = {*report.rows.skipped, *(report.skipped_items or ())}
    unknown = {*reasons, *(notice.code for notice in found.notices)} - set(notices.EVERY_CODE)
    if unknown:
        raise InvalidValue(
            tr("the entry of base {subject} has the unknown code {unknown!r}", unknown=min(unknown), subject=subject)
        )
    if not (_HASH.fullmatch(known.index_hash) and _HASH.fullmatch(known.raw_hash)):
        raise InvalidValue(tr("the entry of base {subject} has an invalid hash", subject=subject))
    if _RAW_HASH.fullmatch(known.raw_mark) is None or any(notice.count < 0 for notice in found.notices):
        raise InvalidValue(tr("the entry of base {subject} has values that regraft never writes", subject=subject))
    return found


def check_base_entries(entries: dict[str, LedgerEntry]) -> dict[str, BaseEntry]:
    """Decode and validate the entries of all bases in a ledger, by base id. Other entries are left out.

    Raises:
        InvalidValue, msgspec.MsgspecError: regraft did not write one of them.
    """
    bases = ((subject, entry) for subject, entry in entries.items() if subject not in (CATALOG_SUBJECT, REPORT_SUBJECT))
    return {subject: check_base_entry(subject, entry) for subject, entry in bases}


class CatalogMark(msgspec.Struct, frozen=True, array_like=True):
    """The ledger's record of the catalog that a run wrote."""

    size: Count
    #: Modification time (ns). Identifies the catalog only in records without a hash.
    changed_ns: Count
    #: SHA-256 of its bytes. Empty in records of earlier versions.
    sha256: str = ""


def read_catalog_mark(entries: dict[str, LedgerEntry]) -> CatalogMark | None:
    """Return the ledger's record of the catalog that regraft wrote, or None if there is no record.

    Raises:
        InvalidValue, msgspec.MsgspecError: regraft did not write this record.
    """
    known = entries.get(CATALOG_SUBJECT)
    if known is None:
        return None
    mark = msgspec.json.decode(known.detail, type=CatalogMark)
    if _HASH.fullmatch(mark.sha256) is None:
        raise InvalidValue(tr("the record of the catalog has an invalid hash"))
    return mark


def read_items(parts: Iterator[bytes], base_id: str) -> Iterator[ItemRow]:
    """Decode the item rows of a base. Its ledger entry stores each item as one part.

    Raises:
        InvalidValue, msgspec.MsgspecError: a part is not an item of the base.
    """
    for part in parts:
        item = msgspec.json.decode(part, type=ItemRow)
        if item.base_id != base_id:
            raise InvalidValue(tr("the entry of base {base_id} has an item of another base", base_id=base_id))
        yield item


def check_ledger(ledger: Ledger) -> dict[str, LedgerEntry]:
    """Validate a whole ledger and return its entries by subject.

    Its bases and items must make a valid catalog, also after the steps that a killed run left open.

    Raises:
        InvalidValue, msgspec.MsgspecError: the ledger is not valid. LedgerUnreadable, apsw.Error
    """
    entries = ledger.entries()
    read_catalog_mark(entries)
    bases = check_base_entries(entries)
    steps = [step for step in ledger.open_steps() if step.subject not in (CATALOG_SUBJECT, REPORT_SUBJECT)]
    # Without the open steps and with them.
    for added in ([], steps) if steps else ([],):
        rows = {base: (entry, read_items(ledger.parts(base), base)) for base, entry in bases.items()}
        for step in added:
            items = read_items(ledger.parts_of(step), step.subject)
            rows[step.subject] = check_base_entry(step.subject, step.entry), items
        _check_catalog_rows(list(rows.values()))
    return entries


def _check_catalog_rows(rows: list[tuple[BaseEntry, Iterator[ItemRow]]]) -> None:
    """Sort bases by position, in place, and raise InvalidValue if they and their items are not valid catalog rows."""
    rows.sort(key=lambda one: (one[0].position, one[0].record.base.id))
    records: Iterator[tuple[BaseRecord, Iterator[ItemRow]]] = ((entry.record, items) for entry, items in rows)
    try:
        catalog.check_records(records)
    except (InvalidValue, msgspec.MsgspecError):
        raise
    except _INVALID_ROW_ERRORS as error:
        raise InvalidValue(tr("its bases and items are not valid rows of a catalog: {error}", error=error)) from error


logger = logging.getLogger(__name__)

PUBLISH = "publish"
#: Publishing over an earlier base of the same id. The earlier one is kept in ``replaced`` until the new one is
#: recorded.
REPLACE = "replace"


#: Folders below ``.regraft`` that exist while a run is active.
STAGING, REPLACED, WORK = "staging", "replaced", "work"


class TargetLibrary:
    """The folders of a target library, and the moves between them.

    Each run builds in folders of its own, so that processes left over from a killed run cannot write there.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        self.own = path / FOLDER
        #: Bases that are being built.
        self.staging = self.own / STAGING / run_id
        #: Earlier versions of bases that are being replaced.
        self.replaced = self.own / REPLACED
        #: Vector files extracted from an archive.
        self.work = self.own / WORK / run_id

    def clean(self) -> None:
        """Remove the working folders of this run and of all unfinished ones. Needs the library's lock."""
        for name in (STAGING, REPLACED, WORK):
            durable.remove_leftovers(self.own / name)

    def make_staging(self) -> None:
        """Create the folder in which bases are built."""
        durable.make_folders(self.staging)

    @property
    def catalog(self) -> Path:
        """Path of the catalog."""
        return self.path / CATALOG_FILE

    def is_catalog_unchanged(self, ledger: Ledger) -> bool:
        """Whether the catalog file still has the bytes that the last run wrote. Its path and times may differ."""
        entries = ledger.entries()
        known = read_catalog_mark(entries)
        if known is None or untrusted_sqlite.find_companions(self.catalog):
            return False
        if known.sha256:
            return file_hash(self.catalog) == known.sha256
        if untrusted_sqlite.database_mark(self.catalog) == (known.size, known.changed_ns):
            return True
        # A record without a hash: compare with a catalog written again from the same bases.
        if entries[CATALOG_SUBJECT].fingerprint != catalog_fingerprint(entries):
            return False
        with scratch.temporary_folder() as folder:
            again = folder / CATALOG_FILE
            _write_catalog(again, ledger)
            return _without_versions(again) == _without_versions(self.catalog)

    def discard_staged(self) -> None:
        """Remove the unfinished output of this run. The ledger is not changed: open steps can still be recovered."""
        for name in (STAGING, WORK):
            durable.remove_leftovers(self.own / name)

    def recover(self, ledger: Ledger) -> None:
        """Complete or drop every step of a killed run, end that run, and remove its working folders."""
        for step in ledger.open_steps():
            logger.info(
                "an earlier run was stopped while it wrote %s; the write is now completed or reverted", step.subject
            )
            if step.subject == REPORT_SUBJECT:
                ledger.drop(step)
            elif step.subject == CATALOG_SUBJECT:
                self._recover_catalog(ledger, step)
            else:
                self._recover_base(ledger, step)
        ledger.stop_runs()
        self.clean()

    def _recover_catalog(self, ledger: Ledger, step: LedgerStep) -> None:
        """Complete the step of a killed run that published the catalog; drop the step if no catalog was moved."""
        mark = read_catalog_mark({CATALOG_SUBJECT: step.entry})
        if mark is not None and mark.sha256:
            moved = untrusted_sqlite.is_database(self.catalog) and file_hash(self.catalog) == mark.sha256
        else:
            moved = msgspec.json.encode(untrusted_sqlite.database_mark(self.catalog)) == step.entry.detail
        (ledger.done if moved else ledger.drop)(step)

    def _recover_base(self, ledger: Ledger, step: LedgerStep) -> None:
        """Complete the step of a killed run that published a base, or drop the step and restore the earlier base.

        A move is atomic. The earlier base is moved aside first and removed after the step is recorded. So if it is
        still in place, the new one is not.
        """
        final, old = base_folder(self.path, step.subject), self.replaced / step.subject
        has_files = read_entry(step.entry).has_files
        if (final.exists() or not has_files) and (step.action != REPLACE or old.exists()):
            ledger.done(step)
            return
        if old.exists():
            # Without its only base the folder is empty, and somebody may have removed it.
            durable.make_folders(final.parent)
            durable.replace(old, final)
        ledger.drop(step)

    def publish_base(self, ledger: Ledger, base: BaseEntry, fingerprint: str, items: Iterable[ItemRow]) -> None:
        """Move a staged base into place and record it with its fingerprint and items.

        An earlier base of the same id is moved aside first, and removed afterwards.
        """
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

    def update_position(self, ledger: Ledger, base_id: str, position: int) -> None:
        """Record in the ledger that an unchanged base has a new position in the source's order."""
        moved = msgspec.structs.replace(read_entry(ledger.entries()[base_id]), position=position)
        ledger.amend(base_id, pack_entry(moved, "").detail)

    def catalog_is_current(self, entries: dict[str, LedgerEntry]) -> bool:
        """Whether the catalog exists and was written from these ledger entries."""
        known = entries.get(CATALOG_SUBJECT)
        return (
            known is not None
            and known.fingerprint == catalog_fingerprint(entries)
            and untrusted_sqlite.is_database(self.catalog)
        )

    def publish_catalog(self, ledger: Ledger) -> None:
        """Write the catalog of all bases in the target, in the source's order."""
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
        """Whether both report files exist and were written from these ledger entries."""
        known = entries.get(REPORT_SUBJECT)
        there = all((self.path / name).is_file() for name in (REPORT_FILE, REPORT_PAGE))
        return known is not None and known.fingerprint == catalog_fingerprint(entries) and there

    def publish_report(self, ledger: Ledger, document: str, page: str) -> None:
        """Write the JSON ``document`` to ``report.json`` and the HTML ``page`` to ``report.html``."""
        self.make_staging()
        step = ledger.intend(REPORT_SUBJECT, PUBLISH, LedgerEntry(catalog_fingerprint(ledger.entries()), b""))
        for name, text in ((REPORT_FILE, document), (REPORT_PAGE, page)):
            durable.write_text_atomically(self.path / name, text, self.staging / name)
        ledger.done(step)


def _write_catalog(path: Path, ledger: Ledger) -> None:
    """Write a catalog of all bases in the ledger, in the source's order."""
    bases = sorted(check_base_entries(ledger.entries()).items(), key=lambda base: (base[1].position, base[0]))
    write_catalog(path, ((entry.record, read_items(ledger.parts(base_id), base_id)) for base_id, entry in bases))


def _without_versions(path: Path) -> bytes:
    """Read a catalog file without SQLite's change counters and version number, so that equal catalogs compare equal."""
    content = bytearray(path.read_bytes())
    for part in (slice(24, 28), slice(92, 100)):
        content[part] = bytes(len(content[part]))
    return bytes(content)


def catalog_fingerprint(entries: dict[str, LedgerEntry]) -> str:
    """Hash the ledger entries of all bases. The content of the catalog depends on nothing else."""
    hasher = hashlib.blake2b(digest_size=20)
    for subject, entry in sorted(entries.items()):
        if subject not in (CATALOG_SUBJECT, REPORT_SUBJECT):
            hasher.update(f"{subject} {entry.fingerprint} {len(entry.detail)}\n".encode())
            hasher.update(entry.detail)
    return hasher.hexdigest()


def pack_entry(entry: BaseEntry, fingerprint: str) -> LedgerEntry:
    """Encode the record of a base, with the fingerprint of its source, as a ledger entry."""
    return LedgerEntry(fingerprint, msgspec.json.encode(entry, order="deterministic"))
