"""Which documents of a KB are for a caller, and why the others are not.

A document is searched if the caller may see it, it is active, and it is the latest version of its source. Whether
it may be seen is asked first: nothing else is told of one that is hidden.

Rules: ``docs/formats/rsclaw.md``, "What is searched".
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from regraft.formats.rsclaw.database import Mirror
from regraft.formats.rsclaw.rows import ACTIVE, DOCS, TOMBSTONED, Visibility
from regraft.formats.rsclaw.scope import Scope


class Verdict(StrEnum):
    """Why a document is not searched; as migrations have it, these are the reasons for which rows are skipped."""

    NOT_VISIBLE = "not_visible"
    TOMBSTONED = "tombstoned"
    UPDATING = "updating"
    SUPERSEDED = "superseded"


#: Where a document came from, for a person.
SOURCE = "coalesce(nullif(d.url, ''), nullif(d.source_path, ''), d.title)"
#: For one caller (:func:`judge`): a row for each document, in the order of creation; NULL where it is searched.
_VERDICTS = """CREATE TEMP TABLE verdict (doc_id TEXT PRIMARY KEY, place INTEGER UNIQUE, reason TEXT)"""


def is_latest(mirror: Mirror) -> str:
    """Return SQL that tells whether the document ``d`` is the latest version of its source.

    The system's own table says it. Where that has no row, or names a document of another source, the highest version
    is, if every document could be read. Where the latest cannot be read, no other takes its place: nobody knows who may
    see the source now.
    """
    highest = """NOT EXISTS (SELECT 1 FROM doc other WHERE other.lsid = d.lsid
                              AND (other.version, other.id) > (d.version, d.id))"""
    return f"""
        CASE WHEN EXISTS (SELECT 1 FROM latest l WHERE l.lsid = d.lsid
                           AND NOT EXISTS (SELECT 1 FROM doc named WHERE named.id = l.doc_id AND named.lsid <> d.lsid))
             THEN EXISTS (SELECT 1 FROM latest l WHERE l.lsid = d.lsid AND l.doc_id = d.id)
             ELSE {highest if mirror.is_whole(DOCS) else "0"} END"""


def judge(mirror: Mirror, scope: Scope) -> None:
    """Fill the temporary table ``verdict`` (``doc_id, place, reason``) for a caller.

    Args:
        mirror: of a KB, at least its documents and their latest versions.
        scope: who asks.
    """
    db = mirror.db

    def sees(*facts: Any) -> bool:
        kind, of, owner = facts
        return scope.sees(Visibility(type=kind, agent_id=of, channel_id=of), owner)

    db.create_scalar_function("regraft_sees", sees, 3)
    db.execute(_VERDICTS)
    db.execute(
        f"""INSERT INTO verdict
            SELECT d.id, row_number() OVER (ORDER BY d.created_at, d.id),
                   CASE WHEN NOT regraft_sees(d.visibility, d.visible_to, d.owner) THEN ?1
                        WHEN d.status = ?2 THEN ?3
                        WHEN d.status <> ?4 THEN ?5
                        WHEN NOT ({is_latest(mirror)}) THEN ?6 END
              FROM doc d""",
        (Verdict.NOT_VISIBLE, TOMBSTONED, Verdict.TOMBSTONED, ACTIVE, Verdict.UPDATING, Verdict.SUPERSEDED),
    )
