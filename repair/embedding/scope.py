"""What backfill needs to know of a store: which texts lack a vector, and where a vector goes.

An index file has one scope, and so has every project of a database whose vectors follow from its notes. A target is
what a scope is opened from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from regraft.embedders.settings import EmbedderSettings
from regraft.errors import RegraftError
from regraft.kinds import Kind
from repair.changes.changesets import IncrementalChange
from repair.changes.plan import Unresolved
from repair.changes.run import Planner
from repair.changes.store import Store
from repair.embedding.budget import Limits

# What the user asks of backfill.


#: Returns the settings of the embedder that is meant, by the ids of the models of what is meant.
ChooseEmbedder = Callable[[frozenset[str]], EmbedderSettings]


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


class TextCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many distinct texts a scope has.

    ``ready`` have a good vector, ``pending`` have none, ``stale`` have one that no search can use. ``failed`` of these
    two failed before, where the store itself remembers that.
    """

    ready: int
    pending: int
    stale: int
    failed: int = 0

    @property
    def eligible(self) -> int:
        """Return how many there are."""
        return self.ready + self.pending + self.stale

    @property
    def lacking(self) -> int:
        """Return how many have no good vector."""
        return self.pending + self.stale


class TextWithoutVector(msgspec.Struct, frozen=True):
    """A text without a good vector: None where it is not the text that its key stands for.

    ``is_stale``: it has a vector, which no search can use.
    """

    text: str | None
    is_stale: bool


class WrittenCounts(msgspec.Struct, frozen=True):
    """What became of vectors: those of texts that had none, and those that took the place of a bad one."""

    pending: int
    stale: int


class Scope(Protocol):
    """Texts by keys, and the place of their vectors; vectors are raw little-endian float32."""

    @property
    def name(self) -> str:
        """Return its name in documents and in the queue: a base's id."""

    @property
    def label(self) -> str:
        """Return what a person calls it."""

    @property
    def dimensions(self) -> int | None:
        """Return how many numbers its vectors have; None where nobody has said and none are there."""

    def survey(self) -> TextCounts:
        """Count its texts."""

    def lacking(self) -> Iterator[str]:
        """Return the key of every text without a good vector, each once, in order."""

    def texts(self, keys: Sequence[str]) -> dict[str, TextWithoutVector]:
        """Return the texts of those keys that still lack a good vector."""

    def write(self, vectors: Mapping[str, bytes], now_ms: int) -> WrittenCounts:
        """Write vectors in one transaction; a good one that is there stays."""

    def vectors(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the good vectors that lie anywhere in the place of vectors, of these keys."""

    def failed(self, key: str, code: str, now_ms: int) -> None:
        """Take note that a text cannot be embedded, where the store has a place for that."""

    def sample(self, count: int) -> list[tuple[str, bytes]]:
        """Return some texts that have a good vector, with it."""


class Target(Protocol):
    """What can be filled: a base, or what has its place in another system."""

    @property
    def base_id(self) -> str:
        """Return its id."""

    @property
    def label(self) -> str:
        """Return what a person calls it."""

    @property
    def model_id(self) -> str | None:
        """Return the model of its vectors; None where nothing says so."""

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files that are written to, below the store's root, in the order in which they are."""

    @property
    def finding(self) -> str:
        """Return the name of the finding that says that vectors are missing."""

    @property
    def is_new(self) -> bool:
        """Tell whether it is to get a model, whether or not it lacks a vector."""

    @property
    def is_unfinished(self) -> bool:
        """Tell whether an earlier run began what only the end of a run finishes, whether or not it lacks a vector."""

    @property
    def shares_with_itself(self) -> bool:
        """Tell whether the place of its vectors holds those of others, too."""

    @property
    def resolves(self) -> frozenset[str]:
        """Return the names of the findings that are gone once no text of it lacks a vector."""

    @property
    def needs_dimensions(self) -> bool:
        """Tell whether somebody has to say how long its first vectors are to be."""

    def finding_of(self, error: RegraftError) -> str | None:
        """Return the name of the finding that keeps it from being filled; None: the error is of something else."""

    def demand_fit(self, scope: Scope) -> None:
        """Refuse a scope whose vectors are at odds with what is known of them.

        Raises:
            Unfit
        """

    def opened(self, root: Path, growing: Sequence[IncrementalChange] = ()) -> AbstractContextManager[Scope]:
        """Open its scope; for writing with what records each of its files, else without leaving anything beside them.

        Raises:
            RegraftError, apsw.Error, OSError, ValueError: it cannot be opened.
        """

    def finish(self, root: Path, growing: Sequence[IncrementalChange], now_ms: int, *, wrote: bool) -> None:
        """Take note that all was done that a run meant to do, and whether that was anything, where there is a place."""


class CannotFill(Exception):
    """What cannot be filled, with the finding that says why."""

    def __init__(self, finding: str, reason: str) -> None:
        super().__init__(reason)
        self.finding = finding


class PreparationStep(msgspec.Struct, frozen=True):
    """What a run does before anything is embedded, as a run of its own.

    ``may_wait``: where another backfill is long at work, this has to wait for another time, and the rest goes on.
    """

    planner: Planner
    may_wait: bool = False


class FillTargets(msgspec.Struct, frozen=True):
    """What an embedder can fill, the rest, and what is done first: the plan of the first step is shown before."""

    targets: tuple[Target, ...]
    left: tuple[Unresolved, ...]
    steps: tuple[PreparationStep, ...] = ()


class Filler(Protocol):
    """What backfill has to know of a kind of store."""

    def models(self, store: Store, options: BackfillOptions) -> frozenset[str]:
        """Return the ids of the models of what is meant.

        Raises:
            RegraftError: it cannot be told.
        """

    def targets(self, store: Store, settings: EmbedderSettings, options: BackfillOptions) -> FillTargets:
        """Return what an embedder can fill of what is meant.

        Raises:
            RegraftError: nothing at all.
        """
