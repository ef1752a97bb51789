"""Whether the full-text index holds what the bodies say.

FTS5's own check is a write, so it runs on a copy of the index's data in a temporary table, with the bodies where they
are (``docs/formats/index.md``, "Reading without a trace").
"""

from __future__ import annotations

from itertools import zip_longest

import apsw

from checks.audit.collector import FindingCollector, Level
from checks.audit.full_text import words_agree
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.schema_shape import FULL_TEXT, Shape
from regraft.language import tr


def check(db: apsw.Connection, shape: Shape, ledger: FindingCollector, base: str | None) -> None:
    """Compare the numbers of bodies with those of the index; above the quick level its words too.

    Raises:
        apsw.Error: the file is damaged.
    """
    number = "fts_rowid" if shape.has_rowid else "rowid"
    bodies = f"SELECT {number}, CAST(search_text_id AS BLOB) FROM search_text WHERE {number} IS %s NULL"
    _numbers(db, number, bodies, ledger, base)
    if ledger.level >= Level.DEFAULT and not ledger.count(v2.FTS_DESYNC, base) and not _words_agree(db, number):
        ledger.add(v2.FTS_DESYNC, tr("the full-text index does not hold the words of the bodies"), base=base)


def _numbers(db: apsw.Connection, number: str, bodies: str, ledger: FindingCollector, base: str | None) -> None:
    doubles = f"SELECT {number} FROM search_text WHERE {number} IS NOT NULL GROUP BY {number} HAVING count(*) > 1"
    for _, key in db.execute(bodies % ""):
        ledger.add(v2.BODY_ROWID, tr("{n} without a number in the full-text index"), base=base, noun="body", sample=key)
    for (numbers,) in db.execute(doubles):
        ledger.add(v2.BODY_ROWID, tr("{n} used twice"), base=base, noun="number", sample=numbers)
    docsize = f"main.{FULL_TEXT}_docsize"
    without = list(
        db.execute(f"{bodies % 'NOT'} AND NOT EXISTS (SELECT 1 FROM {docsize} d WHERE d.id = search_text.{number})")
    )
    beyond = list(
        db.execute(f"SELECT id FROM {docsize} d WHERE NOT EXISTS (SELECT 1 FROM search_text t WHERE t.{number} = d.id)")
    )
    for body, entry in zip_longest(without, beyond):
        _add_number(ledger, base, body, entry)


def _add_number(
    ledger: FindingCollector, base: str | None, body: tuple[int, bytes] | None, entry: tuple[int] | None
) -> None:
    """Say what became of a body without an entry and an entry without a body: one of each is one out of step."""
    if body is not None and entry is not None:
        message = tr("{n} whose number the full-text index does not have, while it has another that no body has")
        ledger.add(v2.BODY_ROWID, message, base=base, noun="body", sample=body[1])
    elif body is not None:
        ledger.add(v2.FTS_DESYNC, tr("{n} not in the full-text index"), base=base, noun="body", sample=body[1])
    elif entry is not None:
        message = tr("{n} of the full-text index without a body")
        ledger.add(v2.FTS_DESYNC, message, base=base, noun="entry", sample=entry[0])


def _words_agree(db: apsw.Connection, number: str) -> bool:
    bodies = f"SELECT {number} AS number, text FROM main.search_text WHERE {number} IS NOT NULL"
    return words_agree(db, FULL_TEXT, "search_text", bodies, "text, tokenize = 'trigram'")
