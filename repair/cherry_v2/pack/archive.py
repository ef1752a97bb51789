"""Writing a pack: one zip file, beside its place first, read back, and then put there in one step.

Files are stored: deflating texts takes longer than all the rest, and vectors do not shrink. The same files and the same
time give the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import apsw
import msgspec

from regraft import areas, links, long_paths
from regraft.clock import moment_of
from regraft.errors import PlanOutdated, TargetLocked, TargetNotWritable
from regraft.formats.cherry_v2.pack import MANIFEST, Manifest, PackedFile
from regraft.hashing import Update, in_background
from regraft.language import tr
from regraft.ledger import durable, lock_file
from regraft.locate import CATALOG_FILE
from regraft.move_errors import CopyDiffers, PackThere
from regraft.report.progress import Progress

#: Read, hashed and written at once.
CHUNK_BYTES = 4 << 20
#: A larger catalog or manifest is stored: what shrinks much would be taken for a bomb.
_DEFLATED_BYTES = 1 << 20
#: The years that a zip file can tell.
_FIRST_YEAR, _LAST_YEAR = 1980, 2107


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is packed: its name in the pack, where its bytes are, how many, and its time of change in ns."""

    name: str
    path: Path
    size: int
    changed_ns: int

    @classmethod
    def of(cls, name: str, path: Path) -> Member:
        """Return a file as it is now.

        Raises:
            OSError: it cannot be looked at.
        """
        status = long_paths.stat(path)
        return cls(name=name, path=path, size=status.st_size, changed_ns=status.st_mtime_ns)

    def demand_unchanged(self) -> None:
        """Refuse a file that was written to since it was listed.

        Raises:
            PlanOutdated
        """
        with contextlib.suppress(OSError):
            status = long_paths.stat(self.path)
            if (status.st_size, status.st_mtime_ns) == (self.size, self.changed_ns):
                return
        raise PlanOutdated(path=self.path, reason=tr("it was written to meanwhile"))


def hashed(members: Sequence[Member], progress: Progress) -> tuple[PackedFile, ...]:
    """Return what a manifest says of files, without writing one.

    Raises:
        PlanOutdated: one was written to meanwhile.
        OSError: one cannot be read.
    """
    return tuple(_packed(member, lambda _: None, progress) for member in members)


def _packed(member: Member, write: Callable[[bytes], object], progress: Progress) -> PackedFile:
    """Read a file to its end, give its bytes to ``write``, and return what a manifest says of it."""
    digest, size = hashlib.sha256(), 0
    with links.reading(member.path, buffering=0) as file, _hashing(digest.update, member.size) as update:
        while chunk := file.read(CHUNK_BYTES):
            update(chunk)
            write(chunk)
            size += len(chunk)
            progress.step(len(chunk), 0)
    member.demand_unchanged()
    if size != member.size:
        raise PlanOutdated(path=member.path, reason=tr("it was written to meanwhile"))
    return PackedFile(path=member.name, bytes=size, sha256=digest.hexdigest())


def _hashing(update: Update, size: int) -> AbstractContextManager[Update]:
    """Hash a large file while it is read and written; for a small one a thread costs more than it saves."""
    return in_background(update) if size > CHUNK_BYTES else contextlib.nullcontext(update)


def write(
    target: Path,
    members: Sequence[Member],
    manifest_of: Callable[[tuple[PackedFile, ...]], Manifest],
    now_ms: int,
    progress: Progress,
) -> None:
    """Write a pack to ``target``, whole and read back, where nothing is yet.

    Args:
        target: its place; its folder exists.
        members: its files, in their order.
        manifest_of: makes the manifest when the checksums are known.
        now_ms: the time that members carry.
        progress: told of bytes.

    Raises:
        PlanOutdated: a file was written to meanwhile.
        PackThere: something came to its place meanwhile.
        TargetLocked, TargetNotWritable: another regraft writes it, or its folder is not to be written to.
        CopyDiffers: what was written does not read back.
        OSError: a file cannot be read, or the disk is full.
    """
    with areas.opened(target.parent, entries_only=True), _temporary(target) as temporary:
        with durable.new_zip(temporary) as archive:
            packed = tuple(_add(archive, member, now_ms, progress) for member in members)
            manifest = manifest_of(packed)
            encoded = manifest.encoded()
            archive.writestr(_info(MANIFEST, len(encoded), now_ms), encoded)
        durable.sync_file(temporary)
        _read_back(temporary, manifest)
        _put(temporary, target)


def remove_remains(target: Path) -> None:
    """Remove what a killed run left beside a pack that is in its place, unless another run is writing it."""
    if os.path.lexists(_part_of(target)):
        with (
            contextlib.suppress(TargetLocked, TargetNotWritable, OSError),
            areas.opened(target.parent, entries_only=True),
            _temporary(target),
        ):
            pass


def _part_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.regraft-part")


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """Give the path of a new file beside ``target`` that no other pack writes, and remove it at the end.

    A lock file beside it excludes other packs; what a killed run left at that path is removed. On a file system without
    locks the path is one that no other run has.

    Raises:
        TargetLocked, TargetNotWritable
    """
    path = _part_of(target)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock_file.held(target.with_name(f".{target.name}.regraft-lock")))
        except lock_file.LockHeld as error:
            raise TargetLocked(path=target) from error
        except apsw.IOError:
            path = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
        except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError) as error:
            raise TargetNotWritable(path=target, reason=_refusal(target) or error) from error
        durable.remove(path, missing_ok=True)
        try:
            yield path
        finally:
            durable.remove(path, missing_ok=True)


def _refusal(target: Path) -> str | None:
    """Return why no file can be made beside ``target``; None where one can."""
    probe = target.with_name(f"{_part_of(target).name}-{secrets.token_hex(4)}")
    try:
        durable.touch(probe)
    except OSError as error:
        if error.errno in durable.NO_ROOM - {errno.EROFS}:
            raise
        return error.strerror
    durable.remove(probe)
    return None


def _info(name: str, size: int, now_ms: int) -> zipfile.ZipInfo:
    moment = moment_of(now_ms)
    year = min(max(moment.year, _FIRST_YEAR), _LAST_YEAR)
    info = zipfile.ZipInfo(name, (year, *moment.timetuple()[1:6]))
    info.create_system = 3
    info.external_attr = 0o100644 << 16
    is_small = name in (CATALOG_FILE, MANIFEST) and size <= _DEFLATED_BYTES
    info.compress_type = zipfile.ZIP_DEFLATED if is_small else zipfile.ZIP_STORED
    info.file_size = size
    return info


def _add(archive: zipfile.ZipFile, member: Member, now_ms: int, progress: Progress) -> PackedFile:
    progress.at(member.name)
    with archive.open(_info(member.name, member.size, now_ms), "w") as file:
        return _packed(member, file.write, progress)


def _read_back(temporary: Path, manifest: Manifest) -> None:
    """Read every member of the written file to its end; its checksum in the archive is that of what was read.

    Raises:
        CopyDiffers
    """
    problem = None
    try:
        with zipfile.ZipFile(temporary) as archive:
            for packed in (*(file.path for file in manifest.files), MANIFEST):
                with archive.open(packed) as file:
                    while file.read(CHUNK_BYTES):
                        pass
    except (zipfile.BadZipFile, KeyError, zlib.error, EOFError) as error:
        problem = str(error)
    if problem is not None:
        raise CopyDiffers(path=temporary, reason=problem)


def problem_of(path: Path, manifest: Manifest) -> str | None:
    """Return why a zip file does not hold what a manifest lists; None where it does.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for packed in manifest.files:
                with archive.open(packed.path) as file:
                    digest = hashlib.sha256()
                    while chunk := file.read(CHUNK_BYTES):
                        digest.update(chunk)
                if digest.hexdigest() != packed.sha256:
                    return tr("{path} does not read back", path=packed.path)
    except (zipfile.BadZipFile, KeyError, zlib.error, EOFError) as error:
        return str(error)
    return None


def _put(temporary: Path, target: Path) -> None:
    """Give a written file its name, where nothing has it.

    Raises:
        PackThere
    """
    try:
        # Unlike a rename, a link never takes the place of a file that came meanwhile.
        is_there = not durable.try_link(temporary, target) and os.path.lexists(target)
    except FileExistsError as error:
        raise PackThere(path=target, what=tr("another file")) from error
    if is_there:
        raise PackThere(path=target, what=tr("another file"))
    if not os.path.lexists(target):
        durable.replace(temporary, target)
    durable.sync_folder(target.parent)
