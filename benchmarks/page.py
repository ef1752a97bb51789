"""Holds the page of ``regraft ui`` against the command line: its first page, and the plan of an upgrade.

``python -m benchmarks.page`` (some minutes, Linux) makes v1 data of 20,000 rows. In pairs, a fresh command plans their
migration, and a running server does so for a form that was sent; CPU is that of all processes. The exit status is 1
where the first page takes more than 0.3 s of CPU beyond ``regraft --help``, a plan more than 1.2 times that of the
command, or the server and its job 200 MB more than the command.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

from benchmarks.compare import RunFailed, _python, machine, memory_of, run

ROWS, QUICK_ROWS, DIMENSIONS = 20_000, 1_000, 1024
MAX_FIRST_PAGE, MAX_RATIO, MAX_MORE_MB = 0.3, 1.2, 200
_WATCH_SECONDS, _TICKS = 0.1, os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True)
class Cost:
    """What one plan took: of all processes together, but for the peak of memory, which is at one time."""

    wall: float
    cpu: float
    peak_mb: float


def cpu_of(process: int) -> float:
    """Return the CPU seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


class Site:
    """A running server, and a reader who has entered."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n") or text.count("{") != text.count("}"):
            line = process.stdout.readline()
            if not line:
                raise RunFailed(f"no address: {text}")
            text += line
        self.process = process
        address = urlsplit(json.loads(text)["address"])
        self._host, self.root = str(address.netloc), address.path.partition("enter/")[0]
        self._headers = {"Origin": f"http://{self._host}"}
        answer, _ = self._ask("GET", address.path)
        self._headers["Cookie"] = str(answer.getheader("set-cookie")).partition(";")[0]

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[HTTPResponse, str]:
        connection = HTTPConnection(self._host)
        more = {} if body is None else {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request(method, path, body, {**self._headers, **more})
        answer = connection.getresponse()
        return answer, answer.read().decode()

    def home(self) -> str:
        """Return the first page."""
        answer, text = self._ask("GET", self.root)
        if answer.status != 200:
            raise RunFailed(f"the first page has the status {answer.status}")
        return text

    def plan(self, source: Path, library: Path) -> None:
        """Send the form of an upgrade, and follow its plan to the end, as a browser does."""
        token = self.home().partition('data-token="')[2].partition('"')[0]
        fields = {"form_token": token, "path_at": quote(str(source), safe=""), "profile_at": "-"}
        answer, text = self._ask("POST", f"{self.root}upgrade", urlencode({**fields, "library": str(library)}))
        if answer.status != 303:
            raise RunFailed(f"the form has the status {answer.status}: {text}")
        job = str(answer.getheader("location"))
        self._ask("GET", f"{job}/events")
        answer, text = self._ask("GET", f"{job}/report.json")
        if answer.status != 200 or not json.loads(text)["totals"]["rows"]["carried"]:
            raise RunFailed(f"the plan failed: {text[:2000]}")


@contextmanager
def serving(home: Path) -> Iterator[Site]:
    """Run ``regraft ui`` for a person with this home folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    process = subprocess.Popen(
        _python("regraft", "ui", "--no-browser", "--json"),
        stdout=subprocess.PIPE,
        env={**environment, "HOME": str(home)},
        text=True,
    )
    try:
        yield Site(process)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def first_page(home: Path) -> float:
    """Return the CPU seconds of a server to its first page, beyond those of the command line's help."""
    with subprocess.Popen(_python("regraft", "--help"), stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    with serving(home) as site:
        site.home()
        return cpu_of(site.process.pid) - used.ru_utime - used.ru_stime


def _watched(process: int, act: Callable[[], object]) -> Cost:
    """Do something with a running process, and return what it took."""
    peaks, is_over = [memory_of(process)], threading.Event()

    def watch() -> None:
        while not is_over.wait(_WATCH_SECONDS):
            peaks.append(memory_of(process))

    watching = threading.Thread(target=watch)
    cpu, began = cpu_of(process), time.perf_counter()
    watching.start()
    try:
        act()
        return Cost(time.perf_counter() - began, cpu_of(process) - cpu, max(peaks))
    finally:
        is_over.set()
        watching.join()


def by_command(source: Path, work: Path) -> Cost:
    """Plan by the command."""
    before = os.times()
    done = run(_python("regraft", "migrate", source, "--to", work / "library", "--dry-run", "--json"), work, memory_of)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(done.seconds, cpu, done.peak_mb)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the table, and judge it."""
    # What was compiled once is to be there the next time, as it is for a user.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    parser = argparse.ArgumentParser(description="Hold the page of regraft ui against the command line.")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="1,000 rows, once, no limits")
    parser.add_argument("--folder", type=Path, help="where data is made and removed (default: the temporary folder)")
    options = parser.parse_args(arguments)
    pairs: list[tuple[Cost, Cost]] = []
    with tempfile.TemporaryDirectory(prefix="regraft-bench-", dir=options.folder) as folder:
        work, times = Path(folder), 1 if options.quick else options.repetitions
        home, source = work / "home", work / "v1"
        home.mkdir()
        rows = QUICK_ROWS if options.quick else ROWS
        run(_python("benchmarks.generate", source, "--rows", rows, "--dimensions", DIMENSIONS), work)
        first = min(first_page(home) for _ in range(2 * times))
        with serving(home) as site:
            for _ in range(times):
                theirs = by_command(source, work)
                ours = _watched(site.process.pid, lambda: site.plan(source, work / "library"))
                pairs.append((ours, theirs))
                print(f"page {ours}, command {theirs}", file=sys.stderr, flush=True)
    wall, cpu = (statistics.median(getattr(a, name) / getattr(b, name) for a, b in pairs) for name in ("wall", "cpu"))
    more = max(ours.peak_mb for ours, _ in pairs) - min(theirs.peak_mb for _, theirs in pairs)
    print("| measured | result | limit |\n| --- | ---: | ---: |")
    print(f"| first page, CPU | {first:.2f} s | {MAX_FIRST_PAGE} s |")
    print(f"| plan of {rows:,} rows, time | {wall:.2f} × | {MAX_RATIO} × |\n| CPU | {cpu:.2f} × | {MAX_RATIO} × |")
    print(f"| memory above the command | {more:.0f} MB | {MAX_MORE_MB} MB |\n\nMeasured on {machine()}.")
    is_over = first > MAX_FIRST_PAGE or max(wall, cpu) > MAX_RATIO or more > MAX_MORE_MB
    return int(is_over and not options.quick)


if __name__ == "__main__":
    sys.exit(main())
