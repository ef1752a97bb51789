"""Reads a LevelDB directory: the newest record of each wanted key (``docs/formats/chromium.md``, "LevelDB").

Files of the source are only opened to copy them: the logs, and one after the other those tables whose key range
contains wanted keys.
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

from regraft.disk import durable, scratch
from regraft.disk.trees import CHUNK_BYTES, Tree, join_path
from regraft.errors import SourceUnreadable
from regraft.identity import replace
from regraft.language import tr

# Errors, and bounds-checked reading of bytes.


T = TypeVar("T")


class StorageDamaged(Exception):
    """Chromium storage cannot be read; the message says what and where."""


class StorageChanged(StorageDamaged):
    """A file vanished or changed during reading: a running application is writing."""


class MalformedStorage(Exception):
    """Bytes violate their format. Not raised outside of this package.

    The message gives the reason, but not the file.
    """


@dataclass(frozen=True)
class StorageResult(Generic[T]):
    """A value, and the number of damaged parts that were skipped while reading it."""

    value: T
    #: Damaged parts of logs, of the MANIFEST, of older tables and of other values. A skipped part of a log may have
    #: held a newer value.
    passed_over: int


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a little-endian base-128 number; return it and the offset after it.

    Raises:
        MalformedStorage: the number is truncated, or exceeds 64 bits.
    """
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise MalformedStorage(tr("a number is truncated"))
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, at
        shift += 7
    raise MalformedStorage(tr("a number of more than 64 bits"))


class ByteReader:
    """Reads bytes sequentially; never reads past the end."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    @property
    def left(self) -> int:
        """Number of remaining bytes."""
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes.

        Raises:
            MalformedStorage: not enough bytes are left.
        """
        start, end = self.at, self.at + count
        if end > len(self.data):
            raise MalformedStorage(
                tr("{count:,} bytes are expected and {left:,} are left", count=count, left=self.left)
            )
        self.at = end
        return self.data[start:end]

    def skip(self, count: int) -> None:
        """Skip the next ``count`` bytes.

        Raises:
            MalformedStorage: not enough bytes are left.
        """
        if count > self.left:
            raise MalformedStorage(
                tr("{count:,} bytes are expected and {left:,} are left", count=count, left=self.left)
            )
        self.at += count

    def byte(self) -> int:
        """Return the next byte.

        Raises:
            MalformedStorage: no byte is left.
        """
        if self.at >= len(self.data):
            raise MalformedStorage(tr("a byte is missing"))
        self.at += 1
        return self.data[self.at - 1]

    def number(self) -> int:
        """Return the next varint.

        Raises:
            MalformedStorage: no byte is left.
        """
        value, self.at = read_varint(self.data, self.at)
        return value

    def length_prefixed(self) -> bytes:
        """Return the next length-prefixed bytes.

        Raises:
            MalformedStorage: not enough bytes are left.
        """
        return self.take(self.number())


# Logs: records in blocks of 32 KiB, and the write batches in them (``docs/formats/chromium.md``, "Logs").


BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
_BATCH_HEADER = struct.Struct("<QI")
_ZERO, _FULL, _FIRST, _MIDDLE, _LAST = range(5)
DELETED, PUT = 0, 1


class Record(NamedTuple):
    """A record of a LevelDB; ``value`` is None if it deletes its key."""

    key: bytes
    sequence: int
    value: bytes | None


def mask_checksum(checksum: int) -> int:
    """Return a CRC-32C in the masked form that LevelDB stores."""
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


class LogReader:
    """Iterates over the records of a log in write order, one at a time.

    A truncated end, as a killed program or an incomplete copy leaves it, is ignored (:attr:`is_cut_off`). Damage
    elsewhere skips the rest of its block and is counted in :attr:`passed_over`.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        #: Number of damaged parts; final after the last record.
        self.passed_over = 0
        self._parts: list[bytes] | None = None
        #: After damage, the remaining fragments of a lost record are not counted again.
        self._resyncing = False
        #: Zeros were found instead of a record: preallocated space, unless records follow.
        self._zeros = False
        #: Whether the last record is incomplete; final after the last record.
        self.is_cut_off = False

    def __iter__(self) -> Iterator[bytes]:
        while block := self._file.read(BLOCK_BYTES):
            yield from self._in_block(block)
        self.is_cut_off = self.is_cut_off or self._parts is not None

    def _in_block(self, block: bytes) -> Iterator[bytes]:
        """Verify the checksums in a block and yield the complete records that end in it."""
        at = 0
        while len(block) - at >= _HEADER.size:
            checksum, length, kind = _HEADER.unpack_from(block, at)
            end = at + _HEADER.size + length
            if kind == _ZERO and length == 0:
                # Zeros up to the end are preallocated space; with something after them they are damage.
                self._zeros = True
                if block[at:].strip(b"\0"):
                    self._damage()
                return
            if end > len(block):
                self._handle_overrun(block, at)
                return
            if mask_checksum(crc32c.crc32c(block[at + 6 : end])) != checksum:
                self._damage()
                return
            if self._zeros:
                self._damage()
            record = self._add_fragment(kind, block[at + _HEADER.size : end])
            if record is not None:
                yield record
            at = end
        # After a complete record, a full block may end with a few zeros.
        self.is_cut_off = len(block) < BLOCK_BYTES and bool(block[at:].strip(b"\0"))

    def _handle_overrun(self, block: bytes, at: int) -> None:
        """Treat the fragment at an offset, which exceeds its block, as the log's truncated end, or as damage.

        It is damage if its header is invalid, or if complete fragments follow.
        """
        _, length, kind = _HEADER.unpack_from(block, at)
        is_valid = len(block) < BLOCK_BYTES and at + _HEADER.size + length <= BLOCK_BYTES and _FULL <= kind <= _LAST
        rest = range(at + 1, len(block) - _HEADER.size)
        if not self._zeros and is_valid and not any(_is_complete_fragment(block, later) for later in rest):
            self.is_cut_off = True
        else:
            self._damage()

    def _damage(self) -> None:
        """Count a damaged part and skip to the next record."""
        self.passed_over += 1
        self._parts, self._resyncing, self._zeros = None, True, False

    def _add_fragment(self, kind: int, part: bytes) -> bytes | None:
        """Add a fragment of a record (``kind``: first, middle, last or whole).

        Return the record that it completes, or None.
        """
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


def _is_complete_fragment(block: bytes, at: int) -> bool:
    """Whether the log fragment at an offset of a block is complete and has the right checksum."""
    if not _FULL <= block[at + 6] <= _LAST:
        return False
    checksum, length, _ = _HEADER.unpack_from(block, at)
    end = at + _HEADER.size + length
    return end <= len(block) and mask_checksum(crc32c.crc32c(block[at + 6 : end])) == int(checksum)


def batch_records(batch: bytes, holds: Callable[[bytes], bool]) -> list[Record]:
    """Return the records of a write batch whose keys ``holds`` accepts.

    Raises:
        MalformedStorage: the bytes are not a complete write batch.
    """
    if len(batch) < _BATCH_HEADER.size:
        raise MalformedStorage(tr("a write batch is too short"))
    sequence, count = _BATCH_HEADER.unpack_from(batch)
    data = ByteReader(batch, _BATCH_HEADER.size)
    found: list[Record] = []
    taken = 0
    while data.left:
        kind = data.byte()
        if kind not in (DELETED, PUT):
            raise MalformedStorage(tr("a write batch contains a record of unknown type {kind}", kind=kind))
        key = data.length_prefixed()
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
        raise MalformedStorage(
            tr("a write batch states {count:,} records and contains {taken:,}", count=count, taken=taken)
        )
    return found


# Tables: sorted records in blocks with checksums and an index (``docs/formats/chromium.md``, "Tables").


MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
FOOTER_BYTES = 48
#: Compression type and checksum after each block.
TRAILER_BYTES = 5
RAW, SNAPPY, ZSTD = 0, 1, 2
#: Bytes of the sequence number and the type at the end of each key.
_MARK_BYTES = 8
#: Maximum compression ratio of Snappy: 64 bytes from 3.
_SNAPPY_RATIO = 22
_SNAPPY_SLACK = 64


class KeyFilter(Protocol):
    """Selects the keys to read."""

    def may_hold(self, low: bytes | None, high: bytes | None) -> bool:
        """Whether a selected key can lie between ``low`` and ``high`` (both included); None is unbounded."""

    def holds(self, key: bytes) -> bool:
        """Whether this filter selects a key."""


class _Handle(NamedTuple):
    """Location of a block in its file, in bytes, without its trailer."""

    offset: int
    size: int


def decompress_snappy(packed: bytes) -> bytes:
    """Decompress Snappy's raw format.

    Raises:
        MalformedStorage: the data are damaged, or state an impossible size.
    """
    size, _ = read_varint(packed, 0)
    if size > _SNAPPY_RATIO * len(packed) + _SNAPPY_SLACK:
        raise MalformedStorage(
            tr("{packed:,} compressed bytes state a size of {size:,}", packed=len(packed), size=size)
        )
    try:
        return bytes(cramjam.snappy.decompress_raw(packed))
    except Exception as error:  # cramjam's own error has no stable place to be imported from
        raise MalformedStorage(tr("compressed data are damaged: {error}", error=error)) from error


def user_key(internal: bytes) -> bytes:
    """Return a key without the sequence number and type that LevelDB appends.

    Raises:
        MalformedStorage: the key is too short.
    """
    if len(internal) < _MARK_BYTES:
        raise MalformedStorage(tr("a key is too short"))
    return internal[:-_MARK_BYTES]


class TableReader:
    """Reads a table file.

    Raises:
        MalformedStorage: the footer or the index is damaged.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        if size < FOOTER_BYTES:
            raise MalformedStorage(tr("too short for a table"))
        footer = ByteReader(self._read(size - FOOTER_BYTES, FOOTER_BYTES))
        if not footer.data.endswith(MAGIC):
            raise MalformedStorage(tr("the footer is not that of a table"))
        _read_handle(footer)  # the filter block, which is not needed
        self._index = [
            (user_key(key), _read_handle(ByteReader(value)))
            for key, value in _iterate_entries(self._read_block(_read_handle(footer)))
        ]

    def records(self, is_wanted: KeyFilter) -> Iterator[Record]:
        """Yield the selected records in table order, with all versions of each key.

        Raises:
            MalformedStorage: a block that may contain a selected key is damaged.
        """
        low: bytes | None = None
        for high, handle in self._index:
            if is_wanted.may_hold(low, high):
                for internal, value in _iterate_entries(self._read_block(handle)):
                    key = user_key(internal)
                    if is_wanted.holds(key):
                        yield _record(key, internal, value)
            low = high

    def _read(self, offset: int, size: int) -> bytes:
        """Read ``size`` bytes at an offset of the table. Raise MalformedStorage if it ends before."""
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) != size:
            raise MalformedStorage(tr("ends before byte {offset:,}", offset=offset + size))
        return data

    def _read_block(self, handle: _Handle) -> bytes:
        """Read, verify and decompress the block at a location. Raise MalformedStorage if it is damaged."""
        if handle.offset + handle.size + TRAILER_BYTES > self._size:
            raise MalformedStorage(tr("a block at byte {offset:,} reaches past the end", offset=handle.offset))
        data = self._read(handle.offset, handle.size + TRAILER_BYTES)
        (checksum,) = struct.unpack_from("<I", data, handle.size + 1)
        if mask_checksum(crc32c.crc32c(memoryview(data)[:-4])) != checksum:
            raise MalformedStorage(tr("the block at byte {offset:,} fails its checksum", offset=handle.offset))
        kind, block = data[handle.size], data[: handle.size]
        if kind == RAW:
            return block
        if kind == SNAPPY:
            return decompress_snappy(block)
        how = tr("with zstd") if kind == ZSTD else tr("in an unknown way ({kind})", kind=kind)
        raise MalformedStorage(
            tr(
                "the block at byte {offset:,} is compressed {how}, which is not supported",
                offset=handle.offset,
                how=how,
            )
        )


def _read_handle(data: ByteReader) -> _Handle:
    """Read the location of a block."""
    return _Handle(data.number(), data.number())


def _iterate_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block; keys are prefix-compressed."""
    if len(block) < 4:
        raise MalformedStorage(tr("a block is too short"))
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 - 4 * restarts
    if end < 0:
        raise MalformedStorage(tr("a block has more restarts than bytes"))
    at = 0
    key = b""
    while at < end:
        shared, at = read_varint(block, at)
        added, at = read_varint(block, at)
        length, at = read_varint(block, at)
        if shared > len(key) or at + added + length > end:
            raise MalformedStorage(tr("an entry reaches past its block"))
        key = key[:shared] + block[at : at + added]
        at += added
        yield key, block[at : at + length]
        at += length


def _record(key: bytes, internal: bytes, value: bytes) -> Record:
    """Make a record from a key, the same key with its sequence number and type (``internal``), and the value."""
    mark = int.from_bytes(internal[-_MARK_BYTES:], "little")
    if mark & 0xFF not in (DELETED, PUT):
        raise MalformedStorage(tr("a key has the unknown type {mark}", mark=mark & 255))
    return Record(key, mark >> 8, value if mark & 0xFF == PUT else None)


# The MANIFEST: which tables and logs are current (``docs/formats/chromium.md``, "Which files count").


_COMPARATOR, _LOG, _NEXT_FILE, _LAST_SEQUENCE, _COMPACT, _REMOVED, _ADDED = range(1, 8)
_PREVIOUS_LOG = 9


class TableFile(msgspec.Struct, frozen=True):
    """A current table: number, smallest and largest key (included), and its newest sequence number."""

    number: int
    smallest: bytes | None = None
    largest: bytes | None = None
    #: Upper bound of its sequence numbers; None if unknown.
    last_sequence: int | None = None


class ManifestState(msgspec.Struct):
    """The files of a database after all edits in its MANIFEST, LevelDB's log of added and removed files."""

    comparator: str | None = None
    log: int = 0
    previous_log: int = 0
    #: Key: level and number. A table that moves to another level is removed from one and added to the other.
    tables: dict[tuple[int, int], TableFile] = msgspec.field(default_factory=dict)
    #: Tables added since the last edit that stated a sequence number.
    undated: set[tuple[int, int]] = msgspec.field(default_factory=set)

    def exchange(self, removed: list[tuple[int, int]], added: list[tuple[tuple[int, int], TableFile]]) -> None:
        """Remove tables, given by level and number, then add others."""
        for key in removed:
            self.tables.pop(key, None)
        self.tables.update(added)
        self.undated.update(key for key, _ in added)

    def date(self, last_sequence: int) -> None:
        """Set the upper bound of the sequence numbers of the tables added since the last call.

        An edit of the MANIFEST states the latest sequence number at its time.
        """
        for key in self.undated & self.tables.keys():
            self.tables[key] = replace(self.tables[key], last_sequence=last_sequence)
        self.undated.clear()


def read_manifest(file: BinaryIO) -> ManifestState:
    """Apply the edits in a MANIFEST file one after the other, and return the resulting state.

    Raises:
        MalformedStorage: the MANIFEST is empty, or damaged elsewhere than at a truncated end.
    """
    version = ManifestState()
    log = LogReader(file)
    edits = 0
    for edit in log:
        _apply_edit(version, ByteReader(edit))
        edits += 1
    if log.passed_over:
        raise MalformedStorage("damaged")
    if not edits:
        raise MalformedStorage("empty")
    return version


def _apply_edit(version: ManifestState, edit: ByteReader) -> None:
    """Apply one edit of a MANIFEST to the state: added and removed tables, numbers of logs."""
    removed: list[tuple[int, int]] = []
    added: list[tuple[tuple[int, int], TableFile]] = []
    last_sequence: int | None = None
    while edit.left:
        tag = edit.number()
        if tag == _COMPARATOR:
            version.comparator = edit.length_prefixed().decode("latin-1")
        elif tag == _LOG:
            version.log = edit.number()
        elif tag == _PREVIOUS_LOG:
            version.previous_log = edit.number()
        elif tag == _LAST_SEQUENCE:
            last_sequence = edit.number()
        elif tag == _REMOVED:
            removed.append((edit.number(), edit.number()))
        elif tag == _ADDED:
            level, number, _size = edit.number(), edit.number(), edit.number()
            added.append(
                ((level, number), TableFile(number, user_key(edit.length_prefixed()), user_key(edit.length_prefixed())))
            )
        else:
            _skip_field(tag, edit)
    version.exchange(removed, added)
    if last_sequence is not None:
        version.date(last_sequence)


def _skip_field(tag: int, edit: ByteReader) -> None:
    """Skip the field with this tag in an edit of a MANIFEST."""
    if tag == _NEXT_FILE:
        edit.number()
    elif tag == _COMPACT:
        edit.number()
        edit.length_prefixed()
    else:
        raise MalformedStorage(tr("contains an edit of unknown type {tag}", tag=tag))


#: Seconds to wait before each further attempt, after a running application changed the files.
PAUSES = (0.05, 0.1, 0.25, 0.5, 1.0)
_FILE_NAME = re.compile(r"([0-9]{1,20})\.(log|ldb|sst)", re.ASCII)
_MANIFEST_NAME = re.compile(rb"(MANIFEST-[0-9]{1,20})\n?")
_CURRENT_BYTES = 64
#: Maximum sequence number.
_MAX_SEQUENCE = (1 << 56) - 1


def read_leveldb(
    tree: Tree, folder: str, comparator: str, work: Path, read: Callable[[LevelDb], T]
) -> StorageResult[T]:
    """Return what ``read`` returns for the LevelDB in ``folder``. Retry if its files change during the call.

    ``comparator`` is the required name of the key order. Copies are made in a temporary directory below ``work``.

    Raises:
        StorageDamaged: a current file is missing, or damaged where selected records may be.
        StorageChanged: the files changed on every attempt.
        OSError: I/O error, or ``work`` cannot be written.
    """
    for pause in (0.0, *PAUSES):
        time.sleep(pause)
        with scratch.temporary_folder(work) as copies:
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
                return StorageResult(value, database.passed_over)
    raise StorageChanged(
        tr("{folder}: the files keep changing while they are read; quit the application first", folder=folder)
    )


class LevelDb:
    """A LevelDB that is read through copies of its files; see :func:`read_leveldb`."""

    def __init__(self, tree: Tree, folder: str, copies: Path) -> None:
        self.tree = tree
        self.folder = folder
        self._copies = copies
        self._state = self._fingerprint()
        self._tables: list[TableFile] = []
        #: File names of tables by number; copies of the current logs.
        self._table_names: dict[int, str] = {}
        self._logs: list[Path] = []
        #: Largest number of damaged parts found in one scan of the logs.
        self._in_logs = 0
        #: Other skipped parts: MANIFEST, latest log, tables, values.
        self._missing: set[str] = set()
        #: Lowest sequence number in the logs; None until a record was read.
        self._oldest_in_logs: int | None = None
        self._has_manifest = True

    @property
    def passed_over(self) -> int:
        """Number of damaged parts skipped so far."""
        return self._in_logs + len(self._missing)

    @property
    def is_blank(self) -> bool:
        """Whether the database had no table and no record in its logs. Known after a scan."""
        return not self._tables and self._oldest_in_logs is None

    def pass_over(self, what: str) -> None:
        """Count a skipped damaged part. ``what`` describes it; the same part counts once."""
        self._missing.add(what)

    def open(self, comparator: str) -> None:
        """Find the current files and copy the logs.

        Raises:
            StorageDamaged: the keys are in another order than ``comparator``, or a log cannot be read.
        """
        version = self._read_manifest()
        logs = self._find_files()
        if version is None:
            # Without a MANIFEST all tables are used. Deleted records may reappear, which is better than no records.
            self._has_manifest = False
            self.pass_over("MANIFEST")
            self._tables = [TableFile(number) for number in sorted(self._table_names)]
        else:
            if version.comparator != comparator:
                raise StorageDamaged(
                    tr(
                        "{folder}: the keys are in the order {comparator}, not {comparator2}",
                        folder=self.folder,
                        comparator=version.comparator,
                        comparator2=comparator,
                    )
                )
            self._tables = list(version.tables.values())
            logs = {n: name for n, name in logs.items() if n >= version.log or n == version.previous_log}
            # A log exists before the MANIFEST names it, so the most recent records were in a log that is missing.
            if version.log and version.log not in logs:
                self.pass_over("log")
        self._logs = [self._copy(logs[number]) for number in sorted(logs)]

    def _find_files(self) -> dict[int, str]:
        """Find the tables of the database, and return the logs by number. ``.ldb`` takes precedence over ``.sst``."""
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
        is_wanted: KeyFilter,
        keep: Callable[[bytes, bytes], bytes] | None = None,
        is_answer: Callable[[Record], bool] | None = None,
    ) -> dict[bytes, Record]:
        """Return the newest record of each wanted key, including deletions.

        ``keep`` may shorten a value (given key and value) when it is read, to save memory. ``is_answer`` tells which
        records alone answer the request: an unreadable table is skipped if such a record is newer than everything in
        the table (``docs/formats/chromium.md``, "How old a table is"). Records that are not newer are then omitted,
        since the table may hold newer ones.

        Raises:
            StorageDamaged: a table is missing, or damaged where selected records may be.
            StorageChanged: a file vanished or shrank.
        """
        newest: dict[bytes, Record] = {}
        unread: dict[TableFile, StorageDamaged] = {}

        def take(record: Record) -> None:
            """Keep the record if it is the newest of its key."""
            known = newest.get(record.key)
            if known is None or known.sequence < record.sequence:
                if keep is not None and record.value is not None:
                    record = record._replace(value=keep(record.key, record.value))
                newest[record.key] = record

        for table in self._tables:
            if is_wanted.may_hold(table.smallest, table.largest):
                try:
                    self._scan_table(table, is_wanted, take)
                except StorageChanged:
                    raise
                except StorageDamaged as problem:
                    if is_answer is None:
                        raise
                    unread[table] = problem
        self._scan_logs(is_wanted, take)
        if is_answer is not None and unread:
            return self._newer_than(unread, newest, is_answer)
        return newest

    def has_changed(self) -> bool:
        """Whether the set of files has changed since opening; a longer log is not a change."""
        return self._fingerprint() != self._state

    def _newer_than(
        self, unread: dict[TableFile, StorageDamaged], newest: dict[bytes, Record], is_answer: Callable[[Record], bool]
    ) -> dict[bytes, Record]:
        """Return the records that are newer than all tables that cannot be read.

        ``newest`` has the newest record found of each key, ``unread`` the error of each such table.

        Raises:
            StorageDamaged: none of the remaining records answers the request.
        """
        # Current logs are newer than all tables: a log becomes obsolete when its records are in a table.
        before_logs = None if self._oldest_in_logs is None else self._oldest_in_logs - 1
        for table, problem in unread.items():
            bounds = (table.last_sequence, before_logs) if self._has_manifest else ()
            limit = min((bound for bound in bounds if bound is not None), default=_MAX_SEQUENCE)
            newest = {key: record for key, record in newest.items() if record.sequence > limit}
            if not any(map(is_answer, newest.values())):
                raise problem
            self.pass_over(f"{table.number}")
        return newest

    def _scan_logs(self, is_wanted: KeyFilter, take: Callable[[Record], None]) -> None:
        """Call ``take`` with each wanted record of the logs, and count damaged parts."""
        passed_over = 0
        for path in self._logs:
            oldest: int | None = None
            with path.open("rb") as file:
                log = LogReader(file)
                damaged = 0
                for batch in log:
                    try:
                        records = batch_records(batch, is_wanted.holds)
                    except MalformedStorage:
                        damaged += 1
                        continue
                    # The number of the batch's first record.
                    oldest = min(int(_BATCH_HEADER.unpack_from(batch)[0]), _MAX_SEQUENCE if oldest is None else oldest)
                    for record in records:
                        take(record)
            damaged += log.passed_over + log.is_cut_off
            # A killed program leaves at least one record or an empty file; anything else means that records were lost.
            passed_over += damaged + (oldest is None and not damaged and path.stat().st_size > 0)
            if oldest is not None:
                self._oldest_in_logs = min(
                    oldest, _MAX_SEQUENCE if self._oldest_in_logs is None else self._oldest_in_logs
                )
        self._in_logs = max(self._in_logs, passed_over)

    def _scan_table(self, table: TableFile, is_wanted: KeyFilter, take: Callable[[Record], None]) -> None:
        """Call ``take`` with each wanted record of a table.

        Raises:
            StorageDamaged: its file is missing or damaged.
        """
        name = self._table_names.get(table.number)
        if name is None:
            raise StorageDamaged(
                tr(
                    "{folder}: the file is missing but still referenced",
                    folder=join_path(self.folder, f"{table.number:06}.ldb"),
                )
            )
        copy = self._copy(name)
        try:
            with copy.open("rb") as file:
                opened = self._open_table(file, copy.stat().st_size, name)
                if opened is not None:
                    for record in opened.records(is_wanted):
                        take(record)
        except MalformedStorage as error:
            raise StorageDamaged(f"{join_path(self.folder, name)}: {error}") from error
        finally:
            durable.remove(copy, missing_ok=True)

    def _open_table(self, file: BinaryIO, size: int, name: str) -> TableReader | None:
        """Open a table whose file has this size and name. None if it has no valid end and there is no MANIFEST."""
        try:
            return TableReader(file, size)
        except MalformedStorage:
            if self._has_manifest:
                raise
            self.pass_over(name)
            return None

    def _fingerprint(self) -> tuple[bytes | None, int | None]:
        """Return the content of CURRENT and the size of its MANIFEST. Both change with the set of files."""
        try:
            with self.tree.open(join_path(self.folder, "CURRENT")) as file:
                current = file.read(_CURRENT_BYTES)
            match = _MANIFEST_NAME.fullmatch(current)
            return current, self.tree.size(join_path(self.folder, match[1].decode())) if match else None
        except OSError:
            return None, None

    def _read_manifest(self) -> ManifestState | None:
        """Read the MANIFEST; None if it or CURRENT is missing or unreadable."""
        match = _MANIFEST_NAME.fullmatch(self._state[0] or b"")
        if match is None or self._state[1] is None:
            return None
        try:
            copy = self._copy(match[1].decode())
            with copy.open("rb") as file:
                return read_manifest(file)
        except StorageChanged:
            raise
        except (MalformedStorage, StorageDamaged):
            return None

    def _copy(self, name: str) -> Path:
        """Copy the file with this name and return the path of the copy.

        Raises:
            StorageChanged: the file vanished or shrank during the copy.
            StorageDamaged: the file cannot be read.
            OSError: the copy cannot be written.
        """
        source, copy = join_path(self.folder, name), self._copies / name
        try:
            size = self.tree.size(source)
            original = self.tree.open(source)
        except OSError as error:
            if name not in self.tree.children(self.folder):
                raise StorageChanged(tr("{source}: vanished while it was read", source=source)) from error
            raise StorageDamaged(f"{source}: {_describe_error(error)}") from error
        with original, durable.open_binary(copy, "wb") as target:
            while chunk := _read(original, source):
                target.write(chunk)
        if copy.stat().st_size < size:
            raise StorageChanged(tr("{source}: shrank while it was read", source=source))
        return copy


def _read(original: BinaryIO, source: str) -> bytes:
    """Read a chunk of a file of the ``source``. Errors name the source, unlike errors of writing the copy."""
    try:
        return original.read(CHUNK_BYTES)
    except OSError as error:
        raise StorageDamaged(f"{source}: {_describe_error(error)}") from error


def _describe_error(error: OSError) -> str:
    """Return the system's message for an error, or its text."""
    return str(error.facts["reason"]) if isinstance(error, SourceUnreadable) else error.strerror or str(error)
