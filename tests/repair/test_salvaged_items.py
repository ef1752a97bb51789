"""Items that lost a part of their rows in a salvage: what a profile knows of them, and what completes them."""

from __future__ import annotations

import shutil
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from harness import REPO, run, snapshot
from profiles import profile
from v1 import Row, Source, base, file, note, pack, vector_of

NOW = "2026-10-01T12:00:00Z"
LOADERS = tuple(f"TextLoader_{number:032x}" for number in range(4))
#: Ten rows of each item; five of a page take the rest of one away.
ROWS = [Row(LOADERS[number // 10], f"text {number} " + "word " * 130) for number in range(40)]
MISSING = "1 item with a part of the text missing, or perhaps missing: not all of the rows could be salvaged"


class Case:
    """A whole backup, one of which a page of the vector file is lost, and a store with what was salvaged of that."""

    def __init__(self, folder: Path, *, is_file: bool = False) -> None:
        items = [note(f"n{number}", loader) for number, loader in enumerate(LOADERS)]
        if is_file:
            items[1] = file("f1", LOADERS[1], name="report.md")
        source = Source(bases=[base("kb", *items)], stores={"kb": ROWS}).write(folder / "v1")
        if is_file:
            upload = folder / "v1" / "Data" / "Files" / "up-f1.md"
            upload.parent.mkdir(parents=True, exist_ok=True)
            upload.write_bytes(b"the file itself")
        self.whole, self.damaged = pack(source, folder / "whole.zip"), folder / "damaged.zip"
        with zipfile.ZipFile(self.whole) as made, zipfile.ZipFile(self.damaged, "w") as bad:
            for name in made.namelist():
                content = made.read(name)
                if name.endswith("KnowledgeBase/kb"):
                    page = content.index(vector_of(ROWS[17].body)) // 4096 * 4096
                    content = content[:page] + bytes(4096) + content[page + 4096 :]
                bad.writestr(name, content)
        self.library, self.profile = folder / "library", profile(folder / "profile")
        done = run("migrate", self.damaged, "--to", self.library, "--salvage", "--yes", "--now", NOW, "--json")
        (self.base,) = [one["id"] for one in done.document["bases"]]
        assert [one["rows"]["carried"] for one in done.document["bases"]] == [35]

    def install(self, *options: object, source: Path | None = None) -> Any:
        return run("install", source or self.library, "--profile", self.profile, "--now", NOW, "--json", *options)

    def store(self, kind: str) -> Path:
        """Return the library, or the profile after an installation."""
        if kind == "profile":
            self.install()
        return self.profile if kind == "profile" else self.library

    def folder(self, store: Path) -> Path:
        return store / ("Data/KnowledgeBase" if store == self.profile else "KnowledgeBase") / self.base


def missing(store: Path) -> list[str]:
    findings = run("check", store, "--json").document["findings"]
    return [one["message"] for one in findings if one["name"] == "unit.missing"]


def dump(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of an index by table."""
    with closing(sqlite3.connect(f"file:{folder / '.cherry' / 'index.sqlite'}?mode=ro", uri=True)) as db:
        names = ("content", "material", "search_unit", "search_text", "embedding")
        return {name: sorted(db.execute(f"SELECT * FROM {name}")) for name in names}


def vectors(folder: Path) -> dict[str, bytes]:
    with closing(sqlite3.connect(f"file:{folder / '.cherry' / 'index.sqlite'}?mode=ro", uri=True)) as db:
        return dict(
            db.execute("SELECT text, vector_blob FROM search_text LEFT JOIN embedding USING (embedding_text_hash)")
        )


ALL = {row.body: vector_of(row.body) for row in ROWS}


@pytest.mark.parametrize("kind", ["library", "profile"])
@pytest.mark.parametrize("is_file", [False, True], ids=["note", "file"])
def test_an_intact_copy_completes_an_item_that_lost_rows(tmp_path: Path, kind: str, is_file: bool) -> None:
    case = Case(tmp_path, is_file=is_file)
    store = case.store(kind)
    folder, copies = case.folder(store), snapshot(case.whole.parent / "v1")
    command = f"regraft repair {store} --from SOURCE --base {case.base}"
    assert missing(store) == [f"{MISSING}; if you have another copy of the data: {command}"]
    before, rows, raw = snapshot(store), dump(folder), snapshot(folder / "raw")
    dry = run("repair", store, "--from", case.whole, "--dry-run", "--json")
    names = ["index-items", "take-vectors", *([] if is_file else ["write-snapshot"])]
    assert [one["action"] for one in dry.document["actions"]] == names
    assert snapshot(store) == before
    done = run("repair", store, "--from", case.whole, "--yes", "--json")
    assert (done.status, done.document["left"]) == (0, [])
    assert (vectors(folder), missing(store)) == (ALL, [])
    after = dump(folder)
    # No row of another item is changed, and no vector.
    (item,) = {one[0] for one in after["material"]} - {one[0] for one in set(after["material"]) & set(rows["material"])}
    for table, key in (("search_unit", 1), ("material", 0)):
        assert [one for one in rows[table] if one[key] != item] == [one for one in after[table] if one[key] != item]
    assert set(rows["embedding"]) < set(after["embedding"])
    changed = {path for path, content in snapshot(folder / "raw").items() if raw[path] != content}
    if is_file:
        assert changed == set()
    else:
        (path,) = changed
        assert (folder / "raw" / path).read_text("utf-8").endswith("\n\n".join(row.body for row in ROWS[10:20]))
    again = run("repair", store, "--from", case.whole, "--yes", "--json")
    assert (again.document["actions"], again.document["undo"]) == ([], None)
    assert run("undo", store, "--yes").status == 0
    assert (dump(folder), snapshot(folder / "raw")) == (rows, raw)
    assert snapshot(case.whole.parent / "v1") == copies


@pytest.mark.parametrize("change", ["edited snapshot", "indexed again", "other text", "equally damaged"])
def test_what_the_user_or_the_application_changed_is_not_completed(tmp_path: Path, change: str) -> None:
    case = Case(tmp_path)
    store, source = case.store("profile"), case.whole
    folder = case.folder(store)
    if change == "edited snapshot":
        with (folder / "raw" / "A note_1.md").open("a") as file_:
            file_.write("mine")
    elif change == "equally damaged":
        source = shutil.copytree(case.library, tmp_path / "copy")
    else:
        query = "UPDATE material SET updated_at = updated_at + 1"
        if change == "other text":
            query = "UPDATE search_text SET text = 'mine' WHERE text LIKE 'text 11 %'"
        with closing(sqlite3.connect(folder / ".cherry" / "index.sqlite")) as db, db:
            db.execute(query)
    rows, raw = dump(folder), snapshot(folder / "raw")
    done = run("repair", store, "--from", source, "--yes", "--json")
    assert "complete the snapshot" not in done.stdout
    assert (dump(folder), snapshot(folder / "raw")) == (rows, raw)
    if change in ("edited snapshot", "equally damaged"):
        (left,) = [one["reason"] for one in done.document["left"] if one["finding"] == "unit.missing"]
        assert left == f"{MISSING}: {source} has only part of it"


def test_a_profile_records_the_items_of_its_last_installation(tmp_path: Path) -> None:
    case = Case(tmp_path)
    done = case.install()
    (reason,) = [one["reason"] for one in done.document["left"]]
    assert reason == MISSING
    (lost,) = [one["lost"] for one in done.document["actions"] if one["action"] == "insert-base"]
    assert len(lost) == len(missing(case.profile)) == 1
    # A copy of the base is another base, with other ids.
    copied = case.install("--as-new")
    (other,) = [one["lost"] for one in copied.document["actions"] if one["action"] == "insert-base"]
    assert (len(other), other != lost, len(missing(case.profile))) == (1, True, 2)
    for _ in range(2):
        assert run("undo", case.profile, "--yes").status == 0
    assert missing(case.profile) == []
    whole = tmp_path / "whole"
    run("migrate", case.whole, "--to", whole, "--yes", "--now", NOW)
    assert case.install(source=whole).document["left"] == []
    assert missing(case.profile) == []


def test_a_rescue_names_the_command_that_completes_an_item(tmp_path: Path) -> None:
    case = Case(tmp_path)
    store = case.store("profile")
    done = run("rescue", store, "--v1", case.whole, "--dry-run", "--json")
    (left,) = [one for one in done.document["left"] if one["finding"] == "unit.missing"]
    assert left["reason"] == f"{MISSING}; an undamaged copy of the data completes it"
    assert left["repair"] == f"regraft repair {store} --from {case.whole} --base {case.base}"


def test_a_file_that_never_had_rows_does_not_keep_another_from_being_completed(tmp_path: Path) -> None:
    [whole] = (REPO / "sample_v1").glob("*.zip")
    content, damaged = bytearray(whole.read_bytes()), tmp_path / "damaged.zip"
    with zipfile.ZipFile(whole) as archive:
        [member] = [one for one in archive.infolist() if one.filename.endswith("GSI9AeE0DFjMMy8kHBcdh")]
    content[member.header_offset + 30 + len(member.filename.encode()) + member.compress_size // 2] ^= 255
    damaged.write_bytes(content)
    library, intact = tmp_path / "library", tmp_path / "intact"
    run("migrate", damaged, "--to", library, "--salvage", "--yes", "--now", NOW)
    run("migrate", whole, "--to", intact, "--yes", "--now", NOW)
    found = run("check", library, "--json").document["findings"]
    lacking = [(one["base"], one["severity"]) for one in found if one["name"] == "item.no-material"]
    [key] = [key for key, severity in lacking if severity == "note"]
    assert (key, "warning") in lacking
    before, whole_vectors = vectors_of(library, key), vectors_of(intact, key)
    done = run("repair", library, "--from", whole, "--base", key, "--yes", "--json")
    assert done.status == 0, done.stdout
    after = vectors_of(library, key)
    assert before.items() < after.items() <= whole_vectors.items()
    found = run("check", library, "--json").document["findings"]
    assert [one["severity"] for one in found if (one["name"], one["base"]) == ("item.no-material", key)] == ["note"]


def vectors_of(library: Path, key: str) -> dict[str, bytes]:
    """Return the vectors of a base by the hash of their text."""
    path = library / "KnowledgeBase" / key / ".cherry" / "index.sqlite"
    with closing(sqlite3.connect(path)) as db:
        return dict(db.execute("SELECT embedding_text_hash, vector_blob FROM embedding"))


def edit(folder: Path) -> None:
    """Change a row of an index as another program does."""
    with closing(sqlite3.connect(folder / ".cherry" / "index.sqlite")) as db, db:
        db.execute("UPDATE embedding SET created_at = created_at + 1 WHERE rowid = 1")


@pytest.mark.parametrize("edited", ["never", "before the repair", "before the undo", "after the undo"])
def test_a_library_is_recognized_after_an_undo_unless_others_changed_it(tmp_path: Path, edited: str) -> None:
    case = Case(tmp_path)
    folder, migrate = case.folder(case.library), ("migrate", case.whole, "--to", case.library, "--yes", "--json")
    # Other times, as after a copy to another disk.
    (folder / ".cherry" / "index.sqlite").touch()
    rows = dump(folder)
    for moment in ("before the repair", "before the undo", "after the undo"):
        if edited == moment:
            edit(folder)
        if moment == "before the repair":
            assert run("repair", case.library, "--from", case.whole, "--yes").status == 0
            assert vectors(folder) == ALL
        if moment == "before the undo":
            assert run("undo", case.library, "--yes").status == 0
    assert (dump(folder) == rows) is (edited == "never")
    done = run(*migrate)
    assert done.status == (0 if edited == "never" else 2)
    assert (vectors(folder) == ALL) is (edited == "never")


def test_two_runs_that_are_undone_leave_the_library_recognized(tmp_path: Path) -> None:
    case = Case(tmp_path)
    folder, copy = case.folder(case.library), ("repair", case.library, "--from", case.whole, "--yes")
    rows, catalog = dump(folder), snapshot(case.library)["catalog.sqlite"]
    for _ in range(2):
        assert run(*copy).status == 0
        assert vectors(folder) == ALL
        assert run("undo", case.library, "--yes").status == 0
        assert dump(folder) == rows
    # The same source: nothing to do, and nothing is written.
    before = snapshot(case.library)
    again = run("migrate", case.damaged, "--to", case.library, "--salvage", "--yes", "--json")
    assert [one["outcome"] for one in again.document["bases"]] == ["unchanged"]
    assert "base_changed_since" not in {one["code"] for one in again.document["warnings"]}
    assert snapshot(case.library) == before
    assert before["catalog.sqlite"] == catalog
    assert run("migrate", case.whole, "--to", case.library, "--yes").status == 0
    assert vectors(folder) == ALL


def catalog_items(store: Path) -> dict[str, tuple[Any, ...]]:
    """Return type, status and data of the items of a library by id."""
    with closing(sqlite3.connect(f"file:{store / 'catalog.sqlite'}?mode=ro", uri=True)) as db:
        return {row[0]: row[1:] for row in db.execute("SELECT id, type, status, data FROM knowledge_item")}


def without_times(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of an index without times and row numbers."""
    queries = {
        "content": "SELECT content_hash, text FROM content",
        "material": "SELECT material_id, relative_path, current_content_hash FROM material",
        "units": "SELECT unit_id, material_id, unit_index, char_start, char_end FROM search_unit",
        "bodies": "SELECT target_id, text, embedding_text_hash FROM search_text",
        "vectors": "SELECT embedding_text_hash, vector_blob FROM embedding",
    }
    with closing(sqlite3.connect(f"file:{folder / '.cherry' / 'index.sqlite'}?mode=ro", uri=True)) as db:
        return {name: sorted(db.execute(query)) for name, query in queries.items()}


def test_items_without_a_path_that_lost_all_rows_come_back(tmp_path: Path) -> None:
    whole = shutil.copytree(REPO / "sample_v1" / "backup", tmp_path / "whole")
    damaged = shutil.copytree(whole, tmp_path / "damaged")
    table = damaged / "Data" / "KnowledgeBase" / "GSI9AeE0DFjMMy8kHBcdh"
    table.write_bytes(table.read_bytes()[:-20480])
    library, other = tmp_path / "library", tmp_path / "other"
    done = run("migrate", damaged, "--to", library, "--salvage", "--yes", "--now", NOW, "--json")
    key = next(one["id"] for one in done.document["bases"] if one["name"] == "Harbour museum")
    run("migrate", whole, "--to", other, "--yes", "--now", NOW)
    folder, there = library / "KnowledgeBase" / key, other / "KnowledgeBase" / key
    lost = {one[0] for one in without_times(there)["material"]} - {one[0] for one in without_times(folder)["material"]}
    found = run("check", library, "--json").document["findings"]
    unindexed = [one for one in found if one["name"] == "item.not-indexed" and one["severity"] == "warning"]
    assert sum(one["count"] for one in unindexed) == 5
    assert all(f"regraft repair {library} --from SOURCE --base {key}" in one["message"] for one in unindexed)
    before = snapshot(library)
    rows, items = dump(folder), catalog_items(library)
    copy = ("repair", library, "--from", whole, "--base", key, "--json")
    assert run(*copy, "--dry-run").document["undo"] is None
    assert snapshot(library) == before
    done = run(*copy, "--yes")
    assert (done.status, done.document["left"]) == (0, [])
    assert without_times(folder) == without_times(there)
    after = catalog_items(library)
    assert {item: after[item] for item in lost} == {item: catalog_items(other)[item] for item in lost}
    assert {item for item in items if items[item] != after[item]} <= lost
    assert {path.name for path in (folder / "raw").iterdir()} == {path.name for path in (there / "raw").iterdir()}
    found = run("check", library, "--json").document["findings"]
    assert [one for one in found if one["base"] == key and one["severity"] != "note"] == []
    assert run(*copy, "--yes").document["actions"] == []
    assert run("undo", library, "--yes").status == 0
    assert (dump(folder), catalog_items(library)) == (rows, items)
    assert {name for name in snapshot(library) if "/raw/" in name} == {name for name in before if "/raw/" in name}
    # Index and catalog were changed and reverted: the library is still recognized.
    assert run("migrate", whole, "--to", library, "--yes", "--now", NOW, "--json").status != 2
    assert without_times(folder) == without_times(there)


def test_a_profile_knows_which_files_had_no_rows_in_v1(tmp_path: Path) -> None:
    library, there = tmp_path / "library", profile(tmp_path / "profile")
    run("migrate", REPO / "sample_v1" / "backup", "--to", library, "--yes", "--now", NOW)
    options = ("--profile", there, "--base", "Boat workshop", "--base", "Harbour museum", "--yes")
    run("install", library, *options, "--recreate-provider", "openai", "--recreate-provider", "silicon")
    with closing(sqlite3.connect(there / "cherrystudio.sqlite")) as db:
        names = {name for (name,) in db.execute("SELECT name FROM knowledge_base WHERE status = 'completed'")}
    assert names >= {"Boat workshop", "Harbour museum"}
    found = run("check", there, "--json", "--base", "Boat workshop", "--base", "Harbour museum")
    (message,) = (one["message"] for one in found.document["findings"] if one["name"] == "item.no-material")
    assert message == "1 item completed but without a text in the index: v1 had no rows"
    assert (found.status, {one["severity"] for one in found.document["findings"]}) == (0, {"note"})
