"""Which rows of a damaged index prove themselves, each by those that are proven already.

A text is proven by its hash, a unit by its id, a body by being its unit's slice of the text, a vector by the hash of a
proven text and by being like the others. What is lost and follows from proven rows is derived (:mod:`.derived`).
Rules: ``docs/formats/index.md``, "Salvage".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

import apsw
import msgspec

from regraft.formats.cherry_v2.index.units import is_safe_path
from regraft.formats.cherry_v2.salvage import shapes
from regraft.formats.cherry_v2.salvage.derived import joined_text
from regraft.formats.cherry_v2.salvage.scratch import COPY, DAMAGED, DELETED, KEPT, MADE, UNNAMED, WEAK, Row, rows_of
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


class Materials(msgspec.Struct):
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
        rows = rows_of(
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
            indexed = self._keys_of(shapes.MATERIAL_KEY, rid)
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
        found = self._keys_of(shapes.MATERIAL_PATH, rid)
        indexed = [one for one in found if path == key or (one != key and not shapes.is_hash(one))]
        if path is None or not _is_path(path):
            return indexed[0] if len(indexed) == 1 and _is_path(indexed[0]) else None
        return path if not indexed or path in indexed else None

    def _item_path(self, key: bytes) -> bytes | None:
        items = self.expected.paths
        stated = None if items is None else items.get(decode_utf8(key))
        return None if stated is None or not is_safe_path(stated) else stated.encode("utf-8", "replace")

    def _keys_of(self, name: str, rid: int | None) -> list[bytes]:
        found = rows_of(self.db, "SELECT key FROM index_key WHERE name = ? AND rid = ?", (name, rid))
        return [bytes(key) for (key,) in found if isinstance(key, bytes)]

    def _derive_materials(self) -> None:
        """Add materials whose row is lost: units name them, and the catalog or the indexes have their paths."""
        lost = rows_of(
            self.db,
            f"""SELECT material, min(created), max(created) FROM {_LIVE_UNITS}
                   AND material NOT IN (SELECT key FROM material WHERE fate = ?) GROUP BY material""",
            (KEPT,),
        )
        for key, created, updated in lost:
            items = self.expected.paths
            if items is not None and decode_utf8(key) not in items:
                continue
            damaged = rows_of(
                self.db,
                "SELECT rid, created, updated FROM material WHERE key = ? AND fate = ? AND strength < ?",
                (key, DAMAGED, WEAK),
            )
            known = rows_of(self.db, "SELECT rid FROM index_key WHERE name = ? AND key = ?", (shapes.MATERIAL_KEY, key))
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
        lost = rows_of(
            self.db,
            f"""SELECT content, min(created) FROM {_LIVE_UNITS}
                   AND content NOT IN (SELECT key FROM content WHERE fate = ?) GROUP BY content""",
            (KEPT,),
        )
        for key, created in lost:
            text = joined_text(key, self._pieces(key))
            if text is not None:
                self.db.execute("INSERT INTO content VALUES (NULL, 0, NULL, ?, ?, ?, ?)", (MADE, key, text, created))

    def _pieces(self, content: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield where the units of a text begin and end, each with its body."""
        yield from rows_of(
            self.db,
            f"""SELECT u.start, u.stop, t.text FROM search_unit u JOIN search_text t ON t.target = u.key
                 WHERE u.content = ? AND u.fate IS NULL AND u.strength < {WEAK} AND t.fate IS NULL
                 ORDER BY u.start, u.stop""",
            (content,),
        )

    def _name_contents(self) -> None:
        """Let every material name a text that is there: its own, else the one that all of its units are of."""
        there = f"SELECT key FROM content WHERE fate IN ('{KEPT}', '{MADE}')"
        lacking = rows_of(
            self.db,
            f"""SELECT seq, key, rid, content FROM material WHERE fate IN ('{KEPT}', '{MADE}')
                   AND (fate = '{MADE}' OR content IS NOT NULL) AND (content IS NULL OR content NOT IN ({there}))""",
        )
        for seq, key, rid, content in lacking:
            indexed = [one for one in self._keys_of(shapes.MATERIAL_CONTENT, rid) if is_there_in(self.db, one)]
            units = rows_of(
                self.db, f"SELECT DISTINCT content FROM {_LIVE_UNITS} AND material = ? AND content IN ({there})", (key,)
            )
            is_stated = content is not None and content in self._keys_of(shapes.MATERIAL_CONTENT, rid)
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
            (shapes.MATERIAL_KEY,),
        )

    def _settle(self, table: str, seq: int, fate: str) -> None:
        self.db.execute(f"UPDATE {table} SET fate = ? WHERE seq = ?", (fate, seq))


def is_there_in(db: apsw.Connection, content: bytes) -> bool:
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


def settle_readings(db: apsw.Connection) -> None:
    """Settle all rows about which nothing is decided yet."""
    for table in shapes.KEY_OF:
        _settle_readings(db, table)
