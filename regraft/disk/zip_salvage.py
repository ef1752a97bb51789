"""Recover the intact members of a damaged zip archive by their local headers, without its directory.

An intact member unpacks, and matches the CRC-32 and size in its header or data descriptor. It is copied, still packed,
to a new archive. A damaged member is not copied, not even in part; it is reported by name. There is one exception: if
the archive ends inside a SQLite file, the pages before that point are copied, since such a file is salvaged page by
page. The new archive is then opened like any other, with all checks of :mod:`regraft.disk.zip_directory`. Layout:
"APPNOTE.TXT - .ZIP File Format Specification" (PKWARE), 4.3.7 and 4.3.9.
"""

from __future__ import annotations

import bz2
import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

import apsw
import msgspec

from regraft.disk import checksums, durable, sqlite
from regraft.disk.trees import require_free_space
from regraft.disk.zip_directory import BOMB_BYTES, BOMB_RATIO, LONGEST_NAME, MOST_DICTIONARY_BYTES, MOST_ENTRIES
from regraft.language import tr

#: A file with fewer bytes than this before its first member is still treated as a damaged archive.
MOST_LEADING = 1 << 20
#: Damaged members that are reported by name; of the others only the number is kept.
MOST_NAMED = 1_000
#: The first bytes of a file of which a part is worth something.
_SQLITE_MAGIC = b"SQLite format 3\0"
#: Bytes that may be read and unpacked for headers that yield no intact member: this many times the size of the archive,
#: and at least _LEAST_BUDGET. Forged headers could otherwise make every byte be read again and again.
_MOST_FAILED = 4
_LEAST_BUDGET = 256 << 20
_AT_ONCE = 1 << 20

_LOCAL = struct.Struct("<4s5H3L2H")
_LOCAL_MAGIC, _DESCRIPTOR_MAGIC, _ENTRY_MAGIC = b"PK\3\4", b"PK\7\x08", b"PK\1\2"
_ENTRY = struct.Struct("<4sBB5H3L5H2L")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_64 = struct.Struct("<4sLQL")
_END = struct.Struct("<4s4H2LH")
_IS_ENCRYPTED, _HAS_DESCRIPTOR = 0x1, 0x8
_ELSEWHERE = 0xFFFF_FFFF
_STORED, _DEFLATED, _BZIP2, _LZMA = 0, 8, 12, 14
#: All methods of the format (4.4.5): a member of one that is not unpacked here is reported, too.
_METHODS = frozenset((*range(11), 12, 14, 16, 18, 19, 20, *range(93, 100)))
_NEWEST_VERSION = 63
_EXTRA_64 = 1


class ZipSalvage(msgspec.Struct, kw_only=True):
    """The result: how many members were copied, and which were not."""

    whole: int = 0
    #: The name of the SQLite file inside which the archive ends, and how many of its bytes were copied.
    partial: tuple[str, int] | None = None
    #: Names of damaged members with the reason; at most :data:`MOST_NAMED`.
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    #: number of damaged members
    lost: int = 0


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """The local header of a member; sizes are None if only the data descriptor after the data states them."""

    flags: int
    method: int
    time: int
    date: int
    crc: int
    packed: int | None
    size: int | None
    raw_name: bytes
    #: offset of the member's packed data
    data: int

    @property
    def name(self) -> str:
        """The member's name, decoded."""
        return _decode_name(self.raw_name)


class _Broken(Exception):
    """A member is damaged; the message says why."""


class _CutOff(_Broken):
    """The archive ends inside the member."""


class _Unpacker(Protocol):
    """The common interface of the decompressors of zlib, bz2 and lzma."""

    @property
    def eof(self) -> bool:
        """Whether the end of the compressed data was reached."""

    @property
    def unused_data(self) -> bytes:
        """The bytes after the end of the compressed data."""

    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes:
        """Decompress more data; return at most ``max_length`` bytes."""


def looks_like_zip(path: Path) -> bool:
    """Whether a file has a local header of a zip member near its start."""
    with path.open("rb") as file:
        data = _File(file)
        place = data.find(_LOCAL_MAGIC, 0, MOST_LEADING)
        while place is not None and _read_header(data, place) is None:
            place = data.find(_LOCAL_MAGIC, place + len(_LOCAL_MAGIC), MOST_LEADING)
    return place is not None


def salvage_zip(path: Path, new: Path) -> ZipSalvage:
    """Copy the intact members of a damaged archive to a new one.

    Args:
        path: the archive; it is only read.
        new: the new archive; it must not exist yet.

    Raises:
        zipfile.BadZipFile: no member could be copied, or too much in it looks like a header and is not.
        OSError: it cannot be read, or the new archive cannot be written.
    """
    with path.open("rb") as file:
        checksums.refuse_sparse_file(file.fileno())
        if not path.stat().st_size:
            raise zipfile.BadZipFile(tr("it is empty"))
        data = _File(file)
        with (
            durable.open_binary(new, "xb") as target,
            durable.open_binary(new.with_name(f"{new.name}.directory"), "x+b") as directory,
            sqlite.open_scratch() as names,
        ):
            found = _Salvaging(data, new.parent, target, directory, names).run()
    if not found.whole and found.partial is None:
        raise zipfile.BadZipFile(tr("none of its members is intact"))
    return found


class _File:
    """The bytes of an open file, read as they are asked for."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, io.SEEK_END)

    def __len__(self) -> int:
        return self._size

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from offset ``start`` to ``end``; fewer if the file ends before that."""
        # The sizes of a damaged ZIP64 header lead further than a file can be sought in.
        self._file.seek(min(start, self._size))
        return self._file.read(max(min(end, self._size) - start, 0))

    def find(self, pattern: bytes, start: int = 0, end: int | None = None) -> int | None:
        """Return the first offset from ``start`` on, and before ``end``, at which ``pattern`` begins, or None."""
        limit = self._size if end is None else min(end, self._size)
        for place, length in _ranges(start, limit):
            found = self.read(place, place + length + len(pattern) - 1).find(pattern)
            if found >= 0:
                return place + found
        return None


def _ranges(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Split a range into (start, length) parts that grow, because most members are near and small."""
    length = 1 << 10
    while start < end:
        yield start, min(length, end - start)
        start, length = start + length, min(4 * length, _AT_ONCE)


class _Salvaging:
    """Copies the intact members of one archive. Single use."""

    def __init__(
        self, data: _File, folder: Path, target: BinaryIO, directory: BinaryIO, names: apsw.Connection
    ) -> None:
        self._data = data
        #: Names of copied members, in a database because there may be many.
        self._names = names
        names.execute("CREATE TABLE copied (name BLOB PRIMARY KEY) WITHOUT ROWID")
        self._size = len(data)
        self._target = target
        self._directory = directory
        self._folder = folder
        self._found = ZipSalvage()
        #: The first member that has no end and after which no intact member was found.
        self._cut: _Header | None = None
        #: offset after the last intact member
        self._end = 0
        self._budget = max(_LEAST_BUDGET, _MOST_FAILED * self._size)

    def run(self) -> ZipSalvage:
        """Copy every intact member to the target archive."""
        place = self._data.find(_LOCAL_MAGIC)
        while place is not None:
            header = _read_header(self._data, place)
            after = place + len(_LOCAL_MAGIC) if header is None else self._process(header)
            place = self._data.find(_LOCAL_MAGIC, after)
        if self._cut is not None:
            self._copy_beginning(self._cut)
        for name in _directory_names(self._data, self._end):
            if self._names.execute("SELECT 1 FROM copied WHERE name = ?", (name,)).get is None:
                self._record_lost(_decode_name(name), tr("only the archive's directory lists it"))
        self._finish()
        return self._found

    def _process(self, header: _Header) -> int:
        """Copy the member of a header if it is intact; return the offset at which the search for headers continues."""
        try:
            packed, size, crc, end = self._verify_member(header)
        except _Broken as broken:
            self._record_lost(header.name, str(broken))
            if isinstance(broken, _CutOff):
                self._cut = self._cut or header
            # Its data may contain headers, such as those of a document that is a zip archive itself. If its stated end
            # is followed by another header, nothing before that end is searched.
            if header.packed is not None:
                end = header.data + header.packed
                if self._data.read(end, end + 4) in (_LOCAL_MAGIC, _ENTRY_MAGIC, _DESCRIPTOR_MAGIC):
                    return end
            return header.data
        self._end, self._cut = end, None
        self._names.execute("INSERT OR IGNORE INTO copied VALUES (?)", (header.raw_name,))
        if not self._names.changes():
            self._record_lost(header.name, tr("another intact member has its name"))
            return end
        self._found.whole += 1
        if self._found.whole > MOST_ENTRIES:
            raise zipfile.BadZipFile(tr("it has more than {most_entries:,} members", most_entries=MOST_ENTRIES))
        self._found.lost -= self._found.missing.pop(header.name, None) is not None
        self._write_member(header, header.method, (size, packed, crc), self._read_packed(header, packed))
        return end

    def _copy_beginning(self, header: _Header) -> None:
        """Copy the beginning of a SQLite file, unpacked, whose data the end of the archive cuts off.

        Copies nothing if the member of the header is another file or damaged.

        Raises:
            WorkFolderTooSmall: there is no room for it.
        """
        size, crc, head = 0, 0, b""
        try:
            for piece in self._unpack_beginning(header):
                size, crc = size + len(piece), zlib.crc32(piece, crc)
                head += piece[: len(_SQLITE_MAGIC) - len(head)]
                if not _SQLITE_MAGIC.startswith(head) or (header.size is not None and size > header.size):
                    return
        except (_Broken, zlib.error, OSError, lzma.LZMAError, EOFError, ValueError):
            return
        self._names.execute("INSERT OR IGNORE INTO copied VALUES (?)", (header.raw_name,))
        if head != _SQLITE_MAGIC or not self._names.changes():
            return
        require_free_space(self._folder, size)
        self._found.partial = header.name, size
        self._found.lost -= self._found.missing.pop(header.name, None) is not None
        self._write_member(header, _STORED, (size, size, crc), self._unpack_beginning(header))

    def _unpack_beginning(self, header: _Header) -> Iterator[bytes]:
        """Yield the unpacked content of the member of a header, up to the end of the archive.

        Raises:
            _Broken: it unpacks to too many bytes.
        """
        if header.method == _STORED:
            yield from self._read_packed(header, self._size - header.data)
            return
        size = 0
        unpacker, start = _unpacker(header, self._data, self._size)
        for given, piece in _pieces(unpacker, self._data, start, self._size):
            size += len(piece)
            if size > BOMB_BYTES and size > BOMB_RATIO * given:
                raise _Broken(tr("it unpacks to too many bytes (a zip bomb)"))
            yield piece

    def _record_lost(self, name: str, reason: str) -> None:
        """Count a lost member of this name; of the first ones, keep name and reason for the report."""
        if name in self._found.missing:
            return
        self._found.lost += 1
        if len(self._found.missing) < MOST_NAMED:
            self._found.missing[name] = reason

    # --- one member ------------------------------------------------------------------------------------------------

    def _verify_member(self, header: _Header) -> tuple[int, int, int, int]:
        """Return packed size, size and CRC-32 of the member of a header, and the offset after its descriptor.

        Raises:
            _Broken: it is damaged.
        """
        if header.flags & _IS_ENCRYPTED:
            raise _Broken(tr("it is encrypted"))
        if header.packed is not None and header.data + header.packed > self._size:
            raise _CutOff(tr("it is truncated"))
        if header.method == _STORED and header.packed is None:
            return self._stored_with_descriptor(header)
        packed, size, crc = self._unpack_member(header)
        end = header.data + packed
        for *stated, after in _descriptors(self._data, end) if header.flags & _HAS_DESCRIPTOR else ():
            if stated == [crc, packed, size]:
                return packed, size, crc, after
        if (crc, size) != (header.crc, header.size):
            self._spend(packed + size)
            raise _Broken(tr("its checksum or size does not match"))
        return packed, size, crc, end

    def _unpack_member(self, header: _Header) -> tuple[int, int, int]:
        """Unpack the member of a header without keeping it; return its packed size, size and CRC-32.

        Raises:
            _Broken: it is damaged, or has other sizes than the header states.
        """
        limit = self._size if header.packed is None else header.data + header.packed
        if header.method == _STORED:
            crc = self._compute_crc(header.data, limit)
            return limit - header.data, limit - header.data, crc
        given = size = crc = 0
        try:
            unpacker, start = _unpacker(header, self._data, limit)
            for given, piece in _pieces(unpacker, self._data, start, limit):
                size, crc = size + len(piece), zlib.crc32(piece, crc)
                if size > BOMB_BYTES and size > BOMB_RATIO * given:
                    self._spend(size)
                    raise _Broken(tr("it unpacks to too many bytes (a zip bomb)"))
                if header.size is not None and size > header.size:
                    self._spend(size)
                    raise _Broken(tr("its checksum or size does not match"))
        except (zlib.error, OSError, lzma.LZMAError, EOFError, ValueError) as error:
            self._spend(given + size)
            raise _Broken(tr("it cannot be unpacked")) from error
        # Most packers end LZMA data without a mark; its size tells.
        if not unpacker.eof and (header.method != _LZMA or size != header.size):
            self._spend(given + size)
            raise (_CutOff if header.packed is None else _Broken)(tr("it is truncated"))
        packed = start + given - len(unpacker.unused_data) - header.data
        if header.packed is not None and packed != header.packed:
            self._spend(given + size)
            raise _Broken(tr("its checksum or size does not match"))
        return packed, size, crc

    def _compute_crc(self, start: int, end: int, crc: int = 0) -> int:
        """Return the CRC-32 of the bytes from ``start`` to ``end``, after bytes whose CRC-32 is ``crc``."""
        for place in range(start, end, _AT_ONCE):
            crc = zlib.crc32(self._data.read(place, min(place + _AT_ONCE, end)), crc)
        return crc

    def _stored_with_descriptor(self, header: _Header) -> tuple[int, int, int, int]:
        """Find the end of an uncompressed member whose size only its data descriptor states.

        Returns and raises as :meth:`_verify_member`.
        """
        crc, at = 0, header.data
        place = self._data.find(_DESCRIPTOR_MAGIC, at)
        while place is not None:
            crc, at = self._compute_crc(at, place, crc), place
            size = place - header.data
            for stated_crc, stated_packed, stated_size, after in _descriptors(self._data, place):
                if (stated_crc, stated_packed, stated_size) == (crc, size, size):
                    return size, size, crc, after
            self._spend(_LOCAL.size)
            place = self._data.find(_DESCRIPTOR_MAGIC, place + len(_DESCRIPTOR_MAGIC))
        self._spend(self._size - header.data)
        raise _CutOff(tr("it is truncated"))

    def _spend(self, count: int) -> None:
        """Take ``count`` bytes, read in vain for a damaged member, off the budget; BadZipFile: it is used up."""
        self._budget -= count
        if self._budget < 0:
            raise zipfile.BadZipFile(tr("it contains too many parts that look like members but are damaged"))

    # --- the new archive -------------------------------------------------------------------------------------------

    def _read_packed(self, header: _Header, packed: int) -> Iterator[bytes]:
        """Yield the first ``packed`` bytes of the data of a header's member, as stored, in parts."""
        end = header.data + packed
        for place in range(header.data, end, _AT_ONCE):
            yield self._data.read(place, min(place + _AT_ONCE, end))

    def _write_member(self, header: _Header, method: int, numbers: tuple[int, int, int], data: Iterator[bytes]) -> None:
        """Write a member to the new archive, with a ZIP64 header and a directory entry.

        Args:
            header: the header of the member in the damaged archive.
            method: how ``data`` is compressed.
            numbers: its size, packed size and CRC-32.
            data: the packed data.
        """
        size, packed, crc = numbers
        start = self._target.tell()
        flags = header.flags & ~_HAS_DESCRIPTOR
        name, common = header.raw_name, (flags, method, header.time, header.date, crc)
        extra = struct.pack("<2H2Q", _EXTRA_64, 16, size, packed)
        local = _LOCAL.pack(_LOCAL_MAGIC, 45, *common, _ELSEWHERE, _ELSEWHERE, len(name), len(extra))
        self._target.write(local + name + extra)
        self._target.writelines(data)
        extra = struct.pack("<2H3Q", _EXTRA_64, 24, size, packed, start)
        sizes = _ELSEWHERE, _ELSEWHERE, len(name), len(extra), 0, 0, 0, 0, _ELSEWHERE
        self._directory.write(_ENTRY.pack(_ENTRY_MAGIC, 45, 0, 45, *common, *sizes) + name + extra)

    def _finish(self) -> None:
        """Write the directory and the end records of the target archive."""
        start, length = self._target.tell(), self._directory.tell()
        self._directory.seek(0)
        while chunk := self._directory.read(_AT_ONCE):
            self._target.write(chunk)
        count = self._found.whole + (self._found.partial is not None)
        self._target.write(_END_64.pack(b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, start))
        self._target.write(_LOCATOR_64.pack(b"PK\6\7", 0, start + length, 1))
        self._target.write(_END.pack(b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, _ELSEWHERE, _ELSEWHERE, 0))


# --- headers ---------------------------------------------------------------------------------------------------------


def _read_header(data: _File, place: int) -> _Header | None:
    """Return the local header at the offset ``place``, or None if there is no valid one."""
    if place + _LOCAL.size > len(data):
        return None
    _, version, flags, method, time, date, crc, packed, size, of_name, of_extra = _LOCAL.unpack(
        data.read(place, place + _LOCAL.size)
    )
    start = place + _LOCAL.size
    raw_name = bytes(data.read(start, start + of_name))
    is_known = method in _METHODS and (version & 0xFF) <= _NEWEST_VERSION
    if not is_known or not 0 < of_name <= LONGEST_NAME or len(raw_name) < of_name or b"\0" in raw_name:
        return None
    wide = _wide_sizes(bytes(data.read(start + of_name, start + of_name + of_extra)), size, packed)
    if wide is None:
        return None
    # The sizes of such a member follow its data.
    is_open = bool(flags & _HAS_DESCRIPTOR) and not any((crc, *wide))
    own_size, packed_size = (None, None) if is_open else wide
    return _Header(
        flags=flags,
        method=method,
        time=time,
        date=date,
        crc=crc,
        size=own_size,
        packed=packed_size,
        raw_name=raw_name,
        data=start + of_name + of_extra,
    )


def _wide_sizes(extra: bytes, size: int, packed: int) -> tuple[int, int] | None:
    """Return size and packed size: as given, or from a header's extra field if they are too large for the header.

    None if the extra field lacks them.
    """
    if _ELSEWHERE not in (size, packed):
        return size, packed
    place = 0
    # A field that has both takes 20 bytes.
    while place + 20 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, place)
        if kind == _EXTRA_64 and length >= 16:
            return struct.unpack_from("<2Q", extra, place + 4)
        place += 4 + length
    return None


def _descriptors(data: _File, place: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the possible readings of a data descriptor at ``place``: CRC-32, packed size, size, offset after it."""
    start = place + 4 if data.read(place, place + 4) == _DESCRIPTOR_MAGIC else place
    for layout in ("<3L", "<L2Q"):
        end = start + struct.calcsize(layout)
        if end <= len(data):
            crc, packed, size = struct.unpack(layout, data.read(start, end))
            yield crc, packed, size, end


def _unpacker(header: _Header, data: _File, limit: int) -> tuple[_Unpacker, int]:
    """Return a decompressor for the member of a header, and the offset of the data to decompress.

    ``limit`` is the offset at which its data ends at the latest. _Broken: its compression is not supported.
    """
    if header.method == _DEFLATED:
        return zlib.decompressobj(-15), header.data
    if header.method == _BZIP2:
        return bz2.BZ2Decompressor(), header.data
    start = header.data + 9
    head = bytes(data.read(header.data, start))
    if header.method != _LZMA or start > limit or head[2:4] != b"\5\0":
        raise _Broken(tr("it cannot be unpacked"))
    dictionary = int.from_bytes(head[5:9], "little")
    properties, rest = head[4] % 9, head[4] // 9
    if dictionary > MOST_DICTIONARY_BYTES:
        raise _Broken(tr("it cannot be unpacked"))
    chain = [
        {"id": lzma.FILTER_LZMA1, "dict_size": max(dictionary, 4096), "lc": properties, "lp": rest % 5, "pb": rest // 5}
    ]
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=chain), start


def _pieces(unpacker: _Unpacker, data: _File, start: int, limit: int) -> Iterator[tuple[int, bytes]]:
    """Decompress the data between two offsets; yield the number of packed bytes read so far, and an unpacked piece."""
    for place, length in _ranges(start, limit):
        part = data.read(place, place + length)
        given = place + len(part) - start
        while True:
            piece = unpacker.decompress(part, _AT_ONCE)
            yield given, piece
            if unpacker.eof:
                return
            # zlib returns its unread input; the other decompressors keep it.
            part = getattr(unpacker, "unconsumed_tail", b"")
            if not part and len(piece) < _AT_ONCE and getattr(unpacker, "needs_input", True):
                break


def _directory_names(data: _File, start: int) -> Iterator[bytes]:
    """Yield the names of files in the archive's directory, or its remains, from the offset ``start`` on."""
    place, count = data.find(_ENTRY_MAGIC, start), 0
    while place is not None and place + _ENTRY.size <= len(data) and count < MOST_ENTRIES:
        entry = _ENTRY.unpack(data.read(place, place + _ENTRY.size))
        of_name, of_extra, of_comment = entry[11:14]
        raw_name = bytes(data.read(place + _ENTRY.size, place + _ENTRY.size + of_name))
        if len(raw_name) == of_name and 0 < of_name <= LONGEST_NAME and not raw_name.endswith(b"/"):
            yield raw_name
        count += 1
        place = data.find(_ENTRY_MAGIC, place + _ENTRY.size + of_name + of_extra + of_comment)


def _decode_name(raw_name: bytes) -> str:
    """Decode the name of a member: UTF-8 if it is valid, otherwise code page 437."""
    try:
        return raw_name.decode()
    except UnicodeDecodeError:
        return raw_name.decode("cp437")
