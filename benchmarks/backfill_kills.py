"""Kills ``regraft backfill`` at random moments and counts how often each text was sent.

``python -m benchmarks.backfill_kills --kills 100`` fills a base without vectors, kills the command again and again, and
lets it come to its end between times. A text may be sent again only where a kill took it from what was under way: what
has its vector is never sent, and nothing is sent twice in one run. (The probe, which sends some texts that have one, is
left out.) When all is filled, ``check`` has to find nothing, and taking all runs back has to come to the beginning.
Then it begins anew, until there were as many kills as wanted. At last two processes fill a base at once: no text may be
sent twice. The exit status is 1 when anything else came of it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from benchmarks import embedding_server
from benchmarks.backfill import base_of, configuration, index_of, note
from benchmarks.kills import state_of
from regraft.disk import sqlite

DIMENSIONS = 256


class Broken(Exception):
    """A promise was not kept."""


@dataclass
class Counts:
    """What came of all runs."""

    kills: int = 0
    #: Kills that have cost nothing.
    idle: int = 0
    filled: int = 0
    #: How often texts were sent until they had their vector: {times: texts}.
    sent: Counter[int] = field(default_factory=Counter)
    most_lost: int = 0


@dataclass
class Filled:
    """One base on its way from no vector to all of them."""

    base: Path
    log: Path
    command: list[str]
    sent: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        with sqlite.open_readonly(index_of(self.base)) as db:
            self.texts = {str(key) for (key,) in db.execute("SELECT embedding_text_hash FROM search_text")}

    def ready(self) -> set[str]:
        """Return the texts that have a vector."""
        with sqlite.open_readonly(index_of(self.base)) as db:
            return {str(key) for (key,) in db.execute("SELECT embedding_text_hash FROM embedding")}

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command, as a group of processes of its own."""
        return subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)

    def run(self, seconds: float | None, *, sending: bool = False) -> int | None:
        """Run the command; kill it after so many seconds, which with ``sending`` count from its first request on.

        Returns:
            How many texts the kill has cost, None where the command ended before.

        Raises:
            Broken
        """
        before, begin = self.ready(), self.log.stat().st_size
        process = self.start()
        while sending and process.poll() is None and self.log.stat().st_size == begin:
            time.sleep(0.002)
        try:
            _, said = process.communicate(timeout=seconds)
            if process.returncode:
                raise Broken(f"it ended with {process.returncode}: {said.decode()}")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        sent = self.received(begin)
        if any(count > 1 for count in sent.values()):
            raise Broken("one run has sent a text twice")
        if before & sent.keys():
            raise Broken("a text was sent that had its vector")
        lost = sent.keys() - self.ready()
        self.sent.update(sent)
        self.lost.update(lost)
        return None if process.returncode == 0 else len(lost)

    def received(self, begin: int) -> Counter[str]:
        """Return how often the server was sent each text of the base, from this place of its log on."""
        with self.log.open("rb") as file:
            file.seek(begin)
            return Counter(key for key in file.read().decode().split() if key in self.texts)

    def settle(self, old: dict[str, str]) -> None:
        """Look at what all runs have come to, and take them back.

        Raises:
            Broken
        """
        if self.ready() != self.texts:
            raise Broken("not all texts have a vector")
        if any(self.sent[key] != 1 + self.lost[key] for key in self.texts):
            raise Broken("a text was sent more often than kills took it away")
        if (status := _regraft("check", self.base)) != 0:
            raise Broken(f"check ended with {status}")
        while _regraft("undo", self.base, "--yes", "-q") == 0:
            pass
        if state_of(self.base) != old:
            raise Broken("taking it back did not come to the beginning")


def _regraft(*arguments: object) -> int:
    line = [sys.executable, "-m", "regraft", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, check=False).returncode


class Killer:
    """Fills copies of a base."""

    def __init__(self, base: Path, url: str, log: Path, asked: argparse.Namespace) -> None:
        self._base = base
        self._log = log
        self._asked = asked
        self._old = state_of(base)
        self._config = log.with_name("regraft.yaml")
        self._config.write_text(configuration(url, asked.batch))

    def fresh(self, folder: Path) -> Filled:
        """Return a copy without vectors."""
        copy = shutil.copytree(self._base, folder / self._base.name)
        options = ["--dimensions", str(DIMENSIONS), "--config", str(self._config), "--no-probe", "-q"]
        return Filled(copy, self._log, [sys.executable, "-m", "regraft", "backfill", str(copy), "--yes", *options])

    def kill(self, counts: Counts, random: Random) -> None:
        """Fill one copy, killed as often as is still wanted."""
        with tempfile.TemporaryDirectory(dir=self._log.parent) as folder:
            filled = self.fresh(Path(folder))
            while True:
                is_last = counts.kills == self._asked.kills
                seconds = None if is_last else random.uniform(0, self._asked.within)
                # Every fifth at any moment, the others while there is something to lose.
                lost = filled.run(seconds, sending=not is_last and counts.kills % 5 > 0)
                if lost is None:
                    break
                counts.kills += 1
                counts.idle += lost == 0
                counts.most_lost = max(counts.most_lost, lost)
            filled.settle(self._old)
            counts.filled += 1
            counts.sent.update(filled.sent.values())
            note(f"{counts.kills} kills, {counts.filled} times filled")

    def two_at_once(self) -> tuple[int, int]:
        """Fill one copy by two processes; return how many texts each of the runs has written."""
        with tempfile.TemporaryDirectory(dir=self._log.parent) as folder:
            filled = self.fresh(Path(folder))
            begin = self._log.stat().st_size
            processes = [filled.start() for _ in range(2)]
            for process in processes:
                _, said = process.communicate()
                if process.returncode:
                    raise Broken(f"one of two ended with {process.returncode}: {said.decode()}")
            filled.sent = filled.received(begin)
            parts = _written_by_run(filled.base)
            filled.settle(self._old)
            return parts


def _written_by_run(base: Path) -> tuple[int, int]:
    with sqlite.open_readonly(base / ".regraft" / "ledger.sqlite") as db:
        rows = db.execute("SELECT detail ->> 'count' FROM action ORDER BY run_id").fetchall()
    first, second = [int(count) for (count,) in rows] + [0] * (2 - len(rows))
    return first, second


def main() -> int:
    """Kill, look, count."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--texts", type=int, default=12_000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--latency", type=float, default=0.25, help="of the server, in seconds")
    parser.add_argument("--within", type=float, default=2.0, help="a run is killed within so many seconds")
    parser.add_argument("--two", type=int, default=3, metavar="N", help="fill a base by two processes N times")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    counts, random = Counts(), Random(asked.seed)
    with tempfile.TemporaryDirectory(prefix="regraft-bench-") as place, base_of(asked.texts, 100, Path(place)) as base:
        log = Path(place, "sent")
        log.touch()
        with embedding_server.serving(DIMENSIONS, asked.latency, log) as url:
            killer = Killer(base, url, log, asked)
            try:
                while counts.kills < asked.kills:
                    killer.kill(counts, random)
                parts = [killer.two_at_once() for _ in range(asked.two)]
            except Broken as broken:
                print(f"after {counts.kills} kills: {broken}")
                return 1
    total = counts.sent.total()
    mean = sum(times * texts for times, texts in counts.sent.items()) / total
    print(f"{counts.kills} kills ({counts.idle} of them cost nothing), {total:,} texts in {counts.filled} bases filled")
    print("sent: " + ", ".join(f"{texts:,} texts {times} times" for times, texts in sorted(counts.sent.items())))
    print(f"mean {mean:.3f}; a kill took {counts.most_lost} texts at most from what was under way")
    print("two at once: " + ", ".join(f"{one:,} + {other:,}" for one, other in parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
