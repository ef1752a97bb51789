"""What `regraft repair` plans for which findings, file by file, and what it says of those that it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest
from faults import fails
from harness import NOW_MS

from checks.audit.collector import Level
from checks.audit.findings import Finding, RowNumbers
from checks.cherry_v2 import findings as v2
from regraft.formats.cherry_preview import IndexLayout, IndexSummary
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem
from regraft.formats.cherry_v2.layout import StoreFile
from repair.changes import store as changed_store
from repair.changes.options import RepairOptions
from repair.changes.plan import Action, FileChange, Plan, RowsChange, Unresolved, group_by_base
from repair.cherry_v2.item_paths import NewPaths
from repair.cherry_v2.rules import catalog as rules_catalog
from repair.cherry_v2.rules import index, planner
from repair.cherry_v2.rules.catalog import ItemPath, PathRepairs

KB, OTHER = "kb", "other"


def finding(name: str, base: str | None = KB, **more: Any) -> Finding:
    return Finding(**{"name": name, "severity": "warning", "message": f"about {name}", "base": base, **more})


def index_file(base: str = KB, **more: Any) -> StoreFile:
    usual = {
        "base_id": base,
        "name": f"KnowledgeBase/{base}/.cherry/index.sqlite",
        "raw": f"KnowledgeBase/{base}/raw",
        "look": IndexSummary(IndexLayout.CURRENT),
    }
    return StoreFile(**{**usual, **more})


class Store:
    """Stands for a store with two bases, as the planner looks at it."""

    catalog: str | None = "catalog.sqlite"
    bases = "KnowledgeBase"
    command_line, base_option = changed_store.Store.command_line, changed_store.Store.base_option

    def __init__(self, root: Path, *found: Finding, chosen: Iterable[str] = (), is_whole: bool = True) -> None:
        self.root = self.path = root
        self._found, self._chosen = found, set(chosen)
        self.stores = {base: index_file(base) for base in (KB, OTHER)}
        self.found = SimpleNamespace(stores=SimpleNamespace(is_whole=is_whole))
        self.levels: list[Level] = []

    def wants(self, base: str | None) -> bool:
        return not self._chosen or base in self._chosen

    def findings(self, level: Level) -> tuple[Finding, ...]:
        self.levels.append(level)
        return self._found


ROW = {"id": KB, "status": "completed", "embedding_model_id": "m", "dimensions": 4}
CATALOG = SimpleNamespace(bases=[{"id": OTHER, "status": "failed"}, ROW], items={KB: [{"id": "i"}]}, models=[])


def options(**more: Any) -> RepairOptions:
    only = frozenset(more.pop("only", ()))
    return RepairOptions(now_ms=NOW_MS, only=only, **more)


def change(path: str, name: str = "x", *tables: str) -> RowsChange:
    actions = (Action(action=name, message=name, base=KB),)
    return RowsChange(path=path, actions=actions, apply=lambda _: None, tables=tables or (name,))


def removal(path: str) -> FileChange:
    return FileChange(path=path, actions=(), make=None)


def names_of(changes: Iterable[Any]) -> list[Any]:
    return [(one.path, [action.action for action in one.actions]) for one in changes]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Make a planner for findings; its catalog is ``CATALOG``."""
    monkeypatch.setattr(planner, "read_catalog", lambda _: CATALOG)

    def make(*found: Finding, store: dict[str, Any] | None = None, **more: Any) -> Any:
        return planner._Planner(
            Store(tmp_path, *found, **(store or {})),  # type: ignore[arg-type]
            options(**more),
            group_by_base(found),
        )

    return make


# --- which plan ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "catalog", "planned"),
    [
        ({}, "catalog.sqlite", ["repairs"]),
        ({"moved": (("/a", "/b"),), "source": Path("x")}, "catalog.sqlite", ["moved"]),
        ({"source": Path("x")}, "catalog.sqlite", ["source"]),
        ({"adopt": True, "only": [v2.INDEX_ORPHAN]}, "catalog.sqlite", ["adopt"]),
        ({"model": "m", "only": [v2.VECTOR_UNEXPECTED]}, "catalog.sqlite", ["attach"]),
        ({"only": [v2.BASE_FAILED]}, "catalog.sqlite", ["materials"]),
        ({"only": [v2.BASE_FAILED]}, None, ["repairs"]),
        ({"only": [v2.BASE_FAILED, v2.BODY_ID]}, "catalog.sqlite", ["materials", "repairs"]),
        ({"only": [v2.BODY_ID]}, "catalog.sqlite", ["repairs"]),
    ],
)
def test_which_plan_is_made_for_which_options(
    asked: dict[str, Any], catalog: str | None, planned: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = Store(tmp_path)
    store.catalog = catalog
    wanted = options(**asked)
    called: list[str] = []

    def plan(name: str) -> Callable[..., Plan]:
        def called_with(one: Any, given: RepairOptions, **more: Any) -> Plan:
            assert one is store
            others = wanted.only - {v2.BASE_FAILED}
            assert given.only == (others if called else wanted.only)
            assert more == ({"failed_only": True} if name == "materials" else {})
            called.append(name)
            return Plan([change(f"{name}.sqlite"), removal(f"{name}.txt"), change("both.sqlite", name)])

        return called_with

    monkeypatch.setattr(planner.item_paths, "plan_moved", plan("moved"))
    monkeypatch.setattr(planner.from_source, "plan", plan("source"))
    monkeypatch.setattr(planner.adopt, "plan", plan("adopt"))
    monkeypatch.setattr(planner.adopt, "plan_materials", plan("materials"))
    monkeypatch.setattr(planner.base_models, "plan_attach", plan("attach"))
    monkeypatch.setattr(planner, "_plan_repairs", plan("repairs"))
    done = planner.plan(store, wanted)
    assert called == planned
    if len(planned) == 2:
        # Rows of a file change once, and before any file.
        assert names_of(done.changes) == [
            ("materials.sqlite", ["x"]),
            ("both.sqlite", ["materials", "repairs"]),
            ("repairs.sqlite", ["x"]),
            ("materials.txt", []),
            ("repairs.txt", []),
        ]


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    store: Any = Store(tmp_path)
    with fails("WrongUsage", match="--adopt needs exactly one finding"):
        planner.plan(store, options(adopt=True))
    with fails("WrongUsage", match=f"--only {v2.INDEX_ORPHAN} needs --adopt"):
        planner.plan(store, options(only=[v2.INDEX_ORPHAN]))
    with fails("WrongUsage", match=f"--only {v2.VECTOR_UNEXPECTED} needs --model"):
        planner.plan(store, options(only=[v2.VECTOR_UNEXPECTED]))


@pytest.mark.parametrize(("salvage", "level"), [(True, Level.DEEP), (False, Level.DEFAULT)])
def test_a_salvage_looks_for_damage_that_only_sqlite_finds(salvage: bool, level: Level, tmp_path: Path) -> None:
    store: Any = Store(tmp_path)
    store.catalog = None
    assert planner.plan(store, options(salvage=salvage)) == Plan()
    assert store.levels == [level]


# --- damaged files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "suggested", "salvaged"),
    [
        ({}, [KB], []),
        ({"salvage": True}, [], [KB]),
        ({"only": [v2.CORRUPT]}, [KB], []),
        ({"only": [v2.CORRUPT], "salvage": True}, [], [KB]),
        ({"only": [v2.BODY_ID]}, [], []),
    ],
)
def test_a_damaged_index_is_salvaged_where_that_is_asked_for(
    asked: dict[str, Any], suggested: list[str], salvaged: list[str], made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, list[Any]] = {"suggested": [], "salvaged": []}

    def suggest(damaged: Any) -> list[Unresolved]:
        told["suggested"].append(damaged)
        return [Unresolved(finding=v2.CORRUPT, reason="can be salvaged", base=damaged.base)]

    def salvage(damaged: Any) -> Plan:
        told["salvaged"].append(damaged)
        return Plan([removal(damaged.place.name)])

    monkeypatch.setattr(planner.salvage, "suggest_salvage", suggest)
    monkeypatch.setattr(planner.salvage, "plan", salvage)
    damage = (finding(v2.CORRUPT), finding(v2.BODY_ID), finding(v2.BODY_ID, OTHER))
    one = made(*damage, **asked)
    one._plan_damaged()
    assert {name: [damaged.base for damaged in every] for name, every in told.items()} == {
        "suggested": suggested,
        "salvaged": salvaged,
    }
    assert names_of(one._plan.changes) == [(index_file().name, [])] * len(salvaged)
    assert [left.reason for left in one._plan.left] == ["can be salvaged"] * len(suggested)
    assert one._plan.level == (Level.DEEP if salvaged else Level.DEFAULT)
    for damaged in (*told["suggested"], *told["salvaged"]):
        assert (damaged.row, damaged.items, damaged.now_ms) == (ROW, [{"id": "i"}], NOW_MS)
        assert (damaged.place, list(damaged.findings)) == (index_file(), [*damage[:2]])
    # Nothing else of the base is repaired or said.
    seen: list[str] = []
    monkeypatch.setattr(planner._Planner, "_of_index", lambda _, base, *more: seen.append(base) or [])
    list(one._plan_indexes({}))
    assert seen == ([OTHER] if salvaged else [KB, OTHER])
    assert one._is_reported(damage[0], 0) == bool(suggested or salvaged)
    assert one._is_reported(damage[1], 0) == bool(salvaged)
    assert not one._is_reported(damage[2], 0)


def test_a_base_that_was_not_chosen_is_not_salvaged(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner.salvage, "suggest_salvage", lambda _: pytest.fail("it was read"))
    one = made(finding(v2.CORRUPT), store={"chosen": [OTHER]})
    one._plan_damaged()
    assert list(one._plan_indexes({})) == []


@pytest.mark.parametrize(
    ("catalog", "row", "items"),
    [
        (None, None, None),
        (SimpleNamespace(bases=[], items={}), None, None),
        (SimpleNamespace(bases=[ROW], items=None), ROW, None),
        (SimpleNamespace(bases=[ROW], items={OTHER: [{"id": "x"}]}), ROW, []),
    ],
)
def test_what_a_damaged_index_is_compared_with(
    catalog: Any, row: Any, items: Any, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: Path) -> Any:
        if catalog is None:
            raise CatalogProblem("cannot be read")
        return catalog

    monkeypatch.setattr(planner, "read_catalog", read)
    damaged = made(finding(v2.CORRUPT))._damaged_index(KB)
    assert (damaged.row, damaged.items) == (row, items)


# --- one index -----------------------------------------------------------------------------------------------------


class Indexes:
    """Stands for the plans of one index, and records what they are asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drops: RowsChange | None = None
        self.units: tuple[RowsChange | None, int] = (None, 0)
        self.repair: tuple[RowsChange | None, tuple[Unresolved, ...]] = (change("index.sqlite", "repair"), ())
        self.asked: list[Any] = []
        monkeypatch.setattr(planner.schema_objects, "plan_drops", self._plan_drops)
        monkeypatch.setattr(planner.index, "plan_lost_units", self._plan_units)
        monkeypatch.setattr(planner.index, "plan_index", self._plan_index)

    def _plan_drops(self, root: Path, name: str, wanted: Any, base: str, find: Any) -> RowsChange | None:
        assert (name, base, find) == (index_file().name, KB, planner.schema.find_foreign_in_index)
        self.asked.append(("drops", sorted(wanted)))
        return self.drops

    def _plan_units(self, root: Path, name: str, base: str) -> tuple[RowsChange | None, int]:
        assert (name, base) == (index_file().name, KB)
        self.asked.append("units")
        return self.units

    def _plan_index(self, root: Path, target: Any) -> Any:
        self.asked.append(target)
        return self.repair


@pytest.fixture
def indexes(monkeypatch: pytest.MonkeyPatch) -> Indexes:
    return Indexes(monkeypatch)


def planned(one: Any, moved: dict[str, Any] | None = None) -> list[Any]:
    return names_of(one._of_index(KB, index_file(), {} if moved is None else moved))


def test_an_index_without_a_finding_to_repair_is_left_alone(made: Any, indexes: Indexes) -> None:
    assert planned(made(finding(v2.BASE_STATUS))) == []
    assert planned(made(finding(v2.BODY_ID), only=[v2.BODY_HASH])) == []
    assert indexes.asked == []


@pytest.mark.parametrize(
    ("blocking", "reason", "command"),
    [
        (v2.SCHEMA_MISSING, "the layout of the file is incomplete: fix that first", "regraft upgrade {}"),
        (v2.SCHEMA_VERSION, "the layout of the file is incomplete: fix that first", "regraft upgrade {}"),
        (v2.CORRUPT, "the file is damaged: fix that first", None),
        (v2.UNREADABLE, "the file is damaged: fix that first", None),
    ],
)
def test_what_blocks_other_repairs_comes_first(
    blocking: str, reason: str, command: str | None, made: Any, indexes: Indexes, tmp_path: Path
) -> None:
    one = made(finding(blocking), finding(v2.BODY_ID, count=3), finding(v2.BASE_STATUS))
    assert planned(one) == []
    assert indexes.asked == []
    line = None if command is None else command.format(tmp_path)
    assert one._plan.left == [Unresolved.of(finding(v2.BODY_ID, count=3), reason, repair=line)]


def test_an_index_that_cannot_be_read_is_reported_and_others_are_repaired(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any, base: str, *more: Any) -> Any:
        if base == KB:
            raise apsw.CorruptError("database disk image is malformed")
        return [change("other.sqlite")]

    monkeypatch.setattr(planner._Planner, "_of_index", fail)
    one = made(finding(v2.BODY_ID, count=3), finding(v2.BODY_ID, OTHER))
    assert names_of(one._plan_indexes({})) == [("other.sqlite", ["x"])]
    reason = "the index cannot be read as a whole: database disk image is malformed"
    assert one._plan.left == [Unresolved.of(finding(v2.BODY_ID, count=3), reason)]


def test_only_files_in_the_current_layout_are_repaired(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(planner._Planner, "_of_index", lambda _, base, *more: seen.append(base) or [])
    one = made(finding(v2.BODY_ID), finding(v2.BODY_ID, OTHER))
    one._store.stores[OTHER] = index_file(OTHER, look=IndexSummary(IndexLayout.PREVIEW))
    one._store.stores["healthy"] = index_file("healthy")
    list(one._plan_indexes({}))
    assert seen == [KB]


def test_foreign_objects_are_dropped_before_rows_are_repaired(made: Any, indexes: Indexes) -> None:
    indexes.drops = change("index.sqlite", "drop")
    one = made(finding(v2.FOREIGN_TRIGGER), finding(v2.BODY_ID), finding(v2.UNIT_ID))
    moved: dict[str, Any] = {}
    assert planned(one, moved) == [("index.sqlite", ["drop"]), ("index.sqlite", ["repair"])]
    assert indexes.asked[0] == ("drops", sorted([v2.FOREIGN_TRIGGER, v2.BODY_ID, v2.UNIT_ID]))
    assert one._plan.resolves == {(v2.FOREIGN_TRIGGER, KB), (v2.BODY_ID, KB), (v2.UNIT_ID, KB)}
    assert moved == {KB: PathRepairs()}
    assert one._is_reported(finding(v2.VECTOR_MISSING), 0)
    assert not one._is_reported(finding(v2.VECTOR_MISSING, OTHER), 0)


def test_what_a_repair_leaves_keeps_the_command_of_the_audit(made: Any, indexes: Indexes) -> None:
    stays = Unresolved(finding=v2.BODY_ID, reason="unknown", base=KB)
    new = Unresolved(finding=v2.VECTOR_MISSING, reason="to be embedded", base=KB)
    indexes.repair = (change("index.sqlite", "repair"), (stays, new))
    one = made(finding(v2.BODY_ID, repair="regraft repair X"), finding(v2.UNIT_ID, repair="regraft repair Y"))
    assert planned(one) == [("index.sqlite", ["repair"])]
    assert [(left.finding, left.repair) for left in one._plan.left] == [
        (v2.BODY_ID, "regraft repair X"),
        (v2.VECTOR_MISSING, None),
    ]
    assert one._plan.resolves == {(v2.UNIT_ID, KB)}
    # Nothing changes: then nothing is resolved, and what follows from it is not reported.
    indexes.repair = (None, (stays,))
    other = made(finding(v2.BODY_ID), finding(v2.UNIT_ID))
    assert (planned(other), other._plan.resolves, other._plan.left) == ([], set(), [stays])
    assert not other._is_reported(finding(v2.VECTOR_MISSING), 0)


@pytest.mark.parametrize(
    ("row", "has_model", "dimensions"),
    [
        (ROW, True, 4),
        ({**ROW, "embedding_model_id": None}, False, None),
        ({**ROW, "status": "failed"}, None, None),
        (None, None, None),
    ],
)
def test_what_is_known_of_an_index_that_is_repaired(
    row: Any, has_model: bool | None, dimensions: int | None, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [] if row is None else [row]
    monkeypatch.setattr(planner, "read_catalog", lambda _: SimpleNamespace(bases=rows, items={}))
    one = made(finding(v2.BODY_ID, count=2), finding(v2.BODY_ID, count=3), only=[v2.BODY_ID])
    found = one._count_findings(KB)
    renames = PathRepairs(materials=[(7, "a.txt")])
    target = one._make_repair(KB, index_file(), found, renames, frozenset({v2.BODY_ID}))
    assert (target.base, target.path, target.folder) == (KB, index_file().name, KB)
    assert (target.has_model, target.dimensions) == (has_model, dimensions)
    assert (target.found, target.wanted, target.now_ms) == ({v2.BODY_ID: 5}, {v2.BODY_ID}, NOW_MS)
    assert (target.is_partial, target.renamed, target.rows) == (True, ((7, "a.txt"),), {})
    whole = made(finding(v2.BODY_ID))
    for odd in (index_file(base_id=None), index_file(name="kb.sqlite")):
        target = whole._make_repair(KB, odd, found, PathRepairs(), frozenset())
        assert (target.folder, target.is_partial, target.renamed) == (None, False, ())


def test_rows_count_only_where_the_audit_has_all_of_them() -> None:
    rows = RowNumbers()
    rows.append(3)
    found = [finding("a", rows=rows), finding("a", rows=rows), finding("b", rows=rows), finding("b"), finding("c")]
    assert planner._recorded_rows(found) == {"a": [rows, rows]}


# --- units that are lost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "only", "asks"),
    [
        ([v2.BODY_ORPHAN], [], True),
        ([v2.BODY_ORPHAN, v2.UNIT_GAP], [v2.UNIT_GAP], True),
        ([v2.BODY_ORPHAN, v2.BODY_ID], [v2.BODY_ID], False),
        ([v2.BODY_ID], [], False),
        # An orphan body may be that of a unit.
        ([v2.BODY_ORPHAN, v2.NO_BODY], [], False),
        ([v2.BODY_ORPHAN, v2.UNIT_ID], [], False),
        ([v2.BODY_ORPHAN, v2.NO_BODY], [v2.BODY_ORPHAN], True),
    ],
)
def test_lost_units_are_looked_for_before_their_proof_goes(
    names: list[str], only: list[str], asks: bool, made: Any, indexes: Indexes
) -> None:
    planned(made(*map(finding, names), only=only))
    assert ("units" in indexes.asked) == asks


@pytest.mark.parametrize("others", [0, 2])
def test_other_repairs_wait_until_lost_units_are_written(
    others: int, made: Any, indexes: Indexes, tmp_path: Path
) -> None:
    indexes.units = (change("index.sqlite", "write-units"), others)
    one = made(finding(v2.BODY_ORPHAN, count=5), finding(v2.BODY_ID), finding(v2.BASE_STATUS))
    assert planned(one) == [("index.sqlite", ["write-units"])]
    assert [asked for asked in indexes.asked if not isinstance(asked, tuple)] == ["units"]
    waits = Unresolved.of(
        finding(v2.BODY_ID),
        "units are written again first; run regraft repair again for the rest",
        repair=f"regraft repair {tmp_path} --base kb",
    )
    unproven = Unresolved.registered(v2.BODY_ORPHAN, "2 bodies whose unit cannot be proven", base=KB, count=2)
    assert one._plan.left == ([unproven, waits] if others else [waits])
    assert one._plan.resolves == (set() if others else {(v2.BODY_ORPHAN, KB)})
    assert one._is_reported(finding(v2.BODY_ORPHAN), 0)


# --- vectors of a protected base -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [None, "nothing is deleted from a failed base"])
def test_vectors_of_a_protected_base_are_kept(
    reason: str | None, made: Any, indexes: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Protected:
        def __init__(self, store: Any, catalog: Any, spared: frozenset[str]) -> None:
            asked.append((catalog, spared))

        def reason(self, base: str) -> str | None:
            asked.append(base)
            return reason

    monkeypatch.setattr(planner, "Protection", Protected)
    flaws = [finding(v2.VECTOR_ZERO, count=2), finding(v2.VECTOR_LENGTH, count=3)]
    one = made(*flaws, finding(v2.BODY_ID), spared=frozenset({"x"}))
    assert planned(one) == [("index.sqlite", ["repair"])]
    assert asked == [(CATALOG, {"x"}), KB]
    kept = {v2.VECTOR_ZERO, v2.VECTOR_LENGTH} if reason else set()
    [target] = [given for given in indexes.asked if isinstance(given, index.IndexRepair)]
    assert target.wanted & set(index.FLAWS) == set(index.FLAWS) - kept
    left = [(stays.finding, stays.reason, stays.count) for stays in one._plan.left]
    assert left == ([(v2.VECTOR_LENGTH, reason, 3), (v2.VECTOR_ZERO, reason, 2)] if reason else [])
    # With nothing but these, the index is not looked at; and the base is asked for again.
    indexes.asked.clear()
    assert planned(made(*flaws)) == ([] if reason else [("index.sqlite", ["repair"])])
    assert made(finding(v2.BODY_ID))._protected_findings(KB, {}, frozenset({v2.BODY_ID})) == frozenset()


# --- paths ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("catalog", "items", "is_left"),
    [
        (CATALOG, [{"id": "i"}], False),
        (SimpleNamespace(bases=[], items={}), [], False),
        (SimpleNamespace(bases=[], items=None), None, True),
        (CatalogProblem("cannot be read"), None, True),
        (None, None, False),
    ],
)
def test_unsafe_paths_are_repaired_with_those_of_the_items(
    catalog: Any, items: Any, is_left: bool, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: Path) -> Any:
        if isinstance(catalog, Exception):
            raise catalog
        return catalog

    asked: list[Any] = []
    monkeypatch.setattr(planner, "read_catalog", read)
    monkeypatch.setattr(planner.rules_catalog, "plan_paths", lambda *given: asked.append(given) or PathRepairs())
    one = made(finding(v2.PATH_UNSAFE))
    if catalog is None:
        one._store.catalog = None
    found = one._plan_path_repairs(KB, index_file())
    if is_left:
        reason = "the catalog, whose item has the same path, cannot be read"
        assert (found.left, asked) == ([Unresolved.registered(v2.PATH_UNSAFE, reason, base=KB)], [])
    else:
        assert (found, asked) == (PathRepairs(), [(one._store.root, KB, index_file().name, index_file().raw, items)])


def test_files_come_before_the_catalog_and_old_ones_go_after_it(
    made: Any, indexes: Indexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    renames = PathRepairs(
        materials=[(1, "a.txt")],
        items=[ItemPath(item="i", key="relativePath", old="../a.txt", new="a.txt")],
        made=[removal("new")],
        removed=[removal("old")],
        removed_last=[removal("oldest")],
    )
    monkeypatch.setattr(planner._Planner, "_plan_path_repairs", lambda *_: renames)
    monkeypatch.setattr(planner.rules_catalog, "plan_definitions", lambda *_: ([], [], set()))
    left = Unresolved(finding=v2.BASE_STATUS, reason="unknown")
    done = ([change("catalog.sqlite", "bases")], [left], {(v2.BASE_STATUS, KB)})
    monkeypatch.setattr(planner.rules_catalog, "plan_catalog", lambda *_, model: done)
    paths: list[Any] = []

    def item_paths(_: Path, name: str, of_bases: Any) -> RowsChange:
        paths.append(of_bases)
        return change(name, "paths")

    monkeypatch.setattr(planner.rules_catalog, "plan_item_paths", item_paths)
    monkeypatch.setattr(planner.item_paths, "plan_catalog_change", lambda *_: None)
    # With its new path, a material agrees with its item and file.
    moved, other = RowNumbers(), RowNumbers()
    moved.append(1)
    other.append(2)
    agrees = (finding(v2.MATERIAL_PATH, rows=moved), finding(v2.RAW_MISSING, rows=other, severity="error"))
    one = made(finding(v2.PATH_UNSAFE), *agrees)
    plan = one.plan()
    assert names_of(plan.changes) == [
        ("new", []),
        ("catalog.sqlite", ["bases", "paths"]),
        ("old", []),
        ("index.sqlite", ["repair"]),
        ("oldest", []),
    ]
    assert paths == [{KB: renames.items}]
    assert [stays.finding for stays in plan.left] == [v2.BASE_STATUS, v2.RAW_MISSING]
    assert plan.resolves == {(v2.PATH_UNSAFE, KB), (v2.BASE_STATUS, KB)}
    [target] = [given for given in indexes.asked if isinstance(given, index.IndexRepair)]
    assert target.renamed == ((1, "a.txt"),)


NAMED = {"only": [v2.ITEM_PATH_IS_ID]}


def test_readable_paths_are_planned_for_the_bases_that_need_them(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def paths_of(_: Any, base: str) -> NewPaths:
        paths = NewPaths(base)
        if base == "broken":
            raise apsw.CorruptError("malformed")
        if base == "partly":
            paths.leave("taken", "item")
        return paths

    monkeypatch.setattr(planner._Planner, "_paths_of", paths_of)
    one = made(
        finding(v2.ITEM_PATH_IS_ID),
        finding(v2.MATERIAL_PATH, OTHER),
        finding(v2.ITEM_PATH_IS_ID, "partly"),
        finding(v2.ITEM_PATH_IS_ID, "broken", count=4),
        finding(v2.BODY_ID, "fine"),
        finding(v2.ITEM_PATH_IS_ID, None),
        **NAMED,
    )
    assert [paths.base for paths in one._readable_paths()] == [KB, OTHER, "partly", "broken"]
    assert [(left.base, left.reason, left.subject, left.count) for left in one._plan.left] == [
        ("partly", "taken", "item", 1),
        ("broken", "its index cannot be read: malformed", None, 4),
    ]
    assert one._plan.resolves == {(v2.ITEM_PATH_IS_ID, KB), (v2.ITEM_PATH_IS_ID, OTHER)}


def test_readable_paths_need_a_sound_index_in_the_current_layout(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "read_material_paths", lambda path: {"m": path.name})
    monkeypatch.setattr(planner, "find_new_paths", lambda *given: given)
    one = made(finding(v2.ITEM_PATH_IS_ID), finding(v2.ITEM_PATH_IS_ID, OTHER), finding(v2.CORRUPT, OTHER), **NAMED)
    raw = one._store.root / "KnowledgeBase" / KB / "raw"
    assert one._paths_of(KB) == (KB, [{"id": "i"}], {"m": "index.sqlite"}, raw)
    reason = "its index is damaged or has another layout: fix that first"
    assert [left.reason for left in one._paths_of(OTHER).left] == [reason]
    one._store.stores[KB] = index_file(look=IndexSummary(IndexLayout.PREVIEW))
    assert [left.reason for left in one._paths_of(KB).left] == [reason]
    # A base without an index has items alone.
    del one._store.stores[KB]
    assert one._paths_of(KB) == (KB, [{"id": "i"}], {}, raw)
    monkeypatch.setattr(planner, "read_catalog", lambda _: SimpleNamespace(bases=[], items=None))
    assert made(finding(v2.ITEM_PATH_IS_ID), **NAMED)._paths_of(KB)[1] == []


def test_paths_change_in_an_index_that_was_read(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(planner.item_paths, "plan_index_change", lambda *given: asked.append(given) or "changed")
    one = made(finding(v2.ITEM_PATH_IS_ID), **NAMED)
    paths = NewPaths(KB)
    assert one._plan_material_paths(paths) is None
    one._materials[KB] = {"m": "x"}
    assert one._plan_material_paths(paths) == "changed"
    assert asked == [(one._store.root, index_file().name, paths, {"m": "x"})]
    one._materials["gone"] = {}
    assert one._plan_material_paths(NewPaths("gone")) is None


# --- what is left --------------------------------------------------------------------------------------------------


def test_what_no_repair_is_planned_for_is_named_with_its_remedy(made: Any) -> None:
    lost = finding(v2.RAW_MISSING, count=3, repair="regraft repair X --from")
    one = made(
        lost,
        finding(v2.BODY_ID),
        finding(v2.BODY_ORPHAN, OTHER),
        finding(v2.RAW_ORPHAN, severity="note"),
        finding(v2.INDEX_ORPHAN, None),
    )
    one._leave_others({})
    assert [(left.finding, left.base) for left in one._plan.left] == [
        (v2.RAW_MISSING, KB),
        (v2.BODY_ORPHAN, OTHER),
        (v2.INDEX_ORPHAN, None),
    ]
    assert one._plan.left[0] == Unresolved.with_remedy(lost, repair="regraft repair X --from")
    named = made(lost, only=[v2.BODY_ID])
    named._leave_others({})
    assert named._plan.left == []


@pytest.mark.parametrize("is_whole", [True, False])
def test_vectors_of_a_base_without_a_model_name_the_model_that_was_given(
    is_whole: bool, made: Any, tmp_path: Path
) -> None:
    found = finding(v2.VECTOR_UNEXPECTED, repair="regraft gc X")
    plain = made(found, store={"is_whole": is_whole})
    plain._leave_others({})
    assert plain._plan.left == [Unresolved.of(found, found.message, repair="regraft gc X")]
    one = made(found, model="acme::m", store={"is_whole": is_whole})
    one._leave_others({})
    [left] = one._plan.left
    assert left.reason == found.message
    where = " --base kb" if is_whole else ""
    assert left.repair == f"regraft repair {tmp_path} --only {v2.VECTOR_UNEXPECTED} --model acme::m{where}"
    # Once the base gets the model, its vectors are expected.
    one._plan.left.clear()
    one._plan.resolves.add((v2.BASE_STATUS, KB))
    one._leave_others({})
    assert one._plan.left == []


# --- the catalog ---------------------------------------------------------------------------------------------------


def plan_catalog(root: Path, *names: str, only: Iterable[str] = (), has_catalog: bool = True) -> Any:
    store: Any = Store(root)
    store.catalog = "catalog.sqlite" if has_catalog else None
    return rules_catalog.plan_catalog(store, group_by_base(map(finding, names)), frozenset(only))


def test_a_catalog_without_a_finding_to_repair_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_catalog._CatalogRepair, "derive_values", lambda *_: pytest.fail("it was read"))
    assert plan_catalog(tmp_path, v2.BODY_ID) == ([], [], set())
    assert plan_catalog(tmp_path, v2.BASE_STATUS, only=[v2.ITEM_DATA]) == ([], [], set())
    assert plan_catalog(tmp_path, v2.BASE_STATUS, has_catalog=False) == ([], [], set())


def test_a_catalog_that_cannot_be_read_leaves_its_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise CatalogProblem("cannot be read")

    monkeypatch.setattr(rules_catalog._CatalogRepair, "derive_values", fail)
    reason = "the catalog cannot be read as a whole: cannot be read"
    left = [Unresolved.registered(name, reason, base=KB) for name in (v2.BASE_STATUS, v2.ITEM_DATA)]
    assert plan_catalog(tmp_path, v2.ITEM_DATA, v2.BASE_STATUS) == ([], left, set())


@pytest.mark.parametrize(
    ("edited", "data", "tables"),
    [
        (["knowledge_base"], False, ("knowledge_base",)),
        (["knowledge_base"], True, ("knowledge_base", "knowledge_item")),
        (["knowledge_item", "knowledge_base"], True, ("knowledge_item", "knowledge_base")),
        (["knowledge_item"], True, ("knowledge_item",)),
        ([], True, ("knowledge_item",)),
    ],
)
def test_a_change_of_the_catalog_names_the_tables_that_it_writes(
    edited: list[str], data: bool, tables: tuple[str, ...], tmp_path: Path
) -> None:
    made: Any = rules_catalog._CatalogRepair(
        Store(tmp_path),  # type: ignore[arg-type]
        {},
        tmp_path / "catalog.sqlite",
        drops_lengths=False,
        model=None,
    )
    assert made.changes("catalog.sqlite") == []
    made._edits = [rules_catalog._RowEdit(table=name, rowid=1, old={}, new={}) for name in edited]
    made._data = [rules_catalog._DataEdits(KB, {1: b"x"})] if data else []
    made._actions["update-items", "rewrite {n}", "item", KB, v2.ITEM_DATA] += 2
    made._leave(v2.ITEM_DATA, "unknown", KB, "a")
    made._leave(v2.ITEM_DATA, "unknown", KB, "b")
    made._leave(v2.ITEM_STATUS, "of another type", KB, "c")
    [change_] = made.changes("catalog.sqlite")
    assert (change_.path, change_.tables, change_.bytes) == ("catalog.sqlite", tables, 0)
    [action] = change_.actions
    assert (action.message, action.base, action.count, action.finding) == ("rewrite 2 items", KB, 2, v2.ITEM_DATA)
    assert made.left() == [
        Unresolved.registered(v2.ITEM_DATA, "unknown", base=KB, count=2),
        Unresolved.registered(v2.ITEM_STATUS, "of another type", base=KB, subject="c"),
    ]
    wanted = {KB: {v2.ITEM_DATA, v2.BASE_STATUS}, OTHER: {v2.ITEM_DATA}}
    assert made.resolves(wanted) == {(v2.BASE_STATUS, KB), (v2.ITEM_DATA, OTHER)}


def test_what_is_derived_of_a_base_is_written_once_and_known_to_later_repairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Any = rules_catalog._CatalogRepair(
        Store(tmp_path),  # type: ignore[arg-type]
        {},
        tmp_path / "catalog.sqlite",
        drops_lengths=False,
        model="m",
    )
    row = {"id": KB, "status": "failed", "error": "x", "dimensions": 3}
    monkeypatch.setattr(
        rules_catalog.rules_evidence, "repair_base", lambda *given: {"status": "completed", "error": None}
    )
    monkeypatch.setattr(rules_catalog.rules_evidence, "repair_dimensions", lambda *_: "nothing shows them")
    with closing(apsw.Connection(":memory:")) as db:
        db.execute("CREATE TABLE knowledge_base (id); INSERT INTO knowledge_base VALUES ('z'), ('kb')")
        made._repair_base(db, row, None, {v2.BASE_STATUS, v2.BASE_DIMENSIONS}, None)
        [edit] = made._edits
        assert (edit.table, edit.rowid) == ("knowledge_base", 2)
        assert (edit.old, edit.new) == ({"status": "failed", "error": "x"}, {"status": "completed", "error": None})
        assert row == {"id": KB, "status": "completed", "error": None, "dimensions": 3}
        [change_] = made.changes("catalog.sqlite")
        assert [(one.message, one.count, one.finding) for one in change_.actions] == [
            ("set status completed, error NULL", 1, v2.BASE_STATUS)
        ]
        assert made.left() == [Unresolved.registered(v2.BASE_DIMENSIONS, "nothing shows them", base=KB, subject=KB)]
        # A plan without these findings derives neither.
        made._repair_base(db, row, None, {v2.ITEM_DATA}, None)
        assert len(made._edits) == 1
