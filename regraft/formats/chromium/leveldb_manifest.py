"""LevelDB's MANIFEST: which tables and logs count (``docs/formats/chromium.md``, "Which files count")."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import BinaryIO

from regraft.formats.chromium.damage import Bytes, Malformed
from regraft.formats.chromium.leveldb_log import LogReader
from regraft.formats.chromium.leveldb_table import user_key

_COMPARATOR, _LOG, _NEXT_FILE, _LAST_SEQUENCE, _COMPACT, _REMOVED, _ADDED = range(1, 8)
_PREVIOUS_LOG = 9


@dataclass(frozen=True)
class TableFile:
    """A table that counts: its number, and the keys between which all of its keys lie, both included."""

    number: int
    smallest: bytes | None = None
    largest: bytes | None = None


@dataclass
class Version:
    """The state of a database: what the edits of a MANIFEST come to."""

    comparator: str | None = None
    log: int = 0
    previous_log: int = 0
    #: By level and number: a table that moves to another level is removed from one and added to the other.
    tables: dict[tuple[int, int], TableFile] = field(default_factory=dict)


def read_manifest(file: BinaryIO) -> Version:
    """Replay a MANIFEST.

    Raises:
        Malformed: it is damaged anywhere but at a cut-off end, or holds no state at all.
    """
    version = Version()
    log = LogReader(file)
    edits = 0
    for edit in log:
        _apply(version, Bytes(edit))
        edits += 1
    if log.passed_over:
        raise Malformed("damaged")
    if not edits:
        raise Malformed("empty")
    return version


def _apply(version: Version, edit: Bytes) -> None:
    removed: list[tuple[int, int]] = []
    added: list[tuple[int, TableFile]] = []
    while edit.left:
        tag = edit.number()
        if tag == _COMPARATOR:
            version.comparator = edit.sized().decode("latin-1")
        elif tag == _LOG:
            version.log = edit.number()
        elif tag == _PREVIOUS_LOG:
            version.previous_log = edit.number()
        elif tag == _REMOVED:
            removed.append((edit.number(), edit.number()))
        elif tag == _ADDED:
            added.append(_added(edit))
        else:
            _pass_over(tag, edit)
    for place in removed:
        version.tables.pop(place, None)
    for level, table in added:
        version.tables[level, table.number] = table


def _added(edit: Bytes) -> tuple[int, TableFile]:
    level, number, _size = edit.number(), edit.number(), edit.number()
    return level, TableFile(number, user_key(edit.sized()), user_key(edit.sized()))


def _pass_over(tag: int, edit: Bytes) -> None:
    if tag in (_NEXT_FILE, _LAST_SEQUENCE):
        edit.number()
    elif tag == _COMPACT:
        edit.number()
        edit.sized()
    else:
        raise Malformed(f"holds an edit of unknown type {tag}")
