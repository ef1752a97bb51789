"""Links in what is read: one that leads out of a source is not followed, unless the user says that it is his own.

A backup, a profile or a library may be a stranger's: a link in it would bring any file of this computer into what is
made of it. Links that stay inside, and the path that the user named itself, are always followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from io import BufferedReader
from pathlib import Path
from typing import cast

from regraft.disk import file_paths
from regraft.disk.file_paths import disk_name
from regraft.language import tr

_ARE_FOLLOWED: ContextVar[bool] = ContextVar("_ARE_FOLLOWED", default=False)
#: The option that follows them all.
FOLLOW_OPTION = "--follow-links"


class LinkLeadsOut(OSError):
    """A link leads out of what it lies in, and is not followed."""

    def __init__(self, target: str) -> None:
        super().__init__(
            errno.ELOOP,
            tr(
                "it is a link to {target}, out of the source, not followed without {option}",
                target=target,
                option=FOLLOW_OPTION,
            ),
        )
        self.target = target


@contextmanager
def follow_links(wanted: bool) -> Iterator[None]:
    """Follow links out of sources, or (the default) do not, within the context."""
    token = _ARE_FOLLOWED.set(wanted)
    try:
        yield
    finally:
        _ARE_FOLLOWED.reset(token)


def are_links_followed() -> bool:
    """Tell whether links out of sources are followed now."""
    return _ARE_FOLLOWED.get()


def real_path(path: Path) -> Path:
    """Return where a path leads; a link in a circle leads to itself.

    ``Path.resolve`` ends with an error of its own at such a link, before Python 3.13.
    """
    return Path(file_paths.plain_path(os.path.realpath(file_paths.extended_path(path))))


def is_inside(real: Path, roots: Iterable[Path]) -> bool:
    """Tell whether a resolved path lies in one of some resolved folders, or is one of them."""
    return any(real.is_relative_to(root) for root in roots)


def is_at_or_below(path: Path, root: Path) -> bool:
    """Whether ``path``, which need not exist, is ``root`` or lies below it, in whatever spelling.

    Where a file system ignores letter case, two spellings lead to one folder: the system is asked whether they do, and
    where one of them does not exist, the names are compared as such a system would.
    """
    real, top = real_path(path), real_path(root)
    return any(_is_one(folder, top) for folder in (real, *real.parents))


def _is_one(path: Path, other: Path) -> bool:
    if path == other:
        return True
    try:
        return path.samefile(other)
    except OSError:
        return disk_name(str(path)) == disk_name(str(other))


def check_inside(root: Path, path: Path) -> Path:
    """Return ``path``, which lies below ``root``, as it can be read.

    Raises:
        LeadsOut: it, or a folder on its way, is a link that leads out of ``root``, and those are not followed.
        OSError: links in a circle.
    """
    if are_links_followed():
        return path
    try:
        real = Path(file_paths.plain_path(os.path.realpath(file_paths.extended_path(path), strict=True)))
    except FileNotFoundError:
        real = real_path(path)
    if not is_inside(real, (real_path(root),)):
        raise LinkLeadsOut(str(real))
    return path


def leads_outside(root: Path, path: Path) -> bool:
    """Tell whether ``path``, below ``root``, is not read for where its links lead."""
    try:
        check_inside(root, path)
    except OSError:
        return True
    return False


def open_descriptor(path: Path) -> int:
    """Open a file for reading, and return its descriptor. This never waits, whatever takes the path meanwhile.

    Raises:
        OSError: there is none, or it is a folder, a pipe, a socket or a device.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    place = file_paths.extended_path(path)
    require_regular_file(file_paths.stat(path).st_mode)
    descriptor = os.open(place, flags)
    try:
        require_regular_file(os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_for_reading(path: Path, *, buffering: int = -1) -> BufferedReader:
    """Open a file for reading, of which somebody else may have made a pipe: it is not waited for.

    Raises:
        OSError: it cannot be read, or is no plain file.
    """
    return cast(BufferedReader, os.fdopen(open_descriptor(path), "rb", buffering))


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file, opened as by :func:`reading`.

    Raises:
        OSError: it cannot be read, or is no plain file.
    """
    with open_for_reading(path) as file:
        return file.read()


def require_regular_file(mode: int) -> None:
    """Refuse what is no plain file.

    Raises:
        OSError
    """
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, tr("a pipe, a socket or a device, not a file"))
