"""Rankings of texts by the score of a search, and where two of them part (``docs/search.md``, "Comparing").

A text counts once, however many units or rows have it, and texts of one score have no order among themselves: neither
is a difference between an old table and a new index.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

import apsw

from regraft.formats.cherry_v2.index.search import nearest_bodies
from regraft.formats.large_text import LARGE_BYTES, LargeText, hash_of
from regraft.text import lenient_text

#: Hashes of texts with their scores, best first; texts of one score in the order of their hashes.
Ranking = list[tuple[str, float]]


def with_ties(texts: Iterable[tuple[str, float]], count: int) -> Ranking:
    """Return the first ``count`` different texts of a ranking, and those with the score of the last of them."""
    found: dict[str, float] = {}
    last = math.inf
    for text, score in texts:
        if len(found) >= count and score != last:
            break
        if text not in found:
            found[text] = last = score
    return sorted(found.items(), key=lambda entry: (-entry[1], entry[0]))


def recall(old: Ranking, new: Ranking, count: int) -> float:
    """Return the share of the ``count`` nearest old texts that the new ranking has; 1 where there are none."""
    wanted, given = {text for text, _ in old}, {text for text, _ in new}
    if not wanted:
        return 1.0
    return min(count, len(wanted & given)) / min(count, len(wanted))


def first_difference(old: Ranking, new: Ranking) -> dict[str, Any] | None:
    """Return the first rank at which two rankings part, with text hash and score on either side; None where none is."""
    for place, (before, after) in enumerate(zip_longest(old, new), 1):
        if before != after:
            return {"rank": place, "v1": _side(before), "v2": _side(after)}
    return None


def _side(entry: tuple[str, float] | None) -> dict[str, Any] | None:
    return None if entry is None else {"text_hash": entry[0], "score": entry[1]}


class IndexTexts:
    """The texts of an index by their nearness. A text is hashed once, piece by piece where it is large."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._hashes: dict[int, str] = {}

    def nearest(self, vector: bytes, count: int) -> Ranking:
        """Return the ``count`` nearest texts, and those that are as near as the last of them.

        They are asked for as a search asks: units of equal text are several hits and one text.

        Raises:
            apsw.Error: the index is damaged.
        """
        return with_ties(((self._hash(rowid), score) for rowid, score in nearest_bodies(self._db, vector)), count)

    def _hash(self, rowid: int) -> str:
        if rowid not in self._hashes:
            is_large = f"octet_length(text) > {LARGE_BYTES}"
            query = f"SELECT {is_large}, CASE WHEN NOT {is_large} THEN CAST(text AS BLOB) END FROM search_text"
            large, small = self._db.execute(f"{query} WHERE rowid = ?", (rowid,)).fetchone() or (0, "")
            text = (
                LargeText(db=self._db, table="search_text", column="text", rowid=rowid)
                if large
                else lenient_text(small)
            )
            self._hashes[rowid] = hash_of(text)
        return self._hashes[rowid]
