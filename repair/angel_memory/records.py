"""Plan ``repair`` of AngelMemory: make the records match the files below ``raw/``, and rebuild full-text indexes.

Records are written as the system's own scan would write them. A full-text index is rebuilt in a copy that replaces the
database, and undo restores the old file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.angel_memory import findings as angel
from checks.angel_memory.detect import (
    FileComparison,
    FileState,
    compare_files,
)
from checks.audit import sqlite_checks
from regraft.formats.angel_memory import database
from regraft.formats.angel_memory.database import FILES, NOTE_TAGS, RECORDS, SEQUENCE, TAGS, Note, Record
from regraft.formats.chroma import database as chroma
from regraft.formats.chroma.database import ChromaProblem
from regraft.language import format_count, tr
from repair.changes import schema_objects
from repair.changes.options import RepairOptions
from repair.changes.plan import Action, Change, FileChange, Plan, RowsChange, Unresolved, group_by_name, other_warnings
from repair.changes.store import Store
from repair.chroma import full_text


def _plan_full_text(root: Path) -> Iterator[FileChange | Unresolved]:
    """Yield a change for every Chroma database whose full-text index is damaged, or why it cannot be rebuilt."""
    for folder in database.find_provider_folders(root):
        try:
            with chroma.open_chroma(folder.database) as db:
                problem = chroma.find_full_text_damage(db)
        except (ChromaProblem, apsw.Error, OSError):
            continue  # ``check`` reports it as unreadable; no index can be rebuilt in such a file
        if problem is None:
            continue
        name = folder.database.relative_to(root).as_posix()
        action = full_text.plan_rebuild(folder.database, name, angel.FULL_TEXT)
        if isinstance(action, Unresolved):
            yield action
            continue
        size = folder.database.stat().st_size
        yield FileChange(
            path=name, actions=(action,), make=partial(full_text.rebuild_in_copy, folder.database), bytes=2 * size
        )


_STATE_ACTIONS = {
    FileState.CHANGED: (
        angel.RECORD_CHANGED,
        "replace-records",
        tr("update the records of {path}, which changed: delete {gone}, add {come}"),
    ),
    FileState.NEW: (angel.RECORD_MISSING, "add-records", tr("add records {come} for {path}")),
    FileState.GONE: (
        angel.FILE_MISSING,
        "delete-records",
        tr("delete records {gone} of {path}, which no longer exists"),
    ),
}
#: Findings that this module repairs.
NAMES = (
    *(finding for finding, _, _ in _STATE_ACTIONS.values()),
    angel.SHORT_ID_SEQUENCE,
    angel.SHORT_ID_DOUBLE,
    angel.FULL_TEXT,
)
#: Functions that find foreign schema objects in each database.
_FOREIGN_OBJECTS = {
    database.DATABASE: partial(sqlite_checks.find_foreign_on_tables, tables=database.TABLES),
    database.FILE_INDEX: partial(sqlite_checks.find_foreign_on_tables, tables=(FILES,)),
}
#: Approximate size of a record and its relations, in bytes.
_RECORD_BYTES = 600


def plan(store: Store, options: RepairOptions) -> Plan:
    """Plan the repair of the chosen findings."""
    found = group_by_name(store.findings())
    wanted = options.wanted(NAMES).intersection(NAMES, found)
    made = schema_objects.add_drops(_plan_own(store, wanted), store, found, options.only, _FOREIGN_OBJECTS)
    if not options.only:
        made.left += [Unresolved.with_remedy(one) for one in other_warnings(found, (*NAMES, *schema_objects.NAMES))]
    return made


def _plan_own(store: Store, wanted: frozenset[str]) -> Plan:
    """Plan the repair of the tables that AngelMemory itself defines, for the findings named in ``wanted``."""
    if not wanted:
        return Plan()
    planned = _collect_changes(store, wanted)
    changes: list[Change] = [
        change for change in (_file_index_change(planned), _records_change(planned)) if change is not None
    ]
    left = []
    if angel.FULL_TEXT in wanted:
        for one in _plan_full_text(store.root):
            if isinstance(one, Unresolved):
                left.append(one)
            else:
                changes.append(one)
    return Plan(changes, left, resolves={(name, None) for name in wanted})


class _RecordChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Planned changes of the database of records and of the index of files."""

    #: Files whose records change, with their new id in the index of files; None: not in that index.
    files: list[tuple[FileComparison, int | None]]
    #: Records that need a new short id because an earlier record has the same one.
    doubles: list[Record]
    #: First unused short id.
    next_id: int
    #: Whether to set the sequence although no record gets a new id.
    sets_sequence: bool


def _collect_changes(store: Store, wanted: frozenset[str]) -> _RecordChanges:
    """Collect the records and files that the repair of the findings ``wanted`` changes."""
    with database.open_records(store.root) as db:
        records = list(database.iterate_records(db))
        highest = database.find_highest_short_id(db)
        next_id = max(database.read_next_short_id(db), 0 if highest is None else highest + 1)
        doubles = _find_duplicate_ids(db, records) if angel.SHORT_ID_DOUBLE in wanted else []
    states = [state for state, (finding, _, _) in _STATE_ACTIONS.items() if finding in wanted]
    files = list(_find_changed_files(store.root, records, states)) if states else []
    return _RecordChanges(
        files=files, doubles=doubles, next_id=next_id, sets_sequence=angel.SHORT_ID_SEQUENCE in wanted
    )


def _find_duplicate_ids(db: apsw.Connection, records: list[Record]) -> list[Record]:
    """Select the records whose short id an earlier record in the database already has."""
    later = db.execute(
        f"SELECT source_id FROM {RECORDS} r WHERE EXISTS (SELECT 1 FROM {RECORDS} o "
        "WHERE o.note_short_id = r.note_short_id AND o.rowid < r.rowid)"
    )
    keys = {str(key) for (key,) in later}
    return [one for one in records if one.source_id in keys]


def _find_changed_files(
    root: Path, records: list[Record], states: Collection[FileState]
) -> Iterator[tuple[FileComparison, int | None]]:
    """Yield the files in the given states, each with its new id in the index of files; None for a deleted file.

    Args:
        root: the data folder.
        records: all records of the database.
        states: how a file may differ from its records.
    """
    with database.open_file_index(root) as files:
        indexed = list(database.iterate_indexed_files(files))
        # The id that the system would give to the next file. Ids are never reused.
        used: Any = files.execute(f"SELECT ifnull(max(id), 0) FROM {FILES}").get
        given: Any = files.execute("SELECT max(CAST(seq AS INTEGER)) FROM sqlite_sequence WHERE name = ?", (FILES,)).get
        number = int(max(used, given or 0)) + 1
    for one in compare_files(root / database.RAW, records, indexed):
        if one.state is FileState.GONE and one.state in states:
            yield one, None
        elif one.state in states:
            yield one, number
            number += 1


# --- the index of files -------------------------------------------------------------------------------------------


def _file_index_change(planned: _RecordChanges) -> RowsChange | None:
    """Build the change of the index of files, so that the system's next scan does not read the files again.

    None if no entry of the index changes.
    """
    changed = [(one, number) for one, number in planned.files if one.indexed is not None or number is not None]
    if not changed:
        return None

    def apply(db: apsw.Connection) -> None:
        """Replace the rows of the changed files."""
        for one, number in changed:
            db.execute(f"DELETE FROM {FILES} WHERE relative_path = ?", (one.path,))
            if number is not None and one.file is not None:
                values = (number, one.path, one.file.seconds)
                db.execute(f"INSERT INTO {FILES} (id, relative_path, file_timestamp) VALUES (?, ?, ?)", values)

    message = tr("update {files} in the file index", files=format_count(len(changed), "file"))
    action = Action(action="index-files", message=message, subject=database.FILE_INDEX, count=len(changed))
    return RowsChange(
        path=database.FILE_INDEX, actions=(action,), apply=apply, tables=(FILES,), bytes=_RECORD_BYTES * len(changed)
    )


# --- the records --------------------------------------------------------------------------------------------------


def _records_change(planned: _RecordChanges) -> RowsChange | None:
    """Build the change that replaces and renumbers records; None if there is nothing to do."""
    actions = [*_replace_actions(planned), *_number_actions(planned)]
    if not actions:
        return None

    def apply(db: apsw.Connection) -> None:
        """Renumber records with duplicate short ids, then replace the records of the changed files."""
        following = planned.next_id
        for record in planned.doubles:
            db.execute(f"UPDATE {RECORDS} SET note_short_id = ? WHERE source_id = ?", (following, record.source_id))
            following += 1
        for one, _ in planned.files:
            _delete_records(db, (record.source_id for record in one.records))
            # Records with an empty id are found by their path.
            db.execute(f"DELETE FROM {RECORDS} WHERE source_file_path = ?", (one.path,))
        for one, number in planned.files:
            # The id may still exist with another path, or only in relations.
            _delete_records(db, (note.source_id for note in one.notes))
            for note in one.notes:
                _insert_note(db, note, one, str(number), following)
                following += 1
        db.execute(f"INSERT OR REPLACE INTO {SEQUENCE} (id, next_id) VALUES (1, ?)", (following,))

    rows = sum(len(one.records) + len(one.notes) for one, _ in planned.files) + len(planned.doubles)
    tables = (RECORDS, TAGS, NOTE_TAGS, SEQUENCE)
    return RowsChange(
        path=database.DATABASE, actions=tuple(actions), apply=apply, tables=tables, bytes=_RECORD_BYTES * rows
    )


def _replace_actions(planned: _RecordChanges) -> Iterator[Action]:
    """Yield one action for each changed file, with the short ids of its old and new records."""
    following = planned.next_id + len(planned.doubles)
    for one, _ in planned.files:
        finding, name, message = _STATE_ACTIONS[one.state]
        come = list(range(following, following + len(one.notes)))
        following += len(come)
        gone = sorted(record.short_id for record in one.records if record.short_id is not None)
        count = len(one.records) if one.state is FileState.GONE else len(one.notes)
        yield Action(
            action=name,
            message=message.format(path=one.path, gone=_format_ranges(gone), come=_format_ranges(come)),
            subject=one.path,
            count=count,
            finding=finding,
            gone=gone,
            come=come,
        )


def _format_ranges(numbers: Iterable[int]) -> str:
    """Format ascending numbers as a list for people, consecutive ones as a range: "1–3, 5"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join("–".join(map(str, one)) for one in found) or tr("none")


def _number_actions(planned: _RecordChanges) -> Iterable[Action]:
    """Yield the actions that make short ids unique, and set the next short id to be assigned."""
    if planned.doubles:
        message = tr("assign unique short ids to {records}", records=format_count(len(planned.doubles), "record"))
        yield Action(
            action="renumber-records", message=message, count=len(planned.doubles), finding=angel.SHORT_ID_DOUBLE
        )
    if planned.sets_sequence:
        message = tr("set the next short id above the highest one in use")
        yield Action(action="set-sequence", message=message, finding=angel.SHORT_ID_SEQUENCE)


def _delete_records(db: apsw.Connection, keys: Iterable[str]) -> None:
    """Delete records and their tag relations; ``keys`` are source ids."""
    for key in keys:
        db.execute(f"DELETE FROM {NOTE_TAGS} WHERE source_id = ?", (key,))
        db.execute(f"DELETE FROM {RECORDS} WHERE source_id = ?", (key,))


def _insert_note(db: apsw.Connection, note: Note, compared: FileComparison, file_id: str, short_id: int) -> None:
    """Insert the record of a note in a file, its tags, and their relations.

    ``compared`` is the file that contains the note, ``file_id`` its id in the index of files.
    """
    updated_at = float(compared.file.seconds) if compared.file is not None else 0.0
    values = (note.source_id, short_id, file_id, compared.path, *note.headings, note.total_lines, updated_at)
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
