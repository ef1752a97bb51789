"""What an item of a catalog holds: the texts that each type has (``docs/formats/catalog.md``, "`data`")."""

from __future__ import annotations

import json
from typing import Any

from regraft.formats import json_text
from regraft.formats.cherry_v2.catalog import MAX_NOTE_UNITS
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.language import joined, tr
from regraft.text import is_blank, utf16_len

#: Texts that the data of each type has, and those that it may have.
DATA = {
    "file": (("source", "relativePath"), ("indexedRelativePath",)),
    "url": (("source", "url"), ("relativePath",)),
    "note": (("source", "content"), ("relativePath",)),
    "directory": (("source",), ("relativePath",)),
}


def data_of(item: Row) -> dict[str, Any]:
    """Return what an item holds; nothing where that is no JSON object."""
    text = item.get("data")
    try:
        found = json_text.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def unknown_fields(item: Row) -> list[str]:
    """Return what an item's data hold that those of its type do not; nobody here throws that away."""
    needed, more = DATA.get(str(item.get("type")), ((), ()))
    return sorted(data_of(item).keys() - {*needed, *more})


def data_problem(item: Row) -> str | None:
    """Return what keeps the application from reading an item's data; None where nothing does."""
    kind = item.get("type")
    if not isinstance(kind, str) or kind not in DATA or "data" not in item:
        return None  # the type itself is what is wrong
    data = data_of(item)
    if not data:
        return tr("its data is not a JSON object")
    wrong = _without_text(kind, data)
    if wrong:
        return tr("its data has no text for {wrong}", wrong=joined(wrong))
    if unknown_fields(item):
        return tr(
            "its data has {unknown_fields}, which no {kind} has",
            unknown_fields=joined(unknown_fields(item)),
            kind=kind,
        )
    if kind == "note" and utf16_len(data["content"].encode("utf-8", "replace").decode()) > MAX_NOTE_UNITS:
        return tr("its content is longer than {max_note_units:,} units", max_note_units=MAX_NOTE_UNITS)
    return None


def _without_text(kind: str, data: dict[str, Any]) -> list[str]:
    """Return the fields of an item's data that should be texts and are none, or are blank ones."""
    needed, more = DATA[kind]
    wrong = [name for name in needed if not isinstance(data.get(name), str)]
    wrong += [name for name in more if not isinstance(data.get(name, ""), str)]
    # Only what a note holds may be empty: a path or an address has to lead somewhere.
    return wrong + [name for name in needed if name not in ("content", *wrong) and is_blank(data[name])]


def data_damage(item: Row) -> str | None:
    """Return the same, but for what a later release may write besides."""
    more = unknown_fields(item)
    known = {name: value for name, value in data_of(item).items() if name not in more}
    return data_problem({**item, "data": json.dumps(known)} if more else item)
