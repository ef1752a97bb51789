"""A model that a base gets and the catalog may not have yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import apsw

from checks.audit.findings import Finding
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.advice import find_model_conflict
from regraft.disk import sqlite
from regraft.errors import NotChanged, WrongUsage
from regraft.formats.cherry_v2.catalog import ModelRow
from regraft.formats.cherry_v2.catalog_generation import PROVIDERS
from regraft.formats.cherry_v2.catalog_reader import Row, StoredCatalog, base_id_text
from regraft.formats.cherry_v2.index.schema import choose_vector_length, count_vector_lengths
from regraft.formats.cherry_v2.models import SEPARATOR, is_model_id
from regraft.kinds import KIND_NAMES
from regraft.language import tr
from repair.changes.plan import Action, Plan, Unresolved, group_by_base
from repair.changes.store import Store
from repair.cherry_v2.catalog_changes import CATALOG_TABLES, CatalogStatements, make_catalog_change, read_store_catalog
from repair.options import RepairOptions


class ModelUnusable(Exception):
    """A model that the catalog cannot have; the text says why."""


def insert_model(
    statements: CatalogStatements,
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
        raise ModelUnusable(tr("{model} is not the id of a model; write it as provider::model", model=model))
    if model in models:
        return
    provider, _, name = model.partition(SEPARATOR)
    if is_profile and provider not in providers:
        raise ModelUnusable(
            tr("the profile has no provider {provider}; add it in the application first", provider=provider)
        )
    with sqlite.open_readonly(statements.path) as db:
        query = "SELECT id FROM user_model WHERE provider_id = ? AND model_id = ?"
        other: Any = db.execute(query, (provider, name)).get
    if other is not None:
        raise ModelUnusable(
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


# ``repair --only embedding.unexpected --model ID``: give a base that has vectors and no model its model back.
#
# The vectors stay as they are. Only the catalog's row changes: it gets the model, and the dimensions that the vectors
# have (``docs/findings.md``, "v2 data").


#: With these an index does not tell what its vectors are.
_DAMAGE = frozenset({v2.UNREADABLE, v2.CORRUPT, v2.SCHEMA_MISSING, v2.SCHEMA_VERSION, v2.SCHEMA_PREVIEW, v2.META_BASE})


def demand_model(options: RepairOptions) -> None:
    """Refuse the finding without a model, or beside other findings: deleting the vectors is the other choice.

    Raises:
        WrongUsage
    """
    if v2.VECTOR_UNEXPECTED not in options.only:
        return
    name = v2.VECTOR_UNEXPECTED
    if options.model is None:
        raise WrongUsage(
            problem=tr("--only {name}: which model made the vectors is not known", name=name),
            hint=tr("give it with --model ID, or remove the vectors with regraft gc --only {name}", name=name),
        )
    if len(options.only) > 1:
        raise WrongUsage(problem=tr("--only {name} is given with other findings", name=name), hint=tr("give it alone"))


def plan_attach(store: Store, options: RepairOptions) -> Plan:
    """Return what gives the chosen bases that have vectors and no model the given model; nothing is written.

    Raises:
        NotChanged: there is no catalog.
        SourceUnreadable: the catalog cannot be read.
        ProfileUnknown: the catalog is of another time than this regraft.
    """
    place = _catalog_name(store)
    catalog = read_store_catalog(store, data=False)
    rows = {base_id_text(row): row for row in catalog.bases}
    made = Plan()
    statements = CatalogStatements(store.root / place)
    actions: list[Action] = []
    for base, findings in group_by_base(store.findings()).items():
        found = [one for one in findings if one.name == v2.VECTOR_UNEXPECTED]
        if base not in rows or not found:
            continue
        try:
            _demand_undamaged(findings)
            dimensions = _dimensions(store, base)
            attached = _attached(
                store, catalog, rows[base], str(options.model), dimensions, statements, options.now_ms, actions
            )
        except (ModelUnusable, apsw.Error, OSError, UnicodeDecodeError) as reason:
            made.left += [Unresolved.of(one, str(reason)) for one in found]
            continue
        actions += attached
        made.resolves.add((v2.VECTOR_UNEXPECTED, base))
    if actions:
        made.changes.append(make_catalog_change(statements, place, actions, (*CATALOG_TABLES, PROVIDERS)))
    return made


def _catalog_name(store: Store) -> str:
    """Return the name of the store's catalog.

    Raises:
        NotChanged: there is none.
    """
    if store.catalog is None:
        raise NotChanged(
            path=store.path,
            what=tr("{names} without a catalog", names=KIND_NAMES[store.found.kind]),
            command="repair",
            advice=tr("give the library or profile that it is of"),
        )
    return store.catalog


def _demand_undamaged(findings: Iterable[Finding]) -> None:
    """Refuse a base whose index does not tell what its vectors are.

    Raises:
        ModelUnfit
    """
    if any(one.name in _DAMAGE for one in findings):
        raise ModelUnusable(tr("its index is damaged, or of another layout: repair that first"))


def _dimensions(store: Store, base: str) -> int:
    """Return the dimensions that the vectors of a base have.

    Raises:
        ModelUnfit: no length is that of most vectors.
        apsw.Error, OSError, UnicodeDecodeError: they cannot be read.
    """
    with sqlite.open_readonly(store.root / store.stores[base].name) as db:
        lengths = count_vector_lengths(db)
    length = choose_vector_length(lengths, None)
    if not lengths or 2 * lengths[length] <= lengths.total():
        raise ModelUnusable(tr("no length is that of most of its vectors"))
    return length // 4


def _attached(
    store: Store,
    catalog: StoredCatalog,
    row: Row,
    model: str,
    dimensions: int,
    statements: CatalogStatements,
    now_ms: int,
    before: list[Action],
) -> list[Action]:
    """Add the statements for one base, and return the actions that they are.

    Raises:
        ModelUnfit: the model cannot be that of these vectors, or the catalog cannot have it.
    """
    base = base_id_text(row)
    models = {one.get("id") for one in catalog.models or ()}
    if store.is_profile and model not in models:
        raise ModelUnusable(tr("the catalog has no model {model}: add it in the application first", model=model))
    problem = find_model_conflict(model, dimensions, catalog, base)
    if problem is not None:
        raise ModelUnusable(problem)
    actions: list[Action] = []
    if not any(one.action == "insert-model" for one in before):
        providers = {one.get("provider_id") for one in catalog.providers or ()}
        actions += insert_model(
            statements,
            model,
            base,
            models=models,
            providers=providers,
            is_profile=store.is_profile,
            now_ms=now_ms,
        )
    statements.set_model(row, model, dimensions, now_ms)
    message = tr(
        "give it the model {model} with {dimensions} dimensions; its vectors stay as they are",
        model=model,
        dimensions=dimensions,
    )
    return [*actions, Action(action="update-base", message=message, base=base, finding=v2.VECTOR_UNEXPECTED)]
