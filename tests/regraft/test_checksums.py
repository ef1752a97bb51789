"""What is computed of files: checksums that pass over holes, hashes and marks that tell changes, and sizes."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import zlib
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import posix

from regraft.disk import checksums, links, trees, writable
from regraft.disk.trees import FolderTree, SourceFolder
from regraft.errors import SourceUnreadable, WorkFolderTooSmall

BLOCK = 4096


def sparse(path: Path, parts: dict[int, bytes], size: int) -> Path:
    """Write parts of a file and leave holes between them."""
    with path.open("wb") as file:
        for place, content in parts.items():
            file.seek(place)
            file.write(content)
        file.truncate(size)
    with path.open("rb") as file:
        found = list(checksums.data_ranges(file.fileno(), size))
    if found != [(place, place + len(content)) for place, content in parts.items()]:
        pytest.skip("this file system makes no such holes")
    return path


# --- in the background -----------------------------------------------------------------------------------------------


def test_chunks_are_passed_on_in_order_and_all_of_them() -> None:
    seen: list[bytes] = []
    with checksums.update_in_background(seen.append) as update:
        for number in range(10):
            update(b"%d" % number)
    assert seen == [b"%d" % number for number in range(10)]


def test_no_more_than_two_chunks_wait_and_an_error_is_raised_then_or_at_the_end() -> None:
    def fail(chunk: bytes) -> None:
        raise ValueError(chunk.decode())

    with pytest.raises(ValueError, match="first"), checksums.update_in_background(fail) as update:
        update(b"first")
        update(b"second")
        with pytest.raises(ValueError, match="first"):
            update(b"third")
        update(b"fourth")
        raise ValueError("first")
    with pytest.raises(ValueError, match="only"), checksums.update_in_background(fail) as update:
        update(b"only")


# --- holes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "size", "refused"),
    [
        ({0: bytes([1]) * BLOCK}, (64 << 20) + 4 * BLOCK, ""),
        ({0: bytes([1]) * BLOCK}, (64 << 20) + 4 * BLOCK + 1, "only 4.1 kB of its 67.1 MB are data"),
        ({BLOCK: bytes([1]) * BLOCK, 1 << 40: bytes([1]) * BLOCK}, 1 << 41, "only 8.2 kB of its 2.2 TB are data"),
        ({}, 1 << 41, "only 0 bytes of its 2.2 TB are data"),
        ({}, 64 << 20, ""),
        ({}, 0, ""),
    ],
)
def test_a_file_that_is_mostly_holes_is_refused(
    tmp_path: Path, parts: dict[int, bytes], size: int, refused: str
) -> None:
    with sparse(tmp_path / "file", parts, size).open("rb") as file:
        if not refused:
            checksums.refuse_sparse_file(file.fileno())
            return
        with pytest.raises(OSError) as caught:
            checksums.refuse_sparse_file(file.fileno())
        assert caught.value.errno == errno.EINVAL
        assert caught.value.strerror == f"{refused}, the rest are holes"


def test_a_file_that_is_refused_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse(tmp_path / "file", {}, 1 << 40)
    opened: list[int] = []
    real = links.open_descriptor
    monkeypatch.setattr(links, "open_descriptor", lambda path: (opened.append(real(path)), opened[-1])[1])
    with pytest.raises(SourceUnreadable, match="the rest are holes"):
        FolderTree(tmp_path).open("file")
    with pytest.raises(OSError) as caught:
        os.fstat(opened.pop())
    assert caught.value.errno == errno.EBADF


@posix
def test_a_file_that_is_compressed_has_no_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes few blocks, and all of it is data."""
    path = sparse(tmp_path / "file", {0: bytes([1]) * BLOCK}, 1 << 40)
    asked: list[int] = []

    def ranges(_: int, size: int) -> list[tuple[int, int]]:
        asked.append(size)
        return [(0, size // 8), (size // 2, size // 2 + size // 8)]

    monkeypatch.setattr(checksums, "data_ranges", ranges)
    with path.open("rb") as file:
        checksums.refuse_sparse_file(file.fileno())
    assert asked == [1 << 40]


def test_a_system_that_tells_no_holes_has_one_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    monkeypatch.delattr(os, "SEEK_DATA", raising=False)
    with path.open("rb") as file:
        assert list(checksums.data_ranges(file.fileno(), 7)) == [(0, 7)]


@posix
@pytest.mark.parametrize(
    ("number", "ranges"), [(errno.ENXIO, [(0, BLOCK)]), (errno.EINVAL, [(0, BLOCK), (BLOCK, 3 * BLOCK)])]
)
def test_an_error_after_a_range_is_a_hole_or_the_rest(
    tmp_path: Path, number: int, ranges: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * BLOCK))

    def seek(_: int, place: int, how: int) -> int:
        if place:
            raise OSError(number, os.strerror(number))
        return 0 if how == os.SEEK_DATA else BLOCK

    def hole(descriptor: int, place: int, how: int) -> int:
        return BLOCK if how == os.SEEK_HOLE else seek(descriptor, place, how)

    monkeypatch.setattr(os, "lseek", hole)
    with path.open("rb") as file:
        assert list(checksums.data_ranges(file.fileno(), 3 * BLOCK)) == ranges


@pytest.mark.parametrize(
    ("parts", "size"),
    [
        ({}, 100_000),
        ({0: b"x" * BLOCK}, 100_000),
        ({BLOCK: random.Random(1).randbytes(BLOCK)}, 2 * BLOCK),
        ({BLOCK: random.Random(1).randbytes(2 * BLOCK), 5 * BLOCK: b"y" * BLOCK}, 50 * BLOCK + 1),
        ({0: random.Random(2).randbytes((1 << 20) + BLOCK)}, 3 << 20),
    ],
)
def test_a_checksum_of_parts_and_holes_is_that_of_all_bytes(tmp_path: Path, parts: dict[int, bytes], size: int) -> None:
    path = sparse(tmp_path / "file", parts, size)
    with path.open("rb") as file:
        assert checksums.file_crc32(file) == zlib.crc32(path.read_bytes())


def test_a_checksum_reads_from_the_beginning_and_large_files_in_pieces(tmp_path: Path) -> None:
    content = random.Random(3).randbytes((2 << 20) + 5)
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file:
        file.seek(100)
        assert checksums.file_crc32(file) == zlib.crc32(content)


@posix
def test_the_checksum_of_a_file_that_gets_shorter_is_that_of_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(random.Random(3).randbytes(2 << 20))
    with path.open("rb") as file:

        class Shrinking:
            fileno, seek = file.fileno, file.seek

            def read(self, size: int) -> bytes:
                found = file.read(size)
                os.truncate(path, 1 << 20)
                return found

        assert checksums.file_crc32(Shrinking()) == zlib.crc32(path.read_bytes())  # type: ignore[arg-type]
        assert path.stat().st_size == 1 << 20


# --- hashes, marks and sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 300_000])
def test_the_hash_of_a_file_is_that_of_all_its_bytes(tmp_path: Path, size: int) -> None:
    content = random.Random(size).randbytes(size)
    (tmp_path / "file").write_bytes(content)
    assert trees.file_hash(tmp_path / "file") == hashlib.sha256(content).hexdigest()


@posix
def test_the_hash_of_a_folder_is_that_of_its_paths_and_files(tmp_path: Path) -> None:
    """Links are not followed, and a folder that is not there has none."""
    folder = tmp_path / "folder"
    (folder / "a" / "b").mkdir(parents=True)
    for name in ("z", "a/one", "a/b/two"):
        (folder / name).write_text(name, "utf-8")
    (folder / "link").symlink_to(folder / "z")
    contents = {"a": None, "a/b": None, "a/b/two": "a/b/two", "a/one": "a/one", "link": None, "z": "z"}
    lines = [
        f"folder/{name} {hashlib.sha256(text.encode()).hexdigest() if text else 'no file'}\n"
        for name, text in contents.items()
    ]
    assert trees.folder_hash(tmp_path, "folder") == hashlib.sha256("".join(lines).encode()).hexdigest()
    (tmp_path / "empty").mkdir()
    assert trees.folder_hash(tmp_path, "empty") == hashlib.sha256(b"").hexdigest()
    assert trees.folder_hash(tmp_path, "missing") == ""
    assert trees.folder_hash(tmp_path, "folder/z") == ""


@posix
def test_the_size_of_a_folder_is_that_of_its_files_without_links(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(1000))
    folder = tmp_path / "folder"
    (folder / "a").mkdir(parents=True)
    (folder / "one").write_bytes(bytes(10))
    (folder / "a" / "two").write_bytes(bytes(20))
    (folder / "a" / "link").symlink_to(tmp_path / "large")
    length = len(str(tmp_path / "large"))
    assert trees.total_size(folder) == 30 + length
    assert trees.total_size(folder / "one") == 10
    assert trees.total_size(folder / "a" / "link") == length
    assert trees.total_size(folder / "missing") == 0


def test_room_for_what_is_needed_and_no_more_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(9000, 4000, 5000))
    trees.require_free_space(tmp_path, 5000)
    with pytest.raises(WorkFolderTooSmall) as caught:
        trees.require_free_space(tmp_path, 5001)
    assert caught.value.facts == {"path": tmp_path, "needed": "5.0 kB", "free": "5.0 kB"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "folder").mkdir(parents=True)
    (folder / "one").write_bytes(b"first")
    (folder / "folder" / "two").write_bytes(b"second")
    return folder


def test_the_mark_of_a_file_is_its_size_and_checksum(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = FolderTree(source)
    marks = [trees.content_mark(tree, name) for name in ("one", "folder/two", "folder", "missing", "", None)]
    assert marks == [[5, zlib.crc32(b"first")], [6, zlib.crc32(b"second")], "folder", None, None, None]
    place = SourceFolder(tree, False)
    assert trees.content_marks(place, [("missing", "one"), ("folder", "folder/two"), ("missing",), ()]) == [
        *([5, zlib.crc32(b"first")], [6, zlib.crc32(b"second")]),
        *(None, None),
    ]

    def fail(_: str) -> int:
        raise SourceUnreadable(path="one", reason="disk I/O error")

    monkeypatch.setattr(tree, "crc32", fail)
    assert trees.content_mark(tree, "one") == "unreadable"


def test_files_are_copied_as_far_as_they_can_be_read(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, target = FolderTree(source), tmp_path / "target"
    opened: Callable[[str], object] = tree.open

    def fail(name: str) -> object:
        if name == "folder/two":
            raise SourceUnreadable(path=name, reason="disk I/O error")
        return opened(name)

    files = [
        (("missing", "one"), "a/b/one"),
        (("folder/two", "one"), "two"),
        (("missing",), "three"),
        (("one",), "four"),
    ]
    with writable.allow_writes(tmp_path):
        assert trees.copy_files(SourceFolder(tree, False), files[:2], target) == [True, True]
        assert (target / "two").read_bytes() == b"second"
        shutil.rmtree(target)
        monkeypatch.setattr(tree, "open", fail)
        assert trees.copy_files(SourceFolder(tree, False), files, target) == [True, False, False, True]
    found = {path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    assert found == {"a/b/one": b"first", "four": b"first"}


@posix
def test_background_processes_follow_links_where_the_user_allowed_it(source: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"outside")
    (source / "link").symlink_to(tmp_path / "outside")
    for allowed, mark in ((True, [7, zlib.crc32(b"outside")]), (False, None)):
        place = SourceFolder(FolderTree(source), allowed)
        assert trees.content_marks(place, [("link",)]) == [mark]
        with writable.allow_writes(tmp_path):
            copied = trees.copy_files(place, [(("link",), "link")], tmp_path / str(allowed))
        assert copied == [allowed]
    assert (tmp_path / "True" / "link").read_bytes() == b"outside"


@posix
def test_only_so_many_links_are_reported(source: Path, tmp_path: Path) -> None:
    tree = FolderTree(source)
    for number in range(102):
        (source / f"{number}").symlink_to(tmp_path)
        assert tree.kind(f"{number}") is None
        assert tree.problem(f"{number}").startswith(f"it is a link to {tmp_path}")
    assert tree.not_followed == {f"{number}": str(tmp_path) for number in range(100)}


@posix
def test_what_is_behind_a_closed_folder_is_denied_and_not_missing(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, real = FolderTree(source), os.lstat

    def lstat(path: str) -> os.stat_result:
        if path.endswith("two"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path)

    monkeypatch.setattr(os, "lstat", lstat)
    denied = [tree.is_denied(name) for name in ("folder/two", "one", "missing", "folder", "a\0b")]
    assert denied == [True, False, False, False, False]
    assert tree.kind("folder/two") is None
