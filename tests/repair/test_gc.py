"""``regraft gc``: what nothing reaches goes, what could still be of use stays, and undo brings all of it back."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from aged_files import KNOWLEDGE, a_folder_of_nobody, aged
from faults import Tripwire, forked, line, links, said, untouched
from harness import GOLDEN, Outcome, examples, golden, run
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_v1 import whole
from planted_v2 import (
    KB,
    KB_ROW,
    NEW_BASE,
    OLD,
    OTHER,
    PLANTED,
    a_vector_file,
    an_old_stray_file,
    catalog,
    index,
    run_sql,
    several,
    sql,
    vector,
)
from profiles import start_application
from stand_ins import KILLED, die
from v1 import PLAIN, UNTYPED, Row, Source, base, file, vector_of, write_store

from regraft import identity
from regraft.disk import durable, sqlite, untrusted_sqlite
from regraft.formats.cherry_v2.index import store as index_store
from regraft.ledger.ledger import ChangeLog
from regraft.options import GRACE_DAYS
from repair.changes.execution import ChangeExecutor
from repair.cherry_v2.gc import files as gc_files

DAY_MS = 86_400_000

# --- helpers -------------------------------------------------------------------------------------------------------


def gc(target: Path, *options: object, status: int = 0) -> dict[str, Any]:
    done = run("gc", target, "--json", *options)
    assert done.status == status, (done.stdout, done.stderr)
    return done.document


def done_by(document: dict[str, Any]) -> list[str]:
    return [action["action"] for action in document["actions"]]


def left_by(document: dict[str, Any]) -> dict[str, str]:
    return {left["finding"]: left["reason"] for left in document["left"]}


def findings(target: Path) -> set[tuple[str, str | None]]:
    return {(one["name"], one["base"]) for one in run("check", target, "--json").document["findings"]}


def contents(target: Path) -> dict[str, Any]:
    """Return the rows of every database but the numbers of full-text indexes, and the bytes of every other file."""
    found: dict[str, Any] = {}
    for path in sorted(target.rglob("*")):
        name = path.relative_to(target).as_posix()
        if (
            path.is_file()
            and not name.startswith(".regraft/")
            and not name.endswith(untrusted_sqlite.COMPANION_SUFFIXES)
        ):
            found[name] = rows_of(path) if untrusted_sqlite.is_database(path) else path.read_bytes()
    return found


def rows_of(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found = {}
        for table in tables:
            if table.startswith("search_text_fts"):
                continue
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[1] != "fts_rowid"]
            # Which bytes a text is of, too: they may be no UTF-8.
            texts = ", ".join(f'typeof("{name}"), CAST("{name}" AS BLOB)' for name in columns)
            found[table] = sorted(db.execute(f"SELECT {texts} FROM {table}").fetchall(), key=repr)
        return found


def orphan_vectors(count: int, size: int = 16) -> Callable[[Path], None]:
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
    return sql(f"{numbers} INSERT INTO embedding SELECT 'nobody ' || i, zeroblob({size}), 0 FROM n")


def v1_files(target: Path, place: Path) -> None:
    """Put v1's own vector files beside the bases, as they stay in every profile."""
    source = whole(place)
    for name in ("kb", "other"):
        shutil.copy(source / KNOWLEDGE / name, target / KNOWLEDGE / name)
        aged(target / KNOWLEDGE / name)


CONTENT = f"INSERT INTO content VALUES ('{identity.text_hash('x')}', 'x', 0)"
UNIT_GONE = "DELETE FROM search_unit WHERE rowid = 1"
#: Findings that only go where they are named, as these damages plant them.
KEPT = ("body.orphan", "raw.orphan", "index.orphan")
#: Options that name everything.
NAMED = tuple(word for name in ("embedding.orphan", "content.orphan", *KEPT) for word in ("--only", name))
WASTE = {
    "body.orphan": sql(UNIT_GONE),
    "embedding.orphan": orphan_vectors(3),
    "content.orphan": sql(CONTENT),
    "raw.orphan": an_old_stray_file,
    "index.orphan": a_folder_of_nobody,
}
EVERYTHING = several(*WASTE.values())

# --- what nothing reaches ------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("finding", WASTE)
def test_what_nothing_reaches_goes_and_comes_back(finding: str, store: Path) -> None:
    WASTE[finding](store)
    before, found = contents(store), findings(store)
    assert finding in {name for name, _ in found}
    options = NAMED if finding in KEPT else ()
    with untouched(store):
        planned = gc(store, "--dry-run", *options)
    document = gc(store, *options)
    assert planned["actions"] == document["actions"]
    assert {action["finding"] for action in document["actions"]} >= {finding}
    assert document["left"] == []
    assert findings(store) <= {one for one in found if one[0] != finding}
    assert gc(store)["actions"] == []
    assert run("undo", store, "--yes").status == 0
    assert contents(store) == before
    assert findings(store) == found


def test_everything_at_once(store: Path) -> None:
    clean = contents(store)
    EVERYTHING(store)
    before = contents(store)
    document = gc(store, *NAMED)
    assert sorted(done_by(document)) == [
        *("delete-bodies", "delete-contents", "delete-embeddings", "trash-file", "trash-folder"),
    ]
    # The vector of the body whose unit was gone went with it, besides the three.
    assert {action["count"] for action in document["actions"] if action["action"] == "delete-embeddings"} == {4}
    after = contents(store)
    assert set(after) == set(clean)
    # The unit was gone before, so that what hung on it is all that is not there.
    lost = {table: len(clean[name][table]) - len(after[name][table]) for name, table in _tables(clean)}
    assert lost["search_unit"] == lost["search_text"] == lost["embedding"] == 1
    assert run("undo", store, "--yes").status == 0
    assert contents(store) == before


def test_each_action_says_how_many_rows_go_and_how_many_bytes(store: Path) -> None:
    EVERYTHING(store)
    with closing(apsw.Connection(str(index(store)))) as db:
        ((body, vector_bytes),) = db.execute(
            "SELECT length(CAST(text AS BLOB)), length(vector_blob) FROM search_text JOIN embedding USING"
            " (embedding_text_hash) WHERE target_id NOT IN (SELECT unit_id FROM search_unit)"
        ).fetchall()
    document = gc(store, *NAMED, "--dry-run")
    stray = store / next(one["subject"] for one in document["actions"] if one["action"] == "trash-file")
    said_of = {one["action"]: (one["count"], one["bytes"], one["base"], one["message"]) for one in document["actions"]}
    assert said_of == {
        "delete-bodies": (1, body, KB, "delete 1 body whose unit is missing"),
        "delete-embeddings": (4, 3 * 16 + vector_bytes, KB, "delete 4 vectors not referenced by any indexed text"),
        "delete-contents": (1, 1, KB, "delete 1 text not referenced by anything"),
        "trash-file": (1, stray.stat().st_size, KB, f"move raw/{stray.name}, which no item names, to the trash"),
        "trash-folder": (1, *said_of["trash-folder"][1:]),
    }
    folder = sum(path.stat().st_size for path in (store / KNOWLEDGE / NEW_BASE).rglob("*") if path.is_file())
    assert said_of["trash-folder"][1] == folder
    assert document["bases"] == [{"id": KB, "name": document["bases"][0]["name"]}]


def _tables(found: dict[str, Any]) -> list[tuple[str, str]]:
    name = f"{KNOWLEDGE}/{KB}/.cherry/index.sqlite"
    return [(name, table) for table in found[name]]


@pytest.mark.parametrize("damage", [f"DELETE FROM search_unit WHERE rowid = 1; {CONTENT}", "DROP TABLE embedding"])
def test_what_is_in_a_folder_that_goes_goes_with_it(damage: str, store: Path) -> None:
    a_folder_of_nobody(store)
    run_sql(index(store, NEW_BASE), damage)
    aged(store / KNOWLEDGE / NEW_BASE)
    before = contents(store)
    document = gc(store, "--only", "index.orphan")
    assert (done_by(document), document["left"]) == (["trash-folder"], [])
    assert run("undo", store, "--yes").status == 0
    assert contents(store) == before


def test_only_what_is_named_goes(store: Path) -> None:
    EVERYTHING(store)
    assert done_by(gc(store, "--only", "content.orphan", "--only", "raw.orphan")) == ["delete-contents", "trash-file"]
    assert done_by(gc(store, "--only", "embedding.orphan")) == ["delete-embeddings"]
    assert "body.orphan" in {name for name, _ in findings(store)}


def test_only_one_base(store: Path) -> None:
    EVERYTHING(store)
    run_sql(index(store, OTHER), CONTENT)
    assert {action["base"] for action in gc(store, "--base", OTHER, *NAMED)["actions"]} == {OTHER}
    # A folder of no base goes by its own name; afterwards nobody knows that name any more.
    assert done_by(gc(store, "--base", NEW_BASE, *NAMED)) == ["trash-folder"]
    assert {action["base"] for action in gc(store, *NAMED)["actions"]} == {KB}


def test_a_base_by_its_own_path(store: Path) -> None:
    EVERYTHING(store)
    assert sorted(done_by(gc(index(store), *NAMED))) == [
        *("delete-bodies", "delete-contents", "delete-embeddings", "trash-file"),
    ]
    assert done_by(gc(store, *NAMED)) == ["trash-folder"]


@pytest.mark.parametrize("options", [(), ("--only", "raw.orphan")])
def test_the_raw_files_of_a_base_that_failed_stay(options: tuple[str, ...], store: Path) -> None:
    an_old_stray_file(store)
    shutil.rmtree(index(store).parent)
    catalog(KB_ROW.format("status = 'failed', error = 'missing_vector_store'"))(store)
    with untouched(store):
        document = gc(store, *options, status=1)
    assert document["actions"] == []
    assert "deleted from a failed base" in left_by(document)["raw.orphan"]


# --- what could be listed or attached again --------------------------------------------------------------------------


@pytest.mark.parametrize("finding", KEPT)
def test_what_can_be_listed_again_is_kept_unless_it_is_named(finding: str, store: Path) -> None:
    WASTE[finding](store)
    with untouched(store):
        document = gc(store, status=1)
        text = run("gc", store, "--yes").stdout
    assert document["actions"] == []
    assert f"--only {finding}" in left_by(document)[finding]
    assert left_by(document)[finding] in text


@pytest.mark.parametrize("content", ["a named file", "an indexed text", "a header and an indexed text"])
def test_a_raw_file_goes_where_another_copy_is_proven(content: str, store: Path) -> None:
    raw = index(store).parent.parent / "raw"
    with closing(apsw.Connection(str(index(store)))) as db:
        [(text,)] = db.execute("SELECT text FROM content LIMIT 1").fetchall()
    copies = {
        "a named file": (raw / "report.pdf").read_bytes(),
        "an indexed text": text.encode(),
        "a header and an indexed text": f"---\ntype: Note\ntitle: x\n---\n{text}".encode(),
    }
    (raw / "copy.md").write_bytes(copies[content])
    aged(raw / "copy.md")
    before = contents(store)
    [finding] = [one for one in run("check", store, "--json").document["findings"] if one["name"] == "raw.orphan"]
    assert finding["repair"] == f"regraft gc {store} --only raw.orphan --base {KB}"
    assert done_by(gc(store)) == ["trash-file"]
    assert run("undo", store, "--yes").status == 0
    assert contents(store) == before


@pytest.mark.parametrize("finding", ["raw.orphan", "index.orphan"])
def test_what_stands_where_something_was_removed_is_not_overwritten_by_undo(finding: str, store: Path) -> None:
    WASTE[finding](store)
    [action] = gc(store, "--only", finding)["actions"]
    path = store / action["subject"]
    assert not path.exists()
    path.write_bytes(b"mine") if finding == "raw.orphan" else path.mkdir()
    with untouched(store):
        message = said(run("undo", store, "--dry-run", "--json"), "UndoRefused", 2)
    assert str(path) in message
    assert said(run("undo", store, "--yes", "--json"), "UndoRefused", 2) == message
    assert path.read_bytes() == b"mine" if path.is_file() else [*path.iterdir()] == []
    path.unlink() if finding == "raw.orphan" else path.rmdir()
    assert run("undo", store, "--yes").status == 0
    assert path.is_file() or any(path.iterdir())


def test_a_copy_that_no_item_names_proves_nothing(store: Path) -> None:
    raw = index(store).parent.parent / "raw"
    for name in ("one.md", "two.md"):
        aged((raw / name).write_text("the same") and raw / name)
    with untouched(store):
        assert gc(store, status=1)["actions"] == []


def test_where_some_files_have_a_copy_only_these_go(store: Path) -> None:
    an_old_stray_file(store)
    raw = index(store).parent.parent / "raw"
    aged(Path(shutil.copyfile(raw / "report.pdf", raw / "copy.pdf")))
    [finding] = [one for one in run("check", store, "--json").document["findings"] if one["name"] == "raw.orphan"]
    assert finding["repair"] == f"regraft gc {store} --base {KB}"
    [action] = gc(store, "--base", KB, status=1)["actions"]
    assert action["subject"].endswith("copy.pdf")
    assert (raw / "stray.bin").exists()


@pytest.mark.parametrize("name", ["body.orphan", "embedding.orphan", "content.orphan"])
def test_what_an_item_without_a_text_may_get_back_is_kept(name: str, store: Path) -> None:
    # With its material gone, and what hangs on it, the text and the vectors of an item are among what nothing names.
    run_sql(
        index(store),
        "PRAGMA foreign_keys = ON",
        "DELETE FROM material WHERE material_id = (SELECT min(material_id) FROM material)",
    )
    if name == "embedding.orphan":
        run_sql(index(store), "DELETE FROM search_text WHERE target_id NOT IN (SELECT unit_id FROM search_unit)")
    with untouched(store):
        document = gc(store, status=1)
    assert document["actions"] == []
    assert f"--only {name} removes it" in left_by(document)[name]
    assert gc(store, "--only", name)["actions"] != []


def test_a_folder_without_any_row_or_file_goes(store: Path) -> None:
    a_folder_of_nobody(store)
    folder = store / KNOWLEDGE / NEW_BASE
    shutil.rmtree(folder / "raw", ignore_errors=True)
    run_sql(
        index(store, NEW_BASE),
        *(f"DELETE FROM {table}" for table in ("search_text", "embedding", "search_unit", "material", "content")),
    )
    aged(folder)
    assert done_by(gc(store)) == ["trash-folder"]


@pytest.mark.parametrize("finding", WASTE)
def test_waste_that_is_still_there_is_noticed(finding: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    WASTE[finding](store)
    before = contents(store)
    monkeypatch.setattr(ChangeExecutor, "make", lambda *_: None)
    assert finding in said(run("gc", store, "--only", finding, "--json"), "NotMended", 3)
    assert contents(store) == before


@pytest.mark.parametrize(
    "rest", ["search_text", "embedding", "material", "content", "unreadable", pytest.param("raw", marks=links)]
)
def test_a_folder_with_anything_in_it_stays(rest: str, store: Path) -> None:
    a_folder_of_nobody(store)
    folder = store / KNOWLEDGE / NEW_BASE
    shutil.rmtree(folder / "raw", ignore_errors=True)
    tables = ("search_text", "embedding", "search_unit", "material", "content")
    run_sql(index(store, NEW_BASE), *(f"DELETE FROM {table}" for table in tables if table != rest))
    if rest == "unreadable":
        index(store, NEW_BASE).write_bytes(b"SQLite format 3\0" + bytes(5000))
    if rest == "raw":
        (folder / "raw").mkdir()
        (folder / "raw" / "link.txt").symlink_to("gone.txt")
    aged(folder)
    document = gc(store, status=1)
    # Waste among the rows goes by itself.
    assert "trash-folder" not in done_by(document)
    assert "--only index.orphan" in left_by(document)["index.orphan"]
    assert index(store, NEW_BASE).is_file()


def test_a_folder_that_was_to_go_and_is_still_there_takes_the_run_back(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second audit finds it: gc has promised that no such folder remains."""
    a_folder_of_nobody(store)
    an_old_stray_file(store)
    real = gc_files.move_to_trash

    def move_another(opened: Any, path: Path, *more: Any) -> Any:
        return real(opened, index(store).parent.parent / "raw" / "stray.bin" if path.name == NEW_BASE else path, *more)

    before = {path: path.read_bytes() for path in (store / KNOWLEDGE).rglob("*") if path.is_file()}
    with monkeypatch.context() as patched:
        patched.setattr(gc_files, "move_to_trash", move_another)
        said(run("gc", store, "--only", "index.orphan", "--json"), "NotMended", 3)
    assert {path: path.read_bytes() for path in (store / KNOWLEDGE).rglob("*") if path.is_file()} == before
    assert "trash-folder" in done_by(gc(store, "--only", "index.orphan"))


def test_without_a_catalog_files_and_folders_stay(store: Path, tmp_path: Path) -> None:
    EVERYTHING(store)
    alone = tmp_path / "alone" / KB
    shutil.copytree(store / KNOWLEDGE / KB, alone)
    (store / "catalog.sqlite").unlink()
    for place in (alone, store):
        assert {action["finding"] for action in gc(place, *NAMED)["actions"]} == {
            *("body.orphan", "embedding.orphan", "content.orphan"),
        }


# --- what is too young, or nobody can tell ---------------------------------------------------------------------------


def test_what_is_younger_than_an_hour_stays(store: Path) -> None:
    an_old_stray_file(store)
    a_folder_of_nobody(store)
    os.utime(index(store).parent.parent / "raw" / "stray.bin")
    os.utime(index(store, NEW_BASE))
    document = gc(store, status=1)
    assert document["actions"] == []
    assert "younger than an hour" in left_by(document)["index.orphan"]


def test_a_folder_that_cannot_be_looked_into_stays(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in it may be younger than an hour."""
    a_folder_of_nobody(store)
    closed = store / KNOWLEDGE / NEW_BASE / "raw"
    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    assert closed.is_dir()
    with untouched(store), monkeypatch.context() as patched:
        patched.setattr(os, "scandir", scandir)
        document = gc(store, "--dry-run", status=1)
    assert document["actions"] == []
    assert "it cannot be read: Permission denied" in left_by(document)["index.orphan"]


@pytest.mark.skipif(os.name == "nt", reason="links need a right of their own there")
def test_links_are_not_followed(store: Path, tmp_path: Path) -> None:
    aged(shutil.copy(store / "catalog.sqlite", tmp_path / "elsewhere.sqlite"))
    raw = index(store).parent.parent / "raw"
    (raw / "link").symlink_to(tmp_path / "elsewhere.sqlite")
    os.utime(raw / "link", (OLD, OLD), follow_symlinks=False)
    v1_link = store / KNOWLEDGE / "kb"
    v1_link.symlink_to(write_store(tmp_path / "kb", [Row("F", "text")]))
    with untouched(tmp_path):
        document = gc(store, "--v1-leftovers", status=1)
    assert document["actions"] == []
    assert {left["finding"] for left in document["left"]} == {"raw.orphan", "v1.leftover"}
    assert all("link" in left["reason"] for left in document["left"])


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
def test_a_name_that_is_no_text_stays(store: Path) -> None:
    raw = os.fsencode(index(store).parent.parent / "raw")
    with open(raw + b"/\xff", "wb"):  # noqa: PTH123 - such a name is not text
        pass
    os.utime(raw + b"/\xff", (OLD, OLD))
    assert "not UTF-8" in left_by(gc(store, status=1))["raw.orphan"]


#: A foreign trigger is set aside, and the others change nothing.
HARMLESS = {"schema.foreign-trigger", "schema.foreign-view", "schema.foreign-index"}


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, one in PLANTED.items()
        if one.finding.startswith(("file.", "schema.")) and one.finding not in HARMLESS
    ],
)
def test_of_a_damaged_base_nothing_goes(name: str, store: Path) -> None:
    if name == "no catalog":
        return
    an_old_stray_file(store)
    if name not in ("random bytes", "half a file", "an empty file", "pages of zeros", "a preview store"):
        several(WASTE["embedding.orphan"], WASTE["content.orphan"])(store)
    PLANTED[name].damage(store)
    base = PLANTED[name].base
    with untouched(index(store, str(base))):
        document = gc(store, status=1)
    assert base not in {action["base"] for action in document["actions"]}
    assert PLANTED[name].finding in left_by(document)


def test_a_catalog_that_cannot_be_read_is_refused(store: Path) -> None:
    EVERYTHING(store)
    PLANTED["no catalog"].damage(store)
    with untouched(store):
        assert "catalog.sqlite" in said(run("gc", store, "--json"), "SourceUnreadable", 2)


def test_a_catalog_without_items_names_no_files(store: Path) -> None:
    EVERYTHING(store)
    catalog("DROP TABLE knowledge_item")(store)
    assert {"trash-file", "trash-folder"}.isdisjoint(done_by(gc(store, *NAMED)))


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE knowledge_item SET data = '{' WHERE type = 'file'",
        "UPDATE knowledge_item SET data = NULL WHERE type = 'note'",
        "UPDATE knowledge_item SET data = json_set(data, '$.relativePath', 7) WHERE type = 'file'",
    ],
)
def test_raw_files_stay_where_an_item_cannot_be_read(damage: str, store: Path) -> None:
    an_old_stray_file(store)
    run_sql(
        store / "catalog.sqlite",
        "CREATE TABLE loose AS SELECT * FROM knowledge_item",
        "DROP TABLE knowledge_item",
        "ALTER TABLE loose RENAME TO knowledge_item",
        damage,
    )
    assert "cannot be read" in left_by(gc(store, status=1))["raw.orphan"]


@pytest.mark.skipif(os.name == "nt", reason="the item means it there")
def test_a_file_that_an_item_may_mean_stays(store: Path) -> None:
    raw = index(store).parent.parent / "raw"
    aged((raw / "report.pdf").rename(raw / "REPORT.pdf"))
    assert "letter case" in left_by(gc(store, status=1))["raw.orphan"]


def test_a_file_that_the_index_names_for_an_item_stays(store: Path) -> None:
    aged(index(store).parent.parent / "raw" / "report.pdf")
    PLANTED["another path"].damage(store)
    assert "reconcile" in left_by(gc(store, status=1))["raw.orphan"]


def test_a_folder_that_items_still_belong_to_stays(store: Path) -> None:
    a_folder_of_nobody(store)
    catalog(f"INSERT INTO knowledge_item VALUES ('n', '{NEW_BASE}', NULL, 'note', '{{}}', 'idle', NULL, 0, 0)")(store)
    assert "1 item of the catalog" in left_by(gc(store, status=1))["index.orphan"]


def test_folders_stay_where_the_catalog_names_no_base_unless_they_are_named(store: Path) -> None:
    aged(store / KNOWLEDGE)
    catalog("DELETE FROM knowledge_item", "DELETE FROM knowledge_base")(store)
    before = contents(store)
    assert gc(store, status=1)["actions"] == []
    assert done_by(gc(store, "--only", "index.orphan")) == ["trash-folder", "trash-folder"]
    assert list((store / KNOWLEDGE).iterdir()) == []
    assert run("undo", store, "--yes").status == 0
    assert contents(store) == before


NEEDED = {
    "the vector of a unit without a body": ("embedding.orphan", sql("DELETE FROM search_text WHERE rowid = 1")),
    "the vector of a body under a wrong hash": (
        "embedding.orphan",
        sql("UPDATE search_text SET embedding_text_hash = 'h' WHERE rowid = 1"),
    ),
    "a body of a material without units": (
        "body.orphan",
        sql("DELETE FROM search_unit WHERE material_id = (SELECT min(material_id) FROM search_unit)"),
    ),
    "the body of a unit under a wrong id": (
        "body.orphan",
        sql("UPDATE search_unit SET unit_id = 'u' WHERE rowid = 1"),
    ),
    "a text under a wrong hash": (
        "content.orphan",
        sql("UPDATE content SET content_hash = 'h' WHERE rowid = 1"),
    ),
    "a vector whose key is bytes": (
        "embedding.orphan",
        sql("UPDATE embedding SET embedding_text_hash = CAST(embedding_text_hash AS BLOB) WHERE rowid = 1"),
    ),
    "a body whose unit's id is bytes": (
        "body.orphan",
        sql("UPDATE search_unit SET unit_id = CAST(unit_id AS BLOB) WHERE rowid = 1"),
    ),
    "a vector without a key": ("embedding.orphan", sql("INSERT INTO embedding VALUES (NULL, x'00000000', 0)")),
}


@pytest.mark.parametrize("name", NEEDED)
def test_what_may_still_be_right_stays(name: str, store: Path) -> None:
    finding, damage = NEEDED[name]
    damage(store)
    before = contents(store)
    document = gc(store, status=1)
    assert finding in left_by(document)
    assert (
        contents(store)[f"{KNOWLEDGE}/{KB}/.cherry/index.sqlite"]["embedding"]
        == (before[f"{KNOWLEDGE}/{KB}/.cherry/index.sqlite"]["embedding"])
    )
    if name in ("a vector whose key is bytes", "a vector without a key"):
        assert "some ids are not text, so what is in use cannot be determined" in left_by(document)[finding]
    if "the" in name.split():
        assert str(document["left"][0]["repair"]) == f"regraft repair {store} --base {KB}"


def test_vectors_of_a_base_without_a_model_go_by_name_alone(store: Path) -> None:
    PLANTED["vectors without a model"].damage(store)
    before = contents(store)
    assert gc(store)["actions"] == []
    document = gc(store, "--only", "embedding.unexpected", "--only", "embedding.orphan")
    assert [(action["base"], action["count"]) for action in document["actions"]] == [(KB, 15)]
    assert run("undo", store, "--yes").status == 0
    assert contents(store) == before


def test_vectors_stay_where_the_catalog_may_have_lost_the_model(store: Path) -> None:
    catalog(KB_ROW.format("embedding_model_id = NULL"))(store)
    document = gc(store, "--only", "embedding.unexpected", status=1)
    assert document["actions"] == []
    assert "base.status" in left_by(document)["embedding.unexpected"]
    assert gc(store, "--only", "embedding.unexpected", "--base", OTHER)["actions"] == []


def test_vectors_without_a_model_stay_where_v1_files_are_removed(store: Path) -> None:
    PLANTED["vectors without a model"].damage(store)
    with untouched(store):
        assert gc(store, "--v1-leftovers", "--dry-run")["actions"] == []
    orphan_vectors(2)(store)
    # Every vector of the base goes, and each of them once.
    [action] = gc(store, "--only", "embedding.unexpected", "--only", "embedding.orphan")["actions"]
    assert (action["finding"], action["message"]) == (
        "embedding.unexpected",
        f"delete {action['count']} vectors of a base without a model",
    )
    assert rows_of(index(store))["embedding"] == []


def test_files_and_folders_go_after_rows(store: Path) -> None:
    EVERYTHING(store)
    rows, files = done_by(gc(store, *NAMED))[:3], {"trash-file", "trash-folder"}
    assert rows == ["delete-bodies", "delete-embeddings", "delete-contents"]
    assert run("undo", store, "--yes").status == 0
    assert set(done_by(gc(store, *NAMED, "--dry-run"))[3:]) == files


def test_a_body_without_its_unit_leaves_no_vector_behind(store: Path) -> None:
    run_sql(index(store), UNIT_GONE)
    document = gc(store, *NAMED)
    assert {(one["action"], one["count"]) for one in document["actions"]} == {
        ("delete-bodies", 1),
        ("delete-embeddings", 1),
    }
    assert not {name for name, _ in findings(store)} & {"body.orphan", "embedding.orphan"}


def test_of_several_folders_those_that_are_young_stay(store: Path) -> None:
    a_folder_of_nobody(store)
    young = store / KNOWLEDGE / f"{NEW_BASE[:-1]}9"
    shutil.copytree(store / KNOWLEDGE / OTHER, young)
    (young / "raw" / "young.md").write_text("young")
    document = gc(store, "--only", "index.orphan", status=1)
    assert done_by(document) == ["trash-folder"]
    reason = f"the folder {young.name} is kept: something in it is younger than an hour"
    assert [(one["reason"], one["subject"]) for one in document["left"]] == [(reason, young.name)]
    assert young.is_dir()
    assert not (store / KNOWLEDGE / NEW_BASE).exists()


@pytest.mark.parametrize(("age", "goes"), [(3500, False), (3700, True), (100_000, True)])
def test_a_file_goes_an_hour_after_its_last_change(age: int, goes: bool, store: Path) -> None:
    path = index(store).parent.parent / "raw" / "stray.bin"
    path.write_bytes(b"stray")
    now = identity.now_ms() / 1000
    os.utime(path, (now - age, now - age))
    document = gc(store, "--only", "raw.orphan")
    assert done_by(document) == (["trash-file"] if goes else [])
    # A file that may belong to an item that is being added is no finding at all.
    assert document["left"] == []
    assert path.exists() is not goes


def test_the_copy_that_proves_a_raw_file_is_named(store: Path) -> None:
    raw = index(store).parent.parent / "raw"
    with closing(apsw.Connection(str(index(store)))) as db:
        [(item, text)] = db.execute(
            "SELECT material_id, text FROM material JOIN content ON content_hash = current_content_hash LIMIT 1"
        ).fetchall()
    (raw / "copy.md").write_bytes(text.encode())
    shutil.copyfile(raw / "report.pdf", raw / "copy.pdf")
    for name in ("copy.md", "copy.pdf"):
        aged(raw / name)
    start = "move raw/{}, which no item names, to the trash"
    planned = [one["message"] for one in gc(store, "--dry-run")["actions"]]
    assert planned == [
        f"{start.format('copy.md')}: it is the same as the indexed text of item {item}",
        f"{start.format('copy.pdf')}: it is the same as raw/report.pdf",
    ]
    # Where the finding is named, no copy is looked for.
    named = [one["message"] for one in gc(store, "--only", "raw.orphan", "--dry-run")["actions"]]
    assert named == [start.format("copy.md"), start.format("copy.pdf")]
    # The text of an item that is being deleted goes with it, so it proves nothing.
    catalog(f"UPDATE knowledge_item SET status = 'deleting' WHERE id = '{item}'")(store)
    left = {one["subject"]: one["reason"] for one in gc(store, "--base", KB, "--dry-run", status=1)["left"]}
    assert left["copy.md"] == "raw/copy.md: kept: no other copy of it is known; --only raw.orphan removes it"


def test_a_file_in_the_folder_of_an_item_stays_whatever_the_case_of_its_letters(store: Path) -> None:
    raw = index(store).parent.parent / "raw"
    [(folder,)] = query_catalog(store, "SELECT data ->> 'relativePath' FROM knowledge_item WHERE type = 'directory'")
    (raw / str(folder).upper()).mkdir(parents=True, exist_ok=True)
    (raw / str(folder).upper() / "x.md").write_text("x")
    (raw / f"{folder}-more.md").write_text("y")
    aged(raw)
    document = gc(store, "--only", "raw.orphan", status=1)
    assert [one["subject"].rpartition("/")[2] for one in document["actions"]] == [f"{folder}-more.md"]
    [left] = document["left"]
    assert left["subject"] == f"{str(folder).upper()}/x.md"
    assert left["reason"].endswith("an item refers to it with other letter case or Unicode normalization")


def query_catalog(store: Path, sql: str) -> list[Any]:
    with closing(apsw.Connection(str(store / "catalog.sqlite"))) as db:
        return db.execute(sql).fetchall()


# --- what is kept, and for how long ----------------------------------------------------------------------------------


def later(monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    now = identity.now_ms()
    monkeypatch.setattr(identity, "now_ms", lambda: now + round(days * DAY_MS))


def kept(target: Path) -> list[Path]:
    own = target / ".regraft"
    return [path for name in ("trash", "undo") for path in (own / name).rglob("*") if path.is_file()]


def history(target: Path) -> list[str]:
    return [one["undo"]["state"] for one in run("history", target, "--json").document["runs"]]


def test_trash_and_undo_go_when_their_time_is_over(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    EVERYTHING(store)
    gc(store, *NAMED)
    assert (store / ".regraft" / "trash").is_dir()
    assert kept(store)
    after = contents(store)
    later(monkeypatch, GRACE_DAYS - 1)
    assert gc(store)["actions"] == []
    later(monkeypatch, 2)
    with untouched(store):
        planned = gc(store, "--dry-run")
    assert gc(store, "--base", KB)["actions"] == []
    document = gc(store)
    assert document["actions"] == planned["actions"]
    assert done_by(document) == ["expire"]
    assert document["actions"][0]["bytes"] > 0
    assert document["undo"] is None
    assert kept(store) == []
    assert not (store / ".regraft" / "trash").exists()
    assert history(store)[:2] == ["none", "expired"]
    assert contents(store) == after
    assert gc(store)["actions"] == []
    assert said(run("undo", store, "--json", "--yes"), "RunUnknown", 2)


def test_without_grace_nothing_is_kept_at_once(store: Path) -> None:
    clean = contents(store)
    orphan_vectors(3)(store)
    an_old_stray_file(store)
    with untouched(store):
        planned = gc(store, "--grace", "0", "--dry-run", *NAMED)
    done = run("gc", store, "--grace", "0", "--yes", *NAMED)
    assert done.status == 0
    assert "To undo" not in done.stdout
    assert [action["action"] for action in planned["actions"]] == ["delete-embeddings", "trash-file", "expire"]
    assert kept(store) == []
    assert history(store)[0] == "expired"
    assert contents(store) == clean


@pytest.mark.parametrize("grace", ["inf", "1e-12"])
def test_an_odd_grace_keeps_what_was_just_done(grace: str, store: Path) -> None:
    an_old_stray_file(store)
    assert gc(store, "--grace", grace, *NAMED)["undo"] is not None
    assert kept(store)


def test_a_grace_that_is_no_number_is_refused(store: Path) -> None:
    an_old_stray_file(store)
    before = contents(store)
    outcome = run("gc", store, "--grace", "nan", *NAMED)
    assert outcome.status == 2
    assert "Invalid value for '--grace': nan is not a number" in outcome.stderr
    assert contents(store) == before
    assert kept(store) == []


# --- space -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_store, "FREE_BYTES", 100_000)


@pytest.mark.usefixtures("small")
def test_space_is_given_back_where_it_pays(store: Path) -> None:
    orphan_vectors(60, 4096)(store)
    WASTE["body.orphan"](store)
    before = contents(store)
    size = index(store).stat().st_size
    with untouched(store):
        planned = gc(store, "--dry-run", "--vacuum", *NAMED)
    document = gc(store, "--vacuum", *NAMED)
    assert done_by(planned) == done_by(document)
    foreseen, came = planned["actions"][-1], document["actions"][-1]
    assert came["action"] == foreseen["action"] == "vacuum"
    assert size - index(store).stat().st_size == came["bytes"]
    assert 0.8 * came["bytes"] <= foreseen["bytes"] <= 1.2 * came["bytes"]
    assert re.fullmatch(r"shrank the index file from [\d.]+ \w+ to [\d.]+ \w+", came["message"])
    numbers = "SELECT count(*) FROM search_text_fts f JOIN search_text t ON t.fts_rowid = f.rowid WHERE f.text = t.text"
    with closing(apsw.Connection(str(index(store)))) as db:
        assert db.execute(numbers).get == 14
    assert gc(store, "--vacuum")["actions"] == []
    assert run("undo", store, "--yes").status == 0
    assert contents(store) == before


@pytest.mark.usefixtures("small")
def test_space_that_was_free_before_is_given_back_without_anything_to_take_back(store: Path) -> None:
    orphan_vectors(60, 4096)(store)
    assert done_by(gc(store)) == ["delete-embeddings"]
    after, numbered = contents(store), _numbers(store)
    document = gc(store, "--vacuum", "--base", KB)
    assert done_by(document) == ["vacuum"]
    assert document["undo"] is None
    assert (contents(store), _numbers(store)) == (after, numbered)
    # The run before can be taken back all the same.
    assert run("undo", store, "--yes").status == 0


def _numbers(target: Path) -> list[Any]:
    with closing(apsw.Connection(str(index(target)))) as db:
        return db.execute("SELECT search_text_id, fts_rowid FROM search_text ORDER BY 1").fetchall()


def test_little_space_is_not_given_back(store: Path) -> None:
    orphan_vectors(60, 4096)(store)
    assert done_by(gc(store, "--vacuum")) == ["delete-embeddings"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["words of no body", "other words", "no number"])
def test_space_stays_in_a_file_whose_full_text_index_is_out_of_step(name: str, store: Path) -> None:
    orphan_vectors(60, 4096)(store)
    gc(store)
    PLANTED[name].damage(store)
    document = gc(store, "--vacuum", status=1)
    assert "vacuum" not in done_by(document)
    assert {"fts.desync", "body.rowid"} & set(left_by(document))


@pytest.mark.usefixtures("small")
def test_a_file_in_use_is_said_once_rows_are_gone(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 0)
    orphan_vectors(60, 4096)(store)
    gc(store)
    with closing(apsw.Connection(str(index(store)))) as other:
        other.execute("BEGIN IMMEDIATE")
        assert said(run("gc", store, "--vacuum", "--json"), "StoreBusy", 2)
    assert done_by(gc(store, "--vacuum")) == ["vacuum"]


# --- what v1 left ----------------------------------------------------------------------------------------------------


def test_vector_files_of_v1_go_once_they_are_proven(store: Path, tmp_path: Path) -> None:
    v1_files(store, tmp_path / "v1")
    before = contents(store)
    assert gc(store)["actions"] == []
    with untouched(store):
        planned = gc(store, "--v1-leftovers", "--dry-run")
    document = gc(store, "--v1-leftovers")
    assert planned["actions"] == document["actions"]
    assert [(action["subject"], action["base"]) for action in document["actions"]] == [
        (f"{KNOWLEDGE}/kb", KB),
        (f"{KNOWLEDGE}/other", OTHER),
    ]
    assert sum(action["bytes"] for action in document["actions"]) == sum(
        path.stat().st_size for path in kept(store) if path.parent.name == KNOWLEDGE
    )
    assert "v1.leftover" not in {name for name, _ in findings(store)}
    assert gc(store, "--v1-leftovers")["actions"] == []
    assert run("undo", store, "--yes").status == 0
    assert contents(store) == before
    assert gc(store, "--only", "v1.leftover", "--grace", "0")["undo"] is None
    assert kept(store) == []
    assert not (store / KNOWLEDGE / "kb").exists()


def test_the_application_may_have_given_the_base_another_id(store: Path, tmp_path: Path) -> None:
    v1_files(store, tmp_path / "v1")
    (store / KNOWLEDGE / "kb").rename(store / KNOWLEDGE / "some-other-name")
    assert {action["base"] for action in gc(store, "--v1-leftovers")["actions"]} == {KB, OTHER}


def renamed(store: Path, **names: str) -> None:
    """Give bases other ids than follow from v1's, as the application does."""
    for legacy, new in names.items():
        old = {"kb": KB, "other": OTHER}[legacy]
        (store / KNOWLEDGE / old).rename(store / KNOWLEDGE / new)
        run_sql(index(store, new), f"UPDATE meta SET base_id = '{new}'")
        run_sql(
            store / "catalog.sqlite",
            f"UPDATE knowledge_base SET id = '{new}' WHERE id = '{old}'",
            f"UPDATE knowledge_item SET base_id = '{new}' WHERE base_id = '{old}'",
        )


def test_vector_files_of_one_base(store: Path, tmp_path: Path) -> None:
    v1_files(store, tmp_path / "v1")
    document = gc(store, "--v1-leftovers", "--base", OTHER)
    assert ([action["base"] for action in document["actions"]], document["left"]) == ([OTHER], [])


def test_a_base_proves_one_file(store: Path, tmp_path: Path) -> None:
    renamed(store, kb=NEW_BASE)
    v1_files(store, tmp_path / "v1")
    subset = aged(write_store(store / KNOWLEDGE / "part", kb_rows()[:3]))
    document = gc(store, "--v1-leftovers", status=1)
    assert [action["base"] for action in document["actions"]] == [OTHER]
    assert "made from another file" in left_by(document)["v1.leftover"]
    subset.unlink()
    assert [action["base"] for action in gc(store, "--v1-leftovers")["actions"]] == [NEW_BASE]


def test_a_file_of_a_base_that_failed_is_not_proven_by_another_that_has_more(store: Path) -> None:
    renamed(store, kb=NEW_BASE)
    run_sql(
        store / "catalog.sqlite",
        f"UPDATE knowledge_base SET status = 'failed', error = 'missing_vector_store' WHERE id = '{OTHER}'",
    )
    path = aged(write_store(store / KNOWLEDGE / "part", kb_rows()[:3]))
    assert "failed in the upgrade" in left_by(gc(store, "--v1-leftovers", status=1))["v1.leftover"]
    path.unlink()
    v1_file(store, kb_rows())
    assert [action["base"] for action in gc(store, "--v1-leftovers")["actions"]] == [NEW_BASE]


@golden
@pytest.mark.parametrize(
    ("name", "goes"), [("profile_upgraded", {"Qm7vXk2LpT9s"}), ("profile_stranded", {"dirD", "dirF"})]
)
def test_profiles_of_the_application(name: str, goes: set[str], tmp_path: Path) -> None:
    profile = shutil.copytree(GOLDEN / name, tmp_path / name)
    for path in (profile, *profile.rglob("*")):
        path.chmod(0o755)
    aged(profile)
    done = run("gc", profile, "--v1-leftovers", "--json")
    assert {Path(action["subject"]).name for action in done.document["actions"]} == goes
    assert run("undo", profile, "--yes").status == 0
    with untouched(profile):
        assert (
            run("gc", profile, "--v1-leftovers", "--dry-run", "--json").document["actions"]
            == (done.document["actions"])
        )


def kb_rows() -> list[Row]:
    return [Row(loader, f"text {number} of {loader}") for number in range(3) for loader in ("F", "P", "N", "D1", "D2")]


def v1_file(target: Path, rows: list[Row], ddl: str = PLAIN) -> Path:
    return aged(write_store(target / KNOWLEDGE / "kb", rows, ddl))


UNPROVEN = {
    "another vector": ([*kb_rows()[:14], Row("D2", "text 2 of D2", vector_of("another"))], "14 of its 15 vectors"),
    "another text": ([*kb_rows(), Row("F", "text 9 of F")], "15 of its 16 vectors"),
    "other bytes of the same text": ([Row("F", "text 0 of F ")], "is not in it"),
    "a text twice, once with another vector": (
        [*kb_rows(), Row("F", "text 0 of F", vector_of("another"))],
        "has another vector in it",
    ),
    "a text of another base": ([Row("F", "text 0 of F"), Row("O", "text of O")], "1 of its 2 vectors"),
    "no usable vector": ([Row("F", "text 0 of F", None)], "none of its 1 row"),
    "one of another length": ([*kb_rows(), Row("F", "short", b"\0\0\0\0")], "15 of its 16 vectors"),
}


@pytest.mark.parametrize("name", UNPROVEN)
def test_a_vector_file_that_is_not_proven_stays(name: str, store: Path) -> None:
    rows, words = UNPROVEN[name]
    path = v1_file(store, rows)
    with untouched(path):
        document = gc(store, "--v1-leftovers", status=1)
    assert document["actions"] == []
    assert words in left_by(document)["v1.leftover"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (sql("UPDATE embedding SET vector_blob = " + vector(1, 2, 3, 4) + " WHERE rowid = 15"), "another vector"),
        (sql("DELETE FROM embedding WHERE rowid = 1"), "is not in it"),
        (sql(UNIT_GONE), "is not in it"),
        (sql("UPDATE search_text SET text = 'x' WHERE rowid = 3"), "is not in it"),
        (catalog(f"DELETE FROM knowledge_base WHERE id = '{KB}'"), "0 of its 15 vectors"),
        (catalog(KB_ROW.format("status = 'failed', error = 'x'")), "0 of its 15 vectors"),
        (sql("DROP TRIGGER search_text_ad"), "0 of its 15 vectors"),
        (several(*(PLANTED["random bytes"].damage,)), "0 of its 15 vectors"),
    ],
)
def test_only_a_sound_index_of_a_completed_base_proves(damage: Callable[[Path], None], words: str, store: Path) -> None:
    v1_file(store, kb_rows())
    damage(store)
    document = gc(store, "--v1-leftovers", "--only", "v1.leftover", status=1)
    assert document["actions"] == []
    assert words in left_by(document)["v1.leftover"]


def test_an_index_that_cannot_be_read_to_its_end_proves_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = v1_file(store, kb_rows())
    real = gc_files._match_rows

    def match_rows(rows: Any, v2_index: Any) -> Any:
        yield from itertools.islice(real(rows, v2_index), 5)
        raise apsw.CorruptError("database disk image is malformed")

    with monkeypatch.context() as patched, untouched(path):
        patched.setattr(gc_files, "_match_rows", match_rows)
        document = gc(store, "--v1-leftovers", status=1)
    assert document["actions"] == []
    left = left_by(document)["v1.leftover"]
    assert "5 of its 15 vectors" in left
    assert "one of the two cannot be read: database disk image is malformed" in left
    # It is the error alone that kept the file.
    assert done_by(gc(store, "--v1-leftovers")) == ["trash-vector-file"]


def test_vectors_that_go_in_the_same_run_prove_nothing(store: Path) -> None:
    v1_file(store, kb_rows())
    PLANTED["vectors without a model"].damage(store)
    document = gc(store, "--v1-leftovers", "--only", "embedding.unexpected", status=1)
    assert done_by(document) == ["delete-embeddings"]
    assert "v1.leftover" in left_by(document)


def test_rows_without_a_usable_vector_are_counted(store: Path) -> None:
    rows = [*kb_rows(), Row("F", "a", None), Row("F", "b", b""), Row("F", "c", b"\0\0\0"), Row("F", "d", "words")]
    v1_file(store, rows, UNTYPED)
    document = gc(store, "--v1-leftovers", status=1)
    assert document["actions"] == []
    assert "4 rows without a usable vector have texts that are not in v2" in left_by(document)["v1.leftover"]
    (action,) = gc(store, "--v1-leftovers", "--only", "v1.leftover")["actions"]
    assert "v2 has its 15 vectors" in action["message"]
    assert "4 rows without a usable vector" in action["message"]


def test_an_empty_vector_file_proves_itself_and_takes_no_base(store: Path, tmp_path: Path) -> None:
    v1_files(store, tmp_path / "v1")
    for name in ("a", "b", "z"):
        aged(write_store(store / KNOWLEDGE / name, []))
    assert [action["base"] for action in gc(store, "--v1-leftovers")["actions"]] == [None, None, KB, OTHER, None]


def test_a_vector_file_that_cannot_be_read_or_is_young_stays(store: Path) -> None:
    path = v1_file(store, kb_rows())
    os.utime(path)
    assert "younger" in left_by(gc(store, "--v1-leftovers", status=1))["v1.leftover"]
    path.write_bytes(path.read_bytes()[:5000])
    aged(path)
    assert "truncated" in left_by(gc(store, "--v1-leftovers", status=1))["v1.leftover"]
    path.unlink()
    a_vector_file(store)
    aged(path)
    assert "without the column" in left_by(gc(store, "--v1-leftovers", status=1))["v1.leftover"]


def test_many_rows_are_proven_in_batches(tmp_path: Path) -> None:
    rows = [Row("F", f"chunk {number} 🎉") for number in range(450)]
    source = Source([base("kb", file("f", "F"))], {"kb": rows}, uploads={"up-f.pdf": b"a pdf"}).write(tmp_path / "v1")
    target = tmp_path / "library"
    assert run("migrate", source, "--to", target, "-q").status == 0
    aged(shutil.copy(source / KNOWLEDGE / "kb", target / KNOWLEDGE / "kb"))
    assert "450 vectors" in gc(target, "--v1-leftovers")["actions"][0]["message"]


# --- refusals --------------------------------------------------------------------------------------------------------


def test_unknown_names_and_bases_are_refused(store: Path) -> None:
    with untouched(store):
        assert "no finding has this name" in said(run("gc", store, "--only", "x", "--json"), "WrongUsage", 2)
        assert "gc takes" in said(run("gc", store, "--only", "unit.gap", "--json"), "WrongUsage", 2)
        assert said(run("gc", store, "--base", "x", "--json"), "BaseUnknown", 2)
        assert line(run("gc", store, "--grace", "-1"), 2)


def test_a_database_in_use_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 0)
    EVERYTHING(store)
    before = contents(store)
    with closing(apsw.Connection(str(index(store)))) as other:
        other.execute("BEGIN IMMEDIATE")
        assert said(run("gc", store, "--json", *NAMED), "StoreBusy", 2)
    assert contents(store) == before
    assert len(done_by(gc(store, *NAMED))) == 5


def test_a_vector_file_in_use_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 0)
    path = v1_file(store, kb_rows())
    with closing(apsw.Connection(str(path))) as other:
        other.execute("BEGIN IMMEDIATE")
        assert said(run("gc", store, "--v1-leftovers", "--json"), "StoreBusy", 2)
    assert path.is_file()


def test_a_profile_in_use_is_refused(store: Path, tmp_path: Path) -> None:
    EVERYTHING(store)
    profile = tmp_path / "profile"
    (profile / "Data").mkdir(parents=True)
    shutil.copytree(store / KNOWLEDGE, profile / "Data" / KNOWLEDGE)
    shutil.copy(store / "catalog.sqlite", profile / "cherrystudio.sqlite")
    aged(profile / "Data" / KNOWLEDGE / NEW_BASE)
    an_old = profile / "Data" / KNOWLEDGE / KB / "raw" / "stray.bin"
    os.utime(an_old, (OLD, OLD))
    lock = start_application(profile)
    with untouched(profile):
        assert said(run("gc", profile, "--json", *NAMED), "ApplicationOpen", 2)
    lock.unlink()
    assert len(done_by(gc(profile, *NAMED))) == 5


def test_a_text_for_a_person(store: Path) -> None:
    EVERYTHING(store)
    shown: Outcome = run("gc", store, "--yes", *NAMED)
    assert shown.status == 0
    assert "delete 1 body whose unit is missing" in shown.stdout
    assert "[trash-folder]" in shown.stdout
    assert f"regraft undo {store}" in shown.stdout
    assert "Nothing to do" in run("gc", store).stdout


# --- kills -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("grace", [GRACE_DAYS, 0])
def test_a_kill_at_any_step_leaves_the_old_or_the_new(
    grace: int, healthy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    planted = shutil.copytree(healthy, tmp_path / "planted")
    EVERYTHING(planted)
    orphan_vectors_more = sql("INSERT INTO embedding SELECT 'more ' || rowid, zeroblob(20000), 0 FROM embedding")
    orphan_vectors_more(planted)
    v1_files(planted, tmp_path / "v1")
    options = ("--v1-leftovers", "--vacuum", *NAMED, "--grace", grace, "--yes", "-q", "--fail-on", "never")
    old = contents(planted)
    # What a process works out once is none of the steps: those that are killed are its children.
    run("gc", planted, "--dry-run", *options)
    whole_run = shutil.copytree(planted, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        wire = watched(patch, 1 << 30)
        assert run("gc", whole_run, *options).status == 0
    new = contents(whole_run)
    for at in range(1, len(wire.steps) + 1, 2 if grace else 5):
        target = tmp_path / "killed"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(planted, target)

        def work(target: Path = target, at: int = at) -> None:
            with pytest.MonkeyPatch.context() as patch:
                watched(patch, at)
                run("gc", target, *options)

        assert forked(work) == KILLED, wire.steps[at - 1]
        where = f"at step {at}, {wire.steps[at - 1]}"
        found = contents(target)
        for name in old.keys() | new.keys() | found.keys():
            assert found.get(name) in (old.get(name), new.get(name)), (where, name)
        assert run("gc", target, *options).status == 0, where
        assert contents(target) == new, where
        assert not (target / ".regraft" / "work").exists(), where
        if not grace:
            # A run for named findings leaves earlier runs alone; any other lets them expire.
            assert run("gc", target, "--grace", 0, "--yes", "-q", "--fail-on", "never").status == 0
            assert "possible" not in history(target), where


def watched(patch: pytest.MonkeyPatch, at: int) -> Tripwire:
    """Watch what a run does to the ledger, to files, and to the space in them."""
    wire = Tripwire(patch, die, at)
    wire.watch(ChangeLog, "record_actions", "intend", "set_state").watch(os, "replace", "link", "rmdir", "unlink")
    return wire.watch(durable, "replace", "remove_tree", "sync_file").watch(index_store, "database_sizes")


# --- an invariant ----------------------------------------------------------------------------------------------------

ROWS = st.sets(st.integers(1, 15), max_size=4)


@settings(max_examples=examples(30))
@given(units=ROWS, bodies=ROWS, vectors=ROWS, extra=st.integers(0, 3))
def test_what_anything_reaches_stays_whatever_is_missing(
    healthy: Path,
    tmp_path_factory: pytest.TempPathFactory,
    units: set[int],
    bodies: set[int],
    vectors: set[int],
    extra: int,
) -> None:
    store = shutil.copytree(healthy, tmp_path_factory.mktemp("any") / "library")
    listed = {name: ", ".join(map(str, sorted(rows))) for name, rows in (("u", units), ("b", bodies), ("v", vectors))}
    run_sql(
        index(store),
        f"DELETE FROM search_text WHERE rowid IN ({listed['b']})",
        f"DELETE FROM search_unit WHERE rowid IN ({listed['u']})",
        f"DELETE FROM embedding WHERE rowid IN ({listed['v']})",
    )
    orphan_vectors(extra)(store) if extra else None
    before = contents(store)
    name = f"{KNOWLEDGE}/{KB}/.cherry/index.sqlite"
    with closing(apsw.Connection(str(index(store)))) as db:
        reached = set(db.execute(REACHED).fetchall())
    assert run("gc", store, "-q", "--yes").status in (0, 1)
    with closing(apsw.Connection(str(index(store)))) as db:
        assert reached <= set(db.execute("SELECT embedding_text_hash, vector_blob FROM embedding").fetchall())
    assert contents(store)[name]["search_unit"] == before[name]["search_unit"]
    assert gc_again(store) == []
    if run("undo", store, "--yes").status == 0:
        assert contents(store) == before


#: Vectors of bodies with a unit, and those of units whose body is gone.
REACHED = """
    SELECT e.embedding_text_hash, e.vector_blob FROM embedding e
      JOIN search_text t USING (embedding_text_hash) JOIN search_unit u ON u.unit_id = t.target_id
    UNION SELECT e.embedding_text_hash, e.vector_blob FROM embedding e
     WHERE e.embedding_text_hash NOT LIKE 'nobody %' AND EXISTS (
             SELECT 1 FROM search_unit u
              WHERE NOT EXISTS (SELECT 1 FROM search_text t WHERE t.target_id = u.unit_id))
"""


def gc_again(store: Path) -> list[str]:
    done = run("gc", store, "--json")
    assert done.status in (0, 1)
    return done_by(done.document)
