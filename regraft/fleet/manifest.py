"""Read which libraries a fleet has, from a folder, a pattern, or a table (``docs/fleet.md``, "The manifest").

Each library is named by a path, or by a URL of object storage (:mod:`regraft.fleet.storage`).
"""

from __future__ import annotations

import csv
import difflib
import glob
import io
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
from regraft.formats.cherry_v2.layout import INDEX_FILE
from regraft.formats.parquet.unit_file import import_arrow
from regraft.language import tr
from regraft.text import LONGEST_NAME, printable, replace_surrogates, split_command

#: Columns of a table; only the first is required.
COLUMNS = ("source", "target", "options", "bytes")
#: The bytes of JSON that the other columns of a row may have: they are copied to the results.
_MOST_EXTRA = 65_536
#: Suffixes of files that are tables.
_TABLES = (".csv", ".jsonl", ".parquet")
#: Suffixes of archives; used for URLs that may be a folder or an object.
_ARCHIVES = (".zip", ".bak", ".parquet")
#: The beginning of any URL; the letter of a drive is too short.
_ANY_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
#: The drive at the beginning of a Windows path.
_DRIVE = re.compile(r"[A-Za-z]:(?=[/\\]|$)")
_FILE = "file://"
#: Threads that ask for sizes, since network shares and object storage answer slowly, and libraries asked for together.
_AT_ONCE, _TOGETHER = 16, 1024

#: The largest int64: the largest number in any file of a fleet.
MAX_NUMBER = 2**63 - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """One library: its source, the target of its command (None: none, or the source itself), and its own options.

    ``bytes`` is its size, if the manifest or the store tells it. ``extra`` has the other columns of the manifest.
    """

    source: str
    target: str | None = None
    options: tuple[str, ...] = ()
    bytes: Count | None = None
    extra: dict[str, Any] = {}


def read_manifest(manifest: str, targets: str | None, ending: str, *, needs_target: bool) -> list[Library]:
    """Read the libraries of a manifest, in its order.

    It is the path or URL of a folder whose entries are sources, a pattern with ``*``, or a table (CSV, JSON lines or
    Parquet). A target that it does not name is in the folder ``targets``, with the suffix ``ending``.

    WrongUsage: the manifest is not valid, is empty, or has an invalid name. :func:`demand_apart` finds paths that are
    used twice. StorageFailed, StorageRefused, OSError: it cannot be read.
    """
    libraries = [_add_target(library, targets, ending, needs_target) for library in _read(manifest)]
    if not libraries:
        raise WrongUsage(problem=tr("{manifest} has no libraries", manifest=manifest), hint=_HINT)
    for library in libraries:
        if not is_name(f"{library.source}{library.target}"):
            problem = tr("{name} is not valid UTF-8", name=printable(library.source, LONGEST_NAME))
            raise WrongUsage(problem=problem, hint=tr("run the command on this library alone"))
    return libraries


_HINT = tr('give a folder of sources, a pattern like "backups/*.zip", or a table: .csv, .jsonl or .parquet')


def _read(manifest: str) -> Iterator[Library]:
    """Yield the libraries of a manifest: storage URL, folder, table, or pattern."""
    manifest = _local_path(manifest)
    path = Path(manifest)
    if is_url(manifest):
        yield from _read_storage(manifest)
    elif path.is_file() and path.suffix.lower() in _TABLES:
        with links.open_for_reading(path) as file:
            yield from _read_table(str(path), str(path.parent), file)
    elif path.is_dir():
        yield from _list_sources(str(entry) for entry in path.iterdir() if not entry.name.startswith("."))
    elif glob.has_magic(manifest):
        yield from _list_sources(glob.iglob(manifest, recursive=True))  # noqa: PTH207 - a pattern may be absolute
    else:
        raise WrongUsage(problem=tr("{manifest} is not a manifest", manifest=manifest), hint=_HINT)


def _list_sources(names: Iterable[str]) -> Iterator[Library]:
    """Yield a library for each source, given by its path, in sorted order."""
    return (Library(source=_absolute_name(name)) for name in sorted(names))


def _read_storage(url: str) -> Iterator[Library]:
    """Yield the libraries of a manifest in object storage: a pattern, a table, or a folder of sources."""
    place = storage_path(url)
    if glob.has_magic(url) and ("*" in url or "?" in url or not place.entries()):
        found = place.matches()
    elif PurePosixPath(place.name).suffix.lower() in _TABLES and (content := place.content()) is not None:
        yield from _read_table(place.url, place.url.rpartition("/")[0], io.BytesIO(content))
        return
    else:
        found = {(place / name).url: size for name, size in place.entries().items() if not name.startswith(".")}
    for name, size in sorted(found.items()):
        yield Library(source=_absolute_name(name), bytes=size)


def _local_path(name: str, *, windows: bool = os.name == "nt") -> str:
    """Convert a ``file:`` URL to a path; other names are returned unchanged.

    On Windows ``file:///C:/x`` is ``C:\\x`` and ``file://server/share/x`` is ``\\\\server\\share\\x``.
    """
    if not name.lower().startswith(_FILE):
        return name
    host, slash, rest = name[len(_FILE) :].partition("/")
    host, path = "" if host.lower() == "localhost" else unquote(host), unquote(slash + rest)
    if not windows:
        return host + path
    on_drive = (host + path).lstrip("/")
    return str(PureWindowsPath(on_drive if _DRIVE.match(on_drive) else f"//{host}{path}" if host else path))


def _read_table(name: str, folder: str, file: Any) -> Iterator[Library]:
    """Yield the libraries of an open table: Parquet, CSV or JSON lines, by the ending of its path ``name``.

    Names in it are relative to ``folder``. WrongUsage: a row is not valid.
    """
    kind, number = name.lower().rpartition(".")[2], 0

    def count(lines: Iterable[Any]) -> Iterator[Any]:
        """Yield lines or rows, and count them, to name the one with an error."""
        nonlocal number
        for number, one in enumerate(lines, 1):  # noqa: B007 - where an error is
            yield one

    try:
        # Lines are counted as they are read, empty ones and those inside of quotes as well.
        if kind == "parquet":
            rows = count(_parquet_rows(file))
        elif kind == "csv":
            rows = _csv_rows(count(file))
        else:
            rows = (msgspec.json.decode(line, type=dict[str, Any]) for line in count(file) if line.strip())
        yield from (_library(row, folder) for row in rows)
    except (ValueError, msgspec.MsgspecError, csv.Error) as error:
        at = max(1, number)
        place = tr("row {number:,}", number=at) if kind == "parquet" else tr("line {number:,}", number=at)
        problem = tr("{path}, {place}: {error}", path=name, place=place, error=error)
        raise WrongUsage(problem=problem, hint=_HINT) from error


def _csv_rows(file: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a CSV file by column, without empty values; raise ValueError if columns are inconsistent."""
    reader = csv.DictReader((line.decode("utf-8-sig") for line in file), strict=True)
    names = list(reader.fieldnames or ())
    for name in names:
        if name and names.count(name) > 1:
            raise ValueError(tr("there are two columns {name}", name=name))
    for row in reader:
        if None in row:
            raise ValueError(tr("it has more values than there are columns"))
        yield {str(name): value for name, value in row.items() if value}


def _parquet_rows(file: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file by column, without NULL."""
    _, parquet = import_arrow()
    for batch in parquet.ParquetFile(file).iter_batches():
        for row in batch.to_pylist():
            yield {name: value for name, value in row.items() if value is not None}


def _library(row: dict[str, Any], folder: str) -> Library:
    """Convert a row of a table to a library; names in it are relative to ``folder``. ValueError: it is not valid."""
    extra = {name: row[name] for name in sorted(row.keys() - set(COLUMNS))}
    for name in extra:
        if meant := difflib.get_close_matches(name.lower(), COLUMNS, 1, 0.8):
            raise ValueError(
                tr("{name} is not a column; {meant} is", name=printable(name, LONGEST_NAME), meant=meant[0])
            )
    # Values that JSON has not, such as times, become text.
    encoded = msgspec.json.encode(extra, enc_hook=str)
    if len(encoded) > _MOST_EXTRA:
        raise ValueError(tr("its other columns have more than {bytes:,} bytes", bytes=_MOST_EXTRA))
    if "source" not in row:
        raise ValueError(tr("it has no value in the column {name}", name="source"))
    options = row.get("options", [])
    words = split_command(options) if isinstance(options, str) else options
    # Not strict: numbers in CSV are text.
    library = msgspec.convert({**row, "options": words, "extra": msgspec.json.decode(encoded)}, Library, strict=False)
    target = None if library.target is None else _absolute_name(library.target, folder)
    return msgspec.structs.replace(library, source=_absolute_name(library.source, folder), target=target)


def _absolute_name(name: str, folder: str = "") -> str:
    """Return the absolute form of a path or URL, so that any process can use it.

    A relative one is below ``folder`` (a path or URL; empty: the working directory).
    """
    own = _local_path(name)
    if _ANY_URL.match(folder) and not _ANY_URL.match(own):
        own = f"{folder.rstrip('/')}/{own.removeprefix('./')}"
    if _ANY_URL.match(own):
        return storage_path(own, is_shared=True).url
    return str(Path(folder, own).absolute())


def _add_target(library: Library, targets: str | None, ending: str, needs_target: bool) -> Library:
    """Return a library with a target in the folder ``targets`` if the command needs one and the manifest names none.

    ``ending`` is the suffix of its name. WrongUsage: it cannot have a target, or has one that is not needed.
    """
    if needs_target is (library.target is not None):
        return library
    if not needs_target:
        problem = tr("{source} has a target, but this command writes to none", source=library.source)
        raise WrongUsage(problem=problem, hint=tr("remove the column"))
    if targets is None:
        problem = tr("{source} has no target", source=library.source)
        raise WrongUsage(problem=problem, hint=tr("--to FOLDER gives each library one, named after its source"))
    name = f"{_library_name(library)}{ending}"
    if {name, _library_name(library)} & {"", ".", ".."} or (is_url(library.source) and re.search(r"[\\:\0]", name)):
        problem = tr("the target of {source} cannot be named after it", source=printable(library.source))
        raise WrongUsage(problem=problem, hint=tr("give its target in a table"))
    return msgspec.structs.replace(library, target=_absolute_name(name, _local_path(targets)))


def _library_name(library: Library) -> str:
    """Return the name of a library for its target: that of its folder, or of its archive without the suffix."""
    if is_url(library.source):
        remote = PurePosixPath(library.source.rstrip("/"))
        return remote.stem if library.bytes is not None or remote.suffix.lower() in _ARCHIVES else remote.name
    source = Path(library.source)
    return source.name if source.is_dir() else source.stem


def is_name(name: str) -> bool:
    """Whether a name is valid UTF-8 and has no NUL, so that it can be stored and opened."""
    return replace_surrogates(name) == name and "\0" not in name


def source_sizes(libraries: Iterable[Library]) -> list[int]:
    """Return the size of the source of each library in bytes; 0 if it cannot be read."""
    left, sizes = iter(libraries), list[int]()
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        # In chunks: every submitted library is held in memory until it is answered.
        while some := list(islice(left, _TOGETHER)):
            sizes.extend(threads.map(_size, some))
    return sizes


def _size(library: Library) -> int:
    """Return the size of the source of a library in bytes; 0 if it cannot be read."""
    if library.bytes is not None:
        return library.bytes
    if not is_url(library.source):
        return total_size(links.real_path(Path(library.source)))
    # Its own job reports an error.
    with suppress(RegraftError):
        return sum(storage_path(library.source).objects().values())
    return 0


def demand_apart(libraries: Iterable[Library], own: Iterable[Path]) -> None:
    """Raise WrongUsage if a source or target of the libraries is used twice or is inside a target.

    Also if one of ``own``, the files that the fleet itself writes, is inside a source or target.
    """
    #: The real path of each folder, since many libraries are in the same one.
    folders: dict[str, str] = {}
    targets, sources = set[str](), set[str]()

    def note(name: str, seen: set[str], problem: str) -> None:
        """Add the real path of ``name`` to ``seen``; raise WrongUsage with ``problem`` if it is there already."""
        path = disk_name(_real_name(name, folders))
        if path in seen:
            raise WrongUsage(problem=problem.format(name=printable(name, LONGEST_NAME)), hint=tr("list each one once"))
        seen.add(path)

    for one in libraries:
        note(one.source, sources, tr("{name} is used twice"))
        if one.target is not None:
            note(one.target, targets, tr("{name} is the target of two libraries"))
    paths = targets | sources
    # An index file is read with the folder of its base.
    read = paths | {name.removesuffix(f"/{disk_name(INDEX_FILE)}") for name in paths}
    for path in own:
        name = disk_name(_real_name(str(path.absolute()), folders))
        if name in read or not read.isdisjoint(map(str, PurePosixPath(name).parents)):
            problem = tr("the file {path} would be inside a library", path=path)
            raise WrongUsage(problem=problem, hint=tr("use another file"))
    for name in targets:
        if not paths.isdisjoint(map(str, PurePosixPath(name).parents)):
            problem = tr("the target {path} would be inside another library", path=name)
            raise WrongUsage(problem=problem, hint=tr("use another folder"))


def demand_clients(libraries: Iterable[Library]) -> None:
    """Raise WrongUsage if the libraries are in a kind of object storage whose client is not installed."""
    names = (name for one in libraries for name in (one.source, one.target))
    for kind in sorted({name.partition("://")[0] for name in names if name is not None and is_url(name)}):
        demand_client(kind)


def _real_name(name: str, folders: dict[str, str]) -> str:
    """Return the real path of a source or target with ``/`` as separator; for a URL, a name that no path can have.

    ``folders`` caches the real paths of folders.
    """
    if is_url(name):
        return f"//{'/'.join(storage_path(name).parts)}"
    folder, last = os.path.split(name)
    if last in ("", ".", "..") or Path(name).is_symlink():
        return str(links.real_path(Path(name))).replace(os.sep, "/")
    if folder not in folders:
        folders[folder] = str(links.real_path(Path(folder))).replace(os.sep, "/").rstrip("/")
    return f"{folders[folder]}/{last}"
