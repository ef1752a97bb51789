"""Repair the rows of an index file in temporary tables, and write the result back.

The tables hold ids, hashes and numbers; they hold no vectors, and only texts that change. A file of any size is
repaired in little memory, and a dry run counts exactly what a real run writes. A matching hash is proof of a text
(``docs/findings.md``; ``docs/formats/index.md``, "Identities").
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, starmap
from operator import attrgetter
from typing import Any, NamedTuple

import apsw
import msgspec

from checks.audit.findings import RowNumbers
from checks.cherry_v2 import detect
from checks.cherry_v2 import findings as v2
from regraft.language import tr
from regraft.text import decode_text, decode_utf16
from repair.cherry_v2.indexing import find_lost_units

#: The columns have no type, so that damaged values are not converted.
_TABLES = (
    # Contents that do not match their hash; state: restored, rekeyed or left.
    "m_content (rid INTEGER PRIMARY KEY, key, own_key TEXT, state TEXT DEFAULT 'left', new_key TEXT, text TEXT)",
    # Every key that a content will have; is_whole: units can be cut from it.
    "m_known (rid INTEGER PRIMARY KEY, key, is_whole INTEGER)",
    "m_material (rid INTEGER PRIMARY KEY, id, content, new_content)",
    """m_unit (rid INTEGER PRIMARY KEY, id, material, content, type, idx, char_start, char_end, was_content, was_idx,
         follows INTEGER, misplaced INTEGER DEFAULT 0, touched INTEGER DEFAULT 0, new_id TEXT)""",
    """m_body (rid INTEGER PRIMARY KEY, id, type, target, kind, hash, number, unit INTEGER, bad INTEGER DEFAULT 0,
         is_new INTEGER DEFAULT 0, linked INTEGER DEFAULT 0, text TEXT, new_hash TEXT, new_target TEXT,
         new_id TEXT, new_number INTEGER)""",
    "m_vector (rid INTEGER PRIMARY KEY, flaw TEXT, bytes INTEGER)",
)
UNIT_KEY = " || ' ' || ".join(("material", "content", "type", "idx", "char_start", "char_end"))
#: SQL for the id that follows from a unit's fields; NULL if one of them is NULL.
DERIVED = f"sha256_hex(CAST({UNIT_KEY} AS BLOB))"
_FILL = (
    "INSERT INTO temp.m_material (rid, id, content) SELECT rowid, material_id, current_content_hash FROM main.material",
    """INSERT INTO temp.m_unit (rid, id, material, content, type, idx, char_start, char_end, was_content, was_idx)
       SELECT rowid, unit_id, material_id, content_hash, unit_type, unit_index, char_start, char_end, content_hash,
              unit_index FROM main.search_unit""",
    f"UPDATE temp.m_unit SET follows = {DERIVED} IS id",
    """INSERT INTO temp.m_body (rid, id, type, target, kind, hash, number)
       SELECT rowid, search_text_id, target_type, target_id, kind, embedding_text_hash, fts_rowid
         FROM main.search_text""",
    "CREATE INDEX temp.m_material_id ON m_material (id)",
    "CREATE INDEX temp.m_unit_id ON m_unit (id)",
    "CREATE INDEX temp.m_unit_content ON m_unit (content)",
    "CREATE INDEX temp.m_unit_material ON m_unit (material)",
    """UPDATE temp.m_body SET unit = (SELECT u.rid FROM temp.m_unit u WHERE u.id = m_body.target)
        WHERE type = 'search_unit' AND kind = 'body'""",
    "CREATE INDEX temp.m_body_unit ON m_body (unit)",
)


class RowRepair(msgspec.Struct):
    """The repair of one open index file: which findings to repair, and how many rows were changed or left so far."""

    db: apsw.Connection
    #: Findings to repair.
    wanted: frozenset[str]
    #: Findings of the audit.
    found: frozenset[str]
    #: Number of changed rows by action.
    done: Counter[str] = msgspec.field(default_factory=Counter)
    #: Number of rows that cannot be repaired, by finding and reason.
    left: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    #: The affected rows of each finding, if the audit recorded them.
    rows: Mapping[str, Sequence[RowNumbers]] = msgspec.field(default_factory=dict)

    def wants(self, name: str) -> bool:
        """Whether the audit found this finding and it is to be repaired."""
        return name in self.wanted and name in self.found

    def detected(self, name: str) -> Iterator[int] | None:
        """Return the row numbers that the audit recorded for a finding; None: all rows have to be searched."""
        return chain.from_iterable(self.rows[name]) if name in self.rows else None

    def change(self, action: str, sql: str) -> None:
        """Execute an SQL statement on the temporary tables, and count the changed rows under an action."""
        self.db.execute(sql)
        self.done[action] += self.db.changes()

    def leave(self, finding: str, reason: str, count: int = 1) -> None:
        """Count rows whose finding cannot be repaired, by reason."""
        if count and finding in self.wanted:
            self.left[finding, reason] += count

    def count(self, sql: str) -> int:
        """Return the number that an SQL query gives; 0 for NULL."""
        return int(self.db.execute(sql).get or 0)


def sha256_hex(raw: bytes) -> str:
    """Return the hash of a text, given as UTF-8, in the form in which an index stores it."""
    return hashlib.sha256(raw).hexdigest()


def create_tables(db: apsw.Connection) -> None:
    """Copy ids, hashes and numbers of the rows of an open index file into new temporary tables.

    Raises:
        apsw.Error: the file is damaged, or there is no room for temporary tables.
    """
    functions: dict[str, Callable[..., Any]] = {
        "sha256_hex": lambda raw: sha256_hex(raw) if isinstance(raw, bytes) else None,
        "is_text": lambda raw: decode_text(raw) is not None,
    }
    for name, function in functions.items():
        db.create_scalar_function(name, function, 1, deterministic=True)
    for table in _TABLES:
        db.execute(f"DROP TABLE IF EXISTS temp.{table.partition(' ')[0]}")
        db.execute(f"CREATE TEMP TABLE {table}")
    for statement in _FILL:
        db.execute(statement)


#: Ids and numbers are unique, so changed rows first get temporary ones.
_WRITE = (
    "PRAGMA defer_foreign_keys = ON",
    "UPDATE main.content SET text = m.text FROM temp.m_content m WHERE m.rid = content.rowid AND m.state = 'restored'",
    """INSERT OR IGNORE INTO main.content (content_hash, text, created_at)
       SELECT m.new_key, ifnull(m.text, CAST(c.text AS TEXT)), c.created_at
         FROM temp.m_content m JOIN main.content c ON c.rowid = m.rid WHERE m.state = 'rekeyed' ORDER BY m.rid""",
    """UPDATE main.search_unit
          SET unit_id = 'regraft ' || search_unit.rowid, unit_index = search_unit.rowid + 1099511627776
         FROM temp.m_unit m WHERE m.rid = search_unit.rowid AND (m.new_id IS NOT NULL OR m.touched)""",
    """UPDATE main.search_unit
          SET unit_id = ifnull(m.new_id, m.id), unit_index = m.idx, char_start = m.char_start, char_end = m.char_end
         FROM temp.m_unit m WHERE m.rid = search_unit.rowid AND (m.new_id IS NOT NULL OR m.touched)""",
    # An unchanged dangling reference must not be written: SQLite would refuse it as new.
    """UPDATE main.search_unit SET content_hash = m.content
         FROM temp.m_unit m WHERE m.rid = search_unit.rowid AND m.content IS NOT m.was_content""",
    """UPDATE main.material SET current_content_hash = m.new_content
         FROM temp.m_material m WHERE m.rid = material.rowid AND m.new_content IS NOT NULL""",
    """DELETE FROM main.content WHERE rowid IN (SELECT rid FROM temp.m_content WHERE state = 'rekeyed')
          AND NOT EXISTS (SELECT 1 FROM main.search_unit u WHERE u.content_hash = content.content_hash)
          AND NOT EXISTS (SELECT 1 FROM main.material m WHERE m.current_content_hash = content.content_hash)""",
    """UPDATE main.search_text
          SET search_text_id = 'regraft ' || search_text.rowid, target_id = 'regraft ' || search_text.rowid
         FROM temp.m_body m WHERE m.rid = search_text.rowid AND NOT m.is_new
          AND (m.new_id IS NOT NULL OR m.new_target IS NOT NULL OR m.linked)""",
    """UPDATE main.search_text SET target_type = 'search_unit', kind = 'body' FROM temp.m_body m
        WHERE m.rid = search_text.rowid AND m.linked""",
    """UPDATE main.search_text
          SET search_text_id = ifnull(m.new_id, m.id), target_id = ifnull(m.new_target, m.target)
         FROM temp.m_body m WHERE m.rid = search_text.rowid AND NOT m.is_new
          AND (m.new_id IS NOT NULL OR m.new_target IS NOT NULL OR m.linked)""",
    """UPDATE main.search_text SET fts_rowid = m.new_number FROM temp.m_body m
        WHERE m.rid = search_text.rowid AND NOT m.is_new AND m.new_number IS NOT NULL""",
    """UPDATE main.search_text SET embedding_text_hash = m.new_hash FROM temp.m_body m
        WHERE m.rid = search_text.rowid AND NOT m.is_new AND m.new_hash IS NOT NULL""",
    """UPDATE main.search_text SET text = m.text FROM temp.m_body m
        WHERE m.rid = search_text.rowid AND NOT m.is_new AND m.text IS NOT NULL""",
    """INSERT INTO main.search_text (search_text_id, target_type, target_id, kind, text, embedding_text_hash,
                                     fts_rowid, created_at)
       SELECT m.new_id, 'search_unit', m.new_target, 'body', m.text, m.new_hash, m.new_number, u.created_at
         FROM temp.m_body m JOIN main.search_unit u ON u.rowid = m.unit WHERE m.is_new""",
    "DELETE FROM main.embedding WHERE rowid IN (SELECT rid FROM temp.m_vector)",
)


def write_back(db: apsw.Connection) -> None:
    """Write the changed rows from the temporary tables to the file, in the caller's transaction.

    Raises:
        apsw.Error: the file cannot be written.
    """
    # A partly repaired row can still violate another check of the layout.
    db.execute("PRAGMA ignore_check_constraints = ON")
    try:
        for statement in _WRITE:
            db.execute(statement)
    finally:
        db.execute("PRAGMA ignore_check_constraints = OFF")


# --- columns that follow from others: links, numbers, ids -----------------------------------------------------------


_UNIT_WITHOUT_BODY = "NOT EXISTS (SELECT 1 FROM temp.m_body b WHERE b.unit = m_unit.rid)"
#: SQL condition for a unit whose material, content or body is unknown. Its id may still prove them.
_IN_DOUBT = f"""({_UNIT_WITHOUT_BODY} OR NOT EXISTS (SELECT 1 FROM temp.m_material m WHERE m.id = m_unit.material
       AND (m.content IS NULL OR ifnull(m.new_content, m.content) IS m_unit.content))
   OR NOT EXISTS (SELECT 1 FROM temp.m_known k WHERE k.key = m_unit.content))"""
_BODY_KEY = "CAST({} || ' ' || {} || ' ' || kind AS BLOB)"


def link_bodies(job: RowRepair) -> None:
    """Link bodies without a unit to units without a body.

    A body belongs to a unit if it names an id of the unit, or if its own id is derived from one. Such ids are the
    stored one, and those that follow from the unit's fields with its former or its new number.
    """
    if not job.wants(v2.NO_BODY):
        return
    db = job.db
    for table in ("m_lost", "m_stray"):
        db.execute(f"DROP TABLE IF EXISTS temp.{table}")
    was_derived = DERIVED.replace("idx", "was_idx")
    db.execute(
        f"CREATE TEMP TABLE m_lost AS SELECT rid, id, {was_derived} AS was_derived, {DERIVED} AS derived"
        f" FROM temp.m_unit WHERE {_UNIT_WITHOUT_BODY}"
    )
    db.execute("CREATE TEMP TABLE m_stray AS SELECT rid, id, target FROM temp.m_body WHERE unit IS NULL")
    db.execute("CREATE INDEX temp.m_stray_id ON m_stray (id)")
    db.execute("CREATE INDEX temp.m_stray_target ON m_stray (target)")
    body_id = "sha256_hex(CAST('search_unit ' || {} || ' body' AS BLOB))"
    keys = ("l.id", "l.was_derived", "l.derived")
    for proof in (*(f"s.target = {key}" for key in keys), *(f"s.id = {body_id.format(key)}" for key in keys)):
        pairs = f"""SELECT min(s.rid) AS body, l.rid AS unit FROM temp.m_lost l CROSS JOIN temp.m_stray s ON {proof}
             WHERE NOT EXISTS (SELECT 1 FROM temp.m_body b WHERE b.unit = l.rid) GROUP BY l.rid"""
        job.change(
            "link-bodies",
            f"""UPDATE temp.m_body SET unit = p.unit, type = 'search_unit', kind = 'body', linked = TRUE
                  FROM ({pairs}) p WHERE p.body = m_body.rid AND m_body.unit IS NULL""",
        )


def link_contents(job: RowRepair) -> None:
    """Give materials without a text the text that all their units refer to."""
    if not job.wants(v2.NO_CONTENT):
        return
    known = "SELECT 1 FROM temp.m_known k WHERE k.key = ifnull(m_material.new_content, m_material.content)"
    units = """SELECT {} FROM temp.m_unit u LEFT JOIN temp.m_known k ON k.key = u.content
         WHERE u.material = m_material.id"""
    bare = f"NOT EXISTS ({known}) AND EXISTS ({units.format(1)})"
    agreed = units.format("count(DISTINCT u.content) = 1 AND count(*) = count(k.key)")
    job.change(
        "link-contents",
        f"UPDATE temp.m_material SET new_content = ({units.format('min(u.content)')}) WHERE {bare} AND ({agreed})",
    )
    left = job.count(f"SELECT count(*) FROM temp.m_material WHERE {bare}")
    job.leave(v2.NO_CONTENT, tr("its units refer to different texts, or to one that does not exist"), left)


def order_units(job: RowRepair) -> None:
    """Number the units of each material with gaps from 0, in their order.

    That is the order of their numbers. If an id shows that a number may be wrong, it is the order of their offsets, as
    far as these are repaired.
    """
    if not job.wants(v2.UNIT_GAP):
        return
    db = job.db
    db.execute("DROP TABLE IF EXISTS temp.m_gap")
    db.execute(
        "CREATE TEMP TABLE m_gap AS SELECT material,"
        " min(follows) = 0 AND count(DISTINCT content) = 1 AND min(typeof(char_start) = 'integer') AS by_place,"
        " min(typeof(was_idx) = 'integer') AS by_number FROM temp.m_unit GROUP BY material"
        " HAVING min(was_idx) IS NOT 0 OR max(was_idx) IS NOT count(*) - 1 OR count(DISTINCT was_idx) <> count(*)"
    )
    # The id of a unit whose material is missing may still prove it.
    db.execute(
        "UPDATE temp.m_gap SET by_place = FALSE, by_number = FALSE"
        " WHERE NOT EXISTS (SELECT 1 FROM temp.m_material m WHERE m.id = m_gap.material)"
    )
    ordered = (
        "SELECT u.rid, row_number() OVER (PARTITION BY u.material ORDER BY CASE WHEN g.by_place THEN u.char_start"
        " ELSE u.was_idx END, u.was_idx, u.rid) - 1 AS number FROM temp.m_gap g CROSS JOIN temp.m_unit u"
        " ON u.material = g.material WHERE g.by_place OR g.by_number"
    )
    db.execute(
        f"UPDATE temp.m_unit SET idx = o.number, touched = TRUE FROM ({ordered}) o"
        " WHERE o.rid = m_unit.rid AND o.number IS NOT m_unit.idx"
    )


def number_units(job: RowRepair) -> None:
    """Count the units with a new number, and record materials whose units keep their numbers.

    A missing unit may be proven by its body, but only with its old number. So the units of its material keep their
    numbers until that unit is written again.
    """
    if not job.wants(v2.UNIT_GAP):
        return
    order_units(job)
    waiting = list(_materials_of_lost_units(job))
    if waiting:
        of_one = [(material,) for material in waiting]
        job.db.executemany(
            """UPDATE temp.m_unit SET idx = was_idx, touched = content IS NOT was_content OR EXISTS (
                 SELECT 1 FROM main.search_unit s WHERE s.rowid = m_unit.rid
                    AND (s.char_start, s.char_end) IS NOT (m_unit.char_start, m_unit.char_end)) WHERE material = ?""",
            of_one,
        )
        job.db.executemany("DELETE FROM temp.m_gap WHERE material = ?", of_one)
        reason = tr("bodies prove units that are missing in between: first run regraft repair --only body.orphan")
        job.leave(v2.UNIT_GAP, reason, len(waiting))
    job.done["number-units"] += job.count("SELECT count(*) FROM temp.m_unit WHERE idx IS NOT was_idx")
    left = job.count("SELECT count(*) FROM temp.m_gap WHERE NOT (by_place OR by_number)")
    job.leave(
        v2.UNIT_GAP,
        tr("neither the numbers nor the offsets of its units show their order, or the material is missing"),
        left,
    )


def _materials_of_lost_units(job: RowRepair) -> Iterator[str]:
    """Yield the ids of materials with gaps whose missing units are proven by bodies."""
    if v2.BODY_ORPHAN not in job.found:
        return
    of_material: dict[str, set[str]] = {}
    for unit in find_lost_units(job.db)[0]:
        of_material.setdefault(unit.material, set()).add(unit.unit)
    stray = "SELECT 1 FROM temp.m_body WHERE unit IS NULL AND target = ?"
    for material, units in of_material.items():
        has_gap = job.db.execute("SELECT 1 FROM temp.m_gap WHERE material = ?", (material,)).get
        if has_gap and any(job.db.execute(stray, (unit,)).get for unit in units):
            yield material


def rekey_units(job: RowRepair) -> None:
    """Give units the ids that follow from their material, text, number and offsets."""
    wanted = job.wants(v2.UNIT_ID)
    job.change(
        "rekey-units",
        f"UPDATE temp.m_unit SET new_id = {DERIVED} WHERE {DERIVED} IS NOT id AND {DERIVED} IS NOT NULL"
        f" AND ((touched AND NOT {_UNIT_WITHOUT_BODY}) OR ({int(wanted)} AND NOT {_IN_DOUBT}))",
    )
    if wanted or job.count("SELECT max(touched) FROM temp.m_unit"):
        left = job.count(f"SELECT count(*) FROM temp.m_unit WHERE new_id IS NULL AND {DERIVED} IS NOT id")
        job.leave(
            v2.UNIT_ID,
            tr("its id is kept, because its material, content or body is unknown and the id may show which it was"),
            left,
        )


def rekey_bodies(job: RowRepair) -> None:
    """Update the unit ids that bodies name, and give bodies the ids that follow from them."""
    db = job.db
    db.execute(
        "UPDATE temp.m_body SET new_target = u.name FROM (SELECT rid, ifnull(new_id, id) AS name FROM temp.m_unit) u"
        " WHERE u.rid = m_body.unit AND m_body.target IS NOT u.name"
    )
    wanted = job.wants(v2.BODY_ID)
    derived = f"sha256_hex({_BODY_KEY.format('type', 'ifnull(new_target, target)')})"
    db.execute(
        f"UPDATE temp.m_body SET new_id = {derived} WHERE {derived} IS NOT NULL AND {derived} IS NOT id"
        f" AND (new_target IS NOT NULL OR {int(wanted)})"
    )
    changed = "(new_id IS NOT NULL OR new_target IS NOT NULL)"
    job.done["rekey-bodies"] += job.count(f"SELECT count(*) FROM temp.m_body WHERE NOT is_new AND {changed}")
    if wanted:
        left = job.count(f"SELECT count(*) FROM temp.m_body WHERE new_id IS NULL AND {derived} IS NOT id")
        job.leave(v2.BODY_ID, tr("a field that its id is computed from is missing"), left)


#: Highest number in the full-text index that is kept.
_HIGHEST = 1 << 53


def number_bodies(job: RowRepair) -> None:
    """Give bodies without a valid number in the full-text index, or with a duplicate one, the next free numbers."""
    job.db.execute("DROP TABLE IF EXISTS temp.m_number")
    job.db.execute(
        "CREATE TEMP TABLE m_number AS SELECT rid FROM (SELECT rid, number, row_number() OVER"
        " (PARTITION BY number ORDER BY rid) AS place FROM temp.m_body)"
        f" WHERE typeof(number) <> 'integer' OR number NOT BETWEEN -{_HIGHEST} AND {_HIGHEST} OR place > 1"
    )
    top = (
        "SELECT max(0, ifnull(max(number), 0)) FROM temp.m_body WHERE typeof(number) = 'integer'"
        f" AND number BETWEEN -{_HIGHEST} AND {_HIGHEST}"
    )
    numbered = f"SELECT rid, ({top}) + row_number() OVER (ORDER BY rid) AS number FROM temp.m_number"
    job.db.execute(f"UPDATE temp.m_body SET new_number = n.number FROM ({numbered}) n WHERE n.rid = m_body.rid")
    job.done["number-bodies"] += job.count(
        "SELECT count(*) FROM temp.m_body WHERE NOT is_new AND new_number IS NOT NULL"
    )


def has_id_clash(job: RowRepair) -> bool:
    """Whether two rows would have the same id after the repair."""
    return any(
        job.count(f"SELECT EXISTS (SELECT 1 FROM temp.{table} GROUP BY ifnull(new_id, id) HAVING count(*) > 1"
                  " AND ifnull(new_id, id) IS NOT NULL)")
        for table in ("m_unit", "m_body")
    )  # fmt: skip


# Mending what texts say of each other: contents by the bodies of their units, bodies and places by the contents.
#
# A hash is proof: what has it is what was there. Rules: ``docs/findings.md`` and ``docs/formats/index.md``,
# "Identities".


#: Longest text of SQLite, in bytes.
_LONGEST = 1 << 31
_PARAGRAPH = b"\n\n"
_WIDE_PARAGRAPH = "\n\n".encode("utf-16-le")

# --- contents --------------------------------------------------------------------------------------------------------

#: The bodies of a content's units, by material and number. ``is_proven``: offsets and text are unchanged.
_PIECES = """SELECT CAST(u.material AS BLOB) AS material, u.char_start, u.char_end, CAST(t.text AS BLOB) AS text,
       u.follows AND t.embedding_text_hash IS sha256_hex(CAST(t.text AS BLOB)) AS is_proven
  FROM temp.m_unit u CROSS JOIN temp.m_body b ON b.unit = u.rid CROSS JOIN main.search_text t ON t.rowid = b.rid
 WHERE u.content = (SELECT key FROM temp.m_content WHERE rid = ?) ORDER BY u.material, u.idx"""


class _BodyPiece(NamedTuple):
    """A body of a damaged text: its material, its text as bytes, and the offsets of its unit."""

    material: bytes
    start: Any
    end: Any
    text: bytes | None
    is_proven: int


def repair_contents(job: RowRepair) -> None:
    """Restore texts that do not match their hash, or give them their true hash."""
    db = job.db
    if v2.CONTENT_HASH in job.found:
        for rid, raw in _read_wrong_contents(job):
            own = sha256_hex(raw) if decode_text(raw) is not None else None
            db.execute(
                "INSERT INTO temp.m_content (rid, key, own_key) SELECT rowid, content_hash, ? FROM main.content"
                " WHERE rowid = ?",
                (own, rid),
            )
        db.execute("CREATE INDEX temp.m_content_own ON m_content (own_key)")
    if job.wants(v2.CONTENT_HASH):
        for rid in _iterate_rowids(db, "m_content", "TRUE"):
            _repair_content(job, rid)
        _rekey_contents(job)
    db.execute(
        "INSERT INTO temp.m_known (rid, key, is_whole) SELECT c.rowid, c.content_hash, m.rid IS NULL OR"
        " m.state = 'restored' FROM main.content c LEFT JOIN temp.m_content m ON m.rid = c.rowid"
        " WHERE m.rid IS NULL OR m.state <> 'rekeyed'"
    )
    db.execute("CREATE UNIQUE INDEX temp.m_known_key ON m_known (key)")
    db.execute(
        "INSERT OR IGNORE INTO temp.m_known (rid, key, is_whole)"
        " SELECT rid, new_key, TRUE FROM temp.m_content WHERE state = 'rekeyed' ORDER BY rid"
    )


def _read_wrong_contents(job: RowRepair) -> Iterator[tuple[int, bytes]]:
    """Yield row number and bytes of each text that does not match its hash, as the audit recorded or a search finds."""
    detected = job.detected(v2.CONTENT_HASH)
    if detected is not None:
        for rid in detected:
            raw: Any = job.db.execute("SELECT CAST(text AS BLOB) FROM main.content WHERE rowid = ?", (rid,)).get
            yield rid, raw
        return
    for rid, key, kind, raw in job.db.execute(detect.CONTENT_QUERY):
        if not detect.matches_hash(key, kind, raw):
            yield rid, raw


def _iterate_rowids(db: apsw.Connection, table: str, where: str) -> Iterator[int]:
    """Yield the row numbers of a temporary table, one query each, so that the caller can change the rows.

    ``where`` is an SQL condition.
    """
    last = -(1 << 63)
    while True:
        query = f"SELECT rid FROM temp.{table} WHERE rid > ? AND ({where}) ORDER BY rid LIMIT 1"
        found = db.execute(query, (last,)).get
        if found is None:
            return
        last = int(found)
        yield last


def _repair_content(job: RowRepair, rid: int) -> None:
    """Restore the text of the row ``rid`` so that it matches its hash; if that fails, correct the hash."""
    row: Any = job.db.execute(
        "SELECT CAST(content_hash AS BLOB), CAST(text AS BLOB) FROM main.content WHERE rowid = ?", (rid,)
    ).get
    key, raw = row
    wide = _TextAssembly(raw)
    wanted = decode_text(key)
    for candidate in _find_candidates(job.db, rid, raw, wide):
        if sha256_hex(candidate) == wanted:
            job.db.execute(
                "UPDATE temp.m_content SET state = 'restored', text = ? WHERE rid = ?", (candidate.decode(), rid)
            )
            job.done["restore-contents"] += 1
            return
    if decode_text(raw) is not None:
        # Bodies laid over a shifted text can split surrogate pairs; then the stored text is better.
        text = wide.text() or bytes(raw or b"")
        job.db.execute(
            "UPDATE temp.m_content SET state = 'rekeyed', new_key = ?, text = ? WHERE rid = ?",
            (sha256_hex(text), text.decode(), rid),
        )


def _find_candidates(db: apsw.Connection, rid: int, raw: bytes | None, wide: _TextAssembly) -> Iterator[bytes]:
    """Yield, as UTF-8, the texts that the row ``rid`` may have had before it was damaged.

    ``raw`` is the present text. ``wide`` gets the bodies whose offsets are proven.
    """
    if decode_text(raw) is not None:
        yield raw or b""
    anywhere = _TextAssembly(raw)
    rows = starmap(_BodyPiece, db.execute(_PIECES, (rid,)))
    for _, group in groupby(rows, key=attrgetter("material")):
        pieces = list(group)
        if all(decode_text(piece.text) is not None for piece in pieces):
            yield _PARAGRAPH.join(piece.text or b"" for piece in pieces)
        # A text from any offsets is verified by the hash. A text that is kept without a hash needs proven offsets.
        anywhere.overlay(pieces)
        yield from anywhere.texts()
        wide.overlay([piece for piece in pieces if piece.is_proven])
    yield from _find_moved_text(db, rid)


def _find_moved_text(db: apsw.Connection, rid: int) -> Iterator[bytes]:
    """Yield the text of another row if it has the hash of the row ``rid``: two texts may have been swapped."""
    other = db.execute(
        "SELECT CAST(c.text AS BLOB) FROM temp.m_content m JOIN main.content c ON c.rowid = m.rid"
        " WHERE m.own_key = (SELECT key FROM temp.m_content WHERE rid = ?) LIMIT 1",
        (rid,),
    ).get
    if isinstance(other, bytes):
        yield other


class _TextAssembly:
    """A damaged text in UTF-16, over which the bodies of units are laid at their offsets."""

    def __init__(self, raw: bytes | None) -> None:
        """Start with the damaged text ``raw``, as UTF-8; empty if it is not valid."""
        self._wide = bytearray((decode_text(raw) or "").encode("utf-16-le"))
        self._end = 0

    def overlay(self, pieces: Iterable[_BodyPiece]) -> None:
        """Write bodies over the text at the offsets of their units.

        A body that begins one paragraph break after the end of the text is appended with that break.
        """
        for piece in pieces:
            body = decode_text(piece.text)
            wide = b"" if body is None else body.encode("utf-16-le")
            is_place = detect.is_valid_span(piece.start, piece.end, _LONGEST)
            if body is None or not is_place or len(wide) != 2 * (piece.end - piece.start):
                continue
            if 2 * piece.start == len(self._wide) + len(_WIDE_PARAGRAPH):
                self._wide += _WIDE_PARAGRAPH
            if 2 * piece.start <= len(self._wide):
                self._wide[2 * piece.start : 2 * piece.end] = wide
                self._end = max(self._end, 2 * piece.end)

    def texts(self) -> Iterator[bytes]:
        """Yield the text as UTF-8: all of it, and the part up to the last body."""
        for wide in (self._wide, self._wide[: self._end]):
            text = decode_utf16(bytes(wide))
            if text is not None:
                yield text.encode()

    def text(self) -> bytes | None:
        """Return the whole text as UTF-8; None if it is not valid."""
        text = decode_utf16(bytes(self._wide))
        return None if text is None else text.encode()


def _rekey_contents(job: RowRepair) -> None:
    """Give texts that could not be restored their true hash, in units and materials too."""
    db = job.db
    # A content cannot get a hash that another one still has.
    db.execute(
        "UPDATE temp.m_content SET state = 'left' WHERE state = 'rekeyed' AND new_key IN"
        " (SELECT CAST(key AS TEXT) FROM temp.m_content WHERE state <> 'restored')"
    )
    job.done["rekey-contents"] += job.count("SELECT count(*) FROM temp.m_content WHERE state = 'rekeyed'")
    left = job.count("SELECT count(*) FROM temp.m_content WHERE state = 'left'")
    job.leave(
        v2.CONTENT_HASH, tr("the stored value is not text, and the stored texts of its units do not reproduce it"), left
    )
    follow = "FROM temp.m_content c WHERE c.state = 'rekeyed' AND c.key = "
    db.execute(f"UPDATE temp.m_unit SET content = c.new_key, touched = TRUE {follow} m_unit.content")
    db.execute(f"UPDATE temp.m_material SET new_content = c.new_key {follow} m_material.content")


# --- bodies and offsets ---------------------------------------------------------------------------------------------

#: CROSS JOIN keeps this order: units of the content first. A body that is not text is NULL.
_SLICES = """SELECT u.rid, u.char_start, u.char_end, b.rid, b.bad AND ?2, CAST(b.hash AS BLOB),
       CASE typeof(t.text) WHEN 'text' THEN CAST(t.text AS BLOB) END
  FROM temp.m_unit u CROSS JOIN temp.m_body b ON b.unit = u.rid CROSS JOIN main.search_text t ON t.rowid = b.rid
 WHERE u.content = (SELECT key FROM temp.m_known WHERE rid = ?1)"""


class _ContentText:
    """A text that can be cut at UTF-16 offsets and searched as UTF-8."""

    def __init__(self, raw: bytes) -> None:
        """Prepare the text ``raw``, as UTF-8."""
        self._raw = raw
        self._width = 1 if raw.isascii() else 2
        self._wide = raw if self._width == 1 else raw.decode().encode("utf-16-le")

    def cut(self, start: Any, end: Any) -> str | None:
        """Return the part of the text between two UTF-16 offsets; None if these are not valid."""
        if not detect.is_valid_span(start, end, len(self._wide) // self._width):
            return None
        part = self._wide[start * self._width : end * self._width]
        return part.decode() if self._width == 1 else decode_utf16(part)

    def find_offsets(self, body: bytes) -> tuple[int, int] | None:
        """Return the UTF-16 offsets of a body that the text contains exactly once, else None."""
        if not detect.contains_once(self._raw, body):
            return None
        first = self._raw.find(body)
        if self._width == 1:
            return first, first + len(body)
        start = len(self._raw[:first].decode().encode("utf-16-le")) // 2
        return start, start + len(body.decode().encode("utf-16-le")) // 2


def repair_bodies_and_offsets(job: RowRepair) -> None:
    """Repair units whose body differs from the text at their offsets, and bodies whose hash is wrong.

    The body is restored, or the offsets are corrected, or a body that cannot be restored gets the hash of its present
    text. Bodies that are not text are reported as left.
    """
    db = job.db
    if v2.BODY_HASH in job.found:
        detected = job.detected(v2.BODY_HASH)
        if detected is None:
            db.execute(
                "UPDATE temp.m_body SET bad = TRUE WHERE rid IN (SELECT rowid FROM main.search_text WHERE"
                " typeof(text) <> 'text' OR embedding_text_hash IS NOT sha256_hex(CAST(text AS BLOB)))"
            )
        else:
            db.executemany("UPDATE temp.m_body SET bad = TRUE WHERE rid = ?", ((rid,) for rid in detected))
    # The audit could not compare the offsets of a unit that had no body.
    if job.done["link-bodies"] or not job.found.isdisjoint((v2.BODY_HASH, v2.UNIT_OFFSETS, v2.CONTENT_HASH)):
        for rid in _iterate_rowids(db, "m_known", f"is_whole AND {_contents_condition(job)}"):
            _repair_slices(job, rid, _ContentText(_text_of_content(db, rid)))
    if job.wants(v2.BODY_HASH):
        # Give bodies that cannot be restored the hash of their present text.
        job.change(
            "rehash-bodies",
            "UPDATE temp.m_body SET bad = FALSE, new_hash = (SELECT sha256_hex(CAST(t.text AS BLOB)) FROM"
            " main.search_text t WHERE t.rowid = m_body.rid) WHERE bad AND rid IN (SELECT t.rowid FROM"
            " main.search_text t JOIN temp.m_body b ON b.rid = t.rowid WHERE b.bad AND typeof(t.text) = 'text' AND"
            " is_text(CAST(t.text AS BLOB)))",
        )
        left = job.count("SELECT count(*) FROM temp.m_body WHERE bad")
        job.leave(
            v2.BODY_HASH, tr("the stored value is not text, and the text of its unit does not reproduce it"), left
        )


def _contents_condition(job: RowRepair) -> str:
    """Return an SQL condition for the rows of ``m_known`` (texts) whose units and bodies may disagree."""
    if v2.UNIT_OFFSETS in job.found:
        detected = job.detected(v2.UNIT_OFFSETS)
        if detected is None:
            return "TRUE"
        job.db.executemany("UPDATE temp.m_unit SET misplaced = TRUE WHERE rid = ?", ((rid,) for rid in detected))
    units = """SELECT u.content FROM temp.m_unit u LEFT JOIN temp.m_body b ON b.unit = u.rid
                WHERE u.misplaced OR b.bad OR b.linked"""
    return f"(key IN ({units}) OR rid IN (SELECT rid FROM temp.m_content))"


def _text_of_content(db: apsw.Connection, rid: int) -> bytes:
    """Return the text of the row ``rid``, as UTF-8, as the repair leaves it."""
    raw: Any = db.execute(
        "SELECT CAST(ifnull(m.text, c.text) AS BLOB) FROM main.content c LEFT JOIN temp.m_content m ON m.rid = c.rowid"
        " WHERE c.rowid = ?",
        (rid,),
    ).get
    return bytes(raw or b"")


def _repair_slices(job: RowRepair, content: int, whole: _ContentText) -> None:
    """Repair the units of a text whose body differs from the text at their offsets.

    ``content`` is the row number of the text, ``whole`` the text itself.
    """
    placed: list[tuple[int, int, int]] = []
    restored: list[tuple[str, int]] = []
    values = content, job.wants(v2.BODY_HASH)
    for unit, start, end, body, is_restored, body_hash, raw in job.db.execute(_SLICES, values):
        text, found = decode_text(raw), whole.cut(start, end)
        if found is not None and found == text:
            continue
        if found is not None and sha256_hex(found.encode()).encode() == body_hash:
            # If the slice has the hash that was embedded, the offsets are right and the body is wrong.
            restored += [(found, body)] if is_restored else []
            continue
        offsets = None if text is None else whole.find_offsets(raw)
        if offsets is None:
            job.leave(v2.UNIT_OFFSETS, tr("the text does not hold the body, or holds it more than once"))
        elif v2.UNIT_OFFSETS in job.wanted:
            placed.append((*offsets, unit))
    job.db.executemany("UPDATE temp.m_body SET text = ?, bad = FALSE WHERE rid = ?", restored)
    job.db.executemany("UPDATE temp.m_unit SET char_start = ?, char_end = ?, touched = TRUE WHERE rid = ?", placed)
    job.done["restore-bodies"] += len(restored)
    job.done["place-units"] += len(placed)


# --- missing bodies -------------------------------------------------------------------------------------------------

_BODILESS = "NOT EXISTS (SELECT 1 FROM temp.m_body b WHERE b.unit = u.rid)"
#: SQL condition: the offsets of a unit are proven by its id, with its former or its present content and number.
_IS_SURE = f"(follows OR {DERIVED.replace('content', 'was_content', 1)} IS id)"


def write_bodies(job: RowRepair) -> None:
    """Write the missing bodies of units whose offsets in their text are proven."""
    db = job.db
    if not job.wants(v2.NO_BODY):
        return
    missing = job.count(f"SELECT count(*) FROM temp.m_unit u WHERE {_BODILESS}")
    db.execute("DROP TABLE IF EXISTS temp.m_lacking")
    db.execute(
        "CREATE TEMP TABLE m_lacking AS SELECT DISTINCT k.rid FROM temp.m_unit u"
        f" JOIN temp.m_known k ON k.key = u.content WHERE k.is_whole AND {_BODILESS}"
    )
    for rid in _iterate_rowids(db, "m_lacking", "TRUE"):
        whole = _ContentText(_text_of_content(db, rid))
        units = db.execute(
            f"SELECT rid, char_start, char_end FROM temp.m_unit u WHERE {_BODILESS} AND {_IS_SURE}"
            " AND content = (SELECT key FROM temp.m_known WHERE rid = ?)",
            (rid,),
        ).fetchall()
        bodies = [(unit, whole.cut(start, end)) for unit, start, end in units]
        new = [(unit, text, sha256_hex(text.encode())) for unit, text in bodies if text is not None]
        db.executemany(
            "INSERT INTO temp.m_body (unit, type, kind, is_new, text, new_hash)"
            " VALUES (?, 'search_unit', 'body', TRUE, ?, ?)",
            new,
        )
        job.done["write-bodies"] += len(new)
        missing -= len(new)
    job.leave(v2.NO_BODY, tr("its id does not prove which part of the text it is, or the text is not there"), missing)
