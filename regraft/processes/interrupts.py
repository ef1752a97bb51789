"""Stop a run on Ctrl-C and termination signals, except in sections that must not be interrupted.

Every stop raises KeyboardInterrupt: finished work stays, unfinished work is discarded, and the exit status is 130
(``docs/commands.md``).
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: Ctrl-C, termination by the system or a supervisor, a closed terminal; on Windows Ctrl-Break and closed windows.
STOP_SIGNALS = tuple(
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if name in signal.Signals.__members__
)
#: Seconds until a stop is raised again that came where no exception can be raised.
_AGAIN_SECONDS = 0.05
#: Whether the command has to end without Python's own shutdown, because a library would wait there forever.
is_shutdown_skipped = False


class _State:
    """The signal state of this process. ``held`` counts the nested contexts of :func:`defer_stops`."""

    is_installed = False
    is_stopping = False
    held = 0
    #: the deferred signal, and the last one received
    came: int | None = None
    latest: int = signal.SIGINT


def install_handlers() -> None:
    """Make every signal of :data:`STOP_SIGNALS` stop this process as Ctrl-C does; ignored signals stay ignored (nohup).

    Only the first one counts. Later ones, as a terminal or ``timeout`` sends them, do not interrupt the cleanup.
    """
    _State.is_installed = True
    for number in STOP_SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _stop)
    sys.unraisablehook = _handle_unraisable


def accept_stops() -> None:
    """Handle stops in this process, a child that was started with signals ignored, as a command does."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler)
    install_handlers()
    if hasattr(signal, "pthread_sigmask"):
        # A child starts with the signals blocked that its parent blocked while it started it.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def ignore_stops() -> None:
    """Ignore stops from now on, because the process is about to end.

    Does nothing if :func:`install_handlers` was not called.
    """
    if _State.is_installed:
        _State.is_stopping = True
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is _stop:
                signal.signal(number, signal.SIG_IGN)


def is_caused_by_stop(error: BaseException) -> bool:
    """Whether an exception was raised while handling a stop, or because of one."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen is not None


@contextmanager
def defer_stops() -> Iterator[None]:
    """Defer stops to the end of the context, for steps that belong together, such as a commit and the record of it.

    Python can raise KeyboardInterrupt between any two instructions of the main thread, also right after a commit. This
    does nothing in other threads, or if the program has installed its own signal handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, is_borrowed = _State.held, signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        _State.held = before + 1
        if is_borrowed:
            signal.signal(signal.SIGINT, _stop)
        yield
    finally:
        _State.held = before
        if is_borrowed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        came = _State.came
        if came is not None and not before:
            _State.came = None
            _stop(came, None)


@contextmanager
def block_stops() -> Iterator[None]:
    """Defer stops as :func:`defer_stops` does, also in the processes that are started within the context.

    These have the signals of stops blocked from their start, if the system supports it.
    """
    # A child inherits blocked signals from its first moment. Threads of libraries do not block them, however, so this
    # process could still receive one through them: hence the deferral.
    with defer_stops():
        if not hasattr(signal, "pthread_sigmask"):
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop(number: int, _: FrameType | None) -> None:
    """Handle a stop signal: raise KeyboardInterrupt for the first one, or note the signal while stops are deferred."""
    _State.latest = number
    if _State.held:
        _State.came = number
    elif not _State.is_stopping:
        _State.is_stopping = _State.is_installed
        raise KeyboardInterrupt


def _handle_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Handle an exception of a finalizer, which Python can only print; send a stop among them again, a bit later."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _State.is_stopping = False
        again = threading.Timer(_AGAIN_SECONDS, stop_main_thread, (_State.latest,))
        again.daemon = True
        again.start()
    elif not _State.is_stopping:
        sys.__unraisablehook__(unraisable)
    # Ignore errors of finalizers after a stop, such as a writer whose file is closed before it.


def stop_main_thread(number: int = signal.SIGINT) -> None:
    """Send a signal to the main thread of this process, also while it blocks."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        # Unlike _thread.interrupt_main, this ends a sleep of the main thread on Windows.
        signal.raise_signal(signal.Signals(number))
