"""Damaged redb files and what a reader gets of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from redb_writer import TWO_PHASE, Redb, RedbTable, definition

from regraft.formats.redb import PageDamage, RedbDamaged, read_redb

TEXT = (None, None)
ROWS = [(f"k{at:02}".encode(), b"v" * 30) for at in range(12)]


def listed(file: Redb, tree: bytes | None, length: int = 1, key_type: str = "&str", **options: object) -> bytes | None:
    """Write a list with one table, ``t``, and return its root."""
    table = RedbTable(key_type, "&[u8]", {}, **options)
    return file.tree([(b"t", definition(table, tree, length))], TEXT)


def finished(path: Path, file: Redb, tables: bytes | None) -> Path:
    return file.finish(path / "x.redb", [file.slot(2, tables), file.slot(1, None)], TWO_PHASE)


def made(path: Path, file: Redb, tree: bytes | None, **options: object) -> Path:
    return finished(path, file, listed(file, tree, **options))


def read(path: Path) -> tuple[list[tuple[bytes, bytes]], list[PageDamage]]:
    """Return the rows of ``t``, and the damage; without anybody to tell, the first damage is the end."""
    damages: list[PageDamage] = []
    with read_redb(path, on_damage=damages.append) as file:
        rows = list(file.raw_rows("t")) if "t" in file.tables else []
    if damages:
        with pytest.raises(RedbDamaged) as caught, read_redb(path) as file:
            file.verify()
        assert caught.value.facts["reason"] == damages[0].reason
        assert caught.value.facts["offset"] == damages[0].offset
    return rows, damages


def reasons(damages: list[PageDamage]) -> list[str]:
    return [one.reason for one in damages]
