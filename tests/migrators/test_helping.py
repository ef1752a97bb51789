"""Processes that help a migration: the same library as without them, also where they fail at one of their jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import faults
import pytest
from faults import Source, files_of, left_over, library, migrate, small_source, state_of, write_vectors
from harness import Outcome

from regraft.formats import fts5
from regraft.formats.cherry_v2 import index
from regraft.formats.cherry_v2.index import bulk
from regraft.processes import pool, startup
from regraft.processes.pool import ProcessPool


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    """Build a base of uploads, one of which is not there; no run may change a byte of it."""
    source = Source(tmp_path_factory.mktemp("helping") / "source")
    uploads = [source.upload(f"f{number}", f"page {number}.txt", b"page %d" % number) for number in range(70)]
    source.base("alpha", [*uploads, faults.item("memo", "note", "remember the lamp")])
    write_vectors(source.vectors("alpha"), {f"item-f{number}": 3 for number in range(70)} | {"memo": 2})
    source.write()
    next(path for path in sorted((source.folder / "Files").iterdir()) if path.read_bytes() == b"page 7").unlink()
    before = state_of(source.folder)
    yield source
    assert state_of(source.folder) == before


@pytest.fixture
def helped(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Let processes help with the smallest base."""
    monkeypatch.setattr(startup, "LARGE_FILE_BYTES", 0)
    monkeypatch.setattr(fts5, "MIN_TEXT_BYTES", 0)
    monkeypatch.setattr(bulk, "PART_BODIES", 1)
    monkeypatch.setattr(pool, "usable_cores", lambda: 3)
    caplog.set_level(logging.INFO)


def _failing(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Let every job of these functions fail, and return the names of all functions that were put."""
    real, put = ProcessPool.put, []

    def patched(helpers: ProcessPool, function: Callable[..., Any], *given: Any) -> int:
        put.append(function.__name__)
        return real(helpers, int, "no number") if function.__name__ in names else real(helpers, function, *given)

    monkeypatch.setattr(ProcessPool, "put", patched)
    return put


def _migrated(source: Source, target: Path) -> Outcome:
    done = migrate(source.folder, target, "--json")
    # One upload is not there.
    assert done.status == 1
    assert left_over(target) == []
    return done


_OF_A_RUN = {"run", "target", "totals", "preflight"}
_JOBS = {
    "content_marks": "files are read whole by one process",
    "copy_files": "uploads are copied by one process",
    "file_hash": "files are hashed again",
    "folder_hash": "files are hashed again",
    "_is_range_correct": "a part of the index is verified again by this process",
}


@pytest.mark.thorough
@pytest.mark.usefixtures("helped")
def test_helpers_come_to_what_one_process_comes_to(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = _failing(monkeypatch)
    helped = _migrated(source, tmp_path / "helped").document
    assert {*_JOBS, "sort_texts", "build_range_pages"} <= set(put)

    monkeypatch.setattr(pool, "usable_cores", lambda: 1)
    put.clear()
    alone = _migrated(source, tmp_path / "alone").document
    assert not put
    assert "page 7.txt: the uploaded file" in str(alone)
    for document in (helped, alone):
        for base in document["bases"]:
            # It lies in another folder, and pages of its full-text index are of other lengths.
            del base["index"]
    parts = [{key: value for key, value in one.items() if key not in _OF_A_RUN} for one in (helped, alone)]
    assert parts[0] == parts[1]
    files = [files_of(next((tmp_path / name / "KnowledgeBase").iterdir())) for name in ("helped", "alone")]
    assert files[0].keys() == files[1].keys()
    assert {path for path in files[0] if files[0][path] != files[1][path]} == {".cherry/index.sqlite"}
    # The one has the words from sorted runs; what the ledger knows of the source is the same.
    again = migrate(source.folder, tmp_path / "helped", "--json").document
    assert [base["outcome"] for base in again["bases"]] == ["unchanged"]


@pytest.mark.thorough
@pytest.mark.usefixtures("helped")
def test_what_helpers_fail_at_is_done_by_this_process(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every kind of job fails in one run: each has a way of its own to be done without help."""
    _migrated(source, tmp_path / "well")
    assert "no number" not in caplog.text

    put = _failing(monkeypatch, *_JOBS)
    _migrated(source, tmp_path / "failing")

    assert _JOBS.keys() <= set(put)
    assert [said for said in _JOBS.values() if said not in caplog.text] == []
    assert "no number" in caplog.text
    assert library(tmp_path / "failing") == library(tmp_path / "well")
    again = migrate(source.folder, tmp_path / "failing", "--json").document
    assert [base["outcome"] for base in again["bases"]] == ["unchanged"]


@pytest.mark.usefixtures("helped")
def test_helpers_that_cannot_be_started_are_none(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_process(*_: Any, **__: Any) -> Any:
        raise OSError("no room for a process")

    monkeypatch.setattr("regraft.processes.pool.WorkerProcess", no_process)
    _migrated(source, tmp_path / "library")

    assert "no background processes can be started: no room for a process" in caplog.text
    assert "filled by FTS5 alone: no room for a process" in caplog.text


@pytest.mark.usefixtures("helped")
def test_a_helper_that_reads_something_else_back_stops_the_run(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bit of the last vector turns between writing and reading back."""
    real, sound = index.build_index, _failing(monkeypatch)

    def turning(path: Path, *more: Any, **named: Any) -> Any:
        done = real(path, *more, **named)
        with closing(apsw.Connection(str(path))) as db:
            last = "(SELECT max(rowid) FROM embedding)"
            db.execute(f"UPDATE embedding SET vector_blob = zeroblob(length(vector_blob)) WHERE rowid = {last}")
        return done

    monkeypatch.setattr(index, "build_index", turning)
    done = migrate(source.folder, tmp_path / "library", "--json")

    assert done.status == 3
    assert done.document["error"]["code"] == "VerificationFailed"
    assert "texts or vectors differ" in done.document["error"]["message"]
    assert "_is_range_correct" in sound
    assert not list((tmp_path / "library").glob("KnowledgeBase/*"))


@pytest.mark.usefixtures("helped")
def test_damage_that_only_carrying_finds_leaves_nothing_of_what_helpers_did(tmp_path: Path) -> None:
    source = small_source(tmp_path / "source")
    faults.late_damage(source.vectors("beta"))

    done = migrate(source.folder, tmp_path / "library", "--base", "beta", "--json")

    [base] = done.document["bases"]
    assert base["status"] == "failed"
    assert left_over(tmp_path / "library") == []
    [written] = (tmp_path / "library" / "KnowledgeBase").iterdir()
    assert sorted(path.read_bytes() for path in (written / "raw").iterdir()) == [b"three", b"two"]
