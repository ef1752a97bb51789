"""Check a store part by part: the rows of a part, and the state that is kept between the runs.

Each row has a fixed position between 0 and 1, a hash of its table and key. A run reads the rows between the position
at which the last run stopped and that position plus the size of the part. Rows below it that this cycle has not read
yet, because they were added since or could not be read, are read as well. So after each run every row of the covered
range has been read in this cycle, whatever was added, removed or moved between two runs.

The state is a SQLite file with one entry per row: the cycle that read it last, and for a vector a digest. A run holds
the file exclusively and changes it in one transaction (``docs/rolling-check.md``).
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import identity
from regraft.disk import durable, links, lock_files, sqlite, untrusted_sqlite, writable
from regraft.errors import (
    CheckStateLocked,
    CheckStateNotWritable,
    CheckStateUnusable,
    RegraftError,
    WrongUsage,
)
from regraft.language import format_count, tr
from regraft.ledger import ledger
from regraft.text import path_text, printable

#: All rows have a position below this number.
_END = 1 << 62
#: A percentage, or a fraction.
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s?%|([0-9]{1,9})/([1-9][0-9]{0,8})")
#: The smallest part: a millionth.
_LEAST_PART = Fraction(1, 1_000_000)
_VERSION = 1
#: More cycles, and more parts of one, are not believed. The last time is the end of the year 9999.
_MOST, _LAST_TIME = 10**9, 253_402_300_799_999
#: First bytes of a database, and of one that uses a rollback journal its format versions.
_MAGIC, _VERSIONS = b"SQLite format 3\0", slice(18, 20)
_JOURNAL_VERSIONS = b"\1\1"
#: Bytes of the digest of a vector, of that of the time of its row, and of the check of both.
_DIGEST, _TIME, _CHECK = 16, 4, 4

_TABLES = (
    """CREATE TABLE rolling (version INTEGER NOT NULL, store TEXT NOT NULL, cycle INTEGER NOT NULL,
         position INTEGER NOT NULL, parts INTEGER NOT NULL, started_at INTEGER NOT NULL, completed_at INTEGER,
         digest BLOB NOT NULL)""",
    "CREATE TABLE base (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, model TEXT, made TEXT)",
    """CREATE TABLE entry (base INTEGER NOT NULL, id BLOB NOT NULL, cycle INTEGER NOT NULL, data BLOB,
         PRIMARY KEY (base, id)) WITHOUT ROWID""",
)
#: Conditions that no row of ours meets.
_INVALID = {
    "rolling": f"""typeof(version) <> 'integer' OR typeof(store) <> 'text' OR typeof(cycle) <> 'integer' OR cycle < 1
         OR typeof(position) <> 'integer' OR position NOT BETWEEN 0 AND {_END} OR typeof(parts) <> 'integer'
         OR parts NOT BETWEEN 1 AND {_MOST} OR cycle > {_MOST} OR typeof(started_at) <> 'integer'
         OR started_at NOT BETWEEN 0 AND {_LAST_TIME} OR typeof(completed_at) NOT IN ('integer', 'null')
         OR completed_at NOT BETWEEN 0 AND {_LAST_TIME} OR typeof(digest) <> 'blob'""",
    "base": """typeof(name) <> 'text' OR typeof(model) NOT IN ('text', 'null')
         OR typeof(made) NOT IN ('text', 'null')""",
    "entry": f"""typeof(base) <> 'integer' OR typeof(id) <> 'blob' OR octet_length(id) <> 16
         OR typeof(cycle) <> 'integer' OR cycle > (SELECT max(cycle) FROM rolling)
         OR (data IS NOT NULL AND (typeof(data) <> 'blob' OR octet_length(data) <> {_DIGEST + _TIME + _CHECK}))
         OR base NOT IN (SELECT number FROM base)""",
}
_HEADER = "SELECT version, store, cycle, position, parts, started_at, completed_at FROM rolling"
#: Rows of a table that a part reads; ``id`` names the row in the state.
_CHOSEN = "CREATE TEMP TABLE chosen (row INTEGER PRIMARY KEY, id BLOB NOT NULL, data BLOB)"
_PAGE = "SELECT row FROM temp.chosen WHERE row > ? ORDER BY row LIMIT 1000"
_TWICE = "SELECT id FROM temp.chosen GROUP BY id HAVING count(*) > 1"


#: The states that this process has open.
_OPEN: set[Path] = set()
_LOCK = threading.Lock()


def parse_part(text: str) -> Fraction:
    """Parse the size of a part: a percentage such as "5%", or a fraction such as "1/20".

    Raises:
        WrongUsage: it is neither, or not above 0 and at most 100%.
    """
    match = _PART.fullmatch(text.strip())
    percent, number, of_all = match.groups() if match else (None, "0", "1")
    part = Fraction(percent) / 100 if percent else Fraction(int(number), int(of_all))
    if not _LEAST_PART <= part <= 1:
        raise WrongUsage(problem=tr("--part {text} is not a part of all rows", text=text), hint=tr("write 1/20 or 5%"))
    return part


class PartReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of a rolling check read, and how far its cycle is (``docs/rolling-check.md``).

    ``number`` counts the runs of the cycle, and ``parts`` is how many it takes with parts of this size. ``rows`` are
    all rows of the store, ``read`` those that this run read, ``covered`` those that the cycle has read so far.
    ``recorded`` counts vectors that were read for the first time, ``rewritten`` those that were written again since.
    """

    state: str
    cycle: int
    number: int
    parts: int
    rows: int
    read: int
    covered: int
    coverage: float
    recorded: int
    rewritten: int
    changed: int
    is_complete: bool
    cycle_started_at: str
    last_complete_at: str | None

    def describe(self) -> str:
        """Return the sentences of the text output: how far the cycle is, and how many vectors were written again."""
        read = format_count(self.read, "row")
        rows = format_count(self.rows, "row")
        # A cycle that is not complete never shows 100 %.
        share = f"{100 if self.is_complete else min(int(100 * self.coverage), 99)} %"
        if self.cycle == 1:
            text = tr(
                "Part {number} of {parts}: {read} read, {share} of {rows}, first cycle.",
                number=self.number,
                parts=self.parts,
                read=read,
                share=share,
                rows=rows,
            )
        else:
            text = tr(
                "Part {number} of {parts}: {read} read, {share} of {rows}, cycle {cycle}.",
                number=self.number,
                parts=self.parts,
                read=read,
                share=share,
                rows=rows,
                cycle=self.cycle,
            )
        if self.rewritten:
            again = tr("{vectors} written again since the last cycle.", vectors=format_count(self.rewritten, "vector"))
            text = f"{text} {again}"
        return text


class ChosenRows:
    """Row numbers of one table that a run of a rolling check reads, ascending. They are in a temporary table."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def __iter__(self) -> Iterator[int]:
        last: Any = -(1 << 63)
        while page := self._db.execute(_PAGE, (last,)).fetchall():
            for (last,) in page:
                yield last


class BaseRows:
    """The rows of one base in a run of a rolling check."""

    def __init__(self, part: RollingPart, number: int) -> None:
        self._part = part
        self._number = number

    def set_creation_time(self, created_at: str | None) -> None:
        """Forget the recorded digests of the base's vectors if its index has another creation time than before.

        ``created_at`` is that time as the index states it; None: unknown, the digests are kept.
        """
        self._part.forget_digests_if_changed(self._number, "made", created_at)

    @contextmanager
    def choose(self, table: str, keys: Iterator[tuple[int, bytes | None]]) -> Iterator[ChosenRows]:
        """Choose the rows of a table that this run reads. They are recorded as read at the end of the context.

        Args:
            table: the name of a table of the index.
            keys: row number and key of every row of that table.
        """
        part, read, covered = self._part, 0, 0
        part.run("DELETE FROM temp.chosen")
        for row, key in keys:
            part.rows += 1
            # The first bytes decide, so that the order of the ids is that of the positions.
            name = hashlib.blake2b(key or b"", digest_size=16, person=table.encode()).digest()
            position = int.from_bytes(name[:8]) >> 2
            if position >= part.end:
                continue
            covered += 1
            if position >= part.start or not part.was_read_in_cycle(self._number, name):
                read += 1
                part.run("INSERT INTO temp.chosen (row, id) VALUES (?, ?)", (row, name))
        yield ChosenRows(part.db)
        part.run(
            "INSERT OR REPLACE INTO entry (base, id, cycle, data) SELECT ?, id, ?, data FROM temp.chosen ORDER BY id",
            (self._number, part.cycle),
        )
        part.read += read
        part.covered += covered

    def find_changed(self, vectors: Iterator[tuple[int, bytes, bytes]]) -> Iterator[int]:
        """Compare vectors of chosen rows with their recorded digests, and record the vectors that are new or rewritten.

        Args:
            vectors: row number, digest of the vector, and stored time of the row, for each chosen row.

        Yields:
            The row numbers whose vector differs although the time of the row is the same. The recorded digest is kept.
        """
        part = self._part
        # Of rows with one key, which a damaged file can have, nothing tells which is which.
        twice = {name for (name,) in part.run(_TWICE)}
        for row, digest, time in vectors:
            found: Any = part.run(
                "SELECT c.id, e.data FROM temp.chosen c LEFT JOIN entry e ON e.base = ? AND e.id = c.id"
                " WHERE c.row = ?",
                (self._number, row),
            ).fetchone()
            name, old = found
            new = digest + hashlib.blake2b(time, digest_size=_TIME).digest()
            if name in twice:
                continue
            kept = new + part.entry_checksum(self._number, name, new)
            if old is not None:
                if old[_DIGEST + _TIME :] != part.entry_checksum(self._number, name, old[: _DIGEST + _TIME]):
                    raise part.unusable(tr("an entry is damaged"))
                if old[:_DIGEST] != digest and old[_DIGEST:][:_TIME] == new[_DIGEST:]:
                    part.changed += 1
                    kept = old
                    yield row
                elif old[:_DIGEST] != digest:
                    part.rewritten += 1
            else:
                part.recorded += 1
            part.run("UPDATE temp.chosen SET data = ? WHERE row = ?", (kept, row))


class RollingPart:
    """One run of a rolling check, with its open state file; see :func:`open_part`."""

    def __init__(self, db: apsw.Connection, path: Path, store: Path, size: Fraction, now_ms: int) -> None:
        self.db = db
        self._path = path
        self._now = now_ms
        self.rows = self.read = self.covered = 0
        self.recorded = self.rewritten = self.changed = 0
        self._scanned: set[int] = set()
        found: Any = self.run(_HEADER).fetchone()
        if found is None:
            found = (_VERSION, "", 1, 0, 0, now_ms, None)
        self._store = store
        _, _, self.cycle, self.start, self._parts, self._started, self._completed = found
        if self.start >= _END:
            self.cycle, self.start, self._parts, self._started = self.cycle + 1, 0, 0, now_ms
        # Rounded up, so that twenty parts of 5 % are all.
        self._size = -(-_END * size.numerator // size.denominator)
        self.end = min(self.start + self._size, _END)
        self.run(_CHOSEN)

    def run(self, sql: str, values: tuple[Any, ...] = ()) -> Any:
        """Execute a SQL statement on the state file, and return its cursor.

        Raises:
            CheckStateUnusable: the state file is damaged.
        """
        try:
            return self.db.execute(sql, values)
        except sqlite.CONTENT_ERRORS as error:
            raise self.unusable(str(error)) from error

    def unusable(self, reason: str) -> CheckStateUnusable:
        """Return the error on a state that is damaged."""
        return CheckStateUnusable(path=self._path, reason=reason, advice=tr("delete it to begin again"))

    def was_read_in_cycle(self, base_number: int, entry_id: bytes) -> bool:
        """Whether the current cycle has read a row of a base already; ``entry_id`` is the row's id in the state."""
        found: Any = self.run("SELECT cycle FROM entry WHERE base = ? AND id = ?", (base_number, entry_id)).fetchone()
        return found is not None and found[0] == self.cycle

    def entry_checksum(self, base_number: int, entry_id: bytes, data: bytes) -> bytes:
        """Compute the checksum of an entry of the state file: damage of that file must not look like a changed vector.

        Args:
            base_number: the number of the base in the state file.
            entry_id: the id of the row in the state file.
            data: the digests of the row's vector and time.
        """
        return hashlib.blake2b(b"%d " % base_number + entry_id + data, digest_size=_CHECK).digest()

    @contextmanager
    def open_base(self, base_id: str, model: str | None) -> Iterator[tuple[BaseRows, Callable[[], None]]]:
        """Begin to read a base. Yield its rows, and a function that discards everything this run recorded of the base.

        Args:
            base_id: the id of the base.
            model: its embedding model in the catalog, empty for none; None: unknown.
        """
        before = (self.read, self.covered, self.recorded, self.rewritten, self.changed)
        self.run("SAVEPOINT base")
        self.run("INSERT OR IGNORE INTO base (name) VALUES (?)", (base_id,))
        [(number,)] = self.run("SELECT number FROM base WHERE name = ?", (base_id,)).fetchall()
        is_dropped = False

        def drop() -> None:
            """Request that everything this run recorded of the base is discarded at the end of the context."""
            nonlocal is_dropped
            is_dropped = True

        self.forget_digests_if_changed(number, "model", model)
        self._scanned.add(number)
        yield BaseRows(self, number), drop
        if is_dropped:
            self.run("ROLLBACK TO base")
            self.read, self.covered, self.recorded, self.rewritten, self.changed = before
            self._scanned.discard(number)
        self.run("RELEASE base")

    def forget_digests_if_changed(self, base_number: int, column: str, value: str | None) -> None:
        """Record a property of a base, and forget the digests of its vectors if the property was another one before.

        Args:
            base_number: the number of the base in the state file.
            column: the column of the property: "model", or "made", the creation time of the index.
            value: the present value; None: unknown, nothing changes.
        """
        if value is None:
            return
        [(old,)] = self.run(f"SELECT {column} FROM base WHERE number = ?", (base_number,)).fetchall()
        if old == value:
            return
        if old is not None:
            self.run("UPDATE entry SET data = NULL WHERE base = ?", (base_number,))
        self.run(f"UPDATE base SET {column} = ? WHERE number = ?", (value, base_number))

    def require_known_base(self, base_ids: Collection[str]) -> None:
        """Check that the state file can be that of a store with these bases.

        Raises:
            CheckStateUnusable: the state file only has entries of other bases.
        """
        known = {name for (name,) in self.run("SELECT name FROM base")}
        if known and base_ids and known.isdisjoint(base_ids):
            raise CheckStateUnusable(
                path=self._path, reason=tr("it belongs to a store with other bases"), advice=tr("use another file")
            )

    def finish(self, base_ids: Collection[str]) -> PartReport:
        """Record in the state file how far the cycle is, and return the report of this run.

        Args:
            base_ids: ids of all bases of the store. When the cycle is complete, entries of other bases are removed.
        """
        self._parts += 1
        is_complete = self.end >= _END
        if is_complete:
            self._completed = self._now
            for number, name in self.run("SELECT number, name FROM base").fetchall():
                if name not in base_ids:
                    self.run("DELETE FROM entry WHERE base = ?", (number,))
                    self.run("DELETE FROM base WHERE number = ?", (number,))
                elif number in self._scanned:
                    # Rows that the cycle has not met are gone.
                    self.run("DELETE FROM entry WHERE base = ? AND cycle <> ?", (number, self.cycle))
        header = (_VERSION, path_text(self._store), self.cycle, self.end, self._parts, self._started, self._completed)
        self.run("DELETE FROM rolling")
        self.run("INSERT INTO rolling VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*header, _header_digest(header)))
        return PartReport(
            state=path_text(self._path),
            cycle=self.cycle,
            number=self._parts,
            parts=self._parts + -(-(_END - self.end) // self._size),
            rows=self.rows,
            read=self.read,
            covered=self.covered,
            coverage=round(self.covered / self.rows, 4) if self.rows else float(is_complete),
            recorded=self.recorded,
            rewritten=self.rewritten,
            changed=self.changed,
            is_complete=is_complete,
            cycle_started_at=identity.iso_time(self._started),
            last_complete_at=None if self._completed is None else identity.iso_time(self._completed),
        )


def _header_digest(header: tuple[Any, ...]) -> bytes:
    """Compute the digest of the state file's row about the cycle, by which changes of others are detected."""
    return hashlib.blake2b(repr(header).encode(), digest_size=16).digest()


@contextmanager
def open_part(
    store: Path,
    default_path: Path,
    chosen_path: Path | None,
    size: Fraction,
    now_ms: int,
    outside: Sequence[Path] = (),
) -> Iterator[RollingPart]:
    """Open the state file of a rolling check exclusively, for one run. It is changed completely or not at all.

    Args:
        store: what is checked: the folder of a store, or a base or index in it.
        default_path: the state file in ``.regraft`` of the store.
        chosen_path: the state file that the user named instead; None: none.
        size: the share of all rows that the run reads.
        now_ms: the time of the run.
        outside: files and folders that must not contain ``chosen_path``.

    Raises:
        CheckStateLocked: another run uses the state file.
        CheckStateNotWritable: it cannot be written.
        CheckStateUnusable: it is not a state file, is damaged, or belongs to another store.
    """
    path = default_path if chosen_path is None else chosen_path
    is_open = False
    try:
        with (
            _claim_path(path),
            _open_state_file(path, default_path.parent.parent if chosen_path is None else None, outside) as db,
            _lock_state(db, path),
        ):
            _prepare_state(db, path, store, is_external=chosen_path is not None)
            is_open = True
            yield RollingPart(db, path, store, size, now_ms)
    except RegraftError:
        raise
    except (apsw.ReadOnlyError, *sqlite.SYSTEM_ERRORS, OSError) as error:
        # Errors of reading the store are not the state's.
        if is_open and not sqlite.is_write_failure(error):
            raise
        reason = getattr(error, "strerror", None) or error
        raise CheckStateNotWritable(path=path, reason=reason) from error


@contextmanager
def _claim_path(path: Path) -> Iterator[None]:
    """Exclude other runs of this process from a state file. Reading a file that a process has locked would unlock it.

    Raises:
        CheckStateLocked: another run of this process uses it.
    """
    real = links.real_path(path)
    with _LOCK:
        if real in _OPEN:
            raise CheckStateLocked(path=path)
        _OPEN.add(real)
    try:
        yield
    finally:
        with _LOCK:
            _OPEN.discard(real)


@contextmanager
def _open_state_file(path: Path, root: Path | None, outside: Iterable[Path]) -> Iterator[apsw.Connection]:
    """Open a state file for writing. A run that fails removes what it has created, if nothing else is in it.

    Args:
        path: the state file.
        root: the store in which the folder of the file is created; None: the folder must exist already.
        outside: files and folders that must not contain ``path``.

    Raises:
        RegraftError, OSError, apsw.Error: as :func:`open_part`.
    """
    _refuse_other_file(path)
    will_be_made = root is not None and not path.parent.exists()
    problem = "" if will_be_made else writable.find_output_problem(path, outside)
    if problem:
        raise CheckStateNotWritable(path=path, reason=problem)
    new = [one for one in (path, path.parent) if not os.path.lexists(one)]
    with ExitStack() as stack:
        stack.enter_context(writable.allow_writes(root or path.parent, entries_only=root is None))
        # Called while the root is still writable, and after the file was closed.
        stack.push(lambda _, error, __: _remove_created(new, error))
        if root is not None:
            durable.make_folders(path.parent)
        db = stack.enter_context(sqlite.open_writable(path, create=True))
        if db.readonly("main"):
            raise CheckStateNotWritable(path=path, reason=tr("it is read-only"))
        db.set_busy_timeout(0)
        yield db


def _remove_created(created: Collection[Path], error: BaseException | None) -> None:
    """Remove the state file and the folder that a run created, if the run failed.

    Kept are a file that another run has taken, and a folder that is not empty.

    Args:
        created: the paths that did not exist before the run.
        error: why the run failed; None: it did not fail.
    """
    if error is None or isinstance(error, CheckStateLocked):
        return
    with suppress(OSError, RegraftError):
        for path in created:
            if not path.is_dir():
                durable.remove(path, missing_ok=True)
            else:
                durable.remove_folder(path)


@contextmanager
def _lock_state(db: apsw.Connection, path: Path) -> Iterator[None]:
    """Hold the open state file ``db`` in one exclusive transaction; ``path`` is for messages.

    Raises:
        CheckStateLocked: another run holds it.
    """
    try:
        db.execute("BEGIN EXCLUSIVE")
    except apsw.BusyError as error:
        raise CheckStateLocked(path=path) from error
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _refuse_other_file(path: Path) -> None:
    """Check, without a trace, that a file can be used as state file: it is new, empty, or one of regraft.

    Raises:
        CheckStateLocked: another run uses the file.
        CheckStateUnusable: it is another kind of file.
        OSError: it cannot be read.
    """
    advice = tr("use another file")
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise CheckStateUnusable(path=path, reason=tr("it is not a regular file"), advice=advice)
    suffixes = untrusted_sqlite.COMPANION_SUFFIXES
    database = next((path.name.removesuffix(end) for end in suffixes if path.name.endswith(end)), "")
    if database and os.path.lexists(path.with_name(database)):
        reason = tr("SQLite would read it as a part of {name}", name=printable(database))
        raise CheckStateUnusable(path=path, reason=reason, advice=advice)
    if not path.exists() or not path.stat().st_size:
        return
    is_ours = has_header(path)
    if is_ours and lock_files.is_lock_held(path):
        raise CheckStateLocked(path=path)
    try:
        with sqlite.open_readonly(path) as db:
            # An empty one was left by a run that was killed before it recorded anything.
            is_empty = not sqlite.has_own_content(db, _TABLES, {})
            is_ours = is_ours and (not is_empty or db.execute("PRAGMA page_count").get in (0, 1))
    except sqlite.CONTENT_ERRORS:
        is_ours = False
    if not is_ours:
        raise CheckStateUnusable(path=path, reason=tr("it is not the state of a rolling check"), advice=advice)


def has_header(path: Path) -> bool:
    """Whether a file begins as the state file of a rolling check does."""
    # The pages of a killed run may lie in any order; its journal restores them.
    if [one.name for one in untrusted_sqlite.find_companions(path)] == [f"{path.name}-journal"]:
        return True
    start = untrusted_sqlite.read_start(path, _VERSIONS.stop)
    return start.startswith(_MAGIC) and start[_VERSIONS] == _JOURNAL_VERSIONS


def _prepare_state(db: apsw.Connection, path: Path, store: Path, *, is_external: bool) -> None:
    """Check the whole state file, and create the tables of a new one.

    Args:
        db: the open state file.
        path: its path.
        store: the store that is checked.
        is_external: whether the user named the file, so that it can belong to another store.

    Raises:
        CheckStateUnusable: it is damaged, of another version, or belongs to another store.
    """
    try:
        if not sqlite.has_own_content(db, _TABLES, _INVALID):
            for statement in _TABLES:
                db.execute(statement)
            return
        recorded, own = _read_store(db, path), path_text(store)
    except (*sqlite.CONTENT_ERRORS, UnicodeDecodeError) as error:
        raise _damaged_state(path, str(error)) from error
    if not is_external or recorded == own:
        return
    # The store may have been moved. A path of another computer is not looked for.
    if not ledger.is_suggestible(recorded) or os.path.lexists(recorded):
        reason = tr("it belongs to {store}, not to {own}", store=recorded, own=own)
        raise CheckStateUnusable(path=path, reason=reason, advice=tr("use another file"))


def _read_store(db: apsw.Connection, path: Path) -> str:
    """Return the path of the store that the state file ``db`` belongs to; ``path`` is for messages.

    Raises:
        CheckStateUnusable: it is damaged, or of another version.
        apsw.Error, UnicodeDecodeError: it is damaged.
    """
    [(complaint,)] = db.execute("PRAGMA integrity_check(1)").fetchall()
    headers: list[Any] = db.execute(_HEADER).fetchall()
    if complaint != "ok":
        raise _damaged_state(path, str(complaint))
    if len(headers) == 1 and headers[0][0] > _VERSION:
        raise CheckStateUnusable(
            path=path, reason=tr("it was written by a newer version of regraft"), advice=tr("use another file")
        )
    if len(headers) != 1 or db.execute("SELECT digest FROM rolling").get != _header_digest(headers[0]):
        raise _damaged_state(
            path, tr("what it records about the progress of the check was changed by something other than regraft")
        )
    return str(headers[0][1])


def _damaged_state(path: Path, damage: str) -> CheckStateUnusable:
    """Return the error for a damaged state file; ``damage`` describes the damage."""
    reason = tr("it is damaged: {found}", found=damage)
    return CheckStateUnusable(path=path, reason=reason, advice=tr("delete it to begin again"))
