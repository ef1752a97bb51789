"""Object storage through fsspec: folders and objects by their URLs (``docs/fleet.md``, "Object storage").

A store must be able to list, read, write, and create an object only if it does not exist (:meth:`StoragePath.create`).
S3, Google Cloud Storage and fsspec's memory store do the latter atomically.
"""

from __future__ import annotations

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
_STORES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gs"), "memory": ("fsspec", "s3")}
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
        """Return the storage path of ``name`` below this one; for ``""``, this one."""
        return StoragePath(f"{self.url}/{name}") if name else self

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
        """The path without the kind of store, as fsspec takes it."""
        return self.url.partition("://")[2]

    @property
    def _files(self) -> Any:
        """The file system of fsspec for this kind of store."""
        kind = self.parts[0]
        demand_client(kind)
        fsspec = errors.import_optional("fsspec", _PURPOSE, _STORES[kind][1])
        # Never list from a cache: other processes write to the store.
        return fsspec.filesystem(kind, **({} if kind == "memory" else {"use_listings_cache": False}))

    # --- reading -----------------------------------------------------------------------------------------------------

    def objects(self) -> dict[str, int]:
        """Map the relative paths of all objects below this path to their sizes; a single object is ``""``."""
        return {name: size for name, (size, _) in self.states().items()}

    def states(self) -> dict[str, tuple[int, str]]:
        """Map the relative paths of all objects below this path to their size and version tag.

        The tag is new after each write. A single object is ``""``.
        """
        with _translate_errors(self):
            found = self._files.find(self._path, detail=True)
        tags = ("ETag", "etag", "generation", "created")
        return {
            # Paths of the memory store begin with a slash; paths with a trailing slash mark folders.
            str(path).lstrip("/")[len(self._path) + 1 :]: (
                int(one["size"] or 0),
                str(next((one[tag] for tag in tags if one.get(tag)), "")),
            )
            for path, one in found.items()
            if one["type"] == "file" and not path.endswith("/")
        }

    def _find(self, action: str, **options: Any) -> Any:
        """Call the method ``action`` of the client for this path, with ``options``; return None if there is nothing."""
        with _translate_errors(self), suppress(FileNotFoundError):
            return getattr(self._files, action)(self._path, **options)
        return None

    def size(self) -> int | None:
        """Return the size of this object in bytes, or None if there is no such object."""
        return _size(self._find("info"))

    def entries(self) -> dict[str, int | None]:
        """Map the names of the entries of this folder to their sizes; None for folders."""
        sizes = {str(one["name"]).strip("/"): _size(one) for one in self._find("ls", detail=True) or ()}
        return {path.rpartition("/")[2]: size for path, size in sizes.items() if path != self._path}

    def matches(self) -> dict[str, int | None]:
        """Map the URLs that this path matches, as a pattern, to the sizes of objects; None for folders."""
        with _translate_errors(self):
            found = self._files.glob(self._path, detail=True)
        return {f"{self.parts[0]}://{str(path).strip('/')}": _size(one) for path, one in found.items()}

    def content(self) -> bytes | None:
        """Return the content of this object, or None if there is no such object."""
        found = self._find("cat_file")
        return None if found is None else bytes(found)

    def download(self, files: Iterable[tuple[str, Path]]) -> None:
        """Copy objects, given by relative path, to new files in existing folders; ObjectGone: one was deleted."""
        self._transfer("get", [((self / name)._path, str(path)) for name, path in files])

    def _transfer(self, action: str, pairs: list[tuple[str, str]]) -> None:
        """Copy objects or files by a method of the client: ``action`` is "get", "put" or "copy".

        ``pairs`` are source and target of each. ObjectGone: an object to read was deleted.
        """
        if pairs:
            with _translate_errors(self):
                try:
                    getattr(self._files, action)(*map(list, zip(*pairs, strict=True)), batch_size=_AT_ONCE)
                except FileNotFoundError as error:
                    # Nothing is read from the store by a put: there is no such bucket.
                    if action == "put":
                        raise
                    raise ObjectGone(self.url) from error

    # --- writing -----------------------------------------------------------------------------------------------------

    def create(self, content: bytes) -> bool:
        """Create this object atomically, with a content that no other process writes; return False if it exists."""
        with _translate_errors(self):
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
        """Write this object, replacing an existing one."""
        with _translate_errors(self):
            self._files.pipe_file(self._path, content)

    def upload(self, files: Iterable[tuple[Path, str]]) -> None:
        """Copy files to objects below this path, given by relative path; ``""`` is the object itself."""
        small: list[tuple[str, str]] = []
        with _translate_errors(self):
            for path, name in files:
                size, target = path.stat().st_size, (self / name)._path
                if size > _LARGE_BYTES:
                    self._files.put_file(str(path), target, **_multipart_options(self.parts[0], size))
                else:
                    small.append((str(path), target))
        self._transfer("put", small)

    def copy(self, names: Iterable[tuple[str, str]]) -> None:
        """Copy objects below this path to others, inside the store; ``names`` are relative paths of source and target.

        ObjectGone: an object was deleted.
        """
        self._transfer("copy", [((self / source)._path, (self / target)._path) for source, target in names])

    def remove(self, names: Iterable[str]) -> None:
        """Delete objects below this path, given by relative path; missing ones are ignored."""
        with _translate_errors(self), ThreadPoolExecutor(_AT_ONCE) as threads:
            # One by one: a list would be expanded as patterns.
            for answer in [threads.submit(self._files.rm_file, (self / name)._path) for name in names]:
                with suppress(FileNotFoundError):
                    answer.result()


def _size(entry: dict[str, Any] | None) -> int | None:
    """Return the size of an object from its entry in a listing of fsspec; None for a folder or no entry."""
    return int(entry["size"] or 0) if entry and entry["type"] == "file" else None


def _multipart_options(kind: str, size: int) -> dict[str, Any]:
    """Return the options with which the client of a kind of store uploads a file of ``size`` bytes in parts."""
    part = max(_LARGE_BYTES, -(-size // _MOST_PARTS))
    settings = {"s3": {"chunksize": part, "max_concurrency": 4}, "gs": {"chunksize": part}}
    return settings.get(kind, {})


def storage_path(url: str, *, is_shared: bool = False) -> StoragePath:
    """Parse a URL of object storage. WrongUsage: it is invalid, or ``is_shared`` and in the memory of this process."""
    kind, _, path = url.partition("://")
    parts = path.rstrip("/").split("/")
    is_usable = kind in _STORES and not (is_shared and kind == "memory")
    if not is_usable or not all(parts) or {".", ".."}.intersection(parts):
        problem = tr("{url} is not a URL of object storage that regraft supports", url=printable(url, LONGEST_NAME))
        raise WrongUsage(problem=problem, hint=tr("use s3://BUCKET/FOLDER or gs://BUCKET/FOLDER"))
    return StoragePath(f"{kind}://{'/'.join(parts)}")


def demand_client(kind: str) -> None:
    """Raise WrongUsage if the client of a kind of store (``s3``…) is not installed."""
    errors.import_optional(_STORES[kind][0], _PURPOSE, _STORES[kind][1])


@contextmanager
def _translate_errors(place: StoragePath) -> Iterator[None]:
    """Context that converts errors of the client, in a call for ``place``, to StorageFailed and StorageRefused."""
    try:
        yield
    except (ObjectGone, RegraftError):
        raise
    except Exception as error:  # clients raise errors of their own
        is_refused = isinstance(error, FileNotFoundError | PermissionError)
        is_refused = is_refused or any(word in type(error).__name__ for word in _CREDENTIALS)
        kind = StorageRefused if is_refused else StorageFailed
        raise kind(url=place.url, reason=str(error) or type(error).__name__) from error
