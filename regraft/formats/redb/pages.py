"""The file format of redb: header and commit slots, pages, B-tree nodes, types and table definitions.

Every function reads untrusted bytes and checks all offsets (``docs/formats/redb.md``).
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from regraft.disk import writable
from regraft.formats.redb import values
from regraft.formats.redb.errors import (
    DamageCallback,
    MalformedPage,
    NotRedb,
    PageDamage,
    RedbChanged,
    RedbError,
    RedbInUse,
    RedbTooShort,
)
from regraft.formats.redb.values import BUILT_IN, COMPOSITE, RAW, TUPLE, USER_DEFINED, Codec
from regraft.language import tr

# Header: layout and the two commit slots (``docs/formats/redb.md``, "Header").


MAGIC = b"redb\x1a\x0a\xa9\x0d\x0a"
HEADER_BYTES = 320
SLOT_BYTES = 128
SLOTS_AT = (64, 192)
CHECKSUM_BYTES = 16
#: Supported versions of the file format.
OLDEST_VERSION, NEWEST_VERSION = 2, 3

_GOD_BYTE = 9
_PRIMARY, _RECOVERY, _TWO_PHASE = 1, 2, 4
_LAYOUT = struct.Struct("<5I")
_LAYOUT_AT = 12
_ROOT = struct.Struct("<Q16sQ")
ROOT_BYTES = _ROOT.size
#: Offsets in a slot of the flag and the root of each tree: tables, system tables, freed pages (version 2 only).
_ROOTS = ((1, 8), (2, 40), (3, 72))
_TRANSACTION_AT = 104
_CHECKED_BYTES = SLOT_BYTES - CHECKSUM_BYTES
_SMALLEST_PAGE = 512
_MOST_PAGES = 1 << 20


def checksum(data: bytes | memoryview) -> bytes:
    """Return the checksum that redb stores: XXH3-128, little-endian."""
    return xxhash.xxh3_128_digest(data)[::-1]


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """The root of a tree: page number, checksum and number of entries."""

    page: int
    checksum: bytes
    length: int

    @classmethod
    def read(cls, data: bytes, at: int) -> Root:
        """Parse the root of a tree at an offset of ``data``, which must be long enough."""
        page, stored, length = _ROOT.unpack_from(data, at)
        return cls(page=page, checksum=stored, length=length)


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A commit slot: one committed state of the database."""

    #: 0 or 1.
    index: int
    version: int
    tables: Root | None
    system: Root | None
    #: Freed pages have a tree of their own in version 2 only.
    freed: Root | None
    transaction_id: int
    #: Whether the stored checksum matches.
    is_whole: bool

    @property
    def offset(self) -> int:
        """Offset of the slot in the file."""
        return SLOTS_AT[self.index]


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The division of a file into pages and regions."""

    page_size: int
    region_header_pages: int
    region_pages: int
    full_regions: int
    trailing_pages: int

    @property
    def is_possible(self) -> bool:
        """Whether redb creates files with this page size and region size."""
        size = self.page_size
        return size >= _SMALLEST_PAGE and not size & (size - 1) and 0 < self.region_pages <= _MOST_PAGES

    @property
    def region_bytes(self) -> int:
        """Size in bytes of a full region including its header."""
        return (self.region_header_pages + self.region_pages) * self.page_size

    @property
    def file_bytes(self) -> int:
        """Expected size of the file in bytes."""
        trailing = self.region_header_pages + self.trailing_pages if self.trailing_pages else 0
        return self.page_size + self.full_regions * self.region_bytes + trailing * self.page_size


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed file header."""

    layout: Layout
    #: The slot that the header names as current.
    primary: Slot
    secondary: Slot
    #: Whether the file was not closed cleanly.
    needs_recovery: bool
    #: Whether the primary slot was durable before the header named it.
    is_two_phase: bool


def read_header(data: bytes) -> Header:
    """Parse the first 320 bytes of a redb file."""
    flags = data[_GOD_BYTE]
    page_size, region_header_pages, region_pages, full_regions, trailing_pages = _LAYOUT.unpack_from(data, _LAYOUT_AT)
    primary = flags & _PRIMARY
    return Header(
        layout=Layout(
            page_size=page_size,
            region_header_pages=region_header_pages,
            region_pages=region_pages,
            full_regions=full_regions,
            trailing_pages=trailing_pages,
        ),
        primary=_parse_slot(data, primary),
        secondary=_parse_slot(data, 1 - primary),
        needs_recovery=bool(flags & _RECOVERY),
        is_two_phase=bool(flags & _TWO_PHASE),
    )


def _parse_slot(header: bytes, index: int) -> Slot:
    """Parse the commit slot with an index (0 or 1) in the header of a file."""
    data = header[SLOTS_AT[index] : SLOTS_AT[index] + SLOT_BYTES]
    tables, system, freed = (Root.read(data, at) if data[flag] else None for flag, at in _ROOTS)
    (transaction_id,) = struct.unpack_from("<Q", data, _TRANSACTION_AT)
    return Slot(
        index=index,
        version=data[0],
        tables=tables,
        system=system,
        freed=freed if data[0] == OLDEST_VERSION else None,
        transaction_id=transaction_id,
        is_whole=checksum(data[:_CHECKED_BYTES]) == data[_CHECKED_BYTES:],
    )


_ORDER_AT, _REGION_AT = 59, 20
_FIELD = 0xFFFFF
_MOST_ORDER = 20
#: Limit of base pages per file, and base pages per block of a claim's bitmap.
MAX_PAGES, _PART = 1 << 24, 1 << 12


class PageLocation(NamedTuple):
    """Location of a page in the file."""

    offset: int
    length: int
    number: int

    @property
    def description(self) -> str:
        """Description of the page, for messages."""
        region, index, order = split_number(self.number)
        return tr("region {region}, page {index}, order {order}", region=region, index=index, order=order)


def split_number(number: int) -> tuple[int, int, int]:
    """Split a page number into region, index in the region, and order (the page has 2^order base pages)."""
    order = number >> _ORDER_AT
    return (number >> _REGION_AT) & _FIELD, number & (_FIELD >> order), order


class StoredFile:
    """A redb file open for reading.

    Raises:
        RedbError: the file is unreadable, in use, or not a redb file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _open_regular_file(path)
        try:
            if lock_against_writers(self._file.fileno(), path) and writable.fcntl is not None:
                writable.fcntl.flock(self._file, writable.fcntl.LOCK_UN)
            self.size = os.fstat(self._file.fileno()).st_size
            self.header = self.read(0, HEADER_BYTES)
            _check_magic(self.header, path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file. Closing it twice is allowed."""
        self._file.close()

    def read(self, offset: int, length: int) -> bytes:
        """Read ``length`` bytes at ``offset``; fewer at the end of the file.

        Raises:
            RedbError: I/O error, or the file was closed.
        """
        if self._file.closed:
            raise RedbError(path=self.path, reason=tr("the file was closed"))
        try:
            data = _pread(self._file, length, offset)
            while len(data) < length and (more := _pread(self._file, length - len(data), offset + len(data))):
                data += more
        except PermissionError as error:  # Windows refuses what another program has locked
            raise RedbInUse(path=self.path) from error
        except OSError as error:
            raise RedbError(path=self.path, reason=error.strerror or error) from error
        return data

    @property
    def state(self) -> bytes:
        """Bytes that identify a state of the file: its header with both commit slots, and its size."""
        return self.header + self.size.to_bytes(8, "little")

    def check_state(self, state: bytes | None) -> None:
        """Refuse the file if ``state``, from an earlier reading, is not its current state; None accepts any state.

        Raises:
            RedbChanged: the states differ.
        """
        if state not in (None, self.state):
            raise RedbChanged(path=self.path)

    def check_unchanged(self) -> None:
        """Verify that the file has not changed since it was opened.

        Raises:
            RedbChanged: the file has changed.
            RedbError: I/O error, or the file was closed.
        """
        if self.read(0, HEADER_BYTES) != self.header or os.fstat(self._file.fileno()).st_size != self.size:
            raise RedbChanged(path=self.path)


def _open_regular_file(path: Path) -> FileIO:
    """Open a regular file for reading; never blocks on a pipe. Raises RedbError."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise RedbError(path=path, reason=tr("it is not a file"))
        return path.open("rb", buffering=0)
    except OSError as error:
        raise RedbError(path=path, reason=error.strerror or error) from error
    except ValueError as error:  # a NUL in the path
        raise RedbError(path=path, reason=error) from error


def lock_against_writers(descriptor: int, path: Path) -> bool:
    """Take a shared lock on an open file; return False if the system or the file system has no such locks.

    Raises:
        RedbInUse: another program has the file open; redb locks it exclusively. Without ``fcntl`` (Windows), reading
            a locked file fails.
    """
    try:
        if writable.fcntl is None:
            os.read(descriptor, 1)
        else:
            writable.fcntl.flock(descriptor, writable.fcntl.LOCK_SH | writable.fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise RedbInUse(path=path) from error
        return False
    return writable.fcntl is not None


def _check_magic(header: bytes, path: Path) -> None:
    """Refuse a file that does not begin with a complete redb header."""
    if not header or not MAGIC.startswith(header[: len(MAGIC)]):
        raise NotRedb(path=path)
    if len(header) < HEADER_BYTES:
        raise RedbTooShort(path=path, size=len(header))


def _pread(file: FileIO, length: int, offset: int) -> bytes:
    """Read up to ``length`` bytes at an offset."""
    if sys.platform == "win32":
        file.seek(offset)
        return file.read(length) or b""
    return os.pread(file.fileno(), length, offset)


class Pages:
    """Locates and reads the pages of a file by page number."""

    def __init__(self, file: StoredFile, layout: Layout) -> None:
        self._file = file
        self._page_size = layout.page_size
        self._region_pages = layout.region_pages
        self._region_bytes = layout.region_bytes
        self._first_page_at = layout.page_size * (1 + layout.region_header_pages)

    @property
    def units(self) -> int:
        """Number of base pages (pages of order 0) in the file, counting a partial one."""
        return -(-self._file.size // self._page_size)

    def locate(self, number: int) -> PageLocation:
        """Return where the page with a number is.

        Raises:
            MalformedPage: the number is invalid, or the page lies outside of the file.
        """
        _, index, order = split_number(number)
        if order > _MOST_ORDER or (index + 1) << order > self._region_pages:
            raise MalformedPage(tr("the page number is not valid"))
        length = self._page_size << order
        offset = self.offset(number)
        if offset + length > self._file.size:
            raise MalformedPage(tr("the page lies outside of the file"))
        return PageLocation(offset, length, number)

    def offset(self, number: int) -> int:
        """Offset at which a page with this number begins, even if it is beyond the end of the file."""
        region, index, order = split_number(number)
        return self._first_page_at + region * self._region_bytes + index * (self._page_size << order)

    def read(self, location: PageLocation) -> bytes:
        """Read the bytes of a page.

        Raises:
            MalformedPage: the file ends within the page.
            RedbError: I/O error.
        """
        data = self._file.read(location.offset, location.length)
        if len(data) < location.length:
            raise MalformedPage(tr("the page lies outside of the file"))
        return data

    def span(self, location: PageLocation) -> tuple[int, int]:
        """Return the number of the first base page of a page, and how many base pages the page covers."""
        return location.offset // self._page_size, location.length // self._page_size


class PageOwners:
    """Records which tree owns which base pages: no page belongs to two tables or is visited twice by one walk."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        #: For each base page: its owner; and for the first base page of a page, its order + 1.
        self.owners = array("I", [0]) * pages.units
        self.begins = bytearray(pages.units)

    def walk(self, owner: int) -> PageClaim:
        """Start a new walk through the trees of an owner, which is a number from 1: a table, or the list of tables."""
        return PageClaim(self, owner)


class PageClaim:
    """The pages that one walk has visited and claimed for its owner."""

    def __init__(self, claims: PageOwners, owner: int) -> None:
        self._claims = claims
        self._owner = owner
        #: Bitmaps of the pages that this walk visited, in blocks: small tables need few of them.
        self._seen: dict[int, bytearray] = {}

    def take(self, location: PageLocation) -> None:
        """Claim a page for the owner of this walk.

        Raises:
            MalformedPage: this walk has already visited the page, or it overlaps another page.
        """
        first, count = self._claims.pages.span(location)
        part = self._seen.setdefault(first // _PART, bytearray(_PART))
        if part[first % _PART] or not self._assign(first, count):
            raise MalformedPage(tr("the page is referenced twice"))
        part[first % _PART] = 1

    def _assign(self, first: int, count: int) -> bool:
        """Assign the page that begins at base page ``first`` and covers ``count`` of them to the owner.

        Returns:
            False if the page overlaps one of another size.

        Raises:
            MalformedPage: another table owns a part of the page.
        """
        owners, begins = self._claims.owners, self._claims.begins
        having = {owners[first]} if count == 1 else set(owners[first : first + count])
        if not having <= {0, self._owner}:
            raise MalformedPage(tr("the page belongs to another table"))
        mark = count.bit_length()
        if having != {0}:
            return begins[first] == mark
        begins[first] = mark
        if count == 1:
            owners[first] = self._owner
        else:
            owners[first : first + count] = array("I", [self._owner]) * count
        return True


# Selection of the commit slot (``docs/formats/redb.md``, "Which slot counts").


#: From this version on, the header of a cleanly closed file always names the newer slot.
_NEWEST_IS_NAMED = 3


class SlotChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Intact slots in the order in which to try them."""

    slots: tuple[Slot, ...]
    #: Whether to use the second slot if not all pages of the first are intact.
    may_fall_back: bool = False


def choose_slots(header: Header, size: int, report: DamageCallback) -> SlotChoice:
    """Choose the commit slots to read from their checksums and the header; damaged slots are reported.

    Args:
        header: the header of the file.
        size: size of the file in bytes.
        report: called with each damage.
    """
    primary, secondary = header.primary, header.secondary
    if not primary.is_whole:
        if secondary.is_whole:
            report(_slot_damage(primary, tr("the checksum is wrong, so the other commit was read")))
        return SlotChoice(slots=(secondary,) if secondary.is_whole else ())
    if not secondary.is_whole:
        # A program that is killed during a commit leaves such a slot.
        if not header.needs_recovery:
            report(_slot_damage(secondary, tr("its checksum is wrong")))
        return SlotChoice(slots=(primary,))
    is_newer = secondary.transaction_id > primary.transaction_id
    needs_repair = header.needs_recovery or header.layout.file_bytes != size
    if needs_repair and not header.is_two_phase:
        return SlotChoice(slots=(secondary, primary) if is_newer else (primary, secondary), may_fall_back=True)
    if is_newer and not header.needs_recovery and primary.version >= _NEWEST_IS_NAMED:
        report(_slot_damage(primary, tr("the header names this commit, but the other one is newer and was read")))
        return SlotChoice(slots=(secondary, primary))
    return SlotChoice(slots=(primary, secondary))


def select_slot(choice: SlotChoice, is_intact: Callable[[Slot], bool], report: DamageCallback) -> Slot:
    """Return the slot to read: the first of a choice, or the second one if only its pages are all intact.

    ``is_intact`` reads all pages of a slot; ``report`` is called with the damage of the first one.
    """
    first = choice.slots[0]
    if not choice.may_fall_back or is_intact(first) or not is_intact(choice.slots[1]):
        return first
    report(_slot_damage(first, tr("this commit was not completely written, so the previous one was read")))
    return choice.slots[1]


def _slot_damage(slot: Slot, reason: str) -> PageDamage:
    """Describe the damage of a commit slot; ``reason`` is for messages."""
    words = tr("commit slot {index}", index=slot.index)
    return PageDamage(table=None, page=words, offset=slot.offset, length=SLOT_BYTES, reason=reason)


# B-tree nodes: leaves and branches (``docs/formats/redb.md``, "Trees").


LEAF, BRANCH = 1, 2
_LEAF_HEADER, _BRANCH_HEADER = 4, 8
_NUMBER_BYTES = 8


class EntryWidths(msgspec.Struct, frozen=True, kw_only=True):
    """Fixed widths in bytes of the keys and values of a tree; None for a variable width."""

    key_width: int | None
    value_width: int | None


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf page: where each key and each value ends."""

    page: bytes
    keys_at: int
    key_ends: Sequence[int]
    value_ends: Sequence[int]

    @property
    def end(self) -> int:
        """End of the last value; the checksum covers all bytes before it."""
        return self.value_ends[-1]

    def keys(self) -> list[bytes]:
        """The keys in order."""
        return list(_cut_pieces(self.page, self.keys_at, self.key_ends))

    def values(self) -> Iterator[bytes]:
        """The values in the order of their keys."""
        return _cut_pieces(self.page, self.key_ends[-1], self.value_ends)


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch page: its children, and the keys between them."""

    page: bytes
    count: int
    #: Start of the keys, and end of each; empty if these offsets are invalid.
    keys_at: int
    key_ends: Sequence[int]

    @property
    def end(self) -> int | None:
        """End of the last key; the checksum covers all bytes before it. None if the offsets are invalid."""
        return self.key_ends[-1] if self.key_ends else None

    def children(self) -> list[tuple[int, bytes]]:
        """The page number and checksum of each child."""
        children = self.count + 1
        numbers = struct.unpack_from(f"<{children}Q", self.page, _BRANCH_HEADER + children * CHECKSUM_BYTES)
        offsets = range(_BRANCH_HEADER, _BRANCH_HEADER + children * CHECKSUM_BYTES, CHECKSUM_BYTES)
        return [(number, self.page[at : at + CHECKSUM_BYTES]) for number, at in zip(numbers, offsets, strict=True)]

    def separators(self) -> list[bytes]:
        """The keys between the children: each is at least the last key below the child before it."""
        return list(_cut_pieces(self.page, self.keys_at, self.key_ends))


def read_leaf(page: bytes, shape: EntryWidths) -> Leaf:
    """Parse a leaf page of a tree; ``shape``: widths of the tree's keys and values.

    Raises:
        MalformedPage: the entries do not fit into the page.
    """
    count = _read_entry_count(page, LEAF, _LEAF_HEADER)
    keys_at = _LEAF_HEADER + 4 * count * ((shape.key_width is None) + (shape.value_width is None))
    key_ends = _read_ends(page, _LEAF_HEADER, count, keys_at, shape.key_width)
    values_from = _LEAF_HEADER + (4 * count if shape.key_width is None else 0)
    value_ends = _read_ends(page, values_from, count, key_ends[-1], shape.value_width)
    return Leaf(page=page, keys_at=keys_at, key_ends=key_ends, value_ends=value_ends)


def read_branch(page: bytes, key_width: int | None) -> Branch:
    """Parse a branch page; ``key_width``: fixed width of the tree's keys in bytes, or None.

    Raises:
        MalformedPage: the children do not fit into the page.
    """
    count = _read_entry_count(page, BRANCH, _BRANCH_HEADER)
    ends_at = _BRANCH_HEADER + (count + 1) * (CHECKSUM_BYTES + _NUMBER_BYTES)
    keys_at = ends_at + (4 * count if key_width is None else 0)
    if keys_at > len(page):
        raise MalformedPage(tr("it has more children than fit into the page"))
    try:
        key_ends = _read_ends(page, ends_at, count, keys_at, key_width)
    except MalformedPage:
        key_ends = ()
    return Branch(page=page, count=count, keys_at=keys_at, key_ends=key_ends)


def _read_entry_count(page: bytes, kind: int, header: int) -> int:
    """Return the number of entries of a page; raises MalformedPage if it is 0 or the page type is not ``kind``.

    ``header`` is the size of such a page's header in bytes.
    """
    if len(page) < header or page[0] != kind:
        raise MalformedPage(tr("the page has another type than expected"))
    count = page[2] | page[3] << 8
    if not count:
        raise MalformedPage(tr("the page has no entry"))
    return count


def _read_ends(page: bytes, at: int, count: int, begin: int, width: int | None) -> Sequence[int]:
    """Return the end offset of each of the keys, or values, of a page.

    Args:
        page: the page.
        at: offset of the stored ends, which exist only if the width is variable.
        count: number of keys.
        begin: offset of the first key.
        width: fixed width of a key in bytes, or None.

    Raises:
        MalformedPage: a key ends before its start, or after the page.
    """
    ends: Sequence[int]
    if width is not None:
        ends = range(begin + width, begin + width * count + 1, width) if width else (begin,) * count
    elif at + 4 * count <= len(page):
        ends = struct.unpack_from(f"<{count}I", page, at)
        last = begin
        for end in ends:
            if end < last:
                raise MalformedPage(tr("an entry ends before it begins"))
            last = end
    else:
        raise MalformedPage(tr("it has more entries than fit into the page"))
    if ends[-1] > len(page):
        raise MalformedPage(tr("an entry exceeds its page"))
    return ends


def _cut_pieces(page: bytes, begin: int, ends: Sequence[int]) -> Iterator[bytes]:
    """Yield consecutive pieces of a page: the first one from ``begin`` on, up to each of the offsets ``ends``."""
    for end in ends:
        yield page[begin:end]
        begin = end


# Type names and the selection of codecs (``docs/formats/redb.md``, "Types").


#: Nesting limit of types.
_DEEPEST = 16
_PLAIN = re.compile(r"\(\)|&str|String|&\[u8\]|[a-z]+[0-9]*", re.ASCII)
_COUNT = re.compile(r";([0-9]{1,10})\]", re.ASCII)


class TypeName(msgspec.Struct, frozen=True, kw_only=True):
    """The type of a table's keys or values, as stored in the table definition."""

    #: Classification: one of the constants of :mod:`regraft.formats.redb.values`.
    kind: int
    name: str

    @classmethod
    def read(cls, data: bytes) -> TypeName:
        """Parse a type name: a byte with the classification, then the name.

        Raises:
            MalformedPage: the name is not valid.
        """
        try:
            return cls(kind=data[0], name=data[1:].decode("utf-8"))
        except (IndexError, UnicodeDecodeError) as error:
            raise MalformedPage(tr("the name of a type cannot be read")) from error


def find_codec(name: TypeName, version: int, width: int | None) -> Codec:
    """Return the codec for the type of a table's keys or values; for an unknown type, that of raw bytes.

    Args:
        name: the type.
        version: version of the file format; it determines the encoding of nested tuples.
        width: fixed width of the table's keys or values, or None. A type of another width counts as unknown.
    """
    if name.kind not in (BUILT_IN, TUPLE, COMPOSITE) or name.kind == USER_DEFINED:
        return RAW
    try:
        found = _Parser(name, version).parse()
    except _Unknown:
        return RAW
    return found if found.width == width else RAW


class _Unknown(Exception):
    """The type is unknown."""


class _Parser:
    """Parses the name of a type from left to right. Every method raises _Unknown for an unsupported type.

    ``version`` is the version of the file format.
    """

    def __init__(self, name: TypeName, version: int) -> None:
        self._name = name
        self._version = version
        self._at = 0

    def parse(self) -> Codec:
        """Return the codec of the complete name."""
        found = self._parse_type(0)
        if self._at != len(self._name.name):
            raise _Unknown
        return found

    def _parse_type(self, depth: int) -> Codec:
        """Parse the type at the current position, which is nested in ``depth`` others, and return its codec."""
        if depth > _DEEPEST:
            raise _Unknown
        if self._take("Option<"):
            return values.option_codec(self._parse_last(depth))
        if self._take("Vec<"):
            return _require_known(values.vector_codec(self._parse_last(depth)))
        if self._take("["):
            inner = self._parse_type(depth + 1)
            return _require_known(values.array_codec(inner, int(self._match(_COUNT)[1])))
        plain = _PLAIN.match(self._name.name, self._at)
        if plain is not None:
            self._at = plain.end()
            return _require_known(values.plain_codec(plain[0]))
        if self._take("("):
            return self._parse_tuple(depth)
        raise _Unknown

    def _parse_tuple(self, depth: int) -> Codec:
        """Parse the element types of a tuple after its opening bracket, and return the codec of the tuple."""
        inner = [self._parse_type(depth + 1)]
        while self._take(","):
            if len(inner) == 1 and self._take(")"):
                return values.tuple_codec(inner, has_wide_lengths=False)
            inner.append(self._parse_type(depth + 1))
        if not self._take(")") or len(inner) == 1:
            raise _Unknown
        is_open = any(one.width is None for one in inner)
        return values.tuple_codec(inner, has_wide_lengths=is_open and self._has_wide_lengths())

    def _has_wide_lengths(self) -> bool:
        """Whether the lengths in a tuple's values are encoded as 4 bytes.

        Since redb 3 the kind of a tuple tells. A tuple inside another type is marked by the kind of that type only
        since redb 4.2. Before, both encodings have the same name, and only the file's version can rule one out.
        """
        if self._name.kind in (TUPLE, COMPOSITE):
            return False
        if self._name.name.startswith("(") or self._version == OLDEST_VERSION:
            return True
        raise _Unknown

    def _parse_last(self, depth: int) -> Codec:
        """Parse the type parameter of ``Option`` or ``Vec`` and the closing bracket; return the parameter's codec."""
        inner = self._parse_type(depth + 1)
        if not self._take(">"):
            raise _Unknown
        return inner

    def _take(self, text: str) -> bool:
        """Skip a text if it is at the current position; return whether it is."""
        is_there = self._name.name.startswith(text, self._at)
        if is_there:
            self._at += len(text)
        return is_there

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Return the match of a pattern at the current position in the type name, and move on behind it."""
        found = pattern.match(self._name.name, self._at)
        if found is None:
            raise _Unknown
        self._at = found.end()
        return found


def _require_known(codec: Codec | None) -> Codec:
    """Return a codec; raise _Unknown for None."""
    if codec is None:
        raise _Unknown
    return codec


# Table definitions (``docs/formats/redb.md``, "Tables").


_PLAIN_TABLE, _MULTIMAP = 3, 4
_VERSION_1_KINDS = (1, 2)
_LENGTH = struct.Struct("<BQB")
_WIDTHS = struct.Struct("<BIBIIII")
_ROOT_AT = _LENGTH.size
_WIDTHS_AT = _ROOT_AT + ROOT_BYTES
_NAMES_AT = _WIDTHS_AT + _WIDTHS.size


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a redb file."""

    name: str
    #: Type names as redb writes them, such as ``&str``.
    key_type: str
    value_type: str
    #: Number of rows according to the file; each value of a multimap counts.
    length: int
    multimap: bool


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """A table definition."""

    is_multimap: bool
    length: int
    root: Root | None
    #: Widths of keys and values. Of a multimap, the values are stored in collections.
    shape: EntryWidths
    key: TypeName
    value: TypeName

    def table(self, name: str) -> Table:
        """Return the public description of the table."""
        return Table(
            name=name,
            key_type=self.key.name,
            value_type=self.value.name,
            length=self.length,
            multimap=self.is_multimap,
        )


def read_definition(data: bytes) -> Definition:
    """Parse the stored definition of a table.

    Raises:
        MalformedPage: the definition is invalid or of an unknown kind.
    """
    if len(data) < _NAMES_AT:
        raise MalformedPage(tr("the definition of a table is truncated"))
    kind, length, has_root = _LENGTH.unpack_from(data)
    has_key, key_width, has_value, value_width, *alignments, key_bytes = _WIDTHS.unpack_from(data, _WIDTHS_AT)
    if kind not in (_PLAIN_TABLE, _MULTIMAP):
        raise MalformedPage(
            tr("a table is in the form of version 1")
            if kind in _VERSION_1_KINDS
            else tr("a table is of an unknown kind")
        )
    if alignments != [1, 1] or _NAMES_AT + key_bytes > len(data):
        raise MalformedPage(tr("the definition of a table cannot be read"))
    return Definition(
        is_multimap=kind == _MULTIMAP,
        length=length,
        root=Root.read(data, _ROOT_AT) if has_root else None,
        shape=EntryWidths(key_width=key_width if has_key else None, value_width=value_width if has_value else None),
        key=TypeName.read(data[_NAMES_AT : _NAMES_AT + key_bytes]),
        value=TypeName.read(data[_NAMES_AT + key_bytes :]),
    )
