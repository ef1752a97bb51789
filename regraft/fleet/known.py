"""What is known of libraries that ended, read from its file when it is asked for: memory holds only where it lies."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from regraft import links
from regraft.errors import WrongUsage
from regraft.formats.parquet.columns import arrow
from regraft.language import tr


class Numbered(Protocol):
    """What has the number of a library."""

    @property
    def library(self) -> int:
        """Return the number."""


RowT = TypeVar("RowT", bound=Numbered)


class Known(Mapping[int, list[RowT]]):
    """Rows by the number of their library; this one has none.

    Args:
        count: how many libraries there are.
    """

    def __init__(self, count: int = 0) -> None:
        self._places = array("q", [-1]) * count
        #: The numbers of libraries that need nothing more.
        self.good: set[int] = set()

    def note(self, number: int, place: int, *, is_good: bool) -> None:
        """Note where the rows of a library lie.

        Raises:
            ValueError: there is no such library.
        """
        if not 0 <= number < len(self._places):
            raise ValueError(tr("there is no library {number:,}", number=number))
        self._places[number] = place
        (self.good.add if is_good else self.good.discard)(number)

    def __getitem__(self, number: int) -> list[RowT]:
        if number not in self:
            raise KeyError(number)
        return self._at(number, self._places[number])

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and 0 <= number < len(self._places) and self._places[number] >= 0

    def __iter__(self) -> Iterator[int]:
        return (number for number, place in enumerate(self._places) if place >= 0)

    def __len__(self) -> int:
        return sum(place >= 0 for place in self._places)

    def _at(self, number: int, place: int) -> list[RowT]:
        """Return the rows of a library, which lie at a place."""
        raise KeyError(number, place)


class InJournal(Known[RowT]):
    """Rows in a journal, a line for each library; a place is where a line begins, in bytes.

    Raises, where rows are asked for:
        WrongUsage: somebody else wrote to the file.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, count: int, decoder: msgspec.json.Decoder[list[RowT]]) -> None:
        super().__init__(count)
        self._path, self._decoder = path, decoder

    def _at(self, number: int, place: int) -> list[RowT]:
        # Opened each time: not every system replaces a file that is open.
        with links.reading(self._path) as file:
            file.seek(place)
            line = file.readline()
        try:
            rows = self._decoder.decode(line)
        except (ValueError, msgspec.MsgspecError):
            rows = []
        return _demanded(rows, number, self._path)


class InParquet(Known[RowT]):
    """Rows in a Parquet file, those of a library side by side; a place is the number of the first one in the file.

    One row group is held, so libraries are best asked for in their order. Raises as :class:`InJournal`.
    """

    def __init__(self, path: Path, count: int, convert: Callable[[list[dict[str, Any]]], list[RowT]]) -> None:
        super().__init__(count)
        self._path, self._convert = path, convert
        self._groups: Sequence[int] = ()
        self._group: tuple[int, Any] = (-1, None)

    def _at(self, number: int, place: int) -> list[RowT]:
        rows: list[dict[str, Any]] = []
        while not rows or rows[-1]["library"] == number:
            row = self._row(place + len(rows))
            if row is None or row["library"] != number:
                break
            rows.append(row)
        try:
            found = self._convert(rows)
        except (ValueError, msgspec.MsgspecError):
            found = []
        return _demanded(found, number, self._path)

    def _row(self, place: int) -> dict[str, Any] | None:
        """Return a row of the file, None behind its end."""
        _, parquet = arrow()
        if not self._groups:
            with links.reading(self._path) as plain, parquet.ParquetFile(plain) as file:
                about = file.metadata
                sizes = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
            self._groups = [0, *accumulate(sizes)]
        if place >= self._groups[-1]:
            return None
        group = bisect_right(self._groups, place) - 1
        if self._group[0] != group:
            with links.reading(self._path) as plain, parquet.ParquetFile(plain) as file:
                self._group = group, file.read_row_group(group)
        [row] = self._group[1].slice(place - self._groups[group], 1).to_pylist()
        found: dict[str, Any] = row
        return found


def _demanded(rows: list[RowT], number: int, path: Path) -> list[RowT]:
    """Return the rows of a library, if they are that.

    Raises:
        WrongUsage
    """
    if rows and all(row.library == number for row in rows):
        return rows
    problem = tr("{path} was changed by another process", path=path)
    raise WrongUsage(problem=problem, hint=tr("wait for it, and try again"))
