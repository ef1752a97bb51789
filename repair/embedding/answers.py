"""The answers that a fleet has paid for: a SQLite file in its work folder, written by one keeper, read by all jobs.

The :class:`Keeper` is the only writer. It permits each request and stores its answer before it confirms it, so that a
killed run loses no answer and still knows what it has spent. Senders may be threads of its process, or processes of a
cluster. Once it has closed the file, :class:`KnownEmbedder` gives each library of the fleet its vectors.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import apsw
import msgspec

from regraft import embedders, identity
from regraft.disk import sqlite, writable
from regraft.embedders import Embedded, Embedder, Sending, TextsRejected, Unanswered
from regraft.embedders.protocol import allow_all
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import REFUSED, RegraftError, WrongUsage
from regraft.language import tr
from repair.embedding.budget import Limits, Pacer, Permit, Rates, Spending, SpendingAccount, TokenGauge

ANSWERS_FILE = "answers.sqlite"
#: Tables of answers: to texts that lack a vector, and to texts that bases are compared by.
AnswerTable = Literal["answer", "compared"]
#: Settings that decide which vectors an embedder returns.
_DECISIVE = ("model", "prefix", "dimensions", "base_url", "path", "library")
_TABLES = (
    "CREATE TABLE IF NOT EXISTS about (embedder TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS answer (key TEXT PRIMARY KEY, vector BLOB, code TEXT, reason TEXT)",
    # Used again by later runs while the embedder still gives the same vector for one of the texts.
    "CREATE TABLE IF NOT EXISTS compared (key TEXT PRIMARY KEY, vector BLOB, code TEXT, reason TEXT)",
    "CREATE TABLE IF NOT EXISTS claimed (key TEXT PRIMARY KEY) WITHOUT ROWID",
    """CREATE TABLE IF NOT EXISTS spent
         (kind TEXT PRIMARY KEY, requests INTEGER NOT NULL, tokens INTEGER NOT NULL, under_way INTEGER NOT NULL,
          answered INTEGER NOT NULL, failed INTEGER NOT NULL)""",
)

_INVALID_ANSWERS = """typeof(key) <> 'text' OR typeof(vector) NOT IN ('blob', 'null') OR length(vector) % 4 <> 0
   OR typeof(code) NOT IN ('text', 'null') OR typeof(reason) NOT IN ('text', 'null')
   OR (vector IS NULL) = (code IS NULL)"""
_COUNTS = ("requests", "tokens", "under_way", "answered", "failed")
#: For each table, a condition that no row written by regraft meets.
_INVALID = {
    "about": "typeof(embedder) <> 'text'",
    "answer": _INVALID_ANSWERS,
    "compared": _INVALID_ANSWERS,
    "claimed": "typeof(key) <> 'text'",
    "spent": " OR ".join(
        ["kind NOT IN ('texts', 'probes')"]
        + [f"typeof({name}) <> 'integer' OR {name} NOT BETWEEN 0 AND 1000000000000000" for name in _COUNTS]
    ),
}


# --- the file --------------------------------------------------------------------------------------------------------


class TextAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one text: its vector (little-endian float32), or the code and reason of its failure."""

    vector: bytes | None = None
    code: str | None = None
    reason: str | None = None


def embedder_identity(settings: EmbedderSettings) -> str:
    """Return the settings that two embedders must have in common to share answers, as JSON."""
    decisive = {name: str(getattr(settings, name)) for name in _DECISIVE if getattr(settings, name, None) is not None}
    return msgspec.json.encode(decisive, order="sorted").decode()


@contextmanager
def open_answers(folder: Path, settings: EmbedderSettings) -> Iterator[apsw.Connection]:
    """Open the file of answers in a work folder for writing, and create the file if it does not exist.

    The caller has made the folder writable (:mod:`regraft.disk.writable`).

    Raises:
        apsw.Error, OSError: the file cannot be written.
    """
    with sqlite.open_writable(folder / ANSWERS_FILE, create=True) as db:
        # With an exclusive lock, WAL works without shared memory, and so on a network share.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        with sqlite.transaction(db):
            for statement in _TABLES:
                db.execute(statement)
            if db.execute("SELECT 1 FROM about").get is None:
                db.execute("INSERT INTO about VALUES (?)", (embedder_identity(settings),))
        yield db


@contextmanager
def read_answers(folder: Path) -> Iterator[apsw.Connection | None]:
    """Open the file of answers in a work folder for reading; yields None if it does not exist.

    Raises:
        apsw.Error, OSError: the file cannot be read.
    """
    if not (folder / ANSWERS_FILE).is_file():
        yield None
        return
    with sqlite.open_readonly(folder / ANSWERS_FILE) as db:
        yield db


def demand_same_embedder(folder: Path, settings: EmbedderSettings) -> None:
    """Refuse a work folder whose answers are those of another embedder.

    Raises:
        WrongUsage: they are another embedder's, or the file is not one that regraft wrote.
        apsw.Error, OSError: they cannot be read.
    """
    path = folder / ANSWERS_FILE
    if not path.is_file():
        return
    try:
        # Opened for writing, so that the WAL of a killed run is checkpointed instead of copied.
        with writable.allow_writes(folder), sqlite.open_writable(path) as db:
            known: Any = None
            if sqlite.has_own_content(db, _TABLES, _INVALID):
                if db.execute("PRAGMA quick_check(1)").get != "ok":
                    raise apsw.FormatError(tr("it is damaged"))
                # None if a run was killed before it recorded its embedder.
                known = db.execute("SELECT embedder FROM about").get
    except sqlite.CONTENT_ERRORS as error:
        problem = tr("{path} is not an answers file of a fleet: {error}", path=path, error=error)
        raise WrongUsage(problem=problem, hint=tr("remove the folder {folder}", folder=folder)) from error
    if known not in (None, embedder_identity(settings)):
        problem = tr(
            "the answers in {folder} were made by another embedder than {name}", folder=folder, name=settings.name
        )
        raise WrongUsage(problem=problem, hint=tr("fix the configuration, or remove the folder"))


def find_answers(
    db: apsw.Connection | None, keys: Sequence[str], table: AnswerTable = "answer"
) -> dict[str, TextAnswer]:
    """Return the known answers to texts, by key.

    ``db`` is the file of answers (None: it does not exist), ``table`` says whether the texts are those to fill or to
    compare.
    """
    if db is None:
        return {}
    rows: Any = db.execute(
        f"SELECT key, vector, code, reason FROM {table} WHERE key IN (SELECT value FROM json_each(?))",
        (sqlite.json_array(keys),),
    )
    return {key: TextAnswer(vector=vector, code=code, reason=reason) for key, vector, code, reason in rows}


def find_best_answers(db: apsw.Connection | None, keys: Sequence[str]) -> dict[str, TextAnswer]:
    """Return the known answers to texts, by key, from both tables of a file of answers (None: no file, no answers).

    If both tables answer a text, a vector goes before a failure.
    """
    found = find_answers(db, keys)
    compared = find_answers(db, keys, "compared")
    return found | {key: one for key, one in compared.items() if key not in found or found[key].vector is None}


def answered_keys(db: apsw.Connection | None, keys: Sequence[str], table: AnswerTable = "answer") -> set[str]:
    """Select the keys with an answer in a table of a file of answers; none if the file does not exist (``db`` None)."""
    if db is None:
        return set()
    query = f"SELECT key FROM {table} WHERE key IN (SELECT value FROM json_each(?))"
    return {str(key) for (key,) in db.execute(query, (sqlite.json_array(keys),))}


def add_answers(db: apsw.Connection, answers: Mapping[str, TextAnswer], table: AnswerTable = "answer") -> None:
    """Add answers in one transaction; existing ones are kept."""
    rows = ((key, one.vector, one.code, one.reason) for key, one in answers.items())
    with sqlite.transaction(db):
        db.executemany(f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?, ?)", rows)


def reuse_compared(db: apsw.Connection, keys: Sequence[str]) -> None:
    """Use the answers of the comparison for those texts of ``keys`` that lack a vector and were sent to compare."""
    db.execute(
        "INSERT OR IGNORE INTO answer SELECT * FROM compared WHERE key IN (SELECT value FROM json_each(?))",
        (sqlite.json_array(keys),),
    )


def end_run(folder: Path) -> None:
    """Prepare the file of answers in a work folder for the next run: counts restart at zero, and failures are retried.

    Raises:
        apsw.Error, OSError: the file cannot be written.
    """
    if not (folder / ANSWERS_FILE).is_file():
        return
    with writable.allow_writes(folder), sqlite.open_writable(folder / ANSWERS_FILE) as db, sqlite.transaction(db):
        for table in ("spent", "claimed"):
            db.execute(f"DELETE FROM {table}")
        for table in get_args(AnswerTable):
            db.execute(f"DELETE FROM {table} WHERE code IS NOT NULL")


# --- the keeper ------------------------------------------------------------------------------------------------------

#: What is sent: texts that lack a vector, or probes, to which only the cost limit applies.
TextKind = Literal["texts", "probes"]
_TABLE_OF: dict[TextKind, AnswerTable] = {"texts": "answer", "probes": "compared"}


class SendingTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The embedder and the limits of a fleet, and its work folder."""

    folder: Path
    settings: EmbedderSettings
    limits: Limits = Limits()
    rates: Rates = Rates()


class StopReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a fleet sends nothing more, or does not fill a library: an error, or a limit (no code, exit status 0)."""

    reason: str
    code: str | None = None
    exit_status: int = 0

    @classmethod
    def of(cls, error: RegraftError) -> StopReason:
        """Make the reason from an error. A library that it stops ends with exit status 2 at least."""
        return cls(reason=str(error), code=error.code, exit_status=max(REFUSED, error.exit_status))


class SpentTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Requests and tokens sent; requests without an answer count with their estimated tokens.

    ``answered`` texts got a vector, ``failed`` ones were rejected.
    """

    requests: int = 0
    tokens: int = 0
    answered: int = 0
    failed: int = 0


NOTHING_SPENT = SpentTotals()


class Keeper:
    """Permits requests and stores answers; thread-safe. Texts are those to fill or to compare, by their kind.

    ``terms`` has the embedder, the limits of the fleet, and its work folder.

    Raises:
        apsw.Error, OSError: the file cannot be written.
    """

    def __init__(self, terms: SendingTerms) -> None:
        self._lock = threading.RLock()
        self._stopped: StopReason | None = None
        #: Set once --limit texts are claimed; claimed texts are still sent.
        self._full: StopReason | None = None
        self._limits = terms.limits
        price = (terms.settings.price_per_million_tokens or 0.0) / 1_000_000
        pacer, gauge = Pacer(terms.rates), TokenGauge()
        self._spending: dict[TextKind, Spending] = {
            "texts": Spending(terms.limits, price, pacer, gauge),
            "probes": Spending(Limits(cost=terms.limits.cost), price, pacer, gauge),
        }
        self._spending["texts"].beside = self._spending["probes"]
        self._spending["probes"].beside = self._spending["texts"]
        self._counts: dict[TextKind, Counter[str]] = {kind: Counter() for kind in self._spending}
        with ExitStack() as ending:
            with writable.allow_writes(terms.folder):
                self._db = ending.enter_context(open_answers(terms.folder, terms.settings))
            self._load_spending()
            self._ending = ending.pop_all()

    def _load_spending(self) -> None:
        """Continue with the counts of a killed run. Requests that were in flight then count as paid."""
        for kind, spending in self._spending.items():
            row: Any = self._db.execute(
                "SELECT requests, tokens, under_way, answered, failed FROM spent WHERE kind = ?", (kind,)
            ).get
            if row is not None:
                spending.requests, spending.tokens = row[0], row[1] + row[2]
                self._counts[kind].update(answered=row[3], failed=row[4])

    def claim(self, keys: Sequence[str], kind: TextKind) -> list[str]:
        """Select the texts to send among ``keys``: those without an answer; texts to fill only up to the limit."""
        with self._lock:
            if self._stopped is not None:
                return []
            if kind == "texts":
                # A text that was compared in this run is not sent again.
                reuse_compared(self._db, keys)
            known = answered_keys(self._db, keys, _TABLE_OF[kind])
            wanted = [key for key in dict.fromkeys(keys) if key not in known]
            if kind == "probes" or self._limits.texts is None:
                return wanted
            return self._claim_within(wanted, self._limits.texts)

    def _claim_within(self, keys: list[str], limit: int) -> list[str]:
        """Claim texts until ``limit`` texts are claimed; those that a killed sender had claimed do not count twice."""
        count: Any = self._db.execute("SELECT count(*) FROM claimed").get
        allowed = []
        with sqlite.transaction(self._db):
            for key in keys:
                is_claimed = self._db.execute("SELECT 1 FROM claimed WHERE key = ?", (key,)).get is not None
                if not is_claimed and count >= limit:
                    self._full = StopReason(reason=tr("--limit {texts:,} is reached", texts=limit))
                    break
                if not is_claimed:
                    self._db.execute("INSERT INTO claimed VALUES (?)", (key,))
                    count += 1
                allowed.append(key)
        return allowed

    def keep(self, found: Mapping[str, TextAnswer], kind: TextKind) -> None:
        """Write answers to texts of a kind (``found``, by key) durably: they survive a power cut."""
        with self._lock:
            self._db.execute("PRAGMA synchronous = FULL")
            add_answers(self._db, found, _TABLE_OF[kind])
            self._counts[kind].update("failed" if one.vector is None else "answered" for one in found.values())
            self._save_spending(kind)

    def find(self, keys: Sequence[str], kind: TextKind = "texts") -> dict[str, TextAnswer]:
        """Return the known answers to texts of a kind, by key."""
        with self._lock:
            return find_answers(self._db, keys, _TABLE_OF[kind])

    def reuse_vectors(self, keys: Sequence[str]) -> None:
        """Copy the vectors that an earlier run got for the texts ``keys`` to the answers for comparing."""
        copied = "INSERT OR IGNORE INTO compared SELECT * FROM answer WHERE vector IS NOT NULL AND key IN"
        with self._lock:
            self._db.execute(f"{copied} (SELECT value FROM json_each(?))", (sqlite.json_array(keys),))

    def forget_compared(self, keys: Sequence[str] | None = None) -> None:
        """Delete the answers for comparing to the texts of ``keys``; None: all of them."""
        which = "" if keys is None else " WHERE key IN (SELECT value FROM json_each(?))"
        with self._lock:
            self._db.execute(f"DELETE FROM compared{which}", () if keys is None else (sqlite.json_array(keys),))

    def stop(self, stop: StopReason) -> None:
        """Permit no more requests. Of several reasons the first one is kept."""
        with self._lock:
            self._stopped = self._stopped or stop

    def stopped(self) -> StopReason | None:
        """Return why no more requests are permitted, or None if they are."""
        return self._stopped or self._full

    # Spending.

    def account(self, kind: TextKind) -> SpendingAccount:
        """Return the account in which the requests for texts of a kind are reserved."""
        return KindAccount(self, kind)

    def reserve(self, kind: TextKind, tokens: int) -> Permit:
        """Reserve a request for texts of a kind with an estimated number of tokens; the permit may refuse it."""
        with self._lock:
            if self._stopped is not None:
                return Permit(refused=self._stopped.reason)
            permit = self._spending[kind].reserve(tokens)
            self._save_spending(kind)
            return permit

    def settle(self, kind: TextKind, reserved: int, tokens: int) -> None:
        """Replace the estimate of finished requests (``reserved``) by the tokens that the server counted for a kind."""
        with self._lock:
            self._spending[kind].settle(reserved, tokens)
            self._save_spending(kind)

    def cancel(self, kind: TextKind, tokens: int) -> None:
        """Return the reservation of a request for texts of a kind that was not sent."""
        with self._lock:
            self._spending[kind].cancel(tokens)
            self._save_spending(kind)

    def _save_spending(self, kind: TextKind) -> None:
        """Write the counts for texts of a kind so that they survive a kill; a power cut may lose the last ones."""
        spending, counts = self._spending[kind], self._counts[kind]
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(
            "INSERT OR REPLACE INTO spent VALUES (?, ?, ?, ?, ?, ?)",
            (kind, spending.requests, spending.tokens, spending.reserved, counts["answered"], counts["failed"]),
        )

    def spent(self, kind: TextKind) -> SpentTotals:
        """Return the requests and tokens for texts of a kind since the last run that ended."""
        spending = self._spending[kind]
        tokens = spending.tokens + spending.reserved
        return SpentTotals(requests=spending.requests, tokens=tokens, **self._counts[kind])

    def close(self) -> None:
        """Close the file."""
        self._ending.close()


class KindAccount:
    """The account for one kind of text, at a keeper of this process or a proxy of one in another process."""

    def __init__(self, keeper: Any, kind: TextKind) -> None:
        self._keeper = keeper
        self._kind = kind

    def reserve(self, tokens: int) -> Permit:
        """Reserve a request with an estimated number of tokens; a permit that refuses it says why."""
        permit: Permit = self._keeper.reserve(self._kind, tokens)
        return permit

    def settle(self, reserved: int, tokens: int) -> None:
        """Replace the estimate (``reserved``) of finished requests by the tokens that the server counted."""
        self._keeper.settle(self._kind, reserved, tokens)

    def cancel(self, tokens: int) -> None:
        """Return the reservation of a request that was not sent."""
        self._keeper.cancel(self._kind, tokens)


# --- reading as an embedder ------------------------------------------------------------------------------------------

#: Returns the known answers to texts, by key.
FindAnswers = Callable[[Sequence[str]], dict[str, TextAnswer]]


class KnownEmbedder:
    """An embedder that sends nothing and returns known answers (:class:`~regraft.embedders.protocol.Embedder`).

    Args:
        settings: those of the embedder that gave the answers.
        find: given text hashes, returns the known answers by text hash.
        why: the error message for a text without an answer.
    """

    def __init__(self, settings: EmbedderSettings, find: FindAnswers, why: str) -> None:
        self.settings = settings
        self._find = find
        self._why = why
        self._count_tokens = embedders.counter(settings)
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str], *, query: bool = False, sending: Sending = allow_all) -> Embedded:  # noqa: ARG002
        """Return the known vectors of texts, in their order.

        Raises:
            TextsRejected: one of them was rejected.
            Unanswered: one of them has no answer.
        """
        keys = [identity.text_hash(text) for text in texts]
        with self._lock:
            found = self._find(keys)
        vectors: list[bytes] = []
        for key in keys:
            answer = found.get(key)
            if answer is None:
                raise Unanswered(self._why)
            if answer.vector is None:
                raise TextsRejected(answer.code or "", answer.reason or "", is_certain=True)
            vectors.append(answer.vector)
        return Embedded(vectors, 0, 0)

    def tokens(self, text: str) -> int:
        """Count the tokens of a text with the embedder's prefix."""
        return self._count_tokens(self.settings.prefix + text)

    def halt(self) -> None:
        """Do nothing: there are no requests."""

    def close(self) -> None:
        """Do nothing: there is no connection."""


@contextmanager
def open_known_embedder(work: Path, settings: EmbedderSettings, why: str) -> Iterator[Embedder]:
    """Open the answers in a work folder as an embedder that sends nothing; see :class:`KnownEmbedder`.

    Raises:
        apsw.Error, OSError: they cannot be read.
        WrongUsage, ModelUnreadable: the tokenizer cannot be used.
    """
    with read_answers(work) as db:
        yield KnownEmbedder(settings, partial(find_best_answers, db), why)
