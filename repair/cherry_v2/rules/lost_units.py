"""Writing units again that are gone while their bodies are still there (``docs/findings.md``, ``body.orphan``).

A body names its unit by an id that is the hash of the unit's material, content, number and offsets. Where the text of a
material holds the body, and its offsets with one of the missing numbers give that id, the unit is proven.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import apsw

from checks.cherry_v2 import findings as v2
from regraft import identity, sqlite
from regraft.errors import PlanOutdated
from regraft.language import tr
from regraft.text import counted
from repair.changes.plan import Action, RowsChange

#: Places of one body in one text that are tried, and tries in all: what is not proven by then stays as it is.
_MOST_PLACES = 20
_MOST_TRIES = 2_000_000
_ORPHANS = """SELECT t.target_id, t.text, t.created_at FROM search_text t
  WHERE t.target_type = 'search_unit' AND t.kind = 'body' AND typeof(t.text) = 'text' AND typeof(t.target_id) = 'text'
    AND NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = t.target_id) ORDER BY t.rowid"""
_TEXTS = """SELECT m.material_id, c.content_hash, CAST(c.text AS BLOB) FROM material m
  JOIN content c ON c.content_hash = m.current_content_hash WHERE typeof(m.material_id) = 'text' ORDER BY m.rowid"""
_NUMBERS = "SELECT unit_index FROM search_unit WHERE material_id = ? AND unit_type = 'chunk'"
_INSERT = """INSERT INTO search_unit
  (unit_id, material_id, content_hash, unit_type, unit_index, title, char_start, char_end, locator_json, created_at)
  VALUES (?, ?, ?, 'chunk', ?, NULL, ?, ?, NULL, ?)"""


class LostUnit(NamedTuple):
    """A unit that is gone, with the columns that follow from its body and its material."""

    unit: str
    material: str
    content: str
    number: int
    start: int
    end: int
    created_at: int


def lost_units(db: apsw.Connection) -> tuple[list[LostUnit], int]:
    """Return the units of an open index that their bodies prove, and how many bodies prove none.

    Raises:
        apsw.Error: the index is damaged.
    """
    orphans = {str(target): (str(text), created_at) for target, text, created_at in db.execute(_ORPHANS)}
    found: list[LostUnit] = []
    tries = _MOST_TRIES
    if not orphans:
        return [], 0
    for material, content, raw in db.execute(_TEXTS):
        text = raw.decode("utf-8", "surrogatepass") if isinstance(raw, bytes) else ""
        inside = {target: body for target, body in orphans.items() if body[0] in text}
        tries -= len(orphans)
        numbers = _missing_numbers(db, str(material), len(inside)) if inside else []
        for target, (body, created_at) in inside.items():
            for start, end in islice(_places(text, body), _MOST_PLACES):
                tries -= len(numbers)
                number = _number(target, str(material), str(content), numbers, (start, end))
                if number is not None:
                    unit = LostUnit(
                        unit=target,
                        material=str(material),
                        content=str(content),
                        number=number,
                        start=start,
                        end=end,
                        created_at=created_at,
                    )
                    found.append(unit)
                    del orphans[target]
                    break
        if tries < 0 or not orphans:
            break
    return found, len(orphans)


def _number(unit: str, material: str, content: str, numbers: list[int], place: tuple[int, int]) -> int | None:
    """Return the number with which the offsets of a body give the id of its unit; None where none does."""
    ids = ((one, identity.unit_id(material, content, one, *place)) for one in numbers)
    return next((one for one, derived in ids if derived == unit), None)


def _missing_numbers(db: apsw.Connection, material: str, more: int) -> list[int]:
    """Return the numbers that units of a material may have had: the gaps, and as many behind as bodies are there."""
    there = {number for (number,) in db.execute(_NUMBERS, (material,)) if isinstance(number, int)}
    highest = max(there, default=-1) + more
    return [number for number in range(highest + 1) if number not in there]


def _places(text: str, body: str) -> Iterator[tuple[int, int]]:
    """Yield where a text holds a body, in UTF-16 units."""
    at = text.find(body)
    width = _units(body)
    while at >= 0:
        start = _units(text[:at])
        yield start, start + width
        at = text.find(body, at + 1)


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def change(root: Path, name: str, base: str) -> tuple[RowsChange | None, int]:
    """Return what writes the lost units of an index again, None where none is proven, and how many bodies stay orphans.

    Args:
        root: the store's root.
        name: the index, below it.
        base: the base's id.

    Raises:
        apsw.Error, OSError: it cannot be read.
    """
    path = root / name
    with sqlite.reading(path) as db:
        units, others = lost_units(db)
    if not units:
        return None, others

    def apply(db: apsw.Connection) -> None:
        if lost_units(db)[0] != units:
            raise PlanOutdated(path=path, reason=tr("other units would be written again now than were planned"))
        db.executemany(_INSERT, units)

    message = tr("write {units} again, which the ids that their bodies name prove", units=counted(len(units), "unit"))
    action = Action(action="write-units", message=message, base=base, count=len(units), finding=v2.BODY_ORPHAN)
    return RowsChange(path=name, actions=(action,), apply=apply, tables=("search_unit",)), others
