"""Embedding what all libraries of a fleet lack: each text once, and each library as if it had been filled alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from conftest import Outcome, run_as_given
from fault_server import FaultServer
from lacking import (
    COMPARED,
    LACKING,
    OTHER,
    OTHER_TEXTS,
    TEXTS,
    all_vectors,
    configured,
    library,
    taken_away,
    vectors,
)

NAMES = ("anna", "boris", "clara")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library that lacks vectors in both of its bases; no test changes it."""
    store = taken_away(library(tmp_path_factory.mktemp("whole")))
    return taken_away(store, OTHER_TEXTS["page"][:1], OTHER)


@pytest.fixture
def stores(whole: Path, tmp_path: Path) -> Path:
    """Return a folder of three libraries that lack the same vectors, but for one that lacks more."""
    folder = tmp_path / "stores"
    for name in NAMES:
        shutil.copytree(whole, folder / name)
    taken_away(folder / "clara", TEXTS[:1])
    return folder


def backfill(stores: Path, config: Path, *options: object) -> Outcome:
    """Run the command for a program, with results beside the libraries."""
    out = stores.parent / "out.parquet"
    return run_as_given(
        "fleet", "backfill", stores, "--results", out, "--config", config, "--workers", 2, "--json", "-y", *options
    )


def rows_in(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of libraries by the names of their sources."""
    return {Path(row["source"]).name: row for row in pq.read_table(path).to_pylist() if row["base"] is None}


def test_each_text_is_sent_once_and_each_library_filled(stores: Path, tmp_path: Path) -> None:
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server)
        done = backfill(stores, config)
    assert done.status == 0, done
    wanted = {*LACKING, OTHER_TEXTS["page"][0], TEXTS[0]}
    assert sorted(server.texts) == sorted({*wanted, *COMPARED, OTHER_TEXTS["page"][1]})
    for name in NAMES:
        assert vectors(stores / name) == all_vectors()
        assert vectors(stores / name, OTHER) == all_vectors(OTHER_TEXTS["page"])
    sent = done.document["sent"]
    assert (sent["wanted"], sent["distinct"]) == (3 * len(LACKING) + 3 + 1, len(wanted))
