"""All rows left in a damaged file, the strongest first (``docs/formats/sqlite-pages.md``, "In which order")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from regraft.formats.sqlite_pages import trees
from regraft.formats.sqlite_pages.pages import Cell, Kind, PageFile, TreePage, record_cell, tree_page
from regraft.formats.sqlite_pages.records import Class, Field, Malformed, Shape, Text, Value, fields_of, value_of
from regraft.formats.sqlite_pages.trees import (
    Chains,
    Counts,
    Coverage,
    Flaw,
    FoundRow,
    Origin,
    Refusal,
    TreeCover,
    Visit,
    Walker,
    free_pages,
    is_pointer_map,
)
from regraft.identity import replace

#: What ``sqlite_schema`` holds: type, name, table, root, statement.
_SCHEMA = Shape(
    name="sqlite_schema",
    columns=(Class.TEXT, Class.TEXT, Class.TEXT, Class.INTEGER | Class.NULL, Class.TEXT | Class.NULL),
    accepts=lambda values: values[0] in (b"table", b"index", b"view", b"trigger"),
    root=1,
)
#: No more trees than this are walked, and so many looked into for a table that the schema does not name.
_MOST_TREES, _FEW_TREES = 1_000, 20
#: Of pages without a tree so many cells are looked at to tell whose they are, and so many pages for the encoding.
_FIRST_CELLS, _FIRST_PAGES = 3, 64
_WEAKER = (Origin.SHAPE, Origin.FREE, Origin.TORN)
#: What the names of indexes begin with that SQLite makes for keys; then comes the table's name, and a number.
_OWN_INDEXES = "sqlite_autoindex_"
_ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be")


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """A cell on a page, and how it was found."""

    shape: Shape
    number: int
    kind: Kind
    cell: Cell
    origin: Origin
    run: int = -1


class Reading:
    """What a damaged file still holds of some tables and indexes.

    Attributes:
        file: the file.
        roots: where trees begin, by the name of their table or index, as far as the schema can be read.
        counts: how much was read as what; complete when all rows were given.
        coverage: by name, which numbers of rows the intact part of its tree covers; complete after the first row of a
            weaker origin than :attr:`Origin.TREE`, or the end.
        encoding: the encoding of the texts.
    """

    def __init__(self, file: PageFile, shapes: Sequence[Shape]) -> None:
        self.file = file
        self.counts = Counts()
        self.coverage = {shape.name: Coverage() for shape in shapes}
        self.encoding = file.encoding or "utf-8"
        self._shapes = tuple(shapes)
        self._walker = Walker(file)
        self._owners = self._walker.owners
        self._chains = Chains(file, self._owners)
        #: The table of a page that no tree reaches, by its place among the shapes, from 1 on.
        self._shaped = bytearray(file.pages + 1)
        #: The leaves of tables whose tree still tells all of them.
        self._named: dict[str, bytearray] = {}
        #: Pages that are searched for rows: their header is gone, or not all of their cells were found.
        self._searched = bytearray(file.pages + 1)
        self._free = bytearray(file.pages + 1)
        self._find_encoding()
        self.roots = self._read_roots()
        self._presume_roots()
        self._claim_all()

    # --- what is where -----------------------------------------------------------------------------------------------

    def _read_roots(self) -> dict[str, int]:
        roots: dict[str, int] = {}
        for visit in self._walker.walk(1, 1, is_index=False):
            for cell in self._cells(visit.data, visit.page, visit.cells, _SCHEMA):
                if cell is None:
                    continue
                place = _Place(shape=_SCHEMA, number=visit.number, kind=visit.kind, cell=cell, origin=Origin.TREE)
                row = self._row(place)
                if row is not None and isinstance(row.values[1], Text) and isinstance(row.values[3], int):
                    roots.setdefault(row.values[1].decode("utf-8", "replace"), row.values[3])
        return roots

    def _claim_all(self) -> None:
        """Find out whose every page is, and enter all overflow chains, those of the strongest rows first."""
        self._claim_others()
        for place in self._in_trees():
            self._chains.claim(place.cell, Origin.TREE)
        self._free, is_sound = free_pages(self.file, self._owners)
        if is_sound:
            self._chains.trust_free(self._free)
        self._tell_pages()
        for origin in _WEAKER:
            for place in self._by_headers(origin):
                self._chains.claim(place.cell, origin)
        for number in range(1, self.file.pages + 1):
            is_nobodys = not (self._owners[number] or self._shaped[number] or is_pointer_map(self.file, number))
            if self._searched[number] or (is_nobodys and (self._free[number] or not self._chains.is_claimed(number))):
                found = list(self._search(number))
                self._searched[number] = bool(found)
                for place in found:
                    self._chains.claim(place.cell, place.origin)

    def _tree_of(self, shape: Shape) -> tuple[int, int]:
        """Return the root of a table's tree, 0 where nobody knows, and the number of the tree."""
        return self.roots.get(shape.name, 0), 2 + self._shapes.index(shape)

    def _presume_roots(self) -> None:
        """Find the trees of tables that no schema names: where such roots usually are, or under another name.

        One that the list of free pages names is of a table that was dropped.
        """
        free, is_sound = free_pages(self.file, self._owners)
        for place, shape in enumerate(self._shapes, 1):
            if shape.name in self.roots:
                continue
            usual = shape.root if shape.root not in self.roots.values() else None
            if usual and usual <= self.file.pages and not (is_sound and free[usual]) and self._holds(usual, place):
                self.roots[shape.name] = usual
                continue
            named = next((name for name in self._like_names(shape) if self._holds(self.roots[name], place)), None)
            if named is not None:
                self.roots[shape.name] = self.roots.pop(named)

    def _like_names(self, shape: Shape) -> list[str]:
        """Return names of the schema that may be a table's, misspelt; an index only goes by those that SQLite gives."""
        known = {one.name for one in self._shapes}
        names = [name for name, root in self.roots.items() if name not in known and root > 1][:_FEW_TREES]
        number = shape.name.rpartition("_")[2]
        return [
            name
            for name in names
            if not shape.is_index or (name.startswith(_OWN_INDEXES) and name.rpartition("_")[2] == number)
        ]

    def _holds(self, root: int, place: int) -> bool:
        """Tell whether the first pages below a root hold rows of the table at a place among the shapes, from 1 on."""
        # The pages stay entered only if they are the table's.
        walker = Walker(self.file)
        visits = islice(walker.walk(root, 1, is_index=self._shapes[place - 1].is_index), _FIRST_PAGES)
        return any(visit.page and self._shape_of(visit.data, visit.page) == place for visit in visits)

    def _claim_others(self) -> None:
        """Enter the pages of tables and indexes that nobody asks for."""
        known = {shape.name for shape in self._shapes}
        others = [(name, root) for name, root in self.roots.items() if name not in known and root > 1]
        for tree, (_, root) in enumerate(others[:_MOST_TREES], 2 + len(self._shapes)):
            page = tree_page(self.file.page(root), root, self.file.usable)
            if page is None:
                continue
            for visit in self._walker.walk(root, tree, is_index=page.kind.is_index):
                for at in visit.cells:
                    cell = self._cell(visit.data, at, visit.kind, 1 << 31)
                    if cell is not None:
                        self._chains.claim(cell, Origin.TREE)

    def _tell_pages(self) -> None:
        """Tell of every page that no tree reaches, and that has a header, which table it is of."""
        for number in range(1, self.file.pages + 1):
            if self._owners[number] or is_pointer_map(self.file, number):
                continue
            data = self.file.page(number)
            page = tree_page(data, number, self.file.usable)
            if page is not None and page.kind is not Kind.TABLE_INTERIOR:
                self._shaped[number] = self._shape_of(data, page)

    def _shape_of(self, data: bytes, page: TreePage) -> int:
        """Return the place, from 1 on, of the table that most of the first cells are rows of; 0 where none are."""
        votes = [0] * len(self._shapes)
        cells = (self._cell(data, at, page.kind, self.file.size) for at in page.cells)
        for cell in islice((cell for cell in cells if cell is not None), _FIRST_CELLS):
            for place, shape in enumerate(self._shapes):
                if shape.is_index == page.kind.is_index and self._is_of(cell, shape):
                    votes[place] += 1
                    break
        best = max(range(len(votes)), key=votes.__getitem__, default=0)
        return best + 1 if votes and votes[best] else 0

    def _is_of(self, cell: Cell, shape: Shape, *, wholly: bool = False) -> bool:
        fields = self._fields(cell, shape)
        if fields is None:
            return False
        record, is_whole = self._chains.beginning(cell)
        values, _ = self._values(fields, record, shape, cell.rowid)
        # Of what lies on pages that are gone nobody knows whose it is.
        return (not is_whole and not wholly) or shape.accepts(values)

    def _find_encoding(self) -> None:
        """Take the encoding in which most of the first pages prove themselves, the header's where it is one of them."""
        pages = list(islice(self._leaves(), _FIRST_PAGES))
        stated = self.encoding
        votes: dict[str, int] = {}
        for encoding in (stated, *(one for one in _ENCODINGS if one != stated)):
            self.encoding = encoding
            votes[encoding] = sum(self._is_text_in(data, page) for data, page in pages)
            if votes[stated] == len(pages):
                break
        self.encoding = max(votes, key=votes.__getitem__)

    def _leaves(self) -> Iterator[tuple[bytes, TreePage]]:
        for number in range(1, self.file.pages + 1):
            data = self.file.page(number)
            page = tree_page(data, number, self.file.usable)
            if page is not None and page.kind is Kind.TABLE_LEAF and page.cells:
                yield data, page

    def _is_text_in(self, data: bytes, page: TreePage) -> bool:
        """Tell whether the encoding at hand makes one of the first rows of a leaf one of the schema, or of a table."""
        tables = (_SCHEMA, *(shape for shape in self._shapes if not shape.is_index))
        cells = (self._cell(data, at, page.kind, self.file.size) for at in page.cells[:_FIRST_CELLS])
        return any(cell is not None and self._is_of(cell, shape, wholly=True) for cell in cells for shape in tables)

    # --- cells -------------------------------------------------------------------------------------------------------

    def _cell(self, data: bytes, at: int, kind: Kind, most_bytes: int) -> Cell | None:
        try:
            return record_cell(data, at, self.file.usable, kind, min(most_bytes, self.file.pages * self.file.page_size))
        except Malformed:
            return None

    def _cells(self, data: bytes, page: TreePage | None, starts: Sequence[int], shape: Shape) -> Iterator[Cell | None]:
        """Yield the cells of a page that begin at some places, None for what is none."""
        if page is None:
            return
        missing = Refusal.CUT if len(data) < self.file.page_size else Refusal.CELL
        for at in starts:
            cell = self._cell(data, at, page.kind, shape.most_bytes)
            if cell is None:
                self.counts.refused[shape.name, missing] += 1
            yield cell

    def _in_trees(self) -> Iterator[_Place]:
        """Yield the cells that trees reach, table by table."""
        for shape in self._shapes:
            root, tree = self._tree_of(shape)
            cover = TreeCover(self.file.pages)
            for visit in self._walker.walk(root, tree, is_index=shape.is_index) if root else ():
                cells = list(self._cells(visit.data, visit.page, visit.cells, shape))
                if self._is_anothers(visit, cells, shape):
                    # A page that was put in the place of one of this tree's: whose it is, its rows tell.
                    self._owners[visit.number] = 0
                    cover.add(replace(visit, page=None, cells=()), is_whole=False)
                    continue
                is_whole = visit.is_whole and self._is_filled(visit.data, visit.page, visit.cells, cells)
                cover.add(visit, is_whole=is_whole)
                if visit.page is not None and visit.kind is Kind.TABLE_LEAF and not is_whole:
                    self._searched[visit.number] = 1
                    self.counts.refused[shape.name, Refusal.CELL] += visit.page.stated - len(visit.page.cells)
                found = (cell for cell in cells if cell is not None)
                run = cover.coverage.last_run
                yield from (
                    _Place(shape=shape, number=visit.number, kind=visit.kind, cell=cell, origin=Origin.TREE, run=run)
                    for cell in found
                )
            self.coverage[shape.name] = cover.told(is_index=shape.is_index)
            if cover.tells_leaves and not shape.is_index:
                self._named[shape.name] = cover.leaves

    def _is_anothers(self, visit: Visit, cells: Sequence[Cell | None], shape: Shape) -> bool:
        """Tell whether a leaf of a table holds rows, and none of this table."""
        if visit.kind is not Kind.TABLE_LEAF or not cells:
            return False
        return not any(cell is not None and self._fields(cell, shape) is not None for cell in cells)

    def _is_filled(
        self, data: bytes, page: TreePage | None, starts: Sequence[int], cells: Sequence[Cell | None]
    ) -> bool:
        """Tell whether every cell of a page was read, and leaves no room for another; of an inner page one alone is."""
        found = [cell for cell in cells if cell is not None]
        if page is None or len(found) < len(starts):
            return False
        held = sum(max(4, cell.end - cell.start) for cell in found)
        return not page.kind.is_leaf or page.is_filled(data, self.file.usable, held)

    def _by_headers(self, origin: Origin) -> Iterator[_Place]:
        """Yield the cells of pages of one origin that no tree reaches, and whose headers tell what they are."""
        for number in range(1, self.file.pages + 1):
            shape = self._shapes[self._shaped[number] - 1]
            if not self._shaped[number] or self._origin_of(number, shape) is not origin:
                continue
            data = self.file.page(number)
            page = tree_page(data, number, self.file.usable)
            if page is None:
                continue
            cells = list(self._cells(data, page, page.cells, shape))
            if not (shape.is_index or (page.is_whole and self._is_filled(data, page, page.cells, cells))):
                self._searched[number] = 1
                self.counts.refused[shape.name, Refusal.CELL] += page.stated - len(page.cells)
            for cell in cells:
                if cell is not None:
                    yield _Place(shape=shape, number=number, kind=page.kind, cell=cell, origin=origin)

    def _search(self, number: int) -> Iterator[_Place]:
        """Yield the cells that a page holds beside those that its header leads to."""
        data = self.file.page(number)
        tables = [shape for shape in self._shapes if not shape.is_index]
        page = tree_page(data, number, self.file.usable) if self._owners[number] or self._shaped[number] else None
        blocks = page.free_blocks(data, self.file.usable) or [] if page is not None else []
        for at, shape, counts in trees.rows_on(data, tables):
            if page is not None and page.leads_to(at, blocks):
                continue
            cell = self._cell(data, at, Kind.TABLE_LEAF, shape.most_bytes)
            if cell is not None:
                origin = self._origin_of(number, shape)
                is_unused = not counts and origin is not Origin.TORN
                origin = Origin.FREE if is_unused else origin
                yield _Place(shape=shape, number=number, kind=Kind.TABLE_LEAF, cell=cell, origin=origin)

    def _origin_of(self, number: int, shape: Shape) -> Origin:
        named = self._named.get(shape.name)
        if self._free[number] or (named is not None and not named[number]):
            return Origin.FREE
        return Origin.TORN if self.file.is_torn(number) else Origin.SHAPE

    # --- rows --------------------------------------------------------------------------------------------------------

    def rows(self, *, flawed: bool = False) -> Iterator[FoundRow]:
        """Yield every row that is found, the strongest origin first, of each the rows of a page in its order.

        Args:
            flawed: also those with something wrong in their overflow chain.

        Raises:
            OSError: the file cannot be read.
        """
        self.counts = Counts()
        gave = bytearray(self.file.pages + 1)
        for place in self._places():
            row = self._row(place)
            if row is None:
                continue
            if not gave[row.page]:
                gave[row.page] = 1
                self.counts.pages[row.origin] += 1
            if flawed or row.flaw is None:
                yield row
        self._count_pages(gave)

    def _places(self) -> Iterator[_Place]:
        yield from self._in_trees()
        for origin in _WEAKER:
            yield from self._by_headers(origin)
            for number in range(1, self.file.pages + 1):
                if self._searched[number]:
                    yield from (place for place in self._search(number) if place.origin is origin)

    def _row(self, place: _Place) -> FoundRow | None:
        cell, shape = place.cell, place.shape
        fields = self._fields(cell, shape)
        if fields is None:
            self.counts.refused[shape.name, Refusal.RECORD] += 1
            return None
        record, flaw = self._chains.read(cell, place.origin)
        values, rowid = self._values(fields, record, shape, cell.rowid)
        if place.origin is not Origin.TREE and flaw is not Flaw.BROKEN and not shape.accepts(values):
            self.counts.refused[shape.name, Refusal.FOREIGN] += 1
            return None
        return FoundRow(
            table=shape.name,
            rowid=rowid,
            values=tuple(values),
            page=place.number,
            origin=place.origin,
            flaw=flaw,
            run=place.run,
            overflow=bool(cell.first),
        )

    @staticmethod
    def _fields(cell: Cell, shape: Shape) -> list[Field] | None:
        try:
            fields, length = fields_of(cell.local)
        except Malformed:
            return None
        return fields if length == cell.payload and shape.fits(fields) else None

    def _values(self, fields: list[Field], record: bytes, shape: Shape, rowid: int) -> tuple[list[Value], int]:
        """Return what a record holds, None for columns that are not all there, and the number of the row."""
        values: list[Value] = [
            value_of(one, record, self.encoding) if one.start + one.length <= len(record) else None for one in fields
        ]
        if shape.is_index:
            number = values.pop()
            return values, number if isinstance(number, int) else 0
        values.extend([None] * (len(shape.stored) - len(values)))
        if shape.alias is not None:
            values[shape.alias] = rowid
        return values, rowid

    def _count_pages(self, gave: bytearray) -> None:
        for number in range(1, self.file.pages + 1):
            if gave[number]:
                continue
            if self._owners[number]:
                self.counts.inner += 1
            elif self._free[number]:
                self.counts.free += 1
            elif self._chains.is_claimed(number):
                self.counts.overflow += 1


def found_rows(file: PageFile, shapes: Sequence[Shape], *, flawed: bool = False) -> Iterator[FoundRow]:
    """Yield the rows of some tables that are left in a file; see :class:`Reading`, which tells more of them."""
    return Reading(file, shapes).rows(flawed=flawed)
