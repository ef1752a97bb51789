"""Migration of Cherry Studio's preview builds: one table per base becomes an index per base and a catalog.

Rules: ``docs/formats/preview.md``, "What becomes of it". Ids have the form of v2 already and are kept. :mod:`.draft`
makes drafts of bases and items, with and without a catalog.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from migrators.cherry_preview.draft import draft_library
from migrators.pipeline.source import BaseDraft, LibraryDraft, Options, Pipeline
from regraft.formats import cherry_preview
from regraft.stores.locate import Located


def _read(source: Located, options: Options) -> LibraryDraft:
    """Draft all bases of a source."""
    return draft_library(source, options.model_overrides, texts=options.carry_text)


def _open_source(path: Path, work: Path | None, _: Options, __: BaseDraft) -> AbstractContextManager[Path]:
    """Open a store in a form that SQLite reads: the file itself, or a temporary copy."""
    return cherry_preview.readable_copy(path, work)


PIPELINE = Pipeline(table=cherry_preview.PREVIEW_VECTORS, read=_read, opened=_open_source)
