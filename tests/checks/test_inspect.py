"""``regraft inspect``: every kind of path, as text and as JSON, without a trace."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import preview
import profiles
import pytest
from harness import run, snapshot
from msgspec import structs
from planted_v2 import run_sql
from v1 import MODEL, Library, Row, Source, base, file, folder, migrate, note, pack, page, write_store

from checks.cherry_v2.inspect import inspect_store
from regraft.kinds import Kind
from regraft.stores.locate import open_store

TOP = {"regraft", "source", "target", "run", "kind", "bases", "health"}
HEALTH = {"coverage", "orphans", "stale", "bytes", "problems"}


@pytest.fixture(scope="module")
def v1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export folder, a backup of it, the backup unpacked, and a library made of it, side by side."""
    place = tmp_path_factory.mktemp("inspect")
    items = [file("f", "F"), page("p", "P"), note("n", "N"), note("n2"), folder("d", "D")]
    rows = [Row(loader, f"text of {loader} {at}") for at in range(2) for loader in ("F", "P", "D", "gone")]
    bases = [
        base("kb", *items, name="Küche 🎉"),
        base("lost", note("l"), model={**MODEL, "provider": "gone"}),
        base("none"),
    ]
    source = Source(bases, {"kb": rows, "lost": [Row("L", "x", None)]}).write(place / "export")
    archive = pack(source, place / "backup.zip")
    shutil.unpack_archive(archive, place / "backup")
    done = run("migrate", source, "--to", place / "library", "--json")
    assert done.status == 1
    return place


@pytest.fixture
def library(v1: Path, tmp_path: Path) -> Library:
    """A copy of the library that a test may damage."""
    shutil.copytree(v1 / "library", tmp_path / "library")
    return Library(tmp_path / "library", 1, json.loads((v1 / "library" / "report.json").read_text("utf-8")))


def look(path: Path, *options: str) -> dict[str, Any]:
    done = run("inspect", path, "--json", *options)
    assert (done.status, done.stderr) == (0, "")
    document = done.document
    assert set(document) == TOP
    assert set(document["source"]) == {"kind", "path"}
    assert document["source"] == {"kind": document["kind"], "path": str(path)}
    assert document["target"] is None
    assert document["regraft"]["command"] == "inspect"
    assert set(document["health"]) == HEALTH
    for entry in document["bases"]:
        assert {"id", "name", "store", "problem"} <= set(entry)
    return document


# --- v1 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"), [("export", "v1-export"), ("backup.zip", "v1-backup"), ("backup", "v1-backup")]
)
def test_a_v1_source(v1: Path, name: str, kind: str) -> None:
    document = look(v1 / name)
    assert document["kind"] == kind
    kb, lost, none = document["bases"]
    assert (kb["id"], kb["name"], kb["model"]) == ("kb", "Küche 🎉", "acme::embed-3")
    assert kb["items"] == {"directory": 1, "file": 1, "note": 2, "url": 1}
    assert {key: kb["store"][key] for key in ("rows", "loaders", "dimensions")} == {
        "rows": 8,
        "loaders": 4,
        "dimensions": 4,
    }
    assert kb["problem"] is None
    assert lost["store"]["rows"] == 1
    assert "no usable vector" in lost["problem"]
    assert none["store"] is None
    assert "does not exist" in none["problem"]
    assert len(document["health"]["problems"]) == 2
    assert document["health"]["bytes"] == kb["store"]["bytes"] + lost["store"]["bytes"]


def test_a_knowledge_slice(v1: Path, tmp_path: Path) -> None:
    state = json.loads((v1 / "export" / "redux.json").read_text("utf-8"))
    (tmp_path / "knowledge.json").write_text(json.dumps(state["knowledge"]), "utf-8")
    shutil.copyfile(v1 / "export" / "KnowledgeBase" / "kb", tmp_path / "kb")
    for path in (tmp_path / "knowledge.json", tmp_path):
        document = look(path)
        assert document["kind"] == "v1-knowledge"
        assert document["bases"][0]["store"]["rows"] == 8


def test_a_vector_file(v1: Path) -> None:
    document = look(v1 / "export" / "KnowledgeBase" / "kb")
    assert document["kind"] == "v1-vectors"
    [entry] = document["bases"]
    assert (entry["id"], entry["store"]["rows"], entry["problem"]) == ("kb", 8, None)


def test_every_item_of_a_v1_source_is_named(v1: Path) -> None:
    kb, _lost, none = look(v1 / "export", "--items")["bases"]
    names = {item["id"]: (item["type"], item["name"]) for item in kb["item_list"]}
    assert names == {
        "f": ("file", "report.pdf"),
        "p": ("url", "https://example.com/guide/start"),
        "n": ("note", "A note"),
        "n2": ("note", "A note"),
        "d": ("directory", "docs"),
    }
    assert none["item_list"] == []
    shown = run("inspect", v1 / "export", "--items").stdout
    assert "report.pdf" in shown
    assert "report.pdf" not in run("inspect", v1 / "export").stdout
    assert "item_list" not in look(v1 / "export")["bases"][0]


@pytest.mark.parametrize("inside", ["library", "library/KnowledgeBase"])
def test_every_item_of_a_library_is_named_with_its_units(v1: Path, inside: str) -> None:
    kb, *_ = look(v1 / inside, "--items")["bases"]
    by_name = {item["name"]: item for item in kb["item_list"]}
    assert (by_name["report.pdf"]["status"], by_name["report.pdf"]["units"]) == ("completed", 2)
    folder_id = by_name["docs"]["id"]
    assert [item["units"] for item in kb["item_list"] if item["folder"] == folder_id] == [2]
    assert sum(item["units"] or 0 for item in kb["item_list"]) == kb["store"]["units"]


def test_items_are_of_a_path_and_of_knowledge_bases() -> None:
    done = run("inspect", "--items")
    assert (done.status, done.stdout) == (2, "")
    assert "--kind and --items need a PATH (give PATH)" in done.stderr


def test_odd_bases_harm_nothing(tmp_path: Path) -> None:
    odd = [None, 5, {"name": "no id"}, base("kb", items="none", model=None, name=None), base("x", None, 7, model=["m"])]
    source = Source(odd, {"kb": b"no database", "x": b""}).write(tmp_path / "v1")
    document = look(source)
    assert [entry["id"] for entry in document["bases"]] == ["kb", "x"]
    assert all(entry["problem"] for entry in document["bases"])
    assert len(document["health"]["problems"]) == 3


# --- v2 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["library", "library/KnowledgeBase", "library/catalog.sqlite"])
def test_a_library(v1: Path, name: str) -> None:
    document = look(v1 / name)
    assert document["kind"] == "library"
    kb, lost, none = document["bases"]
    report = json.loads((v1 / "library" / "report.json").read_text("utf-8"))
    assert [entry["id"] for entry in document["bases"]] == [entry["id"] for entry in report["bases"]]
    assert (kb["name"], kb["status"], kb["items"]) == ("Küche 🎉", "completed", {"completed": 5, "idle": 1})
    index = report["bases"][0]["index"]
    assert {key: kb["store"][key] for key in ("materials", "units", "embeddings", "bytes")} == {
        key: index[key] for key in ("materials", "units", "embeddings", "bytes")
    }
    assert kb["store"]["dimensions"] == 4
    assert (kb["store"]["coverage"], kb["store"]["stale"], kb["store"]["orphans"]) == (1, 0, 0)
    assert (lost["status"], lost["error"]) == ("failed", "missing_embedding_model")
    assert (none["status"], none["error"]) == ("failed", "missing_vector_store")
    health = document["health"]
    assert (health["coverage"], health["orphans"], health["stale"]) == (1, 0, 0)
    assert health["bytes"] == index["bytes"]


@pytest.mark.parametrize(("inside", "kind"), [("", "base"), (".cherry/index.sqlite", "index")])
def test_one_base_and_its_index(v1: Path, library: Library, inside: str, kind: str) -> None:
    place = library.folder("kb")
    document = look(place / inside)
    assert document["kind"] == kind
    [entry] = document["bases"]
    assert entry["id"] == library.base_id("kb")
    assert entry["store"]["units"] == 6
    assert entry["problem"] is None


@pytest.mark.parametrize("inside", ["", ".cherry/index.sqlite"])
def test_one_base_is_summarized_as_in_its_library(library: Library, inside: str) -> None:
    """With each material, and the source that the catalog has for its item."""
    path = library.index_path("kb")
    changed(
        path,
        "INSERT INTO material VALUES ('empty', 'empty.md', NULL, 1, 1)",
        "UPDATE search_unit SET char_end = 70 WHERE unit_id = (SELECT min(unit_id) FROM search_unit)",
    )
    catalog = library.path / "catalog.sqlite"
    changed(catalog, f"UPDATE knowledge_item SET data = '{{' WHERE id = '{library.item_id('p')}'")
    changed(catalog, f"UPDATE knowledge_item SET data = '{{}}' WHERE id = '{library.item_id('f')}'")
    [whole, *_] = look(library.path)["bases"]
    [entry] = look(library.folder("kb") / inside)["bases"]
    materials = entry.pop("materials")
    assert {**entry, "items": {}} == {**whole, "items": {}}
    assert (entry["name"], entry["status"], entry["model"]) == ("Küche 🎉", "completed", "acme::embed-3")
    with closing(apsw.Connection(str(path))) as db:
        unit = "FROM search_unit u WHERE u.material_id = m.material_id"
        rows = db.execute(
            f"SELECT material_id, relative_path, (SELECT count(*) {unit}), (SELECT max(char_end) {unit})"
            " FROM material m ORDER BY rowid"
        ).fetchall()
    with closing(apsw.Connection(str(catalog))) as db:
        items = db.execute("SELECT id, data FROM knowledge_item WHERE json_valid(data)").fetchall()
    sources = {item: json.loads(data).get("source") for item, data in items}
    expected = [
        {"id": one, "path": place, "source": sources.get(one), "units": units, "utf16_units": end or 0}
        for one, place, units, end in rows
    ]
    assert materials == expected
    assert {one["utf16_units"] for one in expected} > {0, 70}
    assert len({one["source"] for one in expected} - {None}) == 1


def test_an_index_without_a_catalog_is_named_by_what_it_states(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "alone" / ".cherry" / "index.sqlite"
    path.parent.mkdir(parents=True)
    shutil.copyfile(library.index_path("kb"), path)
    changed(path, "UPDATE meta SET base_id = 'stated'")
    [entry] = look(path)["bases"]
    assert (entry["id"], entry["name"], entry.get("status")) == ("stated", "stated", None)
    assert {one["source"] for one in entry["materials"]} == {None}
    # One that cannot be read has no id but that of its folder.
    path.write_bytes(path.read_bytes()[:5000])
    [entry] = look(path)["bases"]
    assert (entry["id"], entry["name"], entry["store"], entry["materials"]) == ("alone", "alone", None, [])
    assert "cannot be read" in entry["problem"]


def test_an_index_of_a_preview_build(tmp_path: Path) -> None:
    path = preview.store(tmp_path / "Data" / "KnowledgeBase" / preview.BASE / ".cherry" / "index.sqlite")
    with closing(apsw.Connection(str(path))) as db:
        count = db.execute(f"SELECT count(*) FROM {preview.TABLE}").get
    [entry] = look(path)["bases"]
    assert (entry["store"]["rows"], entry["store"]["dimensions"]) == (count, 4)


def test_an_index_that_was_carried_elsewhere(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.sqlite"
    shutil.copyfile(library.index_path("kb"), path)
    document = look(path)
    assert document["kind"] == "index"
    assert document["bases"][0]["store"]["units"] == 6


def changed(path: Path, *statements: str) -> None:
    with closing(apsw.Connection(str(path))) as db:
        for statement in statements:
            db.execute(statement)
            assert db.changes() > 0


def test_failed_items_are_shown_by_the_command_that_is_suggested(library: Library) -> None:
    row = "(SELECT id FROM knowledge_item WHERE status = 'completed' LIMIT 1)"
    changed(
        library.path / "catalog.sqlite",
        f"UPDATE knowledge_item SET status = 'failed', error = '400 too long' WHERE id = {row}",
    )
    text = run("inspect", library.path).stdout
    command = f"regraft inspect {library.path} --items"
    assert f"\nWorth a look: 1 failed item; for details: {command}\n" in text
    assert "400 too long" not in text
    listed = run(*command.split()[1:]).stdout
    assert listed.count(": 400 too long\n") == 1
    assert "\nWorth a look: 1 failed item, see above.\n" in listed


def test_missing_vectors_lower_the_coverage(library: Library) -> None:
    changed(library.index_path("kb"), "DELETE FROM embedding WHERE rowid <= 3")
    document = look(library.path)
    assert document["bases"][0]["store"]["missing"] == 3
    assert document["health"]["coverage"] == 0.5
    assert len(document["health"]["problems"]) == 3
    assert "50.00%" in run("inspect", library.path).stdout


def test_a_base_with_a_model_and_not_one_vector_is_not_healthy(library: Library) -> None:
    changed(library.index_path("kb"), "DELETE FROM embedding")
    document = look(library.path)
    assert document["bases"][0]["model"] == "acme::embed-3"
    assert document["health"]["coverage"] == 0
    assert document["bases"][0]["problem"]


@pytest.mark.parametrize(
    ("catalog", "index", "missing", "coverage"),
    [
        # Without a model it needs no vectors.
        ("embedding_model_id = NULL, dimensions = NULL", "DELETE FROM embedding", 0, 1),
        ("embedding_model_id = NULL, dimensions = NULL", "DELETE FROM embedding WHERE rowid <= 3", 0, 1),
        # The model of a failed one may be what is gone.
        (
            "embedding_model_id = NULL, dimensions = NULL, status = 'failed', error = 'x'",
            "DELETE FROM embedding WHERE rowid <= 3",
            3,
            0.5,
        ),
        ("status = 'failed', error = 'x'", "DELETE FROM embedding WHERE rowid <= 3", 3, 0.5),
    ],
)
def test_which_bases_need_vectors(library: Library, catalog: str, index: str, missing: int, coverage: float) -> None:
    changed(
        library.path / "catalog.sqlite", f"UPDATE knowledge_base SET {catalog} WHERE id = '{library.base_id('kb')}'"
    )
    changed(library.index_path("kb"), index)
    entry = look(library.path)["bases"][0]
    assert (entry["store"]["missing"], entry["store"]["coverage"]) == (missing, coverage)
    failed = "failed during the migration: x" if "failed" in catalog else None
    assert entry["problem"] == ("; ".join([failed, "3 texts without a vector"]) if failed else None)


@pytest.mark.parametrize(("left", "missing", "coverage"), [(0, 0, 1), (1, 5, 1 / 6), (6, 0, 1)])
def test_an_index_alone_needs_vectors_if_it_has_any(
    library: Library, tmp_path: Path, left: int, missing: int, coverage: float
) -> None:
    path = tmp_path / "elsewhere.sqlite"
    shutil.copyfile(library.index_path("kb"), path)
    run_sql(path, f"DELETE FROM embedding WHERE rowid > {left}")
    [entry] = look(path)["bases"]
    assert (entry["store"]["embeddings"], entry["store"]["missing"]) == (left, missing)
    assert (entry["store"]["coverage"], entry["store"]["wrong_length"]) == (pytest.approx(coverage), 0)
    assert entry["problem"] == (f"{missing} texts without a vector" if missing else None)


def test_vectors_of_another_length_are_a_problem(library: Library) -> None:
    path = library.index_path("kb")
    changed(
        path,
        "UPDATE embedding SET vector_blob = zeroblob(12) WHERE rowid = 1",
        "DELETE FROM embedding WHERE rowid IN (2, 3)",
    )
    entry = look(library.path)["bases"][0]
    assert (entry["store"]["wrong_length"], entry["store"]["missing"], entry["store"]["coverage"]) == (1, 2, 0.5)
    assert entry["problem"] == ("2 texts without a vector; 1 text with a vector that does not have 4 dimensions")
    # A base without a model needs none.
    changed(library.path / "catalog.sqlite", "UPDATE knowledge_base SET embedding_model_id = NULL, dimensions = NULL")
    entry = look(library.path)["bases"][0]
    assert (entry["store"]["wrong_length"], entry["store"]["coverage"], entry["problem"]) == (0, 1, None)


def test_a_pending_change_of_a_profile_is_a_problem_and_of_a_copy_is_none(tmp_path: Path) -> None:
    profile = profiles.profile(tmp_path / "profile")
    pending = profile / "data-reset.pending.json"
    pending.write_text('{"status": "pending"}')
    [problem, *_] = look(profile)["health"]["problems"]
    assert problem.startswith("catalog.pending: ")
    assert pending.name in problem
    # Nothing will be changed in a backup, nor in a database that the user named instead of the profile's own.
    with open_store(profile, Kind.V2_PROFILE) as found:
        backup = inspect_store(structs.replace(found, kind=Kind.V2_BACKUP), items=False)
    for suffix in ("", "-wal"):
        shutil.copyfile(profile / f"cherrystudio.sqlite{suffix}", profile / f"copy.sqlite{suffix}")
    for problems in (backup.health.problems, look(profile / "copy.sqlite")["health"]["problems"]):
        assert not [one for one in problems if "pending" in one]


def test_orphans_and_stale_materials_are_counted(library: Library) -> None:
    changed(
        library.index_path("kb"),
        "INSERT INTO embedding VALUES ('nobody', zeroblob(16), 1)",
        "INSERT INTO content VALUES ('nobody', 'text', 1)",
    )
    item = library.item_id("p")
    changed(library.path / "catalog.sqlite", f"DELETE FROM knowledge_item WHERE id = '{item}'")
    health = look(library.path)["health"]
    assert (health["orphans"], health["stale"]) == (2, 1)


def test_an_index_that_is_gone_or_damaged_is_a_problem(library: Library) -> None:
    path = library.index_path("kb")
    path.write_bytes(path.read_bytes()[:5000])
    document = look(library.path)
    assert document["bases"][0]["problem"]
    assert document["bases"][0]["store"] is None
    path.unlink()
    assert "missing" in look(library.path)["bases"][0]["problem"]


@pytest.mark.parametrize(
    ("statement", "word"),
    [("UPDATE meta SET schema_version = 1", "version 1"), ("UPDATE meta SET base_id = 'other'", "other")],
)
def test_an_index_that_the_application_would_refuse_is_a_problem(library: Library, statement: str, word: str) -> None:
    changed(library.index_path("kb"), statement)
    assert word in look(library.path)["bases"][0]["problem"]


def test_a_base_that_no_catalog_names_is_a_problem(library: Library) -> None:
    changed(library.path / "catalog.sqlite", "DELETE FROM knowledge_base")
    [entry] = look(library.path)["bases"]
    assert entry["id"] == library.base_id("kb")
    assert entry["problem"]


def test_a_folder_of_bases_without_a_catalog(library: Library, tmp_path: Path) -> None:
    shutil.copytree(library.path / "KnowledgeBase", tmp_path / "alone" / "KnowledgeBase")
    for path in (tmp_path / "alone", tmp_path / "alone" / "KnowledgeBase"):
        [entry] = look(path)["bases"]
        assert (entry["store"]["units"], entry["problem"]) == (6, None)


# --- all -----------------------------------------------------------------------------------------------------------

PATHS = ["export", "backup.zip", "backup", "export/KnowledgeBase/kb", "library", "library/KnowledgeBase"]


@pytest.mark.parametrize("name", PATHS)
def test_looking_leaves_no_trace(v1: Path, name: str) -> None:
    before = snapshot(v1)
    look(v1 / name)
    run("inspect", v1 / name, "-v")
    assert snapshot(v1) == before


@pytest.mark.parametrize("name", PATHS)
def test_the_text_says_the_same(v1: Path, name: str) -> None:
    document = look(v1 / name)
    done = run("inspect", v1 / name)
    assert (done.status, done.stderr) == (0, "")
    assert str(v1 / name) in done.stdout.splitlines()[0]
    for entry in document["bases"]:
        assert entry["name"] in done.stdout
        if entry["problem"]:
            assert entry["problem"] in done.stdout
        for status, count in entry.get("items", {}).items():
            assert f"{count} {status}" in done.stdout
    count = len(document["bases"])
    assert f"{count} base{'s' if count != 1 else ''}, " in done.stdout


def test_a_store_with_a_log_beside_it_is_read_without_a_trace(tmp_path: Path) -> None:
    path = write_store(tmp_path / "live" / "kb", [Row("L", "one")])
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("INSERT INTO vectors VALUES ('L_1', 'two', 'L', 's', zeroblob(16), '{}')")
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("kb", "kb-wal"):
            (copy / name).write_bytes((path.parent / name).read_bytes())
    before = snapshot(copy)
    assert look(copy / "kb")["bases"][0]["store"]["rows"] == 2
    assert snapshot(copy) == before


@pytest.mark.parametrize(
    "content", [b"", b"just a text", b"{}", b'{"a": 1}', b"[1, 2", b"PK\x03\x04", b"\0" * 99, None]
)
def test_what_is_nothing_known_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "something"
    if content is not None:
        path.write_bytes(content)
    done = run("inspect", path)
    assert done.status == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert str(path) in done.stderr


def test_an_empty_folder_is_nothing_known(tmp_path: Path) -> None:
    done = run("inspect", tmp_path)
    assert (done.status, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert str(tmp_path) in done.stderr


def test_a_kind_can_be_forced_but_not_against_the_facts(v1: Path) -> None:
    assert look(v1 / "export", "--kind", "v1-export")["kind"] == "v1-export"
    for path, kind, named in (
        (v1 / "library", "v1-export", str(v1 / "library")),
        (v1 / "export", "no kind", "no kind"),
    ):
        done = run("inspect", path, "--kind", kind)
        assert (done.status, done.stdout) == (2, "")
        assert named in done.stderr


def test_what_was_migrated_is_what_is_inspected(tmp_path: Path) -> None:
    source = Source([base("kb", note("n", "L"))], {"kb": [Row("L", "one"), Row("L", "two")]}).write(tmp_path / "v1")
    library = migrate(source, tmp_path / "library")
    before, after = look(source)["bases"][0]["store"], look(library.path)["bases"][0]["store"]
    assert before["rows"] == after["units"] == 2
    assert before["dimensions"] == after["dimensions"] == 4
