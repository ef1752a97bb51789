"""What the shared stages need to know of the layout that they come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import msgspec

from migrators.pipeline.packed import Packed
from regraft.formats.cherry_v2.catalog import MAX_NOTE_UNITS
from regraft.formats.cherry_v2.models import ModelChoice, ModelOverrides
from regraft.formats.cherry_v2.settings import Settings
from regraft.formats.vector_survey import SalvageTally, VectorSurvey
from regraft.formats.vector_table import VectorTable
from regraft.identity import replace
from regraft.language import tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.stores.locate import Located
from regraft.text import utf16_cut, utf16_len

# Drafts: what becomes of bases and items as far as a source's state tells, before a vector file is opened.
#
# Every journey makes these of its own state. Times are milliseconds; None stands for the run's own time.


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


class ItemContent(msgspec.Struct):
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


# What a user can ask of this migration.


class Options(msgspec.Struct, frozen=True):
    """Everything that a command line or a program can say besides source and target.

    ``bases`` are v1 or v2 ids (empty: all); ``now_ms`` is the run's time; ``jobs`` None means as many as pay.
    """

    now_ms: int
    model_overrides: ModelOverrides = msgspec.field(default_factory=ModelOverrides)
    bases: tuple[str, ...] = ()
    jobs: int | None = None
    dry_run: bool = False
    #: Read a profile although its application is running.
    while_running: bool = False
    #: Give files that v1 left without rows the rows of a file with the same bytes.
    restore_duplicates: bool = True
    #: Carry the texts of rows that have no vector which could be carried.
    carry_text: bool = False
    #: Carry the rows of damaged vector files that prove themselves (``docs/salvage.md``).
    salvage: bool = False
    #: Of a source whose documents are for some people only: whose, besides everybody's, are carried.
    visible_to: tuple[str, ...] = ()
    #: Make a base of each vector file that v1's state does not name.
    adopt_orphans: bool = False
    #: Read back every byte that earlier runs published, also where size and time of a file are what they were.
    verify: bool = False


class Duplicate(msgspec.Struct, frozen=True):
    """A file without rows of its own whose bytes are those of another file of the base, which has rows.

    ``loader_id`` is the loader without rows, ``like`` a loader of the file that it equals. ``name`` and ``like_name``
    are what a person calls the two; ``path`` is the first one's path where it lies in a folder on disk.

    ``item`` and ``like_item`` are the ids of the items whose uploads were compared, empty for files of folders. Of
    these, ``read_at`` and ``like_read_at`` are when v1 read them (ms, None where nobody knows); ``changed`` tells
    whether one of them may have been changed since.
    """

    loader_id: str
    like: str
    name: str
    like_name: str
    path: str = ""
    item: str = ""
    like_item: str = ""
    read_at: int | None = None
    like_read_at: int | None = None
    changed: bool = False


class FoundOnDisk(msgspec.Struct, frozen=True):
    """What a run found on disk, kept for a later one that finds the folder or the upload gone."""

    #: Paths of files on disk, by loader id.
    paths: dict[str, str] = msgspec.field(default_factory=dict)
    twins: tuple[Duplicate, ...] = ()


class Hints(msgspec.Struct, frozen=True):
    """What files beside the state and the vector file tell of a base. They make it better and are no condition."""

    #: Paths of files on disk, by loader id.
    paths: dict[str, str] = msgspec.field(default_factory=dict)
    #: Files whose rows v1 never stored, because another file of the base has the same bytes.
    twins: tuple[Duplicate, ...] = ()
    #: Whether they get the rows of those files; else it is only said.
    restore_twins: bool = True
    notices: tuple[Notice, ...] = ()

    def with_earlier(self, found: FoundOnDisk) -> Hints:
        """Return these hints with what an earlier run found and this one did not."""
        known = {(twin.loader_id, twin.item) for twin in self.twins}
        earlier = (twin for twin in found.twins if (twin.loader_id, twin.item) not in known)
        return replace(self, paths={**found.paths, **self.paths}, twins=(*self.twins, *earlier))


class Salvager(Protocol):
    """What reads a damaged vector file of a layout."""

    #: How the temporary file is read that it gives.
    table: VectorTable

    def __call__(
        self, path: Path, work: Path | None, draft: BaseDraft, *, keep: bool
    ) -> AbstractContextManager[tuple[Path | None, SalvageTally]]:
        """Give a temporary file with what is left, and what that comes to; with ``keep`` False only the latter.

        Raises:
            StoreProblem: nothing of it is in the form of such a file.
            WorkFolderTooSmall, apsw.Error, OSError
        """

    def doubt(self, path: Path, work: Path | None) -> str | None:
        """Return what contradicts the rows of a file that SQLite reads, for a person; None where nothing does.

        Raises:
            apsw.Error, OSError: it cannot be read, or there is no room.
        """


def _as_it_is(path: Path, _work: Path | None, _options: Options) -> AbstractContextManager[Path]:
    return nullcontext(path)


class Pipeline(msgspec.Struct, frozen=True):
    """One layout as a source: where its rows are, how its state becomes drafts, and what else it can tell.

    ``read`` may raise any :class:`regraft.errors.RegraftError` of reading a source.
    """

    table: VectorTable
    read: Callable[[Located, Options], LibraryDraft]
    hints: Callable[[Located, BaseDraft, VectorSurvey, Options], Hints]
    #: Gives a file on disk in a form that SQLite reads: itself, or a temporary copy below a folder.
    opened: Callable[[Path, Path | None, Options], AbstractContextManager[Path]] = _as_it_is
    #: Reads a damaged vector file page by page; None where nothing is known of such.
    salvager: Salvager | None = None
    #: Whether documents of the source are for some people only (``--visible-to``).
    has_visibility: bool = False
    #: Whether it can have vector files that its state does not name (``--adopt-orphans``).
    has_orphans: bool = False
    #: Whether the base of every source has one id: then another source's is never written over.
    shares_ids: bool = False
