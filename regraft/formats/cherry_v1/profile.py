"""Where the application keeps its data, and whether it is running there (``docs/formats/v1.md``, "Profile folder")."""

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

from regraft.disk import links
from regraft.formats import json_text
from regraft.language import tr
from regraft.text import printable

APPLICATION = "CherryStudio"
#: The application's own settings, which can name another folder for its data.
CONFIG_FOLDER = ".cherrystudio"
CONFIG_FILE = "config/config.json"
#: Where a portable program keeps its data, beside itself.
PORTABLE_FOLDER = "data"
#: What Chromium leaves in a profile while it runs: a link ``host-pid``, and on Windows a file.
SINGLETON_LOCK = "SingletonLock"
WINDOWS_LOCK = "lockfile"
#: A profile on another host, or one whose locks cannot be asked for, counts as in use this long after a write.
RECENT_SECONDS = 120
_PID = re.compile("[0-9]{1,10}")


def default_folders() -> list[Path]:
    """Return where the application keeps its data unless told otherwise, on this system."""
    home = Path.home()
    places = [home / ".config", home / "Library" / "Application Support", home / "AppData" / "Roaming"]
    named = [Path(value) for name in ("XDG_CONFIG_HOME", "APPDATA") if (value := os.environ.get(name))]
    return [place / APPLICATION for place in (*named, *places)]


def list_data_folders() -> dict[Path, str]:
    """Return every folder where the application may keep its data on this system, each with why, for a person.

    The folders that its settings name come first. Portable programs have their data beside them: such a program is
    known where the settings name it, or where it lies in the working folder.
    """
    places = dict.fromkeys(_data_paths(_config()), tr("the application's settings name it"))
    programs = [program.parent for program in _programs(_config())]
    with contextlib.suppress(OSError):
        programs.append(Path.cwd())
    usual = dict.fromkeys(default_folders(), tr("its usual place"))
    beside = {folder / PORTABLE_FOLDER: tr("beside the portable program") for folder in programs}
    return {**usual, **beside, **places}


def find_configured_folders(path: Path) -> list[Path]:
    """Return the data folders that the application's settings name in place of ``path``.

    ``path`` is the settings' own folder or file, or a default folder; of any other path, and of a folder that they
    name, the settings say nothing. Folders that are not there are left out.
    """
    named = {folder for folder in _data_paths(_config()) if folder.is_dir()}
    if not named:
        return []
    if not (is_settings(path) or any(_same(path, place) for place in default_folders())):
        return []
    return [] if any(_same(path, folder) for folder in named) else sorted(named)


def is_settings(path: Path) -> bool:
    """Tell whether ``path`` is the application's settings, or a folder of them."""
    return any(_same(path, place) for place in (_config(), _config().parent, _config().parent.parent))


def _config() -> Path:
    return Path.home() / CONFIG_FOLDER / CONFIG_FILE


def _same(path: Path, other: Path) -> bool:
    try:
        return links.real_path(path) == links.real_path(other)
    except (OSError, RuntimeError, ValueError):
        return False


def _data_paths(config: Path) -> Iterator[Path]:
    for entry in _entries(config):
        yield from _absolute(entry.get("dataPath") if isinstance(entry, dict) else entry)


def _programs(config: Path) -> Iterator[Path]:
    """Yield the places that the application ran from, as far as its settings name them."""
    for entry in _entries(config):
        if isinstance(entry, dict):
            yield from _absolute(entry.get("executablePath"))


def _entries(config: Path) -> list[Any]:
    try:
        message: Any = json_text.loads(links.read_bytes(config)) if config.is_file() else None
    except (OSError, ValueError):
        return []
    named = message.get("appDataPath") if isinstance(message, dict) else None
    # Early releases wrote one path, later ones a list with a path for each place that the application runs from.
    return named if isinstance(named, list) else [named]


def _absolute(value: object) -> Iterator[Path]:
    if isinstance(value, str) and "\0" not in value and Path(value).is_absolute():
        yield Path(value)


# --- is it running? ------------------------------------------------------------------------------------------------


def detect_running_app(profile: Path) -> str | None:
    """Return what shows that an application is using a profile, for a person; None where nothing does.

    Nothing is locked or written: a process that holds a lock is asked for, not waited for.
    """
    for folder in (profile, profile.parent) if profile.name == "Default" else (profile,):
        sign = _singleton(folder) or _windows_lock(folder)
        if sign:
            return sign
    return _held_lock(profile)


def _storage_files(profile: Path) -> Iterator[Path]:
    for folder in _leveldb_folders(profile):
        try:
            yield from folder.iterdir()
        except OSError:
            continue


def _leveldb_folders(profile: Path) -> Iterator[Path]:
    yield profile / "Local Storage" / "leveldb"
    try:
        yield from (profile / "IndexedDB").glob("*.leveldb")
    except OSError:
        return


def _recently_written(profile: Path) -> bool:
    times = []
    for file in _storage_files(profile):
        with contextlib.suppress(OSError):
            times.append(file.stat().st_mtime)
    return bool(times) and time.time() - max(times) < RECENT_SECONDS


def _singleton(folder: Path) -> str | None:
    try:
        host, _, pid = str((folder / SINGLETON_LOCK).readlink()).rpartition("-")
        made = (folder / SINGLETON_LOCK).lstat().st_mtime
    except OSError:
        return None
    if host != socket.gethostname():
        # Whether a process of another computer still runs cannot be seen from here. Chromium refuses such a profile.
        if not host or not _PID.fullmatch(pid):
            return None
        return tr(
            "{singleton_lock} names another computer, {host}; if this is a copy, delete that file first",
            singleton_lock=SINGLETON_LOCK,
            host=printable(host),
        )
    return (
        tr("process {pid}", pid=pid)
        if _PID.fullmatch(pid) and _lives(int(pid)) and not _began_after(int(pid), made)
        else None
    )


def _lives(pid: int) -> bool:
    if os.name == "nt":
        return False  # such a link is never made there
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _began_after(pid: int, made: float) -> bool:
    """Tell whether a process began after a lock was made: it then only has the number of the one that made it.

    Where the system does not say when it began, it did not.
    """
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, ValueError, IndexError, StopIteration):
        return False
    # Both clocks are read by the second.
    return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK") > made + 2


def _windows_lock(folder: Path) -> str | None:
    """Tell whether Chromium's lock file on Windows is there: the system removes it when the process ends."""
    lock = folder / WINDOWS_LOCK
    if not lock.is_file():
        return None
    if os.name == "nt" or _recently_written(folder):
        return tr("its {windows_lock} is there", windows_lock=WINDOWS_LOCK)
    return None


def _held_lock(profile: Path) -> str | None:
    for folder in _leveldb_folders(profile):
        lock = folder / "LOCK"
        if not lock.is_file():
            continue
        try:
            holder = _holder(lock)
        except OSError:
            # A file system without locks, or Windows, where a locked file cannot be read or not even be opened.
            if os.name == "nt" or _recently_written(profile):
                return tr("{name}/LOCK is in use", name=folder.name)
            continue
        if holder:
            return tr("{holder} holds {name}/LOCK", holder=holder, name=folder.name)
    return None


def _holder(lock: Path) -> str | None:
    """Return which process holds a lock on a file, None where none does.

    Raises:
        OSError: that cannot be told.
    """
    with links.open_for_reading(lock) as file:
        try:
            import fcntl  # noqa: PLC0415 - not there on Windows
        except ImportError:
            # The application locks the whole file; it lets others open it, but not read it.
            os.read(file.fileno(), 1)
            return None
        # struct flock: Linux begins with type and whence, the BSDs and macOS with start, length and process.
        linux = sys.platform == "linux"
        form = "hhqqi4x" if linux else "qqihh"
        asked = (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0) if linux else (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
        answer = struct.unpack(form, fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(form, *asked)))
        kind, holder = (answer[0], answer[4]) if linux else (answer[3], answer[2])
        if kind == fcntl.F_UNLCK:
            return None
        # A process in another container has no number here.
        return tr("process {holder}", holder=holder) if holder > 0 else tr("another process")
