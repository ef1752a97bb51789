"""Pages that a log or a journal beside a file has newer, or older, than the file (``docs/formats/sqlite-pages.md``)."""

from __future__ import annotations

import os
import struct
from io import BufferedReader
from pathlib import Path

import msgspec

from regraft import links, sqlite
from regraft.formats.sqlite_pages.pages import PAGE_SIZES

_LOG_HEADER, _FRAME_HEADER = 32, 24
_LOG = struct.Struct(">4s7I")
_FRAME = struct.Struct(">6I")
_LOG_VERSION = 3_007_000
_JOURNAL = struct.Struct(">8s5I")
_JOURNAL_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
#: A journal that was not finished says so many pages: as many as there are.
_UNCOUNTED = 0xFFFFFFFF
_MOST_SECTOR = 65536


class Overlay(msgspec.Struct):
    """Where a file beside holds pages that count instead of the file's own.

    ``places`` gives their offsets by page number; ``pages`` is how many pages the file then has, None where it stays
    as long as it is.
    """

    file: BufferedReader | None = None
    page_size: int = 0
    places: dict[int, int] = msgspec.field(default_factory=dict)
    pages: int | None = None

    def read(self, number: int) -> bytes | None:
        """Return a page; None where the file's own counts.

        Raises:
            OSError: it cannot be read.
        """
        at = self.places.get(number)
        if at is None or self.file is None:
            return None
        self.file.seek(at)
        return self.file.read(self.page_size)

    def close(self) -> None:
        """Close the file beside."""
        if self.file is not None:
            self.file.close()


def beside(path: Path) -> Overlay:
    """Return the pages that the log, or the journal of a transaction that was not finished, has of a file.

    Raises:
        OSError: one of them cannot be read.
    """
    found = {companion.name[len(path.name) :]: companion for companion in sqlite.companions(path)}
    if "-wal" in found:
        return _opened(found["-wal"], _read_log)
    if "-journal" in found:
        shared = sqlite.shared_journal(found["-journal"])
        # Where the file that several journals share is gone, their transaction was finished.
        if shared is None or os.path.lexists(os.fsencode(shared)):
            return _opened(found["-journal"], _read_journal)
    return Overlay()


def _opened(path: Path, read: object) -> Overlay:
    file = links.reading(path)
    try:
        overlay = _read_log(file) if read is _read_log else _read_journal(file)
    except BaseException:
        file.close()
        raise
    overlay.file = file
    return overlay


# --- write-ahead logs ----------------------------------------------------------------------------------------------


def _read_log(file: BufferedReader) -> Overlay:
    """Return the frames of committed transactions, up to the first whose checksum does not follow from those before."""
    overlay = Overlay()
    header = file.read(_LOG_HEADER)
    if len(header) < _LOG_HEADER:
        return overlay
    magic, version, size, _, salt, other_salt, *sums = _LOG.unpack(header)
    order = ">" if magic[-1] & 1 else "<"
    state = _summed(header[:24], order, (0, 0))
    if version != _LOG_VERSION or size not in PAGE_SIZES or state != tuple(sums):
        return overlay
    overlay.page_size = size
    waiting: dict[int, int] = {}
    while len(frame := file.read(_FRAME_HEADER + size)) == _FRAME_HEADER + size:
        number, committed, one_salt, two_salt, *sums = _FRAME.unpack_from(frame)
        state = _summed(frame[_FRAME_HEADER:], order, _summed(frame[:8], order, state))
        if (one_salt, two_salt) != (salt, other_salt) or state != tuple(sums) or number == 0:
            break
        waiting[number] = file.tell() - size
        if committed:
            overlay.places.update(waiting)
            overlay.pages = committed
            waiting.clear()
    return overlay


def _summed(data: bytes, order: str, state: tuple[int, int]) -> tuple[int, int]:
    first, second = state
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for one, two in zip(words, words, strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second


# --- rollback journals ---------------------------------------------------------------------------------------------


def _read_journal(file: BufferedReader) -> Overlay:
    """Return the pages as they were before a transaction that was not finished."""
    overlay = Overlay()
    end = file.seek(0, os.SEEK_END)
    at = 0
    while at + _JOURNAL.size <= end:
        file.seek(at)
        magic, count, nonce, pages, sector, size = _JOURNAL.unpack(file.read(_JOURNAL.size))
        if magic != _JOURNAL_MAGIC or not _is_sound(overlay, sector, size):
            break
        if overlay.pages is None:
            overlay.page_size, overlay.pages = size, pages
        at += sector
        held = (end - at) // (size + 8)
        count = held if count == _UNCOUNTED else min(count, held)
        if not _take_pages(file, overlay, at, count, nonce):
            break
        at += -(-count * (size + 8) // sector) * sector
        if not count:
            break
    return overlay


def _is_sound(overlay: Overlay, sector: int, size: int) -> bool:
    is_first = overlay.pages is None
    powers = size in PAGE_SIZES and 32 <= sector <= _MOST_SECTOR and sector & (sector - 1) == 0
    return powers and (is_first or size == overlay.page_size)


def _take_pages(file: BufferedReader, overlay: Overlay, at: int, count: int, nonce: int) -> bool:
    """Take the records of one part of a journal; False at the first whose checksum is wrong: it was never written."""
    size = overlay.page_size
    for start in range(at, at + count * (size + 8), size + 8):
        file.seek(start)
        record = file.read(size + 8)
        if len(record) < size + 8:
            return False
        number = int.from_bytes(record[:4], "big")
        data = record[4:-4]
        total = nonce + sum(data[place] for place in range(size - 200, 0, -200))
        if number == 0 or total & 0xFFFFFFFF != int.from_bytes(record[-4:], "big"):
            return False
        # The first copy of a page is the one from before the transaction.
        overlay.places.setdefault(number, start + 4)
    return True
