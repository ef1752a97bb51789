"""LevelDB's MANIFEST: which tables and logs count (``docs/formats/chromium.md``, "Which files count")."""

from __future__ import annotations

from typing import BinaryIO

import msgspec

from regraft.formats.chromium.damage import Bytes, Malformed
from regraft.formats.chromium.leveldb_log import LogReader
from regraft.formats.chromium.leveldb_table import user_key
from regraft.language import tr
from regraft.records import replace

_COMPARATOR, _LOG, _NEXT_FILE, _LAST_SEQUENCE, _COMPACT, _REMOVED, _ADDED = range(1, 8)
_PREVIOUS_LOG = 9


class TableFile(msgspec.Struct, frozen=True):
    """A table that counts: its number, the keys between which all of its keys lie, both included, and how new it is."""

    number: int
    smallest: bytes | None = None
    largest: bytes | None = None
    #: No record in it has a higher sequence number; None where that is not known.
    last_sequence: int | None = None


class Version(msgspec.Struct):
    """The state of a database: what the edits of a MANIFEST come to."""

    comparator: str | None = None
    log: int = 0
    previous_log: int = 0
    #: By level and number: a table that moves to another level is removed from one and added to the other.
    tables: dict[tuple[int, int], TableFile] = msgspec.field(default_factory=dict)
    #: Those that were added since an edit last stated the last sequence number.
    undated: set[tuple[int, int]] = msgspec.field(default_factory=set)

    def exchange(self, removed: list[tuple[int, int]], added: list[tuple[tuple[int, int], TableFile]]) -> None:
        """Drop tables, then add others."""
        for place in removed:
            self.tables.pop(place, None)
        self.tables.update(added)
        self.undated.update(place for place, _ in added)

    def date(self, last_sequence: int) -> None:
        """Note how new the tables so far can be: an edit states the last sequence number of all that was written."""
        for place in self.undated & self.tables.keys():
            self.tables[place] = replace(self.tables[place], last_sequence=last_sequence)
        self.undated.clear()


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
    added: list[tuple[tuple[int, int], TableFile]] = []
    last_sequence: int | None = None
    while edit.left:
        tag = edit.number()
        if tag == _COMPARATOR:
            version.comparator = edit.sized().decode("latin-1")
        elif tag == _LOG:
            version.log = edit.number()
        elif tag == _PREVIOUS_LOG:
            version.previous_log = edit.number()
        elif tag == _LAST_SEQUENCE:
            last_sequence = edit.number()
        elif tag == _REMOVED:
            removed.append((edit.number(), edit.number()))
        elif tag == _ADDED:
            added.append(_added(edit))
        else:
            _pass_over(tag, edit)
    version.exchange(removed, added)
    if last_sequence is not None:
        version.date(last_sequence)


def _added(edit: Bytes) -> tuple[tuple[int, int], TableFile]:
    level, number, _size = edit.number(), edit.number(), edit.number()
    return (level, number), TableFile(number, user_key(edit.sized()), user_key(edit.sized()))


def _pass_over(tag: int, edit: Bytes) -> None:
    if tag == _NEXT_FILE:
        edit.number()
    elif tag == _COMPACT:
        edit.number()
        edit.sized()
    else:
        raise Malformed(tr("holds an edit of unknown type {tag}", tag=tag))
