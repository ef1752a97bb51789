"""Drafts of the bases of preview builds: first those that a catalog lists, then stores that no catalog lists.

The result depends only on the source. Rules: ``docs/formats/preview.md``, "What becomes of it"; for models
``docs/rules.md``, "Models".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from migrators.cherry_preview.items import (
    BaseContext,
    RawFiles,
    RawPaths,
    StoreItems,
    draft_listed_items,
    draft_stored_items,
)
from migrators.pipeline.publication import CATALOG_SUBJECT, REPORT_SUBJECT
from migrators.pipeline.source import BaseDraft, DraftedItems, LibraryDraft, SkippedBase
from regraft import identity
from regraft.disk.file_paths import FreeNames, fold_name, is_folder_name
from regraft.disk.trees import join_path
from regraft.errors import SourceUnreadable
from regraft.formats.cherry_preview import IndexLayout, IndexSummary
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row, StoredCatalog, read_catalog
from regraft.formats.cherry_v2.layout import INDEX_FILE, RAW_FOLDER, StoreFile
from regraft.formats.cherry_v2.models import (
    SEPARATOR,
    ModelChoice,
    ModelOverrides,
    ModelResolver,
    is_model_id,
    tidy_model_id,
)
from regraft.formats.cherry_v2.settings import read_base_settings, read_time, read_whole_number
from regraft.identity import replace
from regraft.language import format_count, join_list, tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.stores.locate import Located
from regraft.text import is_blank, replace_surrogates, trim, without_nul

# --- models --------------------------------------------------------------------------------------------------------


#: The problem of a base that names no model, with a field for its id.
_NO_MODEL_PROBLEM = tr(
    "the base names no embedding model; migrate its vectors with --map-model "
    "'{base}=PROVIDER::MODEL', or those of all such bases with --recreate-model 'PROVIDER::MODEL'"
)


class BaseModels:
    """Resolves the models that bases name. ``notices`` concern the whole source."""

    def __init__(self, catalog: StoredCatalog | None, model_overrides: ModelOverrides) -> None:
        providers = None if catalog is None else _providers(catalog)
        self.notices: list[Notice] = []
        if catalog is not None and providers is None:
            message = tr("the catalog has no tables of models; every model that a base names is assumed to exist")
            self.notices.append(Notice(code=notices.MODELS_UNKNOWN, message=message))
        known = catalog or StoredCatalog()
        self._rows = {row.get("id"): row for row in known.models or ()}
        self._overrides = model_overrides
        models = [self._to_raw_model(row.get("embedding_model_id")) for row in known.bases]
        self._models = ModelResolver(providers, model_overrides, models)
        named = set(map(_unique, models))
        only = next(iter(model_overrides.recreated)) if len(model_overrides.recreated) == 1 else None
        #: The only model of --recreate-model, used for bases that no catalog lists.
        self._model_of_unlisted = only
        #: The same for listed bases without a model, unless another base of the catalog names this model.
        self._model_of_unnamed = None if only in named else only

    def embedding(self, model_id: Any, base_id: str, *, is_listed: bool) -> ModelChoice:
        """Resolve the embedding model that a base names, or the one that the user gives for bases without one."""
        raw = self._to_raw_model(model_id)
        spare = self._model_of_unnamed if is_listed else self._model_of_unlisted
        if raw is None and spare is not None and base_id not in self._overrides.mapped:
            raw = {"id": spare}
        choice = self._models.embedding(raw, base_id)
        if raw is None and choice.id is None:
            return replace(choice, problem=_NO_MODEL_PROBLEM.format(base=base_id))
        return choice

    def rerank(self, model_id: Any, base_id: str) -> ModelChoice:
        """Resolve the rerank model that a base names."""
        return self._models.rerank(self._to_raw_model(model_id), base_id)

    def unused_overrides(self) -> Iterator[Notice]:
        """Yield a notice for each of the user's options for models that no base needed."""
        return self._models.unused_overrides()

    def _to_raw_model(self, model_id: Any) -> dict[str, Any] | None:
        """Return a model in the form that the shared rules read, or None if the base names none."""
        return None if is_blank(model_id) else _row_to_raw_model(self._rows.get(model_id, {"id": model_id}))


def _providers(catalog: StoredCatalog) -> list[dict[str, Any]] | None:
    """Return the providers with their models, or None if the catalog has no table of either."""
    if catalog.providers is None and catalog.models is None:
        return None
    found: dict[str, dict[str, Any]] = {}
    for row in catalog.providers or ():
        provider = str(row.get("provider_id"))
        found[provider] = {"id": provider, "name": row.get("name"), "enabled": row.get("is_enabled") != 0, "models": []}
    for row in catalog.models or ():
        raw = _row_to_raw_model(row)
        provider = str(row.get("provider_id") or str(raw["id"]).partition(SEPARATOR)[0])
        entry = found.setdefault(provider, {"id": provider, "name": None, "enabled": True, "models": []})
        entry["models"].append(raw)
    return list(found.values())


def _row_to_raw_model(row: Row) -> dict[str, Any]:
    whole = str(row.get("id"))
    model = whole if is_model_id(whole) else row.get("model_id") or whole
    return {"id": model, "provider": row.get("provider_id"), "name": row.get("name"), "group": row.get("group")}


def _unique(raw: dict[str, Any] | None) -> str | None:
    if raw is None:
        return None
    model = str(raw["id"])
    return tidy_model_id(model if SEPARATOR in model else f"{raw['provider']}{SEPARATOR}{model}")


def draft_library(source: Located, model_overrides: ModelOverrides, *, texts: bool = False) -> LibraryDraft:
    """Draft all bases of a source that are not in the v2 layout.

    Args:
        source: a source with stores of preview builds.
        model_overrides: the user's options for models.
        texts: whether rows are migrated for their text alone.
    """
    catalog, message = _read_catalog(source)
    drafter = _Drafter(source, catalog, model_overrides, texts=texts)
    drafter.draft()
    models = drafter.models
    return LibraryDraft(
        tuple(drafter.drafts),
        tuple(drafter.skipped),
        (*message, *models.notices, *drafter.found_notices, *models.unused_overrides()),
    )


def _read_catalog(source: Located) -> tuple[StoredCatalog | None, list[Notice]]:
    name = source.stores.catalog
    if name is None:
        return None, []
    try:
        with source.tree.local(name, None) as path:
            catalog = read_catalog(path)
    except (CatalogProblem, SourceUnreadable) as error:
        reason = (
            str(error)
            if isinstance(error, CatalogProblem)
            else tr("cannot be read: {reason}", reason=error.facts["reason"])
        )
        return None, [
            _catalog_notice(tr("{name} {reason}; bases and items are taken from the rows", name=name, reason=reason))
        ]
    if catalog.items is None:
        return catalog, [
            _catalog_notice(tr("{name} has no table `knowledge_item`; items are taken from the rows", name=name))
        ]
    return catalog, []


def _catalog_notice(message: str) -> Notice:
    return Notice(code=notices.CATALOG_UNREADABLE, message=message)


class _Drafter:
    """Drafts the bases of one source. Single use."""

    def __init__(
        self, source: Located, catalog: StoredCatalog | None, model_overrides: ModelOverrides, *, texts: bool
    ) -> None:
        self._source = source
        self._texts = texts
        self._catalog = catalog
        self._migrated: set[str] = set()
        self._seen: set[str] = set()
        self.models = BaseModels(catalog, model_overrides)
        self.drafts: list[BaseDraft] = []
        self.skipped: list[SkippedBase] = []
        self.found_notices: list[Notice] = []

    def draft(self) -> None:
        """Draft listed bases in the catalog's order, then the others in the order of the stores' names."""
        stores = {self._id_of(store): store for store in self._source.stores.preview}
        current = {str(store.base_id): store for store in self._source.stores.current}
        existing = stores.keys() | current.keys()
        rows = [] if self._catalog is None else self._catalog.bases
        for row in rows:
            if self._source.stores.is_whole or row.get("id") in existing:
                self._draft_row(row, stores, current)
        self._draft_unlisted(stores, current)

    def _draft_unlisted(self, stores: dict[str, StoreFile], current: dict[str, StoreFile]) -> None:
        for base_id, store in current.items():
            if base_id not in self._seen:
                self._skip_current(base_id, store)
        for base_id, store in stores.items():
            if base_id not in self._seen:
                self._seen.add(base_id)
                self.drafts.append(self._draft_base({"id": base_id}, base_id, store, is_listed=False))

    def _id_of(self, store: StoreFile) -> str:
        """Return a base's id: from its folder, else from its rows, else made from the name of the file."""
        if store.base_id is not None:
            # A folder name that is not UTF-8 cannot be an id in a catalog.
            is_text = replace_surrogates(store.base_id) == store.base_id
            return store.base_id if is_text else identity.base_id(store.base_id)
        with StoreItems(self._source.tree, store.name, texts=self._texts) as store_items:
            return store_items.contents.collection or identity.base_id(PurePosixPath(store.name).stem)

    def _draft_row(self, row: Row, stores: dict[str, StoreFile], current: dict[str, StoreFile]) -> None:
        base_id = row.get("id")
        if not isinstance(base_id, str) or is_blank(base_id):
            self._skip(None, notices.INVALID_BASE, notices.CODES[notices.INVALID_BASE].meaning)
        elif base_id in self._seen:
            self._skip(base_id, notices.DUPLICATE_BASE, notices.CODES[notices.DUPLICATE_BASE].meaning)
        elif base_id in current:
            self._skip_current(base_id, current[base_id])
        elif current and base_id not in stores and row.get("status") == "failed":
            # A base that v2's own upgrade could not migrate has no store; it does not belong to a preview build.
            self._skip_current(base_id, None)
        else:
            self._seen.add(base_id)
            folder = join_path(self._source.stores.bases, _folder_name(base_id))
            missing = StoreFile(
                base_id=base_id,
                name=join_path(folder, INDEX_FILE),
                raw=join_path(folder, RAW_FOLDER),
                look=IndexSummary(IndexLayout.OTHER),
            )
            self.drafts.append(self._draft_base(row, base_id, stores.get(base_id, missing), is_listed=True))

    def _skip_current(self, base_id: str, store: StoreFile | None) -> None:
        self._seen.add(base_id)
        leaves_rows = store is not None and store.look.leaves_rows
        rest = tr("; its file also holds unused rows of a preview build") if leaves_rows else ""
        message = tr("{base_id} is in the v2 layout already and is not changed{rest}", base_id=base_id, rest=rest)
        self._skip(base_id, notices.CURRENT_LAYOUT, message)

    def _skip(self, base_id: str | None, reason: str, message: str) -> None:
        items = 0 if self._catalog is None else len((self._catalog.items or {}).get(base_id, ()))
        self.skipped.append(SkippedBase(base_id, reason, items))
        self.found_notices.append(Notice(code=reason, message=message, base=base_id))

    # --- one base --------------------------------------------------------------------------------------------------

    def _draft_base(self, row: Row, base_id: str, store: StoreFile, *, is_listed: bool) -> BaseDraft:
        """Draft a base of the catalog, or an unlisted base, whose id alone is known."""
        found_notices: list[Notice] = []
        settings, invalid = read_base_settings(row)
        if invalid:
            text = tr("invalid settings: {invalid}", invalid=join_list(invalid))
            found_notices.append(Notice(code=notices.INVALID_CONFIG, message=text, base=base_id, count=len(invalid)))
        processor = row.get("file_processor_id")
        processor = None if is_blank(processor) else str(processor)
        names = FreeNames(reserve_processed=processor is not None)
        with StoreItems(self._source.tree, store.name, texts=self._texts) as store_items:
            drafted = self._items(base_id, store, store_items, names)
            dimensions = read_whole_number(row.get("dimensions"), minimum=1)
            if dimensions is None and not (is_listed and store.look.has_rows):
                dimensions = store_items.declared_dimensions
            embedding = self._embedding(row, base_id, store_items, is_listed=is_listed)
        if drafted.renamed:
            text = tr("{files} renamed because the name was taken", files=format_count(drafted.renamed, "file"))
            found_notices.append(Notice(code=notices.RENAMED, message=text, base=base_id, count=drafted.renamed))
        rerank = self.models.rerank(row.get("rerank_model_id"), base_id)
        return BaseDraft(
            legacy_id=base_id,
            id=_folder_name(base_id),
            name=_name(row, base_id, found_notices) if is_listed else base_id,
            embedding=embedding,
            rerank=rerank,
            stated_dimensions=dimensions,
            file_processor_id=processor,
            settings=settings,
            created_at=read_time(row.get("created_at")),
            updated_at=read_time(row.get("updated_at")),
            items=drafted.items,
            skipped_items=tuple(drafted.skipped),
            taken_names=names.taken(),
            vector_file=store.name,
            notices=(
                *found_notices,
                *_dropped_field_notices(row, base_id),
                *embedding.notices,
                *rerank.notices,
                *drafted.notices,
            ),
            dimensions_if_empty=dimensions,
        )

    def _items(self, base_id: str, store: StoreFile, store_items: StoreItems, names: FreeNames) -> DraftedItems:
        context = BaseContext(
            base_id=base_id, raw=RawFiles(self._source.tree, store.raw), paths=RawPaths(names), rows=store_items
        )
        listed = None if self._catalog is None else self._catalog.items
        bases = () if self._catalog is None else self._catalog.bases
        if listed is None or (base_id not in listed and not any(row.get("id") == base_id for row in bases)):
            return draft_stored_items(store_items, context, self._migrated)
        return draft_listed_items(listed.get(base_id, ()), context, self._migrated)

    def _embedding(self, row: Row, base_id: str, store_items: StoreItems, *, is_listed: bool) -> ModelChoice:
        choice = self.models.embedding(row.get("embedding_model_id"), base_id, is_listed=is_listed)
        if choice.id is None and store_items.problem:
            # Naming a model would not help.
            return replace(
                choice,
                problem=tr(
                    "{problem}; and its index file {problem2}", problem=choice.problem, problem2=store_items.problem
                ),
            )
        return choice


def _folder_name(base_id: str) -> str:
    """Return a base's id in the library: its own, unless it is not a valid folder name on every system."""
    # The ledger uses these names for other entries.
    is_valid = is_folder_name(base_id) and fold_name(base_id) not in (CATALOG_SUBJECT, REPORT_SUBJECT)
    return base_id if is_valid and base_id == trim(base_id) else identity.base_id(base_id)


def _name(row: Row, base_id: str, found_notices: list[Notice]) -> str:
    name: Any = row.get("name")
    text = trim(without_nul(name)) if isinstance(name, str) else ""
    if not text:
        found_notices.append(
            Notice(code=notices.BLANK_NAME, message=tr("the base has no name; its id is used instead"), base=base_id)
        )
    return text or base_id


def _dropped_field_notices(row: Row, base_id: str) -> list[Notice]:
    """Report what a library has no field for: the group, and that the catalog has the base as failed."""
    found_notices = []
    if not is_blank(row.get("group_id")):
        found_notices.append(
            Notice(code=notices.DROPPED_FIELD, message=tr("group: {group_id}", group_id=row["group_id"]), base=base_id)
        )
    if row.get("status") == "failed":
        text = tr("status: failed ({get}); the new status depends on what can be migrated now", get=row.get("error"))
        found_notices.append(Notice(code=notices.DROPPED_FIELD, message=text, base=base_id))
    return found_notices
