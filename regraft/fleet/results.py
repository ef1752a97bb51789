"""The results of a fleet: a row for each library and each base, in a JSON Lines or Parquet file.

Until that file is written, a journal gets a line whenever a library starts and whenever one ends, so that a killed run
can be resumed and a running one can be looked at.
"""

from __future__ import annotations

import csv
import io
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from regraft import identity
from regraft.disk import durable, links, lock_files, scratch, writable
from regraft.errors import INTERRUPTED, REFUSED, STOPPED, WORTH_READING, SourceNotFound, WrongUsage
from regraft.fleet.engine import LibrarySummary, Task, TaskResult
from regraft.fleet.jobs import COMMAND_FORMS, CommandForm
from regraft.fleet.manifest import MAX_NUMBER, Count, Library, is_name
from regraft.formats.parquet.unit_file import import_arrow
from regraft.language import tr
from regraft.text import printable

#: The key of the order in the metadata of the Parquet file.
_ORDER_KEY = b"regraft.fleet"
_SCHEMA = 1
_ID = re.compile(r"[0-9a-f]*")
#: Rows of a row group, which is written and read as a whole.
_GROUP_ROWS = 10_000
#: Bytes of finished results that are held in memory; the rest is in a temporary file.
_IN_MEMORY = 16 << 20
#: Outcomes of a library by the exit status of its command; None: it was killed.
OUTCOMES = {
    0: "done",
    WORTH_READING: "worth-reading",
    REFUSED: "refused",
    STOPPED: "stopped",
    INTERRUPTED: "interrupted",
    None: "killed",
}
#: Outcomes of libraries that a resumed run skips.
GOOD = ("done", "worth-reading")
#: The outcome of a library that is not filled completely because of a limit; the next run continues it.
LIMITED = "limit-reached"
#: What ``resume --only`` chooses from; see :meth:`KnownRows.ending`.
Ending = Literal["failed", "refused", "unfinished"]
#: How a library ended, by its outcome; with an outcome that is not listed, it failed.
_ENDINGS: dict[str, Ending] = {OUTCOMES[REFUSED]: "refused", LIMITED: "unfinished", OUTCOMES[INTERRUPTED]: "unfinished"}


class FleetOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet runs: the command, the options of every library, and the libraries.

    ``id`` identifies the fleet and stays the same when it is resumed. ``told`` has the options of a command of the
    fleet itself, such as ``fleet backfill``.
    """

    command: str
    options: tuple[str, ...]
    libraries: tuple[Library, ...]
    id: str = ""
    schema: int = _SCHEMA
    told: dict[str, Any] | None = None

    @property
    def form(self) -> CommandForm:
        """What the command does with a library."""
        return COMMAND_FORMS[self.command]


class ResultRow(msgspec.Struct, frozen=True, kw_only=True):
    """A library, or one base of it: then ``base`` is set, and columns of the library alone are empty.

    ``skipped`` and ``findings`` are JSON objects of counts; ``totals`` is JSON of the command's own; ``options`` is a
    JSON array of the options that the manifest gives this library, and ``extra`` a JSON object of its other columns.
    ``host``, ``pid`` and ``log`` say where the last attempt ran.
    """

    library: int
    source: str
    target: str | None
    command: str
    base: str | None = None
    name: str | None = None
    outcome: str
    exit_status: Count | None
    code: str | None
    message: str | None
    attempts: Count | None
    seconds: float | None
    bytes: Count | None
    rows_read: Count | None
    rows_carried: Count | None
    skipped: str | None
    findings: str | None
    totals: str | None
    run: str | None
    options: str | None = None
    host: str | None = None
    pid: int | None = None
    log: str | None = None
    extra: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if ``skipped`` or ``findings`` is not a JSON object of counts."""
        counts_of(self.skipped)
        counts_of(self.findings)


def counts_of(text: str | None) -> dict[str, int]:
    """Decode a JSON object of counts; None is empty. ValueError: it is not one."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Count])
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def result_rows(library: Library, task: Task, command: str, ended: TaskResult) -> list[ResultRow]:
    """Return the rows of a library that has ended: its own first, then one for each base.

    ``task`` is its last task, ``command`` the command that was run on it, and ``ended`` the result of that.
    """
    error, summary = ended.error, ended.summary or LibrarySummary()
    own = ResultRow(
        library=task.number,
        source=library.source,
        target=library.target,
        command=command,
        # A result with an error has failed, whatever its exit status.
        outcome="refused" if error and ended.status in (0, WORTH_READING) else OUTCOMES.get(ended.status, "stopped"),
        exit_status=ended.status,
        code=None if error is None else error.code,
        message=None if error is None else error.message,
        attempts=ended.attempts,
        seconds=round(ended.seconds, 3),
        bytes=task.bytes,
        rows_read=summary.rows_read,
        rows_carried=summary.rows_carried,
        skipped=to_json(summary.skipped),
        findings=to_json(summary.findings),
        totals=summary.totals,
        run=summary.run,
        options=to_json(library.options or None),
        host=ended.host,
        pid=ended.pid,
        log=ended.log,
        extra=to_json(library.extra or None),
    )
    rows, has_findings = [own], any(base.findings for base in summary.bases)
    for base in summary.bases:
        # Where findings are counted by base, a base without any is done, whatever its library is.
        outcome = "done" if has_findings and not base.findings and own.outcome in GOOD else own.outcome
        columns = msgspec.structs.asdict(base) | {
            "outcome": base.outcome or outcome,
            "skipped": to_json(base.skipped),
            "findings": to_json(base.findings),
        }
        rows.append(msgspec.structs.replace(own, **_OF_LIBRARY, **columns))
    return rows


#: Columns that only the row of a library has.
_OF_LIBRARY = dict.fromkeys(("exit_status", "attempts", "seconds", "options", "host", "pid", "log", "extra"))


def to_json(value: object) -> str | None:
    """Encode a value as JSON, for a column of :class:`ResultRow`; None stays None."""
    return None if value is None else msgspec.json.encode(value, order="sorted").decode()


# --- files -----------------------------------------------------------------------------------------------------------


def is_json_lines(results: Path) -> bool:
    """Whether results are JSON Lines, by the name of their file; otherwise they are Parquet."""
    return results.suffix.lower() == ".jsonl"


def journal_path(results: Path) -> Path:
    """Return the path of the journal, the file that has the results of a fleet until all libraries have ended."""
    return results.with_name(f"{results.name}.journal")


class ResultFiles(NamedTuple):
    """All files that a fleet writes."""

    results: Path
    journal: Path
    part: Path  # a new version of the journal or the results, until it is complete
    lock: Path


def result_files(results: Path) -> ResultFiles:
    """Return the paths of all files that a fleet writes, from that of its results."""
    journal = journal_path(results)
    part, lock = (journal.with_name(f"{journal.name}.{name}") for name in ("new", "lock"))
    return ResultFiles(results=results, journal=journal, part=part, lock=lock)


def is_unused(journal: Path) -> bool:
    """Whether there is no journal, or an empty one: nothing was recorded in it, so that a new run may replace it."""
    return not journal.exists() or (journal.is_file() and journal.stat().st_size == 0)


@contextmanager
def lock_results(results: Path) -> Iterator[None]:
    """Lock the results against other processes within the context; raise WrongUsage if another one holds the lock."""
    with ExitStack() as held:
        # Only here: a lock that the work finds held is another one.
        try:
            held.enter_context(lock_files.hold_lock(result_files(results).lock))
        except lock_files.LockHeld as error:
            problem = tr("another regraft process is using {path}", path=results)
            raise WrongUsage(problem=problem, hint=tr("wait for it, or use another file")) from error
        yield


class StartedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the journal: an attempt to process a library has started, at a time in ISO 8601."""

    started: int
    attempt: int
    at: str


class Journal:
    """The journal: the order in the first line, then a line for each attempt that starts and each library that ends.

    An earlier journal is replaced once this one has all rows that were known.
    """

    def __init__(self, results: Path, order: FleetOrder, done: Iterable[list[ResultRow]] = ()) -> None:
        files = result_files(results)
        self.rows = KnownRows(len(order.libraries), files.journal)
        self._is_flushed = True
        with _replace_file(files.journal, files.part) as self._file:
            self._write(order)
            for rows in done:
                self._write(rows)
        with writable.allow_writes(results.parent, entries_only=True):
            self._file = durable.open_binary(files.journal, "ab")

    def add(self, rows: list[ResultRow]) -> None:
        """Add the rows of a library that has ended.

        They survive a kill from now on, and a power cut after :meth:`flush`.
        """
        self._write(rows)
        self._file.flush()
        self._is_flushed = False

    def note_start(self, task: Task, attempt: int) -> None:
        """Add a line that says that an attempt of a task has started; a power cut may lose it."""
        self._write(StartedLine(started=task.number, attempt=attempt, at=identity.iso_time(identity.now_ms())))
        self._file.flush()

    def _write(self, line: FleetOrder | list[ResultRow] | StartedLine) -> None:
        """Write a line; note in :attr:`rows` where the rows of a library begin."""
        if isinstance(line, list):
            self.rows.note(line, self._file.tell())
        self._file.write(msgspec.json.encode(line) + b"\n")

    def flush(self) -> None:
        """Flush the file to the disk."""
        if not self._is_flushed:
            durable.flush(self._file.fileno())
            self._is_flushed = True

    def close(self) -> None:
        """Flush and close the file."""
        try:
            self.flush()
        finally:
            self._file.close()


# --- rows of earlier runs --------------------------------------------------------------------------------------------


class KnownRows(Mapping[int, list[ResultRow]]):
    """Rows by the number of their library, read from a line of a file when they are asked for.

    ``copy`` has the lines of results at ``path`` that are not a journal. A journal is opened each time: Windows cannot
    replace an open file.

    Raises, when rows are asked for: WrongUsage: another process has changed the file. OSError: it cannot be read.
    """

    def __init__(self, count: int = 0, path: Path = Path(), copy: Any = None) -> None:
        self._count, self._path, self._copy = count, path, copy
        if copy is not None:
            weakref.finalize(self, copy.close)
        #: The byte at which the line of each library begins, and why the library is left; None: it succeeded.
        self._positions: dict[int, int] = {}
        self._endings: dict[int, Ending | None] = {}
        #: The attempts that have started and not ended, by library.
        self.started: dict[int, StartedLine] = {}

    def ending(self, number: int) -> Ending | None:
        """Return why the library with this number has not succeeded, or None if it has."""
        return self._endings.get(number, "unfinished")

    def note(self, rows: list[ResultRow], position: int) -> None:
        """Note that the rows of a library are in the line of the file that begins at ``position``.

        ValueError: they are not those of one library of this fleet.
        """
        number = rows[0].library if rows else -1
        if not 0 <= number < self._count or any(row.library != number for row in rows):
            raise ValueError(tr("there is no library {number:,}", number=number))
        outcome = rows[0].outcome
        self._positions[number] = position
        self._endings[number] = None if outcome in GOOD else _ENDINGS.get(outcome, "failed")
        self.started.pop(number, None)

    def __getitem__(self, number: int) -> list[ResultRow]:
        """Return the rows of the library with this number: its own first."""
        position = self._positions[number]
        with nullcontext(self._copy) if self._copy else links.open_for_reading(self._path) as file:
            file.seek(position)
            with suppress(ValueError, msgspec.MsgspecError):
                rows = _LINE.decode(file.readline())
                if rows and all(row.library == number for row in rows):
                    return rows
        problem = tr("{path} was changed by another process", path=self._path)
        raise WrongUsage(problem=problem, hint=tr("wait for it, and try again"))

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the libraries with rows, in sorted order."""
        return iter(sorted(self._positions))

    def __contains__(self, number: object) -> bool:
        return number in self._positions

    def __len__(self) -> int:
        return len(self._positions)


def read_results(results: Path) -> tuple[FleetOrder, KnownRows]:
    """Read the order of a fleet, and the rows of the libraries that have ended, from its results or its journal.

    SourceNotFound: neither exists. WrongUsage: the file is not one of a fleet. OSError: it cannot be read.
    """
    journal = journal_path(results)
    has_journal = journal.is_file() and not is_unused(journal)
    if not has_journal and not results.exists():
        if not journal.is_file():
            raise SourceNotFound(path=results)
        problem = tr("{path} is empty: nothing was recorded", path=journal)
        raise WrongUsage(problem=problem, hint=tr("give the command that began this run again"))
    try:
        order, known = _read_journal(journal) if has_journal else _read_finished(results)
        _validate_order(order)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise WrongUsage(
            problem=tr("{path} is not a results file of a fleet: {error}", path=results, error=error), hint=_HINT
        ) from error
    return order, known


def _validate_order(order: FleetOrder) -> None:
    """Raise ValueError if an order that was read from a file is not valid."""
    form = COMMAND_FORMS.get(order.command)
    # The id becomes part of a folder name, and that folder is removed: it must not lead elsewhere.
    if form is None or order.schema != _SCHEMA or not _ID.fullmatch(order.id):
        raise ValueError(tr("{name} is not a command of a fleet", name=printable(order.command)))
    for library in order.libraries:
        if (library.target is not None) != form.has_target or not is_name(f"{library.source}{library.target}"):
            raise ValueError(tr("{name} is not a library that this command accepts", name=printable(library.source)))


#: Characters that begin a formula in a spreadsheet.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_HINT = tr("give the file that regraft fleet wrote with --results")
_LINE = msgspec.json.Decoder(list[ResultRow])


def _read_journal(path: Path) -> tuple[FleetOrder, KnownRows]:
    """Read a journal: the order of its fleet, and the libraries started and finished. Torn lines are ignored."""
    with links.open_for_reading(path) as file:
        first = file.readline()
        order, position = msgspec.json.decode(first, type=FleetOrder), len(first)
        known = KnownRows(len(order.libraries), path)
        for line in file:
            # A library whose line was torn by a kill or a power cut is processed again.
            with suppress(ValueError, msgspec.MsgspecError):
                if line.startswith(b"{"):
                    start = msgspec.json.decode(line, type=StartedLine)
                    known.started[start.started] = start
                else:
                    known.note(_LINE.decode(line), position)
            position += len(line)
    return order, known


def _read_finished(path: Path) -> tuple[FleetOrder, KnownRows]:
    """Read complete results, Parquet or JSON Lines: the order of the fleet, and the rows of each library.

    The rows are kept in a temporary file, as the lines that a journal would have. ValueError: they are not valid.
    """
    if not path.is_file():
        raise ValueError(tr("it is a folder") if path.is_dir() else tr("it is a pipe, a socket or a device"))
    libraries: list[Library] = []
    with ExitStack() as stack, links.open_for_reading(path) as file:
        copy = stack.enter_context(scratch.anonymous_file(_IN_MEMORY))
        known = KnownRows(MAX_NUMBER, path, copy)
        is_parquet = file.read(4) == b"PAR1"
        file.seek(0)
        order, every = (_read_parquet if is_parquet else _read_lines)(file)
        for number, found in groupby(every, key=lambda row: row.library):
            rows = list(found)
            own, *bases = rows
            if number != len(libraries) or own.base is not None or any(row.base is None for row in bases):
                raise ValueError(tr("library {number:,} is missing", number=len(libraries)))
            options = msgspec.json.decode(own.options or "[]", type=tuple[str, ...])
            extra = msgspec.json.decode(own.extra or "{}", type=dict[str, Any])
            libraries.append(Library(source=own.source, target=own.target, options=options, extra=extra))
            known.note(rows, copy.tell())
            copy.write(msgspec.json.encode(rows) + b"\n")
        # Open as long as the rows are used.
        stack.pop_all()
    return msgspec.structs.replace(order, libraries=tuple(libraries)), known


def _read_parquet(file: Any) -> tuple[FleetOrder, Iterator[ResultRow]]:
    """Return the order of a fleet, which a Parquet file has in its metadata, and all rows."""
    _, parquet = import_arrow()
    table = parquet.ParquetFile(file)
    about = (table.schema_arrow.metadata or {}).get(_ORDER_KEY)
    if about is None:
        raise ValueError(tr("its metadata has no order"))
    # The last columns came later.
    required = ResultRow.__struct_fields__[: ResultRow.__struct_fields__.index("options")]
    if missing := set(required) - set(table.schema_arrow.names):
        raise ValueError(tr("it has no column {name}", name=min(missing)))
    rows = (row for batch in table.iter_batches() for row in batch.to_pylist())
    return msgspec.json.decode(about, type=FleetOrder), (msgspec.convert(row, ResultRow) for row in rows)


class _FirstLine(msgspec.Struct, frozen=True):
    """The first line of results in JSON Lines, without the columns of its row."""

    fleet: FleetOrder


def _read_lines(file: Any) -> tuple[FleetOrder, Iterator[ResultRow]]:
    """Return the order of a fleet, which the first line of JSON Lines has as a further column, and all rows."""
    first = file.readline()
    order = msgspec.json.decode(first, type=_FirstLine).fleet
    return order, (msgspec.json.decode(line, type=ResultRow) for line in chain([first], file))


# --- writing results -------------------------------------------------------------------------------------------------


def write_results(results: Path, order: FleetOrder, rows: Mapping[int, list[ResultRow]]) -> None:
    """Write the rows of all libraries of a fleet to the file of results, replacing it, and remove the journal."""
    # Without the libraries, which the rows have: metadata of 100 MB could not be read any more.
    stored = msgspec.structs.replace(order, libraries=())
    every = (row for number in range(len(order.libraries)) for row in rows[number])
    files = result_files(results)
    with _replace_file(results, files.part) as file:
        (_write_lines if is_json_lines(results) else _write_parquet)(file, every, stored)
    with writable.allow_writes(results.parent, entries_only=True):
        durable.remove(files.journal, missing_ok=True)


def export_results(path: Path, rows: Mapping[int, list[ResultRow]]) -> None:
    """Write the rows of libraries to a file, as CSV or, if its name ends in ``.jsonl``, as JSON Lines."""
    every = (row for number in rows for row in rows[number])
    with _replace_file(path, path.with_name(f"{path.name}.new")) as file:
        (_write_lines if is_json_lines(path) else _write_csv)(file, every)


@contextmanager
def _replace_file(path: Path, part: Path) -> Iterator[Any]:
    """Open ``part`` for writing; it replaces ``path`` at the end of the context, or is removed after an error."""
    with writable.allow_writes(path.parent, entries_only=True):
        durable.remove(part, missing_ok=True)
        try:
            with durable.open_binary(part, "xb") as file:
                yield file
            durable.sync_file(part)
            durable.replace(part, path)
        except BaseException:
            durable.remove(part, missing_ok=True)
            raise


def _write_lines(file: Any, rows: Iterable[ResultRow], order: FleetOrder | None = None) -> None:
    """Write rows as JSON Lines; the order of the fleet, if given, is added to the first."""
    for row in rows:
        first = {} if order is None else {"fleet": order}
        file.write(msgspec.json.encode(msgspec.structs.asdict(row) | first) + b"\n")
        order = None


def _write_parquet(file: Any, rows: Iterable[ResultRow], order: FleetOrder) -> None:
    """Write rows as Parquet, with the order of the fleet in the metadata."""
    pa, parquet = import_arrow()
    kinds = {"int": pa.int64(), "Count": pa.int64(), "float": pa.float64(), "str": pa.string()}
    fields = [pa.field(name, kinds[kind.split(" ")[0]]) for name, kind in ResultRow.__annotations__.items()]
    schema = pa.schema(fields, metadata={_ORDER_KEY: msgspec.json.encode(order)})
    with parquet.ParquetWriter(file, schema, compression="zstd") as out:
        every = map(msgspec.structs.asdict, rows)
        while some := list(islice(every, _GROUP_ROWS)):
            out.write_table(pa.Table.from_pylist(some, schema))


def _write_csv(file: Any, rows: Iterable[ResultRow]) -> None:
    """Write rows as CSV; no text in it is a formula for a spreadsheet."""
    text = io.TextIOWrapper(file, "utf-8", "backslashreplace", newline="")
    table = csv.writer(text)
    table.writerow(ResultRow.__struct_fields__)
    for row in rows:
        # A spreadsheet would evaluate a text that begins like a formula; names may come from anybody.
        values = (
            f"'{one}" if isinstance(one, str) and one.startswith(_FORMULA) else one
            for one in msgspec.structs.astuple(row)
        )
        table.writerow(values)
    text.detach()
