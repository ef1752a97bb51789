"""Where the rows of a long list of occurrences lie, page by page, as FTS5 keeps it (``docs/formats/fts5.md``)."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from regraft.formats.sqlite_pages.records import put_varint

#: A term has such a list if it goes on over so many pages without another term.
LEAST_PAGES = 4
#: The first byte of a page of the list: whether there is a page above it.
_ROOT, _BELOW = b"\0", b"\1"


class _Level(msgspec.Struct):
    """One level: the page that is being filled, its number, its first row, and the last row in it."""

    page: int
    data: bytearray = msgspec.field(default_factory=bytearray)
    first: int = 0
    last: int = 0


class DoclistIndex:
    """The rows with which pages begin that a term goes on over; used for one term.

    Args:
        page: the page in which the term begins.
        page_bytes: FTS5's ``pgsz``.
    """

    def __init__(self, page: int, page_bytes: int) -> None:
        self._page = page
        self._page_bytes = page_bytes
        self._levels: list[_Level] = []
        self._full: list[tuple[int, int, bytes]] = []
        self._pages = 0

    def add_page(self, page: int, row: int, *, has_term: bool) -> None:
        """Take the next page, with its first row of this term; 0 where there is none."""
        if not has_term:
            self._pages += 1
        if row:
            self._add(0, page, row)
        elif not has_term and self._levels:
            self._levels[0].data += b"\0"

    def _add(self, height: int, page: int, row: int) -> None:
        if height == len(self._levels):
            self._levels.append(_Level(self._page))
        level = self._levels[height]
        if len(level.data) >= self._page_bytes:
            level.data[:1] = _BELOW
            self._full.append((height, level.page, bytes(level.data)))
            if height + 1 == len(self._levels):
                # It was the root: the new one names it first.
                self._add(height + 1, level.page, level.first)
                self._levels[height + 1].page = level.page
            level.page, level.data = level.page + 1, bytearray()
            self._add(height + 1, level.page, row)
        if level.data:
            level.data += put_varint(row - level.last)
        else:
            is_root = height + 1 == len(self._levels)
            level.data += (_ROOT if is_root else _BELOW) + put_varint(page) + put_varint(row)
            level.first = row
        level.last = row

    def pages(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield height, number and bytes of each page; nothing where the term is on few pages."""
        if self._pages < LEAST_PAGES or not self._levels:
            return
        yield from self._full
        for height, level in enumerate(self._levels):
            data = bytes(level.data)
            yield height, level.page, data
