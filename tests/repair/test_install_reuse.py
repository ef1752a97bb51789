"""``install --reuse``: what a copied base lacks is filled byte for byte with proven vectors, and nothing is sent."""

from __future__ import annotations

import os
import shutil
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from fault_server import FaultServer, vector_of
from faults import Tripwire, forked, untouched
from harness import NOW, Outcome, run
from lacking import KB, LACKING, MODEL, TEXTS, all_vectors, library, taken_away, vectors
from profiles import profile, tables
from stand_ins import KILLED, die

from regraft import api, identity
from regraft.disk import sqlite
from regraft.ledger import ledger
from repair.cherry_v2.index_vectors import IndexScope
from repair.cherry_v2.install import base_copy
from repair.embedding import vector_sources

READY = [text for text in TEXTS if text not in LACKING]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a cache of its own."""
    monkeypatch.setattr(vector_sources, "cache_folder", lambda: tmp_path / "cache")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the library with all vectors; no test changes it."""
    place = tmp_path_factory.mktemp("built")
    library(place)
    return place / "library"


@pytest.fixture
def lacking(built: Path, tmp_path: Path) -> Path:
    """Return a library that lacks two thirds of the vectors of its first base."""
    return taken_away(shutil.copytree(built, tmp_path / "lacking" / "library"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return profile(tmp_path / "profile")


def install(source: Path, target: Path, *options: object) -> Outcome:
    return run(*("install", source, "--profile", target, "--recreate-model", MODEL, "--now", NOW, "--json", *options))


def installed_vectors(target: Path, base: str = KB) -> dict[str, bytes]:
    with sqlite.open_readonly(target / "Data" / "KnowledgeBase" / base / ".cherry" / "index.sqlite") as db:
        return dict(
            db.execute("SELECT DISTINCT text, vector_blob FROM search_text JOIN embedding USING (embedding_text_hash)")
        )


def as_float16(vector: bytes) -> bytes:
    return struct.pack(f"<{len(vector) // 4}f", *struct.unpack(f"<{len(vector) // 4}e", half_of(vector)))


def half_of(vector: bytes) -> bytes:
    return struct.pack(f"<{len(vector) // 4}e", *struct.unpack(f"<{len(vector) // 4}f", vector))


def changed(store: Path, place: Path, change: str, *values: object) -> Path:
    """Return a copy of a library in which a statement has changed the index of the first base."""
    copy = shutil.copytree(store, place)
    with closing(apsw.Connection(str(copy / "KnowledgeBase" / KB / ".cherry" / "index.sqlite"))) as db:
        db.create_scalar_function("other_vector", lambda key: vector_of(f"{key} as another model sees it"))
        db.create_scalar_function("rounded", as_float16)
        db.execute(change, values)
    return copy


def without(store: Path, place: Path, texts: list[str]) -> Path:
    return taken_away(shutil.copytree(store, place), texts)


def filled(done: Outcome) -> dict[str, Any]:
    [scope] = done.document["scopes"]
    return dict(scope)


@pytest.mark.thorough
def test_what_the_copy_lacks_is_filled_in_one_plan_and_one_undo(lacking, built, target, server: FaultServer):
    before = tables(target)
    with untouched(lacking, built, target):
        planned = install(lacking, target, "--reuse", built, "--dry-run")
    with untouched(lacking, built):
        done = install(lacking, target, "--reuse", built)
    assert (planned.status, done.status) == (0, 0), done
    assert server.texts == []
    assert installed_vectors(target) == all_vectors()
    for result in (planned, done):
        [action] = [one for one in result.document["actions"] if one["action"] == "reuse-vectors"]
        assert (action["base"], action["subject"], action["count"]) == (KB, str(built), len(LACKING))
        assert action["message"] == f"take {len(LACKING)} vectors from {built} (Base kb)"
        assert result.document["left"] == []
    assert (filled(planned)["reused"], filled(planned)["planned"]["reused"]) == (0, len(LACKING))
    scope = filled(done)
    assert (scope["scope"], scope["reused"], scope["ready"], scope["requests"]) == (KB, len(LACKING), len(TEXTS), 0)
    assert scope["planned"]["texts"] == 0
    assert scope["reused_from"] == [
        {
            "source": str(built),
            "base": "Base kb",
            "model_id": MODEL,
            "planned": len(LACKING),
            "reused": len(LACKING),
            "compared": len(READY),
            "reason": None,
        }
    ]
    assert run("check", target, "--deep", "--base", KB, "--json").document["findings"] == []
    # A second run, with and without the other store, has nothing to do.
    with untouched(target):
        for options in ((), ("--reuse", built)):
            again = install(lacking, target, *options)
            assert (again.status, again.document["actions"], again.document["left"]) == (0, [], []), again
    assert run("undo", target, "-q", "--yes").status == 0
    assert tables(target) == before
    assert not (target / "Data" / "KnowledgeBase" / KB).exists()


def test_the_bytes_are_those_of_the_other_store(lacking, built, target, tmp_path):
    rounded = changed(built, tmp_path / "rounded", "UPDATE embedding SET vector_blob = rounded(vector_blob)")
    theirs = vectors(rounded)
    assert theirs != all_vectors()
    assert install(lacking, target, "--reuse", rounded).status == 0
    assert installed_vectors(target) == {text: theirs[text] if text in LACKING else vector_of(text) for text in TEXTS}


@pytest.mark.thorough
def test_a_new_base_beside_the_old_one_is_filled_as_well(lacking, built, target):
    assert install(built, target).status == 0
    done = install(lacking, target, "--as-new", "--reuse", built, "--base", KB)
    # The base with all vectors is there already, so that this one would be the same.
    copy = identity.copied_base_id(KB)
    assert [one["finding"] for one in done.document["left"]] == ["base.exists"], done
    assert installed_vectors(target, copy) == all_vectors()
    assert filled(done)["scope"] == copy


@pytest.mark.thorough
def test_some_vectors_are_taken_and_the_rest_is_named(lacking, built, target, tmp_path, server: FaultServer):
    some = without(built, tmp_path / "some", LACKING[4:])
    done = install(lacking, target, "--reuse", some)
    assert done.status == 1, done
    left = len(LACKING) - 4
    [reason] = done.document["left"]
    assert (reason["finding"], reason["base"], reason["count"]) == ("embedding.missing", KB, left)
    assert reason["reason"] == f"{left} texts left without a vector: no source has one that is proven"
    assert reason["repair"] == f"regraft backfill {target} --base {KB}"
    assert installed_vectors(target) == all_vectors([*READY, *LACKING[:4]])
    assert server.texts == []


@pytest.mark.thorough
def test_a_model_name_that_lies_gives_nothing_and_is_named(lacking, built, target, tmp_path):
    liar = changed(built, tmp_path / "liar", "UPDATE embedding SET vector_blob = other_vector(embedding_text_hash)")
    done = install(lacking, target, "--reuse", liar)
    assert done.status == 1, done
    [reason] = done.document["left"]
    assert f"no vectors from {liar} (Base kb): the lowest cosine of its vectors and those of" in reason["reason"]
    assert installed_vectors(target) == all_vectors(READY)
    assert not [one for one in done.document["actions"] if one["action"] == "reuse-vectors"]


@pytest.mark.thorough
def test_what_has_no_text_in_common_cannot_be_proven(lacking, built, target, tmp_path):
    apart = without(built, tmp_path / "apart", READY)
    done = install(lacking, target, "--reuse", apart)
    assert done.status == 1, done
    assert (
        "no text has a vector in both, and nothing can be compared without an embedder"
        in (done.document["left"][0]["reason"])
    )
    assert installed_vectors(target) == all_vectors(READY)


@pytest.mark.thorough
def test_the_configuration_lists_sources_and_a_missing_one_is_an_error_only_if_it_is_named(
    lacking, built, target, tmp_path
):
    config = tmp_path / "regraft.yaml"
    config.write_text(f"reuse: [elsewhere.zip, {built}]\nembedders: {{}}\n", "utf-8")
    planned = install(lacking, target, "--config", config, "--no-reuse", "--dry-run")
    assert (planned.status, planned.document["scopes"]) == (0, [])
    with untouched(target):
        refused = install(lacking, target, "--reuse", tmp_path / "elsewhere.zip")
    assert (refused.status, refused.document["error"]["code"]) == (2, "SourceNotFound")
    report = api.install(lacking, target, config=config, recreate_model=[MODEL])
    assert [(one.scope, one.reused) for one in report.scopes] == [(KB, len(LACKING))]
    assert installed_vectors(target) == all_vectors()


@pytest.mark.thorough
def test_after_a_kill_at_any_write_the_same_command_completes_it(lacking, built, tmp_path, monkeypatch):
    def wire(patch: pytest.MonkeyPatch, at: int) -> Tripwire:
        found = Tripwire(patch, die, at)
        found.watch(os, "mkdir", "replace", "rmdir", "unlink").watch(base_copy, "_copy_bytes").watch(
            IndexScope, "write"
        )
        return found.watch(ledger.Ledger, "begin_run", "end_run").watch(ledger.ChangeLog, "intend", "set_state")

    # The first run collects the hashes of the other store, too.
    assert install(lacking, profile(tmp_path / "first"), "--reuse", built).status == 0
    with monkeypatch.context() as patch:
        counter = wire(patch, 10**9)
        assert install(lacking, profile(tmp_path / "counted"), "--reuse", built).status == 0
    steps = len(counter.steps)
    assert steps > 15 and any("write" in step for step in counter.steps)
    written = 1 + next(number for number, step in enumerate(counter.steps) if "write" in step)
    for step in sorted({1, steps // 4, written, written + 1, 3 * steps // 4}):
        target = profile(tmp_path / f"profile-{step}")
        with monkeypatch.context() as patch:
            tripped = wire(patch, step)
            assert forked(lambda target=target: install(lacking, target, "--reuse", built)) == KILLED, tripped.where
        done = install(lacking, target, "--reuse", built)
        assert done.status == 0, (step, done)
        assert installed_vectors(target) == all_vectors()
        assert run("check", target, "--deep", "--base", KB, "--json").document["findings"] == []
