"""A whole v1 source, and damage to it: one planting for everything that ``regraft check`` can find."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
from chromium_files import idb_folder, local_key, local_text, names, row, row_key
from golden_cases import as_backup
from leveldb_files import BLOCK, Folder, batch, log
from v1 import LLM, MODEL, Row, Source, base, file, folder, note, page, vector_of


def whole(place: Path) -> Path:
    """Write a source that has something of everything and nothing to complain about."""
    items = [
        file("f", "F"),
        page("p", "P"),
        note("n", "N"),
        folder("d", "D1", "D2"),
    ]
    rows = [Row(loader, f"text {number} of {loader}") for number in range(3) for loader in ("F", "P", "N", "D1", "D2")]
    other = base("other", note("o", "O"), name="Andere Küche 🎉")
    stores = {"kb": rows, "other": [Row("O", "text of O")]}
    return Source([base("kb", *items), other], stores, uploads={"up-f.pdf": b"a pdf"}).write(place)


# --- damage --------------------------------------------------------------------------------------------------------


def state(source: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change the state of a source."""
    path = source / "redux.json"
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")
    return source


def kb(**fields: Any) -> Callable[[Path], Path]:
    """Return what changes fields of the first base."""
    return lambda source: state(source, lambda content: content["knowledge"]["bases"][0].update(fields))


def items(*more: Any) -> Callable[[Path], Path]:
    """Return what adds items to the first base."""
    return lambda source: state(source, lambda content: content["knowledge"]["bases"][0]["items"].extend(more))


def bases(*more: Any) -> Callable[[Path], Path]:
    return lambda source: state(source, lambda content: content["knowledge"]["bases"].extend(more))


def llm(content: Any) -> Callable[[Path], Path]:
    return lambda source: state(
        source, lambda found: found.pop("llm") if content is None else found.update(llm=content)
    )


def vectors(*statements: str) -> Callable[[Path], Path]:
    """Return what changes rows of the first base's vector file."""

    def change(source: Path) -> Path:
        with closing(apsw.Connection(str(source / "KnowledgeBase" / "kb"))) as db:
            for statement in statements:
                db.execute(statement)
        return source

    return change


def insert(row_id: str, loader: str, body: str, vector: str = "") -> str:
    value = vector or f"x'{vector_of(body).hex()}'"
    return f"INSERT INTO vectors VALUES ('{row_id}', '{body}', '{loader}', '/home/alice/docs/x.md', {value}, '{{}}')"


def bytes_of(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def damage(source: Path) -> Path:
        path = source / name
        path.write_bytes(change(path.read_bytes() if path.exists() else b""))
        return source

    return damage


def both(*changes: Callable[[Path], Path]) -> Callable[[Path], Path]:
    def change(source: Path) -> Path:
        for one in changes:
            source = one(source)
        return source

    return change


def gone(name: str) -> Callable[[Path], Path]:
    def remove(source: Path) -> Path:
        (source / name).unlink()
        return source

    return remove


def linked_away(name: str) -> Callable[[Path], Path]:
    """Put a folder elsewhere, and a link in its place."""

    def move(source: Path) -> Path:
        away = (source / name).rename(source.parent / f"{source.name}-elsewhere")
        (source / name).symlink_to(away)
        return source

    return move


def a_folder_for_a_vector_file(source: Path) -> Path:
    path = source / "KnowledgeBase" / "kb"
    path.unlink()
    (path / "old").mkdir(parents=True)
    return source


def an_older_layout(source: Path) -> Path:
    (source / "KnowledgeBase" / "older" / "LocalFolder").mkdir(parents=True)
    return source


def slim(source: Path) -> Path:
    """Make a backup of a source without its ``Data/``."""
    shutil.rmtree(source / "Files")
    shutil.rmtree(source / "KnowledgeBase")
    for name in ("Files", "KnowledgeBase"):
        (source / name).mkdir()
    return as_backup(source, source.with_name("slim.zip"))


def profile(source: Path) -> Path:
    """Make a profile of a source, as a live application has it."""
    made = source.with_name("CherryStudio")
    for name in ("Files", "KnowledgeBase"):
        shutil.copytree(source / name, made / "Data" / name)
    redux = json.loads((source / "redux.json").read_text("utf-8"))
    text = json.dumps({name: json.dumps(part) for name, part in redux.items()})
    stored = batch(1, [(local_key("file://", "persist:cherry-studio"), local_text(text))])
    Folder(made / "Local Storage" / "leveldb", logs={3: [stored]}).write()
    rows = {row_key(1, "some file"): row({"id": "some file"})}
    stores = names({1: "files", 2: "knowledge_notes"})
    idb_folder(made / "IndexedDB" / "file__0.indexeddb.leveldb", {**stores, **rows}).write()
    return made


def a_profile_alone(source: Path) -> Path:
    made = profile(source)
    shutil.rmtree(made / "Data")
    return made


def a_forgotten_file(source: Path) -> Path:
    shutil.copy(source / "KnowledgeBase" / "kb", source / "KnowledgeBase" / "gone")
    return source


def a_file_of_another_kind(source: Path) -> Path:
    with closing(apsw.Connection(str(source / "KnowledgeBase" / "another"))) as db:
        db.execute("CREATE TABLE something (id)")
    return source


def a_damaged_profile(source: Path) -> Path:
    """Make a profile whose Local Storage has one bad byte in what was written after the state."""
    made = profile(source)
    path = made / "Local Storage" / "leveldb" / "000003.log"
    state_record = path.read_bytes()

    def record(number: int, length: int) -> bytes:
        return log([batch(number, [(local_key("file://", "other"), local_text("x" * length))])])

    # The bad record fills its block, so that it is the only place that is passed over.
    rest = BLOCK - len(state_record) - (len(record(2, 20_000)) - 20_000)
    bad = bytearray(record(2, rest))
    bad[100] ^= 1
    path.write_bytes(state_record + bad + record(3, 5))
    return made


def a_running_profile(source: Path) -> Path:
    made = profile(source)
    (made / "SingletonLock").symlink_to(f"{socket.gethostname()}-{os.getpid()}")
    return made


def a_moved_profile(source: Path) -> Path:
    """Make settings that name a profile elsewhere, and return where the user would look for it."""
    home = source.parent / "home"
    settings = home / ".cherrystudio" / "config" / "config.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"appDataPath": str(profile(source))}), "utf-8")
    return settings


@dataclass(frozen=True)
class Planted:
    """Damage to the whole source: what does it, what is found of it, and under which code a plan says it."""

    finding: str
    code: str
    damage: Callable[[Path], Path]
    severity: str = "warning"
    base: str | None = "kb"
    subject: str | None = None
    count: int = 1
    options: tuple[str, ...] = ()
    #: What is found besides.
    more: tuple[str, ...] = ()


VECTORS = "KnowledgeBase/kb"
GONE = {**MODEL, "provider": "gone"}
RETIRING = {"id": "github", "name": "GitHub", "models": [MODEL]}
ITEM_CODES = {
    "knowledge_item_missing_id_or_type": (None, None),
    "knowledge_item_unsupported_type": ({"id": "m", "type": "memory"}, "m"),
    "duplicate_knowledge_item": (note("n"), "n"),
    "knowledge_item_invalid_file": ({"id": "x", "type": "file", "content": {"id": "x"}}, "x"),
    "knowledge_item_invalid_url": (page("x", address=" "), "x"),
    "knowledge_item_invalid_sitemap": ({"id": "x", "type": "sitemap", "content": 7}, "x"),
    "knowledge_item_invalid_note": (note("x", text=""), "x"),
    "knowledge_item_invalid_directory": (folder("x", path=None), "x"),
}

PLANTED: dict[str, Planted] = {
    # --- the vector file
    "a file that is cut off": Planted(
        "v1.unreadable",
        "missing_vector_store",
        bytes_of(VECTORS, lambda data: data[: len(data) // 2]),
        "error",
        subject=VECTORS,
        more=("v1.folder",),
    ),
    "no database": Planted(
        "v1.unreadable",
        "missing_vector_store",
        bytes_of(VECTORS, lambda data: b"\xa5" * len(data)),
        "error",
        subject=VECTORS,
        more=("v1.folder",),
    ),
    "no table": Planted(
        "v1.unreadable",
        "missing_vector_store",
        vectors("ALTER TABLE vectors RENAME TO others"),
        "error",
        subject=VECTORS,
        more=("v1.folder",),
    ),
    "no column": Planted(
        "v1.unreadable",
        "missing_vector_store",
        vectors("ALTER TABLE vectors DROP COLUMN vector"),
        "error",
        subject=VECTORS,
        more=("v1.folder",),
    ),
    "a folder in its place": Planted(
        "v1.unreadable",
        "missing_vector_store",
        a_folder_for_a_vector_file,
        "error",
        subject=VECTORS,
        more=("v1.folder", "v1.state"),
    ),
    "no file": Planted(
        "v1.no-vectors", "missing_vector_store", gone(VECTORS), "error", subject=VECTORS, more=("v1.folder",)
    ),
    "an empty file": Planted(
        "v1.no-vectors",
        "missing_vector_store",
        bytes_of(VECTORS, lambda _: b""),
        "error",
        subject=VECTORS,
        more=("v1.folder",),
    ),
    "no usable vector": Planted(
        "v1.no-vectors",
        "missing_vector_store",
        vectors("UPDATE vectors SET vector = NULL"),
        "error",
        subject=VECTORS,
        count=15,
        more=("v1.folder",),
    ),
    "no row": Planted(
        "v1.no-vectors",
        "missing_vector_store",
        vectors("DELETE FROM vectors"),
        "error",
        subject=VECTORS,
        more=("v1.folder",),
    ),
    # --- models
    "a model and its provider that are gone": Planted(
        "v1.model", "missing_embedding_model", kb(model=GONE), "error", count=15, more=("v1.folder",)
    ),
    "no model": Planted("v1.model", "missing_embedding_model", kb(model=None), "error", count=15, more=("v1.folder",)),
    "a model that its provider no longer has": Planted(
        "v1.model", "model_recreated", kb(model={**MODEL, "id": "old"}), "note"
    ),
    "a model that is said to be another": Planted(
        "v1.model", "model_mapped", kb(model=GONE), "note", options=("--map-model", "gone::embed-3=acme::embed-3")
    ),
    "no list of models": Planted("v1.model", "models_unknown", llm(None), base=None),
    "a rerank model that is gone": Planted("v1.model", "rerank_model_cleared", kb(rerankModel=GONE)),
    "a provider that later releases have no more": Planted(
        "v1.model",
        "provider_retired",
        both(kb(model={**MODEL, "provider": "github"}), llm({"providers": [*LLM["providers"], RETIRING]})),
    ),
    "a word about a model that nothing uses": Planted(
        "v1.model", "model_option_unused", lambda source: source, base=None, options=("--recreate-model", "no::such")
    ),
    # --- rows
    "rows of nobody": Planted(
        "v1.unmapped",
        "unmapped_loader",
        vectors(insert("G_0", "G", "one"), insert("G_1", "G", "two")),
        "note",
        subject=VECTORS,
        count=2,
    ),
    "chunks that v1 left out": Planted(
        "v1.deduplicated", "v1_deduplicated", vectors("DELETE FROM vectors WHERE id = 'N_1'"), "note", subject="n"
    ),
    "chunks of one item that v1 left out": Planted(
        "v1.deduplicated",
        "v1_deduplicated_item",
        vectors("DELETE FROM vectors WHERE id IN ('F_0', 'F_1')"),
        "note",
        subject="f",
        count=2,
    ),
    "a copy of a file": Planted(
        "v1.deduplicated",
        "restored_duplicate",
        both(items(file("g", "G", name="copy.pdf")), bytes_of("Files/up-g.pdf", lambda _: b"a pdf")),
        "note",
        subject="g",
        count=3,
    ),
    "files without rows": Planted(
        "v1.no-text",
        "file_without_rows",
        both(
            items(file("g", "G", name="table.csv"), file("h", "H", name="empty.txt")),
            bytes_of("Files/up-g.csv", lambda _: b"a,b"),
            bytes_of("Files/up-h.txt", lambda _: b""),
        ),
        "note",
        count=2,
    ),
    "vectors of another model": Planted(
        "v1.mixed-dimensions",
        "dimension_mismatch",
        vectors(insert("F_3", "F", "short", f"x'{vector_of('short', 3).hex()}'")),
        subject=VECTORS,
    ),
    "a row without a vector": Planted(
        "v1.unusable-vector",
        "missing_vector_payload",
        vectors("UPDATE vectors SET vector = NULL WHERE id IN ('F_0', 'P_2')"),
        subject=VECTORS,
        count=2,
    ),
    "a vector as text": Planted(
        "v1.unusable-vector",
        "unsupported_vector_encoding",
        vectors("UPDATE vectors SET vector = '[1, 2]' WHERE id = 'F_0'"),
        subject=VECTORS,
    ),
    "a vector of zeros": Planted(
        "v1.degenerate",
        "degenerate_vector",
        vectors("UPDATE vectors SET vector = zeroblob(16) WHERE id = 'F_0'"),
        subject=VECTORS,
    ),
    "more text than SQLite holds": Planted(
        "v1.too-large", "content_too_large", vectors(insert("F_3", "F", "long " * 100)), "error", subject="f", count=4
    ),
    "a note that is too long": Planted(
        "v1.too-large", "note_truncated", items(note("x", text="a" * 1_000_001)), subject="x"
    ),
    "a vector with a NaN": Planted(
        "v1.unusable-vector",
        "non_finite_vector",
        vectors("UPDATE vectors SET vector = x'0000c07f000000000000000000000000' WHERE id = 'F_0'"),
        subject=VECTORS,
    ),
    # --- items and folders
    **{
        f"an item: {code}": Planted("v1.item", code, items(raw), subject=subject)
        for code, (raw, subject) in ITEM_CODES.items()
    },
    "no list of items": Planted("v1.item", "invalid_item_list", kb(items="none"), more=("v1.unmapped",)),
    "a folder without rows": Planted("v1.folder", "directory_not_migrated", items(folder("e", "gone")), subject="e"),
    "a file of a folder without rows": Planted(
        "v1.folder",
        "directory_entries_without_rows",
        both(items(folder("e", "E", "gone")), vectors(insert("E_0", "E", "one"))),
        subject="e",
    ),
    "a file of a folder without a usable row": Planted(
        "v1.folder",
        "directory_child_not_migrated",
        vectors("UPDATE vectors SET vector = NULL WHERE uniqueLoaderId = 'D1'"),
        subject="d",
        more=("v1.unusable-vector",),
    ),
    "rows of a folder that v1 did not finish": Planted(
        "v1.folder",
        "non_indexable_container",
        both(items(folder("e", "E", processingStatus="failed")), vectors(insert("E_0", "E", "one"))),
        "note",
        subject=VECTORS,
    ),
    "one loader of two items": Planted("v1.shared-loader", "loader_shared", items(note("x", "N")), subject="n"),
    "a file of a folder that was added alone too": Planted(
        "v1.shared-loader",
        "directory_child_loader_conflict",
        items(note("x", "D1")),
        "note",
        subject="d",
    ),
    "a file of two folders": Planted(
        "v1.shared-loader",
        "directory_child_loader_shared",
        both(items(folder("e", "D2", "E")), vectors(insert("E_0", "E", "one"))),
        "note",
        subject="d",
    ),
    "a file of a folder that lies elsewhere": Planted(
        "v1.folder",
        "directory_child_outside",
        both(items(folder("e", "E", path="/srv/docs")), vectors(insert("E_0", "E", "one"))),
        "note",
        subject="e",
    ),
    "an upload that is gone": Planted("v1.missing-upload", "missing_upload", gone("Files/up-f.pdf"), subject="f"),
    "uploads on another disk": Planted(
        "v1.link", "link_not_followed", linked_away("Files"), base=None, more=("v1.missing-upload",)
    ),
    "two uploads of one name": Planted(
        "v1.renamed",
        "renamed_files",
        both(
            items(file("g", "G", name="REPORT.pdf")),
            vectors(insert("G_0", "G", "one")),
            bytes_of("Files/up-g.pdf", lambda _: b"another pdf"),
        ),
        "note",
    ),
    # --- bases
    "a base without a name": Planted("v1.base", "invalid_knowledge_base_identity", bases(base("x", name="")), base="x"),
    "two bases of one id": Planted("v1.base", "duplicate_knowledge_base", bases(base("kb"))),
    "a base that you deleted": Planted(
        "v1.pending-delete",
        "pending_delete",
        both(
            bases(base("x", note("x"))),
            bytes_of("KnowledgeBase/knowledge_pending_delete.json", lambda _: b'["x"]'),
        ),
        "note",
        base="x",
    ),
    "a name of spaces": Planted("v1.settings", "blank_base_name", kb(name="  ")),
    "a setting that is none": Planted("v1.settings", "invalid_base_config", kb(chunkSize="many")),
    "a description": Planted("v1.dropped-field", "dropped_field", kb(description="about it"), "note"),
    # --- the source as a whole
    "a table that is cut off": Planted(
        "v1.state", "dexie_table_unreadable", bytes_of("dexie/files.json", lambda _: b"[{"), base=None
    ),
    "a list of deleted bases that is none": Planted(
        "v1.state",
        "pending_delete_unreadable",
        bytes_of("KnowledgeBase/knowledge_pending_delete.json", lambda _: b"{"),
        base=None,
    ),
    "no knowledge": Planted(
        "v1.state",
        "no_knowledge_state",
        lambda source: state(gone(VECTORS)(source), lambda content: content.update(knowledge=None)),
        "note",
        base=None,
    ),
    "folders of an older layout": Planted("v1.state", "older_layout", an_older_layout, "note", base=None),
    "a vector file of no base": Planted("v1.unnamed-file", "unnamed_vector_files", a_forgotten_file, "note", base=None),
    "a vector file of no base that becomes one": Planted(
        "v1.unnamed-file",
        "adopted",
        a_forgotten_file,
        "note",
        base="gone",
        options=("--adopt-orphans", "--map-model", "gone=acme::embed-3"),
        more=("v1.model",),
    ),
    "a file of another kind among the vector files": Planted(
        "v1.unnamed-file",
        "not_adopted",
        a_file_of_another_kind,
        base=None,
        options=("--adopt-orphans",),
    ),
    "a state that lost its bases": Planted(
        "v1.state",
        "lost_state",
        lambda source: state(source, lambda content: content.update(knowledge={"bases": []})),
        base=None,
        count=2,
    ),
    "a profile without Data": Planted(
        "v1.slim", "data_missing", a_profile_alone, base=None, more=("v1.no-vectors", "v1.folder", "v1.missing-upload")
    ),
    "storage that is damaged": Planted("v1.state", "storage_damaged", a_damaged_profile, base=None),
    "a backup without Data": Planted(
        "v1.slim", "slim_backup", slim, base=None, more=("v1.no-vectors", "v1.folder", "v1.missing-upload")
    ),
    "an application that is running": Planted("v1.running", "application_running", a_running_profile, base=None),
    "a profile elsewhere": Planted("v1.moved", "profile_moved", a_moved_profile, "note", base=None),
}
