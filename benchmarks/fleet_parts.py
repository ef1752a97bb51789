"""Measures the parts of a fleet on this machine, from which ``benchmarks.fleet_simulation`` reckons large ones.

``python -m benchmarks.fleet_parts`` (a quarter of an hour, 2 GB in the temporary folder) writes
``benchmarks/fleet_parts.json``. What it does not measure (how fast an object storage answers) keeps what the file says
of it. ``--only driver`` measures one of the parts again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq

from benchmarks.compare import machine, memory_of
from benchmarks.fleet import SAMPLE
from regraft.api.fleet import run_job
from regraft.cli.fleet import parse_library_options as parse
from regraft.disk.trees import total_size
from regraft.fleet import manifest, results
from regraft.fleet.engine import LibrarySummary, LocalPool, Pool, ReportValues, Task, TaskResult
from regraft.fleet.jobs import LibraryJob
from regraft.fleet.manifest import Library
from regraft.fleet.ray_pool import RayPool
from regraft.fleet.results import FleetOrder
from regraft.fleet.run import Fleet
from regraft.fleet.storage import storage_path
from regraft.formats.parquet.unit_file import import_arrow
from regraft.report.document import Run

PARTS = Path(__file__).with_name("fleet_parts.json")
DIMENSIONS = 768
#: How often a library of so many rows is migrated.
LIBRARIES = {20: 40, 200: 40, 2_000: 12, 20_000: 3}
DRIVEN = (1_000, 10_000, 100_000)
RAY_TASKS = 1_000
_WATCH_SECONDS = 0.05


# --- libraries -------------------------------------------------------------------------------------------------------


def measured_libraries(place: Path) -> dict[str, Any]:
    """Migrate libraries of several sizes, one after the other in a worker that is warm."""
    found: list[dict[str, Any]] = []
    noise: list[float] = []
    for rows, times in LIBRARIES.items():
        source = place / f"rows-{rows}"
        generated = ["--rows", str(rows), "--dimensions", str(DIMENSIONS), "--lang", "en"]
        subprocess.run([sys.executable, "-m", "benchmarks.generate", str(source), *generated], check=True)
        one, seconds = _measured(source, times, place)
        found.append({"rows": rows, **one})
        noise += [second / one["seconds"] for second in seconds]
        print(found[-1])
        shutil.rmtree(source)
    sample, _ = _measured(SAMPLE, LIBRARIES[20], place)
    fixed, per_row = _line([(one["rows"], one["seconds"]) for one in found])
    quantiles = [round(float(value), 3) for value in np.quantile(noise, np.linspace(0, 1, 21))]
    return {
        "sizes": found,
        "sample": {"rows": 76, **sample},
        "seconds_fixed": round(fixed, 4),
        "seconds_per_row": round(per_row, 7),
        "bytes_per_row": _per_row(found, "source_bytes"),
        "target_bytes_per_row": _per_row(found, "target_bytes"),
        "noise_quantiles": quantiles,
        "noise_runs": len(noise),
    }


def _measured(source: Path, times: int, place: Path) -> tuple[dict[str, Any], list[float]]:
    """Return what one library takes, and the seconds of each time; the first, in a worker that is cold, left out."""
    targets = place / "targets"
    libraries = tuple(Library(source=str(source), target=str(targets / str(number))) for number in range(times + 1))
    out = place / "out.parquet"
    with _watched() as peak:
        order = FleetOrder(command="migrate", options=(), libraries=libraries)
        Fleet(parse=parse, order=order, path=out, pool=lambda: LocalPool(run_job, 1)).run(Run(command="fleet migrate"))
    rows = [row for row in pq.read_table(out).to_pylist() if row["base"] is None]
    assert all(row["exit_status"] in (0, 1) for row in rows), rows[0]["message"]
    seconds = [row["seconds"] for row in rows[1:]]
    target_bytes = sum(file.stat().st_size for file in (targets / "0").rglob("*") if file.is_file())
    shutil.rmtree(targets)
    out.unlink()
    one = {
        "times": times,
        "seconds": round(statistics.median(seconds), 4),
        "least": min(seconds),
        "most": max(seconds),
        "source_bytes": rows[0]["bytes"],
        "target_bytes": target_bytes,
        "worker_peak_mb": round(peak[0]),
    }
    return one, seconds


@contextmanager
def _watched() -> Iterator[list[float]]:
    """Give the most MB that the processes take together which this one starts meanwhile."""
    peak, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(_WATCH_SECONDS):
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            peak[0] = max(peak[0], sum(memory_of(int(child)) for child in children))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def _line(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Return the fixed part and the part of each row, by the least squares of relative errors."""
    rows, seconds = np.array([point[0] for point in points]), np.array([point[1] for point in points])
    terms = np.stack([1 / seconds, rows / seconds], axis=1)
    (fixed, per_row), *_ = np.linalg.lstsq(terms, np.ones(len(points)), rcond=None)
    return float(fixed), float(per_row)


def _per_row(found: list[dict[str, Any]], name: str) -> int:
    few, many = found[0], found[-1]
    return int((many[name] - few[name]) / (many["rows"] - few["rows"]))


# --- the driver ------------------------------------------------------------------------------------------------------

#: What a migration of a library with one base says.
_ROWS: dict[str, Any] = {"rows_read": 200, "rows_carried": 200, "skipped": {}}
_BASE = ReportValues(
    base="3ef4ee57-45e1-4471-a166-dcdcd2472839",
    name="Harbour museum",
    outcome="completed",
    code="written",
    bytes=2_000_000,
    **_ROWS,
)
_TOTALS = {
    "bases": 1,
    "items": {"completed": 4},
    "rows": {"read": 200, "carried": 200},
    "embeddings": 200,
    "files": {"copied": 4},
}
_SUMMARY = LibrarySummary(
    run="20260131T120000Z-367f7e", totals=msgspec.json.encode(_TOTALS).decode(), bases=(_BASE,), **_ROWS
)


class InstantPool:
    """Ends every task as soon as it is asked: what is left is the driver's own work."""

    #: So many end at each look, which are flushed together.
    cores = slots = 64
    memory = 1 << 40

    def __init__(self) -> None:
        self.running: list[int] = []

    def start_task(self, task: Task) -> None:
        self.running.append(task.number)

    def answers(self, _: float) -> Iterator[tuple[int, TaskResult]]:
        ready, self.running = self.running, []
        for number in ready:
            # Ids are of no use to a compression, and differ in each library.
            base = msgspec.structs.replace(_BASE, id=str(uuid.uuid5(uuid.NAMESPACE_OID, str(number))))
            summary = msgspec.structs.replace(_SUMMARY, bases=(base,), run=f"20260131T120000Z-{number:06x}")
            yield number, TaskResult(status=0, summary=summary, seconds=0.5 + number % 1_000 / 1_000)

    def close(self) -> None:
        """Nothing is open."""


def driven(count: int, place: Path) -> dict[str, Any]:
    """Run a fleet of so many libraries that take no time: what the driver takes, for each library.

    A library is a folder of one small file.
    """
    sources = place / "sources"
    rows = []
    for number in range(count):
        folder = sources / f"{number // 1_000:04}" / f"library-{number:07}"
        folder.mkdir(parents=True)
        (folder / "data.json").write_bytes(b"x" * (number % 100))
        rows.append({"source": str(folder), "target": str(place / "targets" / folder.name)})
    table, out = place / "libraries.jsonl", place / "out.parquet"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    del rows
    import_arrow()
    begin, seconds = _memory("VmRSS"), {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        begun = time.monotonic()
        value = work()
        seconds[name] = time.monotonic() - begun
        return value

    libraries = timed("manifest", partial(manifest.read_manifest, str(table), None, "", needs_target=True))
    timed("apart", partial(manifest.demand_apart, libraries, results.result_files(out)))
    order = FleetOrder(command="migrate", options=(), libraries=tuple(libraries))
    del libraries
    fleet = Fleet(parse=parse, order=order, path=out, pool=InstantPool)
    marks: list[float] = [time.monotonic()]
    journal_bytes = 0

    def watch(_: object) -> None:
        marks.append(time.monotonic())

    written = results.write_results

    def write(*arguments: Any) -> None:
        nonlocal journal_bytes
        journal_bytes = results.journal_path(out).stat().st_size
        timed("results", partial(written, *arguments))

    results.write_results = write
    fleet.run(Run(command="fleet migrate"), watch)
    seconds["sizing"], seconds["journal"] = marks[1] - marks[0], marks[-1] - marks[1]
    kept = _memory("VmHWM") - begin
    again = timed("resume", lambda: results.read_results(out))
    del again
    return {
        "libraries": count,
        **{f"{name}_us": round(value / count * 1e6, 1) for name, value in seconds.items()},
        "driver_bytes": round(kept / count),
        "journal_bytes": round(journal_bytes / count),
        "results_bytes": round(out.stat().st_size / count),
    }


def _memory(name: str) -> int:
    """Return a size that Linux tells of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def measured_driver(place: Path) -> dict[str, Any]:
    """Run fleets of several sizes, each in a process of its own."""
    found = []
    for count in DRIVEN:
        folder = place / f"driven-{count}"
        folder.mkdir()
        command = [sys.executable, "-m", "benchmarks.fleet_parts", "--drive", str(count), "--place", str(folder)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout))
        print(found[-1])
        shutil.rmtree(folder)
    return {"sizes": found, "sizing_us_per_file": _sizing(), "fsync_us": _fsync(place)}


def _sizing() -> float:
    """Return the microseconds that counting the bytes of the sample takes for each of its files."""
    files = sum(1 for path in SAMPLE.rglob("*") if path.is_file())
    begun = time.monotonic()
    for _ in range(100):
        total_size(SAMPLE)
    return round((time.monotonic() - begun) / 100 / files * 1e6, 1)


def _fsync(place: Path) -> float:
    """Return the microseconds that it takes to add a line to a file and flush it, the median of a thousand."""
    taken = []
    with (place / "flushed").open("wb") as file:
        for _ in range(1_000):
            begun = time.monotonic()
            file.write(b"x" * 1_000)
            file.flush()
            os.fsync(file.fileno())
            taken.append(time.monotonic() - begun)
    return round(statistics.median(taken) * 1e6, 1)


# --- Ray -------------------------------------------------------------------------------------------------------------


def no_work(_: object) -> TaskResult:
    """End at once."""
    return TaskResult(status=0, summary=_SUMMARY, seconds=0.0)


def measured_ray(place: Path) -> dict[str, Any]:
    """Give tasks that take no time to a cluster on this machine."""
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    order = FleetOrder(
        command="check",
        options=(),
        libraries=tuple(Library(source=f"/nowhere/{number}") for number in range(RAY_TASKS)),
    )
    begun = time.monotonic()
    pools: list[Pool] = []

    def pool() -> Pool:
        pools.append(RayPool(no_work, None, 2))
        return pools[0]

    times = []
    Fleet(parse=parse, order=order, path=place / "ray.parquet", pool=pool).run(
        Run(command="fleet check"), lambda _: times.append(time.monotonic())
    )
    # Behind the first hundred all of its processes are there.
    return {
        "start_seconds": round(times[0] - begun, 1),
        "seconds_per_task": round((times[-1] - times[100]) / (RAY_TASKS - 100), 5),
    }


# --- object storage --------------------------------------------------------------------------------------------------

#: Libraries of so many rows are migrated from a store into it, so often each.
STAGED = {20: 8, 2_000: 4}


def measured_staging(place: Path) -> dict[str, Any]:
    """Migrate libraries from object storage into it, and count what is asked of it: a server on this machine."""
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
    import object_store  # noqa: PLC0415

    found = []
    log = place / "server.log"
    with object_store.object_store(log) as url:
        os.environ.update(object_store.ENVIRONMENT, AWS_ENDPOINT_URL=url)
        storage_path("s3://measured")._files.mkdir("measured")
        for rows, times in STAGED.items():
            source = place / f"rows-{rows}"
            generated = ["--rows", str(rows), "--dimensions", str(DIMENSIONS), "--lang", "en"]
            subprocess.run([sys.executable, "-m", "benchmarks.generate", str(source), *generated], check=True)
            files = [path for path in source.rglob("*") if path.is_file()]
            storage_path(f"s3://measured/{rows}").upload((path, path.relative_to(source).as_posix()) for path in files)
            found.append({"rows": rows, **_staged(source, rows, times, place, log)})
            print(found[-1])
    few, many = found
    per_row = {name: (many[name] - few[name]) / (many["rows"] - few["rows"]) for name in ("gets", "puts")}
    requests = statistics.mean(one["gets"] + one["puts"] for one in found)
    return {
        "sizes": found,
        "calls": few["calls"],
        "gets_fixed": round(few["gets"] - per_row["gets"] * few["rows"], 1),
        "gets_per_row": round(per_row["gets"], 4),
        "puts_fixed": round(few["puts"] - per_row["puts"] * few["rows"], 1),
        "puts_per_row": round(per_row["puts"], 4),
        "client_seconds_per_request": round(statistics.mean(one["client_seconds"] for one in found) / requests, 5),
        "requests_at_once": 16,
    }


def _staged(source: Path, rows: int, times: int, place: Path, log: Path) -> dict[str, Any]:
    """Return what moving one library takes: requests by kind, calls that wait for one another, seconds on a core."""
    moving, calls = [], Counter[str]()

    def done(source: str, target: str) -> float:
        begun = time.process_time()
        ended = run_job(
            LibraryJob(
                command="migrate",
                options=parse("migrate", ()),
                source=source,
                target=target,
                fleet="measured",
            )
        )
        assert ended.status in (0, 1), ended.error
        return time.process_time() - begun

    for number in range(times + 1):
        alone = done(str(source), str(place / f"target-{rows}-{number}"))
        before = log.read_text().count("\n")
        there = done(f"s3://measured/{rows}", f"s3://measured/targets/{rows}-{number}")
        lines = log.read_text().splitlines()[before:]
        # The first one loads the client.
        if number:
            moving.append(there - alone)
        calls = Counter(_kind(line) for line in lines)
    return {
        "gets": calls["gets"],
        "puts": calls["puts"],
        "calls": 14,
        "client_seconds": round(statistics.median(moving), 4),
    }


def _kind(line: str) -> str:
    """Return how a request is paid for: as a PUT is what writes or lists, as a GET what reads."""
    writes = re.search('"(PUT|POST|COPY)|list-type', line)
    reads = re.search('"(GET|HEAD)', line)
    if writes:
        return "puts"
    return "gets" if reads else "others"


MEASURED = {
    "library": measured_libraries,
    "driver": measured_driver,
    "ray": measured_ray,
    "staging": measured_staging,
}


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--only", action="append", choices=MEASURED)
    parser.add_argument("--drive", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help="an empty folder for what is made")
    asked = parser.parse_args()
    if asked.drive:
        print(json.dumps(driven(asked.drive, asked.place)))
        return
    parts = json.loads(PARTS.read_text()) if PARTS.exists() else {}
    for name in asked.only or MEASURED:
        with tempfile.TemporaryDirectory(dir=asked.place) as folder:
            parts[name] = {**parts.get(name, {}), "machine": machine(), **MEASURED[name](Path(folder))}
            # At once: what was made takes its time to be removed.
            PARTS.write_text(json.dumps(parts, indent=2) + "\n")
        print(name, parts[name])


if __name__ == "__main__":
    main()
