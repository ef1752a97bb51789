"""The power is cut at any moment of a run: what may be on the disk then is built, and regraft has to go on from there.

Every image is judged: each database opens, is whole, and holds what it held at some moment of the run; each file of the
user's is one that stood there at some moment. The images whose files come to the same are one *outcome*; of each the
next run is made once, and has to come to the end of an undisturbed one, and undo to the beginning.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import ClassVar

import apsw

from benchmarks.kills import state_of
from campaign.campaign import Campaign, Outcome
from campaign.disk import Wire
from campaign.journal import File, Folder, Image, Journal
from campaign.runs import Stage, stages
from campaign.stores import SCENARIOS, Scenario
from regraft.disk import untrusted_sqlite
from regraft.ledger.ledger import FOLDER

_LOGS = ("-journal", "-wal")
#: One of so many images is taken up again by the next run whatever it comes to.
SAMPLED = 500
_TORN = "torn"


class PowerLoss(Campaign):
    """What a power cut may leave."""

    name = "power-loss"
    unit = "disk images"
    whole = 500_000
    controls: ClassVar = {"no-sync": "nothing is ever flushed"}
    scenarios: tuple[Scenario, ...] = SCENARIOS

    def cases(self, first: int = 1) -> Iterator[Outcome]:
        """Cut the power of one command after the other at random moments."""
        with stages(self.scenarios, Path(self.work)) as found:
            cuts = [Cuts(stage, self.work, drop_flushes=self.control == "no-sync") for stage in found]
            number = first
            while True:
                cut = cuts[(number - 1) % len(cuts)]
                yield cut.case(self.random(number), whole=number % SAMPLED == 0)
                self.figures["different outcomes taken up again"] = sum(len(one.iterate) for one in cuts)
                self.figures["images with something in flight"] = sum(one.in_flight for one in cuts)
                number += 1


class Cuts:
    """One scenario, recorded once, and its disk images."""

    def __init__(self, stage: Stage, work: Path, *, drop_flushes: bool) -> None:
        self._stage = stage
        self._scratch = work / "scratch"
        self.journal = _recorded(stage, drop_flushes=drop_flushes)
        #: What a file's bytes come to, by their hash, and by place where nothing is in flight.
        self._meaning: dict[bytes, str] = {}
        self._settled: dict[object, str] = {}
        self.iterate: dict[str, str] = {}
        self.in_flight = 0
        #: For every path of the user's what it may come to: as it was at some moment of the run.
        self._allowed: dict[str, set[str]] = {}
        for place in self._moments():
            for path, meaning in self._meanings(self.journal.names_at(place, None), place, None)[0].items():
                self._allowed.setdefault(path, set()).add(meaning)

    def _moments(self) -> list[int]:
        return list(range(1, self.journal.length + 2))

    def case(self, chance: Random, *, whole: bool) -> Outcome:
        """Cut the power at a moment, and judge what is left."""
        place = chance.randint(1, self.journal.length + 1)
        image = self.journal.names_at(place, chance)
        meanings, contents = self._meanings(image, place, chance)
        self.in_flight += bool(contents) or len(image) != len(self.journal.names_at(place, None))
        problem = self._odd(meanings)
        mark = hashlib.blake2b(repr(sorted(self._plain(meanings).items())).encode(), digest_size=16).hexdigest()
        if not problem and (whole or mark not in self.iterate):
            self._write(image, place, contents)
            problem = self._stage.judge_next(mark=f"{mark} {place if whole else ''}")
            self.iterate.setdefault(mark, problem)
        problem = problem or self.iterate.get(mark, "")
        kind = f"{self._stage.scenario.name}: {'in flight' if contents else 'at rest'}"
        return Outcome(kind, problem, f"{self._stage.scenario.name}, cut at {place} of {self.journal.length}")

    def _odd(self, meanings: dict[str, str]) -> str:
        """Say which files of the user's are what they never were."""
        odd = [
            f"{path} is {meaning}"
            for path, meaning in meanings.items()
            if FOLDER not in path.split("/")
            and not path.endswith("part")
            and meaning not in self._allowed.get(path, ())
        ]
        return ", ".join(odd[:3])

    def _plain(self, meanings: dict[str, str]) -> dict[str, str]:
        """Return what decides how the next run goes: what a file never was at any moment is torn, in whatever way."""
        return {
            path: meaning if meaning in self._allowed.get(path, ()) else _TORN for path, meaning in meanings.items()
        }

    # --- what an image comes to ------------------------------------------------------------------------------------

    def _meanings(self, image: Image, place: int, chance: Random | None) -> tuple[dict[str, str], dict[str, bytes]]:
        """Return what every path comes to, and the bytes of files that changes were in flight to."""
        contents = {} if chance is None else _torn(image, place, chance)
        meanings, names = {}, Counter(node for node in image.values() if isinstance(node, File))
        for path, node in image.items():
            if isinstance(node, Folder):
                meanings[path] = "folder"
            elif not path.endswith((*_LOGS, "-shm")):
                meanings[path] = self._meaning_of(path, image, place, contents, chance is None)
                if names[node] > 1 and FOLDER in path.split("/"):
                    meanings[path] += " under another name, too"
        return meanings, contents

    def _meaning_of(self, path: str, image: Image, place: int, contents: dict[str, bytes], all_arrived: bool) -> str:
        names = [name for name in (path, *(path + log for log in _LOGS)) if isinstance(image.get(name), File)]
        key = tuple((image[name], _arrived_of(image[name], place, all_arrived)) for name in names)
        in_flight = any(name in contents for name in names)
        if not in_flight and key in self._settled:
            return self._settled[key]
        found = self._read([_content(name, image, place, contents, all_arrived) for name in names], names)
        if not in_flight:
            self._settled[key] = found
        return found

    def _read(self, contents: list[bytes], names: list[str]) -> str:
        """Let SQLite open a database with its log, and return what it holds; of another file a hash of its bytes."""
        if not contents[0].startswith(untrusted_sqlite.MAGIC[:6]):
            return _hash(contents[0])
        if len(contents) == 1 and (mark := _digest(contents[0])) in self._meaning:
            # Without a log SQLite changes nothing.
            return self._meaning[mark]
        self._scratch.mkdir(exist_ok=True)
        database = self._scratch / "db"
        for end in (*_LOGS, "-shm"):
            (self._scratch / f"db{end}").unlink(missing_ok=True)
        for content, name in zip(contents, names, strict=True):
            (self._scratch / f"db{name[len(names[0]) :]}").write_bytes(content)
        try:
            db = apsw.Connection(str(database))
            db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            db.close()
        except apsw.Error as error:
            return f"{_TORN} ({type(error).__name__})"
        mark = _digest(database.read_bytes())
        if mark not in self._meaning:
            self._meaning[mark] = _rows(database)
        return self._meaning[mark]

    def _write(self, image: Image, place: int, contents: dict[str, bytes]) -> None:
        """Write an image to where the store is."""
        root, written = self._stage.place, dict[File, Path]()
        self._stage.reset()
        for top in self._stage.changed():
            shutil.rmtree(top) if top.is_dir() else top.unlink(missing_ok=True)
        for path, node in image.items():
            if path.split("/")[0] not in self._stage.scenario.changed:
                continue
            if isinstance(node, Folder):
                (root / path).mkdir()
            elif node in written:
                (root / path).hardlink_to(written[node])
            elif not path.endswith("-shm"):
                written[node] = root / path
                (root / path).write_bytes(_content(path, image, place, contents, False))
                changed = node.time_at(place)
                if changed is not None and path not in contents:
                    os.utime(root / path, ns=(changed, changed))


def _recorded(stage: Stage, *, drop_flushes: bool) -> Journal:
    """Run a scenario undisturbed, and return what it asked of the disk."""
    stage.reset()
    found = stage.output / "journal"
    real_exit = os._exit

    def recorded() -> None:
        journal = Journal(stage.place, drop_flushes=drop_flushes)
        wire = Wire(journal, str(stage.place)).lay()

        def leave(status: int) -> None:
            wire.lift()
            found.write_bytes(pickle.dumps(journal))
            real_exit(status)

        os._exit = leave  # type: ignore[assignment]

    done = stage.run(1, recorded)
    if done.status != stage.status:
        raise RuntimeError(f"{stage.scenario.name}: recorded, it ended with {done.status}: {done.stderr[-3000:]}")
    journal: Journal = pickle.loads(found.read_bytes())
    return journal


def _arrived_of(node: object, place: int, all_arrived: bool) -> int:
    assert isinstance(node, File)
    sure, asked, _ = node.at(place)
    return asked if all_arrived else sure


def _content(name: str, image: Image, place: int, contents: dict[str, bytes], all_arrived: bool) -> bytes:
    if name in contents:
        return contents[name]
    node = image[name]
    assert isinstance(node, File)
    return node.content(_arrived_of(node, place, all_arrived))


def _torn(image: Image, place: int, chance: Random) -> dict[str, bytes]:
    """Return the bytes of the files that changes were in flight to: some of these came through, by chance."""
    contents: dict[str, bytes] = {}
    for path, node in image.items():
        if isinstance(node, File):
            sure, asked, _ = node.at(place)
            if sure != asked:
                contents[path] = node.torn(sure, asked, chance)
    return contents


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _hash(content: bytes) -> str:
    return _digest(content).hex()


def _rows(database: Path) -> str:
    """Return a hash of what a database holds, and what SQLite finds wrong with it."""
    try:
        db = apsw.Connection(str(database))
        problem = db.execute("PRAGMA integrity_check").get
        db.close()
        return f"{state_of(database.parent)['db']}{'' if problem == 'ok' else f' {problem}'}"
    except apsw.Error as error:
        return f"{_TORN} ({type(error).__name__})"
