"""The answers that a fleet has paid for: a SQLite file in its work folder, which the next run goes on with.

One process writes it (:mod:`repair.embedding.answers`), and once it has ended, any number read it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import apsw
import msgspec

from regraft import embedders, identity
from regraft.disk import sqlite, writable
from regraft.embedders import Embedded, Embedder, Sending, TextsRejected, Unanswered
from regraft.embedders.protocol import allow_all
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import WrongUsage
from regraft.language import tr
from repair.embedding.budget import Gauge, Limits, Pacer, Permit, Rates, Spending, SpendingAccount

ANSWERS_FILE = "answers.sqlite"
#: Where answers are: those to texts that lack a vector, and those to texts that bases are compared by.
AnswerTable = Literal["answer", "compared"]
#: Of settings, what decides on vectors.
_DECISIVE = ("model", "prefix", "dimensions", "base_url", "path", "library")
_TABLES = (
    "CREATE TABLE IF NOT EXISTS about (embedder TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS answer (key TEXT PRIMARY KEY, vector BLOB, code TEXT, reason TEXT)",
    # Of texts that bases are compared by. A model is what it was in an earlier run by nobody's word.
    "CREATE TABLE IF NOT EXISTS compared (key TEXT PRIMARY KEY, vector BLOB, code TEXT, reason TEXT)",
    "CREATE TABLE IF NOT EXISTS claimed (key TEXT PRIMARY KEY) WITHOUT ROWID",
    """CREATE TABLE IF NOT EXISTS spent
         (kind TEXT PRIMARY KEY, requests INTEGER NOT NULL, tokens INTEGER NOT NULL, under_way INTEGER NOT NULL,
          answered INTEGER NOT NULL, failed INTEGER NOT NULL)""",
)


#: What no row may be, by its table: counts stay far below what a column can hold.
_ANSWERS = """typeof(key) <> 'text' OR typeof(vector) NOT IN ('blob', 'null') OR length(vector) % 4 <> 0
   OR typeof(code) NOT IN ('text', 'null') OR typeof(reason) NOT IN ('text', 'null')
   OR (vector IS NULL) = (code IS NULL)"""
_COUNTS = ("requests", "tokens", "under_way", "answered", "failed")
_UNFIT = {
    "about": "typeof(embedder) <> 'text'",
    "answer": _ANSWERS,
    "compared": _ANSWERS,
    "claimed": "typeof(key) <> 'text'",
    "spent": " OR ".join(
        ["kind NOT IN ('texts', 'probes')"]
        + [f"typeof({name}) <> 'integer' OR {name} NOT BETWEEN 0 AND 1000000000000000" for name in _COUNTS]
    ),
}


class TextAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a text: its vector, as little-endian float32, or the code and the reason why it has none."""

    vector: bytes | None = None
    code: str | None = None
    reason: str | None = None


def embedder_identity(settings: EmbedderSettings) -> str:
    """Return what answers of one embedder have in common."""
    said = {name: str(getattr(settings, name)) for name in _DECISIVE if getattr(settings, name, None) is not None}
    return msgspec.json.encode(said, order="sorted").decode()


@contextmanager
def open_answers(folder: Path, settings: EmbedderSettings) -> Iterator[apsw.Connection]:
    """Open the answers in a work folder, and make the file where there is none; the folder may be changed.

    Raises:
        apsw.Error, OSError: it cannot be written, or is none.
    """
    with sqlite.open_writable(folder / ANSWERS_FILE, create=True) as db:
        # Nobody else opens it meanwhile. So it may lie on a share, although it keeps a log.
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
    """Open the answers in a work folder for reading, where there are any.

    Raises:
        apsw.Error, OSError: they cannot be read.
    """
    if not (folder / ANSWERS_FILE).is_file():
        yield None
        return
    with sqlite.open_readonly(folder / ANSWERS_FILE) as db:
        yield db


def demand_same_embedder(folder: Path, settings: EmbedderSettings) -> None:
    """Refuse answers in a work folder that are of another embedder, or that no run of regraft wrote.

    Raises:
        WrongUsage
        apsw.Error, OSError: they cannot be read.
    """
    path = folder / ANSWERS_FILE
    if not path.is_file():
        return
    try:
        # Opened for writing, what a killed run left beside it is worked into it, and need not be copied to be read.
        with writable.allow_writes(folder), sqlite.open_writable(path) as db:
            known = _about(db)
    except sqlite.CONTENT_ERRORS as error:
        problem = tr("{path} has no answers of a fleet ({error})", path=path, error=error)
        raise WrongUsage(problem=problem, hint=tr("remove the folder {folder}", folder=folder)) from error
    if known not in (None, embedder_identity(settings)):
        problem = tr(
            "the answers in {folder} are of another embedder than {name} is now", folder=folder, name=settings.name
        )
        raise WrongUsage(problem=problem, hint=tr("mend the configuration, or remove the folder"))


def _about(db: apsw.Connection) -> str | None:
    """Return whose answers these are; None where a run was killed before it wrote that.

    Raises:
        apsw.Error: they have another schema, a damaged page, or a value of another type.
    """
    found = {_plain(str(sql)) for (sql,) in db.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")}
    if not found:
        return None
    if found != set(map(_plain, _TABLES)):
        raise apsw.FormatError(tr("it has another schema"))
    for table, unfit in _UNFIT.items():
        if db.execute(f"SELECT 1 FROM {table} WHERE {unfit} LIMIT 1").get is not None:
            raise apsw.FormatError(tr("it has values of another type"))
    if db.execute("PRAGMA quick_check(1)").get != "ok":
        raise apsw.FormatError(tr("it is damaged"))
    about: Any = db.execute("SELECT embedder FROM about").get
    return None if about is None else str(about)


def _plain(sql: str) -> str:
    return " ".join(sql.replace(" IF NOT EXISTS", "").split())


def find_answers(
    db: apsw.Connection | None, keys: Sequence[str], table: AnswerTable = "answer"
) -> dict[str, TextAnswer]:
    """Return the answers that there are to texts, by their keys."""
    if db is None:
        return {}
    rows: Any = db.execute(
        f"SELECT key, vector, code, reason FROM {table} WHERE key IN (SELECT value FROM json_each(?))",
        (msgspec.json.encode(keys).decode(),),
    )
    return {key: TextAnswer(vector=vector, code=code, reason=reason) for key, vector, code, reason in rows}


def find_best_answers(db: apsw.Connection | None, keys: Sequence[str]) -> dict[str, TextAnswer]:
    """Return the answers that there are to texts of both kinds, by their keys: rather a vector than none."""
    found = find_answers(db, keys)
    compared = find_answers(db, keys, "compared")
    return found | {key: one for key, one in compared.items() if key not in found or found[key].vector is None}


def answered_keys(db: apsw.Connection | None, keys: Sequence[str], table: AnswerTable = "answer") -> set[str]:
    """Return those of the keys to whose texts there is an answer."""
    if db is None:
        return set()
    query = f"SELECT key FROM {table} WHERE key IN (SELECT value FROM json_each(?))"
    return {str(key) for (key,) in db.execute(query, (msgspec.json.encode(keys).decode(),))}


def add_answers(db: apsw.Connection, answers: Mapping[str, TextAnswer], table: AnswerTable = "answer") -> None:
    """Write answers in one transaction; one that is there stays."""
    rows = ((key, one.vector, one.code, one.reason) for key, one in answers.items())
    with sqlite.transaction(db):
        db.executemany(f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?, ?)", rows)


def reuse_compared(db: apsw.Connection, keys: Sequence[str]) -> None:
    """Let the answers to texts that were compared count for the same texts that lack a vector."""
    db.execute(
        "INSERT OR IGNORE INTO answer SELECT * FROM compared WHERE key IN (SELECT value FROM json_each(?))",
        (msgspec.json.encode(keys).decode(),),
    )


def end_run(folder: Path) -> None:
    """Let the next run have its limits anew, and try again what was rejected.

    Raises:
        apsw.Error, OSError: it cannot be written.
    """
    if not (folder / ANSWERS_FILE).is_file():
        return
    with writable.allow_writes(folder), sqlite.open_writable(folder / ANSWERS_FILE) as db, sqlite.transaction(db):
        for table in ("spent", "claimed"):
            db.execute(f"DELETE FROM {table}")
        for table in get_args(AnswerTable):
            db.execute(f"DELETE FROM {table} WHERE code IS NOT NULL")


# The one object of a fleet that lets requests leave and keeps their answers, for all who send.
#
# They may be threads of this process, or processes of a cluster: then it is in a process of its own. What it knows is in
# a file before it answers, so that a run that is killed loses no answer that it has got, and does not forget what it has
# spent.


#: What is sent: texts that lack a vector, or a few that have one, to compare. The latter count against no limit.
TextKind = Literal["texts", "probes"]


_TABLE_OF: dict[TextKind, AnswerTable] = {"texts": "answer", "probes": "compared"}


class SendingTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet may send to its embedder, and the folder that its answers are kept in."""

    folder: Path
    settings: EmbedderSettings
    limits: Limits = Limits()
    rates: Rates = Rates()


class StopReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing more is sent: a limit was reached (exit status 0), or an error has this code and exit status."""

    reason: str
    code: str | None = None
    exit_status: int = 0


class SpentTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that were sent, and their tokens: those whose answer never came are counted by estimate.

    ``answered`` texts got a vector, ``failed`` ones were rejected.
    """

    requests: int = 0
    tokens: int = 0
    answered: int = 0
    failed: int = 0


NOTHING_SPENT = SpentTotals()


class AnswerKeeper(Protocol):
    """What those who send know of the keeper."""

    def claim(self, keys: Sequence[str], kind: TextKind) -> list[str]:
        """Return the keys of those of the texts that are to be sent: they have no answer, and no limit is reached."""

    def keep(self, found: Mapping[str, TextAnswer], kind: TextKind) -> None:
        """Write answers, so that they survive a power cut."""

    def stop(self, stop: StopReason) -> None:
        """Let nothing more leave; the first reason counts."""

    def leave(self, kind: TextKind) -> SpendingAccount:
        """Return what is asked before each request of a kind."""


class Keeper:
    """See the module. May be used by several threads.

    Raises:
        apsw.Error, OSError: the file cannot be written.
    """

    def __init__(self, terms: SendingTerms) -> None:
        self._lock = threading.RLock()
        self._stopped: StopReason | None = None
        self._full: StopReason | None = None
        self._limits = terms.limits
        price = (terms.settings.price_per_million_tokens or 0.0) / 1_000_000
        pacer, gauge = Pacer(terms.rates), Gauge()
        self._spending: dict[TextKind, Spending] = {
            "texts": Spending(terms.limits, price, pacer, gauge),
            "probes": Spending(Limits(), price, pacer, gauge),
        }
        self._counts: dict[TextKind, Counter[str]] = {kind: Counter() for kind in self._spending}
        with ExitStack() as ending:
            with writable.allow_writes(terms.folder):
                self._db = ending.enter_context(open_answers(terms.folder, terms.settings))
            self._recall()
            self._ending = ending.pop_all()

    def _recall(self) -> None:
        """Take note of what a killed run had spent."""
        for kind, spending in self._spending.items():
            row: Any = self._db.execute(
                "SELECT requests, tokens, under_way, answered, failed FROM spent WHERE kind = ?", (kind,)
            ).get
            if row is not None:
                # What a killed run had under way is paid for, whatever became of it.
                spending.requests, spending.tokens = row[0], row[1] + row[2]
                self._counts[kind].update(answered=row[3], failed=row[4])

    def claim(self, keys: Sequence[str], kind: TextKind) -> list[str]:
        """See :meth:`Keeping.claim`."""
        with self._lock:
            if self._stopped is not None:
                return []
            if kind == "texts":
                # What was compared in this run is not sent again.
                reuse_compared(self._db, keys)
            known = answered_keys(self._db, keys, _TABLE_OF[kind])
            wanted = [key for key in dict.fromkeys(keys) if key not in known]
            return (
                wanted if kind == "probes" or self._limits.texts is None else self._limited(wanted, self._limits.texts)
            )

    def _limited(self, keys: list[str], most: int) -> list[str]:
        """Return as many as may be sent; who claims a text again, since the first one is gone, claims no more."""
        count: Any = self._db.execute("SELECT count(*) FROM claimed").get
        allowed = []
        with sqlite.transaction(self._db):
            for key in keys:
                is_claimed = self._db.execute("SELECT 1 FROM claimed WHERE key = ?", (key,)).get is not None
                if not is_claimed and count >= most:
                    # What is claimed may still leave.
                    self._full = StopReason(reason=tr("--limit {texts:,} is reached", texts=most))
                    break
                if not is_claimed:
                    self._db.execute("INSERT INTO claimed VALUES (?)", (key,))
                    count += 1
                allowed.append(key)
        return allowed

    def keep(self, found: Mapping[str, TextAnswer], kind: TextKind) -> None:
        """See :meth:`Keeping.keep`."""
        with self._lock:
            self._db.execute("PRAGMA synchronous = FULL")
            add_answers(self._db, found, _TABLE_OF[kind])
            self._counts[kind].update("failed" if one.vector is None else "answered" for one in found.values())
            self._note(kind)

    def answers_of(self, keys: Sequence[str], kind: TextKind = "texts") -> dict[str, TextAnswer]:
        """Return the answers that there are to texts of a kind, by their keys."""
        with self._lock:
            return find_answers(self._db, keys, _TABLE_OF[kind])

    def compare_anew(self) -> None:
        """Forget what earlier runs compared: the embedder may be another model by now."""
        with self._lock:
            self._db.execute("DELETE FROM compared")

    def stop(self, stop: StopReason) -> None:
        """See :meth:`Keeping.stop`."""
        with self._lock:
            self._stopped = self._stopped or stop

    def stopped(self) -> StopReason | None:
        """Return why nothing more is sent; None: it is."""
        return self._stopped or self._full

    # --- leave -------------------------------------------------------------------------------------------------------

    def leave(self, kind: TextKind) -> SpendingAccount:
        """See :meth:`Keeping.leave`."""
        return KindAccount(self, kind)

    def reserve(self, kind: TextKind, tokens: int) -> Permit:
        """See :meth:`repair.embedding.budget.SpendingAccount.reserve`."""
        with self._lock:
            if self._stopped is not None:
                return Permit(refused=self._stopped.reason)
            permit = self._spending[kind].reserve(tokens)
            self._note(kind)
            return permit

    def settle(self, kind: TextKind, reserved: int, tokens: int) -> None:
        """See :meth:`repair.embedding.budget.SpendingAccount.settle`."""
        with self._lock:
            self._spending[kind].settle(reserved, tokens)
            self._note(kind)

    def give_back(self, kind: TextKind, tokens: int) -> None:
        """See :meth:`repair.embedding.budget.SpendingAccount.give_back`."""
        with self._lock:
            self._spending[kind].give_back(tokens)
            self._note(kind)

    def _note(self, kind: TextKind) -> None:
        """Write down what was spent; a kill does not lose it, a power cut may."""
        spending, counts = self._spending[kind], self._counts[kind]
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(
            "INSERT OR REPLACE INTO spent VALUES (?, ?, ?, ?, ?, ?)",
            (kind, spending.requests, spending.tokens, spending.under_way, counts["answered"], counts["failed"]),
        )

    # --- the end -----------------------------------------------------------------------------------------------------

    def spent(self, kind: TextKind) -> SpentTotals:
        """Return what was sent of a kind since the last run that ended."""
        spending = self._spending[kind]
        tokens = spending.tokens + spending.under_way
        return SpentTotals(requests=spending.requests, tokens=tokens, **self._counts[kind])

    def close(self) -> None:
        """Close the file."""
        self._ending.close()


class KindAccount:
    """Asks a keeper, or what stands for one, for leave of a kind."""

    def __init__(self, keeper: Any, kind: TextKind) -> None:
        self._keeper = keeper
        self._kind = kind

    def reserve(self, tokens: int) -> Permit:
        """See :meth:`repair.embedding.budget.SpendingAccount.reserve`."""
        permit: Permit = self._keeper.reserve(self._kind, tokens)
        return permit

    def settle(self, reserved: int, tokens: int) -> None:
        """See :meth:`repair.embedding.budget.SpendingAccount.settle`."""
        self._keeper.settle(self._kind, reserved, tokens)

    def give_back(self, tokens: int) -> None:
        """See :meth:`repair.embedding.budget.SpendingAccount.give_back`."""
        self._keeper.give_back(self._kind, tokens)


# An embedder that sends nothing: it has the answers that a fleet has got.


#: Returns the answers that there are to texts, by their keys.
FindAnswers = Callable[[Sequence[str]], dict[str, TextAnswer]]


class KnownEmbedder:
    """Answers what it knows (:class:`~regraft.embedders.protocol.Embedder`).

    Args:
        settings: those of the embedder that gave the answers.
        find: returns the answers that there are to texts, by their keys.
        why: what is said of a text without one.
    """

    def __init__(self, settings: EmbedderSettings, find: FindAnswers, why: str) -> None:
        self.settings = settings
        self._find = find
        self._why = why
        self._counted = embedders.counter(settings)
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str], *, query: bool = False, sending: Sending = allow_all) -> Embedded:  # noqa: ARG002
        """Return the vectors of a batch; no request is sent.

        Raises:
            TextsRejected: one of them was.
            Unanswered: one of them has no answer.
        """
        keys = [identity.text_hash(text) for text in texts]
        with self._lock:
            found = self._find(keys)
        vectors: list[bytes] = []
        for key in keys:
            one = found.get(key)
            if one is None:
                raise Unanswered(self._why)
            if one.vector is None:
                raise TextsRejected(one.code or "", one.reason or "", is_certain=True)
            vectors.append(one.vector)
        return Embedded(vectors, 0, 0)

    def tokens(self, text: str) -> int:
        """Return how many tokens a text has with its prefix."""
        return self._counted(self.settings.prefix + text)

    def halt(self) -> None:
        """Do nothing: nothing is waited for."""

    def close(self) -> None:
        """Do nothing."""


@contextmanager
def open_known_embedder(work: Path, settings: EmbedderSettings, why: str) -> Iterator[Embedder]:
    """Open the answers in a work folder as an embedder.

    Raises:
        apsw.Error, OSError: they cannot be read.
        WrongUsage, ModelUnreadable: the tokenizer cannot be used.
    """
    with read_answers(work) as db:
        yield KnownEmbedder(settings, partial(find_best_answers, db), why)
