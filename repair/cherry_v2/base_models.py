"""Add embedding models to the catalog, and give a base that has vectors but no model a model.

The latter is ``repair --only embedding.unexpected --model ID``. The vectors stay as they are; only the catalog's row
gets the model and the number of dimensions (``docs/findings.md``, "v2 data").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw

from checks.audit.findings import Finding
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.advice import find_model_conflict
from regraft.disk import sqlite
from regraft.errors import ModelNotSet, WrongUsage
from regraft.formats.cherry_v2.catalog import ModelRow
from regraft.formats.cherry_v2.catalog_reader import Row, StoredCatalog, base_id_text
from regraft.formats.cherry_v2.index.schema import choose_vector_length, count_vector_lengths
from regraft.formats.cherry_v2.models import SEPARATOR, is_model_id
from regraft.language import tr
from repair.changes.options import RepairOptions
from repair.changes.plan import Action, Plan, RowsChange, Unresolved, group_by_base
from repair.changes.store import Store
from repair.cherry_v2.catalog_changes import (
    MODEL_TABLES,
    CatalogStatements,
    demand_catalog,
    make_catalog_change,
    read_store_catalog,
)
from repair.cherry_v2.evidence import DAMAGE
from repair.cherry_v2.old_base import RestoreSource, read_source


class ModelUnusable(Exception):
    """The catalog cannot have a model, or a base cannot use it; the text says why."""


def insert_model(
    statements: CatalogStatements, store: Store, catalog: StoredCatalog, model: str, base: str, now_ms: int
) -> None:
    """Add statements that insert an embedding model, and the action for the report, unless the catalog has the model.

    Args:
        statements: the statements of the run.
        store: the store. A missing provider is added to a library, but not to a profile, whose providers hold keys.
        catalog: the catalog's rows.
        model: id of the model, ``provider::model``.
        base: id of the base that gets the model.
        now_ms: time of the new rows.

    Raises:
        ModelUnusable: the id is not valid, or the profile lacks the provider.
    """
    if not is_model_id(model):
        raise ModelUnusable(tr("{model} is not a model id; use the form provider::model", model=model))
    if model in catalog.model_ids or model in statements.new_models:
        return
    provider, _, name = model.partition(SEPARATOR)
    is_known = provider in catalog.provider_ids
    if store.is_profile and not is_known:
        raise ModelUnusable(
            tr("the profile has no provider {provider}; add it in the application first", provider=provider)
        )
    with sqlite.open_readonly(statements.path) as db:
        query = "SELECT id FROM user_model WHERE provider_id = ? AND model_id = ?"
        other: Any = db.execute(query, (provider, name)).get
    if other is not None:
        raise ModelUnusable(
            tr(
                "provider {provider} lists this model as {other}; use --model {other}",
                provider=provider,
                other=other,
            )
        )
    if not is_known:
        statements.insert_provider(provider, now_ms)
    statements.insert_model(ModelRow(id=model, provider_id=provider, model_id=name, name=name, group=None), now_ms)
    message = tr("add model {model}", model=model)
    statements.actions.append(Action(action="insert-model", message=message, base=base, subject=model))


# --- attaching a model -----------------------------------------------------------------------------------------------


def demand_model(options: RepairOptions) -> None:
    """Check the options of ``repair --only embedding.unexpected``: it needs ``--model`` and no other finding.

    Without a model, the alternative is to delete the vectors.

    Raises:
        WrongUsage
    """
    if v2.VECTOR_UNEXPECTED not in options.only:
        return
    name = v2.VECTOR_UNEXPECTED
    if options.model is None:
        raise WrongUsage(
            problem=tr("--only {name} needs --model", name=name),
            hint=tr("name the model with --model ID, or remove the vectors with regraft gc --only {name}", name=name),
        )
    if len(options.only) > 1:
        raise WrongUsage(
            problem=tr("--only {name} cannot be combined with other findings", name=name), hint=tr("use it alone")
        )


def plan_attach(store: Store, options: RepairOptions) -> Plan:
    """Plan to set the model of selected bases that have vectors but no model to the one that the options name.

    Raises:
        NotChanged: there is no catalog.
        SourceUnreadable: the catalog cannot be read.
        ProfileUnknown: the catalog is of a generation that this release does not know.
    """
    demand_catalog(store, "repair")
    catalog = read_store_catalog(store, data=False)
    rows = catalog.rows_by_base
    made, statements = Plan(), CatalogStatements.of(store)
    for base, findings in group_by_base(store.findings()).items():
        found = [one for one in findings if one.name == v2.VECTOR_UNEXPECTED]
        if base not in rows or not found:
            continue
        try:
            dimensions = _count_dimensions(store, base, findings)
            _attach_model(store, catalog, rows[base], str(options.model), dimensions, statements, options.now_ms)
        except (ModelUnusable, apsw.Error, OSError, UnicodeDecodeError) as reason:
            made.left += [Unresolved.of(one, str(reason)) for one in found]
            continue
        made.resolves.add((v2.VECTOR_UNEXPECTED, base))
    if statements.actions:
        made.changes.append(make_catalog_change(statements, MODEL_TABLES))
    return made


def _count_dimensions(store: Store, base: str, findings: Iterable[Finding]) -> int:
    """Return the number of dimensions that most vectors of a base have; ``findings`` are the audit's of that base.

    Raises:
        ModelUnusable: the index is damaged, or no length has a majority.
        apsw.Error, OSError, UnicodeDecodeError: the vectors cannot be read.
    """
    if any(one.name in DAMAGE for one in findings):
        raise ModelUnusable(tr("its index is damaged or has another layout; repair or upgrade it first"))
    with sqlite.open_readonly(store.root / store.stores[base].name) as db:
        lengths = count_vector_lengths(db)
    length = choose_vector_length(lengths, None)
    if not lengths or 2 * lengths[length] <= lengths.total():
        raise ModelUnusable(tr("its vectors have no common length"))
    return length // 4


def _attach_model(
    store: Store,
    catalog: StoredCatalog,
    row: Row,
    model: str,
    dimensions: int,
    statements: CatalogStatements,
    now_ms: int,
) -> None:
    """Add the statements that give a base its model, and the actions for the report.

    Args:
        store: the store.
        catalog: its catalog.
        row: the base's row.
        model: id of the model.
        dimensions: number of dimensions of the base's vectors.
        statements: the statements of the run.
        now_ms: the time of the run.

    Raises:
        ModelUnusable: the model does not fit the vectors, or the catalog cannot have it.
    """
    base = base_id_text(row)
    if store.is_profile and model not in catalog.model_ids:
        raise ModelUnusable(tr("the catalog has no model {model}: add it in the application first", model=model))
    problem = find_model_conflict(model, dimensions, catalog, base)
    if problem is not None:
        raise ModelUnusable(problem)
    insert_model(statements, store, catalog, model, base, now_ms)
    statements.set_model(row, model, dimensions, now_ms)
    message = tr(
        "set its model to {model} with {dimensions} dimensions (vectors unchanged)",
        model=model,
        dimensions=dimensions,
    )
    statements.actions.append(Action(action="update-base", message=message, base=base, finding=v2.VECTOR_UNEXPECTED))


def model_change(store: Store, base_id: str, model_id: str, dimensions: int, now_ms: int) -> RowsChange | None:
    """Plan to give a base that is searched by words only an embedding model; None if it has that model already.

    ``dimensions`` is the length of its future vectors.

    Raises:
        ModelNotSet: it has another model, it failed, or the catalog cannot have this model.
        NotChanged, SourceUnreadable, BaseUnknown, ProfileUnknown
    """
    source = read_source(store, base_id)
    row = source.row
    if (row.get("embedding_model_id"), row.get("dimensions")) == (model_id, dimensions):
        return None
    problem = _model_obstacle(source)
    statements = CatalogStatements.of(store)
    try:
        if problem is not None:
            raise ModelUnusable(problem)  # noqa: TRY301 - said as what the catalog says
        insert_model(statements, store, source.catalog, model_id, source.key, now_ms)
    except ModelUnusable as reason:
        raise ModelNotSet(path=store.path, base=source.key, reason=reason) from reason
    statements.set_model(row, model_id, dimensions, now_ms)
    message = tr(
        "give it the model {model_id} with {dimensions} dimensions, and search it by words and by meaning",
        model_id=model_id,
        dimensions=dimensions,
    )
    statements.actions.append(Action(action="update-base", message=message, base=source.key))
    return make_catalog_change(statements, MODEL_TABLES)


def _model_obstacle(source: RestoreSource) -> str | None:
    """Return why a base cannot be given a model, or None."""
    row = source.row
    again = tr("regraft restore makes a new base of its texts")
    if row.get("status") != "completed":
        return tr("it failed ({get}); {again}", get=row.get("error"), again=again)
    if row.get("embedding_model_id") is not None:
        return tr(
            "it has {embedding_model_id} with {get} dimensions; {again} with another one",
            embedding_model_id=row["embedding_model_id"],
            get=row.get("dimensions"),
            again=again,
        )
    return None
