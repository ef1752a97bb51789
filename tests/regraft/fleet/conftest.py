"""What tests of fleets share."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
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
