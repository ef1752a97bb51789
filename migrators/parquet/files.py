"""The Parquet files of an import: what each says of its bases, and what its rows hold of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from migrators.pipeline.entries import CATALOG, REPORT
from regraft.errors import BaseUnknown, SourceNotMigratable, SourceUnreadable, WrongUsage
from regraft.formats.parquet import columns
from regraft.formats.parquet.columns import Held, UnitRow
from regraft.formats.parquet.metadata import About, AboutBase
from regraft.language import joined, tr
from regraft.names import fold, is_folder_name
from regraft.tree import crc32_of


class UnitsFile(msgspec.Struct):
    """One file of units; :meth:`survey` reads it."""

    path: Path
    about: About
    #: Size and time of change (ns) when it was looked at first.
    looked_at: tuple[int, int]
    #: By the id that its rows have for a base; None before it was read.
    held: dict[Any, Held] | None = None

    def content_mark(self) -> list[int]:
        """Return what tells whether another file is the same: its size and CRC-32.

        Raises:
            SourceUnreadable: it cannot be read, or has changed since it was looked at first.
        """
        try:
            with self.path.open("rb") as file:
                found = [self.looked_at[0], crc32_of(file)]
            mark = _mark(self.path)
        except OSError as error:
            raise SourceUnreadable(path=self.path, reason=error.strerror or error) from error
        if mark != self.looked_at:
            raise SourceUnreadable(path=self.path, reason=tr("it changed meanwhile"))
        return found

    def survey(self, watch: Callable[[float], None]) -> None:
        """Read it once; ``watch`` is told which share of it was read since it was told last.

        Raises:
            SourceUnreadable: it is damaged.
        """
        self.held = columns.survey(self.path, watch)

    def of_base(self, base: AboutBase) -> Held:
        """Return what its rows hold of a base; nothing of one that has no index."""
        return (self.held or {}).get(base.id, Held()) if base.index else Held()

    def strays(self) -> int:
        """Count its rows that are of no base that it describes."""
        described = {base.id for base in self.about.bases if base.index}
        return sum(held.rows for base, held in (self.held or {}).items() if base not in described)

    def rows(self, base: AboutBase) -> Iterator[UnitRow]:
        """Stream the rows of one base, out of the row groups in which they are.

        Raises:
            SourceUnreadable: it is damaged, or has changed since it was surveyed.
        """
        try:
            for row in columns.read_rows(self.path, self.of_base(base).groups):
                if row.base == base.id:
                    yield row
        except SourceUnreadable:
            # What cannot be read of a file that is being written is no damage.
            if _mark(self.path) == self.looked_at:
                raise
        if _mark(self.path) != self.looked_at:
            raise SourceUnreadable(path=self.path, reason=tr("it changed meanwhile"))


def read_files(paths: tuple[Path, ...]) -> list[UnitsFile]:
    """Return what files of different bases say of themselves.

    Raises:
        SourceUnreadable, SourceUnrecognised, SourceNotMigratable: one is damaged, foreign, or v1's table.
        WrongUsage: two hold the same base, or pyarrow is missing.
    """
    owners: dict[str, Path] = {}
    files = []
    for path in paths:
        if not path.is_file():
            raise SourceUnreadable(path=path, reason=tr("there is no such file"))
        mark, about = _mark(path), columns.read_about(path)
        if about.layout != "v2":
            advice = tr("regraft migrate carries the source that it was exported from")
            is_v1 = about.layout == "v1"
            what = tr("the old table of a v1 base") if is_v1 else tr("the chunks of a knowledge base of rsclaw")
            raise SourceNotMigratable(path=path, what=what, advice=advice)
        for base in about.bases:
            if fold(base.id) in owners:
                problem = tr(
                    "base {id} is in {owners} and in {path}", id=base.id, owners=owners[fold(base.id)], path=path
                )
                raise WrongUsage(problem=problem, hint=tr("give each base once"))
            if not _is_folder_name(base.id):
                raise SourceUnreadable(
                    path=path, reason=tr("its base {id!r} cannot be the name of a folder", id=base.id)
                )
            owners[fold(base.id)] = path
        files.append(UnitsFile(path, about, mark))
    return files


def chosen(files: list[UnitsFile], wanted: tuple[str, ...]) -> list[tuple[int, UnitsFile, AboutBase]]:
    """Return the bases that a run is about, each with its position and its file; empty ``wanted`` means all.

    Raises:
        BaseUnknown: an id of ``wanted`` is none of them.
    """
    every = [(file, base) for file in files for base in file.about.bases]
    known = [base.id for _, base in every]
    for one in wanted:
        if one not in known:
            raise BaseUnknown(base=one, known=joined(known) or tr("no bases"))
    return [(at, file, base) for at, (file, base) in enumerate(every) if not wanted or base.id in wanted]


def _mark(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _is_folder_name(base_id: str) -> bool:
    """Tell whether a folder can be called so, and the ledger has no other use for the name."""
    return is_folder_name(base_id) and fold(base_id) not in (CATALOG, REPORT)
