"""Pages of a b-tree and the cells on them (``docs/formats/sqlite-pages.md``, "B-tree pages")."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

import msgspec

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
