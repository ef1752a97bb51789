"""`regraft search` in codex-mem's notes: as the application by words, by meaning where it can be, and never less."""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import codex_mem_store as store
import pytest
from codex_mem_store import note_id, project_id, run_sql
from fault_server import FaultServer, failing, numbers_of, vector_of, wrong_length
from faults import said, untouched
from harness import run
from lacking import configured

from regraft import embedders as server_module
from regraft.disk import untrusted_sqlite
from regraft.formats.codex_mem import database
from regraft.ranking.codex_mem import split_query

P0, P1 = project_id(0), project_id(1)
#: Words that every note has, those that a few have, one that none has.
ALL, FEW, NONE = "import queue", "Note 3", "zeppelin"
QUERIES = (ALL, FEW, NONE, '"queue" retry', "会话记忆", "project (project", "queue AND import", "*")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = store.write(tmp_path_factory.mktemp("template") / "memory", notes=9, excluded=2)
    store.embed(path)
    return path.parent


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "memory")
    return tmp_path / "memory" / database.FILE


def searched(path: Path, query: str, *options: object) -> dict[str, Any]:
    with untouched(path.parent):
        outcome = run("search", path, query, "--json", *options)
    assert outcome.status == 0, outcome
    return outcome.document


def ids(document: dict[str, Any]) -> list[str]:
    return [hit["unit_id"] for hit in document["hits"]]


def vector_file(path: Path, vector: bytes) -> Path:
    """Write a query's vector beside the folder of a database."""
    place = path.parent.parent / "vector.json"
    place.write_text(json.dumps(numbers_of(vector)), "utf-8")
    return place


def meaning(path: Path, note: str) -> Path:
    """Write the vector of a note as a query's."""
    return vector_file(path, vector_of(database.note_source_text(*store.parts_of(path, note))))


# --- words ---------------------------------------------------------------------------------------------------------


def application(path: Path, query: str, project: str, count: int) -> list[tuple[str, float]]:
    """Return what the application's own statement finds."""
    terms = " ".join('"' + term.replace('"', '""') + '"' for term in query.split())
    return [
        (str(note), -float(score))
        for note, score in store.rows(
            path,
            """SELECT m.id, bm25(memory_items_fts) FROM memory_items_fts
                 INNER JOIN memory_items m ON m.rowid = memory_items_fts.rowid
                WHERE m.project_id = ? AND m.importance >= 0 AND m.searchable = 1 AND memory_items_fts MATCH ?
                ORDER BY bm25(memory_items_fts), m.importance DESC, m.created_at DESC LIMIT ?""",
            project,
            terms,
            count,
        )
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 3, 5, 50])
@pytest.mark.parametrize(
    "query", [ALL, FEW, NONE, '"queue" retry', "会话记忆", "project (project", "queue AND import", "*"]
)
def test_words_find_what_the_application_finds(query: str, count: int, path: Path) -> None:
    found = searched(path, query, "--base", P0, "-k", count)
    assert [(hit["unit_id"], hit["score"]) for hit in found["hits"]] == application(path, query, P0, count)
    assert (found["base"], found["mode"], found["count"], found["notes"]) == (P0, "bm25", count, [])


@store.needs_samples
@pytest.mark.parametrize("name", ["codex-mem.db", "codex-mem-excluded.db"])
def test_words_find_in_real_databases_what_the_application_finds(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "real" / name
    copy.parent.mkdir()
    shutil.copyfile(store.SAMPLES / name, copy)
    [(project,), *_] = store.rows(copy, "SELECT id FROM projects ORDER BY rowid")
    for query in ("retry queue", "Note 3", "会话记忆", "superseded"):
        found = searched(copy, query, "--base", project, "-k", 7)
        assert [(hit["unit_id"], hit["score"]) for hit in found["hits"]] == application(copy, query, project, 7)
    assert ids(searched(copy, "retry queue", "--base", project))


def test_five_hits_of_all_projects_unless_told(path: Path) -> None:
    found = searched(path, ALL)
    assert len(found["hits"]) == 5
    assert (found["base"], found["score_kind"]) == (None, "ranking")
    assert {hit["material_id"] for hit in searched(path, ALL, "-k", 30)["hits"]} == {P0, P1}
    assert len(searched(path, ALL, "-k", 30)["hits"]) == 18


@pytest.mark.parametrize("word", [P1, "P 1", "p-1"])
def test_a_project_is_named_by_id_name_or_slug(word: str, path: Path) -> None:
    assert {hit["material_id"] for hit in searched(path, ALL, "--base", word, "-k", 30)["hits"]} == {P1}


def test_a_hit_is_a_note_with_its_project(path: Path) -> None:
    [hit] = searched(path, "Note 3", "--base", P0, "-k", 1)["hits"]
    title, content = store.text_of(0, 3)
    assert {name: value for name, value in hit.items() if name != "score"} == {
        "rank": 1,
        "unit_id": note_id(0, 3),
        "material_id": P0,
        "relative_path": None,
        "unit_index": 0,
        "text": f"{title}\n\n{content}",
        "title": title,
        "type": "constraint",
        "status": "superseded",
    }


def test_a_person_sees_what_was_found(path: Path) -> None:
    outcome = run("search", path, "Note 3", "-k", 1, "--base", P0)
    assert outcome.stdout.splitlines()[0] == f"{path} is a database of codex-mem."
    assert f"Project {P0}: 1 hit by words; search by meaning: ready." in outcome.stdout
    assert f"Note 3 of project 0  (constraint, superseded, {P0})" in outcome.stdout
    assert "All projects: 0 hits by words; search by meaning: ready." in run("search", path, NONE).stdout


@pytest.mark.parametrize("query", ["", "  ", "\u3000\t"])
def test_a_query_without_a_word_is_refused(query: str, path: Path) -> None:
    said(run("search", path, query, "--json"), "QueryWithoutWord", 2)


def test_words_are_what_go_takes_for_fields() -> None:
    assert split_query(" a\u0085b\u00a0c\u3000 d\x1ce\u200bf ") == ["a", "b", "c", "d\x1ce\u200bf"]


@pytest.mark.parametrize("option", [("--alpha", 0.3), ("--raw",), ("--mode", "vector")])
def test_options_that_say_nothing_about_notes_are_refused(option: tuple[object, ...], path: Path) -> None:
    assert "a database of codex-mem" in said(run("search", path, ALL, "--json", *option), "WrongUsage", 2)


def test_an_unknown_project_is_refused(path: Path) -> None:
    assert P0 in said(run("search", path, ALL, "--json", "--base", "x"), "ProjectUnknown", 2)


def test_a_database_that_cannot_be_searched_is_refused(path: Path) -> None:
    run_sql(path, "DROP TABLE memory_items_fts")
    run_sql(path, "CREATE TABLE memory_items_fts (title, content)")
    assert "cannot be read" in said(run("search", path, ALL, "--json"), "SourceUnreadable", 2)


# --- meaning -------------------------------------------------------------------------------------------------------


def test_meaning_finds_what_no_word_does(path: Path) -> None:
    found = searched(path, NONE, "--vector", meaning(path, note_id(1, 4)))
    assert (found["mode"], found["state"], found["notes"]) == ("hybrid", "ready", [])
    assert ids(found)[0] == note_id(1, 4)
    assert len(ids(found)) == 5
    assert found["hits"][0]["score"] == 0.5 / 61


def test_the_nearest_are_those_of_an_exact_search(path: Path) -> None:
    vector = vector_of("a query of its own")
    query = numbers_of(vector)
    distances = {}
    for note, raw in store.rows(database.sidecar_path(path), "SELECT note_id, vector FROM embedding"):
        numbers = numbers_of(raw)
        cosine = sum(a * b for a, b in zip(query, numbers, strict=True)) / math.hypot(*query) / math.hypot(*numbers)
        distances[note] = 1 - cosine
    found = searched(path, NONE, "--vector", vector_file(path, vector), "-k", 18)
    assert ids(found) == sorted(distances, key=distances.__getitem__)


def test_meaning_is_looked_for_in_the_project_alone(path: Path) -> None:
    found = searched(path, NONE, "--base", P0, "--vector", meaning(path, note_id(1, 4)), "-k", 50)
    assert {hit["material_id"] for hit in found["hits"]} == {P0}
    assert len(found["hits"]) == 9


def test_a_note_that_both_lanes_find_comes_first_and_once(path: Path) -> None:
    found = searched(path, ALL, "--vector", meaning(path, note_id(0, 1)), "-k", 18)
    assert ids(found)[0] == note_id(0, 1)
    assert len(set(ids(found))) == 18
    assert [hit["rank"] for hit in found["hits"]] == list(range(1, 19))
    scores = [hit["score"] for hit in found["hits"]]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.thorough
def test_what_words_alone_find_is_not_lost(path: Path) -> None:
    """Where words find fewer notes than are wanted, all of them stay, whatever meaning says."""
    vector = meaning(path, note_id(0, 0))
    few = set(ids(searched(path, FEW)))
    assert len(few) == 2
    for count in (3, 4, 10):
        found = ids(searched(path, FEW, "-k", count, "--vector", vector))
        assert few < set(found)
        assert len(found) == count
    for count in (1, 2, 5, 8):
        found = ids(searched(path, ALL, "-k", count, "--vector", vector))
        assert set(ids(searched(path, ALL, "-k", (count + 1) // 2))) <= set(found)
        assert len(found) == count


def test_an_exact_match_without_a_vector_is_not_pushed_out(path: Path) -> None:
    run_sql(path, "UPDATE memory_items SET title = 'queue queue queue' WHERE id = ?", note_id(0, 8))
    best = ids(searched(path, "queue", "-k", 1))
    assert best == [note_id(0, 8)]
    found = searched(path, "queue", "-k", 3, "--vector", meaning(path, note_id(1, 4)))
    assert best[0] in ids(found)
    assert "1 note could be found by words only (1 stale)" in found["notes"]


def test_words_alone_where_that_is_asked_for(path: Path) -> None:
    found = searched(path, ALL, "--mode", "bm25", "--vector", meaning(path, note_id(0, 0)))
    assert (found["mode"], found["notes"]) == ("bm25", [])
    assert found["hits"] == searched(path, ALL)["hits"]


def test_hybrid_without_a_vector_of_the_query_says_so(path: Path) -> None:
    found = searched(path, ALL, "--mode", "hybrid")
    assert found["mode"] == "bm25"
    assert found["notes"] == ["searched by words only: the query has no vector; use --vector or --embedder"]
    assert found["hits"] == searched(path, ALL)["hits"]


# --- what is in the way of meaning ---------------------------------------------------------------------------------


def sidecar_sql(statement: str) -> Callable[[Path], None]:
    return lambda path: run_sql(database.sidecar_path(path), statement)


def without_sidecar(path: Path) -> None:
    database.sidecar_path(path).unlink()


def without_anything(path: Path) -> None:
    without_sidecar(path)
    for name in database.COLUMNS:
        run_sql(path, f"ALTER TABLE memory_items DROP COLUMN {name}")


def overwritten(path: Path) -> None:
    database.sidecar_path(path).write_bytes(b"nothing of the kind")


def with_holes(path: Path) -> None:
    """Damage the pages of vectors: the file opens, and reading on goes wrong."""
    place = database.sidecar_path(path)
    raw = bytearray(place.read_bytes())
    [(page,)] = store.rows(place, "SELECT rootpage FROM sqlite_schema WHERE name = 'embedding'")
    [(size,)] = store.rows(place, "PRAGMA page_size")
    raw[(page - 1) * size : page * size] = b"\xff" * size
    place.write_bytes(raw)


OBSTACLES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "never migrated": (without_anything, "disabled", "no note has ever been embedded"),
    "no sidecar": (without_sidecar, "degraded_missing_index", "there is none"),
    "no database": (overwritten, "degraded_missing_index", "it cannot be read"),
    "a damaged sidecar": (with_holes, "degraded_missing_index", "it cannot be read"),
    "a rebuild": (sidecar_sql("UPDATE meta SET state = 'rebuilding'"), "rebuilding", "is not complete"),
    "another version": (sidecar_sql("UPDATE meta SET version = 9"), "degraded_incompatible_index", "version 9"),
    "another model": (
        sidecar_sql("UPDATE meta SET model_id = 'other'"),
        "degraded_incompatible_index",
        "its vectors are of other, those of the notes of embed-small",
    ),
    "other dimensions": (sidecar_sql("UPDATE meta SET dimensions = 4"), "degraded_incompatible_index", "4 dimensions"),
    "empty": (sidecar_sql("DELETE FROM embedding"), "degraded_partial_coverage", "no note has a current vector"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", OBSTACLES)
@pytest.mark.parametrize("query", [ALL, FEW, NONE])
def test_what_is_in_the_way_leaves_the_hits_by_words(name: str, query: str, path: Path) -> None:
    vector = meaning(path, note_id(0, 0))
    before = searched(path, query, "--base", P0)
    hinder, state, why = OBSTACLES[name]
    hinder(path)
    found = searched(path, query, "--base", P0, "--vector", vector)
    assert (found["mode"], found["state"]) == ("bm25", state)
    assert found["hits"] == before["hits"]
    [note] = found["notes"]
    assert note.startswith("searched by words only: ")
    assert why in note
    # Where meaning is not asked for, nothing is to be said.
    assert searched(path, query, "--base", P0)["notes"] == []


def test_a_vector_of_other_dimensions_or_of_zeros_is_in_the_way_too(path: Path) -> None:
    before = searched(path, ALL)["hits"]
    for vector, why in ((vector_of("x", 4), "has 4 dimensions"), (struct.pack("<8f", *[0.0] * 8), "all zeros")):
        found = searched(path, ALL, "--vector", vector_file(path, vector))
        assert (found["mode"], found["hits"]) == ("bm25", before)
        assert why in found["notes"][0]


def lacking_some(path: Path) -> None:
    store.edit(path, note_id(0, 0))
    store.mark_failed(path, note_id(0, 1))
    with closing(apsw.Connection(str(path))) as db:
        store.add_note(db, 0, 30)


def test_notes_that_are_not_ready_take_no_part_in_meaning(path: Path) -> None:
    lacking_some(path)
    missing = {note_id(0, 0), note_id(0, 1), note_id(0, 30)}
    found = searched(path, NONE, "--vector", meaning(path, note_id(0, 0)), "-k", 50)
    assert (found["mode"], found["state"]) == ("hybrid", "degraded_failed_embeddings")
    assert len(ids(found)) == 16
    assert missing.isdisjoint(ids(found))
    assert found["notes"] == ["3 notes could be found by words only (1 pending, 1 stale, 1 failed)"]
    # Those of another project are nothing to this one.
    assert searched(path, NONE, "--vector", meaning(path, note_id(0, 0)), "--base", P1)["notes"] == []


def test_an_excluded_note_is_never_found(path: Path) -> None:
    """Its vector and its entry in the full-text index are both still there."""
    vector = meaning(path, note_id(0, 2))
    run_sql(
        path,
        "UPDATE memory_items SET searchable = 0, exclusion_reason = 'private' WHERE id = ?",
        note_id(0, 2),
        triggers=False,
    )
    store.index_excluded(path)
    excluded = {note_id(0, 2), *(note_id(project, number) for project in (0, 1) for number in (9, 10))}
    for query in (ALL, NONE, "Note 2"):
        for options in ((), ("--vector", vector)):
            assert excluded.isdisjoint(ids(searched(path, query, "-k", 100, *options)))


def test_a_vector_that_is_none_takes_no_part(path: Path) -> None:
    store.put_vector(path, note_id(0, 3), vector_for=lambda _: bytes(32))
    found = searched(path, NONE, "--vector", meaning(path, note_id(0, 3)), "-k", 50)
    assert note_id(0, 3) not in ids(found)
    assert len(ids(found)) == 17


def test_the_log_of_a_writer_is_searched_too(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA wal_autocheckpoint = 0")
        store.add_note(db, 0, 40, title="zeppelin")
        assert untrusted_sqlite.find_companions(path)
        assert ids(searched(path, NONE)) == [note_id(0, 40)]


def test_nothing_is_left_beside_a_database_in_wal_mode(path: Path) -> None:
    assert path.read_bytes()[18:20] == b"\2\2"
    searched(path, ALL, "--vector", meaning(path, note_id(0, 0)))
    assert {one.name for one in path.parent.iterdir()} == {path.name, database.sidecar_path(path).name}


def test_an_index_that_counts_next_to_nothing_still_finds(tmp_path: Path) -> None:
    """So many updates of excluded notes leave no ranks at all."""
    path = store.write(tmp_path / "memory", projects=1, notes=3, excluded=1)
    for _ in range(2):
        store.skew(path, note_id(0, 3))
    assert len(ids(searched(path, ALL))) == 3
    assert run("search", path, ALL).status == 0


# --- an embedder ---------------------------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    pytest.importorskip("openai", reason="the client of embedding servers is not installed")
    monkeypatch.setattr(server_module, "FIRST_WAIT_S", 0.0)
    with FaultServer() as one:
        yield one


def test_an_embedder_makes_the_vector_of_the_query(path: Path, server: FaultServer, config: Path) -> None:
    found = searched(path, NONE, "--embedder", "mine", "--config", config)
    assert (found["mode"], server.texts) == ("hybrid", [NONE])
    given = searched(path, NONE, "--vector", vector_file(path, vector_of(NONE)))
    assert found["hits"] == given["hits"]


def test_an_embedder_that_serves_the_model_by_another_name(path: Path, server: FaultServer, tmp_path: Path) -> None:
    run_sql(path, "UPDATE memory_items SET embedding_model_id = 'acme::m' WHERE searchable = 1", triggers=False)
    store.set_sidecar(path, model_id="acme::m")
    config = configured(tmp_path / "regraft.yaml", server, model="x", model_ids=["acme::m"])
    assert searched(path, NONE, "--embedder", "mine", "--config", config)["mode"] == "hybrid"


def test_an_embedder_that_gives_no_vector_leaves_the_hits_by_words(
    path: Path, server: FaultServer, config: Path
) -> None:
    before = searched(path, ALL)["hits"]
    for behaviour, why in (
        (failing(500), "did not embed"),
        (failing(400, "too long"), "too long"),
        (wrong_length, "dim"),
    ):
        server.behave = behaviour
        found = searched(path, ALL, "--embedder", "mine", "--config", config)
        assert (found["mode"], found["hits"]) == ("bm25", before)
        assert why in found["notes"][0]


def test_an_embedder_of_another_model_or_without_its_key_is_not_asked(
    path: Path, server: FaultServer, tmp_path: Path
) -> None:
    before = searched(path, ALL)["hits"]
    for settings, why in (({"model": "embed-large"}, "embed-large"), ({"api_key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY")):
        config = configured(tmp_path / "regraft.yaml", server, **settings)
        found = searched(path, ALL, "--embedder", "mine", "--config", config)
        assert (found["mode"], found["hits"], server.requests) == ("bm25", before, [])
        assert why in found["notes"][0]


def test_nothing_is_sent_where_meaning_cannot_be_had(path: Path, server: FaultServer, config: Path) -> None:
    without_sidecar(path)
    assert searched(path, ALL, "--embedder", "mine", "--config", config)["mode"] == "bm25"
    assert server.requests == []


def test_an_embedder_that_is_not_configured_is_refused(path: Path, server: FaultServer, config: Path) -> None:
    options = ("--json", "--embedder", "x", "--config", config)
    assert "no embedder x" in said(run("search", path, ALL, *options), "EmbedderUnknown", 2)
    assert server.requests == []
