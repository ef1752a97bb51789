"""A tree of files that a user hands in: a folder, or an archive read in place, member by member.

Names are relative, with ``/`` between their parts. Nothing here writes, except :meth:`ZipTree.extract` to the path
it is given.
"""

from __future__ import annotations

import errno
import hashlib
import io
import lzma
import os
import shutil
import stat
import struct
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, Protocol

from regraft import sqlite
from regraft.errors import ArchiveEncrypted, ArchiveUnsafe, SourceUnreadable, WorkFolderTooSmall
from regraft.hashing import in_background
from regraft.progress import human_bytes

CHUNK_BYTES = 1 << 20
#: A member that grows by more than this factor, and to more than this size, is a bomb: text packs to a tenth,
#: vectors hardly at all, and repeated pages to a hundredth.
BOMB_RATIO = 500
BOMB_BYTES = 16 << 20
#: Longer and deeper names are no file's on any system, and take memory for each of their parts.
LONGEST_NAME, MOST_PARTS = 4_096, 255
#: What stands before a member's bytes at the least.
_LOCAL_HEADER_BYTES = 30

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
_NO_FILE = "a pipe, a socket or a device, not a file"

Kind = Literal["file", "folder"]


class Tree(Protocol):
    """What reading a source needs of a folder or an archive."""

    path: Path

    def kind(self, name: str) -> Kind | None:
        """Tell what stands under ``name``; None where nothing does. The empty name is the tree itself.

        Pipes, sockets and devices are nothing: reading one may wait forever.
        """

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


def join(folder: str, name: str) -> str:
    """Return ``folder/name``; the empty folder is the tree itself."""
    return f"{folder}/{name}" if folder else name


def is_plain_name(name: str) -> bool:
    """Tell whether ``name`` is one path component that stays where it is put."""
    return bool(name) and name not in (".", "..") and not set(name) & {"/", "\\", "\0"}


def _matching(wanted: str, names: list[str]) -> str | None:
    """Return the one of ``names`` that is ``wanted`` but for Unicode normalisation (macOS stores another one)."""
    key = unicodedata.normalize("NFC", wanted)
    return next((name for name in names if unicodedata.normalize("NFC", name) == key), None)


class FolderTree:
    """A folder on disk. Symbolic links are followed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _real(self, name: str) -> Path:
        real = self.path
        for part in PurePosixPath(name).parts:
            step = real / part
            if not os.path.lexists(step) and not part.isascii():
                step = real / (_matching(part, _listing(real)) or part)
            real = step
        return real

    def kind(self, name: str) -> Kind | None:
        """See :meth:`Tree.kind`."""
        try:
            mode = self._real(name).stat().st_mode
            return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else None
        except (OSError, ValueError):  # ValueError: a NUL in the name
            return None

    def children(self, name: str) -> list[str]:
        """See :meth:`Tree.children`."""
        return _listing(self._real(name)) if self.kind(name) == "folder" else []

    def size(self, name: str) -> int:
        """See :meth:`Tree.size`."""
        with self._reported(name):
            return _regular(self._real(name)).stat().st_size

    def open(self, name: str) -> BinaryIO:
        """See :meth:`Tree.open`."""
        with self._reported(name):
            return _regular(self._real(name)).open("rb")

    @contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = error.strerror if isinstance(error, OSError) else None
            raise SourceUnreadable(path=f"{self.path}/{name}", reason=reason or error) from error

    def crc32(self, name: str) -> int:
        """See :meth:`Tree.crc32`."""
        with self.open(name) as file:
            return crc32_of(file)

    @contextmanager
    def local(self, name: str, work: Path | None) -> Iterator[Path]:  # noqa: ARG002 - a folder needs no work folder
        """See :meth:`Tree.local`."""
        real = self._real(name)
        # What is neither file nor folder counts as nothing; below it there is nothing indeed.
        yield real / real.name if _is_special(real) else real


def _regular(path: Path) -> Path:
    """Return a path again whose file can be opened without waiting.

    Raises:
        OSError: there is none, or it is a folder, a pipe, a socket or a device.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, _NO_FILE)
    return path


def _is_special(path: Path) -> bool:
    """Tell whether a path is that of a pipe, a socket or a device."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISDIR(mode) and not stat.S_ISREG(mode)


def _listing(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def crc32_of(file: BinaryIO) -> int:
    """Return the CRC-32 of what is left to read of ``file``."""
    value = 0
    while chunk := file.read(CHUNK_BYTES):
        value = zlib.crc32(chunk, value)
    return value


class ZipTree:
    """A zip archive. Its directory is checked as a whole before anything is read.

    Raises:
        ArchiveUnsafe: a member climbs out, is absolute or encrypted, is named twice, overlaps another, or is a bomb.
        SourceUnreadable: it is no zip archive, truncated or damaged, or no file at all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if _is_special(path):
            raise SourceUnreadable(path=path, reason=_NO_FILE)
        try:
            self._zip = zipfile.ZipFile(path)
        except _DAMAGE as error:
            raise SourceUnreadable(path=path, reason=f"damaged or incomplete zip archive: {error}") from error
        self._members: dict[str, zipfile.ZipInfo] = {}
        self._folders: dict[str, set[str]] = {"": set()}
        for info in self._zip.infolist():
            self._admit(info)
        self._check_overlap()

    def close(self) -> None:
        """Close the archive."""
        self._zip.close()

    def _admit(self, info: zipfile.ZipInfo) -> None:
        name = _member_name(info)
        self._refuse_climber(name)
        if info.flag_bits & 0x1:
            raise ArchiveEncrypted(path=self.path)
        if info.file_size > BOMB_BYTES and info.file_size > BOMB_RATIO * max(info.compress_size, 1):
            raise ArchiveUnsafe(
                path=self.path,
                reason=f"{name} would grow from {info.compress_size:,} to {info.file_size:,} bytes (a zip bomb)",
            )
        parts = [part for part in name.split("/") if part and part != "."]
        if not parts:
            return
        if len(name) > LONGEST_NAME or len(parts) > MOST_PARTS:
            raise ArchiveUnsafe(path=self.path, reason=f"a name in it has {len(name):,} characters")
        for depth in range(len(parts)):
            self._folders.setdefault("/".join(parts[:depth]), set()).add(parts[depth])
        plain = "/".join(parts)
        if name.endswith("/"):
            self._folders.setdefault(plain, set())
        elif plain in self._members:
            raise ArchiveUnsafe(path=self.path, reason=f"{plain} is in it twice")
        else:
            self._members[plain] = info

    def _refuse_climber(self, name: str) -> None:
        drive = len(name) > 1 and name[1] == ":" and name[0].isalpha() and name[2:3] in ("/", "\\", "")
        if name.startswith(("/", "\\")) or drive:
            raise ArchiveUnsafe(path=self.path, reason=f"{name} is an absolute path")
        if ".." in name.replace("\\", "/").split("/"):
            raise ArchiveUnsafe(path=self.path, reason=f"{name} leads out of the archive")
        if "\0" in name:
            raise ArchiveUnsafe(path=self.path, reason=f"{name!r} holds a NUL")

    def _check_overlap(self) -> None:
        ordered = sorted(self._members.values(), key=lambda info: info.header_offset)
        ends = [info.header_offset + _LOCAL_HEADER_BYTES + info.compress_size for info in ordered]
        starts = [info.header_offset for info in ordered] + [self.path.stat().st_size]
        if any(end > start for end, start in zip(ends, starts[1:], strict=True)):
            raise ArchiveUnsafe(path=self.path, reason="its members overlap one another")
        clash = next((name for name in self._members if name in self._folders), None)
        if clash is not None:
            raise ArchiveUnsafe(path=self.path, reason=f"{clash} is both a file and a folder")

    def _find(self, name: str) -> str:
        if name in self._members or name in self._folders or name.isascii():
            return name
        folder, _, last = name.rpartition("/")
        return join(folder, _matching(last, sorted(self._folders.get(folder, ()))) or last)

    def _member(self, name: str) -> zipfile.ZipInfo:
        found = self._members.get(self._find(name))
        if found is None:
            raise SourceUnreadable(path=self.path, reason=f"{name} is not in it")
        return found

    def kind(self, name: str) -> Kind | None:
        """See :meth:`Tree.kind`."""
        found = self._find(name)
        return "file" if found in self._members else "folder" if found in self._folders else None

    def children(self, name: str) -> list[str]:
        """See :meth:`Tree.children`."""
        return sorted(self._folders.get(self._find(name), ()))

    def size(self, name: str) -> int:
        """See :meth:`Tree.size`."""
        return self._member(name).file_size

    def open(self, name: str) -> BinaryIO:
        """See :meth:`Tree.open`."""
        member = self._member(name)
        try:
            return _MemberReader(self._zip.open(member), self.path, name)
        except _DAMAGE as error:
            raise SourceUnreadable(path=self.path, reason=f"{name}: {error}") from error

    def crc32(self, name: str) -> int:
        """See :meth:`Tree.crc32`."""
        return self._member(name).CRC

    @contextmanager
    def local(self, name: str, work: Path | None) -> Iterator[Path]:
        """See :meth:`Tree.local`."""
        if self.kind(name) is None:
            yield self.path / name  # below a file: there is nothing at such a path
            return
        with _work_folder(work) as folder:
            place = folder / "member"
            if self.kind(name) == "file":
                demand_room(folder, self.size(name))
                self.extract(name, place)
                for suffix in ("-wal", "-journal"):
                    self._extract_companion(name + suffix, place.with_name(place.name + suffix), suffix)
            else:
                place.mkdir()
            yield place

    def files(self, folder: str) -> Iterator[str]:
        """Yield the names of all files below a folder, sorted; links are among them."""
        start = f"{self._find(folder)}/" if folder else ""
        yield from sorted(name for name in self._members if name.startswith(start))

    def is_link(self, name: str) -> bool:
        """Tell whether a member is a symbolic link: its bytes are the path that it leads to."""
        member = self._member(name)
        return member.create_system != 0 and stat.S_ISLNK(member.external_attr >> 16)

    def _extract_companion(self, name: str, place: Path, suffix: str) -> None:
        if self.kind(name) != "file":
            return
        with self.open(name) as file:
            first = file.read(8)
        if sqlite.is_companion(first, suffix):
            self.extract(name, place)

    def extract(self, name: str, place: Path) -> None:
        """Write a member's bytes to ``place``.

        Raises:
            SourceUnreadable: the member is damaged.
            OSError: the place cannot be written.
        """
        with self.open(name) as file, place.open("wb") as copy:
            shutil.copyfileobj(file, copy, CHUNK_BYTES)

    def extract_hashed(self, name: str, place: Path) -> str:
        """Do the same, and return the SHA-256 of the bytes in hex.

        Raises:
            SourceUnreadable, OSError: see :meth:`extract`.
        """
        digest = hashlib.sha256()
        is_large = self.size(name) > CHUNK_BYTES
        hashing = in_background(digest.update) if is_large else nullcontext(digest.update)
        with self.open(name) as file, place.open("wb") as copy, hashing as update:
            while chunk := file.read(CHUNK_BYTES):
                update(chunk)
                copy.write(chunk)
        return digest.hexdigest()


def demand_room(folder: Path, needed: int) -> None:
    """Refuse to extract more into a temporary folder than fits there.

    Raises:
        WorkFolderTooSmall
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise WorkFolderTooSmall(path=folder, needed=human_bytes(needed), free=human_bytes(free))


@contextmanager
def _work_folder(work: Path | None) -> Iterator[Path]:
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="regraft-", dir=work, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


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
            raise SourceUnreadable(path=self._path, reason=f"{self._name} is damaged: {error}") from error

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._member.close()
        super().close()


def _member_name(info: zipfile.ZipInfo) -> str:
    """Return a member's name: UTF-8 where its bytes are, though the flag says otherwise; ``/`` between its parts."""
    name = info.filename
    if not info.flag_bits & 0x800:
        try:
            name = name.encode("cp437").decode()
        except UnicodeError:
            name = info.filename
    # Only archives made on Windows mean a separator by a backslash; elsewhere it is part of a name.
    return name.replace("\\", "/") if info.create_system == 0 and "/" not in name else name


def open_tree(path: Path) -> FolderTree | ZipTree:
    """Open ``path`` as a folder or as a zip archive, whichever it is."""
    return FolderTree(path) if path.is_dir() else ZipTree(path)
