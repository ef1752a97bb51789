"""Audit AngelMemory's data folder without writing (``docs/findings.md``, "AngelMemory")."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.angel_memory import findings as angel
from checks.angel_memory.detect import (
    FileState,
    Providers,
    compare_files,
    find_other_collections,
    find_providers,
    find_vector_differences,
)
from checks.audit import sqlite_checks
from checks.audit.collector import CheckOptions, CommandLine, FindingCollector, Level, Step, add_commands
from checks.audit.findings import Audit
from regraft.disk import sqlite, untrusted_sqlite
from regraft.formats.angel_memory import database
from regraft.formats.angel_memory.database import (
    MEMORIES,
    MEMORY_TAGS,
    NOTE_TAGS,
    RECORDS,
    TAGS,
    AngelProblem,
    IndexedFile,
    ProviderFolder,
)
from regraft.formats.chroma import database as chroma
from regraft.language import format_count, join_list, tr
from regraft.report.labels import label_of
from regraft.report.progress import SilentProgress
from regraft.stores.locate import Located
from regraft.text import format_bytes

#: SQL conditions: relations whose tag is missing, and relations whose note or memory is missing.
DANGLING = "tag_id NOT IN (SELECT id FROM global_tags)"
ORPHANED = {
    NOTE_TAGS: f"source_id NOT IN (SELECT source_id FROM {RECORDS})",
    MEMORY_TAGS: f"memory_id NOT IN (SELECT id FROM {MEMORIES})",
}
#: SQL condition: tags that no existing note or memory has.
UNUSED = " AND ".join(f"id NOT IN (SELECT tag_id FROM {table} WHERE NOT {of})" for table, of in ORPHANED.items())
#: Maximum number of messages of SQLite's own check for a file.
_COMPLAINTS = 10


class _StoreAudit(msgspec.Struct):
    """State of the audit of one data folder."""

    root: Path
    findings: FindingCollector
    texts: dict[str, str] = msgspec.field(default_factory=dict)
    checked: dict[str, int] = msgspec.field(
        default_factory=lambda: dict.fromkeys(("records", "tags", "vectors", "raw_files", "bytes"), 0)
    )
    #: Whether the records could be read.
    has_records: bool = False
    #: The index of files; None: it could not be read.
    indexed: list[IndexedFile] | None = None


def audit(store: Located, options: CheckOptions, command_line: CommandLine | None = None) -> Audit:
    """Audit a data folder of AngelMemory without writing. The data never makes this raise.

    Args:
        store: a store of the kind ``angel-memory``.
        options: level and time limit.
        command_line: makes the command lines that fix findings; None: findings get no command.
    """
    state = _StoreAudit(store.tree.path, FindingCollector(options.level, options.max_duration))
    findings = state.findings
    steps: list[Step] = [
        (database.DATABASE, None, partial(_check_records, state)),
        (database.FILE_INDEX, None, partial(_read_index, state)),
        (database.RAW, None, partial(_check_files, state)),
        ("providers", None, partial(_check_providers, state)),
    ]
    if options.level is Level.DEEP:
        databases = (database.DATABASE, database.FILE_INDEX, *_collection_databases(state.root))
        steps += [(name, None, partial(_check_integrity, state, name)) for name in databases]
    findings.run_parts(steps, options.progress, angel.UNREADABLE, _describe_stop)
    closing = findings.closing(tr("files and texts"), tr("all pages of the databases"))
    return add_commands(findings.to_audit(checked=state.checked, names={}, closing=closing), command_line)


def _describe_stop(name: str, error: Exception) -> str:
    """Return the message of the finding for a check that was stopped: its name and the error."""
    return tr("{name} cannot be used: {error}", name=name, error=error)


@contextmanager
def _open_watched(state: _StoreAudit, name: str, opening: Any) -> Iterator[apsw.Connection]:
    """Open a database whose statements are interrupted when the time limit has passed.

    Args:
        state: the audit; the size of the file is added to its counts.
        name: path of the file in the data folder.
        opening: context manager that opens the database.
    """
    size = (state.root / name).stat().st_size if (state.root / name).is_file() else 0
    state.checked["bytes"] += size
    with opening as db, state.findings.limit_statements(db, size):
        yield db


def _collection_databases(root: Path) -> list[str]:
    """Return the paths of the databases of all embedding providers, relative to the data folder."""
    return [folder.database.relative_to(root).as_posix() for folder in database.find_provider_folders(root)]


# --- the database of records --------------------------------------------------------------------------------------


def _check_records(state: _StoreAudit) -> None:
    """Read the texts and counts of the records; report foreign objects, wrong short ids and dangling relations."""
    with _open_watched(state, database.DATABASE, database.open_records(state.root)) as db:
        sqlite_checks.add_foreign_objects(
            sqlite_checks.find_foreign_on_tables(db, database.TABLES), state.findings, None
        )
        state.texts = dict(database.iterate_vector_texts(db))
        state.checked["records"] = database.count_records(db)
        state.checked["tags"] = database.count_tags(db)
        state.has_records = True
        highest = database.find_highest_short_id(db)
        following = database.read_next_short_id(db)
        if highest is not None and following <= highest:
            message = tr(
                "the next short id is {following}, and a record has {highest}", following=following, highest=highest
            )
            state.findings.add(angel.SHORT_ID_SEQUENCE, message, sample=following)
        doubles = f"SELECT note_short_id FROM {RECORDS} WHERE note_short_id IS NOT NULL GROUP BY 1 HAVING count(*) > 1"
        for (number,) in db.execute(f"{doubles} ORDER BY 1"):
            state.findings.add(
                angel.SHORT_ID_DOUBLE, tr("{n} shared by several records"), noun="short id", sample=number
            )
        _check_relations(db, state.findings)


def _check_relations(db: apsw.Connection, findings: FindingCollector) -> None:
    """Report relations whose tag, note or memory is missing, and unused tags."""
    for table, orphaned in ORPHANED.items():
        kind = label_of("note" if table == NOTE_TAGS else "memory")
        key = "source_id" if table == NOTE_TAGS else "memory_id"
        for tag, owner in db.execute(f"SELECT tag_id, {key} FROM {table} WHERE {DANGLING} ORDER BY 1, 2"):
            message = tr("{{n}} of a {kind} to a missing tag", kind=kind)
            findings.add(
                angel.RELATION_DANGLING, message, noun="relation", sample=tr("{owner}: tag {tag}", owner=owner, tag=tag)
            )
        for (owner,) in db.execute(f"SELECT {key} FROM {table} WHERE {orphaned} ORDER BY 1"):
            message = tr("{{n}} belonging to a missing {kind}", kind=kind)
            findings.add(angel.RELATION_ORPHAN, message, noun="relation", sample=owner)
    for (name,) in db.execute(f"SELECT name FROM {TAGS} WHERE {UNUSED} ORDER BY id"):
        findings.add(angel.TAG_UNUSED, tr("{n} not used by any note or memory"), noun="tag", sample=name)


# --- files --------------------------------------------------------------------------------------------------------

_SAID = {
    FileState.CHANGED: (
        angel.RECORD_CHANGED,
        tr("{n} changed since the records were made; the system's next scan would notice"),
        tr(
            "{n} changed since the records were made, but with an old modification time: the system's scan "
            "would not notice"
        ),
    ),
    FileState.NEW: (
        angel.RECORD_MISSING,
        tr("{n} without a record; the system's next scan would make it"),
        tr("{n} without a record, but marked as read by the system: its scan would not make one"),
    ),
    FileState.GONE: (angel.FILE_MISSING, *[tr("{n} recorded but missing")] * 2),
    FileState.OUTSIDE: (angel.FILE_OUTSIDE, *[tr("{n} of records pointing outside raw/")] * 2),
}


def _read_index(state: _StoreAudit) -> None:
    """Read the system's index of note files into the state, and report foreign objects in its database."""
    with _open_watched(state, database.FILE_INDEX, database.open_file_index(state.root)) as files:
        sqlite_checks.add_foreign_objects(
            sqlite_checks.find_foreign_on_tables(files, (database.FILES,)), state.findings, None
        )
        state.indexed = list(database.iterate_indexed_files(files))


def _check_files(state: _StoreAudit) -> None:
    """Report note files that differ from their records. At the quick level no files are read."""
    raw = state.root / database.RAW
    if not raw.is_dir():
        raise AngelProblem(tr("it is missing"))
    if not state.has_records or state.indexed is None or state.findings.level is Level.QUICK:
        return
    with database.open_records(state.root) as db:
        for one in compare_files(raw, database.iterate_records(db), state.indexed, state.findings.check_time):
            state.checked["raw_files"] += one.file is not None
            if one.state is FileState.UNREADABLE:
                state.findings.add(
                    angel.FILE_UNREADABLE,
                    tr("{{n}} cannot be read: {problem}", problem=one.problem),
                    noun="file",
                    sample=one.path,
                )
            elif one.state in _SAID:
                name, seen_by_scan, unseen = _SAID[one.state]
                noun = "path" if one.state is FileState.OUTSIDE else "file"
                state.findings.add(name, seen_by_scan if one.is_seen_by_scan else unseen, noun=noun, sample=one.path)


# --- vectors ------------------------------------------------------------------------------------------------------


def _check_providers(state: _StoreAudit) -> None:
    """Report problems of the state file, leftover folders of embedding providers, and problems of their databases."""
    used = find_providers(state.root)
    if used.problem is not None and used.in_use is not None:
        state.findings.add(angel.STATE, tr("the state file: {problem}", problem=used.problem), sample=database.STATE)
    for folder in used.leftovers:
        others = find_other_collections(folder)
        more = (
            tr(
                ", and in it the {collections} {others}",
                collections=format_count(len(others), "collection"),
                others=join_list(others),
            )
            if others
            else ""
        )
        message = tr(
            "{name}: {size_of} of a provider that is not in use{more}",
            name=folder.path.name,
            size_of=format_bytes(folder_size(folder.path)),
            more=more,
        )
        state.findings.add(angel.PROVIDER_LEFTOVER, message, sample=folder.path.name)
    collections = _collection_databases(state.root)
    steps: list[Step] = [(name, None, partial(_check_full_text, state, name)) for name in collections]
    if used.in_use is not None and state.has_records:
        name = used.in_use.database.relative_to(state.root).as_posix()
        steps.append((name, None, partial(_check_vectors, state, used, used.in_use)))
    state.findings.run_parts(steps, SilentProgress(), angel.UNREADABLE, _describe_stop)


def _check_full_text(state: _StoreAudit, name: str) -> None:
    """Verify the full-text index of a provider's database; ``name`` is its path in the data folder."""
    if state.findings.level is Level.QUICK:
        return
    with _open_watched(state, name, chroma.open_chroma(state.root / name)) as db:
        problem = chroma.find_full_text_damage(db)
    if problem is not None:
        message = tr("the full-text index of {name} is damaged: {problem}", name=name, problem=problem)
        state.findings.add(angel.FULL_TEXT, message, sample=name)


def folder_size(folder: Path) -> int:
    """Add up the sizes of all files below a folder, in bytes."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _check_vectors(state: _StoreAudit, providers: Providers, folder: ProviderFolder) -> None:
    """Compare the vectors of the provider in use, which are in ``folder``, with the records."""
    found = find_vector_differences(folder, state.texts, ids_only=state.findings.level is Level.QUICK)
    state.checked["vectors"] += found.count
    if folder.database.is_file():
        state.checked["bytes"] += folder.database.stat().st_size
    if providers.is_changed and state.texts:
        before = (
            tr("the last sync was with {stated}", stated=providers.stated)
            if providers.stated
            else tr("no sync was ever made")
        )
        due = format_count(len(found.embedded), "vector")
        message = tr(
            "the provider in use is {name}, and {before}: the next sync makes {due}",
            name=folder.name,
            before=before,
            due=due,
        )
        state.findings.add(angel.PROVIDER_CHANGED, message, sample=folder.name)
        if not found.count:
            # "provider-changed" says the same already.
            found.missing = []
    for name, message, noun, keys in (
        (angel.VECTOR_MISSING, tr("{n} without a vector"), "record", found.missing),
        (angel.DOCUMENT_STALE, tr("{n} made from a different text than the record's tags"), "vector", found.stale),
        (
            angel.DIMENSION,
            tr(
                "{{n}} whose length differs from the {dimension} dimensions of the collection",
                dimension=found.dimension,
            ),
            "vector",
            found.lengths,
        ),
        (angel.VECTOR_UNUSABLE, tr("{n} of all zeros, with NaN or infinity, or lost"), "vector", found.unusable),
        (angel.VECTOR_ORPHAN, tr("{n} belonging to no record"), "vector", found.orphans),
        (angel.METADATA, tr("{n} whose metadata is not its source id"), "vector", found.metadata),
    ):
        for key in keys:
            state.findings.add(name, message, noun=noun, sample=key)


# --- the whole ----------------------------------------------------------------------------------------------------


def _check_integrity(state: _StoreAudit, name: str) -> None:
    """Run SQLite's integrity check over the database with the path ``name`` in the data folder."""
    with sqlite.open_readonly(state.root / name, beside_writers=True) as db:
        for message in _find_damage(db):
            state.findings.add(
                angel.UNREADABLE, tr("{name} is damaged: {{n}}", name=name), noun="complaint", sample=message
            )


def _find_damage(db: apsw.Connection) -> Iterator[str]:
    """Yield the messages of SQLite's integrity check. A damaged full-text index is left out: it has its own finding."""
    scopes: list[object] = [_COMPLAINTS]
    if chroma.find_full_text_damage(db) is not None:
        tables = db.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT GLOB ?", (f"{chroma.FULL_TEXT_TABLE}*",)
        )
        scopes = [untrusted_sqlite.quote_name(str(table)) for (table,) in tables]
    for scope in scopes:
        for (message,) in db.execute(f"PRAGMA integrity_check({scope})"):
            if message != "ok":
                yield str(message)
