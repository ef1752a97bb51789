"""Processes that do jobs: in threads of this process, and in processes of their own."""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import crews
import pytest

from regraft.processes import pool
from regraft.processes.pool import JobFailed, ProcessPool


def double(number: Any) -> Any:
    """Do a job."""
    return 2 * number


def stumble(reason: str) -> None:
    """Fail in a job."""
    raise LookupError(reason)


def write(path: Path, text: str) -> None:
    """Write a text behind what is there."""
    with path.open("a") as file:
        file.write(text)


def wait_for(path: Path) -> None:
    """Do a job until there is a file."""
    while not path.exists():
        time.sleep(0.001)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_job_is_answered_whatever_the_order(count: int) -> None:
    with crews.of_threads(count) as helpers:
        assert not helpers.is_started
        jobs = [helpers.put(double, number) for number in range(40)]

        assert [helpers.take(job) for job in reversed(jobs)] == [2 * number for number in reversed(range(40))]


def test_a_job_that_fails_says_why_and_the_next_ones_are_done() -> None:
    with crews.of_threads(1) as helpers:
        failing, fine = helpers.put(stumble, "no such thing"), helpers.put(double, 4)

        with pytest.raises(JobFailed, match="no such thing"):
            helpers.take(failing)
        assert helpers.take(fine) == 8


def test_what_is_forgotten_is_not_answered_and_does_not_stand_for_another() -> None:
    with crews.of_threads(1) as helpers:
        forgotten = [helpers.put(double, number) for number in range(20)]
        helpers.forget()
        job = helpers.put(double, 100)

        assert helpers.take(job) == 200
        assert not any(helpers.is_answered(one) for one in forgotten)


def test_a_crew_settles_before_anybody_takes_away_what_it_works_on(tmp_path: Path) -> None:
    with crews.of_threads(2) as helpers:
        gate, log = tmp_path / "gate", tmp_path / "log"
        helpers.put(wait_for, gate)
        helpers.put(wait_for, gate)
        for _ in range(2):
            helpers.put(write, log, "done ")
        for _ in range(30):
            helpers.put(write, log, "late ")
        gate.touch()
        helpers.drain()

        seen = log.read_text("utf-8")
        assert seen.count("done") == 2
        assert seen.count("late") < 30
        assert helpers.has_room()
        assert log.read_text("utf-8") == seen


def test_room_is_where_a_process_would_soon_have_nothing_to_do(tmp_path: Path) -> None:
    with crews.of_threads(1) as helpers:
        assert not helpers.has_room()
        jobs = [helpers.put(wait_for, tmp_path / "gate")]
        assert helpers.has_room() and not helpers.has_room(left=0)
        jobs += [helpers.put(double, number) for number in range(3)]
        assert not helpers.has_room()
        (tmp_path / "gate").touch()
        for job in jobs:
            helpers.take(job)
        assert helpers.has_room(left=0)


def test_processes_that_cannot_be_started_are_a_failure() -> None:
    def start() -> crews.PipeWorker:
        raise OSError("no room for a process")

    with pytest.raises(JobFailed, match="no room for a process"):
        ProcessPool(1, start=start).put(double, 1)


def test_a_process_that_is_killed_is_a_failure() -> None:
    here, there = Pipe()
    with closing(here):
        helpers = crews.of_pipe(here)
        job = helpers.put(double, 1)
        there.close()
        with pytest.raises(JobFailed, match="a process was killed"):
            helpers.take(job)
        with pytest.raises(JobFailed, match="a process was killed"):
            helpers.put(double, 1)


def test_what_does_not_fit_into_a_pipe_is_said_to_who_has_nothing_else_to_do(tmp_path: Path) -> None:
    """Who is told more than a pipe holds while it has an answer that the pipe does not hold would never be told."""
    here, there = Pipe()
    said: list[int] = []

    def noted(call: memoryview) -> None:
        said.append(len(call))
        Connection.send_bytes(here, call)

    here.send_bytes = noted  # type: ignore[assignment]
    thread = threading.Thread(target=crews.serve, args=(there,))
    thread.start()
    large = bytes(1 << 22)
    with closing(here):
        helpers = crews.of_pipe(here)
        jobs = [helpers.put(wait_for, tmp_path / "gate"), helpers.put(double, 1)]
        assert len(said) == 2
        jobs += [helpers.put(double, more) for more in (large, 1, large, large, 1)]
        assert len(said) == 2
        (tmp_path / "gate").touch()
        answers = [helpers.take(job) for job in jobs]
    thread.join()

    assert answers[1:] == [2, 2 * large, 2, 2 * large, 2 * large, 2]
    assert [size > len(large) for size in said] == [False, False, True, False, True, True, False]


@pytest.mark.thorough
def test_a_crew_of_processes_ends_with_its_context() -> None:
    if not pool.can_use_pool():
        pytest.skip("one core alone")
    with pool.open_pool() as helpers:
        assert not helpers.is_started
        numbers = {helpers.take(helpers.put(os.getpid)) for _ in range(8)}
        assert os.getpid() not in numbers
        assert helpers.take(helpers.put(abs, -3)) == 3
        helpers.end()
        assert not helpers.is_started
        more = {helpers.take(helpers.put(os.getpid)) for _ in range(8)}
        assert not numbers & more
        numbers |= more

    for number in numbers if os.name != "nt" else ():
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)
