"""Looking without an embedder: what a run would send, and the configuration that it needs (``docs/embedders.md``)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import apsw

from regraft.embedders.settings import EmbedderSettings
from regraft.embedders.snippet import DEFAULT_MODEL, Need, suggested
from regraft.errors import EmbedderUnnamed, RegraftError
from regraft.records import replace
from regraft.suggestion import Suggestion
from regraft.text import argument
from repair.backfill.request import BackfillOptions, Choice
from repair.backfill.scope import Filler, Target, Unfit
from repair.changes.session import looking
from repair.changes.store import Store

#: Commands that say what they would send although nobody has said to whom.
_COMMANDS = {"backfill", "rebuild"}


class StandIn(EmbedderSettings, frozen=True, kw_only=True):
    """Stands for the embedder that nobody has named: it is of every model, and has no price."""


def stand_in(models: Iterable[str]) -> StandIn:
    """Return what stands for an embedder of these models; where there are none, of the one that is suggested."""
    return StandIn(name="", model=DEFAULT_MODEL, model_ids=tuple(sorted(models)))


def chosen(choose: Choice, store: Store, filler: Filler, options: BackfillOptions) -> EmbedderSettings:
    """Return the embedder that is meant; for a dry run without any, what stands for it.

    Raises:
        EmbedderUnnamed: there is none; its fact ``suggestion`` says what to write into the configuration.
        RegraftError: as ``choose`` raises it.
    """
    models = filler.models(store, options)
    try:
        return choose(models)
    except EmbedderUnnamed as error:
        if options.command not in _COMMANDS or not is_nowhere(error):
            raise
        if options.dry_run:
            return stand_in(models or known_models(store, filler, options))
        needs = needed(store, filler, options)
        raise with_advice(error, suggested(needs, options.config, command_of(options))) from error


def is_nowhere(error: EmbedderUnnamed) -> bool:
    """Tell whether no embedder is configured at all, so that the user has nothing to choose from."""
    return error.facts.get("count") == 0


def with_advice(error: EmbedderUnnamed, suggestion: Suggestion) -> EmbedderUnnamed:
    """Return the error with what to write into the configuration."""
    return EmbedderUnnamed(**{**error.facts, "suggestion": suggestion})


def known_models(store: Store, filler: Filler, options: BackfillOptions) -> frozenset[str]:
    """Return the models of the vectors that are there, where any model would do."""
    with suppress(RegraftError):
        return filler.models(store, replace(options, command="backfill"))
    return frozenset()


def needed(store: Store, filler: Filler, options: BackfillOptions) -> list[Need]:
    """Return the vectors that what is meant needs: of which model, and how long; nothing is written."""
    with looking(store):
        models = filler.models(store, options) or known_models(store, filler, options)
        return [_need(target, store.root) for target in filler.targets(store, stand_in(models), options).targets]


def _need(target: Target, root: Path) -> Need:
    dimensions = None
    with suppress(Unfit, RegraftError, apsw.Error, OSError, ValueError), target.opened(root) as scope:
        dimensions = scope.dimensions
    return Need(model_id=target.model_id, dimensions=dimensions, label=target.label)


def command_of(options: BackfillOptions) -> str:
    """Return the command line that asks for the same, and is no dry run."""
    words = ["regraft", options.command, argument(options.path)]
    for base in options.bases:
        words += ["--base", base]
    if options.new is not None:
        words += ["--model", options.new.model_id]
    if options.dimensions is not None:
        words += ["--dimensions", str(options.dimensions)]
    if options.all_projects:
        words.append("--all-projects")
    if options.config is not None:
        words += ["--config", argument(options.config)]
    return shlex.join(words)
