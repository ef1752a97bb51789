"""Every command that changes something is killed, at every operation and at any moment, or asked to end by a signal.

Afterwards each file is as it was or as an undisturbed run leaves it, the next run comes to the end of an undisturbed
one, nothing half-made is left, and undo comes to the beginning.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.kills import state_of
from campaign.campaign import Campaign, Outcome
from campaign.runs import DONE, KILLED, Ended, Stage, stages
from campaign.steps import SIGNALS, Signalling, around, kinds_of
from campaign.stores import SCENARIOS, Scenario
from campaign.switches import CONTROLS, switched_off
from regraft.ledger.ledger import FOLDER
from regraft.stores.locate import KNOWLEDGE_FOLDER

#: Of so many cases in a row one is of each of these ways; ``any moment`` is a SIGKILL from outside.
_WAYS = (*("SIGKILL",) * 5, "any moment", "any moment", "SIGTERM", "SIGHUP", "SIGINT")
#: Where a base stands while another takes its place, in regraft's own folder.
_REPLACED = "replaced"
#: What a run ends with that was asked to end: by itself, or by what the system does of its own.
_ASKED_TO_END = (*DONE, 3, 130, *(128 + number for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)))


class Kills(Campaign):
    """kill -9, SIGTERM, SIGHUP and Ctrl-C."""

    name = "kills"
    unit = "kills"
    whole = 200 * len(SCENARIOS)
    controls = CONTROLS
    scenarios: tuple[Scenario, ...] = SCENARIOS
    #: How a run is ended, drawn from these.
    ways: tuple[str, ...] = _WAYS

    def cases(self, first: int = 1) -> Iterator[Outcome]:
        """Kill one command after the other, each time at another operation."""
        with switched_off(self.control), stages(self.scenarios, Path(self.work)) as found:
            operations = [len(kinds_of(stage)) for stage in found]
            number = first
            while True:
                stage, most = found[(number - 1) % len(found)], operations[(number - 1) % len(found)]
                chance = self.random(number)
                way, at = chance.choice(self.ways), chance.randint(1, most)
                yield killed(stage, way, at, at / most)
                self.figures["different stores taken up again"] = sum(stage.iterate for stage in found)
                number += 1


def killed(stage: Stage, way: str, at: int, part: float) -> Outcome:
    """Kill a run at an operation, or after a part of its time, and judge what it leaves."""
    stage.reset()
    if way == "any moment":
        done = _from_outside(stage, part)
    else:
        done = stage.run(1, around(stage, Signalling(at, SIGNALS[way])))
    problem = _ended(done, way) or held(stage) or stage.judge_next()
    if not problem and stage.sources() != stage.old_sources:
        problem = "a source changed"
    return Outcome(f"{stage.scenario.command}: {way}", problem, f"{stage.scenario.name}: {way} at {at} ({part:.3f})")


def _from_outside(stage: Stage, part: float) -> Ended:
    """Kill a run after a part of the time that it takes."""
    if not stage.seconds:
        began = time.monotonic()
        stage.run(1)
        stage.seconds = time.monotonic() - began
        stage.reset()
    return stage.run(1, lambda: _doomed(stage.seconds * part))


def _doomed(seconds: float) -> None:
    def end() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _ended(done: Ended, way: str) -> str:
    if "Traceback" in done.stderr or "bug in regraft" in done.stderr:
        return f"it said {done.stderr[-600:]}"
    expected = (*DONE, KILLED) if way in ("SIGKILL", "any moment") else _ASKED_TO_END
    return "" if done.status in expected else f"it ended with {done.status}: {done.code}"


def held(stage: Stage) -> str:
    """Say which files are neither as before nor as an undisturbed run leaves them."""
    state = {name: mark for name, mark in stage.state().items() if not name.endswith("part")}
    odd = [
        name
        for name in sorted(state.keys() | stage.old.keys() | stage.new.keys())
        if state.get(name) not in (stage.old.get(name), stage.new.get(name))
        and not any(part in name for part in stage.scenario.growing)
        and not _stands_aside(stage, name)
    ]
    return f"neither old nor new: {', '.join(odd[:4])}" if odd else ""


def _stands_aside(stage: Stage, name: str) -> bool:
    """Tell whether a file is whole in a base that stands aside, between the two renames that replace one.

    The next run puts such a base back: that is judged, too.
    """
    top, _, rest = name.partition(f"/{KNOWLEDGE_FOLDER}/")
    aside = stage.place / top / FOLDER / _REPLACED
    return bool(rest) and aside.is_dir() and state_of(aside, stage.scenario.ignored).get(rest) == stage.old.get(name)
