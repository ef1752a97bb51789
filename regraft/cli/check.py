"""``regraft check``: an audit, without writing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from checks import systems
from checks.audit import findings
from checks.audit import page as audit_page
from checks.audit.collector import Level
from regraft.api.audit import AuditRequest, audit_source, recognize
from regraft.cli.options import (
    PATH,
    adopt_option,
    now_option,
    only_option,
    output_options,
    parse_model_map,
    plan_options,
)
from regraft.cli.output import echo, echo_error, echo_json, format_written, report_errors
from regraft.disk import links
from regraft.errors import (
    SourceUnreadable,
    WrongUsage,
)
from regraft.kinds import Kind
from regraft.language import tr
from regraft.report import html as report_html
from regraft.report import progress
from regraft.report.document import encoded
from regraft.stores.locate import INDEX_FILE, Located


def _levels(command: Any) -> Any:
    """Add how deep v2 data are looked at, and how long."""
    for option in (
        click.option(
            "--max-duration",
            type=click.FloatRange(min=0),
            metavar="SECONDS",
            help=tr("v2: end after so long, with what was found so far."),
        ),
        click.option("--deep", is_flag=True, help=tr("v2: SQLite's own integrity check and every snapshot, too.")),
        click.option("--quick", is_flag=True, help=tr("v2: structure, counts and coverage only.")),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("path", type=PATH)
@only_option
@_levels
@click.option(
    "--report", "page", type=PATH, metavar="FILE.html", help=tr("Write numbers and charts, and no text or name, here.")
)
@now_option
@adopt_option
@plan_options
@output_options
@report_errors
def check(  # noqa: PLR0913, PLR0917 - one parameter for every option
    path: Path,
    only: tuple[str, ...],
    quick: bool,
    deep: bool,
    max_duration: float | None,
    page: Path | None,
    now: int | None,
    bases: tuple[str, ...],
    map_model: tuple[str, ...],
    recreate_model: tuple[str, ...],
    adopt_orphans: bool,
    fail_on: str,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Audit PATH: findings, and what mends each. Nothing is written but FILE.html.

    PATH is v2 data (a library, a profile, a base's folder, an index file), a database of codex-mem, a data folder of
    AngelMemory, or whatever regraft migrate takes: then what is found is what migrate would say, without a target.

    \b
    Example:
      regraft check library --deep
    """
    systems.require_finding_names(only)
    wanted = AuditRequest(
        level=_level(quick=quick, deep=deep),
        max_duration=max_duration,
        bases=bases,
        map_model=parse_model_map(map_model),
        recreate_model=recreate_model,
        adopt_orphans=adopt_orphans,
        now_ms=now,
        progress=progress.terminal_progress(quiet=quiet or as_json),
    )
    with recognize(path, Kind(kind) if kind else None) as found:
        if page is not None:
            _check_page(page, path, found)
        head, audit = audit_source(path, found, Kind(kind) if kind else None, wanted)
    audit = audit.only(only)
    report = audit.report(head)
    written = "" if page is None else _written_page(page, report, only, quiet=quiet)
    if as_json:
        echo_json(encoded(report))
        for line in written.splitlines():
            echo_error(line)
    else:
        text = findings.format_audit(audit, head.title, verbose=verbose > 0)
        echo(f"{text}\n{written}" if written else text)
    sys.exit(audit.exit_status(fail_on))


def _level(*, quick: bool, deep: bool) -> Level:
    if quick and deep:
        raise WrongUsage(problem=tr("--quick and --deep contradict each other"), hint=tr("leave one of them out"))
    return Level.QUICK if quick else Level.DEEP if deep else Level.DEFAULT


def _written_page(page: Path, report: findings.CheckReport, only: tuple[str, ...], *, quiet: bool) -> str:
    """Write the report page; return what is said of that."""
    report_html.write_page(page, audit_page.render_check_page(encoded(report), only))
    return "" if quiet else format_written([page])


def _check_page(page: Path, path: Path, found: Located | SourceUnreadable) -> None:
    """Refuse a page in what is read: PATH, the base that an index belongs to, a data folder that settings name."""
    read = [path, *([path.absolute().parents[1]] if path.match(INDEX_FILE) else [])]
    # The tree of a base begins above it, where a page may lie.
    if isinstance(found, Located) and not links.real_path(path).is_relative_to(links.real_path(found.tree.path)):
        read.append(found.tree.path)
    report_html.check_page_path("check", page, *read)
