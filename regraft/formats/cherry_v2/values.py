"""Single values of a source's state, by the rules: numbers, times, a base's settings (``docs/rules.md``, "Bases")."""

from __future__ import annotations

import math
import re
from typing import Any

from regraft.formats.cherry_v2.defaults import DEFAULT_CHUNK_OVERLAP, DEFAULT_CHUNK_SIZE, Settings
from regraft.text import trim

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


def whole_number(value: Any, *, minimum: int, text: bool = False) -> int | None:
    """Return a whole number of at least ``minimum``; text counts only where ``text`` says so."""
    number = None if isinstance(value, str) and not text else read_number(value)
    if number is None or number != int(number) or not minimum <= number <= _MAX_SAFE:
        return None
    return int(number)


def read_time(value: Any) -> int | None:
    """Return a time in whole ms: any finite number, cut to a whole one; None for what is no number."""
    number = None if isinstance(value, str) else read_number(value)
    return None if number is None else min(max(int(number), _MIN_INTEGER), _MAX_INTEGER)


def read_settings(raw: dict[str, Any]) -> tuple[Settings, list[str]]:
    """Return a base's settings and the names of those fields that v1 had and that are not valid."""
    size = whole_number(raw.get("chunkSize"), minimum=1, text=True)
    overlap = whole_number(raw.get("chunkOverlap"), minimum=0, text=True)
    threshold = _share(raw.get("threshold"))
    count = whole_number(raw.get("documentCount"), minimum=1, text=True)
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
