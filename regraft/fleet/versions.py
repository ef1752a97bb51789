"""A library in object storage: versions that are published whole or not at all (``docs/fleet.md``, "Object storage").

A store cannot rename a folder. So each version has a folder of its own, and counts from the moment on in which the one
object is there that names it. That object is created where none is, by its number: of two that publish the same number,
one is first, and the other one has published nothing.
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

#: Where versions lie in a library's place.
VERSIONS_FOLDER = "regraft-library"
_VERSION = re.compile(r"([0-9]{6})\.json")
_FILES = re.compile(r"([0-9]{6})-[0-9a-f]{16}")
#: What comes after it could not be named.
_LAST = 999_999
_SCHEMA = 1
#: How often a library is fetched whose version is replaced meanwhile.
_TRIES = 5


class VersionFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a version: its bytes, and their SHA-256."""

    bytes: int
    sha256: str


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version: the folder that its files lie in, all of them by their paths, and the folders without a file."""

    number: int
    folder: str
    files: dict[str, VersionFile]
    folders: tuple[str, ...] = ()
    published_at: str = ""
    schema: int = _SCHEMA


#: What is there before anything was published.
NO_VERSION = Version(number=0, folder="", files={})


# --- reading ---------------------------------------------------------------------------------------------------------


def latest_version(place: StoragePath) -> Version:
    """Return the version that counts, :data:`NONE` where nothing was published.

    Raises:
        LibraryUnsafe: what says so is damaged, or would lead elsewhere.
        StorageFailed, StorageRefused
    """
    own = place / VERSIONS_FOLDER
    numbers = [int(found[1]) for name in own.entries() if (found := _VERSION.fullmatch(name))]
    if not numbers:
        return NO_VERSION
    name = f"{max(numbers):06}.json"
    content = (own / name).content()
    try:
        version = msgspec.json.decode(content or b"", type=Version)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _unsafe(
            place, tr("{name} cannot be read: {error}", name=f"{VERSIONS_FOLDER}/{name}", error=error)
        ) from error
    folder = _FILES.fullmatch(version.folder)
    is_known = version.schema == _SCHEMA and version.number == max(numbers) < _LAST
    if not is_known or folder is None or int(folder[1]) != version.number:
        raise _unsafe(place, tr("{name} is not one that this regraft knows", name=f"{VERSIONS_FOLDER}/{name}"))
    for path in (*version.files, *version.folders):
        _demand_inside(place, path)
    return version


def fetch_library(place: StoragePath, folder: Path) -> Version:
    """Copy a library into a new folder, and return its version; without one, all objects that lie there, as number 0.

    Raises:
        SourceNotFound: there is nothing.
        LibraryUnsafe: a name leads out of the folder, or a file is not the one that was published.
        WorkFolderTooSmall: there is no room for it.
        StorageFailed, StorageRefused
        OSError: it cannot be written.
    """
    for _ in range(_TRIES):
        durable.make_folders(folder, flush=False)
        version = latest_version(place)
        try:
            if not version.number:
                return _fetch_plain(place, folder)
            sizes = {name: one.bytes for name, one in version.files.items()}
            _fetch(place / VERSIONS_FOLDER / version.folder, sizes, folder)
        except ObjectGone:
            # Somebody has published the next version, and removed what this one had.
            durable.remove_tree(folder)
            continue
        for name in version.folders:
            durable.make_folders(folder / name, flush=False)
        for name, file in version.files.items():
            if file_hash(folder / name) != file.sha256:
                raise _unsafe(place, tr("{name} is not what was published", name=name))
        return version
    raise StorageFailed(url=place.url, reason=tr("it changes all the time"))


def _fetch_plain(place: StoragePath, folder: Path) -> Version:
    """Copy a library that was never published: all objects that lie there.

    Raises:
        ObjectGone: they are others now.
    """
    found = _plain(place)
    _fetch(place, {name: size for name, (size, _) in found.items()}, folder)
    if _plain(place) != found:
        raise ObjectGone(place.url)
    return Version(number=0, folder="", files=_hashed(folder))


def _plain(place: StoragePath) -> dict[str, tuple[int, str]]:
    found = {name: state for name, state in place.states().items() if name.partition("/")[0] != VERSIONS_FOLDER}
    if not found or "" in found:
        raise SourceNotFound(path=place.url)
    return found


def _fetch(place: StoragePath, files: dict[str, int], folder: Path) -> None:
    for name in files:
        _demand_inside(place, name)
    above = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    if len(set(map(disk_name, files))) < len(files):
        raise _unsafe(place, tr("names in it are one name on this system"))
    for name in above.intersection(files):
        raise _unsafe(place, tr("{parts} is both a file and a folder", parts=name))
    require_free_space(folder, sum(files.values()))
    for parent in sorted(above):
        durable.make_folders(folder / parent, flush=False)
    place.download((name, folder / name) for name in files)


def _demand_inside(place: StoragePath, name: str) -> None:
    """Refuse a path that would lead out of a folder here, on any system, or is none."""
    parts = name.split("/")
    is_plain = all(parts) and not {".", ".."}.intersection(parts) and len(parts) <= MOST_PARTS
    # The client of S3 takes the last one for no part of the name.
    is_strange = any(part in name for part in ("\\", "\0", "?versionId=")) or re.match("[A-Za-z]:", name)
    if not is_plain or is_strange or len(name.encode(errors="replace")) > LONGEST_NAME:
        raise _unsafe(place, tr("{name} leads out of it, or is no name of a file", name=one_line(name, 80)))


def _unsafe(place: StoragePath, reason: str) -> LibraryUnsafe:
    return LibraryUnsafe(url=place.url, reason=reason)


# --- publishing ------------------------------------------------------------------------------------------------------


def publish_version(place: StoragePath, folder: Path, before: Version) -> bool:
    """Make what is in a folder the next version, all of it or nothing, where it is another one than before.

    Args:
        place: of the library.
        folder: what is published.
        before: the version that it was made from.

    Returns:
        Whether it was another one.

    Raises:
        LibraryChanged: somebody else has published one meanwhile; nothing of this one is there.
        LibraryUnsafe: a name in it could not be fetched again.
        StorageFailed, StorageRefused
        OSError: the folder cannot be read.
    """
    files = _hashed(folder)
    folders = tuple(_empty_folders(folder))
    for name in (*files, *folders):
        _demand_inside(place, name)
    if (files, folders) == (before.files, before.folders):
        return False
    version = Version(
        number=before.number + 1,
        folder=f"{before.number + 1:06}-{secrets.token_hex(8)}",
        files=files,
        folders=folders,
        published_at=identity.iso_time(identity.now_ms()),
    )
    own = place / VERSIONS_FOLDER
    try:
        _write_files(own, folder, version, before)
    except ObjectGone as error:
        # The next version has been published, and what this one had removed.
        _remove_files(own, [version.folder])
        raise LibraryChanged(url=place.url) from error
    except BaseException:
        _remove_files(own, [version.folder])
        raise
    # From here on it is the version that counts. Where nobody can tell whether it was written, its files stay: if it
    # was not, the next version removes them.
    if not (own / f"{version.number:06}.json").create(msgspec.json.encode(version)):
        _remove_files(own, [version.folder])
        raise LibraryChanged(url=place.url)
    _remove_files(own, _superseded(own, version))
    return True


def _hashed(folder: Path) -> dict[str, VersionFile]:
    return {name: VersionFile(bytes=path.stat().st_size, sha256=file_hash(path)) for name, path in _files_of(folder)}


def _files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path.relative_to(folder).as_posix(), path


def _empty_folders(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            yield path.relative_to(folder).as_posix()


def _write_files(own: StoragePath, folder: Path, version: Version, before: Version) -> None:
    """Write the files of a version; what the one before has just so, the store copies itself.

    Raises:
        StorageFailed: they are not there afterwards.
    """
    known = {file.sha256: name for name, file in before.files.items()} if before.number else {}
    same = {name: known[file.sha256] for name, file in version.files.items() if file.sha256 in known}
    own.copy((f"{before.folder}/{old}", f"{version.folder}/{name}") for name, old in same.items())
    own.upload((folder / name, f"{version.folder}/{name}") for name in version.files.keys() - same.keys())
    there = (own / version.folder).objects()
    if there != {name: file.bytes for name, file in version.files.items()}:
        raise StorageFailed(url=own.url, reason=tr("it has not kept all that was written"))


def _superseded(own: StoragePath, version: Version) -> list[str]:
    """Return the folders of files that can never count any more. Those of the same number go with the next version."""
    found = (match for name in own.entries() if (match := _FILES.fullmatch(name)))
    return [match[0] for match in found if int(match[1]) < version.number]


def _remove_files(own: StoragePath, folders: Iterable[str]) -> None:
    """Remove folders of files; what cannot be removed is no harm, and goes with the next version."""
    for folder in folders:
        try:
            own.remove(f"{folder}/{name}" for name in (own / folder).objects())
        except (StorageFailed, PermissionError):
            return


# Who works on a library in object storage: a lease in its place, which is taken, renewed and given back.
#
# A lease keeps two fleets from doing the same work. That nothing is lost where both do it all the same, because one was
# long asleep, follows from how versions are published (:mod:`regraft.fleet.versions`) and needs no clock.


#: How long a lease holds that is not renewed, in ms.
LEASE_MS = 60_000
_LEASE = re.compile(r"lease-([0-9]{6})\.json")


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Which fleet has a library, until when in ms, and what tells this lease from all others."""

    fleet: str
    until_ms: int
    token: str


@contextmanager
def hold_lease(place: StoragePath, fleet: str) -> Iterator[None]:
    """Have a library meanwhile.

    What a fleet of the same id has is taken over at once: one process alone works for a fleet, and gives a library
    away again only when it knows that whoever had it is gone.

    Raises:
        LibraryHeld: another fleet has it.
        StorageRefused: it may not be written, or the store cannot keep two from writing one version.
        StorageFailed
    """
    name = _taken(place / VERSIONS_FOLDER, place, fleet)
    stop = threading.Event()
    renewing = threading.Thread(target=_renew, args=(place / VERSIONS_FOLDER / name, fleet, stop), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        stop.set()
        renewing.join()
        # What cannot be removed runs out.
        with suppress(RegraftError):
            (place / VERSIONS_FOLDER).remove([name])


def _taken(own: StoragePath, place: StoragePath, fleet: str) -> str:
    """Take a lease, and return the name of its object."""
    numbers = sorted(int(found[1]) for name in own.entries() if (found := _LEASE.fullmatch(name)))
    now = identity.now_ms()
    if numbers:
        _demand_free(own / _name(numbers[-1]), place, fleet, now)
    name = _name(numbers[-1] + 1 if numbers else 1)
    if not (own / name).create(_encoded(fleet, now)):
        raise LibraryHeld(url=place.url, seconds=1)
    if (own / name).create(_encoded(fleet, now)):
        reason = tr("it writes over what is there, where it was asked not to")
        raise StorageRefused(url=place.url, reason=reason)
    own.remove(map(_name, numbers))
    return name


def _demand_free(lease: StoragePath, place: StoragePath, fleet: str, now: int) -> None:
    """Refuse what somebody else has; one that says nothing that can be read has run out.

    Raises:
        LibraryHeld
    """
    content = lease.content()
    try:
        found = msgspec.json.decode(content or b"", type=Lease)
    except msgspec.MsgspecError:
        return
    left = found.until_ms - now
    # One that holds much longer than a lease does is of a clock that is wrong, and says nothing.
    if 0 < left < 2 * LEASE_MS and found.fleet != fleet:
        raise LibraryHeld(url=place.url, seconds=min(left, LEASE_MS) // 1000 + 1)


def _renew(lease: StoragePath, fleet: str, stop: threading.Event) -> None:
    while not stop.wait(LEASE_MS / 3000):
        # One that was lost is noticed when the version is published.
        with suppress(RegraftError):
            lease.put(_encoded(fleet, identity.now_ms()))


def _encoded(fleet: str, now: int) -> bytes:
    return msgspec.json.encode(Lease(fleet=fleet, until_ms=now + LEASE_MS, token=secrets.token_hex(8)))


def _name(number: int) -> str:
    return f"lease-{number:06}.json"
