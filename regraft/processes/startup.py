"""Start the processes that help to migrate a large base while the command line is still loading.

The decision uses only the command line and file sizes, and may be wrong: unused processes end with the command.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from regraft.language import tr
from regraft.processes import interpreters

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


#: From this size on, a vector file holds enough text for several processes to be faster than one.
LARGE_FILE_BYTES = 64 << 20
#: Folders of a source that hold vector files.
_FOLDERS = (Path("KnowledgeBase"), Path("Data", "KnowledgeBase"))
#: Maximum number of files examined in a folder.
_MOST_FILES = 1000
#: Modules that the processes will need.
_MODULES = ("regraft.processes.pool", "regraft.disk.trees", "regraft.formats.fts5.segment")


@contextmanager
def prestart_helpers(arguments: Sequence[str]) -> Iterator[None]:
    """Start processes for a pool if the command line will need them, and end the unused ones after the context.

    Args:
        arguments: the command and its arguments.
    """
    with ExitStack() as stack:
        is_migration = arguments[:1] == ["migrate"] and "--dry-run" not in arguments
        if is_migration and any(_has_large_vector_file(word) for word in arguments[1:]):
            # Not imported above because no other command line needs it.
            from regraft.processes import pool  # noqa: PLC0415

            # If none can be started, the code that needs one will find out why. In a removed working directory, this
            # process and the started ones would have to change to another one.
            with suppress(OSError):
                os.getcwd()  # noqa: PTH109 - asked as a process that is started asks
                if pool.can_use_pool():
                    stack.enter_context(pool.prestart_workers(pool.pool_size(), _MODULES))
        yield


def _has_large_vector_file(word: str) -> bool:
    """Whether a word of the command line is the path of a source with a large vector file."""
    for folder in _FOLDERS:
        with suppress(OSError, ValueError), os.scandir(Path(word) / folder) as entries:
            if any(entry.stat().st_size >= LARGE_FILE_BYTES for entry in islice(entries, _MOST_FILES)):
                return True
    return False


# Keep closed, full or broken standard streams from failing a command.
#
# Writing to them never raises an error. Lost output is remembered and reported by the exit status at the end
# (``docs/commands.md``, "Exit status"); if the reader of a pipe has ended, nothing is lost.


class _Guarded(io.RawIOBase):
    """A byte stream that accepts everything; after its first failure, output is discarded.

    ``raw`` is the underlying stream, None if it is closed.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        #: why output is discarded, None as long as it is not
        self.problem: str | None = None
        #: whether that loses output; not if the reader has ended
        self.is_loss = False

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._raw is not None and not self._raw.closed and bool(self._raw.isatty())

    def fileno(self) -> int:
        """Return the file descriptor."""
        if self._raw is None:
            raise io.UnsupportedOperation("fileno")
        return int(self._raw.fileno())

    def write(self, data: ReadableBuffer, /) -> int:
        """Write or discard bytes; return the number of bytes written or discarded."""
        size = memoryview(data).nbytes
        if self.problem is not None:
            return size
        if self._raw is None:
            self.problem, self.is_loss = tr("it is closed"), True
            return size
        try:
            return self._write(data)
        except OSError as error:
            is_reader_gone = isinstance(error, BrokenPipeError)
            if error.errno == errno.EINVAL:
                # Windows reports this if the other end of a pipe is closed.
                with contextlib.suppress(OSError):
                    is_reader_gone = stat.S_ISFIFO(os.fstat(self.fileno()).st_mode)
            reason = os.strerror(errno.EPIPE) if is_reader_gone else error.strerror
            self.problem, self.is_loss = reason or type(error).__name__, not is_reader_gone
        return size

    def _write(self, data: ReadableBuffer) -> int:
        """Write some of the bytes to the underlying stream and return their number; wait while its pipe is full."""
        # None: a non-blocking pipe is full.
        while (count := self._raw.write(data)) is None:
            select.select([], [self._raw], [])
        return int(count)


def protect_streams() -> None:
    """Make writes to standard output and error safe, and keep other files from getting their descriptors.

    Characters that their encoding lacks are written as escapes.
    """
    with contextlib.suppress(OSError):
        _fill_closed()
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115 - the device, open to the end
    sys.stdout, sys.stderr = _guard_stream(sys.stdout), _guard_stream(sys.stderr)


def _fill_closed() -> None:
    """Open the null device on the standard descriptors that are closed.

    Otherwise the next file that is opened would get such a descriptor, and the output.
    """
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


def _guard_stream(stream: TextIO | None) -> TextIO:
    """Wrap a stream so that writing to it raises no error; one that does not exist discards what is written."""
    if stream is None:
        return io.TextIOWrapper(io.BufferedWriter(_Guarded(None)), "utf-8", "backslashreplace")
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    if not isinstance(stream, io.TextIOWrapper) or raw is None or isinstance(raw, _Guarded):
        return stream
    guarded = io.BufferedWriter(_Guarded(raw))
    return io.TextIOWrapper(guarded, stream.encoding, "backslashreplace", line_buffering=stream.line_buffering)


def find_lost_output(*, with_reader: bool = True) -> str | None:
    """Flush the streams and return why standard output is incomplete, or None.

    If the reader of a pipe has ended, nothing is lost, unless ``with_reader`` is False.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.problem if isinstance(raw, _Guarded) and (raw.is_loss or not with_reader) else None


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person is at the other end of a stream: on Windows, ``isatty`` takes the null device for a terminal."""
    if stream is None or not stream.isatty():
        return False
    if sys.platform == "win32":
        import ctypes  # noqa: PLC0415 - only there
        import msvcrt  # noqa: PLC0415

        # A stream without a descriptor decides for itself.
        with contextlib.suppress(OSError, ValueError):
            handle, mode = msvcrt.get_osfhandle(stream.fileno()), ctypes.c_uint32()
            return bool(ctypes.windll.kernel32.GetConsoleMode(ctypes.c_void_p(handle), ctypes.byref(mode)))
    return True


def is_double_clicked() -> bool:
    """Whether this is the frozen program, and a desktop has opened it and not a terminal."""
    if not interpreters.is_frozen():
        return False
    if sys.platform == "win32":
        import ctypes  # noqa: PLC0415 - only there

        return has_own_console(ctypes.windll.kernel32)
    return sys.stdin is None or not sys.stdin.isatty()


def has_own_console(kernel: Any) -> bool:
    """Whether the console of Windows was opened for this process alone. ``kernel`` is kernel32."""
    import ctypes  # noqa: PLC0415 - only on Windows

    processes = (ctypes.c_uint32 * 2)()
    return bool(kernel.GetConsoleProcessList(processes, len(processes)) <= 1)
