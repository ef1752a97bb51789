"""``regraft check``: an audit, without writing."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from checks.audit import findings
from checks.audit import page as audit_page
from regraft.api import audit
from regraft.api.outcome import exit_status
from regraft.cli.options import FAIL_ON, PATH, Output, output_options, struct_options, with_level
from regraft.cli.output import report_errors
from regraft.language import tr
from regraft.options import CheckOptions
from regraft.report import html as report_html
from regraft.report.document import encoded


@click.command()
@click.argument("path", type=PATH)
@click.option("--quick", is_flag=True, help=tr("v2: structure, counts and coverage only."))
@click.option("--deep", is_flag=True, help=tr("v2: also SQLite's integrity check, and every snapshot."))
@click.option(
    "--report",
    "page",
    type=PATH,
    metavar="FILE.html",
    help=tr("Write a page with numbers and charts, without texts, to this file."),
)
@report_errors
@struct_options(CheckOptions, without=("level",))
@output_options(fail_on=FAIL_ON)
def check(path: Path, quick: bool, deep: bool, page: Path | None, options: CheckOptions, output: Output) -> None:
    """Audit PATH: list findings, and how to fix each. Only files that options name are written.

    PATH is v2 data (a library, a profile, a base's folder, an index file), a database of codex-mem, a data folder of
    AngelMemory, or any source of regraft migrate: then the findings are those that migrate would report, and no target
    is needed.

    With --part, each run reads a part of the rows, and writes to a state file what it has read.

    \b
    Example:
      regraft check library --deep
    """
    options = with_level(options, quick=quick, deep=deep)
    report, result, lost = audit.run_check(path, options, output.progress(), page=page)
    page_lost = report_html.write_last_page(page, lambda: audit_page.render_check_page(encoded(report), options.only))
    output.print_report(
        encoded(report),
        lambda: findings.format_audit(result, report.head.title, verbose=output.verbose > 0),
        page if page_lost is None else None,
    )
    for error in (lost, page_lost):
        if error is not None:
            raise error
    sys.exit(exit_status(report, output.fail_on))
