"""The rules by which plans are put together, and by which past runs are listed, chosen and expire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest
from faults import fails
from harness import NOW_MS

from checks.audit import findings
from checks.audit.collector import Level
from checks.audit.findings import Finding
from checks.audit.sqlite_checks import ForeignObject
from regraft.identity import iso_time, replace
from regraft.ledger.ledger import RunRecord
from regraft.ledger.values import FileDetail, RecordedAction, RecordedChange, RowsDetail
from repair.changes import plan as planning
from repair.changes import schema_objects, undo
from repair.changes.options import GcOptions, ReconcileOptions, RepairOptions
from repair.changes.plan import Action, FileChange, Plan, Reclaim, RowsChange, Unresolved

DAY_MS = 86_400_000


def finding(name: str, base: str | None = None, severity: Any = "warning", **more: Any) -> Finding:
    return Finding(name=name, base=base, severity=severity, message=f"{name} is wrong", **more)


# --- plans -----------------------------------------------------------------------------------------------------------


def action(name: str, base: str | None = None, **more: Any) -> Action:
    return Action(action=name, base=base, message=name, **more)


def test_actions_are_in_the_order_in_which_they_happen() -> None:
    changes = [
        FileChange(path="a", actions=(action("first", "one"), action("second")), make=None),
        RowsChange(path="b", actions=(action("third", "two"),), apply=lambda _: None, tables=()),
    ]
    plan = Plan(
        changes=list(changes),
        reclaims=[Reclaim("c", action("fourth", "three"), 1)],
        expiring=[action("fifth")],
        outside=[action("sixth", "four")],
        left=[Unresolved(finding="embedding.orphan", reason="no", base="five"), Unresolved(finding="x", reason="no")],
    )
    assert [one.action for one in plan.actions] == ["first", "second", "third", "fourth", "fifth", "sixth"]
    assert {one.count for one in plan.actions} == {1}
    assert plan.bases == {"one", "two", "three", "four", "five"}
    other = Plan(outside=[action("seventh")], changes=[], keeps_undo=False)
    plan.add(other)
    assert [one.action for one in plan.actions][-2:] == ["sixth", "seventh"]
    assert plan.keeps_undo


def test_what_a_plan_touches_is_what_it_resolves_or_acts_on() -> None:
    change = FileChange(path="a", actions=(action("x", "kb", finding="raw.orphan"),), make=None)
    plan = Plan(changes=[change], resolves={("embedding.orphan", "kb")})
    assert plan.touches({("raw.orphan", "kb"), ("other", None)})
    assert plan.touches({("embedding.orphan", "kb")})
    assert not plan.touches({("embedding.orphan", "other"), ("raw.orphan", None)})
    assert not plan.touches(set())


def test_findings_are_grouped_in_their_order() -> None:
    found = [finding("b", "kb"), finding("a"), finding("b"), finding("a", "kb")]
    assert planning.group_by_name(found) == {"b": [found[0], found[2]], "a": [found[1], found[3]]}
    assert list(planning.group_by_name(found)) == ["b", "a"]
    assert planning.group_by_base(found) == {"kb": [found[0], found[3]], None: [found[1], found[2]]}
    errors = [finding("a", severity="error"), finding("b", severity="note"), finding("c"), finding("d")]
    others = planning.other_warnings(planning.group_by_name(errors), {"d"})
    assert [one.name for one in others] == ["a", "c"]


@pytest.mark.parametrize(
    ("gone", "there", "many"),
    [(2, 0, False), (3, 0, True), (3, 27, True), (3, 28, False), (10, 90, True), (10, 91, False), (0, 0, False)],
)
def test_rows_that_disappear_in_numbers_are_no_deletions(gone: int, there: int, many: bool) -> None:
    assert planning.many_disappeared(gone, there) == many


def test_what_is_left_is_reported_as_it_was_found() -> None:
    found = finding(findings.FOREIGN_VIEW, "kb", "error", subject="a note", count=3)
    left = Unresolved.of(found, "no source", repair="regraft repair")
    assert left == Unresolved(
        finding=findings.FOREIGN_VIEW,
        reason="no source",
        base="kb",
        subject="a note",
        count=3,
        severity="error",
        repair="regraft repair",
    )
    said = f"{findings.FOREIGN_VIEW} is wrong. To fix it: {findings.FINDINGS[findings.FOREIGN_VIEW].remedy}"
    assert Unresolved.with_remedy(found) == replace(left, reason=said, repair=None)
    registered = Unresolved.registered(findings.FOREIGN_VIEW, "why", base=None, subject="s", count=2)
    assert registered == Unresolved(
        finding=findings.FOREIGN_VIEW,
        reason="why",
        subject="s",
        count=2,
        severity=findings.FINDINGS[findings.FOREIGN_VIEW].severity,
    )


def test_what_is_not_said_of_a_change_or_an_option() -> None:
    """Nothing is deleted, kept twice, or guessed unless a planner or a user says so."""
    assert Unresolved.registered(findings.FOREIGN_VIEW, "why", base=None).count == 1
    rows = RowsChange(path="a", actions=(), apply=lambda _: None, tables=())
    assert (rows.bytes, rows.bodies, rows.backup) == (0, False, False)
    file = FileChange(path="a", actions=(), make=None)
    assert (file.bytes, file.trash, file.as_is, file.is_cache, file.mark) == (0, False, False, False, None)
    assert (Plan().keeps_undo, Plan().lists_inherited, Plan().level) == (True, False, Level.DEFAULT)
    repair = RepairOptions(now_ms=1)
    assert (repair.salvage, repair.adopt, repair.unproven, repair.model) == (False, False, False, None)
    gc = GcOptions(now_ms=1)
    assert (gc.vacuum, gc.v1_leftovers, gc.expires) == (False, False, True)


def test_what_goes_to_the_trash_is_named_with_its_size(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").write_bytes(bytes(7))
    store: Any = SimpleNamespace(root=tmp_path)
    change = planning.move_to_trash(store, tmp_path / "raw", "trash-folder", "raw.orphan", "move it", "kb")
    [only] = change.actions
    assert (change.path, change.make, change.trash, change.as_is, change.is_cache) == ("raw", None, True, False, False)
    assert only == Action(
        action="trash-folder", message="move it", base="kb", subject="raw", bytes=7, finding="raw.orphan"
    )
    cache = planning.move_to_trash(store, tmp_path / "raw" / "a.txt", "x", "y", "z", as_is=True, is_cache=True)
    assert (cache.path, cache.as_is, cache.is_cache, cache.actions[0].base) == ("raw/a.txt", True, True, None)


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [ReconcileOptions(), GcOptions(now_ms=1)])
def test_findings_are_wanted_unless_others_are_named(options: Any) -> None:
    assert options.wants("a")
    named = replace(options, only=frozenset({"a"}))
    assert (named.wants("a"), named.wants("b")) == (True, False)
    repair = RepairOptions(now_ms=1)
    assert repair.wanted(["a"]) == {"a"}
    assert replace(repair, only=frozenset({"b"})).wanted(["a"]) == {"b"}


def test_one_way_of_repairing_at_a_time() -> None:
    ways: dict[str, dict[str, Any]] = {
        "--only": {"only": frozenset({"a"})},
        "--model": {"model": ""},
        "--adopt": {"adopt": True},
        "--salvage": {"salvage": True},
        "--from": {"source": Path("x")},
    }
    plain = RepairOptions(now_ms=1)
    for option, given in ways.items():
        plain.demand_alone(option)
        replace(plain, **given).demand_alone(option)
        for name, more in ways.items():
            if name != option:
                with fails("WrongUsage", match=f"{option} cannot be combined with {name}.*run {option} first"):
                    replace(plain, **given, **more).demand_alone(option)


# --- objects that the layout does not define -------------------------------------------------------------------------


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    with apsw.Connection(str(tmp_path / "a.db")) as db:
        db.execute("CREATE TABLE t (x); CREATE VIEW v AS SELECT 1; CREATE VIEW w AS SELECT 2; CREATE INDEX i ON t (x)")
        db.execute("CREATE TRIGGER r AFTER INSERT ON t BEGIN SELECT 1; END")
    return tmp_path


KINDS = {"view": findings.FOREIGN_VIEW, "trigger": findings.FOREIGN_TRIGGER, "index": findings.FOREIGN_TEXT_INDEX}


def find_foreign(db: apsw.Connection) -> Iterator[ForeignObject]:
    """Every view and trigger, and an index that cannot be dropped."""
    for kind, name in db.execute("SELECT type, name FROM sqlite_schema WHERE type <> 'table' ORDER BY name"):
        drops = () if kind == "index" else (f"DROP {kind} {name}",)
        yield ForeignObject(finding=KINDS[str(kind)], name=str(name), message="", noun=str(kind), removal=drops)


def objects(path: Path) -> list[str]:
    with apsw.Connection(str(path)) as db:
        return [str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema ORDER BY name")]


def test_each_kind_of_object_is_dropped_and_counted(foreign: Path) -> None:
    change = schema_objects.plan_drops(foreign, "a.db", KINDS.values(), "kb", find_foreign)
    assert change is not None
    assert [(one.action, one.message, one.count, one.bytes, one.finding) for one in change.actions] == [
        ("drop-triggers", "drop 1 trigger not defined by the layout", 1, 0, findings.FOREIGN_TRIGGER),
        ("drop-views", "drop 2 views not defined by the layout", 2, 0, findings.FOREIGN_VIEW),
    ]
    assert {(one.base, one.subject) for one in change.actions} == {("kb", "a.db")}
    assert (change.path, change.tables, change.bodies) == ("a.db", (), False)
    with apsw.Connection(str(foreign / "a.db")) as db:
        change.apply(db)
    assert objects(foreign / "a.db") == ["i", "t"]
    assert schema_objects.plan_drops(foreign, "a.db", KINDS.values(), "kb", find_foreign) is None


def test_only_the_objects_that_were_planned_are_dropped(foreign: Path) -> None:
    change = schema_objects.plan_drops(foreign, "a.db", [findings.FOREIGN_VIEW], None, find_foreign)
    assert change is not None
    assert [one.action for one in change.actions] == ["drop-views"]
    with apsw.Connection(str(foreign / "a.db")) as db:
        db.execute("CREATE VIEW x AS SELECT 3")
        with fails("PlanOutdated", match="its triggers or views changed since the plan"):
            change.apply(db)
        db.execute("DROP VIEW x")
        change.apply(db)
    assert objects(foreign / "a.db") == ["i", "r", "t"]
    assert schema_objects.plan_drops(foreign, "a.db", ["another"], None, find_foreign) is None


def test_drops_go_with_the_other_changes_of_their_file(foreign: Path) -> None:
    made: list[str] = []
    own = RowsChange(
        path="a.db",
        actions=(action("x"),),
        apply=lambda _: made.append("own"),
        tables=("t",),
        bytes=5,
        bodies=True,
    )
    elsewhere = replace(own, path="b.db")
    moved = FileChange(path="a.db", actions=(action("y"),), make=None)
    store: Any = SimpleNamespace(root=foreign)
    views, index = finding(findings.FOREIGN_VIEW), finding(findings.FOREIGN_TEXT_INDEX, is_beyond_repair=True)
    found = planning.group_by_name([views, index])

    def added(*changes: Any, only: frozenset[str] = frozenset()) -> Plan:
        before = Plan(changes=list(changes), resolves={("x", None)})
        return schema_objects.add_drops(before, store, found, only, {"a.db": find_foreign})

    plan = added(elsewhere, own)
    assert [one.path for one in plan.changes] == ["b.db", "a.db"]
    assert plan.changes[0] is elsewhere
    merged: Any = plan.changes[1]
    assert [one.action for one in merged.actions] == ["drop-views", "x"]
    assert (merged.tables, merged.bytes, merged.bodies) == (("t",), 5, True)
    assert plan.resolves == {("x", None), (findings.FOREIGN_VIEW, None)}
    assert plan.left == [Unresolved.with_remedy(index)]
    with apsw.Connection(str(foreign / "a.db")) as db:
        merged.apply(db)
    assert (made, objects(foreign / "a.db")) == (["own"], ["i", "r", "t"])
    assert [one.path for one in added(elsewhere, moved).changes] == ["b.db", "a.db"]


def test_objects_are_dropped_where_they_were_found_and_named(foreign: Path) -> None:
    store: Any = SimpleNamespace(root=foreign)
    own = Plan(changes=[])
    found = planning.group_by_name([finding(findings.FOREIGN_VIEW), finding(findings.FOREIGN_TRIGGER)])
    finders = {"a.db": find_foreign}
    assert schema_objects.add_drops(own, store, {}, frozenset(), finders) is own
    assert schema_objects.add_drops(own, store, found, frozenset({"embedding.orphan"}), finders) is own
    plan = schema_objects.add_drops(own, store, found, frozenset({findings.FOREIGN_TRIGGER}), finders)
    assert [one.action for one in plan.actions] == ["drop-triggers"]
    assert plan.resolves == {(findings.FOREIGN_TRIGGER, None)}
    assert [one.action for one in schema_objects.add_drops(own, store, found, frozenset(), finders).actions] == [
        "drop-triggers",
        "drop-views",
    ]


def test_a_finding_is_repaired_if_every_case_of_it_is() -> None:
    found = [finding("a"), finding(findings.FOREIGN_VIEW), finding(findings.FOREIGN_VIEW, is_beyond_repair=True)]
    assert schema_objects.split_repairable(found) == ({"a"}, [Unresolved.with_remedy(found[2])])


# --- past runs -------------------------------------------------------------------------------------------------------


def change(number: int, state: Any = "done", actions: tuple[int, int] = (0, 1), **more: Any) -> RecordedChange:
    usual: dict[str, Any] = {
        "change_id": number,
        "run_id": "r",
        "means": "rows",
        "path": f"file-{number}",
        "kept": f"undo/r/{number}",
        "bytes": 100 * number,
        "detail": RowsDetail(0, actions),
    }
    return RecordedChange(state=state, **{**usual, **more})


def past(run_id: str, *changes: RecordedChange, **more: Any) -> RunRecord:
    usual: dict[str, Any] = {
        "command": "repair",
        "source": "/library",
        "status": "finished",
        "started_at": NOW_MS - 5 * DAY_MS,
        "finished_at": NOW_MS - 4 * DAY_MS,
        "actions": (),
    }
    return RunRecord(run_id=run_id, changes=changes, **{**usual, **more})


def done(name: str, count: int = 1) -> RecordedAction:
    return RecordedAction(name, None, None, count, 0, None, name)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], "none"),
        (["dropped"], "none"),
        (["done", "dropped"], "possible"),
        (["done", "undone"], "possible"),
        (["undone", "dropped"], "undone"),
        (["done", "expired"], "expired"),
        (["expired", "undone"], "expired"),
        (["done", "intended"], "unsettled"),
        (["expired", "undoing"], "unsettled"),
    ],
)
def test_whether_a_run_can_be_undone(
    states: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = past("r", *(change(number, state) for number, state in enumerate(states, 1)))
    monkeypatch.setattr(undo, "read_runs", lambda _: [past("earlier", finished_at=None, status="stopped"), run])
    latest, earlier = undo.list_past_runs(tmp_path)
    kept = [number for number, state in enumerate(states, 1) if state == "done"]
    assert (latest.undo.state, latest.undo.changes, latest.undo.bytes) == (expected, len(kept), 100 * sum(kept))
    assert (latest.id, latest.started_at, latest.finished_at) == (
        "r",
        iso_time(NOW_MS - 5 * DAY_MS),
        iso_time(NOW_MS - 4 * DAY_MS),
    )
    assert (earlier.id, earlier.status, earlier.finished_at) == ("earlier", "stopped", None)


def test_a_run_that_was_stopped_did_what_its_changes_were_for() -> None:
    actions = tuple(done(name, count) for name, count in (("a", 1), ("b", 1), ("c", 0), ("d", 1), ("e", 1), ("f", 1)))
    changes = [change(1, "done", (0, 1)), change(2, "dropped", (1, 1)), change(3, "intended", (2, 2))]
    changes.append(change(4, "done", (3, 1)))
    stopped = past("r", *changes, status="stopped", actions=actions)
    assert [one.action for one in undo.completed_actions(stopped)] == ["a", "d"]
    finished = replace(stopped, status="finished")
    assert [one.action for one in undo.completed_actions(finished)] == ["a", "b", "d", "e", "f"]


RUNS = [
    past("20260101T000000Z-aaaaaa", change(1)),
    past("20260102T000000Z-bbbbbb", change(2, "undone")),
    past("20260102T000001Z-cccccc", change(3, "intended")),
    past("20260103T000000Z-dddddd"),
]


@pytest.mark.parametrize(
    ("run_id", "chosen"),
    [
        (None, 2),
        ("aaaaaa", 0),
        ("20260101T000000Z-aaaaaa", 0),
        ("20260101", 0),
        ("20260102T000001", 2),
        ("nobody", "there is no run nobody"),
        ("0101", "there is no run 0101"),
        ("20260102", "several run ids start with 20260102"),
        ("2026", "several run ids start with 2026"),
        ("bbbbbb", "run bbbbbb cannot be undone"),
        ("20260103", "run 20260103 cannot be undone"),
    ],
)
def test_which_run_is_meant(run_id: str | None, chosen: int | str, tmp_path: Path) -> None:
    if isinstance(chosen, int):
        assert undo.select_run(tmp_path, RUNS, run_id) is RUNS[chosen]
        return
    with fails("RunUnknown", match=chosen):
        undo.select_run(tmp_path, RUNS, run_id)


def test_where_no_run_can_be_undone_none_is_meant(tmp_path: Path) -> None:
    for runs in ([], [RUNS[1], RUNS[3]]):
        with fails("RunUnknown", match="there is no run to undo"):
            undo.select_run(tmp_path, runs, None)


def file_detail(**more: Any) -> FileDetail:
    return FileDetail(**{"new": False, "mark": None, "staged": "x", "made": None, "actions": (0, 1), **more})


def test_a_cache_is_rebuilt_if_any_of_its_files_is_there(tmp_path: Path) -> None:
    def cache(number: int, path: str, **more: Any) -> RecordedChange:
        return change(number, means="file", path=path, detail=file_detail(cache=True), **more)

    changes = [
        cache(1, "cache/a"),
        cache(2, "cache/b"),
        cache(3, "other/a"),
        cache(4, "cache/c", state="undone"),
        change(5, path="cache/b"),
        change(6, means="file", path="cache/b", detail=file_detail()),
    ]
    run = past("r", *changes)
    assert undo.rebuilt_caches(tmp_path, run) == []
    (tmp_path / "cache").mkdir()
    assert undo.rebuilt_caches(tmp_path, run) == []
    (tmp_path / "cache" / "b").write_text("x")
    assert [one.change_id for one in undo.rebuilt_caches(tmp_path, run)] == [1, 2]


# --- expiry ----------------------------------------------------------------------------------------------------------


def expiring(runs: list[RunRecord], own: Plan, patch: pytest.MonkeyPatch, **more: Any) -> Plan:
    patch.setattr(undo, "read_runs", lambda _: runs)
    chosen = more.pop("chosen", frozenset())
    store: Any = SimpleNamespace(root=Path("library"), chosen=chosen)
    return undo.add_expired_runs(own, store, GcOptions(**{"now_ms": NOW_MS, "grace": 4, **more}))


def test_undo_data_expires_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        past("due", change(1), change(2, "undone"), change(3)),
        past("young", change(4), finished_at=NOW_MS - 4 * DAY_MS + 1),
        past("open", change(5), change(6, "intended")),
        past("undoing", change(7), change(8, "undoing")),
        past("nothing", change(9, "undone")),
        past("stopped", change(10), finished_at=None, started_at=NOW_MS - 4 * DAY_MS),
        past("running", change(11), finished_at=None, started_at=NOW_MS - 4 * DAY_MS + 1),
    ]
    plan = expiring(runs, Plan(), monkeypatch)
    assert [one.change_id for one in plan.expired] == [1, 3, 10]
    assert [(one.action, one.subject, one.count, one.bytes) for one in plan.expiring] == [
        ("expire", "due", 2, 400),
        ("expire", "stopped", 1, 1000),
    ]
    when = iso_time(NOW_MS - 5 * DAY_MS)
    assert plan.expiring[0].message == (
        f"delete the undo data of regraft repair from {when}; that run can no longer be undone"
    )
    assert plan.keeps_undo
    for more in ({"chosen": frozenset({"kb"})}, {"only": frozenset({"raw.orphan"})}, {"expires": False}):
        assert expiring(runs, Plan(), monkeypatch, **more).expired == []


def test_without_grace_a_run_keeps_nothing_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    first = action("x", "kb", finding="raw.orphan", bytes=30)
    own = Plan(changes=[FileChange(path="a", actions=(first, action("y", bytes=5)), make=None)])
    plan = expiring([], own, monkeypatch, grace=0)
    assert not plan.keeps_undo
    assert [(one.action, one.message, one.count, one.bytes, one.subject) for one in plan.expiring] == [
        ("expire", "keep no undo data of this run; it cannot be undone", 1, 30, None)
    ]
    assert expiring([], Plan(), monkeypatch, grace=0).expiring == []
    kept = expiring([], own, monkeypatch, grace=1e-9)
    assert (kept.keeps_undo, kept.expiring) == (True, [])
