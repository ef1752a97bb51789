"""What changes a store, and what takes that back, as functions (``docs/api.md``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from msgspec import structs

from checks.systems import select_finding_names
from regraft.api.arguments import (
    as_path,
    parse_base_name,
    parse_kind,
    parse_model_id,
    parse_model_overrides,
    progress_or_silent,
    time_or_now,
)
from regraft.api.audit import command_line
from regraft.kinds import Kind
from regraft.report.document import Endpoint, Run
from regraft.report.progress import Progress
from regraft.text import path_text
from repair import fix as fixing
from repair import systems
from repair.changes import undo as undoing
from repair.changes.run import ChangeReport, Planner, run_command, undo_run
from repair.changes.steps import Steps, run_steps
from repair.changes.store import open_for_change
from repair.changes.undo import HistoryReport
from repair.cherry_v2 import install as installing
from repair.cherry_v2 import rescue as rescuing
from repair.cherry_v2 import upgrade as upgrading
from repair.cherry_v2.source import open_base_source
from repair.codex_mem import note_changes as clearing
from repair.options import GRACE_DAYS, GcOptions, ReconcileOptions, RepairOptions

#: Is shown a plan; False stops before anything is changed.
Confirm = Callable[[ChangeReport], bool]


def _agreed(_: ChangeReport) -> bool:
    return True


def _run(
    command: str,
    path: str | Path,
    planner: Planner,
    kind: Kind | str | None,
    bases: Sequence[str],
    now_ms: int | None,
    dry_run: bool,
    progress: Progress | None,
    confirm: Confirm | None,
) -> ChangeReport:
    return run_command(
        command,
        as_path(path),
        planner,
        kind=parse_kind(kind),
        bases=tuple(bases),
        now_ms=now_ms,
        dry_run=dry_run,
        progress=progress_or_silent(progress),
        show_plan=confirm or _agreed,
    )


def repair(
    path: str | Path,
    *,
    kind: Kind | str | None = None,
    bases: Sequence[str] = (),
    only: Iterable[str] = (),
    model: str | None = None,
    adopt: bool = False,
    salvage: bool = False,
    source: str | Path | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
) -> ChangeReport:
    """Mend what :func:`check` finds, where other data prove what is right; options as of ``regraft repair``.

    With ``adopt`` folders of bases (``only`` is ``index.orphan``) or materials (``material.orphan``) are listed again
    that the catalog has no row of. With ``salvage`` damaged index files are written anew from what is left in them.
    With ``source``, another copy of the data, missing texts, vectors and indexes are taken from there, and nothing else
    is repaired.

    Raises:
        Declined: ``confirm`` said no.
        RegraftError: as ``docs/errors.md`` has them.
    """
    named = None if model is None else parse_model_id("--model", model)
    names = select_finding_names(only, systems.repaired_findings(), "repair")
    copy = None if source is None else as_path(source)
    with ExitStack() as keep:
        options = RepairOptions(
            now_ms=time_or_now(None), only=names, model=named, adopt=adopt, salvage=salvage, source=copy, keep=keep
        )
        planner = partial(systems.plan_repair, options=options)
        return _run("repair", path, planner, kind, bases, None, dry_run, progress, confirm)


def gc(
    path: str | Path,
    *,
    kind: Kind | str | None = None,
    bases: Sequence[str] = (),
    only: Iterable[str] = (),
    grace: float = GRACE_DAYS,
    vacuum: bool = False,
    v1_leftovers: bool = False,
    now_ms: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
) -> ChangeReport:
    """Remove what nothing reaches; options as of ``regraft gc``, ``grace`` in days. Ages are relative to ``now_ms``.

    Raises:
        Declined: ``confirm`` said no.
        RegraftError: as ``docs/errors.md`` has them.
    """
    names = select_finding_names(only, systems.collected_findings(), "gc")
    now_ms = time_or_now(now_ms)
    options = GcOptions(now_ms=now_ms, grace=grace, vacuum=vacuum, v1_leftovers=v1_leftovers, only=names)
    planner = partial(systems.plan_gc, options=options)
    return _run("gc", path, planner, kind, bases, now_ms, dry_run, progress, confirm)


def reconcile(
    path: str | Path,
    *,
    kind: Kind | str | None = None,
    bases: Sequence[str] = (),
    only: Iterable[str] = (),
    now_ms: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
) -> ChangeReport:
    """Make indexes follow their catalog, the rows of codex-mem their vectors, and set stale caches of rsclaw aside.

    Nothing is embedded. What could be listed or attached again is deleted only where its finding is in ``only``. Ages
    in what is left are relative to ``now_ms``.

    Raises:
        Declined: ``confirm`` said no.
        RegraftError: as ``docs/errors.md`` has them.
    """
    options = ReconcileOptions(only=select_finding_names(only, systems.reconciled_findings(), "reconcile"))
    planner = partial(systems.plan_reconcile, options=options)
    return _run("reconcile", path, planner, kind, bases, now_ms, dry_run, progress, confirm)


def clear_failed(
    path: str | Path,
    *,
    kind: Kind | str | None = None,
    bases: Sequence[str] = (),
    dry_run: bool = False,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
) -> ChangeReport:
    """Mark the notes of codex-mem as pending that an embedder refused; options as of ``regraft clear-failed``.

    Raises:
        Declined: ``confirm`` said no.
        RegraftError: as ``docs/errors.md`` has them.
    """
    return _run("clear-failed", path, clearing.plan_clear_failed, kind, bases, None, dry_run, progress, confirm)


def upgrade(
    path: str | Path,
    *,
    kind: Kind | str | None = None,
    bases: Sequence[str] = (),
    map_model: Mapping[str, str] | None = None,
    recreate_model: Iterable[str] = (),
    dry_run: bool = False,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
) -> ChangeReport:
    """Bring older files to the current layout, every vector kept; options as of ``regraft upgrade``.

    Raises:
        Declined: ``confirm`` said no.
        RegraftError: as ``docs/errors.md`` has them.
    """
    options = upgrading.UpgradeOptions(time_or_now(None), parse_model_overrides(map_model or {}, recreate_model))
    planner = partial(upgrading.plan, options=options)
    return _run("upgrade", path, planner, kind, bases, None, dry_run, progress, confirm)


def rescue(
    path: str | Path,
    *,
    v1: str | Path | None = None,
    kind: Kind | str | None = None,
    bases: Sequence[str] = (),
    map_model: Mapping[str, str] | None = None,
    recreate_model: Iterable[str] = (),
    salvage: bool = False,
    now_ms: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
) -> ChangeReport:
    """Bring back what the application's own upgrade left behind; options as of ``regraft rescue``.

    Raises:
        Declined: ``confirm`` said no.
        RegraftError: as ``docs/errors.md`` has them.
    """
    models = parse_model_overrides(map_model or {}, recreate_model)
    source = None if v1 is None else as_path(v1)
    with ExitStack() as keep:
        options = rescuing.RescueOptions(
            now_ms=time_or_now(now_ms), keep=keep, v1=source, model_overrides=models, salvage=salvage
        )
        planner = partial(rescuing.plan, options=options)
        return _run("rescue", path, planner, kind, bases, now_ms, dry_run, progress, confirm)


def fix(
    path: str | Path,
    *,
    kind: Kind | str | None = None,
    bases: Sequence[str] = (),
    only: Iterable[str] = (),
    now_ms: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
) -> ChangeReport:
    """Do all that :func:`check` offers, in the right order, as one run that one :func:`undo` takes back.

    ``only`` names findings: nothing else is resolved, and what could be listed or attached again is deleted only where
    its finding is named. Ages are relative to ``now_ms``.

    Raises:
        Declined: ``confirm`` said no.
        RegraftError: as ``docs/errors.md`` has them.
    """
    names = select_finding_names(only, fixing.names_taken(), "fix")
    place, of_kind = as_path(path), parse_kind(kind)
    line_for = partial(command_line, place, of_kind, now_ms=now_ms)
    with ExitStack() as keep:
        steps = Steps(
            planners=fixing.planners(time_or_now(now_ms), keep, names),
            remains=partial(fixing.remaining, command_line=line_for),
        )
        return run_steps(
            "fix",
            place,
            steps,
            kind=of_kind,
            bases=tuple(bases),
            now_ms=now_ms,
            dry_run=dry_run,
            progress=progress_or_silent(progress),
            show_plan=confirm,
        )


def install(
    path: str | Path,
    profile: str | Path,
    *,
    kind: Kind | str | None = None,
    bases: Sequence[str] = (),
    map_model: Mapping[str, str] | None = None,
    recreate_model: Iterable[str] = (),
    recreate_provider: Iterable[str] = (),
    as_new: bool = False,
    name: str | None = None,
    external_as_files: bool = False,
    now_ms: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
) -> ChangeReport:
    """Put bases of a library, a pack, a v2 backup or another profile into a v2 profile; as ``regraft install`` does.

    Args:
        path: the source.
        profile: the profile's folder.
        kind: the kind of the source, if it is not recognized.
        bases: ids or names of bases; empty: all of them.
        map_model: the profile's model for a model of the source, by its id.
        recreate_model: ids of models to add to the profile.
        recreate_provider: ids of providers to add to the profile, disabled and without keys.
        as_new: install a base that is there already as a new base beside it.
        name: the name of the installed base in the profile; one base must be chosen.
        now_ms: the run's time, Unix milliseconds.
        dry_run: only plan.
        progress: receives the progress of the run.
        confirm: called with the plan; False stops the run.

    Raises:
        Declined: ``confirm`` said no.
        RegraftError: as ``docs/errors.md`` has them.
    """
    options = installing.InstallOptions(
        now_ms=time_or_now(now_ms),
        models=parse_model_overrides(map_model or {}, recreate_model),
        providers=frozenset(recreate_provider),
        as_new=as_new,
        name=parse_base_name(name),
        external_as_files=external_as_files,
        dry_run=dry_run,
    )
    with open_base_source(as_path(path), parse_kind(kind), bases, "install") as source:
        planner = partial(installing.plan, source=source, options=options)
        report = _run("install", profile, planner, None, (), now_ms, dry_run, progress, confirm)
        # What is changed is the profile: it is the run's store, and the target of what the user asked for.
        came_from = Endpoint(kind=source.store.found.kind.value, path=path_text(as_path(path)))
        head = structs.replace(report.head, source=came_from, target=report.head.source)
        return structs.replace(report, head=head)


def history(path: str | Path, *, kind: Kind | str | None = None) -> HistoryReport:
    """Return what regraft did to a store, latest first, and what of it can be taken back. Nothing is written.

    Raises:
        RegraftError: as ``docs/errors.md`` has them.
    """
    place = as_path(path)
    with open_for_change(place, parse_kind(kind), "history") as store:
        run = Run(command="history", source_kind=store.found.kind.value, source=place)
        runs = undoing.list_past_runs(store.root, store.runs)
    run.end()
    return HistoryReport(head=run.head(), runs=runs)


def undo(
    path: str | Path,
    run: str | None = None,
    *,
    kind: Kind | str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
) -> ChangeReport:
    """Take back what a run did to a store: the one with the id ``run``, else the latest that can be.

    Raises:
        Declined: ``confirm`` said no.
        RunUnknown, UndoRefused: there is none, or what it changed was changed since.
        RegraftError: as ``docs/errors.md`` has them.
    """
    return undo_run(
        as_path(path),
        run,
        kind=parse_kind(kind),
        dry_run=dry_run,
        progress=progress_or_silent(progress),
        show_plan=confirm or _agreed,
    )
