r"""Paths that are longer than Windows takes by default: they are given to the system in their extended form.

Windows refuses paths of 260 characters and more, folders even of 248, unless a setting of the machine allows them.
Behind ``\\?\`` it takes 32,767. Only what is handed to the system has that form: what regraft keeps, compares and
shows has not.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

_PREFIX, _UNC = "\\\\?\\", "\\\\?\\UNC\\"
#: The longest path that the system takes as it is, in characters; None: it has no such limit. A folder has to leave
#: room for a name of twelve characters.
LIMIT: int | None = 247 if os.name == "nt" else None
#: The longest path of a file that Windows takes as it is.
_LONGEST = 259
#: ERROR_FILENAME_EXCED_RANGE of Windows.
_TOO_LONG = 206


def extended(path: str | PurePath) -> str:
    """Return a path as the system takes it, however long it is."""
    text = os.fspath(path)
    return text if LIMIT is None or len(text) <= LIMIT else extended_root(text)


def extended_root(path: str | PurePath) -> str:
    """Return the path of a folder such that the system also takes what is joined to it, however long that gets."""
    text = os.fspath(path)
    if LIMIT is None or text.startswith(_PREFIX):
        return text
    return extended_form(os.path.abspath(text))  # noqa: PTH100 - Path.absolute leaves ``..`` in it


def extended_form(absolute: str) -> str:
    r"""Return the extended form of a path: ``\\?\C:\x``, of a share ``\\?\UNC\server\share\x``."""
    return f"{_UNC}{absolute[2:]}" if absolute.startswith("\\\\") else f"{_PREFIX}{absolute}"


def plain(path: str) -> str:
    """Return a path without what :func:`extended` put before it."""
    if path.startswith(_UNC):
        return f"\\\\{path.removeprefix(_UNC)}"
    return path.removeprefix(_PREFIX)


def is_refusal(error: OSError) -> bool:
    """Whether the system failed because a path, or a name in it, is too long."""
    return error.errno == errno.ENAMETOOLONG or getattr(error, "winerror", None) == _TOO_LONG


def is_refused_write(error: OSError, path: PurePath) -> bool:
    """Whether a file could not be made because its path is too long; Windows may say that it is not there."""
    return is_refusal(error) or (isinstance(error, FileNotFoundError) and len(str(path)) > _LONGEST)


def is_hidden(path: Path) -> bool:
    """Whether a file is there, as far as folders list it, at a path that is too long for the system to look at."""
    try:
        lstat(path)
    except OSError as error:
        return is_refused_write(error, path) and _is_listed(path)
    except ValueError:  # a NUL in the name
        pass
    return False


def _is_listed(path: Path) -> bool:
    try:
        return path.name in names_in(path.parent)
    except OSError:
        return path.parent != path and _is_listed(path.parent)


def takes(path: Path, folder: Path) -> bool:
    """Whether the system takes a path below a folder that is there; the path itself need not exist."""
    for one in (path, *(folder / name for name in path.relative_to(folder).parts)):
        try:
            lstat(one)
        except OSError as error:
            if is_refusal(error):
                return False
    return True


def lstat(path: str | PurePath) -> os.stat_result:
    """Return the status of a file, folder or link at a path of any length.

    Raises:
        OSError: nothing is there, or the system cannot tell.
    """
    return Path(extended(path)).lstat()


def stat(path: str | PurePath) -> os.stat_result:
    """Return the status of what a path of any length leads to.

    Raises:
        OSError: nothing is there, or the system cannot tell.
    """
    return Path(extended(path)).stat()


def exists(path: Path) -> bool:
    """Whether something is at a path of any length."""
    return Path(extended(path)).exists()


def is_file(path: Path) -> bool:
    """Whether a file is at a path of any length."""
    return Path(extended(path)).is_file()


def is_folder(path: Path) -> bool:
    """Whether a folder is at a path of any length."""
    return Path(extended(path)).is_dir()


def is_link(path: Path) -> bool:
    """Whether a link is at a path of any length."""
    return Path(extended(path)).is_symlink()


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder at a path of any length.

    Raises:
        OSError: it cannot be listed.
    """
    return [entry.name for entry in Path(extended(folder)).iterdir()]


def walk(
    folder: Path, onerror: Callable[[OSError], object] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield what :func:`os.walk` does, of folders at any depth, by paths that are not extended.

    What is taken from a list of folders is not descended into.
    """
    waiting = [str(folder)]
    while waiting:
        current = waiting.pop()
        try:
            with os.scandir(extended(current)) as entries:
                found = [(entry.name, _is_folder(entry), entry.is_symlink()) for entry in entries]
        except OSError as error:
            if onerror is not None:
                onerror(error)
            continue
        folders = [name for name, is_folder, _ in found if is_folder]
        yield current, folders, [name for name, is_folder, _ in found if not is_folder]
        linked = {name for name, _, is_linked in found if is_linked}
        waiting += [os.path.join(current, name) for name in reversed(folders) if name not in linked]  # noqa: PTH118


def below(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder, which need not exist; links are yielded, not followed."""
    for within, folders, names in walk(folder):
        yield from (Path(within, name) for name in (*folders, *names))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
