"""A fleet's backfill that something kept from filling its libraries, and the run that goes on with it."""

from __future__ import annotations

import shutil
from pathlib import Path

from conftest import snapshot
from fault_server import FaultServer, vector_of
from lacking import configured, library, taken_away
from three_libraries import backfill, resume, rows_in


def of_another_length(stores: Path, tmp_path: Path, name: str) -> None:
    """Put a library in the place of one whose vectors are twice as long."""
    shutil.rmtree(stores / name)
    made = taken_away(library(tmp_path / "made", lambda text: vector_of(text, 16)))
    shutil.copytree(made, stores / name)
    shutil.rmtree(tmp_path / "made")


# --- the model -------------------------------------------------------------------------------------------------------


def test_a_library_of_longer_vectors_is_refused_and_not_ended_well(stores: Path, tmp_path: Path) -> None:
    of_another_length(stores, tmp_path, "anna")
    before = snapshot(stores / "anna")
    with FaultServer() as server:
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server))
        assert (done.status, done.document["libraries"]) == (2, {"all": 3, "done": 2, "refused": 1})
        row = rows_in(stores)["anna"]
        assert (row["code"], row["exit_status"]) == ("AnswerUnfit", 2)
        assert snapshot(stores / "anna") == before
        # It is looked at again.
        assert resume(stores).document["sent"]["libraries"] == 1
