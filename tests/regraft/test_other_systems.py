"""What differs on Windows and macOS, one function at a time; whole commands: ``test_imitated_windows.py``."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import sys
import threading
from multiprocessing import Pipe
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pytest
from faults import posix

from migrators.pipeline import preflight
from regraft import identity
from regraft.cli import output
from regraft.disk import durable, file_paths, links, lock_files, sqlite, untrusted_sqlite, writable
from regraft.errors import TargetOverlapsSource
from regraft.fleet import manifest
from regraft.formats.cherry_v1 import profile
from regraft.processes import pool, startup

pytestmark = posix


@pytest.fixture
def by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act by whole paths, as where the system knows no folders by handle."""
    monkeypatch.setattr(writable, "SUPPORTS_DIR_FD", False)


# --- SQLite's addresses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "address"),
    [
        (PureWindowsPath(r"C:\Users\Mei\a b.sqlite"), "file:///C:/Users/Mei/a%20b.sqlite?mode=ro"),
        (PureWindowsPath(r"\\nas\share\lib\catalog.sqlite"), "file:////nas/share/lib/catalog.sqlite?mode=ro"),
        (
            PureWindowsPath(r"\\nas\share 1\50% off#1?.sqlite"),
            "file:////nas/share%201/50%25%20off%231%3F.sqlite?mode=ro",
        ),
        (PureWindowsPath(r"\\?\C:\lib\catalog.sqlite"), "file:////%3F/C:/lib/catalog.sqlite?mode=ro"),
        (PureWindowsPath(r"\\?\UNC\nas\share\x.sqlite"), "file:////%3F/UNC/nas/share/x.sqlite?mode=ro"),
        (PurePosixPath("/home/mei/a?b.sqlite"), "file:/home/mei/a%3Fb.sqlite?mode=ro"),
    ],
)
def test_sqlite_is_given_each_kind_of_path(path: Any, address: str) -> None:
    assert untrusted_sqlite.database_uri(path, mode="ro") == address


def test_long_paths_of_windows_take_the_layer_of_sqlite_that_opens_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite.apsw, "vfs_names", lambda: ["win32", "win32-longpath"])
    assert untrusted_sqlite.database_uri(PureWindowsPath(r"\\?\C:\x"), mode="ro").endswith(
        "?mode=ro&vfs=win32-longpath"
    )
    assert "vfs" not in untrusted_sqlite.database_uri(PureWindowsPath(r"C:\x"), mode="ro")


@pytest.mark.parametrize(
    ("path", "extended"),
    [
        ("C:\\Users\\Mei\\library", "\\\\?\\C:\\Users\\Mei\\library"),
        ("\\\\nas\\share\\library", "\\\\?\\UNC\\nas\\share\\library"),
    ],
)
def test_a_path_of_windows_has_an_extended_form(path: str, extended: str) -> None:
    assert file_paths.extended_form(path) == extended
    assert file_paths.plain_path(extended) == path


def test_only_long_paths_are_extended_and_only_where_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_paths.extended_path("/" + "x" * 300) == "/" + "x" * 300
    monkeypatch.setattr(file_paths, "MAX_PLAIN_LENGTH", 247)
    assert file_paths.extended_path("/" + "x" * 246) == "/" + "x" * 246
    assert file_paths.extended_path("/" + "x" * 247) == "\\\\?\\/" + "x" * 247


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_a_file_system_without_hard_links_is_told_by_every_error_of_one(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "a").write_text("a")
    assert durable.try_link(tmp_path / "a", tmp_path / "b")
    with pytest.raises(FileExistsError):
        durable.try_link(tmp_path / "a", tmp_path / "b")
    monkeypatch.setattr(os, "link", refuse)
    assert not durable.try_link(tmp_path / "a", tmp_path / "c")


def test_an_error_of_the_disk_is_not_taken_for_a_file_system_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (tmp_path / "a").write_text("a")
    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        durable.try_link(tmp_path / "a", tmp_path / "b")


def test_rights_and_times_are_copied_by_path_where_no_open_file_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows: since Python 3.13 ``os.chmod`` takes an open file there, ``os.utime`` does not."""
    real = os.utime

    def utime(path: Any, *args: Any, **more: Any) -> None:
        if isinstance(path, int):
            raise TypeError("utime: path should be string, bytes or os.PathLike, not int")
        real(path, *args, **more)

    monkeypatch.setattr(os, "utime", utime)
    monkeypatch.setattr(os, "supports_fd", {os.chmod})
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("s")
    target.write_text("t")
    source.chmod(0o640)
    real(source, ns=(1_000_000_000, 2_000_000_000))
    durable.copy_mode(source, target)
    durable.copy_times(source, target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert target.stat().st_mtime_ns == 2_000_000_000


class ReadOnlyCounts:
    """Lets ``os.unlink`` and ``os.replace`` refuse read-only files, as Windows does."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        for name, which in (("unlink", 0), ("replace", 1)):
            patch.setattr(os, name, self._refusing(getattr(os, name), which))

    @staticmethod
    def _refusing(real: Any, which: int) -> Any:
        def act(*paths: Any, **more: Any) -> None:
            if os.path.lexists(paths[which]) and not os.lstat(paths[which]).st_mode & stat.S_IWUSR:
                error = PermissionError(errno.EACCES, "Access is denied")
                error.winerror = 5  # type: ignore[attr-defined]
                raise error
            real(*paths, **more)

        return act


@pytest.mark.usefixtures("by_path")
def test_read_only_files_are_removed_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ReadOnlyCounts(monkeypatch)
    for name in ("removed", "replaced", "tree/inner/file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
        (tmp_path / name).chmod(0o444)
    (tmp_path / "new").write_text("new")
    durable.remove(tmp_path / "removed")
    durable.replace(tmp_path / "new", tmp_path / "replaced")
    durable.remove_tree(tmp_path / "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["replaced"]
    assert (tmp_path / "replaced").read_text("utf-8") == "new"
    # What comes in its place is another file, with permissions of its own.
    assert stat.S_IMODE((tmp_path / "replaced").stat().st_mode) & stat.S_IWUSR


def test_a_read_only_file_is_flushed_and_stays_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows flushes only what is open for writing."""
    path, opened, real, flushed = tmp_path / "file", [], os.open, []
    path.write_text("x")
    path.chmod(0o444)

    def open_as_windows(name: Any, flags: int, *more: Any, **named: Any) -> int:
        opened.append(flags & os.O_RDWR)
        if not os.lstat(name).st_mode & stat.S_IWUSR:
            raise PermissionError(errno.EACCES, "Access is denied")
        return real(name, flags, *more, **named)

    def flush(descriptor: int) -> None:
        flushed.append(os.fstat(descriptor).st_ino)

    with monkeypatch.context() as patch:
        patch.setattr(durable.os, "name", "nt")
        patch.setattr(durable.os, "open", open_as_windows)
        patch.setattr(durable, "flush", flush)
        patch.setattr(file_paths, "extended_path", str)
        durable.sync_file(path)
    assert (opened, flushed) == ([os.O_RDWR] * 2, [path.stat().st_ino])
    assert stat.S_IMODE(path.stat().st_mode) == 0o444


@pytest.mark.usefixtures("by_path")
def test_a_read_only_file_that_cannot_be_removed_stays_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Access is denied")

    monkeypatch.setattr(os, "unlink", refuse)
    kept = tmp_path / "kept"
    kept.write_text("kept")
    kept.chmod(0o444)
    with pytest.raises(PermissionError):
        durable.remove(kept, wait=lambda _: None)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o444


def held_for(tries: int, real: Any) -> Any:
    """Return a function that is refused so often because another program has the file open."""
    left = [tries]

    def act(*args: Any, **more: Any) -> None:
        if left[0]:
            left[0] -= 1
            error = PermissionError(errno.EACCES, "The process cannot access the file")
            error.winerror = 32  # type: ignore[attr-defined]
            raise error
        real(*args, **more)

    return act


@pytest.mark.parametrize(
    ("called", "remove"),
    [("unlink", durable.remove), ("unlink", durable.remove_tree), ("rmdir", durable.remove_folder)],
)
def test_what_a_virus_scanner_holds_is_removed_after_a_wait(
    called: str, remove: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(durable.time, "sleep", waits.append)
    path = tmp_path / "scanned"
    path.mkdir() if called == "rmdir" else path.write_text("x")
    monkeypatch.setattr(os, called, held_for(3, getattr(os, called)))
    remove(path)
    assert not path.exists()
    assert waits == [0.05, 0.1, 0.2]


def test_a_file_that_stays_open_elsewhere_is_an_error_after_bounded_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    (tmp_path / "open").write_text("x")
    monkeypatch.setattr(os, "unlink", held_for(1_000, os.unlink))
    with pytest.raises(PermissionError):
        durable.remove(tmp_path / "open", wait=waits.append)
    assert len(waits) == durable.REPLACE_TRIES - 1
    assert (tmp_path / "open").exists()


def test_macos_empties_the_cache_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    asked: list[object] = []
    synced: list[int] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda _, what: asked.append(what))
    monkeypatch.setattr(os, "fsync", synced.append)
    (tmp_path / "file").write_text("x")
    durable.sync_file(tmp_path / "file")
    durable.sync_folder(tmp_path)
    assert asked == [51, 51]
    assert synced == []


def test_a_share_that_knows_no_full_flush_is_flushed_as_far_as_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    synced: list[int] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", synced.append)
    (tmp_path / "file").write_text("x")
    durable.sync_file(tmp_path / "file")
    assert len(synced) == 1


def test_a_lock_file_excludes_a_second_process_and_goes_with_the_first(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock_files.hold_lock(path), pytest.raises(lock_files.LockHeld), lock_files.hold_lock(path):
        pass
    with lock_files.hold_lock(path):
        assert path.exists()
    assert not path.exists()


def test_a_lock_file_that_cannot_be_removed_while_it_is_open_is_removed_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, path = os.unlink, tmp_path / "lock"

    def is_open() -> bool:
        handles = Path("/proc/self/fd")
        return any(os.path.realpath(handle) == str(path) for handle in handles.iterdir())

    def unlink(name: Any, **more: Any) -> None:
        if is_open():
            raise PermissionError(errno.EACCES, "The process cannot access the file")
        real(name, **more)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("the system does not list open files")
    monkeypatch.setattr(os, "unlink", unlink)
    with lock_files.hold_lock(path):
        pass
    assert not path.exists()


# --- the running application -----------------------------------------------------------------------------------------


def test_a_running_application_is_seen_by_reading_its_lock_where_nothing_else_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "Local Storage" / "leveldb" / "LOCK"
    lock.parent.mkdir(parents=True)
    lock.touch()
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert profile._find_lock_holder(lock) is None

    def locked(*_: object) -> bytes:
        raise PermissionError(errno.EACCES, "another process has locked a portion of the file")

    monkeypatch.setattr(os, "read", locked)
    sign = profile.detect_running_app(tmp_path)
    assert sign is not None
    assert "leveldb/LOCK" in sign


# --- the rest --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("milliseconds", "written"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (-11_676_096_000_500, "1599-12-31T23:59:59.500Z"),
        (32_535_216_000_000, "3001-01-01T00:00:00.000Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_every_year_has_a_time(milliseconds: int, written: str) -> None:
    assert identity.iso_time(milliseconds) == written


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///C:/Backups/a%20b.zip", r"C:\Backups\a b.zip"),
        ("file://C:/Backups/a.zip", r"C:\Backups\a.zip"),
        ("FILE:///d:/x", r"d:\x"),
        ("file://localhost/C:/x", r"C:\x"),
        ("file://nas/share/a%23b.zip", r"\\nas\share\a#b.zip"),
        ("file:////nas/share/a.zip", r"\\nas\share\a.zip"),
        (r"C:\Backups\a.zip", r"C:\Backups\a.zip"),
    ],
)
def test_a_url_of_a_file_is_a_path_of_windows(url: str, path: str) -> None:
    assert manifest._local_path(url, windows=True) == path


def test_a_url_of_a_file_is_a_path_elsewhere() -> None:
    assert manifest._local_path("file:///home/mei/a%20b.zip", windows=False) == "/home/mei/a b.zip"
    assert manifest._local_path("file://localhost/home/a.zip", windows=False) == "/home/a.zip"


@pytest.mark.parametrize(("on_pipe", "is_lost"), [(True, False), (False, True)])
def test_a_pipe_that_windows_calls_an_invalid_argument_is_a_reader_that_has_gone(
    on_pipe: bool, is_lost: bool, tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    file = (tmp_path / "file").open("wb")
    try:

        class Stream(io.RawIOBase):
            def fileno(self) -> int:
                return writing if on_pipe else file.fileno()

            def write(self, _: Any, /) -> int:
                raise OSError(errno.EINVAL, "Invalid argument")

        guarded = startup._Guarded(Stream())
        assert guarded.write(b"text") == 4
        assert guarded.is_loss is is_lost
    finally:
        file.close()
        for descriptor in (reading, writing):
            os.close(descriptor)


def test_more_pipes_than_windows_waits_for_are_waited_for_in_parts() -> None:
    with contextlib.ExitStack() as stack:
        pairs = [Pipe() for _ in range(9)]
        for end in (end for pair in pairs for end in pair):
            stack.callback(end.close)
        mine = [pair[0] for pair in pairs]
        assert pool.wait_for_pipes(mine, 0.0, most=4) == []
        late = threading.Timer(0.01, pairs[8][1].send, ("late",))
        late.start()
        assert pool.wait_for_pipes(mine, 60.0, most=4) == [mine[8]]
        late.join()
        pairs[0][1].send("first")
        assert pool.wait_for_pipes(mine, 60.0, most=4) == [mine[0], mine[8]]


class Console:
    """The two functions of kernel32 that tell and set what a console does."""

    def __init__(self, mode: int | None, *, can_change: bool) -> None:
        self.mode, self._can_change = mode, can_change

    def GetConsoleMode(self, _: Any, into: Any) -> int:
        if self.mode is not None:
            into._obj.value = self.mode
        return int(self.mode is not None)

    def SetConsoleMode(self, _: Any, mode: int) -> int:
        self.mode = mode if self._can_change else self.mode
        return int(self._can_change)


@pytest.mark.parametrize(
    ("mode", "can_change", "reads"), [(7, False, True), (3, True, True), (3, False, False), (None, True, False)]
)
def test_a_console_without_vt_mode_gets_no_escape_sequences(mode: int | None, can_change: bool, reads: bool) -> None:
    assert output.enable_escapes(1, Console(mode, can_change=can_change)) is reads


def test_a_target_in_the_source_is_seen_in_another_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system ignores letter case, and where neither spelling exists yet."""
    source = tmp_path / "Backup"
    (source / "Data").mkdir(parents=True)
    other = tmp_path / "backup" / "library"
    preflight.check_target(other, [source], source)

    monkeypatch.setattr(file_paths.sys, "platform", "darwin")
    assert links.is_at_or_below(other, source)
    with pytest.raises(TargetOverlapsSource):
        preflight.check_target(other, [source], source)
    monkeypatch.undo()

    real = os.stat

    def stat_of(path: Any, **more: Any) -> os.stat_result:
        try:
            return real(path, **more)
        except FileNotFoundError:
            return real(str(path).replace("/backup", "/Backup"), **more)

    monkeypatch.setattr(os, "stat", stat_of)
    with pytest.raises(TargetOverlapsSource):
        preflight.check_target(other, [source], source)
