"""Object storage through fsspec: folders and objects by their URLs (``docs/fleet.md``, "Object storage").

All that is asked of a store is: list, read, write, and write where nothing is yet (``create``), which S3, Google Cloud
Storage and fsspec's own memory do in one step.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from regraft import errors
from regraft.errors import RegraftError, StorageFailed, StorageRefused, WrongUsage
from regraft.language import tr
from regraft.text import LONGEST_NAME, printable

#: What each kind of store needs: a module, and the extra of regraft that brings it.
_STORES = {
    "s3": ("s3fs", "s3"),
    "gs": ("gcsfs", "gs"),
    "memory": ("fsspec", "s3"),
}
_PURPOSE = tr("libraries in object storage")
#: An object of more bytes goes alone and in parts, so that little of it is in memory.
_LARGE_BYTES = 8 << 20
#: S3 takes 10,000 parts.
_MOST_PARTS = 9_000
#: So many objects are under way at a time.
_AT_ONCE = 16
#: What a store says where a credential is missing or wrong, by the names of the clients' errors.
_CREDENTIALS = ("Credential", "Unauthorized", "Forbidden", "AccessDenied")


def is_url(name: str | None) -> bool:
    """Tell whether a name is one of object storage, and no path."""
    return name is not None and name.partition("://")[0] in _STORES and "://" in name


class ObjectGone(Exception):
    """An object that was listed is not there any more: somebody else is at work."""


class StoragePath(msgspec.Struct, frozen=True):
    """A folder or an object of a store, by its URL without a slash at its end."""

    url: str

    def __truediv__(self, name: str) -> StoragePath:
        """Return what lies in it under a name."""
        return StoragePath(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """Return the last part of its path."""
        return self.url.rpartition("/")[2]

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the kind of the store, the bucket, and the names that lead to it."""
        kind, _, path = self.url.partition("://")
        return kind, *path.split("/")

    @property
    def _path(self) -> str:
        return self.url.partition("://")[2]

    def _path_of(self, name: str) -> str:
        """Return the path of an object below it; ``""`` is its own."""
        return (self / name if name else self)._path

    @property
    def _files(self) -> Any:
        kind = self.parts[0]
        demand_client(kind)
        fsspec = errors.import_optional("fsspec", _PURPOSE, _STORES[kind][1])
        # What was listed before is never taken for what is there.
        settings = {} if kind == "memory" else {"use_listings_cache": False}
        return fsspec.filesystem(kind, **settings)

    # --- reading -----------------------------------------------------------------------------------------------------

    def objects(self) -> dict[str, int]:
        """Return the bytes of all objects below it, by their paths from here; of one object alone, under ``""``.

        Raises:
            StorageFailed, StorageRefused
        """
        return {name: int(one["size"] or 0) for name, one in self._found().items()}

    def size(self) -> int | None:
        """Return the bytes of an object, None where there is none: it may be a folder.

        Raises:
            StorageFailed, StorageRefused
        """
        with _asked(self):
            try:
                found = self._files.info(self._path)
            except FileNotFoundError:
                return None
        return int(found["size"] or 0) if found["type"] == "file" else None

    def states(self) -> dict[str, tuple[int, str]]:
        """Return what tells of all objects below it whether they have changed, by their paths from here: their bytes,
        and what the store calls this state of them.

        Raises:
            StorageFailed, StorageRefused
        """
        found = self._found()
        return {name: (int(one["size"] or 0), _state(one)) for name, one in found.items()}

    def _found(self) -> dict[str, dict[str, Any]]:
        with _asked(self):
            found = self._files.find(self._path, detail=True)
        start = len(self._path) + 1
        # The memory's paths begin with a slash; markers of folders are no objects.
        paths = {str(path).lstrip("/"): one for path, one in found.items() if one["type"] == "file"}
        return {path[start:]: one for path, one in paths.items() if not path.endswith("/")}

    def entries(self) -> dict[str, int | None]:
        """Return what lies in it directly by its names, with the bytes of objects; None: it is a folder.

        Raises:
            StorageFailed, StorageRefused
        """
        with _asked(self):
            try:
                found = self._files.ls(self._path, detail=True)
            except FileNotFoundError:
                return {}
        entries = {}
        for one in found:
            path = str(one["name"]).strip("/")
            if path != self._path:
                entries[path.rpartition("/")[2]] = int(one["size"] or 0) if one["type"] == "file" else None
        return entries

    def matches(self) -> dict[str, int | None]:
        """Return the URLs that it matches as a pattern, with the bytes of objects; None: it is a folder.

        Raises:
            StorageFailed, StorageRefused
        """
        with _asked(self):
            found = self._files.glob(self._path, detail=True)
        return {
            f"{self.parts[0]}://{str(path).strip('/')}": int(one["size"] or 0) if one["type"] == "file" else None
            for path, one in found.items()
        }

    def content(self) -> bytes | None:
        """Return the bytes of an object, None where there is none.

        Raises:
            StorageFailed, StorageRefused
        """
        with _asked(self):
            try:
                return bytes(self._files.cat_file(self._path))
            except FileNotFoundError:
                return None

    @contextmanager
    def reading(self) -> Iterator[BinaryIO]:
        """Open an object for reading, as a file, which raises what this does.

        Raises:
            StorageFailed, StorageRefused
        """
        with _asked(self):
            file = self._files.open(self._path, "rb")
        with file:
            yield io.BufferedReader(_Read(self, file))

    def download(self, files: Iterable[tuple[str, Path]]) -> None:
        """Copy objects below it to new files, whose folders are there.

        Raises:
            ObjectGone: one is not there any more.
            StorageFailed, StorageRefused
        """
        pairs = list(files)
        if pairs:
            sources = [self._path_of(name) for name, _ in pairs]
            with _asked(self):
                try:
                    self._files.get(sources, [str(path) for _, path in pairs], batch_size=_AT_ONCE)
                except FileNotFoundError as error:
                    raise ObjectGone(self.url) from error

    # --- writing -----------------------------------------------------------------------------------------------------

    def create(self, content: bytes) -> bool:
        """Write an object where none is, in one step, and tell whether it is this one that is there now.

        Args:
            content: unlike what anybody else writes there.

        Raises:
            StorageFailed, StorageRefused
        """
        with _asked(self):
            try:
                self._files.pipe_file(self._path, content, mode="create")
            except PermissionError:
                raise
            except Exception:
                # Another one was first, or an answer was lost and it was written nevertheless: what is there tells.
                there = self.content()
                if there is None:
                    raise
                return there == content
        return True

    def put(self, content: bytes) -> None:
        """Write an object, in the place of one that is there.

        Raises:
            StorageFailed, StorageRefused
        """
        with _asked(self):
            self._files.pipe_file(self._path, content)

    def upload(self, files: Iterable[tuple[Path, str]]) -> None:
        """Copy files to objects below it, each under a name; ``""`` is its own.

        Raises:
            StorageFailed, StorageRefused
        """
        small: list[tuple[Path, str]] = []
        with _asked(self):
            for path, name in files:
                if path.stat().st_size > _LARGE_BYTES:
                    there = self._path_of(name)
                    self._files.put_file(str(path), there, **_in_parts(self.parts[0], path.stat().st_size))
                else:
                    small.append((path, name))
            targets = [self._path_of(name) for _, name in small]
            if small:
                self._files.put([str(path) for path, _ in small], targets, batch_size=_AT_ONCE)

    def copy(self, names: Iterable[tuple[str, str]]) -> None:
        """Have the store copy objects below it to others.

        Raises:
            ObjectGone: one is not there any more.
            StorageFailed, StorageRefused
        """
        pairs = list(names)
        if pairs:
            sources = [(self / source)._path for source, _ in pairs]
            targets = [(self / target)._path for _, target in pairs]
            with _asked(self):
                try:
                    self._files.copy(sources, targets, batch_size=_AT_ONCE)
                except FileNotFoundError as error:
                    raise ObjectGone(self.url) from error

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects below it; those that are gone are.

        Raises:
            StorageFailed, StorageRefused
        """
        with _asked(self), ThreadPoolExecutor(_AT_ONCE) as threads:
            # One by one: together they would be taken for patterns.
            deque(threads.map(self._remove, names), maxlen=0)

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm_file((self / name)._path)


class _Read(io.RawIOBase):
    """A store's file; what its client says while it is read is said in plain words."""

    def __init__(self, place: StoragePath, file: Any) -> None:
        self._place, self._file = place, file

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that any of it can be read."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read as much as there is room for."""
        with _asked(self._place):
            found = self._file.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a place."""
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        """Return the place."""
        return int(self._file.tell())


def _in_parts(kind: str, size: int) -> dict[str, Any]:
    """Return how a large file is sent: in parts, few of them in memory."""
    part = max(_LARGE_BYTES, -(-size // _MOST_PARTS))
    settings = {"s3": {"chunksize": part, "max_concurrency": 4}, "gs": {"chunksize": part}}
    return settings.get(kind, {})


def storage_path(url: str) -> StoragePath:
    """Return the place that a URL names.

    Raises:
        WrongUsage: it names none, or its kind of store is not known.
    """
    kind, _, path = url.partition("://")
    parts = path.rstrip("/").split("/")
    if kind not in _STORES or not all(parts) or {".", ".."}.intersection(parts):
        problem = tr("{url} names no folder or object of a store", url=printable(url, LONGEST_NAME))
        raise WrongUsage(problem=problem, hint=tr("write s3://BUCKET/FOLDER or gs://BUCKET/FOLDER"))
    return StoragePath(f"{kind}://{'/'.join(parts)}")


def _state(one: Mapping[str, Any]) -> str:
    """Return what a store calls the state of an object: another one whenever it was written."""
    return str(next((one[name] for name in ("ETag", "etag", "generation", "created") if one.get(name)), ""))


def demand_client(kind: str) -> None:
    """Refuse a kind of store for which nothing is installed.

    Raises:
        WrongUsage
    """
    module, extra = _STORES[kind]
    errors.import_optional(module, _PURPOSE, extra)


@contextmanager
def _asked(place: StoragePath) -> Iterator[None]:
    """Say in plain words what a store's client says in its own."""
    try:
        yield
    except (ObjectGone, RegraftError):
        raise
    except (FileNotFoundError, PermissionError) as error:
        raise StorageRefused(url=place.url, reason=_reason(error)) from error
    except Exception as error:  # each client has errors of its own
        is_refused = any(word in type(error).__name__ for word in _CREDENTIALS)
        kind = StorageRefused if is_refused else StorageFailed
        raise kind(url=place.url, reason=_reason(error)) from error


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
