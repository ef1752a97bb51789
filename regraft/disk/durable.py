"""Create, write, move, link and remove files and folders so that a crash never leaves one half done.

No other module writes to the file system, except :mod:`regraft.disk.sqlite` for databases. Every function checks its
path with :mod:`regraft.disk.writable` and acts relative to the folder that was checked, so no link in a store can
redirect a write. A link itself is moved or removed, never its target, and never opened for writing.

Beside the errors that their docstrings name, all functions raise ``LinkInStore`` and ``OutsideStore``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TextIO, cast

from regraft.disk import file_paths, links, writable

#: Virus scanners and indexers on Windows open a new file for a moment; a refused rename or removal is tried this often.
REPLACE_TRIES = 8
REPLACE_WAIT_SECONDS = 0.05
#: Bytes copied at once.
_CHUNK_BYTES = 1 << 20
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

#: From _FEW_FILES files on, this many are flushed in parallel, in batches of _FLUSHED_TOGETHER.
_FLUSHED_AT_ONCE, _FEW_FILES, _FLUSHED_TOGETHER = 8, 32, 256

#: Errors of removing a folder that another program adds files to.
_FILLED = frozenset({errno.ENOTEMPTY, errno.EEXIST})
#: Errors of removing a tree that is nested too deeply.
_TOO_DEEP = frozenset({errno.EMFILE, errno.ENFILE, errno.ENAMETOOLONG})
#: Attempts to remove leftovers while a process of a killed run may still be ending.
_REMOVE_TRIES = 10
#: Errors of a write for lack of space; never the fault of the file that is read.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
#: Errors of a file system without hard links, or with too many of this file. Windows reports EINVAL.
_NO_HARD_LINK = frozenset(
    {
        *(errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL, errno.EMLINK, errno.EXDEV),
        *(errno.ENOTSUP, errno.EOPNOTSUPP),
    }
)

# --- flushing --------------------------------------------------------------------------------------------------------


def sync_file(path: Path) -> None:
    """Flush a file's bytes to disk."""
    if os.name != "nt":
        descriptor = os.open(file_paths.extended_path(path), os.O_RDONLY)
    else:
        # Windows flushes only files that are open for writing.
        try:
            descriptor = os.open(file_paths.extended_path(path), os.O_RDWR)
        except PermissionError:
            with _temporarily_writable(file_paths.extended_path(path)):
                descriptor = os.open(file_paths.extended_path(path), os.O_RDWR)
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)


def flush(descriptor: int) -> None:
    """Flush an open file to the disk itself, where the system offers that.

    On macOS, ``fsync`` leaves the bytes in the cache of the disk; ``F_FULLFSYNC`` empties that, on file systems that
    support it.
    """
    full = getattr(writable.fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            writable.fcntl.fcntl(descriptor, full)
        except OSError as error:
            if error.errno in NO_ROOM or error.errno == errno.EIO:
                raise
        else:
            return
    os.fsync(descriptor)


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to disk. Windows needs no such flush."""
    if not writable.SUPPORTS_DIR_FD:
        return
    descriptor = os.open(file_paths.extended_path(path), os.O_RDONLY)
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)


def raise_unless_missing(error: OSError) -> None:
    """Raise ``error``, which listing a folder caused, unless it says that the folder is missing.

    Pass this function to :func:`~regraft.disk.file_paths.walk` as ``onerror``. Without it, ``walk`` would skip the
    folder, and its files would not be flushed, copied or compared.
    """
    if not isinstance(error, FileNotFoundError):
        raise error


def sync_tree(path: Path) -> None:
    """Flush every file and folder below ``path``, and ``path`` itself; a link is flushed with its folder."""
    for folder, _, names in file_paths.walk(path, raise_unless_missing):
        files = (Path(folder, name) for name in names)
        regular = (file for file in files if stat.S_ISREG(file_paths.lstat(file).st_mode))
        while some := list(islice(regular, _FLUSHED_TOGETHER)):
            _sync_files(some)
        sync_folder(Path(folder))


def _sync_files(files: list[Path]) -> None:
    """Flush files to disk. Many files are flushed in several threads, since each flush waits for the disk."""
    if len(files) < _FEW_FILES:
        for file in files:
            sync_file(file)
        return
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - takes its time, and most commands flush few

    with ThreadPoolExecutor(_FLUSHED_AT_ONCE) as threads:
        for _ in threads.map(sync_file, files):
            pass


# --- folders ---------------------------------------------------------------------------------------------------------


def make_folder(path: Path, *, exist_ok: bool = False) -> None:
    """Create one folder.

    Raises:
        FileExistsError: something has this name; with ``exist_ok``, something other than a folder.
        OSError: it cannot be created.
    """
    with writable.open_parent(path) as (folder, name):
        try:
            os.mkdir(name, dir_fd=folder)
        except FileExistsError:
            writable.refuse_link(path)
            if not exist_ok or not file_paths.is_folder(path):
                raise


def make_folders(path: Path, *, flush: bool = True) -> None:
    """Create a folder and its missing parents.

    Above a writable root, links are followed: that part of the path is the user's. With ``flush``, the new entries
    survive a power cut; without it, the caller flushes the tree later.

    Raises:
        OSError: one cannot be created.
    """
    if file_paths.is_folder(path):
        if writable.is_writable(path) and not writable.is_at_or_above_root(path):
            writable.refuse_link(writable.require_writable(path), path)
        return
    make_folders(path.parent, flush=flush)
    if writable.is_at_or_above_root(path):
        with contextlib.suppress(FileExistsError):
            os.mkdir(file_paths.extended_path(path))  # noqa: PTH102 - as in make_folder
    else:
        make_folder(path, exist_ok=True)
    if flush:
        sync_folder(path.parent)


def remove_made_folders(path: Path, first: Path) -> None:
    """Undo :func:`make_folders`: remove ``path`` with its contents, and its empty parents up to and including
    ``first``.

    Raises:
        OSError: one of the parents is not empty.
    """
    remove_tree(path)
    while path != first and first in path.absolute().parents:
        path = path.parent
        with contextlib.suppress(FileNotFoundError):
            if writable.is_at_or_above_root(path):
                os.rmdir(path)  # noqa: PTH106 - as in remove_folder
            else:
                remove_folder(path)


# --- moving and removing ---------------------------------------------------------------------------------------------


def replace(source: Path, target: Path, *, wait: Callable[[float], object] | None = None) -> None:
    """Move ``source`` to ``target`` on the same file system in one step, and flush both folders.

    Args:
        source: the file or folder to move.
        target: its new path. An existing file is replaced, even one with Windows' read-only attribute.
        wait: called with the seconds to wait before another attempt (default: :func:`time.sleep`).

    Raises:
        OSError: it cannot be moved, even after several attempts.
    """
    _retry(lambda: _replace(source, target), target, wait)
    sync_folder(target.parent)
    if source.parent != target.parent:
        sync_folder(source.parent)


def _replace(source: Path, target: Path) -> None:
    """Rename ``source`` to ``target``, replacing an existing file; on Windows also a read-only one."""
    with writable.open_parent(target) as (there, new), writable.open_parent(source) as (here, old):
        try:
            os.replace(old, new, src_dir_fd=here, dst_dir_fd=there)
        except PermissionError:
            if there is not None or not _is_read_only(new):
                raise
            with _temporarily_writable(new):
                os.replace(old, new)  # noqa: PTH105 - names of the system, not Paths


def _retry(act: Callable[[], object], path: Path, wait: Callable[[float], object] | None) -> None:
    """Call ``act``, again while the system refuses it because another program has the file ``path`` open.

    Makes up to :data:`REPLACE_TRIES` attempts with doubling pauses, unless this user may not write to the folder at
    all.
    """
    for attempt in range(REPLACE_TRIES):
        try:
            act()
        except PermissionError as error:
            # Another program may have the file open for a moment, unless this user may not write to its folder at all.
            may_pass = getattr(error, "winerror", None) is not None or os.access(path.parent, os.W_OK | os.X_OK)
            if attempt == REPLACE_TRIES - 1 or not may_pass:
                raise
            (wait or time.sleep)(REPLACE_WAIT_SECONDS * 2**attempt)
        else:
            return


def _is_read_only(path: str) -> bool:
    """Whether a file has the attribute that prevents Windows from removing or replacing it."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return (
        not stat.S_ISDIR(status.st_mode) and not file_paths.is_link_stat(status) and not status.st_mode & stat.S_IWUSR
    )


@contextmanager
def _temporarily_writable(path: str) -> Iterator[None]:
    """Clear a file's read-only attribute within the context; restore it if the file still exists at the end."""
    status = os.lstat(path)
    mode = stat.S_IMODE(status.st_mode)
    os.chmod(path, mode | stat.S_IWUSR)  # noqa: PTH101 - a name of the system, not a Path
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            os.chmod(path, mode)  # noqa: PTH101
        raise
    with contextlib.suppress(OSError):
        now = os.lstat(path)
        if (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino):
            os.chmod(path, mode)  # noqa: PTH101


def link(source: Path, target: Path) -> None:
    """Give a file a second name (hard link); ``source`` is only read.

    Raises:
        OSError: it cannot be linked; some file systems have no hard links.
    """
    with writable.open_parent(target) as (there, new):
        # Not every system can create a hard link to a symbolic link.
        writable.refuse_link(source)
        if writable.is_writable(source):
            with writable.open_parent(source) as (here, old):
                os.link(old, new, src_dir_fd=here, dst_dir_fd=there)
        else:
            os.link(file_paths.extended_path(source.absolute()), new, dst_dir_fd=there)


def try_link(source: Path, target: Path) -> bool:
    """Create a hard link as :func:`link` does; return False if the file system has none.

    Raises:
        FileExistsError: the name is taken.
        OSError: the system fails.
    """
    try:
        link(source, target)
    except OSError as error:
        if error.errno in _NO_HARD_LINK:
            return False
        raise
    return True


def remove(path: Path, *, missing_ok: bool = False, wait: Callable[[float], object] | None = None) -> None:
    """Remove a file, even one with Windows' read-only attribute, or a link itself.

    Args:
        path: the file.
        missing_ok: do nothing if it does not exist.
        wait: called with the seconds to wait before another attempt (default: :func:`time.sleep`).

    Raises:
        FileNotFoundError: it does not exist.
        OSError: it cannot be removed, even after several attempts.
    """

    def remove_once() -> None:
        """Remove the file, or the link itself, in one attempt."""
        with writable.open_parent(path) as (folder, name):
            _unlink(name, folder)

    with contextlib.suppress(*([FileNotFoundError] if missing_ok else [])):
        _retry(remove_once, path, wait)


def _unlink(name: str, folder: int | None) -> None:
    """Delete the file ``name`` of ``folder``, a descriptor; None: ``name`` is a path that the system accepts.

    With None, as on Windows, a read-only file is made writable first.
    """
    try:
        os.unlink(name, dir_fd=folder)
    except PermissionError:
        if folder is not None or not _is_read_only(name):
            raise
        with _temporarily_writable(name):
            os.unlink(name)  # noqa: PTH108 - a name of the system, not a Path


def remove_folder(path: Path) -> None:
    """Remove an empty folder.

    Raises:
        OSError: it is not empty, or cannot be removed.
    """

    def remove_once() -> None:
        """Remove the folder in one attempt."""
        with writable.open_parent(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)

    _retry(remove_once, path, None)


def remove_tree(path: Path, *, wait: Callable[[float], object] | None = None) -> None:
    """Remove a folder with its contents, a file, or a link itself; do nothing if it does not exist.

    Args:
        path: the folder or file.
        wait: called with the seconds to wait before another attempt (default: :func:`time.sleep`).

    Raises:
        OSError: a part of it cannot be removed, even after several attempts.
    """
    with contextlib.suppress(FileNotFoundError):
        _retry(lambda: _remove_tree(path), path, wait)


def _remove_tree(path: Path) -> None:
    """Remove a folder with its contents, a file, or a link itself, in one attempt."""
    with writable.open_parent(path) as (folder, name):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode) or file_paths.is_link_stat(status):
            _unlink(name, folder)
            return
        root = file_paths.extended_root(name) if folder is None else name
        try:
            for within, _, names in file_paths.walk(Path(root)) if folder is None else ():
                for inside in filter(_is_read_only, (os.path.join(within, one) for one in names)):  # noqa: PTH118
                    os.chmod(inside, stat.S_IRUSR | stat.S_IWUSR)  # noqa: PTH101 - it is about to be removed
            shutil.rmtree(root, dir_fd=folder)
        except (RecursionError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _TOO_DEEP:
                raise
            _remove_deep_tree(root, folder)


def _remove_deep_tree(name: str, parent: int | None) -> None:
    """Remove a tree that is nested deeper than Python or the system can descend.

    The subfolders of each subfolder are first moved up into the root, so that no path is ever longer than two names.

    Args:
        name: the folder's name in ``parent``.
        parent: descriptor of its parent; None if the system has no ``dir_fd`` and ``name`` is a whole path.

    Raises:
        OSError: a part of it cannot be removed.
    """
    with _open_folder(name, parent) as (root, prefix):
        moved = 0
        while folders := _remove_files(root, prefix):
            for inner in folders:
                with _open_folder(prefix + inner, root) as (within, inner_prefix):
                    for deeper in _remove_files(within, inner_prefix):
                        with contextlib.suppress(FileNotFoundError):
                            # The first name that is not taken.
                            while os.stat(f"{prefix}{moved}", dir_fd=root, follow_symlinks=False):
                                moved += 1
                        os.rename(inner_prefix + deeper, f"{prefix}{moved}", src_dir_fd=within, dst_dir_fd=root)
                os.rmdir(prefix + inner, dir_fd=root)
    os.rmdir(name, dir_fd=parent)


@contextmanager
def _open_folder(name: str, parent: int | None) -> Iterator[tuple[int | None, str]]:
    """Open the folder ``name`` of ``parent`` (a descriptor); yield its descriptor and an empty prefix.

    If ``parent`` is None, because the system has no ``dir_fd``, yield None and ``name`` with a separator: the prefix
    that turns the names of its entries into paths.
    """
    if parent is None:
        yield None, name + os.sep
        return
    handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        yield handle, ""
    finally:
        os.close(handle)


def _remove_files(folder: int | None, prefix: str) -> list[str]:
    """Remove all entries of a folder except its subfolders, and return the names of the subfolders.

    The arguments are those that :func:`_open_folder` yields.
    """
    folders = []
    with os.scandir(prefix if folder is None else folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not file_paths.is_link_entry(entry):
                folders.append(entry.name)
            else:
                os.unlink(prefix + entry.name, dir_fd=folder)
    return folders


def remove_leftovers(folder: Path) -> None:
    """Remove a folder that an earlier run left, even while a process of that run is still ending.

    Raises:
        OSError: it cannot be removed, even after several attempts.
    """
    for attempt in range(_REMOVE_TRIES):
        is_last = attempt == _REMOVE_TRIES - 1
        try:
            remove_tree(folder)
        except OSError as error:
            if error.errno not in _FILLED or is_last:
                raise
        if is_last or not os.path.lexists(folder):
            return
        time.sleep(REPLACE_WAIT_SECONDS)


# --- filling ---------------------------------------------------------------------------------------------------------


def open_binary(path: Path, mode: Literal["wb", "xb", "ab", "r+b", "w+b", "x+b"]) -> BinaryIO:
    """Open a file for writing bytes; the modes are those of :func:`open`.

    Raises:
        OSError: it cannot be opened or made.
    """
    with _opener(path) as opener:
        return open(path, mode, opener=opener)


def open_text(path: Path, mode: Literal["w", "x"], *, newline: str = "") -> TextIO:
    """Open a file for writing UTF-8; mode and ``newline`` are those of :func:`open`.

    Raises:
        OSError: it cannot be opened or made.
    """
    with _opener(path) as opener:
        opened: IO[Any] = open(path, mode, encoding="utf-8", newline=newline, opener=opener)  # noqa: SIM115
        return cast(TextIO, opened)


@contextmanager
def _opener(path: Path) -> Iterator[Callable[[str, int], int]]:
    """Yield an opener for :func:`open` that opens the path in its checked folder, and never a link or a pipe."""
    with writable.open_parent(path) as (folder, name):

        def opener(_: str, flags: int) -> int:
            """Open the path with these flags; return its descriptor."""
            writable.refuse_link(path)
            return os.open(name, flags | _NO_FOLLOW, 0o666, dir_fd=folder)

        yield opener


def put_bytes(path: Path, content: bytes) -> None:
    """Write bytes to a file, without flushing it."""
    with open_binary(path, "wb") as file:
        file.write(content)


def put_text(path: Path, text: str, *, newline: str = "") -> None:
    """Write UTF-8 text to a file, without flushing it.

    Args:
        path: the file.
        text: its new contents.
        newline: how line ends are translated, as for :func:`open`; by default not at all.
    """
    with open_text(path, "w", newline=newline) as file:
        file.write(text)


def write_text_atomically(path: Path, text: str, temporary: Path) -> None:
    """Write ``text`` to ``path`` in one step, through the file ``temporary`` on the same file system."""
    put_text(temporary, text, newline="\n")
    sync_file(temporary)
    replace(temporary, path)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's bytes without flushing the copy; a link is copied as the file that it points to.

    Raises:
        OSError: the source cannot be read, or the target cannot be written.
    """
    with links.open_for_reading(source) as file, open_binary(target, "wb") as copy:
        shutil.copyfileobj(file, copy, _CHUNK_BYTES)


def copy_tree(source: Path, target: Path, *, without: tuple[str, ...] = ()) -> None:
    """Copy a folder without flushing the copy. Files whose names end with one of ``without`` are left out.

    Raises:
        LinkInStore: it contains a link.
        OSError: a part of it cannot be read or written.
    """
    for folder, folders, names in file_paths.walk(source, raise_unless_missing):
        make_folders(target / Path(folder).relative_to(source), flush=False)
        for name in (*folders, *names):
            writable.refuse_link(Path(folder, name))
        for name in names:
            if not name.endswith(without):
                file = Path(folder, name)
                copy_file(file, target / file.relative_to(source))


def make_link(path: Path, goal: str) -> None:
    """Create a symbolic link at ``path``, which must not exist, that points to ``goal``.

    Raises:
        OSError: it cannot be created; some systems never allow it.
    """
    with writable.open_parent(path) as (folder, name):
        os.symlink(goal, name, dir_fd=folder)


def copy_mode(source: Path, target: Path) -> None:
    """Give ``target`` the permissions of ``source``."""
    mode = stat.S_IMODE(file_paths.stat(source).st_mode)
    _change(target, os.chmod, lambda file: os.chmod(file, mode))  # noqa: PTH101 - of an open file


def copy_times(source: Path, target: Path) -> None:
    """Give ``target`` the access and modification times of ``source``, as precisely as its file system stores them."""
    status = file_paths.stat(source)
    times = (status.st_atime_ns, status.st_mtime_ns)
    _change(target, os.utime, lambda file: os.utime(file, ns=times))


def _change(path: Path, function: Callable[..., None], change: Callable[[Any], None]) -> None:
    """Call ``change`` with the descriptor of a file, or with its path where ``function`` accepts no descriptor.

    ``function`` is the function of :mod:`os` that ``change`` calls. On Windows it accepts no descriptor, or
    (``os.chmod`` since Python 3.13) only one that is open for writing.
    """
    with writable.open_parent(path) as (folder, name):
        writable.refuse_link(path)
        if os.name == "nt" or folder is None or function not in os.supports_fd:
            change(file_paths.extended_path(writable.require_writable(path)))
            return
        descriptor = os.open(name, os.O_RDONLY | _NO_FOLLOW, dir_fd=folder)
        try:
            change(descriptor)
        finally:
            os.close(descriptor)


def touch(path: Path) -> None:
    """Create an empty file unless the file exists."""
    open_binary(path, "ab").close()


def truncate(path: Path, size: int) -> None:
    """Shorten a file to ``size`` bytes."""
    with open_binary(path, "r+b") as file:
        file.truncate(size)


def do_not_wait(_: float) -> None:
    """Return at once: a ``wait`` for :func:`remove` and :func:`remove_tree` that does not pause between attempts."""


@contextmanager
def new_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a new zip archive for writing, replacing an existing file."""
    with open_binary(path, "w+b") as file, zipfile.ZipFile(file, "w") as archive:
        yield archive
