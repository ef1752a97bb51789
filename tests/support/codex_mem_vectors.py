"""Vectors of a codex-mem sidecar before and after a backfill."""

from __future__ import annotations

from pathlib import Path

import codex_mem_store as notes
from fault_server import vector_of
from harness import Outcome, run

from regraft.formats.codex_mem import database, sidecar


def fill(store: Path, config: Path, *options: object, command: str = "backfill") -> Outcome:
    every = () if command != "backfill" or {"--all-projects", "--base"} & set(options) else ("--all-projects",)
    return run(command, store, "--config", config, "--json", *every, *options)


def held(store: Path) -> dict[str, bytes]:
    """Return the vectors of the sidecar, by the notes' ids."""
    return dict(notes.rows(database.sidecar_path(store), f"SELECT note_id, vector FROM {sidecar.TABLE}"))


def right(store: Path, ids: list[str] | None = None) -> dict[str, bytes]:
    """Return the vectors that the server makes of notes: of all that are searchable."""
    chosen = notes.searchable(store) if ids is None else ids
    return {note: vector_of(database.note_source_text(*notes.parts_of(store, note))) for note in chosen}


def state(store: Path) -> str:
    """Return the state of the whole, of which ``inspect`` and ``check`` say the same."""
    semantic = run("inspect", store, "--json").document["health"]["semantic"]
    assert run("check", store, "--quick", "--json").document["statistics"]["semantic"] == semantic
    return str(semantic["state"])
