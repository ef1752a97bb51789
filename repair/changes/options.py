"""Options of the commands that change a store, for stores of all systems."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from regraft.errors import WrongUsage
from regraft.language import tr
from regraft.options import GRACE_DAYS


class RepairOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``repair``. ``now_ms`` is the time of rows that are written again."""

    now_ms: int
    #: Names of findings; empty: all that can be repaired.
    only: frozenset[str] = frozenset()
    #: Whether to rewrite damaged index files from their readable rows.
    salvage: bool = False
    #: Id of the model for bases that have vectors but no model; None: unknown.
    model: str | None = None
    #: Whether to insert missing catalog rows. ``only`` selects base folders or materials.
    adopt: bool = False
    #: Another copy of the data, from which texts and vectors are copied.
    source: Path | None = None
    #: Folders and files that were moved: old and new path.
    moved: tuple[tuple[str, str], ...] = ()
    #: Opened and extracted files of the source stay until this closes.
    keep: ExitStack = msgspec.field(default_factory=ExitStack)
    #: Bases from which nothing is deleted.
    spared: frozenset[str] = frozenset()
    #: Whether to keep vectors of Chroma whose text, or length, nothing proves.
    unproven: bool = False

    def wanted(self, names: Iterable[str]) -> frozenset[str]:
        """Return the findings to repair: those that the user named, else the default ``names``."""
        return self.only or frozenset(names)

    def demand_alone(self, option: str) -> None:
        """Refuse options that cannot be combined with ``option``, because they also select what to repair.

        Raises:
            WrongUsage
        """
        others = {
            "--only": bool(self.only),
            "--model": self.model is not None,
            "--adopt": self.adopt,
            "--salvage": self.salvage,
            "--from": self.source is not None,
        }
        for name, is_given in others.items():
            if is_given and name != option:
                raise WrongUsage(
                    problem=tr("{option} cannot be combined with {name}", option=option, name=name),
                    hint=tr("run {option} first, then {name}", option=option, name=name),
                )


class ReconcileOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``reconcile``."""

    #: Names of findings; empty: all except deletions of data that could be adopted or attached.
    only: frozenset[str] = frozenset()
    #: Bases from which nothing is deleted.
    spared: frozenset[str] = frozenset()

    def wants(self, finding: str) -> bool:
        """Whether the options select a finding: the user named it, or named no finding."""
        return not self.only or finding in self.only


class GcOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``gc``. ``grace`` is a number of days before ``now_ms``."""

    now_ms: int
    grace: float = GRACE_DAYS
    vacuum: bool = False
    #: Whether to remove vector files of v1 as well.
    v1_leftovers: bool = False
    #: Names of findings; empty: all except those that have to be named.
    only: frozenset[str] = frozenset()
    #: Whether to delete expired undo data of earlier runs.
    expires: bool = True
    #: Bases from which nothing is deleted.
    spared: frozenset[str] = frozenset()

    def wants(self, finding: str) -> bool:
        """Whether the options select a finding: the user named it, or named no finding."""
        return not self.only or finding in self.only
