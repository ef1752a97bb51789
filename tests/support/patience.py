"""How long tests wait."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

#: How long until what does not come counts as never coming, in seconds: no limit that a loaded machine reaches.
NEVER_SECONDS = 1_800
#: The same for a single event of a cluster of Ray, such as the start of a process, and for a whole test of one.
EVENT_SECONDS, TEST_SECONDS = 300, 900


@contextmanager
def no_longer_than(seconds: float, what: str) -> Iterator[None]:
    """Fail with what was awaited if the context takes longer; for the main thread, on systems with alarms."""

    def late(*_: object) -> None:
        raise TimeoutError(f"{what} has not ended after {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
