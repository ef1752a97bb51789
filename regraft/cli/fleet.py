"""``regraft fleet``: one command over many libraries."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import msgspec

from regraft import errors, language
from regraft.api.embedding import choose_priced_embedder
from regraft.cli import cli, embedding, fleet_worker
from regraft.cli.changes import confirm_plan
from regraft.cli.embedding import format_cost
from regraft.cli.options import PATH, PathType, echo_retries, struct_options
from regraft.cli.output import echo, echo_error, echo_json, format_written, report_errors
from regraft.errors import Declined, WrongUsage
from regraft.fleet import jobs, manifest, results
from regraft.fleet import run as fleet_run
from regraft.fleet.engine import LocalPool, Pool, RayPool, TaskResult, Work
from regraft.fleet.jobs import COMMAND_FORMS
from regraft.fleet.manifest import Library
from regraft.fleet.metrics import Metrics, metrics_files
from regraft.fleet.results import FleetOrder, KnownRows, ResultRow
from regraft.fleet.run import ATTEMPTS, Fleet, FleetReport, demand_new_results, fleet_exit_status
from regraft.formats.parquet.unit_file import import_arrow
from regraft.language import format_count, join_list, tr
from regraft.options import RebuildOptions
from regraft.processes import pool as processes_pool
from regraft.report import progress
from regraft.report.document import Run, encoded
from regraft.report.labels import label_of
from regraft.text import LONGEST_NAME, one_line, printable_lines
from repair.embedding import answers
from repair.embedding.budget import Limits, Rates
from repair.embedding.fleet import FleetBackfill, FleetBackfillReport, FleetPlan, work_folder
from repair.embedding.fleet_sending import LocalSending, RaySending, SendingBackend
from repair.embedding.fleet_texts import EmbeddingJob

# Which options a library of a fleet may have: those of the command, each whole, and none that writes another file.
#
# They come from a manifest or from results, which others may have made.


#: Options that take the path of what is read. The target of ``--to`` is the library's own.
_READ = frozenset({"--config", "--from", "--reuse", "--v1", "--to"})


def check_library_options(order: FleetOrder) -> None:
    """Refuse options that the command line of a library cannot have, before anything is done.

    Raises:
        WrongUsage: see the module; the message names the library, if the options are its own.
    """
    command = cli.commands[order.command]
    # Options that several libraries share are checked once. None: all libraries have them.
    checked: dict[tuple[str, ...], str | None] = {order.options: None}
    for library in order.libraries:
        if library.options and library.options not in checked:
            checked[library.options] = one_line(library.source, LONGEST_NAME)
    for words, where in checked.items():
        problem = _problem(command, words)
        if problem is not None:
            raise WrongUsage(
                problem=problem if where is None else tr("{source}: {problem}", source=where, problem=problem),
                hint=tr("see regraft {name} --help", name=order.command),
            )


def _problem(command: click.Command, words: tuple[str, ...]) -> str | None:
    """Say why a library cannot have these options; None where it can."""
    context = click.Context(command, **cli.context_settings)
    try:
        found, rest, _ = command.make_parser(context).parse_args(list(words))
    except click.UsageError as error:
        return " ".join(error.format_message().split()).rstrip(".")
    given = [one for one in command.get_params(context) if one.name in found]
    # What is no option is taken for a path.
    paths = (found[str(one.name)] for one in given if isinstance(one, click.Argument))
    loose = [*rest, *(path for path in paths if isinstance(path, str)), *(word for word in words if word == "--")]
    if loose:
        return tr("{word} is not an option", word=one_line(loose[0], LONGEST_NAME))
    problems = (_problem_of(one) for one in given if isinstance(one, click.Option))
    return next((problem for problem in problems if problem is not None), None)


def _problem_of(option: click.Option) -> str | None:
    name = max(option.opts, key=len)
    if option.is_flag and option.is_eager and not option.expose_value:
        return tr("{name} only displays information", name=name)
    if isinstance(option.type, click.Path) and name not in _READ:
        return tr("{name} writes an extra file, which is not possible in a fleet", name=name)
    return None


# ``regraft fleet backfill``: what the command of the fleet takes and says, and what is done with one library.


F = TypeVar("F", bound=Callable[..., Any])
#: Options that are of the whole fleet, so that no library may have its own.
_OF_THE_FLEET = frozenset(
    {"--embedder", "--config", "--limit", "--max-requests", "--max-cost", "--no-probe", "--dry-run"}
)


class BackfillSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the fleet is told, beside the options of its libraries; ``config`` is an absolute path."""

    embedder: str
    config: str | None = None
    limits: Limits = Limits()
    rates: Rates = Rates()
    no_probe: bool = False


def rate_options(command: F) -> F:
    """Add how much is sent in a minute at most."""
    for option in (
        click.option(
            "--tokens-per-minute",
            type=click.IntRange(min=1),
            metavar="N",
            help=tr("Send at most N tokens per minute, all workers together."),
        ),
        click.option(
            "--requests-per-minute",
            type=click.IntRange(min=1),
            metavar="N",
            help=tr("Send at most N requests per minute, all workers together."),
        ),
    ):
        command = option(command)
    return command


def backfill_settings(
    options: RebuildOptions, *, requests_per_minute: int | None, tokens_per_minute: int | None
) -> BackfillSettings:
    """Choose the embedder of the fleet, and record what its workers need to know of the options.

    Raises:
        RegraftError: as :func:`regraft.api.embedding.choose_priced_embedder` does.
    """
    limits = Limits(options.limit, options.max_requests, options.max_cost)
    settings = choose_priced_embedder(options.config, options.embedder, limits, frozenset())
    return BackfillSettings(
        embedder=settings.name,
        config=None if options.config is None else str(options.config.absolute()),
        limits=limits,
        rates=Rates(requests=requests_per_minute, tokens=tokens_per_minute),
        no_probe=not options.probe,
    )


def backfill_order(told: BackfillSettings, options: tuple[str, ...], libraries: list[Library]) -> FleetOrder:
    """Build the order of a fleet from its options and libraries.

    Raises:
        WrongUsage: a library has an option that is of the whole fleet.
    """
    for words in (options, *(library.options for library in libraries)):
        for word in words:
            name = word.partition("=")[0]
            if name in _OF_THE_FLEET:
                problem = tr("{name} applies to the whole fleet, not to one library", name=name)
                raise WrongUsage(problem=problem, hint=tr("put it before --"))
    return FleetOrder(
        command="backfill",
        options=options,
        libraries=tuple(libraries),
        id=secrets.token_hex(8),
        told=msgspec.to_builtins(told),
    )


def check_new_backfill(path: Path) -> None:
    """Refuse results where there are some, or texts and answers of another run, or in no folder.

    Raises:
        WrongUsage
    """
    fleet_run.demand_new_results(path)
    folder = work_folder(path)
    if folder.exists():
        # Without a journal there is nothing to go on with.
        hint = tr("remove the folder, or name another file")
        if (folder / answers.ANSWERS_FILE).exists():
            hint = tr("name another file, or remove the folder with the answers that were paid for")
        raise WrongUsage(problem=tr("{path} is there already", path=folder), hint=hint)


def backfill_files(path: Path) -> tuple[Path, ...]:
    """Return all that a fleet writes beside its libraries."""
    return (*results.result_files(path), work_folder(path))


def choose_sending(engine: str, workers: int | None) -> SendingBackend:
    """Return where texts are sent from.

    Raises:
        WrongUsage: something that it takes is not installed.
    """
    if engine != "ray":
        return LocalSending()
    # Before anything is done: it needs more than Ray does by itself.
    errors.import_optional("ray.data", tr("fleets on a cluster"), "ray")
    return RaySending(workers)


def build_fleet_backfill(order: FleetOrder, path: Path, known: KnownRows, **more: Any) -> FleetBackfill:
    """Return the work of a fleet.

    Raises:
        WrongUsage: the order is none of a backfill's.
        RegraftError: as :func:`regraft.api.embedding.choose_priced_embedder` does.
    """
    try:
        told = msgspec.convert(order.told, BackfillSettings)
    except msgspec.ValidationError as error:
        problem = tr("{path} has no results of a fleet ({error})", path=path, error=error)
        raise WrongUsage(problem=problem, hint=tr("give the file that regraft fleet wrote with --results")) from error
    config = None if told.config is None else Path(told.config)

    def command(number: int, fills: bool, cores: int) -> jobs.LibraryJob:
        mode = "--yes" if fills else "--dry-run"
        probing = ("--no-probe",) if told.no_probe else ()
        job = fleet_run.make_job(order, order.libraries[number], cores)
        return msgspec.structs.replace(job, options=(*job.options, *probing, mode))

    return FleetBackfill(
        order=order,
        path=path,
        settings=choose_priced_embedder(config, told.embedder, told.limits, frozenset()),
        command=command,
        limits=told.limits,
        rates=told.rates,
        known=known,
        **more,
    )


def run_backfill_job(job: EmbeddingJob) -> TaskResult:
    """Look at one library, or fill it, and return how it ended."""
    source = job.embedder_source()
    ended = fleet_worker.run_job_safely(job.line, lambda arguments: fleet_worker.run_command_line(arguments, source))
    return job.add_collected(source, ended)


# --- for a person ----------------------------------------------------------------------------------------------------


def fleet_plan_lines(plan: FleetPlan) -> list[str]:
    """Format the plan of a fleet backfill."""
    lines = [
        tr(
            "{libraries}: {wanted:,} vectors are missing, for {texts}",
            libraries=format_count(plan.libraries, "library"),
            wanted=plan.wanted,
            texts=format_count(plan.distinct, "different text"),
        )
    ]
    return [*lines, *embedding.estimate_lines(plan.planned)]


def fleet_sent_lines(report: FleetBackfillReport) -> list[str]:
    """Format the numbers of texts and requests that were sent, or would be."""
    sent = report.sent
    if report.head.run.dry_run:
        plan = FleetPlan(libraries=sent.libraries, wanted=sent.wanted, distinct=sent.distinct, planned=sent.planned)
        return [*fleet_plan_lines(plan), tr("Dry run: nothing was sent, and nothing was written.")]
    spent = f"{format_count(sent.requests, 'request')}, {format_count(sent.tokens, 'token')}"
    if sent.cost is not None:
        spent += f", {format_cost(sent.cost, sent.currency)}"
    lines = [tr("{texts} embedded: {spent}.", texts=format_count(sent.answered, "text"), spent=spent)]
    if sent.probe.requests:
        more = tr(
            "{requests}, {tokens} more",
            requests=format_count(sent.probe.requests, "request"),
            tokens=format_count(sent.probe.tokens, "token"),
        )
        lines.append(
            tr(
                "  model check: {texts}, {sent}",
                texts=format_count(sent.probe.texts, "text"),
                sent=more,
            )
        )
    if sent.failed:
        lines.append(tr("{texts} failed.", texts=format_count(sent.failed, "text")))
    if sent.stopped is not None:
        lines.append(tr("Stopped: {stopped}; continue with regraft fleet resume.", stopped=one_line(sent.stopped)))
    return lines


#: So many libraries that did not end well are named.
_NAMED = 10


class _PathOrUrl(PathType):
    """A path as other commands take it, or a URL of object storage."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """Format the report."""
        return value if "://" in value else str(super().convert(value, parameter, context))


@click.group()
def fleet() -> None:
    """Run one command on many libraries in parallel, and write the result of each to a Parquet file.

    MANIFEST is a folder whose entries are sources, a pattern like 'backups/*.zip', or a table (.csv, .jsonl, .parquet)
    with the columns source, target and options. What stops one library stops no other, and what was stopped goes on
    with regraft fleet resume.

    \b
    Example:
      regraft fleet migrate backups --to libraries --results outcome.parquet
    """


def _engine_options(command: Any) -> Any:
    for option in (
        click.option("--json", "as_json", is_flag=True, help=tr("Print one JSON document instead of text.")),
        click.option("-y", "--yes", is_flag=True, help=tr("Do not ask for confirmation; needed in scripts.")),
        click.option("-q", "--quiet", is_flag=True, help=tr("No progress, no line for each library; only the result.")),
        click.option("-v", "--verbose", count=True, help=tr("List every library that did not end well.")),
        click.option(
            "--metrics",
            type=PATH,
            metavar="FILE",
            help=tr("Write the state of the run to FILE, as Prometheus metrics."),
        ),
        click.option(
            "--attempts",
            type=click.IntRange(1, 100),
            default=ATTEMPTS,
            show_default=True,
            help=tr("How often a library is tried again after the system stopped it."),
        ),
        click.option(
            "--workers",
            type=click.IntRange(1, 1024),
            metavar="N",
            help=tr("Libraries processed in parallel. [default: cores]"),
        ),
        click.option(
            "--address",
            metavar="ADDRESS",
            help=tr("Address of a Ray cluster, such as auto or ray://host:10001. [default: a local cluster]"),
        ),
        click.option(
            "--engine",
            type=click.Choice(["local", "ray"]),
            default="local",
            show_default=True,
            help=tr("Processes on this machine, or a Ray cluster."),
        ),
    ):
        command = option(command)
    return command


_results_option = click.option(
    "--results",
    "path",
    type=PATH,
    required=True,
    metavar="OUT.parquet",
    help=tr("A new file for the result of each library and base."),
)


def _called(name: str) -> Callable[[F], F]:
    """Let a command have its name in documents of errors."""

    def named(command: F) -> F:
        command.__name__ = name
        return command

    return named


def _added(name: str) -> None:
    """Add a command of the fleet."""
    form = COMMAND_FORMS[name]
    decorators: list[Callable[[Any], Any]] = [
        fleet.command(
            name,
            short_help=tr("Run regraft {name} over many libraries.", name=name),
            help=tr(
                "Run regraft {name} for each library of MANIFEST. Options after -- are passed to each run.",
                name=name,
            ),
        ),
        click.argument("manifest_path", type=_PathOrUrl(), metavar="MANIFEST"),
        click.argument("options", nargs=-1, metavar="[-- OPTIONS]"),
        _results_option,
    ]
    if form.has_target:
        decorators.append(
            click.option(
                "--to",
                "targets",
                type=_PathOrUrl(),
                metavar="FOLDER",
                help=tr("The folder for targets that the manifest does not name."),
            )
        )

    def command(
        manifest_path: str,
        options: tuple[str, ...],
        path: Path,
        targets: str | None = None,
        **engine: Any,
    ) -> None:
        demand_new_results(path)
        libraries = manifest.read_manifest(manifest_path, targets, form.ending, needs_target=form.has_target)
        manifest.demand_apart(libraries, results.result_files(path))
        order = FleetOrder(command=name, options=options, libraries=tuple(libraries), id=secrets.token_hex(8))
        _carry_out(order, path, KnownRows(), FleetOptions(**engine))

    command.__name__ = f"fleet {name}"
    made: Any = _engine_options(report_errors(command))
    for decorate in reversed(decorators):
        made = decorate(made)


for _name in COMMAND_FORMS:
    if _name != "backfill":
        _added(_name)


@fleet.command(
    "backfill",
    short_help=tr("Embed what has no vector in many libraries."),
    help=tr(
        "Embed the texts without a vector in all libraries of MANIFEST. A text that several libraries "
        "have is sent once. Then each library is filled as by regraft backfill; options after -- are "
        "passed to it."
    ),
)
@click.argument("manifest_path", type=_PathOrUrl(), metavar="MANIFEST")
@click.argument("words", nargs=-1, metavar="[-- OPTIONS]")
@_results_option
@rate_options
@click.option("--dry-run", is_flag=True, help=tr("Only show what would be sent; write nothing."))
@_engine_options
@report_errors
@_called("fleet backfill")
@struct_options(RebuildOptions, without=("kind", "bases", "dry_run"))
def backfill(
    manifest_path: str, words: tuple[str, ...], path: Path, dry_run: bool, options: RebuildOptions, **more: Any
) -> None:
    """Embed what has no vector in many libraries."""
    engine = FleetOptions(**{name: more.pop(name) for name in FleetOptions.__struct_fields__})
    # Other machines have other working directories.
    path = path.absolute()
    check_new_backfill(path)
    libraries = manifest.read_manifest(manifest_path, None, "", needs_target=False)
    manifest.demand_apart(libraries, backfill_files(path))
    order = backfill_order(backfill_settings(options, **more), words, libraries)
    with echo_retries(enabled=not (engine.as_json or engine.quiet or engine.verbose > 1)):
        _backfill(order, path, KnownRows(), engine, dry_run=dry_run)


@fleet.command(
    "resume",
    short_help=tr("Resume a fleet."),
    help=tr(
        "Go on with a fleet whose results are in OUT.parquet, or were going to be. Libraries that ended well stay as"
        " they are; the others are worked on again."
    ),
)
@click.argument("path", type=PATH, metavar="OUT.parquet")
@_engine_options
@report_errors
def resume(path: Path, **engine: Any) -> None:
    """Go on with a fleet."""
    order, known = results.read_results(path)
    manifest.demand_apart(order.libraries, results.result_files(path))
    if order.command == "backfill":
        _backfill(order, path.absolute(), known, FleetOptions(**engine))
    _carry_out(order, path, known, FleetOptions(**engine))


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the engine, and of what is shown."""

    engine: str
    address: str | None
    workers: int | None
    attempts: int
    metrics: Path | None
    yes: bool
    as_json: bool
    quiet: bool
    verbose: int


def _demand_engine(order: FleetOrder, asked: FleetOptions) -> None:
    check_library_options(order)
    # Without it nothing could be written in the end.
    import_arrow()
    manifest.demand_clients(order.libraries)
    if asked.address is not None and asked.engine != "ray":
        raise WrongUsage(problem=tr("--address needs a Ray cluster"), hint=tr("add --engine ray"))


def _backfill(
    order: FleetOrder, path: Path, known: KnownRows, asked: FleetOptions, *, dry_run: bool = False
) -> NoReturn:
    """Embed what has no vector, say what became of it, and end the process."""
    _demand_engine(order, asked)
    run = Run(command="fleet backfill", target_kind="parquet", target=path, dry_run=dry_run)
    is_log = not (asked.quiet or asked.as_json or sys.stderr.isatty())
    metrics = _metrics(order, path, asked)
    work = build_fleet_backfill(
        order,
        path,
        known,
        pool=partial(_pool, asked, run_backfill_job),
        sending=choose_sending(asked.engine, asked.workers),
        show_plan=lambda plan: confirm_plan(fleet_plan_lines(plan), yes=asked.yes, as_json=asked.as_json),
        progress=progress.terminal_progress(quiet=asked.quiet or asked.as_json),
        watch=lambda row: echo_error(_line(row)) if is_log else None,
        attempts=asked.attempts,
        metrics=metrics,
        dry_run=dry_run,
    )
    with _speaking_english():
        report = work.run(run)
    _note_metrics(metrics, asked)
    if asked.as_json:
        echo_json(encoded(report))
    else:
        text = _as_text(report, verbose=asked.verbose > 0) + printable_lines(fleet_sent_lines(report))
        echo(text if dry_run else text + format_written([path]))
    sys.exit(fleet_exit_status(report))


def _carry_out(order: FleetOrder, path: Path, known: KnownRows, asked: FleetOptions) -> None:
    _demand_engine(order, asked)
    run = Run(command=f"fleet {order.command}", target_kind="parquet", target=path)
    pool, metrics = partial(_pool, asked, fleet_worker.run_job), _metrics(order, path, asked)
    work = Fleet(order=order, path=path, pool=pool, attempts=asked.attempts, known=known, metrics=metrics)
    # Ask once before libraries are changed.
    if COMMAND_FORMS[order.command].changes and "--dry-run" not in order.options:
        count = format_count(len(work.left), "library")
        line = tr("run regraft {command} over {libraries}", command=order.command, libraries=count)
        if not confirm_plan([line], yes=asked.yes, as_json=asked.as_json):
            raise Declined(path=path)
    bar = progress.terminal_progress(quiet=asked.quiet or asked.as_json)
    is_log = not (asked.quiet or asked.as_json or sys.stderr.isatty())

    def watch(row: ResultRow) -> None:
        bar.at(row.source)
        bar.step(1, row.bytes or 0)
        if is_log:
            echo_error(_line(row))

    with progress.stage(bar, "Libraries", len(work.left), "libraries"), _speaking_english():
        report = work.run(run, watch)
    _note_metrics(metrics, asked)
    if asked.as_json:
        echo_json(encoded(report))
    else:
        echo(_as_text(report, verbose=asked.verbose > 0) + format_written([path]))
    sys.exit(fleet_exit_status(report))


def _pool(asked: FleetOptions, work: Work) -> Pool:
    """Return where command lines are run.

    Raises:
        WrongUsage: Ray is not installed, or there is no such cluster.
    """
    if asked.engine == "ray":
        return RayPool(work, asked.address, asked.workers)
    return LocalPool(work, asked.workers or processes_pool.usable_cores())


def _metrics(order: FleetOrder, path: Path, asked: FleetOptions) -> Metrics | None:
    """Return the writer of the metrics file, or None.

    Raises:
        WrongUsage: the library for them is not installed, or their file is not for them.
    """
    if asked.metrics is None:
        return None
    metrics = Metrics(asked.metrics, path, command=order.command, engine=asked.engine, libraries=len(order.libraries))
    own = backfill_files(path) if order.command == "backfill" else results.result_files(path)
    metrics.demand_path(own)
    manifest.demand_apart(order.libraries, metrics_files(asked.metrics))
    return metrics


def _note_metrics(metrics: Metrics | None, asked: FleetOptions) -> None:
    if metrics is not None and metrics.problem is not None:
        echo_error(tr("{path} could not be updated: {error}", path=asked.metrics, error=metrics.problem))


@contextmanager
def _speaking_english() -> Iterator[None]:
    """Let processes that are started meanwhile speak English: results are for programs."""
    before = os.environ.get(language.VARIABLE)
    os.environ[language.VARIABLE] = language.ENGLISH
    try:
        yield
    finally:
        if before is None:
            del os.environ[language.VARIABLE]
        else:
            os.environ[language.VARIABLE] = before


def _line(row: ResultRow) -> str:
    """Format the result of a library as one line."""
    parts = [label_of(row.outcome), f"{row.seconds or 0:.1f} s", one_line(row.source, LONGEST_NAME)]
    if row.message:
        parts.append(one_line(row.message, LONGEST_NAME))
    return "  ".join(parts)


def _as_text(report: FleetReport, *, verbose: bool) -> str:
    lines = [_counts(report.libraries, "library")]
    if report.bases["all"]:
        lines.append(_counts(report.bases, "base"))
    if report.rows_carried:
        lines.append(tr("{rows} migrated.", rows=format_count(report.rows_carried, "row")))
    if report.findings:
        named = [f"{count:,} {name}" for name, count in report.findings.items()]
        lines.append(tr("Findings: {named}.", named=join_list(named)))
    named_count = len(report.failed) if verbose else _NAMED
    for one in report.failed[:named_count]:
        lines.append(
            f"  {label_of(one.outcome)}  {one_line(one.source, LONGEST_NAME)}: {one.message or one.code or ''}"
        )
    if len(report.failed) > named_count:
        lines.append(tr("  and {count:,} more; -v names all", count=len(report.failed) - named_count))
    if len(report.slowest) > 1:
        lines.append(tr("Slowest:"))
        lines += [f"  {one.seconds or 0:.1f} s  {one_line(one.source, LONGEST_NAME)}" for one in report.slowest]
    return printable_lines(lines)


def _counts(counts: dict[str, int], what: str) -> str:
    """Return how many of something there are, by outcome."""
    named = [f"{count:,} {label_of(name)}" for name, count in counts.items() if name != "all"]
    return tr("{whole}: {named}.", whole=format_count(counts["all"], what), named=join_list(named))
