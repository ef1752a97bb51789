"""Several bases at once: the same result as one after the other, also when a process dies or the run is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import faults
import pytest
import stand_ins
from faults import (
    INTERRUPTED,
    REFUSED,
    STOPPED,
    Hold,
    Source,
    base_files,
    changed_source,
    left_over,
    library,
    line,
    marks,
    migrate,
    output_of,
    said,
    small_source,
    started,
    state_of,
    untouched,
    wait_until,
    write_vectors,
)
from golden_cases import as_backup
from harness import NOW, Outcome, run

from migrators.pipeline import workers
from regraft.errors import Interrupted
from regraft.ledger import ledger
from regraft.processes import pool

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends processes in native code with their parent")
posix = pytest.mark.skipif(os.name == "nt", reason="Windows has none of these signals")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    """Build four bases, the largest last and one of them a failed one; no run may change a byte of it."""
    source = small_source(tmp_path_factory.mktemp("jobs") / "source")
    source.base("delta", [faults.item("long", "note", "a long story")])
    write_vectors(source.vectors("delta"), {"long": 300}, length=200)
    source.write()
    before = state_of(source.folder)
    yield source
    assert state_of(source.folder) == before


@pytest.fixture(scope="module")
def alone(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrate the source in one process."""
    target = tmp_path_factory.mktemp("alone") / "library"
    assert migrate(source.folder, target, "--jobs", 1).status == 1
    return target


def ends_well(source: Source, target: Path, alone: Path) -> None:
    """Assert that the next run, in one process, completes the library and leaves alone what is finished."""
    finished = marks(target)
    assert migrate(source.folder, target, "--jobs", 1).status == 1
    assert library(target) == library(alone)
    assert left_over(target) == []
    assert marks(target).items() >= finished.items()


def holds(target: Path, alone: Path) -> None:
    """Assert that every base that is there is whole, and nothing else is."""
    whole = base_files(alone)
    for base, files in base_files(target).items():
        assert files == whole[base]
    assert left_over(target) == []


def told(document: dict[str, Any]) -> dict[str, Any]:
    """Return a report without when and where it was made."""
    text = json.dumps({name: part for name, part in document.items() if name not in ("run", "source", "target")})
    return json.loads(text.replace(json.dumps(document["target"]["path"])[1:-1], "<target>"))


# --- the same result -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", pytest.param("zip", marks=pytest.mark.slow)])
def test_two_processes_come_to_the_same(kind: str, source: Source, alone: Path, tmp_path: Path) -> None:
    path = source.folder if kind == "folder" else as_backup(source.folder, tmp_path / "backup.zip")
    one = migrate(path, tmp_path / "one", "--jobs", 1, "--json")
    two = migrate(path, tmp_path / "two", "--jobs", 2, "--json")
    assert two.stderr == ""
    assert told(two.document) == told(one.document)
    assert [base["legacy_id"] for base in two.document["bases"]] == ["alpha", "beta", "gamma", "delta"]
    assert library(tmp_path / "two") == library(tmp_path / "one") == library(alone)
    assert left_over(tmp_path / "two") == []
    with untouched(tmp_path / "two"):
        assert "Nothing to do: the source has not changed" in migrate(path, tmp_path / "two", "--jobs", 2).stdout


@pytest.mark.thorough
def test_a_changed_base_in_two_processes(tmp_path: Path) -> None:
    source, target = small_source(tmp_path / "source"), tmp_path / "library"
    migrate(source.folder, target, "--jobs", 2)
    changed_source(source)
    write_vectors(source.vectors("gamma"), {"lost": 1})
    done = migrate(source.folder, target, "--jobs", 2, "--json")
    assert [base["outcome"] for base in done.document["bases"]] == ["unchanged", "written", "written"]
    migrate(source.folder, tmp_path / "fresh", "--jobs", 1)
    assert library(target) == library(tmp_path / "fresh")


@pytest.mark.parametrize(
    ("wanted", "bases", "count"), [(None, 4, 1), (1, 4, 1), (2, 4, 2), (64, 4, 4), (2, 1, 1), (8, 0, 1)]
)
def test_no_more_processes_than_bases_and_none_for_small_ones(wanted: int | None, bases: int, count: int) -> None:
    assert workers.choose_process_count([small_job() for _ in range(bases)], wanted) == count


@pytest.mark.parametrize(("cores", "large", "count"), [(8, 6, 4), (8, 3, 3), (2, 6, 2), (None, 6, 1), (8, 0, 1)])
def test_as_many_processes_as_pay(cores: int | None, large: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("migrators.pipeline.workers.usable_cores", lambda: cores or 1)
    jobs = [small_job() for _ in range(3)] + [small_job(rows=1 << 20) for _ in range(large)]
    assert workers.choose_process_count(jobs, None) == count


@pytest.mark.parametrize(
    ("others", "wanted", "cores", "count"), [(4, None, 2, 1), (5, None, 2, 2), (4, 2, 2, 2), (4, None, 1, 1)]
)
def test_a_base_with_most_of_all_texts_is_helped_instead(
    others: int, wanted: int | None, cores: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "usable_cores", lambda: cores)
    monkeypatch.setattr("migrators.pipeline.workers.usable_cores", lambda: cores or 1)
    jobs = [small_job(rows=10 << 20)] + [small_job(rows=1 << 20) for _ in range(others)]
    assert workers.choose_process_count(jobs, wanted) == count


def test_one_of_many_processes_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.processes.pool._given_cores", 1)
    assert workers.choose_process_count([small_job(rows=1 << 20) for _ in range(4)], 2) == 1
    assert not pool.can_use_pool()


def small_job(rows: int = 10) -> Any:
    """Return as much of a job as its size is told by."""
    from types import SimpleNamespace

    plan = SimpleNamespace(body_bytes=rows * 20, vector_bytes=32, rows=SimpleNamespace(carried=rows), materials=())
    return SimpleNamespace(plan=plan)


# --- processes that fail -------------------------------------------------------------------------------------------


def test_a_killed_process_stops_the_run(
    source: Source, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "library"
    with monkeypatch.context() as patch:
        patch.setattr(workers, "_in_process", stand_ins.die_in_process)
        done = migrate(source.folder, target, "--jobs", 2, "--json")
    message = said(done, "StoppedMidway", STOPPED)
    assert "a worker process was killed" in message
    assert "run the same command again" in message
    holds(target, alone)
    ends_well(source, target, alone)


@pytest.mark.parametrize("code", ["VerificationFailed", pytest.param("BooksDoNotBalance", marks=pytest.mark.slow)])
def test_an_error_of_a_process_arrives_as_what_it_is(
    code: str, source: Source, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "library"
    with monkeypatch.context() as patch:
        patch.setattr(workers, "_in_process", getattr(stand_ins, f"raise_{code}"))
        done = migrate(source.folder, target, "--jobs", 2, "--json")
    assert "nothing of this base was published" in said(done, code, STOPPED)
    holds(target, alone)
    ends_well(source, target, alone)


@pytest.mark.slow
def test_a_full_disk_of_a_process_stops_the_run(
    source: Source, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "library"
    with monkeypatch.context() as patch:
        patch.setattr(workers, "_in_process", stand_ins.fill_up_in_process)
        done = migrate(source.folder, target, "--jobs", 2, "--json")
    assert "database or disk is full" in said(done, "StoppedMidway", STOPPED)
    holds(target, alone)
    ends_well(source, target, alone)


@pytest.mark.thorough
def test_publishing_that_fails_ends_the_processes(
    source: Source, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "library"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ledger.Ledger, "done", full)
        done = migrate(source.folder, target, "--jobs", 2, "--json")
    said(done, "StoppedMidway", STOPPED)
    holds(target, alone)
    ends_well(source, target, alone)


@pytest.mark.slow
@posix
def test_processes_end_though_nobody_listens_to_them(source: Source, alone: Path, tmp_path: Path) -> None:
    """What a process still had to report when the run stopped must not keep it, or the run, alive."""
    target = tmp_path / "library"
    with started(source.folder, target, "--jobs", "2", "--json", work="talk_and_fail") as process:
        stdout, stderr = output_of(process)
    said(Outcome(process.returncode, stdout, stderr), "VerificationFailed", STOPPED)
    holds(target, alone)
    ends_well(source, target, alone)


# --- interrupted ---------------------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("moment", [pytest.param("a base is begun", marks=pytest.mark.slow), "a base is in place"])
def test_control_c_in_parallel(moment: str, source: Source, alone: Path, tmp_path: Path) -> None:
    """Ctrl-C goes to every process of a terminal: one line is said, whenever it comes."""
    target = tmp_path / "library"
    staging = target / ".regraft" / "staging"
    hold = Hold(moment, target, tmp_path) if moment == "a base is in place" else None
    with started(source.folder, target, "--jobs", "2", "--quiet", work="" if hold else "stay", hold=hold) as process:
        if hold:
            hold.wait(process)
        else:
            assert wait_until(lambda: any(staging.rglob("index.sqlite")), process)
        os.killpg(process.pid, signal.SIGINT)
        if hold:
            hold.release()
        stdout, stderr = output_of(process)
    assert (process.returncode, stdout) == (INTERRUPTED, "")
    known = ledger.read_entries(target)
    finished = sum(base in known for base in base_files(alone)) + ("catalog" in known)
    assert stderr in [f"regraft: {Interrupted(finished=count)}\n" for count in range(finished + 1)]
    holds(target, alone)
    ends_well(source, target, alone)


@posix
def test_control_c_while_the_processes_are_set_up(source: Source, alone: Path, tmp_path: Path) -> None:
    target = tmp_path / "library"
    asked = ("migrate", str(source.folder), "--to", str(target), "--jobs", "2", "--quiet")
    with faults.started_command(*asked, before="interrupt_what_is_half_made") as process:
        stdout, stderr = output_of(process)
    assert (process.returncode, stdout, stderr) == (INTERRUPTED, "", f"regraft: {Interrupted(finished=0)}\n")
    holds(target, alone)
    ends_well(source, target, alone)


# --- ended from outside ----------------------------------------------------------------------------------------------


@contextmanager
def held_run(source: Path, target: Path, work: str) -> Iterator[tuple[subprocess.Popen[str], BinaryIO]]:
    """Start a run whose two processes hold still in ``work``; the pipe ends when they do."""
    way = target.parent / "pipe"
    os.mkfifo(way)
    with started(source, target, "--jobs", "2", "--json", work=work) as process, way.open("rb", buffering=0) as pipe:
        told = b""
        while len(told) < 2:
            told += pipe.read(1)
        yield process, pipe


@linux
@pytest.mark.parametrize(
    "work", ["hold_in_native_code", pytest.param("hold_without_the_system", marks=pytest.mark.slow)]
)
def test_processes_end_with_a_run_that_is_killed(work: str, source: Source, alone: Path, tmp_path: Path) -> None:
    target = tmp_path / "library"
    with held_run(source.folder, target, work) as (process, pipe):
        process.kill()
        # Their end is the pipe's end, and that of the output.
        assert pipe.read() == b""
        assert process.communicate() == ("", "")
    assert process.returncode == -signal.SIGKILL
    ends_well(source, target, alone)


@linux
@pytest.mark.parametrize(
    ("number", "to"), [("SIGTERM", "all of them"), pytest.param("SIGHUP", "the run", marks=pytest.mark.slow)]
)
def test_a_stop_ends_the_run_and_its_processes(
    number: str, to: str, source: Source, alone: Path, tmp_path: Path
) -> None:
    target = tmp_path / "library"
    with held_run(source.folder, target, "hold_in_native_code") as (process, pipe):
        (os.killpg if to == "all of them" else os.kill)(process.pid, signal.Signals[number])
        assert pipe.read() == b""
        stdout, stderr = process.communicate()
    said(Outcome(process.returncode, stdout, stderr), "Interrupted", INTERRUPTED)
    holds(target, alone)
    ends_well(source, target, alone)


@pytest.mark.thorough
@posix
@pytest.mark.parametrize("before", [pytest.param("hang_up_twice", marks=pytest.mark.slow), "terminate_twice"])
def test_a_stop_of_one_process(before: str, source: Source, alone: Path, tmp_path: Path) -> None:
    target = tmp_path / "library"
    asked = ("migrate", str(source.folder), "--to", str(target), "--jobs", "1", "--now", NOW, "--json")
    with faults.started_command(*asked, before=before) as process:
        stdout, stderr = process.communicate()
    assert "complete (bases or changes: 1)" in said(
        Outcome(process.returncode, stdout, stderr), "Interrupted", INTERRUPTED
    )
    assert len(ledger.read_entries(target)) == 1
    assert [run.status for run in ledger.read_runs(target)] == ["interrupted"]
    holds(target, alone)
    ends_well(source, target, alone)


@posix
def test_a_stop_while_a_command_is_loaded() -> None:
    """Python would kill itself by a signal where one came while it ran code out of a text."""
    with faults.started_command("inspect", "/", "--json", before="terminate_while_text_runs") as process:
        stdout, stderr = process.communicate()
    assert "complete (bases or changes: 0)" in said(
        Outcome(process.returncode, stdout, stderr), "Interrupted", INTERRUPTED
    )


@pytest.mark.slow
@posix
def test_nohup(source: Source, alone: Path, tmp_path: Path) -> None:
    target = tmp_path / "library"
    asked = ("migrate", str(source.folder), "--to", str(target), "--jobs", "2", "--now", NOW, "--json")
    with faults.started_command(*asked, before="ignore_that_the_terminal_goes") as process:
        _, stderr = process.communicate()
    assert (process.returncode, stderr) == (1, "")
    assert library(target) == library(alone)


# --- two runs at once ----------------------------------------------------------------------------------------------


@pytest.mark.thorough
@posix
def test_a_second_run_on_one_target_is_refused(source: Source, alone: Path, tmp_path: Path) -> None:
    target = tmp_path / "library"
    # It stands still, so that whatever changes would be the second run's doing.
    hold = Hold("a base is in place", target, tmp_path)
    with started(source.folder, target, "--quiet", "--jobs", "1", hold=hold) as process:
        hold.wait(process)
        with untouched(target, source.folder):
            text = line(run("migrate", source.folder, "--to", target), REFUSED)
            message = said(migrate(source.folder, target, "--json"), "TargetLocked", REFUSED)
        hold.release()
        stdout, stderr = output_of(process)
    assert text == message == f"{target}: another regraft process is using this target; wait until it has finished."
    assert (process.returncode, stderr) == (1, "")
    assert "Done: " in stdout
    assert library(target) == library(alone)
    assert migrate(source.folder, target).status == 1


@pytest.mark.slow
def test_runs_on_two_targets_do_not_mind_each_other(source: Source, alone: Path, tmp_path: Path) -> None:
    with started(source.folder, tmp_path / "one", "--jobs", "1") as process:
        assert migrate(source.folder, tmp_path / "two").status == 1
        output_of(process)
    assert process.returncode == 1
    assert library(tmp_path / "one") == library(tmp_path / "two") == library(alone)


def test_the_progress_of_a_process_adds_up_however_rarely_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, sent = [10.0], []
    monkeypatch.setattr(workers.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(workers.pool, "report_progress", sent.append)
    sender = workers._ProgressSender("alpha")
    steps = [(1.0, 10), (2.0, 20), (4.0, 40), (8.0, 80)]
    for number, step in enumerate(steps):
        sender.step(*step)
        # A person sees nothing of what comes sooner; after the third step, the time has come.
        clock[0] += workers._PROGRESS_SECONDS / 4 if number < 2 else workers._PROGRESS_SECONDS
    sender.send()
    assert {label for label, _, _ in sent} == {"alpha"}
    assert sum(rows for _, rows, _ in sent) == 15.0
    assert sum(size for _, _, size in sent) == 150
    assert 1 < len(sent) < len(steps) + 1
