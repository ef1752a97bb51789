"""Embed what has no vector in many libraries, each distinct text once (``docs/fleet.md``)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from regraft.api.arguments import list_sources
from regraft.api.embedding import backfill_from, choose_priced_embedder
from regraft.api.fleet import check_engine, open_pool, run_command, run_safely, summarize_change
from regraft.errors import WrongUsage
from regraft.fleet import run as fleet_run
from regraft.fleet.engine import LibrarySummary, Pool, TaskResult
from regraft.fleet.jobs import LibraryJob, ParseOptions
from regraft.fleet.manifest import Library
from regraft.fleet.metrics import Metrics
from regraft.fleet.ray_pool import RayPool
from regraft.fleet.results import FleetOrder, KnownRows, is_json_lines, result_files
from regraft.language import ENGLISH, language_of_children, tr
from regraft.options import BackfillOptions, FleetBackfillOptions, FleetOptions
from regraft.report.document import Report, Run
from regraft.report.progress import Progress
from repair.embedding import answers
from repair.embedding.answers import SendingTerms
from repair.embedding.budget import Limits, Rates
from repair.embedding.fleet import FleetBackfill, FleetBackfillReport, FleetPlan, Sending, work_folder
from repair.embedding.fleet_sending import LocalSending, RaySending
from repair.embedding.fleet_texts import BackfillSummary, EmbeddingJob


class BackfillSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a backfill that its results keep, for a run that resumes it; ``config`` is an absolute path."""

    embedder: str
    config: str | None = None
    limits: Limits = Limits()
    rates: Rates = Rates()
    no_probe: bool = False
    #: Absolute paths of stores whose vectors are taken.
    reuse: tuple[str, ...] = ()


def make_backfill_order(options: FleetBackfillOptions, words: tuple[str, ...], libraries: list[Library]) -> FleetOrder:
    """Choose the embedder of a fleet, and make its order.

    Args:
        options: of the fleet.
        words: the options of every library.
        libraries: the libraries.

    Raises:
        RegraftError: as :func:`regraft.api.embedding.choose_priced_embedder` does.
    """
    limits = Limits(options.limit, options.max_requests, options.max_cost)
    settings = BackfillSettings(
        embedder=choose_priced_embedder(options.config, options.embedder, limits, frozenset()).name,
        config=None if options.config is None else str(options.config.absolute()),
        limits=limits,
        rates=Rates(requests=options.requests_per_minute, tokens=options.tokens_per_minute),
        no_probe=not options.probe,
        # A source of the configuration need not be there.
        reuse=tuple(str(one.path.absolute()) for one in list_sources(options) if one.is_required or one.path.exists()),
    )
    return FleetOrder(
        command="backfill",
        options=words,
        libraries=tuple(libraries),
        id=secrets.token_hex(8),
        told=msgspec.to_builtins(settings),
    )


def check_new_backfill(path: Path) -> None:
    """Check that the results do not exist yet, nor texts and answers of another run.

    Raises:
        WrongUsage
    """
    fleet_run.demand_new_results(path)
    folder = work_folder(path)
    if folder.exists():
        # Without a journal it cannot be resumed.
        hint = tr("remove the folder, or name another file")
        if (folder / answers.ANSWERS_FILE).exists():
            hint = tr("name another file, or remove the folder with the answers that were paid for")
        raise WrongUsage(problem=tr("{path} is there already", path=folder), hint=hint)


def backfill_files(path: Path) -> tuple[Path, ...]:
    """Return all that a fleet writes beside its libraries."""
    return (*result_files(path), work_folder(path))


def run_fleet_backfill(
    order: FleetOrder,
    path: Path,
    options: FleetOptions,
    parse: ParseOptions,
    *,
    known: KnownRows,
    dry_run: bool,
    progress: Progress,
    metrics: Metrics | None = None,
    show_plan: Callable[[FleetPlan], bool] = lambda _: True,
    watch: fleet_run.Watch = lambda _: None,
) -> FleetBackfillReport:
    """Embed the texts without a vector in the libraries of an order that are left; see :class:`FleetBackfill`.

    Raises:
        WrongUsage: the order is not one of a backfill.
        RegraftError: any error of ``docs/errors.md``.
    """
    check_engine(order, options, path)
    try:
        settings = msgspec.convert(order.told, BackfillSettings)
    except msgspec.ValidationError as error:
        problem = tr("{path} has no results of a fleet ({error})", path=path, error=error)
        raise WrongUsage(problem=problem, hint=tr("give the file that regraft fleet wrote with --results")) from error

    config = None if settings.config is None else Path(settings.config)
    kind = "jsonl" if is_json_lines(path) else "parquet"
    run = Run(command="fleet backfill", target_kind=kind, target=path, dry_run=dry_run)
    fleet = FleetBackfill(
        order=order,
        path=path,
        settings=choose_priced_embedder(config, settings.embedder, settings.limits, frozenset()),
        pool=partial(open_pool, options, run_embedding_job),
        open_sending=partial(open_sending, options),
        parse=parse,
        probes=not settings.no_probe,
        reuse=tuple(map(Path, settings.reuse)),
        limits=settings.limits,
        rates=settings.rates,
        dry_run=dry_run,
        attempts=options.attempts,
        known=known,
        metrics=metrics,
        # A dry run leaves nothing that could be continued.
        keep_going=options.keep_going or dry_run,
        only=getattr(options, "only", ()),
        show_plan=show_plan,
        progress=progress,
    )
    # Results are for programs.
    with language_of_children(ENGLISH):
        report = fleet.run(run, watch)
    assert isinstance(report, FleetBackfillReport)
    return report


def open_sending(options: FleetOptions, pool: Pool, terms: SendingTerms) -> Sending:
    """Return the processes that send texts: this one, or those of the cluster that the pool has joined."""
    if isinstance(pool, RayPool):
        return RaySending(terms, cluster=pool.cluster, count=options.workers, max_wait=options.max_wait)
    return LocalSending(terms)


def run_embedding_job(job: EmbeddingJob) -> TaskResult:
    """Collect the texts of one library, or fill it, in a worker process."""
    source = job.embedder_source()

    def call(line: LibraryJob) -> tuple[Report, LibrarySummary]:
        values = line.options.values
        assert isinstance(values, BackfillOptions)
        report = backfill_from(line.source, values, source)
        return report, BackfillSummary.of(summarize_change(report), report, source)

    return run_safely(job.line, partial(run_command, call=call))
