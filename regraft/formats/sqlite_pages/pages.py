"""Pages of a b-tree and the cells on them (``docs/formats/sqlite-pages.md``, "B-tree pages")."""

from __future__ import annotations

import errno
import os
import struct
from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from regraft.disk import links, untrusted_sqlite
from regraft.formats.sqlite_pages.records import Malformed, put_varint, signed, varint

#: The first page begins with the header of the file.
FILE_HEADER_BYTES = 100
PAGE_SIZES = tuple(512 << shift for shift in range(8))
#: SQLite leaves at least this much of a page for content.
LEAST_USABLE = 480
_HEADER = struct.Struct(">BHHHB")
_POINTER = struct.Struct(">I")
_BLOCK = struct.Struct(">HH")
#: A cell takes at least this much of its page, with what points to it.
_LEAST_CELL = 4


class Kind(IntEnum):
    """What a page is, by its first byte."""

    INDEX_INTERIOR = 0x02
    TABLE_INTERIOR = 0x05
    INDEX_LEAF = 0x0A
    TABLE_LEAF = 0x0D

    @property
    def is_leaf(self) -> bool:
        """Tell whether no pages are below it."""
        return self in (Kind.INDEX_LEAF, Kind.TABLE_LEAF)

    @property
    def is_index(self) -> bool:
        """Tell whether it is of an index."""
        return self in (Kind.INDEX_INTERIOR, Kind.INDEX_LEAF)


_KINDS = {int(kind): kind for kind in Kind}


class TreePage(msgspec.Struct):
    """A page of a b-tree.

    Attributes:
        kind: what it is.
        cells: where its cells begin, in the order of their keys; those whose pointer leads outside are left out.
        outside: where cells begin, by pointers that lead behind the pointers, but before the area of cells.
        stated: how many cells its header says that there are.
        content: where the area of cells begins.
        free: where the first free block in it begins, 0 where there is none; ``fragments`` are bytes that are lost
            between cells.
        right: its last child, 0 of a leaf.
        is_whole: whether every pointer leads into the area of cells, and no two to one place.
    """

    kind: Kind
    cells: list[int]
    outside: list[int]
    stated: int
    content: int
    free: int
    fragments: int
    right: int
    is_whole: bool

    def is_filled(self, data: bytes, usable: int, held: int) -> bool:
        """Tell whether cells of ``held`` bytes and what is free make up all of the area of cells."""
        blocks = self.free_blocks(data, usable)
        return blocks is not None and held + sum(map(len, blocks)) + self.fragments == usable - self.content

    def leads_to(self, at: int, blocks: Sequence[range]) -> bool:
        """Whether the header tells what is at a place: a cell, or nothing, since it is free or before all cells.

        Where the header says a wrong start of the area of cells, pointers lead before it.
        """
        is_before = at < self.content and at not in self.outside
        return is_before or at in self.cells or any(at in block for block in blocks)

    def free_blocks(self, data: bytes, usable: int) -> list[range] | None:
        """Return the parts of the area of cells that are free; None where their chain is damaged."""
        found: list[range] = []
        at = self.free
        while at:
            end = found[-1].stop if found else self.content
            if not end <= at <= min(usable, len(data)) - 4:
                return None
            at_next, length = _BLOCK.unpack_from(data, at)
            if length < 4 or at + length > usable:
                return None
            found.append(range(at, at + length))
            at = at_next
        return found


def tree_page(data: bytes, number: int, usable: int) -> TreePage | None:
    """Return a page as one of a b-tree; None where its header is not that of one."""
    start = FILE_HEADER_BYTES if number == 1 else 0
    if len(data) < start + 12:
        return None
    kind = _KINDS.get(data[start])
    if kind is None:
        return None
    _, free, count, content, fragments = _HEADER.unpack_from(data, start)
    pointers = start + (8 if kind.is_leaf else 12)
    content = content or 65536
    room = pointers + 2 * count
    if not (room <= content <= usable and free < usable and fragments <= 60 and room <= len(data)):
        return None
    places = struct.unpack_from(f">{count}H", data, pointers)
    cells = [at for at in places if content <= at <= usable - _LEAST_CELL]
    right = 0 if kind.is_leaf else _POINTER.unpack_from(data, start + 8)[0]
    is_whole = len(cells) == count and len(set(cells)) == count
    return TreePage(
        kind=kind,
        cells=cells,
        outside=[at for at in places if room <= at < content],
        stated=count,
        content=content,
        free=free,
        fragments=fragments,
        right=right,
        is_whole=is_whole,
    )


class Cell(msgspec.Struct):
    """A cell with a record: a row, or the key of an index.

    ``start`` and ``end`` are where it is on its page; ``first`` is the first page of its overflow chain, 0 where all of
    the record is on the page.
    """

    start: int

    rowid: int
    payload: int
    local: bytes
    first: int
    end: int


def local_bytes(payload: int, usable: int, *, is_index: bool) -> int:
    """Return how much of a record lies on its own page."""
    most = (usable - 12) * 64 // 255 - 23 if is_index else usable - 35
    if payload <= most:
        return payload
    least = (usable - 12) * 32 // 255 - 23
    part = least + (payload - least) % (usable - 4)
    return part if part <= most else least


def record_cell(data: bytes, at: int, usable: int, kind: Kind, most_bytes: int) -> Cell:
    """Return the cell that begins at ``at``, of any page but a table's interior one.

    Raises:
        Malformed: there is none, or its record is larger than ``most_bytes``.
    """
    start = at
    if kind is Kind.INDEX_INTERIOR:
        at += 4
    payload, at = varint(data, at)
    rowid = 0
    if kind is Kind.TABLE_LEAF:
        rowid, at = varint(data, at)
    if payload > most_bytes:
        raise Malformed
    length = local_bytes(payload, usable, is_index=kind.is_index)
    end = at + length
    first = 0
    if length < payload:
        if end + 4 > len(data):
            raise Malformed
        first = _POINTER.unpack_from(data, end)[0]
        if first < 2:
            raise Malformed
    if end + (4 if first else 0) > min(usable, len(data)):
        raise Malformed
    return Cell(
        start=start,
        rowid=signed(rowid),
        payload=payload,
        local=data[at:end],
        first=first,
        end=end + 4 if first else end,
    )


def child_cell(data: bytes, at: int) -> tuple[int, int]:
    """Return the child that a cell of a table's interior page names, and the largest row number below it.

    Raises:
        Malformed: the bytes end before it does.
    """
    if at + 4 > len(data):
        raise Malformed
    return left_child(data, at), signed(varint(data, at + 4)[0])


def left_child(data: bytes, at: int) -> int:
    """Return the page that the first four bytes of a cell name."""
    number: int = _POINTER.unpack_from(data, at)[0]
    return number


def start_of_row(data: bytes, header: int, payload: int) -> int | None:
    """Return where the cell of a row begins whose record begins at ``header``; None where no cell ends there.

    The size of the record and the row's number come right before it.
    """
    size = put_varint(payload)
    for length in range(1, 10):
        before = header - length
        if before < len(size) or (length > 1 and data[before] < 0x80):
            return None
        if data[before - len(size) : before] == size and _is_varint(data, before, header):
            return before - len(size)
    return None


def _is_varint(data: bytes, at: int, end: int) -> bool:
    try:
        return varint(data, at)[1] == end
    except Malformed:
        return False


def end_of_content(data: bytes, number: int, size: int) -> int | None:
    """Return how many bytes the last cell leaves free at the end of a page, as SQLite fills pages from there.

    That is the number of reserved bytes where the cell was the first one on it. None where it is no page of a b-tree
    of this size.
    """
    page = tree_page(data, number, size)
    if page is None or not page.cells or not page.is_whole:
        return None
    last = max(page.cells)
    try:
        if page.kind is Kind.TABLE_INTERIOR:
            end = varint(data, last + 4)[1]
        else:
            end = record_cell(data, last, size, page.kind, 1 << 31).end
    except Malformed:
        return None
    return size - end if size - end < 256 else None


# Pages that a log or a journal beside a file has newer, or older, than the file (``docs/formats/sqlite-pages.md``).


_LOG_HEADER, _FRAME_HEADER = 32, 24
_LOG = struct.Struct(">4s7I")
_FRAME = struct.Struct(">6I")
_LOG_VERSION = 3_007_000
_JOURNAL = struct.Struct(">8s5I")
_JOURNAL_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
#: A journal that was not finished says so many pages: as many as there are.
_UNCOUNTED = 0xFFFFFFFF
_MOST_SECTOR = 65536


class Overlay(msgspec.Struct):
    """Where a file beside holds pages that count instead of the file's own.

    ``places`` gives their offsets by page number; ``pages`` is how many pages the file then has, None where it stays
    as long as it is.
    """

    file: BufferedReader | None = None
    page_size: int = 0
    places: dict[int, int] = msgspec.field(default_factory=dict)
    pages: int | None = None

    def read(self, number: int) -> bytes | None:
        """Return a page; None where the file's own counts.

        Raises:
            OSError: it cannot be read.
        """
        at = self.places.get(number)
        if at is None or self.file is None:
            return None
        self.file.seek(at)
        return self.file.read(self.page_size)

    def close(self) -> None:
        """Close the file beside."""
        if self.file is not None:
            self.file.close()


def beside(path: Path) -> Overlay:
    """Return the pages that the log, or the journal of a transaction that was not finished, has of a file.

    Raises:
        OSError: one of them cannot be read.
    """
    found = {companion.name[len(path.name) :]: companion for companion in untrusted_sqlite.find_companions(path)}
    if "-wal" in found:
        return _opened(found["-wal"], _read_log)
    if "-journal" in found:
        shared = untrusted_sqlite.find_shared_journal(found["-journal"])
        # Where the file that several journals share is gone, their transaction was finished.
        if shared is None or os.path.lexists(os.fsencode(shared)):
            return _opened(found["-journal"], _read_journal)
    return Overlay()


def _opened(path: Path, read: object) -> Overlay:
    file = links.open_for_reading(path)
    try:
        overlay = _read_log(file) if read is _read_log else _read_journal(file)
    except BaseException:
        file.close()
        raise
    overlay.file = file
    return overlay


# --- write-ahead logs ----------------------------------------------------------------------------------------------


def _read_log(file: BufferedReader) -> Overlay:
    """Return the frames of committed transactions, up to the first whose checksum does not follow from those before."""
    overlay = Overlay()
    header = file.read(_LOG_HEADER)
    if len(header) < _LOG_HEADER:
        return overlay
    magic, version, size, _, salt, other_salt, *sums = _LOG.unpack(header)
    order = ">" if magic[-1] & 1 else "<"
    state = _summed(header[:24], order, (0, 0))
    if version != _LOG_VERSION or size not in PAGE_SIZES or state != tuple(sums):
        return overlay
    overlay.page_size = size
    waiting: dict[int, int] = {}
    while len(frame := file.read(_FRAME_HEADER + size)) == _FRAME_HEADER + size:
        number, committed, one_salt, two_salt, *sums = _FRAME.unpack_from(frame)
        state = _summed(frame[_FRAME_HEADER:], order, _summed(frame[:8], order, state))
        if (one_salt, two_salt) != (salt, other_salt) or state != tuple(sums) or number == 0:
            break
        waiting[number] = file.tell() - size
        if committed:
            overlay.places.update(waiting)
            overlay.pages = committed
            waiting.clear()
    return overlay


def _summed(data: bytes, order: str, state: tuple[int, int]) -> tuple[int, int]:
    first, second = state
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for one, two in zip(words, words, strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second


# --- rollback journals ---------------------------------------------------------------------------------------------


def _read_journal(file: BufferedReader) -> Overlay:
    """Return the pages as they were before a transaction that was not finished."""
    overlay = Overlay()
    end = file.seek(0, os.SEEK_END)
    at = 0
    while at + _JOURNAL.size <= end:
        file.seek(at)
        magic, count, nonce, pages, sector, size = _JOURNAL.unpack(file.read(_JOURNAL.size))
        if magic != _JOURNAL_MAGIC or not _is_sound(overlay, sector, size):
            break
        if overlay.pages is None:
            overlay.page_size, overlay.pages = size, pages
        at += sector
        held = (end - at) // (size + 8)
        count = held if count == _UNCOUNTED else min(count, held)
        if not _take_pages(file, overlay, at, count, nonce):
            break
        at += -(-count * (size + 8) // sector) * sector
        if not count:
            break
    return overlay


def _is_sound(overlay: Overlay, sector: int, size: int) -> bool:
    is_first = overlay.pages is None
    powers = size in PAGE_SIZES and 32 <= sector <= _MOST_SECTOR and sector & (sector - 1) == 0
    return powers and (is_first or size == overlay.page_size)


def _take_pages(file: BufferedReader, overlay: Overlay, at: int, count: int, nonce: int) -> bool:
    """Take the records of one part of a journal; False at the first whose checksum is wrong: it was never written."""
    size = overlay.page_size
    for start in range(at, at + count * (size + 8), size + 8):
        file.seek(start)
        record = file.read(size + 8)
        if len(record) < size + 8:
            return False
        number = int.from_bytes(record[:4], "big")
        data = record[4:-4]
        total = nonce + sum(data[place] for place in range(size - 200, 0, -200))
        if number == 0 or total & 0xFFFFFFFF != int.from_bytes(record[-4:], "big"):
            return False
        # The first copy of a page is the one from before the transaction.
        overlay.places.setdefault(number, start + 4)
    return True


# A SQLite file as numbered pages, whatever its first page still says (``docs/formats/sqlite-pages.md``, "Pages").


_ENCODINGS = {1: "utf-8", 2: "utf-16-le", 3: "utf-16-be"}
#: Three bytes of the header that no file has otherwise: they tell a header whose magic is damaged.
_FRACTIONS = b"\x40\x20\x20"
#: So many pages are looked at for each page size that may be meant.
_SAMPLE = 512
#: Fewer pages prove nothing against a header.
_FEW_PAGES = 4


class PageFile:
    """A SQLite file that is open for reading, page by page; nothing of it is changed and nothing made beside it.

    Attributes:
        size: bytes of the file.
        page_size: bytes of a page, as the header says, else as most pages look.
        usable: bytes of a page that SQLite uses.
        encoding: the encoding of its texts; None where no header says so.
        pages: how many pages there are; the last may lack bytes.
        stated: how many the header says that there are; 0 where it does not.
        is_guessed: whether the page size was told by the pages.
        has_header: whether the first page has the header of a file.
        unreadable: pages that the disk does not give.

    Raises:
        OSError: it cannot be read.
        ValueError: no page size makes pages of it.
    """

    def __init__(self, path: Path) -> None:
        self.path = links.real_path(path)
        self._file = links.open_for_reading(self.path, buffering=0)
        self._beside = Overlay()
        self.unreadable: set[int] = set()
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self._beside = beside(self.path)
            self._read_header()
        except BaseException:
            self.close()
            raise

    def _read_header(self) -> None:
        header = self._beside.read(1) or self._read(0, FILE_HEADER_BYTES)
        stated = _stated_size(header)
        size, reserved = self._looks_like(stated, header[20] if stated else 0)
        if not size:
            raise ValueError(self.path)
        self.has_header = stated == size
        self.is_guessed = not self.has_header
        self.page_size, self.usable = size, size - reserved
        self.encoding = _ENCODINGS.get(int.from_bytes(header[56:60], "big")) if self.has_header else None
        self.freelist = int.from_bytes(header[32:36], "big") if self.has_header else 0
        self.freed = int.from_bytes(header[36:40], "big") if self.has_header else 0
        self.is_auto_vacuum = self.has_header and header[52:56] != bytes(4)
        in_file = -(-self.size // size)
        if self._beside.page_size not in (0, size):
            self._beside.places.clear()
            self._beside.pages = None
        self.pages = in_file if self._beside.pages is None else self._beside.pages
        is_counted = self.has_header and header[24:28] == header[92:96]
        self.stated = int.from_bytes(header[28:32], "big") if is_counted else 0

    def _looks_like(self, stated: int, reserved: int) -> tuple[int, int]:
        """Return the page size that most of the file looks like, and its reserved bytes; (0, 0) where none fits."""
        seen = {size: self._evidence(size) for size in PAGE_SIZES}
        # Pages of the right size are filled to one and the same place. At twice the size half of them may seem so too.
        best = max(PAGE_SIZES, key=lambda size: max(seen[size].values(), default=0))
        most = max(seen[best].values(), default=0)
        # A damaged header may say another size: then next to no page is filled to where it says.
        if stated and (most < _FEW_PAGES or 4 * seen[stated][reserved] >= most):
            return stated, reserved
        if not seen[best]:
            return 0, 0
        return best, seen[best].most_common(1)[0][0]

    def _evidence(self, size: int) -> Counter[int]:
        """Return how many of some pages look like pages of a b-tree, by the bytes that they leave at their end."""
        count = self.size // size
        found: Counter[int] = Counter()
        for index in range(0, count, max(1, count // _SAMPLE)):
            left = end_of_content(self._read(index * size, size), index + 1, size)
            if left is not None:
                found[left] += 1
        return found

    def page(self, number: int) -> bytes:
        """Return the bytes of a page, from 1 on: fewer where the file ends within it, none where it is not there."""
        if not 0 < number <= self.pages:
            return b""
        try:
            data = self._beside.read(number)
            return self._read((number - 1) * self.page_size, self.page_size) if data is None else data
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.unreadable.add(number)
            return b""

    def _read(self, offset: int, length: int) -> bytes:
        self._file.seek(offset)
        data = self._file.read(length)
        while len(data) < length and (more := self._file.read(length - len(data))):
            data += more
        return data

    def is_torn(self, number: int) -> bool:
        """Tell whether a page is the last one and not all there, or lies behind the end that the header states."""
        if 0 < self.stated < number:
            return True
        return number == self.pages and len(self.page(number)) < self.page_size

    def close(self) -> None:
        """Close the file; closing it again does nothing."""
        self._file.close()
        self._beside.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _stated_size(header: bytes) -> int:
    """Return the page size that a header states; 0 where it is no header of a SQLite file."""
    if len(header) < FILE_HEADER_BYTES or (
        header[21:24] != _FRACTIONS and not header.startswith(untrusted_sqlite.MAGIC)
    ):
        return 0
    size = int.from_bytes(header[16:18], "big")
    size = 65536 if size == 1 else size
    return size if size in PAGE_SIZES and size - header[20] >= LEAST_USABLE else 0
