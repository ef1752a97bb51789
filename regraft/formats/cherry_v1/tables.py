"""Tables of Dexie and items of bases, read row by row: a source may have a million of either.

What a table holds is kept in a database that lies in a temporary file where it is large; items stay JSON text until
somebody asks for one (``docs/formats/v1.md``, "State").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from regraft import sqlite
from regraft.formats import json_text
from regraft.text import whole

#: No number of a row that is used is larger; JavaScript counts no further.
_LARGEST_NUMBER = 1 << 53


class FileRow(msgspec.Struct):
    """A row of Dexie's ``files`` table: only what completes a file's metadata."""

    id: Any = None
    name: Any = None
    origin_name: Any = None
    path: Any = None
    ext: Any = None
    type: Any = None
    created_at: Any = None
    size: Any = None
    count: Any = None


class NoteRow(msgspec.Struct, rename={"source_url": "sourceUrl"}):
    """A row of Dexie's ``knowledge_notes`` table."""

    id: Any = None
    content: Any = None
    source_url: Any = None


class Table(Mapping[str, dict[str, Any]]):
    """The rows of one table by id; of several rows of one id the last."""

    def __init__(self, row_type: type[msgspec.Struct]) -> None:
        self._type = row_type
        self._scratch = sqlite.scratch()
        self._db = self._scratch.__enter__()
        self._db.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -16000")
        self._db.execute("CREATE TABLE row (id TEXT PRIMARY KEY, json BLOB NOT NULL)")
        #: Rows that are damaged, each by its number in the table, from 1 on.
        self.damaged: list[int] = []

    def add(self, raws: Iterable[msgspec.Raw]) -> None:
        """Take rows of JSON text; those that are no objects or have no id are passed over."""
        rows = (self._parsed(number, raw) for number, raw in enumerate(raws, 1))
        self._put(row for row in rows if row is not None)

    def _parsed(self, number: int, raw: msgspec.Raw) -> tuple[str, bytes] | None:
        try:
            row: Any = msgspec.json.decode(raw, type=self._type)
        except msgspec.ValidationError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.damaged.append(number)
            return None
        return (row.id, bytes(raw)) if isinstance(row.id, str) else None

    def add_values(self, values: Iterable[Any]) -> None:
        """Take rows that are Python values already, with texts that can be stored."""
        self._put(row for row in map(self._plain_row, values) if row is not None)

    def _plain_row(self, value: Any) -> tuple[str, bytes] | None:
        if not isinstance(value, dict) or not isinstance(value.get("id"), str):
            return None
        names = [one.encode_name for one in msgspec.structs.fields(self._type)]
        row = {name: _plain(value.get(name)) for name in names}
        return row["id"], msgspec.json.encode(row)

    def _put(self, rows: Iterable[tuple[str, bytes]]) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR REPLACE INTO row VALUES (?, ?)", rows)
        self._db.execute("COMMIT")

    def __getitem__(self, key: str) -> dict[str, Any]:
        found = self._db.execute("SELECT json FROM row WHERE id = ?", (key,)).fetchone()
        if found is None:
            raise KeyError(key)
        row: dict[str, Any] = msgspec.to_builtins(msgspec.json.decode(found[0], type=self._type))
        return row

    def __iter__(self) -> Iterator[str]:
        for (key,) in self._db.execute("SELECT id FROM row ORDER BY rowid"):
            yield str(key)

    def __len__(self) -> int:
        return int(str(self._db.execute("SELECT count(*) FROM row").get))


def _plain(value: Any) -> Any:
    """Return a field of a row as it would come out of JSON; None for what it could not hold."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value if isinstance(value, bool) else None
    # A number that nobody counts to stays one, whatever it was.
    if not math.isfinite(value) or abs(value) > _LARGEST_NUMBER:
        return 0
    # Chromium keeps a whole number over 31 bits as a double; JSON has no such difference.
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Items(Sequence[Any]):
    """The items of one base: JSON text that is parsed whenever an item is asked for; None for a damaged one."""

    def __init__(self, raws: list[msgspec.Raw]) -> None:
        self._raws = raws

    def __len__(self) -> int:
        return len(self._raws)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [_item(raw) for raw in self._raws[place]]
        return _item(self._raws[place])

    def __iter__(self) -> Iterator[Any]:
        return map(_item, self._raws)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


def _item(raw: msgspec.Raw) -> Any:
    try:
        return json_text.value(raw)
    except json_text.JsonProblem:
        return None


def read_bases(text: bytearray) -> Any:
    """Return the ``bases`` of a ``knowledge`` slice, of any shape: of a list of objects their items are parsed late.

    ``text`` is the slice, or its bases alone; it must not change while items live. None where it has no bases.

    Raises:
        JsonProblem: it is no valid JSON.
    """
    if json_text.is_object(text):
        bases = json_text.fields(text, ("bases",)).get("bases")
        if bases is None or not json_text.is_list(bases):
            return None if bases is None else json_text.value(bases)
    elif json_text.is_list(text):
        bases = json_text.decode(text, msgspec.Raw)
    else:
        return json_text.decode(text, object)
    return [_base(one) for one in json_text.decode_raw(bases, list[msgspec.Raw])]


def _base(raw: msgspec.Raw) -> Any:
    try:
        parts = json_text.decode_raw(raw, dict[str, msgspec.Raw])
    except json_text.JsonProblem:
        return json_text.value(raw)
    return {name: _field(name, part) for name, part in parts.items()}


def _field(name: str, raw: msgspec.Raw) -> Any:
    if name == "items":
        try:
            return Items(json_text.decode_raw(raw, list[msgspec.Raw]))
        except json_text.JsonProblem:
            pass
    return json_text.value(raw)
