"""What a first look says of all of its bases together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def problems_of(bases: Iterable[dict[str, Any]]) -> list[str]:
    """Return the problems of bases, each with its base's name."""
    return [f"{base['name']}: {base['problem']}" for base in bases if base["problem"]]


def bytes_of(bases: Iterable[dict[str, Any]]) -> int:
    """Return the size of those files of bases that could be looked at."""
    return sum(base["store"]["bytes"] for base in bases if base["store"])
