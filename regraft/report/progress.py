"""Progress bars on stderr, only where a person watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tqdm import tqdm

from regraft.text import one_line

#: Code points of what is being worked on, beside a bar.
_LONGEST_LABEL = 60


class Progress(Protocol):
    """Where long work reports how far it is."""

    def start(self, what: str, rows: int) -> None:
        """Begin a stage of ``rows`` rows."""

    def at(self, label: str) -> None:
        """Say what is being worked on."""

    def step(self, rows: float, size: int) -> None:
        """Report that rows (parts of rows too) and bytes are done."""

    def end(self) -> None:
        """End the stage."""


class Silent:
    """Reports nothing."""

    def start(self, what: str, rows: int) -> None:
        """See :class:`Progress`."""

    def at(self, label: str) -> None:
        """See :class:`Progress`."""

    def step(self, rows: float, size: int) -> None:
        """See :class:`Progress`."""

    def end(self) -> None:
        """See :class:`Progress`."""


class _Unwatched(tqdm):  # type: ignore[type-arg]
    """A bar without tqdm's thread: what waits for Ctrl-C to be let through is the main thread alone."""

    monitor_interval = 0


class Bar:
    """A bar with rows, bytes, rate and time left."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._bytes = 0
        self._label = ""

    def start(self, what: str, rows: int) -> None:
        """See :class:`Progress`."""
        self._bytes = 0
        self._bar = _Unwatched(
            total=rows,
            miniters=1,
            desc=what,
            file=sys.stderr,
            leave=False,
            dynamic_ncols=True,
            bar_format="{desc} {percentage:3.0f}% {bar} {n:,.0f}/{total:,.0f} rows, {rate_fmt}, "
            "{remaining} left{postfix}",
            unit=" rows",
        )

    def at(self, label: str) -> None:
        """See :class:`Progress`."""
        self._label = one_line(label, _LONGEST_LABEL)
        self._show(0)

    def step(self, rows: float, size: int) -> None:
        """See :class:`Progress`."""
        self._bytes += size
        self._show(rows)

    def _show(self, rows: float) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(f"{human_bytes(self._bytes)} {self._label}", refresh=False)
            self._bar.update(min(rows, max(0.0, (self._bar.total or 0) - self._bar.n)))

    def end(self) -> None:
        """See :class:`Progress`."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def for_person(*, quiet: bool) -> Progress:
    """Return a bar where stderr is a terminal and the user wants one."""
    return Bar() if sys.stderr.isatty() and not quiet else Silent()


@contextmanager
def stage(progress: Progress, what: str, rows: int) -> Iterator[None]:
    """Run one stage of a progress."""
    progress.start(what, rows)
    try:
        yield
    finally:
        progress.end()


def human_bytes(size: float) -> str:
    """Return a size for a person, in powers of 1000."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
