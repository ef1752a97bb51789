"""``regraft backfill``: embedding what has no vector yet."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from regraft import api
from regraft.api.arguments import parse_model_id
from regraft.api.embedders import EmbeddersReport, TestedEmbedder
from regraft.api.embedding import choose_embedder, choose_priced_embedder
from regraft.cli import options as cli_options
from regraft.cli.changes import (
    ChangeRequest,
    action_lines,
    change_options,
    closing_lines,
    format_change,
    join_parts,
    print_and_exit,
    run_change,
    unresolved_lines,
)
from regraft.cli.options import (
    PATH,
    config_option,
    embedder_options,
    limit_options,
    now_option,
    only_option,
    output_options,
    parse_time,
)
from regraft.cli.output import echo, echo_json, report_errors
from regraft.errors import WORTH_READING, EmbedderUnnamed, ModelDiffers, SidecarUnfit, WrongUsage
from regraft.kinds import Kind
from regraft.language import format_count, join_list, tr
from regraft.report.document import encoded
from regraft.report.suggestion import Suggestion
from regraft.text import LONGEST_NAME, one_line, pad_right, path_argument, printable_lines, text_width
from repair import systems
from repair.angel_memory import reconcile as angel_memory
from repair.changes.store import open_for_change
from repair.codex_mem.note_vectors import NOT_ASKED
from repair.embedding.budget import Limits
from repair.embedding.filling import Estimate
from repair.embedding.report import BackfillReport, EmbeddingReport, ScopeReport
from repair.embedding.run import EmbedderSource
from repair.embedding.run import backfill as run_backfill
from repair.embedding.scope import BackfillOptions, NewModel


@click.command()
@change_options
@embedder_options
@limit_options
@click.option("--model", metavar="ID", help=tr("For bases without a model: give them this one, provider::model."))
@click.option("--dimensions", type=click.IntRange(1, 65536), metavar="N", help=tr("Of its vectors."))
@click.option("--all-projects", is_flag=True, help=tr("codex-mem: every project, not just the one at hand."))
@report_errors
def backfill(path: Path, **options: Any) -> None:
    """Embed what has no vector yet in the store at PATH, or one that no search can use, and nothing else.

    Every text is sent once, and its vector written at once. What was written stays, whatever stops the run; the next
    one goes on. Several may work on one store at the same time.

    \b
    Example:
      regraft backfill library --base Handbook --dry-run
    """
    model, dimensions, every = (options.pop(name) for name in ("model", "dimensions", "all_projects"))
    if every and options["bases"]:
        raise WrongUsage(
            problem=tr("--all-projects and --base contradict each other"), hint=tr("leave one of them out")
        )
    new = _new_model(model, dimensions)
    fill("backfill", path, options, new=new, dimensions=dimensions, all_projects=every)


def fill(command: str, path: Path, options: dict[str, Any], **more: Any) -> NoReturn:
    """Fill what lacks a vector, say what was done, and end the process with its exit status.

    Args:
        command: what the user runs.
        path: the store.
        options: of :func:`change_options`, :func:`embedder_options` and :func:`limit_options`.
        more: whatever else :class:`~repair.embedding.scope.BackfillOptions` has.
    """
    report, asked = filled(command, path, options, **more)
    print_and_exit(report, asked, format_backfill(report, verbose=asked.verbose > 0))


def filled(command: str, path: Path, options: dict[str, Any], **more: Any) -> tuple[BackfillReport, ChangeRequest]:
    """Fill what lacks a vector; return what was done, and what was asked. See :func:`fill`."""
    names = ("embedder_name", "config_path", "texts", "requests", "cost", "no_probe")
    embedder_name, config_path, texts, requests, cost, no_probe = (options[name] for name in names)
    asked = ChangeRequest(**{name: value for name, value in options.items() if name not in names})
    limits = Limits(texts, requests, cost)
    wanted = BackfillOptions(
        path=path,
        kind=asked.of_kind(),
        bases=asked.bases,
        dry_run=asked.dry_run,
        limits=limits,
        probes=not no_probe,
        command=command,
        config=config_path,
        **more,
    )
    # A fleet has its own (regraft.cli.fleet).
    supply = click.get_current_context().find_object(EmbedderSource) or EmbedderSource(
        choose=partial(choose_priced_embedder, config_path, embedder_name, limits)
    )
    report = run_backfill(
        supply.choose,
        wanted,
        fillers=systems.fillers(),
        progress=asked.progress(),
        show_plan=lambda planned: asked.confirmed(planned_lines(planned)),
        opened=supply.opened,
        looked=supply.looked,
        sampled=supply.sampled,
    )
    return report, asked


def _new_model(model: str | None, dimensions: int | None) -> NewModel | None:
    if model is None:
        return None
    tidy = parse_model_id("--model", model)
    if dimensions is None:
        raise WrongUsage(problem=tr("--model says nothing of its dimensions"), hint=tr("give --dimensions too"))
    return NewModel(tidy, dimensions)


# --- for a person ----------------------------------------------------------------------------------------------------


def format_backfill(report: BackfillReport, *, verbose: bool) -> str:
    """Return what was embedded, or would be, as text for a person."""
    lines = [*_other_lines(report, verbose=verbose), *sent_lines(report, verbose=verbose)]
    lines = join_parts(lines, unresolved_lines(report.bases, report.left, verbose=verbose))
    others = sum(left.reason.startswith(NOT_ASKED) for left in report.left)
    if others:
        lines += [
            "",
            tr(
                "{projects} more: --all-projects fills every one, --base the ones you name.",
                projects=format_count(others, "project"),
            ),
        ]
    if report.head.run.dry_run:
        lines += ["", tr("Dry run: nothing was sent, and nothing was written.")]
        lines += suggestion_lines(report.suggestion)
    elif _was_run(report) or report.undo is not None:
        lines += closing_lines(report, is_done=True)
    else:
        lines += closing_lines(report, is_done=False, unchanged=tr("nothing was sent, and nothing was written"))
    return printable_lines(lines)


def sent_lines(report: BackfillReport | EmbeddingReport, *, verbose: bool) -> list[str]:
    """Return what was sent, or would be, as lines for a person."""
    lines = []
    for scope in report.scopes:
        is_unnamed = report.suggestion is not None
        lines += _done_lines(scope, verbose) if _was_run(report) else scope_lines(scope, is_unnamed=is_unnamed)
    return lines


def suggestion_lines(suggestion: Suggestion | None) -> list[str]:
    """Return what to write into a configuration that names no embedder, as lines for a person."""
    return [] if suggestion is None else ["", *suggestion.lines()]


def planned_lines(report: BackfillReport | EmbeddingReport) -> list[str]:
    """Return what is going to be done and sent, as lines for a person."""
    lines = _other_lines(report, verbose=False)
    for scope in report.scopes:
        lines += scope_lines(scope)
    return lines


def _was_run(report: BackfillReport | EmbeddingReport) -> bool:
    return any(scope.started_at is not None for scope in report.scopes)


def _other_lines(report: BackfillReport | EmbeddingReport, *, verbose: bool) -> list[str]:
    """Return what is done besides embedding."""
    others = [action for action in report.actions if action.action != "embed"]
    return action_lines(report.bases, others, verbose=verbose)


def format_cost(cost: float, currency: str) -> str:
    """Return a sum of money as a person reads it."""
    digits = ".2f" if cost >= 0.1 else ".2g"
    return f"{cost:{digits}} {currency}"


def _heading(scope: ScopeReport) -> str:
    model = f", {scope.model_id}" if scope.model_id else ""
    return one_line(f"{scope.name}  ({scope.scope}{model})")


def estimate_lines(planned: Estimate, *, is_unnamed: bool = False) -> list[str]:
    """Return what embedding takes, as a line for a person, where there is anything to embed; ``is_unnamed``: nobody has
    said to whom it is sent.
    """
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
    return [tr("  embed {texts}: {sent}", texts=format_count(planned.texts, "text"), sent=sent)]


def scope_lines(scope: ScopeReport, *, is_unnamed: bool = False) -> list[str]:
    """Return what is going to be sent of one scope, as lines for a person; ``is_unnamed``: nobody has said to whom."""
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
        lines.append(tr("  {shared} more: the vector of an equal text", shared=format_count(planned.shared, "text")))
    return lines


def _done_lines(scope: ScopeReport, verbose: bool) -> list[str]:
    now = tr(
        "{ready:,} of {texts} have one now, {skipped_ready:,} had one before",
        ready=scope.ready,
        texts=format_count(scope.eligible, "text"),
        skipped_ready=scope.skipped_ready,
    )
    lines = [
        _heading(scope),
        tr("  {vectors} written; {now}", vectors=format_count(scope.newly_ready, "vector"), now=now),
    ]
    probe = scope.probe
    if probe is not None and probe.requests:
        sent = tr(
            "{requests}, {tokens} more",
            requests=format_count(probe.requests, "request"),
            tokens=format_count(probe.tokens, "token"),
        )
        lines.append(
            tr(
                "  checking that it is the same model: {texts}, {sent}",
                texts=format_count(probe.texts, "text"),
                sent=sent,
            )
        )
    if probe is not None and probe.remembered:
        lines.append(tr("  the same model, as the interrupted run found: nothing was sent to check it again"))
    if scope.shared:
        lines.append(tr("  {shared:,} of them are those of equal texts that had theirs", shared=scope.shared))
    if scope.requests:
        sent = f"{format_count(scope.requests, 'request')}, {format_count(scope.tokens, 'token')}"
        if scope.cost is not None:
            sent += f", {format_cost(scope.cost, scope.planned.currency)}"
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
        lines.append(tr("  stopped: {stopped}; run the same command again to go on", stopped=scope.stopped))
    return lines


# ``regraft rebuild``: making derived vectors anew, all of them.


@click.command()
@change_options
@embedder_options
@limit_options
@report_errors
def rebuild(path: Path, **options: Any) -> None:
    """Make the vectors of all notes of the codex-mem database at PATH anew, with any model.

    The notes stay as they are, and so does every search by words. What was embedded stays, whatever stops the run; the
    next one goes on. The old vectors are kept until regraft undo, or regraft gc.

    \b
    Example:
      regraft rebuild ~/.codex-mem/codex-mem.db --dry-run
    """
    if options["bases"]:
        raise WrongUsage(
            problem=tr("--base: all vectors are made anew, those of every project"), hint=tr("leave it out")
        )
    fill("rebuild", path, options)


# ``regraft restore``: a new base with a new model out of an old one's texts.


@click.command()
@change_options
@embedder_options
@click.option(
    "--model", metavar="ID", help=tr("Its id in the catalog, provider::model.  [default: of the configuration]")
)
@click.option(
    "--dimensions", type=click.IntRange(1, 65536), metavar="N", help=tr("Of its vectors.  [default: as they come]")
)
@click.option("--name", metavar="NAME", help=tr("What the new base is called.  [default: as the old one]"))
@click.option("--now", callback=parse_time, metavar="TIME", help=tr("The run's time, ISO 8601 with Z.  [default: now]"))
@report_errors
def restore(path: Path, embedder_name: str | None, config_path: Path | None, **options: Any) -> None:
    """Make a new base with another model of the texts of the base at PATH; the old one stays as it is.

    PATH is a base's folder, or a library or profile with --base. All texts are embedded anew; what was embedded is
    kept, whatever stops the run, and the next one goes on.

    \b
    Example:
      regraft restore library --base Handbook --model openai::text-embedding-3-small
    """
    names = ("model", "dimensions", "name", "now")
    model, dimensions, name, now = (options.pop(key) for key in names)
    asked = ChangeRequest(**options)
    if len(asked.bases) > 1:
        raise WrongUsage(problem=tr("one base is restored at a time"), hint=tr("give --base once"))
    report = api.restore(
        path,
        kind=asked.kind,
        base=next(iter(asked.bases), None),
        embedder=embedder_name,
        config=config_path,
        model=model,
        dimensions=dimensions,
        name=name,
        dry_run=asked.dry_run,
        now_ms=now,
        progress=asked.progress(),
        confirm=lambda scope: asked.confirmed(scope_lines(scope)),
    )
    verbose = asked.verbose > 0
    text = printable_lines(sent_lines(report, verbose=verbose)) + format_change(report, verbose=verbose)
    print_and_exit(report, asked, text + printable_lines(suggestion_lines(report.suggestion)))


# ``regraft reconcile``: making what is derived follow what it is derived from.


#: The parameters that only some kinds of stores take, with the options that they are of.
_LIMITS = {"texts": "--limit", "requests": "--max-requests", "cost": "--max-cost"}
_EMBEDDING = {"embedder_name": "--embedder", "config_path": "--config", "no_probe": "--no-probe"}
_PROVIDER = {"provider": "--provider"}
_TIME = {"now": "--now"}
_ONLY = {"only": "--only"}


@click.command()
@change_options
@embedder_options
@limit_options
@click.option("--provider", metavar="ID", help=tr("AngelMemory: the provider in use.  [default: as the data tell]"))
@now_option
@only_option
@report_errors
def reconcile(path: Path, **options: Any) -> None:
    """Make what is derived in the store at PATH follow what it is derived from.

    The index of each base follows the catalog: a path that differs becomes that of the item. What the index lacks is
    listed. A material without an item is kept, because regraft repair --adopt lists it again; --only material.orphan
    deletes it, with all that only it needs.

    Of codex-mem and AngelMemory, the vectors follow the notes; what lacks one is embedded. Of rsclaw, indexes that are
    out of step with the database are set aside: rsclaw makes them anew.

    \b
    Example:
      regraft reconcile library --dry-run
    """
    more = {name: options.pop(name) for name in (*_LIMITS, *_EMBEDDING, *_PROVIDER, *_TIME, *_ONLY)}
    asked = ChangeRequest(**options)
    with open_for_change(path, asked.of_kind(), "reconcile", asked.bases) as store:
        kind = store.found.kind
    if kind in (Kind.ANGEL_MEMORY, Kind.CODEX_MEM):
        _refuse(more, _TIME, tr("nothing of it goes by how old it is"), tr("leave it out"))
    if kind is Kind.ANGEL_MEMORY:
        _refuse(more, _ONLY, tr("a collection is built as a whole"), tr("leave it out"))
        _refuse(
            more, _LIMITS, tr("a collection is built as a whole"), tr("regraft reconcile --dry-run tells what it takes")
        )
        _angel_memory(path, asked, more)
    _refuse(more, _PROVIDER, tr("only AngelMemory has providers"), tr("leave it out"))
    if kind is Kind.CODEX_MEM and not more["only"]:
        _codex_mem(path, asked, {**options, **more})
    hint = tr("regraft backfill embeds what an index lacks")
    problem = tr("an index follows its catalog without an embedder")
    if kind is Kind.RSCLAW:
        problem, hint = tr("rsclaw itself makes anew what is set aside"), tr("leave it out")
    _refuse(more, {**_LIMITS, **_EMBEDDING}, problem, hint)
    run_change(api.reconcile, path, asked, only=more["only"], now_ms=more["now"])


def _refuse(given: dict[str, Any], options: dict[str, str], problem: str, hint: str) -> None:
    """Refuse options that make no sense of a kind of store.

    Raises:
        WrongUsage: one was given.
    """
    for name, option in options.items():
        if given[name] not in (None, False, ()):
            raise WrongUsage(problem=f"{option}: {problem}", hint=hint)


def _codex_mem(path: Path, asked: ChangeRequest, options: dict[str, Any]) -> NoReturn:
    """Let vectors follow notes; where no embedder is configured, as far as that goes without one."""
    options = {name: value for name, value in options.items() if name not in {**_PROVIDER, **_TIME, **_ONLY}}
    try:
        report, _ = filled("reconcile", path, options)
    except (EmbedderUnnamed, ModelDiffers, SidecarUnfit):
        if options["embedder_name"] is not None:
            raise
        run_change(api.reconcile, path, asked)
    print_and_exit(report, asked, format_backfill(report, verbose=asked.verbose > 0))


def _angel_memory(path: Path, asked: ChangeRequest, more: dict[str, Any]) -> NoReturn:
    """Let vectors follow the records of notes."""
    wanted = angel_memory.AngelReconcileOptions(
        path=path, kind=asked.of_kind(), dry_run=asked.dry_run, provider=more["provider"], probes=not more["no_probe"]
    )
    report = angel_memory.reconcile(
        partial(choose_embedder, more["config_path"], more["embedder_name"]),
        wanted,
        progress=asked.progress(),
        show_plan=lambda planned: asked.confirmed(planned_lines(planned)),
    )
    verbose = asked.verbose > 0
    sent = "".join(f"{line}\n" for line in sent_lines(report, verbose=verbose))
    missing = [] if report.missing is None else ["", tr("Before a run: {missing}", missing=report.missing)]
    text = sent + format_change(report, verbose=verbose, shown=asked.shown)
    print_and_exit(report, asked, text + printable_lines(missing))


# ``regraft embedders``: which embedders are configured, for which bases, and whether they answer.


#: Every embedder.
_ALL = "*"


@click.command()
@click.argument("path", type=PATH, required=False)
@config_option
@click.option(
    "--base",
    "bases",
    multiple=True,
    metavar="ID",
    shell_complete=cli_options.complete_bases,
    help=tr("Only this base; may be repeated."),
)
@click.option("--snippet", is_flag=True, help=tr("Print what to write into the configuration for the bases of PATH."))
@click.option("--write", is_flag=True, help=tr("Write that as the configuration, which must not be there."))
@click.option(
    "--test",
    is_flag=False,
    flag_value=_ALL,
    default=None,
    metavar="[NAME]",
    help=tr("Send two short texts to the embedder NAME, or to every one, and say what comes."),
)
@output_options
@report_errors
def embedders(path: Path | None, snippet: bool, test: str | None, as_json: bool, quiet: bool, **options: Any) -> None:
    """List the embedders of regraft.yaml, and the bases of the store at PATH that each is for.

    Nothing is sent but by --test, and nothing is written but by --write. Without a configuration, what to write into it
    is printed.

    \b
    Example:
      regraft embedders library --snippet
    """
    report = api.list_embedders(
        path,
        kind=options["kind"],
        bases=options["bases"],
        config=options["config_path"],
        test=test == _ALL or test or False,
        write=options["write"],
    )
    if as_json:
        echo_json(encoded(report))
    elif snippet:
        echo(report.snippet, as_it_is=True)
    else:
        echo(format_embedders(report, path, quiet=quiet))
    if any(one.problem is not None for one in report.tested):
        sys.exit(WORTH_READING)


def format_embedders(report: EmbeddersReport, path: Path | None, *, quiet: bool) -> str:
    """Return the embedders as text for a person."""
    lines = []
    if report.written:
        lines.append(
            tr("{config} was written. Look it through; a key goes into the environment.", config=report.config)
        )
    if not report.there:
        lines.append(tr("There is no {config}.", config=report.config))
    elif not report.embedders:
        lines.append(tr("{config} names no embedder.", config=report.config))
    lines += _table(report) + _without(report)
    lines += [_test_line(one) for one in report.tested]
    if not report.embedders:
        lines += ["", *report.snippet.splitlines()] if lines else report.snippet.splitlines()
    if not quiet:
        lines += ["", tr("Next: {command}", command=_next(report, path))]
    return printable_lines(lines)


def _table(report: EmbeddersReport) -> list[str]:
    """Return the embedders as a table: its columns as wide as they have to be."""
    if not report.embedders:
        return []
    rows = [(tr("embedder"), tr("provider"), tr("model"), tr("dimensions"), tr("bases"))]
    for one in report.embedders:
        dimensions = "-" if one.dimensions is None else str(one.dimensions)
        rows.append((one.name, one.provider, one_line(one.model), dimensions, _names(one.bases)))
    widths = [max(text_width(row[place]) for row in rows) for place in range(4)]
    return ["  ".join([*map(pad_right, row, widths), row[-1]]).rstrip() for row in rows]


def _names(bases: Sequence[str]) -> str:
    named = [one_line(base, LONGEST_NAME) for base in bases[:3]]
    more = len(bases) - len(named)
    return join_list([*named, *([tr("{more:,} more", more=more)] if more else [])]) if named else "-"


def _without(report: EmbeddersReport) -> list[str]:
    """Return the models that no embedder is of."""
    lines = []
    for model in report.models:
        about = "" if model.dimensions is None else tr(", {dimensions} dimensions", dimensions=model.dimensions)
        if not model.embedders:
            said = tr("no embedder is of {model}", model=model.model_id or tr("a model that nothing names"))
            lines.append(one_line(f"{said}{about}: {_names(model.bases)}"))
    return ["", *lines] if lines and report.embedders else lines


def _test_line(one: TestedEmbedder) -> str:
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


def _next(report: EmbeddersReport, path: Path | None) -> str:
    place = [] if path is None else [path_argument(path)]
    if not report.there:
        return shlex.join(["regraft", "embedders", *place, "--write"])
    if report.written or path is None:
        return shlex.join(["regraft", "embedders", *place, "--test"])
    if report.models and not any(one.embedders for one in report.models):
        return shlex.join(["regraft", "embedders", *place, "--snippet"])
    return shlex.join(["regraft", "backfill", *place, "--dry-run"])
