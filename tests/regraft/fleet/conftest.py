"""What tests of fleets share: a cluster of Ray, and object storage, which start slowly; libraries without vectors."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleet_work
import pytest
from harness import REPO
from lacking import OTHER, OTHER_TEXTS, library, many, taken_away
from object_store import ENVIRONMENT, object_store
from patience import NEVER_SECONDS, TEST_SECONDS, no_longer_than, start_ray
from three_libraries import MORE, NAMES


@pytest.fixture(scope="session")
def files() -> Iterator[Any]:
    """Start a server that speaks as S3 does, for this process and those that it starts; return what asks it."""
    import fsspec

    before = dict(os.environ)
    with object_store() as url:
        os.environ.update(ENVIRONMENT, AWS_ENDPOINT_URL=url)
        try:
            yield fsspec.filesystem("s3", use_listings_cache=False)
        finally:
            os.environ.clear()
            os.environ.update(before)


@pytest.fixture
def bucket(files: Any) -> str:
    """Return the URL of a bucket of its own."""
    name = f"bucket-{secrets.token_hex(4)}"
    files.mkdir(name)
    return f"s3://{name}"


@pytest.fixture(scope="package")
def address(files: Any) -> Iterator[str]:
    """Start a cluster of two workers on this machine; its processes find what this one finds, and object storage."""
    import ray

    paths = {"env_vars": {"PYTHONPATH": os.pathsep.join([*sys.path, str(REPO)])}}
    # "local": another process of the tests may have a cluster of its own, which Ray would join.
    settings = {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False, "runtime_env": paths}
    context = start_ray(lambda: ray.init("local", **settings))
    try:
        yield context.address_info["gcs_address"]
    finally:
        ray.shutdown()


@pytest.fixture
def joined(address: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """Let the fleet take the cluster that is there, and leave it; a test that hangs fails."""
    import ray

    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    is_slow = any(request.node.iter_markers("slow"))
    with no_longer_than(NEVER_SECONDS if is_slow else TEST_SECONDS, request.node.name):
        yield address


@pytest.fixture(scope="package")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library that lacks vectors in both of its bases; no test changes it."""
    store = taken_away(library(tmp_path_factory.mktemp("whole")))
    return taken_away(store, OTHER_TEXTS["page"][:1], OTHER)


@pytest.fixture
def stores(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of three libraries that lack the same vectors, but for one that has more texts."""
    fleet_work.put_in_place(monkeypatch)
    folder = tmp_path / "stores"
    for name in NAMES:
        shutil.copytree(whole, folder / name)
    assert set(many(folder / "clara", len(MORE))) == MORE
    return folder
