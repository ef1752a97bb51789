"""What the folder of a base tells of it where no row does: its identity, its materials, its vectors."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.cherry_v2.raw_files import files_below
from regraft import sqlite
from regraft.language import tr
from regraft.text import decode_utf8

#: Bodies without a vector, by their material.
_BARE = """SELECT CAST(u.material_id AS BLOB), count(*)
  FROM search_unit u
  CROSS JOIN search_text t ON t.target_type = 'search_unit' AND t.target_id = u.unit_id AND t.kind = 'body'
 WHERE NOT EXISTS (SELECT 1 FROM embedding e WHERE e.embedding_text_hash = t.embedding_text_hash)
 GROUP BY 1"""
_LENGTHS = "SELECT DISTINCT length(vector_blob) FROM embedding LIMIT 2"


class Unfit(Exception):
    """A folder that gets no rows; the text says why, for a person."""


class FoundMaterial(msgspec.Struct, frozen=True, kw_only=True):
    """A material of an index: the id of the item that it was made of, its path below ``raw/``, its times in ms."""

    item: str
    path: str
    created_at: int
    updated_at: int


class OrphanFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of a base that no row names, as its index and ``raw/`` have it; times in ms."""

    base: str
    created_at: int
    updated_at: int
    materials: list[FoundMaterial]
    #: Dimensions of its vectors; None where it has none, or where they differ.
    dimensions: int | None
    #: Whether its vectors are not all of one length.
    is_mixed: bool = False
    #: By the item: how many of its bodies have no vector.
    bare: dict[str, int]
    #: Files below ``raw/``, with the times of their last change (ms).
    files: dict[str, int] = msgspec.field(default_factory=dict)

    def is_whole(self, item: str) -> bool:
        """Whether every body of an item has its vector, or the base has no vectors at all."""
        return (self.dimensions is None and not self.is_mixed) or not self.bare.get(item)


def read_folder(base: str, index: Path, raw: Path) -> OrphanFolder:
    """Read what a folder tells of its base.

    Args:
        base: the name of the folder.
        index: its index, which an audit found whole.
        raw: its folder of raw files, if it has one.

    Raises:
        Unfit: the index is another base's, or tells too little.
        apsw.Error, OSError, UnicodeDecodeError: it cannot be read.
    """
    with sqlite.reading(index) as db:
        row: Any = db.execute("SELECT base_id, created_at, updated_at FROM meta").fetchone()
        if row is None:
            raise Unfit(tr("its index has no identity row"))
        if row[0] != base:
            raise Unfit(tr("its index is that of base {other}", other=row[0]))
        dimensions, is_mixed = _dimensions([one for (one,) in db.execute(_LENGTHS)])
        return OrphanFolder(
            base=base,
            created_at=row[1],
            updated_at=row[2],
            materials=list(_materials(db)),
            dimensions=dimensions,
            is_mixed=is_mixed,
            bare={decode_utf8(key): int(str(count)) for key, count in db.execute(_BARE) if isinstance(key, bytes)},
            files=dict(_files(raw)),
        )


def _dimensions(lengths: list[Any]) -> tuple[int | None, bool]:
    """Return the dimensions that vectors of these lengths have, and whether they do not have the same."""
    if len(lengths) > 1 or any(not isinstance(one, int) or one <= 0 or one % 4 for one in lengths):
        return None, True
    return next((length // 4 for length in lengths), None), False


def demand_one_length(folder: OrphanFolder) -> None:
    """Refuse vectors of several lengths.

    Raises:
        Unfit
    """
    if folder.is_mixed:
        raise Unfit(tr("its vectors are not all of one length"))


def _materials(db: apsw.Connection) -> Iterator[FoundMaterial]:
    for item, path, created_at, updated_at in sqlite.lenient_rows(
        db, ("material_id", "relative_path", "created_at", "updated_at"), "material ORDER BY rowid"
    ):
        if not isinstance(item, str) or not item or not isinstance(path, str):
            raise Unfit(tr("a material of its index has no id, or no path"))
        yield FoundMaterial(item=item, path=path, created_at=int(created_at), updated_at=int(updated_at))


def _files(raw: Path) -> Iterator[tuple[str, int]]:
    """Yield the files of a base by their paths; links, and what systems hide in folders of their own, are none."""
    for name, changed_at in files_below(raw):
        with suppress(OSError):
            is_hidden = any(part.startswith(".") for part in name.split("/"))
            if not is_hidden and stat.S_ISREG((raw / name).lstat().st_mode):
                yield name, int(changed_at * 1000)
