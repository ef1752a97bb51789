"""Changes of a knowledge base of rsclaw: files and caches, never the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from checks.rsclaw import findings as kb
from checks.rsclaw.files import (
    MOVED,
    LooseFile,
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
from repair.changes.plan import FileChange, Plan, Unresolved, move_to_trash
from repair.changes.store import Store
from repair.options import GcOptions, ReconcileOptions
from repair.systems import Repairs

# What holds for every change of a KB: it is the application's own folder, and its database can be read.


def demand_own_folder(store: Store) -> None:
    """Refuse a database under another name: the files beside it are those of ``kb.redb``, or of nobody.

    Raises:
        WrongUsage
    """
    if store.found.path.name != FILE:
        problem = tr(
            "{name} is not called {file}: whose files lie beside it is not known", name=store.found.path.name, file=FILE
        )
        raise WrongUsage(problem=problem, hint=tr("give the folder of the knowledge base"))


# The plan of ``regraft gc`` for rsclaw: files that its own compactor would delete, and fewer than it would.
#
# Such a file holds a text that could be added again: it is moved only where the finding is named. Rules:
# ``docs/rsclaw.md``, "Garbage".


#: Findings that this removes what they are about.
GC_FINDINGS = (kb.FILE_ORPHAN,)
_MESSAGES = {
    LooseReason.ORPHAN: tr("move {name}, which no document and no ledger entry names, to the trash"),
    LooseReason.REPLACED: tr("move {name}, which was replaced, to the trash"),
}
_KEPT = {
    **dict.fromkeys(
        MOVED,
        tr("{files} that nothing names, kept because a text can be added again; --only kb.file-orphan removes such"),
    ),
    LooseReason.UNSURE: tr(
        "{files} of no document, as most are, or all: the database may be new, or older than the files"
    ),
    LooseReason.YOUNG: tr("{files} younger than an hour: a document may be about to be added"),
    LooseReason.SETTLED: tr("{files} that a settled ledger entry still names: rsclaw itself decides"),
    LooseReason.SPELLING: tr("{files} named in another letter case or form of characters: rsclaw itself decides"),
    LooseReason.ODD: tr("{files} that are links or no plain files, or with names that are no text"),
}


def plan_gc(store: Store, options: GcOptions) -> Plan:
    """Return what is going to be removed; nothing is written.

    Raises:
        WrongUsage: an option is meant that says nothing here, or the database is not the folder's own.
        RedbError: the database is in use, or cannot be read.
        LedgerUnreadable
    """
    for option, is_given in (("--vacuum", options.vacuum), ("--v1-leftovers", options.v1_leftovers)):
        if is_given:
            raise WrongUsage(
                problem=tr("{option} for a knowledge base of rsclaw", option=option), hint=tr("it is for v2 data")
            )
    demand_own_folder(store)
    made = _plan_files(store, is_named=kb.FILE_ORPHAN in options.only) if options.wants(kb.FILE_ORPHAN) else Plan()
    return undo.add_expired_runs(made, store, options)


def _plan_files(store: Store, *, is_named: bool) -> Plan:
    path, made = store.found.path, Plan()
    made.read[path.name] = file_stamp(path)
    with database.mirrored(path, (database.DOCS, database.LEDGER)) as mirror:
        list_files(mirror, store.root)
        found = find_loose_files(mirror.db, store.now_ms)
        if not mirror.is_whole(database.DOCS, database.LEDGER):
            made.left += _uncertain(found)
            return made
        kept: Counter[LooseReason] = Counter()
        for one in found:
            if one.why in MOVED and is_named:
                made.changes.append(_moved(store, one))
            else:
                kept[one.why] += 1
    made.left += (_left(why, count) for why, count in kept.items())
    if made.changes and not kept:
        made.resolves.add((kb.FILE_ORPHAN, None))
    return made


def _moved(store: Store, one: LooseFile) -> FileChange:
    message = insert_at_mark(_MESSAGES[one.why], "{name}", one.path)
    return move_to_trash(store, store.root / one.path, "trash-file", kb.FILE_ORPHAN, message, as_is=True)


def _left(why: LooseReason, count: int) -> Unresolved:
    severity: Severity = "warning" if why in (LooseReason.UNSURE, *MOVED) else "note"
    reason = insert_at_mark(_KEPT[why], "{files}", format_count(count, "file"))
    return Unresolved(finding=kb.FILE_ORPHAN, reason=reason, count=count, severity=severity)


def _uncertain(found: Iterator[LooseFile]) -> Iterator[Unresolved]:
    """Yield that nothing is moved where rows are lost: one of them may have named any file."""
    count = sum(1 for _ in found)
    if count:
        files = format_count(count, "file")
        reason = tr("{files} of no document that can be read: rows are lost that may name them", files=files)
        yield Unresolved(finding=kb.FILE_ORPHAN, reason=reason, count=count)


# The plan of ``regraft reconcile`` for rsclaw: caches that are out of step are set aside, and made anew by rsclaw.
#
# Rules: ``docs/rsclaw.md``, "Reconcile".


#: Findings that are resolved.
RECONCILE_FINDINGS = (kb.SNAPSHOT, kb.FULL_TEXT)
#: Findings that another command of regraft's is for.
_OF_OTHERS = (kb.FILE_ORPHAN,)


def plan_reconcile(store: Store, options: ReconcileOptions) -> Plan:
    """Return what is going to be set aside, and what only rsclaw itself can mend; nothing is written.

    Raises:
        WrongUsage: the database is not the folder's own.
        RedbError: it is in use, or of a format that is not known.
        OSError: a folder cannot be read.
    """
    demand_own_folder(store)
    made = Plan(read={store.found.path.name: file_stamp(store.found.path)})
    findings = store.findings()
    every = {kb.SNAPSHOT: _snapshot, kb.FULL_TEXT: _full_text}
    changes = {name: changed for name, changed in every.items() if options.wants(name)}
    stale = {one.name for one in findings if one.name in changes and not one.is_beyond_repair}
    beyond = [one for one in findings if one.name in changes and one.is_beyond_repair]
    for name, changed in changes.items():
        if name in stale:
            made.changes += changed(store)
    made.resolves |= {(name, None) for name in stale - {one.name for one in beyond}}
    others = (one for one in findings if one.name not in (*every, *_OF_OTHERS) and not options.only)
    made.left += (Unresolved.of(one, one.message) for one in beyond)
    made.left += (Unresolved.with_remedy(one) for one in others if notices.at_least(one.severity, "warning"))
    return made


def _snapshot(store: Store) -> Iterator[FileChange]:
    for path in snapshot_files(store.root):
        name = path.relative_to(store.root).as_posix()
        message = tr("move {name}, of the vector index, to the trash", name=name)
        yield move_to_trash(store, path, "trash-file", kb.SNAPSHOT, message, as_is=True, is_cache=True)


def _full_text(store: Store) -> Iterator[FileChange]:
    if has_full_text(store.root):
        message = tr("move {name}, the full-text index, to the trash", name=FULL_TEXT)
        yield move_to_trash(
            store, store.root / FULL_TEXT, "trash-folder", kb.FULL_TEXT, message, as_is=True, is_cache=True
        )


REPAIRS = Repairs(reconcile=plan_reconcile, reconciled=RECONCILE_FINDINGS, gc=plan_gc, collected=GC_FINDINGS)
