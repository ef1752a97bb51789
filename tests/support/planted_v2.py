"""A whole v2 library, migrated: what damage is planted in where its very content is known."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import apsw
from harness import NOW, copied, run
from planted_v1 import whole

from regraft import identity
from regraft.testing import DAMAGES, Planted
from regraft.testing.damage import STRAY_BASE

KB = identity.base_id("kb")
OLD = 1_600_000_000
OTHER = identity.base_id("other")
#: A base that no library of the tests has.
NEW_BASE = STRAY_BASE


@copied
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


@dataclass(frozen=True)
class Planting:
    """A damage by its name, to the first base of :func:`library`."""

    finding: str
    damage: Callable[[Path], object]
    base: str | None = KB


_BASES = {"base": KB, "library": None, "stray": STRAY_BASE}
PLANTED = {
    name: Planting(damage.finding, lambda target, damage=damage: damage.plant(target, KB), _BASES[damage.about])
    for name, damage in DAMAGES.items()
}

# --- statements for damage that has no name --------------------------------------------------------------------------

Plant = Callable[[Path], object]
UNIT = "UPDATE search_unit SET {} WHERE rowid = (SELECT min(rowid) FROM search_unit)"
MATERIAL = "UPDATE material SET {} WHERE rowid = (SELECT min(rowid) FROM material)"
ITEM = "UPDATE knowledge_item SET {} WHERE rowid = (SELECT min(rowid) FROM knowledge_item WHERE type = '{}')"
KB_ROW = f"UPDATE knowledge_base SET {{}} WHERE id = '{KB}'"


def sql(*statements: str) -> Plant:
    return lambda target: run_sql(index(target), *statements)


def catalog(*statements: str) -> Plant:
    return lambda target: run_sql(target / "catalog.sqlite", *statements)


def data(**fields: object) -> str:
    return "data = '" + json.dumps(fields).replace("'", "''") + "'"


def several(*plants: Plant) -> Plant:
    def plant(target: Path) -> None:
        for one in plants:
            one(target)

    return plant


def rewritten(old: str, new: str) -> Plant:
    """Return what changes the wording of the schema, and with it what it does."""

    def change(target: Path) -> None:
        with closing(apsw.Connection(str(index(target)))) as db:
            db.execute("PRAGMA writable_schema = ON")
            db.execute("UPDATE sqlite_schema SET sql = replace(sql, ?, ?)", (old, new))
            assert db.total_changes() > 0
            db.execute("PRAGMA writable_schema = RESET")

    return change


def a_hot_journal(target: Path) -> None:
    leave_journal(index(target))


def leave_journal(path: Path) -> None:
    """Leave an index as a transaction that was killed leaves it, with its journal."""
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA cache_size = 1")
        db.execute("BEGIN")
        db.execute("UPDATE meta SET updated_at = updated_at + 1")
        db.execute("PRAGMA cache_spill = 1")
        db.execute("CREATE TABLE filler (x)")
        db.execute("INSERT INTO filler SELECT randomblob(3000) FROM search_text, search_text")
        db.execute("DELETE FROM filler")
        journal = path.with_name("index.sqlite-journal").read_bytes()
        database = path.read_bytes()
        db.execute("ROLLBACK")
    path.write_bytes(database)
    path.with_name("index.sqlite-journal").write_bytes(journal)


def a_vector_file(target: Path) -> None:
    run_sql(target / "KnowledgeBase" / "kb", "CREATE TABLE vectors (id)")


def an_old_stray_file(target: Path) -> None:
    path = index(target).parent.parent / "raw" / "stray.bin"
    path.write_bytes(b"stray")
    os.utime(path, (OLD, OLD))


def vector(*numbers: float) -> str:
    return f"x'{struct.pack(f'<{len(numbers)}f', *numbers).hex()}'"
