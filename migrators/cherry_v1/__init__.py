"""Cherry Studio v1 → v2: one flat vector table per base plus a Redux state become seven tables plus a catalog.

Rules: ``docs/rules.md``. :mod:`.draft` and :mod:`.items` make drafts of v1's state, :mod:`.on_disk`
finds what files beside it tell; the shared stages do the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from migrators.cherry_v1.disk_hints import hints
from migrators.cherry_v1.draft import draft_library
from migrators.pipeline.drafts import BaseDraft, LibraryDraft
from migrators.pipeline.options import Options
from migrators.pipeline.source import Pipeline
from regraft.formats.cherry_v1 import embedjs, salvage
from regraft.formats.cherry_v1.state import read_state
from regraft.formats.salvage_tally import SalvageTally
from regraft.locate import Located


def _read(source: Located, options: Options) -> LibraryDraft:
    return draft_library(read_state(source.tree, source.places), options.model_overrides)


class _Salvager:
    """Reads damaged vector files of v1."""

    table = salvage.TABLE

    @contextmanager
    def __call__(
        self, path: Path, work: Path | None, draft: BaseDraft, *, keep: bool
    ) -> Iterator[tuple[Path | None, SalvageTally]]:
        known = {loader for item in draft.items for loader in (*item.loader_ids, *item.entries)}
        with salvage.salvaged(path, work, known=known, dimensions=draft.stated_dimensions, keep=keep) as left:
            yield left.path, left.tally


PIPELINE = Pipeline(table=embedjs.VECTORS, read=_read, hints=hints, salvager=_Salvager())
