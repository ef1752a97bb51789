"""What is done is recorded before it is begun, and recorded as done only once it is on the disk, whatever it is.

``docs/reliability.md``, "Crash semantics". What this process and SQLite ask of the disk is listed in its order.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
import toys
from faults import changed_source, migrate, small_source
from stand_ins import Disk, on_disk
from toys import change, planner, undo

from regraft import identity
from regraft.identity import replace
from regraft.ledger.ledger import ChangeLog, Ledger
from repair.changes.plan import Plan
from repair.changes.store import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which file is flushed")

BASE = identity.base_id("beta")
LEDGER = ".regraft/ledger.sqlite"


class Listed(Disk):
    """SQLite's disk, which lists what is flushed."""

    def __init__(self, tell: Callable[[str, Path], None]) -> None:
        self.tell = tell
        super().__init__()

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        return _ListedFile(self, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:
        super().xDelete(name, sync)
        # A transaction ends with its journal, which can come back unless the folder is flushed.
        self.tell("end" if sync else "unflushed end", Path(name.removesuffix("-journal")))


class _ListedFile(apsw.VFSFile):
    def __init__(self, disk: Listed, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._path = "" if name is None else name if isinstance(name, str) else name.filename()
        super().__init__(disk.real, name, flags)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        # A journal is flushed for its database.
        self._disk.tell("flush", Path(self._path.removesuffix("-journal")))


class Events:
    """What was recorded and what was asked of the disk below a folder, in its order."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.all: list[str] = []

    def tell(self, what: str, path: Path) -> None:
        """List what happened to a path."""
        if path.is_relative_to(self._root):
            self.all.append(f"{what} {path.relative_to(self._root).as_posix()}")

    def at(self, event: str, after: int = -1) -> int:
        """Return when something happened first, after a moment."""
        found = next((at for at in range(after + 1, len(self.all)) if self.all[at] == event), None)
        assert found is not None, (event, self.all[after:])
        return found

    def demand(self, *events: str) -> None:
        """Demand that all this happened, one after the other."""
        at = -1
        for event in events:
            at = self.at(event, at)


def _told(events: Events, name: str, real: Callable[..., Any], said: Callable[..., str]) -> Callable[..., Any]:
    def record(*some: Any, **named: Any) -> Any:
        events.all.append(f"{name} {said(*some)}")
        result = real(*some, **named)
        events.all.append(f"{name}, done {said(*some)}")
        return result

    return record


@contextmanager
def listed(root: Path) -> Iterator[Events]:
    """List what happens below a folder meanwhile."""
    events = Events(root)
    fsync, replace, link = os.fsync, os.replace, os.link

    def flushed(descriptor: int) -> None:
        fsync(descriptor)
        events.tell("flush", Path(f"/proc/self/fd/{descriptor}").readlink())

    def moved(source: Any, target: Any, **folders: Any) -> None:
        replace(source, target, **folders)
        events.tell("move", _whole(target, folders.get("dst_dir_fd")))

    def linked(source: Any, target: Any, **folders: Any) -> None:
        link(source, target, **folders)
        events.tell("link", _whole(target, folders.get("dst_dir_fd")))

    with pytest.MonkeyPatch.context() as patch, on_disk(Listed(events.tell)):
        patch.setattr(os, "fsync", flushed)
        patch.setattr(os, "replace", moved)
        patch.setattr(os, "link", linked)
        for name, said in (("intend", lambda _, subject, *__: subject), ("done", lambda _, step: step.subject)):
            patch.setattr(Ledger, name, _told(events, name, getattr(Ledger, name), said))
        patch.setattr(ChangeLog, "intend", _told(events, "intend", ChangeLog.intend, lambda *some: some[3]))
        patch.setattr(ChangeLog, "set_state", _told(events, "set_state", ChangeLog.set_state, lambda *some: some[2]))
        yield events


def _whole(path: Any, folder: int | None) -> Path:
    return Path(path) if folder is None else Path(f"/proc/self/fd/{folder}").readlink() / path


@pytest.mark.parametrize("again", [False, True])
def test_a_base_is_intended_before_it_is_moved_and_done_once_it_is_on_the_disk(again: bool, tmp_path: Path) -> None:
    source = small_source(tmp_path / "source")
    target = tmp_path / "library"
    if again:
        assert migrate(source.folder, target).status == 1
        changed_source(source)
    with listed(target) as events:
        assert migrate(source.folder, target, "--jobs", 1).status == 1
    final = f"KnowledgeBase/{BASE}"
    aside = [f"move .regraft/replaced/{BASE}"] if again else []
    events.demand(
        f"intend {BASE}",
        f"flush {LEDGER}",
        f"intend, done {BASE}",
        *aside,
        f"move {final}",
        "flush KnowledgeBase",
        f"done {BASE}",
        f"flush {LEDGER}",
        f"done, done {BASE}",
    )
    # All that is in it was on the disk before it was moved, and nothing was moved before it was recorded.
    begun = events.at(f"intend {BASE}")
    before = "\n".join(events.all[:begun])
    files = [path.relative_to(target / final).as_posix() for path in (target / final).rglob("*") if path.is_file()]
    assert len(files) > 2
    for file in files:
        assert f"{BASE}/{file}\n" in before
    assert not [event for event in events.all[:begun] if event in (*aside, f"move {final}")]
    events.demand("intend catalog", f"flush {LEDGER}", "move catalog.sqlite", "done catalog", f"flush {LEDGER}")
    flushed = next(event for event in events.all if event.endswith("/catalog.sqlite") and event.startswith("flush"))
    assert events.at(flushed) < events.at("intend catalog")
    demand_flushed_ends(events, LEDGER)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.library(tmp_path_factory.mktemp("whole"))


def test_rows_are_intended_before_they_are_committed_and_done_once_they_are(whole: Path, tmp_path: Path) -> None:
    root = shutil.copytree(whole, tmp_path / "library")
    with listed(root) as events:
        change(root, planner(toys.renamed))
        undo(root)
    kept = next(event for event in events.all if event.startswith("flush .regraft/undo/") and event.endswith("/000001"))
    events.demand(
        kept,  # what takes them back is on the disk first
        f"intend {toys.CATALOG}",
        f"flush {LEDGER}",
        f"intend, done {toys.CATALOG}",
        f"flush {toys.CATALOG}",
        "set_state done",
        f"flush {LEDGER}",
        "set_state undoing",
        f"flush {LEDGER}",
        "set_state, done undoing",
        f"flush {toys.CATALOG}",
        "set_state undone",
    )
    assert f"flush {toys.CATALOG}" not in events.all[: events.at(f"intend, done {toys.CATALOG}")]
    demand_flushed_ends(events, LEDGER, toys.CATALOG)
    # What takes them back can be found after a power cut: the folders that lead to it are on the disk, too.
    run, _, _ = kept.removeprefix("flush ").rpartition("/")
    for folder in (".regraft", ".regraft/undo", run):
        assert events.at(f"flush {folder}") < events.at(f"intend {toys.CATALOG}"), folder


def demand_flushed_ends(events: Events, *databases: str) -> None:
    """Demand that each transaction of some databases ended, and was flushed with its folder."""
    for database in databases:
        assert f"end {database}" in events.all
        assert f"unflushed end {database}" not in events.all


def test_a_whole_backup_is_on_the_disk_before_its_rows_are_changed(whole: Path, tmp_path: Path) -> None:
    root = shutil.copytree(whole, tmp_path / "library")

    def renamed(store: Store) -> Plan:
        [rows] = toys.renamed(store)
        return Plan([replace(rows, backup=True)])

    with listed(root) as events:
        run_id = change(root, renamed)["undo"]
    backup = f".regraft/undo/{run_id}/000001.backup"
    assert toys.rows_of(root / backup) == toys.rows_of(whole / toys.CATALOG)
    events.demand(f"flush {backup}", f"flush .regraft/undo/{run_id}", f"intend {toys.CATALOG}", f"flush {toys.CATALOG}")


def test_a_file_is_intended_before_it_is_moved_and_done_once_it_is_on_the_disk(whole: Path, tmp_path: Path) -> None:
    root = shutil.copytree(whole, tmp_path / "library")
    path = f"{toys.RAW}/a.txt"
    with listed(root) as events:
        change(root, planner(toys.a_file(path, "another")))
        undo(root)
    [made] = {event for event in events.all if event.startswith("flush .regraft/work/") and event.endswith("/000001")}
    events.demand(
        made,
        f"intend {path}",
        f"flush {LEDGER}",
        f"intend, done {path}",
        f"move {path}",
        f"flush {toys.RAW}",
        "set_state done",
        f"flush {LEDGER}",
        "set_state undoing",
        f"flush {LEDGER}",
        "set_state, done undoing",
        f"move {path}",
        f"flush {toys.RAW}",
        "set_state undone",
    )
    demand_flushed_ends(events, LEDGER)
    link = next(event for event in events.all if event.startswith("link .regraft/"))
    assert events.at(f"intend, done {path}") < events.at(link) < events.at(f"move {path}")
