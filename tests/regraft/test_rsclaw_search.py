"""``regraft search`` in a KB of rsclaw: both lanes and their fusion, held against slow models, and what is said."""

from __future__ import annotations

import itertools
import json
import math
import re
import string
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import rsclaw_store
from doc_text import keys, section, spans, text_of
from faults import said, untouched
from harness import Outcome, examples, run
from hypothesis import given, settings
from hypothesis import strategies as st
from rsclaw_store import RsclawStore, embed
from search_model import ENDS, SEGMENTED, UNSEGMENTED, exact_cosine, model_words
from v1 import floats

import regraft
from regraft.disk import sqlite
from regraft.formats.cherry_v2.index.search import compile_query
from regraft.ranking.term_index import case_variants

WORDS = (
    *("river gauge", "river", "gauge river", "the old mill", "知识库", "知识库搜索", "天气", "天", "用 知识库 the"),
    *("RIVER", "mi", "mill 天气", "zeppelin"),
)
TEXTS = (
    "The river gauge is read at noon.",
    "The gauge of the river, and the river itself: a gauge.",
    "An old mill stands by the river.",
    "知识库搜索要先建索引。",
    "今天天气很好，知识库也很好。",
    "天气 and the mill",
)


def numbers_file(place: Path, numbers: Any) -> Path:
    place.write_text(json.dumps(numbers), "utf-8")
    return place


def searched(root: Path, query: str, *options: object) -> dict[str, Any]:
    with untouched(root):
        outcome = run("search", root, query, "--json", *options)
    assert outcome.status == 0, outcome
    return outcome.document


def ids(document: dict[str, Any]) -> list[str]:
    return [hit["unit_id"] for hit in document["hits"]]


def scores(document: dict[str, Any]) -> list[tuple[str, float]]:
    return [(hit["unit_id"], hit["score"]) for hit in document["hits"]]


def chunks_of(store: RsclawStore) -> list[dict[str, Any]]:
    """Return the chunks of a store in the order of their ids."""
    return [store.tables["kb_chunks"][key] for key in sorted(store.tables["kb_chunks"])]


@pytest.fixture
def store(tmp_path: Path) -> RsclawStore:
    made = RsclawStore(tmp_path / "kb")
    made.doc("Rivers", TEXTS[:3])
    made.doc("检索", TEXTS[3:])
    return made


@pytest.fixture
def query_file(tmp_path: Path) -> Path:
    return numbers_file(tmp_path / "query.json", embed("a query"))


# --- the lanes, against models -------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("query", WORDS)
def test_words_find_what_the_model_finds(query: str, store: RsclawStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search_model.SEGMENTED", SEGMENTED | set(string.ascii_letters))
    chunks = chunks_of(store)
    model = model_words([chunk["indexed_text"] for chunk in chunks], query)
    found = searched(store.write(), query)
    assert ids(found) == [chunks[at]["id"] for at, _ in model]
    assert [score for _, score in scores(found)] == pytest.approx([score for _, score in model])
    assert (found["mode"], found["notes"], found["score_kind"]) == ("bm25", [], "ranking")


_TEXTS = st.text(st.sampled_from([*sorted(UNSEGMENTED | SEGMENTED), " ", ".", "\n"]), min_size=1, max_size=12)
_QUERIES = st.text(st.sampled_from([*sorted(UNSEGMENTED | SEGMENTED), *ENDS.replace("\0", "")]), min_size=1, max_size=9)
_NUMBERS = st.lists(st.integers(-3, 3), min_size=2, max_size=2)


@pytest.mark.thorough
@settings(max_examples=examples(60))
@given(st.lists(st.tuples(_TEXTS, _NUMBERS), min_size=1, max_size=9), _QUERIES, _NUMBERS.filter(any), st.integers(1, 4))
def test_any_store_is_ranked_as_the_models_rank_it(
    tmp_path_factory: pytest.TempPathFactory,
    bodies: list[tuple[str, list[int]]],
    query: str,
    asked: list[int],
    count: int,
) -> None:
    folder = tmp_path_factory.mktemp("random")
    store = RsclawStore(folder / "kb")
    doc = store.doc("a", ())
    for seq, (text, numbers) in enumerate(bodies):
        store.chunk(doc, seq, text, (0, 1), vector=numbers)
    chunks, root = chunks_of(store), store.write()
    words = model_words([chunk["indexed_text"] for chunk in chunks], query)
    if not words and not re.search(r"[\w]", query.replace("\u0301", "").replace("\u3099", "")):
        said(run("search", root, query, "--json", "-k", 50), "QueryWithoutWord", 2)
        return
    by_words = scores(searched(root, query, "-k", 50))
    assert_ranked(by_words, {chunks[at]["id"]: score for at, score in words})
    if not any(any(numbers) for _, numbers in bodies):
        return
    vector = ("--vector", numbers_file(folder / "query.json", asked))
    nearness = {chunk["id"]: exact_cosine(floats(*chunk["vector"]), floats(*asked)) for chunk in chunks}
    by_vector = scores(searched(root, query, "-k", 50, *vector, "--mode", "vector"))
    assert_ranked(by_vector, {one: score for one, score in nearness.items() if score is not None})
    lanes = [[one for one, _ in lane][: 5 * count] for lane in (by_vector, by_words)]
    assert ids(searched(root, query, "-k", count, *vector)) == fused(lanes)[:count]


def assert_ranked(found: list[tuple[str, float]], model: dict[str, float]) -> None:
    """Assert that the hits are those of a model with their scores, best first, and of equal ones the lower id."""
    assert dict(found) == pytest.approx(model, abs=1e-6)
    assert found == sorted(found, key=lambda one: (-one[1], one[0]))


def fused(lanes: list[list[str]]) -> list[str]:
    """Return ids by reciprocal rank fusion with exact numbers; of equal ones the lower first."""
    score: dict[str, Fraction] = {}
    for lane in lanes:
        for rank, one in enumerate(lane, 1):
            score[one] = score.get(one, Fraction(0)) + Fraction(1, 60 + rank)
    return sorted(score, key=lambda one: (-score[one], one))


def test_a_score_of_both_lanes_is_the_sum_of_reciprocal_ranks(store: RsclawStore, query_file: Path) -> None:
    root = store.write()
    found = searched(root, "river gauge", "--vector", query_file)
    assert (found["mode"], found["score_kind"], found["count"]) == ("hybrid", "ranking", 10)
    lanes = [ids(searched(root, "river gauge", "--vector", query_file, "--mode", mode)) for mode in ("vector", "bm25")]
    for unit, score in scores(found):
        assert score == pytest.approx(sum(0.5 / (61 + lane.index(unit)) for lane in lanes if unit in lane))
    assert ids(found) == fused(lanes)


def test_as_many_hits_as_are_wanted(store: RsclawStore, query_file: Path) -> None:
    root = store.write()
    for options in ((), ("--vector", query_file), ("--vector", query_file, "--mode", "vector")):
        every = ids(searched(root, "the", *options))
        assert [ids(searched(root, "the", *options, "-k", count)) for count in (1, 2)] == [every[:1], every[:2]]


@pytest.mark.thorough
def test_full_text_takes_no_characters_for_the_same_that_are_not_kept() -> None:
    """A character that the trigram index folds is a case of what it is folded to, for all letters that there are."""
    with sqlite.open_scratch() as db:
        db.execute("CREATE VIRTUAL TABLE folded USING fts5 (text, content = '', tokenize = 'trigram')")
        db.execute("CREATE VIRTUAL TABLE term USING fts5vocab (folded, instance)")
        letters = [point for point in range(1, 0x20000) if chr(point).isalnum()]
        with sqlite.transaction(db):
            rows = ((point, chr(point) * 3) for point in letters)
            db.executemany("INSERT INTO folded (rowid, text) VALUES (?, ?)", rows)
        by_term: dict[str, set[str]] = {}
        for term, point in db.execute("SELECT term, doc FROM term"):
            by_term.setdefault(term[0], set()).add(chr(point))
    assert sum(map(len, by_term.values())) == len(letters)
    for together in by_term.values():
        for one, other in itertools.combinations(together, 2):
            assert case_variants(one) & case_variants(other), (one, other)


@pytest.mark.parametrize(
    "text", ["ÉCOLE école", "\u212aelvin \u017fun", "ΣΊΣΥΦΟΣ σίσυφος", "İstanbul", "ǅungla ǆungla"]
)
def test_other_cases_of_a_word_count_as_in_an_index_of_all_text(text: str, store: RsclawStore) -> None:
    store.doc("Cases", [text, text.lower(), text.upper(), f"{text}\0{text}"])
    chunks, query = chunks_of(store), text.split(maxsplit=1)[0]
    with sqlite.open_scratch() as db:
        db.execute("CREATE VIRTUAL TABLE whole USING fts5 (text, tokenize = 'trigram')")
        db.executemany("INSERT INTO whole (text) VALUES (?)", [(chunk["indexed_text"],) for chunk in chunks])
        words = " OR ".join(f'"{term}"' for term in compile_query(query).terms)
        ranked = "SELECT rowid, -bm25(whole) FROM whole WHERE whole MATCH ? ORDER BY bm25(whole), rowid"
        expected = [(chunks[int(str(row)) - 1]["id"], score) for row, score in db.execute(ranked, (words,))]
    assert len(expected) >= 3
    assert scores(searched(store.write(), query, "-k", 50)) == expected


# --- vectors that take no part -------------------------------------------------------------------------------------

OTHERS = "2 chunks with another embedder or other dimensions than the query (stub-4) can be found by words only"
UNUSABLE = "4 chunks without a comparable vector can be found by words only"


@pytest.fixture
def mixed(store: RsclawStore) -> RsclawStore:
    store.doc("Other", ["A river of another embedder."], embedder="other-4")
    store.doc("Longer", ["A river of eight numbers."], dimensions=8)
    odd = store.doc("Odd", ())
    for seq, vector in enumerate(([0, 0, 0, 0], [None, 1, 1, 1], [], "none")):
        store.chunk(odd, seq, f"A river without a vector, {seq}.", (0, 1), vector=vector)
    return store


@pytest.mark.parametrize("mode", ["hybrid", "vector"])
def test_chunks_that_cannot_be_compared_are_counted(mode: str, mixed: RsclawStore, query_file: Path) -> None:
    root = mixed.write()
    found = searched(root, "river", "--vector", query_file, "--mode", mode, "-k", 50)
    assert found["notes"] == [OTHERS, UNUSABLE]
    unfit = {"Other", "Longer", "Odd"}
    assert {hit["item_name"] for hit in found["hits"]} & unfit == (unfit if mode == "hybrid" else set())
    assert searched(root, "river", "-k", 50)["notes"] == []


def test_a_vector_is_compared_with_those_of_its_length(mixed: RsclawStore, tmp_path: Path) -> None:
    given_vector = numbers_file(tmp_path / "long.json", embed("x", 8))
    found = searched(mixed.write(), "river", "--vector", given_vector, "--mode", "vector")
    assert [hit["item_name"] for hit in found["hits"]] == ["Longer"]


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ([1, 2, 3], "has 3 dimensions, but those of stub-4 have 4"),
        ([0, 0, 0, 0], "all zeros"),
    ],
)
def test_what_is_in_the_way_of_meaning_leaves_the_hits_by_words(
    numbers: list[int], why: str, store: RsclawStore, tmp_path: Path
) -> None:
    root, vector = store.write(), numbers_file(tmp_path / "query.json", numbers)
    before = searched(root, "river")
    found = searched(root, "river", "--vector", vector)
    assert (found["mode"], found["hits"]) == ("bm25", before["hits"])
    assert found["notes"] == [f"searched by words only: {found['notes'][0].partition(': ')[2]}"]
    assert why in found["notes"][0]
    assert why in said(run("search", root, "river", "--json", "--vector", vector, "--mode", "vector"), "WrongUsage", 2)


def test_meaning_without_vectors(tmp_path: Path, query_file: Path) -> None:
    store = RsclawStore(tmp_path / "kb")
    store.doc("Bare", ["A river."], dimensions=0)
    root = store.write()
    assert searched(root, "river", "--vector", query_file)["notes"] == ["searched by words only: no chunk has a vector"]
    for chunk in chunks_of(store):
        chunk["vector"] = [0, 0, 0, 0]
    store.write()
    [note] = searched(root, "river", "--vector", query_file)["notes"]
    assert "no chunk has a comparable vector" in note


def test_hybrid_without_a_vector_of_the_query_says_so(store: RsclawStore) -> None:
    found = searched(store.write(), "river", "--mode", "hybrid")
    assert (found["mode"], len(found["notes"])) == ("bm25", 1)
    assert "use --vector or --embedder" in found["notes"][0]


def test_a_vector_that_words_do_not_need_is_named(store: RsclawStore, query_file: Path) -> None:
    found = searched(store.write(), "river", "--mode", "bm25", "--vector", query_file)
    assert found["notes"] == ["the vector is not used: mode bm25 searches by words only"]


def test_a_program_may_give_numbers_that_are_not_finite(store: RsclawStore) -> None:
    told = regraft.search(store.write(), "river", vector=[math.nan, 1, 1, 1])
    assert "NaN or infinite" in told.notes[0]


# --- what is said --------------------------------------------------------------------------------------------------


def test_a_hit_is_a_chunk_with_its_document(store: RsclawStore) -> None:
    root = store.write()
    doc = next(iter(store.tables["kb_docs"].values()))
    document = searched(root, "old mill", "-k", 1)
    [hit] = document["hits"]
    assert hit.pop("score") > 0
    assert hit == {
        "base": None,
        "base_name": None,
        "item_name": "Rivers",
        "rank": 1,
        "unit_id": rsclaw_store.chunk_id(doc["logical_source_id"], 2, TEXTS[2]),
        "material_id": doc["id"],
        "relative_path": doc["markdown_path"],
        "unit_index": 2,
        "text": f"Rivers\n\n{TEXTS[2]}",
    }
    assert (document["base"], document["base_name"], document["as"], document["count"]) == (None, None, [], 1)
    assert document["source"] == {"kind": "rsclaw", "path": str(root)}


def test_every_key_of_the_document_is_in_the_reference(store: RsclawStore) -> None:
    reference = section(text_of("docs/commands.md"), "JSON")
    text = reference.partition("\n### ")[0] + section(reference, "search")
    assert set(keys(searched(store.write(), "river"))) <= set(re.findall(r"\w+", " ".join(spans(text))))


def test_a_person_sees_what_was_found(store: RsclawStore) -> None:
    root = store.write()
    path = next(iter(store.tables["kb_docs"].values()))["markdown_path"]
    lines = run("search", root, "old mill", "--as", "user:ada", "--as", "agent:a1").stdout.splitlines()
    assert lines[0] == f"{root} is a knowledge base of rsclaw."
    assert lines[1] == "Documents visible to user:ada, agent:a1: 2 hits by words."
    assert re.fullmatch(rf"  1  [\d.]+  Rivers \({re.escape(path)}\), unit 2", lines[3])
    assert lines[4] == f"     Rivers {TEXTS[2]}"
    # A length is no score.
    lines = run("search", root, "mi").stdout.splitlines()
    assert lines[1] == "Documents visible to all users: 2 hits by words."
    assert lines[3].startswith("  1  检索 (md/doc/")


def test_a_program_gets_what_the_command_prints(store: RsclawStore, query_file: Path) -> None:
    root = store.write()
    vector = json.loads(query_file.read_text("utf-8"))
    told = regraft.encoded(regraft.search(root, "river", vector=vector, count=2, as_=["user:ada", "channel:c"]))
    printed = searched(root, "river", "--vector", query_file, "-k", 2, "--as", "channel:c|user:ada")
    for name in ("as", "mode", "count", "notes", "hits", "base", "score_kind"):
        assert json.loads(json.dumps(told[name])) == printed[name]
    assert printed["as"] == ["user:ada", "channel:c"]


HOSTILE = (
    *('"', "' OR 1=1 --", "river* NOT gauge", "NEAR(river gauge, 2)", "text : river", "^river", "{text} : mill", "\\"),
    *("river AND", "(((", "%", "_", "a\u0301", "river\x1b[31m", "'; DROP TABLE chunk; --"),
)


@pytest.mark.thorough
@pytest.mark.parametrize("query", HOSTILE)
def test_a_query_is_text_and_nothing_else(query: str, store: RsclawStore) -> None:
    root = store.write()
    with untouched(root):
        outcome = run("search", root, "--json", "--", query)
    words = re.findall(r"\w+", query.replace("\u0301", ""))
    if words:
        assert outcome.status == 0
        texts = [hit["text"].lower() for hit in outcome.document["hits"]]
        assert all(any(word.lower() in text for word in words) for text in texts)
    else:
        said(outcome, "QueryWithoutWord", 2)


def test_titles_and_texts_do_not_reach_the_terminal_as_they_are(tmp_path: Path) -> None:
    store = RsclawStore(tmp_path / "kb")
    store.doc("Bad \x1b[2J\u202e title", ["A river \x1b]0;x\x07 flows."], markdown_path="md/doc/\x1b[1m.md")
    outcome = run("search", store.write(), "river")
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", outcome.stdout)


@pytest.mark.parametrize("query", ["", "  ", "\u3000", "…!?"])
def test_a_query_without_a_word_is_refused(query: str, store: RsclawStore) -> None:
    said(run("search", store.write(), query, "--json"), "QueryWithoutWord", 2)


@pytest.mark.parametrize("option", [("--base", "x"), ("--alpha", 0.3), ("--raw",)])
def test_options_that_say_nothing_here_are_refused(option: tuple[object, ...], store: RsclawStore) -> None:
    message = said(run("search", store.write(), "river", "--json", *option), "WrongUsage", 2)
    assert message == f"{option[0]} is not for a knowledge base of rsclaw (leave it out)."


def outcomes(path: Path) -> Iterator[Outcome]:
    yield run("search", path, "river", "--json")
    yield run("search", path / "kb.redb", "river", "--json")
    yield run("search", path.parent, "river", "--json")


def test_a_kb_is_found_by_its_folder_its_file_and_the_folder_above(store: RsclawStore) -> None:
    found = [ids(outcome.document) for outcome in outcomes(store.write())]
    assert found[0]
    assert found[0] == found[1] == found[2]
