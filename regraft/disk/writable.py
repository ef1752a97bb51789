"""The folders that this process may change, and the one question before every write: does this path lie in one?

Everything in a store is input: a link in it, or a path that its ledger names, must lead no write elsewhere. A command
opens an area for what the user named (:func:`opened`); everything outside of all areas is refused. What the user named
may itself be a link: that is followed once, when the area is opened. Below it no link is followed for writing, ever.

:func:`demand` resolves the path's folder at that moment and compares; :func:`parent` does so by handles, each folder
opened beneath the one before it (``openat``), so that nothing can be exchanged between the look and the act. Rules:
``docs/formats/library.md``, "Where regraft writes".
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from regraft.disk import file_paths
from regraft.errors import LinkInStore, OutsideStore

#: Whether the system acts relative to an open folder. Windows does not: there the look comes right before the act.
SUPPORTS_DIR_FD = {os.mkdir, os.open, os.rename, os.rmdir, os.stat, os.unlink, os.link} <= os.supports_dir_fd
#: The module for locks and full flushes; None where the system has none of it, as Windows.
fcntl: Any = None
with suppress(ImportError):
    fcntl = import_module("fcntl")
_FOLDER = (
    getattr(os, "O_PATH", os.O_RDONLY)
    | getattr(os, "O_DIRECTORY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


#: What opening a link as a folder, and not following it, fails with.
_NO_FOLDER = frozenset({errno.ELOOP, errno.EMLINK, errno.ENOTDIR})


@dataclass(frozen=True)
class WritableRoot:
    """A folder that may be changed."""

    #: As it was named, absolute.
    root: Path
    #: Where that led when the area was opened.
    real: Path
    #: Only what lies in it directly may be changed, nothing in its folders.
    entries_only: bool = False

    def inner(self, path: Path) -> tuple[str, ...] | None:
        """Return the names that lead from the root, in either spelling, to an absolute path; None: it is outside."""
        for start in (self.root.parts, self.real.parts):
            if path.parts[: len(start)] == start:
                return path.parts[len(start) :]
        return None


_lock = threading.Lock()
#: Areas that are open now, one entry for each time.
_areas: list[WritableRoot] = []


@contextmanager
def allow_writes(root: Path, *, entries_only: bool = False) -> Iterator[Path]:
    """Let this process, all its threads included, change what is below ``root``, and ``root`` itself, meanwhile.

    It need not exist. Inside an area that is open already, no link may lie on the way to it.

    Args:
        root: what the user named; where it leads is settled now.
        entries_only: only what lies in it directly is meant.

    Yields:
        The root, without links.

    Raises:
        LinkInStore: it lies in another area, behind a link.
    """
    absolute = root.absolute()
    around = _innermost(absolute)
    real = Path(os.path.realpath(absolute)) if around is None else _real(around, absolute)
    area = WritableRoot(absolute, real, entries_only)
    with _lock:
        _areas.append(area)
    try:
        yield real
    finally:
        with _lock:
            _areas.remove(area)


def _real(around: WritableRoot, root: Path) -> Path:
    """Return where a root inside another area is, which is no link itself either."""
    if around.inner(root):
        refuse_link(require_writable(root), root.absolute())
    return Path(os.path.realpath(root))


def open_roots() -> tuple[WritableRoot, ...]:
    """Return the areas that are open now, for a process that is started: see :func:`take_over`."""
    with _lock:
        return tuple(_areas)


def adopt_roots(handed: tuple[WritableRoot, ...]) -> None:
    """Open for good, in a process that was started for a part of the work, what was open in its parent."""
    with _lock:
        _areas.extend(handed)


def is_writable(path: Path) -> bool:
    """Tell whether a path lies in an area that is open, by its names alone."""
    return _innermost(path.absolute()) is not None


def is_at_or_above_root(path: Path) -> bool:
    """Tell whether a path is the root of an open area, or above one: the user's own words, which may be links."""
    absolute = path.absolute()
    with _lock:
        roots = [root for area in _areas for root in (area.root, area.real)]
    return any(root == absolute or absolute in root.parents for root in roots) and not _is_below(absolute)


def _is_below(path: Path) -> bool:
    with _lock:
        return any(area.inner(path) for area in _areas)


def _innermost(path: Path) -> WritableRoot | None:
    with _lock:
        around = [area for area in _areas if area.inner(path) is not None]
    return min(around, key=lambda area: (len(area.inner(path) or ()), area.entries_only), default=None)


def require_writable(path: Path) -> Path:
    """Return a path that may be changed now, with its folder resolved; its last name is as it was.

    Raises:
        LinkInStore: a link lies on the way to it.
        OutsideStore: it lies in no area that is open.
        OSError: a folder on the way cannot be looked at.
    """
    area, names = _located(path)
    _demand_root(area)
    for length in range(1, len(names)):
        refuse_link(area.real.joinpath(*names[:length]), area.root.joinpath(*names[:length]))
    return area.real.joinpath(*names)


@contextmanager
def open_parent(path: Path) -> Iterator[tuple[int | None, str]]:
    """Give the open folder that a path lies in, and its name there, to act on what may be changed.

    Where the system knows no such handles (:data:`BY_HANDLE`), the folder is None and the name the whole path, as
    :func:`demand` returns it. Errors of the system name the whole path in either case.

    Raises:
        LinkInStore: a link lies on the way to it.
        OutsideStore: it lies in no area that is open.
        OSError: a folder on the way cannot be opened.
    """
    if not SUPPORTS_DIR_FD:
        yield None, file_paths.extended_path(require_writable(path))
        return
    area, names = _located(path)
    _demand_root(area)
    with _named(path):
        handle = _beneath(area, names[:-1]) if names else os.open(area.real.parent, _FOLDER)
        try:
            yield handle, names[-1] if names else area.real.name
        finally:
            os.close(handle)


def refuse_link(path: Path, named: Path | None = None) -> None:
    """Refuse what is a link, or a junction of Windows; what is not there is none.

    Args:
        path: where to look.
        named: what it is called in the message.

    Raises:
        LinkInStore: it is one.
        OSError: it cannot be looked at.
    """
    try:
        status = file_paths.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if is_link(status):
        raise LinkInStore(path=named or path, goal=_goal(path)) from None


def is_link(status: os.stat_result) -> bool:
    """Tell whether a file's own status is that of a link: of a symbolic one, or of a junction of Windows."""
    junction = getattr(stat, "IO_REPARSE_TAG_MOUNT_POINT", None)
    return stat.S_ISLNK(status.st_mode) or (junction is not None and getattr(status, "st_reparse_tag", 0) == junction)


def _goal(place: Path) -> Path:
    try:
        return place.parent / os.readlink(place)  # noqa: PTH115 - Path.readlink cannot tell a junction's goal
    except OSError:
        return Path(os.path.realpath(place))


def _located(path: Path) -> tuple[WritableRoot, tuple[str, ...]]:
    """Return the innermost area that a path lies in, and the names that lead to it from there."""
    absolute = path.absolute()
    area = _innermost(absolute)
    names = None if area is None else area.inner(absolute)
    if area is None or names is None or ".." in names or (area.entries_only and len(names) > 1):
        raise OutsideStore(path=path)
    return area, names


def _demand_root(area: WritableRoot) -> None:
    """Refuse an area that leads elsewhere than when it was opened."""
    leads_to = os.path.realpath(area.root)
    if os.path.normcase(leads_to) != os.path.normcase(area.real):
        raise LinkInStore(path=area.root, goal=Path(leads_to))


def _beneath(area: WritableRoot, names: tuple[str, ...]) -> int:
    """Open the folder that names lead to from an area's root, each beneath the one before it, none of them a link."""
    handle = os.open(area.real, _FOLDER)
    for length, name in enumerate(names, 1):
        try:
            inner = os.open(name, _FOLDER, dir_fd=handle)
        except OSError as error:
            if error.errno in _NO_FOLDER:
                refuse_link(area.real.joinpath(*names[:length]), area.root.joinpath(*names[:length]))
            raise
        finally:
            os.close(handle)
        handle = inner
    return handle


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let an error of the system name the whole path, not only its last name."""
    try:
        yield
    except OSError as error:
        if isinstance(error.filename, str) and not os.path.isabs(error.filename):  # noqa: PTH117
            error.filename = str(path)
        raise
