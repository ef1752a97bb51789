"""Which journey a source goes, and what to say of one that goes none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from migrators import cherry_v1
from migrators.stages import run
from migrators.stages.journey import Journey
from migrators.stages.options import Options
from migrators.stages.run import Migration
from regraft.errors import SourceNotMigratable
from regraft.locate import NAMES, V1_SOURCES, Kind, Located
from regraft.progress import Progress

#: What to do about a source that is recognised but not migrated.
_ADVICE = {
    Kind.V1_VECTORS: "give the backup, or the knowledge state beside its vector files",
    Kind.V2_BACKUP: "its bases are in the v2 layout already",
    Kind.V2_PROFILE: "its bases are in the v2 layout already",
    Kind.LIBRARY: "it is in the v2 layout already",
    Kind.BASE: "it is in the v2 layout already",
    Kind.INDEX: "it is in the v2 layout already",
    Kind.PREVIEW: "reading the preview layout is not part of this version",
}


def journey_of(source: Located) -> Journey:
    """Return how a source is migrated.

    Raises:
        SourceNotMigratable: it is recognised, but there is nothing to migrate.
    """
    if source.kind in V1_SOURCES:
        return cherry_v1.JOURNEY
    raise SourceNotMigratable(path=source.path, what=NAMES[source.kind], advice=_ADVICE[source.kind])


def migrate(
    source: Located,
    target: Path,
    options: Options,
    progress: Progress,
    show_plan: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> Migration:
    """Migrate a source into ``target`` by the journey of its layout; see :func:`migrators.stages.run.migrate`."""
    return run.migrate(journey_of(source), source, target, options, progress, show_plan)
