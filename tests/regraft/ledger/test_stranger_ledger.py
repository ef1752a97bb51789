"""A ledger that is damaged in any way: every command ends as it may, and nothing outside of the store is another."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from faults import Source, files_of, write_vectors
from harness import NOW, run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from toys import change, planner, renamed, write

from regraft.ledger import ledger

TABLES = ("ledger", "run", "step", "part", "entry", "change", "action")
COMMANDS: dict[str, tuple[str, ...]] = {
    "inspect": ("inspect", "LIBRARY"),
    "check": ("check", "LIBRARY"),
    "history": ("history", "LIBRARY"),
    "undo": ("undo", "LIBRARY", "--yes"),
    "a dry undo": ("undo", "LIBRARY", "--dry-run"),
    "repair": ("repair", "LIBRARY", "--yes"),
    "gc": ("gc", "LIBRARY", "--yes", "--grace", "0"),
    "reconcile": ("reconcile", "LIBRARY", "--yes"),
    "upgrade": ("upgrade", "LIBRARY", "--yes"),
    "migrate": ("migrate", "V1", "--to", "LIBRARY", "--now", NOW, "--yes"),
    "a dry migration": ("migrate", "V1", "--to", "LIBRARY", "--now", NOW, "--dry-run"),
}
#: What a stranger may write to a cell.
VALUES = st.one_of(
    st.none(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.binary(max_size=20),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.sampled_from(
        [
            "..",
            "../../victim",
            "/etc",
            ".",
            "",
            "catalog",
            "report",
            "undo/../../victim",
            "intended",
            "undoing",
            "done",
            "rows",
        ]
    ),
    st.sampled_from([b"{}", b"null", b'{"dangling":0,"actions":[0,1]}', b"[1,2]"]),
)
OBJECTS = (
    "CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM change; END",
    "CREATE VIEW v AS SELECT * FROM run",
    "CREATE TABLE t (x)",
    "CREATE INDEX i ON change (path)",
    "ALTER TABLE run ADD COLUMN more AS (abs(-9223372036854775807 - 1))",
    *(f"DROP TABLE {table}" for table in TABLES),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A v1 source, the library that it became, and a change of that."""
    place = tmp_path_factory.mktemp("made")
    source = Source(place / "v1")
    source.base("kb", [source.upload("f1", "a.txt", b"a")])
    write_vectors(source.vectors("kb"), {"item-f1": 2})
    assert run("migrate", source.write(), "--to", place / "library", "--now", NOW, "-q").status == 0
    change(place / "library", planner(renamed))
    (place / "victim").mkdir()
    (place / "victim" / "thesis.txt").write_text("years")
    return place


def columns(db: apsw.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")]


@st.composite
def damages(draw: Any) -> tuple[Any, ...]:
    """Draw one way to damage a ledger."""
    how = draw(st.sampled_from(["cell", "cell", "cell", "delete", "double", "object", "page", "cut"]))
    table, number = draw(st.sampled_from(TABLES)), draw(st.integers(0, 9))
    return (how, table, number, draw(st.integers(0, 9)), draw(VALUES), draw(st.integers(0, 1 << 20)))


def damage(path: Path, how: str, table: str, row: int, column: int, value: Any, at: int) -> None:
    """Damage a ledger; what its own rules do not let through stays as it was."""
    if how in ("page", "cut"):
        raw = bytearray(path.read_bytes())
        if how == "cut":
            del raw[at % max(len(raw), 1) :]
        elif raw:
            raw[at % max(len(raw), 1)] ^= 1 << row % 8
        path.write_bytes(raw)
        return
    with suppress(apsw.Error), closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute("PRAGMA foreign_keys = OFF")
        if how == "object":
            db.execute(OBJECTS[at % len(OBJECTS)])
            return
        count: Any = db.execute(f"SELECT count(*) FROM {table}").get
        names = columns(db, table)
        chosen = f"rowid = (SELECT rowid FROM {table} ORDER BY rowid LIMIT 1 OFFSET {row % max(count, 1)})"
        if how == "delete":
            db.execute(f"DELETE FROM {table} WHERE {chosen}")
        elif how == "double":
            rest = ", ".join(names[1:])
            db.execute(f"INSERT INTO {table} ({rest}) SELECT {rest} FROM {table} WHERE {chosen}")
        else:
            db.execute(f"UPDATE {table} SET {names[column % len(names)]} = ? WHERE {chosen}", (value,))


@settings(max_examples=max(12, settings.default.max_examples // 4 if settings.default else 12))
@example([("cell", "run", 0, 0, "../../victim", 0)], "repair")
@example([("cell", "step", 0, 2, "../../victim", 0)], "migrate")
@example([("cell", "change", 0, 3, "../victim/thesis.txt", 0)], "undo")
@given(st.lists(damages(), min_size=1, max_size=3), st.sampled_from(sorted(COMMANDS)))
def test_every_command_ends_as_it_may(made: Path, lies: list[tuple[Any, ...]], command: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(shutil.copytree(made, Path(folder, "place")))
        for lie in lies:
            damage(ledger.ledger_path(place / "library"), *lie)
        before, outside = files_of(place / "library"), files_of(made / "v1") | files_of(made / "victim")
        words = {"LIBRARY": place / "library", "V1": place / "v1"}
        done = run(*(words.get(word, word) for word in COMMANDS[command]), "--json")
        error = json.loads(done.stdout).get("error")
        assert done.status in (0, 1, 2), done
        assert error is None or error["code"] != "FaultOfRegraft"
        assert files_of(place / "v1") | files_of(place / "victim") == outside
        assert {one.name for one in place.iterdir()} == {"library", "v1", "victim"}
        if error is not None and error["code"] == "LedgerUnreadable":
            assert files_of(place / "library") == before


def test_a_run_that_is_refused_once_is_refused_again(made: Path, tmp_path: Path) -> None:
    """Moving the ledger away is what helps."""
    store = Path(shutil.copytree(made / "library", tmp_path / "library"))
    write(ledger.ledger_path(store), "UPDATE run SET command = 'rm -rf /'")
    for _ in range(2):
        done = run("repair", store, "--yes", "--json")
        assert (done.status, done.document["error"]["code"]) == (2, "LedgerUnreadable")
    (store / ".regraft").rename(tmp_path / "aside")
    assert run("repair", store, "--yes").status == 0
    assert run("history", store).stdout == "No runs.\n"
