"""Backfill wastes neither requests nor time: batches are full, queries go by an index, checks are quick and right."""

from __future__ import annotations

import math
import shutil
from array import array
from pathlib import Path

import pytest
from fault_server import FaultServer
from hypothesis import given
from hypothesis import strategies as st
from lacking import KB, LACKING, all_vectors, backfill, configured, library, scope_of, taken_away, vectors
from planted_v2 import index

from regraft.disk import sqlite
from regraft.embedders import check, estimate
from regraft.embedders.settings import Batch
from regraft.errors import AnswerUnfit
from repair.cherry_v2 import index_vectors
from repair.embedding import sender

pytest.importorskip("openai", reason="the client of embedding servers is not installed")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("pace"))


@pytest.mark.thorough
@pytest.mark.parametrize("ahead", [1, 2, 3])
@pytest.mark.parametrize("tokens", [20, 30, 45, 1000])
def test_requests_are_packed_over_the_borders_of_claims(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, tokens: int
) -> None:
    """However many are claimed at a time, as many texts go in each request as if there were one row of all texts."""
    monkeypatch.setattr(sender, "_AHEAD", ahead)
    store = taken_away(shutil.copytree(whole, tmp_path / "library"))
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server, batch={"texts": 4, "tokens": tokens})
        planned = scope_of(backfill(store, config, "--dry-run"))["planned"]
        done = backfill(store, config, "--no-probe")
    sized = ((text, estimate(text)) for text in LACKING)
    wanted = [[text for text, _ in batch] for batch in sender.pack_batches(sized, Batch(texts=4, tokens=tokens))]
    assert [request.texts for request in server.requests] == wanted
    assert scope_of(done)["requests"] == planned["requests"] == len(wanted)
    assert vectors(store) == all_vectors()


def test_no_query_of_a_batch_goes_through_a_whole_table(whole: Path, tmp_path: Path) -> None:
    with sqlite.open_readonly(index(whole, KB), vectors=True) as db:
        for query in (index_vectors._LACKING_OF, index_vectors._SAMPLE):
            plan = [
                row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {query}", {"length": 32, "keys": "[]", "start": 0})
            ]
            assert any("USING INDEX search_text_embedding_hash_idx" in step for step in plan), plan
            assert not [step for step in plan if "search_text_kind_idx" in step], plan


# --- checks ----------------------------------------------------------------------------------------------------------


LARGEST_FLOAT32 = 2.0**128 - 2.0**104


@given(st.lists(st.floats(width=32), min_size=1, max_size=9))
def test_the_quick_look_at_exponents_tells_what_the_length_tells(numbers: list[float]) -> None:
    length = math.hypot(*array("f", numbers))
    # A search computes with the sum of the squares in single precision.
    fault = "non_finite" if not length**2 <= LARGEST_FLOAT32 else "zero_vector" if length < 2.0**-63 else None
    try:
        check([array("f", numbers).tobytes()], 1, None, embedder="one")
    except AnswerUnfit as unfit:
        assert unfit.facts["fault"] == fault
    else:
        assert fault is None
