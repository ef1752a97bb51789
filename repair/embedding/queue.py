"""What is still to be embedded, and who is at it: a durable queue that several processes share.

The truth of what is done lies where the vectors are; the queue only keeps two processes from sending one text, and
remembers what failed. It is a SQLite file, and can be lost without any harm but that.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import durable, sqlite, untrusted_sqlite
from regraft.errors import RegraftError, StoreNotWritable, TargetLocked
from regraft.language import to_english, tr
from regraft.ledger import ledger as ledgers
from regraft.ledger.ledger import Ledger
from repair.changes import execution
from repair.changes.session import open_ledger
from repair.changes.store import Store

QUEUE_FILE = "backfill.sqlite"
#: How long a claim holds unless it is renewed, in ms: a process that was killed holds what it had no longer.
LEASE_MS = 60_000
#: How often one has failed that is embedded alone: what is in doubt goes last, and endangers nobody else.
ALONE_ATTEMPTS = 64
_BUSY_MS = 60_000

_TABLES = (
    """CREATE TABLE IF NOT EXISTS job (
         scope TEXT NOT NULL,
         key TEXT NOT NULL,
         state TEXT NOT NULL CHECK (state IN ('ready', 'claimed', 'failed')),
         attempts INTEGER NOT NULL DEFAULT 0,
         worker TEXT,
         claim TEXT,
         expires_at INTEGER,
         code TEXT,
         reason TEXT,
         PRIMARY KEY (scope, key)) WITHOUT ROWID""",
    # Probes that were paid for: a run that goes on with this queue does not repeat them.
    """CREATE TABLE IF NOT EXISTS probe (
         scope TEXT NOT NULL,
         embedder TEXT NOT NULL,
         texts INTEGER NOT NULL,
         cosine REAL NOT NULL,
         PRIMARY KEY (scope, embedder)) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS job_order ON job (scope, state, attempts, key)",
    "CREATE INDEX IF NOT EXISTS job_claim ON job (claim) WHERE claim IS NOT NULL",
)
#: What no row may be: counts stay far below what a column can hold, and times, in ms, are none but whole numbers.
_UNFIT = """typeof(scope) <> 'text' OR typeof(key) <> 'text' OR typeof(attempts) <> 'integer'
   OR attempts NOT BETWEEN 0 AND 1000000000 OR typeof(worker) NOT IN ('text', 'null')
   OR typeof(claim) NOT IN ('text', 'null') OR typeof(expires_at) NOT IN ('integer', 'null')
   OR typeof(code) NOT IN ('text', 'null') OR typeof(reason) NOT IN ('text', 'null')"""


_UNFIT_PROBE = """typeof(scope) <> 'text' OR typeof(embedder) <> 'text' OR typeof(texts) <> 'integer'
   OR texts NOT BETWEEN 1 AND 1000 OR typeof(cosine) <> 'real' OR cosine NOT BETWEEN -2 AND 2"""


class QueueUnreadable(apsw.Error):
    """A queue that is damaged, or that no run of regraft made: it is thrown away, the vectors tell what is done."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Texts that are one process's to embed, until the claim expires."""

    token: str
    scope: str
    keys: tuple[str, ...]
    #: How often they were claimed before.
    attempts: int


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Texts that could not be embedded, for one reason."""

    code: str
    reason: str
    count: int
    samples: tuple[str, ...]


class TextQueue:
    """The queue of one store, as one process (a worker) uses it. Times are in ms."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self.worker = secrets.token_hex(8)

    # --- what is to be done ------------------------------------------------------------------------------------------

    def fill(self, scope: str, keys: Iterable[str]) -> None:
        """Let these texts wait, which are all that lack a vector; those that are in the queue stay as they are.

        What is in it besides, and nobody is at, has a vector meanwhile, or its text is gone: it is dropped.
        """
        self._db.execute("CREATE TEMP TABLE wanted (key TEXT PRIMARY KEY) WITHOUT ROWID")
        try:
            with sqlite.transaction(self._db):
                self._db.executemany("INSERT OR IGNORE INTO wanted VALUES (?)", ((key,) for key in keys))
                self._db.execute(
                    "DELETE FROM job WHERE scope = ? AND state <> 'claimed' AND key NOT IN (SELECT key FROM wanted)",
                    (scope,),
                )
                self._db.execute(
                    "INSERT OR IGNORE INTO job (scope, key, state) SELECT ?, key, 'ready' FROM wanted", (scope,)
                )
        finally:
            self._db.execute("DROP TABLE wanted")

    def claim(self, scope: str, count: int, now_ms: int) -> Claim | None:
        """Claim up to ``count`` texts that were claimed equally often, those first that were least; None where none
        waits.
        """
        with sqlite.transaction(self._db):
            # Its own it knows to be alive, however late it comes to renew them.
            self._db.execute(
                "UPDATE job SET state = 'ready', claim = NULL, worker = NULL"
                " WHERE claim IS NOT NULL AND expires_at < ? AND worker IS NOT ?",
                (now_ms, self.worker),
            )
            least: Any = self._db.execute(
                "SELECT min(attempts) FROM job WHERE scope = ? AND state = 'ready'", (scope,)
            ).get
            if least is None:
                return None
            token = secrets.token_hex(8)
            rows = self._db.execute(
                "UPDATE job SET state = 'claimed', attempts = attempts + 1, worker = ?, claim = ?, expires_at = ?"
                " WHERE scope = ?4 AND key IN (SELECT key FROM job WHERE scope = ?4 AND state = 'ready'"
                " AND attempts = ? ORDER BY key LIMIT ?) RETURNING key",
                (self.worker, token, now_ms + LEASE_MS, scope, least, count),
            )
            keys = tuple(sorted(str(key) for (key,) in rows))
        return Claim(token=token, scope=scope, keys=keys, attempts=least)

    # --- what became of it -------------------------------------------------------------------------------------------

    def done(self, claim: Claim, keys: Iterable[str]) -> None:
        """Forget texts that have their vectors."""
        with sqlite.transaction(self._db):
            self._db.executemany(
                "DELETE FROM job WHERE scope = ? AND key = ? AND claim IS ?",
                ((claim.scope, key, claim.token) for key in keys),
            )

    def doubt(self, claim: Claim, keys: Iterable[str], code: str, attempts: int = 0) -> None:
        """Give texts back of which one, or the server, is bad: they go after all others.

        ``attempts``: they count as claimed so often, or as often as they were.
        """
        with sqlite.transaction(self._db):
            self._db.executemany(
                "UPDATE job SET state = 'ready', attempts = max(attempts, ?), worker = NULL, claim = NULL, code = ?"
                " WHERE scope = ? AND key = ? AND claim IS ?",
                ((attempts, code, claim.scope, key, claim.token) for key in keys),
            )

    def release(self, claim: Claim, keys: Iterable[str]) -> None:
        """Give texts of a claim back, as if they had never been in it."""
        with sqlite.transaction(self._db):
            self._db.executemany(
                "UPDATE job SET state = 'ready', attempts = attempts - 1, worker = NULL, claim = NULL"
                " WHERE scope = ? AND key = ? AND claim IS ?",
                ((claim.scope, key, claim.token) for key in keys),
            )

    def give_back(self) -> None:
        """Give all back that this worker has claimed, as if it never had."""
        with sqlite.transaction(self._db):
            self._db.execute(
                "UPDATE job SET state = 'ready', attempts = max(0, attempts - 1), worker = NULL, claim = NULL"
                " WHERE claim IS NOT NULL AND worker = ?",
                (self.worker,),
            )

    def fail(self, claim: Claim, key: str, code: str, reason: str) -> bool:
        """Record that a text cannot be embedded; tell whether it was still this claim's to say so."""
        with sqlite.transaction(self._db):
            self._db.execute(
                "UPDATE job SET state = 'failed', worker = NULL, claim = NULL, code = ?, reason = ?"
                " WHERE scope = ? AND key = ? AND claim IS ?",
                (code, to_english(reason), claim.scope, key, claim.token),
            )
            return self._db.changes() > 0

    def renew(self, now_ms: int) -> frozenset[str]:
        """Hold what this worker has claimed for another while; return the tokens of the claims that it still has."""
        with sqlite.transaction(self._db):
            rows = self._db.execute(
                "UPDATE job SET expires_at = ? WHERE claim IS NOT NULL AND worker = ? RETURNING claim",
                (now_ms + LEASE_MS, self.worker),
            )
            return frozenset(str(token) for (token,) in rows)

    # --- between runs ------------------------------------------------------------------------------------------------

    def take_back(self) -> None:
        """Take back what killed workers had, where it is certain that no worker lives."""
        with sqlite.transaction(self._db):
            self._db.execute("UPDATE job SET state = 'ready', claim = NULL, worker = NULL WHERE state = 'claimed'")

    def retry_failed(self) -> None:
        """Let what failed wait again, each alone and after all others."""
        with sqlite.transaction(self._db):
            self._db.execute(f"UPDATE job SET state = 'ready', attempts = {ALONE_ATTEMPTS} WHERE state = 'failed'")

    def remember_probe(self, scope: str, embedder: str, texts: int, cosine: float) -> None:
        """Record that an embedder, named by a digest of its settings, made the vectors of a scope."""
        self._db.execute("INSERT OR REPLACE INTO probe VALUES (?, ?, ?, ?)", (scope, embedder, texts, float(cosine)))

    def known_probe(self, scope: str, embedder: str) -> tuple[int, float] | None:
        """Return how many texts such a probe compared and their cosine, or None where no probe is recorded."""
        row: Any = self._db.execute(
            "SELECT texts, cosine FROM probe WHERE scope = ? AND embedder = ?", (scope, embedder)
        ).fetchone()
        return None if row is None else (int(row[0]), float(row[1]))

    # --- what can be seen --------------------------------------------------------------------------------------------

    def waiting(self, scope: str) -> int:
        """Return how many texts are neither embedded nor given up."""
        return self._number("SELECT count(*) FROM job WHERE scope = ? AND state <> 'failed'", scope)

    def failed_before(self, scope: str) -> int:
        """Return how many texts wait that failed before."""
        query = f"SELECT count(*) FROM job WHERE scope = ? AND state = 'ready' AND attempts >= {ALONE_ATTEMPTS}"
        return self._number(query, scope)

    def failures(self, scope: str) -> list[Failure]:
        """Return what could not be embedded, by reason."""
        rows: Any = self._db.execute(
            "SELECT code, min(reason), count(*), json_group_array(key) FILTER (WHERE place <= 3) FROM"
            " (SELECT code, reason, key, row_number() OVER (PARTITION BY code ORDER BY key) AS place"
            " FROM job WHERE scope = ? AND state = 'failed') GROUP BY code ORDER BY count(*) DESC, code",
            (scope,),
        ).fetchall()
        return [
            Failure(
                code=str(code),
                reason=str(reason),
                count=count,
                samples=tuple(msgspec.json.decode(keys, type=list[str])),
            )
            for code, reason, count, keys in rows
        ]

    def says_nothing(self) -> bool:
        """Whether nothing is in it but texts that wait for the first time, without a probe that was paid for."""
        has_probe = self._db.execute("SELECT 1 FROM probe LIMIT 1").get is not None
        query = "SELECT 1 FROM job LIMIT 1" if has_probe else "SELECT 1 FROM job WHERE attempts > 0 OR state <> 'ready'"
        return self._db.execute(query).get is None

    def _number(self, query: str, scope: str) -> int:
        found: Any = self._db.execute(query, (scope,)).get
        return int(found)


@contextmanager
def open_queue(path: Path) -> Iterator[TextQueue]:
    """Open a queue, and make it where none is.

    Raises:
        QueueUnreadable: it is damaged, or says what regraft does not write.
        apsw.Error: it cannot be written.
    """
    with sqlite.open_writable(path, create=True) as db:
        db.set_busy_timeout(_BUSY_MS)
        db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        try:
            _demand_fit(db)
        except sqlite.CONTENT_ERRORS as error:
            raise QueueUnreadable(str(error)) from error
        # After a power cut the last claims may be missing: what is done is told by the vectors.
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        with sqlite.transaction(db):
            for statement in _TABLES:
                db.execute(statement)
        yield TextQueue(db)


def _demand_fit(db: apsw.Connection) -> None:
    """Refuse a file that has another schema than a queue, a damaged page, or a value of another type.

    Raises:
        QueueUnreadable, apsw.Error
    """
    found = db.execute("SELECT ifnull(sql, '') FROM sqlite_schema").fetchall()
    if not found:
        return  # a run was killed before it had made it
    wanted = sorted(_plain(statement) for statement in _TABLES)
    if sorted(_plain(str(sql)) for (sql,) in found) != wanted:
        raise QueueUnreadable(tr("it has another schema"))
    if db.execute(f"SELECT 1 FROM job WHERE {_UNFIT} LIMIT 1").get is not None:
        raise QueueUnreadable(tr("it has values of another type"))
    if db.execute(f"SELECT 1 FROM probe WHERE {_UNFIT_PROBE} LIMIT 1").get is not None:
        raise QueueUnreadable(tr("it has values of another type"))
    if db.execute("PRAGMA integrity_check(1)").get != "ok":
        raise QueueUnreadable(tr("it is damaged"))


def _plain(sql: str) -> str:
    return " ".join(sql.replace(" IF NOT EXISTS", "").split())


# Working on one store together with other backfills, and with nobody else.
#
# Alone for a moment, a run settles what killed ones left; then it shares the ledger with others of its kind
# (``docs/formats/library.md``, "Backfill").


#: How long to wait for a run that is not to be shared with, in seconds: the moment of another backfill is over soon.
WAIT_SECONDS = 10.0
_PAUSE = 0.1
#: How often to try where the store cannot be written.
_TRIES = 5


class SharedStore(msgspec.Struct, frozen=True):
    """What several backfills share."""

    ledger: Ledger
    queue: TextQueue


@contextmanager
def share_store(store: Store) -> Iterator[SharedStore]:
    """Work on a store, together with other backfills.

    Raises:
        TargetLocked: a run of another kind is at work.
        StoreNotWritable
    """
    is_new = not os.path.lexists(store.own)
    try:
        with ExitStack() as stack:
            ledger = _entered(store, stack)
            try:
                waiting = stack.enter_context(open_queue(store.own / QUEUE_FILE))
            except apsw.Error as error:
                raise StoreNotWritable(path=store.own, reason=error) from error
            yield SharedStore(ledger, waiting)
    finally:
        _tidy(store, is_new)


def _entered(store: Store, stack: ExitStack) -> Ledger:
    end, tries = time.monotonic() + WAIT_SECONDS, _TRIES
    while True:
        try:
            return _tried(store, stack)
        except TargetLocked:
            if time.monotonic() > end:
                raise
        except StoreNotWritable:
            # Another one may just have removed the folder that it had made for nothing.
            tries -= 1
            if not tries:
                raise
        time.sleep(_PAUSE)


def _tried(store: Store, stack: ExitStack) -> Ledger:
    with contextlib.suppress(TargetLocked):
        settle_killed_runs(store)
    try:
        durable.make_folders(store.own)
        return stack.enter_context(ledgers.open_shared(store.root))
    except RegraftError:
        raise
    except (OSError, apsw.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreNotWritable(path=store.root, reason=reason) from error


def settle_killed_runs(store: Store) -> None:
    """Settle what killed runs left, alone.

    Raises:
        TargetLocked: another run is at work.
    """
    if store.own.exists():
        with open_ledger(store) as ledger:
            execution.recover(store.root, ledger)
            _take_back(store.own / QUEUE_FILE)


def _take_back(path: Path) -> None:
    """Let all that is in a queue wait again; one that cannot be read is made anew."""
    if not path.exists():
        return
    try:
        with open_queue(path) as waiting:
            waiting.take_back()
            waiting.retry_failed()
    except (QueueUnreadable, apsw.NotADBError, apsw.CorruptError, apsw.SQLError):
        for file in (path, *untrusted_sqlite.find_companions(path)):
            durable.remove(file)


def _tidy(store: Store, is_new: bool) -> None:
    """Remove a queue that says nothing, where nobody else is at work, and what was made for a run that did nothing."""
    path = store.own / QUEUE_FILE
    with contextlib.suppress(RegraftError, OSError, apsw.Error):
        if not store.own.exists():
            return
        with open_ledger(store) as ledger:
            with open_queue(path) as waiting:
                says_nothing = waiting.says_nothing()
            if says_nothing:
                durable.remove(path)
            is_new = is_new and all(change.state == "dropped" for change in ledger.changes.every())
            if is_new and says_nothing and not execution.has_pending_vectors(store.own):
                # Before anybody else can begin in it.
                durable.remove_tree(store.own)
