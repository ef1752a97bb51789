"""``regraft search`` without ``--base``: all bases, merged by rank, and what of them cannot be searched."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import apsw
import faults
import pytest
from harness import Outcome, run, snapshot
from v1 import Library, Row, base, carried, file

from regraft.errors import ModelDiffers, QueryNotEmbedded, SourceUnreadable
from regraft.ranking import several_bases
from regraft.ranking.cherry_v2 import Mode, UnitRequest
from regraft.ranking.several_bases import CombinedAnswer
from regraft.stores.locate import open_store

NAMES = ("one", "two", "three")


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """Return a library of three bases, with four, two and one text of a needle."""
    bases = [base(name, file(f"i-{name}", f"L-{name}", name=f"{name}.pdf")) for name in NAMES]
    rows = {
        name: [Row(f"L-{name}", f"needle {at} of {name} {'x' * at}") for at in range(count)]
        for name, count in zip(NAMES, (4, 2, 1), strict=True)
    }
    return carried(tmp_path, *bases, stores=rows)


@pytest.fixture
def vector(tmp_path: Path) -> Path:
    path = tmp_path / "vector.json"
    path.write_text("[0.5, 0.25, 0.125, 1]")
    return path


def asked(library: Library, *options: object, query: str = "needle") -> Outcome:
    before = snapshot(library.path)
    done = run("search", library.path, query, *options)
    assert snapshot(library.path) == before
    return done


def changed(library: Library, name: str, statement: str, *values: object) -> None:
    """Change a base's row in the catalog; ``statement`` is what is set."""
    with closing(apsw.Connection(str(library.path / "catalog.sqlite"))) as db:
        db.execute(f"UPDATE knowledge_base SET {statement} WHERE id = ?", (*values, library.base_id(name)))


def lost(library: Library, name: str) -> None:
    """Damage a base's index so that it opens and cannot be searched."""
    with closing(apsw.Connection(str(library.index_path(name)))) as db:
        db.execute("DROP TABLE search_text_fts")


@pytest.mark.thorough
def test_hits_of_all_bases_are_merged_by_their_ranks(library):
    document = asked(library, "--json").document
    places = [(hit["base_name"], hit["base_rank"]) for hit in document["hits"]]
    assert [place[1] for place in places] == [1, 1, 1, 2, 2, 3, 4]
    assert [place[0] for place in places[:5]] == ["Base one", "Base two", "Base three", "Base one", "Base two"]
    assert [hit["rank"] for hit in document["hits"]] == [1, 2, 3, 4, 5, 6, 7]
    for hit in document["hits"]:
        assert hit["score"] == 1 / (60 + hit["base_rank"])
        alone = asked(library, "--base", hit["base"], "--json").document["hits"][hit["base_rank"] - 1]
        assert (alone["text"], alone["score"], alone["item_name"]) == (hit["text"], hit["base_score"], hit["item_name"])
    assert (document["base"], document["mode"], document["count"], document["score_kind"]) == (
        None,
        "bm25",
        10,
        "ranking",
    )
    assert [(one["base_name"], one["mode"], one["found"], one["problem"]) for one in document["bases"]] == [
        ("Base one", "bm25", 4, None),
        ("Base two", "bm25", 2, None),
        ("Base three", "bm25", 1, None),
    ]
    assert len(asked(library, "--json", "-k", "3").document["hits"]) == 3


@pytest.mark.thorough
def test_without_a_vector_all_are_searched_by_words_and_that_is_said_once(library):
    done = asked(library)
    assert (done.status, done.stderr.count("\n")) == (0, 1)
    assert done.stderr.startswith("note: searched by words only")
    assert "7 hits in all bases, merged by rank; searched: 3 bases by words." in done.stdout
    assert "  1  Base one: one.pdf, unit " in done.stdout
    assert asked(library, "--quiet").stderr == ""


@pytest.mark.thorough
def test_a_vector_is_that_of_the_bases_with_its_model_and_the_others_are_searched_by_words(library, vector):
    everywhere = asked(library, "--vector", vector, "--json").document
    assert {one["mode"] for one in everywhere["bases"]} == {"hybrid"}
    assert (everywhere["mode"], everywhere["alpha"]) == ("hybrid", 0.5)
    changed(library, "two", "embedding_model_id = NULL, dimensions = NULL")
    done = asked(library, "--vector", vector, "--json")
    assert [one["mode"] for one in done.document["bases"]] == ["hybrid", "bm25", "hybrid"]
    assert (done.status, done.document["mode"], done.document["alpha"]) == (0, None, None)
    assert "Base two: the vector is not used: mode bm25 searches by words only" in done.document["notes"]


@pytest.mark.thorough
def test_a_vector_that_may_be_of_several_models_is_refused(library, vector):
    changed(library, "two", "embedding_model_id = ?", "acme::other")
    message = faults.said(asked(library, "--vector", vector, "--json"), "WrongUsage", faults.REFUSED)
    assert "the query's vector fits 2 models" in message
    assert "acme::other" in message
    assert asked(library, "--vector", vector, "--mode", "bm25").status == 0


def test_a_vector_of_another_length_than_that_of_some_bases_is_not_used_for_these(library, vector):
    with closing(apsw.Connection(str(library.index_path("two")))) as db:
        db.execute("UPDATE embedding SET vector_blob = x'0000803f0000803f'")
    done = asked(library, "--vector", vector, "--json")
    assert [one["mode"] for one in done.document["bases"]] == ["hybrid", "bm25", "hybrid"]
    assert "Base two: searched by words: its vectors have 2 dimensions, the query's has 4" in done.document["notes"]


@pytest.mark.thorough
def test_a_vector_that_no_base_can_use_is_refused(library, tmp_path):
    short = tmp_path / "short.json"
    short.write_text(json.dumps([1, 2]), "utf-8")
    faults.said(asked(library, "--vector", short, "--json"), "QueryVectorUnfit", faults.REFUSED)


@pytest.mark.thorough
def test_a_mode_that_needs_a_vector_is_refused_without_one(library):
    faults.said(asked(library, "--mode", "vector", "--json"), "QueryVectorMissing", faults.REFUSED)
    faults.said(asked(library, "--json", query="!?"), "QueryWithoutWord", faults.REFUSED)


def test_a_damaged_base_is_named_and_the_others_are_searched(library):
    lost(library, "two")
    done = asked(library)
    assert (done.status, "Not searched: Base two." in done.stdout) == (1, True)
    assert "note: Base two was not searched: " in done.stderr
    assert str(library.index_path("two")) in done.stderr
    document = asked(library, "--json").document
    assert {hit["base_name"] for hit in document["hits"]} == {"Base one", "Base three"}
    (problem,) = (one for one in document["bases"] if one["problem"] is not None)
    assert (problem["base"], problem["mode"], problem["found"]) == (library.base_id("two"), None, 0)
    quiet = asked(library, "-q")
    assert (quiet.status, quiet.stderr, "Not searched: Base two." in quiet.stdout) == (1, "", True)


def test_a_base_that_the_application_does_not_search_is_said_and_no_damage(library):
    changed(library, "two", "status = 'failed', error = 'missing_embedding_model', embedding_model_id = NULL")
    done = asked(library)
    assert done.status == 0, done.stderr
    assert "note: Base two was not searched: " in done.stderr


def test_where_no_base_can_be_searched_the_first_reason_is_the_answer(library):
    for name in NAMES:
        lost(library, name)
    message = faults.said(asked(library, "--json"), "SourceUnreadable", faults.REFUSED)
    assert str(library.index_path("one")) in message


def test_the_indexes_alone_are_asked_with_raw(library):
    document = asked(library, "--raw", "--json").document
    assert {hit["base"] for hit in document["hits"]} == {library.base_id(name) for name in NAMES}
    assert {hit["base_name"] for hit in document["hits"]} == {None}


def test_bases_of_one_name_are_told_apart_by_their_ids(library):
    changed(library, "two", "name = 'Base one'")
    assert f"Base one ({library.base_id('two')}): two.pdf" in asked(library).stdout


def test_an_embedder_is_asked_for_the_bases_of_its_model_alone(library):
    changed(library, "two", "embedding_model_id = ?", "acme::other")

    def embed(model_id: str | None) -> tuple[float, ...]:
        if model_id == "acme::other":
            raise ModelDiffers(embedder="mine", model="m", reason=f"the base's model is {model_id}")
        return (0.5, 0.25, 0.125, 1)

    with open_store(library.path, None) as source:
        found = several_bases.search(source, None, UnitRequest(query="needle", embed=embed))
    assert isinstance(found, CombinedAnswer)
    assert [answer.mode for answer in found.answers] == [Mode.HYBRID, Mode.BM25, Mode.HYBRID]
    assert found.notes == ("Base two: searched by words: the embedder has another model",)
    assert not found.is_damaged


@pytest.mark.thorough
@pytest.mark.parametrize(
    "error",
    [
        QueryNotEmbedded(embedder="mine", reason="no"),
        SourceUnreadable(path="regraft.yaml", reason="no"),
        ModelDiffers(embedder="mine", model="m", reason="no"),
    ],
)
def test_an_embedder_that_serves_no_base_is_its_own_error_and_no_damage_of_a_base(library, error):
    def embed(_: str | None) -> tuple[float, ...]:
        raise error

    with open_store(library.path, None) as source, pytest.raises(type(error)) as caught:
        several_bases.search(source, None, UnitRequest(query="needle", embed=embed))
    assert caught.value is error
