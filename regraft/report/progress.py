"""Progress bars on stderr, only where a person watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from regraft.language import join_list, tr
from regraft.report.labels import label_of
from regraft.text import format_bytes, one_line

if TYPE_CHECKING:
    from regraft.report.bar import UnwatchedBar

#: Code points of what is being worked on, beside a bar.
_LONGEST_LABEL = 60
#: A terminal of 80 columns has room for a bar of so many and for what stands beside it.
_BAR_COLUMNS = 12


class Progress(Protocol):
    """Where long work reports how far it is."""

    def start(self, what: str, rows: int, unit: str = "rows") -> None:
        """Begin a stage of ``rows`` rows, or of whatever ``unit`` says; bytes are shown as sizes."""

    def at(self, label: str) -> None:
        """Say what is being worked on."""

    def step(self, rows: float, size: int) -> None:
        """Report that rows (parts of rows too) and bytes are done."""

    def end(self) -> None:
        """End the stage."""


class SilentProgress:
    """Reports nothing."""

    def start(self, what: str, rows: int, unit: str = "rows") -> None:
        """See :class:`Progress`."""

    def at(self, label: str) -> None:
        """See :class:`Progress`."""

    def step(self, rows: float, size: int) -> None:
        """See :class:`Progress`."""

    def end(self) -> None:
        """See :class:`Progress`."""


class ProgressBar:
    """A bar with what is done of all, the time left, and what is being worked on."""

    def __init__(self) -> None:
        self._bar: UnwatchedBar | None = None
        self._bytes = 0
        self._unit = ""
        self._label = ""

    def start(self, what: str, rows: int, unit: str = "rows") -> None:
        """See :class:`Progress`."""
        from regraft.report.bar import UnwatchedBar  # noqa: PLC0415 - loaded where a bar is drawn

        self._bytes, self._unit, self._label = 0, unit, ""
        self._bar = UnwatchedBar(
            total=rows,
            # A part of a row, and the next name, are worth showing, too.
            miniters=0,
            desc=label_of(what),
            file=sys.stderr,
            leave=False,
            dynamic_ncols=True,
            # What follows the bar has its own width, so that the bar keeps a readable one.
            bar_format=f"{{desc}} {{percentage:3.0f}}% {{bar:{_BAR_COLUMNS}}} {{counts}}",
        )
        self._show(0)

    def at(self, label: str) -> None:
        """See :class:`Progress`."""
        self._label = one_line(label, _LONGEST_LABEL)
        self._show(0)

    def step(self, rows: float, size: int) -> None:
        """See :class:`Progress`."""
        self._bytes += size
        self._show(rows)

    def _show(self, rows: float) -> None:
        bar = self._bar
        if bar is not None:
            done = min(rows, max(0.0, (bar.total or 0) - bar.n))
            bar.counts = self._counts(bar, bar.n + done)
            bar.update(done)

    def _counts(self, bar: UnwatchedBar, done: float) -> str:
        """Return what stands behind a bar: how much of all is done, the time left, what is being worked on."""
        total = bar.total or 0
        if self._unit == "bytes":
            parts = [tr("{done} of {total}", done=format_bytes(done), total=format_bytes(total))]
        else:
            parts = [f"{done:,.0f}/{total:,} {label_of(self._unit)}"]
            if self._bytes:
                parts.append(format_bytes(self._bytes))
        rate = bar.format_dict["rate"] or (done / bar.format_dict["elapsed"] if bar.format_dict["elapsed"] else 0)
        if rate and done:
            parts.append(tr("{format_interval} left", format_interval=bar.format_interval((total - done) / rate)))
        if self._label:
            parts.append(self._label)
        return join_list(parts)

    def end(self) -> None:
        """See :class:`Progress`."""
        if self._bar is not None:
            self._bar.close()
            # tqdm leaves the last carriage return in the buffer: what is printed next would start behind the blanks.
            sys.stderr.flush()
            self._bar = None


def terminal_progress(*, quiet: bool) -> Progress:
    """Return a bar where stderr is a terminal and the user wants one."""
    return ProgressBar() if sys.stderr.isatty() and not quiet else SilentProgress()


@contextmanager
def stage(progress: Progress, what: str, rows: int, unit: str = "rows") -> Iterator[None]:
    """Run one stage of a progress; arguments as of :meth:`Progress.start`."""
    progress.start(what, rows, unit)
    try:
        yield
    finally:
        progress.end()
