"""Overflow chains: followed, and checked against those of other rows (``docs/formats/sqlite-pages.md``)."""

from __future__ import annotations

from array import array
from hashlib import blake2b

from regraft.formats.sqlite_pages.file import PageFile
from regraft.formats.sqlite_pages.found import Flaw, Origin
from regraft.formats.sqlite_pages.pages import Cell

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
