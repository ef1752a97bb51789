"""``regraft reconcile``: making what is derived follow what it is derived from."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from regraft.cli.backfill import planned_lines, sent_lines
from regraft.cli.changing import Asked, as_text, change, change_options, end_with
from regraft.cli.embedding import chosen_embedder, embedder_options
from regraft.cli.output import reports_errors
from regraft.errors import WrongUsage
from regraft.locate import Kind
from repair.angel_memory import reconcile as angel_memory
from repair.store import recognised
from repair.systems import follow


@click.command()
@change_options
@embedder_options
@click.option("--provider", metavar="ID", help="Of AngelMemory: the provider in use.  [default: as the data tell]")
@click.option("--no-probe", is_flag=True, help="Do not ask first whether it is the model of the vectors there are.")
@reports_errors
def reconcile(path: Path, embedder_name: str | None, config_path: Path | None, **options: Any) -> None:
    """Make the index of each base in the store at PATH follow the catalog.

    Materials without an item go, with all that only they need; a path that differs becomes that of the item. What the
    index lacks is listed. Of AngelMemory, the vectors of notes follow their records; what they lack is embedded.
    """
    provider, no_probe = options.pop("provider"), options.pop("no_probe")
    asked = Asked(**options)
    with recognised(path, asked.of_kind(), "reconcile", asked.bases) as store:
        kind = store.found.kind
    if kind is Kind.ANGEL_MEMORY:
        wish = angel_memory.Wish(path, asked.of_kind(), asked.dry_run, provider, not no_probe)
        _angel_memory(wish, asked, embedder_name, config_path)
    given = {"--embedder": embedder_name, "--config": config_path, "--provider": provider, "--no-probe": no_probe}
    if name := next((name for name, value in given.items() if value), None):
        raise WrongUsage(problem=f"{name} for a store in which nothing is embedded", hint="regraft backfill does that")
    change("reconcile", path, follow, asked)


def _angel_memory(wish: angel_memory.Wish, asked: Asked, name: str | None, config_path: Path | None) -> NoReturn:
    document = angel_memory.reconcile(
        partial(chosen_embedder, config_path, name),
        wish,
        progress=asked.progress(),
        show_plan=lambda planned: asked.confirmed(planned_lines(planned)),
    )
    said = "".join(f"{line}\n" for line in sent_lines(document, verbose=asked.verbose > 0))
    end_with(document, asked, said + as_text(document, verbose=asked.verbose > 0))
