"""Run ``regraft reconcile`` for AngelMemory: embed missing texts and make the collection match the records.

Vectors are kept in a staging file below ``.regraft`` until the new collection is in place (``docs/angel-memory.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
from msgspec import structs

from checks.angel_memory.detect import find_providers
from regraft import embedders, identity
from regraft.disk import scratch
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import Declined, EmbedderUnnamed, WrongUsage
from regraft.formats.chroma import core
from regraft.formats.chroma.core import ChromaFailed
from regraft.identity import replace
from regraft.kinds import Kind
from regraft.report.document import Run
from regraft.report.progress import Progress
from repair.angel_memory import collection, staging, vectors
from repair.angel_memory.staging import Staging, VectorOrigin
from repair.angel_memory.vectors import CollectionBuild, CollectionState
from repair.changes import execution, files
from repair.changes.execution import RECONCILING
from repair.changes.plan import Plan
from repair.changes.run import report_plan, run_command
from repair.changes.session import recover_if_interrupted
from repair.changes.store import Store, demand_not_running, open_for_change
from repair.embedding import probing
from repair.embedding.filling import EmbeddingRun, FillPart
from repair.embedding.queue import recover_before_survey, share_store
from repair.embedding.report import EmbeddingReport, ScopeOutcome, make_embedding_report
from repair.embedding.scope import ChooseEmbedder
from repair.embedding.survey import estimate_outcome


class AngelReconcileOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command. ``provider`` is the provider in use; None: as the data folder says."""

    path: Path
    kind: Kind | None = None
    dry_run: bool = False
    provider: str | None = None
    probes: bool = True


def reconcile(
    choose: ChooseEmbedder,
    options: AngelReconcileOptions,
    *,
    progress: Progress,
    show_plan: Callable[[EmbeddingReport], bool] = lambda _: True,
) -> EmbeddingReport:
    """Make the vectors of a data folder's notes match its records.

    Args:
        choose: selects the embedder; called only if a text has to be embedded.
        options: the user's options.
        progress: receives the progress of texts and changes.
        show_plan: called with the report of the plan before anything is sent or changed. False stops the run.

    Raises:
        WrongUsage: chromadb is not installed.
        CollectionOfOtherVersion, CollectionRefused: chromadb cannot write the collection.
        AnswerUnfit, EmbedderDiffers, EmbedderUnsteady, EmbedderRefused: the embedder cannot be used.
        BackfillStopped, BackfillInterrupted: embedded texts are kept for the next run.
        RegraftError: refused, or as :func:`repair.changes.run.run_command`.
    """
    run = Run(command="reconcile", dry_run=options.dry_run, source=options.path)
    with open_for_change(options.path, options.kind, "reconcile") as store:
        run.source_kind = store.found.kind.value
        if options.dry_run:
            execution.demand_in_place(store.root)
        else:
            recover_before_survey(store)
        state = vectors.compare_collection(store.root, options.provider)
        if state is None or not state.is_needed:
            if not options.dry_run:
                # A run that was killed after its last change left its files.
                recover_if_interrupted(store)
                if state is not None:
                    files.delete_database(_staging_path(store, state))
            return make_embedding_report(report_plan(store, run, Plan()), None, None)
        reconciliation = _Reconciliation(
            store=store, options=options, run=run, state=state, choose=choose, progress=progress, show_plan=show_plan
        )
        return reconciliation.report_plan_only() if options.dry_run else reconciliation.run_and_report()


def _staging_path(store: Store, state: CollectionState) -> Path:
    """Path of the staging file with vectors for the collection of the provider in use."""
    return store.own_folder / RECONCILING / f"{state.folder.name}.sqlite"


class _Reconciliation(msgspec.Struct, kw_only=True):
    """One run of the command."""

    store: Store
    options: AngelReconcileOptions
    run: Run
    state: CollectionState
    choose: ChooseEmbedder
    progress: Progress
    show_plan: Callable[[EmbeddingReport], bool]
    settings: EmbedderSettings | None = None
    outcome: ScopeOutcome | None = None
    chromadb: str = ""
    #: Texts with known vectors, to test whether the embedder is the same.
    sample: list[tuple[str, bytes]] = msgspec.field(default_factory=list)

    @property
    def staged(self) -> Path:
        """Path of the staging file."""
        return _staging_path(self.store, self.state)

    # --- dry run -----------------------------------------------------------------------------------------------------

    def report_plan_only(self) -> EmbeddingReport:
        """Report what a run would do, as far as plain SQLite can tell."""
        self._choose()
        self._estimate(dict.fromkeys(self.state.donors(), b""))
        try:
            core.demand_chromadb()
        except WrongUsage as error:
            return structs.replace(self._plan_report(), missing=str(error))
        return self._plan_report()

    def _choose(self) -> None:
        """Set ``settings`` to an embedder if a text has to be embedded.

        Without one it remains None, and only changes that need no embedder are made.

        Raises:
            EmbedderUnnamed: no embedder is configured, and every change needs one; never in a dry run.
        """
        if self.state.waiting().keys() - self.state.donors().keys():
            try:
                self.settings = self.choose(frozenset())
            except EmbedderUnnamed:
                # A dry run can show everything but the cost.
                if self.state.is_rebuilt and not self.options.dry_run:
                    raise

    def _origin(self) -> VectorOrigin:
        """Return the provider and the model that the staged vectors are from."""
        model = "" if self.settings is None else self.settings.model
        return VectorOrigin(self.state.folder.name, model)

    def _estimate(self, kept: dict[str, bytes]) -> None:
        """Estimate the cost of the texts that must be embedded; ``kept`` has existing vectors to use, by text hash."""
        settings = self.settings
        if settings is None:
            return
        with staging.preview_staging(self.staged, self._origin(), self.state.ready(), self.state.dimension) as scope:
            scope.set_pending_texts(self.state.waiting().values())
            # Without vectors in the collection, those of a stopped run show the model.
            self.sample = self.sample or scope.sample(probing.SAMPLE_SIZE)
            scope.write(kept, identity.now_ms())
            tokens_of = embedders.counter(settings)
            self.outcome = estimate_outcome(
                scope, settings, tokens_of, name=scope.label, model_id=None, dimensions=self.state.dimension
            )

    def _plan_report(self) -> EmbeddingReport:
        """Report the plan; without an embedder, only for the texts whose vector exists already."""
        state = self.state
        embeds = self.settings is not None or state.is_rebuilt
        ready = state.waiting() if embeds else state.donors()
        plan = self._plan(state, ready.keys(), embeds=embeds)
        return make_embedding_report(report_plan(self.store, self.run, plan), self.settings, self.outcome)

    def _plan(self, state: CollectionState, ready: Collection[str], *, embeds: bool) -> Plan:
        """Plan the changes of the collection.

        ``ready`` has the hashes of texts whose vector is available; ``embeds``: whether an embedder is available.
        """
        build = CollectionBuild(
            root=self.store.root, state=state, staged=self.staged, ready=ready, chromadb=self.chromadb, embeds=embeds
        )
        return vectors.plan_vectors(build)

    # --- real run ----------------------------------------------------------------------------------------------------

    def run_and_report(self) -> EmbeddingReport:
        """Embed the texts, change the collection, and return the report."""
        self.chromadb = core.demand_chromadb()
        self._choose()
        demand_not_running(self.store)
        files.flush_logs(self.state.folder.chroma)
        kept = self._read_kept_vectors()
        self._estimate(kept)
        if not self.show_plan(self._plan_report()):
            raise Declined(path=self.options.path)
        settings, outcome = self.settings, self.outcome
        if settings is None or outcome is None or not outcome.survey.lacking:
            with share_store(self.store), self._open_staging(kept):
                pass
        else:
            sample = self.sample if self.options.probes else None
            part = FillPart(outcome=outcome, sample=sample, opened=partial(self._open_staging, kept))
            embedding = EmbeddingRun(path=self.options.path, store=self.store, parts=[part], progress=self.progress)
            with embedders.open_embedder(settings) as embedder:
                embedding.run(embedder)
        run_and_report = run_command(
            "reconcile", self.options.path, self._plan_publishing, kind=self.options.kind, progress=self.progress
        )
        files.delete_database(self.staged)
        return make_embedding_report(run_and_report, self.settings, self.outcome)

    @contextmanager
    def _open_staging(self, kept: dict[str, bytes]) -> Iterator[Staging]:
        """Open the staging file for writing, with the vectors of ``kept`` (by text hash) in it.

        If the run stops, paid vectors are kept and an empty file is deleted.
        """
        try:
            with staging.open_staging(self.staged, self._origin(), self.state.ready(), self.state.dimension) as scope:
                scope.set_pending_texts(self.state.waiting().values())
                scope.write(kept, identity.now_ms())
                yield scope
        except BaseException:
            if not staging.has_vectors(self.staged):
                files.delete_database(self.staged)
            raise

    def _read_kept_vectors(self) -> dict[str, bytes]:
        """Read the existing vectors with chromadb; return those that texts without a vector can use, by text hash."""
        state = self.state
        if not state.folder.database.is_file():
            return {}
        sampled = sorted(state.kept.values(), key=lambda entry: (len(entry.document or ""), entry.id))
        sampled = sampled[: probing.SAMPLE_SIZE]
        wanted = [entry.id for entry in (*state.donors().values(), *sampled)]
        with (
            scratch.temporary_folder() as place,
            core.reporting_refusals(state.folder.chroma, self.chromadb),
        ):
            found = self._read_from_copy(vectors.copy_chroma_folder(state, place), wanted)
        state = self.state
        sound = {key: vector for key, vector in found.items() if vectors.is_usable_vector(vector, state.dimension)}
        self.sample = [(str(entry.document), sound[entry.id]) for entry in sampled if entry.id in sound]
        return {key: sound[entry.id] for key, entry in state.donors().items() if entry.id in sound}

    def _read_from_copy(self, copy: Path, keys: list[str]) -> dict[str, bytes]:
        """Read the vectors of the entries ``keys`` (ids) from a copy of Chroma's folder; returns them by id.

        If chromadb cannot read the copy, only vectors that plain SQLite can read are kept.

        Raises:
            ChromaFailed: another version of chromadb wrote the copy.
        """
        try:
            return collection.read_vectors(copy, keys)
        except ChromaFailed as failed:
            if failed.is_other_version:
                raise
            if self.state.providers.is_changed:
                return {}
            found = vectors.read_plain_vectors(self.state.folder)
            sound = {key: one for key, one in found.items() if vectors.is_usable_vector(one, self.state.dimension)}
            self.state = self.state.without_files(str(failed), sound)
            self._choose()
            return sound

    def _plan_publishing(self, store: Store) -> Plan:
        """Plan the replacement of the collection, from the present state of the records; empty if nothing is needed."""
        state = vectors.compare_collection(store.root, self.options.provider)
        if state is None or not state.is_needed:
            return Plan()
        if self.state.unreadable is not None:
            state = state.without_files(self.state.unreadable, vectors.read_plain_vectors(state.folder))
        with staging.read_staging(self.staged) as scope:
            ready = scope.ready_keys()
        plan = self._plan(state, ready, embeds=self.settings is not None)
        if self.options.provider is not None and find_providers(store.root).in_use != state.folder:
            # The audit does not know which provider the user named, so it cannot confirm the result.
            return replace(plan, resolves=set())
        return plan
