"""The k-th operation fails, with EIO or for want of room, once, for a while or for ever: for every k of every command.

A run that was disturbed may end as it should all the same, refuse (then nothing was written) or stop with one line.
Its sources are what they were, and the next run comes to the end of an undisturbed one; undo comes to the beginning.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from campaign.campaign import Campaign, Outcome
from campaign.runs import DONE, REFUSED, STOPPED, Ended, Stage, stages
from campaign.steps import FOR_EVER, TAKES_ROOM, Failing, around, kinds_of
from campaign.stores import SCENARIOS, Scenario
from campaign.switches import CONTROLS, switched_off

ERRORS = (errno.EIO, errno.ENOSPC)
#: What is counted besides runs.
FAILED = "operations that failed"
#: How many operations fail, from the k-th on.
LASTING = (1, FOR_EVER, 4, 16)


@dataclass(frozen=True)
class Fault:
    """Which operation of which run fails, and how."""

    stage: Stage
    kind: str
    at: int
    error: int
    lasting: int

    def __str__(self) -> str:
        """Return it in words."""
        lasting = "for ever" if self.lasting == FOR_EVER else f"{self.lasting}x"
        return f"{self.stage.scenario.name}: {errno.errorcode[self.error]} at {self.at} ({self.kind}), {lasting}"


class IoFaults(Campaign):
    """The k-th I/O error or full disk."""

    name = "io-faults"
    unit = "disturbed runs"
    #: In most of them several operations fail: about 100,000 in all.
    whole = 20_000
    controls = CONTROLS
    scenarios: tuple[Scenario, ...] = SCENARIOS

    def cases(self, first: int = 1) -> Iterator[Outcome]:
        """Let every operation of every run fail in every way, in an order of chance."""
        with switched_off(self.control), stages(self.scenarios, Path(self.work)) as found:
            faults = [fault for stage in found for fault in every_fault(stage)]
            Random(self.seed).shuffle(faults)
            self.figures["operations"] = sum(1 for one in faults if (one.error, one.lasting) == (ERRORS[0], 1))
            for fault in faults[first - 1 :]:
                outcome, failed = disturbed(fault)
                self.figures[FAILED] = self.figures.get(FAILED, 0) + failed
                yield outcome
                self.figures["different stores taken up again"] = sum(stage.iterate for stage in found)


def every_fault(stage: Stage) -> Iterator[Fault]:
    """Return everything that can fail in a run."""
    for at, kind in enumerate(kinds_of(stage), 1):
        for error in ERRORS:
            if error != errno.ENOSPC or kind in TAKES_ROOM:
                yield from (Fault(stage, kind, at, error, lasting) for lasting in LASTING)


def disturbed(fault: Fault) -> tuple[Outcome, int]:
    """Let it fail, judge what comes of it, and return that with how many operations failed."""
    stage, failing = fault.stage, Failing(fault.at, fault.error, fault.lasting)
    stage.reset()
    done = stage.run(1, around(stage, failing))
    if "SystemError" in done.stderr and "campaign" in done.stderr:
        # SQLite called the watcher while an error of Python's was on its way: what comes of that, no disk does.
        return Outcome(f"{stage.scenario.name}: the watcher failed, not judged", "", str(fault)), 0
    problem = judged(stage, done)
    if not problem and not (stage.scenario.is_one_file and done.status == 1):
        problem = stage.judge_next()
    ended = {0: "done", 1: "done", 2: "refused", 3: "stopped"}.get(done.status, "bad")
    return Outcome(f"{stage.scenario.name}: {ended}", problem, str(fault)), failing.failed


def judged(stage: Stage, done: Ended) -> str:
    """Say what is wrong with how a disturbed run ended."""
    if "Traceback" in done.stderr or "bug in regraft" in done.stderr:
        return f"it ended with {done.status} and said {done.stderr[-600:]}"
    if stage.sources() != stage.old_sources:
        return "a source changed"
    if done.status not in (*DONE, REFUSED, STOPPED):
        return f"it ended with {done.status}: {done.code}"
    lines = done.stderr.strip().splitlines()
    if done.status in (REFUSED, STOPPED) and (len(lines) != 1 or not lines[0].startswith("regraft: ")):
        return f"it ended with {done.status} and said {done.stderr[-600:]!r}"
    return _wrong_state(stage, done)


def _wrong_state(stage: Stage, done: Ended) -> str:
    if done.status == REFUSED and stage.state() != stage.old:
        return f"refused, and something was written: {done.code}"
    if done.status == 0 and stage.state() != stage.new:
        return "it ended with 0 and had not done what an undisturbed run does"
    return ""
