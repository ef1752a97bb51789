"""Whether the scope of codex-mem's rows holds together, and every exclusion has a reason."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import apsw

from checks.audit.collector import FindingCollector
from checks.codex_mem import findings as codex
from regraft.formats.codex_mem.database import NOTES
from regraft.language import joined, tr

#: What each table's rows name of the scope above them.
_ABOVE = {
    "projects": ("system",),
    "workspaces": ("project",),
    "sessions": ("workspace", "project", "system"),
    NOTES: ("session", "workspace", "project", "system"),
    "handoffs": ("session", "workspace", "project", "system"),
}
_NOUNS = {"projects": "project", "workspaces": "workspace", "sessions": "session", NOTES: "note", "handoffs": "handoff"}


def check(db: apsw.Connection, known: Collection[str], chosen: Collection[str], ledger: FindingCollector) -> None:
    """Look at every row's scope, and at exclusions without a reason.

    Args:
        db: the database.
        known: ids of its projects, under which a finding is filed.
        chosen: those that are looked at; empty: all, and rows of none.
        ledger: what is wrong goes there.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    for table in _ABOVE:
        for message, query in _queries(table):
            for key, project in db.execute(query):
                if not chosen or project in chosen:
                    name = codex.EXCLUSION if message == _NO_REASON else codex.SCOPE
                    base = project if project in known else None
                    ledger.add(name, message, base=base, noun=_NOUNS[table], sample=key)


_NO_REASON = tr("{n} excluded without a reason")


def _queries(table: str) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with rows of a table, with the query that finds their ids and those of their projects."""
    above = _ABOVE[table]
    project = {"projects": "t.id"}.get(table, "t.project_id")
    select = f"SELECT CAST(t.id AS BLOB), {project} FROM {table} t"
    # Without an id nothing can name a row.
    yield tr("{n} without an id"), f"{select} WHERE typeof(t.id) <> 'text'"
    gone = " OR ".join(f"NOT EXISTS (SELECT 1 FROM {one}s a WHERE a.id = t.{one}_id)" for one in above)
    named = joined(above, tr(" or "))
    yield tr("{{n}} whose {named} is gone", named=named), f"{select} WHERE {gone}"
    odds = [
        f"EXISTS (SELECT 1 FROM {one}s a WHERE a.id = t.{one}_id AND a.{other}_id IS NOT t.{other}_id)"
        for one in above
        for other in _ABOVE.get(f"{one}s", ())
        if other in above
    ]
    if odds:
        yield tr("{n} whose scope contradicts itself"), f"{select} WHERE {' OR '.join(odds)}"
    if table in (NOTES, "handoffs"):
        yield _NO_REASON, f"{select} WHERE t.searchable <> 1 AND trim(ifnull(t.exclusion_reason, '')) = ''"
