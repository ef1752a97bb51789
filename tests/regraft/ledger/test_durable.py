"""Putting files in place: in one step, again where the system refuses for a moment, and never half."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest
from faults import posix
from harness import nothing_opened

from regraft.disk import durable, file_paths, lock_files, writable
from regraft.errors import LinkInStore, OutsideStore


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record waits instead of waiting."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Record which files and folders are flushed, in order."""
    order: list[Path] = []
    for name in ("sync_file", "sync_folder"):
        real = getattr(durable, name)
        monkeypatch.setattr(durable, name, lambda path, real=real: (order.append(Path(path)), real(path))[1])
    return order


def failing(times: int, error: OSError) -> Callable[..., None]:
    """Return a rename that fails so often before it works."""
    real, left = os.replace, [times]

    def replace(source: Any, target: Any, **handles: Any) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise error
        real(source, target, **handles)

    return replace


# --- replace -------------------------------------------------------------------------------------------------------


def test_a_file_takes_the_place_of_another(tmp_path: Path, flushed: list[Path]) -> None:
    (tmp_path / "new").write_text("new")
    (tmp_path / "old").write_text("old")
    durable.replace(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_text("utf-8") == "new"
    assert not (tmp_path / "new").exists()
    assert flushed == [tmp_path]


def test_both_folders_of_a_move_are_flushed(tmp_path: Path, flushed: list[Path]) -> None:
    for name in ("from", "to"):
        (tmp_path / name).mkdir()
    (tmp_path / "from" / "base").mkdir()
    (tmp_path / "from" / "base" / "file").write_text("x")
    durable.replace(tmp_path / "from" / "base", tmp_path / "to" / "base")
    assert (tmp_path / "to" / "base" / "file").read_text("utf-8") == "x"
    assert set(flushed) == {tmp_path / "from", tmp_path / "to"}


def test_a_move_that_is_refused_for_a_moment_is_tried_again(
    tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("x")
    denied = PermissionError(errno.EACCES, "held by a scanner")
    monkeypatch.setattr(os, "replace", failing(durable.REPLACE_TRIES - 1, denied))
    durable.replace(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text("utf-8") == "x"
    assert len(waits) == durable.REPLACE_TRIES - 1
    assert waits == sorted(waits)
    assert waits[0] == durable.REPLACE_WAIT_SECONDS
    assert 1 < sum(waits) < 15


def test_a_move_that_stays_refused_fails_after_some_tries(
    tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("x")
    denied = PermissionError(errno.EACCES, "not yours")
    monkeypatch.setattr(os, "replace", failing(10**6, denied))
    with pytest.raises(PermissionError) as caught:
        durable.replace(tmp_path / "a", tmp_path / "b")
    assert caught.value is denied
    assert len(waits) == durable.REPLACE_TRIES - 1
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EXDEV, errno.EIO, errno.ENOTEMPTY])
def test_other_errors_of_a_move_are_not_tried_again(
    number: int, tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("x")
    monkeypatch.setattr(os, "replace", failing(1, OSError(number, os.strerror(number))))
    with pytest.raises(OSError, match=os.strerror(number)):
        durable.replace(tmp_path / "a", tmp_path / "b")
    assert waits == []
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_move_of_nothing_fails_at_once(tmp_path: Path, waits: list[float]) -> None:
    with pytest.raises(FileNotFoundError):
        durable.replace(tmp_path / "gone", tmp_path / "b")
    assert waits == []


# --- write_text ----------------------------------------------------------------------------------------------------


def test_text_is_written_as_it_is(tmp_path: Path) -> None:
    text = "line\nKüche 🌱\r\n"
    durable.write_text_atomically(tmp_path / "a.txt", text, tmp_path / "temporary")
    assert (tmp_path / "a.txt").read_bytes() == text.encode()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_text_is_on_disk_before_it_is_in_place(
    tmp_path: Path, flushed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace
    moves: list[list[Path]] = []
    monkeypatch.setattr(os, "replace", lambda a, b, **more: (moves.append(list(flushed)), real(a, b, **more))[1])
    durable.write_text_atomically(tmp_path / "a.txt", "x", tmp_path / "temporary")
    assert moves == [[tmp_path / "temporary"]]
    assert flushed == [tmp_path / "temporary", tmp_path]


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_text_that_cannot_be_written_leaves_the_old_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("old")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, name, full)
    with pytest.raises(OSError, match="No space left"):
        durable.write_text_atomically(tmp_path / "a.txt", "new", tmp_path / "temporary")
    assert (tmp_path / "a.txt").read_text("utf-8") == "old"


def test_readers_see_the_old_text_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a run does meanwhile, the file under its name is whole."""
    path, seen = tmp_path / "a.txt", set()
    path.write_text("old")
    for name in ("fsync", "replace", "open", "close"):
        real = getattr(os, name)

        def look(*arguments: Any, real: Any = real, **named: Any) -> Any:
            seen.add(path.read_text("utf-8"))
            return real(*arguments, **named)

        monkeypatch.setattr(os, name, look)
    durable.write_text_atomically(path, "new", tmp_path / "temporary")
    monkeypatch.undo()
    assert seen | {path.read_text("utf-8")} == {"old", "new"}


# --- flushing ------------------------------------------------------------------------------------------------------


def test_every_file_and_folder_of_a_tree_is_flushed(tmp_path: Path, flushed: list[Path]) -> None:
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    for name in ("one", "a/two", "a/b/three"):
        (tree / name).write_text(name, "utf-8")
    durable.sync_tree(tree)
    assert sorted(flushed) == sorted([tree, *tree.rglob("*")])


@pytest.mark.parametrize("sync", [durable.sync_file, durable.sync_tree])
def test_a_failing_flush_is_no_success(
    sync: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tree").mkdir()
    path = tmp_path / "tree" / "file"
    path.write_text("x")
    closed: list[int] = []
    real = os.close

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", lambda number: (closed.append(number), real(number))[1])
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        sync(path if sync is durable.sync_file else path.parent)
    assert closed, "the file stays open"


# --- remove_tree ---------------------------------------------------------------------------------------------------


def test_a_tree_is_removed_with_all_that_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "tree" / "a").mkdir(parents=True)
    (tmp_path / "tree" / "a" / "file").write_text("x")
    durable.remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


def nested(folder: Path, depth: int, kept: Path) -> None:
    """Make folders in one another, so many, each with a file, a link and an empty folder, by handles: no path is short
    enough."""
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
        os.symlink(kept, "link", dir_fd=handle)
        os.mkdir("0", dir_fd=handle)
        os.mkdir("a folder", dir_fd=handle)
        inner = os.open("a folder", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)


@pytest.mark.skipif(os.mkdir not in os.supports_dir_fd, reason="no such folders can be made")
@pytest.mark.parametrize("depth", [100, 1_500, 4_000])
def test_a_tree_is_removed_however_deep_it_is(depth: int, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    nested(tmp_path / "tree", depth, tmp_path / "kept")
    durable.remove_tree(tmp_path / "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").read_text("utf-8") == "x"


def test_a_deep_tree_is_removed_by_paths_where_there_are_no_handles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    place = tmp_path / "tree"
    for _ in range(12):
        (place / "0").mkdir(parents=True)
        (place / "file").write_text("x")
        (place / "link").symlink_to(tmp_path / "kept")
        place /= "a"

    def too_deep(*_: Any, **__: Any) -> None:
        raise RecursionError

    monkeypatch.setattr(writable, "SUPPORTS_DIR_FD", False)
    monkeypatch.setattr(durable.shutil, "rmtree", too_deep)
    durable.remove_tree(tmp_path / "tree")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").read_text("utf-8") == "x"


def test_a_file_is_removed_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    durable.remove_tree(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_remove_is_fine(tmp_path: Path) -> None:
    durable.remove_tree(tmp_path / "gone")
    durable.remove_tree(tmp_path / "gone" / "deeper")
    assert list(tmp_path.iterdir()) == []


def test_what_a_link_leads_to_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")
    durable.remove_tree(tmp_path / "link")
    durable.remove_tree(tmp_path / "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").read_text("utf-8") == "x"


def test_what_cannot_be_removed_is_no_success(
    tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")

    def deny(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "unlink", deny)
    with pytest.raises(PermissionError):
        durable.remove_tree(tmp_path / "file")
    assert len(waits) == durable.REPLACE_TRIES - 1


# --- folders that were made ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "first", "left"),
    [
        ("a/b/c", "a/b/c", ["a", "a/b"]),
        ("a/b/c", "a/b", ["a"]),
        ("a/b/c", "a", []),
        # None of its parents was made.
        ("a/b/c", "other", ["a", "a/b"]),
    ],
)
def test_folders_that_were_made_are_removed_up_to_the_first(
    tmp_path: Path, path: str, first: str, left: list[str]
) -> None:
    (tmp_path / path).mkdir(parents=True)
    (tmp_path / path / "file").write_text("x")
    with writable.allow_writes(tmp_path):
        durable.remove_made_folders(tmp_path / path, tmp_path / first)
    assert sorted(one.relative_to(tmp_path).as_posix() for one in tmp_path.rglob("*")) == left


def test_a_parent_with_something_else_in_it_stays(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "mine").write_text("mine")
    with writable.allow_writes(tmp_path), pytest.raises(OSError):
        durable.remove_made_folders(tmp_path / "a" / "b" / "c", tmp_path / "a")
    assert sorted(one.relative_to(tmp_path).as_posix() for one in tmp_path.rglob("*")) == ["a", "a/mine"]


def test_folders_above_a_root_that_were_made_are_removed_too(tmp_path: Path) -> None:
    (tmp_path / "made" / "above" / "root").mkdir(parents=True)
    with writable.allow_writes(tmp_path / "made" / "above" / "root"):
        durable.remove_made_folders(tmp_path / "made" / "above" / "root", tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_the_users_folders_above_a_root_that_were_made_are_removed_by_their_paths(tmp_path: Path) -> None:
    (tmp_path / "made" / "above" / "root" / "inner").mkdir(parents=True)
    with nothing_opened(), writable.allow_writes(tmp_path / "made" / "above" / "root"):
        durable.remove_made_folders(tmp_path / "made" / "above" / "root" / "inner", tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


# --- making folders --------------------------------------------------------------------------------------------------


def test_each_new_folder_is_flushed_into_the_one_above_it(tmp_path: Path, flushed: list[Path]) -> None:
    durable.make_folders(tmp_path / "a" / "b")
    assert flushed == [tmp_path, tmp_path / "a"]
    durable.make_folders(tmp_path / "a" / "b" / "c" / "d")
    assert flushed[2:] == [tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"]
    durable.make_folders(tmp_path / "a" / "b")
    durable.make_folders(tmp_path / "x" / "y", flush=False)
    assert (tmp_path / "x" / "y").is_dir()
    assert len(flushed) == 4


def test_a_folder_that_exists_need_not_be_writable(tmp_path: Path) -> None:
    for name in ("store", "mine"):
        (tmp_path / name).mkdir()
    with nothing_opened(), writable.allow_writes(tmp_path / "store"):
        for path in (tmp_path, tmp_path / "mine", tmp_path / "store"):
            durable.make_folders(path)
        with pytest.raises(OutsideStore):
            durable.make_folders(tmp_path / "mine" / "new")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mine", "store"]


@pytest.mark.parametrize("exist_ok", [False, True])
def test_a_folder_is_made_where_nothing_else_is(exist_ok: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    durable.make_folder(tmp_path / "folder", exist_ok=exist_ok)
    if exist_ok:
        durable.make_folder(tmp_path / "folder", exist_ok=True)
    else:
        with pytest.raises(FileExistsError):
            durable.make_folder(tmp_path / "folder")
    with pytest.raises(FileExistsError):
        durable.make_folder(tmp_path / "file", exist_ok=exist_ok)
    with pytest.raises(LinkInStore, match="link"):
        durable.make_folder(tmp_path / "link", exist_ok=exist_ok)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder", "link"]


# --- systems that behave otherwise -----------------------------------------------------------------------------------


class FullFlush:
    """The module ``fcntl`` of macOS."""

    F_FULLFSYNC = 51

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)
        self.asked: list[int] = []

    def fcntl(self, descriptor: int, request: int) -> None:
        assert request == self.F_FULLFSYNC
        self.asked.append(descriptor)
        if self.errors:
            number = self.errors.pop()
            raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("number", "outcome"),
    [(0, "full"), (errno.ENOTSUP, "plain"), (errno.EIO, "fails"), (errno.ENOSPC, "fails"), (errno.EROFS, "fails")],
)
def test_where_there_is_a_full_flush_it_is_used(
    number: int, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails is no file system without full flushes."""
    (tmp_path / "file").write_text("x")
    system, plain = FullFlush(*([number] if number else [])), []
    monkeypatch.setattr(writable, "fcntl", system)
    monkeypatch.setattr(os, "fsync", plain.append)
    if outcome == "fails":
        with pytest.raises(OSError, match=os.strerror(number)):
            durable.sync_file(tmp_path / "file")
    else:
        durable.sync_file(tmp_path / "file")
    assert (len(system.asked), len(plain)) == (1, outcome == "plain")


def test_what_this_user_may_never_write_is_tried_once(
    tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("x")
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "replace", failing(1, PermissionError(errno.EACCES, "not yours")))
    with pytest.raises(PermissionError, match="not yours"):
        durable.replace(tmp_path / "a", tmp_path / "b")
    assert waits == []
    # Windows says who may not write in another way, and refuses while a file is open.
    refused = PermissionError(errno.EACCES, "open in another program")
    refused.winerror = 32  # type: ignore[attr-defined]
    monkeypatch.setattr(os, "replace", failing(1, refused))
    durable.replace(tmp_path / "a", tmp_path / "b")
    assert waits == [durable.REPLACE_WAIT_SECONDS]
    assert (tmp_path / "b").read_text("utf-8") == "x"


@pytest.mark.parametrize("act", [durable.remove, durable.remove_tree])
def test_a_removal_that_is_refused_for_a_moment_is_tried_again(
    act: Callable[..., None], tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("x")
    real, errors = os.unlink, [PermissionError(errno.EACCES, "held by a scanner")]

    def unlink(*arguments: Any, **named: Any) -> None:
        if errors:
            raise errors.pop()
        real(*arguments, **named)

    monkeypatch.setattr(os, "unlink", unlink)
    given: list[float] = []
    act(tmp_path / "a", wait=given.append)
    assert (given, waits) == ([durable.REPLACE_WAIT_SECONDS], [])
    assert [*tmp_path.iterdir()] == []


def test_a_missing_file_is_removed_only_where_that_is_fine(tmp_path: Path, waits: list[float]) -> None:
    durable.remove(tmp_path / "gone", missing_ok=True)
    with pytest.raises(FileNotFoundError):
        durable.remove(tmp_path / "gone")
    assert waits == []


def test_many_files_are_flushed_once_each_and_nothing_but_files(tmp_path: Path, flushed: list[Path]) -> None:
    """Several at a time; opening a pipe would wait for ever."""
    files = [tmp_path / f"{number}" for number in range(300)]
    for file in files:
        file.write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "0")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
    durable.sync_tree(tmp_path)
    assert sorted(flushed) == sorted([tmp_path, *files])
    assert flushed[-1] == tmp_path


def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tree").mkdir()
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("tree"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError):
        durable.sync_tree(tmp_path / "tree")
    with pytest.raises(PermissionError):
        durable.copy_tree(tmp_path / "tree", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


# --- copies ----------------------------------------------------------------------------------------------------------


def test_a_tree_is_copied_without_what_is_left_out_and_never_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "tree" / "a" / "empty").mkdir(parents=True)
    for name in ("one.db", "one.db-wal", "a/two.db-wal", "a/two"):
        (tmp_path / "tree" / name).write_text(name, "utf-8")
    durable.copy_tree(tmp_path / "tree", tmp_path / "copy", without=("-wal", "-shm"))
    copied = {path.relative_to(tmp_path / "copy").as_posix(): path for path in (tmp_path / "copy").rglob("*")}
    assert sorted(copied) == ["a", "a/empty", "a/two", "one.db"]
    assert (copied["a/two"].read_text("utf-8"), copied["one.db"].read_text("utf-8")) == ("a/two", "one.db")
    (tmp_path / "tree" / "a" / "folder").symlink_to(tmp_path / "copy")
    with pytest.raises(LinkInStore, match="folder"):
        durable.copy_tree(tmp_path / "tree", tmp_path / "again")


def test_a_copy_gets_the_mode_and_the_times_of_the_original(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).write_text(name, "utf-8")
    (tmp_path / "one").chmod(0o640 if os.name != "nt" else 0o444)
    os.utime(tmp_path / "one", ns=(10**18, 10**18 + 123_456_700))
    durable.copy_mode(tmp_path / "one", tmp_path / "other")
    durable.copy_times(tmp_path / "one", tmp_path / "other")
    one, other = ((tmp_path / name).stat() for name in ("one", "other"))
    assert (one.st_mode, one.st_atime_ns, one.st_mtime_ns) == (other.st_mode, other.st_atime_ns, other.st_mtime_ns)
    assert one.st_mtime_ns == 10**18 + 123_456_700


# --- what is left and what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOTEMPTY, errno.EEXIST])
@pytest.mark.parametrize(("times", "is_removed"), [(0, True), (9, True), (10, False)])
def test_leftovers_that_a_dying_process_still_fills_are_removed_after_some_tries(
    times: int, is_removed: bool, number: int, tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "left" / "deep").mkdir(parents=True)
    real, tries = durable.remove_tree, []

    def remove(path: Path) -> None:
        tries.append(path)
        if len(tries) <= times:
            raise OSError(number, os.strerror(number))
        real(path)

    monkeypatch.setattr(durable, "remove_tree", remove)
    if is_removed:
        durable.remove_leftovers(tmp_path / "left")
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            durable.remove_leftovers(tmp_path / "left")
    assert (tmp_path / "left").exists() is not is_removed
    assert len(tries) == min(times + 1, 10)
    assert waits == [durable.REPLACE_WAIT_SECONDS] * (len(tries) - 1)


def test_leftovers_that_come_back_or_cannot_be_removed(
    tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other errors are raised at once; a folder that is there again is tried again, and is no error."""
    tries: list[Path] = []
    (tmp_path / "left").mkdir()
    monkeypatch.setattr(durable, "remove_tree", tries.append)
    durable.remove_leftovers(tmp_path / "left")
    assert (len(tries), len(waits)) == (10, 9)

    def fail(path: Path) -> None:
        tries.append(path)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(durable, "remove_tree", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        durable.remove_leftovers(tmp_path / "left")
    assert (len(tries), len(waits)) == (11, 9)


def test_each_wait_is_twice_the_one_before(tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("x")
    monkeypatch.setattr(os, "replace", failing(10**6, PermissionError(errno.EACCES, "held")))
    with pytest.raises(PermissionError):
        durable.replace(tmp_path / "a", tmp_path / "b")
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2]


def test_a_file_of_the_users_gets_a_second_name_in_a_store(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "store").mkdir()
    with nothing_opened(), writable.allow_writes(tmp_path / "store"):
        durable.link(tmp_path / "mine", tmp_path / "store" / "name")
        durable.link(tmp_path / "store" / "name", tmp_path / "store" / "other")
        with pytest.raises(OutsideStore):
            durable.link(tmp_path / "store" / "name", tmp_path / "other")
    assert (tmp_path / "mine").samefile(tmp_path / "store" / "other")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mine", "name", "other", "store"]


def test_files_are_filled_shortened_and_touched(tmp_path: Path) -> None:
    path = tmp_path / "file"
    durable.touch(path)
    assert path.read_bytes() == b""
    durable.put_text(path, "a\r\nb\né")
    durable.touch(path)
    assert path.read_bytes() == "a\r\nb\né".encode()
    durable.truncate(path, 3)
    assert path.read_bytes() == b"a\r\n"
    durable.put_text(path, "a\nb", newline="\r\n")
    assert path.read_bytes() == b"a\r\nb"
    durable.put_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    with pytest.raises(FileExistsError):
        durable.open_text(path, "x")
    durable.write_text_atomically(path, "a\nb\r\n", tmp_path / "temporary")
    assert path.read_bytes() == b"a\nb\r\n"
    durable.copy_file(path, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"a\nb\r\n"
    durable.make_link(tmp_path / "link", "file")
    assert str((tmp_path / "link").readlink()) == "file"
    with pytest.raises(FileExistsError):
        durable.make_link(tmp_path / "link", "copy")


def test_only_an_empty_folder_is_removed(tmp_path: Path, waits: list[float]) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("x")
    with pytest.raises(OSError) as caught:
        durable.remove_folder(tmp_path / "folder")
    assert caught.value.errno in (errno.ENOTEMPTY, errno.EEXIST)
    (tmp_path / "folder" / "file").unlink()
    durable.remove_folder(tmp_path / "folder")
    assert (list(tmp_path.iterdir()), waits) == ([], [])


@posix
def test_what_windows_would_not_remove_is_a_read_only_file(tmp_path: Path) -> None:
    for name, mode in (("closed", 0o444), ("open", 0o644), ("others", 0o466)):
        (tmp_path / name).write_text("x")
        (tmp_path / name).chmod(mode)
    (tmp_path / "link").symlink_to(tmp_path / "closed")
    (tmp_path / "folder").mkdir(mode=0o555)
    names = ("closed", "open", "others", "link", "folder", "missing")
    assert [name for name in names if durable._is_read_only(str(tmp_path / name))] == ["closed", "others"]


@posix
def test_a_file_of_the_working_directory_is_never_taken_for_the_one_that_is_refused(
    tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are named relative to the handle of their folder."""
    for name in ("here/file", "here/tree/file", "store/file", "store/new", "store/tree/file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, "utf-8")
        (tmp_path / name).chmod(0o444)
    monkeypatch.chdir(tmp_path / "here")
    durable.remove_tree(tmp_path / "store" / "tree")
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["file", "new"]
    handles: list[object] = []

    def deny(*_: Any, **named: Any) -> None:
        handles.append(named)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    for name in ("unlink", "replace"):
        monkeypatch.setattr(os, name, deny)
    for act in (
        lambda: durable.remove(tmp_path / "store" / "file"),
        lambda: durable.replace(tmp_path / "store" / "new", tmp_path / "store" / "file"),
    ):
        with pytest.raises(PermissionError):
            act()
    assert len(handles) == 2 * durable.REPLACE_TRIES
    assert all(handles)
    monkeypatch.undo()
    for name in ("here/file", "here/tree/file"):
        assert (tmp_path / name).read_text("utf-8") == name
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o444


def test_errors_name_the_whole_path(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "file"
    for act in (durable.make_folder, durable.remove, durable.touch):
        with pytest.raises(FileNotFoundError) as caught:
            act(path)
        assert Path(caught.value.filename).is_relative_to(tmp_path / "missing")


# --- lock files ------------------------------------------------------------------------------------------------------


def test_a_lock_is_seen_while_it_is_held_and_may_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not lock_files.is_lock_held(path)
    for is_kept in (True, False):
        with lock_files.hold_lock(path, is_kept=lambda is_kept=is_kept: is_kept):
            assert lock_files.is_lock_held(path)
        assert path.exists() is is_kept
        assert not lock_files.is_lock_held(path)
    if os.name != "nt":  # which refuses to remove a file that is open
        with lock_files.hold_lock(path):
            path.unlink()
    assert list(tmp_path.iterdir()) == []


@posix
def test_what_is_no_lock_file_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no lock at all\n" * 50, "utf-8")
    (tmp_path / "folder").mkdir()
    with lock_files.hold_lock(tmp_path / "lock"):
        (tmp_path / "link").symlink_to(tmp_path / "lock")
        assert lock_files.is_lock_held(tmp_path / "lock")
        for name in ("text", "folder", "link", "missing"):
            assert not lock_files.is_lock_held(tmp_path / name), name
        # It may be removed just before it is opened.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "is_file", lambda _: True)
            assert not lock_files.is_lock_held(tmp_path / "missing")
    with pytest.raises(apsw.CantOpenError), lock_files.hold_lock(tmp_path / "missing" / "lock"):
        pass


@posix
@pytest.mark.parametrize("is_refused", [False, True])
def test_a_lock_file_is_removed_while_it_is_held_unless_the_system_refuses(
    is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise another process could lock a file that is about to be removed. Windows refuses."""
    path, held, real = tmp_path / "lock", [], durable.remove

    def remove(path: Path, **more: Any) -> None:
        held.append(lock_files.is_lock_held(path))
        if is_refused and len(held) == 1:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if is_refused:
            # The next process has opened it meanwhile, and removes it.
            path.unlink()
        real(path, **more)

    monkeypatch.setattr(durable, "remove", remove)
    with lock_files.hold_lock(path):
        pass
    assert held == ([True, False] if is_refused else [True])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("second", [2, None])
def test_a_lock_file_that_was_removed_meanwhile_is_the_lock_of_another(
    second: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter([1, second])

    def number(_: Path) -> int:
        found = next(numbers)
        if found is None:
            raise FileNotFoundError
        return found

    monkeypatch.setattr(lock_files, "_file_number", number)
    with pytest.raises(lock_files.LockHeld), lock_files.hold_lock(tmp_path / "lock"):
        pass


# --- what may be written ---------------------------------------------------------------------------------------------


@posix
def test_a_root_that_leads_elsewhere_since_it_was_opened_is_refused(tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "mine")
    with nothing_opened(), writable.allow_writes(tmp_path / "root"):
        durable.put_text(tmp_path / "root" / "file", "x")
        durable.put_text(tmp_path / "mine" / "other", "x")
        (tmp_path / "root").unlink()
        (tmp_path / "root").symlink_to(tmp_path / "theirs")
        with pytest.raises(LinkInStore) as caught:
            durable.put_text(tmp_path / "root" / "file", "y")
        assert caught.value.facts == {"path": tmp_path / "root", "goal": tmp_path / "theirs"}
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "mine", "other", "root", "theirs"]


@posix
@pytest.mark.parametrize("supported", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
def test_the_link_on_the_way_is_named_and_where_it_leads(
    depth: int, supported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writable, "SUPPORTS_DIR_FD", supported and writable.SUPPORTS_DIR_FD)
    (tmp_path / "goal").mkdir()
    folder = tmp_path.joinpath("store", *["inner"] * (depth - 1))
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(Path(*[".."] * depth, "goal"))
    with nothing_opened(), writable.allow_writes(tmp_path / "store"):
        for path in (folder / "link" / "file", folder / "link" / "a" / "file"):
            with pytest.raises(LinkInStore) as caught:
                durable.put_text(path, "x")
            assert caught.value.facts["path"] == folder / "link"
            assert Path(caught.value.facts["goal"]).resolve() == tmp_path / "goal"


def test_junctions_of_windows_are_links() -> None:
    tag = 0xA0000003
    for mode, reparse, is_link in (
        *((stat.S_IFDIR, tag, True), (stat.S_IFDIR, 0xA000000C, False), (stat.S_IFDIR, 0, False)),
        *((stat.S_IFLNK, 0, True), (stat.S_IFREG, 0, False)),
    ):
        status: Any = SimpleNamespace(st_mode=mode, st_reparse_tag=reparse)
        assert file_paths.is_link_stat(status) is is_link
    assert not file_paths.is_link_stat(SimpleNamespace(st_mode=stat.S_IFDIR))  # type: ignore[arg-type]


def test_what_a_junction_leads_to_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks like a folder. What is removed below a folder is made writable before."""
    for name in ("tree/way/theirs", "tree/own/file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(0o444)
    junction, real = (tmp_path / "tree" / "way").lstat().st_ino, file_paths.is_link_stat
    monkeypatch.setattr(file_paths, "_HAS_JUNCTIONS", True)
    monkeypatch.setattr(file_paths, "is_link_stat", lambda one: one.st_ino == junction or real(one))
    # An entry of a folder does not tell the number on Windows.
    monkeypatch.setattr(file_paths, "is_link_entry", lambda one: file_paths.is_link_stat(os.lstat(one.path)))
    assert {Path(folder).name: names for folder, _, names in file_paths.walk(tmp_path)} == {
        tmp_path.name: [],
        "tree": [],
        "own": ["file"],
    }
    assert [file_paths.is_link(tmp_path / "tree" / name) for name in ("way", "own", "way/theirs")] == [
        True,
        False,
        False,
    ]
    monkeypatch.setattr(writable, "SUPPORTS_DIR_FD", False)
    removed: list[str] = []
    monkeypatch.setattr(durable.shutil, "rmtree", lambda path, **_: removed.append(str(path)))
    durable.remove_tree(tmp_path / "tree")
    assert len(removed) == 1
    modes = [stat.S_IMODE((tmp_path / "tree" / name).stat().st_mode) for name in ("own/file", "way/theirs")]
    assert [mode & stat.S_IWUSR for mode in modes] == [stat.S_IWUSR, 0]


def test_a_child_process_may_write_where_its_parent_may(tmp_path: Path) -> None:
    with nothing_opened():
        with writable.allow_writes(tmp_path / "store", entries_only=True) as real:
            roots = writable.open_roots()
        assert roots == (writable.WritableRoot(tmp_path / "store", real, True),)
        assert writable.open_roots() == ()
        writable.adopt_roots(roots)
        try:
            assert writable.is_writable(tmp_path / "store" / "file")
            with pytest.raises(OutsideStore):
                writable.require_writable(tmp_path / "store" / "a" / "file")
        finally:
            writable._roots.clear()


def test_a_last_file_that_cannot_be_written_is_reported_and_nothing_else(tmp_path: Path) -> None:
    """The result of the command is printed anyway."""
    assert writable.write_last_output(tmp_path / "page", lambda: None) is None

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    lost = writable.write_last_output(tmp_path / "page", full)
    assert lost is not None
    assert lost.facts == {"output": tmp_path / "page", "reason": os.strerror(errno.ENOSPC)}
    with pytest.raises(ValueError, match="own"):
        writable.write_last_output(tmp_path / "page", lambda: int("own"))
