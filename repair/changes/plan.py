"""What a command is going to do to a store, as values: the plan that a dry run prints is the plan that runs."""

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

# What was left of a damaged file, as the document of a run has it (``docs/commands.md``, "regraft repair").


class SalvagedItem(Struct, frozen=True, kw_only=True):
    """An item of which something is lost: its id, and what a person calls it."""

    id: str
    name: str


class SalvagedItems(Struct, frozen=True, kw_only=True):
    """How many items of a base are ``whole``, and which are so in part or have nothing left; without a catalog none."""

    whole: int
    partial: list[SalvagedItem]
    lost: list[SalvagedItem]


class SalvagedFile(Struct, frozen=True, kw_only=True):
    """What was left of one damaged index.

    ``rows`` counts by what they are; ``deleted`` are rows that had been deleted before and were still there to be read.
    """

    base: str
    path: str
    rows: dict[str, TableTally]
    deleted: int
    pages: PagesTally
    items: SalvagedItems


#: What tells whether a file was written to; None where it is not there.
Stamp = tuple[int, int, int] | None


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is done, as it is reported and recorded.

    ``action`` is its name in the output contract (``docs/commands.md``, "Commands that change a store"), ``count`` how
    many things it is done to, ``bytes`` what that frees or writes, ``message`` the same for a person. ``finding`` is
    what it mends, None where it mends nothing that ``check`` would find. ``gone`` and ``come`` are the ids of records
    that go and that come, where the action says them.
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


class Unresolved(msgspec.Struct, frozen=True, kw_only=True):
    """Something that stays as it is, and why: what cannot be derived is never guessed."""

    finding: str
    reason: str
    base: str | None = None
    subject: str | None = None
    count: int = 1
    severity: Severity = "warning"
    #: The command line that may help, if one does.
    repair: str | None = None

    @classmethod
    def of(cls, finding: Finding, reason: str, *, repair: str | None = None) -> Unresolved:
        """Return that all that a finding is about stays, and why."""
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
        """Return that all that a finding is about stays, with what it says and what mends it."""
        return cls.of(
            finding,
            tr("{message_}. What helps: {remedy}", message_=finding.message, remedy=FINDINGS[finding.name].remedy),
            repair=repair,
        )

    @classmethod
    def registered(
        cls, finding: str, reason: str, *, base: str | None, subject: str | None = None, count: int = 1
    ) -> Unresolved:
        """Return what stays, as grave as the finding of that name can be."""
        return cls(
            finding=finding,
            reason=reason,
            base=base,
            subject=subject,
            count=count,
            severity=FINDINGS[finding].severity,
        )


class RowsChange(msgspec.Struct, frozen=True, kw_only=True):
    """Changes rows of one SQLite file in one transaction.

    Args:
        path: the file, below the store's root, ``/`` between parts.
        actions: what it does.
        apply: makes the change; called inside the transaction. It may be called again, on another copy of the file.
        tables: whose rows it may change; what takes it back is recorded for these.
        bytes: about how much the old rows hold. What is large is done on a copy that then takes the file's place.
        bodies: whether rows of ``search_text`` change in a file with a full-text index. The triggers are set aside
            meanwhile, and the full-text index is built anew.
        backup: whether all of the file is kept as it was, too.
    """

    path: str
    actions: tuple[Action, ...]
    apply: Callable[[apsw.Connection], None]
    tables: tuple[str, ...]
    bytes: int = 0
    bodies: bool = False
    backup: bool = False


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """Puts a file or a folder in place of what is there, or takes away what is there.

    Args:
        path: what is changed, below the store's root, ``/`` between parts.
        actions: what it does.
        make: writes the new one, whole and proven, at the path that it is given (on the same disk); None where
            nothing comes in its place. It is a file or a folder as ``make`` leaves it.
        bytes: about how much ``make`` writes.
        trash: whether what was there goes to the trash, which ``gc`` empties after a while, and not just aside.
    """

    path: str
    actions: tuple[Action, ...]
    make: Callable[[Path], None] | None
    bytes: int = 0
    trash: bool = False
    #: Whether a file is moved as it is, whatever it holds: no log beside it is worked into it.
    as_is: bool = False
    #: Whether it is (part of) what its system makes anew: where that was done meanwhile, undo leaves it so. Caches are
    #: told apart by the folders that they lie in.
    is_cache: bool = False
    #: Returns what tells later whether the new one was changed, where ``make`` flushes what it makes and knows that
    #: already; None: it is flushed and asked :func:`repair.changes.files.fingerprint`.
    mark: Callable[[Path], str | None] | None = None


Change = RowsChange | FileChange


class Reclaim(msgspec.Struct, frozen=True):
    """Gives the free space in an index file back to the disk, once all changes are made; no row changes.

    ``action`` is what it is expected to free, and afterwards what it has freed; ``bytes`` is the file's size.
    """

    path: str
    action: Action
    bytes: int


class Plan(msgspec.Struct):
    """All that a run is going to do, in its order, and what it leaves."""

    changes: list[Change] = msgspec.field(default_factory=list)
    left: list[Unresolved] = msgspec.field(default_factory=list)
    #: Findings that must be gone afterwards, with the base that they are of.
    resolves: set[tuple[str, str | None]] = msgspec.field(default_factory=set)
    #: Bases that the run creates, each with the names of the errors that its copied rows may have: any other error in
    #: it undoes the run.
    new_bases: dict[str, frozenset[str]] = msgspec.field(default_factory=dict)
    #: Whether the report lists these inherited errors.
    lists_inherited: bool = False
    #: Changes of earlier runs that nobody can take back afterwards, with the actions that this is reported as.
    expired: list[RecordedChange] = msgspec.field(default_factory=list)
    expiring: list[Action] = msgspec.field(default_factory=list)
    #: Index files whose free space is given back at the end.
    reclaims: list[Reclaim] = msgspec.field(default_factory=list)
    #: How deep a store is looked into again afterwards: what was copied and proven by its bytes need not be read again.
    level: Level = Level.DEFAULT
    #: Whether what takes this run back is kept; else it is deleted at its end.
    keeps_undo: bool = True
    #: What files were, by their names, when they were read for this (:func:`repair.changes.files.file_stamp`): nothing is
    #: done where one is another now.
    read: dict[str, Stamp] = msgspec.field(default_factory=dict)
    #: What is left of damaged files that are written anew.
    salvaged: list[SalvagedFile] = msgspec.field(default_factory=list)
    #: What reads the texts that are going to be embedded once this is done, by the base: each with its key.
    bodies: dict[str, Callable[[], Iterator[tuple[str, str]]]] = msgspec.field(default_factory=dict)

    def add(self, other: Plan) -> None:
        """Do all that another plan does, too, behind what this one does."""
        self.changes += other.changes
        self.left += other.left
        self.resolves |= other.resolves
        self.new_bases |= other.new_bases
        self.expired += other.expired
        self.expiring += other.expiring
        self.reclaims += other.reclaims
        self.read |= other.read
        self.salvaged += other.salvaged
        self.bodies |= other.bodies

    @property
    def actions(self) -> list[Action]:
        """Return what is done, in its order."""
        changes = (action for change in self.changes for action in change.actions)
        return [*changes, *(reclaim.action for reclaim in self.reclaims), *self.expiring]

    @property
    def bases(self) -> set[str]:
        """Return the ids of the bases that it touches, or leaves something of."""
        found = {action.base for action in self.actions} | {left.base for left in self.left}
        return {base for base in found if base is not None}


# What an audit found, sorted as planners look at it.


#: What an audit found, by base.
FindingsByBase = Mapping[str | None, list[Finding]]
#: Findings that are gone afterwards, with the base that they are of.
ResolvedFindings = set[tuple[str, str | None]]


def group_by_name(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Return findings by their names, in the order in which these come."""
    found: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        found[finding.name].append(finding)
    return dict(found)


def group_by_base(findings: Iterable[Finding]) -> dict[str | None, list[Finding]]:
    """Return findings by the bases that they are of, in the order in which these come."""
    found: dict[str | None, list[Finding]] = defaultdict(list)
    for finding in findings:
        found[finding.base].append(finding)
    return dict(found)


def other_warnings(found: Mapping[str, list[Finding]], mended: Collection[str]) -> list[Finding]:
    """Return the findings of other names than those that are ``mended``, from warnings on."""
    others = (one for name, every in found.items() if name not in mended for one in every)
    return [one for one in others if notices.at_least(one.severity, "warning")]


#: Rows disappeared at once where at least this many are gone, and at least one in so many of all.
_FEWEST_GONE = 3
_ONE_IN = 10


def many_disappeared(gone: int, there: int) -> bool:
    """Whether so many rows are gone, beside those that are there, that their table may be damaged or an older copy."""
    return gone >= _FEWEST_GONE and gone * _ONE_IN >= gone + there


# The trash: where files and folders go that a run takes away, below the run's own folder.


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
    """Return what takes a file or folder away, to the trash; ``as_is``: whatever it holds.

    ``is_cache``: its system makes it anew, as :class:`FileChange` has it.
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
