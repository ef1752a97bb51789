"""Find the installed application in the system's usual places, and start it after its profile was changed.

A program is never taken from the data: not from a profile, a backup, or the application's own settings. It is offered
only for a profile that the application opens by itself, and never while it is running.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

from regraft.disk import links
from regraft.errors import ApplicationNotStarted
from regraft.formats.cherry_v1 import profile as profile_folders
from regraft.language import tr

#: The application's name without blanks, dashes and case, as it begins the names of its files.
_NAME = "cherrystudio"
#: Folders for AppImages, below the home folder and elsewhere.
_IMAGE_FOLDERS = ("Applications", "AppImages", ".local/bin", "bin", "/opt", "/usr/local/bin")
#: Largest desktop entry that is read, and most entries of a folder that are looked at.
_ENTRY_BYTES, _MOST_LISTED = 100_000, 5_000
_EXEC = re.compile(r"^Exec[ \t]*=[ \t]*(.+)$", re.MULTILINE)
#: What stands in its command for files and addresses; the second one is of Flatpak.
_FIELD = re.compile("%[a-zA-Z]|@@u?")
#: Set by a program of PyInstaller for its own libraries; the value before has this ending.
_LIBRARIES, _ORIGINAL = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LIBPATH"), "_ORIG"


def find_program(platform: str = sys.platform) -> list[str] | None:
    """Return the words of the command that starts the installed application; None if no usual place has it.

    ``platform`` is a value of :data:`sys.platform`.
    """
    with suppress(RuntimeError):
        # Without a home folder, nothing is offered.
        if platform == "darwin":
            folders = (Path("/Applications"), Path.home() / "Applications")
            bundles = chain.from_iterable(map(_find_similar_entries, folders))
            found = (path for path in bundles if path.suffix == ".app" and path.is_dir())
            return next((["/usr/bin/open", "-a", str(path)] for path in found), None)
        return next(_find_windows_commands() if platform == "win32" else _find_linux_commands(), None)
    return None


def _find_windows_commands() -> Iterator[list[str]]:
    """Yield a command for each program with the application's name in the program folders of Windows."""
    for variable, below in (("LOCALAPPDATA", "Programs"), ("ProgramFiles", ""), ("ProgramFiles(x86)", "")):
        folder = os.environ.get(variable)
        if folder and Path(folder).is_absolute():
            for place in _find_similar_entries(Path(folder) / below):
                yield from ([str(path)] for path in _find_similar_entries(place) if _is_program(path, ".exe"))


def _find_linux_commands() -> Iterator[list[str]]:
    """Yield a command for each desktop entry of the application, then for each AppImage in the usual folders."""
    home = Path.home()
    data = os.environ.get("XDG_DATA_HOME") or home / ".local" / "share"
    for folder in (data, "/usr/local/share", "/usr/share", "/var/lib/flatpak/exports/share", "/var/lib/snapd/desktop"):
        for path in _find_similar_entries(Path(folder) / "applications"):
            yield from _desktop_command(path)
    folders = [*(home / name for name in _IMAGE_FOLDERS), *_find_similar_entries(Path("/opt"))]
    for path in chain.from_iterable(map(_find_similar_entries, folders)):
        if _is_program(path, ".appimage", ""):
            yield [str(path)]


def _find_similar_entries(folder: Path) -> list[Path]:
    """Return the entries of a folder whose name contains that of the application, the last name first."""
    try:
        paths = list(islice(folder.iterdir(), _MOST_LISTED))
    except OSError:
        return []
    # An AppImage manager may put a word of its own before the name.
    return sorted((path for path in paths if _NAME in re.sub(r"[\s_-]", "", path.name).casefold()), reverse=True)


def _is_program(path: Path, *suffixes: str) -> bool:
    """Whether a path is an executable file whose suffix is one of ``suffixes``."""
    return path.suffix.casefold() in suffixes and path.is_file() and os.access(path, os.X_OK)


def _desktop_command(entry: Path) -> Iterator[list[str]]:
    """Yield the command that a desktop entry (a ``.desktop`` file) starts, without field codes such as ``%U``.

    Nothing is yielded if the file is unreadable, or its program does not exist.
    """
    with suppress(OSError, ValueError):
        text = links.read_bytes(entry)[:_ENTRY_BYTES].decode()
        if entry.suffix == ".desktop" and (found := _EXEC.search(text)):
            words = [word.replace("%%", "%") for word in shlex.split(found[1]) if not _FIELD.fullmatch(word)]
            if words and Path(words[0]).is_absolute() and os.access(words[0], os.X_OK) and Path(words[0]).is_file():
                yield words


# --- for a profile ---------------------------------------------------------------------------------------------------


def can_start(profile: str | Path) -> bool:
    """Whether the application is installed, opens this profile by itself, and is not running."""
    folder = Path(profile)
    return (
        _is_default_profile(folder)
        and profile_folders.detect_running_app(folder) is None
        and find_program() is not None
    )


def _is_default_profile(folder: Path) -> bool:
    """Whether a profile is the one that the application opens if it is started without options."""
    try:
        real = links.real_path(folder)
        own = [links.real_path(path) for path in profile_folders.list_data_folders()]
    except (OSError, RuntimeError, ValueError):
        return False
    return real in own and not profile_folders.find_configured_folders(folder)


def start_application(profile: str | Path) -> subprocess.Popen[bytes]:
    """Start the installed application in a separate process, which continues when this one ends.

    Raises:
        ApplicationNotStarted: it is running already, not in the usual places, or opens another profile.
    """
    folder = Path(profile)
    running = profile_folders.detect_running_app(folder)
    if running is not None:
        raise ApplicationNotStarted(reason=tr("it is running already ({sign})", sign=running))
    command = find_program() if _is_default_profile(folder) else None
    if command is None:
        raise ApplicationNotStarted(reason=tr("it was not found in the usual places, or it opens another profile"))
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=Path.home(),
            env=_environment(),
            # Ctrl-C in the terminal of this process does not reach it.
            start_new_session=True,
            creationflags=getattr(subprocess, "DETACHED_PROCESS", 0)
            | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
    except OSError as error:
        raise ApplicationNotStarted(reason=error.strerror or error) from error
    # Its end is collected, so that no dead process stays behind.
    threading.Thread(target=process.wait, daemon=True).start()
    return process


def _environment() -> dict[str, str]:
    """Return the environment of another program, without variables that PyInstaller and regraft set for this one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REGRAFT_")}
    if getattr(sys, "frozen", False):
        for name in _LIBRARIES:
            kept.pop(name, None)
            before = kept.pop(name + _ORIGINAL, None)
            if before is not None:
                kept[name] = before
    return kept
