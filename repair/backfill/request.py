"""What the user asks of backfill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from regraft.embedders.settings import EmbedderSettings
from regraft.kinds import Kind
from repair.backfill.budget import Limits

#: Returns the settings of the embedder that is meant, by the ids of the models of what is meant.
Choice = Callable[[frozenset[str]], EmbedderSettings]


class NewModel(msgspec.Struct, frozen=True):
    """The user's word on the model of a base that has none: its id, and its dimensions."""

    model_id: str
    dimensions: int


class BackfillOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asks for: which store and bases, how much, and the model of bases that have none."""

    path: Path
    kind: Kind | None = None
    bases: tuple[str, ...] = ()
    dry_run: bool = False
    limits: Limits = msgspec.field(default_factory=Limits)
    new: NewModel | None = None
    #: Of vectors where no catalog says so.
    dimensions: int | None = None
    probes: bool = True
    #: Of codex-mem: every project, not just the one at hand.
    all_projects: bool = False
    #: What the user runs: ``backfill``, ``rebuild`` or ``reconcile``.
    command: str = "backfill"
    #: The file of the embedders; None: the usual one.
    config: Path | None = None
