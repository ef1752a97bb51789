"""Search a temporary database by words, through a full-text index for the terms of one query."""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from regraft.disk import sqlite
from regraft.formats.cherry_v2.index import schema
from regraft.formats.cherry_v2.index.full_text import MERGE_AT_SEGMENTS
from regraft.formats.cherry_v2.index.search import Hit, bm25_hits, compile_query

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
        """Return the code point that replaces another one, and remember it."""
        kept = _FILLER if self._wanted.isdisjoint(case_variants(chr(point))) else point
        return self.setdefault(point, kept)


def case_variants(character: str) -> frozenset[str]:
    """Return all case variants of a character, including itself."""
    return frozenset(
        "".join((character, character.lower(), character.upper(), character.title(), character.casefold()))
    )


def search_words(db: apsw.Connection, query: str, count: int) -> list[Hit]:
    """Return the best ``count`` hits of a query by words, from the units and texts of a temporary database.

    Builds the full-text index for the query, so it may be called once for a database. Characters that are in no term
    of the query are indexed as :data:`_FILLER`: text lengths, and thus scores, do not change.
    """
    if terms := compile_query(query).terms:
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
    return bm25_hits(db, query, count)
