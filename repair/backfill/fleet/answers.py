"""The answers that a fleet has paid for: a SQLite file in its work folder, which the next run goes on with.

One process writes it (:mod:`repair.backfill.fleet.keeper`), and once it has ended, any number read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import apsw
import msgspec

from regraft import areas, sqlite
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import WrongUsage
from regraft.language import tr

FILE = "answers.sqlite"
#: Where answers are: those to texts that lack a vector, and those to texts that bases are compared by.
Table = Literal["answer", "compared"]
#: Of settings, what decides on vectors.
_DECISIVE = ("model", "prefix", "dimensions", "base_url", "path", "library")
_TABLES = (
    "CREATE TABLE IF NOT EXISTS about (embedder TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS answer (key TEXT PRIMARY KEY, vector BLOB, code TEXT, reason TEXT)",
    # Of texts that bases are compared by. A model is what it was in an earlier run by nobody's word.
    "CREATE TABLE IF NOT EXISTS compared (key TEXT PRIMARY KEY, vector BLOB, code TEXT, reason TEXT)",
    "CREATE TABLE IF NOT EXISTS claimed (key TEXT PRIMARY KEY) WITHOUT ROWID",
    """CREATE TABLE IF NOT EXISTS spent
         (kind TEXT PRIMARY KEY, requests INTEGER NOT NULL, tokens INTEGER NOT NULL, under_way INTEGER NOT NULL,
          answered INTEGER NOT NULL, failed INTEGER NOT NULL)""",
)


#: What no row may be, by its table: counts stay far below what a column can hold.
_ANSWERS = """typeof(key) <> 'text' OR typeof(vector) NOT IN ('blob', 'null') OR length(vector) % 4 <> 0
   OR typeof(code) NOT IN ('text', 'null') OR typeof(reason) NOT IN ('text', 'null')
   OR (vector IS NULL) = (code IS NULL)"""
_COUNTS = ("requests", "tokens", "under_way", "answered", "failed")
_UNFIT = {
    "about": "typeof(embedder) <> 'text'",
    "answer": _ANSWERS,
    "compared": _ANSWERS,
    "claimed": "typeof(key) <> 'text'",
    "spent": " OR ".join(
        ["kind NOT IN ('texts', 'probes')"]
        + [f"typeof({name}) <> 'integer' OR {name} NOT BETWEEN 0 AND 1000000000000000" for name in _COUNTS]
    ),
}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a text: its vector, as little-endian float32, or the code and the reason why it has none."""

    vector: bytes | None = None
    code: str | None = None
    reason: str | None = None


def identity_of(settings: EmbedderSettings) -> str:
    """Return what answers of one embedder have in common."""
    said = {name: str(getattr(settings, name)) for name in _DECISIVE if getattr(settings, name, None) is not None}
    return msgspec.json.encode(said, order="sorted").decode()


@contextmanager
def writing(folder: Path, settings: EmbedderSettings) -> Iterator[apsw.Connection]:
    """Open the answers in a work folder, and make the file where there is none; the folder may be changed.

    Raises:
        apsw.Error, OSError: it cannot be written, or is none.
    """
    with sqlite.writing(folder / FILE, create=True) as db:
        # Nobody else opens it meanwhile. So it may lie on a share, although it keeps a log.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        with sqlite.transaction(db):
            for statement in _TABLES:
                db.execute(statement)
            if db.execute("SELECT 1 FROM about").get is None:
                db.execute("INSERT INTO about VALUES (?)", (identity_of(settings),))
        yield db


@contextmanager
def reading(folder: Path) -> Iterator[apsw.Connection | None]:
    """Open the answers in a work folder for reading, where there are any.

    Raises:
        apsw.Error, OSError: they cannot be read.
    """
    if not (folder / FILE).is_file():
        yield None
        return
    with sqlite.reading(folder / FILE) as db:
        yield db


def demand_same(folder: Path, settings: EmbedderSettings) -> None:
    """Refuse answers in a work folder that are of another embedder, or that no run of regraft wrote.

    Raises:
        WrongUsage
        apsw.Error, OSError: they cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        return
    try:
        # Opened for writing, what a killed run left beside it is worked into it, and need not be copied to be read.
        with areas.opened(folder), sqlite.writing(path) as db:
            known = _about(db)
    except sqlite.CONTENT_ERRORS as error:
        problem = tr("{path} has no answers of a fleet ({error})", path=path, error=error)
        raise WrongUsage(problem=problem, hint=tr("remove the folder {folder}", folder=folder)) from error
    if known not in (None, identity_of(settings)):
        problem = tr(
            "the answers in {folder} are of another embedder than {name} is now", folder=folder, name=settings.name
        )
        raise WrongUsage(problem=problem, hint=tr("mend the configuration, or remove the folder"))


def _about(db: apsw.Connection) -> str | None:
    """Return whose answers these are; None where a run was killed before it wrote that.

    Raises:
        apsw.Error: they have another schema, a damaged page, or a value of another type.
    """
    found = {_plain(str(sql)) for (sql,) in db.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")}
    if not found:
        return None
    if found != set(map(_plain, _TABLES)):
        raise apsw.FormatError(tr("it has another schema"))
    for table, unfit in _UNFIT.items():
        if db.execute(f"SELECT 1 FROM {table} WHERE {unfit} LIMIT 1").get is not None:
            raise apsw.FormatError(tr("it has values of another type"))
    if db.execute("PRAGMA quick_check(1)").get != "ok":
        raise apsw.FormatError(tr("it is damaged"))
    about: Any = db.execute("SELECT embedder FROM about").get
    return None if about is None else str(about)


def _plain(sql: str) -> str:
    return " ".join(sql.replace(" IF NOT EXISTS", "").split())


def answers_of(db: apsw.Connection | None, keys: Sequence[str], table: Table = "answer") -> dict[str, Answer]:
    """Return the answers that there are to texts, by their keys."""
    if db is None:
        return {}
    rows: Any = db.execute(
        f"SELECT key, vector, code, reason FROM {table} WHERE key IN (SELECT value FROM json_each(?))",
        (msgspec.json.encode(keys).decode(),),
    )
    return {key: Answer(vector=vector, code=code, reason=reason) for key, vector, code, reason in rows}


def best_of(db: apsw.Connection | None, keys: Sequence[str]) -> dict[str, Answer]:
    """Return the answers that there are to texts of both kinds, by their keys: rather a vector than none."""
    found = answers_of(db, keys)
    compared = answers_of(db, keys, "compared")
    return found | {key: one for key, one in compared.items() if key not in found or found[key].vector is None}


def answered(db: apsw.Connection | None, keys: Sequence[str], table: Table = "answer") -> set[str]:
    """Return those of the keys to whose texts there is an answer."""
    if db is None:
        return set()
    query = f"SELECT key FROM {table} WHERE key IN (SELECT value FROM json_each(?))"
    return {str(key) for (key,) in db.execute(query, (msgspec.json.encode(keys).decode(),))}


def add(db: apsw.Connection, answers: Mapping[str, Answer], table: Table = "answer") -> None:
    """Write answers in one transaction; one that is there stays."""
    rows = ((key, one.vector, one.code, one.reason) for key, one in answers.items())
    with sqlite.transaction(db):
        db.executemany(f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?, ?)", rows)


def take_over(db: apsw.Connection, keys: Sequence[str]) -> None:
    """Let the answers to texts that were compared count for the same texts that lack a vector."""
    db.execute(
        "INSERT OR IGNORE INTO answer SELECT * FROM compared WHERE key IN (SELECT value FROM json_each(?))",
        (msgspec.json.encode(keys).decode(),),
    )


def end_run(folder: Path) -> None:
    """Let the next run have its limits anew, and try again what was rejected.

    Raises:
        apsw.Error, OSError: it cannot be written.
    """
    if not (folder / FILE).is_file():
        return
    with areas.opened(folder), sqlite.writing(folder / FILE) as db, sqlite.transaction(db):
        for table in ("spent", "claimed"):
            db.execute(f"DELETE FROM {table}")
        for table in get_args(Table):
            db.execute(f"DELETE FROM {table} WHERE code IS NOT NULL")
