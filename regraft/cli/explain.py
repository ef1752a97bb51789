"""``regraft explain``: what a finding, a code or an error means, and the pages of the documentation, offline."""

from __future__ import annotations

import difflib
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from checks.systems import load_findings
from regraft.cli.options import verbose_option
from regraft.cli.output import echo, echo_json, report_errors
from regraft.errors import INTERRUPTED, REFUSED, STOPPED, WORTH_READING, WrongUsage, error_classes
from regraft.language import current_language, join_list, tr, tr_in
from regraft.report.document import Report, Run, encoded
from regraft.report.labels import severity_label
from regraft.report.notices import EVERY_CODE
from regraft.text import printable_lines

NameKind = Literal["finding", "code", "error", "page"]

#: HTML comments in a page: the markers of generated tables.
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def _pages_folder() -> Traversable:
    """Return the folder of the documentation: inside the installed package, or at the root of a checkout."""
    installed = files("regraft") / "docs"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "docs"


def page_names() -> list[str]:
    """Return the names of the documentation's pages, sorted: ``upgrade``, ``findings``…"""
    found = (page.name for page in _pages_folder().iterdir())
    return sorted(name.removesuffix(".md") for name in found if name.endswith(".md") and name != "README.md")


def read_page(name: str) -> str:
    """Return a page as Markdown, without comments, in the language of the process if it is translated."""
    translated = _pages_folder() / current_language() / f"{name}.md"
    page = translated if translated.is_file() else _pages_folder() / f"{name}.md"
    return _COMMENT.sub("", page.read_text("utf-8"))


#: What to do about a code that is no finding of a check, by its severity.
_REMEDIES_BY_SEVERITY: dict[str, str] = {
    "note": tr("No action needed."),
    "warning": tr(
        "The report names each one. Take what is missing from the source or a backup, or continue without it."
    ),
    "error": tr("The report names each one. Correct the source, or take an undamaged copy, and run the command again."),
}
#: What to do about an error, by its exit status.
_REMEDIES_BY_STATUS = {
    WORTH_READING: tr("Read the reported findings; everything else is complete."),
    REFUSED: tr("Nothing was changed. Correct what the message names, and run the command again."),
    STOPPED: tr("Remove the cause that the message names, and run the same command again: finished work is kept."),
    INTERRUPTED: tr("Run the same command again: finished work is kept."),
}


_KINDS: dict[NameKind, str] = {
    "finding": tr("finding"),
    "code": tr("code"),
    "error": tr_in("severity", "error"),
    "page": tr("page"),
}


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of a name: of a finding, of a code in the report of a run, of an error, or of a page."""

    name: str
    kind: NameKind
    meaning: str
    #: Of a finding and a code.
    severity: str | None = None
    #: What to do about it; None for a page.
    remedy: str | None = None
    #: The finding that a code is for ``regraft check``; of a finding, the codes that are it.
    related: tuple[str, ...] = ()
    #: Of an error.
    exit_status: int | None = None


class ExplainReport(Report, kw_only=True):
    """The report of ``regraft explain`` (``docs/commands.md``)."""

    explained: list[Explanation]
    #: The pages that there are, where nothing was named.
    pages: list[str]


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--json", "as_json", is_flag=True, help=tr("Print one JSON document instead of text."))
@verbose_option()
@report_errors
def explain(names: tuple[str, ...], as_json: bool, **_: Any) -> None:
    """Explain NAME: a finding, a code, an error, or a page of the documentation.

    Without NAME, the pages are listed. No store is read.

    \b
    Example:
      regraft explain missing_vector_store
    """
    run = Run(command="explain")
    explained = [one for name in names for one in _find_explanations(name)]
    run.end()
    if as_json:
        listed = [] if names else page_names()
        echo_json(encoded(ExplainReport(head=run.head(), explained=explained, pages=listed)))
    elif names:
        echo("\n".join(_as_text(one) for one in explained))
    else:
        usage = tr(
            "regraft explain NAME says what a finding (item.tombstone), a code (missing_vector_store) or an error "
            "(TargetNotOurs) means. These pages can be read the same way:"
        )
        echo(f"{usage}\n\n{printable_lines(f'  {name}' for name in page_names())}")


def _find_explanations(name: str) -> list[Explanation]:
    """Find all findings, codes, errors and pages with this name.

    Raises:
        WrongUsage: the name is unknown; the hint has the nearest names.
    """
    findings = load_findings()
    errors = {error.__name__: error for error in error_classes()}
    found = []
    if name in findings:
        definition = findings[name]
        codes = tuple(code.name for code in EVERY_CODE.values() if code.finding == name)
        finding = Explanation(
            name=name,
            kind="finding",
            severity=definition.severity,
            meaning=definition.meaning,
            remedy=definition.remedy,
            related=codes,
        )
        found.append(finding)
    if name in EVERY_CODE:
        code = EVERY_CODE[name]
        related: tuple[str, ...] = ()
        remedy = _REMEDIES_BY_SEVERITY[code.severity]
        if code.finding:
            related, remedy = (code.finding,), findings[code.finding].remedy
        explanation = Explanation(
            name=name, kind="code", severity=code.severity, meaning=code.meaning, remedy=remedy, related=related
        )
        found.append(explanation)
    if name in errors:
        error = errors[name]
        meaning = re.sub(r"\{(\w+)\}", lambda fact: fact[1].replace("_", " ").upper(), tr(error.template()))
        remedy = _REMEDIES_BY_STATUS[error.exit_status]
        found.append(
            Explanation(name=name, kind="error", meaning=meaning, remedy=remedy, exit_status=error.exit_status)
        )
    if name in page_names():
        found.append(Explanation(name=name, kind="page", meaning=read_page(name)))
    if not found:
        every = [*findings, *EVERY_CODE, *errors, *page_names()]
        near = difflib.get_close_matches(name, every, n=3, cutoff=0)
        raise WrongUsage(
            problem=tr("no finding, code, error or page is called {name}", name=name),
            hint=tr("the nearest are {near}", near=join_list(near)),
        )
    return found


def _as_text(one: Explanation) -> str:
    """Format an explanation as text."""
    if one.kind == "page":
        return one.meaning
    grade = tr(", exit status {exit_status}", exit_status=one.exit_status)
    if one.severity is not None:
        grade = tr(", {severity}", severity=severity_label(one.severity))
    lines = [f"{one.name}  " + tr("({kind}{grade})", kind=_KINDS[one.kind], grade=grade), f"  {one.meaning}"]
    lines.append(tr("  What to do: {remedy}", remedy=one.remedy))
    if one.kind == "finding" and one.related:
        lines.append(tr("  Codes of a migration: {related}", related=join_list(one.related)))
    if one.kind == "code" and one.related:
        lines.append(tr("  Finding of regraft check: {related}", related=one.related[0]))
    return printable_lines(lines)
