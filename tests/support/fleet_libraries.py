"""Many sources for fleets: copies of the sample and the golden cases that share no file, each with a mark of its own,
a fifth of them damaged in one of many ways."""

from __future__ import annotations

import os
import random
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extras import optional
from golden_cases import CASES, as_backup
from harness import HERE, REPO, snapshot
from sqlite_bytes import registered

pq = optional("pyarrow.parquet")

SAMPLE = REPO / "sample_v1" / "backup"
#: One in so many sources is damaged.
ONE_IN = 5
#: How many of each there are, sample first: ``unicode`` takes five times as long as the others.
_SHARES = (5, 3, 3, 1)
#: A time for all files, so that one seed gives the same sources.
_TIME = 1_750_000_000


@dataclass(frozen=True)
class Source:
    """A source, what it was made of, and how it was damaged; ``mark`` ends each of its uploads, and no others."""

    path: Path
    kind: str
    mark: bytes
    damage: str | None = None


@dataclass(frozen=True)
class Parts:
    """A source as a folder: where it is, its state, its vector files and its uploads."""

    folder: Path
    state: Path
    vectors: list[Path]
    uploads: list[Path]


#: Ways to damage a folder, before it may be packed, and an archive.
IN_FOLDER: dict[str, Callable[[Parts, random.Random], None]] = {}
OF_ARCHIVE: dict[str, Callable[[Path, random.Random], None]] = {}


def make(folder: Path, count: int, seed: int) -> list[Source]:
    """Make so many sources in a new folder, and return them in the order of their names; a seed gives the same ones."""
    chance = random.Random(seed)
    damages = _dealt([*IN_FOLDER, *OF_ARCHIVE], count // ONE_IN, chance)
    damaged = dict(zip(chance.sample(range(count), len(damages)), damages, strict=True))
    folder.mkdir()
    return [_source(folder, number, damaged.get(number), chance) for number in range(count)]


def _dealt(names: list[str], count: int, chance: random.Random) -> list[str]:
    """Return so many names in an order of chance, none of them again before all others."""
    dealt: list[str] = []
    while len(dealt) < count:
        dealt += chance.sample(names, len(names))
    return dealt[:count]


def _source(folder: Path, number: int, damage: str | None, chance: random.Random) -> Source:
    [case] = chance.choices(("sample", *CASES), _SHARES)
    is_packed = chance.random() < 0.5 or damage in OF_ARCHIVE
    parts = _sample(folder / f"{number:03}-{case}") if case == "sample" else _golden(case, folder, number, is_packed)
    mark = f"library {number} of a fleet\n".encode()
    for path in parts.uploads:
        path.write_bytes(path.read_bytes() + mark)
    if damage in IN_FOLDER:
        IN_FOLDER[damage](parts, chance)
    for path in (*parts.folder.rglob("*"), parts.folder):
        os.utime(path, (_TIME, _TIME))
    path = _packed(parts.folder) if is_packed else parts.folder
    if damage in OF_ARCHIVE:
        OF_ARCHIVE[damage](path, chance)
    return Source(path, f"{case}, {'packed' if is_packed else 'folder'}", mark, damage)


def _sample(folder: Path) -> Parts:
    shutil.copytree(SAMPLE, folder)
    return _parts(folder, folder / "Data", folder / "data.json")


def _golden(case: str, folder: Path, number: int, is_packed: bool) -> Parts:
    """Lay a golden case out as it is, an export; where it is to be packed, as a backup: exports are folders."""
    place, laid = folder / f"{number:03}-{case}", folder / "laid"
    with zipfile.ZipFile(HERE / "golden" / f"{case}.zip") as archive:
        archive.extractall(laid)
    if not is_packed:
        (laid / "v1").rename(place)
        shutil.rmtree(laid)
        return _parts(place, place, place / "redux.json")
    with zipfile.ZipFile(as_backup(laid / "v1", laid / "backup.zip")) as archive:
        archive.extractall(place)
    shutil.rmtree(laid)
    return _parts(place, place / "Data", place / "data.json")


def _parts(folder: Path, data: Path, state: Path) -> Parts:
    vectors, uploads = (sorted((data / name).iterdir()) for name in ("KnowledgeBase", "Files"))
    return Parts(folder, state, vectors, uploads)


def _packed(folder: Path) -> Path:
    """Pack a folder in its place."""
    target = folder.with_name(f"{folder.name}.zip")
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                # A name alone has a time that is always the same.
                name = zipfile.ZipInfo(path.relative_to(folder).as_posix())
                archive.writestr(name, path.read_bytes(), zipfile.ZIP_DEFLATED)
    shutil.rmtree(folder)
    return target


# --- damage ----------------------------------------------------------------------------------------------------------


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(path: Path, chance: random.Random, first: int, count: int) -> None:
    """Flip all bits of some bytes of a file, none of them among the first ones."""
    raw = bytearray(path.read_bytes())
    for place in chance.sample(range(first, len(raw)), count):
        raw[place] ^= 0xFF
    path.write_bytes(raw)


@registered(IN_FOLDER, "vector files cut in half")
def _(parts: Parts, chance: random.Random) -> None:
    for path in parts.vectors:
        _cut(path)


@registered(IN_FOLDER, "bytes in pages flipped")
def _(parts: Parts, chance: random.Random) -> None:
    for path in parts.vectors:
        _flip(path, chance, 100, 30)


@registered(IN_FOLDER, "a page of each vector file zeroed")
def _(parts: Parts, chance: random.Random) -> None:
    for path in parts.vectors:
        raw = path.read_bytes()
        # Of the first page nothing stays: a file that is not empty has one at least.
        page = chance.randrange(len(raw) // 4096)
        path.write_bytes(raw[: page * 4096] + bytes(4096) + raw[(page + 1) * 4096 :])


@registered(IN_FOLDER, "vector files of chance")
def _(parts: Parts, chance: random.Random) -> None:
    for path in parts.vectors:
        path.write_bytes(chance.randbytes(9_000))


@registered(IN_FOLDER, "vector files empty")
def _(parts: Parts, chance: random.Random) -> None:
    for path in parts.vectors:
        path.write_bytes(b"")


@registered(IN_FOLDER, "a vector file gone")
def _(parts: Parts, chance: random.Random) -> None:
    chance.choice(parts.vectors).unlink()


@registered(IN_FOLDER, "uploads gone")
def _(parts: Parts, chance: random.Random) -> None:
    for path in parts.uploads:
        path.unlink()


@registered(IN_FOLDER, "state gone")
def _(parts: Parts, chance: random.Random) -> None:
    parts.state.unlink()


@registered(IN_FOLDER, "state cut in half")
def _(parts: Parts, chance: random.Random) -> None:
    _cut(parts.state)


@registered(IN_FOLDER, "state empty")
def _(parts: Parts, chance: random.Random) -> None:
    parts.state.write_bytes(b"")


@registered(IN_FOLDER, "state of something else")
def _(parts: Parts, chance: random.Random) -> None:
    parts.state.write_text("[1, 2, 3]")


@registered(IN_FOLDER, "no knowledge base")
def _(parts: Parts, chance: random.Random) -> None:
    shutil.rmtree(parts.folder)
    parts.folder.mkdir()
    (parts.folder / "notes.txt").write_text("things to buy")


@registered(OF_ARCHIVE, "archive cut in half")
def _(path: Path, chance: random.Random) -> None:
    _cut(path)


@registered(OF_ARCHIVE, "bytes of the archive flipped")
def _(path: Path, chance: random.Random) -> None:
    _flip(path, chance, 200, 300)


@registered(OF_ARCHIVE, "archive empty")
def _(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


@registered(OF_ARCHIVE, "archive is a text")
def _(path: Path, chance: random.Random) -> None:
    path.write_text("things to buy")


@registered(OF_ARCHIVE, "archive gone")
def _(path: Path, chance: random.Random) -> None:
    path.unlink()


NOW = "2026-01-31T12:00:00Z"


def rows_in(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def libraries_in(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of libraries by the names of their sources."""
    return {Path(row["source"]).name: row for row in rows_in(path) if row["base"] is None}


def content(folder: Path) -> dict[str, bytes]:
    """Return the files of a library but for what is recorded of its run."""
    files = {name: found[2] for name, found in snapshot(folder).items() if found[0] >= 0}
    own = (".regraft/", "report.")
    return {name: data for name, data in files.items() if not name.startswith(own)}
