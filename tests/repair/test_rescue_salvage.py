"""``regraft rescue --salvage``: no wrong row of a vector file that SQLite reads to its end comes along."""

from __future__ import annotations

import random
import zipfile
from pathlib import Path
from typing import Any

import page_damages
import pytest
import v1
from harness import NOW, command_words, run
from page_damage import Layout, Made, make
from stranded import DATABASE, base_of, index_of, profile, rows_of, sql

BASE = "harbour"
Pair = tuple[str, bytes]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("made") / "vectors", Layout(rows=120, dimensions=768, words=150))


def _cut(vectors: Path, size: int) -> None:
    """Truncate a vector file as a full disk does."""
    vectors.write_bytes(vectors.read_bytes()[:-size])


def _true_rows(vectors: Path) -> set[Pair]:
    with v1.opened(vectors) as db:
        rows: Any = db.execute("SELECT pageContent, vector FROM vectors")
        return set(rows)


def _stored(index: Path) -> set[Pair]:
    with v1.opened(index) as db:
        rows: Any = db.execute(
            "SELECT t.text, e.vector_blob FROM search_text t JOIN embedding e USING (embedding_text_hash)"
        )
        return set(rows)


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
    return _stored(index_of(stranded, BASE))


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


def test_rows_of_a_backup_with_a_wrong_checksum_come_back_with_the_word(tmp_path: Path) -> None:
    """One number of a vector has changed to a very large one."""
    source = v1.Source([v1.base("kb", v1.note("A", "A"))], {"kb": rows_of("A", count=30)})
    stranded = profile(tmp_path, source, lost=("kb",))
    vectors, backup = stranded / "Data" / "KnowledgeBase" / "kb", tmp_path / "backup.zip"
    true, raw = _true_rows(vectors), vectors.read_bytes()
    text, vector = sorted(true)[11]
    whole = v1.pack(source.write(tmp_path / "v1"), tmp_path / "whole.zip")
    with zipfile.ZipFile(whole) as read, zipfile.ZipFile(backup, "w") as made:
        for name in read.namelist():
            made.writestr(name, raw if name == "Data/KnowledgeBase/kb" else read.read(name))
    vectors.unlink()
    data = backup.read_bytes()
    place = data.index(vector, data.index(raw[:100])) + len(vector) - 1
    backup.write_bytes(data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :])
    options = "--v1", str(backup), "--yes", "--now", NOW, "--json"

    refused = run("rescue", stranded, *options)
    [left] = (one for one in refused.document["left"] if one["finding"] == "base.failed")
    assert "cannot be verified (Data/KnowledgeBase/kb is damaged: Bad CRC-32" in left["reason"]
    assert "--salvage can salvage 29 of about 30 rows" in left["reason"]
    assert not index_of(stranded).exists()

    assert run("rescue", stranded, "--salvage", *options).status == 1
    assert _stored(index_of(stranded)) == true - {(text, vector)}


def test_a_base_that_only_a_salvage_restores_is_an_error_with_that_command(tmp_path: Path) -> None:
    """Until then, the application's clean-up would delete the only file with its rows."""
    gone = {**v1.MODEL, "id": "gone-1"}
    items = [v1.note(loader, loader) for loader in ("A", "B")]
    source = v1.Source([v1.base("kb", *items, model=gone)], {"kb": rows_of("A", "B", count=20)})
    stranded = profile(tmp_path / "我的 data", source, lost=("kb",))
    sql(stranded / DATABASE, "DELETE FROM user_model WHERE id = 'acme::gone-1'")
    vectors = stranded / "Data" / "KnowledgeBase" / "kb"
    true = _true_rows(vectors)
    _cut(vectors, 8_000)
    model = ("--recreate-model", "acme::gone-1")

    def found(name: str) -> dict[str, Any]:
        return next(one for one in run("check", stranded, "--json").document["findings"] if one["name"] == name)

    assert command_words(found("base.failed")["repair"])[3:] == [*model]
    first = run("rescue", stranded, "--json", "--yes", "--now", NOW, *model)
    [left] = (one for one in first.document["left"] if one["finding"] == "base.failed")
    command = command_words(left["repair"])
    assert command == ["regraft", "rescue", str(stranded), *model, "--salvage", "--base", base_of("kb")]
    assert "clean-up of old data" in found("v1.leftover")["message"]

    assert run(*command[1:], "--json", "--yes", "--now", NOW).status == 1
    assert set() < _stored(index_of(stranded)) <= true


def test_a_completed_base_that_lacks_a_text_is_offered_the_salvage_until_it_has_what_is_left(tmp_path: Path) -> None:
    items = [v1.note(loader, loader) for loader in ("A", "B")]
    source = v1.Source([v1.base("kb", *items)], {"kb": rows_of("A", "B", count=40)})
    stranded = profile(tmp_path, source)
    vectors, index = stranded / "Data" / "KnowledgeBase" / "kb", index_of(stranded)
    true = _true_rows(vectors)
    with v1.opened(index) as db:
        [(material,)] = db.execute("SELECT material_id FROM material ORDER BY rowid LIMIT 1")
    gone = f"(SELECT unit_id FROM search_unit WHERE material_id = '{material}')"
    hashes = f"(SELECT embedding_text_hash FROM search_text WHERE target_id IN {gone})"
    sql(
        index,
        f"DELETE FROM embedding WHERE embedding_text_hash IN {hashes}",
        f"DELETE FROM search_text WHERE target_id IN {gone}",
        f"DELETE FROM search_unit WHERE material_id = '{material}'",
        f"DELETE FROM material WHERE material_id = '{material}'",
    )
    kept = _stored(index)
    assert set() < kept < true
    _cut(vectors, 6_000)

    def offered() -> list[str | None]:
        document = run("check", stranded, "--json").document
        return [one["repair"] for one in document["findings"] if one["name"] == "item.no-material"]

    [command] = offered()
    assert command is not None
    words = command_words(command)
    assert words == ["regraft", "rescue", str(stranded), "--salvage", "--base", base_of("kb")]
    assert run(*words[1:], "--yes", "--now", NOW, "--json").status == 1
    assert kept < _stored(index) <= true
    assert offered() == []
    again = run(*words[1:], "--yes", "--now", NOW, "--json")
    assert again.document["actions"] == []


def test_a_completed_base_is_not_offered_a_salvage_that_has_nothing_for_it(tmp_path: Path) -> None:
    items = [v1.note(loader, loader) for loader in ("A", "B")]
    source = v1.Source([v1.base("kb", *items, v1.file("never", "never"))], {"kb": rows_of("A", "B", count=40)})
    stranded = profile(tmp_path, source)
    _cut(stranded / "Data" / "KnowledgeBase" / "kb", 6_000)
    document = run("rescue", stranded, "--now", NOW, "--json", "--yes").document
    assert [(one["finding"], one["repair"]) for one in document["left"]] == [("item.no-material", None)]


def test_bases_that_need_a_salvage_get_their_own_command_in_the_first_lines(tmp_path: Path) -> None:
    bases = [v1.base(name, v1.note(name, name)) for name in ("sound", "damaged", "worse")]
    stores = {name: rows_of(name, count=40) for name in ("sound", "damaged", "worse")}
    stranded = profile(tmp_path, v1.Source(bases, stores), lost=tuple(stores))
    folder = stranded / "Data" / "KnowledgeBase"
    true = _true_rows(folder / "damaged") | _true_rows(folder / "worse")
    _cut(folder / "damaged", 6_000)
    _cut(folder / "worse", 7_000)
    first = run("check", stranded).stdout.splitlines()[1:3]
    assert first == [
        f"1 base can be restored: regraft rescue {stranded}",
        f"2 bases can be restored: regraft rescue {stranded} --salvage",
    ]
    for line in first:
        run(*command_words(line.partition(": regraft ")[2]), "--yes", "--now", NOW)
    found = _stored(index_of(stranded, "damaged")) | _stored(index_of(stranded, "worse"))
    assert set() < found <= true
    assert "can be restored" not in run("check", stranded).stdout


def test_an_undo_is_refused_when_the_vector_file_is_gone(made: Made, tmp_path: Path) -> None:
    """Wherever the profile is now; only the name of the run takes it back then."""
    profile_then = _stranded(made, None, tmp_path / "then")
    found = _rescued(profile_then)
    profile_now = profile_then.rename(tmp_path / "now")
    assert run("undo", profile_now, "--dry-run").status == 0
    (profile_now / "Data" / "KnowledgeBase" / BASE).unlink()
    refused = run("undo", profile_now, "--yes", "--json")
    assert (refused.status, refused.document["error"]["code"]) == (2, "UndoOfLastCopy")
    assert _stored(index_of(profile_now, BASE)) == found
    words = command_words(refused.document["error"]["message"].partition("name the run: ")[2].removesuffix("."))
    assert run(*words[1:], "--yes").status == 0
    assert not index_of(profile_now, BASE).exists()
