"""Which libraries a fleet has: a folder of them, a pattern, or a table (``docs/fleet.md``, "The manifest").

Each name is a path, or a URL of object storage (:mod:`regraft.fleet.storage`).
"""

from __future__ import annotations

import csv
import glob
import os
import re
import shlex
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any
from urllib.parse import unquote

import msgspec

from regraft.disk import links
from regraft.disk.file_paths import disk_name
from regraft.disk.trees import total_size
from regraft.errors import RegraftError, WrongUsage
from regraft.fleet.storage import demand_client, is_url, storage_path
from regraft.formats.parquet.unit_file import import_arrow
from regraft.language import tr
from regraft.text import LONGEST_NAME, printable, replace_surrogates

#: The columns of a table; all but the first may be missing.
COLUMNS = ("source", "target", "options", "bytes")
#: How a file ends that is a table.
_TABLES = (".csv", ".jsonl", ".parquet")
#: How an archive's name ends, where nobody has said whether an object or a folder is meant.
_ARCHIVES = (".zip", ".bak", ".parquet")
#: What begins so is no path; the letter of a drive is.
_ANY_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
#: The drive that a path of Windows begins with.
_DRIVE = re.compile(r"[A-Za-z]:(?=[/\\]|$)")
#: A path as a URL.
_FILE = "file://"
#: So many sizes are asked for at a time, of so many libraries: a share and a store take their time to tell.
_AT_ONCE, _TOGETHER = 16, 1024

#: Opens a table for reading.
OpenTable = Callable[[], AbstractContextManager[Any]]


#: The largest number that any file of a fleet has.
MAX_NUMBER = 2**63 - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """One library: where it is, where its command writes (None: there, or nowhere), and its further options.

    ``bytes`` is its size, None where nobody has said.
    """

    source: str
    target: str | None = None
    options: tuple[str, ...] = ()
    bytes: Count | None = None


def read_manifest(manifest: str, targets: str | None, ending: str, *, needs_target: bool) -> list[Library]:
    """Return the libraries of a manifest, in its order.

    Args:
        manifest: a folder whose entries are sources, a pattern with ``*``, or a table: CSV, JSON lines or Parquet; its
            path, or its URL.
        targets: the folder of all targets that the manifest does not name.
        ending: how the names of those targets end.
        needs_target: whether the command writes to a target.

    Raises:
        WrongUsage: it cannot be read, or names no library, or one in a way that cannot be meant; what two of them share
            :func:`demand_apart` refuses.
        StorageFailed, StorageRefused: object storage cannot be read.
        OSError: it cannot be read.
    """
    found = [_absolute(_placed(library, targets, ending, needs_target)) for library in _read(manifest)]
    if not found:
        raise WrongUsage(problem=tr("{manifest} names no library", manifest=manifest), hint=_HINT)
    return found


_HINT = tr("give a folder of sources, a pattern like 'backups/*.zip', or a table: .csv, .jsonl or .parquet")


def _read(manifest: str) -> Iterator[Library]:
    manifest = _local(manifest)
    if is_url(manifest):
        yield from _read_storage(manifest)
        return
    path = Path(manifest)
    if path.is_dir():
        for entry in sorted(path.iterdir()):
            if not entry.name.startswith("."):
                yield Library(source=str(entry))
    elif path.is_file() and path.suffix.lower() in _TABLES:
        yield from _of_table(str(path), str(path.parent), partial(links.open_for_reading, path))
    elif glob.has_magic(manifest):
        for found in sorted(glob.glob(manifest, recursive=True)):  # noqa: PTH207 - a pattern may be absolute
            yield Library(source=found)
    else:
        raise WrongUsage(problem=tr("{manifest} is no manifest", manifest=manifest), hint=_HINT)


def _read_storage(url: str) -> Iterator[Library]:
    place = storage_path(url)
    if glob.has_magic(url) and not ("*" not in url and "?" not in url and place.entries()):
        for found, size in sorted(place.matches().items()):
            yield Library(source=found, bytes=size)
    elif PurePosixPath(place.name).suffix.lower() in _TABLES and place.size() is not None:
        yield from _of_table(place.url, place.url.rpartition("/")[0], place.reading)
    else:
        for name, size in sorted(place.entries().items()):
            if not name.startswith("."):
                yield Library(source=(place / name).url, bytes=size)


def _local(name: str, *, windows: bool = os.name == "nt") -> str:
    """Return the path that a ``file:`` URL means; any other name as it is.

    On Windows ``file:///C:/x`` is ``C:\\x`` and ``file://server/share/x`` is ``\\\\server\\share\\x``.
    """
    if not name.lower().startswith(_FILE):
        return name
    host, slash, rest = name[len(_FILE) :].partition("/")
    host = "" if host.lower() == "localhost" else host
    path = unquote(slash + rest)
    if not windows:
        return unquote(host) + path
    if _DRIVE.match(path.lstrip("/")):
        return str(PureWindowsPath(path.lstrip("/")))
    return str(PureWindowsPath(host + path if not host or _DRIVE.match(host) else f"//{host}{path}"))


def _of_table(name: str, folder: str, reading: OpenTable) -> Iterator[Library]:
    rows = {".csv": _csv_rows, ".jsonl": _json_rows, ".parquet": _parquet_rows}[PurePosixPath(name).suffix.lower()]
    number = 1
    try:
        with reading() as file:
            for row in rows(file):
                yield _library(row, folder)
                number += 1
    except (ValueError, msgspec.MsgspecError, csv.Error) as error:
        problem = tr("{path}, library {number:,}: {error}", path=name, number=number, error=error)
        raise WrongUsage(problem=problem, hint=_HINT) from error


def _csv_rows(file: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    lines = (line.decode("utf-8-sig") for line in file)
    for row in csv.DictReader(lines, strict=True):
        yield {str(name): value for name, value in row.items() if value}


def _json_rows(file: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in file:
        if line.strip():
            yield msgspec.json.decode(line, type=dict[str, Any])


def _parquet_rows(file: Any) -> Iterator[dict[str, Any]]:
    _, parquet = import_arrow()
    for batch in parquet.ParquetFile(file).iter_batches():
        for row in batch.to_pylist():
            yield {name: value for name, value in row.items() if value is not None}


def _library(row: dict[str, Any], folder: str) -> Library:
    """Return what a row says; relative names begin at the table's folder.

    Raises:
        ValueError: it says something else.
    """
    unknown = sorted(row.keys() - set(COLUMNS))
    if unknown:
        raise ValueError(tr("{name} is none of its columns ({columns})", name=unknown[0], columns=", ".join(COLUMNS)))
    options = row.get("options", [])
    words = shlex.split(options) if isinstance(options, str) else options
    # In CSV a number is text.
    library = msgspec.convert({**row, "options": words}, Library, strict=False)
    target = None if library.target is None else _joined(folder, library.target)
    return msgspec.structs.replace(library, source=_joined(folder, library.source), target=target)


def _joined(folder: str, name: str) -> str:
    """Return a name of a table as it is meant from anywhere."""
    own = _local(name)
    if _ANY_URL.match(own):
        return own
    if _ANY_URL.match(folder):
        return f"{folder.rstrip('/')}/{own.removeprefix('./')}"
    return str(Path(folder) / own)


def _placed(library: Library, targets: str | None, ending: str, needs_target: bool) -> Library:
    if not needs_target:
        if library.target is None:
            return library
        raise WrongUsage(
            problem=tr("{source} has a target, and this command writes to none", source=library.source),
            hint=tr("leave the column out"),
        )
    if library.target is not None:
        return library
    if targets is None:
        raise WrongUsage(
            problem=tr("{source} has no target", source=library.source),
            hint=tr("--to FOLDER gives one to each, by the name of its source"),
        )
    name = f"{_name_of(library)}{ending}"
    if {name, _name_of(library)} & {"", ".", ".."} or (is_url(library.source) and re.search(r"[\\:\0]", name)):
        raise WrongUsage(
            problem=tr("{source} has no name by which a target could be called", source=printable(library.source)),
            hint=tr("name its target in a table"),
        )
    return msgspec.structs.replace(library, target=_joined(_local(targets), name))


def _name_of(library: Library) -> str:
    """Return what a library is called: an archive's name without its ending."""
    source = PurePosixPath(library.source.rstrip("/")) if is_url(library.source) else Path(library.source)
    if isinstance(source, Path):
        is_folder = source.is_dir()
    else:
        is_folder = library.bytes is None and source.suffix.lower() not in _ARCHIVES
    return source.name if is_folder else source.stem


def _absolute(library: Library) -> Library:
    """Return a library that means the same wherever its command runs, and whoever resumes it.

    Raises:
        WrongUsage: its name cannot be written down.
    """
    target = None if library.target is None else _from_anywhere(library.target)
    placed = msgspec.structs.replace(library, source=_from_anywhere(library.source), target=target)
    if not is_name(f"{placed.source}{placed.target}"):
        problem = tr("{name} is no name in UTF-8", name=printable(library.source, LONGEST_NAME))
        raise WrongUsage(problem=problem, hint=tr("run the command over it alone"))
    return placed


def is_name(name: str) -> bool:
    """Tell whether a name can be written down, and can lead anywhere."""
    return replace_surrogates(name) == name and "\0" not in name


def _from_anywhere(name: str) -> str:
    """Return a name that means the same from any folder.

    Raises:
        WrongUsage: it is a URL of something else than this knows.
    """
    if is_url(name) and not name.startswith("memory:"):
        return storage_path(name).url
    if _ANY_URL.match(name):
        problem = tr("{url} names no folder or object of a store", url=printable(name, LONGEST_NAME))
        raise WrongUsage(problem=problem, hint=tr("write s3://BUCKET/FOLDER or gs://BUCKET/FOLDER"))
    return str(Path(name).absolute())


def source_sizes(found: Iterable[Library]) -> array[int]:
    """Return the bytes of libraries; what cannot be looked at has none."""
    names, known = iter(found), array("q")
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        # What is asked for is held until it is answered.
        while some := list(islice(names, _TOGETHER)):
            known.extend(threads.map(_size, some))
    return known


def _size(library: Library) -> int:
    if library.bytes is not None:
        return library.bytes
    if not is_url(library.source):
        return total_size(links.real_path(Path(library.source)))
    try:
        return sum(storage_path(library.source).objects().values())
    except RegraftError:
        # Its task says so.
        return 0


def demand_apart(found: Iterable[Library], own: Iterable[Path]) -> None:
    """Refuse a source or a target that is named twice, a file of ``own`` in a library, and a target in another library.

    Raises:
        WrongUsage
    """
    every, folders = list(found), _Folders()
    targets = _different((one.target for one in every), folders, tr("{name} is the target of two libraries"))
    places = targets | _different((one.source for one in every), folders, tr("{name} is named twice"))
    for path in own:
        name = disk_name(folders.place_of(str(path.absolute())))
        if name in places or not places.isdisjoint(_around(name)):
            problem = tr("the file {path} would lie in a library", path=path)
            raise WrongUsage(problem=problem, hint=tr("name another file"))
    for name in targets:
        if not places.isdisjoint(_around(name)):
            problem = tr("the target {path} would lie in another library", path=name)
            raise WrongUsage(problem=problem, hint=tr("name another folder"))


def demand_clients(found: Iterable[Library]) -> None:
    """Refuse libraries in a kind of store for which nothing is installed, before anything is done.

    Raises:
        WrongUsage
    """
    names = (name for one in found for name in (one.source, one.target))
    for kind in sorted({name.partition("://")[0] for name in names if name is not None and is_url(name)}):
        demand_client(kind)


class _Folders:
    """Says where names lead: many lie in the same folders, which are looked at once."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def place_of(self, name: str) -> str:
        """Return where a name leads, with ``/`` between its parts; a store lies where no path leads."""
        if is_url(name):
            return f"//{'/'.join(storage_path(name).parts)}"
        folder, last = os.path.split(name)
        if last in ("", ".", "..") or Path(name).is_symlink():
            return str(links.real_path(Path(name))).replace(os.sep, "/")
        if folder not in self._real:
            self._real[folder] = str(links.real_path(Path(folder))).replace(os.sep, "/").rstrip("/")
        return f"{self._real[folder]}/{last}"


def _around(name: str) -> Iterator[str]:
    """Yield all folders around a place."""
    end = name.rfind("/")
    while end > 0:
        yield name[:end]
        end = name.rfind("/", 0, end)


def _different(names: Iterable[str | None], folders: _Folders, problem: str) -> set[str]:
    """Return where names lead, those that there are; refuse two that lead to one place."""
    seen: set[str] = set()
    for name in names:
        if name is None:
            continue
        path = disk_name(folders.place_of(name))
        if path in seen:
            raise WrongUsage(problem=problem.format(name=printable(name, LONGEST_NAME)), hint=tr("name each once"))
        seen.add(path)
    return seen
