"""How long tests wait."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Started = TypeVar("Started")

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


def start_ray(start: Callable[[], Started]) -> Started:
    """Start nodes of Ray, again where they take longer than the 30 seconds that Ray waits for their processes."""
    from ray._private.node import Node

    with no_longer_than(EVENT_SECONDS, "the start of a cluster"):
        while True:
            try:
                return start()
            except Exception as error:
                if "timed out during startup" not in str(error):
                    raise
                for frame, _ in traceback.walk_tb(error.__traceback__):
                    if isinstance(node := frame.f_locals.get("self"), Node):
                        node.kill_all_processes(check_alive=False, allow_graceful=False)
