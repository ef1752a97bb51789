"""What is found in a damaged file: rows, what speaks for them, and what was refused."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

import msgspec

from regraft.formats.sqlite_pages.records import Value


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
