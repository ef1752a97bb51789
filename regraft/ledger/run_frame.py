"""The frame of a run that writes to a store: lock the store, and record how the run ends, however it ends.

Migrations (``migrators/pipeline/session.py``) and changes (``repair/changes/session.py``) run inside of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import apsw

from regraft.disk import durable
from regraft.errors import Interrupted, RegraftError, TargetLocked
from regraft.ledger.ledger import Ledger, ledger_path, open_exclusive

Count = TypeVar("Count", int, int | str)


@contextmanager
def lock_store(
    root: Path, own: Path, *, not_writable: Callable[[object], RegraftError], is_unused: Callable[[Ledger], bool]
) -> Iterator[Ledger]:
    """Open the ledger of a store, which locks out other runs; create it and the folders above it if necessary.

    Args:
        root: the store.
        own: its folder for the ledger.
        not_writable: makes the error to raise for the reason why the ledger cannot be created or opened.
        is_unused: called at the end; if it returns True, and no base was published, the created folders and ledger
            are removed.

    Raises:
        TargetLocked: another run has it open.
        LedgerUnreadable: it is damaged, or of a later regraft.
    """
    own, ledger_file = own.absolute(), ledger_path(root.absolute())
    unused = made = _find_topmost_missing((ledger_file, own, *own.parents))
    try:
        with ExitStack() as stack:
            try:
                durable.make_folders(own)
                ledger = stack.enter_context(open_exclusive(root))
            except RegraftError:
                raise
            except (OSError, apsw.Error) as error:
                raise not_writable(getattr(error, "strerror", None) or error) from error
            # From here on the ledger may hold undo data, so it is only removed after reading it: another run may have
            # created it, and written the store, since the folders were looked for.
            unused = None
            try:
                yield ledger
            finally:
                with suppress(OSError, apsw.Error, RegraftError):
                    if made is not None and is_unused(ledger) and not ledger.entries():
                        unused = made
    except TargetLocked:
        # The files are in use.
        unused = None
        raise
    finally:
        if unused is not None:
            with suppress(OSError, RegraftError):
                durable.remove_made_folders(ledger_file if unused == ledger_file else own, unused)


def _find_topmost_missing(paths: Iterable[Path]) -> Path | None:
    """Return the last path before the first one that exists, from a file upwards; None: the file exists."""
    missing = None
    for path in paths:
        if os.path.lexists(path):
            break
        missing = path
    return missing


@contextmanager
def record_end(
    ledger: Ledger,
    settle: Sequence[Callable[[], object]],
    count_finished: Callable[[], Count],
    as_stopped: Callable[[Exception, Count], Exception],
) -> Iterator[None]:
    """Context for the work of a run: if an error stops it, undo or complete what is half done, and record the end.

    Args:
        ledger: the open ledger, in which the run is recorded.
        settle: functions that complete or revert open steps, called in this order. The next run repeats what fails.
        count_finished: returns how many parts of the run are finished, after that.
        as_stopped: returns the error to raise for an error and this number; may return the error itself.

    Raises:
        Interrupted: after KeyboardInterrupt.
    """

    def end(status: str) -> Count:
        """Settle the run, record its ``status``, and return how many parts are finished."""
        for step in settle:
            with suppress(OSError, apsw.Error, RegraftError):
                step()
        with suppress(OSError, apsw.Error, RegraftError):
            ledger.end_run(status)
        return count_finished()

    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(finished=end("interrupted")) from error
    except Exception as error:
        stopped = as_stopped(error, end("stopped"))
        if stopped is error:
            raise
        raise stopped from error
