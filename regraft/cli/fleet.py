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

from regraft import crew, language
from regraft.cli import fleet_backfill, fleet_options, in_process
from regraft.cli.changing import confirmed
from regraft.cli.embedding import embedder_options, limit_options
from regraft.cli.options import PATH, NamedPath
from regraft.cli.output import echo_json, note, reports_errors, say, written_list
from regraft.errors import Declined, WrongUsage
from regraft.fleet import manifest, results
from regraft.fleet.commands import FORMS
from regraft.fleet.engine import LocalPool, Pool, Work
from regraft.fleet.known import Known
from regraft.fleet.metrics import Metrics, files_of
from regraft.fleet.on_ray import RayPool
from regraft.fleet.results import Order, Row
from regraft.fleet.run import ATTEMPTS, Fleet, FleetReport, demand_new, exit_status
from regraft.formats.parquet.columns import arrow
from regraft.labels import label_of
from regraft.language import joined, tr
from regraft.report import progress
from regraft.report.document import Run, encoded
from regraft.text import LONGEST_NAME, counted, one_line, shown_lines

F = TypeVar("F", bound=Callable[..., Any])
#: So many libraries that did not end well are named.
_NAMED = 10


class _PathOrUrl(NamedPath):
    """A path as other commands take it, or a URL of object storage."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """Return it as text."""
        return value if "://" in value else str(super().convert(value, parameter, context))


@click.group()
def fleet() -> None:
    """Run one command over many libraries, several at a time, and write what became of each to a Parquet file.

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
        click.option("-y", "--yes", is_flag=True, help=tr("Do not ask; needed where nobody is there to answer.")),
        click.option("-q", "--quiet", is_flag=True, help=tr("No progress, no line for each library; only the result.")),
        click.option("-v", "--verbose", count=True, help=tr("Name every library that did not end well.")),
        click.option(
            "--metrics",
            type=PATH,
            metavar="FILE",
            help=tr("Keep the state of the run in FILE, as metrics of Prometheus."),
        ),
        click.option(
            "--attempts",
            type=click.IntRange(1, 100),
            default=ATTEMPTS,
            show_default=True,
            help=tr("How often a library is tried that the system stopped."),
        ),
        click.option(
            "--workers",
            type=click.IntRange(1, 1024),
            metavar="N",
            help=tr("Libraries worked on at once. [default: cores]"),
        ),
        click.option(
            "--address",
            metavar="ADDRESS",
            help=tr("Of a cluster of Ray, such as auto or ray://host:10001. [default: one of this machine]"),
        ),
        click.option(
            "--engine",
            type=click.Choice(["local", "ray"]),
            default="local",
            show_default=True,
            help=tr("Processes of this machine, or a cluster of Ray."),
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
    help=tr("The file of what became of each library and base: a new one."),
)


def _called(name: str) -> Callable[[F], F]:
    """Let a command have its name in documents of errors."""

    def named(command: F) -> F:
        command.__name__ = name
        return command

    return named


def _added(name: str) -> None:
    """Add a command of the fleet."""
    form = FORMS[name]
    decorators: list[Callable[[Any], Any]] = [
        fleet.command(
            name,
            short_help=tr("Run regraft {name} over many libraries.", name=name),
            help=tr(
                "Run regraft {name} over all libraries of MANIFEST; what stands behind -- are options of each.",
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
                help=tr("The folder of the targets that the manifest does not name."),
            )
        )

    def command(
        manifest_path: str,
        options: tuple[str, ...],
        path: Path,
        targets: str | None = None,
        **engine: Any,
    ) -> None:
        demand_new(path)
        libraries = manifest.libraries(manifest_path, targets, form.ending, needs_target=form.has_target)
        manifest.demand_apart(libraries, results.files_of(path))
        order = Order(command=name, options=options, libraries=tuple(libraries), id=secrets.token_hex(8))
        _carry_out(order, path, Known(), Asked(**engine))

    command.__name__ = f"fleet {name}"
    made: Any = _engine_options(reports_errors(command))
    for decorate in reversed(decorators):
        made = decorate(made)


for _name in FORMS:
    if _name != "backfill":
        _added(_name)


@fleet.command(
    "backfill",
    short_help=tr("Embed what has no vector in many libraries."),
    help=tr(
        "Embed what has no vector in all libraries of MANIFEST: each text once, whoever has it. Then each library is"
        " filled as regraft backfill would fill it; what stands behind -- are options of that."
    ),
)
@click.argument("manifest_path", type=_PathOrUrl(), metavar="MANIFEST")
@click.argument("options", nargs=-1, metavar="[-- OPTIONS]")
@_results_option
@embedder_options
@limit_options
@fleet_backfill.rate_options
@click.option("--dry-run", is_flag=True, help=tr("Only say what would be sent; nothing is written."))
@_engine_options
@reports_errors
@_called("fleet backfill")
def backfill(manifest_path: str, options: tuple[str, ...], path: Path, **more: Any) -> None:
    """Embed what has no vector in many libraries."""
    engine = {name: more.pop(name) for name in Asked.__struct_fields__}
    dry_run = more.pop("dry_run")
    # Other machines have other working directories.
    path = path.absolute()
    fleet_backfill.demand_new(path)
    libraries = manifest.libraries(manifest_path, None, "", needs_target=False)
    manifest.demand_apart(libraries, fleet_backfill.files_of(path))
    told = fleet_backfill.told_of(**more)
    order = fleet_backfill.order_of(told, options, libraries)
    _backfill(order, path, Known(), Asked(**engine), dry_run=dry_run)


@fleet.command(
    "resume",
    short_help=tr("Go on with what is left of a fleet."),
    help=tr(
        "Go on with a fleet whose results are in OUT.parquet, or were going to be. Libraries that ended well stay as"
        " they are; the others are worked on again."
    ),
)
@click.argument("path", type=PATH, metavar="OUT.parquet")
@_engine_options
@reports_errors
def resume(path: Path, **engine: Any) -> None:
    """Go on with a fleet."""
    order, known = results.read(path)
    manifest.demand_apart(order.libraries, results.files_of(path))
    if order.command == "backfill":
        _backfill(order, path.absolute(), known, Asked(**engine))
    _carry_out(order, path, known, Asked(**engine))


class Asked(msgspec.Struct, frozen=True, kw_only=True):
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


def _demand_engine(order: Order, asked: Asked) -> None:
    fleet_options.demand_usable(order)
    # Without it nothing could be written in the end.
    arrow()
    manifest.demand_clients(order.libraries)
    if asked.address is not None and asked.engine != "ray":
        raise WrongUsage(problem=tr("--address is of a cluster of Ray"), hint=tr("add --engine ray"))


def _backfill(order: Order, path: Path, known: Known[Row], asked: Asked, *, dry_run: bool = False) -> NoReturn:
    """Embed what has no vector, say what became of it, and end the process."""
    _demand_engine(order, asked)
    run = Run(command="fleet backfill", target_kind="parquet", target=path, dry_run=dry_run)
    is_log = not (asked.quiet or asked.as_json or sys.stderr.isatty())
    metrics = _metrics(order, path, asked)
    work = fleet_backfill.made(
        order,
        path,
        known,
        pool=partial(_pool, asked, fleet_backfill.work),
        sending=fleet_backfill.sending_of(asked.engine, asked.workers),
        show_plan=lambda plan: confirmed(fleet_backfill.planned_lines(plan), yes=asked.yes, as_json=asked.as_json),
        progress=progress.for_person(quiet=asked.quiet or asked.as_json),
        watch=lambda row: note(_line(row)) if is_log else None,
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
        text = _as_text(report, verbose=asked.verbose > 0) + shown_lines(fleet_backfill.sent_lines(report))
        say(text if dry_run else text + written_list([path]))
    sys.exit(exit_status(report))


def _carry_out(order: Order, path: Path, known: Known[Row], asked: Asked) -> None:
    _demand_engine(order, asked)
    run = Run(command=f"fleet {order.command}", target_kind="parquet", target=path)
    pool, metrics = partial(_pool, asked, in_process.run), _metrics(order, path, asked)
    work = Fleet(order=order, path=path, pool=pool, attempts=asked.attempts, known=known, metrics=metrics)
    _demand_consent(order, len(work.left), path, asked)
    bar = progress.for_person(quiet=asked.quiet or asked.as_json)
    is_log = not (asked.quiet or asked.as_json or sys.stderr.isatty())

    def watch(row: Row) -> None:
        bar.at(row.source)
        bar.step(1, row.bytes or 0)
        if is_log:
            note(_line(row))

    with progress.stage(bar, "Libraries", len(work.left), "libraries"), _speaking_english():
        report = work.run(run, watch)
    _note_metrics(metrics, asked)
    if asked.as_json:
        echo_json(encoded(report))
    else:
        say(_as_text(report, verbose=asked.verbose > 0) + written_list([path]))
    sys.exit(exit_status(report))


def _demand_consent(order: Order, count: int, path: Path, asked: Asked) -> None:
    """Ask once before libraries are changed.

    Raises:
        ConsentMissing: nobody is there to answer.
        Declined: the answer is no.
    """
    if not FORMS[order.command].changes or "--dry-run" in order.options:
        return
    line = tr("run regraft {command} over {libraries}", command=order.command, libraries=counted(count, "library"))
    if not confirmed([line], yes=asked.yes, as_json=asked.as_json):
        raise Declined(path=path)


def _pool(asked: Asked, work: Work) -> Pool:
    """Return where command lines are run.

    Raises:
        WrongUsage: Ray is not installed, or there is no such cluster.
    """
    if asked.engine == "ray":
        return RayPool(work, asked.address, asked.workers)
    return LocalPool(work, asked.workers or crew.cores())


def _metrics(order: Order, path: Path, asked: Asked) -> Metrics | None:
    """Return what writes the metrics, if they are wanted.

    Raises:
        WrongUsage: the library for them is not installed, or their file is not for them.
    """
    if asked.metrics is None:
        return None
    metrics = Metrics(asked.metrics, path, command=order.command, engine=asked.engine, libraries=len(order.libraries))
    own = fleet_backfill.files_of(path) if order.command == "backfill" else results.files_of(path)
    metrics.demand_place(own)
    manifest.demand_apart(order.libraries, files_of(asked.metrics))
    return metrics


def _note_metrics(metrics: Metrics | None, asked: Asked) -> None:
    if metrics is not None and metrics.problem is not None:
        note(tr("{path} is not up to date: {error}", path=asked.metrics, error=metrics.problem))


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


def _line(row: Row) -> str:
    """Return what is said of a library in one line."""
    parts = [label_of(row.outcome), f"{row.seconds or 0:.1f} s", one_line(row.source, LONGEST_NAME)]
    if row.message:
        parts.append(one_line(row.message, LONGEST_NAME))
    return "  ".join(parts)


def _as_text(report: FleetReport, *, verbose: bool) -> str:
    lines = [_counts(report.libraries, "library")]
    if report.bases["all"]:
        lines.append(_counts(report.bases, "base"))
    if report.rows_carried:
        lines.append(tr("{rows} carried.", rows=counted(report.rows_carried, "row")))
    if report.findings:
        named = [f"{count:,} {name}" for name, count in report.findings.items()]
        lines.append(tr("Findings: {named}.", named=joined(named)))
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
    return shown_lines(lines)


def _counts(counts: dict[str, int], what: str) -> str:
    """Return how many of something there are, by outcome."""
    named = [f"{count:,} {label_of(name)}" for name, count in counts.items() if name != "all"]
    return tr("{whole}: {named}.", whole=counted(counts["all"], what), named=joined(named))
