"""The audit of AngelMemory's data folder, without a trace (``docs/findings.md``, "AngelMemory")."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.angel_memory import detect
from checks.angel_memory import findings as angel
from checks.angel_memory.detect import (
    FileComparison,
    FileState,
    Providers,
    VectorDifferences,
    compare_files,
    find_other_collections,
    find_providers,
    find_vector_differences,
)
from checks.audit import sqlite_checks
from checks.audit.collector import CheckOptions, CommandLine, FindingCollector, Level, OutOfTime, add_commands
from checks.audit.findings import Audit
from regraft.disk import sqlite, untrusted_sqlite
from regraft.formats.angel_memory import chroma, database
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
from regraft.language import format_count, join_list, tr
from regraft.report.progress import stage
from regraft.stores.locate import Located
from regraft.text import format_bytes

#: Relations whose tag is not there, and those whose note or memory is not.
DANGLING = "tag_id NOT IN (SELECT id FROM global_tags)"
ORPHANED = {
    NOTE_TAGS: f"source_id NOT IN (SELECT source_id FROM {RECORDS})",
    MEMORY_TAGS: f"memory_id NOT IN (SELECT id FROM {MEMORIES})",
}
#: Tags that no note and no memory has, whatever relations to others there are.
UNUSED = " AND ".join(f"id NOT IN (SELECT tag_id FROM {table} WHERE NOT {of})" for table, of in ORPHANED.items())
#: What SQLite's own check may say of one file.
_COMPLAINTS = 10


class _StoreAudit(msgspec.Struct):
    """What an audit has seen so far."""

    root: Path
    ledger: FindingCollector
    texts: dict[str, str] = msgspec.field(default_factory=dict)
    checked: dict[str, int] = msgspec.field(
        default_factory=lambda: dict.fromkeys(("records", "tags", "vectors", "raw_files", "bytes"), 0)
    )
    #: Whether the records could be read.
    has_records: bool = False
    #: The index of files, None where it could not be read.
    indexed: list[IndexedFile] | None = None


def audit(found: Located, options: CheckOptions, command_line: CommandLine | None = None) -> Audit:
    """Check a data folder without writing anything.

    Args:
        found: of the kind ``angel-memory``.
        options: how deep to look, and how long.
        command_line: gives the command lines that mend what is found; without it, none is given.

    Never raises for what is in the data.
    """
    seen = _StoreAudit(found.tree.path, FindingCollector(options.level, options.max_duration))
    steps: list[tuple[str, Callable[[_StoreAudit], None]]] = [
        (database.DATABASE, _check_records),
        (database.FILE_INDEX, _read_index),
        (database.RAW, _check_files),
        ("providers", _check_providers),
    ]
    if options.level is Level.DEEP:
        steps += [(name, partial(_check_whole, name=name)) for name in _databases(seen.root)]
    with stage(options.progress, "Checking", len(steps), "parts"):
        for name, step in steps:
            options.progress.at(name)
            _guarded(seen, name, step)
            options.progress.step(1, 0)
    audited = _audit(seen)
    return audited if command_line is None else add_commands(audited, command_line)


def bases(_: Located) -> Sequence[str]:
    """Return the ids by which a part can be chosen: there are none."""
    return ()


def _guarded(seen: _StoreAudit, name: str, step: Callable[[_StoreAudit], None]) -> None:
    """Run a check; damage in what it looks at does not end the others."""
    try:
        seen.ledger.check_time()
        step(seen)
    except OutOfTime:
        seen.ledger.not_checked.append(name)
    except (apsw.Error, OSError, ValueError, MemoryError, OverflowError) as error:
        try:
            seen.ledger.check_time()
        except OutOfTime:
            seen.ledger.not_checked.append(name)
        else:
            seen.ledger.add(angel.UNREADABLE, tr("{name} cannot be used: {error}", name=name, error=error), sample=name)


@contextmanager
def _watched(seen: _StoreAudit, name: str, opened: Any) -> Iterator[apsw.Connection]:
    """Open a database whose statements end when time is over."""
    size = (seen.root / name).stat().st_size if (seen.root / name).is_file() else 0
    seen.checked["bytes"] += size
    with opened as db, seen.ledger.watched(db, size):
        yield db


def _databases(root: Path) -> list[str]:
    folders = database.provider_folders(root)
    collections = [folder.database.relative_to(root).as_posix() for folder in folders]
    return [database.DATABASE, database.FILE_INDEX, *collections]


# --- the database of records --------------------------------------------------------------------------------------


def _check_records(seen: _StoreAudit) -> None:
    with _watched(seen, database.DATABASE, database.reading(seen.root)) as db:
        sqlite_checks.add_foreign_objects(sqlite_checks.find_foreign_on_tables(db, database.TABLES), seen.ledger, None)
        seen.texts = dict(database.vector_texts(db))
        seen.checked["records"] = database.record_count(db)
        seen.checked["tags"] = database.tag_count(db)
        seen.has_records = True
        _check_short_ids(db, seen.ledger)
        _check_relations(db, seen.ledger)


def _check_short_ids(db: apsw.Connection, ledger: FindingCollector) -> None:
    highest = database.highest_short_id(db)
    following = database.next_short_id(db)
    if highest is not None and following <= highest:
        message = tr(
            "the next short id is {following}, and a record has {highest}", following=following, highest=highest
        )
        ledger.add(angel.SHORT_ID_SEQUENCE, message, sample=following)
    doubles = f"SELECT note_short_id FROM {RECORDS} WHERE note_short_id IS NOT NULL GROUP BY 1 HAVING count(*) > 1"
    for (number,) in db.execute(f"{doubles} ORDER BY 1"):
        ledger.add(angel.SHORT_ID_DOUBLE, tr("{n} that several records have"), noun="short id", sample=number)


def _check_relations(db: apsw.Connection, ledger: FindingCollector) -> None:
    for table, orphaned in ORPHANED.items():
        kind = "note" if table == NOTE_TAGS else "memory"
        key = "source_id" if table == NOTE_TAGS else "memory_id"
        for tag, owner in db.execute(f"SELECT tag_id, {key} FROM {table} WHERE {DANGLING} ORDER BY 1, 2"):
            message = tr("{{n}} of a {kind} to a tag that is not there", kind=kind)
            ledger.add(
                angel.RELATION_DANGLING, message, noun="relation", sample=tr("{owner}: tag {tag}", owner=owner, tag=tag)
            )
        for (owner,) in db.execute(f"SELECT {key} FROM {table} WHERE {orphaned} ORDER BY 1"):
            message = tr("{{n}} of a {kind} that is not there", kind=kind)
            ledger.add(angel.RELATION_ORPHAN, message, noun="relation", sample=owner)
    for (name,) in db.execute(f"SELECT name FROM {TAGS} WHERE {UNUSED} ORDER BY id"):
        ledger.add(angel.TAG_UNUSED, tr("{n} that no note and no memory has"), noun="tag", sample=name)


# --- files --------------------------------------------------------------------------------------------------------

_SAID = {
    FileState.CHANGED: (
        angel.RECORD_CHANGED,
        tr("{n} changed since the records were made; the next scan of the system would see that"),
        tr(
            "{n} changed since the records were made, under an old time of change: no scan of the system would see that"
        ),
    ),
    FileState.NEW: (
        angel.RECORD_MISSING,
        tr("{n} without a record; the next scan of the system would make it"),
        tr("{n} without a record that the system takes for read: no scan of it would make one"),
    ),
    FileState.GONE: (angel.FILE_MISSING, *[tr("{n} gone of which there are records")] * 2),
    FileState.OUTSIDE: (angel.FILE_OUTSIDE, *[tr("{n} of records leading out of raw/")] * 2),
}


def _read_index(seen: _StoreAudit) -> None:
    with _watched(seen, database.FILE_INDEX, database.reading_files(seen.root)) as files:
        sqlite_checks.add_foreign_objects(
            sqlite_checks.find_foreign_on_tables(files, (database.FILES,)), seen.ledger, None
        )
        seen.indexed = list(database.indexed_files(files))


def _check_files(seen: _StoreAudit) -> None:
    """Compare the records with what the files give: quick looks do not read them."""
    raw = seen.root / database.RAW
    if not raw.is_dir():
        raise AngelProblem(tr("it is missing"))
    if not seen.has_records or seen.indexed is None or seen.ledger.level is Level.QUICK:
        return
    with database.reading(seen.root) as db:
        for one in compare_files(raw, database.records(db), seen.indexed, seen.ledger.check_time):
            seen.checked["raw_files"] += one.file is not None
            _say(one, seen.ledger)


def _say(one: FileComparison, ledger: FindingCollector) -> None:
    if one.state is FileState.UNREADABLE:
        ledger.add(
            angel.FILE_UNREADABLE,
            tr("{{n}} cannot be read: {problem}", problem=one.problem),
            noun="file",
            sample=one.path,
        )
    elif one.state in _SAID:
        name, seen_by_scan, unseen = _SAID[one.state]
        noun = "path" if one.state is FileState.OUTSIDE else "file"
        ledger.add(name, seen_by_scan if one.is_seen else unseen, noun=noun, sample=one.path)


# --- vectors ------------------------------------------------------------------------------------------------------


def _check_providers(seen: _StoreAudit) -> None:
    used = find_providers(seen.root)
    if used.problem is not None and used.in_use is not None:
        seen.ledger.add(angel.STATE, tr("the state file: {problem}", problem=used.problem), sample=database.STATE)
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
        seen.ledger.add(angel.PROVIDER_LEFTOVER, message, sample=folder.path.name)
    for folder in database.provider_folders(seen.root):
        name = folder.database.relative_to(seen.root).as_posix()
        _guarded(seen, name, partial(_check_full_text, name=name))
    if used.in_use is not None and seen.has_records:
        name = used.in_use.database.relative_to(seen.root).as_posix()
        _guarded(seen, name, partial(_check_vectors, used=used, folder=used.in_use))


def _check_full_text(seen: _StoreAudit, name: str) -> None:
    """Verify the full-text index of a provider's database."""
    if seen.ledger.level is Level.QUICK:
        return
    with _watched(seen, name, chroma.reading(seen.root / name)) as db:
        problem = detect.find_full_text_damage(db)
    if problem is not None:
        message = tr("the full-text index of {name} is damaged: {problem}", name=name, problem=problem)
        seen.ledger.add(angel.FULL_TEXT, message, sample=name)


def folder_size(folder: Path) -> int:
    """Return how many bytes the files in a folder have."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _check_vectors(seen: _StoreAudit, used: Providers, folder: ProviderFolder) -> None:
    found = find_vector_differences(folder, seen.texts, ids_only=seen.ledger.level is Level.QUICK)
    seen.checked["vectors"] += found.count
    if folder.database.is_file():
        seen.checked["bytes"] += folder.database.stat().st_size
    if used.is_changed and seen.texts:
        before = (
            tr("the last sync was with {stated}", stated=used.stated) if used.stated else tr("no sync was ever made")
        )
        due = format_count(len(found.embedded), "vector")
        message = tr(
            "the provider in use is {name}, and {before}: {due} to be made", name=folder.name, before=before, due=due
        )
        seen.ledger.add(angel.PROVIDER_CHANGED, message, sample=folder.name)
        if not found.count:
            # That none is there says the same once more.
            found.missing = []
    _tell(found, seen.ledger)


def _tell(found: VectorDifferences, ledger: FindingCollector) -> None:
    for name, message, noun, keys in (
        (angel.VECTOR_MISSING, tr("{n} without a vector"), "record", found.missing),
        (angel.DOCUMENT_STALE, tr("{n} of another text than the record's tags give"), "vector", found.stale),
        (
            angel.DIMENSION,
            tr("{{n}} of another length than the {dimension} dimensions of the collection", dimension=found.dimension),
            "vector",
            found.lengths,
        ),
        (angel.VECTOR_UNUSABLE, tr("{n} of zeros, with NaN or infinity, or lost"), "vector", found.unusable),
        (angel.VECTOR_ORPHAN, tr("{n} of no record"), "vector", found.orphans),
        (angel.METADATA, tr("{n} whose metadata is not the source id"), "vector", found.metadata),
    ):
        for key in keys:
            ledger.add(name, message, noun=noun, sample=key)


# --- the whole ----------------------------------------------------------------------------------------------------


def _check_whole(seen: _StoreAudit, name: str) -> None:
    with sqlite.open_readonly(seen.root / name, beside_writers=True) as db:
        for message in _complaints(db):
            seen.ledger.add(
                angel.UNREADABLE, tr("{name} is damaged: {{n}}", name=name), noun="complaint", sample=message
            )


def _complaints(db: apsw.Connection) -> Iterator[str]:
    """Yield what SQLite's own check says of a database. A damaged full-text index is a finding of its own."""
    scopes: list[object] = [_COMPLAINTS]
    if detect.find_full_text_damage(db) is not None:
        tables = db.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT GLOB ?", (f"{detect.FULL_TEXT_TABLE}*",)
        )
        scopes = [untrusted_sqlite.quote_name(str(table)) for (table,) in tables]
    for scope in scopes:
        for (message,) in db.execute(f"PRAGMA integrity_check({scope})"):
            if message != "ok":
                yield str(message)


def _audit(seen: _StoreAudit) -> Audit:
    ledger = seen.ledger
    return Audit(
        findings=ledger.findings(),
        checked=seen.checked,
        names={},
        closing=ledger.closing(tr("files and texts"), tr("all pages of the databases")),
        not_checked=ledger.missing(),
        level=ledger.level.name.lower(),
    )
