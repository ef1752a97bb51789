"""Which assistants of a profile still refer to a base by the id that it had in v1 (``docs/rules.md``, "Install").

They do so in a row that leads nowhere, in the assistant's own settings, or in what v1 left of its state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import apsw

from regraft.errors import RegraftError
from regraft.formats import json_text
from regraft.formats.cherry_v1.state import read_slice
from regraft.kinds import Kind
from regraft.locate import located
from repair.changes.store import Store

_TABLE, _LINKS = "assistant", "assistant_knowledge_base"
#: What speaks of bases in the name of a setting.
_WORD = "knowledge"
#: How deep settings are looked into.
_DEPTH = 12


def links(store: Store, db: apsw.Connection, base_of: Callable[[str], str | None]) -> list[tuple[str, str]]:
    """Return the assistants that refer to a base, with the base, as far as the profile does not say so already.

    Args:
        store: the profile.
        db: its database.
        base_of: from an id in v1 to the base that is installed for it, None where none is.

    Raises:
        apsw.Error: the database cannot be read.
    """
    columns = _columns(db, _TABLE)
    if "id" not in columns or not {"assistant_id", "knowledge_base_id"} <= set(_columns(db, _LINKS)):
        return []
    known = {(one, base) for one, base in db.execute(f"SELECT assistant_id, knowledge_base_id FROM {_LINKS}")}
    there = _assistants(db, columns)
    found: set[tuple[str, str]] = set()
    for assistant, old in (*known, *_in_settings(db, columns), *_in_v1(store)):
        base = base_of(old) if isinstance(old, str) and assistant in there else None
        if base is not None:
            found.add((assistant, base))
    return sorted(found - known)


def _columns(db: apsw.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in db.execute(f"PRAGMA table_info('{table}')")]


def _assistants(db: apsw.Connection, columns: list[str]) -> set[str]:
    """Return the ids of the assistants that are there."""
    is_there = " WHERE deleted_at IS NULL" if "deleted_at" in columns else ""
    return {key for (key,) in db.execute(f"SELECT id FROM {_TABLE}{is_there}") if isinstance(key, str)}


def _in_settings(db: apsw.Connection, columns: list[str]) -> Iterator[tuple[Any, Any]]:
    """Yield assistants with what their own row names as knowledge bases."""
    for column in columns:
        text = f'CAST("{column}" AS BLOB)'
        # A value of any bytes is looked into without being decoded.
        has_word = f"instr({text}, x'{_WORD[1:].encode().hex()}')"
        query = f"SELECT id, {text} FROM {_TABLE} WHERE typeof(\"{column}\") = 'text' AND {has_word}"
        for assistant, value in db.execute(query):
            with contextlib.suppress(ValueError, RecursionError):
                yield from ((assistant, old) for old in _named(json_text.loads(value), _DEPTH))


def _named(value: Any, depth: int) -> Iterator[Any]:
    """Yield the ids below every key that speaks of knowledge."""
    if isinstance(value, dict) and depth:
        for key, inside in value.items():
            if _WORD in key.lower():
                yield from _ids(inside)
            yield from _named(inside, depth - 1)
    elif isinstance(value, list) and depth:
        for inside in value:
            yield from _named(inside, depth - 1)


def _ids(value: Any) -> Iterator[Any]:
    for one in value if isinstance(value, list) else [value]:
        yield one.get("id") if isinstance(one, dict) else one


def _in_v1(store: Store) -> Iterator[tuple[Any, Any]]:
    """Yield the assistants of v1's state with the bases that they had; nothing where that cannot be read."""
    for kind in (Kind.V1_PROFILE, Kind.V1_EXPORT):
        with contextlib.suppress(RegraftError, OSError), located(store.root, kind) as source:
            state = read_slice(source.tree, source.places, "assistants")
            listed = state.get("assistants") if isinstance(state, dict) else None
            for one in listed if isinstance(listed, list) else ():
                if isinstance(one, dict):
                    yield from ((one.get("id"), old) for old in _ids(one.get("knowledge_bases")))
