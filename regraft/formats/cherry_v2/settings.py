"""Chunking and search settings of a base, validated by v2's rules (``docs/rules.md``, "Bases").

They are read from v1's state and from catalogs of any build (``docs/formats/catalog.md``). Invalid values are replaced
by the defaults of the catalog's columns.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.identity import replace
from regraft.text import trim

DEFAULT_CHUNK_SIZE = 1024
DEFAULT_CHUNK_OVERLAP = 200
DEFAULT_CHUNK_STRATEGY = "structured"
#: Four characters: backslash, n, backslash, n.
DEFAULT_CHUNK_SEPARATOR = "\\n\\n"


class Settings(msgspec.Struct, frozen=True):
    """Chunking and search settings that the catalog accepts."""

    chunk_size: int = DEFAULT_CHUNK_SIZE
    chunk_overlap: int = DEFAULT_CHUNK_OVERLAP
    threshold: float | None = None
    document_count: int | None = None
    chunk_strategy: str = DEFAULT_CHUNK_STRATEGY
    chunk_separator: str = DEFAULT_CHUNK_SEPARATOR


_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
#: Range of SQLite's INTEGER.
_MIN_INTEGER, _MAX_INTEGER = -(1 << 63), (1 << 63) - 1
#: JavaScript's largest safe integer.
_MAX_SAFE = (1 << 53) - 1


def read_number(value: Any) -> float | None:
    """Return a finite number, also from a numeric text. None for anything else."""
    if isinstance(value, str):
        text = trim(value)
        value = float(text) if _NUMBER.fullmatch(text) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer beyond all floats: infinite, as in JavaScript
        return None


def read_whole_number(value: Any, *, minimum: int, text: bool = False) -> int | None:
    """Return an integer of at least ``minimum``, or None. ``text``: numeric texts are accepted too."""
    number = None if isinstance(value, str) and not text else read_number(value)
    if number is None or number != int(number) or not minimum <= number <= _MAX_SAFE:
        return None
    return int(number)


def read_time(value: Any) -> int | None:
    """Return a time in ms as an integer. None if the value is not a finite number."""
    number = None if isinstance(value, str) else read_number(value)
    return None if number is None else min(max(int(number), _MIN_INTEGER), _MAX_INTEGER)


def read_v1_settings(raw: dict[str, Any]) -> tuple[Settings, list[str]]:
    """Read the settings of a base in v1's state; return them and the names of the invalid fields."""
    size = read_whole_number(raw.get("chunkSize"), minimum=1, text=True)
    overlap = read_whole_number(raw.get("chunkOverlap"), minimum=0, text=True)
    threshold = read_number(raw.get("threshold"))
    if threshold is not None and not 0 <= threshold <= 1:
        threshold = None
    count = read_whole_number(raw.get("documentCount"), minimum=1, text=True)
    chunk_size = DEFAULT_CHUNK_SIZE if size is None else size
    if overlap is not None and overlap >= chunk_size:
        overlap = None
    found = {"chunkSize": size, "chunkOverlap": overlap, "threshold": threshold, "documentCount": count}
    invalid = [name for name, value in found.items() if value is None and raw.get(name) is not None]
    chunk_overlap = min(DEFAULT_CHUNK_OVERLAP, chunk_size - 1) if overlap is None else overlap
    return Settings(
        chunk_size=chunk_size,
        chunk_overlap=chunk_overlap,
        threshold=None if threshold is None else float(threshold),
        document_count=count,
    ), invalid


#: Columns by the names of the fields in v1.
_NUMBERS = {
    "chunkSize": "chunk_size",
    "chunkOverlap": "chunk_overlap",
    "threshold": "threshold",
    "documentCount": "document_count",
}
_STRATEGIES = ("structured", "delimiter")


#: The application stores a separator as the user typed it.
_ESCAPES = {"\\n": "\n", "\\r": "\r", "\\t": "\t", "\\\\": "\\"}
_ESCAPE = re.compile(r"\\[nrt\\]")


def unescape_separator(settings: Settings) -> str:
    """Return the chunk separator with its escapes replaced, even if the base does not use it."""
    return _ESCAPE.sub(lambda found: _ESCAPES[found[0]], settings.chunk_separator)


def read_base_settings(row: Row) -> tuple[Settings, list[str]]:
    """Read the settings in a base's catalog row; return them and the names of the invalid columns."""
    settings, invalid = read_v1_settings({name: row.get(column) for name, column in _NUMBERS.items()})
    columns = [_NUMBERS[name] for name in invalid]
    strategy, separator = row.get("chunk_strategy"), row.get("chunk_separator")
    is_valid = {
        "chunk_strategy": strategy in _STRATEGIES,
        "chunk_separator": isinstance(separator, str) and separator != "",
    }
    columns += [name for name, valid in is_valid.items() if not valid and row.get(name) is not None]
    return (
        replace(
            settings,
            chunk_strategy=strategy if is_valid["chunk_strategy"] else DEFAULT_CHUNK_STRATEGY,
            chunk_separator=separator if is_valid["chunk_separator"] else DEFAULT_CHUNK_SEPARATOR,
        ),
        columns,
    )
