"""The present time, and how a time is written: everywhere else times are whole milliseconds since the epoch."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

#: Times are counted from here: ``datetime.fromtimestamp`` refuses, on Windows, earlier ones and those after 3000.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now_ms() -> int:
    """Return the present time in ms."""
    return int(datetime.now(UTC).timestamp() * 1000)


def moment_of(milliseconds: int) -> datetime:
    """Return a time in ms as a datetime in UTC.

    Raises:
        OverflowError: it lies before the year 1 or after the year 9999.
    """
    return _EPOCH + timedelta(milliseconds=milliseconds)


def iso_time(milliseconds: int) -> str:
    """Return a time in ms as ISO 8601 with milliseconds and ``Z``.

    Raises:
        OverflowError: it lies before the year 1 or after the year 9999.
    """
    return f"{moment_of(milliseconds).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def new_run_id() -> str:
    """Return an id for a run that sorts by its start."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
