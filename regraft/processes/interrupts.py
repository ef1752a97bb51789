"""What asks a run to stop, Ctrl-C and the signals of a system that ends programs, and where it must not come midway.

All of them end a run in the same way, with KeyboardInterrupt: what was finished stays whole, what was begun is thrown
away, and the exit status is 130 (``docs/commands.md``).
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: Ctrl-C, what a system or a supervisor sends, a terminal that is closed, and Ctrl-Break and closed windows on Windows.
STOP_SIGNALS = tuple(
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if name in signal.Signals.__members__
)
#: How long to wait until a stop is raised again that came where nothing can be raised, in seconds.
_AGAIN_SECONDS = 0.05


class _State:
    """What is known of this process; ``held`` is how many callers hold stops back."""

    is_installed = False
    is_stopping = False
    held = 0
    #: The one that was held back, and the latest one.
    came: int | None = None
    latest: int = signal.SIGINT


def install_handlers() -> None:
    """Let every signal of :data:`STOPS` end this process as Ctrl-C does; one that it ignores stays ignored (nohup).

    The first one counts. Those that follow it, as a terminal or ``timeout`` sends them, do not disturb cleaning up.
    """
    _State.is_installed = True
    for number in STOP_SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _stop)
    sys.unraisablehook = _swallowed


def ignore_stops() -> None:
    """Let nothing stop this process any more where :func:`install` was called: what is left is to end."""
    if _State.is_installed:
        _State.is_stopping = True
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is _stop:
                signal.signal(number, signal.SIG_IGN)


def is_caused_by_stop(error: BaseException) -> bool:
    """Tell whether an error came of a stop: of cleaning up after one, or of being torn by it."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen is not None


@contextmanager
def defer_stops() -> Iterator[None]:
    """Let stops wait for the end of what must not be torn, such as a transaction and the note that it was made.

    Python raises KeyboardInterrupt in the main thread between any two steps, also right after a commit. Where another
    program has its own way with a signal, or in another thread, this does nothing.
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
    """Keep stops from this process, and from those that are started meanwhile where the system can; they come after."""
    # A blocked signal stays blocked in what is started now, from its first moment on; but a library's own threads do
    # not block it, and it would reach this one through them.
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
    _State.latest = number
    if _State.held:
        _State.came = number
    elif not _State.is_stopping:
        _State.is_stopping = _State.is_installed
        raise KeyboardInterrupt


def _swallowed(unraisable: sys.UnraisableHookArgs) -> None:
    """Raise a stop again that came while an object was finalised, where Python can only print it."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _State.is_stopping = False
        again = threading.Timer(_AGAIN_SECONDS, _send, (_State.latest,))
        again.daemon = True
        again.start()
    elif not _State.is_stopping:
        sys.__unraisablehook__(unraisable)
    # What a stop tore may complain when it is thrown away: a writer whose file is closed before it.


def _send(number: int) -> None:
    """Send a signal to the main thread, also where it waits for something."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        _thread.interrupt_main(signal.Signals(number))
