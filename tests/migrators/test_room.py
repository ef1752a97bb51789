"""How much room a migration says that it takes: no less than it writes, and not much more."""

from __future__ import annotations

import random
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from extras import needs
from faults import Source
from golden_cases import CASES
from harness import NOW_MS, REPO

import regraft
from migrators.pipeline import preflight

_ROWS, _PER_ITEM = 240, 40


def english(rnd: random.Random, length: int) -> str:
    words = ("".join(rnd.choices("etaoinshrdlu", k=rnd.randint(2, 9))) for _ in range(length))
    return " ".join(words)[:length]


def chinese(rnd: random.Random, length: int) -> str:
    return "".join(chr(rnd.randint(0x4E00, 0x5A00)) for _ in range(length))


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def ratio(source: Path, target: Path) -> float:
    planned = regraft.migrate(source, target, dry_run=True, now_ms=NOW_MS)
    assert planned.preflight is not None
    regraft.migrate(source, target, now_ms=NOW_MS)
    return planned.preflight.bytes_needed / size_of(target)


def test_the_sample(tmp_path: Path) -> None:
    sample = REPO / "sample_v1" / "cherry-studio.202503141200.zip"
    assert 1 <= ratio(sample, tmp_path / "library") <= 1.6


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES)
def test_the_golden_cases(case: str, golden: Callable[[str], Path], tmp_path: Path) -> None:
    folder = golden(case)
    assert 1 <= ratio(folder / "v1", tmp_path / "library") <= 1.6


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "length", "dimensions"),
    [(english, 20, 384), (chinese, 300, 1024), (chinese, 1500, 512), (english, 1500, 1536)],
)
def test_texts_and_vectors_of_several_sizes(
    text: Callable[[random.Random, int], str], length: int, dimensions: int, tmp_path: Path
) -> None:
    rnd = random.Random(length * dimensions)
    source = Source(tmp_path / "v1")
    source.base("kb", [source.upload(f"f{one}", f"f{one}.txt", b"a") for one in range(_ROWS // _PER_ITEM)])
    with closing(sqlite3.connect(source.vectors("kb"))) as db, db:
        db.execute(
            "CREATE TABLE vectors (id TEXT PRIMARY KEY, pageContent TEXT, uniqueLoaderId TEXT, source TEXT,"
            " vector BLOB, metadata TEXT)"
        )
        for number in range(_ROWS):
            item = f"item-f{number // _PER_ITEM}"
            vector = struct.pack(f"{dimensions}f", *(rnd.random() for _ in range(dimensions)))
            row = (f"L_{item}_{number}", text(rnd, length), f"L_{item}", f"/notes/{item}.md", vector)
            db.execute("INSERT INTO vectors VALUES (?, ?, ?, ?, ?, '{}')", row)
    assert 1 <= ratio(source.write(), tmp_path / "library") <= 1.6


@pytest.mark.parametrize(("length", "bytes_"), [(32, 132), (512, 683), (2048, 4096), (4096, 4608), (6144, 8192)])
def test_what_a_vector_takes_in_pages(length: int, bytes_: int) -> None:
    assert preflight._bytes_on_pages(length) == pytest.approx(bytes_, abs=2)


@needs("parquet")
def test_an_import(tmp_path: Path) -> None:
    library, units, back = tmp_path / "library", tmp_path / "units.parquet", tmp_path / "back"
    regraft.migrate(REPO / "sample_v1" / "cherry-studio.202503141200.zip", library, now_ms=NOW_MS)
    regraft.export(library, units)
    planned = regraft.import_([units], back, dry_run=True, now_ms=NOW_MS)
    assert planned.preflight is not None
    regraft.import_([units], back, now_ms=NOW_MS)
    assert 1 <= planned.preflight.bytes_needed / size_of(back) <= 1.6
