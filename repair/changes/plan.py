"""Values of a plan: the changes that a command is going to make to a store, and what it leaves unresolved and why.

A dry run prints the plan that a real run executes. Planners also share the helpers below, which group findings and move
files to the trash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import apsw
import msgspec
from msgspec import UNSET, Struct, UnsetType

from checks.audit.collector import Level
from checks.audit.findings import FINDINGS, Finding
from regraft.formats.cherry_v2.salvage.writing import PagesTally, TableTally
from regraft.language import tr
from regraft.ledger.values import RecordedChange
from regraft.report import notices
from regraft.report.notices import Severity
from repair.changes.files import size_on_disk
from repair.changes.store import Store

#: Name of a finding, and its base.
FindingKey = tuple[str, str | None]

# --- salvaged files in the report (docs/commands.md, "regraft repair") -----------------------------------------------


class SalvagedItem(Struct, frozen=True, kw_only=True):
    """An item with losses: its id and its display name."""

    id: str
    name: str


class SalvagedItems(Struct, frozen=True, kw_only=True):
    """Items of a base: the number of ``whole`` ones, and those with losses. Empty without a catalog."""

    whole: int
    partial: list[SalvagedItem]
    lost: list[SalvagedItem]


class SalvagedFile(Struct, frozen=True, kw_only=True):
    """What was salvaged of one damaged index.

    ``rows`` counts rows by kind. ``deleted`` counts rows that had been deleted before and could still be read.
    """

    base: str
    path: str
    rows: dict[str, TableTally]
    deleted: int
    pages: PagesTally
    items: SalvagedItems


#: State of a file, as :func:`repair.changes.files.file_stamp` reads it; None if the file is missing.
Stamp = tuple[int, int, int] | None


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One action of a run, as it is reported and recorded.

    ``action`` is its name in the output contract (``docs/commands.md``, "Commands that change a store"), ``count`` the
    number of objects it affects, ``bytes`` how much it frees or writes, ``message`` a description for people.
    ``finding`` is the finding that it resolves, or None. ``gone`` and ``come`` are ids of deleted and new records, for
    the actions that name them. For an inserted base, ``lost`` are ids of items of which a salvage lost rows,
    or may have, and ``without_rows`` is the number of files that had no rows in v1. ``origin``
    is the path of the index, vector file or archive from which the action copies vectors; without a root, it is below
    the store.
    """

    action: str
    base: str | None = None
    subject: str | None = None
    count: int = 1
    bytes: int = 0
    finding: str | None = None
    message: str
    gone: list[int] | UnsetType = UNSET
    come: list[int] | UnsetType = UNSET
    lost: list[str] | UnsetType = UNSET
    without_rows: int | UnsetType = UNSET
    origin: str | UnsetType = UNSET


class Unresolved(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that a run does not resolve, and the reason. What cannot be derived is never guessed."""

    finding: str
    reason: str
    base: str | None = None
    subject: str | None = None
    count: int = 1
    severity: Severity = "warning"
    #: Command line that may help.
    repair: str | None = None

    @classmethod
    def of(cls, finding: Finding, reason: str, *, repair: str | None = None) -> Unresolved:
        """Report a finding of an audit as unresolved for a reason; ``repair`` is a command line that may help."""
        return cls(
            finding=finding.name,
            reason=reason,
            base=finding.base,
            subject=finding.subject,
            count=finding.count,
            severity=finding.severity,
            repair=repair,
        )

    @classmethod
    def with_remedy(cls, finding: Finding, *, repair: str | None = None) -> Unresolved:
        """Report a finding of an audit as unresolved; the reason is its message and how to fix it.

        ``repair`` is a command line that may help.
        """
        return cls.of(
            finding,
            tr("{what}. To fix it: {remedy}", what=finding.message, remedy=FINDINGS[finding.name].remedy),
            repair=repair,
        )

    @classmethod
    def registered(
        cls, finding: str, reason: str, *, base: str | None, subject: str | None = None, count: int = 1
    ) -> Unresolved:
        """Report an unresolved case of a finding, with the severity that is registered for the finding's name.

        ``base`` and ``subject`` name what it is about, ``count`` how many objects.
        """
        return cls(
            finding=finding,
            reason=reason,
            base=base,
            subject=subject,
            count=count,
            severity=FINDINGS[finding].severity,
        )


class RowsChange(msgspec.Struct, frozen=True, kw_only=True):
    """Change rows of one SQLite file in one transaction.

    Args:
        path: the file, below the store's root, with ``/`` between parts.
        actions: the actions that the change performs.
        apply: makes the change; called inside the transaction. May be called again on another copy of the file.
        tables: tables whose rows may change. Undo data is recorded for these.
        bytes: approximate size of the old rows. A large change is made on a copy that then replaces the file.
        bodies: whether rows of ``search_text`` change in a file with a full-text index. The triggers are disabled
            during the change, and the full-text index is rebuilt.
        backup: whether to keep a copy of the whole file as well.
    """

    path: str
    actions: tuple[Action, ...]
    apply: Callable[[apsw.Connection], None]
    tables: tuple[str, ...]
    bytes: int = 0
    bodies: bool = False
    backup: bool = False


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """Replace or remove a file or a folder.

    Args:
        path: the path to change, below the store's root, with ``/`` between parts.
        actions: the actions that the change performs.
        make: writes the complete, verified new file or folder to the path that it is given, on the same disk. None: the
            path is removed.
        bytes: approximate number of bytes that ``make`` writes.
        trash: whether the old file goes to the trash, which ``gc`` empties after a while, instead of the undo folder.
    """

    path: str
    actions: tuple[Action, ...]
    make: Callable[[Path], None] | None
    bytes: int = 0
    trash: bool = False
    #: Whether to move the path as it is, without checkpointing the logs of SQLite files.
    as_is: bool = False
    #: Whether the path belongs to a cache that its system rebuilds. If the system rebuilt it since, undo leaves the new
    #: cache in place. Files of one folder belong to one cache.
    is_cache: bool = False
    #: Returns the fingerprint of the new path, for a ``make`` that flushes its files and knows their digests. None: the
    #: engine flushes the path and computes :func:`repair.changes.files.fingerprint`.
    mark: Callable[[Path], str | None] | None = None


Change = RowsChange | FileChange


class Reclaim(msgspec.Struct, frozen=True):
    """Return the free pages of an index file to the disk after all changes are made. No row changes.

    ``action`` has the expected number of freed bytes, and the actual one afterwards. ``bytes`` is the file's size.
    """

    path: str
    action: Action
    bytes: int


class Plan(msgspec.Struct):
    """Everything that a run is going to do, in order, and what it leaves unresolved."""

    changes: list[Change] = msgspec.field(default_factory=list)
    left: list[Unresolved] = msgspec.field(default_factory=list)
    #: Findings, with their bases, that must no longer exist after the run.
    resolves: set[FindingKey] = msgspec.field(default_factory=set)
    #: Bases that the run creates, each with the names of errors that its rows may have inherited from the source. Any
    #: other error undoes the run.
    new_bases: dict[str, frozenset[str]] = msgspec.field(default_factory=dict)
    #: Whether the report lists the inherited errors.
    lists_inherited: bool = False
    #: Changes of earlier runs whose undo data is deleted, and the actions that report it.
    expired: list[RecordedChange] = msgspec.field(default_factory=list)
    expiring: list[Action] = msgspec.field(default_factory=list)
    #: What the command did outside of the store, recorded with the run.
    outside: list[Action] = msgspec.field(default_factory=list)
    #: Index files whose free pages are returned to the disk at the end.
    reclaims: list[Reclaim] = msgspec.field(default_factory=list)
    #: Level of the audit after the run. Files that were copied and verified byte for byte need no deep audit.
    level: Level = Level.DEFAULT
    #: Whether the undo data of this run is kept after its end.
    keeps_undo: bool = True
    #: State of the files that the plan was made from, by name. If one was changed since, the run is refused.
    read: dict[str, Stamp] = msgspec.field(default_factory=dict)
    #: Salvage reports of damaged files that are rewritten.
    salvaged: list[SalvagedFile] = msgspec.field(default_factory=list)
    #: For each base, a function that yields the texts to be embedded after the run, as (key, text).
    bodies: dict[str, Callable[[], Iterator[tuple[str, str]]]] = msgspec.field(default_factory=dict)

    def add(self, other: Plan) -> None:
        """Append everything that another plan does."""
        self.changes += other.changes
        self.left += other.left
        self.resolves |= other.resolves
        self.new_bases |= other.new_bases
        self.expired += other.expired
        self.expiring += other.expiring
        self.outside += other.outside
        self.reclaims += other.reclaims
        self.read |= other.read
        self.salvaged += other.salvaged
        self.bodies |= other.bodies

    def touches(self, findings: set[FindingKey]) -> bool:
        """Whether the plan resolves one of the findings or has an action for it."""
        acted = {(one.finding, one.base) for one in self.actions}
        return not findings.isdisjoint(self.resolves | acted)

    @property
    def actions(self) -> list[Action]:
        """All actions, in the order in which they happen."""
        changes = (action for change in self.changes for action in change.actions)
        return [*changes, *(reclaim.action for reclaim in self.reclaims), *self.expiring, *self.outside]

    @property
    def bases(self) -> set[str]:
        """Ids of the bases that the plan changes or leaves something of."""
        found = {action.base for action in self.actions} | {left.base for left in self.left}
        return {base for base in found if base is not None}


# --- helpers of planners ---------------------------------------------------------------------------------------------

#: Findings of an audit, by base.
FindingsByBase = Mapping[str | None, list[Finding]]
#: Names of resolved findings, with their bases.
ResolvedFindings = set[FindingKey]


def group_by_name(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Group findings by name, in their order."""
    found: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        found[finding.name].append(finding)
    return dict(found)


def group_by_base(findings: Iterable[Finding]) -> dict[str | None, list[Finding]]:
    """Group findings by base, in their order."""
    found: dict[str | None, list[Finding]] = defaultdict(list)
    for finding in findings:
        found[finding.base].append(finding)
    return dict(found)


def other_warnings(found: Mapping[str, list[Finding]], repaired: Collection[str]) -> list[Finding]:
    """Select the findings of at least warning severity whose names are not in ``repaired``; ``found`` is by name."""
    others = (one for name, every in found.items() if name not in repaired for one in every)
    return [one for one in others if notices.is_at_least(one.severity, "warning")]


#: Rows count as disappeared at once if at least this many are gone, and at least one in ten of all.
_FEWEST_GONE = 3
_ONE_IN = 10


def many_disappeared(gone: int, there: int) -> bool:
    """Whether so many rows disappeared at once that the table may be damaged or an older copy.

    ``gone`` is the number of rows that disappeared, ``there`` that of the rows that remain.
    """
    return gone >= _FEWEST_GONE and gone * _ONE_IN >= gone + there


def move_to_trash(
    store: Store,
    path: Path,
    action: str,
    finding: str,
    message: str,
    base: str | None = None,
    *,
    as_is: bool = False,
    is_cache: bool = False,
) -> FileChange:
    """Plan to move a file or folder of a store to the trash.

    Args:
        store: the store.
        path: what to move.
        action: the name of the action.
        finding: the finding that it resolves.
        message: describes the action for people.
        base: id of the base that the file belongs to; None: no single one.
        as_is, is_cache: see :class:`FileChange`.
    """
    name = path.relative_to(store.root).as_posix()
    return FileChange(
        path=name,
        actions=(
            Action(action=action, message=message, base=base, subject=name, bytes=size_on_disk(path), finding=finding),
        ),
        make=None,
        trash=True,
        as_is=as_is,
        is_cache=is_cache,
    )
