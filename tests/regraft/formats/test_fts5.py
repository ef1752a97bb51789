"""Full-text indexes that are put together from sorted words, held against those that FTS5 fills alone."""

from __future__ import annotations

import itertools
import logging
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

import apsw
import crews
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from patience import NEVER_SECONDS

from regraft.disk import sqlite, writable
from regraft.errors import VerificationFailed
from regraft.formats import fts5
from regraft.formats.cherry_v2 import index
from regraft.formats.cherry_v2.index import schema
from regraft.formats.cherry_v2.index.full_text import _INDEX, rebuild_full_text
from regraft.formats.fts5 import (
    AVERAGES,
    STRUCTURE,
    FullTextBuilder,
    IndexNames,
    IndexSegment,
    Structure,
    encode_varints,
)
from regraft.formats.fts5.jobs import IndexBuildRefused, Page, read_pages, write_pages
from regraft.processes import pool
from regraft.testing.strategies import texts

_ENGLISH = [
    f"The keeper of light {number} writes: wind from the west, {number * 7} lamps, A_b%c" for number in range(60)
]
_CHINESE = [f"第{number}盏灯的看守人写道：西风，今晚有{number * 7}盏灯。" for number in range(60)]
_ODD = ["", "a", "ab", "\0\0\0\0", "🗓️🗓️🗓️", "İstanbul ISTANBUL ıstanbul", "say \"yes\" 'no'", "%%%___", "ÄÖÜ äöü ß SS"]
#: LIKE ends at NUL, FTS5 leaves it out; characters beyond ASCII are folded to ASCII letters by FTS5, not by LIKE.
_NUL = [
    "the lamp of the harbour",
    "a harbour\0 and the lamp",
    "\0lamp",
    "la\0mp of the harbour",
    "no light here",
    "LA\0\0MP",
    "第一盏\0灯的看守人",
    "看\0守人",
]
_FOLDED = ["kiss the task", "\u212aISS", "ki\u017fs", "KI\u017f\u017f", "K\u0130SS", "\u0131 kiss", "a risky task"]
_CORPORA = {
    "english": _ENGLISH,
    "chinese": _CHINESE,
    "mixed": [*_ENGLISH[:20], *_ODD, *_CHINESE[:20]],
    "odd": _ODD,
    "nul": _NUL,
    "nul first": _NUL[::-1],
    "folded": _FOLDED,
    "folded first": _FOLDED[::-1],
}


def _file(path: Path, bodies: list[str]) -> None:
    with writable.allow_writes(path.parent), sqlite.open_writable(path, create=True) as db:
        for statement in (*schema.TABLES, schema.ROWID_INDEX, schema.FULL_TEXT):
            db.execute(statement)
        db.executemany(
            "INSERT INTO search_text VALUES (?, 'search_unit', ?, 'body', ?, 'h', ?, 0)",
            [(f"t{number}", f"u{number}", body, number) for number, body in enumerate(bodies, 1)],
        )


@dataclass
class _Filling:
    """Fills an index from sorted words; ``harm`` does something to the folder of the runs before they are used."""

    folder: Path
    bodies: list[str]
    run_characters: int = 200
    harm: Callable[[Path], None] | None = None

    def run(self) -> tuple[Path, bool]:
        """Return the file, and whether its index was spliced."""
        path, scratch = self.folder / "spliced.sqlite", self.folder / "scratch"
        _file(path, self.bodies)
        scratch.mkdir()
        with writable.allow_writes(self.folder), crews.of_threads(1) as helpers, sqlite.open_writable(path) as db:
            made = FullTextBuilder(
                scratch,
                helpers,
                arguments=schema.FULL_TEXT_ARGUMENTS,
                run_characters=self.run_characters,
                range_bytes=self.run_characters,
            )
            for number, body in enumerate(self.bodies, 1):
                made.add(number, body)
            if self.harm is not None:
                self.harm(scratch)
            db.execute("BEGIN")
            is_spliced = made.fill_index(db, _INDEX, lambda _: None)
            if not is_spliced:
                db.execute("INSERT INTO search_text_fts (search_text_fts) VALUES ('rebuild')")
            db.execute("COMMIT")
            _demand_sound(db)
        return path, is_spliced


def _demand_sound(db: apsw.Connection) -> None:
    db.execute("INSERT INTO search_text_fts (search_text_fts, rank) VALUES ('integrity-check', 1)")


def _answers(path: Path, queries: list[str]) -> list[object]:
    # Any SQLite, without what regraft takes from its connections.
    with closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE VIRTUAL TABLE temp.words USING fts5vocab ('main', 'search_text_fts', 'instance')")
        ranked = "SELECT rowid, bm25(search_text_fts) FROM search_text_fts WHERE search_text_fts MATCH ? ORDER BY 2, 1"
        quoted = ['"' + query.replace('"', '""') + '"' for query in queries]
        return [
            db.execute("SELECT term, doc, col, offset FROM words ORDER BY 1, 2, 4").fetchall(),
            db.execute("SELECT id, sz FROM search_text_fts_docsize ORDER BY 1").fetchall(),
            db.execute("SELECT k, v FROM search_text_fts_config").fetchall(),
            bytes(db.execute("SELECT block FROM search_text_fts_data WHERE id = 1").get),
            *(db.execute(ranked, (query,)).fetchall() for query in quoted),
        ]


def _plain(folder: Path, bodies: list[str]) -> Path:
    path = folder / "plain.sqlite"
    _file(path, bodies)
    with writable.allow_writes(folder), sqlite.open_writable(path) as db:
        rebuild_full_text(db)
    return path


def _queries(bodies: list[str]) -> list[str]:
    return [body[len(body) // 3 :][:4] for body in bodies if len(body) > 12 and "\0" not in body][:12]


# --- the same index --------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("name", _CORPORA)
@pytest.mark.parametrize("run_characters", [1, 300, 1 << 20])
def test_a_spliced_index_answers_as_one_that_fts5_filled(tmp_path: Path, name: str, run_characters: int) -> None:
    bodies = _CORPORA[name]

    path, is_spliced = _Filling(tmp_path, bodies, run_characters).run()

    assert is_spliced
    assert _answers(path, _queries(bodies)) == _answers(_plain(tmp_path, bodies), _queries(bodies))


def test_the_same_texts_give_the_same_bytes(tmp_path: Path) -> None:
    files = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        path, _ = _Filling(tmp_path / name, _CORPORA["mixed"]).run()
        files.append(path.read_bytes())

    assert files[0] == files[1]


@pytest.mark.thorough
@given(bodies=st.lists(texts(max_size=30), max_size=25), edits=st.lists(st.integers(0, 24), max_size=10))
def test_a_spliced_index_follows_what_is_changed_later(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[str], edits: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("spliced")
    path, is_spliced = _Filling(folder, bodies, 40).run()
    assert is_spliced

    with writable.allow_writes(folder), sqlite.open_writable(path) as db, schema.full_text_triggers(db):
        for edit in edits:
            db.execute("DELETE FROM search_text WHERE fts_rowid = ?", (edit,))
            db.execute("UPDATE search_text SET text = text || 'changed' WHERE fts_rowid = ?", (edit + 1,))
            name = f"n{edit} {db.total_changes()}"
            db.execute(
                "INSERT INTO search_text VALUES (?, 'search_unit', ?, 'body', 'new text', 'h', NULL, 0)", (name, name)
            )
            _demand_sound(db)
        for command in ("merge", "optimize", "rebuild"):
            if command == "merge":
                db.execute("INSERT INTO search_text_fts (search_text_fts, rank) VALUES ('merge', 500)")
            else:
                db.execute("INSERT INTO search_text_fts (search_text_fts) VALUES (?)", (command,))
            _demand_sound(db)


@pytest.mark.thorough
def test_several_processes_fill_an_index_of_many_texts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if pool.usable_cores() == 1:
        pytest.skip("one core alone")
    bodies = [f"{number} {_ENGLISH[number % 60]} {_CHINESE[number % 60]} " * 60 for number in range(1_100)]
    path = tmp_path / "index.sqlite"
    _file(path, bodies)
    before = set(tmp_path.iterdir())

    with caplog.at_level(logging.INFO), writable.allow_writes(tmp_path), sqlite.open_writable(path) as db:
        rebuild_full_text(db)
        _demand_sound(db)
        segments = db.execute("SELECT count(DISTINCT segid) FROM search_text_fts_idx").get

    assert sum(len(body.encode()) for body in bodies) > fts5.MIN_TEXT_BYTES
    assert segments == 1
    assert "alone" not in caplog.text
    assert set(tmp_path.iterdir()) == before


def test_fts5_looks_through_an_index_where_it_is_asked_to(tmp_path: Path) -> None:
    path, _ = _Filling(tmp_path, _ENGLISH).run()
    with writable.allow_writes(tmp_path):
        index.verify_full_text(path, "base")
        with closing(apsw.Connection(str(path))) as db:
            db.execute("UPDATE search_text SET text = 'other words' WHERE fts_rowid = 7")

        with pytest.raises(VerificationFailed, match="the full-text index does not match the stored texts"):
            index.verify_full_text(path, "base")


# --- pages as FTS5 makes them ----------------------------------------------------------------------------------------


def _spliced(folder: Path, bodies: list[str], *, page_bytes: int, run_characters: int) -> apsw.Connection:
    """Return a file with an index from sorted words and one that FTS5 filled, with pages of some length."""
    path, scratch = folder / "both.sqlite", folder / "scratch"
    scratch.mkdir()
    with writable.allow_writes(folder), crews.of_threads(1) as helpers, sqlite.open_writable(path, create=True) as db:
        db.execute("CREATE TABLE bodies (id INTEGER PRIMARY KEY, text TEXT)")
        db.executemany("INSERT INTO bodies VALUES (?, ?)", enumerate(bodies, 1))
        for name in ("ours", "theirs"):
            columns = "text, content = 'bodies', content_rowid = 'id', tokenize = 'trigram'"
            db.execute(f"CREATE VIRTUAL TABLE {name} USING fts5 ({columns})")
            db.execute(f"INSERT INTO {name} ({name}, rank) VALUES ('pgsz', ?)", (page_bytes,))
        made = FullTextBuilder(
            scratch,
            helpers,
            arguments=schema.FULL_TEXT_ARGUMENTS,
            run_characters=run_characters,
            range_bytes=1,
            page_bytes=page_bytes,
        )
        for number, body in enumerate(bodies, 1):
            made.add(number, body)
        with db:
            assert made.fill_index(
                db, IndexNames(table="ours", texts="bodies", number="id", text="text"), lambda _: None
            )
        db.execute("INSERT INTO theirs (theirs) VALUES ('rebuild')")
        db.execute("INSERT INTO theirs (theirs) VALUES ('optimize')")
        db.execute("INSERT INTO ours (ours, rank) VALUES ('integrity-check', 1)")
    return apsw.Connection(str(path))


@pytest.mark.thorough
@pytest.mark.parametrize("page_bytes", [64, 200, 4050])
@pytest.mark.parametrize("name", ["words", "one letter", "four letters"])
def test_pages_hold_what_those_of_fts5_hold(tmp_path: Path, name: str, page_bytes: int) -> None:
    bodies = {
        "words": [*_ENGLISH, *_CHINESE],
        "one letter": ["a" * 300] * 400,
        "four letters": [f"{number:b} {number * 7:b}".replace("0", "\U0001f600") for number in range(2_000)],
    }[name]

    with closing(_spliced(tmp_path, bodies, page_bytes=page_bytes, run_characters=20_000)) as db:
        found = []
        for table in ("ours", "theirs"):
            db.execute(f"CREATE VIRTUAL TABLE temp.{table}_words USING fts5vocab ('main', '{table}', 'instance')")
            found.append(db.execute(f"SELECT term, doc, col, offset FROM {table}_words").fetchall())
        assert found[0] == found[1]
        if name == "one letter":
            # A term on so many pages has lists of where its rows lie.
            assert db.execute("SELECT count(*) FROM ours_data WHERE id > 10 AND id & (1 << 36)").get
        # A page has one occurrence at least, and a list goes on until it is full.
        assert db.execute("SELECT max(octet_length(block)) FROM ours_data").get <= page_bytes + 32


# --- what makes FTS5 fill it alone -----------------------------------------------------------------------------------


def _changed(change: Callable[[array[int], int], None]) -> Callable[[Path], None]:
    """Return what changes the numbers of the first run, once it is made; the change is told how many rows it has."""

    def changed(scratch: Path) -> None:
        path = _first_run(scratch)
        raw = path.read_bytes()
        whole = len(raw) // 8 * 8
        numbers = array("q", raw[:whole])
        rows = next(place for place, row in enumerate(numbers) if row != place + 1)
        change(numbers, rows)
        path.write_bytes(numbers.tobytes() + raw[whole:])

    return changed


def _first_run(scratch: Path) -> Path:
    """Return the first run, once its process is done with it: it went on with the next."""
    for _ in range(NEVER_SECONDS * 100):
        if len(found := sorted(scratch.glob("run-*"))) > 1:
            return found[0]
        time.sleep(0.01)
    raise AssertionError("the second run does not come")


def _cut_off(scratch: Path) -> None:
    path = _first_run(scratch)
    path.write_bytes(path.read_bytes()[:-3])


def _terms(numbers: array[int], rows: int) -> Iterator[int]:
    """Yield where the trigrams of a run stand: behind its rows and their counts come the only numbers so high."""
    return itertools.takewhile(lambda place: numbers[place] >= 1 << 42, range(2 * rows, len(numbers)))


def _other_words(numbers: array[int], rows: int) -> None:
    for place in list(_terms(numbers, rows)):
        numbers[place] += 5_000


def _other_row(numbers: array[int], rows: int) -> None:
    assert rows
    numbers[0] = -900


def _same_row(numbers: array[int], rows: int) -> None:
    assert rows > 1
    numbers[1] = numbers[0]


def _other_places(numbers: array[int], rows: int) -> None:
    """Change where doclists begin."""
    last = list(_terms(numbers, rows))[-1]
    for place in range(last + 1, last + 20):
        numbers[place] = 0x7F7F_7F7F_7F7F_7F7F


_HARMS = {
    "cut off": (_cut_off, "a run is not whole"),
    "other words": (_changed(_other_words), "rows instead of"),
    "other rows": (_changed(_other_row), "no text's"),
    "the same row": (_changed(_same_row), "UNIQUE constraint failed"),
    "other places": (_changed(_other_places), "a run is not what was written"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", _HARMS)
def test_where_anything_differs_fts5_fills_the_index_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    harm, reason = _HARMS[name]

    with caplog.at_level(logging.INFO):
        path, is_spliced = _Filling(tmp_path, _ENGLISH, 900, harm=harm).run()

    assert not is_spliced
    assert reason in caplog.text
    assert _answers(path, _queries(_ENGLISH)) == _answers(_plain(tmp_path, _ENGLISH), _queries(_ENGLISH))


@dataclass
class _Refused:
    """An index of English texts that is to be filled from other things than its texts."""

    folder: Path
    arguments: str = schema.FULL_TEXT_ARGUMENTS
    scratch: str = "."

    def run(self, rows: list[tuple[int, str]], before: str = "SELECT 1") -> None:
        """Demand that the index is not filled from rows, after something was done to its file."""
        path = self.folder / "index.sqlite"
        _file(path, _ENGLISH)
        with closing(apsw.Connection(str(path))) as db:
            db.execute(before)
        with writable.allow_writes(self.folder), crews.of_threads(1) as helpers, sqlite.open_writable(path) as db:
            made = FullTextBuilder(self.folder / self.scratch, helpers, arguments=self.arguments)
            for number, body in rows:
                made.add(number, body)

            assert not made.fill_index(db, _INDEX, lambda _: None)


_NUMBERED = list(enumerate(_ENGLISH, 1))
_OTHER_FORMAT = "UPDATE search_text_fts_config SET v = 5 WHERE k = 'version'"
_REFUSED = {
    "rows that do not rise": (
        schema.FULL_TEXT_ARGUMENTS,
        [(-number, body) for number, body in _NUMBERED],
        "do not rise",
    ),
    "rows that are too high": (
        schema.FULL_TEXT_ARGUMENTS,
        [(number << 40, body) for number, body in _NUMBERED],
        "too high",
    ),
    "missing rows": (schema.FULL_TEXT_ARGUMENTS, _NUMBERED[1:], "not as many rows"),
    "other words": (schema.FULL_TEXT_ARGUMENTS, [(number, "zzzz" * 9) for number, _ in _NUMBERED], "rows instead of"),
    "another tokenizer": ("text, tokenize = 'unicode61'", _NUMBERED, "does not make trigrams"),
    "half a character": (schema.FULL_TEXT_ARGUMENTS, [*_NUMBERED[1:], (61, "\ud800")], "surrogates not allowed"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_texts_that_are_not_as_expected_are_left_to_fts5(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    arguments, rows, reason = _REFUSED[name]

    with caplog.at_level(logging.INFO):
        _Refused(tmp_path, arguments).run(rows)

    assert reason in caplog.text


def test_an_index_of_another_format_is_left_to_fts5(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        _Refused(tmp_path).run(_NUMBERED, _OTHER_FORMAT)

    assert "is of format 5" in caplog.text


def test_a_process_that_is_killed_leaves_the_work_to_fts5(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "index.sqlite"
    _file(path, _ENGLISH)
    here, there = Pipe()
    with caplog.at_level(logging.INFO), writable.allow_writes(tmp_path), sqlite.open_writable(path) as db:
        made = FullTextBuilder(tmp_path, crews.of_pipe(here), arguments=schema.FULL_TEXT_ARGUMENTS)
        made.add(1, _ENGLISH[0])
        there.close()
        assert not made.fill_index(db, _INDEX, lambda _: None)

    assert "alone: a process was killed" in caplog.text
    # FTS5 may need the room.
    assert list(tmp_path.iterdir()) == [path]


def test_a_process_that_is_killed_at_work_leaves_it_to_fts5(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "index.sqlite"
    _file(path, _ENGLISH)
    here, there = Pipe()
    with caplog.at_level(logging.INFO), writable.allow_writes(tmp_path), sqlite.open_writable(path) as db:
        made = FullTextBuilder(tmp_path, crews.of_pipe(here), arguments=schema.FULL_TEXT_ARGUMENTS)
        made.add(1, _ENGLISH[0])
        made.end()
        there.close()
        assert not made.fill_index(db, _INDEX, lambda _: None)

    assert "alone: a process was killed" in caplog.text
    # FTS5 may need the room.
    assert list(tmp_path.iterdir()) == [path]


def test_texts_that_cannot_be_written_leave_the_work_to_fts5(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        _Refused(tmp_path, scratch="gone").run(_NUMBERED)

    assert "No such file or directory" in caplog.text


@given(st.lists(st.builds(Page, st.binary(min_size=4), st.none() | st.binary(max_size=13), st.integers(0, 1 << 40))))
def test_pages_are_read_as_they_are_written_or_refused(
    tmp_path_factory: pytest.TempPathFactory, pages: list[Page]
) -> None:
    path = tmp_path_factory.mktemp("pages") / "pages"
    with path.open("wb") as file:
        assert write_pages(file, pages) == len(pages)
    assert list(read_pages(path)) == pages

    if pages:
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(IndexBuildRefused, match="is cut off"):
            list(read_pages(path))


# --- records ---------------------------------------------------------------------------------------------------------

_SEGMENTS = st.builds(IndexSegment, st.integers(1, 2000), st.integers(0, 1 << 31), st.integers(0, 1 << 31))


@given(
    st.binary(min_size=4, max_size=4), st.lists(st.lists(_SEGMENTS, max_size=4), max_size=6), st.integers(0, 1 << 40)
)
def test_a_list_of_segments_is_read_as_it_is_written(
    cookie: bytes, levels: list[list[IndexSegment]], written: int
) -> None:
    structure = Structure(cookie, tuple(map(tuple, levels)), written)

    assert Structure.read(structure.record()) == structure


@given(st.binary(max_size=40))
@example(b"\0\0\0\0\1\0\0")
def test_any_bytes_are_a_list_of_segments_or_refused(record: bytes) -> None:
    try:
        Structure.read(record)
    except IndexBuildRefused as problem:
        assert str(problem)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"\0\0\0\0\xff\0\0\1\0\0\0", "is of a later form"),
        (b"\0\0\0\0\1", "is cut off"),
        (b"\0\0\0\0" + encode_varints([1, 1, 1, 0, 2, 1, 1, 1]), "is cut off"),
        (b"\0\0\0\0" + encode_varints([1, 2, 1, 0, 1, 1, 1, 1]), "does not add up"),
        (b"\0\0\0\0" + encode_varints([1, 1, 1, 2, 1, 1, 1, 1]), "are being merged"),
        (b"\0\0\0\0" + encode_varints([3_000, 1, 1]), "is too long"),
    ],
)
def test_a_list_of_segments_of_another_form_is_refused(record: bytes, reason: str) -> None:
    with pytest.raises(IndexBuildRefused, match=reason):
        Structure.read(record)


def test_records_have_the_numbers_that_fts5_gives_them(tmp_path: Path) -> None:
    with sqlite.open_readonly(_plain(tmp_path, _ENGLISH)) as db:
        structure = bytes(db.execute("SELECT block FROM search_text_fts_data WHERE id = ?", (STRUCTURE,)).get)
        averages = bytes(db.execute("SELECT block FROM search_text_fts_data WHERE id = ?", (AVERAGES,)).get)

    assert len(Structure.read(structure).segments) == 1
    assert Structure.read(structure).record() == structure
    assert averages == encode_varints([60, sum(len(body) - 2 for body in _ENGLISH)])
