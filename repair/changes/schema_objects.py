"""Drop triggers, views and indexes that the layout of a file does not define.

Findings: ``schema.foreign-…`` in ``docs/findings.md``. No row is changed. A changeset cannot record such a change, so
it is made on a copy that replaces the file, and undo restores the file byte for byte.
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
from repair.changes.plan import Action, Plan, RowsChange, Unresolved
from repair.changes.store import Store

#: Findings that this module repairs.
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


def plan_drops(
    root: Path, name: str, wanted: Iterable[str], base: str | None, find_foreign: ObjectFinder
) -> RowsChange | None:
    """Plan to drop the foreign objects of one file; None if it has none.

    Args:
        root: the store's root.
        name: the file, below the root.
        wanted: names of the findings to resolve.
        base: the base's id; None for a file of several bases.
        find_foreign: finds the foreign objects of an open database.

    Raises:
        apsw.Error, OSError, UnicodeDecodeError: the file cannot be read.
    """
    path = root / name
    names = tuple(one for one in NAMES if one in set(wanted))
    with sqlite.open_readonly(path) as db:
        planned = _drop_statements(db, find_foreign, names)
    if not planned:
        return None

    def apply(db: apsw.Connection) -> None:
        """Drop the objects; refuse if they changed since the plan."""
        if _drop_statements(db, find_foreign, names) != planned:
            raise PlanOutdated(path=path, reason=tr("its triggers or views changed since the plan"))
        for _, statements in planned:
            for statement in statements:
                db.execute(statement)

    return RowsChange(path=name, actions=tuple(_actions(planned, base, name)), apply=apply, tables=())


def add_drops(
    own: Plan,
    store: Store,
    found: Mapping[str, list[Finding]],
    only: frozenset[str],
    finders: Mapping[str, ObjectFinder],
) -> Plan:
    """Add the drops of foreign objects to the repair plan of another system's databases.

    Args:
        own: the plan. A change of the same file is merged with the drops.
        store: the store.
        found: the findings of the audit, by name.
        only: names of the findings to resolve; empty: all.
        finders: for each database below the root, a function that finds its foreign objects.
    """
    named = (only or frozenset(NAMES)).intersection(found)
    names = [name for name in NAMES if name in named]
    if not names:
        return own
    changes = list(own.changes)
    for name, find_foreign in finders.items():
        new = plan_drops(store.root, name, names, None, find_foreign)
        if new is not None:
            same = [one for one in changes if isinstance(one, RowsChange) and one.path == new.path]
            if same:
                changes[changes.index(same[0])] = merge_changes([new, same[0]])
            else:
                changes.append(new)
    wanted, left = split_repairable([one for name in names for one in found[name]])
    resolves = own.resolves | {(name, None) for name in wanted}
    return replace(own, changes=changes, left=[*own.left, *left], resolves=resolves)


def split_repairable(found: Sequence[Finding]) -> tuple[set[str], list[Unresolved]]:
    """Return the names of the findings that can be repaired completely, and a report of each one beyond repair."""
    beyond = [one for one in found if one.is_beyond_repair]
    wanted = {one.name for one in found} - {one.name for one in beyond}
    return wanted, [Unresolved.with_remedy(one) for one in beyond]


def merge_changes(changes: list[RowsChange]) -> RowsChange:
    """Merge changes of one file into one that makes them in order."""

    def apply(db: apsw.Connection) -> None:
        """Make all changes in order."""
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


def _drop_statements(
    db: apsw.Connection, find_foreign: ObjectFinder, names: Sequence[str]
) -> list[tuple[ForeignObject, tuple[str, ...]]]:
    """Return the foreign objects for the findings ``names``, each with the SQL statements that drop it.

    ``find_foreign`` finds all foreign objects of the open database.
    """
    found = [one for one in find_foreign(db) if one.finding in names and one.removal]
    # Views come after triggers: dropping a view drops its triggers.
    return [(one, one.removal) for one in sorted(found, key=lambda one: names.index(one.finding))]


def _actions(planned: Sequence[tuple[ForeignObject, tuple[str, ...]]], base: str | None, name: str) -> Iterable[Action]:
    """Yield one action for each kind of dropped object.

    Args:
        planned: the objects, each with the SQL statements that drop it.
        base: the base's id; None for a file of several bases.
        name: the file, below the root.
    """
    for finding in NAMES:
        count = sum(one.finding == finding for one, _ in planned)
        if count:
            message = tr("drop {counted} not defined by the layout", counted=format_count(count, _NOUNS[finding]))
            yield Action(
                action=_ACTIONS[finding], message=message, base=base, subject=name, count=count, finding=finding
            )
