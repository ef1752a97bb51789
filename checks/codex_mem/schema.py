"""Check the tables, triggers, migration 006 and full-text index of codex-mem (``docs/formats/codex_mem.md``).

The wording of statements does not matter: triggers are executed in a scratch database. FTS5's own check would fail as
soon as one note is excluded, and it is a write. It runs on a copy of the index's data, with only the searchable notes
and with correct counts; wrong counts have a finding of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import apsw

from checks.audit import findings as audit_findings
from checks.audit.collector import FindingCollector, Level, display_text
from checks.audit.sqlite_checks import (
    AVERAGES,
    ForeignObject,
    TriggerTrial,
    deny_other_files,
    find_foreign_on_tables,
    find_full_text_indexes,
    has_extra_effects,
    read_schema_objects,
    words_agree,
)
from checks.codex_mem import findings as codex
from regraft.disk import sqlite, untrusted_sqlite
from regraft.formats.codex_mem import database
from regraft.formats.codex_mem.database import COLUMNS, FULL_TEXT, MIGRATION, MIGRATIONS, NOTES
from regraft.formats.fts5 import encode_varints
from regraft.formats.sqlite_pages.records import to_signed
from regraft.language import join_list, tr

_SCOPE = ("session_id", "system_id", "project_id", "workspace_id")
#: Tables and columns that regraft reads.
_NEEDED: dict[str, tuple[str, ...]] = {
    "systems": ("id",),
    "projects": ("id", "system_id", "slug", "name"),
    "workspaces": ("id", "project_id"),
    "sessions": ("id", "system_id", "project_id", "workspace_id"),
    NOTES: (
        *("id", *_SCOPE, "type", "title", "content", "importance", "status", "created_at"),
        *("searchable", "exclusion_reason"),
    ),
    "handoffs": ("id", *_SCOPE, "searchable", "exclusion_reason"),
    MIGRATIONS: ("version", "name", "applied_at"),
}
_FULL_TEXT_STATEMENT = re.compile(r"CREATE\s+VIRTUAL\s+TABLE\s+.*?\bUSING\s+fts5\s*\((.*)\)", re.IGNORECASE | re.DOTALL)
#: Arguments of the full-text table, in any order.
_ARGUMENTS = {"title", "content", f"content={NOTES}", "content_rowid=rowid"}
_SCRATCH_FULL_TEXT = (
    f"CREATE VIRTUAL TABLE {FULL_TEXT} USING fts5 (title, content, content = '{NOTES}', content_rowid = 'rowid')"
)
_TRIGGERS = ("memory_items_ai", "memory_items_ad", "memory_items_au")
_ADD = f"INSERT INTO {NOTES} (rowid, title, content, searchable) VALUES ({{}}, 'lighthouse', 'fog bell', {{}})"
#: Trials in a scratch database: the trigger that is tested, a statement, a word, and the notes that it then finds.
_TRIES: tuple[tuple[str, str, str, list[int]], ...] = (
    ("memory_items_ai", _ADD.format(1, 1), "fog", [1]),
    ("memory_items_ai", _ADD.format(2, 0), "fog", [1]),
    ("memory_items_au", f"UPDATE {NOTES} SET content = 'harbour' WHERE rowid = 1", "fog", []),
    ("memory_items_au", "SELECT 1", "harbour", [1]),
    ("memory_items_au", f"UPDATE {NOTES} SET searchable = 0 WHERE rowid = 1", "harbour", []),
    ("memory_items_ad", _ADD.format(3, 1), "lighthouse", [3]),
    ("memory_items_ad", f"DELETE FROM {NOTES} WHERE rowid = 3", "lighthouse", []),
)


def find_missing_schema(db: apsw.Connection) -> list[str]:
    """Return the tables, and the columns as ``table.column``, that regraft reads and the database lacks.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    missing = []
    for table, columns in _NEEDED.items():
        there = {str(row[1]) for row in db.execute(f"PRAGMA table_xinfo({table})")}
        missing += [f"{table}.{column}" for column in columns if column not in there] if there else [table]
    return missing


def check_triggers(db: apsw.Connection, findings: FindingCollector) -> None:
    """Report triggers and a full-text table that are missing or do not work as codex-mem defines them.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    schema = dict(db.execute("SELECT name, sql FROM sqlite_schema WHERE type IN ('table', 'trigger')"))
    sql = str(schema.get(FULL_TEXT))
    found = _FULL_TEXT_STATEMENT.match(sql)
    # Quotes and blanks do not matter.
    words = [] if found is None else [re.sub(r"[\s'\"`\[\]]", "", word).lower() for word in found[1].split(",")]
    if sorted(words) != sorted(_ARGUMENTS):
        findings.add(codex.TRIGGER, tr("the full-text table is made in another way"), sample=FULL_TEXT)
        return
    columns = [str(row[1]) for row in db.execute(f"PRAGMA table_info({NOTES})")]
    there = {name: str(schema[name]) for name in _TRIGGERS if name in schema}
    for name in (*(name for name in _TRIGGERS if name not in there), *_find_wrong_trigger(columns, there)):
        message = tr("missing or different: {n} keeping the full-text index")
        findings.add(codex.TRIGGER, message, noun="trigger", sample=name)


def _find_wrong_trigger(columns: list[str], triggers: dict[str, str]) -> Iterator[str]:
    """Yield the name of the first trigger that does not update the full-text index as it must.

    Nothing is yielded if a trigger is missing.

    Args:
        columns: the columns of the table of notes.
        triggers: the CREATE TRIGGER statements of the file, by name.
    """
    if len(triggers) < len(_TRIGGERS):
        return
    with sqlite.open_in_memory() as db:
        # The scratch database is private, so its triggers may run.
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
        db.authorizer = deny_other_files
        db.execute(f"CREATE TABLE {NOTES} ({', '.join(map(untrusted_sqlite.quote_name, columns))})")
        db.execute(_SCRATCH_FULL_TEXT)
        for name, sql in triggers.items():
            try:
                db.execute(sql)
            except (apsw.Error, ValueError):  # ValueError: a NUL in it
                yield name
                return
        for name, statement, word, wanted in _TRIES:
            if not _has_effect(db, statement, word, wanted):
                yield name
                return


def _has_effect(db: apsw.Connection, statement: str, word: str, expected_rows: list[int]) -> bool:
    """Execute a statement; return whether a full-text search for ``word`` then finds the expected row numbers."""
    query = f"SELECT rowid FROM {FULL_TEXT} WHERE {FULL_TEXT} MATCH ?"
    try:
        db.execute(statement).fetchall()
        return [row[0] for row in db.execute(query, (word,))] == expected_rows
    except apsw.Error:
        return False


def check_migration(db: apsw.Connection, findings: FindingCollector, *, has_vectors: bool) -> None:
    """Report migration 006, which adds vectors, if it is applied only in part, or if another migration has its number.

    Args:
        db: the database.
        findings: collects what is wrong.
        has_vectors: whether the file of vectors exists.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    version, name = MIGRATION
    recorded = database.recorded_migration_name(db)
    there = database.list_migrated_columns(db)
    missing = [column for column in COLUMNS if column not in there]
    foreign = database.find_conflicting_column(db)
    if missing and recorded not in (None, name):
        message = tr(
            "another migration {version} is recorded ({named}), and its effects are unknown",
            version=version,
            named=display_text(recorded),
        )
        findings.add(codex.MIGRATION, message, is_beyond_repair=True)
    elif foreign is not None:
        message = tr("a column of migration 006 exists, but does not allow empty values")
        findings.add(codex.MIGRATION, message, sample=foreign, is_beyond_repair=True)
    elif missing and there:
        message = tr("only some columns of migration 006 exist; {missing} are missing", missing=join_list(missing))
        findings.add(codex.MIGRATION, message, sample=missing[0])
    elif missing:
        _report_absent_columns(findings, is_recorded=recorded is not None, has_vectors=has_vectors)
    elif recorded is None:
        findings.add(codex.MIGRATION, tr("all columns of migration 006 exist, but the migration is not recorded"))


def _report_absent_columns(findings: FindingCollector, *, is_recorded: bool, has_vectors: bool) -> None:
    """Report a database without the columns of migration 006 that records the migration or has a file of vectors."""
    if is_recorded or has_vectors:
        what = tr("the migration is recorded") if is_recorded else tr("there is a vector file")
        findings.add(codex.MIGRATION, tr("no column of migration 006 exists, but {what}", what=what))


# --- objects that codex-mem does not define (``schema.foreign-…``) --------------------------------------------------


_NOTES_TRIAL = TriggerTrial(
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


def find_foreign_in_notes(db: apsw.Connection) -> list[ForeignObject]:
    """Return schema objects on the table of notes that codex-mem does not define.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    own = {f"{NOTES}_{when}" for when in ("ai", "ad", "au")}
    found = find_foreign_on_tables(db, (NOTES, MIGRATIONS), own)
    for name, table, sql in read_schema_objects(db, "trigger"):
        if name in own and table.lower() == NOTES and has_extra_effects(name, table, sql, _NOTES_TRIAL):
            message = tr("{n} of codex-mem with a different definition")
            found.append(
                ForeignObject(finding=audit_findings.FOREIGN_TRIGGER, name=name, message=message, noun="trigger")
            )
    return [*found, *find_full_text_indexes(db)]


# --- the full-text index --------------------------------------------------------------------------------------------


_COLUMNS = 2
_SEARCHABLE = f"EXISTS (SELECT 1 FROM {NOTES} n WHERE n.rowid = d.id AND n.searchable = 1)"
_MISSING = f"""SELECT CAST(n.id AS BLOB) FROM {NOTES} n WHERE n.searchable = 1
   AND NOT EXISTS (SELECT 1 FROM {FULL_TEXT}_docsize d WHERE d.id = n.rowid)"""
_EXTRA = f"""SELECT coalesce((SELECT CAST(n.id AS BLOB) FROM {NOTES} n WHERE n.rowid = d.id), d.id)
  FROM {FULL_TEXT}_docsize d WHERE NOT {_SEARCHABLE}"""


def check_full_text(db: apsw.Connection, findings: FindingCollector, *, can_compare_words: bool = True) -> None:
    """Compare rows and counts of the full-text index with the searchable notes; above the quick level also the words.

    Args:
        db: the database.
        findings: collects what is wrong.
        can_compare_words: whether the index is defined as codex-mem does it, so that its words can be compared.

    Raises:
        apsw.Error: the file is damaged.
    """
    for (note,) in db.execute(_MISSING):
        findings.add(codex.FTS_MISSING, tr("{n} not found by keyword search"), noun="searchable note", sample=note)
    for (note,) in db.execute(_EXTRA):
        message = tr("{n} in the full-text index for a note that is not searchable: excluded text can be found")
        findings.add(codex.FTS_EXTRA, message, noun="entry", sample=note)
    stated, there = _read_statistics(db), _compute_statistics(db)
    if stated != there:
        message = tr(
            "the full-text index records {said}, but has {said2}: ranks are wrong",
            said=_format_statistics(stated),
            said2=_format_statistics(there),
        )
        findings.add(codex.FTS_SKEWED, message)
    whole = not findings.count(codex.FTS_MISSING, None) and not findings.count(codex.FTS_EXTRA, None)
    if can_compare_words and findings.level >= Level.DEFAULT and whole and not _words_agree(db, there):
        findings.add(codex.FTS_WORDS, tr("the full-text index does not hold the words of the notes"))


def _format_statistics(counts: list[int]) -> str:
    """Format the counts of the full-text index, which are its rows and the words in each column."""
    rows, *words = counts
    return tr("{rows:,} rows and {words:,} words", rows=rows, words=sum(words))


def _read_statistics(db: apsw.Connection) -> list[int]:
    """Return the number of rows, and of words in each column, that the full-text index records.

    0 if it records none.
    """
    raw = db.execute(f"SELECT block FROM {FULL_TEXT}_data WHERE id = ?", (AVERAGES,)).get
    numbers = list(_decode_varints(raw)) if isinstance(raw, bytes) else []
    # SQLite stores a negative count as a large one.
    signed = list(map(to_signed, numbers))
    return (signed + [0] * (1 + _COLUMNS))[: 1 + _COLUMNS]


def _compute_statistics(db: apsw.Connection) -> list[int]:
    """Return the number of rows, and of words in each column, from the sizes of the full-text index's entries."""
    counts = [0] * (1 + _COLUMNS)
    for (raw,) in db.execute(f"SELECT sz FROM {FULL_TEXT}_docsize"):
        sizes = list(_decode_varints(raw)) if isinstance(raw, bytes) else []
        for place, number in enumerate((1, *sizes[:_COLUMNS])):
            counts[place] += number
    return counts


def _decode_varints(raw: bytes) -> Iterator[int]:
    """Yield the integers that SQLite encodes as varints: 7 bits in a byte, most significant first.

    The ninth byte has 8.
    """
    number = length = 0
    for byte in raw:
        length += 1
        number = number << 8 | byte if length == 9 else number << 7 | byte & 0x7F
        if length == 9 or byte < 0x80:
            yield number
            number = length = 0


def _words_agree(db: apsw.Connection, counts: list[int]) -> bool:
    """Whether the full-text index has the words of the searchable notes.

    ``counts`` are the correct counts of the index.
    """
    searchable = f"SELECT rowid AS number, title, content FROM main.{NOTES} WHERE searchable = 1"
    return words_agree(db, FULL_TEXT, NOTES, searchable, "title, content", encode_varints(counts))
