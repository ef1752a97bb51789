"""The present time, and how a time is written: everywhere else times are whole milliseconds since the epoch."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime


def now_ms() -> int:
    """Return the present time in ms."""
    return int(datetime.now(UTC).timestamp() * 1000)


def iso_time(milliseconds: int) -> str:
    """Return a time in ms as ISO 8601 with milliseconds and ``Z``."""
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"


def new_run_id() -> str:
    """Return an id for a run that sorts by its start."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
