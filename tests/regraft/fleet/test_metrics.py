"""Metrics of a fleet: what Prometheus reads is what the results say, and no file of somebody else is touched."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from extras import needs, optional
from fleet_work import TROUBLE
from harness import REPO, Outcome, run_as_given, snapshot
from prometheus_client.parser import text_fd_to_metric_families

from regraft import __version__, identity
from regraft.cli.fleet import parse_library_options as parse
from regraft.errors import FleetInterrupted, WrongUsage
from regraft.fleet import results
from regraft.fleet.engine import LocalPool, Task, TaskResult
from regraft.fleet.manifest import Library
from regraft.fleet.results import FleetOrder
from regraft.fleet.run import Fleet
from regraft.fleet.status import BUCKETS, Metrics
from regraft.report.document import Run

pq = optional("pyarrow.parquet")
pytestmark = needs("parquet")

SAMPLE = REPO / "sample_v1" / "backup"
#: When a run begins whose clock is the test's, in seconds.
START = 1_795_262_400


@pytest.fixture(scope="module")
def backups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder of two backups, one of them damaged, and something that is none."""
    folder = tmp_path_factory.mktemp("backups")
    for name in ("anna", "boris"):
        shutil.copytree(SAMPLE, folder / name)
    for file in sorted((folder / "boris").rglob("KnowledgeBase/*")):
        file.write_bytes(file.read_bytes()[:6_000])
    (folder / "notes.txt").write_text("no knowledge base")
    return folder


def fleet(*arguments: object) -> Outcome:
    return run_as_given("fleet", *arguments)


Values = dict[tuple[str, tuple[str, ...]], float]


def metrics_in(path: Path, out: Path) -> Values:
    """Return the samples of a file by name and values of labels, but for the one that all have."""
    values: Values = {}
    with path.open(encoding="utf-8") as file:
        for family in text_fd_to_metric_families(file):
            assert family.documentation.endswith(".")
            assert family.name.startswith("regraft_fleet_")
            for sample in family.samples:
                labels = dict(sample.labels)
                assert labels.pop("results") == os.path.realpath(out)
                values[sample.name.removeprefix("regraft_fleet_"), tuple(labels.values())] = sample.value
    return values


def by_label(values: Values, name: str) -> dict[str, float]:
    """Return the values that are not 0 of a metric that has one label."""
    return {labels[0]: value for (found, labels), value in values.items() if found == name and value}


def held_against_results(path: Path, out: Path) -> Values:
    """Compare a file of metrics with the results of the same run, and return its values."""
    values, rows = metrics_in(path, out), pq.read_table(out).to_pylist()
    own = [row for row in rows if row["base"] is None]
    assert by_label(values, "libraries_ended_total") == Counter(row["outcome"] for row in own)
    assert by_label(values, "bases_total") == Counter(row["outcome"] for row in rows if row["base"] is not None)
    for name, column in (("rows_skipped", "skipped"), ("findings", "findings")):
        counts: Counter[str] = Counter()
        for row in own:
            counts.update(json.loads(row[column] or "{}"))
        assert by_label(values, f"{name}_total") == counts
    sums = {
        column: sum(row[column] or 0 for row in own) for column in own[0] if isinstance(own[0][column], int | float)
    }
    for name, column in (("rows_read", "rows_read"), ("rows_carried", "rows_carried"), ("source_bytes", "bytes")):
        assert values[f"{name}_total", ()] == sums.get(column, 0)
    assert values["attempts_total", ()] == sums["attempts"]
    assert values["retries_total", ()] == sums["attempts"] - len(own)
    assert values["library_seconds_sum", ()] == pytest.approx(sums["seconds"], abs=0.001)
    for bound in BUCKETS:
        assert values["library_seconds_bucket", (str(bound),)] == sum(row["seconds"] <= bound for row in own)
    assert values["library_seconds_bucket", ("+Inf",)] == values["library_seconds_count", ()] == len(own)
    left = ("libraries_left", "source_left_bytes", "libraries_at_work", "workers")
    assert [values[name, ()] for name in left] == [0, 0, 0, 0]
    assert (values["libraries", ()], values["finished", ()]) == (len(own), 1)
    return values


# --- what is said ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_metrics_say_what_the_results_say(backups: Path, tmp_path: Path) -> None:
    out, metrics = tmp_path / "out.parquet", tmp_path / "fleet.prom"
    done = fleet("migrate", backups, "--to", tmp_path / "to", "--results", out, "--metrics", metrics, "-q")
    assert done.status == 2, done.stderr
    values = held_against_results(metrics, out)
    assert values["rows_carried_total", ()] > 0
    assert values["run_info", ("migrate", "local", __version__)] == 1
    assert values["update_timestamp_seconds", ()] >= values["start_timestamp_seconds", ()] > 1e9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fleet.prom", "out.parquet", "to"]

    checked = tmp_path / "checked.parquet"
    assert fleet("check", tmp_path / "to", "--results", checked, "--metrics", metrics, "-q").status == 1
    assert by_label(held_against_results(metrics, checked), "findings_total")


def at_work(tmp_path: Path, *troubles: str, attempts: int = 3) -> tuple[Fleet, Path]:
    """Return a fleet whose libraries get into trouble, and where its metrics will be."""
    libraries = tuple(Library(source=str(tmp_path / f"{number} {one}")) for number, one in enumerate(troubles))
    out, path = tmp_path / "out.parquet", tmp_path / "fleet.prom"
    metrics = Metrics(path, out, command="check", engine="local", libraries=len(libraries))
    work = Fleet(
        parse=parse,
        order=FleetOrder(command="check", options=(), libraries=libraries),
        path=out,
        pool=partial(LocalPool, TROUBLE, 2),
        attempts=attempts,
        metrics=metrics,
        pause_seconds=0.01,
    )
    return work, path


def test_what_is_tried_again_is_counted(tmp_path: Path) -> None:
    work, path = at_work(tmp_path, "fine", "killed", "full once", "refused", attempts=2)
    work.run(Run(command="fleet check"))
    values = held_against_results(path, work.path)
    assert (values["attempts_total", ()], values["retries_total", ()]) == (6, 2)
    assert by_label(values, "libraries_ended_total") == {"done": 2, "killed": 1, "refused": 1}


def test_a_run_that_is_stopped_has_its_metrics_and_the_next_one_counts_on(tmp_path: Path) -> None:
    work, path = at_work(tmp_path, "fine", "fine", "refused", "fine")
    seen = []

    def stop(row: object) -> None:
        seen.append(row)
        if len(seen) == 2:
            raise KeyboardInterrupt

    work.pool = partial(LocalPool, TROUBLE, 1)
    with pytest.raises(FleetInterrupted):
        work.run(Run(command="fleet check"), stop)
    values = metrics_in(path, work.path)
    assert by_label(values, "libraries_ended_total") == {"done": 2}
    assert [values[name, ()] for name in ("libraries", "libraries_left", "finished", "workers")] == [4, 2, 0, 0]

    _, known = results.read_results(work.path)
    again, _ = at_work(tmp_path, "fine", "fine", "refused", "fine")
    again.known = known
    worked: list[object] = []
    again.run(Run(command="fleet check"), worked.append)
    values = held_against_results(path, work.path)
    assert (len(worked), by_label(values, "libraries_ended_total")) == (2, {"done": 3, "refused": 1})


class SlowPool:
    """A pool with a clock of its own: each call of ``answers`` takes a second. The first library takes an hour, the
    others one second."""

    cores = slots = 2
    memory = 1 << 40

    def __init__(self, path: Path) -> None:
        self.running: set[int] = set()
        self.time = 0
        self.texts: dict[int, str] = {}
        self._path = path

    def start_task(self, task: Task) -> None:
        self.running.add(task.number)

    def answers(self, seconds: float) -> Any:
        self.texts[self.time] = self._path.read_text("utf-8")
        self.time += 1
        for number in list(self.running):
            if number or self.time >= 3_600:
                self.running.remove(number)
                yield number, TaskResult(status=0, seconds=1.0)

    def close(self) -> None:
        self.running.clear()


def test_the_file_is_kept_up_to_date_while_nothing_ends_and_not_more_often_than_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, path = at_work(tmp_path, "slow", "fast", "fast")
    pool = SlowPool(path)
    # The time of writing is part of the text: with the pool's clock, no two writes have the same text.
    monkeypatch.setattr(identity, "now_ms", lambda: 1000 * (START + pool.time))
    monkeypatch.setattr(time, "monotonic", lambda: pool.time)
    work.metrics = Metrics(path, work.path, command="check", engine="local", libraries=3)
    work.pool = lambda: pool
    work.run(Run(command="fleet check"))
    changes = [time for time in range(1, 3_600) if pool.texts[time] != pool.texts[time - 1]]
    assert changes == list(range(5, 3_600, 5))
    assert "regraft_fleet_libraries_at_work{" in pool.texts[0]
    (tmp_path / "then.prom").write_text(pool.texts[10], "utf-8")
    values = metrics_in(tmp_path / "then.prom", work.path)
    assert (values["start_timestamp_seconds", ()], values["update_timestamp_seconds", ()]) == (START, START + 10)
    names = ("libraries_at_work", "libraries_left", "workers", "attempts_total", "finished")
    assert [values[name, ()] for name in names] == [1, 1, 2, 3, 0]


def test_where_the_file_cannot_be_written_any_more_libraries_are_worked_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(SAMPLE, tmp_path / "libraries" / "anna")
    (tmp_path / "metrics").mkdir()
    ended = results.Journal.add

    def removed(journal: results.Journal, rows: list[results.ResultRow]) -> None:
        ended(journal, rows)
        shutil.rmtree(tmp_path / "metrics")

    monkeypatch.setattr(results.Journal, "add", removed)
    out, file = tmp_path / "out.parquet", tmp_path / "metrics" / "fleet.prom"
    done = fleet("check", tmp_path / "libraries", "--results", out, "--metrics", file, "-q")
    assert (done.status, pq.read_table(out).num_rows > 0) == (1, True)
    assert f"{file} could not be updated: " in done.stderr


def test_a_file_that_cannot_be_written_at_first_stops_the_run(tmp_path: Path) -> None:
    work, path = at_work(tmp_path, "fine")
    (tmp_path / "fleet.prom.new").mkdir()
    with pytest.raises(OSError, match=r"fleet\.prom\.new"):
        work.run(Run(command="fleet check"))
    assert not path.exists()


# --- what is refused -------------------------------------------------------------------------------------------------


def refused(
    tmp_path: Path,
    backups: Path,
    file: Path,
    message: str,
    *,
    options: tuple[object, ...] = (),
    code: str = "WrongUsage",
) -> None:
    """Run a fleet whose metrics are refused, and see that nothing was done."""
    before = snapshot(tmp_path), snapshot(backups)
    arguments = ("check", backups, "--results", tmp_path / "out.parquet", "--metrics", file, "--json", *options)
    done = fleet(*arguments)
    assert (done.status, done.document["error"]["code"]) == (2, code)
    assert message in done.document["error"]["message"]
    assert (snapshot(tmp_path), snapshot(backups)) == before


@pytest.mark.parametrize("text", ["mine", "# Written by regraft", "node_load1 3\n"])
@pytest.mark.parametrize("name", ["fleet.prom", "fleet.prom.new"])
def test_a_file_of_somebody_else_is_not_written_over(text: str, name: str, backups: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    refused(tmp_path, backups, tmp_path / "fleet.prom", f"{name} exists and is not a metrics file of regraft fleet")


def test_an_empty_file_and_one_of_an_earlier_run_are_written_over(backups: Path, tmp_path: Path) -> None:
    file = tmp_path / "fleet.prom"
    file.touch()
    for name in ("one", "two"):
        out = tmp_path / f"{name}.parquet"
        assert fleet("check", f"{backups}/ann*", "--results", out, "--metrics", file, "-q").status == 1
        assert file.read_text("utf-8").startswith("# Written by regraft fleet.\n# ")
        held_against_results(file, out)


@pytest.mark.skipif(os.name == "nt", reason="making links takes a privilege there")
def test_a_link_is_not_written_through(backups: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.prom").touch()
    (tmp_path / "fleet.prom").symlink_to(tmp_path / "empty.prom")
    refused(tmp_path, backups, tmp_path / "fleet.prom", "exists and is not a metrics file of regraft fleet")
    (tmp_path / "folder").mkdir()
    refused(tmp_path, backups, tmp_path / "folder", "exists and is not a metrics file of regraft fleet")


def test_metrics_lie_in_no_library_and_are_none_of_the_results(backups: Path, tmp_path: Path) -> None:
    refused(tmp_path, backups, backups / "anna" / "fleet.prom", "would be inside a library")
    refused(tmp_path, backups, tmp_path / "nowhere" / "fleet.prom", "does not exist", code="TargetNotWritable")
    for name in ("out.parquet", "out.parquet.journal", "out.parquet.journal.lock"):
        refused(tmp_path, backups, tmp_path / name, "would overwrite the results")


def test_resume_refuses_the_same(backups: Path, tmp_path: Path) -> None:
    shutil.copytree(backups / "anna", tmp_path / "libraries" / "anna")
    out = tmp_path / "out.parquet"
    assert fleet("check", tmp_path / "libraries", "--results", out, "-q").status == 1
    before = snapshot(tmp_path)
    for file, message in (
        (tmp_path / "libraries" / "anna" / "fleet.prom", "would be inside a library"),
        (out, "would overwrite the results"),
    ):
        done = fleet("resume", out, "--metrics", file, "--json")
        assert (done.status, message in done.document["error"]["message"]) == (2, True)
    assert snapshot(tmp_path) == before
    # Nothing is left to do, which the metrics say.
    assert fleet("resume", out, "--metrics", tmp_path / "fleet.prom", "-q").status == 1
    held_against_results(tmp_path / "fleet.prom", out)


def test_without_the_library_metrics_say_what_to_install(
    backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    refused(tmp_path, backups, tmp_path / "fleet.prom", "metrics need prometheus_client, which is not installed")
    with pytest.raises(WrongUsage, match=r'pip install "regraft\[metrics\]"'):
        Metrics(tmp_path / "x", tmp_path / "y", command="check", engine="local", libraries=0)


def test_where_no_process_is_to_be_had_nothing_is_written(backups: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    with results.lock_results(out):
        before = snapshot(tmp_path)
        done = fleet("check", backups, "--results", out, "--metrics", tmp_path / "fleet.prom", "--json")
        assert "another regraft process is using" in done.document["error"]["message"]
        assert snapshot(tmp_path) == before
