"""The commands that write bases somewhere else, as functions: ``migrate``, ``import_``, ``export``, ``pack``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import migrators
from regraft.api.arguments import agree, merge_options, parse_model_overrides, progress_or_silent, time_or_now
from regraft.disk import sqlite, writable
from regraft.errors import WrongUsage
from regraft.kinds import Kind
from regraft.language import join_list, tr
from regraft.options import ExportOptions, ImportOptions, MigrateOptions, PackOptions
from regraft.report.document import Run
from regraft.report.progress import Progress
from regraft.stores.locate import Located, open_store
from regraft.stores.write_checks import places_read

# What reads and writes Parquet files and packs is loaded where it is used: migrate starts without it.
if TYPE_CHECKING:
    from regraft.formats.parquet.export import BaseExport, ExportReport
    from repair.cherry_v2.pack import PackReport

#: Gets the plan before anything is written; False stops the run.
Confirm = Callable[[migrators.MigrationReport], bool]


def migrate(
    source: str | Path,
    to: str | Path,
    options: MigrateOptions | None = None,
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    **fields: Any,
) -> migrators.MigrationReport:
    """Migrate the bases of a v1 source, a preview build or rsclaw to a v2 library; ``to`` is new, empty or a library.

    Raises:
        Declined: ``confirm`` returned False.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(MigrateOptions, options, fields)
    return run_migration(source, to, options, progress=progress, confirm=confirm).report


def run_migration(
    source: str | Path,
    to: str | Path,
    options: MigrateOptions,
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    on_open: Callable[[Located], None] | None = None,
) -> migrators.Migration:
    """Do what :func:`migrate` does, and also return whether anything was written.

    ``on_open`` gets the recognized source before it is read.
    """
    wanted = migration_options(options)
    with open_store(Path(source), options.kind, salvage=options.salvage) as found:
        if on_open is not None:
            on_open(found)
        return migrators.migrate(found, Path(to), wanted, progress_or_silent(progress), confirm or agree)


def migration_options(options: MigrateOptions) -> migrators.Options:
    """Convert the user's options to those of :mod:`migrators`."""
    return migrators.Options(
        now_ms=time_or_now(options.now_ms),
        model_overrides=parse_model_overrides(options.map_model, options.recreate_model),
        bases=options.bases,
        jobs=options.jobs,
        dry_run=options.dry_run,
        while_running=options.while_running,
        restore_duplicates=options.restore_duplicates,
        carry_text=options.carry_text,
        adopt_orphans=options.adopt_orphans,
        salvage=options.salvage,
        visible_to=options.visible_to,
        verify=options.verify,
    )


def import_(
    files: Iterable[str | Path],
    to: str | Path,
    options: ImportOptions | None = None,
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
    **fields: Any,
) -> migrators.MigrationReport:
    """Write a library from Parquet files that :func:`export` wrote. Needs pyarrow.

    With the format "chroma", use :func:`import_collection`.

    Raises:
        Declined: ``confirm`` returned False.
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(ImportOptions, options, fields)
    return run_import(files, to, options, progress=progress, confirm=confirm).report


def run_import(
    files: Iterable[str | Path],
    to: str | Path,
    options: ImportOptions,
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
) -> migrators.Migration:
    """Do what :func:`import_` does, and also return whether anything was written."""
    from migrators.parquet import import_files  # noqa: PLC0415 - see above

    _refuse_collection_options(options)
    wanted = migrators.Options(now_ms=time_or_now(options.now_ms), bases=options.bases, dry_run=options.dry_run)
    paths = tuple(Path(file) for file in files)
    return import_files(paths, Path(to), wanted, progress_or_silent(progress), confirm or agree)


def import_collection(
    files: Iterable[str | Path],
    to: str | Path,
    options: ImportOptions | None = None,
    *,
    progress: Progress | None = None,
    **fields: Any,
) -> ExportReport:
    """Write a base of Parquet files that :func:`export` wrote to a new collection in a folder of Chroma.

    Needs pyarrow and chromadb.

    Raises:
        RegraftError: any error of ``docs/errors.md``.
    """
    from migrators.parquet import open_files, select_bases  # noqa: PLC0415 - see above
    from regraft.formats.parquet.export import BaseExport, BaseSummary  # noqa: PLC0415

    options = merge_options(ImportOptions, options, fields)
    paths = tuple(Path(file) for file in files)
    chosen = select_bases(open_files(paths), options.bases)
    _demand_one_base([metadata.name for _, _, metadata in chosen])
    [(_, file, metadata)] = chosen
    file.survey(lambda _: None)
    part = BaseExport(
        metadata,
        file=file.path,
        summary=BaseSummary(
            vector_bytes=4 * (file.metadata.dimensions or 0) or None, bodies=file.totals_of(metadata).rows
        ),
        mark=sqlite.read_file_state(file.path),
        rows_of=lambda _, base, __: file.rows(base),
    )
    run = Run(command="import", source_kind="parquet", source=paths[0], target_kind=Kind.CHROMA.value, target=Path(to))
    return _write_collection(run, part, Path(to), options, progress)


def _write_collection(
    run: Run, part: BaseExport, to: Path, options: ExportOptions | ImportOptions, progress: Progress | None
) -> ExportReport:
    """Write the base ``part`` to a new collection in the Chroma folder ``to``, and make the report of the command.

    ``run`` has the command, its paths and its times.
    """
    from regraft.formats.parquet.export import ExportReport  # noqa: PLC0415 - see above
    from repair.chroma.new_collection import write_collection  # noqa: PLC0415

    if options.collection is None:
        problem = tr("--format chroma needs the name of a collection")
        raise WrongUsage(problem=problem, hint=tr("give it with --collection NAME"))
    run.dry_run = options.dry_run
    reported = progress_or_silent(progress)
    written = write_collection(
        to, part, options.collection, options.distance, run.command, reported, dry_run=options.dry_run
    )
    run.end()
    return ExportReport(head=run.head(), bases=[part.report()], collection=written)


def _demand_one_base(names: list[str]) -> None:
    """Check that exactly one base is selected: the vectors of a collection have one model.

    Raises:
        WrongUsage
    """
    if len(names) != 1:
        problem = tr(
            "a collection is written from one base, but {count} are selected: {names}",
            count=len(names),
            names=join_list(names),
        )
        raise WrongUsage(problem=problem, hint=tr("choose one with --base"))


def _refuse_collection_options(options: ExportOptions | ImportOptions) -> None:
    """Refuse options that are for collections of Chroma only.

    Raises:
        WrongUsage
    """
    if isinstance(options, ExportOptions) and options.dry_run:
        problem = tr("--dry-run of export applies only to a collection of Chroma")
        raise WrongUsage(problem=problem, hint=tr("add --format chroma"))
    for name in ("collection", "distance"):
        if getattr(options, name) is not None:
            problem = tr("--{name} applies only to a collection of Chroma", name=name)
            raise WrongUsage(problem=problem, hint=tr("add --format chroma"))


def export(
    path: str | Path,
    to: str | Path,
    options: ExportOptions | None = None,
    *,
    progress: Progress | None = None,
    **fields: Any,
) -> ExportReport:
    """Write units with their texts and vectors to a Parquet file, which needs pyarrow.

    With the format "chroma", write one base to a new collection in a folder of Chroma, which needs chromadb.

    Raises:
        RegraftError: any error of ``docs/errors.md``.
    """
    options = merge_options(ExportOptions, options, fields)
    return export_units(path, to, options, progress=progress)


def export_units(
    path: str | Path,
    to: str | Path,
    options: ExportOptions,
    *,
    file: Path | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Do what :func:`export` does, but write to ``file`` instead of ``to``, which the report names."""
    from regraft.formats.parquet.export import ExportReport  # noqa: PLC0415 - see above
    from regraft.formats.parquet.export import export as write_parquet  # noqa: PLC0415

    if options.format == "chroma":
        return _export_collection(Path(path), Path(to), options, progress)
    _refuse_collection_options(options)
    run = Run(command="export", target_kind="parquet", target=Path(to))
    with open_store(Path(path), options.kind) as found:
        run.source_kind, run.source = found.kind.value, found.path if found.notices else Path(path)
        parts = write_parquet(
            found,
            Path(to) if file is None else file,
            options.bases,
            progress_or_silent(progress),
            from_v1=options.from_v1,
            visible_to=options.visible_to,
        )
    run.end()
    return ExportReport(head=run.head(), bases=[part.report() for part in parts.bases])


def _export_collection(path: Path, to: Path, options: ExportOptions, progress: Progress | None) -> ExportReport:
    """Write the one selected base of a store to a new collection in the Chroma folder ``to``."""
    from regraft.formats.parquet.export import check_kind, open_units  # noqa: PLC0415 - see above

    run = Run(command="export", target_kind=Kind.CHROMA.value, target=to)
    with open_store(path, options.kind) as found:
        run.source_kind, run.source = found.kind.value, found.path if found.notices else path
        check_kind(found, from_v1=options.from_v1, visible_to=options.visible_to)
        writable.demand_outside(to, places_read(path, found))
        with open_units(found, options.bases, from_v1=options.from_v1, visible_to=options.visible_to) as parts:
            _demand_one_base([part.metadata.name for part in parts.bases])
            return _write_collection(run, parts.bases[0], to, options, progress)


def pack(
    source: str | Path,
    to: str | Path,
    options: PackOptions | None = None,
    *,
    progress: Progress | None = None,
    **fields: Any,
) -> PackReport:
    """Write bases with vectors, files and checksums to one zip file, for another machine.

    Raises:
        RegraftError: any error of ``docs/errors.md``.
    """
    from repair.cherry_v2 import pack as packing  # noqa: PLC0415 - see above

    options = merge_options(PackOptions, options, fields)
    wanted = packing.PackOptions(
        source=Path(source),
        target=Path(to),
        now_ms=time_or_now(options.now_ms),
        kind=options.kind,
        bases=options.bases,
        dry_run=options.dry_run,
    )
    return packing.pack(wanted, progress_or_silent(progress))
