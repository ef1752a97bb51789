"""Which rows and files ``regraft gc`` may remove, and why it keeps others, without a whole store."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest
from faults import fails, links
from harness import NOW_MS
from v1 import Row, vector_of, write_store

from checks.audit.collector import Level
from checks.audit.findings import Finding
from checks.cherry_v2 import findings as v2
from regraft import identity
from regraft.formats.cherry_preview import IndexLayout, IndexSummary
from regraft.formats.cherry_v1.layout import VECTOR_TABLE
from regraft.formats.cherry_v2.catalog_reader import StoredCatalog
from regraft.formats.cherry_v2.layout import StoreFile
from regraft.formats.vector_survey import VectorSurvey
from repair.changes import store as changed_store
from repair.changes.options import GcOptions
from repair.changes.plan import Action, FileChange, Plan, RowsChange, Unresolved
from repair.cherry_v2 import gc
from repair.cherry_v2.gc import files, rows
from repair.cherry_v2.gc.files import CopyFinder, Proof
from repair.cherry_v2.gc.rows import IndexGarbage

KB, OTHER = "kb", "other"
HOUR = 3600
NOW = NOW_MS / 1000


def finding(name: str, base: str | None = KB, **more: Any) -> Finding:
    return Finding(**{"name": name, "severity": "warning", "message": f"about {name}", "base": base, **more})


def options(*only: str, **more: Any) -> GcOptions:
    return GcOptions(now_ms=NOW_MS, only=frozenset(only), **more)


class Store:
    """Stands for a store in which bases have an index each."""

    catalog: str | None = "catalog.sqlite"
    bases = "KnowledgeBase"
    command_line, base_option = changed_store.Store.command_line, changed_store.Store.base_option
    now_ms = NOW_MS

    def __init__(self, root: Path, *found: Finding, chosen: Iterable[str] = (), is_whole: bool = True) -> None:
        self.root = self.path = root
        self._found, self._chosen = found, set(chosen)
        self.found = SimpleNamespace(stores=SimpleNamespace(is_whole=is_whole))
        self.names = {KB: "My base", OTHER: "Other base"}
        self.stores = {base: index_file(base) for base in (KB, OTHER)}
        self.levels: list[Any] = []

    def wants(self, base: str | None) -> bool:
        return not self._chosen or base in self._chosen

    def findings(self, level: Level) -> tuple[Finding, ...]:
        self.levels.append(level)
        return self._found

    def audit(self, *, bases: frozenset[str]) -> Any:
        self.levels.append(bases)
        return SimpleNamespace(findings=self._found)


def index_file(base: str, layout: IndexLayout = IndexLayout.CURRENT) -> StoreFile:
    place = f"KnowledgeBase/{base}"
    return StoreFile(base_id=base, name=f"{place}/.cherry/index.sqlite", raw=f"{place}/raw", look=IndexSummary(layout))


def item(key: str, kind: str = "file", status: str = "completed", **data: Any) -> dict[str, Any]:
    return {"id": key, "type": kind, "status": status, "data": json.dumps(data)}


def put(path: Path, content: bytes = b"", age: float = 2 * HOUR) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (NOW - age, NOW - age))
    return path


# --- what is wanted ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "asked", "wanted"),
    [
        (v2.RAW_ORPHAN, options(), True),
        (v2.RAW_ORPHAN, options(v2.RAW_ORPHAN), True),
        (v2.RAW_ORPHAN, options(v2.BODY_ORPHAN), False),
        (v2.RAW_ORPHAN, options(v1_leftovers=True), True),
        (v2.LEFTOVER, options(), False),
        (v2.LEFTOVER, options(v1_leftovers=True), True),
        (v2.LEFTOVER, options(v2.LEFTOVER), True),
        (v2.LEFTOVER, options(v2.RAW_ORPHAN), False),
        (v2.VECTOR_UNEXPECTED, options(), False),
        (v2.VECTOR_UNEXPECTED, options(v1_leftovers=True), False),
        (v2.VECTOR_UNEXPECTED, options(v2.VECTOR_UNEXPECTED), True),
    ],
)
def test_what_could_be_used_again_has_to_be_named(name: str, asked: GcOptions, wanted: bool) -> None:
    assert rows.is_wanted(asked, name) == wanted


# --- rows ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index with one unit, an orphan body with its vector, an orphan vector, and an orphan text."""
    monkeypatch.setattr(rows, "find_lost_units", lambda _: ([], 0))
    path = tmp_path / index_file(KB).name
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(
            """CREATE TABLE material (material_id, current_content_hash, relative_path);
            CREATE TABLE content (content_hash, text);
            CREATE TABLE search_unit (unit_id, material_id, content_hash);
            CREATE TABLE search_text (search_text_id, target_type, target_id, kind, text, embedding_text_hash);
            CREATE TABLE embedding (embedding_text_hash, vector_blob);
            INSERT INTO material VALUES ('m', 'c', 'a.txt');
            INSERT INTO content VALUES ('c', 'used'), ('d', 'unused');
            INSERT INTO search_unit VALUES ('u', 'm', 'c');
            INSERT INTO search_text VALUES ('1', 'search_unit', 'u', 'body', 'used', 'h'),
                                           ('2', 'search_unit', 'gone', 'body', 'orphan', 'o');
            INSERT INTO embedding VALUES ('h', x'01'), ('o', x'0203'), ('p', x'040506');"""
        )
    return path


def garbage(root: Path, *found: Finding, protected: str | None = None, **store: Any) -> IndexGarbage:
    place: Any = Store(root, *found, **store)
    return IndexGarbage(store=place, base=KB, name=index_file(KB).name, found=list(found), protected=protected)


def planned(root: Path, *found: Finding, asked: GcOptions | None = None, **more: Any) -> Plan:
    return garbage(root, *found, **more).plan(asked or options())


def done_of(plan: Plan) -> list[tuple[str, int, int, str | None]]:
    return [(one.action, one.count, one.bytes, one.finding) for change in plan.changes for one in change.actions]


BODY, VECTOR, TEXT = (finding(name, count=1) for name in (v2.BODY_ORPHAN, v2.VECTOR_ORPHAN, v2.CONTENT_ORPHAN))


def test_rows_that_nothing_names_go_in_one_change(index: Path, tmp_path: Path) -> None:
    plan = planned(tmp_path, BODY, VECTOR, TEXT)
    assert done_of(plan) == [
        ("delete-bodies", 1, 6, v2.BODY_ORPHAN),
        # Without the body, its vector is an orphan, too.
        ("delete-embeddings", 2, 5, v2.VECTOR_ORPHAN),
        ("delete-contents", 1, 6, v2.CONTENT_ORPHAN),
    ]
    [change] = plan.changes
    assert isinstance(change, RowsChange)
    assert (change.path, change.bytes, change.bodies) == (index_file(KB).name, 17, True)
    assert change.tables == ("search_text", "embedding", "content")
    assert plan.resolves == {(v2.BODY_ORPHAN, KB), (v2.VECTOR_ORPHAN, KB), (v2.CONTENT_ORPHAN, KB)}
    assert [one.message for one in change.actions] == [
        "delete 1 body whose unit is missing",
        "delete 2 vectors not referenced by any indexed text",
        "delete 1 text not referenced by anything",
    ]
    with closing(apsw.Connection(str(index))) as db:
        with db:
            change.apply(db)
        assert db.execute("SELECT embedding_text_hash FROM embedding").fetchall() == [("h",)]
        assert db.execute("SELECT search_text_id FROM search_text").fetchall() == [("1",)]
        assert db.execute("SELECT content_hash FROM content").fetchall() == [("c",)]
        with fails("PlanOutdated", match="the plan deletes 1 rows of search_text, but now 0 would be deleted"), db:
            change.apply(db)


def test_an_orphan_body_leaves_no_vector_behind(index: Path, tmp_path: Path) -> None:
    assert [one[:2] for one in done_of(planned(tmp_path, BODY))] == [("delete-bodies", 1), ("delete-embeddings", 2)]
    alone = planned(tmp_path, VECTOR)
    assert done_of(alone) == [("delete-embeddings", 1, 3, v2.VECTOR_ORPHAN)]
    assert isinstance(alone.changes[0], RowsChange)
    assert not alone.changes[0].bodies
    named = planned(tmp_path, BODY, asked=options(v2.BODY_ORPHAN))
    assert [one[:2] for one in done_of(named)] == [("delete-bodies", 1)]
    # All vectors of a base without a model go at once.
    every = planned(
        tmp_path,
        finding(v2.VECTOR_UNEXPECTED),
        VECTOR,
        asked=options(v2.VECTOR_UNEXPECTED, v2.VECTOR_ORPHAN),
    )
    assert done_of(every) == [("delete-embeddings", 3, 6, v2.VECTOR_UNEXPECTED)]
    assert planned(tmp_path, finding(v2.BASE_STATUS)) == Plan()
    assert planned(tmp_path, TEXT, asked=options(v2.BODY_ORPHAN)) == Plan()


def test_a_protected_or_damaged_base_keeps_its_rows(index: Path, tmp_path: Path) -> None:
    plan = planned(tmp_path, VECTOR, TEXT, finding(v2.BASE_STATUS), protected="it failed")
    assert plan == Plan(left=[Unresolved.of(one, f"{one.message}, kept: it failed") for one in (TEXT, VECTOR)])
    damage = finding(v2.CORRUPT, severity="error", repair="regraft repair X --salvage")
    plan = planned(tmp_path, VECTOR, damage, finding(v2.FOREIGN_TRIGGER))
    reason = f"cannot determine what is in use, so nothing of this base is removed: {damage.message}"
    assert plan == Plan(left=[Unresolved.of(damage, reason, repair=damage.repair)])
    assert done_of(planned(tmp_path, VECTOR, finding(v2.FOREIGN_INDEX))) != []


@pytest.mark.parametrize(
    ("of", "lacks", "command"),
    [
        (BODY, v2.NO_BODY, True),
        (VECTOR, v2.BODY_HASH, True),
        (TEXT, v2.CONTENT_HASH, True),
        (TEXT, v2.UNIT_CONTENT, False),
    ],
)
def test_rows_that_a_repair_may_need_are_kept(
    of: Finding, lacks: str, command: bool, index: Path, tmp_path: Path
) -> None:
    plan = planned(tmp_path, of, finding(lacks), asked=options(of.name))
    reason = f"{of.message}; kept, because the repair of {lacks} may need this: repair that first"
    line = f"regraft repair {tmp_path} --base kb" if command else None
    assert plan == Plan(left=[Unresolved.of(of, reason, repair=line)])


@pytest.mark.parametrize("one", [BODY, VECTOR, TEXT])
def test_rows_of_items_without_a_text_have_to_be_named(one: Finding, index: Path, tmp_path: Path) -> None:
    lacking = finding(v2.ITEM_NO_MATERIAL)
    reason = (
        f"{one.message}, kept: items of the base have no text in the index, and it may be theirs; --only {one.name}"
        " removes it"
    )
    kept = planned(tmp_path, one, lacking)
    assert (kept.changes, [left for left in kept.left if left.finding == one.name]) == (
        [],
        [Unresolved.of(one, reason)],
    )
    assert len(done_of(planned(tmp_path, one, lacking, asked=options(one.name)))) == 1
    # An item that was never processed has no text to get back.
    assert done_of(planned(tmp_path, one, finding(v2.ITEM_NO_MATERIAL, severity="note")))
    named = planned(tmp_path, finding(v2.VECTOR_UNEXPECTED), lacking, asked=options(v2.VECTOR_UNEXPECTED))
    assert len(done_of(named)) == 1


def test_where_ids_are_no_texts_nothing_is_known(index: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(index)) as db, db:
        db.execute("UPDATE material SET current_content_hash = NULL")
        db.execute("UPDATE search_unit SET unit_id = 7")
    assert [one[0] for one in done_of(planned(tmp_path, VECTOR, TEXT))] == ["delete-embeddings", "delete-contents"]
    reason = f"{BODY.message}, but some ids are not text, so what is in use cannot be determined"
    assert planned(tmp_path, BODY, asked=options(v2.BODY_ORPHAN)) == Plan(left=[Unresolved.of(BODY, reason)])


@pytest.mark.parametrize("proven", [True, False])
def test_bodies_that_prove_units_are_for_repair(
    proven: bool, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def find_lost_units(db: Any) -> tuple[list[str], int]:
        asked.append(db)
        return (["unit"] if proven else [], 0)

    monkeypatch.setattr(rows, "find_lost_units", find_lost_units)
    plan = planned(tmp_path, BODY, VECTOR)
    if proven:
        how = "gc deletes them only with --only body.orphan"
        reason = f"{BODY.message}, kept: regraft repair writes their units again; {how}"
        line = f"regraft repair {tmp_path} --only body.orphan --base kb"
        assert plan.left == [Unresolved.of(BODY, reason, repair=line)]
        assert done_of(plan) == [("delete-embeddings", 1, 3, v2.VECTOR_ORPHAN)]
    else:
        assert [one[0] for one in done_of(plan)] == ["delete-bodies", "delete-embeddings"]
    # They are computed once, and not at all where it does not matter.
    assert len(asked) == 1
    assert done_of(planned(tmp_path, BODY, asked=options(v2.BODY_ORPHAN)))
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("change", "found", "shrinks", "left"),
    [
        (None, [], True, []),
        (None, [v2.BODY_ROWID], False, [v2.BODY_ROWID]),
        (None, [v2.BODY_ROWID, v2.FTS_DESYNC], False, [v2.FTS_DESYNC]),
        ("bodies", [v2.FTS_DESYNC], True, []),
        ("rows", [v2.FTS_DESYNC], False, [v2.FTS_DESYNC]),
        ("file", [v2.FTS_DESYNC], False, [v2.FTS_DESYNC]),
    ],
)
def test_space_is_given_back_unless_that_would_hide_damage(
    change: str | None,
    found: list[str],
    shrinks: bool,
    left: list[str],
    index: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(rows.store, "database_sizes", lambda _: (5000, 100))
    monkeypatch.setattr(rows.store, "is_vacuum_worthwhile", lambda *given: asked.append(given) or worthwhile)
    removal = Plan()
    actions = (Action(action="x", message="x", bytes=900),)
    if change == "file":
        removal.changes = [FileChange(path="x", actions=actions, make=None)]
    elif change is not None:
        removal.changes = [RowsChange(path="x", actions=actions, apply=print, tables=(), bodies=change == "bodies")]
    worthwhile = True
    one = garbage(tmp_path, *(finding(name, count=3, repair="regraft repair X") for name in found))
    plan = rows.plan_space(one, removal)
    free = 100 + 900 * (change is not None)
    assert asked == [(5000, free)]
    assert [(made.finding, made.subject, made.count, made.repair) for made in plan.left] == [
        (name, index_file(KB).name, 3, "regraft repair X") for name in left
    ]
    assert [(made.path, made.action.action, made.action.bytes, made.bytes) for made in plan.reclaims] == (
        [(index_file(KB).name, "vacuum", free, 5000)] if shrinks else []
    )
    worthwhile = False
    assert rows.plan_space(one, removal) == Plan()


# --- files ---------------------------------------------------------------------------------------------------------


def test_files_that_are_young_or_cannot_be_read_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = Store(tmp_path)

    def kept(path: Path) -> str | None:
        return files.find_reason_to_keep(store, path)

    assert kept(put(tmp_path / "old.txt")) is None
    assert kept(put(tmp_path / "hour.txt", age=HOUR)) is None
    assert kept(put(tmp_path / "young.txt", age=HOUR - 1)) == "it is younger than an hour"
    folder = tmp_path / "folder"
    put(folder / "sub" / "a.txt")
    os.utime(folder / "sub", (NOW - 2 * HOUR,) * 2)
    os.utime(folder, (NOW - 2 * HOUR,) * 2)
    assert kept(folder) is None
    os.utime(folder / "sub", (NOW - 5,) * 2)
    assert kept(folder) == "something in it is younger than an hour"
    with pytest.raises(FileNotFoundError) as missing:
        (tmp_path / "nothing").lstat()
    assert kept(tmp_path / "nothing") == f"it cannot be read: {missing.value.strerror}"

    def fail(_: Path, fails: Any) -> Any:
        fails(PermissionError(13, "Permission denied"))

    monkeypatch.setattr(files.file_paths, "walk", fail)
    assert kept(folder) == "it cannot be read: Permission denied"
    assert kept(tmp_path / "half \udcff") == "its name is not UTF-8"


@links
def test_a_link_stays(tmp_path: Path) -> None:
    store: Any = Store(tmp_path)
    (tmp_path / "link").symlink_to(put(tmp_path / "old.txt"))
    assert files.find_reason_to_keep(store, tmp_path / "link") == "it is a symbolic link"


def copies(root: Path, *items: Any, raw: Path | None = None) -> CopyFinder:
    store: Any = Store(root)
    return CopyFinder(store, KB, list(items), raw or root / index_file(KB).raw)


def test_another_copy_is_a_file_that_an_item_names_or_its_text(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tmp_path / index_file(KB).raw
    put(raw / "a.txt", b"same")
    put(raw / "sub" / "b.md", b"same")
    for name in ("stray", "text", "other", "front"):
        put(raw / name, {"stray": b"same", "text": b"used", "other": b"sane", "front": b"---\nx: 1\n---\nused"}[name])
    with closing(sqlite3.connect(index)) as db, db:
        key = identity.text_hash("used")
        db.execute("UPDATE material SET current_content_hash = ?", (key,))
        db.execute("UPDATE content SET content_hash = ? WHERE content_hash = 'c'", (key,))
    one = copies(tmp_path, item("m", indexedRelativePath="sub/b.md", relativePath="gone.txt"))
    assert one.of("stray") == "raw/sub/b.md"
    assert one.of("text") == "the indexed text of item m"
    assert (one.of("other"), one.of("nothing"), one.of("sub")) == (None, None, None)
    # The text of an item that is being deleted, or of none, may go at any time.
    assert copies(tmp_path, item("m", status="deleting")).of("text") is None
    assert copies(tmp_path).of("text") is None
    monkeypatch.setattr(files, "_LARGEST_TEXT", 4)
    assert one.of("text") == "the indexed text of item m"
    monkeypatch.setattr(files, "_LARGEST_TEXT", 3)
    assert one.of("text") is None
    monkeypatch.setattr(files, "_LARGEST_TEXT", 100)
    with closing(sqlite3.connect(index)) as db, db:
        db.execute("UPDATE content SET text = 'another' WHERE content_hash = ?", (key,))
    assert one.of("text") is None
    index.unlink()
    assert one.of("text") is None
    without: Any = Store(tmp_path)
    without.stores = {}
    assert CopyFinder(without, KB, [item("m", relativePath="a.txt")], raw).of("stray") == "raw/a.txt"
    assert CopyFinder(without, KB, [item("m")], raw).of("text") is None


@pytest.mark.parametrize(
    ("row", "known", "is_whole", "folder"),
    [
        ({"status": "failed"}, True, True, "KnowledgeBase/kb/raw"),
        ({"status": "failed"}, False, True, "KnowledgeBase/kb/raw"),
        ({"status": "completed"}, False, True, None),
        ({"status": "failed"}, False, False, None),
    ],
)
def test_which_folder_has_the_files_of_a_base(
    row: dict[str, Any], known: bool, is_whole: bool, folder: str | None, tmp_path: Path
) -> None:
    store: Any = Store(tmp_path, is_whole=is_whole)
    if not known:
        del store.stores[KB]
    assert files._find_raw_folder(store, KB, row) == (None if folder is None else tmp_path / folder)
    assert files._find_raw_folder(store, "..", {"status": "failed"}) is None


@pytest.mark.parametrize(
    ("data", "is_known"),
    [
        ({"relativePath": "a.txt"}, True),
        ({"source": "x"}, True),
        ({"relativePath": "a.txt", "indexedRelativePath": 5}, False),
        ({"relativePath": ["a.txt"]}, False),
        ({}, False),
    ],
)
def test_names_have_to_be_known(data: dict[str, Any], is_known: bool, tmp_path: Path) -> None:
    why = files._find_unknown_names(tmp_path, [item("fine", source="x"), item("i", **data)])
    assert why == (None if is_known else "the paths of item i cannot be read")


@links
def test_names_are_not_known_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "folder", target_is_directory=True)
    (tmp_path / "folder" / "raw").mkdir(parents=True)
    for path in (tmp_path / "link", tmp_path / "link" / "raw"):
        assert files._find_unknown_names(path, []) == "the folder is a link, and links are not followed"
    assert files._find_unknown_names(tmp_path / "folder" / "raw", []) is None


def test_a_file_that_an_item_may_mean_is_not_an_orphan(index: Path, tmp_path: Path) -> None:
    items = [
        item("m", relativePath="Report.PDF", indexedRelativePath="caf\u00e9.md"),
        item("d", "directory", relativePath="Docs/"),
        item("f", "file", relativePath="folder"),
    ]
    why = files._make_name_test(Store(tmp_path), KB, items)  # type: ignore[arg-type]
    other = "an item refers to it with other letter case or Unicode normalization"
    for name in ("report.pdf", "Cafe\u0301.md", "docs/a.txt", "DOCS/sub/a.txt"):
        assert why(name) == other
    assert why("A.txt") == "the index uses it for an item that has another path; run regraft reconcile first"
    for name in ("docs", "docs2/a.txt", "folder/a.txt", "other"):
        assert why(name) is None
    # A material without an item may have any file.
    assert files._make_name_test(Store(tmp_path), KB, items[1:])("a.txt") is None  # type: ignore[arg-type]


class Unprotected:
    """Stands for the protection of bases."""

    def __init__(self, why: str | None = None) -> None:
        self._why = why

    def reason(self, _: str) -> str | None:
        return self._why


def plan_raw(root: Path, *items: Any, asked: GcOptions | None = None, why: str | None = None, **more: Any) -> Plan:
    catalog = SimpleNamespace(bases=[{"id": KB, "status": "completed"}], items={KB: list(items)})
    usual = {"catalog": catalog, "damaged": set(), "store": Store(root)}
    given: dict[str, Any] = {**usual, **more}
    protection: Any = Unprotected(why)
    return files.plan_raw(given["store"], given["catalog"], asked or options(), given["damaged"], protection)


def test_raw_files_go_where_a_copy_is_known_or_they_are_named(index: Path, tmp_path: Path) -> None:
    raw = tmp_path / index_file(KB).raw
    put(raw / "a.txt", b"same")
    put(raw / "copy.txt", b"same")
    items = [item("m", relativePath="a.txt")]
    plan = plan_raw(tmp_path, *items)
    assert [change.path for change in plan.changes] == ["KnowledgeBase/kb/raw/copy.txt"]
    [action] = plan.changes[0].actions
    said = "move raw/copy.txt, which no item names, to the trash: it is the same as raw/a.txt"
    assert (action.message, action.finding, plan.resolves) == (said, v2.RAW_ORPHAN, {(v2.RAW_ORPHAN, KB)})
    put(raw / "only.txt", b"only here")
    plan = plan_raw(tmp_path, *items)
    kept = "raw/only.txt: kept: no other copy of it is known; --only raw.orphan removes it"
    assert [(left.reason, left.subject) for left in plan.left] == [(kept, "only.txt")]
    assert (len(plan.changes), plan.resolves) == (1, set())
    named = plan_raw(tmp_path, *items, asked=options(v2.RAW_ORPHAN))
    assert [change.actions[0].message for change in named.changes] == [
        f"move raw/{name}, which no item names, to the trash" for name in ("copy.txt", "only.txt")
    ]
    assert named.resolves == {(v2.RAW_ORPHAN, KB)}
    protected = plan_raw(tmp_path, *items, why="it failed")
    reason = "2 files in raw/: it failed"
    assert protected == Plan(left=[Unresolved(finding=v2.RAW_ORPHAN, reason=reason, base=KB, count=2)])
    # Neither are files of other findings, of damaged bases or of others moved, nor those of no known items.
    catalog = SimpleNamespace(bases=[{"id": KB, "status": "completed"}], items=None)
    for more in (
        {"asked": options(v2.BODY_ORPHAN)},
        {"damaged": {KB}},
        {"store": Store(tmp_path, chosen=[OTHER])},
        {"catalog": None},
        {"catalog": catalog},
    ):
        assert plan_raw(tmp_path, *items, **more) == Plan()
    for path in raw.iterdir():
        path.unlink()
    assert plan_raw(tmp_path, *items) == Plan()
    raw.rmdir()
    assert plan_raw(tmp_path, *items) == Plan()


# --- folders -------------------------------------------------------------------------------------------------------


def plan_folders(root: Path, asked: GcOptions | None = None, **more: Any) -> tuple[Plan, set[str]]:
    catalog = StoredCatalog(bases=[{"id": KB}, {"id": OTHER}], items={"owned": [{"id": "i"}, {"id": "j"}]})
    usual = {"catalog": catalog, "store": Store(root)}
    given: dict[str, Any] = {**usual, **more}
    return files.plan_folders(given["store"], given["catalog"], asked or options())


@pytest.fixture
def strays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders of bases that the catalog does not name, all two hours old."""
    found = [tmp_path / "KnowledgeBase" / name for name in ("empty", "full", "owned")]
    put(found[1] / "raw" / "a.txt")
    for folder in (found[0] / ".cherry", found[2], found[1] / "raw", *found):
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder, (NOW - 2 * HOUR,) * 2)
    for folder in found:
        os.utime(folder, (NOW - 2 * HOUR,) * 2)
    every = [(v2.INDEX_ORPHAN, path) for path in found] + [(v2.LEFTOVER, tmp_path / "KnowledgeBase" / "v1")]
    monkeypatch.setattr(files.checked, "find_strays", lambda *_: iter(every))
    return found


def test_folders_of_no_base_go_if_they_are_empty_or_named(strays: list[Path], tmp_path: Path) -> None:
    plan, gone = plan_folders(tmp_path)
    assert (gone, [change.path for change in plan.changes]) == ({"empty"}, ["KnowledgeBase/empty"])
    assert [left.reason for left in plan.left] == [
        "the folder full is kept: kept: it can be listed again; --only index.orphan removes it",
        "the folder owned is kept: 2 items of the catalog still belong to it",
    ]
    assert plan.resolves == set()
    named, gone = plan_folders(tmp_path, options(v2.INDEX_ORPHAN))
    assert (gone, named.resolves) == ({"empty", "full"}, set())
    catalog = StoredCatalog(bases=[{"id": KB}], items={})
    every, gone = plan_folders(tmp_path, options(v2.INDEX_ORPHAN), catalog=catalog)
    assert (gone, every.resolves) == ({"empty", "full", "owned"}, {(v2.INDEX_ORPHAN, None)})
    chosen, gone = plan_folders(tmp_path, store=Store(tmp_path, chosen=["full"]))
    assert (gone, len(chosen.left)) == (set(), 1)
    none = StoredCatalog(bases=[{"id": KB}], items=None)
    for more in (
        {"catalog": None},
        {"catalog": none},
        {"asked": options(v2.BODY_ORPHAN)},
        {"store": Store(tmp_path, is_whole=False)},
    ):
        assert plan_folders(tmp_path, **more) == (Plan(), set())


def test_an_index_without_rows_is_nothing(index: Path, tmp_path: Path) -> None:
    store: Any = Store(tmp_path)
    folder = tmp_path / "KnowledgeBase" / KB
    assert files._holds_anything(store, folder)
    for table in ("material", "content", "search_unit", "search_text", "embedding"):
        with closing(sqlite3.connect(index)) as db, db:
            for other in ("material", "content", "search_unit", "search_text", "embedding"):
                db.execute(f"DELETE FROM {other}")
        assert not files._holds_anything(store, folder)
        with closing(sqlite3.connect(index)) as db, db:
            db.execute(f"INSERT INTO {table} DEFAULT VALUES")
        assert files._holds_anything(store, folder)
    with closing(sqlite3.connect(index)) as db, db:
        db.execute(f"DELETE FROM {table}")
    assert not files._holds_anything(store, folder)
    store.stores[KB] = index_file(KB, IndexLayout.PREVIEW)
    assert files._holds_anything(store, folder)
    store.stores[KB] = index_file(KB)
    put(folder / "raw" / "a.txt")
    assert files._holds_anything(store, folder)
    (folder / "raw" / "a.txt").unlink()
    index.write_bytes(b"SQLite format 3\0" + bytes(2000))
    assert files._holds_anything(store, folder)
    (tmp_path / "KnowledgeBase" / "nobody" / "raw").mkdir(parents=True)
    assert not files._holds_anything(store, tmp_path / "KnowledgeBase" / "nobody")


# --- vector files of v1 --------------------------------------------------------------------------------------------


def vector_file(path: Path, *provers: str, rows: int = 2, usable: int = 2, best: Proof | None = None) -> Any:
    survey = VectorSurvey(rows=rows, lengths={16: usable} if usable else {})
    return files._VectorFile(path, survey, set(provers), best)


OWN = identity.base_id("v1")


@pytest.mark.parametrize(
    ("found", "named", "owners"),
    [
        ({"v1": (OWN, "x")}, {OWN, "x"}, {"v1": OWN}),
        ({"v1": ("x",)}, {OWN, "x"}, {}),
        ({"v1": ("x", "w")}, {"x", "w"}, {"v1": "w"}),
        # Of two files with one base, only the one whose id it has is sure.
        ({"v1": ("x",), "v2": ("x",)}, {"x"}, {}),
        ({"v1": ("x",), "v2": ("x", "y")}, {"x", "y"}, {"v1": "x", "v2": "y"}),
        ({"v1": (OWN,), "v2": (OWN,)}, {OWN}, {"v1": OWN}),
        ({}, set(), {}),
    ],
)
def test_a_base_proves_one_file(
    found: dict[str, tuple[str, ...]], named: set[str], owners: dict[str, str], tmp_path: Path
) -> None:
    every = [vector_file(tmp_path / name, *provers) for name, provers in found.items()]
    assert {path.name: base for path, base in files._find_owners(every, named).items()} == owners


@pytest.mark.parametrize(
    ("rows_", "stores", "is_stranded"),
    [
        ([{"id": KB, "error": None}], {KB}, False),
        ([{"id": KB, "error": "missing_embedding_model"}], {KB}, True),
        ([{"id": KB, "error": "missing_vector_store"}], {KB}, True),
        ([{"id": KB, "error": "other"}], {KB}, False),
        ([{"id": KB, "error": None}, {"id": OTHER, "error": None}], {KB}, True),
        ([], set(), False),
    ],
)
def test_a_base_that_failed_or_has_no_index_may_need_its_file(
    rows_: list[Any], stores: set[str], is_stranded: bool
) -> None:
    store: Any = SimpleNamespace(stores=dict.fromkeys(stores))
    assert files._has_stranded(store, SimpleNamespace(bases=rows_)) == is_stranded  # type: ignore[arg-type]
    assert not files._has_stranded(store, None)


def test_why_a_vector_file_is_not_proven(tmp_path: Path) -> None:
    path = tmp_path / "v1"

    def left(*given: Any, **more: Any) -> Any:
        one = files._leave_unproven(vector_file(path, *given, **more))
        return one and (one.reason, one.base, one.subject, one.count)

    start = "the vector file v1 of v1 is kept: "
    assert left(rows=0, usable=0) is None
    assert left(KB) is None
    why = "none of its 3 rows has a usable vector, so nothing proves that it was migrated"
    assert left(KB, rows=3, usable=0) == (start + why, None, "v1", 3)
    assert left() == (start + "no intact index could contain its vectors", None, "v1", 2)
    some = Proof(KB, proven=1, first="the text “x” is not in it")
    example = "; for example, the text “x” is not in it"
    assert left(best=some) == (start + "v2 has 1 of its 2 vectors" + example, KB, "v1", 1)
    none = Proof(KB, proven=0, first="the text “x” is not in it")
    assert left(best=none) == (start + "v2 has 0 of its 2 vectors" + example, None, "v1", 2)


def test_why_a_proven_vector_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "KnowledgeBase" / "v1")
    store: Any = Store(tmp_path)
    monkeypatch.setattr(files, "_has_no_more", lambda index, _: index.name == "no more")

    def decided(one: Any, owner: str | None, **in_doubt: Path) -> Any:
        return files._decide_file(store, one, owner, in_doubt)

    proven = vector_file(path, KB, OTHER)
    kept = decided(proven, None)
    start = "the vector file v1 of v1 is kept: v2 has its 2 vectors, byte for byte, but "
    assert (kept.reason, kept.base, kept.count) == (start + "in a base that was made from another file", KB, 2)
    kept = decided(proven, KB, kb=Path("more"))
    assert kept.reason == start + "it may belong to a base that failed in the upgrade; run regraft rescue first"
    assert (kept.base, kept.count) == (KB, 2)
    move = "move the vector file v1 of v1 to the trash: "
    bytes_ = "v2 has its 2 vectors, byte for byte"
    for one, owner, doubt, said in (
        (proven, KB, {}, bytes_),
        (proven, KB, {"kb": Path("no more")}, bytes_),
        (proven, KB, {"other": Path("more")}, bytes_),
        (vector_file(path, OWN), OWN, {OWN: Path("more")}, bytes_),
        (vector_file(path, KB, rows=5), KB, {}, bytes_ + "; never migrated: 3 rows without a usable vector"),
        (vector_file(path, rows=0, usable=0), None, {}, "it has no rows"),
    ):
        change = files._decide_file(store, one, owner, doubt)
        assert isinstance(change, FileChange)
        assert (change.path, change.trash) == ("KnowledgeBase/v1", True)
        [action] = change.actions
        assert (action.action, action.message, action.base) == ("trash-vector-file", move + said, owner)


def v2_index(path: Path, *bodies: tuple[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(
            """CREATE TABLE search_unit (unit_id);
            CREATE TABLE search_text (target_id, text, embedding_text_hash);
            CREATE TABLE embedding (embedding_text_hash, vector_blob);"""
        )
        for number, (text, vector) in enumerate(bodies):
            key = identity.text_hash(text)
            db.execute("INSERT INTO search_unit VALUES (?)", (str(number),))
            db.execute("INSERT INTO search_text VALUES (?, ?, ?)", (str(number), text, key))
            db.execute("INSERT INTO embedding VALUES (?, ?)", (key, vector))
    return path


def test_an_index_proves_a_file_if_it_has_all_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"text {number}" for number in range(5)]
    path = write_store(tmp_path / "v1", [Row("L", text) for text in texts])
    survey = VECTOR_TABLE.survey(path)
    every = [(text, vector_of(text)) for text in texts]
    whole = v2_index(tmp_path / "whole.sqlite", *every)
    part = v2_index(tmp_path / "part.sqlite", *every[:3], (texts[3], vector_of("x")))
    none = v2_index(tmp_path / "none.sqlite")
    monkeypatch.setattr(files, "_BATCH", 2)
    assert files._find_proof(path, survey, {"a": whole, "b": part}) == ({"a"}, None)
    assert files._find_proof(path, survey, {}) == (set(), None)
    lacks = "the text “text 3” has another vector in it"
    assert files._find_proof(path, survey, {"a": none, "b": part}) == (set(), Proof("b", 3, lacks))
    # Of equals, the one whose id follows from the file's is named.
    own = identity.base_id("v1")
    for names in (("a", own), (own, "zzz")):
        proofs = files._find_proof(path, survey, dict.fromkeys(names, part))
        assert proofs == (set(), Proof(own, 3, lacks))
    assert files._compare_with_index(path, survey, "b", part, stop=True) == Proof("b", 3, lacks)
    late = v2_index(tmp_path / "late.sqlite", *every[1:])
    missing = "the text “text 0” is not in it"
    assert files._compare_with_index(path, survey, "b", late, stop=True) == Proof("b", 0, missing)
    assert files._compare_with_index(path, survey, "b", late, stop=False) == Proof("b", 4, missing)
    broken = put(tmp_path / "broken.sqlite", b"SQLite format 3\0" + bytes(2000))
    found = files._compare_with_index(path, survey, "b", broken, stop=True)
    assert (found.proven, str(found.first).startswith("one of the two cannot be read: ")) == (0, True)
    assert files._has_no_more(whole, vector_file(path, rows=5, usable=5))
    assert not files._has_no_more(whole, vector_file(path, rows=5, usable=4))
    # Half of a unit's body proves nothing.
    with closing(sqlite3.connect(whole)) as db, db:
        db.execute("DELETE FROM search_unit WHERE unit_id = '4'")
    assert files._find_proof(path, survey, {"a": whole})[0] == set()


@pytest.fixture
def leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Vector files of v1: one that an index has, one of which it has half, an empty, a broken and a young one."""
    folder = tmp_path / "KnowledgeBase"
    folder.mkdir()
    v2_index(tmp_path / index_file(KB).name, ("one", vector_of("one")), ("two", vector_of("two")))
    v2_index(tmp_path / index_file(OTHER).name, ("one", vector_of("one")), ("three", vector_of("three")))
    made = {
        "proven": write_store(folder / "proven", [Row("L", "one"), Row("L", "two")]),
        "half": write_store(folder / "half", [Row("L", "one"), Row("L", "four")]),
        "empty": write_store(folder / "empty", []),
        "broken": put(folder / "broken", b"SQLite format 3"),
        "young": put(folder / "young", age=5),
    }
    for name, path in made.items():
        if name != "young":
            os.utime(path, (NOW - 2 * HOUR,) * 2)
    every = [(v2.LEFTOVER, path) for path in made.values()] + [(v2.INDEX_ORPHAN, folder / "nobody")]
    monkeypatch.setattr(files.checked, "find_strays", lambda *_: iter(every))
    return made


def plan_leftovers(root: Path, asked: GcOptions | None = None, **more: Any) -> Plan:
    bases = [{"id": base, "status": "completed", "error": None} for base in (KB, OTHER)]
    usual = {"catalog": SimpleNamespace(bases=bases), "store": Store(root)}
    given: dict[str, Any] = {**usual, **more}
    indexes = {base: index_file(base).name for base in (KB, OTHER)}
    return files.plan_leftovers(given["store"], given["catalog"], asked or options(v1_leftovers=True), indexes)


def test_only_vector_files_that_an_index_has_whole_go(leftovers: dict[str, Path], tmp_path: Path) -> None:
    plan = plan_leftovers(tmp_path)
    assert [change.path for change in plan.changes] == ["KnowledgeBase/proven", "KnowledgeBase/empty"]
    assert [change.actions[0].base for change in plan.changes] == [KB, None]
    kept = {left.subject: (left.reason.removeprefix(f"the vector file {left.subject} of v1 is kept: "), left.base)
            for left in plan.left}  # fmt: skip
    assert kept["half"] == ("v2 has 1 of its 2 vectors; for example, the text “four” is not in it", KB)
    assert kept["young"] == ("it is younger than an hour", None)
    assert set(kept) == {"half", "young", "broken"}
    assert plan.resolves == set()
    # The base of others may not be the chosen one, and it is not known whose they are.
    assert {left.subject for left in plan_leftovers(tmp_path, store=Store(tmp_path, chosen=[KB])).left} == {"half"}
    assert plan_leftovers(tmp_path, options()) == Plan()
    assert plan_leftovers(tmp_path, store=Store(tmp_path, is_whole=False)) == Plan()
    # A base that failed proves nothing, and may need the file.
    failed = [{"id": KB, "status": "failed", "error": "missing_vector_store"}, {"id": OTHER, "status": "completed"}]
    plan = plan_leftovers(tmp_path, catalog=SimpleNamespace(bases=failed))
    assert [change.path for change in plan.changes] == ["KnowledgeBase/empty"]
    # A store without a catalog has no base that failed.
    assert len(plan_leftovers(tmp_path, catalog=None).changes) == 2


def test_where_no_vector_file_stays_the_finding_is_resolved(
    leftovers: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.checked, "find_strays", lambda *_: [(v2.LEFTOVER, leftovers["proven"])])
    plan = plan_leftovers(tmp_path, options(v2.LEFTOVER))
    assert (len(plan.changes), plan.left, plan.resolves) == (1, [], {(v2.LEFTOVER, None)})
    # Another base has no index: the file may be its own, if the index that has it has more.
    with closing(sqlite3.connect(tmp_path / index_file(KB).name)) as db, db:
        db.execute("INSERT INTO embedding VALUES ('x', x'00')")
    assert len(plan_leftovers(tmp_path).changes) == 1
    stranded = Store(tmp_path)
    del stranded.stores[OTHER]
    [left] = plan_leftovers(tmp_path, store=stranded).left
    assert left.reason.endswith("but it may belong to a base that failed in the upgrade; run regraft rescue first")
    monkeypatch.setattr(files.checked, "find_strays", lambda *_: [])
    assert plan_leftovers(tmp_path) == Plan()


def test_long_texts_are_quoted_in_part() -> None:
    assert files._describe_lack("x" * 40, None) == f"the text “{'x' * 40}” is not in it"
    assert files._describe_lack("x\n" + "y" * 39, b"") == f"the text “x {'y' * 38}…” has another vector in it"


def test_texts_without_a_usable_vector_keep_their_file_unless_it_is_named(tmp_path: Path) -> None:
    short = b"\0" * 7
    path = write_store(tmp_path / "v1", [Row("L", "in v2"), Row("L", "lost", vector=short), Row("L", "", vector=short)])
    full = v2_index(tmp_path / "full.sqlite", ("in v2", b""), ("lost", b""))
    part = v2_index(tmp_path / "part.sqlite", ("in v2", b""))
    assert (files._count_lost_texts(path, full), files._count_lost_texts(path, part)) == (0, 1)

    def left(*provers: str, asked: GcOptions | None = None, usable: int = 1) -> Any:
        one = vector_file(path, *provers, rows=3, usable=usable)
        made = files._leave_with_other_texts(one, {"full": full, "part": part}, asked or options())
        return made and (made.reason, made.base, made.count)

    why = (
        "the vector file v1 of v1 is kept: 1 row without a usable vector have texts that are not in v2;"
        " --only v1.leftover removes the file anyway"
    )
    assert left("part") == (why.replace("v1.leftover", v2.LEFTOVER), None, 1)
    # One index with all of them is enough.
    assert left("part", "full") is None
    assert left() is None
    assert left("part", asked=options(v2.LEFTOVER)) is None
    assert left("part", usable=3) is None


# --- the order -----------------------------------------------------------------------------------------------------


def test_rows_go_before_files_and_damaged_bases_keep_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damage = finding(v2.CORRUPT, "damaged")
    store: Any = Store(tmp_path, damage, VECTOR, finding(v2.VECTOR_ORPHAN, "gone"))
    store.stores |= {"damaged": index_file("damaged"), "gone": index_file("gone")}
    told: list[Any] = []

    def change(name: str) -> RowsChange:
        return RowsChange(path=name, actions=(), apply=print, tables=())

    def removal(name: str) -> FileChange:
        return FileChange(path=name, actions=(), make=None)

    class Garbage:
        def __init__(self, **given: Any) -> None:
            self.base = given["base"]
            told.append((self.base, given["name"], [one.name for one in given["found"]], given["protected"]))

        def plan(self, _: GcOptions) -> Plan:
            resolves = {(v2.VECTOR_UNEXPECTED, OTHER)} if self.base == OTHER else set()
            return Plan([change(self.base)], [], resolves)

    monkeypatch.setattr(gc, "read_store_catalog", lambda _: "catalog")
    monkeypatch.setattr(gc, "Protection", lambda *given: told.append(given) or Unprotected("why"))
    monkeypatch.setattr(gc.files, "plan_folders", lambda *_: (Plan([removal("folder")]), {"gone"}))
    monkeypatch.setattr(gc.rows, "IndexGarbage", Garbage)
    monkeypatch.setattr(gc.rows, "plan_space", lambda file, made: Plan(left=[Unresolved(finding="x", reason="space")]))
    monkeypatch.setattr(gc.files, "plan_raw", lambda *given: told.append(given[3]) or Plan([removal("raw")]))
    monkeypatch.setattr(gc.files, "plan_leftovers", lambda *given: told.append(given[3]) or Plan([removal("v1")]))
    monkeypatch.setattr(gc.undo, "add_expired_runs", lambda made, *_: made)
    plan = gc.plan(store, options(spared=frozenset({"s"})))
    assert [one.path for one in plan.changes] == [KB, OTHER, "folder", "raw", "v1"]
    assert [left.finding for left in plan.left] == [v2.CORRUPT]
    assert told == [
        (store, "catalog", {"s"}),
        (KB, index_file(KB).name, [v2.VECTOR_ORPHAN], "why"),
        (OTHER, index_file(OTHER).name, [], "why"),
        {"damaged"},
        # An index whose vectors go proves nothing.
        {KB: index_file(KB).name},
    ]
    assert store.levels == [Level.QUICK]
    shrunk = gc.plan(store, options(vacuum=True))
    assert [left.reason for left in shrunk.left if left.finding == "x"] == ["space", "space"]
    store.catalog = None
    told.clear()
    gc.plan(store, options())
    assert told[0][1] is None
