"""A small library whose vectors are those that the fault server makes, some of them taken away."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import yaml
from fault_server import FaultServer, vector_of
from faults import Source, item
from harness import NOW, Outcome, copied, run
from patience import NEVER_SECONDS
from planted_v2 import index

from regraft import identity
from regraft.disk import sqlite
from regraft.embedders import protocol

KB, OTHER = identity.base_id("kb"), identity.base_id("other")
#: Of every base of the library.
MODEL = "acme::embed-small"
#: Every text of the first base, by the item that it is of; the last one is of two.
TWICE = "the fog bell is rung twice an hour"
KB_TEXTS = {
    "item-f1": [f"lamp {number} of the harbour is lit at dusk" for number in range(8)],
    "item-f2": [f"boat {number} lies at the quay" for number in range(4)],
    "memo": ["the keeper comes on Monday", TWICE],
    "again": [TWICE],
}
OTHER_TEXTS = {"page": ["the tide turns at noon", "the tide turns at midnight"]}
#: What a fresh copy lacks: all but every third text, so that others can be compared with.
TEXTS = sorted({text for texts in KB_TEXTS.values() for text in texts}, key=identity.text_hash)
LACKING = [text for number, text in enumerate(TEXTS) if number % 3]
#: The texts that lack a vector, as a queue calls them.
KEYS = sorted(map(identity.text_hash, LACKING))
#: The others, as they are compared with what a server says, in two requests: the shortest ones first.
COMPARED = sorted(set(TEXTS) - set(LACKING), key=lambda text: (protocol.estimate(text), text))


@copied
def library(place: Path) -> Path:
    """Migrate two bases with all their vectors; the library has nothing to complain about, and no ledger."""
    return migrated(place, vector_of)


def migrated(place: Path, vector_for: Callable[[str], bytes | None], *options: object) -> Path:
    """Migrate the two bases with other vectors."""
    source = Source(place / "v1")
    notes = [item("memo", "note", "a memo"), item("again", "note", "again")]
    source.base("kb", [source.upload("f1", "a.txt", b"a"), source.upload("f2", "b.txt", b"b"), *notes])
    source.base("other", [item("page", "url", "https://example.org/a")])
    write_vectors(source.vectors("kb"), KB_TEXTS, vector_for)
    write_vectors(source.vectors("other"), OTHER_TEXTS, vector_for)
    target = place / "library"
    done = run("migrate", source.write(), "--to", target, "--now", NOW, "-q", *options)
    assert done.status in (0, 1), done
    for path in sorted((target / ".regraft").iterdir()):
        path.unlink()
    (target / ".regraft").rmdir()
    return target


def write_vectors(path: Path, texts: dict[str, list[str]], vector_for: Callable[[str], bytes | None]) -> None:
    """Write a v1 vector file with these texts of every item."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "CREATE TABLE vectors (id TEXT PRIMARY KEY, pageContent TEXT, uniqueLoaderId TEXT, source TEXT,"
            " vector BLOB, metadata TEXT)"
        )
        for item_id, bodies in texts.items():
            for number, body in enumerate(bodies):
                row = (f"L_{item_id}_{number}", body, f"L_{item_id}", f"/notes/{item_id}.md", vector_for(body))
                db.execute("INSERT INTO vectors VALUES (?, ?, ?, ?, ?, '{}')", row)


def taken_away(store: Path, texts: Iterable[str] = LACKING, base: str = KB) -> Path:
    """Delete the vectors of these texts."""
    with closing(apsw.Connection(str(index(store, base)))) as db:
        hashes = ((identity.text_hash(text),) for text in texts)
        db.executemany("DELETE FROM embedding WHERE embedding_text_hash = ?", hashes)
    return store


def many(store: Path, count: int = 60) -> list[str]:
    """Give the base that many units more, without vectors."""
    texts = [f"a text among many, number {number}" for number in range(count)]
    with closing(sqlite3.connect(index(store))) as db, db:
        unit, body = (
            db.execute(f"SELECT * FROM {table} ORDER BY rowid LIMIT 1").fetchone()
            for table in ("search_unit", "search_text")
        )
        names = [
            [row[1] for row in db.execute(f"PRAGMA table_info({table})")] for table in ("search_unit", "search_text")
        ]
        for number, text in enumerate(texts):
            made = {**dict(zip(names[0], unit, strict=True)), "unit_id": f"unit-{number}", "unit_index": 1000 + number}
            said = {
                **dict(zip(names[1], body, strict=True)),
                "search_text_id": f"body-{number}",
                "target_id": f"unit-{number}",
            }
            said |= {"text": text, "embedding_text_hash": identity.text_hash(text), "fts_rowid": None}
            for table, row in (("search_unit", made), ("search_text", said)):
                db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", list(row.values()))
    return texts


def vectors(store: Path, base: str = KB) -> dict[str, bytes]:
    """Return the vector of every text that has one."""
    with sqlite.open_readonly(index(store, base)) as db:
        return dict(
            db.execute("SELECT DISTINCT text, vector_blob FROM search_text JOIN embedding USING (embedding_text_hash)")
        )


def all_vectors(texts: Iterable[str] = TEXTS) -> dict[str, bytes]:
    """Return the vectors that the server makes."""
    return {text: vector_of(text) for text in texts}


# --- embedders -------------------------------------------------------------------------------------------------------


def queue_rows(path: Path) -> list[tuple[object, ...]]:
    """Return all that a queue says."""
    with sqlite.open_readonly(path) as db:
        return db.execute("SELECT * FROM job ORDER BY scope, key").fetchall()


def configured(path: Path, server: FaultServer | str, **more: Any) -> Path:
    """Write a configuration with one embedder, ``mine``, and return where it is; waits and batches are small."""
    url = server if isinstance(server, str) else server.url
    settings = {"provider": "openai", "base_url": url, "model": "embed-small", "batch": {"texts": 3}}
    embedder = {**settings, "parallel": 1, "retries": 1, "timeout": NEVER_SECONDS, **more}
    path.write_text(yaml.safe_dump({"embedders": {"mine": embedder}}), "utf-8")
    return path


def backfill(store: Path, config: Path, *options: object) -> Outcome:
    """Run the command for a program."""
    return run("backfill", store, "--config", config, "--json", *options)


def scope_of(done: Outcome, base: str = KB) -> dict[str, Any]:
    """Return what a document says of a base."""
    return next(scope for scope in done.document["scopes"] if scope["scope"] == base)
