"""Vector files that SQLite reads to their end though they are damaged: with --salvage no wrong row comes along."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import page_damages
import pytest
import v1
from harness import run
from page_damage import Layout, Made, make

from regraft.formats.cherry_v1 import salvage
from regraft.formats.cherry_v1.layout import VECTOR_TABLE

BASE = "harbour"
Pair = tuple[str, bytes]
#: Damages after which SQLite reads wrong rows, or fewer than there are, and says nothing of it.
WRONG = (
    "letters of texts changed",
    "numbers of vectors zeroed",
    "numbers of vectors are text",
    "contents of overflow pages swapped",
    "root at a leaf",
)
#: The one of them after which rows are left that no page leads to.
LOST = "root at a leaf"
#: Those after which the rows are right and other things are not.
ODD = ("metadata of other rows", "free list into the table", "ids' leaves of another base")
#: Those after which there is nothing for SQLite to read.
NOTHING = ("table renamed", "columns renamed", "schema without tables", "encoding said 2", "encoding said 3")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("made") / "vectors", Layout(rows=220, dimensions=768, words=150, deleted=(40,)))


def _damaged(made: Made, name: str) -> bytes:
    raw = bytearray(made.raw)
    page_damages.DAMAGES[name](made, raw, random.Random(name))
    return bytes(raw)


def _source(made: Made, raw: bytes, folder: Path) -> Path:
    loaders = {row[2] for row in made.rows.values()}
    items = [v1.file(f"item-{number}", loader) for number, loader in enumerate(sorted(loaders))]
    base = v1.base(BASE, *items, dimensions=made.layout.dimensions)
    return v1.Source([base], stores={BASE: raw}).write(folder / "source")


def _migrated(source: Path, library: Path, *options: str) -> tuple[set[Pair], dict[str, Any]]:
    """Return the texts and vectors that came along, and what is said of the base."""
    done = run("migrate", source, "--to", library, "--json", "--now", v1.NOW, *options)
    return _pairs(library), next(iter(done.document["bases"]))


def _pairs(library: Path) -> set[Pair]:
    found: set[Pair] = set()
    for path in library.rglob("index.sqlite"):
        with v1.opened(path) as db:
            rows: Any = db.execute(
                "SELECT t.text, e.vector_blob FROM search_text t JOIN embedding e USING (embedding_text_hash)"
            )
            found.update(rows)
    return found


def _true(made: Made, numbers: Any) -> set[Pair]:
    return {(made.rows[number][1], made.rows[number][4]) for number in numbers}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*WRONG, *ODD, *NOTHING])
def test_with_the_word_only_true_rows_come_along(made: Made, tmp_path: Path, name: str) -> None:
    raw = _damaged(made, name)
    source = _source(made, raw, tmp_path)

    found, base = _migrated(source, tmp_path / "library", "--salvage")

    assert base["salvage"]["carried"] is True
    assert found <= _true(made, made.rows)
    assert len(_true(made, made.intact(raw)) - found) <= len(made.rows) // 100


@pytest.mark.parametrize("name", [name for name in WRONG if name != LOST])
def test_without_the_word_no_content_is_looked_at(made: Made, tmp_path: Path, name: str) -> None:
    source = _source(made, _damaged(made, name), tmp_path)

    found, base = _migrated(source, tmp_path / "library")

    assert "salvage" not in base
    assert found != _true(made, made.rows)


def test_without_the_word_a_base_fails_where_no_page_leads_to_some_of_its_rows(made: Made, tmp_path: Path) -> None:
    source = _source(made, _damaged(made, LOST), tmp_path)

    found, base = _migrated(source, tmp_path / "library")

    count = len(made.rows)
    assert (base["error"], base["rows"]["carried"], found) == ("missing_vector_store", 0, set())
    assert (base["salvage"]["carried"], base["salvage"]["rows"], base["salvage"]["about"]) == (False, count, count)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NOTHING)
def test_what_is_left_without_a_schema_is_offered(made: Made, tmp_path: Path, name: str) -> None:
    source = _source(made, _damaged(made, name), tmp_path)

    done = run("migrate", source, "--to", tmp_path / "library", "--json")
    check = run("check", source, "--json")

    said = next(one["message"] for one in done.document["warnings"] if one["code"] == "missing_vector_store")
    count = len(made.rows)
    assert f"--salvage can salvage {count} of about {count} rows" in said
    assert any("--salvage" in str(one.get("repair")) for one in check.document["findings"])


def test_a_file_of_another_kind_is_not_offered(tmp_path: Path) -> None:
    path = tmp_path / "other"
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE notes (id TEXT PRIMARY KEY, body TEXT); INSERT INTO notes VALUES ('a', 'b')")
    db.close()
    source = v1.Source([v1.base(BASE)], stores={BASE: path.read_bytes()}).write(tmp_path / "source")

    done = run("migrate", source, "--to", tmp_path / "library", "--json", "--salvage")

    [base] = done.document["bases"]
    assert "salvage" not in base
    said = next(one["message"] for one in done.document["warnings"] if one["code"] == "missing_vector_store")
    assert said.endswith("has no table `vectors`")


def test_rows_of_a_table_that_was_dropped_stay_deleted(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(made.raw)
    db = apsw.Connection(str(path))
    db.execute("DROP TABLE vectors")
    db.close()
    source = _source(made, path.read_bytes(), tmp_path)

    found, base = _migrated(source, tmp_path / "library", "--salvage")

    assert (found, base["status"]) == (set(), "failed")


def test_what_is_wrong_is_said(made: Made, tmp_path: Path) -> None:
    source = _source(made, _damaged(made, "letters of texts changed"), tmp_path)

    done = run("migrate", source, "--to", tmp_path / "library", "--json", "--salvage")

    said = next(one["message"] for one in done.document["warnings"] if one["code"] == "salvaged")
    assert "is damaged, although SQLite can read it: " in said
    assert "missing from index sqlite_autoindex_vectors_2" in said


def test_a_second_run_with_the_word_changes_nothing(made: Made, tmp_path: Path) -> None:
    source, library = _source(made, _damaged(made, "letters of texts changed"), tmp_path), tmp_path / "library"
    first, _ = _migrated(source, library, "--salvage")

    second, base = _migrated(source, library, "--salvage")

    assert base["outcome"] == "unchanged"
    assert second == first


# --- files that nothing is wrong with ---------------------------------------------------------------------------------


def test_a_whole_source_gives_the_same_library_with_the_word(tmp_path: Path) -> None:
    told: list[Any] = []
    files: list[dict[str, bytes]] = []
    for name, words in (("plain", ()), ("word", ("--salvage",))):
        library = tmp_path / name
        _, base = _migrated(_whole(tmp_path / f"v1 {name}"), library, *words)
        told.append({**base, "index": None})
        knowledge = library / "KnowledgeBase"
        files.append(
            {file.relative_to(knowledge).as_posix(): file.read_bytes() for file in knowledge.rglob("*.sqlite")}
        )

    assert files[0] == files[1]
    assert told[0] == told[1]


def _whole(folder: Path) -> Path:
    """Write a source whose rows are odd in every way that is no damage."""
    loader, other = v1.same_file("LocalPathLoader"), "odd"
    rows = [v1.Row(loader, f"text {number}", metadata=json.dumps({"id": f"{loader}_{number}"})) for number in range(40)]
    odd = [
        v1.Row(loader, "zeros", v1.floats(0, 0, 0, 0), metadata=json.dumps({"id": f"{loader}_40"})),
        v1.Row(other, "no vector", None, metadata=None),
        v1.Row(other, "not finite", v1.floats(float("nan"), 0, 0, 0), metadata="{}"),
        v1.Row(other, "another length", v1.vector_of("another", 8), metadata="{}"),
        v1.Row(other, None, metadata="{}"),
        v1.Row(other, "an id of another loader", id=f"{loader}_77", metadata=None),
        v1.Row(other, v1.RawText(b"no \xff UTF-8"), metadata="{}"),
    ]
    base = v1.base(BASE, v1.file("one", loader), v1.file("two", other))
    return v1.Source([base], stores={BASE: [*rows, *odd]}).write(folder)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(rows=80),
        Layout(rows=80, encoding="UTF-16le", metadata="empty"),
        Layout(rows=80, encoding="UTF-16be"),
        Layout(rows=80, auto_vacuum=True, metadata="none"),
        Layout(rows=80, reserved=32, page_size=1024, deleted=(20, 40)),
        Layout(rows=80, is_unit=False),
        Layout(rows=3),
        Layout(rows=0),
    ],
    ids=str,
)
def test_nothing_contradicts_a_whole_file(tmp_path: Path, layout: Layout) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(make(tmp_path / "made", layout).raw)

    assert salvage.find_hidden_damage(path) is None


def _with_vectors(made: Made, path: Path, change: Callable[[int, bytes], bytes]) -> Path:
    path.write_bytes(made.raw)
    db = apsw.Connection(str(path))
    with db:
        for number, row in made.rows.items():
            db.execute("UPDATE vectors SET vector = ? WHERE rowid = ?", (change(number, row[4]), number))
    db.close()
    return path


def test_vectors_of_another_model_are_no_damage(made: Made, tmp_path: Path) -> None:
    def longer(number: int, vector: bytes) -> bytes:
        return v1.floats(*(20 * one for one in memoryview(vector).cast("f"))) if number % 4 == 0 else vector

    assert salvage.find_hidden_damage(_with_vectors(made, tmp_path / "vectors", longer)) is None


def test_one_vector_that_is_longer_is(made: Made, tmp_path: Path) -> None:
    def longer(number: int, vector: bytes) -> bytes:
        return v1.floats(*(1.01 * one for one in memoryview(vector).cast("f"))) if number == 9 else vector

    assert (
        salvage.find_hidden_damage(_with_vectors(made, tmp_path / "vectors", longer))
        == "1 vector with values unlike those of all others"
    )


def test_a_vector_index_of_libsql_is_no_damage(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(made.raw)
    db = apsw.Connection(str(path))
    db.execute("CREATE INDEX near ON vectors (source) WHERE false; PRAGMA writable_schema = ON")
    statement = "CREATE INDEX near ON vectors (libsql_vector_idx(vector))"
    db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'near'", (statement,))
    db.close()
    VECTOR_TABLE.survey(path)

    assert salvage.find_hidden_damage(path) is None

    raw = path.read_bytes()
    path.write_bytes(raw.replace(made.rows[150][1].encode(), made.rows[150][1].swapcase().encode(), 1))
    assert "sqlite_autoindex_vectors_2" in str(salvage.find_hidden_damage(path))
