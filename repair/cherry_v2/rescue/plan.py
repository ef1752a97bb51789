"""Planning a rescue: which bases and folders of a profile come back, and from what. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import is_tombstone
from migrators.pipeline.drafts import BaseDraft
from regraft.errors import RegraftError, SourceNotMigratable
from regraft.formats.cherry_v2.catalog_reader import Row, StoredCatalog, base_key
from regraft.formats.cherry_v2.index.vector_lengths import stated_dimensions
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.language import tr
from regraft.report import notices
from regraft.tree import is_plain_name
from repair.changes.plan import Plan, Unresolved
from repair.changes.store import Store
from repair.cherry_v2.catalogs import catalog_of, demand_profile
from repair.cherry_v2.rescue.base import Base, RescuePlanner
from repair.cherry_v2.rescue.catalog import TABLES, rehearsed
from repair.cherry_v2.rescue.changes import Maker
from repair.cherry_v2.rescue.held import Held, demand_known_version, held_by
from repair.cherry_v2.rescue.matching import match_bases
from repair.cherry_v2.rescue.source import V1Left, read_v1


class RescueOptions(msgspec.Struct, frozen=True):
    """What a rescue is asked for: ``now_ms`` is the run's time, ``v1`` where v1's state is (None: in the profile).

    ``model_overrides`` is what the user says of models. What is opened or extracted stays so until ``keep`` closes.
    """

    now_ms: int
    keep: ExitStack
    v1: Path | None = None
    model_overrides: ModelOverrides = msgspec.field(default_factory=ModelOverrides)
    #: Whether rows of damaged vector files come back that prove themselves.
    salvage: bool = False


def plan(store: Store, options: RescueOptions) -> Plan:
    """Return what is going to be brought back; nothing is written.

    Raises:
        NotChanged: it is no profile.
        SourceUnreadable: its database cannot be read.
        SourceNotMigratable: there is something to bring back, and nothing is known of v1.
        ProfileUnknown: the profile is of another time than this regraft.
    """
    advice = tr("give the application's profile folder; regraft migrate tries failed bases of a library again")
    database = demand_profile(store, command="rescue", advice=advice)
    catalog = catalog_of(store)
    stranded, left = _stranded(store, catalog)
    made = Plan(left=left)
    v1 = _v1(store, options, stranded) if stranded else None
    if v1 is None:
        return made
    made.left += _unused_words(v1, options.model_overrides)
    drafts, unsure = _drafts(catalog, v1)
    made.left += _without_draft(stranded, drafts, unsure)
    planner = RescuePlanner(store, v1, catalog, options.model_overrides, options.now_ms)
    maker = Maker(store, v1, catalog, options.now_ms)
    for base in stranded:
        rescued = planner.look(base, drafts[base.key]) if base.key in drafts else None
        if rescued is not None:
            maker.bring_back(rescued)
    made.add(maker.plan)
    made.left += planner.left
    if made.changes or maker.statements.made:
        demand_known_version(store)
    if maker.statements.made:
        made.changes.append(rehearsed(maker.statements, database, maker.rows, TABLES))
    return made


def _v1(store: Store, options: RescueOptions, stranded: list[Base]) -> V1Left | None:
    """Return what v1 left; None where there is nothing and no upgrade need have been."""
    try:
        return read_v1(store, options.v1, options.model_overrides, options.keep, salvage=options.salvage)
    except SourceNotMigratable:
        if options.v1 is None and all(base.finding == v2.ITEM_NO_MATERIAL for base in stranded):
            return None
        raise


# --- which bases -----------------------------------------------------------------------------------------------------


def _stranded(store: Store, catalog: StoredCatalog) -> tuple[list[Base], list[Unresolved]]:
    """Return the bases in which something may be missing that v1 has, and which cannot be looked into."""
    found: list[Base] = []
    left: list[Unresolved] = []
    for row in catalog.bases:
        key = base_key(row)
        if not store.wants(key) or not isinstance(row.get("id"), str) or not is_plain_name(key):
            continue
        items = (catalog.items or {}).get(key, [])
        one = store.stores.get(key)
        name = f"{store.bases}/{key}/.cherry/index.sqlite" if one is None else one.name
        try:
            held = held_by(store.root / name, key, stated_dimensions(row))
        except RegraftError as error:
            if _finding(row, items, Held()) is not None:
                left.append(
                    Unresolved(
                        finding=v2.UNREADABLE, reason=tr("its index stays as it is: {error}", error=error), base=key
                    )
                )
            continue
        finding = _finding(row, items, held)
        if finding is not None:
            found.append(Base(key=key, row=row, items=items, index=name, held=held, finding=finding))
    return found, left


def _finding(row: Row, items: list[Row], held: Held | None) -> str | None:
    """Return the gravest finding that a base may be rescued from."""
    if row.get("status") == "failed":
        return v2.BASE_FAILED if row.get("error") in (notices.MISSING_MODEL, notices.MISSING_STORE) else None
    if row.get("status") != "completed" or row.get("embedding_model_id") is None:
        return None  # without a model it is searched by words alone, and v1's vectors have no place in it
    if held is None:
        return v2.BASE_NO_INDEX
    if any(map(held.lacks, items)):
        return v2.ITEM_NO_MATERIAL
    return v2.ITEM_TOMBSTONE if any(map(is_tombstone, items)) else None


def _drafts(catalog: StoredCatalog, v1: V1Left) -> tuple[dict[str, BaseDraft], set[str]]:
    """Tell what each base was in v1; and which bases may be any of several."""
    matched = match_bases(catalog.bases, v1.library.bases, catalog.items or {})
    return {base_key(row): draft for row, draft in matched.pairs}, {base_key(row) for row in matched.unsure}


def _without_draft(stranded: list[Base], drafts: dict[str, BaseDraft], unsure: set[str]) -> Iterator[Unresolved]:
    """Yield the bases of which nobody can tell what they were in v1."""
    for base in stranded:
        if base.key not in drafts and base.finding != v2.ITEM_NO_MATERIAL:
            yield base.left(
                tr("several bases of v1 may be this one") if base.key in unsure else tr("v1 has no such base")
            )


def _unused_words(v1: V1Left, model_overrides: ModelOverrides) -> list[Unresolved]:
    """Say which of the user's words met no base; that a model is mapped to and made again is a word for that base."""
    message = [notice.message for notice in v1.library.notices if notice.code == notices.OPTION_UNUSED]
    return [
        Unresolved(finding=v2.BASE_MODEL, reason=one)
        for one in message
        if not any(one.endswith(f" {new}") for new in model_overrides.mapped.values())
    ]
