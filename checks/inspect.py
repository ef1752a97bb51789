"""The report of a first look at any store: what it is, what is in it, how healthy it seems (``regraft inspect``)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from checks import systems
from checks.looks import BaseSummary, HealthSummary, InspectOptions
from regraft.kinds import SYSTEMS, Kind
from regraft.language import format_count, join_list, tr
from regraft.report.document import Report, Run
from regraft.stores.systems import Located, system_of
from regraft.text import format_bytes, path_argument, printable_lines


class InspectReport(Report, kw_only=True):
    """What ``regraft inspect`` tells; ``kind`` is one of :class:`regraft.kinds.Kind`."""

    kind: str
    bases: Sequence[BaseSummary]
    health: HealthSummary


def make_inspect_report(source: Located, run: Run, asked: InspectOptions) -> InspectReport:
    """Look at a recognised path; ``run`` ends with it.

    Raises:
        WrongUsage: it has no items.
        BrokenJson, SourceUnreadable: its state cannot be read.
    """
    found = systems.inspect_store(source, asked)
    run.end()
    return InspectReport(head=run.head(), kind=source.kind.value, bases=found.bases, health=found.health)


def format_inspect_report(report: InspectReport, *, verbose: bool = False) -> str:
    """Return a look as text for a person."""
    kind = Kind(report.kind)
    lines = [report.head.title, ""]
    for base in report.bases:
        lines += base.lines(verbose=verbose)
    lines += report.health.lines()
    part = system_of(kind).part if kind in SYSTEMS else "base"
    if part:
        size = format_bytes(report.health.bytes)
        lines.append(tr("{parts}, {size}.", parts=format_count(len(report.bases), part), size=size))
    path = report.head.source.path if report.head.source else ""
    lines += _health_lines(path, report.health, report.bases)
    return printable_lines(lines)


def _health_lines(path: str, health: HealthSummary, bases: Sequence[BaseSummary]) -> Iterator[str]:
    if health.coverage is not None:
        yield (
            tr(
                "{coverage:.2%} of the texts have their vector; {orphans}, {stale:,} stale.",
                coverage=health.coverage,
                orphans=format_count(health.orphans or 0, "orphan"),
                stale=health.stale or 0,
            )
        )
    above = {tr("{what}: {why}", what=base.name, why=base.problem) for base in bases}
    for problem in health.problems:
        if problem not in above:
            yield tr("problem: {problem}", problem=problem)
    named = sum(problem in above for problem in health.problems)
    if named:
        yield tr("{bases} with a problem, see above.", bases=format_count(named, "base"))
    for note in health.notes or ():
        yield tr("note: {note}", note=note)
    worth = list(_worth_a_look(health, bases))
    if worth:
        yield tr(
            "Worth a look: {worth}; {value} says more.",
            worth=join_list(worth),
            value=shlex.join(["regraft", "check", path_argument(path)]),
        )
    elif not health.problems:
        yield tr("No problem at a glance.")


def _worth_a_look(health: HealthSummary, bases: Sequence[BaseSummary]) -> Iterator[str]:
    """Yield what is no problem of a whole base, and yet not as it should be."""
    failed = sum(base.items.get("failed", 0) for base in bases if base.items)
    if failed:
        yield format_count(failed, "failed item")
    if health.coverage is not None and health.coverage < 1:
        yield tr("{coverage:.2%} of the texts without a vector", coverage=1 - health.coverage)
    if health.orphans:
        yield format_count(health.orphans, "orphan")
    if health.stale:
        yield tr("{stale:,} stale", stale=health.stale)
