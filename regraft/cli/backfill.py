"""``regraft backfill``: embedding what has no vector yet."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from regraft.api.embedding import limited_embedder
from regraft.api.given import model_id
from regraft.cli.changing import (
    ChangeRequest,
    action_lines,
    change_options,
    closing_lines,
    end_with,
    left_lines,
    parted,
)
from regraft.cli.embedding import embedder_options, limit_options
from regraft.cli.output import reports_errors
from regraft.errors import WrongUsage
from regraft.language import tr
from regraft.suggestion import Suggestion
from regraft.text import counted, one_line, shown_lines
from repair import systems
from repair.backfill.budget import Limits
from repair.backfill.estimate import Estimate
from repair.backfill.report import BackfillReport, EmbeddingReport, ScopeReport
from repair.backfill.request import BackfillOptions, NewModel
from repair.backfill.run import Supply
from repair.backfill.run import backfill as run_backfill
from repair.codex_mem.backfill_filler import NOT_ASKED


@click.command()
@change_options
@embedder_options
@limit_options
@click.option("--model", metavar="ID", help=tr("For bases without a model: give them this one, provider::model."))
@click.option("--dimensions", type=click.IntRange(1, 65536), metavar="N", help=tr("Of its vectors."))
@click.option("--all-projects", is_flag=True, help=tr("codex-mem: every project, not just the one at hand."))
@reports_errors
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
        more: whatever else :class:`~repair.backfill.request.BackfillOptions` has.
    """
    report, asked = filled(command, path, options, **more)
    end_with(report, asked, as_text(report, verbose=asked.verbose > 0))


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
    # A fleet has its own (regraft.cli.fleet_backfill).
    supply = click.get_current_context().find_object(Supply) or Supply(
        choose=partial(limited_embedder, config_path, embedder_name, limits)
    )
    report = run_backfill(
        supply.choose,
        wanted,
        fillers=systems.FILLERS,
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
    tidy = model_id("--model", model)
    if dimensions is None:
        raise WrongUsage(problem=tr("--model says nothing of its dimensions"), hint=tr("give --dimensions too"))
    return NewModel(tidy, dimensions)


# --- for a person ----------------------------------------------------------------------------------------------------


def as_text(report: BackfillReport, *, verbose: bool) -> str:
    """Return what was embedded, or would be, as text for a person."""
    lines = [*_other_lines(report, verbose=verbose), *sent_lines(report, verbose=verbose)]
    lines = parted(lines, left_lines(report.bases, report.left, verbose=verbose))
    others = sum(left.reason.startswith(NOT_ASKED) for left in report.left)
    if others:
        lines += [
            "",
            tr(
                "{projects} more: --all-projects fills every one, --base the ones you name.",
                projects=counted(others, "project"),
            ),
        ]
    if report.head.run.dry_run:
        lines += ["", tr("Dry run: nothing was sent, and nothing was written.")]
        lines += suggestion_lines(report.suggestion)
    elif _was_run(report) or report.undo is not None:
        lines += closing_lines(report, is_done=True)
    else:
        lines += closing_lines(report, is_done=False, unchanged=tr("nothing was sent, and nothing was written"))
    return shown_lines(lines)


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


def money(cost: float, currency: str) -> str:
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
        tokens=counted(planned.tokens, "token"),
        requests=counted(planned.requests, "request"),
    )
    if planned.cost is not None:
        sent += tr(", about {money}", money=money(planned.cost, planned.currency))
    elif is_unnamed:
        sent += tr(", cost unknown")
    return [tr("  embed {texts}: {sent}", texts=counted(planned.texts, "text"), sent=sent)]


def scope_lines(scope: ScopeReport, *, is_unnamed: bool = False) -> list[str]:
    """Return what is going to be sent of one scope, as lines for a person; ``is_unnamed``: nobody has said to whom."""
    planned = scope.planned
    lines = [
        _heading(scope),
        tr(
            "  {skipped_ready:,} of {texts} have a vector",
            skipped_ready=scope.skipped_ready,
            texts=counted(scope.eligible, "text"),
        ),
    ]
    lines += estimate_lines(planned, is_unnamed=is_unnamed)
    if planned.shared:
        lines.append(tr("  {shared} more: the vector of an equal text", shared=counted(planned.shared, "text")))
    return lines


def _done_lines(scope: ScopeReport, verbose: bool) -> list[str]:
    now = tr(
        "{ready:,} of {texts} have one now, {skipped_ready:,} had one before",
        ready=scope.ready,
        texts=counted(scope.eligible, "text"),
        skipped_ready=scope.skipped_ready,
    )
    lines = [_heading(scope), tr("  {vectors} written; {now}", vectors=counted(scope.newly_ready, "vector"), now=now)]
    probe = scope.probe
    if probe is not None and probe.requests:
        sent = tr(
            "{requests}, {tokens} more",
            requests=counted(probe.requests, "request"),
            tokens=counted(probe.tokens, "token"),
        )
        lines.append(
            tr("  checking that it is the same model: {texts}, {sent}", texts=counted(probe.texts, "text"), sent=sent)
        )
    if probe is not None and probe.remembered:
        lines.append(tr("  the same model, as the interrupted run found: nothing was sent to check it again"))
    if scope.shared:
        lines.append(tr("  {shared:,} of them are those of equal texts that had theirs", shared=scope.shared))
    if scope.requests:
        sent = f"{counted(scope.requests, 'request')}, {counted(scope.tokens, 'token')}"
        if scope.cost is not None:
            sent += f", {money(scope.cost, scope.planned.currency)}"
        lines.append(f"  {sent}")
    for failure in scope.failures:
        lines.append(
            tr(
                "  failed: {texts}: {reason} [{code}]",
                texts=counted(failure.count, "text"),
                reason=one_line(failure.reason),
                code=failure.code,
            )
        )
        if verbose:
            lines += [f"    {sample}" for sample in failure.samples]
    if scope.stopped:
        lines.append(tr("  stopped: {stopped}; run the same command again to go on", stopped=scope.stopped))
    return lines
