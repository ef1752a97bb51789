"""Kinds of damage to v2 libraries, at least one for each finding about v2 data (``docs/testing.md``, "Damage")."""

from __future__ import annotations

import json
import os
import struct
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import apsw
from hypothesis import strategies as st

from regraft import identity
from regraft.disk import sqlite, untrusted_sqlite, writable
from regraft.formats.cherry_v2.index import IndexStore
from regraft.formats.cherry_v2.index.schema import TRIGGERS
from regraft.formats.cherry_v2.layout import (
    CATALOG_FILE,
    INDEX_FILE,
    KNOWLEDGE_FOLDER,
    LIVE_DATABASE,
    PROFILE_DATABASE,
    RAW_FOLDER,
)
from regraft.stores.write_checks import RESTORE_JOURNAL
from regraft.testing.strategies import LibraryCase, libraries

# --- ways to damage a library --------------------------------------------------------------------------------------


#: Id of a base that some kinds of damage add to the library.
STRAY_BASE = "aaaaaaaa-0000-4000-8000-000000000001"
#: Modification time (s) of a file that is old enough to be reported.
_OLD = 1_600_000_000

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class DamageTarget:
    """Where to do damage: a base of a library, and the number that selects one of several rows or files."""

    library: Path
    base_id: str
    choice: int = 0

    @property
    def index(self) -> Path:
        """Path of the base's index."""
        return self.folder(self.base_id) / INDEX_FILE

    @property
    def raw(self) -> Path:
        """Folder of the base's raw files."""
        return self.folder(self.base_id) / RAW_FOLDER

    @property
    def catalog(self) -> Path:
        """Path of the library's catalog."""
        return self.library / CATALOG_FILE

    def folder(self, base_id: str) -> Path:
        """Return the folder of the base with the id ``base_id``."""
        return self.library / KNOWLEDGE_FOLDER / base_id

    def choose(self, options: Sequence[Choice]) -> Choice:
        """Return the option that the field ``choice`` selects, modulo the number of options.

        Raises:
            ValueError: there are no options.
        """
        if not options:
            raise ValueError(f"base {self.base_id} has nothing for this damage to hit")
        return options[self.choice % len(options)]


#: Does damage and returns its subject if that is certain: an id, a hash, or a path below ``raw/``.
PlantDamage = Callable[[DamageTarget], str | None]


@contextmanager
def unchecked(path: Path, *, create: bool = False) -> Iterator[apsw.Connection]:
    """Open a SQLite file for writing without foreign keys and checks, like a program that does not know them."""
    with sqlite.open_writable(path, create=create) as db:
        untrusted_sqlite.unguard_connection(db)
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        yield db


def in_index(*statements: str, rows: str = "") -> PlantDamage:
    """Return a function that plants damage by running SQL statements in the index of the base.

    Args:
        statements: SQL with ``:base`` for the base's id and ``:row`` for the selected row.
        rows: a query for the rows that can be selected, each with the subject of the finding, or NULL.
    """
    return lambda target: _run_statements(target, target.index, statements, rows)


def in_catalog(*statements: str, rows: str = "") -> PlantDamage:
    """Return a function that plants damage by running SQL statements in the catalog; arguments as :func:`in_index`."""
    return lambda target: _run_statements(target, target.catalog, statements, rows)


def _run_statements(target: DamageTarget, path: Path, statements: Sequence[str], rows: str) -> str | None:
    """Run statements that do damage in the SQLite file ``path``; return the subject of the finding, or None.

    ``statements`` and ``rows`` are as for :func:`in_index`.
    """
    values: dict[str, apsw.SQLiteValue] = {"base": target.base_id}
    subject = None
    with unchecked(path) as db, sqlite.transaction(db):
        if rows:
            values["row"], subject = target.choose(db.execute(rows, values).fetchall())
        for statement in statements:
            db.execute(statement, values)
    return None if subject is None else str(subject)


def in_schema(old: str, new: str) -> PlantDamage:
    """Return a function that plants damage by replacing the text ``old`` in the schema of the base's index."""

    def plant(target: DamageTarget) -> None:
        """Replace the text in the SQL of each table."""
        with unchecked(target.index) as db:
            db.execute("PRAGMA writable_schema = ON")
            db.execute(
                "UPDATE sqlite_schema SET sql = replace(sql, ?1, ?2) WHERE instr(sql, ?1) AND type = 'table'",
                (old, new),
            )
            db.execute("PRAGMA writable_schema = RESET")

    return plant


def in_vector(change: Callable[[bytes], bytes]) -> PlantDamage:
    """Return a function that plants damage by changing one vector; ``change`` turns its bytes into the damaged ones."""

    def plant(target: DamageTarget) -> str:
        """Change the selected vector and return the hash of its text."""
        with unchecked(target.index) as db:
            found = db.execute("SELECT rowid, embedding_text_hash, vector_blob FROM embedding").fetchall()
            row, key, vector = target.choose(found)
            assert isinstance(vector, bytes)
            db.execute("UPDATE embedding SET vector_blob = ? WHERE rowid = ?", (change(vector), row))
        return str(key)

    return plant


def in_bytes(change: Callable[[bytes], bytes]) -> PlantDamage:
    """Return a function that plants damage in the index file; ``change`` turns its bytes into the damaged ones."""

    def plant(target: DamageTarget) -> None:
        """Change the bytes of the base's index."""
        target.index.write_bytes(change(target.index.read_bytes()))

    return plant


def break_catalog(target: DamageTarget) -> None:
    """Replace the catalog with a file that is not a database."""
    target.catalog.write_bytes(b"x")


def leave_stale_copy(target: DamageTarget) -> str:
    """Move the catalog to where a profile has it, with the database of a beta version beside it.

    Returns the path of that database, the subject of the finding.
    """
    (target.library / LIVE_DATABASE).parent.mkdir()
    (target.library / PROFILE_DATABASE).write_bytes(target.catalog.read_bytes())
    target.catalog.rename(target.library / LIVE_DATABASE)
    return PROFILE_DATABASE


def stage_restore(target: DamageTarget) -> None:
    """Leave the record of a restore that waits for the application's next start."""
    journal = target.library / RESTORE_JOURNAL
    journal.parent.mkdir()
    journal.write_text('{"version": 1, "state": "staged"}', encoding="utf-8")


def remove_index(target: DamageTarget) -> None:
    """Remove the base's index."""
    target.index.unlink()


def leave_hot_journal(target: DamageTarget) -> None:
    """Leave the index and its journal as a power cut during a transaction does."""
    path = target.index
    journal = path.with_name(f"{path.name}-journal")
    with sqlite.open_writable(path) as db:
        db.execute("PRAGMA cache_size = 1")
        db.execute("BEGIN")
        db.execute("UPDATE meta SET updated_at = updated_at + 1")
        db.execute("PRAGMA cache_spill = 1")
        db.execute("CREATE TABLE filler (x)")
        for _ in range(100):
            db.execute("INSERT INTO filler VALUES (zeroblob(3000))")
        db.execute("DELETE FROM filler")
        cut_off = {place: place.read_bytes() for place in (path, journal)}
        db.execute("ROLLBACK")
    for place, content in cut_off.items():
        place.write_bytes(content)


def add_preview_store(target: DamageTarget) -> str:
    """Add a base whose index was made by a preview build; return its path in the library, the subject."""
    path = target.folder(STRAY_BASE) / INDEX_FILE
    path.parent.mkdir(parents=True)
    with unchecked(path, create=True) as db:
        db.execute(
            "CREATE TABLE libsql_vectorstores_embedding (id TEXT PRIMARY KEY, external_id TEXT, collection TEXT,"
            " document TEXT, metadata TEXT, embeddings F32_BLOB(4))"
        )
        db.execute("INSERT INTO libsql_vectorstores_embedding VALUES ('r', 'i', 'c', 'text', '{}', zeroblob(16))")
    return path.relative_to(target.library).as_posix()


def orphan_folder(target: DamageTarget) -> str:
    """Rename the base's folder so that it belongs to no base; return its new name, the subject."""
    target.folder(target.base_id).rename(target.folder(STRAY_BASE))
    return STRAY_BASE


def add_vector_file(target: DamageTarget) -> str:
    """Leave a vector file of v1 beside the bases; return its name, the subject."""
    name = "kb"
    with unchecked(target.folder(name), create=True) as db:
        db.execute("CREATE TABLE vectors (id)")
    return name


def lose_file(target: DamageTarget) -> str:
    """Remove the raw file of a material; return its path, the subject.

    Paths below folders are not used, because their files may be virtual.
    """
    with sqlite.open_readonly(target.index) as db:
        paths = [str(path) for (path,) in db.execute("SELECT relative_path FROM material ORDER BY rowid")]
    path = target.choose([path for path in paths if "/" not in path and (target.raw / path).is_file()])
    (target.raw / path).unlink()
    return path


def change_snapshot(target: DamageTarget) -> str:
    """Append bytes to the snapshot of a url or note; return its path below ``raw/``, the subject."""
    with sqlite.open_readonly(target.catalog) as db:
        items = db.execute(
            "SELECT id FROM knowledge_item WHERE base_id = ? AND type IN ('url', 'note')", (target.base_id,)
        )
        known = {str(item) for (item,) in items}
    with sqlite.open_readonly(target.index) as db:
        paths = [
            str(path)
            for item, path in db.execute("SELECT material_id, relative_path FROM material ORDER BY rowid")
            if item in known and "/" not in str(path)
        ]
    path = target.choose(paths)
    snapshot = target.raw / path
    snapshot.write_bytes(snapshot.read_bytes() + b"more")
    return path


def add_stray_file(target: DamageTarget) -> str:
    """Leave an old file in ``raw/`` that belongs to no item; return its name, the subject."""
    path = target.raw / "stray.bin"
    path.write_bytes(b"stray")
    os.utime(path, (_OLD, _OLD))
    return path.name


@dataclass(frozen=True)
class Planted:
    """The finding that an audit must report for planted damage (``docs/findings.md``, "v2 data").

    ``base`` is the id of the base, None for the whole library. ``subject`` is the subject of the finding, None if
    auditors may differ.
    """

    finding: str
    base: str | None
    subject: str | None


@dataclass(frozen=True)
class Damage:
    """A kind of damage: its finding, how to plant it, and the audit level that detects it."""

    finding: str
    plants: PlantDamage
    level: Literal["quick", "default", "deep"] = "quick"
    #: What the finding is about: the damaged base, the library, or a base that the damage adds.
    about: Literal["base", "library", "stray"] = "base"

    def plant(self, library: Path, base_id: str, choice: int = 0) -> Planted:
        """Damage a library on disk.

        Args:
            library: folder of the library.
            base_id: a completed base with vectors, and with completed items of every type whose files are in ``raw/``.
            choice: selects the row or file if there are several.

        Raises:
            ValueError: the base has nothing that can be damaged this way.
        """
        with writable.allow_writes(library):
            subject = self.plants(DamageTarget(library, base_id, choice))
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
        """Name of the finding that an audit must report."""
        return self.damage.finding

    def write(self, folder: Path) -> Planted:
        """Write the damaged library to a folder that does not exist yet, and return the finding to expect."""
        return self.damage.plant(self.library.write(folder), self.library.bases[0].id, self.choice)


def damages(*findings: str) -> st.SearchStrategy[Damage]:
    """Generate kinds of damage. ``findings`` limits them to damage with one of the named findings."""
    return st.sampled_from([one for one in DAMAGES.values() if not findings or one.finding in findings])


def damaged_libraries(*findings: str) -> st.SearchStrategy[DamagedCase]:
    """Generate libraries with one damage each. ``findings`` limits the kinds of damage."""
    return st.builds(DamagedCase, libraries(whole=True), damages(*findings), st.integers(0, 99))


# --- rows that can be hit ------------------------------------------------------------------------------------------

_CONTENTS = "SELECT rowid, content_hash FROM content"
_MATERIALS = "SELECT material.rowid, material_id FROM material"
_HAS_UNITS = "EXISTS (SELECT 1 FROM search_unit u WHERE u.material_id = material.material_id)"
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
_UNUSED_TEXT = "a text of nobody"
_NO_UPDATES = "DROP TRIGGER search_text_au"
_UPDATES = next(trigger for trigger in TRIGGERS if "search_text_au" in trigger)


def _set_data(**fields: str) -> str:
    """Return the SQL assignment that sets the column ``data`` of an item to a JSON object with these fields."""
    return f"data = '{json.dumps(fields)}'"


def _damage_path(path: str) -> PlantDamage:
    """Return a function that plants damage by setting a material's path to ``path``, an SQL expression."""
    return in_index(_MATERIAL.format(f"relative_path = {path}"), rows="SELECT rowid, NULL FROM material")


def _damage_file_row(*changes: str) -> PlantDamage:
    """Return a function that plants damage in the catalog row of a file; ``changes`` are SQL assignments."""
    return in_catalog(*(_ITEM.format(change) for change in changes), rows=_FILES)


def _damage_folder_row(change: str) -> PlantDamage:
    """Return a function that plants damage in the catalog row of a folder; ``change`` is an SQL assignment."""
    return in_catalog(_ITEM.format(change), rows=_FOLDERS)


def _damage_base_row(change: str) -> PlantDamage:
    """Return a function that plants damage in the catalog row of the base; ``change`` is an SQL assignment."""
    return in_catalog(_BASE.format(change))


def _set_last_number(number: float) -> PlantDamage:
    """Return a function that plants damage by setting the last number of a vector."""
    return in_vector(lambda vector: vector[:-4] + struct.pack("<f", number))


def remove_file_text(target: DamageTarget) -> str:
    """Remove the text of a file item from the index; return the id of the item, the subject."""
    with sqlite.open_readonly(target.catalog) as db:
        _, item = target.choose(db.execute(_FILES, {"base": target.base_id}).fetchall())
    with IndexStore(target.index, target.base_id) as store:
        store.delete_materials([str(item)])
    return str(item)


#: All kinds of damage by name.
DAMAGES: dict[str, Damage] = {
    # --- files
    "random bytes": Damage("file.unreadable", in_bytes(lambda _: bytes(range(256)) * 9)),
    "half a file": Damage("file.unreadable", in_bytes(lambda raw: raw[: len(raw) // 2])),
    "an empty file": Damage("file.unreadable", in_bytes(lambda _: b"")),
    "no catalog": Damage("file.unreadable", break_catalog, about="library"),
    "pages of zeros": Damage("file.corrupt", in_bytes(lambda raw: raw[:8192] + bytes(8192) + raw[16384:])),
    "a journal": Damage("file.hot-journal", leave_hot_journal),
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
    "a preview store": Damage("schema.preview", add_preview_store, about="stray"),
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
            f"INSERT INTO content VALUES ('{identity.text_hash(_UNUSED_TEXT)}', '{_UNUSED_TEXT}', 0)",
            rows=f"SELECT 0, '{identity.text_hash(_UNUSED_TEXT)}'",
        ),
    ),
    "no text": Damage(
        "material.no-content",
        in_index(_MATERIAL.format("current_content_hash = NULL"), rows=f"{_MATERIALS} WHERE {_HAS_UNITS}"),
    ),
    "a text that is gone": Damage(
        "material.no-content",
        in_index(_MATERIAL.format("current_content_hash = 'gone'"), rows=f"{_MATERIALS} WHERE {_HAS_UNITS}"),
    ),
    "a way out": Damage("material.path-unsafe", _damage_path("'../x'")),
    "a backslash": Damage("material.path-unsafe", _damage_path("'a\\b'")),
    "an absolute path": Damage("material.path-unsafe", _damage_path("'/etc/x'")),
    "a drive": Damage("material.path-unsafe", _damage_path("'C:/x'")),
    "a path in .cherry": Damage("material.path-unsafe", _damage_path("'.CHERRY/x'")),
    "a path with NUL": Damage("material.path-unsafe", _damage_path("'a' || char(0)")),
    "a path with //": Damage("material.path-unsafe", _damage_path("'a//b'")),
    "a path of no text": Damage("material.path-unsafe", _damage_path("CAST(x'ff' AS TEXT)")),
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
            f" WHERE {_HAS_UNITS} AND trim(text, char(32, 9, 10, 13)) <> ''",
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
    "another body": Damage("body.hash", in_index(_BODY.format(f"text = '{_UNUSED_TEXT}'"), rows=_BODIES), "default"),
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
            _BODY.format(f"text = '{_UNUSED_TEXT}'"),
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
    "vectors without a model": Damage(
        "embedding.unexpected", _damage_base_row("embedding_model_id = NULL, dimensions = NULL")
    ),
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
    "NaN": Damage("embedding.non-finite", _set_last_number(float("nan")), "default"),
    "infinity": Damage("embedding.non-finite", _set_last_number(float("-inf")), "default"),
    "zeros": Damage("embedding.zero", in_vector(lambda vector: bytes(len(vector))), "default"),
    "one vector for many": Damage(
        "embedding.duplicate",
        in_index("UPDATE embedding SET vector_blob = (SELECT vector_blob FROM embedding ORDER BY rowid LIMIT 1)"),
        "default",
    ),
    # --- items
    "a name of bytes": Damage("catalog.value", _damage_base_row("name = x'6b62ff'")),
    "a file without text": Damage("item.no-material", remove_file_text),
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
    "nobody works": Damage("item.status", _damage_file_row("status = 'embedding'")),
    "failed without an error": Damage("item.status", _damage_file_row("status = 'failed'")),
    "an unknown status": Damage("item.status", _damage_file_row("status = x'00'")),
    "a type of bytes": Damage("item.status", _damage_file_row("type = x'00'")),
    "a type of a newer application": Damage("item.foreign-type", _damage_file_row("type = 'external'")),
    "a type of a newer application, going": Damage(
        "item.foreign-type", _damage_file_row("type = 'external', status = 'deleting', data = '[]'")
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
    "not JSON": Damage("item.data", _damage_file_row("data = '{'")),
    "deep JSON": Damage("item.data", _damage_file_row(f"data = '{'[' * 100_000}'")),
    "no path": Damage("item.data", _damage_file_row(_set_data(source="a"))),
    "a long note": Damage(
        "item.data", in_catalog(_ITEM.format(_set_data(source="a", content="x" * 1_000_001)), rows=_NOTES)
    ),
    "a folder at work": Damage("item.container", _damage_folder_row("status = 'processing'")),
    "a folder that is gone": Damage("item.container", _damage_file_row("group_id = 'gone'")),
    "folders in a circle": Damage(
        "item.container",
        # The items in the folder become part of the cycle.
        in_catalog(_ITEM.format("group_id = id"), rows=_ITEMS.format("NULL", "directory")),
    ),
    "a tombstone": Damage("item.tombstone", _damage_folder_row("status = 'failed', error = 'directory_not_migrated'")),
    # --- bases
    "a model without dimensions": Damage("base.status", _damage_base_row("dimensions = NULL")),
    "completed with an error": Damage("base.status", _damage_base_row("error = 'x'")),
    "dimensions in words": Damage("base.status", _damage_base_row("dimensions = 'many'")),
    "a model that is gone": Damage("base.model", in_catalog("DELETE FROM user_model")),
    "a model that inherits nothing": Damage(
        "model.incomplete",
        in_catalog("ALTER TABLE user_model DROP COLUMN name", "ALTER TABLE user_model ADD COLUMN name TEXT"),
        about="library",
    ),
    "other dimensions": Damage("base.dimensions", _damage_base_row("dimensions = 768")),
    "a failed base": Damage("base.failed", _damage_base_row("status = 'failed', error = 'missing_vector_store'")),
    "no index": Damage("base.no-index", remove_index),
    "a folder of no base": Damage("index.orphan", orphan_folder, about="library"),
    "a material of no item": Damage("material.orphan", _damage_file_row("id = 'other'")),
    "a material being deleted": Damage("material.orphan", _damage_file_row("status = 'deleting'")),
    # --- files beside
    "another path": Damage("material.path", _damage_file_row(_set_data(source="a", relativePath="b"))),
    "a lost file": Damage("raw.missing", lose_file),
    "a changed snapshot": Damage("raw.changed", change_snapshot, "deep"),
    "a stray file": Damage("raw.orphan", add_stray_file),
    "v1's files": Damage("v1.leftover", add_vector_file, about="library"),
    # --- profiles
    "a beta's database": Damage("catalog.stale-copy", leave_stale_copy, about="library"),
    "a restore that waits": Damage("catalog.pending", stage_restore, about="library"),
}
