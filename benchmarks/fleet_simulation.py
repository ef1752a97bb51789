"""Reckons fleets that are too large to be measured, from the parts in ``fleet_parts.json``.

``python -m benchmarks.fleet_simulation`` (two minutes) prints what a million libraries take on 2 to 4,096 workers. The
policy is that of ``regraft.fleet.engine``, in virtual time: the largest libraries first; what fails is tried again
after 1, 2, 4… seconds; one driver gives the tasks, and takes up what ended before it waits. The same seed gives the
same run.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple

import numpy as np

from benchmarks.fleet_parts import PARTS

WORKERS = (2, 32, 256, 1_024, 4_096)
#: What an object storage says of itself: PUTs a second under one prefix (Amazon S3).
PUTS_OF_A_PREFIX = 3_500


# --- the policy ------------------------------------------------------------------------------------------------------


class Attempt(NamedTuple):
    """How long an attempt takes a worker, in seconds, and whether it may end otherwise the next time."""

    seconds: float
    fails: bool


@dataclass(frozen=True)
class Driver:
    """Seconds that the driver takes for each library, and for each time that it flushes those that ended.

    ``at_once`` is how many it takes up at a look, None: all that ended.
    """

    library: float = 0.0
    flush: float = 0.0
    at_once: int | None = None


@dataclass
class Course:
    """What happened: times are in seconds from the first task on."""

    #: The number of a library and of the attempt, in the order in which they were begun; empty where not wanted.
    begun: list[tuple[int, int]] = field(default_factory=list)
    #: When each library ended, in the order in which they did.
    ended_at: list[float] = field(default_factory=list)
    #: Of each library that ended, how often it was tried.
    attempts: dict[int, int] = field(default_factory=dict)
    failed: int = 0
    retries: int = 0
    worked: float = 0.0
    driven: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ended_at[-1] if self.ended_at else 0.0

    @property
    def tail(self) -> float:
        """Return the seconds between the end of 99 of 100 libraries and that of the last one."""
        return self.seconds - self.ended_at[math.ceil(len(self.ended_at) * 0.99) - 1]


def simulated(
    sizes: Sequence[int],
    attempt: Callable[[int, int], Attempt],
    workers: int,
    *,
    attempts: int = 3,
    pause: float = 1.0,
    driver: Driver = Driver(),
    is_traced: bool = False,
) -> Course:
    """Return how a fleet goes on.

    Args:
        sizes: of each library, in bytes.
        attempt: tells how an attempt goes, by the number of the library and that of the attempt.
        workers: how many work at a time.
        attempts: how often a library is tried.
        pause: seconds before the second attempt; before each further one twice as long.
        driver: what the driver takes.
        is_traced: whether ``begun`` and ``attempts`` are wanted.
    """
    course, now = Course(), 0.0
    ordered = sorted(range(len(sizes)), key=lambda number: (-sizes[number], number))
    # As engine.Attempt: when it may be given, its place, and which attempt it is.
    waiting = [(0.0, place, 1) for place in range(len(ordered))]
    at_work: list[tuple[float, int, int, int, bool]] = []
    given = 0
    while waiting or at_work:
        look = now
        while waiting and waiting[0][0] <= look and len(at_work) < workers:
            _, place, tried = heappop(waiting)
            seconds, fails = attempt(ordered[place], tried)
            course.worked += seconds
            given += 1
            heappush(at_work, (now + seconds, given, place, tried, fails))
            if is_traced:
                course.begun.append((ordered[place], tried))
        ready = [at_work[0][0]] if at_work else []
        if waiting and len(at_work) < workers:
            ready.append(waiting[0][0])
        now = max(now, min(ready))
        look, taken = now, 0
        while at_work and at_work[0][0] <= look and taken != driver.at_once:
            _, _, place, tried, fails = heappop(at_work)
            taken += 1
            now += driver.library
            if fails and tried < attempts:
                course.retries += 1
                heappush(waiting, (now + pause * 2 ** (tried - 1), place, tried + 1))
                continue
            course.failed += fails
            course.ended_at.append(now)
            if is_traced:
                course.attempts[ordered[place]] = tried
        if taken:
            now += driver.flush
            course.driven += taken * driver.library + driver.flush
    return course


# --- the libraries ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Assumed:
    """What nobody has measured: assumptions, each of which an option of the program changes."""

    libraries: int = 1_000_000
    #: Rows of libraries are lognormal.
    rows_median: float = 200.0
    rows_sigma: float = 1.5
    #: How often a worker is lost, on average once in so many hours of work, and for how long its place is empty then.
    hours_to_loss: float = 200.0
    replacing_seconds: float = 60.0
    #: How many attempts of a thousand a storage breaks off.
    storage_errors: float = 1.0
    #: Objects of a source besides those of a generated library (5 and one for each 64 rows); each is one GET.
    more_objects: float = 0.0
    #: Prices, in whatever is paid: an hour of a worker, a thousand PUTs, a thousand GETs.
    worker_hour: float = 0.04
    thousand_puts: float = 0.005
    thousand_gets: float = 0.0004
    seed: int = 1


class Libraries:
    """Libraries with their rows, and how an attempt at one goes."""

    def __init__(self, parts: dict[str, Any], assumed: Assumed) -> None:
        measured, staging = parts["library"], parts["staging"]
        drawn = np.random.default_rng(assumed.seed)
        rows = np.rint(drawn.lognormal(math.log(assumed.rows_median), assumed.rows_sigma, assumed.libraries))
        quantiles = measured["noise_quantiles"]
        noise = np.interp(drawn.random(assumed.libraries), np.linspace(0, 1, len(quantiles)), quantiles)
        working = (measured["seconds_fixed"] + measured["seconds_per_row"] * rows) * noise
        # Two GETs, and one for each object of the source, as measured; more objects are more of them.
        self.gets = staging["gets_fixed"] + staging["gets_per_row"] * rows + assumed.more_objects
        self.puts = staging["puts_fixed"] + staging["puts_per_row"] * rows
        source, target = measured["bytes_per_row"] * rows, measured["target_bytes_per_row"] * rows
        moving = source / staging["get_bytes_per_second"] + target / staging["put_bytes_per_second"]
        requests = self.gets + self.puts
        # Calls wait for one another; what one of them asks for together does not.
        moving += (staging["calls"] + requests / staging["requests_at_once"]) * staging["seconds_per_request"]
        moving += requests * staging["client_seconds_per_request"]
        seconds = working + moving + parts["ray"]["seconds_per_task"]
        self.mean = float(seconds.mean())
        self.sizes: list[int] = source.astype(int).tolist()
        self.seconds: list[float] = seconds.tolist()
        self._assumed = assumed
        self._random = Random(assumed.seed)

    def attempt(self, number: int, _: int) -> Attempt:
        """Return how an attempt goes: whole, or cut off by a worker that is lost or a storage that fails."""
        seconds, random = self.seconds[number], self._random
        until_loss = random.expovariate(1 / (self._assumed.hours_to_loss * 3_600))
        if until_loss < seconds:
            return Attempt(until_loss + self._assumed.replacing_seconds, True)
        if random.random() * 1_000 < self._assumed.storage_errors:
            return Attempt(seconds * random.random(), True)
        return Attempt(seconds, False)


# --- what comes of it ------------------------------------------------------------------------------------------------


def before_and_after(parts: dict[str, Any], count: int) -> tuple[float, float]:
    """Return the seconds that the driver takes alone before the first library and after the last one."""
    one = parts["driver"]["sizes"][-1]
    before = one["manifest_us"] + one["apart_us"] + one["sizing_us"]
    return before * count / 1e6, one["results_us"] * count / 1e6


def driver_of(parts: dict[str, Any], at_once: int | None = None) -> Driver:
    """Return what the driver takes, as it was measured."""
    measured = parts["driver"]
    return Driver(library=measured["sizes"][-1]["journal_us"] / 1e6, flush=measured["fsync_us"] / 1e6, at_once=at_once)


def line_of(workers: int, parts: dict[str, Any], assumed: Assumed, driver: Driver) -> dict[str, float]:
    """Return what comes of a fleet on so many workers."""
    libraries = Libraries(parts, assumed)
    course = simulated(libraries.sizes, libraries.attempt, workers, driver=driver)
    before, after = before_and_after(parts, assumed.libraries)
    whole = before + course.seconds + after
    puts, gets = float(libraries.puts.sum()), float(libraries.gets.sum())
    return {
        "workers": workers,
        "hours": whole / 3_600,
        "alone_hours": (before + after) / 3_600,
        "efficiency": sum(libraries.seconds) / (workers * course.seconds),
        "driver_share": course.driven / course.seconds,
        "retries": course.retries,
        "failed": course.failed,
        "tail_seconds": course.tail,
        "longest_seconds": max(libraries.seconds),
        "puts_per_second": puts / course.seconds,
        "cost_of_workers": workers * whole / 3_600 * assumed.worker_hour,
        "cost_of_requests": puts / 1_000 * assumed.thousand_puts + gets / 1_000 * assumed.thousand_gets,
    }


def limits(parts: dict[str, Any], assumed: Assumed, driver: Driver) -> Iterator[str]:
    """Yield what grows too large, each with where that is."""
    libraries = Libraries(parts, assumed)
    one, count = parts["driver"]["sizes"][-1], assumed.libraries
    before, after = before_and_after(parts, count)
    puts = float(libraries.puts.mean())
    yield f"a library takes a worker {libraries.mean:.3f} s on average, {max(libraries.seconds):,.0f} s at most"
    yield f"driver busy from {libraries.mean / driver.library:,.0f} workers on, with one flush for many libraries"
    yield f"driver busy from {libraries.mean / (driver.library + driver.flush):,.0f} workers on, with a flush for each"
    yield f"{PUTS_OF_A_PREFIX:,} PUTs a second from {PUTS_OF_A_PREFIX * libraries.mean / puts:,.0f} workers on"
    longest = max(libraries.seconds)
    yield f"the longest library outlasts the rest from {sum(libraries.seconds) / longest:,.0f} workers on"
    yield f"alone: {before / 60:.0f} minutes before the first library, {after / 60:.0f} after the last"
    yield f"memory of the driver: {one['driver_bytes'] * count / 1e9:.1f} GB"
    yield f"journal {one['journal_bytes'] * count / 1e9:.1f} GB, results {one['results_bytes'] * count / 1e9:.1f} GB"


def main() -> None:
    """Print the table, and what grows too large first."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    for name, value in vars(Assumed()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--workers", type=int, action="append")
    parser.add_argument("--at-once", type=int, help="how many libraries the driver takes up at a look (default: all)")
    asked = vars(parser.parse_args())
    workers, at_once = asked.pop("workers") or WORKERS, asked.pop("at_once")
    assumed, parts = replace(Assumed(), **asked), json.loads(PARTS.read_text())
    driver = driver_of(parts, at_once)
    for line in limits(parts, assumed, driver):
        print(line)
    for count in workers:
        line = line_of(count, parts, assumed, driver)
        print(", ".join(f"{name} {value:,.3f}".rstrip("0").rstrip(".") for name, value in line.items()))


if __name__ == "__main__":
    main()
