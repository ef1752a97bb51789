"""A tree of files that a user hands in: a folder, or an archive read in place, member by member.

Names are relative, with ``/`` between their parts. Nothing here writes, except :meth:`ZipTree.extract` to the path
it is given.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
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

from regraft.disk import checksums, durable, file_paths, links, untrusted_sqlite
from regraft.disk.checksums import update_in_background
from regraft.disk.zip_directory import ZipDirectory, ZipMember
from regraft.errors import RegraftError, SourceUnreadable, WorkFolderTooSmall
from regraft.language import tr
from regraft.text import format_bytes

# Room on disks, looked at before anything is copied: what does not fit is refused, not begun.


def require_free_space(folder: Path, needed: int) -> None:
    """Refuse to write more into a temporary folder than fits there.

    Raises:
        WorkFolderTooSmall
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise WorkFolderTooSmall(path=folder, needed=format_bytes(needed), free=format_bytes(free))


CHUNK_BYTES = 1 << 20
#: What Python's readers of archives raise for damaged ones.
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

#: Why nothing is read whose bytes may never come.
_NO_FILE = tr("a pipe, a socket or a device, not a file")

#: So many links that are not followed are named.
_MOST_LINKS = 100

EntryKind = Literal["file", "folder"]


class Tree(Protocol):
    """What reading a source needs of a folder or an archive."""

    path: Path

    def kind(self, name: str) -> EntryKind | None:
        """Tell what stands under ``name``; None where nothing does. The empty name is the tree itself.

        Pipes, sockets and devices are nothing: reading one may wait forever.
        """

    def is_denied(self, name: str) -> bool:
        """Tell whether nobody can see what stands under ``name``: a folder above it may not be looked into."""

    def problem(self, name: str) -> str:
        """Say why a name is not read for where its links lead; nothing where that is not so."""

    def children(self, name: str) -> list[str]:
        """Return the sorted names of what lies directly in a folder; empty where there is none."""

    def size(self, name: str) -> int:
        """Return the size of a file in bytes.

        Raises:
            SourceUnreadable: it is not there, is no file, or cannot be looked at.
        """

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading. This never waits.

        Raises:
            SourceUnreadable: it is not there, is no file, or cannot be read.
        """

    def crc32(self, name: str) -> int:
        """Return the CRC-32 of a file's bytes.

        Raises:
            SourceUnreadable: as :meth:`open` does.
        """

    @contextmanager
    def local(self, name: str, work: Path | None) -> Iterator[Path]:
        """Give the path of a file or folder that programs can open, or one where nothing is, if there is none.

        An archive's member is extracted into the folder ``work`` (default: the system's temporary folder), with the
        log or journal beside it, and removed at the end.
        """


def join_path(folder: str, name: str) -> str:
    """Return ``folder/name``; the empty folder is the tree itself."""
    return f"{folder}/{name}" if folder else name


def is_plain_name(name: str) -> bool:
    """Tell whether ``name`` is one path component that stays where it is put."""
    return bool(name) and name not in (".", "..") and not set(name) & {"/", "\\", "\0"}


class FolderTree:
    """A folder on disk. Symbolic links that lead out of it are not followed, unless the user wants that.

    ``named`` is the path that the user gave, where the tree begins above it: it may be a link to anywhere.
    """

    def __init__(self, path: Path, named: Path | None = None) -> None:
        self.path = path
        self._named = named
        #: The links that lead out and were asked for, and where to; no more than a few.
        self.not_followed: dict[str, str] = {}
        #: Of the folder asked last: when it was changed, and its names that are not normalised by what they would be.
        self._forms: tuple[Path, int, dict[str, str]] | None = None

    def close(self) -> None:
        """Do nothing: a folder needs no closing."""

    @cached_property
    def _roots(self) -> tuple[Path, ...]:
        return tuple(links.real_path(path) for path in (self.path, self._named) if path is not None)

    def _real(self, name: str) -> Path:
        """Return where a name is on disk.

        Raises:
            LeadsOut: it is behind a link that is not followed.
            OSError, ValueError: nothing can be there.
        """
        real = str(self.path)
        for part in PurePosixPath(name).parts:
            step = os.path.join(real, part)  # noqa: PTH118 - a path object for each step takes longer than to look
            try:
                mode = os.lstat(file_paths.extended_path(step)).st_mode
            except FileNotFoundError:
                # macOS stores names in another normalisation.
                step = os.path.join(real, part if part.isascii() else self._other_form(Path(real), part))  # noqa: PTH118
                mode = os.lstat(file_paths.extended_path(step)).st_mode
            real = str(self._behind(Path(step), name)) if stat.S_ISLNK(mode) else step
        return Path(real)

    def _behind(self, link: Path, name: str) -> Path:
        if links.are_links_followed():
            return link
        real = links.real_path(link)
        if links.is_inside(real, self._roots):
            return real
        if len(self.not_followed) < _MOST_LINKS:
            self.not_followed[name] = str(real)
        raise links.LinkLeadsOut(str(real))

    def _other_form(self, folder: Path, name: str) -> str:
        """Return the name in a folder that is ``name`` but for its Unicode normalisation; else ``name``."""
        form = unicodedata.normalize("NFC", name)
        if os.path.lexists(folder / form):
            return form
        changed = folder.stat().st_mtime_ns
        if self._forms is None or self._forms[:2] != (folder, changed):
            others = ((unicodedata.normalize("NFC", one), one) for one in _listing(folder) if not one.isascii())
            self._forms = folder, changed, {normal: one for normal, one in others if normal != one}
        return self._forms[2].get(form, name)

    def problem(self, name: str) -> str:
        """Say why a name is not read for where its links lead; nothing where that is not so."""
        try:
            self._real(name)
        except links.LinkLeadsOut as error:
            return str(error.strerror)
        except (OSError, ValueError):
            pass
        return ""

    def kind(self, name: str) -> EntryKind | None:
        """See :meth:`Tree.kind`."""
        try:
            mode = file_paths.stat(self._real(name)).st_mode
            return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else None
        except (OSError, ValueError):  # ValueError: a NUL in the name
            return None

    def is_denied(self, name: str) -> bool:
        """See :meth:`Tree.is_denied`."""
        try:
            file_paths.stat(self._real(name))
        except PermissionError:
            return True
        except (OSError, ValueError):
            return False
        return False

    def children(self, name: str) -> list[str]:
        """See :meth:`Tree.children`."""
        return _listing(self._real(name)) if self.kind(name) == "folder" else []

    def size(self, name: str) -> int:
        """See :meth:`Tree.size`."""
        with self._reported(name):
            status = file_paths.stat(self._real(name))
            links.require_regular_file(status.st_mode)
            return status.st_size

    def open(self, name: str) -> BinaryIO:
        """See :meth:`Tree.open`."""
        with self._reported(name):
            file = self._opened(name)
            try:
                checksums.refuse_sparse_file(file.fileno())
            except BaseException:
                file.close()
                raise
            return file

    def _opened(self, name: str) -> BinaryIO:
        return os.fdopen(links.open_descriptor(self._real(name)), "rb")

    @contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = error.strerror if isinstance(error, OSError) else None
            raise SourceUnreadable(path=f"{self.path}/{name}", reason=reason or error) from error

    def crc32(self, name: str) -> int:
        """See :meth:`Tree.crc32`."""
        with self._reported(name), self._opened(name) as file:
            return checksums.file_crc32(file)

    @contextmanager
    def local(self, name: str, work: Path | None) -> Iterator[Path]:  # noqa: ARG002 - a folder needs no work folder
        """See :meth:`Tree.local`."""
        try:
            real = self._real(name)
        except links.LinkLeadsOut as error:
            raise SourceUnreadable(path=f"{self.path}/{name}", reason=error.strerror) from error
        except (OSError, ValueError):
            real = self.path / name
        # What is neither file nor folder counts as nothing; below it there is nothing indeed.
        yield real / real.name if _is_special(real) else real


def _is_special(path: Path) -> bool:
    """Tell whether a path is that of a pipe, a socket or a device."""
    try:
        mode = file_paths.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISDIR(mode) and not stat.S_ISREG(mode)


def _listing(folder: Path) -> list[str]:
    try:
        return sorted(file_paths.names_in(folder))
    except OSError:
        return []


def stream_crc32(file: BinaryIO) -> int:
    """Return the CRC-32 of what is left to read of ``file``."""
    value = 0
    while chunk := file.read(CHUNK_BYTES):
        value = zlib.crc32(chunk, value)
    return value


class ZipTree:
    """A zip archive. Its directory is checked as a whole before anything is read.

    Raises:
        ArchiveUnsafe: a member climbs out, is absolute or encrypted, too long or too deep, is named twice, overlaps
            another, or is a bomb.
        SourceUnreadable: it is no zip archive, truncated or damaged, or no file at all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
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
        found = self._directory.find(name)
        if found is None or found[1] is None:
            raise SourceUnreadable(path=self.path, reason=tr("{name} is not in it", name=name))
        return found[1]

    def kind(self, name: str) -> EntryKind | None:
        """See :meth:`Tree.kind`."""
        found = self._directory.find(name)
        return None if found is None else "folder" if found[1] is None else "file"

    def problem(self, name: str) -> str:  # noqa: ARG002 - an archive's links are never followed
        """See :meth:`Tree.problem`."""
        return ""

    def is_denied(self, name: str) -> bool:  # noqa: ARG002
        """See :meth:`Tree.is_denied`."""
        return False

    def children(self, name: str) -> list[str]:
        """See :meth:`Tree.children`."""
        found = self._directory.find(name)
        if found is None or found[1] is not None:
            return []
        return sorted(child for _, child, _ in self._directory.children(found[0]))

    def size(self, name: str) -> int:
        """See :meth:`Tree.size`."""
        return self._member(name).size

    def open(self, name: str) -> BinaryIO:
        """See :meth:`Tree.open`."""
        try:
            return _MemberReader(self._directory.open(self._member(name)), self.path, name)
        except SourceUnreadable:
            raise
        except _DAMAGE as error:
            raise SourceUnreadable(path=self.path, reason=f"{name}: {error}") from error

    def crc32(self, name: str) -> int:
        """See :meth:`Tree.crc32`."""
        return self._member(name).crc

    @contextmanager
    def local(self, name: str, work: Path | None) -> Iterator[Path]:
        """See :meth:`Tree.local`."""
        if self.kind(name) is None:
            yield self.path / name  # below a file: there is nothing at such a path
            return
        with durable.temporary_folder(work) as folder:
            place = folder / "member"
            if self.kind(name) == "file":
                require_free_space(folder, self.size(name))
                self.extract(name, place)
                for suffix in ("-wal", "-journal"):
                    self._extract_companion(name + suffix, place.with_name(place.name + suffix), suffix)
            else:
                durable.make_folder(place)
            yield place

    def files(self, folder: str) -> Iterator[str]:
        """Yield the names of all files below a folder, sorted; links are among them."""
        found = self._directory.find(folder)
        if found is not None and found[1] is None:
            yield from self._below(found[0], folder)

    def _below(self, number: int, folder: str) -> Iterator[str]:
        for child, name, is_file in self._directory.children(number):
            if is_file:
                yield join_path(folder, name)
            else:
                yield from self._below(child, join_path(folder, name))

    def is_link(self, name: str) -> bool:
        """Tell whether a member is a symbolic link: its bytes are the path that it leads to."""
        return self._member(name).is_link

    def _extract_companion(self, name: str, place: Path, suffix: str) -> None:
        if self.kind(name) != "file":
            return
        with self.open(name) as file:
            first = file.read(8)
        if untrusted_sqlite.is_companion(first, suffix):
            self.extract(name, place)

    def extract(self, name: str, place: Path) -> None:
        """Write a member's bytes to ``place``.

        Raises:
            SourceUnreadable: the member is damaged.
            OSError: the place cannot be written.
        """
        with self.open(name) as file, durable.open_binary(place, "wb") as copy:
            shutil.copyfileobj(file, copy, CHUNK_BYTES)

    def extract_hashed(self, name: str, place: Path) -> str:
        """Do the same, and return the SHA-256 of the bytes in hex.

        Raises:
            SourceUnreadable, OSError: see :meth:`extract`.
        """
        digest = hashlib.sha256()
        is_large = self.size(name) > CHUNK_BYTES
        hashing = update_in_background(digest.update) if is_large else nullcontext(digest.update)
        with self.open(name) as file, durable.open_binary(place, "wb") as copy, hashing as update:
            while chunk := file.read(CHUNK_BYTES):
                update(chunk)
                copy.write(chunk)
        return digest.hexdigest()


def _reason(error: Exception) -> object:
    return error.strerror if isinstance(error, OSError) and error.strerror else error


class _MemberReader(io.RawIOBase, BinaryIO):
    """A member's bytes, with damage reported as :class:`SourceUnreadable`."""

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
                path=self._path, reason=tr("{name} is damaged: {error}", name=self._name, error=error)
            ) from error

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._member.close()
        super().close()


def open_tree(path: Path) -> FolderTree | ZipTree:
    """Open ``path`` as a folder or as a zip archive, whichever it is."""
    return FolderTree(path) if path.is_dir() else ZipTree(path)


# Files of a source as a whole: whether they changed, their copies, and hashes of what was written.
#
# Processes that help load this module (:mod:`regraft.processes.pool`), so it needs little.


#: Stands for a file whose bytes nobody can tell.
UNREADABLE = "unreadable"
#: So much is copied at a time: more would be asked of the system anew each time.
_COPY_BYTES = 1 << 16


class SourceReadFailed(Exception):
    """Something of the source could not be read to its end, though it looked well; the text says why."""


def first_existing_file(tree: Tree, names: Iterable[str]) -> str | None:
    """Return the first of some names that a file has, None where none has one."""
    return next((name for name in names if tree.kind(name) == "file"), None)


def content_mark(tree: Tree, name: str | None) -> object:
    """Return what tells whether a file changed, by size and CRC-32; of anything else what it is."""
    kind = tree.kind(name) if name else None
    if name is None or kind != "file":
        return kind
    try:
        return [tree.size(name), tree.crc32(name)]
    except OSError:
        return UNREADABLE


def copy_from_tree(tree: Tree, name: str, target: Path) -> None:
    """Copy a file of a source to ``target``, where no file is yet; nothing is left there where it cannot be read.

    Raises:
        SourceFailed, SourceUnreadable: it cannot be read.
        OSError: the target cannot be written.
    """
    with tree.open(name) as file:
        try:
            copy_stream(file, target)
        except SourceReadFailed:
            durable.remove(target, missing_ok=True)
            raise


def copy_stream(file: BinaryIO, target: Path) -> None:
    """Copy what can be read to ``target``, where no file is yet.

    Raises:
        SourceFailed: it cannot be read.
        OSError: the target cannot be written.
    """
    if not file_paths.is_folder(target.parent):
        durable.make_folders(target.parent, flush=False)
    with durable.open_binary(target, "xb") as copied:
        shutil.copyfileobj(_Reader(file), copied, _COPY_BYTES)


class _Reader:
    """Reads from the source, with its errors told apart from those of the target."""

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
        # Of a file up to that length, nothing has to be set up to read it piece by piece.
        first = file.read(_COPY_BYTES)
        hasher = hashlib.sha256(first)
        if len(first) == _COPY_BYTES:
            hashlib.file_digest(file, lambda: hasher)
        return hasher.hexdigest()


def folder_hash(base: Path, folder: str) -> str:
    """Return the SHA-256 of the names, from ``base`` on, and bytes of all files below a folder of it; "" without it."""
    hasher = hashlib.sha256()
    for path in sorted(file_paths.iterate_below(base / folder)):
        # A link is not followed: regraft writes none.
        content = file_hash(path) if stat.S_ISREG(file_paths.lstat(path).st_mode) else "no file"
        hasher.update(f"{path.relative_to(base)} {content}\n".encode())
    return hasher.hexdigest() if file_paths.is_folder(base / folder) else ""


def total_size(path: Path) -> int:
    """Return how many bytes a file has, or all files in a folder, links not followed; what cannot be read has none."""
    inside = (Path(folder, name) for folder, _, names in file_paths.walk(path) for name in names)
    total = 0
    for file in inside if path.is_dir() else [path]:
        with suppress(OSError):
            total += file_paths.lstat(file).st_size
    return total


# --- in processes that help ------------------------------------------------------------------------------------------


class SourceFolder(msgspec.Struct, frozen=True):
    """A source that is a folder, as other processes read it."""

    tree: FolderTree
    follow_links: bool


def content_marks(place: SourceFolder, files: Sequence[Sequence[str]]) -> list[object]:
    """Return the marks of files, each the first one that has one of some names."""
    with links.follow_links(place.follow_links):
        return [content_mark(place.tree, first_existing_file(place.tree, names)) for names in files]


def copy_files(place: SourceFolder, files: Sequence[tuple[Sequence[str], str]], target: Path) -> list[bool]:
    """Copy files to their paths below ``target``, each the first one that has one of some names; tell which were.

    What was in the way is for others to find and to say.
    """
    with links.follow_links(place.follow_links):
        return [_is_copied(place.tree, names, target / path) for names, path in files]


def _is_copied(tree: Tree, names: Sequence[str], target: Path) -> bool:
    name = first_existing_file(tree, names)
    if name is None:
        return False
    try:
        copy_from_tree(tree, name, target)
    except (SourceReadFailed, SourceUnreadable):
        return False
    return True
