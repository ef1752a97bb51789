"""The one boundary for writes: nothing is written, moved or removed outside what a command may change."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import apsw
import pytest
from faults import fails, posix
from harness import nothing_opened, snapshot

from regraft.disk import durable, scratch, sqlite, untrusted_sqlite, writable


@pytest.fixture(autouse=True, params=[True, False], ids=["by handles", "by paths"])
def no_other_area(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let nothing be written but below what a test opens; as systems do it that act in open folders, and as others."""
    monkeypatch.setattr(writable, "SUPPORTS_DIR_FD", request.param and writable.SUPPORTS_DIR_FD)
    with nothing_opened():
        yield


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Make a folder that may be changed."""
    folder = tmp_path / "store"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_text("mine")
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Make a folder of the user's that nobody may touch."""
    folder = tmp_path / "victim"
    (folder / "docs").mkdir(parents=True)
    (folder / "file").write_text("precious")
    (folder / "docs" / "letter").write_text("dear")
    return folder


@contextmanager
def untouched(folder: Path):
    before = snapshot(folder)
    yield
    assert snapshot(folder) == before


def database(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE TABLE t (x); INSERT INTO t VALUES (1)")


def other(store: Path) -> Path:
    """Return a file of the store that something can be made of."""
    path = store / "other"
    path.write_text("new")
    return path


#: Every way of writing, done to a path ``at``.
ACTS = {
    "make_folder": lambda store, at: durable.make_folder(at),
    "make_folders": lambda store, at: durable.make_folders(at / "deep"),
    "replace to": lambda store, at: durable.replace(other(store), at),
    "replace from": lambda store, at: durable.replace(at, store / "new"),
    "link": lambda store, at: durable.link(other(store), at),
    "remove": lambda store, at: durable.remove(at),
    "remove_folder": lambda store, at: durable.remove_folder(at),
    "remove_tree": lambda store, at: durable.remove_tree(at),
    "open_binary": lambda store, at: durable.open_binary(at, "wb").close(),
    "append": lambda store, at: durable.open_binary(at, "ab").close(),
    "change": lambda store, at: durable.open_binary(at, "r+b").close(),
    "open_text": lambda store, at: durable.open_text(at, "x").close(),
    "put_bytes": lambda store, at: durable.put_bytes(at, b"x"),
    "put_text": lambda store, at: durable.put_text(at, "x"),
    "write_text": lambda store, at: durable.write_text_atomically(at, "x", store / "temporary"),
    "write_text by way of": lambda store, at: durable.write_text_atomically(store / "new", "x", at),
    "copy_file": lambda store, at: durable.copy_file(store / "inner" / "file", at),
    "copy_mode": lambda store, at: durable.copy_mode(store / "inner" / "file", at),
    "copy_times": lambda store, at: durable.copy_times(store / "inner" / "file", at),
    "touch": lambda store, at: durable.touch(at),
    "truncate": lambda store, at: durable.truncate(at, 0),
    "new_zip": lambda store, at: durable.new_zip(at).__enter__(),
    "temporary_folder": lambda store, at: scratch.temporary_folder(at).__enter__(),
    "writing": lambda store, at: sqlite.open_writable(at, create=True).__enter__(),
}
#: What would not change what a link leads to: the link itself goes, or is what another name is given to.
OF_THE_LINK = {"replace to", "replace from", "remove", "remove_tree", "write_text", "make_folder", "link", "open_text"}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("name", ["file", "docs", "new"])
def test_no_write_goes_through_a_link(act: str, name: str, store: Path, victim: Path) -> None:
    (store / "way").symlink_to(victim)
    with writable.allow_writes(store), untouched(victim), fails("LinkInStore", match="way"):
        ACTS[act](store, store / "way" / name)


@pytest.mark.parametrize("act", ACTS)
def test_no_write_leads_outside(act: str, store: Path, victim: Path) -> None:
    with writable.allow_writes(store), untouched(victim):
        for path in (store / ".." / "victim" / "file", store / "inner" / ".." / "file", victim / "new"):
            with fails("OutsideStore"):
                ACTS[act](store, path)


@pytest.mark.parametrize("act", sorted(ACTS.keys() - OF_THE_LINK))
@pytest.mark.parametrize("goal", ["file", "docs", "new"])
def test_no_link_is_opened_for_writing(act: str, goal: str, store: Path, victim: Path) -> None:
    (store / "link").symlink_to(victim / goal)
    with writable.allow_writes(store), untouched(victim), pytest.raises(Exception) as caught:
        ACTS[act](store, store / "link")
    assert caught.typename in {"LinkInStore", "NotADirectoryError"}, caught.value


@pytest.mark.parametrize("place", ["inside", "outside"])
def test_no_second_name_is_given_to_what_a_link_leads_to(place: str, store: Path, victim: Path, tmp_path: Path) -> None:
    """A file with two names would be changed under both."""
    link = (store if place == "inside" else tmp_path) / "link"
    link.symlink_to(victim / "file")
    with writable.allow_writes(store), fails("LinkInStore", match=str(link)):
        durable.link(link, store / "new")
    assert not os.path.lexists(store / "new")
    assert (victim / "file").stat().st_nlink == 1


def test_a_journal_of_another_file_is_not_worked_in(store: Path, victim: Path) -> None:
    """SQLite removes the file that such a journal names: it must not be one of the user's."""
    path = hot(store, victim / "file")
    with writable.allow_writes(store), untouched(victim):
        with fails("JournalNamesAnother", match="victim"), sqlite.open_writable(path):
            pass
        with sqlite.open_readonly(path) as db:
            assert db.execute("SELECT x FROM t").get == 1


def test_a_journal_may_go_while_a_file_is_opened(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer at work removes its journal at any moment, also between two looks at it."""
    path = hot(store, store / "gone")
    journal = path.with_name(f"{path.name}-journal")
    look = untrusted_sqlite.find_shared_journal

    def late(seen: Path) -> str | None:
        journal.unlink(missing_ok=True)
        return look(seen)

    monkeypatch.setattr(untrusted_sqlite, "find_shared_journal", late)
    with writable.allow_writes(store), sqlite.open_writable(path) as db:
        assert db.execute("PRAGMA quick_check").get == "ok"
    assert not journal.exists()


def hot(folder: Path, named: Path) -> Path:
    """Leave a database with the journal of a writer that was killed, which names a file at its end."""
    path = folder / "hot.sqlite"
    whole = folder / "whole.sqlite"
    database(whole)
    with closing(apsw.Connection(str(whole))) as db:
        db.execute("BEGIN; UPDATE t SET x = 2")
        db.cache_flush()
        path.write_bytes(whole.read_bytes())
        journal = Path(f"{whole}-journal").read_bytes()
    name = os.fsencode(named)
    tail = struct.pack(">I", (1 << 30) // 4096 + 1) + name + struct.pack(">II", len(name), sum(name))
    Path(f"{path}-journal").write_bytes(journal + tail + bytes.fromhex("d9d505f920a163d7"))
    return path


def test_a_copy_of_a_journal_names_no_other_file(store: Path, victim: Path) -> None:
    path = hot(store, victim / "file")
    journal, copy = Path(f"{path}-journal"), store / "copy.sqlite"
    assert untrusted_sqlite.find_shared_journal(journal) == str(victim / "file")
    with writable.allow_writes(store), untouched(victim):
        durable.copy_file(path, copy)
        assert untrusted_sqlite.copy_companion(journal, copy, "-journal")
        assert untrusted_sqlite.find_shared_journal(Path(f"{copy}-journal")) is None
        # The transaction itself is in the copy, and is rolled back.
        with sqlite.open_writable(copy) as db:
            assert db.execute("SELECT x FROM t").get == 1
    assert untrusted_sqlite.find_shared_journal(journal) == str(victim / "file")


# --- several roots ---------------------------------------------------------------------------------------------------


def test_a_root_of_entries_only_protects_what_is_in_its_folders(store: Path) -> None:
    with writable.allow_writes(store, entries_only=True):
        durable.put_text(store / "entry", "x")
        durable.make_folder(store / "folder")
        for path in (store / "inner" / "file", store / "inner" / "new", store / "folder" / "new"):
            with untouched(store), fails("OutsideStore"):
                durable.put_text(path, "x")
        durable.remove(store / "entry")
    assert sorted(path.name for path in store.rglob("*")) == ["file", "folder", "inner"]


@pytest.mark.parametrize("is_first", [True, False])
def test_the_innermost_of_nested_roots_decides(store: Path, is_first: bool) -> None:
    """A whole store is open: an inner root of entries only still protects what is in its folders."""
    (store / "inner" / "deep").mkdir()
    with ExitStack() as stack:
        roots = [(store, False), (store / "inner", True)]
        for root, entries_only in roots if is_first else reversed(roots):
            stack.enter_context(writable.allow_writes(root, entries_only=entries_only))
        durable.put_text(store / "inner" / "entry", "x")
        durable.make_folder(store / "other")
        durable.put_text(store / "other" / "file", "x")
        with untouched(store), fails("OutsideStore"):
            durable.put_text(store / "inner" / "deep" / "file", "x")
    assert writable.open_roots() == ()


def test_a_root_may_begin_below_one_of_entries_only(store: Path) -> None:
    """Another thread may have that one open for a moment, for another file."""
    (store / "inner" / "deep").mkdir()
    with writable.allow_writes(store, entries_only=True):
        with writable.allow_writes(store / "inner" / "deep"):
            durable.put_text(store / "inner" / "deep" / "file", "x")
        with fails("OutsideStore"), writable.allow_writes(store / "inner" / ".." / ".." / "other"):
            pass
    assert (store / "inner" / "deep" / "file").read_text("utf-8") == "x"


@posix
def test_a_root_below_one_of_entries_only_is_not_reached_by_a_link(store: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (store / "led").symlink_to(tmp_path / "elsewhere")
    for root in (store / "led" / "deep", store / "led"):
        with (
            writable.allow_writes(store, entries_only=True),
            fails("LinkInStore"),
            writable.allow_writes(root),
        ):
            pass


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_roots_of_one_folder_the_wider_one_decides(store: Path, is_first: bool) -> None:
    with writable.allow_writes(store, entries_only=is_first):
        with writable.allow_writes(store, entries_only=not is_first):
            durable.put_text(store / "inner" / "new", "x")
        if is_first:
            with fails("OutsideStore"):
                durable.put_text(store / "inner" / "newer", "x")
    assert (store / "inner" / "new").read_text("utf-8") == "x"
    assert not (store / "inner" / "newer").exists()


def test_a_root_ends_with_its_context(store: Path) -> None:
    with writable.allow_writes(store / "inner"):
        assert writable.is_writable(store / "inner" / "file")
        assert not writable.is_writable(store / "other")
        assert not writable.is_writable(store / "inner2")
    assert not writable.is_writable(store / "inner" / "file")
    with untouched(store), fails("OutsideStore"):
        durable.put_text(store / "inner" / "file", "x")


def test_paths_at_or_above_a_root_are_the_users(store: Path) -> None:
    with writable.allow_writes(store):
        assert writable.is_at_or_above_root(store)
        assert writable.is_at_or_above_root(store.parent)
        assert not writable.is_at_or_above_root(store / "inner")
        with writable.allow_writes(store / "inner" / "own"):
            # It is below the outer root: no path that the user gave.
            assert not writable.is_at_or_above_root(store / "inner")
    assert not writable.is_at_or_above_root(store)
