"""Migration of Cherry Studio v1: one vector table per base and a Redux state become an index per base and a catalog.

Rules: ``docs/rules.md``. :mod:`.draft` makes drafts from v1's state, :mod:`.orphans` makes bases from vector files that
the state does not name, and :mod:`.file_matching` finds facts in other files of the source.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from migrators.cherry_v1.draft import draft_library
from migrators.cherry_v1.file_matching import collect_hints
from migrators.cherry_v1.orphans import adopt_orphans
from migrators.pipeline.source import BaseDraft, LibraryDraft, Options, Pipeline, Upload
from migrators.pipeline.source_files import find_upload
from regraft.formats.cherry_v1 import layout, salvage
from regraft.formats.cherry_v1.layout import find_vector_file
from regraft.formats.cherry_v1.state import read_state
from regraft.formats.vector_survey import SalvageTally
from regraft.identity import replace
from regraft.stores.locate import Located

#: Number of bytes of an upload that are read to tell whether it is text.
_HEAD_BYTES = 64 << 10


def _read(source: Located, options: Options) -> LibraryDraft:
    """Draft all bases of a v1 source.

    If the options say so, bases are made from vector files that its state does not name.
    """
    state = read_state(source.tree, source.places, ignores_damage=options.adopt_orphans)
    is_binary = partial(_is_binary, source)
    if not options.adopt_orphans:
        return _with_renamed_files(source, draft_library(state, options.model_overrides, is_binary))
    adoption = adopt_orphans(source, state, _SALVAGER if options.salvage else None)
    library = draft_library(adoption.state, adoption.overrides(options.model_overrides), is_binary)
    return _with_renamed_files(source, replace(library, bases=tuple(map(adoption.complete_draft, library.bases))))


def _with_renamed_files(source: Located, library: LibraryDraft) -> LibraryDraft:
    """Set the name of each base's vector file to the one in the source, because a user may have renamed it."""
    folder = source.places.vectors
    if folder is None:
        return library
    named = [
        replace(draft, vector_file=find_vector_file(source.tree, folder, draft.vector_file)) for draft in library.bases
    ]
    return replace(library, bases=tuple(named))


def _is_binary(source: Located, upload: Upload) -> bool:
    """Whether an upload exists and is not text: it holds NUL and has no UTF-16 or UTF-32 byte order mark."""
    name = find_upload(source.tree, source.places.uploads, upload)
    if name is None:
        return False
    try:
        with source.tree.open(name) as file:
            head = file.read(_HEAD_BYTES)
    except (OSError, ValueError):
        return False  # copying the upload reports the error
    return b"\0" in head and not head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE))


class _Salvager:
    """Reads damaged vector files of v1."""

    table = salvage.TABLE

    @contextmanager
    def __call__(
        self, path: Path, work: Path | None, draft: BaseDraft, *, keep: bool
    ) -> Iterator[tuple[Path | None, SalvageTally]]:
        """Write the readable rows of a vector file to a temporary file. Yield its path and counts of what was found.

        ``work`` is the folder for the file. With ``keep`` False, rows are only counted and there is no path.
        """
        known = {loader for item in draft.items for loader in (*item.loader_ids, *item.entries)}
        known.update(loader for item in draft.skipped_items for loader in item.loader_ids)
        with salvage.salvage_file(path, work, known=known, dimensions=draft.stated_dimensions, keep=keep) as left:
            yield left.path, left.tally

    def doubt(self, path: Path, work: Path | None) -> str | None:
        """Describe a contradiction in a file that SQLite can read, or return None."""
        return salvage.find_hidden_damage(path, work)


_SALVAGER = _Salvager()
PIPELINE = Pipeline(table=layout.VECTOR_TABLE, read=_read, hints=collect_hints, has_orphans=True, salvager=_SALVAGER)
