"""What an index file of a profile holds already, and whether this regraft knows the profile's layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from regraft import sqlite
from regraft.errors import ProfileUnknown, SourceUnreadable
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.index import SCHEMA_VERSION
from regraft.formats.cherry_v2.index.opening import UNREADABLE, demand_identity
from regraft.formats.cherry_v2.index.vector_lengths import expected_length, lengths_of
from regraft.language import tr
from repair.changes.store import Store


class Held(msgspec.Struct, frozen=True):
    """What an index file holds: the paths of its materials by their ids, and the length of its vectors in bytes."""

    #: Whether there are rows that a new file would take away.
    has_rows: bool = False
    materials: dict[str, str] = msgspec.field(default_factory=dict)
    vector_bytes: int | None = None

    def lacks(self, item: Row) -> bool:
        """Tell whether an item that is completed has no text here."""
        is_to_have = item.get("type") in ("file", "url", "note") and item.get("status") == "completed"
        return is_to_have and item.get("id") not in self.materials


_TABLES = ("material", "search_unit", "search_text", "embedding")


def held_by(path: Path, base_id: str, dimensions: int | None) -> Held | None:
    """Read what the index of a base holds; None where there is no file.

    Args:
        path: the index file.
        base_id: the id of the base.
        dimensions: those of the catalog; without them the vectors have the length that most of them have.

    Raises:
        RegraftError: it is damaged, of another version or base, or a log of it lies there alone.
    """
    if not sqlite.is_database(path) and sqlite.companions(path):
        # SQLite would work it into whatever file comes in this place.
        raise SourceUnreadable(path=path, reason=tr("only its log or journal is whole"))
    if not path.exists():
        return None
    try:
        with sqlite.reading(path) as db:
            if db.execute("SELECT 1 FROM sqlite_schema").get is None:
                return Held()
            demand_identity(db, path, base_id)
            has_rows = any(db.execute(f"SELECT 1 FROM {table} LIMIT 1").get is not None for table in _TABLES)
            rows = sqlite.lenient_rows(db, ("material_id", "relative_path"), "material")
            materials = {str(material): str(path) for material, path in rows}
            lengths = lengths_of(db)
            return Held(has_rows, materials, expected_length(lengths, dimensions) if lengths else None)
    except UNREADABLE as error:
        raise SourceUnreadable(path=path, reason=error) from error


def demand_known_version(store: Store) -> None:
    """Refuse a profile whose application keeps indexes in another version: it would empty what is written.

    Raises:
        ProfileUnknown
    """
    versions = sorted(_versions(store))
    newest = versions[-1] if versions else None
    highest = max(versions, key=lambda one: one[1], default=None)
    for found in (highest, newest):
        if found is not None and found[1] != SCHEMA_VERSION and (found is newest or found[1] > SCHEMA_VERSION):
            what = tr(
                "an index of version {found}, not {schema_version}, in its base {found2}",
                found=found[1],
                schema_version=SCHEMA_VERSION,
                found2=found[2],
            )
            raise ProfileUnknown(path=store.root, what=what)


def _versions(store: Store) -> Iterator[tuple[int, int, str]]:
    """Return when each index was made (ms), its version, and its base."""
    for base, one in store.stores.items():
        try:
            with sqlite.reading(store.root / one.name) as db:
                row = db.execute("SELECT created_at, schema_version FROM meta WHERE id = 1").fetchone()
        except UNREADABLE:
            continue  # damaged, or of another layout
        if row is not None and isinstance(row[0], int) and isinstance(row[1], int):
            yield row[0], row[1], base
