"""Every command that changes a catalog, on every generation of it: it works, keys hold, and undo leads back.

A column that a row must have and that nobody knows is refused by its name before anything is written; any other
unknown column is left to its default.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from extras import needs
from fault_server import FaultServer
from faults import REFUSED, files_of, said, untouched
from generations import (
    GENERATIONS,
    MODEL,
    PRESET,
    changed,
    dangling,
    dump,
    earlier,
    needing,
    profile,
    query,
    with_bases,
)
from harness import GOLDEN, NOW, Outcome, golden, run
from lacking import KB, OTHER, OTHER_TEXTS, library
from older import make_version_1
from planted_v2 import run_sql

from regraft import identity
from regraft.disk import sqlite
from regraft.formats.cherry_v2.catalog_generation import Generation, OrderKeys, read_tables

#: Profiles that the application itself made.
REAL = ("profile_208_empty", "profile_21x_empty")
NEW_MODEL = "own::embed-small"


def each_generation(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with each generation; ``make test`` takes the oldest, one between and the newest."""
    return pytest.mark.one_in(2)(pytest.mark.parametrize("generation", GENERATIONS)(test))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrate a small library once, and keep its source beside it."""
    return library(tmp_path_factory.mktemp("made"))


@pytest.fixture
def store(made: Path, generation: str, tmp_path: Path) -> Path:
    """Return a profile of a generation that has the library's bases."""
    return with_bases(tmp_path / "profile", generation, made)


def index_of(store: Path, base: str = KB) -> Path:
    return store / "Data" / "KnowledgeBase" / base / ".cherry" / "index.sqlite"


def done(outcome: Outcome, store: Path, before: list[str], *, status: int = 0, undone: bool = True) -> dict[str, Any]:
    """Assert that a command changed a profile and left it whole, and take that back."""
    assert outcome.status == status, outcome
    document: dict[str, Any] = outcome.document
    assert document["actions"]
    assert dangling(store) == []
    assert {
        one["name"] for one in run("check", store, "--json").document["findings"] if one["severity"] == "error"
    } == set()
    if undone:
        back(store, before)
    return document


def back(store: Path, before: list[str]) -> None:
    assert run("undo", store, "-y").status == 0
    assert dump(store) == before


# --- telling them apart ----------------------------------------------------------------------------------------------


def generation_of(path: Path) -> Generation:
    with sqlite.open_readonly(path) as db:
        return read_tables(path, db).generation


def test_a_generation_is_told_by_its_columns(tmp_path: Path, made: Path) -> None:
    found = [generation_of(next(profile(tmp_path / name, name).rglob("*.sqlite"))) for name in GENERATIONS]
    told = [Generation.BEFORE_RELEASE, Generation.FIRST, Generation.SECOND, Generation.THIRD, Generation.THIRD]
    assert found == told
    assert generation_of(made / "catalog.sqlite") is Generation.LIBRARY


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("profile_208_empty", Generation.FIRST),
        ("profile_21x_empty", Generation.THIRD),
        ("profile_upgraded", Generation.BEFORE_RELEASE),
    ],
)
@golden
def test_so_is_that_of_the_applications_own_profiles(name: str, expected: Generation, tmp_path: Path) -> None:
    folder = real(name, tmp_path)
    assert generation_of(next(folder.rglob("cherrystudio.sqlite"))) is expected


def real(name: str, tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN / name, tmp_path / name)


# --- install ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@each_generation
def test_install(generation: str, made: Path, tmp_path: Path) -> None:
    store = profile(tmp_path / "profile", generation, "ALTER TABLE user_model ADD COLUMN color TEXT DEFAULT 'blue'")
    before = dump(store)
    with untouched(made):
        outcome = run("install", made, "--profile", store, "--now", NOW, "--json")
    done(outcome, store, before, undone=False)
    columns = "id, preset_model_id, name, capabilities, supports_streaming, order_key, is_enabled, color"
    assert query(store, f"SELECT {columns} FROM user_model WHERE id = '{MODEL}'") == [
        (MODEL, None, "Embed small", '["embedding"]', 1, "a0", 1, "blue")
    ]
    if generation == "before release":
        assert query(store, "SELECT DISTINCT search_mode, hybrid_alpha FROM knowledge_base") == [("hybrid", None)]
    assert query(store, "SELECT api_keys FROM user_provider ORDER BY 1") == [('["a secret key"]',), ("[]",)]
    assert run("search", store, "lamp", "--mode", "bm25", "--base", KB, "--json").document["hits"]
    back(store, before)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("is_there", [True, False])
@golden
def test_install_into_the_applications_own_profiles(name: str, is_there: bool, made: Path, tmp_path: Path) -> None:
    store = real(name, tmp_path)
    model = "openai::text-embedding-3-small" if is_there else "my-relay::embed-new"
    listed = shutil.copytree(made, tmp_path / "library")
    provider, _, name = model.partition("::")
    run_sql(
        listed / "catalog.sqlite",
        "PRAGMA foreign_keys = OFF",
        f"UPDATE user_provider SET provider_id = '{provider}'",
        f"UPDATE user_model SET id = '{model}', provider_id = '{provider}', model_id = '{name}'",
        f"UPDATE knowledge_base SET embedding_model_id = '{model}'",
    )
    models = "SELECT * FROM user_model ORDER BY rowid"
    before, known = dump(store), query(store, models)
    outcome = run("install", listed, "--profile", store, "--now", NOW, "--json")
    assert ("insert-model" in {one["action"] for one in outcome.document["actions"]}) is not is_there
    assert query(store, models)[: len(known)] == known
    done(outcome, store, before, undone=False)
    if not is_there:
        new = "SELECT name, capabilities, supports_streaming, order_key FROM user_model WHERE model_id = 'embed-new'"
        assert query(store, new) == [("Embed small", '["embedding"]', 1, "a1")]
    back(store, before)


def test_a_base_whose_provider_is_not_there_stays_out(made: Path, tmp_path: Path) -> None:
    store = profile(tmp_path / "profile", "2.1", "DELETE FROM user_provider WHERE provider_id = 'acme'")
    before = files_of(store)
    outcome = run("install", made, "--profile", store, "--json")
    assert (outcome.status, outcome.document["actions"], files_of(store)) == (1, [], before)
    assert {one["base"] for one in outcome.document["left"]} == {KB, OTHER}
    assert all("--map-model acme::embed-small=PROVIDER::MODEL" in one["reason"] for one in outcome.document["left"])


def test_a_library_of_an_earlier_regraft_is_installed_as_it_is(made: Path, tmp_path: Path) -> None:
    old = earlier(shutil.copytree(made, tmp_path / "library"))
    store = profile(tmp_path / "profile", "2.0.0")
    before = dump(store)
    with untouched(old):
        outcome = run("install", old, "--profile", store, "--now", NOW, "--json")
    done(outcome, store, before, undone=False)
    assert query(store, f"SELECT capabilities, supports_streaming FROM user_model WHERE id = '{MODEL}'") == [
        ('["embedding"]', 1)
    ]
    back(store, before)


# --- rescue ----------------------------------------------------------------------------------------------------------


def stranded(store: Path, made: Path) -> None:
    """Let the upgrade of one base have failed, and the note of the other one."""
    source = made.parent / "v1"
    shutil.copy(source / "redux.json", store)
    shutil.copytree(source / "dexie", store / "dexie")
    for name in ("kb", "other"):
        shutil.copy(source / "KnowledgeBase" / name, store / "Data" / "KnowledgeBase" / name)
    shutil.rmtree(store / "Data" / "KnowledgeBase" / KB)
    changed(
        store,
        "UPDATE knowledge_base SET status = 'failed', error = 'missing_vector_store', dimensions = NULL"
        f" WHERE id = '{KB}'",
    )


@each_generation
def test_rescue(store: Path, made: Path, generation: str) -> None:
    stranded(store, made)
    before = dump(store)
    document = done(run("rescue", store, "--now", NOW, "--json"), store, before, undone=False)
    assert {one["action"] for one in document["actions"]} >= {"write-index", "complete-base"}
    query_base = f"SELECT status, dimensions, embedding_model_id FROM knowledge_base WHERE id = '{KB}'"
    assert query(store, query_base) == [("completed", 8, MODEL)]
    links = 1 if generation == "before release" else 2
    assert len(_links(store, generation)) == links
    back(store, before)


@pytest.mark.thorough
@each_generation
def test_rescue_with_a_model_made_again(store: Path, made: Path, generation: str) -> None:
    stranded(store, made)
    changed(
        store,
        "PRAGMA foreign_keys = OFF",
        f"UPDATE knowledge_base SET embedding_model_id = '{PRESET}' WHERE id = '{OTHER}'",
        f"UPDATE knowledge_base SET embedding_model_id = NULL, error = 'missing_embedding_model' WHERE id = '{KB}'",
        f"DELETE FROM user_model WHERE id = '{MODEL}'",
    )
    before = dump(store)
    outcome = run("rescue", store, "--recreate-model", MODEL, "--base", KB, "--now", NOW, "--json")
    done(outcome, store, before, undone=False)
    columns = "name, capabilities, supports_streaming, order_key"
    assert query(store, f"SELECT {columns} FROM user_model WHERE id = '{MODEL}'") == [
        ("Embed small", '["embedding"]', 1, "a0")
    ]
    back(store, before)


def _links(store: Path, generation: str) -> list[Any]:
    who = ("assistant",) if generation == "before release" else ("assistant", "agent")
    return [
        row
        for one in who
        for row in query(store, f"SELECT * FROM {one}_knowledge_base WHERE knowledge_base_id = '{KB}'")
    ]


# --- restore and backfill --------------------------------------------------------------------------------------------


def embedding(store: Path, config: Path, command: str, *options: object) -> Outcome:
    words = (command, store, "--embedder", "mine", "--config", config, *options, "--json")
    return run(*words)


@pytest.mark.thorough
@each_generation
def test_restore(store: Path, server: FaultServer, config: Path) -> None:
    before, files = dump(store), files_of(store / "Data" / "KnowledgeBase")
    outcome = embedding(store, config, "restore", "--base", KB, "--model", NEW_MODEL)
    document = done(outcome, store, before, undone=False)
    assert {one["action"] for one in document["actions"]} >= {"write-base", "insert-model", "insert-base"}
    columns = "name, capabilities, supports_streaming, order_key"
    assert query(store, f"SELECT {columns} FROM user_model WHERE id = '{NEW_MODEL}'") == [
        ("embed-small", '["embedding"]', 1, "a0")
    ]
    back(store, before)
    assert files_of(store / "Data" / "KnowledgeBase") == files


@pytest.mark.thorough
@each_generation
def test_backfill_gives_a_base_a_model(store: Path, generation: str, server: FaultServer, config: Path) -> None:
    mode = ", search_mode = 'bm25'" if generation == "before release" else ""
    changed(store, f"UPDATE knowledge_base SET embedding_model_id = NULL, dimensions = NULL{mode} WHERE id = '{KB}'")
    run_sql(index_of(store), "DELETE FROM embedding")
    before = dump(store)
    asked = ("--base", KB, "--model", NEW_MODEL, "--dimensions", 8)
    done(embedding(store, config, "backfill", *asked), store, before, undone=False)
    row = f"SELECT embedding_model_id, dimensions{mode and ', search_mode'} FROM knowledge_base WHERE id = '{KB}'"
    assert query(store, row) == [(NEW_MODEL, 8, *(["hybrid"] if mode else []))]
    while run("undo", store, "-y").status == 0:
        pass
    assert dump(store) == before


@pytest.mark.thorough
@each_generation
def test_backfill_gives_a_note_that_was_never_indexed_its_path(store: Path, server: FaultServer, config: Path) -> None:
    note = json.dumps({"source": "a rota", "content": "who comes on Monday"})
    changed(
        store,
        "INSERT INTO knowledge_item (id, base_id, type, data, status, created_at, updated_at) VALUES"
        f" ('0190b7a0-0000-7000-8000-000000000001', '{OTHER}', 'note', '{note}', 'completed', 1, 1)",
    )
    before = dump(store)
    done(embedding(store, config, "backfill", "--base", OTHER), store, before, undone=False)
    path = "SELECT data ->> '$.relativePath' FROM knowledge_item WHERE type = 'note' AND base_id = "
    assert query(store, f"{path}'{OTHER}'") == [("a rota.md",)]
    while run("undo", store, "-y").status == 0:
        pass
    assert dump(store) == before


# --- commands that change rows which are there ------------------------------------------------------------------------


@pytest.mark.thorough
@each_generation
def test_repair(store: Path, generation: str) -> None:
    changed(
        store,
        f"UPDATE knowledge_base SET dimensions = 5 WHERE id = '{KB}'",
        f"UPDATE knowledge_item SET status = 'embedding' WHERE base_id = '{OTHER}'",
    )
    before = dump(store)
    assert done(run("repair", store, "--json"), store, before)["left"] == []


@pytest.mark.one_in(3)
@each_generation
@pytest.mark.parametrize("model", [MODEL, NEW_MODEL, None])
def test_adopting_a_folder(store: Path, generation: str, model: str | None) -> None:
    columns = "dimensions, embedding_model_id, status, error"
    was = query(store, f"SELECT {columns} FROM knowledge_base WHERE id = '{KB}'")
    items = "SELECT id, type, data ->> '$.relativePath', status FROM knowledge_item ORDER BY id"
    there = query(store, items)
    changed(
        store, f"DELETE FROM knowledge_base WHERE id = '{KB}'", f"DELETE FROM knowledge_item WHERE base_id = '{KB}'"
    )
    before = dump(store)
    words = () if model is None else ("--model", model)
    outcome = run("repair", store, "--only", "index.orphan", "--adopt", *words, "--json")
    document = done(outcome, store, before, status=0 if model else 1, undone=False)
    assert {one["action"] for one in document["actions"]} == {
        "insert-base",
        *(["insert-model"] if model == NEW_MODEL else []),
    }
    listed = (8, None, "failed", "missing_embedding_model") if model is None else (8, model, "completed", None)
    assert query(store, f"SELECT {columns} FROM knowledge_base WHERE id = '{KB}'") == [listed]
    assert model != MODEL or was == [listed]
    if generation == "before release":
        modes = query(store, f"SELECT search_mode FROM knowledge_base WHERE id = '{KB}'")
        assert modes == [("bm25" if model is None else "hybrid",)]
    # A folder's own id is not known: all else is as it was.
    assert {row for row in query(store, items) if row[1] != "directory"} >= {
        row for row in there if row[2] is not None and row[1] != "directory"
    }
    back(store, before)


@each_generation
def test_repair_leaves_a_base_without_a_mode_alone(store: Path) -> None:
    """What only builds before the release had is missed by nobody."""
    with untouched(store):
        findings = run("check", store, "--json", "--deep").document["findings"]
    assert findings == []


@pytest.mark.parametrize("generation", GENERATIONS[1:])
def test_a_model_of_the_users_own_that_inherits_nothing_is_found(store: Path) -> None:
    """That of a preset may be without a name; one without a preset keeps the application from reading any."""
    changed(store, f"UPDATE user_model SET name = NULL, capabilities = NULL WHERE id = '{MODEL}'")
    outcome = run("check", store, "--json")
    (finding,) = outcome.document["findings"]
    assert (outcome.status, finding["name"], finding["severity"], finding["base"]) == (
        1,
        "model.incomplete",
        "error",
        None,
    )
    assert finding["message"] == "1 model that bases use, without name, capabilities"
    assert finding["samples"] == [MODEL]


@pytest.mark.parametrize("name", ["profile_208_stranded", "profile_stranded"])
@golden
def test_rescue_of_the_applications_own_profiles(name: str, tmp_path: Path) -> None:
    store = real(name, tmp_path)
    before = dump(store)
    document = done(run("rescue", store, "--now", NOW, "--json"), store, before, status=1)
    assert [one["action"] for one in document["actions"]].count("complete-base") == 3


@pytest.mark.thorough
@each_generation
def test_reconcile(store: Path) -> None:
    changed(store, f"DELETE FROM knowledge_item WHERE base_id = '{KB}' AND type = 'note'")
    before = dump(store)
    document = done(run("repair", store, "--only", "material.orphan", "--adopt", "--json"), store, before)
    assert [one["action"] for one in document["actions"]] == ["insert-items"]
    before = dump(store)
    document = done(run("reconcile", store, "--only", "material.orphan", "--json"), store, before)
    assert "delete-materials" in {one["action"] for one in document["actions"]}


@each_generation
def test_gc(store: Path) -> None:
    run_sql(
        index_of(store), f"INSERT INTO content VALUES ('{identity.text_hash('nobody needs it')}', 'nobody needs it', 1)"
    )
    before = dump(store)
    done(run("gc", store, "--json"), store, before)


@each_generation
def test_upgrade(store: Path) -> None:
    make_version_1(index_of(store))
    before = dump(store)
    document = done(run("upgrade", store, "--json"), store, before)
    assert [one["action"] for one in document["actions"]] == ["upgrade-index"]


@needs("parquet")
@each_generation
def test_export_and_import(store: Path, tmp_path: Path) -> None:
    """Models of the application's own list, without name and capabilities, come into a library complete."""
    changed(store, f"UPDATE knowledge_base SET embedding_model_id = '{PRESET}'")
    file, back_again = tmp_path / "units.parquet", tmp_path / "back"
    assert run("export", store, file).status == 0
    assert run("import", file, "--to", back_again, "--now", NOW).status == 0
    with sqlite.open_readonly(back_again / "catalog.sqlite") as db:
        row = db.execute("SELECT id, capabilities, supports_streaming FROM user_model").fetchall()
        columns = {row[1] for row in db.execute("PRAGMA table_info(knowledge_base)")}
    assert row == [(PRESET, '["embedding"]', 1)]
    assert "search_mode" not in columns
    assert run("check", back_again, "--fail-on", "error").status == 0


# --- columns that nobody knows ---------------------------------------------------------------------------------------

Asked = Callable[[Path, Path, Path], Outcome]


def _install(store: Path, made: Path, _: Path) -> Outcome:
    return run("install", made, "--profile", store, "--json")


def _rescue(store: Path, made: Path, _: Path) -> Outcome:
    return run("rescue", store, "--recreate-model", MODEL, "--base", KB, "--json")


def _restore(store: Path, _: Path, config: Path) -> Outcome:
    return embedding(store, config, "restore", "--base", OTHER, "--model", NEW_MODEL)


def _backfill(store: Path, _: Path, config: Path) -> Outcome:
    return embedding(store, config, "backfill", "--base", OTHER, "--model", NEW_MODEL, "--dimensions", 8)


@pytest.mark.thorough
@each_generation
@pytest.mark.parametrize(
    ("asked", "table"),
    [
        (_install, "user_model"),
        (_install, "knowledge_base"),
        (_install, "knowledge_item"),
        (_rescue, "user_model"),
        (_restore, "user_model"),
        (_restore, "knowledge_base"),
        (_restore, "knowledge_item"),
        (_backfill, "user_model"),
    ],
)
def test_a_column_that_a_row_must_have_is_refused_by_name(
    asked: Asked, table: str, generation: str, made: Path, tmp_path: Path, server: FaultServer, config: Path
) -> None:
    if asked is _install:
        store = profile(tmp_path / "profile", generation)
    else:
        store = with_bases(tmp_path / "profile", generation, made)
        mode = ", search_mode = 'bm25'" if generation == "before release" else ""
        if asked is _backfill:
            change = f"embedding_model_id = NULL, dimensions = NULL{mode}"
            changed(store, f"UPDATE knowledge_base SET {change} WHERE id = '{OTHER}'")
            run_sql(index_of(store, OTHER), "DELETE FROM embedding")
        elif asked is _rescue:
            stranded(store, made)
            changed(
                store,
                "PRAGMA foreign_keys = OFF",
                "UPDATE knowledge_base SET embedding_model_id = NULL, error = 'missing_embedding_model'"
                f" WHERE id = '{KB}'",
                f"DELETE FROM user_model WHERE id = '{MODEL}'",
            )
    needing(store, table, "flavour")
    before, rows = files_of(store), dump(store)
    outcome = asked(store, made, config)
    refusal = rf"a table {table} like that of .+, but which also requires flavour,"
    assert re.search(refusal, said(outcome, "ProfileUnknown", REFUSED))
    assert (files_of(store), dump(store)) == (before, rows)
    # Nothing of the base's was sent, let alone paid for.
    assert {text for one in server.requests for text in one.texts}.isdisjoint(OTHER_TEXTS["page"])


@each_generation
def test_rows_that_are_there_may_have_any_column(store: Path) -> None:
    """What only changes rows is no reason to refuse a column that every row has a value for already."""
    needing(store, "knowledge_base", "flavour")
    changed(store, f"UPDATE knowledge_base SET dimensions = 5 WHERE id = '{KB}'")
    before = dump(store)
    done(run("repair", store, "--json"), store, before)


def test_a_table_that_is_not_there_is_refused_by_name(made: Path, tmp_path: Path) -> None:
    store = profile(tmp_path / "profile", "2.0.0")
    changed(
        store, "DROP TABLE assistant_knowledge_base", "DROP TABLE agent_knowledge_base", "DROP TABLE knowledge_item"
    )
    before = files_of(store)
    assert "no table knowledge_item" in said(_install(store, made, made), "ProfileUnknown", REFUSED)
    assert files_of(store) == before


def test_a_rule_of_its_own_for_models_is_refused_before_a_folder_comes(made: Path, tmp_path: Path) -> None:
    store = profile(tmp_path / "profile", "2.0.0")
    changed(
        store, "CREATE UNIQUE INDEX one_of_a_kind ON user_model (is_enabled, capabilities) WHERE NOT supports_streaming"
    )
    assert run("install", made, "--profile", store, "--dry-run").status == 0
    changed(store, "CREATE UNIQUE INDEX by_name ON user_model (length(name) / length(name))")
    changed(
        store,
        "ALTER TABLE user_model ADD COLUMN seal TEXT DEFAULT 'open' CHECK (seal <> 'open' OR preset_model_id NOT NULL)",
    )
    before = files_of(store)
    assert "additional constraints" in said(_install(store, made, made), "ProfileUnknown", REFUSED)
    assert files_of(store) == before


# --- order keys of what is there -------------------------------------------------------------------------------------


def test_keys_go_on_behind_the_last_of_their_provider(tmp_path: Path) -> None:
    more = (
        "INSERT INTO user_model (id, provider_id, model_id, preset_model_id, order_key, created_at, updated_at) VALUES"
        " ('own::a', 'own', 'a', 'a', 'a0V', 1, 1), ('own::b', 'own', 'b', 'b', x'7a7a', 1, 1)"
    )
    store = profile(tmp_path / "profile", "2.1", more)
    with sqlite.open_readonly(store / "Data" / "cherrystudio.sqlite") as db:
        keys = OrderKeys(db)
    assert [keys.next_model("own") for _ in range(2)] == ["a1", "a2"]
    assert [keys.next_model("acme") for _ in range(2)] == ["a0", "a1"]
    assert [keys.next_model("nobody") for _ in range(2)] == ["a0", "a1"]
    assert keys.next_provider() == "a2"
