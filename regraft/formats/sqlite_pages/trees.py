"""Walks B-trees, overflow chains and the freelist of a damaged file (``docs/formats/sqlite-pages.md``)."""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from hashlib import blake2b
from itertools import islice, pairwise

import msgspec

from regraft.formats.sqlite_pages.pages import (
    Cell,
    PageFile,
    PageKind,
    TreePage,
    find_row_start,
    parse_child_cell,
    parse_tree_page,
    read_left_child,
)
from regraft.formats.sqlite_pages.records import MalformedRecord, RowShape, Value, parse_fields, read_varint, to_signed
from regraft.identity import replace

# Results: rows, their origin and flaws, and reasons for refused rows.


class Origin(StrEnum):
    """How a row was found, strongest evidence first."""

    #: On a page that is reachable from the root of its table.
    TREE = "tree"
    #: On a page that looks like one of the table but is not reachable.
    SHAPE = "shape"
    #: On a page of the freelist, or in an unused part of a page.
    FREE = "free"
    #: On an incomplete last page, or beyond the size stated in the header.
    TORN = "torn"


class OverflowFlaw(StrEnum):
    """Damage of a row's overflow chain."""

    #: Some pages also belong to another row. All values are present, but may be the other row's.
    SHARED = "shared"
    #: Some pages are on the freelist. All values are present.
    FREED = "freed"
    #: The chain continues after the end of the row. All values are present.
    LONG = "long"
    #: The chain is cut off, cyclic, or leaves the file or enters a B-tree. Missing values are None.
    BROKEN = "broken"


class Refusal(StrEnum):
    """Why a candidate did not yield a row."""

    #: The pointer leaves the cell area, or does not point to a valid cell.
    CELL = "cell"
    #: That part of the file is missing.
    CUT = "cut"
    #: The record does not fit the table's shape.
    RECORD = "record"
    #: The table's ``accepts`` function rejected the values.
    FOREIGN = "foreign"


class FoundRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row, or the key of an index with its rowid.

    Attributes:
        table: name of its shape.
        rowid: the rowid.
        values: column values; those of an index do not include the rowid.
        page: page number of its cell.
        origin: how it was found.
        flaw: damage of its overflow chain.
        run: rows of a tree with the same run number have no damage between them; -1 for rows outside of a tree.
        overflow: whether it has overflow pages.
    """

    table: str
    rowid: int
    values: tuple[Value, ...]
    page: int
    origin: Origin
    flaw: OverflowFlaw | None = None
    run: int = -1
    overflow: bool = False


class Coverage(msgspec.Struct):
    """Intervals of rowids (after, up to) for which the intact parts of a tree contain all rows.

    ``is_whole``: the tree has no damage. ``last_run``: number of the last run. ``missing``: upper bound of the rowids
    on missing leaves, as far as the tree limits them.
    """

    intervals: list[tuple[int, int]] = msgspec.field(default_factory=list)
    is_whole: bool = False
    last_run: int = 0
    missing: int = 0

    def add(self, low: int, high: int) -> None:
        """Add the interval of rowids above ``low`` up to ``high``, which follows all earlier ones."""
        if self.intervals and self.intervals[-1][1] == low:
            self.intervals[-1] = (self.intervals[-1][0], high)
        else:
            self.intervals.append((low, high))


class ReadingCounts(msgspec.Struct):
    """How the pages of a file were used.

    ``pages`` counts pages with rows of the wanted tables by origin, ``overflow`` their overflow pages, ``inner``
    interior pages and pages of other tables, ``free`` pages on the freelist. ``refused`` counts candidates without a
    row by table and reason.
    """

    pages: Counter[Origin] = msgspec.field(default_factory=Counter)
    overflow: int = 0
    inner: int = 0
    free: int = 0
    refused: Counter[tuple[str, Refusal]] = msgspec.field(default_factory=Counter)


# Overflow chains.


#: Strength of an origin, as the index of a two-bit counter in a page's byte.
_TIERS = {Origin.TREE: 0, Origin.SHAPE: 1, Origin.FREE: 2, Origin.TORN: 2}
_SEVERAL = 2
#: Limit of reads of one page, so that chains claimed by many rows are not read again and again.
_MOST_READS = 8
#: Rows with more overflow pages are not read only to check their shape.
_FEW_PAGES = 8


class OverflowChains:
    """The overflow chains of a file: lists of pages with the rest of records that are too long for a B-tree page.

    All chains have to be claimed before the first is read: only then it is known which pages are shared. Each page is
    read a bounded number of times, however many rows claim it.
    """

    def __init__(self, file: PageFile, owners: array[int]) -> None:
        self._file = file
        self._owners = owners
        self._uses = bytearray(file.pages + 1)
        self._reads = bytearray(file.pages + 1)
        #: Hash of the cell that claimed the chain that begins at each page: the same cell twice is one row.
        self._heads = array("Q", bytes(8 * (file.pages + 1)))
        self._free = bytearray(file.pages + 1)

    def trust_free(self, free: bytearray) -> None:
        """Set the pages that are known to be free (one byte for each page); no row should use them."""
        self._free = free

    def claim(self, cell: Cell, origin: Origin) -> None:
        """Mark the overflow pages of a cell as used by it. ``origin`` says how the cell was found."""
        tier = _TIERS[origin]
        parts = b"%d %d " % (tier, cell.rowid)
        mark = int.from_bytes(blake2b(parts + cell.local, digest_size=8).digest(), "big")
        if not 0 < cell.first <= self._file.pages or self._heads[cell.first] == mark:
            return
        self._heads[cell.first] = mark
        number, left, shift = cell.first, self._most_pages(cell), 2 * tier
        while left and 0 < number <= self._file.pages and not self._owners[number]:
            uses = self._uses[number] >> shift & 3
            if uses == _SEVERAL:
                return
            self._uses[number] += 1 << shift
            number = self._next_page(self._file.page(number))
            left -= 1

    def is_claimed(self, number: int) -> bool:
        """Whether any found row uses this page as an overflow page."""
        return bool(self._uses[number])

    def beginning(self, cell: Cell) -> tuple[bytes, bool]:
        """Return the record of a cell and whether it is complete.

        A very long record is cut to its part on the B-tree page.
        """
        if self._most_pages(cell) > _FEW_PAGES:
            return cell.local, False
        parts, number = [cell.local], cell.first
        missing = cell.payload - len(cell.local)
        while missing > 0 and 0 < number <= self._file.pages:
            data = self._file.page(number)
            parts.append(data[4 : 4 + min(self._file.usable - 4, missing)])
            missing -= len(parts[-1]) or missing
            number = self._next_page(data)
        record = b"".join(parts)
        return record, len(record) == cell.payload

    def read(self, cell: Cell, origin: Origin) -> tuple[bytes, OverflowFlaw | None]:
        """Return the record of a cell and the damage of its overflow chain, or None without damage.

        A broken record is returned as far as it exists. ``origin`` says how the cell was found.
        """
        parts, missing = [cell.local], cell.payload - len(cell.local)
        number, flaw = cell.first, None
        room, seen = self._file.usable - 4, set[int]()
        while missing:
            if number in seen or not self._count_read(number):
                return b"".join(parts), OverflowFlaw.BROKEN
            seen.add(number)
            flaw = flaw or self._find_flaw(number, origin)
            data = self._file.page(number)
            part = data[4 : 4 + min(room, missing)]
            if len(part) < min(room, missing):
                return b"".join(parts), OverflowFlaw.BROKEN
            parts.append(part)
            missing -= len(part)
            number = self._next_page(data)
        if cell.first and number:
            flaw = flaw or OverflowFlaw.LONG
        return b"".join(parts), flaw

    def _most_pages(self, cell: Cell) -> int:
        """Return the number of overflow pages of a cell."""
        return -(-(cell.payload - len(cell.local)) // (self._file.usable - 4))

    def _count_read(self, number: int) -> bool:
        """Count a read of an overflow page. False if it is another kind of page, or was read too often."""
        if not 0 < number <= self._file.pages or self._owners[number] or self._reads[number] >= _MOST_READS:
            return False
        self._reads[number] += 1
        return True

    def _find_flaw(self, number: int, origin: Origin) -> OverflowFlaw | None:
        """Return the flaw of an overflow page: used by several rows, or free. None without a flaw.

        ``origin`` says how the row that is read now was found; weaker rows do not count.
        """
        uses, tier = self._uses[number], _TIERS[origin]
        claims = sum(uses >> 2 * stronger & 3 for stronger in range(tier + 1))
        if claims > 1:
            return OverflowFlaw.SHARED
        return OverflowFlaw.FREED if self._free[number] and origin in (Origin.TREE, Origin.SHAPE) else None

    @staticmethod
    def _next_page(data: bytes) -> int:
        """Return the number of the next page, which an overflow page begins with; 0 at the end of a chain."""
        return int.from_bytes(data[:4], "big") if len(data) >= 4 else 0


#: SQLite's own limit.
_MOST_DEPTH = 20
#: A valid tree visits each page once; a walk stops after many more visits than pages.
_VISITS_A_PAGE, _LEAST_VISITS = 4, 10_000
_LEAST_ROWID, _MOST_ROWID = -(1 << 63) - 1, (1 << 63) - 1
_TRUNK = struct.Struct(">II")


class Visit(msgspec.Struct, kw_only=True):
    """Cells of one page, in tree order; ``page`` None means a missing part of the tree.

    ``is_inner``: interior pages are missing, so the set of leaves is unknown. ``low`` and ``high`` are the bounds of
    rowids (after, up to) that the tree sets. ``is_whole``: header, pointers and order of the page are intact.
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
    def kind(self) -> PageKind:
        """Type of the page; a missing part counts as a leaf without cells."""
        return PageKind.TABLE_LEAF if self.page is None else self.page.kind


class _Child(msgspec.Struct, kw_only=True):
    """A child page to visit."""

    number: int
    low: int = _LEAST_ROWID
    high: int = _MOST_ROWID
    depth: int = 0
    is_bounded: bool = True


class CoverageTracker:
    """Collects which rowids the intact parts of a tree cover, while the tree is walked.

    ``leaves`` marks the pages that the tree names as leaves.
    """

    def __init__(self, pages: int) -> None:
        self.coverage = Coverage(is_whole=True)
        self.leaves = bytearray(pages + 1)
        self._depths: set[int] = set()
        self._leaf_depths: set[int] = set()
        self._is_inner_whole = True

    def add(self, visit: Visit, *, is_whole: bool) -> None:
        """Add the next page of the walk; ``is_whole`` tells that it and its cells are not damaged."""
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

    def coverage_of_tree(self, *, is_index: bool) -> Coverage:
        """Return what the walked tree covers; empty if no tree was walked. An index has no intervals of rowids."""
        if not self._depths:
            return Coverage()
        if is_index:
            self.coverage.intervals.clear()
        return self.coverage

    @property
    def knows_all_leaves(self) -> bool:
        """Whether the tree names all its leaves: they are equally deep, so a damaged page at that depth is a leaf."""
        return self._is_inner_whole and self._depths == self._leaf_depths and len(self._depths) == 1


class TreeWalker:
    """Walks B-trees. ``owners`` maps each page to the number of its tree, or 0."""

    def __init__(self, file: PageFile) -> None:
        self._file = file
        self.owners = array("H", bytes(2 * (file.pages + 1)))

    def walk(self, root: int, tree: int, *, is_index: bool) -> Iterator[Visit]:
        """Yield the pages of the tree below a root page in order (of an index, also the keys between them).

        Record in ``owners`` that they belong to the tree with the number ``tree``.
        """
        seen = bytearray(self._file.pages + 1)
        waiting: list[_Child | Visit] = [_Child(number=root)]
        left = _VISITS_A_PAGE * self._file.pages + _LEAST_VISITS
        while waiting and left:
            left -= 1
            here = waiting.pop()
            if isinstance(here, Visit):
                yield here
                continue
            data, page = self._read_page(here, tree, seen, is_index=is_index)
            visit = None if page is None or not page.kind.is_leaf else _visit_leaf(data, page, here)
            if page is None or (page.kind.is_leaf and visit is None):
                yield Visit(number=here.number, low=here.low, high=here.high, depth=here.depth)
                continue
            self.owners[here.number] = tree
            if visit is not None:
                yield visit
            else:
                below = _list_keys_and_children if is_index else _list_children
                waiting.extend(reversed(below(data, page, here)))
        if waiting:
            yield Visit(number=root, is_inner=True)

    def _read_page(self, child: _Child, tree: int, seen: bytearray, *, is_index: bool) -> tuple[bytes, TreePage | None]:
        """Read a child page of the tree with the number ``tree``. Return its bytes and header.

        The header is None if it is not a page of such a tree or was visited before (``seen``).
        """
        number = child.number
        if not 0 < number <= self._file.pages or child.depth > _MOST_DEPTH:
            return b"", None
        if seen[number] or self.owners[number] not in (0, tree):
            return b"", None
        seen[number] = 1
        data = self._file.page(number)
        page = parse_tree_page(data, number, self._file.usable) if len(data) == self._file.page_size else None
        if page is None or page.kind.is_index != is_index:
            return data, None
        return data, page if page.kind.is_leaf or self._has_children(data, page) else None

    def _has_children(self, data: bytes, page: TreePage) -> bool:
        """Whether most child pointers are valid page numbers; otherwise the page's header is damaged."""
        children = [*(read_left_child(data, at) for at in page.cells), page.right]
        most = max(self._file.pages, self._file.stated)
        return 2 * sum(1 < child <= most for child in children) > len(children)


def _visit_leaf(data: bytes, page: TreePage, child: _Child) -> Visit | None:
    """Describe a leaf page of a walk; None if most of its rowids are outside of the bounds that the tree sets."""
    low, high, is_whole = child.low, child.high, page.is_whole and child.is_bounded
    if not page.kind.is_index and page.cells:
        rowids = [rowid for rowid in (_read_rowid(data, at) for at in page.cells) if rowid is not None]
        inside = [rowid for rowid in rowids if low < rowid <= high]
        if 2 * len(inside) < len(page.cells):
            return None
        is_ordered = all(one < two for one, two in pairwise(inside))
        is_whole = is_whole and is_ordered and len(inside) == len(page.cells)
    return Visit(
        number=child.number,
        data=data,
        page=page,
        cells=tuple(page.cells),
        low=low,
        high=high,
        is_whole=is_whole,
        depth=child.depth,
    )


def _read_rowid(data: bytes, at: int) -> int | None:
    """Return the rowid of the cell at an offset of a table's leaf, or None if it is invalid."""
    try:
        return to_signed(read_varint(data, read_varint(data, at)[1])[0])
    except MalformedRecord:
        return None


def _list_children(data: bytes, page: TreePage, child: _Child) -> list[_Child | Visit]:
    """List the children of a table's interior page, with the bounds of rowids that its keys set.

    A damaged page gives children without bounds, after a visit that marks the gap.
    """
    found: list[tuple[int, int]] = []
    is_sound = page.is_whole and child.is_bounded
    for at in page.cells:
        try:
            found.append(parse_child_cell(data, at))
        except MalformedRecord:
            is_sound = False
    keys = [child.low, *(key for _, key in found), child.high]
    is_sound = is_sound and all(one < two for one, two in pairwise(keys[:-1]))
    is_sound = is_sound and keys[-2] <= child.high
    numbers = [*(number for number, _ in found), page.right]
    if not is_sound:
        return [
            Visit(number=child.number, is_inner=True),
            *(replace(child, number=number, depth=child.depth + 1, is_bounded=False) for number in numbers),
        ]
    return [
        _Child(number=number, low=low, high=high, depth=child.depth + 1)
        for number, low, high in zip(numbers, keys[:-1], keys[1:], strict=True)
    ]


def _list_keys_and_children(data: bytes, page: TreePage, child: _Child) -> list[_Child | Visit]:
    """List the children of an index's interior page, with the page's own keys between them."""
    found: list[_Child | Visit] = [] if page.is_whole else [Visit(number=child.number, is_inner=True)]
    for at in page.cells:
        found.append(_Child(number=read_left_child(data, at), depth=child.depth + 1))
        key = Visit(number=child.number, data=data, page=page, cells=(at,), is_whole=page.is_whole, depth=child.depth)
        found.append(key)
    found.append(_Child(number=page.right, depth=child.depth + 1))
    return found


def read_free_pages(file: PageFile, owners: array[int]) -> tuple[bytearray, bool]:
    """Mark the pages on the freelist, and tell whether the list is consistent.

    It is consistent if it has no cycle, no duplicate and no page of a tree (``owners``), and is as long as the header
    states.
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
    """Whether a page is a pointer-map page of an auto-vacuum file."""
    return file.is_auto_vacuum and number >= 2 and (number - 2) % (file.usable // 5 + 1) == 0


# Rows on pages without a usable header, found by their shape (``docs/formats/sqlite-pages.md``, "By shape").


#: Offset of a leaf's pointer array.
_POINTERS = 8
#: Minimum number of candidate headers per page, and bytes per candidate on large pages.
_LEAST_TRIES, _BYTES_A_TRY = 256, 16


def find_row_starts(data: bytes, shapes: Sequence[RowShape]) -> list[tuple[int, RowShape, bool]]:
    """Find rows on a page by their form. Return the offset of each, its shape, and whether it is current.

    A row is recognized by the record size, the rowid, and a header that adds up to that size. If remaining pointers of
    the page lead to some of the rows, the other rows are not current: they were deleted or moved.
    """
    found: list[tuple[int, RowShape]] = []
    for shape in shapes:
        found.extend((start, shape) for start in _find_starts(data, shape))
    found.sort(key=lambda one: one[0])
    if not found:
        return []
    first = found[0][0]
    pointers = set(struct.unpack_from(f">{max(0, first - _POINTERS) // 2}H", data, _POINTERS))
    has_pointers = any(start in pointers for start, _ in found)
    return [(start, shape, not has_pointers or start in pointers) for start, shape in found]


def _find_starts(data: bytes, shape: RowShape) -> Iterator[int]:
    """Yield the offsets in a page at which a cell with a record of the shape may start."""
    # If nearly every byte looks like a header, the page holds no rows.
    for match in islice(shape.pattern.finditer(data), max(_LEAST_TRIES, len(data) // _BYTES_A_TRY)):
        at = match.start()
        try:
            fields, payload = parse_fields(data[at : at + data[at]])
        except MalformedRecord:
            continue
        if payload > shape.most_bytes or not shape.fits(fields):
            continue
        start = find_row_start(data, at, payload)
        if start is not None:
            yield start
