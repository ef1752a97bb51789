"""Drafts: what becomes of bases and items as far as a source's state tells, before a vector file is opened.

Every journey makes these of its own state. Times are milliseconds; None stands for the run's own time.
"""

from __future__ import annotations

from dataclasses import dataclass

from migrators.stages.models import ModelChoice
from regraft.notices import Notice

DEFAULT_CHUNK_SIZE = 1024
DEFAULT_CHUNK_OVERLAP = 200


@dataclass(frozen=True)
class Settings:
    """How a base cuts and finds text, valid by the catalog's rules."""

    chunk_size: int = DEFAULT_CHUNK_SIZE
    chunk_overlap: int = DEFAULT_CHUNK_OVERLAP
    threshold: float | None = None
    document_count: int | None = None


@dataclass(frozen=True)
class Upload:
    """An uploaded file: its name in a folder of the source (None: the source's folder of uploads)."""

    name: str
    folder: str | None = None


@dataclass(frozen=True)
class ItemDraft:
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
    #: The entries of a directory's ``uniqueIds`` that are text and not blank, in order, repeats too.
    entries: tuple[str, ...] = ()


@dataclass(frozen=True)
class SkippedItem:
    """An item that is not migrated, and why."""

    legacy_id: str | None
    reason: str


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
    items: tuple[ItemDraft, ...]
    skipped_items: tuple[SkippedItem, ...]
    #: Keys of the names in ``raw/`` that the files of this base have taken.
    taken_names: frozenset[str]
    vector_file: str
    notices: tuple[Notice, ...]


@dataclass(frozen=True)
class SkippedBase:
    """A base that is not migrated, and why."""

    legacy_id: str | None
    reason: str
    items: int


@dataclass(frozen=True)
class LibraryDraft:
    """Every base of a source, in v1's order, and those that are not migrated."""

    bases: tuple[BaseDraft, ...]
    skipped: tuple[SkippedBase, ...]
    notices: tuple[Notice, ...]
