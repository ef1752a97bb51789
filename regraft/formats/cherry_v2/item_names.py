"""What the application calls an item in its lists (``docs/search.md``, "Names of items")."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from regraft.text import is_blank, trim, whole

_SEPARATORS = re.compile(r"[/\\]+")
_LINE_ENDS = re.compile("\r\n|[\n\r\u2028\u2029]")


def item_name(kind: object, data: Mapping[str, Any]) -> str | None:
    """Return the name of an item, None where nothing says it.

    A url is called by its address; a note by its file without ``.md``, else by the first line of its source or text;
    everything else by the last part of its path.

    Args:
        kind: the item's type.
        data: what its column ``data`` holds.
    """
    names: tuple[str, ...]
    source, path = data.get("source"), data.get("relativePath")
    match kind:
        case "url":
            names = (_text(data.get("url")), _text(source))
        case "note":
            names = (_last(path).removesuffix(".md"), _first_line(source), _first_line(data.get("content")))
        case _:
            names = (_last(path), _last(source))
    return next((whole(name) for name in names if name), None)


def _text(value: object) -> str:
    return trim(value) if isinstance(value, str) else ""


def _last(path: object) -> str:
    """Return the last part of a path of either system; empty where there is none."""
    parts = _SEPARATORS.split(path) if isinstance(path, str) else []
    return next((part for part in reversed(parts) if not is_blank(part)), "")


def _first_line(value: object) -> str:
    """Return the first line that is not blank."""
    lines = _LINE_ENDS.split(value) if isinstance(value, str) else []
    return next(filter(None, map(trim, lines)), "")
