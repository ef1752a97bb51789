"""Folders and archives as trees: what they show, what is refused, and that reading leaves no trace."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import random
import shutil
import sqlite3
import struct
import threading
import unicodedata
import zipfile
import zlib
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from harness import REPO, run

from regraft.disk import checksums, links, zip_directory
from regraft.disk.trees import (
    FolderTree,
    SourceReadFailed,
    ZipTree,
    copy_from_tree,
    copy_stream,
    is_plain_name,
    join_path,
    open_tree,
    stream_crc32,
)
from regraft.disk.zip_directory import BOMB_BYTES, BOMB_RATIO
from regraft.errors import ArchiveEncrypted, ArchiveUnsafe, RegraftError, SourceUnreadable, WorkFolderTooSmall

WAL_START = b"\x37\x7f\x06\x82"
JOURNAL_START = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
#: Bits and places in a member's two headers.
UTF8_FLAG = 0x800
LOCAL_HEADER, CENTRAL_HEADER = b"PK\x03\x04", b"PK\x01\x02"


def archive(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as target:
        for name, content in members.items():
            member = zipfile.ZipInfo()
            # As the name is, and as Linux makes it: on Windows, a backslash would become a slash.
            member.filename, member.create_system, member.compress_type = name, 3, compression
            target.writestr(member, content)
    return path


def renamed(path: Path, old: bytes, new: bytes) -> Path:
    """Put other bytes in place of a member's name; both are equally long."""
    assert len(old) == len(new)
    path.write_bytes(path.read_bytes().replace(old, new))
    return path


def set_headers(path: Path, *, flags: int = 0, system: int | None = None) -> Path:
    """Set flag bits of every member, and the system that it says it was made on."""
    raw = bytearray(path.read_bytes())
    for signature, flag_place in ((LOCAL_HEADER, 6), (CENTRAL_HEADER, 8)):
        start = raw.find(signature)
        while start >= 0:
            (before,) = struct.unpack_from("<H", raw, start + flag_place)
            struct.pack_into("<H", raw, start + flag_place, before | flags)
            if system is not None and signature == CENTRAL_HEADER:
                raw[start + 5] = system
            start = raw.find(signature, start + 4)
    path.write_bytes(raw)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ArchiveUnsafe) as caught:
        ZipTree(path)
    assert caught.value.exit_status == 2
    message = str(caught.value)
    assert message.startswith(f"{path}: the archive is not safe to read: ")
    return message.partition("safe to read: ")[2].removesuffix(".")


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


@contextmanager
def opened(path: Path):
    with closing(ZipTree(path)) as tree:
        yield tree


@contextmanager
def pipe(path: Path):
    """Make a pipe that something is written to, so that a reader that opens it gets stuck no test."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, b"PK\x05\x06" + bytes(18))
    yield path
    os.close(writer)


def linked(link: Path, target: Path) -> None:
    try:
        link.symlink_to(target)
    except OSError:
        pytest.skip("this system makes no symbolic links")


# --- names ---------------------------------------------------------------------------------------------------------


def test_joining() -> None:
    assert join_path("", "a") == "a"
    assert join_path("a/b", "c") == "a/b/c"


@pytest.mark.parametrize("name", ["a", ".._up", "...", "a..b", " ", "中", ".hidden"])
def test_plain_names(name: str) -> None:
    assert is_plain_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "a\\b", "..\\x", "a\0"])
def test_names_that_lead_elsewhere(name: str) -> None:
    assert not is_plain_name(name)


# --- both kinds of tree --------------------------------------------------------------------------------------------

CONTENT = {
    "data.json": b"{}",
    "Data/KnowledgeBase/base": b"vectors" * 1000,
    "Data/KnowledgeBase/.._up": b"legal",
    "Data/Files/a b.txt": "文".encode(),
    "empty": b"",
}


@pytest.fixture(params=["folder", "zip", "stored zip"])
def tree(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "folder":
        for name, content in CONTENT.items():
            place = tmp_path / "source" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        (tmp_path / "source" / "Data" / "void").mkdir()
        source = tmp_path / "source"
    else:
        stored = zipfile.ZIP_STORED if request.param == "stored zip" else zipfile.ZIP_DEFLATED
        source = archive(tmp_path / "source.zip", {**CONTENT, "Data/void/": b""}, stored)
    found = open_tree(source)
    yield found
    if isinstance(found, ZipTree):
        found.close()


def test_kinds(tree) -> None:
    assert isinstance(tree, FolderTree | ZipTree)
    assert tree.kind("") == "folder"
    assert tree.kind("Data") == tree.kind("Data/KnowledgeBase") == tree.kind("Data/void") == "folder"
    assert tree.kind("data.json") == tree.kind("Data/KnowledgeBase/.._up") == tree.kind("empty") == "file"
    assert tree.kind("missing") is None
    assert tree.kind("Data/missing/deep") is None
    assert tree.kind("data.json/below") is None
    assert tree.kind("x" * 5000) is None


def test_children_are_sorted_and_empty_where_there_are_none(tree) -> None:
    assert tree.children("") == ["Data", "data.json", "empty"]
    assert tree.children("Data") == ["Files", "KnowledgeBase", "void"]
    assert tree.children("Data/KnowledgeBase") == [".._up", "base"]
    assert tree.children("Data/void") == tree.children("data.json") == tree.children("missing") == []


def test_files_are_read_whole_and_in_parts(tree) -> None:
    for name, content in CONTENT.items():
        assert tree.size(name) == len(content)
        assert tree.crc32(name) == zlib.crc32(content)
        with tree.open(name) as file:
            assert file.read() == content
        with tree.open(name) as file:
            assert file.read(3) + file.read(4) + file.read() == content
        with tree.open(name) as file:
            buffer = bytearray(len(content) + 5)
            count = file.readinto(buffer)
            assert bytes(buffer[:count]) == content[:count]
            assert count > 0 or not content


def test_a_local_copy_is_a_file_that_programs_can_open(tree, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with tree.local("Data/KnowledgeBase/base", work) as place:
        assert place.read_bytes() == CONTENT["Data/KnowledgeBase/base"]
    with tree.local("Data/KnowledgeBase", work) as place:
        assert place.is_dir()
    with tree.local("missing", work) as place:
        assert not place.exists()
    with tree.local("empty", None) as place:
        assert place.stat().st_size == 0
    assert list(work.iterdir()) == []


def test_reading_leaves_no_trace(tree, tmp_path: Path) -> None:
    before = state_of(tmp_path)
    for name in CONTENT:
        tree.kind(name), tree.crc32(name)
        with tree.open(name) as file:
            file.read()
        with tree.local(name, None) as place:
            place.read_bytes()
    assert state_of(tmp_path) == before


# --- folders -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("on_disk", "asked"), [("NFD", "NFC"), ("NFC", "NFD"), ("NFC", "NFC")])
def test_names_are_found_whatever_their_normalisation(tmp_path: Path, on_disk: str, asked: str) -> None:
    folder, name = "Prüfung", "Ångström é.txt"
    place = tmp_path / unicodedata.normalize(on_disk, folder)
    place.mkdir()
    (place / unicodedata.normalize(on_disk, name)).write_bytes(b"found")
    wanted = unicodedata.normalize(asked, f"{folder}/{name}")
    tree = FolderTree(tmp_path)
    assert tree.kind(wanted) == "file"
    assert tree.size(wanted) == 5
    assert [unicodedata.normalize("NFC", child) for child in tree.children(wanted.split("/")[0])] == [name]
    with tree.local(wanted, None) as local:
        assert local.read_bytes() == b"found"
    assert tree.kind(wanted + "x") is None


def test_names_in_several_folders_are_found_also_after_a_change(tmp_path: Path) -> None:
    """What a folder holds is remembered for the next name, as long as nothing is added to it."""
    decomposed = [unicodedata.normalize("NFD", name) for name in ("é", "ü", "ñ")]
    for folder, name in (("a", decomposed[0]), ("b", decomposed[1])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(folder, "utf-8")
        os.utime(tmp_path / folder, (1, 1))
    tree = FolderTree(tmp_path)
    assert [tree.kind(name) for name in ("a/é", "a/ü", "b/ü", "b/é", "a/é")] == ["file", None, "file", None, "file"]
    (tmp_path / "a" / decomposed[2]).write_text("new")
    os.utime(tmp_path / "a", (2, 2))
    assert [tree.kind(name) for name in ("a/ñ", "a/é", "b/ñ")] == ["file", "file", None]


def test_the_exact_name_wins_over_a_normalised_one(tmp_path: Path) -> None:
    exact, other = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    (tmp_path / other).write_bytes(b"other")
    (tmp_path / exact).write_bytes(b"exact")
    if len(list(tmp_path.iterdir())) < 2:
        pytest.skip("this file system normalises names")
    tree = FolderTree(tmp_path)
    with tree.open(exact) as first, tree.open(other) as second:
        assert (first.read(), second.read()) == (b"exact", b"other")


@pytest.fixture
def with_links(tmp_path: Path) -> Path:
    """A folder with links out of it, within it, to nothing and in a circle."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "base").write_bytes(b"vectors")
    source = tmp_path / "source"
    (source / "own").mkdir(parents=True)
    (source / "own" / "base").write_bytes(b"inside")
    linked(source / "linked", tmp_path / "elsewhere")
    linked(source / "file", tmp_path / "elsewhere" / "base")
    linked(source / "climbing", Path("..") / "elsewhere")
    linked(source / "through", source / "linked" / "base")
    linked(source / "inside", source / "own")
    linked(source / "around", tmp_path / "source" / "own" / ".." / "own" / "base")
    linked(source / "dangling", tmp_path / "nowhere")
    linked(source / "loop", source / "loop")
    return source


def test_links_that_stay_inside_are_followed(with_links: Path) -> None:
    tree = FolderTree(with_links)
    assert (tree.kind("inside"), tree.kind("inside/base"), tree.kind("around")) == ("folder", "file", "file")
    assert tree.size("around") == 6
    assert tree.not_followed == {}


@pytest.mark.parametrize("name", ["linked", "linked/base", "file", "climbing", "climbing/base", "through"])
def test_links_that_lead_out_are_not_followed_and_are_named(with_links: Path, name: str) -> None:
    tree = FolderTree(with_links)
    assert (tree.kind(name), tree.children(name)) == (None, [])
    target = with_links.parent / "elsewhere" / ("base" if name in ("file", "through") else "")
    reason = f"it is a link to {target}, outside of the source; use --follow-links to follow it"
    for read in (tree.open, tree.size, tree.crc32):
        with pytest.raises(SourceUnreadable) as caught:
            read(name)
        assert (caught.value.exit_status, caught.value.facts["reason"]) == (2, reason)
    with pytest.raises(SourceUnreadable, match="outside of the source"), tree.local(name, None):
        pass
    assert (tree.problem(name), tree.not_followed) == (reason, {name: str(target)})


def test_links_of_ones_own_are_followed_where_that_is_wanted(with_links: Path) -> None:
    tree = FolderTree(with_links)
    with links.follow_links(True):
        assert (tree.kind("linked"), tree.kind("linked/base"), tree.kind("file")) == ("folder", "file", "file")
        assert (tree.size("file"), tree.problem("file")) == (7, "")
        with tree.local("linked/base", None) as place:
            assert place.read_bytes() == b"vectors"
    assert tree.kind("file") is None


def test_links_to_nothing_and_in_a_circle_are_nothing(with_links: Path) -> None:
    tree = FolderTree(with_links)
    for wanted in (False, True):
        with links.follow_links(wanted):
            assert tree.kind("dangling") is None
            assert tree.kind("loop") is None


def test_a_root_that_is_a_link_and_a_path_that_the_user_named_are_followed(with_links: Path) -> None:
    root = with_links.parent / "root"
    linked(root, with_links)
    assert FolderTree(root).size("own/base") == 6
    assert FolderTree(root).size("around") == 6
    assert FolderTree(with_links, with_links / "linked").size("linked/base") == 7
    assert FolderTree(with_links, with_links / "file").size("file") == 7


# --- holes ---------------------------------------------------------------------------------------------------------


def sparse(path: Path, parts: dict[int, bytes], size: int) -> Path:
    with path.open("wb") as file:
        for place, content in parts.items():
            file.seek(place)
            file.write(content)
        file.truncate(size)
    with path.open("rb") as file:
        if sum(end - begin for begin, end in checksums.data_ranges(file.fileno(), size)) > size // 2:
            pytest.skip("this file system makes no holes")
    return path


def test_a_file_of_holes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    sparse(tmp_path / "data.json", {0: b"{}"}, 1 << 40)
    with pytest.raises(SourceUnreadable, match=r"only .* of its 1\.1 TB are data, the rest are holes") as caught:
        FolderTree(tmp_path).open("data.json")
    assert caught.value.exit_status == 2


def test_a_checksum_passes_over_holes(tmp_path: Path) -> None:
    parts = {0: b"start", 3 << 20: b"middle" * 5000, (5 << 20) - 3: b"end"}
    path = sparse(tmp_path / "base", parts, 7 << 20)
    assert FolderTree(tmp_path).crc32("base") == zlib.crc32(path.read_bytes())
    sparse(path, parts, 1 << 42)
    assert FolderTree(tmp_path).crc32("base") > 0


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 100_000])
def test_a_checksum_of_zeros(tmp_path: Path, size: int) -> None:
    assert checksums._append_zeros(zlib.crc32(b"before"), size) == zlib.crc32(b"before" + bytes(size))


def test_an_archive_of_holes_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", {"data.json": b"{}"})
    moved = path.read_bytes()
    sparse(path, {0: moved[:40], (1 << 40) - len(moved): moved}, 1 << 40)
    assert "are data, the rest are holes" in unreadable(path)


def test_a_name_with_a_nul_is_nothing(tmp_path: Path) -> None:
    assert FolderTree(tmp_path).kind("a\0b") is None
    assert FolderTree(tmp_path).children("a\0b") == []


def test_a_pipe_is_nothing_and_never_opened(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    tree = FolderTree(tmp_path / "source")
    with pipe(tmp_path / "source" / "pipe"):
        linked(tmp_path / "source" / "link", tmp_path / "source" / "pipe")
        assert tree.children("") == ["link", "pipe"]
        for name in ("pipe", "link"):
            assert tree.kind(name) is None
            for read in (tree.open, tree.size, tree.crc32):
                with pytest.raises(SourceUnreadable, match="a pipe, a socket or a device, not a file"):
                    read(name)
            with tree.local(name, None) as place:
                assert not place.exists()
        assert open_tree(tmp_path / "source").kind("pipe") is None
        with pytest.raises(SourceUnreadable, match="a pipe, a socket or a device, not a file"):
            open_tree(tmp_path / "source" / "pipe")


def test_what_is_not_there_or_is_a_folder_cannot_be_read(tree) -> None:
    for name in ("missing", "data.json/below", "Data"):
        for read in (tree.open, tree.size, tree.crc32):
            with pytest.raises(SourceUnreadable):
                read(name)


def test_a_disk_that_fails_to_tell_a_size_is_a_source_that_cannot_be_read(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "base").write_bytes(b"vectors")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    tree = FolderTree(tmp_path)
    monkeypatch.setattr(os, "stat", fail)
    with pytest.raises(SourceUnreadable, match=os.strerror(errno.EIO)):
        tree.size("base")


# --- archives that are refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/etc/passwd", "\\\\server\\share", "C:/Windows/x", "c:\\Windows\\x", "D:"])
def test_absolute_members_are_refused(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / "a.zip", {"data.json": b"{}", name: b"x"})
    assert refusal(path) == f"{name} is an absolute path"


@pytest.mark.parametrize("name", ["../x", "a/../x", "a/..", "..", "a/../../x", "..\\x", "a\\..\\x", "a/..\\x"])
def test_members_that_climb_are_refused(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / "a.zip", {"data.json": b"{}", name: b"x"})
    assert refusal(path) == f"the path {name} leads out of the archive"


@pytest.mark.parametrize(
    "name", [".._up", "Data/KnowledgeBase/.._up", "a../b", "a/..b", "a/...", "..a\\b", "x:y", "ab:/c", "~/x"]
)
def test_dots_that_climb_nowhere_are_legal(tmp_path: Path, name: str) -> None:
    with opened(archive(tmp_path / "a.zip", {name: b"here"})) as tree, tree.open(name) as file:
        assert file.read() == b"here"


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    path = renamed(archive(tmp_path / "a.zip", {"data.json": b"{}", "dat2.json": b"[]"}), b"dat2.json", b"data.json")
    assert refusal(path) == "data.json is in it twice"


def test_one_name_spelled_in_two_ways_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", {"Data/x": b"1", "./Data//x": b"2"})
    assert refusal(path) == "Data/x is in it twice"


@pytest.mark.parametrize("names", [("Data", "Data/x"), ("Data/x", "Data"), ("a/b/c", "a/b"), ("void/", "void")])
def test_a_file_that_is_a_folder_too_is_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    path = archive(tmp_path / "a.zip", dict.fromkeys(names, b""))
    clash = next(name for name in names if not name.endswith("/") and any(n.startswith(name + "/") for n in names))
    assert refusal(path) == f"{clash} is both a file and a folder"


def test_a_folder_may_be_named_before_and_after_its_files(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as target:
        for name in ("Data/", "Data/x", "Other/y", "Other/"):
            target.writestr(name, b"")
    with opened(path) as tree:
        assert tree.children("") == ["Data", "Other"]


def test_a_bomb_is_refused_and_what_merely_packs_well_is_not(tmp_path: Path) -> None:
    zeros = bytes(BOMB_BYTES + 1)
    bomb = archive(tmp_path / "bomb.zip", {"data.json": zeros})
    with zipfile.ZipFile(bomb) as plain:
        packed = plain.getinfo("data.json").compress_size
    assert refusal(bomb) == f"data.json would grow from {packed:,} to {len(zeros):,} bytes (a zip bomb)"
    with opened(archive(tmp_path / "small.zip", {"data.json": zeros[: 1 << 20]})) as tree:
        assert tree.size("data.json") == 1 << 20
    with opened(archive(tmp_path / "stored.zip", {"data.json": zeros}, zipfile.ZIP_STORED)) as tree:
        assert tree.crc32("data.json") == zlib.crc32(zeros)


def test_a_bomb_that_understates_its_size_gives_no_more_than_it_states(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", {"data.json": bytes(1 << 20)})
    raw = bytearray(path.read_bytes())
    struct.pack_into("<I", raw, raw.find(CENTRAL_HEADER) + 24, 100)
    path.write_bytes(raw)
    with opened(path) as tree, tree.open("data.json") as file, pytest.raises(SourceUnreadable, match="damaged"):
        assert len(file.read()) <= 100


def overlapping(path: Path, bystanders: int) -> Path:
    """Two members of which the first one's bytes hold the second whole, beside a number of empty ones."""
    inner = archive(path, {"inner": b"A" * 4000}, zipfile.ZIP_STORED).read_bytes()
    inner = inner[: inner.find(CENTRAL_HEADER)]
    members = {**{f"bystander {number}": b"" for number in range(bystanders)}, "outer": inner}
    raw = archive(path, members, zipfile.ZIP_STORED).read_bytes()
    directory = raw.find(CENTRAL_HEADER)
    offset = raw.find(inner)
    entry = archive(path, {"inner": b"A" * 4000}, zipfile.ZIP_STORED).read_bytes()
    entry = bytearray(entry[entry.find(CENTRAL_HEADER) : entry.find(b"PK\x05\x06")])
    struct.pack_into("<I", entry, 42, offset)
    end = raw.find(b"PK\x05\x06", directory)
    tail = bytearray(raw[end:])
    struct.pack_into("<HHI", tail, 8, bystanders + 2, bystanders + 2, end - directory + len(entry))
    path.write_bytes(raw[:end] + entry + tail)
    return path


@pytest.mark.parametrize("bystanders", [0, 100])
def test_overlapping_members_are_refused(tmp_path: Path, bystanders: int) -> None:
    assert refusal(overlapping(tmp_path / "a.zip", bystanders)) == "its members overlap"


def test_archives_with_a_password_are_refused_by_name(tmp_path: Path) -> None:
    path = set_headers(archive(tmp_path / "a.zip", {"data.json": b"{}"}), flags=1)
    with pytest.raises(ArchiveEncrypted) as caught:
        ZipTree(path)
    assert caught.value.exit_status == 2
    assert str(caught.value) == (f"{path}: the archive is encrypted; unpack it yourself and give the folder.")


# --- damaged archives ----------------------------------------------------------------------------------------------


def unreadable(path: Path) -> str:
    with pytest.raises(SourceUnreadable) as caught:
        ZipTree(path)
    assert caught.value.exit_status == 2
    message = str(caught.value)
    assert message.startswith(f"{path}: cannot be read (damaged or incomplete zip archive: ")
    assert message.endswith("); check that the file is complete and that you have permission to read it.")
    return message


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", b"PK\x05\x06", b"text", bytes(range(256)) * 8],
    ids=["empty", "start", "end", "text", "bytes"],
)
def test_what_is_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(content)
    unreadable(path)


@pytest.mark.parametrize("content", [b"", b"text", b"text" * 100, b"PK\x05\x06" + bytes(17)])
def test_what_has_no_end_of_an_archive_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(content)
    assert "archive: File is not a zip file)" in unreadable(path)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_archive(tmp_path: Path, part: float) -> None:
    path = archive(tmp_path / "a.zip", CONTENT)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * part)])
    unreadable(path)


def test_an_archive_without_members_is_an_empty_tree(tmp_path: Path) -> None:
    with opened(archive(tmp_path / "a.zip", {})) as tree:
        assert tree.children("") == []
        assert tree.kind("") == "folder"


def test_damage_inside_a_member_shows_when_it_is_read(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", {"data.json": b"0123456789" * 10, "other": b"fine"}, zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes().replace(b"0123456789", b"0123456X89", 1))
    with opened(path) as tree:
        with tree.open("data.json") as file, pytest.raises(SourceUnreadable) as caught:
            file.read()
        assert caught.value.exit_status == 2
        assert str(caught.value).startswith(f"{path}: cannot be read (data.json is damaged: Bad CRC-32")
        with pytest.raises(SourceUnreadable, match=r"data\.json is damaged"):
            tree.extract("data.json", tmp_path / "copy")
        with pytest.raises(SourceUnreadable, match=r"data\.json is damaged"), tree.local("data.json", None):
            pass
        with tree.open("other") as file:
            assert file.read() == b"fine"


def test_a_copy_says_why_the_source_could_not_be_read_and_leaves_nothing(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", {"data.json": b"0123456789" * 10}, zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes().replace(b"0123456789", b"0123456X89", 1))
    with opened(path) as tree, pytest.raises(SourceReadFailed, match=r"^data\.json is damaged: Bad CRC-32"):
        copy_from_tree(tree, "data.json", tmp_path / "folder" / "copy")
    assert [*(tmp_path / "folder").iterdir()] == []

    class Failing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(errno.EIO, "Input/output error", "secret")

    with pytest.raises(SourceReadFailed, match=r"^Input/output error$"):
        copy_stream(Failing(), tmp_path / "folder" / "copy")


def test_a_packing_that_nobody_reads(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", {"data.json": b"{}"}, zipfile.ZIP_STORED)
    raw = bytearray(path.read_bytes())
    struct.pack_into("<H", raw, raw.find(CENTRAL_HEADER) + 10, 97)
    path.write_bytes(raw)
    with opened(path) as tree, pytest.raises(SourceUnreadable, match=r"data\.json: .*compression"):
        tree.open("data.json")


def keeping(path: Path, size: int) -> Path:
    """Let every member packed by LZMA say that so many bytes are kept of it while it is unpacked."""
    with zipfile.ZipFile(path) as made:
        starts = [info.header_offset for info in made.infolist()]
    raw = bytearray(path.read_bytes())
    for start in starts:
        of_name, of_extra = struct.unpack_from("<2H", raw, start + 26)
        struct.pack_into("<L", raw, start + 30 + of_name + of_extra + 5, size)
    path.write_bytes(raw)
    return path


def test_unpacking_takes_no_more_memory_than_any_packer_makes_it_take(tmp_path: Path) -> None:
    text = b"the keeper comes on Monday " * 1000
    small = keeping(archive(tmp_path / "small.zip", {"a": text, "b": text}, zipfile.ZIP_LZMA), 1 << 27)
    with closing(open_tree(small)) as tree, tree.open("b") as file:
        assert file.read() == text
    for size in ((1 << 27) + 1, 0xFFFF_FFFF):
        with closing(open_tree(keeping(small, size))) as tree:
            with pytest.raises(SourceUnreadable) as error:
                tree.open("b")
            assert f"b: unpacking it would take {size:,} bytes of memory (its LZMA dictionary)" in str(error.value)
            assert error.value.exit_status == 2


def test_a_backup_that_would_take_too_much_memory_is_refused(tmp_path: Path) -> None:
    folder = REPO / "sample_v1" / "backup"
    members = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    backup = keeping(archive(tmp_path / "backup.zip", members, zipfile.ZIP_LZMA), 0xFFFF_FFFF)
    for command in (("inspect", backup), ("check", backup), ("migrate", backup, "--to", tmp_path / "out")):
        done = run(*command)
        assert (done.status, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert "4,294,967,295 bytes of memory (its LZMA dictionary)" in done.stderr
    assert list(tmp_path.iterdir()) == [backup]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=str
)
@pytest.mark.parametrize("values", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_no_single_damaged_byte_escapes_as_another_error(tmp_path: Path, packing: int, values: int) -> None:
    path = tmp_path / "a.zip"
    healthy = archive(path, {"Data/\u00e9": b"abc" * 30, "b": b"{}"}, packing).read_bytes()
    for place in range(len(healthy)):
        others = (healthy[place] ^ 0x01, 0xFF, 0x00, 0x0C, 0x0E, healthy[place] ^ 0x80)[:values]
        for value in {*others} - {healthy[place]}:
            path.write_bytes(healthy[:place] + bytes([value]) + healthy[place + 1 :])
            try:
                with opened(path) as tree:
                    read_everything(tree, "")
            except RegraftError as error:
                assert str(path) in str(error)


def read_everything(tree: ZipTree, folder: str) -> None:
    for name in (join_path(folder, child) for child in tree.children(folder)):
        if tree.kind(name) == "folder":
            read_everything(tree, name)
        else:
            with tree.open(name) as file:
                file.read()


# --- names in archives ---------------------------------------------------------------------------------------------


def test_utf8_names_are_read_with_and_without_their_flag(tmp_path: Path) -> None:
    name = "报告 é.txt"
    flagged = archive(tmp_path / "flagged.zip", {name: b"1"})
    placeholder = "x" * len(name.encode())
    bare = renamed(archive(tmp_path / "bare.zip", {placeholder: b"1"}), placeholder.encode(), name.encode())
    for path in (flagged, bare):
        with opened(path) as tree:
            assert tree.children("") == [name]
            with tree.open(name) as file:
                assert file.read() == b"1"


def test_names_in_the_old_code_page_are_read_as_such(tmp_path: Path) -> None:
    path = renamed(archive(tmp_path / "a.zip", {"caf#": b"1"}), b"caf#", "café".encode("cp437"))
    with opened(path) as tree:
        assert tree.children("") == ["café"]


def test_members_are_found_whatever_their_normalisation(tmp_path: Path) -> None:
    stored, asked = unicodedata.normalize("NFD", "Data/Prüfung.md"), unicodedata.normalize("NFC", "Data/Prüfung.md")
    with opened(archive(tmp_path / "a.zip", {stored: b"found", "Data/other": b""})) as tree:
        assert tree.kind(asked) == "file"
        assert tree.size(asked) == 5
        assert tree.crc32(asked) == zlib.crc32(b"found")
        with tree.open(asked) as file, tree.local(asked, None) as place:
            assert file.read() == place.read_bytes() == b"found"
        assert tree.kind("Data/Prufung.md") is None


def test_backslashes_separate_in_archives_made_on_windows_only(tmp_path: Path) -> None:
    name = "Data\\KnowledgeBase\\base"
    windows = set_headers(archive(tmp_path / "windows.zip", {name: b"1"}), system=0)
    elsewhere = set_headers(archive(tmp_path / "unix.zip", {name: b"1"}), system=3)
    with opened(windows) as tree:
        assert tree.kind("Data/KnowledgeBase/base") == "file"
        assert tree.children("Data") == ["KnowledgeBase"]
    with opened(elsewhere) as tree:
        assert tree.children("") == [name]


def test_empty_and_dot_components_are_passed_over(tmp_path: Path) -> None:
    with opened(archive(tmp_path / "a.zip", {"./Data//KnowledgeBase/./base": b"1", "./": b""})) as tree:
        assert tree.kind("Data/KnowledgeBase/base") == "file"
        assert tree.children("") == ["Data"]


# --- large archives ------------------------------------------------------------------------------------------------


def test_zip64_members_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as target, target.open("Data/big", "w", force_zip64=True) as member:
        member.write(b"x" * 1000)
    with opened(path) as tree:
        assert tree.size("Data/big") == 1000
        with tree.open("Data/big") as file:
            assert file.read() == b"x" * 1000


@pytest.mark.thorough
def test_more_members_than_the_old_format_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as target:
        for number in range(0x10001):
            target.writestr(zipfile.ZipInfo(f"f/{number}"), b"")
    with opened(path) as tree:
        assert len(tree.children("f")) == 0x10001
        assert tree.kind("f/65536") == "file"


# --- directories by hand ---------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Entry:
    """A stored member, and what the directory says of it."""

    name: bytes
    content: bytes = b"content"
    system: int = 3
    flags: int = 0
    mode: int = 0
    packed: int | None = None
    size: int | None = None
    start: int | None = None
    extra: bytes = b""
    comment: bytes = b""
    of_comment: int | None = None


def directory(*entries: Entry, leading: bytes = b"", behind: bytes = b"") -> bytes:
    """Return an archive; ``behind`` counts as part of its directory."""
    members, found = leading, b""
    for one in entries:
        start, crc, size = len(members) - len(leading), zlib.crc32(one.content), len(one.content)
        members += struct.pack("<4s5H3L2H", LOCAL_HEADER, 20, one.flags, 0, 0, 33, crc, size, size, len(one.name), 0)
        members += one.name + one.content
        sizes = (size if stated is None else stated for stated in (one.packed, one.size))
        lengths = len(one.name), len(one.extra), len(one.comment) if one.of_comment is None else one.of_comment
        found += struct.pack("<4sBB5H3L", CENTRAL_HEADER, 20, one.system, 20, one.flags, 0, 0, 33, crc, *sizes)
        found += struct.pack("<5H2L", *lengths, 0, 0, one.mode, start if one.start is None else one.start)
        found += one.name + one.extra + one.comment
    found += behind
    end = len(members) - len(leading)
    return members + found + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, len(entries), len(entries), len(found), end, 0)


def by_hand(folder: Path, *entries: Entry, leading: bytes = b"", behind: bytes = b"") -> Path:
    path = folder / "a.zip"
    path.write_bytes(directory(*entries, leading=leading, behind=behind))
    return path


def content_of(path: Path) -> dict[str, bytes]:
    found = {}
    with opened(path) as tree:
        for name in tree.files(""):
            with tree.open(name) as file:
                found[name] = file.read()
    return found


ONE, TWO = Entry(name=b"one", content=b"first"), Entry(name=b"two", content=b"second")
ELSEWHERE = 0xFFFFFFFF


@pytest.mark.parametrize(
    "changed",
    [
        {"comment": b"a note"},
        {"extra": struct.pack("<2H5x", 0x5455, 5)},
        {"extra": struct.pack("<2H", 0x9999, 0), "comment": b"a note"},
        # What looks like one half of the end of a large archive.
        {"comment": b"PK\6\6" + bytes(72)},
        {"comment": bytes(56) + b"PK\6\7" + bytes(16)},
    ],
)
@pytest.mark.parametrize("leading", [b"", b"#!/bin/sh\n"])
def test_fields_and_notes_beside_a_name_are_passed_over(
    tmp_path: Path, changed: dict[str, bytes], leading: bytes
) -> None:
    entries = [replace(ONE, **changed), replace(TWO, **changed)]
    assert content_of(by_hand(tmp_path, *entries, leading=leading)) == {"one": b"first", "two": b"second"}


@pytest.mark.parametrize(
    "changed",
    [
        {"size": ELSEWHERE, "extra": struct.pack("<2HQ", 1, 8, 6)},
        {"packed": ELSEWHERE, "extra": struct.pack("<2HQ", 1, 8, 6)},
        {"start": ELSEWHERE, "extra": struct.pack("<2HQ", 1, 8, 38)},
        {"size": ELSEWHERE, "packed": ELSEWHERE, "start": ELSEWHERE, "extra": struct.pack("<2H3Q", 1, 24, 6, 6, 38)},
        {"start": ELSEWHERE, "extra": struct.pack("<2H5x2HQ", 0x5455, 5, 1, 8, 38)},
    ],
)
def test_large_numbers_are_read_from_the_field_for_them(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = by_hand(tmp_path, ONE, replace(TWO, **changed))
    assert content_of(path) == {"one": b"first", "two": b"second"}
    with opened(path) as tree:
        assert tree.size("two") == 6


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"extra": struct.pack("<2H5x", 0x5455, 6)}, "its directory is damaged"),
        ({"size": ELSEWHERE}, "a size is missing in its directory"),
        ({"size": ELSEWHERE, "extra": struct.pack("<2H7x", 1, 7)}, "a size is missing in its directory"),
        (
            {"size": ELSEWHERE, "start": ELSEWHERE, "extra": struct.pack("<2HQ", 1, 8, 6)},
            "a size is missing in its directory",
        ),
        ({"start": ELSEWHERE, "extra": struct.pack("<2HQ", 1, 8, 1 << 62)}, "a size in its directory is not valid"),
        ({"of_comment": 1}, "its table of contents is truncated"),
    ],
)
def test_a_directory_that_says_too_little_is_damaged(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    assert reason in unreadable(by_hand(tmp_path, ONE, replace(TWO, **changed)))


@pytest.mark.parametrize("behind", [b"PK\1\2", CENTRAL_HEADER + bytes(41), b"PK\1\3" + bytes(42)])
def test_a_directory_whose_last_entry_is_none_is_damaged(tmp_path: Path, behind: bytes) -> None:
    assert "its directory is damaged" in unreadable(by_hand(tmp_path, ONE, behind=behind))


def test_a_member_that_is_larger_than_the_archive_is_refused(tmp_path: Path) -> None:
    assert refusal(by_hand(tmp_path, ONE, replace(TWO, packed=10_000, size=10_000))) == "its members overlap"


def test_the_bounds_of_a_bomb_are_a_size_and_a_factor(tmp_path: Path) -> None:
    """What unpacks to this much and no more is none, however small it is packed."""
    for content, size in ((b"x", BOMB_BYTES), (b"", BOMB_BYTES), (b"x" * 40_000, BOMB_RATIO * 40_000)):
        with opened(by_hand(tmp_path, replace(ONE, content=content, size=size))) as tree:
            assert tree.size("one") == size
        grown = f"one would grow from {len(content):,} to {size + 1:,} bytes (a zip bomb)"
        assert refusal(by_hand(tmp_path, replace(ONE, content=content, size=size + 1))) == grown


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (b"x" * 4096, None),
        (b"x" * 4097, "a name in it has 4,097 bytes"),
        # Two bytes for each of one in the old code page.
        (b"\x82" * 2048, None),
        (b"\x82" * 2048 + b"x", "a name in it has 4,097 bytes"),
        (b"a/" * 254 + b"x", None),
        (b"a/" * 255 + b"x", "a name in it has 256 parts"),
        (b"a\0b", r"'a\x00b' holds a NUL"),
        (b"1:/x", None),
        (b"x", None),
    ],
)
def test_the_bounds_of_a_name(tmp_path: Path, name: bytes, reason: str | None) -> None:
    path = by_hand(tmp_path, ONE, replace(TWO, name=name))
    if reason is None:
        assert content_of(path) == {"one": b"first", name.decode("cp437"): b"second"}
    else:
        assert refusal(path) == reason


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        (b"\1" + struct.pack("<L", zlib.crc32(b"caf\x82")) + "咖啡".encode(), "咖啡"),
        # Of another version, and of another name.
        (b"\2" + struct.pack("<L", zlib.crc32(b"caf\x82")) + "咖啡".encode(), "café"),
        (b"\1" + struct.pack("<L", zlib.crc32(b"caf")) + "咖啡".encode(), "café"),
    ],
)
def test_a_name_in_unicode_beside_one_in_the_old_code_page(tmp_path: Path, extra: bytes, name: str) -> None:
    fields = struct.pack("<2H5x", 0x5455, 5) + struct.pack("<2H", 0x7075, len(extra)) + extra
    assert content_of(by_hand(tmp_path, Entry(name=b"caf\x82", extra=fields))) == {name: b"content"}
    other = struct.pack("<2H", 0x7076, len(extra)) + extra
    assert content_of(by_hand(tmp_path, Entry(name=b"caf\x82", extra=other))) == {"café": b"content"}


def test_a_name_that_is_not_in_the_code_it_claims_is_damage(tmp_path: Path) -> None:
    assert "codec can't decode" in unreadable(by_hand(tmp_path, Entry(name=b"caf\x82", flags=UTF8_FLAG)))


def test_a_backslash_beside_a_slash_is_part_of_a_name_on_windows_too(tmp_path: Path) -> None:
    assert content_of(by_hand(tmp_path, Entry(name=b"a\\b/c", system=0))) == {"a\\b/c": b"content"}


@pytest.mark.parametrize(
    ("system", "mode", "is_link"),
    [(3, 0xA1FF, True), (3, 0x81FF, False), (3, 0, False), (0, 0xA1FF, False), (1, 0xA000, True), (3, 0xE1FF, False)],
)
def test_links_in_archives_are_those_that_systems_with_links_made(
    tmp_path: Path, system: int, mode: int, is_link: bool
) -> None:
    with opened(by_hand(tmp_path, Entry(name=b"a", system=system, mode=mode << 16))) as tree:
        assert tree.is_link("a") == is_link


def test_two_forms_of_one_name_are_two_members(tmp_path: Path) -> None:
    exact, other = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    path = by_hand(tmp_path, Entry(name=exact.encode(), content=b"NFC"), Entry(name=other.encode(), content=b"NFD"))
    assert content_of(path) == {exact: b"NFC", other: b"NFD"}
    for stored, asked in ((exact, other), (other, exact)):
        with opened(by_hand(tmp_path, Entry(name=stored.encode()))) as tree, tree.open(asked) as file:
            assert file.read() == b"content"
            assert (tree.kind("ü"), tree.kind("é\0"), tree.kind("a\0")) == (None, None, None)


@pytest.mark.parametrize("remembered", [1, 2, 10_000])
def test_files_and_folders_are_counted_and_each_is_found(
    tmp_path: Path, remembered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few folders are remembered while the directory is read."""
    monkeypatch.setattr(zip_directory, "_KNOWN_FOLDERS", remembered)
    names = ["a/b/one", "c/two", "a/b/three", "c/d/four", "a/five", "c/six"]
    path = by_hand(tmp_path, *(Entry(name=name.encode(), content=name.encode()) for name in names))
    monkeypatch.setattr(zip_directory, "MOST_ENTRIES", 10)
    assert content_of(path) == {name: name.encode() for name in sorted(names)}
    with opened(path) as tree:
        assert list(tree.files("a")) == ["a/b/one", "a/b/three", "a/five"]
        assert [*tree.files("a/five"), *tree.files("missing")] == []
    monkeypatch.setattr(zip_directory, "MOST_ENTRIES", 9)
    assert refusal(path) == "it has more than 9 files and folders"


def test_files_come_in_the_order_of_their_paths(tmp_path: Path) -> None:
    names = ["b", "a0", "a/x", "a.b", "a/b/c", "a/b.c"]
    path = by_hand(tmp_path, *(Entry(name=name.encode()) for name in names))
    with opened(path) as tree:
        assert list(tree.files("")) == sorted(names)


def test_an_archive_that_was_closed_is_not_read(tmp_path: Path) -> None:
    tree = ZipTree(by_hand(tmp_path, ONE))
    tree.close()
    with pytest.raises(ValueError, match="the archive was closed already"):
        tree.kind("one")


def test_the_longest_note_behind_an_archive_is_passed_over(tmp_path: Path) -> None:
    path = by_hand(tmp_path, ONE)
    raw = path.read_bytes()
    path.write_bytes(raw[:-2] + struct.pack("<H", 0xFFFF) + b"x" * 0xFFFF)
    assert content_of(path) == {"one": b"first"}


@pytest.mark.parametrize("entries", [(), (ONE,), (ONE, TWO)])
def test_the_end_of_a_large_archive_says_where_its_directory_is(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    """Also where nothing precedes it, because it has no members."""
    raw = directory(*entries)
    size, start = struct.unpack_from("<2L", raw, len(raw) - 10)
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, len(entries), len(entries), size, start)
    end += struct.pack("<4sLQL", b"PK\6\7", 0, start + size, 1)
    end += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, ELSEWHERE, ELSEWHERE, 0)
    for leading in (b"", b"leading"):
        path = tmp_path / "a.zip"
        path.write_bytes(leading + raw[:-22] + end)
        assert content_of(path) == {one.name.decode(): one.content for one in entries}


def test_python_is_given_one_member_in_an_archive_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive as the format says, whose sizes are all of 64 bits."""
    given: list[bytes] = []

    def read(file: BinaryIO) -> zipfile.ZipFile:
        given.append(file.read())
        return made(file)

    made = zipfile.ZipFile
    path = by_hand(tmp_path, ONE, replace(TWO, extra=struct.pack("<2H5x", 0x5455, 5), comment=b"a note"))
    raw = path.read_bytes()
    with opened(path) as tree:
        monkeypatch.setattr(zipfile, "ZipFile", read)
        with tree.open("two") as file:
            assert file.read() == b"second"
    start = raw.find(CENTRAL_HEADER)
    record = struct.pack("<4sBB5H3L", CENTRAL_HEADER, 20, 3, 20, 0, 0, 0, 33, zlib.crc32(b"second"), *[ELSEWHERE] * 2)
    record += struct.pack("<5H2L", 3, 28, 0, 0, 0, 0, ELSEWHERE) + b"two" + struct.pack("<2H3Q", 1, 24, 6, 6, 38)
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(record), start)
    end += struct.pack("<4sLQL", b"PK\6\7", 0, start + len(record), 1)
    end += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, ELSEWHERE, ELSEWHERE, 0)
    assert given == [raw[:start] + record + end]


def test_a_member_and_the_end_behind_it_are_read_like_one_file(tmp_path: Path) -> None:
    head, tail = random.Random(1).randbytes(50), random.Random(2).randbytes(30)
    (tmp_path / "file").write_bytes(head + b"what follows in the file")
    with (tmp_path / "file").open("rb") as file:
        spliced = zip_directory._Spliced(file, threading.Lock(), 50, tail)
        plain = io.BytesIO(head + tail)
        assert (spliced.readable(), spliced.seekable()) == (True, True)
        for place in (0, 1, 49, 50, 51, 79, 80, 81):
            for count in (-1, 0, 1, 2, 30, 31, 50, 200):
                assert (spliced.seek(place), spliced.tell()) == (place, place)
                assert spliced.read(count) == plain.getvalue()[place:][: count if count >= 0 else None]
                assert spliced.tell() == max(place, min(80, place + count if count >= 0 else 80))
        for offset, whence in ((-80, io.SEEK_END), (0, io.SEEK_END), (-22, io.SEEK_END), (3, io.SEEK_CUR)):
            assert spliced.seek(offset, whence) == plain.seek(offset, whence)
            assert spliced.read(7) == plain.read(7)
        with pytest.raises(ValueError, match="a place before the beginning"):
            spliced.seek(-81, io.SEEK_END)


# --- members on disk -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 5, 1 << 20, (1 << 20) + 1, (2 << 20) + 5])
def test_a_member_is_written_and_hashed_at_once(tmp_path: Path, size: int) -> None:
    content = random.Random(size).randbytes(size)
    with opened(archive(tmp_path / "a.zip", {"a/b": content}, zipfile.ZIP_STORED)) as tree:
        assert tree.extract_hashed("a/b", tmp_path / "b") == hashlib.sha256(content).hexdigest()
        with tree.open("a/b") as file:
            assert file.read(3) == content[:3]
            assert stream_crc32(file) == zlib.crc32(content[3:])
    assert (tmp_path / "b").read_bytes() == content


def test_a_member_that_has_no_room_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    usage = shutil.disk_usage(tmp_path)
    with opened(archive(tmp_path / "a.zip", {"a": b"content"})) as tree:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=7))
        with tree.local("a", work) as place:
            assert place.read_bytes() == b"content"
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=6))
        with pytest.raises(WorkFolderTooSmall) as caught, tree.local("a", work):
            pass
        assert (caught.value.facts["needed"], caught.value.facts["free"]) == ("7 bytes", "6 bytes")
    assert list(work.iterdir()) == []


# --- logs and journals beside a member -----------------------------------------------------------------------------


def test_a_log_beside_a_member_comes_with_it(tmp_path: Path) -> None:
    database = tmp_path / "base"
    db = sqlite3.connect(database, isolation_level=None)
    db.execute("PRAGMA journal_mode = wal")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute("CREATE TABLE t (x)")
    db.execute("INSERT INTO t VALUES ('only in the log')")
    members = {f"KB/{p.name}": p.read_bytes() for p in (database, tmp_path / "base-wal")}
    db.close()
    path = archive(tmp_path / "a.zip", members)
    with opened(path) as tree, tree.local("KB/base", None) as place:
        assert place.with_name(place.name + "-wal").exists()
        with closing(sqlite3.connect(place)) as copy:
            assert copy.execute("SELECT x FROM t").fetchall() == [("only in the log",)]


@pytest.mark.parametrize(
    ("suffix", "content", "comes"),
    [
        ("-wal", WAL_START + bytes(28), True),
        ("-wal", b"\x37\x7f\x06\x83" + bytes(28), True),
        ("-wal", b"", False),
        ("-wal", b"SQLite format 3\0", False),
        ("-journal", JOURNAL_START, True),
        ("-journal", bytes(512), False),
        ("-journal", b"a base called so", False),
        ("-shm", WAL_START, False),
    ],
)
def test_only_real_logs_and_journals_come_along(tmp_path: Path, suffix: str, content: bytes, comes: bool) -> None:
    path = archive(tmp_path / "a.zip", {"KB/base": b"database", f"KB/base{suffix}": content})
    with opened(path) as tree, tree.local("KB/base", None) as place:
        beside = place.with_name(place.name + suffix)
        assert beside.exists() is comes
        if comes:
            assert beside.read_bytes() == content


# --- names in the directory and in the headers of members ------------------------------------------------------------


def two_names(folder: Path, listed: bytes, local: bytes, *, listed_flags: int = 0, local_flags: int = 0) -> Path:
    """Write an archive of one member with these names in the directory and in its header, and of another member."""
    path = archive(folder / "two.zip", {"N" * len(local): b"content" * 9, "beside": b"beside"}, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    data[6:8] = struct.pack("<H", local_flags)
    data[30 : 30 + len(local)] = local
    at = data.index(CENTRAL_HEADER)
    data[at + 8 : at + 10] = struct.pack("<H", listed_flags)
    data[at + 28 : at + 30] = struct.pack("<H", len(listed))
    data[at + 46 : at + 46 + len(local)] = listed
    end = data.rindex(b"PK\x05\x06")
    (length,) = struct.unpack_from("<L", data, end + 12)
    struct.pack_into("<L", data, end + 12, length + len(listed) - len(local))
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("listed", "local", "flags"),
    [
        ("报告.db".encode(), "报告.db".encode("gbk"), (UTF8_FLAG, 0)),
        ("报告.db".encode("gbk"), "报告.db".encode(), (0, UTF8_FLAG)),
        ("é.db".encode(), "é.db".encode("cp437"), (UTF8_FLAG, 0)),
        ("é.db".encode(), unicodedata.normalize("NFD", "é.db").encode(), (UTF8_FLAG, UTF8_FLAG)),
        (b"folder/file.db", b"folder\\file.db", (0, 0)),
        (b"folder/file.db", b"./folder/file.db", (0, 0)),
        ("é.db".encode(), "é.db".encode(), (0, UTF8_FLAG)),
    ],
    ids=["gbk header", "gbk directory", "cp437 header", "normalised", "backslash", "dot", "no flag"],
)
def test_two_encodings_of_one_name_are_one_name(
    tmp_path: Path, listed: bytes, local: bytes, flags: tuple[int, int]
) -> None:
    with opened(two_names(tmp_path, listed, local, listed_flags=flags[0], local_flags=flags[1])) as tree:
        assert tree.renamed_members(9) == (0, [])
        first, second = sorted(tree.files(""), key=lambda name: name == "beside")
        for name, content in ((first, b"content" * 9), (second, b"beside")):
            with tree.open(name) as file:
                assert file.read() == content


def test_a_name_in_an_extra_field_is_a_name_of_the_member(tmp_path: Path) -> None:
    raw, name = "报告".encode("gbk"), "报告".encode()
    extra = struct.pack("<2HBL", 0x7075, 5 + len(name), 1, zlib.crc32(raw)) + name
    path = tmp_path / "extra.zip"
    with zipfile.ZipFile(path, "w") as made:
        info = zipfile.ZipInfo("N" * len(raw))
        info.extra = extra
        made.writestr(info, b"content")
    data = path.read_bytes()
    at = data.index(CENTRAL_HEADER)
    path.write_bytes(data[:at].replace(b"N" * len(raw), raw) + data[at:].replace(b"N" * len(raw), raw))
    with opened(path) as tree:
        assert (tree.renamed_members(9), list(tree.files(""))) == ((0, []), ["报告"])
        with tree.open("报告") as file:
            assert file.read() == b"content"


@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize("names", [(b"kb-7al", b"kb-wal"), (b"kb-wal", b"kb-7al"), (b"kb-wa/", b"kb-wao")])
def test_a_member_with_two_names_is_found_by_both(tmp_path: Path, names: tuple[bytes, bytes], salvage: bool) -> None:
    path = two_names(tmp_path, *names)
    files = [name.decode() for name in names if not name.endswith(b"/")]
    with closing(ZipTree(path, salvage=salvage)) as tree:
        assert tree.renamed_members(9) == (1, [(names[0].decode(), names[1].decode())])
        assert tree.renamed_members(0) == (1, [])
        assert list(tree.files("")) == sorted(["beside", *files])
        for name in files:
            assert (tree.size(name), tree.is_intact(name)) == (63, salvage)
            with tree.local_damaged(name, None) as local:
                assert local.read_bytes() == b"content" * 9
        assert tree.is_intact("beside")


@pytest.mark.parametrize("local", [b"../up", b"/root", b"a\0b", b"\xff\xff\xff", b"fold/", b"beside/x", b"."])
def test_a_name_in_a_header_that_no_file_can_have_is_no_name(tmp_path: Path, local: bytes) -> None:
    flags = UTF8_FLAG if local.startswith(b"\xff") else 0
    with closing(ZipTree(two_names(tmp_path, b"kb", local, local_flags=flags), salvage=True)) as tree:
        assert list(tree.files("")) == ["beside", "kb"]
        assert tree.is_intact("kb") is (flags == 0)


def test_members_that_have_each_others_names_are_not_read(tmp_path: Path) -> None:
    path = archive(tmp_path / "swapped.zip", {"one": b"1" * 9, "two": b"2" * 9, "far": b"3"}, zipfile.ZIP_STORED)
    data = path.read_bytes()
    at = data.index(CENTRAL_HEADER)
    listed = data[at:].replace(b"one", b"???").replace(b"two", b"one").replace(b"???", b"two")
    path.write_bytes(data[:at] + listed)
    with closing(ZipTree(path, salvage=True)) as tree:
        assert {name: tree.is_intact(name) for name in tree.files("")} == {"far": True, "one": False, "two": False}
        for name in ("one", "two"):
            with pytest.raises(SourceUnreadable, match="its names in the archive's directory"):
                tree.open(name)
            with pytest.raises(SourceUnreadable), tree.local_damaged(name, None):
                pass


def test_names_of_uploads_are_not_compared(tmp_path: Path) -> None:
    with opened(two_names(tmp_path, b"Data/Files/a.png", b"Data/Files/b.png")) as tree:
        assert (tree.renamed_members(9), tree.kind("Data/Files/b.png")) == ((0, []), None)
        assert not tree.is_intact("Data/Files/a.png")


@pytest.mark.parametrize("field", [30, 32], ids=["extra field", "comment"])
def test_a_damaged_length_in_the_directory_hides_no_entry(tmp_path: Path, field: int) -> None:
    """The second entry has 64 bytes: one bit more in the length of the first one skips it."""
    names = {"Data/KnowledgeBase/kb": b"1", "kb-wal".ljust(18, "_"): b"2", "last": b"3"}
    path = archive(tmp_path / "damaged.zip", names, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    at = data.index(CENTRAL_HEADER)
    data[at + field] ^= 64
    assert data[at + 46 + 21 + 64 :].startswith(CENTRAL_HEADER)
    path.write_bytes(data)
    with pytest.raises(SourceUnreadable, match="its directory is damaged"):
        ZipTree(path)
