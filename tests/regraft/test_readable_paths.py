"""Folders as early releases left them: their files under their own ids, and giving these readable paths."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from harness import GOLDEN, golden, run, snapshot
from rescued import actions, left
from stranded import DATABASE, base_of, contents, index_of, profile, settled, sql, tables
from v1 import Row, Source, base, dicts, file, folder, opened

from regraft.disk import sqlite
from regraft.errors import PlanOutdated
from regraft.ledger.ledger import ChangeLog
from repair.cherry_v2 import item_paths

NAME = "item.path-is-id"
SET_PATH = "UPDATE knowledge_item SET data = json_set(data, '$.relativePath', '{}') WHERE id = '{}'"
EARLY = (
    "UPDATE knowledge_item SET data = json_set(data, '$.relativePath', id) WHERE group_id IS NOT NULL",
    "UPDATE knowledge_item SET data = json_remove(data, '$.relativePath') WHERE type = 'directory'",
)


def some_source() -> Source:
    """Return two folders of one name, an upload called like them, and files whose names meet."""
    loaders = {
        "A": "/x/docs/a.md",
        "B": "/x/docs/sub/b.md",
        "C": "/elsewhere/A.md",
        "D": "C:\\y\\Docs\\d.md",
        "U": "/u",
    }
    rows = [Row(f"{one}0", f"text {n} of {one}", source=at) for n in range(2) for one, at in loaders.items()]
    items = [
        folder("d", "A0", "B0", "C0", path="/x/docs"),
        file("u", "U0", name="docs"),
        folder("e", "D0", path="C:\\y\\Docs"),
    ]
    return Source([base("kb", *items)], {"kb": rows}, uploads={"up-u": b"u"})


@pytest.fixture
def early(tmp_path: Path) -> Path:
    made = profile(tmp_path / "p", some_source(), wal=False)
    sql(made / DATABASE, *EARLY)
    upload = next(row["id"] for row in items(made) if row["type"] == "file" and row["group_id"] is None)
    # No name yielded to a prefix when there were none.
    sql(
        made / DATABASE,
        f"UPDATE knowledge_item SET data = json_set(data, '$.relativePath', 'docs') WHERE id = '{upload}'",
    )
    sql(index_of(made), f"UPDATE material SET relative_path = 'docs' WHERE material_id = '{upload}'")
    raw = index_of(made).parents[1] / "raw"
    (raw / "docs_2").rename(raw / "docs")
    ids = [row["id"] for row in items(made) if row["group_id"] is not None]
    marks = ", ".join(f"'{one}'" for one in ids)
    sql(index_of(made), f"UPDATE material SET relative_path = material_id WHERE material_id IN ({marks})")
    return made


def items(made: Path) -> list[dict[str, Any]]:
    with opened(settled(made / DATABASE)) as db:
        return dicts(db, "SELECT * FROM knowledge_item ORDER BY rowid")


def paths(made: Path) -> dict[str, str | None]:
    """Return the paths of items by their sources."""
    found = [json.loads(row["data"]) for row in items(made)]
    return {one["source"]: one.get("relativePath") for one in found}


def materials(made: Path) -> dict[str, str]:
    with opened(settled(index_of(made))) as db:
        return {row["material_id"]: row["relative_path"] for row in dicts(db, "SELECT * FROM material")}


def rows(made: Path) -> tuple[dict[str, list[Any]], ...]:
    """Return every row of the catalog and of the index."""
    return tables(made / DATABASE), tables(index_of(made))


def findings(made: Path) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in run("check", made, "--deep", "--json").document["findings"]}


def mend(made: Path, *more: object) -> dict[str, Any]:
    done = run("repair", made, "--only", NAME, "--json", *more)
    assert done.status == 0, done
    return done.document


def test_an_early_profile_is_healthy_and_says_how_its_files_get_names(early: Path) -> None:
    done = run("check", early, "--deep", "--json")
    assert done.status == 0
    found = {one["name"]: one for one in done.document["findings"]}
    assert found.keys() == {NAME, "v1.leftover"}
    assert (found[NAME]["severity"], found[NAME]["count"]) == ("note", 4)
    assert found[NAME]["repair"] == f"regraft repair {early} --only {NAME} --base {base_of('kb')}"


def test_repair_by_itself_leaves_them(early: Path) -> None:
    before = snapshot(early)
    assert run("repair", early, "--json").document["actions"] == []
    assert snapshot(early) == before


def test_folders_and_files_get_paths_in_catalog_and_index(early: Path) -> None:
    before = rows(early)
    planned = mend(early, "--dry-run")
    assert rows(early) == before
    document = mend(early)
    assert planned["actions"] == document["actions"]
    assert actions(document) == ["name-folders", "name-files", "update-paths"]
    assert [one["count"] for one in document["actions"]] == [2, 4, 4]
    # The upload keeps its name, and no prefix has it.
    assert "docs" in paths(early).values()
    assert (paths(early)["/x/docs"], paths(early)["C:\\y\\Docs"]) == ("docs_1", "Docs_2")
    assert paths(early)["/x/docs/a.md"] == "docs_1/a.md"
    assert paths(early)["/x/docs/sub/b.md"] == "docs_1/sub/b.md"
    assert paths(early)["/elsewhere/A.md"] == "docs_1/A_1.md"
    assert paths(early)["C:\\y\\Docs\\d.md"] == "Docs_2/d.md"
    wanted = {row["id"]: json.loads(row["data"])["relativePath"] for row in items(early) if row["type"] == "file"}
    assert materials(early) == wanted
    assert findings(early).keys() == {"v1.leftover"}
    assert mend(early)["actions"] == []
    assert run("undo", early).status == 0
    assert rows(early) == before


def test_prefixes_yield_to_what_is_there(early: Path) -> None:
    raw = index_of(early).parents[1] / "raw"
    (raw / "Docs_1").mkdir()
    folders = {json.loads(row["data"])["source"]: row["id"] for row in items(early) if row["type"] == "directory"}
    other = folders["C:\\y\\Docs"]
    sql(
        early / DATABASE,
        f"UPDATE knowledge_item SET data = json_set(data, '$.relativePath', 'DOCS_2') WHERE id = '{other}'",
    )
    mend(early)
    # `docs` is the upload's, `Docs_1` lies on the disk, `DOCS_2` is another folder's: it stays.
    assert paths(early)["/x/docs"] == "docs_3"
    assert paths(early)["C:\\y\\Docs\\d.md"] == "DOCS_2/d.md"


def test_files_beside_those_that_have_a_path(early: Path) -> None:
    (row,) = [row for row in items(early) if "/x/docs/a.md" in row["data"]]
    (d,) = [row for row in items(early) if json.loads(row["data"])["source"] == "/x/docs"]
    sql(
        early / DATABASE,
        f"UPDATE knowledge_item SET data = json_set(data, '$.relativePath', 'kept') WHERE id = '{d['id']}'",
    )
    change = "json_set(data, '$.relativePath', 'kept/a_1.md')"
    sql(early / DATABASE, f"UPDATE knowledge_item SET data = {change} WHERE id = '{row['id']}'")
    sql(index_of(early), f"UPDATE material SET relative_path = 'kept/a_1.md' WHERE material_id = '{row['id']}'")
    mend(early)
    assert paths(early)["/x/docs"] == "kept"
    assert paths(early)["/x/docs/a.md"] == "kept/a_1.md"
    assert paths(early)["/elsewhere/A.md"] == "kept/A.md"


def test_what_nothing_tells_stays_and_is_said(early: Path) -> None:
    d = next(row["id"] for row in items(early) if json.loads(row["data"])["source"] == "/x/docs")
    change = "UPDATE knowledge_item SET data = json_set(data, '$.source', '  ') WHERE id ="
    sql(early / DATABASE, f"{change} '{d}'")
    document = mend(early)
    assert left(document) == [(NAME, "its folder is missing or has no path")] * 3
    assert [one["count"] for one in document["actions"]] == [1, 1, 1]
    assert findings(early)[NAME]["count"] == 3


def test_a_damaged_index_keeps_its_base_as_it_is(early: Path) -> None:
    sql(index_of(early), "DROP TRIGGER search_text_ad")
    before = contents(early)
    document = mend(early)
    assert left(document) == [(NAME, "its index is damaged or has another layout: fix that first")]
    assert contents(early) == before


@pytest.mark.parametrize("again", [("repair", "--only", NAME), ("reconcile",)])
def test_a_kill_between_catalog_and_index_is_mended_by_the_next_run(
    early: Path, monkeypatch: pytest.MonkeyPatch, again: tuple[str, ...]
) -> None:
    before = rows(early)
    set_state = ChangeLog.set_state

    def stopped(self: ChangeLog, *more: Any) -> None:
        set_state(self, *more)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(ChangeLog, "set_state", stopped)
        done = run("repair", early, "--only", NAME)
    assert done.status == 3
    assert findings(early)["material.path"]["repair"] is not None
    assert run(again[0], early, *again[1:]).status == 0
    assert findings(early).keys() == {"v1.leftover"}
    for _ in range(2):
        assert run("undo", early).status == 0
    assert rows(early) == before


def test_rows_that_changed_meanwhile_are_not_overwritten(early: Path) -> None:
    made = item_paths.NewPaths(base_of("kb"), {}, {items(early)[0]["id"]: "x"})
    change = item_paths.plan_catalog_change(early, DATABASE, [made])
    assert change is not None
    with pytest.raises(PlanOutdated, match="changed in the meantime"), sqlite.open_writable(early / DATABASE) as db:
        change.apply(db)


@golden
@pytest.mark.parametrize("name", ["profile_upgraded", "profile_stranded"])
def test_the_applications_own_early_profiles(tmp_path: Path, name: str) -> None:
    made = Path(shutil.copytree(GOLDEN / name, tmp_path / name))
    for path in (made, *made.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)
    run("rescue", made)
    mend(made)
    assert {one["severity"] for one in findings(made).values()} <= {"note", "warning"}
    assert findings(made).keys() <= {"v1.leftover", "item.not-indexed", "item.tombstone"}


# --- types of newer applications -------------------------------------------------------------------------------------


def test_items_of_newer_types_are_left_alone(early: Path) -> None:
    raw = index_of(early).parents[1] / "raw"
    (raw / "linked").mkdir()
    (raw / "linked" / "page.html").write_bytes(b"theirs")
    (raw / "own.bin").write_bytes(b"theirs")
    for path in (raw / "linked" / "page.html", raw / "own.bin"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    sql(
        early / DATABASE,
        "PRAGMA ignore_check_constraints = ON",
        "INSERT INTO knowledge_item (id, base_id, type, data, status, created_at, updated_at) VALUES"
        f' (\'new\', \'{base_of("kb")}\', \'external\', \'{{"place":{{"folder":"linked","file":"own.bin"}}}}\','
        " 'syncing', 0, 0)",
    )
    child = next(row["id"] for row in items(early) if row["group_id"] is not None)
    sql(
        early / DATABASE,
        "PRAGMA ignore_check_constraints = ON",
        f"UPDATE knowledge_item SET type = 'external', status = 'deleting' WHERE id = '{child}'",
    )
    found = [one for one in run("check", early, "--json").document["findings"] if one["name"] == "item.foreign-type"]
    assert [(one["severity"], one["repair"]) for one in found] == [("note", None)] * 2
    assert {one["message"] for one in found} == {
        "1 item of type external, introduced by a newer application: not changed",
        "1 item of type external, introduced by a newer application, which is being deleted: not changed",
    }
    assert findings(early).keys() == {NAME, "item.foreign-type", "v1.leftover"}
    before = contents(early)
    for command in ("gc", "reconcile", "repair", "upgrade"):
        assert run(command, early).status == 0
        assert contents(early) == before
