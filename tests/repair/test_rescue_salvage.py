"""``regraft rescue --salvage``: no wrong row of a vector file that SQLite reads to its end comes along."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import page_damages
import pytest
import v1
from harness import NOW, run
from page_damage import Layout, Made, make
from stranded import index_of, profile

BASE = "harbour"
Pair = tuple[str, bytes]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("made") / "vectors", Layout(rows=120, dimensions=768, words=150))


def _stranded(made: Made, damage: str | None, folder: Path) -> Path:
    """Build a profile whose base could not be read at the upgrade, with v1's vector file of it."""
    raw = bytearray(made.raw)
    if damage is not None:
        page_damages.DAMAGES[damage](made, raw, random.Random(damage))
    loaders = sorted({row[2] for row in made.rows.values()})
    items = [v1.file(f"item-{number}", loader) for number, loader in enumerate(loaders)]
    base = v1.base(BASE, *items, dimensions=made.layout.dimensions)
    return profile(folder, v1.Source([base], stores={BASE: bytes(raw)}), lost=(BASE,))


def _rescued(stranded: Path, *options: str) -> set[Pair]:
    """Return the texts and vectors that came back."""
    done = run("rescue", stranded, "--now", NOW, "--json", *options)
    assert done.status in (0, 1), done
    with v1.opened(index_of(stranded, BASE)) as db:
        rows: Any = db.execute(
            "SELECT t.text, e.vector_blob FROM search_text t JOIN embedding e USING (embedding_text_hash)"
        )
        return set(rows)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("damage", ["letters of texts changed", "numbers of vectors zeroed", "metadata of other rows"])
def test_only_true_rows_come_back_with_the_word(made: Made, tmp_path: Path, damage: str) -> None:
    true = {(row[1], row[4]) for row in made.rows.values()}

    found = _rescued(_stranded(made, damage, tmp_path), "--salvage")

    assert found
    assert found <= true


def test_without_the_word_the_rows_are_taken_as_they_are(made: Made, tmp_path: Path) -> None:
    true = {(row[1], row[4]) for row in made.rows.values()}

    assert not _rescued(_stranded(made, "letters of texts changed", tmp_path)) <= true


@pytest.mark.thorough
def test_a_whole_file_gives_the_same_with_the_word(made: Made, tmp_path: Path) -> None:
    found = [_rescued(_stranded(made, None, tmp_path / name), *([name] if name else [])) for name in ("", "--salvage")]

    assert found[0] == found[1] == {(row[1], row[4]) for row in made.rows.values()}
