"""Prove the units and bodies of each content, and derive lost ones.

A unit is a slice of its content, and its id proves its offsets. Nothing is guessed: a joined text is accepted if it has
the required hash, and a derived unit if it has the required id.
"""

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
    IS_KEPT,
    KEPT,
    MADE,
    WEAK,
    fetch_rows,
    fetch_value,
    hash_text_bytes,
    set_fate,
    unit_id,
)
from regraft.text import decode_utf8, decode_utf16

#: Possible separators between two units by length in UTF-16 units, and possible ends of a content.
_SEPARATORS = {0: ("",), 1: ("\n", " "), 2: ("\n\n", "\r\n", "  ", "\n "), 3: ("\n\n\n",), 4: ("\r\n\r\n", "\n\n\n\n")}
_ENDINGS = ("", "\n", "\r\n", " ", "\n\n")
#: Maximum number of offsets in a content at which one body is tried.
_MAX_TRIES = 64

#: Start and end of a unit in UTF-16 units.
Span = tuple[int, int]


def join_bodies(key: bytes, pieces: Iterable[tuple[int, int, bytes]]) -> bytes | None:
    """Join the bodies of a lost content; None unless the result has the hash of the content.

    Args:
        key: hash of the content.
        pieces: start, end (in UTF-16 units) and body of each unit, sorted by start.
    """
    parts: list[str] = []
    gaps: list[int] = []
    end = 0
    for start, stop, body in pieces:
        wide = decode_utf8(body).encode("utf-16-le")
        if len(wide) != 2 * (stop - start) or (start > end and start - end not in _SEPARATORS):
            return None
        gaps.append(max(0, start - end))
        # Units may overlap: the overlap is added once.
        parts.append(wide[2 * max(0, end - start) :].decode("utf-16-le", "replace"))
        end = max(end, stop)
    lengths = sorted(set(gaps))
    for chosen in product(*(_SEPARATORS[length] for length in lengths), _ENDINGS):
        between = dict(zip(lengths, chosen, strict=False))
        whole = "".join(between[gap] + part for gap, part in zip(gaps, parts, strict=True)) + chosen[-1]
        raw = whole.encode("utf-8", "replace")
        if hash_text_bytes(raw).encode() == key:
            return raw
    return None


@dataclass
class WholeText:
    """A text that can be sliced at UTF-16 offsets. ``is_exact``: it contains no half of a surrogate pair."""

    raw: bytes
    is_exact: bool = field(init=False)
    _text: str = field(init=False)
    _wide: bytes | None = field(init=False)

    def __post_init__(self) -> None:
        self._text = decode_utf8(self.raw)
        self.is_exact = self._text.encode() == self.raw
        self._wide = None if self._text.isascii() else self._text.encode("utf-16-le")

    def slice(self, start: int, stop: int) -> str | None:
        """Return the text between two UTF-16 offsets; None if they are beyond the end or split a character."""
        if self._wide is None:
            return self._text[start:stop] if 0 <= start <= stop <= len(self._text) else None
        if not 0 <= start <= stop <= len(self._wide) // 2:
            return None
        return decode_utf16(self._wide[2 * start : 2 * stop])

    def find_all(self, body: str) -> Iterator[Span]:
        """Yield the offset ranges (UTF-16) at which a body occurs in the text: the first 64 of them."""
        part = body.encode("utf-16-le") if self._wide is not None else b""
        at, step = -1, 1
        for _ in range(_MAX_TRIES):
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
        """Return the length in UTF-16 units."""
        return len(self._text) if self._wide is None else len(self._wide) // 2


class LostUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit whose row is lost and whose id is known, and possibly its index in the material and its body."""

    key: bytes
    unit_index: int | None
    body: str | None


def locate_unit(
    lost: LostUnit, text: WholeText, known: dict[int, Span], has_id: Callable[[int, int, int], bool]
) -> tuple[int, Span] | None:
    """Find the index in the material and the offsets of a lost unit that its id proves, or None.

    Args:
        lost: the known facts about the unit.
        text: content that contains the unit.
        known: offsets of the material's other units by index.
        has_id: whether a unit with this index, start and end has the id of the lost unit.
    """
    # Indexes that lost units may have: the gaps, and some after the last one.
    free = (number for number in range(max(known, default=-1) + 1 + _MAX_TRIES) if number not in known)
    indexes = [lost.unit_index] if lost.unit_index is not None else list(free)
    if lost.body is not None:
        tried = ((unit_index, span) for span in text.find_all(lost.body) for unit_index in indexes)
    else:
        tried = ((unit_index, span) for unit_index in indexes for span in _possible_spans(text, known, unit_index))
    return next(((unit_index, span) for unit_index, span in tried if has_id(unit_index, *span)), None)


def _possible_spans(text: WholeText, known: dict[int, Span], unit_index: int) -> Iterator[Span]:
    """Yield possible offsets of the unit with an index, from the offsets of the units before and after it.

    ``known`` are the offsets of known units by index.
    """
    starts: list[int] = []
    if unit_index == 0:
        starts = [0]
    elif unit_index - 1 in known:
        starts = [known[unit_index - 1][1] + gap for gap in _SEPARATORS]
    if unit_index + 1 in known:
        stops = [known[unit_index + 1][0] - gap for gap in _SEPARATORS]
    else:
        stops = [len(text) - length for length in range(3)] if unit_index > max(known, default=-1) else []
    yield from ((start, stop) for start in starts for stop in stops if 0 <= start <= stop)


#: Maximum bytes of contents that are searched for bodies whose material is unknown.
_MAX_SEARCHED_BYTES = 1 << 32
_LAST_POSITION = 1 << 62


class _Unit(NamedTuple):
    """A found row of a unit that its id proves."""

    seq: int
    strength: int
    rid: int | None
    key: bytes
    unit_index: int
    start: int
    stop: int
    created: int


@dataclass
class UnitProof:
    """Decides which found rows of units and bodies are kept, one content at a time."""

    db: apsw.Connection
    #: Units have titles or locators, so a lost unit cannot be derived: its title would be missing.
    has_titles: bool = field(init=False)

    def choose(self) -> None:
        """Decide about the units of every kept content, and about their bodies."""
        self.has_titles = self._has_row(
            "SELECT 1 FROM search_unit WHERE fate IS NULL AND (title, locator) IS NOT (NULL, NULL)"
        )
        texts = fetch_rows(self.db, f"SELECT seq, key FROM content WHERE {IS_KEPT} ORDER BY seq")
        for seq, key in texts:
            text = WholeText(fetch_value(self.db, "SELECT text FROM content WHERE seq = ?", (seq,)))
            materials = fetch_rows(
                self.db,
                f"""SELECT key FROM material WHERE content = ?1 AND {IS_KEPT}
                     UNION
                    SELECT m.key FROM search_unit u CROSS JOIN material m ON m.key = u.material AND m.{IS_KEPT}
                     WHERE u.content = ?1 AND u.fate IS NULL AND u.strength = 0""",
                (key,),
            )
            for (material,) in materials:
                self._choose_units(material, key, text)
        if not self.has_titles:
            self._derive_by_bodies()

    def _choose_units(self, material: bytes, content: bytes, text: WholeText) -> None:
        """Keep one found row for each unit of a material, and its body, and derive lost units.

        ``content`` is the hash of the content, ``text`` the content.
        """
        known: dict[int, Span] = {}
        rows = fetch_rows(
            self.db,
            """SELECT seq, strength, rid, key, unit_index, start, stop, created FROM search_unit
                WHERE content = ? AND material = ? AND fate IS NULL ORDER BY unit_index, strength, seq""",
            (content, material),
        )
        for unit_index, group in groupby(rows, key=lambda row: row[4]):
            readings = [_Unit(*row) for row in group]
            unit = self._choose_unit(readings, text)
            if unit is not None:
                known[unit_index] = unit.start, unit.stop
                self._choose_body(unit, text)
        for lost in () if self.has_titles else self._lost_units(material):
            self._derive_unit(lost, material, content, text, known)

    def _choose_unit(self, readings: list[_Unit], text: WholeText) -> _Unit | None:
        """Keep one of the found rows of a unit and return it, or None; decide about the others."""
        live = [one for one in readings if text.slice(one.start, one.stop) is not None and self._is_live(one)]
        chosen = found_rows.choose_reading(
            live, agree=lambda rows: len({one.key for one in rows}) == 1, is_indexed=self._is_indexed
        )
        for one in readings:
            if one is chosen:
                set_fate(self.db, "search_unit", one.seq, KEPT)
            elif chosen is not None and one.key == chosen.key:
                set_fate(self.db, "search_unit", one.seq, COPY)
            elif one.strength < WEAK:
                set_fate(self.db, "search_unit", one.seq, CONTRADICTED)
        return chosen

    def _is_live(self, unit: _Unit) -> bool:
        """Whether a found row can be of a unit that was not deleted.

        On a page with possibly deleted rows, a live body or an index must refer to it.
        """
        body = f"SELECT 1 FROM search_text WHERE target = ? AND fate IS NULL AND strength < {WEAK}"
        return unit.strength < WEAK or self._has_row(body, unit.key) or self._is_indexed(unit)

    def _is_indexed(self, unit: _Unit) -> bool:
        """Whether an index of the file refers to this row of a unit."""
        query = "SELECT 1 FROM index_key WHERE name = ? AND key = ? AND rid = ?"
        return self._has_row(query, found_rows.UNIT_KEY, unit.key, unit.rid)

    # --- bodies ------------------------------------------------------------------------------------------------------

    def _choose_body(self, unit: _Unit, text: WholeText) -> None:
        """Keep the found body of a unit that equals its slice of the content, or cut the body again."""
        part = text.slice(unit.start, unit.stop)
        chosen = False
        rows = fetch_rows(
            self.db,
            "SELECT seq, text FROM search_text WHERE target = ? AND fate IS NULL ORDER BY strength, seq",
            (unit.key,),
        )
        for seq, raw in rows:
            has_id = not chosen and isinstance(raw, bytes) and decode_utf8(raw) == part
            set_fate(self.db, "search_text", seq, KEPT if has_id else COPY if chosen else DAMAGED)
            chosen = chosen or has_id
        if not chosen and text.is_exact and part is not None:
            self._cut_body(unit, part)

    def _cut_body(self, unit: _Unit, part: str) -> None:
        """Add a body with the text ``part`` for a unit; row id, number and time come from a damaged row if any."""
        left = fetch_rows(
            self.db,
            f"""SELECT rid, number, created FROM search_text WHERE target = ? AND fate = '{DAMAGED}'
                 ORDER BY strength, seq LIMIT 1""",
            (unit.key,),
        )
        if left:
            rid, number, created = left[0]
        else:
            # The row id comes from an index, else from the unit: in a new file both are equal.
            keys = fetch_rows(
                self.db, "SELECT rid FROM index_key WHERE name = ? AND key = ?", (found_rows.BODY_TARGET, unit.key)
            )
            rid, number, created = keys[0][0] if len(keys) == 1 else unit.rid, None, unit.created
        if number is None:
            number = fetch_value(
                self.db, "SELECT key FROM index_key WHERE name = ? AND rid = ?", (found_rows.BODY_NUMBER, rid)
            )
        key = identity.body_id(unit.key.decode()).encode()
        values = (rid, MADE, key, unit.key, part.encode(), identity.text_hash(part).encode(), number, created)
        self.db.execute(f"INSERT INTO search_text VALUES (NULL, 0, {', '.join('?' * len(values))})", values)

    # --- units that are lost -----------------------------------------------------------------------------------------

    def _lost_units(self, material: bytes) -> Iterator[LostUnit]:
        """Yield the units of a material that indexes of the file list, and whose rows are lost."""
        # CROSS JOIN forces the material's keys first: without statistics SQLite may start with all keys of an index.
        by_index = fetch_rows(
            self.db,
            f"""SELECT k.key, p.unit_index, t.text FROM index_key p
                 CROSS JOIN index_key k ON k.name = ? AND k.rid = p.rid
                  LEFT JOIN search_text t ON t.target = k.key AND t.fate IS NULL AND t.strength < {WEAK}
                 WHERE p.name = ? AND p.key = ?
                   AND NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.key = k.key AND u.{IS_KEPT})
                 ORDER BY p.unit_index""",
            (found_rows.UNIT_KEY, found_rows.UNIT_PLACE, material),
        )
        for key, unit_index, raw in by_index:
            if isinstance(unit_index, int) and found_rows.is_hash(key):
                yield LostUnit(key=key, unit_index=unit_index, body=None if raw is None else decode_utf8(raw))

    def _derive_by_bodies(self) -> None:
        """Derive the units that left only their body, in contents that lack units."""
        self.db.execute("CREATE TEMP TABLE unassigned (position INTEGER PRIMARY KEY, seq INTEGER)")
        self.db.execute(
            f"""INSERT INTO temp.unassigned SELECT NULL, seq FROM search_text t WHERE fate IS NULL AND strength < {WEAK}
                   AND NOT EXISTS (SELECT 1 FROM search_unit u
                                    WHERE u.key = t.target AND (u.fate IS NULL OR u.{IS_KEPT}))
                   AND NOT EXISTS (SELECT 1 FROM index_key k WHERE k.name = ? AND k.key = t.target)
                 ORDER BY rid""",
            (found_rows.UNIT_KEY,),
        )
        materials = fetch_rows(
            self.db,
            f"""SELECT m.key, c.key, c.seq FROM material m JOIN content c ON c.key = m.content AND c.{IS_KEPT}
                 WHERE m.{IS_KEPT} ORDER BY m.rid""",
        )
        last = searched = 0
        for material, content, seq in materials:
            if not self._has_row("SELECT 1 FROM temp.unassigned") or searched > _MAX_SEARCHED_BYTES:
                break
            text = WholeText(fetch_value(self.db, "SELECT text FROM content WHERE seq = ?", (seq,)))
            units = fetch_rows(
                self.db,
                f"""SELECT unit_index, start, stop FROM search_unit
                     WHERE content = ? AND material = ? AND {IS_KEPT}""",
                (content, material),
            )
            known: dict[int, Span] = {unit_index: (start, stop) for unit_index, start, stop in units}
            # Bodies are stored in the order of their materials: usually the next one belongs to this content.
            for position in self._unassigned_bodies(last):
                end = len(known) - 1
                has_all_units = end in known and max(known) == end and known[end][1] >= len(text) - 2
                if searched > _MAX_SEARCHED_BYTES or has_all_units:
                    break
                searched += len(text)
                query = "SELECT target, text FROM search_text JOIN temp.unassigned a USING (seq) WHERE a.position = ?"
                ((key, raw),) = fetch_rows(self.db, query, (position,))
                lost = LostUnit(key=key, unit_index=None, body=decode_utf8(raw))
                if self._derive_unit(lost, material, content, text, known):
                    self.db.execute("DELETE FROM temp.unassigned WHERE position = ?", (position,))
                    last = position
        self.db.execute("DROP TABLE temp.unassigned")

    def _unassigned_bodies(self, last: int) -> Iterator[int]:
        """Yield the positions of bodies whose material is unknown: first those after ``last``, then the others."""
        for first, end in ((last, _LAST_POSITION), (0, last)):
            query = (
                "SELECT position FROM temp.unassigned WHERE position > ? AND position <= ? ORDER BY position LIMIT 1"
            )
            at = fetch_value(self.db, query, (first, end))
            while at is not None:
                yield at
                at = fetch_value(self.db, query, (at, end))

    def _derive_unit(
        self, lost: LostUnit, material: bytes, content: bytes, text: WholeText, known: dict[int, Span]
    ) -> bool:
        """Add a lost unit and its body if its id proves its offsets; return whether it does.

        Args:
            lost: the known facts about the unit.
            material: id of the material.
            content: hash of the content.
            text: the content.
            known: offsets of the material's units by index; the new unit is added.
        """
        found = locate_unit(
            lost,
            text,
            known,
            lambda unit_index, start, stop: unit_id(material, content, unit_index, start, stop) == lost.key,
        )
        if found is None or found[0] in known:
            return False
        unit_index, (start, stop) = found
        known[unit_index] = start, stop
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
            (rid, MADE, lost.key, material, content, unit_index, start, stop, created),
        )
        unit = _Unit(
            seq=0,
            strength=0,
            rid=rid,
            key=lost.key,
            unit_index=unit_index,
            start=start,
            stop=stop,
            created=created,
        )
        self._choose_body(unit, text)
        return True

    def _has_row(self, query: str, *values: Any) -> bool:
        """Whether a query returns a row."""
        return fetch_value(self.db, query, values) is not None
