"""The frame around a run that changes a store: it keeps others out, settles what a killed run left, and ends the run.

Rules: ``docs/formats/library.md``, "Changes".
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import apsw
import msgspec

from regraft.disk import durable, sqlite
from regraft.errors import (
    REFUSED,
    ChangesStopped,
    Interrupted,
    LedgerUnreadable,
    RegraftError,
    SourceUnreadable,
    StoppedAtDamage,
    StoreDamaged,
    StoreNotWritable,
    TargetLocked,
)
from regraft.language import tr
from regraft.ledger import ledger as ledgers
from regraft.ledger.ledger import Ledger
from regraft.ledger.values import WORK
from regraft.report.document import Run
from regraft.text import path_text, printable
from repair.changes import execution
from repair.changes.plan import Action
from repair.changes.store import Store, demand_not_running

#: What fails where a pipe, a file or a link in a circle stands in the place of a folder, or a folder in that of a file.
_ODD_PLACES = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG})


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A store that no other run changes meanwhile, and its ledger."""

    store: Store
    ledger: Ledger

    def begin(self, run: Run, actions: Sequence[Action]) -> None:
        """Record that a run begins to change the store, and what it is going to do."""
        self.ledger.begin_run(run.command, path_text(self.store.path), run.id)
        self.ledger.changes.record_actions(run.id, actions)


@contextmanager
def open_session(store: Store, again: Callable[[], AbstractContextManager[Store]] | None = None) -> Iterator[Session]:
    """Change a store alone: every file is whole afterwards, and the run that was begun has ended.

    Args:
        store: what is changed.
        again: recognises it once more, where what a killed run left had to be settled.

    Raises:
        ApplicationOpen, TargetLocked, StoreNotWritable: it cannot be changed now.
        ChangesStopped, StoppedAtDamage, StoreDamaged, Interrupted: what was being done was stopped.
    """
    demand_not_running(store)
    with open_ledger(store) as ledger, _clean_stop(store, ledger), ExitStack() as stack:
        if execution.recover(store.root, ledger) and again is not None:
            store = stack.enter_context(again())
        yield Session(store=store, ledger=ledger)
        ledger.end_run("finished")


@contextmanager
def reading_store(store: Store) -> Iterator[None]:
    """Report what cannot be looked at before anything is written."""
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
    """Open the store's ledger, which keeps every other run out; what was made for it goes again if nothing is in it.

    Raises:
        TargetLocked: another run has it.
        StoreNotWritable
    """
    # The folder may be there without a ledger: the ledger alone is made then.
    new = next((path for path in (store.own, ledgers.ledger_path(store.root)) if not os.path.lexists(path)), None)
    unused = new
    try:
        with contextlib.ExitStack() as stack:
            try:
                durable.make_folders(store.own)
                ledger = stack.enter_context(ledgers.open_exclusive(store.root))
            except RegraftError:
                raise
            except (OSError, apsw.Error) as error:
                reason = getattr(error, "strerror", None) or error
                raise StoreNotWritable(path=store.root, reason=reason) from error
            # From now on it may hold what takes a run back: whatever comes, it goes only after it was looked at.
            unused = None
            try:
                yield ledger
            finally:
                # A run that was stopped before it changed anything leaves nothing, as one that was refused.
                if _says_nothing(store, ledger):
                    unused = new
    except TargetLocked:
        unused = None
        raise
    finally:
        if unused is not None:
            with contextlib.suppress(OSError, RegraftError):
                durable.remove_tree(unused)


def _says_nothing(store: Store, ledger: Ledger) -> bool:
    """Tell whether a ledger has nothing to take back, and nothing waits; one that cannot be read just now may have."""
    try:
        made = any(change.state != "dropped" for change in ledger.changes.every())
    except (apsw.Error, LedgerUnreadable):
        return False
    return not made and not execution.has_pending_vectors(store.own)


def recover_if_interrupted(store: Store) -> None:
    """Settle what a killed run was making, where the run that is asked for may be refused before it would do so.

    Raises:
        TargetLocked, StoreNotWritable, ApplicationOpen
    """
    if (store.own / WORK).exists():
        demand_not_running(store)
        with open_ledger(store) as ledger:
            execution.recover(store.root, ledger)


def _reason(error: Exception) -> str:
    """Return what an error says; of the system's, of which file, too, where it tells."""
    if not isinstance(error, OSError):
        return str(error)
    reason = error.strerror or str(error)
    return reason if error.filename is None else f"{printable(os.fsdecode(error.filename))}: {reason}"


@contextmanager
def _clean_stop(store: Store, ledger: Ledger) -> Iterator[None]:
    """Leave every file whole, whatever stops the run; what is refused once something was changed was stopped."""
    before = {change.change_id: change.state for change in ledger.changes.every()}
    leave = partial(_leave_whole, store, ledger, before)
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(finished=leave("interrupted")) from error
    except RegraftError as error:
        finished = leave("stopped")
        if finished and error.exit_status == REFUSED:
            raise ChangesStopped(path=store.root, reason=str(error).rstrip("."), finished=finished) from error
        raise
    except (OSError, apsw.Error, UnicodeDecodeError) as error:
        reason, finished = _reason(error), leave("stopped")
        if is_store_damage(error):
            stays = tr("changes: {finished}", finished=finished) if finished else None
            raise damage_error(store.root, reason, stays) from error
        is_read_only = isinstance(error, apsw.ReadOnlyError) or getattr(error, "errno", None) == errno.EROFS
        if is_read_only and not finished:
            raise StoreNotWritable(path=store.root, reason=tr("it is read-only")) from error
        raise ChangesStopped(path=store.root, reason=reason, finished=finished) from error
    except Exception:
        leave("stopped")
        raise


#: How many changes were made, where the ledger cannot be read any more.
_UNKNOWN = "unknown"


def _leave_whole(store: Store, ledger: Ledger, before: Mapping[int, str], status: str) -> int | str:
    """End a run that was stopped; return how many changes it made, as far as that can be told."""
    with contextlib.suppress(OSError, apsw.Error, RegraftError):
        execution.recover(store.root, ledger)
    with contextlib.suppress(OSError, apsw.Error, RegraftError):
        # What is being made tells the next run how far an unsettled change has come.
        if not ledger.changes.open_changes():
            execution.clear_work_folder(store.root)
    with contextlib.suppress(OSError, apsw.Error, RegraftError):
        ledger.end_run(status)
        return sum(_is_finished(before.get(one.change_id), one.state) for one in ledger.changes.every())
    # The disk does not even give the ledger: nobody may be told that nothing was written.
    return _UNKNOWN


def damage_error(path: Path, reason: object, finished: str | None) -> RegraftError:
    """Return what is said where damage stops a run; ``finished`` is what stays of it, None where nothing does."""
    if finished is None:
        return StoreDamaged(path=path, reason=reason)
    return StoppedAtDamage(path=path, reason=reason, finished=finished)


def is_store_damage(error: Exception) -> bool:
    """Tell whether an error comes of what is in a store, and not of the system: the next try would come to the same."""
    if isinstance(error, OSError):
        return error.errno in _ODD_PLACES
    return isinstance(error, (*sqlite.CONTENT_ERRORS, UnicodeDecodeError))


def _is_finished(before: str | None, now: str) -> bool:
    """Tell whether a change was made, or taken back, since it was in state ``before``."""
    return (before is None and now == "done") or (before == "done" and now == "undone")
