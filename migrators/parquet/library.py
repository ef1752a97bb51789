"""Writes the library that Parquet files of units hold: all of it, or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from migrators.parquet.catalog_rows import items_of, record_of
from migrators.parquet.rebuild import Rebuilt, verify
from regraft import durable, sqlite
from regraft.errors import (
    Interrupted,
    SourceNotMigratable,
    SourceUnreadable,
    StoppedMidway,
    TargetNotOurs,
    TargetNotWritable,
    WrongUsage,
)
from regraft.formats.catalog import write_catalog
from regraft.formats.parquet import columns
from regraft.formats.parquet.columns import About, AboutBase
from regraft.locate import CATALOG_FILE, INDEX_FILE, KNOWLEDGE_FOLDER
from regraft.progress import Progress
from regraft.text import shown

#: A row of a base that the file does not describe.
NO_BASE = "no_base"


@dataclass
class _Base:
    """One base on its way into the library."""

    about: AboutBase
    file: Path
    source: About
    index: Rebuilt | None = None
    #: Items of the catalog that have no place in a library, by reason.
    skipped_items: Counter[str] = field(default_factory=Counter)

    def document(self) -> dict[str, Any]:
        """Return the base's part of the command's document."""
        index = self.index
        rows = {"read": 0, "carried": 0, "skipped": {}}
        if index is not None:
            rows = {"read": index.read, "carried": index.carried, "skipped": dict(index.skipped)}
        return {
            "id": self.about.id,
            "name": self.about.name,
            "rows": rows,
            "vectors": index.vectors if index else 0,
            "differing_vectors": index.differing if index else 0,
            "materials": index.materials if index else 0,
            "remade": index.remade if index else 0,
            "skipped_items": dict(self.skipped_items),
        }


def import_files(files: tuple[Path, ...], target: Path, now_ms: int, progress: Progress) -> dict[str, Any]:
    """Write a library of what ``files`` hold and return what became of it: ``bases`` and the ``skipped`` rows of none.

    Args:
        files: Parquet files that ``regraft export`` wrote, of different bases.
        target: the library's folder: new or empty.
        now_ms: the time that rows of an index get, in ms.
        progress: told of rows.

    Raises:
        SourceUnreadable, SourceUnrecognised, SourceNotMigratable: a file is damaged, foreign, or v1's table.
        TargetNotOurs, TargetNotWritable: the folder is not empty, or cannot be made.
        WrongUsage: two files hold the same base, or pyarrow is missing.
        StoppedMidway: it cannot be written; nothing is left.
    """
    bases = _bases(files)
    _check_target(target)
    skipped = 0
    with _staged(target) as staging:
        with ExitStack() as keep:
            for base in bases.values():
                if base.about.index:
                    base.index = _begun(staging, base.about.id, now_ms, keep)
            for file in files:
                progress.at(file.name)
                for row in columns.read_rows(file):
                    found = bases.get(row.base)
                    if found is None or found.index is None or found.file != file:
                        skipped += 1
                    else:
                        found.index.add(row)
                    progress.step(1, 0)
            for base in bases.values():
                if base.index is not None:
                    base.index.finish(base.about.bare_materials)
        for base in bases.values():
            if base.index is not None:
                verify(_index_path(staging, base.about.id), base.about.id, base.index)
        _write_catalog(staging, bases, now_ms)
    return {
        "bases": [base.document() for base in bases.values()],
        "skipped": {NO_BASE: skipped} if skipped else {},
    }


def _bases(files: tuple[Path, ...]) -> dict[str, _Base]:
    found: dict[str, _Base] = {}
    for file in files:
        if not file.is_file():
            raise SourceUnreadable(path=file, reason="there is no such file")
        about = columns.read_about(file)
        if about.layout != "v2":
            advice = "regraft migrate carries the source that it was exported from"
            raise SourceNotMigratable(path=file, what="the old table of a v1 base", advice=advice)
        for base in about.bases:
            if base.id in found:
                problem = f"base {base.id} is in {found[base.id].file} and in {file}"
                raise WrongUsage(problem=problem, hint="give each base once")
            if not base.id or base.id != Path(base.id).name or base.id in (".", "..") or "\0" in base.id:
                raise SourceUnreadable(path=file, reason=f"its base {base.id!r} cannot be the name of a folder")
            found[base.id] = _Base(base, file, about)
    return found


def _check_target(target: Path) -> None:
    try:
        if target.is_dir() and not any(target.iterdir()):
            return
        if target.exists() or target.is_symlink():
            raise TargetNotOurs(path=target, found="a library is imported into a folder of its own")
    except PermissionError as error:
        raise TargetNotWritable(path=target, reason=error.strerror) from error


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """Give a folder beside ``target`` to write to; it becomes ``target`` in one step, or goes."""
    target = target.absolute()
    staging = target.with_name(f".{target.name}.regraft-part")
    try:
        durable.remove_tree(staging)
        staging.mkdir(parents=True)
    except OSError as error:
        raise TargetNotWritable(path=target, reason=error.strerror or error) from error
    try:
        yield staging
        durable.sync_tree(staging)
        if target.exists():
            target.rmdir()
        durable.replace(staging, target)
    except KeyboardInterrupt as error:
        raise Interrupted(finished=0) from error
    except apsw.Error as error:
        raise StoppedMidway(path=target, doing="writing the library", reason=error, finished=0) from error
    finally:
        durable.remove_tree(staging)


def _index_path(library: Path, base_id: str) -> Path:
    return library / KNOWLEDGE_FOLDER / base_id / INDEX_FILE


def _begun(staging: Path, base_id: str, now_ms: int, keep: ExitStack) -> Rebuilt:
    path = _index_path(staging, base_id)
    path.parent.mkdir(parents=True)
    return Rebuilt(base_id, now_ms, keep.enter_context(sqlite.writing(path, create=True)))


# --- the catalog ---------------------------------------------------------------------------------------------------


def _write_catalog(staging: Path, bases: dict[str, _Base], now_ms: int) -> None:
    records = []
    for base in bases.values():
        index = _index_path(staging, base.about.id) if base.about.index else None
        record = record_of(base.file, base.source, base.about, now_ms)
        records.append((record, items_of(base.about, index, base.skipped_items, now_ms)))
    try:
        write_catalog(staging / CATALOG_FILE, records)
    except (apsw.ConstraintError, TypeError, OverflowError) as error:
        files = ", ".join(shown(name) for name in dict.fromkeys(base.file for base in bases.values()))
        raise SourceUnreadable(path=files, reason=f"its bases and items cannot stand in a catalog: {error}") from error
