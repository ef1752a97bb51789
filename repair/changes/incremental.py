"""One change of rows that many transactions make up: what takes it back grows with each of them.

A section of the file is written and flushed before its transaction is committed, and only one is under way: whatever
stops the run, all but the last section were committed, and the last one can be tried (``docs/formats/library.md``,
"Changes").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw

from regraft import links, sqlite, untouched
from regraft.ledger import durable, interrupts
from regraft.ledger.ledger import FOLDER, Ledger
from regraft.ledger.values import Recorded, RowsDetail
from repair.changes import changesets

#: How long such a writer waits for others, and who looks meanwhile for it, in ms.
BUSY_MS = 60_000


@contextmanager
def writer(path: Path) -> Iterator[apsw.Connection]:
    """Open a SQLite file for writing what is paid for, transaction by transaction, beside others that do.

    Raises:
        apsw.Error: it cannot be written.
    """
    with sqlite.writing(path) as db:
        # What could not be written is not to be paid for.
        with sqlite.transaction(db):
            pass
        # What is paid for is not lost.
        sqlite.keep_through_power_cuts(db)
        db.set_busy_timeout(BUSY_MS)
        yield db


class IncrementalChange:
    """What takes back what a run does to the rows of one file, transaction by transaction.

    Args:
        root: the store's root.
        ledger: its ledger.
        run_id: the run.
        path: the file, below the root, ``/`` between parts.
        kept: where what takes it back is kept, below ``.regraft``.
        actions: which of the run's actions it is: from where on, and how many.
        begin: called before anything is recorded.
    """

    def __init__(
        self,
        root: Path,
        ledger: Ledger,
        run_id: str,
        path: str,
        kept: str,
        actions: tuple[int, int],
        begin: Callable[[], None],
    ) -> None:
        self._file = root / FOLDER / kept
        self._path = root / path
        self._book = ledger
        self._intent = (run_id, path, kept)
        self._detail = RowsDetail(0, actions, grows=True)
        self._begin_run = begin
        self._change: int | None = None
        self._size = self._written = 0

    @property
    def has_changed(self) -> bool:
        """Tell whether a transaction was committed."""
        return self._size > 0

    @contextmanager
    def transaction(self, db: apsw.Connection, tables: Sequence[str]) -> Iterator[None]:
        """Change rows of ``tables`` in one transaction that is recorded as a section; Ctrl-C waits for its end."""
        with interrupts.held_back():
            own = untouched.others_untouched(db, self._path, tables)
            with sqlite.transaction(db), self._section(db, tables), own:
                yield
            self.committed()

    @contextmanager
    def _section(self, db: apsw.Connection, tables: Sequence[str]) -> Iterator[None]:
        """Record what happens to the rows of ``tables``, as a part of the transaction that is committed next."""
        changesets.demand_taken_back(db, tables)
        self._begin()
        session = apsw.Session(db, "main")
        try:
            for table in tables:
                session.attach(table)
            yield
            part = session.changeset()
        finally:
            session.close()
        with durable.open_binary(self._file, "r+b") as file:
            # A section whose transaction was rolled back is no part of it.
            file.truncate(self._size)
            file.seek(self._size)
            file.write(part)
            file.flush()
            durable.flush(file.fileno())
        self._written = len(part)

    def committed(self) -> None:
        """Take note that the transaction of the latest section was committed."""
        self._size += self._written

    def _begin(self) -> None:
        if self._change is None:
            self._begin_run()
            durable.make_folders(self._file.parent)
            durable.touch(self._file)
            durable.sync_folder(self._file.parent)
            run_id, path, kept = self._intent
            self._change = self._book.changes.intend(run_id, "rows", path, kept, self._detail)
        else:
            self._book.changes.settle(self._change, "intended", self._size)

    def end(self) -> None:
        """Record that the change is made; nothing is left of one that did nothing."""
        if self._change is None:
            return
        if self._size:
            durable.truncate(self._file, self._size)
            self._book.changes.settle(self._change, "done", self._size)
        else:
            self._book.changes.settle(self._change, "dropped", 0)
            durable.remove_tree(self._file)


def settle(final: Path, changeset: Path, change: Recorded) -> bool:
    """Cut off what was not committed when the run was killed, and tell whether anything was.

    Raises:
        apsw.Error, OSError: the file of the rows cannot be looked into.
    """
    if changeset.stat().st_size > change.bytes:
        last = changeset.with_name(f"{changeset.name}.last")
        with changeset.open("rb") as file:
            file.seek(change.bytes)
            durable.put_bytes(last, file.read())
        try:
            made = _is_whole(last) and _was_made(final, last)
        finally:
            durable.remove(last)
        if not made:
            durable.truncate(changeset, change.bytes)
    return changeset.stat().st_size > 0


def _is_whole(section: Path) -> bool:
    """Tell whether a section was flushed as a whole: else its transaction was never committed."""
    try:
        with links.reading(section) as file:
            for _ in apsw.Changeset.iter(file.read):
                pass
    except apsw.CorruptError:
        return False
    return True


def _was_made(final: Path, section: Path) -> bool:
    with changesets.locked(final, keep=False) as db:
        return changesets.was_left(db, section)
