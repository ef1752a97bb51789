"""``regraft backfill`` over schemas of strangers: what was paid for is written, or nothing is paid for."""

from __future__ import annotations

import shutil
from pathlib import Path

import foreign
import pytest
from fault_server import FaultServer
from harness import run
from lacking import all_vectors, backfill, library, taken_away, vectors
from planted_v2 import index, run_sql
from toys import contents

pytest.importorskip("openai", reason="the client of embedding servers is not installed")
PLANTED = {
    "after insert": ("CREATE TRIGGER evil AFTER INSERT ON embedding BEGIN DELETE FROM search_unit; END",),
    "raises": ("CREATE TRIGGER evil BEFORE INSERT ON embedding BEGIN SELECT RAISE(ABORT, 'no'); END",),
}
REFUSED = {
    "computed": ("ALTER TABLE embedding ADD COLUMN made AS (zeroblob(900000000))",),
    "replaces": foreign.TABLES["rule that replaces"],
    "view": foreign.VIEWS["before embedding"],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return taken_away(shutil.copytree(whole, tmp_path / "library"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTED)
def test_a_trigger_never_runs(store: Path, server: FaultServer, config: Path, name: str) -> None:
    run_sql(index(store), *PLANTED[name])
    before = contents(store)
    assert backfill(store, config).status <= 1
    assert vectors(store) == all_vectors()
    assert run("undo", store, "--yes").status == 0
    assert contents(store) == before


@pytest.mark.thorough
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE UNIQUE INDEX more ON embedding (created_at)",
        "CREATE INDEX more ON embedding (abs(created_at))",
        "CREATE INDEX more ON embedding (created_at) WHERE abs(created_at) > 0",
    ],
)
def test_an_index_that_can_refuse_a_vector_is_refused_before_anything_is_sent(
    store: Path, server: FaultServer, config: Path, statement: str
) -> None:
    """The second vector of one moment has the time of the first: a unique index of times would refuse it."""
    run_sql(index(store), "UPDATE embedding SET created_at = rowid", statement)
    before = contents(store)
    for dry_run in (True, False):
        done = backfill(store, config, *(("--dry-run",) if dry_run else ()))
        assert (done.status, done.document["error"]["code"]) == (2, "RowsMayBeRefused")
        assert "the index more does not belong to the layout" in done.stderr
    assert contents(store) == before
    assert server.requests == []
    run_sql(index(store), "DROP INDEX more")
    assert backfill(store, config).status <= 1
    assert server.requests != []


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_written_is_not_paid_for(store: Path, server: FaultServer, config: Path, name: str) -> None:
    run_sql(index(store), *REFUSED[name])
    before = index(store).read_bytes()
    done = backfill(store, config)
    assert done.status in (1, 2)
    assert "bug in regraft" not in done.stderr
    assert index(store).read_bytes() == before
    assert server.requests == []
