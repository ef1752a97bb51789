"""Plan ``regraft gc`` for AngelMemory: unneeded tags, dangling relations, and folders of unused providers.

Rules: ``docs/angel-memory.md``, "Garbage".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.angel_memory import findings as angel
from checks.angel_memory.audit import DANGLING, ORPHANED, UNUSED
from checks.angel_memory.detect import Providers, find_other_collections, find_providers
from checks.audit.findings import Finding
from regraft.disk import file_paths
from regraft.errors import SourceUnreadable
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
from regraft.language import format_count, insert_at_mark, join_list, tr
from regraft.report.labels import label_of
from repair.changes import undo
from repair.changes.options import GcOptions
from repair.changes.plan import Action, Plan, RowsChange, Unresolved, many_disappeared, move_to_trash
from repair.changes.store import Store

#: Findings that gc resolves. The folder of an unused provider is removed only with ``--only``: it could be used again.
NAMES = (angel.RELATION_DANGLING, angel.RELATION_ORPHAN, angel.TAG_UNUSED, angel.PROVIDER_LEFTOVER)
#: Collection that the system derives from its memories when needed.
_DERIVED_COLLECTION = "memory_index"
#: Condition for tags that no relation names, dangling or not.
_UNRELATED = " AND ".join(f"id NOT IN (SELECT tag_id FROM {table})" for table in ORPHANED)


class _Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one table to delete for one finding."""

    finding: str
    table: str
    where: str
    action: str
    message: str

    def format_message(self, count: int) -> str:
        """Message of the action that deletes ``count`` rows."""
        noun = "tag" if self.table == TAGS else "relation"
        return tr("delete {format}", format=insert_at_mark(self.message, "{}", format_count(count, noun)))


def _find_deletions(wanted: Collection[str]) -> Iterator[_Deletion]:
    """Yield the deletions for the findings named in ``wanted``, in order of execution.

    A relation that is dangling at both ends is counted once.
    """
    dangling, orphaned = angel.RELATION_DANGLING in wanted, angel.RELATION_ORPHAN in wanted
    for table, of in ORPHANED.items():
        if dangling:
            yield _Deletion(
                finding=angel.RELATION_DANGLING,
                table=table,
                where=DANGLING,
                action="delete-relations",
                message=tr("{} to a missing tag"),
            )
        if orphaned:
            where = f"NOT ({DANGLING}) AND {of}" if dangling else of
            owner = label_of("note" if table == NOTE_TAGS else "memory")
            yield _Deletion(
                finding=angel.RELATION_ORPHAN,
                table=table,
                where=where,
                action="delete-relations",
                message=tr("{{}} of a missing {owner}", owner=owner),
            )
    if angel.TAG_UNUSED in wanted:
        yield _Deletion(
            finding=angel.TAG_UNUSED,
            table=TAGS,
            where=UNUSED if orphaned else _UNRELATED,
            action="delete-tags",
            message=tr("{} not used by any note or memory"),
        )


def plan(store: Store, options: GcOptions) -> Plan:
    """Plan what to remove.

    Raises:
        SourceUnreadable: the records cannot be read.
        LedgerUnreadable
    """
    made = _plan_rows(store, options)
    if options.wants(angel.PROVIDER_LEFTOVER):
        made.add(_plan_folders(store, options))
    return undo.add_expired_runs(made, store, options)


# --- rows ------------------------------------------------------------------------------------------------------------


def _plan_rows(store: Store, options: GcOptions) -> Plan:
    """Plan to delete unused rows; keep all of them if many notes or memories disappeared at once."""
    wanted = [one for one in NAMES if one != angel.PROVIDER_LEFTOVER and options.wants(one)]
    if not wanted:
        return Plan()
    findings = store.findings()
    lost = _find_mass_loss(store.root)
    if lost is not None:
        kept = (one for one in findings if one.name in wanted)
        return Plan(left=[Unresolved.of(one, tr("{what}, kept: {why}", what=one.message, why=lost)) for one in kept])
    rows = list(_find_deletions(wanted))
    actions = tuple(
        Action(
            action=one.action,
            message=one.format_message(count),
            subject=database.DATABASE,
            count=count,
            finding=one.finding,
        )
        for one, count in zip(rows, _count_rows(store.root, rows), strict=True)
        if count
    )

    def apply(db: apsw.Connection) -> None:
        """Delete the rows in the caller's transaction."""
        for one in rows:
            db.execute(f"DELETE FROM {one.table} WHERE {one.where}")

    tables = (NOTE_TAGS, MEMORY_TAGS, TAGS)
    change = RowsChange(path=database.DATABASE, actions=actions, apply=apply, tables=tables)
    left = list(_report_referenced_tags(store, findings, actions)) if angel.TAG_UNUSED in wanted else []
    made = Plan([change] if actions else [], left)
    promised = {str(action.finding) for action in actions}
    made.resolves = {(name, None) for name in promised.difference(one.finding for one in left)}
    return made


def _find_mass_loss(root: Path) -> str | None:
    """Describe the loss if many notes or memories of the data folder ``root`` disappeared at once; None if not."""
    owners = ((NOTE_TAGS, "source_id", RECORDS), (MEMORY_TAGS, "memory_id", MEMORIES))
    try:
        with database.open_records(root) as db:
            for relation, key, table in owners:
                query = f"""SELECT (SELECT count(DISTINCT {key}) FROM {relation} WHERE {ORPHANED[relation]}),
                                   (SELECT count(*) FROM {table})"""
                counts: Any = db.execute(query).fetchall()[0]
                gone, there = map(int, counts)
                if many_disappeared(gone, there):
                    return tr(
                        "{gone} of {all} disappeared at once; the table may be damaged or an older copy",
                        gone=f"{gone:,}",
                        all=format_count(gone + there, "note" if relation == NOTE_TAGS else "memory"),
                    )
    except (AngelProblem, apsw.Error) as problem:
        raise SourceUnreadable(path=root / database.DATABASE, reason=problem) from problem
    return None


def _report_referenced_tags(store: Store, findings: list[Finding], actions: tuple[Action, ...]) -> Iterator[Unresolved]:
    """Report unused tags that cannot be deleted yet, because relations that are deleted first still refer to them.

    ``findings`` are those of the audit, ``actions`` the planned deletions.
    """
    unused = next((one.count for one in findings if one.name == angel.TAG_UNUSED), 0)
    stays = unused - sum(action.count for action in actions if action.finding == angel.TAG_UNUSED)
    if stays > 0:
        reason = tr("{tags} only used by dangling relations, which are deleted first", tags=format_count(stays, "tag"))
        yield Unresolved(finding=angel.TAG_UNUSED, reason=reason, count=stays, repair=store.command_line("gc"))


def _count_rows(root: Path, rows: list[_Deletion]) -> list[int]:
    """Count the rows that each deletion would delete, in the order of ``rows``."""
    try:
        with database.open_records(root) as db:
            found: list[Any] = [db.execute(f"SELECT count(*) FROM {one.table} WHERE {one.where}").get for one in rows]
            return [int(number) for number in found]
    except (AngelProblem, apsw.Error) as problem:
        raise SourceUnreadable(path=root / database.DATABASE, reason=problem) from problem


# --- folders ---------------------------------------------------------------------------------------------------------


def _plan_folders(store: Store, options: GcOptions) -> Plan:
    """Plan to move the folders of unused embedding providers to the trash, and report those that are kept."""
    found, made = find_providers(store.root), Plan()
    for folder in found.leftovers:
        name = folder.path.name
        why = _why_kept(found, folder, options)
        if why is not None:
            reason = tr("{name} kept: {why}", name=name, why=why)
            made.left.append(Unresolved(finding=angel.PROVIDER_LEFTOVER, reason=reason, subject=name))
        else:
            message = tr("move {name} of an unused provider to the trash", name=name)
            made.changes.append(move_to_trash(store, folder.path, "trash-folder", angel.PROVIDER_LEFTOVER, message))
    if made.changes and not made.left:
        made.resolves.add((angel.PROVIDER_LEFTOVER, None))
    return made


def _why_kept(found: Providers, folder: ProviderFolder, options: GcOptions) -> str | None:
    """Why the folder of an unused provider is kept; None if it may be removed. ``found`` are all providers."""
    if found.problem is not None:
        return tr("cannot tell which provider is in use: the state file {problem}", problem=found.problem)
    if file_paths.is_link(folder.path):
        return tr("it is a symbolic link")
    if angel.PROVIDER_LEFTOVER in options.only:
        return None
    others = [name for name in find_other_collections(folder) if name != _DERIVED_COLLECTION]
    why = tr("the provider may be used again with its vectors")
    if others:
        why = tr("it has entries in {others}, possibly the only copy", others=join_list(others))
    return tr(
        "{why}; gc moves this folder of vectors to the trash only with --only {provider_leftover}",
        why=why,
        provider_leftover=angel.PROVIDER_LEFTOVER,
    )
