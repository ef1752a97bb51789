"""The systems beside the application (:data:`regraft.kinds.SYSTEM_MODULES`), each loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import cast

from regraft.kinds import SYSTEM_MODULES, SYSTEMS, Kind
from regraft.system import System


def system_of(kind: Kind) -> System:
    """Return the system whose stores are of a kind."""
    return cast(System, import_module(SYSTEM_MODULES[kind]).SYSTEM)


def every() -> Iterator[System]:
    """Yield all of them."""
    return map(system_of, SYSTEMS)


def counter_tables() -> frozenset[str]:
    """Return the names of the tables whose rows no undo takes back (:attr:`regraft.system.System.counters`)."""
    return frozenset(table for system in every() for tables in system.counters.values() for table in tables)


def those_of(kind: Kind | None) -> Iterator[System]:
    """Yield the systems that a path may be of, where a user says its kind, or nothing of it."""
    for system in every():
        if kind in (None, system.kind):
            yield system
