"""Progress bars on stderr, shown only if it is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

from regraft.language import join_list, tr
from regraft.report.labels import label_of
from regraft.text import format_bytes, one_line

#: Maximum length, in code points, of the label beside a bar.
_LONGEST_LABEL = 60
#: Width of a bar: in a terminal of 80 columns this leaves room for the text beside it.
_BAR_COLUMNS = 12


class Progress(Protocol):
    """Receives the progress of long work."""

    def start(self, what: str, rows: int, unit: str = "rows") -> None:
        """Begin a stage of ``rows`` steps, counted in ``unit``; numbers of "bytes" are shown as sizes.

        ``what`` names the work of the stage.
        """

    def at(self, label: str) -> None:
        """Name the object that is being processed."""

    def step(self, rows: float, size: int) -> None:
        """Report that ``rows`` more rows (fractions are allowed) and ``size`` more bytes are done."""

    def end(self) -> None:
        """End the stage."""


class SilentProgress:
    """A progress that shows nothing."""

    def start(self, what: str, rows: int, unit: str = "rows") -> None:
        """Begin a stage of ``rows`` steps, counted in ``unit``; numbers of "bytes" are shown as sizes.

        ``what`` names the work of the stage.
        """

    def at(self, label: str) -> None:
        """Name the object that is being processed."""

    def step(self, rows: float, size: int) -> None:
        """Report that ``rows`` more rows (fractions are allowed) and ``size`` more bytes are done."""

    def end(self) -> None:
        """End the stage."""


@cache
def _bar_class() -> Any:
    """Return tqdm's class of bars, without its monitoring thread; loads tqdm, which few commands need."""
    from tqdm import tqdm  # noqa: PLC0415

    class UnmonitoredBar(tqdm):  # type: ignore[type-arg]
        monitor_interval = 0
        #: The text after the bar.
        counts = ""

        @property
        def format_dict(self) -> Any:
            """The values of the bar's format, with the text after the bar."""
            return {**super().format_dict, "counts": self.counts}

    return UnmonitoredBar


class ProgressBar:
    """A bar with the share that is done, the time left, and the label of the current object."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._bytes = 0
        self._unit = ""
        self._label = ""

    def start(self, what: str, rows: int, unit: str = "rows") -> None:
        """Begin a stage of ``rows`` steps, counted in ``unit``; numbers of "bytes" are shown as sizes.

        ``what`` names the work of the stage.
        """
        self._bytes, self._unit, self._label = 0, unit, ""
        self._bar = _bar_class()(
            total=rows,
            # Fractions of a row, and a new label, are shown at once.
            miniters=0,
            desc=label_of(what),
            file=sys.stderr,
            leave=False,
            dynamic_ncols=True,
            # The text after the bar varies in width; a fixed bar stays readable.
            bar_format=f"{{desc}} {{percentage:3.0f}}% {{bar:{_BAR_COLUMNS}}} {{counts}}",
        )
        self._show(0)

    def at(self, label: str) -> None:
        """Name the object that is being processed."""
        self._label = one_line(label, _LONGEST_LABEL)
        self._show(0)

    def step(self, rows: float, size: int) -> None:
        """Report that ``rows`` more rows (fractions are allowed) and ``size`` more bytes are done."""
        self._bytes += size
        self._show(rows)

    def _show(self, rows: float) -> None:
        """Advance the bar by ``rows``, at most to its end."""
        bar = self._bar
        if bar is not None:
            done = min(rows, max(0.0, (bar.total or 0) - bar.n))
            bar.counts = self._counts(bar, bar.n + done)
            bar.update(done)

    def _counts(self, bar: Any, done: float) -> str:
        """Format the text after the bar: ``done`` of all, the time left, and the label of the object."""
        total = bar.total or 0
        if self._unit == "bytes":
            parts = [tr("{done} of {total}", done=format_bytes(done), total=format_bytes(total))]
        else:
            parts = [f"{done:,.0f}/{total:,} {label_of(self._unit)}"]
            if self._bytes:
                parts.append(format_bytes(self._bytes))
        rate = bar.format_dict["rate"] or (done / bar.format_dict["elapsed"] if bar.format_dict["elapsed"] else 0)
        if rate and done:
            parts.append(tr("{interval} left", interval=bar.format_interval((total - done) / rate)))
        if self._label:
            parts.append(self._label)
        return join_list(parts)

    def end(self) -> None:
        """End the stage."""
        if self._bar is not None:
            self._bar.close()
            # tqdm leaves its last carriage return in the buffer; without a flush, the next text would start after it.
            sys.stderr.flush()
            self._bar = None


def terminal_progress(*, quiet: bool) -> Progress:
    """Make a progress bar if stderr is a terminal and the user did not ask for quiet."""
    return ProgressBar() if sys.stderr.isatty() and not quiet else SilentProgress()


@contextmanager
def stage(progress: Progress, what: str, rows: int, unit: str = "rows") -> Iterator[None]:
    """Start a stage of a progress (:meth:`Progress.start`), and end the stage when the context ends."""
    progress.start(what, rows, unit)
    try:
        yield
    finally:
        progress.end()
