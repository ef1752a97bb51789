"""Makes a v1 export folder of any size: ``python -m benchmarks.generate OUT --rows 20000 --dimensions 768``.

The folder holds ``redux.json``, ``dexie/files.json``, ``dexie/knowledge_notes.json``, ``Files/`` and one vector file
per base in ``KnowledgeBase/``. Eight of ten items are files, one a page, one a note; each has fifty rows of about 800
characters. The same arguments give the same rows, byte for byte.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import apsw

from benchmarks.vocabulary import LANGUAGES, Writer

ROWS_PER_ITEM = 50
#: A chunk has this many characters, give or take a hundred.
CHUNK_CHARACTERS = 800
#: A fixed moment, in ms.
CREATED_AT = 1_741_944_474_000
FILES_FOLDER = "/home/alice/.config/CherryStudio/Data/Files"
MODEL = {"id": "text-embedding-3-small", "provider": "openai", "name": "text-embedding-3-small", "group": "embedding"}

#: As v1 writes it, white space included.
_TABLE = """CREATE TABLE vectors (
            id              TEXT PRIMARY KEY,
            pageContent     TEXT UNIQUE,
            uniqueLoaderId  TEXT NOT NULL,
            source          TEXT NOT NULL,
            vector          F32_BLOB({dimensions}),
            metadata        TEXT
        )"""


@dataclass(frozen=True)
class Size:
    """What to make."""

    rows: int
    dimensions: int
    language: str = "en"
    bases: int = 1
    seed: int = 1


@dataclass
class _State:
    """What v1 would keep in Redux and Dexie."""

    bases: list[dict[str, Any]] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class _Loaded:
    """One item's part of the vector file."""

    loader_id: str
    loader_type: str
    source: str
    chunks: list[str]


def vectors(random: Random, dimensions: int) -> Callable[[], bytes]:
    """Return a function that gives another vector of about unit length each time.

    All components are drawn at once as one large integer: sign, mantissa and the lowest bit of the exponent are random,
    the rest of the exponent is added so that a component's magnitude is near ``1 / sqrt(dimensions)``.
    """
    # A component lies between 2^e and 4 * 2^e; its mean square is 35/6 * 4^e.
    exponent = 127 - round(math.log2(dimensions * 35 / 6) / 2)
    bits = 32 * dimensions
    repeat = ((1 << bits) - 1) // 0xFFFF_FFFF
    keep = repeat * 0x80FF_FFFF
    least = repeat * (exponent << 23)

    def vector() -> bytes:
        return ((random.getrandbits(bits) & keep) + least).to_bytes(bits // 8, "little")

    return vector


def generate(out: Path, size: Size) -> None:
    """Write the export folder ``out``, which must not exist yet."""
    for folder in ("dexie", "Files", "KnowledgeBase"):
        (out / folder).mkdir(parents=True)
    random = Random(size.seed)
    writer = Writer(size.language, random)
    vector = vectors(random, size.dimensions)
    state = _State()
    for number in range(size.bases):
        rows = size.rows // size.bases + (number < size.rows % size.bases)
        base_id = f"bench{number:016x}"
        items: list[dict[str, Any]] = []
        loaded = _load(out, random, writer, state, items, rows)
        _write_store(out / "KnowledgeBase" / base_id, size.dimensions, _rows(loaded, vector))
        state.bases.append(
            {
                "id": base_id,
                "name": f"Benchmark {number + 1}",
                "model": MODEL,
                "dimensions": size.dimensions,
                "items": items,
                "created_at": CREATED_AT,
                "updated_at": CREATED_AT,
                "version": 1,
                "documentCount": 6,
                "chunkSize": 1000,
                "chunkOverlap": 200,
            }
        )
    _write_state(out, state)


def _load(
    out: Path, random: Random, writer: Writer, state: _State, items: list[dict[str, Any]], rows: int
) -> Iterator[_Loaded]:
    """Make the items of a base one by one, each as its rows are wanted."""
    makers = [partial(_file, out)] * 8 + [_page, _note]
    for first in range(0, rows, ROWS_PER_ITEM):
        count = min(ROWS_PER_ITEM, rows - first)
        chunks = [writer.chunk(CHUNK_CHARACTERS + random.randrange(-100, 101)) for _ in range(count)]
        item: dict[str, Any] = {
            "id": str(uuid.UUID(int=random.getrandbits(128), version=4)),
            "created_at": CREATED_AT + first,
            "updated_at": CREATED_AT + first,
            "processingStatus": "completed",
            "processingProgress": 0,
            "processingError": "",
            "retryCount": 0,
        }
        loaded = makers[len(items) % len(makers)](state, item, chunks)
        item |= {"uniqueId": loaded.loader_id, "uniqueIds": [loaded.loader_id]}
        items.append(item)
        yield loaded


def _file(out: Path, state: _State, item: dict[str, Any], chunks: list[str]) -> _Loaded:
    name = f"{item['id']}.md"
    content = "\n\n".join(chunks).encode()
    (out / "Files" / name).write_bytes(content)
    path = f"{FILES_FOLDER}/{name}"
    metadata = {
        "id": item["id"],
        "name": name,
        "origin_name": f"Document {len(state.files) + 1}.md",
        "path": path,
        "size": len(content),
        "ext": ".md",
        "type": "text",
        "created_at": "2025-03-14T09:29:56.000Z",
        "count": 1,
    }
    state.files.append(metadata)
    item |= {"type": "file", "content": metadata}
    return _Loaded(f"LocalPathLoader_{_md5(path)}", "LocalPathLoader", path, chunks)


def _page(_state: _State, item: dict[str, Any], chunks: list[str]) -> _Loaded:
    url = f"https://example.com/{item['id']}"
    item |= {"type": "url", "content": url}
    return _Loaded(f"WebLoader_{_md5(url)}", "WebLoader", url, chunks)


def _note(state: _State, item: dict[str, Any], chunks: list[str]) -> _Loaded:
    text = "\n\n".join(chunks)
    item |= {"type": "note", "content": ""}
    times = {key: item[key] for key in ("created_at", "updated_at")}
    state.notes.append({"id": item["id"], "type": "note", "content": text, **times})
    return _Loaded(f"NoteLoader_{_md5(text)}", "NoteLoader", "note", chunks)


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _rows(loaded: Iterator[_Loaded], vector: Callable[[], bytes]) -> Iterator[tuple[str | bytes, ...]]:
    for item in loaded:
        for number, chunk in enumerate(item.chunks):
            row_id = f"{item.loader_id}_{number}"
            metadata = {
                "type": item.loader_type,
                "source": item.source,
                "uniqueLoaderId": item.loader_id,
                "id": row_id,
            }
            as_json = json.dumps(metadata, separators=(",", ":"))
            yield row_id, chunk, item.loader_id, item.source, vector(), as_json


def _write_store(path: Path, dimensions: int, rows: Iterator[tuple[str | bytes, ...]]) -> None:
    connection = apsw.Connection(str(path))
    try:
        # Only the speed of making it: the index over whole texts is filled in random order.
        connection.execute("PRAGMA cache_size = -500000; PRAGMA synchronous = OFF; BEGIN")
        connection.execute(_TABLE.format(dimensions=dimensions))
        connection.executemany("INSERT INTO vectors VALUES (?, ?, ?, ?, ?, ?)", rows)
        connection.execute("COMMIT")
    finally:
        connection.close()


def _write_state(out: Path, state: _State) -> None:
    documents = {
        "redux.json": {
            "knowledge": {"bases": state.bases},
            "llm": {"providers": [{"id": MODEL["provider"], "name": "OpenAI", "models": [MODEL]}]},
        },
        "dexie/files.json": state.files,
        "dexie/knowledge_notes.json": state.notes,
    }
    for name, document in documents.items():
        (out / name).write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and make the folder."""
    parser = argparse.ArgumentParser(description="Make a v1 export folder of any size.")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make; must not exist")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--dimensions", type=int, default=768)
    parser.add_argument("--lang", choices=LANGUAGES, default="en")
    parser.add_argument("--bases", type=int, default=1, help="split the rows over this many bases")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.rows < 1 or options.dimensions < 1 or options.bases < 1:
        parser.error("--rows, --dimensions and --bases must be positive")
    if options.out.exists():
        parser.error(f"{options.out} exists already")
    generate(options.out, Size(options.rows, options.dimensions, options.lang, options.bases, options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
