"""Trees of a file, walked from their roots, and its list of free pages (``docs/formats/sqlite-pages.md``)."""

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
    Kind,
    PageFile,
    TreePage,
    child_cell,
    left_child,
    start_of_row,
    tree_page,
)
from regraft.formats.sqlite_pages.records import Malformed, Shape, Value, fields_of, signed, varint
from regraft.identity import replace

# Rows found by what they look like, on pages whose header is gone (``docs/formats/sqlite-pages.md``, "By shape").


#: Where the pointers of a leaf begin.
_POINTERS = 8
#: So many headers at least are tried on a page, and on a larger one a try for so many bytes.
_LEAST_TRIES, _BYTES_A_TRY = 256, 16


def rows_on(data: bytes, shapes: Sequence[Shape]) -> list[tuple[int, Shape, bool]]:
    """Return where rows of some tables begin on a page, each with its table and whether it counts.

    The size before a record, the row's number and the header that adds up to that size prove a row. Where what is left
    of the page's pointers leads to some of them, the others do not count: they are what was deleted or moved.
    """
    found: list[tuple[int, Shape]] = []
    for shape in shapes:
        found.extend((start, shape) for start in _starts(data, shape))
    found.sort(key=lambda one: one[0])
    if not found:
        return []
    first = found[0][0]
    pointers = set(struct.unpack_from(f">{max(0, first - _POINTERS) // 2}H", data, _POINTERS))
    has_pointers = any(start in pointers for start, _ in found)
    return [(start, shape, not has_pointers or start in pointers) for start, shape in found]


def _starts(data: bytes, shape: Shape) -> Iterator[int]:
    # Where nearly every byte seems to begin a header, nothing was a row.
    for match in islice(shape.pattern.finditer(data), max(_LEAST_TRIES, len(data) // _BYTES_A_TRY)):
        at = match.start()
        try:
            fields, payload = fields_of(data[at : at + data[at]])
        except Malformed:
            continue
        if payload > shape.most_bytes or not shape.fits(fields):
            continue
        start = start_of_row(data, at, payload)
        if start is not None:
            yield start


# What is found in a damaged file: rows, what speaks for them, and what was refused.


class Origin(StrEnum):
    """How a row was found, the strongest first."""

    #: On a page that the tree of its table reaches from its root.
    TREE = "tree"
    #: On a page that looks like one of the table, while the tree above it is gone.
    SHAPE = "shape"
    #: On a page that the list of free pages names, or in a part of a page that no longer counts.
    FREE = "free"
    #: On a last page that is not all there, or behind the end that the header states.
    TORN = "torn"


class Flaw(StrEnum):
    """What is wrong with the overflow chain of a row."""

    #: Pages of it are pages of another row's as well. All values are there, one row's or the other's.
    SHARED = "shared"
    #: Pages of it are on the list of free pages. All values are there.
    FREED = "freed"
    #: It goes on where the row ends. All values are there.
    LONG = "long"
    #: It is cut, a circle, or leads out of the file or to a page of a tree. Values that it should hold are None.
    BROKEN = "broken"


class Refusal(StrEnum):
    """Why a place where a row should be gave none."""

    #: What points to it leads out of the area of cells, or it is no cell.
    CELL = "cell"
    #: The part of the file where it was is not there.
    CUT = "cut"
    #: Its record is not one of the table.
    RECORD = "record"
    #: The table's own proof says that it is none of its rows.
    FOREIGN = "foreign"


class FoundRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row, or the key of an index with the number of its row.

    Attributes:
        table: the name of its shape.
        rowid: the number of the row.
        values: what its columns hold; an index's without the number of the row.
        page: the page that its cell is on.
        origin: how it was found.
        flaw: what is wrong with its overflow chain.
        run: rows of a tree with one run have nothing damaged between them; 0 begins at the tree's start. -1 elsewhere.
        overflow: whether it has pages of its own besides.
    """

    table: str
    rowid: int
    values: tuple[Value, ...]
    page: int
    origin: Origin
    flaw: Flaw | None = None
    run: int = -1
    overflow: bool = False


class Coverage(msgspec.Struct):
    """What an intact tree tells of the numbers of rows: each interval is (after, up to), and all in it are found.

    ``is_whole`` where nothing of the tree is damaged; ``last_run`` is the run at its end. ``missing`` is how many row
    numbers belong on leaves that the tree names and that are not there, as far as it sets bounds.
    """

    intervals: list[tuple[int, int]] = msgspec.field(default_factory=list)
    is_whole: bool = False
    last_run: int = 0
    missing: int = 0

    def add(self, low: int, high: int) -> None:
        """Take an interval that follows on those before."""
        if self.intervals and self.intervals[-1][1] == low:
            self.intervals[-1] = (self.intervals[-1][0], high)
        else:
            self.intervals.append((low, high))


class Counts(msgspec.Struct):
    """How much of a file was read as what.

    ``pages`` counts pages of the wanted tables by origin; ``overflow`` those that their rows go on in, ``inner`` those
    of other tables and the inner ones of trees, ``free`` those on the list of free pages. ``refused`` counts places
    without a row by table and reason.
    """

    pages: Counter[Origin] = msgspec.field(default_factory=Counter)
    overflow: int = 0
    inner: int = 0
    free: int = 0
    refused: Counter[tuple[str, Refusal]] = msgspec.field(default_factory=Counter)


# Overflow chains: followed, and checked against those of other rows (``docs/formats/sqlite-pages.md``).


#: How strong rows are against each other, two bits of a page's counter each.
_TIERS = {Origin.TREE: 0, Origin.SHAPE: 1, Origin.FREE: 2, Origin.TORN: 2}
_SEVERAL = 2
#: Chains that many rows claim are not read again and again.
_MOST_READS = 8
#: A row that goes on over more pages is not read only to see what it looks like.
_FEW_PAGES = 8


class Chains:
    """The overflow chains of a file.

    Chains are claimed first, all of them: only then it is known whose pages are whose. Every page is read a bounded
    number of times, however many rows claim it.
    """

    def __init__(self, file: PageFile, owners: array[int]) -> None:
        self._file = file
        self._owners = owners
        self._uses = bytearray(file.pages + 1)
        self._reads = bytearray(file.pages + 1)
        #: What the cell was that claimed the chain beginning at a page: the same cell twice is one row.
        self._heads = array("Q", bytes(8 * (file.pages + 1)))
        self._free = bytearray(file.pages + 1)

    def trust_free(self, free: bytearray) -> None:
        """Take these pages for free, so that no row is to have one."""
        self._free = free

    def claim(self, cell: Cell, origin: Origin) -> None:
        """Enter the pages of a cell's chain."""
        tier = _TIERS[origin]
        said = b"%d %d " % (tier, cell.rowid)
        mark = int.from_bytes(blake2b(said + cell.local, digest_size=8).digest(), "big")
        if not 0 < cell.first <= self._file.pages or self._heads[cell.first] == mark:
            return
        self._heads[cell.first] = mark
        number, left, shift = cell.first, self._most_pages(cell), 2 * tier
        while left and 0 < number <= self._file.pages and not self._owners[number]:
            uses = self._uses[number] >> shift & 3
            if uses == _SEVERAL:
                return
            self._uses[number] += 1 << shift
            number = self._next(self._file.page(number))
            left -= 1

    def is_claimed(self, number: int) -> bool:
        """Tell whether a row that is found has a page."""
        return bool(self._uses[number])

    def beginning(self, cell: Cell) -> tuple[bytes, bool]:
        """Return the record of a cell and whether that is all of it; of a long one only what lies on its own page."""
        if self._most_pages(cell) > _FEW_PAGES:
            return cell.local, False
        parts, number = [cell.local], cell.first
        missing = cell.payload - len(cell.local)
        while missing > 0 and 0 < number <= self._file.pages:
            data = self._file.page(number)
            parts.append(data[4 : 4 + min(self._file.usable - 4, missing)])
            missing -= len(parts[-1]) or missing
            number = self._next(data)
        record = b"".join(parts)
        return record, len(record) == cell.payload

    def read(self, cell: Cell, origin: Origin) -> tuple[bytes, Flaw | None]:
        """Return the record of a cell, and what is wrong with its chain; of a broken one as much as there is."""
        parts, missing = [cell.local], cell.payload - len(cell.local)
        number, flaw = cell.first, None
        room, seen = self._file.usable - 4, set[int]()
        while missing:
            if number in seen or not self._may_read(number):
                return b"".join(parts), Flaw.BROKEN
            seen.add(number)
            flaw = flaw or self._flaw_of(number, origin)
            data = self._file.page(number)
            part = data[4 : 4 + min(room, missing)]
            if len(part) < min(room, missing):
                return b"".join(parts), Flaw.BROKEN
            parts.append(part)
            missing -= len(part)
            number = self._next(data)
        if cell.first and number:
            flaw = flaw or Flaw.LONG
        return b"".join(parts), flaw

    def _most_pages(self, cell: Cell) -> int:
        return -(-(cell.payload - len(cell.local)) // (self._file.usable - 4))

    def _may_read(self, number: int) -> bool:
        if not 0 < number <= self._file.pages or self._owners[number] or self._reads[number] >= _MOST_READS:
            return False
        self._reads[number] += 1
        return True

    def _flaw_of(self, number: int, origin: Origin) -> Flaw | None:
        uses, tier = self._uses[number], _TIERS[origin]
        claims = sum(uses >> 2 * stronger & 3 for stronger in range(tier + 1))
        if claims > 1:
            return Flaw.SHARED
        return Flaw.FREED if self._free[number] and origin in (Origin.TREE, Origin.SHAPE) else None

    @staticmethod
    def _next(data: bytes) -> int:
        return int.from_bytes(data[:4], "big") if len(data) >= 4 else 0


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
