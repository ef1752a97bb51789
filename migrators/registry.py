"""By which pipeline a source is migrated, and what to say of one that is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from migrators import cherry_preview, cherry_v1, rsclaw
from migrators.pipeline import run
from migrators.pipeline.options import Options
from migrators.pipeline.session import Migration
from migrators.pipeline.source import Pipeline
from regraft import systems
from regraft.errors import SourceNotMigratable, WrongUsage
from regraft.kinds import NAMES, V1_ORPHANS, V1_SOURCES, Kind
from regraft.language import tr
from regraft.locate import Located
from regraft.report.migration import MigrationReport, SourcePlan
from regraft.report.progress import Progress

#: What to do about a source that is recognised but not migrated.
_ADVICE = {
    **dict.fromkeys(
        V1_ORPHANS,
        tr(
            "give the backup, or the knowledge state beside its vector files; --adopt-orphans makes a base of the rows "
            "alone"
        ),
    ),
    Kind.V2_BACKUP: tr("its bases are in the v2 layout already"),
    Kind.V2_PROFILE: tr("its bases are in the v2 layout already"),
    Kind.LIBRARY: tr("it is in the v2 layout already"),
    Kind.BASE: tr("it is in the v2 layout already"),
    Kind.INDEX: tr("it is in the v2 layout already"),
    **{system.kind: system.migrate_advice for system in systems.every()},
    Kind.PREVIEW_LIBRARY: tr("no store of a preview build is in it"),
}


def pipeline_of(source: Located, *, adopt_orphans: bool = False) -> Pipeline:
    """Return how a source is migrated; vector files alone only where bases are to be made of such.

    Raises:
        SourceNotMigratable: it is recognised, but there is nothing to migrate.
    """
    if source.kind in V1_SOURCES or (adopt_orphans and source.kind in V1_ORPHANS):
        return cherry_v1.PIPELINE
    if source.kind is Kind.RSCLAW:
        return rsclaw.PIPELINE
    if source.kind is Kind.PREVIEW or source.stores.has_preview:
        return cherry_preview.PIPELINE
    advice = _ADVICE[source.kind]
    if source.v1_left:
        advice += tr("; --kind v1-profile reads what v1 left in it")
    raise SourceNotMigratable(path=source.path, what=NAMES[source.kind], advice=advice)


def migrate(
    source: Located,
    target: Path,
    options: Options,
    progress: Progress,
    show_plan: Callable[[MigrationReport], bool] = lambda _: True,
) -> Migration:
    """Migrate a source into ``target`` by the pipeline of its layout; see :func:`migrators.pipeline.run.migrate`.

    Raises:
        WrongUsage: an option says nothing about the source.
    """
    pipeline = _chosen_pipeline(source, options)
    return run.migrate(pipeline, source, target, options, progress, show_plan)


def _chosen_pipeline(source: Located, options: Options, *, is_a_look: bool = False) -> Pipeline:
    pipeline = pipeline_of(source, adopt_orphans=options.adopt_orphans or is_a_look)
    if options.visible_to and not pipeline.has_visibility:
        raise WrongUsage(
            problem=tr("--visible-to is for documents of {kind}", kind=NAMES[Kind.RSCLAW]), hint=tr("leave it out")
        )
    if options.adopt_orphans and not pipeline.has_orphans:
        problem = tr("--adopt-orphans is for vector files of v1, and this is {kind}", kind=NAMES[source.kind])
        raise WrongUsage(problem=problem, hint=tr("leave it out"))
    return pipeline


def plan_only(source: Located, options: Options, progress: Progress) -> SourcePlan:
    """Plan a source without a target, by the pipeline of its layout; see :func:`migrators.pipeline.run.plan_only`."""
    return run.plan_only(_chosen_pipeline(source, options, is_a_look=True), source, options, progress)
