"""Fleets over object storage: what is published is what comes of a folder on disk."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from extras import needs, optional
from fleet_libraries import NOW, content, libraries_in
from fleet_work import plain, put_in_place
from harness import REPO, Outcome, run, run_as_given, snapshot

from regraft import identity
from regraft.disk import writable
from regraft.fleet import jobs, versions
from regraft.fleet.engine import TaskError, TaskResult
from regraft.fleet.jobs import LibraryJob
from regraft.fleet.storage import StoragePath, storage_path

pq = optional("pyarrow.parquet")
pytestmark = needs("parquet")

SAMPLE = REPO / "sample_v1"


def fleet(*arguments: object) -> Outcome:
    return run_as_given("fleet", *arguments)


@pytest.fixture(autouse=True)
def in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fleets work in this process, but for tests of processes."""
    if "in_processes" not in request.fixturenames:
        put_in_place(monkeypatch)


@pytest.fixture
def in_processes() -> None:
    """Let fleets work in processes of their own."""


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    """Make a folder of two sources."""
    folder = tmp_path / "backups"
    shutil.copytree(SAMPLE / "backup", folder / "anna")
    [archive] = SAMPLE.glob("*.zip")
    shutil.copy(archive, folder / "boris.zip")
    return folder


@pytest.fixture
def migrated(backups: Path, bucket: str, tmp_path: Path) -> str:
    """Migrate both into object storage, and return the URL of the folder of libraries."""
    out = tmp_path / "migrated.parquet"
    done = fleet("migrate", backups, "--to", f"{bucket}/libraries/", "--results", out, "--json", "--", "--now", NOW)
    assert done.document["libraries"] == {"all": 2, "worth-reading": 2}, done.document
    assert done.status == 1
    return f"{bucket}/libraries"


def fetched(url: str, folder: Path) -> Path:
    """Copy a library of a store to a folder."""
    with writable.allow_writes(folder):
        versions.fetch_library(storage_path(url), folder)
    return folder


def test_processes_of_a_fleet_work_in_a_store(in_processes: None, backups: Path, bucket: str, tmp_path: Path) -> None:
    done = fleet("migrate", backups, "--to", bucket, "--results", tmp_path / "out.parquet", "-q", "--workers", 2)
    assert done.status == 1
    assert {name.split("/")[0] for name in storage_path(bucket).objects()} == {"anna", "boris"}


def test_a_library_in_a_store_is_the_one_on_disk(backups: Path, migrated: str, tmp_path: Path) -> None:
    for name, source in (("anna", backups / "anna"), ("boris", backups / "boris.zip")):
        run("migrate", source, "--to", tmp_path / name, "--now", NOW)
        assert content(fetched(f"{migrated}/{name}", tmp_path / f"fetched {name}")) == content(tmp_path / name)


def test_what_is_done_is_not_done_again(backups: Path, migrated: str, tmp_path: Path) -> None:
    there = storage_path(migrated).objects()
    done = fleet(
        "migrate", backups, "--to", migrated, "--results", tmp_path / "again.parquet", "-q", "--", "--now", NOW
    )
    assert (done.status, storage_path(migrated).objects()) == (1, there)


def test_a_dry_run_leaves_nothing(backups: Path, bucket: str, tmp_path: Path) -> None:
    done = fleet("migrate", backups, "--to", bucket, "--results", tmp_path / "dry.parquet", "-q", "--", "--dry-run")
    assert (done.status, storage_path(bucket).objects()) == (1, {})


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["folder", "pattern", "csv", "jsonl", "parquet"])
def test_a_manifest_may_lie_in_a_store(migrated: str, bucket: str, tmp_path: Path, kind: str) -> None:
    texts = {
        "csv": "source,bytes\nlibraries/anna,5000\nlibraries/boris,\n",
        "jsonl": '{"source": "libraries/anna", "bytes": 5000}\n{"source": "libraries/boris"}\n',
    }
    manifest = {"folder": migrated, "pattern": f"{migrated}/*"}.get(kind, f"{bucket}/list.{kind}")
    if kind in texts:
        storage_path(manifest).put(texts[kind].encode())
    elif kind == "parquet":
        import pyarrow as pa

        table = pa.table({"source": [f"{migrated}/anna", "libraries/boris"], "bytes": [5000, None]})
        pq.write_table(table, tmp_path / "list.parquet")
        storage_path(bucket).upload([(tmp_path / "list.parquet", "list.parquet")])
    done = fleet("check", manifest, "--results", tmp_path / "out.parquet", "-q", "--", "--now", NOW)
    assert done.status == 1
    found = libraries_in(tmp_path / "out.parquet")
    assert sorted(row["source"] for row in found.values()) == [f"{migrated}/anna", f"{migrated}/boris"]
    assert all(row["bytes"] > 4000 for row in found.values())
    if kind in ("csv", "jsonl", "parquet"):
        assert found["anna"]["bytes"] == 5000


@pytest.mark.thorough
def test_repairs_are_published_as_the_next_version(migrated: str, tmp_path: Path) -> None:
    place = storage_path(f"{migrated}/anna")
    library = fetched(place.url, tmp_path / "damaged")
    index = next(library.rglob("index.sqlite"))
    with closing(sqlite3.connect(index)) as db, db:
        db.execute("DELETE FROM search_text_fts WHERE rowid IN (SELECT min(rowid) FROM search_text_fts)")
    with writable.allow_writes(library):
        assert versions.publish_version(place, library, versions.latest_version(place))
    done = fleet("repair", f"{migrated}/a*", "--results", tmp_path / "out.parquet", "-q", "--yes")
    assert (done.status, versions.latest_version(place).number) == (1, 3)
    alone = run("repair", library, "--yes", "--json")
    assert alone.status == 1
    mended = fetched(place.url, tmp_path / "mended")
    assert content(mended) == content(library)
    # What takes it back came along.
    assert run("undo", mended, "--yes").status == 0
    assert fleet("repair", f"{migrated}/a*", "--results", tmp_path / "b.parquet", "-q", "--yes").status == 1
    assert versions.latest_version(place).number == 3


@pytest.mark.thorough
def test_exports_go_to_a_store_and_over_what_they_wrote_before(migrated: str, bucket: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        done = fleet("export", migrated, "--to", f"{bucket}/units", "--results", tmp_path / f"{name}.parquet", "-q")
        assert done.status == 0, libraries_in(tmp_path / f"{name}.parquet")
    place = storage_path(f"{bucket}/units")
    place.download([("anna.parquet", tmp_path / "anna.parquet")])
    assert pq.read_table(tmp_path / "anna.parquet").num_rows > 10
    storage_path(f"{bucket}/units/anna.parquet").put(b"a stranger's")
    done = fleet("export", migrated, "--to", f"{bucket}/units", "--results", tmp_path / "three.parquet", "-q")
    row = libraries_in(tmp_path / "three.parquet")["anna"]
    assert (done.status, row["code"]) == (2, "TargetNotWritable")
    assert row["message"].startswith(f"{bucket}/units/anna.parquet: cannot be written (it already exists")
    assert storage_path(f"{bucket}/units/anna.parquet").content() == b"a stranger's"


def test_sources_in_a_store_are_read_only(backups: Path, bucket: str, tmp_path: Path) -> None:
    files = [path for path in (backups / "anna").rglob("*") if path.is_file()]
    storage_path(f"{bucket}/backups/anna").upload(
        (path, path.relative_to(backups / "anna").as_posix()) for path in files
    )
    storage_path(f"{bucket}/backups").upload([(backups / "boris.zip", "boris.zip")])
    before = storage_path(bucket).objects()
    done = fleet(
        "migrate", f"{bucket}/backups", "--to", tmp_path / "libraries", "--results", tmp_path / "out.parquet", "-q",
        "--", "--now", NOW,
    )  # fmt: skip
    assert (done.status, storage_path(bucket).objects()) == (1, before)
    for name, source in (("anna", backups / "anna"), ("boris", backups / "boris.zip")):
        run("migrate", source, "--to", tmp_path / name, "--now", NOW)
        assert content(tmp_path / "libraries" / name) == content(tmp_path / name)


def test_a_target_that_is_not_a_library_is_refused_as_on_disk(backups: Path, bucket: str, tmp_path: Path) -> None:
    storage_path(f"{bucket}/libraries/anna/holiday.jpg").put(b"1")
    before = storage_path(bucket).objects()
    manifest = tmp_path / "one.jsonl"
    manifest.write_text(f'{{"source": "backups/anna", "target": "{bucket}/libraries/anna"}}\n', "utf-8")
    fleet("migrate", manifest, "--results", tmp_path / "out.parquet", "-q")
    [row] = libraries_in(tmp_path / "out.parquet").values()
    assert (row["outcome"], storage_path(bucket).objects()) == ("refused", before)
    assert str(bucket) in row["message"]


@pytest.mark.thorough
def test_a_store_that_is_away_stops_its_libraries_and_resume_goes_on(
    backups: Path, bucket: str, files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.parquet"
    with monkeypatch.context() as patched:
        # What tries again itself would only take long.
        patched.setenv("AWS_MAX_ATTEMPTS", "1")
        patched.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        # Clients that are open know the store by its address.
        files.clear_instance_cache()
        done = fleet("migrate", backups, "--to", bucket, "--results", out, "--attempts", 1, "-q", "--", "--now", NOW)
    assert done.status == 3
    rows = libraries_in(out)
    assert {row["code"] for row in rows.values()} == {"StorageFailed"}
    assert rows["anna"]["message"].startswith(f"{bucket}/anna/regraft-library could not be read or written (")
    files.clear_instance_cache()
    assert fleet("resume", out, "-q").status == 1
    assert {name.split("/")[0] for name in storage_path(bucket).objects()} == {"anna", "boris"}


def test_a_bucket_that_is_not_there_is_refused(backups: Path, bucket: str, tmp_path: Path) -> None:
    done = fleet("migrate", backups, "--to", f"{bucket}x", "--results", tmp_path / "out.parquet", "-q")
    codes = {row["code"] for row in libraries_in(tmp_path / "out.parquet").values()}
    assert (done.status, codes) == (2, {"StorageRefused"})


REFUSED = {
    "no folder": (["check", "{bucket}/nothing"], "has no libraries"),
    "a target twice": (["migrate", "{table}"], "is the target of two libraries"),
    "a target in a library": (["migrate", "{inside}"], "would be inside another library"),
    "a name that leads out": (["check", "{bucket}/../x"], "is not a URL of object storage that regraft supports"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_meant_is_refused_and_nothing_written(bucket: str, tmp_path: Path, case: str) -> None:
    (tmp_path / "twice.csv").write_text(f"source,target\na,{bucket}/x\nb,{bucket}/x/\n", "utf-8")
    (tmp_path / "inside.csv").write_text(f"source,target\na,{bucket}/x\nb,{bucket}/x/y\n", "utf-8")
    words, message = REFUSED[case]
    names = {"bucket": bucket, "table": tmp_path / "twice.csv", "inside": tmp_path / "inside.csv"}
    before = snapshot(tmp_path)
    done = fleet(*(word.format(**names) for word in words), "--results", tmp_path / "out.parquet", "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "WrongUsage")
    assert message in done.document["error"]["message"]
    assert (snapshot(tmp_path), storage_path(bucket).objects()) == (before, {})


def test_without_a_client_nothing_is_begun(backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    before = snapshot(tmp_path)
    done = fleet("migrate", backups, "--to", "gs://bucket/x/", "--results", tmp_path / "out.parquet")
    assert (done.status, snapshot(tmp_path)) == (2, before)
    assert 'libraries in object storage need gcsfs, which is not installed (install it: pip install "regraft[gs]")' in (
        done.stderr
    )


def test_a_file_as_a_url_is_a_path(backups: Path, tmp_path: Path) -> None:
    (backups / "anna").rename(backups / "anna b")
    url = f"file://{str(backups).replace(' ', '%20')}"
    done = fleet("check", f"{url}/anna*", "--results", tmp_path / "out.parquet", "-q")
    assert done.status == 1
    assert list(libraries_in(tmp_path / "out.parquet")) == ["anna b"]


NAMED = {
    "another kind of store": (
        ["--to", "az://bucket/x"],
        "az://bucket/x/anna is not a URL of object storage that regraft supports",
    ),
    "memory": (
        ["--to", "memory://bucket/x"],
        "memory://bucket/x/anna is not a URL of object storage that regraft supports",
    ),
    "capitals": (["--to", "S3://bucket/x"], "S3://bucket/x/anna is not a URL of object storage that regraft supports"),
}


@pytest.mark.parametrize("case", NAMED)
def test_what_no_store_is_called_is_no_folder_here(backups: Path, tmp_path: Path, case: str) -> None:
    words, message = NAMED[case]
    before = snapshot(tmp_path)
    done = fleet("migrate", backups, *words, "--results", tmp_path / "out.parquet", "--json")
    assert (done.status, done.document["error"]["code"], snapshot(tmp_path)) == (2, "WrongUsage", before)
    assert message in done.document["error"]["message"]


def test_a_target_may_be_a_file_as_a_url(backups: Path, tmp_path: Path) -> None:
    done = fleet(
        "migrate", f"file://{backups}", "--to", f"file://{tmp_path}/libraries", "--results", tmp_path / "out.parquet",
        "-q",
    )  # fmt: skip
    assert (done.status, sorted(path.name for path in (tmp_path / "libraries").iterdir())) == (1, ["anna", "boris"])


@pytest.mark.parametrize("name", ["..zip", "...zip", "a\\..\\b.zip"])
def test_an_object_without_a_name_for_a_target_is_refused(bucket: str, tmp_path: Path, name: str) -> None:
    storage_path(f"{bucket}/x").put(b"")
    (storage_path(bucket) / "in" / name).put(b"zip")
    done = fleet(
        "migrate", f"{bucket}/in/*.zip", "--to", tmp_path / "out", "--results", tmp_path / "out.parquet", "--json"
    )  # fmt: skip
    assert done.status == 2
    assert "cannot be named after it" in done.document["error"]["message"]
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_in_a_table_of_a_store_is_said_with_its_row(bucket: str, tmp_path: Path) -> None:
    storage_path(f"{bucket}/list.csv").put(b"source,byts\nx,5\n")
    done = fleet("check", f"{bucket}/list.csv", "--results", tmp_path / "out.parquet", "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "WrongUsage")
    assert "list.csv, line 2: byts is not a column; bytes is" in done.document["error"]["message"]


def test_a_library_whose_version_would_lead_out_is_refused(bucket: str) -> None:
    storage_path(f"{bucket}/a/regraft-library/000001.json").put(b"{}")
    ended = jobs.run_library_job(LibraryJob(command="check", options=plain("check"), source=f"{bucket}/a"), pytest.fail)
    assert (ended.status, ended.error.code) == (2, "LibraryUnsafe")


def test_an_archive_that_is_gone_is_missed(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoragePath, "size", lambda _: 5)
    ended = jobs.run_library_job(
        LibraryJob(command="check", options=plain("check"), source=f"{bucket}/a.zip"), pytest.fail
    )
    assert (ended.status, ended.error.code) == (2, "SourceNotFound")


def test_what_a_process_that_was_killed_left_is_removed(
    migrated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next attempt, before it copies the library again, also if this process had temporary folders before."""
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    seen: list[int] = []

    def look(job: LibraryJob) -> TaskResult:
        seen.append(sum(path.name == Path(job.source).name for path in copies.rglob("*")))
        return TaskResult(status=2, seconds=0.1)

    for _ in range(2):
        left = copies / "regraft-run-killed00"
        (left / "regraft-abc" / "source" / "anna").mkdir(parents=True)
        (left / "lock").touch()
        left.chmod(0o700)
        jobs.run_library_job(job(migrated, fleet="f"), look)
        assert list(copies.iterdir()) == []
    assert seen == [1, 1]


# --- two at once -----------------------------------------------------------------------------------------------------


def job(migrated: str, **options: Any) -> LibraryJob:
    return LibraryJob(command="repair", options=plain("repair"), source=f"{migrated}/anna", **options)


def test_what_another_fleet_works_on_waits_for_it(migrated: str) -> None:
    with versions.hold_lease(storage_path(f"{migrated}/anna"), "another"):
        ended = jobs.run_library_job(job(migrated, fleet="this"), lambda _: pytest.fail("it was worked on"))
    assert (ended.status, ended.error.code) == (3, "LibraryHeld")
    assert 0 < ended.wait_seconds <= 61


@pytest.mark.thorough
def test_of_two_that_work_on_a_library_one_publishes_and_the_other_comes_after_it(
    migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One was long asleep, and its lease has run out; both do their work on the same version."""
    place, begun = storage_path(f"{migrated}/anna"), identity.now_ms()

    def changing(name: str) -> Any:
        def run(job: LibraryJob) -> TaskResult:
            (Path(job.source) / name).write_text(name, "utf-8")
            return TaskResult(status=0, seconds=0.1)

        return run

    def asleep(given: LibraryJob) -> TaskResult:
        with monkeypatch.context() as patched:
            patched.setattr(identity, "now_ms", lambda: begun + 10 * versions.LEASE_MS)
            assert jobs.run_library_job(job(migrated, fleet="this"), changing("this")).status == 0
        return changing("asleep")(given)

    ended = jobs.run_library_job(job(migrated, fleet="asleep"), asleep)
    assert (ended.status, ended.error.code) == (3, "LibraryChanged")
    version = versions.latest_version(place)
    assert version.number == 2
    assert "this" in version.files
    assert "asleep" not in version.files
    assert all("lease" not in name for name in place.objects())
    assert jobs.run_library_job(job(migrated, fleet="asleep"), changing("asleep")).status == 0
    assert versions.latest_version(place).files.keys() >= {"this", "asleep"}


def test_what_was_stopped_or_refused_is_not_published(migrated: str) -> None:
    place = storage_path(f"{migrated}/anna")

    def stopped(job: LibraryJob) -> TaskResult:
        (Path(job.source) / "half").write_text("half")
        return TaskResult(status=3, error=TaskError(code="StoppedBySystem", message=job.source), seconds=0.1)

    ended = jobs.run_library_job(job(migrated), stopped)
    assert (ended.status, ended.error.message) == (3, f"{migrated}/anna")
    assert versions.latest_version(place).number == 1


def test_a_disk_that_is_full_stops_a_library(migrated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(StoragePath, "download", full)
    ended = jobs.run_library_job(job(migrated), lambda _: pytest.fail("it was worked on"))
    assert (ended.status, ended.error.code) == (3, "StoppedBySystem")
    assert "No space left" in ended.error.message
