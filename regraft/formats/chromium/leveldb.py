"""A LevelDB folder of a source: which of its files count, and the newest record of each wanted key.

The rules are in ``docs/formats/chromium.md``, "LevelDB". Nothing of the source is opened but for copying it: only the
logs, and those tables whose range of keys meets what is wanted, one after the other.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Generic, NamedTuple, Protocol, TypeVar

import cramjam
import crc32c
import msgspec

from regraft.disk import durable
from regraft.disk.trees import CHUNK_BYTES, Tree, join_path
from regraft.errors import SourceUnreadable
from regraft.identity import replace
from regraft.language import tr

# What is said of Chromium storage that cannot be read, and how bytes are read with care.
#
# Chromium's storage is written by a program that may have been killed, on a disk that may have failed: every reader of
# this package takes its bytes from :class:`Bytes`, which never reads past an end.


T = TypeVar("T")


class StorageDamaged(Exception):
    """Chromium storage that cannot be read; the text says what and where, for a person."""


class StorageChanged(StorageDamaged):
    """A file vanished or changed while it was read: a running application is writing."""


class Malformed(Exception):
    """Bytes that are not what their format says. Stays within this package: it becomes one of the others, or a count.

    The text says what is wrong, not in which file.
    """


@dataclass(frozen=True)
class Found(Generic[T]):
    """What was read, and how many damaged places were passed over on the way."""

    value: T
    #: Places in logs, a MANIFEST, older tables and values of others that could not be read. What stood in a log or
    #: was deleted since may have been newer than what was found.
    passed_over: int


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of 7 bits to the byte, lowest first; return it and where it ends.

    Raises:
        Malformed: it does not end, or needs more than 64 bits.
    """
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise Malformed(tr("a number is cut off"))
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, at
        shift += 7
    raise Malformed(tr("a number of more than 64 bits"))


class Bytes:
    """Bytes with a place in them from which the next thing is read."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    @property
    def left(self) -> int:
        """How many bytes are left."""
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes.

        Raises:
            Malformed: there are fewer.
        """
        start, end = self.at, self.at + count
        if end > len(self.data):
            raise Malformed(tr("{count:,} bytes are announced and {left:,} are there", count=count, left=self.left))
        self.at = end
        return self.data[start:end]

    def skip(self, count: int) -> None:
        """Pass over the next ``count`` bytes.

        Raises:
            Malformed: there are fewer.
        """
        if count > self.left:
            raise Malformed(tr("{count:,} bytes are announced and {left:,} are there", count=count, left=self.left))
        self.at += count

    def byte(self) -> int:
        """Return the next byte.

        Raises:
            Malformed: there is none.
        """
        if self.at >= len(self.data):
            raise Malformed(tr("a byte is missing"))
        self.at += 1
        return self.data[self.at - 1]

    def number(self) -> int:
        """Return the next number (:func:`varint`).

        Raises:
            Malformed: there is none.
        """
        value, self.at = varint(self.data, self.at)
        return value

    def sized(self) -> bytes:
        """Return the next bytes, which have their count before them.

        Raises:
            Malformed: there are fewer.
        """
        return self.take(self.number())


# LevelDB's log format: records in blocks of 32 KiB, and the write batches in them.
#
# The rules are in ``docs/formats/chromium.md``, "Logs". A log is streamed; one record is held at a time.


BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
_BATCH_HEADER = struct.Struct("<QI")
_ZERO, _FULL, _FIRST, _MIDDLE, _LAST = range(5)
DELETED, PUT = 0, 1


class Record(NamedTuple):
    """One record of a LevelDB: ``value`` is None where it deletes its key."""

    key: bytes
    sequence: int
    value: bytes | None


def masked(checksum: int) -> int:
    """Return a CRC-32C the way LevelDB stores it."""
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


class LogReader:
    """The records of a log, in the order in which they were written.

    A cut-off end is what a killed program leaves, or half a copy: it is left out (:attr:`is_cut_off`). Damage elsewhere
    costs the rest of its block and is counted in :attr:`passed_over`.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        #: Damaged places so far; right after the last record was taken.
        self.passed_over = 0
        self._parts: list[bytes] | None = None
        #: After damage, parts of a record whose beginning was lost are no second damage.
        self._resyncing = False
        #: Zeros where a record should be: an end that was only reserved, unless something follows.
        self._zeros = False
        #: Whether the last record is not whole; right after the last whole one was taken.
        self.is_cut_off = False

    def __iter__(self) -> Iterator[bytes]:
        while block := self._file.read(BLOCK_BYTES):
            yield from self._in_block(block)
        self.is_cut_off = self.is_cut_off or self._parts is not None

    def _in_block(self, block: bytes) -> Iterator[bytes]:
        at = 0
        while len(block) - at >= _HEADER.size:
            checksum, length, kind = _HEADER.unpack_from(block, at)
            end = at + _HEADER.size + length
            if kind == _ZERO and length == 0:
                # Zeros up to the end were reserved and never written; with something after them they are damage.
                self._zeros = True
                if block[at:].strip(b"\0"):
                    self._damage()
                return
            if end > len(block):
                self._end_within_part(block, at)
                return
            if masked(crc32c.crc32c(block[at + 6 : end])) != checksum:
                self._damage()
                return
            if self._zeros:
                self._damage()
            record = self._joined(kind, block[at + _HEADER.size : end])
            if record is not None:
                yield record
            at = end
        # Between whole records only the end of a whole block is left over, and that is zeros.
        self.is_cut_off = len(block) < BLOCK_BYTES and bool(block[at:].strip(b"\0"))

    def _end_within_part(self, block: bytes, at: int) -> None:
        """Take a part that reaches past its block as the log's cut-off end, or as damage."""
        if not self._zeros and _is_cut_off(block, at):
            self.is_cut_off = True
        else:
            self._damage()

    def _damage(self) -> None:
        self.passed_over += 1
        self._parts, self._resyncing, self._zeros = None, True, False

    def _joined(self, kind: int, part: bytes) -> bytes | None:
        """Return the record that ``part`` completes, None where it does not complete one."""
        if kind in (_FULL, _FIRST):
            if self._parts is not None:
                self.passed_over += 1
            self._resyncing = False
            self._parts = [part] if kind == _FIRST else None
            return part if kind == _FULL else None
        if kind not in (_MIDDLE, _LAST) or self._parts is None:
            if not self._resyncing:
                self._damage()
            return None
        self._parts.append(part)
        if kind == _MIDDLE:
            return None
        record, self._parts = b"".join(self._parts), None
        return record


def _is_cut_off(block: bytes, at: int) -> bool:
    """Tell whether a part that reaches past the end of the file can be one that was never written to its end.

    It cannot where its header makes no sense, or where whole parts come after it.
    """
    _, length, kind = _HEADER.unpack_from(block, at)
    if len(block) == BLOCK_BYTES or at + _HEADER.size + length > BLOCK_BYTES or not _FULL <= kind <= _LAST:
        return False
    return not any(_is_part(block, later) for later in range(at + 1, len(block) - _HEADER.size))


def _is_part(block: bytes, at: int) -> bool:
    if not _FULL <= block[at + 6] <= _LAST:
        return False
    checksum, length, _ = _HEADER.unpack_from(block, at)
    end = at + _HEADER.size + length
    return end <= len(block) and masked(crc32c.crc32c(block[at + 6 : end])) == int(checksum)


def batch_sequence(batch: bytes) -> int:
    """Return the sequence number of a write batch's first record; :func:`batch_records` must have taken the batch."""
    return int(_BATCH_HEADER.unpack_from(batch)[0])


def batch_records(batch: bytes, holds: Callable[[bytes], bool]) -> list[Record]:
    """Return those records of a write batch whose keys ``holds`` wants.

    Raises:
        Malformed: it is no write batch, as a whole.
    """
    if len(batch) < _BATCH_HEADER.size:
        raise Malformed(tr("a write batch is too short"))
    sequence, count = _BATCH_HEADER.unpack_from(batch)
    data = Bytes(batch, _BATCH_HEADER.size)
    found: list[Record] = []
    taken = 0
    while data.left:
        kind = data.byte()
        if kind not in (DELETED, PUT):
            raise Malformed(tr("a write batch holds a record of unknown type {kind}", kind=kind))
        key = data.sized()
        wanted = holds(key)
        value: bytes | None = None
        if kind == PUT:
            length = data.number()
            if wanted:
                value = data.take(length)
            else:
                data.skip(length)
        if wanted:
            found.append(Record(key, sequence + taken, value))
        taken += 1
    if taken != count:
        raise Malformed(tr("a write batch announces {count:,} records and holds {taken:,}", count=count, taken=taken))
    return found


# LevelDB's table format: sorted records in checked blocks, found through an index.
#
# The rules are in ``docs/formats/chromium.md``, "Tables". Only the index and the blocks that may hold wanted keys are
# read, one block at a time.


MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
FOOTER_BYTES = 48
#: A block's type and checksum, after it.
TRAILER_BYTES = 5
RAW, SNAPPY, ZSTD = 0, 1, 2
#: What the sequence number and the type take at the end of a key.
_MARK_BYTES = 8
#: Snappy's densest form is 64 bytes out of 3.
_SNAPPY_RATIO = 22
_SNAPPY_SLACK = 64


class Wanted(Protocol):
    """Which keys a reader asks for."""

    def may_hold(self, low: bytes | None, high: bytes | None) -> bool:
        """Tell whether a wanted key can lie from ``low`` to ``high``, both included; None has no end on that side."""

    def holds(self, key: bytes) -> bool:
        """Tell whether a key is wanted."""


class _Handle(NamedTuple):
    """Where a block lies in its file, in bytes, without its trailer."""

    offset: int
    size: int


def unsnapped(packed: bytes) -> bytes:
    """Unpack Snappy's raw form, as blocks and IndexedDB's values have it.

    Raises:
        Malformed: it is damaged, or announces more than it can hold.
    """
    size, _ = varint(packed, 0)
    if size > _SNAPPY_RATIO * len(packed) + _SNAPPY_SLACK:
        raise Malformed(tr("{packed:,} packed bytes announce {size:,}", packed=len(packed), size=size))
    try:
        return bytes(cramjam.snappy.decompress_raw(packed))
    except Exception as error:  # cramjam's own error has no stable place to be imported from
        raise Malformed(tr("packed bytes are damaged: {error}", error=error)) from error


def user_key(internal: bytes) -> bytes:
    """Return the key without the sequence number and type that LevelDB appends to it.

    Raises:
        Malformed: it is too short for one.
    """
    if len(internal) < _MARK_BYTES:
        raise Malformed(tr("a key is too short"))
    return internal[:-_MARK_BYTES]


class Table:
    """One table file.

    Raises:
        Malformed: its end is not that of a table, or its index is damaged.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        if size < FOOTER_BYTES:
            raise Malformed(tr("too short for a table"))
        footer = Bytes(self._read(size - FOOTER_BYTES, FOOTER_BYTES))
        if not footer.data.endswith(MAGIC):
            raise Malformed(tr("does not end as a table does"))
        _handle(footer)  # of the filters, which are not needed
        self._index = [(user_key(key), _handle(Bytes(value))) for key, value in _entries(self._block(_handle(footer)))]

    def records(self, wanted: Wanted) -> Iterator[Record]:
        """Return the wanted records in the table's order, all versions of each key.

        Raises:
            Malformed: a block that may hold a wanted key is damaged.
        """
        low: bytes | None = None
        for high, handle in self._index:
            if wanted.may_hold(low, high):
                for internal, value in _entries(self._block(handle)):
                    key = user_key(internal)
                    if wanted.holds(key):
                        yield _record(key, internal, value)
            low = high

    def _read(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) != size:
            raise Malformed(tr("ends before byte {offset:,}", offset=offset + size))
        return data

    def _block(self, handle: _Handle) -> bytes:
        if handle.offset + handle.size + TRAILER_BYTES > self._size:
            raise Malformed(tr("a block at byte {offset:,} reaches past the end", offset=handle.offset))
        data = self._read(handle.offset, handle.size + TRAILER_BYTES)
        (checksum,) = struct.unpack_from("<I", data, handle.size + 1)
        if masked(crc32c.crc32c(memoryview(data)[:-4])) != checksum:
            raise Malformed(tr("the block at byte {offset:,} fails its checksum", offset=handle.offset))
        return _unpacked(data[handle.size], data[: handle.size], handle.offset)


def _unpacked(kind: int, data: bytes, offset: int) -> bytes:
    if kind == RAW:
        return data
    if kind == SNAPPY:
        return unsnapped(data)
    how = tr("with zstd") if kind == ZSTD else tr("in an unknown way ({kind})", kind=kind)
    raise Malformed(tr("the block at byte {offset:,} is packed {how}, which is not supported", offset=offset, how=how))


def _handle(data: Bytes) -> _Handle:
    return _Handle(data.number(), data.number())


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Return the keys and values of a block. A key has only what differs from the one before it."""
    if len(block) < 4:
        raise Malformed(tr("a block is too short"))
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 - 4 * restarts
    if end < 0:
        raise Malformed(tr("a block has more restarts than bytes"))
    at = 0
    key = b""
    while at < end:
        shared, at = varint(block, at)
        added, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or at + added + length > end:
            raise Malformed(tr("an entry reaches past its block"))
        key = key[:shared] + block[at : at + added]
        at += added
        yield key, block[at : at + length]
        at += length


def _record(key: bytes, internal: bytes, value: bytes) -> Record:
    mark = int.from_bytes(internal[-_MARK_BYTES:], "little")
    if mark & 0xFF not in (DELETED, PUT):
        raise Malformed(tr("a key has the unknown type {mark}", mark=mark & 255))
    return Record(key, mark >> 8, value if mark & 0xFF == PUT else None)


# LevelDB's MANIFEST: which tables and logs count (``docs/formats/chromium.md``, "Which files count").


_COMPARATOR, _LOG, _NEXT_FILE, _LAST_SEQUENCE, _COMPACT, _REMOVED, _ADDED = range(1, 8)
_PREVIOUS_LOG = 9


class TableFile(msgspec.Struct, frozen=True):
    """A table that counts: its number, the keys between which all of its keys lie, both included, and how new it is."""

    number: int
    smallest: bytes | None = None
    largest: bytes | None = None
    #: No record in it has a higher sequence number; None where that is not known.
    last_sequence: int | None = None


class Version(msgspec.Struct):
    """The state of a database: what the edits of a MANIFEST come to."""

    comparator: str | None = None
    log: int = 0
    previous_log: int = 0
    #: By level and number: a table that moves to another level is removed from one and added to the other.
    tables: dict[tuple[int, int], TableFile] = msgspec.field(default_factory=dict)
    #: Those that were added since an edit last stated the last sequence number.
    undated: set[tuple[int, int]] = msgspec.field(default_factory=set)

    def exchange(self, removed: list[tuple[int, int]], added: list[tuple[tuple[int, int], TableFile]]) -> None:
        """Drop tables, then add others."""
        for place in removed:
            self.tables.pop(place, None)
        self.tables.update(added)
        self.undated.update(place for place, _ in added)

    def date(self, last_sequence: int) -> None:
        """Note how new the tables so far can be: an edit states the last sequence number of all that was written."""
        for place in self.undated & self.tables.keys():
            self.tables[place] = replace(self.tables[place], last_sequence=last_sequence)
        self.undated.clear()


def read_manifest(file: BinaryIO) -> Version:
    """Replay a MANIFEST.

    Raises:
        Malformed: it is damaged anywhere but at a cut-off end, or holds no state at all.
    """
    version = Version()
    log = LogReader(file)
    edits = 0
    for edit in log:
        _apply(version, Bytes(edit))
        edits += 1
    if log.passed_over:
        raise Malformed("damaged")
    if not edits:
        raise Malformed("empty")
    return version


def _apply(version: Version, edit: Bytes) -> None:
    removed: list[tuple[int, int]] = []
    added: list[tuple[tuple[int, int], TableFile]] = []
    last_sequence: int | None = None
    while edit.left:
        tag = edit.number()
        if tag == _COMPARATOR:
            version.comparator = edit.sized().decode("latin-1")
        elif tag == _LOG:
            version.log = edit.number()
        elif tag == _PREVIOUS_LOG:
            version.previous_log = edit.number()
        elif tag == _LAST_SEQUENCE:
            last_sequence = edit.number()
        elif tag == _REMOVED:
            removed.append((edit.number(), edit.number()))
        elif tag == _ADDED:
            added.append(_added(edit))
        else:
            _pass_over(tag, edit)
    version.exchange(removed, added)
    if last_sequence is not None:
        version.date(last_sequence)


def _added(edit: Bytes) -> tuple[tuple[int, int], TableFile]:
    level, number, _size = edit.number(), edit.number(), edit.number()
    return (level, number), TableFile(number, user_key(edit.sized()), user_key(edit.sized()))


def _pass_over(tag: int, edit: Bytes) -> None:
    if tag == _NEXT_FILE:
        edit.number()
    elif tag == _COMPACT:
        edit.number()
        edit.sized()
    else:
        raise Malformed(tr("holds an edit of unknown type {tag}", tag=tag))


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
                tr("{folder}: missing, though it is in use", folder=join_path(self.folder, f"{table.number:06}.ldb"))
            )
        copy = self._copy(name)
        try:
            with copy.open("rb") as file:
                opened = self._table(file, copy.stat().st_size, name)
                if opened is not None:
                    for record in opened.records(wanted):
                        take(record)
        except Malformed as error:
            raise StorageDamaged(f"{join_path(self.folder, name)}: {error}") from error
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
            with self.tree.open(join_path(self.folder, "CURRENT")) as file:
                current = file.read(_CURRENT_BYTES)
            match = _MANIFEST_NAME.fullmatch(current)
            return current, self.tree.size(join_path(self.folder, match[1].decode())) if match else None
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
        source, copy = join_path(self.folder, name), self._copies / name
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
