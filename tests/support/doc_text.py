"""What the docs say: their sentences, code, headings and sections."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import REPO

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def text_of(page: Path | str) -> str:
    return (REPO / page).read_text("utf-8")


def fences(text: str) -> list[tuple[str, str]]:
    """Return the language and the content of every code fence that a reader sees."""
    return [(found[2], found[3]) for found in _FENCE.finditer(_COMMENT.sub("", text))]


def prose(text: str) -> str:
    """Return a page without comments and code fences."""
    return _FENCE.sub("", _COMMENT.sub("", text))


def spans(text: str) -> list[str]:
    """Return the code spans of a page."""
    return re.findall(r"`([^`\n]+)`", prose(text))


def headings(text: str) -> list[str]:
    return [found.strip() for found in re.findall(r"^#{1,6} +(.+)$", prose(text), re.MULTILINE)]


def section(text: str, heading: str) -> str:
    """Return what stands under a heading, up to the next one of its level or above."""
    marks = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert marks is not None, f"there is no section {heading}"
    rest = text[marks.end() :]
    after = re.search(rf"^#{{1,{len(marks[1])}}} ", rest, re.MULTILINE)
    return rest[: after.start()] if after else rest


def keys(value: Any, *, data: bool = False) -> Iterator[str]:
    """Return the names of a document's keys; what is keyed by data (ids, codes, statuses, lengths) is passed over."""
    if isinstance(value, list):
        for entry in value:
            yield from keys(entry)
    elif isinstance(value, dict):
        for name, entry in value.items():
            if not data:
                yield name
            keyed = ("skipped", "items", "lengths", "by_status", "by_type")
            keyed_by_data = name in keyed or (data and isinstance(entry, dict))
            yield from keys(entry, data=keyed_by_data)
