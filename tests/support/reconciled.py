"""Findings and rows of a library before and after `reconcile`."""

from __future__ import annotations

from pathlib import Path

from harness import run

from regraft.disk import untrusted_sqlite
from repair.changes import files


def findings(store: Path) -> list[str]:
    return [finding["name"] for finding in run("check", store, "--json").document["findings"]]


def state(store: Path) -> dict[str, str | None]:
    """Return what the rows and files of a store are, in any order, besides regraft's own."""
    paths = [path for path in sorted(store.rglob("*")) if path.is_file() and ".regraft" not in path.parts]
    return {
        path.relative_to(store).as_posix(): files.fingerprint(path)
        for path in paths
        if not path.name.endswith(untrusted_sqlite.COMPANION_SUFFIXES)
    }
