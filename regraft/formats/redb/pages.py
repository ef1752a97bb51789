"""The bytes of a redb file: opened, located, and read with care (``docs/formats/redb.md``, "Pages")."""

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
    Malformed,
    NotRedb,
    PageDamage,
    RedbChanged,
    RedbError,
    RedbInUse,
    RedbTooShort,
    Report,
)
from regraft.formats.redb.values import BUILT_IN, COMPOSITE, RAW, TUPLE, USER_DEFINED, Codec
from regraft.language import tr

# The header of a redb file: its layout and its two commit slots (``docs/formats/redb.md``, "Header").


MAGIC = b"redb\x1a\x0a\xa9\x0d\x0a"
HEADER_BYTES = 320
SLOT_BYTES = 128
SLOTS_AT = (64, 192)
CHECKSUM_BYTES = 16
#: The versions of the file format that are read.
OLDEST_VERSION, NEWEST_VERSION = 2, 3

_GOD_BYTE = 9
_PRIMARY, _RECOVERY, _TWO_PHASE = 1, 2, 4
_LAYOUT = struct.Struct("<5I")
_LAYOUT_AT = 12
_ROOT = struct.Struct("<Q16sQ")
ROOT_BYTES = _ROOT.size
#: Where a slot has its flags and roots: of the tables, of redb's own tables, and of the pages freed (version 2).
_ROOTS = ((1, 8), (2, 40), (3, 72))
_TRANSACTION_AT = 104
_CHECKED_BYTES = SLOT_BYTES - CHECKSUM_BYTES
_SMALLEST_PAGE = 512
_MOST_PAGES = 1 << 20


def checksum(data: bytes | memoryview) -> bytes:
    """Return the checksum of bytes as redb stores it: XXH3 of 128 bits, lowest byte first."""
    return xxhash.xxh3_128_digest(data)[::-1]


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """Where a tree begins."""

    page: int
    checksum: bytes
    #: How many entries the tree has.
    length: int

    @classmethod
    def read(cls, data: bytes, at: int) -> Root:
        """Read a root at a place of bytes that are long enough."""
        page, stored, length = _ROOT.unpack_from(data, at)
        return cls(page=page, checksum=stored, length=length)


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A commit slot: one state of the database."""

    #: Which of the two it is.
    index: int
    version: int
    tables: Root | None
    system: Root | None
    #: Version 2 alone has a tree of its own for the pages that were freed.
    freed: Root | None
    transaction_id: int
    #: Whether its checksum is that of its bytes.
    is_whole: bool

    @property
    def offset(self) -> int:
        """Where in the file it is."""
        return SLOTS_AT[self.index]


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How a file is divided into pages and regions."""

    page_size: int
    region_header_pages: int
    region_pages: int
    full_regions: int
    trailing_pages: int

    @property
    def is_possible(self) -> bool:
        """Tell whether redb makes files with such pages and regions."""
        size = self.page_size
        return size >= _SMALLEST_PAGE and not size & (size - 1) and 0 < self.region_pages <= _MOST_PAGES

    @property
    def region_bytes(self) -> int:
        """How many bytes a whole region has, with its header."""
        return (self.region_header_pages + self.region_pages) * self.page_size

    @property
    def file_bytes(self) -> int:
        """How long the file should be."""
        trailing = self.region_header_pages + self.trailing_pages if self.trailing_pages else 0
        return self.page_size + self.full_regions * self.region_bytes + trailing * self.page_size


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a file."""

    layout: Layout
    #: The slot that the file says to read.
    primary: Slot
    secondary: Slot
    #: Whether the file was left open.
    needs_recovery: bool
    #: Whether the primary slot was safe on the disk before the file named it.
    is_two_phase: bool


def read_header(data: bytes) -> Header:
    """Read the first 320 bytes of a redb file."""
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
        primary=_slot(data, primary),
        secondary=_slot(data, 1 - primary),
        needs_recovery=bool(flags & _RECOVERY),
        is_two_phase=bool(flags & _TWO_PHASE),
    )


def _slot(header: bytes, index: int) -> Slot:
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
#: Of the smallest pages of a file, so many are kept track of, and in parts of so many.
MOST_PAGES, _PART = 1 << 24, 1 << 12


class Place(NamedTuple):
    """Where a page lies in the file."""

    offset: int
    length: int
    number: int

    @property
    def words(self) -> str:
        """Which page it is, for a person."""
        region, index, order = split_number(self.number)
        return tr("region {region}, page {index}, order {order}", region=region, index=index, order=order)


def split_number(number: int) -> tuple[int, int, int]:
    """Return the region, the index and the order that a page number has."""
    order = number >> _ORDER_AT
    return (number >> _REGION_AT) & _FIELD, number & (_FIELD >> order), order


class StoredFile:
    """A redb file that is open for reading.

    Raises:
        RedbError: it cannot be read, is in use, or does not begin as a redb file does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _opened(path)
        try:
            _probe(self._file, path)
            self.size = os.fstat(self._file.fileno()).st_size
            self.header = self.read(0, HEADER_BYTES)
            self._check_beginning()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; closing it again does nothing."""
        self._file.close()

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file; fewer where it ends before.

        Raises:
            RedbError: the disk fails, or the file was closed.
        """
        if self._file.closed:
            raise RedbError(path=self.path, reason=tr("it was closed"))
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
        """What tells a state of the file: its header, with both commits, and its size."""
        return self.header + self.size.to_bytes(8, "little")

    def demand(self, state: bytes | None) -> None:
        """Refuse the file where it is in another state than is given; None: any.

        Raises:
            RedbChanged
        """
        if state not in (None, self.state):
            raise RedbChanged(path=self.path)

    def check_unchanged(self) -> None:
        """Hold the file against what it was when it was opened.

        Raises:
            RedbChanged: it is another.
            RedbError: the disk fails, or the file was closed.
        """
        if self.read(0, HEADER_BYTES) != self.header or os.fstat(self._file.fileno()).st_size != self.size:
            raise RedbChanged(path=self.path)

    def _check_beginning(self) -> None:
        begin = self.header[: len(MAGIC)]
        if begin != MAGIC[: len(begin)] or not begin:
            raise NotRedb(path=self.path)
        if len(self.header) < HEADER_BYTES:
            raise RedbTooShort(path=self.path, size=len(self.header))


def _opened(path: Path) -> FileIO:
    """Open a file for reading; a pipe is never waited for."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise RedbError(path=path, reason=tr("it is not a file"))
        return path.open("rb", buffering=0)
    except OSError as error:
        raise RedbError(path=path, reason=error.strerror or error) from error
    except ValueError as error:  # a NUL in the path
        raise RedbError(path=path, reason=error) from error


def _probe(file: FileIO, path: Path) -> None:
    """See that no other program has the file open: redb locks it as long as it does."""
    if writable.fcntl is None:
        return  # reading what is locked is refused there
    try:
        writable.fcntl.flock(file, writable.fcntl.LOCK_SH | writable.fcntl.LOCK_NB)
    except OSError as error:
        # A file system without locks has nothing to say.
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise RedbInUse(path=path) from error
    else:
        writable.fcntl.flock(file, writable.fcntl.LOCK_UN)


def _pread(file: FileIO, length: int, offset: int) -> bytes:
    if sys.platform == "win32":
        file.seek(offset)
        return file.read(length) or b""
    return os.pread(file.fileno(), length, offset)


class Pages:
    """The pages of a file, by their numbers."""

    def __init__(self, file: StoredFile, layout: Layout) -> None:
        self._file = file
        self._page_size = layout.page_size
        self._region_pages = layout.region_pages
        self._region_bytes = layout.region_bytes
        self._first_page_at = layout.page_size * (1 + layout.region_header_pages)

    @property
    def units(self) -> int:
        """How many pages of the smallest size the file has, a part of one among them."""
        return -(-self._file.size // self._page_size)

    def place(self, number: int) -> Place:
        """Return where a page lies.

        Raises:
            Malformed: no such page can be in the file.
        """
        _, index, order = split_number(number)
        if order > _MOST_ORDER or (index + 1) << order > self._region_pages:
            raise Malformed(tr("no page of a region has this number"))
        length = self._page_size << order
        offset = self.offset(number)
        if offset + length > self._file.size:
            raise Malformed(tr("the page lies outside of the file"))
        return Place(offset, length, number)

    def offset(self, number: int) -> int:
        """Return where a page with this number would begin, be it in the file or not."""
        region, index, order = split_number(number)
        return self._first_page_at + region * self._region_bytes + index * (self._page_size << order)

    def read(self, place: Place) -> bytes:
        """Return the bytes of a page.

        Raises:
            Malformed: the file ends before.
            RedbError: the disk fails.
        """
        data = self._file.read(place.offset, place.length)
        if len(data) < place.length:
            raise Malformed(tr("the page lies outside of the file"))
        return data

    def span(self, place: Place) -> tuple[int, int]:
        """Return the first of the smallest pages that a page covers, and how many it covers."""
        return place.offset // self._page_size, place.length // self._page_size


class Claims:
    """Which tree has which part of the file: no part belongs to two tables, and no walk comes to one twice."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        #: For each of the smallest pages who has it, and, where a page begins, its order and 1.
        self.owners = array("I", [0]) * pages.units
        self.begins = bytearray(pages.units)

    def walk(self, owner: int) -> Claim:
        """Return the claims of a new walk on behalf of an owner, a number from 1."""
        return Claim(self, owner)


class Claim:
    """The claims of one walk."""

    def __init__(self, claims: Claims, owner: int) -> None:
        self._claims = claims
        self._owner = owner
        #: Where pages begin that this walk came to, in parts of the file: a small table has few of them.
        self._seen: dict[int, bytearray] = {}

    def take(self, place: Place) -> None:
        """Claim a page.

        Raises:
            Malformed: a part of it was claimed before.
        """
        first, count = self._claims.pages.span(place)
        part = self._seen.setdefault(first // _PART, bytearray(_PART))
        if part[first % _PART] or not self._is_own(first, count):
            raise Malformed(tr("the page is reached a second time"))
        part[first % _PART] = 1

    def _is_own(self, first: int, count: int) -> bool:
        """Take a page, unless parts of it are a page of another size.

        Raises:
            Malformed: another table has a part of it.
        """
        owners, begins = self._claims.owners, self._claims.begins
        having = {owners[first]} if count == 1 else set(owners[first : first + count])
        if not having <= {0, self._owner}:
            raise Malformed(tr("the page belongs to another table"))
        mark = count.bit_length()
        if having != {0}:
            return begins[first] == mark
        begins[first] = mark
        if count == 1:
            owners[first] = self._owner
        else:
            owners[first : first + count] = array("I", [self._owner]) * count
        return True


# Which of the two commit slots of a redb file is read (``docs/formats/redb.md``, "Which slot counts").


#: Since this version a file that was closed cleanly never has a newer state in the slot that it does not name.
_NEWEST_IS_NAMED = 3


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The slots in the order in which they are to be tried, those alone whose checksums are right."""

    slots: tuple[Slot, ...]
    #: Whether the second is to be read where not all pages of the first are right.
    may_fall_back: bool = False


def choose(header: Header, size: int, report: Report) -> Choice:
    """Return which slot of a file of this size to read, and report those that are damaged."""
    primary, secondary = header.primary, header.secondary
    if not primary.is_whole:
        if secondary.is_whole:
            report(_damaged(primary, tr("its checksum is wrong, and the other commit was read")))
        return Choice(slots=(secondary,) if secondary.is_whole else ())
    if not secondary.is_whole:
        # Whoever is killed in the midst of a commit leaves such a slot.
        if not header.needs_recovery:
            report(_damaged(secondary, tr("its checksum is wrong")))
        return Choice(slots=(primary,))
    is_newer = secondary.transaction_id > primary.transaction_id
    if _was_left(header, size) and not header.is_two_phase:
        return Choice(slots=(secondary, primary) if is_newer else (primary, secondary), may_fall_back=True)
    if is_newer and not header.needs_recovery and primary.version >= _NEWEST_IS_NAMED:
        report(_damaged(primary, tr("the file names it, but the other commit is newer and was read")))
        return Choice(slots=(secondary, primary))
    return Choice(slots=(primary, secondary))


def settle(choice: Choice, is_right: Callable[[Slot], bool], report: Report) -> Slot:
    """Return the slot of a choice that counts, given what tells whether all pages of a slot are right."""
    first = choice.slots[0]
    if not choice.may_fall_back or is_right(first) or not is_right(choice.slots[1]):
        return first
    report(_damaged(first, tr("not all of this commit reached the disk, and the one before was read")))
    return choice.slots[1]


def _was_left(header: Header, size: int) -> bool:
    """Tell whether redb would mend the file when it opens it."""
    return header.needs_recovery or header.layout.file_bytes != size


def _damaged(slot: Slot, reason: str) -> PageDamage:
    words = tr("commit slot {index}", index=slot.index)
    return PageDamage(table=None, page=words, offset=slot.offset, length=SLOT_BYTES, reason=reason)


# The two kinds of pages that a tree has: leaves and branches (``docs/formats/redb.md``, "Trees").


LEAF, BRANCH = 1, 2
_LEAF_HEADER, _BRANCH_HEADER = 4, 8
_NUMBER_BYTES = 8


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How many bytes each key and each value of a tree has; None where they differ."""

    key_width: int | None
    value_width: int | None


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of a leaf: where each key and each value ends."""

    page: bytes
    keys_at: int
    key_ends: Sequence[int]
    value_ends: Sequence[int]

    @property
    def end(self) -> int:
        """Where its last value ends; its checksum is that of the bytes before."""
        return self.value_ends[-1]

    def keys(self) -> list[bytes]:
        """Return the keys in order."""
        return list(_pieces(self.page, self.keys_at, self.key_ends))

    def values(self) -> Iterator[bytes]:
        """Return the values in the order of their keys."""
        return _pieces(self.page, self.key_ends[-1], self.value_ends)


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch: its children, and the keys between them."""

    page: bytes
    count: int
    #: Where the keys begin, and where each ends; none where those places cannot be.
    keys_at: int
    key_ends: Sequence[int]

    @property
    def end(self) -> int | None:
        """Where its last key ends; its checksum is that of the bytes before."""
        return self.key_ends[-1] if self.key_ends else None

    def children(self) -> list[tuple[int, bytes]]:
        """Return the page number and the checksum of each child."""
        children = self.count + 1
        numbers = struct.unpack_from(f"<{children}Q", self.page, _BRANCH_HEADER + children * CHECKSUM_BYTES)
        places = range(_BRANCH_HEADER, _BRANCH_HEADER + children * CHECKSUM_BYTES, CHECKSUM_BYTES)
        return [(number, self.page[at : at + CHECKSUM_BYTES]) for number, at in zip(numbers, places, strict=True)]

    def separators(self) -> list[bytes]:
        """Return the keys: each is that of the last entry below the child before it, or lies behind that."""
        return list(_pieces(self.page, self.keys_at, self.key_ends))


def read_leaf(page: bytes, shape: Shape) -> Leaf:
    """Read a leaf.

    Raises:
        Malformed: its entries do not fit into it.
    """
    count = _count(page, LEAF, _LEAF_HEADER)
    keys_at = _LEAF_HEADER + 4 * count * ((shape.key_width is None) + (shape.value_width is None))
    key_ends = _ends(page, _LEAF_HEADER, count, (keys_at, shape.key_width))
    values_from = _LEAF_HEADER + (4 * count if shape.key_width is None else 0)
    value_ends = _ends(page, values_from, count, (key_ends[-1], shape.value_width))
    return Leaf(page=page, keys_at=keys_at, key_ends=key_ends, value_ends=value_ends)


def read_branch(page: bytes, key_width: int | None) -> Branch:
    """Read a branch.

    Raises:
        Malformed: its children do not fit into it.
    """
    count = _count(page, BRANCH, _BRANCH_HEADER)
    ends_at = _BRANCH_HEADER + (count + 1) * (CHECKSUM_BYTES + _NUMBER_BYTES)
    keys_at = ends_at + (4 * count if key_width is None else 0)
    if keys_at > len(page):
        raise Malformed(tr("it has more children than fit into it"))
    try:
        key_ends = _ends(page, ends_at, count, (keys_at, key_width))
    except Malformed:
        key_ends = ()
    return Branch(page=page, count=count, keys_at=keys_at, key_ends=key_ends)


def _count(page: bytes, kind: int, header: int) -> int:
    if len(page) < header or page[0] != kind:
        raise Malformed(tr("it is of another kind than it should be"))
    count = page[2] | page[3] << 8
    if not count:
        raise Malformed(tr("it has no entry"))
    return count


def _ends(page: bytes, at: int, count: int, begin_and_width: tuple[int, int | None]) -> Sequence[int]:
    """Return where each of the pieces of a page ends, which begin at a place and have a width or stored ends.

    Raises:
        Malformed: one ends before it begins, or after the page.
    """
    begin, width = begin_and_width
    ends: Sequence[int]
    if width is not None:
        ends = range(begin + width, begin + width * count + 1, width) if width else (begin,) * count
    elif at + 4 * count <= len(page):
        ends = struct.unpack_from(f"<{count}I", page, at)
        last = begin
        for end in ends:
            if end < last:
                raise Malformed(tr("an entry ends before it begins"))
            last = end
    else:
        raise Malformed(tr("it has more entries than fit into it"))
    if ends[-1] > len(page):
        raise Malformed(tr("an entry reaches past its page"))
    return ends


def _pieces(page: bytes, begin: int, ends: Sequence[int]) -> Iterator[bytes]:
    for end in ends:
        yield page[begin:end]
        begin = end


# The names of redb's types, and how values of each are read (``docs/formats/redb.md``, "Types").


#: Types in types in types; nobody needs more.
_DEEPEST = 16
_PLAIN = re.compile(r"\(\)|&str|String|&\[u8\]|[a-z]+[0-9]*", re.ASCII)
_COUNT = re.compile(r";([0-9]{1,10})\]", re.ASCII)


class TypeName(msgspec.Struct, frozen=True, kw_only=True):
    """A type as the definition of a table names it."""

    #: Who made it and how it is encoded: one of the constants of :mod:`regraft.formats.redb.values`.
    kind: int
    name: str

    @classmethod
    def read(cls, data: bytes) -> TypeName:
        """Read a type's name.

        Raises:
            Malformed: it is none.
        """
        try:
            return cls(kind=data[0], name=data[1:].decode("utf-8"))
        except (IndexError, UnicodeDecodeError) as error:
            raise Malformed(tr("the name of a type cannot be read")) from error


def codec(name: TypeName, version: int, width: int | None) -> Codec:
    """Return how values of a type are read; bytes as they are where nobody here knows the type.

    Args:
        name: the type.
        version: of the file's format, which tells how tuples within other types are encoded.
        width: how many bytes the table gives to each value.
    """
    if name.kind not in (BUILT_IN, TUPLE, COMPOSITE) or name.kind == USER_DEFINED:
        return RAW
    try:
        found = _Parser(name, version).whole()
    except _Unknown:
        return RAW
    return found if found.width == width else RAW


class _Unknown(Exception):
    """A type that nobody here knows."""


class _Parser:
    """Reads the name of a type from left to right."""

    def __init__(self, name: TypeName, version: int) -> None:
        self._name = name
        self._version = version
        self._at = 0

    def whole(self) -> Codec:
        """Return the codec of the whole name."""
        found = self._type(0)
        if self._at != len(self._name.name):
            raise _Unknown
        return found

    def _type(self, depth: int) -> Codec:
        if depth > _DEEPEST:
            raise _Unknown
        if self._take("Option<"):
            return values.option(self._last(depth, ">"))
        if self._take("Vec<"):
            return _known(values.vector(self._last(depth, ">")))
        if self._take("["):
            inner = self._type(depth + 1)
            return _known(values.sequence(inner, int(self._match(_COUNT)[1])))
        plain = _PLAIN.match(self._name.name, self._at)
        if plain is not None:
            self._at = plain.end()
            return _known(values.plain_value(plain[0]))
        if self._take("("):
            return self._tuple(depth)
        raise _Unknown

    def _tuple(self, depth: int) -> Codec:
        inner = [self._type(depth + 1)]
        while self._take(","):
            if len(inner) == 1 and self._take(")"):
                return values.tuple_of(inner, has_wide_lengths=False)
            inner.append(self._type(depth + 1))
        if not self._take(")") or len(inner) == 1:
            raise _Unknown
        is_open = any(one.width is None for one in inner)
        return values.tuple_of(inner, has_wide_lengths=is_open and self._has_wide_lengths())

    def _has_wide_lengths(self) -> bool:
        """Tell how the lengths of tuples are encoded.

        Since redb 3 the kind of a tuple says so. A tuple within another type says it by that type's kind only since
        redb 4.2; before, both encodings have the same name, and the file's version alone tells what cannot be.
        """
        if self._name.kind in (TUPLE, COMPOSITE):
            return False
        if self._name.name.startswith("(") or self._version == OLDEST_VERSION:
            return True
        raise _Unknown

    def _last(self, depth: int, end: str) -> Codec:
        inner = self._type(depth + 1)
        if not self._take(end):
            raise _Unknown
        return inner

    def _take(self, text: str) -> bool:
        is_there = self._name.name.startswith(text, self._at)
        if is_there:
            self._at += len(text)
        return is_there

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self._name.name, self._at)
        if found is None:
            raise _Unknown
        self._at = found.end()
        return found


def _known(found: Codec | None) -> Codec:
    if found is None:
        raise _Unknown
    return found


# What a redb file says of each of its tables (``docs/formats/redb.md``, "Tables").


_PLAIN_tables, _MULTIMAP = 3, 4
_OLD = (1, 2)
_LENGTH = struct.Struct("<BQB")
_WIDTHS = struct.Struct("<BIBIIII")
_ROOT_AT = _LENGTH.size
_WIDTHS_AT = _ROOT_AT + ROOT_BYTES
_NAMES_AT = _WIDTHS_AT + _WIDTHS.size


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a redb file."""

    name: str
    #: The types as redb names them, such as ``&str``.
    key_type: str
    value_type: str
    #: How many rows the file says that it has; each value of a multimap is one.
    length: int
    multimap: bool


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What the list of tables has for a table."""

    is_multimap: bool
    length: int
    root: Root | None
    #: The widths of its keys and of its values; in a multimap those of the values lie in collections.
    shape: Shape
    key: TypeName
    value: TypeName

    def table(self, name: str) -> Table:
        """Return what a reader is told of it."""
        return Table(
            name=name,
            key_type=self.key.name,
            value_type=self.value.name,
            length=self.length,
            multimap=self.is_multimap,
        )


def read_definition(data: bytes) -> Definition:
    """Read the definition of a table.

    Raises:
        Malformed: it is none, or none that is known.
    """
    if len(data) < _NAMES_AT:
        raise Malformed(tr("the definition of a table is cut off"))
    kind, length, has_root = _LENGTH.unpack_from(data)
    has_key, key_width, has_value, value_width, *alignments, key_bytes = _WIDTHS.unpack_from(data, _WIDTHS_AT)
    if kind not in (_PLAIN_tables, _MULTIMAP):
        raise Malformed(
            tr("a table is in the form of version 1") if kind in _OLD else tr("a table is of an unknown kind")
        )
    if alignments != [1, 1] or _NAMES_AT + key_bytes > len(data):
        raise Malformed(tr("the definition of a table cannot be read"))
    return Definition(
        is_multimap=kind == _MULTIMAP,
        length=length,
        root=Root.read(data, _ROOT_AT) if has_root else None,
        shape=Shape(key_width=key_width if has_key else None, value_width=value_width if has_value else None),
        key=TypeName.read(data[_NAMES_AT : _NAMES_AT + key_bytes]),
        value=TypeName.read(data[_NAMES_AT + key_bytes :]),
    )
