"""Check every value that is read from a ledger (``docs/formats/library.md``, "Ledger", "Changes" and "Values").

A store may come from another person, with its ledger. Names, paths and states in it decide which folders are moved and
removed, so no value is used before it was compared with the form in which regraft writes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import PureWindowsPath
from typing import Annotated, Any, Final, Literal, get_args

import apsw
import msgspec
from msgspec import UNSET, UnsetType

from regraft.disk.file_paths import fold_name, is_folder_name
from regraft.language import tr

FOLDER = ".regraft"
#: Folders below :data:`FOLDER`: backups for undo, removed files, work in progress.
UNDO, TRASH, WORK = "undo", "trash", "work"

ChangeState = Literal["intended", "done", "dropped", "undoing", "undone", "expired"]
ChangeMeans = Literal["rows", "file"]
RunStatus = Literal["running", "finished", "stopped", "interrupted"]

#: Longest path, in UTF-8 bytes.
MAX_PATH_BYTES = 4096
#: Last time with a four-digit year in ISO 8601, in ms.
MAX_TIME = 253_402_300_799_999
_MAX_INT: Final = (1 << 63) - 1

Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX_INT)]
_Number = Annotated[int, msgspec.Meta(ge=-_MAX_INT, le=_MAX_INT)]

_RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}", re.ASCII)
_COMMAND = re.compile(r"[a-z]+(-[a-z]+){0,4}", re.ASCII)
_FINGERPRINT = re.compile(r"[0-9a-f]{0,128}", re.ASCII)
_ANY_TEXT = re.compile(r".*", re.DOTALL)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_NUMBERED = re.compile(r"\d{6,18}", re.ASCII)
#: Marks by which :mod:`repair.changes.files` detects changes of rows, of bytes, of a link and of a folder.
_MARK = re.compile(r"(rows [0-9a-f]{32}|[0-9a-f]{64}|bytes ([0-9a-f]* )?[0-9a-f]{64}|(bytes )?link .+)", re.DOTALL)


class InvalidValue(ValueError):
    """A value that regraft would not write here; the message describes it."""


# --- names, paths, numbers -------------------------------------------------------------------------------------------


def check_run_id(value: object) -> str:
    """Return ``value`` if it is a valid run id: start time and six hex digits, ``20260615T120000Z-0a1b2c``.

    Raises:
        InvalidValue
    """
    return _check_text(tr("the id of a run"), value, _RUN_ID)


def check_subject(value: object) -> str:
    """Return ``value`` if it is a valid subject: a base id, which names its folder, or ``catalog`` or ``report``.

    Raises:
        InvalidValue
    """
    if not isinstance(value, str) or not is_folder_name(value):
        raise _invalid(tr("the id of a base"), value)
    return value


def check_path(value: object, *, windows: bool = os.name == "nt") -> str:
    """Return ``value`` if it is a valid path of a change.

    Such a path is below the store's root and outside of regraft's own folder, with ``/`` between plain parts.
    Raises:
        InvalidValue
    """
    if not isinstance(value, str) or not _is_path(value, windows):
        raise _invalid(tr("a path below the store"), value)
    return value


def _is_path(value: str, windows: bool) -> bool:
    """Whether a value is a plain relative path outside of the ledger's own folder; ``windows``: by Windows' rules."""
    try:
        is_short = len(value.encode()) <= MAX_PATH_BYTES
    except UnicodeEncodeError:
        return False
    parts = value.split("/")
    # A backslash or a colon may be part of a name, except on Windows.
    leads_away = windows and ("\\" in value or any(PureWindowsPath(part).drive for part in parts))
    is_plain = all(part not in ("", ".", "..") for part in parts) and "\0" not in value
    return is_short and is_plain and not leads_away and fold_name(parts[0]) != FOLDER


# These return ``value`` if it is valid, and otherwise raise an InvalidValue that calls it ``what``.


def _check_text(what: str, value: object, form: re.Pattern[str]) -> str:
    """Return ``value`` if it is a text that the pattern ``form`` matches; ``what`` names it in the error."""
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise _invalid(what, value)
    return value


def _check_blob(what: str, value: object) -> bytes:
    """Return ``value`` if it is a blob; ``what`` names it in the error."""
    if not isinstance(value, bytes):
        raise _invalid(what, value)
    return value


def _check_int(what: str, value: object, least: int = 0, most: int = _MAX_INT) -> int:
    """Return ``value`` if it is an integer from ``least`` to ``most``; ``what`` names it in the error."""
    if not isinstance(value, int) or not least <= value <= most:
        raise _invalid(what, value)
    return value


def _check_choice(what: str, value: object, choices: Any) -> Any:
    """Return ``value`` if it is one of ``choices``, a Literal type; ``what`` names it in the error."""
    if value not in get_args(choices):
        raise _invalid(what, value)
    return value


def _invalid(what: str, value: object) -> InvalidValue:
    """Return the error for a value that is not allowed; ``what`` says what it should be."""
    found = repr(value)
    return InvalidValue(
        tr("it has {found} in place of {what}", found=found if len(found) <= 80 else found[:79] + "…", what=what)
    )


# --- documents -------------------------------------------------------------------------------------------------------


class RecordedAction(msgspec.Struct, frozen=True):
    """An action of a run, in the form of its JSON document (``docs/commands.md``, "Commands that change a store")."""

    action: str
    base: str | None
    subject: str | None
    count: _Number
    bytes: _Number
    finding: str | None
    message: str
    lost: list[str] | UnsetType = UNSET
    without_rows: Count | UnsetType = UNSET
    origin: str | UnsetType = UNSET


#: Size and modification time (ns) of a file.
FileStamp = tuple[Count, Count]


class RowsDetail(msgspec.Struct, frozen=True):
    """Detail of a change of rows.

    ``dangling`` is the number of dangling references before the change. ``actions`` is the number of the first of the
    run's actions that it carries out, and their count. ``grows`` is True if it consists of many transactions.
    ``before`` and ``after`` are the file's stamps around the change, for a file that a migration wrote; None if another
    program may have written to the file in between, or for other files.
    """

    dangling: Count
    actions: tuple[Count, Count]
    grows: bool = False
    before: FileStamp | None = None
    after: FileStamp | None = None


class FileDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """Detail of a change of a file or folder.

    ``new``: whether a new file replaces it. ``mark``: detects later changes to the new file. ``staged``: where it was
    built, below ``.regraft``. ``made``: the topmost folder that was created for it, below the store. ``cache``: whether
    it belongs to a cache, which may have been recreated.
    """

    new: bool
    mark: str | None
    staged: str
    made: str | None
    actions: tuple[Count, Count]
    cache: bool = False


Detail = RowsDetail | FileDetail


class RecordedChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a run.

    ``path`` is what was changed, below the store's root. ``kept`` is its backup, below the store's ``.regraft``; None
    if nothing existed before. ``bytes`` is the size of the backup.
    """

    change_id: int
    run_id: str
    means: ChangeMeans
    path: str
    state: ChangeState
    kept: str | None
    bytes: int
    detail: Detail

    @property
    def rows(self) -> RowsDetail:
        """The detail of a change of rows."""
        if not isinstance(self.detail, RowsDetail):
            raise TypeError(tr("a change of a file"))
        return self.detail

    @property
    def file(self) -> FileDetail:
        """The detail of a change of a file or folder."""
        if not isinstance(self.detail, FileDetail):
            raise TypeError(tr("a change of rows"))
        return self.detail


def parse_change(row: tuple[Any, ...]) -> RecordedChange:
    """Parse and check a row of ``change`` (its columns in order).

    Raises:
        InvalidValue, msgspec.MsgspecError
    """
    number, run, means, path, state, kept, size, detail = row
    run, means, path = (
        check_run_id(run),
        _check_choice(tr("the kind of a change"), means, ChangeMeans),
        check_path(path),
    )
    raw = _check_blob(tr("the detail of a change"), detail)
    found: Detail
    if means == "rows":
        found = msgspec.json.decode(raw, type=RowsDetail)
        if kept is None:
            raise _invalid(tr("the backup of rows"), kept)
    else:
        found = msgspec.json.decode(raw, type=FileDetail)
        if found.mark is not None and _MARK.fullmatch(found.mark) is None:
            raise _invalid(tr("the mark of a file"), found.mark)
        if not _is_numbered_file(found.staged, f"{WORK}/{run}/"):
            raise _invalid(tr("the staging path of a file"), found.staged)
        if found.cache and found.new:
            raise _invalid(tr("False as the cache flag of a replaced file"), found.cache)
        if found.made is not None and not path.startswith(f"{check_path(found.made)}/"):
            raise _invalid(tr("a folder that was created"), found.made)
    return RecordedChange(
        change_id=_check_int(tr("the number of a change"), number, 1),
        run_id=run,
        means=means,
        path=path,
        state=_check_choice(tr("the state of a change"), state, ChangeState),
        kept=None if kept is None else _check_backup_path(run, means, path, kept),
        bytes=_check_int("a size", size),
        detail=found,
    )


def _check_backup_path(run: str, means: ChangeMeans, path: str, value: object) -> str:
    """Return ``value`` if it is a valid path of the backup of a change of ``path`` by ``run``; otherwise raise.

    It is a numbered file in ``undo/<run>``. That of a file can also be ``trash/<date>-<run>`` and the file's ``path``.
    """
    if isinstance(value, str):
        date, _, rest = value.removeprefix(f"{TRASH}/").partition(f"-{run}/")
        is_trashed = value.startswith(f"{TRASH}/") and _DATE.fullmatch(date) is not None and rest == path
        if _is_numbered_file(value, f"{UNDO}/{run}/") or (is_trashed and means == "file"):
            return value
    raise _invalid(tr("the backup of a change"), value)


def _is_numbered_file(value: str, folder: str) -> bool:
    """Whether a value is a path of ``folder``, which ends with ``/``, and a file name of digits only."""
    return value.startswith(folder) and _NUMBERED.fullmatch(value, len(folder)) is not None


def parse_action(raw: object) -> RecordedAction:
    """Parse and check the column ``detail`` of a row of ``action``.

    Raises:
        InvalidValue, msgspec.MsgspecError
    """
    return msgspec.json.decode(_check_blob(tr("an action"), raw), type=RecordedAction)


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``run``; times in ms."""

    run_id: str
    command: str
    source: str
    status: RunStatus
    started_at: int
    finished_at: int | None


def parse_run(row: tuple[Any, ...]) -> RunRow:
    """Parse and check a row of ``run`` (its columns in order).

    Raises:
        InvalidValue
    """
    run, command, source, status, started, finished = row
    return RunRow(
        run_id=check_run_id(run),
        command=_check_text("a command", command, _COMMAND),
        source=_check_text(tr("the source of a run"), source, _ANY_TEXT),
        status=_check_choice(tr("the status of a run"), status, RunStatus),
        started_at=_check_int("a time", started, 0, MAX_TIME),
        finished_at=None if finished is None else _check_int("a time", finished, 0, MAX_TIME),
    )


# --- all of it -------------------------------------------------------------------------------------------------------

StepAction = Literal["publish", "replace"]
StepState = Literal["intended", "done", "dropped"]


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``step``."""

    step_id: int
    run_id: str
    subject: str
    action: StepAction
    state: StepState
    fingerprint: str
    detail: bytes


def parse_step(row: tuple[Any, ...]) -> StepRow:
    """Parse and check a row of ``step`` (its columns in order).

    Raises:
        InvalidValue
    """
    number, run, subject, action, state, fingerprint, detail = row
    return StepRow(
        step_id=_check_int(tr("the number of a step"), number, 1),
        run_id=check_run_id(run),
        subject=check_subject(subject),
        action=_check_choice(tr("the action of a step"), action, StepAction),
        state=_check_choice(tr("the state of a step"), state, StepState),
        fingerprint=_check_text("a fingerprint", fingerprint, _FINGERPRINT),
        detail=_check_blob(tr("the detail of a step"), detail),
    )


class EntryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``entry``."""

    subject: str
    step_id: int
    fingerprint: str
    detail: bytes


def parse_entry(row: tuple[Any, ...]) -> EntryRow:
    """Parse and check a row of ``entry`` (its columns in order).

    Raises:
        InvalidValue
    """
    subject, step, fingerprint, detail = row
    return EntryRow(
        subject=check_subject(subject),
        step_id=_check_int(tr("the number of a step"), step, 1),
        fingerprint=_check_text("a fingerprint", fingerprint, _FINGERPRINT),
        detail=_check_blob(tr("the detail of an entry"), detail),
    )


_CHANGES = "SELECT change_id, run_id, means, path, state, kept, bytes, detail FROM change"
#: Table, query and check of its rows.
_ROWS: tuple[tuple[str, str, Callable[[tuple[Any, ...]], object]], ...] = (
    ("run", "SELECT run_id, command, source, status, started_at, finished_at FROM run", parse_run),
    ("step", "SELECT step_id, run_id, subject, action, state, fingerprint, detail FROM step", parse_step),
    ("entry", "SELECT subject, step_id, fingerprint, detail FROM entry", parse_entry),
    ("change", _CHANGES, parse_change),
    (
        "action",
        "SELECT run_id, number, detail FROM action",
        lambda row: (check_run_id(row[0]), _check_int(tr("the number of an action"), row[1]), parse_action(row[2])),
    ),
)
#: Table, description and query of contradictions between rows; each query returns a row if there is one.
_CONTRADICTIONS: tuple[tuple[str, str, str], ...] = (
    (
        "part",
        tr("parts of a step that are not numbered from 0"),
        """SELECT 1 FROM part GROUP BY step_id
             HAVING min(number) <> 0 OR max(number) <> count(*) - 1
                 OR total(typeof(number) <> 'integer' OR typeof(body) <> 'blob')""",
    ),
    (
        "entry",
        tr("an entry that belongs to another step"),
        "SELECT 1 FROM entry e JOIN step s USING (step_id) WHERE s.subject <> e.subject OR s.state <> 'done'",
    ),
    (
        "change",
        tr("two changes with one backup"),
        "SELECT 1 FROM change WHERE kept IS NOT NULL GROUP BY kept HAVING count(*) > 1",
    ),
    (
        "action",
        tr("actions of a run that are not numbered from 0"),
        "SELECT 1 FROM action GROUP BY run_id HAVING min(number) <> 0 OR max(number) <> count(*) - 1",
    ),
)


def check_values(db: apsw.Connection, tables: frozenset[str]) -> None:
    """Read the whole ledger and raise if it contains what regraft does not write. Its schema must have been checked.

    Args:
        db: the ledger, in a transaction or without other readers.
        tables: the tables of its version.

    Raises:
        InvalidValue, msgspec.MsgspecError, UnicodeDecodeError: a value is not valid.
        apsw.Error: it is damaged.
    """
    for table, query, check in _ROWS:
        if table in tables:
            for row in db.execute(query):
                check(row)
    for table, message, query in _CONTRADICTIONS:
        if table in tables and db.execute(f"{query} LIMIT 1").get is not None:
            raise InvalidValue(tr("it has {said}", said=message))
    if "change" in tables:
        _check_action_counts(db)
    [(damage,)] = db.execute("PRAGMA integrity_check(1)").fetchall()
    if damage != "ok":
        raise InvalidValue(tr("it is damaged: {found}", found=damage))
    for orphan, _, parent, _ in db.execute("PRAGMA foreign_key_check").fetchall():
        raise InvalidValue(tr("a row of {table} refers to a missing {parent}", table=orphan, parent=parent))


def _check_action_counts(db: apsw.Connection) -> None:
    """Raise InvalidValue if a change in the ledger refers to more actions than its run has."""
    rows: list[Any] = db.execute("SELECT run_id, count(*) FROM action GROUP BY run_id").fetchall()
    counts = dict(rows)
    for row in db.execute(_CHANGES):
        change = parse_change(row)
        if sum(change.detail.actions) > counts.get(change.run_id, 0):
            raise InvalidValue(tr("it has a change for an action that its run does not have"))


# The tables of a ledger


#: Version 1 had no tables for changes of existing data.
VERSION = 2

TABLES = (
    "CREATE TABLE ledger (version INTEGER NOT NULL)",
    """CREATE TABLE run (
         run_id TEXT PRIMARY KEY,
         command TEXT NOT NULL,
         source TEXT NOT NULL,
         status TEXT NOT NULL CHECK (status IN ('running', 'finished', 'stopped', 'interrupted')),
         started_at INTEGER NOT NULL,
         finished_at INTEGER)""",
    """CREATE TABLE step (
         step_id INTEGER PRIMARY KEY,
         run_id TEXT NOT NULL REFERENCES run (run_id),
         subject TEXT NOT NULL,
         action TEXT NOT NULL,
         state TEXT NOT NULL CHECK (state IN ('intended', 'done', 'dropped')),
         fingerprint TEXT NOT NULL,
         detail BLOB NOT NULL)""",
    """CREATE TABLE part (
         step_id INTEGER NOT NULL REFERENCES step (step_id),
         number INTEGER NOT NULL,
         body BLOB NOT NULL,
         PRIMARY KEY (step_id, number))""",
    """CREATE TABLE entry (
         subject TEXT PRIMARY KEY,
         step_id INTEGER NOT NULL REFERENCES step (step_id),
         fingerprint TEXT NOT NULL,
         detail BLOB NOT NULL)""",
)
#: Tables added in version 2.
CHANGE_TABLES = (
    """CREATE TABLE change (
         change_id INTEGER PRIMARY KEY,
         run_id TEXT NOT NULL REFERENCES run (run_id),
         means TEXT NOT NULL CHECK (means IN ('rows', 'file')),
         path TEXT NOT NULL,
         state TEXT NOT NULL
           CHECK (state IN ('intended', 'done', 'dropped', 'undoing', 'undone', 'expired')),
         kept TEXT,
         bytes INTEGER NOT NULL,
         detail BLOB NOT NULL)""",
    """CREATE TABLE action (
         run_id TEXT NOT NULL REFERENCES run (run_id),
         number INTEGER NOT NULL,
         detail BLOB NOT NULL,
         PRIMARY KEY (run_id, number))""",
)
_OF_VERSION = {1: TABLES, 2: (*TABLES, *CHANGE_TABLES)}
_NAME = re.compile(r"CREATE TABLE (\w+)")


def _statements_by_table(statements: tuple[str, ...]) -> dict[str, str]:
    """Map table names to their CREATE statements, with single blanks."""
    return {_NAME.findall(sql)[0]: " ".join(sql.split()) for sql in statements}


def is_empty(db: apsw.Connection) -> bool:
    """Whether the file has no tables yet: a run was killed before it recorded anything."""
    return db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").get is None


def check_schema(db: apsw.Connection) -> int:
    """Return the version of a ledger that has exactly the tables of that version, as regraft creates them.

    With a view, a trigger, another table or column, a virtual table or one without rowids, it belongs to another
    program.

    Raises:
        InvalidValue, apsw.Error
    """
    rows: list[Any] = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()
    found = {str(name): str(sql) for kind, name, _, sql in rows if kind == "table"}
    if "ledger" not in found:
        raise InvalidValue(tr("it belongs to another program"))
    for kind, name, table, sql in rows:
        # SQLite creates and names the indexes of primary keys.
        is_automatic = kind == "index" and sql is None and name == f"sqlite_autoindex_{table}_1"
        if kind != "table" and not is_automatic:
            raise InvalidValue(tr("it has the {kind} {name!r}, which no ledger has", kind=kind, name=name))
    return _read_version(db, {name: " ".join(sql.split()) for name, sql in found.items()})


def _read_version(db: apsw.Connection, found: dict[str, str]) -> int:
    """Return the version that a ledger states; raise InvalidValue unless its tables are those of that version.

    ``found`` maps the names of its tables to their CREATE statements, with single blanks.
    """
    if found["ledger"] != _statements_by_table(TABLES)["ledger"]:
        raise InvalidValue(tr("it belongs to another program"))
    versions: list[Any] = db.execute("SELECT version FROM ledger LIMIT 2").fetchall()
    version = versions[0][0] if len(versions) == 1 else None
    if not isinstance(version, int) or version not in _OF_VERSION:
        raise InvalidValue(tr("its version {version} is not supported", version=version))
    wanted = _statements_by_table(_OF_VERSION[version])
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            if name not in found:
                raise InvalidValue(tr("it lacks the table {name!r}", name=name))
            if name in wanted:
                raise InvalidValue(tr("its table {name!r} is not the one that a ledger has", name=name))
            raise InvalidValue(tr("it also has the table {name!r}", name=name))
    return version


def table_names(version: int) -> frozenset[str]:
    """Return the names of the tables that a ledger of a version has."""
    return frozenset(_statements_by_table(_OF_VERSION[version]))
