"""``regraft inspect``: what a path is and what is in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from checks import inspect as checks_inspect
from checks.cherry_v2.installed import Installation
from regraft import api
from regraft.api import inspection
from regraft.cli.options import PATH, Output, output_options, struct_options
from regraft.cli.output import echo, echo_json, report_errors
from regraft.errors import WrongUsage
from regraft.language import tr
from regraft.options import InspectOptions
from regraft.report.document import encoded
from regraft.text import printable, printable_lines


def print_installed(*, as_json: bool, quiet: bool) -> None:
    """Print the application's data on this computer, or, if nothing is found, the folders that were searched."""
    report = inspection.inspect_computer()
    if as_json:
        echo_json(encoded(report))
    elif report.found:
        echo(printable_lines(_found_lines(report.found, quiet=quiet)))
    else:
        lines = [
            tr("No data of Cherry Studio in the usual places. Searched:"),
            *(f"  {printable(place)}" for place in report.searched),
            "",
            tr("Give the path of its data, of a backup, or of a library: regraft inspect PATH"),
        ]
        echo(printable_lines(lines))


def greet() -> bool:
    """Print the application's data on this computer; return False, and print nothing, if nothing is found."""
    found = inspection.inspect_computer().found
    if found:
        echo(printable_lines([*_found_lines(found, quiet=False), "", tr("All commands: regraft --help")]))
    return bool(found)


def _found_lines(installations: list[Installation], *, quiet: bool) -> Iterator[str]:
    """Format installations of the application, each with the commands to run next."""
    if not quiet:
        yield tr("Cherry Studio on this computer:")
    for one in installations:
        if not quiet:
            yield ""
        yield f"{printable(one.path)}  ({one.why})"
        yield from (f"  {fact}" for fact in one.facts)
        for step in one.next:
            yield tr("  {does}:", does=step.does)
            yield f"    {step.command}"


@click.command()
@click.argument("path", type=PATH, required=False)
@report_errors
@struct_options(InspectOptions)
@output_options()
def inspect(path: Path | None, options: InspectOptions, output: Output) -> None:
    """Show what PATH is and what it contains. Nothing is written.

    PATH may be a v1 backup (zip or folder), a v1 profile folder, an export folder, a knowledge JSON file, a v1 vector
    file, what a preview build wrote, a library that regraft wrote, one base folder, an index.sqlite, a database of
    codex-mem, a data folder of AngelMemory, or a folder of Chroma. Without PATH: what the application has on this
    computer, backups beside it, and the next command for each.

    \b
    Example:
      regraft inspect ~/.config/CherryStudio
    """
    if path is None:
        if options.kind is not None or options.items:
            raise WrongUsage(problem=tr("--kind and --items need a PATH"), hint=tr("give PATH"))
        if options.now_ms is not None:
            raise WrongUsage(problem=tr("--now needs a PATH"), hint=tr("give PATH"))
        print_installed(as_json=output.as_json, quiet=output.quiet)
        return
    report = api.inspect(path, options, progress=output.progress())
    if output.as_json:
        echo_json(encoded(report))
    else:
        echo(checks_inspect.format_inspect_report(report, verbose=output.verbose > 0))
