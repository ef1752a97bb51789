"""What a disk that fails, or a power cut, must not make of a run: a wrong verdict, a lost undo, a half-made end."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import codex_mem_store as notes
import pytest
from codex_mem_vectors import fill, held, right, state
from faults import INTERRUPTED, STOPPED, said
from harness import NOW, run
from planted_v2 import KB, index, plant
from stand_ins import Disk, on_disk
from toys import contents

from checks.cherry_v2 import schema
from regraft.disk import durable, untrusted_sqlite, writable
from regraft.formats import cherry_preview
from regraft.formats.cherry_preview import IndexSummary
from regraft.formats.codex_mem.sidecar import SidecarUnreadable
from regraft.ledger.ledger import ChangeLog
from regraft.ledger.values import WORK
from repair.changes import files
from repair.codex_mem.note_vectors import NotesScope
from repair.embedding.filling import Filling


@pytest.fixture
def store(healthy: Path, tmp_path: Path) -> Path:
    """Return a library with a unit of another id, which ``repair`` mends."""
    copy = shutil.copytree(healthy, tmp_path / "library")
    shutil.rmtree(copy / ".regraft", ignore_errors=True)
    plant("another unit id", copy)
    return copy


def failing(*_: object, **__: object) -> Any:
    raise apsw.IOError("disk I/O error")


def bad_sector(*_: object, **__: object) -> Any:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


# --- what can be taken back stays -------------------------------------------------------------------------------------


def test_what_takes_a_run_back_stays_where_the_ledger_cannot_be_read(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change was made, and from then on the disk gives nothing of the ledger."""
    old = contents(store)

    def set_state(*_: object) -> None:
        for name in ("every", "open_changes"):
            monkeypatch.setattr(ChangeLog, name, failing)
        failing()

    with monkeypatch.context() as patch:
        patch.setattr(ChangeLog, "set_state", set_state)
        message = said(run("repair", store, "--json"), "ChangesStopped", STOPPED)
    monkeypatch.undo()
    assert "changes made so far: unknown" in message
    assert (store / ".regraft" / "ledger.sqlite").is_file()
    assert run("repair", store).status == 0
    while run("undo", store, "-y").status == 0:
        pass
    assert contents(store) == old


def test_a_refusal_after_a_change_is_a_stop_where_the_ledger_cannot_be_read(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told that nothing was written."""

    def looked_at_again(*_: object) -> None:
        for name in ("every", "open_changes"):
            monkeypatch.setattr(ChangeLog, name, failing)
        bad_sector()

    monkeypatch.setattr("repair.changes.store.write_checks.refuse_store_links", checked_once(looked_at_again))
    said(run("repair", store, "--json"), "ChangesStopped", STOPPED)


def checked_once(then: Callable[..., object]) -> Callable[..., object]:
    """Return what lets the first call go, and does something else at the next one."""
    calls: list[object] = []

    def called(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) > 1:
            then(*arguments)

    return called


# --- no wrong verdict -------------------------------------------------------------------------------------------------


class FullForScratch(Disk):
    """A disk that has no room for what is tried out."""

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        return _Full(self.real, name, flags, self) if "scratch" in path else apsw.VFSFile(self.real, name, flags)


class _Full(apsw.VFSFile):
    def __init__(self, real: str, name: Any, flags: list[int], disk: Disk) -> None:
        self._disk = disk
        super().__init__(real, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.fail(apsw.FullError("database or disk is full"))


def test_a_full_disk_says_nothing_of_a_layout(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A layout that another test found right would not be tried again.
    monkeypatch.setattr(schema, "_RIGHT", set())
    with on_disk(FullForScratch()):
        found = run("check", store, "--json").document["findings"]
    assert "schema.missing" not in {one["name"] for one in found}
    assert {one["subject"] for one in found} == {"structure: database or disk is full"}


def test_a_base_that_could_not_be_read_at_first_is_named(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look fails; when it is read again, the disk gives it."""
    seen: list[Path] = []
    real = cherry_preview._read_summary

    def looked_at(path: Path, **more: bool) -> IndexSummary:
        seen.append(path)
        if seen == [index(store)]:
            bad_sector()
        return real(path, **more)

    monkeypatch.setattr(cherry_preview, "_read_summary", looked_at)
    done = run("repair", store, "--json")
    assert done.status == 1
    assert [(one["finding"], one["base"]) for one in done.document["left"]] == [("file.unreadable", KB)]
    assert "could not be read when it was looked for" in done.document["left"][0]["reason"]


def test_a_mark_is_not_made_of_bytes_because_the_disk_fails(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared later with one of rows, it would differ."""
    monkeypatch.setattr(files, "_rows_hash", failing)
    with pytest.raises(apsw.IOError):
        files.fingerprint(index(store))


def test_a_log_that_cannot_be_read_is_not_passed_over(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index(store).with_name("index.sqlite-wal").write_bytes(b"\x37\x7f\x06\x82" + bytes(100))
    real = Path.open

    def opened(self: Path, *more: Any, **named: Any) -> Any:
        return bad_sector() if self.name.endswith("-wal") else real(self, *more, **named)

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        untrusted_sqlite.find_companions(index(store))


@pytest.mark.parametrize(
    "work",
    [
        durable.sync_tree,
        lambda path: durable.copy_tree(path, path.with_name("copy")),
        files.fingerprint,
        files.find_databases,
    ],
    ids=["flush", "copy", "mark", "databases"],
)
def test_a_folder_that_cannot_be_listed_is_not_taken_for_empty(
    work: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    real = os.scandir

    def scandir(path: Any) -> Any:
        return bad_sector() if str(path).endswith("inner") else real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with writable.allow_writes(tmp_path), pytest.raises(OSError, match=os.strerror(errno.EIO)):
        work(folder)


def test_a_disk_that_fails_is_no_fault_of_regraft(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever SQLite meets it: no command has to think of that."""
    monkeypatch.setattr("repair.changes.session.demand_not_running", failing)
    message = said(run("repair", store, "--json"), "StoppedBySystem", STOPPED)
    assert message == "Stopped by the system: disk I/O error."


# --- nothing half-made ------------------------------------------------------------------------------------------------


def test_a_rebuild_that_was_stopped_at_its_very_end_is_finished_by_the_next(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All vectors are there, and the sidecar still says that it is being rebuilt."""
    path = notes.write(tmp_path / "codex")
    assert fill(path, config).status == 0

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(NotesScope, "record_completion", interrupted)
        assert fill(path, config, command="rebuild").status == INTERRUPTED
    assert (state(path), held(path)) == ("rebuilding", right(path))
    assert fill(path, config, command="rebuild").status == 0
    assert state(path) == "ready"


def test_a_sidecar_that_the_disk_does_not_give_stops_the_run(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = notes.write(tmp_path / "codex")
    assert fill(path, config).status == 0
    notes.edit(path, notes.note_id(0, 0))

    def filled(*_: object) -> None:
        raise SidecarUnreadable("it cannot be read (disk I/O error)") from apsw.IOError("disk I/O error")

    monkeypatch.setattr(Filling, "run", filled)
    message = said(fill(path, config, "--json"), "BackfillStopped", STOPPED)
    assert "the file of the vectors: it cannot be read (disk I/O error)" in message


def test_a_pack_removes_what_a_killed_run_left_beside_it(healthy: Path, tmp_path: Path) -> None:
    """Killed between giving the file its name and taking the first one away."""
    target = tmp_path / "bases.zip"
    assert run("pack", healthy, target, "--now", NOW).status == 0
    part = tmp_path / ".bases.zip.regraft-part"
    part.hardlink_to(target)
    assert run("pack", healthy, target, "--now", NOW, "--dry-run").status == 0
    assert part.exists()
    assert run("pack", healthy, target, "--now", NOW).status == 0
    assert not part.exists()
    assert target.exists()


def test_an_undo_that_is_refused_removes_what_a_killed_one_was_making(store: Path) -> None:
    assert run("repair", store).status == 0
    assert run("undo", store, "-y").status == 0
    work = store / ".regraft" / WORK / "back-1"
    work.mkdir(parents=True)
    assert said(run("undo", store, "-y", "--json"), "RunUnknown", 2)
    assert not work.parent.exists()
