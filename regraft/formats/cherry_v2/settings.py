"""A base's settings as a catalog of any build has them, valid by v2's rules (``docs/formats/catalog.md``)."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.identity import replace
from regraft.text import trim

# How a base cuts and finds text where nothing says otherwise: what the catalog's columns hold by default.


DEFAULT_CHUNK_SIZE = 1024
DEFAULT_CHUNK_OVERLAP = 200
DEFAULT_CHUNK_STRATEGY = "structured"
#: Four characters: backslash, n, backslash, n.
DEFAULT_CHUNK_SEPARATOR = "\\n\\n"


class Settings(msgspec.Struct, frozen=True):
    """How a base cuts and finds text, valid by the catalog's rules."""

    chunk_size: int = DEFAULT_CHUNK_SIZE
    chunk_overlap: int = DEFAULT_CHUNK_OVERLAP
    threshold: float | None = None
    document_count: int | None = None
    chunk_strategy: str = DEFAULT_CHUNK_STRATEGY
    chunk_separator: str = DEFAULT_CHUNK_SEPARATOR


# Single values of a source's state, by the rules: numbers, times, a base's settings (``docs/rules.md``, "Bases").


_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
#: What SQLite's INTEGER holds.
_MIN_INTEGER, _MAX_INTEGER = -(1 << 63), (1 << 63) - 1
#: The largest whole number that JavaScript tells from its neighbours.
_MAX_SAFE = (1 << 53) - 1


def read_number(value: Any) -> float | None:
    """Return a finite number; text that is a number counts as the number."""
    if isinstance(value, str):
        text = trim(value)
        value = float(text) if _NUMBER.fullmatch(text) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond all floats: infinite, as JavaScript reads it
        return None


def read_whole_number(value: Any, *, minimum: int, text: bool = False) -> int | None:
    """Return a whole number of at least ``minimum``; text counts only where ``text`` says so."""
    number = None if isinstance(value, str) and not text else read_number(value)
    if number is None or number != int(number) or not minimum <= number <= _MAX_SAFE:
        return None
    return int(number)


def read_time(value: Any) -> int | None:
    """Return a time in whole ms: any finite number, cut to a whole one; None for what is no number."""
    number = None if isinstance(value, str) else read_number(value)
    return None if number is None else min(max(int(number), _MIN_INTEGER), _MAX_INTEGER)


def read_v1_settings(raw: dict[str, Any]) -> tuple[Settings, list[str]]:
    """Return a base's settings and the names of those fields that v1 had and that are not valid."""
    size = read_whole_number(raw.get("chunkSize"), minimum=1, text=True)
    overlap = read_whole_number(raw.get("chunkOverlap"), minimum=0, text=True)
    threshold = _share(raw.get("threshold"))
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


def _share(raw: Any) -> float | None:
    """Return a number between 0 and 1, None where it is none."""
    found = read_number(raw)
    return found if found is not None and 0 <= found <= 1 else None


#: Columns by what the rules of v1's settings call them.
_NUMBERS = {
    "chunkSize": "chunk_size",
    "chunkOverlap": "chunk_overlap",
    "threshold": "threshold",
    "documentCount": "document_count",
}
_STRATEGIES = ("structured", "delimiter")


#: The application keeps a separator as it was typed.
_ESCAPES = {"\\n": "\n", "\\r": "\r", "\\t": "\t", "\\\\": "\\"}
_ESCAPE = re.compile(r"\\[nrt\\]")


def unescape_separator(settings: Settings) -> str:
    """Return the separator of a base's settings with its escapes replaced, whether the base is cut at it or not."""
    return _ESCAPE.sub(lambda found: _ESCAPES[found[0]], settings.chunk_separator)


def read_base_settings(row: Row) -> tuple[Settings, list[str]]:
    """Return a base's settings and the names of those columns that hold something and are not valid."""
    settings, invalid = read_v1_settings({name: row.get(column) for name, column in _NUMBERS.items()})
    columns = [_NUMBERS[name] for name in invalid]
    separator = row.get("chunk_separator")
    found: dict[str, Any] = {
        "chunk_strategy": _one_of(row.get("chunk_strategy"), _STRATEGIES),
        "chunk_separator": separator if isinstance(separator, str) and separator else None,
    }
    columns += [name for name, value in found.items() if value is None and row.get(name) is not None]
    return (
        replace(
            settings,
            chunk_strategy=found["chunk_strategy"] or DEFAULT_CHUNK_STRATEGY,
            chunk_separator=found["chunk_separator"] or DEFAULT_CHUNK_SEPARATOR,
        ),
        columns,
    )


def _one_of(value: Any, known: tuple[str, ...]) -> str | None:
    return value if isinstance(value, str) and value in known else None
