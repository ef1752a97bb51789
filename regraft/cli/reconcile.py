"""``regraft reconcile``: making what is derived follow what it is derived from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from regraft.cli.backfill import as_text, filled
from regraft.cli.changing import Asked, change, change_options, end_with
from regraft.cli.embedding import embedder_options, limit_options
from regraft.cli.output import reports_errors
from regraft.errors import EmbedderUnnamed, ModelDiffers, WrongUsage
from regraft.locate import Kind, located
from regraft.system_errors import SidecarUnfit
from repair.systems import follow

#: What the options of :func:`embedder_options` and :func:`limit_options` are called.
_EMBEDDING = ("embedder_name", "config_path", "texts", "requests", "cost", "no_probe")


@click.command()
@change_options
@embedder_options
@limit_options
@reports_errors
def reconcile(path: Path, **options: Any) -> None:
    """Make what is derived in the store at PATH follow what it is derived from.

    The index of each base follows the catalog: materials without an item go, with all that only they need; a path that
    differs becomes that of the item. What the index lacks is listed.

    Of codex-mem, the vectors follow the notes; what lacks one is embedded where an embedder is configured.
    """
    asked = Asked(**{name: value for name, value in options.items() if name not in _EMBEDDING})
    with located(path, asked.of_kind()) as found:
        kind = found.kind
    if kind is Kind.CODEX_MEM:
        _follow_notes(path, options, asked)
    given = [name for name in _EMBEDDING if options[name]]
    if given:
        hint = "regraft backfill embeds what an index lacks"
        raise WrongUsage(problem="an index follows its catalog without an embedder", hint=hint)
    change("reconcile", path, follow, asked)


def _follow_notes(path: Path, options: dict[str, Any], asked: Asked) -> None:
    """Let the vectors of notes follow them; without an embedder, as far as that goes, which the caller does."""
    try:
        document, _ = filled("reconcile", path, options)
    except (EmbedderUnnamed, ModelDiffers, SidecarUnfit):
        if options["embedder_name"] is not None:
            raise
        change("reconcile", path, follow, asked)
    end_with(document, asked, as_text(document, verbose=asked.verbose > 0))
