"""``regraft fleet``: one command over many libraries."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import msgspec

from regraft.api import fleet as api_fleet
from regraft.api import fleet_backfill as api_backfill
from regraft.cli import cli, embedding
from regraft.cli.changes import confirm_plan
from regraft.cli.options import (
    ASKS,
    PATH,
    Output,
    PathType,
    build_options,
    echo_retries,
    output_options,
    struct_options,
    with_level,
)
from regraft.cli.output import echo, echo_error, echo_json, format_written, report_errors, set_command_name
from regraft.disk import links, writable
from regraft.errors import WrongUsage
from regraft.fleet import manifest, results
from regraft.fleet.jobs import COMMAND_FORMS, CommandOptions
from regraft.fleet.results import FleetOrder, KnownRows, ResultRow
from regraft.fleet.run import Fleet, FleetPlan, demand_new_results, unsuccessful_libraries
from regraft.fleet.status import BaseReport, FleetReport, FleetStatus, LibraryReport, Metrics, fleet_exit_status
from regraft.language import current_language, format_count, join_list, tr, translate_text
from regraft.options import OPTIONS, CheckOptions, FleetBackfillOptions, FleetOptions, FleetResumeOptions
from regraft.processes import startup
from regraft.report.document import encoded
from regraft.report.labels import format_labeled_count, label_of
from regraft.text import LONGEST_NAME, join_command, one_line, path_argument, printable_lines
from repair.embedding.fleet import BackfillPlan, FleetBackfillReport
from repair.embedding.report import format_cost

# --- the options of the libraries ------------------------------------------------------------------------------------

#: Options that take a path that is only read.
_READ = frozenset({"--config", "--from", "--reuse", "--v1"})
#: Options of ``backfill`` that apply to the whole fleet.
_OF_THE_FLEET = frozenset(
    {"--embedder", "--config", "--limit", "--max-requests", "--max-cost", "--no-probe", "--dry-run"}
)


def check_library_options(order: FleetOrder) -> None:
    """Check that the options of every library can be parsed, before anything is done.

    Raises:
        WrongUsage: as :func:`parse_library_options` does; the message names the library, if the options are its own.
    """
    parse_library_options(order.command, order.options)
    for library in order.libraries:
        if library.options:
            try:
                parse_library_options(order.command, (*order.options, *library.options))
            except WrongUsage as error:
                source = one_line(library.source, LONGEST_NAME)
                problem = tr("{source}: {problem}", source=source, problem=error.facts["problem"])
                raise WrongUsage(problem=problem, hint=error.facts["hint"]) from error


@lru_cache(maxsize=1024)
def parse_library_options(name: str, words: tuple[str, ...]) -> CommandOptions:
    """Parse options of a library as its command does.

    Options come from a manifest or from results, which others may have written, so they may not write another file.

    Args:
        name: the name of the command.
        words: the words of the options.

    Raises:
        WrongUsage: the command has no such options, or a library cannot have them.
        ModelOptionInvalid: a value of ``--map-model`` has not the form OLD=NEW.
    """
    try:
        values = _parse_words(name, words)
    except click.UsageError as error:
        problem = " ".join(error.format_message().split()).rstrip(".。")
        raise WrongUsage(problem=problem, hint=tr("see regraft {name} --help", name=name)) from error
    struct = OPTIONS[name]
    options = build_options(struct, {field: values[field] for field in struct.__struct_fields__ if field in values})
    if isinstance(options, CheckOptions):
        options = with_level(options, quick="quick" in values, deep="deep" in values)
    more = {"fail_on": values["fail_on"]} if "fail_on" in values else {}
    return CommandOptions(values=options, follows_links=links.FOLLOW_OPTION in values, **more)


def _parse_words(name: str, words: tuple[str, ...]) -> dict[str, Any]:
    """Parse the words of a command's options; return the values of the given options by parameter name.

    Raises:
        click.UsageError: the command has no such options, or a library cannot have them.
    """
    command, values = cli.commands[name], dict[str, Any]()
    context = click.Context(command, info_name=name, **cli.context_settings)
    found, rest, _ = command.make_parser(context).parse_args(list(words))
    loose = list(rest)
    for parameter in command.get_params(context):
        value = found.get(str(parameter.name))
        if isinstance(parameter, click.Argument):
            # A word that is not an option is taken for a path.
            loose += [value] if isinstance(value, str) else []
        elif isinstance(parameter, click.Option) and parameter.name in found:
            _refuse_option(name, parameter)
            if links.FOLLOW_OPTION in parameter.opts:
                values[links.FOLLOW_OPTION] = True
            else:
                values[str(parameter.name)], _ = parameter.handle_parse_result(context, found, [])
    loose += [word for word in words if word == "--"]
    if loose:
        raise click.UsageError(tr("{word} is not an option", word=one_line(loose[0], LONGEST_NAME)))
    return values


#: Options of ``export`` for a collection of Chroma.
_OF_A_COLLECTION = ("--format", "--collection", "--distance")


def _refuse_option(command: str, option: click.Option) -> None:
    """Refuse an option of ``command`` that a library of a fleet cannot have.

    Raises:
        click.UsageError
    """
    name = max(option.opts, key=len)
    if option.is_flag and option.is_eager and not option.expose_value:
        raise click.UsageError(tr("{name} only displays information", name=name))
    if name == "--to":
        raise click.UsageError(tr("{name}: targets are named by the manifest, or by --to before --", name=name))
    if name in _OF_A_COLLECTION or (command == "export" and name == "--dry-run"):
        raise click.UsageError(tr("{name} is for one collection of Chroma, which a fleet does not write", name=name))
    if name == "--part":
        raise click.UsageError(tr("{name} writes a state, which is not possible in a fleet", name=name))
    if command == "backfill" and name in _OF_THE_FLEET:
        problem = tr("{name} applies to the whole fleet, not to one library", name=name)
        raise WrongUsage(problem=problem, hint=tr("put it before --"))
    if isinstance(option.type, click.Path) and name not in _READ:
        raise click.UsageError(tr("{name} writes an extra file, which is not possible in a fleet", name=name))


# --- the commands ----------------------------------------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])
#: Libraries that did not end well and are named without ``-v``.
_NAMED = 10


class _PathOrUrl(PathType):
    """A path as other commands take it, or a URL of object storage."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """Return a URL unchanged, and a path as text."""
        return value if "://" in value else str(super().convert(value, parameter, context))


@click.group()
def fleet() -> None:
    """Run one command on many libraries in parallel, and write the result of each to a table.

    MANIFEST is a folder whose entries are sources, a pattern like "backups/*.zip", or a table (.csv, .jsonl, .parquet)
    with the columns source, target and options. If one library stops, the others continue; regraft fleet resume
    continues the stopped ones. OUT is a new file that ends in .jsonl, or in .parquet.

    \b
    Example:
      regraft fleet migrate backups --to libraries --results outcome.jsonl
    """


_output_options = output_options(
    yes=ASKS,
    follows_links=False,
    verbose=tr("List every library that did not end well."),
    quiet=tr("No progress, no line for each library; only the result."),
)
_manifest_argument = click.argument("manifest_path", type=_PathOrUrl(), metavar="MANIFEST")
_words_argument = click.argument("words", nargs=-1, metavar="[-- OPTIONS]")
_results_option = click.option(
    "--results",
    "path",
    type=PATH,
    metavar="OUT",
    help=tr("A new file for the result of each library and base, .jsonl or .parquet."),
)
_results_argument = click.argument("path", type=PATH, metavar="OUT")
_dry_run_option: Callable[[F], F] = click.option(
    "--dry-run", is_flag=True, help=tr("Only report what would be done; write no results either.")
)
_targets_option: Callable[[F], F] = click.option(
    "--to",
    "targets",
    type=_PathOrUrl(),
    metavar="FOLDER",
    help=tr("The folder for targets that the manifest does not name."),
)


def _require_results(path: Path | None) -> Path:
    """Check that ``--results`` names a new file; return its path.

    Raises:
        WrongUsage
    """
    if path is None:
        raise WrongUsage(problem=tr("--results is missing"), hint=tr("name a new file, .jsonl or .parquet"))
    demand_new_results(path)
    return path


def _no_option(command: F) -> F:
    """Return the command unchanged: a decorator in place of one that adds an option."""
    return command


def _add_command(name: str) -> None:
    """Define the command ``regraft fleet NAME`` for a command that runs on many libraries."""
    form = COMMAND_FORMS[name]
    # A dry run of export is for a collection of Chroma.
    has_dry_run = name != "export" and "dry_run" in OPTIONS[name].__struct_fields__

    @fleet.command(
        name,
        short_help=tr("Run regraft {name} over many libraries.", name=name),
        help=tr("Run regraft {name} for each library of MANIFEST. Options after -- are passed to each run.", name=name),
    )
    @_manifest_argument
    @_words_argument
    @_results_option
    @(_targets_option if form.has_target else _no_option)
    @(_dry_run_option if has_dry_run else _no_option)
    @report_errors
    @set_command_name(f"fleet {name}")
    @struct_options(FleetOptions)
    @_output_options
    def command(
        manifest_path: str,
        words: tuple[str, ...],
        path: Path | None,
        options: FleetOptions,
        output: Output,
        targets: str | None = None,
        dry_run: bool = False,
    ) -> None:
        """Read the manifest, and run the command on its libraries.

        ``words`` are the options of each run, ``path`` is the file of the results, ``targets`` the folder of ``--to``.
        """
        # A dry run writes none.
        path = Path("results.jsonl") if dry_run else _require_results(path)
        libraries = manifest.read_manifest(manifest_path, targets, form.ending, needs_target=form.has_target)
        manifest.demand_apart(libraries, () if dry_run else results.result_files(path))
        more = ("--dry-run",) if dry_run and "--dry-run" not in words else ()
        order = FleetOrder(command=name, options=(*words, *more), libraries=tuple(libraries), id=secrets.token_hex(8))
        _run_order(order, path, KnownRows(), options, output, dry_run=dry_run)


for _name in COMMAND_FORMS:
    if _name != "backfill":
        _add_command(_name)


@fleet.command(
    "backfill",
    short_help=tr("Embed texts without a vector in many libraries."),
    help=tr(
        "Embed the texts without a vector in all libraries of MANIFEST. A text that several libraries "
        "have is sent once. Then each library is filled as by regraft backfill; options after -- are "
        "passed to it."
    ),
)
@_manifest_argument
@_words_argument
@_results_option
@report_errors
@set_command_name("fleet backfill")
@struct_options(FleetBackfillOptions)
@_output_options
def backfill(
    manifest_path: str, words: tuple[str, ...], path: Path | None, options: FleetBackfillOptions, output: Output
) -> None:
    """Embed texts without a vector in many libraries; each distinct text is sent once.

    ``words`` are the options of each library, ``path`` is the file of the results.
    """
    # Other machines have other working directories.
    path = _require_results(path).absolute()
    api_backfill.check_new_backfill(path)
    libraries = manifest.read_manifest(manifest_path, None, "", needs_target=False)
    manifest.demand_apart(libraries, api_backfill.backfill_files(path))
    order = api_backfill.make_backfill_order(options, words, libraries)
    _run_order(order, path, KnownRows(), options, output, dry_run=options.dry_run)


@fleet.command(
    "resume",
    short_help=tr("Resume a fleet."),
    help=tr(
        "Resume the fleet run that writes its results to OUT. Libraries that ended well stay as they "
        "are; the others are processed again. Options after -- are added to theirs. --limit, "
        "--max-requests and --max-cost replace those of a backfill."
    ),
)
@_results_argument
@_words_argument
@report_errors
@set_command_name("fleet resume")
@struct_options(FleetResumeOptions)
@_output_options
def resume(path: Path, words: tuple[str, ...], options: FleetResumeOptions, output: Output) -> None:
    """Run a fleet's command again on the libraries that did not succeed.

    ``path`` is the file of the results; ``words`` are added to the options of these libraries.
    """
    order, known = results.read_results(path)
    writable.demand_output(path)
    # Also if no library gets them.
    parse_library_options(order.command, (*order.options, *words))
    order = api_backfill.replace_limits(order, path, options)
    order = add_options(order, words, unsuccessful_libraries(order, known, options.only))
    manifest.demand_apart(order.libraries, results.result_files(path))
    _run_order(order, path.absolute() if order.command == "backfill" else path, known, options, output)


@fleet.command(
    "status",
    short_help=tr("Show the progress of a fleet, and what has failed."),
    help=tr(
        "Show the progress of the fleet that writes its results to OUT, and what has failed. The run is "
        "not disturbed. The files of --html, --csv and --jsonl contain the libraries that have ended so far."
    ),
)
@_results_argument
@click.option("--html", "page", type=PATH, metavar="FILE", help=tr("Write a page for a browser, failures first."))
@click.option("--csv", "table", type=PATH, metavar="FILE", help=tr("Write the rows to a new CSV file."))
@click.option("--jsonl", "lines", type=PATH, metavar="FILE", help=tr("Write the rows to a new JSON Lines file."))
@report_errors
@set_command_name("fleet status")
@output_options(follows_links=False, verbose=tr("List every library that did not end well."))
def status(path: Path, page: Path | None, table: Path | None, lines: Path | None, output: Output) -> None:
    """Show how far a fleet is, and write its rows to an HTML page, a CSV table and JSON ``lines``, if named.

    ``path`` is the file of the results.
    """
    found = api_fleet.fleet_status(path, page=page, table=table, lines=lines)
    written = [one for one in (page, table, lines) if one is not None]
    text = status_lines(found) + _as_text(found, verbose=output.verbose > 0)
    _print_and_exit(found, None, output, text + (format_written(written) if written else ""))


def add_options(order: FleetOrder, words: tuple[str, ...], numbers: Iterable[int]) -> FleetOrder:
    """Append words to the options of the libraries with these numbers; return the changed order."""
    libraries = list(order.libraries)
    for number in numbers if words else ():
        own = libraries[number]
        libraries[number] = msgspec.structs.replace(own, options=(*own.options, *words))
    return msgspec.structs.replace(order, libraries=tuple(libraries))


def _run_order(
    order: FleetOrder, path: Path, known: KnownRows, options: FleetOptions, output: Output, *, dry_run: bool = False
) -> NoReturn:
    """Run a fleet's command on the libraries that have no result yet, print the report, and exit.

    Args:
        order: the command, its options, and the libraries.
        path: the file of the results.
        known: the results of earlier runs.
        options: how the fleet runs.
        output: how the command prints.
        dry_run: write nothing, not even results.
    """
    check_library_options(order)
    is_backfill = order.command == "backfill"
    own = api_backfill.backfill_files(path) if is_backfill else results.result_files(path)
    metrics = api_fleet.open_metrics(order, options, path, own)
    # Without a progress bar, a person gets a line for each library.
    is_logged = not (output.quiet or output.as_json or startup.is_terminal(sys.stderr))
    make, work = api_backfill.prepare_backfill(order, path) if is_backfill else (Fleet, api_fleet.run_job)

    make = partial(
        make,
        parse=parse_library_options,
        known=known,
        metrics=metrics,
        progress=output.progress(),
        confirm=lambda plan: confirm_plan(_plan_lines(order, plan), yes=output.yes, as_json=output.as_json),
    )
    # With -vv everything that is logged is printed already.
    with echo_retries(enabled=not (output.as_json or output.quiet or output.verbose > 1)):
        report = api_fleet.run_fleet(
            order,
            path,
            options,
            make,
            work,
            dry_run=dry_run,
            watch=lambda row: echo_error(_format_row(row)) if is_logged else None,
        )
    text = _as_text(report, verbose=output.verbose > 0) + _format_closing(report, path, dry_run=dry_run)
    _print_and_exit(report, metrics, output, text)


def _format_closing(report: FleetReport, path: Path, *, dry_run: bool) -> str:
    """Format the last lines: what was sent to an embedder, and where the results are, or how to continue."""
    lines = fleet_sent_lines(report) if isinstance(report, FleetBackfillReport) else []
    if dry_run:
        return printable_lines(lines or [tr("Dry run: nothing was written.")])
    if not report.left:
        return printable_lines(lines) + format_written([path])
    command = join_command(["regraft", "fleet", "resume", path_argument(path)])
    left = format_count(report.left, "library")
    lines.append(tr("{left} without a result; continue with: {command}", left=left, command=command))
    return printable_lines(lines)


def _print_and_exit(report: FleetReport, metrics: Metrics | None, output: Output, text: str) -> NoReturn:
    """Print the report, as JSON or as ``text``, and exit with its status; report a failure of writing metrics."""
    if metrics is not None and metrics.problem is not None:
        echo_error(tr("{path} could not be updated: {error}", path=metrics.path, error=metrics.problem))
    if output.as_json:
        echo_json(encoded(report))
    else:
        echo(text)
    sys.exit(fleet_exit_status(report))


# --- text ------------------------------------------------------------------------------------------------------------


def _plan_lines(order: FleetOrder, plan: FleetPlan) -> list[str]:
    """Format what a fleet will do, or what a fleet's backfill will send."""
    libraries = format_count(plan.libraries, "library")
    if not isinstance(plan, BackfillPlan):
        return [tr("run regraft {command} over {libraries}", command=order.command, libraries=libraries)]
    return _sending_lines(plan)


def _sending_lines(plan: BackfillPlan) -> list[str]:
    """Format how many texts of the libraries lack vectors, and what sending them takes."""
    lines = [
        tr(
            "{libraries}: {vectors} missing, for {texts}",
            libraries=format_count(plan.libraries, "library"),
            vectors=format_count(plan.wanted, "vector"),
            texts=format_count(plan.distinct, "different text"),
        )
    ]
    if plan.reused:
        lines.append(tr("  {vectors} reused from other stores", vectors=format_count(plan.reused, "vector")))
    return [*lines, *embedding.estimate_lines(plan.planned)]


def fleet_sent_lines(report: FleetBackfillReport) -> list[str]:
    """Format how many texts and requests a fleet's backfill sent, or would send."""
    sent = report.sent
    if report.head.run.dry_run:
        return [*_sending_lines(sent), tr("Dry run: nothing was sent, and nothing was written.")]
    parts = [format_count(sent.requests, "request"), format_count(sent.tokens, "token")]
    if sent.cost is not None:
        parts.append(format_cost(sent.cost, sent.currency))
    lines = [tr("{texts} embedded: {spent}.", texts=format_count(sent.answered, "text"), spent=join_list(parts))]
    lines += embedding.probe_lines(sent.probe)
    if sent.failed:
        lines.append(tr("{texts} failed.", texts=format_count(sent.failed, "text")))
    if sent.stopped is not None:
        # A thread or process that sends says so in English.
        stopped = one_line(translate_text(sent.stopped, current_language()))
        lines.append(tr("Stopped: {stopped}; continue with regraft fleet resume.", stopped=stopped))
    return lines


def _shown_message(row: ResultRow | LibraryReport | BaseReport) -> str:
    """Return the message of a row in the language of the reader, without the path of the library at its start."""
    message = translate_text(row.message or "", current_language())
    return message.removeprefix(f"{row.source}: ").removeprefix(f"{row.source}\uff1a")


def _format_row(row: ResultRow) -> str:
    """Format the result of one library as one line."""
    parts = [label_of(row.outcome), f"{row.seconds or 0:.1f} s", one_line(row.source, LONGEST_NAME)]
    if row.message:
        parts.append(one_line(_shown_message(row), LONGEST_NAME))
    return "  ".join(parts)


def status_lines(fleet_status: FleetStatus) -> str:
    """Format the state of a fleet, and the libraries in progress."""
    lines = [
        tr(
            "regraft fleet {command}: {state}; {left:,} of {libraries} without a result.",
            command=fleet_status.command,
            state=label_of(fleet_status.state),
            left=fleet_status.left,
            libraries=format_count(fleet_status.left + fleet_status.libraries["all"], "library"),
        )
    ]
    if fleet_status.in_progress:
        lines.append(tr("In progress:") if fleet_status.state == "running" else tr("In progress when the run stopped:"))
        lines += [
            tr(
                "  {source} (attempt {attempt}, since {since})",
                source=one_line(one.source, LONGEST_NAME),
                attempt=one.attempt,
                since=one_line(one.since, LONGEST_NAME),
            )
            for one in fleet_status.in_progress
        ]
    return printable_lines(lines)


def _as_text(report: FleetReport, *, verbose: bool) -> str:
    """Format the summary of a fleet; ``verbose``: list every library that failed."""
    lines = _failed_lines(report, None if verbose else _NAMED)
    lines += [
        _format_counts(found, what)
        for found, what in ((report.libraries, "library"), (report.bases, "base"))
        if found["all"]
    ]
    if report.rows_carried:
        lines.append(tr("{rows} migrated.", rows=format_count(report.rows_carried, "row")))
    if report.findings:
        named = [f"{count:,} {name}" for name, count in report.findings.items()]
        lines.append(tr("Findings: {named}.", named=join_list(named)))
    if len(report.slowest) > 1:
        lines.append(tr("Slowest:"))
        lines += [f"  {one.seconds or 0:.1f} s  {one_line(one.source, LONGEST_NAME)}" for one in report.slowest]
    return printable_lines(lines)


def _failed_lines(report: FleetReport, most: int | None) -> list[str]:
    """Name the libraries and the bases that failed, at most ``most`` of each (None: all)."""

    def line(one: LibraryReport | BaseReport) -> str:
        """Format one failed library or base."""
        source = one_line(one.source, LONGEST_NAME)
        what = source
        if isinstance(one, BaseReport):
            what = tr("{base} in {source}", base=one_line(one.name or one.base, LONGEST_NAME), source=source)
        # Many messages begin with the path already.
        why = _shown_message(one) or one.code or ""
        return f"  {label_of(one.outcome)}  {tr('{what}: {why}', what=what, why=why) if why else what}"

    lines = []
    failed: list[tuple[str, Sequence[LibraryReport | BaseReport]]] = [
        (tr("Failed libraries:"), report.failed),
        (tr("Failed bases:"), report.failed_bases),
    ]
    for heading, found in failed:
        if found:
            lines += [heading, *map(line, found[:most])]
        if len(found[:most]) < len(found):
            lines.append(tr("  and {count:,} more; -v names all", count=len(found) - len(found[:most])))
    return lines


def _format_counts(counts: dict[str, int], what: str) -> str:
    """Format counts by outcome, such as "3 libraries: 2 done, 1 failed."; ``what`` is the noun."""
    named = [format_labeled_count(count, name) for name, count in counts.items() if name != "all"]
    return tr("{whole}: {named}.", whole=format_count(counts["all"], what), named=join_list(named))
