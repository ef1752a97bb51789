"""Items of types that a profile's application does not have: external documents that come as files, and what to say of
the others.

An external document is a Markdown file in ``raw/`` that a newer application syncs from a service
(``docs/formats/catalog.md``, "Types of newer applications"). The file is verbatim: as a file item it has the same text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.item_data import DATA, data_of
from regraft.formats.cherry_v2.item_names import item_name
from regraft.language import joined, tr
from regraft.text import counted, one_line

EXTERNAL = "external"
#: The option that turns external items into files.
OPTION = "--external-as-files"
#: So many items are named in a message.
_NAMED = 3


def with_files(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield items as they are installed with :data:`OPTION`: external ones as files.

    An external item in status ``deleting`` is left out: the application has not finished it, or is removing it.
    """
    for row in rows:
        if row.get("type") != EXTERNAL:
            yield row
        elif row.get("status") != "deleting":
            # The application refuses a whole list of items for one further key.
            data = {name: value for name, value in data_of(row).items() if name in DATA["file"][0]}
            text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
            yield {**row, "type": "file", "data": text}


def unfinished(rows: Iterable[Row]) -> list[Row]:
    """Return the external items that :func:`with_files` leaves out."""
    return [row for row in rows if row.get("type") == EXTERNAL and row.get("status") == "deleting"]


def file_of(row: Row) -> str | None:
    """Return the path below ``raw/`` of an external item's file; None where its data do not tell."""
    path = data_of(row).get("relativePath")
    return path if isinstance(path, str) else None


def refusal(refused: dict[str, list[Row]]) -> str:
    """Say that a profile has no items of some types, and which items are of them.

    Args:
        refused: items by their type.
    """
    parts = [
        tr(
            "{items} of the type {type} ({names})",
            items=counted(len(rows), "item"),
            type=one_line(kind),
            names=names_of(rows),
        )
        for kind, rows in sorted(refused.items())
    ]
    message = tr("the profile's application has no such items: {parts}", parts="; ".join(parts))
    if set(refused) == {EXTERNAL}:
        return tr("{message_}; {option} lets them come as files", message_=message, option=OPTION)
    return tr("{message_}; install into a profile of the application that has them", message_=message)


def names_of(rows: list[Row]) -> str:
    """Return the names of a few items, and how many more there are."""
    names = [one_line(_name_of(row)) for row in rows[:_NAMED]]
    more = len(rows) - len(names)
    return joined(names) if not more else tr("{names} and {more} more", names=", ".join(names), more=more)


def _name_of(row: Row) -> str:
    data = data_of(row)
    title = data.get("title")
    return title if isinstance(title, str) and title.strip() else item_name(row.get("type"), data) or str(row.get("id"))
