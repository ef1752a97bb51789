"""Libraries in object storage: what counts is whole, and of two that publish one is first."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from regraft import areas, clock
from regraft.errors import SourceNotFound, WrongUsage
from regraft.fleet import leases, staging, storage, versions
from regraft.fleet.commands import Job
from regraft.fleet.errors import LibraryChanged, LibraryHeld, LibraryUnsafe, StorageFailed, StorageRefused
from regraft.fleet.storage import Place, is_url, place_of
from regraft.fleet.versions import FOLDER, fetch, latest, publish
from regraft.zip_directory import MOST_PARTS

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


@pytest.fixture(params=["memory", "s3"])
def library(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return the place of a library, in either kind of store."""
    if request.param == "s3":
        return place_of(f"{request.getfixturevalue('bucket')}/anna")
    pytest.importorskip("fsspec")
    return place_of(f"memory://{tmp_path.name}/anna")


@pytest.fixture
def own(tmp_path: Path) -> Any:
    """Let this process write into the test's folder."""
    with areas.opened(tmp_path):
        yield tmp_path


def made(folder: Path, **files: str) -> Path:
    """Make a folder with files, one of them in a folder of its own, and an empty folder."""
    for name, text in {"index.sqlite": "rows", "raw/ü 种.txt": "text", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "empty").mkdir(exist_ok=True)
    return folder


def content(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
    }


def fetched(library: Place, own: Path) -> dict[str, bytes | None]:
    folder = own / f"fetched {len(list(own.iterdir()))}"
    fetch(library, folder)
    return content(folder)


# --- versions --------------------------------------------------------------------------------------------------------


def test_what_is_published_comes_back_as_it_was(library: Place, own: Path) -> None:
    folder = made(own / "one")
    assert publish(library, folder, versions.NONE)
    assert fetched(library, own) == content(folder)
    assert latest(library).number == 1


def test_what_has_not_changed_is_not_published_again(library: Place, own: Path) -> None:
    folder = made(own / "one")
    publish(library, folder, versions.NONE)
    before = library.objects()
    assert not publish(library, folder, latest(library))
    assert library.objects() == before


def test_a_version_replaces_the_one_before_and_sends_only_what_is_new(
    library: Place, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(own / "one")
    publish(library, folder, versions.NONE)
    first = latest(library)
    (folder / "index.sqlite").write_text("more rows")
    sent: list[str] = []
    upload = Place.upload

    def watched(place: Place, files: Any) -> None:
        pairs = list(files)
        sent.extend(path.name for path, _ in pairs)
        upload(place, pairs)

    monkeypatch.setattr(Place, "upload", watched)
    assert publish(library, folder, first)
    assert sent == ["index.sqlite"]
    assert fetched(library, own) == content(folder)
    assert {name.split("/")[1] for name in library.objects()} == {
        "000001.json",
        "000002.json",
        latest(library).folder,
    }


def test_of_two_that_publish_one_is_first_and_nothing_is_left_of_the_other(library: Place, own: Path) -> None:
    publish(library, made(own / "one"), versions.NONE)
    before = latest(library)
    publish(library, made(own / "two", two="2"), before)
    there = library.objects()
    with pytest.raises(LibraryChanged, match="was changed by somebody else meanwhile, so that nothing"):
        publish(library, made(own / "three", three="3"), before)
    assert library.objects() == there
    assert "two" in fetched(library, own)


def test_what_was_killed_while_it_published_counts_for_nothing_and_goes_with_the_next(
    library: Place, own: Path
) -> None:
    folder = made(own / "one")
    publish(library, folder, versions.NONE)
    left = "000002-0123456789abcdef"
    (library / FOLDER / left / "index.sqlite").put(b"half")
    assert fetched(library, own) == content(folder)
    for name in ("more", "even more"):
        publish(library, made(folder, **{name: "1"}), latest(library))
    assert not any(left in name for name in library.objects())


def test_a_store_that_fails_midway_has_nothing_new(library: Place, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(own / "one")
    publish(library, folder, versions.NONE)
    before, there = content(folder), library.objects()
    made(folder, more="1")
    with monkeypatch.context() as patched:
        patched.setattr(Place, "objects", lambda _: {})
        with pytest.raises(StorageFailed, match="it has not kept all that was written"):
            publish(library, folder, latest(library))
    assert fetched(library, own) == before
    # What it could not remove is named by nothing.
    assert there.items() <= library.objects().items()


def test_an_answer_that_is_lost_is_no_failure(library: Place, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = library._files
    pipe = type(files).pipe_file

    def lost(*args: Any, **named: Any) -> None:
        pipe(files, *args, **named)
        raise TimeoutError("no answer")

    monkeypatch.setattr(files, "pipe_file", lost, raising=False)
    folder = made(own / "one")
    assert publish(library, folder, versions.NONE)
    assert fetched(library, own) == content(folder)


def test_where_nobody_knows_whether_it_was_published_its_files_stay(
    library: Place, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(place: Place, content: bytes) -> bool:
        place.put(content)
        raise StorageFailed(url=place.url, reason="no answer")

    folder = made(own / "one")
    with monkeypatch.context() as patched:
        patched.setattr(Place, "create", lost)
        with pytest.raises(StorageFailed, match="no answer"):
            publish(library, folder, versions.NONE)
    assert fetched(library, own) == content(folder)


def test_a_library_that_is_replaced_while_it_is_read_is_read_anew(
    library: Place, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(own / "one")
    publish(library, folder, versions.NONE)
    old = [latest(library)]
    publish(library, made(folder, more="1"), old[0])
    monkeypatch.setattr(versions, "latest", lambda place: old.pop() if old else latest(place))
    assert fetched(library, own) == content(folder)


def test_objects_that_nobody_published_are_a_library_too(library: Place, own: Path) -> None:
    (library / "data.json").put(b"1")
    (library / "KnowledgeBase" / "x").put(b"2")
    assert fetched(library, own) == {"data.json": b"1", "KnowledgeBase": None, "KnowledgeBase/x": b"2"}
    publish(library, made(own / "one"), versions.NONE)
    assert fetched(library, own) == content(own / "one")
    assert (library / "data.json").content() == b"1"


def test_where_nothing_is_there_is_no_library(library: Place, own: Path) -> None:
    with pytest.raises(SourceNotFound, match="anna"):
        fetch(library, own / "x")


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_version_is_refused(library: Place, own: Path, damage: str) -> None:
    (library / FOLDER / "000001.json").put(DAMAGE[damage])
    with pytest.raises(LibraryUnsafe, match=r"anna was not read: regraft-library/000001.json"):
        fetch(library, own / "x")


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_that_leads_out_is_refused_and_nothing_written(library: Place, own: Path, name: str) -> None:
    version = {
        "number": 1,
        "folder": "000001-0123456789abcdef",
        "files": {name: {"bytes": 1, "sha256": ""}},
    }
    (library / FOLDER / "000001.json").put(json.dumps(version).encode())
    with pytest.raises(LibraryUnsafe, match="leads out of it, or is no name of a file"):
        fetch(library, own / "x")
    assert content(own) == {"x": None}


def test_objects_that_would_lead_out_are_refused(own: Path) -> None:
    pytest.importorskip("fsspec")
    library = place_of(f"memory://{own.name}/b")
    (library / "C:evil").put(b"1")
    with pytest.raises(LibraryUnsafe, match="C:evil leads out of it"):
        fetch(library, own / "x")


def test_a_name_that_is_a_file_and_a_folder_is_refused(bucket: str, own: Path) -> None:
    library = place_of(f"{bucket}/anna")
    (library / "a").put(b"1")
    (library / "a/b").put(b"2")
    with pytest.raises(LibraryUnsafe, match="a is both a file and a folder"):
        fetch(library, own / "x")


def test_a_file_that_was_altered_is_refused(library: Place, own: Path) -> None:
    publish(library, made(own / "one"), versions.NONE)
    (library / FOLDER / latest(library).folder / "index.sqlite").put(b"ROWS")
    with pytest.raises(LibraryUnsafe, match=r"index\.sqlite is not what was published"):
        fetch(library, own / "x")


def test_what_could_not_be_fetched_again_is_not_published(library: Place, own: Path) -> None:
    folder = made(own / "one", **{"a\\b": "1"})
    with pytest.raises(LibraryUnsafe, match="leads out of it"):
        publish(library, folder, versions.NONE)
    assert library.objects() == {}


def test_names_that_look_like_patterns_are_names(library: Place, own: Path) -> None:
    folder = made(own / "one", **{"a[1].md": "1", "a1.md": "2", "Home [ Visit.md": "3", "b*.md": "4", "b2.md": "5"})
    odd = library / "lib[1]*"
    publish(odd, folder, versions.NONE)
    publish(library / "lib1x", folder, versions.NONE)
    before = (library / "lib1x").objects()
    made(folder, more="6")
    assert publish(odd, folder, latest(odd))
    assert fetched(odd, own) == content(folder)
    assert {name.split("/")[1] for name in odd.objects()} == {"000001.json", "000002.json", latest(odd).folder}
    with leases.held(library / "lib1x", "one"), leases.held(odd, "two"):
        pass
    assert (library / "lib1x").objects() == before


def test_objects_that_change_while_they_are_read_are_read_anew(
    library: Place, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (library / name).put(b"old " + name.encode())
    download, states = Place.download, [b"new"]

    def disturbed(place: Place, files: Any) -> None:
        download(place, files)
        for content in states:
            (library / "b").put(content)
            (library / "c").put(content)
        states.clear()

    monkeypatch.setattr(Place, "download", disturbed)
    assert fetched(library, own) == {"a": b"old a", "b": b"new", "c": b"new"}


def test_what_nobody_has_changed_is_not_published_for_the_first_time(library: Place, own: Path) -> None:
    (library / "a").put(b"1")
    assert not publish(library, own / "x", fetch(library, own / "x"))
    assert list(library.objects()) == ["a"]


def test_the_last_number_is_refused(library: Place, own: Path) -> None:
    version = {"number": 999_999, "folder": "999999-0123456789abcdef", "files": {}}
    (library / FOLDER / "999999.json").put(json.dumps(version).encode())
    with pytest.raises(LibraryUnsafe, match=r"999999\.json is not one that this regraft knows"):
        fetch(library, own / "x")


def test_names_that_are_one_here_are_refused(library: Place, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Anna", "anna"):
        (library / name).put(b"1")
    assert fetched(library, own).keys() == {"Anna", "anna"}
    monkeypatch.setattr("regraft.names.sys.platform", "darwin")
    with pytest.raises(LibraryUnsafe, match="names in it are one name on this system"):
        fetch(library, own / "x")


# --- leases ----------------------------------------------------------------------------------------------------------


def test_a_lease_keeps_another_fleet_out_until_it_is_given_back(library: Place) -> None:
    with leases.held(library, "one"):
        said = r"is worked on by somebody else, who has it for \d+ s more"
        ended = staging.done(Job(command="repair", options=(), source=library.url, fleet="two"), pytest.fail)
        assert re.search(said, ended.document["error"]["message"])
    with leases.held(library, "two"):
        assert len(library.objects()) == 1
    assert library.objects() == {}


def test_a_fleet_takes_over_what_it_had_itself(library: Place) -> None:
    with leases.held(library, "one"), leases.held(library, "one"):
        assert list(library.objects()) == ["regraft-library/lease-000002.json"]


@pytest.mark.parametrize("left", [b'{"fleet": "one", "until_ms": 5, "token": ""}', b"{"], ids=["run out", "damaged"])
def test_a_lease_that_holds_no_more_is_taken_over(library: Place, left: bytes) -> None:
    (library / FOLDER / "lease-000007.json").put(left)
    with leases.held(library, "two"):
        assert list(library.objects()) == ["regraft-library/lease-000008.json"]


def test_a_clock_that_is_ahead_holds_a_library_no_longer_than_a_lease(library: Place) -> None:
    lease = library / FOLDER / "lease-000001.json"
    lease.put(msgspec.json.encode({"fleet": "one", "until_ms": clock.now_ms() + 100_000, "token": ""}))
    with pytest.raises(LibraryHeld) as held:
        ExitStack().enter_context(leases.held(library, "two"))
    assert held.value.facts["seconds"] == leases.LEASE_MS // 1000 + 1
    lease.put(b'{"fleet": "one", "until_ms": 99999999999999, "token": ""}')
    with leases.held(library, "two"):
        assert list(library.objects()) == ["regraft-library/lease-000002.json"]


def test_a_store_that_writes_over_what_is_there_is_refused(library: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    files = library._files
    pipe = type(files).pipe_file

    def careless(path: str, content: bytes, mode: str = "overwrite") -> None:
        pipe(files, path, content)

    monkeypatch.setattr(files, "pipe_file", careless, raising=False)
    job = Job(command="repair", options=(), source=library.url, fleet="f")
    ended = staging.done(job, lambda _: pytest.fail("it was worked on"))
    assert (ended.status, ended.document["error"]["code"]) == (2, "StorageRefused")
    assert "it writes over what is there, where it was asked not to" in ended.document["error"]["message"]


def test_of_two_that_take_a_lease_one_has_it(library: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Place, "create", lambda *_: False)
        with pytest.raises(LibraryHeld, match="1 s more"):
            ExitStack().enter_context(leases.held(library, "two"))
    assert library.objects() == {}


def test_a_lease_is_renewed_while_it_is_held(library: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = iter([False, False, True])
    renewed: list[bytes] = []

    class Stop:
        def wait(self, seconds: float) -> bool:
            assert seconds < leases.LEASE_MS / 1000
            return next(waits)

    def put(_: Place, content: bytes) -> None:
        renewed.append(content)
        raise StorageFailed(url="x", reason="for a moment")

    monkeypatch.setattr(Place, "put", put)
    leases._renew(library / FOLDER / "lease-000001.json", "one", Stop())  # type: ignore[arg-type]
    assert [json.loads(content)["fleet"] for content in renewed] == ["one", "one"]


# --- stores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["s3://", "s3://bucket//x", "s3://bucket/../x", "gs://./x", "memory://a/./b"])
def test_a_url_that_names_nothing_is_refused(url: str) -> None:
    with pytest.raises(WrongUsage, match="names no folder or object of a store"):
        place_of(url)


@pytest.mark.parametrize("name", ["http://x/y", "github://x", "a/b", "s3:/x", "C:\\x", "", None])
def test_what_is_no_url_of_a_store_is_a_path(name: str | None) -> None:
    assert not is_url(name)


ASKS: dict[str, Callable[[Place], Any]] = {
    "put": lambda place: place.put(b""),
    "create": lambda place: place.create(b""),
}


@pytest.mark.parametrize("ask", ASKS)
def test_a_bucket_that_is_not_there_is_refused(bucket: str, ask: str) -> None:
    with pytest.raises(StorageRefused, match="may not be read or written"):
        ASKS[ask](place_of(f"{bucket}-not-there/x"))


@pytest.mark.parametrize(
    ("error", "kind"),
    [(PermissionError("no"), StorageRefused), (OSError("down"), StorageFailed), (ValueError(), StorageFailed)],
)
def test_what_a_client_says_is_said_in_plain_words(
    library: Place, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(library._files, "pipe_file", failing, raising=False)
    with pytest.raises(kind, match=str(error) or type(error).__name__):
        library.put(b"")


def test_large_objects_go_in_parts(library: Place, own: Path) -> None:
    (own / "large").write_bytes(bytes(range(256)) * (17 << 12))
    library.upload([(own / "large", "large"), (own / "large", "again")])
    library.download([("again", own / "back")])
    assert (own / "back").read_bytes() == (own / "large").read_bytes()


def test_parts_of_a_huge_object_are_not_too_many() -> None:
    assert storage._in_parts("s3", 200 << 30)["chunksize"] * 10_000 > 200 << 30
    assert storage._in_parts("s3", 10 << 20)["chunksize"] == 8 << 20


def test_without_its_library_a_store_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(WrongUsage, match=r'pip install "regraft\[gs\]"'):
        place_of("gs://bucket/x").content()
