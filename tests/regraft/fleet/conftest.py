"""What tests of fleets share: a cluster of Ray, and object storage. Starting one takes longer than most of them."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import REPO
from object_store import ENVIRONMENT, object_store


@pytest.fixture(scope="session")
def files() -> Iterator[Any]:
    """Start a server that speaks as S3 does, for this process and those that it starts; return what asks it."""
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("moto", reason="moto is not installed")
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
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    paths = {"env_vars": {"PYTHONPATH": os.pathsep.join([*sys.path, str(REPO)])}}
    context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=paths)
    try:
        yield context.address_info["gcs_address"]
    finally:
        ray.shutdown()


@pytest.fixture
def joined(address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the fleet take the cluster that is there, and leave it."""
    import ray

    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    return address
