"""SQLite files of others: how they are opened, what their own definitions may do, and what is told by their bytes."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import apsw
import chroma_store
import codex_mem_store
import planted_v2
import pytest
from faults import fails, posix, untouched
from harness import run

from regraft.disk import durable, sqlite, untrusted_sqlite
from regraft.errors import (
    OtherRowsChanged,
    RowsMayBeRefused,
    SchemaForeign,
    TemporaryCopyFailed,
    VectorExtensionUnusable,
)
from regraft.formats.codex_mem import database


def short(value: object) -> str | None:
    """Name a case by a few of its bytes."""
    return value.hex()[-12:] if isinstance(value, bytes) else None


def made(path: Path, *statements: str) -> Path:
    with closing(apsw.Connection(str(path))) as db:
        for statement in statements:
            db.execute(statement)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a table, a view of it, and a trigger that removes what is added."""
    return made(
        tmp_path / "file.sqlite",
        "CREATE TABLE t (x INTEGER PRIMARY KEY, y TEXT)",
        "CREATE TABLE child (x REFERENCES t (x))",
        "INSERT INTO t VALUES (1, 'one'), (2, 'two')",
        "CREATE VIEW v AS SELECT * FROM t",
        "CREATE TRIGGER tr AFTER INSERT ON t BEGIN DELETE FROM t; END",
    )


# --- opening ---------------------------------------------------------------------------------------------------------


def test_a_file_that_is_read_is_not_written_and_does_nothing_of_its_own(path: Path) -> None:
    with untouched(path.parent), sqlite.open_readonly(path) as db:
        assert db.execute("SELECT * FROM t").fetchall() == [(1, "one"), (2, "two")]
        assert db.execute("PRAGMA query_only").get == 1
        with pytest.raises(apsw.ReadOnlyError):
            db.execute("INSERT INTO t VALUES (3, 'three')")
        with pytest.raises(apsw.SQLError, match="access to view"):
            db.execute("SELECT * FROM v")
    with pytest.raises(apsw.ConnectionClosedError):
        db.execute("SELECT 1")


def test_a_file_that_is_written_runs_no_triggers_and_obeys_its_keys(path: Path) -> None:
    with sqlite.open_writable(path) as db:
        # The last two have an effect on macOS alone, and are asked for everywhere.
        for setting in ("foreign_keys", "fullfsync", "checkpoint_fullfsync"):
            assert db.execute(f"PRAGMA {setting}").get == 1, setting
        assert db.execute("PRAGMA busy_timeout").get == 5000
        db.execute("INSERT INTO t VALUES (3, 'three')")
        with pytest.raises(apsw.ConstraintError, match="FOREIGN KEY"):
            db.execute("INSERT INTO child VALUES (77)")
        with pytest.raises(apsw.SQLError, match="access to view"):
            db.execute("SELECT * FROM v")
        with pytest.raises(apsw.SQLError, match="may not be modified"):
            db.execute("PRAGMA writable_schema = ON; DELETE FROM sqlite_schema")
        with untrusted_sqlite.allow_schema_writes(db):
            db.execute("PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = sql")
        with pytest.raises(apsw.SQLError, match="may not be modified"):
            db.execute("DELETE FROM sqlite_schema")
        # The module of a table that no layout has.
        with pytest.raises(apsw.SQLError, match="no such module"):
            db.execute("CREATE VIRTUAL TABLE a USING rtree (id, x, y)")
        sqlite.sync_every_commit(db)
        assert db.execute("PRAGMA synchronous").get == 3
    with pytest.raises(apsw.ConnectionClosedError):
        db.execute("SELECT 1")
    with closing(apsw.Connection(str(path))) as db:
        assert db.execute("SELECT x FROM t").fetchall() == [(1,), (2,), (3,)]


def test_a_file_of_ones_own_runs_its_triggers(path: Path) -> None:
    with sqlite.open_writable(path) as db:
        untrusted_sqlite.unguard_connection(db)
        assert db.execute("SELECT count(*) FROM v").get == 2
        db.execute("INSERT INTO t VALUES (3, 'three')")
        assert db.execute("SELECT count(*) FROM v").get == 0
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_schema SET sql = sql")


@pytest.mark.parametrize("opened", [sqlite.open_scratch, sqlite.open_in_memory])
def test_a_temporary_database_is_closed_at_the_end(opened: Callable[[], Any]) -> None:
    with opened() as db:
        db.execute("CREATE TABLE t (x); INSERT INTO t VALUES (1)")
        rows = db.execute("SELECT x FROM t")
        assert next(rows) == (1,)
        assert db.execute("PRAGMA foreign_keys").get == (opened is sqlite.open_in_memory)
    with pytest.raises(apsw.ConnectionClosedError):
        db.execute("SELECT 1")


@posix
def test_only_a_file_is_opened_as_a_database(tmp_path: Path) -> None:
    """Opening a pipe would wait for a writer."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (("folder", "unable to open database file"), ("pipe", "pipe is not a file")):
        for opened in (sqlite.open_readonly, sqlite.open_writable):
            with pytest.raises(apsw.CantOpenError, match=reason), opened(tmp_path / name):
                pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]


def test_a_missing_file_is_made_only_where_that_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(apsw.CantOpenError), sqlite.open_writable(tmp_path / "new"):
        pass
    assert list(tmp_path.iterdir()) == []
    with sqlite.open_writable(tmp_path / "new", create=True) as db:
        db.execute("CREATE TABLE t (x)")
    assert untrusted_sqlite.is_database(tmp_path / "new")


def test_extensions_are_loaded_for_vectors_alone(path: Path) -> None:
    with sqlite.open_readonly(path, vectors=True) as db:
        assert db.execute("SELECT vec_distance_l2(x'0000803f', x'00000040')").get == 1.0
        with pytest.raises(apsw.SQLError, match="not authorized"):
            db.execute("SELECT load_extension('x')")
        with pytest.raises(apsw.SQLError, match="no such table"):
            db.execute("SELECT value FROM vec_each(x'0000803f')")
    with sqlite.open_readonly(path) as db, pytest.raises(apsw.SQLError, match="no such function"):
        db.execute("SELECT vec_distance_l2(x'0000803f', x'00000040')")


def test_rows_are_written_all_or_none(path: Path) -> None:
    with sqlite.open_writable(path) as db:
        with sqlite.transaction(db):
            db.execute("INSERT INTO t VALUES (3, 'three')")
        with pytest.raises(ValueError, match="stop"), sqlite.transaction(db):
            db.execute("INSERT INTO t VALUES (4, 'four')")
            raise ValueError("stop")
        assert not db.in_transaction
        with pytest.raises(ValueError, match="stop"), sqlite.transaction(db):
            db.execute("ROLLBACK")
            raise ValueError("stop")
        assert db.execute("SELECT max(x) FROM t").get == 3


def test_a_second_file_is_attached_for_reading(path: Path, tmp_path: Path) -> None:
    other = made(
        tmp_path / "other.sqlite", "CREATE TABLE o (x)", "INSERT INTO o VALUES (7)", "CREATE VIEW v AS SELECT 1"
    )
    with sqlite.open_scratch() as db, untouched(tmp_path):
        with sqlite.attach_readonly(db, other, "beside"):
            assert db.execute("SELECT x FROM beside.o").get == 7
            with pytest.raises(apsw.ReadOnlyError):
                db.execute("INSERT INTO beside.o VALUES (8)")
            with pytest.raises(apsw.SQLError, match="access to view"):
                db.execute("SELECT * FROM beside.v")
        for error in (ValueError("stop"), None):
            with pytest.raises(ValueError, match="stop"), sqlite.attach_readonly(db, other, "beside"):
                if error is not None:
                    raise error
                db.execute("BEGIN; SELECT * FROM beside.o")
                raise ValueError("stop")
            assert not db.in_transaction
            assert [row[1] for row in db.execute("PRAGMA database_list")] == ["main"]


# --- logs and journals -----------------------------------------------------------------------------------------------


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Leave the last rows of a file in its log."""
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; INSERT INTO child VALUES (5)").fetchall()
        yield


def test_rows_in_a_log_are_read_from_a_copy(path: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with logged(path):
        before = {one.name: one.read_bytes() for one in tmp_path.iterdir() if one.is_file()}
        for options in ({}, {"beside_writers": True}, {"work": work}):
            with sqlite.open_readonly(path, **options) as db:  # type: ignore[arg-type]
                assert db.execute("SELECT x FROM child").get == 5
                assert (work in Path(db.filename).parents) is ("work" in options)
                assert Path(db.filename) != path
        assert {one.name: one.read_bytes() for one in tmp_path.iterdir() if one.is_file()} == before
        assert list(work.iterdir()) == []


def test_a_file_beside_writers_is_read_with_locks(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as writer:
        with sqlite.open_readonly(path, beside_writers=True) as db:
            assert Path(db.filename) == path
            rows = db.execute("SELECT x FROM t")
            assert next(rows) == (1,)
            # It waits for the reader.
            with pytest.raises(apsw.BusyError):
                writer.execute("PRAGMA busy_timeout = 0; INSERT INTO child VALUES (1)").fetchall()
        with sqlite.open_readonly(path) as db:
            rows = db.execute("SELECT x FROM t")
            assert next(rows) == (1,)
            writer.execute("INSERT INTO child VALUES (1)")


def test_a_journal_that_a_killed_writer_left_is_applied_to_a_copy(path: Path, tmp_path: Path) -> None:
    """Also where locks would do without it."""
    journal = path.with_name("file.sqlite-journal")
    with closing(apsw.Connection(str(path))) as db:
        db.execute("BEGIN; UPDATE t SET y = 'changed'")
        db.cache_flush()
        changed, rollback = path.read_bytes(), journal.read_bytes()
        db.execute("ROLLBACK")
    path.write_bytes(changed)
    journal.write_bytes(rollback)
    for beside_writers in (True, False):
        with untouched(tmp_path), sqlite.open_readonly(path, beside_writers=beside_writers) as db:
            assert db.execute("SELECT y FROM t").fetchall() == [("one",), ("two",)]
    assert b"changed" in changed


def test_vectors_need_a_package_that_can_be_loaded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found without importing it, which would take long."""
    package = ModuleType("sqlite_vec")
    package.__spec__ = find_spec("sqlite_vec")
    monkeypatch.setitem(sys.modules, "sqlite_vec", package)
    with sqlite.open_readonly(path, vectors=True) as db:
        assert db.execute("SELECT vec_length(x'0000803f')").get == 1
    for error in (ImportError("no package"), OSError("no library"), apsw.ExtensionLoadingError("no entry")):

        def fail(error: Exception = error) -> str:
            raise error

        monkeypatch.setattr(sqlite, "_find_vector_extension", fail)
        with pytest.raises(VectorExtensionUnusable) as caught, sqlite.open_readonly(path, vectors=True):
            pass
        assert caught.value.facts == {"reason": error}


@pytest.mark.parametrize("number", sorted(durable.NO_ROOM))
def test_a_copy_that_has_no_room_is_not_the_fault_of_the_file(
    number: int, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with logged(path):
        monkeypatch.setattr(durable, "copy_file", full)
        with fails("TemporaryCopyFailed", status=3), sqlite.open_readonly(path):
            pass
        with pytest.raises(TemporaryCopyFailed) as caught, sqlite.open_readonly(path):
            pass
        assert (caught.value.facts["path"], caught.value.facts["reason"]) == (path, os.strerror(number))
        with pytest.raises(OSError, match=os.strerror(number)), sqlite.open_readonly(path, work=tmp_path):
            pass
        number = errno.EIO
        with pytest.raises(OSError, match=os.strerror(errno.EIO)), sqlite.open_readonly(path):
            pass


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (OSError(errno.ENOSPC, ""), True),
        (OSError(errno.EFBIG, ""), True),
        (OSError(errno.EIO, ""), False),
        (ValueError(), False),
        (apsw.FullError(), False),
    ],
)
def test_errors_of_writing(error: Exception, is_one: bool) -> None:
    assert sqlite.is_write_failure(error) is is_one
    if isinstance(error, apsw.Error):
        for code, is_write in (
            (apsw.SQLITE_FULL, True),
            (apsw.SQLITE_IOERR_WRITE, True),
            (apsw.SQLITE_IOERR_READ, False),
        ):
            error.extendedresult = code
            assert sqlite.is_write_failure(error) is is_write


def journal(name: bytes, *, length: int | None = None, magic: bytes = bytes.fromhex("d9d505f920a163d7")) -> bytes:
    return name + struct.pack(">II", len(name) if length is None else length, sum(name)) + magic


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (journal(b"/other"), "/other"),
        (b"pages" + journal(b"/other"), "/other"),
        (b"pages" + journal(b"/other\0\0"), "/other"),
        (b"pages" + journal(b"x" * 65_536), "x" * 65_536),
        (b"pages" + journal(b"x" * 65_537), None),
        (journal(b"/other", length=7), None),
        (journal(b"/other", length=0), None),
        (b"pages" + journal(b"/other", magic=bytes(8)), None),
        (journal(b""), None),
        (journal(b"")[1:], None),
        (b"", None),
    ],
    ids=short,
)
def test_a_journal_names_a_file_at_its_end(tmp_path: Path, raw: bytes, named: str | None) -> None:
    (tmp_path / "journal").write_bytes(raw)
    assert untrusted_sqlite.find_shared_journal(tmp_path / "journal") == named


def test_a_journal_whose_named_file_is_gone_has_no_effect_on_a_copy(path: Path, tmp_path: Path) -> None:
    beside, copy = path.with_name("file.sqlite-journal"), tmp_path / "copy"
    beside.write_bytes(b"pages" + journal(os.fsencode(tmp_path / "gone")))
    assert untrusted_sqlite.copy_companion(beside, copy, "-journal")
    assert not copy.with_name("copy-journal").exists()
    (tmp_path / "gone").touch()
    assert untrusted_sqlite.copy_companion(beside, copy, "-journal")
    assert copy.with_name("copy-journal").read_bytes() == beside.read_bytes()[:-8]
    # A log has no name at its end.
    assert untrusted_sqlite.copy_companion(beside, copy, "-wal")
    assert copy.with_name("copy-wal").read_bytes() == beside.read_bytes()
    for suffix in ("-wal", "-journal"):
        assert not untrusted_sqlite.copy_companion(tmp_path / "missing", copy, suffix)


# --- bytes of a file -------------------------------------------------------------------------------------------------


def header(page: int, pages: int, *, counter: int = 5, valid_for: int = 5) -> bytes:
    raw = bytearray(100)
    raw[:16] = b"SQLite format 3\0"
    struct.pack_into(">H", raw, 16, page)
    struct.pack_into(">2L", raw, 24, counter, pages)
    struct.pack_into(">L", raw, 92, valid_for)
    return bytes(raw)


@pytest.mark.parametrize(
    ("head", "size", "missing"),
    [
        (header(4096, 3), 3 * 4096, 0),
        (header(4096, 3), 4 * 4096, 0),
        (header(4096, 3), 3 * 4096 - 1, 1),
        (header(4096, 3), 100, 3 * 4096 - 100),
        (header(4096, 3), 3 * 4096 + 1, 4095),
        (header(4096, 3, valid_for=4), 2 * 4096, 0),
        (header(4096, 3, valid_for=4), 2 * 4096 - 1, 1),
        # 65,536 does not fit into its field.
        (header(1, 1), 65_536, 0),
        (header(1, 2), 65_536, 65_536),
        (header(512, 1), 511, 1),
        (header(32_768, 1), 32_767, 1),
        *((header(page, 9), 511, 0) for page in (0, 2, 256, 1000, 65_535)),
        (header(4096, 3)[:99], 99, 0),
        (b"x" + header(4096, 3)[1:], 100, 0),
    ],
    ids=short,
)
def test_the_bytes_that_a_file_lacks_are_counted(tmp_path: Path, head: bytes, size: int, missing: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(head + bytes(size - len(head)))
    assert untrusted_sqlite.count_missing_bytes(path) == missing


@posix
def test_the_first_bytes_of_what_is_no_file_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    os.mkfifo(tmp_path / "pipe")
    assert untrusted_sqlite.read_start(tmp_path / "file") == b"01234567"
    assert untrusted_sqlite.read_start(tmp_path / "file", 20) == b"0123456789"
    for name in ("missing", "pipe", "a\0b", ""):
        assert untrusted_sqlite.read_start(tmp_path / name) == b""
    for number, is_raised in ((errno.EACCES, False), (errno.EIO, True)):

        def fail(*_: object, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(Path, "open", fail)
        if is_raised:
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                untrusted_sqlite.read_start(tmp_path / "file")
        else:
            assert untrusted_sqlite.read_start(tmp_path / "file") == b""


def test_a_database_is_known_by_its_first_bytes(path: Path, tmp_path: Path) -> None:
    status = path.stat()
    assert untrusted_sqlite.database_mark(path) == (status.st_size, status.st_mtime_ns)
    (tmp_path / "text").write_bytes(b"SQLite format 4\0")
    for name in ("text", "missing"):
        assert untrusted_sqlite.database_mark(tmp_path / name) is None
    wal, other_wal = bytes.fromhex("377f0682"), bytes.fromhex("377f0683")
    start = bytes.fromhex("d9d505f920a163d7")
    assert untrusted_sqlite.is_companion(wal, "-wal")
    assert untrusted_sqlite.is_companion(other_wal + b"more", "-wal")
    assert untrusted_sqlite.is_companion(start + b"more", "-journal")
    assert not any(untrusted_sqlite.is_companion(wal, one) for one in ("-journal",))
    assert not any(untrusted_sqlite.is_companion(one, "-wal") for one in (start, wal[:3], b""))
    assert not any(untrusted_sqlite.is_companion(one, "-journal") for one in (start[:7], b"", bytes(512)))


def test_the_state_of_a_file_tells_writes_to_it_and_beside_it(path: Path, tmp_path: Path) -> None:
    status = path.stat()
    whole = (status.st_size, status.st_mtime_ns, status.st_ino, path.read_bytes()[:100])
    assert sqlite.read_file_state(path) == (whole, (), ())
    path.with_name("file.sqlite-shm").write_bytes(b"x")
    path.with_name("file.sqlite-journal").mkdir()
    assert sqlite.read_file_state(path) == (whole, (), ())
    log = path.with_name("file.sqlite-wal")
    log.write_bytes(b"x" * 200)
    status = log.stat()
    assert sqlite.read_file_state(path) == (whole, (200, status.st_mtime_ns, status.st_ino, b"x" * 100), ())
    assert sqlite.read_file_state(tmp_path / "missing") == ((), (), ())


@posix
@pytest.mark.parametrize(
    ("data", "size"), [(1 << 12, 1 << 12), (1 << 21, 1 << 40), (1 << 24, 1 << 40), (1 << 25, 1 << 25)]
)
def test_no_value_is_much_longer_than_its_file(tmp_path: Path, data: int, size: int) -> None:
    """A file with holes counts for what it uses."""
    file = tmp_path / "file"
    with file.open("wb") as made:
        made.write(b"x" * data)
        made.truncate(size)
    used = min(size, 16 * 512 * file.stat().st_blocks)
    if size > data and used == size:
        pytest.skip("this file system makes no holes")
    with sqlite.open_scratch() as db:
        untrusted_sqlite.limit_value_length(db, [file, file])
        assert db.limit(apsw.SQLITE_LIMIT_LENGTH) == min(10**9, max(64 << 20, 4 * 2 * used))
        untrusted_sqlite.limit_value_length(db, [tmp_path / "missing"])
        assert db.limit(apsw.SQLITE_LIMIT_LENGTH) == min(10**9, max(64 << 20, 4 * 2 * used))


# --- schemas and rows ------------------------------------------------------------------------------------------------


def test_a_file_of_ones_own_has_the_tables_and_values_that_are_expected(tmp_path: Path) -> None:
    tables = ["CREATE TABLE IF NOT EXISTS a (x INTEGER PRIMARY KEY,\n  y TEXT UNIQUE)", "CREATE TABLE b (z)"]
    invalid = {"a": "typeof(y) <> 'text'", "b": "z < 0"}
    with sqlite.open_scratch() as db:
        assert not sqlite.has_own_content(db, tables, invalid)
        db.execute("CREATE TABLE b (z)")
        with pytest.raises(apsw.FormatError, match="its schema is not the one that regraft writes"):
            sqlite.has_own_content(db, tables, invalid)
        db.execute("CREATE TABLE a (x INTEGER PRIMARY KEY, y TEXT UNIQUE)")
        db.execute("INSERT INTO a VALUES (1, 'one'); INSERT INTO b VALUES (0)")
        assert sqlite.has_own_content(db, tables, invalid)
        db.execute("INSERT INTO b VALUES (-1)")
        with pytest.raises(apsw.FormatError, match="it has values of unexpected types"):
            sqlite.has_own_content(db, tables, invalid)
        db.execute("DELETE FROM b; CREATE INDEX i ON b (z)")
        with pytest.raises(apsw.FormatError, match="its schema"):
            sqlite.has_own_content(db, tables, invalid)


def test_rows_are_read_and_compared_though_their_text_is_not_utf8(tmp_path: Path) -> None:
    path = made(
        tmp_path / "file",
        'CREATE TABLE t ("a ""b""", y)',
        "INSERT INTO t VALUES (CAST(x'61ff62' AS TEXT), x'00ff'), (7, NULL), (1.5, 'text')",
    )
    with sqlite.open_readonly(path) as db:
        columns = ['a "b"', "y"]
        rows = list(untrusted_sqlite.read_lenient_rows(db, columns, "t WHERE rowid < ? ORDER BY rowid", (9,)))
        assert rows == [("a\ufffdb", b"\x00\xff"), (7, None), (1.5, "text")]
        raw = list(untrusted_sqlite.read_lenient_rows(db, columns[:1], "t", (), decode=bytes.hex))
        assert raw == [("61ff62",), (7,), (1.5,)]
        condition = untrusted_sqlite.unchanged_condition(db, columns)
        found = [db.execute(f"SELECT rowid FROM t WHERE {condition}", row).fetchall() for row in rows]
        assert found == [[(1,)], [(2,)], [(3,)]]
        assert db.execute(f"SELECT rowid FROM t WHERE {condition}", ("a\ufffdb", b"\x00\xfe")).fetchall() == []


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        ("CREATE UNIQUE INDEX i ON t (y)", "i"),
        ("CREATE INDEX i ON t (y) WHERE y > 1", "i"),
        ("CREATE INDEX i ON t (abs(y))", "i"),
        ("CREATE INDEX i ON t (z, abs(y))", "i"),
        ("CREATE INDEX i ON t (y)", None),
        ("CREATE UNIQUE INDEX i ON other (y)", None),
    ],
)
def test_an_index_that_may_refuse_a_row(tmp_path: Path, statement: str, index: str | None) -> None:
    path = made(tmp_path / "file", "CREATE TABLE t (x TEXT PRIMARY KEY, y, z); CREATE TABLE other (y)", statement)
    with sqlite.open_readonly(path) as db:
        if index is None:
            untrusted_sqlite.refuse_restrictive_indexes(db, path, "t")
        else:
            with pytest.raises(RowsMayBeRefused) as caught:
                untrusted_sqlite.refuse_restrictive_indexes(db, path, "t")
            assert caught.value.facts == {"path": path, "index": "i", "table": "t"}


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("CREATE TABLE c (x REFERENCES t (x) ON DELETE CASCADE)", "the key c (x) → t"),
        ("CREATE TABLE c (x REFERENCES t (x) ON UPDATE SET NULL)", "the key c (x) → t"),
        ("CREATE TABLE c (x, y, FOREIGN KEY (x, y) REFERENCES T (x, z) ON UPDATE CASCADE)", "the key c (x, y) → T"),
        ("CREATE TABLE c (x REFERENCES t (x) ON DELETE RESTRICT ON UPDATE NO ACTION)", None),
        ("CREATE TABLE c (x REFERENCES other (x) ON DELETE CASCADE)", None),
        ("CREATE TABLE c (x UNIQUE ON CONFLICT REPLACE)", "c has a conflict clause"),
        ("CREATE TABLE c (x /* ON CONFLICT REPLACE */)", None),
        ("CREATE TABLE c (x, y AS (x + 1))", "column y of c is generated"),
        ("CREATE TABLE c (x, RowID)", "column RowID of c hides the row numbers"),
        ("CREATE TABLE c (x, oid)", "column oid of c hides the row numbers"),
        ("CREATE VIRTUAL TABLE c USING fts5 (x)", "c is a virtual table"),
        ("CREATE TABLE d (x UNIQUE ON CONFLICT REPLACE)", None),
    ],
)
def test_a_definition_that_would_change_other_rows(tmp_path: Path, statement: str, what: str | None) -> None:
    path = made(
        tmp_path / "file", "CREATE TABLE t (x PRIMARY KEY, z, UNIQUE (x, z)); CREATE TABLE other (x)", statement
    )
    with sqlite.open_readonly(path) as db:
        if what is None:
            untrusted_sqlite.refuse_foreign_rules(db, path, ["T", "C"])
        else:
            with pytest.raises(SchemaForeign) as caught:
                untrusted_sqlite.refuse_foreign_rules(db, path, ["T", "C"])
            assert caught.value.facts == {"path": path, "what": what}


def test_a_column_in_the_place_of_the_row_number_is_found(tmp_path: Path) -> None:
    path = made(tmp_path / "file", "CREATE TABLE a (x); CREATE TABLE b (x, _RowID_); CREATE TABLE c (oid)")
    with sqlite.open_readonly(path) as db:
        assert untrusted_sqlite.find_rowid_column(db, ["a", "b", "c"]) == "b._RowID_"
        assert untrusted_sqlite.find_rowid_column(db, ["c"]) == "c.oid"
        assert untrusted_sqlite.find_rowid_column(db, ["a", "missing"]) is None


def test_an_index_on_a_part_of_a_full_text_index_is_refused(tmp_path: Path) -> None:
    path = made(
        tmp_path / "file",
        "CREATE VIRTUAL TABLE Words USING fts5 (x); CREATE TABLE t (x); CREATE TABLE words_notes (x)",
        "CREATE INDEX mine ON t (x); CREATE INDEX notes ON words_notes (x)",
    )
    with sqlite.open_readonly(path) as db:
        untrusted_sqlite.refuse_shadow_indexes(db)
        assert untrusted_sqlite.full_text_shadow_indexes(db) == []
    made(path, "CREATE INDEX theirs ON Words_content (c0)")
    with sqlite.open_readonly(path) as db:
        assert untrusted_sqlite.full_text_shadow_indexes(db) == ["theirs"]
        with pytest.raises(SchemaForeign) as caught:
            untrusted_sqlite.refuse_shadow_indexes(db)
        assert str(caught.value.facts["what"]) == "theirs is an index on a table of the full-text index"
        assert caught.value.facts["path"] == path


@pytest.mark.parametrize("other", ["keyed", "plain"])
def test_only_the_rows_of_the_tables_that_are_meant_change(tmp_path: Path, other: str) -> None:
    path = made(
        tmp_path / "file",
        "CREATE TABLE t (x PRIMARY KEY); CREATE TABLE keyed (x PRIMARY KEY); CREATE TABLE plain (x)",
        "INSERT INTO t VALUES (1); INSERT INTO keyed VALUES (1); INSERT INTO plain VALUES (1)",
        "CREATE VIRTUAL TABLE words USING fts5 (x)",
    )
    with sqlite.open_writable(path) as db:
        db.execute("CREATE TEMP TABLE own (x)")
        with sqlite.transaction(db), untrusted_sqlite.change_only(db, path, ["T"]):
            db.execute("UPDATE t SET x = 2; INSERT INTO t VALUES (3); INSERT INTO own VALUES (1)")
            db.execute("INSERT INTO words VALUES ('word')")
        for change in (f"UPDATE {other} SET x = 9", f"DELETE FROM {other}", f"INSERT INTO {other} VALUES (5)"):
            with (
                pytest.raises(OtherRowsChanged) as caught,
                sqlite.transaction(db),
                untrusted_sqlite.change_only(db, path, ["t"]),
            ):
                db.execute(change)
            assert caught.value.facts["path"] == path
            # A table that is emptied as a whole tells no rows.
            assert caught.value.facts["tables"] in (other, "other tables")
        # What is changed later is no matter of it.
        db.execute(f"DELETE FROM {other}")
        assert db.execute("SELECT x FROM t ORDER BY x").fetchall() == [(2,), (3,)]


# --- commands that only read -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """What a store is made of, a statement that changes one of its databases, and the commands that read it."""

    make: Callable[[Path], Path]
    changed: str
    statement: str
    commands: tuple[str, ...]


SOURCES = {
    "Chroma": Source(
        lambda folder: chroma_store.extract("1.5", folder).root,
        "chroma.sqlite3",
        "UPDATE collections SET name = 'only in the log' WHERE name = 'single'",
        ("inspect", "check", "search", "certify", "migrate"),
    ),
    "a library": Source(
        planted_v2.library,
        "catalog.sqlite",
        "UPDATE knowledge_base SET name = 'only in the log'",
        ("inspect", "check", "search", "certify"),
    ),
    "codex-mem": Source(
        codex_mem_store.write,
        database.FILE,
        "UPDATE memory_items SET content = 'only in the log'",
        ("inspect", "check", "search", "certify"),
    ),
}


@contextmanager
def in_wal_mode(name: str, state: str, folder: Path) -> Iterator[Path]:
    """Make a store whose databases are in WAL mode, as a program leaves them that runs, was killed, or has ended."""
    source = SOURCES[name]
    made = source.make(folder / "made")
    root = made if made.is_dir() else made.parent
    with ExitStack() as opened:
        for path in sorted(root.rglob("*")):
            if ".regraft" not in path.parts and path.is_file() and untrusted_sqlite.is_database(path):
                db = opened.enter_context(closing(apsw.Connection(str(path))))
                db.execute("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0").fetchall()
                db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
                if path.name == source.changed:
                    db.execute(source.statement).fetchall()
        if state == "ended":
            opened.close()
        copy = Path(shutil.copytree(root, folder / "copy"))
        if state == "killed":
            for path in copy.rglob("*-shm"):
                path.unlink()
        if state == "running":
            copy = root
        yield copy if made.is_dir() else copy / made.name


@pytest.mark.parametrize("state", ["running", "killed", "ended"])
@pytest.mark.parametrize("name", SOURCES)
def test_commands_that_read_leave_a_source_in_wal_mode_as_it_is(name: str, state: str, tmp_path: Path) -> None:
    """A usual read-only connection would create the log and its index, or remove them."""
    options: dict[str, tuple[object, ...]] = {
        "search": ("only in the log", "--mode", "bm25"),
        "certify": ("--sample", 5),
        "migrate": ("--to", tmp_path / "out", "--map-model", "x=y::z"),
    }
    with in_wal_mode(name, state, tmp_path) as path:
        logs = [file for file in sorted(path.parent.rglob("*-wal")) if file.stat().st_size]
        assert bool(logs) == (state != "ended")
        shown = ""
        for command in SOURCES[name].commands:
            with untouched(path.parent if path.is_file() else path):
                done = run(command, path, *options.get(command, ()), "--json")
            assert done.status in (0, 1), (command, done.stderr)
            shown += done.stdout.replace('"query": "only in the log"', "")
        assert "only in the log" in shown
