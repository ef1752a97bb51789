"""A SQLite file as numbered pages, whatever its first page still says (``docs/formats/sqlite-pages.md``, "Pages")."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

from regraft import links, sqlite
from regraft.formats.sqlite_pages import overlays
from regraft.formats.sqlite_pages.pages import FILE_HEADER_BYTES, LEAST_USABLE, PAGE_SIZES, end_of_content

_ENCODINGS = {1: "utf-8", 2: "utf-16-le", 3: "utf-16-be"}
#: Three bytes of the header that no file has otherwise: they tell a header whose magic is damaged.
_FRACTIONS = b"\x40\x20\x20"
#: So many pages are looked at for each page size that may be meant.
_SAMPLE = 512
#: Fewer pages prove nothing against a header.
_FEW_PAGES = 4


class PageFile:
    """A SQLite file that is open for reading, page by page; nothing of it is changed and nothing made beside it.

    Attributes:
        size: bytes of the file.
        page_size: bytes of a page, as the header says, else as most pages look.
        usable: bytes of a page that SQLite uses.
        encoding: the encoding of its texts; None where no header says so.
        pages: how many pages there are; the last may lack bytes.
        stated: how many the header says that there are; 0 where it does not.
        is_guessed: whether the page size was told by the pages.
        has_header: whether the first page has the header of a file.
        unreadable: pages that the disk does not give.

    Raises:
        OSError: it cannot be read.
        ValueError: no page size makes pages of it.
    """

    def __init__(self, path: Path) -> None:
        self.path = links.real_path(path)
        self._file = links.reading(self.path, buffering=0)
        self._beside = overlays.Overlay()
        self.unreadable: set[int] = set()
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self._beside = overlays.beside(self.path)
            self._read_header()
        except BaseException:
            self.close()
            raise

    def _read_header(self) -> None:
        header = self._beside.read(1) or self._read(0, FILE_HEADER_BYTES)
        stated = _stated_size(header)
        size, reserved = self._looks_like(stated, header[20] if stated else 0)
        if not size:
            raise ValueError(self.path)
        self.has_header = stated == size
        self.is_guessed = not self.has_header
        self.page_size, self.usable = size, size - reserved
        self.encoding = _ENCODINGS.get(int.from_bytes(header[56:60], "big")) if self.has_header else None
        self.freelist = int.from_bytes(header[32:36], "big") if self.has_header else 0
        self.freed = int.from_bytes(header[36:40], "big") if self.has_header else 0
        self.is_auto_vacuum = self.has_header and header[52:56] != bytes(4)
        in_file = -(-self.size // size)
        if self._beside.page_size not in (0, size):
            self._beside.places.clear()
            self._beside.pages = None
        self.pages = in_file if self._beside.pages is None else self._beside.pages
        is_counted = self.has_header and header[24:28] == header[92:96]
        self.stated = int.from_bytes(header[28:32], "big") if is_counted else 0

    def _looks_like(self, stated: int, reserved: int) -> tuple[int, int]:
        """Return the page size that most of the file looks like, and its reserved bytes; (0, 0) where none fits."""
        seen = {size: self._evidence(size) for size in PAGE_SIZES}
        # Pages of the right size are filled to one and the same place. At twice the size half of them may seem so too.
        best = max(PAGE_SIZES, key=lambda size: max(seen[size].values(), default=0))
        most = max(seen[best].values(), default=0)
        # A damaged header may say another size: then next to no page is filled to where it says.
        if stated and (most < _FEW_PAGES or 4 * seen[stated][reserved] >= most):
            return stated, reserved
        if not seen[best]:
            return 0, 0
        return best, seen[best].most_common(1)[0][0]

    def _evidence(self, size: int) -> Counter[int]:
        """Return how many of some pages look like pages of a b-tree, by the bytes that they leave at their end."""
        count = self.size // size
        found: Counter[int] = Counter()
        for index in range(0, count, max(1, count // _SAMPLE)):
            left = end_of_content(self._read(index * size, size), index + 1, size)
            if left is not None:
                found[left] += 1
        return found

    def page(self, number: int) -> bytes:
        """Return the bytes of a page, from 1 on: fewer where the file ends within it, none where it is not there."""
        if not 0 < number <= self.pages:
            return b""
        try:
            data = self._beside.read(number)
            return self._read((number - 1) * self.page_size, self.page_size) if data is None else data
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.unreadable.add(number)
            return b""

    def _read(self, offset: int, length: int) -> bytes:
        self._file.seek(offset)
        data = self._file.read(length)
        while len(data) < length and (more := self._file.read(length - len(data))):
            data += more
        return data

    def is_torn(self, number: int) -> bool:
        """Tell whether a page is the last one and not all there, or lies behind the end that the header states."""
        if 0 < self.stated < number:
            return True
        return number == self.pages and len(self.page(number)) < self.page_size

    def close(self) -> None:
        """Close the file; closing it again does nothing."""
        self._file.close()
        self._beside.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _stated_size(header: bytes) -> int:
    """Return the page size that a header states; 0 where it is no header of a SQLite file."""
    if len(header) < FILE_HEADER_BYTES or (header[21:24] != _FRACTIONS and not header.startswith(sqlite.MAGIC)):
        return 0
    size = int.from_bytes(header[16:18], "big")
    size = 65536 if size == 1 else size
    return size if size in PAGE_SIZES and size - header[20] >= LEAST_USABLE else 0
