"""Vectors are judged by the dimensions of the catalog, and by their norms in single precision.

Truth comes from ``struct`` and plain ``sqlite3``.
"""

from __future__ import annotations

import json
import math
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
from planted_v2 import KB, index, library

#: Dimensions of the vectors of :func:`library`.
HAS = 4
FLT_MAX = 3.4028234663852886e38


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Migrated here, because the findings name the source.
    return library.__wrapped__(tmp_path_factory.mktemp("made"))


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "Bücher 书"
    shutil.copytree(made, place)
    yield place


def sql(path: Path, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        return db.execute(statement, values).fetchall()


def vectors(store: Path) -> dict[str, bytes]:
    return dict(sql(index(store), "SELECT embedding_text_hash, vector_blob FROM embedding ORDER BY rowid"))


def put(store: Path, *blobs: bytes) -> list[str]:
    """Replace the first vectors of the base; return their keys."""
    keys = list(vectors(store))[: len(blobs)]
    for key, blob in zip(keys, blobs, strict=True):
        sql(index(store), "UPDATE embedding SET vector_blob = ? WHERE embedding_text_hash = ?", blob, key)
    return keys


def state_dimensions(store: Path, dimensions: int) -> None:
    sql(store / "catalog.sqlite", "UPDATE knowledge_base SET dimensions = ? WHERE id = ?", dimensions, KB)


def from_its_source(store: Path, made: Path) -> list[str]:
    """Return the command that takes vectors from what a copy of the library was migrated from."""
    return ["regraft", "repair", str(store), "--from", str(made.parent / "v1"), "--base", KB]


def found(store: Path, *options: str) -> dict[str, dict[str, Any]]:
    findings = run("check", store, "--json", *options).document["findings"]
    return {one["name"]: one for one in findings if one["base"] == KB}


def floats(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def look(store: Path) -> dict[str, Any]:
    bases = run("inspect", store, "--json").document["bases"]
    return next(one["store"] for one in bases if one["id"] == KB)


def searchable(store: Path, dimensions: int) -> float:
    """Return the share of texts whose vector has the dimensions, by plain SQLite."""
    rows = sql(
        index(store),
        "SELECT length(e.vector_blob) FROM search_text t LEFT JOIN embedding e USING (embedding_text_hash)",
    )
    return sum(length == 4 * dimensions for (length,) in rows) / len(rows)


@pytest.mark.thorough
@pytest.mark.parametrize("other", [2, 5, 16, 1024])
def test_the_minority_that_the_catalog_names_is_right(store: Path, made: Path, other: int) -> None:
    every = vectors(store)
    wrong = len(every) * 2 // 3
    before = put(store, *(floats(*([0.5] * other)) for _ in range(wrong)))
    with untouched(store):
        findings = found(store)
        assert findings["embedding.length"]["count"] == wrong
        assert findings["embedding.length"]["samples"][0] in before
        assert "base.dimensions" in findings
        # Which of them are right, another copy shows; without one a person has to say.
        recommended = command_words(findings["embedding.length"]["repair"])
        assert (recommended, findings["base.dimensions"]["repair"]) == (from_its_source(store, made), None)
        assert "if that copy no longer exists" not in findings["embedding.length"]["message"]
        assert "--only embedding.length" in findings["base.dimensions"]["message"]
        seen = look(store)
        assert seen["dimensions"] == HAS
        assert seen["coverage"] == pytest.approx(searchable(store, HAS))
        assert seen["coverage"] < 0.5
    with untouched(index(store)):
        kept = run("repair", store, "--json").document
        fixed = run("fix", store, "--json").document
    assert not [one for one in (*kept["actions"], *fixed["actions"]) if one["action"] == "delete-embeddings"]
    assert "embedding.length" in {one["finding"] for one in kept["left"]}
    whole = vectors(store)
    done = run("repair", store, "--only", "embedding.length", "--json").document
    assert [one["count"] for one in done["actions"]] == [wrong]
    assert {key: blob for key, blob in whole.items() if len(blob) == 4 * HAS} == vectors(store)
    assert run("undo", store, "-q").status == 0
    assert vectors(store) == whole
    assert run(*recommended[1:], "-q").status == 0
    assert vectors(store) == every
    assert not found(store)


def test_a_minority_that_differs_from_the_catalog_is_dropped_as_before(store: Path) -> None:
    keys = put(store, floats(*[0.5] * 16))
    findings = found(store)
    assert findings["embedding.length"]["count"] == 1
    assert "base.dimensions" not in findings
    assert run("repair", store, "--json").document["actions"][0]["count"] == 1
    assert keys[0] not in vectors(store)


def test_where_all_vectors_have_other_dimensions_the_catalog_follows(store: Path) -> None:
    state_dimensions(store, 768)
    before = vectors(store)
    findings = found(store)
    assert findings["embedding.length"]["count"] == len(before)
    assert look(store)["coverage"] == 0
    assert findings["embedding.length"]["repair"] == findings["base.dimensions"]["repair"] is not None
    run("repair", store, "-q")
    assert sql(store / "catalog.sqlite", "SELECT dimensions FROM knowledge_base WHERE id = ?", KB) == [(HAS,)]
    assert vectors(store) == before
    assert not found(store)


def test_without_a_catalog_the_majority_counts(store: Path) -> None:
    put(store, floats(*[0.5] * 16))
    (store / "catalog.sqlite").unlink()
    findings = run("check", index(store), "--json").document["findings"]
    assert [(one["name"], one["count"]) for one in findings if one["name"].startswith("embedding")] == [
        ("embedding.length", 1)
    ]


def test_a_search_takes_the_dimensions_of_the_catalog(store: Path, tmp_path: Path) -> None:
    every = len(vectors(store))
    put(store, *(floats(*[0.5] * 16) for _ in range(every * 2 // 3)))
    for length, status in ((HAS, 0), (16, 2)):
        vector = tmp_path / f"{length}.json"
        vector.write_text(json.dumps([0.1] * length), "utf-8")
        arguments = ("search", store, "text", "--base", KB, "--mode", "vector", "--vector", vector, "--json")
        outcome = run(*arguments)
        assert outcome.status == status, outcome
        if status:
            assert outcome.document["error"]["code"] == "QueryVectorUnfit"


def overflows(blob: bytes) -> bool:
    """Whether the sum of the squares exceeds single precision, in exact arithmetic."""
    return sum(number * number for number in struct.unpack(f"<{len(blob) // 4}f", blob)) > FLT_MAX


@pytest.mark.thorough
@pytest.mark.parametrize(
    "blob",
    [
        floats(*[3e38] * HAS),
        floats(*[-3e38] * HAS),
        floats(3e38, *[0.0] * (HAS - 1)),
        floats(*[1e20] * HAS),
        floats(2e19, *[0.1] * (HAS - 1)),
    ],
    ids=["3e38", "-3e38", "one number", "1e20", "2e19"],
)
def test_a_norm_beyond_single_precision_is_found_and_replaced(store: Path, made: Path, blob: bytes) -> None:
    assert overflows(blob)
    every = vectors(store)
    (key,) = put(store, blob)
    for options in ((), ("--deep",)):
        finding = found(store, *options)["embedding.non-finite"]
        assert (finding["count"], finding["samples"]) == (1, [key])
        recommended = command_words(finding["repair"])
        assert recommended == from_its_source(store, made)
        assert "if that copy no longer exists: regraft backfill " in finding["message"]
        assert "single precision" in finding["message"]
    before = vectors(store)
    assert run("repair", store, "--json").document["actions"][0]["finding"] == "embedding.non-finite"
    assert set(before) - set(vectors(store)) == {key}
    assert run("undo", store, "-q").status == 0
    assert vectors(store) == before
    assert run(*recommended[1:], "-q").status == 0
    assert vectors(store) == every
    assert not found(store)


@pytest.mark.parametrize("number", [1e18, 5e18, 1e-15])
def test_long_and_short_vectors_within_single_precision_are_none(store: Path, number: float) -> None:
    blob = floats(*[number] * HAS)
    assert not overflows(blob)
    put(store, blob)
    assert not found(store)


def test_a_mix_is_counted_by_kind(store: Path) -> None:
    put(
        store,
        floats(*[math.nan] * HAS),
        floats(math.nan, 3e38, *[0.0] * (HAS - 2)),
        floats(*[3e38] * HAS),
        floats(math.inf, -math.inf, *[3e38] * (HAS - 2)),
        floats(*[0.0] * HAS),
        floats(*[0.5] * HAS)[:-1],
        b"",
    )
    findings = run("check", store, "--json").document["findings"]
    counted = {}
    for one in findings:
        counted.setdefault(one["name"], []).append((one["count"], "single precision" in one["message"]))
    assert sorted(counted["embedding.non-finite"]) == [(1, True), (3, False)]
    assert counted["embedding.zero"] == [(1, False)]
    assert counted["embedding.length"] == [(2, False)]


def test_where_the_catalog_states_none_of_several_lengths_no_command_is_offered(store: Path) -> None:
    state_dimensions(store, 768)
    put(store, floats(*[0.5] * 16))
    before = vectors(store)
    finding = found(store)["base.dimensions"]
    assert finding["repair"] is None
    assert finding["message"].startswith(
        f"the catalog says 768 dimensions, and {len(before)} of {len(before)} vectors have others: "
    )
    assert "base.dimensions" in {one["finding"] for one in run("repair", store, "--json").document["left"]}
    assert vectors(store) == before
