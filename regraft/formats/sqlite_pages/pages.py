"""SQLite files as pages: B-tree pages and cells, write-ahead logs, journals (``docs/formats/sqlite-pages.md``)."""

from __future__ import annotations

import errno
import os
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from enum import IntEnum
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from regraft.disk import links, untrusted_sqlite
from regraft.formats.sqlite_pages.records import MalformedRecord, encode_varint, read_varint, to_signed

#: Size of the file header at the start of page 1.
FILE_HEADER_BYTES = 100
PAGE_SIZES = tuple(512 << shift for shift in range(8))
#: Minimum usable bytes of a page.
MIN_USABLE_BYTES = 480
_HEADER = struct.Struct(">BHHHB")
_POINTER = struct.Struct(">I")
_BLOCK = struct.Struct(">HH")
#: Minimum bytes of a page that a cell takes.
_LEAST_CELL = 4


class PageKind(IntEnum):
    """Type of a B-tree page, given by its first byte."""

    INDEX_INTERIOR = 0x02
    TABLE_INTERIOR = 0x05
    INDEX_LEAF = 0x0A
    TABLE_LEAF = 0x0D

    @property
    def is_leaf(self) -> bool:
        """Whether this is a leaf page."""
        return self in (PageKind.INDEX_LEAF, PageKind.TABLE_LEAF)

    @property
    def is_index(self) -> bool:
        """Whether this is a page of an index."""
        return self in (PageKind.INDEX_INTERIOR, PageKind.INDEX_LEAF)


_KINDS = {int(kind): kind for kind in PageKind}


class TreePage(msgspec.Struct):
    """The header and cell pointers of a B-tree page.

    Attributes:
        kind: page type.
        cells: offsets of the cells in key order, without invalid pointers.
        outside: offsets between the pointer array and the cell area, as some pointers state.
        stated: number of cells according to the header.
        content: start of the cell area.
        free: offset of the first free block, or 0; ``fragments`` is the number of unused bytes
            between cells.
        right: the rightmost child page, 0 for a leaf.
        is_whole: whether all pointers are distinct and within the cell area.
    """

    kind: PageKind
    cells: list[int]
    outside: list[int]
    stated: int
    content: int
    free: int
    fragments: int
    right: int
    is_whole: bool

    def is_filled(self, data: bytes, usable: int, held: int) -> bool:
        """Whether cells of ``held`` bytes in total and the free space add up to the cell area of this page.

        ``usable`` is the number of usable bytes of the page.
        """
        blocks = self.free_blocks(data, usable)
        return blocks is not None and held + sum(map(len, blocks)) + self.fragments == usable - self.content

    def accounts_for(self, at: int, blocks: Sequence[range]) -> bool:
        """Whether the header explains the bytes at an offset: a cell, a free block, or unused space before all cells.

        ``blocks`` are the free blocks. If the header gives a wrong start of the cell area, some pointers lie before it.
        """
        is_before = at < self.content and at not in self.outside
        return is_before or at in self.cells or any(at in block for block in blocks)

    def free_blocks(self, data: bytes, usable: int) -> list[range] | None:
        """Return the free blocks of the cell area as ranges of offsets; None if their chain is damaged.

        ``usable`` is the number of usable bytes of the page.
        """
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


def parse_tree_page(data: bytes, number: int, usable: int) -> TreePage | None:
    """Parse the header of a B-tree page; None if it is not valid.

    ``number`` is the page number, ``usable`` the number of usable bytes of a page.
    """
    start = FILE_HEADER_BYTES if number == 1 else 0
    if len(data) < start + 12:
        return None
    kind = _KINDS.get(data[start])
    if kind is None:
        return None
    _, free, count, content, fragments = _HEADER.unpack_from(data, start)
    pointers = start + (8 if kind.is_leaf else 12)
    content = content or 65536
    pointers_end = pointers + 2 * count
    if not (pointers_end <= content <= usable and free < usable and fragments <= 60 and pointers_end <= len(data)):
        return None
    offsets = struct.unpack_from(f">{count}H", data, pointers)
    cells = [at for at in offsets if content <= at <= usable - _LEAST_CELL]
    right = 0 if kind.is_leaf else _POINTER.unpack_from(data, start + 8)[0]
    is_whole = len(cells) == count and len(set(cells)) == count
    return TreePage(
        kind=kind,
        cells=cells,
        outside=[at for at in offsets if pointers_end <= at < content],
        stated=count,
        content=content,
        free=free,
        fragments=fragments,
        right=right,
        is_whole=is_whole,
    )


class Cell(msgspec.Struct):
    """A cell with a record: a row, or the key of an index.

    ``start`` and ``end`` are its offsets on the page; ``first`` is the first overflow page, or 0.
    """

    start: int

    rowid: int
    payload: int
    local: bytes
    first: int
    end: int


def local_bytes(payload: int, usable: int, *, is_index: bool) -> int:
    """Return how many bytes of a record of ``payload`` bytes are stored on the B-tree page itself.

    ``usable`` is the number of usable bytes of a page.
    """
    most = (usable - 12) * 64 // 255 - 23 if is_index else usable - 35
    if payload <= most:
        return payload
    least = (usable - 12) * 32 // 255 - 23
    part = least + (payload - least) % (usable - 4)
    return part if part <= most else least


def parse_record_cell(data: bytes, at: int, usable: int, kind: PageKind, most_bytes: int) -> Cell:
    """Parse the cell at an offset, on any page except a table's interior page.

    Raises:
        MalformedRecord: there is no valid cell, or its record exceeds ``most_bytes``.
    """
    start = at
    if kind is PageKind.INDEX_INTERIOR:
        at += 4
    payload, at = read_varint(data, at)
    rowid = 0
    if kind is PageKind.TABLE_LEAF:
        rowid, at = read_varint(data, at)
    if payload > most_bytes:
        raise MalformedRecord
    length = local_bytes(payload, usable, is_index=kind.is_index)
    end = at + length
    first = 0
    if length < payload:
        if end + 4 > len(data):
            raise MalformedRecord
        first = _POINTER.unpack_from(data, end)[0]
        if first < 2:
            raise MalformedRecord
    if end + (4 if first else 0) > min(usable, len(data)):
        raise MalformedRecord
    return Cell(
        start=start,
        rowid=to_signed(rowid),
        payload=payload,
        local=data[at:end],
        first=first,
        end=end + 4 if first else end,
    )


def parse_child_cell(data: bytes, at: int) -> tuple[int, int]:
    """Parse the cell at an offset of a table's interior page.

    Return the child page number and the largest rowid below it.

    Raises:
        MalformedRecord: the cell is truncated.
    """
    if at + 4 > len(data):
        raise MalformedRecord
    return read_left_child(data, at), to_signed(read_varint(data, at + 4)[0])


def read_left_child(data: bytes, at: int) -> int:
    """Return the child page number in the first four bytes of the cell at an offset."""
    number: int = _POINTER.unpack_from(data, at)[0]
    return number


def find_row_start(data: bytes, header: int, payload: int) -> int | None:
    """Return the offset of the cell whose record begins at ``header`` and has ``payload`` bytes.

    None if no valid cell precedes it. The record size and the rowid are stored directly before the record.
    """
    size = encode_varint(payload)
    for length in range(1, 10):
        before = header - length
        if before < len(size) or (length > 1 and data[before] < 0x80):
            return None
        if data[before - len(size) : before] == size and _is_varint(data, before, header):
            return before - len(size)
    return None


def _is_varint(data: bytes, at: int, end: int) -> bool:
    """Whether a varint (SQLite's integer of variable length) at ``at`` ends at ``end``."""
    try:
        return read_varint(data, at)[1] == end
    except MalformedRecord:
        return False


def count_free_end_bytes(data: bytes, number: int, size: int) -> int | None:
    """Return how many bytes are free after the last cell of a page; None if it is not a B-tree page of this size.

    SQLite fills pages from the end, so after the first cell this is the number of reserved bytes.
    """
    page = parse_tree_page(data, number, size)
    if page is None or not page.cells or not page.is_whole:
        return None
    last = max(page.cells)
    try:
        if page.kind is PageKind.TABLE_INTERIOR:
            end = read_varint(data, last + 4)[1]
        else:
            end = parse_record_cell(data, last, size, page.kind, 1 << 31).end
    except MalformedRecord:
        return None
    return size - end if size - end < 256 else None


# Pages in a write-ahead log or a rollback journal that replace pages of the file.


_LOG_HEADER, _FRAME_HEADER = 32, 24
_LOG = struct.Struct(">4s7I")
_FRAME = struct.Struct(">6I")
_LOG_VERSION = 3_007_000
_JOURNAL = struct.Struct(">8s5I")
_JOURNAL_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
#: Page count in the header of an unfinished journal: use all records that exist.
_UNCOUNTED = 0xFFFFFFFF
_MOST_SECTOR = 65536


class Overlay(msgspec.Struct):
    """Pages in a companion file that replace pages of the main file.

    ``places`` maps page numbers to offsets. ``pages`` is the resulting number of pages in the file; None leaves it
    unchanged.
    """

    file: BufferedReader | None = None
    page_size: int = 0
    places: dict[int, int] = msgspec.field(default_factory=dict)
    pages: int | None = None

    def read(self, number: int) -> bytes | None:
        """Return a page, or None if the main file's page is valid.

        Raises:
            OSError: the file cannot be read.
        """
        at = self.places.get(number)
        if at is None or self.file is None:
            return None
        self.file.seek(at)
        return self.file.read(self.page_size)

    def close(self) -> None:
        """Close the companion file."""
        if self.file is not None:
            self.file.close()


def open_overlay(path: Path) -> Overlay:
    """Find the pages in a file's write-ahead log, or in the journal of an unfinished transaction, that replace its own.

    Raises:
        OSError: one of them cannot be read.
    """
    found = {companion.name[len(path.name) :]: companion for companion in untrusted_sqlite.find_companions(path)}
    if "-wal" in found:
        return _open_companion(found["-wal"], _read_log)
    if "-journal" in found:
        shared = untrusted_sqlite.find_shared_journal(found["-journal"])
        # A missing super-journal means that the transaction was completed.
        if shared is None or os.path.lexists(os.fsencode(shared)):
            return _open_companion(found["-journal"], _read_journal)
    return Overlay()


def _open_companion(path: Path, read: Callable[[BufferedReader], Overlay]) -> Overlay:
    """Open a write-ahead log or a rollback journal and list its pages with ``read``."""
    file = links.open_for_reading(path)
    try:
        overlay = read(file)
    except BaseException:
        file.close()
        raise
    overlay.file = file
    return overlay


# --- write-ahead logs ----------------------------------------------------------------------------------------------


def _read_log(file: BufferedReader) -> Overlay:
    """List the pages in the committed transactions of a write-ahead log, up to the first wrong checksum."""
    overlay = Overlay()
    header = file.read(_LOG_HEADER)
    if len(header) < _LOG_HEADER:
        return overlay
    magic, version, size, _, salt, other_salt, *sums = _LOG.unpack(header)
    order = ">" if magic[-1] & 1 else "<"
    state = _checksum(header[:24], order, (0, 0))
    if version != _LOG_VERSION or size not in PAGE_SIZES or state != tuple(sums):
        return overlay
    overlay.page_size = size
    waiting: dict[int, int] = {}
    while len(frame := file.read(_FRAME_HEADER + size)) == _FRAME_HEADER + size:
        number, committed, one_salt, two_salt, *sums = _FRAME.unpack_from(frame)
        state = _checksum(frame[_FRAME_HEADER:], order, _checksum(frame[:8], order, state))
        if (one_salt, two_salt) != (salt, other_salt) or state != tuple(sums) or number == 0:
            break
        waiting[number] = file.tell() - size
        if committed:
            overlay.places.update(waiting)
            overlay.pages = committed
            waiting.clear()
    return overlay


def _checksum(data: bytes, order: str, state: tuple[int, int]) -> tuple[int, int]:
    """Continue the checksum of a write-ahead log over more bytes, from a ``state`` to the next.

    ``order`` is the byte order of its numbers.
    """
    first, second = state
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for one, two in zip(words, words, strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second


# --- rollback journals ---------------------------------------------------------------------------------------------


def _read_journal(file: BufferedReader) -> Overlay:
    """List the pages in a rollback journal: their state before an unfinished transaction."""
    overlay = Overlay()
    end = file.seek(0, os.SEEK_END)
    at = 0
    while at + _JOURNAL.size <= end:
        file.seek(at)
        magic, count, nonce, pages, sector, size = _JOURNAL.unpack(file.read(_JOURNAL.size))
        if magic != _JOURNAL_MAGIC or not _is_valid_header(overlay, sector, size):
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


def _is_valid_header(overlay: Overlay, sector: int, size: int) -> bool:
    """Whether sector size and page size in the header of a journal segment are possible and agree with earlier ones."""
    is_first = overlay.pages is None
    powers = size in PAGE_SIZES and 32 <= sector <= _MOST_SECTOR and sector & (sector - 1) == 0
    return powers and (is_first or size == overlay.page_size)


def _take_pages(file: BufferedReader, overlay: Overlay, at: int, count: int, nonce: int) -> bool:
    """Add the pages of one journal segment to the overlay. False at the first wrong checksum (an incomplete write).

    The segment begins at the offset ``at`` and has ``count`` records; ``nonce`` starts their checksums.
    """
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
        # The first copy of a page is its state before the transaction.
        overlay.places.setdefault(number, start + 4)
    return True


# The main file.


_ENCODINGS = {1: "utf-8", 2: "utf-16-le", 3: "utf-16-be"}
#: Header bytes with fixed values; they identify a header whose magic string is damaged.
_FRACTIONS = b"\x40\x20\x20"
#: Pages sampled for each candidate page size.
_SAMPLE = 512
#: Fewer matching pages are no evidence against the header.
_FEW_PAGES = 4


class PageFile:
    """A SQLite file that is read page by page. Neither the file nor its companions are changed or created.

    Attributes:
        size: bytes of the file.
        page_size: page size from the header, or inferred from the pages.
        usable: usable bytes of a page.
        encoding: text encoding according to the header, or None.
        pages: number of pages; the last one may be incomplete.
        stated: number of pages according to the header, or 0.
        has_header: whether the first page has a valid file header.
        unreadable: pages with I/O errors.

    Raises:
        OSError: the file cannot be read.
        ValueError: no page size fits the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = links.real_path(path)
        self._file = links.open_for_reading(self.path, buffering=0)
        self._beside = Overlay()
        self.unreadable: set[int] = set()
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self._beside = open_overlay(self.path)
            self._read_header()
        except BaseException:
            self.close()
            raise

    def _read_header(self) -> None:
        """Read the file header, from the log if it has it; if damaged, infer the page size from the pages."""
        header = self._beside.read(1) or self._read(0, FILE_HEADER_BYTES)
        stated = _stated_size(header)
        size, reserved = self._infer_page_size(stated, header[20] if stated else 0)
        if not size:
            raise ValueError(self.path)
        self.has_header = stated == size
        self.page_size, self.usable = size, size - reserved
        # Zeros: unknown encoding, no freelist, no auto-vacuum.
        fields = header if self.has_header else bytes(FILE_HEADER_BYTES)
        self.encoding = _ENCODINGS.get(int.from_bytes(fields[56:60], "big"))
        self.freelist = int.from_bytes(fields[32:36], "big")
        self.freed = int.from_bytes(fields[36:40], "big")
        self.is_auto_vacuum = fields[52:56] != bytes(4)
        in_file = -(-self.size // size)
        if self._beside.page_size not in (0, size):
            self._beside.places.clear()
            self._beside.pages = None
        self.pages = in_file if self._beside.pages is None else self._beside.pages
        is_counted = self.has_header and header[24:28] == header[92:96]
        self.stated = int.from_bytes(header[28:32], "big") if is_counted else 0

    def _infer_page_size(self, stated: int, reserved: int) -> tuple[int, int]:
        """Return the page size and the reserved bytes per page that most pages support; (0, 0) if no size fits.

        ``stated`` and ``reserved`` are the values in the header.
        """
        seen = {size: self._sample_pages(size) for size in PAGE_SIZES}
        # With the right page size, pages are filled to the same offset. With twice that size half of them may seem so,
        # too.
        best = max(PAGE_SIZES, key=lambda size: max(seen[size].values(), default=0))
        most = max(seen[best].values(), default=0)
        # With a damaged header, hardly any page is filled up to the stated offset.
        if stated and (most < _FEW_PAGES or 4 * seen[stated][reserved] >= most):
            return stated, reserved
        if not seen[best]:
            return 0, 0
        return best, seen[best].most_common(1)[0][0]

    def _sample_pages(self, size: int) -> Counter[int]:
        """Read a sample of pages of this size.

        Count the valid B-tree pages by the number of free bytes at their end.
        """
        count = self.size // size
        found: Counter[int] = Counter()
        for index in range(0, count, max(1, count // _SAMPLE)):
            left = count_free_end_bytes(self._read(index * size, size), index + 1, size)
            if left is not None:
                found[left] += 1
        return found

    def page(self, number: int) -> bytes:
        """Return page ``number`` (from 1). It is shorter at the end of the file, and empty if it does not exist."""
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
        """Read bytes of the file at an offset; fewer at the end of the file."""
        self._file.seek(offset)
        data = self._file.read(length)
        while len(data) < length and (more := self._file.read(length - len(data))):
            data += more
        return data

    def is_torn(self, number: int) -> bool:
        """Whether a page is an incomplete last page, or is beyond the size stated in the header."""
        if 0 < self.stated < number:
            return True
        return number == self.pages and len(self.page(number)) < self.page_size

    def close(self) -> None:
        """Close the file. Closing it twice is allowed."""
        self._file.close()
        self._beside.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _stated_size(header: bytes) -> int:
    """Return the page size that a file header states; 0 if it is not a valid header."""
    if len(header) < FILE_HEADER_BYTES or (
        header[21:24] != _FRACTIONS and not header.startswith(untrusted_sqlite.MAGIC)
    ):
        return 0
    size = int.from_bytes(header[16:18], "big")
    size = 65536 if size == 1 else size
    return size if size in PAGE_SIZES and size - header[20] >= MIN_USABLE_BYTES else 0
