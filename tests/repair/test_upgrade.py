"""``regraft upgrade``: older, half-applied and preview layouts become version 2, every vector kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from faults import forked, line, said, untouched
from harness import GOLDEN, examples, golden, run
from hypothesis import given, settings
from hypothesis import strategies as st
from older import add_column, contents, make_version_1, renumber, words
from planted_v2 import KB, PLANTED, UNIT, Plant, index, plant, rewritten, run_sql, sql
from preview import (
    BASE,
    MODEL,
    ROWS,
    TABLE,
    UNPARSABLE,
    VECTOR_INDEX,
    A,
    B,
    C,
    D,
    Row,
    base_row,
    expected,
    item_row,
    profile,
    set_trap,
    store,
    write_catalog,
)
from stand_ins import die
from tree_damage import one_cell_less

from regraft.disk import durable
from regraft.formats.cherry_v2.index import older as older_index
from regraft.ledger.ledger import ChangeLog, Ledger
from repair.changes import execution, files


@pytest.fixture
def target(healthy: Path, tmp_path: Path) -> Path:
    return shutil.copytree(healthy, tmp_path / "library")


def findings(path: Path) -> set[str]:
    return {one["name"] for one in run("check", path, "--json").document["findings"]}


def upgrade(path: Path, *options: object, status: int = 0) -> dict[str, Any]:
    done = run("upgrade", path, "--json", *options)
    assert done.status == status, done
    return done.document


def actions(document: dict[str, Any]) -> list[str]:
    return [one["action"] for one in document["actions"]]


def left(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["finding"], one["reason"]) for one in document["left"]]


# --- version 1 and half-applied layouts ------------------------------------------------------------------------------


def version_1(target: Path) -> None:
    make_version_1(index(target))


def renumbered(target: Path) -> None:
    version_1(target)
    renumber(index(target))


def one_less(table: str) -> Plant:
    """Let a leaf of a table lose an entry, so that a scan gives one row less than there is."""

    def plant(target: Path) -> None:
        version_1(target)
        one_cell_less(index(target), table)

    return plant


def begun(numbered: int) -> Plant:
    def plant(target: Path) -> None:
        version_1(target)
        add_column(index(target), numbered=numbered)

    return plant


OLDER: dict[str, Plant] = {
    "version 1": version_1,
    "version 1, restored": renumbered,
    "version 1 with an empty column": begun(0),
    "version 1 with a column half filled": begun(5),
    "version 1 with a full column": begun(1000),
    "no numbers": sql("UPDATE search_text SET fts_rowid = NULL"),
    "the old full-text index": rewritten("content_rowid = 'fts_rowid'", "content_rowid = 'rowid'"),
    "no full-text index": sql("DROP TABLE search_text_fts"),
    "no identity table": sql("DROP TABLE meta"),
    "no columns that follow": sql(
        *("ALTER TABLE search_unit DROP COLUMN title", "ALTER TABLE search_unit DROP COLUMN locator_json"),
        *("ALTER TABLE material DROP COLUMN updated_at", "ALTER TABLE content DROP COLUMN created_at"),
    ),
    "an empty table that nobody knows": sql("DROP TRIGGER search_text_ad", "CREATE TABLE stranger (x)"),
    **{
        name: PLANTED[name].damage
        for name in (
            *("no index on hashes", "no trigger", "an idle trigger", "a lenient check", "another key"),
            *("version 1", "a version in words", "one number twice"),
        )
    },
    "version 0": sql("UPDATE meta SET schema_version = 0"),
    "a version below": sql("UPDATE meta SET schema_version = -3"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", OLDER)
def test_what_is_older_is_mended_and_taken_back(name: str, target: Path) -> None:
    before = contents(index(target))
    OLDER[name](target)
    damaged, bytes_before = contents(index(target)), index(target).read_bytes()
    assert findings(target)
    with untouched(target):
        planned = upgrade(target, "--dry-run")
    done = upgrade(target)
    assert done["actions"] == planned["actions"]
    assert len(done["actions"]) == 1
    assert findings(target) == set()
    assert contents(index(target)) == before
    assert words(index(target), "ext 2 of F") == ["text 2 of F"]
    assert upgrade(target)["actions"] == []
    assert run("undo", target, "-y").status == 0
    if done["actions"][0]["action"] == "upgrade-index":
        assert index(target).read_bytes() == bytes_before
    assert contents(index(target)) == damaged


def test_the_text_of_a_material_follows_from_its_units(target: Path) -> None:
    before = contents(index(target))
    run_sql(
        index(target),
        *("DROP INDEX material_content_idx", "PRAGMA legacy_alter_table = ON"),
        "CREATE TABLE other (material_id TEXT PRIMARY KEY, relative_path TEXT NOT NULL UNIQUE, created_at INTEGER NOT"
        " NULL, updated_at INTEGER NOT NULL)",
        "INSERT INTO other SELECT material_id, relative_path, created_at, updated_at FROM material",
        *("DROP TABLE material", "ALTER TABLE other RENAME TO material"),
    )
    assert actions(upgrade(target)) == ["upgrade-index"]
    assert contents(index(target)) == before
    assert findings(target) == set()


def test_bodies_are_numbered_in_the_order_of_their_old_numbers(target: Path) -> None:
    renumbered(target)
    with closing(apsw.Connection(str(index(target)))) as db:
        before = db.execute("SELECT search_text_id FROM search_text ORDER BY rowid").fetchall()
    upgrade(target)
    with closing(apsw.Connection(str(index(target)))) as db:
        rows = db.execute("SELECT search_text_id, fts_rowid, rowid FROM search_text ORDER BY rowid").fetchall()
    assert rows == [(key, number, number) for number, (key,) in enumerate(before, 1)]


# --- what stays ------------------------------------------------------------------------------------------------------

V1 = "UPDATE meta SET schema_version = 1"
LEFT: dict[str, tuple[Plant, str, str]] = {
    "a version to come": (
        PLANTED["version 3"].damage,
        "schema.version",
        "version 3, but this regraft supports versions up to 2",
    ),
    "no vectors": (sql("DROP TABLE embedding"), "schema.missing", "its table embedding is missing"),
    "no vector column": (
        sql("ALTER TABLE embedding DROP COLUMN vector_blob"),
        "schema.missing",
        "embedding.vector_blob is missing",
    ),
    "no texts": (sql("DROP TABLE content"), "schema.missing", "its table content is missing"),
    "no bodies": (sql("DROP TABLE search_text"), "schema.missing", "its table search_text is missing"),
    "a refused number": (
        sql(V1, UNIT.format("unit_index = -1")),
        "schema.version",
        "violating the condition unit_index >= 0",
    ),
    "equal keys": (
        sql("DROP INDEX search_unit_material_index_idx", "UPDATE search_unit SET unit_index = 0"),
        "schema.missing",
        "(material_id, unit_type, unit_index) more than once",
    ),
    "a strange table": (
        sql(V1, "CREATE TABLE stranger (x)", "INSERT INTO stranger VALUES (1)"),
        "schema.version",
        "its table stranger is unknown to the layout and contains rows",
    ),
    "a strange column": (
        sql(V1, "ALTER TABLE material ADD COLUMN rank", "UPDATE material SET rank = 1"),
        "schema.version",
        "its column material.rank is unknown to the layout and contains values",
    ),
    "a leaf of vectors with one entry less": (
        one_less("embedding"),
        "schema.version",
        "its pages contradict each other about its rows",
    ),
    "a leaf of texts with one entry less": (
        one_less("search_text"),
        "schema.version",
        "its pages contradict each other about its rows",
    ),
    "half a file": (PLANTED["half a file"].damage, "file.unreadable", "cannot be read"),
    "random bytes": (PLANTED["random bytes"].damage, "file.unreadable", "cannot be read"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_upgraded_stays_and_is_said(name: str, target: Path) -> None:
    plant, finding, reason = LEFT[name]
    plant(target)
    with untouched(target / "KnowledgeBase"):
        done = upgrade(target, status=1)
    assert done["actions"] == []
    assert any(one == finding and reason in why for one, why in left(done)), left(done)
    assert [one["base"] for one in done["left"]] == [KB] * len(done["left"])


def test_one_base_that_stays_stops_no_other(target: Path, healthy: Path) -> None:
    other = next(path for path in (target / "KnowledgeBase").iterdir() if path.name != KB)
    make_version_1(other / ".cherry" / "index.sqlite")
    plant("version 3", target)
    done = upgrade(target, status=1)
    assert [one["base"] for one in done["actions"]] == [other.name]
    assert contents(other / ".cherry" / "index.sqlite") == contents(index(healthy, other.name))


def in_wal_mode(path: Path, *statements: str) -> None:
    """Leave changes in a log beside a file, as a program that was killed does."""

    def work() -> None:
        db = apsw.Connection(str(path))
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA wal_autocheckpoint = 0", *statements):
            db.execute(statement)
        die()

    forked(work)


def test_what_a_log_holds_is_upgraded_too(target: Path) -> None:
    version_1(target)
    in_wal_mode(index(target), "UPDATE material SET updated_at = 7")
    before = index(target).read_bytes()
    assert actions(upgrade(target)) == ["upgrade-index"]
    assert index(target).read_bytes() != before
    assert {row[-1] for row in contents(index(target))["material"]} == {7}
    assert not index(target).with_name("index.sqlite-wal").exists()
    assert findings(target) == set()


def test_an_index_that_nobody_can_open_for_a_preview_builds_index(target: Path) -> None:
    before = contents(index(target))
    with closing(apsw.Connection(str(index(target)))) as db:
        db.execute(f"CREATE TABLE {TABLE} (id, external_id, collection, document, metadata, embeddings F32_BLOB(4))")
        db.execute(f"INSERT INTO {TABLE} VALUES ('r', 'i', 'c', 'text', 7, zeroblob(16))")
        set_trap(db, UNPARSABLE)
    done = upgrade(target, status=1)
    assert (actions(done), left(done)[0][0]) == (["upgrade-index"], "schema.preview")
    assert contents(index(target)) == before
    assert rows_left(index(target)) == [("text", bytes(16))]
    assert findings(target) == {"schema.preview"}


def test_only_the_bases_that_are_named(target: Path) -> None:
    version_1(target)
    other = next(path.name for path in (target / "KnowledgeBase").iterdir() if path.name != KB)
    assert upgrade(target, "--base", other)["actions"] == []
    assert upgrade(target, "--base", KB)["actions"] != []
    assert "BaseUnknown" in run("upgrade", target, "--base", "nobody", "--json").stdout


def test_damaged_rows_are_taken_as_they_are(target: Path) -> None:
    for name in (
        "a place in words",
        "a text of bytes",
        "an odd vector",
        "a unit of nobody",
        "a vector in words",
        "NaN",
    ):
        plant(name, target)
    version_1(target)
    before, said_before = contents(index(target)), findings(target) - {"schema.version"}
    assert actions(upgrade(target)) == ["upgrade-index"]
    assert repr(contents(index(target))) == repr(before)
    assert findings(target) == said_before


def vectors_of(target: Path) -> set[tuple[object, ...]]:
    """Return hash and vector of all rows that can be read."""
    try:
        with closing(apsw.Connection(str(index(target)))) as db:
            return {tuple(row) for row in db.execute("SELECT embedding_text_hash, vector_blob FROM embedding")}
    except (apsw.Error, ValueError):
        return set()


@settings(max_examples=examples(40))
@given(names=st.lists(st.sampled_from(sorted(PLANTED)), min_size=1, max_size=4), is_old=st.booleans())
def test_no_damage_takes_a_vector_away(names: list[str], is_old: bool, healthy: Path) -> None:
    """Whatever is wrong with a store: nothing raises, and every vector that was there still is."""
    with tempfile.TemporaryDirectory() as place:
        target = shutil.copytree(healthy, Path(place) / "library")
        for plant in [*([version_1] if is_old else []), *(PLANTED[name].damage for name in names)]:
            # One damage may not go with another.
            with contextlib.suppress(apsw.Error, OSError, AssertionError, ValueError):
                plant(target)
        vectors = vectors_of(target)
        done = run("upgrade", target, "--json")
        assert done.status in (0, 1) or "error" in done.document, done
        assert repr(sorted(vectors_of(target), key=repr)) == repr(sorted(vectors, key=repr))


# --- refusals and kills ----------------------------------------------------------------------------------------------


def test_an_open_file_is_refused(target: Path) -> None:
    version_1(target)
    with closing(apsw.Connection(str(index(target)))) as db:
        db.execute("BEGIN IMMEDIATE")
        with untouched(target / "KnowledgeBase"):
            message = said(run("upgrade", target, "--json"), "StoreBusy", 2)
    assert "another program has it open" in message
    assert actions(upgrade(target)) == ["upgrade-index"]


def test_a_file_that_may_not_be_written_is_refused(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version_1(target)

    def refuse(path: Path) -> None:
        raise apsw.ReadOnlyError("attempt to write a readonly database")

    monkeypatch.setattr(older_index.sqlite, "open_writable", lambda path, **_: refuse(path))
    with untouched(target / "KnowledgeBase"):
        done = run("upgrade", target)
    assert "cannot be written" in line(done, 2)


def test_a_profile_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = profile(tmp_path / "profile")
    monkeypatch.setattr("regraft.formats.cherry_v1.profile.detect_running_app", lambda _: "process 7")
    with untouched(folder):
        assert "process 7" in said(run("upgrade", folder, "--json"), "ApplicationOpen", 2)


def test_what_is_read_otherwise_than_planned_is_not_put_in_place(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version_1(target)
    monkeypatch.setattr(older_index, "write_indexes", _without_a_vector(older_index.write_indexes))
    with untouched(target / "KnowledgeBase"):
        assert "texts or vectors differ" in said(run("upgrade", target, "--json"), "VerificationFailed", 3)


def _without_a_vector(real: Any) -> Any:
    def write(db: apsw.Connection) -> None:
        db.execute("UPDATE embedding SET vector_blob = zeroblob(16) WHERE rowid = 2")
        real(db)

    return write


def _watched(patch: pytest.MonkeyPatch, at: int) -> list[str]:
    """Die before the so-manieth step of a run; return the steps that came so far."""
    steps: list[str] = []
    places = [
        *((ChangeLog, name) for name in ("intend", "set_state", "record_actions")),
        *((Ledger, name) for name in ("begin_run", "end_run")),
        *(
            (files, "swap"),
            (files, "fingerprint"),
            (durable, "replace"),
            (durable, "sync_file"),
            (execution, "clear_work_folder"),
        ),
    ]
    for owner, name in places:
        _watch(patch, owner, name, steps, at)
    return steps


def _watch(patch: pytest.MonkeyPatch, owner: object, name: str, steps: list[str], at: int) -> None:
    real = getattr(owner, name)

    def watched(*arguments: Any, **named: Any) -> Any:
        steps.append(name)
        if len(steps) == at:
            die()
        return real(*arguments, **named)

    patch.setattr(owner, name, watched)


def _steps(path: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        steps = _watched(patch, -1)
        upgrade(path)
    return len(steps)


def _killed(path: Path, at: int) -> int:
    def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            _watched(patch, at)
            run("upgrade", path)

    return forked(work)


#: Of the moments to kill at every so-manieth is enough most of the time.
sometimes = pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])


@sometimes
def test_a_kill_leaves_the_old_file_or_the_new_one(target: Path, tmp_path: Path, every: int) -> None:
    version_1(target)
    old = index(target).read_bytes()
    count = _steps(shutil.copytree(target, tmp_path / "counted"))
    for at in range(1, count + 1, every):
        one = shutil.copytree(target, tmp_path / str(at))
        assert _killed(one, at) != 0
        assert index(one).read_bytes() == old or words(index(one), "ext 2 of F") == ["text 2 of F"]
        assert findings(one) <= {"schema.version"}
        upgrade(one)
        assert findings(one) == set()
        assert not (one / ".regraft" / "work").exists()
        shutil.rmtree(one)


# --- tables of preview builds ----------------------------------------------------------------------------------------

PROFILE_INDEX = Path("Data") / "KnowledgeBase" / BASE / ".cherry" / "index.sqlite"


def carried(path: Path) -> list[tuple[str, str, bytes]]:
    """Return item, body and vector of every unit of an index, in the order of the bodies."""
    with closing(apsw.Connection(str(path))) as db:
        return [
            (str(item), str(body), bytes(vector))
            for item, body, vector in db.execute(
                "SELECT u.material_id, t.text, e.vector_blob FROM search_text t"
                " JOIN search_unit u ON u.unit_id = t.target_id JOIN embedding e USING (embedding_text_hash)"
                " ORDER BY t.fts_rowid"
            )
        ]


def items_of(path: Path) -> dict[str, dict[str, Any]]:
    with closing(apsw.Connection(str(path))) as db:
        return {str(key): json.loads(str(data)) for key, data in db.execute("SELECT id, data FROM knowledge_item")}


def rows_left(path: Path) -> list[tuple[Any, ...]]:
    with closing(apsw.Connection(str(path))) as db:
        if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (TABLE,)).fetchall():
            return []
        return db.execute(f"SELECT document, embeddings FROM {TABLE} ORDER BY rowid").fetchall()


def material_paths(path: Path) -> dict[str, str]:
    with closing(apsw.Connection(str(path))) as db:
        return dict(db.execute("SELECT material_id, relative_path FROM material").fetchall())  # type: ignore[arg-type]


TRAPS = {"plain": "", "the trap": VECTOR_INDEX, "a schema nobody reads": UNPARSABLE}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("seven_tables", [False, True], ids=["alone", "beside seven tables"])
def test_a_preview_base_of_a_profile(trap: str, seven_tables: bool, tmp_path: Path) -> None:
    folder = profile(tmp_path / "profile")
    path = store(folder / PROFILE_INDEX, vector_index=TRAPS[trap], seven_tables=seven_tables)
    old, catalog = path.read_bytes(), items_of(folder / "cherrystudio.sqlite")
    assert findings(folder) >= {"schema.preview"}
    with untouched(folder):
        planned = upgrade(folder, "--dry-run")
    done = upgrade(folder)
    assert done["actions"] == planned["actions"]
    assert actions(done) == ["write-snapshot", "write-snapshot", "update-items", "upgrade-preview"]
    assert carried(path) == expected(ROWS)
    paths = {A: "plan.md", B: "The ferry.md", C: "Rota.md"}
    assert material_paths(path) == paths
    stored = items_of(folder / "cherrystudio.sqlite")
    assert {item: data["relativePath"] for item, data in stored.items()} == paths
    assert stored == {item: {**data, "relativePath": paths[item]} for item, data in catalog.items()}
    raw = path.parent.parent / "raw"
    assert (raw / "The ferry.md").read_text("utf-8").endswith("---\n# The ferry\nruns daily\n\nshared text")
    assert findings(folder) == set()
    assert upgrade(folder)["actions"] == []
    assert run("undo", folder, "-y").status == 0
    assert path.read_bytes() == old
    assert items_of(folder / "cherrystudio.sqlite") == catalog
    assert sorted(file.name for file in raw.iterdir()) == ["plan.md"]


def test_a_base_that_the_catalog_calls_failed_is_completed(tmp_path: Path) -> None:
    row = base_row(status="failed", error="missing_vector_store", dimensions=None)
    folder = profile(tmp_path / "profile", bases=[row])
    assert "update-base" in actions(upgrade(folder))
    with closing(apsw.Connection(str(folder / "cherrystudio.sqlite"))) as db:
        found = db.execute("SELECT status, error, dimensions, name, updated_at FROM knowledge_base").fetchall()
    assert found == [("completed", None, 4, "Harbour", row["updated_at"])]
    assert findings(folder) == set()


def test_rows_that_are_not_carried_stay_in_their_table(tmp_path: Path) -> None:
    infinite = b"\0\0\x80\x7f" * 4
    lost = [
        Row(D, "nobody's"),
        Row(A, "no vector", vector=None),
        Row(A, "too short", vector=b"\0\0\x80?"),
        Row(A, "infinite", vector=infinite),
    ]
    folder = profile(tmp_path / "profile", [lost[0], *ROWS, *lost[1:]])
    done = upgrade(folder, status=1)
    path = folder / PROFILE_INDEX
    assert carried(path) == expected(ROWS)
    assert [body for body, _ in rows_left(path)] == ["nobody's", "no vector", "too short", "infinite"]
    assert [vector for _, vector in rows_left(path)][1:] == [None, b"\0\0\x80?", infinite]
    assert {finding for finding, _ in left(done)} == {"schema.preview"}
    assert sum(one["count"] for one in done["left"]) == 4
    again = upgrade(folder, status=1)
    assert (again["actions"], [one["count"] for one in again["left"]]) == ([], [4])


def test_a_preview_base_whose_pages_hide_a_row_stays(tmp_path: Path) -> None:
    folder = profile(tmp_path / "profile")
    one_cell_less(folder / PROFILE_INDEX, TABLE)
    with untouched(folder / "Data"):
        done = upgrade(folder, status=1)
    assert done["actions"] == []
    assert any("is damaged: " in reason for _, reason in left(done))


def test_the_users_word_on_a_model(tmp_path: Path) -> None:
    folder = profile(tmp_path / "profile", bases=[base_row(embedding_model_id=None, search_mode="bm25")])
    with untouched(folder):
        refused = upgrade(folder, "--dry-run", status=1)
    assert "--map-model" in left(refused)[0][1]
    unknown = upgrade(folder, "--map-model", f"{BASE}=acme::other", status=1)
    assert "the catalog has no model acme::other" in left(unknown)[0][1]
    assert upgrade(folder, "--map-model", f"{BASE}={MODEL}")["actions"]
    with closing(apsw.Connection(str(folder / "cherrystudio.sqlite"))) as db:
        found = db.execute("SELECT embedding_model_id, dimensions, search_mode FROM knowledge_base").fetchall()
    assert found == [(MODEL, 4, "hybrid")]
    assert findings(folder) == set()


def test_without_a_catalog_the_index_alone(tmp_path: Path) -> None:
    path = store(tmp_path / "KnowledgeBase" / BASE / ".cherry" / "index.sqlite")
    (path.parent.parent / "raw").mkdir()
    (path.parent.parent / "raw" / "plan.md").write_text("plan")
    assert actions(upgrade(path)) == ["upgrade-preview"]
    assert carried(path) == expected(ROWS)
    assert material_paths(path) == {A: "plan.md", B: B, C: C}
    assert findings(path) == set()


def test_a_folder_that_holds_the_index_itself(tmp_path: Path) -> None:
    """It is recognised afterwards, too, so that it can be checked and taken back by the same name."""
    path = store(tmp_path / "kept" / "index.sqlite")
    old = path.read_bytes()
    assert actions(upgrade(tmp_path / "kept")) == ["upgrade-preview"]
    assert carried(path) == expected(ROWS)
    assert findings(tmp_path / "kept") == set()
    assert upgrade(tmp_path / "kept")["actions"] == []
    assert run("undo", tmp_path / "kept", "-y").status == 0
    assert path.read_bytes() == old


@pytest.mark.one_in(3)
@pytest.mark.parametrize("suffix", ["", ".sqlite", ".db"])
@pytest.mark.parametrize("named", ["the file", "the folder"])
def test_a_flat_file_becomes_the_bases_folder(suffix: str, named: str, tmp_path: Path) -> None:
    bases = tmp_path / "library" / "KnowledgeBase"
    flat = store(bases / f"{BASE}{suffix}")
    write_catalog(tmp_path / "library" / "catalog.sqlite")
    old = flat.read_bytes()
    upgrade(flat if named == "the file" else tmp_path / "library")
    path = bases / BASE / ".cherry" / "index.sqlite"
    assert carried(path) == expected(ROWS)
    assert sorted(file.name for file in (bases / BASE / "raw").iterdir()) == ["Rota.md", "The ferry.md"]
    assert sorted(one.name for one in bases.iterdir()) == [BASE]
    assert findings(tmp_path / "library") == {"raw.missing"}
    assert run("undo", tmp_path / "library", "-y").status == 0
    assert flat.read_bytes() == old
    assert [one.name for one in bases.iterdir()] == [flat.name]


def test_seven_tables_with_rows_of_their_own_stay(tmp_path: Path) -> None:
    folder = profile(tmp_path / "profile")
    path = store(folder / PROFILE_INDEX, seven_tables=True)
    run_sql(path, "INSERT INTO embedding VALUES ('h', zeroblob(16), 0)")
    with untouched(folder / "Data"):
        done = upgrade(folder, status=1)
    assert left(done) == [("schema.preview", "its table embedding also has rows; cannot tell which are valid")]
    run_sql(path, "DELETE FROM embedding", "UPDATE meta SET schema_version = 9")
    assert left(upgrade(folder, status=1))[0][0] == "schema.version"


def test_rows_beside_units_of_v2_stay(target: Path) -> None:
    run_sql(
        index(target),
        f"CREATE TABLE {TABLE} (id, external_id, collection, document, metadata, embeddings F32_BLOB(4))",
        f"INSERT INTO {TABLE} VALUES ('r', 'i', 'c', 'text', 7, zeroblob(16))",
    )
    version_1(target)
    done = upgrade(target, status=1)
    assert actions(done) == ["upgrade-index"]
    assert left(done)[0][0] == "schema.preview"
    assert rows_left(index(target)) == [("text", bytes(16))]
    assert findings(target) == {"schema.preview"}


def test_a_catalog_that_cannot_be_read_leaves_them(tmp_path: Path) -> None:
    folder = profile(tmp_path / "profile")
    (folder / "cherrystudio.sqlite").write_bytes(b"no database")
    with untouched(folder / "Data"):
        done = upgrade(folder, status=1)
    assert "the catalog cannot be read" in left(done)[0][1]


def test_two_items_with_one_file_get_one_each(tmp_path: Path) -> None:
    data = {"source": "/home/alice/docs/plan.md", "relativePath": "plan.md"}
    folder = profile(
        tmp_path / "profile",
        [Row(A, "one"), Row(D, "two")],
        items=[item_row(A, "file", data), item_row(D, "file", data)],
    )
    assert actions(upgrade(folder)) == ["copy-file", "update-items", "upgrade-preview"]
    assert material_paths(folder / PROFILE_INDEX) == {A: "plan.md", D: "plan_1.md"}
    raw = folder / PROFILE_INDEX.parent.parent / "raw"
    assert (raw / "plan_1.md").read_text("utf-8") == (raw / "plan.md").read_text("utf-8")
    assert findings(folder) == set()


def test_what_is_indexed_of_a_file_may_be_another_one(tmp_path: Path) -> None:
    data = {"source": "/a.pdf", "relativePath": "a.pdf", "indexedRelativePath": "a.md"}
    folder = profile(tmp_path / "profile", [Row(A, "one")], items=[item_row(A, "file", data)])
    before = items_of(folder / "cherrystudio.sqlite")
    assert actions(upgrade(folder)) == ["upgrade-preview"]
    assert material_paths(folder / PROFILE_INDEX) == {A: "a.md"}
    assert items_of(folder / "cherrystudio.sqlite") == before


@pytest.mark.thorough
@sometimes
def test_a_kill_between_the_files_of_a_preview_base(tmp_path: Path, every: int) -> None:
    folder = profile(tmp_path / "profile")
    count = _steps(shutil.copytree(folder, tmp_path / "counted"))
    old = (folder / PROFILE_INDEX).read_bytes()
    for at in range(1, count + 1, every):
        one = shutil.copytree(folder, tmp_path / str(at))
        assert _killed(one, at) != 0
        path = one / PROFILE_INDEX
        assert path.read_bytes() == old or carried(path) == expected(ROWS)
        upgrade(one)
        assert carried(path) == expected(ROWS)
        assert findings(one) == set()
        assert sorted(file.name for file in (one / path.parent.parent / "raw").iterdir()) == [
            *("Rota.md", "The ferry.md", "plan.md"),
        ]
        shutil.rmtree(one)


# --- what the application itself wrote -------------------------------------------------------------------------------


def expected_indexes() -> list[dict[str, Any]]:
    """Return the indexes that the application made of the same v1 data in version 2."""
    bases = json.loads((GOLDEN / "basic" / "expected.json").read_text("utf-8"))["bases"]
    return [base["index"] for base in bases if base.get("index")]


def embeddings_of(path: Path) -> list[list[object]]:
    with closing(apsw.Connection(str(path))) as db:
        rows = db.execute("SELECT embedding_text_hash, vector_blob FROM embedding").fetchall()
    return sorted([str(key), len(blob), hashlib.sha256(blob).hexdigest()[:16]] for key, blob in rows)  # type: ignore[arg-type]


def units_of(path: Path) -> list[tuple[object, ...]]:
    with closing(apsw.Connection(str(path))) as db:
        return db.execute(
            "SELECT u.unit_index, u.char_start, u.char_end, t.fts_rowid, t.embedding_text_hash FROM search_unit u"
            " JOIN search_text t ON t.target_id = u.unit_id ORDER BY t.fts_rowid"
        ).fetchall()


@golden
@pytest.mark.parametrize("name", ["index.sqlite", "restored.sqlite"])
def test_an_index_of_the_applications_own_version_1(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes((GOLDEN / "index_v1" / name).read_bytes())
    before, old = contents(path), path.read_bytes()
    assert actions(upgrade(path)) == ["upgrade-index"]
    assert contents(path) == before
    assert findings(path) == set()
    for _, body, _ in carried(path):
        assert body in words(path, body[:20].replace('"', '""'))
    if name == "index.sqlite":
        [wanted] = [one for one in expected_indexes() if len(one["embeddings"]) == len(before["embedding"])]
        assert embeddings_of(path) == wanted["embeddings"]
        assert units_of(path) == [tuple(unit) for one in wanted["materials"] for unit in one["units"]]
    assert run("undo", path, "-y").status == 0
    assert path.read_bytes() == old


@golden
def test_a_store_of_the_preview_build_itself(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    path.write_bytes((GOLDEN / "preview" / "index.sqlite").read_bytes())
    with closing(apsw.Connection(str(path))) as db:
        stored = db.execute(f"SELECT external_id, document, embeddings FROM {TABLE} NOT INDEXED ORDER BY rowid")
        rows = [Row(item, body, vector=vector) for item, body, vector in stored]
    assert actions(upgrade(path)) == ["upgrade-preview"]
    assert carried(path) == expected(rows)
    assert findings(path) == set()
