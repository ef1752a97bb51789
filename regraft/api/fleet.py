"""Run one command on many libraries, and on one library in a worker process (``docs/fleet.md``).

A worker calls the function of the command, as any program does, and returns a summary of its report.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from regraft import api, language
from regraft.api.outcome import as_regraft_error, exit_status
from regraft.disk import links, writable
from regraft.errors import WrongUsage
from regraft.fleet import jobs, manifest
from regraft.fleet.engine import LibrarySummary, LocalPool, Pool, ReportValues, TaskResult, Work
from regraft.fleet.jobs import LibraryJob, RunCommand
from regraft.fleet.ray_pool import RayPool
from regraft.fleet.results import FleetOrder, export_results, is_json_lines, result_files, to_json
from regraft.fleet.run import Fleet, Watch
from regraft.fleet.status import FleetReport, FleetStatus, Metrics, read_status, status_page
from regraft.formats.parquet.unit_file import import_arrow
from regraft.language import tr
from regraft.options import FleetOptions
from regraft.processes import pool as processes_pool
from regraft.report.document import Report, Run
from regraft.report.html import check_page_path, write_page

# Workers load the module of a report only with the command that makes it.
if TYPE_CHECKING:
    from checks.audit.findings import CheckReport
    from regraft.report.migration import MigrationReport
    from repair.changes.run import ChangeReport
    from repair.embedding.report import BackfillReport

# --- one library, in a worker ----------------------------------------------------------------------------------------


def run_command(job: LibraryJob, call: Callable[[LibraryJob], tuple[Report, LibrarySummary]]) -> TaskResult:
    """Run the command of one library in this process, and time it; an exception becomes its result.

    ``call`` runs the command and returns its report and a summary. The command uses the number of cores of the job.
    """
    processes_pool.set_core_limit(job.cores)

    def run(local: LibraryJob) -> TaskResult:
        """Run the command on local copies of its paths."""
        with links.follow_links(local.options.follows_links):
            report, summary = call(local)
        return TaskResult(status=exit_status(report, local.options.fail_on), summary=summary, seconds=0.0)

    def run_caught(call: RunCommand, job: LibraryJob) -> TaskResult:
        """Call a function with a job; an exception becomes the result."""
        try:
            return call(job)
        except (Exception, KeyboardInterrupt) as error:
            return jobs.failed_result(as_regraft_error(error))

    begun = time.monotonic()
    # Inside, so that nothing is published of a command that failed; outside, for what copies and publishes.
    ended = run_caught(lambda job: jobs.run_library_job(job, partial(run_caught, run)), job)
    seconds = time.monotonic() - begun
    return msgspec.structs.replace(ended, seconds=seconds, host=socket.gethostname(), pid=os.getpid())


def _call(job: LibraryJob) -> tuple[Report, LibrarySummary]:
    """Call the function of :mod:`regraft.api` for a job; return its report, and a summary for the fleet's journal."""
    values: Any = job.options.values
    if job.command == "migrate":
        migrated = api.migrate(job.source, str(job.target), values)
        return migrated, _summarize_migration(migrated)
    if job.command == "export":
        exported = api.export(job.source, str(job.target), values)
        bases = (ReportValues(base=base.id, name=base.name, **_count_rows(base.rows)) for base in exported.bases)
        return exported, LibrarySummary(run=exported.head.run.id, bases=tuple(bases))
    if job.command == "check":
        checked = api.check(job.source, values)
        return checked, _summarize_check(checked)
    change: Callable[..., ChangeReport] = api.repair if job.command == "repair" else api.upgrade
    changed = change(job.source, values)
    return changed, summarize_change(changed)


def run_job(job: LibraryJob) -> TaskResult:
    """Run the command of one library, and summarize its report."""
    return run_command(job, _call)


def _summarize_migration(report: MigrationReport) -> LibrarySummary:
    """Summarize the report of a migration for the journal of the fleet."""
    bases = (
        ReportValues(
            base=base.id,
            name=base.name,
            outcome=base.status,
            code=base.error or base.outcome,
            bytes=None if base.index is None else base.index.bytes,
            **_count_rows(base.rows),
        )
        for base in report.bases
    )
    totals, counts = to_json(report.totals), _count_rows(report.totals.rows)
    return LibrarySummary(run=report.head.run.id, totals=totals, bases=tuple(bases), **counts)


def _summarize_check(report: CheckReport) -> LibrarySummary:
    """Summarize the report of a check for the journal of the fleet."""
    found: dict[str | None, Counter[str]] = {}
    for one in report.findings:
        found.setdefault(one.base, Counter())[one.name] += one.count
    bases = (
        ReportValues(base=base.id, name=base.name, findings=dict(found.get(base.id, {})), **_count_rows(base.rows))
        for base in report.statistics.bases or ()
    )
    totals = to_json(report.checked)
    return LibrarySummary(run=report.head.run.id, findings=report.summary.by_name, totals=totals, bases=tuple(bases))


def summarize_change(report: ChangeReport | BackfillReport) -> LibrarySummary:
    """Summarize the report of a command that changes a store, for the journal of the fleet."""
    left: Counter[str] = Counter()
    for one in report.left:
        left[one.finding] += one.count
    bases = tuple(ReportValues(base=base.id, name=base.name) for base in report.bases)
    return LibrarySummary(run=report.head.run.id, findings=dict(left), bases=bases)


def _count_rows(rows: object) -> dict[str, Any]:
    """Map columns of the fleet's results to counts of a report's ``rows``; None for counts that it lacks."""
    names = {"rows_read": "read", "rows_carried": "carried", "skipped": "skipped"}
    return {column: getattr(rows, name, None) for column, name in names.items()}


# --- all libraries ---------------------------------------------------------------------------------------------------


def run_fleet(
    order: FleetOrder,
    path: Path,
    options: FleetOptions,
    make: Callable[..., Fleet],
    work: Work = run_job,
    *,
    dry_run: bool = False,
    watch: Watch = lambda _: None,
) -> FleetReport:
    """Run a command on the libraries of an order that have no result yet, and write the results to ``path``.

    Args:
        order: the command, its options and the libraries.
        path: the file of the results.
        options: how the fleet runs.
        make: makes the fleet from the arguments that ``options`` do not have.
        work: runs the job of one library in a worker process.
        dry_run: write no results; the options of the order make each command write nothing.
        watch: called with the row of each library that ends.

    Raises:
        RegraftError: any error of ``docs/errors.md``.
    """
    check_engine(order, options, path)
    kind = "jsonl" if is_json_lines(path) else "parquet"
    # A dry run of a backfill has a work folder beside its results.
    target = None if dry_run and order.command != "backfill" else path
    run = Run(command=f"fleet {order.command}", target_kind=kind, target=target, dry_run=dry_run)
    fleet = make(
        order=order,
        path=path,
        pool=partial(open_pool, options, work),
        attempts=options.attempts,
        # A dry run leaves nothing that could be continued.
        keep_going=options.keep_going or dry_run,
        only=getattr(options, "only", ()),
        dry_run=dry_run,
    )
    # Results are for programs; what this process says is for its reader.
    reader = language.current_language()
    with language.language_of_children(language.ENGLISH), language.use_language(reader):
        return fleet.run(run, watch)


def check_engine(order: FleetOrder, options: FleetOptions, path: Path) -> None:
    """Check that what a fleet needs is installed, and that ``--address`` is only given for a Ray cluster.

    Raises:
        WrongUsage: a check failed.
    """
    if not is_json_lines(path):
        try:
            # Without it nothing could be written in the end.
            import_arrow()
        except WrongUsage as error:
            hint = tr("name a results file that ends in .jsonl, or {hint}", hint=error.facts["hint"])
            raise WrongUsage(problem=error.facts["problem"], hint=hint) from error
    manifest.demand_clients(order.libraries)
    if options.address is not None and options.engine != "ray":
        raise WrongUsage(problem=tr("--address is only for --engine ray"), hint=tr("add --engine ray"))


def open_pool(options: FleetOptions, work: Work) -> Pool:
    """Open the worker processes in which ``work`` runs the job of each library.

    Raises:
        WrongUsage: Ray is not installed, or there is no such cluster.
    """
    if options.engine == "ray":
        return RayPool(work, options.address, options.workers, options.max_wait)
    return LocalPool(work, options.workers or processes_pool.usable_cores())


def open_metrics(order: FleetOrder, options: FleetOptions, path: Path, own: Iterable[Path]) -> Metrics | None:
    """Return the writer of the metrics file, or None without one; ``own`` are the files that the fleet writes.

    Raises:
        WrongUsage: prometheus_client is not installed, or the metrics file is one of ``own``, or inside a library.
    """
    if options.metrics is None:
        return None
    metrics = Metrics(
        options.metrics, path, command=order.command, engine=options.engine, libraries=len(order.libraries)
    )
    taken = set(map(links.real_path, own))
    for file in metrics.files:
        real = links.real_path(file)
        if real in taken or not taken.isdisjoint(real.parents):
            problem = tr("the metrics file {path} would overwrite the results", path=file)
            raise WrongUsage(problem=problem, hint=tr("use another file"))
    metrics.demand_path()
    manifest.demand_apart(order.libraries, metrics.files)
    return metrics


def fleet_status(
    path: Path, *, page: Path | None = None, table: Path | None = None, lines: Path | None = None
) -> FleetStatus:
    """Return the state of a fleet that runs or has ended, and write its rows to files.

    Args:
        path: the file of the results, which may not exist yet.
        page: an HTML page, which may replace an earlier one.
        table: a new CSV file.
        lines: a new JSON Lines file.

    Raises:
        SourceNotFound, WrongUsage: the path has no results of a fleet, or a file exists already.
        ReportNotWritable: the page cannot be written.
        OSError: a file cannot be read or written.
    """
    own = result_files(path)
    check_page_path("fleet", page, *own)
    tables = [(file, is_lines) for file, is_lines in ((table, False), (lines, True)) if file is not None]
    for file, is_lines in tables:
        _check_table(file, own, is_lines=is_lines)
    found, rows = read_status(path)
    if page is not None:
        write_page(page, status_page(found, rows))
    for file, _ in tables:
        export_results(file, rows)
    return found


def _check_table(path: Path, own: Iterable[Path], *, is_lines: bool) -> None:
    """Check that a table is a new file, not one of the fleet's files ``own``, and that its suffix fits its format.

    ``is_lines``: JSON Lines instead of CSV.

    Raises:
        WrongUsage: a check failed.
    """
    if path.exists() or path.is_symlink() or links.real_path(path) in map(links.real_path, own):
        raise WrongUsage(problem=tr("{path} already exists", path=path), hint=tr("use another file"))
    writable.demand_output(path)
    if is_lines and not is_json_lines(path):
        raise WrongUsage(problem=tr("{path} does not end in .jsonl", path=path), hint=tr("use another file"))
    if is_json_lines(path) and not is_lines:
        raise WrongUsage(problem=tr("{path} ends in .jsonl", path=path), hint=tr("use --jsonl"))
