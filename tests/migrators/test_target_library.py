"""A target library: how bases, catalog and report are published, settled after a kill, and recognized later."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import msgspec
import pytest
from faults import INTERRUPTED, REFUSED, STOPPED, fails
from harness import NOW_MS
from planned_bases import entry_of, planned
from v1 import note

from migrators.pipeline import preflight, publication
from migrators.pipeline import run as runs
from migrators.pipeline import session as sessions
from migrators.pipeline.publication import BaseEntry, TargetLibrary, base_folder, catalog_fingerprint, pack_entry
from migrators.pipeline.session import Session
from regraft.disk import durable, writable
from regraft.errors import VerificationFailed
from regraft.identity import replace
from regraft.ledger import ledger as ledgers
from regraft.ledger.ledger import Ledger, LedgerEntry
from regraft.report.document import Run

PLAN, OTHER = planned(), planned("other", note("n", "L"), name="Other base")
MARK = "0" * 40


@pytest.fixture
def library(tmp_path: Path) -> Iterator[tuple[TargetLibrary, Ledger]]:
    """A library in which a run has begun."""
    path = tmp_path / "library"
    (path / ".regraft").mkdir(parents=True)
    run = Run(command="migrate", target=path)
    with writable.allow_writes(path), ledgers.open_exclusive(path) as book:
        book.begin_run("migrate", "source", run.id)
        yield TargetLibrary(path, run.id), book


def items(plan: Any = PLAN) -> list[Any]:
    return list(runs.planned_rows(plan, {}, NOW_MS))


def stage(place: TargetLibrary, content: str, base_id: str = PLAN.draft.id) -> None:
    folder = place.staging / base_id / "raw"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text(content, "utf-8")


def entry(plan: Any = PLAN, **more: Any) -> BaseEntry:
    return replace(entry_of(plan), has_files=True, **more)


def publish(place: TargetLibrary, book: Ledger, content: str, plan: Any = PLAN, **more: Any) -> None:
    stage(place, content, plan.draft.id)
    place.publish_base(book, entry(plan, **more), MARK, items(plan))


def base_text(place: TargetLibrary, base_id: str = PLAN.draft.id) -> str | None:
    path = place.path / "KnowledgeBase" / base_id / "raw" / "a.txt"
    return path.read_text("utf-8") if path.exists() else None


# --- bases -----------------------------------------------------------------------------------------------------------


def test_a_base_is_moved_into_place_and_recorded(library: tuple[TargetLibrary, Ledger]) -> None:
    place, book = library
    publish(place, book, "first")
    assert base_text(place) == "first"
    publish(place, book, "second", position=3)
    assert base_text(place) == "second"
    assert list(place.replaced.iterdir()) == []
    assert list(place.staging.iterdir()) == []
    known = publication.read_entry(book.entries()[PLAN.draft.id])
    assert (known.position, known.record.base.id) == (3, PLAN.draft.id)
    assert book.entries()[PLAN.draft.id].fingerprint == MARK
    assert list(publication.read_items(book.parts(PLAN.draft.id), PLAN.draft.id)) == items()
    assert book.open_steps() == []
    place.update_position(book, PLAN.draft.id, 7)
    moved = book.entries()[PLAN.draft.id]
    assert (publication.read_entry(moved).position, moved.fingerprint) == (7, MARK)
    # A base without files has no folder.
    place.publish_base(book, replace(entry_of(OTHER), has_files=False), MARK, items(OTHER))
    assert not (place.path / "KnowledgeBase" / OTHER.draft.id).exists()
    assert set(book.entries()) == {PLAN.draft.id, OTHER.draft.id}


def test_a_base_in_its_place_is_on_the_disk_before_it_is_recorded(
    library: tuple[TargetLibrary, Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, book = library
    events: list[tuple[str, object]] = []

    def told(owner: Any, name: str) -> None:
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *some: (events.append((name, some[-1])), real(*some))[1])

    told(publication.durable, "replace")
    told(publication.durable, "sync_folder")
    told(book, "done")
    publish(place, book, "first")
    events.clear()
    publish(place, book, "second")
    at = [name for name, what in events if what in (base_folder(place.path, PLAN.draft.id), place.path)]
    assert at == ["replace", "sync_folder"]
    assert events[-1][0] == "done"
    told(publication.durable, "sync_file")
    events.clear()
    place.publish_catalog(book)
    staged = place.staging / "catalog.sqlite"
    assert [one for one in events if one[1] in (staged, place.catalog)] == [
        ("sync_file", staged),
        ("replace", place.catalog),
    ]


def test_what_is_built_is_dropped_and_what_was_moved_aside_is_kept(library: tuple[TargetLibrary, Ledger]) -> None:
    place, _ = library
    stage(place, "staged")
    for folder in (place.work, place.replaced):
        folder.mkdir(parents=True)
    place.discard_staged()
    assert sorted(path.name for path in place.own.iterdir() if path.is_dir()) == ["replaced"]


def test_an_entry_of_an_earlier_version_has_what_it_lacks_as_it_was_then() -> None:
    known = replace(entry(), carry_text=True, index_hash="f" * 64, raw_hash="1" * 64, command="import")
    fields = json.loads(pack_entry(known, MARK).detail)
    for name in ("found", "command", "carry_text", "index_hash", "raw_hash"):
        del fields[name]
    found = publication.read_entry(LedgerEntry(MARK, json.dumps(fields).encode()))
    assert (found.command, found.carry_text, found.index_hash, found.raw_hash) == ("migrate", False, "", "")
    assert found == entry()


def test_bytes_are_compared_if_a_time_tells_of_a_change_or_all_is_verified(tmp_path: Path) -> None:
    folder = base_folder(tmp_path, PLAN.draft.id)
    index, raw = folder / ".cherry" / "index.sqlite", folder / "raw" / "a.txt"
    for path in (index, raw):
        path.parent.mkdir(parents=True)
    raw.write_text("a text")
    with closing(sqlite3.connect(index)) as db, db:
        db.execute("CREATE TABLE one (x)")
    known = entry(
        index_mark=publication.index_mark(folder),
        index_hash=publication.index_hash(folder),
        raw_mark=publication.raw_mark(folder),
        raw_hash=publication.raw_hash(folder),
    )

    def states(known: BaseEntry) -> tuple[str, str]:
        return tuple(
            publication.base_state(tmp_path, PLAN.draft.id, known, **more).value for more in ({}, {"verify": True})
        )

    assert states(known) == ("whole", "whole")
    unhashed = replace(known, index_hash="", raw_hash="")
    assert states(unhashed) == ("whole", "changed")
    for path, content, damaged in ((raw, b"a TEXT", "changed"), (index, index.read_bytes(), "damaged")):
        kept, times = path.read_bytes(), path.stat()
        # A page that is none, or another text of the same size.
        path.write_bytes(content if path is raw else content[:4096] + b"\xa5" * (len(content) - 4096))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert states(known) == ("whole", damaged)
        os.utime(path, ns=(1, 1))
        assert states(known) == (damaged, damaged)
        path.write_bytes(kept)
        assert states(known) == ("whole", "whole")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with closing(sqlite3.connect(index)) as db, db:
        db.execute("INSERT INTO one VALUES (1)")
    assert states(known) == ("changed", "changed")
    index.unlink()
    assert states(known) == ("gone", "gone")
    assert states(replace(known, index_mark=None)) == ("whole", "whole")
    raw.unlink()
    raw.parent.rmdir()
    assert states(replace(known, index_mark=None)) == ("gone", "gone")
    assert states(replace(known, index_mark=None, raw_mark="")) == ("whole", "whole")


#: What is in place and what is aside; whether the base has files and replaces one; then whether it is recorded and what
#: is in place.
KILLED: dict[str, tuple[str | None, str | None, bool, str, bool, str | None]] = {
    "the new one is not there yet": (None, None, True, "publish", False, None),
    "the new one is there": ("new", None, True, "publish", True, "new"),
    "there are no files": (None, None, False, "publish", True, None),
    "the old one is in place": ("old", None, True, "replace", False, "old"),
    "the old one is aside": (None, "old", True, "replace", False, "old"),
    "the new one is in its place": ("new", "old", True, "replace", True, "new"),
    "the new one has no files": (None, "old", False, "replace", True, None),
}


@pytest.mark.parametrize("name", KILLED)
def test_a_base_that_was_about_to_be_published_is_there_or_not(
    name: str, library: tuple[TargetLibrary, Ledger]
) -> None:
    there, aside, has_files, action, is_recorded, after = KILLED[name]
    place, book = library
    for folder, content in (
        (place.path / "KnowledgeBase" / PLAN.draft.id, there),
        (place.replaced / PLAN.draft.id, aside),
    ):
        if content is not None:
            (folder / "raw").mkdir(parents=True)
            (folder / "raw" / "a.txt").write_text(content, "utf-8")
    stage(place, "staged")
    (place.work / "vectors").mkdir(parents=True)
    made = replace(entry_of(PLAN), has_files=has_files)
    book.intend(PLAN.draft.id, action, pack_entry(made, MARK), map(msgspec.json.encode, items()))
    place.recover(book)
    assert (PLAN.draft.id in book.entries(), base_text(place)) == (is_recorded, after)
    assert book.open_steps() == []
    assert [path.name for path in place.own.iterdir() if path.is_dir()] == []
    assert [one.status for one in book.changes.runs()] == ["stopped"]


# --- catalog and report ----------------------------------------------------------------------------------------------


def test_the_catalog_has_all_bases_in_the_order_of_the_source(library: tuple[TargetLibrary, Ledger]) -> None:
    place, book = library
    assert not place.catalog_is_current(book.entries())
    publish(place, book, "x", position=1)
    publish(place, book, "y", OTHER, position=0)
    place.publish_catalog(book)
    assert place.catalog_is_current(book.entries())
    assert place.is_catalog_unchanged(book)
    with closing(sqlite3.connect(place.catalog)) as db:
        assert db.execute("SELECT name FROM knowledge_base ORDER BY rowid").fetchall() == [
            ("Other base",),
            ("My base",),
        ]
        assert sorted(db.execute("SELECT id FROM knowledge_item")) == sorted(
            (one.id,) for plan in (PLAN, OTHER) for one in plan.items
        )
    publish(place, book, "z", position=2)
    assert not place.catalog_is_current(book.entries())
    # What another process left of a catalog is no part of this one, and the folder may be gone.
    (place.staging / "catalog.sqlite").write_text("a part of a catalog")
    place.publish_catalog(book)
    assert place.is_catalog_unchanged(book)
    place.staging.rmdir()
    place.publish_catalog(book)
    assert place.catalog_is_current(book.entries())
    place.catalog.unlink()
    assert not place.catalog_is_current(book.entries())


@pytest.mark.parametrize("how", ["another row", "a log", "gone", "not recorded"])
def test_a_catalog_of_other_bytes_is_noticed(how: str, library: tuple[TargetLibrary, Ledger]) -> None:
    place, book = library
    publish(place, book, "x")
    if how != "not recorded":
        place.publish_catalog(book)
        assert place.is_catalog_unchanged(book)
    if how == "another row":
        with closing(sqlite3.connect(place.catalog)) as db, db:
            db.execute("UPDATE knowledge_base SET name = 'mine'")
    elif how == "a log":
        (place.path / "catalog.sqlite-wal").write_bytes(bytes.fromhex("377f0682") + bytes(508))
    elif how == "gone":
        place.catalog.unlink()
        with pytest.raises(OSError, match=r"catalog\.sqlite"):
            place.is_catalog_unchanged(book)
        return
    assert not place.is_catalog_unchanged(book)


@pytest.mark.parametrize("how", ["its time", "written again", "another version", "another row", "more bases"])
def test_a_catalog_that_an_earlier_version_recorded_is_compared_with_one_written_again(
    how: str, library: tuple[TargetLibrary, Ledger]
) -> None:
    place, book = library
    publish(place, book, "x")
    place.publish_catalog(book)
    status = place.catalog.stat()
    # Versions that kept no hash recorded size and time alone.
    book.amend("catalog", json.dumps([status.st_size, status.st_mtime_ns]).encode())
    raw = bytearray(place.catalog.read_bytes())
    if how == "another version":
        raw[24:28] = raw[92:96] = b"\1\2\3\4"
        raw[96:100] = b"\0\0\0\1"
    if how == "another row":
        with closing(sqlite3.connect(place.catalog)) as db, db:
            db.execute("UPDATE knowledge_base SET name = 'mine'")
    elif how == "more bases":
        publish(place, book, "y", OTHER)
    else:
        place.catalog.write_bytes(raw)
    if how != "its time":
        os.utime(place.catalog, ns=(1, 1))
    else:
        os.utime(place.catalog, ns=(1, status.st_mtime_ns))
    assert place.is_catalog_unchanged(book) == (how in ("its time", "written again", "another version"))


def test_the_counters_and_the_version_of_sqlite_are_no_content_of_a_catalog(tmp_path: Path) -> None:
    content = bytes(range(1, 120))
    (tmp_path / "catalog.sqlite").write_bytes(content)
    assert publication._without_versions(tmp_path / "catalog.sqlite") == (
        content[:24] + bytes(4) + content[28:92] + bytes(8) + content[100:]
    )


@pytest.mark.parametrize("by", ["its hash", "its time"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_catalog_that_was_about_to_be_published_is_there_or_not(
    by: str, is_there: bool, library: tuple[TargetLibrary, Ledger]
) -> None:
    place, book = library
    publish(place, book, "x")
    place.publish_catalog(book)
    known = json.loads(book.entries()["catalog"].detail)
    mark = known if by == "its hash" else known[:2]
    if not is_there:
        mark = [mark[0] + 1, *mark[1:2], *(["f" * 64] if by == "its hash" else [])]
    book.intend("catalog", "publish", LedgerEntry(MARK, msgspec.json.encode(mark)))
    place.recover(book)
    assert (book.entries()["catalog"].fingerprint == MARK) == is_there
    place.catalog.unlink()
    book.intend("catalog", "publish", LedgerEntry("1" * 40, msgspec.json.encode(mark)))
    place.recover(book)
    assert book.entries()["catalog"].fingerprint != "1" * 40


def test_the_report_is_current_as_long_as_its_bases_and_files_are(library: tuple[TargetLibrary, Ledger]) -> None:
    place, book = library
    publish(place, book, "x")
    assert not place.report_is_current(book.entries())
    place.publish_report(book, "{}", "<p>")
    assert (place.path / "report.json").read_text("utf-8") == "{}"
    assert (place.path / "report.html").read_text("utf-8") == "<p>"
    assert list(place.staging.iterdir()) == []
    place.staging.rmdir()
    place.publish_report(book, "{}", "<p>")
    assert place.report_is_current(book.entries())
    assert book.entries()["report"].fingerprint == catalog_fingerprint(book.entries())
    (place.path / "report.html").unlink()
    assert not place.report_is_current(book.entries())
    place.publish_report(book, "{}", "<p>")
    publish(place, book, "y", OTHER)
    assert not place.report_is_current(book.entries())
    # A report that was about to be written is written again.
    book.intend("report", "publish", LedgerEntry("1" * 40, b""))
    place.recover(book)
    assert book.open_steps() == []
    assert book.entries()["report"].fingerprint != "1" * 40


# --- a run -----------------------------------------------------------------------------------------------------------


def at_work(place: TargetLibrary, book: Ledger | None) -> Session:
    return Session(
        path=place.path,
        run=Run(command="migrate", target=place.path),
        entries={} if book is None else book.entries(),
        work=place.work,
        target=place,
        ledger=book,
    )


def kept(plan: Any, recorded: int, position: int) -> Any:
    unchanged = None if recorded < 0 else entry(plan, position=recorded)
    return SimpleNamespace(base_id=plan.draft.id, position=position, unchanged=unchanged)


def test_a_library_is_up_to_date_if_all_of_it_is_and_in_order(library: tuple[TargetLibrary, Ledger]) -> None:
    place, book = library
    publish(place, book, "x", position=0)
    publish(place, book, "y", OTHER, position=1)
    in_order = [kept(PLAN, 0, 0), kept(OTHER, 1, 1)]
    assert not at_work(place, book).is_up_to_date(in_order)
    place.publish_catalog(book)
    assert not at_work(place, book).is_up_to_date(in_order)
    place.publish_report(book, "{}", "<p>")
    at = at_work(place, book)
    assert at.is_up_to_date(in_order)
    assert at.is_up_to_date([])
    assert not at_work(place, None).is_up_to_date(in_order)
    assert not at.is_up_to_date([kept(OTHER, 1, 0), kept(PLAN, 0, 1)])
    assert not at.is_up_to_date([kept(PLAN, 0, 0), kept(OTHER, 0, 1)])
    assert not at.is_up_to_date([kept(PLAN, 0, 0), kept(OTHER, -1, 1)])


def test_bases_that_stay_get_the_positions_of_the_source(library: tuple[TargetLibrary, Ledger]) -> None:
    place, book = library
    publish(place, book, "x", position=0)
    publish(place, book, "y", OTHER, position=1)
    at = at_work(place, book)
    place.staging.rmdir()
    at.begin("the source", [kept(PLAN, 0, 1), kept(OTHER, 1, 1), kept(planned("new"), -1, 2)])
    positions = {name: publication.read_entry(one).position for name, one in book.entries().items()}
    assert positions == {PLAN.draft.id: 1, OTHER.draft.id: 1}
    assert (at.began, len(at.jobs), place.staging.is_dir()) == (True, 3, True)
    assert [(one.command, one.source) for one in book.changes.runs()][-1] == ("migrate", "the source")


def test_a_run_ends_with_catalog_report_and_its_record(library: tuple[TargetLibrary, Ledger]) -> None:
    place, book = library
    at = at_work(place, book)
    stage(place, "x")
    at.publish(entry(), MARK, items())
    assert (at.published, base_text(place), place.catalog.exists()) == (1, "x", False)
    (place.work / "vectors").mkdir(parents=True)
    done = at.finish(made_report(place))
    assert (done.wrote, done.report.head.run.finished_at is not None) == (True, True)
    assert (
        json.loads((place.path / "report.json").read_text("utf-8"))["run"]["finished_at"]
        == done.report.head.run.finished_at
    )
    assert "<html" in (place.path / "report.html").read_text("utf-8")
    assert place.is_catalog_unchanged(book)
    assert place.report_is_current(book.entries())
    assert [one.status for one in book.changes.runs()] == ["finished"]
    assert [path.name for path in place.own.iterdir() if path.is_dir()] == []
    # A catalog with the same bases is not written again.
    before = place.catalog.stat().st_ino
    book.begin_run("migrate", "source", Run(command="migrate").id)
    at_work(place, book).finish(made_report(place))
    assert place.catalog.stat().st_ino == before


def test_a_run_with_nothing_to_write_ends_without_writing(library: tuple[TargetLibrary, Ledger]) -> None:
    place, book = library
    before = sorted(place.path.rglob("*"))
    done = at_work(place, book).without_writing(made_report(place))
    assert (done.wrote, done.report.head.run.finished_at is not None) == (False, True)
    assert sorted(place.path.rglob("*")) == before


def test_room_is_asked_for_after_the_catalog(
    library: tuple[TargetLibrary, Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, book = library
    asked: list[object] = []
    monkeypatch.setattr(preflight, "check_catalog", lambda *some: asked.append(some))
    monkeypatch.setattr(preflight, "check_space", lambda *some: asked.append(some) or 77)
    report = sessions.structs.replace(made_report(place), preflight=None)
    room = at_work(place, book).with_room(report, 55).preflight
    assert room is not None
    assert (room.bytes_needed, room.bytes_free) == (55, 77)
    assert asked == [(place, book), (place.path, 55)]
    at_work(place, None).with_room(report, 55)
    assert asked[2:] == [(place.path, 55)]
    with pytest.raises(ValueError, match="a dry run has no ledger"):
        at_work(place, None).publish(entry(), MARK, [])


def made_report(place: TargetLibrary) -> Any:
    return runs.report.build_report(Run(command="migrate", target=place.path), [], runs.report.Counter(), [])


def test_what_was_finished_counts_bases_that_are_new_or_stay(
    library: tuple[TargetLibrary, Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, book = library
    publish(place, book, "x", position=0)
    at = at_work(place, book)
    at.jobs = [kept(PLAN, 0, 0), kept(OTHER, -1, 1), kept(planned("third"), -1, 2)]
    assert sessions._count_finished(at, book) == 1
    publish(place, book, "y", OTHER, position=1)
    assert sessions._count_finished(at, book) == 2
    at.published = 5

    def failing(_: Ledger) -> Any:
        raise apsw.IOError("disk I/O error")

    monkeypatch.setattr(Ledger, "entries", failing)
    assert sessions._count_finished(at, book) == 6


@pytest.mark.parametrize(
    ("error", "code", "status", "said"),
    [
        (KeyboardInterrupt(), "Interrupted", INTERRUPTED, "1"),
        (OSError(errno.EIO, "Input/output error"), "StoppedMidway", STOPPED, "writing the library.*Input/output error"),
        (apsw.FullError("disk full"), "StoppedMidway", STOPPED, "disk full"),
        (VerificationFailed(base="kb", reason="other rows"), "VerificationFailed", STOPPED, "other rows"),
    ],
)
def test_a_run_that_is_stopped_leaves_what_it_finished_and_nothing_else(
    error: BaseException, code: str, status: int, said: str, library: tuple[TargetLibrary, Ledger]
) -> None:
    place, book = library
    at = at_work(place, book)
    at.jobs = [kept(PLAN, -1, 0), kept(OTHER, -1, 1)]
    with fails(code, status, match=said), sessions._clean_up_on_failure(at, book):
        publish(place, book, "x")
        stage(place, "half", OTHER.draft.id)
        (place.work / "vectors").mkdir(parents=True)
        book.intend(OTHER.draft.id, "publish", pack_entry(entry(OTHER), MARK))
        raise error
    assert (base_text(place), base_text(place, OTHER.draft.id)) == ("x", None)
    assert [path.name for path in place.own.iterdir() if path.is_dir()] == []
    assert book.open_steps() == []
    assert book.changes.runs()[-1].status == ("interrupted" if code == "Interrupted" else "stopped")


def test_a_run_that_ends_well_leaves_no_empty_folders(library: tuple[TargetLibrary, Ledger]) -> None:
    place, book = library
    with sessions._clean_up_on_failure(at_work(place, book), book):
        place.make_staging()
        place.work.mkdir(parents=True)
        place.replaced.mkdir()
    assert [path.name for path in place.own.iterdir() if path.is_dir()] == []
    assert [one.status for one in book.changes.runs()] == ["running"]


def test_a_run_that_fails_by_a_defect_is_recorded_as_stopped(library: tuple[TargetLibrary, Ledger]) -> None:
    place, book = library
    with pytest.raises(ZeroDivisionError), sessions._clean_up_on_failure(at_work(place, book), book):
        stage(place, "half")
        raise ZeroDivisionError
    assert not place.staging.exists()
    assert [one.status for one in book.changes.runs()] == ["stopped"]


def session_of(target: Path, *, dry_run: bool = False, bytes_before_plan: int = 0) -> Any:
    return sessions.session(
        target, Run(command="migrate", dry_run=dry_run, target=target), bytes_before_plan=bytes_before_plan
    )


def test_a_run_that_is_refused_leaves_no_folder_that_it_made(tmp_path: Path) -> None:
    target = tmp_path / "new" / "library"
    with fails("NotEnoughSpace", REFUSED), session_of(target) as at:
        assert (target / ".regraft" / "ledger.sqlite").exists()
        assert (at.began, at.entries) == (False, {})
        preflight.check_space(target, 1 << 60)
    assert list(tmp_path.iterdir()) == []
    target.mkdir(parents=True)
    with fails("NotEnoughSpace"), session_of(target):
        preflight.check_space(target, 1 << 60)
    assert list(target.iterdir()) == []
    # Once it has begun to write, what it made stays.
    with fails("StoppedMidway", STOPPED), session_of(target) as at:
        at.began = True
        raise OSError(errno.EIO, "Input/output error")
    assert (target / ".regraft" / "ledger.sqlite").exists()
    with session_of(target), fails("TargetLocked"), session_of(target):
        raise AssertionError("it was entered")
    assert (target / ".regraft" / "ledger.sqlite").exists()


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_library_that_another_run_wrote_while_this_one_opened_it_stays(
    is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "new" / "library"
    real, folders = durable.make_folders, list[Path]()

    def another_run_first(path: Path, **more: Any) -> None:
        if not folders:
            folders.append(path)
            with session_of(target) as other:
                other.begin("source", [])
                assert other.ledger is not None
                publish(other.target, other.ledger, "x")
        real(path, **more)

    monkeypatch.setattr(durable, "make_folders", another_run_first)
    with fails("NotEnoughSpace") if is_refused else nullcontext(), session_of(target) as at:
        assert list(at.entries) == [PLAN.draft.id]
        if is_refused:
            preflight.check_space(target, 1 << 60)
    with ledgers.open_exclusive(target) as book:
        assert list(book.entries()) == [PLAN.draft.id]
    assert base_text(TargetLibrary(target, "x")) == "x"


def test_a_run_first_recovers_what_a_killed_one_left(tmp_path: Path) -> None:
    library = tmp_path / "library"
    (library / ".regraft").mkdir(parents=True)
    with writable.allow_writes(library), ledgers.open_exclusive(library) as book:
        run = Run(command="migrate")
        book.begin_run("migrate", "source", run.id)
        place = TargetLibrary(library, run.id)
        publish(place, book, "x")
        stage(place, "half", OTHER.draft.id)
        book.intend(OTHER.draft.id, "publish", pack_entry(entry(OTHER), MARK))
    with session_of(library) as at:
        assert (at.ledger.open_steps(), set(at.entries)) == ([], {PLAN.draft.id})
        assert not (library / ".regraft" / "staging").exists()


def test_a_library_whose_ledger_or_folders_cannot_be_trusted_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "library"
    (library / ".regraft").mkdir(parents=True)
    with writable.allow_writes(library), ledgers.open_exclusive(library) as book:
        book.begin_run("migrate", "source", Run(command="migrate").id)
        wrong = pack_entry(entry(index_hash="no hash"), MARK)
        book.done(book.intend(PLAN.draft.id, "publish", wrong))
    before = sorted(library.rglob("*"))
    with fails("LedgerUnreadable", match="invalid hash"), session_of(library):
        raise AssertionError("it was entered")
    assert sorted(library.rglob("*")) == before
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "elsewhere").mkdir()
    try:
        (other / "KnowledgeBase").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    except OSError:
        return  # Windows may not let a person make links.
    with fails("LinkInStore", match="KnowledgeBase"), session_of(other):
        raise AssertionError("it was entered")
    assert [path.name for path in other.iterdir()] == ["KnowledgeBase"]


def test_a_dry_run_writes_to_a_temporary_folder_alone(tmp_path: Path) -> None:
    with session_of(tmp_path / "library", dry_run=True) as at:
        assert (at.ledger, at.entries) == (None, {})
        assert at.work.is_dir()
        assert at.work != at.target.work
    assert list(tmp_path.iterdir()) == []
    assert not at.work.exists()


@pytest.mark.parametrize("dry_run", [True, False])
def test_an_archive_is_not_extracted_without_room(
    dry_run: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(_: Path, needed: int) -> None:
        asked.append(needed)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(preflight, "check_space", refuse)
    monkeypatch.setattr(sessions, "require_free_space", refuse)
    with (
        pytest.raises(OSError, match="No space left"),
        session_of(tmp_path / "x", dry_run=dry_run, bytes_before_plan=400),
    ):
        raise AssertionError("it was entered")
    # In the end the files and the index are there; while only planning, the files.
    assert asked == [100 if dry_run else 400]
    assert list(tmp_path.iterdir()) == []
    with session_of(tmp_path / "x", dry_run=dry_run):
        pass
    assert len(asked) == 1


def test_a_target_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(sessions.durable, "make_folders", refuse)
    with fails("TargetNotWritable", match="library.*Permission denied"), session_of(tmp_path / "library"):
        raise AssertionError("it was entered")
