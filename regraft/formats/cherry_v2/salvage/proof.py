"""Which rows of a damaged index prove themselves, each by those that are proven already.

A text is proven by its hash, a unit by its id, a body by being its unit's slice of the text, a vector by the hash of a
proven text and by being like the others. What is lost and follows from proven rows is derived (:mod:`.derived`).
Rules: ``docs/formats/index.md``, "Salvage".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import apsw
import msgspec

from regraft.formats.cherry_v2.index.schema import is_safe_path
from regraft.formats.cherry_v2.salvage import found_rows
from regraft.formats.cherry_v2.salvage.found_rows import (
    CONTRADICTED,
    COPY,
    DAMAGED,
    DELETED,
    KEPT,
    MADE,
    UNLIKE,
    UNNAMED,
    WEAK,
    Row,
    fetch_rows,
    fetch_value,
)
from regraft.formats.cherry_v2.salvage.units import join_bodies
from regraft.formats.vector_checks import compute_typical_range
from regraft.text import decode_utf8

#: Units that prove themselves and are no remains of deleted ones.
_LIVE_UNITS = f"search_unit WHERE fate IS NULL AND strength < {WEAK}"


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What lies around an index says of it.

    Attributes:
        base_id: the id of its folder; None where that says nothing.
        paths: the paths of items by their ids, as the catalog has them; None where nothing can be read of one.
        dimensions: of its vectors, as the catalog says.
        now_ms: the time of what has to be written anew, in ms.
    """

    base_id: str | None
    paths: Mapping[str, str | None] | None = None
    dimensions: int | None = None
    now_ms: int = 0


class MaterialProof(msgspec.Struct):
    """Chooses the materials, their texts and what each of them names now."""

    db: apsw.Connection
    expected: Expected
    #: Paths that are given.
    taken: set[bytes] = msgspec.field(default_factory=set)
    #: Ids of those whose path nobody knows.
    unnamed: list[str] = msgspec.field(default_factory=list)

    def choose(self) -> None:
        """Decide about every row of the tables of materials and texts."""
        self._choose_materials()
        self._derive_materials()
        self._choose_contents()
        self._join_contents()
        self._name_contents()
        self._doubt_materials()

    # --- materials ---------------------------------------------------------------------------------------------------

    def _choose_materials(self) -> None:
        rows = fetch_rows(
            self.db,
            f"""SELECT key, seq, strength, rid, path, EXISTS (SELECT 1 FROM {_LIVE_UNITS} AND material = m.key),
                       EXISTS (SELECT 1 FROM {_LIVE_UNITS} AND content = m.content)
                  FROM material m WHERE fate IS NULL ORDER BY key, strength, seq""",
        )
        chosen: list[Row] = []
        for _, group in groupby(rows, key=lambda row: row[0]):
            readings = list(group)
            best = next((one for one in readings if self._is_there(one)), None)
            for one in readings:
                if one is not best:
                    self._settle("material", one[1], COPY if best is not None else _gone(one[2]))
            if best is not None:
                chosen.append(best)
        # Paths of the strongest rows are theirs.
        for key, seq, _, rid, path, *_ in sorted(chosen, key=lambda row: (row[2], row[1])):
            self.db.execute(
                "UPDATE material SET fate = ?, path = ? WHERE seq = ?", (KEPT, self._taken_path(key, path, rid), seq)
            )

    def _is_there(self, row: Row) -> bool:
        """Tell whether a row is of a material that was not deleted, and whether that is its id."""
        key, _, strength, rid, _, is_named, is_anothers = row
        items = self.expected.paths
        is_item = items is not None and decode_utf8(key) in items
        if strength == 0:
            indexed = self._keys_of(found_rows.MATERIAL_KEY, rid)
            return bool(is_named) or is_item or key in indexed or not (indexed or is_anothers)
        return (strength < WEAK or bool(is_named)) and (items is None or is_item)

    def _taken_path(self, key: bytes, path: bytes | None, rid: int | None) -> bytes:
        """Return the path that a material gets; its own id, as the files of folders had once, where nobody knows it."""
        found = self._path(key, path, rid)
        if found is None or found in self.taken:
            found = key
            self.unnamed.append(decode_utf8(key))
        self.taken.add(found)
        return found

    def _path(self, key: bytes, path: bytes | None, rid: int | None) -> bytes | None:
        """Return a material's path: that of its item, else the row's where no index says another one."""
        stated = self._item_path(key)
        if stated is not None:
            return stated
        # Where pages are mixed up, this index has the keys of another one.
        found = self._keys_of(found_rows.MATERIAL_PATH, rid)
        indexed = [one for one in found if path == key or (one != key and not found_rows.is_hash(one))]
        if path is None or not _is_path(path):
            return indexed[0] if len(indexed) == 1 and _is_path(indexed[0]) else None
        return path if not indexed or path in indexed else None

    def _item_path(self, key: bytes) -> bytes | None:
        items = self.expected.paths
        stated = None if items is None else items.get(decode_utf8(key))
        return None if stated is None or not is_safe_path(stated) else stated.encode("utf-8", "replace")

    def _keys_of(self, name: str, rid: int | None) -> list[bytes]:
        found = fetch_rows(self.db, "SELECT key FROM index_key WHERE name = ? AND rid = ?", (name, rid))
        return [bytes(key) for (key,) in found if isinstance(key, bytes)]

    def _derive_materials(self) -> None:
        """Add materials whose row is lost: units name them, and the catalog or the indexes have their paths."""
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
                (rid, MADE, key, self._taken_path(key, None, rid), created, updated),
            )

    # --- texts -------------------------------------------------------------------------------------------------------

    def _choose_contents(self) -> None:
        """Keep one reading of every text; one that no tree reaches only where something names it that is there."""
        named = f"""key IN (SELECT content FROM material WHERE fate IN ('{KEPT}', '{MADE}'))
                 OR key IN (SELECT content FROM {_LIVE_UNITS})"""
        self.db.execute(
            f"""UPDATE content SET fate = '{KEPT}' WHERE seq IN (
                  SELECT seq FROM (SELECT seq, row_number() OVER (PARTITION BY key ORDER BY strength, seq) AS place
                                     FROM content WHERE fate IS NULL AND (strength = 0 OR {named}))
                   WHERE place = 1)"""
        )
        _settle_readings(self.db, "content")

    def _join_contents(self) -> None:
        """Join texts that are lost from the bodies of their units, where that has the text's hash."""
        lost = fetch_rows(
            self.db,
            f"""SELECT content, min(created) FROM {_LIVE_UNITS}
                   AND content NOT IN (SELECT key FROM content WHERE fate = ?) GROUP BY content""",
            (KEPT,),
        )
        for key, created in lost:
            text = join_bodies(key, self._pieces(key))
            if text is not None:
                self.db.execute("INSERT INTO content VALUES (NULL, 0, NULL, ?, ?, ?, ?)", (MADE, key, text, created))

    def _pieces(self, content: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield where the units of a text begin and end, each with its body."""
        yield from fetch_rows(
            self.db,
            f"""SELECT u.start, u.stop, t.text FROM search_unit u JOIN search_text t ON t.target = u.key
                 WHERE u.content = ? AND u.fate IS NULL AND u.strength < {WEAK} AND t.fate IS NULL
                 ORDER BY u.start, u.stop""",
            (content,),
        )

    def _name_contents(self) -> None:
        """Let every material name a text that is there: its own, else the one that all of its units are of."""
        there = f"SELECT key FROM content WHERE fate IN ('{KEPT}', '{MADE}')"
        lacking = fetch_rows(
            self.db,
            f"""SELECT seq, key, rid, content FROM material WHERE fate IN ('{KEPT}', '{MADE}')
                   AND (fate = '{MADE}' OR content IS NOT NULL) AND (content IS NULL OR content NOT IN ({there}))""",
        )
        for seq, key, rid, content in lacking:
            indexed = [one for one in self._keys_of(found_rows.MATERIAL_CONTENT, rid) if is_content_kept(self.db, one)]
            units = fetch_rows(
                self.db, f"SELECT DISTINCT content FROM {_LIVE_UNITS} AND material = ? AND content IN ({there})", (key,)
            )
            is_stated = content is not None and content in self._keys_of(found_rows.MATERIAL_CONTENT, rid)
            told = indexed or [one for (one,) in units if not is_stated]
            self.db.execute("UPDATE material SET content = ? WHERE seq = ?", (told[0] if len(told) == 1 else None, seq))

    def _doubt_materials(self) -> None:
        """Take materials for deleted that only their own row on a page of no tree knows: no item, text or unit."""
        if self.expected.paths is not None:
            return
        self.db.execute(
            f"""UPDATE material SET fate = '{DELETED}' WHERE fate = '{KEPT}' AND strength > 0
                   AND NOT EXISTS (SELECT 1 FROM {_LIVE_UNITS} AND search_unit.material = material.key
                                      AND content IN (SELECT key FROM content WHERE fate IN ('{KEPT}', '{MADE}')))
                   AND NOT EXISTS (SELECT 1 FROM index_key k WHERE k.name = ? AND k.key = material.key)""",
            (found_rows.MATERIAL_KEY,),
        )

    def _settle(self, table: str, seq: int, fate: str) -> None:
        self.db.execute(f"UPDATE {table} SET fate = ? WHERE seq = ?", (fate, seq))


def is_content_kept(db: apsw.Connection, content: bytes) -> bool:
    """Tell whether a text comes along."""
    query = "SELECT 1 FROM content WHERE key = ? AND fate IN (?, ?)"
    return db.execute(query, (content, KEPT, MADE)).get is not None


def _gone(strength: int) -> str:
    return DELETED if strength >= WEAK else UNNAMED


def _is_path(raw: bytes) -> bool:
    try:
        return is_safe_path(raw.decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError:
        return False


def _settle_readings(db: apsw.Connection, table: str) -> None:
    """Settle what of a table is not kept: copies of what is, and the weak ones that nothing names."""
    db.execute(
        f"""UPDATE {table} SET fate = CASE WHEN key IN (SELECT key FROM {table} WHERE fate = '{KEPT}') THEN '{COPY}'
                                          WHEN strength >= {WEAK} THEN '{DELETED}' ELSE '{UNNAMED}' END
             WHERE fate IS NULL"""
    )


def settle_remaining(db: apsw.Connection) -> None:
    """Settle all rows about which nothing is decided yet."""
    for table in found_rows.KEY_OF:
        _settle_readings(db, table)


# The vectors: each is of a text that is proven, is like the others of its base, and is read in one way only.


#: Keys of bodies that come along: a vector of theirs may be on any page.
_NAMED = f"SELECT hash FROM search_text WHERE fate IN ('{KEPT}', '{MADE}')"
#: Texts that prove themselves, whose unit or text is lost: their vectors serve when these are indexed again.
_KNOWN = f"SELECT hash FROM search_text WHERE fate IS NULL AND strength < {WEAK}"


class VectorProof(msgspec.Struct, frozen=True):
    """Chooses the vectors of an index."""

    db: apsw.Connection
    dimensions: int | None

    def choose(self) -> None:
        """Decide about every vector."""
        self._refuse_unlike()
        # What is to be done is written when all rows were seen.
        self.db.execute("CREATE TEMP TABLE settled (seq INTEGER PRIMARY KEY, fate)")
        rows: Iterator[Any] = self.db.execute(
            f"""SELECT key, seq, strength, rid, key IN ({_NAMED}), key IN ({_KNOWN}),
                       EXISTS (SELECT 1 FROM index_key k WHERE k.name = ? AND k.key = e.key AND k.rid = e.rid)
                  FROM embedding e WHERE fate IS NULL ORDER BY key, strength, seq""",
            (found_rows.VECTOR_KEY,),
        )
        for _, group in groupby(rows, key=lambda row: row[0]):
            for seq, fate in self._fates(list(group)):
                self.db.execute("INSERT INTO temp.settled VALUES (?, ?)", (seq, fate))
        self.db.execute("UPDATE embedding SET fate = s.fate FROM temp.settled s WHERE s.seq = embedding.seq")
        self.db.execute("DROP TABLE temp.settled")

    def _refuse_unlike(self) -> None:
        """Refuse vectors of another length than the base's, and those that are not like the others."""
        stated = None if self.dimensions is None else 4 * self.dimensions
        # Where only pages are left on which deleted rows may be, these have to tell.
        told = f"fate IS NULL AND strength <= max({WEAK - 1}, (SELECT min(strength) FROM embedding WHERE fate IS NULL))"
        length = fetch_value(
            self.db,
            f"""SELECT length(vector) FROM embedding WHERE {told}
                 GROUP BY 1 ORDER BY length(vector) IS ? DESC, count(*) DESC LIMIT 1""",
            (stated,),
        )
        self.db.execute(
            "UPDATE embedding SET fate = ? WHERE fate IS NULL AND length(vector) IS NOT ?", (UNLIKE, length)
        )
        self.db.execute(f"CREATE TEMP TABLE measured AS SELECT seq, norm, repeats FROM embedding WHERE {told}")
        usual = compute_typical_range(self.db, "temp.measured")
        self.db.execute("DROP TABLE temp.measured")
        # A vector of zeros is as good as none: the application never finds it.
        self.db.execute(
            """UPDATE embedding SET fate = ?
                WHERE fate IS NULL AND NOT (norm > 0 AND abs(norm - ?) <= ? AND repeats <= ?)""",
            (UNLIKE, usual.middle, usual.furthest, usual.repeats),
        )

    def _fates(self, readings: list[tuple[Any, ...]]) -> list[tuple[int, str]]:
        """Return what becomes of the readings of one vector, the strongest of which come first."""
        _, _, _, _, is_named, is_known, _ = readings[0]
        live = [one for one in readings if is_named or ((is_known or one[6]) and one[2] < WEAK)]
        best = [one for one in live if one[2] == live[0][2]]
        if not self._agree(best):
            best = [one for one in best if one[6]]
        chosen = best[0] if best and self._agree(best) else None
        return [(one[1], self._fate(one, chosen, is_live=one in live)) for one in readings]

    def _fate(self, reading: tuple[Any, ...], chosen: tuple[Any, ...] | None, *, is_live: bool) -> str:
        if reading is chosen:
            return KEPT
        if reading[2] >= WEAK:
            return DELETED
        if chosen is None:
            return CONTRADICTED if is_live else UNNAMED
        return COPY if self._agree([reading, chosen]) else CONTRADICTED

    def _agree(self, readings: list[tuple[Any, ...]]) -> bool:
        """Tell whether several readings have the same bytes."""
        if len(readings) < 2:
            return True
        marks = ", ".join("?" * len(readings))
        query = f"SELECT count(DISTINCT vector) FROM embedding WHERE seq IN ({marks})"
        return bool(fetch_value(self.db, query, [one[1] for one in readings]) == 1)


# The times of rows that are lost, or that damage has made such as no other row of the file has.
#
# Nothing proves a time. What was written together has one time: a unit, its body, their text and their vectors.


#: How far the times of a file can be from their middle, in ms: ten years.
_FURTHEST = 10 * 366 * 86_400_000
_THERE = f"fate IN ('{KEPT}', '{MADE}')"
#: For each table, which rows were written together with one of its rows.
_TOGETHER = {
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
    """Give every row that comes along a time: its own, else that of what was written with it, else the middle one."""
    db.execute(
        "CREATE TEMP TABLE times AS "
        + " UNION ALL ".join(
            f"SELECT created AS time FROM {table} WHERE {_THERE} AND created > 0" for table in _TOGETHER
        )
    )
    middle = fetch_value(
        db, "SELECT time FROM temp.times ORDER BY 1 LIMIT 1 OFFSET (SELECT count(*) FROM temp.times) / 2"
    )
    db.execute("DROP TABLE temp.times")
    middle = now_ms if middle is None else middle
    for table in _TOGETHER:
        for column in ("created", "updated") if table == "material" else ("created",):
            db.execute(
                f"UPDATE {table} SET {column} = NULL WHERE {_THERE} AND abs({column} - ?) > ?", (middle, _FURTHEST)
            )
    for table, sources in _TOGETHER.items():
        others = ", ".join(f"({source})" for source in sources)
        db.execute(
            f"UPDATE {table} AS t SET created = coalesce({others}, ?) WHERE t.{_THERE} AND t.created IS NULL", (middle,)
        )
    db.execute(f"UPDATE material SET updated = created WHERE {_THERE} AND updated IS NULL")
