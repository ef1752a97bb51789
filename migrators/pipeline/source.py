"""The interface between a source layout and the shared stages: options, drafts, hints, and the :class:`Pipeline`.

A layout turns its state into drafts: its bases and items as far as the state describes them, before a vector file is
opened. Times are milliseconds; None means the time of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
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
from regraft.ledger.values import RecordedAction
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.stores.locate import Located
from regraft.text import utf16_cut, utf16_len

#: Error codes of the catalog. Free text from v1 that equals one of them must not be taken for a code.
ERROR_CODES = frozenset({"directory_not_migrated", "indexing_interrupted"})
#: Errors of items that v1 left unfinished without a reason. Readers of the catalog know these texts.
FAILED_TEXT = "Legacy knowledge item indexing failed."
INTERRUPTED_TEXT = "Legacy knowledge item indexing was interrupted and needs to be retried."


class Upload(msgspec.Struct, frozen=True):
    """An uploaded file: its name in a folder of the source (None: the source's folder for uploads).

    ``other_name`` is used if no file has the name.
    """

    name: str
    folder: str | None = None
    other_name: str | None = None


class ItemDraft(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One item as the source's state describes it.

    ``data`` is the ``data`` of the catalog without paths that are only known once the item is written.
    """

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
    #: The file name that an upload should get in ``raw/``; the plan makes it unique. None if ``data`` holds the final
    #: path.
    file_name: str | None = None
    #: Loader ids of a directory's files: the entries of ``uniqueIds`` that are text and not blank, in order, with
    #: repeats.
    entries: tuple[str, ...] = ()
    #: Id of the folder that the item is in, if the source lists the files of folders as items.
    group_id: str | None = None
    #: Whether the source lists the files of this directory as items.
    is_listed: bool = False

    @property
    def is_to_expand(self) -> bool:
        """Whether this is a folder that is replaced by its files as items.

        If none of them has rows, it stays one failed item.
        """
        return self.type == "directory" and self.status == "completed" and not self.is_listed


class ItemContent(msgspec.Struct):
    """The converted content of an item: its ``data``, its upload, and notices about the conversion."""

    data: dict[str, str]
    upload: Upload | None = None
    notices: list[Notice] = msgspec.field(default_factory=list)
    renamed: bool = False
    file_name: str | None = None


def cut_note(text: str, base: str | None = None, item: str | None = None) -> tuple[str, list[Notice]]:
    """Cut the text of a note to the length that v2 allows; return it, and a notice if it was longer.

    ``base`` and ``item`` are the v1 ids that the notice names.
    """
    length = utf16_len(text)
    if length <= MAX_NOTE_UNITS:
        return text, []
    message = tr("{length:,} UTF-16 units cut to {max_note_units:,}", length=length, max_note_units=MAX_NOTE_UNITS)
    return utf16_cut(text, MAX_NOTE_UNITS), [Notice(code=notices.NOTE_CUT, message=message, base=base, item=item)]


class SkippedItem(msgspec.Struct, frozen=True):
    """An item that is not migrated, and the reason."""

    legacy_id: str | None
    reason: str
    #: Loader ids whose rows are skipped for the same reason, unless another item owns them.
    loader_ids: tuple[str, ...] = ()


class DraftedItems(msgspec.Struct):
    """Collects the items of one base while they are drafted."""

    items: Packed[ItemDraft] = msgspec.field(default_factory=lambda: Packed(ItemDraft))
    skipped: list[SkippedItem] = msgspec.field(default_factory=list)
    notices: list[Notice] = msgspec.field(default_factory=list)
    renamed: int = 0


@dataclass(frozen=True)
class BaseDraft:
    """One base as the source's state describes it."""

    legacy_id: str
    id: str
    name: str
    #: The embedding model and its catalog rows. A model that could not be resolved has None as ``model``.
    embedding: ModelChoice
    rerank: ModelChoice
    #: ``dimensions`` according to the state. Not trusted; only used for a base without a model.
    stated_dimensions: int | None
    file_processor_id: str | None
    settings: Settings
    created_at: int | None
    updated_at: int | None
    items: Sequence[ItemDraft]
    skipped_items: tuple[SkippedItem, ...]
    #: Folded names in ``raw/`` that items with a final path have taken.
    taken_names: frozenset[str]
    vector_file: str
    notices: tuple[Notice, ...]
    #: Dimensions of the base if its vector file exists and is empty; None if an empty file makes it a failed base.
    dimensions_if_empty: int | None = None

    @cached_property
    def folders(self) -> tuple[ItemDraft, ...]:
        """Items that are folders. Cached, because they are few and needed often."""
        return tuple(item for item in self.items if item.type == "directory")


class SkippedBase(msgspec.Struct, frozen=True):
    """A base that is not migrated, and the reason."""

    legacy_id: str | None
    reason: str
    items: int


class LibraryDraft(msgspec.Struct, frozen=True):
    """All bases of a source, in the order of the source, and those that are not migrated."""

    bases: tuple[BaseDraft, ...]
    skipped: tuple[SkippedBase, ...]
    notices: tuple[Notice, ...]
    #: further words that select a base, with the id of the base in the source
    words: Mapping[str, str] = MappingProxyType({})


# --- options -------------------------------------------------------------------------------------------------------


class Options(msgspec.Struct, frozen=True):
    """Options of a migration, without source and target.

    ``bases`` are v1 or v2 ids (empty: all). ``now_ms`` is the time of the run. ``jobs`` is the number of processes
    (None: chosen by the size of the bases).
    """

    now_ms: int
    model_overrides: ModelOverrides = msgspec.field(default_factory=ModelOverrides)
    bases: tuple[str, ...] = ()
    jobs: int | None = None
    dry_run: bool = False
    #: Read a profile although its application is running.
    while_running: bool = False
    #: Give files that v1 left without rows the rows of an identical file.
    restore_duplicates: bool = True
    #: Migrate the text of rows that have no usable vector.
    carry_text: bool = False
    #: Migrate rows of damaged vector files that can be proven (``docs/salvage.md``).
    salvage: bool = False
    #: Users whose documents are migrated in addition to public ones, for sources with per-user documents.
    visible_to: tuple[str, ...] = ()
    #: Create a base for each vector file that v1's state does not name.
    adopt_orphans: bool = False
    #: Read every byte that earlier runs published, even if size and time of a file are unchanged.
    verify: bool = False
    #: Recorded in the ledger of the target with the run.
    recorded: tuple[RecordedAction, ...] = ()


class Duplicate(msgspec.Struct, frozen=True):
    """A pair of identical files of a base: the first without rows of its own, the second with rows.

    ``loader_id`` is the loader id without rows, ``like`` one of the identical file. ``name`` and ``like_name`` are
    display names. ``path`` is the path on disk of the first file if it is in a folder.

    ``item`` and ``like_item`` are the ids of the items whose uploads were compared, empty for files of folders. For
    these, ``read_at`` and ``like_read_at`` are the times at which v1 read them (ms, None if unknown), and ``changed``
    tells whether one of them may have been changed since.
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
    """Facts that a run found on disk. Later runs use them if the folder or the upload is gone."""

    #: Paths of files on disk, by loader id.
    paths: dict[str, str] = msgspec.field(default_factory=dict)
    twins: tuple[Duplicate, ...] = ()


class Hints(msgspec.Struct, frozen=True):
    """Optional facts about a base from other files of the source. They improve the plan but are never required."""

    #: Paths of files on disk, by loader id.
    paths: dict[str, str] = msgspec.field(default_factory=dict)
    #: Files whose rows v1 never stored because another file of the base has the same bytes.
    twins: tuple[Duplicate, ...] = ()
    #: Whether these files get the rows of the identical file. Else they are only reported.
    restore_twins: bool = True
    notices: tuple[Notice, ...] = ()

    def with_earlier(self, found: FoundOnDisk) -> Hints:
        """Add facts that an earlier run found on disk and this one did not. Return the result."""
        known = {(twin.loader_id, twin.item) for twin in self.twins}
        earlier = (twin for twin in found.twins if (twin.loader_id, twin.item) not in known)
        return replace(self, paths={**found.paths, **self.paths}, twins=(*self.twins, *earlier))


class Salvager(Protocol):
    """Reads damaged vector files of a layout."""

    #: The table in the temporary file.
    table: VectorTable

    def __call__(
        self, path: Path, work: Path | None, draft: BaseDraft, *, keep: bool
    ) -> AbstractContextManager[tuple[Path | None, SalvageTally]]:
        """Write the readable rows of a vector file to a temporary file and count what was found.

        ``work`` is the folder for the file, the system's by default. With ``keep`` False, rows are only counted and
        there is no path.

        Raises:
            StoreProblem: nothing in the file has the form of a vector file.
            WorkFolderTooSmall, apsw.Error, OSError
        """

    def doubt(self, path: Path, work: Path | None) -> str | None:
        """Describe, for a person to read, a contradiction in a file that SQLite can read; else return None.

        Raises:
            apsw.Error, OSError: the file cannot be read, or there is not enough space.
        """


class Pipeline(msgspec.Struct, frozen=True):
    """A source layout: its vector table, how its state becomes drafts, and its optional features.

    ``read`` may raise any :class:`regraft.errors.RegraftError` of reading a source.
    """

    table: VectorTable
    read: Callable[[Located, Options], LibraryDraft]
    #: Finds facts about a base outside of the state and the vector file.
    hints: Callable[[Located, BaseDraft, VectorSurvey, Options], Hints] = lambda *_: Hints()
    #: Opens the vector file of a base in a form that SQLite reads: the file itself, or a temporary copy in a folder.
    opened: Callable[[Path, Path | None, Options, BaseDraft], AbstractContextManager[Path]] = lambda path, *_: (
        nullcontext(path)
    )
    #: Reads damaged vector files page by page; None if the layout does not support it.
    salvager: Salvager | None = None
    #: Whether the source has documents of single users (``--visible-to``).
    has_visibility: bool = False
    #: Whether the source can have vector files that its state does not name (``--adopt-orphans``).
    has_orphans: bool = False
    #: Whether all sources have the same base id. A base of another source is then never overwritten.
    shares_ids: bool = False
