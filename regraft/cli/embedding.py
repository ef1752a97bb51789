"""The commands that embed texts: ``backfill``, ``rebuild``, ``restore``, ``reconcile``, and ``embedders``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
import msgspec

from regraft import api
from regraft.cli.changes import (
    action_lines,
    change_options,
    closing_lines,
    confirm_change,
    confirm_lines,
    format_change,
    join_parts,
    print_and_exit,
    unresolved_lines,
)
from regraft.cli.options import PATH, Output, complete_bases, output_options, report_retries, struct_options
from regraft.cli.output import echo, echo_json, report_errors
from regraft.errors import WORTH_READING, WrongUsage
from regraft.language import format_count, join_first, join_list, tr
from regraft.options import (
    BackfillOptions,
    EmbeddersOptions,
    RebuildOptions,
    ReconcileOptions,
    RestoreOptions,
    SyncOptions,
)
from regraft.report.document import Suggestion, encoded
from regraft.text import LONGEST_NAME, join_command, one_line, pad_right, path_argument, printable_lines, text_width
from repair.changes.run import ChangeReport
from repair.codex_mem.note_vectors import NOT_ASKED
from repair.embedding.fleet import ProbeReport
from repair.embedding.probing import Probe
from repair.embedding.report import BackfillReport, EmbeddingReport, Estimate, ScopeReport, format_cost

if TYPE_CHECKING:
    from regraft.api.embedders import EmbeddersReport, TestedEmbedder


@click.command()
@click.argument("path", type=PATH)
@report_errors
@struct_options(BackfillOptions)
@change_options
@report_retries
def backfill(path: Path, options: BackfillOptions, output: Output) -> None:
    """Embed the texts of the store at PATH that have no vector, or one that no search can use.

    Every text is sent once, and its vector is written at once. After an interruption, the next run continues. Several
    runs may work on one store at the same time.

    \b
    Example:
      regraft backfill library --base Handbook --dry-run
    """
    report = api.backfill(
        path,
        options,
        progress=output.progress(),
        confirm=lambda planned: confirm_lines(output, planned_lines(planned)),
    )
    print_and_exit(report, output, format_backfill(report, verbose=output.verbose > 0))


@click.command()
@click.argument("path", type=PATH)
@report_errors
@struct_options(RebuildOptions)
@change_options
@report_retries
def rebuild(path: Path, options: RebuildOptions, output: Output) -> None:
    """Embed all notes of the codex-mem database at PATH again, with any model.

    The notes do not change, nor does search by words. After an interruption, the next run continues. The old vectors
    are kept until regraft undo, or regraft gc.

    \b
    Example:
      regraft rebuild ~/.codex-mem/codex-mem.db --dry-run
    """
    report = api.rebuild(
        path,
        options,
        progress=output.progress(),
        confirm=lambda planned: confirm_lines(output, planned_lines(planned)),
    )
    print_and_exit(report, output, format_backfill(report, verbose=output.verbose > 0))


@click.command()
@click.argument("path", type=PATH)
@click.option(
    "--base",
    "bases",
    multiple=True,
    metavar="ID",
    shell_complete=complete_bases,
    help=tr("The base whose texts are taken, if PATH is not a base's folder."),
)
@report_errors
@struct_options(RestoreOptions, without=("base",))
@change_options
@report_retries
def restore(path: Path, bases: tuple[str, ...], options: RestoreOptions, output: Output) -> None:
    """Make a new base from the texts of the base at PATH, with another model; the old base does not change.

    PATH is a base's folder, or a library or profile with --base. All texts are embedded again. After an interruption,
    the next run continues.

    \b
    Example:
      regraft restore library --base Handbook --model openai::text-embedding-3-small
    """
    if len(bases) > 1:
        raise WrongUsage(problem=tr("only one base can be restored at a time"), hint=tr("give --base once"))
    report = api.restore(
        path,
        msgspec.structs.replace(options, base=next(iter(bases), None)),
        progress=output.progress(),
        confirm=lambda scope: confirm_lines(output, scope_lines(scope)),
    )
    verbose = output.verbose > 0
    text = printable_lines(sent_lines(report, verbose=verbose)) + format_change(report, verbose=verbose)
    print_and_exit(report, output, text + printable_lines(suggestion_lines(report.suggestion)))


@click.command()
@click.argument("path", type=PATH)
@report_errors
@struct_options(ReconcileOptions, without=("embed",))
@change_options
@report_retries
def reconcile(path: Path, options: ReconcileOptions, output: Output) -> NoReturn:
    """Update indexes and vectors in the store at PATH to match their source of truth.

    The index of each base is updated to match the catalog: a path that differs becomes that of the item. Texts that the
    index lacks are listed. A material without an item is kept, because regraft repair --adopt lists it again; --only
    material.orphan deletes it, with everything that only it uses.

    In codex-mem and AngelMemory, vectors are updated to match the notes; notes without a vector are embedded. In
    rsclaw, indexes that do not match the database are moved aside: rsclaw rebuilds them.

    \b
    Example:
      regraft reconcile library --dry-run
    """
    report = api.reconcile(
        path,
        msgspec.structs.replace(options, embed=True),
        progress=output.progress(),
        confirm=_confirm_embedding(output),
    )
    if isinstance(report, EmbeddingReport):
        verbose = output.verbose > 0
        sent = "".join(f"{line}\n" for line in sent_lines(report, verbose=verbose))
        missing = [] if report.missing is None else ["", tr("Before a run: {missing}", missing=report.missing)]
        text = sent + format_change(report, verbose=verbose, shown=output.shown) + printable_lines(missing)
    else:
        text = _format_embedded(report, output)
    print_and_exit(report, output, text)


@click.command()
@click.argument("path", type=PATH, metavar="BASE")
@report_errors
@struct_options(SyncOptions)
@change_options
@report_retries
def sync(path: Path, options: SyncOptions, output: Output) -> NoReturn:
    """Update the bases of BASE from their original files: read those that were changed, renamed or added.

    BASE is a base's folder, a library or a profile. The original files are never changed. Texts that the base has
    already keep their vectors, wherever they are now; only new ones are embedded, or left for regraft backfill if no
    embedder is configured. Items whose original file no longer exists are listed; --delete removes them, with their
    texts and vectors, from the base.

    \b
    Example:
      regraft sync library --base Handbook --dry-run
    """
    report = api.sync(path, options, progress=output.progress(), confirm=_confirm_embedding(output))
    print_and_exit(report, output, _format_embedded(report, output))


def _confirm_embedding(output: Output) -> Callable[[ChangeReport | BackfillReport | EmbeddingReport], bool] | None:
    """Make the function that shows a plan, of changes or of texts to embed, and asks; None with ``--yes``."""
    confirm_plain = confirm_change(output)
    if confirm_plain is None:
        return None

    def confirm(planned: ChangeReport | BackfillReport | EmbeddingReport) -> bool:
        """Show the plan and ask; return whether the user agrees."""
        if isinstance(planned, BackfillReport | EmbeddingReport):
            return confirm_lines(output, planned_lines(planned))
        return confirm_plain(planned)

    return confirm


def _format_embedded(report: ChangeReport | BackfillReport, output: Output) -> str:
    """Format the report of ``sync`` or ``reconcile``, whether or not it embedded texts."""
    verbose = output.verbose > 0
    if isinstance(report, BackfillReport):
        return format_backfill(report, verbose=verbose)
    return format_change(report, verbose=verbose, shown=output.shown)


def format_backfill(report: BackfillReport, *, verbose: bool) -> str:
    """Format the report of a command that embeds texts; ``verbose``: list every action."""
    lines = [*_action_lines_without_embedding(report, verbose=verbose), *sent_lines(report, verbose=verbose)]
    lines = join_parts(lines, unresolved_lines(report.bases, report.left, verbose=verbose))
    others = sum(left.reason.startswith(NOT_ASKED) for left in report.left)
    if others:
        lines += [
            "",
            tr(
                "{projects} more with texts that lack a vector: --all-projects embeds all of them, --base chosen ones.",
                projects=format_count(others, "project"),
            ),
        ]
    if report.head.run.dry_run:
        lines += ["", tr("Dry run: nothing was sent, and nothing was written.")]
        lines += suggestion_lines(report.suggestion)
        return printable_lines(lines)
    if _is_finished_run(report) or report.undo is not None:
        lines += closing_lines(report, is_done=True)
    else:
        lines += closing_lines(report, is_done=False, unchanged=tr("nothing was sent, and nothing was written"))
    return printable_lines([*lines, *suggestion_lines(report.suggestion)])


def sent_lines(report: BackfillReport | EmbeddingReport, *, verbose: bool) -> list[str]:
    """Format what was sent to the embedder for each scope (base, project or collection), or would be in a dry run."""
    lines = []
    for scope in report.scopes:
        is_unnamed = report.suggestion is not None
        lines += _done_lines(scope, verbose) if _is_finished_run(report) else scope_lines(scope, is_unnamed=is_unnamed)
    return lines


def suggestion_lines(suggestion: Suggestion | None) -> list[str]:
    """Format the suggested configuration, if there is one."""
    return [] if suggestion is None else ["", *suggestion.lines()]


def planned_lines(report: BackfillReport | EmbeddingReport) -> list[str]:
    """Format the plan of a command that embeds texts."""
    lines = _action_lines_without_embedding(report, verbose=False)
    for scope in report.scopes:
        lines += scope_lines(scope)
    # Without an embedder, something is left.
    left = () if report.suggestion is None else report.left
    return join_parts(lines, unresolved_lines(report.bases, left, verbose=False))


def _is_finished_run(report: BackfillReport | EmbeddingReport) -> bool:
    """Whether the report is of a run, not of a plan."""
    return any(scope.started_at is not None for scope in report.scopes)


def _action_lines_without_embedding(report: BackfillReport | EmbeddingReport, *, verbose: bool) -> list[str]:
    """Format the actions of a report that are not embedding."""
    others = [action for action in report.actions if action.action != "embed"]
    return action_lines(report.bases, others, verbose=verbose)


def _heading(scope: ScopeReport) -> str:
    """Format the name, the id and the model of a scope: a base, project or collection."""
    model = f", {scope.model_id}" if scope.model_id else ""
    return one_line(f"{scope.name}  ({scope.scope}{model})")


def estimate_lines(planned: Estimate, *, is_unnamed: bool = False) -> list[str]:
    """Format the estimate of what is sent; empty if nothing is. ``is_unnamed``: no embedder is configured yet."""
    if not planned.texts:
        return []
    sent = tr(
        "about {tokens} in {requests}",
        tokens=format_count(planned.tokens, "token"),
        requests=format_count(planned.requests, "request"),
    )
    if planned.cost is not None:
        sent += tr(", about {money}", money=format_cost(planned.cost, planned.currency))
    elif is_unnamed:
        sent += tr(", cost unknown")
    lines = [tr("  embed {texts}: {sent}", texts=format_count(planned.texts, "text"), sent=sent)]
    if planned.compared:
        lines.append(
            tr("  {texts} of them to compare the sources of vectors", texts=format_count(planned.compared, "text"))
        )
    return lines


def scope_lines(scope: ScopeReport, *, is_unnamed: bool = False) -> list[str]:
    """Format the plan for one scope (base, project or collection); ``is_unnamed``: no embedder is configured yet."""
    planned = scope.planned
    lines = [
        _heading(scope),
        tr(
            "  {skipped_ready:,} of {texts} have a vector",
            skipped_ready=scope.skipped_ready,
            texts=format_count(scope.eligible, "text"),
        ),
    ]
    lines += estimate_lines(planned, is_unnamed=is_unnamed)
    if planned.shared:
        lines.append(
            tr("  {shared} more get the vector of an identical text", shared=format_count(planned.shared, "text"))
        )
    return lines + _reuse_lines(scope, is_done=False)


def _reuse_lines(scope: ScopeReport, *, is_done: bool) -> list[str]:
    """Format how many vectors are taken from each store of ``--reuse``, or why a store gives none.

    ``is_done``: count vectors that were taken, instead of those that would be.
    """
    lines = []
    for one in scope.reused_from:
        place = one.source if one.base is None else tr("{source} ({base})", source=one.source, base=one.base)
        if one.reason is not None:
            nothing = tr("no vectors from {place}: {reason}", place=place, reason=one.reason)
            lines.append(f"  {one_line(nothing)}")
            continue
        count = format_count(one.reused if is_done else one.planned, "vector")
        taken = tr("{vectors} reused from {place}", vectors=count, place=place)
        lines.append(f"  {one_line(taken)}")
    return lines


def _done_lines(scope: ScopeReport, verbose: bool) -> list[str]:
    """Format the result for one scope (base, project or collection); ``verbose``: list samples of failed texts."""
    now = tr(
        "{ready:,} of {texts} have one now; {skipped_ready:,} had one before",
        ready=scope.ready,
        texts=format_count(scope.eligible, "text"),
        skipped_ready=scope.skipped_ready,
    )
    lines = [
        _heading(scope),
        tr("  {vectors} written; {now}", vectors=format_count(scope.newly_ready, "vector"), now=now),
    ]
    probe = scope.probe
    if probe is not None:
        lines += probe_lines(probe)
        if probe.remembered:
            lines.append(tr("  model check: passed in the interrupted run, not repeated"))
    if scope.shared:
        lines.append(tr("  {shared:,} of them copied from identical texts", shared=scope.shared))
    lines += _reuse_lines(scope, is_done=True)
    if scope.requests:
        parts = [format_count(scope.requests, "request"), format_count(scope.tokens, "token")]
        if scope.cost is not None:
            parts.append(format_cost(scope.cost, scope.planned.currency))
        sent = join_list(parts)
        lines.append(f"  {sent}")
    for failure in scope.failures:
        lines.append(
            tr(
                "  failed: {texts}: {reason} [{code}]",
                texts=format_count(failure.count, "text"),
                reason=one_line(failure.reason),
                code=failure.code,
            )
        )
        if verbose:
            lines += [f"    {sample}" for sample in failure.samples]
    if scope.stopped:
        lines.append(tr("  stopped: {stopped}; run the same command again to continue", stopped=scope.stopped))
    return lines


def probe_lines(probe: Probe | ProbeReport) -> list[str]:
    """Format how much the check of the embedder's model has sent; empty if nothing."""
    if not probe.requests:
        return []
    sent = tr(
        "{requests}, {tokens} more",
        requests=format_count(probe.requests, "request"),
        tokens=format_count(probe.tokens, "token"),
    )
    return [tr("  model check: {texts}, {sent}", texts=format_count(probe.texts, "text"), sent=sent)]


#: The value of ``--test`` without a name: every embedder.
_ALL = "*"


@click.command()
@click.argument("path", type=PATH, required=False)
@click.option("--snippet", is_flag=True, help=tr("Print what to write into the configuration for the bases of PATH."))
@click.option(
    "--test",
    is_flag=False,
    flag_value=_ALL,
    default=None,
    metavar="[NAME]",
    help=tr("Send two short texts to the embedder NAME, or to all of them, and show the results."),
)
@report_errors
@struct_options(EmbeddersOptions, without=("test",))
@output_options()
def embedders(path: Path | None, snippet: bool, test: str | None, options: EmbeddersOptions, output: Output) -> None:
    """List the embedders of regraft.yaml, and the bases of the store at PATH that each is for.

    Only --test sends texts, and only --write writes a file. Without a configuration, a suggested one is printed.

    \b
    Example:
      regraft embedders library --snippet
    """
    report = api.list_embedders(path, msgspec.structs.replace(options, test=test == _ALL or test or False))
    if output.as_json:
        echo_json(encoded(report))
    elif snippet:
        echo(report.snippet, as_it_is=True)
    else:
        echo(format_embedders(report, path, quiet=output.quiet))
    if any(one.problem is not None for one in report.tested):
        sys.exit(WORTH_READING)


def format_embedders(report: EmbeddersReport, path: Path | None, *, quiet: bool) -> str:
    """Format the list of embedders, and the models that none of them has; ``path`` is the store, if one was given."""
    lines = []
    if report.written:
        lines.append(tr("Wrote {config}. Check it; keys belong in environment variables.", config=report.config))
    if not report.there:
        lines.append(tr("{config} does not exist.", config=report.config))
    elif not report.embedders:
        lines.append(tr("{config} names no embedder.", config=report.config))
    lines += _embedder_table(report) + _format_missing_models(report)
    lines += [_format_test(one) for one in report.tested]
    if not report.embedders:
        lines += ["", *report.snippet.splitlines()] if lines else report.snippet.splitlines()
    if not quiet:
        lines += ["", tr("Next: {command}", command=_suggest_command(report, path))]
    return printable_lines(lines)


def _embedder_table(report: EmbeddersReport) -> list[str]:
    """Format the configured embedders as the lines of a table."""
    if not report.embedders:
        return []
    rows = [(tr("embedder"), tr("provider"), tr("model"), tr("dimensions"), tr("bases"))]
    for one in report.embedders:
        dimensions = "-" if one.dimensions is None else str(one.dimensions)
        rows.append((one.name, one.provider, one_line(one.model), dimensions, _join_names(one.bases)))
    widths = [max(text_width(row[place]) for row in rows) for place in range(4)]
    return ["  ".join([*map(pad_right, row, widths), row[-1]]).rstrip() for row in rows]


def _join_names(bases: Sequence[str]) -> str:
    """Name the first three bases, and count the others."""
    return join_first([one_line(base, LONGEST_NAME) for base in bases], 3) or "-"


def _format_missing_models(report: EmbeddersReport) -> list[str]:
    """Format the models that bases need and no embedder has."""
    lines = []
    for model in report.models:
        about = "" if model.dimensions is None else tr(", {dimensions} dimensions", dimensions=model.dimensions)
        if not model.embedders:
            message = tr("no embedder has {model}", model=model.model_id or tr("an unnamed model"))
            lines.append(
                one_line(tr("{message}: {bases}", message=f"{message}{about}", bases=_join_names(model.bases)))
            )
    return ["", *lines] if lines and report.embedders else lines


def _format_test(one: TestedEmbedder) -> str:
    """Format the result of testing one embedder."""
    if one.problem is not None:
        return tr("{name}: failed: {problem} [{code}]", name=one.name, problem=one_line(one.problem), code=one.code)
    unit = tr("of unit length") if one.unit_length else tr("not of unit length")
    return tr(
        "{name}: {vectors} of {dimensions} dimensions in {seconds:.2f} s, {unit}",
        name=one.name,
        vectors=format_count(2, "vector"),
        dimensions=one.dimensions,
        seconds=one.seconds,
        unit=unit,
    )


def _suggest_command(report: EmbeddersReport, path: Path | None) -> str:
    """Suggest the command to run after ``embedders``; ``path`` is the store that was given."""
    place = [] if path is None else [path_argument(path)]
    if not report.there:
        return join_command(["regraft", "embedders", *place, "--write"])
    if report.written or path is None:
        return join_command(["regraft", "embedders", *place, "--test"])
    if report.models and not any(one.embedders for one in report.models):
        return join_command(["regraft", "embedders", *place, "--snippet"])
    return join_command(["regraft", "backfill", *place, "--dry-run"])
