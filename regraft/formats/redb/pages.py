"""The bytes of a redb file: opened, located, and read with care (``docs/formats/redb.md``, "Pages")."""

from __future__ import annotations

import errno
import os
import stat
import sys
from array import array
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from regraft import areas
from regraft.formats.redb.damage import Malformed
from regraft.formats.redb.errors import NotRedb, RedbChanged, RedbError, RedbInUse, RedbTooShort
from regraft.formats.redb.header import HEADER_BYTES, MAGIC, Layout
from regraft.language import tr

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
    if areas.fcntl is None:
        return  # reading what is locked is refused there
    try:
        areas.fcntl.flock(file, areas.fcntl.LOCK_SH | areas.fcntl.LOCK_NB)
    except OSError as error:
        # A file system without locks has nothing to say.
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise RedbInUse(path=path) from error
    else:
        areas.fcntl.flock(file, areas.fcntl.LOCK_UN)


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
