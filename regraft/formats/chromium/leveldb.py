"""A LevelDB folder of a source: which of its files count, and the newest record of each wanted key.

The rules are in ``docs/formats/chromium.md``, "LevelDB". Nothing of the source is opened but for copying it: only the
logs, and those tables whose range of keys meets what is wanted, one after the other.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from regraft.errors import SourceUnreadable
from regraft.formats.chromium.damage import Found, Malformed, StorageChanged, StorageDamaged
from regraft.formats.chromium.leveldb_log import LogReader, Record, batch_records, batch_sequence
from regraft.formats.chromium.leveldb_manifest import TableFile, Version, read_manifest
from regraft.formats.chromium.leveldb_table import Table, Wanted
from regraft.language import tr
from regraft.ledger import durable
from regraft.tree import CHUNK_BYTES, Tree, join

T = TypeVar("T")

#: Reading starts again where a running application changes the files.
#: Seconds to wait before each further attempt; half a compaction is over by then.
PAUSES = (0.05, 0.1, 0.25, 0.5, 1.0)
_FILE_NAME = re.compile(r"([0-9]{1,20})\.(log|ldb|sst)", re.ASCII)
_MANIFEST_NAME = re.compile(rb"(MANIFEST-[0-9]{1,20})\n?")
_CURRENT_BYTES = 64
#: No record has a higher sequence number.
_MAX_SEQUENCE = (1 << 56) - 1


def read_leveldb(tree: Tree, folder: str, comparator: str, work: Path, read: Callable[[LevelDb], T]) -> Found[T]:
    """Call ``read`` with the LevelDB in ``folder``, again where somebody changed its files meanwhile.

    ``comparator`` is the name of the order that its keys must be in. Copies lie in a folder below ``work`` and are
    gone at the end.

    Raises:
        StorageDamaged: a file that counts is missing, or damaged where wanted records may be.
        StorageChanged: the files changed on every attempt.
        OSError: the disk fails, or ``work`` cannot be written.
    """
    for pause in (0.0, *PAUSES):
        time.sleep(pause)
        with durable.temporary_folder(work) as copies:
            database = LevelDb(tree, folder, copies)
            try:
                database.open(comparator)
                value = read(database)
            except StorageChanged:
                continue
            except StorageDamaged:
                if database.has_changed():
                    continue
                raise
            if not database.has_changed():
                return Found(value, database.passed_over)
    raise StorageChanged(
        tr("{folder}: its files change while they are read; quit the application first", folder=folder)
    )


class LevelDb:
    """A LevelDB that is read through copies; see :func:`read_leveldb`."""

    def __init__(self, tree: Tree, folder: str, copies: Path) -> None:
        self.tree = tree
        self.folder = folder
        self._copies = copies
        self._state = self._fingerprint()
        self._tables: list[TableFile] = []
        #: Names of files by number: of tables, and of the logs that count.
        self._table_names: dict[int, str] = {}
        self._logs: list[Path] = []
        #: The most damaged places that one reading of the logs met.
        self._in_logs = 0
        #: What else was passed over: the MANIFEST, the latest log, tables, values.
        self._missing: set[str] = set()
        #: The lowest sequence number in the logs; None as long as no record of them was read.
        self._oldest_in_logs: int | None = None
        self._has_manifest = True

    @property
    def passed_over(self) -> int:
        """How many damaged places were passed over so far."""
        return self._in_logs + len(self._missing)

    @property
    def is_blank(self) -> bool:
        """Tell, after a scan, whether the database has no table and its logs not one record of any key."""
        return not self._tables and self._oldest_in_logs is None

    def pass_over(self, what: str) -> None:
        """Count something damaged that a reader does without; the same one counts once."""
        self._missing.add(what)

    def open(self, comparator: str) -> None:
        """Find out which files count, and copy the logs.

        Raises:
            StorageDamaged: the keys are in another order than ``comparator``, or a log cannot be read.
        """
        version = self._version()
        logs = self._find_files()
        if version is None:
            # Which tables count is lost. What was deleted may come back, which is better than nothing at all.
            self._has_manifest = False
            self.pass_over("MANIFEST")
            self._tables = [TableFile(number) for number in sorted(self._table_names)]
        else:
            if version.comparator != comparator:
                raise StorageDamaged(
                    tr(
                        "{folder}: its keys are in the order {comparator}, not {comparator2}",
                        folder=self.folder,
                        comparator=version.comparator,
                        comparator2=comparator,
                    )
                )
            self._tables = list(version.tables.values())
            logs = {n: name for n, name in logs.items() if n >= version.log or n == version.previous_log}
            # A log is made before the MANIFEST names it: what was written last was in one that is gone.
            if version.log and version.log not in logs:
                self.pass_over("log")
        self._logs = [self._copy(logs[number]) for number in sorted(logs)]

    def _find_files(self) -> dict[int, str]:
        """Note the tables that are there, and return the logs, both by number; ``.ldb`` goes before ``.sst``."""
        logs: dict[int, str] = {}
        for name in self.tree.children(self.folder):
            match = _FILE_NAME.fullmatch(name)
            if match is None:
                continue
            number, kind = int(match[1]), match[2]
            if kind == "log":
                logs[number] = name
            elif kind == "ldb" or number not in self._table_names:
                self._table_names[number] = name
        return logs

    def scan(
        self,
        wanted: Wanted,
        keep: Callable[[bytes, bytes], bytes] | None = None,
        settles: Callable[[Record], bool] | None = None,
    ) -> dict[bytes, Record]:
        """Return the newest record of each wanted key, deletions too.

        ``keep`` may shorten a value (given its key) as soon as it is read, so that less is held. ``settles`` tells
        which records are an answer by themselves: a table that cannot be read is passed over where such a record is
        newer than all that the table can hold (``docs/formats/chromium.md``, "How old a table is"); records that are
        not are left out then, since the table may have had newer ones.

        Raises:
            StorageDamaged: a table is missing, or damaged where wanted records may be.
            StorageChanged: a file vanished or shrank.
        """
        newest: dict[bytes, Record] = {}
        unread: dict[TableFile, StorageDamaged] = {}

        def take(record: Record) -> None:
            known = newest.get(record.key)
            if known is None or known.sequence < record.sequence:
                if keep is not None and record.value is not None:
                    record = record._replace(value=keep(record.key, record.value))
                newest[record.key] = record

        for table in self._tables:
            if wanted.may_hold(table.smallest, table.largest):
                try:
                    self._scan_table(table, wanted, take)
                except StorageChanged:
                    raise
                except StorageDamaged as problem:
                    if settles is None:
                        raise
                    unread[table] = problem
        self._scan_logs(wanted, take)
        if settles is not None and unread:
            return self._newer_than(unread, newest, settles)
        return newest

    def has_changed(self) -> bool:
        """Tell whether the database has other files than when it was opened; a longer log is no change."""
        return self._fingerprint() != self._state

    def _newer_than(
        self, unread: dict[TableFile, StorageDamaged], newest: dict[bytes, Record], settles: Callable[[Record], bool]
    ) -> dict[bytes, Record]:
        """Return those records that no table of ``unread`` can have newer ones of.

        Raises:
            StorageDamaged: none of them settles what was asked.
        """
        for table, problem in unread.items():
            limit = self._last_sequence(table)
            newest = {key: record for key, record in newest.items() if record.sequence > limit}
            if not any(map(settles, newest.values())):
                raise problem
            self.pass_over(f"{table.number}")
        return newest

    def _last_sequence(self, table: TableFile) -> int:
        """Return a sequence number that no record of a table exceeds."""
        if not self._has_manifest:
            return _MAX_SEQUENCE
        # Logs that count are newer than all tables: a log whose records are in a table counts no more.
        before_logs = None if self._oldest_in_logs is None else self._oldest_in_logs - 1
        return min((one for one in (table.last_sequence, before_logs) if one is not None), default=_MAX_SEQUENCE)

    def _scan_logs(self, wanted: Wanted, take: Callable[[Record], None]) -> None:
        passed_over = 0
        for log in self._logs:
            damaged, oldest = _scan_log(log, wanted, take)
            passed_over += damaged
            if oldest is not None:
                self._oldest_in_logs = min(
                    oldest, _MAX_SEQUENCE if self._oldest_in_logs is None else self._oldest_in_logs
                )
        self._in_logs = max(self._in_logs, passed_over)

    def _scan_table(self, table: TableFile, wanted: Wanted, take: Callable[[Record], None]) -> None:
        name = self._table_names.get(table.number)
        if name is None:
            raise StorageDamaged(
                tr("{folder}: missing, though it is in use", folder=join(self.folder, f"{table.number:06}.ldb"))
            )
        copy = self._copy(name)
        try:
            with copy.open("rb") as file:
                opened = self._table(file, copy.stat().st_size, name)
                if opened is not None:
                    for record in opened.records(wanted):
                        take(record)
        except Malformed as error:
            raise StorageDamaged(f"{join(self.folder, name)}: {error}") from error
        finally:
            durable.remove(copy, missing_ok=True)

    def _table(self, file: BinaryIO, size: int, name: str) -> Table | None:
        """Open a table; None where it has no end and no MANIFEST says that it must have one."""
        try:
            return Table(file, size)
        except Malformed:
            if self._has_manifest:
                raise
            self.pass_over(name)
            return None

    def _fingerprint(self) -> tuple[bytes | None, int | None]:
        """Return what CURRENT says and the size of the MANIFEST it names: both change with the set of files."""
        try:
            with self.tree.open(join(self.folder, "CURRENT")) as file:
                current = file.read(_CURRENT_BYTES)
            match = _MANIFEST_NAME.fullmatch(current)
            return current, self.tree.size(join(self.folder, match[1].decode())) if match else None
        except OSError:
            return None, None

    def _version(self) -> Version | None:
        """Return what the MANIFEST says; None where it or CURRENT is missing or unreadable."""
        match = _MANIFEST_NAME.fullmatch(self._state[0] or b"")
        if match is None or self._state[1] is None:
            return None
        try:
            copy = self._copy(match[1].decode())
            with copy.open("rb") as file:
                return read_manifest(file)
        except StorageChanged:
            raise
        except (Malformed, StorageDamaged):
            return None

    def _copy(self, name: str) -> Path:
        """Copy a file of the folder and return where the copy is.

        Raises:
            StorageChanged: it vanished or shrank meanwhile.
            StorageDamaged: it cannot be read.
            OSError: the copy cannot be written.
        """
        source, copy = join(self.folder, name), self._copies / name
        try:
            size = self.tree.size(source)
            original = self.tree.open(source)
        except OSError as error:
            if name not in self.tree.children(self.folder):
                raise StorageChanged(tr("{source}: vanished while it was read", source=source)) from error
            raise StorageDamaged(f"{source}: {_reason(error)}") from error
        with original, durable.open_binary(copy, "wb") as target:
            while chunk := _read(original, source):
                target.write(chunk)
        if copy.stat().st_size < size:
            raise StorageChanged(tr("{source}: shrank while it was read", source=source))
        return copy


def _read(original: BinaryIO, source: str) -> bytes:
    """Read on in a file of the source, with its errors told apart from those of the copy."""
    try:
        return original.read(CHUNK_BYTES)
    except OSError as error:
        raise StorageDamaged(f"{source}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    return str(error.facts["reason"]) if isinstance(error, SourceUnreadable) else error.strerror or str(error)


def _scan_log(path: Path, wanted: Wanted, take: Callable[[Record], None]) -> tuple[int, int | None]:
    """Give the wanted records of a log to ``take``.

    Returns:
        How many damaged places were passed over, and the lowest sequence number in it (None: it holds no record).
    """
    malformed = 0
    oldest: int | None = None
    with path.open("rb") as file:
        log = LogReader(file)
        for batch in log:
            try:
                records = batch_records(batch, wanted.holds)
            except Malformed:
                malformed += 1
                continue
            oldest = min(batch_sequence(batch), _MAX_SEQUENCE if oldest is None else oldest)
            for record in records:
                take(record)
    passed_over = log.passed_over + malformed + log.is_cut_off
    # A program that is killed leaves a record behind, or nothing at all; never a log of something else.
    is_lost = oldest is None and not passed_over and path.stat().st_size > 0
    return passed_over + is_lost, oldest
