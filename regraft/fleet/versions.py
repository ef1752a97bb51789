"""Versions of a library in object storage, published completely or not at all (``docs/fleet.md``, "Object storage").

A store cannot rename a folder. So each version has a folder of its own, and is current once an object with its number
names it. That object is created only if it does not exist: of two processes that publish the same number, one is first,
and the other has published nothing. A lease keeps two fleets from doing the same work; correctness does not depend on
it, nor on any clock.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import msgspec

from regraft import identity
from regraft.disk import durable
from regraft.disk.file_paths import disk_name
from regraft.disk.trees import file_hash, require_free_space
from regraft.disk.zip_directory import LONGEST_NAME, MOST_PARTS
from regraft.errors import (
    LibraryChanged,
    LibraryHeld,
    LibraryUnsafe,
    RegraftError,
    SourceNotFound,
    StorageFailed,
    StorageRefused,
)
from regraft.fleet.storage import ObjectGone, StoragePath
from regraft.language import tr
from regraft.text import one_line

#: The folder of all versions below the library.
VERSIONS_FOLDER = "regraft-library"
#: Names below it, which begin with a number of six digits or have one.
_VERSION = re.compile(r"([0-9]{6})\.json")
_VERSION_FOLDER = re.compile(r"([0-9]{6})-[0-9a-f]{16}")
_LEASE = re.compile(r"lease-([0-9]{6})\.json")
#: The last number that fits into a name.
_LAST = 999_999
_SCHEMA = 1
#: How often to start again if the version that is being fetched is replaced.
_TRIES = 5


class VersionFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a version."""

    bytes: int
    sha256: str


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a library."""

    number: int
    folder: str  # its name
    files: dict[str, VersionFile]  # by relative path
    folders: tuple[str, ...] = ()  # those without files
    published_at: str = ""
    schema: int = _SCHEMA


#: The version before anything was published.
NO_VERSION = Version(number=0, folder="", files={})


# --- reading ---------------------------------------------------------------------------------------------------------


def latest_version(library: StoragePath) -> Version:
    """Return the current version of a library, or :data:`NO_VERSION` if it was never published.

    LibraryUnsafe: the version is damaged, or has a path that leads out of it.
    """
    own = library / VERSIONS_FOLDER
    number, name = max(_find_numbered(own, _VERSION), default=(0, ""))
    if not number:
        return NO_VERSION
    try:
        version = msgspec.json.decode((own / name).content() or b"", type=Version)
    except (msgspec.MsgspecError, RecursionError) as error:
        reason = tr("{name} cannot be read: {error}", name=f"{VERSIONS_FOLDER}/{name}", error=error)
        raise LibraryUnsafe(url=library.url, reason=reason) from error
    folder = _VERSION_FOLDER.fullmatch(version.folder)
    is_known = version.schema == _SCHEMA and version.number == number < _LAST
    if not is_known or folder is None or int(folder[1]) != number:
        reason = tr("{name} is of an unknown version of regraft", name=f"{VERSIONS_FOLDER}/{name}")
        raise LibraryUnsafe(url=library.url, reason=reason)
    _demand_inside(library, (*version.files, *version.folders))
    return version


def _find_numbered(folder: StoragePath, pattern: re.Pattern[str]) -> list[tuple[int, str]]:
    """Return (number, name) of the entries of a library's folder of versions whose names match a pattern."""
    return [(int(found[1]), name) for name in folder.entries() if (found := pattern.fullmatch(name))]


def fetch_library(library: StoragePath, folder: Path) -> Version:
    """Copy a library into a new folder; return its version, with the number 0 if it was never published.

    SourceNotFound: there is nothing. LibraryUnsafe: a path leads out of the folder, or a file is not the one that was
    published. WorkFolderTooSmall: the disk has not enough space. StorageFailed: it keeps changing.
    """
    for _ in range(_TRIES):
        durable.make_folders(folder, flush=False)
        version = latest_version(library)
        try:
            return _fetch_version(library, version, folder) if version.number else _fetch_objects(library, folder)
        except ObjectGone:
            # Another process has published the next version and removed the files of this one, or changed an object.
            durable.remove_tree(folder)
    raise StorageFailed(url=library.url, reason=tr("it keeps changing"))


def _fetch_version(library: StoragePath, version: Version, folder: Path) -> Version:
    """Copy a published version of a library into ``folder``, compare the copies with its hashes, and return it.

    ObjectGone: an object was deleted during the copy. LibraryUnsafe: a file is not the published one.
    """
    sizes = {name: one.bytes for name, one in version.files.items()}
    _fetch(library / VERSIONS_FOLDER / version.folder, sizes, folder)
    for name in version.folders:
        durable.make_folders(folder / name, flush=False)
    for name, file in version.files.items():
        if file_hash(folder / name) != file.sha256:
            raise LibraryUnsafe(url=library.url, reason=tr("{name} differs from the published file", name=name))
    return version


def _fetch_objects(library: StoragePath, folder: Path) -> Version:
    """Copy all objects of a library that was never published into ``folder``; return them as version number 0.

    SourceNotFound: it has no object. ObjectGone: an object was changed during the copy.
    """

    def states() -> dict[str, tuple[int, str]]:
        """Map the path of each object of the library, outside of its versions, to size and version tag."""
        return {name: one for name, one in library.states().items() if name.partition("/")[0] != VERSIONS_FOLDER}

    found = states()
    if not found or "" in found:
        raise SourceNotFound(path=library.url)
    _fetch(library, {name: size for name, (size, _) in found.items()}, folder)
    if states() != found:
        raise ObjectGone(library.url)
    return Version(number=0, folder="", files=_read_folder(folder)[0])


def _fetch(library: StoragePath, files: dict[str, int], folder: Path) -> None:
    """Download files of a library into ``folder``, after checking their names and the free space.

    ``files`` maps their relative paths to their sizes. LibraryUnsafe: a name is not possible here.
    """
    _demand_inside(library, files)
    above = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    if len(set(map(disk_name, files))) < len(files):
        raise LibraryUnsafe(url=library.url, reason=tr("two of its names are the same on this system"))
    for name in above.intersection(files):
        raise LibraryUnsafe(url=library.url, reason=tr("{parts} is both a file and a folder", parts=name))
    require_free_space(folder, sum(files.values()))
    for parent in sorted(above):
        durable.make_folders(folder / parent, flush=False)
    library.download((name, folder / name) for name in files)


def _demand_inside(library: StoragePath, names: Iterable[str]) -> None:
    """Raise LibraryUnsafe if one of the relative paths ``names`` could lead out of its folder on some system."""
    for name in names:
        parts = name.split("/")
        has_plain_parts = all(parts) and not {".", ".."}.intersection(parts) and len(parts) <= MOST_PARTS
        # The client of S3 parses the last one as a query.
        has_special_parts = any(part in name for part in ("\\", "\0", "?versionId=")) or re.match("[A-Za-z]:", name)
        if not has_plain_parts or has_special_parts or len(name.encode(errors="replace")) > LONGEST_NAME:
            reason = tr("{name} is not a valid file name inside it", name=one_line(name, 80))
            raise LibraryUnsafe(url=library.url, reason=reason)


# --- publishing ------------------------------------------------------------------------------------------------------


def publish_version(library: StoragePath, folder: Path, before: Version) -> bool:
    """Publish the content of a folder as the next version of a library, completely or not at all.

    ``before`` is the version that the content was made from; returns False if it does not differ. LibraryChanged:
    another process has published a version first; nothing of this one remains. LibraryUnsafe: a name is not possible.
    """
    files, folders = _read_folder(folder)
    _demand_inside(library, (*files, *folders))
    if (files, folders) == (before.files, before.folders):
        return False
    version = Version(
        number=before.number + 1,
        folder=f"{before.number + 1:06}-{secrets.token_hex(8)}",
        files=files,
        folders=folders,
        published_at=identity.iso_time(identity.now_ms()),
    )
    own = library / VERSIONS_FOLDER
    try:
        _write_files(own, folder, version, before)
    except BaseException as error:
        _remove_files(own, [version.folder])
        if isinstance(error, ObjectGone):
            # Another process has published the next version and removed the files that this one copies.
            raise LibraryChanged(url=library.url) from error
        raise
    # From here on it is the current version. If the result of this write is unknown, its files stay; the next version
    # removes them if they are not current.
    if not (own / f"{version.number:06}.json").create(msgspec.json.encode(version)):
        _remove_files(own, [version.folder])
        raise LibraryChanged(url=library.url)
    # Other folders with this number are left to the next version.
    _remove_files(own, [name for number, name in _find_numbered(own, _VERSION_FOLDER) if number < version.number])
    return True


def _read_folder(folder: Path) -> tuple[dict[str, VersionFile], tuple[str, ...]]:
    """Return the files below a folder, and the folders without entries, by relative path."""
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if not path.is_symlink()}
    files = {
        name: VersionFile(bytes=path.stat().st_size, sha256=file_hash(path))
        for name, path in paths.items()
        if path.is_file()
    }
    return files, tuple(name for name, path in paths.items() if path.is_dir() and not any(path.iterdir()))


def _write_files(own: StoragePath, folder: Path, version: Version, before: Version) -> None:
    """Upload the files of ``version`` from ``folder``; those that the version ``before`` has are copied in the store.

    ``own`` is the library's folder of versions. StorageFailed: not all files are there afterwards.
    """
    known = {file.sha256: name for name, file in before.files.items()} if before.number else {}
    same = {name: known[file.sha256] for name, file in version.files.items() if file.sha256 in known}
    own.copy((f"{before.folder}/{old}", f"{version.folder}/{name}") for name, old in same.items())
    own.upload((folder / name, f"{version.folder}/{name}") for name in version.files.keys() - same.keys())
    if (own / version.folder).objects() != {name: file.bytes for name, file in version.files.items()}:
        raise StorageFailed(url=own.url, reason=tr("some of the files written are missing"))


def _remove_files(own: StoragePath, folders: Iterable[str]) -> None:
    """Delete the files of versions, given by the names of their folders in ``own``, the library's folder of versions.

    What cannot be deleted is harmless, and left to the next version.
    """
    with suppress(StorageFailed, PermissionError):
        for folder in folders:
            own.remove(f"{folder}/{name}" for name in (own / folder).objects())


# --- leases ----------------------------------------------------------------------------------------------------------

#: A lease expires after this time, in ms, unless it is renewed.
LEASE_MS = 60_000


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet that holds a library, until when in ms, and a token that makes the object unique."""

    fleet: str
    until_ms: int
    token: str


@contextmanager
def hold_lease(library: StoragePath, fleet: str) -> Iterator[None]:
    """Reserve a library for the fleet with this id within the context, by a lease.

    LibraryHeld: another fleet has a lease. StorageRefused: the store denies writing.

    A lease with the same fleet id is taken over at once: only one process runs a fleet, and it repeats a job only when
    the process that had it is gone.
    """
    lease, stop = _take_lease(library, fleet), threading.Event()
    renewing = threading.Thread(target=_renew, args=(lease, fleet, stop), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        stop.set()
        renewing.join()
        # If it cannot be deleted, it expires.
        with suppress(RegraftError):
            lease.remove([""])


def _take_lease(library: StoragePath, fleet: str) -> StoragePath:
    """Create and return the object of a lease for the fleet with this id, and remove those of earlier leases.

    Raises as :func:`hold_lease`.
    """
    own = library / VERSIONS_FOLDER
    found = _find_numbered(own, _LEASE)
    number, name = max(found, default=(0, ""))
    # One that cannot be read has expired.
    with suppress(msgspec.MsgspecError):
        held = msgspec.json.decode((number and (own / name).content()) or b"", type=Lease)
        left = held.until_ms - identity.now_ms()
        # A much later time was written by a wrong clock, and is ignored.
        if 0 < left < 2 * LEASE_MS and held.fleet != fleet:
            raise LibraryHeld(url=library.url, seconds=min(left, LEASE_MS) // 1000 + 1)
    lease = own / f"lease-{number + 1:06}.json"
    if not lease.create(_encode_lease(fleet)):
        raise LibraryHeld(url=library.url, seconds=1)
    if lease.create(_encode_lease(fleet)):
        with suppress(RegraftError):
            lease.remove([""])
        reason = tr("it overwrites existing objects although it was asked not to")
        raise StorageRefused(url=library.url, reason=reason)
    own.remove(name for _, name in found)
    return lease


def _renew(lease: StoragePath, fleet: str, stop: threading.Event) -> None:
    """Renew the lease of a fleet, given by its object, until the event is set."""
    while not stop.wait(LEASE_MS / 3000):
        # A lost lease is noticed when the version is published.
        with suppress(RegraftError):
            lease.put(_encode_lease(fleet))


def _encode_lease(fleet: str) -> bytes:
    """Return the content of a new lease for the fleet with this id."""
    lease = Lease(fleet=fleet, until_ms=identity.now_ms() + LEASE_MS, token=secrets.token_hex(8))
    return msgspec.json.encode(lease)
