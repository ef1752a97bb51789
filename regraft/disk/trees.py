"""Read a source, whether it is a folder or a zip archive, through one interface.

Names are relative paths with ``/`` as separator. Nothing here writes, except the functions that extract or copy a file
to a given path. Background processes import this module (:mod:`regraft.processes.pool`), so it must stay light.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import re
import shutil
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, Protocol

import msgspec

from regraft.disk import checksums, durable, file_paths, links, scratch, untrusted_sqlite
from regraft.disk.checksums import update_in_background
from regraft.disk.zip_directory import ZipDirectory, ZipMember
from regraft.errors import RegraftError, SourceUnreadable, WorkFolderTooSmall
from regraft.language import tr
from regraft.text import format_bytes

# Checking free space before anything is copied.


def require_free_space(folder: Path, needed: int) -> None:
    """Raise if the disk of a temporary folder has fewer than ``needed`` free bytes.

    Raises:
        WorkFolderTooSmall
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise WorkFolderTooSmall(path=folder, needed=format_bytes(needed), free=format_bytes(free))


CHUNK_BYTES = 1 << 20
#: Bytes read at once from a damaged member.
_DAMAGED_BYTES = 1 << 12
#: Bytes of an empty file after compression by deflate.
_EMPTY_DEFLATED = 2
#: Exceptions that Python's archive readers raise for damaged archives.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
)


def _damage_reason(error: BaseException) -> object:
    """Return the reason that a member of an archive cannot be read, in the language of the process if it is known."""
    if isinstance(error, zlib.error | lzma.LZMAError):
        return tr("it cannot be unpacked")
    wrong_checksum = re.fullmatch("Bad CRC-32 for file (.*)", str(error), re.DOTALL)
    return tr("Bad CRC-32 for file {name}", name=wrong_checksum[1]) if wrong_checksum else error


#: Reason for refusing files whose bytes may never arrive.
_NO_FILE = tr("a pipe, a socket or a device, not a file")

#: Links reported as not followed; of more, none is.
_MOST_LINKS = 100

EntryKind = Literal["file", "folder"]


class Tree(Protocol):
    """The operations on a folder or archive that reading a source needs."""

    path: Path

    def kind(self, name: str) -> EntryKind | None:
        """Return whether ``name`` is a file or a folder, or None if it does not exist. The empty name is the tree
        itself.

        Pipes, sockets and devices count as missing, because reading one may wait forever.
        """

    def is_denied(self, name: str) -> bool:
        """Whether ``name`` cannot be examined because a folder above it is not accessible."""

    def problem(self, name: str) -> str:
        """Return why ``name`` is not read because of its links; empty if there is no such reason."""

    def children(self, name: str) -> list[str]:
        """Return the sorted names directly in a folder; empty if there is no such folder."""

    def size(self, name: str) -> int:
        """Return the size of a file in bytes.

        Raises:
            SourceUnreadable: it does not exist, is not a file, or cannot be examined.
        """

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading. Never blocks.

        Raises:
            SourceUnreadable: it does not exist, is not a file, or cannot be read.
        """

    def crc32(self, name: str) -> int:
        """Return the CRC-32 of a file's bytes.

        Raises:
            SourceUnreadable: as :meth:`open` does.
        """

    @contextmanager
    def local(self, name: str, work: Path | None) -> Iterator[Path]:
        """Yield the path of a file or folder on disk, or a path that does not exist if it is missing.

        An archive's member is extracted into the folder ``work`` (default: the system's temporary folder), with the log
        or journal beside it, and removed at the end.
        """


def join_path(folder: str, name: str) -> str:
    """Return ``folder/name``; the empty folder is the tree itself."""
    return f"{folder}/{name}" if folder else name


def is_plain_name(name: str) -> bool:
    """Whether ``name`` is a single path component that cannot lead elsewhere."""
    return bool(name) and name not in (".", "..") and not set(name) & {"/", "\\", "\0"}


class FolderTree:
    """A folder on disk. Symbolic links that point outside are not followed, unless the user allows it.

    ``named`` is the path that the user gave, if the tree begins above it: it may be a link to anywhere.
    """

    def __init__(self, path: Path, named: Path | None = None) -> None:
        self.path = path
        self._named = named
        #: links that point outside, by name, with their targets; only those that were read, and at most _MOST_LINKS
        self.not_followed: dict[str, str] = {}
        #: cache of the last folder asked: path, time of change, and its non-normalized names by their NFC form
        self._forms: tuple[Path, int, dict[str, str]] | None = None

    def close(self) -> None:
        """Do nothing: a folder needs no closing."""

    @cached_property
    def _roots(self) -> tuple[Path, ...]:
        """The resolved folders that links may point into."""
        return tuple(links.real_path(path) for path in (self.path, self._named) if path is not None)

    def _real(self, name: str) -> Path:
        """Resolve a name in this tree to a path on disk.

        Raises:
            LinkLeadsOut: it is behind a link that is not followed.
            OSError, ValueError: it does not exist.
        """
        real = str(self.path)
        for part in PurePosixPath(name).parts:
            step = os.path.join(real, part)  # noqa: PTH118 - a path object for each step takes longer than to look
            try:
                status = os.lstat(file_paths.extended_path(step))
            except FileNotFoundError:
                # macOS stores names in another normalization.
                step = os.path.join(real, part if part.isascii() else self._other_form(Path(real), part))  # noqa: PTH118
                status = os.lstat(file_paths.extended_path(step))
            real = str(self._follow(Path(step), name)) if file_paths.is_link_stat(status) else step
        return Path(real)

    def _follow(self, link: Path, name: str) -> Path:
        """Return the path to read instead of ``link``, a part of the path of ``name``.

        Raises:
            LinkLeadsOut: the link must not be followed; recorded in :attr:`not_followed`.
        """
        if links.are_links_followed():
            return link
        real = links.real_path(link)
        if links.is_inside(real, self._roots):
            return real
        if len(self.not_followed) < _MOST_LINKS:
            self.not_followed[name] = str(real)
        raise links.LinkLeadsOut(str(real))

    def _other_form(self, folder: Path, name: str) -> str:
        """Return the name in a folder that equals ``name`` except for its Unicode normalization; otherwise ``name``."""
        form = unicodedata.normalize("NFC", name)
        if os.path.lexists(folder / form):
            return form
        changed = folder.stat().st_mtime_ns
        if self._forms is None or self._forms[:2] != (folder, changed):
            others = ((unicodedata.normalize("NFC", one), one) for one in _list_folder(folder) if not one.isascii())
            self._forms = folder, changed, {normal: one for normal, one in others if normal != one}
        return self._forms[2].get(form, name)

    def problem(self, name: str) -> str:
        """Return why ``name`` is not read because of its links; empty if there is no such reason."""
        try:
            self._real(name)
        except links.LinkLeadsOut as error:
            return str(error.strerror)
        except (OSError, ValueError):
            pass
        return ""

    def kind(self, name: str) -> EntryKind | None:
        """Return whether ``name`` is a file or a folder, or None if it does not exist."""
        try:
            mode = file_paths.stat(self._real(name)).st_mode
            return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else None
        except (OSError, ValueError):  # ValueError: a NUL in the name
            return None

    def is_denied(self, name: str) -> bool:
        """Whether ``name`` cannot be examined because a folder above it is not accessible."""
        try:
            file_paths.stat(self._real(name))
        except PermissionError:
            return True
        except (OSError, ValueError):
            return False
        return False

    def children(self, name: str) -> list[str]:
        """Return the sorted names directly in a folder; empty if there is no such folder."""
        return _list_folder(self._real(name)) if self.kind(name) == "folder" else []

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        with self._report_unreadable(name):
            status = file_paths.stat(self._real(name))
            links.require_regular_file(status.st_mode)
            return status.st_size

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading. Never blocks."""
        with self._report_unreadable(name):
            file = self._open_real(name)
            try:
                checksums.refuse_sparse_file(file.fileno())
            except BaseException:
                file.close()
                raise
            return file

    def _open_real(self, name: str) -> BinaryIO:
        """Open a file for reading, without converting errors. Never blocks."""
        return os.fdopen(links.open_descriptor(self._real(name)), "rb")

    @contextmanager
    def _report_unreadable(self, name: str) -> Iterator[None]:
        """Context that converts errors of reading the file ``name`` to SourceUnreadable."""
        try:
            yield
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = error.strerror if isinstance(error, OSError) else None
            raise SourceUnreadable(path=f"{self.path}/{name}", reason=reason or error) from error

    def crc32(self, name: str) -> int:
        """Return the CRC-32 of a file's bytes."""
        with self._report_unreadable(name), self._open_real(name) as file:
            return checksums.file_crc32(file)

    @contextmanager
    def local(self, name: str, work: Path | None) -> Iterator[Path]:  # noqa: ARG002 - a folder needs no work folder
        """Yield the path of a file or folder on disk, or a path that does not exist if it is missing."""
        try:
            real = self._real(name)
        except links.LinkLeadsOut as error:
            raise SourceUnreadable(path=f"{self.path}/{name}", reason=error.strerror) from error
        except (OSError, ValueError):
            real = self.path / name
        # Pipes and devices count as missing: yield a path below one, which cannot exist.
        yield real / real.name if _is_special(real) else real


def _is_special(path: Path) -> bool:
    """Whether a path is a pipe, a socket or a device."""
    try:
        mode = file_paths.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISDIR(mode) and not stat.S_ISREG(mode)


def _list_folder(folder: Path) -> list[str]:
    """Return the sorted names in a folder; empty if it cannot be listed."""
    try:
        return sorted(file_paths.names_in(folder))
    except OSError:
        return []


def stream_crc32(file: BinaryIO) -> int:
    """Return the CRC-32 of the unread rest of ``file``."""
    value = 0
    while chunk := file.read(CHUNK_BYTES):
        value = zlib.crc32(chunk, value)
    return value


class ZipTree:
    """A zip archive. Its directory is checked completely before anything is read.

    Args:
        path: the archive.
        salvage: read members whose names in the directory and in their own headers differ. They are found by both
            names; without this, reading one raises SourceUnreadable.

    Raises:
        ArchiveUnsafe: a member's path climbs out, is absolute, too long or too deep, or occurs twice; a member is
            encrypted, overlaps another, or is a zip bomb.
        SourceUnreadable: it is not a zip archive, truncated, damaged, or not a regular file.
    """

    def __init__(self, path: Path, *, salvage: bool = False) -> None:
        self.path = path
        self._is_salvaged = salvage
        if _is_special(path):
            raise SourceUnreadable(path=path, reason=_NO_FILE)
        try:
            with path.open("rb") as file:
                checksums.refuse_sparse_file(file.fileno())
            self._directory = ZipDirectory(path)
        except RegraftError:
            raise
        except _DAMAGE as error:
            raise SourceUnreadable(
                path=path, reason=tr("damaged or incomplete zip archive: {reason}", reason=_reason(error))
            ) from error

    def close(self) -> None:
        """Close the archive."""
        self._directory.close()

    def _member(self, name: str) -> ZipMember:
        """Return the member with this path; raise SourceUnreadable if it does not exist or is a folder."""
        found = self._directory.find(name)
        if found is None or found[1] is None:
            raise SourceUnreadable(path=self.path, reason=tr("{name} is not in it", name=name))
        return found[1]

    def kind(self, name: str) -> EntryKind | None:
        """Return whether ``name`` is a file or a folder, or None if it does not exist."""
        found = self._directory.find(name)
        return None if found is None else "folder" if found[1] is None else "file"

    def problem(self, name: str) -> str:  # noqa: ARG002 - an archive's links are never followed
        """Return why ``name`` is not read because of its links; empty if there is no such reason."""
        return ""

    def is_denied(self, name: str) -> bool:  # noqa: ARG002
        """Whether ``name`` cannot be examined because a folder above it is not accessible."""
        return False

    def children(self, name: str) -> list[str]:
        """Return the sorted names directly in a folder; empty if there is no such folder."""
        found = self._directory.find(name)
        if found is None or found[1] is not None:
            return []
        return sorted(child for _, child, _ in self._directory.children(found[0]))

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        return self._member(name).size

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading. Never blocks."""
        member = self._member(name)
        if not member.size and not member.crc and member.packed <= _EMPTY_DEFLATED:
            # An archive can list very many of them.
            return io.BytesIO()
        try:
            return _MemberReader(self._directory.open(member, accepts_renamed=self._is_salvaged), self.path, name)
        except SourceUnreadable:
            raise
        except _DAMAGE as error:
            raise SourceUnreadable(path=self.path, reason=f"{name}: {error}") from error

    def crc32(self, name: str) -> int:
        """Return the CRC-32 of a file's bytes."""
        return self._member(name).crc

    @contextmanager
    def local(self, name: str, work: Path | None) -> Iterator[Path]:
        """Yield the path of a file or folder on disk, or a path that does not exist if it is missing.

        A file is extracted, with a log or journal beside it, to a temporary folder in ``work`` (None: the system's).
        For a folder, an empty one is made.
        """
        if self.kind(name) is None:
            yield self.path / name  # below a file: there is nothing at such a path
            return
        with scratch.temporary_folder(work) as folder:
            path = folder / "member"
            if self.kind(name) == "file":
                require_free_space(folder, self.size(name))
                self.extract(name, path)
                for suffix in untrusted_sqlite.COMPANIONS:
                    if self.kind(name + suffix) == "file":
                        with self.open(name + suffix) as file:
                            first = file.read(8)
                            if not untrusted_sqlite.is_companion(first, suffix):
                                # It is a base with such a name, or its first bytes are damaged.
                                while file.read(CHUNK_BYTES):
                                    pass
                                continue
                        self.extract(name + suffix, path.with_name(path.name + suffix))
            else:
                durable.make_folder(path)
            yield path

    def renamed_members(self, most: int) -> tuple[int, list[tuple[str, str]]]:
        """Return the number of members whose names in the directory and in their own headers differ.

        With it come both names of the first ``most`` of them.
        """
        return self._directory.renamed_members(most)

    def files(self, folder: str) -> Iterator[str]:
        """Yield the names of all files below a folder in sorted order, including links."""
        found = self._directory.find(folder)
        if found is not None and found[1] is None:
            yield from self._files_below(found[0], folder)

    def _files_below(self, number: int, folder: str) -> Iterator[str]:
        """Yield the paths of all files below ``folder``, whose entry has the id ``number``."""
        for child, name, is_file in self._directory.children(number):
            if is_file:
                yield join_path(folder, name)
            else:
                yield from self._files_below(child, join_path(folder, name))

    def is_link(self, name: str) -> bool:
        """Whether a member is a symbolic link; its bytes are then the target path."""
        return self._member(name).is_link

    def is_intact(self, name: str) -> bool:
        """Whether a member can be unpacked, and matches its checksum; reads all of it."""
        try:
            with self.open(name) as file:
                while file.read(CHUNK_BYTES):
                    pass
        except SourceUnreadable:
            return False
        return True

    def extract(self, name: str, target: Path) -> None:
        """Write the bytes of the member ``name`` to the file ``target``.

        Raises:
            SourceUnreadable: the member is damaged.
            OSError: ``target`` cannot be written.
        """
        with self.open(name) as file, durable.open_binary(target, "wb") as copy:
            shutil.copyfileobj(file, copy, CHUNK_BYTES)

    @contextmanager
    def local_damaged(self, name: str, work: Path | None) -> Iterator[Path]:
        """Yield the path of a copy of a damaged member: the bytes that can be unpacked, whatever their checksum is.

        The log or journal of a SQLite file is copied beside it in the same way. ``work`` is the folder for the copy;
        None: the system's temporary folder.

        Raises:
            SourceUnreadable: the member is encrypted, or compressed by an unsupported method.
            WorkFolderTooSmall, OSError: the copy cannot be written.
        """
        with scratch.temporary_folder(work) as folder:
            require_free_space(folder, self.size(name))
            path = folder / "member"
            self._extract_damaged(name, path)
            for suffix in untrusted_sqlite.COMPANIONS:
                if self.kind(name + suffix) == "file":
                    with suppress(SourceUnreadable):
                        self._extract_damaged(name + suffix, path.with_name(path.name + suffix))
            yield path

    def _extract_damaged(self, name: str, target: Path) -> None:
        """Write the bytes of one damaged member that can be unpacked to the file ``target``.

        Raises:
            SourceUnreadable, OSError: see :meth:`local_damaged`.
        """
        try:
            reader = self._directory.open(self._member(name), is_verified=False, accepts_renamed=True)
        except _DAMAGE as error:
            raise SourceUnreadable(path=self.path, reason=f"{name}: {error}") from error
        with reader as file, durable.open_binary(target, "wb") as copy:
            while True:
                try:
                    # All that a call unpacks is lost with an error in it.
                    chunk = file.read1(_DAMAGED_BYTES)  # type: ignore[attr-defined]
                except _DAMAGE:
                    return
                if not chunk:
                    return
                copy.write(chunk)

    def extract_hashed(self, name: str, target: Path) -> str:
        """Extract a member as :meth:`extract` does, and return the SHA-256 of its bytes in hex.

        Raises:
            SourceUnreadable, OSError: see :meth:`extract`.
        """
        digest = hashlib.sha256()
        is_large = self.size(name) > CHUNK_BYTES
        hashing = update_in_background(digest.update) if is_large else nullcontext(digest.update)
        with self.open(name) as file, durable.open_binary(target, "wb") as copy, hashing as update:
            while chunk := file.read(CHUNK_BYTES):
                update(chunk)
                copy.write(chunk)
        return digest.hexdigest()


def _reason(error: Exception) -> object:
    """Return the system's message of an OSError, or else the error itself, to show to the user."""
    return error.strerror if isinstance(error, OSError) and error.strerror else error


class _MemberReader(io.RawIOBase, BinaryIO):
    """A reader of a member that reports damage as :class:`SourceUnreadable`."""

    def __init__(self, member: object, path: Path, name: str) -> None:
        self._member: BinaryIO = member  # type: ignore[assignment]
        self._path = path
        self._name = name

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        try:
            return self._member.read(size)
        except _DAMAGE as error:
            raise SourceUnreadable(
                path=self._path, reason=tr("{name} is damaged: {error}", name=self._name, error=_damage_reason(error))
            ) from error

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._member.close()
        super().close()


def open_tree(path: Path, *, salvage: bool = False) -> FolderTree | ZipTree:
    """Open a folder or a zip archive; ``salvage`` is that of :class:`ZipTree`."""
    return FolderTree(path) if path.is_dir() else ZipTree(path, salvage=salvage)


# Copying files of a source, and detecting changes to them.


#: The mark of a file that cannot be read.
UNREADABLE = "unreadable"
#: Bytes copied at once; with more, the allocator asks the system for memory each time.
_COPY_BYTES = 1 << 16


class SourceReadFailed(Exception):
    """A file of the source could not be read to its end, although it looked intact; the message says why."""


def first_existing_file(tree: Tree, names: Iterable[str]) -> str | None:
    """Return the first of the names that is a file, or None."""
    return next((name for name in names if tree.kind(name) == "file"), None)


def content_mark(tree: Tree, name: str | None) -> object:
    """Return a value that changes when the file ``name`` of a source is changed: its size and CRC-32.

    :data:`UNREADABLE` for a file that cannot be read, ``"folder"`` for a folder; None: there is nothing, or no name.
    """
    kind = tree.kind(name) if name else None
    if name is None or kind != "file":
        return kind
    try:
        return [tree.size(name), tree.crc32(name)]
    except OSError:
        return UNREADABLE


def copy_from_tree(tree: Tree, name: str, target: Path) -> None:
    """Copy a file of a source to ``target``, which must not exist; remove the copy if the source cannot be read.

    Raises:
        SourceReadFailed, SourceUnreadable: the source cannot be read.
        OSError: the target cannot be written.
    """
    with tree.open(name) as file:
        try:
            copy_stream(file, target)
        except SourceReadFailed:
            durable.remove(target, missing_ok=True)
            raise


def copy_stream(file: BinaryIO, target: Path) -> None:
    """Copy the rest of an open file of a source to ``target``, which must not exist. Its folder is made if missing.

    Raises:
        SourceReadFailed: the source cannot be read.
        OSError: the target cannot be written.
    """
    if not file_paths.is_folder(target.parent):
        durable.make_folders(target.parent, flush=False)
    with durable.open_binary(target, "xb") as copied:
        shutil.copyfileobj(_Reader(file), copied, _COPY_BYTES)


class _Reader:
    """Reads from the source, raising its errors as :class:`SourceReadFailed` to tell them from those of the target."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        """Read up to ``size`` bytes."""
        try:
            return self._file.read(size)
        except OSError as error:
            reason = error.facts["reason"] if isinstance(error, SourceUnreadable) else error.strerror or error
            raise SourceReadFailed(str(reason)) from error


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with Path(file_paths.extended_path(path)).open("rb", buffering=0) as file:
        # A short file is read at once, without the setup of ``file_digest``.
        first = file.read(_COPY_BYTES)
        hasher = hashlib.sha256(first)
        if len(first) == _COPY_BYTES:
            hashlib.file_digest(file, lambda: hasher)
        return hasher.hexdigest()


def folder_hash(base: Path, folder: str) -> str:
    """Return the SHA-256 of the paths (relative to ``base``) and bytes of all files in a folder; "" if it does not
    exist.
    """
    hasher = hashlib.sha256()
    # Windows compares paths without regard to case; the hash is the same on every system.
    for path in sorted(file_paths.iterate_below(base / folder), key=lambda path: path.parts):
        # Links are not followed: regraft writes none.
        content = file_hash(path) if stat.S_ISREG(file_paths.lstat(path).st_mode) else "no file"
        hasher.update(f"{path.relative_to(base).as_posix()} {content}\n".encode())
    return hasher.hexdigest() if file_paths.is_folder(base / folder) else ""


def total_size(path: Path) -> int:
    """Return the size of a file, or of all files in a folder without following links. Unreadable files count as 0."""
    inside = (Path(folder, name) for folder, _, names in file_paths.walk(path) for name in names)
    total = 0
    for file in inside if path.is_dir() else [path]:
        with suppress(OSError):
            total += file_paths.lstat(file).st_size
    return total


# --- called in background processes ----------------------------------------------------------------------------------


class SourceFolder(msgspec.Struct, frozen=True):
    """A source that is a folder, as background processes read it."""

    tree: FolderTree
    follow_links: bool


def content_marks(source: SourceFolder, files: Sequence[Sequence[str]]) -> list[object]:
    """Return the :func:`content_mark` of each requested file of a source.

    Each element of ``files`` has candidate names of one file; the first that exists is used.
    """
    with links.follow_links(source.follow_links):
        return [content_mark(source.tree, first_existing_file(source.tree, names)) for names in files]


def copy_files(source: SourceFolder, files: Sequence[tuple[Sequence[str], str]], target: Path) -> list[bool]:
    """Copy files of a source to paths below ``target``; return for each whether it was copied.

    Each element of ``files`` has candidate names of one file (the first that exists is used), and the path of its
    copy. Read errors are left to the caller, which reads the file again and reports them.
    """
    is_copied = []
    with links.follow_links(source.follow_links):
        for names, path in files:
            name = first_existing_file(source.tree, names)
            is_copied.append(name is not None)
            if name is not None:
                try:
                    copy_from_tree(source.tree, name, target / path)
                except (SourceReadFailed, SourceUnreadable):
                    is_copied[-1] = False
    return is_copied
