"""Open files for reading; follow links out of a source only if the user allows it.

A backup, a profile or a library may be untrusted: a link in it could pull any file of this computer into the output.
Links that stay inside of the source, and the path that the user named, are always followed.
"""

from __future__ import annotations

import errno
import hashlib
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
#: the command-line option that allows it
FOLLOW_OPTION = "--follow-links"
#: Bytes that are read and hashed at once.
_HASHED_BYTES = 1 << 20


class LinkLeadsOut(OSError):
    """A link points outside of its source and is not followed."""

    def __init__(self, target: str) -> None:
        super().__init__(
            errno.ELOOP,
            tr(
                "it is a link to {target}, outside of the source; use {option} to follow it",
                target=target,
                option=FOLLOW_OPTION,
            ),
        )
        self.target = target


@contextmanager
def follow_links(wanted: bool) -> Iterator[None]:
    """Context in which links that lead out of a source are followed if ``wanted``, and refused otherwise."""
    token = _ARE_FOLLOWED.set(wanted)
    try:
        yield
    finally:
        _ARE_FOLLOWED.reset(token)


def are_links_followed() -> bool:
    """Whether links that lead out of a source are followed now; see :func:`follow_links`."""
    return _ARE_FOLLOWED.get()


def real_path(path: Path) -> Path:
    """Resolve a path; a link that points to itself resolves to itself.

    Before Python 3.13, ``Path.resolve`` raises an error of its own for such a link.
    """
    return Path(file_paths.plain_path(os.path.realpath(file_paths.extended_path(path))))


def is_inside(real: Path, roots: Iterable[Path]) -> bool:
    """Whether a resolved path is one of the resolved folders, or inside one."""
    return any(real.is_relative_to(root) for root in roots)


def is_at_or_below(path: Path, root: Path) -> bool:
    """Whether ``path``, which need not exist, is ``root`` or below it, in any spelling.

    On a file system that ignores letter case, two spellings can name one folder: the system is asked whether they do.
    If one of them does not exist, their names are compared as such a file system would.
    """
    real, top = real_path(path), real_path(root)
    return any(_is_same_folder(folder, top) for folder in (real, *real.parents))


def _is_same_folder(path: Path, other: Path) -> bool:
    """Whether two paths are one folder; compared by name if one of them does not exist."""
    if path == other:
        return True
    try:
        return path.samefile(other)
    except OSError:
        return disk_name(str(path)) == disk_name(str(other))


def check_inside(root: Path, path: Path) -> Path:
    """Return ``path`` (below the folder ``root`` of a source) unchanged if it may be read.

    Raises:
        LinkLeadsOut: the path, or a folder in it, is a link that points outside of ``root``, and such links are not
            followed.
        OSError: a link points to itself.
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
    """Whether ``path`` must not be read because it, or a folder in it, is a link that points outside of ``root``."""
    try:
        check_inside(root, path)
    except OSError:
        return True
    return False


def open_descriptor(path: Path) -> int:
    """Open a regular file for reading and return its descriptor. Never blocks, whatever replaces the file in the
    meantime.

    Raises:
        OSError: the path is missing, or a folder, pipe, socket or device.
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
    """Open a regular file for reading. Never blocks, even if the path was replaced by a pipe.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    return cast(BufferedReader, os.fdopen(open_descriptor(path), "rb", buffering))


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file, opened as by :func:`open_for_reading`.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    with open_for_reading(path) as file:
        return file.read()


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal form.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    with open_for_reading(path, buffering=0) as file:
        return hashlib.file_digest(file, "sha256", _bufsize=_HASHED_BYTES).hexdigest()


def have_same_bytes(one: Path, other: Path) -> bool:
    """Whether two files at paths of any length have the same bytes; read only if they have the same size.

    Raises:
        OSError: one cannot be read, or is not a regular file.
    """
    if file_paths.stat(one).st_size != file_paths.stat(other).st_size:
        return False
    with open_for_reading(one) as first, open_for_reading(other) as second:
        return all(part == second.read(1 << 20) for part in iter(lambda: first.read(1 << 20), b""))


def require_regular_file(mode: int) -> None:
    """Raise unless ``st_mode`` is that of a regular file.

    Raises:
        OSError
    """
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, tr("a pipe, a socket or a device, not a file"))
