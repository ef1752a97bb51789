"""Measures the most memory that commands take for input that was made to take much, and the time.

``python -m benchmarks.bounds FOLDER [--only NAME]… [--mb N] [--items N]`` makes each input below FOLDER, runs every
command on it in a process of its own, and prints the peak of its memory, the time and the exit status. Its own exit
status is 1 where a process took more than 500 MB and three times the largest single text of its input, or ended in a
traceback.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw

from regraft.formats.cherry_v2.catalog import TABLES

BASE_BYTES = 500_000_000
TEXT_FACTOR = 3
MODEL = {"id": "embed-3", "name": "Embed 3", "provider": "acme"}
TABLE = (
    "CREATE TABLE vectors (id TEXT, pageContent TEXT, uniqueLoaderId TEXT NOT NULL, source TEXT NOT NULL,"
    " vector F32_BLOB(4), metadata TEXT)"
)
CONFIG = """embedders:
  mine:
    provider: openai
    base_url: http://127.0.0.1:1/v1
    model: embed-3
    model_ids: [acme::embed-3]
    price_per_million_tokens: 0.02
"""
_MEASURED = """
import sys
from pathlib import Path
from regraft.__main__ import main
status = 0
try:
    main()
except SystemExit as end:
    status = end.code or 0
peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(f"peak {peak}", file=sys.stderr)
sys.exit(status)
"""


@dataclass(frozen=True)
class Sizes:
    """How large inputs are: a large text in bytes, and many of anything."""

    text: int
    many: int


@dataclass(frozen=True)
class Input:
    """What is measured: how it is made in a new folder, its largest text, and commands with names in braces."""

    make: Callable[[Path, Sizes], Path]
    text: Callable[[Path, Sizes], int]
    commands: tuple[str, ...]


# --- inputs ----------------------------------------------------------------------------------------------------------


def _vectors(path: Path, rows: Iterable[tuple[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    db = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode = OFF")
    db.execute(TABLE)
    db.execute("BEGIN")
    db.executemany(
        "INSERT INTO vectors VALUES (?, ?, ?, 'source', ?, '{}')",
        (
            (f"{loader}_0", body, loader, struct.pack("<4f", 1, 2, 3, number))
            for number, (loader, body) in enumerate(rows)
        ),
    )
    db.execute("COMMIT")
    db.close()


def _item(number: int) -> str:
    address = f"https://example.com/{number}"
    fields = {"id": f"i{number}", "type": "url", "content": address, "created_at": 1741944474000}
    return json.dumps({**fields, "uniqueId": f"L{number}", "uniqueIds": [f"L{number}"]})


def _state(path: Path, count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        file.write(f'{{"bases": [{{"id": "b", "name": "Base", "model": {json.dumps(MODEL)}, "items": [')
        file.writelines(("" if number == 0 else ",") + _item(number) for number in range(count))
        file.write("]}]}")


def two_bodies(folder: Path, sizes: Sizes) -> Path:
    _state(folder / "knowledge.json", 2)
    wide = "\U0001f600 " + "word " * (sizes.text // 5)
    _vectors(folder / "KnowledgeBase" / "b", ((f"L{number}", f"{number} {wide}") for number in range(2)))
    return folder / "knowledge.json"


def many_items(folder: Path, sizes: Sizes) -> Path:
    _state(folder / "knowledge.json", sizes.many)
    _vectors(folder / "KnowledgeBase" / "b", [("L0", "a text")])
    return folder / "knowledge.json"


def many_rows(folder: Path, sizes: Sizes) -> Path:
    _state(folder / "knowledge.json", 1)
    _vectors(folder / "KnowledgeBase" / "b", (("L0", f"text {number}") for number in range(sizes.many)))
    return folder / "knowledge.json"


def sparse_vectors(folder: Path, _: Sizes) -> Path:
    _state(folder / "knowledge.json", 1)
    _vectors(folder / "KnowledgeBase" / "b", [("L0", "a text")])
    os.truncate(folder / "KnowledgeBase" / "b", 1 << 40)
    return folder / "knowledge.json"


def sparse_state(folder: Path, _: Sizes) -> Path:
    (folder / "data.json").write_text("{}")
    os.truncate(folder / "data.json", 1 << 40)
    return folder


def sparse_archive(folder: Path, _: Sizes) -> Path:
    path = folder / "backup.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.json", "{}")
    raw = path.read_bytes()
    with path.open("wb") as file:
        file.write(raw[:40])
        file.seek((1 << 40) - len(raw))
        file.write(raw)
    return path


def _archive(path: Path, names: Iterator[bytes]) -> Path:
    directory, count, place = bytearray(), 0, 0
    with path.open("wb") as file:
        for name in names:
            file.write(struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0x800, 0, 0, 33, 0, 0, 0, len(name), 0) + name)
            directory += struct.pack(
                "<4sBB5H3L5H2L", b"PK\1\2", 20, 3, 20, 0x800, 0, 0, 33, 0, 0, 0, len(name), 0, 0, 0, 0, 0, place
            )
            directory += name
            place, count = place + 30 + len(name), count + 1
        file.write(directory)
        file.write(struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), place))
        file.write(struct.pack("<4sLQL", b"PK\6\7", 0, place + len(directory), 1))
        most = min(count, 0xFFFF)
        file.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, most, most, len(directory), place, 0))
    return path


def deep_names(folder: Path, sizes: Sizes) -> Path:
    names = (f"{number:x}/{'/'.join('abcdefgh' for _ in range(200))}".encode() for number in range(sizes.many // 200))
    return _archive(folder / "deep.zip", names)


def many_members(folder: Path, sizes: Sizes) -> Path:
    names = (f"Data/Files/file number {number}.md".encode() for number in range(sizes.many))
    return _archive(folder / "many.zip", names)


def long_names(folder: Path, _: Sizes) -> Path:
    return _archive(folder / "long.zip", (f"{number:x}{'x' * 60_000}".encode() for number in range(1_000)))


def _library(folder: Path, make: Callable[[Path, Sizes], Path], sizes: Sizes) -> Path:
    """Migrate an input; make an empty profile and a configuration beside what comes of it."""
    (folder / "v1").mkdir()
    _run(f"migrate {make(folder / 'v1', sizes)} --to {folder / 'library'} -y -q")
    (folder / "profile" / "Data").mkdir(parents=True)
    db = apsw.Connection(str(folder / "profile" / "Data" / "cherrystudio.sqlite"))
    for statement in TABLES:
        db.execute(statement)
    db.close()
    (folder / "regraft.yaml").write_text(CONFIG)
    return folder / "library"


def library_of_texts(folder: Path, sizes: Sizes) -> Path:
    return _library(folder, two_bodies, sizes)


def library_of_rows(folder: Path, sizes: Sizes) -> Path:
    return _library(folder, many_rows, sizes)


def _of_text(_: Path, sizes: Sizes) -> int:
    return sizes.text


def _of_state(path: Path, _: Sizes) -> int:
    return path.stat().st_size


def _none(_path: Path, _sizes: Sizes) -> int:
    return 0


_READING = ("inspect {in}", "check {in}", "migrate {in} --to {out} -y -q")
_OF_LIBRARY = (
    "inspect {in}",
    "check {in}",
    "search {in} word --mode bm25",
    "pack {in} {out}.zip",
    "export {in} {out}.parquet",
    "import {place}/out-export.parquet --to {out} -y -q",
    "compare {place}/v1/knowledge.json {in}",
    "gc {in} --dry-run",
    "upgrade {in} --dry-run",
    "reconcile {in} --dry-run",
    "repair {in} --dry-run",
    "backfill {in} --dry-run --config {place}/regraft.yaml",
    "restore {in} --dry-run --config {place}/regraft.yaml --embedder mine --model acme::embed-4",
    "install {in} --profile {place}/profile --recreate-provider acme -y -q",
    "check {place}/profile",
    "undo {place}/profile -y",
)
INPUTS = {
    "two bodies": Input(two_bodies, _of_text, _READING),
    "many items": Input(many_items, _of_state, _READING),
    "many rows": Input(many_rows, _none, _READING),
    "a sparse vector file": Input(sparse_vectors, _none, _READING),
    "a sparse data.json": Input(sparse_state, _none, _READING),
    "a sparse archive": Input(sparse_archive, _none, _READING),
    "deep names": Input(deep_names, _none, _READING),
    "many members": Input(many_members, _none, _READING),
    "long names": Input(long_names, _none, _READING),
    "a library of large texts": Input(library_of_texts, _of_text, _OF_LIBRARY),
    "a library of many rows": Input(library_of_rows, _none, _OF_LIBRARY),
}


# --- running ---------------------------------------------------------------------------------------------------------


def _run(command: str, **names: object) -> tuple[int, int, float, str]:
    """Run a command; return its exit status, the peak of its memory in bytes, its seconds and what it said."""
    words = [word.format(**names) for word in command.split()]
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *words], capture_output=True, text=True, errors="replace", check=False
    )
    *said, last = done.stderr.splitlines() or [""]
    peak = int(last.split()[1]) << 10 if last.startswith("peak ") else 0
    return done.returncode, peak, time.monotonic() - start, "\n".join(said)


def _measure(name: str, folder: Path, sizes: Sizes) -> bool:
    one, place = INPUTS[name], folder / name.replace(" ", "-")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    path = one.make(place, sizes)
    limit = BASE_BYTES + TEXT_FACTOR * one.text(path, sizes)
    fine = True
    for command in one.commands:
        out = place / f"out-{command.split()[0]}"
        status, peak, seconds, said = _run(command, **{"in": path, "out": out, "place": place})
        is_fine = 0 < peak <= limit and "Traceback" not in said and "bug in regraft" not in said
        fine &= is_fine
        mark = "" if is_fine else " **over**"
        print(f"| {name} | {command.split()[0]} | {peak / 1e6:,.0f} MB{mark} | {limit / 1e6:,.0f} MB |", end="")
        print(f" {seconds:.1f} s | {status} |", flush=True)
        if not is_fine:
            print(said[-500:], file=sys.stderr)
    shutil.rmtree(place, ignore_errors=True)
    return fine


def main() -> int:
    """Measure, print a table, and return the exit status."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--only", action="append", choices=sorted(INPUTS))
    options.add_argument("--mb", type=int, default=300)
    options.add_argument("--items", type=int, default=1_000_000)
    asked = options.parse_args()
    sizes = Sizes(asked.mb << 20, asked.items)
    print("| input | command | peak memory | limit | time | exit status |\n| --- | --- | ---: | ---: | ---: | ---: |")
    results = [_measure(name, asked.folder, sizes) for name in asked.only or INPUTS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
