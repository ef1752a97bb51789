"""The steps of ``regraft fix``: everything that ``regraft check`` recommends and that needs no embedder, in order."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import structs

from checks import systems as audits
from checks.audit.collector import CheckOptions, CommandLine
from checks.cherry_v2 import findings as v2
from regraft.disk import durable, scratch, sqlite
from regraft.errors import Declined, NotEnoughSpace, PlanOutdated, RegraftError, SourceNotMigratable
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, base_id_text, read_catalog
from regraft.identity import replace
from regraft.kinds import PREVIEW_SOURCES, SYSTEMS, V2_STORES, Kind
from regraft.language import tr
from regraft.ledger.ledger import FOLDER
from regraft.report.document import Run
from regraft.report.progress import Progress, SilentProgress, stage
from regraft.text import format_bytes, path_argument, quote_word
from repair.changes import execution
from repair.changes.execution import ChangeExecutor
from repair.changes.options import GcOptions, ReconcileOptions, RepairOptions
from repair.changes.plan import Action, Plan, Unresolved
from repair.changes.run import (
    ChangeReport,
    Planner,
    apply_changes,
    base_names,
    check_resolved,
    demand_space,
    demand_unchanged_files,
    make_plan,
)
from repair.changes.session import Session, open_session, reading_store
from repair.changes.store import Store, exclusive_access, open_for_change
from repair.cherry_v2 import adopt, upgrade
from repair.cherry_v2.rescue.plan import RescueOptions
from repair.cherry_v2.rescue.plan import plan as plan_rescue
from repair.cherry_v2.rules import planner
from repair.fix import recommendations
from repair.systems import collected_findings, reconciled_findings, repaired_findings, repairs_for


def planners(now_ms: int, keep: ExitStack, only: frozenset[str] = frozenset()) -> tuple[Planner, ...]:
    """Return the planners of all steps: upgrade, rescue, adopt, rewrite units, repair, reconcile, gc.

    Args:
        now_ms: the time of the run.
        keep: opened and extracted files of v1 stay until this closes.
        only: names of findings; empty: all that need not be named.
    """
    steps = _Steps(now_ms, only)
    rescue_options = RescueOptions(now_ms=now_ms, keep=keep)
    return (
        steps.upgrade,
        partial(steps.rescue, options=rescue_options),
        steps.complete_failed_bases,
        steps.write_units,
        steps.repair,
        steps.reconcile,
        steps.collect,
    )


#: Findings that the first steps resolve.
UPGRADED = (v2.SCHEMA_MISSING, v2.SCHEMA_VERSION, v2.SCHEMA_PREVIEW)
RESCUED = (v2.BASE_FAILED, v2.BASE_NO_INDEX, v2.ITEM_NO_MATERIAL, v2.ITEM_TOMBSTONE)


class _Steps:
    """The planners of one run, and the facts that later steps need from earlier ones.

    ``only`` names the findings to resolve; empty: all that need not be named.
    """

    def __init__(self, now_ms: int, only: frozenset[str]) -> None:
        self._now_ms, self._only = now_ms, only
        #: Bases that had failed when the run began. Nothing is deleted from them, even after they are completed.
        self._failed: set[str] = set()
        #: Bases that the rescue step restores.
        self._rescued: set[str] = set()

    def _wants(self, names: Iterable[str]) -> bool:
        """Whether a step that resolves the findings ``names`` is needed for the findings that the user chose."""
        return not self._only or not self._only.isdisjoint(names)

    def _named_findings(self, names: Iterable[str]) -> frozenset[str]:
        """Select the findings among ``names`` that the user named; empty if the user named no finding."""
        return self._only.intersection(names)

    def upgrade(self, store: Store) -> Plan:
        """Plan the upgrade of an older schema or a preview build; nothing for other systems."""
        if store.found.kind in V2_STORES and store.catalog is not None:
            with suppress(CatalogProblem):
                rows = read_catalog(store.root / store.catalog, data=False).bases
                self._failed |= {base_id_text(row) for row in rows if row.get("status") == "failed"}
        is_of_application = store.found.kind in V2_STORES or store.found.kind in PREVIEW_SOURCES
        if not is_of_application or not self._wants(UPGRADED):
            return Plan()
        return upgrade.plan(store, upgrade.UpgradeOptions(self._now_ms))

    def rescue(self, store: Store, options: RescueOptions) -> Plan:
        """Plan to restore from files of v1 what the upgrade to v2 left behind."""
        if not store.is_profile or not self._wants(RESCUED):
            return Plan()
        try:
            made = plan_rescue(store, options)
        except SourceNotMigratable:
            # No data of v1 is left. What is missing is reported at the end.
            return Plan()
        self._rescued = {action.base for action in made.actions if action.base is not None}
        return made

    def complete_failed_bases(self, store: Store) -> Plan:
        """Plan to complete failed bases from their indexes, with items for their materials."""
        is_wanted = self._wants((v2.BASE_FAILED, v2.MATERIAL_ORPHAN))
        if store.found.kind not in V2_STORES or store.catalog is None or not is_wanted:
            return Plan()
        made = adopt.plan_materials(
            store, RepairOptions(now_ms=self._now_ms), failed_only=True, without=frozenset(self._rescued)
        )
        if self._only:
            return made
        # Unresolved findings are reported at the end.
        return replace(made, left=[])

    def write_units(self, store: Store) -> Plan:
        """Plan to rewrite units that their bodies prove, before other repairs of their indexes."""
        if store.found.kind not in V2_STORES or not self._wants((v2.BODY_ORPHAN,)):
            return Plan()
        made = planner.plan(store, RepairOptions(now_ms=self._now_ms, only=frozenset({v2.BODY_ORPHAN})))
        return replace(made, left=[])

    def repair(self, store: Store) -> Plan:
        """Plan ``repair`` of the chosen findings that need no decision of the user."""
        repairs = repairs_for(store.found.kind)
        if repairs.repair is None or not self._wants(repairs.repaired):
            return Plan()
        by_choice = {*adopt.NAMES, v2.BASE_FAILED, v2.VECTOR_UNEXPECTED}
        named = self._named_findings(repairs.repaired) - by_choice
        if self._only and not named:
            return Plan()
        return repairs.repair(store, RepairOptions(now_ms=self._now_ms, only=named, spared=frozenset(self._failed)))

    def reconcile(self, store: Store) -> Plan:
        """Plan ``reconcile`` of the chosen findings, without an embedder."""
        repairs = repairs_for(store.found.kind)
        if repairs.reconcile is None or not self._wants(repairs.reconciled):
            return Plan()
        if store.found.kind in V2_STORES and store.catalog is None:
            # A single index file has no catalog to compare with.
            return Plan()
        only = self._named_findings(repairs.reconciled)
        return repairs.reconcile(store, ReconcileOptions(only=only, spared=frozenset(self._failed)))

    def collect(self, store: Store) -> Plan:
        """Plan ``gc`` of the chosen findings. Undo data of earlier runs is kept."""
        repairs = repairs_for(store.found.kind)
        if repairs.gc is None or not self._wants(repairs.collected):
            return Plan()
        # ``fix`` never deletes undo data of earlier runs.
        options = GcOptions(
            now_ms=self._now_ms,
            only=self._named_findings(repairs.collected),
            expires=False,
            spared=frozenset(self._failed),
        )
        return repairs.gc(store, options)


def fixable_findings() -> tuple[str, ...]:
    """Return the findings that ``fix`` resolves, of stores of every system."""
    return tuple(
        dict.fromkeys((*UPGRADED, *RESCUED, *repaired_findings(), *reconciled_findings(), *collected_findings()))
    )


def remaining(store: Store, command_line: CommandLine) -> Iterator[Unresolved]:
    """Audit a store at the end of a run, and yield its findings with the recommended commands."""
    wanted = CheckOptions(bases=tuple(sorted(store.chosen)), now_ms=store.now_ms)
    audit = audits.audit(store.found, wanted, command_line)
    if store.found.kind in V2_STORES:
        audit = recommendations.remove_idle_commands(audit, store.found, wanted.bases, store.now_ms)
        audit = recommendations.add_rescue_hints(audit, store.found, wanted.level, wanted.bases, command_line)
        audit = recommendations.recommend_copies(audit, store.found, store.path)
    for finding in audit.findings:
        if store.wants(finding.base):
            yield Unresolved.of(finding, finding.message, repair=finding.repair)


# --- one run of several planners, which is undone as a whole ---------------------------------------------------------
#
# Each step is planned after the one before it was made: tags of deleted records can only be collected once
# ``repair`` has deleted the records. A dry run therefore makes all steps on a temporary copy of the store
# (``docs/formats/library.md``, "Changes").


# --- rehearsal on a copy ---------------------------------------------------------------------------------------------

E = TypeVar("E", Action, Unresolved)
#: Cache folders of the browser in a profile; no command reads them.
_CACHES = frozenset(
    {"Cache", "Code Cache", "GPUCache", "DawnCache", "DawnGraphiteCache", "DawnWebGPUCache", "ShaderCache"}
    | {"blob_storage", "Crashpad", "logs", "Service Worker", "component_crx_cache", "Partitions"}
)
#: Disk space that a rehearsal needs, as a multiple of the store's size.
_SPACE_FACTOR = 2


def rehearse(store: Store, run: Callable[[Path], ChangeReport], progress: Progress) -> ChangeReport:
    """Report a run over a temporary copy of a store. Nothing in the store is written.

    Args:
        store: the store to copy.
        run: makes the changes; gets the path in the copy that corresponds to the path the user gave.
        progress: receives the progress of copying.

    Raises:
        NotEnoughSpace: the temporary folder is too small for a copy.
        PlanOutdated: the store was written to while it was copied.
        SourceUnreadable: a file cannot be read.
        RegraftError: the run is refused, as it would be for the store.
    """
    with reading_store(store):
        files = list(_files_to_copy(store))
        sizes = [path.lstat().st_size for path in files]
    temporary = scratch.temporary_root()
    free = shutil.disk_usage(temporary).free
    if free < _SPACE_FACTOR * sum(sizes):
        raise NotEnoughSpace(path=temporary, needed=format_bytes(_SPACE_FACTOR * sum(sizes)), free=format_bytes(free))
    with scratch.temporary_folder() as folder:
        copy = folder / (store.root.absolute().name or "store")
        with stage(progress, tr("Copying"), len(files), "files"):
            for path, size in zip(files, sizes, strict=True):
                with reading_store(store):
                    _copy(path, copy / path.relative_to(store.root), store.root)
                progress.step(1, size)
        with reading_store(store):
            _copy_times(store.root, copy, files)
        named, root = store.path.absolute(), store.root.absolute()
        copied = copy / (named.relative_to(root) if named.is_relative_to(root) else Path())
        try:
            report = run(copied)
        except RegraftError as error:
            raise type(error)(
                **{name: _with_store_path(fact, copy, store.root) for name, fact in error.facts.items()}
            ) from error
        return structs.replace(
            report,
            actions=[_with_store_paths(one, copied, copy, store) for one in report.actions],
            left=[_with_store_paths(one, copied, copy, store) for one in report.left],
        )


def _files_to_copy(store: Store) -> Iterator[Path]:
    """Yield the files, links and empty folders of a store that commands may read, as paths."""
    names = _own_names(store)
    for entry in sorted(store.root.iterdir()):
        is_named = names is None or any(entry.name == name or entry.name.startswith(f"{name}-") for name in names)
        if not is_named or (names is None and store.is_profile and entry.name in _CACHES):
            continue
        yield from _files_below(entry)


def _files_below(path: Path) -> Iterator[Path]:
    """Yield a path if it is a file or link, else the files, links and empty folders below it."""
    waiting = [path]
    while waiting:
        place = waiting.pop()
        if place.is_symlink() or place.is_file():
            yield place
        elif place.is_dir():
            inside = sorted(place.iterdir(), reverse=True)
            waiting += inside
            if not inside:
                yield place


def _own_names(store: Store) -> set[str] | None:
    """Return the names directly below the root that belong to the store; None: all of them.

    A database of another system, or a single index file, may share its folder with unrelated files.
    """
    found, system = store.found, store.system
    if system is not None and found.path != store.root:
        paths = {*system.databases(found), *system.files(found)}
    elif found.kind in SYSTEMS or found.stores.is_whole:
        return None
    else:
        paths = {part for one in store.stores.values() for part in (one.name, one.raw)}
        paths |= {found.stores.catalog} if found.stores.catalog is not None else set()
    return {FOLDER, *(Path(path).parts[0] for path in paths)}


def _copy(path: Path, target: Path, root: Path) -> None:
    """Copy a file, an empty folder or a link to ``target``; a link to a path inside ``root`` stays as it is stored."""
    durable.make_folders(target.parent, flush=False)
    if path.is_symlink():
        goal = os.path.realpath(path.parent / os.readlink(path))  # noqa: PTH115 - a junction's goal as it is stored
        inside = Path(goal).is_relative_to(root.resolve())
        durable.make_link(target, os.readlink(path) if inside else goal)  # noqa: PTH115
        return
    if path.is_dir():
        durable.make_folders(target, flush=False)
        return
    before = sqlite.read_file_state(path)
    durable.copy_file(path, target)
    durable.copy_times(path, target)
    if sqlite.read_file_state(path) != before:
        raise PlanOutdated(path=path, reason=tr("it was changed in the meantime"))


def _copy_times(root: Path, copy: Path, files: list[Path]) -> None:
    """Copy the modification times of the folders that contain ``files``, because ages are computed from them."""
    folders = {folder for path in files for folder in (path, *path.parents) if folder.is_relative_to(root)}
    for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
        if folder.is_dir() and not folder.is_symlink():
            durable.copy_times(folder, copy / folder.relative_to(root))


def _with_store_paths(one: E, copied: Path, copy: Path, store: Store) -> E:
    """Replace paths of the copy by those of the store in an entry of a report.

    Args:
        one: the entry.
        copied: the path in the copy that corresponds to the path that the user gave.
        copy: the root of the copy.
        store: the store that was copied.
    """
    old, new = (quote_word(path_argument(path)) for path in (copied, store.path))
    moved = {}
    for name, value in structs.asdict(one).items():
        # Command lines have the path as the user gave it, quoted for a shell.
        given = re.sub(rf"{re.escape(old)}(?=\s|$)", lambda _: new, value) if isinstance(value, str) else value
        moved[name] = _with_store_path(given, copy, store.root)
    return structs.replace(one, **moved)


def _with_store_path(value: object, copy: Path, root: Path) -> object:
    """Replace, in a field of a report, the path of the temporary copy by the root of the store."""
    if isinstance(value, Path):
        return root / value.relative_to(copy) if value.is_relative_to(copy) else value
    if isinstance(value, str):
        return value.replace(str(copy), str(root)).replace(os.path.realpath(copy), str(root))
    return value


Again = AbstractContextManager[Store]


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """The planners of a run in order, and a function that yields what a store still has at the end."""

    planners: Sequence[Planner]
    remains: Callable[[Store], Iterable[Unresolved]]


def run_steps(  # noqa: PLR0913 - as of run_command
    command: str,
    path: Path,
    steps: Steps,
    *,
    kind: Kind | None = None,
    bases: tuple[str, ...] = (),
    now_ms: int | None = None,
    dry_run: bool = False,
    progress: Progress,
    show_plan: Callable[[ChangeReport], bool] | None,
) -> ChangeReport:
    """Make several plans one after the other, as one run, and return the report.

    Args:
        show_plan: called with the report of the plan before anything is changed. False stops the run. None: do not ask.

    The other arguments and the errors are those of :func:`repair.changes.run.run_command`. If a step depends on an
    earlier one, the plan to show is found by making all steps on a temporary copy.
    """
    again = partial(open_for_change, path, kind, command, bases, now_ms)

    def plan_by_rehearsal(store: Store, run: Run) -> ChangeReport:
        """Report what the run is going to do; if one step depends on another, by running all steps on a copy."""
        looks = [make_plan(store, step) for step in steps.planners]
        if not any(look.changes for look in looks[:-1]):
            last = looks[-1]
            left = [one for one in steps.remains(store) if (one.finding, one.base) not in last.resolves]
            return _report(store, run, last.actions, left, None)
        done = rehearse(store, run_on_copy, progress)
        return _report(store, run, done.actions, done.left, None)

    def run_on_copy(copy: Path) -> ChangeReport:
        """Run all steps on the temporary copy of the store."""
        return run_steps(
            command, copy, steps, kind=kind, bases=bases, now_ms=now_ms, progress=SilentProgress(), show_plan=None
        )

    with again() as named:
        run = Run(command=command, dry_run=dry_run, source_kind=named.found.kind.value, source=path)
        if dry_run:
            return plan_by_rehearsal(named, run)
        with open_session(named, again) as current:
            store = current.store
            first = Plan()
            for step in steps.planners:
                first.add(make_plan(store, step))
            if not first.changes:
                return _report(store, run, [], steps.remains(store), None)
            demand_space(store, first)
            if show_plan is not None and not show_plan(plan_by_rehearsal(store, run)):
                raise Declined(path=path)
            as_it_is = partial(_open_again, store, command, kind, bases)
            with exclusive_access(store):
                current.begin(run, ())
                actions = _make_steps(current, run, steps.planners, as_it_is, progress)
                execution.clear_work_folder(store.root)
            with as_it_is() as after:
                return _report(after, run, actions, steps.remains(after), run.id if actions else None)


def _make_steps(
    current: Session, run: Run, steps: Sequence[Planner], again: Callable[[], Again], progress: Progress
) -> list[Action]:
    """Plan and make the steps one after the other; returns all actions. ``again`` opens the store for each step."""
    executor = ChangeExecutor(current.store.root, current.ledger, run.id, ())
    actions: list[Action] = []
    for step in steps:
        with again() as store:
            plan = make_plan(store, step)
            if not plan.changes:
                continue
            demand_space(store, plan)
            executor.replace_plan(plan.changes)
            demand_unchanged_files(store, plan)
            executor.demand_free(plan.changes)
            actions += plan.actions
            current.ledger.changes.record_actions(run.id, actions)
            apply_changes(executor, plan, progress)
            # Errors of new bases are not needed here: the caller audits the store at the end of the run.
            check_resolved(Session(store=store, ledger=current.ledger), run, plan)
    return actions


def _open_again(store: Store, command: str, kind: Kind | None, bases: tuple[str, ...]) -> Again:
    """Open a store again during a run: upgrading a preview build may have turned its file into a folder."""
    path = store.path if store.path.exists() else store.root
    kind = None if store.found.kind in PREVIEW_SOURCES else kind
    return open_for_change(path, kind, command, bases, store.now_ms)


def _report(
    store: Store, run: Run, actions: Sequence[Action], left: Iterable[Unresolved], undo: str | None
) -> ChangeReport:
    """Make the report of a run that ends now.

    ``left`` is what the run does not resolve, ``undo`` the id of the run if it can be undone, else None.
    """
    run.end()
    unresolved = list(left)
    touched = {action.base for action in actions} | {one.base for one in unresolved}
    bases = base_names(store, {base for base in touched if base is not None})
    return ChangeReport(head=run.head(), bases=bases, actions=list(actions), left=unresolved, undo=undo)
