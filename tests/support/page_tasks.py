"""Stand-ins for what runs in the process of a page's job: they hold it, kill it or stop it at a named moment."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from msgspec import structs
from patience import NEVER_SECONDS

from regraft.page import jobs
from regraft.page.jobs import Outcome, Task

#: Variables for the process of a job: the file that holds it while it is there, and the moment, "STAGE METHOD NUMBER".
HOLD, MOMENT = "REGRAFT_TEST_HOLD", "REGRAFT_TEST_MOMENT"
#: The time of :func:`at_one_time`, as ``--now`` has it and in milliseconds.
NOW, NOW_MS = "2026-01-02T03:04:05Z", 1_767_323_045_000
_run_task = jobs.run_task


def held(task: Task, stop_file: str) -> Outcome:
    """Run a task once the file that holds it is gone."""
    while Path(os.environ[HOLD]).exists():
        time.sleep(0.02)
    return _run_task(task, stop_file)


def at_one_time(task: Task, stop_file: str) -> Outcome:
    """Run a task at the time that ``--now`` gives a command, so that both write the same times."""
    if hasattr(task.options, "now_ms"):
        task = structs.replace(task, options=structs.replace(task.options, now_ms=NOW_MS))
    return _run_task(task, stop_file)


#: On Windows, os.kill ends a process at once with any signal but those of the keyboard.
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


def killed(task: Task, stop_file: str) -> Outcome:
    """Run a task, and kill its process at the moment, as ``kill -9`` does."""
    _at_the_moment(lambda: os.kill(os.getpid(), _KILL))
    return _run_task(task, stop_file)


def stopped(task: Task, stop_file: str) -> Outcome:
    """Run a task, and press Stop at the moment."""

    def stop() -> None:
        Path(stop_file).touch()
        time.sleep(NEVER_SECONDS)

    _at_the_moment(stop)
    return _run_task(task, stop_file)


def _at_the_moment(act: Any) -> None:
    stage, method, number = os.environ[MOMENT].split()
    calls = 0
    given = getattr(jobs._SentProgress, method)

    def counted(self: Any, *args: Any) -> None:
        nonlocal calls
        given(self, *args)
        if self._stage.name == stage:
            calls += 1
            if calls == int(number):
                act()

    setattr(jobs._SentProgress, method, counted)
