"""Many libraries, a fifth of them damaged, in processes that are killed midway: what is left is what one command after
the other leaves, with nothing done twice and nothing lost."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from extras import needs
from faults import left_over, untouched
from fleet_libraries import IN_FOLDER, OF_ARCHIVE, ONE_IN, Source, make
from harness import NOW, REPO, nothing_opened, snapshot

from regraft.cli.fleet import parse_library_options as parse
from regraft.disk import sqlite, writable
from regraft.fleet import results, versions
from regraft.fleet.engine import LocalPool, Pool, TaskResult
from regraft.fleet.manifest import Library
from regraft.fleet.ray_pool import RayPool
from regraft.fleet.results import FleetOrder, ResultRow
from regraft.fleet.run import Fleet
from regraft.fleet.storage import storage_path
from regraft.processes import pool as processes_pool
from regraft.report.document import Run

if sys.platform != "linux":
    pytest.skip("a command is watched by what Linux tells of it", allow_module_level=True)

from fleet_moments import IN_STORE, WORK, Moment, Watching, left_of, plan, watched

pytestmark = needs("parquet")

SEED = 20_261
#: A second attempt has at least so many operations: it takes the lock, and settles what the first one left.
FEW = 20
#: Of the libraries, one in so many is worked on by a process that is killed meanwhile.
KILLED_ONE_IN = 12


@dataclass(frozen=True)
class Herd:
    """Sources, and what one command after the other makes of them in ``folder``, without any trouble."""

    folder: Path
    sources: list[Source]
    ends: list[TaskResult]
    #: How many operations each command asks of its target's disk.
    operations: list[int]

    def order(self, targets: Path) -> FleetOrder:
        """Return the order to migrate all of them into a folder."""
        return order_of([source.path for source in self.sources], targets)


def order_of(sources: list[Path], targets: Path) -> FleetOrder:
    libraries = tuple(Library(source=str(path), target=str(targets / path.name)) for path in sources)
    return FleetOrder(command="migrate", options=("--now", NOW), libraries=libraries)


def one_after_the_other(folder: Path, count: int) -> Herd:
    """Make sources, and migrate one after the other in this process."""
    sources = make(folder / "sources", count, SEED)
    order = order_of([source.path for source in sources], folder / "alone")
    ends, operations = [], []
    fleet = Fleet(order=order, path=folder / "out.jsonl", pool=partial(LocalPool, WORK, 1), parse=parse)
    with pytest.MonkeyPatch.context() as patch:
        # As in the processes of a fleet.
        patch.setattr(processes_pool, "_given_cores", 1)
        for number in range(count):
            watching = Watching()
            with nothing_opened():
                ends.append(watched(fleet.make_job(number), watching))
            operations.append(watching.count)
    return Herd(folder, sources, ends, operations)


@pytest.fixture(scope="module", params=[20, pytest.param(200, marks=pytest.mark.slow)])
def herd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Herd:
    """Give so many libraries, and what one command after the other makes of them."""
    return one_after_the_other(tmp_path_factory.mktemp("herd"), request.param)


@pytest.fixture(params=["local", pytest.param("ray", marks=needs("ray"))])
def pool(request: pytest.FixtureRequest) -> partial[Pool]:
    """Give two processes, of this machine and of a cluster."""
    if request.param == "local":
        return partial(LocalPool, WORK, 2)
    return partial(RayPool, WORK, request.getfixturevalue("joined"), 2)


def rows_of(path: Path) -> list[list[ResultRow]]:
    """Return the rows of each library: each has its own, once."""
    order, found = results.read_results(path)
    assert sorted(found) == list(range(len(order.libraries)))
    assert [sum(row.base is None for row in found[number]) for number in sorted(found)] == [1] * len(found)
    return [found[number] for number in sorted(found)]


def content(library: Path) -> dict[str, bytes]:
    """Return all files of a library but those that tell of its runs."""
    return {
        name: found[2]
        for name, found in snapshot(library).items()
        if not name.startswith((".regraft/", "report.")) and found[0] >= 0
    }


# --- many ------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_one_source_in_five_is_damaged_and_damage_shows(herd: Herd) -> None:
    damaged = [number for number, source in enumerate(herd.sources) if source.damage]
    whole = {source.kind: number for number, source in enumerate(herd.sources) if not source.damage}
    assert len(damaged) * ONE_IN == len(herd.sources)
    assert {herd.sources[number].damage for number in damaged} <= IN_FOLDER.keys() | OF_ARCHIVE.keys()
    assert {herd.ends[number].status for number in whole.values()} <= {0, 1}
    for number in damaged:
        source, end = herd.sources[number], herd.ends[number]
        assert end.status in (1, 2), source
        # Of few libraries, all of a kind may be damaged.
        if source.kind in whole:
            assert shown(herd, number) != shown(herd, whole[source.kind]), source


def shown(herd: Herd, number: int) -> tuple[int | None, object, set[str]]:
    """Return how a command ended, what it has counted, and what it said of it."""
    document = document_of(herd, number)
    return herd.ends[number].status, document.get("totals"), {one["code"] for one in document.get("warnings", ())}


def document_of(herd: Herd, number: int) -> dict[str, Any]:
    """Return what a command that ran alone has written of its run; nothing, where it wrote no library."""
    path = herd.folder / "alone" / herd.sources[number].path.name / "report.json"
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


@pytest.mark.thorough
def test_a_fleet_whose_processes_are_killed_leaves_what_one_after_the_other_leaves(
    herd: Herd, pool: partial[Pool], tmp_path: Path
) -> None:
    killed = planned_kills(herd)
    order, out = herd.order(tmp_path / "libraries"), tmp_path / "out.parquet"
    work = Fleet(parse=parse, order=order, path=out, pool=pool, pause_seconds=0.01)
    with untouched(herd.folder / "sources", herd.folder / "alone"):
        work.run(Run(command="fleet migrate"))
        first = rows_of(out)
        for number, found in enumerate(first):
            times = killed.get(number, 0)
            assert found[0].attempts == min(times + 1, 3), herd.sources[number]
            assert (found[0].outcome == "killed") == (times == 3), herd.sources[number]
        # What was killed each time is what is left, beside what was refused.
        again = Fleet(
            parse=parse,
            order=order,
            path=out,
            pool=pool,
            known=results.read_results(out)[1],
            pause_seconds=0.01,
        )
        again.run(Run(command="fleet resume"))

    rows = rows_of(out)
    for number, found in enumerate(rows):
        assert_same(herd, number, found, order)
        if first[number][0].outcome in results.GOOD:
            assert found == first[number]
    assert [left_of(source.path) for source in herd.sources] == [0] * len(herd.sources)
    assert_nothing_beside(order, herd)
    # What is done is done: another fleet finds nothing left to do.
    before = {library.target: content_and_times(library.target) for library in order.libraries}
    Fleet(parse=parse, order=order, path=tmp_path / "twice.parquet", pool=pool).run(Run(command="fleet migrate"))
    assert {library.target: content_and_times(library.target) for library in order.libraries} == before
    for found, once in zip(rows_of(tmp_path / "twice.parquet"), rows, strict=True):
        assert found[0].attempts == 1
        assert (found[0].outcome, found[0].rows_carried) == (once[0].outcome, once[0].rows_carried)


def planned_kills(herd: Herd) -> dict[int, int]:
    """Plan in which attempts at which libraries the process is killed, and say how often for each.

    One of them has its process killed in all three attempts, another one in two of them.
    """
    chance = random.Random(f"{SEED} {len(herd.sources)}")
    # What is refused at once asks for nothing that could be the last thing it asks for.
    able = [number for number, end in enumerate(herd.ends) if end.status in (0, 1)]
    chosen = chance.sample(able, max(2, len(herd.sources) // KILLED_ONE_IN))
    killed = dict(zip(chosen, [3, *[1] * (len(chosen) - 2), 2], strict=True))
    for number, times in killed.items():
        first = Moment(operation=chance.randint(1, herd.operations[number]))
        more = [Moment(operation=chance.randint(1, FEW)) for _ in range(times - 1)]
        plan(herd.sources[number].path, first, *more)
    return killed


def assert_same(herd: Herd, number: int, found: list[ResultRow], order: FleetOrder) -> None:
    """Assert that a library is what the command alone has made of it, byte for byte, and that its rows say so."""
    source, alone = herd.sources[number], herd.ends[number]
    target = Path(str(order.libraries[number].target))
    [own, *bases], document = found, document_of(herd, number)
    assert own.source == str(source.path)
    totals = document.get("totals") or {}
    rows = totals.get("rows") or {}
    assert (own.exit_status, own.code) == (alone.status, alone.error and alone.error.code), source
    assert (own.rows_read, own.rows_carried) == (rows.get("read"), rows.get("carried"))
    assert in_place(json.loads(own.totals or "{}")) == in_place(totals)
    assert [(base.base, base.outcome, base.rows_carried) for base in bases] == [
        (base["id"], base["status"], base["rows"]["carried"]) for base in document.get("bases") or ()
    ]
    reference = herd.folder / "alone" / source.path.name
    assert content(target) == content(reference), source
    assert [name for name in content(target) if "/raw/" in name and foreign(target / name, source)] == []
    assert target.exists() == reference.exists()
    if target.exists():
        assert left_over(target) == []
        assert report_of(target) == report_of(reference), source
        assert_each_base_once(target)


def foreign(path: Path, source: Source) -> bool:
    """Tell whether an upload has the mark of another source."""
    marks = set(re.findall(rb"library \d+ of a fleet\n", path.read_bytes()))
    return not marks <= {source.mark}


def in_place(totals: dict[str, Any]) -> dict[str, Any]:
    """Return totals in which bases that the last run has found in place count as written."""
    bases = {"written": 0, **totals.get("bases", {})}
    bases["written"] += bases.pop("unchanged", 0)
    return {**totals, "bases": bases}


def report_of(library: Path) -> dict[str, Any]:
    """Return what the report of a library says, but for the run's id, its times, where the library is, and which run
    has written a base."""
    text = (library / "report.json").read_text("utf-8").replace(f"{library.parent}{os.sep}", "")
    document: dict[str, Any] = json.loads(text)
    del document["run"]
    document["totals"] = in_place(document["totals"])
    for base in document["bases"]:
        if base["outcome"] == "unchanged":
            base["outcome"] = "written"
    return document


def assert_each_base_once(library: Path) -> None:
    """Assert that no base was put into its place twice, and that all runs have ended."""
    with sqlite.open_readonly(library / ".regraft" / "ledger.sqlite") as db:
        steps = db.execute(
            "SELECT subject, count(*) FROM step"
            " WHERE state = 'done' AND subject NOT IN ('catalog', 'report') GROUP BY subject"
        ).fetchall()
        runs = db.execute("SELECT DISTINCT status FROM run").fetchall()
        assert db.execute("SELECT count(*) FROM step WHERE state = 'intended'").get == 0
    assert {count for _, count in steps} <= {1}
    assert {status for (status,) in runs} <= {"finished", "stopped"}


def assert_nothing_beside(order: FleetOrder, herd: Herd) -> None:
    """Assert that beside the libraries there is nothing in their folder."""
    folder = Path(str(order.libraries[0].target)).parent
    assert {path.name for path in folder.iterdir()} == {path.name for path in (herd.folder / "alone").iterdir()}


def content_and_times(library: str | None) -> dict[str, tuple[int, int, bytes]]:
    """Return the files of a library with their times, but for those of regraft's own folder."""
    found = snapshot(Path(str(library)))
    return {name: one for name, one in found.items() if not name.startswith(".regraft")}


@pytest.mark.thorough
def test_a_fleet_that_is_killed_itself_is_gone_on_with_and_does_nothing_twice(herd: Herd, tmp_path: Path) -> None:
    order, out = herd.order(tmp_path / "libraries"), tmp_path / "out.parquet"
    count = len(herd.sources) // 3
    call = f"fleet_moments.work_until_killed({msgspec.json.encode(order).decode()!r}, {str(out)!r}, {count})"
    told = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(REPO)])}
    killed = subprocess.run([sys.executable, "-P", "-c", f"import fleet_moments; {call}"], env=told, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()

    _, there = results.read_results(out)
    known = dict(there)
    assert len(known) == count
    work = Fleet(
        parse=parse,
        order=order,
        path=out,
        pool=partial(LocalPool, WORK, 2),
        known=there,
        pause_seconds=0.01,
    )
    with untouched(herd.folder / "sources"):
        work.run(Run(command="fleet resume"))

    rows = rows_of(out)
    for number, found in enumerate(rows):
        assert_same(herd, number, found, order)
        if number in known and known[number][0].outcome in results.GOOD:
            assert found == known[number]
    assert_nothing_beside(order, herd)


# --- in object storage -----------------------------------------------------------------------------------------------

#: A library that is migrated into a store asks it for at least so much.
REQUESTS = 9


@pytest.mark.thorough
def test_in_a_store_libraries_are_those_on_disk_whenever_processes_are_killed(
    herd: Herd, joined: str, bucket: str, tmp_path: Path
) -> None:
    chance = random.Random(f"{SEED} {len(herd.sources)} in a store")
    able = [number for number, end in enumerate(herd.ends) if end.status in (0, 1)]
    killed = chance.sample(able, max(2, len(herd.sources) // KILLED_ONE_IN))
    for number in killed:
        plan(herd.sources[number].path, Moment(operation=chance.randint(1, REQUESTS)))
    libraries = tuple(
        Library(source=str(source.path), target=f"{bucket}/{source.path.name}") for source in herd.sources
    )
    order = FleetOrder(command="migrate", options=("--now", NOW), libraries=libraries, id="1")
    out, pool = tmp_path / "out.parquet", partial(RayPool, IN_STORE, joined, 2)
    with untouched(herd.folder / "sources", herd.folder / "alone"):
        Fleet(parse=parse, order=order, path=out, pool=pool, pause_seconds=0.01).run(Run(command="fleet migrate"))

    there = storage_path(bucket).objects()
    for number, found in enumerate(rows_of(out)):
        source, alone = herd.sources[number], herd.ends[number]
        own = found[0]
        assert (own.exit_status, own.attempts) == (alone.status, 1 + (number in killed)), (source, own.message)
        assert own.code == (alone.error and alone.error.code)
        reference = herd.folder / "alone" / source.path.name
        place = storage_path(f"{bucket}/{source.path.name}")
        assert (versions.latest_version(place).number == 1) == reference.exists()
        if reference.exists():
            with writable.allow_writes(tmp_path):
                versions.fetch_library(place, tmp_path / "fetched" / source.path.name)
            assert content(tmp_path / "fetched" / source.path.name) == content(reference), source
    assert [left_of(source.path) for source in herd.sources] == [0] * len(herd.sources)
    assert [name for name in there if re.search(r"/lease-\d{6}\.json$", name)] == []
    # What is done is done: another fleet finds nothing left to do, and publishes nothing.
    again = msgspec.structs.replace(order, id="2")
    Fleet(parse=parse, order=again, path=tmp_path / "twice.parquet", pool=pool).run(Run(command="fleet migrate"))
    assert storage_path(bucket).objects() == there


# --- two fleets ------------------------------------------------------------------------------------------------------


def test_two_fleets_that_come_to_one_library_leave_what_one_leaves(herd: Herd, tmp_path: Path) -> None:
    """The other fleet comes to a library when the one is about to begin, at its last step, and at moments between."""
    chance = random.Random(SEED)
    able = [number for number, end in enumerate(herd.ends) if end.status in (0, 1)]
    first, last, *more = chance.sample(able, len(herd.sources) // 10)
    moments = {first: 1, last: herd.operations[last]}
    moments |= {number: chance.randint(2, herd.operations[number]) for number in more}
    order = herd.order(tmp_path / "libraries")
    for number, operation in moments.items():
        plan(
            herd.sources[number].path,
            Moment(operation=operation, command=other_fleet(order.libraries[number], tmp_path)),
        )
    some = order_of([herd.sources[number].path for number in moments], tmp_path / "libraries")
    work = Fleet(parse=parse, order=some, path=tmp_path / "one.parquet", pool=partial(LocalPool, WORK, 2))
    with untouched(herd.folder / "sources"):
        work.run(Run(command="fleet migrate"))

    for number, found in zip(moments, rows_of(tmp_path / "one.parquet"), strict=True):
        assert_same(herd, number, found, order)
        [[own, *_]] = rows_of(results_of_other(order.libraries[number], tmp_path))
        if number == first:
            # It was done before the one had begun, which has found nothing left to do.
            assert (own.exit_status, own.rows_carried) == (found[0].exit_status, found[0].rows_carried)
        else:
            assert (own.outcome, own.code, own.attempts) == ("refused", "TargetLocked", 1), moments[number]
    assert [left_of(herd.sources[number].path) for number in moments] == [0] * len(moments)


def other_fleet(library: Library, folder: Path) -> tuple[str, ...]:
    """Return the command line of another fleet over this library alone."""
    path = results_of_other(library, folder)
    manifest = path.with_suffix(".jsonl")
    manifest.write_text(json.dumps({"source": library.source, "target": library.target}), "utf-8")
    words = ("fleet", "migrate", str(manifest), "--results", str(path), "--json", "--", "--now", NOW)
    return (sys.executable, "-P", "-m", "regraft", *words)


def results_of_other(library: Library, folder: Path) -> Path:
    return folder / f"{Path(library.source).name}.parquet"
