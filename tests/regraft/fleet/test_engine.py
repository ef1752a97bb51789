"""What a fleet gives out when: cores and memory are never given twice, and large libraries get several cores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from extras import needs
from fleet_work import HerePool, helped, plain
from hypothesis import given
from hypothesis import strategies as st

from regraft.cli.fleet import parse_library_options as parse
from regraft.fleet import engine, manifest
from regraft.fleet.engine import LocalPool, Task, TaskError, TaskResult
from regraft.fleet.jobs import LibraryJob
from regraft.fleet.manifest import Library
from regraft.fleet.results import FleetOrder
from regraft.fleet.run import Fleet, is_retried
from regraft.processes import pool as processes_pool
from regraft.report.document import Run

FINE = TaskResult(status=0, seconds=0.1)


class Watched(HerePool):
    """Keeps the most cores and memory that were given out at a time, and what was begun in which order."""

    def __init__(self, count: int, memory: int) -> None:
        super().__init__(lambda _: FINE, count)
        self.memory = memory
        self.begun: list[Task] = []
        self.at_once: list[list[Task]] = []

    def start_task(self, task: Task) -> None:
        super().start_task(task)
        self.begun.append(task)
        self.at_once.append([each for each in self.begun if each.number in self.jobs])


def tasks(count: int, most_memory: int) -> st.SearchStrategy[list[Task]]:
    sizes = st.tuples(st.integers(0, 1 << 40), st.integers(1, count), st.integers(0, most_memory))
    return st.lists(sizes, max_size=12).map(
        lambda found: [
            Task(number=number, job=None, bytes=size, cores=cores, memory=needed)
            for number, (size, cores, needed) in enumerate(found)
        ]
    )


@given(st.integers(1, 6).flatmap(lambda count: st.tuples(st.just(count), tasks(count, 150))))
def test_cores_and_memory_are_never_given_twice(case: tuple[int, list[Task]]) -> None:
    count, found = case
    pool = Watched(count, 100)
    ended = list(engine.Schedule(found, pool, attempts=1))
    assert sorted(task.number for task, _ in ended) == [task.number for task in found]
    for together in pool.at_once:
        assert len(together) == 1 or sum(task.cores for task in together) <= count
        assert len(together) == 1 or sum(task.memory for task in together) <= 100
    # The largest come first, unless a smaller one finds room that the larger one does not.
    if all(task.cores == 1 and task.memory * count <= 100 for task in found):
        assert [task.bytes for task in pool.begun] == sorted((task.bytes for task in found), reverse=True)


def test_small_ones_take_what_a_large_one_leaves() -> None:
    sizes = [(100, 3), (50, 2), (10, 1)]
    found = [Task(number=number, job=None, bytes=size, cores=cores) for number, (size, cores) in enumerate(sizes)]
    pool = Watched(4, 100)
    assert len(list(engine.Schedule(found, pool, attempts=1))) == 3
    assert [task.number for task in pool.begun] == [0, 2, 1]


def test_what_has_to_wait_waits_at_least_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(engine.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(engine.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + max(seconds, 0.001)))
    held = TaskResult(status=3, seconds=0.1, wait_seconds=42.0)
    answers = iter([held, FINE])
    begun: list[float] = []

    class Pool(HerePool):
        def start_task(self, task: Task) -> None:
            super().start_task(task)
            begun.append(now[0])

    pool = Pool(lambda _: next(answers), 1)
    [(_, ended)] = engine.Schedule([Task(number=0, job=None)], pool, attempts=2, is_retried=lambda one: one.status == 3)
    assert (ended.status, ended.attempts) == (0, 2)
    assert begun[1] - begun[0] >= 42.0


@pytest.mark.parametrize(("first", "attempts"), [(TaskResult(status=None, seconds=0.1), 3), (FINE, 1)])
def test_a_lock_of_one_that_was_killed_is_waited_for(first: TaskResult, attempts: int) -> None:
    """Where a machine was lost, its process may be at work for a while longer."""
    locked = TaskResult(status=2, error=TaskError(code="TargetLocked", message=""), seconds=0.1)
    answers = iter([first, locked, FINE] if first.status is None else [locked])
    [(_, ended)] = engine.Schedule(
        [Task(number=0, job=None)],
        HerePool(lambda _: next(answers), 1),
        attempts=3,
        is_retried=is_retried,
        pause_seconds=0.001,
    )
    assert ended.attempts == attempts


def test_a_lock_of_a_task_that_its_pool_has_submitted_again_is_waited_for() -> None:
    """The first submission may have started just before it was cancelled."""
    locked = TaskResult(status=2, error=TaskError(code="TargetLocked", message=""), is_after_kill=True)
    answers = iter([locked, FINE])
    pool = HerePool(lambda _: next(answers), 1)
    [(_, ended)] = engine.Schedule(
        [Task(number=0, job=None)], pool, attempts=3, is_retried=is_retried, pause_seconds=0.001
    )
    assert (ended.status, ended.attempts, ended.is_after_kill) == (0, 2, True)


# --- large libraries -------------------------------------------------------------------------------------------------


def jobs_of(sizes: dict[str, int], cores: int, tmp_path: Path) -> dict[str, LibraryJob]:
    """Return the jobs that a fleet gives out for libraries of these sizes."""
    jobs: dict[str, LibraryJob] = {}

    def work(job: LibraryJob) -> TaskResult:
        jobs[job.source] = job
        return FINE

    libraries = tuple(Library(source=name, bytes=size) for name, size in sizes.items())
    order = FleetOrder(command="check", options=("--deep",), libraries=libraries, id="f")
    pool = partial(HerePool, work, cores)
    Fleet(parse=parse, order=order, path=tmp_path / "out.parquet", pool=pool).run(Run(command="fleet check"))
    return jobs


@needs("parquet")
def test_a_library_that_is_much_of_all_has_several_cores(tmp_path: Path) -> None:
    jobs = jobs_of({"large": 6 << 30, "small": 1 << 30, "smaller": 1 << 30}, 4, tmp_path)
    assert {name: job.cores for name, job in jobs.items()} == {"large": 3, "small": 1, "smaller": 1}
    assert jobs["large"] == LibraryJob(
        command="check", options=parse("check", ("--deep",)), source="large", fleet="f", cores=3
    )


@needs("parquet")
def test_small_libraries_have_one_core_each(tmp_path: Path) -> None:
    assert [job.cores for job in jobs_of({"alone": 1 << 20}, 4, tmp_path).values()] == [1]


@pytest.mark.thorough
def test_a_process_with_several_cores_has_helpers_and_one_with_one_has_none(tmp_path: Path) -> None:
    jobs = [LibraryJob(command="check", options=plain("check"), source="x", cores=cores) for cores in (1, 2, 1)]
    found: list[Any] = []
    with closing(LocalPool(helped, 2)) as pool:
        for number, job in enumerate(jobs):
            [(_, ended)] = engine.Schedule([Task(number=number, job=job)], pool, attempts=1)
            found.append(json.loads(ended.summary.totals))
    several = min(2, processes_pool.usable_cores())
    one = {"cores": 1, "helped": False}
    assert found == [one, {"cores": several, "helped": several > 1}, one]


def test_a_process_has_the_cores_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes_pool, "_given_cores", 1)
    assert (processes_pool.usable_cores(), processes_pool.can_use_pool()) == (1, False)
    monkeypatch.setattr(processes_pool, "_given_cores", 1 << 20)
    assert 1 <= processes_pool.usable_cores() < 1 << 20


# --- memory ----------------------------------------------------------------------------------------------------------


def test_a_library_takes_more_memory_the_larger_it_is_and_the_more_help_it_has() -> None:
    small = engine.planned_memory(0, 1)
    assert 100 << 20 < small < 300 << 20
    assert engine.planned_memory(1 << 30, 1) > small
    assert engine.planned_memory(0, 2) > small


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 1000000 kB\n"}, 921_600_000),
        (
            {
                "/proc/meminfo": "MemAvailable: 1000000 kB\n",
                "/sys/fs/cgroup/memory.max": "5000",
                "/sys/fs/cgroup/memory.current": "1000",
                "/sys/fs/cgroup/memory.stat": "anon 300\ninactive_file 700\n",
            },
            4_230,
        ),
        (
            {
                "/proc/meminfo": "MemAvailable: 1000000 kB\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "5000",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": "1000",
                "/sys/fs/cgroup/memory/memory.stat": "total_inactive_file 0\n",
            },
            3_600,
        ),
        (
            {
                "/proc/meminfo": "MemAvailable: 1000000 kB\n",
                "/sys/fs/cgroup/memory.max": "max",
                "/sys/fs/cgroup/memory.current": "1000",
                "/sys/fs/cgroup/memory.stat": "inactive_file 0\n",
            },
            921_600_000,
        ),
    ],
)
def test_what_the_system_says_of_memory_counts(
    files: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path) -> str:
        try:
            return files[path.as_posix()]
        except KeyError as error:
            raise FileNotFoundError(path) from error

    monkeypatch.setattr(Path, "read_text", read)
    assert engine.available_memory() == expected


def test_a_system_that_says_nothing_has_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object) -> Iterator[None]:
        raise OSError

    monkeypatch.setattr(Path, "read_text", nothing)
    monkeypatch.setattr("os.sysconf", nothing, raising=False)
    assert engine.available_memory() > 1 << 39


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_sizes_are_looked_up_where_nobody_has_said_them(bucket: str, tmp_path: Path) -> None:
    from regraft.fleet.storage import storage_path

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"12345")
    storage_path(f"{bucket}/x/one").put(b"123")
    storage_path(f"{bucket}/x/two").put(b"4567")
    names = [str(tmp_path / "a"), str(tmp_path / "missing"), f"{bucket}/x", f"{bucket}/x/two", f"{bucket}-no/x"]
    found = [Library(source=name) for name in names]
    assert list(manifest.source_sizes([*found, Library(source="told", bytes=9)])) == [5, 0, 7, 4, 0, 9]
