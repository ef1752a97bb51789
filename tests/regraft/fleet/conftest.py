"""A cluster of Ray for all tests of this folder: starting one takes longer than most of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from conftest import REPO


@pytest.fixture(scope="package")
def address() -> Iterator[str]:
    """Start a cluster of two workers on this machine; its processes find what this one finds."""
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
