"""Results of many libraries: they are written and read in parts, and come to what they came to when held at once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from extras import needs, optional
from harness import run_as_given, snapshot

from regraft.cli.fleet import parse_library_options as parse
from regraft.disk import lock_files
from regraft.errors import WrongUsage
from regraft.fleet import results
from regraft.fleet.engine import LibrarySummary, ReportValues, Task, TaskError, TaskResult
from regraft.fleet.manifest import Library
from regraft.fleet.results import FleetOrder, Journal, ResultRow
from regraft.fleet.run import Fleet
from regraft.fleet.status import FleetReport
from regraft.report.document import Run, encoded

pa, pq = optional("pyarrow"), optional("pyarrow.parquet")
pytestmark = needs("parquet")

COUNT = 50
#: What libraries end with: one of five is refused, and each has so many bases as its number says, modulo three.
STATUS = {0: 2}


class InstantPool:
    """Ends tasks in the order in which they were begun, several at each look."""

    cores = slots = 7
    memory = 1 << 40

    def __init__(self) -> None:
        self.running: list[int] = []

    def start_task(self, task: Task) -> None:
        self.running.append(task.number)

    def answers(self, seconds: float) -> Iterator[tuple[int, TaskResult]]:
        ready, self.running = self.running, []
        for number in ready:
            counts = {"rows_read": number, "rows_carried": number - number % 2, "skipped": {"orphan": number % 2}}
            bases = tuple(
                ReportValues(base=f"{number}-{place}", name="", outcome="completed", **counts)
                for place in range(number % 3)
            )
            summary = LibrarySummary(run="r", bases=bases, findings={"base.failed": 2}, **counts)
            yield number, TaskResult(status=STATUS.get(number % 5, 0), summary=summary, seconds=float(number % 10))

    def close(self) -> None:
        self.running.clear()


def order_of(folder: Path) -> FleetOrder:
    """Return an order of libraries whose sizes are in no order, some with options of their own."""
    libraries = []
    for number in range(COUNT):
        source = folder / f"library-{number:03}"
        source.write_bytes(b"x" * (number * 37 % COUNT))
        options = ("--base", f"{number}") if number % 7 == 0 else ()
        libraries.append(Library(source=str(source), target=str(folder / f"t{number}"), options=options))
    return FleetOrder(command="migrate", options=("--carry-text",), libraries=tuple(libraries))


@pytest.fixture
def written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[FleetOrder, Path, list[list[ResultRow]], FleetReport]:
    """Run a fleet whose results take many row groups; give what became of each library, as the journal was told."""
    monkeypatch.setattr(results, "_GROUP_ROWS", 8)
    told: list[list[ResultRow]] = []
    add = Journal.add

    def added(journal: Journal, rows: list[ResultRow]) -> None:
        told.append(rows)
        add(journal, rows)

    monkeypatch.setattr(Journal, "add", added)
    order, out = order_of(tmp_path), tmp_path / "out.parquet"
    report = Fleet(parse=parse, order=order, path=out, pool=InstantPool).run(Run(command="fleet migrate"))
    return order, out, told, report


def test_results_in_parts_are_those_that_were_told(
    written: tuple[FleetOrder, Path, list[list[ResultRow]], FleetReport],
) -> None:
    order, out, told, _ = written
    assert pq.ParquetFile(out).metadata.num_row_groups > 10
    in_order = sorted(told, key=lambda rows: rows[0].library)
    assert told != in_order
    rows = [row for found in in_order for row in found]
    columns = {name: [getattr(row, name) for row in rows] for name in ResultRow.__struct_fields__}
    assert pq.read_table(out).to_pydict() == columns

    same, known = results.read_results(out)
    assert same == order
    assert known == {found[0].library: found for found in told}
    good = {number for number in known if known.ending(number) is None}
    assert good == {found[0].library for found in told if found[0].outcome == "done"}


def test_the_report_is_what_the_rows_say(written: tuple[FleetOrder, Path, list[list[ResultRow]], FleetReport]) -> None:
    _, _, told, report = written
    own = sorted((found[0] for found in told), key=lambda row: row.library)
    document = encoded(report)
    assert document["libraries"] == {"all": COUNT, "done": 40, "refused": 10}
    assert document["bases"] == {"all": sum(len(found) - 1 for found in told), "completed": COUNT - 1}
    assert document["findings"] == {"base.failed": 2 * COUNT}
    assert document["rows_carried"] == sum(row.rows_carried or 0 for row in own)
    assert [one["source"] for one in document["failed"]] == [row.source for row in own if row.outcome == "refused"]
    slowest = sorted(own, key=lambda row: -(row.seconds or 0))[:5]
    assert [one["source"] for one in document["slowest"]] == [row.source for row in slowest]


def test_metadata_do_not_grow_with_libraries(tmp_path: Path) -> None:
    sizes = []
    for count in (1, 1_000):
        libraries = tuple(Library(source=str(tmp_path / f"{number}")) for number in range(count))
        out = tmp_path / f"{count}.parquet"
        pool = InstantPool
        Fleet(
            parse=parse,
            order=FleetOrder(command="check", options=(), libraries=libraries),
            path=out,
            pool=pool,
        ).run(Run(command="x"))
        sizes.append(len(pq.read_schema(out).metadata[b"regraft.fleet"]))
        assert results.read_results(out)[0].libraries == libraries
    assert sizes[0] == sizes[1]


def test_libraries_that_end_together_are_flushed_together_before_anything_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    order, out = order_of(tmp_path), tmp_path / "out.parquet"
    journal, sync = results.journal_path(out), os.fsync

    def lines() -> int:
        return journal.read_bytes().count(b"\n[") if journal.exists() else 0

    def synced(descriptor: int) -> None:
        sync(descriptor)
        flushed.append(lines())

    class Looked(InstantPool):
        def answers(self, seconds: float) -> Iterator[tuple[int, TaskResult]]:
            assert not lines() or flushed[-1] == lines()
            yield from super().answers(seconds)

    monkeypatch.setattr(os, "fsync", synced)
    Fleet(parse=parse, order=order, path=out, pool=Looked).run(Run(command="fleet migrate"))
    assert sorted(set(flushed)) == [*range(0, COUNT, Looked.cores), COUNT]


def test_a_journal_that_somebody_else_wrote_meanwhile_is_not_taken_for_the_one_that_was_read(tmp_path: Path) -> None:
    order, out = order_of(tmp_path), tmp_path / "out.parquet"
    ended = TaskResult(status=0, seconds=0.0)
    rows = [
        results.result_rows(order.libraries[number], Task(number=number, job=None), "migrate", ended)
        for number in range(2)
    ]
    with closing(Journal(out, order, rows)):
        _, known = results.read_results(out)
    assert (known[1], len(known), 2 in known) == (rows[1], 2, False)
    with closing(Journal(out, order, rows[1:])):
        before = snapshot(tmp_path)
    with pytest.raises(WrongUsage, match=r"out\.parquet\.journal was changed by another process"):
        known[0]
    with pytest.raises(WrongUsage, match="was changed by another process"):
        Fleet(parse=parse, order=order, path=out, pool=InstantPool, known=known).run(Run(command="fleet migrate"))
    assert snapshot(tmp_path) == before


def in_parquet(path: Path, **columns: list[Any]) -> None:
    """Write a file that says it is of a fleet, with columns in the place of those that it had."""
    whole = {name: [None] for name in ResultRow.__struct_fields__} | {
        "library": [0],
        "source": ["x"],
        "command": ["check"],
        "outcome": ["done"],
    }
    table = pa.table({name: values for name, values in (whole | columns).items() if values})
    about = b'{"command":"check","options":[],"libraries":[]}'
    pq.write_table(table.replace_schema_metadata({b"regraft.fleet": about}), path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"source": []}, "it has no column source"),
        ({"library": [1]}, "library 0 is missing"),
        ({"source": [3]}, "Expected `str`, got `int`"),
        ({"options": ["3"]}, "Expected `array`, got `int`"),
    ],
)
def test_what_is_no_result_in_its_rows_is_not_resumed(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    in_parquet(tmp_path / "out.parquet", **columns)
    before = snapshot(tmp_path)
    done = run_as_given("fleet", "resume", tmp_path / "out.parquet", "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "WrongUsage")
    assert message in done.document["error"]["message"]
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("columns", [{"findings": ["3"]}, {"attempts": ["x"]}])
def test_rows_that_are_none_are_refused_when_they_are_read(columns: dict[str, Any], tmp_path: Path) -> None:
    in_parquet(tmp_path / "out.parquet", **columns)
    before = snapshot(tmp_path)
    done = run_as_given("fleet", "resume", tmp_path / "out.parquet", "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "WrongUsage")
    assert snapshot(tmp_path) == before


def test_a_line_of_a_journal_with_a_library_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    order, out = order_of(tmp_path), tmp_path / "out.parquet"
    ended = TaskResult(status=0, seconds=0.0)
    [row] = results.result_rows(order.libraries[0], Task(number=0, job=None), "migrate", ended)
    Journal(out, order, [[row]]).close()
    with results.journal_path(out).open("ab") as file:
        for number in (COUNT, -1):
            [other] = results.result_rows(order.libraries[0], Task(number=number, job=None), "migrate", ended)
            file.write(results.msgspec.json.encode([other]) + b"\n")
        file.write(b"[]\n")
    assert results.read_results(out) == (order, {0: [row]})


# --- what strangers wrote --------------------------------------------------------------------------------------------

LINE = '{"command": "check", "options": [], "libraries": [{"source": "/x"}], "id": "", "schema": 1}'
STRANGE = {
    "a command of nobody": LINE.replace("check", "format"),
    "a later layout": LINE.replace('"schema": 1', '"schema": 2'),
    "no target where one is needed": LINE.replace("check", "migrate"),
    "a target where none is": LINE.replace('"/x"', '"/x", "target": "/y"'),
    "no name": LINE.replace("/x", "/x\\u0000"),
    "too large a number": LINE.replace('"/x"', '"/x", "bytes": 99999999999999999999'),
    "less than nothing": LINE.replace('"/x"', '"/x", "bytes": -5'),
    "an id that leads elsewhere": LINE.replace('"id": ""', '"id": "a/../../elsewhere"'),
    "too deep": "[" * 200_000,
}


@pytest.mark.parametrize("case", STRANGE)
def test_a_journal_that_no_fleet_wrote_is_refused(tmp_path: Path, case: str) -> None:
    results.journal_path(tmp_path / "out.parquet").write_text(STRANGE[case] + "\n", "utf-8")
    before = snapshot(tmp_path)
    done = run_as_given("fleet", "resume", tmp_path / "out.parquet", "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "WrongUsage")
    assert "out.parquet is not a results file of a fleet: " in done.document["error"]["message"]
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("counts", ['{"a": 1e3}', '{"a": -1}', '{"a": 99999999999999999999}', "[1]"])
def test_a_row_whose_counts_are_none_is_worked_on_again(tmp_path: Path, counts: str) -> None:
    order = FleetOrder(command="check", options=(), libraries=(Library(source="/x"), Library(source="/y")))
    ended = TaskResult(status=0, seconds=1.0)
    rows = [
        results.result_rows(order.libraries[number], Task(number=number, job=None), "check", ended) for number in (0, 1)
    ]
    with closing(results.Journal(tmp_path / "out.parquet", order, rows)):
        pass
    journal = results.journal_path(tmp_path / "out.parquet")
    first, second, third, _ = journal.read_text("utf-8").split("\n")
    spoiled = second.replace('"findings":"{}"', f'"findings":{json.dumps(counts)}')
    assert spoiled != second
    journal.write_text("\n".join((first, spoiled, third, "")), "utf-8")
    assert list(results.read_results(tmp_path / "out.parquet")[1]) == [1]


def test_what_has_an_error_is_never_well() -> None:
    ended = TaskResult(status=1, error=TaskError(code="AnswerUnfit", message="."), seconds=1.0)
    [row] = results.result_rows(Library(source="x"), Task(number=0, job=None), "backfill", ended)
    assert (row.outcome, row.code) == ("refused", "AnswerUnfit")
    assert row.outcome not in results.GOOD


def test_a_lock_that_another_one_has_made_anew_is_not_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opened the file before it was removed has nothing."""
    out = tmp_path / "out.parquet"
    with monkeypatch.context() as patched:
        numbers = iter([1, 2])
        patched.setattr(lock_files, "_file_number", lambda _: next(numbers))
        with pytest.raises(WrongUsage, match="another regraft process is using"), results.lock_results(out):
            pass
    with results.lock_results(out):
        pass
    assert list(tmp_path.iterdir()) == []
