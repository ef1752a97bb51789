"""A base that comes as a new one: its ids, and those of its items, in the rows of the catalog and of the index.

Ids follow from those that were there (``docs/rules.md``, "Install"), so that a second run gives the same. Texts and
vectors stay as they are: they are keyed by what they say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regraft import identity, sqlite, untouched
from regraft.formats import json_text
from regraft.formats.cherry_v2.catalog_reader import Row

#: What of an item's data can be its own id: files of folders that 2.0.0 to 2.0.3 migrated have it for a path.
_PATHS = ("relativePath", "indexedRelativePath")


@dataclass(frozen=True)
class NewIds:
    """The ids of a base's copy: its own, and those of its items by the ids and times of creation that they had."""

    origin: str
    created: Mapping[str, int | None]

    @cached_property
    def base(self) -> str:
        """Return the id of the copy."""
        return identity.copied_base_id(self.origin)

    def item(self, old: Any) -> Any:
        """Return the new id of an item or a material; None stays None."""
        if not isinstance(old, str):
            return old
        return identity.restored_item_id(self.base, old, self.created.get(old))

    def row(self, row: Row) -> Row:
        """Return a row of an item with its new ids, and with its path where that was its id."""
        new = {"id": self.item(row.get("id")), "base_id": self.base, "group_id": self.item(row.get("group_id"))}
        return {**row, **new, "data": self._data(row.get("data"), row.get("id"))}

    def _data(self, data: Any, old: Any) -> Any:
        if not isinstance(data, str) or not isinstance(old, str) or old not in data:
            return data
        try:
            fields = json_text.loads(data)
        except (ValueError, RecursionError):
            return data
        own = [name for name in _PATHS if isinstance(fields, dict) and fields.get(name) == old]
        if not own:
            return data
        return json.dumps({**fields, **dict.fromkeys(own, self.item(old))}, ensure_ascii=False, separators=(",", ":"))


def rekey(index: Path, ids: NewIds) -> None:
    """Give the rows of an index, which is nobody's yet, the ids of a copy.

    Raises:
        apsw.Error: it cannot be read or written.
    """
    with sqlite.writing(index) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        functions: dict[str, Callable[..., Any]] = {
            "new_item": ids.item,
            "new_unit": identity.unit_id,
            "new_body": identity.body_id,
        }
        for name, function in functions.items():
            db.create_scalar_function(name, function, deterministic=True)
        with sqlite.transaction(db), untouched.others_untouched(db, index, _TABLES):
            for statement in _STATEMENTS:
                db.execute(statement)
            db.execute("UPDATE meta SET base_id = ?", (ids.base,))


_TABLES = ("material", "search_unit", "search_text", "meta")
_STATEMENTS = (
    "CREATE TEMP TABLE renamed (old TEXT PRIMARY KEY, new TEXT NOT NULL) WITHOUT ROWID",
    """INSERT INTO renamed
       SELECT unit_id, new_unit(new_item(material_id), content_hash, unit_index, char_start, char_end)
         FROM search_unit""",
    """UPDATE search_text
          SET target_id = (SELECT new FROM renamed WHERE old = target_id),
              search_text_id = new_body((SELECT new FROM renamed WHERE old = target_id))
        WHERE target_id IN (SELECT old FROM renamed)""",
    """UPDATE search_unit
          SET unit_id = (SELECT new FROM renamed WHERE old = unit_id), material_id = new_item(material_id)""",
    "UPDATE material SET relative_path = new_item(material_id) WHERE relative_path = material_id",
    "UPDATE material SET material_id = new_item(material_id)",
    "DROP TABLE renamed",
)
