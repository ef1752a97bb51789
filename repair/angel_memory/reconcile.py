"""``regraft reconcile`` for AngelMemory: the system's own sync, and what it forgets (``docs/angel-memory.md``).

What has to be embedded waits in a staging file below ``.regraft`` until the collection is built and in its place.
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
from regraft.disk import durable
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import Declined, EmbedderUnnamed, WrongUsage
from regraft.identity import replace
from regraft.kinds import Kind
from regraft.ledger import ledger
from regraft.report.document import Run
from regraft.report.progress import Progress
from repair.angel_memory import collection, staging, vectors
from repair.angel_memory.collection import ChromaFailed
from repair.angel_memory.staging import Staging, VectorOrigin
from repair.angel_memory.vectors import CollectionBuild, CollectionState
from repair.changes import files
from repair.changes.execution import RECONCILING
from repair.changes.plan import Plan
from repair.changes.run import report_plan, run_command
from repair.changes.store import Store, demand_not_running, open_for_change
from repair.embedding import probing
from repair.embedding.queue import settle_killed_runs, share_store
from repair.embedding.report import EmbeddingReport, ScopeOutcome, estimate_outcome, make_embedding_report
from repair.embedding.run import EmbeddingRun, FillPart
from repair.embedding.scope import ChooseEmbedder


class AngelReconcileOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asks for; ``provider`` is the one in use, None: what the data folder tells."""

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
    """Make the vectors of a data folder's notes follow its records.

    Args:
        choose: says which embedder; asked only where a text has to be embedded.
        options: what is asked for.
        progress: told of each text and change.
        show_plan: called with the plan's report before anything is sent or changed; False stops here.

    Raises:
        WrongUsage: chromadb is not installed.
        CollectionOfOtherVersion, CollectionRefused: chromadb cannot make the collection.
        AnswerUnfit, EmbedderDiffers, EmbedderUnsteady, EmbedderRefused: the embedder does not do.
        BackfillStopped, BackfillInterrupted: what was embedded is kept for the next run.
        RegraftError: refused, or as :func:`repair.changes.run.run_command`.
    """
    run = Run(command="reconcile", dry_run=options.dry_run, source=options.path)
    with open_for_change(options.path, options.kind, "reconcile") as store:
        run.source_kind = store.found.kind.value
        if not options.dry_run and _is_unsettled(store):
            # A folder may be on its way: what is not in its place seems to be missing.
            demand_not_running(store)
            settle_killed_runs(store)
        look = vectors.compare_collection(store.root, options.provider)
        if look is None or not look.is_needed:
            if look is not None and not options.dry_run:
                # Killed after its last change, a run has left what nobody needs.
                staging.delete_staging(_staged(store, look))
            return make_embedding_report(report_plan(store, run, Plan()), None, None)
        work = _Work(
            store=store, options=options, run=run, look=look, choose=choose, progress=progress, show_plan=show_plan
        )
        return work.planned() if options.dry_run else work.done()


def _is_unsettled(store: Store) -> bool:
    """Tell whether a run was killed in the midst of a change."""
    states = {change.state for run in ledger.read_runs(store.root) for change in run.changes}
    return not states.isdisjoint(("intended", "undoing"))


def _staged(store: Store, look: CollectionState) -> Path:
    return store.own / RECONCILING / f"{look.folder.name}.sqlite"


class _Work(msgspec.Struct, kw_only=True):
    """One run; used once."""

    store: Store
    options: AngelReconcileOptions
    run: Run
    look: CollectionState
    choose: ChooseEmbedder
    progress: Progress
    show_plan: Callable[[EmbeddingReport], bool]
    settings: EmbedderSettings | None = None
    outcome: ScopeOutcome | None = None
    chromadb: str = ""
    #: Texts with their vectors, to be compared with what an embedder says.
    sample: list[tuple[str, bytes]] = msgspec.field(default_factory=list)

    @property
    def staged(self) -> Path:
        """Return where the staging file is."""
        return _staged(self.store, self.look)

    # --- looking -----------------------------------------------------------------------------------------------------

    def planned(self) -> EmbeddingReport:
        """Return what a run would do, as far as plain SQLite can tell."""
        self._choose()
        self._estimate(dict.fromkeys(self.look.donors(), b""))
        try:
            collection.demand_chromadb()
        except WrongUsage as error:
            return structs.replace(self._planned(), missing=str(error))
        return self._planned()

    def _choose(self) -> None:
        """Ask which embedder is meant, where one is needed; without one, what goes without is done.

        Raises:
            EmbedderUnnamed: nothing goes without.
        """
        if self.look.waiting().keys() - self.look.donors().keys():
            try:
                self.settings = self.choose(frozenset())
            except EmbedderUnnamed:
                # Of what has to be done, a plan can tell all but what it takes.
                if self.look.is_rebuilt and not self.options.dry_run:
                    raise

    def _origin(self) -> VectorOrigin:
        model = "" if self.settings is None else self.settings.model
        return VectorOrigin(self.look.folder.name, model)

    def _estimate(self, kept: dict[str, bytes]) -> None:
        """Look what has to be embedded besides what is kept, and what that takes."""
        settings = self.settings
        if settings is None:
            return
        with staging.preview_staging(self.staged, self._origin(), self.look.ready(), self.look.dimension) as scope:
            scope.wait_for(self.look.waiting().values())
            scope.write(kept, identity.now_ms())
            tokens_of = embedders.counter(settings)
            self.outcome = estimate_outcome(
                scope, settings, tokens_of, name=scope.label, model_id=None, dimensions=self.look.dimension
            )

    def _planned(self) -> EmbeddingReport:
        look = self.look
        embeds = self.settings is not None or look.is_rebuilt
        ready = look.waiting() if embeds else look.donors()
        plan = self._plan(look, ready.keys(), embeds=embeds)
        return make_embedding_report(report_plan(self.store, self.run, plan), self.settings, self.outcome)

    def _plan(self, look: CollectionState, ready: Collection[str], *, embeds: bool) -> Plan:
        """Return the plan of a collection with the vectors of these texts."""
        build = CollectionBuild(
            root=self.store.root, look=look, staged=self.staged, ready=ready, chromadb=self.chromadb, embeds=embeds
        )
        return vectors.plan_vectors(build)

    # --- doing -------------------------------------------------------------------------------------------------------

    def done(self) -> EmbeddingReport:
        """Do it, and return what was done."""
        self.chromadb = collection.demand_chromadb()
        self._choose()
        demand_not_running(self.store)
        files.flush_logs(self.look.folder.chroma)
        kept = self._surveyed()
        self._estimate(kept)
        if not self.show_plan(self._planned()):
            raise Declined(path=self.options.path)
        settings, outcome = self.settings, self.outcome
        if settings is None or outcome is None or not outcome.survey.lacking:
            with share_store(self.store), self._opened(kept):
                pass
        else:
            sample = self.sample if self.options.probes else None
            part = FillPart(outcome=outcome, sample=sample, opened=partial(self._opened, kept))
            embedding = EmbeddingRun(path=self.options.path, store=self.store, parts=[part], progress=self.progress)
            with embedders.open_embedder(settings) as embedder:
                embedding.run(embedder)
        done = run_command(
            "reconcile", self.options.path, self._publishing, kind=self.options.kind, progress=self.progress
        )
        staging.delete_staging(self.staged)
        return make_embedding_report(done, self.settings, self.outcome)

    @contextmanager
    def _opened(self, kept: dict[str, bytes]) -> Iterator[Staging]:
        """Open the staging file; of a run that stops, what was paid for stays, and what holds nothing goes."""
        try:
            with staging.open_staging(self.staged, self._origin(), self.look.ready(), self.look.dimension) as scope:
                scope.wait_for(self.look.waiting().values())
                scope.write(kept, identity.now_ms())
                yield scope
        except BaseException:
            if not staging.has_vectors(self.staged):
                staging.delete_staging(self.staged)
            raise

    def _surveyed(self) -> dict[str, bytes]:
        """Return the vectors that are kept and needed elsewhere, by the hash of their text; chromadb reads them all."""
        look = self.look
        if not look.folder.database.is_file():
            return {}
        sampled = sorted(look.kept.values(), key=lambda entry: (len(entry.document or ""), entry.id))
        sampled = sampled[: probing.SAMPLE_SIZE]
        wanted = [entry.id for entry in (*look.donors().values(), *sampled)]
        with (
            durable.temporary_folder() as place,
            vectors.refusals(look.folder.chroma, self.chromadb),
        ):
            found = self._read(vectors.copy_chroma_folder(look, place), wanted)
        look = self.look
        sound = {key: vector for key, vector in found.items() if vectors.is_usable_vector(vector, look.dimension)}
        self.sample = [(str(entry.document), sound[entry.id]) for entry in sampled if entry.id in sound]
        return {key: sound[entry.id] for key, entry in look.donors().items() if entry.id in sound}

    def _read(self, copy: Path, keys: list[str]) -> dict[str, bytes]:
        """Return vectors of a copy; where chromadb cannot read it, those that plain SQLite can, and nothing else stays.

        Raises:
            ChromaFailed: another version of chromadb wrote it.
        """
        try:
            return collection.read_vectors(copy, keys)
        except ChromaFailed as failed:
            if failed.is_other_version:
                raise
            if self.look.providers.is_changed:
                return {}
            found = vectors.read_plain_vectors(self.look.folder)
            sound = {key: one for key, one in found.items() if vectors.is_usable_vector(one, self.look.dimension)}
            self.look = self.look.without_files(str(failed), sound)
            self._choose()
            return sound

    def _publishing(self, store: Store) -> Plan:
        """Return the plan that puts the new collection into its place, by what is there now."""
        look = vectors.compare_collection(store.root, self.options.provider)
        if look is None or not look.is_needed:
            return Plan()
        if self.look.unreadable is not None:
            look = look.without_files(self.look.unreadable, vectors.read_plain_vectors(look.folder))
        with staging.read_staging(self.staged) as scope:
            ready = scope.ready_keys()
        plan = self._plan(look, ready, embeds=self.settings is not None)
        if self.options.provider is not None and find_providers(store.root).in_use != look.folder:
            # What the user says, nobody else can know.
            return replace(plan, resolves=set())
        return plan
