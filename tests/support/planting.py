"""Damage of a KB of rsclaw that is planted: a registry of what is planted, and what an audit has to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rsclaw_store import RsclawStore


@dataclass(frozen=True, kw_only=True)
class Planting:
    """Damage: what plants it into a healthy KB, and the one finding that follows from it."""

    plant: Callable[[RsclawStore], object]
    finding: str
    severity: str
    #: What the message has in it.
    says: tuple[str, ...]
    count: int = 1
    #: Other findings that follow from it, as notes.
    notes: tuple[str, ...] = ()
    #: The command of regraft that mends it.
    command: str | None = None
    #: Levels at which it is not seen.
    unseen: tuple[str, ...] = ()


PLANTINGS: dict[str, Planting] = {}


def planting(finding: str, severity: str, *says: str, **more: Any) -> Callable[[Any], Any]:
    """Register a function that plants damage, under its docstring's first line."""

    def register(function: Callable[[RsclawStore], object]) -> Callable[[RsclawStore], object]:
        name = function.__name__.replace("_", " ")
        PLANTINGS[name] = Planting(plant=function, finding=finding, severity=severity, says=says, **more)
        return function

    return register
