"""Look at a fleet from outside while it runs, or at what it has left: counts, failures, and what is in progress.

Only the journal or the results are read; the run is neither slowed down nor locked out.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec

from regraft.disk import lock_files
from regraft.fleet import results
from regraft.fleet.metrics import LibraryReport, Tally
from regraft.fleet.results import KnownRows, ResultRow
from regraft.fleet.run import FleetReport, make_report
from regraft.language import format_count, tr
from regraft.report.document import Run
from regraft.report.html import render_page
from regraft.report.labels import label_of

#: Libraries in each table of a page.
_MOST_ROWS = 1000
#: Columns of the tables of a page: their class, and their name.
_COLUMNS = (("wide", tr("library")), ("", label_of("outcome")), ("n", tr("seconds")), ("wide", tr("message")))


class RunningLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """A library that has started and not ended; ``since`` is the time of the attempt in ISO 8601."""

    source: str
    attempt: int
    since: str


class FleetStatus(FleetReport, kw_only=True):
    """The state of a fleet: ``running``, ``interrupted`` (``resume`` continues it), or ``finished``.

    ``command`` is what it runs. ``in_progress`` is also what an interrupted run was processing.
    """

    command: str
    state: Literal["running", "interrupted", "finished"]
    in_progress: list[RunningLibrary]


def read_status(path: Path) -> tuple[FleetStatus, KnownRows]:
    """Return the state of a fleet, and the rows of the libraries that have ended; raises as ``read_results`` does."""
    # Asked first: a run that ends meanwhile is reported as running, and never one that runs as interrupted.
    is_running = lock_files.is_lock_held(results.result_files(path)[3])
    order, known = results.read_results(path)
    is_finished = not is_running and not results.journal_path(path).is_file()
    tally = Tally()
    for number in known:
        tally.add(known[number])
    run = Run(command="fleet status", source_kind=None, source=path)
    run.end()
    report = make_report(run, tally, len(order.libraries))
    status = FleetStatus(
        **msgspec.structs.asdict(report),
        command=order.command,
        state="running" if is_running else "finished" if is_finished else "interrupted",
        in_progress=[
            RunningLibrary(source=order.libraries[number].source, attempt=line.attempt, since=line.at)
            for number, line in sorted(known.started.items())
            if 0 <= number < len(order.libraries)
        ],
    )
    return status, known


def status_page(status: FleetStatus, rows: KnownRows) -> str:
    """Render the results of a fleet as an offline HTML page, failures first."""

    def cells(row: ResultRow | LibraryReport) -> tuple[str, ...]:
        """Format a library as cells of a table."""
        seconds = "" if row.seconds is None else f"{row.seconds:,.1f}"
        return row.source, label_of(row.outcome), seconds, row.message or row.code or ""

    good = (rows[number][0] for number in rows if rows.kind(number) is None)
    counts = {label_of(name): f"{count:,}" for name, count in status.libraries.items() if name != "all"}
    if status.left:
        counts[tr("left")] = f"{status.left:,}"
    sections = [
        (tr("Failed libraries"), [cells(row) for row in status.failed[:_MOST_ROWS]]),
        (
            tr("Failed bases"),
            [
                (f"{one.name or one.base} · {one.source}", label_of(one.outcome), "", one.message or one.code or "")
                for one in status.failed_bases
            ],
        ),
        (tr("In progress"), [(one.source, label_of("running"), "", one.since) for one in status.in_progress]),
        (tr("Libraries that ended well"), [cells(row) for row in islice(good, _MOST_ROWS)]),
    ]
    return render_page(
        "fleet.html",
        "fleet",
        title=tr("Fleet: {command}", command=status.command),
        lead=tr(
            "{state}: {libraries} with a result, {left:,} without.",
            state=label_of(status.state),
            libraries=format_count(status.libraries["all"], "library"),
            left=status.left,
        ),
        numbers=counts,
        findings=status.findings,
        columns=_COLUMNS,
        sections=[(heading, found) for heading, found in sections if found],
        most=_MOST_ROWS,
        run=status.head.run,
    )
