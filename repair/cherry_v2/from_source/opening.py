"""Opening the other copy: v2 data are read where they are, anything else is migrated into a temporary library first."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import migrators
from regraft import links
from regraft.errors import SourceNotMigratable, WrongUsage
from regraft.formats.cherry_preview.libsql import Layout
from regraft.kinds import BASE_SOURCES, NAMES, PREVIEW_SOURCES, V1_SOURCES
from regraft.language import tr
from regraft.ledger import durable
from regraft.locate import Located, located
from regraft.report.progress import Silent
from regraft.text import shown
from repair.changes.store import Store
from repair.cherry_v2.source import BaseSource, opened

_PARQUET = b"PAR1"
_LIBRARY = "library"


def open_source(path: Path, store: Store, keep: ExitStack, now_ms: int) -> BaseSource:
    """Open a source of texts and vectors; it is only read.

    Args:
        path: what the user named.
        store: the store that is repaired.
        keep: what is opened, extracted or migrated stays until this closes.
        now_ms: the time of the run.

    Raises:
        WrongUsage: the source is the store itself.
        SourceNotMigratable: it has no bases with a known model.
        RegraftError: it cannot be recognized or read.
    """
    if is_parquet(path):
        library = keep.enter_context(durable.temporary_folder()) / _LIBRARY
        migrators.import_parquet((path,), library, migrators.Options(now_ms=now_ms), Silent())
        return keep.enter_context(opened(library, None, (), "repair"))
    with located(path, None) as found:
        if not found.is_archive and _is_same(found.tree.path, store.root):
            raise WrongUsage(
                problem=tr("--from {path}: this is the store that is to be repaired", path=shown(path)),
                hint=tr("name another copy of its data"),
            )
        has_v2 = any(one.look.layout is Layout.CURRENT for one in found.stores.current)
        if found.kind in BASE_SOURCES and (has_v2 or not found.stores.has_preview):
            return keep.enter_context(opened(path, None, (), "repair"))
        return keep.enter_context(opened(_migrated(found, keep, now_ms), None, (), "repair"))


def _migrated(found: Located, keep: ExitStack, now_ms: int) -> Path:
    """Migrate v1 data, or those of a preview build, into a temporary library: every text and vector as it is."""
    if found.kind not in (*V1_SOURCES, *PREVIEW_SOURCES, *BASE_SOURCES):
        advice = tr("give a v1 backup or profile, a library, a pack, a v2 profile or backup, or a Parquet file")
        raise SourceNotMigratable(path=found.path, what=NAMES[found.kind], advice=advice)
    library = keep.enter_context(durable.temporary_folder()) / _LIBRARY
    migrators.migrate(found, library, migrators.Options(now_ms=now_ms), Silent())
    return library


def _is_same(one: Path, other: Path) -> bool:
    return links.real_path(one) == links.real_path(other)


def is_parquet(path: Path) -> bool:
    """Whether a file begins as a Parquet file does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_PARQUET)) == _PARQUET
