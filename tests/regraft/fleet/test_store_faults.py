"""A store that loses, delays and falsifies requests and answers: a library is published whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from extras import needs, optional
from fleet_libraries import NOW, content, libraries_in
from fleet_work import put_in_place
from harness import REPO, Outcome, run_as_given
from store_proxy import Fault, StoreProxy, store_proxy

from regraft.disk import writable
from regraft.fleet import versions
from regraft.fleet.storage import storage_path

s3fs = optional("s3fs")
pytestmark = [needs("parquet"), needs("s3")]

SAMPLE = REPO / "sample_v1" / "backup"


@pytest.fixture
def proxy(bucket: str, files: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProxy]:
    """Put a proxy before the store, for this process, which does all the work."""
    put_in_place(monkeypatch)
    with store_proxy(os.environ["AWS_ENDPOINT_URL"]) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
        # Clients are kept by what they were told, and the address is none of it.
        kept = dict(s3fs.S3FileSystem._cache)
        s3fs.S3FileSystem.clear_instance_cache()
        yield made
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem._cache.update(kept)


def migrate(source: object, target: str, out: Path, *options: object) -> Outcome:
    return run_as_given(
        "fleet", "migrate", source, "--to", target, "--results", out, "--json", *options, "--", "--now", NOW
    )


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Return a manifest of one library."""
    (tmp_path / "list.csv").write_text(f"source\n{SAMPLE}\n", "utf-8")
    return tmp_path / "list.csv"


@pytest.fixture
def expected(sources: Path, tmp_path: Path, proxy: StoreProxy) -> dict[str, bytes]:
    """Return the files of the library on disk."""
    assert migrate(sources, str(tmp_path / "disk"), tmp_path / "disk.jsonl").status == 1
    return content(tmp_path / "disk" / "backup")


def fetched(url: str, folder: Path) -> dict[str, bytes]:
    with writable.allow_writes(folder):
        versions.fetch_library(storage_path(url), folder)
    return content(folder)


CYCLE: tuple[Fault, ...] = (None, "lose the answer", None, None, "delay", "fail", None, "lose the request", None)


def test_what_is_lost_and_late_changes_nothing(
    bucket: str, sources: Path, expected: dict[str, bytes], proxy: StoreProxy, tmp_path: Path
) -> None:
    proxy.fault = lambda number, _: CYCLE[number % len(CYCLE)]
    done = migrate(sources, f"{bucket}/libraries", tmp_path / "out.parquet")
    proxy.fault = lambda _, __: None
    assert min(proxy.faults[fault] for fault in CYCLE if fault) > 1
    row = libraries_in(tmp_path / "out.parquet")["backup"]
    assert (done.status, row["outcome"], row["exit_status"]) == (1, "worth-reading", 1), row
    assert fetched(f"{bucket}/libraries/backup", tmp_path / "fetched") == expected


@pytest.mark.thorough
def test_a_published_file_that_arrives_altered_is_refused_and_nothing_is_published(
    bucket: str, sources: Path, expected: dict[str, bytes], proxy: StoreProxy, tmp_path: Path
) -> None:
    target = f"{bucket}/libraries"
    assert migrate(sources, target, tmp_path / "first.jsonl").status == 1
    before = storage_path(target).states()
    proxy.fault = lambda _, line: "falsify" if line.startswith("GET") and "/catalog.sqlite" in line else None
    done = run_as_given("fleet", "repair", target, "--results", tmp_path / "out.parquet", "--json", "-y")
    proxy.fault = lambda _, __: None
    row = libraries_in(tmp_path / "out.parquet")["backup"]
    assert proxy.faults["falsify"] >= 1
    assert done.status in (2, 3)
    assert (row["outcome"], row["code"]) in {("refused", "LibraryUnsafe"), ("stopped", "StorageFailed")}, row
    assert storage_path(target).states() == before
    assert fetched(f"{target}/backup", tmp_path / "fetched") == expected


@pytest.mark.thorough
def test_a_source_that_arrives_altered_is_not_migrated(
    bucket: str, sources: Path, expected: dict[str, bytes], proxy: StoreProxy, tmp_path: Path
) -> None:
    source = storage_path(f"{bucket}/sources/backup")
    source.upload((path, path.relative_to(SAMPLE).as_posix()) for path in SAMPLE.rglob("*") if path.is_file())
    proxy.fault = lambda _, line: "falsify" if line.startswith("GET") and "/KnowledgeBase/" in line else None
    done = migrate(f"{bucket}/sources", f"{bucket}/libraries", tmp_path / "out.parquet", "--attempts", 1)
    proxy.fault = lambda _, __: None
    assert proxy.faults["falsify"] >= 1
    row = libraries_in(tmp_path / "out.parquet")["backup"]
    assert (done.status, row["outcome"], row["code"]) == (3, "stopped", "StorageFailed"), row
    assert storage_path(f"{bucket}/libraries").objects() == {}
    # The next run has what the store has.
    assert run_as_given("fleet", "resume", tmp_path / "out.parquet", "--json").status == 1
    assert fetched(f"{bucket}/libraries/backup", tmp_path / "fetched") == expected
