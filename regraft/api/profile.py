"""``migrate_into_profile``: a migration and the installation of its library, as one plan and one run (``docs/api.md``).

The installation is planned before anything is written, on an outline of the library. If it is refused, nothing is
migrated. A run that is stopped in the middle leaves the profile as it was; the same command continues it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

import migrators
from migrators.pipeline import preflight
from migrators.pipeline.run import LibraryPlan, write_outline
from migrators.pipeline.session import Session
from regraft.api.arguments import merge_options, progress_or_silent, time_or_now
from regraft.api.changes import Installation, InstallReport, install_bases
from regraft.api.transfer import migration_options
from regraft.disk import links, scratch
from regraft.errors import (
    Declined,
    InstallationStopped,
    Interrupted,
    NotEnoughSpace,
    RegraftError,
    WrongUsage,
)
from regraft.kinds import Kind
from regraft.language import tr
from regraft.ledger.ledger import FOLDER
from regraft.options import InstallOptions, ProfileMigrationOptions
from regraft.report.document import Endpoint
from regraft.report.migration import MigrationReport
from regraft.report.progress import Progress, SilentProgress
from regraft.stores.locate import CATALOG_FILE, Located, open_store
from regraft.text import format_bytes, path_text, printable
from repair.changes.plan import Action, Unresolved
from repair.changes.run import BaseName, undo_run
from repair.changes.session import recover_if_interrupted
from repair.changes.store import demand_not_running, open_for_change
from repair.cherry_v2.catalog_changes import demand_known_version, demand_profile
from repair.cherry_v2.install import made_library

#: The name of the library that a run leaves, if the user names none.
LIBRARY = "library"


class InstallPart(msgspec.Struct, frozen=True, kw_only=True):
    """The installation of a run: what it did or would do in the profile, and the findings that it left unresolved.

    ``undo`` is the id of the run in the profile if it can be undone, else None.
    """

    bases: list[BaseName]
    actions: list[Action]
    left: list[Unresolved]
    undo: str | None


class ProfileMigrationReport(MigrationReport, kw_only=True):
    """The report of a migration into a profile. The ``target`` of its head is the library."""

    profile: Endpoint
    install: InstallPart


#: Gets the plan before anything is written; False stops the run.
Confirm = Callable[[ProfileMigrationReport], bool]


class ProfileMigration(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run: its report, whether it wrote to the library, and ``chosen`` and ``failed`` of the
    :class:`~regraft.api.changes.Installation`.
    """

    report: ProfileMigrationReport
    wrote_library: bool
    chosen: dict[str, str]
    failed: dict[str, str]


def migrate_into_profile(
    source: str | Path,
    profile: str | Path,
    to: str | Path | None = None,
    *,
    options: ProfileMigrationOptions | None = None,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    **fields: Any,
) -> ProfileMigrationReport:
    """Migrate the bases of a v1 source to a library, and install them into a v2 profile; :func:`undo` takes both back.

    The library is ``to``, by default ``library`` in the current directory, or the first free name after it. If the
    profile cannot take any of the bases, nothing is written.

    Raises:
        Declined: ``confirm`` returned False.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(ProfileMigrationOptions, options, fields)
    return run_profile_migration(source, profile, to, options, progress=progress, confirm=confirm).report


def run_profile_migration(
    source: str | Path,
    profile: str | Path,
    to: str | Path | None,
    options: ProfileMigrationOptions,
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    on_open: Callable[[Located], None] | None = None,
) -> ProfileMigration:
    """Do what :func:`migrate_into_profile` does, and also return whether the library was written.

    ``on_open`` gets the recognized source before it is read.
    """
    root = _check_profile(Path(profile))
    with open_store(Path(source), options.kind, salvage=options.salvage) as found:
        target = choose_library(found.path) if to is None else Path(to)
        if links.is_at_or_below(target, root) or links.is_at_or_below(root, target):
            raise WrongUsage(
                problem=tr(
                    "one of the library {library} and the profile contains the other", library=printable(target)
                ),
                hint=tr("name a folder outside of the profile with --to"),
            )
        if on_open is not None:
            on_open(found)
        run = _ProfileRun(found, Path(profile), target, options, progress_or_silent(progress), confirm)
        return run.execute()


def choose_library(source: Path, folder: Path | None = None) -> Path:
    """Return the path of the library that is made of a source in a folder (default: the current directory).

    The path is ``library``, or the first free name after it: ``library-2``, ``library-3`` and so on. A name is free if
    its folder is empty, or a library that only migrations of this source have written: then the run continues it.
    """
    parent = Path() if folder is None else folder
    names = (parent / (LIBRARY if number == 1 else f"{LIBRARY}-{number}") for number in count(1))
    return next(path for path in names if _is_free(path, source))


def _is_free(path: Path, source: Path) -> bool:
    """Whether a library can be written to a path: nothing exists there, or a library made only from this source."""
    if not os.path.lexists(path):
        return True
    with suppress(OSError):
        return path.is_dir() and (
            {*map(attrgetter("name"), path.iterdir())} <= {FOLDER} or made_library.is_made_from(path, source)
        )
    return False


def _check_profile(profile: Path) -> Path:
    """Check that a path is a v2 profile that can be changed now; return its root.

    Raises:
        NotChanged, ProfileUnknown, ProfilePending, ApplicationOpen, SourceNotFound
    """
    with open_for_change(profile, None, "install") as store:
        demand_profile(store, command="install", advice=tr("name the application's profile folder with --profile"))
        demand_known_version(store)
        demand_not_running(store)
        return store.root


class _NothingToInstall(Exception):
    """Stops a migration before it writes, because the profile would take none of its bases."""

    def __init__(self, planned: MigrationReport) -> None:
        super().__init__()
        self.planned = planned


class _ProfileRun:
    """One run of a migration and an installation. Single use."""

    def __init__(
        self,
        source: Located,
        profile: Path,
        target: Path,
        options: ProfileMigrationOptions,
        progress: Progress,
        confirm: Confirm | None,
    ) -> None:
        self._source = source
        self._profile = profile
        self._target = target
        self._progress = progress
        self._confirm = confirm
        recorded = made_library.library_actions(source.path, profile)
        self._options = structs.replace(options, now_ms=time_or_now(options.now_ms))
        self._migration = structs.replace(migration_options(self._options), recorded=recorded)
        self._planned: Installation | None = None

    def execute(self) -> ProfileMigration:
        """Plan both parts, ask for confirmation, migrate, and install."""
        try:
            migrated = migrators.migrate(
                self._source, self._target, self._migration, self._progress, self._confirm_plan, self._plan_from_outline
            )
        except _NothingToInstall as stop:
            assert self._planned is not None
            head = structs.replace(stop.planned.head, run=self._planned.report.head.run)
            return self._result(structs.replace(stop.planned, head=head), self._planned, wrote=False)
        bases = [base.id for base in migrated.report.bases]
        planned = self._planned
        if planned is None and not bases:
            empty = InstallReport(head=migrated.report.head, bases=[], actions=[], left=[], undo=None)
            planned = Installation(report=empty, chosen={})
        elif planned is None:
            # The library is up to date: only the installation is left to confirm.
            planned = self._plan_installation(self._target, bases)
            if (
                planned.report.actions
                and not self._options.dry_run
                and not self._confirm_plan(migrated.report, planned)
            ):
                raise Declined(path=self._profile)
        if planned.report.actions and not self._options.dry_run:
            planned = self._install(bases, wrote=migrated.wrote)
        return self._result(migrated.report, planned, wrote=migrated.wrote)

    # --- planning ----------------------------------------------------------------------------------------------------

    def _plan_from_outline(self, plan: LibraryPlan, at: Session, report: MigrationReport) -> None:
        """Plan the installation of a library that is not written yet, and keep the plan; the migration calls this.

        Args:
            plan: the plan of the library.
            at: the session of the migration.
            report: the plan as a report.

        Raises:
            NotEnoughSpace: the disk has no room for both, or that of the profile for the bases.
            RegraftError: the profile refuses the installation.
            _NothingToInstall: the profile takes none of the bases.
        """
        bases = [job.base_id for job in plan.jobs]
        if all(job.unchanged is not None for job in plan.jobs) and (self._target / CATALOG_FILE).is_file():
            self._planned = self._plan_installation(self._target, bases)
        else:
            with scratch.temporary_folder() as folder:
                write_outline(folder, plan.jobs, at, report, self._migration.now_ms)
                self._planned = self._plan_installation(folder, bases, is_outline=True)
        if not self._planned.report.actions and not self._options.dry_run:
            raise _NothingToInstall(report)
        self._demand_space(plan)

    def _plan_installation(self, library: Path, bases: Sequence[str], *, is_outline: bool = False) -> Installation:
        """Plan what the library, or its outline, will change in the profile; ``bases`` are ids."""
        options = structs.replace(self._install_options(bases), dry_run=True)
        return install_bases(
            library, self._profile, options, library=self._target, wrote=is_outline, is_outline=is_outline
        )

    def _install_options(self, bases: Sequence[str]) -> InstallOptions:
        """Return the options of ``install`` for bases of the library, given by id."""
        # Models were mapped and created again by the migration.
        return InstallOptions(
            bases=tuple(bases),
            recreate_provider=self._options.recreate_provider,
            as_new=self._options.as_new,
            now_ms=self._options.now_ms,
        )

    def _demand_space(self, plan: LibraryPlan) -> None:
        """Refuse a run if the disk of the profile has no room for a copy of the bases.

        Raises:
            NotEnoughSpace
        """
        indexes = (job.unchanged.report.index for job in plan.jobs if job.unchanged is not None)
        written = sum(index.bytes or 0 for index in indexes if index is not None)
        needed, library = plan.bytes + written, preflight.existing_parent(self._target)
        if library.stat().st_dev == self._profile.stat().st_dev:
            needed += plan.bytes
        free = shutil.disk_usage(self._profile).free
        if needed > free:
            raise NotEnoughSpace(path=self._profile, needed=format_bytes(needed), free=format_bytes(free))

    def _confirm_plan(self, report: MigrationReport, planned: Installation | None = None) -> bool:
        """Ask the caller to confirm the plans of the migration and of the installation; return whether to continue.

        ``planned`` is the plan of the installation; None: the one that was kept.
        """
        planned = self._planned if planned is None else planned
        assert planned is not None
        return self._confirm is None or self._confirm(self._report(report, planned))

    # --- installing --------------------------------------------------------------------------------------------------

    def _install(self, bases: Sequence[str], *, wrote: bool) -> Installation:
        """Install bases of the library.

        If that fails, the profile is left as it was; ``wrote``: this run wrote the library.

        Raises:
            InstallationStopped: the library was written by this run.
            Interrupted, RegraftError
        """
        self._undo_partial_run()
        try:
            return install_bases(
                self._target,
                self._profile,
                self._install_options(bases),
                progress=self._progress,
                library=self._target,
                wrote=wrote,
            )
        except RegraftError as error:
            with suppress(RegraftError):
                self._undo_partial_run()
            if isinstance(error, Interrupted):
                raise Interrupted(finished=len(bases)) from error
            if not wrote:
                raise
            reason = str(error).rstrip(".")
            raise InstallationStopped(path=self._profile, library=self._target, reason=reason) from error

    def _undo_partial_run(self) -> None:
        """Undo what a stopped or killed run has installed so far, so that one undo takes back all of it."""
        with open_for_change(self._profile, None, "undo") as store:
            # Whether a killed run made its last change is known only after recovery from it.
            recover_if_interrupted(store)
            run = made_library.find_partial_run(store.root)
        if run is not None:
            undo_run(self._profile, run, progress=SilentProgress())

    # --- reporting ---------------------------------------------------------------------------------------------------

    def _result(self, report: MigrationReport, installed: Installation, *, wrote: bool) -> ProfileMigration:
        """Make the result of the run from both reports; ``wrote``: whether the library was written."""
        return ProfileMigration(
            report=self._report(report, installed),
            wrote_library=wrote,
            chosen=installed.chosen,
            failed=installed.failed,
        )

    def _report(self, report: MigrationReport, installed: Installation) -> ProfileMigrationReport:
        """Join the reports of the migration and the installation."""
        part = installed.report
        finished_at = report.head.run.finished_at and part.head.run.finished_at
        run = structs.replace(report.head.run, finished_at=finished_at)
        fields = structs.asdict(report) | {"head": structs.replace(report.head, run=run)}
        return ProfileMigrationReport(
            **fields,
            profile=Endpoint(kind=Kind.V2_PROFILE.value, path=path_text(self._profile)),
            install=InstallPart(bases=part.bases, actions=part.actions, left=part.left, undo=part.undo),
        )
