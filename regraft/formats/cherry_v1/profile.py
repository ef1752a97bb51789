"""Find the application's data folders and detect whether it is running (``docs/formats/v1.md``, "Profile folder")."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regraft.disk import file_paths, links
from regraft.formats import json_text
from regraft.language import tr
from regraft.text import printable

APPLICATION = "CherryStudio"
#: The application's settings, which may name another data folder.
CONFIG_FOLDER = ".cherrystudio"
CONFIG_FILE = "config/config.json"
#: Data folder beside a portable program.
PORTABLE_FOLDER = "data"
#: Chromium creates this in a profile while it runs: a symbolic link ``host-pid``, on Windows a file.
SINGLETON_LOCK = "SingletonLock"
WINDOWS_LOCK = "lockfile"
#: If locks cannot be queried, a profile counts as in use until this long after the last write.
RECENT_SECONDS = 120
_PID = re.compile("[0-9]{1,10}")


def default_folders() -> list[Path]:
    """Return the application's default data folders on this system."""
    home = file_paths.home_folder()
    usual = (".config", "Library/Application Support", "AppData/Roaming")
    defaults = [home / name for name in usual] if home is not None else []
    named = [Path(value) for name in ("XDG_CONFIG_HOME", "APPDATA") if (value := os.environ.get(name))]
    return [folder / APPLICATION for folder in (*named, *defaults)]


def list_data_folders() -> dict[Path, str]:
    """Return all folders that may contain the application's data on this system, each with the reason for messages.

    Folders named in the application's settings come first. A portable program keeps its data beside itself; it is found
    if the settings name it or if it is in the current directory.
    """
    configured = dict.fromkeys(_data_paths(_config()), tr("named in the application's settings"))
    entries = [entry for entry in _read_data_paths(_config()) if isinstance(entry, dict)]
    programs = [program.parent for entry in entries for program in _absolute(entry.get("executablePath"))]
    with contextlib.suppress(OSError):
        programs.append(Path.cwd())
    usual = dict.fromkeys(default_folders(), tr("default location"))
    portable = {folder / PORTABLE_FOLDER: tr("beside the portable program") for folder in programs}
    return {**usual, **portable, **configured}


def find_configured_folders(path: Path) -> list[Path]:
    """Return the existing data folders that the application's settings name instead of ``path``.

    ``path`` must be the settings' own folder or file, or a default folder; for any other path the list is empty.
    """
    named = {folder for folder in _data_paths(_config()) if folder.is_dir()}
    if not named:
        return []
    if not (is_settings(path) or any(_is_same_path(path, folder) for folder in default_folders())):
        return []
    return [] if any(_is_same_path(path, folder) for folder in named) else sorted(named)


def is_settings(path: Path) -> bool:
    """Whether ``path`` is the application's settings file or one of the folders above it."""
    config = _config()
    return config is not None and any(_is_same_path(path, place) for place in (config, *config.parents[:2]))


def _config() -> Path | None:
    """Return the path of the application's own configuration file; None without a home folder."""
    home = file_paths.home_folder()
    return home / CONFIG_FOLDER / CONFIG_FILE if home is not None else None


def _is_same_path(path: Path, other: Path) -> bool:
    """Whether two paths are the same after resolving links."""
    try:
        return links.real_path(path) == links.real_path(other)
    except (OSError, RuntimeError, ValueError):
        return False


def _data_paths(config: Path | None) -> Iterator[Path]:
    """Yield the data folders that a configuration file names; nothing if it cannot be read."""
    for entry in _read_data_paths(config):
        yield from _absolute(entry.get("dataPath") if isinstance(entry, dict) else entry)


def _read_data_paths(config: Path | None) -> list[Any]:
    """Return the entries of ``appDataPath`` in a configuration file; empty if it cannot be read."""
    try:
        settings: Any = json_text.loads(links.read_bytes(config)) if config is not None and config.is_file() else None
    except (OSError, ValueError):
        return []
    named = settings.get("appDataPath") if isinstance(settings, dict) else None
    # Early releases wrote one path, later ones a list with a path for each executable.
    return named if isinstance(named, list) else [named]


def _absolute(value: object) -> Iterator[Path]:
    """Yield the value of a setting as a path if it is an absolute one."""
    if isinstance(value, str) and "\0" not in value and Path(value).is_absolute():
        yield Path(value)


# --- detecting a running application -------------------------------------------------------------------------------


def detect_running_app(profile: Path) -> str | None:
    """Describe what shows that an application is using a profile; None if nothing does.

    Nothing is locked or written: lock holders are queried without waiting.
    """
    for folder in (profile, profile.parent) if profile.name == "Default" else (profile,):
        sign = _check_singleton_lock(folder)
        if sign:
            return sign
        # Chromium's lock file on Windows, which the system removes when the process ends.
        if (folder / WINDOWS_LOCK).is_file() and (os.name == "nt" or _recently_written(folder)):
            return tr("its {windows_lock} exists", windows_lock=WINDOWS_LOCK)
    return _check_leveldb_locks(profile)


def _leveldb_folders(profile: Path) -> Iterator[Path]:
    """Yield the LevelDB folders of a profile: local storage and IndexedDB."""
    yield profile / "Local Storage" / "leveldb"
    try:
        yield from (profile / "IndexedDB").glob("*.leveldb")
    except OSError:
        return


def _recently_written(profile: Path) -> bool:
    """Whether the application wrote to its databases within the last seconds."""
    times = []
    for folder in _leveldb_folders(profile):
        with contextlib.suppress(OSError):
            for file in folder.iterdir():
                with contextlib.suppress(OSError):
                    times.append(file.stat().st_mtime)
    return bool(times) and time.time() - max(times) < RECENT_SECONDS


def _check_singleton_lock(folder: Path) -> str | None:
    """Describe, for a person, which process or computer holds Chromium's lock on a profile folder.

    None if none does.
    """
    try:
        host, _, pid = str((folder / SINGLETON_LOCK).readlink()).rpartition("-")
        made = (folder / SINGLETON_LOCK).lstat().st_mtime
    except OSError:
        return None
    if host != socket.gethostname():
        # It is unknown whether a process of another computer is still running. Chromium refuses such a profile.
        if not host or not _PID.fullmatch(pid):
            return None
        return tr(
            "{singleton_lock} was created by another computer, {host}; "
            "if this is a copy of a profile, delete that file first",
            singleton_lock=SINGLETON_LOCK,
            host=printable(host),
        )
    return (
        tr("process {pid}", pid=pid)
        if _PID.fullmatch(pid) and _is_running(int(pid)) and not _started_after(int(pid), made)
        else None
    )


def _is_running(pid: int) -> bool:
    """Whether a process with this id exists."""
    if os.name == "nt":
        return False  # Windows has no such links
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _started_after(pid: int, lock_time: float) -> bool:
    """Whether a process started after a lock was made, so that it only reuses the id of the process that made the lock.

    ``lock_time`` is in seconds since the epoch. False if the system does not tell when the process started.
    """
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, ValueError, IndexError, StopIteration):
        return False
    # Both clocks have a resolution of one second.
    return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK") > lock_time + 2


def _check_leveldb_locks(profile: Path) -> str | None:
    """Describe, for a person, which LevelDB folder of a profile is locked and by which process; None if none is."""
    for folder in _leveldb_folders(profile):
        lock = folder / "LOCK"
        if not lock.is_file():
            continue
        try:
            holder = _find_lock_holder(lock)
        except OSError:
            # A file system without locks, or Windows, where a locked file cannot be read or even opened.
            if os.name == "nt" or _recently_written(profile):
                return tr("{name}/LOCK is in use", name=folder.name)
            continue
        if holder:
            return tr("{holder} has locked {name}/LOCK", holder=holder, name=folder.name)
    return None


def _find_lock_holder(lock: Path) -> str | None:
    """Describe, for a person, the process that holds a lock on a file; None if no process does.

    Raises:
        OSError: the lock cannot be queried.
    """
    with links.open_for_reading(lock) as file:
        try:
            import fcntl  # noqa: PLC0415 - not available on Windows
        except ImportError:
            # The application locks the whole file: others can open it but not read it.
            os.read(file.fileno(), 1)
            return None
        # struct flock: Linux starts with type and whence, the BSDs and macOS with start, length and pid.
        linux = sys.platform == "linux"
        form = "hhqqi4x" if linux else "qqihh"
        query = (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0) if linux else (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
        answer = struct.unpack(form, fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(form, *query)))
        kind, holder = (answer[0], answer[4]) if linux else (answer[3], answer[2])
        if kind == fcntl.F_UNLCK:
            return None
        # A process in another container has no id here.
        return tr("process {holder}", holder=holder) if holder > 0 else tr("another process")
