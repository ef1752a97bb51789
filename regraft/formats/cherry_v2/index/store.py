"""The index of one base as a store that other programs may read and write (``docs/formats/index.md``, "Store")."""

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

# Replaces and deletes materials in the caller's transaction (``docs/formats/index.md``, "How the store behaves").


#: How many vectors are looked at to know the length of the file's vectors.
_SAMPLE = 100


class NewMaterial(msgspec.Struct, frozen=True, kw_only=True):
    """A material as it is to be: its content is cut already. ``embeddings`` are vector bytes by text hash."""

    material_id: str
    relative_path: str
    content_hash: str
    content: str
    units: list[Unit]
    embeddings: Mapping[str, bytes]
    now_ms: int
    has_model: bool


class _Named(msgspec.Struct, frozen=True):
    """What a material named before: hashes of embeddings and of contents that may be waste now."""

    embeddings: set[str]
    contents: set[str]


def replace_material(db: apsw.Connection, new: NewMaterial) -> None:
    """Replace a material with all that hangs on it. The caller's transaction is to be rolled back on an error.

    Raises:
        MaterialRefused: another material has its path.
        EmbeddingRefused: a vector is not as long as those of the file.
        CoverageGap: a body has no vector, in a base with a model.
        apsw.Error: the file cannot be written.
    """
    _put_material(db, new)
    before = _named(db, new.material_id)
    _drop_units(db, new.material_id)
    _put_units(db, new)
    if new.has_model:
        _put_embeddings(db, new)
        _demand_coverage(db, new)
    db.execute(
        "UPDATE material SET current_content_hash = ? WHERE material_id = ?", (new.content_hash, new.material_id)
    )
    if before.embeddings - {unit.embedding_text_hash for unit in new.units}:
        _sweep_embeddings(db)
    if before.contents - {new.content_hash}:
        _sweep_contents(db)


def delete_materials(db: apsw.Connection, material_ids: Iterable[str]) -> int:
    """Delete materials with their units and bodies, sweep what only they named, and return how many there were."""
    deleted = 0
    for material_id in material_ids:
        # Bodies have no foreign key: they go first, while their units still tell which they are.
        _drop_units(db, material_id)
        db.execute("DELETE FROM material WHERE material_id = ?", (material_id,))
        deleted += db.changes()
    if deleted:
        _sweep_embeddings(db)
        _sweep_contents(db)
    return deleted


def _put_material(db: apsw.Connection, new: NewMaterial) -> None:
    owner = db.execute(
        "SELECT material_id FROM material WHERE relative_path = ? AND material_id <> ?",
        (new.relative_path, new.material_id),
    ).get
    if owner is not None:
        reason = tr(
            'its path "{relative_path}" is that of the material {owner}', relative_path=new.relative_path, owner=owner
        )
        raise MaterialRefused(material=new.material_id, reason=reason)
    # A text that no longer has the hash that it is stored under is mended: units are cut from the one given.
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


def _named(db: apsw.Connection, material_id: str) -> _Named:
    bodies = db.execute(
        # CROSS JOIN: the material's units first. Without statistics SQLite would begin with every body of the file.
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
    return _Named(embeddings, {key for (key,) in contents})


def _drop_units(db: apsw.Connection, material_id: str) -> None:
    db.execute(
        "DELETE FROM search_text WHERE target_type = 'search_unit'"
        " AND target_id IN (SELECT unit_id FROM search_unit WHERE material_id = ?)",
        (material_id,),
    )
    db.execute("DELETE FROM search_unit WHERE material_id = ?", (material_id,))


def _put_units(db: apsw.Connection, new: NewMaterial) -> None:
    db.executemany(
        "INSERT INTO search_unit (unit_id, material_id, content_hash, unit_type, unit_index, char_start, char_end,"
        " created_at) VALUES (?, ?, ?, 'chunk', ?, ?, ?, ?)",
        (
            (unit.unit_id, new.material_id, unit.content_hash, unit.unit_index, unit.char_start, unit.char_end, now)
            for now, unit in ((new.now_ms, unit) for unit in new.units)
        ),
    )
    # The file's own trigger numbers the row and adds it to the full-text index.
    db.executemany(
        "INSERT INTO search_text (search_text_id, target_type, target_id, kind, text, embedding_text_hash, created_at)"
        " VALUES (?, 'search_unit', ?, 'body', ?, ?, ?)",
        (
            (identity.body_id(unit.unit_id), unit.unit_id, unit.text, unit.embedding_text_hash, new.now_ms)
            for unit in new.units
        ),
    )


def _put_embeddings(db: apsw.Connection, new: NewMaterial) -> None:
    """Insert those vectors that a body of the material names and the file does not have; the stored one stays."""
    vectors = _named_vectors(new)
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


def _named_vectors(new: NewMaterial) -> dict[str, bytes]:
    wanted = dict.fromkeys(unit.embedding_text_hash for unit in new.units)
    return {key: new.embeddings[key] for key in wanted if key in new.embeddings}


def stored_vector_bytes(db: apsw.Connection) -> int | None:
    """Return the length of the file's vectors in bytes: what most of the first ones have. None where there is none."""
    length: int | None = db.execute(
        "SELECT size FROM (SELECT length(vector_blob) AS size FROM embedding LIMIT ?)"
        " GROUP BY size ORDER BY count(*) DESC, size LIMIT 1",
        (_SAMPLE,),
    ).get
    return length


def _demand_coverage(db: apsw.Connection, new: NewMaterial) -> None:
    missing = missing_embeddings(db, [unit.embedding_text_hash for unit in new.units])
    if missing:
        first = min(unit.unit_index for unit in new.units if unit.embedding_text_hash in missing)
        raise CoverageGap(material=new.material_id, missing=len(missing), unit=first)


def missing_embeddings(db: apsw.Connection, hashes: Iterable[str]) -> set[str]:
    """Return which of ``hashes`` no embedding is stored under."""
    wanted = set(hashes)
    return wanted - existing_embeddings(db, wanted)


def existing_embeddings(db: apsw.Connection, hashes: Iterable[str]) -> set[str]:
    """Return which of ``hashes`` an embedding is stored under."""
    rows = db.execute(
        "SELECT embedding_text_hash FROM embedding WHERE embedding_text_hash IN (SELECT value FROM json_each(?))",
        (json.dumps(list(hashes)),),
    )
    return {key for (key,) in rows}


def _sweep_embeddings(db: apsw.Connection) -> None:
    db.execute(
        # Looked for in the index of the hashes, without a look at the vectors themselves.
        "DELETE FROM embedding WHERE embedding_text_hash IN (SELECT e.embedding_text_hash FROM embedding e"
        " WHERE NOT EXISTS (SELECT 1 FROM search_text t WHERE t.embedding_text_hash = e.embedding_text_hash))"
    )


def _sweep_contents(db: apsw.Connection) -> None:
    db.execute(
        "DELETE FROM content WHERE content_hash IN (SELECT c.content_hash FROM content c"
        " WHERE NOT EXISTS (SELECT 1 FROM material m WHERE m.current_content_hash = c.content_hash)"
        " AND NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.content_hash = c.content_hash))"
    )


# Gives space back after large deletes (``docs/formats/index.md``, "How the store behaves").


#: VACUUM pays from this share of free pages on …
FREE_SHARE = 0.2
#: … and from so many bytes in them.
FREE_BYTES = 8 << 20

Vacuum = Literal["auto", "always", "never"]


class Reclaimed(msgspec.Struct, frozen=True, kw_only=True):
    """What a reclaim came to: sizes of the file in bytes, what was free in it, and whether it was vacuumed."""

    bytes_before: int
    bytes_after: int
    free_bytes: int
    vacuumed: bool


def reclaim_space(db: apsw.Connection, path: Path, vacuum: Vacuum) -> Reclaimed:
    """Optimize the full-text index, work the log in, and VACUUM where that pays (or always, or never).

    The full-text index is compared with the bodies before and after: it is keyed on ``fts_rowid``, which VACUUM
    must leave alone.

    Raises:
        FullTextOutOfStep: it does not match them; before anything was done, or afterwards.
        apsw.Error: the file is in use, or cannot be written.
    """
    _demand_in_step(db, path, "before")
    before, _ = database_sizes(db)
    db.execute("INSERT INTO search_text_fts (search_text_fts) VALUES ('optimize')")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    whole, free = database_sizes(db)
    vacuumed = vacuum == "always" or (vacuum == "auto" and is_vacuum_worthwhile(whole, free))
    if vacuumed:
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        _demand_in_step(db, path, "after")
    after, _ = database_sizes(db)
    return Reclaimed(bytes_before=before, bytes_after=after, free_bytes=free, vacuumed=vacuumed)


def is_vacuum_worthwhile(size: int, free: int) -> bool:
    """Tell whether VACUUM pays for a database of so many bytes, so many of them free."""
    return free >= FREE_BYTES and free >= FREE_SHARE * size


def database_sizes(db: apsw.Connection) -> tuple[int, int]:
    """Return the size of the database and of its free pages, in bytes."""
    page, pages, free = (db.execute(f"PRAGMA {name}").get for name in ("page_size", "page_count", "freelist_count"))
    return page * pages, page * free


def _demand_in_step(db: apsw.Connection, path: Path, when: str) -> None:
    if not full_text_matches(db):
        raise FullTextOutOfStep(path=path, when=when)


Result = TypeVar("Result")


class IndexStore:
    """The index of one base: replace and delete materials, look at what is there, give space back.

    Every change is one write transaction: after a crash the file holds the state before it or the one after it.
    A store is for one thread at a time. Other stores and the application may have the file open too: writers wait
    for each other up to 5 seconds. Opened ``read_only`` it leaves no trace on disk, and each call sees the file as
    it is at that moment.

    Args:
        path: the file ``KnowledgeBase/<base id>/.cherry/index.sqlite``.
        base_id: the id that the file's folder carries.
        read_only: only read; raises :class:`~regraft.errors.IndexReadOnly` on any change.
        create: make an empty index where no file or a blank one is (its folder exists).

    Raises:
        SourceNotFound: no file is there.
        SourceUnreadable: it is no SQLite file, damaged, or may not be read.
        IndexForeign: it is the index of another base.
        IndexVersionUnknown: its layout has another version; it is left as it is.
        IndexIncomplete: a table, a trigger or the identity row is missing.
        IndexHotJournal: read-only, and an unfinished transaction lies beside it.
        IndexBusy: another program has locked it, or (read-only) writes to it without a pause.
    """

    def __init__(self, path: Path, base_id: str, *, read_only: bool = False, create: bool = False) -> None:
        if read_only and create:
            raise WrongUsage(problem=tr("read_only and create exclude each other"), hint=tr("give one of them"))
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
        """Close the file. The last one to close it works its log into it, and ``-wal`` and ``-shm`` are gone."""
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
        """Replace a material with its content, units, bodies and vectors, or add it.

        Args:
            material_id: the id of the catalog's item.
            relative_path: its file below ``raw/``, with ``/`` between the parts.
            content: the whole text.
            units: ``(char_start, char_end)`` of each unit in UTF-16 units of the content, in order.
            embeddings: raw little-endian float32 by hash of the body. A hash that the file has already keeps its
                vector and may be left out (:meth:`existing_embeddings`); one that no unit's body has is passed over.
            now_ms: the time of the change, in ms.
            has_model: whether the base has an embedding model. Without one no body needs a vector, and none is taken.

        Raises:
            UnitRefused: a unit is no slice of the content.
            MaterialRefused: its id, path or text may not be stored, another material has the path, or vectors are
                given for a base without a model.
            EmbeddingRefused: a vector is empty, no multiple of 4 bytes, or not as long as the others of the file.
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
        """Delete materials with all that only they use, and return how many there were; unknown ids are no error.

        Raises:
            IndexUnchanged: the file is in use or cannot be written.
            IndexReadOnly, StoreClosed: the store is not open for writing.
        """
        known = list(material_ids)
        with self._transaction(tr("deleting materials")) as db:
            return delete_materials(db, known)

    def list_units(self, material_id: str) -> list[Unit]:
        """Return the units of a material with their bodies, in order; none for an unknown material.

        Raises:
            SourceUnreadable: the file cannot be read.
            IndexHotJournal, IndexBusy: read-only, and somebody writes.
            StoreClosed: the store was closed.
        """
        return self._read(lambda db: _units(db, material_id))

    def existing_embeddings(self, hashes: Iterable[str]) -> set[str]:
        """Return which of these hashes of bodies the file has a vector for, so that only the others are embedded.

        It is a look from outside any transaction: where another writer takes a vector away in between,
        :meth:`rebuild_material` says so (``CoverageGap``).

        Raises:
            SourceUnreadable: the file cannot be read.
            IndexHotJournal, IndexBusy: read-only, and somebody writes.
            StoreClosed: the store was closed.
        """
        wanted = list(hashes)
        return self._read(lambda db: existing_embeddings(db, wanted))

    def reclaim(self, vacuum: Vacuum = "auto") -> Reclaimed:
        """Give space back after large deletes: optimize the full-text index, work the log in, VACUUM.

        Args:
            vacuum: ``auto``: when at least 20 % of the file and 8 MiB are free; or ``always``, or ``never``.
                It needs as much free space on the disk as the file takes.

        Raises:
            FullTextOutOfStep: the full-text index does not match the bodies.
            IndexUnchanged: the file is in use or cannot be written; no row was changed.
            IndexReadOnly, StoreClosed: the store is not open for writing.
        """
        self._demand_writable()
        if vacuum not in get_args(Vacuum):
            raise WrongUsage(
                problem=tr("vacuum cannot be {vacuum!r}", vacuum=vacuum),
                hint=tr("one of {get_args}", get_args=join_list(get_args(Vacuum))),
            )
        with self._explained(tr("giving space back")):
            return reclaim_space(self._db, self.path, vacuum)

    def _demand_open(self) -> None:
        if self._closed:
            raise StoreClosed(path=self.path)

    def _demand_writable(self) -> None:
        self._demand_open()
        if self.read_only:
            raise IndexReadOnly(path=self.path)

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (apsw.Error, UnicodeDecodeError) as error:
            raise IndexUnchanged(path=self.path, doing=doing, reason=error) from error

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[apsw.Connection]:
        self._demand_writable()
        with self._explained(doing), sqlite.transaction(self._db):
            yield self._db

    def _read(self, query: Callable[[apsw.Connection], Result]) -> Result:
        self._demand_open()
        if self._reader is not None:
            return self._reader.run(query)
        try:
            return query(self._db)
        except opening.READ_ERRORS as error:
            raise SourceUnreadable(path=self.path, reason=error) from error


def _units(db: apsw.Connection, material_id: str) -> list[Unit]:
    rows = db.execute(
        "SELECT u.unit_id, u.unit_index, u.content_hash, u.char_start, u.char_end, t.text, t.embedding_text_hash"
        # CROSS JOIN: the material's units first. Without statistics SQLite would begin with every body of the file.
        " FROM search_unit u CROSS JOIN search_text t"
        " ON t.target_type = 'search_unit' AND t.target_id = u.unit_id AND t.kind = 'body'"
        " WHERE u.material_id = ? ORDER BY u.unit_index, u.unit_id",
        (material_id,),
    )
    return [Unit(*_typed(row)) for row in rows]


_TYPES = (str, int, str, int, int, str, str)


def _typed(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row of a unit; SQLite itself keeps a value of any type in any column."""
    if not all(isinstance(value, kind) for value, kind in zip(row, _TYPES, strict=True)):
        raise ValueError(tr("a unit holds a value of the wrong type"))
    return row
