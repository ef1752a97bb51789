"""``repair --only embedding.unexpected --model ID``: give a base that has vectors and no model its model back.

The vectors stay as they are. Only the catalog's row changes: it gets the model, and the dimensions that the vectors
have (``docs/findings.md``, "v2 data").
"""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from checks.audit.findings import Finding
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.attaching import problem_with
from regraft import sqlite
from regraft.errors import NotChanged, WrongUsage
from regraft.formats.cherry_v2.catalog_generation import PROVIDERS
from regraft.formats.cherry_v2.catalog_reader import Row, StoredCatalog, base_key
from regraft.formats.cherry_v2.index.vector_lengths import expected_length, lengths_of
from regraft.kinds import NAMES
from regraft.language import tr
from repair.changes.found import by_base
from repair.changes.plan import Action, Plan, Unresolved
from repair.changes.store import Store
from repair.cherry_v2.catalogs import catalog_of
from repair.cherry_v2.new_model import ModelUnfit, insert_model
from repair.cherry_v2.rescue.catalog import TABLES, Statements, rehearsed
from repair.options import RepairOptions

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


def plan(store: Store, options: RepairOptions) -> Plan:
    """Return what gives the chosen bases that have vectors and no model the given model; nothing is written.

    Raises:
        NotChanged: there is no catalog.
        SourceUnreadable: the catalog cannot be read.
        ProfileUnknown: the catalog is of another time than this regraft.
    """
    place = _catalog_name(store)
    catalog = catalog_of(store, data=False)
    rows = {base_key(row): row for row in catalog.bases}
    made = Plan()
    statements = Statements(store.root / place)
    actions: list[Action] = []
    for base, findings in by_base(store.findings()).items():
        found = [one for one in findings if one.name == v2.VECTOR_UNEXPECTED]
        if base not in rows or not found:
            continue
        try:
            _demand_undamaged(findings)
            dimensions = _dimensions(store, base)
            attached = _attached(
                store, catalog, rows[base], str(options.model), dimensions, statements, options.now_ms, actions
            )
        except (ModelUnfit, apsw.Error, OSError, UnicodeDecodeError) as reason:
            made.left += [Unresolved.of(one, str(reason)) for one in found]
            continue
        actions += attached
        made.resolves.add((v2.VECTOR_UNEXPECTED, base))
    if actions:
        made.changes.append(rehearsed(statements, place, actions, (*TABLES, PROVIDERS)))
    return made


def _catalog_name(store: Store) -> str:
    """Return the name of the store's catalog.

    Raises:
        NotChanged: there is none.
    """
    if store.catalog is None:
        raise NotChanged(
            path=store.path,
            what=tr("{names} without a catalog", names=NAMES[store.found.kind]),
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
        raise ModelUnfit(tr("its index is damaged, or of another layout: repair that first"))


def _dimensions(store: Store, base: str) -> int:
    """Return the dimensions that the vectors of a base have.

    Raises:
        ModelUnfit: no length is that of most vectors.
        apsw.Error, OSError, UnicodeDecodeError: they cannot be read.
    """
    with sqlite.reading(store.root / store.stores[base].name) as db:
        lengths = lengths_of(db)
    length = expected_length(lengths, None)
    if not lengths or 2 * lengths[length] <= lengths.total():
        raise ModelUnfit(tr("no length is that of most of its vectors"))
    return length // 4


def _attached(
    store: Store,
    catalog: StoredCatalog,
    row: Row,
    model: str,
    dimensions: int,
    statements: Statements,
    now_ms: int,
    before: list[Action],
) -> list[Action]:
    """Add the statements for one base, and return the actions that they are.

    Raises:
        ModelUnfit: the model cannot be that of these vectors, or the catalog cannot have it.
    """
    base = base_key(row)
    models = {one.get("id") for one in catalog.models or ()}
    if store.is_profile and model not in models:
        raise ModelUnfit(tr("the catalog has no model {model}: add it in the application first", model=model))
    problem = problem_with(model, dimensions, catalog, base)
    if problem is not None:
        raise ModelUnfit(problem)
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
