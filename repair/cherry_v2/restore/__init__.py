"""Make a new base with a new model from the texts of one that failed, or has another model (``docs/restore.md``).

The base is built in ``.regraft/restoring`` and filled there, so that vectors that were paid for survive any stop; then
it is published as a whole. :func:`restore` does this with any source of vectors, :func:`restore_with_vectors` with an
embedder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from checks.audit.collector import Level
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import MODES, is_tombstone
from regraft import embedders, language
from regraft.disk import durable, file_paths, scratch, sqlite, untrusted_sqlite, writable
from regraft.embedders import Embedder, TextsRejected
from regraft.embedders.settings import DEFAULT_NEED, EmbedderSettings, ModelNeed, suggest_config
from regraft.errors import ConsentMissing, Declined, DimensionsMissing, EveryTextRejected, NotRestored, PlanOutdated
from regraft.formats.cherry_v2.catalog_generation import BASES, ITEMS
from regraft.formats.cherry_v2.catalog_reader import base_id_text
from regraft.formats.cherry_v2.index.schema import stated_dimensions
from regraft.formats.cherry_v2.layout import CATALOG_FILE, KNOWLEDGE_FOLDER, PROFILE_DATABASE, open_surrounding_tree
from regraft.kinds import Kind
from regraft.language import format_count, tr
from regraft.report import notices
from regraft.report.document import Suggestion
from regraft.report.progress import Progress
from regraft.stores.locate import RAW_FOLDER
from regraft.text import is_blank, join_command, path_argument
from repair.changes import execution, files
from repair.changes.execution import RESTORING
from repair.changes.plan import Action, FileChange, Plan, RowsChange, Unresolved
from repair.changes.run import ChangeReport, run_command
from repair.changes.session import open_session, recover_if_interrupted
from repair.changes.store import Store, demand_not_running, open_for_change
from repair.cherry_v2 import index_vectors as backfill_scope
from repair.cherry_v2.base_models import ModelUnusable, insert_model
from repair.cherry_v2.catalog_changes import MODEL_TABLES, CatalogStatements, make_catalog_change
from repair.cherry_v2.old_base import ItemCopy, RestoredBase, RestoreSource, read_source
from repair.cherry_v2.restore.build import BuiltBase, build_base, count_missing_vectors, demand_text, paid_dimensions
from repair.embedding import probing
from repair.embedding.budget import BudgetedEmbedder, Limits
from repair.embedding.filling import EmbeddingRun, FillPart, report_stops
from repair.embedding.report import EmbeddingReport, ScopeOutcome, ScopeReport, make_embedding_report
from repair.embedding.reuse import open_reuse
from repair.embedding.scope import ReusePath
from repair.embedding.sender import CONTROL_TEXT
from repair.embedding.survey import UnnamedEmbedder, estimate_outcome

# --- publication of a base that was built: its folder, files of the old base, catalog rows ---------------------------


def new_rows(source: RestoreSource, restored: RestoredBase, items: Sequence[ItemCopy], now_ms: int) -> RowsChange:
    """Plan the catalog rows of the wanted base and its ``items``, and of its model if the catalog does not have that.

    Raises:
        NotRestored: the catalog cannot have the model.
        ProfileUnknown: the profile is of an unknown version of the application.
    """
    base = restored.base_id(source.key)
    statements = CatalogStatements.of(source.store)
    statements.bases.add(source.key)
    for table in (BASES, ITEMS):
        statements.tables.insertable_columns(table, ())
    try:
        insert_model(statements, source.store, source.catalog, restored.model_id, base, now_ms)
    except ModelUnusable as reason:
        raise NotRestored(path=source.store.path, base=source.key, reason=reason) from reason
    row = source.row
    # The search settings of the old base are kept if they are valid.
    is_search_kept = row.get("embedding_model_id") is not None and row.get("search_mode") in MODES
    rerank = row.get("rerank_model_id")
    changed = {
        "id": base,
        "name": row.get("name") if is_blank(restored.name) else restored.name,
        "dimensions": restored.dimensions,
        "embedding_model_id": restored.model_id,
        "status": "completed",
        "error": None,
        **({} if is_search_kept else statements.tables.search_settings(restored.model_id)),
        "rerank_model_id": rerank if rerank in source.catalog.model_ids or rerank == restored.model_id else None,
        "created_at": now_ms,
        "updated_at": now_ms,
    }
    statements.copy_row(BASES, source.key, changed)
    for item in items:
        fields = {"id": item.id, "base_id": base, "group_id": item.group, "status": item.status}
        statements.copy_row(ITEMS, item.old, {**fields, "error": item.error})
        if item.path is not None:
            # The item gets another path, so what was indexed under the old one is irrelevant.
            moved = "json_set(json_remove(data, '$.indexedRelativePath'), '$.relativePath', ?)"
            statements.made.append((f"UPDATE knowledge_item SET data = {moved} WHERE id = ?", (item.path, item.id), ()))
    message = tr(
        "add it to the catalog with the model {model_id}, {dimensions} dimensions, and {items}",
        model_id=restored.model_id,
        dimensions=restored.dimensions,
        items=format_count(len(items), "item"),
    )
    statements.actions.append(
        Action(action="insert-base", message=message, base=base, count=1 + len(items), bytes=statements.bytes)
    )
    return make_catalog_change(statements, MODEL_TABLES)


def build_folder(source: RestoreSource, restored: RestoredBase) -> Path:
    """Return the folder where the wanted base is built, which need not exist.

    Raises:
        NotRestored: the catalog has that base already.
    """
    base = restored.base_id(source.key)
    if base in source.catalog.rows_by_base:
        reason = tr(
            "it was restored already, as base {base} with the model {model_id}; regraft backfill embeds texts without "
            "a vector there, and --name or another model restores it once more",
            base=base,
            model_id=restored.model_id,
        )
        raise NotRestored(path=source.store.path, base=source.key, reason=reason)
    return source.store.own_folder / RESTORING / base


def discard_build(staged: Path) -> None:
    """Remove the folder ``staged``, in which a base was built."""
    durable.remove_tree(staged)
    files.remove_empty_folders(staged.parent, staged.parent.parent)


def publish_plan(source: RestoreSource, wanted: RestoredBase, restored: BuiltBase, staged: Path, now_ms: int) -> Plan:
    """Plan to publish the wanted base, of which ``restored`` is the record and ``staged`` the folder. Reads only.

    Vectors may be missing: then the plan is for a dry run.

    Raises:
        NotRestored: the catalog has the base already, or cannot have its model.
        VerificationFailed: the build is damaged.
        PlanOutdated: the old base was changed after the build.
        ProfileUnknown: the profile is of an unknown version of the application.
    """
    build_folder(source, wanted)
    made = Plan()
    base, index = restored.base, restored.index(staged)
    source.store.names[base] = wanted.name or str(source.row.get("name"))
    if source.mark() != restored.mark:
        raise PlanOutdated(
            path=source.index.parent.parent, reason=tr("the base was changed while its texts were embedded")
        )
    missing = count_missing_vectors(index, base, wanted.dimensions)
    name = source.folder(base)
    copied = sum(file_paths.stat(source.raw / path).st_size for path in restored.files)
    size = copied + files.size_on_disk(restored.folder(staged))
    message = tr(
        "write the base: {texts} in {units}, and {files} of the old one",
        texts=format_count(restored.texts, "text"),
        units=format_count(restored.units, "unit"),
        files=format_count(len(restored.files), "file"),
    )
    action = Action(action="write-base", message=message, base=base, subject=name, count=restored.units, bytes=size)
    guesses = [
        Action(
            action="guess-encoding",
            message=tr("read {path} as {encoding}, guessed from its content", path=path, encoding=encoding),
            base=base,
            subject=path,
        )
        for path, encoding in restored.guessed.items()
    ]
    make = _copy_files(restored.folder(staged), source.raw, restored.files)
    made.changes.append(FileChange(path=name, actions=(action, *guesses), make=make, bytes=size))
    made.changes.append(new_rows(source, wanted, restored.items, now_ms))
    made.left += _report_left(restored)
    made.left += _report_empty_folders(source, restored)
    if missing:
        message = tr(
            "{texts} without a vector; run regraft backfill to embed them", texts=format_count(missing, "text")
        )
        made.left.append(
            Unresolved(finding=v2.VECTOR_MISSING, reason=message, base=base, count=missing, severity="error")
        )
    # Findings about rows of the old base, which their copies may have as well.
    found = source.store.audit(Level.QUICK, frozenset({source.key})).findings
    row_findings = (v2.CATALOG_VALUE, v2.BASE_STATUS)
    inherited = frozenset(one.name for one in found if one.name.startswith("item.") or one.name in row_findings)
    made.new_bases[base], made.lists_inherited = inherited, True
    return made


def _report_empty_folders(source: RestoreSource, restored: BuiltBase) -> Iterator[Unresolved]:
    """Report folder items of the new base that the application's upgrade left behind, and that contain no text."""
    rows = {row["id"]: row for row in source.items}
    for item in restored.items:
        if is_tombstone({**rows[item.old], "status": item.status, "error": item.error}):
            reason = tr("a folder that the application's upgrade left behind; the index has no texts of it")
            yield Unresolved(finding=v2.ITEM_TOMBSTONE, reason=reason, base=restored.base, subject=item.id)


def _report_left(restored: BuiltBase) -> Iterator[Unresolved]:
    """Report the parts of the old base that the build left out."""
    for one in restored.left:
        severity: notices.Severity = "note" if one.severity == "note" else "warning"
        # The record keeps reasons in English, since another run may have built the base.
        reason = language.translate_kept_text(one.reason)
        yield Unresolved(finding=one.finding, reason=reason, base=restored.base, subject=one.item, severity=severity)


def _copy_files(built: Path, raw: Path, paths: tuple[str, ...]) -> Callable[[Path], None]:
    """Return a function that fills a new folder with links to the files of ``built``, and copies of files in ``raw``.

    ``paths`` are the paths of the latter, relative to ``raw``.
    """

    def make(new: Path) -> None:
        """Fill the new folder; raises PlanOutdated if a file of the old base is gone."""
        for folder, _, names in file_paths.walk(built, durable.raise_unless_missing):
            for name in names:
                file = Path(folder) / name
                if untrusted_sqlite.is_database(file):
                    files.flush_log(file)
                if name.endswith(untrusted_sqlite.COMPANION_SUFFIXES):
                    continue
                # A hard link: the original, which has paid vectors, stays until the run is complete.
                target = new / file.relative_to(built)
                durable.make_folders(target.parent, flush=False)
                if not durable.try_link(file, target):
                    durable.copy_file(file, target)
        for path in paths:
            target = new / RAW_FOLDER / path
            durable.make_folders(target.parent, flush=False)
            try:
                durable.copy_file(raw / path, target)
            except FileNotFoundError as error:
                raise PlanOutdated(path=raw / path, reason=tr("it is gone")) from error

    return make


#: Writes vectors into an index until another run would send nothing more; raises to stop, and the next run continues.
#: In a dry run it gets a temporary index, and must only read it.
Fill = Callable[[Path], None]
_COMMAND = "restore"


class RestoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The base to restore (its v2 or v1 id; None: the only one), the wanted base, and the run's time in ms."""

    base: str | None
    wanted: RestoredBase
    now_ms: int
    kind: Kind | None = None


def restore(
    path: Path,
    options: RestoreOptions,
    fill: Fill,
    *,
    dry_run: bool = False,
    progress: Progress,
    show_plan: Callable[[ChangeReport], bool] = lambda _: True,
) -> ChangeReport:
    """Make a new base from the texts of an old one, with the vectors that ``fill`` writes, and return the report.

    Nothing outside ``.regraft`` is written before all vectors are there.

    Args:
        path: the store, or a base's folder or index in it.
        options: the old base and the new one.
        fill: writes vectors to an index file.
        dry_run: build in a temporary folder, and change nothing.
        progress: notified of each item.
        show_plan: called with the plan before the base is published; returns False to stop.

    Raises:
        RegraftError: refused (exit status 2), stopped midway (3) or interrupted (130).
    """
    root, base = containing_store(path, options.base)
    kind = options.kind if root == path else None
    with open_for_change(root, kind, _COMMAND) as store:
        if dry_run:
            with scratch.temporary_folder() as work:
                source = read_source(store, base)
                build_folder(source, options.wanted)
                restored = build_base(source, options.wanted, work, options.now_ms, progress)
                fill(restored.index(work))
                planner = partial(_plan, base=base, options=options, restored=restored, staged=work)
                return run_command(_COMMAND, root, planner, kind=kind, dry_run=True, progress=progress)
        restored, staged, is_new = _build(store, base, options, progress)
    try:
        fill(restored.index(staged))
    except (Declined, ConsentMissing):
        # Only what this run built: an earlier run may have paid for vectors.
        if is_new:
            with writable.allow_writes(store.root):
                discard_build(staged)
        raise
    planner = partial(_plan, base=base, options=options, restored=restored, staged=staged)
    done = run_command(_COMMAND, root, planner, kind=kind, progress=progress, show_plan=show_plan)
    with writable.allow_writes(store.root):
        discard_build(staged)
    return done


def demand_restorable(path: Path, options: RestoreOptions) -> int | None:
    """Check, before any vector is paid for, that a base can be restored.

    ``options.wanted.dimensions`` may be any number.

    Returns:
        The dimensions of the vectors that an earlier run has paid for, or None.

    Raises:
        NotRestored: it was restored already, has no text, or the catalog cannot have its model.
        RegraftError: see :func:`restore`.
    """
    root, base = containing_store(path, options.base)
    with open_for_change(root, options.kind if root == path else None, _COMMAND) as store:
        source = read_source(store, base)
        lengths = (row.get("dimensions") for row in source.catalog.bases)
        for dimensions in dict.fromkeys(one for one in lengths if isinstance(one, int)):
            build_folder(source, structs.replace(options.wanted, dimensions=dimensions))
        known = paid_dimensions(source, options.wanted.model_id, store.own_folder / execution.RESTORING)
        if known is None:
            new_rows(source, options.wanted, (), options.now_ms)
            demand_text(source, options.wanted)
        return known


def containing_store(path: Path, base: str | None) -> tuple[Path, str | None]:
    """Return the library or profile that contains the base folder or index file ``path``, and that base's id.

    Other paths, and a ``base`` that is given, are returned unchanged.
    """
    absolute = path.absolute()
    if any((absolute / name).is_file() for name in (CATALOG_FILE, PROFILE_DATABASE)):
        return path, base
    folder = next((one for one in (absolute, *absolute.parents) if one.parent.name == KNOWLEDGE_FOLDER), None)
    return (path, base) if folder is None else (open_surrounding_tree(folder)[0].path, base or folder.name)


def _plan(store: Store, base: str | None, options: RestoreOptions, restored: BuiltBase, staged: Path) -> Plan:
    """Plan to publish the built base in the store as it is now.

    ``base`` is the id of the old base (None: the only one), ``staged`` the folder in which the new one was built.
    """
    return publish_plan(read_source(store, base), options.wanted, restored, staged, options.now_ms)


def _build(store: Store, base: str | None, options: RestoreOptions, progress: Progress) -> tuple[BuiltBase, Path, bool]:
    """Build the new base in the store, or find what an earlier run built.

    Returns:
        The base, the folder in which it was built, and whether this run created that folder.
    """
    demand_not_running(store)
    recover_if_interrupted(store)
    source = read_source(store, base)
    base_id = options.wanted.base_id(source.key)
    if base_id in source.catalog.rows_by_base:
        # A run that was killed after it had published the base left its folder.
        discard_build(store.own_folder / execution.RESTORING / base_id)
    staged = build_folder(source, options.wanted)
    is_new = not staged.exists()
    # What the catalog refuses must be refused before anything is paid for.
    new_rows(source, options.wanted, (), options.now_ms)
    with open_session(store):
        try:
            return build_base(source, options.wanted, staged, options.now_ms, progress), staged, is_new
        finally:
            files.remove_empty_folders(staged, store.own_folder)


# --- with an embedder ------------------------------------------------------------------------------------------------

#: A vector length for checks and dry runs in which the real one is unknown and does not matter.
_ANY_DIMENSIONS = 1024


class RestoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The base to restore, and the embedder of the new one. ``dimensions`` None: those of the embedder's vectors."""

    path: Path
    settings: EmbedderSettings
    model_id: str
    dimensions: int | None
    name: str | None
    base: str | None
    now_ms: int
    kind: Any = None
    #: The configuration file of the embedders; None: the default one.
    config: Path | None = None
    #: Stores, backups and exports whose vectors are taken instead of sending their texts.
    reuse: tuple[ReusePath, ...] = ()


def restore_with_vectors(
    request: RestoreRequest,
    *,
    dry_run: bool,
    progress: Progress,
    show_plan: Callable[[ScopeReport], bool] = lambda _: True,
) -> EmbeddingReport:
    """Make a new base from the texts of an old one, with vectors of a new model, and return the report.

    Args:
        request: the base and the embedder.
        dry_run: report what would be sent; nothing is sent or written.
        progress: notified of each item and each text.
        show_plan: called with what will be sent before anything is; returns False to stop.

    Raises:
        DimensionsMissing: in a dry run, if the length of the vectors is unknown.
        EmbedderUnsteady, AnswerUnfit, EmbedderRefused: the embedder cannot be used.
        ReuseDiffers: the vectors of another store cannot be used.
        BackfillStopped, BackfillInterrupted: the vectors so far are kept for the next run.
        RegraftError: see :func:`restore`.
    """
    if dry_run:
        is_unnamed = isinstance(request.settings, UnnamedEmbedder)
        if request.dimensions is None and not is_unnamed:
            raise DimensionsMissing(base=request.model_id)
        filler = _RestoreFiller(request=request, embedder=None, progress=progress, show_plan=show_plan)
        done = filler.restore(request.dimensions or _ANY_DIMENSIONS)
        if not is_unnamed:
            return done
        scopes = [structs.replace(scope, dimensions=request.dimensions) for scope in done.scopes]
        return structs.replace(done, embedder=None, scopes=scopes, suggestion=make_suggestion(request))
    with embedders.open_embedder(request.settings) as embedder:
        filler = _RestoreFiller(request=request, embedder=embedder, progress=progress, show_plan=show_plan)
        with report_stops(request.path, request.settings.name, lambda: filler.written):
            return filler.restore(request.dimensions or filler.dimensions(embedder))


def make_suggestion(request: RestoreRequest) -> Suggestion:
    """Return the configuration that the user has to write, if no embedder is configured."""
    words = ["regraft", "restore", path_argument(request.path), "--model", request.model_id]
    given = {
        "--base": request.base,
        "--dimensions": request.dimensions,
        "--name": request.name,
        "--config": request.config,
    }
    for option, value in given.items():
        words += [] if value is None else [option, str(value)]
    need = ModelNeed(model_id=request.model_id, dimensions=request.dimensions)
    return suggest_config([need], request.config, join_command(words))


def suggest_model(path: Path, base: str | None, kind: Any, model_id: str | None, dimensions: int | None) -> ModelNeed:
    """Return the model that a base would get if no embedder is configured and none was chosen.

    It is ``model_id`` if given, else the base's own model, else that of another base of the store.

    Args:
        path: the store, or a base's folder or index in it.
        base: the base's id, or None for the only one.
        kind: the kind of the store, if the user names it.
        model_id: the model that the user names, if any.
        dimensions: the dimensions of its vectors, if the user names them.

    Raises:
        RegraftError: see :func:`restore`.
    """
    root, key = containing_store(path, base)
    with open_for_change(root, kind if root == path else None, "restore") as store:
        source = read_source(store, key)
        others = sorted(source.catalog.bases, key=lambda row: base_id_text(row) != source.key)
    label = str(source.row.get("name"))
    models = [str(row["embedding_model_id"]) for row in others if row.get("embedding_model_id")]
    model = model_id or next(iter(models), DEFAULT_NEED.model_id)
    lengths = (stated_dimensions(row) for row in others if row.get("embedding_model_id") == model)
    known = next(filter(None, lengths), None)
    return ModelNeed(model_id=model, dimensions=dimensions or known, label=label)


class _RestoreFiller(msgspec.Struct, kw_only=True):
    """Restores one base with an embedder; without one, it is a dry run."""

    request: RestoreRequest
    embedder: Embedder | None
    progress: Progress
    show_plan: Callable[[ScopeReport], bool]
    outcome: ScopeOutcome | None = None

    @property
    def written(self) -> int:
        """The number of vectors written so far."""
        return 0 if self.outcome is None else self.outcome.filled.newly_ready

    def dimensions(self, embedder: Embedder) -> int:
        """Return the dimensions of the vectors that an earlier run paid for, or else of one that is requested now.

        Raises:
            NotRestored: the base cannot be restored with any vector length.
            EveryTextRejected: the embedder rejects even a harmless text.
        """
        known = demand_restorable(self.request.path, self._restore_options(_ANY_DIMENSIONS))
        try:
            return known or len(BudgetedEmbedder(embedder, Limits()).embed((CONTROL_TEXT,))[0]) // 4
        except TextsRejected as rejected:
            raise EveryTextRejected(embedder=embedder.settings.name, reason=rejected.reason) from rejected

    def _restore_options(self, dimensions: int) -> RestoreOptions:
        """Make the options of the restore; ``dimensions`` are those of the new vectors."""
        request = self.request
        wanted = RestoredBase(request.model_id, dimensions, request.name)
        return RestoreOptions(base=request.base, wanted=wanted, now_ms=request.now_ms, kind=request.kind)

    def restore(self, dimensions: int) -> EmbeddingReport:
        """Build, fill and publish the base, and return the report; ``dimensions`` are those of the new vectors."""
        request, options = self.request, self._restore_options(dimensions)
        done = restore(
            request.path,
            options,
            lambda index: self._fill(index, dimensions),
            dry_run=self.embedder is None,
            progress=self.progress,
        )
        if self.embedder is None:
            # In a dry run, missing vectors are the plan and not a problem.
            left = [one for one in done.left if one.finding != v2.VECTOR_MISSING]
            done = structs.replace(done, left=left)
        return make_embedding_report(done, request.settings, self.outcome)

    def _fill(self, index: Path, dimensions: int) -> None:
        """Embed the texts in the index file of the new base, as a backfill does; in a dry run, only estimate that."""
        request = self.request
        with sqlite.open_readonly(index) as db:
            base: Any = db.execute("SELECT base_id FROM meta").get
        label = request.name or tr("The new base")
        opened = partial(backfill_scope.open_index_scope, index, str(base), label=label, dimensions=dimensions)
        settings = request.settings
        root, _ = containing_store(request.path, request.base)
        with ExitStack() as stack:
            # The store that the base is restored in may have vectors of the new model: in another base.
            reuse = stack.enter_context(open_reuse(request.reuse, None, self.progress))
            with opened() as scope:
                supply = None if reuse is None else reuse.supply_alone(scope, request.model_id, settings)
                # Vectors of an interrupted run; without any, the embedder is compared with itself.
                known = scope.sample(probing.SAMPLE_SIZE)
                self.outcome = outcome = estimate_outcome(
                    scope,
                    settings,
                    embedders.counter(settings),
                    name=scope.label,
                    model_id=request.model_id,
                    dimensions=dimensions,
                    supply=supply,
                )
            if self.embedder is None or not outcome.survey.lacking:
                return
            if not self.show_plan(outcome.report()):
                raise Declined(path=request.path)
            # Nothing is compared unless something is sent.
            sample = known if outcome.planned.texts else None
            part = FillPart(outcome=outcome, sample=sample, opened=partial(opened, writable=True), supply=supply)
            kind = request.kind if root == request.path else None
            with open_for_change(root, kind, "restore") as store:
                EmbeddingRun(path=request.path, store=store, parts=[part], progress=self.progress).run(self.embedder)
