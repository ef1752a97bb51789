"""The plan of ``regraft gc`` for AngelMemory: what no note, no memory and no provider in use needs any more.

Rules: ``docs/angel-memory.md``, "Garbage".
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.angel_memory import findings as angel
from checks.angel_memory.audit import DANGLING, ORPHANED, UNUSED
from checks.angel_memory.detect import Providers, find_other_collections, find_providers
from checks.audit.findings import Finding
from regraft.errors import SourceUnreadable, WrongUsage
from regraft.formats.angel_memory import database
from regraft.formats.angel_memory.database import (
    MEMORIES,
    MEMORY_TAGS,
    NOTE_TAGS,
    RECORDS,
    TAGS,
    AngelProblem,
    ProviderFolder,
)
from regraft.language import format_count, join_list, tr
from regraft.text import path_argument
from repair.changes import undo
from repair.changes.plan import Action, Plan, RowsChange, Unresolved, many_disappeared, move_to_trash
from repair.changes.store import Store
from repair.options import GcOptions

#: Findings that this removes what they are about.
#: The folder of a provider could be used again: it goes only where the finding is named.
NAMES = (angel.RELATION_DANGLING, angel.RELATION_ORPHAN, angel.TAG_UNUSED, angel.PROVIDER_LEFTOVER)
#: What the system makes of its memories whenever it needs it.
_DERIVED = "memory_index"
#: Tags that not even a relation to nothing names.
_UNNAMED = " AND ".join(f"id NOT IN (SELECT tag_id FROM {table})" for table in ORPHANED)


class _Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one kind that go, in the order in which they do: which of which table, and what is said of them."""

    finding: str
    table: str
    where: str
    action: str
    message: str

    def told(self, count: int) -> str:
        """Return what is done, for a person."""
        noun = "tag" if self.table == TAGS else "relation"
        return tr("delete {format}", format=self.message.format(format_count(count, noun)))


def _rows(wanted: Collection[str]) -> Iterator[_Rows]:
    """Yield the rows that go; a relation that leads nowhere at both ends is told once."""
    dangling, orphaned = angel.RELATION_DANGLING in wanted, angel.RELATION_ORPHAN in wanted
    for table, of in ORPHANED.items():
        if dangling:
            yield _Rows(
                finding=angel.RELATION_DANGLING,
                table=table,
                where=DANGLING,
                action="delete-relations",
                message=tr("{} to a tag that is not there"),
            )
        if orphaned:
            where = f"NOT ({DANGLING}) AND {of}" if dangling else of
            owner = "note" if table == NOTE_TAGS else "memory"
            yield _Rows(
                finding=angel.RELATION_ORPHAN,
                table=table,
                where=where,
                action="delete-relations",
                message=tr("{{}} of a {owner} that is not there", owner=owner),
            )
    if angel.TAG_UNUSED in wanted:
        yield _Rows(
            finding=angel.TAG_UNUSED,
            table=TAGS,
            where=UNUSED if orphaned else _UNNAMED,
            action="delete-tags",
            message=tr("{} that no note and no memory has"),
        )


def plan(store: Store, options: GcOptions) -> Plan:
    """Return what is going to be removed; nothing is written.

    Raises:
        WrongUsage: an option is meant that says nothing here.
        SourceUnreadable: the records cannot be read.
        LedgerUnreadable
    """
    for option, is_given in (("--vacuum", options.vacuum), ("--v1-leftovers", options.v1_leftovers)):
        if is_given:
            raise WrongUsage(
                problem=tr("{option} for a data folder of AngelMemory", option=option), hint=tr("it is for v2 data")
            )
    made = _plan_rows(store, options)
    if options.wants(angel.PROVIDER_LEFTOVER):
        made.add(_plan_folders(store, options))
    return undo.add_expired_runs(made, store, options)


# --- rows ------------------------------------------------------------------------------------------------------------


def _plan_rows(store: Store, options: GcOptions) -> Plan:
    wanted = [one for one in NAMES if one != angel.PROVIDER_LEFTOVER and options.wants(one)]
    if not wanted:
        return Plan()
    findings = store.findings()
    lost = _lost(store.root)
    if lost is not None:
        return Plan(left=list(_kept(findings, wanted, lost)))
    rows = list(_rows(wanted))
    actions = _actions(rows, _counts(store.root, rows))
    left = list(_tags_left(store, findings, actions)) if angel.TAG_UNUSED in wanted else []
    made = Plan([_deletion(rows, actions)] if actions else [], left)
    promised = {str(action.finding) for action in actions}
    made.resolves = {(name, None) for name in promised.difference(one.finding for one in left)}
    return made


def _kept(findings: list[Finding], wanted: Collection[str], why: str) -> Iterator[Unresolved]:
    for one in findings:
        if one.name in wanted:
            yield Unresolved.of(one, tr("{what}, kept: {why}", what=one.message, why=why))


def _lost(root: Path) -> str | None:
    """Return that many notes or memories are gone at once, for a person; None where few or none are."""
    owners = ((NOTE_TAGS, "source_id", RECORDS), (MEMORY_TAGS, "memory_id", MEMORIES))
    try:
        with database.reading(root) as db:
            for relation, key, table in owners:
                query = f"""SELECT (SELECT count(DISTINCT {key}) FROM {relation} WHERE {ORPHANED[relation]}),
                                   (SELECT count(*) FROM {table})"""
                counts: Any = db.execute(query).fetchall()[0]
                gone, there = map(int, counts)
                if many_disappeared(gone, there):
                    return tr(
                        "{gone} of {all} are gone at once: their table may be damaged, or an older copy",
                        gone=f"{gone:,}",
                        all=format_count(gone + there, "note" if relation == NOTE_TAGS else "memory"),
                    )
    except (AngelProblem, apsw.Error) as problem:
        raise SourceUnreadable(path=root / database.DATABASE, reason=problem) from problem
    return None


def _actions(rows: list[_Rows], counts: list[int]) -> tuple[Action, ...]:
    return tuple(
        Action(
            action=one.action,
            message=one.told(number),
            base=None,
            subject=database.DATABASE,
            count=number,
            finding=one.finding,
        )
        for one, number in zip(rows, counts, strict=True)
        if number
    )


def _deletion(rows: list[_Rows], actions: tuple[Action, ...]) -> RowsChange:
    def apply(db: apsw.Connection) -> None:
        for one in rows:
            db.execute(f"DELETE FROM {one.table} WHERE {one.where}")

    return RowsChange(path=database.DATABASE, actions=actions, apply=apply, tables=(NOTE_TAGS, MEMORY_TAGS, TAGS))


def _tags_left(store: Store, findings: list[Finding], actions: tuple[Action, ...]) -> Iterator[Unresolved]:
    """Yield what is left of the unused tags: those that relations still name."""
    unused = next((one.count for one in findings if one.name == angel.TAG_UNUSED), 0)
    stays = unused - sum(action.count for action in actions if action.finding == angel.TAG_UNUSED)
    if stays > 0:
        again = shlex.join(["regraft", "gc", path_argument(store.path)])
        reason = tr("{tags} that only relations to nothing name: these go first", tags=format_count(stays, "tag"))
        yield Unresolved(finding=angel.TAG_UNUSED, reason=reason, count=stays, repair=again)


def _counts(root: Path, rows: list[_Rows]) -> list[int]:
    try:
        with database.reading(root) as db:
            found: list[Any] = [db.execute(f"SELECT count(*) FROM {one.table} WHERE {one.where}").get for one in rows]
            return [int(number) for number in found]
    except (AngelProblem, apsw.Error) as problem:
        raise SourceUnreadable(path=root / database.DATABASE, reason=problem) from problem


# --- folders ---------------------------------------------------------------------------------------------------------


def _plan_folders(store: Store, options: GcOptions) -> Plan:
    found, made = find_providers(store.root), Plan()
    for folder in found.leftovers:
        name = folder.path.name
        why = _why_kept(found, folder, options)
        if why is not None:
            reason = tr("{name} stays: {why}", name=name, why=why)
            made.left.append(Unresolved(finding=angel.PROVIDER_LEFTOVER, reason=reason, subject=name))
        else:
            message = tr("move {name}, of a provider that is not in use, to the trash", name=name)
            made.changes.append(move_to_trash(store, folder.path, "trash-folder", angel.PROVIDER_LEFTOVER, message))
    if made.changes and not made.left:
        made.resolves.add((angel.PROVIDER_LEFTOVER, None))
    return made


def _why_kept(found: Providers, folder: ProviderFolder, options: GcOptions) -> str | None:
    """Return why the folder of a provider stays, None where nothing speaks against it."""
    if found.problem is not None:
        return tr("which provider is in use is not certain: the state file {problem}", problem=found.problem)
    if folder.path.is_symlink():
        return tr("it is a link, and links are not followed")
    if angel.PROVIDER_LEFTOVER in options.only:
        return None
    others = _others(folder)
    why = tr("its vectors can be used again")
    if others:
        why = tr("it has entries in {others}, which may be nowhere else", others=join_list(others))
    return tr("{why}; --only {provider_leftover} removes it", why=why, provider_leftover=angel.PROVIDER_LEFTOVER)


def _others(folder: ProviderFolder) -> list[str]:
    """Return the collections that may hold what is nowhere else: early versions kept memories in them."""
    return [name for name in find_other_collections(folder) if name != _DERIVED]
