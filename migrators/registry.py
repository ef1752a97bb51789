"""Selects the pipeline of a source by its layout, and explains why other sources cannot be migrated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from migrators.pipeline import run
from migrators.pipeline.run import LibraryPlan
from migrators.pipeline.session import Migration, Session
from migrators.pipeline.source import Options, Pipeline
from regraft.errors import SourceNotMigratable, WrongUsage
from regraft.kinds import KIND_NAMES, V1_ORPHANS, V1_SOURCES, Kind
from regraft.language import tr
from regraft.report.migration import MigrationReport, SourcePlan
from regraft.report.progress import Progress
from regraft.stores import systems
from regraft.stores.locate import Located
from regraft.stores.systems import StoredVectors


def _explain_not_migratable(kind: Kind) -> str:
    """Explain what to do with a source that is recognized but cannot be migrated."""
    if kind in V1_ORPHANS:
        return tr(
            "give the backup, or a folder with the knowledge state beside the vector files; "
            "--adopt-orphans makes a base from the rows alone"
        )
    if kind.system:
        return systems.system_of(kind).migrate_advice
    if kind is Kind.PREVIEW_LIBRARY:
        return tr("it contains no store of a preview build")
    if kind in (Kind.V2_BACKUP, Kind.V2_PROFILE):
        return tr("its bases are in the v2 layout already")
    return tr("it is in the v2 layout already")


def pipeline_of(source: Located, *, adopt_orphans: bool = False) -> Pipeline:
    """Return the pipeline for the layout of a source. Vector files without a state need ``adopt_orphans``.

    Raises:
        SourceNotMigratable: the source is recognized but there is nothing to migrate.
    """
    if source.kind in V1_SOURCES or (adopt_orphans and source.kind in V1_ORPHANS):
        return _load_pipeline("cherry_v1")
    if source.kind.system and find_spec(f"migrators.{source.kind.system}") is not None:
        return _load_pipeline(source.kind.system)
    if source.kind is Kind.PREVIEW or source.stores.has_preview:
        return _load_pipeline("cherry_preview")
    advice = _explain_not_migratable(source.kind)
    if source.has_v1_state:
        advice += tr("; --kind v1-profile reads the v1 data left in it")
    raise SourceNotMigratable(path=source.path, what=KIND_NAMES[source.kind], advice=advice)


def import_parquet(paths: tuple[Path, ...], target: Path, options: Options, progress: Progress) -> Migration:
    """Import files of ``regraft export`` into a library; see :func:`migrators.parquet.import_files`."""
    return cast(Migration, import_module("migrators.parquet").import_files(paths, target, options, progress))


def read_parquet_vectors(path: Path) -> Iterator[StoredVectors]:
    """Yield the vectors of a file of ``regraft export``, base by base; see :func:`migrators.parquet.read_vectors`."""
    return cast(Iterator[StoredVectors], import_module("migrators.parquet").read_vectors(path))


def _load_pipeline(system: str) -> Pipeline:
    """Import the package of a layout and return its pipeline."""
    return cast(Pipeline, import_module(f"migrators.{system}").PIPELINE)


def migrate(
    source: Located,
    target: Path,
    options: Options,
    progress: Progress,
    show_plan: Callable[[MigrationReport], bool] = lambda _: True,
    examine: Callable[[LibraryPlan, Session, MigrationReport], None] = lambda *_: None,
) -> Migration:
    """Migrate a source with the pipeline of its layout; see :func:`migrators.pipeline.run.migrate`.

    Raises:
        WrongUsage: an option does not apply to the source.
    """
    pipeline = _select_pipeline(source, options)
    return run.migrate(pipeline, source, target, options, progress, show_plan, examine)


def _select_pipeline(source: Located, options: Options, *, is_plan_only: bool = False) -> Pipeline:
    """Return the pipeline for a source and check that it supports the options.

    ``is_plan_only`` allows vector files without a state.

    Raises:
        WrongUsage: an option does not apply to the source.
    """
    pipeline = pipeline_of(source, adopt_orphans=options.adopt_orphans or is_plan_only)
    if options.visible_to and not pipeline.has_visibility:
        raise WrongUsage(
            problem=tr("--visible-to only applies to documents of {kind}", kind=KIND_NAMES[Kind.RSCLAW]),
            hint=tr("leave it out"),
        )
    if options.adopt_orphans and not pipeline.has_orphans:
        problem = tr(
            "--adopt-orphans only applies to vector files of v1, and this is {kind}", kind=KIND_NAMES[source.kind]
        )
        raise WrongUsage(problem=problem, hint=tr("leave it out"))
    return pipeline


def plan_only(source: Located, options: Options, progress: Progress) -> SourcePlan:
    """Plan a source without a target; see :func:`migrators.pipeline.run.plan_only`."""
    return run.plan_only(_select_pipeline(source, options, is_plan_only=True), source, options, progress)
