"""Drafts of the bases of preview builds: those that a catalog lists, then those that only their stores tell of.

Rules: ``docs/formats/preview.md``, "What becomes of it". No clock; nothing but the source is read.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from migrators.cherry_preview.base_models import BaseModels
from migrators.cherry_preview.catalog_items import draft_items
from migrators.cherry_preview.item_data import Place, RawFiles, RawPaths
from migrators.cherry_preview.store_items import StoreItems, draft_stored_items
from migrators.pipeline.drafts import BaseDraft, DraftedItems, LibraryDraft, SkippedBase
from migrators.pipeline.entries import CATALOG, REPORT
from regraft import identity
from regraft.errors import SourceUnreadable
from regraft.formats.cherry_preview.libsql import Layout, Look
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row, StoredCatalog, read_catalog
from regraft.formats.cherry_v2.layout import INDEX_FILE, RAW_FOLDER, Store
from regraft.formats.cherry_v2.models import ModelChoice, ModelOverrides
from regraft.formats.cherry_v2.settings import read_base_settings
from regraft.formats.cherry_v2.values import read_time, whole_number
from regraft.language import joined, tr
from regraft.locate import Located
from regraft.names import FreeNames, fold, is_folder_name
from regraft.records import replace
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import counted, is_blank, trim, whole, without_nul
from regraft.tree import join


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
        (*message, *models.notices, *drafter.found_notices, *models.unused_words()),
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

    def _draft_unlisted(self, stores: dict[str, Store], current: dict[str, Store]) -> None:
        for base_id, store in current.items():
            if base_id not in self._seen:
                self._skip_current(base_id, store)
        for base_id, store in stores.items():
            if base_id not in self._seen:
                self._seen.add(base_id)
                self.drafts.append(self._draft_base({"id": base_id}, base_id, store, is_listed=False))

    def _id_of(self, store: Store) -> str:
        """Return a base's id: by its place, else as its rows say, else one that follows from the file's name."""
        if store.base_id is not None:
            # A folder's name need not be UTF-8; no catalog has such an id.
            is_text = whole(store.base_id) == store.base_id
            return store.base_id if is_text else identity.base_id(store.base_id)
        with StoreItems(self._source.tree, store.name, texts=self._texts) as told:
            return told.contents.collection or identity.base_id(PurePosixPath(store.name).stem)

    def _draft_row(self, row: Row, stores: dict[str, Store], current: dict[str, Store]) -> None:
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
            folder = join(self._source.stores.bases, _folder_name(base_id))
            missing = Store(
                base_id=base_id, name=join(folder, INDEX_FILE), raw=join(folder, RAW_FOLDER), look=Look(Layout.OTHER)
            )
            self.drafts.append(self._draft_base(row, base_id, stores.get(base_id, missing), is_listed=True))

    def _skip_current(self, base_id: str, store: Store | None) -> None:
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

    def _draft_base(self, row: Row, base_id: str, store: Store, *, is_listed: bool) -> BaseDraft:
        """Draft a base of the catalog, or one without a row there, of which nothing but its id is known."""
        found_notices: list[Notice] = []
        settings, invalid = read_base_settings(row)
        if invalid:
            text = tr("not valid: {invalid}", invalid=joined(invalid))
            found_notices.append(Notice(code=notices.INVALID_CONFIG, message=text, base=base_id, count=len(invalid)))
        processor = row.get("file_processor_id")
        processor = None if is_blank(processor) else str(processor)
        names = FreeNames(reserve_processed=processor is not None)
        with StoreItems(self._source.tree, store.name, texts=self._texts) as told:
            drafted = self._items(base_id, store, told, names)
            dimensions = whole_number(row.get("dimensions"), minimum=1)
            if dimensions is None and not (is_listed and store.look.has_rows):
                dimensions = told.declared_dimensions
            embedding = self._embedding(row, base_id, told, is_listed=is_listed)
        if drafted.renamed:
            text = tr("{files} got another name because theirs was taken", files=counted(drafted.renamed, "file"))
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

    def _items(self, base_id: str, store: Store, told: StoreItems, names: FreeNames) -> DraftedItems:
        place = Place(base_id=base_id, raw=RawFiles(self._source.tree, store.raw), paths=RawPaths(names), rows=told)
        listed = None if self._catalog is None else self._catalog.items
        if listed is None or (base_id not in listed and not self._is_in_catalog(base_id)):
            return draft_stored_items(told, place, self._migrated)
        return draft_items(listed.get(base_id, ()), place, self._migrated)

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
    is_one = is_folder_name(base_id) and fold(base_id) not in (CATALOG, REPORT)
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
