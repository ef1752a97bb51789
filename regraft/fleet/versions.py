"""A library in object storage: versions that are published whole or not at all (``docs/fleet.md``, "Object storage").

A store cannot rename a folder. So each version has a folder of its own, and counts from the moment on in which the one
object is there that names it. That object is created where none is, by its number: of two that publish the same number,
one is first, and the other one has published nothing.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import msgspec

from regraft import clock
from regraft.errors import SourceNotFound
from regraft.fleet.errors import LibraryChanged, LibraryUnsafe, StorageFailed
from regraft.fleet.storage import ObjectGone, Place
from regraft.language import tr
from regraft.ledger import durable
from regraft.names import on_disk
from regraft.room import demand_room
from regraft.text import one_line
from regraft.tree_files import file_hash
from regraft.zip_directory import LONGEST_NAME, MOST_PARTS

#: Where versions lie in a library's place.
FOLDER = "regraft-library"
_VERSION = re.compile(r"([0-9]{6})\.json")
_FILES = re.compile(r"([0-9]{6})-[0-9a-f]{16}")
#: What comes after it could not be named.
_LAST = 999_999
_SCHEMA = 1
#: How often a library is fetched whose version is replaced meanwhile.
_TRIES = 5


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a version: its bytes, and their SHA-256."""

    bytes: int
    sha256: str


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version: the folder that its files lie in, all of them by their paths, and the folders without a file."""

    number: int
    folder: str
    files: dict[str, File]
    folders: tuple[str, ...] = ()
    published_at: str = ""
    schema: int = _SCHEMA


#: What is there before anything was published.
NONE = Version(number=0, folder="", files={})


# --- reading ---------------------------------------------------------------------------------------------------------


def latest(place: Place) -> Version:
    """Return the version that counts, :data:`NONE` where nothing was published.

    Raises:
        LibraryUnsafe: what says so is damaged, or would lead elsewhere.
        StorageFailed, StorageRefused
    """
    own = place / FOLDER
    numbers = [int(found[1]) for name in own.entries() if (found := _VERSION.fullmatch(name))]
    if not numbers:
        return NONE
    name = f"{max(numbers):06}.json"
    content = (own / name).content()
    try:
        version = msgspec.json.decode(content or b"", type=Version)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _unsafe(place, tr("{name} cannot be read: {error}", name=f"{FOLDER}/{name}", error=error)) from error
    folder = _FILES.fullmatch(version.folder)
    is_known = version.schema == _SCHEMA and version.number == max(numbers) < _LAST
    if not is_known or folder is None or int(folder[1]) != version.number:
        raise _unsafe(place, tr("{name} is not one that this regraft knows", name=f"{FOLDER}/{name}"))
    for path in (*version.files, *version.folders):
        _demand_inside(place, path)
    return version


def fetch(place: Place, folder: Path) -> Version:
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
        version = latest(place)
        try:
            if not version.number:
                return _fetch_plain(place, folder)
            sizes = {name: one.bytes for name, one in version.files.items()}
            _fetch(place / FOLDER / version.folder, sizes, folder)
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


def _fetch_plain(place: Place, folder: Path) -> Version:
    """Copy a library that was never published: all objects that lie there.

    Raises:
        ObjectGone: they are others now.
    """
    found = _plain(place)
    _fetch(place, {name: size for name, (size, _) in found.items()}, folder)
    if _plain(place) != found:
        raise ObjectGone(place.url)
    return Version(number=0, folder="", files=_hashed(folder))


def _plain(place: Place) -> dict[str, tuple[int, str]]:
    found = {name: state for name, state in place.states().items() if name.partition("/")[0] != FOLDER}
    if not found or "" in found:
        raise SourceNotFound(path=place.url)
    return found


def _fetch(place: Place, files: dict[str, int], folder: Path) -> None:
    for name in files:
        _demand_inside(place, name)
    above = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    if len(set(map(on_disk, files))) < len(files):
        raise _unsafe(place, tr("names in it are one name on this system"))
    for name in above.intersection(files):
        raise _unsafe(place, tr("{parts} is both a file and a folder", parts=name))
    demand_room(folder, sum(files.values()))
    for parent in sorted(above):
        durable.make_folders(folder / parent, flush=False)
    place.download((name, folder / name) for name in files)


def _demand_inside(place: Place, name: str) -> None:
    """Refuse a path that would lead out of a folder here, on any system, or is none."""
    parts = name.split("/")
    is_plain = all(parts) and not {".", ".."}.intersection(parts) and len(parts) <= MOST_PARTS
    # The client of S3 takes the last one for no part of the name.
    is_strange = any(part in name for part in ("\\", "\0", "?versionId=")) or re.match("[A-Za-z]:", name)
    if not is_plain or is_strange or len(name.encode(errors="replace")) > LONGEST_NAME:
        raise _unsafe(place, tr("{name} leads out of it, or is no name of a file", name=one_line(name, 80)))


def _unsafe(place: Place, reason: str) -> LibraryUnsafe:
    return LibraryUnsafe(url=place.url, reason=reason)


# --- publishing ------------------------------------------------------------------------------------------------------


def publish(place: Place, folder: Path, before: Version) -> bool:
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
        published_at=clock.iso_time(clock.now_ms()),
    )
    own = place / FOLDER
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


def _hashed(folder: Path) -> dict[str, File]:
    return {name: File(bytes=path.stat().st_size, sha256=file_hash(path)) for name, path in _files_of(folder)}


def _files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path.relative_to(folder).as_posix(), path


def _empty_folders(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            yield path.relative_to(folder).as_posix()


def _write_files(own: Place, folder: Path, version: Version, before: Version) -> None:
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


def _superseded(own: Place, version: Version) -> list[str]:
    """Return the folders of files that can never count any more. Those of the same number go with the next version."""
    found = (match for name in own.entries() if (match := _FILES.fullmatch(name)))
    return [match[0] for match in found if int(match[1]) < version.number]


def _remove_files(own: Place, folders: Iterable[str]) -> None:
    """Remove folders of files; what cannot be removed is no harm, and goes with the next version."""
    for folder in folders:
        try:
            own.remove(f"{folder}/{name}" for name in (own / folder).objects())
        except (StorageFailed, PermissionError):
            return
