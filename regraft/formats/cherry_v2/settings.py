"""A base's settings as a catalog of any build has them, valid by v2's rules (``docs/formats/catalog.md``)."""

from __future__ import annotations

import re
from typing import Any

from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.defaults import DEFAULT_CHUNK_SEPARATOR, DEFAULT_CHUNK_STRATEGY, Settings
from regraft.formats.cherry_v2.values import read_settings
from regraft.records import replace

#: Columns by what the rules of v1's settings call them.
_NUMBERS = {
    "chunkSize": "chunk_size",
    "chunkOverlap": "chunk_overlap",
    "threshold": "threshold",
    "documentCount": "document_count",
}
_STRATEGIES = ("structured", "delimiter")


#: The application keeps a separator as it was typed.
_ESCAPES = {"\\n": "\n", "\\r": "\r", "\\t": "\t", "\\\\": "\\"}
_ESCAPE = re.compile(r"\\[nrt\\]")


def unescaped_separator(settings: Settings) -> str:
    """Return the separator of a base's settings with its escapes replaced, whether the base is cut at it or not."""
    return _ESCAPE.sub(lambda found: _ESCAPES[found[0]], settings.chunk_separator)


def read_base_settings(row: Row) -> tuple[Settings, list[str]]:
    """Return a base's settings and the names of those columns that hold something and are not valid."""
    settings, invalid = read_settings({name: row.get(column) for name, column in _NUMBERS.items()})
    columns = [_NUMBERS[name] for name in invalid]
    separator = row.get("chunk_separator")
    found: dict[str, Any] = {
        "chunk_strategy": _one_of(row.get("chunk_strategy"), _STRATEGIES),
        "chunk_separator": separator if isinstance(separator, str) and separator else None,
    }
    columns += [name for name, value in found.items() if value is None and row.get(name) is not None]
    return (
        replace(
            settings,
            chunk_strategy=found["chunk_strategy"] or DEFAULT_CHUNK_STRATEGY,
            chunk_separator=found["chunk_separator"] or DEFAULT_CHUNK_SEPARATOR,
        ),
        columns,
    )


def _one_of(value: Any, known: tuple[str, ...]) -> str | None:
    return value if isinstance(value, str) and value in known else None
