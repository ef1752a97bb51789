"""Build the full-text index of a base, in several processes if that is faster (:mod:`regraft.formats.fts5`)."""

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

#: Page cache in KiB while rows and their indexes are written. Keys are hashes, so all pages are used repeatedly.
ROWS_CACHE_KIB = 32_000
#: Page cache in KiB while the full-text index is built. It is written sequentially, so a larger cache only costs time.
TEXT_CACHE_KIB = 2_000
#: Bytes of postings that FTS5 collects in memory before it writes a segment. For text with few distinct trigrams
#: (English) more than the default of 1 MiB saves a tenth of the time; for Chinese the extra cache misses cost more than
#: it saves.
WORDS_HASH_BYTES = 8 << 20
#: Number of segments of one level that triggers a merge: high, so that all are merged once at the end.
MERGE_AT_SEGMENTS = 100
#: Share of CJK characters above which FTS5's default hash size is faster.
CJK_SHARE = 0.2
_FIRST_TEXTS = "SELECT CAST(substr(text, 1, 200) AS BLOB) FROM search_text LIMIT 4000"
#: Total bytes of all bodies, and whether every body is a numbered text that is not large.
_TEXT_BYTES = """SELECT ifnull(sum(octet_length(text)), 0), ifnull(min(typeof(text) = 'text'
                        AND typeof(fts_rowid) = 'integer' AND octet_length(text) <= ?), 0) FROM search_text"""
_INDEX = fts5.IndexNames(table="search_text_fts", texts="search_text", number="fts_rowid", text="text")


class CjkSample:
    """Measures the share of CJK characters in a sample of bodies, to choose the size of FTS5's hash."""

    #: One body in this many is examined, up to CHARACTERS characters of it.
    EVERY = 16
    CHARACTERS = 200

    def __init__(self) -> None:
        self._bodies = 0
        self._characters = 0
        self._cjk = 0

    def examine(self, body: str) -> None:
        """Pass the next body; it is examined if it belongs to the sample."""
        if self._bodies % self.EVERY == 0:
            part = body[: self.CHARACTERS]
            self._characters += len(part)
            if not part.isascii():
                self._cjk += sum("\u2e80" <= char <= "\u9fff" or "\uac00" <= char <= "\ud7af" for char in part)
        self._bodies += 1

    @property
    def share(self) -> float:
        """Share of CJK characters in the sample, from 0 to 1."""
        return self._cjk / self._characters if self._characters else 0.0

    def settings(self) -> dict[str, int]:
        """Return the FTS5 options, by name, that index texts like those of the sample fastest."""
        settings = {"automerge": 0, "crisismerge": MERGE_AT_SEGMENTS}
        if self.share < CJK_SHARE:
            settings["hashsize"] = WORDS_HASH_BYTES
        return settings


class FullText:
    """Builds the full-text index of numbered bodies while they are written; made by :func:`open_full_text`.

    Args:
        sample: sample of the bodies.
        sorting: sorts the words in other processes; by default FTS5 builds the index itself.
    """

    def __init__(self, sample: CjkSample | None = None, sorting: fts5.FullTextBuilder | None = None) -> None:
        self._sample = sample or CjkSample()
        self._sorting = sorting

    def add(self, rowid: int, body: str) -> None:
        """Add a body with its number (``rowid``). Bodies must be added in ascending order of their numbers."""
        self._sample.examine(body)
        if self._sorting is not None:
            self._sorting.add(rowid, body)

    def read(self, db: apsw.Connection) -> None:
        """Add the bodies of an index file, or only a sample of them if FTS5 builds the full-text index itself."""
        if self._sorting is None:
            for (text,) in db.execute(_FIRST_TEXTS):
                self._sample.examine((text or b"").decode("utf-8", "replace"))
            return
        try:
            for rowid, body in db.execute("SELECT fts_rowid, text FROM search_text ORDER BY fts_rowid"):
                self.add(int(str(rowid)), str(body))
        except UnicodeDecodeError:
            self.leave_to_fts5()

    def leave_to_fts5(self) -> None:
        """Let FTS5 read the bodies itself because one of them is too large to be held in memory."""
        self._sorting = None

    @property
    def is_sorted(self) -> bool:
        """Whether other processes sort the words."""
        return self._sorting is not None

    def end(self) -> None:
        """Signal that all bodies have been added, so that other processes can start on the last ones."""
        if self._sorting is not None:
            self._sorting.end()

    def go_on(self) -> None:
        """Keep the other processes supplied. Must be called regularly while this process does something else."""
        if self._sorting is not None:
            self._sorting.go_on()

    def fill(self, db: apsw.Connection, each: Callable[[int], None] = lambda _: None) -> None:
        """Fill the empty full-text index of a file that has all its bodies, and restore FTS5's default configuration.

        ``each`` is called with the number of bodies that were indexed since the last call.
        """
        db.execute(f"PRAGMA cache_size = -{TEXT_CACHE_KIB}")
        # The processes that sort words need the memory.
        release_free_memory()
        if self._sorting is not None and self._sorting.fill_index(db, _INDEX, each):
            return
        # FTS5 fills the index as a single segment. Merging once at the end takes two thirds of the time that its
        # default settings take (``benchmarks/README.md``).
        settings = self._sample.settings()
        db.executemany("INSERT INTO search_text_fts (search_text_fts, rank) VALUES (?, ?)", settings.items())
        db.execute("INSERT INTO search_text_fts (search_text_fts) VALUES ('rebuild')")
        db.execute("INSERT INTO search_text_fts (search_text_fts) VALUES ('optimize')")
        with untrusted_sqlite.allow_schema_writes(db):
            db.executemany("DELETE FROM search_text_fts_config WHERE k = ?", [(name,) for name in settings])


@contextmanager
def open_full_text(
    text_bytes: int | None, beside: Path | None = None, processes: ProcessPool | None = None
) -> Iterator[FullText]:
    """Prepare to build a full-text index.

    Args:
        text_bytes: approximate size of all bodies in bytes; None if unknown.
        beside: folder for temporary files (default: the system's).
        processes: process pool that may sort words; by default one is started if it saves time.
    """
    sample = CjkSample()
    with fts5.open_full_text_builder(
        text_bytes or 0, arguments=schema.FULL_TEXT_ARGUMENTS, beside=beside, ready=processes
    ) as sorting:
        yield FullText(sample, sorting)


def rebuild_full_text(db: apsw.Connection) -> None:
    """Rebuild ``search_text_fts`` from the bodies and restore FTS5's default configuration."""
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
    """Create the indexes, the full-text index and the triggers of a file that has all its rows.

    Args:
        db: the file, opened for writing.
        fill: fills the empty full-text index of a file.
        words_last: other processes still sort words, so the other indexes are created first. Otherwise they come later
            and reuse the free pages that FTS5's merging leaves.
        go_on: called regularly to keep other processes supplied.
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
    """Execute SQL statements, and call ``go_on`` before each to keep other processes supplied."""
    for statement in statements:
        go_on()
        db.execute(statement)


def full_text_matches(db: apsw.Connection) -> bool:
    """Whether the full-text index matches all bodies, by FTS5's own integrity check.

    The check is an INSERT that changes nothing, so the file must be open for writing.
    """
    try:
        # Rank 1 also compares the index with the bodies.
        db.execute("INSERT INTO search_text_fts (search_text_fts, rank) VALUES ('integrity-check', 1)")
    except apsw.CorruptError:
        return False
    return True
