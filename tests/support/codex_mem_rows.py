"""Rows and full text of a codex-mem database, read with plain sqlite3."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import codex_mem_store as made
from harness import run

from regraft.disk import sqlite


def full_text(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of the full-text index, and under "ranks" what some searches find, with exact scores."""
    found = {name: made.rows(path, f"SELECT * FROM memory_items_fts_{name}") for name in ("data", "idx", "docsize")}
    query = "SELECT rowid, bm25(memory_items_fts) FROM memory_items_fts WHERE memory_items_fts MATCH ? ORDER BY 2, 1"
    found["ranks"] = [
        (word, row, repr(score))
        for word in ("note", "again", '"WAL" "mode"')
        for row, score in made.rows(path, query, word)
    ]
    assert found["ranks"]
    return found


def every_row(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return all that a file holds: every row of every table with its number, and the schema."""
    with sqlite.open_readonly(path) as db:
        tables = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
        found = {"": list(db.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY rowid"))}
        for name, sql in tables:
            number = "" if "WITHOUT ROWID" in sql or "VIRTUAL" in sql else "rowid, "
            found[name] = list(db.execute(f"SELECT {number}* FROM {name}"))
    return found


@contextmanager
def same_words(path: Path) -> Iterator[None]:
    """Assert that what is done here leaves the full-text index as it is, byte for byte."""
    before = full_text(path)
    yield
    assert full_text(path) == before


@contextmanager
def another_process(path: Path, *statements: str) -> Iterator[None]:
    """Keep the database open in another process, as the application does; it has executed the statements."""
    program = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "[db.execute(one).fetchall() for one in sys.argv[2:]]; print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(path), "SELECT count(*) FROM memory_items", *statements]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield
        process.communicate()


def undo(path: Path) -> None:
    assert run("undo", path, "--yes").status == 0


def names(path: Path) -> set[str]:
    return {one["name"] for one in run("check", path, "--json").document["findings"]}
