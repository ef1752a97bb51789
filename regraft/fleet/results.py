"""What became of each library and each base of a fleet: a Parquet file, and a journal until it is written.

A run that is killed leaves the journal, which has what was done until then: a line is written when a library ends.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from regraft.disk import durable, links, sqlite, writable
from regraft.errors import INTERRUPTED, REFUSED, STOPPED, WORTH_READING, SourceNotFound, WrongUsage
from regraft.fleet.engine import Task, TaskResult
from regraft.fleet.jobs import COMMAND_FORMS
from regraft.fleet.manifest import MAX_NUMBER, Count, Library, is_name
from regraft.formats.parquet.unit_file import import_arrow
from regraft.language import tr
from regraft.text import printable

# What is known of libraries that ended, read from its file when it is asked for: memory holds only where it lies.


class Numbered(Protocol):
    """What has the number of a library."""

    @property
    def library(self) -> int:
        """Return the number."""


RowT = TypeVar("RowT", bound=Numbered)


class KnownRows(Mapping[int, list[RowT]]):
    """Rows by the number of their library; this one has none.

    Args:
        count: how many libraries there are.
    """

    def __init__(self, count: int = 0) -> None:
        self._places = array("q", [-1]) * count
        #: The numbers of libraries that need nothing more.
        self.good: set[int] = set()

    def note(self, number: int, place: int, *, is_good: bool) -> None:
        """Note where the rows of a library lie.

        Raises:
            ValueError: there is no such library.
        """
        if not 0 <= number < len(self._places):
            raise ValueError(tr("there is no library {number:,}", number=number))
        self._places[number] = place
        (self.good.add if is_good else self.good.discard)(number)

    def __getitem__(self, number: int) -> list[RowT]:
        if number not in self:
            raise KeyError(number)
        return self._at(number, self._places[number])

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and 0 <= number < len(self._places) and self._places[number] >= 0

    def __iter__(self) -> Iterator[int]:
        return (number for number, place in enumerate(self._places) if place >= 0)

    def __len__(self) -> int:
        return sum(place >= 0 for place in self._places)

    def _at(self, number: int, place: int) -> list[RowT]:
        """Return the rows of a library, which lie at a place."""
        raise KeyError(number, place)


class JournalRows(KnownRows[RowT]):
    """Rows in a journal, a line for each library; a place is where a line begins, in bytes.

    Raises, where rows are asked for:
        WrongUsage: somebody else wrote to the file.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, count: int, decoder: msgspec.json.Decoder[list[RowT]]) -> None:
        super().__init__(count)
        self._path, self._decoder = path, decoder

    def _at(self, number: int, place: int) -> list[RowT]:
        # Opened each time: not every system replaces a file that is open.
        with links.open_for_reading(self._path) as file:
            file.seek(place)
            line = file.readline()
        try:
            rows = self._decoder.decode(line)
        except (ValueError, msgspec.MsgspecError):
            rows = []
        return _demanded(rows, number, self._path)


class ParquetRows(KnownRows[RowT]):
    """Rows in a Parquet file, those of a library side by side; a place is the number of the first one in the file.

    One row group is held, so libraries are best asked for in their order. Raises as :class:`InJournal`.
    """

    def __init__(self, path: Path, count: int, convert: Callable[[list[dict[str, Any]]], list[RowT]]) -> None:
        super().__init__(count)
        self._path, self._convert = path, convert
        self._groups: Sequence[int] = ()
        self._group: tuple[int, Any] = (-1, None)

    def _at(self, number: int, place: int) -> list[RowT]:
        rows: list[dict[str, Any]] = []
        while not rows or rows[-1]["library"] == number:
            row = self._row(place + len(rows))
            if row is None or row["library"] != number:
                break
            rows.append(row)
        try:
            found = self._convert(rows)
        except (ValueError, msgspec.MsgspecError):
            found = []
        return _demanded(found, number, self._path)

    def _row(self, place: int) -> dict[str, Any] | None:
        """Return a row of the file, None behind its end."""
        _, parquet = import_arrow()
        if not self._groups:
            with links.open_for_reading(self._path) as plain, parquet.ParquetFile(plain) as file:
                about = file.metadata
                sizes = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
            self._groups = [0, *accumulate(sizes)]
        if place >= self._groups[-1]:
            return None
        group = bisect_right(self._groups, place) - 1
        if self._group[0] != group:
            with links.open_for_reading(self._path) as plain, parquet.ParquetFile(plain) as file:
                self._group = group, file.read_row_group(group)
        [row] = self._group[1].slice(place - self._groups[group], 1).to_pylist()
        found: dict[str, Any] = row
        return found


def _demanded(rows: list[RowT], number: int, path: Path) -> list[RowT]:
    """Return the rows of a library, if they are that.

    Raises:
        WrongUsage
    """
    if rows and all(row.library == number for row in rows):
        return rows
    problem = tr("{path} was changed by another process", path=path)
    raise WrongUsage(problem=problem, hint=tr("wait for it, and try again"))


#: In the metadata of the Parquet file: what the fleet was told.
_ABOUT = b"regraft.fleet"
_SCHEMA = 1
_ID = re.compile(r"[0-9a-f]*")
#: So many rows are written at once, and read at once.
_GROUP_ROWS = 10_000
#: Outcomes by exit status.
OUTCOMES = {
    0: "done",
    WORTH_READING: "worth-reading",
    REFUSED: "refused",
    STOPPED: "stopped",
    INTERRUPTED: "interrupted",
    None: "killed",
}
#: With these a library needs nothing more.
GOOD = ("done", "worth-reading")


class FleetOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet was told to do: the command, the options of every library, and the libraries.

    ``id`` is the fleet's own, which stays when it is gone on with.
    ``told`` is what a command of the fleet itself was told besides, of which its libraries know nothing.
    """

    command: str
    options: tuple[str, ...]
    libraries: tuple[Library, ...]
    id: str = ""
    schema: int = _SCHEMA
    told: dict[str, Any] | None = None


class ResultRow(msgspec.Struct, frozen=True, kw_only=True):
    """A library, or one base of it: then it has a ``base``, and what belongs to the library alone is None.

    ``skipped`` and ``findings`` are JSON objects of counts, ``totals`` is the JSON of the command's own, ``options``
    that of the words that the manifest gives this library.
    """

    library: int
    source: str
    target: str | None
    command: str
    base: str | None
    name: str | None
    outcome: str
    exit_status: int | None
    code: str | None
    message: str | None
    attempts: int | None
    seconds: float | None
    bytes: int | None
    rows_read: int | None
    rows_carried: int | None
    skipped: str | None
    findings: str | None
    totals: str | None
    run: str | None
    options: str | None = None

    def __post_init__(self) -> None:
        """Refuse counts that are none.

        Raises:
            ValueError
        """
        for text in (self.skipped, self.findings):
            counts_of(text)
        for number in (self.exit_status, self.attempts, self.bytes, self.rows_read, self.rows_carried):
            if number is not None and not 0 <= number <= MAX_NUMBER:
                raise ValueError(tr("{number} is no count", number=printable(str(number))))


def counts_of(text: str | None) -> dict[str, int]:
    """Return the counts that a row has as JSON; where it has none, there are none.

    Raises:
        ValueError: it is something else.
    """
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Count])
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def result_rows(library: Library, task: Task, command: str, ended: TaskResult) -> list[ResultRow]:
    """Return the rows of a library: its own first, then one for each base that its document tells of."""
    document, error = ended.document, ended.document.get("error") or {}
    # An audit counts its findings itself; a change says which ones it left.
    findings = (document.get("summary") or {}).get("by_name") or _counted(document.get("left"), "finding")
    totals = document.get("totals") or document.get("checked")
    counts = (document.get("totals") or {}).get("rows") or {}
    own = ResultRow(
        library=task.number,
        source=library.source,
        target=library.target,
        command=command,
        base=None,
        name=None,
        # What has an error is never well, whatever the command's exit status says of it.
        outcome="refused" if error and ended.status in (0, WORTH_READING) else OUTCOMES.get(ended.status, "stopped"),
        exit_status=ended.status,
        code=error.get("code"),
        message=error.get("message"),
        attempts=ended.attempts,
        seconds=round(ended.seconds, 3),
        bytes=task.bytes,
        rows_read=counts.get("read"),
        rows_carried=counts.get("carried"),
        skipped=_json(counts.get("skipped")),
        findings=_json(findings),
        totals=_json(totals),
        run=(document.get("run") or {}).get("id"),
        options=_json(library.options or None),
    )
    # An audit has its bases among its statistics.
    bases = document.get("bases") or (document.get("statistics") or {}).get("bases") or ()
    return [own, *(_base_row(own, base, document) for base in bases)]


def _base_row(own: ResultRow, base: dict[str, Any], document: dict[str, Any]) -> ResultRow:
    rows, base_id = base.get("rows") or {}, base.get("id") or base.get("legacy_id")
    found = [one for one in document.get("findings") or () if one.get("base") == base_id]
    return msgspec.structs.replace(
        own,
        base=base_id,
        name=base.get("name"),
        outcome=base.get("status") or own.outcome,
        code=base.get("error") or base.get("outcome"),
        message=None,
        exit_status=None,
        attempts=None,
        seconds=None,
        bytes=(base.get("index") or {}).get("bytes"),
        rows_read=rows.get("read"),
        rows_carried=rows.get("carried"),
        skipped=_json(rows.get("skipped")),
        findings=_json(_counted(found, "name")),
        totals=None,
        options=None,
    )


def _counted(findings: Iterable[dict[str, Any]] | None, name: str) -> dict[str, int]:
    """Return how many there are of each finding, whose name stands under ``name``."""
    counts: Counter[str] = Counter()
    for one in findings or ():
        counts[one[name]] += one.get("count") or 1
    return dict(counts)


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value, order="sorted").decode()


# --- files -----------------------------------------------------------------------------------------------------------


def journal_path(results: Path) -> Path:
    """Return the file that holds what was done while the results are not written."""
    return results.with_name(f"{results.name}.journal")


def result_files(results: Path) -> tuple[Path, ...]:
    """Return all files that a fleet writes: the results, and what is there until they are written."""
    journal = journal_path(results)
    return results, journal, *(journal.with_name(f"{journal.name}.{name}") for name in ("new", "lock"))


@contextmanager
def lock_results(results: Path) -> Iterator[None]:
    """Let no other process work on a fleet with these results meanwhile.

    Raises:
        WrongUsage: another process does.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(sqlite.hold_lock(result_files(results)[3]))
        except sqlite.LockHeld as error:
            problem = tr("another process is at work for {path}", path=results)
            raise WrongUsage(problem=problem, hint=tr("wait for it, or name another file")) from error
        yield


class Journal:
    """What was done, a line for each library; the first line is the order.

    An earlier one stays until this one has all that is known. ``rows`` are those of the libraries that it has.
    """

    def __init__(self, results: Path, order: FleetOrder, done: Iterable[list[ResultRow]] = ()) -> None:
        _, path, new, _ = result_files(results)
        self.rows = JournalRows(path, len(order.libraries), _LINE)
        self._is_flushed = True
        with writable.allow_writes(path.parent, entries_only=True):
            durable.remove(new, missing_ok=True)
            with ExitStack() as stack:
                stack.callback(durable.remove, new, missing_ok=True)
                with durable.open_binary(new, "xb") as file:
                    self._end = file.write(msgspec.json.encode(order) + b"\n")
                    for rows in done:
                        self._end += file.write(self._line(rows))
                durable.sync_file(new)
                durable.replace(new, path)
                stack.pop_all()
            self._file = durable.open_binary(path, "ab")

    def add(self, rows: list[ResultRow]) -> None:
        """Write the rows of a library, so that they survive a kill, and with :meth:`flush` a power cut."""
        self._end += self._file.write(self._line(rows))
        self._file.flush()
        self._is_flushed = False

    def flush(self) -> None:
        """Flush what was written to the disk."""
        if not self._is_flushed:
            durable.flush(self._file.fileno())
            self._is_flushed = True

    def _line(self, rows: list[ResultRow]) -> bytes:
        """Return the line of a library, which begins where the file ends."""
        self.rows.note(rows[0].library, self._end, is_good=rows[0].outcome in GOOD)
        return msgspec.json.encode(rows) + b"\n"

    def close(self) -> None:
        """Flush and close the file."""
        try:
            self.flush()
        finally:
            self._file.close()


def read_results(results: Path) -> tuple[FleetOrder, KnownRows[ResultRow]]:
    """Return what a fleet was told, and the rows of each library that has ended, from its results or its journal.

    Raises:
        SourceNotFound: neither is there.
        WrongUsage: it is none of a fleet's.
        OSError: it cannot be read.
    """
    journal = journal_path(results)
    if not journal.is_file() and not results.exists():
        raise SourceNotFound(path=results)
    try:
        order, known = _of_journal(journal) if journal.is_file() else _of_parquet(results)
        _demand_meant(order)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise WrongUsage(
            problem=tr("{path} has no results of a fleet ({error})", path=results, error=error), hint=_HINT
        ) from error
    return order, known


def _demand_meant(order: FleetOrder) -> None:
    """Refuse an order that no fleet was told.

    Raises:
        ValueError
    """
    form = COMMAND_FORMS.get(order.command)
    # The id is part of the name of a folder that is removed: it leads nowhere else.
    if form is None or order.schema != _SCHEMA or not _ID.fullmatch(order.id):
        raise ValueError(tr("{name} is no command of a fleet", name=printable(order.command)))
    for library in order.libraries:
        if (library.target is not None) != form.has_target or not is_name(f"{library.source}{library.target}"):
            raise ValueError(tr("{name} is no library that this command can have", name=printable(library.source)))


_HINT = tr("give the file that regraft fleet wrote with --results")
_LINE = msgspec.json.Decoder(list[ResultRow])


def _of_journal(path: Path) -> tuple[FleetOrder, KnownRows[ResultRow]]:
    with links.open_for_reading(path) as file:
        first = file.readline()
        order, place = msgspec.json.decode(first, type=FleetOrder), len(first)
        known = JournalRows(path, len(order.libraries), _LINE)
        for line in file:
            # What was torn is worked on again.
            with suppress(ValueError, msgspec.MsgspecError):
                rows = _LINE.decode(line)
                if rows and all(row.library == rows[0].library for row in rows):
                    known.note(rows[0].library, place, is_good=rows[0].outcome in GOOD)
            place += len(line)
    return order, known


#: The columns that tell what a fleet was told of a library, and whether that ended well.
_TOLD = ("library", "base", "source", "target", "options", "outcome")


def _of_parquet(path: Path) -> tuple[FleetOrder, KnownRows[ResultRow]]:
    _, parquet = import_arrow()
    if not path.is_file():
        raise ValueError(tr("a pipe, a socket or a device, not a file"))
    with links.open_for_reading(path) as plain, parquet.ParquetFile(plain) as file:
        about = (file.schema_arrow.metadata or {}).get(_ABOUT)
        if about is None:
            raise ValueError(tr("it does not say so"))
        if missing := set(_TOLD) - set(file.schema_arrow.names):
            raise ValueError(tr("it has no column {name}", name=min(missing)))
        order = msgspec.json.decode(about, type=FleetOrder)
        libraries: list[Library] = []
        found: list[tuple[int, bool]] = []
        place = 0
        for batch in file.iter_batches(columns=list(_TOLD)):
            for row in batch.to_pylist():
                if row["base"] is None:
                    if row["library"] != len(libraries):
                        raise ValueError(tr("it has no library {number:,}", number=len(libraries)))
                    options = msgspec.json.decode(row["options"] or "[]", type=tuple[str, ...])
                    told = {"source": row["source"], "target": row["target"], "options": options}
                    libraries.append(msgspec.convert(told, Library))
                    found.append((place, row["outcome"] in GOOD))
                place += 1
    known = ParquetRows(path, len(libraries), _converted)
    for number, (begin, is_good) in enumerate(found):
        known.note(number, begin, is_good=is_good)
    return msgspec.structs.replace(order, libraries=tuple(libraries)), known


def _converted(rows: list[dict[str, Any]]) -> list[ResultRow]:
    return msgspec.convert(rows, list[ResultRow])


def write_results(results: Path, order: FleetOrder, rows: Mapping[int, list[ResultRow]]) -> None:
    """Write the Parquet file in the place of one that is there, and remove the journal.

    Raises:
        OSError: it cannot be written.
    """
    pa, parquet = import_arrow()
    kinds = {"int": pa.int64(), "float": pa.float64(), "str": pa.string()}
    fields = [pa.field(name, kinds[kind.split(" ")[0]]) for name, kind in ResultRow.__annotations__.items()]
    # The libraries stand in the rows. Metadata of a hundred megabytes could not be read any more.
    told = msgspec.structs.replace(order, libraries=())
    schema = pa.schema(fields, metadata={_ABOUT: msgspec.json.encode(told)})
    _, journal, part, _ = result_files(results)
    with writable.allow_writes(results.parent, entries_only=True):
        try:
            with (
                durable.open_binary(part, "wb") as file,
                parquet.ParquetWriter(file, schema, compression="zstd") as out,
            ):
                every = (msgspec.structs.asdict(row) for number in range(len(order.libraries)) for row in rows[number])
                while some := list(islice(every, _GROUP_ROWS)):
                    out.write_table(pa.Table.from_pylist(some, schema))
            durable.sync_file(part)
            durable.replace(part, results)
        except BaseException:
            durable.remove(part, missing_ok=True)
            raise
        durable.remove(journal, missing_ok=True)
