"""Removing what nothing reaches: rows that no search and no material needs, and files that no item names.

Rules: ``docs/findings.md`` and ``docs/formats/library.md``, "Changes".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apsw

from checks import v2_findings as v2
from checks.findings import FINDINGS, check_names
from regraft import sqlite
from regraft.errors import PlanOutdated, WrongUsage
from regraft.text import counted
from repair.plan import Action, Plan, RowsChange
from repair.store import Store

#: Days that trash, and what takes a run back, are kept.
GRACE_DAYS = 14


@dataclass(frozen=True)
class Wish:
    """What is to be removed; ``now_ms`` is the time from which ``grace`` (in days) counts back."""

    now_ms: int
    grace: float = GRACE_DAYS
    vacuum: bool = False
    #: Names of findings; empty: all but those that only go when they are named.
    only: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Waste:
    """Rows of one table that nothing reaches."""

    finding: str
    action: str
    noun: str
    which: str
    table: str
    where: str
    size: str
    #: Which rows they are once the bodies without a unit are gone, too.
    then: str = ""
    #: Whether they go only where the user names the finding.
    by_name: bool = False


_WASTE = (
    _Waste(
        v2.BODY_ORPHAN,
        "delete-bodies",
        "body",
        "whose unit is gone",
        "search_text",
        "NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = search_text.target_id)",
        "text",
    ),
    _Waste(
        v2.VECTOR_UNEXPECTED,
        "delete-embeddings",
        "vector",
        "of a base without a model",
        "embedding",
        "TRUE",
        "vector_blob",
        by_name=True,
    ),
    _Waste(
        v2.VECTOR_ORPHAN,
        "delete-embeddings",
        "vector",
        "that no body names",
        "embedding",
        "NOT EXISTS (SELECT 1 FROM search_text t WHERE t.embedding_text_hash = embedding.embedding_text_hash)",
        "vector_blob",
        then="NOT EXISTS (SELECT 1 FROM search_text t WHERE t.embedding_text_hash = embedding.embedding_text_hash"
        " AND EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = t.target_id))",
    ),
    _Waste(
        v2.CONTENT_ORPHAN,
        "delete-contents",
        "text",
        "that nothing names",
        "content",
        "NOT EXISTS (SELECT 1 FROM material m WHERE m.current_content_hash = content.content_hash)"
        " AND NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.content_hash = content.content_hash)",
        "text",
    ),
)
#: Findings whose rows or files are removed.
NAMES = (*dict.fromkeys(waste.finding for waste in _WASTE), v2.RAW_ORPHAN, v2.INDEX_ORPHAN)


def checked_names(names: Iterable[str]) -> Iterator[str]:
    """Return names of findings that can be removed.

    Raises:
        WrongUsage: one is none of them.
    """
    for name in names:
        check_names([name])
        if name not in NAMES:
            raise WrongUsage(problem=f"--only {name}: {FINDINGS[name].mended_by}", hint=f"gc takes {', '.join(NAMES)}")
        yield name


def plan(store: Store, wish: Wish) -> Plan:
    """Return what is going to be removed; nothing is written.

    Raises:
        CatalogProblem: nobody can tell what items name.
    """
    made = Plan()
    for base, one in store.stores.items():
        if store.wants(base):
            _plan_rows(store, base, one.name, wish, made)
    return made


# --- rows ------------------------------------------------------------------------------------------------------------


def _plan_rows(store: Store, base: str, name: str, wish: Wish, made: Plan) -> None:
    with sqlite.reading(store.root / name) as db:
        wanted = [waste for waste in _WASTE if _is_wanted(waste, wish)]
        actions = list(_actions(db, wanted, base))
    if not actions:
        return
    found = {action.finding for action in actions}
    waste = [one for one in wanted if one.finding in found]

    def apply(db: apsw.Connection) -> None:
        for one, action in zip(waste, actions, strict=True):
            db.execute(f"DELETE FROM {one.table} WHERE {one.where}")
            if db.changes() != action.count:
                reason = f"{action.count} rows of {one.table} were to be deleted, and now it would be {db.changes()}"
                raise PlanOutdated(path=store.root / name, reason=reason)

    tables = tuple(dict.fromkeys(one.table for one in waste))
    size = sum(action.bytes for action in actions)
    made.changes.append(RowsChange(name, tuple(actions), apply, tables, size, bodies="search_text" in tables))
    made.mends |= {(str(action.finding), base) for action in actions}


def _is_wanted(waste: _Waste, wish: Wish) -> bool:
    return waste.finding in wish.only if wish.only or waste.by_name else True


def _actions(db: apsw.Connection, wanted: list[_Waste], base: str) -> Iterator[Action]:
    bodies_go = v2.BODY_ORPHAN in {waste.finding for waste in wanted}
    for waste in wanted:
        where = waste.then if bodies_go and waste.then else waste.where
        size = f"ifnull(sum(length(CAST({waste.size} AS BLOB))), 0)"
        for count, held in db.execute(f"SELECT count(*), {size} FROM {waste.table} WHERE {where}"):
            if not count:
                continue
            said = f"delete {counted(count, waste.noun)} {waste.which}"
            yield Action(waste.action, said, base, None, count, held, waste.finding)
