"""Reads redb, the key-value store of Rust programs: file formats 2 and 3 (``docs/formats/redb.md``)."""

from __future__ import annotations

from regraft.formats.redb.errors import (
    NotRedb,
    PageDamage,
    RedbChanged,
    RedbDamaged,
    RedbError,
    RedbInUse,
    RedbSlotsDamaged,
    RedbTableUnknown,
    RedbTooNew,
    RedbTooOld,
    RedbTooShort,
)
from regraft.formats.redb.pages import Table
from regraft.formats.redb.reader import RedbFile, read_redb

__all__ = [
    "NotRedb",
    "PageDamage",
    "RedbChanged",
    "RedbDamaged",
    "RedbError",
    "RedbFile",
    "RedbInUse",
    "RedbSlotsDamaged",
    "RedbTableUnknown",
    "RedbTooNew",
    "RedbTooOld",
    "RedbTooShort",
    "Table",
    "read_redb",
]
