"""A whole v2 library, migrated: what damage is planted in where its very content is known."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
from conftest import NOW, run
from planted_v1 import whole

from regraft import identity
from regraft.testing import DAMAGES, Planted

KB = identity.base_id("kb")
OTHER = identity.base_id("other")


def library(place: Path) -> Path:
    """Migrate a source that has something of everything; the library has nothing to complain about."""
    target = place / "library"
    assert run("migrate", whole(place / "v1"), "--to", target, "--now", NOW, "-q").status == 0
    return target


def index(target: Path, base: str = KB) -> Path:
    return target / "KnowledgeBase" / base / ".cherry" / "index.sqlite"


def plant(name: str, target: Path) -> Planted:
    """Plant a damage of this name in the first base."""
    return DAMAGES[name].plant(target, KB)


def run_sql(path: Path, *statements: str) -> None:
    """Run statements without foreign keys and checks, as a program that knows neither would."""
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            db.execute(statement)
