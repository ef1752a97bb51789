"""Name and describe snapshots of URLs and notes: Markdown after a flat YAML block of JSON-quoted values (OKF).

Rules: ``docs/formats/catalog.md``, "Snapshots", and ``docs/rules.md``, "Snapshots".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from regraft.disk.file_paths import sanitize_name
from regraft.text import JS_WHITESPACE, replace_surrogates, trim, utf16_cut

#: Titles and stems are cut to this many UTF-16 units.
MAX_TITLE_UNITS = 80

_SPACE = "[" + re.escape(JS_WHITESPACE) + "]"
_HEADING = re.compile(f"#{{1,6}}{_SPACE}+")
_BLOCK = re.compile(r"\A---\n(?:[A-Za-z_]+: .*\n)*?---\n")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Name of a snapshot file before it is made unique, and the fields of its frontmatter."""

    stem: str
    type: str
    title: str
    resource: str | None = None

    def block(self, timestamp: str) -> str:
        """Return the YAML frontmatter of the file, from ``---`` to the newline after the second ``---``."""
        fields = {"type": self.type, "title": self.title, "resource": self.resource, "timestamp": timestamp}
        present = ((key, value) for key, value in fields.items() if value is not None)
        lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in present]
        return "".join(["---\n", *lines, "---\n"])


def strip_block(text: str) -> str:
    """Return ``text`` without the frontmatter that it starts with, if any."""
    # Values are JSON-quoted: line breaks inside them are escaped, so no value can end the block early.
    match = _BLOCK.match(text)
    return text[match.end() :] if match else text


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of ``text``, trimmed, without building a list."""
    start = 0
    while start <= len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield trim(text[start:end])
        start = end + 1


def leading_line(text: str) -> str:
    """Return the first heading of ``text`` without its ``#`` marks, else the first non-empty line, else ``""``."""
    first = ""
    for line in _lines(text):
        if heading := _HEADING.match(line):
            return line[heading.end() :]
        first = first or line
    return first


def _cut_title(text: str) -> str:
    """Cut a text to the maximum length of a title (:data:`MAX_TITLE_UNITS`) and trim it."""
    return trim(utf16_cut(text, MAX_TITLE_UNITS))


def _stem(text: str) -> str | None:
    """Turn a title into a file name without suffix. None if the result is empty or ``untitled``."""
    stem = sanitize_name(_cut_title(text))
    return None if stem in ("", "untitled") else stem


def _address(url: str) -> str | None:
    """Return ``<host>-<last path segment>`` as a WHATWG URL parser determines them. None if ``url`` is not a URL."""
    import ada_url  # noqa: PLC0415 - slow to import, and many bases have no URLs

    try:
        parsed = ada_url.URL(url)
    except ValueError:
        return None
    segments = [part for part in parsed.pathname.split("/") if part]
    return "-".join(part for part in (parsed.hostname, *segments[-1:]) if part)


def url_snapshot(url: str, content: str) -> Snapshot:
    """Describe the snapshot of a URL whose indexed text is ``content``."""
    line = leading_line(content)
    address = _address(url)
    stem = _stem(line) or (_stem(address) if address else None) or "page"
    title = _cut_title(line) or (_cut_title(address) if address else "") or url
    return Snapshot(stem=stem, type="URL", title=title, resource=url)


def item_snapshot(kind: str, data: Mapping[str, Any], content: str) -> Snapshot:
    """Describe the snapshot of an item: a URL whose indexed text is ``content``, or a note.

    ``kind`` is the item's type, ``data`` its parsed ``data`` column.
    """
    if kind == "url":
        return url_snapshot(replace_surrogates(data["url"]), content)
    return note_snapshot(replace_surrogates(data["source"]))


def note_snapshot(source: str) -> Snapshot:
    """Describe the snapshot of a note. ``source`` is its source URL or its text."""
    line = next(filter(None, _lines(source)), "")
    return Snapshot(stem=_stem(line) or "note", type="Note", title=line)
