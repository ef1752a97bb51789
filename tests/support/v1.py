"""Small v1 sources made of plain data, and an independent reader of what ``regraft migrate`` makes of them."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import unicodedata
import uuid
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import apsw
from harness import NOW, NOW_MS, run

from regraft.disk import file_paths
from regraft.text import JS_WHITESPACE

CREATED = 1741944474000
UPDATED = 1741944535000

MODEL = {"id": "embed-3", "name": "Embed 3", "provider": "acme", "group": "embed"}
LLM = {"providers": [{"id": "acme", "name": "Acme", "enabled": True, "models": [MODEL]}]}

# --- vector files --------------------------------------------------------------------------------------------------

#: The table as v1 writes it.
STRICT = """CREATE TABLE vectors (id TEXT PRIMARY KEY, pageContent TEXT UNIQUE, uniqueLoaderId TEXT NOT NULL,
              source TEXT NOT NULL, vector F32_BLOB(4), metadata TEXT)"""
#: The same without the keys: equal texts may come twice.
PLAIN = """CREATE TABLE vectors (id TEXT, pageContent TEXT, uniqueLoaderId TEXT, source TEXT, vector F32_BLOB(4),
             metadata TEXT)"""
#: Any value stays as it is in any column.
UNTYPED = "CREATE TABLE vectors (id, pageContent, uniqueLoaderId, source, vector, metadata)"

#: Stands for "as v1 would have it" where None is a value of its own.
USUAL: Any = ...


class RawText(bytes):
    """Bytes that are stored as TEXT, though they may be no UTF-8."""


@dataclass(frozen=True)
class Row:
    """One row of a vector file; ``id`` and ``vector`` are made up where they are not given."""

    loader: Any
    body: Any
    vector: Any = USUAL
    source: Any = "/home/alice/docs/file.md"
    id: Any = USUAL
    rowid: int | None = None
    metadata: Any = "{}"


def floats(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def vector_of(text: object, dimensions: int = 4) -> bytes:
    """Return a vector that no other text has, none of it zero or odd."""
    digest = hashlib.shake_256(repr(text).encode("utf-8", "surrogatepass")).digest(2 * dimensions)
    return floats(*(number / 65536 + 0.25 for number in struct.unpack(f"<{dimensions}H", digest)))


def write_store(path: Path, rows: Iterable[Row], ddl: str = STRICT) -> Path:
    """Write a vector file; rows of a loader are numbered as v1 does it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers: Counter[str] = Counter()
    # A name of full length leaves no room for that of its journal.
    short = path.parent / "being-made"
    with closing(apsw.Connection(str(short))) as db:
        db.execute("BEGIN")
        db.execute(ddl)
        columns = [row[1] for row in db.execute("PRAGMA table_info(vectors)")]
        for row in rows:
            key = repr(row.loader)
            values = {
                "id": f"{row.loader}_{numbers[key]}" if row.id is USUAL else row.id,
                "pageContent": row.body,
                "uniqueLoaderId": row.loader,
                "source": row.source,
                "vector": vector_of(row.body) if row.vector is USUAL else row.vector,
                "metadata": row.metadata,
            }
            numbers[key] += 1
            _insert(db, {name: value for name, value in values.items() if name in columns}, row.rowid)
        db.execute("COMMIT")
    # On Windows the path may be too long for the functions of the system.
    short.replace(file_paths.extended_path(path))
    return path


def _insert(db: apsw.Connection, values: dict[str, Any], rowid: int | None) -> None:
    if rowid is not None:
        values = {"rowid": rowid, **values}
    places = ", ".join("CAST(? AS TEXT)" if isinstance(value, RawText) else "?" for value in values.values())
    plain = [bytes(value) if isinstance(value, RawText) else value for value in values.values()]
    db.execute(f"INSERT INTO vectors ({', '.join(values)}) VALUES ({places})", plain)


# --- the state -----------------------------------------------------------------------------------------------------


def base(legacy_id: str, *items: Any, **fields: Any) -> dict[str, Any]:
    """Return a base of the `knowledge` slice; fields given as USUAL are left out."""
    usual = {
        "id": legacy_id,
        "name": f"Base {legacy_id}",
        "model": MODEL,
        "dimensions": 4,
        "items": list(items),
        "created_at": CREATED,
        "updated_at": UPDATED,
        "version": 1,
    }
    return _without_usual({**usual, **fields})


def _item(item_type: str, item_id: str, loaders: Sequence[Any], content: Any, fields: dict[str, Any]) -> dict[str, Any]:
    indexed = {"uniqueId": loaders[0], "uniqueIds": list(loaders), "processingStatus": "completed"} if loaders else {}
    usual = {"id": item_id, "type": item_type, "content": content, "created_at": CREATED, "updated_at": UPDATED}
    return _without_usual({**usual, **indexed, **fields})


def _without_usual(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not USUAL}


def metadata(file_id: str, called: str = "report.pdf", /, **fields: Any) -> dict[str, Any]:
    """Return a file's complete metadata."""
    ext = PurePosixPath(called).suffix
    usual = {
        "id": file_id,
        "name": f"{file_id}{ext}",
        "origin_name": called,
        "path": f"/home/alice/Files/{file_id}{ext}",
        "size": 14,
        "ext": ext,
        "type": "document",
        "created_at": "2025-03-14T09:29:56.000Z",
        "count": 1,
    }
    return _without_usual({**usual, **fields})


def file(item_id: str, *loaders: Any, name: str = "report.pdf", **fields: Any) -> dict[str, Any]:
    """Return a file item; its upload is called ``up-<item id>`` and the extension of ``name``."""
    return _item("file", item_id, loaders, metadata(f"up-{item_id}", name), fields)


def page(
    item_id: str, *loaders: Any, address: Any = "https://example.com/guide/start", **fields: Any
) -> dict[str, Any]:
    return _item("url", item_id, loaders, address, fields)


def note(item_id: str, *loaders: Any, text: Any = "A note", **fields: Any) -> dict[str, Any]:
    return _item("note", item_id, loaders, text, fields)


def folder(item_id: str, *entries: Any, path: Any = "/home/alice/docs", **fields: Any) -> dict[str, Any]:
    """Return a completed directory with these entries."""
    own = {"uniqueId": f"DirectoryLoader_{item_id}", "uniqueIds": list(entries), "processingStatus": "completed"}
    return _item("directory", item_id, (), path, {**own, **fields})


@dataclass(frozen=True)
class Source:
    """A v1 export folder in parts; ``stores`` are rows or raw bytes by file name."""

    bases: Any
    stores: Mapping[str, Iterable[Row] | bytes] | None = None
    llm: Any = USUAL
    files: Any = ()
    notes: Any = ()
    uploads: Mapping[str, bytes] | None = None
    pending: Any = None
    ddl: str = STRICT

    def write(self, target: Path) -> Path:
        """Write it as an export folder."""
        state = {"knowledge": {"bases": self.bases}, "llm": LLM if self.llm is USUAL else self.llm}
        state = {name: part for name, part in state.items() if part is not None}
        for name, part in (("redux", state), ("dexie/files", self.files), ("dexie/knowledge_notes", self.notes)):
            path = target / f"{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(part if isinstance(part, str) else json.dumps(part), encoding="utf-8")
        vectors = target / "KnowledgeBase"
        vectors.mkdir()
        for name, content in (self.stores or {}).items():
            if isinstance(content, bytes):
                (vectors / name).write_bytes(content)
            else:
                write_store(vectors / name, content, self.ddl)
        if self.pending is not None:
            text = self.pending if isinstance(self.pending, str) else json.dumps(self.pending)
            (vectors / "knowledge_pending_delete.json").write_text(text, encoding="utf-8")
        (target / "Files").mkdir()
        for name, content in (self.uploads or {}).items():
            (target / "Files" / name).write_bytes(content)
        return target


def pack(export: Path, target: Path, version: int = 5) -> Path:
    """Pack an export folder as v1 packs its backups."""
    state = json.loads((export / "redux.json").read_text("utf-8"))
    tables = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((export / "dexie").iterdir())}
    persisted = json.dumps({name: json.dumps(part) for name, part in state.items()})
    data = {
        "time": CREATED,
        "version": version,
        "localStorage": {"persist:cherry-studio": persisted},
        "indexedDB": tables,
    }
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.json", json.dumps(data))
        for name in ("Files", "KnowledgeBase"):
            for path in sorted((export / name).iterdir()):
                archive.write(path, f"Data/{name}/{path.name}")
    return target


# --- what became of it ---------------------------------------------------------------------------------------------


@contextmanager
def opened(path: Path) -> Iterator[apsw.Connection]:
    """Open a SQLite file without a trace."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with closing(apsw.Connection(f"{path.absolute().as_uri()}?mode=ro&immutable=1", flags=flags)) as db:
        yield db


def dicts(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
    cursor = db.cursor()
    return [
        dict(zip((column[0] for column in cursor.get_description()), row, strict=True))
        for row in cursor.execute(sql, values)
    ]


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Unit:
    """A carried row as the index has it; ``item`` is the id of its item in the catalog, ``vector`` None without one."""

    item: str
    body: str
    vector: Any


class Library:
    """A migrated library, read with SQL of its own, by the ids of v1."""

    def __init__(self, path: Path, status: int, report: dict[str, Any]) -> None:
        self.path = path
        self.status = status
        self.report = report

    # --- report ----------------------------------------------------------------------------------------------------

    def base(self, legacy_id: str) -> dict[str, Any]:
        """Return the base's part of the report."""
        return next(base for base in self.report["bases"] if base["legacy_id"] == legacy_id)

    def rows(self, legacy_id: str) -> dict[str, Any]:
        return self.base(legacy_id)["rows"]

    def skipped_rows(self, legacy_id: str) -> dict[str, int]:
        return self.rows(legacy_id)["skipped"]

    def warnings(self, code: str) -> list[dict[str, Any]]:
        return [warning for warning in self.report["warnings"] if warning["code"] == code]

    def codes(self) -> Counter[str]:
        return Counter(warning["code"] for warning in self.report["warnings"])

    def base_id(self, legacy_id: str) -> str:
        return self.report["ids"]["bases"][legacy_id]

    def item_id(self, legacy_id: str) -> str:
        return self.report["ids"]["items"][legacy_id]

    def child_id(self, legacy_base: str, loader: str) -> str:
        return self.report["ids"]["children"][self.base_id(legacy_base)][loader]

    # --- catalog ---------------------------------------------------------------------------------------------------

    def catalog(self, table: str) -> list[dict[str, Any]]:
        with opened(self.path / "catalog.sqlite") as db:
            return dicts(db, f"SELECT * FROM {table} ORDER BY rowid")

    def base_row(self, legacy_id: str) -> dict[str, Any]:
        return next(row for row in self.catalog("knowledge_base") if row["id"] == self.base_id(legacy_id))

    def items(self, legacy_id: str) -> list[dict[str, Any]]:
        rows = [row for row in self.catalog("knowledge_item") if row["base_id"] == self.base_id(legacy_id)]
        return [{**row, "data": json.loads(row["data"])} for row in rows]

    def item(self, legacy_id: str) -> dict[str, Any]:
        row = next(row for row in self.catalog("knowledge_item") if row["id"] == self.item_id(legacy_id))
        return {**row, "data": json.loads(row["data"])}

    def children(self, legacy_id: str) -> list[dict[str, Any]]:
        """Return the children of a directory, in the catalog's order."""
        container = self.item_id(legacy_id)
        rows = [row for row in self.catalog("knowledge_item") if row["group_id"] == container]
        return [{**row, "data": json.loads(row["data"])} for row in rows]

    # --- files -----------------------------------------------------------------------------------------------------

    def folder(self, legacy_id: str) -> Path:
        return self.path / "KnowledgeBase" / self.base_id(legacy_id)

    def index_path(self, legacy_id: str) -> Path:
        return self.folder(legacy_id) / ".cherry" / "index.sqlite"

    def raw(self, legacy_id: str) -> dict[str, bytes]:
        place = self.folder(legacy_id) / "raw"
        found = sorted(place.iterdir()) if place.is_dir() else []
        return {path.name: Path(file_paths.extended_path(path)).read_bytes() for path in found}

    def units(self, legacy_id: str) -> list[Unit]:
        """Return the carried rows in the order of ``fts_rowid``."""
        with opened(self.index_path(legacy_id)) as db:
            found = db.execute(
                "SELECT u.material_id, t.text, e.vector_blob FROM search_text t JOIN search_unit u"
                " ON u.unit_id = t.target_id LEFT JOIN embedding e USING (embedding_text_hash) ORDER BY t.fts_rowid"
            )
            return [Unit(*row) for row in found]

    def bodies(self, legacy_id: str) -> list[str]:
        return [unit.body for unit in self.units(legacy_id)]

    def bodies_of(self, legacy_base: str, item_id: str) -> list[str]:
        return [unit.body for unit in self.units(legacy_base) if unit.item == item_id]


def migrate(source: Path, target: Path, *options: str) -> Library:
    """Run the real command, hold what it wrote against every invariant, and see that the source is as before."""
    before = _state(source)
    done = run("migrate", source, "--to", target, "--json", "--now", NOW, *options)
    assert done.status in (0, 1), done.stderr
    assert _state(source) == before, "the source was touched"
    library = Library(target, done.status, done.document)
    check_library(library)
    return library


def _state(source: Path) -> object:
    """Return everything of a source that a run must leave as it is."""
    if source.is_dir():
        found: dict[str, object] = {}
        for path in sorted(source.rglob("*")):
            status = path.lstat()
            content = path.read_bytes() if path.is_file() else path.readlink() if path.is_symlink() else None
            found[str(path)] = (status.st_size, status.st_mtime_ns, content)
        return found
    beside = [path.name for path in sorted(source.parent.iterdir()) if path.name.startswith(source.name)]
    return source.read_bytes(), source.stat().st_mtime_ns, beside


def carried(tmp_path: Path, *bases: Any, options: Sequence[str] = (), **parts: Any) -> Library:
    """Write a source of these bases, migrate it and return the library."""
    source = Source(list(bases), **parts).write(tmp_path / "v1")
    return migrate(source, tmp_path / "library", *options)


# --- invariants ----------------------------------------------------------------------------------------------------

_DATA_KEYS = {
    "file": ({"source", "relativePath"}, set()),
    "url": ({"source", "url"}, {"relativePath"}),
    "note": ({"source", "content"}, {"relativePath"}),
    "directory": ({"source"}, {"relativePath"}),
}


def utf16_slice(text: str, start: int, end: int) -> str:
    """Do what JavaScript's slice does, but refuse what lies beyond the text."""
    units = text.encode("utf-16-le")
    assert 0 <= start <= end <= len(units) // 2, "a unit lies beyond its text"
    return units[2 * start : 2 * end].decode("utf-16-le")


def same_file(name: str) -> str:
    """Return what two names that count as one have in common."""
    return unicodedata.normalize("NFC", name).lower()


def check_library(library: Library) -> None:
    """Hold a library and its report against every rule that is true of any migration."""
    report = library.report
    with opened(library.path / "catalog.sqlite") as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    bases = {row["id"]: row for row in library.catalog("knowledge_base")}
    items: dict[str, list[dict[str, Any]]] = {base_id: [] for base_id in bases}
    for row in library.catalog("knowledge_item"):
        items[row["base_id"]].append({**row, "data": json.loads(row["data"])})
    assert [base["id"] for base in report["bases"]] == [*bases]
    assert report["ids"]["bases"] == {base["legacy_id"]: base["id"] for base in report["bases"]}
    leaves = {row["id"] for rows in items.values() for row in rows if row["group_id"] is None}
    assert sorted(report["ids"]["items"].values()) == sorted(leaves)
    folders = library.path / "KnowledgeBase"
    assert {path.name for path in folders.iterdir()} <= set(bases) if folders.exists() else True
    assert not any((library.path / ".regraft" / name).exists() for name in ("staging", "replaced", "work"))
    for entry in report["bases"]:
        rows = entry["rows"]
        assert rows["read"] == rows["carried"] + sum(rows["skipped"].values()), "the books do not balance"
        assert min(rows["skipped"].values(), default=1) > 0
        _check_base_row(bases[entry["id"]], entry)
        _check_items(items[entry["id"]], entry)
        _check_files(folders / entry["id"], items[entry["id"]], entry)
    for warning in report["warnings"]:
        assert set(warning) == {"code", "base", "item", "message", "count", "samples", "model"}
    said = [json.dumps(warning, sort_keys=True) for warning in report["warnings"]]
    assert len(set(said)) == len(said), "a warning is said twice"


def _check_base_row(row: dict[str, Any], entry: dict[str, Any]) -> None:
    assert uuid.UUID(row["id"]).version == 4
    for field in ("name", "status", "error", "dimensions"):
        assert row[field] == entry[field]
    assert row["name"].strip(" ")
    assert row["group_id"] is None
    assert not {"hybrid_alpha", "search_mode"} & row.keys()
    assert (row["chunk_strategy"], row["chunk_separator"]) == ("structured", "\\n\\n")
    assert 0 <= row["chunk_overlap"] < row["chunk_size"]
    if row["status"] == "completed":
        assert row["error"] is None
        assert row["embedding_model_id"]
        assert row["dimensions"] > 0
    elif row["error"] == "missing_embedding_model":
        assert row["embedding_model_id"] is None
    else:
        assert row["error"] == "missing_vector_store"
        assert row["embedding_model_id"]
        assert row["dimensions"] is None or row["dimensions"] > 0
    wanted = {"failed"} if row["status"] == "failed" else {"written", "unchanged"}
    assert entry["outcome"] in wanted


def _check_items(rows: list[dict[str, Any]], entry: dict[str, Any]) -> None:
    known = {row["id"]: row for row in rows}
    assert entry["items"] == Counter(row["status"] for row in rows)
    for row in rows:
        assert uuid.UUID(row["id"]).version == 7
        needed, possible = _DATA_KEYS[row["type"]]
        assert needed <= set(row["data"]) <= needed | possible
        assert all(isinstance(value, str) for value in row["data"].values())
        assert row["status"] in ("idle", "completed", "failed")
        assert (row["error"] is None) == (row["status"] != "failed")
        assert row["error"] is None or row["error"].strip(" ")
        assert all(isinstance(row[field], int) for field in ("created_at", "updated_at"))
        if row["group_id"] is not None:
            container = known[row["group_id"]]
            assert (container["type"], row["type"]) == ("directory", "file")
            _check_child_path(row["data"]["relativePath"], container["data"]["relativePath"])
            assert container["created_at"] == row["created_at"]
            assert container["updated_at"] == row["updated_at"]
    groups = [row["group_id"] or row["id"] for row in rows]
    assert [*dict.fromkeys(groups)] == [group for at, group in enumerate(groups) if at == 0 or groups[at - 1] != group]


def _check_child_path(path: str, prefix: str) -> None:
    first, *rest = path.split("/")
    assert first == prefix
    assert rest
    for part in (first, *rest):
        assert part not in ("", ".", "..")
        assert not set(part) & (set('\\:*?"<>|') | {chr(point) for point in range(32)})
        assert len(part.encode("utf-16-le")) <= 2 * 255


def _check_files(place: Path, rows: list[dict[str, Any]], entry: dict[str, Any]) -> None:
    library_path = place.parent.parent
    files = (
        {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()} if place.exists() else set()
    )
    named = {f"raw/{row['data']['relativePath']}" for row in rows if "relativePath" in row["data"]}
    index = ".cherry/index.sqlite"
    assert files - {index} <= named
    folders = {row["id"]: row for row in rows if row["type"] == "directory"}
    virtual = {row["data"]["relativePath"] for row in rows if row["group_id"] in folders}
    prefixes = {row["data"]["relativePath"] for row in folders.values() if "relativePath" in row["data"]}
    assert not files & {f"raw/{path}" for path in (*virtual, *prefixes)}, "a folder's files have no bytes"
    assert {row["group_id"] for row in rows if row["group_id"] in folders} == {
        row["id"] for row in folders.values() if "relativePath" in row["data"]
    }
    keys = [same_file(row["data"]["relativePath"]) for row in rows if "relativePath" in row["data"]]
    assert len(set(keys)) == len(keys), "two names meet on another file system"
    if entry["status"] == "failed":
        # What is carried of it are texts alone.
        assert (entry["index"] is not None) == (index in files) == (entry["rows"]["carried"] > 0)
        assert entry["rows"]["without_vector"] == entry["rows"]["carried"]
    if entry["index"] is None:
        assert entry["status"] == "failed"
        return
    assert library_path / entry["index"]["path"] == place / index
    assert entry["index"]["bytes"] == (place / index).stat().st_size
    with opened(place / index) as db:
        check_index(db, entry, rows)
        _check_snapshots(db, place / "raw", rows)


def check_index(db: apsw.Connection, entry: dict[str, Any], items: list[dict[str, Any]]) -> None:
    """Hold one index against the seven invariants of the layout, and against its report and catalog rows."""
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    # 6: its identity is its folder's.
    assert db.execute("SELECT id, schema_version, base_id, created_at, updated_at FROM meta").fetchall() == [
        (1, 2, entry["id"], NOW_MS, NOW_MS)
    ]
    contents = dict(db.execute("SELECT content_hash, text FROM content").fetchall())
    materials = dicts(db, "SELECT * FROM material ORDER BY rowid")
    units = dicts(db, "SELECT * FROM search_unit ORDER BY rowid")
    bodies = dicts(db, "SELECT rowid AS row, * FROM search_text ORDER BY rowid")
    vectors = dict(db.execute("SELECT embedding_text_hash, vector_blob FROM embedding").fetchall())
    assert all(sha(text) == key for key, text in contents.items())
    # 2: one body for every unit, every hash that of its text.
    assert [body["target_id"] for body in bodies] == [unit["unit_id"] for unit in units]
    assert len({unit["unit_id"] for unit in units}) == len(units)
    for number, (unit, body) in enumerate(zip(units, bodies, strict=True), start=1):
        assert body["row"] == body["fts_rowid"] == number
        assert body["embedding_text_hash"] == sha(body["text"])
        assert body["search_text_id"] == sha(f"search_unit {unit['unit_id']} body")
        assert (body["target_type"], body["kind"], unit["unit_type"]) == ("search_unit", "body", "chunk")
        # 1: offsets are UTF-16 units, and the slice is the body.
        start, end = unit["char_start"], unit["char_end"]
        assert utf16_slice(contents[unit["content_hash"]], start, end) == body["text"]
        key = f"{unit['material_id']} {unit['content_hash']} chunk {unit['unit_index']} {start} {end}"
        assert unit["unit_id"] == sha(key)
        assert (unit["title"], unit["locator_json"], unit["created_at"]) == (None, None, NOW_MS)
    # 3: coverage, but for texts that were carried alone. 5: nothing that nobody names.
    assert {body["embedding_text_hash"] for body in bodies} >= set(vectors)
    bare = [body for body in bodies if body["embedding_text_hash"] not in vectors]
    assert all(body["text"].strip(JS_WHITESPACE) for body in bare)
    assert len(bare) <= entry["rows"]["without_vector"] + entry["rows"]["restored_duplicate"]
    assert not bare or entry["rows"]["without_vector"]
    assert {material["current_content_hash"] for material in materials} == set(contents)
    # 4: one length, that of the catalog.
    lengths = {4 * entry["dimensions"]} if entry["status"] == "completed" else set()
    assert {len(blob) for blob in vectors.values()} <= lengths
    assert all(isinstance(blob, bytes) for blob in vectors.values())
    _check_materials(materials, units, bodies, contents, {item["id"]: item for item in items})
    full_text = [row[0] for row in db.execute("SELECT id FROM search_text_fts_docsize ORDER BY id")]
    assert full_text == [body["fts_rowid"] for body in bodies]
    found = {key: entry["index"][key] for key in ("materials", "units", "embeddings")}
    assert found == {"materials": len(materials), "units": len(units), "embeddings": len(vectors)}
    assert entry["rows"]["carried"] + entry["rows"]["restored_duplicate"] == len(units)


def _check_materials(
    materials: list[dict[str, Any]],
    units: list[dict[str, Any]],
    bodies: list[dict[str, Any]],
    contents: dict[str, str],
    items: dict[str, dict[str, Any]],
) -> None:
    order = [*dict.fromkeys(unit["material_id"] for unit in units)]
    assert [material["material_id"] for material in materials] == order
    for material in materials:
        own = [at for at, unit in enumerate(units) if unit["material_id"] == material["material_id"]]
        assert own == [*range(own[0], own[-1] + 1)], "the rows of a material are not together"
        assert [units[at]["unit_index"] for at in own] == [*range(len(own))]
        assert {units[at]["content_hash"] for at in own} == {material["current_content_hash"]}
        assert contents[material["current_content_hash"]] == "\n\n".join(bodies[at]["text"] for at in own)
        item = items[material["material_id"]]
        assert item["type"] != "directory"
        assert item["data"]["relativePath"] == material["relative_path"]
        if item["group_id"] is None:
            check_relative_path(material["relative_path"])
    for item in items.values():
        # A url or note has a path exactly when it has a material; so has every completed child.
        if item["type"] in ("url", "note"):
            assert ("relativePath" in item["data"]) == (item["id"] in order)
        if item["group_id"] is not None:
            assert (item["status"] == "completed") == (item["id"] in order)


def check_relative_path(path: str) -> None:
    """7: relative to ``raw/``, normalised, and a name that every system takes."""
    assert path
    assert str(PurePosixPath(path)) == path
    assert not set(path) & (set('/\\:*?"<>|') | {chr(point) for point in range(32)})
    assert path not in (".", "..")
    assert path.lower() != ".cherry"
    assert len(path.encode()) <= 255
    assert path[-1] not in ". "


def _check_snapshots(db: apsw.Connection, raw: Path, items: list[dict[str, Any]]) -> None:
    for item in items:
        path = item["data"].get("relativePath")
        if item["type"] not in ("url", "note") or path is None:
            continue
        text = (raw / path).read_bytes().decode()
        head = re.match(r'---\ntype: "(URL|Note)"\ntitle: ".*"\n(resource: ".*"\n)?timestamp: ".*"\n---\n', text)
        assert head is not None
        assert f'timestamp: "{NOW}"' in head[0]
        assert head[1] == {"url": "URL", "note": "Note"}[item["type"]]
        if item["type"] == "url":
            assert json.loads(head[2].removeprefix("resource: ")) == item["data"]["url"]
        sql = "SELECT text FROM content JOIN material ON current_content_hash = content_hash WHERE material_id = ?"
        assert text[head.end() :] == db.execute(sql, (item["id"],)).get
