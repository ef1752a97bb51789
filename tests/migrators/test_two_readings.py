"""Vector files whose b-tree gives a scan and a seek different rows: such a base fails by name, and no other with it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
import tree_damage
import v1
from extras import needs
from faults import left_over
from harness import Outcome, run, snapshot
from page_damage import Layout, Made, make, root_of
from page_damages import DAMAGES
from sqlite_bytes import varint
from tree_damage import Pair, fields, pointers, put_number

from regraft.formats import table_integrity
from regraft.formats.cherry_v1.layout import VECTOR_TABLE
from regraft.formats.large_text import LARGE_BYTES
from regraft.formats.table_integrity import RowsDiffer, RowsDigest, digest_row
from regraft.formats.vector_survey import StoreProblem

BASES = ("behind", "damaged", "whole")
Damage = Callable[[Made, bytearray], None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A file with inner pages and overflow pages."""
    return make(tmp_path_factory.mktemp("made") / "vectors", Layout(rows=40, page_size=2048, dimensions=16, words=60))


def _equal_row_id(made: Made, raw: bytearray) -> None:
    """Change one byte: a row has the number of the row before it."""
    begin, end = fields(raw, made.places[12][0][0])["row id"]
    put_number(raw, begin, end, 11)
    assert sum(one != two for one, two in zip(raw, made.raw, strict=True)) == 1


def _leaf(made: Made, raw: bytearray) -> tuple[int, int]:
    """Return where a leaf begins that has several rows, and how many these are."""
    for number in made.of_kind("leaf"):
        start = (number - 1) * made.page_size
        count = int.from_bytes(raw[start + 3 : start + 5], "big")
        if count > 1:
            return start, count
    raise AssertionError


def _duplicate_cell(made: Made, raw: bytearray) -> None:
    start, _ = _leaf(made, raw)
    raw[start + 10 : start + 12] = raw[start + 8 : start + 10]


def _cell_count(made: Made, raw: bytearray) -> None:
    start, count = _leaf(made, raw)
    raw[start + 3 : start + 5] = (count - 1).to_bytes(2, "big")


def _root(made: Made, raw: bytearray) -> tuple[int, list[int]]:
    start = (root_of(made) - 1) * made.page_size
    return start, [start + at for at in pointers(bytes(raw[start : start + made.page_size]))]


def _divider_key(made: Made, raw: bytearray) -> None:
    _, cells = _root(made, raw)
    key, end = varint(raw, cells[2] + 4)
    put_number(raw, cells[2] + 4, end, key - 1)


def _swapped_children(made: Made, raw: bytearray) -> None:
    _, cells = _root(made, raw)
    one, two = (slice(at, at + 4) for at in cells[1:3])
    raw[one], raw[two] = raw[two], raw[one]


def _child_twice(made: Made, raw: bytearray) -> None:
    _, cells = _root(made, raw)
    raw[cells[2] : cells[2] + 4] = raw[cells[1] : cells[1] + 4]


def _right_most_pointer(made: Made, raw: bytearray) -> None:
    start, cells = _root(made, raw)
    raw[start + 8 : start + 12] = raw[cells[-1] : cells[-1] + 4]


def _inner_cell_count(made: Made, raw: bytearray) -> None:
    """Take the last key from the root: the page that it leads to is named by nothing."""
    start, cells = _root(made, raw)
    raw[start + 3 : start + 5] = (len(cells) - 1).to_bytes(2, "big")


def _copied_leaf(made: Made, raw: bytearray) -> None:
    one, two = made.of_kind("leaf")[3:5]
    raw[(two - 1) * made.page_size : two * made.page_size] = made.page(one)


def _longer_text(made: Made, raw: bytearray) -> None:
    """Give a text one byte more: every column behind it begins a byte late, the vector too."""
    begin, end = fields(raw, made.places[5][0][0])["serial 1"]
    put_number(raw, begin, end, varint(raw, begin)[0] + 2)


DAMAGED: dict[str, Damage] = {
    "equal row id": _equal_row_id,
    "duplicate cell": _duplicate_cell,
    "cell count": _cell_count,
    "divider key": _divider_key,
    "swapped children": _swapped_children,
    "child twice": _child_twice,
    "right-most pointer": _right_most_pointer,
    "cell count of the root": _inner_cell_count,
    "copied leaf": _copied_leaf,
    "longer text": _longer_text,
}


def damaged(made: Made, name: str) -> bytes:
    raw = bytearray(made.raw)
    DAMAGED[name](made, raw)
    assert raw != made.raw
    return bytes(raw)


def source_of(made: Made, raw: bytes, folder: Path) -> Path:
    """Write a source with a whole base before and behind the damaged one."""
    loaders = sorted({row[2] for row in made.rows.values()})
    bases = []
    for base in BASES:
        items = (v1.file(f"{base}-{number}", loader) for number, loader in enumerate(loaders))
        bases.append(v1.base(base, *items, dimensions=made.layout.dimensions))
    stores = {base: raw if base == "damaged" else made.raw for base in BASES}
    return v1.Source(bases, stores=stores).write(folder / "source")


def migrated(source: Path, library: Path, *options: str) -> Outcome:
    return run("migrate", source, "--to", library, "--json", "--now", v1.NOW, *options)


def pairs(library: Path, done: Outcome, base: str) -> Counter[Pair]:
    """Return the texts of a base with their vectors, each as often as it is in the new index."""
    (found,) = (one for one in done.document["bases"] if one["legacy_id"] == base)
    path = library / "KnowledgeBase" / found["id"] / ".cherry" / "index.sqlite"
    if not path.exists():
        return Counter()
    with v1.opened(path) as db:
        rows: Any = db.execute(
            "SELECT t.text, e.vector_blob FROM search_text t NOT INDEXED"
            " JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash"
        )
        return Counter(rows)


def report_of(done: Outcome, base: str) -> dict[str, Any]:
    (found,) = (one for one in done.document["bases"] if one["legacy_id"] == base)
    return dict(found)


def messages(done: Outcome, base: str, code: str) -> list[str]:
    return [one["message"] for one in done.document["warnings"] if (one["base"], one["code"]) == (base, code)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", DAMAGED)
def test_the_base_fails_by_name_and_the_others_are_migrated(made: Made, tmp_path: Path, name: str) -> None:
    source, library = source_of(made, damaged(made, name), tmp_path), tmp_path / "library"
    before = snapshot(source)

    done = migrated(source, library)

    assert (done.status, done.stderr) == (1, "")
    report = report_of(done, "damaged")
    assert (report["status"], report["error"], report["rows"]["carried"]) == ("failed", "missing_vector_store", 0)
    (said,) = messages(done, "damaged", "missing_vector_store")
    assert "--salvage can salvage" in said
    assert pairs(library, done, "damaged") == Counter()
    whole = Counter(tree_damage.original_pairs(made))
    assert [pairs(library, done, base) for base in ("behind", "whole")] == [whole, whole]
    assert (snapshot(source), left_over(library)) == (before, [])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", DAMAGED)
def test_with_salvage_every_row_that_proves_itself_is_migrated_once(made: Made, tmp_path: Path, name: str) -> None:
    raw = damaged(made, name)
    source, library = source_of(made, raw, tmp_path), tmp_path / "library"

    done = migrated(source, library, "--salvage")

    report, found = report_of(done, "damaged"), pairs(library, done, "damaged")
    whole, rows = Counter(tree_damage.original_pairs(made)), report["rows"]
    assert found - whole == Counter()
    assert found.total() == rows["carried"] == rows["read"] - sum(rows["skipped"].values())
    intact = {(made.rows[number][1], made.rows[number][4]) for number in made.intact(raw)}
    assert len(intact - found.keys()) <= sum(rows["skipped"].values())
    assert report["salvage"]["about"] >= len(whole) - 1
    assert pairs(library, done, "whole") == whole


def test_check_and_a_dry_run_tell_of_it_and_write_nothing(made: Made, tmp_path: Path) -> None:
    source = source_of(made, damaged(made, "equal row id"), tmp_path)
    before = snapshot(tmp_path)

    dry = migrated(source, tmp_path / "library", "--dry-run")
    check = run("check", source, "--json")

    assert (dry.status, report_of(dry, "damaged")["error"]) == (1, "missing_vector_store")
    assert any("--salvage" in str(one.get("repair")) for one in check.document["findings"])
    assert snapshot(tmp_path) == before


@needs("parquet")
def test_an_export_of_v1_tells_of_it_and_writes_the_other_bases(made: Made, tmp_path: Path) -> None:
    source = source_of(made, damaged(made, "cell count"), tmp_path)

    done = run("export", source, tmp_path / "rows.parquet", "--v1", "--json")

    problems = {one["name"]: one["problem"] for one in done.document["bases"]}
    assert (done.status, problems["Base whole"], problems["Base behind"]) == (1, None, None)
    assert "is damaged: " in problems["Base damaged"]
    rows = {one["name"]: one["rows"]["carried"] for one in done.document["bases"]}
    assert rows == {"Base behind": 40, "Base damaged": 0, "Base whole": 40}


# --- the second reading -----------------------------------------------------------------------------------------------


def test_rows_that_are_read_otherwise_the_second_time_fail_their_base(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the pages give the wrong key away before: without a look at them, the rows themselves do."""
    monkeypatch.setattr(table_integrity, "find_contradiction", lambda *_: None)
    source, library = source_of(made, damaged(made, "divider key"), tmp_path), tmp_path / "library"

    done = migrated(source, library, "--jobs", "1")

    assert (done.status, done.stderr) == (1, "")
    assert report_of(done, "damaged")["error"] == "missing_vector_store"
    (said,) = messages(done, "damaged", "missing_vector_store")
    assert "reading table `vectors` twice returned different rows" in said
    assert "--salvage can salvage 40 of about 40 rows" in said
    assert pairs(library, done, "whole") == Counter(tree_damage.original_pairs(made))
    assert left_over(library) == []


def test_with_salvage_such_a_base_has_all_of_its_rows(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_integrity, "find_contradiction", lambda *_: None)
    monkeypatch.setattr("regraft.formats.cherry_v1.salvage.find_hidden_damage", lambda *_: None)
    monkeypatch.setattr("migrators.pipeline.survey.check_for_damage", lambda *_, **__: None)
    source, library = source_of(made, damaged(made, "divider key"), tmp_path), tmp_path / "library"

    done = migrated(source, library, "--salvage", "--jobs", "1")

    assert report_of(done, "damaged")["status"] == "completed"
    assert pairs(library, done, "damaged") == Counter(tree_damage.original_pairs(made))


def test_a_row_id_that_comes_twice_is_refused_whatever_the_pages_say(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_integrity, "find_contradiction", lambda *_: None)
    path = tmp_path / "vectors"
    path.write_bytes(damaged(made, "equal row id"))
    with pytest.raises(StoreProblem, match="its rows are out of order") as raised:
        VECTOR_TABLE.survey(path)
    assert raised.value.is_damage


def test_a_stream_has_to_reproduce_the_digest_of_its_rows(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(made.raw)
    found, length = VECTOR_TABLE.survey(path, texts=True), 4 * made.layout.dimensions
    for rows in found.loaders.values():
        runs, tally = list(zip(rows.runs[::2], rows.runs[1::2], strict=True)), rows.kinds[length]
        with closing(apsw.Connection(str(path))) as db:
            assert len(list(VECTOR_TABLE.rows(db, runs, length, tally.digest))) == tally.count
            assert len(list(VECTOR_TABLE.rows_and_texts(db, runs, length, tally.digest))) == tally.count
            assert len(list(VECTOR_TABLE.rows_and_texts(db, runs, None, tally.text_digest))) == tally.count
            assert len(list(VECTOR_TABLE.large_rows(db, runs, length, tally.digest, texts=False))) == tally.count
            for stream in (
                VECTOR_TABLE.rows(db, runs, length, tally.digest + 1),
                VECTOR_TABLE.rows(db, [*runs, runs[0]], length, tally.digest),
                VECTOR_TABLE.rows(db, runs[1:], length, tally.digest),
                VECTOR_TABLE.large_rows(db, runs, length, tally.text_digest, texts=True),
            ):
                with pytest.raises(RowsDiffer):
                    list(stream)


def test_a_digest_holds_what_each_row_has_in_any_order() -> None:
    rows = [(1, b"one", 3, b"aaaa"), (2, b"two", 3, b"bbbb"), (-7, None, 0, None)]

    def digest(some: list[tuple[int, bytes | None, int, bytes | None]]) -> int:
        found = RowsDigest()
        for row in some:
            found.add(*row)
        return found.value % 2**64

    whole = digest(rows)
    assert digest(rows[::-1]) == whole
    changed = [
        [(2, *rows[0][1:]), (1, *rows[1][1:]), rows[2]],
        [(1, b"one", 3, b"bbbb"), (2, b"two", 3, b"aaaa"), rows[2]],
        [*rows, rows[0]],
        rows[:2],
        [(1, b"one", 3, None), *rows[1:]],
        [(1, b"onf", 3, b"aaaa"), *rows[1:]],
    ]
    assert whole not in map(digest, changed)


def test_of_a_large_text_only_the_length_counts() -> None:
    size = LARGE_BYTES + 1
    held = digest_row(1, b"x" * size, size, b"aaaa")
    assert held == digest_row(1, None, size, b"aaaa")
    assert held != digest_row(1, None, size + 1, b"aaaa")


# --- what is no damage of the rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["ids' leaves zeroed", "texts' leaves garbage", "keys' leaves swapped", "root of both indexes zeroed"]
)
def test_damage_of_an_index_keeps_no_row_back(made: Made, tmp_path: Path, name: str) -> None:
    """No row is read through an index."""
    raw = bytearray(made.raw)
    DAMAGES[name](made, raw, random.Random(name))
    source, library = source_of(made, bytes(raw), tmp_path), tmp_path / "library"

    done = migrated(source, library)

    assert report_of(done, "damaged")["rows"]["carried"] == len(made.rows)
    assert pairs(library, done, "damaged") == Counter(tree_damage.original_pairs(made))


@pytest.mark.parametrize(
    "layout",
    [
        Layout(rows=0),
        Layout(rows=1),
        Layout(rows=60, page_size=512, dimensions=4, words=6, deleted=(20, 40)),
        Layout(rows=40, encoding="UTF-16le"),
        Layout(rows=40, auto_vacuum=True),
        Layout(rows=40, reserved=32),
        Layout(rows=20, page_size=65536, huge=(3,)),
    ],
    ids=str,
)
def test_a_whole_file_contradicts_itself_in_nothing(tmp_path: Path, layout: Layout) -> None:
    path = tmp_path / "vectors"
    made = make(tmp_path / "made", layout)
    path.write_bytes(made.raw)
    assert VECTOR_TABLE.survey(path).rows == len(made.rows)


def test_tables_and_columns_of_others_are_no_damage(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(made.raw)
    with closing(apsw.Connection(str(path))) as db:
        db.execute('ALTER TABLE vectors ADD COLUMN "a ""strange"" one" TEXT')
        db.execute("CREATE TABLE other (a, b, c, d, e, f, g, h); CREATE INDEX others ON other (a)")
        db.execute("INSERT INTO other SELECT id, source, vector, metadata, 1, 2, 3, 4 FROM vectors")
        # Their pages stay, and nothing leads to them.
        db.execute("PRAGMA writable_schema = ON; DELETE FROM sqlite_schema WHERE tbl_name = 'other'")
    assert VECTOR_TABLE.survey(path).rows == len(made.rows)


def test_a_page_of_rows_that_nothing_leads_to_is(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(made.raw)
    with closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE TABLE copy AS SELECT * FROM vectors")
        db.execute("PRAGMA writable_schema = ON; DELETE FROM sqlite_schema WHERE tbl_name = 'copy'")
    with pytest.raises(StoreProblem, match="contains rows, but no other page refers to it") as raised:
        VECTOR_TABLE.survey(path)
    assert (raised.value.is_damage, raised.value.vector_bytes) == (True, 4 * made.layout.dimensions)


def test_rows_of_a_failed_base_are_migrated_once_its_file_is_whole(made: Made, tmp_path: Path) -> None:
    source, library = source_of(made, damaged(made, "duplicate cell"), tmp_path), tmp_path / "library"
    migrated(source, library)
    (source / "KnowledgeBase" / "damaged").write_bytes(made.raw)

    again = migrated(source, library)

    outcomes = {one["legacy_id"]: one["outcome"] for one in again.document["bases"]}
    assert outcomes == {"behind": "unchanged", "damaged": "written", "whole": "unchanged"}
    assert pairs(library, again, "damaged") == Counter(tree_damage.original_pairs(made))
    assert json.loads((library / "report.json").read_text("utf-8"))["bases"]
