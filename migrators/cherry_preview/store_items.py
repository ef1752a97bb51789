"""What a store itself tells of its items, and items made of that (``docs/formats/preview.md``, "Without a catalog")."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from migrators.cherry_preview.item_data import Place, base_name
from migrators.pipeline.drafts import DraftedItems, ItemDraft, SkippedItem, Upload, cut_note
from regraft.errors import SourceUnreadable
from regraft.formats.cherry_preview import libsql
from regraft.formats.cherry_preview.libsql import PREVIEW, Contents, StoredItem
from regraft.formats.cherry_v2.catalog import MAX_NOTE_UNITS
from regraft.formats.cherry_v2.index import BODY_SEPARATOR
from regraft.formats.vector_survey import StoreProblem, Survey
from regraft.language import tr
from regraft.names import material_name
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.tree import Tree

#: Types of items by what rows call them; anything else is a file.
_TYPES = {"url": "url", "sitemap": "url", "note": "note"}


class StoreItems:
    """A store that is read when it is first asked; what cannot be read is as if it were not there."""

    def __init__(self, tree: Tree, name: str, *, texts: bool = False) -> None:
        """Open nothing yet; ``texts`` says whether rows are carried for their text alone, too."""
        self._tree = tree
        self._texts = texts
        self._name = name
        self._open = ExitStack()
        #: Why the store cannot be read, for a person.
        self.problem = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @cached_property
    def _path(self) -> Path:
        """Return where the store is on disk (an archive's is extracted)."""
        try:
            found = self._open.enter_context(self._tree.local(self._name, None))
        except SourceUnreadable as error:
            raise StoreProblem(tr("cannot be read: {reason}", reason=error.facts["reason"])) from error
        return self._open.enter_context(libsql.readable(found))

    @cached_property
    def contents(self) -> Contents:
        """Return the owners of the store's rows and what the rows say of them."""
        try:
            return libsql.read_contents(self._path)
        except StoreProblem as problem:
            self.problem = str(problem)
            return Contents()

    @cached_property
    def _survey(self) -> Survey:
        return PREVIEW.survey(self._path)

    @property
    def declared_dimensions(self) -> int | None:
        """Return the dimensions that the table is declared with."""
        try:
            return libsql.declared_dimensions(self._path)
        except StoreProblem:
            return None

    def source(self, item_id: str) -> str | None:
        """Return what an item's rows call its source."""
        return self.contents.items.get(item_id, StoredItem()).source

    def text(self, item_id: str) -> str:
        """Return the text that an item's rows make, or at least so much of it as a note can hold and one unit more."""
        try:
            return libsql.carried_text(
                self._path, self._survey, item_id, BODY_SEPARATOR, MAX_NOTE_UNITS, texts=self._texts
            )
        except StoreProblem as problem:
            self.problem = str(problem)
            return ""


def draft_stored_items(told: StoreItems, place: Place, migrated: set[str]) -> DraftedItems:
    """Draft an item for every owner of rows, in the order of their first rows.

    Args:
        told: the base's store.
        place: what the base has.
        migrated: ids of items of all bases so far; those of this base are added.
    """
    drafted = DraftedItems()
    for item_id, stored in told.contents.items.items():
        if item_id in migrated:
            drafted.skipped.append(SkippedItem(item_id, notices.DUPLICATE_ITEM))
            message = notices.CODES[notices.DUPLICATE_ITEM].meaning
            drafted.notices.append(
                Notice(code=notices.DUPLICATE_ITEM, message=message, base=place.base_id, item=item_id)
            )
            continue
        migrated.add(item_id)
        drafted.items.append(_item(item_id, stored, told, place, drafted))
    return drafted


def _item(item_id: str, stored: StoredItem, told: StoreItems, place: Place, drafted: DraftedItems) -> ItemDraft:
    item_type = _TYPES.get(stored.type or "", "file")
    source = stored.source or item_id
    upload: Upload | None = None
    if item_type == "url":
        data = {"source": source, "url": source}
    elif item_type == "note":
        content, cut = cut_note(told.text(item_id), place.base_id, item_id)
        drafted.notices.extend(cut)
        data = {"source": stored.source or content, "content": content}
    else:
        wanted = material_name(base_name(source)) or material_name(item_id)
        name = place.paths.take(wanted)
        drafted.renamed += name != wanted
        data = {"source": source, "relativePath": name}
        upload = place.raw.upload(name)
    return ItemDraft(
        legacy_id=item_id,
        id=item_id,
        type=item_type,
        data=data,
        status="completed",
        error=None,
        created_at=None,
        updated_at=None,
        loader_ids=(item_id,),
        upload=upload,
    )
