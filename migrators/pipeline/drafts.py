"""Drafts: what becomes of bases and items as far as a source's state tells, before a vector file is opened.

Every journey makes these of its own state. Times are milliseconds; None stands for the run's own time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from migrators.pipeline.packed import Packed
from regraft.formats.cherry_v2.catalog import MAX_NOTE_UNITS
from regraft.formats.cherry_v2.defaults import Settings
from regraft.formats.cherry_v2.models import ModelChoice
from regraft.language import tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import utf16_cut, utf16_len

#: Error codes of the catalog: v1's free text must never be taken for one.
ERROR_CODES = frozenset({"directory_not_migrated", "indexing_interrupted"})
#: The errors of items that v1 left unfinished without saying why. The catalog's readers know these texts.
FAILED_TEXT = "Legacy knowledge item indexing failed."
INTERRUPTED_TEXT = "Legacy knowledge item indexing was interrupted and needs to be retried."


class Upload(msgspec.Struct, frozen=True):
    """An uploaded file: its name in a folder of the source (None: the source's folder of uploads).

    ``other_name`` is where else it may be, looked at where nothing has the name.
    """

    name: str
    folder: str | None = None
    other_name: str | None = None


class ItemDraft(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One item, as far as the state tells. ``data`` is the catalog's, but for paths that only carrying knows."""

    legacy_id: str
    id: str
    type: str
    data: dict[str, str]
    status: str
    error: str | None
    created_at: int | None
    updated_at: int | None
    loader_ids: tuple[str, ...]
    upload: Upload | None = None
    #: What an uploaded file asks to be called in ``raw/``; planning gives it a name that is free there. None where
    #: ``data`` has the final path.
    file_name: str | None = None
    #: The entries of a directory's ``uniqueIds`` that are text and not blank, in order, repeats too.
    entries: tuple[str, ...] = ()
    #: The id of the folder that the item belongs to, where items of one are listed each by itself.
    group_id: str | None = None
    #: Whether a directory's files are items of their own in this source already.
    is_listed: bool = False

    @property
    def is_to_expand(self) -> bool:
        """Tell whether it is a folder whose files become items, or that else stays one failed item."""
        return self.type == "directory" and self.status == "completed" and not self.is_listed


class Content(msgspec.Struct):
    """What becomes of the content of an item: its ``data``, and what is worth saying of it."""

    data: dict[str, str]
    upload: Upload | None = None
    notices: list[Notice] = msgspec.field(default_factory=list)
    renamed: bool = False
    file_name: str | None = None


def cut_note(text: str, base: str | None = None, item: str | None = None) -> tuple[str, list[Notice]]:
    """Return a note's text, cut where it is longer than v2 holds, with a notice then."""
    length = utf16_len(text)
    if length <= MAX_NOTE_UNITS:
        return text, []
    message = tr("{length:,} units are cut to {max_note_units:,}", length=length, max_note_units=MAX_NOTE_UNITS)
    return utf16_cut(text, MAX_NOTE_UNITS), [Notice(code=notices.NOTE_CUT, message=message, base=base, item=item)]


class SkippedItem(msgspec.Struct, frozen=True):
    """An item that is not migrated, and why."""

    legacy_id: str | None
    reason: str
    #: Loaders whose rows are skipped for the item's own reason, unless another item owns them.
    loader_ids: tuple[str, ...] = ()


class DraftedItems(msgspec.Struct):
    """The items of one base, while they are drafted."""

    items: Packed[ItemDraft] = msgspec.field(default_factory=lambda: Packed(ItemDraft))
    skipped: list[SkippedItem] = msgspec.field(default_factory=list)
    notices: list[Notice] = msgspec.field(default_factory=list)
    renamed: int = 0


@dataclass(frozen=True)
class BaseDraft:
    """One v1 base, as far as its state tells."""

    legacy_id: str
    id: str
    name: str
    #: The base's model and what the catalog needs for it; its ``model`` is None where it does not resolve.
    embedding: ModelChoice
    rerank: ModelChoice
    #: ``dimensions`` as Redux has them: never trusted, but all that is known of a base without a model.
    stated_dimensions: int | None
    file_processor_id: str | None
    settings: Settings
    created_at: int | None
    updated_at: int | None
    items: Sequence[ItemDraft]
    skipped_items: tuple[SkippedItem, ...]
    #: Keys of the names in ``raw/`` that items with a final path have taken.
    taken_names: frozenset[str]
    vector_file: str
    notices: tuple[Notice, ...]
    #: Its dimensions where its vector file is there and has no row; None where that makes it a failed base.
    dimensions_if_empty: int | None = None

    @cached_property
    def folders(self) -> tuple[ItemDraft, ...]:
        """Return its folders: they are far fewer than its items, and looked at many times."""
        return tuple(item for item in self.items if item.type == "directory")


class SkippedBase(msgspec.Struct, frozen=True):
    """A base that is not migrated, and why."""

    legacy_id: str | None
    reason: str
    items: int


class LibraryDraft(msgspec.Struct, frozen=True):
    """Every base of a source, in v1's order, and those that are not migrated."""

    bases: tuple[BaseDraft, ...]
    skipped: tuple[SkippedBase, ...]
    notices: tuple[Notice, ...]
