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

from regraft.language import tr
from regraft.names import fold, is_folder_name

FOLDER = ".regraft"
#: Folders below :data:`FOLDER`: what takes changes back, what was removed, what is being made.
UNDO, TRASH, WORK = "undo", "trash", "work"

State = Literal["intended", "done", "dropped", "undoing", "undone", "expired"]
Means = Literal["rows", "file"]
Status = Literal["running", "finished", "stopped", "interrupted"]

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


class UnfitValue(ValueError):
    """A value that regraft does not write at its place; the message is what to say of it."""


# --- names, paths, numbers -------------------------------------------------------------------------------------------


def run_id_of(value: object) -> str:
    """Return the id of a run: the time of its start and six digits in hex, ``20260615T120000Z-0a1b2c``.

    Raises:
        UnfitValue
    """
    return _text_of(tr("the id of a run"), value, _RUN_ID)


def subject_of(value: object) -> str:
    """Return what stands in a library: the id of a base, which is the name of its folder, or ``catalog``, ``report``.

    Raises:
        UnfitValue
    """
    if not isinstance(value, str) or not is_folder_name(value):
        raise _unfit(tr("the id of a base"), value)
    return value


def path_of(value: object, *, windows: bool = os.name == "nt") -> str:
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
    return is_short and is_plain and not leads_away and fold(parts[0]) != FOLDER


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


def _unfit(what: str, value: object) -> UnfitValue:
    said = repr(value)
    return UnfitValue(
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


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a run.

    ``path`` is what was changed, below the store's root. ``kept`` is what takes it back, below the store's
    ``.regraft``, None where nothing was there before; ``bytes`` is its size.
    """

    change_id: int
    run_id: str
    means: Means
    path: str
    state: State
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


def recorded_of(row: tuple[Any, ...]) -> Recorded:
    """Return a row of ``change`` (its columns in their order) as checked values.

    Raises:
        UnfitValue, msgspec.MsgspecError
    """
    number, run, means, path, state, kept, size, detail = row
    run, means, path = run_id_of(run), _one_of(tr("what is changed"), means, Means), path_of(path)
    raw = _blob_of(tr("the detail of a change"), detail)
    found: Detail
    if means == "rows":
        found = msgspec.json.decode(raw, type=RowsDetail)
        if kept is None:
            raise _unfit(tr("what takes rows back"), kept)
    else:
        found = msgspec.json.decode(raw, type=FileDetail)
        _demand_file_detail(run, path, found)
    return Recorded(
        change_id=_int_of(tr("the number of a change"), number, 1),
        run_id=run,
        means=means,
        path=path,
        state=_one_of(tr("the state of a change"), state, State),
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
    if found.made is not None and not path.startswith(f"{path_of(found.made)}/"):
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


def action_of(raw: object) -> RecordedAction:
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
    status: Status
    started_at: int
    finished_at: int | None


def run_of(row: tuple[Any, ...]) -> RunRow:
    """Return a row of ``run`` (its columns in their order) as checked values.

    Raises:
        UnfitValue
    """
    run, command, source, status, started, finished = row
    return RunRow(
        run_id=run_id_of(run),
        command=_text_of("a command", command, _COMMAND),
        source=_any_text(tr("the source of a run"), source),
        status=_one_of(tr("the status of a run"), status, Status),
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


def step_of(row: tuple[Any, ...]) -> StepRow:
    """Return a row of ``step`` (its columns in their order) as checked values.

    Raises:
        UnfitValue
    """
    number, run, subject, action, state, fingerprint, detail = row
    return StepRow(
        step_id=_int_of(tr("the number of a step"), number, 1),
        run_id=run_id_of(run),
        subject=subject_of(subject),
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


def entry_of(row: tuple[Any, ...]) -> EntryRow:
    """Return a row of ``entry`` (its columns in their order) as checked values.

    Raises:
        UnfitValue
    """
    subject, step, fingerprint, detail = row
    return EntryRow(
        subject=subject_of(subject),
        step_id=_int_of(tr("the number of a step"), step, 1),
        fingerprint=_text_of("a fingerprint", fingerprint, _FINGERPRINT),
        detail=_blob_of(tr("the detail of an entry"), detail),
    )


def _numbered_action(row: tuple[Any, ...]) -> None:
    run, number, detail = row
    run_id_of(run)
    _int_of(tr("the number of an action"), number)
    action_of(detail)


_CHANGES = "SELECT change_id, run_id, means, path, state, kept, bytes, detail FROM change"
#: What every row of a table has to be, by its columns in their order.
_ROWS: tuple[tuple[str, str, Callable[[tuple[Any, ...]], object]], ...] = (
    ("run", "SELECT run_id, command, source, status, started_at, finished_at FROM run", run_of),
    ("step", "SELECT step_id, run_id, subject, action, state, fingerprint, detail FROM step", step_of),
    ("entry", "SELECT subject, step_id, fingerprint, detail FROM entry", entry_of),
    ("change", _CHANGES, recorded_of),
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


def demand_fit(db: apsw.Connection, tables: frozenset[str]) -> None:
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
            raise UnfitValue(tr("it has {said}", said=said))
    if "change" in tables:
        _demand_actions(db)
    for problem in _problems(db):
        raise UnfitValue(problem)


def _demand_actions(db: apsw.Connection) -> None:
    rows: list[Any] = db.execute("SELECT run_id, count(*) FROM action GROUP BY run_id").fetchall()
    counts = dict(rows)
    for row in db.execute(_CHANGES):
        change = recorded_of(row)
        if sum(change.detail.actions) > counts.get(change.run_id, 0):
            raise UnfitValue(tr("it has a change that does what its run did not mean to"))


def _problems(db: apsw.Connection) -> Iterator[str]:
    [(found,)] = db.execute("PRAGMA integrity_check(1)").fetchall()
    if found != "ok":
        yield tr("it is damaged: {found}", found=found)
    for table, _, parent, _ in db.execute("PRAGMA foreign_key_check").fetchall():
        yield tr("a row of {table} is of a {parent} that is not there", table=table, parent=parent)
