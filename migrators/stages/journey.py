"""What the shared stages need to know of the layout that they come from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from migrators.stages.drafts import BaseDraft, LibraryDraft
from migrators.stages.options import Options
from regraft.formats.vector_table import Survey, VectorTable
from regraft.locate import Located
from regraft.notices import Notice


@dataclass(frozen=True)
class Twin:
    """A file without rows of its own whose bytes are those of another file of the base, which has rows.

    ``loader_id`` is the loader without rows, ``like`` a loader of the file that it equals. ``name`` and ``like_name``
    are what a person calls the two; ``path`` is the first one's path where it lies in a folder on disk.
    """

    loader_id: str
    like: str
    name: str
    like_name: str
    path: str = ""


@dataclass(frozen=True)
class Hints:
    """What files beside the state and the vector file tell of a base. They make it better and are no condition."""

    #: Paths of files on disk, or readable names, by loader id.
    paths: dict[str, str] = field(default_factory=dict)
    #: Files whose rows v1 never stored, because another file of the base has the same bytes.
    twins: tuple[Twin, ...] = ()
    #: Whether they get the rows of those files; else it is only said.
    restore_twins: bool = True
    notices: tuple[Notice, ...] = ()


def _as_it_is(path: Path, _work: Path | None) -> AbstractContextManager[Path]:
    return nullcontext(path)


@dataclass(frozen=True)
class Journey:
    """One layout as a source: where its rows are, how its state becomes drafts, and what else it can tell.

    ``read`` may raise any :class:`regraft.errors.RegraftError` of reading a source.
    """

    table: VectorTable
    read: Callable[[Located, Options], LibraryDraft]
    hints: Callable[[Located, BaseDraft, Survey, Options], Hints]
    #: Gives a file on disk in a form that SQLite reads: itself, or a temporary copy below a folder.
    opened: Callable[[Path, Path | None], AbstractContextManager[Path]] = _as_it_is
