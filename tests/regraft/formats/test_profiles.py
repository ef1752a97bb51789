"""Where a profile is, and whether its application is running."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import NEVER_SECONDS

from regraft.formats.cherry_v1 import profile as cherry_v1_profile

fcntl = pytest.importorskip("fcntl") if os.name != "nt" else None
posix = pytest.mark.skipif(os.name == "nt", reason="links and file locks as POSIX systems have them")


@pytest.fixture(autouse=True)
def _recent_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what a test has just written count as recent, however slow the machine is."""
    monkeypatch.setattr(cherry_v1_profile, "RECENT_SECONDS", NEVER_SECONDS)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    for name in ("XDG_CONFIG_HOME", "APPDATA"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    folder = tmp_path / "CherryStudio"
    for name in ("Local Storage/leveldb", "IndexedDB/file__0.indexeddb.leveldb", "Data"):
        (folder / name).mkdir(parents=True)
    for name in ("Local Storage/leveldb", "IndexedDB/file__0.indexeddb.leveldb"):
        (folder / name / "LOCK").touch()
        (folder / name / "000003.log").write_bytes(b"")
    return folder


def settings(home: Path, content: object) -> Path:
    path = home / ".cherrystudio" / "config" / "config.json"
    path.parent.mkdir(parents=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def aged(profile: Path, seconds: float) -> None:
    for path in profile.rglob("*"):
        if path.is_file() and not path.is_symlink():
            os.utime(path, (time.time() - seconds,) * 2)


# --- another data folder -------------------------------------------------------------------------------------------


def test_without_settings_nothing_is_elsewhere(home: Path) -> None:
    assert cherry_v1_profile.find_configured_folders(home / ".config" / "CherryStudio") == []


@pytest.mark.parametrize("early", [False, True])
def test_the_settings_name_another_folder(early: bool, home: Path, tmp_path: Path) -> None:
    data = tmp_path / "on another disk"
    data.mkdir()
    named = str(data) if early else [{"executablePath": "/opt/cherry", "dataPath": str(data)}]
    config = settings(home, {"appDataPath": named})
    given = [config, config.parent, config.parent.parent, home / ".config" / "CherryStudio"]
    given += [home / "Library" / "Application Support" / "CherryStudio", home / "AppData" / "Roaming" / "CherryStudio"]
    assert [cherry_v1_profile.find_configured_folders(path) for path in given] == [[data]] * len(given)
    assert cherry_v1_profile.find_configured_folders(tmp_path / "a copy") == []
    assert cherry_v1_profile.find_configured_folders(data) == []


def test_the_places_that_the_system_names(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    settings(home, {"appDataPath": str(data)})
    for name in ("XDG_CONFIG_HOME", "APPDATA"):
        monkeypatch.setenv(name, str(tmp_path / name))
        assert cherry_v1_profile.find_configured_folders(tmp_path / name / "CherryStudio") == [data]


def test_folders_that_are_gone_or_named_by_halves_do_not_count(home: Path, tmp_path: Path) -> None:
    default = home / ".config" / "CherryStudio"
    settings(home, {"appDataPath": [
        {"dataPath": str(tmp_path / "gone")}, {"dataPath": str(tmp_path)}, {"dataPath": str(tmp_path)},
        {"dataPath": 3}, {}, None, "", "a\0b", {"dataPath": "."},
    ]})  # fmt: skip
    assert cherry_v1_profile.find_configured_folders(default) == [tmp_path]


def test_a_folder_that_the_settings_name_is_the_one_that_is_meant(home: Path, tmp_path: Path) -> None:
    default = home / ".config" / "CherryStudio"
    default.mkdir(parents=True)
    config = settings(home, {"appDataPath": [{"dataPath": str(default)}, {"dataPath": str(tmp_path)}]})
    assert cherry_v1_profile.find_configured_folders(default) == []
    assert cherry_v1_profile.find_configured_folders(config) == sorted([default, tmp_path])


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"appDataPath": 7}', '{"appDataPath": {}}', "\ufeff{}"])
def test_settings_that_say_nothing(content: str, home: Path) -> None:
    config = settings(home, content)
    assert cherry_v1_profile.find_configured_folders(config) == []


# --- is it running? ------------------------------------------------------------------------------------------------


@contextmanager
def another_process() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def test_a_profile_that_nobody_uses(profile: Path) -> None:
    assert cherry_v1_profile.detect_running_app(profile) is None
    assert cherry_v1_profile.detect_running_app(profile / "nothing") is None


@posix
@pytest.mark.parametrize("below", ["", "Default"])
def test_a_link_to_a_living_process(below: str, profile: Path) -> None:
    (profile / below).mkdir(exist_ok=True)
    with another_process() as pid:
        (profile / "SingletonLock").symlink_to(f"{socket.gethostname()}-{pid}")
        assert cherry_v1_profile.detect_running_app(profile / below) == f"process {pid}"
    assert cherry_v1_profile.detect_running_app(profile / below) is None


@posix
def test_what_a_killed_application_leaves_is_no_sign_of_life(profile: Path) -> None:
    (profile / "SingletonLock").symlink_to(f"{socket.gethostname()}-{dead_process()}")
    assert cherry_v1_profile.detect_running_app(profile) is None


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system does not say when a process began")
def test_a_number_that_another_process_has_now_is_no_sign_of_life(profile: Path) -> None:
    """After a power cut the lock stays, and its number belongs to something else soon."""
    lock = profile / "SingletonLock"
    with another_process() as pid:
        lock.symlink_to(f"{socket.gethostname()}-{pid}")
        assert cherry_v1_profile.detect_running_app(profile) == f"process {pid}"
        os.utime(lock, (time.time() - 3600,) * 2, follow_symlinks=False)
        assert cherry_v1_profile.detect_running_app(profile) is None


@posix
def test_a_lock_of_another_host_counts_however_old_it_is(profile: Path) -> None:
    (profile / "SingletonLock").symlink_to("some-other-host-17")
    expected = (
        "SingletonLock was created by another computer, some-other-host; "
        "if this is a copy of a profile, delete that file first"
    )
    assert cherry_v1_profile.detect_running_app(profile) == expected
    aged(profile, cherry_v1_profile.RECENT_SECONDS + 60)
    assert cherry_v1_profile.detect_running_app(profile) == expected


@posix
@pytest.mark.parametrize("target", ["no process", f"{socket.gethostname()}-", f"{socket.gethostname()}-x1"])
def test_a_link_that_names_no_process(target: str, profile: Path) -> None:
    aged(profile, 1e6)
    (profile / "SingletonLock").symlink_to(target)
    assert cherry_v1_profile.detect_running_app(profile) is None


@posix
@pytest.mark.parametrize("name", ["Local Storage/leveldb", "IndexedDB/file__0.indexeddb.leveldb"])
def test_a_lock_that_a_process_holds(name: str, profile: Path) -> None:
    lock = profile / name / "LOCK"
    script = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+b')\n"
        "fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", script, lock]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        before = lock.stat()
        assert (
            cherry_v1_profile.detect_running_app(profile) == f"process {process.pid} has locked {lock.parent.name}/LOCK"
        )
        assert (lock.stat().st_mtime_ns, lock.stat().st_size) == (before.st_mtime_ns, before.st_size)
        process.kill()
    assert cherry_v1_profile.detect_running_app(profile) is None


@posix
def test_where_locks_cannot_be_asked_for_recent_writes_decide(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "fcntl", no_locks)
    assert cherry_v1_profile.detect_running_app(profile) == "leveldb/LOCK is in use"
    aged(profile, cherry_v1_profile.RECENT_SECONDS + 60)
    assert cherry_v1_profile.detect_running_app(profile) is None


@posix
def test_a_lock_file_of_windows_counts_after_recent_writes(profile: Path) -> None:
    (profile / "lockfile").touch()
    assert cherry_v1_profile.detect_running_app(profile) == "its lockfile exists"
    aged(profile, cherry_v1_profile.RECENT_SECONDS + 60)
    assert cherry_v1_profile.detect_running_app(profile) is None
