"""Which libraries a fleet has: a folder of them, a pattern, or a table (``docs/fleet.md``, "The manifest")."""

from __future__ import annotations

import csv
import glob
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from regraft import links
from regraft.errors import WrongUsage
from regraft.formats.parquet.columns import arrow
from regraft.language import tr
from regraft.text import LONGEST_NAME, shown, whole

#: The columns of a table; all but the first may be missing.
COLUMNS = ("source", "target", "options")
#: How a file ends that is a table.
_TABLES = (".csv", ".jsonl", ".parquet")


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """One library: where it is, where its command writes (None: there, or nowhere), and its further options."""

    source: str
    target: str | None = None
    options: tuple[str, ...] = ()


def libraries(manifest: str, targets: Path | None, ending: str, *, needs_target: bool) -> list[Library]:
    """Return the libraries of a manifest, in its order.

    Args:
        manifest: a folder whose entries are sources, a pattern with ``*``, or a table: CSV, JSON lines or Parquet.
        targets: the folder of all targets that the manifest does not name.
        ending: how the names of those targets end.
        needs_target: whether the command writes to a target.

    Raises:
        WrongUsage: it cannot be read, or names no library, or one in a way that cannot be meant; what two of them share
            :func:`demand_apart` refuses.
        OSError: it cannot be read.
    """
    found = [_absolute(_placed(library, targets, ending, needs_target)) for library in _read(manifest)]
    if not found:
        raise WrongUsage(problem=tr("{manifest} names no library", manifest=manifest), hint=_HINT)
    return found


_HINT = tr("give a folder of sources, a pattern like 'backups/*.zip', or a table: .csv, .jsonl or .parquet")


def _read(manifest: str) -> Iterator[Library]:
    path = Path(manifest)
    if path.is_dir():
        for entry in sorted(path.iterdir()):
            if not entry.name.startswith("."):
                yield Library(source=str(entry))
    elif path.is_file() and path.suffix.lower() in _TABLES:
        yield from _of_table(path)
    elif glob.has_magic(manifest):
        for found in sorted(glob.glob(manifest, recursive=True)):  # noqa: PTH207 - a pattern may be absolute
            yield Library(source=found)
    else:
        raise WrongUsage(problem=tr("{manifest} is no manifest", manifest=manifest), hint=_HINT)


def _of_table(path: Path) -> Iterator[Library]:
    rows = {".csv": _csv_rows, ".jsonl": _json_rows, ".parquet": _parquet_rows}[path.suffix.lower()]
    number = 1
    try:
        for row in rows(path):
            yield _library(row, path.parent)
            number += 1
    except (ValueError, msgspec.MsgspecError, csv.Error) as error:
        problem = tr("{path}, library {number:,}: {error}", path=path, number=number, error=error)
        raise WrongUsage(problem=problem, hint=_HINT) from error


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    with links.reading(path) as file:
        lines = (line.decode("utf-8-sig") for line in file)
        for row in csv.DictReader(lines, strict=True):
            yield {str(name): value for name, value in row.items() if value}


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    with links.reading(path) as file:
        for line in file:
            if line.strip():
                yield msgspec.json.decode(line, type=dict[str, Any])


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    _, parquet = arrow()
    for batch in parquet.ParquetFile(path).iter_batches():
        for row in batch.to_pylist():
            yield {name: value for name, value in row.items() if value is not None}


def _library(row: dict[str, Any], folder: Path) -> Library:
    """Return what a row says; relative paths begin at the table's folder.

    Raises:
        ValueError: it says something else.
    """
    unknown = sorted(row.keys() - set(COLUMNS))
    if unknown:
        raise ValueError(tr("{name} is none of its columns ({columns})", name=unknown[0], columns=", ".join(COLUMNS)))
    options = row.get("options", [])
    words = shlex.split(options) if isinstance(options, str) else options
    library = msgspec.convert({**row, "options": words}, Library)
    target = None if library.target is None else str(folder / library.target)
    return Library(source=str(folder / library.source), target=target, options=library.options)


def _placed(library: Library, targets: Path | None, ending: str, needs_target: bool) -> Library:
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
    # An archive's library has its name without the ending.
    source = Path(library.source)
    name = source.name if source.is_dir() else source.stem
    return msgspec.structs.replace(library, target=str(targets / f"{name}{ending}"))


def _absolute(library: Library) -> Library:
    """Return a library that means the same wherever its command runs, and whoever resumes it.

    Raises:
        WrongUsage: its name cannot be written down.
    """
    target = None if library.target is None else str(Path(library.target).absolute())
    placed = msgspec.structs.replace(library, source=str(Path(library.source).absolute()), target=target)
    if whole(f"{placed.source}{placed.target}") != f"{placed.source}{placed.target}":
        problem = tr("{name} is no name in UTF-8", name=shown(library.source, LONGEST_NAME))
        raise WrongUsage(problem=problem, hint=tr("run the command over it alone"))
    return placed


def demand_apart(found: Iterable[Library], own: Iterable[Path]) -> None:
    """Refuse a source or a target that is named twice, a file of ``own`` in a library, and a target in another library.

    Raises:
        WrongUsage
    """
    every = list(found)
    targets = _different((one.target for one in every), tr("{name} is the target of two libraries"))
    places = targets | _different((one.source for one in every), tr("{name} is named twice"))
    for path in map(links.real_path, own):
        if path in places or not places.isdisjoint(path.parents):
            problem = tr("the file {path} would lie in a library", path=path)
            raise WrongUsage(problem=problem, hint=tr("name another file"))
    for path in targets:
        if not places.isdisjoint(path.parents):
            problem = tr("the target {path} would lie in another library", path=path)
            raise WrongUsage(problem=problem, hint=tr("name another folder"))


def _different(names: Iterable[str | None], problem: str) -> set[Path]:
    """Return where names lead, those that there are; refuse two that lead to one place."""
    seen: set[Path] = set()
    for name in names:
        if name is None:
            continue
        path = links.real_path(Path(name))
        if path in seen:
            raise WrongUsage(problem=problem.format(name=shown(name, LONGEST_NAME)), hint=tr("name each once"))
        seen.add(path)
    return seen
