"""A base's folder, copied beside its place, flushed, read back and held against what was copied."""

from __future__ import annotations

import zlib
from pathlib import Path

import apsw
import msgspec

from regraft import links, long_paths, sqlite
from regraft.errors import PlanOutdated
from regraft.formats.cherry_v2.index.opening import demand_identity
from regraft.language import tr
from regraft.ledger import durable
from regraft.locate import INDEX_FILE
from regraft.move_errors import CopyDiffers
from repair.changes import files
from repair.changes.copies import copy_database
from repair.changes.files import CHUNK_BYTES, Digest
from repair.cherry_v2.install.rekeying import NewIds, rekey
from repair.cherry_v2.source import BaseSource

#: Files to copy, with their sizes and times of change.
Listed = tuple[tuple[Path, tuple[int, int]], ...]


def listed(paths: tuple[Path, ...]) -> Listed:
    """Return files as they are now."""
    return tuple((path, _mark(path)) for path in paths)


def _mark(path: Path) -> tuple[int, int]:
    status = long_paths.lstat(path)
    return status.st_size, status.st_mtime_ns


class _Copied(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was copied, and what it has to read back as: its digest, its CRC-32, or the rows of another one."""

    path: Path
    target: Path
    exact: str | None = None
    crc32: int | None = None

    def read_back(self) -> Digest:
        """Read the copy, and hold it against what was copied.

        Raises:
            CopyDiffers
            OSError, apsw.Error: it cannot be read.
        """
        digest, crc = Digest(), 0
        with links.reading(self.target, buffering=0) as file, digest.updating(self.target) as update:
            while chunk := file.read(CHUNK_BYTES):
                update(chunk)
                crc = crc if self.crc32 is None else zlib.crc32(chunk, crc)
        if self.exact is not None:
            is_same = digest.exact == self.exact
        elif self.crc32 is not None:
            is_same = crc == self.crc32
        else:
            is_same = files.mark_of(self.path) == files.mark_of(self.target)
        if not is_same:
            raise CopyDiffers(path=self.target, reason=tr("it differs from {path}", path=self.path))
        return digest


class FolderCopy:
    """Copies the folder of a base, whole and proven."""

    def __init__(self, source: BaseSource, base: str, own: Listed, new_ids: NewIds | None = None) -> None:
        """Take what is copied; ``new_ids`` where the base comes as a new one."""
        self._source = source
        self._base = base
        self._files = own
        self._new_ids = new_ids
        self._settled: dict[str, str] = {}

    def make(self, new: Path) -> None:
        """Copy it to a place of its own.

        Raises:
            PlanOutdated: a file was written to since it was listed.
            CopyDiffers: the copy is not what was copied.
            RegraftError, OSError, apsw.Error: it cannot be read or written.
        """
        durable.make_folder(new)
        copies = [self._copied(path, mark, new) for path, mark in self._files]
        durable.sync_tree(new)
        self._settled = {copy.target.relative_to(new).as_posix(): copy.read_back().settled for copy in copies}
        index = new / INDEX_FILE
        if not long_paths.is_file(index):
            return
        if self._new_ids is not None:
            rekey(index, self._new_ids)
            durable.sync_file(index)
            # The journal of that must not be there again after a power cut.
            durable.sync_folder(index.parent)
            self._settled[INDEX_FILE] = Digest.of(index).settled
        with sqlite.reading(index) as db:
            demand_identity(db, index, self._base if self._new_ids is None else self._new_ids.base)

    def mark(self, _: Path) -> str:
        """Return what tells later whether the copy, just made, was changed."""
        return files.folder_mark(self._settled)

    def _copied(self, path: Path, mark: tuple[int, int], new: Path) -> _Copied:
        if not long_paths.is_file(path) or _mark(path) != mark:
            raise PlanOutdated(path=path, reason=tr("it was written to meanwhile"))
        target = new / path.relative_to(self._source.folder(self._base))
        durable.make_folders(target.parent, flush=False)
        if sqlite.companions(links.real_path(path)) and sqlite.is_database(path):
            # As its readers see it: with what its log holds.
            copy_database(path, target)
            return _Copied(path=path, target=target)
        if self._source.archive is not None and _linked(path, target):
            return _Copied(path=path, target=target, crc32=self._source.crc32(path))
        digest = _copy(path, target)
        if _mark(path) != mark:
            raise PlanOutdated(path=path, reason=tr("it was written to meanwhile"))
        return _Copied(path=path, target=target, exact=digest.exact)


def _linked(path: Path, target: Path) -> bool:
    """Give an extracted file, which nobody else has, its place in the copy; False where it has to be copied."""
    try:
        durable.link(path, target)
    except OSError:
        return False
    return True


def _copy(path: Path, target: Path) -> Digest:
    digest = Digest()
    with (
        links.reading(path, buffering=0) as file,
        durable.open_binary(target, "xb") as copy,
        digest.updating(path) as update,
    ):
        while chunk := file.read(CHUNK_BYTES):
            update(chunk)
            copy.write(chunk)
    return digest


def is_same(folder: Path, other: Path) -> bool:
    """Tell whether two folders of a base hold the same: rows of the index in any order, and files below ``raw/``."""
    names = (INDEX_FILE, "raw")
    try:
        if all(files.bytes_mark_of(folder / name) == files.bytes_mark_of(other / name) for name in names):
            return True
        return all(files.mark_of(folder / name) == files.mark_of(other / name) for name in names)
    except (OSError, apsw.Error):
        return False
