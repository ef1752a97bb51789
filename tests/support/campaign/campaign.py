"""What every campaign shares: cases that follow from a seed, counting them, and the file that holds the result."""

from __future__ import annotations

import json
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from regraft import __version__
from regraft.identity import replace

#: Where results are kept; ``docs/reliability.md`` is made from them.
RESULTS = Path(__file__).parent / "results"
#: So many bad cases are written down; the others are only counted.
KEPT_CASES = 20
#: The result is written, and a line of progress, every so many seconds.
SAVE_SECONDS = 20.0


@dataclass(frozen=True)
class Outcome:
    """What came of one case.

    ``kind`` groups cases in the result (``"gc: stopped, taken up again"``). ``problem`` says what is wrong, empty
    where nothing is; ``case`` is what somebody needs to see it again.
    """

    kind: str
    problem: str = ""
    case: str = ""


class Campaign(ABC):
    """Cases of one kind. Which case has which number follows from the seed alone, so that each can be run again."""

    #: As it is called on the command line.
    name: ClassVar[str]
    #: What one case is, in the plural, for the page: ``"disk images"``.
    unit: ClassVar[str]
    #: How many cases make the campaign whole.
    whole: ClassVar[int]
    #: What can be switched off to show that the campaign would notice: name of the control → what is off.
    controls: ClassVar[Mapping[str, str]] = {}

    def __init__(self, seed: int, work: Path, control: str | None = None) -> None:
        """Take an empty folder to work in, in memory where the system has that."""
        self.seed = seed
        self.work = work
        self.control = control
        #: More figures for the result, such as how many cases were different ones.
        self.figures: dict[str, int] = {}

    @abstractmethod
    def cases(self, first: int = 1) -> Iterator[Outcome]:
        """Run case after case from number ``first`` on (from 1), and give what came of each; it may never end."""

    def random(self, number: int) -> Random:
        """Return the chance of one case."""
        return Random(f"{self.name} {self.seed} {number}")


@dataclass
class Result:
    """What came of a campaign so far; one JSON file for each name, seed and control."""

    campaign: str
    seed: int
    control: str | None
    #: What the control has switched off.
    off: str = ""
    version: str = __version__
    count: int = 0
    bad: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    figures: dict[str, int] = field(default_factory=dict)
    bad_cases: list[dict[str, Any]] = field(default_factory=list)
    #: Cases that were bad once, and are so no more since what was wrong was mended.
    mended: list[dict[str, Any]] = field(default_factory=list)

    def take_up_again(self, campaign: Campaign) -> None:
        """Run every bad case once more."""
        for case in list(self.bad_cases):
            outcome = next(campaign.cases(case["number"]))
            if not outcome.problem:
                self.bad_cases.remove(case)
                self.mended.append(case)
                self.bad -= 1

    def add(self, outcome: Outcome, number: int) -> None:
        """Count one case."""
        self.count += 1
        self.kinds[outcome.kind] += 1
        if outcome.problem:
            self.bad += 1
            if len(self.bad_cases) < KEPT_CASES:
                self.bad_cases.append({"number": number, **asdict(outcome)})

    def save(self, folder: Path) -> Path:
        """Write the result to its file in ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / file_name(self.campaign, self.seed, self.control)
        kinds = dict(sorted(self.kinds.items()))
        document = {**asdict(self), "kinds": kinds, "seconds": round(self.seconds)}
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
        return path


def file_name(campaign: str, seed: int, control: str | None) -> str:
    """Return what the file of a result is called."""
    return f"{campaign}-{seed}{f'-{control}' if control else ''}.json"


def load(folder: Path, campaign: str, seed: int, control: str | None) -> Result:
    """Return the result that is there, or an empty one."""
    path = folder / file_name(campaign, seed, control)
    if not path.is_file():
        return Result(campaign, seed, control)
    found = json.loads(path.read_text("utf-8"))
    return Result(**{**found, "kinds": Counter(found["kinds"]), "version": __version__})


def _is_enough(result: Result, *, count: int | None, bad: int | None) -> bool:
    return result.count == count or (bad is not None and result.bad >= bad)


def _tell_bad(number: int, outcome: Outcome) -> None:
    if outcome.problem:
        print(f"bad: {number}: {outcome.kind}: {outcome.problem} ({outcome.case})", file=sys.stderr, flush=True)


def run(
    campaign: Campaign,
    result: Result,
    *,
    count: int | None = None,
    seconds: float | None = None,
    stop_at_bad: int | None = None,
    save_to: Path | None = None,
) -> Result:
    """Go on where ``result`` ends, until it has ``count`` cases, or the time is over, or so many were bad."""
    began, before, saved = time.monotonic(), result.seconds, time.monotonic()
    if count is not None and result.count >= count:
        return result
    campaign.figures.update(result.figures)
    for number, outcome in enumerate(campaign.cases(result.count + 1), result.count + 1):
        # Where it was run is nobody's concern.
        result.add(replace(outcome, problem=outcome.problem.replace(f"{campaign.work}/", "")), number)
        now = time.monotonic()
        result.seconds, result.figures = before + now - began, dict(campaign.figures)
        if save_to is not None:
            _tell_bad(number, outcome)
            if now - saved > SAVE_SECONDS:
                saved = now
                result.save(save_to)
                print(f"{result.count} cases, {result.bad} bad, {result.seconds:.0f} s", file=sys.stderr, flush=True)
        is_over = seconds is not None and now - began > seconds
        if is_over or _is_enough(result, count=count, bad=stop_at_bad):
            break
    if save_to is not None:
        result.save(save_to)
    return result
