"""The v1 vector file: surveyed whole, streamed by runs, whatever its rows are and whatever happened to it."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from harness import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.disk import sqlite
from regraft.formats.cherry_v1 import layout
from regraft.formats.cherry_v1.layout import VECTOR_TABLE
from regraft.formats.vector_checks import is_finite
from regraft.formats.vector_survey import MISSING, UNSUPPORTED, StoreProblem, VectorSurvey
from regraft.formats.vector_table import check_file

rows, survey = VECTOR_TABLE.rows, VECTOR_TABLE.survey

#: As embedjs writes it.
SCHEMA = """CREATE TABLE vectors (id TEXT PRIMARY KEY, pageContent TEXT UNIQUE, uniqueLoaderId TEXT NOT NULL,
            source TEXT NOT NULL, vector F32_BLOB(2), metadata TEXT)"""
#: The same columns without any rule, for rows of any type.
LOOSE_SCHEMA = "CREATE TABLE vectors (id, pageContent, uniqueLoaderId, source, vector, metadata)"

Row = tuple[Any, Any, Any, Any, Any]


def floats(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def store(path: Path, table: Iterable[Row], schema: str = SCHEMA, *, before: str = "") -> Path:
    """Write a vector file of (id, body, loader id, source, vector)."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(f"{before}; {schema}; BEGIN")
        columns = "id, pageContent, uniqueLoaderId, source, vector, metadata"
        db.executemany(f"INSERT INTO vectors ({columns}) VALUES (?, ?, ?, ?, ?, '{{}}')", table)
        db.execute("COMMIT")
    return path


def simple(count: int, loader: str = "L") -> list[Row]:
    return [(f"{loader}_{n}", f"text {n}", loader, "s", floats(1, n)) for n in range(count)]


def streamed(path: Path, runs: list[tuple[int, int]], vector_bytes: int) -> list[tuple[str, bytes]]:
    with sqlite.open_readonly(path) as db:
        return list(rows(db, runs, vector_bytes))


def runs_of(found: VectorSurvey, loader: str | None) -> list[tuple[int, int]]:
    flat = list(found.loaders[loader].runs)
    return list(zip(flat[::2], flat[1::2], strict=True))


def problem_of(path: Path) -> str:
    with pytest.raises(StoreProblem) as caught:
        survey(path)
    return str(caught.value)


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


# --- what a survey tells -------------------------------------------------------------------------------------------


def test_survey_of_a_plain_store(tmp_path: Path) -> None:
    found = survey(
        store(
            tmp_path / "base",
            [
                ("A_0", "one", "A", "/a.md", floats(1, 2)),
                ("A_1", "zwei é", "A", "/a.md", floats(3, 4)),
                ("B_0", "drei", "B", "/b.md", floats(5, 6)),
            ],
        )
    )
    assert found.rows == 3
    assert list(found.loaders) == ["A", "B"]
    assert found.lengths == {8: 3}
    assert found.vector_bytes == 8
    assert found.body_bytes == 3 + 7 + 4
    first = found.loaders["A"]
    assert (first.rows, first.source, first.highest_number) == (2, "/a.md", 1)
    assert runs_of(found, "A") == [(1, 2)]
    assert list(first.kinds) == [8]
    tally = first.kinds[8]
    assert (tally.count, tally.first_rowid, tally.degenerate, tally.body_bytes) == (2, 1, 0, 10)
    assert tally.samples == ["A_0", "A_1"]


def test_an_empty_table_has_no_vectors(tmp_path: Path) -> None:
    found = survey(store(tmp_path / "base", []))
    assert found == VectorSurvey()
    assert found.vector_bytes is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("vector", "kind"),
    [
        (None, MISSING),
        (b"", MISSING),
        ("", MISSING),
        ("[0.5, 0.25]", UNSUPPORTED),
        ("four", UNSUPPORTED),
        ("vector", UNSUPPORTED),
        (0, UNSUPPORTED),
        (1234, UNSUPPORTED),
        (-1.5, UNSUPPORTED),
        (b"1", UNSUPPORTED),
        (b"1234567", UNSUPPORTED),
        (b"123456789", UNSUPPORTED),
        (floats(1), 4),
        (floats(1, 2), 8),
        (floats(*[0.5] * 3072), 12288),
        (floats(*[0.5] * 20_000), 80_000),
    ],
)
def test_kinds_of_vectors(tmp_path: Path, vector: Any, kind: int) -> None:
    for schema in (SCHEMA, LOOSE_SCHEMA):
        path = tmp_path / f"base{len(schema)}"
        found = survey(store(path, [("L_0", "text", "L", "s", vector)], schema))
        assert {key: tally.count for key, tally in found.loaders["L"].kinds.items()} == {kind: 1}
        assert found.lengths == ({kind: 1} if kind > 0 else {})
        assert found.vector_bytes == (kind if kind > 0 else None)


@pytest.mark.parametrize(
    ("vector", "degenerate"),
    [
        (floats(0, 0), 1),
        (floats(-0.0, 0), 1),
        (floats(3e38, 3e38), 1),
        (floats(1e-44, 0), 1),
        (floats(math.nan, 1), 0),
        (floats(0, 1), 0),
        (floats(-1, -1), 0),
        (floats(1e-3, 0), 0),
        (floats(0), 1),
        (floats(*[0] * 1024), 1),
        (floats(*[0] * 1023, 1), 0),
        (b"", 0),
        (b"123", 0),
        (None, 0),
        ("0", 0),
        (0, 0),
    ],
)
def test_vectors_without_a_direction_are_counted(tmp_path: Path, vector: Any, degenerate: int) -> None:
    found = survey(store(tmp_path / "base", [("L_0", "a", "L", "s", vector), ("L_1", "b", "L", "s", floats(1, 1))]))
    assert sum(tally.degenerate for tally in found.loaders["L"].kinds.values()) == degenerate


@pytest.mark.parametrize(
    "vector",
    [
        floats(math.nan, 1),
        floats(1, math.nan),
        floats(math.inf, 1),
        floats(1, -math.inf),
        floats(math.inf, -math.inf),
        floats(math.inf, math.nan),
        b"\x01\x00\x80\x7f" + floats(0),
        b"\x01\x00\xc0\xff" + floats(3e38),
    ],
)
def test_vectors_that_are_not_finite_are_a_kind_of_their_own(tmp_path: Path, vector: bytes) -> None:
    table = [("L_0", "a", "L", "s", vector), ("L_1", "b", "L", "s", floats(1, 1)), ("L_2", "c", "L", "s", vector)]
    path = store(tmp_path / "base", table)
    found = survey(path)
    assert {kind: (tally.count, tally.degenerate) for kind, tally in found.loaders["L"].kinds.items()} == {
        -8: (2, 0),
        8: (1, 0),
    }
    assert (found.lengths, found.vector_bytes) == ({8: 3}, 8)
    assert streamed(path, [(1, 3)], 8) == [("b", floats(1, 1))]
    with sqlite.open_readonly(path) as db:
        every = list(layout.VECTOR_TABLE.rows(db, [(1, 3)], 8, any_number=True))
        texts = list(layout.VECTOR_TABLE.rows_and_texts(db, [(1, 3)], 8))
    assert every == [("a", vector), ("b", floats(1, 1)), ("c", vector)]
    assert texts == [("a", None), ("b", floats(1, 1)), ("c", None)]


@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=6))
def test_what_is_finite_is_what_every_number_of_it_is(numbers: list[int]) -> None:
    vector = struct.pack(f"<{len(numbers)}I", *numbers)
    assert is_finite(vector) == all(map(math.isfinite, struct.unpack(f"<{len(numbers)}f", vector)))


@pytest.mark.parametrize("column", ["pageContent", "uniqueLoaderId", "source", "vector"])
def test_vectors_of_a_file_that_lacks_another_column_have_a_length(tmp_path: Path, column: str) -> None:
    path = tmp_path / "base"
    names = [name for name in ("id", "pageContent", "uniqueLoaderId", "source", "vector") if name != column]
    with closing(apsw.Connection(str(path))) as db:
        db.execute(f"CREATE TABLE vectors ({', '.join(names)})")
        if column != "vector":
            for vector in (floats(1), floats(1, math.nan), None, "text", b"odd", b"", floats(2, 3), floats(4)):
                db.execute("INSERT INTO vectors (vector) VALUES (?)", (vector,))
    with pytest.raises(StoreProblem, match=f"without the column {column}") as raised:
        survey(path)
    assert raised.value.vector_bytes == (None if column == "vector" else 4)


def test_tallies_by_kind(tmp_path: Path) -> None:
    table = [
        ("L_0", "a", "L", "s", None),
        ("L_1", "bb", "L", "s", floats(1, 2)),
        ("L_2", "ccc", "L", "s", None),
        (None, "d", "L", "s", None),
        ("", "e", "L", "s", None),
        ("L_5", "f", "L", "s", floats(0, 0)),
        ("L_6", None, "L", "s", floats(1, 0)),
        ("L_7", None, "L", "s", floats(1)),
    ]
    kinds = survey(store(tmp_path / "base", table)).loaders["L"].kinds
    assert {kind: (tally.count, tally.first_rowid, tally.body_bytes) for kind, tally in kinds.items()} == {
        MISSING: (4, 1, 6),
        8: (3, 2, 3),
        4: (1, 8, 0),
    }
    # Three examples, the first ones; a row without an id of its own is named by its place.
    assert kinds[MISSING].samples == ["L_0", "L_2", "rowid 4"]
    assert kinds[8].samples == ["L_1", "L_5", "L_6"]
    assert kinds[8].degenerate == 1


def test_most_vectors_decide_and_the_first_row_breaks_a_tie(tmp_path: Path) -> None:
    def of(name: str, *lengths: int) -> VectorSurvey:
        table = [(f"L_{n}", f"t{n}", "L", "s", floats(*[1.0] * length)) for n, length in enumerate(lengths)]
        return survey(store(tmp_path / name, table))

    assert of("majority", 3, 2, 2).vector_bytes == 8
    assert of("first", 3, 2).vector_bytes == 12
    assert of("tie", 2, 3, 3, 2).vector_bytes == 8
    assert of("tie again", 3, 2, 2, 3).vector_bytes == 12
    assert of("three", 1, 2, 3, 3).lengths == {4: 1, 8: 1, 12: 2}


def test_rows_of_every_loader_vote_on_the_length(tmp_path: Path) -> None:
    table = [
        ("A_0", "a", "A", "s", floats(1)),
        (None, "b", None, "s", floats(1, 2)),
        (None, "c", "B", "s", floats(1, 2)),
        ("A_1", "d", "A", "s", None),
        ("A_2", "e", "A", "s", b"1"),
    ]
    found = survey(store(tmp_path / "base", table, LOOSE_SCHEMA))
    assert (found.lengths, found.vector_bytes) == ({4: 1, 8: 2}, 8)


@pytest.mark.parametrize("loader", [None, 5, 1.5, b"L"])
def test_loader_ids_that_are_no_text_are_nobodys(tmp_path: Path, loader: Any) -> None:
    table = [("L_9", "a", loader, "s", floats(1)), ("L_0", "b", "L", "s", floats(1)), ("x", "c", 7, "t", floats(1))]
    found = survey(store(tmp_path / "base", table, LOOSE_SCHEMA))
    assert {key: loader_rows.rows for key, loader_rows in found.loaders.items()} == {None: 2, "L": 1}
    assert runs_of(found, None) == [(1, 1), (3, 3)]
    assert found.loaders[None].highest_number == -1


def test_an_empty_loader_id_is_a_text(tmp_path: Path) -> None:
    found = survey(store(tmp_path / "base", [("_4", "a", "", "s", floats(1)), ("x", "b", " ", "s", floats(1))]))
    assert list(found.loaders) == ["", " "]
    assert found.loaders[""].highest_number == 4


def test_interleaved_loaders_have_runs(tmp_path: Path) -> None:
    order = "AABACCBBA"
    table = [(f"{x}_{n}", f"t{n}", x, "s", floats(1, n)) for n, x in enumerate(order)]
    found = survey(store(tmp_path / "base", table))
    assert runs_of(found, "A") == [(1, 2), (4, 4), (9, 9)]
    assert runs_of(found, "B") == [(3, 3), (7, 8)]
    assert runs_of(found, "C") == [(5, 6)]


def test_rowids_may_have_holes_and_be_negative(tmp_path: Path) -> None:
    path = store(tmp_path / "base", simple(5))
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE vectors SET rowid = -7 WHERE id = 'L_3'")
        db.execute("UPDATE vectors SET rowid = 9007199254740993 WHERE id = 'L_0'")
        db.execute("DELETE FROM vectors WHERE id = 'L_2'")
        db.commit()
    found = survey(path)
    assert runs_of(found, "L") == [(-7, 9007199254740993)]
    assert found.loaders["L"].kinds[8].first_rowid == -7
    assert [body for body, _ in streamed(path, runs_of(found, "L"), 8)] == ["text 3", "text 1", "text 4", "text 0"]


@pytest.mark.parametrize(
    ("row_ids", "highest"),
    [
        (["L_0", "L_2", "L_1"], 2),
        (["L_0"], 0),
        (["L_007"], 7),
        (["L", "L_", "L_x", "L_1x", "L_-1", "L_1_2", "M_5", "xL_5", "l_5", "L 5", "L_ 5", "L_１"], -1),
        (["L_" + "9" * 400], -1),
        ([None, 5, b"L_9", "L_3"], 3),
    ],
)
def test_highest_number_of_a_loader(tmp_path: Path, row_ids: list[Any], highest: int) -> None:
    table = [(row_id, f"t{n}", "L", "s", floats(1)) for n, row_id in enumerate(row_ids)]
    assert survey(store(tmp_path / "base", table, LOOSE_SCHEMA)).loaders["L"].highest_number == highest


def test_numbers_are_told_from_a_loader_id_that_ends_in_one(tmp_path: Path) -> None:
    table = [("L_1_0", "a", "L_1", "s", floats(1)), ("L_1_5", "b", "L_1", "s", floats(1)), ("L_1", "c", "L", "s", b"")]
    found = survey(store(tmp_path / "base", table))
    assert (found.loaders["L_1"].highest_number, found.loaders["L"].highest_number) == (5, 1)


@pytest.mark.parametrize(
    ("sources", "last"),
    [
        (["a", "b"], "b"),
        (["a", "b", "a"], "b"),
        (["a", "b", "a", "c", "b", "a"], "c"),
        (["a", " ", "", "\ufeff\u00a0"], "a"),
        (["", " "], None),
        (["a", None, 5, b"blob"], "a"),
        ([None, 5], None),
        ([" padded "], " padded "),
        (["\x85"], "\x85"),
    ],
)
def test_source_is_the_last_text_that_is_not_blank(tmp_path: Path, sources: list[Any], last: str | None) -> None:
    table = [(f"L_{n}", f"t{n}", "L", source, None) for n, source in enumerate(sources)]
    assert survey(store(tmp_path / "base", table, LOOSE_SCHEMA)).loaders["L"].source == last


def test_sources_of_interleaved_loaders_do_not_mix(tmp_path: Path) -> None:
    table = [("A_0", "1", "A", "a", b""), ("B_0", "2", "B", "a", b""), ("A_1", "3", "A", "", b"")]
    found = survey(store(tmp_path / "base", table))
    assert (found.loaders["A"].source, found.loaders["B"].source) == ("a", "a")


# --- text that is no UTF-8 -----------------------------------------------------------------------------------------


def store_of_bytes(path: Path, columns: dict[str, bytes]) -> Path:
    values = {"id": b"L_0", "pageContent": b"body", "uniqueLoaderId": b"L", "source": b"s", **columns}
    with closing(sqlite3.connect(path)) as db:
        db.execute(SCHEMA)
        casts = ", ".join(f"CAST(:{name} AS TEXT)" for name in values)
        db.execute(
            f"INSERT INTO vectors ({', '.join(values)}, vector) VALUES ({casts}, :vector)",
            {**values, "vector": floats(1, 2)},
        )
        db.commit()
    return path


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"a\xffb", "a\ufffdb"),
        (b"cut \xe4\xb8", "cut \ufffd"),
        (b"\xed\xa0\xbd", "\ufffd"),
        (b"\xed\xa0\xbd\xed\xb8\x80", "\U0001f600"),
        (b"nul\0inside", "nul\0inside"),
    ],
)
def test_invalid_text_is_read_in_every_column(tmp_path: Path, raw: bytes, text: str) -> None:
    path = store_of_bytes(tmp_path / "body", {"pageContent": raw})
    assert streamed(path, [(1, 1)], 8) == [(text, floats(1, 2))]
    found = survey(store_of_bytes(tmp_path / "loader", {"uniqueLoaderId": raw, "id": raw + b"_3"}))
    assert list(found.loaders) == [text]
    assert found.loaders[text].highest_number == 3
    assert found.loaders[text].kinds[8].samples == [f"{text}_3"]
    assert survey(store_of_bytes(tmp_path / "source", {"source": raw})).loaders["L"].source == text


def test_loader_ids_that_read_as_one_text_count_as_one_loader(tmp_path: Path) -> None:
    path = store_of_bytes(tmp_path / "base", {"uniqueLoaderId": b"x\xff"})
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO vectors SELECT 'i', 'b2', CAST(x'78fe' AS TEXT), 's', vector, '' FROM vectors")
        db.execute("INSERT INTO vectors SELECT 'j', 'b3', CAST(x'78ff' AS TEXT), 's', vector, '' FROM vectors LIMIT 1")
        db.commit()
    found = survey(path)
    assert {key: loader_rows.rows for key, loader_rows in found.loaders.items()} == {"x\ufffd": 3}
    assert len(streamed(path, runs_of(found, "x\ufffd"), 8)) == 3


# --- rows ----------------------------------------------------------------------------------------------------------


def test_rows_are_streamed_in_order_and_verbatim(tmp_path: Path) -> None:
    table = [
        ("a", "first", "L", "s", floats(1, 3e38)),
        ("b", None, "L", "s", floats(0, 0)),
        ("c", "wrong length", "L", "s", floats(1)),
        ("d", "text", "L", "s", "12345678"),
        ("e", "odd", "L", "s", b"1234567"),
        ("f", "none", "L", "s", None),
        ("g", "line\nbreak \U0001f600", "L", "s", floats(-0.0, 1e-44)),
    ]
    path = store(tmp_path / "base", table)
    assert streamed(path, [(1, 7)], 8) == [
        ("first", table[0][4]),
        ("", table[1][4]),
        ("line\nbreak \U0001f600", table[6][4]),
    ]
    assert streamed(path, [(3, 3)], 4) == [("wrong length", floats(1))]
    assert streamed(path, [(7, 7), (1, 1)], 8) == [
        ("line\nbreak \U0001f600", table[6][4]),
        ("first", table[0][4]),
    ]
    assert streamed(path, [], 8) == []


@pytest.mark.parametrize(("body", "text"), [(5, "5"), (1.5, "1.5"), (b"blob \xff", "blob \ufffd"), (b"", "")])
def test_bodies_that_are_no_text_are_read_as_text(tmp_path: Path, body: Any, text: str) -> None:
    path = store(tmp_path / "base", [("L_0", body, "L", "s", floats(1))], LOOSE_SCHEMA)
    assert streamed(path, [(1, 1)], 4) == [(text, floats(1))]


def test_rows_come_one_by_one(tmp_path: Path) -> None:
    path = store(tmp_path / "base", simple(3))
    with sqlite.open_readonly(path) as db:
        stream = rows(db, [(1, 3)], 8)
        assert isinstance(stream, Iterator)
        assert next(stream)[0] == "text 0"
        assert next(stream)[0] == "text 1"
        stream.close()


VECTOR_TABLE = st.one_of(
    st.none(),
    st.sampled_from([b"", "text", 7, b"123", floats(1), floats(0, 0), floats(1, 2), floats(3, 4), floats(1, 2, 3)]),
)
TABLES = st.lists(
    st.tuples(
        st.none(),
        st.one_of(st.none(), st.text(st.characters(codec="utf-8"), max_size=6)),
        st.sampled_from(["A", "B", "Ç", "", None, 3]),
        st.sampled_from(["s", " ", None]),
        VECTOR_TABLE,
    ),
    max_size=25,
)


@settings(max_examples=examples(80), deadline=None)
@given(TABLES)
def test_a_survey_counts_what_is_streamed_later(table: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = store(Path(folder) / "base", table, LOOSE_SCHEMA)
        found = survey(path)
        assert found.rows == len(table) == sum(loader.rows for loader in found.loaders.values())
        usable = [len(row[4]) for row in table if isinstance(row[4], bytes) and row[4] and len(row[4]) % 4 == 0]
        assert found.lengths == {length: usable.count(length) for length in usable}
        for loader, loader_rows in found.loaders.items():
            mine = [row for row in table if (row[2] if isinstance(row[2], str) else None) == loader]
            assert loader_rows.rows == len(mine) == sum(tally.count for tally in loader_rows.kinds.values())
            for kind, tally in loader_rows.kinds.items():
                if kind > 0:
                    wanted = [
                        (row[1] or "", row[4]) for row in mine if isinstance(row[4], bytes) and len(row[4]) == kind
                    ]
                    assert streamed(path, runs_of(found, loader), kind) == wanted
                    assert tally.body_bytes == sum(len(body.encode()) for body, _ in wanted)


# --- files that cannot be used -------------------------------------------------------------------------------------


def test_no_file(tmp_path: Path) -> None:
    assert problem_of(tmp_path / "missing") == "does not exist"


def test_a_folder_of_the_older_layout(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    assert problem_of(tmp_path / "base") == "is a folder, not a vector file; an older layout used folders"


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "base").write_bytes(b"")
    assert problem_of(tmp_path / "base") == "is empty (0 bytes)"


def test_a_file_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "base").write_bytes(b"x")
    assert problem_of(tmp_path / "base" / "below") == "does not exist"


@pytest.mark.parametrize(
    "content",
    [b"\0" * 4096, b"just text", bytes(range(256)) * 16, b"SQLite format 3\0", b"SQLite format 3\0" + b"\xff" * 4080],
    ids=["zeros", "text", "bytes", "magic alone", "magic and noise"],
)
def test_what_is_no_database(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "base").write_bytes(content)
    assert problem_of(tmp_path / "base").startswith("cannot be read: ")


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    store(tmp_path / "real", simple(2))
    link, dangling, loop = tmp_path / "link", tmp_path / "dangling", tmp_path / "loop"
    try:
        link.symlink_to(tmp_path / "real")
        dangling.symlink_to(tmp_path / "gone")
        loop.symlink_to(loop)
    except OSError:
        pytest.skip("this system makes no symbolic links")
    check_file(link)
    assert survey(link).rows == 2
    assert problem_of(dangling) == "does not exist"
    assert problem_of(loop)


def test_no_table(tmp_path: Path) -> None:
    path = tmp_path / "base"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE libsql_vectorstores_embedding (id)")
    assert problem_of(path) == "has no table `vectors`"


def test_a_view_is_no_table(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "base")) as db:
        db.execute("CREATE VIEW vectors AS SELECT 1 AS pageContent, 2 AS uniqueLoaderId, 3 AS source, 4 AS vector")
    assert problem_of(tmp_path / "base") == "has a view or virtual table named `vectors`, which regraft does not read"


@pytest.mark.parametrize(
    ("columns", "missing"),
    [
        ("id, uniqueLoaderId, source, vector", "pageContent"),
        ("id, pageContent, source, vector", "uniqueLoaderId"),
        ("id, pageContent, uniqueLoaderId, vector", "source"),
        ("id, pageContent, uniqueLoaderId, source", "vector"),
        ("id", "pageContent, uniqueLoaderId, source, vector"),
    ],
)
def test_missing_columns_are_named(tmp_path: Path, columns: str, missing: str) -> None:
    with closing(sqlite3.connect(tmp_path / "base")) as db:
        db.execute(f"CREATE TABLE vectors ({columns})")
    assert problem_of(tmp_path / "base") == f"has a table `vectors` without the column {missing}"


def test_row_ids_and_metadata_are_not_needed(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "base")) as db:
        db.execute("CREATE TABLE vectors (vector, source, uniqueLoaderId, pageContent, more)")
        db.execute("INSERT INTO vectors VALUES (x'00000000', 's', 'L', 'text', 1)")
        db.commit()
    loader = survey(tmp_path / "base").loaders["L"]
    assert loader.highest_number == -1
    assert loader.kinds[4].samples == ["rowid 1"]


def test_a_table_without_rowids_is_a_problem(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "base")) as db:
        db.execute("CREATE TABLE vectors (id PRIMARY KEY, pageContent, uniqueLoaderId, source, vector) WITHOUT ROWID")
    assert problem_of(tmp_path / "base").startswith("cannot be read: ")


def small_pages(path: Path, count: int = 30) -> bytes:
    """A store whose last page is one of the table's own."""
    table = [(None, body, loader, source, vector) for _, body, loader, source, vector in simple(count)]
    return store(path, table, LOOSE_SCHEMA, before="PRAGMA page_size = 512").read_bytes()


def test_a_truncated_file_is_a_problem_wherever_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "base"
    healthy = small_pages(path)
    accepted = []
    for end in (*range(1, len(healthy), 97), *range(len(healthy) - 511, len(healthy), 15), len(healthy) - 1):
        path.write_bytes(healthy[:end])
        try:
            survey(path)
            accepted.append(len(healthy) - end)
        except StoreProblem as problem:
            assert str(problem)
    assert accepted == []


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_no_single_damaged_byte_escapes_as_another_error(tmp_path: Path, every: int) -> None:
    path = tmp_path / "base"
    healthy = small_pages(path, 6)
    for place in range(0, len(healthy), every):
        for value in {0xFF, healthy[place] ^ 0x01 if place % 3 else 0xFF} - {healthy[place]}:
            path.write_bytes(healthy[:place] + bytes([value]) + healthy[place + 1 :])
            try:
                survey(path)
            except StoreProblem as problem:
                assert str(problem)


def test_rows_out_of_order_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "base"
    raw = bytearray(small_pages(path, 4))
    page = 512
    assert raw[page] == 0x0D, "the second page is the table's only leaf"
    first, second = raw[page + 8 : page + 10], raw[page + 10 : page + 12]
    raw[page + 8 : page + 12] = second + first
    path.write_bytes(raw)
    # Ranges of rowids would then name other rows than were surveyed.
    assert problem_of(path).startswith("cannot be read: ")


def test_damage_in_the_middle_of_a_large_value_is_found_by_the_survey(tmp_path: Path) -> None:
    path = store(tmp_path / "base", [("L_0", "x" * 20_000, "L", "s", b"?" * 80_000)])
    assert survey(path).vector_bytes == 80_000
    raw = bytearray(path.read_bytes())
    # Send the chain of the vector's overflow pages behind the end of the file.
    page = next(at for at in range(8192, len(raw), 4096) if raw[at + 4 : at + 4096] == b"?" * 4092)
    raw[page : page + 4] = struct.pack(">I", 1 << 30)
    path.write_bytes(raw)
    assert problem_of(path).startswith("cannot be read: ")


# --- logs and journals ---------------------------------------------------------------------------------------------


def with_log(folder: Path) -> Path:
    """A store in WAL mode, copied while its rows are in the log alone."""
    live = folder / "live"
    db = sqlite3.connect(live, isolation_level=None)
    db.execute("PRAGMA journal_mode = wal")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute(SCHEMA)
    for row in simple(5):
        db.execute("INSERT INTO vectors VALUES (?, ?, ?, ?, ?, '{}')", row)
    source = folder / "source"
    source.mkdir()
    shutil.copyfile(live, source / "base")
    shutil.copyfile(folder / "live-wal", source / "base-wal")
    db.close()
    return source / "base"


def test_rows_in_the_log_are_read_and_the_log_is_left_alone(tmp_path: Path) -> None:
    path = with_log(tmp_path)
    before = state_of(path.parent)
    work = tmp_path / "work"
    work.mkdir()
    found = survey(path, work)
    assert found.rows == 5
    with sqlite.open_readonly(path, work=work) as db:
        assert len(list(work.iterdir())) == 1
        assert [body for body, _ in rows(db, runs_of(found, "L"), 8)] == [f"text {n}" for n in range(5)]
    assert state_of(path.parent) == before
    assert list(work.iterdir()) == []


def test_a_checkpointed_file_in_wal_mode_is_read_without_a_trace(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    path = store(folder / "base", simple(3))
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = wal")
        db.execute("UPDATE vectors SET source = 't'")
        db.commit()
    assert path.read_bytes()[18:20] == b"\2\2"
    assert [entry.name for entry in folder.iterdir()] == ["base"]
    before = state_of(folder)
    found = survey(path)
    assert (found.rows, found.loaders["L"].source) == (3, "t")
    assert len(streamed(path, runs_of(found, "L"), 8)) == 3
    assert state_of(folder) == before


def test_an_unfinished_transaction_is_rolled_back_in_a_copy(tmp_path: Path) -> None:
    live = store(tmp_path / "live", simple(400), before="PRAGMA page_size = 512")
    healthy = live.read_bytes()
    db = sqlite3.connect(live, isolation_level=None)
    db.execute("PRAGMA cache_size = 1")
    db.execute("BEGIN")
    db.execute("UPDATE vectors SET source = 'never committed', uniqueLoaderId = 'X'")
    source = tmp_path / "source"
    source.mkdir()
    path = source / "base"
    shutil.copyfile(live, path)
    shutil.copyfile(tmp_path / "live-journal", source / "base-journal")
    db.execute("ROLLBACK")
    db.close()
    assert path.read_bytes() != healthy, "part of the transaction is in the file"
    before = state_of(source)
    found = survey(path)
    assert {key: loader.rows for key, loader in found.loaders.items()} == {"L": 400}
    assert found.loaders["L"].source == "s"
    assert state_of(source) == before


@pytest.mark.parametrize("suffix", ["-wal", "-journal", "-shm"])
@pytest.mark.parametrize("content", [b"", b"notes", b"SQLite format 3\0" + bytes(100)])
def test_a_neighbour_that_only_looks_like_a_log_is_ignored(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = store(tmp_path / "base", simple(2))
    (tmp_path / f"base{suffix}").write_bytes(content)
    before = state_of(tmp_path)
    assert survey(path).rows == 2
    assert state_of(tmp_path) == before


def test_a_plain_file_is_read_without_a_trace(tmp_path: Path) -> None:
    # Windows has no name with a question mark; elsewhere it must not be taken for the end of the path.
    path = store(tmp_path / ("base 100% #1" if os.name == "nt" else "base 100% #1?mode=rwc"), simple(3))
    before = state_of(tmp_path)
    found = survey(path)
    assert len(streamed(path, runs_of(found, "L"), 8)) == 3
    assert state_of(tmp_path) == before


def test_a_file_that_somebody_writes_is_still_read(tmp_path: Path) -> None:
    path = store(tmp_path / "base", simple(3))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        assert survey(path).rows == 3
        db.execute("ROLLBACK")


def test_nothing_can_be_written_through_a_reading_connection(tmp_path: Path) -> None:
    for path in (store(tmp_path / "plain", simple(1)), with_log(tmp_path)):
        with sqlite.open_readonly(path) as db, pytest.raises(apsw.ReadOnlyError):
            db.execute("DELETE FROM vectors")
