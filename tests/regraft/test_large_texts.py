"""Texts that are read and written piece by piece: the same comes of them as of texts that are held whole."""

from __future__ import annotations

import importlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from extras import needs
from harness import NOW, examples, run
from hypothesis import given, settings
from hypothesis import strategies as st
from large_texts import everywhere, in_pieces
from v1 import PLAIN, RawText, Row, Source, base, file, note, page

from migrators.pipeline import run as run_stage
from migrators.pipeline import workers
from regraft.formats import large_text
from regraft.formats.large_text import LargeText, count_utf16_units
from regraft.text import decode_utf8, utf16_len

BYTES = st.lists(
    st.sampled_from(
        [one.encode() for one in "a\né文\U0001f600\0"],
    )
    | st.sampled_from(
        [
            b"\xed\xa0\xbd",
            b"\xed\xb8\x80",
            b"\xff",
            b"\x80",
            b"\xc3",
            b"\xe6\x96",
            b"\xf0\x9f",
            b"\xed",
            b"\xed\xa0",
            b"\xc0\x80",
        ]
    ),
    max_size=200,
).map(b"".join)


@pytest.mark.parametrize("piece", [1, 2, 5, 64])
@settings(max_examples=examples(150), deadline=None)
@given(raw=BYTES)
def test_pieces_are_what_all_bytes_at_once_would_be(piece: int, raw: bytes) -> None:
    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE t (body)")
    db.execute("INSERT INTO t VALUES (CAST(? AS TEXT))", (raw,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_text, "PIECE_BYTES", piece)
        pieces = list(LargeText(db=db, table="t", column="body", rowid=1).pieces())
    expected = decode_utf8(raw)
    assert b"".join(pieces).decode() == expected
    assert all(one.decode() is not None for one in pieces)
    assert sum(map(count_utf16_units, pieces)) == utf16_len(expected)


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
@pytest.mark.parametrize("piece", [1, 2, 3, 7])
def test_pieces_of_wide_texts(encoding: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    db = apsw.Connection(":memory:")
    db.execute(f"PRAGMA encoding = '{encoding}'")
    db.execute("CREATE TABLE t (body)")
    text = "a文\U0001f600\n" * 20
    db.execute("INSERT INTO t VALUES (?)", (text,))
    monkeypatch.setattr(large_text, "PIECE_BYTES", piece)
    assert (
        LargeText(db=db, table="t", column="body", rowid=1, codec=encoding.lower().replace("utf-16", "utf-16-")).whole()
        == text
    )


TORN = RawText(b"torn \xed\xa0\xbd\xed\xb8\x80 \xff end")
TEXTS = [
    "# A title\n\nsome text",
    "é文\U0001f600" * 30,
    "x",
    "",
    RawText(b"torn \xed\xa0\xbd\xed\xb8\x80 \xff end"),
    "same",
]


def a_source(folder: Path) -> Path:
    rows = [Row(loader, text) for loader in ("F", "U", "N") for text in (TEXTS if loader != "U" else TEXTS[:2])]
    rows.append(Row("F", "without a vector", None))
    items = [file("f", "F"), page("u", "U"), note("n", "N")]
    return Source([base("kb", *items)], {"kb": rows}, ddl=PLAIN, uploads={"up-f.pdf": b"%PDF"}).write(folder)


def content_of(library: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(library.rglob("*")):
        name = path.relative_to(library).as_posix()
        if path.name == "index.sqlite":
            db = sqlite3.connect(path)
            found[name] = list(db.iterdump())
            db.close()
        elif "raw/" in name and path.is_file():
            found[name] = path.read_bytes()
    return found


@pytest.mark.parametrize("options", [(), ("--carry-text",)], ids=["vectors", "texts too"])
@pytest.mark.parametrize("size", [1, 64])
def test_a_base_of_large_texts_is_the_same_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], size: int
) -> None:
    source = a_source(tmp_path / "v1")
    for name in ("whole", "pieces"):
        if name == "pieces":
            in_pieces(monkeypatch, size)
        outcome = run("migrate", source, "--to", tmp_path / name, "--now", NOW, "-y", *options)
        assert outcome.status in (0, 1), outcome.stderr
    whole, pieces = content_of(tmp_path / "whole"), content_of(tmp_path / "pieces")
    assert len(whole) > 3
    assert whole == pieces


def test_large_texts_of_several_bases_are_not_carried_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_pieces(monkeypatch, 3)
    source = Source(
        [base("a", note("n", "N")), base("b", note("m", "M"))],
        {"a": [Row("N", "a long text")], "b": [Row("M", "another one")]},
    ).write(tmp_path / "v1")
    counts = []
    real = workers.choose_process_count
    monkeypatch.setattr(run_stage, "choose_process_count", lambda *args: counts.append(real(*args)) or counts[-1])
    assert run("migrate", source, "--to", tmp_path / "out", "--now", NOW, "-y", "--jobs", "4").status == 0
    assert counts == [1]


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the most that a process has held")
def test_memory_is_bounded_by_the_largest_text(tmp_path: Path) -> None:
    size = 20 << 20
    rows = [Row(loader, f"\U0001f600 {loader} " + "word " * (size // 5)) for loader in ("A", "B")]
    source = Source([base("kb", note("a", "A"), note("b", "B"))], {"kb": rows}).write(tmp_path / "v1")
    command = ["migrate", source, "--to", tmp_path / "out", "-y", "--jobs", "1"]
    code = "import sys; from regraft.__main__ import main\ntry:\n main()\nexcept SystemExit: pass\n"
    code += "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0], file=sys.stderr)"
    line = [sys.executable, "-P", "-c", code, *map(str, command)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    # 80 MB as a text of four bytes for each character, and that several times, is what it must not come to.
    assert int(done.stderr.splitlines()[-1]) << 10 < (150 << 20) + 3 * size


# --- a library that has them ---------------------------------------------------------------------------------------


DAMAGE = {
    "nothing": "",
    "a body": "UPDATE search_text SET text = 'other text' WHERE rowid = 2",
    "a body's hash": "UPDATE search_text SET embedding_text_hash = 'x' WHERE rowid = 2",
    "a content": "UPDATE content SET text = text || 'x' WHERE rowid = 1",
    "a content that is not UTF-8": "UPDATE content SET text = CAST(x'ff61626364656667' AS TEXT) WHERE rowid = 1",
    "a half of a pair in a body": "UPDATE search_text SET text = text || CAST(x'eda0bd' AS TEXT) WHERE rowid = 2",
    "a place": "UPDATE search_unit SET char_start = char_start + 1, char_end = char_end + 1 WHERE rowid = 2",
    "a place beyond": "UPDATE search_unit SET char_end = 1000000 WHERE rowid = 2",
    "a place that is none": "UPDATE search_unit SET char_start = -5 WHERE rowid = 2",
    "a body that is no text": "UPDATE search_text SET text = CAST(text AS BLOB) WHERE rowid = 2",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("size", [1, 5])
def test_an_audit_of_large_texts_finds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, size: int
) -> None:
    assert run("migrate", a_source(tmp_path / "v1"), "--to", tmp_path / "out", "--now", NOW, "-y").status in (0, 1)
    [path] = (tmp_path / "out").rglob("index.sqlite")
    with apsw.Connection(str(path)) as db:
        db.execute("PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON")
        db.execute(DAMAGE[what])
    db.close()
    whole = run("check", tmp_path / "out", "--json").document
    everywhere(monkeypatch, size)
    assert run("check", tmp_path / "out", "--json").document["findings"] == whole["findings"]
    errors = [one for one in whole["findings"] if one["severity"] == "error"]
    assert bool(errors) is (what != "nothing")


@needs("parquet")
def test_an_export_of_large_texts_is_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet

    assert run("migrate", a_source(tmp_path / "v1"), "--to", tmp_path / "out", "--now", NOW, "-y").status in (0, 1)
    tables = []
    for name in ("whole", "pieces"):
        assert run("export", tmp_path / "out", tmp_path / f"{name}.parquet").status == 0
        tables.append(pyarrow.parquet.read_table(tmp_path / f"{name}.parquet").to_pylist())
        everywhere(monkeypatch, 3)
    assert tables[0] == tables[1]


def test_a_hit_of_many_megabytes_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("migrate", a_source(tmp_path / "v1"), "--to", tmp_path / "out", "--now", NOW, "-y").status in (0, 1)
    search = importlib.import_module("regraft.formats.cherry_v2.index.search")
    monkeypatch.setattr(search, "_COLUMNS", search._COLUMNS.replace(str(16 << 20), "4").replace("1000000", "9"))
    hits = run("search", tmp_path / "out", "title", "--mode", "bm25", "--json").document["hits"]
    assert {hit["text"] for hit in hits} == {"# A title"}
