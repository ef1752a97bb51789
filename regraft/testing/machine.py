"""A state machine that holds any index store against a model: rebuild, delete, re-open, crash, be stopped midway."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import apsw
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from regraft import sqlite
from regraft.errors import RegraftError
from regraft.formats.cherry_v2.index import IndexStore
from regraft.testing.materials import MaterialInput, materials

_EMBEDDINGS = "SELECT embedding_text_hash, vector_blob FROM embedding"
BASE_ID = "00000000-0000-4000-8000-000000000000"
_NOW_MS = 1_795_262_400_000


@dataclass(frozen=True)
class StoredState:
    """What a file holds, read with SQLite alone."""

    #: Path and content by material.
    materials: dict[str, tuple[str, str | None]]
    #: (start, end, body) of every unit in its order, by material.
    units: dict[str, list[tuple[int, int, str]]]
    contents: set[str]
    embeddings: dict[str, bytes]
    #: Bodies that the full-text index does not find under their row number.
    unfound: list[str]


def stored_state(path: Path) -> StoredState:
    """Read what an index file holds, without a trace."""
    with sqlite.reading(path) as db:
        held = db.execute(
            "SELECT m.material_id, m.relative_path, c.text FROM material m"
            " LEFT JOIN content c ON c.content_hash = m.current_content_hash"
        )
        found = {str(material): (str(place), None if text is None else str(text)) for material, place, text in held}
        units: dict[str, list[tuple[int, int, str]]] = {}
        for material, start, end, body in db.execute(
            "SELECT u.material_id, u.char_start, u.char_end, t.text FROM search_unit u"
            " LEFT JOIN search_text t ON t.target_id = u.unit_id ORDER BY u.material_id, u.unit_index"
        ):
            units.setdefault(material, []).append((start, end, body))
        return StoredState(
            materials=found,
            units=units,
            contents={row[0] for row in db.execute("SELECT text FROM content")},
            embeddings={str(key): bytes(vector) for key, vector in db.execute(_EMBEDDINGS)},
            unfound=list(_unfound(db)),
        )


def _unfound(db: apsw.Connection) -> Iterator[str]:
    for rowid, text in db.execute("SELECT fts_rowid, text FROM search_text").fetchall():
        body = str(text)
        # The trigram index sees nothing shorter.
        if len(body) >= 3:
            start = body[:3].replace('"', '""')
            query = "SELECT 1 FROM search_text_fts WHERE search_text_fts MATCH ? AND rowid = ?"
            if db.execute(query, (f'"{start}"', rowid)).get is None:
                yield body


class IndexStoreMachine(RuleBasedStateMachine):
    """Holds an index store against a model (``docs/testing.md``).

    For a store of your own override :meth:`open_store`, :meth:`rebuild`, :meth:`delete` and :meth:`close_store`, set
    ``refused`` to what it raises for input that it must not take, and, where it can be stopped midway, override
    :meth:`stopping`. Then ``TestStore = MyMachine.TestCase``.
    """

    dimensions: ClassVar[int] = 4
    #: What the store raises for input that it refuses; the file is then as it was.
    refused: ClassVar[tuple[type[Exception], ...]] = (RegraftError,)

    def __init__(self) -> None:
        super().__init__()
        self._keep = ExitStack()
        folder = Path(self._keep.enter_context(tempfile.TemporaryDirectory(prefix="regraft-")))
        #: The index file under test.
        self.path = folder / "index.sqlite"
        self._model: dict[str, MaterialInput] = {}
        self._vectors: dict[str, bytes] = {}
        #: The store under test.
        self.store: Any = None
        try:
            self.store = self.open_store(self.path, create=True)
        except BaseException:
            self._keep.close()
            raise

    # --- what another store overrides ------------------------------------------------------------------------------

    def open_store(self, path: Path, *, create: bool) -> Any:
        """Open the store under test."""
        return IndexStore(path, BASE_ID, create=create)

    def close_store(self) -> None:
        """Close the store under test."""
        self.store.close()

    def rebuild(self, material: MaterialInput) -> None:
        """Replace or add a material."""
        self.store.rebuild_material(
            material.material_id,
            material.relative_path,
            material.content,
            material.units,
            material.embeddings,
            _NOW_MS,
        )

    def delete(self, material_ids: list[str]) -> None:
        """Delete materials; unknown ids are no error."""
        self.store.delete_materials(material_ids)

    @contextmanager
    def stopping(self, after: int) -> Iterator[None]:
        """Make what the store does inside fail after so many steps of SQLite.

        By default that is done to an :class:`IndexStore`; another store is not stopped.
        """
        connection = self.store._db if isinstance(self.store, IndexStore) else None
        if connection is None:
            yield
            return
        connection.set_progress_handler(lambda: True, after)
        try:
            yield
        finally:
            connection.set_progress_handler(None)

    # --- rules -----------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def rebuild_one(self, data: st.DataObject) -> None:
        """Rebuild a material; one whose path another has is refused."""
        material = data.draw(materials(self.dimensions))
        if self._path_is_taken(material):
            self._must_refuse(material)
        else:
            self.rebuild(material)
            self._accept(material)

    @rule(data=st.data())
    def rebuild_with_a_gap(self, data: st.DataObject) -> None:
        """Rebuild a material of which one body has no vector: refused, unless the file has one."""
        material = data.draw(materials(self.dimensions))
        missing = [key for key in material.embeddings if key not in self._vectors]
        if missing:
            rest = {key: vector for key, vector in material.embeddings.items() if key != missing[0]}
            self._must_refuse(_with(material, embeddings=rest))

    @rule(data=st.data(), beyond=st.integers(1, 9))
    def rebuild_beyond_the_text(self, data: st.DataObject, beyond: int) -> None:
        """Rebuild a material with a unit that ends behind its text: refused, never clamped."""
        material = data.draw(materials(self.dimensions))
        length = len(material.content.encode("utf-16-le")) // 2
        self._must_refuse(_with(material, units=(*material.units, (0, length + beyond))))

    @rule(ids=st.lists(st.sampled_from([f"item-{number}" for number in range(9)]), max_size=3))
    def delete_some(self, ids: list[str]) -> None:
        """Delete materials, some of which are not there."""
        self.delete(ids)
        for material_id in ids:
            self._model.pop(material_id, None)
        self._sweep()

    @rule()
    def open_again(self) -> None:
        """Close the store and open it again."""
        self.close_store()
        self.store = self.open_store(self.path, create=False)

    @rule()
    def crash(self) -> None:
        """Go on with the files as they are on disk, as after a power cut."""
        crashed = self.path.parent / "crashed"
        crashed.mkdir()
        for file in self.path.parent.glob(f"{self.path.name}*"):
            shutil.copy(file, crashed)
        self.close_store()
        for file in self.path.parent.glob(f"{self.path.name}*"):
            file.unlink()
        for file in crashed.iterdir():
            shutil.move(file, self.path.parent)
        crashed.rmdir()
        self.store = self.open_store(self.path, create=False)

    @rule(data=st.data(), after=st.integers(1, 400))
    def be_stopped(self, data: st.DataObject, after: int) -> None:
        """Stop a rebuild midway: the file holds what it held, or all of the new."""
        material = data.draw(materials(self.dimensions))
        if self._path_is_taken(material):
            return
        try:
            with self.stopping(after):
                self.rebuild(material)
        except self.refused:
            return
        self._accept(material)

    # --- the model -------------------------------------------------------------------------------------------------

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        """Hold the file against the model, by SQLite alone."""
        state = stored_state(self.path)
        expected = {key: (one.relative_path, one.content) for key, one in self._model.items()}
        assert state.materials == expected
        units = {
            key: [(start, end, body) for (start, end), body in zip(one.units, one.bodies, strict=True)]
            for key, one in self._model.items()
            if one.units
        }
        assert state.units == units
        assert state.contents == {one.content for one in self._model.values()}
        assert state.embeddings == self._vectors
        assert state.unfound == []

    def _path_is_taken(self, material: MaterialInput) -> bool:
        paths = {one.relative_path for key, one in self._model.items() if key != material.material_id}
        return material.relative_path in paths

    def _must_refuse(self, material: MaterialInput) -> None:
        try:
            self.rebuild(material)
        except self.refused:
            return
        raise AssertionError(f"the store took what it must refuse: {material}")

    def _accept(self, material: MaterialInput) -> None:
        self._model[material.material_id] = material
        for key, vector in material.embeddings.items():
            # A text that the file has keeps its vector.
            self._vectors.setdefault(key, vector)
        self._sweep()

    def _sweep(self) -> None:
        reached = {key for one in self._model.values() for key in one.embeddings}
        self._vectors = {key: vector for key, vector in self._vectors.items() if key in reached}

    def teardown(self) -> None:
        """Close the store and remove its folder."""
        self.close_store()
        self._keep.close()


def _with(material: MaterialInput, **changes: Any) -> MaterialInput:
    fields = {name: getattr(material, name) for name in material.__dataclass_fields__}
    return MaterialInput(**{**fields, **changes})
