"""Full-text index of a temporary database, for the terms of one query."""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from regraft.disk import sqlite
from regraft.formats.cherry_v2.index import schema
from regraft.formats.cherry_v2.index.full_text import MERGE_AT_SEGMENTS

#: Replaces every character that is not part of a query term. Terms consist of letters, numbers and ``_``.
_FILLER = 1


class _TermCharacters(dict[int, int]):
    """Translation table that keeps the characters of the query terms, in every case, and replaces all others.

    This makes indexing of Chinese texts five times faster, since most of their trigrams do not matter for one query.
    """

    def __init__(self, terms: Iterable[str]) -> None:
        # FTS5 would end the text at NUL.
        super().__init__({0: 0})
        self._wanted = {other for term in terms for one in term for other in case_variants(one)}

    def __missing__(self, point: int) -> int:
        kept = _FILLER if self._wanted.isdisjoint(case_variants(chr(point))) else point
        return self.setdefault(point, kept)


def case_variants(one: str) -> frozenset[str]:
    """Return all case variants of a character, including itself."""
    return frozenset("".join((one, one.lower(), one.upper(), one.title(), one.casefold())))


def fill_full_text(db: apsw.Connection, terms: Iterable[str]) -> None:
    """Index the texts of the table ``search_text`` for queries with these terms. May be called once.

    Other characters are indexed as :data:`_FILLER`: text lengths, and thus scores, do not change.
    """
    kept = _TermCharacters(terms)
    db.execute(schema.FULL_TEXT)
    with sqlite.transaction(db):
        # The index serves one query, so merging its segments does not pay off.
        for name, value in (("automerge", 0), ("crisismerge", MERGE_AT_SEGMENTS)):
            db.execute("INSERT INTO search_text_fts (search_text_fts, rank) VALUES (?, ?)", (name, value))
        texts = db.execute("SELECT fts_rowid, text FROM search_text ORDER BY fts_rowid")
        db.executemany(
            "INSERT INTO search_text_fts (rowid, text) VALUES (?, ?)",
            ((number, str(text).translate(kept)) for number, text in texts),
        )
