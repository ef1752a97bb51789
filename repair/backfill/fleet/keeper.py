"""The one object of a fleet that lets requests leave and keeps their answers, for all who send.

They may be threads of this process, or processes of a cluster: then it is in a process of its own. What it knows is in
a file before it answers, so that a run that is killed loses no answer that it has got, and does not forget what it has
spent.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from regraft import areas, sqlite
from regraft.embedders.settings import EmbedderSettings
from regraft.language import tr
from repair.backfill.budget import Gauge, Leave, Limits, Pacer, Permit, Rates, Spending
from repair.backfill.fleet import answers
from repair.backfill.fleet.answers import Answer, Table

#: What is sent: texts that lack a vector, or a few that have one, to compare. The latter count against no limit.
Kind = Literal["texts", "probes"]


_TABLES: dict[Kind, Table] = {"texts": "answer", "probes": "compared"}


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet may send to its embedder, and the folder that its answers are kept in."""

    folder: Path
    settings: EmbedderSettings
    limits: Limits = Limits()
    rates: Rates = Rates()


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing more is sent: a limit was reached (exit status 0), or an error has this code and exit status."""

    reason: str
    code: str | None = None
    exit_status: int = 0


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that were sent, and their tokens: those whose answer never came are counted by estimate.

    ``answered`` texts got a vector, ``failed`` ones were rejected.
    """

    requests: int = 0
    tokens: int = 0
    answered: int = 0
    failed: int = 0


NOTHING = Spent()


class Keeping(Protocol):
    """What those who send know of the keeper."""

    def claim(self, keys: Sequence[str], kind: Kind) -> list[str]:
        """Return the keys of those of the texts that are to be sent: they have no answer, and no limit is reached."""

    def keep(self, found: Mapping[str, Answer], kind: Kind) -> None:
        """Write answers, so that they survive a power cut."""

    def stop(self, stop: Stop) -> None:
        """Let nothing more leave; the first reason counts."""

    def leave(self, kind: Kind) -> Leave:
        """Return what is asked before each request of a kind."""


class Keeper:
    """See the module. May be used by several threads.

    Raises:
        apsw.Error, OSError: the file cannot be written.
    """

    def __init__(self, terms: Terms) -> None:
        self._lock = threading.RLock()
        self._stopped: Stop | None = None
        self._full: Stop | None = None
        self._limits = terms.limits
        price = (terms.settings.price_per_million_tokens or 0.0) / 1_000_000
        pacer, gauge = Pacer(terms.rates), Gauge()
        self._spending: dict[Kind, Spending] = {
            "texts": Spending(terms.limits, price, pacer, gauge),
            "probes": Spending(Limits(), price, pacer, gauge),
        }
        self._counts: dict[Kind, Counter[str]] = {kind: Counter() for kind in self._spending}
        with ExitStack() as ending:
            with areas.opened(terms.folder):
                self._db = ending.enter_context(answers.writing(terms.folder, terms.settings))
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

    def claim(self, keys: Sequence[str], kind: Kind) -> list[str]:
        """See :meth:`Keeping.claim`."""
        with self._lock:
            if self._stopped is not None:
                return []
            if kind == "texts":
                # What was compared in this run is not sent again.
                answers.take_over(self._db, keys)
            known = answers.answered(self._db, keys, _TABLES[kind])
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
                    self._full = Stop(reason=tr("--limit {texts:,} is reached", texts=most))
                    break
                if not is_claimed:
                    self._db.execute("INSERT INTO claimed VALUES (?)", (key,))
                    count += 1
                allowed.append(key)
        return allowed

    def keep(self, found: Mapping[str, Answer], kind: Kind) -> None:
        """See :meth:`Keeping.keep`."""
        with self._lock:
            self._db.execute("PRAGMA synchronous = FULL")
            answers.add(self._db, found, _TABLES[kind])
            self._counts[kind].update("failed" if one.vector is None else "answered" for one in found.values())
            self._note(kind)

    def answers_of(self, keys: Sequence[str], kind: Kind = "texts") -> dict[str, Answer]:
        """Return the answers that there are to texts of a kind, by their keys."""
        with self._lock:
            return answers.answers_of(self._db, keys, _TABLES[kind])

    def compare_anew(self) -> None:
        """Forget what earlier runs compared: the embedder may be another model by now."""
        with self._lock:
            self._db.execute("DELETE FROM compared")

    def stop(self, stop: Stop) -> None:
        """See :meth:`Keeping.stop`."""
        with self._lock:
            self._stopped = self._stopped or stop

    def stopped(self) -> Stop | None:
        """Return why nothing more is sent; None: it is."""
        return self._stopped or self._full

    # --- leave -------------------------------------------------------------------------------------------------------

    def leave(self, kind: Kind) -> Leave:
        """See :meth:`Keeping.leave`."""
        return KindOfLeave(self, kind)

    def reserve(self, kind: Kind, tokens: int) -> Permit:
        """See :meth:`repair.backfill.budget.Leave.reserve`."""
        with self._lock:
            if self._stopped is not None:
                return Permit(refused=self._stopped.reason)
            permit = self._spending[kind].reserve(tokens)
            self._note(kind)
            return permit

    def settle(self, kind: Kind, reserved: int, tokens: int) -> None:
        """See :meth:`repair.backfill.budget.Leave.settle`."""
        with self._lock:
            self._spending[kind].settle(reserved, tokens)
            self._note(kind)

    def give_back(self, kind: Kind, tokens: int) -> None:
        """See :meth:`repair.backfill.budget.Leave.give_back`."""
        with self._lock:
            self._spending[kind].give_back(tokens)
            self._note(kind)

    def _note(self, kind: Kind) -> None:
        """Write down what was spent; a kill does not lose it, a power cut may."""
        spending, counts = self._spending[kind], self._counts[kind]
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(
            "INSERT OR REPLACE INTO spent VALUES (?, ?, ?, ?, ?, ?)",
            (kind, spending.requests, spending.tokens, spending.under_way, counts["answered"], counts["failed"]),
        )

    # --- the end -----------------------------------------------------------------------------------------------------

    def spent(self, kind: Kind) -> Spent:
        """Return what was sent of a kind since the last run that ended."""
        spending = self._spending[kind]
        tokens = spending.tokens + spending.under_way
        return Spent(requests=spending.requests, tokens=tokens, **self._counts[kind])

    def close(self) -> None:
        """Close the file."""
        self._ending.close()


class KindOfLeave:
    """Asks a keeper, or what stands for one, for leave of a kind."""

    def __init__(self, keeper: Any, kind: Kind) -> None:
        self._keeper = keeper
        self._kind = kind

    def reserve(self, tokens: int) -> Permit:
        """See :meth:`repair.backfill.budget.Leave.reserve`."""
        permit: Permit = self._keeper.reserve(self._kind, tokens)
        return permit

    def settle(self, reserved: int, tokens: int) -> None:
        """See :meth:`repair.backfill.budget.Leave.settle`."""
        self._keeper.settle(self._kind, reserved, tokens)

    def give_back(self, tokens: int) -> None:
        """See :meth:`repair.backfill.budget.Leave.give_back`."""
        self._keeper.give_back(self._kind, tokens)
