"""A Hypothesis state machine that compares any index store with a model: rebuild, delete, reopen, crash, search."""

from __future__ import annotations

import math
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import apsw
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from regraft import identity
from regraft.disk import scratch, sqlite
from regraft.errors import RegraftError
from regraft.formats.cherry_v2.index import IndexStore
from regraft.identity import replace
from regraft.testing.stored import StoredState, as_bytes, index_problems, inspect_index, sentence
from regraft.testing.strategies import MaterialInput, materials

BASE_ID = "5e6f7a8b-9c0d-4e1f-8a2b-3c4d5e6f7a8b"
_OTHER_BASE_ID = "11111111-1111-4111-8111-111111111111"
#: Linux's file system in memory.
_IN_MEMORY = Path("/dev/shm")
_NOW_MS = 1_795_262_400_000
_IDS = [f"item-{number}" for number in range(9)]


class IndexStoreMachine(RuleBasedStateMachine):
    """Compares an index store with a model (``docs/testing.md``).

    To test your own store, override :meth:`open_store`, :meth:`rebuild`, :meth:`delete` and :meth:`close_store`, and
    set ``refused`` to the exceptions for invalid input. If your store can be stopped midway, override :meth:`stopping`;
    if it can be read or searched, :meth:`read_units`, :meth:`search_words` and :meth:`search_vectors`. Then ``TestStore
    = MyMachine.TestCase``.
    """

    dimensions: ClassVar[int] = 4
    #: Exceptions for input that the store refuses, and the one that :meth:`stopping` raises. The file must then be
    #: unchanged.
    refused: ClassVar[tuple[type[Exception], ...]] = (RegraftError,)

    def __init__(self) -> None:
        super().__init__()
        self._keep = ExitStack()
        # A folder in memory, because a store flushes many small changes.
        is_chosen = any(name in os.environ for name in ("TMPDIR", "TEMP", "TMP"))
        root = None if is_chosen or not os.access(_IN_MEMORY, os.W_OK) else _IN_MEMORY
        folder = self._keep.enter_context(scratch.temporary_folder(root=root))
        #: Path of the index file under test.
        self.path = folder / "index.sqlite"
        self._model: dict[str, MaterialInput] = {}
        self._vectors: dict[str, bytes] = {}
        #: Description of the last step, for messages.
        self._last = "creating the index"
        #: The store under test.
        self.store: Any = None
        try:
            self.store = self.open_store(self.path, create=True)
        except BaseException:
            self._keep.close()
            raise

    # --- what another store overrides ------------------------------------------------------------------------------

    def open_store(self, path: Path, *, create: bool) -> Any:
        """Open the store under test for the base :data:`BASE_ID`."""
        return IndexStore(path, BASE_ID, create=create)

    def close_store(self) -> None:
        """Close the store under test."""
        self.store.close()

    def rebuild(self, material: MaterialInput) -> None:
        """Add or replace a material."""
        self.store.rebuild_material(
            material.material_id,
            material.relative_path,
            material.content,
            material.units,
            material.embeddings,
            _NOW_MS,
        )

    def delete(self, material_ids: list[str]) -> None:
        """Delete materials. Unknown ids are not an error."""
        self.store.delete_materials(material_ids)

    @contextmanager
    def stopping(self, after: int) -> Iterator[None]:
        """Return a context in which the store fails after this many steps, with one of the exceptions in ``refused``.

        By default, an :class:`IndexStore` is stopped after steps of SQLite; other stores are not stopped.
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

    def read_units(self, material_id: str) -> list[tuple[int, int, str]] | None:
        """Return (start, end, body) of a material's units in order, as the store reads them.

        By default, the units that an :class:`IndexStore` lists; None if reading is not tested.
        """
        if not isinstance(self.store, IndexStore):
            return None
        return [(unit.char_start, unit.char_end, unit.text) for unit in self.store.list_units(material_id)]

    def search_words(self, query: str, count: int) -> list[str] | None:
        """Return the ids of up to ``count`` units that contain a word, best first; None if search is not tested."""
        del query, count
        return None

    def search_vectors(self, vector: bytes, count: int) -> list[str] | None:
        """Return the ids of the ``count`` units nearest to a vector by cosine distance, best first.

        None if search is not tested.
        """
        del vector, count
        return None

    # --- rules -----------------------------------------------------------------------------------------------------

    @initialize()
    def walk_through(self) -> None:
        """Try at the beginning of each run what stores most often get wrong, whatever Hypothesis draws later."""
        self._check()
        for walk in (self._walk_texts, self._walk_vectors, self._walk_refusals, self._walk_openings):
            walk()
        self._delete(_IDS)
        self._check()

    @rule(data=st.data())
    def rebuild_one(self, data: st.DataObject) -> None:
        """Rebuild a drawn material. If another material has its path, the store must refuse it."""
        material = data.draw(materials(self.dimensions))
        if self._path_is_taken(material):
            self._must_refuse(material, "a path that another material has")
        else:
            self._rebuild(material)

    @rule(data=st.data())
    def rebuild_with_a_gap(self, data: st.DataObject) -> None:
        """Rebuild a drawn material without the vector of a body: refused, unless the index file has that vector."""
        material = data.draw(materials(self.dimensions))
        missing = [key for key in material.embeddings if key not in self._vectors]
        if missing:
            rest = {key: vector for key, vector in material.embeddings.items() if key != missing[0]}
            self._must_refuse(replace(material, embeddings=rest), "a body without a vector")
        elif not self._path_is_taken(material):
            self._rebuild(material, without=set(material.embeddings))

    @rule(data=st.data(), beyond=st.integers(1, 9))
    def rebuild_beyond_the_text(self, data: st.DataObject, beyond: int) -> None:
        """Rebuild a drawn material with a unit that ends ``beyond`` units after its text: refused, not shortened."""
        material = data.draw(materials(self.dimensions))
        length = len(material.content.encode("utf-16-le")) // 2
        self._must_refuse(replace(material, units=(*material.units, (0, length + beyond))), "a unit beyond the text")

    @rule(ids=st.lists(st.sampled_from(_IDS), max_size=3))
    def delete_some(self, ids: list[str]) -> None:
        """Delete the materials with these ids; some of them do not exist."""
        self._delete(ids)

    @rule()
    def open_again(self) -> None:
        """Close the store and open it again."""
        self._reopen()

    @rule()
    def crash(self) -> None:
        """Continue with the files as they are on disk, as after a power cut."""
        self._last = "a crash"
        crashed = self.path.parent / "crashed"
        _copy_files(self.path, crashed)
        self.close_store()
        for file in self.path.parent.glob(f"{self.path.name}*"):
            file.unlink()
        for file in crashed.iterdir():
            shutil.move(file, self.path.parent)
        crashed.rmdir()
        self.store = self.open_store(self.path, create=False)

    @rule(data=st.data(), after=st.integers(1, 400))
    def be_stopped(self, data: st.DataObject, after: int) -> None:
        """Stop the rebuild of a drawn material midway. The index file must have the state before or after it."""
        material = data.draw(materials(self.dimensions))
        if not self._path_is_taken(material):
            self._stop(material, after)

    @rule(count=st.integers(1, 5), data=st.data())
    def search(self, count: int, data: st.DataObject) -> None:
        """Search for a word and for a vector that the index file contains, for up to ``count`` units."""
        bodies = sorted({body for one in self._model.values() for body in one.bodies})
        if bodies:
            body = data.draw(st.sampled_from(bodies))
            word = next((word for word in body.split() if len(word) >= 3 and word.isascii() and word.isalnum()), None)
            if word is not None:
                self._search_words(word, count)
            self._search_vectors(body, count)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        """Compare the index file with the format and with the model after every step."""
        self._check()

    # --- what is always tried --------------------------------------------------------------------------------------

    def _walk_texts(self) -> None:
        """Try texts: emoji before a unit, white space, NUL, equal texts, fewer texts, no text."""
        emoji = self._material(0, "a.md", ["🎉 one 𝒳", "  padded\t\n", "two", "three words here"])
        self._rebuild(emoji, "adding four units with emoji")
        case = self._material(1, "A.md", ["two", "Two", "nul\0 inside", "nul\0"])
        self._rebuild(case, "adding a path in another case")
        self._rebuild(self._material(2, "notes/n.md", emoji.bodies), "adding a material of the same text")
        self._delete(["item-0", "unknown"])
        self._check()
        self._rebuild(self._material(2, "notes/n.md", ["two"]), "replacing a material by one of fewer units")
        self._rebuild(self._material(1, "moved.md", ["two", "four"]), "replacing a material under another path")
        self._rebuild(self._material(3, "c.md", ["two", "", "two", "%_'\""]), "adding an empty and a repeated unit")
        self._rebuild(replace(self._material(4, "d.md", []), content="no units"), "adding a material without units")
        self._rebuild(self._material(5, "e.md", []), "adding a material of an empty text")
        several = [f"body {n} of a lighthouse{' by the sea' * n}" for n in range(6)]
        self._rebuild(self._material(6, "f.md", several), "adding six units")
        self._search_words("body", 3)
        self._search_vectors(several[3], 3)
        self._delete(["item-6"])
        self._check()
        self._search_words("body", 3)
        self._search_vectors("two", 3)

    def _walk_vectors(self) -> None:
        """Write vectors: a stored one stays if another is given or none is; zeros, NaN and denormals are kept."""
        again = self._material(2, "notes/n.md", ["two", "five"], seed=1)
        self._rebuild(again, "rebuilding a text with another vector than the stored one, which stays")
        self._rebuild(again, "rebuilding a material with no vector given, as the file has all", set(again.embeddings))
        odd = self._material(7, "odd.md", ["zeros", "numbers that are none", "tiny"])
        patterns = (bytes(4), b"\x2a\x00\xc0\xff", b"\x01\x00\x00\x00")
        vectors = {key: pattern * self.dimensions for key, pattern in zip(odd.embeddings, patterns, strict=True)}
        self._rebuild(replace(odd, embeddings=vectors), "adding vectors of zeros, of NaN and of denormal numbers")
        self._delete(["item-7"])
        self._check()

    def _walk_refusals(self) -> None:
        """Try to replace a material with invalid input, and go on afterwards."""
        there = self._model["item-2"]
        new = self._material(2, there.relative_path, ["seven", "eight"])
        self._must_refuse(replace(new, embeddings=dict([*new.embeddings.items()][:1])), "a body without a vector")
        self._check()
        # A store that shortens the unit has a vector for the rest.
        short = self._material(2, there.relative_path, ["seven"])
        self._must_refuse(replace(short, units=((0, len("seven") + 1),)), "a unit beyond the text")
        self._check()
        self._must_refuse(replace(new, relative_path=self._model["item-3"].relative_path), "a path that is taken")
        self._check()
        for path in ("", "/n.md", ".cherry/index.sqlite"):
            self._may_refuse(replace(new, relative_path=path), f"the path {path!r}")
        self._may_refuse(replace(new, units=((4, 2),)), "a unit that ends before it begins")
        half = "half \ud83d of an emoji"
        vectors = {identity.text_hash(half.replace("\ud83d", "\ufffd")): next(iter(new.embeddings.values()))}
        self._may_refuse(replace(new, content=half, units=((0, len(half)),), embeddings=vectors), "half of an emoji")
        for after in (25, 75, 200):
            self._stop(replace(new, relative_path="stopped.md"), after)
            self._check()
        self._rebuild(new, "rebuilding after refusals")

    def _walk_openings(self) -> None:
        """Open the file again, after a crash, with the id of another base, and with another version."""
        self._reopen()
        self._check()
        self.crash()
        self._check()
        if self._is_opened(f"UPDATE meta SET base_id = '{_OTHER_BASE_ID}'"):
            self._fail("opening a file", ["it opens the index of another base: meta.base_id is not compared"])
        for version in (1, 3):
            self._is_opened(f"UPDATE meta SET schema_version = {version}")
        self._rebuild(self._material(0, "a.md", ["nine"]), "adding a material to the file that was opened again")

    def _material(self, number: int, path: str, bodies: Sequence[str], *, seed: int = 0) -> MaterialInput:
        """Build a material with the id ``number`` of _IDS and these bodies, joined by blank lines.

        Each body has its own vector, and another one for another ``seed``.
        """
        units, start = [], 0
        for body in bodies:
            length = len(body.encode("utf-16-le")) // 2
            units.append((start, start + length))
            start += length + 2
        keys = dict.fromkeys(identity.text_hash(body) for body in bodies)
        vectors = {
            key: struct.pack(
                f"<{self.dimensions}f", *(_number_from_hash(key, place + seed) for place in range(self.dimensions))
            )
            for key in keys
        }
        return MaterialInput(
            material_id=_IDS[number],
            relative_path=path,
            content="\n\n".join(bodies),
            units=tuple(units),
            embeddings=vectors,
        )

    # --- what is done to the store and to the model -----------------------------------------------------------------

    def _rebuild(
        self, material: MaterialInput, doing: str = "", without: frozenset[str] | set[str] = frozenset()
    ) -> None:
        """Rebuild a valid material in the store, and expect it from now on.

        Args:
            material: the material.
            doing: the step for messages; if given, the index file is compared at once.
            without: hashes of bodies whose vectors are not given.
        """
        self._last = doing or f"rebuilding {material.material_id}"
        given = {key: vector for key, vector in material.embeddings.items() if key not in without}
        try:
            self.rebuild(replace(material, embeddings=given))
        except self.refused as error:
            bodies = f"the bodies are {material.bodies!r}"
            self._fail(self._last, [f"the store refuses valid input: {type(error).__name__}: {error}; {bodies}"])
        self._accept(material)
        if doing:
            self._check()

    def _delete(self, material_ids: list[str]) -> None:
        """Delete materials from the store and from the model."""
        self._last = f"deleting {', '.join(material_ids) or 'nothing'}"
        self.delete(material_ids)
        for material_id in material_ids:
            self._model.pop(material_id, None)
        self._drop_unused_vectors()

    def _reopen(self) -> None:
        """Close the store and open it again."""
        self._last = "opening the store again"
        self.close_store()
        self.store = self.open_store(self.path, create=False)

    def _stop(self, material: MaterialInput, after: int) -> None:
        """Stop the rebuild of a material after some steps; expect its result if it was completed nevertheless."""
        self._last = f"a rebuild of {material.material_id} that was stopped after {after} steps"
        try:
            with self.stopping(after):
                self.rebuild(material)
        except self.refused:
            return
        self._accept(material)

    def _must_refuse(self, material: MaterialInput, what: str) -> None:
        """Fail unless the store refuses a material; ``what`` says what is wrong with it."""
        self._last = f"refusing {what}"
        try:
            self.rebuild(material)
        except self.refused:
            return
        self._fail(self._last, [f"the store takes what it must refuse ({what}): {material}"])

    def _may_refuse(self, material: MaterialInput, what: str) -> None:
        """Give the store a material that SQLite or Python refuses; ``what`` says what is wrong with it.

        Any exception is accepted if nothing was written. Without an exception, the text must be stored unchanged.
        """
        self._last = f"refusing {what}"
        before = self._contents()
        try:
            self.rebuild(material)
        except Exception:
            self._check()
            return
        text = material.content.encode("utf-8", "surrogatepass")
        if text not in self._contents() - before:
            self._fail(self._last, [f"the store takes {what} and stores another text"])
        if problems := index_problems(self.path, BASE_ID, dimensions=self.dimensions):
            self._fail(f"taking {what}", problems)
        self._rebuild(self._model[material.material_id], f"replacing {what}")

    def _contents(self) -> set[bytes]:
        """Return the texts of all contents in the index file, as bytes."""
        with sqlite.open_readonly(self.path) as db:
            return {as_bytes(text) for (text,) in db.execute("SELECT CAST(text AS BLOB) FROM content")}

    def _is_opened(self, change: str) -> bool:
        """Whether the store opens a copy of the index file that was changed by the SQL statement ``change``.

        The content of the copy must not change.
        """
        self._last = f"opening a file after {change}"
        self.close_store()
        folder = self.path.parent / "other"
        _copy_files(self.path, folder)
        copy = folder / self.path.name
        with closing(apsw.Connection(str(copy))) as db:
            db.execute(change)
        before = _read_user_rows(copy)
        try:
            self.store = self.open_store(copy, create=False)
        except Exception:
            is_taken = False
        else:
            is_taken = True
            self.close_store()
        if _read_user_rows(copy) != before:
            self._fail(self._last, ["the store changes or empties a file that it must leave alone"])
        # On Windows, a store that refuses a file may still have it open.
        shutil.rmtree(folder, ignore_errors=True)
        self.store = self.open_store(self.path, create=False)
        return is_taken

    def _path_is_taken(self, material: MaterialInput) -> bool:
        """Whether another material of the model has the path of this one."""
        paths = {one.relative_path for key, one in self._model.items() if key != material.material_id}
        return material.relative_path in paths

    def _accept(self, material: MaterialInput) -> None:
        """Add a material to the model, or replace it, after the store has taken it."""
        self._model[material.material_id] = material
        for key, vector in material.embeddings.items():
            # A text that the file has keeps its vector.
            self._vectors.setdefault(key, vector)
        self._drop_unused_vectors()

    def _drop_unused_vectors(self) -> None:
        """Remove the vectors from the model that no body needs any more."""
        reached = {key for one in self._model.values() for key in one.embeddings}
        self._vectors = {key: vector for key, vector in self._vectors.items() if key in reached}

    # --- what is compared ------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Compare the index file with the format and the model, and what the store reads with the model."""
        problems, state = inspect_index(self.path, BASE_ID, self.dimensions)
        if state is not None:
            problems += self._differences(state)
        for key, one in {**dict.fromkeys(_IDS), **self._model}.items():
            read = self.read_units(key)
            if read is not None and read != ([] if one is None else _list_units(one)):
                problems.append(f"the store reads other units of {key} than it was given: {read}")
        if problems:
            self._fail(self._last, problems)

    def _differences(self, state: StoredState) -> Iterator[str]:
        """Yield where the content of the index file differs from the model, one sentence each."""
        materials_of = {key: (one.relative_path, one.content) for key, one in self._model.items()}
        yield from _list_differences("material", state.materials, materials_of)
        units = {key: _list_units(one) for key, one in self._model.items() if one.units}
        yield from _list_differences("units of", state.units, units)
        contents = dict.fromkeys(one.content for one in self._model.values())
        yield from _list_differences("content", dict.fromkeys(state.contents), contents)
        yield from _list_differences("embedding", state.embeddings, self._vectors)
        if state.unfound:
            yield f"the full-text index does not find {state.unfound[0]!r} under its number"

    def _search_words(self, word: str, count: int) -> None:
        """Let the store search for a word, and compare its result with a search by SQL."""
        found = self.search_words(word, count)
        if found is None:
            return
        with sqlite.open_readonly(self.path) as db:
            ranked: list[Any] = db.execute(
                "SELECT t.target_id, bm25(search_text_fts) FROM search_text_fts"
                " JOIN search_text t ON t.fts_rowid = search_text_fts.rowid WHERE search_text_fts MATCH ?",
                (f'"{word}"',),
            ).fetchall()
        self._compare_ranking(f"searching for {word!r}", found, dict(ranked), count)

    def _search_vectors(self, body: str, count: int) -> None:
        """Let the store search for the vector of a stored body, and compare its result with all distances."""
        with sqlite.open_readonly(self.path) as db:
            stored = db.execute(
                "SELECT t.target_id, e.vector_blob FROM search_text t"
                " JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash"
            ).fetchall()
        vector = self._vectors[identity.text_hash(body)]
        if not all(_has_direction(as_bytes(vector)) for _, vector in stored):
            # A vector without a direction has no distance to compare.
            return
        found = self.search_vectors(vector, count)
        if found is not None:
            distances = {}
            one = _numbers(vector)
            for unit, other in stored:
                numbers = _numbers(as_bytes(other))
                dot = sum(left * right for left, right in zip(one, numbers, strict=True))
                distances[str(unit)] = 1 - dot / (math.hypot(*one) * math.hypot(*numbers))
            self._compare_ranking("searching by a vector", found, distances, count)

    def _compare_ranking(self, doing: str, found: list[str], ranked: dict[Any, Any], count: int) -> None:
        """Fail unless the units that the store found are the ``count`` best, in order.

        Args:
            doing: the search, for messages.
            found: ids of the units that the store found, best first.
            ranked: the rank of every unit that may be found, lowest first; equal ranks may be in any order.
            count: the number of units that was asked for.
        """
        unknown = [unit for unit in found if unit not in ranked]
        if unknown:
            self._fail(doing, [f"finds a unit that is not there or does not match: {unknown[0]}"])
        if len(found) != len(set(found)) or len(found) != min(count, len(ranked)):
            self._fail(doing, [f"finds {len(found)} units instead of {min(count, len(ranked))}, asked for {count}"])
        best = sorted(ranked.values())[: len(found)]
        for unit, expected in zip(found, best, strict=True):
            if not math.isclose(ranked[unit], expected, rel_tol=1e-4, abs_tol=1e-6):
                self._fail(doing, [f"ranks the unit {unit} ({ranked[unit]}) where one of {expected} belongs"])

    def _fail(self, doing: str, problems: list[str]) -> None:
        """Raise AssertionError with the problems that were found after the step ``doing``."""
        raise AssertionError(f"after {doing}:\n{sentence(problems)}")

    def teardown(self) -> None:
        """Close the store and remove its folder."""
        with suppress(Exception):
            # An earlier failure is reported instead.
            self.close_store()
        self._keep.close()


def _list_units(material: MaterialInput) -> list[tuple[int, int, str]]:
    """Return (start, end, body) of each unit of a material, in order."""
    return [(start, end, body) for (start, end), body in zip(material.units, material.bodies, strict=True)]


def _number_from_hash(key: str, place: int) -> float:
    """Return a number made from the part ``place`` of a hash in hex; it needs all bits of single precision."""
    return int(key[8 * (place % 8) : 8 * (place % 8) + 8], 16) / 3 / 2**30 - 0.7


def _list_differences(noun: str, found: dict[str, Any], expected: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each key with different values; ``noun`` says what the keys identify."""
    for key in sorted(found.keys() | expected.keys()):
        if key not in expected:
            yield f"{noun} {key!r} is still there, or was never given"
        elif key not in found:
            yield f"{noun} {key!r} is missing"
        elif found[key] != expected[key]:
            yield f"{noun} {key!r} is {_format_value(found[key])} instead of {_format_value(expected[key])}"


def _format_value(value: object) -> str:
    """Format a stored value for a message; bytes in hex."""
    return value.hex(" ", 4) if isinstance(value, bytes) else repr(value)


def _copy_files(path: Path, folder: Path) -> None:
    """Copy an index file with its journal or log to a new folder."""
    folder.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        shutil.copy(file, folder)


def _read_user_rows(path: Path) -> list[Any]:
    """Return the rows of each table with user data in an index file; for an unreadable table, its error."""
    read: list[Any] = []
    with sqlite.open_readonly(path) as db:
        for table in ("meta", "content", "material", "search_unit", "search_text", "embedding"):
            try:
                read.append(sorted(db.execute(f"SELECT * FROM {table}").fetchall(), key=repr))
            except apsw.Error as error:
                read.append(str(error))
    return read


def _numbers(vector: bytes) -> tuple[float, ...]:
    """Unpack a vector of little-endian float32."""
    return struct.unpack(f"<{len(vector) // 4}f", vector)


def _has_direction(vector: bytes) -> bool:
    """Whether a vector is neither zero nor infinite nor NaN, so that it has a cosine distance."""
    return len(vector) % 4 == 0 and 1e-9 < math.hypot(*_numbers(vector)) < 1e9
