"""Damage to v2 libraries, one kind for each thing that can be wrong with them (``docs/testing.md``, "Damage")."""

from __future__ import annotations

import json
import struct
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hypothesis import strategies as st

from regraft import areas, identity, sqlite
from regraft.formats.cherry_v2.index import IndexStore
from regraft.formats.cherry_v2.index.schema import TRIGGERS
from regraft.testing import planting
from regraft.testing.library import LibraryCase, libraries
from regraft.testing.planting import (
    STRAY_BASE,
    Plant,
    Target,
    in_bytes,
    in_catalog,
    in_index,
    in_schema,
    in_vector,
)


@dataclass(frozen=True)
class Planted:
    """What an audit has to find of planted damage (``docs/findings.md``, "v2 data").

    ``base`` is the base's id, None where it is the whole library. ``subject`` is what it is about, None where that
    depends on the auditor.
    """

    finding: str
    base: str | None
    subject: str | None


@dataclass(frozen=True)
class Damage:
    """One kind of damage: the finding that it is, what does it, and how deep an audit has to look to see it."""

    finding: str
    plants: Plant
    level: Literal["quick", "default", "deep"] = "quick"
    #: What the finding is filed under: the damaged base, the library, or a base that the damage brings in.
    about: Literal["base", "library", "stray"] = "base"

    def plant(self, library: Path, base_id: str, choice: int = 0) -> Planted:
        """Damage a library on disk.

        Args:
            library: its folder.
            base_id: a completed base with vectors, in which there are completed items of every type, with their files
                in ``raw/``.
            choice: which row or file is hit, where there are several.

        Raises:
            ValueError: the base has nothing that could be damaged like this.
        """
        with areas.opened(library):
            subject = self.plants(Target(library, base_id, choice))
        base = {"base": base_id, "library": None, "stray": STRAY_BASE}[self.about]
        return Planted(self.finding, base, subject)


@dataclass(frozen=True)
class DamagedCase:
    """A valid library with one damage in its first base."""

    library: LibraryCase
    damage: Damage
    choice: int

    @property
    def expected(self) -> str:
        """Return the name of the finding that an audit must give."""
        return self.damage.finding

    def write(self, folder: Path) -> Planted:
        """Write the damaged library to a folder, which does not exist yet, and return what is to be found there."""
        return self.damage.plant(self.library.write(folder), self.library.bases[0].id, self.choice)


def damages(*findings: str) -> st.SearchStrategy[Damage]:
    """Return damages that are one of these findings; without any, of all."""
    return st.sampled_from([one for one in DAMAGES.values() if not findings or one.finding in findings])


def damaged_libraries(*findings: str) -> st.SearchStrategy[DamagedCase]:
    """Return libraries with one damage each that is one of these findings; without any, of all."""
    return st.builds(DamagedCase, libraries(whole=True), damages(*findings), st.integers(0, 99))


# --- rows that can be hit ------------------------------------------------------------------------------------------

_CONTENTS = "SELECT rowid, content_hash FROM content"
_MATERIALS = "SELECT material.rowid, material_id FROM material"
_CUT = "EXISTS (SELECT 1 FROM search_unit u WHERE u.material_id = material.material_id)"
_UNITS = "SELECT rowid, unit_id FROM search_unit"
_LAST_UNITS = (
    "SELECT rowid, material_id FROM search_unit u WHERE unit_index > 0 AND unit_index ="
    " (SELECT max(unit_index) FROM search_unit o WHERE o.material_id = u.material_id)"
)
_BODIES = "SELECT rowid, search_text_id FROM search_text"
_ITEMS = "SELECT rowid, {} FROM knowledge_item WHERE base_id = :base AND status = 'completed' AND type = '{}'"
_FILES, _NOTES, _FOLDERS = (_ITEMS.format("id", kind) for kind in ("file", "note", "directory"))

# --- what is done to them ------------------------------------------------------------------------------------------

_MATERIAL = "UPDATE material SET {} WHERE rowid = :row"
_UNIT = "UPDATE search_unit SET {} WHERE rowid = :row"
_BODY = "UPDATE search_text SET {} WHERE rowid = :row"
_ITEM = "UPDATE knowledge_item SET {} WHERE rowid = :row"
_BASE = "UPDATE knowledge_base SET {} WHERE id = :base"
_NOBODYS = "a text of nobody"
_NO_UPDATES = "DROP TRIGGER search_text_au"
_UPDATES = next(trigger for trigger in TRIGGERS if "search_text_au" in trigger)


def _data(**fields: str) -> str:
    return f"data = '{json.dumps(fields)}'"


def _path(path: str) -> Plant:
    return in_index(_MATERIAL.format(f"relative_path = {path}"), rows="SELECT rowid, NULL FROM material")


def _of_file(*changes: str) -> Plant:
    return in_catalog(*(_ITEM.format(change) for change in changes), rows=_FILES)


def _of_folder(change: str) -> Plant:
    return in_catalog(_ITEM.format(change), rows=_FOLDERS)


def _of_base(change: str) -> Plant:
    return in_catalog(_BASE.format(change))


def _last_number(number: float) -> Plant:
    return in_vector(lambda vector: vector[:-4] + struct.pack("<f", number))


def _file_without_text(target: Target) -> str:
    with sqlite.reading(target.catalog) as db:
        _, item = target.chosen(db.execute(_FILES, {"base": target.base_id}).fetchall())
    with IndexStore(target.index, target.base_id) as store:
        store.delete_materials([str(item)])
    return str(item)


#: Every kind of damage under a name of its own.
DAMAGES: dict[str, Damage] = {
    # --- files
    "random bytes": Damage("file.unreadable", in_bytes(lambda _: bytes(range(256)) * 9)),
    "half a file": Damage("file.unreadable", in_bytes(lambda raw: raw[: len(raw) // 2])),
    "an empty file": Damage("file.unreadable", in_bytes(lambda _: b"")),
    "no catalog": Damage("file.unreadable", planting.no_catalog, about="library"),
    "pages of zeros": Damage("file.corrupt", in_bytes(lambda raw: raw[:8192] + bytes(8192) + raw[16384:])),
    "a journal": Damage("file.hot-journal", planting.hot_journal),
    # --- the index as a whole
    "no index on hashes": Damage("schema.missing", in_index("DROP INDEX search_text_embedding_hash_idx")),
    "no trigger": Damage("schema.missing", in_index("DROP TRIGGER search_text_ad")),
    "no embeddings": Damage("schema.missing", in_index("DROP TABLE embedding")),
    "an idle trigger": Damage(
        "schema.missing",
        in_index(
            "DROP TRIGGER search_text_ad",
            "CREATE TRIGGER search_text_ad AFTER DELETE ON search_text BEGIN SELECT 1; END",
        ),
    ),
    "a lenient check": Damage("schema.missing", in_schema("unit_index >= 0", "unit_index >= -9")),
    "another key": Damage("schema.missing", in_schema("ON DELETE CASCADE", "ON DELETE SET NULL")),
    "a foreign trigger": Damage(
        "schema.foreign-trigger",
        in_index("CREATE TRIGGER foreign_ad AFTER DELETE ON embedding BEGIN DELETE FROM search_unit; END"),
    ),
    "an index of the full text": Damage(
        "schema.foreign-text-index",
        in_index("CREATE INDEX text_index ON search_text_fts_data (id COLLATE NOCASE)"),
    ),
    "a foreign view": Damage("schema.foreign-view", in_index("CREATE VIEW foreign_view AS SELECT 1 AS one")),
    "a foreign column": Damage("schema.foreign-column", in_index("ALTER TABLE material ADD COLUMN foreign_one TEXT")),
    "a foreign index": Damage("schema.foreign-index", in_index("CREATE INDEX foreign_idx ON search_unit (unit_type)")),
    "version 1": Damage("schema.version", in_index("UPDATE meta SET schema_version = 1")),
    "version 3": Damage("schema.version", in_index("UPDATE meta SET schema_version = 3")),
    "a version in words": Damage("schema.version", in_index("UPDATE meta SET schema_version = 'two'")),
    "a preview store": Damage("schema.preview", planting.preview_store, about="stray"),
    "no identity": Damage("meta.missing", in_index("DELETE FROM meta")),
    "another base": Damage("meta.base-id", in_index("UPDATE meta SET base_id = 'other'")),
    # --- texts and materials
    "another text": Damage(
        "content.hash", in_index("UPDATE content SET text = text || '!' WHERE rowid = :row", rows=_CONTENTS), "default"
    ),
    "a text of bytes": Damage(
        "content.hash", in_index("UPDATE content SET text = x'ff' WHERE rowid = :row", rows=_CONTENTS), "default"
    ),
    "a text of nobody": Damage(
        "content.orphan",
        in_index(
            f"INSERT INTO content VALUES ('{identity.text_hash(_NOBODYS)}', '{_NOBODYS}', 0)",
            rows=f"SELECT 0, '{identity.text_hash(_NOBODYS)}'",
        ),
    ),
    "no text": Damage(
        "material.no-content",
        in_index(_MATERIAL.format("current_content_hash = NULL"), rows=f"{_MATERIALS} WHERE {_CUT}"),
    ),
    "a text that is gone": Damage(
        "material.no-content",
        in_index(_MATERIAL.format("current_content_hash = 'gone'"), rows=f"{_MATERIALS} WHERE {_CUT}"),
    ),
    "a way out": Damage("material.path-unsafe", _path("'../x'")),
    "a backslash": Damage("material.path-unsafe", _path("'a\\b'")),
    "an absolute path": Damage("material.path-unsafe", _path("'/etc/x'")),
    "a drive": Damage("material.path-unsafe", _path("'C:/x'")),
    "a path in .cherry": Damage("material.path-unsafe", _path("'.CHERRY/x'")),
    "a path with NUL": Damage("material.path-unsafe", _path("'a' || char(0)")),
    "a path with //": Damage("material.path-unsafe", _path("'a//b'")),
    "a path of no text": Damage("material.path-unsafe", _path("CAST(x'ff' AS TEXT)")),
    "two paths that meet": Damage(
        "material.path-clash",
        in_index(
            "UPDATE material SET relative_path = 'KÜCHE.md' WHERE rowid = (SELECT min(rowid) FROM material)",
            f"UPDATE material SET relative_path = '{unicodedata.normalize('NFD', 'Küche.md')}'"
            " WHERE rowid = (SELECT max(rowid) FROM material)",
        ),
    ),
    "no units": Damage(
        "material.no-units",
        in_index(
            "DELETE FROM search_unit WHERE material_id = (SELECT material_id FROM material WHERE rowid = :row)",
            rows=f"{_MATERIALS} JOIN content ON content_hash = current_content_hash"
            f" WHERE {_CUT} AND trim(text, char(32, 9, 10, 13)) <> ''",
        ),
    ),
    # --- units and bodies
    "a place one off": Damage(
        "unit.offsets",
        in_index(_UNIT.format("char_end = char_end - 1"), rows=f"{_UNITS} WHERE char_end > char_start"),
        "default",
    ),
    "a place beyond": Damage("unit.offsets", in_index(_UNIT.format("char_end = 100000"), rows=_UNITS), "default"),
    "a place in words": Damage("unit.offsets", in_index(_UNIT.format("char_end = 'end'"), rows=_UNITS), "default"),
    "another unit id": Damage(
        "unit.id",
        in_index(
            "UPDATE search_text SET target_id = 'u' WHERE target_id = (SELECT unit_id FROM search_unit"
            " WHERE rowid = :row)",
            _UNIT.format("unit_id = 'u'"),
            rows="SELECT rowid, 'u' FROM search_unit",
        ),
        "default",
    ),
    "a gap": Damage(
        "unit.gap", in_index(_UNIT.format("unit_index = 70"), rows="SELECT rowid, material_id FROM search_unit")
    ),
    "a lost part": Damage(
        "unit.missing",
        in_index(
            "DELETE FROM embedding WHERE embedding_text_hash ="
            " (SELECT embedding_text_hash FROM search_text t JOIN search_unit u ON u.unit_id = t.target_id"
            " WHERE u.rowid = :row)",
            "DELETE FROM search_text WHERE target_id = (SELECT unit_id FROM search_unit WHERE rowid = :row)",
            "DELETE FROM search_unit WHERE rowid = :row",
            rows=_LAST_UNITS,
        ),
        "default",
    ),
    "a unit of another text": Damage(
        "unit.content",
        in_index(
            _UNIT.format(
                "content_hash = (SELECT c.content_hash FROM content c WHERE c.content_hash <> search_unit.content_hash)"
            ),
            rows=_UNITS,
        ),
    ),
    "a unit of nobody": Damage("unit.content", in_index(_UNIT.format("material_id = 'gone'"), rows=_UNITS)),
    "no body": Damage(
        "unit.no-body",
        in_index("DELETE FROM search_text WHERE rowid = :row", rows="SELECT rowid, target_id FROM search_text"),
    ),
    "another body id": Damage(
        "body.id",
        in_index(_BODY.format("search_text_id = 'b'"), rows="SELECT rowid, 'b' FROM search_text"),
        "default",
    ),
    "another body": Damage("body.hash", in_index(_BODY.format(f"text = '{_NOBODYS}'"), rows=_BODIES), "default"),
    "a body of bytes": Damage(
        "body.hash", in_index(_NO_UPDATES, _BODY.format("text = x'00ff'"), _UPDATES, rows=_BODIES), "default"
    ),
    "a body of nobody": Damage(
        "body.orphan",
        in_index(
            "DELETE FROM search_unit WHERE rowid = :row",
            rows="SELECT u.rowid, t.search_text_id FROM search_unit u JOIN search_text t ON t.target_id = u.unit_id",
        ),
    ),
    "no number": Damage("body.rowid", in_index(_BODY.format("fts_rowid = NULL"), rows=_BODIES)),
    "a number out of step": Damage("body.rowid", in_index(_BODY.format("fts_rowid = 999"), rows=_BODIES)),
    "one number twice": Damage(
        "body.rowid",
        in_index(
            "DROP INDEX search_text_fts_rowid_uniq",
            _BODY.format("fts_rowid = (SELECT min(fts_rowid) FROM search_text)"),
            rows="SELECT rowid, NULL FROM search_text WHERE fts_rowid > (SELECT min(fts_rowid) FROM search_text)",
        ),
    ),
    "words of no body": Damage(
        "fts.desync", in_index("INSERT INTO search_text_fts (rowid, text) VALUES (900, 'stray')", rows="SELECT 0, 900")
    ),
    "a body without words": Damage(
        "fts.desync",
        in_index(
            "INSERT INTO search_text_fts (search_text_fts, rowid, text)"
            " SELECT 'delete', fts_rowid, text FROM search_text WHERE rowid = :row",
            rows=_BODIES,
        ),
    ),
    "other words": Damage(
        "fts.desync",
        in_index(
            _NO_UPDATES,
            _BODY.format(f"text = '{_NOBODYS}'"),
            _UPDATES,
            rows="SELECT rowid, NULL FROM search_text",
        ),
        "default",
    ),
    # --- vectors
    "no vector": Damage(
        "embedding.missing",
        in_index("DELETE FROM embedding WHERE rowid = :row", rows="SELECT rowid, NULL FROM embedding"),
    ),
    "a vector of nobody": Damage(
        "embedding.orphan", in_index("INSERT INTO embedding VALUES ('h', zeroblob(16), 0)", rows="SELECT 0, 'h'")
    ),
    "vectors without a model": Damage("embedding.unexpected", _of_base("embedding_model_id = NULL, dimensions = NULL")),
    "a long vector": Damage("embedding.length", in_vector(lambda vector: vector + bytes(4)), "default"),
    "an odd vector": Damage("embedding.length", in_vector(lambda vector: vector[:-1]), "default"),
    "a vector in words": Damage(
        "embedding.length",
        in_index(
            "UPDATE embedding SET vector_blob = 'sixteen letters!' WHERE rowid = :row",
            rows="SELECT rowid, embedding_text_hash FROM embedding",
        ),
        "default",
    ),
    "NaN": Damage("embedding.non-finite", _last_number(float("nan")), "default"),
    "infinity": Damage("embedding.non-finite", _last_number(float("-inf")), "default"),
    "zeros": Damage("embedding.zero", in_vector(lambda vector: bytes(len(vector))), "default"),
    "one vector for many": Damage(
        "embedding.duplicate",
        in_index("UPDATE embedding SET vector_blob = (SELECT vector_blob FROM embedding ORDER BY rowid LIMIT 1)"),
        "default",
    ),
    # --- items
    "a name of bytes": Damage("catalog.value", _of_base("name = x'6b62ff'")),
    "a file without text": Damage("item.no-material", _file_without_text),
    "a note never indexed": Damage(
        "item.not-indexed",
        in_catalog(
            'INSERT INTO knowledge_item VALUES (\'n\', :base, NULL, \'note\', \'{"source":"s","content":""}\','
            " 'completed', NULL, 0, 0)"
        ),
    ),
    "an item of no base": Damage(
        "item.no-base",
        in_catalog(
            f"INSERT INTO knowledge_item VALUES ('n', '{STRAY_BASE}', NULL, 'note', '{{}}', 'idle', NULL, 0, 0)",
            rows="SELECT 0, 'n'",
        ),
        about="stray",
    ),
    "nobody works": Damage("item.status", _of_file("status = 'embedding'")),
    "failed without an error": Damage("item.status", _of_file("status = 'failed'")),
    "an unknown status": Damage("item.status", _of_file("status = x'00'")),
    "a type of bytes": Damage("item.status", _of_file("type = x'00'")),
    "a type of a newer application": Damage("item.foreign-type", _of_file("type = 'external'")),
    "a type of a newer application, going": Damage(
        "item.foreign-type", _of_file("type = 'external', status = 'deleting', data = '[]'")
    ),
    "a path of an early release": Damage(
        "item.path-is-id",
        in_catalog(
            "INSERT INTO knowledge_item VALUES ('f', :base, NULL, 'directory', '{\"source\":\"/f\"}', 'completed',"
            " NULL, 0, 0)",
            "INSERT INTO knowledge_item VALUES ('c', :base, 'f', 'file', '{\"source\":\"/f/a.md\",\"relativePath\":"
            "\"c\"}', 'failed', 'directory_not_migrated', 0, 0)",
            rows="SELECT 0, 'c'",
        ),
    ),
    "not JSON": Damage("item.data", _of_file("data = '{'")),
    "deep JSON": Damage("item.data", _of_file(f"data = '{'[' * 100_000}'")),
    "no path": Damage("item.data", _of_file(_data(source="a"))),
    "a long note": Damage(
        "item.data", in_catalog(_ITEM.format(_data(source="a", content="x" * 1_000_001)), rows=_NOTES)
    ),
    "a folder at work": Damage("item.container", _of_folder("status = 'processing'")),
    "a folder that is gone": Damage("item.container", _of_file("group_id = 'gone'")),
    "folders in a circle": Damage(
        "item.container",
        # What lies in the folder is in the circle too.
        in_catalog(_ITEM.format("group_id = id"), rows=_ITEMS.format("NULL", "directory")),
    ),
    "a tombstone": Damage("item.tombstone", _of_folder("status = 'failed', error = 'directory_not_migrated'")),
    # --- bases
    "a model without dimensions": Damage("base.status", _of_base("dimensions = NULL")),
    "completed with an error": Damage("base.status", _of_base("error = 'x'")),
    "dimensions in words": Damage("base.status", _of_base("dimensions = 'many'")),
    "a model that is gone": Damage("base.model", in_catalog("DELETE FROM user_model")),
    "a model that inherits nothing": Damage(
        "model.incomplete",
        in_catalog("ALTER TABLE user_model DROP COLUMN name", "ALTER TABLE user_model ADD COLUMN name TEXT"),
        about="library",
    ),
    "other dimensions": Damage("base.dimensions", _of_base("dimensions = 768")),
    "a failed base": Damage("base.failed", _of_base("status = 'failed', error = 'missing_vector_store'")),
    "no index": Damage("base.no-index", planting.no_index),
    "a folder of no base": Damage("index.orphan", planting.stray_folder, about="library"),
    "a material of no item": Damage("material.orphan", _of_file("id = 'other'")),
    "a material being deleted": Damage("material.orphan", _of_file("status = 'deleting'")),
    # --- files beside
    "another path": Damage("material.path", _of_file(_data(source="a", relativePath="b"))),
    "a lost file": Damage("raw.missing", planting.lost_file),
    "a changed snapshot": Damage("raw.changed", planting.changed_snapshot, "deep"),
    "a stray file": Damage("raw.orphan", planting.stray_file),
    "v1's files": Damage("v1.leftover", planting.vector_file, about="library"),
    # --- profiles
    "a beta's database": Damage("catalog.stale-copy", planting.stale_copy, about="library"),
    "a restore that waits": Damage("catalog.pending", planting.staged_restore, about="library"),
}
