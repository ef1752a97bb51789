"""Runs the state machine of ``regraft.testing`` over a correct store and over mutants, as another program does."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from mutants import MUTANTS
from plain_store import Refused, Store

from regraft.testing import BASE_ID, IndexStoreMachine, MaterialInput

SETTINGS = settings(max_examples=12, stateful_step_count=15, deadline=None, database=None)
#: Enough to see that something is wrong; making the example small takes long.
SEEN_WRONG = settings(SETTINGS, phases=[Phase.generate])


class Machine(IndexStoreMachine):
    refused = (Refused, sqlite3.OperationalError)
    store_class = Store

    def open_store(self, path: Path, *, create: bool) -> Store:
        return self.store_class(path, BASE_ID, create=create)

    def close_store(self) -> None:
        self.store.close()

    def rebuild(self, material: MaterialInput) -> None:
        self.store.replace(
            material.material_id, material.relative_path, material.content, material.units, material.embeddings
        )

    def delete(self, material_ids: list[str]) -> None:
        self.store.delete(material_ids)

    @contextmanager
    def stopping(self, after: int) -> Iterator[None]:
        # Stops once, with sqlite3.OperationalError, which is listed in ``refused``; the rollback is not stopped.
        stops = chain([1], repeat(0))
        self.store.db.set_progress_handler(lambda: next(stops), after)
        try:
            yield
        finally:
            self.store.db.set_progress_handler(None, 0)

    def read_units(self, material_id: str) -> list[tuple[int, int, str]]:
        return self.store.units(material_id)

    def search_words(self, query: str, count: int) -> list[str]:
        return self.store.words(query, count)

    def search_vectors(self, vector: bytes, count: int) -> list[str]:
        return self.store.nearest(vector, count)


class BareMachine(Machine):
    """As a program writes it that has only what must be there."""

    read_units = IndexStoreMachine.read_units
    search_words = IndexStoreMachine.search_words
    search_vectors = IndexStoreMachine.search_vectors
    stopping = IndexStoreMachine.stopping


class WithALog(Store):
    """A correct store in WAL mode."""

    def __init__(self, path: Path, base_id: str, *, create: bool = False) -> None:
        super().__init__(path, base_id, create=create)
        self.db.execute("PRAGMA journal_mode = WAL")


def machine_of(store: type[Store], base: type[Machine] = Machine) -> type[Machine]:
    return type(f"{store.__name__}Machine", (base,), {"store_class": store})


@pytest.mark.parametrize("base", [Machine, BareMachine])
@pytest.mark.parametrize("store", [Store, WithALog])
def test_a_correct_store_is_accepted(store: type[Store], base: type[Machine]) -> None:
    run_state_machine_as_test(machine_of(store, base), settings=SETTINGS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(mutant: type[Store]) -> None:
    with pytest.raises(Exception) as caught:
        run_state_machine_as_test(machine_of(mutant), settings=SEEN_WRONG)
    assert re.search(MUTANTS[mutant], f"{caught.type.__name__}: {caught.value}"), caught.value
