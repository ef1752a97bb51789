"""What a server means by an answer without vectors: other texts, another configuration, or later again."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from regraft.formats import json_text
from regraft.keys import redacted
from regraft.text import one_line

#: A reason is no longer than this, in characters.
_LONGEST = 200
_PASSING = {408, 409, 425, 429}
_TEXTS = {400, 413, 422}
#: Nothing left to pay with: waiting does not help.
_UNPAID = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "quota_exceeded"}
#: The request is wrong in what the configuration says, not in its texts.
_CONFIGURED = {"model", "dimensions", "encoding_format"}
_NO_MODEL = re.compile(
    r"\bmodels?\b.{0,120}\b(not (found|exist|available|supported)|unknown|does not exist|isn't (available|loaded))"
    r"|\b(unknown|invalid|no such) model\b|no models? (are )?loaded|matryoshka",
    re.IGNORECASE,
)
#: Servers say this with any status.
_TOO_LONG = re.compile(
    r"context (length|size|window)|maximum (input |sequence |context )?length|too (long|large|many tokens)"
    r"|(input|tokens?|length)\b.{0,40}\bexceeds?\b",
    re.IGNORECASE,
)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer without vectors means.

    ``kind`` is ``texts`` (these are refused, others may not be), ``configuration`` (every request will be refused) or
    ``passing`` (again, after ``wait`` seconds where the server said so). ``reason`` is one line without a key.
    """

    kind: str
    code: str
    reason: str
    wait: float | None = None


def verdict(status: int, headers: Mapping[str, str], body: bytes, key: str | None) -> Verdict:
    """Judge an answer whose status is not of success; the names of ``headers`` are found in any case."""
    error = _error(body)
    message = _message(error, body)
    code = f"http_{status}"
    reason = tidy(f"{status}: {message}" if message.strip() else str(status), key)
    is_passing = status in _PASSING or status >= 500
    if _is_configured(status, error, is_passing=is_passing):
        return Verdict(kind="configuration", code=code, reason=reason)
    if (status >= 500 or not is_passing) and _TOO_LONG.search(message):
        return Verdict(kind="texts", code="context_length_exceeded", reason=reason)
    if is_passing:
        code = "rate_limited" if status == 429 else code
        return Verdict(kind="passing", code=code, reason=reason, wait=retry_after(headers))
    return Verdict(kind="configuration" if _NO_MODEL.search(message) else "texts", code=code, reason=reason)


def _message(error: Mapping[str, Any], body: bytes) -> str:
    """Return what a server says of an error; without any such thing, how its answer begins."""
    said = next((error[name] for name in ("message", "detail", "error", "msg") if error.get(name)), None)
    if isinstance(said, str):
        return said
    return json.dumps(said) if said else body[:2000].decode("utf-8", "replace")


def _is_configured(status: int, error: Mapping[str, Any], *, is_passing: bool) -> bool:
    """Tell whether what is wrong is how the server is asked, not the texts, and will not pass by itself."""
    words = {str(error.get(name)).lower() for name in ("code", "type") if isinstance(error.get(name), str)}
    if is_passing:
        return bool(words & _UNPAID)
    if status not in _TEXTS or error.get("param") in _CONFIGURED:
        return True
    return bool(words & {"model_not_found", "invalid_api_key"})


def _error(body: bytes) -> dict[str, Any]:
    """Return what an answer says of an error: OpenAI puts that under ``error``, others beside or instead of it."""
    try:
        found = json_text.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return found["error"] if isinstance(found.get("error"), dict) else found


def tidy(message: str, key: str | None) -> str:
    """Return a message of a server as one line of at most 200 characters without ``key`` and what looks like one."""
    said = one_line(redacted(message, key))
    return said if len(said) <= _LONGEST else f"{said[: _LONGEST - 1]}…"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server wants to be left alone; None where it does not say."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        said = headers.get(name, "")
        try:
            seconds = float(said) / unit
        except ValueError:
            seconds = math.nan
        if math.isfinite(seconds):
            return max(seconds, 0.0)
    try:
        return max(parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None
