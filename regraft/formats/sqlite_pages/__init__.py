"""Recovers rows from the pages of a damaged SQLite file, without SQLite (``docs/formats/sqlite-pages.md``).

A :class:`RowShape` describes each wanted table or index; :class:`Reading` yields all rows that are left::

    with PageFile(path) as file:
        reading = Reading(file, shapes)
        for row in reading.rows():
            ...

- :class:`PageFile` gives access to pages. The page size comes from the header or, if that is damaged, from the pages.
  Pages in the write-ahead log or in the journal of an unfinished transaction replace those of the file. Files are
  never written.
- :class:`FoundRow` has the rowid, the values (:class:`TextBytes` for a text in UTF-8, ``bytes`` for a BLOB), the page
  and the :class:`Origin`. Rows with the strongest origin come first: in tree order, then page by page.
- A row may be found several times, as copies on other pages. A weaker origin is never better evidence.
- ``rows(flawed=True)`` also yields rows with an :class:`OverflowFlaw`. Unless it is ``BROKEN`` all values are present,
  but may be another row's: only the values themselves can show whether they belong together.
- ``reading.coverage[name]`` tells which rowids the intact part of a tree covers: a row from elsewhere with such a rowid
  was deleted. For indexes, ``FoundRow.run`` tells the same about keys.
- ``reading.counts`` tells how the pages were used, and how many candidates were refused, by :class:`Refusal`.

Memory use does not grow with rows: about 20 bytes per page, and the current row. Each page is read a bounded number of
times, whatever the file contains. Order of rows: ``docs/formats/sqlite-pages.md``, "Order".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from regraft.formats.sqlite_pages import trees
from regraft.formats.sqlite_pages.pages import Cell, PageFile, PageKind, TreePage, parse_record_cell, parse_tree_page
from regraft.formats.sqlite_pages.records import (
    MalformedRecord,
    RecordField,
    RowShape,
    StorageClass,
    TextBytes,
    Value,
    decode_value,
    parse_fields,
)
from regraft.formats.sqlite_pages.trees import (
    Coverage,
    CoverageTracker,
    FoundRow,
    Origin,
    OverflowChains,
    OverflowFlaw,
    ReadingCounts,
    Refusal,
    TreeWalker,
    Visit,
    is_pointer_map,
    read_free_pages,
)
from regraft.identity import replace

#: Columns: type, name, table, root page, statement.
_SCHEMA = RowShape(
    name="sqlite_schema",
    columns=(
        StorageClass.TEXT,
        StorageClass.TEXT,
        StorageClass.TEXT,
        StorageClass.INTEGER | StorageClass.NULL,
        StorageClass.TEXT | StorageClass.NULL,
    ),
    accepts=lambda values: values[0] in (b"table", b"index", b"view", b"trigger"),
    root=1,
)
#: Limit of walked trees, and of trees examined for a table that the schema does not name.
_MOST_TREES, _FEW_TREES = 1_000, 20
#: Cells examined to assign a page to a table, and pages examined for the encoding.
_FIRST_CELLS, _FIRST_PAGES = 3, 64
_WEAKER = (Origin.SHAPE, Origin.FREE, Origin.TORN)
#: Prefix of the indexes that SQLite creates for keys; the table's name and a number follow.
_OWN_INDEXES = "sqlite_autoindex_"
_ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be")


class _Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A cell on a page, and how it was found."""

    shape: RowShape
    number: int
    kind: PageKind
    cell: Cell
    origin: Origin
    run: int = -1


class Reading:
    """Everything that a damaged file still contains of some tables and indexes.

    Attributes:
        file: the damaged file.
        roots: root pages by name of table or index, as far as the schema can be read.
        counts: use of the pages; complete after the last row was yielded.
        coverage: by name, the rowids that the intact part of the tree covers; complete after the first row of a weaker
            origin than :attr:`Origin.TREE`.
        encoding: text encoding.
    """

    def __init__(self, file: PageFile, shapes: Sequence[RowShape]) -> None:
        self.file = file
        self.counts = ReadingCounts()
        self.coverage = {shape.name: Coverage() for shape in shapes}
        self.encoding = file.encoding or "utf-8"
        self._shapes = tuple(shapes)
        self._walker = TreeWalker(file)
        self._owners = self._walker.owners
        self._chains = OverflowChains(file, self._owners)
        #: For pages that no tree reaches: index of the table among the shapes, from 1; 0 if unknown.
        self._shaped = bytearray(file.pages + 1)
        #: For tables whose tree still names all leaves: the pages that it names.
        self._named: dict[str, bytearray] = {}
        #: Pages to search for rows: without a valid header, or with missing cells.
        self._searched = bytearray(file.pages + 1)
        self._free = bytearray(file.pages + 1)
        self._find_encoding()
        self.roots = self._read_roots()
        self._infer_roots()
        self._claim_all()

    # --- assignment of pages -----------------------------------------------------------------------------------------

    def _read_roots(self) -> dict[str, int]:
        """Read the schema: map the names of tables and indexes to their root pages."""
        roots: dict[str, int] = {}
        for visit in self._walker.walk(1, 1, is_index=False):
            for cell in self._parse_cells(visit.data, visit.page, visit.cells, _SCHEMA):
                if cell is None:
                    continue
                candidate = _Candidate(
                    shape=_SCHEMA, number=visit.number, kind=visit.kind, cell=cell, origin=Origin.TREE
                )
                row = self._decode_row(candidate)
                if row is not None and isinstance(row.values[1], TextBytes) and isinstance(row.values[3], int):
                    roots.setdefault(row.values[1].decode("utf-8", "replace"), row.values[3])
        return roots

    def _claim_all(self) -> None:
        """Assign every page to a table, and mark the overflow pages of all rows as used, those of trees first."""
        self._claim_other_trees()
        for candidate in self._cells_in_trees():
            self._chains.claim(candidate.cell, Origin.TREE)
        self._free, is_sound = read_free_pages(self.file, self._owners)
        if is_sound:
            self._chains.trust_free(self._free)
        self._assign_pages()
        for origin in _WEAKER:
            for candidate in self._cells_by_header(origin):
                self._chains.claim(candidate.cell, origin)
        for number in range(1, self.file.pages + 1):
            is_unassigned = not (self._owners[number] or self._shaped[number] or is_pointer_map(self.file, number))
            if self._searched[number] or (
                is_unassigned and (self._free[number] or not self._chains.is_claimed(number))
            ):
                candidates = list(self._search_page(number))
                self._searched[number] = bool(candidates)
                for candidate in candidates:
                    self._chains.claim(candidate.cell, candidate.origin)

    def _infer_roots(self) -> None:
        """Find the roots of tables that the schema does not name: at the usual page, or under a damaged name.

        A root on the freelist belonged to a dropped table.
        """
        free, is_sound = read_free_pages(self.file, self._owners)
        for index, shape in enumerate(self._shapes, 1):
            if shape.name in self.roots:
                continue
            usual = shape.root if shape.root not in self.roots.values() else None
            if (
                usual
                and usual <= self.file.pages
                and not (is_sound and free[usual])
                and self._holds_rows_of(usual, index)
            ):
                self.roots[shape.name] = usual
                continue
            named = next(
                (name for name in self._similar_names(shape) if self._holds_rows_of(self.roots[name], index)), None
            )
            if named is not None:
                self.roots[shape.name] = self.roots.pop(named)

    def _similar_names(self, shape: RowShape) -> list[str]:
        """Return names in the schema that may be a damaged form of a shape's name.

        For an index, only names that SQLite generates are considered.
        """
        known = {one.name for one in self._shapes}
        names = [name for name, root in self.roots.items() if name not in known and root > 1][:_FEW_TREES]
        number = shape.name.rpartition("_")[2]
        return [
            name
            for name in names
            if not shape.is_index or (name.startswith(_OWN_INDEXES) and name.rpartition("_")[2] == number)
        ]

    def _holds_rows_of(self, root: int, index: int) -> bool:
        """Whether the first pages below a root page contain rows of the shape with this index (from 1)."""
        # The pages are recorded in a separate walker, because they may belong to another table.
        walker = TreeWalker(self.file)
        visits = islice(walker.walk(root, 1, is_index=self._shapes[index - 1].is_index), _FIRST_PAGES)
        return any(visit.page and self._guess_shape(visit.data, visit.page) == index for visit in visits)

    def _claim_other_trees(self) -> None:
        """Record the pages of the tables and indexes that the caller did not ask for."""
        known = {shape.name for shape in self._shapes}
        others = [(name, root) for name, root in self.roots.items() if name not in known and root > 1]
        for tree, (_, root) in enumerate(others[:_MOST_TREES], 2 + len(self._shapes)):
            page = parse_tree_page(self.file.page(root), root, self.file.usable)
            if page is None:
                continue
            for visit in self._walker.walk(root, tree, is_index=page.kind.is_index):
                for at in visit.cells:
                    cell = self._parse_cell(visit.data, at, visit.kind, 1 << 31)
                    if cell is not None:
                        self._chains.claim(cell, Origin.TREE)

    def _assign_pages(self) -> None:
        """Assign each page with a header that no tree reaches to a table."""
        for number in range(1, self.file.pages + 1):
            if self._owners[number] or is_pointer_map(self.file, number):
                continue
            data = self.file.page(number)
            page = parse_tree_page(data, number, self.file.usable)
            if page is not None and page.kind is not PageKind.TABLE_INTERIOR:
                self._shaped[number] = self._guess_shape(data, page)

    def _guess_shape(self, data: bytes, page: TreePage) -> int:
        """Return the index (from 1) of the shape that most of the first cells of a page fit; 0 if no cell fits any."""
        votes = [0] * len(self._shapes)
        cells = (self._parse_cell(data, at, page.kind, self.file.size) for at in page.cells)
        for cell in islice((cell for cell in cells if cell is not None), _FIRST_CELLS):
            for index, shape in enumerate(self._shapes):
                if shape.is_index == page.kind.is_index and self._matches_shape(cell, shape):
                    votes[index] += 1
                    break
        best = max(range(len(votes)), key=votes.__getitem__, default=0)
        return best + 1 if votes and votes[best] else 0

    def _matches_shape(self, cell: Cell, shape: RowShape, *, wholly: bool = False) -> bool:
        """Whether a cell can be a row of a shape.

        With ``wholly``, its values must fit even if the record is incomplete.
        """
        fields = self._decode_fields(cell, shape)
        if fields is None:
            return False
        record, is_whole = self._chains.beginning(cell)
        values, _ = self._decode_values(fields, record, shape, cell.rowid)
        # If overflow pages are missing, the record's owner cannot be verified.
        return (not is_whole and not wholly) or shape.accepts(values)

    def _find_encoding(self) -> None:
        """Choose the encoding in which most of the first pages have valid rows, preferring the header's."""
        pages = list(islice(self._read_leaves(), _FIRST_PAGES))
        stated = self.encoding
        votes: dict[str, int] = {}
        for encoding in (stated, *(one for one in _ENCODINGS if one != stated)):
            self.encoding = encoding
            votes[encoding] = sum(self._has_valid_row(data, page) for data, page in pages)
            if votes[stated] == len(pages):
                break
        self.encoding = max(votes, key=votes.__getitem__)

    def _read_leaves(self) -> Iterator[tuple[bytes, TreePage]]:
        """Yield the bytes and the header of each page that is a leaf of a table and has cells."""
        for number in range(1, self.file.pages + 1):
            data = self.file.page(number)
            page = parse_tree_page(data, number, self.file.usable)
            if page is not None and page.kind is PageKind.TABLE_LEAF and page.cells:
                yield data, page

    def _has_valid_row(self, data: bytes, page: TreePage) -> bool:
        """Whether one of the first rows of a leaf is valid in the text encoding that is tried now."""
        tables = (_SCHEMA, *(shape for shape in self._shapes if not shape.is_index))
        cells = (self._parse_cell(data, at, page.kind, self.file.size) for at in page.cells[:_FIRST_CELLS])
        return any(
            cell is not None and self._matches_shape(cell, shape, wholly=True) for cell in cells for shape in tables
        )

    # --- cells -------------------------------------------------------------------------------------------------------

    def _parse_cell(self, data: bytes, at: int, kind: PageKind, most_bytes: int) -> Cell | None:
        """Parse the cell at an offset of a page; None if it is invalid or its record exceeds ``most_bytes``."""
        try:
            return parse_record_cell(
                data, at, self.file.usable, kind, min(most_bytes, self.file.pages * self.file.page_size)
            )
        except MalformedRecord:
            return None

    def _parse_cells(
        self, data: bytes, page: TreePage | None, starts: Sequence[int], shape: RowShape
    ) -> Iterator[Cell | None]:
        """Yield the cells at the offsets ``starts`` of a page; None for an invalid one, which is counted."""
        if page is None:
            return
        missing = Refusal.CUT if len(data) < self.file.page_size else Refusal.CELL
        for at in starts:
            cell = self._parse_cell(data, at, page.kind, shape.most_bytes)
            if cell is None:
                self.counts.refused[shape.name, missing] += 1
            yield cell

    def _cells_in_trees(self) -> Iterator[_Candidate]:
        """Yield the cells that the trees of the wanted tables and indexes reach, table by table."""
        for shape in self._shapes:
            root, tree = self.roots.get(shape.name, 0), 2 + self._shapes.index(shape)
            cover = CoverageTracker(self.file.pages)
            for visit in self._walker.walk(root, tree, is_index=shape.is_index) if root else ():
                cells = list(self._parse_cells(visit.data, visit.page, visit.cells, shape))
                if self._is_of_other_table(visit, cells, shape):
                    # Another page overwrote this one; its rows decide which table it belongs to.
                    self._owners[visit.number] = 0
                    cover.add(replace(visit, page=None, cells=()), is_whole=False)
                    continue
                is_whole = visit.is_whole and self._is_filled(visit.data, visit.page, visit.cells, cells)
                cover.add(visit, is_whole=is_whole)
                if visit.page is not None and visit.kind is PageKind.TABLE_LEAF and not is_whole:
                    self._searched[visit.number] = 1
                    self.counts.refused[shape.name, Refusal.CELL] += visit.page.stated - len(visit.page.cells)
                found = (cell for cell in cells if cell is not None)
                run = cover.coverage.last_run
                yield from (
                    _Candidate(
                        shape=shape, number=visit.number, kind=visit.kind, cell=cell, origin=Origin.TREE, run=run
                    )
                    for cell in found
                )
            self.coverage[shape.name] = cover.coverage_of_tree(is_index=shape.is_index)
            if cover.knows_all_leaves and not shape.is_index:
                self._named[shape.name] = cover.leaves

    def _is_of_other_table(self, visit: Visit, cells: Sequence[Cell | None], shape: RowShape) -> bool:
        """Whether a leaf in a tree has cells but none that can be a row of the tree's table."""
        if visit.kind is not PageKind.TABLE_LEAF or not cells:
            return False
        return not any(cell is not None and self._decode_fields(cell, shape) is not None for cell in cells)

    def _is_filled(
        self, data: bytes, page: TreePage | None, starts: Sequence[int], cells: Sequence[Cell | None]
    ) -> bool:
        """Whether all cells of a page were read and, on a leaf, leave no unexplained space.

        ``starts`` are the offsets of the cells, ``cells`` what was read there.
        """
        found = [cell for cell in cells if cell is not None]
        if page is None or len(found) < len(starts):
            return False
        held = sum(max(4, cell.end - cell.start) for cell in found)
        return not page.kind.is_leaf or page.is_filled(data, self.file.usable, held)

    def _cells_by_header(self, origin: Origin) -> Iterator[_Candidate]:
        """Yield the cells of pages that no tree reaches and that have a valid header and the given origin."""
        for number in range(1, self.file.pages + 1):
            shape = self._shapes[self._shaped[number] - 1]
            if not self._shaped[number] or self._origin_of(number, shape) is not origin:
                continue
            data = self.file.page(number)
            page = parse_tree_page(data, number, self.file.usable)
            if page is None:
                continue
            cells = list(self._parse_cells(data, page, page.cells, shape))
            if not (shape.is_index or (page.is_whole and self._is_filled(data, page, page.cells, cells))):
                self._searched[number] = 1
                self.counts.refused[shape.name, Refusal.CELL] += page.stated - len(page.cells)
            for cell in cells:
                if cell is not None:
                    yield _Candidate(shape=shape, number=number, kind=page.kind, cell=cell, origin=origin)

    def _search_page(self, number: int) -> Iterator[_Candidate]:
        """Yield the rows on a page that its header does not account for, recognized by their form."""
        data = self.file.page(number)
        tables = [shape for shape in self._shapes if not shape.is_index]
        page = parse_tree_page(data, number, self.file.usable) if self._owners[number] or self._shaped[number] else None
        blocks = page.free_blocks(data, self.file.usable) or [] if page is not None else []
        for at, shape, counts in trees.find_row_starts(data, tables):
            if page is not None and page.accounts_for(at, blocks):
                continue
            cell = self._parse_cell(data, at, PageKind.TABLE_LEAF, shape.most_bytes)
            if cell is not None:
                origin = self._origin_of(number, shape)
                is_unused = not counts and origin is not Origin.TORN
                origin = Origin.FREE if is_unused else origin
                yield _Candidate(shape=shape, number=number, kind=PageKind.TABLE_LEAF, cell=cell, origin=origin)

    def _origin_of(self, number: int, shape: RowShape) -> Origin:
        """Return how a row on a page outside of the trees counts as found."""
        named = self._named.get(shape.name)
        if self._free[number] or (named is not None and not named[number]):
            return Origin.FREE
        return Origin.TORN if self.file.is_torn(number) else Origin.SHAPE

    # --- rows --------------------------------------------------------------------------------------------------------

    def rows(self, *, flawed: bool = False) -> Iterator[FoundRow]:
        """Yield every row found, strongest origin first, then page by page.

        Args:
            flawed: also yield rows with a damaged overflow chain.

        Raises:
            OSError: the file cannot be read.
        """
        self.counts = ReadingCounts()
        has_rows = bytearray(self.file.pages + 1)
        for candidate in self._find_candidates():
            row = self._decode_row(candidate)
            if row is None:
                continue
            if not has_rows[row.page]:
                has_rows[row.page] = 1
                self.counts.pages[row.origin] += 1
            if flawed or row.flaw is None:
                yield row
        self._count_pages(has_rows)

    def _count_pages(self, has_rows: bytearray) -> None:
        """Count the pages by their use, except those with rows (marked in ``has_rows``), which are counted already."""
        for number in range(1, self.file.pages + 1):
            if has_rows[number]:
                continue
            if self._owners[number]:
                self.counts.inner += 1
            elif self._free[number]:
                self.counts.free += 1
            elif self._chains.is_claimed(number):
                self.counts.overflow += 1

    def _find_candidates(self) -> Iterator[_Candidate]:
        """Yield all cells that may be rows, those with the strongest origin first."""
        yield from self._cells_in_trees()
        for origin in _WEAKER:
            yield from self._cells_by_header(origin)
            for number in range(1, self.file.pages + 1):
                if self._searched[number]:
                    yield from (candidate for candidate in self._search_page(number) if candidate.origin is origin)

    def _decode_row(self, candidate: _Candidate) -> FoundRow | None:
        """Decode a cell that may be a row. None, with the reason counted, if it is not a row of its table."""
        cell, shape = candidate.cell, candidate.shape
        fields = self._decode_fields(cell, shape)
        if fields is None:
            self.counts.refused[shape.name, Refusal.RECORD] += 1
            return None
        record, flaw = self._chains.read(cell, candidate.origin)
        values, rowid = self._decode_values(fields, record, shape, cell.rowid)
        if candidate.origin is not Origin.TREE and flaw is not OverflowFlaw.BROKEN and not shape.accepts(values):
            self.counts.refused[shape.name, Refusal.FOREIGN] += 1
            return None
        return FoundRow(
            table=shape.name,
            rowid=rowid,
            values=tuple(values),
            page=candidate.number,
            origin=candidate.origin,
            flaw=flaw,
            run=candidate.run,
            overflow=bool(cell.first),
        )

    @staticmethod
    def _decode_fields(cell: Cell, shape: RowShape) -> list[RecordField] | None:
        """Parse the record header of a cell; None if it does not fit the shape or the length of the cell."""
        try:
            fields, length = parse_fields(cell.local)
        except MalformedRecord:
            return None
        return fields if length == cell.payload and shape.fits(fields) else None

    def _decode_values(
        self, fields: list[RecordField], record: bytes, shape: RowShape, rowid: int
    ) -> tuple[list[Value], int]:
        """Decode the values of a record, and return them with the rowid. Values that are cut off are None.

        The rowid of an index entry is the last value of its record.
        """
        values: list[Value] = [
            decode_value(one, record, self.encoding) if one.start + one.length <= len(record) else None
            for one in fields
        ]
        if shape.is_index:
            number = values.pop()
            return values, number if isinstance(number, int) else 0
        values.extend([None] * (len(shape.stored) - len(values)))
        if shape.alias is not None:
            values[shape.alias] = rowid
        return values, rowid


__all__ = [
    "Coverage",
    "FoundRow",
    "Origin",
    "OverflowFlaw",
    "PageFile",
    "Reading",
    "ReadingCounts",
    "Refusal",
    "RowShape",
    "StorageClass",
    "TextBytes",
    "Value",
]
