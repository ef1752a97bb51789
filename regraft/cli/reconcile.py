"""``regraft reconcile``: making what is derived follow what it is derived from."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from regraft import api
from regraft.api.embedding import chosen_embedder
from regraft.cli.backfill import as_text as filled_text
from regraft.cli.backfill import filled, planned_lines, sent_lines
from regraft.cli.changing import ChangeRequest, as_text, carry_out, change_options, end_with
from regraft.cli.embedding import embedder_options, limit_options
from regraft.cli.options import now_option, only_option
from regraft.cli.output import reports_errors
from regraft.errors import EmbedderUnnamed, ModelDiffers, WrongUsage
from regraft.kinds import Kind
from regraft.language import tr
from regraft.system_errors import SidecarUnfit
from regraft.text import shown_lines
from repair.angel_memory import reconcile as angel_memory
from repair.changes.store import recognised

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
@reports_errors
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
    with recognised(path, asked.of_kind(), "reconcile", asked.bases) as store:
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
    carry_out(api.reconcile, path, asked, only=more["only"], now_ms=more["now"])


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
        carry_out(api.reconcile, path, asked)
    end_with(report, asked, filled_text(report, verbose=asked.verbose > 0))


def _angel_memory(path: Path, asked: ChangeRequest, more: dict[str, Any]) -> NoReturn:
    """Let vectors follow the records of notes."""
    wanted = angel_memory.AngelReconcileOptions(
        path=path, kind=asked.of_kind(), dry_run=asked.dry_run, provider=more["provider"], probes=not more["no_probe"]
    )
    report = angel_memory.reconcile(
        partial(chosen_embedder, more["config_path"], more["embedder_name"]),
        wanted,
        progress=asked.progress(),
        show_plan=lambda planned: asked.confirmed(planned_lines(planned)),
    )
    verbose = asked.verbose > 0
    sent = "".join(f"{line}\n" for line in sent_lines(report, verbose=verbose))
    missing = [] if report.missing is None else ["", tr("Before a run: {missing}", missing=report.missing)]
    text = sent + as_text(report, verbose=verbose, shown=asked.shown)
    end_with(report, asked, text + shown_lines(missing))
