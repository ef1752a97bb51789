"""``regraft rescue --salvage``: no wrong row of a vector file that SQLite reads to its end comes along."""

from __future__ import annotations

import random
import shlex
from pathlib import Path
from typing import Any

import page_damages
import pytest
import v1
from harness import NOW, run
from page_damage import Layout, Made, make
from stranded import DATABASE, base_of, index_of, profile, rows_of, sql

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


def test_a_base_that_only_a_salvage_restores_is_an_error_with_that_command(tmp_path: Path) -> None:
    """Until then, the application's clean-up would delete the only file with its rows."""
    gone = {**v1.MODEL, "id": "gone-1"}
    items = [v1.note(loader, loader) for loader in ("A", "B")]
    source = v1.Source([v1.base("kb", *items, model=gone)], {"kb": rows_of("A", "B", count=20)})
    stranded = profile(tmp_path / "我的 data", source, lost=("kb",))
    sql(stranded / DATABASE, "DELETE FROM user_model WHERE id = 'acme::gone-1'")
    vectors = stranded / "Data" / "KnowledgeBase" / "kb"
    with v1.opened(vectors) as db:
        true: Any = set(db.execute("SELECT pageContent, vector FROM vectors"))
    vectors.write_bytes(vectors.read_bytes()[:-8_000])
    model = ("--recreate-model", "acme::gone-1")

    def found(name: str) -> dict[str, Any]:
        return next(one for one in run("check", stranded, "--json").document["findings"] if one["name"] == name)

    assert shlex.split(found("base.failed")["repair"])[3:] == [*model]
    first = run("rescue", stranded, "--json", "--yes", "--now", NOW, *model)
    [left] = (one for one in first.document["left"] if one["finding"] == "base.failed")
    command = shlex.split(left["repair"])
    assert command == ["regraft", "rescue", str(stranded), *model, "--salvage", "--base", base_of("kb")]
    assert "clean-up of old data" in found("v1.leftover")["message"]

    assert run(*command[1:], "--json", "--yes", "--now", NOW).status == 1
    with v1.opened(index_of(stranded)) as db:
        rows: Any = db.execute(
            "SELECT t.text, e.vector_blob FROM search_text t JOIN embedding e USING (embedding_text_hash)"
        )
        assert set() < set(rows) <= true
