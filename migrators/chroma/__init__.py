"""Migration of a folder of Chroma: each collection becomes a base, and each entry a note with one unit.

Rules: ``docs/chroma.md``, "Migrating". The entries are presented to the shared stages as a table of rows
(:mod:`regraft.formats.chroma.rows`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import apsw

from migrators.pipeline.source import (
    BaseDraft,
    DraftedItems,
    ItemDraft,
    LibraryDraft,
    Options,
    Pipeline,
    SkippedItem,
    cut_note,
)
from regraft import identity
from regraft.errors import SourceUnreadable
from regraft.formats.cherry_v2.models import ModelChoice, ModelResolver
from regraft.formats.cherry_v2.settings import Settings
from regraft.formats.chroma import database, layouts, rows
from regraft.formats.chroma.collection import Origin, open_collection
from regraft.formats.chroma.database import ChromaCollection, ChromaProblem
from regraft.formats.vector_survey import StoreProblem
from regraft.identity import replace
from regraft.language import format_count, join_list, tr
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.stores.systems import Located
from regraft.text import without_nul


def draft_library(source: Located, options: Options) -> LibraryDraft:
    """Draft a base for each collection of a Chroma folder that has entries.

    Raises:
        SourceUnreadable: the database cannot be read.
    """
    path = source.tree.path / database.FILE
    try:
        with database.open_chroma(path) as db:
            collections = database.list_collections(db)
            layout = layouts.read_layout(source.tree.path, collections)
            # ``--map-model`` names a collection by the same words as ``--base``.
            words = layouts.ids_by_word(layout, collections)
            mapped = {words.get(old, old): new for old, new in options.model_overrides.mapped.items()}
            overrides = replace(options.model_overrides, mapped=mapped)
            named = {one.id: database.read_model(db, one) for one in collections}
            providers = sorted({model[0] for model in named.values() if model is not None})
            resolver = ModelResolver(
                [{"id": name, "name": name, "models": []} for name in providers], overrides, [None]
            )
            bases: list[BaseDraft] = []
            unlisted: list[Notice] = []
            for one in collections:
                if not database.count_entries(db, one):
                    unlisted += _notices_of_vectors(db, source.tree.path, one, None)
                    continue
                model = named[one.id]
                raw = None if model is None else {"provider": model[0], "id": model[1]}
                embedding = resolver.embedding(raw, one.id)
                bases.append(_draft_base(db, source.tree.path, one, layout.base_name(one), embedding))
            messages = (*resolver.unused_overrides(), *unlisted)
            return LibraryDraft(bases=tuple(bases), skipped=(), notices=messages, words=words)
    except (ChromaProblem, apsw.Error, OSError, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=path, reason=error) from error


def _draft_base(
    db: apsw.Connection, root: Path, collection: ChromaCollection, name: str, embedding: ModelChoice
) -> BaseDraft:
    """Draft a base from a collection: a note for each entry with a text.

    ``root`` is the folder of the database, ``name`` the name of the base.
    """
    drafted = DraftedItems()
    for entry in database.iterate_entries(db, collection):
        text, cut = cut_note(without_nul(entry.document or ""), collection.id, entry.id)
        drafted.notices += cut
        if not text:
            drafted.skipped.append(SkippedItem(entry.id, notices.NO_DOCUMENT, (entry.id,)))
            continue
        drafted.items.append(
            ItemDraft(
                legacy_id=entry.id,
                id=identity.item_id(collection.id, entry.id, None),
                type="note",
                data={"source": without_nul(rows.source_of(entry.metadata, entry.id)), "content": text},
                status="completed",
                error=None,
                created_at=None,
                updated_at=None,
                loader_ids=(entry.id,),
            )
        )
    drafted.notices += _notices_of_vectors(db, root, collection, collection.id)
    return BaseDraft(
        legacy_id=collection.id,
        id=identity.base_id(collection.id),
        name=name,
        embedding=embedding,
        rerank=ModelChoice(),
        stated_dimensions=collection.dimension if isinstance(collection.dimension, int) else None,
        file_processor_id=None,
        settings=Settings(),
        created_at=None,
        updated_at=None,
        items=drafted.items,
        skipped_items=tuple(drafted.skipped),
        taken_names=frozenset(),
        vector_file=database.FILE,
        notices=(*embedding.notices, *drafted.notices),
    )


def _notices_of_vectors(
    db: apsw.Connection, root: Path, collection: ChromaCollection, base_id: str | None
) -> Iterator[Notice]:
    """Make notices about vectors that are not migrated, because no text is known or proven to be theirs.

    ``base_id`` is the base of the collection, None if it has none.
    """
    with open_collection(db, collection, root) as state:
        unproven, orphans = state.count_origin(Origin.UNPROVEN), state.count_orphans()
        samples = tuple(islice(state.orphan_ids(), 10))
    if unproven:
        message = tr(
            "{vectors} not migrated, because nothing proves which text they belong to; regraft repair --unproven "
            "keeps them",
            vectors=format_count(unproven, "vector"),
        )
        yield Notice(code=notices.MISSING_PAYLOAD, message=message, base=base_id, count=unproven)
    if orphans:
        message = tr(
            "{vectors} not migrated, because their ids have neither text nor metadata (for example {ids})",
            vectors=format_count(orphans, "vector"),
            ids=join_list(samples[:3]),
        )
        if base_id is None:
            message = f"{collection.name}: {message}"
        yield Notice(code=notices.NO_DOCUMENT, message=message, base=base_id, count=orphans, samples=samples)


@contextmanager
def _open_source(path: Path, work: Path | None, options: Options, draft: BaseDraft) -> Iterator[Path]:
    """Write the collection of a draft to a temporary table of rows, and yield its path."""
    del options
    try:
        with rows.write_row_table(path.parent, draft.legacy_id, work) as table:
            yield table.path
    except ChromaProblem as error:
        raise StoreProblem(tr("cannot be read: {error}", error=error)) from error


PIPELINE = Pipeline(table=rows.TABLE, read=draft_library, opened=_open_source)
