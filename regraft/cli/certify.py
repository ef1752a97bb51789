"""``regraft certify``: prove that a base still finds what it should."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import dropwhile, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import click

from checks.certify import page as certify_page
from regraft import api
from regraft.api.certification import CertifyPlan
from regraft.api.outcome import exit_status
from regraft.cli.changes import confirm_lines
from regraft.cli.embedding import estimate_lines
from regraft.cli.options import FAIL_ON, PATH, Output, output_options, report_retries, struct_options
from regraft.cli.output import report_errors
from regraft.language import format_count, join_list, tr
from regraft.options import CertifyOptions
from regraft.report import html as report_html
from regraft.report.document import encoded
from regraft.report.labels import first_of_each, label_of, omitted_lines, severity_heading
from regraft.stores.write_checks import places_read
from regraft.text import LONGEST_NAME, one_line, printable_lines

#: Findings of one name that are shown without ``-v``, and characters of a message.
_SHOWN, _LONGEST = 3, 300


@click.command()
@click.argument("a", type=PATH)
@click.argument("b", type=PATH, required=False)
@click.option(
    "--report",
    "page",
    type=PATH,
    metavar="FILE.html",
    help=tr("Write a page with the verdict and charts, without texts, to this file."),
)
@report_errors
@struct_options(CertifyOptions)
@output_options(fail_on=FAIL_ON, yes=tr("Do not ask before texts are sent; needed in scripts."))
@report_retries
def certify(a: Path, b: Path | None, page: Path | None, options: CertifyOptions, output: Output) -> None:
    """Prove that A still finds its texts, and that B finds the same. Only FILE.html is written.

    A and B are anything that regraft inspect knows: v1 data, a library, a profile, a backup, a pack, a folder of Chroma
    and so on. Nothing is sent unless --embedder is given: then up to 64 texts of each base, after you confirm.

    \b
    Example:
      regraft certify cherry-studio.202503141200.zip library
    """
    report_html.check_page_path(
        "certify", page, *(place for one in (a, b) if one is not None for place in places_read(one))
    )

    def confirm(planned: CertifyPlan) -> bool:
        """Show what will be sent, and ask; return whether the user agrees."""
        message = tr(
            "Embedder {embedder} ({model}) gets texts of {bases}, to compare its vectors with the stored ones:",
            embedder=one_line(planned.embedder),
            model=one_line(planned.model),
            bases=format_count(planned.bases, "base"),
        )
        return confirm_lines(output, [message, *estimate_lines(planned.estimate)])

    report = api.certify(a, b, options, progress=output.progress(), confirm=confirm)
    document = encoded(report)
    lost = report_html.write_last_page(page, lambda: certify_page.render_certify_page(document))
    lines = _lines(document, title=report.head.title, verbose=output.verbose > 0, quiet=output.quiet)
    # With --quiet, the first part may be a later one, which a blank line begins.
    shown = dropwhile(lambda line: not line, lines)
    output.print_report(document, lambda: printable_lines(shown), page if lost is None else None)
    if lost is not None:
        raise lost
    sys.exit(exit_status(report, output.fail_on))


def _lines(document: dict[str, Any], *, title: str, verbose: bool, quiet: bool) -> Iterator[str]:
    """Yield the lines of the text output of ``certify``; ``document`` is its JSON document."""
    if not quiet:
        yield title
        for base in document["bases"]:
            yield from _base_lines(base, has_second=document["target"] is not None, verbose=verbose)
    yield from _finding_lines(document, verbose=verbose)
    yield from _verdict_lines(document, quiet=quiet)
    closing = certify_page.format_closing(document)
    left_out = [reason for reason in document["not_checked"] if reason != closing]
    yield from (tr("Not checked: {reason}", reason=one_line(reason)) for reason in left_out)
    yield from ("", closing)


def _verdict_lines(document: dict[str, Any], *, quiet: bool) -> Iterator[str]:
    """Yield suspicions, and with ``quiet`` unset the verdict on all bases."""
    if document["suspicions"]:
        yield from ("", tr("Suspicions, which prove nothing:"))
    for one in document["suspicions"]:
        name = next(base["name"] for base in document["bases"] if base["id"] == one["base"])
        yield f"  {_format_base_name(document, one['side'], name)}: {one_line(one['message'])} [{one['name']}]"
    if not document["bases"]:
        return
    yield ""
    for part in [] if quiet else certify_page.group_by_outcome(document["bases"]):
        yield tr("{heading}:", heading=part.heading)
        yield from (f"  {statement}" for statement in part.statements)


def _base_lines(base: dict[str, Any], *, has_second: bool, verbose: bool) -> Iterator[str]:
    """Yield the lines about one base of the document; ``has_second``: two stores are compared."""
    side = f"{base['side'].upper()}: " if has_second else ""
    yield ""
    yield f"{side}{one_line(base['name'], LONGEST_NAME)}  ({one_line(base['id'], LONGEST_NAME)})"
    yield tr(
        "  {texts}, {findable:,} with a usable vector{dimensions}",
        texts=format_count(base["texts"], "text"),
        findable=base["findable"],
        dimensions="" if base["dimensions"] is None else tr(" of {count} dimensions", count=base["dimensions"]),
    )
    found = base["neighbors"]
    if found is not None:
        yield tr(
            "  10 nearest texts: {overlap:.2%} are the same in A and B, over {queries}; "
            "for {reordered} the same texts come in another order",
            overlap=found["overlap"],
            queries=format_count(found["queries"], "query"),
            reordered=format_count(found["reordered"], "query"),
        )
    yield from _model_lines(base["model_check"])
    if verbose:
        for proof in base["proofs"]:
            statement = certify_page.STATEMENTS[proof["name"]]
            heading = tr("{heading}: ", heading=label_of(proof["outcome"]))
            yield f"  {heading}{statement} ({proof['checked']:,})"


def _model_lines(found: dict[str, Any] | None) -> Iterator[str]:
    """Yield the result of comparing the embedder with a base's vectors; ``found`` is that part of the document."""
    if found is None:
        return
    if found["problem"] is not None:
        yield tr("  not compared: {problem}", problem=one_line(found["problem"]))
    elif found["texts"]:
        yield tr(
            "  embedder {embedder}: {same} of {texts} texts get the stored vector again; {found} of {ends} are found "
            "by their last third",
            embedder=one_line(found["embedder"]),
            same=found["same"],
            texts=found["texts"],
            found=found["found"],
            ends=found["ends"],
        )


def _finding_lines(document: dict[str, Any], *, verbose: bool) -> Iterator[str]:
    """Yield the findings by severity; without ``verbose``, only the first of each name, without samples."""
    findings, name_of = document["findings"], itemgetter("name")
    shown = findings if verbose else first_of_each(findings, name_of, _SHOWN)
    for severity, found in groupby(shown, key=itemgetter("severity")):
        yield from ("", tr("{heading}:", heading=severity_heading(severity)))
        for finding in found:
            name = _format_base_name(document, finding["side"], finding["base_name"])
            yield f"  {name}: {one_line(finding['message'])[:_LONGEST]} [{finding['name']}]"
            samples = join_list(one_line(sample, LONGEST_NAME) for sample in finding["samples"] if verbose)
            yield from filter(None, [samples and tr("    for example: {samples}", samples=samples)])
    if not verbose:
        yield from (f"  {line}" for line in omitted_lines(map(name_of, findings), _SHOWN))


def _format_base_name(document: dict[str, Any], side: str, name: str) -> str:
    """Format the name of a base, after its side ("a" or "b") if two stores are compared."""
    prefix = f"{side.upper()}: " if document["target"] is not None else ""
    return f"{prefix}{one_line(name, LONGEST_NAME)}"
