"""The floor: the least that any program has to do to turn a v1 vector file into the seven tables, with plain apsw.

``python -m benchmarks.floor VECTORS INDEX`` reads every row once in its order, hashes what the layout hashes, inserts,
indexes, builds the full-text index, commits and flushes the file; it prints the seconds of each phase as JSON. Rows of
one loader stand together, so that one material at a time is held. Nothing is checked, nothing is decided.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from uuid import uuid4

import apsw

from regraft.formats.cherry_v2.index.schema import FULL_TEXT, INDEXES, SCHEMA_VERSION, TABLES, TRIGGERS

SEPARATOR = "\n\n"
NOW_MS = 1_767_225_600_000

_READ = "SELECT uniqueLoaderId, pageContent, vector FROM vectors ORDER BY rowid"
_CONTENT = "INSERT INTO content VALUES (?, ?, ?)"
_MATERIAL = "INSERT INTO material VALUES (?, ?, ?, ?, ?)"
_UNIT = "INSERT INTO search_unit VALUES (?, ?, ?, 'chunk', ?, NULL, ?, ?, NULL, ?)"
_BODY = (
    "INSERT INTO search_text (rowid, search_text_id, target_type, target_id, kind, text, embedding_text_hash,"
    " fts_rowid, created_at) VALUES (?1, ?2, 'search_unit', ?3, 'body', ?4, ?5, ?1, ?6)"
)
_EMBEDDING = "INSERT INTO embedding VALUES (?, ?, ?)"

Row = tuple[str, str, bytes]


@dataclass(frozen=True)
class FullText:
    """How the full-text index is built; its content and its stored configuration are the same each way.

    Attributes:
        fan_in: no merging while it is built, until that many segments of one size stand side by side, and one
            'optimize' at its end; 0 merges as FTS5 does by itself (4 at a time, all along).
        hash_bytes: what is gathered in memory before a segment is written; 0 leaves FTS5's own 1 MiB.
    """

    fan_in: int = 100
    hash_bytes: int = 0


def build(vectors: Path, index: Path, full_text: FullText) -> dict[str, float]:
    """Write ``index`` and return the seconds that each phase took.

    Args:
        vectors: a v1 vector file without holes: every row has a text and a vector.
        index: where no file is yet.
        full_text: how the full-text index is built.
    """
    seconds: dict[str, float] = {}
    started = time.perf_counter()

    def lap(phase: str) -> None:
        nonlocal started
        now = time.perf_counter()
        seconds[phase] = round(now - started, 3)
        started = now

    source = apsw.Connection(f"file:{vectors}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    target = apsw.Connection(str(index))
    # The keys of three tables are hashes: their indexes fill in random order and are to stay in memory.
    target.execute("PRAGMA cache_size = -32000")
    target.execute("BEGIN")
    for statement in TABLES:
        target.execute(statement)
    target.execute("INSERT INTO meta VALUES (1, ?, 'base', ?, ?)", (SCHEMA_VERSION, NOW_MS, NOW_MS))
    _rows(source, target)
    lap("rows")
    for statement in INDEXES:
        target.execute(statement)
    lap("indexes")
    target.execute("PRAGMA cache_size = -2000")  # stock again: what follows needs the processor's cache
    target.execute(FULL_TEXT)
    _full_text(target, full_text)
    lap("full_text")
    for statement in TRIGGERS:
        target.execute(statement)
    target.execute("COMMIT")
    target.close()
    source.close()
    with index.open("rb+") as file:
        os.fsync(file.fileno())
    lap("commit")
    return seconds


def _rows(source: apsw.Connection, target: apsw.Connection) -> None:
    rows: Iterator[Row] = source.execute(_READ)
    rowid = 0
    for _, group in groupby(rows, itemgetter(0)):
        bodies, embeddings = [], []
        for _, body, vector in group:
            bodies.append(body)
            embeddings.append((sha256(body.encode()).hexdigest(), vector, NOW_MS))
        target.executemany(_EMBEDDING, embeddings)
        content = SEPARATOR.join(bodies)
        content_hash = sha256(content.encode()).hexdigest()
        material = str(uuid4())
        target.execute(_CONTENT, (content_hash, content, NOW_MS))
        target.execute(_MATERIAL, (material, material + ".md", content_hash, NOW_MS, NOW_MS))
        units, texts = [], []
        start = 0
        for number, (body, embedding) in enumerate(zip(bodies, embeddings, strict=True)):
            rowid += 1
            end = start + (len(body) if body.isascii() else len(body.encode("utf-16-le")) // 2)
            unit = sha256(f"{material} {content_hash} chunk {number} {start} {end}".encode()).hexdigest()
            units.append((unit, material, content_hash, number, start, end, NOW_MS))
            text_id = sha256(f"search_unit {unit} body".encode()).hexdigest()
            texts.append((rowid, text_id, unit, body, embedding[0], NOW_MS))
            start = end + len(SEPARATOR)
        target.executemany(_UNIT, units)
        target.executemany(_BODY, texts)


def _full_text(target: apsw.Connection, options: FullText) -> None:
    settings = {}
    if options.hash_bytes:
        settings["hashsize"] = options.hash_bytes
    if options.fan_in:
        settings |= {"automerge": 0, "crisismerge": options.fan_in}
    for name, value in settings.items():
        target.execute("INSERT INTO search_text_fts (search_text_fts, rank) VALUES (?, ?)", (name, value))
    target.execute("INSERT INTO search_text_fts (search_text_fts) VALUES ('rebuild')")
    if options.fan_in:
        target.execute("INSERT INTO search_text_fts (search_text_fts) VALUES ('optimize')")
    for name in settings:
        target.execute("DELETE FROM search_text_fts_config WHERE k = ?", (name,))


def main(arguments: list[str] | None = None) -> int:
    """Build one index and print the phases."""
    parser = argparse.ArgumentParser(description="Build an index the plainest and fastest way.")
    parser.add_argument("vectors", type=Path, metavar="VECTORS", help="a v1 vector file")
    parser.add_argument("index", type=Path, metavar="INDEX", help="the file to write; must not exist")
    parser.add_argument("--fan-in", type=int, default=FullText.fan_in, help="segments per merge (0: FTS5's own way)")
    parser.add_argument("--hash-bytes", type=int, default=0, help="FTS5's hashsize for the rebuild (0: its default)")
    options = parser.parse_args(arguments)
    if options.index.exists():
        parser.error(f"{options.index} exists already")
    print(json.dumps(build(options.vectors, options.index, FullText(options.fan_in, options.hash_bytes))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
