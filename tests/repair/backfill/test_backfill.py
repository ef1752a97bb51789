"""``regraft backfill``: what lacks a vector gets one, nothing else is sent or written, and all of it can be undone."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from fault_server import FaultServer, Reply, Request, answer, changed, poisoned, rate_limited, right, vector_of
from faults import line, said, untouched
from harness import run
from lacking import (
    COMPARED,
    KB,
    LACKING,
    MODEL,
    OTHER,
    OTHER_TEXTS,
    TEXTS,
    TWICE,
    all_vectors,
    backfill,
    configured,
    library,
    scope_of,
    taken_away,
    vectors,
)
from planted_v2 import NEW_BASE, index, run_sql
from profiles import start_application
from toys import contents, value

import regraft
from regraft import identity
from regraft.disk import sqlite
from regraft.embedders import protocol
from regraft.report.progress import SilentProgress
from regraft.testing import DAMAGES
from repair.embedding.report import BackfillReport

pytest.importorskip("openai", reason="the client of embedding servers is not installed")

CATALOG = "catalog.sqlite"
#: What is sent to be filled in, in any of the tests.
FILLED = {*LACKING, *OTHER_TEXTS["page"]}
OTHER_ROW = f"UPDATE knowledge_base SET {{}} WHERE id = '{OTHER}'"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return taken_away(shutil.copytree(whole, tmp_path / "library"))


def tokens(texts: list[str]) -> int:
    return sum(map(protocol.estimate, texts))


def batches(server: FaultServer) -> list[list[str]]:
    """Return what was sent in each request but those of the probe."""
    return [request.texts for request in server.requests if not set(request.texts).isdisjoint(FILLED)]


# --- filling ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_what_lacks_a_vector_gets_the_one_of_the_server_and_nothing_else_changes(
    store: Path, server: FaultServer, config: Path
) -> None:
    before = contents(store)
    done = backfill(store, config)
    assert done.status == 0
    assert vectors(store) == all_vectors()
    # Some that already have a vector are compared, and the rest is sent once, in order.
    assert [request.texts for request in server.requests[:2]] == [COMPARED[:3], COMPARED[3:]]
    assert batches(server) == [LACKING[:3], LACKING[3:6], LACKING[6:]]
    assert run("check", store, "--json", "--deep").document["findings"] == []
    after = contents(store)
    name = index(store).relative_to(store).as_posix()
    assert {**after[name], "embedding": None} == {**before[name], "embedding": None}
    assert {**after, name: None} == {**before, name: None}
    assert [path.name for path in (store / ".regraft").iterdir() if path.is_file()] == ["ledger.sqlite"]


def test_the_document(store: Path, config: Path) -> None:
    done = backfill(store, config)
    document = done.document
    assert list(document) == [
        "regraft", "source", "target", "run", "embedder", "bases", "scopes", "actions", "left", "undo",
        "suggestion",
    ]  # fmt: skip
    assert document["embedder"] == {"name": "mine", "model": "embed-small"}
    assert [base["name"] for base in document["bases"]] == ["Base kb", "Base other"]
    scope = scope_of(done)
    times = scope.pop("started_at"), scope.pop("completed_at")
    assert document["run"]["started_at"] <= times[0] <= times[1] <= document["run"]["finished_at"]
    count = len(LACKING)
    assert scope == {
        "scope": KB,
        "name": "Base kb",
        "model_id": MODEL,
        "dimensions": 8,
        "eligible": len(TEXTS),
        "skipped_ready": len(TEXTS) - count,
        "processed_pending": count,
        "processed_stale": 0,
        "retried_failed": 0,
        "newly_ready": count,
        "shared": 0,
        "reused": 0,
        "reused_from": [],
        "ready": len(TEXTS),
        "failed": 0,
        "failures": [],
        "stopped": None,
        "requests": 3,
        # The server counts characters.
        "tokens": sum(map(len, LACKING)),
        "cost": None,
        "planned": {
            "texts": count,
            "tokens": tokens(LACKING),
            "requests": 3,
            "cost": None,
            "currency": "USD",
            "shared": 0,
            "reused": 0,
            "compared": 0,
        },
        "probe": {
            "texts": len(COMPARED),
            "cosine": pytest.approx(1, abs=1e-6),
            "requests": 2,
            "tokens": sum(map(len, COMPARED)),
            "remembered": False,
        },
    }
    assert scope_of(done, OTHER)["started_at"] is not None
    assert [(action["action"], action["base"], action["count"]) for action in document["actions"]] == [
        ("embed", KB, count)
    ]
    assert document["left"] == []
    assert document["undo"] == document["run"]["id"]


@pytest.mark.thorough
def test_equal_texts_of_two_bases_are_paid_for_once(store: Path, server: FaultServer, config: Path) -> None:
    text, key = LACKING[0], identity.text_hash(LACKING[0])
    old = OTHER_TEXTS["page"][0]
    run_sql(
        index(store, OTHER),
        f"UPDATE search_text SET text = '{text}', embedding_text_hash = '{key}' WHERE text = '{old}'",
    )
    before = contents(store)
    done = backfill(store, config)
    assert done.status == 0
    assert Counter(server.texts)[text] == 1
    scope = scope_of(done, OTHER)
    assert (scope["newly_ready"], scope["shared"], scope["requests"], scope["processed_pending"]) == (1, 1, 0, 0)
    assert vectors(store, OTHER)[text] == vector_of(text)
    assert run("undo", store, "-q").status == 0
    assert contents(store) == before
    assert "1 of them copied from identical texts" in run("backfill", store, "--config", config).stdout


@pytest.mark.thorough
def test_a_second_run_sends_nothing(store: Path, server: FaultServer, config: Path) -> None:
    backfill(store, config)
    sent = len(server.requests)
    with untouched(store):
        again = backfill(store, config)
        assert "Nothing to do: nothing was sent" in run("backfill", store, "--config", config).stdout
    assert (again.status, again.document["actions"], again.document["undo"]) == (0, [], None)
    assert scope_of(again)["skipped_ready"] == len(TEXTS)
    assert len(server.requests) == sent


@pytest.mark.thorough
def test_as_text(store: Path, tmp_path: Path, server: FaultServer) -> None:
    config = configured(tmp_path / "priced.yaml", server, price_per_million_tokens=1000, currency="EUR")
    planned = run("backfill", store, "--config", config, "--dry-run").stdout
    done = run("backfill", store, "--config", config)
    count, ready = len(LACKING), len(TEXTS) - len(LACKING)
    assert f"  {ready} of {len(TEXTS)} texts have a vector\n" in planned
    cost = f"{tokens(LACKING) / 1000:.2g}"
    assert f"  embed {count} texts: about {tokens(LACKING)} tokens in 3 requests, about {cost} EUR\n" in planned
    assert planned.endswith("Dry run: nothing was sent, and nothing was written.\n")
    written = f"  {count} vectors written; {len(TEXTS)} of {len(TEXTS)} texts have one now; {ready} had one before\n"
    assert written in done.stdout
    paid = sum(map(len, LACKING))
    assert f"  3 requests, {paid} tokens, {paid / 1000:.2f} EUR\n" in done.stdout
    assert done.stdout.endswith(f"To undo: regraft undo {store}\n")


def test_a_dry_run_touches_and_sends_nothing_and_tells_what_a_run_sends(
    store: Path, tmp_path: Path, server: FaultServer
) -> None:
    taken_away(store, OTHER_TEXTS["page"], OTHER)
    # Batches end by their tokens, too.
    batch = {"texts": 4, "tokens": tokens(LACKING[:2])}
    config = configured(tmp_path / "tokens.yaml", server, batch=batch)
    for options in ((), ("--limit", 5), ("--max-requests", 3), ("--base", OTHER)):
        copy = shutil.copytree(store, tmp_path / "copy")
        with untouched(copy):
            planned = backfill(copy, config, "--dry-run", *options)
            assert server.requests == []
        done = backfill(copy, config, *options)
        for one, other in zip(planned.document["scopes"], done.document["scopes"], strict=True):
            assert one["planned"] == other["planned"]
            assert one["planned"]["texts"] == other["newly_ready"]
            assert one["planned"]["requests"] == other["requests"]
        probes = sum(scope["probe"]["requests"] for scope in done.document["scopes"])
        assert len(server.requests) == probes + sum(scope["requests"] for scope in done.document["scopes"])
        server.requests.clear()
        shutil.rmtree(copy)


def test_several_texts_and_batches_at_once(store: Path, tmp_path: Path, server: FaultServer) -> None:
    config = configured(tmp_path / "parallel.yaml", server, batch={"texts": 1}, parallel=4)
    assert backfill(store, config).status == 0
    assert vectors(store) == all_vectors()
    assert Counter(server.texts) == Counter(TEXTS)


def test_a_text_of_several_units_is_sent_once(store: Path, server: FaultServer, config: Path) -> None:
    taken_away(store, [TWICE])
    assert backfill(store, config).status == 0
    assert server.texts.count(TWICE) == 1
    units = "SELECT count(*) FROM search_text WHERE embedding_text_hash = '{}'"
    assert value(store, index(store).relative_to(store).as_posix(), units.format(identity.text_hash(TWICE))) == 2


def test_what_has_a_vector_is_not_written_over(store: Path, server: FaultServer, config: Path) -> None:
    """The vectors that are there may be a little other than the server's."""
    kept = {text: struct.pack("<8f", *(x * 1.5 for x in struct.unpack("<8f", vector_of(text)))) for text in TEXTS}
    for text in set(TEXTS) - set(LACKING):
        blob = kept[text].hex()
        key = identity.text_hash(text)
        run_sql(index(store), f"UPDATE embedding SET vector_blob = x'{blob}' WHERE embedding_text_hash = '{key}'")
    assert backfill(store, config).status == 0
    assert vectors(store) == {text: vector_of(text) if text in LACKING else kept[text] for text in TEXTS}


UNUSABLE = {
    "zero": bytes(32),
    "NaN": struct.pack("<8f", *[1.0] * 7, float("nan")),
    "infinity": struct.pack("<8f", *[1.0] * 7, float("inf")),
    "odd length": b"odd",
    "another model": struct.pack("<9f", *[1.0] * 9),
}


def test_vectors_that_no_search_can_use_are_replaced_and_come_back(
    store: Path, server: FaultServer, config: Path
) -> None:
    good = [text for text in TEXTS if text not in LACKING]
    bad = dict(zip(LACKING, UNUSABLE.values(), strict=False))
    for text, blob in bad.items():
        key = identity.text_hash(text)
        run_sql(index(store), f"INSERT INTO embedding VALUES ('{key}', x'{blob.hex()}', 1)")
    before = contents(store)
    done = backfill(store, config)
    assert done.status == 0
    scope = scope_of(done)
    assert (scope["processed_stale"], scope["newly_ready"]) == (len(bad), len(LACKING))
    assert (scope["processed_pending"], scope["skipped_ready"]) == (len(LACKING) - len(bad), len(good))
    assert vectors(store) == all_vectors()
    assert run("undo", store, "-q").status == 0
    assert contents(store) == before


@pytest.mark.thorough
def test_undo_takes_back_what_was_written_and_a_later_run_writes_it_again(
    store: Path, server: FaultServer, config: Path
) -> None:
    before = contents(store)
    for _ in range(2):
        done = backfill(store, config)
        assert vectors(store) == all_vectors()
        with untouched(store):
            assert run("undo", store, "--dry-run").status == 0
        assert run("undo", store, done.document["undo"], "-q").status == 0
        assert contents(store) == before


def test_the_history(store: Path, config: Path) -> None:
    done = backfill(store, config)
    [entry] = run("history", store, "--json").document["runs"]
    assert (entry["id"], entry["command"], entry["status"]) == (done.document["undo"], "backfill", "finished")
    assert entry["actions"] == done.document["actions"]
    assert (entry["undo"]["state"], entry["undo"]["changes"]) == ("possible", 1)


@pytest.mark.thorough
@pytest.mark.parametrize("inside", ["KnowledgeBase", f"KnowledgeBase/{KB}", f"KnowledgeBase/{KB}/.cherry/index.sqlite"])
def test_any_part_of_the_store(inside: str, store: Path, config: Path) -> None:
    assert backfill(store / inside, config).status == 0
    assert vectors(store) == all_vectors()


def test_an_index_alone(store: Path, tmp_path: Path, config: Path) -> None:
    alone = shutil.copyfile(index(store), tmp_path / "called anything.db")
    done = backfill(alone, config)
    [scope] = done.document["scopes"]
    assert (done.status, scope["model_id"], scope["newly_ready"]) == (0, None, len(LACKING))
    assert run("undo", alone, "-q").status == 0


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_limit_of_texts(store: Path, server: FaultServer, config: Path) -> None:
    taken_away(store, OTHER_TEXTS["page"], OTHER)
    done = backfill(store, config, "--limit", 5)
    assert batches(server) == [LACKING[:3], LACKING[3:5]]
    assert [scope["stopped"] for scope in done.document["scopes"]] == ["--limit 5 is reached"] * 2
    assert done.status == 0
    again = run("backfill", store, "--config", config, "--limit", 1)
    assert "  stopped: --limit 1 is reached; run the same command again to continue\n" in again.stdout
    assert vectors(store).keys() & set(LACKING) == set(LACKING[:6])
    assert [scope["stopped"] for scope in backfill(store, config).document["scopes"]] == [None, None]
    assert (vectors(store), vectors(store, OTHER)) == (all_vectors(), all_vectors(OTHER_TEXTS["page"]))


def test_a_limit_that_is_just_enough_stops_nothing(store: Path, config: Path) -> None:
    assert scope_of(backfill(store, config, "--limit", len(LACKING)))["stopped"] is None


@pytest.mark.thorough
def test_a_limit_of_requests(store: Path, server: FaultServer, config: Path) -> None:
    done = backfill(store, config, "--max-requests", 2)
    assert batches(server) == [LACKING[:3], LACKING[3:6]]
    assert scope_of(done)["stopped"] == "--max-requests 2 is reached"
    again = backfill(store, config, "--max-requests", 2, "--no-probe")
    assert (server.requests[-1].texts, scope_of(again)["stopped"]) == (LACKING[6:], None)
    assert vectors(store) == all_vectors()


def test_repetitions_count_as_requests(store: Path, server: FaultServer, config: Path) -> None:
    server.behave = [right, right, rate_limited(0)]
    done = backfill(store, config, "--max-requests", 3)
    assert batches(server) == [LACKING[:3], LACKING[:3], LACKING[3:6]]
    assert (scope_of(done)["requests"], scope_of(done)["newly_ready"]) == (3, 6)


def test_a_limit_of_cost(store: Path, tmp_path: Path, server: FaultServer) -> None:
    config = configured(tmp_path / "priced.yaml", server, price_per_million_tokens=1_000_000)
    # A request is estimated, and counted by the server afterwards.
    limit = sum(map(len, COMPARED)) + sum(map(len, LACKING[:3])) + tokens(LACKING[3:6]) - 1
    done = backfill(store, config, "--max-cost", limit)
    assert batches(server) == [LACKING[:3]]
    scope = scope_of(done)
    assert (scope["stopped"], scope["cost"]) == (f"--max-cost {limit} could be exceeded", sum(map(len, LACKING[:3])))
    assert scope["cost"] <= limit


def test_the_progress_says_what_was_spent(store: Path, server: FaultServer, config: Path, tmp_path: Path) -> None:
    class Heard(SilentProgress):
        labels: list[str]

        def at(self, label: str) -> None:
            self.labels.append(label)

    for name, price, unit in (("free", {}, " tokens"), ("priced", {"price_per_million_tokens": 1e6}, " USD")):
        heard = Heard()
        heard.labels = []
        copy = tmp_path / name
        shutil.copytree(store, copy)
        made = regraft.backfill(copy, bases=[KB], config=configured(config, server, **price), progress=heard)
        assert isinstance(made, BackfillReport)
        [scope] = made.scopes
        paid = scope.tokens + scope.probe.tokens
        spent = [label.partition(" · ")[0] for label in heard.labels if " · " in label]
        numbers = [float(one.removesuffix(unit).replace(",", "")) for one in spent]
        assert numbers == sorted(numbers) and numbers[-1] == paid


def test_a_limit_of_cost_needs_a_price(store: Path, server: FaultServer, config: Path) -> None:
    with untouched(store):
        done = backfill(store, config, "--max-cost", 1)
    assert "--max-cost needs the price of embedder mine" in said(done, "WrongUsage", 2)
    assert server.requests == []


# --- which bases, which model ----------------------------------------------------------------------------------------


def test_one_base(store: Path, server: FaultServer, config: Path) -> None:
    taken_away(store, OTHER_TEXTS["page"], OTHER)
    done = backfill(store, config, "--base", KB)
    assert [scope["scope"] for scope in done.document["scopes"]] == [KB]
    assert vectors(store, OTHER) == {}
    assert not set(OTHER_TEXTS["page"]).intersection(server.texts)
    said(backfill(store, config, "--base", "x"), "BaseUnknown", 2)


def test_bases_of_other_models_are_left(store: Path, server: FaultServer, config: Path) -> None:
    taken_away(store, OTHER_TEXTS["page"], OTHER)
    run_sql(store / CATALOG, OTHER_ROW.format("embedding_model_id = 'acme::embed-large'"))
    done = backfill(store, config)
    assert [scope["scope"] for scope in done.document["scopes"]] == [KB]
    [left] = done.document["left"]
    assert (left["finding"], left["base"], left["severity"]) == ("base.model", OTHER, "note")
    assert "embed-large" in left["reason"]
    assert done.status == 0
    assert vectors(store, OTHER) == {}


def test_a_base_of_another_model_is_refused_where_it_is_meant(
    store: Path, tmp_path: Path, server: FaultServer, config: Path
) -> None:
    run_sql(store / CATALOG, OTHER_ROW.format("embedding_model_id = 'acme::embed-large'"))
    with untouched(store):
        message = said(backfill(store, config, "--base", OTHER), "ModelDiffers", 2)
        assert "model_ids" in message
        assert "the model of Base other is acme::embed-large" in message
        # So it is where all bases are of other models.
        all_others = configured(tmp_path / "others.yaml", server, model="embed-tiny")
        said(backfill(store, all_others), "ModelDiffers", 2)
        assert server.requests == []


def test_a_base_that_failed_hides_no_wrong_embedder(store: Path, server: FaultServer, config: Path) -> None:
    """Where none of the others is of its model; else there is just nothing left to do for it."""
    run_sql(
        store / CATALOG,
        f"UPDATE knowledge_base SET status = 'failed', error = 'x', embedding_model_id = 'a::b' WHERE id = '{KB}'",
        OTHER_ROW.format("embedding_model_id = 'acme::embed-large'"),
    )
    with untouched(store):
        assert "Base other is acme::embed-large" in said(backfill(store, config), "ModelDiffers", 2)
    run_sql(store / CATALOG, f"UPDATE knowledge_base SET embedding_model_id = '{MODEL}' WHERE id = '{KB}'")
    assert {left["finding"] for left in backfill(store, config).document["left"]} == {"base.failed", "base.model"}
    assert server.requests == []


def test_a_model_that_is_called_otherwise(store: Path, tmp_path: Path, server: FaultServer) -> None:
    config = configured(tmp_path / "alias.yaml", server, model="small-v1", model_ids=[MODEL])
    assert backfill(store, config).status == 0
    assert server.requests[0].body["model"] == "small-v1"
    assert vectors(store) == all_vectors()


@pytest.mark.thorough
def test_the_embedder_whose_model_fits_need_not_be_named(store: Path, tmp_path: Path, server: FaultServer) -> None:
    def embedder(model: str) -> dict[str, Any]:
        return {"provider": "openai", "base_url": server.url, "model": model}

    config = tmp_path / "several.yaml"

    def write(**models: str) -> Path:
        config.write_text(
            yaml.safe_dump({"embedders": {name: embedder(model) for name, model in models.items()}}), "utf-8"
        )
        return config

    with untouched(store):
        missing = said(backfill(store, tmp_path / "empty" / ".." / "no.yaml"), "SourceNotFound", 2)
        assert "no.yaml" in missing
        assert "it has no embedders" in said(backfill(store, write()), "EmbedderUnnamed", 2)
        message = said(backfill(store, write(one="embed-small", two="embed-small", x="y")), "EmbedderUnnamed", 2)
        assert "2 embedders of 3 fit; give --embedder, one of one, two." in message
        assert "one of x, y" in said(backfill(store, write(x="x", y="y")), "EmbedderUnnamed", 2)
        said(backfill(store, config, "--embedder", "z"), "EmbedderUnknown", 2)
    assert backfill(store, write(large="embed-large", small="embed-small")).status == 0
    taken_away(store)
    assert backfill(store, write(one="embed-small", two="embed-small"), "--embedder", "two").status == 0


# --- whether it is the model -----------------------------------------------------------------------------------------


def another_model(request: Request) -> Reply:
    return answer(request, [vector_of(f"other {text}", request.dimensions) for text in request.texts])


@pytest.mark.thorough
def test_another_model_is_refused_before_anything_is_written(store: Path, server: FaultServer, config: Path) -> None:
    server.behave = another_model
    with untouched(store):
        message = said(backfill(store, config), "EmbedderDiffers", 2)
    assert "this is not the model that made the vectors of Base kb" in message
    assert not FILLED.intersection(server.texts)
    done = backfill(store, config, "--no-probe")
    assert (done.status, scope_of(done)["probe"], scope_of(done)["newly_ready"]) == (0, None, len(LACKING))


def test_one_wrong_vector_of_the_base_does_not_make_it_another_model(store: Path, config: Path) -> None:
    text, wrong = next(text for text in TEXTS if text not in LACKING), vector_of("something else")
    key = identity.text_hash(text)
    run_sql(index(store), f"UPDATE embedding SET vector_blob = x'{wrong.hex()}' WHERE embedding_text_hash = '{key}'")
    done = backfill(store, config)
    assert (done.status, scope_of(done)["newly_ready"]) == (0, len(LACKING))
    assert vectors(store) == {**all_vectors(), text: wrong}


def test_a_model_of_other_dimensions_is_refused(store: Path, server: FaultServer, config: Path) -> None:
    server.behave = changed(lambda found: [vector[:-4] for vector in found])
    with untouched(store):
        assert "7 dimensions instead of 8" in said(backfill(store, config), "AnswerUnfit", 1)


def test_a_base_without_vectors_asks_the_embedder_for_a_word_of_its_own(
    store: Path, server: FaultServer, config: Path
) -> None:
    taken_away(store, TEXTS)

    def unsteady(request: Request) -> Reply:
        return answer(request, [vector_of(f"{place} {text}") for place, text in enumerate(request.texts)])

    server.behave = unsteady
    with untouched(store):
        assert "returned two different vectors for one text" in said(
            backfill(store, config, "--base", KB), "EmbedderUnsteady", 2
        )
    assert not set(server.texts).intersection(TEXTS)
    server.behave = right
    done = backfill(store, config, "--base", KB)
    assert (done.status, scope_of(done)["probe"]["texts"]) == (0, 3)
    assert vectors(store) == all_vectors()


def test_words_of_its_own_are_asked_for_once(store: Path, server: FaultServer, config: Path) -> None:
    taken_away(taken_away(store, TEXTS), OTHER_TEXTS["page"], OTHER)
    done = backfill(store, config)
    probes = [scope_of(done, base)["probe"] for base in (KB, OTHER)]
    assert [(probe["texts"], probe["requests"]) for probe in probes] == [(3, 2), (3, 0)]
    asked = [text for text in server.texts if text not in (*TEXTS, *OTHER_TEXTS["page"])]
    assert (len(asked), len(set(asked))) == (6, 3)


def test_a_probe_is_told_to_a_person(store: Path, config: Path) -> None:
    done = run("backfill", store, "--config", config)
    assert f"  model check: {len(COMPARED)} texts, 2 requests, " in done.stdout


def test_max_cost_includes_the_probe(store: Path, tmp_path: Path, server: FaultServer) -> None:
    """A token costs 1."""
    priced = configured(tmp_path / "priced.yaml", server, price_per_million_tokens=1e6)
    before = contents(store)
    too_little = scope_of(backfill(store, priced, "--base", KB, "--max-cost", 10))
    assert (too_little["newly_ready"], too_little["stopped"]) == (0, "--max-cost 10 could be exceeded")
    assert server.requests == []
    assert contents(store) == before
    probe = sum(map(len, COMPARED))
    no_more = scope_of(backfill(store, priced, "--base", KB, "--max-cost", probe + 5))
    assert (no_more["newly_ready"], no_more["probe"]["tokens"]) == (0, probe)
    assert no_more["stopped"] == f"--max-cost {probe + 5} could be exceeded"
    assert sorted(server.texts) == sorted(COMPARED)


def test_all_probes_together_have_to_fit_into_max_cost(store: Path, tmp_path: Path, server: FaultServer) -> None:
    taken_away(store, OTHER_TEXTS["page"][:1], OTHER)
    priced = configured(tmp_path / "priced.yaml", server, price_per_million_tokens=1e6)
    limit = tokens([*COMPARED, *OTHER_TEXTS["page"][1:]]) - 1
    done = backfill(store, priced, "--max-cost", limit)
    assert server.requests == []
    assert {scope["stopped"] for scope in done.document["scopes"]} == {f"--max-cost {limit} could be exceeded"}
    assert {scope["probe"] for scope in done.document["scopes"]} == {None}


def test_a_probe_that_a_limit_ends_is_reported(store: Path, tmp_path: Path, server: FaultServer) -> None:
    """The server counts four times as many tokens as were estimated."""
    priced = configured(tmp_path / "priced.yaml", server, price_per_million_tokens=1e6)
    scope = scope_of(backfill(store, priced, "--base", KB, "--max-cost", tokens(COMPARED)))
    asked = sum(map(len, server.texts))
    assert (len(server.requests), scope["requests"], scope["newly_ready"]) == (1, 0, 0)
    assert scope["probe"] == {"texts": 0, "cosine": 0.0, "requests": 1, "tokens": asked, "remembered": False}


def test_what_a_probe_shows_of_a_servers_count_holds_for_the_texts(
    store: Path, tmp_path: Path, server: FaultServer
) -> None:
    priced = configured(tmp_path / "priced.yaml", server, price_per_million_tokens=1e6)
    limit = sum(map(len, COMPARED)) + 2 * tokens(LACKING[:3])
    scope = scope_of(backfill(store, priced, "--base", KB, "--max-cost", limit))
    assert batches(server) == []
    assert (scope["newly_ready"], scope["stopped"]) == (0, f"--max-cost {limit} could be exceeded")


def test_a_base_that_lacks_nothing_gives_its_vectors_if_they_are_more_than_its_probe(
    store: Path, server: FaultServer, config: Path
) -> None:
    for count, copies in ((8, 0), (9, 9)):
        texts = [f"a text of both bases, number {number} of {count}" for number in range(count)]
        for base in (KB, OTHER):
            for number, text in enumerate(texts):
                add_unit(store, base, 1000 * count + number, text)
        with closing(sqlite3.connect(index(store, OTHER))) as db, db:
            rows = [(identity.text_hash(text), vector_of(text)) for text in texts]
            db.executemany("INSERT INTO embedding VALUES (?, ?, 1)", rows)
        planned = scope_of(backfill(store, config, "--dry-run"))["planned"]
        server.requests.clear()
        scope = scope_of(backfill(store, config, "--base", KB, "--base", OTHER))
        assert (planned["shared"], scope["shared"]) == (copies, copies)
        asked = [text for text in server.texts if text in texts]
        # The others are in the probe.
        assert len(asked) <= 8 if copies else sorted(asked) == texts
        assert {text: vectors(store)[text] for text in texts} == all_vectors(texts)


def add_unit(store: Path, base: str, number: int, text: str) -> None:
    """Give a base one unit more, without a vector."""
    with closing(sqlite3.connect(index(store, base))) as db, db:
        for table, more in (
            ("search_unit", {"unit_id": f"unit-{number}", "unit_index": number}),
            (
                "search_text",
                {"search_text_id": f"body-{number}", "target_id": f"unit-{number}", "text": text, "fts_rowid": None}
                | {"embedding_text_hash": identity.text_hash(text)},
            ),
        ):
            found = db.execute(f"SELECT * FROM {table} LIMIT 1")
            row = dict(zip([column[0] for column in found.description], found.fetchone(), strict=True)) | more
            db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", list(row.values()))


def test_a_probe_is_not_remembered_once_only_failed_texts_are_left(
    store: Path, server: FaultServer, config: Path
) -> None:
    server.behave = poisoned(LACKING[0])
    assert backfill(store, config, "--base", KB).status == 1
    run_sql(index(store), f"DELETE FROM embedding WHERE embedding_text_hash = '{identity.text_hash(LACKING[1])}'")
    # Another model under the same name.
    server.behave = changed(lambda vectors: [vector[4:] + vector[:4] for vector in vectors])
    said(backfill(store, config, "--base", KB), "EmbedderDiffers", 2)


def test_an_embedder_whose_vectors_were_taken_back_is_compared_again(
    store: Path, tmp_path: Path, server: FaultServer
) -> None:
    """The base has no vector at first, so that neither can be compared with it."""
    taken_away(store, TEXTS)
    right, wrong = (configured(tmp_path / f"{name}.yaml", server, encoding=name) for name in ("base64", "float"))
    server.behave = changed(lambda vectors: [vector[4:] + vector[:4] for vector in vectors])
    assert scope_of(backfill(store, wrong, "--base", KB, "--max-requests", 1))["newly_ready"] == 3
    assert run("undo", store, "-y").status == 0
    taken = server.behave
    server.behave = []
    assert scope_of(backfill(store, right, "--base", KB, "--max-requests", 1))["newly_ready"] == 3
    server.behave = taken
    said(backfill(store, wrong, "--base", KB, "--max-requests", 1), "EmbedderDiffers", 2)


@pytest.mark.thorough
def test_a_run_that_goes_on_does_not_pay_for_the_probe_again(store: Path, tmp_path: Path, server: FaultServer) -> None:
    config = configured(tmp_path / "mine.yaml", server)
    first = scope_of(backfill(store, config, "--base", KB, "--max-requests", 1))
    assert (first["probe"]["remembered"], first["newly_ready"]) == (False, 3)
    sent = len(server.texts)
    again = run("backfill", store, "--config", config, "--base", KB, "--max-requests", 1)
    assert "model check: passed in the interrupted run, not repeated" in again.stdout
    assert not set(server.texts[sent:]) & set(COMPARED)


@pytest.mark.thorough
def test_another_embedder_is_probed_again(store: Path, tmp_path: Path, server: FaultServer) -> None:
    backfill(store, configured(tmp_path / "mine.yaml", server), "--base", KB, "--max-requests", 1)
    sent = len(server.texts)
    changed = configured(tmp_path / "changed.yaml", server, encoding="float")
    scope = scope_of(backfill(store, changed, "--base", KB, "--max-requests", 1))
    assert (scope["probe"]["remembered"], scope["probe"]["requests"] > 0) == (False, True)
    assert len(server.texts) > sent


@pytest.mark.thorough
def test_a_probe_takes_no_more_than_a_request_may(store: Path, tmp_path: Path, server: FaultServer) -> None:
    for batch, count in (({"texts": 4}, 5), ({"tokens": tokens(COMPARED[:3])}, 3), ({"tokens": 1}, 1)):
        server.requests.clear()
        some = configured(tmp_path / "some.yaml", server, batch=batch)
        probe = scope_of(backfill(store, some))["probe"]
        asked = [request.texts for request in server.requests[: probe["requests"]]]
        assert (probe["texts"], asked) == (
            count,
            [part for part in (COMPARED[:count][:4], COMPARED[:count][4:]) if part],
        )
        taken_away(store)


@pytest.mark.thorough
def test_where_nothing_can_be_sent_nothing_is_compared(store: Path, server: FaultServer, config: Path) -> None:
    backfill(store, config)
    server.requests.clear()
    taken_away(store, LACKING[:1])
    run_sql(index(store), f"UPDATE search_text SET text = ' ' WHERE text = '{LACKING[0]}'")
    done = scope_of(backfill(store, config))
    assert (done["failed"], done["probe"], server.requests) == (1, None, [])


def test_a_probe_without_an_answer_is_refused(store: Path, server: FaultServer, config: Path) -> None:
    server.behave = poisoned(next(text for text in TEXTS if text not in LACKING))
    with untouched(store):
        message = said(backfill(store, config), "ProbeRefused", 2)
    assert "--no-probe" in message


def test_dimensions_have_to_be_known(store: Path, server: FaultServer, config: Path) -> None:
    taken_away(store, TEXTS)
    run_sql(store / CATALOG, f"UPDATE knowledge_base SET dimensions = NULL WHERE id = '{KB}'")
    with untouched(store):
        message = said(backfill(store, config, "--base", KB), "DimensionsMissing", 2)
    assert message == (
        "Base kb: the number of dimensions is unknown, because it has neither a catalog entry nor any vector; "
        "give --dimensions."
    )
    assert backfill(store, config, "--base", KB, "--dimensions", 8).status == 0
    assert vectors(store) == all_vectors()


@pytest.mark.thorough
def test_dimensions_of_an_index_alone(store: Path, tmp_path: Path, server: FaultServer, config: Path) -> None:
    taken_away(store, TEXTS)
    alone = shutil.copyfile(index(store), tmp_path / "index.sqlite")
    said(backfill(alone, config), "DimensionsMissing", 2)
    assert "8 dimensions instead of 9" in said(backfill(alone, config, "--dimensions", 9), "AnswerUnfit", 1)
    assert backfill(alone, config, "--dimensions", 8).status == 0


# --- what is left ----------------------------------------------------------------------------------------------------


def left_of(done: Any, base: str = OTHER) -> dict[str, Any]:
    [left] = [one for one in done.document["left"] if one["base"] == base]
    return left


@pytest.mark.parametrize(
    ("damage", "advice"),
    [
        (OTHER_ROW.format("status = 'failed', error = 'x'"), None),
        (OTHER_ROW.format("dimensions = 768"), "repair {} --only base.dimensions"),
        ("DROP TABLE knowledge_base", None),
    ],
)
def test_an_audit_advises_backfill_only_where_it_can_work(damage: str, advice: str | None, store: Path) -> None:
    taken_away(store, OTHER_TEXTS["page"][:1], OTHER)
    run_sql(store / CATALOG, damage)
    found = run("check", store, "--json").document["findings"]
    line = next(one["repair"] for one in found if one["name"] == "embedding.missing" and OTHER in one["base"])
    assert line == (None if advice is None else f"regraft {advice.format(store)} --base {OTHER}")


def test_a_failed_base_is_for_restore(store: Path, config: Path) -> None:
    run_sql(store / CATALOG, OTHER_ROW.format("status = 'failed', error = 'missing_embedding_model'"))
    done = backfill(store, config)
    left = left_of(done)
    assert (left["finding"], left["repair"]) == ("base.failed", f"regraft restore {store} --base {OTHER}")
    assert "missing_embedding_model" in left["reason"]
    assert (done.status, scope_of(done)["newly_ready"]) == (1, len(LACKING))
    assert backfill(store, config, "--fail-on", "never").status == 0


WITHOUT_MODEL = OTHER_ROW.format("embedding_model_id = NULL, dimensions = NULL")


def test_a_base_without_a_model_finds_words_only(store: Path, config: Path) -> None:
    run_sql(store / CATALOG, WITHOUT_MODEL)
    done = backfill(store, config)
    left = left_of(done)
    assert (done.status, left["finding"], left["severity"]) == (0, "base.model", "note")
    assert "use --model and --dimensions to give it one" in left["reason"]
    meant = backfill(store, config, "--base", OTHER)
    assert (meant.status, left_of(meant)["severity"], meant.document["scopes"]) == (1, "warning", [])


@pytest.mark.thorough
def test_a_base_without_a_model_is_given_one_and_its_texts_their_vectors(
    store: Path, server: FaultServer, config: Path
) -> None:
    run_sql(store / CATALOG, WITHOUT_MODEL)
    taken_away(store, OTHER_TEXTS["page"], OTHER)
    before = contents(store)
    asked = ("--base", OTHER, "--model", MODEL, "--dimensions", 8)
    row = f"SELECT embedding_model_id || ' ' || dimensions FROM knowledge_base WHERE id = '{OTHER}'"
    with untouched(store):
        planned = backfill(store, config, *asked, "--dry-run").document["scopes"]
    done = backfill(store, config, *asked, "--limit", 1)
    assert (planned[0]["planned"]["texts"], done.document["scopes"][0]["newly_ready"]) == (2, 1)
    # From now on it is a base like any other, and says itself what it lacks.
    assert value(store, CATALOG, row) == f"{MODEL} 8"
    assert names(store, OTHER) == {"embedding.missing"}
    assert backfill(store, config, "--base", OTHER).status == 0
    assert vectors(store, OTHER) == all_vectors(OTHER_TEXTS["page"])
    assert names(store, OTHER) == set()
    assert backfill(store, config, *asked).document["actions"] == []
    while run("undo", store, "--json").status == 0:
        pass
    assert contents(store) == before


def names(store: Path, base: str) -> set[str]:
    return {finding["name"] for finding in run("check", store, "--json", "--base", base).document["findings"]}


def test_a_model_needs_its_dimensions_and_a_base_without_one(store: Path, server: FaultServer, config: Path) -> None:
    run_sql(store / CATALOG, WITHOUT_MODEL)
    with untouched(store):
        assert "also give --dimensions" in said(backfill(store, config, "--model", MODEL), "WrongUsage", 2)
        named = backfill(store, config, "--model", "embed-small", "--dimensions", 8)
        assert "provider::model" in said(named, "ModelOptionInvalid", 2)
        other = ("--model", "acme::embed-large", "--dimensions", 8)
        message = said(backfill(store, config, "--base", KB, *other), "ModelSet", 2)
        assert f"its model is already {MODEL}, not acme::embed-large" in message
        message = said(backfill(store, config, "--base", OTHER, *other), "ModelDiffers", 2)
        assert "but --model says acme::embed-large" in message
        assert server.requests == []


@pytest.mark.thorough
def test_indexes_that_cannot_be_filled_are_left_and_the_others_are(store: Path, tmp_path: Path, config: Path) -> None:
    cases = {
        "version 1": "schema.version",
        "another base": "meta.base-id",
        "no trigger": "schema.missing",
        "other dimensions": "base.dimensions",
        "random bytes": "file.unreadable",
        "a preview store": "schema.preview",
    }
    for name, finding in cases.items():
        copy = taken_away(shutil.copytree(store, tmp_path / "copy"), OTHER_TEXTS["page"][:1], OTHER)
        DAMAGES[name].plant(copy, OTHER)
        if index(copy, NEW_BASE).exists():
            # That damage is a base of its own.
            index(copy, NEW_BASE).replace(index(copy, OTHER))
            shutil.rmtree(index(copy, NEW_BASE).parent.parent)
        other = contents(copy)
        done = backfill(copy, config)
        assert left_of(done)["finding"] == finding, name
        assert done.status == 1
        assert vectors(copy) == all_vectors(), name
        path = index(copy, OTHER).relative_to(copy).as_posix()
        assert contents(copy).get(path) == other.get(path), name
        shutil.rmtree(copy)


# --- where it is not done --------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_running_application_is_refused(store: Path, tmp_path: Path, server: FaultServer, config: Path) -> None:
    profile = tmp_path / "profile"
    (profile / "Data").mkdir(parents=True)
    (store / CATALOG).rename(profile / "cherrystudio.sqlite")
    (store / "KnowledgeBase").rename(profile / "Data" / "KnowledgeBase")
    lock = start_application(profile)
    with untouched(profile):
        said(backfill(profile, config), "ApplicationOpen", 2)
        assert scope_of(backfill(profile, config, "--dry-run"))["planned"]["texts"] == len(LACKING)
    assert server.requests == []
    lock.unlink()
    assert scope_of(backfill(profile, config))["newly_ready"] == len(LACKING)


@pytest.mark.parametrize("place", [".", f"KnowledgeBase/{KB}/.cherry/index.sqlite"])
def test_what_cannot_be_written_is_not_paid_for(
    place: str, store: Path, server: FaultServer, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_only = os.path.realpath(store / place)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK or os.path.realpath(path) != read_only)
    with untouched(store):
        assert "read-only" in said(backfill(store, config), "StoreNotWritable", 2)
    assert server.requests == []


def test_an_index_that_another_program_writes_is_not_paid_for(
    store: Path, server: FaultServer, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regraft.disk.sqlite.BUSY_TIMEOUT_MS", 1)
    with sqlite.open_writable(index(store)) as db, sqlite.transaction(db):
        said(backfill(store, config, "--base", KB, "--no-probe"), "BackfillStopped", 3)
    assert server.requests == []
    assert backfill(store, config).status == 0


def test_a_person_is_asked_and_may_decline(
    store: Path, server: FaultServer, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regraft.cli.changes.confirm_plan", lambda *_, **__: False)
    with untouched(store):
        line(run("backfill", store, "--config", config), 2)
    assert server.requests == []


# --- texts without a unit --------------------------------------------------------------------------------------------

NOTE = (
    "INSERT INTO knowledge_item VALUES ('{id}', '{base}', NULL, 'note',"
    ' \'{{"source":"note","content":"{text}"}}\', \'completed\', NULL, 0, 0)'
)


@pytest.mark.thorough
def test_a_text_that_was_never_indexed_is_indexed_and_embedded(
    whole: Path, tmp_path: Path, server: FaultServer, config: Path
) -> None:
    store = shutil.copytree(whole, tmp_path / "library")
    ids = {KB: "0197f5a0-0000-7000-8000-000000000001", OTHER: "0197f5a0-0000-7000-8000-000000000002"}
    for base, item_id in ids.items():
        run_sql(store / CATALOG, NOTE.format(id=item_id, base=base, text=f"a note of {base}"))
    run_sql(store / CATALOG, OTHER_ROW.format("embedding_model_id = 'acme::embed-large'"))
    before = contents(store)
    server.behave = another_model
    with untouched(store):
        said(backfill(store, config), "EmbedderDiffers", 2)
    server.behave = right
    done = backfill(store, config)
    text = f"a note of {KB}"
    assert (done.status, vectors(store)[text]) == (0, vector_of(text))
    # The base of another model waits for its own embedder.
    assert len(vectors(store, OTHER)) == len(OTHER_TEXTS["page"])
    assert {action["base"] for action in done.document["actions"]} == {KB}
    assert "embed" in {action["action"] for action in done.document["actions"]}
    assert [run("undo", store, "-q").status for _ in range(2)] == [0, 0]
    assert contents(store) == before
