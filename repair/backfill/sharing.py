"""Working on one store together with other backfills, and with nobody else.

Alone for a moment, a run settles what killed ones left; then it shares the ledger with others of its kind
(``docs/formats/library.md``, "Backfill").
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import apsw
import msgspec

from regraft import sqlite
from regraft.errors import RegraftError, StoreNotWritable, TargetLocked
from regraft.ledger import durable
from regraft.ledger import ledger as ledgers
from regraft.ledger.ledger import Ledger
from repair.backfill import queue
from repair.backfill.queue import Queue
from repair.changes import apply
from repair.changes.session import opened
from repair.changes.store import Store

#: How long to wait for a run that is not to be shared with, in seconds: the moment of another backfill is over soon.
PATIENCE = 10.0
_PAUSE = 0.1
#: How often to try where the store cannot be written.
_TRIES = 5


class Shared(msgspec.Struct, frozen=True):
    """What several backfills share."""

    ledger: Ledger
    queue: Queue


@contextmanager
def shared(store: Store) -> Iterator[Shared]:
    """Work on a store, together with other backfills.

    Raises:
        TargetLocked: a run of another kind is at work.
        StoreNotWritable
    """
    is_new = not os.path.lexists(store.own)
    try:
        with ExitStack() as stack:
            ledger = _entered(store, stack)
            try:
                waiting = stack.enter_context(queue.opened(store.own / queue.FILE))
            except apsw.Error as error:
                raise StoreNotWritable(path=store.own, reason=error) from error
            yield Shared(ledger, waiting)
    finally:
        _tidy(store, is_new)


def _entered(store: Store, stack: ExitStack) -> Ledger:
    end, tries = time.monotonic() + PATIENCE, _TRIES
    while True:
        try:
            return _tried(store, stack)
        except TargetLocked:
            if time.monotonic() > end:
                raise
        except StoreNotWritable:
            # Another one may just have removed the folder that it had made for nothing.
            tries -= 1
            if not tries:
                raise
        time.sleep(_PAUSE)


def _tried(store: Store, stack: ExitStack) -> Ledger:
    with contextlib.suppress(TargetLocked):
        settle(store)
    try:
        durable.make_folders(store.own)
        return stack.enter_context(ledgers.shared(store.root))
    except RegraftError:
        raise
    except (OSError, apsw.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreNotWritable(path=store.root, reason=reason) from error


def settle(store: Store) -> None:
    """Settle what killed runs left, alone.

    Raises:
        TargetLocked: another run is at work.
    """
    if store.own.exists():
        with opened(store) as ledger:
            apply.recover(store.root, ledger)
            _take_back(store.own / queue.FILE)


def _take_back(path: Path) -> None:
    """Let all that is in a queue wait again; one that cannot be read is made anew."""
    if not path.exists():
        return
    try:
        with queue.opened(path) as waiting:
            waiting.take_back()
            waiting.retry_failed()
    except (queue.QueueUnreadable, apsw.NotADBError, apsw.CorruptError, apsw.SQLError):
        for file in (path, *sqlite.companions(path)):
            durable.remove(file)


def _tidy(store: Store, is_new: bool) -> None:
    """Remove a queue that says nothing, where nobody else is at work, and what was made for a run that did nothing."""
    path = store.own / queue.FILE
    with contextlib.suppress(RegraftError, OSError, apsw.Error):
        if not store.own.exists():
            return
        with opened(store) as ledger:
            with queue.opened(path) as waiting:
                says_nothing = waiting.says_nothing()
            if says_nothing:
                durable.remove(path)
            is_new = is_new and all(change.state == "dropped" for change in ledger.changes.every())
            if is_new and says_nothing and not apply.is_waiting(store.own):
                # Before anybody else can begin in it.
                durable.remove_tree(store.own)
