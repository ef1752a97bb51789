"""The lanes of a search over one index, held against a slow model that shares no code with them."""

from __future__ import annotations

import doctest
import gzip
import json
import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import apsw
import pytest
from harness import HERE, REPO, run, snapshot
from hypothesis import given
from hypothesis import strategies as st
from search_model import (
    ENDS,
    SEGMENTED,
    UNSEGMENTED,
    Body,
    add_body,
    exact_cosine,
    model_bm25,
    model_query,
    model_words,
    write_index,
)
from v1 import floats, sha

from regraft.disk import sqlite
from regraft.errors import QueryTooLong
from regraft.formats.cherry_v2.index.schema import dimensions_of
from regraft.formats.cherry_v2.index.search import (
    Hit,
    bm25_hits,
    compile_query,
    fused,
    hybrid_hits,
    tokens,
    vector_blob,
    vector_hits,
)

GOLDEN = HERE / "golden"


@contextmanager
def opened(path: Path) -> Iterator[apsw.Connection]:
    with sqlite.open_readonly(path, vectors=True) as db:
        yield db


@contextmanager
def index_of(tmp_path: Path, *bodies: Body | str) -> Iterator[apsw.Connection]:
    made = [body if isinstance(body, Body) else Body(body) for body in bodies]
    with opened(write_index(tmp_path / "index.sqlite", made)) as db:
        yield db


def numbers(hits: Sequence[Hit]) -> list[int]:
    return [hit.unit_index for hit in hits]


# --- the slow model ------------------------------------------------------------------------------------------------


# --- words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("boat-workshop 2024", ["boat", "workshop", "2024"]),
        ("snake_case, 'quoted' \"twice\"", ["snake_case", "quoted", "twice"]),
        ("知识库 搜索", ["知识库", "搜索"]),
        ("café naïve", ["café", "naïve"]),
        ("cafe\u0301s", ["cafe", "s"]),
        ("½ Ⅻ ٣", ["½", "Ⅻ", "٣"]),
        ("a😀b\ud83dc", ["a", "b", "c"]),
        ("100% \\ * ( ) \0", ["100"]),
        ("!? … 😀", []),
        ("", []),
    ],
)
def test_tokens_are_runs_of_letters_digits_and_underscores(query, found):
    assert tokens(query) == found


@pytest.mark.parametrize(
    ("query", "terms", "shorts"),
    [
        ("boat-workshop of 2024", ["boat", "workshop", "2024"], ["of"]),
        ("知识库", ["知识库"], []),
        ("知识", [], ["知识"]),
        ("知识库搜索", ["知识库", "识库搜", "库搜索"], []),
        ("知识库搜索 boats", ["boats", "知识库", "识库搜", "库搜索"], []),
        ("知识库 知识库搜索", ["知识库", "识库搜", "库搜索"], []),
        ("知识库搜索 知识库 识库搜", ["知识库", "识库搜", "库搜索"], []),
        ("识库搜索 知识库搜索 abc", ["abc", "识库搜", "库搜索", "知识库"], []),
        ("天气天气天气 气天气 天气", ["气天气", "天气天"], ["天气"]),
        ("ABC知识库搜索abc知识库ABC", ["ABC", "abc", "知识库", "识库搜", "库搜索"], []),
        (
            " ".join(["知识库", "知识库搜索", *(f"w{at:02d}" for at in range(70))]),
            ["知识库", *(f"w{at:02d}" for at in range(63))],
            [],
        ),
        (
            " ".join(["知识库", "知识库搜索", *(f"w{at:02d}" for at in range(61))]),
            ["知识库", *(f"w{at:02d}" for at in range(61)), "识库搜", "库搜索"],
            [],
        ),
        ("用KB知识库搜索abc的", ["abc", "知识库", "识库搜", "库搜索"], ["用", "KB", "的"]),
        ("サーバー設定", ["サーバ", "ーバー", "バー設", "ー設定"], []),
        ("ｻｰﾊﾞｰ", ["ｻｰﾊ", "ｰﾊﾞ", "ﾊﾞｰ"], []),
        ("人々 〆切日です", ["〆切日", "切日で", "日です"], ["人々"]),
        ("한국어테스트 ภาษาไทย", ["한국어테스트", "ภาษาไทย"], []),
        ("ferry Ferry ferry FERRY", ["ferry", "Ferry", "FERRY"], []),
        ("が\u3099ぎぐげ", ["ぎぐげ"], ["が"]),
        ("x² 𠮷野家へ ½", ["𠮷野家", "野家へ"], ["x²", "½"]),
        ("__init__ a_b _", ["__init__", "a_b"], ["_"]),
        ("㊀㈠〇〇", ["㊀㈠〇", "㈠〇〇"], []),
        (" ".join(f"w{at:02d}" for at in range(70)), [f"w{at:02d}" for at in range(64)], []),
        (
            "".join(map(chr, range(0x4E00, 0x4E80))) + " abc",
            ["abc", *(chr(at) + chr(at + 1) + chr(at + 2) for at in range(0x4E00, 0x4E3F))],
            [],
        ),
        ("", [], []),
    ],
)
def test_a_query_is_cut_into_words_and_windows(query, terms, shorts):
    asked = compile_query(query)
    assert (list(asked.terms), list(asked.shorts)) == (terms, shorts)


def test_short_words_have_no_limit():
    assert len(compile_query(" ".join(map(chr, range(0x4E00, 0x4E00 + 300)))).shorts) == 300


_QUERIES = st.text(st.sampled_from(sorted(UNSEGMENTED | SEGMENTED) + list(ENDS) * 2), max_size=14)


@given(query=_QUERIES)
def test_a_query_is_cut_as_the_model_cuts_it(query):
    asked = compile_query(query)
    assert (list(asked.tokens), list(asked.terms), list(asked.shorts)) == model_query(query)


_BITS = (
    "知识库",
    "识库搜索",
    "天气",
    "ab",
    "abc",
    "Abcd",
    "éA",
    "한국어",
    "9_",
    " ",
    " ",
    "%",
    "\\",
    "😀",
    "e\u0301",
    "ー",
)
_TEXTS = st.lists(st.lists(st.sampled_from(_BITS), max_size=8).map("".join), min_size=1, max_size=8)


@given(texts=_TEXTS, query=st.lists(st.sampled_from((*_BITS, "\0", '"', "'")), max_size=6).map("".join))
def test_words_find_what_the_model_finds(tmp_path_factory, texts, query):
    with index_of(tmp_path_factory.mktemp("index"), *texts) as db:
        hits = bm25_hits(db, query, 100)
    model = model_words(texts, query)
    assert numbers(hits) == [number for number, _ in model]
    assert [hit.score for hit in hits] == pytest.approx([score for _, score in model], rel=1e-9)


def test_any_word_is_enough_and_scores_are_those_of_bm25(tmp_path):
    texts = [
        "the boat is in the workshop",
        "a workshop for boats, and a boat",
        "no vessel here, and filler",
        "workshop workshop workshop boat",
        "one more text without them",
        "boat alone",
        "a last text of filler",
    ]
    with index_of(tmp_path, *texts) as db:
        hits = bm25_hits(db, "BOAT workshop!", 10)
        cut = bm25_hits(db, "BOAT workshop!", 2)
    model = model_bm25(texts, ["boat", "workshop"])
    assert numbers(hits) == [number for number, _ in model]
    assert set(numbers(hits)) == {0, 1, 3, 5}
    assert [hit.score for hit in hits] == pytest.approx([score for _, score in model], rel=1e-9)
    assert cut == hits[:2]
    assert {hit.relative_path for hit in hits} == {"m.md"}
    assert all(hit.text == texts[hit.unit_index] and hit.score > 0 for hit in hits)


def test_words_of_the_query_language_are_words(tmp_path):
    with index_of(tmp_path, "this AND that", "this that", "something else", "else") as db:
        assert set(numbers(bm25_hits(db, 'AND "something" NEAR(', 10))) == {0, 2}
        assert numbers(bm25_hits(db, "some\0thing* ^text:", 10)) == [2]


def test_a_short_word_has_to_occur_where_anything_has_it(tmp_path):
    with index_of(tmp_path, "ferry and 温室", "the ferry", "FERRY a", "none of it", "no", "no") as db:
        assert numbers(bm25_hits(db, "ferry 温室", 10)) == [0]
        assert set(numbers(bm25_hits(db, "ferry A", 10))) == {0, 2}
        # Nothing has all of them: they do not count.
        assert set(numbers(bm25_hits(db, "ferry zz 温室", 10))) == {0, 1, 2}
        assert bm25_hits(db, "absent no", 10) == []


def test_full_text_ignores_the_case_of_all_letters_and_short_words_that_of_ascii(tmp_path):
    with index_of(tmp_path, "ÉCOLE du sud", "École É", "ABC é", "nothing", "else") as db:
        assert set(numbers(bm25_hits(db, "École", 10))) == {0, 1}
        assert numbers(bm25_hits(db, "é", 10)) == [2]
        assert numbers(bm25_hits(db, "aBc É", 10)) == [2], "nothing has both, so that the short word does not count"


def test_a_tie_goes_to_the_body_written_first(tmp_path):
    with index_of(tmp_path, *["same text here"] * 5) as db:
        assert numbers(bm25_hits(db, "text", 4)) == [0, 1, 2, 3]
        assert numbers(bm25_hits(db, "te", 4)) == [0, 1, 2, 3]


def test_short_words_alone_are_looked_for_with_like_shortest_body_first(tmp_path):
    texts = ["知识库的搜索很快 and more of it", "搜索知识库", "知识", "搜索", "知识 😀 搜索", "ab知识", "ab 知识"]
    with index_of(tmp_path, *texts) as db:
        both = bm25_hits(db, "知识,搜索", 10)
        whole = bm25_hits(db, "ab知识", 10)
    assert [(hit.unit_index, hit.score) for hit in both] == [(1, -5.0), (4, -7.0), (0, -float(len(texts[0])))]
    assert numbers(whole) == [5], "a token is looked for as it stands, not in its runs"


@pytest.mark.parametrize(
    ("query", "found"),
    [("a_", [1]), ("_", [1, 4]), ("5%", [5, 3, 2]), ("\\", []), ("AB", [0, 6]), ("É", [7])],
)
def test_wildcards_of_like_stand_for_themselves(tmp_path, query, found):
    texts = ["abc", "a_c", "50% off", "c:\\5%", "x_y_z", "5", "xAB", "É", "é"]
    with index_of(tmp_path, *texts) as db:
        assert numbers(bm25_hits(db, query, 10)) == found


def test_nothing_to_look_for_finds_nothing(tmp_path):
    with index_of(tmp_path, "text") as db:
        assert bm25_hits(db, "…", 10) == []
        assert bm25_hits(db, "\0", 10) == []
        assert bm25_hits(db, "text", 0) == []
        assert bm25_hits(db, "te", 0) == []
        assert bm25_hits(db, "absent", 10) == []


def test_long_queries_are_answered_and_those_that_sqlite_does_not_take_are_said_to_be(tmp_path):
    many = [chr(0x4E00 + at % 20_000) + chr(0x3400 + at // 20_000) for at in range(30_001)]
    with index_of(tmp_path, "text of all", "一㐀") as db:
        assert bm25_hits(db, " ".join(["te"] * 5000), 10)[0].unit_index == 0
        assert bm25_hits(db, " ".join(many[:1500]), 10) == []
        assert numbers(bm25_hits(db, f"text {' '.join(many[:1500])}", 10)) == [0]
        assert bm25_hits(db, "b" * 200_000, 10) == []
        with pytest.raises(QueryTooLong, match="30,000 short words"):
            bm25_hits(db, " ".join(many), 10)
        with pytest.raises(QueryTooLong, match="longer"):
            bm25_hits(db, "知a" * 20_000, 10)


def test_an_index_of_version_1_is_joined_on_its_implicit_rowid(tmp_path):
    path = write_index(tmp_path / "index.sqlite", [Body("first text"), Body("second text")])
    with closing(apsw.Connection(str(path))) as db:
        for name in ("search_text_ai", "search_text_ad", "search_text_au"):
            db.execute(f"DROP TRIGGER {name}")
        db.execute("DROP INDEX search_text_fts_rowid_uniq")
        db.execute("ALTER TABLE search_text DROP COLUMN fts_rowid")
    with opened(path) as db:
        assert numbers(bm25_hits(db, "second", 10)) == [1]
        assert numbers(bm25_hits(db, "te", 10)) == [0, 1]


# --- vectors -------------------------------------------------------------------------------------------------------


def test_vectors_are_ranked_by_their_cosine(tmp_path):
    vectors = [floats(1, 0, 0), floats(0, 2, 0), floats(3, 3, 0), floats(-1, 0, 0), floats(1, 1, 1)]
    query = floats(2, 1, 0)
    with index_of(tmp_path, *(Body(f"text {at}", vector) for at, vector in enumerate(vectors))) as db:
        hits = vector_hits(db, query, 10)
        assert vector_hits(db, query, 3) == hits[:3]
        assert vector_hits(db, query, 0) == []
        assert dimensions_of(db) == 3
    model = {at: exact_cosine(vector, query) for at, vector in enumerate(vectors)}
    assert numbers(hits) == sorted(model, key=lambda at: -(model[at] or 0))
    assert [hit.score for hit in hits] == pytest.approx([model[hit.unit_index] for hit in hits], abs=1e-6)


def test_what_has_no_distance_is_no_hit(tmp_path):
    odd = [floats(0, 0), floats(math.nan, 1), floats(math.inf, 1), floats(1, 2, 3), b"", b"abc", "text", None]
    bodies = [Body(f"odd {at}", vector) for at, vector in enumerate(odd) if vector not in (None, b"")]
    with index_of(tmp_path, *bodies, Body("none"), Body("good", floats(1, 1))) as db:
        assert [hit.text for hit in vector_hits(db, floats(1, 0), 100)] == ["good"]
        assert vector_hits(db, floats(0, 0), 100) == []
        assert vector_hits(db, floats(math.nan, 0), 100) == []


def test_equal_texts_share_a_vector_and_are_hits_of_their_own(tmp_path):
    near, far = floats(1, 0), floats(0, 1)
    bodies = [Body("far", far), Body("same", near), Body("twin", near), Body("same", near, "other"), Body("a", near)]
    with index_of(tmp_path, *bodies) as db:
        hits = vector_hits(db, near, 10)
        assert numbers(hits) == [1, 2, 3, 4, 0]
        assert [hit.material_id for hit in hits[:3]] == ["m", "m", "other"]
        assert numbers(vector_hits(db, near, 2)) == [1, 2]


def test_an_embedding_without_a_body_is_no_hit(tmp_path):
    path = write_index(tmp_path / "index.sqlite", [Body("text", floats(1, 0))])
    with closing(apsw.Connection(str(path))) as db:
        db.execute("INSERT INTO embedding VALUES ('orphan', ?, 0)", (floats(1, 0),))
    with opened(path) as db:
        assert numbers(vector_hits(db, floats(1, 0), 10)) == [0]


_NUMBER = st.floats(-8, 8, width=32).filter(lambda number: number == 0 or abs(number) > 1e-3)


@given(
    vectors=st.lists(st.tuples(_NUMBER, _NUMBER, _NUMBER), min_size=1, max_size=12),
    query=st.tuples(_NUMBER, _NUMBER, _NUMBER),
    count=st.integers(1, 14),
)
def test_vectors_are_ranked_as_the_model_ranks_them(tmp_path_factory, vectors, query, count):
    bodies = [Body(f"text {at}", floats(*vector)) for at, vector in enumerate(vectors)]
    with index_of(tmp_path_factory.mktemp("index"), *bodies) as db:
        hits = vector_hits(db, vector_blob(query), count)
    model = [exact_cosine(floats(*vector), floats(*query)) for vector in vectors]
    known = sorted((score for score in model if score is not None), reverse=True)
    assert [hit.score for hit in hits] == pytest.approx(known[:count], abs=1e-5)
    assert [hit.score for hit in hits] == pytest.approx([model[hit.unit_index] for hit in hits], abs=1e-5)
    assert len(set(numbers(hits))) == len(hits)


# --- both ----------------------------------------------------------------------------------------------------------


def _model_fusion(by_vector: list[int], by_words: list[int], alpha: float) -> dict[int, float]:
    scores: dict[int, float] = {}
    for weight, lane in ((alpha, by_vector), (1 - alpha, by_words)):
        for place, number in enumerate(lane):
            scores[number] = scores.get(number, 0) + weight / (61 + place)
    return scores


@pytest.mark.parametrize("alpha", [0, 0.25, 0.5, 0.9, 1])
def test_both_lanes_are_fused_by_rank(tmp_path, alpha):
    bodies = [Body(f"{'needle ' * (at % 4)}text {at:03d}", floats(1, at)) for at in range(40)]
    with index_of(tmp_path, *bodies) as db:
        lanes = numbers(vector_hits(db, floats(1, 20), 25)), numbers(bm25_hits(db, "needle", 25))
        hits = hybrid_hits(db, "needle", floats(1, 20), 5, alpha)
    model = _model_fusion(*lanes, alpha)
    best = sorted(model.values(), reverse=True)[:5]
    assert [hit.score for hit in hits] == pytest.approx(best, abs=1e-15)
    assert [hit.score for hit in hits] == pytest.approx([model[number] for number in numbers(hits)], abs=1e-15)


def test_each_lane_gives_five_times_as_many_candidates_as_hits_are_wanted(tmp_path):
    bodies = [Body(f"{'needle ' if at in (9, 10) else ''}text {at}", floats(1, at / 100)) for at in range(30)]
    with index_of(tmp_path, *bodies) as db:
        hits = hybrid_hits(db, "needle", floats(1, 0), 2)
    # By vector, 9 is the tenth of ten candidates and 10 is none.
    assert numbers(hits) == [9, 0]
    assert hits[0].score == pytest.approx(0.5 / 70 + 0.5 / 61)


def test_a_tie_between_the_lanes_goes_to_the_vector():
    by_vector, by_words = (
        [Hit(unit_id=unit, material_id="m", relative_path=None, unit_index=0, text=unit, score=9.0)]
        for unit in ("v", "w")
    )
    assert [(hit.unit_id, hit.score) for hit in fused(by_vector, by_words, 0.5)] == [("v", 0.5 / 61), ("w", 0.5 / 61)]


def test_a_vector_beyond_float32_is_refused():
    assert vector_blob([1, 0.5]) == floats(1, 0.5)
    with pytest.raises(OverflowError):
        vector_blob([1e39])


def test_the_examples_of_the_page_run():
    failed, tried = doctest.testfile(str(REPO / "docs" / "search.md"), module_relative=False, encoding="utf-8")
    assert (failed, tried > 10) == (0, True)


# --- the released application's own answers --------------------------------------------------------------------------


def _short_hash(text: str) -> str:
    return sha(text)[:16]


@pytest.fixture(scope="module")
def golden_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    with zipfile.ZipFile(GOLDEN / "basic.zip") as archive:
        archive.extractall(folder)
    (state,) = folder.rglob("redux.json")
    assert run("migrate", state.parent, "--to", folder / "library").status in (0, 1)
    return folder / "library"


def golden_answers() -> list[dict[str, Any]]:
    (answers,) = json.loads(gzip.decompress((GOLDEN / "search.json.gz").read_bytes())).values()
    return answers


def assert_agree(given: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]], query: str) -> None:
    """Hold hits (text, number, score) against recorded ones: only those of one score may change places."""
    assert [hit[2] for hit in given] == pytest.approx([hit[2] for hit in expected], rel=1e-6, abs=1e-7), query
    at = 0
    for _, group in groupby(expected, key=lambda hit: hit[2]):
        wanted = [tuple(hit[:2]) for hit in group]
        assert sorted(tuple(hit[:2]) for hit in given[at : at + len(wanted)]) == sorted(wanted), query
        at += len(wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["bm25", "vector", "hybrid"])
def test_the_released_store_answers_the_same(golden_library, mode):
    asked = [answer for answer in golden_answers() if answer["mode"] == mode]
    assert len(asked) == 189
    (index,) = golden_library.glob("KnowledgeBase/*/.cherry/index.sqlite")
    with opened(index) as db:
        for answer in asked:
            alpha = 0.5 if answer["alpha"] is None else answer["alpha"]
            vector = vector_blob(answer["vector"] or ())
            hits = {
                "bm25": partial(bm25_hits, db, answer["q"], answer["k"]),
                "vector": partial(vector_hits, db, vector, answer["k"]),
                "hybrid": partial(hybrid_hits, db, answer["q"], vector, answer["k"], alpha),
            }[mode]()
            given = [(_short_hash(hit.text), hit.unit_index, hit.score) for hit in hits]
            assert_agree(given, answer["hits"], answer["q"])


@pytest.mark.parametrize(
    "query",
    [
        "气压计 坏气压计 ferry",
        "坏气压计 气压计 ferry",
        "ferry坏气压计气压计 坏气压",
        "气压计 气压计 ferry 坏气压计 坏气压计 ferry",
    ],
)
def test_a_word_that_is_also_a_window_counts_once_as_in_the_released_store(golden_library, query):
    done = run("search", golden_library, query, "--mode", "bm25", "--raw", "--json")
    # Recorded from the released application for the first of these queries.
    assert done.document["hits"][0]["score"] == pytest.approx(4.2402, abs=5e-5)


def test_the_command_asks_the_index_alone_for_the_same(golden_library, tmp_path):
    for number, answer in enumerate(golden_answers()):
        if number % 40:
            continue
        options = ["--base", answer["base"], "--mode", answer["mode"], "-k", answer["k"], "--raw", "--json"]
        if answer["alpha"] is not None:
            options += ["--alpha", answer["alpha"]]
        if answer["vector"] is not None:
            (tmp_path / "vector.json").write_text(json.dumps(answer["vector"]), "utf-8")
            options += ["--vector", tmp_path / "vector.json"]
        done = run("search", golden_library, answer["q"], *options)
        assert done.status == 0, done.stderr
        given = [(_short_hash(hit["text"]), hit["unit_index"], hit["score"]) for hit in done.document["hits"]]
        assert_agree(given, answer["hits"], answer["q"])
        assert [hit["rank"] for hit in done.document["hits"]] == [*range(1, len(given) + 1)]


# --- damage and traces ---------------------------------------------------------------------------------------------


def test_a_unit_without_its_material_and_odd_values_are_still_found(tmp_path):
    path = write_index(tmp_path / "index.sqlite", [Body("lost text", floats(1, 0)), Body("kept text", floats(0, 1))])
    with closing(apsw.Connection(str(path))) as db:
        db.execute("DELETE FROM material")
        db.execute("DROP TRIGGER search_text_au")
        db.execute("UPDATE search_text SET text = CAST(x'6b657074ff' AS TEXT) WHERE text = 'kept text'")
    with opened(path) as db:
        hits = vector_hits(db, floats(1, 0), 10)
    assert [(hit.text, hit.relative_path) for hit in hits] == [("lost text", None), ("kept\ufffd", None)]


def test_a_file_in_wal_mode_is_read_with_its_log_and_without_a_trace(tmp_path):
    path = write_index(tmp_path / "base" / "index.sqlite", [Body("first text", floats(1, 0))])
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA journal_mode = WAL")
        add_body(db, 1, Body("second text", floats(1, 1)))
        before = snapshot(path.parent)
        with opened(path) as reader:
            assert numbers(vector_hits(reader, floats(1, 1), 10)) == [1, 0]
            assert numbers(bm25_hits(reader, "second", 10)) == [1]
        assert snapshot(path.parent) == before
    left = snapshot(path.parent)
    with opened(path) as reader:
        assert numbers(hybrid_hits(reader, "text", floats(1, 1), 10)) == [1, 0]
    assert snapshot(path.parent) == left
