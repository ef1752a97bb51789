"""Actions and remaining rows of a rescue."""

from __future__ import annotations

from typing import Any


def actions(document: dict[str, Any]) -> list[str]:
    return [action["action"] for action in document["actions"]]


def left(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["finding"], one["reason"]) for one in document["left"]]
