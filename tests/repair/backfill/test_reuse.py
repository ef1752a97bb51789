"""``--reuse``: vectors that another store has are taken byte for byte, and those of another model never are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fault_server import FaultServer
from faults import untouched
from lacking import LACKING, MODEL, TEXTS, all_vectors, backfill, library, scope_of, taken_away, vectors

pytest.importorskip("openai", reason="the client of embedding servers is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a v1 folder and the library that it makes; no test changes them."""
    place = tmp_path_factory.mktemp("built")
    library(place)
    return place


@pytest.fixture
def whole(built: Path) -> Path:
    return built / "library"


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return taken_away(shutil.copytree(whole, tmp_path / "store" / "library"))


def sent(server: FaultServer) -> list[str]:
    return [text for request in server.requests for text in request.texts]


def test_nothing_is_sent_where_a_library_has_every_vector(
    store: Path, whole: Path, server: FaultServer, config: Path
) -> None:
    with untouched(whole):
        done = backfill(store, config, "--reuse", whole)
    assert done.status == 0, done
    assert sent(server) == []
    assert vectors(store) == all_vectors()
    scope = scope_of(done)
    assert (scope["reused"], scope["newly_ready"], scope["requests"]) == (len(LACKING), len(LACKING), 0)
    assert scope["reused_from"] == [
        {
            "source": str(whole),
            "base": "Base kb",
            "model_id": MODEL,
            "planned": len(LACKING),
            "reused": len(LACKING),
            "compared": len(TEXTS) - len(LACKING),
            "reason": None,
        }
    ]
