"""``repair --only embedding.unexpected --model ID``: vectors whose base has no model get it again, and none is lost."""

from __future__ import annotations

import shutil
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from faults import untouched
from harness import command_words, run
from planted_v2 import KB, OTHER, index, library

import regraft
from regraft.errors import WrongUsage

NAME = "embedding.unexpected"
ATTACH = ("--only", NAME, "--model")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("made"))


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "库"
    shutil.copytree(made, place)
    yield place


def sql(path: Path, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(statement, values).fetchall()


def rows(store: Path) -> tuple[list[Any], ...]:
    """Return all that a run may change, and all vectors."""
    catalog = store / "catalog.sqlite"
    tables = [sql(catalog, f"SELECT * FROM {name} ORDER BY 1") for name in ("knowledge_base", "knowledge_item")]
    return (*tables, sql(catalog, "SELECT * FROM user_model ORDER BY 1"), sql(index(store), "SELECT * FROM embedding"))


def model_of(store: Path, base: str = KB) -> tuple[Any, ...]:
    query = "SELECT embedding_model_id, dimensions FROM knowledge_base WHERE id = ?"
    return sql(store / "catalog.sqlite", query, base)[0]


def take_off(store: Path, *bases: str) -> str:
    """Take the model off bases, as a release to words only leaves them; return the model."""
    model = model_of(store)[0]
    for base in bases or (KB,):
        sql(
            store / "catalog.sqlite",
            "UPDATE knowledge_base SET embedding_model_id = NULL, dimensions = NULL WHERE id = ?",
            base,
        )
    return str(model)


def length_of_vectors(store: Path) -> int:
    (length,) = {length for (length,) in sql(index(store), "SELECT length(vector_blob) FROM embedding")}
    return int(length)


@pytest.mark.thorough
def test_the_model_comes_back_and_the_vectors_stay(store: Path) -> None:
    before = rows(store)
    model = take_off(store)
    without = rows(store)
    with untouched(store):
        planned = run("repair", store, *ATTACH, model, "--dry-run", "--json")
    done = run("repair", store, *ATTACH, model, "--json")
    assert planned.document["actions"] == done.document["actions"]
    assert [(one["base"], one["finding"]) for one in done.document["actions"]] == [(KB, NAME)]
    assert (done.status, done.document["left"]) == (0, [])
    assert model_of(store) == (model, length_of_vectors(store) // 4)
    assert rows(store)[3] == before[3]
    assert run("check", store, "--deep").status == 0
    assert run("undo", store, "-q").status == 0
    assert rows(store) == without


@pytest.mark.thorough
def test_check_offers_it_before_the_deletion(store: Path) -> None:
    model = take_off(store)
    finding = next(one for one in run("check", store, "--json").document["findings"] if one["name"] == NAME)
    message = finding["message"]
    assert message.index("repair --only embedding.unexpected --model ID") < message.index("gc --only")
    with untouched(index(store)):
        kept = run("repair", store, "--json")
        fixed = run("fix", store, "--json")
        ignored = run("repair", store, "--model", model, "--json")
    for done in (kept, fixed, ignored):
        assert NAME in {one["finding"] for one in done.document["left"]}
    (left,) = (one for one in ignored.document["left"] if one["finding"] == NAME)
    line = command_words(left["repair"])
    assert line[:3] == ["regraft", "repair", str(store)]
    assert line[3:] == [*ATTACH, model, "--base", KB]
    assert run(*line[1:]).status == 0
    assert model_of(store)[0] == model


@pytest.mark.thorough
def test_the_line_is_exact_where_one_model_may_be_it(store: Path) -> None:
    model = take_off(store, KB, OTHER)
    sql(store / "catalog.sqlite", "DELETE FROM user_model WHERE id <> ?", model)
    findings = [one for one in run("check", store, "--json").document["findings"] if one["name"] == NAME]
    assert findings
    for finding in findings:
        assert run(*command_words(finding["repair"])[1:]).status == 0
    assert NAME not in {one["name"] for one in run("check", store, "--json").document["findings"]}


def test_what_is_no_id_of_a_model_is_refused(store: Path) -> None:
    take_off(store)
    with untouched(store):
        refused = run("repair", store, *ATTACH, "words", "--json")
    assert refused.status == 2
    assert "words" in refused.document["error"]["message"]


def test_a_model_that_embeds_nothing_is_refused(store: Path) -> None:
    take_off(store)
    model, reason = "acme::rerank", "is not an embedding model"
    columns = [row[1] for row in sql(store / "catalog.sqlite", "PRAGMA table_info(user_model)")]
    values = {"id": f"'{model}'", "model_id": "'rerank'", "capabilities": "'[\"rerank\"]'"}
    chosen = ", ".join(values.get(name, f'"{name}"') for name in columns)
    sql(store / "catalog.sqlite", f"INSERT INTO user_model SELECT {chosen} FROM user_model LIMIT 1")
    before = rows(store)
    done = run("repair", store, *ATTACH, model, "--json")
    assert done.document["actions"] == []
    assert reason in next(one["reason"] for one in done.document["left"])
    assert (done.status, rows(store)) == (1, before)


def test_a_model_whose_other_vectors_are_longer_is_refused(store: Path) -> None:
    model = take_off(store)
    sql(
        store / "catalog.sqlite",
        "UPDATE knowledge_base SET embedding_model_id = ?, dimensions = 1536 WHERE id = ?",
        model,
        OTHER,
    )
    before = rows(store)
    done = run("repair", store, *ATTACH, model, "--base", KB, "--json")
    assert done.document["actions"] == []
    assert "1536" in done.document["left"][0]["reason"]
    assert rows(store) == before


def test_odd_vectors_among_them_are_found_afterwards(store: Path) -> None:
    model = take_off(store)
    (first, second), *_ = [sql(index(store), "SELECT rowid FROM embedding LIMIT 2")]
    dimensions = length_of_vectors(store) // 4
    blobs = (struct.pack(f"<{dimensions}f", *[float("nan")] * dimensions), bytes(4 * (dimensions + 3)))
    for (row,), blob in zip((first, second), blobs, strict=True):
        sql(index(store), "UPDATE embedding SET vector_blob = ? WHERE rowid = ?", blob, row)
    before = rows(store)[3]
    assert run("repair", store, *ATTACH, model, "-q").status == 0
    assert model_of(store) == (model, dimensions)
    assert rows(store)[3] == before
    names = {one["name"] for one in run("check", store, "--json").document["findings"]}
    assert names == {"embedding.non-finite", "embedding.length"}


def test_vectors_of_two_lengths_are_left(store: Path) -> None:
    model = take_off(store)
    every = [row for (row,) in sql(index(store), "SELECT rowid FROM embedding")]
    for row in every[: (len(every) + 1) // 2]:
        sql(index(store), "UPDATE embedding SET vector_blob = zeroblob(400) WHERE rowid = ?", row)
    if len(every) % 2:
        sql(index(store), "DELETE FROM embedding WHERE rowid = ?", every[-1])
        sql(index(store), "UPDATE embedding SET vector_blob = zeroblob(16) WHERE rowid = ?", every[0])
    before = rows(store)
    done = run("repair", store, *ATTACH, model, "--base", KB, "--json")
    lengths = sql(index(store), "SELECT count(*) FROM embedding GROUP BY length(vector_blob)")
    assert len(set(lengths)) == 1
    assert done.document["actions"] == []
    assert rows(store) == before


def test_without_the_model_or_beside_others_it_is_refused(store: Path) -> None:
    model = take_off(store)
    with untouched(store):
        refused = run("repair", store, "--only", NAME, "--json")
        beside = run("repair", store, "--only", NAME, "--only", "body.id", "--model", model, "--json")
        with pytest.raises(WrongUsage):
            regraft.api.repair(store, only=[NAME])
    assert (refused.status, refused.document["error"]["code"]) == (2, "WrongUsage")
    assert "--model ID" in refused.document["error"]["message"]
    assert (beside.status, beside.document["error"]["code"]) == (2, "WrongUsage")


def test_the_function_takes_it_too(store: Path) -> None:
    model = take_off(store)
    report = regraft.api.repair(store, only=[NAME], model=model)
    assert [one.finding for one in report.actions] == [NAME]
    assert model_of(store)[0] == model


def test_an_index_alone_has_no_catalog_to_tell(store: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.sqlite"
    shutil.copyfile(index(store), alone)
    with untouched(alone):
        refused = run("repair", alone, *ATTACH, "acme::m", "--json")
    assert (refused.status, refused.document["error"]["code"]) == (2, "NotChanged")
