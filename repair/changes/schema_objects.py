"""Taking triggers and views out of a file that its layout does not have (``docs/findings.md``, ``schema.foreign-…``).

No row goes with them. What a changeset cannot hold is made on a copy that takes the file's place, so that undoing it
brings the file back byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import apsw

from checks.audit import findings
from checks.audit.findings import Finding
from checks.audit.sqlite_checks import ForeignObject
from regraft.disk import sqlite
from regraft.errors import PlanOutdated
from regraft.identity import replace
from regraft.language import format_count, tr
from repair.changes.plan import Action, Change, Plan, RowsChange, Unresolved
from repair.changes.store import Store

#: Findings that are mended.
NAMES = (findings.FOREIGN_TRIGGER, findings.FOREIGN_VIEW, findings.FOREIGN_TEXT_INDEX)
_NOUNS = {
    findings.FOREIGN_TRIGGER: "trigger",
    findings.FOREIGN_VIEW: "view",
    findings.FOREIGN_TEXT_INDEX: "index",
}
_ACTIONS = {
    findings.FOREIGN_TRIGGER: "drop-triggers",
    findings.FOREIGN_VIEW: "drop-views",
    findings.FOREIGN_TEXT_INDEX: "drop-indexes",
}

ObjectFinder = Callable[[apsw.Connection], Iterable[ForeignObject]]


def plan_drops(root: Path, name: str, wanted: Iterable[str], base: str | None, look: ObjectFinder) -> RowsChange | None:
    """Return what takes foreign triggers and views out of a file; None where there is nothing to take out.

    Args:
        root: the store's root.
        name: the file, below it.
        wanted: the findings that are to be mended.
        base: the base's id, None for a file of several.
        look: what tells what is foreign in it.

    Raises:
        apsw.Error, OSError, UnicodeDecodeError: it cannot be read.
    """
    path = root / name
    names = tuple(one for one in NAMES if one in set(wanted))
    with sqlite.open_readonly(path) as db:
        planned = _statements(db, look, names)
    if not planned:
        return None

    def apply(db: apsw.Connection) -> None:
        if _statements(db, look, names) != planned:
            raise PlanOutdated(path=path, reason=tr("other triggers or views would be dropped now than were planned"))
        for _, statements in planned:
            for statement in statements:
                db.execute(statement)

    return RowsChange(path=name, actions=tuple(_actions(planned, base, name)), apply=apply, tables=())


def add_drops(
    own: Plan, store: Store, found: Mapping[str, list[Finding]], only: frozenset[str], looks: Mapping[str, ObjectFinder]
) -> Plan:
    """Return a plan of another system's databases with what takes foreign triggers out of them, too.

    Args:
        own: the plan; a change of the same file is joined with it.
        store: the store.
        found: what the audit found, by name.
        only: names of the findings that are to be mended; empty: all.
        looks: the databases, below the store's root, with what tells what is foreign in each.
    """
    named = (only or frozenset(NAMES)).intersection(found)
    names = [name for name in NAMES if name in named]
    if not names:
        return own
    changes = list(own.changes)
    for name, look in looks.items():
        new = plan_drops(store.root, name, names, None, look)
        if new is not None:
            _take_in(new, changes)
    wanted, left = split_repairable([one for name in names for one in found[name]])
    resolves = own.resolves | {(name, None) for name in wanted}
    return replace(own, changes=changes, left=[*own.left, *left], resolves=resolves)


def split_repairable(found: Sequence[Finding]) -> tuple[set[str], list[Unresolved]]:
    """Return the names of findings that can all be mended, and what is left of the others."""
    beyond = [one for one in found if one.is_beyond_repair]
    wanted = {one.name for one in found} - {one.name for one in beyond}
    return wanted, [Unresolved.with_remedy(one) for one in beyond]


def _take_in(new: RowsChange, changes: list[Change]) -> None:
    for place, one in enumerate(changes):
        if isinstance(one, RowsChange) and one.path == new.path:
            changes[place] = merge_changes([new, one])
            return
    changes.append(new)


def merge_changes(changes: list[RowsChange]) -> RowsChange:
    """Return changes of one file as one, made in their order."""

    def apply(db: apsw.Connection) -> None:
        for change in changes:
            change.apply(db)

    return RowsChange(
        path=changes[0].path,
        actions=tuple(action for change in changes for action in change.actions),
        apply=apply,
        tables=tuple(dict.fromkeys(table for change in changes for table in change.tables)),
        bytes=sum(change.bytes for change in changes),
        bodies=any(change.bodies for change in changes),
    )


def _statements(
    db: apsw.Connection, look: ObjectFinder, names: Sequence[str]
) -> list[tuple[ForeignObject, tuple[str, ...]]]:
    found = [one for one in look(db) if one.finding in names and one.mended]
    # A trigger of a view goes with it.
    return [(one, one.mended) for one in sorted(found, key=lambda one: names.index(one.finding))]


def _actions(planned: Sequence[tuple[ForeignObject, tuple[str, ...]]], base: str | None, name: str) -> Iterable[Action]:
    for finding in NAMES:
        count = sum(one.finding == finding for one, _ in planned)
        if count:
            message = tr("drop {counted} that the layout does not have", counted=format_count(count, _NOUNS[finding]))
            yield Action(
                action=_ACTIONS[finding],
                message=message,
                base=base,
                subject=name,
                count=count,
                bytes=0,
                finding=finding,
            )
