"""Fills the full-text index of a base: in several processes where that is faster (:mod:`regraft.formats.fts5`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from regraft.disk import untrusted_sqlite
from regraft.formats import fts5
from regraft.formats.cherry_v2.index import schema
from regraft.formats.large_text import LARGE_BYTES
from regraft.processes.pool import ProcessPool, release_free_memory

#: The page cache while rows and their indexes are written, in KiB: keys are hashes, so every page is hit again.
ROWS_CACHE_KIB = 32_000
#: The page cache while the full-text index is built: it writes in order, a larger cache is in the way.
TEXT_CACHE_KIB = 2_000
#: FTS5 keeps this many bytes of postings in memory before it writes a segment. For text of few distinct trigrams
#: (English) more than the stock 1 MiB saves a tenth of the time; for Chinese it costs more cache misses than it saves.
WORDS_HASH_BYTES = 8 << 20
#: Segments are merged when there are so many of one level, and all at the end, instead of again and again meanwhile.
MERGE_AT_SEGMENTS = 100
#: From this share of CJK characters on the stock hash is the right one.
CJK_SHARE = 0.2
_FIRST_TEXTS = "SELECT CAST(substr(text, 1, 200) AS BLOB) FROM search_text LIMIT 4000"
#: How many bytes all bodies come to, and whether each is a text with a number, and not a large one.
_TEXT_BYTES = """SELECT ifnull(sum(octet_length(text)), 0), ifnull(min(typeof(text) = 'text'
                        AND typeof(fts_rowid) = 'integer' AND octet_length(text) <= ?), 0) FROM search_text"""
_INDEX = fts5.Index(table="search_text_fts", texts="search_text", number="fts_rowid", text="text")


class CjkSample:
    """Watches every so many bodies for CJK characters, to choose the size of the full-text hash."""

    #: One body in this many is looked at, at most this many characters of it.
    EVERY = 16
    CHARACTERS = 200

    def __init__(self) -> None:
        self._bodies = 0
        self._characters = 0
        self._cjk = 0

    def see(self, body: str) -> None:
        """Take ``body`` into account, if it is one of the sample."""
        if self._bodies % self.EVERY == 0:
            part = body[: self.CHARACTERS]
            self._characters += len(part)
            if not part.isascii():
                self._cjk += sum("\u2e80" <= char <= "\u9fff" or "\uac00" <= char <= "\ud7af" for char in part)
        self._bodies += 1

    @property
    def share(self) -> float:
        """Return the share of CJK characters in the sample, 0 to 1."""
        return self._cjk / self._characters if self._characters else 0.0

    def settings(self) -> dict[str, int]:
        """Return how FTS5 indexes such texts fastest: its own settings by name."""
        settings = {"automerge": 0, "crisismerge": MERGE_AT_SEGMENTS}
        if self.share < CJK_SHARE:
            settings["hashsize"] = WORDS_HASH_BYTES
        return settings


class FullText:
    """The full-text index of bodies that are being written, with the number of each; made by :func:`full_text`."""

    def __init__(self, sample: CjkSample | None = None, sorting: fts5.Sorting | None = None) -> None:
        self._sample = sample or CjkSample()
        self._sorting = sorting

    def add(self, rowid: int, body: str) -> None:
        """Take a body; the bodies come in the order of their numbers."""
        self._sample.see(body)
        if self._sorting is not None:
            self._sorting.add(rowid, body)

    def read(self, db: apsw.Connection) -> None:
        """Take the bodies of a file, or as many as a sample needs."""
        if self._sorting is None:
            for (text,) in db.execute(_FIRST_TEXTS):
                self._sample.see((text or b"").decode("utf-8", "replace"))
            return
        try:
            for rowid, body in db.execute("SELECT fts_rowid, text FROM search_text ORDER BY fts_rowid"):
                self.add(int(str(rowid)), str(body))
        except UnicodeDecodeError:
            self.leave_to_fts5()

    def leave_to_fts5(self) -> None:
        """Let FTS5 read the bodies itself: one of them is too large to be held."""
        self._sorting = None

    @property
    def is_sorted(self) -> bool:
        """Tell whether other processes sort the words."""
        return self._sorting is not None

    def end(self) -> None:
        """Know that no body comes any more: whoever works on them can begin with the last ones."""
        if self._sorting is not None:
            self._sorting.end()

    def go_on(self) -> None:
        """Let others go on: whoever does something else while they work calls it now and then."""
        if self._sorting is not None:
            self._sorting.go_on()

    def fill(self, db: apsw.Connection, each: Callable[[int], None] = lambda _: None) -> None:
        """Fill the empty index of a file whose bodies are all there, and leave its configuration as stock.

        ``each`` is called with numbers of bodies, as they are in.
        """
        db.execute(f"PRAGMA cache_size = -{TEXT_CACHE_KIB}")
        # Others need it now that work beside this process.
        release_free_memory()
        if self._sorting is None or not self._sorting.splice_into(db, _INDEX, each):
            _fill(db, self._sample.settings())


@contextmanager
def open_full_text(
    text_bytes: int | None, beside: Path | None = None, crew: ProcessPool | None = None
) -> Iterator[FullText]:
    """Give the full-text index of bodies that come to about so many bytes, None where nobody knows.

    ``beside`` is a folder for what is written meanwhile; None for the system's. ``crew`` are processes that may
    be used for it.
    """
    sample = CjkSample()
    with fts5.sorting(text_bytes or 0, arguments=schema.FULL_TEXT_ARGUMENTS, beside=beside, ready=crew) as sorting:
        yield FullText(sample, sorting)


def rebuild_full_text(db: apsw.Connection) -> None:
    """Rebuild ``search_text_fts`` from the bodies, and leave its configuration as stock."""
    untrusted_sqlite.refuse_shadow_indexes(db)
    rows: Any = db.execute(_TEXT_BYTES, (LARGE_BYTES,)).fetchall()[0]
    text_bytes, is_plain = rows
    with open_full_text(text_bytes if is_plain else 0) as made:
        made.read(db)
        made.fill(db)


def write_indexes(
    db: apsw.Connection,
    fill: Callable[[apsw.Connection], None] = rebuild_full_text,
    *,
    words_last: bool = False,
    go_on: Callable[[], None] = lambda: None,
) -> None:
    """Create what a file lacks whose rows are all there: its indexes, the full-text index, and the triggers last.

    Args:
        db: the file, opened for writing.
        fill: fills the full-text index, which is empty.
        words_last: whether others are at work on the words meanwhile; else FTS5's merging leaves free pages, which the
            other indexes fill.
        go_on: called now and then while others may be at work.
    """
    db.execute(schema.ROWID_INDEX)
    db.execute(schema.FULL_TEXT)
    if words_last:
        _execute(db, schema.INDEXES[1:], go_on)
    fill(db)
    db.execute(f"PRAGMA cache_size = -{ROWS_CACHE_KIB}")
    if not words_last:
        _execute(db, schema.INDEXES[1:], go_on)
    _execute(db, schema.TRIGGERS, go_on)


def _execute(db: apsw.Connection, statements: Iterable[str], go_on: Callable[[], None]) -> None:
    for statement in statements:
        go_on()
        db.execute(statement)


def full_text_matches(db: apsw.Connection) -> bool:
    """Tell by FTS5's own check whether the full-text index holds the words of all bodies.

    That check is a write, of nothing: the file has to be open for writing.
    """
    try:
        # Rank 1: not only the index in itself, but against the bodies.
        db.execute("INSERT INTO search_text_fts (search_text_fts, rank) VALUES ('integrity-check', 1)")
    except apsw.CorruptError:
        return False
    return True


def _fill(db: apsw.Connection, settings: dict[str, int]) -> None:
    """Let FTS5 fill the index, as one segment.

    Merging late takes two thirds of the time that FTS5's own settings take (``benchmarks/README.md``).
    """
    for name, value in settings.items():
        db.execute("INSERT INTO search_text_fts (search_text_fts, rank) VALUES (?, ?)", (name, value))
    db.execute("INSERT INTO search_text_fts (search_text_fts) VALUES ('rebuild')")
    db.execute("INSERT INTO search_text_fts (search_text_fts) VALUES ('optimize')")
    with untrusted_sqlite.allow_schema_writes(db):
        db.executemany("DELETE FROM search_text_fts_config WHERE k = ?", [(name,) for name in settings])
