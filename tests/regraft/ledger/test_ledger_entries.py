"""What the ledger has of a library's bases: what could not stand in a catalog or report is refused before any write."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from faults import Source, untouched, write_vectors
from harness import NOW, run

from migrators.pipeline.publication import check_ledger
from regraft import identity
from regraft.disk import writable
from regraft.errors import REFUSED
from regraft.ledger import ledger
from regraft.ledger.values import InvalidValue

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


def mark_catalog(mark: list[object]) -> Callable[[Path], None]:
    return lambda place: execute(
        place, "UPDATE entry SET detail = ? WHERE subject = 'catalog'", (json.dumps(mark).encode(),)
    )


#: What changes a ledger, and why it is refused.
LIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "another base": (set_in("record", "base", "id", value=OTHER), "belongs to another base"),
    "a base elsewhere": (set_in("record", "base", "id", value="../../victim"), "belongs to another base"),
    "another base's report": (set_in("report", "id", value=OTHER), "belongs to another base"),
    "an index elsewhere": (
        set_in("report", "index", "path", value="../../victim"),
        "has a different path for the index",
    ),
    "a report without rows": (without("report", "rows"), "missing required field `rows`"),
    "a report of texts": (set_in("report", "rows", "read", value="seven"), "Expected `int`, got `str`"),
    "a negative number": (set_in("report", "rows", "carried", value=-1), "Expected `int` >= 0"),
    "an unknown reason": (set_in("report", "rows", "skipped", value={"because": 1}), "has the unknown code 'because'"),
    "an unknown status": (set_in("report", "status", value="odd"), "Invalid enum value 'odd'"),
    "an unknown notice": (set_in("notices", value=[{"code": "odd", "message": "x"}]), "has the unknown code 'odd'"),
    "an unknown command": (set_in("command", value="repair"), "Invalid enum value 'repair'"),
    "a position that is none": (set_in("position", value=-1), "Expected `int` >= 0"),
    "a mark that is none": (set_in("index_mark", value=["x", 1]), "Expected `int`, got `str`"),
    "another mark that is none": (set_in("raw_mark", value="../x"), "has values that regraft never writes"),
    "no name": (set_in("record", "base", "name", value="  "), "not valid rows of a catalog: CHECK"),
    "half a name": (set_in("record", "base", "name", value="\ud800"), "JSON is malformed"),
    "no chunks": (set_in("record", "base", "chunk_size", value=0), "not valid rows of a catalog: CHECK"),
    "a huge number": (set_in("record", "base", "chunk_size", value=1 << 70), "not valid rows of a catalog: "),
    "an item of another": (item_with(base_id=OTHER), "has an item of another base"),
    "an item of no type": (item_with(type="odd"), "not valid rows of a catalog: CHECK"),
    "an item in no folder": (
        item_with(group_id="01890a5d-0000-7000-8000-000000000000"),
        "not valid rows of a catalog: FOREIGN KEY",
    ),
    "an item that is no row": (item_with(id=7), "Expected `str`, got `int`"),
    "an item of a late time": (item_with(created_at=1 << 70), "not valid rows of a catalog: "),
    "two items of one id": (two_items_of_one_id, "not valid rows of a catalog: UNIQUE"),
    "a report without its folders": (without("report", "directories"), "is incomplete"),
    "a catalog of another mark": (mark_catalog([]), "Expected `array` of at least length 2"),
    "a catalog of another hash": (mark_catalog([1, 2, "x"]), "the record of the catalog has an invalid hash"),
}


@contextmanager
def opened(place: Path) -> Iterator[ledger.Ledger]:
    with writable.allow_writes(place / "library"), ledger.open_exclusive(place / "library") as book:
        yield book


def only_ledger(made: Path, place: Path) -> Path:
    shutil.copytree(made / "library" / ".regraft", place / "library" / ".regraft")
    return place


@pytest.mark.parametrize("how", LIES)
def test_an_entry_that_regraft_does_not_write_is_refused_for_its_reason(how: str, made: Path, tmp_path: Path) -> None:
    lie, why = LIES[how]
    with opened(only_ledger(made, tmp_path)) as book:
        assert check_ledger(book) == book.entries()
    lie(tmp_path)
    with opened(tmp_path) as book, pytest.raises((InvalidValue, msgspec.MsgspecError), match=re.escape(why)):
        check_ledger(book)


def test_an_open_step_is_checked_as_the_entry_that_it_would_make(made: Path, tmp_path: Path) -> None:
    def intended(book: ledger.Ledger, name: str) -> None:
        known = json.loads(book.entries()[KB].detail)
        known["record"]["base"]["name"] = name
        entry = ledger.LedgerEntry("0" * 40, json.dumps(known).encode())
        step = book.intend(KB, "replace", entry, book.parts(KB))
        try:
            check_ledger(book)
        finally:
            book.drop(step)

    with opened(only_ledger(made, tmp_path)) as book:
        book.begin_run("migrate", "source", "20260101T000000Z-000000")
        intended(book, "another name")
        with pytest.raises(InvalidValue, match="not valid rows of a catalog: CHECK"):
            intended(book, "  ")
        # A report and a catalog are written anew, whatever was begun of them.
        book.intend("report", "publish", ledger.LedgerEntry("1" * 40, b""))
        book.intend("catalog", "publish", ledger.LedgerEntry("2" * 40, b"odd"))
        assert check_ledger(book) == book.entries()


@pytest.mark.thorough
@pytest.mark.parametrize("how", LIES)
def test_no_entry_says_what_regraft_does_not_write(how: str, made: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(made, tmp_path / "place"))
    LIES[how][0](place)
    with untouched(place):
        for more in ("--dry-run", "--yes"):
            done = run("migrate", place / "v1", "--to", place / "library", "--now", NOW, "--json", more)
            assert (done.status, done.document["error"]["code"]) == (REFUSED, "LedgerUnreadable"), done


@pytest.mark.parametrize("how", ["a base elsewhere", "a report without rows", "an unknown command"])
def test_no_open_step_says_what_regraft_does_not_write(how: str, made: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(made, tmp_path / "place"))
    LIES[how][0](place)
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
