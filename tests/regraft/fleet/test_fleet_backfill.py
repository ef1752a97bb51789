"""Embedding what all libraries of a fleet lack: each text once, and each library as if it had been filled alone."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import apsw
import codex_mem_store
import pytest
from extras import needs, optional
from fault_server import FaultServer, Reply, Request, answer, failing, poisoned, right, vector_of
from harness import REPO, run, run_as_given, snapshot
from lacking import (
    COMPARED,
    KB,
    LACKING,
    OTHER,
    OTHER_TEXTS,
    TEXTS,
    all_vectors,
    configured,
    many,
    vectors,
)
from planted_v2 import index
from three_libraries import MORE, NAMES, WANTED, backfill, embeddings, is_filled, names_beside, resume, rows_in

from regraft.disk import writable
from regraft.fleet import versions
from regraft.fleet.engine import LocalPool
from regraft.fleet.storage import storage_path
from regraft.formats.codex_mem import database, sidecar
from repair.embedding.sender import CONTROL_TEXT

pq = optional("pyarrow.parquet")
pytestmark = needs("parquet")

# --- what is sent ----------------------------------------------------------------------------------------------------


def test_each_text_is_sent_once_and_each_library_filled(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regraft.api.fleet.LocalPool", LocalPool)
    with FaultServer() as server:
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server, price_per_million_tokens=2.0))
    assert done.status == 0, done
    compared = {*COMPARED, OTHER_TEXTS["page"][1]}
    assert Counter(server.texts) == Counter({*WANTED, *MORE, *compared})
    assert all(is_filled(stores / name) for name in NAMES)

    sent, probe = done.document["sent"], done.document["sent"]["probe"]
    assert (sent["wanted"], sent["distinct"], sent["failed"]) == (3 * len(WANTED) + 2, len(WANTED) + 2, 0)
    assert sent["requests"] + probe["requests"] == len(server.requests)
    assert sent["tokens"] + probe["tokens"] == sum(map(len, server.texts))
    assert (sent["cost"], sent["currency"]) == (sent["tokens"] * 2 / 1e6, "USD")
    assert done.document["embedder"] == {"name": "mine", "model": "embed-small"}
    assert {name: row["outcome"] for name, row in rows_in(stores).items()} == dict.fromkeys(NAMES, "done")
    assert json.loads(rows_in(stores)["clara"]["totals"])["newly_ready"] == len(WANTED) + 2
    assert names_beside(stores) == ["out.parquet"]


@pytest.mark.thorough
def test_libraries_in_a_store_are_filled_and_published(stores: Path, bucket: str, tmp_path: Path) -> None:
    places = {name: storage_path(f"{bucket}/{name}") for name in NAMES}
    with writable.allow_writes(tmp_path):
        for name, place in places.items():
            versions.publish_version(place, stores / name, versions.NO_VERSION)
    before = storage_path(bucket).objects()
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server)
        words = ("--results", tmp_path / "out.parquet", "--config", config, "--workers", 1, "--json", "-y")
        dry = run_as_given("fleet", "backfill", bucket, *words, "--dry-run")
        assert (dry.status, server.texts, storage_path(bucket).objects()) == (0, [], before)
        done = run_as_given("fleet", "backfill", bucket, *words)
    assert done.status == 0, done
    assert dry.document["sent"]["distinct"] == done.document["sent"]["distinct"] == len(WANTED) + 2
    with writable.allow_writes(tmp_path):
        for name, place in places.items():
            assert versions.fetch_library(place, tmp_path / "fetched" / name).number == 2
            assert is_filled(tmp_path / "fetched" / name)
    assert run("undo", tmp_path / "fetched" / "anna", "--yes").status == 0
    assert not is_filled(tmp_path / "fetched" / "anna")


def test_the_vectors_are_those_of_one_after_the_other(stores: Path, whole: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(whole, tmp_path / "alone" / "library")
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server)
        assert backfill(stores, config).status == 0
        document = run("backfill", alone, "--config", config, "--json", "-y").document
    assert embeddings(stores / "anna") == embeddings(alone)
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    bases = {row["base"]: json.loads(row["totals"]) for row in rows if row["library"] == 0 and row["base"]}
    for scope in document["scopes"]:
        assert bases[scope["scope"]]["newly_ready"] == scope["newly_ready"]
        assert bases[scope["scope"]]["ready"] == scope["ready"]


def test_what_was_filled_can_be_taken_back(stores: Path, tmp_path: Path) -> None:
    before = embeddings(stores / "anna")
    with FaultServer() as server:
        assert backfill(stores, configured(tmp_path / "regraft.yaml", server)).status == 0
    assert is_filled(stores / "anna")
    assert run("undo", stores / "anna", "-y").status == 0
    assert embeddings(stores / "anna") == before
    assert is_filled(stores / "boris")


def test_libraries_that_lack_nothing_cost_nothing(whole: Path, stores: Path, tmp_path: Path) -> None:
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server)
        assert backfill(stores, config).status == 0
        (tmp_path / "out.parquet").unlink()
        sent, before = len(server.requests), snapshot(stores)
        done = backfill(stores, config)
        assert (done.status, len(server.requests), snapshot(stores)) == (0, sent, before)
    assert (done.document["sent"]["libraries"], done.document["sent"]["wanted"]) == (0, 0)


def test_a_dry_run_sends_nothing_and_writes_nothing(stores: Path, tmp_path: Path) -> None:
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server, price_per_million_tokens=2.0)
        before = snapshot(tmp_path)
        done = backfill(stores, config, "--dry-run", "--limit", 5)
        text = run_as_given(
            "fleet", "backfill", stores, "--results", tmp_path / "out.parquet", "--config", config, "--dry-run"
        )
    assert (done.status, text.status, server.requests, snapshot(tmp_path)) == (0, 0, [], before)
    sent = done.document["sent"]
    assert (sent["distinct"], sent["planned"]["texts"], sent["planned"]["requests"]) == (len(WANTED) + 2, 5, 2)
    assert sent["planned"]["cost"] == sent["planned"]["tokens"] * 2 / 1e6
    assert f"embed {len(WANTED) + 2} texts: about" in text.stdout
    assert "Dry run: nothing was sent, and nothing was written." in text.stdout


def test_notes_of_codex_mem_are_embedded_once_too(stores: Path, tmp_path: Path) -> None:
    shutil.rmtree(stores)
    databases = [codex_mem_store.write(stores / name, projects=1) for name in NAMES]
    texts = {
        database.note_source_text(*codex_mem_store.parts_of(one, note))
        for one in databases
        for note in codex_mem_store.searchable(one)
    }
    with FaultServer() as server:
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server), "--", "--all-projects")
    assert (done.status, done.document["libraries"]) == (0, {"all": 3, "done": 3})
    assert Counter(text for text in server.texts if text in texts) == Counter(texts)
    for one in databases:
        rows = codex_mem_store.rows(database.sidecar_path(one), f"SELECT note_id, vector FROM {sidecar.TABLE}")
        assert dict(rows) == {
            note: vector_of(database.note_source_text(*codex_mem_store.parts_of(one, note)))
            for note in codex_mem_store.searchable(one)
        }


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("limit", [("--max-requests", 2), ("--limit", 4), ("--max-cost", 0.0006)])
def test_a_limit_is_of_the_whole_fleet_and_the_next_run_goes_on(
    stores: Path, tmp_path: Path, limit: tuple[str, float]
) -> None:
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server, price_per_million_tokens=2.0, parallel=2)
        # What is compared is compared in every run.
        done = backfill(stores, config, *limit, "--no-probe")
        sent = done.document["sent"]
        most = {"--max-requests": sent["requests"], "--limit": sent["answered"], "--max-cost": sent["cost"]}[limit[0]]
        assert 0 < most <= limit[1]
        assert (done.status, done.document["libraries"]) == (1, {"all": 3, "limit-reached": 3})
        assert limit[0] in sent["stopped"]
        assert rows_in(stores)["anna"]["message"] == sent["stopped"]
        # What was answered is written, in every library that lacks it.
        for name in NAMES:
            written = {*vectors(stores / name), *vectors(stores / name, OTHER)}
            assert written & WANTED == set(server.paid) & WANTED
        assert names_beside(stores) == ["out.parquet", "out.parquet.backfill"]
        assert sorted(path.name for path in (tmp_path / "out.parquet.backfill").iterdir()) == ["answers.sqlite"]
        for _ in range(20):
            if resume(stores).document["libraries"] == {"all": 3, "done": 3}:
                break
        assert all(is_filled(stores / name) for name in NAMES)
        assert Counter(server.texts).most_common(1)[0][1] == 1
    assert names_beside(stores) == ["out.parquet"]


# --- what fails ------------------------------------------------------------------------------------------------------


def test_a_text_that_is_rejected_fails_alone(stores: Path, tmp_path: Path) -> None:
    bad = LACKING[2]
    with FaultServer() as server:
        server.behave = poisoned(bad)
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server))
    assert (done.status, done.document["libraries"]) == (1, {"all": 3, "worth-reading": 3})
    assert (done.document["sent"]["failed"], done.document["sent"]["answered"]) == (1, len(WANTED) + 1)
    assert vectors(stores / "anna") == all_vectors(set(TEXTS) - {bad})
    for name in NAMES:
        assert json.loads(rows_in(stores)[name]["totals"])["failed"] == 1
    # The batch that it was in was halved: what is sent alone in the end is the bad one.
    assert [request.texts for request in server.requests].count([bad]) == 1


def test_many_texts_that_are_rejected_are_not_sent_again_to_fill(stores: Path, tmp_path: Path) -> None:
    """What is known to be rejected makes no backfill ask whether the server rejects all."""
    with FaultServer() as server:
        bad = {*LACKING, *(text for name in NAMES[:2] for text in many(stores / name, 20))}
        server.behave = lambda request: (failing(400) if bad & set(request.texts) else right)(request)
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server, batch={"texts": 1}))
    assert (done.status, done.document["libraries"]) == (1, {"all": 3, "worth-reading": 3})
    assert done.document["sent"]["failed"] == len(bad)
    # Once, while they were sent.
    assert server.texts.count(CONTROL_TEXT) == 1
    assert json.loads(rows_in(stores)["anna"]["totals"])["failed"] == len(bad)


def turned(store: Path, base: str) -> None:
    """Turn the vectors of a base around: those of another model."""
    with apsw.Connection(str(index(store, base))) as db:
        for key, vector in db.execute("SELECT embedding_text_hash, vector_blob FROM embedding").fetchall():
            numbers = array("f", [-number for number in array("f", vector)])
            db.execute("UPDATE embedding SET vector_blob = ? WHERE embedding_text_hash = ?", (numbers.tobytes(), key))


def test_a_base_of_another_model_leaves_the_other_libraries_served(stores: Path, tmp_path: Path) -> None:
    turned(stores / "clara", KB)
    before = snapshot(stores / "clara")
    with FaultServer() as server:
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server))
        assert (done.status, done.document["libraries"]) == (2, {"all": 3, "done": 2, "refused": 1})
        assert rows_in(stores)["clara"]["code"] == "EmbedderDiffers"
        assert snapshot(stores / "clara") == before
        # What it alone lacks was not sent.
        assert MORE.isdisjoint(server.texts)
        turned(stores / "clara", KB)
        assert resume(stores).status == 0
        once = Counter(text for text in server.texts if text in WANTED)
        assert once == Counter(WANTED)
    assert all(is_filled(stores / name) for name in NAMES)


def test_without_a_probe_nothing_is_compared(stores: Path, tmp_path: Path) -> None:
    with FaultServer() as server:
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server), "--no-probe")
    assert (done.status, set(server.texts)) == (0, WANTED | MORE)
    assert done.document["sent"]["probe"] == {
        "texts": 0, "requests": 0, "tokens": 0, "cost": None, "remembered": False,
    }  # fmt: skip


def unsteady(request: Request) -> Reply:
    """Answer by the place of a text, not by the text."""
    return answer(request, [vector_of(f"place {number}") for number in range(len(request.texts))])


@pytest.mark.parametrize("behave", [unsteady, right])
def test_a_base_without_vectors_gets_none_of_an_unsteady_embedder(
    behave: Callable[[Request], Reply], stores: Path, tmp_path: Path
) -> None:
    for name in NAMES[1:]:
        shutil.rmtree(stores / name)
    with apsw.Connection(str(index(stores / "anna", OTHER))) as db:
        db.execute("DELETE FROM embedding")
    with FaultServer() as server:
        server.behave = lambda request: (behave if len(request.texts) == 3 else right)(request)
        config = configured(tmp_path / "regraft.yaml", server)
        done = backfill(stores, config, "--", "--base", OTHER)
    if behave is right:
        assert (done.status, vectors(stores / "anna", OTHER)) == (0, all_vectors(OTHER_TEXTS["page"]))
    else:
        assert (done.status, rows_in(stores)["anna"]["code"]) == (2, "EmbedderUnsteady")
        assert not set(OTHER_TEXTS["page"]) & set(server.texts)


@pytest.mark.parametrize(("trouble", "status"), [(failing(500), 3), (failing(401), 2)])
def test_a_server_that_fails_midway_has_what_it_answered_written(
    stores: Path, tmp_path: Path, trouble: Callable[[Request], Reply], status: int
) -> None:
    with FaultServer() as server:
        server.behave = lambda request: trouble(request) if len(server.requests) > 2 else right(request)
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server, retries=0), "--no-probe")
        outcome = {3: "stopped", 2: "refused"}[status]
        assert (done.status, done.document["libraries"]) == (status, {"all": 3, outcome: 3})
        answered = done.document["sent"]["answered"]
        assert 0 < answered < len(WANTED)
        assert sum(len(vectors(stores / "boris", base)) for base in (KB, OTHER)) > 6
        paid = list(server.paid)
        server.behave = right
        assert resume(stores).document["libraries"] == {"all": 3, "done": 3}
        assert set(server.paid[len(paid) :]).isdisjoint(paid)
    assert all(is_filled(stores / name) for name in NAMES)


def test_a_server_that_is_not_there_leaves_the_libraries_as_they_are(stores: Path, tmp_path: Path) -> None:
    before = snapshot(stores)
    with FaultServer() as server:
        server.behave = failing(401)
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server))
    assert (done.status, done.document["libraries"]) == (2, {"all": 3, "refused": 3})
    assert {row["code"] for row in rows_in(stores).values()} == {"EmbedderRefused"}
    assert snapshot(stores) == before


# --- stopping and going on -------------------------------------------------------------------------------------------


def test_ctrl_c_keeps_what_was_answered(stores: Path, tmp_path: Path) -> None:
    with FaultServer() as server:

        def stopping(request: Request) -> Reply:
            if len(server.requests) == 2:
                signal.raise_signal(signal.SIGINT)
            return right(request)

        server.behave = stopping
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server), "--no-probe")
        assert (done.status, done.document["error"]["code"]) == (130, "FleetInterrupted")
        assert "regraft fleet resume" in done.document["error"]["message"]
        assert names_beside(stores) == ["out.parquet.backfill", "out.parquet.journal"]
        paid = list(server.paid)
        server.behave = right
        assert resume(stores).status == 0
        assert set(server.paid[len(paid) :]).isdisjoint(paid)
    assert all(is_filled(stores / name) for name in NAMES)


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="a process is killed by a signal")
def test_a_killed_run_pays_for_nothing_twice_but_what_was_under_way(stores: Path, tmp_path: Path) -> None:
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server, batch={"texts": 1})
        out = tmp_path / "out.parquet"
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "regraft", "fleet", "backfill", stores, "--results", out, "--config", config,
             "-yq", "--workers", "1", "--max-requests", "100", "--no-probe"],
            cwd=REPO,
        )  # fmt: skip

        def deadly(request: Request) -> Reply:
            if len(server.requests) == 9:
                process.kill()
                process.wait()
            return right(request)

        server.behave = deadly
        assert process.wait() < 0
        server.behave = right
        before = len(server.requests)
        done = resume(stores)
        # One was under way, and the one before it may just have come.
        assert sum(Counter(server.texts).values()) - len(set(server.texts)) <= 2
        assert before == 9
    assert done.status == 0
    # What the killed run had sent counts against the limits of the one that goes on.
    sent = done.document["sent"]
    assert sent["requests"] + sent["probe"]["requests"] >= len(server.requests) - 1
    assert all(is_filled(stores / name) for name in NAMES)


def test_answers_of_another_embedder_are_not_taken(stores: Path, tmp_path: Path) -> None:
    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server)
        assert backfill(stores, config, "--limit", 1).status == 1
        configured(config, server, prefix="passage: ")
        before = {name: found[2] for name, found in snapshot(tmp_path).items()}
        done = resume(stores)
    assert (done.status, done.document["error"]["code"]) == (2, "WrongUsage")
    assert "were made by another embedder than mine" in done.document["error"]["message"]
    assert {name: found[2] for name, found in snapshot(tmp_path).items()} == before


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--max-cost", 1), "WrongUsage", "--max-cost needs the price of embedder mine"),
        (("--embedder", "yours"), "EmbedderUnknown", "yours"),
        (("--", "--limit", 3), "WrongUsage", "--limit applies to the whole fleet"),
        (("--", "--embedder=mine"), "WrongUsage", "--embedder applies to the whole fleet"),
        (("--address", "auto"), "WrongUsage", "--address is only for --engine ray"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    options: tuple[object, ...], code: str, message: str, stores: Path, tmp_path: Path
) -> None:
    config = configured(tmp_path / "regraft.yaml", "http://127.0.0.1:9/v1")
    before = snapshot(tmp_path)
    done = backfill(stores, config, *options)
    assert (done.status, done.document["error"]["code"], snapshot(tmp_path)) == (2, code, before)
    assert message in done.document["error"]["message"]


def test_an_embedder_that_cannot_be_opened_leaves_nothing(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    config = configured(tmp_path / "regraft.yaml", "http://127.0.0.1:9/v1", api_key_env="NO_SUCH_KEY")
    before = snapshot(tmp_path)
    done = backfill(stores, config)
    assert (done.status, done.document["error"]["code"]) == (2, "EmbedderKeyMissing")
    assert snapshot(tmp_path) == before


def test_nothing_is_sent_without_consent(stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def declined(lines: list[str], **_: object) -> bool:
        shown.extend(lines)
        return False

    with FaultServer() as server:
        config = configured(tmp_path / "regraft.yaml", server)
        before = snapshot(tmp_path)
        command = ("fleet", "backfill", stores, "--results", tmp_path / "out.parquet", "--config", config, "--json")
        missing = run_as_given(*command)
        monkeypatch.setattr("regraft.cli.fleet.confirm_plan", declined)
        done = run_as_given(*command)
    codes = [one.document["error"]["code"] for one in (missing, done)]
    assert (missing.status, done.status, codes) == (2, 2, ["ConsentMissing", "Declined"])
    assert (server.requests, snapshot(tmp_path)) == ([], before)
    assert f"  embed {len(WANTED) + 2} texts: about" in shown[1]


def test_a_folder_of_somebody_else_is_not_taken(stores: Path, tmp_path: Path) -> None:
    config = configured(tmp_path / "regraft.yaml", "http://127.0.0.1:9/v1")
    (tmp_path / "out.parquet.backfill").mkdir()
    before = snapshot(tmp_path)
    done = backfill(stores, config)
    assert (done.status, "out.parquet.backfill already exists" in done.stderr) == (2, True)
    assert snapshot(tmp_path) == before


def test_a_library_that_is_none_has_its_reason(stores: Path, tmp_path: Path) -> None:
    (stores / "notes").mkdir()
    with FaultServer() as server:
        done = backfill(stores, configured(tmp_path / "regraft.yaml", server))
    assert (done.status, done.document["libraries"]) == (2, {"all": 4, "done": 3, "refused": 1})
    assert rows_in(stores)["notes"]["code"] == "SourceUnrecognised"
