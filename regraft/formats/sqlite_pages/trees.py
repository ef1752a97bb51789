"""Trees of a file, walked from their roots, and its list of free pages (``docs/formats/sqlite-pages.md``)."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from regraft.formats.sqlite_pages.file import PageFile
from regraft.formats.sqlite_pages.pages import TreePage, child_cell, left_child, tree_page
from regraft.formats.sqlite_pages.records import Malformed, signed, varint

#: SQLite goes no deeper.
_MOST_DEPTH = 20
_LEAST_ROWID, _MOST_ROWID = -(1 << 63) - 1, (1 << 63) - 1
_TRUNK = struct.Struct(">II")


@dataclass(slots=True)
class Visit:
    """Cells of one page, in the order of the tree; ``page`` None stands for a part of the tree that is not there.

    ``is_inner`` tells that pages are missing above leaves: then nobody knows which leaves there are.

    ``low`` and ``high`` are the bounds of row numbers (after, up to) that the tree sets; ``is_whole`` tells whether
    nothing of the page is damaged as far as its header, pointers and order tell.
    """

    number: int
    data: bytes = b""
    page: TreePage | None = None
    cells: tuple[int, ...] = ()
    low: int = _LEAST_ROWID
    high: int = _MOST_ROWID
    is_whole: bool = False
    is_inner: bool = False
    depth: int = 0


@dataclass(slots=True)
class _Below:
    """A child to be visited."""

    number: int
    low: int
    high: int
    depth: int
    is_bounded: bool


class Walker:
    """Walks trees; ``owners`` has for every page the number of the tree that it is of, 0 where it is of none."""

    def __init__(self, file: PageFile) -> None:
        self._file = file
        self.owners = array("H", bytes(2 * (file.pages + 1)))

    def walk(self, root: int, tree: int, *, is_index: bool) -> Iterator[Visit]:
        """Yield what a tree holds, in its order. Pages are entered into ``owners`` as pages of ``tree``."""
        seen = bytearray(self._file.pages + 1)
        waiting: list[_Below | Visit] = [_Below(root, _LEAST_ROWID, _MOST_ROWID, 0, is_bounded=True)]
        while waiting:
            here = waiting.pop()
            if isinstance(here, Visit):
                yield here
                continue
            if not self._may_enter(here, tree, seen):
                yield Visit(here.number, depth=here.depth)
                continue
            seen[here.number] = 1
            data = self._file.page(here.number)
            page = tree_page(data, here.number, self._file.usable) if len(data) == self._file.page_size else None
            if page is None or page.kind.is_index != is_index:
                yield Visit(here.number, depth=here.depth)
            elif not page.kind.is_leaf and not self._has_children(data, page):
                yield Visit(here.number, depth=here.depth)
            elif not page.kind.is_leaf:
                self.owners[here.number] = tree
                below = _keys_and_children if is_index else _children
                waiting.extend(reversed(below(data, page, here)))
            elif visit := _leaf(data, page, here):
                self.owners[here.number] = tree
                yield visit
            else:
                yield Visit(here.number, depth=here.depth)

    def _has_children(self, data: bytes, page: TreePage) -> bool:
        """Tell whether most of what an inner page names are pages: else it is another page with a damaged header."""
        children = [*(left_child(data, at) for at in page.cells), page.right]
        most = max(self._file.pages, self._file.stated)
        return 2 * sum(1 < child <= most for child in children) > len(children)

    def _may_enter(self, here: _Below, tree: int, seen: bytearray) -> bool:
        is_page = 0 < here.number <= self._file.pages and here.depth <= _MOST_DEPTH
        return is_page and not seen[here.number] and self.owners[here.number] in (0, tree)


def _leaf(data: bytes, page: TreePage, here: _Below) -> Visit | None:
    """Return a leaf; None where it holds rows that the tree does not want here."""
    low, high, is_whole = here.low, here.high, page.is_whole and here.is_bounded
    if not page.kind.is_index and page.cells:
        rowids = [rowid for rowid in (_rowid(data, at) for at in page.cells) if rowid is not None]
        inside = [rowid for rowid in rowids if low < rowid <= high]
        if 2 * len(inside) < len(page.cells):
            return None
        is_ordered = all(one < two for one, two in zip(inside, inside[1:], strict=False))
        is_whole = is_whole and is_ordered and len(inside) == len(page.cells)
    return Visit(
        here.number, data, page, tuple(page.cells), low=low, high=high, is_whole=is_whole, depth=here.depth
    )


def _rowid(data: bytes, at: int) -> int | None:
    try:
        return signed(varint(data, varint(data, at)[1])[0])
    except Malformed:
        return None


def _children(data: bytes, page: TreePage, here: _Below) -> list[_Below | Visit]:
    """Return the children of a table's interior page with the bounds that its keys set."""
    found: list[tuple[int, int]] = []
    is_sound = page.is_whole and here.is_bounded
    for at in page.cells:
        try:
            found.append(child_cell(data, at))
        except Malformed:
            is_sound = False
    keys = [here.low, *(key for _, key in found), here.high]
    is_sound = is_sound and all(one < two for one, two in zip(keys[:-1], keys[1:-1], strict=False))
    is_sound = is_sound and keys[-2] <= here.high
    numbers = [*(number for number, _ in found), page.right]
    if not is_sound:
        return [
            Visit(here.number, is_inner=True),
            *(_Below(number, here.low, here.high, here.depth + 1, is_bounded=False) for number in numbers),
        ]
    return [
        _Below(number, low, high, here.depth + 1, is_bounded=True)
        for number, low, high in zip(numbers, keys[:-1], keys[1:], strict=True)
    ]


def _keys_and_children(data: bytes, page: TreePage, here: _Below) -> list[_Below | Visit]:
    """Return the children of an index's interior page, with its own keys between them."""
    found: list[_Below | Visit] = [] if page.is_whole else [Visit(here.number, is_inner=True)]
    for at in page.cells:
        found.append(_below(left_child(data, at), here))
        found.append(Visit(here.number, data, page, (at,), is_whole=page.is_whole))
    found.append(_below(page.right, here))
    return found


def _below(number: int, here: _Below) -> _Below:
    return _Below(number, here.low, here.high, here.depth + 1, is_bounded=here.is_bounded)


def free_pages(file: PageFile, owners: array[int]) -> tuple[bytearray, bool]:
    """Return which pages the list of free pages names, and whether that list is sound.

    It is where it is no circle, names no page twice and none of a tree, and holds as many as the header says.
    """
    free = bytearray(file.pages + 1)
    number, count = file.freelist, 0
    while 0 < number <= file.pages and not free[number] and not owners[number]:
        data = file.page(number)
        if len(data) < file.usable:
            return free, False
        following, listed = _TRUNK.unpack_from(data)
        if listed > file.usable // 4 - 2:
            return free, False
        named = struct.unpack_from(f">{listed}I", data, _TRUNK.size)
        if not all(1 < one <= file.pages and not free[one] and not owners[one] for one in named):
            return free, False
        free[number] = 1
        for one in named:
            free[one] = 1
        count += 1 + len(set(named))
        number = following
    return free, number == 0 and count == file.freed


def is_pointer_map(file: PageFile, number: int) -> bool:
    """Tell whether a page says whose the pages after it are, as a file that shrinks by itself has them."""
    return file.is_auto_vacuum and number >= 2 and (number - 2) % (file.usable // 5 + 1) == 0

