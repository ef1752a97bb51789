"""The units of an item, and the units nearest to one of them, as the index has them (``docs/formats/index.md``)."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import msgspec

from regraft.errors import BaseWithoutIndex
from regraft.formats.cherry_v2.index.search import BODY_TEXT, Hit, vector_hits
from regraft.formats.cherry_v2.layout import StoreFile
from regraft.ranking.cherry_v2 import list_bases, open_index
from regraft.stores.locate import Located, open_store
from regraft.text import lenient_text

#: Largest vector that is read, in bytes: 65,536 dimensions. Larger ones are damage.
_MOST_BYTES = 4 << 16
#: A vector that is a BLOB of whole float32 values and not larger than that, else NULL.
_VECTOR = (
    "CASE WHEN typeof(e.vector_blob) = 'blob' AND octet_length(e.vector_blob) % 4 = 0"
    f" AND octet_length(e.vector_blob) BETWEEN 4 AND {_MOST_BYTES} THEN e.vector_blob END"
)
_FROM = (
    "FROM search_unit u LEFT JOIN search_text t ON t.target_id = u.unit_id AND +t.kind = 'body' "
    "LEFT JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash"
)


class StoredUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of an index. Values of a damaged index can be of any type, so numbers may be None."""

    unit_id: str
    unit_index: int | None
    #: Where the body is in the item's text, in UTF-16 units.
    char_start: int | None
    char_end: int | None
    #: None if the unit has no body, which is damage.
    text: str | None
    #: Dimensions and Euclidean length of its vector; None without a vector.
    dimensions: int | None = None
    norm: float | None = None


class ItemUnits(msgspec.Struct, frozen=True, kw_only=True):
    """Some units of an item. ``count`` is the number of all of them; ``relative_path`` is below ``raw/``."""

    relative_path: str | None
    count: int
    units: tuple[StoredUnit, ...]


def read_units(path: Path, base: str, item: str, *, first: int, count: int) -> ItemUnits:
    """Read units of an item, in the order of its text; an item that the index does not have has none.

    Args:
        path: a library, profile, pack, v2 backup or base folder.
        base: id of the base.
        item: id of the item.
        first: number of units to pass over.
        count: maximum number of units.

    Raises:
        BaseWithoutIndex: the source has no such base, or no index of it.
        SourceUnreadable: the index is damaged.
    """
    with open_store(path) as source, open_index(source, _find_index(source, base)) as db:
        found = db.execute("SELECT CAST(relative_path AS BLOB) FROM material WHERE material_id = ?", (item,)).get
        number = db.execute("SELECT count(*) FROM search_unit WHERE material_id = ?", (item,)).get
        rows = db.execute(
            f"SELECT CAST(u.unit_id AS BLOB), u.unit_index, u.char_start, u.char_end, {BODY_TEXT}, {_VECTOR} {_FROM} "
            "WHERE u.material_id = ? ORDER BY u.unit_index LIMIT ? OFFSET ?",
            (item, count, first),
        )
        units = tuple(_unit(*row) for row in rows)
    return ItemUnits(relative_path=None if found is None else lenient_text(found), count=int(str(number)), units=units)


def find_neighbors(path: Path, base: str, unit: str, count: int) -> list[Hit]:
    """Return the units whose vectors are nearest to that of a unit, by cosine; none if the unit has no vector.

    Raises:
        BaseWithoutIndex, SourceUnreadable: as :func:`read_units`.
    """
    with open_store(path) as source, open_index(source, _find_index(source, base)) as db:
        vector = db.execute(f"SELECT {_VECTOR} {_FROM} WHERE u.unit_id = ?", (unit,)).get
        if not isinstance(vector, bytes):
            return []
        return [hit for hit in vector_hits(db, vector, count + 1) if hit.unit_id != unit][:count]


def _find_index(source: Located, base: str) -> StoreFile:
    store = list_bases(source, None).get(base)
    if store is None:
        raise BaseWithoutIndex(path=source.path, base=base)
    return store


def _unit(
    unit: bytes | None, index: object, start: object, end: object, text: bytes | None, vector: bytes | None
) -> StoredUnit:
    numbers = () if vector is None else struct.unpack(f"<{len(vector) // 4}f", vector)
    return StoredUnit(
        unit_id=lenient_text(unit or b""),
        unit_index=_whole(index),
        char_start=_whole(start),
        char_end=_whole(end),
        text=None if text is None else lenient_text(text),
        dimensions=len(numbers) or None,
        norm=math.hypot(*numbers) if numbers else None,
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
