"""The commands that change a store, and what takes their changes back, as functions (``docs/api.md``).

Each takes its options as a struct of :mod:`regraft.options`, as keywords named like the struct's fields, or both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec import structs

from checks.systems import select_finding_names
from regraft.api.arguments import (
    agree,
    list_sources,
    merge_options,
    parse_base_name,
    parse_model_id,
    parse_model_overrides,
    progress_or_silent,
    time_or_now,
)
from regraft.api.audit import command_line
from regraft.api.transfer import migrate
from regraft.disk import sqlite
from regraft.disk.trees import ZipTree
from regraft.errors import RegraftError
from regraft.ledger.ledger import INSERT_BASE
from regraft.options import (
    ChangeOptions,
    FixOptions,
    GcOptions,
    InstallOptions,
    Options,
    ReconcileOptions,
    RepairOptions,
    RescueOptions,
    UndoOptions,
    UpgradeOptions,
)
from regraft.report.document import Endpoint, Run
from regraft.report.progress import Progress
from regraft.stores.locate import CATALOG_FILE, INDEX_FILE, KNOWLEDGE_FOLDER, open_store
from regraft.text import path_text
from repair import systems
from repair.changes import options as planner_options
from repair.changes import undo as undoing
from repair.changes.plan import Plan
from repair.changes.run import ChangeReport, Planner, complete_killed_undo, run_command, undo_run
from repair.changes.store import Store, open_for_change
from repair.changes.undo import HistoryReport
from repair.cherry_v2 import install as installing
from repair.cherry_v2 import rescue as rescuing
from repair.cherry_v2 import upgrade as upgrading
from repair.cherry_v2.install import made_library
from repair.cherry_v2.source import BaseSource, open_base_source
from repair.codex_mem import note_changes as clearing
from repair.embedding.report import ScopeOutcome, ScopeReport
from repair.embedding.reuse import open_reuse
from repair.fix import sequence as fixing
from repair.fix.sequence import Steps, run_steps

#: Gets the plan before anything is changed; False stops the run.
Confirm = Callable[[ChangeReport], bool]


def _run_change(
    command: str,
    path: str | Path,
    planner: Planner,
    options: ChangeOptions,
    progress: Progress | None,
    confirm: Confirm | None,
    *,
    now_ms: int | None = None,
) -> ChangeReport:
    """Run a command that changes a store: plan with ``planner``, ask ``confirm``, and make the changes.

    Args:
        command: the name of the command, for the report.
        path: the store.
        planner: makes the plan from the open store.
        options: kind, bases and ``dry_run`` of the user's options.
        progress: receives the progress.
        confirm: gets the plan; False stops the run. None: every change is made.
        now_ms: the time of the run; None: the current time.
    """
    return run_command(
        command,
        Path(path),
        planner,
        kind=options.kind,
        bases=options.bases,
        now_ms=now_ms,
        dry_run=options.dry_run,
        progress=progress_or_silent(progress),
        show_plan=confirm or agree,
    )


def fix(
    path: str | Path,
    options: FixOptions | None = None,
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    **fields: Any,
) -> ChangeReport:
    """Resolve every finding of :func:`check` that another command offers to resolve, in one run that ``undo`` reverts.

    With ``only``, no other finding is resolved. An orphan that could be listed or attached again is deleted only if
    ``only`` names its finding.

    Raises:
        Declined: ``confirm`` returned False.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(FixOptions, options, fields)
    names = select_finding_names(options.only, fixing.fixable_findings(), "fix")
    line_for = partial(command_line, Path(path), options.kind, now_ms=options.now_ms)
    with ExitStack() as keep:
        steps = Steps(
            planners=fixing.planners(time_or_now(options.now_ms), keep, names),
            remains=partial(fixing.remaining, command_line=line_for),
        )
        return run_steps(
            "fix",
            Path(path),
            steps,
            kind=options.kind,
            bases=options.bases,
            now_ms=options.now_ms,
            dry_run=options.dry_run,
            progress=progress_or_silent(progress),
            show_plan=confirm,
        )


def repair(
    path: str | Path,
    options: RepairOptions | None = None,
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    **fields: Any,
) -> ChangeReport:
    """Repair what :func:`check` finds, where other data of the store, or of ``source``, prove the right value.

    With ``source``, only texts, vectors and indexes that are missing are repaired, from that copy. With ``moved``, only
    the paths of original files are corrected.

    Raises:
        Declined: ``confirm`` returned False.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(RepairOptions, options, fields)
    model = None if options.model is None else parse_model_id("--model", options.model)
    names = select_finding_names(options.only, systems.repaired_findings(), "repair")
    with ExitStack() as keep:
        wanted = planner_options.RepairOptions(
            now_ms=time_or_now(None),
            only=names,
            model=model,
            adopt=options.adopt,
            salvage=options.salvage,
            unproven=options.unproven,
            source=options.source,
            moved=tuple(options.moved.items()),
            keep=keep,
        )
        return _run_change("repair", path, partial(systems.plan_repair, options=wanted), options, progress, confirm)


def gc(
    path: str | Path,
    options: GcOptions | None = None,
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    **fields: Any,
) -> ChangeReport:
    """Delete vectors, texts and files that nothing refers to.

    Raises:
        Declined: ``confirm`` returned False.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(GcOptions, options, fields)
    names = select_finding_names(options.only, systems.collected_findings(), "gc")
    now_ms = time_or_now(options.now_ms)
    wanted = planner_options.GcOptions(
        now_ms=now_ms, grace=options.grace, vacuum=options.vacuum, v1_leftovers=options.v1_leftovers, only=names
    )
    planner = partial(systems.plan_gc, options=wanted)
    return _run_change("gc", path, planner, options, progress, confirm, now_ms=now_ms)


def reconcile_without_embedder(
    path: str | Path, options: ReconcileOptions, progress: Progress | None, confirm: Confirm | None
) -> ChangeReport:
    """Run ``reconcile``, but leave out what needs an embedder.

    The arguments are those of :func:`regraft.api.embedding.reconcile`.
    """
    wanted = planner_options.ReconcileOptions(
        only=select_finding_names(options.only, systems.reconciled_findings(), "reconcile")
    )
    planner = partial(systems.plan_reconcile, options=wanted)
    return _run_change("reconcile", path, planner, options, progress, confirm, now_ms=options.now_ms)


def clear_failed(
    path: str | Path,
    options: ChangeOptions | None = None,
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    **fields: Any,
) -> ChangeReport:
    """Mark notes of codex-mem as pending whose embedding had failed, so that the next backfill embeds them.

    Raises:
        Declined: ``confirm`` returned False.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(ChangeOptions, options, fields)
    return _run_change("clear-failed", path, clearing.plan_clear_failed, options, progress, confirm)


def upgrade(
    path: str | Path,
    options: UpgradeOptions | None = None,
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    **fields: Any,
) -> ChangeReport:
    """Convert index files and catalogs of older layouts to the current one; every vector is kept.

    Raises:
        Declined: ``confirm`` returned False.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(UpgradeOptions, options, fields)
    models = parse_model_overrides(options.map_model, options.recreate_model)
    planner = partial(upgrading.plan, options=upgrading.UpgradeOptions(time_or_now(None), models))
    return _run_change("upgrade", path, planner, options, progress, confirm)


def rescue(
    path: str | Path,
    options: RescueOptions | None = None,
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    **fields: Any,
) -> ChangeReport:
    """Bring back texts and vectors that the application's own upgrade to v2 left in v1's files.

    Raises:
        Declined: ``confirm`` returned False.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(RescueOptions, options, fields)
    models = parse_model_overrides(options.map_model, options.recreate_model)
    with ExitStack() as keep:
        wanted = rescuing.RescueOptions(
            now_ms=time_or_now(options.now_ms),
            keep=keep,
            v1=options.v1,
            model_overrides=models,
            salvage=options.salvage,
        )
        planner = partial(rescuing.plan, options=wanted)
        return _run_change("rescue", path, planner, options, progress, confirm, now_ms=options.now_ms)


class InstallReport(ChangeReport, kw_only=True):
    """The report of ``install``: that of a change, and what each base gets from other stores (``--reuse``).

    ``failed`` has the ids of the installed bases whose status is failed; unset if there are none.
    """

    scopes: list[ScopeReport] = msgspec.field(default_factory=list)
    failed: list[str] | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(cls, source: Endpoint, filled: list[ScopeOutcome], report: ChangeReport) -> InstallReport:
        """Make the report of ``install`` from that of the change to the profile.

        ``source`` is where the bases came from, ``filled`` what each base got from other stores.
        """
        head = structs.replace(report.head, source=source, target=report.head.source)
        scopes = [outcome.report() for outcome in filled]
        return cls(**structs.asdict(report) | {"head": head}, scopes=scopes)


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """The report of ``install``, and the names of the chosen bases by their ids in the source.

    ``failed`` has the error of each chosen base whose status is failed, by the same id.
    """

    report: InstallReport
    chosen: dict[str, str]
    failed: dict[str, str] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, report: InstallReport, source: BaseSource) -> Installation:
        """Make it from the report, and from the opened ``source`` of the bases."""
        rows = ((base, source.bases[base]) for base in source.chosen)
        failed = {base: str(row.get("error") or "") for base, row in rows if row.get("status") == "failed"}
        report = structs.replace(report, failed=_inserted_of(report, failed) or msgspec.UNSET)
        return cls(report=report, chosen={base: source.name_of(base) for base in source.chosen}, failed=failed)


def _inserted_of(report: InstallReport, bases: Collection[str]) -> list[str]:
    """Return the ids in the profile of the inserted bases that are, or are copies of, ``bases`` of the source."""
    inserted = (one for one in report.actions if one.action == INSERT_BASE)
    # A copy names the base that it was made from.
    return [str(one.base) for one in inserted if (one.subject or one.base) in bases]


def install_bases(
    path: str | Path,
    profile: str | Path,
    options: InstallOptions,
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    library: Path | None = None,
    wrote: bool = False,
    is_outline: bool = False,
) -> Installation:
    """Do what :func:`install` does, and also return the names of the chosen bases.

    Args:
        path: the source of the bases.
        profile: the profile.
        options: the user's options.
        progress: receives the progress.
        confirm: gets the plan before anything is changed; False stops the run.
        library: the library that the same command has migrated, which the run records; None: there was no migration.
        wrote: whether the command has written, or will write, to that library.
        is_outline: whether ``path`` is only the outline of a library that is not written yet.
    """
    wanted = installing.InstallOptions(
        now_ms=time_or_now(options.now_ms),
        models=parse_model_overrides(options.map_model, options.recreate_model),
        providers=frozenset(options.recreate_provider),
        as_new=options.as_new,
        name=parse_base_name(options.name),
        external_as_files=options.external_as_files,
        dry_run=options.dry_run,
        is_outline=is_outline,
    )
    sources = () if is_outline else list_sources(options)
    with (
        open_base_source(Path(path), options.kind, options.bases, "install") as source,
        open_reuse(sources, None, progress_or_silent(progress)) as reuse,
    ):
        wanted = structs.replace(wanted, reuse=reuse)

        def planner(store: Store) -> Plan:
            """Plan the installation, and record the migrated library in the plan."""
            plan = installing.plan(store, source, wanted)
            if plan.changes and library is not None:
                plan.outside.append(made_library.profile_action(library, store.root, len(source.chosen), wrote=wrote))
            return plan

        came_from = Endpoint(kind=source.store.found.kind.value, path=path_text(Path(path)))
        as_install = partial(InstallReport.of, came_from, wanted.filled)

        def confirm_install(planned: ChangeReport) -> bool:
            return confirm is None or confirm(as_install(planned))

        # Kind and bases are about the source; what changes is the profile.
        run_options = ChangeOptions(dry_run=options.dry_run)
        done = as_install(
            _run_change("install", profile, planner, run_options, progress, confirm_install, now_ms=options.now_ms)
        )
        return Installation.of(done, source)


def install(
    path: str | Path,
    profile: str | Path,
    options: InstallOptions | None = None,
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    **fields: Any,
) -> InstallReport:
    """Copy bases of a library, a pack, a v2 backup or another v2 profile into a v2 profile.

    Vectors that a base lacks are taken from ``reuse``; nothing is ever sent to an embedder.

    Raises:
        Declined: ``confirm`` returned False.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(InstallOptions, options, fields)
    return install_bases(path, profile, options, progress=progress, confirm=confirm).report


def history(path: str | Path, options: Options | None = None, **fields: Any) -> HistoryReport:
    """List the runs of regraft that changed a store, latest first, and whether each can be undone.

    Raises:
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(Options, options, fields)
    with open_for_change(Path(path), options.kind, "history") as store:
        run = Run(command="history", source_kind=store.found.kind.value, source=Path(path))
        runs = undoing.list_past_runs(store.root, store.runs)
    run.end()
    return HistoryReport(head=run.head(), runs=runs)


def undo(
    path: str | Path,
    run: str | None = None,
    options: UndoOptions | None = None,
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    **fields: Any,
) -> ChangeReport:
    """Take back the changes of one run: the one with the id ``run``, or the latest that can be undone.

    Raises:
        Declined: ``confirm`` returned False.
        RunUnknown, UndoRefused: there is no such run, or what it changed was changed since.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(UndoOptions, options, fields)
    completed = None
    if not options.dry_run:
        with open_for_change(Path(path), options.kind, "undo") as store:
            completed = complete_killed_undo(store)
            made_library.remove_leftovers(store.root)
    return undo_run(
        Path(path),
        run,
        kind=options.kind,
        dry_run=options.dry_run,
        progress=progress_or_silent(progress),
        show_plan=confirm or agree,
        outside_of=partial(made_library.outside_undo, has_all=_has_everything_of),
        completed=completed,
    )


def _has_everything_of(source: Path, library: Path) -> bool:
    """Whether a migration of a source would find that nothing in a library has to be written again.

    All of an archive is read: a damaged member states the checksum of the intact one.
    """
    try:
        with open_store(source) as found:
            tree = found.tree
            if isinstance(tree, ZipTree) and not all(map(tree.is_intact, tree.files(""))):
                return False
        bases = migrate(source, library, dry_run=True).bases
        changed = {base.id: base.legacy_id for base in bases if base.outcome != "unchanged"}
        if changed:
            # The migration may have been told which models to use.
            with sqlite.open_readonly(library / CATALOG_FILE) as db:
                known = db.execute("SELECT id, embedding_model_id FROM knowledge_base").fetchall()
            models = {changed[base]: model for base, model in known if base in changed and model}
            bases = migrate(source, library, dry_run=True, map_model=models).bases
    except (RegraftError, OSError, apsw.Error):
        return False
    unchanged = {base.id for base in bases if base.outcome == "unchanged"}
    return all(index.parents[1].name in unchanged for index in library.glob(f"{KNOWLEDGE_FOLDER}/*/{INDEX_FILE}"))
