"""Bases from one layout or place to another: ``migrate``, ``export``, ``import_``, ``pack``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import migrators
from migrators.parquet.run import import_files
from regraft.api.arguments import as_path, parse_kind, parse_model_overrides, progress_or_silent, time_or_now
from regraft.formats.parquet.export import ExportReport
from regraft.formats.parquet.export import export as write_parquet
from regraft.kinds import Kind
from regraft.report.document import Run
from regraft.report.progress import Progress
from regraft.stores.locate import open_store
from repair.cherry_v2 import pack as packing

#: Is shown a plan; False stops before anything is written.
Confirm = Callable[[migrators.MigrationReport], bool]


def migrate(
    source: str | Path,
    to: str | Path,
    *,
    kind: Kind | str | None = None,
    bases: Sequence[str] = (),
    map_model: Mapping[str, str] | None = None,
    recreate_model: Iterable[str] = (),
    jobs: int | None = None,
    dry_run: bool = False,
    while_running: bool = False,
    restore_duplicates: bool = True,
    carry_text: bool = False,
    adopt_orphans: bool = False,
    salvage: bool = False,
    visible_to: Sequence[str] = (),
    verify: bool = False,
    now_ms: int | None = None,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
) -> migrators.MigrationReport:
    """Migrate a knowledge base to a v2 library; options as of ``regraft migrate``.

    Raises:
        Declined: ``confirm`` said no.
        RegraftError: as ``docs/errors.md`` has them.
    """
    options = migrators.Options(
        now_ms=time_or_now(now_ms),
        model_overrides=parse_model_overrides(map_model or {}, recreate_model),
        bases=tuple(bases),
        jobs=jobs,
        dry_run=dry_run,
        while_running=while_running,
        restore_duplicates=restore_duplicates,
        carry_text=carry_text,
        adopt_orphans=adopt_orphans,
        salvage=salvage,
        visible_to=tuple(visible_to),
        verify=verify,
    )
    with open_store(as_path(source), parse_kind(kind), salvage=salvage) as found:
        return migrators.migrate(found, as_path(to), options, progress_or_silent(progress), confirm or _agreed).report


def _agreed(_: migrators.MigrationReport) -> bool:
    return True


def import_(
    files: Iterable[str | Path],
    to: str | Path,
    *,
    bases: Sequence[str] = (),
    dry_run: bool = False,
    now_ms: int | None = None,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
) -> migrators.MigrationReport:
    """Write the library that Parquet files of :func:`export` hold; options as of ``regraft import``.

    Raises:
        Declined: ``confirm`` said no.
        RegraftError: as ``docs/errors.md`` has them.
    """
    options = migrators.Options(now_ms=time_or_now(now_ms), bases=tuple(bases), dry_run=dry_run)
    paths = tuple(as_path(file) for file in files)
    return import_files(paths, as_path(to), options, progress_or_silent(progress), confirm or _agreed).report


def export(
    path: str | Path,
    to: str | Path,
    *,
    kind: Kind | str | None = None,
    bases: Sequence[str] = (),
    from_v1: bool = False,
    visible_to: Sequence[str] = (),
    progress: Progress | None = None,
) -> ExportReport:
    """Write units with texts and vectors to a Parquet file; options as of ``regraft export``. Needs pyarrow.

    Raises:
        RegraftError: as ``docs/errors.md`` has them.
    """
    place, target = as_path(path), as_path(to)
    run = Run(command="export", target_kind="parquet", target=target)
    with open_store(place, parse_kind(kind)) as found:
        run.source_kind, run.source = found.kind.value, found.path if found.notices else place
        wanted = tuple(bases)
        parts = write_parquet(
            found, target, wanted, progress_or_silent(progress), from_v1=from_v1, visible_to=tuple(visible_to)
        )
    run.end()
    return ExportReport(head=run.head(), bases=[part.report() for part in parts.bases])


def pack(
    source: str | Path,
    to: str | Path,
    *,
    kind: Kind | str | None = None,
    bases: Sequence[str] = (),
    dry_run: bool = False,
    now_ms: int | None = None,
    progress: Progress | None = None,
) -> packing.PackReport:
    """Write bases to one zip file for another machine; options as of ``regraft pack``.

    Raises:
        RegraftError: as ``docs/errors.md`` has them.
    """
    options = packing.PackOptions(
        source=as_path(source),
        target=as_path(to),
        now_ms=time_or_now(now_ms),
        kind=parse_kind(kind),
        bases=tuple(bases),
        dry_run=dry_run,
    )
    return packing.pack(options, progress_or_silent(progress))
