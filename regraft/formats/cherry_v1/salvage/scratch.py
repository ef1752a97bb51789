"""What was read of a damaged vector file, in a temporary database where all of it is compared at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

import apsw

from regraft.formats.cherry_v1.salvage.rows import ID_INDEX, Claim, claim_of, hash_of, is_plain, is_row_id
from regraft.formats.sqlite_pages import Flaw, FoundRow, Origin, Reading, Text
from regraft.report import salvage_notices

#: Origins as numbers, the strongest least.
STRENGTH = {origin: place for place, origin in enumerate(Origin)}
#: What a key is of: the ids of rows, or their texts.
IDS, TEXTS = 1, 2
_BATCH = 500
_SCHEMA = """
    CREATE TABLE found (
        seq INTEGER PRIMARY KEY, strength INTEGER, page INTEGER, number INTEGER, id BLOB, loader BLOB, source BLOB,
        text BLOB, vector BLOB, metadata BLOB, digest BLOB, text_hash BLOB, vector_bytes INTEGER, norm REAL,
        repeats INTEGER, needs_key INTEGER, is_named INTEGER, reason TEXT, confirmed INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE key (
        kind INTEGER, strength INTEGER, page INTEGER, run INTEGER, number INTEGER, key BLOB, is_sound INTEGER);
    CREATE TABLE covered (low INTEGER, high INTEGER);
"""
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
#: Why a row does not come along whose chain is not its own.
_OF_CHAIN = salvage_notices.ROW_BROKEN


class Keys:
    """How far the indexes of a file tell which rows there are not, by kind.

    Attributes:
        whole: kinds whose index is there from its first key to its last.
        last_run: the run at the end of the ids' index, -1 where its runs tell nothing.
    """

    def __init__(self) -> None:
        self.whole: set[int] = set()
        self.last_run = -1


def fill(db: apsw.Connection, reading: Reading, known: Collection[bytes], *, keep: bool) -> Keys:
    """Put all that a reading gives into the tables of a new database.

    Args:
        db: the database.
        reading: of the damaged file.
        known: loader ids that the state of v1 names.
        keep: whether what rows hold is wanted, and not only whether they prove themselves.

    Raises:
        OSError: the file cannot be read.
        apsw.Error: the database cannot be written.
    """
    db.execute(_SCHEMA)
    keys = _Ingest(reading, known, keep=keep)
    rows = reading.rows(flawed=True)
    while batch := list(islice(rows, _BATCH)):
        of_table = [row for row in batch if row.table == "vectors"]
        db.executemany(
            "INSERT INTO found (strength, page, number, id, loader, source, text, vector, metadata, digest, text_hash,"
            " vector_bytes, norm, repeats, needs_key, is_named, reason)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            map(keys.row, of_table),
        )
        db.executemany(
            "INSERT INTO key VALUES (?, ?, ?, ?, ?, ?, ?)",
            (keys.key(row) for row in batch if row.table != "vectors" and row.flaw is not Flaw.BROKEN),
        )
    db.executemany("INSERT INTO covered VALUES (?, ?)", _intervals(reading))
    db.execute("CREATE INDEX found_number ON found (number)")
    db.execute("CREATE INDEX key_number ON key (kind, number)")
    db.execute("CREATE INDEX key_key ON key (kind, key)")
    return keys.told()


def _intervals(reading: Reading) -> Iterator[tuple[int, int]]:
    for low, high in reading.coverage["vectors"].intervals:
        yield max(low + 1, _LEAST), min(high, _MOST)


class _Ingest:
    """Makes rows of the tables; used once."""

    def __init__(self, reading: Reading, known: Collection[bytes], *, keep: bool) -> None:
        self._reading, self._known, self._keep = reading, known, keep
        #: By index: its last key, and how often its keys were out of order.
        self._last: dict[str, bytes] = {}
        self._disorder: dict[str, int] = {}

    def row(self, row: FoundRow) -> tuple[Any, ...]:
        claim = claim_of(row, self._known)
        reason = claim.reason
        if row.flaw is Flaw.BROKEN or (row.flaw is not None and not claim.is_named):
            reason = _OF_CHAIN
        text_hash = None if claim.text is None else hash_of(claim.text)
        length = None if claim.vector is None else len(claim.vector)
        held = self._held(claim)
        digest = hash_of(b"%d " % row.rowid + claim.digest)
        about = (
            digest,
            text_hash,
            length,
            claim.measures.norm,
            claim.measures.repeats,
            claim.needs_key,
            claim.is_named,
            reason,
        )
        return STRENGTH[row.origin], row.page, row.rowid, *held, *about

    def _held(self, claim: Claim) -> tuple[bytes | None, ...]:
        if self._keep:
            return claim.row_id, claim.loader, claim.source, claim.text, claim.vector, claim.metadata
        return claim.row_id, claim.loader, None, None, None, None

    def key(self, row: FoundRow) -> tuple[Any, ...]:
        key = row.values[0]
        raw = bytes(key) if isinstance(key, Text) else b""
        kind = IDS if is_row_id(key) else TEXTS
        run = -1
        if row.origin is Origin.TREE:
            if raw <= self._last.get(row.table, b""):
                self._disorder[row.table] = self._disorder.get(row.table, 0) + 1
            self._last[row.table] = raw
            if row.table == ID_INDEX and kind == IDS and self._reading.encoding == "utf-8":
                run = row.run + self._disorder.get(row.table, 0)
        own = raw if kind == IDS else hash_of(raw)
        return kind, STRENGTH[row.origin], row.page, run, row.rowid, own, row.flaw is None and is_plain(raw)

    def told(self) -> Keys:
        keys = Keys()
        for name, coverage in self._reading.coverage.items():
            kind = {ID_INDEX: IDS}.get(name, TEXTS)
            is_ordered = not self._disorder.get(name) or self._reading.encoding != "utf-8"
            if name != "vectors" and coverage.is_whole and is_ordered:
                keys.whole.add(kind)
        if ID_INDEX in self._reading.roots and self._reading.encoding == "utf-8":
            keys.last_run = self._reading.coverage[ID_INDEX].last_run + self._disorder.get(ID_INDEX, 0)
        return keys
