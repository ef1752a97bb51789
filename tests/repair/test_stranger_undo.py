"""What takes a run back may be somebody else's: it changes rows of the layout's own tables, or nothing at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from faults import untouched
from harness import run
from toys import CATALOG, INDEX, bodies, change, library, planner, renamed, write

from regraft.errors import REFUSED
from regraft.ledger import ledger


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of which an index and the catalog were changed."""
    store = library(tmp_path_factory.mktemp("made"))
    change(store, planner(bodies, renamed))
    return store


def kept(store: Path, path: str) -> Path:
    [one] = [one for record in ledger.read_runs(store) for one in record.changes if one.path == path]
    return store / ".regraft" / str(one.kept)


def recorded(path: Path, table: str, *statements: str) -> bytes:
    """Return a changeset of what statements do to a table of a copy of a database."""
    copy = path.with_name("copy.sqlite")
    shutil.copyfile(path, copy)
    db = apsw.Connection(str(copy))
    try:
        session = apsw.Session(db, "main")
        session.attach(table)
        for statement in statements:
            db.execute(statement)
        return session.changeset()
    finally:
        db.close(force=True)
        copy.unlink()


def foreign_table(store: Path) -> None:
    write(store / CATALOG, "CREATE TABLE diary (day TEXT PRIMARY KEY)", "INSERT INTO diary VALUES ('monday')")
    changes = recorded(store / INDEX, "meta", "UPDATE meta SET updated_at = 1")
    kept(store, CATALOG).write_bytes(changes.replace(b"meta", b"diar"))


def full_text(store: Path) -> None:
    changes = recorded(store / INDEX, "search_text_fts_data", "DELETE FROM search_text_fts_data")
    kept(store, INDEX).write_bytes(changes)


def other_layout(store: Path) -> None:
    write(store / INDEX, "CREATE TABLE diary (day TEXT PRIMARY KEY)", "INSERT INTO diary VALUES ('monday')")
    kept(store, INDEX).write_bytes(recorded(store / INDEX, "diary", "INSERT INTO diary VALUES ('sunday')"))


def cut(store: Path) -> None:
    path = kept(store, INDEX)
    path.write_bytes(path.read_bytes()[:-7])


def zeros(store: Path) -> None:
    with kept(store, INDEX).open("wb") as file:
        file.truncate(1 << 24)


LIES: dict[str, Callable[[Path], object]] = {
    "a table of nobody's": foreign_table,
    "the full-text index": full_text,
    "another table": other_layout,
    "cut off": cut,
    "no changeset": lambda store: kept(store, INDEX).write_bytes(b"not a changeset at all"),
    "a length of nonsense": lambda store: kept(store, INDEX).write_bytes(b"T\xff\xff\xff\xff\xff\xff\xff\xff\xff" * 9),
    "zeros without end": zeros,
    "a database": lambda store: shutil.copyfile(store / CATALOG, kept(store, INDEX)),
}


@pytest.mark.parametrize("how", LIES)
def test_a_foreign_changeset_is_not_applied(how: str, made: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(made, tmp_path / "library"))
    LIES[how](store)
    with untouched(store):
        for more in ("--dry-run", "--yes"):
            done = run("undo", store, "--json", more)
            assert (done.status, done.document["error"]["code"]) == (REFUSED, "LedgerUnreadable"), done
