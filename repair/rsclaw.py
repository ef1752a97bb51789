"""Plan ``regraft gc`` and ``regraft reconcile`` for rsclaw.

Files and caches are moved to the trash; the database is never written.

``gc`` moves orphan files to the trash, fewer than rsclaw's own compactor would delete. Such a file holds a text that
could be added again, so it is moved only with ``--only``. ``reconcile`` moves outdated caches to the trash, and rsclaw
rebuilds them (``docs/rsclaw.md``, "Garbage" and "Reconcile").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from checks.audit.findings import Finding
from checks.rsclaw import findings as kb
from checks.rsclaw.files import (
    MOVED,
    LooseReason,
    find_loose_files,
    has_full_text,
    list_files,
    snapshot_files,
)
from regraft.errors import WrongUsage
from regraft.formats.rsclaw import database
from regraft.formats.rsclaw.database import FILE, FULL_TEXT
from regraft.language import format_count, insert_at_mark, tr
from regraft.report import notices
from regraft.report.notices import Severity
from repair.changes import undo
from repair.changes.files import file_stamp
from repair.changes.options import GcOptions, ReconcileOptions
from repair.changes.plan import FileChange, Plan, Unresolved, move_to_trash
from repair.changes.store import Store
from repair.systems import Repairs


def demand_own_folder(store: Store) -> None:
    """Refuse a database that is not named ``kb.redb``: it is unknown which database the files beside it belong to.

    Raises:
        WrongUsage
    """
    if store.found.path.name != FILE:
        problem = tr(
            "{name} is not named {file}, so the owner of the files beside it is unknown",
            name=store.found.path.name,
            file=FILE,
        )
        raise WrongUsage(problem=problem, hint=tr("use the folder of the knowledge base"))


# --- gc ---------------------------------------------------------------------------------------------------------------

#: Findings that ``gc`` resolves.
GC_FINDINGS = (kb.FILE_ORPHAN,)
_MESSAGES = {
    LooseReason.ORPHAN: tr("move {name} to the trash: no document or ledger entry refers to it"),
    LooseReason.REPLACED: tr("move {name} to the trash: it was replaced"),
}
_KEPT = {
    **dict.fromkeys(
        MOVED,
        tr(
            "{files} kept although unused, because their text could be added again; use --only kb.file-orphan to "
            "remove them"
        ),
    ),
    LooseReason.UNSURE: tr(
        "{files} kept because most or all files belong to no document; the database may be new or older than the files"
    ),
    LooseReason.YOUNG: tr("{files} kept because they are less than an hour old; a document may be about to be added"),
    LooseReason.SETTLED: tr(
        "{files} kept because a settled ledger entry still refers to them; rsclaw itself decides about these"
    ),
    LooseReason.SPELLING: tr(
        "{files} kept because their names differ only in case or Unicode form; rsclaw itself decides about these"
    ),
    LooseReason.ODD: tr("{files} kept because they are links or special files, or have undecodable names"),
}


def plan_gc(store: Store, options: GcOptions) -> Plan:
    """Plan which orphan files to move to the trash.

    Raises:
        WrongUsage: the database is not in its own folder.
        RedbError: the database is in use, or cannot be read.
        LedgerUnreadable
    """
    demand_own_folder(store)
    made = _plan_files(store, is_named=kb.FILE_ORPHAN in options.only) if options.wants(kb.FILE_ORPHAN) else Plan()
    return undo.add_expired_runs(made, store, options)


def _plan_files(store: Store, *, is_named: bool) -> Plan:
    """Plan to move unreferenced files to the trash, and report those that stay.

    ``is_named``: whether the user named the finding; otherwise all of them stay.
    """
    database_path, made = store.found.path, Plan()
    made.read[database_path.name] = file_stamp(database_path)
    with database.open_mirror(database_path, (database.DOCS, database.LEDGER)) as mirror:
        list_files(mirror, store.root)
        found = find_loose_files(mirror.db, store.now_ms)
        if not mirror.is_whole(database.DOCS, database.LEDGER):
            # A lost row may have referred to any file.
            count = len(list(found))
            if count:
                files = format_count(count, "file")
                reason = tr("{files} kept because rows that may refer to them are lost", files=files)
                made.left.append(Unresolved(finding=kb.FILE_ORPHAN, reason=reason, count=count))
            return made
        kept: Counter[LooseReason] = Counter()
        for one in found:
            if one.why in MOVED and is_named:
                message = insert_at_mark(_MESSAGES[one.why], "{name}", one.path)
                path = store.root / one.path
                made.changes.append(move_to_trash(store, path, "trash-file", kb.FILE_ORPHAN, message, as_is=True))
            else:
                kept[one.why] += 1
    for why, count in kept.items():
        severity: Severity = "warning" if why in (LooseReason.UNSURE, *MOVED) else "note"
        reason = insert_at_mark(_KEPT[why], "{files}", format_count(count, "file"))
        made.left.append(Unresolved(finding=kb.FILE_ORPHAN, reason=reason, count=count, severity=severity))
    if made.changes and not kept:
        made.resolves.add((kb.FILE_ORPHAN, None))
    return made


# --- reconcile --------------------------------------------------------------------------------------------------------

#: Findings that ``reconcile`` resolves.
RECONCILE_FINDINGS = (kb.SNAPSHOT, kb.FULL_TEXT)
#: Findings that another command resolves.
_OF_OTHERS = (kb.FILE_ORPHAN,)


def plan_reconcile(store: Store, options: ReconcileOptions) -> Plan:
    """Plan which caches to move to the trash, and report what only rsclaw can fix.

    Raises:
        WrongUsage: the database is not in its own folder.
        RedbError: the database is in use, or its format is unknown.
        OSError: a folder cannot be read.
    """
    demand_own_folder(store)
    made = Plan(read={store.found.path.name: file_stamp(store.found.path)})
    planners = {kb.SNAPSHOT: _plan_snapshot, kb.FULL_TEXT: _plan_full_text}
    outdated: set[str] = set()
    unrepairable: list[Finding] = []
    others: list[Finding] = []
    for finding in store.findings():
        if finding.name in planners:
            if options.wants(finding.name):
                if finding.is_beyond_repair:
                    unrepairable.append(finding)
                else:
                    outdated.add(finding.name)
        elif finding.name not in _OF_OTHERS and notices.is_at_least(finding.severity, "warning"):
            others.append(finding)
    for name, plan_moves in planners.items():
        if name in outdated:
            made.changes += plan_moves(store)
    made.resolves = {(name, None) for name in outdated.difference(one.name for one in unrepairable)}
    made.left = [Unresolved.of(one, one.message) for one in unrepairable]
    if not options.only:
        made.left += [Unresolved.with_remedy(one) for one in others]
    return made


def _plan_snapshot(store: Store) -> Iterator[FileChange]:
    """Plan to move the snapshot of the vector index to the trash; rsclaw builds a new one."""
    for path in snapshot_files(store.root):
        name = path.relative_to(store.root).as_posix()
        message = tr("move {name} of the vector index to the trash", name=name)
        yield move_to_trash(store, path, "trash-file", kb.SNAPSHOT, message, as_is=True, is_cache=True)


def _plan_full_text(store: Store) -> Iterator[FileChange]:
    """Plan to move the full-text index to the trash; rsclaw builds a new one."""
    if has_full_text(store.root):
        message = tr("move the full-text index {name} to the trash", name=FULL_TEXT)
        yield move_to_trash(
            store, store.root / FULL_TEXT, "trash-folder", kb.FULL_TEXT, message, as_is=True, is_cache=True
        )


REPAIRS = Repairs(reconcile=plan_reconcile, reconciled=RECONCILE_FINDINGS, gc=plan_gc, collected=GC_FINDINGS)
