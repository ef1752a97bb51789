"""The strategies and the machine that other implementers use."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from harness import examples, run
from hypothesis import Phase, find, given, settings
from hypothesis.stateful import run_state_machine_as_test

from regraft.formats.vector_checks import is_finite
from regraft.testing import (
    IndexStoreMachine,
    MaterialInput,
    V1Case,
    javascript_texts,
    materials,
    texts,
    v1_cases,
    vectors,
)

machine_settings = settings(max_examples=examples(40), stateful_step_count=20, deadline=None)
#: Enough to see that something is wrong; making it small takes long.
seen_wrong = settings(machine_settings, max_examples=200, phases=[Phase.generate], database=None)


class Machine(IndexStoreMachine):
    """The machine as it is, over our own store."""


TestStore = pytest.mark.thorough(Machine.TestCase)
TestStore.settings = machine_settings


def test_a_few_runs_of_the_machine() -> None:
    called: set[str] = set()

    class Noting(Machine):
        """The machine, which notes what it has its store do."""

        def rebuild(self, material: MaterialInput) -> None:
            called.add("rebuild")
            super().rebuild(material)

        def delete(self, material_ids: list[str]) -> None:
            called.add("delete")
            super().delete(material_ids)

    run_state_machine_as_test(Noting, settings=settings(machine_settings, max_examples=2))
    assert called == {"rebuild", "delete"}


class Forgetful(IndexStoreMachine):
    """A store that leaves the vectors of what it deletes."""

    def delete(self, material_ids: list[str]) -> None:
        kept = self.store._db.execute("SELECT * FROM embedding").fetchall()
        super().delete(material_ids)
        self.store._db.executemany("INSERT OR IGNORE INTO embedding VALUES (?, ?, ?)", kept)


class Clamping(IndexStoreMachine):
    """A store that cuts a unit at the end of the text instead of refusing it."""

    def rebuild(self, material: MaterialInput) -> None:
        length = len(material.content.encode("utf-16-le")) // 2
        units = tuple((start, min(end, length)) for start, end in material.units)
        super().rebuild(MaterialInput(**{**material.__dict__, "units": units}))


class Lossy(IndexStoreMachine):
    """A store that turns NaN into zero."""

    def rebuild(self, material: MaterialInput) -> None:
        def mended(vector: bytes) -> bytes:
            numbers = struct.unpack(f"<{len(vector) // 4}f", vector)
            return struct.pack(f"<{len(numbers)}f", *(number if number == number else 0.0 for number in numbers))

        found = {key: mended(vector) for key, vector in material.embeddings.items()}
        super().rebuild(MaterialInput(**{**material.__dict__, "embeddings": found}))


class Unindexed(IndexStoreMachine):
    """A store whose full-text index falls behind."""

    def open_store(self, path: Path, *, create: bool) -> Any:
        store = super().open_store(path, create=create)
        # The store's own keep the index, not those of the file.
        store._db.execute("DROP TRIGGER temp.search_text_ai")
        store._db.execute(
            "CREATE TEMP TRIGGER search_text_ai AFTER INSERT ON main.search_text"
            " BEGIN UPDATE search_text SET fts_rowid ="
            " 1 + ifnull((SELECT max(fts_rowid) FROM search_text), 0) WHERE search_text_id = new.search_text_id; END"
        )
        return store


@pytest.mark.parametrize("broken", [Forgetful, Clamping, Lossy, Unindexed], ids=lambda machine: machine.__name__)
def test_the_machine_finds_what_is_wrong(broken: type[IndexStoreMachine]) -> None:
    with pytest.raises(BaseException):  # noqa: B017 - whatever the assertion or the group of them
        run_state_machine_as_test(broken, settings=seen_wrong)


@given(texts())
def test_texts_can_be_stored(text: str) -> None:
    assert "\0" not in text
    text.encode()


def has_half(text: str) -> bool:
    """Whether UTF-8 cannot encode a text, because it has half of a surrogate pair."""
    return any("\ud800" <= character <= "\udfff" for character in text)


@given(javascript_texts())
def test_texts_of_javascript_are_texts_in_utf_16(text: str) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    assert has_half(text) or units.decode("utf-16-le") == text


def test_texts_of_javascript_have_halves_of_characters() -> None:
    certain = settings(database=None, derandomize=True, max_examples=1_000)
    half = find(javascript_texts(), has_half, settings=certain)
    whole = find(javascript_texts(), lambda text: len(text) > 3 and not has_half(text), settings=certain)
    with pytest.raises(UnicodeEncodeError):
        half.encode()
    assert whole.encode().decode() == whole


@given(vectors(3), vectors(3, degenerate=False))
def test_vectors_have_their_length(vector: bytes, directed: bytes) -> None:
    assert len(vector) == len(directed) == 12
    assert any(struct.unpack("<3f", directed))


@given(materials(dimensions=2))
def test_materials_are_cut_at_their_bodies(material: MaterialInput) -> None:
    assert len(material.bodies) == len(material.units)
    assert all(len(vector) == 8 for vector in material.embeddings.values())


@settings(max_examples=examples(40))
@given(v1_cases())
def test_any_valid_case_is_carried_whole(case: V1Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = case.write(Path(folder) / "v1")
        done = run("migrate", source, "--to", Path(folder) / "library", "--json")
    assert done.status in (0, 1), done.stderr
    document = done.document
    assert {base["status"] for base in document["bases"]} == {"completed"}
    every = [row for rows in case.rows.values() for row in rows]
    left = sum(row.loader_id == "left" for row in every)
    endless = sum(row.loader_id != "left" and not is_finite(row.vector) for row in every)
    rows = document["totals"]["rows"]
    assert rows["read"] == sum(map(len, case.rows.values()))
    expected = {"unmapped_loader": left, "non_finite_vector": endless}
    assert rows["skipped"] == {reason: count for reason, count in expected.items() if count}
