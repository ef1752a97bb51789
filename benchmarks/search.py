"""Holds the lane of words against plain SQL for the same answer: ``python -m benchmarks.search``.

20,000 Chinese texts of 800 characters are migrated once; then every query is asked both ways in turn, in one process on
a warm file cache. The floor is what SQLite alone has to do: for words that are too short for the full-text index a scan
with LIKE, ordered by length, else full text ordered by ``bm25()``, with the texts of the first ten. Both have to give
the same texts. The exit status is 1 when a kind of query takes longer than its floor allows.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import apsw

from benchmarks.compare import ROOT
from regraft.disk import sqlite
from regraft.formats.cherry_v2.index.search import bm25_hits, compile_query

HITS = 10
#: No slower than plain SQL, but for what a shared machine adds and for a moment (s) that nobody notices.
MAX_RATIO = 1.1
_MOMENT = 0.001
_QUERIES = 12
_ROUNDS = 7


@dataclass(frozen=True)
class Measured:
    """Both ways to ask queries of one kind: medians over the queries of the fastest of all rounds, in s."""

    kind: str
    floor: float
    regraft: float
    #: The median of the queries' own ratios.
    ratio: float

    @property
    def is_slow(self) -> bool:
        return self.ratio > MAX_RATIO and self.regraft - self.floor > _MOMENT

    def __str__(self) -> str:
        return f"| {self.kind} | {self.floor * 1000:.1f} ms | {self.regraft * 1000:.1f} ms | {self.ratio:.2f} |"


def made_index(folder: Path, rows: int) -> Path:
    """Make a base of so many Chinese texts, and return its index."""
    generate = ["benchmarks.generate", folder / "v1", "--rows", rows, "--dimensions", 8, "--lang", "zh"]
    migrate = ["regraft", "migrate", folder / "v1", "--to", folder / "library", "--quiet", "--fail-on", "never"]
    for command in (generate, migrate):
        arguments = [sys.executable, "-m", *map(str, command)]
        subprocess.run(arguments, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    (index,) = (folder / "library" / "KnowledgeBase").glob("*/.cherry/index.sqlite")
    return index


def floor(db: apsw.Connection, query: str) -> list[str]:
    """Return what plain SQL finds."""
    asked = compile_query(query)
    likes = " AND ".join("text LIKE ?" for _ in asked.shorts)
    patterns = [f"%{short}%" for short in asked.shorts]
    if not asked.terms:
        sql = f"SELECT text FROM search_text WHERE {likes} ORDER BY length(text), fts_rowid LIMIT {HITS}"
        return [str(row[0]) for row in db.execute(sql, patterns)]
    sql = f"""SELECT t.text FROM search_text_fts f JOIN search_text t ON t.fts_rowid = f.rowid
               WHERE search_text_fts MATCH ? {"AND " + likes.replace("text", "t.text") if likes else ""}
               ORDER BY bm25(search_text_fts), f.rowid LIMIT {HITS}"""
    match = " OR ".join(f'"{term}"' for term in asked.terms)
    return [str(row[0]) for row in db.execute(sql, (match, *patterns))]


def regraft(db: apsw.Connection, query: str) -> list[str]:
    """Return what regraft finds."""
    return [hit.text for hit in bm25_hits(db, query, HITS)]


def queries_of(db: apsw.Connection) -> dict[str, list[str]]:
    """Return queries by their kind, cut out of texts."""
    random = Random(1)
    texts = [str(row[0]) for row in db.execute("SELECT text FROM search_text ORDER BY fts_rowid LIMIT 500")]
    words = [word for text in texts for word in _words(text)]

    def some(length: int) -> str:
        return "".join(random.choice([word for word in words if len(word) >= length])[:length])

    kinds: dict[str, Callable[[], str]] = {
        "one word of 1": lambda: some(1),
        "one word of 2": lambda: some(2),
        "two words of 2": lambda: f"{some(2)} {some(2)}",
        "three words of 2": lambda: f"{some(2)} {some(2)} {some(2)}",
        "one word of 3": lambda: some(3),
        "a sentence of 9": lambda: some(9),
        "a sentence of 9 and a word of 2": lambda: f"{some(9)} {some(2)}",
    }
    return {name: [make() for _ in range(_QUERIES)] for name, make in kinds.items()}


def _words(text: str) -> list[str]:
    return [token for token in compile_query(text).tokens if not token.isascii()]


def measured(db: apsw.Connection, kind: str, queries: list[str]) -> Measured:
    """Ask every query both ways in turn.

    Raises:
        AssertionError: the answers differ.
    """
    pairs = []
    for query in queries:
        assert [len(text) for text in floor(db, query)] == [len(text) for text in regraft(db, query)], query
        rounds = [(_seconds(floor, db, query), _seconds(regraft, db, query)) for _ in range(_ROUNDS)]
        pairs.append(tuple(map(min, zip(*rounds, strict=True))))
    least, mine = zip(*pairs, strict=True)
    ratio = statistics.median(own / base for base, own in pairs)
    return Measured(kind, statistics.median(least), statistics.median(mine), ratio)


def _seconds(ask: Callable[[apsw.Connection, str], object], db: apsw.Connection, query: str) -> float:
    started = time.perf_counter()
    ask(db, query)
    return time.perf_counter() - started


def main() -> int:
    """Measure, print a table, and say whether the limit holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="regraft-search-"))
    try:
        with sqlite.open_readonly(made_index(folder, arguments.rows)) as db:
            results = [measured(db, kind, queries) for kind, queries in queries_of(db).items()]
    finally:
        shutil.rmtree(folder)
    print("| query | plain SQL | regraft | ratio |\n| --- | ---: | ---: | ---: |")
    print(*results, sep="\n")
    return 1 if any(result.is_slow for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
