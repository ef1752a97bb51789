"""The golden migrations: their sources in every form, and a library in the shape of what is expected."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import apsw
from harness import NOW, NOW_MS, run

from regraft.disk import file_paths, sqlite
from regraft.text import utf16_len

CASES = ("basic", "directory", "unicode")


def as_backup(v1: Path, target: Path, version: int = 5) -> Path:
    """Pack an export folder as v1 packs its backups: data.json, double encoding and all."""
    redux = json.loads((v1 / "redux.json").read_text("utf-8"))
    tables = {path.stem: json.loads(path.read_text("utf-8")) for path in (v1 / "dexie").iterdir()}
    data = {
        "time": 1741944474000,
        "version": version,
        "localStorage": {"persist:cherry-studio": json.dumps({name: json.dumps(part) for name, part in redux.items()})},
        "indexedDB": tables if version > 1 else [{"key": key, "value": value} for key, value in tables.items()],
    }
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.json", json.dumps(data))
        for folder in ("Files", "KnowledgeBase"):
            for path in sorted((v1 / folder).iterdir()):
                archive.write(path, f"Data/{folder}/{path.name}")
    return target


def as_export_of_2_0(v1: Path, profile: Path) -> Path:
    """Lay an export folder out as releases 2.0.x do before their own upgrade: in the profile, one file for a slice."""
    for name, part in json.loads((v1 / "redux.json").read_text("utf-8")).items():
        path = profile / "migration_temp" / "redux_export" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(part), "utf-8")
    shutil.copytree(v1 / "dexie", profile / "migration_temp" / "dexie_export")
    for folder in ("Files", "KnowledgeBase"):
        shutil.copytree(v1 / folder, profile / "Data" / folder)
    return profile / "migration_temp"


def source_of(kind: str, v1: Path, tmp_path: Path) -> Path:
    if kind == "folder":
        return v1
    if kind == "export of 2.0":
        return as_export_of_2_0(v1, tmp_path / "profile")
    return as_backup(v1, tmp_path / f"{kind}.zip", version=1 if kind == "zip version 1" else 5)


def migrate(source: Path, target: Path) -> dict[str, Any]:
    done = run("migrate", source, "--to", target, "--json", "--now", NOW)
    assert done.status in (0, 1), done.stderr
    return done.document


class Shape:
    """A library in the shape of ``expected.json``."""

    def __init__(self, library: Path, report: dict[str, Any]) -> None:
        self.library = library
        self.ids = report["ids"]
        self.base_keys = {value: key for key, value in self.ids["bases"].items()}
        self.item_keys = {value: key for key, value in self.ids["items"].items()}

    def bases(self) -> list[dict[str, Any]]:
        with sqlite.open_readonly(self.library / "catalog.sqlite") as db:
            found = list(as_dicts(db, "SELECT * FROM knowledge_base ORDER BY rowid"))
            return [self.base(db, row) for row in found]

    def base(self, db: apsw.Connection, row: dict[str, Any]) -> dict[str, Any]:
        base_id = row.pop("id")
        items = list(self.items(db, base_id))
        return {"legacyId": self.base_keys[base_id], **row, "items": items, **self.index(base_id)}

    def items(self, db: apsw.Connection, base_id: str) -> Iterator[dict[str, Any]]:
        counts: dict[str, int] = {}
        for item_id, group, kind, data, status, error, created, updated in db.execute(
            "SELECT id, group_id, type, data, status, error, created_at, updated_at"
            " FROM knowledge_item WHERE base_id = ? ORDER BY rowid",
            (base_id,),
        ):
            if group is not None:
                self.item_keys[item_id] = f"{self.item_keys[group]}#{counts.setdefault(group, 0)}"
                counts[group] += 1
            yield {
                "key": self.item_keys[item_id],
                "group": None if group is None else self.item_keys[group],
                "type": kind,
                "data": json.loads(data),
                "status": status,
                "error": error,
                "created_at": "<now>" if created == NOW_MS else created,
                "updated_at": "<now>" if updated == NOW_MS else updated,
            }

    def index(self, base_id: str) -> dict[str, Any]:
        folder = self.library / "KnowledgeBase" / base_id
        raw = [self.raw_file(path) for path in sorted((folder / "raw").glob("*"), key=str)] if folder.exists() else []
        path = folder / ".cherry" / "index.sqlite"
        if not path.exists():
            return {"index": None, "raw": raw}
        with sqlite.open_readonly(path) as db:
            assert db.execute("SELECT schema_version, base_id FROM meta").fetchall() == [(2, base_id)]
            materials = [self.material(db, *row) for row in db.execute("SELECT * FROM material ORDER BY rowid")]
            embeddings = sorted(
                [key, len(blob), hashlib.sha256(blob).hexdigest()[:16]]
                for key, blob in db.execute("SELECT embedding_text_hash, vector_blob FROM embedding")
            )
        return {"index": {"materials": materials, "embeddings": embeddings}, "raw": raw}

    def material(self, db: apsw.Connection, material_id: str, path: str, content_hash: str, *_: int) -> dict[str, Any]:
        text = db.execute("SELECT text FROM content WHERE content_hash = ?", (content_hash,)).get
        units = db.execute(
            "SELECT unit_index, char_start, char_end, fts_rowid, embedding_text_hash FROM search_unit"
            " JOIN search_text ON target_id = unit_id WHERE material_id = ? ORDER BY unit_index",
            (material_id,),
        ).fetchall()
        return {
            "key": self.item_keys[material_id],
            "relative_path": path,
            "content_hash": content_hash,
            "utf16": utf16_len(text),
            "codepoints": len(text),
            "bytes": len(text.encode()),
            "units": [list(unit) for unit in units],
        }

    @staticmethod
    def raw_file(path: Path) -> dict[str, Any]:
        raw = Path(file_paths.extended_path(path)).read_bytes()
        plain = re.sub(rb'\ntimestamp: "[^"]+"\n', b'\ntimestamp: "<now>"\n', raw, count=1)
        stamped = plain if raw.startswith(b"---\n") else raw
        return {"path": path.name, "size": len(raw), "sha256": hashlib.sha256(stamped).hexdigest()}


def normal(base: dict[str, Any]) -> dict[str, Any]:
    """Return an expected base in the terms that both files share."""
    base = json.loads(json.dumps(base))
    for item in base["items"]:
        item.pop("loaderId", None)
    if base["index"]:
        base["index"] = {key: base["index"][key] for key in ("materials", "embeddings")}
        for material in base["index"]["materials"]:
            # better.json does not state all of them.
            for key in ("codepoints", "bytes", "utf16"):
                material.setdefault(key, ANY)
            material.pop("ok", None)
    for file in base["raw"]:
        file["size"] = file.pop("bytes", file.get("size"))
        file.pop("head", None)
    base["raw"].sort(key=lambda file: file["path"])
    return base


def expected_bases(folder: Path) -> list[dict[str, Any]]:
    """Return what every base must be: the application's outcome, but where ours is better on purpose."""
    better_path = folder / "better.json"
    better = json.loads(better_path.read_text("utf-8")) if better_path.exists() else {}
    bases = json.loads((folder / "expected.json").read_text("utf-8"))["bases"]
    return [normal(better.get(base["legacyId"], base)) for base in bases]


def v1_times(folder: Path) -> dict[str, Any]:
    redux = json.loads((folder / "v1" / "redux.json").read_text("utf-8"))
    items = [item for base in redux["knowledge"]["bases"] for item in base["items"] if item.get("id")]
    return {item["id"]: item.get("updated_at", "<now>") for item in items}


def as_dicts(db: apsw.Connection, query: str) -> Iterator[dict[str, Any]]:
    rows = db.execute(query)
    names = [column[0] for column in rows.get_description()]
    return (dict(zip(names, row, strict=True)) for row in rows)
