"""The one module that makes, fills, moves, links and removes files and folders, so that a crash leaves no half.

Every function here demands its path of :mod:`regraft.disk.writable` and acts in the folder that was found there: no link in a
store, and nothing that a store says of itself, leads a write elsewhere. A link is moved or removed itself, never what
it leads to, and never opened for writing. :mod:`regraft.disk.sqlite` does the same for databases.

Raised by all of them, beside what is named: ``LinkInStore`` and ``OutsideStore`` (:mod:`regraft.errors`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TextIO, cast

from regraft.disk import file_paths, links, writable

#: Virus scanners and indexers on Windows hold a new file for a moment: a refused rename or removal is tried so often.
REPLACE_TRIES = 8
REPLACE_WAIT_SECONDS = 0.05
#: How much is copied at once, in bytes.
_CHUNK_BYTES = 1 << 20
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

#: So many files are flushed at a time where there are more than a few, and so many before others are looked at.
_FLUSHED_AT_ONCE, _FEW_FILES, _FLUSHED_TOGETHER = 8, 32, 256

#: What removing a folder fails with into which somebody writes.
_FILLED = frozenset({errno.ENOTEMPTY, errno.EEXIST})
#: What it fails with where its folders lie too deep in one another.
_TOO_DEEP = frozenset({errno.EMFILE, errno.ENFILE, errno.ENAMETOOLONG})
#: How often to try that where a process of a killed run may still be about to end.
_REMOVE_TRIES = 10
#: What a write fails with for want of room: never the fault of what is read meanwhile.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
#: Errors of a file system that has no hard links, or no more of them for this file. Windows reports EINVAL.
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
        # Windows flushes only what is open for writing.
        try:
            descriptor = os.open(file_paths.extended_path(path), os.O_RDWR)
        except PermissionError:
            with _made_writable(file_paths.extended_path(path)):
                descriptor = os.open(file_paths.extended_path(path), os.O_RDWR)
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)


def flush(descriptor: int) -> None:
    """Flush the bytes of an open file to the disk itself, where the system offers that.

    On macOS ``fsync`` leaves them in the cache of the disk; ``F_FULLFSYNC`` empties that, on file systems that know it.
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
    """Flush a folder's entries to disk, where the system can (Windows cannot, and does so by itself)."""
    if not writable.SUPPORTS_DIR_FD:
        return
    descriptor = os.open(file_paths.extended_path(path), os.O_RDONLY)
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)


def raise_unless_missing(error: OSError) -> None:
    """Raise what listing a folder failed with, unless it is not there; without this :func:`os.walk` passes over it.

    What is not listed would not be flushed, copied or compared.
    """
    if not isinstance(error, FileNotFoundError):
        raise error


def sync_tree(path: Path) -> None:
    """Flush every file and folder below ``path``, and ``path`` itself; a link is part of its folder."""
    for folder, _, names in file_paths.walk(path, raise_unless_missing):
        files = (Path(folder, name) for name in names)
        regular = (file for file in files if stat.S_ISREG(file_paths.lstat(file).st_mode))
        while some := list(islice(regular, _FLUSHED_TOGETHER)):
            _sync_files(some)
        sync_folder(Path(folder))


def _sync_files(files: list[Path]) -> None:
    """Flush files; many of them several at a time, since the disk is waited for each time."""
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
    """Make one folder.

    Raises:
        FileExistsError: something is there, or (``exist_ok``) something that is no folder.
        OSError: it cannot be made.
    """
    with writable.open_parent(path) as (folder, name):
        try:
            os.mkdir(name, dir_fd=folder)
        except FileExistsError:
            writable.refuse_link(path)
            if not exist_ok or not file_paths.is_folder(path):
                raise


def make_folders(path: Path, *, flush: bool = True) -> None:
    """Make a folder and those above it that are missing.

    Above an area's root, where the user's own words lead, links are followed. With ``flush`` a power cut leaves their
    entries, too; without, what is made of them later has to be flushed as a whole.

    Raises:
        OSError: one cannot be made.
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
    """Remove what :func:`make_folders` made and is there: ``path`` with what is in it, and those above up to ``first``.

    Raises:
        OSError: something else is in one of them.
    """
    remove_tree(path)
    while path != first and first in path.absolute().parents:
        path = path.parent
        with contextlib.suppress(FileNotFoundError):
            if writable.is_at_or_above_root(path):
                os.rmdir(path)  # noqa: PTH106 - as in remove_folder
            else:
                remove_folder(path)


@contextmanager
def temporary_folder(work: Path | None = None) -> Iterator[Path]:
    """Give a new folder that may be changed, and remove it with what is in it at the end.

    Args:
        work: the folder that it lies in, made where it is missing (default: the system's temporary folder).

    Raises:
        OSError: it cannot be made.
    """
    if work is not None:
        make_folders(work, flush=False)
        writable.refuse_link(writable.require_writable(work), work)
    folder = Path(tempfile.mkdtemp(prefix="regraft-", dir=work))
    try:
        with writable.allow_writes(folder):
            yield folder
    finally:
        # Only ever what was just made; what another program holds open there stays, and is no reason to fail.
        shutil.rmtree(folder, ignore_errors=True)


def temporary_root() -> Path:
    """Return the system's temporary folder, where :func:`temporary_folder` makes its own."""
    return Path(tempfile.gettempdir())


# --- moving and removing ---------------------------------------------------------------------------------------------


def replace(source: Path, target: Path, *, wait: Callable[[float], object] | None = None) -> None:
    """Move ``source`` to ``target`` on the same file system in one step, and flush both folders.

    Args:
        source: the file or folder to move.
        target: its new path. A file there is replaced, also one that Windows calls read-only.
        wait: called with the seconds to wait before another try (default: :func:`time.sleep`).

    Raises:
        OSError: it cannot be moved, also after several tries.
    """
    _retry(lambda: _replace(source, target), target, wait)
    sync_folder(target.parent)
    if source.parent != target.parent:
        sync_folder(source.parent)


def _replace(source: Path, target: Path) -> None:
    with writable.open_parent(target) as (there, new), writable.open_parent(source) as (here, old):
        try:
            os.replace(old, new, src_dir_fd=here, dst_dir_fd=there)
        except PermissionError:
            if there is not None or not _is_read_only(new):
                raise
            with _made_writable(new):
                os.replace(old, new)  # noqa: PTH105 - names of the system, not Paths


def _retry(act: Callable[[], object], path: Path, wait: Callable[[float], object] | None) -> None:
    """Call ``act`` again while the system refuses it because another program has the file open.

    Up to :data:`REPLACE_TRIES` tries, with pauses that double. A folder that this user may not write to is not tried
    again.
    """
    for attempt in range(REPLACE_TRIES):
        try:
            act()
        except PermissionError as error:
            if attempt == REPLACE_TRIES - 1 or not _may_pass(error, path):
                raise
            (wait or time.sleep)(REPLACE_WAIT_SECONDS * 2**attempt)
        else:
            return


def _may_pass(error: PermissionError, path: Path) -> bool:
    """Whether a refusal may be that of a file which another program has open for a moment."""
    return getattr(error, "winerror", None) is not None or os.access(path.parent, os.W_OK | os.X_OK)


def _is_read_only(path: str) -> bool:
    """Whether a file has the attribute that keeps Windows from removing or replacing it."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return not stat.S_ISDIR(status.st_mode) and not writable.is_link(status) and not status.st_mode & stat.S_IWUSR


@contextmanager
def _made_writable(path: str) -> Iterator[None]:
    """Let a read-only file be written, replaced or removed; what is still there afterwards is read-only again."""
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
    """Give a file a second name; ``source`` is only read.

    Raises:
        OSError: it cannot be linked, on some file systems never.
    """
    with writable.open_parent(target) as (there, new):
        # Not every system can link a link itself.
        writable.refuse_link(source)
        if writable.is_writable(source):
            with writable.open_parent(source) as (here, old):
                os.link(old, new, src_dir_fd=here, dst_dir_fd=there)
        else:
            os.link(file_paths.extended_path(source.absolute()), new, dst_dir_fd=there)


def try_link(source: Path, target: Path) -> bool:
    """Give a file a second name as :func:`link` does; False where its file system has no hard links.

    Raises:
        FileExistsError: something has that name.
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
    """Remove a file, also one that Windows calls read-only, or a link itself.

    Args:
        path: the file.
        missing_ok: nothing there is fine too.
        wait: called with the seconds to wait before another try (default: :func:`time.sleep`).

    Raises:
        FileNotFoundError: nothing is there, and that is not ``missing_ok``.
        OSError: it cannot be removed, also after several tries.
    """
    with contextlib.suppress(*([FileNotFoundError] if missing_ok else [])):
        _retry(lambda: _remove(path), path, wait)


def _remove(path: Path) -> None:
    with writable.open_parent(path) as (folder, name):
        _unlink(name, folder)


def _unlink(name: str, folder: int | None) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except PermissionError:
        if folder is not None or not _is_read_only(name):
            raise
        with _made_writable(name):
            os.unlink(name)  # noqa: PTH108 - a name of the system, not a Path


def remove_folder(path: Path) -> None:
    """Remove an empty folder.

    Raises:
        OSError: it is not empty, or cannot be removed.
    """
    _retry(lambda: _remove_folder(path), path, None)


def _remove_folder(path: Path) -> None:
    with writable.open_parent(path) as (folder, name):
        os.rmdir(name, dir_fd=folder)


def remove_tree(path: Path, *, wait: Callable[[float], object] | None = None) -> None:
    """Remove a folder and what is in it, or a file, or a link itself; nothing there is fine too.

    Args:
        path: the folder or file.
        wait: called with the seconds to wait before another try (default: :func:`time.sleep`).

    Raises:
        OSError: something of it cannot be removed, also after several tries.
    """
    with contextlib.suppress(FileNotFoundError):
        _retry(lambda: _remove_tree(path), path, wait)


def _remove_tree(path: Path) -> None:
    with writable.open_parent(path) as (folder, name):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode) or writable.is_link(status):
            _unlink(name, folder)
            return
        root = file_paths.extended_root(name) if folder is None else name
        try:
            for inside in _read_only_files(root) if folder is None else ():
                os.chmod(inside, stat.S_IRUSR | stat.S_IWUSR)  # noqa: PTH101 - it is about to be removed
            shutil.rmtree(root, dir_fd=folder)
        except (RecursionError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _TOO_DEEP:
                raise
            _remove_deep_tree(root, folder)


def _remove_deep_tree(name: str, parent: int | None) -> None:
    """Remove a folder whose folders lie deeper in one another than Python, or the system, goes down.

    What lies in its folders is moved up into it first, so that nothing is ever further away than two names.

    Args:
        name: the folder's name in ``parent``.
        parent: the open folder; None where the system acts by whole paths.

    Raises:
        OSError: something of it cannot be removed.
    """
    with _opened_folder(name, parent) as (root, prefix):
        moved = 0
        while folders := _without_files(root, prefix):
            for inner in folders:
                with _opened_folder(prefix + inner, root) as (within, inner_prefix):
                    for deeper in _without_files(within, inner_prefix):
                        while _is_taken(f"{prefix}{moved}", root):
                            moved += 1
                        os.rename(inner_prefix + deeper, f"{prefix}{moved}", src_dir_fd=within, dst_dir_fd=root)
                os.rmdir(prefix + inner, dir_fd=root)
    os.rmdir(name, dir_fd=parent)


@contextmanager
def _opened_folder(name: str, parent: int | None) -> Iterator[tuple[int | None, str]]:
    """Give a handle to a folder and nothing, or None and what stands before each name in it."""
    if parent is None:
        yield None, name + os.sep
        return
    handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        yield handle, ""
    finally:
        os.close(handle)


def _without_files(folder: int | None, prefix: str) -> list[str]:
    """Remove what lies in a folder and is no folder itself, and return the names of those that are."""
    folders = []
    with os.scandir(prefix if folder is None else folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not writable.is_link(entry.stat(follow_symlinks=False)):
                folders.append(entry.name)
            else:
                os.unlink(prefix + entry.name, dir_fd=folder)
    return folders


def _is_taken(name: str, folder: int | None) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _read_only_files(folder: str) -> Iterator[str]:
    for within, _, names in os.walk(folder):
        yield from filter(_is_read_only, (os.path.join(within, name) for name in names))  # noqa: PTH118


def remove_leftovers(folder: Path) -> None:
    """Remove what an earlier run left, of which a process may still be about to end.

    Raises:
        OSError: it cannot be removed, also after several tries.
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


def open_binary(path: Path, mode: Literal["wb", "xb", "ab", "r+b", "w+b", "x+b"], buffering: int = -1) -> BinaryIO:
    """Open a file for writing bytes; the modes are those of :func:`open`.

    Raises:
        OSError: it cannot be opened or made.
    """
    with _opener(path) as opener:
        return open(path, mode, buffering, opener=opener)


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
    """Give what opens a path in the folder that it was found in, and never a link or a pipe."""
    with writable.open_parent(path) as (folder, name):

        def opener(_: str, flags: int) -> int:
            writable.refuse_link(path)
            return os.open(name, flags | _NO_FOLLOW, 0o666, dir_fd=folder)

        yield opener


def put_bytes(path: Path, content: bytes) -> None:
    """Fill a file with bytes; it is not flushed."""
    with open_binary(path, "wb") as file:
        file.write(content)


def put_text(path: Path, text: str, *, newline: str = "") -> None:
    """Fill a file with UTF-8; it is not flushed.

    Args:
        path: where.
        text: what it is to hold.
        newline: what becomes of line ends, as for :func:`open`; by default nothing.
    """
    with open_text(path, "w", newline=newline) as file:
        file.write(text)


def write_text_atomically(path: Path, text: str, temporary: Path) -> None:
    """Put ``text`` at ``path`` in one step, by way of ``temporary`` on the same file system."""
    put_text(temporary, text, newline="\n")
    sync_file(temporary)
    replace(temporary, path)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's bytes, of what a link leads to, too; it is not flushed.

    Raises:
        OSError: one cannot be read, or the other not be written.
    """
    with links.open_for_reading(source) as file, open_binary(target, "wb") as copy:
        shutil.copyfileobj(file, copy, _CHUNK_BYTES)


def copy_tree(source: Path, target: Path, *, without: tuple[str, ...] = ()) -> None:
    """Copy a folder with what is in it, but for files whose names end with one of ``without``; it is not flushed.

    Raises:
        LinkInStore: a link is in it.
        OSError: something cannot be read or written.
    """
    for folder, folders, names in file_paths.walk(source, raise_unless_missing):
        make_folders(target / Path(folder).relative_to(source), flush=False)
        for name in (*folders, *names):
            writable.refuse_link(Path(folder, name))
        for name in names:
            if not name.endswith(without):
                file = Path(folder, name)
                copy_file(file, target / file.relative_to(source))


def make_link(target: Path, goal: str) -> None:
    """Make a symbolic link to ``goal`` where nothing is.

    Raises:
        OSError: it cannot be made, on some systems never.
    """
    with writable.open_parent(target) as (folder, name):
        os.symlink(goal, name, dir_fd=folder)


def copy_mode(source: Path, target: Path) -> None:
    """Give ``target`` the rights of ``source``."""
    mode = stat.S_IMODE(file_paths.stat(source).st_mode)
    _change(target, os.chmod, lambda file: os.chmod(file, mode))  # noqa: PTH101 - of an open file


def copy_times(source: Path, target: Path) -> None:
    """Give ``target`` the times of ``source``, as exactly as its file system keeps them."""
    status = file_paths.stat(source)
    times = (status.st_atime_ns, status.st_mtime_ns)
    _change(target, os.utime, lambda file: os.utime(file, ns=times))


def _change(path: Path, function: Callable[..., None], change: Callable[[Any], None]) -> None:
    """Change what a system keeps about a file, by way of the open file where ``function`` takes one there.

    Windows takes none, or (``os.chmod`` since Python 3.13) only one that is open for writing.
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
    """Make an empty file where nothing is."""
    open_binary(path, "ab").close()


def truncate(path: Path, size: int) -> None:
    """Cut a file off behind so many bytes."""
    with open_binary(path, "r+b") as file:
        file.truncate(size)


@contextmanager
def new_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Give a new zip archive to fill, in place of what is there."""
    with open_binary(path, "w+b") as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        yield archive
