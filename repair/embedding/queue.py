"""The queue of a store (``.regraft/backfill.sqlite``): which texts wait, and which process has claimed them.

Several backfills of one store share it, so that no text is sent by two of them. Whether a text is done is decided by
the vectors in the store alone: a lost queue costs nothing but the record of failed texts. :func:`share_store` opens it,
together with the ledger (``docs/formats/library.md``, "Backfill").
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
from repair.changes.store import Store, demand_not_running

QUEUE_FILE = "backfill.sqlite"
#: A claim expires after this time, in ms, unless it is renewed: then the claims of a killed process are free.
LEASE_MS = 60_000
#: Texts with this many attempts are sent alone, after all others: they may be what kills or confuses the server.
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
    # Results of probes that were paid for: the next run does not repeat them.
    """CREATE TABLE IF NOT EXISTS probe (
         scope TEXT NOT NULL,
         embedder TEXT NOT NULL,
         texts INTEGER NOT NULL,
         cosine REAL NOT NULL,
         PRIMARY KEY (scope, embedder)) WITHOUT ROWID""",
    # Of runs that fill a scope without vectors at the same time: what the first embedder makes of some sentences.
    "CREATE TABLE IF NOT EXISTS sentence (scope TEXT PRIMARY KEY, vectors BLOB NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS job_order ON job (scope, state, attempts, key)",
    "CREATE INDEX IF NOT EXISTS job_claim ON job (claim) WHERE claim IS NOT NULL",
)
#: For each table, a condition that no row written by regraft meets.
_INVALID = {
    "job": """typeof(scope) <> 'text' OR typeof(key) <> 'text' OR typeof(attempts) <> 'integer'
   OR attempts NOT BETWEEN 0 AND 1000000000 OR typeof(worker) NOT IN ('text', 'null')
   OR typeof(claim) NOT IN ('text', 'null') OR typeof(expires_at) NOT IN ('integer', 'null')
   OR typeof(code) NOT IN ('text', 'null') OR typeof(reason) NOT IN ('text', 'null')""",
    "probe": """typeof(scope) <> 'text' OR typeof(embedder) <> 'text' OR typeof(texts) <> 'integer'
   OR texts NOT BETWEEN 1 AND 1000 OR typeof(cosine) <> 'real' OR cosine NOT BETWEEN -2 AND 2""",
    "sentence": "typeof(scope) <> 'text' OR typeof(vectors) <> 'blob'",
}


class QueueUnreadable(apsw.Error):
    """The queue is damaged, or regraft did not write it. It is replaced: the vectors tell what is done."""


class TextClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Texts that one process may send until the claim expires."""

    token: str
    scope: str
    keys: tuple[str, ...]
    #: How often these texts were claimed before.
    attempts: int


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Texts that could not be embedded for one reason; ``samples`` are keys of some of them."""

    code: str
    reason: str
    count: int
    samples: tuple[str, ...]


# --- the file --------------------------------------------------------------------------------------------------------


class TextQueue:
    """The queue as one process (a worker) uses it. Times are in ms."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self.worker = secrets.token_hex(8)

    # Queueing and claiming.

    def fill(self, scope: str, keys: Iterable[str]) -> None:
        """Queue the texts of a scope that lack a vector (``keys``); texts that are queued already keep their state.

        Other texts of the scope are dropped, unless they are claimed: they have a vector by now, or are deleted.
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

    def claim(self, scope: str, count: int, now_ms: int) -> TextClaim | None:
        """Claim up to ``count`` ready texts of a scope, those with the fewest attempts; None if no text is ready."""
        with sqlite.transaction(self._db):
            # This process is alive, so its own claims hold, even if it renews them too late.
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
        return TextClaim(token=token, scope=scope, keys=keys, attempts=least)

    # Results.

    def done(self, claim: TextClaim, keys: Iterable[str]) -> None:
        """Remove those texts of a claim (``keys``) that have their vectors now."""
        self._settle(claim, keys, "DELETE FROM job")

    def defer(self, claim: TextClaim, keys: Iterable[str], code: str, attempts: int = 0) -> None:
        """Return texts of a claim that may include one the embedder rejects; ``code`` says why.

        They count as attempted at least ``attempts`` times, so that they are claimed after all others.
        """
        change = "UPDATE job SET state = 'ready', attempts = max(attempts, ?), worker = NULL, claim = NULL, code = ?"
        self._settle(claim, keys, change, attempts, code)

    def release(self, claim: TextClaim, keys: Iterable[str]) -> None:
        """Return texts of a claim (``keys``) as if they had never been claimed."""
        change = "UPDATE job SET state = 'ready', attempts = attempts - 1, worker = NULL, claim = NULL"
        self._settle(claim, keys, change)

    def release_all(self) -> None:
        """Return all texts that this worker has claimed, as if they had never been claimed."""
        with sqlite.transaction(self._db):
            self._db.execute(
                "UPDATE job SET state = 'ready', attempts = max(0, attempts - 1), worker = NULL, claim = NULL"
                " WHERE claim IS NOT NULL AND worker = ?",
                (self.worker,),
            )

    def fail(self, claim: TextClaim, key: str, code: str, reason: str) -> bool:
        """Record that a text of a claim (``key``) cannot be embedded; False if another process has claimed it since."""
        change = "UPDATE job SET state = 'failed', worker = NULL, claim = NULL, code = ?, reason = ?"
        return self._settle(claim, [key], change, code, to_english(reason)) > 0

    def _settle(self, claim: TextClaim, keys: Iterable[str], change: str, *values: object) -> int:
        """Change those texts of ``keys`` that the claim still holds, and return their number.

        ``change`` is an UPDATE or DELETE statement without its condition, ``values`` are its parameters.
        """
        before = self._db.total_changes()
        with sqlite.transaction(self._db):
            rows = ((*values, claim.scope, key, claim.token) for key in keys)
            self._db.executemany(f"{change} WHERE scope = ? AND key = ? AND claim IS ?", rows)
        return self._db.total_changes() - before

    def renew(self, now_ms: int) -> frozenset[str]:
        """Extend the claims that this worker still has, even if they have just expired; returns their tokens."""
        with sqlite.transaction(self._db):
            rows = self._db.execute(
                "UPDATE job SET expires_at = ? WHERE claim IS NOT NULL AND worker = ? RETURNING claim",
                (now_ms + LEASE_MS, self.worker),
            )
            return frozenset(str(token) for (token,) in rows)

    # Between runs.

    def reclaim_all(self) -> None:
        """Return the claims of killed workers. Only for a process that is certain that no other worker lives."""
        with sqlite.transaction(self._db):
            self._db.execute("UPDATE job SET state = 'ready', claim = NULL, worker = NULL WHERE state = 'claimed'")

    def retry_failed(self) -> None:
        """Queue failed texts again, each to be sent alone after all others."""
        with sqlite.transaction(self._db):
            self._db.execute(f"UPDATE job SET state = 'ready', attempts = {ALONE_ATTEMPTS} WHERE state = 'failed'")

    def remember_probe(self, scope: str, embedder: str, texts: int, cosine: float) -> None:
        """Record that an embedder (the digest of its settings) made the vectors of a scope, as a comparison proved.

        Comparisons of other embedders are forgotten: the scope may get vectors that they were not compared with.
        """
        with sqlite.transaction(self._db):
            self._db.execute("DELETE FROM probe WHERE scope = ?", (scope,))
            self._db.execute("INSERT INTO probe VALUES (?, ?, ?, ?)", (scope, embedder, texts, float(cosine)))

    def share_sentences(self, scope: str, vectors: bytes) -> bytes:
        """Return the vectors that the first of all active runs recorded for the comparison sentences of a scope.

        Without any, ``vectors``, which this run's embedder made, are recorded.
        """
        with sqlite.transaction(self._db):
            self._db.execute("INSERT OR IGNORE INTO sentence VALUES (?, ?)", (scope, vectors))
            found: Any = self._db.execute("SELECT vectors FROM sentence WHERE scope = ?", (scope,)).get
        return bytes(found)

    def forget_sentences(self) -> None:
        """Delete what :meth:`share_sentences` recorded. Only for a process that knows that no other worker lives."""
        self._db.execute("DELETE FROM sentence")

    def forget_probes(self) -> None:
        """Forget all comparisons if no run is left to resume: failed texts are tried again by a new run."""
        self._db.execute("DELETE FROM probe WHERE NOT EXISTS (SELECT 1 FROM job WHERE state <> 'failed')")

    def known_probe(self, scope: str, embedder: str) -> tuple[int, float] | None:
        """Return a recorded comparison of an embedder (digest of its settings) with a scope, or None.

        The parts are the number of texts and the cosine that three quarters of them have at least.
        """
        row: Any = self._db.execute(
            "SELECT texts, cosine FROM probe WHERE scope = ? AND embedder = ?", (scope, embedder)
        ).fetchone()
        return None if row is None else (int(row[0]), float(row[1]))

    # Counts.

    def waiting(self, scope: str) -> int:
        """Count the texts of a scope that are ready or claimed."""
        return self._count("SELECT count(*) FROM job WHERE scope = ? AND state <> 'failed'", scope)

    def failed_before(self, scope: str) -> int:
        """Count the texts of a scope that are ready and failed in an earlier run."""
        query = f"SELECT count(*) FROM job WHERE scope = ? AND state = 'ready' AND attempts >= {ALONE_ATTEMPTS}"
        return self._count(query, scope)

    def failures(self, scope: str) -> list[Failure]:
        """Return the failed texts of a scope, grouped by reason code, the largest group first."""
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

    def is_disposable(self) -> bool:
        """Whether the queue file can be removed: a new survey would find all that it records."""
        has_probe = self._db.execute("SELECT 1 FROM probe LIMIT 1").get is not None
        query = "SELECT 1 FROM job LIMIT 1" if has_probe else "SELECT 1 FROM job WHERE attempts > 0 OR state <> 'ready'"
        return self._db.execute(query).get is None

    def _count(self, query: str, scope: str) -> int:
        """Return the number that a query with the scope as its parameter selects."""
        found: Any = self._db.execute(query, (scope,)).get
        return int(found)


@contextmanager
def open_queue(path: Path) -> Iterator[TextQueue]:
    """Open a queue, and create it if it does not exist.

    Raises:
        QueueUnreadable: it is damaged, or regraft did not write it.
        apsw.Error: it cannot be written.
    """
    with sqlite.open_writable(path, create=True) as db:
        db.set_busy_timeout(_BUSY_MS)
        db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        try:
            if sqlite.has_own_content(db, _TABLES, _INVALID) and db.execute("PRAGMA integrity_check(1)").get != "ok":
                raise QueueUnreadable(tr("it is damaged"))
        except sqlite.CONTENT_ERRORS as error:
            raise QueueUnreadable(str(error)) from error
        # A power cut may lose the last claims: harmless, since the vectors tell what is done.
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        with sqlite.transaction(db):
            for statement in _TABLES:
                db.execute(statement)
        yield TextQueue(db)


# --- sharing a store -------------------------------------------------------------------------------------------------

#: Seconds to wait for another run that holds the store; the exclusive moments of another backfill are shorter.
WAIT_SECONDS = 10.0
_PAUSE = 0.1
#: How often to try if the store cannot be written.
_TRIES = 5


class SharedStore(msgspec.Struct, frozen=True):
    """The ledger and the queue of a store, shared with other backfills."""

    ledger: Ledger
    queue: TextQueue


@contextmanager
def share_store(store: Store) -> Iterator[SharedStore]:
    """Lock a store against every run but other backfills, and open its ledger and queue.

    First, if no other run uses the store, this recovers from killed runs.

    Raises:
        TargetLocked: a run other than a backfill holds the store.
        StoreNotWritable
    """
    is_new = not os.path.lexists(store.own_folder)
    try:
        with ExitStack() as stack:
            ledger = _wait_for_ledger(store, stack)
            try:
                waiting = stack.enter_context(open_queue(store.own_folder / QUEUE_FILE))
            except apsw.Error as error:
                raise StoreNotWritable(path=store.own_folder, reason=error) from error
            yield SharedStore(ledger, waiting)
    finally:
        _remove_traces(store, is_new)


def _wait_for_ledger(store: Store, stack: ExitStack) -> Ledger:
    """Open the ledger as soon as no command other than backfills uses it; ``stack`` closes it."""
    end, tries = time.monotonic() + WAIT_SECONDS, _TRIES
    while True:
        try:
            return _open_shared_ledger(store, stack)
        except TargetLocked:
            if time.monotonic() > end:
                raise
        except StoreNotWritable:
            # Another backfill may have just removed the folder that it had created in vain.
            tries -= 1
            if not tries:
                raise
        time.sleep(_PAUSE)


def _open_shared_ledger(store: Store, stack: ExitStack) -> Ledger:
    """Open the ledger together with other backfills; without others, first recover from killed runs.

    ``stack`` closes the ledger.
    """
    with contextlib.suppress(TargetLocked):
        recover_killed_runs(store)
    try:
        durable.make_folders(store.own_folder)
        return stack.enter_context(ledgers.open_shared(store.root))
    except RegraftError:
        raise
    except (OSError, apsw.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreNotWritable(path=store.root, reason=reason) from error


def recover_before_survey(store: Store) -> bool:
    """Complete or undo the changes that a killed run left open; returns whether there was any.

    Otherwise a file or folder that the run had moved away for a moment would be surveyed as damage.

    Raises:
        ApplicationOpen
        TargetLocked: another run holds the store; the changes may be its own.
    """
    states = {change.state for past in ledgers.read_runs(store.root) for change in past.changes}
    if states.isdisjoint(("intended", "undoing")):
        return False
    demand_not_running(store)
    recover_killed_runs(store)
    return True


def recover_killed_runs(store: Store) -> None:
    """Complete or undo the changes of killed runs, and return their claims; needs the store exclusively.

    Raises:
        TargetLocked: another run holds the store.
    """
    if store.own_folder.exists():
        with open_ledger(store) as ledger:
            execution.recover(store.root, ledger)
            _reset_queue(store.own_folder / QUEUE_FILE)


def _reset_queue(path: Path) -> None:
    """Make all claimed and failed texts of a queue file ready again; a file that cannot be read is removed."""
    if not path.exists():
        return
    try:
        with open_queue(path) as waiting:
            waiting.reclaim_all()
            waiting.retry_failed()
            waiting.forget_sentences()
    except (QueueUnreadable, apsw.NotADBError, apsw.CorruptError, apsw.SQLError):
        for file in (path, *untrusted_sqlite.find_companions(path)):
            durable.remove(file)


def _remove_traces(store: Store, is_new: bool) -> None:
    """Remove a disposable queue; also remove the store's ``.regraft`` folder if it is unused.

    ``is_new``: this run created the folder.
    """
    path = store.own_folder / QUEUE_FILE
    with contextlib.suppress(RegraftError, OSError, apsw.Error):
        if not store.own_folder.exists():
            return
        with open_ledger(store) as ledger:
            with open_queue(path) as waiting:
                waiting.forget_probes()
                is_disposable = waiting.is_disposable()
            if is_disposable:
                durable.remove(path)
            is_new = is_new and all(change.state == "dropped" for change in ledger.changes.every())
            if is_new and is_disposable and not execution.has_pending_vectors(store.own_folder):
                # While the store is held, so that no other run can begin in the folder.
                durable.remove_tree(store.own_folder)
