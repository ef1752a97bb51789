"""Salvage of damaged v1 vector files: every row that is still there and proves itself (``docs/salvage.md``)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import durable, sqlite
from regraft.disk.trees import require_free_space
from regraft.formats import json_text
from regraft.formats.cherry_v1.layout import VECTOR_TABLE, parse_chunk_number
from regraft.formats.sqlite_pages import Class, Flaw, FoundRow, Origin, PageFile, Reading, Refusal, Shape, Text, Value
from regraft.formats.vector_checks import NO_MEASURES, VectorMeasures, compute_typical_range, measure_vector
from regraft.formats.vector_survey import SalvageTally, StoreProblem
from regraft.formats.vector_table import make_text_decoder
from regraft.identity import replace
from regraft.language import format_count, tr
from regraft.report import notices
from regraft.text import decode_utf8, is_blank

# What a row of a v1 vector file says for itself, and what it looks like (``docs/salvage.md``, "What proves a row").


#: Names of indexes that SQLite makes for the keys of the table, by what they are on.
ID_INDEX, TEXT_INDEX = "sqlite_autoindex_vectors_1", "sqlite_autoindex_vectors_2"
_ROW_ID = re.compile(rb"(?s)(.+)_(0|[1-9][0-9]{0,14})")
_LOADER_ID = re.compile(rb"[A-Z][A-Za-z]*Loader_[0-9a-f]{32}")
_IMAGE = b"ImageLoader_"
_HASH_BYTES = 16
#: A part of a text is taken for a filling from twice this length on, where it repeats no more than so many bytes.
_WINDOW, _MOST_PERIOD = 128, 16


def _is_row(values: Sequence[Value]) -> bool:
    row_id, loader = values[0], values[2]
    return isinstance(row_id, Text) and isinstance(loader, Text) and parse_chunk_number(row_id, loader) >= 0


def is_row_id(value: Value) -> bool:
    """Tell whether a value has the form of a row's id, ``<loader id>_<n>`` of a loader that hashes what it read."""
    found = _ROW_ID.fullmatch(value) if isinstance(value, Text) else None
    return found is not None and _LOADER_ID.fullmatch(found[1]) is not None


#: The table and its two indexes as v1's writer makes them; their roots are where it puts them.
_OPTIONAL_TEXT = Class.TEXT | Class.NULL
SHAPES = (
    Shape(
        name="vectors",
        columns=(Class.TEXT, Class.TEXT, Class.TEXT, Class.TEXT, Class.BLOB | Class.NULL, _OPTIONAL_TEXT),
        accepts=_is_row,
        root=2,
    ),
    Shape(name=ID_INDEX, columns=(Class.TEXT,), accepts=lambda key: is_row_id(key[0]), is_index=True, root=3),
    Shape(name=TEXT_INDEX, columns=(Class.TEXT,), accepts=lambda key: not is_row_id(key[0]), is_index=True, root=4),
)


class FoundChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A row as it was found, and what it says for itself.

    Attributes:
        reason: why it does not prove itself, None where it does as far as it alone can tell.
        needs_key: whether only the index on the texts can prove its text, which does not look like one.
        is_named: whether its last column names the row: then its overflow chain is its own.
        measures: of its vector, as far as it is one.
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
        """Return a hash over all values."""
        values = (self.row_id, self.loader, self.source, self.text, self.vector, self.metadata)
        return hash_bytes(b"".join(b"-" if one is None else b"%d:%s" % (len(one), one) for one in values))


def hash_bytes(raw: bytes) -> bytes:
    """Return a short hash, by which texts are compared."""
    return blake2b(raw, digest_size=_HASH_BYTES).digest()


def parse_loader_id(row_id: bytes) -> bytes:
    """Return the loader id in a row's id."""
    return row_id.rpartition(b"_")[0]


def examine_row(row: FoundRow, known: Collection[bytes]) -> FoundChunk:
    """Return what a row says for itself.

    Args:
        row: a row of the table, whose chain is not broken.
        known: loader ids that the state of v1 names.
    """
    row_id, text, loader, source, vector, metadata = (
        bytes(value) if isinstance(value, bytes) else None for value in row.values
    )
    said = _said(metadata, row_id, loader, source)
    reason = None
    if said is None or not _is_form(row_id, loader, source, known):
        reason = notices.ROW_UNPROVEN
    measures = measure_vector(vector) or NO_MEASURES
    # Zeros are written too, and left by damage: only what stands around them tells that it is none.
    if measures is NO_MEASURES or (not measures.norm and not said):
        reason = reason or notices.VECTOR_UNPROVEN
    return FoundChunk(
        row_id=row_id,
        loader=loader,
        source=source,
        text=text,
        vector=vector,
        metadata=metadata,
        reason=reason,
        needs_key=text is None or not _is_text(text),
        is_named=bool(said),
        measures=measures,
    )


def _is_form(row_id: bytes | None, loader: bytes | None, source: bytes | None, known: Collection[bytes]) -> bool:
    """Tell whether id, loader id and source are as v1 writes them."""
    if row_id is None or loader is None or source is None or not is_plain(source):
        return False
    found = _ROW_ID.fullmatch(row_id)
    if found is None or found[1] != loader:
        return False
    if loader in known or _LOADER_ID.fullmatch(loader):
        return True
    # An EPUB's loader id is its path, an image's holds it.
    return bool(source) and loader in (source, _IMAGE + source)


def is_plain(raw: bytes) -> bool:
    """Tell whether a text is UTF-8 without the character NUL, which damage leaves."""
    if b"\0" in raw:
        return False
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_text(raw: bytes) -> bool:
    return is_plain(raw) and not is_blank(raw.decode()) and not _is_filled_in(raw)


def _is_filled_in(raw: bytes) -> bool:
    """Tell whether a part of a text is one short pattern over and over, as copies of broken disks are filled."""
    windows = (raw[at : at + _WINDOW] for at in range(0, len(raw) - _WINDOW + 1, _WINDOW))
    return any(one[period:] == one[:-period] for one in windows for period in range(1, _MOST_PERIOD + 1))


def _said(metadata: bytes | None, row_id: bytes | None, loader: bytes | None, source: bytes | None) -> bool | None:
    """Return whether the last column names the row; None where it names another one, or is no JSON object."""
    if metadata is None:
        return False
    if b"\0" in metadata:
        return None
    try:
        found: Any = json_text.loads(metadata)
    except json_text.JsonProblem:
        return None
    if not isinstance(found, dict):
        return None
    for key, value in (("id", row_id), ("uniqueLoaderId", loader), ("source", source)):
        said = found.get(key)
        if isinstance(said, str) and said != (None if value is None else decode_utf8(value)):
            # What is half a character there is U+FFFD in the column.
            whole = said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            if value is None or whole != decode_utf8(value):
                return None
    return isinstance(found.get("id"), str)


# What was read of a damaged vector file, in a temporary database where all of it is compared at once.


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
_OF_CHAIN = notices.ROW_BROKEN


class IndexCoverage:
    """How far the indexes of a file tell which rows there are not, by kind.

    Attributes:
        whole: kinds whose index is there from its first key to its last.
        last_run: the run at the end of the ids' index, -1 where its runs tell nothing.
    """

    def __init__(self) -> None:
        self.whole: set[int] = set()
        self.last_run = -1


def load_rows(db: apsw.Connection, reading: Reading, known: Collection[bytes], *, keep: bool) -> IndexCoverage:
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
        claim = examine_row(row, self._known)
        reason = claim.reason
        if row.flaw is Flaw.BROKEN or (row.flaw is not None and not claim.is_named):
            reason = _OF_CHAIN
        text_hash = None if claim.text is None else hash_bytes(claim.text)
        length = None if claim.vector is None else len(claim.vector)
        held = self._held(claim)
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
        return STRENGTH[row.origin], row.page, row.rowid, *held, *about

    def _held(self, claim: FoundChunk) -> tuple[bytes | None, ...]:
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
        own = raw if kind == IDS else hash_bytes(raw)
        return kind, STRENGTH[row.origin], row.page, run, row.rowid, own, row.flaw is None and is_plain(raw)

    def told(self) -> IndexCoverage:
        keys = IndexCoverage()
        for name, coverage in self._reading.coverage.items():
            kind = {ID_INDEX: IDS}.get(name, TEXTS)
            is_ordered = not self._disorder.get(name) or self._reading.encoding != "utf-8"
            if name != "vectors" and coverage.is_whole and is_ordered:
                keys.whole.add(kind)
        if ID_INDEX in self._reading.roots and self._reading.encoding == "utf-8":
            keys.last_run = self._reading.coverage[ID_INDEX].last_run + self._disorder.get(ID_INDEX, 0)
        return keys


# Which rows prove themselves, held against each other and against the indexes (``docs/salvage.md``).


#: The column that the keys of an index are of.
_OWN = {IDS: "id", TEXTS: "text_hash"}
#: A key that no longer counts.
_DISTRUSTED = 9


def decide_rows(
    db: apsw.Connection, keys: IndexCoverage, stated_bytes: int | None, *, unique_texts: bool
) -> dict[str, int]:
    """Give every row that does not prove itself its reason, and remove what is no row of the table any more.

    Args:
        db: what :func:`.scratch.fill` filled.
        keys: what the indexes tell.
        stated_bytes: the length of the vectors that the state says, in bytes.
        unique_texts: whether the table holds every text once.

    Returns:
        How many ``copies`` and ``deleted`` rows were found.
    """
    judge = _Judge(db, keys)
    copies = judge.changed("DELETE FROM found WHERE seq NOT IN (SELECT min(seq) FROM found GROUP BY digest)")
    judge.hold_vectors(stated_bytes)
    judge.weigh_keys()
    judge.ask_keys()
    copies += judge.remove_readings()
    deleted = judge.remove_deleted()
    judge.demand_keys()
    for column in ("number", "id", *(("text_hash",) if unique_texts else ())):
        judge.refuse_second_readings(column)
    # What is left are rows: one for each number, the one that proves itself first.
    copies += judge.changed(
        "DELETE FROM found WHERE seq NOT IN (SELECT seq FROM (SELECT seq, row_number() OVER (PARTITION BY number"
        " ORDER BY reason IS NOT NULL, strength, seq) AS place FROM found) WHERE place = 1)"
    )
    return {"copies": copies, "deleted": deleted}


class _Judge:
    """Works the rows off, step by step; used once."""

    def __init__(self, db: apsw.Connection, keys: IndexCoverage) -> None:
        self._db = db
        self._keys = keys

    def changed(self, statement: str, *values: Any) -> int:
        before = self._db.total_changes()
        self._db.execute(statement, values)
        return self._db.total_changes() - before

    def _value(self, query: str, *values: Any) -> Any:
        return self._db.execute(query, values).get

    def _refuse(self, reason: str, condition: str, *values: Any) -> None:
        self._db.execute(f"UPDATE found SET reason = ? WHERE reason IS NULL AND ({condition})", (reason, *values))

    # --- vectors -----------------------------------------------------------------------------------------------------

    def hold_vectors(self, stated_bytes: int | None) -> None:
        """Hold every vector against those of the base: their length, and how long and how uneven they are."""
        length = self._value(
            "SELECT vector_bytes FROM found WHERE reason IS NULL GROUP BY 1"
            " ORDER BY count(*) DESC, vector_bytes = ? DESC, min(strength), min(seq) LIMIT 1",
            stated_bytes,
        )
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

    def weigh_keys(self) -> None:
        """Distrust pages of indexes that contradict more rows than they confirm: they are not this file's, or old.

        A row that both indexes contradict is not asked: then it is the row that is wrong.
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

    def ask_keys(self) -> None:
        """Note which rows the indexes confirm, and refuse those that they contradict.

        A row that names itself twice, and whose text its index has, is right about its id.
        """
        for kind, own in _OWN.items():
            self._db.execute(
                f"UPDATE found SET confirmed = confirmed + {kind} WHERE EXISTS (SELECT 1 FROM key k"
                f" WHERE k.kind = {kind} AND k.number = found.number AND k.key = found.{own} AND k.strength = 0)"
            )
        self._db.execute(f"UPDATE found SET confirmed = {IDS | TEXTS} WHERE confirmed = {TEXTS} AND is_named")
        for kind, own in _OWN.items():
            other = f"SELECT 1 FROM key k WHERE k.kind = {kind} AND k.strength = 0 AND k.is_sound AND k"
            self._refuse(
                notices.ROW_CONTRADICTED,
                f"NOT confirmed & {kind} AND"
                f" (EXISTS ({other}.number = found.number) OR EXISTS ({other}.key = found.{own}))",
            )

    def remove_readings(self) -> int:
        """Remove weaker readings of rows that a stronger origin has too, unless an index knows them.

        And refuse what a tree reaches where both indexes say that it is no row of theirs.
        """
        of_ids, of_texts = self._absences()
        self._refuse(notices.ROW_CONTRADICTED, f"NOT confirmed AND strength = 0 AND {of_ids} AND {of_texts}")
        return self.changed(
            "DELETE FROM found WHERE strength > 0 AND NOT confirmed"
            " AND EXISTS (SELECT 1 FROM found t WHERE t.number = found.number AND t.strength < found.strength)"
        )

    def remove_deleted(self) -> int:
        """Remove rows that were deleted: the intact tree, or an index, tells that there are none such any more."""
        of_ids, of_texts = self._absences()
        by_tree = (
            "EXISTS (SELECT 1 FROM covered c WHERE found.number BETWEEN c.low AND c.high) AND NOT EXISTS"
            " (SELECT 1 FROM found t WHERE t.number = found.number AND t.strength = 0)"
        )
        is_free = f"strength = {STRENGTH[Origin.FREE]}"
        return self.changed(
            "DELETE FROM found WHERE strength > 0 AND NOT confirmed"
            f" AND (({is_free}) OR ({by_tree}) OR {of_ids} OR {of_texts})"
        )

    def _absences(self) -> list[str]:
        """Return SQL for each index that tells whether it would have a row and does not."""
        return [
            f"(NOT EXISTS (SELECT 1 FROM key k WHERE k.kind = {kind} AND k.strength = 0 AND"
            f" (k.number = found.number OR k.key = found.{own})) AND {self._told(kind)})"
            for kind, own in _OWN.items()
        ]

    def _told(self, kind: int) -> str:
        """Return SQL that tells whether an index would have a row's key, if there were such a row."""
        if kind in self._keys.whole:
            return "1"
        if kind == TEXTS or self._keys.last_run < 0:
            return "0"
        near = "SELECT k.run FROM key k WHERE k.kind = 1 AND k.strength = 0 AND k.run >= 0 AND k.key"
        before = f"coalesce(({near} < found.id ORDER BY k.key DESC LIMIT 1), 0)"
        after = f"coalesce(({near} > found.id ORDER BY k.key LIMIT 1), {self._keys.last_run})"
        return f"(found.id IS NOT NULL AND {before} = {after})"

    def demand_keys(self) -> None:
        """Refuse texts that do not look like one, where the index on the texts does not have the very same."""
        self._refuse(notices.ROW_UNPROVEN, f"needs_key AND NOT confirmed & {TEXTS}")

    def refuse_second_readings(self, column: str) -> None:
        """Refuse what is read twice with other bytes: the weaker reading, and both where they are of one strength."""
        self._refuse(
            notices.ROW_CONTRADICTED,
            f"""seq IN (SELECT seq FROM (
                    SELECT seq, rank() OVER (PARTITION BY {column} ORDER BY strength, NOT confirmed) AS place,
                           count(*) OVER (PARTITION BY {column}, strength, NOT confirmed) AS same
                      FROM found WHERE reason IS NULL) WHERE place > 1 OR same > 1)""",
        )


# A damaged vector file becomes one that SQLite reads: the rows that prove themselves, and the others with reasons.


#: How the temporary file is read.
TABLE = replace(VECTOR_TABLE, reason="reason")
#: A row takes at least so many bytes.
_LEAST_ROW = 16
#: Places without a row that were rows of the table.
_WERE_ROWS = (Refusal.CELL, Refusal.CUT, Refusal.RECORD)


class Salvaged(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a damaged file: ``path`` is a temporary file with :data:`TABLE`, None where only counted."""

    path: Path | None
    tally: SalvageTally


@contextmanager
def salvaged(
    path: Path,
    work: Path | None = None,
    *,
    known: Collection[str] = (),
    dimensions: int | None = None,
    keep: bool = True,
) -> Iterator[Salvaged]:
    """Read a damaged vector file page by page, and give what is left of it as long as the context is open.

    Args:
        path: the file; it is only read.
        work: folder for temporary files (default: the system's).
        known: loader ids that the state of v1 names.
        dimensions: those of the vectors, as the state says.
        keep: whether the rows are wanted, and not only their number.

    Raises:
        StoreProblem: nothing of it is in the form of a SQLite file.
        WorkFolderTooSmall: there is no room for the rows.
        apsw.Error, OSError: it cannot be read, or the temporary files cannot be written.
    """
    loaders = {loader.encode("utf-8", "surrogatepass") for loader in known}
    stated = None if dimensions is None else 4 * dimensions
    with ExitStack() as stack:
        folder = stack.enter_context(durable.temporary_folder(work))
        if keep:
            require_free_space(folder, 2 * path.stat().st_size)
        try:
            file = stack.enter_context(PageFile(path))
        except ValueError as error:
            raise StoreProblem(tr("holds nothing of a SQLite file")) from error
        reading = Reading(file, SHAPES)
        place = folder / "salvaged.sqlite"
        with sqlite.open_writable(place, create=True) as db, _transaction(db):
            keys = load_rows(db, reading, loaders, keep=keep)
            # The table has the key on its texts, unless the schema is there and says otherwise.
            is_keyed = TEXT_INDEX in reading.roots or "vectors" not in reading.roots
            counts = decide_rows(db, keys, stated, unique_texts=is_keyed)
            _name_refused(db)
            tally = _tally(db, reading, deleted=counts["deleted"], is_exact=IDS in keys.whole)
            if keep:
                _write(db)
        yield Salvaged(path=place if keep else None, tally=tally)


@contextmanager
def _transaction(db: apsw.Connection) -> Iterator[None]:
    """Fill the file in one go; it is gone after a power cut, with the run that it was made for, and need not last."""
    db.pragma("synchronous", "OFF")
    with sqlite.transaction(db):
        yield


def _name_refused(db: apsw.Connection) -> None:
    """Add the rows of which only a key of an index is left, and name those that stay as the index does."""
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


def _tally(db: apsw.Connection, reading: Reading, *, deleted: int, is_exact: bool) -> SalvageTally:
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
    # Without an index as a whole, rows of which nothing is left are counted where they should be.
    nameless = sum(counts.refused["vectors", refusal] for refusal in _WERE_ROWS)
    nameless += min(max(0, reading.coverage["vectors"].missing), file.size // _LEAST_ROW)
    nameless = 0 if is_exact else max(0, nameless - refused[notices.ROW_LOST])
    return SalvageTally(
        rows=rows,
        about=rows + refused.total() + nameless,
        is_exact=is_exact,
        refused=dict(sorted(refused.items())),
        weaker=dict(weaker),
        deleted=deleted,
        pages=max(file.pages, file.stated),
        pages_read=counts.pages.total() + counts.overflow + counts.inner + counts.free,
        page_bytes=file.page_size,
    )


#: The loader id in the id of a row.
_LOADER = "substr(rtrim(CAST(id AS TEXT), '0123456789'), 1, length(rtrim(CAST(id AS TEXT), '0123456789')) - 1)"


def _write(db: apsw.Connection) -> None:
    """Write the rows in the order of their numbers; of those that stay only what names them."""
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
            SELECT number, CAST(id AS TEXT), NULL, {_LOADER}, NULL, NULL, NULL, reason
              FROM found WHERE reason IS NOT NULL
             ORDER BY number"""
    )
    db.execute("DROP TABLE found")


# Whether a vector file that SQLite reads to its end is damaged (``docs/salvage.md``, "Read, and wrong all the same").
#
# SQLite checks what ties pages and indexes together. What a row says of itself is held against the other rows: only what
# few rows do, and most do not, is damage. A file whose rows are all odd was written so.


#: The function of libSQL's vector indexes. Their trees are empty, which is no damage (``docs/formats/preview.md``).
_VECTOR_INDEX = "libsql_vector_idx"
#: SQLite is to go on until it has said all: of a vector index it has a complaint for each row.
_COMPLAINTS = 1 << 30
#: Vectors of another model have one norm, too: where so many others are this near, it is no damage. One and the same
#: filling in several vectors makes one norm as well, but a larger one than that of any model.
_OF_ANOTHER_MODEL, _NEAR, _LARGEST = 5, 1e-4, 1e4
#: Of fewer vectors no more than one in ten may be damaged, or their norms say nothing.
_FEW_VECTORS = 20


def doubt(path: Path, work: Path | None = None) -> str | None:
    """Return what contradicts the rows that SQLite reads from a vector file, for a person; None where nothing does.

    Args:
        path: the file, which a survey has read; it is opened as there.
        work: folder for a temporary copy, made only where a log or journal lies beside the file.

    Raises:
        apsw.Error, OSError: it cannot be read, or there is no room.
    """
    try:
        with sqlite.open_readonly(path, work=work) as db:
            said = _complaint(db)
            if said is None:
                with sqlite.open_scratch() as scratch:
                    rows = _Rows(scratch)
                    rows.read(db)
                    said = rows.contradiction()
            return said
    except (*sqlite.CONTENT_ERRORS, apsw.IOError, UnicodeDecodeError) as error:
        return str(error)


def _complaint(db: apsw.Connection) -> str | None:
    """Return the first thing that SQLite's own check says of the file, but for what it cannot know."""
    db.create_scalar_function(_VECTOR_INDEX, lambda *_values: None, deterministic=True, flags=apsw.SQLITE_INNOCUOUS)
    indexes = db.execute("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql LIKE ?", (f"%{_VECTOR_INDEX}%",))
    unknown = tuple(f" index {name}" for (name,) in indexes)
    try:
        said = (str(one) for (one,) in db.execute(f"PRAGMA integrity_check({_COMPLAINTS})"))
        return next((one for one in said if one != "ok" and not (unknown and one.endswith(unknown))), None)
    except apsw.SQLError:
        # There is something in the schema that this SQLite does not know.
        return None


class _Rows:
    """What the rows of a file say of themselves, and what their vectors look like."""

    def __init__(self, scratch: apsw.Connection) -> None:
        self._scratch = scratch
        scratch.execute("CREATE TABLE measured (length INTEGER, norm REAL, repeats INTEGER, is_named INTEGER)")
        #: Rows, those whose metadata name them, and those whose metadata name another row or are damaged.
        self._count = self._named = self._misnamed = 0

    def read(self, db: apsw.Connection) -> None:
        """Take every row of a file."""
        with sqlite.transaction(self._scratch):
            self._scratch.executemany("INSERT INTO measured VALUES (?, ?, ?, ?)", self._measured(db))

    def _measured(self, db: apsw.Connection) -> Iterator[tuple[int, float, int, bool]]:
        for row_id, vector, metadata in _read(db):
            is_named = None if metadata is None else _names(metadata, row_id)
            self._count += 1
            self._named += is_named is True
            self._misnamed += is_named is False
            measures = measure_vector(vector)
            # What is no vector, or not finite, is for the survey to tell.
            if vector is not None and measures is not None:
                yield len(vector), measures.norm, measures.repeats, is_named is True

    def contradiction(self) -> str | None:
        """Return what few rows say and the others do not, None where there is nothing of the kind."""
        if 0 < self._misnamed < self._named:
            return tr(
                "{rows} with metadata that are damaged, or another row's", rows=format_count(self._misnamed, "row")
            )
        unlike = self._unlike()
        return tr("{vectors} unlike the others", vectors=format_count(unlike, "vector")) if unlike else None

    def _unlike(self) -> int:
        """Return how many vectors are not like the others; 0 where they are too many to be damaged."""
        run = self._scratch.execute
        most = "SELECT length FROM measured GROUP BY 1 ORDER BY count(*) DESC LIMIT 1"
        run(f"DELETE FROM measured WHERE length <> ({most})")
        usual = compute_typical_range(self._scratch, "measured")
        if not usual.middle:
            return 0
        # Zeros are written, too: the metadata behind them tell that nothing wrote over them.
        found = run(
            """SELECT count(*) FROM
                 (SELECT norm, repeats, is_named, count(*) OVER (PARTITION BY round(norm / ?)) AS alike FROM measured)
                WHERE CASE WHEN norm = 0 THEN NOT is_named AND ?
                           ELSE repeats > ? OR (abs(norm - ?) > ? AND (alike < ? OR norm > ?)) END""",
            (
                usual.middle * _NEAR,
                2 * self._named > self._count,
                usual.repeats,
                usual.middle,
                usual.furthest,
                _OF_ANOTHER_MODEL,
                _LARGEST,
            ),
        ).get
        whole, unlike = (int(str(one)) for one in (run("SELECT count(*) FROM measured").get, found))
        limit = whole // 2 if whole >= _FEW_VECTORS else max(1, whole // 10)
        return unlike if unlike <= limit else 0


def _read(db: apsw.Connection) -> Iterator[tuple[str | None, bytes | None, str | None]]:
    """Yield the id, the vector and the metadata of every row."""
    columns = {str(row[1]) for row in db.execute(f"PRAGMA table_info('{VECTOR_TABLE.name}')")}
    texts = (
        f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) END" if name in columns else "NULL"
        for name in ("id", "metadata")
    )
    text = make_text_decoder(db)
    rows: Any = db.execute(
        f"SELECT {', '.join(texts)}, CASE typeof(vector) WHEN 'blob' THEN vector END FROM {VECTOR_TABLE.name} NOT INDEXED"
    )
    for row_id, metadata, vector in rows:
        yield text(row_id), vector, text(metadata)


def _names(metadata: str, row_id: str | None) -> bool | None:
    """Tell whether metadata name a row; None where they name none."""
    try:
        found: Any = json_text.loads(metadata)
    except json_text.JsonProblem:
        return False
    said = found.get("id") if isinstance(found, dict) else metadata
    if not isinstance(said, str):
        return None
    # What is half a character there is U+FFFD in the column.
    return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace") == row_id


__all__ = ["TABLE", "SalvageTally", "Salvaged", "doubt", "salvaged"]
