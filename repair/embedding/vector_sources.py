"""Read the vectors of any source that regraft recognizes, text by text: stores, backups, packs, exports.

A source is read base by base. Each vector comes with the hash of its text, computed from the text that the source
itself has, and with its bytes as they are stored. Sources are only read (``docs/reuse.md``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import apsw
import msgspec

from migrators.pipeline.source import BaseDraft, Options, Pipeline
from migrators.pipeline.source_files import vector_file_in_tree
from migrators.registry import pipeline_of, read_parquet_vectors
from regraft import identity
from regraft.disk import sqlite
from regraft.errors import ProfileInUse, RegraftError
from regraft.formats.cherry_v1 import profile
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row, base_id_text, read_catalog
from regraft.formats.cherry_v2.index.opening import READ_ERRORS
from regraft.formats.cherry_v2.index.schema import IS_USABLE_SQL, choose_vector_length, count_vector_lengths
from regraft.formats.cherry_v2.layout import StoreFile
from regraft.formats.vector_survey import StoreProblem
from regraft.kinds import V2_LAYOUTS
from regraft.language import tr
from regraft.stores import systems
from regraft.stores.locate import open_store, unpack_archive
from regraft.stores.systems import Located, StoredVectors, TextVector
from regraft.text import decode_utf8

_PARQUET = b"PAR1"
#: The usable vectors of an index, each with a text that has its hash.
_VECTORS = f"""SELECT e.embedding_text_hash, CAST(t.text AS BLOB), e.vector_blob FROM embedding e
   CROSS JOIN search_text t ON t.embedding_text_hash = e.embedding_text_hash AND +t.kind = 'body'
   WHERE typeof(t.text) = 'text' AND {IS_USABLE_SQL}"""


class SourceBase(msgspec.Struct, kw_only=True):
    """The vectors of one base of a source; its rows must be read before the next base is requested.

    ``model_id`` is None if the source does not name the model. ``problem`` says why the rows cannot be read, or not
    all of them; it is set at the latest when ``rows`` ends.
    """

    name: str
    model_id: str | None
    dimensions: int
    rows: Iterator[TextVector]
    problem: str | None = None

    def __post_init__(self) -> None:
        """End the rows at damage, and keep the reason."""
        self.rows = self._until_damage(self.rows)

    def _until_damage(self, rows: Iterator[TextVector]) -> Iterator[TextVector]:
        try:
            yield from rows
        except RegraftError:
            raise
        except (*READ_ERRORS, StoreProblem) as error:
            if sqlite.is_write_failure(error):
                raise
            self.problem = str(error)


def is_parquet(path: Path) -> bool:
    """Whether a file starts with the signature of Parquet."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_PARQUET)) == _PARQUET


def read_source(path: Path) -> Iterator[SourceBase]:
    """Yield the bases of a source with their vectors.

    Raises:
        SourceNotMigratable: it is recognized, but has no vectors that regraft can tell the texts of.
        ProfileInUse: it is a profile whose application is running.
        RegraftError: it cannot be recognized or read.
    """
    if is_parquet(path):
        yield from map(_source_base, read_parquet_vectors(path))
        return
    with open_store(path) as found:
        sign = profile.detect_running_app(found.profile) if found.profile is not None else None
        if sign is not None:
            raise ProfileInUse(path=path, sign=sign)
        read = systems.system_of(found.kind).text_vectors if found.kind.system else None
        vectors = None if read is None else read(found)
        if vectors is not None:
            yield from map(_source_base, vectors)
            return
        if found.kind in V2_LAYOUTS:
            yield from _index_bases(found)
            if not found.stores.has_preview:
                return
        yield from _pipeline_bases(found, pipeline_of(found, adopt_orphans=True))


def _source_base(one: StoredVectors) -> SourceBase:
    return SourceBase(name=one.name, model_id=one.model_id, dimensions=one.dimensions, rows=one.rows)


# --- the current layout ----------------------------------------------------------------------------------------------


def _index_bases(found: Located) -> Iterator[SourceBase]:
    with unpack_archive(found, raw=False) as unpacked:
        rows = _catalog_rows(unpacked)
        for store in unpacked.stores.current:
            row = rows.get(store.base_id or "", {})
            with ExitStack() as stack:
                try:
                    base = _open_index(unpacked.tree.path / store.name, store, row, stack)
                except READ_ERRORS as error:
                    base = _unreadable(str(row.get("name") or store.base_id or store.name), str(error))
                yield base


def _catalog_rows(found: Located) -> dict[str, Row]:
    """Return the catalog's rows of bases by id; empty without a readable catalog."""
    catalog = found.stores.catalog
    if catalog is None:
        return {}
    try:
        return {base_id_text(row): row for row in read_catalog(found.tree.path / catalog, data=False).bases}
    except CatalogProblem:
        return {}


def _open_index(path: Path, store: StoreFile, row: Row, stack: ExitStack) -> SourceBase:
    db = stack.enter_context(sqlite.open_readonly(path, vectors=True, beside_writers=True))
    stated, model = row.get("dimensions"), row.get("embedding_model_id")
    size = choose_vector_length(
        count_vector_lengths(db), stated if isinstance(stated, int) and 0 < stated <= 1 << 20 else None
    )
    return SourceBase(
        name=str(row.get("name") or store.base_id or path.name),
        model_id=model if isinstance(model, str) else None,
        dimensions=size // 4,
        rows=_index_rows(db, size),
    )


def _index_rows(db: apsw.Connection, size: int) -> Iterator[TextVector]:
    last = None
    for key, raw, vector in db.execute(_VECTORS, {"length": size}):
        text: Any = raw
        # Several units may have one text.
        if key != last and identity.text_hash(decode_utf8(text)) == key:
            last = key
            yield str(key), bytes(vector)


def _unreadable(name: str, problem: str) -> SourceBase:
    return SourceBase(name=name, model_id=None, dimensions=0, rows=iter(()), problem=problem)


# --- v1, previews, rsclaw, Chroma: the tables that a migration reads --------------------------------------------------


def _pipeline_bases(found: Located, pipeline: Pipeline) -> Iterator[SourceBase]:
    options = Options(now_ms=0, adopt_orphans=True)
    for draft in pipeline.read(found, options).bases:
        with ExitStack() as stack:
            try:
                yield _open_table(found, pipeline, draft, options, stack)
            except StoreProblem as problem:
                yield _unreadable(draft.name, str(problem))


def _open_table(found: Located, pipeline: Pipeline, draft: BaseDraft, options: Options, stack: ExitStack) -> SourceBase:
    """Open the table of a base's rows.

    Raises:
        StoreProblem: it cannot be read.
    """
    name = vector_file_in_tree(found, draft)
    if not name:
        raise StoreProblem(tr("the source holds no vector files"))
    try:
        origin = stack.enter_context(found.tree.local(name, None))
    except RegraftError as error:
        raise StoreProblem(str(error)) from error
    table = stack.enter_context(pipeline.opened(origin, None, options, draft))
    size, rows = stack.enter_context(pipeline.table.every_row(table))
    hashed = ((identity.text_hash(text), vector) for text, vector in rows)
    return SourceBase(name=draft.name, model_id=draft.embedding.id, dimensions=size // 4, rows=hashed)


__all__ = ["SourceBase", "is_parquet", "read_source"]
