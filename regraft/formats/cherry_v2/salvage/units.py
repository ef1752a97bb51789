"""The units of every text that is there, and their bodies: each is a slice of the text, and its id proves the place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import apsw

from regraft import identity
from regraft.formats.cherry_v2.salvage import shapes
from regraft.formats.cherry_v2.salvage.derived import LostUnit, Span, WholeText, span_of
from regraft.formats.cherry_v2.salvage.scratch import (
    CONTRADICTED,
    COPY,
    DAMAGED,
    KEPT,
    MADE,
    WEAK,
    Row,
    rows_of,
    unit_id,
    value_of,
)
from regraft.text import decode_utf8

#: So many bytes of texts are searched for bodies of which nothing says whose they are.
_MOST_SEARCHED = 1 << 32
_LAST_PLACE = 1 << 62
_THERE = f"fate IN ('{KEPT}', '{MADE}')"


class _Unit(NamedTuple):
    """A unit that proves itself: its row, and where it is."""

    seq: int
    strength: int
    rid: int | None
    key: bytes
    place: int
    start: int
    stop: int
    created: int


@dataclass
class Units:
    """Chooses the units and their bodies, text by text: one text at a time is held."""

    db: apsw.Connection
    #: Whether units have titles, or say where they are: then those of a unit that is lost are lost, too.
    has_titles: bool = field(init=False)

    def choose(self) -> None:
        """Decide about the units of every text that comes along, and about their bodies."""
        self.has_titles = self._value(
            "SELECT 1 FROM search_unit WHERE fate IS NULL AND (title, locator) IS NOT (NULL, NULL)"
        )
        texts = rows_of(self.db, f"SELECT seq, key FROM content WHERE {_THERE} ORDER BY seq")
        for seq, key in texts:
            text = WholeText(value_of(self.db, "SELECT text FROM content WHERE seq = ?", (seq,)))
            for (material,) in self._materials_of(key):
                self._choose_units(material, key, text)
        if not self.has_titles:
            self._derive_by_bodies()

    def _materials_of(self, content: bytes) -> list[Row]:
        return rows_of(
            self.db,
            f"""SELECT key FROM material WHERE content = ?1 AND {_THERE}
                 UNION
                SELECT m.key FROM search_unit u CROSS JOIN material m ON m.key = u.material AND m.{_THERE}
                 WHERE u.content = ?1 AND u.fate IS NULL AND u.strength = 0""",
            (content,),
        )

    def _choose_units(self, material: bytes, content: bytes, text: WholeText) -> None:
        known: dict[int, Span] = {}
        rows = rows_of(
            self.db,
            """SELECT seq, strength, rid, key, place, start, stop, created FROM search_unit
                WHERE content = ? AND material = ? AND fate IS NULL ORDER BY place, strength, seq""",
            (content, material),
        )
        for place, group in groupby(rows, key=lambda row: row[4]):
            readings = [_Unit(*row) for row in group]
            unit = self._unit_of(readings, text)
            if unit is not None:
                known[place] = unit.start, unit.stop
                self._body(unit, text)
        for lost in () if self.has_titles else self._lost_units(material):
            self._derive_unit(lost, material, content, text, known)

    def _unit_of(self, readings: list[_Unit], text: WholeText) -> _Unit | None:
        """Keep one of the readings of a unit, and settle the others."""
        there = [one for one in readings if text.slice(one.start, one.stop) is not None]
        live = [one for one in there if one.strength < WEAK or self._is_named(one)]
        best = [one for one in live if one.strength == live[0].strength]
        if len({one.key for one in best}) > 1:
            best = [one for one in best if self._is_indexed(one)]
        chosen = best[0] if len({one.key for one in best}) == 1 else None
        for one in readings:
            if one is chosen:
                self._settle("search_unit", one.seq, KEPT)
            elif chosen is not None and one.key == chosen.key:
                self._settle("search_unit", one.seq, COPY)
            elif one.strength < WEAK:
                self._settle("search_unit", one.seq, CONTRADICTED)
        return chosen

    def _is_named(self, unit: _Unit) -> bool:
        """Tell whether something that was not deleted names a unit from a page where deleted ones may be."""
        body = f"SELECT 1 FROM search_text WHERE target = ? AND fate IS NULL AND strength < {WEAK}"
        return self._value(body, unit.key) or self._is_indexed(unit)

    def _is_indexed(self, unit: _Unit) -> bool:
        query = "SELECT 1 FROM index_key WHERE name = ? AND key = ? AND rid = ?"
        return self._value(query, shapes.UNIT_KEY, unit.key, unit.rid)

    # --- bodies ------------------------------------------------------------------------------------------------------

    def _body(self, unit: _Unit, text: WholeText) -> None:
        """Keep the body of a unit, or cut it anew."""
        part = text.slice(unit.start, unit.stop)
        chosen = False
        rows = rows_of(
            self.db,
            "SELECT seq, text FROM search_text WHERE target = ? AND fate IS NULL ORDER BY strength, seq",
            (unit.key,),
        )
        for seq, raw in rows:
            is_it = not chosen and isinstance(raw, bytes) and decode_utf8(raw) == part
            self._settle("search_text", seq, KEPT if is_it else COPY if chosen else DAMAGED)
            chosen = chosen or is_it
        if not chosen and text.is_exact and part is not None:
            self._cut_body(unit, part)

    def _cut_body(self, unit: _Unit, part: str) -> None:
        left = rows_of(
            self.db,
            f"""SELECT rid, number, created FROM search_text WHERE target = ? AND fate = '{DAMAGED}'
                 ORDER BY strength, seq LIMIT 1""",
            (unit.key,),
        )
        rid, number, created = left[0] if left else (self._row_of_body(unit), None, unit.created)
        if number is None:
            number = value_of(
                self.db, "SELECT key FROM index_key WHERE name = ? AND rid = ?", (shapes.BODY_NUMBER, rid)
            )
        key = identity.body_id(unit.key.decode()).encode()
        values = (rid, MADE, key, unit.key, part.encode(), identity.text_hash(part).encode(), number, created)
        self.db.execute(f"INSERT INTO search_text VALUES (NULL, 0, {', '.join('?' * len(values))})", values)

    def _row_of_body(self, unit: _Unit) -> Any:
        """Return the number of the row that a body had: as an index says, else that of its unit in a fresh file."""
        found = rows_of(self.db, "SELECT rid FROM index_key WHERE name = ? AND key = ?", (shapes.BODY_TARGET, unit.key))
        return found[0][0] if len(found) == 1 else unit.rid

    # --- units that are lost -----------------------------------------------------------------------------------------

    def _lost_units(self, material: bytes) -> Iterator[LostUnit]:
        """Yield units of a material whose rows are lost, and that the indexes know."""
        # CROSS JOIN: the material's keys first. Without statistics SQLite may begin with all keys of an index.
        by_index = rows_of(
            self.db,
            f"""SELECT k.key, p.place, t.text FROM index_key p
                 CROSS JOIN index_key k ON k.name = ? AND k.rid = p.rid
                  LEFT JOIN search_text t ON t.target = k.key AND t.fate IS NULL AND t.strength < {WEAK}
                 WHERE p.name = ? AND p.key = ?
                   AND NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.key = k.key AND u.{_THERE})
                 ORDER BY p.place""",
            (shapes.UNIT_KEY, shapes.UNIT_PLACE, material),
        )
        for key, place, raw in by_index:
            if isinstance(place, int) and shapes.is_hash(key):
                yield LostUnit(key=key, place=place, body=None if raw is None else decode_utf8(raw))

    def _derive_by_bodies(self) -> None:
        """Find the places of units of which only the bodies are left: each in a text that lacks units."""
        self.db.execute("CREATE TEMP TABLE alone (place INTEGER PRIMARY KEY, seq INTEGER)")
        self.db.execute(
            f"""INSERT INTO temp.alone SELECT NULL, seq FROM search_text t WHERE fate IS NULL AND strength < {WEAK}
                   AND NOT EXISTS (SELECT 1 FROM search_unit u
                                    WHERE u.key = t.target AND (u.fate IS NULL OR u.{_THERE}))
                   AND NOT EXISTS (SELECT 1 FROM index_key k WHERE k.name = ? AND k.key = t.target)
                 ORDER BY rid""",
            (shapes.UNIT_KEY,),
        )
        materials = rows_of(
            self.db,
            f"""SELECT m.key, c.key, c.seq FROM material m JOIN content c ON c.key = m.content AND c.{_THERE}
                 WHERE m.{_THERE} ORDER BY m.rid""",
        )
        last = searched = 0
        for material, content, seq in materials:
            if not self._value("SELECT 1 FROM temp.alone") or searched > _MOST_SEARCHED:
                break
            text = WholeText(value_of(self.db, "SELECT text FROM content WHERE seq = ?", (seq,)))
            known = self._known(material, content)
            # Bodies of one text stand together, and in the order of the materials: mostly the next one is meant.
            for place in self._places_alone(last):
                if searched > _MOST_SEARCHED or _is_covered(known, text):
                    break
                searched += len(text)
                if self._derive_alone(place, material, content, text, known):
                    last = place
        self.db.execute("DROP TABLE temp.alone")

    def _places_alone(self, last: int) -> Iterator[int]:
        """Yield the places of bodies of which nobody knows whose they are: those behind ``last``, then the others."""
        for first, end in ((last, _LAST_PLACE), (0, last)):
            query = "SELECT place FROM temp.alone WHERE place > ? AND place <= ? ORDER BY place LIMIT 1"
            at = value_of(self.db, query, (first, end))
            while at is not None:
                yield at
                at = value_of(self.db, query, (at, end))

    def _known(self, material: bytes, content: bytes) -> dict[int, Span]:
        rows = rows_of(
            self.db,
            f"SELECT place, start, stop FROM search_unit WHERE content = ? AND material = ? AND {_THERE}",
            (content, material),
        )
        return {place: (start, stop) for place, start, stop in rows}

    def _derive_alone(
        self, place: int, material: bytes, content: bytes, text: WholeText, known: dict[int, Span]
    ) -> bool:
        ((key, raw),) = rows_of(
            self.db, "SELECT target, text FROM search_text JOIN temp.alone a USING (seq) WHERE a.place = ?", (place,)
        )
        lost = LostUnit(key=key, place=None, body=decode_utf8(raw))
        if not self._derive_unit(lost, material, content, text, known):
            return False
        self.db.execute("DELETE FROM temp.alone WHERE place = ?", (place,))
        return True

    def _derive_unit(
        self, lost: LostUnit, material: bytes, content: bytes, text: WholeText, known: dict[int, Span]
    ) -> bool:
        """Add a unit that is lost where its id proves its place, with its body; tell whether it does."""
        found = span_of(
            lost, text, known, lambda place, start, stop: unit_id(material, content, place, start, stop) == lost.key
        )
        if found is None or found[0] in known:
            return False
        place, (start, stop) = found
        known[place] = start, stop
        rid = value_of(self.db, "SELECT rid FROM index_key WHERE name = ? AND key = ?", (shapes.UNIT_KEY, lost.key))
        created = value_of(
            self.db,
            """SELECT created FROM search_text WHERE target = ?1
                UNION ALL SELECT created FROM search_unit WHERE content = ?2 AND fate = ?3
                UNION ALL SELECT created FROM content WHERE key = ?2 LIMIT 1""",
            (lost.key, content, KEPT),
        )
        self.db.execute(
            "INSERT INTO search_unit VALUES (NULL, 0, ?, ?, ?, ?, ?, ?, NULL, ?, ?, NULL, ?)",
            (rid, MADE, lost.key, material, content, place, start, stop, created),
        )
        unit = _Unit(
            seq=0,
            strength=0,
            rid=rid,
            key=lost.key,
            place=place,
            start=start,
            stop=stop,
            created=created,
        )
        self._body(unit, text)
        return True

    def _settle(self, table: str, seq: int, fate: str) -> None:
        self.db.execute(f"UPDATE {table} SET fate = ? WHERE seq = ?", (fate, seq))

    def _value(self, query: str, *values: Any) -> bool:
        return value_of(self.db, query, values) is not None


def _is_covered(known: dict[int, Span], text: WholeText) -> bool:
    """Tell whether a text has all of its units: they are numbered on, and the last one ends it but for white space."""
    last = len(known) - 1
    return last in known and max(known) == last and known[last][1] >= len(text) - 2
