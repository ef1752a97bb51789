"""What became of each library and each base of a fleet: a Parquet file, and a journal until it is written.

A run that is killed leaves the journal, which has what was done until then: a line is written when a library ends.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from regraft import areas, links
from regraft.errors import INTERRUPTED, REFUSED, STOPPED, WORTH_READING, SourceNotFound, WrongUsage
from regraft.fleet.commands import FORMS
from regraft.fleet.engine import Ended, Task
from regraft.fleet.known import InJournal, InParquet, Known
from regraft.fleet.manifest import MOST, Count, Library, is_name
from regraft.formats.parquet.columns import arrow
from regraft.language import tr
from regraft.ledger import durable, lock_file
from regraft.text import shown

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


class Order(msgspec.Struct, frozen=True, kw_only=True):
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


class Row(msgspec.Struct, frozen=True, kw_only=True):
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
            if number is not None and not 0 <= number <= MOST:
                raise ValueError(tr("{number} is no count", number=shown(str(number))))


def counts_of(text: str | None) -> dict[str, int]:
    """Return the counts that a row has as JSON; where it has none, there are none.

    Raises:
        ValueError: it is something else.
    """
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Count])
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def rows_of(library: Library, task: Task, command: str, ended: Ended) -> list[Row]:
    """Return the rows of a library: its own first, then one for each base that its document tells of."""
    document, error = ended.document, ended.document.get("error") or {}
    # An audit counts its findings itself; a change says which ones it left.
    findings = (document.get("summary") or {}).get("by_name") or _counted(document.get("left"), "finding")
    totals = document.get("totals") or document.get("checked")
    counts = (document.get("totals") or {}).get("rows") or {}
    own = Row(
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


def _base_row(own: Row, base: dict[str, Any], document: dict[str, Any]) -> Row:
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


def journal_of(results: Path) -> Path:
    """Return the file that holds what was done while the results are not written."""
    return results.with_name(f"{results.name}.journal")


def files_of(results: Path) -> tuple[Path, ...]:
    """Return all files that a fleet writes: the results, and what is there until they are written."""
    journal = journal_of(results)
    return results, journal, *(journal.with_name(f"{journal.name}.{name}") for name in ("new", "lock"))


@contextmanager
def held(results: Path) -> Iterator[None]:
    """Let no other process work on a fleet with these results meanwhile.

    Raises:
        WrongUsage: another process does.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_file.held(files_of(results)[3]))
        except lock_file.LockHeld as error:
            problem = tr("another process is at work for {path}", path=results)
            raise WrongUsage(problem=problem, hint=tr("wait for it, or name another file")) from error
        yield


class Journal:
    """What was done, a line for each library; the first line is the order.

    An earlier one stays until this one has all that is known. ``rows`` are those of the libraries that it has.
    """

    def __init__(self, results: Path, order: Order, done: Iterable[list[Row]] = ()) -> None:
        _, path, new, _ = files_of(results)
        self.rows = InJournal(path, len(order.libraries), _LINE)
        self._is_flushed = True
        with areas.opened(path.parent, entries_only=True):
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

    def add(self, rows: list[Row]) -> None:
        """Write the rows of a library, so that they survive a kill, and with :meth:`flush` a power cut."""
        self._end += self._file.write(self._line(rows))
        self._file.flush()
        self._is_flushed = False

    def flush(self) -> None:
        """Flush what was written to the disk."""
        if not self._is_flushed:
            durable.flush(self._file.fileno())
            self._is_flushed = True

    def _line(self, rows: list[Row]) -> bytes:
        """Return the line of a library, which begins where the file ends."""
        self.rows.note(rows[0].library, self._end, is_good=rows[0].outcome in GOOD)
        return msgspec.json.encode(rows) + b"\n"

    def close(self) -> None:
        """Flush and close the file."""
        try:
            self.flush()
        finally:
            self._file.close()


def read(results: Path) -> tuple[Order, Known[Row]]:
    """Return what a fleet was told, and the rows of each library that has ended, from its results or its journal.

    Raises:
        SourceNotFound: neither is there.
        WrongUsage: it is none of a fleet's.
        OSError: it cannot be read.
    """
    journal = journal_of(results)
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


def _demand_meant(order: Order) -> None:
    """Refuse an order that no fleet was told.

    Raises:
        ValueError
    """
    form = FORMS.get(order.command)
    # The id is part of the name of a folder that is removed: it leads nowhere else.
    if form is None or order.schema != _SCHEMA or not _ID.fullmatch(order.id):
        raise ValueError(tr("{name} is no command of a fleet", name=shown(order.command)))
    for library in order.libraries:
        if (library.target is not None) != form.has_target or not is_name(f"{library.source}{library.target}"):
            raise ValueError(tr("{name} is no library that this command can have", name=shown(library.source)))


_HINT = tr("give the file that regraft fleet wrote with --results")
_LINE = msgspec.json.Decoder(list[Row])


def _of_journal(path: Path) -> tuple[Order, Known[Row]]:
    with links.reading(path) as file:
        first = file.readline()
        order, place = msgspec.json.decode(first, type=Order), len(first)
        known = InJournal(path, len(order.libraries), _LINE)
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


def _of_parquet(path: Path) -> tuple[Order, Known[Row]]:
    _, parquet = arrow()
    if not path.is_file():
        raise ValueError(tr("a pipe, a socket or a device, not a file"))
    with links.reading(path) as plain, parquet.ParquetFile(plain) as file:
        about = (file.schema_arrow.metadata or {}).get(_ABOUT)
        if about is None:
            raise ValueError(tr("it does not say so"))
        if missing := set(_TOLD) - set(file.schema_arrow.names):
            raise ValueError(tr("it has no column {name}", name=min(missing)))
        order = msgspec.json.decode(about, type=Order)
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
    known = InParquet(path, len(libraries), _converted)
    for number, (begin, is_good) in enumerate(found):
        known.note(number, begin, is_good=is_good)
    return msgspec.structs.replace(order, libraries=tuple(libraries)), known


def _converted(rows: list[dict[str, Any]]) -> list[Row]:
    return msgspec.convert(rows, list[Row])


def write(results: Path, order: Order, rows: Mapping[int, list[Row]]) -> None:
    """Write the Parquet file in the place of one that is there, and remove the journal.

    Raises:
        OSError: it cannot be written.
    """
    pa, parquet = arrow()
    kinds = {"int": pa.int64(), "float": pa.float64(), "str": pa.string()}
    fields = [pa.field(name, kinds[kind.split(" ")[0]]) for name, kind in Row.__annotations__.items()]
    # The libraries stand in the rows. Metadata of a hundred megabytes could not be read any more.
    told = msgspec.structs.replace(order, libraries=())
    schema = pa.schema(fields, metadata={_ABOUT: msgspec.json.encode(told)})
    _, journal, part, _ = files_of(results)
    with areas.opened(results.parent, entries_only=True):
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
