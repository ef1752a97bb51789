"""What is done with one library of a fleet: looking at what it wants, and filling it with what was answered."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from regraft.embedders import Embedder
from regraft.embedders.settings import PROVIDERS, EmbedderSettings
from regraft.errors import STOPPED, BackfillStopped
from regraft.fleet import commands as fleet
from regraft.fleet.engine import Ended
from regraft.fleet.results import Row
from repair.backfill.fleet import known, wanted
from repair.backfill.fleet.collecting import Collector
from repair.backfill.fleet.keeper import Stop
from repair.backfill.run import Supply
from repair.backfill.survey import SurveyedTarget

#: The outcome of a library that a limit kept from being filled as a whole: the next run goes on with it.
LIMITED = "limit-reached"
#: Where the document of a library says how many texts it wants.
COLLECTED = "collected"


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an embedder as JSON has them, with its provider."""

    provider: str
    said: dict[str, Any]

    @classmethod
    def of(cls, settings: EmbedderSettings) -> Told:
        """Return how settings are handed on."""
        provider = next(name for name, kind in PROVIDERS.items() if isinstance(settings, kind))
        return cls(provider=provider, said=msgspec.to_builtins(settings, enc_hook=str))

    @property
    def settings(self) -> EmbedderSettings:
        """Return the settings."""
        return msgspec.convert(self.said, PROVIDERS[self.provider], dec_hook=lambda _, value: Path(value))


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done with a library, and what it gets its vectors from.

    Args:
        library: its number.
        line: its backfill.
        work: the fleet's work folder.
        embedder: the settings of the embedder.
        fills: whether the library is filled; else only what it wants is written down.
        why: what is said of a text that has no answer.
    """

    library: int
    line: fleet.Job
    work: str
    embedder: Told
    fills: bool = False
    why: str = ""

    def supply(self) -> Supply:
        """Return where the command gets its vectors from."""
        settings, work = self.embedder.settings, Path(self.work)
        if self.fills:
            opened = partial(known.opened, work, why=self.why)
            return Supply(choose=lambda _: settings, opened=opened, sampled=partial(proved, work, self.library))
        return Supply(choose=lambda _: settings, looked=Collector(work, self.library, settings), opened=_never)

    def told(self, supply: Supply, ended: Ended) -> Ended:
        """Return how a command ended, with what was found out besides."""
        if isinstance(supply.looked, Collector) and supply.looked.texts is not None and "error" not in ended.document:
            document = {**ended.document, COLLECTED: supply.looked.texts}
            return msgspec.structs.replace(ended, document=document)
        return ended


def proved(work: Path, library: int, one: SurveyedTarget) -> list[tuple[str, bytes]] | None:
    """Return what a target of a library was compared by before the fleet sent anything; None: it was not.

    A fill that was stopped and is tried again has other texts with vectors, to which there may be no answer.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    found = (sample for sample in wanted.samples_of(work, library) if sample.scope == one.outcome.scope)
    sample = next(found, None)
    return None if sample is None else sample.known


def _never(settings: EmbedderSettings) -> AbstractContextManager[Embedder]:
    """Open no embedder: who only looks must not send anything."""
    raise AssertionError(f"{settings.name} was opened to look")


def judged_rows(rows: list[Row], document: dict[str, Any], stop: Stop | None) -> list[Row]:
    """Return the rows of a library that was filled, with what its bases came to.

    Args:
        rows: as :func:`regraft.fleet.results.rows_of` makes them.
        document: of its backfill.
        stop: why the fleet sent nothing more, if it did not send all.
    """
    own, *bases = rows
    scopes = {scope["scope"]: scope for scope in document.get("scopes") or ()}
    if not scopes:
        return rows
    found = [_of_base(base, scopes[str(base.base)]) if base.base in scopes else base for base in bases]
    reason = next((scope["stopped"] for scope in scopes.values() if scope["stopped"]), None)
    own = msgspec.structs.replace(own, totals=_totals(scopes.values()))
    if reason is not None:
        own = msgspec.structs.replace(own, **_stopped(reason, stop))
    return [own, *found]


def _stopped(reason: str, stop: Stop | None) -> dict[str, Any]:
    if stop is None:
        # Nothing kept its texts from being sent: they came to it after it was looked at.
        stop = Stop(reason=reason, code=BackfillStopped.__name__, exit_status=STOPPED)
    if stop.code is None:
        return {"outcome": LIMITED, "message": reason}
    outcome = "stopped" if stop.exit_status == STOPPED else "refused"
    return {"outcome": outcome, "message": reason, "code": stop.code, "exit_status": stop.exit_status}


_COUNTS = ("eligible", "skipped_ready", "newly_ready", "shared", "ready", "failed")


def _of_base(row: Row, scope: dict[str, Any]) -> Row:
    outcome = row.outcome if scope["stopped"] is None else "stopped"
    return msgspec.structs.replace(row, outcome=outcome, message=scope["stopped"], totals=_totals([scope]))


def _totals(scopes: Any) -> str:
    every = list(scopes)
    counts = {name: sum(scope[name] for scope in every) for name in _COUNTS}
    return msgspec.json.encode(counts, order="sorted").decode()
