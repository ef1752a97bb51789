"""Salvage of damaged v1 vector files: recover every row that still exists and can be verified (``docs/salvage.md``).

The file is read page by page. All rows and index keys that are found go to a temporary database, are compared with each
other, and the verified rows are written to a table that can be read like a vector file. :func:`find_hidden_damage`
finds damage in files that SQLite reads without an error.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum, auto
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import scratch, sqlite
from regraft.disk.trees import require_free_space
from regraft.formats import json_text
from regraft.formats.cherry_v1.layout import VECTOR_TABLE, parse_chunk_number
from regraft.formats.sqlite_pages import (
    FoundRow,
    Origin,
    OverflowFlaw,
    PageFile,
    Reading,
    Refusal,
    RowShape,
    StorageClass,
    TextBytes,
    Value,
)
from regraft.formats.vector_checks import NO_MEASURES, VectorMeasures, compute_typical_range, measure_vector
from regraft.formats.vector_survey import SalvageTally, StoreProblem
from regraft.formats.vector_table import make_text_decoder
from regraft.identity import replace
from regraft.language import format_count, tr
from regraft.report import notices
from regraft.text import decode_utf8, is_blank

# What a row looks like, and what it proves on its own (``docs/salvage.md``, "What proves a row").


#: Names of the indexes that SQLite creates for the table's keys.
ID_INDEX, TEXT_INDEX = "sqlite_autoindex_vectors_1", "sqlite_autoindex_vectors_2"
_ROW_ID = re.compile(rb"(?s)(.+)_(0|[1-9][0-9]{0,14})")
#: The form of most loader ids: a kind and a hash.
LOADER_ID = re.compile(rb"[A-Z][A-Za-z]*Loader_[0-9a-f]{32}")
_IMAGE = b"ImageLoader_"
_HASH_BYTES = 16
#: A text of at least twice this length counts as overwritten if one such window repeats at most _MAX_PERIOD bytes.
_WINDOW, _MAX_PERIOD = 128, 16


def is_row_id(value: Value) -> bool:
    """Whether a value has the form of a row id, ``<loader id>_<n>``, with a loader id that contains a hash."""
    found = _ROW_ID.fullmatch(value) if isinstance(value, TextBytes) else None
    return found is not None and LOADER_ID.fullmatch(found[1]) is not None


#: The table and its two indexes as v1 creates them, with the root pages where v1's SQLite puts them.
_OPTIONAL_TEXT = StorageClass.TEXT | StorageClass.NULL
SHAPES = (
    RowShape(
        name="vectors",
        columns=(
            StorageClass.TEXT,
            StorageClass.TEXT,
            StorageClass.TEXT,
            StorageClass.TEXT,
            StorageClass.BLOB | StorageClass.NULL,
            _OPTIONAL_TEXT,
        ),
        accepts=lambda values: (
            isinstance(values[0], TextBytes)
            and isinstance(values[2], TextBytes)
            and parse_chunk_number(values[0], values[2]) >= 0
        ),
        root=2,
    ),
    RowShape(name=ID_INDEX, columns=(StorageClass.TEXT,), accepts=lambda key: is_row_id(key[0]), is_index=True, root=3),
    RowShape(
        name=TEXT_INDEX, columns=(StorageClass.TEXT,), accepts=lambda key: not is_row_id(key[0]), is_index=True, root=4
    ),
)


class FoundChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A row as it was found, and what it proves on its own.

    Attributes:
        reason: reason code if the row alone shows that it is invalid, else None.
        needs_key: the text does not look like one; only the index on the texts can prove it.
        is_named: the metadata name the row's id, so the overflow chain belongs to the row.
        measures: norm and repeats of the vector.
    """

    row_id: bytes | None
    loader: bytes | None
    source: bytes | None
    text: bytes | None
    vector: bytes | None
    metadata: bytes | None
    reason: str | None = None
    needs_key: bool = False
    is_named: bool = False
    measures: VectorMeasures = NO_MEASURES

    @property
    def digest(self) -> bytes:
        """Hash over all values of the row."""
        values = (self.row_id, self.loader, self.source, self.text, self.vector, self.metadata)
        return hash_bytes(b"".join(b"-" if one is None else b"%d:%s" % (len(one), one) for one in values))


def hash_bytes(raw: bytes) -> bytes:
    """Compute a short hash, for comparing texts and rows."""
    return blake2b(raw, digest_size=_HASH_BYTES).digest()


def examine_row(row: FoundRow, known: Collection[bytes]) -> FoundChunk:
    """Decode a row that was found in a damaged file, and determine what it proves on its own.

    Args:
        row: a row of the table whose overflow chain is complete.
        known: loader ids in v1's state.
    """
    row_id, text, loader, source, vector, metadata = (
        bytes(value) if isinstance(value, bytes) else None for value in row.values
    )
    naming = _compare_metadata(metadata, row_id, loader, source)
    reason = None
    if naming is MetadataNaming.ANOTHER_ROW or not _has_valid_ids(row_id, loader, source, known):
        reason = notices.ROW_UNPROVEN
    measures = measure_vector(vector) or NO_MEASURES
    # Vectors of zeros are written by models and left behind by damage: only intact metadata behind them distinguish the
    # two.
    if measures is NO_MEASURES or (not measures.norm and naming is not MetadataNaming.THIS_ROW):
        reason = reason or notices.VECTOR_UNPROVEN
    return FoundChunk(
        row_id=row_id,
        loader=loader,
        source=source,
        text=text,
        vector=vector,
        metadata=metadata,
        reason=reason,
        needs_key=not _is_text(text),
        is_named=naming is MetadataNaming.THIS_ROW,
        measures=measures,
    )


def _has_valid_ids(row_id: bytes | None, loader: bytes | None, source: bytes | None, known: Collection[bytes]) -> bool:
    """Whether the id, loader id and source of a row have the form that v1 writes.

    ``known`` are loader ids of the state.
    """
    if row_id is None or loader is None or source is None or not is_plain(source):
        return False
    found = _ROW_ID.fullmatch(row_id)
    if found is None or found[1] != loader:
        return False
    if loader in known or LOADER_ID.fullmatch(loader):
        return True
    # The loader id of an EPUB is its path; that of an image contains its path.
    return bool(source) and loader in (source, _IMAGE + source)


def is_plain(raw: bytes) -> bool:
    """Whether a text is valid UTF-8 without NUL, which damage leaves behind."""
    if b"\0" in raw:
        return False
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_text(raw: bytes | None) -> bool:
    """Whether bytes are text, and not a pattern that a recovery tool wrote over unreadable sectors. None is no text."""
    if raw is None or not is_plain(raw) or is_blank(raw.decode()):
        return False
    # Recovery tools write a short repeated pattern over unreadable sectors.
    windows = (raw[at : at + _WINDOW] for at in range(0, len(raw) - _WINDOW + 1, _WINDOW))
    return not any(one[period:] == one[:-period] for one in windows for period in range(1, _MAX_PERIOD + 1))


class MetadataNaming(Enum):
    """Which row the metadata in a row name by its id."""

    THIS_ROW = auto()
    #: Also of metadata that are damaged.
    ANOTHER_ROW = auto()
    NO_ROW = auto()


def _compare_metadata(
    metadata: bytes | None, row_id: bytes | None, loader: bytes | None, source: bytes | None
) -> MetadataNaming:
    """Compare the JSON metadata of a row with its id, loader id and source."""
    if metadata is None:
        return MetadataNaming.NO_ROW
    if b"\0" in metadata:
        return MetadataNaming.ANOTHER_ROW
    try:
        found: Any = json_text.loads(metadata)
    except json_text.JsonProblem:
        return MetadataNaming.ANOTHER_ROW
    if not isinstance(found, dict):
        return MetadataNaming.ANOTHER_ROW
    for key, value in (("id", row_id), ("uniqueLoaderId", loader), ("source", source)):
        stated, stored = found.get(key), None if value is None else decode_utf8(value)
        if isinstance(stated, str) and _as_column_text(stated) != stored:
            return MetadataNaming.ANOTHER_ROW
    return MetadataNaming.THIS_ROW if isinstance(found.get("id"), str) else MetadataNaming.NO_ROW


def _as_column_text(text: str) -> str:
    """Return a text of the metadata as a column stores it: half a surrogate pair is U+FFFD there."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# Load all rows and keys that are found into a temporary database.


#: Rank of each origin, 0 for the most reliable.
STRENGTH = {origin: rank for rank, origin in enumerate(Origin)}
#: Kinds of index keys: row ids, and hashes of texts.
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


class IndexCoverage:
    """How completely the indexes list the rows of the table.

    Attributes:
        whole: kinds of keys whose index is complete from its first to its last key.
        last_run: number of the last run of keys in the index on ids; -1 if runs cannot be compared.
    """

    def __init__(self) -> None:
        self.whole: set[int] = set()
        self.last_run = -1


def load_rows(db: apsw.Connection, reading: Reading, known: Collection[bytes], *, keep: bool) -> IndexCoverage:
    """Store all rows and index keys that a reading finds in tables of a new database.

    Args:
        db: the database.
        reading: a reading of the damaged file.
        known: loader ids in v1's state.
        keep: store the values of rows, not only whether they can be verified.

    Raises:
        OSError: the file cannot be read.
        apsw.Error: the database cannot be written.
    """
    db.execute(_SCHEMA)
    keys = _RowMaker(reading, known, keep=keep)
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
            (keys.key(row) for row in batch if row.table != "vectors" and row.flaw is not OverflowFlaw.BROKEN),
        )
    db.executemany(
        "INSERT INTO covered VALUES (?, ?)",
        ((max(low + 1, _LEAST), min(high, _MOST)) for low, high in reading.coverage["vectors"].intervals),
    )
    db.execute("CREATE INDEX found_number ON found (number)")
    db.execute("CREATE INDEX key_number ON key (kind, number)")
    db.execute("CREATE INDEX key_key ON key (kind, key)")
    return keys.coverage()


class _RowMaker:
    """Converts rows and index keys of a damaged file to rows of the work tables. Single use."""

    def __init__(self, reading: Reading, known: Collection[bytes], *, keep: bool) -> None:
        self._reading, self._known, self._keep = reading, known, keep
        #: Last key of each index, and how often its keys were out of order.
        self._last: dict[str, bytes] = {}
        self._disorder: dict[str, int] = {}

    def row(self, row: FoundRow) -> tuple[Any, ...]:
        """Convert a found row to the columns of the table ``found``, with the reason if it is unusable."""
        claim = examine_row(row, self._known)
        reason = claim.reason
        if row.flaw is OverflowFlaw.BROKEN or (row.flaw is not None and not claim.is_named):
            reason = notices.ROW_BROKEN
        text_hash = None if claim.text is None else hash_bytes(claim.text)
        length = None if claim.vector is None else len(claim.vector)
        contents = (claim.source, claim.text, claim.vector, claim.metadata) if self._keep else (None,) * 4
        digest = hash_bytes(b"%d " % row.rowid + claim.digest)
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
        return STRENGTH[row.origin], row.page, row.rowid, claim.row_id, claim.loader, *contents, *about

    def key(self, row: FoundRow) -> tuple[Any, ...]:
        """Convert a found index entry to the columns of the table ``key``."""
        key = row.values[0]
        raw = bytes(key) if isinstance(key, TextBytes) else b""
        kind = IDS if is_row_id(key) else TEXTS
        run = -1
        if row.origin is Origin.TREE:
            if raw <= self._last.get(row.table, b""):
                self._disorder[row.table] = self._disorder.get(row.table, 0) + 1
            self._last[row.table] = raw
            if row.table == ID_INDEX and kind == IDS and self._reading.encoding == "utf-8":
                run = row.run + self._disorder.get(row.table, 0)
        own = raw if kind == IDS else hash_bytes(raw)
        return kind, STRENGTH[row.origin], row.page, run, row.rowid, own, row.flaw is None and is_plain(raw)

    def coverage(self) -> IndexCoverage:
        """Return which indexes were read completely and in order."""
        found = IndexCoverage()
        for name, coverage in self._reading.coverage.items():
            kind = {ID_INDEX: IDS}.get(name, TEXTS)
            is_ordered = not self._disorder.get(name) or self._reading.encoding != "utf-8"
            if name != "vectors" and coverage.is_whole and is_ordered:
                found.whole.add(kind)
        if ID_INDEX in self._reading.roots and self._reading.encoding == "utf-8":
            found.last_run = self._reading.coverage[ID_INDEX].last_run + self._disorder.get(ID_INDEX, 0)
        return found


# Decide which rows are verified, by comparing them with each other and with the indexes (``docs/salvage.md``).


#: Column that the keys of an index refer to.
_COLUMN_OF_KIND = {IDS: "id", TEXTS: "text_hash"}
#: Strength of a key that is no longer used.
_DISTRUSTED = 9


def decide_rows(
    db: apsw.Connection, keys: IndexCoverage, stated_bytes: int | None, *, unique_texts: bool
) -> dict[str, int]:
    """Decide which rows are verified: give every other row a reason, and delete rows that the table no longer had.

    Args:
        db: database filled by :func:`load_rows`.
        keys: coverage of the indexes.
        stated_bytes: vector length in bytes according to v1's state.
        unique_texts: the table had a unique index on texts.

    Returns:
        The numbers of ``copies`` and ``deleted`` rows, by these names.
    """
    decisions = _RowDecisions(db, keys)
    copies = decisions.count_changes("DELETE FROM found WHERE seq NOT IN (SELECT min(seq) FROM found GROUP BY digest)")
    decisions.check_vectors(stated_bytes)
    decisions.distrust_wrong_pages()
    decisions.compare_with_keys()
    copies += decisions.remove_weaker_readings()
    deleted = decisions.remove_deleted()
    decisions.require_text_keys()
    for column in ("number", "id", *(("text_hash",) if unique_texts else ())):
        decisions.refuse_conflicts(column)
    # One row remains for each row id, preferably a verified one.
    copies += decisions.count_changes(
        "DELETE FROM found WHERE seq NOT IN (SELECT seq FROM (SELECT seq, row_number() OVER (PARTITION BY number"
        " ORDER BY reason IS NOT NULL, strength, seq) AS place FROM found) WHERE place = 1)"
    )
    return {"copies": copies, "deleted": deleted}


class _RowDecisions:
    """Applies the rules to the rows in the database, step by step. Single use."""

    def __init__(self, db: apsw.Connection, keys: IndexCoverage) -> None:
        self._db = db
        self._keys = keys

    def count_changes(self, statement: str, *values: Any) -> int:
        """Run an SQL statement and return the number of changed rows."""
        before = self._db.total_changes()
        self._db.execute(statement, values)
        return self._db.total_changes() - before

    def _refuse(self, reason: str, condition: str, *values: Any) -> None:
        """Record a reason for the rows that meet an SQL condition and have no reason yet."""
        self._db.execute(f"UPDATE found SET reason = ? WHERE reason IS NULL AND ({condition})", (reason, *values))

    # --- vectors -----------------------------------------------------------------------------------------------------

    def check_vectors(self, stated_bytes: int | None) -> None:
        """Refuse vectors that differ from the others of the base in length, norm or number of repeated values.

        ``stated_bytes`` is their length according to v1's state, None if unknown.
        """
        length = self._db.execute(
            "SELECT vector_bytes FROM found WHERE reason IS NULL GROUP BY 1"
            " ORDER BY count(*) DESC, vector_bytes = ? DESC, min(strength), min(seq) LIMIT 1",
            (stated_bytes,),
        ).get
        self._refuse(notices.VECTOR_UNPROVEN, "vector_bytes <> ?", length)
        usual = compute_typical_range(self._db, "found", "reason IS NULL")
        self._refuse(
            notices.VECTOR_UNPROVEN,
            "norm > 0 AND (abs(norm - ?) > ? OR repeats > ?)",
            usual.middle,
            usual.furthest,
            usual.repeats,
        )

    # --- indexes -----------------------------------------------------------------------------------------------------

    def distrust_wrong_pages(self) -> None:
        """Ignore index pages that contradict more rows than they confirm: they are outdated or from another file.

        Rows that both indexes contradict are not counted, because then the row itself is wrong.
        """
        own = "CASE k.kind WHEN 1 THEN f.id ELSE f.text_hash END"
        self._db.execute(
            f"""CREATE TEMP TABLE held AS
                SELECT f.seq, k.kind, k.page, k.key IS {own} AS fits FROM found f JOIN key k ON k.number = f.number
                 WHERE f.reason IS NULL AND f.strength < 2 AND k.strength = 0 AND k.is_sound"""
        )
        self._db.execute(
            "DELETE FROM held WHERE seq IN (SELECT seq FROM held GROUP BY seq"
            " HAVING NOT max(fits) AND count(DISTINCT kind) = 2)"
        )
        self._db.execute(
            f"UPDATE key SET strength = {_DISTRUSTED} WHERE (kind, page) IN"
            " (SELECT kind, page FROM held GROUP BY kind, page HAVING 2 * sum(fits) < count(*))"
        )
        self._db.execute("DROP TABLE held")

    def compare_with_keys(self) -> None:
        """Record which rows the index keys confirm, and refuse rows that they contradict.

        If the metadata name the row's id and the index contains its text, the id is trusted.
        """
        for kind, own in _COLUMN_OF_KIND.items():
            self._db.execute(
                f"UPDATE found SET confirmed = confirmed + {kind} WHERE EXISTS (SELECT 1 FROM key k"
                f" WHERE k.kind = {kind} AND k.number = found.number AND k.key = found.{own} AND k.strength = 0)"
            )
        self._db.execute(f"UPDATE found SET confirmed = {IDS | TEXTS} WHERE confirmed = {TEXTS} AND is_named")
        for kind, own in _COLUMN_OF_KIND.items():
            other = f"SELECT 1 FROM key k WHERE k.kind = {kind} AND k.strength = 0 AND k.is_sound AND k"
            self._refuse(
                notices.ROW_CONTRADICTED,
                f"NOT confirmed & {kind} AND"
                f" (EXISTS ({other}.number = found.number) OR EXISTS ({other}.key = found.{own}))",
            )

    def remove_weaker_readings(self) -> int:
        """Delete rows that were also found at a more reliable place, unless an index confirms them.

        Return their number.

        Also refuse rows that the tree reaches although both indexes show that they do not belong to the table.
        """
        of_ids, of_texts = self._absences()
        self._refuse(notices.ROW_CONTRADICTED, f"NOT confirmed AND strength = 0 AND {of_ids} AND {of_texts}")
        return self.count_changes(
            "DELETE FROM found WHERE strength > 0 AND NOT confirmed"
            " AND EXISTS (SELECT 1 FROM found t WHERE t.number = found.number AND t.strength < found.strength)"
        )

    def remove_deleted(self) -> int:
        """Delete rows that had been deleted before the damage, as an intact part of the tree or an index shows.

        Return their number.
        """
        of_ids, of_texts = self._absences()
        by_tree = (
            "EXISTS (SELECT 1 FROM covered c WHERE found.number BETWEEN c.low AND c.high) AND NOT EXISTS"
            " (SELECT 1 FROM found t WHERE t.number = found.number AND t.strength = 0)"
        )
        is_free = f"strength = {STRENGTH[Origin.FREE]}"
        return self.count_changes(
            "DELETE FROM found WHERE strength > 0 AND NOT confirmed"
            f" AND (({is_free}) OR ({by_tree}) OR {of_ids} OR {of_texts})"
        )

    def _absences(self) -> list[str]:
        """Build an SQL condition for each index: the index would list the row, but does not."""
        return [
            f"(NOT EXISTS (SELECT 1 FROM key k WHERE k.kind = {kind} AND k.strength = 0 AND"
            f" (k.number = found.number OR k.key = found.{own})) AND {self._covers(kind)})"
            for kind, own in _COLUMN_OF_KIND.items()
        ]

    def _covers(self, kind: int) -> str:
        """Build the SQL condition that a kind of index (1: ids, 2: texts) has no gap at the key of the row."""
        if kind in self._keys.whole:
            return "1"
        if kind == TEXTS or self._keys.last_run < 0:
            return "0"
        near = "SELECT k.run FROM key k WHERE k.kind = 1 AND k.strength = 0 AND k.run >= 0 AND k.key"
        before = f"coalesce(({near} < found.id ORDER BY k.key DESC LIMIT 1), 0)"
        after = f"coalesce(({near} > found.id ORDER BY k.key LIMIT 1), {self._keys.last_run})"
        return f"(found.id IS NOT NULL AND {before} = {after})"

    def require_text_keys(self) -> None:
        """Refuse texts that do not look like one unless the index on texts contains them."""
        self._refuse(notices.ROW_UNPROVEN, f"needs_key AND NOT confirmed & {TEXTS}")

    def refuse_conflicts(self, column: str) -> None:
        """Refuse rows with an equal value in ``column`` and different bytes.

        The less reliable one is refused, or both if they are equally reliable.
        """
        self._refuse(
            notices.ROW_CONTRADICTED,
            f"""seq IN (SELECT seq FROM (
                    SELECT seq, rank() OVER (PARTITION BY {column} ORDER BY strength, NOT confirmed) AS place,
                           count(*) OVER (PARTITION BY {column}, strength, NOT confirmed) AS same
                      FROM found WHERE reason IS NULL) WHERE place > 1 OR same > 1)""",
        )


# Write the verified rows, and the others with their reasons.


#: Table of the temporary file.
TABLE = replace(VECTOR_TABLE, reason="reason")
#: Minimum size of a row in bytes.
_MIN_ROW_BYTES = 16
#: Refusals of cells that had been rows of the table.
_REFUSED_ROWS = (Refusal.CELL, Refusal.CUT, Refusal.RECORD)


class Salvaged(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a salvage.

    ``path`` is a temporary file that contains :data:`TABLE`, or None if rows were only counted.
    """

    path: Path | None
    tally: SalvageTally


@contextmanager
def salvage_file(
    path: Path,
    work: Path | None = None,
    *,
    known: Collection[str] = (),
    dimensions: int | None = None,
    keep: bool = True,
) -> Iterator[Salvaged]:
    """Read a damaged vector file page by page and provide the verified rows while the context is active.

    Args:
        path: the file. It is only read.
        work: folder for temporary files (default: the system's).
        known: loader ids in v1's state.
        dimensions: dimensions of the vectors according to v1's state.
        keep: provide the rows; otherwise only count them.

    Raises:
        StoreProblem: no part of the file has the form of a SQLite file.
        WorkFolderTooSmall: there is not enough room for the rows.
        apsw.Error, OSError: the file cannot be read, or the temporary files cannot be written.
    """
    loaders = {loader.encode("utf-8", "surrogatepass") for loader in known}
    stated = None if dimensions is None else 4 * dimensions
    with ExitStack() as stack:
        folder = stack.enter_context(scratch.temporary_folder(work))
        if keep:
            require_free_space(folder, 2 * path.stat().st_size)
        try:
            file = stack.enter_context(PageFile(path))
        except ValueError as error:
            raise StoreProblem(tr("is not a SQLite file in any part")) from error
        reading = Reading(file, SHAPES)
        target = folder / "salvaged.sqlite"
        with sqlite.open_writable(target, create=True) as db:
            # After a power cut the temporary file is gone together with the run.
            db.pragma("synchronous", "OFF")
            with sqlite.transaction(db):
                keys = load_rows(db, reading, loaders, keep=keep)
                # The table has a unique index on texts unless the schema exists and does not list it.
                is_keyed = TEXT_INDEX in reading.roots or "vectors" not in reading.roots
                counts = decide_rows(db, keys, stated, unique_texts=is_keyed)
                _add_lost_rows(db)
                tally = _count_results(db, reading, deleted=counts["deleted"], is_exact=IDS in keys.whole)
                if keep:
                    _write_table(db)
        yield Salvaged(path=target if keep else None, tally=tally)


def _add_lost_rows(db: apsw.Connection) -> None:
    """Add a row, marked as lost, for each index key without one. Take the ids of unverified rows from the index."""
    db.execute(
        """INSERT INTO found (strength, number, reason)
           SELECT 0, number, ? FROM key
            WHERE strength <= (SELECT min(strength) FROM key) AND strength < 2 AND is_sound
              AND number NOT IN (SELECT number FROM found) GROUP BY number""",
        (notices.ROW_LOST,),
    )
    db.execute(
        """UPDATE found SET loader = NULL, id = k.key FROM key k
            WHERE reason IS NOT NULL AND k.kind = ? AND k.strength < 2 AND k.number = found.number""",
        (IDS,),
    )


def _count_results(db: apsw.Connection, reading: Reading, *, deleted: int, is_exact: bool) -> SalvageTally:
    """Count found, refused and lost rows.

    ``deleted`` rows are counted already. With ``is_exact``, the index names every row, so none is estimated.
    """
    refused: Counter[str] = Counter()
    weaker: Counter[str] = Counter()
    rows = 0
    origins = tuple(Origin)
    for reason, strength, count in db.execute("SELECT reason, strength, count(*) FROM found GROUP BY 1, 2"):
        if reason is not None:
            refused[str(reason)] += int(str(count))
            continue
        rows += int(str(count))
        if strength:
            weaker[origins[int(str(strength))].value] += int(str(count))
    file, counts = reading.file, reading.counts
    # Without a complete index, rows that left no trace are counted from gaps in the tree.
    untraced = sum(counts.refused["vectors", refusal] for refusal in _REFUSED_ROWS)
    untraced += min(max(0, reading.coverage["vectors"].missing), file.size // _MIN_ROW_BYTES)
    untraced = 0 if is_exact else max(0, untraced - refused[notices.ROW_LOST])
    return SalvageTally(
        rows=rows,
        about=rows + refused.total() + untraced,
        is_exact=is_exact,
        refused=dict(sorted(refused.items())),
        weaker=dict(weaker),
        deleted=deleted,
        pages=max(file.pages, file.stated),
        pages_read=counts.pages.total() + counts.overflow + counts.inner + counts.free,
        page_bytes=file.page_size,
    )


#: SQL expression for the loader id in a row id.
_LOADER_SQL = "substr(rtrim(CAST(id AS TEXT), '0123456789'), 1, length(rtrim(CAST(id AS TEXT), '0123456789')) - 1)"


def _write_table(db: apsw.Connection) -> None:
    """Write the table of the salvaged rows, ordered by row id.

    Unverified rows only get the columns that identify them.
    """
    db.execute(
        "CREATE TABLE vectors (id TEXT, pageContent TEXT, uniqueLoaderId TEXT, source TEXT, vector BLOB,"
        " metadata TEXT, reason TEXT)"
    )
    db.execute(
        f"""INSERT INTO vectors (rowid, id, pageContent, uniqueLoaderId, source, vector, metadata, reason)
            SELECT number, CAST(id AS TEXT), CAST(text AS TEXT), CAST(loader AS TEXT), CAST(source AS TEXT), vector,
                   CAST(metadata AS TEXT), NULL
              FROM found WHERE reason IS NULL
             UNION ALL
            SELECT number, CAST(id AS TEXT), NULL, {_LOADER_SQL}, NULL, NULL, NULL, reason
              FROM found WHERE reason IS NOT NULL
             ORDER BY number"""
    )
    db.execute("DROP TABLE found")


# Find damage in files that SQLite reads without an error (``docs/salvage.md``, "Damaged files that SQLite can read").
# SQLite checks the structure of pages and indexes. Here the values of each row are compared with those of the others: a
# deviation is damage only if few rows show it and most do not. A file in which most rows are odd was written that way.


#: Function of libSQL's vector indexes. Their trees are empty, which is not damage (``docs/formats/preview.md``).
_VECTOR_INDEX = "libsql_vector_idx"
#: High enough that SQLite reports everything: a vector index causes a complaint for each row.
_COMPLAINTS = 1 << 30
#: Vectors of another model also have one common norm: if this many others are this close, they are not damaged. The
#: same bytes written over several vectors give them one norm too, but a larger one than any model's.
_CLUSTER_SIZE, _CLUSTER_WIDTH, _MAX_MODEL_NORM = 5, 1e-4, 1e4
#: With fewer vectors, at most one in ten may be damaged; otherwise their norms prove nothing.
_FEW_VECTORS = 20


def find_hidden_damage(path: Path, work: Path | None = None) -> str | None:
    """Describe what contradicts the rows that SQLite reads from a vector file; None if nothing does.

    Args:
        path: a file that a survey could read.
        work: folder for a temporary copy, which is made only if a log or journal is beside the file.

    Raises:
        apsw.Error, OSError: the file cannot be read, or there is not enough room.
    """
    try:
        with sqlite.open_readonly(path, work=work) as db:
            complaint = _find_complaint(db)
            if complaint is None:
                with sqlite.open_scratch() as measured:
                    rows = _MeasuredRows(measured)
                    rows.read(db)
                    complaint = rows.contradiction()
            return complaint
    except (*sqlite.CONTENT_ERRORS, apsw.IOError, UnicodeDecodeError) as error:
        return str(error)


def _find_complaint(db: apsw.Connection) -> str | None:
    """Return the first complaint of SQLite's integrity check, except those about vector indexes; None without one."""
    db.create_scalar_function(_VECTOR_INDEX, lambda *_values: None, deterministic=True, flags=apsw.SQLITE_INNOCUOUS)
    indexes = db.execute("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql LIKE ?", (f"%{_VECTOR_INDEX}%",))
    unknown = tuple(f" index {name}" for (name,) in indexes)
    try:
        complaint = (str(one) for (one,) in db.execute(f"PRAGMA integrity_check({_COMPLAINTS})"))
        return next((one for one in complaint if one != "ok" and not (unknown and one.endswith(unknown))), None)
    except apsw.SQLError:
        # The schema uses something that this SQLite does not support.
        return None


class _MeasuredRows:
    """Compares the rows of a file with each other, by their metadata and by measures of their vectors."""

    def __init__(self, db: apsw.Connection) -> None:
        self._scratch = db
        db.execute("CREATE TABLE measured (length INTEGER, norm REAL, repeats INTEGER, is_named INTEGER)")
        #: All rows, rows whose metadata name them, and rows whose metadata name another row or are damaged.
        self._count = self._named = self._misnamed = 0

    def read(self, db: apsw.Connection) -> None:
        """Measure every row of a file that SQLite can read."""
        with sqlite.transaction(self._scratch):
            self._scratch.executemany("INSERT INTO measured VALUES (?, ?, ?, ?)", self._measure_rows(db))

    def _measure_rows(self, db: apsw.Connection) -> Iterator[tuple[int, float, int, bool]]:
        """Yield length, norm and repeats of each finite vector, and whether the metadata of its row name the row."""
        for row_id, vector, metadata in _read_rows(db):
            naming = MetadataNaming.NO_ROW if metadata is None else _find_named_row(metadata, row_id)
            self._count += 1
            self._named += naming is MetadataNaming.THIS_ROW
            self._misnamed += naming is MetadataNaming.ANOTHER_ROW
            measures = measure_vector(vector)
            # The survey reports values that are not vectors and vectors that are not finite.
            if vector is not None and measures is not None:
                yield len(vector), measures.norm, measures.repeats, naming is MetadataNaming.THIS_ROW

    def contradiction(self) -> str | None:
        """Describe a deviation that few rows show and most do not, or return None."""
        if 0 < self._misnamed < self._named:
            return tr(
                "{rows} with metadata that are damaged or belong to another row",
                rows=format_count(self._misnamed, "row"),
            )
        unlike = self._count_deviating()
        return (
            tr("{vectors} with values unlike those of all others", vectors=format_count(unlike, "vector"))
            if unlike
            else None
        )

    def _count_deviating(self) -> int:
        """Count the vectors that differ from the others; 0 if too many differ to be damaged."""
        run = self._scratch.execute
        most = "SELECT length FROM measured GROUP BY 1 ORDER BY count(*) DESC LIMIT 1"
        run(f"DELETE FROM measured WHERE length <> ({most})")
        usual = compute_typical_range(self._scratch, "measured")
        if not usual.middle:
            return 0
        # Vectors of zeros are written too: intact metadata behind them show that they were not overwritten.
        found = run(
            """SELECT count(*) FROM
                 (SELECT norm, repeats, is_named, count(*) OVER (PARTITION BY round(norm / ?)) AS alike FROM measured)
                WHERE CASE WHEN norm = 0 THEN NOT is_named AND ?
                           ELSE repeats > ? OR (abs(norm - ?) > ? AND (alike < ? OR norm > ?)) END""",
            (
                usual.middle * _CLUSTER_WIDTH,
                2 * self._named > self._count,
                usual.repeats,
                usual.middle,
                usual.furthest,
                _CLUSTER_SIZE,
                _MAX_MODEL_NORM,
            ),
        ).get
        whole, unlike = (int(str(one)) for one in (run("SELECT count(*) FROM measured").get, found))
        limit = whole // 2 if whole >= _FEW_VECTORS else max(1, whole // 10)
        return unlike if unlike <= limit else 0


def _read_rows(db: apsw.Connection) -> Iterator[tuple[str | None, bytes | None, str | None]]:
    """Yield id, vector and metadata of every row of a vector file."""
    columns = {str(row[1]) for row in db.execute(f"PRAGMA table_info('{VECTOR_TABLE.name}')")}
    texts = (
        f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) END" if name in columns else "NULL"
        for name in ("id", "metadata")
    )
    text = make_text_decoder(db)
    rows: Any = db.execute(
        f"SELECT {', '.join(texts)}, CASE typeof(vector) WHEN 'blob' THEN vector END"
        f" FROM {VECTOR_TABLE.name} NOT INDEXED"
    )
    for row_id, metadata, vector in rows:
        yield text(row_id), vector, text(metadata)


def _find_named_row(metadata: str, row_id: str | None) -> MetadataNaming:
    """Compare the id in the JSON metadata of a row with the id of the row."""
    try:
        found: Any = json_text.loads(metadata)
    except json_text.JsonProblem:
        return MetadataNaming.ANOTHER_ROW
    named = found.get("id") if isinstance(found, dict) else metadata
    if not isinstance(named, str):
        return MetadataNaming.NO_ROW
    return MetadataNaming.THIS_ROW if _as_column_text(named) == row_id else MetadataNaming.ANOTHER_ROW
