"""Read the directory of a zip archive entry by entry, in bounded memory.

Python's reader creates an object of about a kilobyte for every entry before any can be checked, so an archive of a few
hundred kilobytes could take gigabytes. Here each entry is checked as it is read, and becomes a row of a database that
moves to a temporary file when it grows. To open a member, Python's reader is given an archive of that one member.

A damaged name in the directory would hide a member, such as the log of a database. So the name of each member is
compared with the one in its local header. If they differ, the member is found by both names, but opened only if the
caller accepts such members. Layout:
"APPNOTE.TXT - .ZIP File Format Specification" (PKWARE), 4.3 and 4.5.
"""

from __future__ import annotations

import io
import struct
import threading
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import structs

from regraft.disk import sqlite
from regraft.errors import ArchiveEncrypted, ArchiveUnsafe
from regraft.language import tr

#: A member that unpacks to more than this factor of its size, and to more than this size, is a zip bomb. Text
#: compresses to a tenth, vectors hardly at all, and repeated pages to a hundredth.
BOMB_RATIO = 500
BOMB_BYTES = 16 << 20
#: No system has longer names (UTF-8 bytes) or deeper ones (parts).
LONGEST_NAME, MOST_PARTS = 4_096, 255
#: Files and folders, including folders that only appear in names: a backup of a million files has little more.
MOST_ENTRIES = 3_000_000
#: Size of the cache of folder ids.
_KNOWN_FOLDERS = 10_000

_ENTRY = struct.Struct("<4sBB5H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_64 = struct.Struct("<4sLQL")
_EXTRA = struct.Struct("<2H")
_LOCAL = struct.Struct("<4s5H3L2H")
_LOCAL_MAGIC = b"PK\3\4"
_END_MAGIC, _ENTRY_MAGIC, _END_64_MAGIC, _LOCATOR_MAGIC = b"PK\5\6", b"PK\1\2", b"PK\6\6", b"PK\6\7"
_LONGEST_COMMENT = 1 << 16
_ELSEWHERE_32, _ELSEWHERE_16 = 0xFFFF_FFFF, 0xFFFF
_IS_ENCRYPTED, _IS_UTF8 = 0x1, 0x800
_EXTRA_64, _EXTRA_NAME = 0x0001, 0x7075
_LINK_MODE, _MODE_MASK = 0xA000, 0xF000
_READ_BYTES = 1 << 20
#: Largest LZMA dictionary that packers use, at their strongest setting; the format allows 4 GiB.
MOST_DICTIONARY_BYTES = 1 << 27
#: Folder of the user's uploads. Names in it are not compared: it has most of a backup's members, and a file that is
#: missing there is reported, because other data name it.
_UPLOADS = "Files"
#: Encodings of names in archives without a flag for UTF-8.
_OLD_ENCODINGS = ("utf-8", "cp437", "cp850", "cp1252", "gbk", "big5", "cp932", "cp949")
#: Id of the parent folder of an entry whose name ends with a slash although it has data; such an entry has no path.
_NO_PARENT = -2

_TABLES = """
CREATE TABLE entry (
  id INTEGER PRIMARY KEY, parent INTEGER NOT NULL, name TEXT NOT NULL, other_form TEXT,
  record INTEGER, start INTEGER, packed INTEGER, size INTEGER, crc INTEGER, is_link INTEGER, name_crc INTEGER,
  UNIQUE (parent, name));
CREATE INDEX by_form ON entry (parent, other_form) WHERE other_form IS NOT NULL;
INSERT INTO entry (id, parent, name) VALUES (0, -1, '');
CREATE TABLE renamed (record INTEGER PRIMARY KEY, name BLOB NOT NULL, flags INTEGER NOT NULL,
  extra BLOB NOT NULL, state INTEGER NOT NULL);
"""
_ADD = "INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (parent, name) DO NOTHING"
#: States of a member whose local header has another name: the two are encodings of one name, they are different names,
#: or another member with two names has one of them as well.
_ENCODED, _RENAMED, _AMBIGUOUS = range(3)


class ZipMember(msgspec.Struct, frozen=True):
    """A file in an archive: offsets of its directory record and of its local header, its sizes and CRC-32."""

    record: int
    start: int
    packed: int
    size: int
    crc: int
    is_link: bool


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the archive's directory as it is stored; ``record`` is its offset in the file."""

    record: int
    system: int
    flags: int
    raw_name: bytes
    crc: int
    packed: int
    size: int
    mode: int
    start: int
    extra: bytes


class ZipDirectory:
    """The entries of an archive. All of them are checked before any member is read.

    Raises:
        ArchiveUnsafe: a member's path climbs out of the archive, is absolute, too long or too deep, or occurs twice; a
            member overlaps another or is a zip bomb; there are too many.
        ArchiveEncrypted: a member is encrypted.
        zipfile.BadZipFile: it is not a zip archive, or incomplete.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._kept = sqlite.open_scratch()
        self._db = self._kept.__enter__()
        self._file = path.open("rb")
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the archive and drop its entries."""
        self._file.close()
        self._kept.__exit__(None, None, None)

    # --- reading it ------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read and check the whole directory: names, overlaps, sizes."""
        self._size = self._file.seek(0, io.SEEK_END)
        self.start, length, self._prefix = _find_directory(self._file, self._size)
        self._file.seek(0)
        if self._prefix and self._file.read(len(_LOCAL_MAGIC)) == _LOCAL_MAGIC:
            # A truncated archive whose last end record is that of an archive stored in it, such as a document.
            raise zipfile.BadZipFile(tr("its directory is damaged"))
        self._known: dict[tuple[int, str], int] = {}
        self._entries = 0
        self._insert = self._db.cursor()
        self._db.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -64000")
        self._db.execute(_TABLES)
        self._db.execute("BEGIN")
        for record in self._records(length):
            self._add_entry(record)
        end = 0
        for start, packed in self._db.execute("SELECT start, packed FROM entry WHERE record >= 0 ORDER BY start"):
            if start < end:
                raise self._unsafe(tr("its members overlap"))
            end = start + _LOCAL.size + packed
        if end > self._size:
            raise self._unsafe(tr("its members overlap"))
        self._compare_names()
        self._db.execute("COMMIT")
        self._known.clear()

    def _records(self, length: int) -> Iterator[_Record]:
        """Yield the entries of the archive's directory, of ``length`` bytes, with ZIP64 numbers resolved."""
        self._file.seek(self.start)
        reader = io.BufferedReader(_Part(self._file, length), _READ_BYTES)
        place = self.start
        while place < self.start + length:
            record, record_length = self._parse_record(reader, place)
            yield record
            place += record_length

    def _parse_record(self, reader: BinaryIO | io.BufferedReader, place: int) -> tuple[_Record, int]:
        """Read the entry at the offset ``place``, where ``reader`` is; return it and its length in bytes."""
        head = reader.read(_ENTRY.size)
        if len(head) < _ENTRY.size or not head.startswith(_ENTRY_MAGIC):
            raise zipfile.BadZipFile(tr("its directory is damaged"))
        (_, _, system, _, flags, _, _, _, crc, packed, size, of_name, of_extra, of_comment, _, _, mode, start) = (
            _ENTRY.unpack(head)
        )
        rest = reader.read(of_name + of_extra + of_comment)
        if len(rest) < of_name + of_extra + of_comment:
            raise zipfile.BadZipFile(tr("its table of contents is truncated"))
        if _ENTRY_MAGIC in rest[of_name:]:
            # A damaged length would hide the entries after this one.
            raise zipfile.BadZipFile(tr("its directory is damaged"))
        extra = rest[of_name : of_name + of_extra]
        size, packed, start = _zip64_numbers(extra, size, packed, start)
        record = _Record(
            record=place,
            system=system,
            flags=flags,
            raw_name=rest[:of_name],
            crc=crc,
            packed=packed,
            size=size,
            mode=mode,
            start=start + self._prefix,
            extra=extra,
        )
        return record, len(head) + len(rest)

    def _add_entry(self, record: _Record) -> None:
        """Check an entry and insert it with its parent folders; raises as the class."""
        if len(record.raw_name) > LONGEST_NAME:
            raise self._unsafe(tr("a name in it has {raw_name:,} bytes", raw_name=len(record.raw_name)))
        name = _name_of(record)
        self._refuse_unsafe_name(name)
        if record.flags & _IS_ENCRYPTED:
            raise ArchiveEncrypted(path=self._path)
        if record.size > BOMB_BYTES and record.size > BOMB_RATIO * record.packed:
            raise self._unsafe(
                tr(
                    "{name} would grow from {packed:,} to {size:,} bytes (a zip bomb)",
                    name=name,
                    packed=record.packed,
                    size=record.size,
                )
            )
        parts = self._parts(name)
        if not parts:
            return
        folder = 0
        for depth, part in enumerate(parts[:-1]):
            folder = self._folder(folder, part, parts[: depth + 1])
        if name.endswith("/"):
            self._folder(folder, parts[-1], parts)
            if record.size:
                # The last letter of a file's name may be damaged.
                self._insert_entry(_NO_PARENT, str(record.record), record)
        elif self._insert_entry(folder, parts[-1], record) is None:
            found = self._child_row(folder, parts[-1])
            what = tr("both a file and a folder") if found is None or found[1] is None else tr("in it twice")
            raise self._unsafe(tr("{parts} is {what}", parts="/".join(parts), what=what))

    def _parts(self, name: str) -> list[str]:
        """Split the path of a member into its parts; refuse one with too many bytes or parts."""
        parts = [part for part in name.split("/") if part and part != "."]
        if len(name.encode()) > LONGEST_NAME:
            raise self._unsafe(tr("a name in it has {encode:,} bytes", encode=len(name.encode())))
        if len(parts) > MOST_PARTS:
            raise self._unsafe(tr("a name in it has {parts:,} parts", parts=len(parts)))
        return parts

    def _folder(self, parent: int, name: str, parts: list[str]) -> int:
        """Return the id of the folder ``name`` in the folder with the id ``parent``, adding it if it is new.

        ``parts`` is its whole path, for errors.
        """
        known = self._known.get((parent, name))
        if known is not None:
            return known
        number = self._insert_entry(parent, name, None)
        if number is None:
            found = self._child_row(parent, name)
            if found is None or found[1] is not None:
                raise self._unsafe(tr("{parts} is both a file and a folder", parts="/".join(parts)))
            number = found[0]
        if len(self._known) >= _KNOWN_FOLDERS:
            self._known.clear()
        self._known[parent, name] = number
        return number

    def _insert_entry(self, parent: int, name: str, record: _Record | None) -> int | None:
        """Insert a file, or (without a record) a folder, into the folder with the id ``parent``.

        Returns the new id, or None if the folder has an entry with this name.
        """
        if self._entries >= MOST_ENTRIES:
            raise self._unsafe(tr("it has more than {most_entries:,} files and folders", most_entries=MOST_ENTRIES))
        form = None if name.isascii() else unicodedata.normalize("NFC", name)
        values: tuple[int | None, ...] = (None,) * 7
        if record is not None:
            is_link = record.system != 0 and (record.mode >> 16) & _MODE_MASK == _LINK_MODE
            name_crc = zlib.crc32(record.raw_name, record.flags & _IS_UTF8)
            values = (record.record, record.start, record.packed, record.size, record.crc, is_link, name_crc)
        self._insert.execute(_ADD, (self._entries + 1, parent, name, form if form != name else None, *values))
        if not self._db.changes():
            return None
        self._entries += 1
        return self._entries

    def _refuse_unsafe_name(self, name: str) -> None:
        """Raise ArchiveUnsafe if the path of a member is absolute, leads out of the archive or has a NUL."""
        drive = len(name) > 1 and name[1] == ":" and name[0].isalpha() and name[2:3] in ("/", "\\", "")
        if name.startswith(("/", "\\")) or drive:
            raise self._unsafe(tr("{name} is an absolute path", name=name))
        if ".." in name.replace("\\", "/").split("/"):
            raise self._unsafe(tr("the path {name} leads out of the archive", name=name))
        if "\0" in name:
            raise self._unsafe(tr("{name!r} holds a NUL", name=name))

    def _unsafe(self, reason: str) -> ArchiveUnsafe:
        """Return the error that the archive is not safe to read, for a reason."""
        return ArchiveUnsafe(path=self._path, reason=reason)

    # --- names in local headers ------------------------------------------------------------------------------------

    def _compare_names(self) -> None:
        """Find members whose local header has another name than the directory, and add entries for those names.

        A member without a local header at its offset is damaged, which is found when it is opened.
        """
        query = """SELECT record, start, name_crc FROM entry
                    WHERE record >= 0 AND parent NOT IN (SELECT id FROM entry WHERE name = ? AND record IS NULL)
                    ORDER BY start"""
        for record, start, name_crc in self._db.cursor().execute(query, (_UPLOADS,)):
            local = self._read_local_name(start)
            if local is not None and zlib.crc32(local[0], local[1] & _IS_UTF8) != name_crc:
                entry = self._read_record(record)
                state = _ENCODED if _spellings(entry) & _spellings(_with_name(entry, *local)) else _RENAMED
                self._insert.execute("INSERT INTO renamed VALUES (?, ?, ?, ?, ?)", (record, *local, state))
        ambiguous: list[int] = []
        query = "SELECT record, name, flags, extra FROM renamed WHERE state = ?"
        for record, *local in self._db.cursor().execute(query, (_RENAMED,)):
            other = self._add_local_name(_with_name(self._read_record(record), *local))
            if other is not None:
                ambiguous += (record, other)
        query = "UPDATE renamed SET state = ? WHERE record = ?"
        self._insert.executemany(query, ((_AMBIGUOUS, record) for record in ambiguous))

    def _add_local_name(self, record: _Record) -> int | None:
        """Add an entry for the name in a member's local header, with which ``record`` was made.

        No entry is added if there is one, or if the name is not valid or not safe.

        Returns the other member that has this name, if its own names differ as well.
        """
        with suppress(ArchiveUnsafe, UnicodeDecodeError, zipfile.BadZipFile):
            name = _name_of(record)
            self._refuse_unsafe_name(name)
            parts = self._parts(name)
            if not parts or name.endswith("/") or len(record.raw_name) > LONGEST_NAME:
                return None
            folder = 0
            for depth, part in enumerate(parts[:-1]):
                folder = self._folder(folder, part, parts[: depth + 1])
            if self._insert_entry(folder, parts[-1], record) is None:
                found = self._child_row(folder, parts[-1])
                other = None if found is None else found[1]
                query = "SELECT 1 FROM renamed WHERE record = ? AND state <> ?"
                return other if self._db.execute(query, (other, _ENCODED)).get else None
        return None

    def _read_record(self, place: int) -> _Record:
        """Read the entry of the archive's directory at the offset ``place``."""
        self._file.seek(place)
        return self._parse_record(self._file, place)[0]

    def _read_local_name(self, start: int) -> tuple[bytes, int, bytes] | None:
        """Return raw name, flags and extra data in the local header at the offset ``start``; None without a header."""
        self._file.seek(start)
        head = self._file.read(_LOCAL.size)
        if len(head) < _LOCAL.size or not head.startswith(_LOCAL_MAGIC):
            return None
        _, _, flags, *_, of_name, of_extra = _LOCAL.unpack(head)
        rest = self._file.read(of_name + of_extra)
        return rest[:of_name], flags, rest[of_name:]

    # --- what is in it ---------------------------------------------------------------------------------------------

    def find(self, name: str) -> tuple[int, ZipMember | None] | None:
        """Return the id of the entry with this path, and its member if it is a file; None if there is no such entry.

        Names are compared in any Unicode normalization. The empty path is the root folder.
        """
        if self._file.closed:
            raise ValueError("the archive was closed already")
        row: tuple[int, int | None] | None = (0, None)
        for part in name.split("/") if name else ():
            row = None if row is None or row[1] is not None else self._find_child(row[0], part)
        if row is None:
            return None
        if row[1] is None:
            return row[0], None
        query = "SELECT record, start, packed, size, crc, is_link FROM entry WHERE id = ?"
        columns: tuple[Any, ...] = self._db.execute(query, (row[0],)).fetchall()[0]
        return row[0], ZipMember(*columns)

    def _child_row(self, parent: int, name: str) -> tuple[int, int | None] | None:
        """Return id and record offset (None: a folder) of the entry ``name`` in the folder with the id ``parent``.

        None if there is no such entry.
        """
        query = "SELECT id, record FROM entry WHERE parent = ? AND name = ?"
        return self._db.execute(query, (parent, name)).fetchone()

    def _find_child(self, parent: int, name: str) -> tuple[int, int | None] | None:
        """Find an entry as :meth:`_child_row` does (None if missing), also by a name in another normalization."""
        found = None if "\0" in name else self._child_row(parent, name)
        if found is not None or name.isascii():
            return found
        form = unicodedata.normalize("NFC", name)
        query = "SELECT id, record FROM entry WHERE parent = ? AND other_form = ? ORDER BY name"
        return self._child_row(parent, form) or self._db.execute(query, (parent, form)).fetchone()

    def children(self, number: int) -> Iterator[tuple[int, str, bool]]:
        """Yield (id, name, is_file) of the entries in the folder with the id ``number``, ordered by path."""
        query = """SELECT id, name, record IS NOT NULL AS is_file FROM entry WHERE parent = ?
                    ORDER BY name || CASE WHEN record IS NULL THEN '/' ELSE '' END"""
        yield from self._db.cursor().execute(query, (number,))

    # --- a member's bytes ------------------------------------------------------------------------------------------

    def renamed_members(self, most: int) -> tuple[int, list[tuple[str, str]]]:
        """Return the number of members whose names in the directory and in their own headers differ.

        With it come both names of the first ``most`` of them.
        """
        query = "SELECT count(*) FROM renamed WHERE state <> ?"
        count: Any = self._db.execute(query, (_ENCODED,)).get
        query = "SELECT record, name FROM renamed WHERE state <> ? ORDER BY record LIMIT ?"
        rows: list[Any] = self._db.execute(query, (_ENCODED, most)).fetchall()
        with self._lock:
            names = [(self._read_record(record).raw_name, name) for record, name in rows]
        return count, [(first.decode(errors="replace"), second.decode(errors="replace")) for first, second in names]

    def open(self, member: ZipMember, *, is_verified: bool = True, accepts_renamed: bool = False) -> BinaryIO:
        """Open a member for reading.

        Args:
            member: from :meth:`find`.
            is_verified: its end is read only if its checksum matches.
            accepts_renamed: open it even if its local header has another name than the directory.

        Raises:
            zipfile.BadZipFile, NotImplementedError, OSError: it is damaged, or compressed by an unsupported method.
        """
        query = "SELECT name, flags, state FROM renamed WHERE record = ?"
        renamed: tuple[bytes, int, int] | None = self._db.execute(query, (member.record,)).fetchone()
        with self._lock:
            self._file.seek(member.record)
            head = bytearray(self._file.read(_ENTRY.size))
            of_name = int.from_bytes(head[28:30], "little")
            name = self._file.read(of_name)
        if renamed is not None:
            name, flags, state = renamed
            if state == _AMBIGUOUS or (state == _RENAMED and not accepts_renamed):
                raise zipfile.BadZipFile(tr("its names in the archive's directory and in its own header differ"))
            # zipfile compares the name in the local header, decoded by this flag, with that of the record.
            head[9] = (head[9] & ~(_IS_UTF8 >> 8)) | (flags & _IS_UTF8) >> 8
            struct.pack_into("<H", head, 28, len(name))
        extra = struct.pack("<2H3Q", _EXTRA_64, 24, member.size, member.packed, member.start)
        # Sizes and offset move to the extra field; then the lengths of extra field and comment.
        struct.pack_into("<2L", head, 20, _ELSEWHERE_32, _ELSEWHERE_32)
        struct.pack_into("<2H", head, 30, len(extra), 0)
        struct.pack_into("<L", head, 42, _ELSEWHERE_32)
        record = bytes(head) + name + extra
        end = self.start + len(record)
        tail = b"".join(
            (
                record,
                _END_64.pack(_END_64_MAGIC, 44, 45, 45, 0, 0, 1, 1, len(record), self.start),
                _LOCATOR_64.pack(_LOCATOR_MAGIC, 0, end, 1),
                _END.pack(_END_MAGIC, 0, 0, *[_ELSEWHERE_16] * 2, *[_ELSEWHERE_32] * 2, 0),
            )
        )
        spliced = _Spliced(self._file, self._lock, self.start, tail)
        alone = zipfile.ZipFile(spliced)
        [info] = alone.infolist()
        if info.compress_type == zipfile.ZIP_LZMA:
            _refuse_large_dictionary(spliced, info.header_offset)
        if not is_verified:
            # zipfile compares the checksum only if there is one.
            del info.CRC
        return alone.open(info)  # type: ignore[return-value]


def _refuse_large_dictionary(file: BinaryIO, start: int) -> None:
    """Raise if unpacking an LZMA member would take more memory than any packer requires.

    Args:
        file: the archive.
        start: offset of the member's local header.

    Raises:
        NotImplementedError
    """
    file.seek(start + 26)
    of_name, of_extra = struct.unpack("<2H", file.read(4))
    file.seek(start + 30 + of_name + of_extra)
    # LZMA header: version (2 bytes), length of the properties (2), properties (1), dictionary size (4).
    dictionary = int.from_bytes(file.read(9)[5:], "little")
    if dictionary > MOST_DICTIONARY_BYTES:
        raise NotImplementedError(
            tr("unpacking it would take {dictionary:,} bytes of memory (its LZMA dictionary)", dictionary=dictionary)
        )


class _Part(io.RawIOBase):
    """A reader of the next ``length`` bytes of a file."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file, self._left = file, length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(buffer).cast("B")[: self._left]  # type: ignore[arg-type]
        count: int = self._file.readinto(view)  # type: ignore[attr-defined]
        self._left -= count
        return count


class _Spliced(io.RawIOBase, BinaryIO):
    """The first ``length`` bytes of a shared file, followed by other bytes."""

    def __init__(self, file: BinaryIO, lock: threading.Lock, length: int, tail: bytes) -> None:
        self._file, self._lock = file, lock
        self._length, self._tail = length, tail
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place}.get(whence, self._length + len(self._tail))
        if base + offset < 0:
            raise ValueError("a place before the beginning")
        self._place = base + offset
        return self._place

    def read(self, size: int = -1, /) -> bytes:
        left = max(self._length + len(self._tail) - self._place, 0)
        size = left if size < 0 else min(size, left)
        if self._place >= self._length:
            begin = self._place - self._length
            found = self._tail[begin : begin + size]
        else:
            with self._lock:
                self._file.seek(self._place)
                found = self._file.read(min(size, self._length - self._place))
        self._place += len(found)
        if found and len(found) < size:
            return found + self.read(size - len(found))
        return found

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        found = self.read(len(view))
        view[: len(found)] = found
        return len(found)


def _find_directory(file: BinaryIO, size: int) -> tuple[int, int, int]:
    """Return offset and length of the archive's directory, and the number of bytes before the archive.

    ``size`` is that of the file.
    """
    file.seek(max(0, size - _END.size - _LONGEST_COMMENT))
    tail = file.read()
    at = tail.rfind(_END_MAGIC)
    if at < 0 or at + _END.size > len(tail):
        raise zipfile.BadZipFile(tr("File is not a zip file"))
    place = size - len(tail) + at
    length, start = _END.unpack_from(tail, at)[5:7]
    large = _read_zip64_end(file, place)
    if large is not None:
        length, start, place = large
    begin = place - length
    if begin < start:
        raise zipfile.BadZipFile(tr("its table of contents is truncated"))
    return begin, length, begin - start


def _read_zip64_end(file: BinaryIO, end_record: int) -> tuple[int, int, int] | None:
    """Return length, stated offset and end of the archive's directory from its Zip64 end record; None without one.

    ``end_record`` is the offset of the ordinary end record, which follows the Zip64 one.
    """
    first = end_record - _LOCATOR_64.size - _END_64.size
    if first < 0:
        return None
    file.seek(first)
    raw = file.read(_END_64.size + _LOCATOR_64.size)
    if not raw.startswith(_END_64_MAGIC) or not raw[_END_64.size :].startswith(_LOCATOR_MAGIC):
        return None
    length, start = _END_64.unpack_from(raw)[8:10]
    return length, start, first


def _split_extra_fields(extra: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and data of each field in ``extra``, the extra data of a directory entry."""
    place = 0
    while place + _EXTRA.size <= len(extra):
        kind, length = _EXTRA.unpack_from(extra, place)
        place += _EXTRA.size
        if place + length > len(extra):
            raise zipfile.BadZipFile(tr("its directory is damaged"))
        yield kind, extra[place : place + length]
        place += length


def _zip64_numbers(extra: bytes, *numbers: int) -> tuple[int, int, int]:
    """Return ``numbers`` (size, packed size, offset), with those that do not fit their fields taken from ``extra``."""
    wide = b"".join(data for kind, data in _split_extra_fields(extra) if kind == _EXTRA_64)
    found, place = [], 0
    for number in numbers:
        if number != _ELSEWHERE_32:
            found.append(number)
        elif place + 8 <= len(wide):
            found.append(int.from_bytes(wide[place : place + 8], "little"))
            place += 8
        else:
            raise zipfile.BadZipFile(tr("a size is missing in its directory"))
    if max(found) >= 1 << 62:
        raise zipfile.BadZipFile(tr("a size in its directory is not valid"))
    return found[0], found[1], found[2]


def _with_name(record: _Record, raw_name: bytes, flags: int, extra: bytes) -> _Record:
    """Return an entry with the name of a local header."""
    return structs.replace(record, raw_name=raw_name, flags=flags, extra=extra)


def _spellings(record: _Record) -> set[str]:
    """Return the name of an entry as each program may decode it, in one form."""
    names = set()
    for encoding in _OLD_ENCODINGS[: 1 if record.raw_name.isascii() else None]:
        with suppress(UnicodeDecodeError):
            names.add(record.raw_name.decode(encoding))
    with suppress(UnicodeDecodeError, zipfile.BadZipFile):
        names.add(_unicode_name(record) or "")
    parts = (unicodedata.normalize("NFC", name).replace("\\", "/").split("/") for name in names)
    return {"/".join(part for part in split if part and part != ".") for split in parts} - {""}


def _name_of(record: _Record) -> str:
    r"""Decode the path of an entry as UTF-8 if it is valid, otherwise from its Unicode extra field or as cp437.

    In archives made on Windows, ``\`` becomes ``/`` in a path without ``/``.

    Raises:
        UnicodeDecodeError: its flag says UTF-8 and it is not, or the extra field is not UTF-8.
    """
    raw = record.raw_name
    if record.flags & _IS_UTF8:
        name = raw.decode()
    else:
        try:
            name = raw.decode()
        except UnicodeError:
            name = _unicode_name(record) or raw.decode("cp437")
    # A backslash is a separator only in archives made on Windows; elsewhere it is part of a name.
    return name.replace("\\", "/") if record.system == 0 and "/" not in name else name


def _unicode_name(record: _Record) -> str | None:
    """Return the Unicode path from an entry's extra field; None if it has none for the path in the entry."""
    for kind, data in _split_extra_fields(record.extra):
        if (
            kind == _EXTRA_NAME
            and data[:1] == b"\1"
            and int.from_bytes(data[1:5], "little") == zlib.crc32(record.raw_name)
        ):
            return data[5:].decode()
    return None
