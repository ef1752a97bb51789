"""Drafts of the bases of preview builds: those that a catalog lists, then those that only their stores tell of.

Rules: ``docs/formats/preview.md``, "What becomes of it". No clock; nothing but the source is read.
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

# The models of bases of preview builds, from their catalog and the user's word (``docs/rules.md``, "Models").


#: The problem of a base that names no model; its id goes in.
_NAMES_NONE = tr(
    "the base names no embedding model; its vectors are carried with --map-model "
    "'{base}=PROVIDER::MODEL', or those of all such bases with --recreate-model "
    "'PROVIDER::MODEL'"
)


class BaseModels:
    """Resolves what bases name. ``notices`` are about the whole source."""

    def __init__(self, catalog: StoredCatalog | None, model_overrides: ModelOverrides) -> None:
        providers = None if catalog is None else _providers(catalog)
        self.notices: list[Notice] = []
        if catalog is not None and providers is None:
            message = tr("the catalog has no tables of models: every model that a base names counts as existing")
            self.notices.append(Notice(code=notices.MODELS_UNKNOWN, message=message))
        known = catalog or StoredCatalog()
        self._rows = {row.get("id"): row for row in known.models or ()}
        self._word = model_overrides
        models = [self._raw(row.get("embedding_model_id")) for row in known.bases]
        self._models = ModelResolver(providers, model_overrides, models)
        named = set(map(_unique, models))
        only = next(iter(model_overrides.recreated)) if len(model_overrides.recreated) == 1 else None
        #: The one model that is re-created, for a base of which no catalog says a word.
        self._of_unlisted = only
        #: The same where no base of the catalog names it: it must be that of those that name none.
        self._of_unnamed = None if only in named else only

    def embedding(self, model_id: Any, base_id: str, *, is_listed: bool) -> ModelChoice:
        """Resolve the embedding model that a base names, or the one that the user names for bases without one."""
        raw = self._raw(model_id)
        spare = self._of_unnamed if is_listed else self._of_unlisted
        if raw is None and spare is not None and base_id not in self._word.mapped:
            raw = {"id": spare}
        choice = self._models.embedding(raw, base_id)
        if raw is None and choice.id is None:
            return replace(choice, problem=_NAMES_NONE.format(base=base_id))
        return choice

    def rerank(self, model_id: Any, base_id: str) -> ModelChoice:
        """Resolve the rerank model that a base names."""
        return self._models.rerank(self._raw(model_id), base_id)

    def unused_overrides(self) -> Iterator[Notice]:
        """Say which of the user's words met no base."""
        return self._models.unused_overrides()

    def _raw(self, model_id: Any) -> dict[str, Any] | None:
        """Return a model as the shared rules read it; None where none is named."""
        return None if is_blank(model_id) else _raw_model(self._rows.get(model_id, {"id": model_id}))


def _providers(catalog: StoredCatalog) -> list[dict[str, Any]] | None:
    """Return providers with their models; None where the catalog has no table of either."""
    if catalog.providers is None and catalog.models is None:
        return None
    found: dict[str, dict[str, Any]] = {}
    for row in catalog.providers or ():
        provider = str(row.get("provider_id"))
        found[provider] = {"id": provider, "name": row.get("name"), "enabled": row.get("is_enabled") != 0, "models": []}
    for row in catalog.models or ():
        raw = _raw_model(row)
        provider = str(row.get("provider_id") or str(raw["id"]).partition(SEPARATOR)[0])
        entry = found.setdefault(provider, {"id": provider, "name": None, "enabled": True, "models": []})
        entry["models"].append(raw)
    return list(found.values())


def _raw_model(row: Row) -> dict[str, Any]:
    whole = str(row.get("id"))
    model = whole if is_model_id(whole) else row.get("model_id") or whole
    return {"id": model, "provider": row.get("provider_id"), "name": row.get("name"), "group": row.get("group")}


def _unique(raw: dict[str, Any] | None) -> str | None:
    if raw is None:
        return None
    model = str(raw["id"])
    return tidy_model_id(model if SEPARATOR in model else f"{raw['provider']}{SEPARATOR}{model}")


def draft_library(source: Located, model_overrides: ModelOverrides, *, texts: bool = False) -> LibraryDraft:
    """Draft every base of a source that is not in the v2 layout.

    Args:
        source: a source with stores of preview builds.
        model_overrides: what the user says of models.
        texts: whether rows are carried for their text alone, too.
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
            _catalog_notice(tr("{name} {reason}; bases and items are known from their rows", name=name, reason=reason))
        ]
    if catalog.items is None:
        return catalog, [
            _catalog_notice(tr("{name} has no table `knowledge_item`; items are known from their rows", name=name))
        ]
    return catalog, []


def _catalog_notice(message: str) -> Notice:
    return Notice(code=notices.CATALOG_UNREADABLE, message=message)


class _Drafter:
    """Drafts the bases of one source, one after the other; used once."""

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
        """Draft bases in the catalog's order, then in that of the stores' names."""
        stores = {self._id_of(store): store for store in self._source.stores.preview}
        current = {str(store.base_id): store for store in self._source.stores.current}
        there = stores.keys() | current.keys()
        rows = [] if self._catalog is None else self._catalog.bases
        for row in rows:
            if self._source.stores.is_whole or row.get("id") in there:
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
        """Return a base's id: by its place, else as its rows say, else one that follows from the file's name."""
        if store.base_id is not None:
            # A folder's name need not be UTF-8; no catalog has such an id.
            is_text = replace_surrogates(store.base_id) == store.base_id
            return store.base_id if is_text else identity.base_id(store.base_id)
        with StoreItems(self._source.tree, store.name, texts=self._texts) as told:
            return told.contents.collection or identity.base_id(PurePosixPath(store.name).stem)

    def _draft_row(self, row: Row, stores: dict[str, StoreFile], current: dict[str, StoreFile]) -> None:
        base_id = row.get("id")
        if not isinstance(base_id, str) or is_blank(base_id):
            self._skip(None, notices.INVALID_BASE, notices.CODES[notices.INVALID_BASE].meaning)
        elif base_id in self._seen:
            self._skip(base_id, notices.DUPLICATE_BASE, notices.CODES[notices.DUPLICATE_BASE].meaning)
        elif base_id in current:
            self._skip_current(base_id, current[base_id])
        elif current and base_id not in stores and row.get("status") == "failed":
            # What v2's own upgrade could not carry has no store at all, and is no preview build's.
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
        rest = tr("; rows of a preview build lie unused in its file") if leaves_rows else ""
        message = tr("{base_id} is in the v2 layout already and stays where it is{rest}", base_id=base_id, rest=rest)
        self._skip(base_id, notices.CURRENT_LAYOUT, message)

    def _skip(self, base_id: str | None, reason: str, message: str) -> None:
        items = 0 if self._catalog is None else len((self._catalog.items or {}).get(base_id, ()))
        self.skipped.append(SkippedBase(base_id, reason, items))
        self.found_notices.append(Notice(code=reason, message=message, base=base_id))

    # --- one base --------------------------------------------------------------------------------------------------

    def _draft_base(self, row: Row, base_id: str, store: StoreFile, *, is_listed: bool) -> BaseDraft:
        """Draft a base of the catalog, or one without a row there, of which nothing but its id is known."""
        found_notices: list[Notice] = []
        settings, invalid = read_base_settings(row)
        if invalid:
            text = tr("not valid: {invalid}", invalid=join_list(invalid))
            found_notices.append(Notice(code=notices.INVALID_CONFIG, message=text, base=base_id, count=len(invalid)))
        processor = row.get("file_processor_id")
        processor = None if is_blank(processor) else str(processor)
        names = FreeNames(reserve_processed=processor is not None)
        with StoreItems(self._source.tree, store.name, texts=self._texts) as told:
            drafted = self._items(base_id, store, told, names)
            dimensions = read_whole_number(row.get("dimensions"), minimum=1)
            if dimensions is None and not (is_listed and store.look.has_rows):
                dimensions = told.declared_dimensions
            embedding = self._embedding(row, base_id, told, is_listed=is_listed)
        if drafted.renamed:
            text = tr("{files} got another name because theirs was taken", files=format_count(drafted.renamed, "file"))
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
            notices=(*found_notices, *_dropped(row, base_id), *embedding.notices, *rerank.notices, *drafted.notices),
            dimensions_if_empty=dimensions,
        )

    def _items(self, base_id: str, store: StoreFile, told: StoreItems, names: FreeNames) -> DraftedItems:
        place = BaseContext(
            base_id=base_id, raw=RawFiles(self._source.tree, store.raw), paths=RawPaths(names), rows=told
        )
        listed = None if self._catalog is None else self._catalog.items
        if listed is None or (base_id not in listed and not self._is_in_catalog(base_id)):
            return draft_stored_items(told, place, self._migrated)
        return draft_listed_items(listed.get(base_id, ()), place, self._migrated)

    def _is_in_catalog(self, base_id: str) -> bool:
        return self._catalog is not None and any(row.get("id") == base_id for row in self._catalog.bases)

    def _embedding(self, row: Row, base_id: str, told: StoreItems, *, is_listed: bool) -> ModelChoice:
        choice = self.models.embedding(row.get("embedding_model_id"), base_id, is_listed=is_listed)
        if choice.id is None and told.problem:
            # A model alone would not bring it back.
            return replace(
                choice,
                problem=tr("{problem}; and its index file {problem2}", problem=choice.problem, problem2=told.problem),
            )
        return choice


def _folder_name(base_id: str) -> str:
    """Return the base's id in the library: its own, unless that is no name of a folder on every system."""
    # What the ledger calls otherwise is no name of a base.
    is_one = is_folder_name(base_id) and fold_name(base_id) not in (CATALOG_SUBJECT, REPORT_SUBJECT)
    return base_id if is_one and base_id == trim(base_id) else identity.base_id(base_id)


def _name(row: Row, base_id: str, found_notices: list[Notice]) -> str:
    name: Any = row.get("name")
    text = trim(without_nul(name)) if isinstance(name, str) else ""
    if not text:
        found_notices.append(Notice(code=notices.BLANK_NAME, message=tr("the base is called by its id"), base=base_id))
    return text or base_id


def _dropped(row: Row, base_id: str) -> list[Notice]:
    """Name what a library has no place for: the group, and that the catalog calls the base failed."""
    found_notices = []
    if not is_blank(row.get("group_id")):
        found_notices.append(
            Notice(code=notices.DROPPED_FIELD, message=tr("group: {group_id}", group_id=row["group_id"]), base=base_id)
        )
    if row.get("status") == "failed":
        text = tr("status: failed ({get}); it follows from what can be carried now", get=row.get("error"))
        found_notices.append(Notice(code=notices.DROPPED_FIELD, message=text, base=base_id))
    return found_notices
