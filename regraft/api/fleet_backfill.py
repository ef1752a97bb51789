"""Embed what has no vector in many libraries, each distinct text once (``docs/fleet.md``)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from regraft.api.arguments import list_sources
from regraft.api.embedding import backfill_from, choose_priced_embedder
from regraft.api.fleet import run_command, summarize_change
from regraft.errors import WrongUsage
from regraft.fleet.engine import LibrarySummary, TaskResult, Work
from regraft.fleet.jobs import LibraryJob
from regraft.fleet.manifest import Library
from regraft.fleet.results import FleetOrder, result_files
from regraft.fleet.run import Fleet, demand_new_results
from regraft.language import tr
from regraft.options import BackfillOptions, FleetBackfillOptions, FleetResumeOptions
from regraft.report.document import Report
from repair.embedding import answers
from repair.embedding.budget import Limits, Rates
from repair.embedding.fleet import BackfillSettings, FleetBackfill, work_folder
from repair.embedding.fleet_jobs import BackfillSummary, EmbeddingJob, SendingJob, send_part
from repair.embedding.reuse import choose_readable


def make_backfill_order(options: FleetBackfillOptions, words: tuple[str, ...], libraries: list[Library]) -> FleetOrder:
    """Choose the embedder of a fleet's backfill, and make its order; ``words`` are the options of every library.

    Raises as :func:`regraft.api.embedding.choose_priced_embedder` does.
    """
    limits = Limits(options.limit, options.max_requests, options.max_cost)
    settings = BackfillSettings(
        embedder=choose_priced_embedder(options.config, options.embedder, limits, frozenset()).name,
        config=None if options.config is None else str(options.config.absolute()),
        limits=limits,
        rates=Rates(requests=options.requests_per_minute, tokens=options.tokens_per_minute),
        no_probe=not options.probe,
        reuse=tuple(str(path.absolute()) for path in choose_readable(list_sources(options))),
    )
    return FleetOrder(
        command="backfill",
        options=words,
        libraries=tuple(libraries),
        id=secrets.token_hex(8),
        told=msgspec.to_builtins(settings),
    )


def check_new_backfill(path: Path) -> None:
    """Check that neither the results file nor its work folder (texts and answers) exists; raises WrongUsage."""
    demand_new_results(path)
    folder = work_folder(path)
    if folder.exists():
        # Without a journal it cannot be resumed.
        hint = tr("remove the folder, or name another file")
        if (folder / answers.ANSWERS_FILE).exists():
            hint = tr("name another file, or remove the folder with the answers that were paid for")
        raise WrongUsage(problem=tr("{path} already exists", path=folder), hint=hint)


def backfill_files(path: Path) -> tuple[Path, ...]:
    """Return the paths that a fleet's backfill writes besides its libraries; ``path`` is the results file."""
    return (*result_files(path), work_folder(path))


def prepare_backfill(order: FleetOrder, path: Path) -> tuple[Callable[..., Fleet], Work]:
    """Return the arguments ``make`` and ``work`` of :func:`regraft.api.fleet.run_fleet` for a backfill.

    ``path`` is the results file. Raises as :func:`make_backfill_order` does.

    Raises:
        WrongUsage: the order is not one of a backfill.
    """
    settings = _read_settings(order, path)
    config = None if settings.config is None else Path(settings.config)
    make = partial(
        FleetBackfill,
        embedder=choose_priced_embedder(config, settings.embedder, settings.limits, frozenset()),
        settings=settings,
    )
    return make, run_embedding_job


def replace_limits(order: FleetOrder, path: Path, options: FleetResumeOptions) -> FleetOrder:
    """Return a backfill's order with the limits that the options of ``resume`` replace; ``path`` is the results file.

    Raises:
        WrongUsage: the order is not one of a backfill, but there are limits.
    """
    given = {"texts": options.limit, "requests": options.max_requests, "cost": options.max_cost}
    changed = {name: value for name, value in given.items() if value is not None}
    if not changed:
        return order
    if order.command != "backfill":
        problem = tr("limits are for a backfill, and {path} has results of {command}", path=path, command=order.command)
        raise WrongUsage(problem=problem, hint=tr("omit --limit, --max-requests and --max-cost"))
    settings = _read_settings(order, path)
    settings = msgspec.structs.replace(settings, limits=msgspec.structs.replace(settings.limits, **changed))
    return msgspec.structs.replace(order, told=msgspec.to_builtins(settings))


def _read_settings(order: FleetOrder, path: Path) -> BackfillSettings:
    """Return the backfill's settings from an order; ``path`` is the results file that an error names.

    Raises:
        WrongUsage: the order has no such settings.
    """
    try:
        return msgspec.convert(order.told, BackfillSettings)
    except msgspec.ValidationError as error:
        problem = tr("{path} has no results of a fleet ({error})", path=path, error=error)
        raise WrongUsage(problem=problem, hint=tr("give the file that regraft fleet wrote with --results")) from error


def run_embedding_job(job: EmbeddingJob | SendingJob) -> TaskResult:
    """Run one job of a backfill in a worker process: collect a library's texts, fill a library, or send some texts."""
    if isinstance(job, SendingJob):
        return send_part(job)
    source = job.embedder_source()

    def call(line: LibraryJob) -> tuple[Report, LibrarySummary]:
        """Fill the library, or collect its texts; return the report, and its summary."""
        values = line.options.values
        assert isinstance(values, BackfillOptions)
        report = backfill_from(line.source, values, source)
        return report, BackfillSummary.of(summarize_change(report), report, source)

    return run_command(job.line, call)
