"""Runs that are killed, interrupted or meet a failing disk: finished bases stay whole, nothing is half, and the next
run comes to the very library that an undisturbed run makes."""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest
from extras import needs, optional
from faults import (
    INTERRUPTED,
    STOPPED,
    Hold,
    Tripwire,
    base_files,
    changed_source,
    files_of,
    forked,
    late_damage,
    left_over,
    library,
    marks,
    migrate,
    output_of,
    posix,
    said,
    small_source,
    started,
    state_of,
    untouched,
    whole_path,
    write_vectors,
)
from golden_cases import as_backup
from harness import NOW, Outcome, run
from stand_ins import KILLED, MOMENTS, Disk, FailingFlush, FullDisk, die, on_disk

from migrators.pipeline import publication
from regraft.disk import durable, trees, writable
from regraft.errors import Interrupted, SourceUnreadable, StoppedMidway
from regraft.formats.cherry_v1 import layout
from regraft.formats.cherry_v2 import index
from regraft.formats.vector_survey import StoreProblem
from regraft.formats.vector_table import VectorTable
from regraft.ledger import ledger
from regraft.ledger.ledger import Ledger


@dataclass(frozen=True)
class Journey:
    """A run to be disturbed: from what, what stands in the target before, and what must stand there in the end."""

    source: Path
    before: Path | None
    old: dict[str, dict[str, bytes]]
    new: dict[str, dict[str, bytes]]
    whole: dict[str, bytes]
    #: Gives the outcome of a run from a source into a target.
    command: Callable[..., Outcome] = migrate

    def run(self, target: Path, *more: object) -> Outcome:
        """Run it."""
        return self.command(self.source, target, *more)

    def target(self, path: Path) -> Path:
        """Make the target as it is before the run."""
        if self.before is not None:
            shutil.copytree(self.before, path)
        return path

    def holds(self, target: Path, where: object) -> None:
        """Assert that every base of the target is whole: the old one or the new one, or not there."""
        for base, files in base_files(target).items():
            assert files in (self.old.get(base), self.new[base]), (base, where)

    def ends_well(self, target: Path, where: object) -> None:
        """Assert that the next run completes the library, and leaves alone what is finished."""
        found = base_files(target)
        finished = {base: mark for base, mark in marks(target).items() if found[base] == self.new[base]}
        done = self.run(target)
        assert (done.status, done.stderr) == (1, ""), (where, done)
        assert library(target) == self.whole, where
        assert left_over(target) == [], where
        assert marks(target).items() >= finished.items(), where
        assert ledger_is_settled(target), where

    def stopped_cleanly(self, target: Path, where: object, *, may_wait: bool = False) -> None:
        """Assert that a run that could still clean up has done so, and that no base is gone.

        Where the ledger cannot be written either, the base that is replaced may wait aside for the next run.
        """
        self.holds(target, where)
        assert set(left_over(target)) <= ({"replaced"} if may_wait else set()), where
        assert base_files(target).keys() >= self.old.keys(), where


def ledger_is_settled(target: Path) -> bool:
    with ledger.open_exclusive(target) as book:
        return book.open_steps() == []


@pytest.fixture(scope="module")
def journeys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Journey]]:
    place = tmp_path_factory.mktemp("journeys")
    source, changed = small_source(place / "source"), small_source(place / "changed")
    # One base with an index is carried anew, and one without.
    changed_source(changed)
    (changed.folder / "Files" / "f4.txt").write_bytes(b"another four")
    found = {
        "first": journey_of(source.folder, place / "first"),
        "again": journey_of(changed.folder, place / "again", place / "first"),
    }
    assert found["again"].old != found["again"].new
    if optional("pyarrow"):
        for name in ("first", "again"):
            run("export", place / name, place / f"{name}.parquet")
        # At another time, so that every base of a file becomes another one.
        assert run("import", place / "first.parquet", "--to", place / "imported").status == 1
        found["import"] = journey_of(place / "again.parquet", place / "import", place / "imported", import_)
    sources = {pipeline.source: state_of(pipeline.source) for pipeline in found.values()}
    yield found
    assert {path: state_of(path) for path in sources} == sources


def journey_of(
    source: Path, target: Path, before: Path | None = None, command: Callable[..., Outcome] = migrate
) -> Journey:
    """Run undisturbed into ``target``, over a copy of ``before``, and return what it takes to do so again."""
    if before is not None:
        shutil.copytree(before, target)
    assert command(source, target).status == 1
    old = base_files(before) if before else {}
    return Journey(source, before, old, base_files(target), library(target), command)


def import_(source: Path, target: Path, *more: object) -> Outcome:
    """Import a file with a fixed time."""
    return run("import", source, "--to", target, "--now", NOW, *more)


an_import = pytest.param("import", marks=needs("parquet"))


@pytest.fixture(params=["first", "again", an_import])
def pipeline(request: pytest.FixtureRequest, journeys: dict[str, Journey]) -> Journey:
    """The first run into a new target, one that carries a changed base anew, and one that imports bases anew."""
    return journeys[request.param]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Give a folder in memory, where the system offers that: what is done hundreds of times needs no real disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 32 << 20:
        yield tmp_path
        return
    with (
        tempfile.TemporaryDirectory(prefix="regraft-tests-", dir=memory) as folder,
        writable.allow_writes(Path(folder)),
    ):
        yield Path(folder)


def targets(pipeline: Journey, place: Path) -> Iterator[tuple[int, Path]]:
    """Give target after target, numbered from 1, each as it is before the run; the one before is thrown away."""
    for number in range(1, 1000):
        target = pipeline.target(place / f"{number}")
        yield number, target
        shutil.rmtree(target, ignore_errors=True)
    raise AssertionError("the run never got through")


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def finished_of(target: Path) -> int:
    """Return how many bases the ledger has as done, also of those without a folder."""
    known = ledger.read_entries(target) if target.exists() else {}
    return len(publication.check_base_entries(known))


# --- killed --------------------------------------------------------------------------------------------------------


def killed(pipeline: Journey, target: Path, prepare: Callable[[pytest.MonkeyPatch], object]) -> bool:
    """Run in a copy of this process that may die; tell whether it did."""

    def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            held = prepare(patch)
            assert pipeline.run(target).status == 1
            del held

    status = forked(work)
    assert status in (0, KILLED)
    return status == KILLED


@pytest.mark.slow
@posix
def test_killed_at_any_step(pipeline: Journey, place: Path) -> None:
    for number, target in targets(pipeline, place):
        if not killed(pipeline, target, lambda patch, at=number: Tripwire(patch, die, at).watch_all()):
            break
        pipeline.holds(target, number)
        pipeline.ends_well(target, number)
    assert number > 50


class DyingDisk(Disk):
    """A disk at one of whose writes the process is killed."""

    def __init__(self, at: int) -> None:
        self.at = at
        super().__init__()

    def write(self, size: int) -> None:
        super().write(size)
        if self.writes == self.at:
            die()


@pytest.mark.slow
@posix
def test_killed_while_a_database_is_written(pipeline: Journey, place: Path) -> None:
    for number, target in targets(pipeline, place):
        at = 1 + (number - 1) * 5
        if not killed(pipeline, target, lambda _, at=at: DyingDisk(at)):
            break
        pipeline.holds(target, at)
        pipeline.ends_well(target, at)
    assert number > 15


@pytest.mark.thorough
@posix
def test_killed_again_while_it_recovers(journeys: dict[str, Journey], place: Path) -> None:
    """The old base is moved away, the new one not yet in place: the worst moment, and then it happens again."""
    pipeline = journeys["again"]
    worst = pipeline.target(place / "worst")
    moves: list[Path] = []

    def second_move(patch: pytest.MonkeyPatch) -> None:
        real = durable.replace

        def replace(source: Path, target: Path) -> None:
            moves.append(target)
            if len(moves) == 2:
                die()
            real(source, target)

        patch.setattr(durable, "replace", replace)

    assert killed(pipeline, worst, second_move)
    assert len(base_files(worst)) == 2
    assert {"staging", "replaced"} <= set(left_over(worst))

    def until_it_begins(patch: pytest.MonkeyPatch, at: int) -> None:
        Tripwire(patch, die, at).watch_all()
        patch.setattr(Ledger, "begin_run", lambda *_: os._exit(0))

    for at, target in targets(Journey(pipeline.source, worst, pipeline.old, pipeline.new, pipeline.whole), place):
        if not killed(pipeline, target, lambda patch, at=at: until_it_begins(patch, at)):
            break
        pipeline.holds(target, at)
        pipeline.ends_well(target, at)
    assert at > 5


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Journey:
    """A source that takes long enough to be caught in the middle."""
    place = tmp_path_factory.mktemp("larger")
    source = small_source(place / "source")
    for base, items in (("alpha", ("item-f1", "memo")), ("beta", ("item-f2", "rota"))):
        write_vectors(source.vectors(base), dict.fromkeys(items, 200), length=200)
    assert migrate(source.folder, place / "library").status == 1
    return Journey(source.folder, None, {}, base_files(place / "library"), library(place / "library"))


@pytest.mark.thorough
@pytest.mark.parametrize("moment", [name for name in MOMENTS if not name.startswith("what takes")])
def test_killed_from_outside(moment: str, larger: Journey, tmp_path: Path) -> None:
    target = tmp_path / "library"
    hold = Hold(moment, target, tmp_path)
    with started(larger.source, target, hold=hold) as process:
        hold.wait(process)
        process.kill()
        output_of(process)
    assert process.returncode == (1 if os.name == "nt" else -signal.SIGKILL)
    larger.holds(target, moment)
    larger.ends_well(target, moment)


# --- interrupted ---------------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@posix
@pytest.mark.parametrize("moment", ["the first index is begun", "a base is in place"])
def test_control_c(moment: str, larger: Journey, tmp_path: Path) -> None:
    target = tmp_path / "library"
    hold = Hold(moment, target, tmp_path)
    with started(larger.source, target, "--quiet", hold=hold) as process:
        hold.wait(process)
        process.send_signal(signal.SIGINT)
        hold.release()
        stdout, stderr = output_of(process)
    assert (process.returncode, stdout) == (INTERRUPTED, "")
    assert stderr == f"regraft: {Interrupted(finished=finished_of(target))}\n"
    larger.stopped_cleanly(target, moment)
    larger.ends_well(target, moment)


@pytest.mark.slow
def test_interrupted_at_any_step(pipeline: Journey, place: Path) -> None:
    for number, target in targets(pipeline, place):
        with pytest.MonkeyPatch.context() as patch:
            wire = Tripwire(patch, interrupt, number).watch_all()
            done = pipeline.run(target, "--json")
        if not wire.sprung:
            break
        message = said(done, "Interrupted", INTERRUPTED)
        # It never promises more than there is.
        finished = range(finished_of(target) + 1)
        assert message in [str(Interrupted(finished=count)) for count in finished], wire.where
        if target.exists():
            pipeline.stopped_cleanly(target, wire.where)
        pipeline.ends_well(target, wire.where)
    assert number > 50


def test_interrupted_before_anything_was_carried_leaves_nothing(
    journeys: dict[str, Journey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VectorTable, "survey", interrupt)
    done = migrate(journeys["first"].source, tmp_path / "new" / "library", "--json")
    assert said(done, "Interrupted", INTERRUPTED) == str(Interrupted(finished=0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["inspect", "dry run"])
def test_control_c_in_a_command_that_only_reads(
    command: str, journeys: dict[str, Journey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = journeys["first"].source
    monkeypatch.setattr(VectorTable, "survey", interrupt)
    more = ("--to", tmp_path / "library", "--dry-run") if command == "dry run" else ()
    done = run("inspect" if command == "inspect" else "migrate", source, *more, "--json")
    said(done, "Interrupted", INTERRUPTED)
    assert list(tmp_path.iterdir()) == []


# --- a disk that fails ---------------------------------------------------------------------------------------------


def stopped(
    done: Outcome, target: Path, reason: str, pipeline: Journey, where: object, *, may_wait: bool = False
) -> None:
    """Assert that a run stopped midway and says why; one that could not even begin may refuse instead."""
    if done.status == 2:
        assert reason in said(done, "TargetNotWritable", 2)
        assert pipeline.before or not target.exists(), f"a refusal leaves something behind {where}"
        return
    message = said(done, "StoppedMidway", STOPPED)
    facts = {"path": target, "doing": "writing the library", "reason": reason}
    # It never promises more than there is.
    finished = range(finished_of(target) + 1)
    assert message in [str(StoppedMidway(finished=count, **facts)) for count in finished], where
    if target.exists():
        pipeline.stopped_cleanly(target, where, may_wait=may_wait)


@pytest.mark.slow
def test_no_room_at_any_step(pipeline: Journey, place: Path) -> None:
    for number, target in targets(pipeline, place):
        with pytest.MonkeyPatch.context() as patch:
            wire = Tripwire(patch, no_space, number).watch_files()
            done = pipeline.run(target, "--json")
        if not wire.sprung:
            break
        # A folder that is there already need not be made.
        if done.status != 1 or wire.steps[number - 1] != "mkdir":
            stopped(done, target, os.strerror(errno.ENOSPC), pipeline, wire.where)
        pipeline.ends_well(target, wire.where)
    assert number > 30


@pytest.mark.thorough
@pytest.mark.parametrize("later", [False, True], ids=["one move", "all moves from then on"])
def test_a_move_that_stays_refused(
    later: bool, pipeline: Journey, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scanner never lets go of a file: the run stops, and the next one finds nothing lost and nothing mistaken."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    for number, target in targets(pipeline, place):
        moves: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", refusing(moves, number, later))
            done = pipeline.run(target, "--json")
        if len(moves) < number:
            break
        where = f"at move {number}"
        message = said(done, "StoppedMidway", STOPPED)
        assert message.startswith(f"{target}: stopped while writing the library: {os.strerror(errno.EACCES)}. ")
        pipeline.holds(target, where)
        if later:
            aside = target / ".regraft" / "replaced"
            for base in pipeline.old.keys() - base_files(target).keys():
                assert files_of(aside / base) == pipeline.old[base], where
        else:
            pipeline.stopped_cleanly(target, where)
        pipeline.ends_well(target, where)
    assert number > 4


def refusing(moves: list[str], number: int, later: bool) -> Callable[[Any, Any], None]:
    """Return a rename that refuses the n-th move, however often it is tried."""
    real = os.replace

    def replace(source: Any, target: Any, *, src_dir_fd: int | None = None, **handles: Any) -> None:
        path = whole_path(source, src_dir_fd)
        if path not in moves:
            moves.append(path)
        at = moves.index(path) + 1
        if at == number or (later and at > number):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        real(source, target, src_dir_fd=src_dir_fd, **handles)

    return replace


@pytest.mark.slow
def test_a_disk_that_fills_up(pipeline: Journey, place: Path) -> None:
    """Not one more page of any database fits, from one moment on."""
    for number, target in targets(pipeline, place):
        room = (number - 1) * 5
        with on_disk(FullDisk(room)) as disk:
            done = pipeline.run(target, "--json")
        if disk.writes <= room:
            break
        stopped(done, target, "database or disk is full", pipeline, f"after {room} writes", may_wait=True)
        pipeline.ends_well(target, f"after {room} writes")
    assert number > 15


@pytest.mark.parametrize("every", [9, pytest.param(3, marks=pytest.mark.slow)])
def test_a_flush_that_fails(pipeline: Journey, place: Path, every: int) -> None:
    with on_disk(Disk()) as disk:
        pipeline.run(pipeline.target(place / "counted"))
    # The last one belongs to closing the ledger, whose errors SQLite itself passes over.
    for at in range(1, disk.syncs, every):
        target = pipeline.target(place / f"{at}")
        with on_disk(FailingFlush(at)):
            done = pipeline.run(target, "--json")
        stopped(done, target, "disk I/O error", pipeline, f"at flush {at}", may_wait=True)
        pipeline.ends_well(target, f"at flush {at}")
        shutil.rmtree(target)


def test_an_archive_that_cannot_be_extracted(
    journeys: dict[str, Journey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for vector files of an archive is room on the target's disk."""
    pipeline, target = journeys["first"], tmp_path / "library"
    backup = as_backup(pipeline.source, tmp_path / "backup.zip")
    with monkeypatch.context() as patch, untouched(backup):
        patch.setattr(trees.ZipTree, "extract", no_space)
        done = migrate(backup, target, "--json")
    stopped(done, target, os.strerror(errno.ENOSPC), pipeline, "while extracting")
    assert migrate(backup, target).status == 1
    assert library(target) == pipeline.whole


@pytest.mark.parametrize("command", ["inspect", "migrate"])
def test_no_room_to_look_into_an_archive(
    command: str, journeys: dict[str, Journey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = as_backup(journeys["first"].source, tmp_path / "backup.zip")
    monkeypatch.setattr(trees.ZipTree, "extract", no_space)
    more = ("--to", tmp_path / "library", "--dry-run") if command == "migrate" else ()
    with untouched(tmp_path):
        message = said(run(command, backup, *more, "--json"), "StoppedBySystem", STOPPED)
    assert os.strerror(errno.ENOSPC) in message


def test_no_room_for_the_second_report_page(
    journeys: dict[str, Journey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is written by then, and nobody is told otherwise."""
    pipeline, target, page = journeys["first"], tmp_path / "library", tmp_path / "page.html"
    real = durable.put_text

    def write(path: Path, *arguments: Any, **named: Any) -> None:
        if path.parent == tmp_path:
            no_space()
        real(path, *arguments, **named)

    monkeypatch.setattr(durable, "put_text", write)
    done = pipeline.run(target, "--report", page, "--json")
    assert library(target) == pipeline.whole
    assert (done.status, len(done.document["bases"])) == (STOPPED, 3)
    assert os.strerror(errno.ENOSPC) in done.stderr
    assert "the command itself was completed" in done.stderr
    assert not page.exists()


def with_log(path: Path) -> None:
    """Leave a vector file as a killed application does: with a write-ahead log that holds its last change."""
    aside = path.with_name("aside")
    shutil.copyfile(path, aside)
    with closing(sqlite3.connect(aside)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("UPDATE vectors SET pageContent = 'from the log' WHERE id = 'L_rota_0'")
        db.commit()
        shutil.copyfile(aside, path)
        shutil.copyfile(f"{aside}-wal", f"{path}-wal")
    aside.unlink()


def test_a_log_beside_a_vector_file_is_part_of_it(tmp_path: Path) -> None:
    source = small_source(tmp_path / "source")
    with_log(source.vectors("beta"))
    backup = as_backup(source.folder, tmp_path / "backup.zip")
    with untouched(source.folder, backup):
        for path, name in ((source.folder, "one"), (backup, "two")):
            done = migrate(path, tmp_path / name, "--base", "beta", "--json")
            assert [base["outcome"] for base in done.document["bases"]] == ["written"], done.document["warnings"]
            assert left_over(tmp_path / name) == []
    assert library(tmp_path / "one") == library(tmp_path / "two")
    assert b"from the log" in b"".join(library(tmp_path / "one").values())


def test_no_room_for_a_copy_is_no_damage_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vector file with a log beside it is read from a copy: a full disk must not make its base a failed one."""
    source = small_source(tmp_path / "source")
    with_log(source.vectors("beta"))
    target = tmp_path / "library"
    with monkeypatch.context() as patch:
        patch.setattr(durable, "copy_file", no_space)
        done = migrate(source.folder, target, "--base", "beta", "--json")
    assert os.strerror(errno.ENOSPC) in said(done, "StoppedMidway", STOPPED)
    done = migrate(source.folder, target, "--base", "beta", "--json")
    assert [base["outcome"] for base in done.document["bases"]] == ["written"]


# --- a source that fails -------------------------------------------------------------------------------------------


def test_damage_of_a_text_fails_its_base_and_no_other(tmp_path: Path) -> None:
    source = small_source(tmp_path / "source")
    late_damage(source.vectors("beta"))
    with pytest.raises(StoreProblem, match="malformed"):
        layout.VECTOR_TABLE.survey(source.vectors("beta"))
    target = tmp_path / "library"
    with untouched(source.folder):
        done = migrate(source.folder, target, "--json")
    assert (done.status, done.stderr) == (1, "")
    bases = {base["legacy_id"]: base for base in done.document["bases"]}
    shown = {name: (base["outcome"], base["error"], base["index"] is None) for name, base in bases.items()}
    assert shown == {
        "alpha": ("written", None, False),
        "beta": ("failed", "missing_vector_store", True),
        "gamma": ("failed", "missing_vector_store", True),
    }
    beta = bases["beta"]
    assert beta["rows"] == {
        "read": 0,
        "carried": 0,
        "skipped": {},
        "without_vector": 0,
        "v1_deduplicated": 0,
        "restored_duplicate": 0,
    }
    assert beta["items"] == {"completed": 3}
    (why,) = [said for said in done.document["warnings"] if said["base"] == "beta" and said["code"] == beta["error"]]
    assert "cannot be read" in why["message"]
    assert "malformed" in why["message"]
    folder = target / "KnowledgeBase" / beta["id"]
    assert files_of(folder) == {"raw/same.txt": b"two", "raw/same_1.txt": b"three"}
    assert left_over(target) == []
    # Once the file is whole it is another one, and carried.
    write_vectors(source.vectors("beta"), {"item-f2": 3, "rota": 2})
    again = migrate(source.folder, target, "--json")
    assert [base["outcome"] for base in again.document["bases"]] == ["unchanged", "written", "failed"]


class Unreadable(io.RawIOBase):
    """A file on a bad sector."""

    def read(self, size: int = -1, /) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_an_upload_that_cannot_be_read_harms_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = small_source(tmp_path / "source")
    target = tmp_path / "library"
    real, real_crc32 = trees.FolderTree.open, trees.FolderTree.crc32

    def opened(self: trees.FolderTree, name: str) -> Any:
        return Unreadable() if name.endswith("f2.txt") else real(self, name)

    def crc32(self: trees.FolderTree, name: str) -> int:
        if name.endswith("f2.txt"):
            raise SourceUnreadable(path=name, reason=os.strerror(errno.EIO))
        return real_crc32(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(trees.FolderTree, "open", opened)
        patch.setattr(trees.FolderTree, "crc32", crc32)
        done = migrate(source.folder, target, "--base", "beta", "--json")
    assert done.status == 1
    (base,) = done.document["bases"]
    assert (base["outcome"], base["rows"]["carried"]) == ("written", 7)
    (why,) = [said for said in done.document["warnings"] if said["code"] == "missing_upload"]
    assert os.strerror(errno.EIO) in why["message"]
    assert sorted(path.name for path in (target / "KnowledgeBase" / base["id"] / "raw").iterdir()) == [
        "same_1.txt",
        "who comes on Monday.md",
    ]
    # Once it can be read again it is copied.
    done = migrate(source.folder, target, "--base", "beta", "--json")
    assert (done.status, done.document["bases"][0]["outcome"]) == (0, "written")
    assert (target / "KnowledgeBase" / base["id"] / "raw" / "same.txt").read_bytes() == b"two"


# --- what must never be published ----------------------------------------------------------------------------------


def ends_unpublished(done: Outcome, code: str, pipeline: Journey, target: Path) -> str:
    """Assert that a run stopped before it published its second base, and that the first one stays."""
    message = said(done, code, STOPPED)
    assert "nothing of this base was published. Please report this" in message
    assert len(base_files(target)) == 1
    pipeline.stopped_cleanly(target, code)
    return message


def test_an_index_that_is_not_what_was_read(
    journeys: dict[str, Journey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bit of a vector turns between writing and reading back."""
    pipeline, target = journeys["first"], tmp_path / "library"
    real = index.build_index

    def turning(path: Path, *more: Any, **named: Any) -> Any:
        done = real(path, *more, **named)
        if base_files(target):
            with closing(apsw.Connection(str(path))) as db:
                db.execute("UPDATE embedding SET vector_blob = zeroblob(length(vector_blob)) WHERE rowid = 3")
        return done

    with monkeypatch.context() as patch:
        patch.setattr(index, "build_index", turning)
        done = pipeline.run(target, "--json")
    assert "texts or vectors differ" in ends_unpublished(done, "VerificationFailed", pipeline, target)
    pipeline.ends_well(target, "after a failed verification")


def test_a_base_whose_rows_do_not_add_up_fails_alone(
    journeys: dict[str, Journey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row gets lost between planning and carrying."""
    pipeline, target = journeys["first"], tmp_path / "library"
    real = VectorTable.rows

    def losing(*arguments: Any, **named: Any) -> Iterator[tuple[str, bytes]]:
        rows = list(real(*arguments, **named))
        yield from rows[1:] if base_files(target) and len(rows) == 3 else rows

    with monkeypatch.context() as patch:
        patch.setattr(VectorTable, "rows", losing)
        done = pipeline.run(target, "--json")
    assert (done.status, done.stderr) == (1, "")
    errors = {base["legacy_id"]: base["error"] for base in done.document["bases"]}
    assert errors == {"alpha": None, "beta": "missing_vector_store", "gamma": "missing_vector_store"}
    said = [one["message"] for one in done.document["warnings"] if one["base"] == "beta"]
    assert any("7 rows were read, but 6 migrated and 0 skipped" in one and "lease report" in one for one in said)
    assert left_over(target) == []
    again = pipeline.run(target, "--json")
    assert {base["legacy_id"]: base["error"] for base in again.document["bases"]}["beta"] is None


def test_a_catalog_that_cannot_be_written_leaves_the_old_one(
    journeys: dict[str, Journey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = journeys["again"]
    target = pipeline.target(tmp_path / "library")
    before = (target / "catalog.sqlite").read_bytes()

    def full(*_: object) -> None:
        raise apsw.FullError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(publication, "write_catalog", full)
        done = pipeline.run(target, "--json")
    stopped(done, target, "database or disk is full", pipeline, "at the catalog")
    assert (target / "catalog.sqlite").read_bytes() == before
    pipeline.ends_well(target, "after a catalog that could not be written")
