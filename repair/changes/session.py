"""Frame of a run that changes a store: lock the store, recover from a killed run, and end the run cleanly.

Rules: ``docs/formats/library.md``, "Changes".
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import apsw
import msgspec

from regraft.disk import file_paths, sqlite
from regraft.errors import (
    REFUSED,
    ChangesStopped,
    LedgerUnreadable,
    RegraftError,
    SourceUnreadable,
    StoppedAtDamage,
    StoreDamaged,
    StoreNotWritable,
)
from regraft.language import tr
from regraft.ledger.ledger import Ledger
from regraft.ledger.run_frame import lock_store, record_end
from regraft.ledger.values import WORK
from regraft.report.document import Run
from regraft.text import path_text, printable
from repair.changes import execution
from repair.changes.plan import Action
from repair.changes.store import Store, demand_not_running

#: Errors that mean a path is of the wrong type: a pipe, file or circular link in place of a folder, or the reverse.
_WRONG_FILE_TYPE = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG})


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A store that this run has locked, and its ledger."""

    store: Store
    ledger: Ledger

    def begin(self, run: Run, actions: Sequence[Action]) -> None:
        """Record that a run starts to change the store, and its planned actions."""
        self.ledger.begin_run(run.command, path_text(self.store.path), run.id)
        self.ledger.changes.record_actions(run.id, actions)


@contextmanager
def open_session(store: Store, again: Callable[[], AbstractContextManager[Store]] | None = None) -> Iterator[Session]:
    """Lock a store and recover from a killed run. At the end every file is complete and the run is recorded as ended.

    Args:
        store: the store to change.
        again: opens the store again if a killed run had to be recovered.

    Raises:
        ApplicationOpen, TargetLocked, StoreNotWritable: the store cannot be changed now.
        ChangesStopped, StoppedAtDamage, StoreDamaged, Interrupted: the run was stopped.
    """
    demand_not_running(store)
    with open_ledger(store) as ledger, _clean_stop(store, ledger), ExitStack() as stack:
        if execution.recover(store.root, ledger) and again is not None:
            store = stack.enter_context(again())
        yield Session(store=store, ledger=ledger)
        ledger.end_run("finished")


@contextmanager
def reading_store(store: Store) -> Iterator[None]:
    """Convert errors of reading the store into SourceUnreadable; for code that runs before anything is written.

    Errors of regraft, and those of writing to a temporary file (such as a full disk), are raised unchanged.
    """
    try:
        yield
    except RegraftError:
        raise
    except (OSError, apsw.Error, UnicodeDecodeError) as error:
        if sqlite.is_write_failure(error):
            raise
        raise SourceUnreadable(path=store.path, reason=getattr(error, "strerror", None) or error) from error


@contextmanager
def open_ledger(store: Store) -> Iterator[Ledger]:
    """Open the store's ledger, which locks out other runs. A new ledger is removed again if the run changes nothing.

    Raises:
        TargetLocked: another run has it open.
        StoreNotWritable
    """

    def not_writable(reason: object) -> RegraftError:
        """Make the error for a store whose ledger cannot be written."""
        return StoreNotWritable(path=store.root, reason=reason)

    with lock_store(
        store.root, store.own_folder, not_writable=not_writable, is_unused=lambda ledger: _is_unused(store, ledger)
    ) as ledger:
        yield ledger


def _is_unused(store: Store, ledger: Ledger) -> bool:
    """Whether the ledger has no changes and no paid vectors are pending. False if it cannot be read."""
    try:
        made = any(change.state != "dropped" for change in ledger.changes.every())
    except (apsw.Error, LedgerUnreadable):
        return False
    return not made and not execution.has_pending_vectors(store.own_folder)


def recover_if_interrupted(store: Store, *, is_open: bool = False) -> None:
    """Recover from a killed run now, because the requested command may be refused before it would do so.

    ``is_open``: a change is known to be open. By default, the work folder tells whether a run was killed.

    Raises:
        TargetLocked, StoreNotWritable, ApplicationOpen
    """
    if is_open or (store.own_folder / WORK).exists():
        demand_not_running(store)
        with open_ledger(store) as ledger:
            execution.recover(store.root, ledger)


def _reason(error: Exception) -> str:
    """Describe an error; for an OSError with the file's name, if known."""
    if not isinstance(error, OSError):
        return str(error)
    reason = error.strerror or str(error)
    if error.filename is None:
        return reason
    return f"{printable(file_paths.plain_path(os.fsdecode(error.filename)))}: {reason}"


@contextmanager
def _clean_stop(store: Store, ledger: Ledger) -> Iterator[None]:
    """Context that recovers and ends the run if an error stops it.

    A refusal after the first change is reported as a stopped run.
    """
    before = {change.change_id: change.state for change in ledger.changes.every()}

    def clear_work_folder() -> None:
        """Remove the work folder, unless the next run needs it to complete or revert a change that is still open."""
        if not ledger.changes.open_changes():
            execution.clear_work_folder(store.root)

    def count_finished() -> int | str:
        """Count the changes that the run made or undid; a text that says "unknown" if the ledger cannot be read."""
        with contextlib.suppress(OSError, apsw.Error, RegraftError):
            return sum(_is_finished(before.get(one.change_id), one.state) for one in ledger.changes.every())
        # The ledger cannot be read, so do not claim that nothing was written.
        return _UNKNOWN

    settle = (lambda: execution.recover(store.root, ledger), clear_work_folder)
    with record_end(ledger, settle, count_finished, partial(_as_stopped, store)):
        yield


def _as_stopped(store: Store, error: Exception, finished: int | str) -> Exception:
    """Return the error that tells how a run on a store was stopped by an error, after ``finished`` changes."""
    if isinstance(error, RegraftError):
        if finished and error.exit_status == REFUSED:
            return ChangesStopped(path=store.root, reason=str(error).rstrip("."), finished=finished)
        return error
    if not isinstance(error, OSError | apsw.Error | UnicodeDecodeError):
        return error
    if is_store_damage(error):
        stays = tr("changes made: {finished}", finished=finished) if finished else None
        return damage_error(store.root, _reason(error), stays)
    is_read_only = isinstance(error, apsw.ReadOnlyError) or getattr(error, "errno", None) == errno.EROFS
    if is_read_only and not finished:
        return StoreNotWritable(path=store.root, reason=tr("it is read-only"))
    return ChangesStopped(path=store.root, reason=_reason(error), finished=finished)


#: Reported instead of the number of changes if the ledger cannot be read any more.
_UNKNOWN = "unknown"


def damage_error(path: Path, reason: object, finished: str | None) -> RegraftError:
    """Make the error for damage that stops a run; ``finished`` describes the changes that were made, or None."""
    if finished is None:
        return StoreDamaged(path=path, reason=reason)
    return StoppedAtDamage(path=path, reason=reason, finished=finished)


def is_store_damage(error: Exception) -> bool:
    """Whether an error is caused by the store's content, so that a retry would fail in the same way."""
    if isinstance(error, OSError):
        return error.errno in _WRONG_FILE_TYPE
    return isinstance(error, (*sqlite.CONTENT_ERRORS, UnicodeDecodeError))


def _is_finished(before: str | None, now: str) -> bool:
    """Whether a run made or undid a change.

    ``before`` is the state of the change before the run (None: a new change), ``now`` the present one.
    """
    return (before is None and now == "done") or (before == "done" and now == "undone")
