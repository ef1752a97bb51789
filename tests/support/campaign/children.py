"""Runs cases in a child process that is warm already: one that hangs or dies is a bad case, and the rest goes on."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module

from campaign.campaign import Outcome

#: A case that takes longer hangs: it takes some hundredths of a second on an idle machine.
HANG_SECONDS = 120
#: Memory that a case may take; input of some hundred kB has no use for it.
MEMORY = 6 << 30
_COMMANDS = (
    "inspect",
    "check",
    "migrate",
    "search",
    "compare",
    "recall",
    "export",
    "import_",
    "gc",
    "repair",
    "reconcile",
    "clear_failed",
    "backfill",
    "rebuild",
    "restore",
    "upgrade",
    "rescue",
    "install",
    "pack",
    "history",
)
#: A child is replaced after so many cases, with what it has gathered.
CASES_OF_A_CHILD = 2000


def each(case: Callable[[int], Outcome], first: int, figures: dict[str, int]) -> Iterator[Outcome]:
    """Run case after case from number ``first`` on, each in a child of this process, and give what came of each.

    Args:
        case: runs one.
        first: the number of the first one.
        figures: what ``case`` counts in; what the children count is added to it.
    """
    warm()
    number = first
    while True:
        for outcome in _of_one_child(case, number, figures):
            yield outcome
            number += 1


def warm() -> None:
    """Import what commands import when they need it, once for all children."""
    for name in ("openai", "openai.types", "pyarrow.parquet", *(f"regraft.cli.{name}" for name in _COMMANDS)):
        import_module(name)
    gc.collect()
    gc.freeze()


def _of_one_child(case: Callable[[int], Outcome], first: int, figures: dict[str, int]) -> Iterator[Outcome]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _work(case, first, write, figures)
    os.close(write)
    buffer, answered = b"", 0
    try:
        while answered < CASES_OF_A_CHILD:
            ready, _, _ = select.select([read], [], [], HANG_SECONDS)
            more = os.read(read, 1 << 16) if ready else b""
            if not more:
                os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                child = 0
                ended = "it hangs" if not ready else f"the process died ({os.waitstatus_to_exitcode(status)})"
                yield Outcome("no end", ended)
                return
            buffer += more
            while len(buffer) >= 4 and len(buffer) >= 4 + int.from_bytes(buffer[:4]):
                size = int.from_bytes(buffer[:4])
                outcome, counted = pickle.loads(buffer[4 : 4 + size])
                figures.update({name: figures.get(name, 0) + count for name, count in counted.items()})
                buffer = buffer[4 + size :]
                answered += 1
                yield outcome
    finally:
        os.close(read)
        if child:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _work(case: Callable[[int], Outcome], first: int, write: int, figures: dict[str, int]) -> None:
    import resource  # not there on Windows, which has no fork either

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115
    code = 1
    try:
        for number in range(first, first + CASES_OF_A_CHILD):
            figures.clear()
            data = pickle.dumps((case(number), figures))
            os.write(write, len(data).to_bytes(4) + data)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)
