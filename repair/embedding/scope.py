"""Options of a backfill, and the interface to the systems: what can be filled, and where its vectors are.

A system gives a :class:`Filler`. It lists the :class:`Target` of each base (or project), which opens as a
:class:`Scope`: texts by keys, and the place of their vectors. Implementations: :mod:`repair.cherry_v2.index_vectors`,
:mod:`repair.codex_mem.note_vectors`, :mod:`repair.angel_memory.staging`, :mod:`repair.chroma.rebuild`.
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
from regraft.text import is_blank
from repair.changes.changesets import IncrementalChange
from repair.changes.plan import Unresolved
from repair.changes.run import Planner
from repair.changes.store import Store
from repair.embedding.budget import Limits

# --- options ---------------------------------------------------------------------------------------------------------

#: Chooses an embedder of the configuration for a set of model ids, and returns its settings.
ChooseEmbedder = Callable[[frozenset[str]], EmbedderSettings]


class NewModel(msgspec.Struct, frozen=True):
    """The model that a base without one gets (``--model``), and the length of its vectors."""

    model_id: str
    dimensions: int


class ReusePath(msgspec.Struct, frozen=True):
    """A source of vectors. ``is_required``: the user named it for this run, so that it must be there."""

    path: Path
    is_required: bool = True


class BackfillOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``backfill``, ``rebuild`` and codex-mem's ``reconcile``."""

    path: Path
    kind: Kind | None = None
    bases: tuple[str, ...] = ()
    dry_run: bool = False
    #: Whether the changes of a killed run are completed or undone even in a dry run, because another run follows it.
    recovers: bool = False
    limits: Limits = msgspec.field(default_factory=Limits)
    new: NewModel | None = None
    #: The length of vectors, for a base whose catalog does not say.
    dimensions: int | None = None
    probes: bool = True
    #: codex-mem only: all projects, not only that of the working directory.
    all_projects: bool = False
    #: The command that the user runs: ``backfill``, ``rebuild`` or ``reconcile``.
    command: str = "backfill"
    #: The configuration file of the embedders; None: the default one.
    config: Path | None = None
    #: Stores, backups and exports whose vectors are taken instead of sending their texts.
    reuse: tuple[ReusePath, ...] = ()


# --- scopes ----------------------------------------------------------------------------------------------------------


class TextCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the distinct texts of a scope.

    ``ready`` have a usable vector, ``pending`` have none, ``stale`` have one that no search can use. ``failed`` is the
    number of pending or stale texts that failed before, if the store itself records that.
    """

    ready: int
    pending: int
    stale: int
    failed: int = 0

    @property
    def eligible(self) -> int:
        """Number of all distinct texts, with and without a usable vector."""
        return self.ready + self.pending + self.stale

    @property
    def lacking(self) -> int:
        """Number of texts without a usable vector."""
        return self.pending + self.stale


class TextWithoutVector(msgspec.Struct, frozen=True):
    """A text without a usable vector. ``text`` is missing if it does not match its hash, the key.

    ``is_stale``: it has a vector that no search can use.
    """

    text: str | None
    is_stale: bool


def texts_to_send(texts: dict[str, TextWithoutVector]) -> dict[str, TextWithoutVector]:
    """Select the texts that can be embedded: neither blank nor different from their hash, which is the key."""
    return {key: lacking for key, lacking in texts.items() if not is_blank(lacking.text)}


class WrittenCounts(msgspec.Struct, frozen=True):
    """Vectors written: for texts that had none, and in place of unusable ones."""

    pending: int
    stale: int


class Scope(Protocol):
    """Texts by keys, and their vectors: raw little-endian float32."""

    @property
    def name(self) -> str:
        """The id of the base, or of the project, in reports and in the queue."""

    @property
    def label(self) -> str:
        """The display name of the base or project."""

    @property
    def dimensions(self) -> int | None:
        """The length of the vectors; None before the first vector if no catalog states it."""

    def survey(self) -> TextCounts:
        """Count the texts of the scope, with and without a usable vector."""

    def lacking(self) -> Iterator[str]:
        """Yield the key of every text without a usable vector, each once, in ascending order."""

    def texts(self, keys: Sequence[str]) -> dict[str, TextWithoutVector]:
        """Return the texts of the given keys that still lack a usable vector, by key."""

    def write(self, vectors: Mapping[str, bytes], now_ms: int) -> WrittenCounts:
        """Write vectors by key, in one transaction; usable vectors are not replaced."""

    def vectors(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the usable vectors for keys, including those of other scopes in the same file."""

    def failed(self, key: str, code: str, now_ms: int) -> None:
        """Record why the text ``key`` cannot be embedded (a reason code), if the store has a place for that."""

    def sample(self, count: int) -> list[tuple[str, bytes]]:
        """Return up to ``count`` texts with their usable vectors."""


class Target(Protocol):
    """A base, or a project of another system, that can be filled."""

    @property
    def base_id(self) -> str:
        """The id of the base or project."""

    @property
    def label(self) -> str:
        """The display name of the base or project."""

    @property
    def model_id(self) -> str | None:
        """The model of the base's vectors; None if unknown."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files that are written, relative to the store's root, in the order of writing."""

    @property
    def finding(self) -> str:
        """The name of the finding for missing vectors."""

    @property
    def is_new(self) -> bool:
        """Whether the base gets its model in this run, even if no text lacks a vector."""

    @property
    def is_unfinished(self) -> bool:
        """Whether an earlier run has to be finished (a rebuild), even if no text lacks a vector."""

    @property
    def is_file_shared(self) -> bool:
        """Whether its file also holds the vectors of other targets, so that those of equal texts can be copied."""

    @property
    def resolves(self) -> frozenset[str]:
        """The names of the findings that are resolved once every text has a vector."""

    @property
    def needs_dimensions(self) -> bool:
        """Whether the number of dimensions must be known before the first vector is written."""

    def finding_of(self, error: RegraftError) -> str | None:
        """Return the finding for an error that keeps the target from being filled, or None if the error is fatal."""

    def demand_fit(self, scope: Scope) -> None:
        """Check that the vectors of the target's scope agree with what its catalog states.

        Raises:
            CannotFill: they do not.
        """

    def open_scope(self, root: Path, growing: Sequence[IncrementalChange] = ()) -> AbstractContextManager[Scope]:
        """Open the texts and vectors of the target.

        Args:
            root: the store's root.
            growing: the undo record of each of :attr:`files`; the scope is then open for writing. Empty: read-only, and
                no files are left behind.

        Raises:
            RegraftError, apsw.Error, OSError, ValueError: it cannot be opened.
        """

    def finish(self, root: Path, growing: Sequence[IncrementalChange], now_ms: int, *, wrote: bool) -> None:
        """Record in the store, if it has a place for that, that a run is complete, and whether it wrote any vector.

        ``growing`` has the undo record of each of :attr:`files`.
        """


class CannotFill(Exception):
    """A target cannot be filled; ``finding`` says why."""

    def __init__(self, finding: str, reason: str) -> None:
        super().__init__(reason)
        self.finding = finding


class PreparationStep(msgspec.Struct, frozen=True):
    """A change that a run makes before it embeds, recorded as a run of its own.

    ``may_wait``: if another backfill holds the store for long, skip this step and go on.
    """

    planner: Planner
    may_wait: bool = False


class Publication(msgspec.Struct, frozen=True):
    """The change that moves vectors from where a run collected them to the store, recorded as a run of its own.

    ``finished`` is called after it, also if there was nothing to move.
    """

    planner: Planner
    finished: Callable[[Store], None]


class FillTargets(msgspec.Struct, frozen=True):
    """The targets that an embedder can fill, the bases that it cannot, and the steps before. The first step's plan is
    shown.
    """

    targets: tuple[Target, ...]
    left: tuple[Unresolved, ...]
    steps: tuple[PreparationStep, ...] = ()
    #: The step after them; None: the scopes write to the store itself.
    publication: Publication | None = None


class Filler(Protocol):
    """Backfill of one kind of store."""

    def models(self, store: Store, options: BackfillOptions) -> frozenset[str]:
        """Return the model ids of the selected bases of a store; empty if any model will do.

        Raises:
            RegraftError: the store cannot be read.
        """

    def targets(self, store: Store, settings: EmbedderSettings, options: BackfillOptions) -> FillTargets:
        """Return the selected bases of a store that an embedder with these settings can fill.

        Raises:
            RegraftError: it can fill none of them.
        """
