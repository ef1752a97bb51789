"""What somebody who means harm does to a store before giving it away.

Each feature takes a store, a folder of its user's outside of it, and chance; it returns what it did, in a few words, or
nothing where there was nothing to do it to.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import apsw

from campaign import mutator
from regraft.disk import links, untrusted_sqlite
from regraft.ledger.ledger import FILE, FOLDER
from repair.changes import files

Feature = Callable[[Random, Path, Path], str]

#: Ids and paths that lead elsewhere, or that no store has; ``{}`` is where the user's folder is.
_PATHS = (
    *(
        "../../../victim/docs",
        "../../victim",
        "..",
        ".",
        "",
        "/",
        "{}",
        "{}/docs",
        "../victim/docs/plan.md",
        "a/../../..",
    ),
    *(
        "KnowledgeBase/out/letter.txt",
        "out/letter.txt",
        "out/docs",
        "out",
        "C:\\x",
        "..\\..\\victim",
        "a\0b",
        "x" * 300,
    ),
    *("undo/../../..", "trash/../../victim", "undo/out", "work/out/docs", ".regraft/ledger.sqlite", "catalog.sqlite"),
    *("KnowledgeBase/../../victim/docs", "KnowledgeBase", "report", "catalog", "\x1b[2J", "-rf", "~", "CON", "undo/"),
)
_RUN = "20260101T000000Z-abcdef"
_STATES = ("intended", "done", "dropped", "undoing", "undone", "expired", "finished", "running", "x", None)


def _ledger(store: Path) -> Path:
    return store / FOLDER / FILE


def _path(random: Random, victim: Path) -> str:
    return random.choice(_PATHS).replace("{}", str(victim))


def _write(path: Path, sql: str, values: Any = ()) -> bool:
    """Run a statement without checks and keys; tell whether the file took it."""
    if not path.is_file():
        # A pipe would be waited for.
        return False
    try:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
            db.execute("PRAGMA foreign_keys = OFF")
            db.execute("PRAGMA ignore_check_constraints = ON")
            db.execute("PRAGMA synchronous = OFF")
            db.set_progress_handler(lambda: True, 5_000_000)
            db.execute(sql, values)
            return db.total_changes() > 0 or not sql.startswith("UPDATE")
    except (apsw.Error, UnicodeEncodeError):
        return False


# --- the ledger ------------------------------------------------------------------------------------------------------

_FIELDS = (
    *(("run", "run_id"), ("run", "run_id"), ("run", "status"), ("run", "command"), ("run", "started_at")),
    *(("step", "subject"), ("step", "subject"), ("step", "action"), ("step", "state"), ("step", "run_id")),
    *(("entry", "subject"), ("entry", "subject"), ("entry", "detail"), ("part", "body"), ("part", "number")),
    *(("change", "path"), ("change", "path"), ("change", "kept"), ("change", "kept"), ("change", "state")),
    *(("change", "means"), ("change", "bytes"), ("change", "detail"), ("change", "run_id"), ("action", "detail")),
)


def a_field(random: Random, store: Path, victim: Path) -> str:
    """Put a value into a field of the ledger."""
    table, column = random.choice(_FIELDS)
    value: Any = _path(random, victim)
    if column in ("state", "status"):
        value = random.choice(_STATES)
    elif column in ("detail", "body"):
        value = json.dumps(_detail(random, victim)).encode()
    elif column in ("bytes", "number", "started_at") or random.random() < 0.1:
        value = mutator.cell(random)
    value = value.encode("utf-8", "replace") if isinstance(value, str) and random.random() < 0.1 else value
    return (
        f"{table}.{column} = {value!r:.60}"
        if _write(_ledger(store), f"UPDATE {table} SET {column} = ?", (value,))
        else ""
    )


def _detail(random: Random, victim: Path) -> Any:
    """Return what a change may say of itself: marks, what was aside, numbers of actions."""
    mark = random.choice([None, "x", 0, *_marks(victim)])
    return {
        "dangling": random.choice([0, 7, -1, "x"]),
        "actions": random.choice([[0, 1], [-1, 9], [0], "x", [0, 10**9]]),
        "mark": mark,
        "old": mark,
        "new": random.choice([None, *_marks(victim)]),
        "aside": _path(random, victim),
        "made": [_path(random, victim)],
        "folders": [_path(random, victim)],
        "trash": random.choice([True, False, _path(random, victim)]),
    }


def _marks(victim: Path) -> list[str | None]:
    places = [victim / "letter.txt", victim / "docs", victim / "database.sqlite", victim / "docs" / "plan.md"]
    return [files.fingerprint(place) for place in places] + [files.bytes_fingerprint(place) for place in places]


def a_row(random: Random, store: Path, victim: Path) -> str:
    """Add a run with a change to the ledger that was never made, and what would take it back."""
    run_id = random.choice([_RUN, _RUN, _RUN, _path(random, victim)])
    state = random.choice(["intended", "undoing", "done", "done", "expired"])
    path, means = _path(random, victim), random.choice(["file", "file", "rows"])
    kept = random.choice(
        [f"undo/{run_id}/000001", f"undo/{run_id}/000001", f"trash/2026-01-01/{run_id}/x", _path(random, victim)]
    )
    detail = json.dumps(_detail(random, victim)).encode()
    made = _write(
        _ledger(store),
        "INSERT INTO run VALUES (?, 'repair', '/x', ?, 1767225600000, NULL)",
        (run_id, random.choice(["intended", "running", "stopped", "finished"])),
    )
    made &= _write(
        _ledger(store),
        "INSERT INTO change (run_id, means, path, state, kept, bytes, detail) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (run_id, means, path, state, random.choice([kept, kept, kept, None]), random.choice([0, 9, 10**12]), detail),
    )
    with suppress(OSError, ValueError):
        place = store / FOLDER / kept
        # Unlike pathlib's, this bears links that lead in a circle.
        if links.real_path(place).is_relative_to(links.real_path(store)):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(b"written by somebody else")
    return f"a change of {path!r:.50} ({means}, {state}) in run {run_id!r:.40}, kept in {kept!r:.40}" if made else ""


def a_fitting_change(random: Random, store: Path, victim: Path) -> str:
    """Record a change behind a link, with the very mark of what lies there."""
    where = random.choice(
        ["KnowledgeBase/out", "out", *(_names(store, lambda path: path.is_dir() and path.name == "raw"))]
    )
    if not where.endswith("out"):
        where += "/out"
    link = store / where
    with suppress(OSError):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(victim)
    name = random.choice(["letter.txt", "docs/plan.md", "docs", "database.sqlite", "new.txt"])
    kept = f"undo/{_RUN}/000001"
    place = store / FOLDER / kept
    place.parent.mkdir(parents=True, exist_ok=True)
    if random.random() < 0.8:
        place.write_bytes(b"written by somebody else")
    state = random.choice(["done", "done", "intended", "undoing"])
    mark = random.choice([files.fingerprint(victim / name), files.bytes_fingerprint(victim / name)])
    detail = {"mark": mark, "old": mark, "dangling": 0, "actions": [0, 1], "made": [], "new": mark}
    made = _write(
        _ledger(store), "INSERT INTO run VALUES (?, 'repair', '/x', 'finished', 1795381395589, 1795381395589)", (_RUN,)
    )
    made &= _write(
        _ledger(store),
        "INSERT INTO change (run_id, means, path, state, kept, bytes, detail) VALUES (?, 'file', ?, ?, ?, 9, ?)",
        (_RUN, f"{where}/{name}", state, random.choice([kept, None]), json.dumps(detail).encode()),
    )
    return f"a change of {where}/{name} ({state}) with its mark" if made else ""


def a_step(random: Random, store: Path, victim: Path) -> str:
    """Add an intent of a migration to the ledger."""
    subject = _path(random, victim)
    run_id: Any = None
    if not _ledger(store).is_file():
        return ""
    with suppress(apsw.Error), closing(apsw.Connection(str(_ledger(store)), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        run_id = db.execute("SELECT max(CAST(run_id AS BLOB)) FROM run").get
        run_id = None if run_id is None else run_id.decode("utf-8", "replace")
    made = _write(
        _ledger(store),
        "INSERT INTO step (run_id, subject, action, state, fingerprint, detail) VALUES (?, ?, ?, ?, ?, x'')",
        (run_id or _RUN, subject, random.choice(["publish", "remove", "x"]), random.choice(["intended", "done"]), "00"),
    )
    if made and random.random() < 0.5:
        _write(_ledger(store), "INSERT OR REPLACE INTO entry VALUES (?, last_insert_rowid(), '00', x'')", (subject,))
    return f"a step about {subject!r:.50}" if made else ""


# --- links -----------------------------------------------------------------------------------------------------------


def _names(store: Path, which: Callable[[Path], bool] = lambda _: True) -> list[str]:
    return sorted(path.relative_to(store).as_posix() for path in store.rglob("*") if which(path))


def a_link(random: Random, store: Path, victim: Path) -> str:
    """Put a link to the user's folder in the place of anything."""
    names = _names(store)
    if not names:
        return ""
    name = random.choice(names)
    return mutator.link(random, store / name, victim)


def a_moved_part(random: Random, store: Path, victim: Path) -> str:
    """Move a part of the store among the user's files, and leave a link to it: it is whole, and it is theirs."""
    names = _names(store, lambda path: not path.is_symlink())
    if not names:
        return ""
    name = random.choice(names)
    to = victim / f"moved-{Path(name).name}"
    if os.path.lexists(to):
        return ""
    shutil.move(store / name, to)
    (store / name).symlink_to(to)
    return f"{name} moved out, and linked"


_OWN = (
    "undo",
    "trash",
    "work",
    "staging",
    f"undo/{_RUN}",
    f"trash/{_RUN}",
    "trash/2026-01-01",
    f"staging/{_RUN}",
    "work/x",
)


def a_link_in_the_ledger_folder(random: Random, store: Path, victim: Path) -> str:
    """Put a link among what regraft keeps for itself."""
    names = [*_OWN, *_names(store / FOLDER)] if (store / FOLDER).is_dir() else list(_OWN)
    name = random.choice(names)
    path = store / FOLDER / name
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        mutator.remove(path)
        path.symlink_to(random.choice([victim, victim / "docs", victim / "letter.txt", victim / "database.sqlite"]))
        return f"a link at {FOLDER}/{name}"
    return ""


# --- what SQLite runs ------------------------------------------------------------------------------------------------


def _databases(store: Path) -> list[Path]:
    return [
        path
        for path in sorted(store.rglob("*"))
        if path.is_file() and not path.is_symlink() and untrusted_sqlite.is_database(path)
    ]


def a_trigger(random: Random, store: Path, _victim: Path) -> str:
    """Let something happen whenever a row of some table changes."""
    path = random.choice(_databases(store) or [store])
    tables = _tables(path)
    if not tables:
        return ""
    on, other = random.choice(tables), random.choice(tables)
    when = random.choice(["AFTER", "BEFORE"]) + random.choice([" DELETE", " INSERT", " UPDATE"])
    body = random.choice(
        [
            f'DELETE FROM "{other}"',
            f'DELETE FROM "{other}" WHERE rowid % 2',
            "SELECT RAISE(IGNORE)",
            "SELECT RAISE(ABORT, 'no')",
            f'INSERT INTO "{other}" SELECT * FROM "{other}" LIMIT 1',
            f'UPDATE "{other}" SET rowid = rowid + 100000',
        ]
    )
    made = _write(
        path,
        f'CREATE TRIGGER "{random.choice(["foreign", "search_text_ai2", "x y"])}" {when} ON "{on}" BEGIN {body}; END',
    )
    return f"{path.name}: {when} ON {on} {body}" if made else ""


def _tables(path: Path) -> list[str]:
    try:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
            found = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'")
            return [str(name) for (name,) in found if not str(name).startswith("sqlite_")]
    except (apsw.Error, UnicodeEncodeError):
        return []


def a_schema(random: Random, store: Path, _victim: Path) -> str:
    """Change tables, columns and values of a database of the store."""
    path = random.choice(_databases(store) or [store])
    with suppress(apsw.Error, OSError, UnicodeEncodeError):
        return f"{path.name}: {mutator.in_sqlite(random, path)}"
    return ""


_PATH_COLUMNS = (
    *(("material", "relative_path"), ("material", "material_id"), ("knowledge_item", "data"), ("knowledge_item", "id")),
    *(
        ("knowledge_base", "id"),
        ("knowledge_item", "base_id"),
        ("meta", "base_id"),
        ("note_index_records", "source_file_path"),
    ),
    *(("memory_items", "id"), ("knowledge_base", "name"), ("embedding", "embedding_text_hash"), ("vectors", "source")),
)


def a_path(random: Random, store: Path, victim: Path) -> str:
    """Let an id, or the path of a file in the store, lead elsewhere."""
    table, column = random.choice(_PATH_COLUMNS)
    paths = [path for path in _databases(store) if table in _tables(path)]
    if not paths:
        return ""
    value = _path(random, victim)
    if column == "data":
        value = json.dumps({"source": value, "relativePath": value, "content": value})
    path = random.choice(paths)
    which = "" if random.random() < 0.2 else " WHERE rowid = (SELECT min(rowid) FROM " + table + ")"
    made = _write(path, f"UPDATE OR IGNORE {table} SET {column} = ?{which}", (value,))
    return f"{path.name}: {table}.{column} = {value!r:.60}" if made else ""


# --- files -----------------------------------------------------------------------------------------------------------


def an_odd_file(random: Random, store: Path, victim: Path) -> str:
    """Change what kind of thing stands somewhere, or how it is called."""
    return mutator.in_folder(random, store, victim)


def rights(random: Random, store: Path, _victim: Path) -> str:
    """Take rights away, or give them."""
    name = random.choice(_names(store) or ["."])
    path = store / name
    mode = random.choice([0o000, 0o400, 0o444, 0o555, 0o4755, 0o777])
    if path.is_symlink() or not path.exists():
        return ""
    path.chmod(mode)
    return f"{name} has the rights {mode:o}"


def a_name(random: Random, store: Path, _victim: Path) -> str:
    """Add files with odd names beside what is there."""
    folders = [path for path in store.rglob("*") if path.is_dir() and not path.is_symlink()]
    folder = random.choice(sorted(folders) or [store])
    name = random.choice(
        [
            "\x1b[2J",
            "\u202etxt.exe",
            "a\nb",
            "-rf",
            "x" * 200,
            "index.sqlite-wal",
            "index.sqlite-journal",
            "CON",
            " ",
            ".cherry",
        ]
    )
    with suppress(OSError):
        (folder / name).write_bytes(random.choice([b"", b"x", b"SQLite format 3\0" + bytes(84)]))
        os.utime(folder / name, (1_600_000_000, 1_600_000_000))
        return f"{name!r} in {folder.name}"
    return ""


#: Every feature, and how often it comes.
FEATURES: dict[Feature, int] = {
    a_field: 14,
    a_row: 12,
    a_fitting_change: 8,
    a_step: 8,
    a_link: 12,
    a_moved_part: 8,
    a_link_in_the_ledger_folder: 10,
    a_trigger: 14,
    a_schema: 8,
    a_path: 12,
    an_odd_file: 8,
    rights: 3,
    a_name: 5,
}
#: Those that change what the ledger says of the past, and with it what may be taken back.
OF_THE_PAST = (a_field, a_row, a_fitting_change, a_step, a_link_in_the_ledger_folder)


def made(random: Random, store: Path, victim: Path) -> tuple[list[str], bool]:
    """Make a store hostile: what was done, and whether its past is still its own."""
    done: list[str] = []
    own_past = True
    for _ in range(random.choice([1, 1, 2, 2, 3, 4])):
        feature = random.choices(list(FEATURES), list(FEATURES.values()))[0]
        what = ""
        with suppress(OSError, shutil.Error):
            what = feature(random, store, victim)
        if what:
            done.append(what)
            own_past &= feature not in OF_THE_PAST
    return done, own_past
