"""What is said where no path is given: what the application has on this system, and the next command for each."""

from __future__ import annotations

from collections.abc import Iterator

from checks.cherry_v2.installed import Installed, InstalledReport, installed
from regraft.cli.output import echo_json, say
from regraft.language import tr
from regraft.report.document import Run, encoded
from regraft.text import shown, shown_lines


def tell_installed(*, as_json: bool, quiet: bool) -> None:
    """Say what the application has on this system; where that is nothing, where was looked, and what to do."""
    report = _report()
    if as_json:
        echo_json(encoded(report))
    elif report.found:
        say(shown_lines(_found_lines(report.found, quiet=quiet)))
    else:
        say(shown_lines(_nowhere_lines(report)))


def greet() -> bool:
    """Say what the application has on this system, if anything; tell whether there was something."""
    found = _report().found
    if found:
        say(shown_lines([*_found_lines(found, quiet=False), "", tr("All commands: regraft --help")]))
    return bool(found)


def _report() -> InstalledReport:
    run = Run(command="inspect")
    places, found = installed()
    run.end()
    return InstalledReport(head=run.head(), searched=[str(place) for place in places], found=found)


def _found_lines(found: list[Installed], *, quiet: bool) -> Iterator[str]:
    if not quiet:
        yield tr("Cherry Studio on this computer:")
    for one in found:
        if not quiet:
            yield ""
        yield f"{shown(one.path)}  ({one.why})"
        yield from (f"  {fact}" for fact in one.facts)
        for step in one.next:
            yield tr("  {does}:", does=step.does)
            yield f"    {step.command}"


def _nowhere_lines(report: InstalledReport) -> Iterator[str]:
    yield tr("Cherry Studio has no data where it usually keeps them. Looked at:")
    yield from (f"  {shown(place)}" for place in report.searched)
    yield ""
    yield tr("Give the path of its data, of a backup, or of a library: regraft inspect PATH")
