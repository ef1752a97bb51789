"""Files and folders that are replaced, put back, and recognized by fingerprints."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest
from faults import STOPPED, fails, posix

from regraft.disk import durable, sqlite, writable
from repair.changes import files


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with writable.allow_writes(tmp_path):
        yield tmp_path


def database(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements or ("CREATE TABLE t (id INTEGER PRIMARY KEY, x)", "INSERT INTO t VALUES (1, 'a')"):
            db.execute(statement)
    return path


def tree(folder: Path) -> dict[str, str | None]:
    """Return what every file holds; None for a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf-8") if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


# --- copies ----------------------------------------------------------------------------------------------------------


def test_a_backup_is_a_copy_that_was_verified_and_is_on_the_disk(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, new = database(place / "a"), place / "deep" / "copy"
    flushed: list[Path] = []
    for name in ("sync_file", "sync_folder"):
        monkeypatch.setattr(durable, name, flushed.append)
    with closing(apsw.Connection(str(path))) as db:
        db.execute("BEGIN IMMEDIATE")
        files.back_up_database(path, new)
        db.execute("COMMIT")
    # The folder that was made for it, the copy, and its name.
    assert flushed == [place, new, new.parent]
    # All but the change counter of the header, which a copy begins anew.
    assert (new.read_bytes()[:24], new.read_bytes()[100:]) == (path.read_bytes()[:24], path.read_bytes()[100:])


@pytest.mark.parametrize(("damage", "said"), [("a page less", "pages are missing"), ("noise", "")])
def test_a_backup_that_is_not_whole_is_refused(
    damage: str, said: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = database(place / "a", "CREATE TABLE t (x)", "CREATE TABLE u (x)", "INSERT INTO t VALUES (zeroblob(9000))")
    real = files._copy_pages

    def spoiled(source: apsw.Connection, new: Path) -> None:
        real(source, new)
        if damage == "a page less":
            database(new, "DROP TABLE u")
            with closing(sqlite3.connect(new)) as db:
                db.execute("VACUUM")
        else:
            raw = bytearray(new.read_bytes())
            raw[4096:4200] = b"\xa5" * 104
            new.write_bytes(raw)

    monkeypatch.setattr(files, "_copy_pages", spoiled)
    with fails("CopyDiffers", STOPPED, match=f"copy.*{said}"):
        files.back_up_database(path, place / "copy")


def test_damage_is_told_and_broken_rules_are_not(place: Path) -> None:
    path = database(place / "a", "CREATE TABLE t (id INTEGER PRIMARY KEY, x CHECK (x > 0))", "CREATE INDEX i ON t (x)")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute("INSERT INTO t VALUES (1, -1)")
    with sqlite.open_readonly(path) as db:
        assert (files.find_damage(db), files.find_table_damage(db)) == (None, None)
    raw = bytearray(path.read_bytes())
    raw[4096:4200] = b"\xa5" * 104
    path.write_bytes(raw)
    with sqlite.open_readonly(path) as db:
        assert "btreeInitPage() returns error code 11" in str(files.find_damage(db))
        assert "btreeInitPage() returns error code 11" in str(files.find_table_damage(db))


def test_damage_of_words_is_none_of_an_index(place: Path) -> None:
    """Full-text tables are written again from the others."""
    path = database(place / "a", "CREATE TABLE t (x)", "CREATE VIRTUAL TABLE w USING fts5 (x)")
    database(path, "INSERT INTO w VALUES ('one')", "CREATE TABLE wide (x)", "INSERT INTO wide VALUES (1)")
    with closing(sqlite3.connect(path)) as db:
        [(page,)] = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'w_content'")
        [(size,)] = db.execute("PRAGMA page_size")
    raw = bytearray(path.read_bytes())
    raw[(page - 1) * size : page * size] = bytes(size)
    path.write_bytes(raw)
    with sqlite.open_readonly(path) as db:
        assert files.find_table_damage(db) is None
        assert files.find_damage(db) is not None


# --- fingerprints ----------------------------------------------------------------------------------------------------


def test_rows_are_recognized_however_they_are_stored(place: Path) -> None:
    path = database(place / "a")
    mark = files.fingerprint(path)
    database(path, "INSERT INTO t VALUES (2, 'b')", "DELETE FROM t WHERE id = 2")
    with closing(sqlite3.connect(path)) as db:
        db.execute("VACUUM")
        db.execute("PRAGMA journal_mode = WAL")
    assert not files.is_changed(path, mark)
    database(path, "CREATE VIRTUAL TABLE w USING fts5 (x)", "INSERT INTO w VALUES ('one')", "ANALYZE")
    database(path, "CREATE TABLE acquire_write (id INTEGER PRIMARY KEY)", "INSERT INTO acquire_write VALUES (7)")
    assert not files.is_changed(path, mark)
    for statement in ("UPDATE t SET x = 1", "UPDATE t SET x = '1'", "UPDATE t SET x = CAST('1' AS BLOB)"):
        database(path, statement)
        assert files.is_changed(path, mark)
        mark = files.fingerprint(path)
    database(path, "CREATE TABLE u AS SELECT * FROM t", "DELETE FROM t")
    assert files.is_changed(path, mark)


def test_counters_do_not_count_in_fingerprints_of_this_version(place: Path) -> None:
    path = database(place / "a")
    database(path, "CREATE TABLE note_short_id_seq (id INTEGER PRIMARY KEY, next_id)")
    database(path, "INSERT INTO note_short_id_seq VALUES (1, 5)")
    mark, earlier = files.fingerprint(path), files._file_fingerprint(path, without=frozenset())
    assert mark != earlier
    for known in (mark, earlier):
        assert not files.is_changed(path, known)
    database(path, "UPDATE note_short_id_seq SET next_id = 6")
    assert not files.is_changed(path, mark)
    assert files.is_changed(path, earlier)


def test_fingerprints_that_earlier_versions_stored_stay_comparable(place: Path) -> None:
    """A ledger holds them: with another digest, no earlier run could be undone."""
    path = database(place / "a.db", "CREATE TABLE t (id INTEGER PRIMARY KEY, x)", "CREATE TABLE u (y, fts_rowid)")
    database(path, "INSERT INTO t VALUES (1, 'a'), (2, NULL), (3, 0.5)", "INSERT INTO u VALUES (x'ff', 9)")
    assert files.fingerprint(path) == "rows 5f4c772f5a0bea271807cc94fa051b3c"
    database(path, "UPDATE u SET fts_rowid = 10")
    assert files.fingerprint(path) == "rows 5f4c772f5a0bea271807cc94fa051b3c"
    (place / "folder" / "deep").mkdir(parents=True)
    shutil.copyfile(path, place / "folder" / "b")
    (place / "folder" / "deep" / "a").write_text("a")
    assert files.fingerprint(place / "folder") == "58100cfb3b8b8cd3a40048ef991a7203457294e423f3fc4cd5ce32c52b0fd6ba"
    (place / "folder" / "b").write_text("b")
    assert (
        files.bytes_fingerprint(place / "folder")
        == "bytes a613071687ea32fb7c9cd1e8f0242dea01d25f88f7c3af45c17ff9c172731c0b"
    )


def test_a_mark_of_rows_is_none_of_a_folder_or_of_nothing(place: Path) -> None:
    mark = files.fingerprint(database(place / "a"))
    (place / "folder").mkdir()
    assert files.is_changed(place / "folder", mark)
    assert files.is_changed(place / "missing", mark)
    assert not files.is_changed(place / "missing", None)
    assert files.is_changed(place / "a", None)


def test_a_database_that_cannot_be_read_is_known_by_its_bytes(place: Path) -> None:
    path = place / "a"
    path.write_bytes(b"SQLite format 3\0" + b"\xa5" * 4096)
    assert files.fingerprint(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(b"x")
    assert files.fingerprint(path) == hashlib.sha256(b"x").hexdigest()
    assert files.fingerprint(place / "missing") is None
    assert files.bytes_fingerprint(place / "missing") is None


@pytest.mark.parametrize("fingerprint", [files.fingerprint, files.bytes_fingerprint])
def test_a_folder_is_known_by_all_that_is_in_it(fingerprint: object, place: Path) -> None:
    folder = place / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a").write_text("a")
    database(folder / "b")

    def mark() -> object:
        return fingerprint(folder)  # type: ignore[operator]

    first = mark()
    # Logs belong to a database.
    (folder / "deep" / "c-wal").write_text("x")
    assert mark() == first
    (folder / "deep" / "a").write_text("another")
    second = mark()
    (folder / "deep" / "a").rename(folder / "a")
    third = mark()
    database(folder / "b", "INSERT INTO t VALUES (3, 'c')")
    assert len({first, second, third, mark()}) == 4


def test_a_read_only_file_is_read_only_after_it_was_replaced_and_taken_back(place: Path) -> None:
    (place / "file").write_text("old")
    (place / "file").chmod(0o444)
    (place / "new").write_text("new")
    files.swap(place / "file", place / "new", place / "kept")
    assert ((place / "file").read_text(), (place / "kept").read_text()) == ("new", "old")
    files.swap_back(place / "file", place / "kept", place / "parked")
    assert (place / "file").read_text() == "old"
    assert not (place / "file").stat().st_mode & stat.S_IWUSR


@posix
def test_links_and_pipes_are_known_by_what_they_are(place: Path) -> None:
    (place / "file").write_text("x")
    (place / "folder").mkdir()
    for target in ("file", "folder", "nowhere"):
        link = place / f"to-{target}"
        link.symlink_to(target)
        assert files.fingerprint(link) == f"link {target}"
        assert files.bytes_fingerprint(link) == f"bytes link {target}"
        assert files.size_on_disk(link) == link.lstat().st_size
    os.mkfifo(place / "pipe")
    assert files.fingerprint(place / "pipe") == "no file 10000"
    # A link in a folder is a part of it, and what it leads to is not.
    folder = place / "outer"
    folder.mkdir()
    (folder / "link").symlink_to("../folder")
    mark = files.fingerprint(folder)
    (place / "folder" / "new").write_text("x")
    assert files.fingerprint(folder) == mark
    assert files.size_on_disk(folder) == (folder / "link").lstat().st_size
    (folder / "link").unlink()
    assert files.fingerprint(folder) != mark


def test_bytes_are_known_without_what_opening_a_database_changes(place: Path) -> None:
    path = database(place / "a")
    mark = files.bytes_fingerprint(path)
    exact = files.FileDigest.of(path).exact
    raw = bytearray(path.read_bytes())
    assert exact == f"{bytes(raw[:100]).hex()} {hashlib.sha256(raw[100:]).hexdigest()}"
    for at in (18, 19, *range(24, 28), *range(92, 100)):
        raw[at] ^= 0xFF
    path.write_bytes(raw)
    assert not files.is_changed(path, mark)
    assert files.FileDigest.of(path).exact != exact
    for at in (17, 20, 23, 28, 91, 100):
        changed = bytearray(raw)
        changed[at] ^= 0xFF
        path.write_bytes(changed)
        assert files.is_changed(path, mark), at
    # Another kind of file has no such header, nor has one that is too short.
    for content in (b"x" * 200, b"SQLite format 3\0" + b"y" * 83):
        path.write_bytes(content)
        mark = files.bytes_fingerprint(path)
        path.write_bytes(content[:18] + b"z" + content[19:])
        assert files.is_changed(path, mark)


def test_a_log_is_a_part_of_the_bytes_of_a_database(place: Path) -> None:
    path = database(place / "a")
    mark = files.bytes_fingerprint(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("UPDATE t SET x = 'in the log'")
        db.commit()
        copy = shutil.copytree(place, place.with_name(f"{place.name} copy"))
    found = files.bytes_fingerprint(copy / "a")
    assert found != mark
    assert (copy / "a-wal").exists()
    database(copy / "a", "SELECT 1 FROM t")
    assert not (copy / "a-wal").exists()
    assert files.bytes_fingerprint(copy / "a") == found


def test_a_stamp_tells_of_a_later_write(place: Path) -> None:
    path = place / "a"
    assert files.file_stamp(path) is None
    path.write_text("one")
    status = path.stat()
    assert files.file_stamp(path) == (status.st_ino, 3, status.st_mtime_ns)


# --- logs ------------------------------------------------------------------------------------------------------------


def test_the_logs_of_all_databases_are_written_back(place: Path) -> None:
    (place / "deep").mkdir()
    paths = [database(place / "deep" / "b"), database(place / "a")]
    (place / "text").write_text("x")
    assert files.find_databases(place) == [place / "a", place / "deep" / "b"]
    assert files.find_databases(place / "a") == [place / "a"]
    assert files.find_databases(place / "text") == []
    assert files.find_databases(place / "missing") == []
    for path in paths:
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("UPDATE t SET x = 'in the log'")
            db.commit()
            shutil.copyfile(f"{path}-wal", path.with_name("kept"))
            shutil.copyfile(path, path.with_name("main"))
        shutil.copyfile(path.with_name("main"), path)
        path.with_name("kept").rename(f"{path}-wal")
    files.flush_logs(place)
    for path in paths:
        assert not path.with_name(f"{path.name}-wal").exists()
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT x FROM t").fetchall() == [("in the log",)]


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_a_database_that_is_read_is_in_use(mode: str, place: Path) -> None:
    path = database(place / "a")
    with closing(apsw.Connection(str(path))) as db:
        db.execute(f"PRAGMA journal_mode = {mode}")
        db.execute("BEGIN")
        db.execute("SELECT * FROM t").fetchall()
        reading = db.execute("SELECT * FROM t")
        with fails("StoreBusy", match="a"):
            files.flush_log(path)
        del reading
        db.execute("ROLLBACK")
    files.flush_log(path)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (apsw.BusyError("busy"), "StoreBusy"),
        (apsw.ReadOnlyError("attempt to write a readonly database"), "StoreNotWritable"),
        (apsw.CantOpenError("unable to open database file"), "StoreNotWritable"),
        (apsw.PermissionsError("access permission denied"), "StoreNotWritable"),
    ],
)
def test_a_database_whose_log_cannot_be_written_back_is_refused(
    error: Exception, raised: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise error

    path = database(place / "a")
    monkeypatch.setattr(sqlite, "open_writable", refuse)
    with fails(raised, match="a"):
        files.flush_log(path)
    # SQLite opens a file that it may not write to for reading.
    monkeypatch.setattr(sqlite, "open_writable", lambda _: nullcontext(SimpleNamespace(readonly=lambda _: True)))
    with fails("StoreNotWritable", match="it is read-only"):
        files.flush_log(path)


@pytest.mark.parametrize("error", [apsw.NotADBError("file is not a database"), apsw.CorruptError("malformed")])
def test_a_damaged_database_is_left_unless_it_has_a_log(
    error: Exception, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise error

    path = database(place / "a")
    monkeypatch.setattr(sqlite, "open_writable", refuse)
    files.flush_log(path)
    (place / "a-journal").write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(508))
    with fails("StoreNotWritable", match=f"its write-ahead log cannot be checkpointed: {error}"):
        files.flush_log(path)


# --- moves -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("links", [True, False], ids=["with hard links", "without"])
@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_swap_keeps_what_was_there_and_goes_back(
    what: str, links: bool, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(durable, "try_link", lambda *_: False)
    final, new, kept, parked = (place / name for name in ("final", "w/new", "undo/kept", "work/parked"))
    new.parent.mkdir()
    for path, text in ((final, "old"), (new, "new")):
        if what == "folder":
            path.mkdir()
        (path / "a" if what == "folder" else path).write_text(text, "utf-8")
    files.swap(final, new, kept)
    inside = "/a" if what == "folder" else ""
    assert (place / f"final{inside}").read_text("utf-8") == "new"
    assert (place / f"undo/kept{inside}").read_text("utf-8") == "old"
    assert not new.exists()
    files.swap_back(final, kept, parked)
    assert (place / f"final{inside}").read_text("utf-8") == "old"
    assert (place / f"work/parked{inside}").read_text("utf-8") == "new"
    assert not kept.exists()


def test_what_was_there_has_its_second_name_on_the_disk_before_it_is_replaced(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("final", "new"):
        (place / name).write_text(name, "utf-8")
    seen: list[Path] = []
    monkeypatch.setattr(durable, "sync_folder", seen.append)
    real = durable.replace
    monkeypatch.setattr(durable, "replace", lambda *paths: (seen.append(paths[0]), real(*paths))[1])
    files.swap(place / "final", place / "new", place / "kept" / "old")
    # The folder that is made for it, its name in that folder, and then the move, which flushes both of its folders.
    assert seen == [place, place / "kept", place / "new", place]
    assert ((place / "final").read_text("utf-8"), (place / "kept" / "old").read_text("utf-8")) == ("new", "final")


def test_what_is_new_goes_back_to_nothing_and_what_is_gone_comes_back(place: Path) -> None:
    (place / "new").write_text("new")
    files.swap(place / "deep" / "final", place / "new", place / "undo" / "kept")
    assert tree(place) == {"deep": None, "deep/final": "new"}
    files.swap_back(place / "deep" / "final", None, place / "work" / "parked")
    assert tree(place) == {"deep": None, "work": None, "work/parked": "new"}
    (place / "old").write_text("old")
    files.swap(place / "old", None, place / "undo" / "kept")
    assert not (place / "old").exists()
    files.swap_back(place / "elsewhere" / "old", place / "undo" / "kept", place / "work" / "none")
    assert (place / "elsewhere" / "old").read_text("utf-8") == "old"


@pytest.mark.parametrize(("number", "raised"), [(errno.EXDEV, "StoreOnTwoDisks"), (errno.EIO, None)])
def test_a_move_to_another_disk_is_named(
    number: int, raised: str | None, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Path) -> None:
        raise OSError(number, os.strerror(number))

    (place / "final").write_text("old")
    monkeypatch.setattr(durable, "replace", refuse)
    if raised is not None:
        with fails(raised, match="final"):
            files.swap(place / "final", None, place / "kept")
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            files.swap(place / "final", None, place / "kept")
    assert (place / "final").read_text("utf-8") == "old"


def test_empty_folders_are_removed_up_to_one(place: Path) -> None:
    (place / "a" / "b" / "c").mkdir(parents=True)
    files.remove_empty_folders(place / "a" / "b" / "c" / "missing", place / "a")
    assert tree(place) == {"a": None}
    (place / "a" / "b" / "c").mkdir(parents=True)
    (place / "a" / "file").write_text("x")
    files.remove_empty_folders(place / "a" / "b" / "c", place)
    assert tree(place) == {"a": None, "a/file": "x"}
    (place / "empty").mkdir()
    files.remove_empty_folders(place / "empty", place / "a")
    assert (place / "empty").exists()
    (place / "empty").rmdir()
    files.remove_empty_folders(place / "a", place / "a")
    assert tree(place) == {"a": None, "a/file": "x"}


def test_sizes(place: Path) -> None:
    (place / "a").write_bytes(bytes(5))
    (place / "deep" / "er").mkdir(parents=True)
    (place / "deep" / "er" / "b").write_bytes(bytes(7))
    (place / "deep" / "c").write_bytes(bytes(11))
    assert [files.size_on_disk(place / name) for name in ("a", "deep", "missing")] == [5, 18, 0]


def test_a_database_is_deleted_with_its_journals_and_its_empty_folder(place: Path) -> None:
    (place / "a" / "b").mkdir(parents=True)
    for name in ("one.db", "one.db-wal", "one.db-shm", "one.db-journal", "one.db2"):
        (place / "a" / "b" / name).write_text("x")
    files.delete_database(place / "a" / "b" / "one.db")
    assert tree(place) == {"a": None, "a/b": None, "a/b/one.db2": "x"}
    files.delete_database(place / "a" / "b" / "one.db2")
    assert tree(place) == {"a": None}
