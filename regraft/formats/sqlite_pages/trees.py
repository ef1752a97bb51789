"""Trees of a file, walked from their roots, and its list of free pages (``docs/formats/sqlite-pages.md``)."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from regraft.formats.sqlite_pages.file import PageFile
from regraft.formats.sqlite_pages.found import Coverage
from regraft.formats.sqlite_pages.pages import Kind, TreePage, child_cell, left_child, tree_page
from regraft.formats.sqlite_pages.records import Malformed, signed, varint
from regraft.records import replace

#: SQLite goes no deeper.
_MOST_DEPTH = 20
#: A tree names every page once; a walk ends where one names many more than there are.
_VISITS_A_PAGE, _LEAST_VISITS = 4, 10_000
_LEAST_ROWID, _MOST_ROWID = -(1 << 63) - 1, (1 << 63) - 1
_TRUNK = struct.Struct(">II")


class Visit(msgspec.Struct, kw_only=True):
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

    @property
    def kind(self) -> Kind:
        """Return what the page is; of a part that is not there a leaf, which has no cells."""
        return Kind.TABLE_LEAF if self.page is None else self.page.kind


class _Below(msgspec.Struct, kw_only=True):
    """A child to be visited."""

    number: int
    low: int = _LEAST_ROWID
    high: int = _MOST_ROWID
    depth: int = 0
    is_bounded: bool = True


class TreeCover:
    """What a walk through a tree tells of what there is.

    ``leaves`` marks the pages that the tree names as its leaves.
    """

    def __init__(self, pages: int) -> None:
        self.coverage = Coverage(is_whole=True)
        self.leaves = bytearray(pages + 1)
        self._depths: set[int] = set()
        self._leaf_depths: set[int] = set()
        self._is_inner_whole = True

    def add(self, visit: Visit, *, is_whole: bool) -> None:
        """Take what was visited next; ``is_whole`` tells whether nothing of it is damaged."""
        self.leaves[visit.number if visit.number < len(self.leaves) else 0] = 1
        self._depths.add(visit.depth)
        if visit.page is not None:
            self._leaf_depths.add(visit.depth)
        self._is_inner_whole = self._is_inner_whole and not visit.is_inner
        if is_whole:
            self.coverage.add(visit.low, visit.high)
        else:
            self.coverage.last_run += 1
            self.coverage.is_whole = False
        if visit.page is None and visit.high < _MOST_ROWID:
            self.coverage.missing += visit.high - max(0, visit.low)

    def told(self, *, is_index: bool) -> Coverage:
        """Return what the tree covers, nothing of one that was not walked."""
        if not self._depths:
            return Coverage()
        if is_index:
            self.coverage.intervals.clear()
        return self.coverage

    @property
    def tells_leaves(self) -> bool:
        """Tell whether all leaves are known: they are equally deep, so that a damaged page there is one of them."""
        return self._is_inner_whole and self._depths == self._leaf_depths and len(self._depths) == 1


class Walker:
    """Walks trees; ``owners`` has for every page the number of the tree that it is of, 0 where it is of none."""

    def __init__(self, file: PageFile) -> None:
        self._file = file
        self.owners = array("H", bytes(2 * (file.pages + 1)))

    def walk(self, root: int, tree: int, *, is_index: bool) -> Iterator[Visit]:
        """Yield what a tree holds, in its order. Pages are entered into ``owners`` as pages of ``tree``."""
        seen = bytearray(self._file.pages + 1)
        waiting: list[_Below | Visit] = [_Below(number=root)]
        left = _VISITS_A_PAGE * self._file.pages + _LEAST_VISITS
        while waiting and left:
            left -= 1
            here = waiting.pop()
            if isinstance(here, Visit):
                yield here
                continue
            data, page = self._page(here, tree, seen, is_index=is_index)
            visit = None if page is None or not page.kind.is_leaf else _leaf(data, page, here)
            if page is None or (page.kind.is_leaf and visit is None):
                yield Visit(number=here.number, low=here.low, high=here.high, depth=here.depth)
                continue
            self.owners[here.number] = tree
            if visit is not None:
                yield visit
            else:
                below = _keys_and_children if is_index else _children
                waiting.extend(reversed(below(data, page, here)))
        if waiting:
            yield Visit(number=root, is_inner=True)

    def _page(self, here: _Below, tree: int, seen: bytearray, *, is_index: bool) -> tuple[bytes, TreePage | None]:
        """Return a child, None where it is no page of such a tree, or was visited before."""
        number = here.number
        if not 0 < number <= self._file.pages or here.depth > _MOST_DEPTH:
            return b"", None
        if seen[number] or self.owners[number] not in (0, tree):
            return b"", None
        seen[number] = 1
        data = self._file.page(number)
        page = tree_page(data, number, self._file.usable) if len(data) == self._file.page_size else None
        if page is None or page.kind.is_index != is_index:
            return data, None
        return data, page if page.kind.is_leaf or self._has_children(data, page) else None

    def _has_children(self, data: bytes, page: TreePage) -> bool:
        """Tell whether most of what an inner page names are pages: else it is another page with a damaged header."""
        children = [*(left_child(data, at) for at in page.cells), page.right]
        most = max(self._file.pages, self._file.stated)
        return 2 * sum(1 < child <= most for child in children) > len(children)


def _leaf(data: bytes, page: TreePage, here: _Below) -> Visit | None:
    """Return a leaf; None where it holds rows that the tree does not want here."""
    low, high, is_whole = here.low, here.high, page.is_whole and here.is_bounded
    if not page.kind.is_index and page.cells:
        rowids = [rowid for rowid in (_rowid(data, at) for at in page.cells) if rowid is not None]
        inside = [rowid for rowid in rowids if low < rowid <= high]
        if 2 * len(inside) < len(page.cells):
            return None
        is_ordered = all(one < two for one, two in pairwise(inside))
        is_whole = is_whole and is_ordered and len(inside) == len(page.cells)
    return Visit(
        number=here.number,
        data=data,
        page=page,
        cells=tuple(page.cells),
        low=low,
        high=high,
        is_whole=is_whole,
        depth=here.depth,
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
    is_sound = is_sound and all(one < two for one, two in pairwise(keys[:-1]))
    is_sound = is_sound and keys[-2] <= here.high
    numbers = [*(number for number, _ in found), page.right]
    if not is_sound:
        return [
            Visit(number=here.number, is_inner=True),
            *(replace(here, number=number, depth=here.depth + 1, is_bounded=False) for number in numbers),
        ]
    return [
        _Below(number=number, low=low, high=high, depth=here.depth + 1)
        for number, low, high in zip(numbers, keys[:-1], keys[1:], strict=True)
    ]


def _keys_and_children(data: bytes, page: TreePage, here: _Below) -> list[_Below | Visit]:
    """Return the children of an index's interior page, with its own keys between them."""
    found: list[_Below | Visit] = [] if page.is_whole else [Visit(number=here.number, is_inner=True)]
    for at in page.cells:
        found.append(_Below(number=left_child(data, at), depth=here.depth + 1))
        key = Visit(number=here.number, data=data, page=page, cells=(at,), is_whole=page.is_whole, depth=here.depth)
        found.append(key)
    found.append(_Below(number=page.right, depth=here.depth + 1))
    return found


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
