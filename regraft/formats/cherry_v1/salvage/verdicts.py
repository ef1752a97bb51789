"""Which rows prove themselves, held against each other and against the indexes (``docs/salvage.md``)."""

from __future__ import annotations

from typing import Any

import apsw

from regraft.formats.cherry_v1.salvage.scratch import IDS, STRENGTH, TEXTS, Keys
from regraft.formats.sqlite_pages import Origin
from regraft.formats.vector_proof import likeness
from regraft.report import salvage_notices

#: The column that the keys of an index are of.
_OWN = {IDS: "id", TEXTS: "text_hash"}
#: A key that no longer counts.
_DISTRUSTED = 9


def judge(db: apsw.Connection, keys: Keys, stated_bytes: int | None, *, unique_texts: bool) -> dict[str, int]:
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

    def __init__(self, db: apsw.Connection, keys: Keys) -> None:
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
        self._refuse(salvage_notices.VECTOR_UNPROVEN, "vector_bytes <> ?", length)
        usual = likeness(self._db, "found", "reason IS NULL")
        self._refuse(
            salvage_notices.VECTOR_UNPROVEN,
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
                salvage_notices.ROW_CONTRADICTED,
                f"NOT confirmed & {kind} AND"
                f" (EXISTS ({other}.number = found.number) OR EXISTS ({other}.key = found.{own}))",
            )

    def remove_readings(self) -> int:
        """Remove weaker readings of rows that a stronger origin has too, unless an index knows them.

        And refuse what a tree reaches where both indexes say that it is no row of theirs.
        """
        of_ids, of_texts = self._absences()
        self._refuse(salvage_notices.ROW_CONTRADICTED, f"NOT confirmed AND strength = 0 AND {of_ids} AND {of_texts}")
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
        self._refuse(salvage_notices.ROW_UNPROVEN, f"needs_key AND NOT confirmed & {TEXTS}")

    def refuse_second_readings(self, column: str) -> None:
        """Refuse what is read twice with other bytes: the weaker reading, and both where they are of one strength."""
        self._refuse(
            salvage_notices.ROW_CONTRADICTED,
            f"""seq IN (SELECT seq FROM (
                    SELECT seq, rank() OVER (PARTITION BY {column} ORDER BY strength, NOT confirmed) AS place,
                           count(*) OVER (PARTITION BY {column}, strength, NOT confirmed) AS same
                      FROM found WHERE reason IS NULL) WHERE place > 1 OR same > 1)""",
        )
