"""The command line: a command parses, calls one function, renders its result (``docs/commands.md``)."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

import migrators
from checks import findings, glance, v1_source
from regraft import __version__, clock, durable, ledger, progress, render
from regraft.envelope import Run
from regraft.errors import (
    INTERRUPTED,
    REFUSED,
    FaultOfRegraft,
    Interrupted,
    ModelOptionInvalid,
    NotChecked,
    RegraftError,
    SourceNotMigratable,
    StoppedBySystem,
    TargetNotWritable,
    WrongUsage,
)
from regraft.locate import CATALOG_FILE, KNOWLEDGE_FOLDER, NAMES, Kind, Located, located
from regraft.text import shown

F = TypeVar("F", bound=Callable[..., Any])

_PATH = click.Path(path_type=Path)


def _time(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    """Return a time given as ISO 8601 with a time zone, in ms."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is not None:
            return round(moment.astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(f"{value!r} is not a time like 2026-01-31T12:00:00Z") from error
    raise click.BadParameter(f"{value!r} has no time zone; write it with a Z at its end")


def _output_options(command: F) -> F:
    """Add what every command takes: how much it says, and in which form."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text."),
        click.option("-q", "--quiet", is_flag=True, help="No plan, no progress; only the result."),
        click.option("-v", "--verbose", count=True, help="Say every note; -vv shows where an error came from."),
        click.option(
            "--kind",
            type=click.Choice([kind.value for kind in Kind]),
            metavar="KIND",
            help="What the path is, where it is told wrongly: v1-backup, v1-export, library…",
        ),
    ):
        command = option(command)
    return command


def _plan_options(command: F) -> F:
    """Add what decides how a source is planned, and which of what is said about it counts."""
    for option in (
        click.option(
            "--fail-on",
            type=click.Choice(["error", "warning", "never"]),
            default="warning",
            show_default=True,
            help="From which severity on the exit status is 1.",
        ),
        click.option(
            "--recreate-model",
            multiple=True,
            metavar="ID",
            help="Your word that model ID, which v1 lost, will be there again.",
        ),
        click.option(
            "--map-model",
            multiple=True,
            metavar="OLD=NEW",
            help="Your word that vectors of model OLD (or of the v1 base OLD) are model NEW's; "
            "ids are provider::model.",
        ),
        click.option(
            "--base", "bases", multiple=True, metavar="ID", help="Only this base (v1 or v2 id); may be repeated."
        ),
    ):
        command = option(command)
    return command


def _reports_errors(command: F) -> F:
    """Turn errors into one line on stderr and their exit status; with --json, into one document on stdout too."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        name, as_json, verbose = command.__name__, kwargs["as_json"], kwargs["verbose"]
        try:
            command(*args, **kwargs)
        except RegraftError as error:
            _fail(error, name, as_json=as_json, verbose=verbose)
        except KeyboardInterrupt:
            _fail(Interrupted(finished=0), name, as_json=as_json, verbose=verbose)
        except OSError as error:
            _fail(StoppedBySystem(reason=error), name, as_json=as_json, verbose=verbose)
        except Exception as error:
            if verbose > 1:
                traceback.print_exception(error)
            fault = FaultOfRegraft(kind=type(error).__name__, reason=error)
            _fail(fault, name, as_json=as_json, verbose=0)

    return run  # type: ignore[return-value]


def _fail(error: RegraftError, command: str, *, as_json: bool, verbose: int) -> None:
    if verbose > 1:
        traceback.print_exception(error)
    if as_json:
        head = {"regraft": Run(command).document()["regraft"]}
        said = {"code": error.code, "message": str(error), "exit_status": error.exit_status}
        _echo_json({**head, "error": said})
    click.echo(f"regraft: {error}", err=True)
    sys.exit(error.exit_status)


def _echo_json(document: dict[str, Any]) -> None:
    """Print a document; a stdout that is not UTF-8 gets it in ASCII, so that no name is lost."""
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    _say(render.as_json(document, ascii_only=not is_utf8))


def _say(text: str) -> None:
    """Print ``text``; a reader that has gone away decides nothing about the work."""
    try:
        click.echo(text, nl=False)
    except BrokenPipeError:
        # What follows, and what Python flushes at its end, goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Commands(click.Group):
    """The commands, with wrong usage said like every other error: one line, and one document with --json."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **settings: Any) -> Any:
        """Run a command line."""
        arguments = sys.argv[1:] if args is None else list(args)
        settings["standalone_mode"] = False
        try:
            status = super().main(arguments, *more, **settings)
        except click.ClickException as error:
            if not arguments:
                click.echo(self.get_help(click.Context(self, info_name="regraft")))
                sys.exit(REFUSED)
            said = " ".join(error.format_message().split())
            context = getattr(error, "ctx", None)
            name = context.info_name if context is not None and context.parent is not None else ""
            hint = f"see regraft {name} --help" if name else "see regraft --help"
            _fail(WrongUsage(problem=said.rstrip("."), hint=hint), name or "", as_json="--json" in arguments, verbose=0)
        sys.exit(status if isinstance(status, int) else 0)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="regraft")
def cli() -> None:
    """Carry a local knowledge base to a new layout with its vectors alive.

    Vectors move byte for byte and nothing is embedded again. Sources are only read; what is written is written whole
    or not at all.
    """


@cli.command()
@click.argument("path", type=_PATH)
@_output_options
@_reports_errors
def inspect(path: Path, as_json: bool, quiet: bool, verbose: int, kind: str | None) -> None:
    """Tell what PATH is and what is in it. Nothing is written.

    PATH may be a v1 backup (zip or folder), a v1 profile folder, an export folder, a knowledge JSON file, a v1 vector
    file, what a preview build wrote, a library that regraft wrote, one base folder, or an index.sqlite.
    """
    run = Run("inspect")
    with located(path, Kind(kind) if kind else None) as source:
        run.source_kind, run.source = source.kind.value, source.path if source.notices else path
        found = glance.look(source, progress.for_person(quiet=quiet or as_json))
    run.end()
    document = {**run.document(), **found}
    if as_json:
        _echo_json(document)
    else:
        _say(glance.as_text(document, verbose=verbose > 0))


@cli.command()
@click.argument("path", type=_PATH)
@click.option("--only", multiple=True, metavar="NAME", help="Only findings of this name; may be repeated.")
@_plan_options
@_output_options
@_reports_errors
def check(  # noqa: PLR0913, PLR0917 - one parameter for every option
    path: Path,
    only: tuple[str, ...],
    bases: tuple[str, ...],
    map_model: tuple[str, ...],
    recreate_model: tuple[str, ...],
    fail_on: str,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Audit PATH before it is migrated: findings, and what mends each. Nothing is written.

    PATH is whatever regraft migrate takes. What is found is what migrate would say, without a target.
    """
    findings.check_names(only)
    # A look harms nobody: that the application is running is a finding.
    options = migrators.Options(
        now_ms=clock.now_ms(), word=_model_word(map_model, recreate_model), bases=bases, while_running=True
    )
    with located(path, Kind(kind) if kind else None) as found:
        try:
            plan = migrators.plan_only(found, options, progress.for_person(quiet=quiet or as_json))
        except SourceNotMigratable as error:
            if error.facts["what"] != NAMES[found.kind]:
                raise
            v1_left = found.kind is Kind.V2_PROFILE and "--kind" in str(error.facts["advice"])
            advice = f"regraft inspect gives a first look{'; --kind v1-profile checks what v1 left' if v1_left else ''}"
            raise NotChecked(path=path, what=NAMES[found.kind], advice=advice) from error
    given = {"--base": bases, "--map-model": map_model, "--recreate-model": recreate_model}
    words = [word for option, values in given.items() for value in values for word in (option, value)]
    audit = v1_source.audit(plan, _migrate_command(path, kind, words)).only(only)
    head = {key: plan[key] for key in ("regraft", "source", "target", "run")}
    if as_json:
        _echo_json({**head, **audit.document()})
    else:
        title = f"{plan['source']['path']} is {NAMES[Kind(plan['source']['kind'])]}."
        _say(findings.as_text(audit, title, verbose=verbose > 0))
    sys.exit(audit.exit_status(fail_on))


def _migrate_command(path: Path, kind: str | None, words: list[str]) -> list[str]:
    """Return the words of the command that migrates a source, with options that were given for it."""
    name = shown(path)
    source = f".{os.sep}{name}" if name.startswith("-") else name
    return ["regraft", "migrate", source, "--to", "OUT", *(("--kind", kind) if kind else ()), *words]


@cli.command()
@click.argument("source", type=_PATH)
@click.option("--to", "target", type=_PATH, required=True, metavar="OUT", help="The library's folder: new or empty.")
@click.option("--dry-run", is_flag=True, help="Show the plan and the report; touch nothing.")
@_plan_options
@click.option(
    "--jobs", type=click.IntRange(1, 64), metavar="N", help="Bases carried at once. [default: cores, up to 4]"
)
@click.option("--while-running", is_flag=True, help="Read a profile although its application is running.")
@click.option(
    "--no-restore-duplicates",
    is_flag=True,
    help="Leave files empty that v1 left empty because another one has the same bytes.",
)
@click.option("--now", callback=_time, metavar="TIME", help="The run's time, ISO 8601 with Z. [default: now]")
@click.option("--report", "page", type=_PATH, metavar="FILE.html", help="Write the report page here too.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before a run that leaves something behind.")
@_output_options
@_reports_errors
def migrate(  # noqa: PLR0913, PLR0917 - one parameter for every option
    source: Path,
    target: Path,
    dry_run: bool,
    bases: tuple[str, ...],
    map_model: tuple[str, ...],
    recreate_model: tuple[str, ...],
    jobs: int | None,
    while_running: bool,
    no_restore_duplicates: bool,
    now: int | None,
    page: Path | None,
    fail_on: str,
    yes: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Migrate the knowledge base in SOURCE to a v2 library in OUT.

    SOURCE is a v1 backup (zip or folder), a v1 profile folder, an export folder, a knowledge JSON file beside its
    vector files, or what a preview build wrote. It is only read. A second run goes on where the first one stopped, and
    leaves alone what is done.
    """
    if page is not None:
        _check_page(page, source, target)
    options = migrators.Options(
        now_ms=clock.now_ms() if now is None else now,
        word=_model_word(map_model, recreate_model),
        bases=bases,
        jobs=jobs,
        dry_run=dry_run,
        while_running=while_running,
        restore_duplicates=not no_restore_duplicates,
    )

    def show_plan(planned: dict[str, Any]) -> bool:
        if as_json or quiet:
            return True
        asks = not yes and sys.stdin.isatty() and migrators.exit_status(planned, "error") != 0
        _say(f"Plan:\n{render.as_text(planned)}" if asks else render.as_line(planned) + "\n")
        try:
            return not asks or click.confirm("Some of it cannot be carried. Go on?", default=True)
        except click.Abort as error:
            raise KeyboardInterrupt from error

    with located(source, Kind(kind) if kind else None) as found:
        _say_found(found, quiet=quiet or as_json)
        bar = progress.for_person(quiet=quiet or as_json)
        migration = migrators.migrate(found, target, options, bar, show_plan)
    document = migration.document
    if page is not None:
        durable.write_text(page, render.as_page(document), page.with_name(f".{page.name}.part"))
    if as_json:
        _echo_json(document)
    else:
        _say(_summary(document, _written(target, page, wrote=migration.wrote), verbose))
    sys.exit(migrators.exit_status(document, fail_on))


def _say_found(found: Located, *, quiet: bool) -> None:
    """Say at once where another folder is read than the one that was given."""
    for notice in () if quiet else found.notices:
        click.echo(f"regraft: {notice.message}", err=True)


def _written(target: Path, page: Path | None, *, wrote: bool) -> list[Path]:
    """Return the paths that a run has written, as far as they are there."""
    names = (CATALOG_FILE, KNOWLEDGE_FOLDER, "report.json", "report.html", ledger.FOLDER) if wrote else ()
    return [*(target / name for name in names if (target / name).exists()), *([page] if page else [])]


def _check_page(page: Path, source: Path, target: Path) -> None:
    """Refuse to write a report page over anything but an earlier one, or into the source or the library."""
    reason = ""
    if page.is_dir() or not page.absolute().parent.is_dir():
        reason = "it is a folder" if page.is_dir() else "its folder does not exist"
    elif any(page.resolve().is_relative_to(place.resolve()) for place in (source, target)):
        reason = "it lies in the source or in the library"
    elif page.exists() and not render.is_page(page.read_text("utf-8", "replace")):
        reason = "it is there already and no report page"
    if reason:
        raise TargetNotWritable(path=page, reason=reason)


def _model_word(mapped: tuple[str, ...], recreated: tuple[str, ...]) -> migrators.ModelWord:
    words = {}
    for text in mapped:
        old, separator, new = text.partition("=")
        if not separator or not old.strip() or not migrators.is_model_id(new):
            raise ModelOptionInvalid(option="--map-model", value=text, reason="write OLD=NEW, NEW as provider::model")
        words[migrators.tidy_model_id(old)] = migrators.tidy_model_id(new)
    for text in recreated:
        if not migrators.is_model_id(text):
            raise ModelOptionInvalid(option="--recreate-model", value=text, reason="write it as provider::model")
    return migrators.ModelWord(words, frozenset(map(migrators.tidy_model_id, recreated)))


def _summary(document: dict[str, Any], written: list[Path], verbose: int) -> str:
    text = render.as_text(document, verbose=verbose > 0) + "\n"
    if written:
        return text + "Written:\n" + "".join(f"  {shown(path)}\n" for path in written)
    if document["run"]["dry_run"]:
        return text + "Dry run: nothing was written.\n"
    return text + "Nothing has changed since the last run: nothing was written.\n"


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's coding lacks must not end a run.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        cli(prog_name="regraft")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
