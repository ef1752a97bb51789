"""The catalog of a pack: rows of chosen bases as they are, in the form of a library's (``docs/formats/catalog.md``).

Rows are copied inside SQLite, so that texts of any bytes stay what they are. Checks and references are not enforced: a
pack carries what is wrong with a row along, and ``regraft check`` names it there as it does in the source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw

from regraft import sqlite
from regraft.formats.cherry_v2 import catalog
from regraft.formats.cherry_v2.catalog import EMBEDDING, RERANK
from regraft.formats.cherry_v2.catalog_generation import (
    BASES,
    ITEMS,
    MODELS,
    PROVIDERS,
    model_of,
    model_values,
    provider_values,
)
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.models import SEPARATOR
from regraft.formats.cherry_v2.order_keys import order_key
from repair.cherry_v2.source import BaseSource

#: What a row is of that the source has not got: it names a model or provider that is not there.
_NO_TIME = 0


def write(path: Path, source: BaseSource, bases: Sequence[str]) -> None:
    """Write the catalog of a pack to ``path``, where no file is yet.

    Raises:
        apsw.Error, OSError: the source cannot be read, or the file cannot be written.
    """
    with sqlite.writing(path, create=True) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        for statement in catalog.TABLES:
            db.execute(statement)
        with sqlite.attached(db, source.rows, "source"), sqlite.transaction(db):
            for table, values in _models(db, source, bases):
                _insert(db, table, values)
            for base in bases:
                _copy(db, BASES, "id", base)
                _copy(db, ITEMS, "base_id", base)
            # A group is of one profile alone.
            db.execute(f"UPDATE main.{BASES} SET group_id = NULL WHERE group_id IS NOT NULL")


def _copy(db: apsw.Connection, table: str, key: str, base: str) -> None:
    there = {str(row[1]) for row in db.execute(f"PRAGMA source.table_info('{table}')")}
    own = [str(row[1]) for row in db.execute(f"PRAGMA main.table_info('{table}')")]
    names = ", ".join(sqlite.quoted(name) for name in own if name in there)
    rows = f"SELECT {names} FROM source.{table} NOT INDEXED WHERE {key} = ? ORDER BY rowid"
    db.execute(f"INSERT INTO main.{table} ({names}) {rows}", (base,))


def _models(db: apsw.Connection, source: BaseSource, bases: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """Yield the rows of the models that bases name, in full, each after its provider's; never a key of the user's."""
    providers: set[str] = set()
    places: dict[str, int] = {}
    for named, capabilities in _named(source, bases).items():
        row = _row(source, named)
        provider = str(row["provider_id"])
        if provider not in providers:
            key = _key(db, PROVIDERS, "provider_id", provider) or order_key(len(providers))
            yield PROVIDERS, _provider(db, source, provider, key)
            providers.add(provider)
        place = places.setdefault(provider, 0)
        places[provider] += 1
        key = _key(db, MODELS, "id", named) or order_key(place)
        yield MODELS, model_values(model_of(row, capabilities), key, _NO_TIME) | _times(db, MODELS, "id", named)


def _named(source: BaseSource, bases: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the models that bases name, each with what it can do where nothing says so."""
    rows = [source.bases[base] for base in bases]
    embedding = {row.get("embedding_model_id"): EMBEDDING for row in rows}
    rerank = {row.get("rerank_model_id"): RERANK for row in rows}
    return {str(name): can for name, can in {**rerank, **embedding}.items() if isinstance(name, str)}


def _row(source: BaseSource, named: str) -> Row:
    known = source.models.get(named, {})
    provider, _, model = named.partition(SEPARATOR)
    stated = {name: known.get(name) or default for name, default in (("provider_id", provider), ("model_id", model))}
    return {**known, "id": named, **stated}


def _provider(db: apsw.Connection, source: BaseSource, provider: str, key: str) -> Row:
    known = source.providers.get(provider, {})
    values = provider_values(
        provider, str(known.get("name") or provider), key, _NO_TIME, is_enabled=known.get("is_enabled") == 1
    )
    return values | _times(db, PROVIDERS, "provider_id", provider)


def _key(db: apsw.Connection, table: str, column: str, value: str) -> str | None:
    found = _value(db, table, "order_key", column, value)
    return found if isinstance(found, str) and found else None


def _times(db: apsw.Connection, table: str, column: str, value: str) -> Row:
    found = {name: _value(db, table, name, column, value) for name in ("created_at", "updated_at")}
    return {name: time for name, time in found.items() if isinstance(time, int)}


def _value(db: apsw.Connection, table: str, wanted: str, column: str, value: str) -> Any:
    if wanted not in {str(row[1]) for row in db.execute(f"PRAGMA source.table_info('{table}')")}:
        return None
    return db.execute(f"SELECT {wanted} FROM source.{table} WHERE {column} = ?", (value,)).get


def _insert(db: apsw.Connection, table: str, row: Row) -> None:
    names = ", ".join(sqlite.quoted(name) for name in row)
    values = tuple(json.dumps(value) if isinstance(value, list | tuple) else value for value in row.values())
    db.execute(f"INSERT OR IGNORE INTO main.{table} ({names}) VALUES ({', '.join('?' * len(row))})", values)
