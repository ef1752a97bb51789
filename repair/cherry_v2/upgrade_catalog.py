"""A library's catalog of an earlier regraft → the current one, with every row (``docs/formats/catalog.md``).

The file is written anew beside the old one, which is kept whole. How a base is searched is in it no more, since that
follows from its model; models are completed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import apsw

from checks.cherry_v2 import findings as v2
from regraft import sqlite
from regraft.errors import PlanOutdated
from regraft.formats.cherry_v2.catalog import EMBEDDING, RERANK, TABLES
from regraft.formats.cherry_v2.catalog_generation import (
    BASES,
    GIVEN,
    ITEMS,
    MODELS,
    PROVIDERS,
    Generation,
    Tables,
    read_tables,
)
from regraft.formats.cherry_v2.layout import CATALOG_FILE
from regraft.language import tr
from regraft.ledger import durable
from regraft.records import replace
from regraft.text import counted
from repair.changes.copies import copy_database
from repair.changes.plan import Action, Change, FileChange, Plan, RowsChange, Unresolved
from repair.changes.store import Store

#: The tables of a library, parents first.
_ORDER = (PROVIDERS, MODELS, BASES, ITEMS)


def beside(own: Plan, store: Store) -> Plan:
    """Return a plan with the upgrade of a library's catalog, too, and in it what else the plan changes there.

    Raises:
        apsw.Error, OSError: it cannot be read.
    """
    if store.catalog is None or Path(store.catalog).name != CATALOG_FILE or store.chosen or not _is_whole(store):
        return own
    path = store.root / store.catalog
    count = _rows_to_write(path)
    if count is None:
        return own
    others = [one for one in own.changes if isinstance(one, RowsChange) and one.path == store.catalog]
    refused = _refused(path, others)
    if refused is None:
        anew = _anew(store.catalog, path, count, others)
        return replace(own, changes=_in_place(own.changes, others, anew))
    message = tr("the catalog stays in its layout: {refused}", refused=refused)
    left = Unresolved(finding=v2.BASE_STATUS, reason=message, base=None, subject=store.catalog, severity="error")
    return replace(own, left=[*own.left, left])


def _in_place(changes: list[Change], others: list[RowsChange], anew: FileChange) -> list[Change]:
    """Return changes with one in place of others, where the first of these was."""
    place = changes.index(others[0]) if others else 0
    kept: list[Change] = [one for one in changes if one not in others]
    return [*kept[:place], anew, *kept[place:]]


def _rows_to_write(path: Path) -> int | None:
    """Return how many rows a catalog of an earlier regraft has; None where it is none."""
    with sqlite.reading(path) as db:
        tables = read_tables(path, db)
        if tables.generation is not Generation.EARLIER_LIBRARY or not {BASES, ITEMS} <= tables.columns.keys():
            return None
        if any(_unknown(db, tables)):
            return None  # no regraft wrote it
        return sum(_count(db, table) for table in _ORDER if table in tables.columns)


def _refused(path: Path, others: list[RowsChange]) -> str | None:
    """Try the upgrade in a temporary folder; return why the current tables refuse a row, None where they do not."""
    with durable.temporary_folder() as folder:
        try:
            _convert(path, others, folder / "new.sqlite")
        except PlanOutdated as problem:
            return str(problem.facts["reason"])
    return None


def _is_whole(store: Store) -> bool:
    return store.found.stores.is_whole


def _anew(name: str, path: Path, count: int, others: list[RowsChange]) -> FileChange:
    """Return what writes a catalog anew, with what else changes in it."""
    size = path.stat().st_size
    message = tr(
        "write the catalog anew with its {rows}: models in full, and no search mode beside them",
        rows=counted(count, "row"),
    )
    action = Action(action="upgrade-catalog", message=message, base=None, subject=name, count=count, bytes=size)

    def make(new: Path) -> None:
        _convert(path, others, new)

    actions = (action, *(act for other in others for act in other.actions))
    return FileChange(path=name, actions=actions, make=make, bytes=2 * size)


def _convert(path: Path, others: list[RowsChange], new: Path) -> None:
    with durable.temporary_folder() as folder:
        old = folder / "old.sqlite"
        copy_database(path, old)
        with sqlite.writing(old) as db, sqlite.transaction(db):
            for other in others:
                other.apply(db)
        convert(old, new)


def _unknown(db: apsw.Connection, tables: Tables) -> Iterator[str]:
    """Yield the tables and columns that no library's catalog has."""
    own = "type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    for (name,) in db.execute(f"SELECT name FROM sqlite_schema WHERE {own}"):
        if name not in _ORDER:
            yield str(name)
    for table in _ORDER:
        for column in tables.columns.get(table, {}):
            if column not in GIVEN[table]:
                yield column


def _count(db: apsw.Connection, table: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {table}").get)


# --- writing ---------------------------------------------------------------------------------------------------------


def convert(old: Path, new: Path) -> None:
    """Write a library's catalog of any earlier regraft to ``new`` as the current one; rows keep their order.

    Raises:
        PlanOutdated: the current tables have no room for a row.
        apsw.Error, OSError: one cannot be read or written.
    """
    with sqlite.writing(new, create=True) as db, sqlite.attached(db, old, "old"):
        # Damage is no affair of an upgrade: what the tables' rules would refuse stays as it is.
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        with sqlite.transaction(db):
            for statement in TABLES:
                db.execute(statement)
            for table in _ORDER:
                try:
                    _copy(db, table)
                except apsw.ConstraintError as error:
                    raise PlanOutdated(
                        path=old, reason=tr("the current tables refuse a row of it ({error})", error=error)
                    ) from error


#: What a model can do where its row does not say so: what ranks hits, and makes no vectors, is a model for that.
_CAPABILITIES = f"""CASE
  WHEN json_valid(capabilities) AND json_array_length(capabilities) > 0 THEN capabilities
  WHEN id IN (SELECT rerank_model_id FROM old.{BASES})
   AND id NOT IN (SELECT embedding_model_id FROM old.{BASES} WHERE embedding_model_id NOT NULL)
  THEN '{json.dumps(RERANK)}' ELSE '{json.dumps(EMBEDDING)}' END"""


def _copy(db: apsw.Connection, table: str) -> None:
    there, names = (
        [str(row[1]) for row in db.execute(f"PRAGMA {one}.table_info('{table}')")] for one in ("old", "main")
    )
    values = {name: sqlite.quoted(name) for name in names if name in there}
    if not values:
        return
    if table == MODELS:
        values |= {"capabilities": _CAPABILITIES if "capabilities" in there else f"'{json.dumps(EMBEDDING)}'"}
        values.setdefault("supports_streaming", "1")
    columns = ", ".join(map(sqlite.quoted, values))
    read = f"SELECT {', '.join(values.values())} FROM old.{table} ORDER BY rowid"
    db.execute(f"INSERT INTO main.{table} ({columns}) {read}")
