"""One command over many libraries: the same as one after the other, whatever stops on the way."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from extras import needs, optional
from fleet_libraries import NOW, content, libraries_in, rows_in
from fleet_work import TROUBLE, put_in_place
from harness import REPO, Outcome, run, run_as_given, snapshot

from regraft.api.fleet import run_job
from regraft.cli.fleet import parse_library_options as parse
from regraft.disk import durable
from regraft.errors import FleetInterrupted
from regraft.fleet import engine, results
from regraft.fleet.engine import LocalPool, Task, TaskResult
from regraft.fleet.manifest import Library
from regraft.fleet.results import FleetOrder
from regraft.fleet.run import Fleet, is_retried
from regraft.fleet.status import FleetReport, Tally, make_report
from regraft.report.document import Run

pq = optional("pyarrow.parquet")
#: What is said of a quote that is not closed.
NOT_CLOSED = "a quote is not closed" if os.name == "nt" else "No closing quotation"
pytestmark = needs("parquet")

SAMPLE = REPO / "sample_v1" / "backup"


@pytest.fixture(scope="module")
def backups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder of three backups, one of them damaged, and something that is none."""
    folder = tmp_path_factory.mktemp("backups")
    for name in ("anna", "boris", "clara"):
        shutil.copytree(SAMPLE, folder / name)
    for file in sorted((folder / "boris").rglob("KnowledgeBase/*")):
        file.write_bytes(file.read_bytes()[:6_000])
    (folder / "notes.txt").write_text("no knowledge base")
    (folder / ".hidden").mkdir()
    return folder


def fleet(*arguments: object) -> Outcome:
    return run_as_given("fleet", *arguments)


@pytest.fixture(scope="module")
def migrated(backups: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """Migrate all backups with two processes."""
    folder = tmp_path_factory.mktemp("migrated")
    done = fleet(
        "migrate", backups, "--to", folder / "libraries", "--results", folder / "out.parquet", "--workers", 2, "--json",
        "--", "--now", NOW, "--jobs", 2,
    )  # fmt: skip
    return folder, done


def test_a_fleet_comes_to_what_one_after_the_other_comes_to(
    backups: Path, migrated: tuple[Path, Outcome], tmp_path: Path
) -> None:
    folder, done = migrated
    assert (done.status, done.document["libraries"]) == (2, {"all": 4, "refused": 1, "worth-reading": 3})

    for name in ("anna", "boris", "clara"):
        alone = run("migrate", backups / name, "--to", tmp_path / name, "--now", NOW, "--json")
        assert content(folder / "libraries" / name) == content(tmp_path / name)
        own, *bases = [row for row in rows_in(folder / "out.parquet") if row["source"] == str(backups / name)]
        assert (own["exit_status"], own["rows_carried"]) == (alone.status, alone.document["totals"]["rows"]["carried"])
        assert json.loads(own["totals"]) == alone.document["totals"]
        assert [base["base"] for base in bases] == [base["id"] for base in alone.document["bases"]]
        assert [base["outcome"] for base in bases] == [base["status"] for base in alone.document["bases"]]
    assert not (folder / "out.parquet.journal").exists()
    assert not (folder / "libraries" / "notes").exists()


def test_what_is_refused_has_its_reason_and_is_not_tried_again(migrated: tuple[Path, Outcome]) -> None:
    folder, done = migrated
    row = libraries_in(folder / "out.parquet")["notes.txt"]
    assert (row["outcome"], row["code"], row["attempts"]) == ("refused", "SourceUnrecognised", 1)
    [failed] = done.document["failed"]
    assert (failed["code"], failed["message"]) == (row["code"], row["message"])


def test_checks_of_all_libraries_tell_their_findings(migrated: tuple[Path, Outcome], tmp_path: Path) -> None:
    folder, _ = migrated
    done = fleet("check", str(folder / "libraries" / "*"), "--results", tmp_path / "checked.parquet", "--", "--deep")
    found = libraries_in(tmp_path / "checked.parquet")
    assert done.status == 1
    assert found.keys() == {"anna", "boris", "clara"}
    assert json.loads(found["anna"]["findings"])["base.failed"] == 1
    assert "3 libraries: 3 worth reading." in done.stdout
    assert done.stderr.count("\n") == 3


@pytest.mark.thorough
def test_export_and_upgrade_take_their_targets(migrated: tuple[Path, Outcome], tmp_path: Path) -> None:
    folder, _ = migrated
    pattern = str(folder / "libraries" / "[ac]*")
    done = fleet("export", pattern, "--to", tmp_path, "--results", tmp_path / "exported.parquet", "-q")
    assert (done.stderr, sorted(libraries_in(tmp_path / "exported.parquet"))) == ("", ["anna", "clara"])
    assert pq.read_table(tmp_path / "anna.parquet").num_rows == pq.read_table(tmp_path / "clara.parquet").num_rows > 0
    assert fleet("upgrade", pattern, "--results", tmp_path / "upgraded.parquet", "--yes").status == 0


def test_libraries_are_not_changed_without_consent(
    migrated: tuple[Path, Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern, out = str(migrated[0] / "libraries" / "*"), tmp_path / "out.parquet"
    done = fleet("repair", pattern, "--results", out, "--json")
    assert (done.status, done.document["error"]["code"], list(tmp_path.iterdir())) == (2, "ConsentMissing", [])
    monkeypatch.setattr("regraft.cli.fleet.confirm_plan", lambda lines, **_: "over 3 libraries" not in lines[0])
    done = fleet("repair", pattern, "--results", out, "--json")
    assert (done.status, done.document["error"]["code"], list(tmp_path.iterdir())) == (2, "Declined", [])
    assert fleet("repair", pattern, "--results", out, "-q", "--", "--dry-run").status in (0, 1)


# --- going on --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_resume_works_on_what_did_not_end_well(backups: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    shutil.copytree(backups, folder, ignore=shutil.ignore_patterns("boris", "clara"))
    out = tmp_path / "out.parquet"
    assert fleet("migrate", folder, "--to", tmp_path / "libraries", "--results", out, "-q").status == 2
    before = libraries_in(out)
    (folder / "notes.txt").unlink()
    shutil.copytree(SAMPLE, folder / "notes.txt")

    done = fleet("resume", out, "--json")

    after = libraries_in(out)
    assert (done.status, after["anna"]) == (1, before["anna"])
    assert (after["notes.txt"]["outcome"], done.document["libraries"]["all"]) == ("worth-reading", 2)
    # Nothing is left to do.
    assert fleet("resume", out, "-q").status == 1
    assert libraries_in(out) == after


def test_a_stop_leaves_a_journal_from_which_the_next_run_goes_on(backups: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    names = ("anna", "clara")
    order = FleetOrder(
        command="migrate",
        options=("--now", NOW),
        libraries=tuple(Library(source=str(backups / name), target=str(tmp_path / name)) for name in names),
    )

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    work = Fleet(parse=parse, order=order, path=out, pool=lambda: LocalPool(run_job, 1))
    with pytest.raises(
        FleetInterrupted, match=r"libraries are complete \(1\); continue with: regraft fleet resume .*out\.parquet"
    ):
        work.run(Run(command="fleet migrate"), stop)
    assert not out.exists()
    # A line that was torn by a power cut.
    with (tmp_path / "out.parquet.journal").open("ab") as file:
        file.write(b'[{"library":1,"sou')

    assert fleet("resume", out, "-q").status == 1
    assert {row["run"] is not None for row in libraries_in(out).values()} == {True}
    assert sorted(libraries_in(out)) == list(names)
    assert content(tmp_path / "anna").keys() == content(tmp_path / "clara").keys()


def test_ctrl_c_is_one_line_that_says_how_to_go_on(
    backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.Schedule, "__iter__", stopped)
    done = fleet("check", backups, "--results", tmp_path / "out.parquet", "--json")
    assert (done.status, done.document["error"]["code"]) == (130, "FleetInterrupted")
    assert done.stderr.count("\n") == 1
    assert f"continue with: regraft fleet resume {tmp_path / 'out.parquet'}" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet.journal"]


def test_ctrl_c_just_after_the_journal_was_made_says_how_to_go_on(
    backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command would be refused."""
    replace = durable.replace

    def replace_and_stop(old: Path, new: Path) -> None:
        replace(old, new)
        raise KeyboardInterrupt

    monkeypatch.setattr(durable, "replace", replace_and_stop)
    done = fleet("check", backups, "--results", tmp_path / "out.jsonl", "--json")
    assert (done.status, done.document["error"]["code"]) == (130, "FleetInterrupted")
    monkeypatch.undo()
    assert fleet("status", tmp_path / "out.jsonl").stdout.splitlines() == [
        "regraft fleet check: interrupted; 4 of 4 libraries without a result."
    ]
    assert fleet("resume", tmp_path / "out.jsonl", "-q").status == 2


def test_a_full_disk_of_the_results_says_how_to_go_on(
    backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results.Journal, "add", full)
    done = fleet("check", backups, "--results", tmp_path / "out.jsonl", "--json")
    assert (done.status, done.document["error"]["code"]) == (3, "StoppedBySystem")
    said = f"No space left on device; continue with: regraft fleet resume {tmp_path / 'out.jsonl'}."
    assert said in done.document["error"]["message"]
    monkeypatch.undo()
    assert fleet("resume", tmp_path / "out.jsonl", "-q").status == 2


def test_results_that_cannot_be_written_again_are_not_resumed(
    backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fleet("check", backups, "--results", tmp_path / "out.jsonl", "-q").status == 2
    # As on a disk that is mounted read-only, also for an administrator.
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **more: mode != os.W_OK and access(path, mode, **more))
    done = fleet("resume", tmp_path / "out.jsonl", "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "TargetNotWritable")
    assert "no permission to write to its folder" in done.document["error"]["message"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out.jsonl"]


# --- what fails ------------------------------------------------------------------------------------------------------


def trouble(tmp_path: Path, *troubles: str, attempts: int = 3) -> list[dict[str, Any]]:
    """Return the rows of libraries that get into trouble while they are worked on."""
    read_manifest = tuple(Library(source=str(tmp_path / f"{number} {one}")) for number, one in enumerate(troubles))
    order = FleetOrder(command="check", options=(), libraries=read_manifest)
    out = tmp_path / "out.parquet"
    pool = partial(LocalPool, TROUBLE, 2)
    work = Fleet(parse=parse, order=order, path=out, pool=pool, attempts=attempts, pause_seconds=0.01)
    work.run(Run(command="fleet check"))
    return [row for row in rows_in(out) if row["base"] is None]


@pytest.mark.thorough
def test_a_killed_process_takes_only_its_library_along(tmp_path: Path) -> None:
    rows = trouble(tmp_path, "fine", "killed", "fine", "killed once", "fine")
    assert [row["outcome"] for row in rows] == ["done", "killed", "done", "done", "done"]
    assert [row["attempts"] for row in rows] == [1, 3, 1, 2, 1]
    assert (rows[1]["exit_status"], rows[1]["code"], rows[1]["host"]) == (None, "ProcessKilled", socket.gethostname())
    if os.name != "nt":
        assert rows[1]["message"] == "the process was killed (SIGKILL), as systems do when memory is full"
    assert rows[1]["pid"] not in (None, os.getpid())


def test_what_the_system_stopped_is_tried_again_and_what_is_regraft_own_fault_is_not(tmp_path: Path) -> None:
    rows = trouble(tmp_path, "full once", "full", "fault", "refused", attempts=2)
    assert [(row["outcome"], row["attempts"]) for row in rows] == [
        ("done", 2),
        ("stopped", 2),
        ("stopped", 1),
        ("refused", 1),
    ]
    assert [row["code"] for row in rows] == [None, "StoppedBySystem", "FaultOfRegraft", "WrongUsage"]


def test_a_fleet_whose_first_libraries_are_refused_for_one_reason_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(monkeypatch)
    out = tmp_path / "out.parquet"
    (tmp_path / "m.csv").write_text("source\n" + "".join(f"nowhere-{number}\n" for number in range(12)), "utf-8")
    done = fleet("check", tmp_path / "m.csv", "--results", out, "--json")
    error = done.document["error"]
    assert (done.status, error["code"]) == (2, "FleetRefused")
    assert "The first 10 libraries were refused for the same reason (SourceNotFound: " in error["message"]
    assert f"regraft fleet resume {out}" in error["message"]
    assert not out.exists()
    assert len(results.read_results(out)[1]) == 10

    done = fleet("resume", out, "--keep-going", "--json")
    assert (done.status, done.document["libraries"]) == (2, {"all": 12, "refused": 12})


@pytest.mark.parametrize(("count", "different"), [(10, 0), (12, 1)])
def test_few_libraries_and_different_reasons_stop_no_fleet(
    count: int, different: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(monkeypatch)
    out = tmp_path / "out.parquet"
    (tmp_path / "notes").write_text("no knowledge base")
    sources = ["notes"] * different + [f"nowhere-{number}" for number in range(count - different)]
    (tmp_path / "m.csv").write_text("source\n" + "".join(f"{source}\n" for source in sources), "utf-8")
    done = fleet("check", tmp_path / "m.csv", "--results", out, "--json")
    assert (done.status, done.document["libraries"]) == (2, {"all": count, "refused": count})


def test_a_process_has_its_next_task_before_somebody_writes_down_how_one_ended() -> None:
    given: list[int] = []

    class AtOnce:
        """A pool of one process that ends each task at once."""

        cores = slots = 1
        memory = 1 << 40

        def __init__(self) -> None:
            self.running: list[int] = []

        def start_task(self, task: Task) -> None:
            given.append(task.number)
            self.running.append(task.number)

        def answers(self, seconds: float) -> Iterator[tuple[int, TaskResult]]:
            ready, self.running = self.running, []
            for number in ready:
                yield number, TaskResult(status=0)

        def close(self) -> None:
            """Nothing is open."""

    tasks = [Task(number=number, job=None) for number in range(3)]
    ends = engine.Schedule(tasks, AtOnce(), attempts=1, is_retried=is_retried)
    assert [(task.number, list(given)) for task, _ in ends] == [(0, [0, 1]), (1, [0, 1, 2]), (2, [0, 1, 2])]


def test_the_exit_status_is_that_of_the_worst(tmp_path: Path) -> None:
    from regraft.fleet.status import fleet_exit_status

    def status(*statuses: int | None) -> int:
        ends = [TaskResult(status=one, seconds=0) for one in statuses]
        library, task = Library(source="x"), Task(number=0, job=None)
        tally = Tally()
        for end in ends:
            tally.add(results.result_rows(library, task, "check", end))
        return fleet_exit_status(make_report(FleetReport, Run(command="fleet check"), tally, len(statuses)))

    assert [status(0), status(0, 1), status(1, 2, 0), status(2, 3), status(None, 0)] == [0, 1, 2, 3, 3]
    assert is_retried(TaskResult(status=3, seconds=0))


#: Options of a library, and what is said of them.
UNUSABLE: dict[str, tuple[str, list[str], str]] = {
    "help": ("check", ["--help"], "--help only displays information"),
    "help, short": ("check", ["-h"], "--help only displays"),
    "a report": ("check", ["--report", "page.html"], "--report writes an extra file"),
    "a report of a migration": ("migrate", ["--report=page.html"], "--report writes an extra file"),
    "a report that takes the next word for its name": ("check", ["--report"], "--report"),
    "a value that takes the next word": ("check", ["--deep", "--base"], "--base"),
    "none of the command": ("check", ["--carry-text"], "No such option"),
    "another source": ("check", ["/etc"], "/etc is not an option"),
    "a target of its own": ("migrate", ["--to", "elsewhere"], "--to: targets are named by the manifest"),
    "a value that is none": ("migrate", ["--jobs", "0"], "0 is not in the range 1<=x<=64"),
    "levels that exclude each other": ("check", ["--quick", "--deep"], "--quick and --deep exclude each other"),
    "another target": ("export", ["elsewhere.parquet"], "elsewhere.parquet is not an option"),
    "the end of all options": ("export", ["--"], "-- is not an option"),
    "paths behind the end": ("export", ["--", "a", "b"], "a is not an option"),
}


def unusable(backups: Path, tmp_path: Path, case: str) -> tuple[list[object], str]:
    """Write a manifest whose second library has such options; return the command line, and what is said of it."""
    command, words, message = UNUSABLE[case]
    rows: list[dict[str, Any]] = [{"source": str(backups / name)} for name in ("clara", "anna")]
    rows[1]["options"] = words
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    to = [] if command == "check" else ["--to", tmp_path / "to"]
    return [command, tmp_path / "m.jsonl", *to, "--results", tmp_path / "out.parquet", "-q"], message


@pytest.mark.parametrize("case", UNUSABLE)
def test_options_that_no_library_can_have_are_refused_before_anything_is_done(
    case: str, backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    line, message = unusable(backups, tmp_path, case)
    before = snapshot(tmp_path)
    done = fleet(*line)
    assert (done.status, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert message in done.stderr
    assert f"{backups / 'anna'}: " in done.stderr
    # All have them.
    _, words, _ = UNUSABLE[case]
    done = fleet(*line[:1], backups, *line[2:], "--", *words)
    if "--" not in words:
        assert (done.status, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert message in done.stderr
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("case", UNUSABLE)
def test_results_of_somebody_else_bring_no_such_options(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, words, message = UNUSABLE[case]
    target = None if command == "check" else str(tmp_path / "target")
    library = Library(source=str(tmp_path / "source"), target=target)
    own = Library(source=str(tmp_path / "own"), target=target and f"{target}.2", options=tuple(words))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for number, order in enumerate(
        (
            FleetOrder(command=command, options=tuple(words), libraries=(library,)),
            FleetOrder(command=command, options=(), libraries=(library, own)),
        )
    ):
        out = tmp_path / f"{number}.parquet"
        results.Journal(out, order, []).close()
        before = snapshot(tmp_path)
        done = fleet("resume", out)
        assert (done.status, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
        assert message in done.stderr
        assert snapshot(tmp_path) == before


def test_options_that_a_library_can_have_are_taken(backups: Path, tmp_path: Path) -> None:
    rows = [{"source": str(backups / "anna"), "options": "--base nothing --fail-on=never -v"}]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    done = fleet("check", tmp_path / "m.jsonl", "--results", tmp_path / "out.parquet", "-q", "--", "--fail-on", "never")
    assert "option" not in done.stderr
    assert libraries_in(tmp_path / "out.parquet")["anna"]["code"] in (None, "BaseUnknown")


@pytest.mark.skipif(os.name == "nt", reason="there are no such pipes there")
@pytest.mark.parametrize("name", ["out.parquet", "out.parquet.journal", "link"])
def test_a_pipe_in_the_place_of_results_is_not_waited_for(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    if name == "link":
        os.mkfifo(tmp_path / "pipe")
        out.symlink_to(tmp_path / "pipe")
    else:
        os.mkfifo(tmp_path / name)
    before = sorted(tmp_path.iterdir())
    done = fleet("resume", out, "--json")
    code, message = (
        ("SourceNotFound", "out.parquet: no such file or folder")
        if name.endswith("journal")
        else ("WrongUsage", "out.parquet is not a results file of a fleet: it is a pipe, a socket or a device")
    )
    assert (done.status, done.document["error"]["code"]) == (2, code)
    assert message in done.document["error"]["message"]
    assert sorted(tmp_path.iterdir()) == before


def test_an_empty_journal_has_nothing_to_resume_and_the_run_may_begin_again(backups: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    journal = tmp_path / "out.jsonl.journal"
    journal.touch()
    for command in ("resume", "status"):
        done = fleet(command, out, "--json")
        assert (done.status, done.document["error"]["code"]) == (2, "WrongUsage")
        assert (
            f"{journal} is empty: nothing was recorded (give the command that began this run again)"
            in (done.document["error"]["message"])
        )
        assert journal.exists()
    assert fleet("check", f"{backups}/ann*", "--results", out, "-q").status == 1
    assert (out.exists(), journal.exists()) == (True, False)


def test_two_runs_do_not_work_on_one_fleet(backups: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    assert fleet("check", f"{backups}/ann*", "--results", out, "-q").status == 1
    before = snapshot(tmp_path)
    with results.lock_results(out):
        done = fleet("resume", out, "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "WrongUsage")
    assert "another regraft process is using" in done.document["error"]["message"]
    assert snapshot(tmp_path) == before


def test_a_torn_line_of_a_journal_is_passed_over(tmp_path: Path) -> None:
    out, library = tmp_path / "out.parquet", Library(source="x")
    order = FleetOrder(command="check", options=(), libraries=(library, library, library))
    ended = TaskResult(status=0, seconds=0)
    rows = [results.result_rows(library, Task(number=number, job=None), "check", ended) for number in range(3)]
    with closing(results.Journal(out, order, [rows[0]])) as journal:
        journal.add(rows[2])
    path = results.journal_path(out)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], b'[{"libr', *lines[2:]]))
    assert results.read_results(out) == (order, {0: rows[0], 2: rows[2]})


# --- manifests -------------------------------------------------------------------------------------------------------


def in_csv(folder: Path) -> Path:
    path = folder / "libraries.csv"
    path.write_text("\ufeffsource,target,options\none,../out,--deep --only 'base.failed'\ntwo,,\n", "utf-8")
    return path


def in_json(folder: Path) -> Path:
    path = folder / "libraries.jsonl"
    rows = [{"source": "one", "target": "../out", "options": ["--deep", "--only", "base.failed"]}, {"source": "two"}]
    path.write_text("\n\n".join(map(json.dumps, rows)), "utf-8")
    return path


def in_parquet(folder: Path) -> Path:
    import pyarrow as pa

    path = folder / "libraries.parquet"
    rows = [
        {"source": "one", "target": "../out", "options": ["--deep", "--only", "base.failed"]},
        {"source": "two", "target": None, "options": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("table", [in_csv, in_json, in_parquet])
def test_a_table_says_source_target_and_options(table: Callable[[Path], Path], tmp_path: Path) -> None:
    from regraft.fleet.manifest import read_manifest

    found = read_manifest(str(table(tmp_path)), str(tmp_path / "targets"), "", needs_target=True)
    assert found == [
        Library(
            source=str(tmp_path / "one"),
            target=str(tmp_path / "../out"),
            options=("--deep", "--only", "base.failed"),
        ),
        Library(source=str(tmp_path / "two"), target=str(tmp_path / "targets" / "two")),
    ]


@pytest.mark.parametrize(
    ("name", "text", "command", "message"),
    [
        ("m.csv", "source,traget\nx,y\n", "check", "line 2: traget is not a column; target is"),
        ("m.csv", "source,target,target\nx,y,z\n", "migrate", "line 1: there are two columns target"),
        ("m.csv", 'source,note\n"x\n\ny",\nz,a,b\n', "check", "line 5: it has more values than there are columns"),
        ("m.csv", "target\nx\n", "check", "line 2: it has no value in the column source ("),
        ("m.csv", 'source,options\nx,"--only \'a"\n', "check", f"line 2: {NOT_CLOSED}"),
        ("m.jsonl", '{"source": "x"}\n\n\n{"source": 3}\n', "check", "line 4: Expected `str`, got `int`"),
        ("m.jsonl", "source\n", "check", "line 1: JSON is malformed"),
        ("m.parquet", "no such thing", "check", "row 1: "),
        ("m.csv", "source\n", "check", "has no libraries"),
        ("m.csv", "source,target\nx,y\n", "check", "has a target, but this command writes to none"),
        ("m.csv", "source\nx\n", "migrate", "x has no target"),
        ("m.csv", "source,target\nx,y\nz,../{folder}/y\n", "migrate", "is the target of two libraries"),
        ("m.csv", "source\nx\n./x\n", "check", "is used twice"),
        ("m.yaml", "source: x\n", "check", "is not a manifest"),
    ],
)
def test_a_manifest_that_cannot_be_meant_is_refused(
    name: str, text: str, command: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text.replace("{folder}", tmp_path.name), "utf-8")
    before = snapshot(tmp_path)
    done = fleet(command, tmp_path / name, "--results", tmp_path / "out.parquet", "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "WrongUsage")
    assert message in done.document["error"]["message"]
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("command", ["status", "resume"])
def test_a_folder_is_no_results(command: str, tmp_path: Path) -> None:
    done = fleet(command, tmp_path, "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "WrongUsage")
    assert f"{tmp_path} is not a results file of a fleet: it is a folder (" in done.document["error"]["message"]
    assert list(tmp_path.iterdir()) == []


def test_results_that_are_there_are_not_written_over(backups: Path, tmp_path: Path) -> None:
    for name in ("out.parquet", "out.parquet.journal"):
        (tmp_path / name).write_text("mine")
        before = snapshot(tmp_path)
        done = fleet("check", backups, "--results", tmp_path / "out.parquet")
        assert (done.status, "already has the results of another run" in done.stderr) == (2, True)
        assert snapshot(tmp_path) == before
        (tmp_path / name).unlink()


def test_results_and_targets_lie_in_no_library(backups: Path, tmp_path: Path) -> None:
    shutil.copytree(backups / "anna", tmp_path / "anna")
    manifest = tmp_path / "m.csv"
    for row, path, message in (
        ("anna,out", tmp_path / "anna" / "r.parquet", "would be inside a library"),
        ("anna,out", tmp_path / "out", "would be inside a library"),
        ("anna,out\nclara,out/inner", tmp_path / "r.parquet", "would be inside another library"),
        ("anna,anna/out", tmp_path / "r.parquet", "would be inside another library"),
    ):
        manifest.write_text(f"source,target\n{row}\n", "utf-8")
        before = snapshot(tmp_path)
        done = fleet("migrate", manifest, "--results", path)
        assert (done.status, message in done.stderr) == (2, True), row
        assert snapshot(tmp_path) == before


def test_relative_paths_mean_the_same_to_who_resumes(
    backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(backups)
    assert fleet("check", "ann*", "--results", tmp_path / "out.parquet", "-q").status == 1
    order, _ = results.read_results(tmp_path / "out.parquet")
    assert order.libraries == (Library(source=str(backups / "anna")),)


@pytest.mark.skipif(sys.platform != "linux", reason="names are Unicode there")
def test_a_name_that_cannot_be_written_down_is_refused(tmp_path: Path) -> None:
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "x\udcff").mkdir()
    done = fleet("check", tmp_path / "libraries", "--results", tmp_path / "out.parquet")
    assert (done.status, "is not valid UTF-8" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["libraries"]


def test_results_need_a_folder_and_resuming_needs_results(backups: Path, tmp_path: Path) -> None:
    done = fleet("check", backups, "--results", tmp_path / "nowhere" / "out.parquet")
    assert (done.status, "does not exist" in done.stderr) == (2, True)
    done = fleet("resume", tmp_path / "out.parquet", "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "SourceNotFound")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "mine", '{"command": "check"}\n', None])
def test_what_is_no_result_is_not_resumed(text: str | None, tmp_path: Path) -> None:
    import pyarrow as pa

    path = tmp_path / "out.parquet"
    if text is None:
        pq.write_table(pa.table({"a": [1]}), path)
    else:
        path.write_text(text, "utf-8")
        (tmp_path / "out.parquet.journal").write_text(text, "utf-8")
    before = snapshot(tmp_path)
    done = fleet("resume", path)
    assert (done.status, "is not a results file of a fleet" in done.stderr) == (2, True)
    assert snapshot(tmp_path) == before
