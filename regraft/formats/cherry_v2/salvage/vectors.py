"""The vectors: each is of a text that is proven, is like the others of its base, and is read in one way only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import apsw
import msgspec

from regraft.formats.cherry_v2.salvage import shapes
from regraft.formats.cherry_v2.salvage.scratch import (
    CONTRADICTED,
    COPY,
    DELETED,
    KEPT,
    MADE,
    UNLIKE,
    UNNAMED,
    WEAK,
    value_of,
)
from regraft.formats.vector_proof import likeness

#: Keys of bodies that come along: a vector of theirs may be on any page.
_NAMED = f"SELECT hash FROM search_text WHERE fate IN ('{KEPT}', '{MADE}')"
#: Texts that prove themselves, whose unit or text is lost: their vectors serve when these are indexed again.
_KNOWN = f"SELECT hash FROM search_text WHERE fate IS NULL AND strength < {WEAK}"


class Vectors(msgspec.Struct, frozen=True):
    """Chooses the vectors of an index."""

    db: apsw.Connection
    dimensions: int | None

    def choose(self) -> None:
        """Decide about every vector."""
        self._refuse_unlike()
        # What is to be done is written when all rows were seen.
        self.db.execute("CREATE TEMP TABLE settled (seq INTEGER PRIMARY KEY, fate)")
        rows: Iterator[Any] = self.db.execute(
            f"""SELECT key, seq, strength, rid, key IN ({_NAMED}), key IN ({_KNOWN}),
                       EXISTS (SELECT 1 FROM index_key k WHERE k.name = ? AND k.key = e.key AND k.rid = e.rid)
                  FROM embedding e WHERE fate IS NULL ORDER BY key, strength, seq""",
            (shapes.VECTOR_KEY,),
        )
        for _, group in groupby(rows, key=lambda row: row[0]):
            for seq, fate in self._fates(list(group)):
                self.db.execute("INSERT INTO temp.settled VALUES (?, ?)", (seq, fate))
        self.db.execute("UPDATE embedding SET fate = s.fate FROM temp.settled s WHERE s.seq = embedding.seq")
        self.db.execute("DROP TABLE temp.settled")

    def _refuse_unlike(self) -> None:
        """Refuse vectors of another length than the base's, and those that are not like the others."""
        stated = None if self.dimensions is None else 4 * self.dimensions
        # Where only pages are left on which deleted rows may be, these have to tell.
        told = f"fate IS NULL AND strength <= max({WEAK - 1}, (SELECT min(strength) FROM embedding WHERE fate IS NULL))"
        length = value_of(
            self.db,
            f"""SELECT length(vector) FROM embedding WHERE {told}
                 GROUP BY 1 ORDER BY length(vector) IS ? DESC, count(*) DESC LIMIT 1""",
            (stated,),
        )
        self.db.execute(
            "UPDATE embedding SET fate = ? WHERE fate IS NULL AND length(vector) IS NOT ?", (UNLIKE, length)
        )
        self.db.execute(f"CREATE TEMP TABLE measured AS SELECT seq, norm, repeats FROM embedding WHERE {told}")
        usual = likeness(self.db, "temp.measured")
        self.db.execute("DROP TABLE temp.measured")
        # A vector of zeros is as good as none: the application never finds it.
        self.db.execute(
            """UPDATE embedding SET fate = ?
                WHERE fate IS NULL AND NOT (norm > 0 AND abs(norm - ?) <= ? AND repeats <= ?)""",
            (UNLIKE, usual.middle, usual.furthest, usual.repeats),
        )

    def _fates(self, readings: list[tuple[Any, ...]]) -> list[tuple[int, str]]:
        """Return what becomes of the readings of one vector, the strongest of which come first."""
        _, _, _, _, is_named, is_known, _ = readings[0]
        live = [one for one in readings if is_named or ((is_known or one[6]) and one[2] < WEAK)]
        best = [one for one in live if one[2] == live[0][2]]
        if not self._agree(best):
            best = [one for one in best if one[6]]
        chosen = best[0] if best and self._agree(best) else None
        return [(one[1], self._fate(one, chosen, is_live=one in live)) for one in readings]

    def _fate(self, reading: tuple[Any, ...], chosen: tuple[Any, ...] | None, *, is_live: bool) -> str:
        if reading is chosen:
            return KEPT
        if reading[2] >= WEAK:
            return DELETED
        if chosen is None:
            return CONTRADICTED if is_live else UNNAMED
        return COPY if self._agree([reading, chosen]) else CONTRADICTED

    def _agree(self, readings: list[tuple[Any, ...]]) -> bool:
        """Tell whether several readings have the same bytes."""
        if len(readings) < 2:
            return True
        marks = ", ".join("?" * len(readings))
        query = f"SELECT count(DISTINCT vector) FROM embedding WHERE seq IN ({marks})"
        return bool(value_of(self.db, query, [one[1] for one in readings]) == 1)
