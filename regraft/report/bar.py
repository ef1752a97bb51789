"""The bar that :class:`~regraft.report.progress.ProgressBar` draws: tqdm is loaded only where a bar is drawn."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm


class UnwatchedBar(tqdm):  # type: ignore[type-arg]
    """A bar without tqdm's thread: what waits for Ctrl-C to be let through is the main thread alone."""

    monitor_interval = 0
    #: What stands behind the bar.
    counts = ""

    @property
    def format_dict(self) -> Any:
        """Return what a bar is made of."""
        return {**super().format_dict, "counts": self.counts}
