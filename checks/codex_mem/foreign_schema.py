"""What the schema of codex-mem's database has that is none of its own (``docs/findings.md``, ``schema.foreign-…``)."""

from __future__ import annotations

import apsw

from checks.audit import file_findings
from checks.audit.foreign_schema import Foreign, Trial, does_more, foreign_text_indexes, objects, on_tables
from regraft.formats.codex_mem.database import FULL_TEXT, MIGRATIONS, NOTES
from regraft.language import tr

_OF_NOTES = Trial(
    statements=(
        f"CREATE TABLE {NOTES} (id TEXT PRIMARY KEY, title TEXT, content TEXT, searchable INTEGER)",
        f"CREATE VIRTUAL TABLE {FULL_TEXT} USING fts5 (title, content, content = '{NOTES}')",
    ),
    firing={
        NOTES: (
            f"INSERT INTO {NOTES} (id) VALUES ('n')",
            f"UPDATE {NOTES} SET id = 'n', title = 't', content = 't', searchable = 1",
            f"DELETE FROM {NOTES}",
        )
    },
    written=frozenset({(NOTES, FULL_TEXT)}),
)


def of_notes(db: apsw.Connection) -> list[Foreign]:
    """Return what codex-mem's database has on its notes that is none of its own.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    own = {f"{NOTES}_{when}" for when in ("ai", "ad", "au")}
    found = on_tables(db, (NOTES, MIGRATIONS), own)
    for name, table, sql in objects(db, "trigger"):
        if name in own and table.lower() == NOTES and does_more(name, table, sql, _OF_NOTES):
            message = tr("{n} of codex-mem's that does something else, too")
            found.append(Foreign(finding=file_findings.FOREIGN_TRIGGER, name=name, message=message, noun="trigger"))
    return [*found, *foreign_text_indexes(db)]
