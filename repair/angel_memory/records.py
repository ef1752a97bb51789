"""``repair`` of AngelMemory: the records follow the files below ``raw/``, as the system's own scan would make them.

The index of files changes before the records: killed in between, the records still differ from what their files give,
and the next run goes on (``docs/angel-memory.md``, "Records").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.angel_memory import detect
from checks.angel_memory import findings as angel
from checks.angel_memory.detect import (
    DIFFERING_DOCUMENTS,
    FULL_TEXT_CONTENT,
    FULL_TEXT_TABLE,
    FileComparison,
    FileState,
    compare_files,
)
from checks.audit import sqlite_checks
from regraft.disk import sqlite, untrusted_sqlite
from regraft.errors import FullTextNotRebuilt
from regraft.formats.angel_memory import chroma, database
from regraft.formats.angel_memory.chroma import ChromaProblem
from regraft.formats.angel_memory.database import FILES, NOTE_TAGS, RECORDS, SEQUENCE, TAGS, Note, Record
from regraft.language import format_count, tr
from repair.changes import schema_objects
from repair.changes.files import copy_database
from repair.changes.plan import Action, Change, FileChange, Plan, RowsChange, Unresolved, group_by_name, other_warnings
from repair.changes.store import Store
from repair.options import RepairOptions

# Rebuild the full-text index of a Chroma database from the documents that it is derived from.
#
# The rebuild happens in a copy, which takes the place of the database in one step; ``undo`` brings the old one back.


#: FTS5's own format, without which it does not open its tables.
_FORMAT = 4


def plan_full_text(root: Path) -> Iterator[FileChange]:
    """Yield the rebuild of every damaged full-text index."""
    for folder in database.provider_folders(root):
        try:
            with chroma.reading(folder.database) as db:
                problem = detect.find_full_text_damage(db)
        except (ChromaProblem, apsw.Error, OSError):
            continue  # ``check`` reports it as unreadable; no index can be rebuilt in such a file
        if problem is None:
            continue
        name = folder.database.relative_to(root).as_posix()
        action = Action(
            action="rebuild-full-text",
            message=tr("rebuild the full-text index of {name} from its documents", name=name),
            base=None,
            subject=name,
            finding=angel.FULL_TEXT,
        )
        size = folder.database.stat().st_size
        yield FileChange(path=name, actions=(action,), make=partial(_make, folder.database), bytes=2 * size)


def _make(path: Path, new: Path) -> None:
    """Write a copy of the database at ``path`` with a sound full-text index to ``new``.

    Raises:
        FullTextNotRebuilt: FTS5 cannot rebuild it.
    """
    copy_database(path, new)
    try:
        with sqlite.open_writable(new) as db:
            with sqlite.transaction(db):
                _rebuild(db)
            problem = detect.find_full_text_damage(db)
    except apsw.Error as error:
        raise FullTextNotRebuilt(path=path, reason=error) from error
    if problem is not None:
        raise FullTextNotRebuilt(path=path, reason=problem)


def _rebuild(db: apsw.Connection) -> None:
    with untrusted_sqlite.allow_schema_writes(db):
        db.execute(f"INSERT OR REPLACE INTO {FULL_TEXT_TABLE}_config (k, v) VALUES ('version', ?)", (_FORMAT,))
        db.execute(
            f"INSERT OR REPLACE INTO {FULL_TEXT_CONTENT} (id, c0) SELECT m.id, m.string_value {DIFFERING_DOCUMENTS}"
        )
    db.execute(f"INSERT INTO {FULL_TEXT_TABLE} ({FULL_TEXT_TABLE}) VALUES ('rebuild')")


_OF_STATE = {
    FileState.CHANGED: (
        angel.RECORD_CHANGED,
        "replace-records",
        tr("{path} changed: records {gone} go, {come} come"),
    ),
    FileState.NEW: (angel.RECORD_MISSING, "add-records", tr("{path} has no record: {come} come")),
    FileState.GONE: (angel.FILE_MISSING, "delete-records", tr("{path} is gone: records {gone} go")),
}
#: Findings that are mended.
NAMES = (
    *(finding for finding, _, _ in _OF_STATE.values()),
    angel.SHORT_ID_SEQUENCE,
    angel.SHORT_ID_DOUBLE,
    angel.FULL_TEXT,
)
#: What is foreign in each of the databases.
_LOOKS = {
    database.DATABASE: partial(sqlite_checks.find_foreign_on_tables, tables=database.TABLES),
    database.FILE_INDEX: partial(sqlite_checks.find_foreign_on_tables, tables=(FILES,)),
}
#: About how many bytes a record, and its relations, hold.
_RECORD_BYTES = 600


def plan(store: Store, options: RepairOptions) -> Plan:
    """Return what is going to be mended; nothing is written."""
    found = group_by_name(store.findings())
    wanted = options.wanted(NAMES).intersection(NAMES, found)
    made = schema_objects.add_drops(_own(store, wanted), store, found, options.only, _LOOKS)
    if not options.only:
        made.left += [Unresolved.with_remedy(one) for one in other_warnings(found, (*NAMES, *schema_objects.NAMES))]
    return made


def _own(store: Store, wanted: frozenset[str]) -> Plan:
    if not wanted:
        return Plan()
    work = _work(store, wanted)
    changes: list[Change] = [change for change in (_of_files(work), _of_records(work)) if change is not None]
    if angel.FULL_TEXT in wanted:
        changes += plan_full_text(store.root)
    return Plan(changes, resolves={(name, None) for name in wanted})


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done to both databases."""

    #: The files whose records change, each with the id that it gets in the index of files; None: it has none there.
    files: list[tuple[FileComparison, int | None]]
    #: Records that get a new short id, since one that was stored before has theirs.
    doubles: list[Record]
    #: The first short id that is free.
    next_id: int
    #: Whether the sequence is to be set although no record gets a new id.
    sets_sequence: bool


def _work(store: Store, wanted: frozenset[str]) -> _Work:
    with database.reading(store.root) as db:
        records = list(database.records(db))
        highest = database.highest_short_id(db)
        next_id = max(database.next_short_id(db), 0 if highest is None else highest + 1)
        doubles = _doubles(db, records) if angel.SHORT_ID_DOUBLE in wanted else []
    states = [state for state, (finding, _, _) in _OF_STATE.items() if finding in wanted]
    files = list(_changed_files(store.root, records, states)) if states else []
    return _Work(files=files, doubles=doubles, next_id=next_id, sets_sequence=angel.SHORT_ID_SEQUENCE in wanted)


def _doubles(db: apsw.Connection, records: list[Record]) -> list[Record]:
    later = db.execute(
        f"SELECT source_id FROM {RECORDS} r WHERE EXISTS (SELECT 1 FROM {RECORDS} o "
        "WHERE o.note_short_id = r.note_short_id AND o.rowid < r.rowid)"
    )
    keys = {str(key) for (key,) in later}
    return [one for one in records if one.source_id in keys]


def _changed_files(
    root: Path, records: list[Record], states: Collection[FileState]
) -> Iterator[tuple[FileComparison, int | None]]:
    """Yield the files in these states; each that is there gets an id."""
    with database.reading_files(root) as files:
        indexed = list(database.indexed_files(files))
        number = _next_file_id(files)
    for one in compare_files(root / database.RAW, records, indexed):
        if one.state is FileState.GONE and one.state in states:
            yield one, None
        elif one.state in states:
            yield one, number
            number += 1


def _next_file_id(files: apsw.Connection) -> int:
    """Return the id that the system would give to the next file: none is given twice."""
    used: Any = files.execute(f"SELECT ifnull(max(id), 0) FROM {FILES}").get
    given: Any = files.execute("SELECT max(CAST(seq AS INTEGER)) FROM sqlite_sequence WHERE name = ?", (FILES,)).get
    return int(max(used, given or 0)) + 1


# --- the index of files -------------------------------------------------------------------------------------------


def _of_files(work: _Work) -> RowsChange | None:
    """Return the change of the index of files: what is read now is not read again by the system's next scan."""
    changed = [(one, number) for one, number in work.files if one.indexed is not None or number is not None]
    if not changed:
        return None

    def apply(db: apsw.Connection) -> None:
        for one, number in changed:
            db.execute(f"DELETE FROM {FILES} WHERE relative_path = ?", (one.path,))
            if number is not None and one.file is not None:
                values = (number, one.path, one.file.seconds)
                db.execute(f"INSERT INTO {FILES} (id, relative_path, file_timestamp) VALUES (?, ?, ?)", values)

    said = tr("bring {files} up to date in the index of files", files=format_count(len(changed), "file"))
    action = Action(action="index-files", message=said, base=None, subject=database.FILE_INDEX, count=len(changed))
    return RowsChange(
        path=database.FILE_INDEX, actions=(action,), apply=apply, tables=(FILES,), bytes=_RECORD_BYTES * len(changed)
    )


# --- the records --------------------------------------------------------------------------------------------------


def _of_records(work: _Work) -> RowsChange | None:
    actions = [*_replacing(work), *_numbering(work)]
    if not actions:
        return None

    def apply(db: apsw.Connection) -> None:
        following = work.next_id
        for record in work.doubles:
            db.execute(f"UPDATE {RECORDS} SET note_short_id = ? WHERE source_id = ?", (following, record.source_id))
            following += 1
        for one, _ in work.files:
            _remove(db, (record.source_id for record in one.records))
            # A record without an id has its path all the same.
            db.execute(f"DELETE FROM {RECORDS} WHERE source_file_path = ?", (one.path,))
        for one, number in work.files:
            # An id may be left over, with another path or with relations alone.
            _remove(db, (note.source_id for note in one.notes))
            for note in one.notes:
                _add(db, note, one, str(number), following)
                following += 1
        db.execute(f"INSERT OR REPLACE INTO {SEQUENCE} (id, next_id) VALUES (1, ?)", (following,))

    rows = sum(len(one.records) + len(one.notes) for one, _ in work.files) + len(work.doubles)
    tables = (RECORDS, TAGS, NOTE_TAGS, SEQUENCE)
    return RowsChange(
        path=database.DATABASE, actions=tuple(actions), apply=apply, tables=tables, bytes=_RECORD_BYTES * rows
    )


def _replacing(work: _Work) -> Iterator[Action]:
    """Yield what is done to the records of each file, with the short ids that go and those that come."""
    following = work.next_id + len(work.doubles)
    for one, _ in work.files:
        finding, name, said = _OF_STATE[one.state]
        come = list(range(following, following + len(one.notes)))
        following += len(come)
        gone = sorted(record.short_id for record in one.records if record.short_id is not None)
        count = len(one.records) if one.state is FileState.GONE else len(one.notes)
        yield Action(
            action=name,
            message=said.format(path=one.path, gone=_ranges(gone), come=_ranges(come)),
            base=None,
            subject=one.path,
            count=count,
            finding=finding,
            gone=gone,
            come=come,
        )


def _ranges(numbers: Iterable[int]) -> str:
    """Return numbers, which ascend, for a person: those in a row by the first and the last of them."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join("–".join(map(str, one)) for one in found) or tr("none")


def _numbering(work: _Work) -> Iterable[Action]:
    if work.doubles:
        said = tr("give {records} a short id of their own", records=format_count(len(work.doubles), "record"))
        yield Action(
            action="renumber-records",
            message=said,
            base=None,
            subject=None,
            count=len(work.doubles),
            finding=angel.SHORT_ID_DOUBLE,
        )
    if work.sets_sequence:
        said = tr("set the next short id behind the highest")
        yield Action(action="set-sequence", message=said, base=None, subject=None, finding=angel.SHORT_ID_SEQUENCE)


def _remove(db: apsw.Connection, keys: Iterable[str]) -> None:
    for key in keys:
        db.execute(f"DELETE FROM {NOTE_TAGS} WHERE source_id = ?", (key,))
        db.execute(f"DELETE FROM {RECORDS} WHERE source_id = ?", (key,))


def _add(db: apsw.Connection, note: Note, one: FileComparison, file_id: str, short_id: int) -> None:
    """Store a note of a file, its tags, and what relates them."""
    updated_at = float(one.file.seconds) if one.file is not None else 0.0
    values = (note.source_id, short_id, file_id, one.path, *note.headings, note.total_lines, updated_at)
    db.execute(
        f"INSERT INTO {RECORDS} (source_id, note_short_id, file_id, source_file_path, heading_h1, heading_h2,"
        f" heading_h3, heading_h4, heading_h5, heading_h6, total_lines, updated_at)"
        f" VALUES ({', '.join('?' * len(values))})",
        values,
    )
    for tag in note.tags:
        if db.execute(f"SELECT 1 FROM {TAGS} WHERE name = ?", (tag,)).get is None:
            db.execute(f"INSERT INTO {TAGS} (name) VALUES (?)", (tag,))
        db.execute(f"INSERT INTO {NOTE_TAGS} SELECT ?, id FROM {TAGS} WHERE name = ?", (note.source_id, tag))
