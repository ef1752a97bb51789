"""Rules of a run that changes a store: which stores it takes, what it promises, and how it ends if it is stopped."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest
from faults import INTERRUPTED, REFUSED, STOPPED, fails

from checks.audit import findings
from checks.audit.collector import Level
from checks.audit.findings import Finding
from regraft.disk import durable, writable
from regraft.errors import ApplicationOpen, StoreBusy
from regraft.kinds import Kind
from regraft.ledger import ledger
from regraft.ledger.ledger import Ledger
from regraft.ledger.values import FileDetail, RecordedAction, RecordedChange, RowsDetail
from regraft.report.document import Run
from regraft.report.progress import SilentProgress
from repair.changes import execution, run, session, store, undo
from repair.changes.plan import Action, FileChange, Plan, Reclaim, Unresolved

LIBRARY, PREVIEW, NOTES = Kind.LIBRARY, Kind.PREVIEW, Kind.CODEX_MEM


def finding(name: str, base: str | None = "kb", severity: Any = "error", **more: Any) -> Finding:
    return Finding(name=name, base=base, severity=severity, message=name, **more)


# --- promises --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "breaks"),
    [
        (finding("a"), True),
        (finding("a", severity="note"), True),
        (finding("a", is_beyond_repair=True), False),
        (finding("a", "other"), False),
        (finding("b"), False),
        (finding("a", None), False),
        (finding("c", None), True),
        (finding("new", "made"), True),
        (finding("inherited", "made"), False),
        (finding("new", "made", "warning"), False),
        (finding("v1.new", "made"), False),
        (finding("new", None), False),
        (finding("a", "made", is_beyond_repair=True), True),
    ],
)
def test_what_a_run_promised_and_what_a_new_base_may_have(found: Finding, breaks: bool) -> None:
    plan = Plan(resolves={("a", "kb"), ("c", None)}, new_bases={"made": frozenset({"inherited"})})
    assert run._breaks_promise(found, plan) == breaks


class Audited:
    """A store whose audits are given, and recorded."""

    def __init__(self, kind: Kind, *found: Finding) -> None:
        self.found: Any = SimpleNamespace(kind=kind)
        self.known = found
        self.asked: list[tuple[Any, ...]] = []

    def audit(self, level: Level, bases: Any = None, names: Any = frozenset()) -> Any:
        self.asked.append((level, bases, names))
        return SimpleNamespace(findings=list(self.known))


def test_only_what_was_promised_is_audited_again() -> None:
    every = [finding("a"), finding("a", None), finding("a", "other")]
    audited: Any = Audited(LIBRARY, *every)
    plan = Plan(resolves={("a", "kb"), ("b", "kb")}, level=Level.QUICK)
    assert list(run._audit_after(audited, plan)) == every
    assert audited.asked == [(Level.QUICK, frozenset({"kb"}), frozenset({"a", "b"}))]
    # A new base is audited for everything.
    audited = Audited(LIBRARY, *every)
    list(run._audit_after(audited, Plan(resolves={("a", "kb")}, new_bases={"made": frozenset()})))
    assert audited.asked == [(Level.DEFAULT, frozenset({"kb", "made"}), frozenset())]
    # Findings of no base, and of bases that were not looked at yet.
    for kind, level in ((LIBRARY, Level.QUICK), (NOTES, Level.DEFAULT)):
        audited = Audited(kind, *every)
        assert list(run._audit_after(audited, Plan(resolves={("a", None)}))) == every
        assert audited.asked == [(level, None, frozenset({"a"}))]
    audited = Audited(LIBRARY, *every)
    assert list(run._audit_after(audited, Plan(resolves={("a", None), ("b", "kb")}))) == [*every, *every[1:]]
    assert [asked[1:] for asked in audited.asked] == [
        (frozenset({"kb"}), frozenset({"b"})),
        (None, frozenset({"a"})),
    ]
    audited = Audited(LIBRARY, *every)
    assert list(run._audit_after(audited, Plan())) == []
    assert audited.asked == []


def checked(
    found: list[Finding], plan: Plan, patch: pytest.MonkeyPatch, *, broken: str = ""
) -> tuple[list[Unresolved], list[str]]:
    """Check a run whose audit finds something; return what is left, and the runs that were undone."""
    undone: list[str] = []
    patch.setattr(run, "reopen_for_check", lambda *_: nullcontext(Audited(LIBRARY, *found)))
    patch.setattr(undo, "undo_changes", lambda root, book, run_id: undone.append(run_id))
    current: Any = SimpleNamespace(store=SimpleNamespace(path=Path("store"), root=Path("store")), ledger=None)
    asked: Any = SimpleNamespace(id="the-run", command="repair")
    if broken:
        with fails("NotMended", STOPPED, match=broken):
            run.check_resolved(current, asked, plan)
        return [], undone
    return run.check_resolved(current, asked, plan), undone


def test_a_run_that_does_not_keep_its_promise_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(
        resolves={("a", "kb"), ("b", "kb"), ("left", "kb")},
        left=[Unresolved(finding="left", reason="as planned", base="kb")],
    )
    assert checked([finding("b"), finding("a"), finding("a")], plan, monkeypatch, broken="a, b") == ([], ["the-run"])
    assert checked([finding("left"), finding("other")], plan, monkeypatch) == ([], [])
    # Nothing was promised, so nothing is audited.
    monkeypatch.setattr(run, "reopen_for_check", None)
    nothing: Any = SimpleNamespace()
    assert run.check_resolved(nothing, nothing, Plan()) == []


def test_errors_that_a_new_base_inherits_are_left_where_that_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    error, warning = (
        next(name for name, one in findings.FINDINGS.items() if one.severity == severity)
        for severity in ("error", "warning")
    )
    known = finding(error, "made", repair="regraft repair")
    plan = Plan(new_bases={"made": frozenset({error})}, lists_inherited=True)
    left, undone = checked([finding(warning, "made", "warning"), known, finding(error, "kb")], plan, monkeypatch)
    assert (left, undone) == ([Unresolved.with_remedy(known, repair="regraft repair")], [])
    plan.lists_inherited = False
    assert checked([known], plan, monkeypatch) == ([], [])


# --- before it -------------------------------------------------------------------------------------------------------


def test_a_run_needs_the_room_of_its_changes_and_of_the_largest_file_that_shrinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = FileChange(path="a", actions=(), make=None, bytes=100)
    action = Action(action="vacuum", message="x")
    plan = Plan(changes=[change, change], reclaims=[Reclaim("a", action, 7), Reclaim("b", action, 5)])
    needed = (1 << 20) + 200 + 2 * 7
    there: Any = SimpleNamespace(root=tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=needed))
    run.demand_space(there, plan)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=needed - 1))
    with fails("NotEnoughSpace", match=re.escape(str(tmp_path))):
        run.demand_space(there, plan)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    run.demand_space(there, Plan())


def test_a_plan_counts_as_long_as_the_files_that_it_was_made_from_stay(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    there: Any = SimpleNamespace(root=tmp_path)
    stamp = run.files.file_stamp(tmp_path / "a")
    run.demand_unchanged_files(there, Plan(read={"a": stamp, "missing": None}))
    for read in ({"a": None}, {"a": stamp, "missing": stamp}):
        with fails("PlanOutdated", match="it was changed in the meantime"):
            run.demand_unchanged_files(there, Plan(read=read))


def test_a_report_names_the_bases_that_it_is_about() -> None:
    there: Any = SimpleNamespace(names={"kb": "My base"})
    plan = Plan(
        outside=[Action(action="x", message="x", base="kb")], left=[Unresolved(finding="x", reason="y", base="a")]
    )
    report = run.report_plan(there, Run(command="repair"), plan, "an id")
    assert [(one.id, one.name) for one in report.bases] == [("a", "a"), ("kb", "My base")]
    assert (report.actions, report.left, report.undo) == (plan.actions, plan.left, "an id")
    assert report.salvaged is run.msgspec.UNSET
    assert report.head is not None


# --- which stores ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "kind", "accepted"),
    [
        ("repair", LIBRARY, True),
        ("rebuild", LIBRARY, False),
        ("clear-failed", LIBRARY, False),
        ("rebuild", NOTES, True),
        ("install", NOTES, False),
        ("fix", PREVIEW, True),
        ("undo", PREVIEW, True),
        ("repair", PREVIEW, False),
        ("repair", Kind.V1_BACKUP, False),
        ("history", Kind.V1_BACKUP, False),
    ],
)
def test_which_commands_change_which_stores(command: str, kind: Kind, accepted: bool) -> None:
    assert store._is_accepted(command, kind) == accepted


def test_what_to_do_with_a_store_that_is_not_changed() -> None:
    def advice(command: str, kind: Kind, *, is_archive: bool = False) -> str:
        found: Any = SimpleNamespace(kind=kind, is_archive=is_archive)
        return store._choose_advice(command, found)

    assert "regraft install" in advice("repair", Kind.V2_BACKUP, is_archive=True)
    assert advice("repair", LIBRARY, is_archive=True) == "extract it first"
    assert advice("install", Kind.V2_PROFILE, is_archive=True) == "extract it first"
    # Extracting these would only lead to another refusal.
    assert advice("repair", Kind.V1_BACKUP, is_archive=True) == "migrate it to a library with regraft migrate"
    for kind in (LIBRARY, Kind.V1_BACKUP):
        assert advice("install", kind, is_archive=True) == "name a v2 profile with --profile"
        assert advice("rescue", kind, is_archive=True) == "name a v2 profile, and v1 data with --v1"
    assert advice("install", NOTES).startswith("commands that change it: ")
    assert "rebuild" in advice("install", NOTES)
    said = advice("clear-failed", LIBRARY)
    assert said.startswith("the command is only for ")
    assert "codex-mem" in said
    assert "regraft migrate" in advice("repair", Kind.V1_EXPORT)
    assert advice("install", Kind.V1_EXPORT) == "name a v2 profile with --profile"


def located(kind: Kind = LIBRARY, catalog: str | None = "catalog.sqlite", **more: Any) -> Any:
    stores = SimpleNamespace(catalog=catalog, bases="KnowledgeBase", current=(), preview=(), **more)
    return SimpleNamespace(kind=kind, stores=stores, path=Path("/store"))


def made_store(found: Any, root: Path = Path("/store"), **more: Any) -> store.Store:
    return store.Store(path=root, root=root, found=found, **more)


def test_what_a_store_is(tmp_path: Path) -> None:
    plain = made_store(located(), chosen=frozenset({"kb"}))
    assert (plain.is_profile, plain.system, plain.own_folder) == (False, None, Path("/store/.regraft"))
    assert made_store(located(catalog="cherrystudio.sqlite")).is_profile
    assert not made_store(located(catalog=None)).is_profile
    assert (plain.wants("kb"), plain.wants("other"), plain.wants(None)) == (True, False, False)
    assert made_store(located()).wants(None)
    assert made_store(located(catalog=None)).names == {}
    assert made_store(located(), tmp_path).names == {}
    found = located()
    found.stores.current = (SimpleNamespace(base_id="kb", name="folder"), SimpleNamespace(base_id=None, name="lone"))
    assert sorted(made_store(found).stores) == ["kb", "lone"]
    noted = made_store(located(NOTES))
    assert noted.system is not None
    assert noted.system.kind is NOTES


def test_runs_of_other_stores_in_the_folder_are_none_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def past(name: str, *paths: str, source: str = "/elsewhere") -> Any:
        return SimpleNamespace(run_id=name, source=source, changes=[SimpleNamespace(path=path) for path in paths])

    every = [
        past("own", "notes.db", "other.db"),
        past("other", "other.db", source=str(Path("/store"))),
        past("nothing", source=str(Path("/store"))),
        past("nothing of theirs"),
    ]
    there = made_store(located(NOTES))
    for names, expected in ((frozenset({"notes.db"}), ["own", "nothing"]), (None, [one.run_id for one in every])):
        system = SimpleNamespace(changeable_paths=lambda _, names=names: names)
        monkeypatch.setattr(store.Store, "system", property(lambda _, system=system: system))
        assert [one.run_id for one in there.runs(every)] == expected


def test_a_store_whose_application_has_it_open_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    flushed: list[Path] = []
    system = SimpleNamespace(open_file="open.db", exclusive_access=lambda _: nullcontext())
    monkeypatch.setattr(store.Store, "system", property(lambda _: system))
    monkeypatch.setattr(store.files, "flush_log", flushed.append)
    there = made_store(located(NOTES), tmp_path)
    store.demand_not_running(there)
    assert flushed == [tmp_path / "open.db"]

    def busy(path: Path) -> None:
        raise StoreBusy(path=path)

    monkeypatch.setattr(store.files, "flush_log", busy)
    with fails("ApplicationOpen", match=r"it has open\.db open"):
        store.demand_not_running(there)
    system.open_file = None  # type: ignore[assignment]
    store.demand_not_running(there)
    monkeypatch.setattr(store.profile, "detect_running_app", lambda path: f"a lock in {path.name}")
    store.demand_not_running(there)
    monkeypatch.setattr(store.Store, "system", property(lambda _: None))
    with fails("ApplicationOpen", match=f"a lock in {tmp_path.name}"):
        store.demand_not_running(made_store(located(catalog="cherrystudio.sqlite"), tmp_path))


def test_a_store_is_opened_again_by_what_is_left_of_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(store, "open_for_change", lambda *some, **more: asked.append((*some, more["now_ms"])))
    for kind in (LIBRARY, PREVIEW):
        there = store.Store(path=tmp_path / "gone", root=tmp_path, found=located(kind), now_ms=5)
        store.reopen_for_check(there, "repair")
        (tmp_path / "there").mkdir(exist_ok=True)
        store.reopen_for_check(store.Store(path=tmp_path / "there", root=tmp_path, found=located(kind), now_ms=6), "x")
    assert asked == [
        (tmp_path, LIBRARY, "repair", 5),
        (tmp_path / "there", LIBRARY, "x", 6),
        (tmp_path, None, "repair", 5),
        (tmp_path / "there", None, "x", 6),
    ]


# --- how it ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "is_finished"),
    [
        (None, "done", True),
        (None, "undone", False),
        (None, "dropped", False),
        ("done", "done", False),
        ("done", "undone", True),
        ("done", "expired", False),
        ("intended", "done", False),
        ("undone", "undone", False),
    ],
)
def test_which_changes_a_run_made(before: str | None, now: str, is_finished: bool) -> None:
    assert session._is_finished(before, now) == is_finished


def test_what_an_error_says() -> None:
    assert session._reason(OSError(5, "Input/output error", "/store/raw")) == "/store/raw: Input/output error"
    assert session._reason(PermissionError(13, "in use", "\\\\?\\D:\\store\\raw")) == "D:\\store\\raw: in use"
    assert session._reason(OSError(5, "Input/output error")) == "Input/output error"
    assert session._reason(OSError("odd")) == "odd"
    assert session._reason(apsw.CorruptError("malformed")) == "malformed"
    for number, is_damage in ((errno.ENOTDIR, True), (errno.ELOOP, True), (errno.EIO, False), (errno.ENOSPC, False)):
        assert session.is_store_damage(OSError(number, "x")) == is_damage
    assert session.is_store_damage(apsw.CorruptError("x"))
    assert session.is_store_damage(UnicodeDecodeError("utf-8", b"x", 0, 1, "odd"))
    assert not session.is_store_damage(apsw.FullError("x"))
    for finished, code in ((None, "StoreDamaged"), ("one", "StoppedAtDamage")):
        assert session.damage_error(Path("x"), "why", finished).code == code


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[Any, Ledger]]:
    (tmp_path / ".regraft").mkdir()
    there = made_store(located(), tmp_path)
    with writable.allow_writes(tmp_path), ledger.open_exclusive(tmp_path) as book:
        yield there, book


@contextmanager
def running(there: Any, book: Ledger, changes: int, run_id: str = "20261121T120000Z-abcdef") -> Iterator[None]:
    """A run that makes some changes, and then does what is in the block."""
    with session._clean_stop(there, book):
        book.begin_run("toy", "x", run_id)
        for number in range(changes):
            change = book.changes.intend(run_id, "rows", "a.db", f"undo/{run_id}/00000{number}", RowsDetail(0, (0, 1)))
            book.changes.set_state(change, "done", 0)
        (there.own_folder / "work" / run_id).mkdir(parents=True)
        yield


@pytest.mark.parametrize(
    ("error", "changes", "code", "status", "said"),
    [
        (KeyboardInterrupt(), 2, "Interrupted", INTERRUPTED, "2"),
        (StoreBusy(path="x"), 0, "StoreBusy", REFUSED, "x"),
        (StoreBusy(path="x"), 2, "ChangesStopped", STOPPED, "so far: 2"),
        (OSError(5, "Input/output error", "/x"), 0, "ChangesStopped", STOPPED, "/x: Input/output error"),
        (OSError(errno.EROFS, "Read-only file system"), 0, "StoreNotWritable", REFUSED, "it is read-only"),
        (OSError(errno.EROFS, "Read-only file system"), 1, "ChangesStopped", STOPPED, "Read-only file system"),
        (apsw.ReadOnlyError("readonly"), 0, "StoreNotWritable", REFUSED, "it is read-only"),
        (apsw.CorruptError("malformed"), 0, "StoreDamaged", REFUSED, "malformed"),
        (apsw.CorruptError("malformed"), 2, "StoppedAtDamage", STOPPED, "changes made: 2"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_a_run_that_is_stopped_ends_as_what_it_is(
    error: BaseException, changes: int, code: str, status: int, said: str, opened: tuple[Any, Ledger]
) -> None:
    there, book = opened
    with fails(code, status, match=said), running(there, book, changes):
        raise error
    [ended] = book.changes.runs()
    assert ended.status == ("interrupted" if isinstance(error, KeyboardInterrupt) else "stopped")
    assert ended.finished_at is not None
    assert not (there.own_folder / "work").exists()


def test_a_defect_ends_its_run_and_is_shown(opened: tuple[Any, Ledger]) -> None:
    there, book = opened
    with pytest.raises(ZeroDivisionError), running(there, book, 1):
        raise ZeroDivisionError
    assert [one.status for one in book.changes.runs()] == ["stopped"]
    assert not (there.own_folder / "work").exists()


def test_what_a_stopped_run_was_making_stays_while_a_change_is_open(
    opened: tuple[Any, Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run needs it to complete or revert the change."""
    there, book = opened

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(execution, "recover", fail)
    for number, state in enumerate(("done", "intended")):
        run_id = f"20261121T12000{number}Z-abcdef"
        with fails("ChangesStopped", STOPPED), running(there, book, 1, run_id):
            book.changes.set_state(book.changes.every()[-1].change_id, state, 0)  # type: ignore[arg-type]
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        assert (there.own_folder / "work").exists() == (state == "intended")
        assert book.changes.runs()[-1].status == "stopped"


def test_a_ledger_that_nothing_was_recorded_in_is_removed_again(tmp_path: Path) -> None:
    there = made_store(located(), tmp_path)
    with writable.allow_writes(tmp_path):
        with session.open_ledger(there) as book:
            assert there.own_folder.is_dir()
        assert not there.own_folder.exists()
        # The folder was there before, so that only the ledger goes.
        there.own_folder.mkdir()
        with session.open_ledger(there):
            pass
        assert list(there.own_folder.iterdir()) == []
        # Vectors that were paid for wait below it.
        (there.own_folder / execution.RESTORING).mkdir()
        with session.open_ledger(there):
            pass
        assert (there.own_folder / "ledger.sqlite").exists()
        (there.own_folder / execution.RESTORING).rmdir()
        shutil.rmtree(there.own_folder)
        for state in ("dropped", "undone"):
            with session.open_ledger(there) as book:
                book.begin_run("toy", "x", "20261121T120000Z-abcdef")
                book.changes.record_actions("20261121T120000Z-abcdef", [Action(action="toy", message="x")])
                detail = RowsDetail(0, (0, 1))
                kept = "undo/20261121T120000Z-abcdef/000001"
                number = book.changes.intend("20261121T120000Z-abcdef", "rows", "a.db", kept, detail)
                book.changes.set_state(number, state)
            assert there.own_folder.exists() == (state == "undone")
        with session.open_ledger(there), fails("TargetLocked"), session.open_ledger(there):
            raise AssertionError("it was entered")
        assert (there.own_folder / "ledger.sqlite").exists()


def test_reading_a_store_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    there: Any = SimpleNamespace(path=Path("/store"))
    for error, said in (
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (OSError("odd"), "odd"),
        (apsw.CorruptError("malformed"), "malformed"),
    ):
        with fails("SourceUnreadable", match=rf"[/\\]store.*{said}"), session.reading_store(there):
            raise error
    with fails("StoreBusy"), session.reading_store(there):
        raise StoreBusy(path="x")
    monkeypatch.setattr(session.sqlite, "is_write_failure", lambda _: True)
    with pytest.raises(apsw.FullError), session.reading_store(there):
        raise apsw.FullError("disk full")


# --- what is reported ------------------------------------------------------------------------------------------------


def test_progress_names_each_file_and_its_bytes() -> None:
    seen: list[tuple[Any, ...]] = []
    progress: Any = SimpleNamespace(
        at=lambda name: seen.append(("at", name)),
        step=lambda *some: seen.append(("step", *some)),
    )
    changes = [FileChange(path=name, actions=(), make=None, bytes=size) for name, size in (("a", 5), ("b", 7))]
    executor: Any = SimpleNamespace(make=lambda change: seen.append(("make", change.path)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "stage", lambda *_: nullcontext())
        run.apply_changes(executor, Plan(changes=list(changes)), progress)
    assert seen == [("at", "a"), ("make", "a"), ("step", 1, 5), ("at", "b"), ("make", "b"), ("step", 1, 7)]


def test_an_undo_reports_what_it_takes_back_inside_and_outside() -> None:
    def done(name: str, subject: str | None, base: str | None = None, finding: str | None = None) -> RecordedAction:
        return RecordedAction(name, base, subject, 1, 5, finding, f"do {name}")

    cache = RecordedChange(
        change_id=1,
        run_id="r",
        means="file",
        path="idx/cache",
        state="done",
        kept="undo/r/000001",
        bytes=1,
        detail=FileDetail(new=False, mark=None, staged="x", made=None, actions=(1, 1), cache=True),
    )
    chosen: Any = SimpleNamespace(
        run_id="r",
        status="finished",
        changes=(cache,),
        actions=(
            done("first", "file", "kb"),
            done("drop-cache", "idx/cache", finding="kb.index"),
            done("read-library", "elsewhere"),
            done("write-library", "elsewhere"),
            done("last", None),
        ),
    )
    outside = run.OutsideUndo(actions=[Action(action="outside", message="undo it there", base="other")])
    there: Any = SimpleNamespace(names={})
    report = run._undo_report(there, Run(command="undo"), chosen, [cache], outside)
    assert [(one.action, one.message, one.bytes) for one in report.actions] == [
        ("first", "undo: do first", 5),
        ("last", "undo: do last", 5),
        ("outside", "undo it there", 0),
    ]
    [left] = report.left
    said = "the application has rebuilt the cache idx/cache, so the old one is deleted instead of restored"
    assert (left.finding, left.subject, left.reason) == ("kb.index", "idx/cache", said)
    assert [one.id for one in report.bases] == ["kb", "other"]
    assert (report.undone, report.undo) == ("r", None)


def test_a_run_that_keeps_nothing_deletes_what_it_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[Any] = []
    monkeypatch.setattr(execution, "expire_changes", lambda root, book, changes: gone.append((root, list(changes))))
    made = [SimpleNamespace(state="done"), SimpleNamespace(state="dropped")]
    book = SimpleNamespace(changes=SimpleNamespace(changes_of=lambda run_id: made if run_id == "r" else []))
    current: Any = SimpleNamespace(store=SimpleNamespace(root=Path("store")), ledger=book)
    asked: Any = SimpleNamespace(id="r")
    earlier: Any = SimpleNamespace(state="done", run_id="earlier")
    run._expire(current, asked, Plan(expired=[earlier]))
    run._expire(current, asked, Plan(expired=[earlier], keeps_undo=False))
    assert gone == [(Path("store"), [earlier]), (Path("store"), [earlier, made[0]])]


def opening(patch: pytest.MonkeyPatch, root: Path, **more: Any) -> Any:
    """Let a library be found at any path."""
    found = located(is_copy=more.pop("is_copy", False))
    found.is_archive, found.tree = more.pop("is_archive", False), SimpleNamespace(path=root)
    patch.setattr(store, "open_store", lambda *_: nullcontext(found))
    patch.setattr(store.audits, "resolve_base_ids", lambda _, bases: bases)
    patch.setattr(store, "find_pending_change", lambda _: more.get("pending"))
    patch.setattr(store.write_checks, "refuse_store_links", more.get("links", lambda _: None))
    return found


def test_a_store_is_opened_if_it_may_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = opening(monkeypatch, tmp_path)
    with store.open_for_change(tmp_path, None, "repair", ("kb",), 5) as there:
        assert (there.root, there.found, there.chosen, there.now_ms) == (tmp_path, found, frozenset({"kb"}), 5)
        (tmp_path / "new").mkdir()
        writable.require_writable(tmp_path / "new" / "file")
    for more, code, said in (
        ({"is_archive": True}, "NotChanged", "extract it first"),
        (
            {"is_copy": True},
            "NotChanged",
            "a copy of a catalog in a folder that is not its own.*copy it to a new folder",
        ),
        ({"pending": "it is going to be replaced"}, "ProfilePending", "it is going to be replaced"),
        (
            {"links": raising(PermissionError(13, "Permission denied", "/x"))},
            "SourceUnreadable",
            "/x.*Permission denied",
        ),
        ({"links": raising(OSError("odd"))}, "SourceUnreadable", r"[/\\]store.*odd"),
        ({"links": raising(StoreBusy(path="y"))}, "StoreBusy", "y"),
    ):
        opening(monkeypatch, tmp_path, **more)
        with fails(code, match=said), store.open_for_change(tmp_path, None, "repair"):
            raise AssertionError("it was entered")
    opening(monkeypatch, tmp_path)
    with fails("NotChanged", match="the command is only for"), store.open_for_change(tmp_path, None, "rebuild"):
        raise AssertionError("it was entered")
    # Reading the history asks for nothing of that.
    opening(monkeypatch, tmp_path, pending="it is going to be replaced", links=raising(OSError("odd")))
    with store.open_for_change(tmp_path, None, "history") as there:
        assert there.now_ms > 5


def raising(error: Exception) -> Any:
    def fail(_: object) -> None:
        raise error

    return fail


# --- whole runs on a store of one file -------------------------------------------------------------------------------


class SeenProgress(SilentProgress):
    """Records what a person is shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def start(self, what: str, rows: int, unit: str = "rows") -> None:
        self.seen.append((what, rows, unit))

    def at(self, label: str) -> None:
        self.seen.append((label,))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a store that any command may change; no catalog can be read in it."""
    place = tmp_path / "store"
    place.mkdir()
    (place / "file.txt").write_text("old")
    opening(monkeypatch, place)
    return place


def rewrite(text: str | None = "new", **more: Any) -> Plan:
    """Plan to replace the file, or to remove it."""
    made = Action(action="rewrite", message="write it again", base="kb")
    make = None if text is None else lambda path: path.write_text(text, "utf-8") and None
    return Plan(changes=[FileChange(path="file.txt", actions=(made,), make=make)], **more)


def command(root: Path, plan: Plan, **more: Any) -> run.ChangeReport:
    return run.run_command("repair", root, lambda _: plan, progress=more.pop("progress", SilentProgress()), **more)


def undone(root: Path, run_id: str | None = None, **more: Any) -> run.ChangeReport:
    return run.undo_run(root, run_id, progress=more.pop("progress", SilentProgress()), **more)


def below(root: Path) -> set[str]:
    """Return the names of the files of a store, without those of the ledger."""
    found = (path.relative_to(root).as_posix() for path in root.rglob("*"))
    return {name for name in found if not name.startswith(".regraft/ledger")}


def states(root: Path) -> list[tuple[str, str, list[str]]]:
    return [(one.command, one.status, [change.state for change in one.changes]) for one in ledger.read_runs(root)]


def test_a_run_makes_its_plan_records_it_and_can_be_undone(root: Path) -> None:
    progress, shown = SeenProgress(), []
    report = command(root, rewrite(), progress=progress, show_plan=lambda plan: (shown.append(plan), True)[1])
    assert (root / "file.txt").read_text("utf-8") == "new"
    assert [(one.action, one.message, one.base) for one in report.actions] == [("rewrite", "write it again", "kb")]
    assert ([one.id for one in report.bases], report.left, report.undo) == (["kb"], [], report.head.run.id)
    assert report.head.run.finished_at is not None
    assert [(one.undo, one.actions) for one in shown] == [(None, report.actions)]
    assert progress.seen == [("Changing", 1, "files"), ("file.txt",)]
    assert below(root) == {".regraft", ".regraft/undo", f".regraft/undo/{report.undo}", "file.txt"} | {
        f".regraft/undo/{report.undo}/000001"
    }
    assert states(root) == [("repair", "finished", ["done"])]
    [recorded] = ledger.read_runs(root)
    assert [(one.action, one.message) for one in recorded.actions] == [("rewrite", "write it again")]
    # What an undo would do, and what it does.
    before = below(root)
    dry = undone(root, dry_run=True)
    assert [(one.action, one.message) for one in dry.actions] == [("rewrite", "undo: write it again")]
    assert (dry.undone, dry.left, below(root)) == (report.undo, [], before)
    with fails("Declined"):
        undone(root, show_plan=lambda _: False)
    assert ((root / "file.txt").read_text("utf-8"), below(root), states(root)[1:]) == ("new", before, [])
    progress = SeenProgress()
    done = undone(root, progress=progress)
    assert (done.actions, done.undone, done.undo) == (dry.actions, report.undo, None)
    assert done.head.run.finished_at is not None
    assert progress.seen == [("Undoing", 1, "files")]
    assert ((root / "file.txt").read_text("utf-8"), below(root)) == ("old", {".regraft", "file.txt"})
    assert states(root) == [("repair", "finished", ["undone"]), ("undo", "finished", [])]
    with fails("RunUnknown", match="there is no run to undo"):
        undone(root)


def test_nothing_is_written_for_a_plan_that_is_only_shown_declined_or_empty(root: Path) -> None:
    assert command(root, rewrite(), dry_run=True).undo is None
    with fails("Declined"):
        command(root, rewrite(), show_plan=lambda _: False)
    report = command(
        root, Plan(left=[Unresolved(finding="a", reason="no source")]), show_plan=raising(AssertionError())
    )
    assert [(one.finding, one.reason) for one in report.left] == [("a", "no source")]
    with fails("NotEnoughSpace"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.shutil, "disk_usage", lambda _: SimpleNamespace(free=5))
        command(root, rewrite())
    assert (below(root), (root / "file.txt").read_text("utf-8")) == ({"file.txt"}, "old")


def test_a_run_without_grace_keeps_nothing_of_itself_and_of_expired_runs(root: Path) -> None:
    first = command(root, rewrite())
    [earlier] = ledger.read_runs(root)
    report = command(root, rewrite("newer", keeps_undo=False, expired=list(earlier.changes)))
    assert (report.undo, first.undo) == (None, earlier.run_id)
    assert states(root) == [("repair", "finished", ["expired"])] * 2
    assert ((root / "file.txt").read_text("utf-8"), below(root)) == ("newer", {".regraft", "file.txt"})
    # Only undo data expires.
    expired = command(root, Plan(expired=list(earlier.changes)))
    assert expired.undo is None


def test_what_a_killed_run_left_is_settled_before_a_plan_is_made_or_a_run_is_chosen(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = command(root, rewrite())
    own = root / ".regraft"

    def kill() -> None:
        """Leave the run as if it had been killed after it moved the old file away."""
        with writable.allow_writes(root), ledger.open_exclusive(root) as book:
            [change] = ledger.read_runs(root)[0].changes
            book.changes.set_state(change.change_id, "intended", 0)
        kept = own / "undo" / str(report.undo) / "000001"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("old")
        (root / "file.txt").unlink(missing_ok=True)
        (own / "work" / str(report.undo)).mkdir(parents=True)
        (own / "work" / str(report.undo) / "000001").write_text("new")

    kill()
    before = below(root)
    with fails("ChangeUnfinished", match=r"file\.txt"):
        command(root, rewrite(), dry_run=True)
    assert below(root) == before
    # A run that is not there is refused, and the file is back nevertheless.
    with fails("RunUnknown", match="there is no run nobody"):
        undone(root, "nobody")
    assert ((root / "file.txt").read_text("utf-8"), below(root)) == ("old", {".regraft", "file.txt"})
    kill()
    planned: list[str] = []
    times: list[Any] = []
    real = store.open_store
    monkeypatch.setattr(store, "open_store", lambda *given: (times.append(given), real(*given))[1])

    def plan(there: store.Store) -> Plan:
        planned.append((there.root / "file.txt").read_text("utf-8"))
        return rewrite()

    for opened_times in (2, 1):
        # The store is looked at again where something was settled.
        assert run.run_command("repair", root, plan, progress=SilentProgress()).undo is not None
        assert len(times) == opened_times
        times.clear()
        assert planned == ["old"]
        planned.clear()
        undone(root)
        times.clear()
    assert [one[1:] for one in states(root)] == [
        ("finished", ["dropped"]),
        *[("finished", ["undone"]), ("finished", [])] * 2,
    ]


def test_a_cache_that_was_rebuilt_stays_and_the_old_one_goes(root: Path) -> None:
    removed = Action(action="drop-cache", message="remove it", subject="file.txt", finding="kb.index")
    change = FileChange(path="file.txt", actions=(removed,), make=None, is_cache=True)
    report = command(root, Plan(changes=[change]))
    assert not (root / "file.txt").exists()
    (root / "file.txt").write_text("rebuilt")
    done = undone(root)
    assert ([one.finding for one in done.left], done.actions) == (["kb.index"], [])
    assert ((root / "file.txt").read_text("utf-8"), below(root)) == ("rebuilt", {".regraft", "file.txt"})
    assert [one[2] for one in states(root)] == [["undone"], []]
    assert done.undone == report.undo


def change_of(path: str, make: Any) -> FileChange:
    return FileChange(path=path, actions=(Action(action="rewrite", message="x"),), make=make)


def test_nothing_is_changed_while_any_file_is_in_use(root: Path) -> None:
    with closing(apsw.Connection(str(root / "notes.db"))) as db:
        db.execute("CREATE TABLE note (x); INSERT INTO note VALUES (1)")
        db.execute("BEGIN")
        db.execute("SELECT * FROM note").fetchall()
        plan = rewrite()
        plan.changes.append(change_of("notes.db", lambda path: path.write_text("new") and None))
        with fails("StoreBusy", match=r"notes\.db"):
            command(root, plan)
    assert ((root / "file.txt").read_text("utf-8"), below(root)) == ("old", {"file.txt", "notes.db"})


def test_a_store_is_not_changed_while_its_application_runs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / ".regraft" / "work").mkdir(parents=True)
    before = below(root)
    monkeypatch.setattr(session, "demand_not_running", raising(ApplicationOpen(path=root, sign="a lock")))
    with fails("ApplicationOpen"):
        command(root, rewrite())
    with fails("ApplicationOpen"):
        undone(root)
    assert (below(root), (root / "file.txt").read_text("utf-8")) == (before, "old")


@pytest.mark.parametrize(
    ("error", "said"),
    [(PermissionError(13, "Permission denied"), "Permission denied"), (apsw.ReadOnlyError("readonly"), "readonly")],
)
def test_a_store_whose_ledger_cannot_be_written_is_refused(
    error: Exception, said: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "make_folders", raising(error))
    with fails("StoreNotWritable", match=f"store.*{said}"):
        command(root, rewrite())
    assert below(root) == {"file.txt"}


def test_a_change_that_fails_halfway_is_taken_back_and_the_others_stay(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "other.txt").write_text("other")
    real, moved = durable.replace, []

    def replace(source: Path, target: Path) -> None:
        moved.append(target)
        if len(moved) == 2:
            # Where the new file comes in, the old one is away already.
            target.unlink()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(source, target)

    monkeypatch.setattr(durable, "replace", replace)
    plan = rewrite()
    plan.changes.append(change_of("other.txt", lambda path: path.write_text("newer") and None))
    with fails("ChangesStopped", STOPPED, match="so far: 1"):
        command(root, plan)
    assert [(root / name).read_text("utf-8") for name in ("file.txt", "other.txt")] == ["new", "other"]
    assert states(root) == [("repair", "stopped", ["done", "dropped"])]
    assert not (root / ".regraft" / "work").exists()
    assert undone(root).actions[0].message == "undo: write it again"
    assert (root / "file.txt").read_text("utf-8") == "old"


def test_a_trial_of_an_undo_tests_what_the_undo_would_meet(root: Path) -> None:
    report = command(root, rewrite())

    def outside_of(there: store.Store, chosen: Any, runs: Any) -> run.OutsideUndo:
        assert [one.run_id for one in runs] == [report.undo]
        return run.OutsideUndo(actions=[Action(action="outside", message=str(there.root), subject=chosen.run_id)])

    for dry_run in (True, False):
        if dry_run:
            (root / "file.txt").write_text("theirs")
            with fails("UndoRefused", match=r"file\.txt"):
                undone(root, dry_run=True)
            (root / "file.txt").write_text("new")
        done = undone(root, dry_run=dry_run, outside_of=outside_of)
        assert [(one.action, one.message, one.subject) for one in done.actions[1:]] == [
            ("outside", str(root), report.undo)
        ]


def test_files_shrink_at_the_end_and_what_that_freed_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([(5000, 3000), (3000, 5000)])
    (root / "index.sqlite").write_bytes(b"")

    def reclaim(_: Any, path: Path, when: str) -> Any:
        assert (path, when, (root / "file.txt").read_text("utf-8")) == (root / "index.sqlite", "always", "new")
        before, after = next(sizes)
        return SimpleNamespace(bytes_before=before, bytes_after=after)

    monkeypatch.setattr(run, "reclaim_space", reclaim)
    planned = Reclaim("index.sqlite", Action(action="vacuum", message="shrink it", bytes=9), 0)
    report = command(root, rewrite(reclaims=[planned, planned]))
    assert [(one.action, one.bytes) for one in report.actions] == [("rewrite", 0), ("vacuum", 2000), ("vacuum", 0)]
    assert report.actions[1].message == "shrank the index file from 5.0 kB to 3.0 kB"
