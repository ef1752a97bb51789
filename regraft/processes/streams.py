"""Standard input, output and error: closed, full or gone, they decide nothing about the work.

Nothing that is written to them raises an error. What could not be written is noticed, and told by the exit status at
the end (``docs/commands.md``, "Exit status"); a reader that has gone away is no loss.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import stat
import sys
from typing import TYPE_CHECKING, Any, TextIO

from regraft.language import tr

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_CLOSED = tr("it is closed")


class _Guarded(io.RawIOBase):
    """A stream of bytes that takes all that it is given; from its first failure on, that goes nowhere.

    ``raw`` is the stream itself, None where it is closed.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        #: Why nothing is written any more, None where all was.
        self.problem: str | None = None
        #: Whether that is a loss: not where the reader has gone away.
        self.is_loss = False

    def writable(self) -> bool:
        """Say that this can be written to."""
        return True

    def isatty(self) -> bool:
        """Tell whether a person watches."""
        return self._raw is not None and bool(self._raw.isatty())

    def fileno(self) -> int:
        """Return the number of the file."""
        if self._raw is None:
            raise io.UnsupportedOperation("fileno")
        return int(self._raw.fileno())

    def write(self, data: ReadableBuffer, /) -> int:
        """Write bytes, or let go of them; return how many were taken."""
        size = memoryview(data).nbytes
        if self.problem is not None:
            return size
        if self._raw is None:
            self.problem, self.is_loss = _CLOSED, True
            return size
        try:
            return self._written(data)
        except OSError as error:
            self.problem, self.is_loss = error.strerror or type(error).__name__, not self._is_reader_gone(error)
        return size

    def _is_reader_gone(self, error: OSError) -> bool:
        """Whether a write failed because the other end of a pipe is closed, for which Windows reports EINVAL."""
        if error.errno != errno.EINVAL:
            return isinstance(error, BrokenPipeError)
        try:
            return stat.S_ISFIFO(os.fstat(self.fileno()).st_mode)
        except OSError:
            return False

    def _written(self, data: ReadableBuffer) -> int:
        # None: a pipe that does not wait is full for now.
        while (count := self._raw.write(data)) is None:
            select.select([], [self._raw], [])
        return int(count)


def protect_streams() -> None:
    """Make standard output and error such that writing to them cannot fail, and see that no file takes their numbers.

    A name that their coding lacks is written as an escape.
    """
    with contextlib.suppress(OSError):
        _fill_closed()
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115 - the device, open to the end
    sys.stdout, sys.stderr = _guarded(sys.stdout), _guarded(sys.stderr)


def _fill_closed() -> None:
    """Give the numbers of closed streams to the null device: else the next file that is opened is written to as one."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null == number:
                os.set_inheritable(null, True)
            else:
                os.dup2(null, number)
                os.close(null)


def _guarded(stream: TextIO | None) -> TextIO:
    if stream is None:
        return io.TextIOWrapper(io.BufferedWriter(_Guarded(None)), "utf-8", "backslashreplace")
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    if not isinstance(stream, io.TextIOWrapper) or raw is None or isinstance(raw, _Guarded):
        return stream
    guarded = io.BufferedWriter(_Guarded(raw))
    return io.TextIOWrapper(guarded, stream.encoding, "backslashreplace", line_buffering=stream.line_buffering)


def find_lost_output(*, with_reader: bool = True) -> str | None:
    """Write what is left to be written; return why standard output is not whole, None where it is.

    A reader that has gone away misses nothing, unless somebody has to be there (``with_reader`` is False).
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.problem if isinstance(raw, _Guarded) and (raw.is_loss or not with_reader) else None
