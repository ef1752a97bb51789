"""Salvage damaged index files: recover every row that can be verified (``docs/formats/index.md``, "Salvage").

The file is read page by page into a temporary database (:mod:`.found_rows`). A content is proven by its hash, a unit by
its id, a body by being its unit's slice of the content, a vector by the hash of a proven text and by resembling the
others (units and bodies: :mod:`.units`; the rest: here). What was lost but follows from proven rows is derived.
:mod:`.writing` counts the results and writes a new index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from regraft.disk import file_paths, scratch, sqlite
from regraft.disk.trees import require_free_space
from regraft.formats.cherry_v2.index import schema
from regraft.formats.cherry_v2.index.schema import is_safe_path
from regraft.formats.cherry_v2.salvage import found_rows, writing
from regraft.formats.cherry_v2.salvage.found_rows import (
    CONTRADICTED,
    COPY,
    DAMAGED,
    DELETED,
    IS_KEPT,
    KEPT,
    MADE,
    UNLIKE,
    UNNAMED,
    WEAK,
    Row,
    fetch_rows,
    fetch_value,
    set_fate,
)
from regraft.formats.cherry_v2.salvage.units import UnitProof, join_bodies
from regraft.formats.cherry_v2.salvage.writing import PagesTally, TableTally, Tally, count_results
from regraft.formats.sqlite_pages import PageFile, Reading
from regraft.formats.vector_checks import compute_typical_range
from regraft.language import tr
from regraft.text import decode_utf8

# --- materials and contents ------------------------------------------------------------------------------------------

#: Units that are proven and not remains of deleted ones.
_LIVE_UNITS = f"search_unit WHERE fate IS NULL AND strength < {WEAK}"


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a damaged index from its path and the catalog.

    Attributes:
        base_id: name of the index's folder; None if that is not a base id.
        paths: paths of items by id, from the catalog; the path is None if the item has none.
        dimensions: dimensions of the vectors, from the catalog.
        now_ms: time for new rows, in ms.
    """

    base_id: str | None
    paths: Mapping[str, str | None] | None = None
    dimensions: int | None = None
    now_ms: int = 0


class MaterialProof(msgspec.Struct):
    """Decides which found rows of materials and contents are kept, and which content each material has."""

    db: apsw.Connection
    expected: Expected
    #: Paths that are assigned.
    taken: set[bytes] = msgspec.field(default_factory=set)
    #: Ids of materials whose path is unknown.
    unnamed: list[str] = msgspec.field(default_factory=list)

    # --- materials ---------------------------------------------------------------------------------------------------

    def choose_materials(self) -> None:
        """Keep one of the found rows of each material, and assign its path."""
        rows = fetch_rows(
            self.db,
            f"""SELECT key, seq, strength, rid, path, EXISTS (SELECT 1 FROM {_LIVE_UNITS} AND material = m.key),
                       EXISTS (SELECT 1 FROM {_LIVE_UNITS} AND content = m.content)
                  FROM material m WHERE fate IS NULL ORDER BY key, strength, seq""",
        )
        chosen: list[Row] = []
        for _, group in groupby(rows, key=lambda row: row[0]):
            readings = list(group)
            best = next((one for one in readings if self._is_live(one)), None)
            for one in readings:
                if one is not best:
                    # Without proof, a row was deleted, or only its name is missing.
                    unproven = DELETED if one[2] >= WEAK else UNNAMED
                    set_fate(self.db, "material", one[1], unproven if best is None else COPY)
            if best is not None:
                chosen.append(best)
        # The most reliable rows get their path first.
        for key, seq, _, rid, path, *_ in sorted(chosen, key=lambda row: (row[2], row[1])):
            self.db.execute(
                "UPDATE material SET fate = ?, path = ? WHERE seq = ?", (KEPT, self._assign_path(key, path, rid), seq)
            )

    def _is_live(self, row: Row) -> bool:
        """Whether a found row belongs to a material with this id that was not deleted.

        ``row`` has the columns that :meth:`choose_materials` selects.
        """
        key, _, strength, rid, _, is_named, is_anothers = row
        items = self.expected.paths
        is_item = items is not None and decode_utf8(key) in items
        if strength == 0:
            indexed = self._index_keys(found_rows.MATERIAL_KEY, rid)
            return bool(is_named) or is_item or key in indexed or not (indexed or is_anothers)
        return (strength < WEAK or bool(is_named)) and (items is None or is_item)

    def _assign_path(self, key: bytes, path: bytes | None, rowid: int | None) -> bytes:
        """Assign a path to a material: that of its item, else that of its row unless an index has another one.

        If the path is unknown or taken, the material's id is used, as for folders in earlier versions.

        Args:
            key: id of the material.
            path: path in the material's row, or None.
            rowid: row id of that row, or None.
        """
        stated = (self.expected.paths or {}).get(decode_utf8(key))
        # If pages were mixed up, this index contains keys of another one.
        keys = self._index_keys(found_rows.MATERIAL_PATH, rowid)
        indexed = [one for one in keys if path == key or (one != key and not found_rows.is_hash(one))]
        found: bytes | None = None
        if stated is not None and is_safe_path(stated):
            found = stated.encode("utf-8", "replace")
        elif path is None or not _is_path(path):
            found = indexed[0] if len(indexed) == 1 and _is_path(indexed[0]) else None
        elif not indexed or path in indexed:
            found = path
        if found is None or found in self.taken:
            found = key
            self.unnamed.append(decode_utf8(key))
        self.taken.add(found)
        return found

    def _index_keys(self, name: str, rowid: int | None) -> list[bytes]:
        """Return the keys that an index of the damaged file, given by name, has for a row id; none for None."""
        found = fetch_rows(self.db, "SELECT key FROM index_key WHERE name = ? AND rid = ?", (name, rowid))
        return [bytes(key) for (key,) in found if isinstance(key, bytes)]

    def derive_materials(self) -> None:
        """Add materials whose row is lost, but which proven units refer to."""
        lost = fetch_rows(
            self.db,
            f"""SELECT material, min(created), max(created) FROM {_LIVE_UNITS}
                   AND material NOT IN (SELECT key FROM material WHERE fate = ?) GROUP BY material""",
            (KEPT,),
        )
        for key, created, updated in lost:
            items = self.expected.paths
            if items is not None and decode_utf8(key) not in items:
                continue
            damaged = fetch_rows(
                self.db,
                "SELECT rid, created, updated FROM material WHERE key = ? AND fate = ? AND strength < ?",
                (key, DAMAGED, WEAK),
            )
            known = fetch_rows(
                self.db, "SELECT rid FROM index_key WHERE name = ? AND key = ?", (found_rows.MATERIAL_KEY, key)
            )
            rid = known[0][0] if len(known) == 1 else damaged[0][0] if damaged else None
            self.db.execute(
                "INSERT INTO material VALUES (NULL, 0, ?, ?, ?, ?, NULL, ?, ?)",
                (rid, MADE, key, self._assign_path(key, None, rid), created, updated),
            )

    # --- texts -------------------------------------------------------------------------------------------------------

    def choose_contents(self) -> None:
        """Keep one found row of each content. A row that no tree of the file reaches must be referred to."""
        named = f"""key IN (SELECT content FROM material WHERE fate IN ('{KEPT}', '{MADE}'))
                 OR key IN (SELECT content FROM {_LIVE_UNITS})"""
        self.db.execute(
            f"""UPDATE content SET fate = '{KEPT}' WHERE seq IN (
                  SELECT seq FROM (SELECT seq, row_number() OVER (PARTITION BY key ORDER BY strength, seq) AS rank
                                     FROM content WHERE fate IS NULL AND (strength = 0 OR {named}))
                   WHERE rank = 1)"""
        )
        _reject_undecided(self.db, "content")

    def join_contents(self) -> None:
        """Derive lost contents by joining the bodies of their units, if the result has the hash of the content."""
        lost = fetch_rows(
            self.db,
            f"""SELECT content, min(created) FROM {_LIVE_UNITS}
                   AND content NOT IN (SELECT key FROM content WHERE fate = ?) GROUP BY content""",
            (KEPT,),
        )
        for key, created in lost:
            pieces = fetch_rows(
                self.db,
                f"""SELECT u.start, u.stop, t.text FROM search_unit u JOIN search_text t ON t.target = u.key
                     WHERE u.content = ? AND u.fate IS NULL AND u.strength < {WEAK} AND t.fate IS NULL
                     ORDER BY u.start, u.stop""",
                (key,),
            )
            text = join_bodies(key, pieces)
            if text is not None:
                self.db.execute("INSERT INTO content VALUES (NULL, 0, NULL, ?, ?, ?, ?)", (MADE, key, text, created))

    def assign_contents(self) -> None:
        """Give every material whose content is unknown or lost a content that exists, if only one is possible."""
        there = f"SELECT key FROM content WHERE fate IN ('{KEPT}', '{MADE}')"
        lacking = fetch_rows(
            self.db,
            f"""SELECT seq, key, rid, content FROM material WHERE fate IN ('{KEPT}', '{MADE}')
                   AND (fate = '{MADE}' OR content IS NOT NULL) AND (content IS NULL OR content NOT IN ({there}))""",
        )
        for seq, key, rid, content in lacking:
            indexed = [
                one for one in self._index_keys(found_rows.MATERIAL_CONTENT, rid) if is_content_kept(self.db, one)
            ]
            units = fetch_rows(
                self.db, f"SELECT DISTINCT content FROM {_LIVE_UNITS} AND material = ? AND content IN ({there})", (key,)
            )
            is_stated = content is not None and content in self._index_keys(found_rows.MATERIAL_CONTENT, rid)
            choices = indexed or [one for (one,) in units if not is_stated]
            self.db.execute(
                "UPDATE material SET content = ? WHERE seq = ?", (choices[0] if len(choices) == 1 else None, seq)
            )

    def drop_unreferenced(self) -> None:
        """Mark materials as deleted if nothing refers to them and no tree of the file reaches their row."""
        if self.expected.paths is not None:
            return
        self.db.execute(
            f"""UPDATE material SET fate = '{DELETED}' WHERE fate = '{KEPT}' AND strength > 0
                   AND NOT EXISTS (SELECT 1 FROM {_LIVE_UNITS} AND search_unit.material = material.key
                                      AND content IN (SELECT key FROM content WHERE fate IN ('{KEPT}', '{MADE}')))
                   AND NOT EXISTS (SELECT 1 FROM index_key k WHERE k.name = ? AND k.key = material.key)""",
            (found_rows.MATERIAL_KEY,),
        )


def is_content_kept(db: apsw.Connection, content: bytes) -> bool:
    """Whether a content, given its hash, will be in the new index."""
    query = "SELECT 1 FROM content WHERE key = ? AND fate IN (?, ?)"
    return db.execute(query, (content, KEPT, MADE)).get is not None


def _is_path(raw: bytes) -> bool:
    """Whether the bytes of a path are valid UTF-8 and a path that the layout allows."""
    try:
        return is_safe_path(raw.decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError:
        return False


def _reject_undecided(db: apsw.Connection, table: str) -> None:
    """Reject the undecided rows of a table, and record why: copy of a kept row, deleted, or without a reference."""
    db.execute(
        f"""UPDATE {table} SET fate = CASE WHEN key IN (SELECT key FROM {table} WHERE fate = '{KEPT}') THEN '{COPY}'
                                          WHEN strength >= {WEAK} THEN '{DELETED}' ELSE '{UNNAMED}' END
             WHERE fate IS NULL"""
    )


def decide_remaining(db: apsw.Connection) -> None:
    """Reject the undecided rows of all tables."""
    for table in found_rows.KEY_OF:
        _reject_undecided(db, table)


# --- vectors ---------------------------------------------------------------------------------------------------------

#: Hashes of kept and derived bodies: their vectors are accepted from any page.
_NAMED = f"SELECT hash FROM search_text WHERE fate IN ('{KEPT}', '{MADE}')"
#: Hashes of proven texts whose unit or content is lost: their vectors are useful when they are indexed again.
_KNOWN = f"SELECT hash FROM search_text WHERE fate IS NULL AND strength < {WEAK}"


class _Vector(NamedTuple):
    """A found row of a vector: whether an index has its row id, and whether a live body or an index refers to it."""

    key: bytes
    seq: int
    strength: int
    is_indexed: int
    is_live: int


class VectorProof(msgspec.Struct, frozen=True):
    """Decides which found rows of vectors are kept."""

    db: apsw.Connection
    dimensions: int | None

    def choose(self) -> None:
        """Decide about every found row of a vector."""
        self._refuse_deviating()
        # Decisions are stored separately until all rows have been read.
        self.db.execute("CREATE TEMP TABLE settled (seq INTEGER PRIMARY KEY, fate)")
        rows: Iterator[Any] = self.db.execute(
            f"""SELECT key, seq, strength, is_indexed,
                       key IN ({_NAMED}) OR ((key IN ({_KNOWN}) OR is_indexed) AND strength < {WEAK})
                  FROM (SELECT key, seq, strength, EXISTS (SELECT 1 FROM index_key k
                                           WHERE k.name = ? AND k.key = e.key AND k.rid = e.rid) AS is_indexed
                          FROM embedding e WHERE fate IS NULL)
                 ORDER BY key, strength, seq""",
            (found_rows.VECTOR_KEY,),
        )
        for _, group in groupby(rows, key=lambda row: row[0]):
            for seq, fate in self._decide_fates([_Vector(*row) for row in group]):
                self.db.execute("INSERT INTO temp.settled VALUES (?, ?)", (seq, fate))
        self.db.execute("UPDATE embedding SET fate = s.fate FROM temp.settled s WHERE s.seq = embedding.seq")
        self.db.execute("DROP TABLE temp.settled")

    def _refuse_deviating(self) -> None:
        """Refuse vectors that differ from the others in length, norm or number of repeated values."""
        stated = None if self.dimensions is None else 4 * self.dimensions
        # If only pages with possibly deleted rows are left, their vectors determine what is typical.
        typical = (
            f"fate IS NULL AND strength <= max({WEAK - 1}, (SELECT min(strength) FROM embedding WHERE fate IS NULL))"
        )
        length = fetch_value(
            self.db,
            f"""SELECT length(vector) FROM embedding WHERE {typical}
                 GROUP BY 1 ORDER BY length(vector) IS ? DESC, count(*) DESC LIMIT 1""",
            (stated,),
        )
        self.db.execute(
            "UPDATE embedding SET fate = ? WHERE fate IS NULL AND length(vector) IS NOT ?", (UNLIKE, length)
        )
        self.db.execute(f"CREATE TEMP TABLE measured AS SELECT seq, norm, repeats FROM embedding WHERE {typical}")
        usual = compute_typical_range(self.db, "temp.measured")
        self.db.execute("DROP TABLE temp.measured")
        # A vector of zeros is useless: the application never finds it.
        self.db.execute(
            """UPDATE embedding SET fate = ?
                WHERE fate IS NULL AND NOT (norm > 0 AND abs(norm - ?) <= ? AND repeats <= ?)""",
            (UNLIKE, usual.middle, usual.furthest, usual.repeats),
        )

    def _decide_fates(self, readings: list[_Vector]) -> list[tuple[int, str]]:
        """Return (number of the row, fate) for each found row of one vector; the rows are sorted by reliability."""
        live = [one for one in readings if one.is_live]
        chosen = found_rows.choose_reading(live, agree=self._agree, is_indexed=lambda one: bool(one.is_indexed))
        fates = []
        for one in readings:
            if one is chosen:
                fate = KEPT
            elif one.strength >= WEAK:
                fate = DELETED
            elif chosen is None:
                fate = CONTRADICTED if one in live else UNNAMED
            else:
                fate = COPY if self._agree([one, chosen]) else CONTRADICTED
            fates.append((one.seq, fate))
        return fates

    def _agree(self, readings: Sequence[_Vector]) -> bool:
        """Whether all found rows have the same vector."""
        if len(readings) < 2:
            return True
        marks = ", ".join("?" * len(readings))
        query = f"SELECT count(DISTINCT vector) FROM embedding WHERE seq IN ({marks})"
        return bool(fetch_value(self.db, query, [one.seq for one in readings]) == 1)


# --- times -----------------------------------------------------------------------------------------------------------
#
# Nothing proves a time, but a unit, its body, its content and their vectors were written together and have one time.

#: Maximum distance of a time from the median, in ms: ten years.
_MAX_DISTANCE = 10 * 366 * 86_400_000
#: For each table, queries for the times of rows that were written together with its row.
_TIME_SOURCES = {
    "content": ("SELECT min(u.created) FROM search_unit u WHERE u.content = t.key AND u.fate = 'kept'",),
    "search_unit": (
        "SELECT b.created FROM search_text b WHERE b.target = t.key AND b.fate = 'kept'",
        "SELECT c.created FROM content c WHERE c.key = t.content AND c.fate = 'kept'",
    ),
    "search_text": ("SELECT u.created FROM search_unit u WHERE u.key = t.target AND u.fate IN ('kept', 'made')",),
    "embedding": ("SELECT min(b.created) FROM search_text b WHERE b.hash = t.key AND b.fate IN ('kept', 'made')",),
    "material": ("SELECT min(u.created) FROM search_unit u WHERE u.material = t.key AND u.fate IN ('kept', 'made')",),
}


def repair_times(db: apsw.Connection, now_ms: int) -> None:
    """Give every kept row a time: its own, else that of rows written with it, else the median of the file.

    ``now_ms`` is used if no row has a time.
    """
    db.execute(
        "CREATE TEMP TABLE times AS "
        + " UNION ALL ".join(
            f"SELECT created AS time FROM {table} WHERE {IS_KEPT} AND created > 0" for table in _TIME_SOURCES
        )
    )
    middle = fetch_value(
        db, "SELECT time FROM temp.times ORDER BY 1 LIMIT 1 OFFSET (SELECT count(*) FROM temp.times) / 2"
    )
    db.execute("DROP TABLE temp.times")
    middle = now_ms if middle is None else middle
    for table in _TIME_SOURCES:
        for column in ("created", "updated") if table == "material" else ("created",):
            db.execute(
                f"UPDATE {table} SET {column} = NULL WHERE {IS_KEPT} AND abs({column} - ?) > ?",
                (middle, _MAX_DISTANCE),
            )
    for table, sources in _TIME_SOURCES.items():
        others = ", ".join(f"({source})" for source in sources)
        db.execute(
            f"UPDATE {table} AS t SET created = coalesce({others}, ?) WHERE t.{IS_KEPT} AND t.created IS NULL",
            (middle,),
        )
    db.execute(f"UPDATE material SET updated = created WHERE {IS_KEPT} AND updated IS NULL")


# --- the index -------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """A damaged index cannot be salvaged. The message gives the reason."""


class Salvaged(msgspec.Struct, frozen=True, kw_only=True):
    """The proven rows of an index file, in a temporary database, with their totals."""

    proven: Path
    base_id: str
    tally: Tally

    def write(self, new: Path, now_ms: int) -> None:
        """Write the proven rows to a new index of the current version.

        Raises:
            VerificationFailed: the new file differs from what was proven.
            apsw.Error, OSError: the file cannot be written.
        """
        writing.write_index(self.proven, new, self.base_id, now_ms)


@contextmanager
def salvage_index(path: Path, expected: Expected) -> Iterator[Salvaged]:
    """Read a damaged index page by page; the result exists while the context is active.

    Args:
        path: the file. It is only read.
        expected: facts from the catalog and the path.

    Raises:
        Refused: nothing can be salvaged.
        WorkFolderTooSmall: there is not enough room for the rows.
        apsw.Error, OSError: the file cannot be read, or the temporary files cannot be written.
    """
    with scratch.temporary_folder() as folder:
        require_free_space(folder, 2 * file_paths.stat(path).st_size)
        proven = folder / "proven.sqlite"
        try:
            file = PageFile(path)
        except ValueError as error:
            raise Refused(tr("is not a SQLite file in any part")) from error
        with file, sqlite.open_writable(proven, create=True) as db, sqlite.transaction(db):
            tally, base_id = _prove_rows(db, Reading(file, (*found_rows.TABLES, *found_rows.INDEXES)), expected)
        yield Salvaged(proven=proven, base_id=base_id, tally=tally)


def _prove_rows(db: apsw.Connection, reading: Reading, expected: Expected) -> tuple[Tally, str]:
    """Load the rows of a damaged file into ``db`` and decide about each; return the totals and the base id."""
    found_rows.load_rows(db, reading)
    materials = MaterialProof(db, expected)
    materials.choose_materials()
    materials.derive_materials()
    materials.choose_contents()
    materials.join_contents()
    materials.assign_contents()
    materials.drop_unreferenced()
    UnitProof(db).choose()
    VectorProof(db, expected.dimensions).choose()
    decide_remaining(db)
    repair_times(db, expected.now_ms)
    writing.number_bodies(db)
    base_id = _determine_identity(db, expected)
    tally = count_results(db, reading, materials.unnamed)
    if not any(table.in_new_file for table in tally.rows.values()):
        raise Refused(tr("none of its remaining rows can be verified"))
    return tally, base_id


def _determine_identity(db: apsw.Connection, expected: Expected) -> str:
    """Return the base id, and store the times of the identity row in the temporary table ``identity``.

    Raises:
        Refused: the base is unknown, or the index has a later version.
    """
    db.execute("CREATE TABLE identity (created, updated)")
    found = found_rows.fetch_rows(
        db,
        """SELECT version, base, created, updated FROM meta WHERE typeof(created) = 'integer'
              AND typeof(updated) = 'integer' AND typeof(version) = 'integer' ORDER BY strength, seq LIMIT 1""",
    )
    stated = None
    if found:
        version, base, created, updated = found[0]
        if schema.SCHEMA_VERSION < version < _MAX_VERSION:
            raise Refused(tr("it has version {version}, which this regraft does not support", version=version))
        stated = decode_utf8(bytes(base)) if isinstance(base, bytes) else None
    else:
        created, updated = db.execute("SELECT min(created), max(updated) FROM material WHERE fate = 'kept'").fetchall()[
            0
        ]
    db.execute("INSERT INTO identity VALUES (?, ?)", (created, updated))
    base_id = expected.base_id or stated
    if not base_id:
        raise Refused(tr("the base that it belongs to is unknown"))
    return base_id


#: A higher version number is damage.
_MAX_VERSION = 1000


__all__ = ["Expected", "PagesTally", "Refused", "Salvaged", "TableTally", "Tally", "salvage_index"]
