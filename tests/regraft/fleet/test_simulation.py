"""The simulation of large fleets has the policy of the real engine, and loses and invents nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from extras import needs, optional

from regraft.fleet import engine
from regraft.fleet.engine import Task, TaskResult

if optional("pyarrow"):
    from benchmarks.fleet_parts import PARTS
    from benchmarks.fleet_simulation import Assumed, Attempt, Course, Driver, Libraries, line_of, simulated

pytestmark = needs("parquet")


class VirtualPool:
    """Does tasks in virtual time, for as long as a table says."""

    def __init__(self, count: int, attempts: dict[tuple[int, int], Attempt]) -> None:
        self.cores = self.slots = count
        self.memory, self._attempts = 1 << 40, attempts
        self.running: dict[Any, tuple[int, float]] = {}
        self.now = 0.0
        self.begun: list[tuple[int, int]] = []
        self._tried: Counter[int] = Counter()

    def start_task(self, task: Task) -> None:
        self._tried[task.number] += 1
        attempt = task.number, self._tried[task.number]
        seconds, fails = self._attempts[attempt]
        self.begun.append(attempt)
        self.running[self.now + seconds, len(self.begun), fails] = task.number, self.now

    def answers(self, seconds: float) -> Iterator[tuple[int, TaskResult]]:
        self.now = max(self.now, min(self.now + seconds, min(self.running)[0]))
        for key in sorted(key for key in self.running if key[0] <= self.now):
            number, begun = self.running.pop(key)
            yield number, TaskResult(status=None if key[2] else 0, seconds=key[0] - begun)

    def close(self) -> None:
        self.running.clear()

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def table(seed: int, count: int) -> tuple[list[int], dict[tuple[int, int], Attempt]]:
    """Return sizes, of which some are equal, and how each attempt goes: one of three fails."""
    random = Random(seed)
    sizes = [random.randrange(count) for _ in range(count)]
    # Multiples of an eighth are added without any error.
    attempts = {
        (number, tried): Attempt(random.randrange(1, 80) / 8, random.random() < 1 / 3)
        for number in range(count)
        for tried in (1, 2, 3)
    }
    return sizes, attempts


@pytest.mark.parametrize(("seed", "workers"), [(1, 1), (2, 3), (3, 16), (4, 200)])
def test_the_simulation_begins_what_the_engine_begins(seed: int, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, attempts = table(seed, 150)
    pool = VirtualPool(workers, attempts)
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: pool.now, sleep=pool.sleep))
    tasks = [Task(number=number, job=None, bytes=size) for number, size in enumerate(sizes)]
    ended = list(engine.Schedule(tasks, pool, attempts=3))

    course = simulated(sizes, lambda number, tried: attempts[number, tried], workers, is_traced=True)

    assert course.begun == pool.begun
    assert course.attempts == {task.number: end.attempts for task, end in ended}
    assert list(course.attempts) == [task.number for task, _ in ended]
    assert course.failed == sum(end.status is None for _, end in ended) > 0
    assert course.seconds == pool.now


def conserved(course: Course, sizes: list[int], workers: int) -> None:
    assert sorted(course.attempts) == list(range(len(sizes)))
    assert len(course.ended_at) == len(sizes)
    assert Counter(number for number, _ in course.begun) == course.attempts
    assert course.retries == len(course.begun) - len(sizes)
    assert course.ended_at == sorted(course.ended_at)
    assert course.seconds >= course.worked / workers
    assert 0 <= course.tail <= course.seconds


@pytest.mark.parametrize("costs", [{}, {"library": 0.01, "flush": 0.1}, {"flush": 0.5, "at_once": 1}])
def test_every_library_ends_once_and_no_worker_does_two_at_once(costs: dict[str, Any]) -> None:
    driver = Driver(**costs)
    sizes, attempts = table(5, 120)

    def attempt(number: int, tried: int) -> Attempt:
        return attempts[number, tried]

    for workers in (1, 7, 500):
        course = simulated(sizes, attempt, workers, driver=driver, is_traced=True)
        conserved(course, sizes, workers)
        assert course.seconds >= course.driven - driver.flush


def test_a_driver_that_takes_its_time_is_what_many_workers_wait_for() -> None:
    sizes, one = [1] * 100, Attempt(1.0, False)
    busy = simulated(sizes, lambda *_: one, 100, driver=Driver(library=0.25, flush=1.0))
    assert busy.seconds == 26.0
    one_by_one = simulated(sizes, lambda *_: one, 100, driver=Driver(library=0.25, flush=1.0, at_once=1))
    assert one_by_one.seconds == 1 + 100 * 0.25 + 99 * 1.0


def test_each_object_of_a_source_is_one_get() -> None:
    parts = json.loads(PARTS.read_text("utf-8"))
    few, many = (Libraries(parts, Assumed(libraries=50, more_objects=more)) for more in (0, 35))
    assert (many.gets - few.gets).tolist() == pytest.approx([35.0] * 50)
    assert (many.puts == few.puts).all()
    more = 35 * (1 / parts["staging"]["requests_at_once"] * parts["staging"]["seconds_per_request"])
    more += 35 * parts["staging"]["client_seconds_per_request"]
    assert many.mean - few.mean == pytest.approx(more)


def test_the_same_seed_gives_the_same_fleet() -> None:
    parts = json.loads(PARTS.read_text("utf-8"))
    assumed = Assumed(libraries=500, hours_to_loss=0.2, storage_errors=20)
    one, same = (line_of(8, parts, assumed, Driver()) for _ in range(2))
    assert one == same
    assert one["retries"] > 0
    assert 0 < one["efficiency"] <= 1
    assert one != line_of(8, parts, Assumed(libraries=500, hours_to_loss=0.2, storage_errors=20, seed=2), Driver())
    rows = Libraries(parts, Assumed(libraries=20_000))
    assert sorted(rows.sizes)[10_000] == pytest.approx(200 * parts["library"]["bytes_per_row"], rel=0.05)
