"""What an operator sees and decides: the state of a run, its failures first, other formats, and what is run again."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import fleet_work
import pytest
from extras import needs, optional
from fleet_libraries import NOW, content
from harness import REPO, Outcome, run, run_as_given, snapshot

from regraft.cli.fleet import parse_library_options as parse
from regraft.disk import lock_files
from regraft.errors import NoNodeFits, WrongUsage
from regraft.fleet import engine, jobs, results
from regraft.fleet.engine import LibrarySummary, ReportValues, Schedule, Task, TaskError, TaskResult
from regraft.fleet.jobs import LibraryJob
from regraft.fleet.manifest import Library
from regraft.fleet.results import FleetOrder
from regraft.fleet.run import Fleet
from regraft.report.document import Run

pq = optional("pyarrow.parquet")
SAMPLE = REPO / "sample_v1" / "backup"


def fleet(*arguments: object) -> Outcome:
    return run_as_given("fleet", *arguments)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def libraries_of(path: Path) -> dict[str, dict[str, Any]]:
    return {Path(row["source"]).name: row for row in rows_of(path) if row["base"] is None}


@pytest.fixture
def backups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of two backups, and of a file that is none; all is done in this process."""
    fleet_work.put_in_place(monkeypatch)
    folder = tmp_path / "backups"
    for name in ("anna", "clara"):
        shutil.copytree(SAMPLE, folder / name)
    (folder / "notes.txt").write_text("no knowledge base")
    return folder


def migrate(backups: Path, *options: object) -> Outcome:
    out = backups.parent / "out.jsonl"
    return fleet("migrate", backups, "--to", backups.parent / "libraries", "--results", out, "-q", *options)


# --- the plain install -----------------------------------------------------------------------------------------------


def test_results_are_lines_of_json_without_any_extra(backups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if pyarrow was not installed.
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    out = backups.parent / "out.jsonl"
    assert migrate(backups, "--", "--now", NOW).status == 2
    rows = rows_of(out)
    alone = run("migrate", backups / "anna", "--to", backups.parent / "alone", "--now", NOW, "--json")
    own, *bases = [row for row in rows if row["source"] == str(backups / "anna")]
    assert json.loads(own["totals"]) == alone.document["totals"]
    assert [base["base"] for base in bases] == [base["id"] for base in alone.document["bases"]]
    assert content(backups.parent / "libraries" / "anna") == content(backups.parent / "alone")
    assert (own["host"], own["pid"]) == (socket.gethostname(), os.getpid())
    assert ["fleet" in row for row in rows] == [True] + [False] * (len(rows) - 1)
    # They can be resumed.
    assert libraries_of(out)["notes.txt"]["outcome"] == "refused"
    (backups / "notes.txt").unlink()
    shutil.copytree(SAMPLE, backups / "notes.txt")
    assert fleet("resume", out, "-q").status == 1
    assert libraries_of(out)["notes.txt"]["outcome"] == "worth-reading"
    assert sorted(path.name for path in backups.parent.iterdir()) == ["alone", "backups", "libraries", "out.jsonl"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.parquet", "name a results file that ends in .jsonl, or install it"),
        ("out.csv", "results are JSON Lines or Parquet, not .csv"),
        ("out.html", "regraft fleet status converts it to the other"),
    ],
)
def test_a_format_that_cannot_be_written_is_refused_first(
    name: str, message: str, backups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    before = snapshot(backups.parent)
    done = fleet("check", backups, "--results", backups.parent / name)
    assert (done.status, message in done.stderr) == (2, True), done.stderr
    assert snapshot(backups.parent) == before


@needs("parquet")
def test_both_formats_have_the_same_rows(tmp_path: Path) -> None:
    library = Library(source="/a", options=("--deep",), extra={"owner": "x", "year": 2026})
    order = FleetOrder(command="check", options=("--only", "a"), libraries=(library,), id="ab")
    summary = LibrarySummary(run="r", bases=(ReportValues(base="1", name="one"),))
    ended = TaskResult(status=0, seconds=1.5, summary=summary, host="h", pid=7, log="/l")
    rows = results.result_rows(library, Task(number=0, job=None, bytes=5), "check", ended)
    found = []
    for name in ("out.jsonl", "out.parquet"):
        with closing(results.Journal(tmp_path / name, order, [rows])) as journal:
            known = journal.rows
        results.write_results(tmp_path / name, order, known)
        found.append(results.read_results(tmp_path / name))
        assert found[-1] == (order, {0: rows})
    [own, base] = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert (own["host"], own["pid"], own["log"], own["extra"]) == ("h", 7, "/l", '{"owner":"x","year":2026}')
    assert (base["host"], base["extra"]) == (None, None)


@needs("parquet")
def test_results_of_the_version_before_are_resumed(tmp_path: Path) -> None:
    """They have fewer columns."""
    library = Library(source="/a")
    order = FleetOrder(command="check", options=(), libraries=(library,))
    ended = TaskResult(status=2, seconds=0, error=TaskError(code="X", message="y"))
    rows = results.result_rows(library, Task(number=0, job=None), "check", ended)
    out = tmp_path / "out.parquet"
    with closing(results.Journal(out, order, [rows])) as journal:
        known = journal.rows
    results.write_results(out, order, known)
    table = pq.read_table(out)
    pq.write_table(table.drop_columns(["host", "pid", "log", "extra"]), out)
    assert results.read_results(out) == (order, {0: rows})


# --- status ----------------------------------------------------------------------------------------------------------


class Watched(fleet_work.HerePool):
    """Calls a function before each library but the first."""

    look: Any = None

    def answers(self, seconds: float) -> Iterator[tuple[int, TaskResult]]:
        """Call it, and do the first task."""
        if len(self.seen) == 1:
            type(self).look()
        yield from super().answers(seconds)

    @property
    def seen(self) -> list[int]:
        """The numbers of the tasks so far."""
        return sorted(self._numbers)

    def start_task(self, task: Task) -> None:
        """Take note of a task."""
        self._numbers = getattr(self, "_numbers", set()) | {task.number}
        super().start_task(task)


@pytest.mark.thorough
def test_the_state_of_a_run_is_read_without_disturbing_it(backups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = backups.parent / "out.jsonl"
    found: list[Outcome] = []

    def look() -> None:
        files = snapshot(backups.parent)
        found.append(fleet("status", out, "--json"))
        found.append(fleet("status", out))
        assert snapshot(backups.parent) == files

    monkeypatch.setattr(Watched, "look", staticmethod(look))
    monkeypatch.setattr("regraft.api.fleet.LocalPool", Watched)
    assert migrate(backups, "--workers", 1).status == 2
    state = found[0].document
    assert (state["state"], state["command"], state["left"], state["libraries"]) == (
        "running",
        "migrate",
        3,
        {"all": 0},
    )
    [running] = state["in_progress"]
    assert (running["source"], running["attempt"]) == (str(backups / "anna"), 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", running["since"])
    assert "regraft fleet migrate: running; 3 of 3 libraries without a result." in found[1].stdout
    assert f"  {backups / 'anna'} (attempt 1, since " in found[1].stdout

    done = fleet("status", out, "--json").document
    assert (done["state"], done["left"], done["in_progress"]) == ("finished", 0, [])
    assert done["libraries"] == {"all": 3, "refused": 1, "worth-reading": 2}


def test_a_run_that_was_stopped_shows_what_was_in_progress(backups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Watched, "look", staticmethod(stop))
    monkeypatch.setattr("regraft.api.fleet.LocalPool", Watched)
    assert migrate(backups, "--workers", 1).status == 130
    done = fleet("status", backups.parent / "out.jsonl")
    assert done.status == 1
    assert "regraft fleet migrate: interrupted; 3 of 3 libraries without a result." in done.stdout
    assert f"In progress when the run stopped:\n  {backups / 'anna'} (attempt 1" in done.stdout


def test_status_without_results_is_one_line(tmp_path: Path) -> None:
    done = fleet("status", tmp_path / "out.jsonl", "--json")
    assert (done.status, done.document["error"]["code"], list(tmp_path.iterdir())) == (2, "SourceNotFound", [])
    (tmp_path / "out.jsonl").write_text('{"mine": 1}\n')
    done = fleet("status", tmp_path / "out.jsonl")
    assert (done.status, len(done.stderr.splitlines())) == (2, 1)
    assert "is not a results file of a fleet" in done.stderr


def test_a_lock_is_seen_and_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not lock_files.is_lock_held(path)
    with lock_files.hold_lock(path, is_kept=lambda: True):
        assert lock_files.is_lock_held(path)
        with pytest.raises(lock_files.LockHeld), lock_files.hold_lock(path):
            pass
    assert not lock_files.is_lock_held(path)
    assert [one.name for one in tmp_path.iterdir()] == ["lock"]


@pytest.mark.thorough
def test_the_page_and_the_tables_have_what_the_results_have(backups: Path) -> None:
    (backups / "=1+1").mkdir()
    assert migrate(backups).status == 2
    folder = backups.parent
    out, page, table, lines = (folder / name for name in ("out.jsonl", "p.html", "t.csv", "l.jsonl"))
    done = fleet("status", out, "--html", page, "--csv", table, "--jsonl", lines)
    assert [line.strip() for line in done.stdout.splitlines()[-3:]] == [str(page), str(table), str(lines)]
    with table.open(encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(file))
    known = rows_of(out)
    assert rows_of(lines) == [{name: value for name, value in row.items() if name != "fleet"} for row in known]
    assert [row["outcome"] for row in cells] == [row["outcome"] for row in known]
    assert [row["source"] for row in cells] == [row["source"] for row in known]
    text = page.read_text("utf-8")
    assert text.index("Failed libraries") < text.index("notes.txt") < text.index("Failed bases")
    assert text.index("Failed bases") < text.index("Old clippings") < text.index("Libraries that ended well")
    # A page is replaced, and no other file.
    assert fleet("status", out, "--html", page).status == 2
    before = snapshot(folder)
    for option, path, message in (
        ("--csv", table, "already exists"),
        ("--jsonl", out, "already exists"),
        ("--jsonl", folder / "x.csv", "does not end in .jsonl"),
        ("--csv", folder / "x.jsonl", "use --jsonl"),
        ("--csv", folder / "nowhere" / "x.csv", "does not exist"),
        ("--html", table, "exists and is not a report page"),
        ("--html", out, "it is inside"),
    ):
        done = fleet("status", out, option, path)
        assert (done.status, message in done.stderr, done.stdout) == (2, True, ""), (option, done.stderr)
    assert snapshot(folder) == before


def test_a_text_that_a_spreadsheet_would_evaluate_is_quoted(tmp_path: Path) -> None:
    library = Library(source="/a")
    for number, name in enumerate(("=1+1", "+1", "-1", "@x", "plain")):
        summary = LibrarySummary(run="r", bases=(ReportValues(base="1", name=name),))
        rows = results.result_rows(
            library, Task(number=0, job=None), "check", TaskResult(status=0, seconds=0, summary=summary)
        )
        results.export_results(tmp_path / f"{number}.csv", {0: rows})
        with (tmp_path / f"{number}.csv").open(encoding="utf-8", newline="") as file:
            assert [row["name"] for row in csv.DictReader(file)][1] == (name if name == "plain" else f"'{name}")


# --- the summary -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_summary_names_what_failed_first(backups: Path) -> None:
    lines = migrate(backups).stdout.splitlines()
    assert lines[0] == "Failed libraries:"
    # The path is not repeated.
    assert lines[1].startswith(f"  refused  {backups / 'notes.txt'}: not a knowledge base")
    assert lines[2:5] == [
        "Failed bases:",
        f"  failed  Old clippings in {backups / 'anna'}: missing_vector_store",
        f"  failed  Old clippings in {backups / 'clara'}: missing_vector_store",
    ]
    assert lines[5] == "3 libraries: 1 refused, 2 worth reading."
    document = fleet("status", backups.parent / "out.jsonl", "--json").document
    assert [(one["name"], one["outcome"]) for one in document["failed_bases"]] == [("Old clippings", "failed")] * 2


def test_a_base_without_findings_is_done_though_its_library_is_worth_reading() -> None:
    bases = (ReportValues(base="1", name="good"), ReportValues(base="2", name="bad", findings={"base.failed": 1}))
    summary = LibrarySummary(run="r", bases=bases)
    for status, outcomes in ((1, ["worth-reading", "done", "worth-reading"]), (0, ["done"] * 3)):
        ended = TaskResult(status=status, seconds=0, summary=summary)
        rows = results.result_rows(Library(source="/a"), Task(number=0, job=None), "check", ended)
        assert [row.outcome for row in rows] == outcomes


class LatePool:
    """A pool with a clock of its own, which looks at the time at certain seconds; its first task ends at the 602nd."""

    cores = slots = 5
    memory = 1 << 40

    def __init__(self) -> None:
        self.now = 0.0
        self._looks = iter([299, 301, 400, 599, 601, 602, 850, 902])

    def start_task(self, task: Task) -> None:
        """Start nothing."""

    def answers(self, seconds: float) -> Iterator[tuple[int, TaskResult]]:
        """Look at the time."""
        self.now = next(self._looks)
        if self.now == 602:
            yield 0, TaskResult(status=0)


def test_the_reason_of_attempts_that_are_repeated_is_told_once_for_each_kind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that does not answer fails each library for the first time before it fails any for the last time."""

    def end(job: LibraryJob) -> TaskResult:
        code = {"a": "StorageFailed", "b": "StorageFailed", "c": "StoppedBySystem"}[Path(job.source).name]
        return TaskResult(status=3, error=TaskError(code=code, message=f"of {job.source}\nno answer"), seconds=0.1)

    libraries = tuple(Library(source=f"/libraries/{name}") for name in "abc")
    order = FleetOrder(command="check", options=(), libraries=libraries)
    pool = partial(fleet_work.HerePool, end, 1)
    fleet = Fleet(order=order, path=tmp_path / "out.jsonl", pool=pool, parse=parse, pause_seconds=0.001)
    fleet.run(Run(command="fleet check"))
    end_of_line = "more libraries with this code are not named here"
    assert [record.getMessage() for record in caplog.records] == [
        f"a is tried again (StorageFailed: of /libraries/a no answer); {end_of_line}",
        f"c is tried again (StoppedBySystem: of /libraries/c no answer); {end_of_line}",
    ]


def test_what_runs_is_told_when_no_library_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, order = LatePool(), FleetOrder(command="check", options=(), libraries=())
    fleet = Fleet(order=order, path=Path("out.jsonl"), pool=LatePool, parse=parse)
    monkeypatch.setattr("time.monotonic", lambda: pool.now)
    tasks = [Task(number=number, job=None, name=f"library {number}") for number in range(6)]
    schedule = Schedule(tasks, pool, attempts=1, on_poll=lambda: fleet.log_stall(schedule))
    with suppress(RuntimeError):
        list(schedule)
    named = "running: library 0 ({0} min), library 1 ({0} min), library 2 ({0} min), 2 more; waiting: 1"
    said = [f"no library has ended for {minutes} min; {named.format(minutes)}" for minutes in (5, 10)]
    named = "running: library 1 (15 min), library 2 (15 min), library 3 (15 min), 2 more; waiting: 0"
    said.append(f"no library has ended for 5 min; {named}")
    assert [record.getMessage() for record in caplog.records] == said


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (-9, "the process was killed (SIGKILL), as systems do when memory is full"),
        pytest.param(-15, "the process was killed (SIGTERM)", marks=pytest.mark.skipif(os.name == "nt", reason="none")),
        (1, "the process ended (exit status 1)"),
        (None, "the process ended (exit status None)"),
    ],
)
def test_why_a_process_is_gone_is_told(status: int | None, reason: str) -> None:
    assert engine.kill_reason(status) == reason


# --- resume ----------------------------------------------------------------------------------------------------------


def troubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *troubles: str) -> Path:
    """Run a fleet of checks that get into trouble, and return its results."""
    fleet_work.put_in_place(monkeypatch)
    monkeypatch.setattr("regraft.api.fleet.run_job", fleet_work.work)
    for number, one in enumerate(troubles):
        (tmp_path / "stores" / f"{number} {one}").mkdir(parents=True)
    out = tmp_path / "out.jsonl"
    fleet("check", tmp_path / "stores", "--results", out, "-q", "--attempts", 1)
    return out


@pytest.mark.parametrize(
    ("only", "again"), [("failed", {"0 full once"}), ("refused", {"1 refused once"}), ("unfinished", set())]
)
def test_only_some_of_what_is_left_is_run_again_with_other_options(
    only: str, again: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = troubled(tmp_path, monkeypatch, "full once", "refused once", "fine")
    before = libraries_of(out)
    assert [row["outcome"] for row in before.values()] == ["stopped", "refused", "done"]
    done = fleet("resume", out, "--only", only, "--json", "--", "--deep")
    after = libraries_of(out)
    assert {name for name in after if after[name] != before[name]} == again
    for name in again:
        assert (after[name]["outcome"], json.loads(after[name]["options"])) == ("done", ["--deep"])
    assert done.document["libraries"]["all"] == 3
    # The next run has the rest, and keeps the options.
    assert fleet("resume", out, "-q").status == 0
    assert {row["outcome"] for row in libraries_of(out).values()} == {"done"}
    assert {name for name, row in libraries_of(out).items() if row["options"]} == again


def test_limits_of_a_backfill_are_refused_for_other_results(backups: Path) -> None:
    out = backups.with_name("out.jsonl")
    assert migrate(backups).status == 2
    before = snapshot(out.parent)
    done = fleet("resume", out, "--max-cost", 1)
    problem = f"limits are for a backfill, and {out} has results of migrate"
    advice = "omit --limit, --max-requests and --max-cost"
    assert (done.status, done.stdout, done.stderr) == (2, "", f"regraft: {problem} ({advice}).\n")
    assert snapshot(out.parent) == before


def test_what_a_run_says_is_for_its_reader(backups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGRAFT_LANG", "zh")
    done = fleet("upgrade", backups, "--results", backups.with_name("out.jsonl"))
    assert (done.status, "需要你确认" in done.stderr) == (2, True), done.stderr


class FullPool:
    """Has room for nothing, and says so in the language of its process."""

    cores = slots = 1
    memory = 1 << 40

    def start_task(self, task: Task) -> None:
        self.task = task

    def answers(self, seconds: float) -> Iterator[tuple[int, TaskResult]]:
        error = NoNodeFits(reason="-", seconds=3)
        assert "没有节点" in str(error), seconds
        yield self.task.number, TaskResult(status=3, error=TaskError(code=error.code, message=str(error)))

    def close(self) -> None:
        """Do nothing."""


def test_results_are_english_in_every_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGRAFT_LANG", "zh")
    order = FleetOrder(command="check", options=(), libraries=(Library(source=str(tmp_path / "library")),))
    out = tmp_path / "out.jsonl"
    Fleet(parse=parse, order=order, path=out, pool=FullPool).run(Run(command="fleet check"))
    assert libraries_of(out)["library"]["message"].startswith("No node had room for 3 s (--max-wait): -.")


def test_libraries_that_never_ran_stay_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.jsonl"
    fleet_work.put_in_place(monkeypatch)
    monkeypatch.setattr("regraft.api.fleet.run_job", fleet_work.work)
    sources = [Library(source=str(tmp_path / f"{number} fine")) for number in range(2)]
    order = FleetOrder(command="check", options=(), libraries=tuple(sources), id="ab")
    refused = TaskResult(status=2, seconds=0, error=TaskError(code="X", message="y"))
    rows = results.result_rows(sources[0], Task(number=0, job=None), "check", refused)
    results.Journal(out, order, [rows]).close()

    done = fleet("resume", out, "--only", "refused")
    assert (done.status, out.exists()) == (1, False)
    assert f"1 library without a result; continue with: regraft fleet resume {out}" in done.stdout
    order, known = results.read_results(out)
    assert (list(known), known.ending(0), known.ending(1)) == ([0], None, "unfinished")
    done = fleet("resume", out, "--only", "unfinished")
    assert (done.status, [row["outcome"] for row in rows_of(out)]) == (0, ["done", "done"])


def test_options_that_no_library_can_have_are_refused_before_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = troubled(tmp_path, monkeypatch, "refused", "fine")
    before = snapshot(tmp_path)
    done = fleet("resume", out, "--", "--report", "x.html")
    assert (done.status, "--report writes an extra file" in done.stderr) == (2, True)
    done = fleet("resume", out, "--only", "unfinished", "--", "--nope")
    assert (done.status, "No such option" in done.stderr and "--nope" in done.stderr) == (2, True)
    done = fleet("resume", out, "--only", "done")
    assert (done.status, "'done' is not one of 'failed', 'refused', 'unfinished'" in done.stderr) == (2, True)
    assert snapshot(tmp_path) == before


# --- dry runs, and columns of a manifest's own -----------------------------------------------------------------------


@pytest.mark.thorough
def test_a_dry_run_reports_every_library_and_writes_nothing(backups: Path) -> None:
    before = snapshot(backups.parent)
    done = migrate(backups, "--dry-run", "--json")
    assert (done.status, done.document["run"]["dry_run"]) == (2, True)
    assert done.document["libraries"] == {"all": 3, "refused": 1, "worth-reading": 2}
    alone = run("migrate", backups / "anna", "--to", backups.parent / "x", "--dry-run", "--json").document
    assert done.document["rows_carried"] == 2 * alone["totals"]["rows"]["carried"]
    assert done.document["target"] is None
    # Results need not be named, but are without it.
    given = ("migrate", backups, "--to", backups.parent / "libraries")
    assert fleet(*given, "--dry-run").stdout.endswith("Dry run: nothing was written.\n")
    done = fleet(*given)
    assert (done.status, done.stderr) == (2, "regraft: --results is missing (name a new file, .jsonl or .parquet).\n")
    assert snapshot(backups.parent) == before


def test_a_dry_run_that_is_stopped_says_nothing_of_resume(backups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.Schedule, "__iter__", stop)
    before = snapshot(backups.parent)
    done = migrate(backups, "--dry-run", "--json")
    assert (done.status, done.document["error"]["code"], "resume" in done.stderr) == (130, "Interrupted", False)
    assert snapshot(backups.parent) == before


@pytest.mark.thorough
def test_other_columns_of_a_manifest_are_in_the_results(backups: Path) -> None:
    manifest, out = backups.parent / "m.csv", backups.parent / "out.jsonl"
    manifest.write_text("source,owner,ticket\nbackups/anna,Anna,7\nbackups/clara,,\n", "utf-8")
    assert fleet("migrate", manifest, "--to", backups.parent / "to", "--results", out, "-q").status == 1
    found = libraries_of(out)
    assert json.loads(found["anna"]["extra"]) == {"owner": "Anna", "ticket": "7"}
    assert found["clara"]["extra"] is None
    assert {row["extra"] for row in rows_of(out) if row["base"]} == {None}
    order, _ = results.read_results(out)
    assert order.libraries[0].extra == {"owner": "Anna", "ticket": "7"}
    manifest.write_text("source,owner\nbackups/anna," + "x" * 70_000 + "\n", "utf-8")
    done = fleet("check", manifest, "--results", backups.parent / "more.jsonl")
    assert (done.status, "m.csv, line 2: its other columns have more than" in done.stderr) == (2, True)


# --- a temporary folder that is full ---------------------------------------------------------------------------------


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LibraryJob:
    """Return a job whose source is in object storage, with a temporary folder of its own."""
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files = fsspec.filesystem("memory")
    files.pipe_file(f"/{tmp_path.name}/store/file", b"12345")
    url = f"memory://{tmp_path.name}/store"
    return LibraryJob(command="check", options=fleet_work.plain("check"), source=url)


@needs("s3")
@pytest.mark.parametrize("others", [True, False])
def test_a_task_waits_for_copies_of_other_libraries_and_for_nothing_else(
    others: bool, staged: LibraryJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regraft.errors import WorkFolderTooSmall
    from regraft.fleet import versions

    waits: list[float] = []
    other = tmp_path / "regraft-run-abcdefgh"
    other.mkdir()

    def is_free(folder: Path, size: int) -> None:
        if not waits:
            raise WorkFolderTooSmall(path=folder, needed="9 GB", free="1 GB")

    def sleep(seconds: float) -> None:
        # No copy of its own takes space meanwhile.
        assert {path.name for path in tmp_path.iterdir()} == {other.name}
        waits.append(seconds)

    monkeypatch.setattr(versions, "require_free_space", is_free)
    monkeypatch.setattr(jobs.time, "sleep", sleep)
    with lock_files.hold_lock(other / "lock") if others else nullcontext():
        ended = jobs.run_library_job(staged, lambda _: TaskResult(status=0, seconds=0))
    assert (ended.status, len(waits)) == ((0, 1) if others else (2, 0))
    if not others:
        assert (ended.error.code, str(tmp_path) in ended.error.message) == ("WorkFolderTooSmall", False)


@needs("s3")
def test_no_message_names_the_folder_of_a_copy(
    staged: LibraryJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, size: int) -> None:
        raise OSError(28, "No space left on device", str(folder / "x"))

    monkeypatch.setattr("regraft.fleet.versions.require_free_space", full)
    ended = jobs.run_library_job(staged, lambda _: pytest.fail("it was worked on"))
    assert (ended.status, ended.error.code) == (3, "StoppedBySystem")
    assert str(tmp_path) not in ended.error.message
    assert f"{staged.source}/x" in ended.error.message.replace("\\", "/")


@pytest.mark.thorough
def test_the_function_for_programs_returns_what_the_command_prints(backups: Path) -> None:
    from regraft.api.fleet import fleet_status
    from regraft.report.document import encoded

    assert migrate(backups).status == 2
    out = backups.parent / "out.jsonl"
    status = fleet_status(out, table=backups.parent / "t.csv")
    printed = fleet("status", out, "--json").document
    assert {**json.loads(json.dumps(encoded(status))), "run": None} == {**printed, "run": None}
    assert (backups.parent / "t.csv").is_file()
    with pytest.raises(WrongUsage, match="already exists"):
        fleet_status(out, table=backups.parent / "t.csv")
