"""The plan of ``regraft gc`` for rsclaw: files that its own compactor would delete, and fewer than it would.

Such a file holds a text that could be added again: it is moved only where the finding is named. Rules:
``docs/rsclaw.md``, "Garbage".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from checks.rsclaw import findings as kb
from checks.rsclaw.files import MOVED, Loose, Why, listed, loose
from regraft.errors import WrongUsage
from regraft.formats.rsclaw import database, rows
from regraft.language import put_in, tr
from regraft.report.notices import Severity
from regraft.text import counted
from repair.changes import expiry
from repair.changes.files import stamp_of
from repair.changes.plan import FileChange, Plan, Unresolved
from repair.changes.store import Store
from repair.changes.trash import trashed
from repair.options import GcOptions
from repair.rsclaw import own_folder

#: Findings that this removes what they are about.
NAMES = (kb.FILE_ORPHAN,)
_MESSAGES = {
    Why.ORPHAN: tr("move {name}, which no document and no ledger entry names, to the trash"),
    Why.REPLACED: tr("move {name}, which was replaced, to the trash"),
}
_KEPT = {
    **dict.fromkeys(
        MOVED,
        tr("{files} that nothing names, kept because a text can be added again; --only kb.file-orphan removes such"),
    ),
    Why.UNSURE: tr("{files} of no document, as most are, or all: the database may be new, or older than the files"),
    Why.YOUNG: tr("{files} younger than an hour: a document may be about to be added"),
    Why.SETTLED: tr("{files} that a settled ledger entry still names: rsclaw itself decides"),
    Why.SPELLING: tr("{files} named in another letter case or form of characters: rsclaw itself decides"),
    Why.ODD: tr("{files} that are links or no plain files, or with names that are no text"),
}


def plan(store: Store, options: GcOptions) -> Plan:
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
    own_folder.demand(store)
    made = _plan_files(store, is_named=kb.FILE_ORPHAN in options.only) if options.wants(kb.FILE_ORPHAN) else Plan()
    return expiry.beside(made, store, options)


def _plan_files(store: Store, *, is_named: bool) -> Plan:
    path, made = store.found.path, Plan()
    made.read[path.name] = stamp_of(path)
    with database.mirrored(path, (rows.DOCS, rows.LEDGER)) as mirror:
        listed(mirror, store.root)
        found = loose(mirror.db, store.now_ms)
        if not mirror.is_whole(rows.DOCS, rows.LEDGER):
            made.left += _uncertain(found)
            return made
        kept: Counter[Why] = Counter()
        for one in found:
            if one.why in MOVED and is_named:
                made.changes.append(_moved(store, one))
            else:
                kept[one.why] += 1
    made.left += (_left(why, count) for why, count in kept.items())
    if made.changes and not kept:
        made.resolves.add((kb.FILE_ORPHAN, None))
    return made


def _moved(store: Store, one: Loose) -> FileChange:
    message = put_in(_MESSAGES[one.why], "{name}", one.path)
    return trashed(store, store.root / one.path, "trash-file", kb.FILE_ORPHAN, message, as_is=True)


def _left(why: Why, count: int) -> Unresolved:
    severity: Severity = "warning" if why in (Why.UNSURE, *MOVED) else "note"
    reason = put_in(_KEPT[why], "{files}", counted(count, "file"))
    return Unresolved(finding=kb.FILE_ORPHAN, reason=reason, count=count, severity=severity)


def _uncertain(found: Iterator[Loose]) -> Iterator[Unresolved]:
    """Yield that nothing is moved where rows are lost: one of them may have named any file."""
    count = sum(1 for _ in found)
    if count:
        files = counted(count, "file")
        reason = tr("{files} of no document that can be read: rows are lost that may name them", files=files)
        yield Unresolved(finding=kb.FILE_ORPHAN, reason=reason, count=count)
