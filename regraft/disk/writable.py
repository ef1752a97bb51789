"""Limit writes to the folders that the user named, and refuse to write through links.

Everything in a store is untrusted: a link in it, or a path in its ledger, must not redirect a write. A command
registers each folder that it may change (:func:`allow_writes`); paths outside of these *writable roots* are refused. A
link that the user named is resolved once, when the root is registered. Below a root, links are never followed for
writing.

:func:`require_writable` resolves the path's folder and compares it with the root. :func:`open_parent` opens the folders
one beneath the other (``openat``), so that nothing can be exchanged between the check and the write. Rules:
``docs/formats/library.md``, "Where regraft writes".

:func:`find_output_problem` is the rule for files that an option names: a report page, metrics, an export.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from regraft.disk import file_paths, links
from regraft.errors import LinkInStore, OutputLost, OutsideStore, TargetNotWritable
from regraft.language import tr
from regraft.text import printable

#: Whether the system accepts paths relative to an open folder. Windows does not; there the check comes right before the
#: write.
SUPPORTS_DIR_FD = {os.mkdir, os.open, os.rename, os.rmdir, os.stat, os.unlink, os.link} <= os.supports_dir_fd
#: Whether ``a:b`` names a stream of the file ``a``, which folders do not list (NTFS).
_HAS_STREAMS = os.name == "nt"
#: The module for locks and full flushes; None on Windows, which has no ``fcntl``.
fcntl: Any = None
with suppress(ImportError):
    fcntl = import_module("fcntl")
_FOLDER = (
    getattr(os, "O_PATH", os.O_RDONLY)
    | getattr(os, "O_DIRECTORY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


#: Errors from opening a link as a folder with O_NOFOLLOW.
_NO_FOLDER = frozenset({errno.ELOOP, errno.EMLINK, errno.ENOTDIR})


@dataclass(frozen=True)
class WritableRoot:
    """A folder that this process may change."""

    #: the folder as the user named it, absolute
    root: Path
    #: its resolved path when it was registered
    real: Path
    #: only its direct entries may be changed, not the contents of its subfolders
    entries_only: bool = False

    def names_below(self, path: Path) -> tuple[str, ...] | None:
        """Return the path components below the root, or None if the absolute path is outside.

        The path may start with the root as named or as resolved.
        """
        for start in (self.root.parts, self.real.parts):
            if path.parts[: len(start)] == start:
                return path.parts[len(start) :]
        return None


_lock = threading.Lock()
#: One entry for each time that a root is registered.
_roots: list[WritableRoot] = []


@contextmanager
def allow_writes(root: Path, *, entries_only: bool = False) -> Iterator[Path]:
    """Allow all threads of this process to change ``root`` and everything below it, while the context lasts.

    The folder need not exist yet. If it is inside another writable root, the path to it must be free of links.

    Args:
        root: the folder that the user named; links in this path are resolved now.
        entries_only: allow changes to its direct entries only.

    Yields:
        The resolved root.

    Raises:
        LinkInStore: the folder is inside another writable root, behind a link.
        OutsideStore: the path to it contains ``..``.
    """
    absolute = root.absolute()
    outer = _innermost(absolute)
    names = None if outer is None else outer.names_below(absolute)
    if outer is not None and names:
        # The outer root may be one of entries only, of another thread: it does not decide what this root allows.
        if ".." in names:
            raise OutsideStore(path=root)
        refuse_link(_resolve_below(outer, names), absolute)
    real = Path(os.path.realpath(absolute))
    registered = WritableRoot(absolute, real, entries_only)
    with _lock:
        _roots.append(registered)
    try:
        yield real
    finally:
        with _lock:
            _roots.remove(registered)


def open_roots() -> tuple[WritableRoot, ...]:
    """Return the writable roots of this process, to pass to a child process (:func:`adopt_roots`)."""
    with _lock:
        return tuple(_roots)


def adopt_roots(roots: tuple[WritableRoot, ...]) -> None:
    """Register the parent's writable roots in a child process, until it ends."""
    with _lock:
        _roots.extend(roots)


def is_writable(path: Path) -> bool:
    """Whether a path is a writable root or below one, judged by its names alone."""
    return _innermost(path.absolute()) is not None


def is_at_or_above_root(path: Path) -> bool:
    """Whether a path is a writable root or an ancestor of one, and not below another root.

    Such paths come from the user and may be links.
    """
    absolute = path.absolute()
    with _lock:
        roots = [path for root in _roots for path in (root.root, root.real)]
        is_below_one = any(root.names_below(absolute) for root in _roots)
    return any(root == absolute or absolute in root.parents for root in roots) and not is_below_one


def _innermost(path: Path) -> WritableRoot | None:
    """Return the deepest writable root that contains an absolute path, or None."""
    with _lock:
        containing = [root for root in _roots if root.names_below(path) is not None]
    return min(containing, key=lambda root: (len(root.names_below(path) or ()), root.entries_only), default=None)


def require_writable(path: Path) -> Path:
    """Return a path that may be changed, with its folder resolved and its last component unchanged.

    Raises:
        LinkInStore: one of its folders is a link.
        OutsideStore: it is in none of the writable roots.
        OSError: one of its folders cannot be examined.
    """
    return _resolve_below(*_find_root(path))


@contextmanager
def open_parent(path: Path) -> Iterator[tuple[int | None, str]]:
    """Open the folder of a path that may be changed; yield its descriptor and the path's last component.

    Without ``dir_fd`` support (:data:`SUPPORTS_DIR_FD`), yield None and the whole path as :func:`require_writable`
    returns it. System errors always report the whole path.

    Raises:
        LinkInStore: one of its folders is a link.
        OutsideStore: it is in none of the writable roots.
        OSError: one of its folders cannot be opened.
    """
    if not SUPPORTS_DIR_FD:
        yield None, file_paths.extended_path(require_writable(path))
        return
    root, names = _find_root(path)
    _refuse_moved_root(root)
    try:
        handle = _open_beneath(root, names[:-1]) if names else os.open(root.real.parent, _FOLDER)
        try:
            yield handle, names[-1] if names else root.real.name
        finally:
            os.close(handle)
    except OSError as error:
        if isinstance(error.filename, str) and not os.path.isabs(error.filename):  # noqa: PTH117
            error.filename = str(path)
        raise


def refuse_link(path: Path, named: Path | None = None) -> None:
    """Raise if a path is a symbolic link or a Windows junction; a missing path passes.

    Args:
        path: the path to examine.
        named: how the message calls it.

    Raises:
        LinkInStore: it is a link.
        OSError: it cannot be examined.
    """
    try:
        status = file_paths.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if file_paths.is_link_stat(status):
        try:
            goal = path.parent / os.readlink(path)  # noqa: PTH115 - Path.readlink cannot read a junction
        except OSError:
            goal = Path(os.path.realpath(path))
        raise LinkInStore(path=named or path, goal=goal) from None


def _find_root(path: Path) -> tuple[WritableRoot, tuple[str, ...]]:
    """Return the innermost writable root of a path, and the path components below it."""
    absolute = path.absolute()
    root = _innermost(absolute)
    names = None if root is None else root.names_below(absolute)
    if root is None or names is None or ".." in names or (root.entries_only and len(names) > 1):
        raise OutsideStore(path=path)
    return root, names


def _resolve_below(root: WritableRoot, names: tuple[str, ...]) -> Path:
    """Return the path of ``names`` below a root, with its folder resolved; LinkInStore: a folder in it is a link."""
    _refuse_moved_root(root)
    for length in range(1, len(names)):
        refuse_link(root.real.joinpath(*names[:length]), root.root.joinpath(*names[:length]))
    return root.real.joinpath(*names)


def _refuse_moved_root(root: WritableRoot) -> None:
    """Raise LinkInStore if the path of a root resolves to another folder than when it was registered."""
    current = os.path.realpath(root.root)
    if os.path.normcase(current) != os.path.normcase(root.real):
        raise LinkInStore(path=root.root, goal=Path(current))


def _open_beneath(root: WritableRoot, names: tuple[str, ...]) -> int:
    """Open the folder ``names`` below a root, one component after the other, refusing links; return its descriptor."""
    handle = os.open(root.real, _FOLDER)
    for length, name in enumerate(names, 1):
        try:
            names_below = os.open(name, _FOLDER, dir_fd=handle)
        except OSError as error:
            if error.errno in _NO_FOLDER:
                refuse_link(root.real.joinpath(*names[:length]), root.root.joinpath(*names[:length]))
            raise
        finally:
            os.close(handle)
        handle = names_below
    return handle


# --- files that the user names for output ----------------------------------------------------------------------------


def find_output_problem(path: Path, in_use: Iterable[Path]) -> str:
    """Return why a command must not write a file to ``path``, or an empty text.

    Called before the command starts: the folder of the file must exist and be writable, and the file must be outside
    of the paths ``in_use`` (:func:`find_overlap`).
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        return tr("its folder does not exist")
    if _HAS_STREAMS and ":" in path.name:
        return tr("a file name must not have a colon on Windows")
    if not file_paths.is_storable(path.name):
        return tr("Windows does not allow the name {name}", name=printable(path.name))
    overlap = find_overlap(path, in_use)
    if overlap:
        return overlap
    return "" if os.access(folder, os.W_OK) else tr("no permission to write to its folder")


def find_overlap(path: Path, in_use: Iterable[Path]) -> str:
    """Return the reason not to write to a path that is one of the paths ``in_use`` or inside one, or an empty text.

    ``in_use`` are the files and folders that the command reads, and the stores that it writes.
    """
    # A link itself is replaced, so checking its target is not enough.
    both = (path.absolute().parent, path)
    for used in in_use:
        if any(links.is_at_or_below(one, used) for one in both):
            return tr("it is inside {within}, which this run reads or writes", within=printable(used))
    return ""


def demand_output(path: Path, in_use: Iterable[Path] = ()) -> None:
    """Check that a command may write a file to ``path`` (:func:`find_output_problem`).

    Raises:
        TargetNotWritable
    """
    reason = find_output_problem(path, in_use)
    if reason:
        raise TargetNotWritable(path=path, reason=reason)


def demand_outside(path: Path, in_use: Iterable[Path]) -> None:
    """Check that a file or folder to write is outside of the paths ``in_use`` (:func:`find_overlap`).

    Raises:
        TargetNotWritable
    """
    reason = find_overlap(path, in_use)
    if reason:
        raise TargetNotWritable(path=path, reason=reason)


def write_last_output(path: Path, write: Callable[[], None]) -> OutputLost | None:
    """Call ``write``, which writes the file ``path`` of a command that is done.

    An OSError is returned as OutputLost instead of raised, because the command's result is printed anyway; else None.
    """
    try:
        write()
    except OSError as error:
        return OutputLost(output=path, reason=error.strerror or error)
    return None
