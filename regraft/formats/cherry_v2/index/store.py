"""The index of one base as a store that other programs may read and write (``docs/formats/index.md``, "Store").

:class:`IndexStore` is the public interface; the functions above it run in the caller's transaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, get_args

import apsw
import msgspec

from regraft import identity
from regraft.disk import sqlite, writable
from regraft.errors import (
    CoverageGap,
    EmbeddingRefused,
    FullTextOutOfStep,
    IndexBusy,
    IndexReadOnly,
    IndexUnchanged,
    MaterialRefused,
    RegraftError,
    SourceNotFound,
    SourceUnreadable,
    StoreClosed,
    WrongUsage,
)
from regraft.formats.cherry_v2.index import opening, schema
from regraft.formats.cherry_v2.index.full_text import ROWS_CACHE_KIB, full_text_matches
from regraft.formats.cherry_v2.index.schema import Unit, check_storable, cut_units
from regraft.language import join_list, tr

# Replace and delete materials (``docs/formats/index.md``, "How the store behaves").


#: Number of vectors examined to determine the vector length of the file.
_SAMPLE = 100


class NewMaterial(msgspec.Struct, frozen=True, kw_only=True):
    """The new state of a material: its content with its units. ``embeddings`` maps text hashes to vectors."""

    material_id: str
    relative_path: str
    content_hash: str
    content: str
    units: list[Unit]
    embeddings: Mapping[str, bytes]
    now_ms: int
    has_model: bool


class _UsedHashes(msgspec.Struct, frozen=True):
    """Hashes of the bodies and contents that materials used before a change; they may be unused after it."""

    embeddings: set[str]
    contents: set[str]

    def add(self, other: _UsedHashes) -> None:
        """Add the hashes of another material."""
        self.embeddings.update(other.embeddings)
        self.contents.update(other.contents)


def replace_material(db: apsw.Connection, new: NewMaterial) -> None:
    """Replace a material and its units, bodies and vectors by a new state. On an error the caller must roll back.

    Without a model, no vector is written or deleted: the former vectors may be the only copy.

    Raises:
        MaterialRefused: another material has the same path.
        EmbeddingRefused: a vector does not have the length of the file's vectors.
        CoverageGap: a body has no vector although the base has a model.
        apsw.Error: the file cannot be written.
    """
    _upsert_material(db, new)
    before = _find_used_hashes(db, new.material_id)
    _delete_units(db, new.material_id)
    _insert_units(db, new)
    if new.has_model:
        _insert_embeddings(db, new)
        missing = missing_embeddings(db, [unit.embedding_text_hash for unit in new.units])
        if missing:
            first = min(unit.unit_index for unit in new.units if unit.embedding_text_hash in missing)
            raise CoverageGap(material=new.material_id, missing=len(missing), unit=first)
    db.execute(
        "UPDATE material SET current_content_hash = ? WHERE material_id = ?", (new.content_hash, new.material_id)
    )
    if new.has_model and before.embeddings - {unit.embedding_text_hash for unit in new.units}:
        _delete_unused_embeddings(db)
    if before.contents - {new.content_hash}:
        _delete_unused_contents(db)


def replace_all_materials(db: apsw.Connection, gone: Iterable[str], new: Iterable[NewMaterial]) -> None:
    """Delete and replace materials together, so that a vector that one loses and another needs is kept.

    No vector is written. Of what these materials used, only what nothing needs any more is deleted.

    Args:
        db: the index.
        gone: ids of the materials to delete.
        new: new states of materials.

    Raises:
        MaterialRefused: another material has the same path.
        apsw.Error: the file cannot be written.
    """
    before = _UsedHashes(set(), set())
    for material_id in gone:
        before.add(_find_used_hashes(db, material_id))
        _delete_units(db, material_id)
        db.execute("DELETE FROM material WHERE material_id = ?", (material_id,))
    for one in new:
        before.add(_find_used_hashes(db, one.material_id))
        _upsert_material(db, one)
        _delete_units(db, one.material_id)
        # Bodies that lost their units have the ids of the new ones.
        db.executemany(
            "DELETE FROM search_text WHERE target_type = 'search_unit' AND target_id = ?",
            ((unit.unit_id,) for unit in one.units),
        )
        _insert_units(db, one)
        db.execute(
            "UPDATE material SET current_content_hash = ? WHERE material_id = ?", (one.content_hash, one.material_id)
        )
    _delete_unused_embeddings(db, before.embeddings)
    _delete_unused_contents(db, before.contents)


def delete_materials(db: apsw.Connection, material_ids: Iterable[str]) -> int:
    """Delete materials with their units and bodies and everything that becomes unused; return how many existed."""
    deleted = 0
    for material_id in material_ids:
        # Bodies have no foreign key: they are deleted while their units still identify them.
        _delete_units(db, material_id)
        db.execute("DELETE FROM material WHERE material_id = ?", (material_id,))
        deleted += db.changes()
    if deleted:
        _delete_unused_embeddings(db)
        _delete_unused_contents(db)
    return deleted


def _upsert_material(db: apsw.Connection, new: NewMaterial) -> None:
    """Insert or update a material and its content; raises MaterialRefused if another material has its path."""
    owner = db.execute(
        "SELECT material_id FROM material WHERE relative_path = ? AND material_id <> ?",
        (new.relative_path, new.material_id),
    ).get
    if owner is not None:
        reason = tr(
            'its path "{relative_path}" belongs to material {owner}', relative_path=new.relative_path, owner=owner
        )
        raise MaterialRefused(material=new.material_id, reason=reason)
    # If the stored text does not match its hash, repair it: the units are cut from the given text.
    db.execute(
        "INSERT INTO content (content_hash, text, created_at) VALUES (?, ?, ?)"
        " ON CONFLICT (content_hash) DO UPDATE SET text = excluded.text WHERE text IS NOT excluded.text",
        (new.content_hash, new.content, new.now_ms),
    )
    db.execute(
        "INSERT INTO material (material_id, relative_path, created_at, updated_at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (material_id) DO UPDATE SET relative_path = excluded.relative_path,"
        " updated_at = excluded.updated_at",
        (new.material_id, new.relative_path, new.now_ms, new.now_ms),
    )


def _find_used_hashes(db: apsw.Connection, material_id: str) -> _UsedHashes:
    """Return the hashes of the bodies and contents that a material uses."""
    bodies = db.execute(
        # CROSS JOIN forces the material's units first: without statistics SQLite would start with all bodies.
        "SELECT DISTINCT t.embedding_text_hash FROM search_unit u"
        " CROSS JOIN search_text t ON t.target_type = 'search_unit' AND t.target_id = u.unit_id"
        " WHERE u.material_id = ?",
        (material_id,),
    )
    embeddings = {key for (key,) in bodies}
    contents = db.execute(
        "SELECT content_hash FROM search_unit WHERE material_id = ?1"
        " UNION SELECT current_content_hash FROM material"
        " WHERE material_id = ?1 AND current_content_hash IS NOT NULL",
        (material_id,),
    )
    return _UsedHashes(embeddings, {key for (key,) in contents})


def _delete_units(db: apsw.Connection, material_id: str) -> None:
    """Delete the units of a material and their bodies; the vectors stay."""
    db.execute(
        "DELETE FROM search_text WHERE target_type = 'search_unit'"
        " AND target_id IN (SELECT unit_id FROM search_unit WHERE material_id = ?)",
        (material_id,),
    )
    db.execute("DELETE FROM search_unit WHERE material_id = ?", (material_id,))


def _insert_units(db: apsw.Connection, new: NewMaterial) -> None:
    """Insert the units of a material and their bodies."""
    db.executemany(
        "INSERT INTO search_unit (unit_id, material_id, content_hash, unit_type, unit_index, char_start, char_end,"
        " created_at) VALUES (?, ?, ?, 'chunk', ?, ?, ?, ?)",
        (
            (unit.unit_id, new.material_id, unit.content_hash, unit.unit_index, unit.char_start, unit.char_end, now)
            for now, unit in ((new.now_ms, unit) for unit in new.units)
        ),
    )
    # The trigger numbers the row and adds it to the full-text index.
    db.executemany(
        "INSERT INTO search_text (search_text_id, target_type, target_id, kind, text, embedding_text_hash, created_at)"
        " VALUES (?, 'search_unit', ?, 'body', ?, ?, ?)",
        (
            (identity.body_id(unit.unit_id), unit.unit_id, unit.text, unit.embedding_text_hash, new.now_ms)
            for unit in new.units
        ),
    )


def _insert_embeddings(db: apsw.Connection, new: NewMaterial) -> None:
    """Insert the vectors that the material's bodies use and the file lacks. Stored vectors are kept."""
    hashes = (unit.embedding_text_hash for unit in new.units)
    vectors = {key: new.embeddings[key] for key in hashes if key in new.embeddings}
    if not vectors:
        return
    expected = stored_vector_bytes(db) or len(next(iter(vectors.values())))
    for key, vector in vectors.items():
        if not vector or len(vector) % 4 or len(vector) != expected:
            raise EmbeddingRefused(material=new.material_id, hash=key, found=len(vector), expected=expected)
    db.executemany(
        "INSERT INTO embedding (embedding_text_hash, vector_blob, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        ((key, vector, new.now_ms) for key, vector in vectors.items()),
    )


def stored_vector_bytes(db: apsw.Connection) -> int | None:
    """Return the most common length of the file's first vectors in bytes; None without vectors."""
    length: int | None = db.execute(
        "SELECT size FROM (SELECT length(vector_blob) AS size FROM embedding LIMIT ?)"
        " GROUP BY size ORDER BY count(*) DESC, size LIMIT 1",
        (_SAMPLE,),
    ).get
    return length


def missing_embeddings(db: apsw.Connection, hashes: Iterable[str]) -> set[str]:
    """Return those of the given text hashes for which the file has no vector."""
    wanted = set(hashes)
    return wanted - existing_embeddings(db, wanted)


def existing_embeddings(db: apsw.Connection, hashes: Iterable[str]) -> set[str]:
    """Return those of the given text hashes for which the file has a vector."""
    rows = db.execute(
        "SELECT embedding_text_hash FROM embedding WHERE embedding_text_hash IN (SELECT value FROM json_each(?))",
        (json.dumps(list(hashes)),),
    )
    return {key for (key,) in rows}


def _delete_unused_embeddings(db: apsw.Connection, among: set[str] | None = None) -> None:
    """Delete the vectors that no body uses: all of them, or those with one of the text hashes ``among``."""
    db.execute(
        # Uses the index of the hashes, so the vectors themselves are not read.
        "DELETE FROM embedding WHERE embedding_text_hash IN (SELECT e.embedding_text_hash FROM embedding e"
        f" WHERE {_hash_condition('e.embedding_text_hash', among)}"
        " AND NOT EXISTS (SELECT 1 FROM search_text t WHERE t.embedding_text_hash = e.embedding_text_hash))",
        _hash_parameters(among),
    )


def _delete_unused_contents(db: apsw.Connection, among: set[str] | None = None) -> None:
    """Delete the contents that nothing uses: all of them, or those with one of the hashes ``among``."""
    db.execute(
        "DELETE FROM content WHERE content_hash IN (SELECT c.content_hash FROM content c"
        f" WHERE {_hash_condition('c.content_hash', among)}"
        " AND NOT EXISTS (SELECT 1 FROM material m WHERE m.current_content_hash = c.content_hash)"
        " AND NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.content_hash = c.content_hash))",
        _hash_parameters(among),
    )


def _hash_condition(column: str, among: set[str] | None) -> str:
    """Build the SQL condition that a column has one of the hashes ``among``; always true for None."""
    return "1" if among is None else f"{column} IN (SELECT value FROM json_each(?))"


def _hash_parameters(among: set[str] | None) -> tuple[str, ...]:
    """Return the parameters of the condition that :func:`_hash_condition` builds."""
    return () if among is None else (json.dumps([key for key in among if isinstance(key, str)]),)


# Reclaim space after large deletes (``docs/formats/index.md``, "How the store behaves").


#: VACUUM is worthwhile if at least this share of the pages …
FREE_SHARE = 0.2
#: … and at least this many bytes are free.
FREE_BYTES = 8 << 20

Vacuum = Literal["auto", "always", "never"]


class Reclaimed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of reclaiming space: sizes of the file in bytes, bytes that were free in it, and whether VACUUM ran."""

    bytes_before: int
    bytes_after: int
    free_bytes: int
    vacuumed: bool


def reclaim_space(db: apsw.Connection, path: Path, vacuum: Vacuum) -> Reclaimed:
    """Optimize the full-text index, checkpoint the log, and run VACUUM if it is worthwhile (or always, or never).

    The full-text index is compared with the bodies before and after, because it refers to bodies by ``fts_rowid``,
    which VACUUM must not change.

    Raises:
        FullTextOutOfStep: the full-text index does not match the bodies, either before any change or afterwards.
        apsw.Error: the file is in use or cannot be written.
    """
    _check_full_text(db, path, "before")
    before, _ = database_sizes(db)
    db.execute("INSERT INTO search_text_fts (search_text_fts) VALUES ('optimize')")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    whole, free = database_sizes(db)
    vacuumed = vacuum == "always" or (vacuum == "auto" and is_vacuum_worthwhile(whole, free))
    if vacuumed:
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        _check_full_text(db, path, "after")
    after, _ = database_sizes(db)
    return Reclaimed(bytes_before=before, bytes_after=after, free_bytes=free, vacuumed=vacuumed)


def is_vacuum_worthwhile(size: int, free: int) -> bool:
    """Whether VACUUM is worthwhile for a database of ``size`` bytes with ``free`` bytes in free pages."""
    return free >= FREE_BYTES and free >= FREE_SHARE * size


def database_sizes(db: apsw.Connection) -> tuple[int, int]:
    """Return the size of the database and of its free pages, in bytes."""
    page, pages, free = (db.execute(f"PRAGMA {name}").get for name in ("page_size", "page_count", "freelist_count"))
    return page * pages, page * free


def _check_full_text(db: apsw.Connection, path: Path, when: str) -> None:
    """Raise FullTextOutOfStep if the full-text index does not match the bodies; ``when``: before or after VACUUM."""
    if not full_text_matches(db):
        raise FullTextOutOfStep(path=path, when=when)


Result = TypeVar("Result")


class IndexStore:
    """The index of one base: replace and delete materials, list units, reclaim space.

    Every change is one transaction: after a crash the file has either the old or the new state. A store must be used by
    one thread at a time. Other stores and the application may have the file open too; writers wait for each other up to
    5 seconds. Opened ``read_only`` it creates no files, and each call sees the current state of the file.

    Args:
        path: the file ``KnowledgeBase/<base id>/.cherry/index.sqlite``.
        base_id: name of the base's folder.
        read_only: any change raises :class:`~regraft.errors.IndexReadOnly`.
        create: create an empty index if the file is missing or blank (its folder must exist).

    Raises:
        SourceNotFound: the file does not exist.
        SourceUnreadable: the file is not SQLite, is damaged, or access is denied.
        IndexForeign: the file is the index of another base.
        IndexVersionUnknown: the file has another version; it is not changed.
        IndexIncomplete: a table, a trigger or the identity row is missing.
        IndexHotJournal: read-only, and the file has an unfinished transaction.
        IndexBusy: another program has locked the file or, read-only, keeps writing to it.
    """

    def __init__(self, path: Path, base_id: str, *, read_only: bool = False, create: bool = False) -> None:
        if read_only and create:
            raise WrongUsage(problem=tr("read_only and create cannot be combined"), hint=tr("use only one of them"))
        self.path = path
        self.base_id = base_id
        self.read_only = read_only
        self._closed = False
        self._stack = ExitStack()
        self._reader: opening.IndexReader | None = None
        if read_only:
            self._reader = opening.IndexReader(path, base_id)
            self._stack.callback(self._reader.close)
        else:
            self._open(create=create)

    def _open(self, *, create: bool) -> None:
        """Open the file for writing, and check its identity; ``create``: create an empty index if it is missing."""
        needed = self.path.parent if create else self.path
        if not needed.exists():
            raise SourceNotFound(path=needed)
        with ExitStack() as opened:
            try:
                opened.enter_context(writable.allow_writes(self.path.parent, entries_only=True))
                opened.enter_context(opening.mark_open_for_writing(self.path))
                self._db = opened.enter_context(sqlite.open_writable(self.path, create=create))
                self._db.execute(f"PRAGMA cache_size = -{ROWS_CACHE_KIB}")
                if create:
                    opening.create_index(self._db, self.base_id, identity.now_ms())
                opening.check_identity(self._db, self.path, self.base_id)
                schema.add_full_text_triggers(self._db)
            except apsw.BusyError as error:
                raise IndexBusy(path=self.path) from error
            except RegraftError:
                raise
            except opening.READ_ERRORS as error:
                raise SourceUnreadable(path=self.path, reason=error) from error
            self._stack = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. The last connection to close checkpoints the log and removes ``-wal`` and ``-shm``."""
        self._closed = True
        self._stack.close()

    def rebuild_material(
        self,
        material_id: str,
        relative_path: str,
        content: str,
        units: Iterable[tuple[int, int]],
        embeddings: Mapping[str, bytes],
        now_ms: int,
        *,
        has_model: bool = True,
    ) -> None:
        """Add a material, or replace it with its content, units, bodies and vectors.

        Args:
            material_id: id of the catalog item.
            relative_path: path of its file below ``raw/``, with ``/`` as separator.
            content: the whole text.
            units: ``(char_start, char_end)`` of each unit in UTF-16 units of the content, in order.
            embeddings: little-endian float32 vectors by hash of the body. Vectors that the file already has are kept
                and may be omitted (:meth:`existing_embeddings`); hashes that no body has are ignored.
            now_ms: time of the change in ms.
            has_model: whether the base has an embedding model. Without one, bodies need no vectors and none are
                accepted.

        Raises:
            UnitRefused: a unit is not a slice of the content.
            MaterialRefused: the id, path or text cannot be stored, another material has the path, or vectors are given
                for a base without a model.
            EmbeddingRefused: a vector is empty, not a multiple of 4 bytes, or not as long as the file's other vectors.
            CoverageGap: a body has no vector.
            IndexUnchanged: the file is in use or cannot be written.
            IndexReadOnly, StoreClosed: the store is not open for writing.
        """
        check_storable(material_id, relative_path, content)
        if embeddings and not has_model:
            raise MaterialRefused(material=material_id, reason=tr("vectors are given, but the base has no model"))
        new = NewMaterial(
            material_id=material_id,
            relative_path=relative_path,
            content_hash=identity.text_hash(content),
            content=content,
            units=cut_units(material_id, content, units),
            embeddings=embeddings,
            now_ms=now_ms,
            has_model=has_model,
        )
        with self._transaction(tr("rebuilding {material_id}", material_id=material_id)) as db:
            replace_material(db, new)

    def delete_materials(self, material_ids: Iterable[str]) -> int:
        """Delete materials and everything only they use; return how many existed. Unknown ids are ignored.

        Raises:
            IndexUnchanged: the file is in use or cannot be written.
            IndexReadOnly, StoreClosed: the store is not open for writing.
        """
        known = list(material_ids)
        with self._transaction(tr("deleting materials")) as db:
            return delete_materials(db, known)

    def list_units(self, material_id: str) -> list[Unit]:
        """Return the units of a material with their bodies, in order; an empty list for an unknown material.

        Raises:
            SourceUnreadable: the file cannot be read.
            IndexHotJournal, IndexBusy: read-only, and another program is writing.
            StoreClosed: the store is closed.
        """
        return self._read(lambda db: _list_units(db, material_id))

    def existing_embeddings(self, hashes: Iterable[str]) -> set[str]:
        """Return the body hashes that the file has a vector for, so that only the others must be embedded.

        The answer is not part of a transaction: if another writer deletes a vector afterwards, :meth:`rebuild_material`
        raises ``CoverageGap``.

        Raises:
            SourceUnreadable: the file cannot be read.
            IndexHotJournal, IndexBusy: read-only, and another program is writing.
            StoreClosed: the store is closed.
        """
        wanted = list(hashes)
        return self._read(lambda db: existing_embeddings(db, wanted))

    def reclaim(self, vacuum: Vacuum = "auto") -> Reclaimed:
        """Reclaim space after large deletes: optimize the full-text index, checkpoint the log, VACUUM.

        Args:
            vacuum: ``auto`` (if at least 20 % of the file and 8 MiB are free), ``always`` or ``never``. VACUUM needs as
                much free disk space as the file takes.

        Raises:
            FullTextOutOfStep: the full-text index does not match the bodies.
            IndexUnchanged: the file is in use or cannot be written; no row was changed.
            IndexReadOnly, StoreClosed: the store is not open for writing.
        """
        self._check_writable()
        if vacuum not in get_args(Vacuum):
            raise WrongUsage(
                problem=tr("vacuum cannot be {vacuum!r}", vacuum=vacuum),
                hint=tr("use one of {get_args}", get_args=join_list(get_args(Vacuum))),
            )
        with self._convert_write_errors(tr("reclaiming space")):
            return reclaim_space(self._db, self.path, vacuum)

    def _check_open(self) -> None:
        """Raise StoreClosed if the store was closed."""
        if self._closed:
            raise StoreClosed(path=self.path)

    def _check_writable(self) -> None:
        """Raise StoreClosed or IndexReadOnly if the store is not open for writing."""
        self._check_open()
        if self.read_only:
            raise IndexReadOnly(path=self.path)

    @contextmanager
    def _convert_write_errors(self, doing: str) -> Iterator[None]:
        """Context that converts SQLite's errors to IndexUnchanged; ``doing`` names the operation for the message."""
        try:
            yield
        except (apsw.Error, UnicodeDecodeError) as error:
            raise IndexUnchanged(path=self.path, doing=doing, reason=error) from error

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[apsw.Connection]:
        """Context of one transaction for a change; ``doing`` names the operation for messages."""
        self._check_writable()
        with self._convert_write_errors(doing), sqlite.transaction(self._db):
            yield self._db

    def _read(self, query: Callable[[apsw.Connection], Result]) -> Result:
        """Return the result of a query on the current state of the file; read errors become SourceUnreadable."""
        self._check_open()
        if self._reader is not None:
            return self._reader.run(query)
        try:
            return query(self._db)
        except opening.READ_ERRORS as error:
            raise SourceUnreadable(path=self.path, reason=error) from error


_TYPES = (str, int, str, int, int, str, str)


def _list_units(db: apsw.Connection, material_id: str) -> list[Unit]:
    """Read the units of a material in order; raises ValueError if a value has a wrong type."""
    rows: list[Any] = db.execute(
        "SELECT u.unit_id, u.unit_index, u.content_hash, u.char_start, u.char_end, t.text, t.embedding_text_hash"
        # CROSS JOIN forces the material's units first: without statistics SQLite would start with all bodies.
        " FROM search_unit u CROSS JOIN search_text t"
        " ON t.target_type = 'search_unit' AND t.target_id = u.unit_id AND t.kind = 'body'"
        " WHERE u.material_id = ? ORDER BY u.unit_index, u.unit_id",
        (material_id,),
    ).fetchall()
    units = []
    for row in rows:
        # SQLite columns accept values of any type.
        if not all(isinstance(value, kind) for value, kind in zip(row, _TYPES, strict=True)):
            raise ValueError(tr("a unit contains a value of the wrong type"))
        units.append(Unit(*row))
    return units
