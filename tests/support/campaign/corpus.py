"""Small input of every kind that is read, whole, made by the tests' own helpers; some of it with values by chance."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import angel_store
import apsw
import backup7
import chromium_files
import codex_mem_store
import generations
import lacking
import leveldb_files
import older
import planted_v1
import preview
import stranded
import v1
import whole_rsclaw
from browser_profile import as_backup_6, packed
from harness import NOW, run

from campaign import mutator
from regraft import identity

# --- v1 --------------------------------------------------------------------------------------------------------------


def export_input(folder: Path) -> Path:
    return planted_v1.whole(folder / "v1")


def zip_input(folder: Path) -> None:
    v1.pack(export_input(folder), folder / "backup.zip")
    shutil.rmtree(folder / "v1")


def unpacked(folder: Path) -> None:
    zip_input(folder)
    shutil.unpack_archive(folder / "backup.zip", folder / "backup")
    (folder / "backup.zip").unlink()


def profile_input(folder: Path) -> None:
    planted_v1.profile(export_input(folder)).rename(folder / "profile")
    shutil.rmtree(folder / "v1")


def direct(folder: Path) -> None:
    profile_input(folder)
    as_backup_6(folder / "profile", folder / "backup")
    shutil.rmtree(folder / "profile")


def direct_zip(folder: Path) -> None:
    direct(folder)
    packed(folder / "backup", folder / "backup.zip")
    shutil.rmtree(folder / "backup")


def _stored(value: object) -> bytes:
    """Return a value as the browser stores it; one that it cannot have is text there."""
    try:
        return chromium_files.row(value)
    except (struct.error, OverflowError):
        return chromium_files.row(repr(value)[:100])


def craft_profile(random: Random, folder: Path, _whole: Path) -> str:
    """Make a v1 profile whose storage is whole, and what is stored in it changed: checksums hide nothing of it."""
    source = export_input(folder)
    made = planted_v1.profile(source)
    redux = json.loads((source / "redux.json").read_text("utf-8"))
    state = json.dumps({name: json.dumps(part) for name, part in redux.items()})
    key = chromium_files.local_key("file://", "persist:cherry-studio")
    shutil.rmtree(source)
    if random.random() < 0.6:
        text, what = mutator.in_json(random, state)
        text = text.encode("utf-8", "replace").decode()
        value = chromium_files.local_text(text, wide=max(text) > "\xff" or random.random() < 0.5)
        if random.random() < 0.3:
            value, more = mutator.in_bytes(random, value)
            what += f", {more}"
        stored = leveldb_files.batch(1, [(key, value)])
        leveldb_files.Folder(made / "Local Storage" / "leveldb", logs={3: [stored]}).write()
    else:
        names = chromium_files.names({1: "files", 2: "knowledge_notes"})
        rows = {chromium_files.row_key(1, f"f{at}"): _stored(mutator.junk(random)) for at in range(3)}
        rows[chromium_files.row_key(1, "whole")] = chromium_files.row({"id": "up-f", "name": "up-f.pdf"})
        rows[chromium_files.row_key(2, "note")] = _stored({"id": "n", "content": mutator.junk(random)})
        entries = {**names, **rows}
        chosen = random.choice(list(entries))
        changed, what = mutator.in_bytes(random, entries.pop(chosen))
        entries[mutator.in_bytes(random, chosen)[0] if random.random() < 0.2 else chosen] = changed
        shutil.rmtree(made / "IndexedDB")
        chromium_files.idb_folder(made / "IndexedDB" / "file__0.indexeddb.leveldb", entries).write()
    made.rename(folder / "profile")
    return f"stored values: {what}"


def preview_profile(folder: Path) -> None:
    preview.profile(folder / "profile")


# --- v2 --------------------------------------------------------------------------------------------------------------


def migrated(folder: Path) -> Path:
    source = planted_v1.whole(folder / "v1")
    done = run("migrate", source, "--to", folder / "library", "--now", NOW, "-q", "--jobs", "1")
    assert done.status == 0, done
    shutil.rmtree(source)
    return folder / "library"


def used(folder: Path) -> Path:
    """Make a library that was changed since: its ledger has runs, and what takes them back."""
    library = migrated(folder)
    index = library / "KnowledgeBase" / identity.base_id("kb") / ".cherry" / "index.sqlite"
    with closing(apsw.Connection(str(index))) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("INSERT INTO embedding VALUES ('a hash of nothing', zeroblob(16), 0)")
        db.execute("DELETE FROM search_text WHERE rowid = (SELECT min(rowid) FROM search_text)")
    (index.parent.parent / "raw" / "stray.bin").write_bytes(b"stray")
    for command in ("gc", "repair"):
        done = run(command, library, "--yes", "-q", "--fail-on", "never")
        assert done.status == 0, done
    return library


def older_library(folder: Path) -> None:
    library = migrated(folder)
    for index in (library / "KnowledgeBase").glob("*/.cherry/index.sqlite"):
        older.make_version_1(index)
    generations.earlier(library)


def tombstones(folder: Path) -> None:
    stranded.profile(folder, stranded.some_source(), lost=("other",))


def profile_of(generation: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        library = migrated(folder)
        generations.with_bases(folder / "profile", generation, library)
        shutil.rmtree(library)

    return make


def fresh(folder: Path) -> None:
    generations.profile(folder / "profile", "2.1")


def backup_7(folder: Path) -> None:
    library = migrated(folder)
    generations.profile(folder / "profile", "before release")
    done = run("install", library, "--profile", folder / "profile", "--now", NOW, "--yes", "-q")
    assert done.status == 0, done
    backup7.full(folder / "profile", folder / "backup")
    packed(folder / "backup", folder / "backup.zip")
    for name in ("library", "profile", "backup"):
        shutil.rmtree(folder / name)


def pack_input(folder: Path) -> None:
    library = migrated(folder)
    done = run("pack", library, folder / "pack.zip", "--now", NOW, "-q")
    assert done.status == 0, done
    shutil.rmtree(library)


def parquet_input(folder: Path) -> None:
    library = migrated(folder)
    done = run("export", library, folder / "rows.parquet", "-q")
    assert done.status == 0, done
    shutil.rmtree(library)


def _changed_table(random: Random, table: Any, at: int, kind: int) -> Any:
    import pyarrow

    name = table.column_names[at]
    if kind == 0:
        return table.drop_columns([name])
    if kind == 1:
        return table.rename_columns([random.choice(mutator.TEXTS) if n == name else n for n in table.column_names])
    if kind == 2:
        types = ("string", "binary", "int64", "float32", "large_string", "null")
        made = getattr(pyarrow, random.choice(types))()
        return table.set_column(at, name, pyarrow.nulls(table.num_rows, made))
    if kind == 3:
        values = table.column(at).to_pylist()
        values[random.randrange(len(values))] = mutator.cell(random)
        return table.set_column(at, name, pyarrow.array(values))
    if kind == 4:
        values = table.column(at).to_pylist()
        random.shuffle(values)
        return table.set_column(at, name, pyarrow.array(values, table.column(at).type))
    metadata = {key: mutator.in_content(random, value)[0] for key, value in (table.schema.metadata or {}).items()}
    return table.replace_schema_metadata(metadata)


def craft_parquet(random: Random, folder: Path, whole: Path) -> str:
    """Make a Parquet file with other columns, types, values or settings."""
    import pyarrow
    from pyarrow import parquet

    path = folder / "rows.parquet"
    shutil.copy(whole / path.name, path)
    table = parquet.read_table(path)
    at = random.randrange(table.num_columns)
    name, kind = table.column_names[at], random.randrange(6)
    try:
        table = _changed_table(random, table, at, kind)
        packing = random.choice(["zstd", "none", "gzip"])
        parquet.write_table(table, path, row_group_size=random.choice([1, 3, 1000]), compression=packing)
    except (pyarrow.ArrowException, ValueError, TypeError, OverflowError) as error:
        return f"refused ({type(error).__name__})"
    return f"column {name}: change {kind}"


# --- other systems ---------------------------------------------------------------------------------------------------


def codex_input(folder: Path) -> None:
    path = codex_mem_store.write(folder, excluded=2, wal=False)
    codex_mem_store.embed(path, codex_mem_store.searchable(path)[:9])
    codex_mem_store.edit(path, codex_mem_store.note_id(0, 1))
    codex_mem_store.mark_failed(path, codex_mem_store.note_id(1, 2))
    codex_mem_store.unindex(path)


def angel_input(folder: Path) -> None:
    angel_store.damaged(folder / "angel")


def rsclaw_input(folder: Path) -> None:
    whole_rsclaw.with_garbage(folder / "kb").write()


# --- text ------------------------------------------------------------------------------------------------------------

_CONFIG = """embedders:
  mine:
    provider: openai
    base_url: http://127.0.0.1:1/v1
    model: embed-small
    model_ids: [acme::embed-small]
    dimensions: 8
    encoding: float
    prefix: "passage: "
    batch: {texts: 3, tokens: 4000}
    parallel: 1
    timeout: 2
    retries: 0
    price_per_million_tokens: 0.02
  near:
    provider: local
    path: ./model
"""


def config_input(folder: Path) -> None:
    (folder / "regraft.yaml").write_text(_CONFIG, "utf-8")


def craft_config(random: Random, folder: Path, _whole: Path) -> str:
    """Make a configuration that is YAML still, of other values."""
    import yaml

    text, what = mutator.in_json(random, json.dumps(yaml.safe_load(_CONFIG)))
    if random.random() < 0.5:
        try:
            text = yaml.safe_dump(json.loads(text), allow_unicode=random.random() < 0.5)
        except (ValueError, yaml.YAMLError, RecursionError):
            what += ", as JSON"
    (folder / "regraft.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    return what


def queries(folder: Path) -> None:
    lines = [json.dumps({"id": f"q{at}", "vector": [0.1 * at, 0.5, 0.25, 0.75]}) for at in range(1, 4)]
    (folder / "queries.jsonl").write_text("\n".join(lines), "utf-8")


def vector_input(folder: Path) -> None:
    (folder / "vector.json").write_text("[0.1, 0.5, 0.25, 0.75]")


def lacking_input(folder: Path) -> None:
    lacking.taken_away(lacking.library(folder))
    shutil.rmtree(folder / "v1")


def index_input(folder: Path) -> None:
    library = migrated(folder)
    (library / "KnowledgeBase" / identity.base_id("kb")).rename(folder / "base")
    shutil.rmtree(library)
