"""Small v2 profiles as the application leaves them after its own upgrade, some of whose vector files it could not read.

What the application would have made of a readable file is what a migration makes of it, under ids of its own.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
from harness import NOW, run
from v1 import Row, Source, base, dicts, file, folder, note, opened, page

from regraft import identity
from regraft.formats.cherry_v2.catalog import TABLES

DATABASE = "cherrystudio.sqlite"
#: What a profile has besides what a library has: columns, tables, references to bases, and rules of its own.
EXTRA = (
    "ALTER TABLE knowledge_base ADD COLUMN emoji TEXT",
    "ALTER TABLE knowledge_item ADD COLUMN priority INTEGER NOT NULL DEFAULT 7",
    "ALTER TABLE user_model ADD COLUMN is_enabled INTEGER NOT NULL DEFAULT 1",
    "ALTER TABLE user_provider ADD COLUMN api_keys TEXT",
    "CREATE UNIQUE INDEX user_model_provider_model_unique ON user_model (provider_id, model_id)",
    "CREATE TABLE message (id TEXT PRIMARY KEY, text TEXT)",
    "INSERT INTO message VALUES ('m', 'a chat of long ago')",
    """CREATE TABLE assistant_knowledge_base (
         assistant_id TEXT NOT NULL,
         knowledge_base_id TEXT NOT NULL REFERENCES knowledge_base (id) ON DELETE CASCADE,
         PRIMARY KEY (assistant_id, knowledge_base_id))""",
    """CREATE TRIGGER message_bu BEFORE UPDATE ON message
         BEGIN SELECT raise(ABORT, 'a message is made once'); END""",
)


def rows_of(*loaders: str, count: int = 3) -> list[Row]:
    return [
        Row(loader, f"text {n} of {loader}", source=f"/docs/{loader}.md") for n in range(count) for loader in loaders
    ]


def some_source() -> Source:
    """Return a source with something of everything: shared loaders, equal names, a second base."""
    items = [
        folder("d", "D1", "F", "D2", path="/home/alice/d"),
        file("f", "F"),
        file("g", "G"),
        page("p", "P"),
        note("n", "N", text="Remember the lamp"),
        folder("e", "D2", "D3", path="/home/alice/e"),
        note("never", text="never indexed", processingStatus="completed"),
    ]
    rows = rows_of("D1", "F", "D2", "G", "P", "N", "D3", "nobody")
    stores = {"kb": rows, "other": rows_of("O", "D1")}
    other = base("other", note("o", "O", text="Other"), folder("x", "D1", path="/x"), name="Andere Küche 🎉")
    uploads = {"up-f.pdf": b"a pdf", "up-g.pdf": b"another pdf"}
    return Source([base("kb", *items), other], stores, uploads=uploads)


def renamed(old: str) -> str:
    """Return an id as the application would have given it, for one of ours."""
    return str(uuid.UUID(bytes=hashlib.sha256(f"application {old}".encode()).digest()[:16], version=4))


def profile(place: Path, source: Source, lost: tuple[str, ...] = (), *, wal: bool = True) -> Path:
    """Build a profile after the upgrade of a source; of the bases in ``lost`` the vector files could not be read."""
    v1 = source.write(place / "v1")
    upgraded = place / "upgraded"
    shutil.copytree(v1, upgraded)
    for name in lost:
        (upgraded / "KnowledgeBase" / name).unlink()
    library = place / "library"
    done = run("migrate", upgraded, "--to", library, "--now", NOW, "--fail-on", "never", "--json", "-q")
    assert done.status == 0, done
    made = place / "profile"
    shutil.copytree(v1 / "KnowledgeBase", made / "Data" / "KnowledgeBase")
    shutil.copytree(v1 / "Files", made / "Data" / "Files")
    shutil.copytree(v1 / "dexie", made / "dexie")
    shutil.copy(v1 / "redux.json", made)
    _catalog(library, made / DATABASE, wal=wal)
    for old in sorted((library / "KnowledgeBase").glob("*")):
        new = made / "Data" / "KnowledgeBase" / renamed(old.name)
        shutil.copytree(old, new)
        if (new / ".cherry" / "index.sqlite").exists():
            _rename_index(new / ".cherry" / "index.sqlite", new.name)
    for used in (v1, upgraded, library):
        shutil.rmtree(used)
    return made


def _catalog(library: Path, path: Path, *, wal: bool) -> None:
    with closing(apsw.Connection(str(path))) as db:
        if wal:
            db.execute("PRAGMA journal_mode = WAL")
        for statement in TABLES:
            db.execute(statement)
        db.execute("ATTACH ? AS library", (str(library / "catalog.sqlite"),))
        for table in ("user_provider", "user_model", "knowledge_base", "knowledge_item"):
            db.execute(f"INSERT INTO {table} SELECT * FROM library.{table} ORDER BY rowid")
        db.execute("DETACH library")
        db.create_scalar_function("renamed", lambda old: None if old is None else renamed(old))
        db.execute("UPDATE knowledge_base SET id = renamed(id)")
        # An own path is an id, too.
        db.execute(
            "UPDATE knowledge_item SET data = json_set(data, '$.relativePath', renamed(id))"
            " WHERE data ->> '$.relativePath' = id"
        )
        db.execute(
            "UPDATE knowledge_item SET id = renamed(id), base_id = renamed(base_id), group_id = renamed(group_id)"
        )
        for statement in EXTRA:
            db.execute(statement)
        db.execute("INSERT INTO assistant_knowledge_base SELECT 'someone', id FROM knowledge_base")
        db.execute("UPDATE user_provider SET api_keys = 'secret'")


def _rename_index(path: Path, base_id: str) -> None:
    """Give the materials of an index the application's ids, and what follows from these."""
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("BEGIN")
        db.create_scalar_function("renamed", renamed)
        db.create_scalar_function("unit_id", identity.unit_id)
        db.create_scalar_function("body_id", identity.body_id)
        db.execute("UPDATE meta SET base_id = ?", (base_id,))
        db.execute(
            "UPDATE material SET material_id = renamed(material_id), relative_path ="
            " CASE relative_path WHEN material_id THEN renamed(material_id) ELSE relative_path END"
        )
        db.execute("UPDATE search_unit SET material_id = renamed(material_id)")
        db.execute(
            "UPDATE search_text SET target_id = (SELECT unit_id(material_id, content_hash, unit_index, char_start,"
            " char_end) FROM search_unit u WHERE u.unit_id = target_id)"
        )
        db.execute("UPDATE search_text SET search_text_id = body_id(target_id)")
        db.execute(
            "UPDATE search_unit SET unit_id = unit_id(material_id, content_hash, unit_index, char_start, char_end)"
        )
        db.execute("COMMIT")


# --- what a profile holds --------------------------------------------------------------------------------------------


def sql(path: Path, *statements: str) -> None:
    """Run statements without foreign keys and checks."""
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        for statement in statements:
            db.execute(statement)


def index_of(made: Path, legacy_base: str = "kb") -> Path:
    return made / "Data" / "KnowledgeBase" / base_of(legacy_base) / ".cherry" / "index.sqlite"


def base_of(legacy_base: str) -> str:
    return renamed(identity.base_id(legacy_base))


def settled(path: Path) -> Path:
    """Work a log into a database, so that it can be read from the file alone."""
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def shape(made: Path) -> dict[str, Any]:
    """Return all that a profile says of its bases, without ids that hang on who made them."""
    found = {}
    with opened(settled(made / DATABASE)) as db:
        items = dicts(db, "SELECT * FROM knowledge_item")
        keys = {item["id"]: _key(item, items) for item in items}
        for row in dicts(db, "SELECT * FROM knowledge_base"):
            own = [item for item in items if item["base_id"] == row["id"]]
            said = [
                {**item, "id": None, "base_id": None, "group_id": keys.get(item["group_id"]), "data": _data(item)}
                for item in own
            ]
            folder_of = made / "Data" / "KnowledgeBase" / row["id"]
            raw = {path.name: path.read_bytes() for path in sorted((folder_of / "raw").glob("*")) if path.is_file()}
            found[row["name"]] = {
                "row": row,
                "items": sorted(said, key=repr),
                "index": _index(folder_of / ".cherry" / "index.sqlite", keys),
                "raw": raw,
            }
    return found


def _key(item: dict[str, Any], items: list[dict[str, Any]]) -> str:
    above = next((one for one in items if one["id"] == item["group_id"]), None)
    return f"{json.loads(above['data'])['source'] if above else ''} > {sorted(_data(item).items())}"


def _data(item: dict[str, Any]) -> dict[str, Any]:
    return {key: "<own>" if value == item["id"] else value for key, value in json.loads(item["data"]).items()}


def _index(path: Path, keys: dict[str, str]) -> Any:
    if not path.exists():
        return None
    with opened(settled(path)) as db:
        units = db.execute(
            """SELECT u.material_id, relative_path = u.material_id, unit_index, char_start, char_end, t.text,
                      vector_blob
                 FROM search_unit u JOIN material USING (material_id) JOIN search_text t ON target_id = unit_id
                 JOIN embedding USING (embedding_text_hash)"""
        )
        return sorted((keys.get(material, "nobody"), *rest) for material, *rest in units)


def tables(path: Path) -> dict[str, list[Any]]:
    """Return every row of every ordinary table of a database, but for the numbers of a full-text index."""
    with opened(settled(path)) as db:
        names = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: sorted(map(repr, dicts(db, f'SELECT * FROM "{name}"'))) for name in names if "_fts" not in name}


def files(made: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file of a profile but the database and regraft's own."""
    for path in sorted(made.rglob("*")):
        name = path.relative_to(made).as_posix()
        if path.is_file() and not name.startswith((".regraft", DATABASE)):
            yield name, path.read_bytes()


def contents(made: Path) -> tuple[dict[str, list[Any]], dict[str, bytes]]:
    """Return all that a profile holds: its tables and its files."""
    return tables(made / DATABASE), dict(files(made))
