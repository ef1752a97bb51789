"""What a fleet embedded, or would embed, as its document has it (``docs/commands.md``, "fleet")."""

from __future__ import annotations

import msgspec

from regraft.fleet.run import FleetReport
from repair.backfill.estimate import Estimate
from repair.backfill.report import EmbedderName


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What comparing with vectors that are there took; ``texts`` are different ones."""

    texts: int
    requests: int
    tokens: int


class SentReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet sent.

    ``wanted`` texts lack a vector, of so many ``libraries`` together; ``distinct`` of them were to be sent: each once,
    and not those that an earlier run had an answer to. ``answered`` got a vector by these requests, ``failed`` were
    rejected. ``stopped`` says why not all were sent.
    """

    libraries: int
    wanted: int
    distinct: int
    answered: int
    failed: int
    requests: int
    tokens: int
    cost: float | None
    currency: str
    stopped: str | None
    planned: Estimate
    probe: ProbeReport


class FleetBackfillReport(FleetReport, kw_only=True):
    """What became of a fleet, and what was sent for it to which embedder."""

    embedder: EmbedderName
    sent: SentReport
