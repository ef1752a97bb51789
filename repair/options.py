"""What a caller asks of a command that changes a store, whichever system the store is of."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import msgspec

#: Days that trash, and what takes a run back, are kept.
GRACE_DAYS = 14


class RepairOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be repaired; ``now_ms`` is the time of what has to be written anew."""

    now_ms: int
    #: Names of findings; empty: all that are repaired.
    only: frozenset[str] = frozenset()
    #: Whether damaged index files are written anew from what is left in them.
    salvage: bool = False
    #: The id of the model of bases that have vectors and no model; None: nobody says it.
    model: str | None = None
    #: Whether what has no row in the catalog is listed again: ``only`` says whether folders of bases or materials.
    adopt: bool = False
    #: Another copy of the data, which gives texts and vectors; None: none is named.
    source: Path | None = None
    #: What is opened or extracted of the source stays so until this closes.
    keep: ExitStack = msgspec.field(default_factory=ExitStack)
    #: Bases of which nothing is deleted.
    spared: frozenset[str] = frozenset()

    def wanted(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names of the findings that are to be repaired: those that the caller named, or ``names``."""
        return self.only or frozenset(names)


class ReconcileOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is to follow its source of truth."""

    #: Names of findings; empty: all but deletions of what could be listed or attached again.
    only: frozenset[str] = frozenset()
    #: Bases of which nothing is deleted.
    spared: frozenset[str] = frozenset()

    def wants(self, finding: str) -> bool:
        """Whether a finding is to be resolved, where it need not be named."""
        return not self.only or finding in self.only


class GcOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be removed; ``now_ms`` is the time from which ``grace`` (in days) counts back."""

    now_ms: int
    grace: float = GRACE_DAYS
    vacuum: bool = False
    #: Whether vector files of v1 go, too.
    v1_leftovers: bool = False
    #: Names of findings; empty: all but those that only go when they are named.
    only: frozenset[str] = frozenset()
    #: Whether what takes earlier runs back is deleted once its time is over.
    expires: bool = True
    #: Bases of which nothing is deleted.
    spared: frozenset[str] = frozenset()

    def wants(self, finding: str) -> bool:
        """Tell whether what a finding is about is to be removed, where it need not be named."""
        return not self.only or finding in self.only
