"""``regraft compare``: an upgrade kept search intact, and where it did not, the first difference says so."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import faults
import pytest
from faults import REFUSED, line
from harness import GOLDEN, Outcome, golden, run, snapshot
from v1 import PLAIN, Library, Row, Source, base, carried, file, floats, migrate, sha, vector_of

from migrators import compare
from migrators.compare import RankedText, find_first_difference, measure_recall, rank_with_ties
from regraft.formats import large_text, vector_table
from regraft.formats.cherry_v2.index import search

TEXTS = [f"text number {at}" for at in range(30)]


@pytest.fixture
def upgraded(tmp_path: Path) -> Library:
    """Return a library of two bases made from ``v1`` beside it."""
    rows = [Row("L", text) for text in TEXTS]
    return carried(
        tmp_path,
        base("one", file("a", "L")),
        base("two", file("b", "M")),
        stores={"one": rows, "two": [Row("M", f"other {text}") for text in TEXTS[:4]]},
    )


def compared(library: Library, *options: object, v1: Path | None = None) -> Outcome:
    source = library.path.parent / "v1" if v1 is None else v1
    before = snapshot(library.path.parent)
    done = run("compare", source, library.path, *options)
    assert snapshot(library.path.parent) == before
    return done


def bases(done: Outcome) -> dict[str, dict[str, Any]]:
    return {told["legacy_id"]: told for told in done.document["bases"]}


def edited(library: Library, statement: str, *values: object) -> None:
    with closing(apsw.Connection(str(library.index_path("one")))) as db:
        db.execute(statement, values)


# --- fusion ------------------------------------------------------------------------------------------------------


def test_a_ranking_holds_a_text_once_and_all_that_tie_with_its_last():
    scores = [("b", 0.9), ("b", 0.9), ("a", 0.9), ("d", 0.5), ("c", 0.5), ("e", 0.4)]
    assert rank_with_ties(scores, 1) == [("a", 0.9), ("b", 0.9)]
    assert rank_with_ties(scores, 3) == [("a", 0.9), ("b", 0.9), ("c", 0.5), ("d", 0.5)]
    assert rank_with_ties(scores, 9) == [("a", 0.9), ("b", 0.9), ("c", 0.5), ("d", 0.5), ("e", 0.4)]
    assert rank_with_ties([], 3) == []


def test_recall_is_the_share_of_the_nearest_that_are_found():
    old = [("a", 0.9), ("b", 0.8), ("c", 0.7), ("d", 0.7)]
    assert measure_recall(old, old, 3) == 1
    assert measure_recall(old, [("a", 0.9), ("b", 0.8), ("d", 0.7)], 3) == 1
    assert measure_recall(old, [("a", 0.9), ("x", 0.8), ("y", 0.7)], 3) == pytest.approx(1 / 3)
    assert measure_recall(old[:2], old[:1], 10) == 0.5
    assert measure_recall([], old, 3) == 1


def test_the_first_difference_is_named_with_both_sides():
    old, new = [("a", 0.9), ("b", 0.8)], [("a", 0.9), ("c", 0.8)]
    second = RankedText(text_hash="b", score=0.8)
    assert find_first_difference(old, new) == (2, second, RankedText(text_hash="c", score=0.8))
    assert find_first_difference(old, old[:1]) == (2, second, None)
    assert find_first_difference([], new) == (1, None, RankedText(text_hash="a", score=0.9))
    assert find_first_difference(old, list(old)) is None


# --- an upgrade that kept everything -------------------------------------------------------------------------------


def test_an_upgrade_answers_as_v1_did(upgraded):
    done = compared(upgraded, "--json")
    assert done.status == 0, done.stdout
    told = bases(done)
    assert [told["one"]["outcome"], told["two"]["outcome"]] == ["equal", "equal"]
    assert told["one"]["id"] == upgraded.base_id("one")
    assert (told["one"]["texts"], told["one"]["queries"], told["one"]["recall"]) == (30, 20, 1.0)
    assert (told["two"]["texts"], told["two"]["queries"], told["two"]["lowest_recall"]) == (4, 4, 1.0)
    assert done.document["k"] == 10
    assert done.document["summary"]["queries"] == 24
    assert done.document["summary"]["recall"] == 1.0
    assert (done.document["source"]["kind"], done.document["target"]["kind"]) == ("v1-export", "library")
    assert "2 bases: 2 equal." in compared(upgraded).stdout


@pytest.mark.parametrize("piece", [3, 64])
def test_large_texts_are_compared_to_their_ends_piece_by_piece(tmp_path, monkeypatch, piece):
    """A search gives the beginnings of large texts, which may be the same."""
    texts = ["\U0001f600 many words, one", "\U0001f600 many words, two", "few"]
    library = carried(
        tmp_path, base("one", file("a", "L")), stores={"one": [Row("L", text) for text in texts]}, ddl=PLAIN
    )
    for module in (compare, vector_table):
        monkeypatch.setattr(module, "LARGE_BYTES", 4)
    monkeypatch.setattr(large_text, "PIECE_BYTES", piece)
    monkeypatch.setattr(search, "LONGEST_HIT", 8)
    done = compared(library, "--json")
    assert done.status == 0, done.stdout
    assert (bases(done)["one"]["texts"], bases(done)["one"]["queries"]) == (3, 3)
    edited(library, "UPDATE search_text SET text = replace(text, ', two', ', six')")
    parted = bases(compared(library, "--json"))["one"]["differences"]
    assert sha(texts[1]) in {found["v1"]["text_hash"] for found in parted}
    assert sha(texts[1].replace("two", "six")) in {found["v2"]["text_hash"] for found in parted}


@pytest.mark.thorough
@pytest.mark.parametrize("as_lines", [True, False])
def test_queries_are_read_as_lines_or_as_one_array(upgraded, tmp_path, as_lines):
    queries = [{"id": "first", "vector": [1, 0, 0, 0.5], "text": "a word"}, {"vector": [0.1, 0.2, 0.3, 0.4]}]
    path = tmp_path / "queries.json"
    path.write_text("\n".join(map(json.dumps, queries)) if as_lines else json.dumps(queries), "utf-8")
    done = compared(upgraded, "--queries", path, "--json", "-k", "3")
    assert done.status == 0
    assert [told["queries"] for told in done.document["bases"]] == [2, 2]


def test_one_base_is_compared_where_it_is_named(upgraded):
    done = compared(upgraded, "--base", "two", "--json", "--sample", "2")
    assert list(bases(done)) == ["two"]
    assert bases(done)["two"]["queries"] == 2
    assert compared(upgraded, "--base", "three").status == 2


@pytest.mark.thorough
def test_equal_texts_equal_vectors_and_odd_vectors_are_no_difference(tmp_path):
    same = vector_of("same")
    rows = [
        *(Row("L", text, same) for text in TEXTS[:12]),
        *(Row(loader, "twice", vector_of(loader)) for loader in ("M", "L", "N")),
        Row("L", "zero", floats(0, 0, 0, 0)),
        Row("M", "nan", floats(math.nan, 0, 0, 1)),
        Row("M", "short", floats(1, 2)),
        Row("nobody", "of no item", vector_of("of no item")),
        *(Row("N", text) for text in TEXTS[12:]),
    ]
    items = [file(f"i{loader}", loader) for loader in "LMN"]
    library = carried(tmp_path, base("one", *items), stores={"one": rows}, ddl=PLAIN)
    for count in (1, 5, 12, 100):
        done = compared(library, "--json", "--sample", "100", "-k", count)
        assert done.status == 0, done.stdout
        # 12 + 18 texts, "twice" and "zero", which has no direction to ask for; "nan" is not carried.
        assert (bases(done)["one"]["texts"], bases(done)["one"]["queries"]) == (32, 31)


def test_a_single_vector_file_is_compared_with_its_index(upgraded):
    done = run("compare", upgraded.path.parent / "v1" / "KnowledgeBase" / "one", upgraded.index_path("one"), "--json")
    assert done.status == 0, done.stdout
    told = done.document["bases"][0]
    assert (told["outcome"], told["id"], told["texts"]) == ("equal", upgraded.base_id("one"), 30)
    paths = (upgraded.path.parent / "v1" / "KnowledgeBase" / "one", upgraded.path)
    assert run("compare", *paths, "--base", upgraded.base_id("one")).status == 0
    assert "two" in line(run("compare", *paths, "--base", "two"), REFUSED)


# --- differences ---------------------------------------------------------------------------------------------------


def _changed_vector(library: Library) -> None:
    edited(
        library,
        "UPDATE embedding SET vector_blob = ? WHERE embedding_text_hash = ?",
        floats(-9, 1, 1, 1),
        sha(TEXTS[0]),
    )


def _lost_vector(library: Library) -> None:
    edited(library, "DELETE FROM embedding WHERE embedding_text_hash = ?", sha(TEXTS[0]))


def _lost_text(library: Library) -> None:
    edited(library, "DELETE FROM search_text WHERE text = ?", TEXTS[0])


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [_changed_vector, _lost_vector, _lost_text])
def test_a_text_that_is_not_found_any_more_is_a_difference(upgraded, tmp_path, damage: Callable[[Library], None]):
    numbers = list(memoryview(vector_of(TEXTS[0])).cast("f"))
    path = tmp_path / "queries.jsonl"
    path.write_text(json.dumps({"id": "mine", "vector": numbers}), "utf-8")
    damage(upgraded)
    done = compared(upgraded, "--json", "--queries", path, "--base", "one")
    assert done.status == 1
    told = bases(done)["one"]
    assert (told["outcome"], told["recall"], told["lowest_recall"]) == ("different", 0.9, 0.9)
    parted = told["differences"][0]
    assert (parted["query"], parted["rank"], parted["recall"]) == ("mine", 1, 0.9)
    assert parted["v1"] == {"text_hash": sha(TEXTS[0]), "score": pytest.approx(1, abs=1e-6)}
    assert parted["v2"]["text_hash"] != sha(TEXTS[0])
    text = compared(upgraded, "--queries", path, "--base", "one")
    assert (text.status, "mine, rank 1: v1 has" in text.stdout) == (1, True)
    assert sha(TEXTS[0])[:12] in text.stdout
    assert compared(upgraded, "--queries", path, "--fail-on", "never").status == 0


def test_a_text_that_v1_did_not_have_is_a_difference(upgraded):
    edited(upgraded, "DROP TRIGGER search_text_au")
    edited(upgraded, "UPDATE search_text SET text = 'new' WHERE text = ?", TEXTS[3])
    told = bases(compared(upgraded, "--json", "-k", "30"))["one"]
    assert (told["outcome"], told["lowest_recall"]) == ("different", pytest.approx(29 / 30))


@pytest.mark.thorough
def test_bases_without_an_index_and_failed_ones_are_told_apart(tmp_path):
    source = Source([base("one", file("a", "L")), base("lost", file("b", "M"))], stores={"one": [Row("L", "text")]})
    library = migrate(source.write(tmp_path / "v1"), tmp_path / "library")
    done = compared(library, "--json")
    assert done.status == 1
    assert {name: told["outcome"] for name, told in bases(done).items()} == {"one": "equal", "lost": "failed"}
    assert bases(done)["lost"]["problem"] == "it would fail to migrate (missing_vector_store)"
    assert compared(library, "--fail-on", "error").status == 0
    other = carried(tmp_path / "other", base("three"), base("four"))
    missing = compared(other, "--json", "--fail-on", "error", v1=tmp_path / "v1")
    assert missing.status == 1
    assert {name: told["outcome"] for name, told in bases(missing).items()} == {"one": "missing", "lost": "failed"}


def test_a_base_without_any_row_is_named(tmp_path):
    library = carried(
        tmp_path,
        base("one", file("a", "L")),
        base("two"),
        stores={"one": [Row("L", "a")], "two": [Row("STRAY", "of no item")]},
    )
    done = compared(library, "--json")
    assert done.status in (0, 1)
    assert bases(done)["one"]["outcome"] == "equal"
    empty = bases(done)["two"]
    assert (empty["outcome"], empty["queries"]) == ("not-compared", 0), empty


def test_queries_of_another_dimension_compare_nothing(upgraded, tmp_path):
    path = tmp_path / "queries.jsonl"
    path.write_text('{"vector": [1, 2, 3]}')
    done = compared(upgraded, "--json", "--queries", path)
    assert done.status == 1
    assert {told["problem"] for told in done.document["bases"]} == {"no query has 4 dimensions"}
    assert done.document["summary"]["recall"] is None


def test_an_index_of_another_dimension_is_a_difference(upgraded):
    edited(upgraded, "UPDATE embedding SET vector_blob = x'0000803f'")
    told = bases(compared(upgraded, "--json"))["one"]
    assert (told["outcome"], told["problem"]) == ("different", "the index has vectors of a different length")


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "it has no query"),
        ("[]", "it has no query"),
        ("nonsense", "not queries"),
        ('{"id": "no vector"}', "not queries"),
        ('{"vector": [1e39]}', "not queries"),
        ('{"vector": ["1"]}', "not queries"),
    ],
)
def test_what_is_no_list_of_queries_is_refused(upgraded, tmp_path, content, said):
    path = tmp_path / "queries.jsonl"
    path.write_text(content, "utf-8")
    done = compared(upgraded, "--queries", path)
    assert (done.status, said in done.stderr, done.stdout) == (2, True, "")


def test_the_sides_of_a_comparison_are_not_taken_for_one_another(upgraded):
    source = upgraded.path.parent / "v1"
    for old in (upgraded.path, source):
        message = faults.said(run("compare", old, source, "--json"), "NotSearchable", faults.REFUSED)
        assert message.startswith(f"{source}: this is a v1 export folder, which cannot be searched; V2 must be a v2")
    done = run("compare", upgraded.path, upgraded.path, "--map-model", "a::b=c::d", "--json")
    assert "only apply to v1 data" in faults.said(done, "WrongUsage", faults.REFUSED)
    assert compared(upgraded, "--queries", upgraded.path / "nowhere").status == 2


@pytest.mark.thorough
def test_a_damaged_index_is_told_of_its_base_and_the_others_are_compared(upgraded):
    index = upgraded.index_path("one")
    whole = index.read_bytes()
    index.write_bytes(whole[:8192] + b"\xa5" * (len(whole) - 8192))
    done = compared(upgraded, "--json")
    assert (done.status, bases(done)["one"]["outcome"], bases(done)["two"]["outcome"]) == (1, "missing", "equal")
    index.write_bytes(whole)
    edited(upgraded, "DROP TABLE embedding")
    done = compared(upgraded, "--json", "--fail-on", "error")
    assert (done.status, bases(done)["one"]["outcome"], bases(done)["two"]["outcome"]) == (1, "damaged", "equal")
    assert str(index) in bases(done)["one"]["problem"]
    assert done.document["summary"]["by_outcome"]["damaged"] == 1
    text = compared(upgraded)
    assert (text.status, text.stderr) == (1, "")
    assert f"damaged      Base one: {index}: cannot be read" in text.stdout
    assert "2 bases: 1 equal, 1 damaged." in text.stdout
    assert compared(upgraded, "--fail-on", "never").status == 0


# --- two stores of the current layout --------------------------------------------------------------------------------


@pytest.fixture
def copied(upgraded: Library, tmp_path: Path) -> Path:
    """Return a copy of the library."""
    copy = tmp_path / "copy"
    shutil.copytree(upgraded.path, copy)
    return copy


def both(upgraded: Library, copy: Path, *options: object) -> Outcome:
    before = snapshot(upgraded.path.parent)
    done = run("compare", upgraded.path, copy, *options)
    assert snapshot(upgraded.path.parent) == before
    return done


def by_id(done: Outcome) -> dict[str, dict[str, Any]]:
    return {told["id"]: told for told in done.document["bases"]}


def as_another_store(copy: Path, **ids: str) -> None:
    """Give bases of a library other ids, and take away what it knows of v1's."""
    (copy / "report.json").unlink()
    with closing(apsw.Connection(str(copy / "catalog.sqlite"))) as db:
        for old, new in ids.items():
            db.execute("UPDATE knowledge_base SET id = ? WHERE id = ?", (new, old))
            db.execute("UPDATE knowledge_item SET base_id = ? WHERE base_id = ?", (new, old))
    for old, new in ids.items():
        (copy / "KnowledgeBase" / old).rename(copy / "KnowledgeBase" / new)


@pytest.mark.thorough
def test_two_libraries_are_compared(upgraded, copied):
    done = both(upgraded, copied, "--json")
    assert done.status == 0, done.stdout
    told = bases(done)
    assert {name: (one["outcome"], one["texts"], one["queries"]) for name, one in told.items()} == {
        "one": ("equal", 30, 20),
        "two": ("equal", 4, 4),
    }
    assert all(one["compared_with"] == one["id"] for one in told.values())
    only = both(upgraded, copied, "--json", "--base", "Base two")
    assert list(bases(only)) == ["two"]
    assert both(upgraded, copied, "--base", "nobody").status == 2


@pytest.mark.thorough
def test_a_lost_vector_is_a_difference_between_two_libraries(upgraded, copied):
    index = copied / "KnowledgeBase" / upgraded.base_id("one") / ".cherry" / "index.sqlite"
    with closing(apsw.Connection(str(index))) as db:
        db.execute("DELETE FROM embedding WHERE embedding_text_hash = ?", (sha(TEXTS[0]),))
    done = both(upgraded, copied, "--json", "--sample", "100")
    assert (done.status, bases(done)["one"]["outcome"], bases(done)["two"]["outcome"]) == (1, "different", "equal")
    text = both(upgraded, copied, "--sample", "100").stdout
    assert "the first has" in text
    assert "the second has" in text


def test_bases_of_other_ids_are_matched_by_their_names(upgraded, copied):
    other = "5b0f5be5-6c1b-4b6e-9a51-0c9b8f8a7d10"
    as_another_store(copied, **{upgraded.base_id("one"): other})
    done = both(upgraded, copied, "--json")
    assert done.status == 0, done.stdout
    assert by_id(done)[upgraded.base_id("one")]["compared_with"] == other


def test_a_v1_id_goes_before_an_id_and_an_id_before_a_name(upgraded, copied):
    """In the copy the report says that v1's base "one" is another base, and both bases have the other's name."""
    one, two = upgraded.base_id("one"), upgraded.base_id("two")
    with closing(apsw.Connection(str(copied / "catalog.sqlite"))) as db:
        db.execute("UPDATE knowledge_base SET name = iif(name = 'Base one', 'Base two', 'Base one')")
    assert {old: told["compared_with"] for old, told in by_id(both(upgraded, copied, "--json")).items()} == {
        one: one,
        two: two,
    }
    report = json.loads((copied / "report.json").read_text("utf-8"))
    report["ids"]["bases"] = {"one": two, "two": one}
    (copied / "report.json").write_text(json.dumps(report), "utf-8")
    swapped = by_id(both(upgraded, copied, "--json"))
    assert (swapped[one]["compared_with"], swapped[two]["compared_with"]) == (two, one)


def test_a_base_that_the_second_store_lacks_is_missing(upgraded, copied):
    as_another_store(copied)
    with closing(apsw.Connection(str(copied / "catalog.sqlite"))) as db:
        db.execute("DELETE FROM knowledge_item WHERE base_id = ?", (upgraded.base_id("two"),))
        db.execute("DELETE FROM knowledge_base WHERE id = ?", (upgraded.base_id("two"),))
    shutil.rmtree(copied / "KnowledgeBase" / upgraded.base_id("two"))
    done = both(upgraded, copied, "--json")
    told = by_id(done)[upgraded.base_id("two")]
    assert (done.status, told["outcome"], told["compared_with"]) == (1, "missing", None)


@pytest.mark.thorough
@pytest.mark.parametrize("side", ["first", "second"])
def test_one_damaged_base_of_either_store_is_told_and_the_others_are_compared(upgraded, copied, side):
    root = upgraded.path if side == "first" else copied
    index = root / "KnowledgeBase" / upgraded.base_id("one") / ".cherry" / "index.sqlite"
    with closing(apsw.Connection(str(index))) as db:
        db.execute("DROP TABLE embedding")
    done = both(upgraded, copied, "--json", "--fail-on", "error")
    told = by_id(done)
    assert done.status == 1
    assert (told[upgraded.base_id("one")]["outcome"], told[upgraded.base_id("two")]["outcome"]) == ("damaged", "equal")
    assert str(index) in told[upgraded.base_id("one")]["problem"]


def test_a_failed_base_and_one_without_an_index_in_the_first_store_are_told_apart(upgraded, copied):
    for name in ("one", "two"):
        upgraded.index_path(name).unlink()
    with closing(apsw.Connection(str(upgraded.path / "catalog.sqlite"))) as db:
        db.execute("UPDATE knowledge_base SET status = 'failed', error = 'x' WHERE id = ?", (upgraded.base_id("two"),))
    done = both(upgraded, copied, "--json")
    told = by_id(done)
    assert (done.status, told[upgraded.base_id("one")]["outcome"]) == (1, "damaged")
    assert told[upgraded.base_id("two")]["outcome"] == "failed"


def test_a_base_folder_is_compared_with_an_index_file(upgraded, copied):
    folder = upgraded.path / "KnowledgeBase" / upgraded.base_id("one")
    index = copied / "KnowledgeBase" / upgraded.base_id("one") / ".cherry" / "index.sqlite"
    done = run("compare", folder, index, "--json")
    assert (done.status, [one["outcome"] for one in done.document["bases"]]) == (0, ["equal"])


def test_queries_of_another_length_compare_nothing_in_two_stores_either(upgraded, copied, tmp_path):
    queries = tmp_path / "queries.json"
    queries.write_text('[{"vector": [1, 2]}]')
    done = both(upgraded, copied, "--json", "--queries", queries)
    assert {(one["outcome"], one["problem"]) for one in done.document["bases"]} == {
        ("not-compared", "no query has 4 dimensions")
    }


# --- what the application itself wrote -----------------------------------------------------------------------------


@golden
def test_the_upgrade_of_the_application_answers_as_v1_did():
    """The application gives bases ids of its own making: the only base of either side is the same one."""
    profile = GOLDEN / "profile_upgraded"
    before = snapshot(profile)
    done = run("compare", profile, profile, "--kind", "v1-export", "--json", "--sample", "100")
    assert done.status == 0, done.stdout
    assert done.document["bases"][0]["outcome"] == "equal"
    assert done.document["bases"][0]["queries"] > 20
    assert snapshot(profile) == before
