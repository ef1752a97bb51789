"""``regraft inspect``: what a path is and what is in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from checks import inspect as checks_inspect
from checks.cherry_v2.installed import Installation, InstallationsReport, find_installations
from regraft import api
from regraft.cli.options import PATH, now_option, output_options
from regraft.cli.output import echo, echo_json, report_errors
from regraft.errors import WrongUsage
from regraft.language import tr
from regraft.report import progress
from regraft.report.document import Run, encoded
from regraft.text import printable, printable_lines

# What is said where no path is given: what the application has on this system, and the next command for each.


def print_installed(*, as_json: bool, quiet: bool) -> None:
    """Say what the application has on this system; where that is nothing, where was looked, and what to do."""
    report = _report()
    if as_json:
        echo_json(encoded(report))
    elif report.found:
        echo(printable_lines(_found_lines(report.found, quiet=quiet)))
    else:
        echo(printable_lines(_nowhere_lines(report)))


def greet() -> bool:
    """Say what the application has on this system, if anything; tell whether there was something."""
    found = _report().found
    if found:
        echo(printable_lines([*_found_lines(found, quiet=False), "", tr("All commands: regraft --help")]))
    return bool(found)


def _report() -> InstallationsReport:
    run = Run(command="inspect")
    places, found = find_installations()
    run.end()
    return InstallationsReport(head=run.head(), searched=[str(place) for place in places], found=found)


def _found_lines(found: list[Installation], *, quiet: bool) -> Iterator[str]:
    if not quiet:
        yield tr("Cherry Studio on this computer:")
    for one in found:
        if not quiet:
            yield ""
        yield f"{printable(one.path)}  ({one.why})"
        yield from (f"  {fact}" for fact in one.facts)
        for step in one.next:
            yield tr("  {does}:", does=step.does)
            yield f"    {step.command}"


def _nowhere_lines(report: InstallationsReport) -> Iterator[str]:
    yield tr("Cherry Studio has no data where it usually keeps them. Looked at:")
    yield from (f"  {printable(place)}" for place in report.searched)
    yield ""
    yield tr("Give the path of its data, of a backup, or of a library: regraft inspect PATH")


@click.command()
@click.argument("path", type=PATH, required=False)
@click.option(
    "--items", is_flag=True, help=tr("List every item of every base; of AngelMemory, every record and vector.")
)
@now_option
@output_options
@report_errors
def inspect(
    path: Path | None, items: bool, now: int | None, as_json: bool, quiet: bool, verbose: int, kind: str | None
) -> None:
    """Tell what PATH is and what is in it. Nothing is written.

    PATH may be a v1 backup (zip or folder), a v1 profile folder, an export folder, a knowledge JSON file, a v1 vector
    file, what a preview build wrote, a library that regraft wrote, one base folder, an index.sqlite, a database of
    codex-mem, or a data folder of AngelMemory. Without PATH: what the application has on this computer, backups beside
    it, and the next command for each.

    \b
    Example:
      regraft inspect ~/.config/CherryStudio
    """
    if path is None:
        if kind is not None or items:
            raise WrongUsage(problem=tr("--kind and --items are about a path"), hint=tr("give PATH"))
        if now is not None:
            raise WrongUsage(problem=tr("--now is about a path"), hint=tr("give PATH"))
        print_installed(as_json=as_json, quiet=quiet)
        return
    report = api.inspect(
        path, kind=kind, items=items, now_ms=now, progress=progress.terminal_progress(quiet=quiet or as_json)
    )
    if as_json:
        echo_json(encoded(report))
    else:
        echo(checks_inspect.format_inspect_report(report, verbose=verbose > 0))
