"""The times of rows that are lost, or that damage has made such as no other row of the file has.

Nothing proves a time. What was written together has one time: a unit, its body, their text and their vectors.
"""

from __future__ import annotations

import apsw

from regraft.formats.cherry_v2.salvage.scratch import KEPT, MADE, value_of

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


def mend_times(db: apsw.Connection, now_ms: int) -> None:
    """Give every row that comes along a time: its own, else that of what was written with it, else the middle one."""
    db.execute(
        "CREATE TEMP TABLE times AS "
        + " UNION ALL ".join(
            f"SELECT created AS time FROM {table} WHERE {_THERE} AND created > 0" for table in _TOGETHER
        )
    )
    middle = value_of(db, "SELECT time FROM temp.times ORDER BY 1 LIMIT 1 OFFSET (SELECT count(*) FROM temp.times) / 2")
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
