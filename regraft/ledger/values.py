"""What a ledger may say: every value of every table, checked where it is read (``docs/formats/library.md``, "Values").

A store may come from somebody else, with its ledger. Names, paths and states in it lead to folders that are moved and
removed, so nothing of it is used before it was held against the form in which regraft itself writes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import PureWindowsPath
from typing import Annotated, Any, Final, Literal, get_args

import apsw
import msgspec

from regraft.disk.file_paths import fold_name, is_folder_name
from regraft.language import tr

FOLDER = ".regraft"
#: Folders below :data:`FOLDER`: what takes changes back, what was removed, what is being made.
UNDO, TRASH, WORK = "undo", "trash", "work"

ChangeState = Literal["intended", "done", "dropped", "undoing", "undone", "expired"]
ChangeMeans = Literal["rows", "file"]
RunStatus = Literal["running", "finished", "stopped", "interrupted"]

#: The longest path, in bytes of UTF-8.
MAX_PATH_BYTES = 4096
#: The last time that ISO 8601 has four digits of a year for, in ms.
MAX_TIME = 253_402_300_799_999
_MAX_INT: Final = (1 << 63) - 1

Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX_INT)]
_Number = Annotated[int, msgspec.Meta(ge=-_MAX_INT, le=_MAX_INT)]

_RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}", re.ASCII)
_COMMAND = re.compile(r"[a-z]+(-[a-z]+){0,4}", re.ASCII)
_FINGERPRINT = re.compile(r"[0-9a-f]{0,128}", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_NUMBERED = re.compile(r"\d{6,18}", re.ASCII)
#: What :mod:`repair.changes.files` says of rows, of bytes, of a link and of a folder.
_MARK = re.compile(r"(rows [0-9a-f]{32}|[0-9a-f]{64}|bytes ([0-9a-f]* )?[0-9a-f]{64}|(bytes )?link .+)", re.DOTALL)


class InvalidValue(ValueError):
    """A value that regraft does not write at its place; the message is what to say of it."""


# --- names, paths, numbers -------------------------------------------------------------------------------------------


def check_run_id(value: object) -> str:
    """Return the id of a run: the time of its start and six digits in hex, ``20260615T120000Z-0a1b2c``.

    Raises:
        UnfitValue
    """
    return _text_of(tr("the id of a run"), value, _RUN_ID)


def check_subject(value: object) -> str:
    """Return what stands in a library: the id of a base, which is the name of its folder, or ``catalog``, ``report``.

    Raises:
        UnfitValue
    """
    if not isinstance(value, str) or not is_folder_name(value):
        raise _unfit(tr("the id of a base"), value)
    return value


def check_path(value: object, *, windows: bool = os.name == "nt") -> str:
    """Return the path of a change: below the store's root, not in regraft's own folder, ``/`` between plain parts.

    Raises:
        UnfitValue
    """
    if not isinstance(value, str) or not _is_path(value, windows):
        raise _unfit(tr("a path below the store"), value)
    return value


def _is_path(value: str, windows: bool) -> bool:
    try:
        is_short = len(value.encode()) <= MAX_PATH_BYTES
    except UnicodeEncodeError:
        return False
    parts = value.split("/")
    # A backslash and a colon are part of a name but on Windows, where none can have them.
    leads_away = windows and ("\\" in value or any(PureWindowsPath(part).drive for part in parts))
    is_plain = all(part not in ("", ".", "..") for part in parts) and "\0" not in value
    return is_short and is_plain and not leads_away and fold_name(parts[0]) != FOLDER


def _text_of(what: str, value: object, form: re.Pattern[str]) -> str:
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise _unfit(what, value)
    return value


def _any_text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise _unfit(what, value)
    return value


def _blob_of(what: str, value: object) -> bytes:
    if not isinstance(value, bytes):
        raise _unfit(what, value)
    return value


def _int_of(what: str, value: object, least: int = 0, most: int = _MAX_INT) -> int:
    if not isinstance(value, int) or not least <= value <= most:
        raise _unfit(what, value)
    return value


def _one_of(what: str, value: object, form: Any) -> Any:
    if value not in get_args(form):
        raise _unfit(what, value)
    return value


def _unfit(what: str, value: object) -> InvalidValue:
    said = repr(value)
    return InvalidValue(
        tr("it has {said} in the place of {what}", said=said if len(said) <= 80 else said[:79] + "…", what=what)
    )


# --- documents -------------------------------------------------------------------------------------------------------


class RecordedAction(msgspec.Struct, frozen=True):
    """What a run meant to do, as its document has it (``docs/commands.md``, "Commands that change a store")."""

    action: str
    base: str | None
    subject: str | None
    count: _Number
    bytes: _Number
    finding: str | None
    message: str


class RowsDetail(msgspec.Struct, frozen=True):
    """Of a change of rows: how many references led nowhere before, and which of the run's actions it does.

    ``actions`` says from which one on, and how many. ``grows`` tells whether many transactions make it up.
    """

    dangling: Count
    actions: tuple[Count, Count]
    grows: bool = False


class FileDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a change of a file or folder.

    ``new`` tells whether something comes in its place; ``mark`` is what tells whether that was changed since; it was
    made at ``staged``, below ``.regraft``. ``made`` is the topmost folder that was made for it, below the store.
    ``cache`` tells whether it is of a cache, which may have been made anew.
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

    ``path`` is what was changed, below the store's root. ``kept`` is what takes it back, below the store's
    ``.regraft``, None where nothing was there before; ``bytes`` is its size.
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
        """Return what is recorded of a change of rows."""
        if not isinstance(self.detail, RowsDetail):
            raise TypeError(tr("a change of a file"))
        return self.detail

    @property
    def file(self) -> FileDetail:
        """Return what is recorded of a change of a file or folder."""
        if not isinstance(self.detail, FileDetail):
            raise TypeError(tr("a change of rows"))
        return self.detail


def parse_change(row: tuple[Any, ...]) -> RecordedChange:
    """Return a row of ``change`` (its columns in their order) as checked values.

    Raises:
        UnfitValue, msgspec.MsgspecError
    """
    number, run, means, path, state, kept, size, detail = row
    run, means, path = check_run_id(run), _one_of(tr("what is changed"), means, ChangeMeans), check_path(path)
    raw = _blob_of(tr("the detail of a change"), detail)
    found: Detail
    if means == "rows":
        found = msgspec.json.decode(raw, type=RowsDetail)
        if kept is None:
            raise _unfit(tr("what takes rows back"), kept)
    else:
        found = msgspec.json.decode(raw, type=FileDetail)
        _demand_file_detail(run, path, found)
    return RecordedChange(
        change_id=_int_of(tr("the number of a change"), number, 1),
        run_id=run,
        means=means,
        path=path,
        state=_one_of(tr("the state of a change"), state, ChangeState),
        kept=None if kept is None else _kept_of(run, means, path, kept),
        bytes=_int_of("a size", size),
        detail=found,
    )


def _demand_file_detail(run: str, path: str, found: FileDetail) -> None:
    if found.mark is not None and _MARK.fullmatch(found.mark) is None:
        raise _unfit(tr("what tells whether a file was changed"), found.mark)
    if not _is_numbered(found.staged, f"{WORK}/{run}/"):
        raise _unfit(tr("where a file was made"), found.staged)
    if found.cache and found.new:
        raise _unfit(tr("a cache in whose place something comes"), found.cache)
    if found.made is not None and not path.startswith(f"{check_path(found.made)}/"):
        raise _unfit(tr("a folder that was made"), found.made)


def _kept_of(run: str, means: str, path: str, value: object) -> str:
    """Return where what takes a change back lies: below ``undo/<run>``, or ``trash/<date>-<run>`` by its own path."""
    if isinstance(value, str):
        date, _, rest = value.removeprefix(f"{TRASH}/").partition(f"-{run}/")
        is_trashed = value.startswith(f"{TRASH}/") and _DATE.fullmatch(date) is not None and rest == path
        if _is_numbered(value, f"{UNDO}/{run}/") or (is_trashed and means == "file"):
            return value
    raise _unfit(tr("what takes a change back"), value)


def _is_numbered(value: str, folder: str) -> bool:
    return value.startswith(folder) and _NUMBERED.fullmatch(value, len(folder)) is not None


def parse_action(raw: object) -> RecordedAction:
    """Return what ``action`` has of one action.

    Raises:
        UnfitValue, msgspec.MsgspecError
    """
    return msgspec.json.decode(_blob_of(tr("an action"), raw), type=RecordedAction)


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``run``; times in ms."""

    run_id: str
    command: str
    source: str
    status: RunStatus
    started_at: int
    finished_at: int | None


def parse_run(row: tuple[Any, ...]) -> RunRow:
    """Return a row of ``run`` (its columns in their order) as checked values.

    Raises:
        UnfitValue
    """
    run, command, source, status, started, finished = row
    return RunRow(
        run_id=check_run_id(run),
        command=_text_of("a command", command, _COMMAND),
        source=_any_text(tr("the source of a run"), source),
        status=_one_of(tr("the status of a run"), status, RunStatus),
        started_at=_int_of("a time", started, 0, MAX_TIME),
        finished_at=None if finished is None else _int_of("a time", finished, 0, MAX_TIME),
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
    """Return a row of ``step`` (its columns in their order) as checked values.

    Raises:
        UnfitValue
    """
    number, run, subject, action, state, fingerprint, detail = row
    return StepRow(
        step_id=_int_of(tr("the number of a step"), number, 1),
        run_id=check_run_id(run),
        subject=check_subject(subject),
        action=_one_of(tr("the action of a step"), action, StepAction),
        state=_one_of(tr("the state of a step"), state, StepState),
        fingerprint=_text_of("a fingerprint", fingerprint, _FINGERPRINT),
        detail=_blob_of(tr("the detail of a step"), detail),
    )


class EntryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``entry``."""

    subject: str
    step_id: int
    fingerprint: str
    detail: bytes


def parse_entry(row: tuple[Any, ...]) -> EntryRow:
    """Return a row of ``entry`` (its columns in their order) as checked values.

    Raises:
        UnfitValue
    """
    subject, step, fingerprint, detail = row
    return EntryRow(
        subject=check_subject(subject),
        step_id=_int_of(tr("the number of a step"), step, 1),
        fingerprint=_text_of("a fingerprint", fingerprint, _FINGERPRINT),
        detail=_blob_of(tr("the detail of an entry"), detail),
    )


def _numbered_action(row: tuple[Any, ...]) -> None:
    run, number, detail = row
    check_run_id(run)
    _int_of(tr("the number of an action"), number)
    parse_action(detail)


_CHANGES = "SELECT change_id, run_id, means, path, state, kept, bytes, detail FROM change"
#: What every row of a table has to be, by its columns in their order.
_ROWS: tuple[tuple[str, str, Callable[[tuple[Any, ...]], object]], ...] = (
    ("run", "SELECT run_id, command, source, status, started_at, finished_at FROM run", parse_run),
    ("step", "SELECT step_id, run_id, subject, action, state, fingerprint, detail FROM step", parse_step),
    ("entry", "SELECT subject, step_id, fingerprint, detail FROM entry", parse_entry),
    ("change", _CHANGES, parse_change),
    ("action", "SELECT run_id, number, detail FROM action", _numbered_action),
)
#: What no two rows may say of each other; each query gives one that does.
_CONTRADICTIONS: tuple[tuple[str, str, str], ...] = (
    (
        "part",
        tr("parts of a step that are not numbered from 0 on"),
        """SELECT 1 FROM part GROUP BY step_id
             HAVING min(number) <> 0 OR max(number) <> count(*) - 1
                 OR total(typeof(number) <> 'integer' OR typeof(body) <> 'blob')""",
    ),
    (
        "entry",
        tr("an entry of another step's"),
        "SELECT 1 FROM entry e JOIN step s USING (step_id) WHERE s.subject <> e.subject OR s.state <> 'done'",
    ),
    (
        "change",
        tr("two changes that one file takes back"),
        "SELECT 1 FROM change WHERE kept IS NOT NULL GROUP BY kept HAVING count(*) > 1",
    ),
    (
        "action",
        tr("actions of a run that are not numbered from 0 on"),
        "SELECT 1 FROM action GROUP BY run_id HAVING min(number) <> 0 OR max(number) <> count(*) - 1",
    ),
)


def check_values(db: apsw.Connection, tables: frozenset[str]) -> None:
    """Read all that a ledger says, and refuse one that says what regraft does not write. Its schema is known by now.

    Args:
        db: the ledger, in a transaction or read by nobody else.
        tables: those that its version has.

    Raises:
        UnfitValue, msgspec.MsgspecError, UnicodeDecodeError: a value is not what it may be.
        apsw.Error: it is damaged.
    """
    for table, query, parsed in _ROWS:
        if table in tables:
            for row in db.execute(query):
                parsed(row)
    for table, said, query in _CONTRADICTIONS:
        if table in tables and db.execute(f"{query} LIMIT 1").get is not None:
            raise InvalidValue(tr("it has {said}", said=said))
    if "change" in tables:
        _demand_actions(db)
    for problem in _problems(db):
        raise InvalidValue(problem)


def _demand_actions(db: apsw.Connection) -> None:
    rows: list[Any] = db.execute("SELECT run_id, count(*) FROM action GROUP BY run_id").fetchall()
    counts = dict(rows)
    for row in db.execute(_CHANGES):
        change = parse_change(row)
        if sum(change.detail.actions) > counts.get(change.run_id, 0):
            raise InvalidValue(tr("it has a change that does what its run did not mean to"))


def _problems(db: apsw.Connection) -> Iterator[str]:
    [(found,)] = db.execute("PRAGMA integrity_check(1)").fetchall()
    if found != "ok":
        yield tr("it is damaged: {found}", found=found)
    for table, _, parent, _ in db.execute("PRAGMA foreign_key_check").fetchall():
        yield tr("a row of {table} is of a {parent} that is not there", table=table, parent=parent)


# The tables of a ledger, and whether a file has just these (``docs/formats/library.md``, "Ledger" and "Changes").


#: Version 1 had no record of changes to data that were there before.
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
#: What version 2 has besides.
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
#: The indexes that SQLite makes for primary keys; it names them itself.
_OWN_INDEX = re.compile(r"sqlite_autoindex_(\w+)_1")


def _named(statements: tuple[str, ...]) -> dict[str, str]:
    return {_NAME.findall(sql)[0]: " ".join(sql.split()) for sql in statements}


def is_empty(db: apsw.Connection) -> bool:
    """Tell whether nothing is in the file yet: a run was killed before it had recorded anything."""
    return db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").get is None


def _is_index_of(name: Any, table: Any) -> bool:
    """Tell whether SQLite made an index of that name for a table by itself."""
    found = _OWN_INDEX.fullmatch(str(name))
    return found is not None and found[1] == table


def check_schema(db: apsw.Connection) -> int:
    """Return the version of a ledger that has just the tables of that version, as regraft makes them.

    A view, a trigger, another table or column, a table without rowids or a virtual one makes it another program's.

    Raises:
        UnfitValue, apsw.Error
    """
    rows: list[Any] = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()
    found = {str(name): str(sql) for kind, name, _, sql in rows if kind == "table"}
    if "ledger" not in found:
        raise InvalidValue(tr("it is of another program"))
    for kind, name, table, sql in rows:
        if kind != "table" and not (kind == "index" and sql is None and _is_index_of(name, table)):
            raise InvalidValue(tr("it has the {kind} {name!r}, which no ledger has", kind=kind, name=name))
    return _version(db, {name: " ".join(sql.split()) for name, sql in found.items()})


def _version(db: apsw.Connection, found: dict[str, str]) -> int:
    if found["ledger"] != _named(TABLES)["ledger"]:
        raise InvalidValue(tr("it is of another program"))
    versions: list[Any] = db.execute("SELECT version FROM ledger LIMIT 2").fetchall()
    version = versions[0][0] if len(versions) == 1 else None
    if not isinstance(version, int) or version not in _OF_VERSION:
        raise InvalidValue(tr("it is of version {version}", version=version))
    wanted = _named(_OF_VERSION[version])
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            what = "lacks" if name not in found else tr("has another") if name in wanted else tr("has besides")
            raise InvalidValue(tr("it {what} the table {name!r}", what=what, name=name))
    return version


def table_names(version: int) -> frozenset[str]:
    """Return the names of the tables of a version."""
    return frozenset(_named(_OF_VERSION[version]))
