"""Which bases of a store an embedder can fill, and why not the others."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from checks.cherry_v2 import findings as v2
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import (
    IndexForeign,
    IndexIncomplete,
    IndexVersionUnknown,
    ModelDiffers,
    ModelSet,
    RegraftError,
)
from regraft.formats.cherry_preview.libsql import Layout
from regraft.formats.cherry_v2 import layout
from regraft.formats.cherry_v2.catalog_reader import Row, base_key
from regraft.language import tr
from regraft.records import replace
from regraft.schema_errors import SchemaForeign
from regraft.text import argument
from repair.backfill.request import NewModel
from repair.backfill.scope import Scope, Unfit
from repair.changes.incremental import IncrementalChange
from repair.changes.plan import Unresolved
from repair.changes.store import Store
from repair.cherry_v2.backfill import scope as backfill_scope
from repair.cherry_v2.backfill.scope import IndexScope
from repair.cherry_v2.catalogs import catalog_of

#: Why a base is left that is no finding of ``check``.
MODEL = "base.model"


#: What is found where an index is refused.
_FINDINGS: dict[type[RegraftError], str] = {
    IndexVersionUnknown: v2.SCHEMA_VERSION,
    IndexIncomplete: v2.SCHEMA_MISSING,
    IndexForeign: v2.META_BASE,
    SchemaForeign: v2.FOREIGN_COLUMN,
}


class IndexTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A base that can be filled; ``path`` is its index file below the store's root."""

    base_id: str
    label: str
    path: str
    model_id: str | None
    dimensions: int | None
    #: Whether the file lies where that base's index has to.
    is_placed: bool = True
    #: Whether the catalog is to be told its model once it is filled.
    is_new: bool = False
    is_unfinished: bool = False
    #: Whether the index is missing, and is built by a step of the run before the vectors are written.
    is_missing: bool = False
    #: Whether its dimensions are those that the user gave.
    is_said: bool = False
    finding: str = v2.VECTOR_MISSING
    shares_with_itself: bool = False
    needs_dimensions: bool = True
    resolves: frozenset[str] = frozenset({v2.VECTOR_MISSING})

    @property
    def files(self) -> tuple[str, ...]:
        """Return its index file."""
        return (self.path,)

    def demand_fit(self, scope: Scope) -> None:
        """Refuse an index most of whose vectors contradict the dimensions of the catalog, or of the user.

        Raises:
            Unfit
        """
        if isinstance(scope, IndexScope) and scope.is_at_odds:
            who, advice = (
                (tr("--dimensions says"), "")
                if self.is_said
                else (tr("the catalog says"), tr(": regraft repair first"))
            )
            reason = tr(
                "{who} {dimensions} dimensions, the vectors have {dimensions2}{advice}",
                who=who,
                dimensions=self.dimensions,
                dimensions2=scope.usual_dimensions,
                advice=advice,
            )
            raise Unfit(v2.BASE_DIMENSIONS, reason)

    def finding_of(self, error: RegraftError) -> str | None:
        """Return the finding that keeps the index from being filled."""
        return next((finding for kind, finding in _FINDINGS.items() if isinstance(error, kind)), None)

    def finish(self, root: Path, growing: Sequence[IncrementalChange], now_ms: int, *, wrote: bool) -> None:
        """Do nothing: an index has no place for that."""

    def opened(self, root: Path, growing: Sequence[IncrementalChange] = ()) -> AbstractContextManager[IndexScope]:
        """Open its index as a scope; one that is not built yet is empty."""
        if self.is_missing and not growing and not (root / self.path).exists():
            return backfill_scope.opened_empty(self.base_id, label=self.label, dimensions=self.dimensions)
        return backfill_scope.opened(
            root / self.path,
            self.base_id,
            is_placed=self.is_placed,
            label=self.label,
            dimensions=self.dimensions,
            growing=growing[0] if growing else None,
            writable=bool(growing),
        )


def targets_of(
    store: Store, settings: EmbedderSettings, new: NewModel | None, dimensions: int | None
) -> tuple[tuple[IndexTarget, ...], tuple[Unresolved, ...]]:
    """Return the bases of a store that an embedder can fill, and the others.

    Args:
        store: what was named; of it, the chosen bases.
        settings: the embedder's.
        new: the model of bases that have none.
        dimensions: those of vectors, where no catalog says so and none are there.

    Raises:
        ModelDiffers: the bases that are meant have another model, or are to get one that is not the embedder's.
        ModelSet: a base that was named already has a model, and not the new one.
        SourceUnreadable: the catalog cannot be read.
    """
    rows = _rows(store)
    listed = rows or {}
    known = {**dict.fromkeys(_meant(store, listed)), **dict.fromkeys(filter(store.wants, store.stores))}
    found = [_one(store, base, rows, settings, new, dimensions) for base in known]
    if new is not None and not settings.serves(new.model_id):
        reason = tr("--model says {model_id}", model_id=new.model_id)
        raise ModelDiffers(embedder=settings.name, model=settings.model, reason=reason)
    targets = tuple(one for one in found if isinstance(one, IndexTarget))
    others = tuple(one for one in found if isinstance(one, Unresolved))
    if not targets:
        _demand_no_mistake(store, listed, settings, others)
    return targets, others


def _demand_no_mistake(
    store: Store, rows: dict[str, Row], settings: EmbedderSettings, others: tuple[Unresolved, ...]
) -> None:
    """Refuse an embedder where no base that is meant is of its model; else the others are other embedders' work.

    Raises:
        ModelDiffers
    """
    models = [rows.get(str(one.base), {}).get("embedding_model_id") for one in others]
    pairs = zip(others, models, strict=True)
    different = [one.reason for one, model in pairs if one.finding == MODEL and model is not None]
    is_for_any = any(model and settings.serves(str(model)) for model in models)
    if different and (store.chosen or not is_for_any):
        raise ModelDiffers(embedder=settings.name, model=settings.model, reason=different[0])


def models_of(store: Store, new: NewModel | None) -> frozenset[str]:
    """Return the ids of the models of the bases that are meant, that of those without one included.

    Raises:
        SourceUnreadable: the catalog cannot be read.
    """
    rows = _meant(store, _rows(store) or {}).values()
    ids = {row.get("embedding_model_id") for row in rows} | {None if new is None else new.model_id}
    return frozenset(str(one) for one in ids if one is not None)


def _meant(store: Store, rows: dict[str, Row]) -> dict[str, Row]:
    """Return the rows of the bases that are meant: of one base's folder or index, only that one's."""
    is_whole = store.found.stores.is_whole
    return {base: row for base, row in rows.items() if store.wants(base) and (is_whole or base in store.stores)}


def _rows(store: Store) -> dict[str, Row] | None:
    return None if store.catalog is None else {base_key(row): row for row in catalog_of(store, data=False).bases}


def _one(
    store: Store,
    base: str,
    rows: dict[str, Row] | None,
    settings: EmbedderSettings,
    new: NewModel | None,
    dimensions: int | None,
) -> IndexTarget | Unresolved:
    row = None if rows is None else rows.get(base)
    if rows is not None and row is None:
        return Unresolved(finding=v2.INDEX_ORPHAN, reason=tr("the catalog has no such base"), base=base)
    unfit = _unfit(store, base, row)
    if unfit is not None:
        return unfit
    index = store.stores.get(base)
    if index is None and row is not None:
        target = _with_row(store, row, f"{store.bases}/{base}/{layout.INDEX_FILE}", settings, new, dimensions)
        return replace(target, is_missing=True) if isinstance(target, IndexTarget) else target
    if index is None:
        return Unresolved(finding=v2.BASE_NO_INDEX, reason=tr("the base has no index"), base=base)
    if row is not None:
        return _with_row(store, row, index.name, settings, new, dimensions)
    return IndexTarget(
        base_id=base,
        label=base,
        path=index.name,
        model_id=None if new is None else new.model_id,
        dimensions=dimensions if new is None else new.dimensions,
        is_placed=index.base_id is not None and index.name.endswith(layout.INDEX_FILE),
    )


def _unfit(store: Store, base: str, row: Row | None) -> Unresolved | None:
    """Return why a base cannot be filled, whatever its model is; None where it has an index that can."""
    if row is not None and row.get("status") == "failed":
        repair = shlex.join(["regraft", "restore", argument(store.path), "--base", base])
        return Unresolved(
            finding=v2.BASE_FAILED,
            reason=tr("the base failed ({get}); restore makes a new one", get=row.get("error")),
            base=base,
            repair=repair,
        )
    index = store.stores.get(base)
    if index is None:
        # The run builds it first, from the items of the base.
        return None
    return None if index.look.layout is Layout.CURRENT else _of_another_layout(index, base)


def _of_another_layout(index: layout.Store, base: str) -> Unresolved:
    if index.look.layout is Layout.UNREADABLE:
        return Unresolved(
            finding=v2.UNREADABLE,
            reason=tr("its index cannot be read ({problem})", problem=index.look.problem),
            base=base,
            severity="error",
        )
    return Unresolved(
        finding=v2.SCHEMA_PREVIEW, reason=tr("its index has another layout: regraft upgrade first"), base=base
    )


def _with_row(
    store: Store, row: Row, path: str, settings: EmbedderSettings, new: NewModel | None, dimensions: int | None
) -> IndexTarget | Unresolved:
    base, label = base_key(row), str(row.get("name"))
    model: Any = row.get("embedding_model_id")
    if model is None:
        if new is None:
            reason = tr("the base has no model, and finds words only; --model and --dimensions give it one")
            return Unresolved(
                finding=MODEL, reason=reason, base=base, severity="warning" if base in store.chosen else "note"
            )
        return IndexTarget(
            base_id=base, label=label, path=path, model_id=new.model_id, dimensions=new.dimensions, is_new=True
        )
    if new is not None and new.model_id != model:
        if base in store.chosen:
            raise ModelSet(base=label, model=model, wanted=new.model_id)
        return Unresolved(finding=MODEL, reason=tr("its model is {model}", model=model), base=base, severity="note")
    if not settings.serves(str(model)):
        return Unresolved(
            finding=MODEL,
            reason=tr("the model of {label} is {model}", label=label, model=model),
            base=base,
            severity="note",
        )
    size = row.get("dimensions")
    return IndexTarget(
        base_id=base,
        label=label,
        path=path,
        model_id=str(model),
        dimensions=size if isinstance(size, int) and size > 0 else dimensions,
    )
