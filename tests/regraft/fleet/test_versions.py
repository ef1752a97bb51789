"""Libraries in object storage: what counts is whole, and of two that publish one is first."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from extras import needs
from fleet_work import plain

from regraft import identity
from regraft.disk import writable
from regraft.disk.zip_directory import MOST_PARTS
from regraft.errors import (
    LibraryChanged,
    LibraryHeld,
    LibraryUnsafe,
    SourceNotFound,
    StorageFailed,
    StorageRefused,
    WrongUsage,
)
from regraft.fleet import jobs, storage, versions
from regraft.fleet.jobs import LibraryJob
from regraft.fleet.storage import StoragePath, is_url, storage_path
from regraft.fleet.versions import VERSIONS_FOLDER, fetch_library, latest_version, publish_version

DAMAGE = {
    "none of it": b"{",
    "another number": b'{"number": 2, "folder": "000002-0123456789abcdef", "files": {}}',
    "another folder": b'{"number": 1, "folder": "../elsewhere", "files": {}}',
    "the folder of another one": b'{"number": 1, "folder": "000002-0123456789abcdef", "files": {}}',
    "a later layout": b'{"number": 1, "folder": "000001-0123456789abcdef", "files": {}, "schema": 9}',
    "too deep": b"[" * 200_000,
}
OUTSIDE = (
    "a?versionId=x",
    "../x",
    "/x",
    "a//b",
    "a/../b",
    "./a",
    "a\\b",
    "C:x",
    "a\0b",
    "a/" * MOST_PARTS + "b",
    "x" * 5000,
)

no_such_names = pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")


@pytest.fixture(params=["memory", pytest.param("s3", marks=needs("s3"))])
def library(request: pytest.FixtureRequest, tmp_path: Path) -> StoragePath:
    """Return the place of a library, in either kind of store."""
    if request.param == "s3":
        return storage_path(f"{request.getfixturevalue('bucket')}/anna")
    return storage_path(f"memory://{tmp_path.name}/anna")


@pytest.fixture
def own(tmp_path: Path) -> Any:
    """Let this process write into the test's folder."""
    with writable.allow_writes(tmp_path):
        yield tmp_path


def made(folder: Path, **files: str) -> Path:
    """Make a folder with files, one of them in a folder of its own, and an empty folder."""
    for name, text in {"index.sqlite": "rows", "raw/ü 种.txt": "text", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    (folder / "empty").mkdir(exist_ok=True)
    return folder


def content(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
    }


def fetched(library: StoragePath, own: Path) -> dict[str, bytes | None]:
    folder = own / f"fetched {len(list(own.iterdir()))}"
    fetch_library(library, folder)
    return content(folder)


# --- versions --------------------------------------------------------------------------------------------------------


def test_what_is_published_comes_back_as_it_was(library: StoragePath, own: Path) -> None:
    folder = made(own / "one")
    assert publish_version(library, folder, versions.NO_VERSION)
    assert fetched(library, own) == content(folder)
    assert latest_version(library).number == 1


def test_what_has_not_changed_is_not_published_again(library: StoragePath, own: Path) -> None:
    folder = made(own / "one")
    publish_version(library, folder, versions.NO_VERSION)
    before = library.objects()
    assert not publish_version(library, folder, latest_version(library))
    assert library.objects() == before


def test_a_version_replaces_the_one_before_and_sends_only_what_is_new(
    library: StoragePath, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(own / "one")
    publish_version(library, folder, versions.NO_VERSION)
    first = latest_version(library)
    (folder / "index.sqlite").write_text("more rows")
    sent: list[str] = []
    upload = StoragePath.upload

    def watched(place: StoragePath, files: Any) -> None:
        pairs = list(files)
        sent.extend(path.name for path, _ in pairs)
        upload(place, pairs)

    monkeypatch.setattr(StoragePath, "upload", watched)
    assert publish_version(library, folder, first)
    assert sent == ["index.sqlite"]
    assert fetched(library, own) == content(folder)
    assert {name.split("/")[1] for name in library.objects()} == {
        "000001.json",
        "000002.json",
        latest_version(library).folder,
    }


def test_of_two_that_publish_one_is_first_and_nothing_is_left_of_the_other(library: StoragePath, own: Path) -> None:
    publish_version(library, made(own / "one"), versions.NO_VERSION)
    before = latest_version(library)
    publish_version(library, made(own / "two", two="2"), before)
    there = library.objects()
    with pytest.raises(LibraryChanged, match="was changed by another process, so nothing was published"):
        publish_version(library, made(own / "three", three="3"), before)
    assert library.objects() == there
    assert "two" in fetched(library, own)


def test_what_was_killed_while_it_published_counts_for_nothing_and_goes_with_the_next(
    library: StoragePath, own: Path
) -> None:
    folder = made(own / "one")
    publish_version(library, folder, versions.NO_VERSION)
    left = "000002-0123456789abcdef"
    (library / VERSIONS_FOLDER / left / "index.sqlite").put(b"half")
    assert fetched(library, own) == content(folder)
    for name in ("more", "even more"):
        publish_version(library, made(folder, **{name: "1"}), latest_version(library))
    assert not any(left in name for name in library.objects())


def test_a_store_that_fails_midway_has_nothing_new(
    library: StoragePath, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(own / "one")
    publish_version(library, folder, versions.NO_VERSION)
    before, there = content(folder), library.objects()
    made(folder, more="1")
    with monkeypatch.context() as patched:
        patched.setattr(StoragePath, "objects", lambda _: {})
        with pytest.raises(StorageFailed, match="some of the files written are missing"):
            publish_version(library, folder, latest_version(library))
    assert fetched(library, own) == before
    # What it could not remove is named by nothing.
    assert there.items() <= library.objects().items()


def test_an_answer_that_is_lost_is_no_failure(library: StoragePath, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = library._files
    pipe = type(files).pipe_file

    def lost(*args: Any, **named: Any) -> None:
        pipe(files, *args, **named)
        raise TimeoutError("no answer")

    monkeypatch.setattr(files, "pipe_file", lost, raising=False)
    folder = made(own / "one")
    assert publish_version(library, folder, versions.NO_VERSION)
    assert fetched(library, own) == content(folder)


def test_where_nobody_knows_whether_it_was_published_its_files_stay(
    library: StoragePath, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(place: StoragePath, content: bytes) -> bool:
        place.put(content)
        raise StorageFailed(url=place.url, reason="no answer")

    folder = made(own / "one")
    with monkeypatch.context() as patched:
        patched.setattr(StoragePath, "create", lost)
        with pytest.raises(StorageFailed, match="no answer"):
            publish_version(library, folder, versions.NO_VERSION)
    assert fetched(library, own) == content(folder)


def test_a_library_that_is_replaced_while_it_is_read_is_read_anew(
    library: StoragePath, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(own / "one")
    publish_version(library, folder, versions.NO_VERSION)
    old = [latest_version(library)]
    publish_version(library, made(folder, more="1"), old[0])
    monkeypatch.setattr(versions, "latest_version", lambda place: old.pop() if old else latest_version(place))
    assert fetched(library, own) == content(folder)


def test_objects_that_nobody_published_are_a_library_too(library: StoragePath, own: Path) -> None:
    (library / "data.json").put(b"1")
    (library / "KnowledgeBase" / "x").put(b"2")
    assert fetched(library, own) == {"data.json": b"1", "KnowledgeBase": None, "KnowledgeBase/x": b"2"}
    publish_version(library, made(own / "one"), versions.NO_VERSION)
    assert fetched(library, own) == content(own / "one")
    assert (library / "data.json").content() == b"1"


def test_where_nothing_is_there_is_no_library(library: StoragePath, own: Path) -> None:
    with pytest.raises(SourceNotFound, match="anna"):
        fetch_library(library, own / "x")


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_version_is_refused(library: StoragePath, own: Path, damage: str) -> None:
    (library / VERSIONS_FOLDER / "000001.json").put(DAMAGE[damage])
    with pytest.raises(LibraryUnsafe, match=r"anna was not read: regraft-library/000001.json"):
        fetch_library(library, own / "x")


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_that_leads_out_is_refused_and_nothing_written(library: StoragePath, own: Path, name: str) -> None:
    version = {
        "number": 1,
        "folder": "000001-0123456789abcdef",
        "files": {name: {"bytes": 1, "sha256": ""}},
    }
    (library / VERSIONS_FOLDER / "000001.json").put(json.dumps(version).encode())
    with pytest.raises(LibraryUnsafe, match="is not a valid file name inside it"):
        fetch_library(library, own / "x")
    assert content(own) == {"x": None}


def test_objects_that_would_lead_out_are_refused(own: Path) -> None:
    library = storage_path(f"memory://{own.name}/b")
    (library / "C:evil").put(b"1")
    with pytest.raises(LibraryUnsafe, match="C:evil is not a valid file name inside it"):
        fetch_library(library, own / "x")


def test_a_name_that_is_a_file_and_a_folder_is_refused(bucket: str, own: Path) -> None:
    library = storage_path(f"{bucket}/anna")
    (library / "a").put(b"1")
    (library / "a/b").put(b"2")
    with pytest.raises(LibraryUnsafe, match="a is both a file and a folder"):
        fetch_library(library, own / "x")


def test_a_file_that_was_altered_is_refused(library: StoragePath, own: Path) -> None:
    publish_version(library, made(own / "one"), versions.NO_VERSION)
    (library / VERSIONS_FOLDER / latest_version(library).folder / "index.sqlite").put(b"ROWS")
    with pytest.raises(LibraryUnsafe, match=r"index\.sqlite differs from the published file"):
        fetch_library(library, own / "x")


@no_such_names
def test_what_could_not_be_fetched_again_is_not_published(library: StoragePath, own: Path) -> None:
    folder = made(own / "one", **{"a\\b": "1"})
    with pytest.raises(LibraryUnsafe, match="is not a valid file name inside it"):
        publish_version(library, folder, versions.NO_VERSION)
    assert library.objects() == {}


@no_such_names
def test_names_that_look_like_patterns_are_names(library: StoragePath, own: Path) -> None:
    folder = made(own / "one", **{"a[1].md": "1", "a1.md": "2", "Home [ Visit.md": "3", "b*.md": "4", "b2.md": "5"})
    odd = library / "lib[1]*"
    publish_version(odd, folder, versions.NO_VERSION)
    publish_version(library / "lib1x", folder, versions.NO_VERSION)
    before = (library / "lib1x").objects()
    made(folder, more="6")
    assert publish_version(odd, folder, latest_version(odd))
    assert fetched(odd, own) == content(folder)
    assert {name.split("/")[1] for name in odd.objects()} == {"000001.json", "000002.json", latest_version(odd).folder}
    with versions.hold_lease(library / "lib1x", "one"), versions.hold_lease(odd, "two"):
        pass
    assert (library / "lib1x").objects() == before


def test_objects_that_change_while_they_are_read_are_read_anew(
    library: StoragePath, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (library / name).put(b"old " + name.encode())
    download, states = StoragePath.download, [b"new"]

    def disturbed(place: StoragePath, files: Any) -> None:
        download(place, files)
        for content in states:
            (library / "b").put(content)
            (library / "c").put(content)
        states.clear()

    monkeypatch.setattr(StoragePath, "download", disturbed)
    assert fetched(library, own) == {"a": b"old a", "b": b"new", "c": b"new"}


def test_what_nobody_has_changed_is_not_published_for_the_first_time(library: StoragePath, own: Path) -> None:
    (library / "a").put(b"1")
    assert not publish_version(library, own / "x", fetch_library(library, own / "x"))
    assert list(library.objects()) == ["a"]


def test_the_last_number_is_refused(library: StoragePath, own: Path) -> None:
    version = {"number": 999_999, "folder": "999999-0123456789abcdef", "files": {}}
    (library / VERSIONS_FOLDER / "999999.json").put(json.dumps(version).encode())
    with pytest.raises(LibraryUnsafe, match=r"999999\.json is of an unknown version of regraft"):
        fetch_library(library, own / "x")


def test_names_that_are_one_here_are_refused(library: StoragePath, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Anna", "anna"):
        (library / name).put(b"1")
    if os.name != "nt":
        assert fetched(library, own).keys() == {"Anna", "anna"}
    monkeypatch.setattr("regraft.disk.file_paths.sys.platform", "darwin")
    with pytest.raises(LibraryUnsafe, match="two of its names are the same on this system"):
        fetch_library(library, own / "x")


# --- leases ----------------------------------------------------------------------------------------------------------


def test_a_lease_keeps_another_fleet_out_until_it_is_given_back(library: StoragePath) -> None:
    with versions.hold_lease(library, "one"):
        said = r"is in use by another process, for \d+ s more"
        ended = jobs.run_library_job(
            LibraryJob(command="repair", options=plain("repair"), source=library.url, fleet="two"), pytest.fail
        )
        assert re.search(said, ended.error.message)
    with versions.hold_lease(library, "two"):
        assert len(library.objects()) == 1
    assert library.objects() == {}


def test_a_fleet_takes_over_what_it_had_itself(library: StoragePath) -> None:
    with versions.hold_lease(library, "one"), versions.hold_lease(library, "one"):
        assert list(library.objects()) == ["regraft-library/lease-000002.json"]


@pytest.mark.parametrize("left", [b'{"fleet": "one", "until_ms": 5, "token": ""}', b"{"], ids=["run out", "damaged"])
def test_a_lease_that_holds_no_more_is_taken_over(library: StoragePath, left: bytes) -> None:
    (library / VERSIONS_FOLDER / "lease-000007.json").put(left)
    with versions.hold_lease(library, "two"):
        assert list(library.objects()) == ["regraft-library/lease-000008.json"]


def test_a_clock_that_is_ahead_holds_a_library_no_longer_than_a_lease(
    library: StoragePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = identity.now_ms()
    monkeypatch.setattr(identity, "now_ms", lambda: now)
    lease = library / VERSIONS_FOLDER / "lease-000001.json"
    lease.put(msgspec.json.encode({"fleet": "one", "until_ms": identity.now_ms() + 100_000, "token": ""}))
    with pytest.raises(LibraryHeld) as held:
        ExitStack().enter_context(versions.hold_lease(library, "two"))
    assert held.value.facts["seconds"] == versions.LEASE_MS // 1000 + 1
    lease.put(b'{"fleet": "one", "until_ms": 99999999999999, "token": ""}')
    with versions.hold_lease(library, "two"):
        assert list(library.objects()) == ["regraft-library/lease-000002.json"]


def test_a_store_that_writes_over_what_is_there_is_refused(
    library: StoragePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = library._files
    pipe = type(files).pipe_file

    def careless(path: str, content: bytes, mode: str = "overwrite") -> None:
        pipe(files, path, content)

    monkeypatch.setattr(files, "pipe_file", careless, raising=False)
    job = LibraryJob(command="repair", options=plain("repair"), source=library.url, fleet="f")
    ended = jobs.run_library_job(job, lambda _: pytest.fail("it was worked on"))
    assert (ended.status, ended.error.code) == (2, "StorageRefused")
    assert "it overwrites existing objects although it was asked not to" in ended.error.message
    assert library.objects() == {}


def test_of_two_that_take_a_lease_one_has_it(library: StoragePath, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(StoragePath, "create", lambda *_: False)
        with pytest.raises(LibraryHeld, match="1 s more"):
            ExitStack().enter_context(versions.hold_lease(library, "two"))
    assert library.objects() == {}


def test_a_lease_is_renewed_while_it_is_held(library: StoragePath, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = iter([False, False, True])
    renewed: list[bytes] = []

    class Stop:
        def wait(self, seconds: float) -> bool:
            assert seconds < versions.LEASE_MS / 1000
            return next(waits)

    def put(_: StoragePath, content: bytes) -> None:
        renewed.append(content)
        raise StorageFailed(url="x", reason="for a moment")

    monkeypatch.setattr(StoragePath, "put", put)
    versions._renew(library / VERSIONS_FOLDER / "lease-000001.json", "one", Stop())  # type: ignore[arg-type]
    assert [json.loads(content)["fleet"] for content in renewed] == ["one", "one"]


# --- stores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["s3://", "s3://bucket//x", "s3://bucket/../x", "gs://./x", "memory://a/./b"])
def test_a_url_that_names_nothing_is_refused(url: str) -> None:
    with pytest.raises(WrongUsage, match="is not a URL of object storage that regraft supports"):
        storage_path(url)


@pytest.mark.parametrize("name", ["http://x/y", "github://x", "a/b", "s3:/x", "C:\\x", "", None])
def test_what_is_no_url_of_a_store_is_a_path(name: str | None) -> None:
    assert not is_url(name)


ASKS: dict[str, Callable[[StoragePath], Any]] = {
    "put": lambda place: place.put(b""),
    "create": lambda place: place.create(b""),
}


@pytest.mark.parametrize("ask", ASKS)
def test_a_bucket_that_is_not_there_is_refused(bucket: str, ask: str) -> None:
    with pytest.raises(StorageRefused, match="may not be read or written"):
        ASKS[ask](storage_path(f"{bucket}-not-there/x"))


@pytest.mark.parametrize(
    ("error", "kind"),
    [(PermissionError("no"), StorageRefused), (OSError("down"), StorageFailed), (ValueError(), StorageFailed)],
)
def test_what_a_client_says_is_said_in_plain_words(
    library: StoragePath, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(library._files, "pipe_file", failing, raising=False)
    with pytest.raises(kind, match=str(error) or type(error).__name__):
        library.put(b"")


def test_large_objects_go_in_parts(library: StoragePath, own: Path) -> None:
    (own / "large").write_bytes(bytes(range(256)) * (17 << 12))
    library.upload([(own / "large", "large"), (own / "large", "again")])
    library.download([("again", own / "back")])
    assert (own / "back").read_bytes() == (own / "large").read_bytes()


def test_parts_of_a_huge_object_are_not_too_many() -> None:
    assert storage._multipart_options("s3", 200 << 30)["chunksize"] * 10_000 > 200 << 30
    assert storage._multipart_options("s3", 10 << 20)["chunksize"] == 8 << 20


def test_without_its_library_a_store_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(WrongUsage, match=r'pip install "regraft\[gs\]"'):
        storage_path("gs://bucket/x").content()
