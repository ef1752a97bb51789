"""``regraft pack``, what is in a pack, hostile ones, and bases that come from one profile into another."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from extras import needs, optional
from faults import REFUSED, STOPPED, files_of, forked, line, migrate, posix, said, small_source, state_of, untouched
from harness import GOLDEN, NOW, Outcome, golden, run
from profiles import profile, rows, start_application, tables
from stand_ins import KILLED, die

from regraft import identity
from regraft.disk import file_paths
from regraft.text import path_argument, split_command
from repair.cherry_v2 import pack as cherry_v2_pack
from repair.cherry_v2 import source as base_source
from repair.cherry_v2.source import BaseSource

ALPHA, BETA, GAMMA = (identity.base_id(name) for name in ("alpha", "beta", "gamma"))
MODEL = "acme::embed-small"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrate a small source once."""
    place = tmp_path_factory.mktemp("made")
    assert migrate(small_source(place / "v1").write(), place / "library").status == 1
    return place / "library"


@pytest.fixture
def library(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a library, and see that the temporary folder of the run stays empty."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield shutil.copytree(made, tmp_path / "library")
    assert list(temporary.iterdir()) == []


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Return where a pack goes, in a folder of its own."""
    (tmp_path / "packs").mkdir()
    return tmp_path / "packs" / "base.zip"


def pack(source: Path, target: Path, *options: object) -> Outcome:
    return run("pack", source, target, "--now", NOW, "--json", *options)


def install(source: Path, place: Path, *options: object) -> Outcome:
    return run("install", source, "--profile", place, "--now", NOW, "--json", "-y", *options)


def refused(source: Path, target: Path, code: str, *options: object) -> str:
    """Assert that packing is refused, dry or not, and writes nothing."""
    with untouched(source, target.parent):
        message = said(pack(source, target, "--dry-run", *options), code, REFUSED)
        assert said(pack(source, target, *options), code, REFUSED) == message
    return message


def catalog(folder: Path, *statements: str) -> None:
    with closing(apsw.Connection(str(folder / "catalog.sqlite"))) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            db.execute(statement)


def index_of(folder: Path, base: str) -> Path:
    return folder / "KnowledgeBase" / base / ".cherry" / "index.sqlite"


def rewritten(source: Path, new: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """Write the members of a pack anew, changed."""
    with zipfile.ZipFile(source) as old:
        members = {name: old.read(name) for name in old.namelist()}
    change(members)
    with zipfile.ZipFile(new, "w") as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return new


# --- what is in a pack -----------------------------------------------------------------------------------------------


def test_a_pack_is_the_library_in_a_zip(library, target, tmp_path):
    with untouched(library):
        done = pack(library, target)
    assert (done.status, done.document["outcome"]) == (0, "written"), done.stderr
    assert [base["id"] for base in done.document["bases"]] == [ALPHA, BETA, GAMMA]
    assert sorted(path.name for path in target.parent.iterdir()) == ["base.zip"]
    with zipfile.ZipFile(target) as packed:
        assert packed.testzip() is None
        packed.extractall(tmp_path / "unpacked")
    unpacked = files_of(tmp_path / "unpacked")
    manifest = json.loads(unpacked.pop("pack.json"))
    assert {name: content for name, content in unpacked.items() if name != "catalog.sqlite"} == {
        f"KnowledgeBase/{name}": content for name, content in files_of(library / "KnowledgeBase").items()
    }
    assert {file["path"]: (file["bytes"], file["sha256"]) for file in manifest["files"]} == {
        name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in unpacked.items()
    }
    assert done.document["files"] == len(unpacked)
    assert done.document["bytes"] == sum(map(len, unpacked.values()))
    for table in ("knowledge_base", "knowledge_item", "user_model", "user_provider"):
        query = f"SELECT * FROM {table} ORDER BY rowid"
        assert rows(tmp_path / "unpacked" / "catalog.sqlite", query) == rows(library / "catalog.sqlite", query)
    failed = [left for left in done.document["left"] if left["finding"] == "base.failed"]
    assert [(left["base"], left["severity"]) for left in failed] == [(GAMMA, "note")]


def test_the_same_source_and_time_give_the_same_bytes(library, target, tmp_path):
    other = shutil.copytree(library, tmp_path / "other")
    assert pack(library, target).status == 0
    assert pack(other, target.with_name("other.zip")).status == 0
    assert target.read_bytes() == target.with_name("other.zip").read_bytes()


def test_a_pack_packed_again_holds_the_same(library, target, tmp_path):
    pack(library, target)
    again = target.with_name("again.zip")
    assert pack(target, again).status == 0
    with zipfile.ZipFile(target) as one, zipfile.ZipFile(again) as other:
        for name in set(one.namelist()) - {"pack.json"}:
            assert one.read(name) == other.read(name)


@pytest.mark.parametrize("name", ["Base beta", "beta", BETA, BETA[:8], f" {'Base beta'} "])
def test_some_bases_by_name_or_id(library, target, name):
    done = pack(library, target, "--base", name)
    assert [(base["id"], base["legacy_id"]) for base in done.document["bases"]] == [(BETA, "beta")]
    with zipfile.ZipFile(target) as packed:
        assert not [one for one in packed.namelist() if ALPHA in one]
    assert run("install", target, "--profile", profile(target.parent / "p"), "-y", "--base", "beta").status == 0


def test_names_that_no_base_or_several_have(library, target):
    assert "Base alpha" in refused(library, target, "BaseUnknown", "--base", "nobody")
    catalog(library, "UPDATE knowledge_base SET name = 'Base beta'")
    assert BETA in refused(library, target, "BaseAmbiguous", "--base", "Base beta")
    assert BETA in refused(library, target, "BaseAmbiguous", "--base", "ba")
    assert "Base beta" in refused(library, target, "BaseUnknown", "--base", "b")


@pytest.mark.parametrize("name", ["beta", BETA, BETA[:6], "Base beta", "base BETA", "Base b"])
def test_every_command_takes_a_base_by_its_name_or_id(library, tmp_path, name):
    assert run("search", library, "lamp", "--base", name, "--mode", "bm25", "--json").document["base"] == BETA
    checked = run("check", library, "--base", name, "--json").document
    assert checked["checked"] == run("check", library, "--base", BETA, "--json").document["checked"]
    assert checked["checked"]["bases"] == 1
    assert run("gc", library, "--base", name, "--dry-run", "--json").status == 0
    if optional("pyarrow"):
        exported = run("export", library, tmp_path / "base.parquet", "--base", name, "--json").document
        assert [base["id"] for base in exported["bases"]] == [BETA]


@pytest.mark.parametrize("command", [("search", "lamp"), ("check",), ("gc", "--dry-run")])
def test_every_command_refuses_a_base_that_none_or_several_are_called(library, command):
    verb, *rest = command
    said(run(verb, library, *rest, "--base", "nobody", "--json"), "BaseUnknown", REFUSED)
    catalog(library, "UPDATE knowledge_base SET name = 'Base beta'")
    before = state_of(library)
    said(run(verb, library, *rest, "--base", "Base beta", "--json"), "BaseAmbiguous", REFUSED)
    assert state_of(library) == before


def test_models_are_in_full_and_keys_never(library, target, tmp_path):
    place = profile(
        tmp_path / "profile", "INSERT INTO user_provider VALUES ('other', NULL, 'Other', 'sk-secret', 1, 'a1', 1, 1)"
    )
    install(library, place)
    done = pack(place, target, "--base", BETA)
    assert done.status == 0, done.stderr
    assert b"secret" not in b"".join(zipfile.ZipFile(target).read(name) for name in zipfile.ZipFile(target).namelist())
    with zipfile.ZipFile(target) as packed:
        packed.extract("catalog.sqlite", tmp_path)
    query = "SELECT id, name, capabilities, supports_streaming FROM user_model"
    assert rows(tmp_path / "catalog.sqlite", query) == [(MODEL, "Embed small", '["embedding"]', 1)]
    assert rows(tmp_path / "catalog.sqlite", "SELECT provider_id, is_enabled FROM user_provider") == [("acme", 1)]


def test_a_dry_run_says_the_same_and_writes_nothing(library, target):
    with untouched(library, target.parent):
        planned = pack(library, target, "--dry-run").document
    done = pack(library, target).document
    assert planned["outcome"] == "planned"
    for key in ("bases", "left", "files", "bytes"):
        assert planned[key] == done[key]
    assert "Dry run" in run("pack", library, target.with_name("x.zip"), "--dry-run").stdout


@pytest.mark.parametrize("name", ["my bases.zip", "-x.zip"])
def test_the_command_for_the_other_machine_can_be_pasted(name, library, target):
    last = run("pack", library, target.with_name(name)).stdout.splitlines()[-1]
    words = split_command(last.partition(": ")[2])
    assert words == ["regraft", "install", path_argument(name), "--profile", "PROFILE"]


def test_a_second_run_leaves_the_file_as_it_is(library, target):
    pack(library, target)
    before = state_of(target)
    again = run("pack", library, target, "--json")
    assert (again.status, again.document["outcome"]) == (0, "unchanged")
    assert f"Nothing to do: {target} already has these bases" in run("pack", library, target).stdout
    assert state_of(target) == before


def test_an_index_with_a_log_is_packed_as_its_readers_see_it(library, target, tmp_path):
    path, copy = index_of(library, BETA), tmp_path / "copy.sqlite"
    shutil.copyfile(path, copy)
    with closing(apsw.Connection(str(copy))) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("UPDATE meta SET updated_at = 77")
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{copy}{suffix}", f"{path}{suffix}")
    with untouched(library):
        planned = pack(library, target, "--dry-run").document["bytes"]
        assert pack(library, target).document["bytes"] == planned
    with zipfile.ZipFile(target) as packed:
        packed.extractall(tmp_path / "unpacked")
    assert rows(index_of(tmp_path / "unpacked", BETA), "SELECT updated_at FROM meta") == [(77,)]
    assert not list((tmp_path / "unpacked").rglob("*-wal"))


def test_what_is_wrong_with_a_row_comes_along(library, target, tmp_path):
    catalog(library, f"UPDATE knowledge_item SET type = 'external' WHERE base_id = '{BETA}'")
    assert pack(library, target).status == 0
    with zipfile.ZipFile(target) as packed:
        packed.extract("catalog.sqlite", tmp_path)
    query = f"SELECT * FROM knowledge_item WHERE base_id = '{BETA}' ORDER BY rowid"
    assert rows(tmp_path / "catalog.sqlite", query) == rows(library / "catalog.sqlite", query)


@posix
def test_links_are_named_and_not_followed(library, target, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret words")
    raw = library / "KnowledgeBase" / BETA / "raw"
    (raw / "link.txt").symlink_to(secret / "key")
    (raw / "folder").symlink_to(secret)
    done = pack(library, target)
    (left,) = [one for one in done.document["left"] if one["severity"] == "warning"]
    assert (done.status, left["base"], left["count"], left["subject"]) == (1, BETA, 2, "raw/folder")
    with zipfile.ZipFile(target) as packed:
        assert not [name for name in packed.namelist() if "link" in name or "folder" in name]


@posix
def test_an_index_that_is_a_link_is_not_followed(library, target, tmp_path):
    index_of(library, BETA).rename(tmp_path / "elsewhere.sqlite")
    index_of(library, BETA).symlink_to(tmp_path / "elsewhere.sqlite")
    done = pack(library, target)
    assert (done.status, [base["id"] for base in done.document["bases"]]) == (1, [ALPHA, GAMMA])
    (left,) = [one for one in done.document["left"] if one["base"] == BETA]
    assert "link" in left["reason"]
    place = profile(tmp_path / "profile")
    assert install(library, place).status == 1
    assert rows(place / "cherrystudio.sqlite", "SELECT id FROM knowledge_base WHERE id = ?", (BETA,)) == []


@posix
def test_a_name_that_no_archive_can_hold_is_named(library, target):
    raw = library / "KnowledgeBase" / BETA / "raw"
    (raw / "a\\..\\b.txt").write_text("x")
    (raw / os.fsdecode(b"\xff.txt")).write_text("x")
    done = pack(library, target)
    (left,) = [one for one in done.document["left"] if one["severity"] == "warning"]
    assert (done.status, left["base"], left["count"]) == (1, BETA, 2)
    assert run("inspect", target).status == 0


@posix
def test_a_backslash_in_a_name_comes_along(library, target, tmp_path):
    strange = "of\\old\nfiles.txt"
    (library / "KnowledgeBase" / BETA / "raw" / strange).write_bytes(b"x")
    assert pack(library, target).status == 0
    place = profile(tmp_path / "profile")
    done = install(target, place, "--base", BETA)
    ends = [{"kind": "pack", "path": str(target)}, {"kind": "v2-profile", "path": str(place)}]
    assert (done.status, [done.document["source"], done.document["target"]]) == (0, ends)
    assert (place / "Data" / "KnowledgeBase" / BETA / "raw" / strange).read_bytes() == b"x"


def test_a_damaged_base_stays_out(library, target):
    path = index_of(library, BETA)
    path.write_bytes(path.read_bytes()[:5000])
    done = pack(library, target)
    assert (done.status, [base["id"] for base in done.document["bases"]]) == (1, [ALPHA, GAMMA])
    assert {left["finding"] for left in done.document["left"] if left["base"] == BETA} == {"file.unreadable"}
    assert "2 of 3 bases" in run("pack", library, target.with_name("x.zip")).stdout


def test_a_page_that_only_sqlites_own_check_finds_keeps_its_base_out(library, target):
    path = index_of(library, BETA)
    with closing(apsw.Connection(str(path))) as db:
        page = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'embedding'").get
        size = db.execute("PRAGMA page_size").get
    with path.open("r+b") as file:
        file.seek((page - 1) * size + 3)
        file.write(b"\xff\xff")
    done = pack(library, target)
    assert {left["finding"] for left in done.document["left"] if left["base"] == BETA} == {"file.corrupt"}


# --- what is refused -------------------------------------------------------------------------------------------------


def test_where_a_pack_cannot_go(library, target, tmp_path):
    assert "use a name such as FILE.zip" in said(pack(library, target.with_name("base.tar")), "WrongUsage", REFUSED)
    refused(library, target.parent / "nowhere" / "base.zip", "TargetNotWritable")
    assert f"it is inside {library}," in refused(library, library / "base.zip", "TargetNotWritable")
    target.mkdir()
    refused(library, target, "PackThere")


@pytest.mark.parametrize("content", [b"mine", b""])
def test_a_file_that_is_there_is_never_written_over(library, target, content):
    target.write_bytes(content)
    assert "another file" in refused(library, target, "PackThere")


def test_a_pack_of_something_else_is_never_written_over(library, target):
    pack(library, target, "--base", "beta")
    assert "other content" in refused(library, target, "PackThere")


def test_the_same_pack_damaged_is_said(library, target):
    pack(library, target)
    whole = bytearray(target.read_bytes())
    whole[whole.index(b"SQLite format 3") + 5000] ^= 1
    target.write_bytes(whole)
    assert "damaged" in refused(library, target, "PackThere")


def test_what_has_no_bases_to_pack(library, target, tmp_path):
    v1 = small_source(tmp_path / "v1").write()
    assert (
        f"which regraft pack does not take; it takes a library, which regraft migrate {v1} --to LIBRARY writes."
        in refused(v1, target, "NotChanged")
    )
    assert said(pack(tmp_path / "nothing", target), "SourceNotFound", REFUSED)
    index_of(library, BETA).unlink()
    assert "index" in refused(library, target, "NothingToPack", "--base", "beta")
    (library / "catalog.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 4000)
    refused(library, target, "SourceUnreadable")


def test_a_profile_in_use(library, target, tmp_path):
    place = profile(tmp_path / "profile")
    install(library, place)
    start_application(place)
    refused(place, target, "ProfileInUse")
    other = profile(tmp_path / "other")
    with untouched(place, other):
        said(install(place, other), "ProfileInUse", REFUSED)


def test_no_room(library, target, monkeypatch):
    usage = shutil.disk_usage(library)._replace(free=1 << 16)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    # It is refused before a file is read whole.
    monkeypatch.setattr(BaseSource, "demand_whole", None)
    monkeypatch.setattr(BaseSource, "findings", None)
    with untouched(library, target.parent):
        said(pack(library, target), "NotEnoughSpace", REFUSED)


def test_a_source_that_is_written_to_meanwhile(library, target, monkeypatch):
    real = cherry_v2_pack._add_member

    def add(packed: Any, member: Any, *more: Any) -> Any:
        if member.name.endswith("index.sqlite"):
            os.utime(member.path, ns=(1, 1))
        return real(packed, member, *more)

    monkeypatch.setattr(cherry_v2_pack, "_add_member", add)
    said(pack(library, target), "PlanOutdated", REFUSED)
    assert list(target.parent.iterdir()) == []


def test_what_does_not_read_back_is_not_put_there(library, target, monkeypatch):
    real = cherry_v2_pack.durable.sync_file

    def flip(path: Path) -> None:
        real(path)
        whole = bytearray(path.read_bytes())
        whole[whole.index(b"SQLite format 3") + 5000] ^= 1
        path.write_bytes(whole)

    monkeypatch.setattr(cherry_v2_pack.durable, "sync_file", flip)
    said(pack(library, target), "CopyDiffers", STOPPED)
    assert list(target.parent.iterdir()) == []


def test_a_file_that_comes_meanwhile_stays(library, target, monkeypatch):
    real = cherry_v2_pack._read_back

    def read_back(*arguments: Any) -> None:
        real(*arguments)
        target.write_text("mine")

    monkeypatch.setattr(cherry_v2_pack, "_read_back", read_back)
    said(pack(library, target), "PackThere", REFUSED)
    assert [path.read_bytes() for path in target.parent.iterdir()] == [b"mine"]


def test_interrupted_it_leaves_nothing(library, target, monkeypatch):
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cherry_v2_pack, "_read_back", interrupt)
    assert said(pack(library, target), "Interrupted", 130)
    assert list(target.parent.iterdir()) == []


@posix
@pytest.mark.parametrize("step", ["_add_member", "_read_back", "_rename_new"])
def test_killed_it_leaves_no_pack_and_the_next_run_writes_it(library, target, monkeypatch, step):
    with monkeypatch.context() as patch:
        patch.setattr(cherry_v2_pack, step, lambda *_: die())
        # What it had in its temporary folder is the system's to clear.
        patch.setattr(tempfile, "tempdir", str(library.parent))
        assert forked(lambda: pack(library, target)) == KILLED
    assert not target.exists()
    assert pack(library, target).status == 0
    assert [path.name for path in target.parent.iterdir()] == ["base.zip"]


@posix
def test_two_at_once(library, target, monkeypatch):
    real = cherry_v2_pack._read_back
    second = []

    def read_back(*arguments: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(cherry_v2_pack, "_read_back", real)
            second.append(pack(library, target))
        real(*arguments)

    monkeypatch.setattr(cherry_v2_pack, "_read_back", read_back)
    assert pack(library, target).status == 0
    assert said(second[0], "TargetLocked", REFUSED)


# --- reading a pack --------------------------------------------------------------------------------------------------


def findings(path: Path, *options: object) -> list[tuple[str, str | None]]:
    return [(one["name"], one["base"]) for one in run("check", path, "--json", *options).document["findings"]]


def test_a_pack_is_read_like_the_library(library, target, tmp_path):
    pack(library, target)
    shutil.unpack_archive(target, tmp_path / "unpacked")
    with untouched(target.parent, tmp_path / "unpacked"):
        assert findings(target) == findings(library) == findings(tmp_path / "unpacked")
        for path, kind in ((target, "pack"), (tmp_path / "unpacked", "library")):
            looked = run("inspect", path, "--json").document
            assert looked["kind"] == kind
            assert looked["bases"] == run("inspect", library, "--json").document["bases"]
            found = run("search", path, "lamp", "--base", ALPHA, "--mode", "bm25", "--json").document["hits"]
            assert found == run("search", library, "lamp", "--base", ALPHA, "--mode", "bm25", "--json").document["hits"]
            assert found
        assert findings(target, "--base", BETA) == findings(library, "--base", BETA)


@needs("parquet")
def test_a_pack_is_exported(library, target, tmp_path):
    pack(library, target)
    exported = [run("export", path, tmp_path / f"{path.name}.parquet", "--json") for path in (library, target)]
    assert exported[0].document["bases"] == exported[1].document["bases"]


def test_no_command_is_given_for_what_lies_in_an_archive(library, target):
    with closing(apsw.Connection(str(index_of(library, BETA)))) as db:
        db.execute("DELETE FROM embedding WHERE rowid = 1")
    pack(library, target)
    (finding,) = [
        one for one in run("check", target, "--json").document["findings"] if one["name"] == "embedding.missing"
    ]
    assert finding["repair"] is None
    assert said(run("repair", target, "--json"), "NotChanged", REFUSED)


def test_a_file_that_is_not_what_was_packed(library, target, tmp_path):
    pack(library, target)
    name = f"KnowledgeBase/{BETA}/raw/same.txt"

    def change(members: dict[str, bytes]) -> None:
        members[name] = b"TWO"

    other = rewritten(target, target.with_name("other.zip"), change)
    place = profile(tmp_path / "profile")
    with untouched(place, other):
        assert ("file.corrupt", BETA) in findings(other)
        assert name in said(install(other, place, "--dry-run"), "PackDamaged", REFUSED)
    before = files_of(place)
    assert name in said(install(other, place), "PackDamaged", REFUSED)
    assert name in said(pack(other, target.with_name("third.zip")), "PackDamaged", REFUSED)
    assert files_of(place) == before
    assert install(other, place, "--base", ALPHA).status == 0
    shutil.unpack_archive(other, tmp_path / "unpacked")
    assert ("file.corrupt", BETA) in findings(tmp_path / "unpacked")
    said(install(tmp_path / "unpacked", place), "PackDamaged", REFUSED)


def test_files_more_or_less_than_were_packed(library, target, tmp_path):
    pack(library, target)
    name = f"KnowledgeBase/{BETA}/raw/same.txt"
    less = rewritten(target, target.with_name("less.zip"), lambda members: members.pop(name))
    assert ("file.corrupt", BETA) in findings(less)
    said(install(less, profile(tmp_path / "a")), "PackDamaged", REFUSED)

    def add(members: dict[str, bytes]) -> None:
        members[f"KnowledgeBase/{BETA}/raw/more.txt"] = b"more"

    more = rewritten(target, target.with_name("more.zip"), add)
    assert ("file.corrupt", BETA) in findings(more)
    assert "file.corrupt" not in {name for name, _ in findings(target)}
    assert "more.txt" in said(install(more, profile(tmp_path / "b")), "PackDamaged", REFUSED)


def test_an_unpacked_pack_that_was_repaired_is_a_library(library, target, tmp_path):
    with closing(apsw.Connection(str(index_of(library, BETA)))) as db:
        db.execute("INSERT INTO embedding VALUES ('nobody', zeroblob(32), 1)")
    pack(library, target)
    shutil.unpack_archive(target, tmp_path / "unpacked")
    assert run("gc", tmp_path / "unpacked", "-y").status == 0
    assert ("file.corrupt", BETA) not in findings(tmp_path / "unpacked")
    done = install(tmp_path / "unpacked", profile(tmp_path / "p"))
    assert (done.status, done.document["failed"]) == (0, [GAMMA])


@pytest.mark.parametrize(
    "manifest",
    [b"{", b"[]", b'{"pack": 2, "created_at": ""}', b'{"pack": 1, "created_at": "", "files": [{"path": 1}]}'],
)
def test_a_manifest_that_is_none(library, target, tmp_path, manifest):
    pack(library, target)

    def change(members: dict[str, bytes]) -> None:
        members["pack.json"] = manifest

    other = rewritten(target, target.with_name("other.zip"), change)
    assert ("file.corrupt", None) in findings(other)
    with untouched(place := profile(tmp_path / "profile")):
        said(install(other, place, "--dry-run"), "PackUnreadable", REFUSED)


@pytest.mark.parametrize("path", ["../../outside", "/etc/hostname", "a/../../b", "a//b"])
def test_a_manifest_that_leads_out(library, target, tmp_path, path):
    pack(library, target)

    def change(members: dict[str, bytes]) -> None:
        listed = json.loads(members["pack.json"])
        listed["files"].append({"path": path, "bytes": 1, "sha256": "0" * 64})
        members["pack.json"] = json.dumps(listed).encode()

    other = rewritten(target, target.with_name("other.zip"), change)
    assert ("file.corrupt", None) in findings(other)
    said(install(other, profile(tmp_path / "profile")), "PackDamaged", REFUSED)


# --- hostile archives ------------------------------------------------------------------------------------------------


def hostile(target: Path, name: str, content: bytes = b"x", **attributes: Any) -> Path:
    """Add a member to a copy of a pack."""
    other = shutil.copyfile(target, target.with_name("hostile.zip"))
    info = zipfile.ZipInfo(name)
    for attribute, value in attributes.items():
        setattr(info, attribute, value)
    with zipfile.ZipFile(other, "a") as packed:
        packed.writestr(info, content)
    return other


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "content", "attributes"),
    [
        ("KnowledgeBase/../../out", b"x", {}),
        ("/etc/out", b"x", {}),
        ("C:\\out", b"x", {}),
        ("a\\..\\..\\out", b"x", {}),
        ("catalog.sqlite", b"x", {}),
        ("a/" * 300 + "deep", b"x", {}),
        ("n" * 5000, b"x", {}),
        ("bomb", bytes(64 << 20), {"compress_type": zipfile.ZIP_DEFLATED}),
    ],
    ids=["climbs", "absolute", "drive", "backslashes", "twice", "deep", "long", "bomb"],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_unsafe_archive_is_refused_by_every_command(library, target, tmp_path, name, content, attributes):
    pack(library, target)
    other = hostile(target, name, content, **attributes)
    place = profile(tmp_path / "profile")
    with untouched(place, target.parent):
        for command in (
            ("inspect", other),
            ("check", other),
            ("search", other, "lamp", "--base", ALPHA),
            ("pack", other, tmp_path / "new.zip"),
            ("install", other, "--profile", place, "-y"),
        ):
            assert "not safe to read" in said(run(*command, "--json"), "ArchiveUnsafe", REFUSED)
    assert not (tmp_path / "new.zip").exists()


@pytest.mark.parametrize("name", ["notes: b.md", "NUL", "a.md."])
def test_a_member_whose_name_windows_does_not_allow_is_named(library, target, tmp_path, name, monkeypatch):
    """Windows would write a stream of another file, nothing at all, or another member."""
    pack(library, target)
    other = hostile(target, f"KnowledgeBase/{ALPHA}/raw/{name}", b"x")
    monkeypatch.setattr(file_paths, "is_storable", partial(file_paths.is_storable, windows=True))
    found = run("check", other, "--json")
    [said] = [one for one in found.document["findings"] if "Windows does not allow the name" in one["message"]]
    assert (found.status, said["name"], said["base"]) == (1, "file.corrupt", ALPHA)
    assert name in said["message"]
    place = profile(tmp_path / "profile")
    before = tables(place)
    done = run("install", other, "--profile", place, "--base", ALPHA, "-y", "--json")
    assert (done.status, done.document["actions"], tables(place)) == (1, [], before)
    assert not (place / "Data" / "KnowledgeBase" / ALPHA).exists()
    assert "Windows does not allow the name" in done.document["left"][0]["reason"]


def test_a_link_in_an_archive_is_not_made(library, target, tmp_path):
    (tmp_path / "secret").write_text("secret words")
    packed = pack(library, target).document
    name = f"KnowledgeBase/{BETA}/raw/link.txt"
    other = hostile(target, name, str(tmp_path / "secret").encode(), external_attr=0o120777 << 16, create_system=3)
    assert run("check", other).status == run("check", target).status
    place = profile(tmp_path / "profile")
    done = install(other, place)
    (left,) = done.document["left"]
    assert (done.status, left["base"], left["subject"]) == (1, BETA, "raw/link.txt")
    assert not list(place.rglob("link.txt"))
    assert pack(other, target.with_name("again.zip")).document["files"] == packed["files"]


def test_a_member_that_is_damaged(library, target, tmp_path):
    pack(library, target)
    whole = bytearray(target.read_bytes())
    with zipfile.ZipFile(target) as packed:
        info = packed.getinfo(f"KnowledgeBase/{BETA}/.cherry/index.sqlite")
    whole[info.header_offset + 300 + info.file_size // 2] ^= 0xFF
    target.write_bytes(whole)
    found = findings(target)
    assert ("file.corrupt", BETA) in found
    assert ("base.no-index", BETA) not in found
    assert "cannot be read" in run("inspect", target).stdout
    place = profile(tmp_path / "profile")
    with untouched(place):
        said(install(target, place, "--dry-run"), "PackDamaged", REFUSED)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.999])
def test_a_truncated_archive(library, target, tmp_path, share):
    pack(library, target)
    target.write_bytes(target.read_bytes()[: int(target.stat().st_size * share)])
    for command in (("inspect", target), ("check", target), ("install", target, "--profile", profile(tmp_path / "p"))):
        assert "incomplete" in line(run(*command), REFUSED)


def test_sizes_that_lie(library, target, tmp_path):
    pack(library, target)
    whole = bytearray(target.read_bytes())
    name = f"KnowledgeBase/{BETA}/raw/same.txt".encode()
    entry = whole.rindex(b"PK\1\2", 0, whole.rindex(name))
    whole[entry + 24 : entry + 28] = struct.pack("<L", 1)
    target.write_bytes(whole)
    assert ("file.corrupt", BETA) in findings(target)
    said(install(target, profile(tmp_path / "profile")), "PackDamaged", REFUSED)


def test_no_room_to_unpack(library, target, tmp_path, monkeypatch):
    pack(library, target)
    usage = shutil.disk_usage(library)._replace(free=1 << 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    for command in (("inspect", target), ("check", target), ("search", target, "lamp", "--base", ALPHA)):
        assert "TMPDIR" in said(run(*command, "--json"), "WorkFolderTooSmall", REFUSED)


# --- from one profile to another -------------------------------------------------------------------------------------


def outcome_of(place: Path) -> tuple[Any, Any]:
    found = tables(place)
    names = ("knowledge_base", "knowledge_item", "user_model", "user_provider")
    return {name: found[name] for name in names}, files_of(place / "Data" / "KnowledgeBase")


@pytest.mark.thorough
def test_every_source_of_the_same_bases_gives_the_same_profile(library, target, tmp_path):
    pack(library, target)
    shutil.unpack_archive(target, tmp_path / "unpacked")
    first = profile(tmp_path / "first")
    install(library, first)
    expected = outcome_of(first)
    shutil.make_archive(str(tmp_path / "zipped"), "zip", library)
    sources = [target, tmp_path / "unpacked", first, tmp_path / "zipped.zip"]
    for number, source in enumerate(sources):
        place = profile(tmp_path / f"profile-{number}")
        before = tables(place)
        with untouched(source):
            done = install(source, place)
        assert (done.status, done.document["left"], done.document["failed"]) == (0, [], [GAMMA]), done.stderr
        assert outcome_of(place) == expected
        assert install(source, place).document["actions"] == []
        assert run("undo", place, "-y").status == 0
        assert tables(place) == before
        assert not (place / "Data" / "KnowledgeBase").exists()


def test_the_source_and_the_profile_are_one(tmp_path):
    place = profile(tmp_path / "profile")
    assert "the same folder" in said(install(place, place), "WrongUsage", REFUSED)


@golden
@pytest.mark.parametrize("way", ["pack", "profile"])
def test_from_the_applications_own_profile_to_another_generation(tmp_path, target, way):
    source, place = tmp_path / "a", tmp_path / "b"
    for name, folder in (("profile_208_upgraded", source), ("profile_21x_empty", place)):
        shutil.copytree(GOLDEN / name, folder, copy_function=shutil.copyfile)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o700)
    database = place / "Data" / "cherrystudio.sqlite"
    before = dump(database)
    given = source
    if way == "pack":
        assert pack(source, target).status == 0
        given = target
    with untouched(given):
        done = install(given, place)
    assert (done.status, done.document["left"]) == (0, []), done.stderr
    checked = run("check", place, "--deep", "--json")
    assert (checked.status, {one["severity"] for one in checked.document["findings"]}) == (0, {"note"})
    for query in ("report", "产品", "lamp terraces", "fuse"):
        hits = [run("search", path, query, "--mode", "bm25", "--json").document["hits"] for path in (source, place)]
        assert hits[0] == hits[1]
    (base,) = (one.name for one in (place / "Data" / "KnowledgeBase").iterdir())
    assert files_of(place / "Data" / "KnowledgeBase" / base) == files_of(source / "Data" / "KnowledgeBase" / base)
    assert run("undo", place, "-y").status == 0
    assert dump(database) == before


def dump(path: Path) -> list[Any]:
    with closing(apsw.Connection(str(path))) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
        return [(name, sorted(db.execute(f'SELECT * FROM "{name}"').fetchall(), key=repr)) for name in names]


def test_a_folder_that_may_not_be_looked_into_is_refused(library, target, monkeypatch):
    def denied(path: Path, _: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(base_source, "_is_inside", denied)
    done = run("pack", library, target, "--yes", "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "SourceUnreadable")
    assert "index.sqlite: cannot be read (Permission denied)" in done.stderr
    assert not target.exists()
