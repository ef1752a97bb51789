"""What the ledger has of a library's bases: what could not stand in a catalog or report is refused before any write."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from faults import Source, untouched, write_vectors
from harness import NOW, run

from regraft import identity
from regraft.errors import REFUSED
from regraft.ledger import ledger

KB, OTHER = identity.base_id("kb"), identity.base_id("other")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A v1 source, and the library that it was migrated to."""
    place = tmp_path_factory.mktemp("made")
    source = Source(place / "v1")
    source.base("kb", [source.upload("f1", "a.txt", b"a")])
    source.base("other", [source.upload("f2", "b.txt", b"b")])
    write_vectors(source.vectors("kb"), {"item-f1": 2})
    write_vectors(source.vectors("other"), {"item-f2": 1})
    assert run("migrate", source.write(), "--to", place / "library", "--now", NOW, "-q").status == 0
    return place


def execute(place: Path, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
    with closing(apsw.Connection(str(ledger.ledger_path(place / "library")))) as db:
        return db.execute(query, values).fetchall()


def entry_with(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Return what changes the entry of a base."""

    def lie(place: Path) -> None:
        [(raw,)] = execute(place, "SELECT detail FROM entry WHERE subject = ?", (KB,))
        change(found := json.loads(raw))
        execute(place, "UPDATE entry SET detail = ? WHERE subject = ?", (json.dumps(found).encode(), KB))

    return lie


def item_with(**values: Any) -> Callable[[Path], None]:
    """Return what changes the first item of a base."""

    def lie(place: Path) -> None:
        query = "FROM part JOIN entry USING (step_id) WHERE subject = ? AND number = 0"
        [(raw, rowid)] = execute(place, f"SELECT body, part.rowid {query}", (KB,))
        changed = json.dumps({**json.loads(raw), **values}).encode()
        execute(place, "UPDATE part SET body = ? WHERE rowid = ?", (changed, rowid))

    return lie


def set_in(*path: str, value: Any) -> Callable[[Path], None]:
    """Return what sets one value of the entry of a base."""

    def change(found: dict[str, Any]) -> None:
        for key in path[:-1]:
            found = found[key]
        found[path[-1]] = value

    return entry_with(change)


def without(*path: str) -> Callable[[Path], None]:
    def change(found: dict[str, Any]) -> None:
        for key in path[:-1]:
            found = found[key]
        del found[path[-1]]

    return entry_with(change)


def two_items_of_one_id(place: Path) -> None:
    query = "SELECT body FROM part JOIN entry USING (step_id) WHERE subject = ? AND number = 0"
    [(raw,)] = execute(place, query, (KB,))
    changed = json.dumps({**json.loads(raw), "base_id": OTHER}).encode()
    where = "number = 0 AND step_id = (SELECT step_id FROM entry WHERE subject = ?)"
    execute(place, f"UPDATE part SET body = ? WHERE {where}", (changed, OTHER))


LIES: dict[str, Callable[[Path], None]] = {
    "another base": set_in("record", "base", "id", value=OTHER),
    "a base elsewhere": set_in("record", "base", "id", value="../../victim"),
    "another base's report": set_in("report", "id", value=OTHER),
    "an index elsewhere": set_in("report", "index", "path", value="../../victim"),
    "a report without rows": without("report", "rows"),
    "a report of texts": set_in("report", "rows", "read", value="seven"),
    "a negative number": set_in("report", "rows", "carried", value=-1),
    "an unknown reason": set_in("report", "rows", "skipped", value={"because": 1}),
    "an unknown status": set_in("report", "status", value="odd"),
    "an unknown notice": set_in("notices", value=[{"code": "odd", "message": "x"}]),
    "an unknown command": set_in("command", value="repair"),
    "a position that is none": set_in("position", value=-1),
    "a mark that is none": set_in("index_mark", value=["x", 1]),
    "another mark that is none": set_in("raw_mark", value="../x"),
    "no name": set_in("record", "base", "name", value="  "),
    "half a name": set_in("record", "base", "name", value="\ud800"),
    "no chunks": set_in("record", "base", "chunk_size", value=0),
    "a huge number": set_in("record", "base", "chunk_size", value=1 << 70),
    "an item of another": item_with(base_id=OTHER),
    "an item of no type": item_with(type="odd"),
    "an item in no folder": item_with(group_id="01890a5d-0000-7000-8000-000000000000"),
    "an item that is no row": item_with(id=7),
    "an item of a late time": item_with(created_at=1 << 70),
    "two items of one id": two_items_of_one_id,
    "a catalog of another mark": lambda place: execute(
        place, "UPDATE entry SET detail = x'5b5d' WHERE subject = 'catalog'"
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("how", LIES)
def test_no_entry_says_what_regraft_does_not_write(how: str, made: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(made, tmp_path / "place"))
    LIES[how](place)
    with untouched(place):
        for more in ("--dry-run", "--yes"):
            done = run("migrate", place / "v1", "--to", place / "library", "--now", NOW, "--json", more)
            assert (done.status, done.document["error"]["code"]) == (REFUSED, "LedgerUnreadable"), done


@pytest.mark.parametrize("how", ["a base elsewhere", "a report without rows", "an unknown command"])
def test_no_open_step_says_what_regraft_does_not_write(how: str, made: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(made, tmp_path / "place"))
    LIES[how](place)
    query = """INSERT INTO step (run_id, subject, action, state, fingerprint, detail)
        SELECT run_id, e.subject, 'replace', 'intended', '', e.detail FROM entry e JOIN step USING (step_id)
         WHERE e.subject = ?"""
    execute(place, query, (KB,))
    good = made / "library" / ".regraft" / "ledger.sqlite"
    with closing(apsw.Connection(str(good))) as db:
        [(detail,)] = db.execute("SELECT detail FROM entry WHERE subject = ?", (KB,)).fetchall()
    execute(place, "UPDATE entry SET detail = ? WHERE subject = ?", (detail, KB))
    with untouched(place):
        done = run("migrate", place / "v1", "--to", place / "library", "--now", NOW, "--json", "--yes")
    assert (done.status, done.document["error"]["code"]) == (REFUSED, "LedgerUnreadable"), done


def test_what_regraft_wrote_is_taken(made: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(made, tmp_path / "place"))
    done = run("migrate", place / "v1", "--to", place / "library", "--now", NOW, "--json")
    assert {base["outcome"] for base in done.document["bases"]} == {"unchanged"}
