"""What the shared stages need to know of the layout that they come from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import msgspec

from migrators.pipeline.drafts import BaseDraft, LibraryDraft
from migrators.pipeline.options import Options
from regraft.formats.salvage_tally import SalvageTally
from regraft.formats.vector_survey import Survey
from regraft.formats.vector_table import VectorTable
from regraft.locate import Located
from regraft.records import replace
from regraft.report.notices import Notice


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


class Found(msgspec.Struct, frozen=True):
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

    def with_earlier(self, found: Found) -> Hints:
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
    hints: Callable[[Located, BaseDraft, Survey, Options], Hints]
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
