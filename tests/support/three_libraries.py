"""Three libraries that lack the same vectors, and the command that fills them: what tests of it share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from extras import optional
from harness import Outcome, run_as_given
from lacking import KB, LACKING, OTHER, OTHER_TEXTS, TEXTS, all_vectors, vectors
from planted_v2 import index

from regraft.disk import sqlite

pq = optional("pyarrow.parquet")

NAMES = ("anna", "boris", "clara")
#: What each library lacks, and what clara has besides, without vectors.
WANTED = {*LACKING, OTHER_TEXTS["page"][0]}
MORE = {"a text among many, number 0", "a text among many, number 1"}


def backfill(stores: Path, config: Path, *options: object, command: str = "backfill") -> Outcome:
    """Run the command for a program, with results beside the libraries."""
    out = stores.parent / "out.parquet"
    given = (stores, "--results", out, "--config", config) if command == "backfill" else (out,)
    return run_as_given("fleet", command, *given, "--workers", 1, "--json", "-y", *options)


def resume(stores: Path) -> Outcome:
    return backfill(stores, Path(), command="resume")


def rows_in(stores: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of libraries by the names of their sources."""
    rows = pq.read_table(stores.parent / "out.parquet").to_pylist()
    return {Path(row["source"]).name: row for row in rows if row["base"] is None}


def names_beside(stores: Path) -> list[str]:
    """Return what lies beside the libraries and the configuration."""
    return sorted({path.name for path in stores.parent.iterdir()} - {"stores", "regraft.yaml"})


def is_filled(store: Path) -> bool:
    texts = [*TEXTS, *MORE] if store.name == "clara" else TEXTS
    return vectors(store) == all_vectors(texts) and vectors(store, OTHER) == all_vectors(OTHER_TEXTS["page"])


def embeddings(store: Path) -> list[tuple[Any, ...]]:
    """Return all vectors of a library by the hashes of their texts, with their lengths."""
    found = []
    for base in (KB, OTHER):
        with sqlite.open_readonly(index(store, base)) as db:
            found += db.execute("SELECT embedding_text_hash, vector_blob FROM embedding ORDER BY 1").fetchall()
    return found
