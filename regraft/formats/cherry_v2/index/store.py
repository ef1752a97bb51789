"""The index of one base as a store that other programs may read and write (``docs/formats/index.md``, "Store")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, get_args

import apsw

from regraft import areas, clock, identity, sqlite
from regraft.errors import (
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
from regraft.formats.cherry_v2.index import opening, rebuild, schema
from regraft.formats.cherry_v2.index.full_text import ROWS_CACHE_KIB
from regraft.formats.cherry_v2.index.reclaim import Reclaimed, Vacuum, reclaim
from regraft.formats.cherry_v2.index.units import Unit, cut, demand_storable
from regraft.language import joined, tr

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
        self._reader: opening.Reader | None = None
        if read_only:
            self._reader = opening.Reader(path, base_id)
            self._stack.callback(self._reader.close)
        else:
            self._open(create=create)

    def _open(self, *, create: bool) -> None:
        needed = self.path.parent if create else self.path
        if not needed.exists():
            raise SourceNotFound(path=needed)
        with ExitStack() as opened:
            try:
                opened.enter_context(areas.opened(self.path.parent, entries_only=True))
                opened.enter_context(opening.writer(self.path))
                self._db = opened.enter_context(sqlite.writing(self.path, create=create))
                self._db.execute(f"PRAGMA cache_size = -{ROWS_CACHE_KIB}")
                if create:
                    opening.create(self._db, self.base_id, clock.now_ms())
                opening.demand_identity(self._db, self.path, self.base_id)
                schema.keep_full_text(self._db)
            except apsw.BusyError as error:
                raise IndexBusy(path=self.path) from error
            except RegraftError:
                raise
            except opening.UNREADABLE as error:
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
        demand_storable(material_id, relative_path, content)
        if embeddings and not has_model:
            raise MaterialRefused(material=material_id, reason=tr("vectors are given, but the base has no model"))
        new = rebuild.Rebuild(
            material_id=material_id,
            relative_path=relative_path,
            content_hash=identity.text_hash(content),
            content=content,
            units=cut(material_id, content, units),
            embeddings=embeddings,
            now_ms=now_ms,
            has_model=has_model,
        )
        with self._transaction(tr("rebuilding {material_id}", material_id=material_id)) as db:
            rebuild.rebuild(db, new)

    def delete_materials(self, material_ids: Iterable[str]) -> int:
        """Delete materials with all that only they use, and return how many there were; unknown ids are no error.

        Raises:
            IndexUnchanged: the file is in use or cannot be written.
            IndexReadOnly, StoreClosed: the store is not open for writing.
        """
        known = list(material_ids)
        with self._transaction(tr("deleting materials")) as db:
            return rebuild.delete(db, known)

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
        return self._read(lambda db: rebuild.existing_embeddings(db, wanted))

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
                hint=tr("one of {get_args}", get_args=joined(get_args(Vacuum))),
            )
        with self._explained(tr("giving space back")):
            return reclaim(self._db, self.path, vacuum)

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
        except opening.UNREADABLE as error:
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
