"""What a caller asks of an audit, whichever system the store is of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from checks.audit.collector import Level
from regraft import clock
from regraft.report.progress import Progress, Silent

#: Returns the command line for a path: it is given the words of the command, and those that come after the path.
CommandLine = Callable[[Sequence[str], Sequence[str]], str]


class CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What of a store is to be looked at, how deep, and how long (in seconds; None: as long as it takes)."""

    level: Level = Level.DEFAULT
    max_duration: float | None = None
    #: Ids of the bases; empty: all.
    bases: tuple[str, ...] = ()
    #: What ages are relative to.
    now_ms: int = msgspec.field(default_factory=clock.now_ms)
    #: Shows a person how far it is.
    progress: Progress = msgspec.field(default_factory=Silent)
