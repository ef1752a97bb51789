"""Giving a base that is restored its vectors, before it comes into its place (``docs/restore.md``)."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from checks.cherry_v2 import findings as v2
from regraft import embedders
from regraft.disk import sqlite
from regraft.embedders import Embedder, TextsRejected
from regraft.embedders.settings import DEFAULT_NEED, EmbedderSettings, ModelNeed, suggest_config
from regraft.errors import Declined, DimensionsMissing, EveryTextRejected
from regraft.formats.cherry_v2.catalog_reader import base_id_text
from regraft.language import tr
from regraft.report.progress import Progress
from regraft.report.suggestion import Suggestion
from regraft.text import path_argument
from repair.changes.store import open_for_change
from repair.cherry_v2 import index_vectors as backfill_scope
from repair.cherry_v2.catalog_changes import read_store_catalog
from repair.cherry_v2.restore import RestoredBase, RestoreOptions, restore
from repair.cherry_v2.restore.run import containing_store, demand_restorable
from repair.cherry_v2.restore.source import read_source
from repair.embedding.budget import BudgetedEmbedder, Limits
from repair.embedding.report import EmbeddingReport, ScopeOutcome, ScopeReport, estimate_outcome, make_embedding_report
from repair.embedding.run import EmbeddingRun, FillPart, report_stops
from repair.embedding.survey import UnnamedEmbedder
from repair.embedding.workers import CONTROL_TEXT

#: How long vectors are that are only imagined, where nobody has said how long they are to be.
_IMAGINED = 1024


class RestoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be restored, and with which embedder; ``dimensions`` None: as many as its vectors turn out to have."""

    path: Path
    settings: EmbedderSettings
    model_id: str
    dimensions: int | None
    name: str | None
    base: str | None
    now_ms: int
    kind: Any = None
    #: The file of the embedders; None: the usual one.
    config: Path | None = None


def restore_with_vectors(
    asked: RestoreRequest,
    *,
    dry_run: bool,
    progress: Progress,
    show_plan: Callable[[ScopeReport], bool] = lambda _: True,
) -> EmbeddingReport:
    """Make a new base of an old one's texts, with vectors of a new model; returns what was done.

    Args:
        asked: what is to be restored.
        dry_run: say what would be sent; nothing is sent or written.
        progress: told of each item, and of each text.
        show_plan: called with what is going to be sent before anything is; False stops here.

    Raises:
        DimensionsMissing: in a dry run, nobody knows how long the vectors are to be.
        EmbedderUnsteady, AnswerUnfit, EmbedderRefused: the embedder does not do.
        BackfillStopped, BackfillInterrupted: what was embedded is kept for the next run.
        RegraftError: see :func:`repair.cherry_v2.restore.restore`.
    """
    if dry_run:
        is_unnamed = isinstance(asked.settings, UnnamedEmbedder)
        if asked.dimensions is None and not is_unnamed:
            raise DimensionsMissing(base=asked.model_id)
        looking = _Filler(asked=asked, embedder=None, progress=progress, show_plan=show_plan)
        done = looking.restored(asked.dimensions or _IMAGINED)
        return _with_suggestion(done, asked) if is_unnamed else done
    with embedders.open_embedder(asked.settings) as embedder:
        filler = _Filler(asked=asked, embedder=embedder, progress=progress, show_plan=show_plan)
        with report_stops(asked.path, asked.settings.name, lambda: filler.written):
            return filler.restored(asked.dimensions or filler.dimensions(embedder))


def make_suggestion(asked: RestoreRequest) -> Suggestion:
    """Return what to write into a configuration that names no embedder."""
    words = ["regraft", "restore", path_argument(asked.path), "--model", asked.model_id]
    given = {"--base": asked.base, "--dimensions": asked.dimensions, "--name": asked.name, "--config": asked.config}
    for option, value in given.items():
        words += [] if value is None else [option, str(value)]
    need = ModelNeed(model_id=asked.model_id, dimensions=asked.dimensions)
    return suggest_config([need], asked.config, shlex.join(words))


def _with_suggestion(done: EmbeddingReport, asked: RestoreRequest) -> EmbeddingReport:
    scopes = [structs.replace(scope, dimensions=asked.dimensions) for scope in done.scopes]
    return structs.replace(done, embedder=None, scopes=scopes, suggestion=make_suggestion(asked))


def suggest_model(path: Path, base: str | None, kind: Any, model_id: str | None, dimensions: int | None) -> ModelNeed:
    """Return of which model a base is going to be that nobody has named an embedder for.

    It is what the user says, else the base's own model, else that of another base of the store.

    Raises:
        RegraftError: see :func:`repair.cherry_v2.restore.restore`.
    """
    root, key = containing_store(path, base)
    with open_for_change(root, kind if root == path else None, "restore") as store:
        source = read_source(store, key)
        others = sorted(read_store_catalog(store, data=False).bases, key=lambda row: base_id_text(row) != source.key)
    label = str(source.row.get("name"))
    models = [str(row["embedding_model_id"]) for row in others if row.get("embedding_model_id")]
    model = model_id or next(iter(models), DEFAULT_NEED.model_id)
    lengths = (row.get("dimensions") for row in others if row.get("embedding_model_id") == model)
    known = next((length for length in lengths if isinstance(length, int) and length > 0), None)
    return ModelNeed(model_id=model, dimensions=dimensions or known, label=label)


class _Filler(msgspec.Struct, kw_only=True):
    """Restores one base; without an embedder it only looks."""

    asked: RestoreRequest
    embedder: Embedder | None
    progress: Progress
    show_plan: Callable[[ScopeReport], bool]
    outcome: ScopeOutcome | None = None

    @property
    def written(self) -> int:
        """Return how many vectors were written."""
        return 0 if self.outcome is None else self.outcome.filled.newly_ready

    def dimensions(self, embedder: Embedder) -> int:
        """Return the length of the vectors: of those that an earlier run paid for, else of one that is asked for.

        Raises:
            NotRestored: the base cannot be restored, whatever the length is.
            EveryTextRejected: the embedder refuses even a harmless text.
        """
        known = demand_restorable(self.asked.path, self._options(_IMAGINED))
        try:
            return known or len(BudgetedEmbedder(embedder, Limits()).embedded((CONTROL_TEXT,))[0]) // 4
        except TextsRejected as rejected:
            raise EveryTextRejected(embedder=embedder.settings.name, reason=rejected.reason) from rejected

    def _options(self, dimensions: int) -> RestoreOptions:
        asked = self.asked
        wanted = RestoredBase(asked.model_id, dimensions, asked.name)
        return RestoreOptions(base=asked.base, wanted=wanted, now_ms=asked.now_ms, kind=asked.kind)

    def restored(self, dimensions: int) -> EmbeddingReport:
        """Restore it."""
        asked, options = self.asked, self._options(dimensions)
        done = restore(
            asked.path,
            options,
            lambda index: self._fill(index, dimensions),
            dry_run=self.embedder is None,
            progress=self.progress,
        )
        if self.embedder is None:
            # That they are not there yet is what is shown.
            left = [one for one in done.left if one.finding != v2.VECTOR_MISSING]
            done = structs.replace(done, left=left)
        return make_embedding_report(done, asked.settings, self.outcome)

    def _fill(self, index: Path, dimensions: int) -> None:
        asked = self.asked
        with sqlite.open_readonly(index) as db:
            base: Any = db.execute("SELECT base_id FROM meta").get
        label = asked.name or tr("The new base")
        opened = partial(backfill_scope.open_index_scope, index, str(base), label=label, dimensions=dimensions)
        settings = asked.settings
        with opened() as scope:
            tokens_of = embedders.counter(settings)
            self.outcome = outcome = estimate_outcome(
                scope, settings, tokens_of, name=scope.label, model_id=asked.model_id, dimensions=dimensions
            )
        if self.embedder is None or not outcome.survey.lacking:
            return
        if not self.show_plan(outcome.report()):
            raise Declined(path=asked.path)
        # The new base has no vectors yet: what comes back must not depend on where in a request a text stands.
        part = FillPart(outcome=outcome, sample=(), opened=partial(opened, writable=True))
        root, _ = containing_store(asked.path, asked.base)
        kind = asked.kind if root == asked.path else None
        with open_for_change(root, kind, "restore") as store:
            EmbeddingRun(path=asked.path, store=store, parts=[part], progress=self.progress).run(self.embedder)
