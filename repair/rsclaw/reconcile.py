"""The plan of ``regraft reconcile`` for rsclaw: caches that are out of step are set aside, and made anew by rsclaw.

Rules: ``docs/rsclaw.md``, "Reconcile".
"""

from __future__ import annotations

from collections.abc import Iterator

from checks.rsclaw import findings as kb
from checks.rsclaw.caches import has_full_text, snapshot_files
from regraft.formats.rsclaw.database import FULL_TEXT
from regraft.language import tr
from regraft.report import notices
from repair.changes.files import stamp_of
from repair.changes.plan import FileChange, Plan, Unresolved
from repair.changes.store import Store
from repair.changes.trash import trashed
from repair.options import ReconcileOptions
from repair.rsclaw import own_folder

#: Findings that are resolved.
NAMES = (kb.SNAPSHOT, kb.FULL_TEXT)
#: Findings that another command of regraft's is for.
_OF_OTHERS = (kb.FILE_ORPHAN,)


def plan(store: Store, options: ReconcileOptions) -> Plan:
    """Return what is going to be set aside, and what only rsclaw itself can mend; nothing is written.

    Raises:
        WrongUsage: the database is not the folder's own.
        RedbError: it is in use, or of a format that is not known.
        OSError: a folder cannot be read.
    """
    own_folder.demand(store)
    made = Plan(read={store.found.path.name: stamp_of(store.found.path)})
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
        yield trashed(store, path, "trash-file", kb.SNAPSHOT, message, as_is=True, is_cache=True)


def _full_text(store: Store) -> Iterator[FileChange]:
    if has_full_text(store.root):
        message = tr("move {name}, the full-text index, to the trash", name=FULL_TEXT)
        yield trashed(store, store.root / FULL_TEXT, "trash-folder", kb.FULL_TEXT, message, as_is=True, is_cache=True)
