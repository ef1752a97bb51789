"""Object storage through fsspec: folders and objects by their URLs (``docs/fleet.md``, "Object storage").

A store must be able to list, read, write, and create an object only if it does not exist (:meth:`StoragePath.create`).
S3, Google Cloud Storage and fsspec's memory store do the latter atomically.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from regraft import errors
from regraft.errors import RegraftError, StorageFailed, StorageRefused, WrongUsage
from regraft.language import tr
from regraft.text import LONGEST_NAME, printable

#: The module that each kind of store needs, and the extra of regraft that installs it.
_STORES = {
    "s3": ("s3fs", "s3"),
    "gs": ("gcsfs", "gs"),
    "memory": ("fsspec", "s3"),
}
_PURPOSE = tr("libraries in object storage")
#: Larger objects are uploaded alone and in parts, to save memory.
_LARGE_BYTES = 8 << 20
#: S3 allows 10,000 parts.
_MOST_PARTS = 9_000
#: Objects transferred at a time.
_AT_ONCE = 16
#: Parts of the names of clients' errors for a missing or wrong credential.
_CREDENTIALS = ("Credential", "Unauthorized", "Forbidden", "AccessDenied")


def is_url(name: str | None) -> bool:
    """Whether a name is a URL of object storage."""
    return name is not None and name.partition("://")[0] in _STORES and "://" in name


class ObjectGone(Exception):
    """A listed object was deleted by another process."""


class StoragePath(msgspec.Struct, frozen=True):
    """A folder or an object, by its URL without a trailing slash.

    Every method that asks the store raises StorageFailed or StorageRefused.
    """

    url: str

    def __truediv__(self, name: str) -> StoragePath:
        """Return the path of a name below it."""
        return StoragePath(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rpartition("/")[2]

    @property
    def parts(self) -> tuple[str, ...]:
        """The kind of the store, the bucket, and the further parts of the URL."""
        kind, _, path = self.url.partition("://")
        return kind, *path.split("/")

    @property
    def _path(self) -> str:
        return self.url.partition("://")[2]

    def _path_of(self, name: str) -> str:
        """Return the client's path of an object below it; ``""`` is the object itself."""
        return (self / name if name else self)._path

    @property
    def _files(self) -> Any:
        kind = self.parts[0]
        demand_client(kind)
        fsspec = errors.import_optional("fsspec", _PURPOSE, _STORES[kind][1])
        # Never list from a cache: other processes write to the store.
        settings = {} if kind == "memory" else {"use_listings_cache": False}
        return fsspec.filesystem(kind, **settings)

    # --- reading -----------------------------------------------------------------------------------------------------

    def objects(self) -> dict[str, int]:
        """Return the sizes of all objects below it, by relative path; of a single object, under ``""``."""
        return {name: int(one["size"] or 0) for name, one in self._list().items()}

    def size(self) -> int | None:
        """Return the size of an object, or None if there is no such object."""
        with _translated_errors(self):
            try:
                found = self._files.info(self._path)
            except FileNotFoundError:
                return None
        return int(found["size"] or 0) if found["type"] == "file" else None

    def states(self) -> dict[str, tuple[int, str]]:
        """Return size and version tag of all objects below it, by relative path; an object that is written again gets
        another tag.
        """
        found = self._list()
        tags = ("ETag", "etag", "generation", "created")
        return {
            name: (int(one["size"] or 0), str(next((one[tag] for tag in tags if one.get(tag)), "")))
            for name, one in found.items()
        }

    def _list(self) -> dict[str, dict[str, Any]]:
        with _translated_errors(self):
            found = self._files.find(self._path, detail=True)
        start = len(self._path) + 1
        # Paths of the memory store begin with a slash; paths with a trailing slash mark folders.
        paths = {str(path).lstrip("/"): one for path, one in found.items() if one["type"] == "file"}
        return {path[start:]: one for path, one in paths.items() if not path.endswith("/")}

    def entries(self) -> dict[str, int | None]:
        """Return the direct entries by name, with the sizes of objects; None for folders."""
        with _translated_errors(self):
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
        """Return the URLs that it matches as a pattern, with the sizes of objects; None for folders."""
        with _translated_errors(self):
            found = self._files.glob(self._path, detail=True)
        return {
            f"{self.parts[0]}://{str(path).strip('/')}": int(one["size"] or 0) if one["type"] == "file" else None
            for path, one in found.items()
        }

    def content(self) -> bytes | None:
        """Return the content of an object, or None if there is none."""
        with _translated_errors(self):
            try:
                return bytes(self._files.cat_file(self._path))
            except FileNotFoundError:
                return None

    def download(self, files: Iterable[tuple[str, Path]]) -> None:
        """Copy objects below it to new files in existing folders.

        Raises:
            ObjectGone: one was deleted.
        """
        pairs = list(files)
        if pairs:
            sources = [self._path_of(name) for name, _ in pairs]
            with _translated_errors(self):
                try:
                    self._files.get(sources, [str(path) for _, path in pairs], batch_size=_AT_ONCE)
                except FileNotFoundError as error:
                    raise ObjectGone(self.url) from error

    # --- writing -----------------------------------------------------------------------------------------------------

    def create(self, content: bytes) -> bool:
        """Create an object atomically; returns False if another one exists.

        Args:
            content: different from what any other process writes there.
        """
        with _translated_errors(self):
            try:
                self._files.pipe_file(self._path, content, mode="create")
            except PermissionError:
                raise
            except Exception:
                # Either another process was first, or our write succeeded and its answer was lost: compare the content.
                there = self.content()
                if there is None:
                    raise
                return there == content
        return True

    def put(self, content: bytes) -> None:
        """Write an object, replacing an existing one."""
        with _translated_errors(self):
            self._files.pipe_file(self._path, content)

    def upload(self, files: Iterable[tuple[Path, str]]) -> None:
        """Copy files to objects below it; the name ``""`` is the object itself."""
        small: list[tuple[Path, str]] = []
        with _translated_errors(self):
            for path, name in files:
                if path.stat().st_size > _LARGE_BYTES:
                    there = self._path_of(name)
                    self._files.put_file(str(path), there, **_multipart_options(self.parts[0], path.stat().st_size))
                else:
                    small.append((path, name))
            targets = [self._path_of(name) for _, name in small]
            if small:
                self._files.put([str(path) for path, _ in small], targets, batch_size=_AT_ONCE)

    def copy(self, names: Iterable[tuple[str, str]]) -> None:
        """Copy objects below it to others, inside the store.

        Raises:
            ObjectGone: one was deleted.
        """
        pairs = list(names)
        if pairs:
            sources = [(self / source)._path for source, _ in pairs]
            targets = [(self / target)._path for _, target in pairs]
            with _translated_errors(self):
                try:
                    self._files.copy(sources, targets, batch_size=_AT_ONCE)
                except FileNotFoundError as error:
                    raise ObjectGone(self.url) from error

    def remove(self, names: Iterable[str]) -> None:
        """Delete objects below it; missing ones are ignored."""
        with _translated_errors(self), ThreadPoolExecutor(_AT_ONCE) as threads:
            # One by one: a list would be expanded as patterns.
            deque(threads.map(self._remove, names), maxlen=0)

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm_file((self / name)._path)


def _multipart_options(kind: str, size: int) -> dict[str, Any]:
    """Return the client's options to upload a large file in parts."""
    part = max(_LARGE_BYTES, -(-size // _MOST_PARTS))
    settings = {"s3": {"chunksize": part, "max_concurrency": 4}, "gs": {"chunksize": part}}
    return settings.get(kind, {})


def storage_path(url: str) -> StoragePath:
    """Parse a URL of object storage.

    Raises:
        WrongUsage: it is invalid, or of an unknown kind.
    """
    kind, _, path = url.partition("://")
    parts = path.rstrip("/").split("/")
    if kind not in _STORES or not all(parts) or {".", ".."}.intersection(parts):
        problem = tr("{url} is not a URL of object storage that regraft supports", url=printable(url, LONGEST_NAME))
        raise WrongUsage(problem=problem, hint=tr("use s3://BUCKET/FOLDER or gs://BUCKET/FOLDER"))
    return StoragePath(f"{kind}://{'/'.join(parts)}")


def demand_client(kind: str) -> None:
    """Check that the client of a kind of store is installed.

    Raises:
        WrongUsage: it is not.
    """
    module, extra = _STORES[kind]
    errors.import_optional(module, _PURPOSE, extra)


@contextmanager
def _translated_errors(place: StoragePath) -> Iterator[None]:
    """Turn the errors of clients into StorageFailed and StorageRefused."""
    try:
        yield
    except (ObjectGone, RegraftError):
        raise
    except (FileNotFoundError, PermissionError) as error:
        raise StorageRefused(url=place.url, reason=_reason(error)) from error
    except Exception as error:  # clients raise errors of their own
        is_refused = any(word in type(error).__name__ for word in _CREDENTIALS)
        kind = StorageRefused if is_refused else StorageFailed
        raise kind(url=place.url, reason=_reason(error)) from error


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
