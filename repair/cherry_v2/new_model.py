"""A model that a base gets and the catalog may not have yet."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from regraft import sqlite
from regraft.formats.cherry_v2.catalog import ModelRow
from regraft.formats.cherry_v2.models import SEPARATOR, is_model_id
from regraft.language import tr
from repair.changes.plan import Action
from repair.cherry_v2.rescue.catalog import Statements


class ModelUnfit(Exception):
    """A model that the catalog cannot have; the text says why."""


def insert_model(
    statements: Statements,
    model: str,
    base: str,
    *,
    models: Collection[Any],
    providers: Collection[Any],
    is_profile: bool,
    now_ms: int,
) -> Iterator[Action]:
    """Insert a model that is not there yet, and yield what that does.

    Args:
        statements: what is written into the catalog.
        model: its id.
        base: the id of the base that gets it.
        models: ids of the models that are there.
        providers: ids of the providers that are there; a library gets one that is not.
        is_profile: whether it is the application's own catalog, whose providers hold keys.
        now_ms: the model's times.

    Raises:
        ModelUnfit
    """
    if not is_model_id(model):
        raise ModelUnfit(tr("{model} is not the id of a model; write it as provider::model", model=model))
    if model in models:
        return
    provider, _, name = model.partition(SEPARATOR)
    if is_profile and provider not in providers:
        raise ModelUnfit(
            tr("the profile has no provider {provider}; add it in the application first", provider=provider)
        )
    with sqlite.reading(statements.path) as db:
        query = "SELECT id FROM user_model WHERE provider_id = ? AND model_id = ?"
        other: Any = db.execute(query, (provider, name)).get
    if other is not None:
        raise ModelUnfit(
            tr(
                "the provider {provider} has that model as {other}; give --model {other}",
                provider=provider,
                other=other,
            )
        )
    if provider not in providers:
        statements.insert_provider(provider, now_ms)
    statements.insert_model(ModelRow(id=model, provider_id=provider, model_id=name, name=name, group=None), now_ms)
    yield Action(action="insert-model", message=tr("add the model {model}", model=model), base=base, subject=model)
