"""The units of every text that is there, and their bodies: each is a slice of the text, and its id proves the place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, product
from typing import Any, NamedTuple

import apsw
import msgspec

from regraft import identity
from regraft.formats.cherry_v2.salvage import found_rows
from regraft.formats.cherry_v2.salvage.found_rows import (
    CONTRADICTED,
    COPY,
    DAMAGED,
    KEPT,
    MADE,
    WEAK,
    Row,
    fetch_rows,
    fetch_value,
    hash_text_bytes,
    unit_id,
)
from regraft.text import decode_utf8

# What is lost and follows from what is proven: texts out of their units, and units by their ids.
#
# Nothing is guessed: a text is taken for right where it has the hash, and a unit where it has the id, that is asked for.


#: What may stand between two units of a text, by its length in UTF-16 units, and behind the last one.
_BETWEEN = {0: ("",), 1: ("\n", " "), 2: ("\n\n", "\r\n", "  ", "\n "), 3: ("\n\n\n",), 4: ("\r\n\r\n", "\n\n\n\n")}
_BEHIND = ("", "\n", "\r\n", " ", "\n\n")
#: Of one body so many places in a text are tried.
_MOST_PLACES = 64

#: Where a unit begins and ends, in UTF-16 units.
Span = tuple[int, int]


def join_bodies(key: bytes, pieces: Iterable[tuple[int, int, bytes]]) -> bytes | None:
    """Return a text that is lost, joined from the bodies of its units, where that has its hash; else None.

    Args:
        key: the text's hash.
        pieces: where units begin and end, in UTF-16 units, each with its body; in the order in which they begin.
    """
    parts: list[str] = []
    gaps: list[int] = []
    end = 0
    for start, stop, body in pieces:
        wide = decode_utf8(body).encode("utf-16-le")
        if len(wide) != 2 * (stop - start) or (start > end and start - end not in _BETWEEN):
            return None
        gaps.append(max(0, start - end))
        # Units may overlap: what is there already is not put in twice.
        parts.append(wide[2 * max(0, end - start) :].decode("utf-16-le", "replace"))
        end = max(end, stop)
    lengths = sorted(set(gaps))
    for chosen in product(*(_BETWEEN[length] for length in lengths), _BEHIND):
        between = dict(zip(lengths, chosen, strict=False))
        whole = "".join(between[gap] + part for gap, part in zip(gaps, parts, strict=True)) + chosen[-1]
        raw = whole.encode("utf-8", "replace")
        if hash_text_bytes(raw).encode() == key:
            return raw
    return None


@dataclass
class WholeText:
    """A text with its places in UTF-16 units; ``is_exact`` where it holds no half of a surrogate pair."""

    raw: bytes
    is_exact: bool = field(init=False)
    _text: str = field(init=False)
    _wide: bytes | None = field(init=False)

    def __post_init__(self) -> None:
        self._text = decode_utf8(self.raw)
        self.is_exact = self._text.encode() == self.raw
        self._wide = None if self._text.isascii() else self._text.encode("utf-16-le")

    def slice(self, start: int, stop: int) -> str | None:
        """Return what lies between two places; None where there is no such slice."""
        if self._wide is None:
            return self._text[start:stop] if 0 <= start <= stop <= len(self._text) else None
        if not 0 <= start <= stop <= len(self._wide) // 2:
            return None
        try:
            return self._wide[2 * start : 2 * stop].decode("utf-16-le")
        except UnicodeDecodeError:
            return None

    def places_of(self, body: str) -> Iterator[Span]:
        """Yield where a body stands in the text, the first ones."""
        part = body.encode("utf-16-le") if self._wide is not None else b""
        at, step = -1, 1
        for _ in range(_MOST_PLACES):
            if self._wide is None:
                at = self._text.find(body, at + 1)
                length = len(body)
            else:
                at = self._wide.find(part, at + step)
                while at > 0 and at % 2:
                    at = self._wide.find(part, at + 1)
                length, step = len(part) // 2, 2
            if at < 0:
                return
            start = at if self._wide is None else at // 2
            yield start, start + length

    def __len__(self) -> int:
        """Return its length in UTF-16 units."""
        return len(self._text) if self._wide is None else len(self._wide) // 2


class LostUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of which only the id is known, and perhaps its number among those of its material, and its body."""

    key: bytes
    place: int | None
    body: str | None


def locate_unit(
    lost: LostUnit, text: WholeText, known: dict[int, Span], is_it: Callable[[int, int, int], bool]
) -> tuple[int, Span] | None:
    """Return the number and the place of a unit that is lost, where its id proves them.

    Args:
        lost: what is known of it.
        text: that it is a slice of.
        known: where the other units of its material are, by their numbers.
        is_it: tells whether a unit with a number, a beginning and an end has the id.
    """
    places = [lost.place] if lost.place is not None else list(_free_places(known))
    if lost.body is not None:
        tried = ((place, span) for span in text.places_of(lost.body) for place in places)
    else:
        tried = ((place, span) for place in places for span in _between(text, known, place))
    return next(((place, span) for place, span in tried if is_it(place, *span)), None)


def _free_places(known: dict[int, Span]) -> Iterator[int]:
    """Yield numbers that units may have that are lost: the holes, and some behind the last one."""
    last = max(known, default=-1)
    yield from (number for number in range(last + 1 + _MOST_PLACES) if number not in known)


def _between(text: WholeText, known: dict[int, Span], place: int) -> Iterator[Span]:
    """Yield where a unit can be of whose body nothing is left, while its neighbours are there: between them."""
    starts = [0] if place == 0 else [known[place - 1][1] + gap for gap in _BETWEEN] if place - 1 in known else []
    if place + 1 in known:
        stops = [known[place + 1][0] - gap for gap in _BETWEEN]
    else:
        stops = [len(text) - length for length in range(3)] if place > max(known, default=-1) else []
    yield from ((start, stop) for start in starts for stop in stops if 0 <= start <= stop)


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
class UnitProof:
    """Chooses the units and their bodies, text by text: one text at a time is held."""

    db: apsw.Connection
    #: Whether units have titles, or say where they are: then those of a unit that is lost are lost, too.
    has_titles: bool = field(init=False)

    def choose(self) -> None:
        """Decide about the units of every text that comes along, and about their bodies."""
        self.has_titles = self._value(
            "SELECT 1 FROM search_unit WHERE fate IS NULL AND (title, locator) IS NOT (NULL, NULL)"
        )
        texts = fetch_rows(self.db, f"SELECT seq, key FROM content WHERE {_THERE} ORDER BY seq")
        for seq, key in texts:
            text = WholeText(fetch_value(self.db, "SELECT text FROM content WHERE seq = ?", (seq,)))
            for (material,) in self._materials_of(key):
                self._choose_units(material, key, text)
        if not self.has_titles:
            self._derive_by_bodies()

    def _materials_of(self, content: bytes) -> list[Row]:
        return fetch_rows(
            self.db,
            f"""SELECT key FROM material WHERE content = ?1 AND {_THERE}
                 UNION
                SELECT m.key FROM search_unit u CROSS JOIN material m ON m.key = u.material AND m.{_THERE}
                 WHERE u.content = ?1 AND u.fate IS NULL AND u.strength = 0""",
            (content,),
        )

    def _choose_units(self, material: bytes, content: bytes, text: WholeText) -> None:
        known: dict[int, Span] = {}
        rows = fetch_rows(
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
        return self._value(query, found_rows.UNIT_KEY, unit.key, unit.rid)

    # --- bodies ------------------------------------------------------------------------------------------------------

    def _body(self, unit: _Unit, text: WholeText) -> None:
        """Keep the body of a unit, or cut it anew."""
        part = text.slice(unit.start, unit.stop)
        chosen = False
        rows = fetch_rows(
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
        left = fetch_rows(
            self.db,
            f"""SELECT rid, number, created FROM search_text WHERE target = ? AND fate = '{DAMAGED}'
                 ORDER BY strength, seq LIMIT 1""",
            (unit.key,),
        )
        rid, number, created = left[0] if left else (self._row_of_body(unit), None, unit.created)
        if number is None:
            number = fetch_value(
                self.db, "SELECT key FROM index_key WHERE name = ? AND rid = ?", (found_rows.BODY_NUMBER, rid)
            )
        key = identity.body_id(unit.key.decode()).encode()
        values = (rid, MADE, key, unit.key, part.encode(), identity.text_hash(part).encode(), number, created)
        self.db.execute(f"INSERT INTO search_text VALUES (NULL, 0, {', '.join('?' * len(values))})", values)

    def _row_of_body(self, unit: _Unit) -> Any:
        """Return the number of the row that a body had: as an index says, else that of its unit in a fresh file."""
        found = fetch_rows(
            self.db, "SELECT rid FROM index_key WHERE name = ? AND key = ?", (found_rows.BODY_TARGET, unit.key)
        )
        return found[0][0] if len(found) == 1 else unit.rid

    # --- units that are lost -----------------------------------------------------------------------------------------

    def _lost_units(self, material: bytes) -> Iterator[LostUnit]:
        """Yield units of a material whose rows are lost, and that the indexes know."""
        # CROSS JOIN: the material's keys first. Without statistics SQLite may begin with all keys of an index.
        by_index = fetch_rows(
            self.db,
            f"""SELECT k.key, p.place, t.text FROM index_key p
                 CROSS JOIN index_key k ON k.name = ? AND k.rid = p.rid
                  LEFT JOIN search_text t ON t.target = k.key AND t.fate IS NULL AND t.strength < {WEAK}
                 WHERE p.name = ? AND p.key = ?
                   AND NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.key = k.key AND u.{_THERE})
                 ORDER BY p.place""",
            (found_rows.UNIT_KEY, found_rows.UNIT_PLACE, material),
        )
        for key, place, raw in by_index:
            if isinstance(place, int) and found_rows.is_hash(key):
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
            (found_rows.UNIT_KEY,),
        )
        materials = fetch_rows(
            self.db,
            f"""SELECT m.key, c.key, c.seq FROM material m JOIN content c ON c.key = m.content AND c.{_THERE}
                 WHERE m.{_THERE} ORDER BY m.rid""",
        )
        last = searched = 0
        for material, content, seq in materials:
            if not self._value("SELECT 1 FROM temp.alone") or searched > _MOST_SEARCHED:
                break
            text = WholeText(fetch_value(self.db, "SELECT text FROM content WHERE seq = ?", (seq,)))
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
            at = fetch_value(self.db, query, (first, end))
            while at is not None:
                yield at
                at = fetch_value(self.db, query, (at, end))

    def _known(self, material: bytes, content: bytes) -> dict[int, Span]:
        rows = fetch_rows(
            self.db,
            f"SELECT place, start, stop FROM search_unit WHERE content = ? AND material = ? AND {_THERE}",
            (content, material),
        )
        return {place: (start, stop) for place, start, stop in rows}

    def _derive_alone(
        self, place: int, material: bytes, content: bytes, text: WholeText, known: dict[int, Span]
    ) -> bool:
        ((key, raw),) = fetch_rows(
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
        found = locate_unit(
            lost, text, known, lambda place, start, stop: unit_id(material, content, place, start, stop) == lost.key
        )
        if found is None or found[0] in known:
            return False
        place, (start, stop) = found
        known[place] = start, stop
        rid = fetch_value(
            self.db, "SELECT rid FROM index_key WHERE name = ? AND key = ?", (found_rows.UNIT_KEY, lost.key)
        )
        created = fetch_value(
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
        return fetch_value(self.db, query, values) is not None


def _is_covered(known: dict[int, Span], text: WholeText) -> bool:
    """Tell whether a text has all of its units: they are numbered on, and the last one ends it but for white space."""
    last = len(known) - 1
    return last in known and max(known) == last and known[last][1] >= len(text) - 2
