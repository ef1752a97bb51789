"""What can be switched off in regraft, to show that a campaign notices that it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from migrators.pipeline import publication
from regraft.disk import sqlite
from repair.changes import execution

#: Name of the control → what is off.
CONTROLS = {
    "no-recovery": "the next run does not settle what a stopped run left open",
    "no-rollback": "a transaction in which something fails is committed all the same",
}


@contextmanager
def _committed(connection: apsw.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")


@contextmanager
def switched_off(control: str | None) -> Iterator[None]:
    """Switch something off meanwhile; nothing where no control is named."""
    places: list[tuple[object, str, object]] = []
    if control == "no-rollback":
        places = [(sqlite, "transaction", _committed)]
    elif control == "no-recovery":
        owner = publication.TargetLibrary
        places = [(execution, "recover", lambda *_: False), (owner, "recover", lambda *_: None)]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    try:
        for owner, name, stand_in in places:
            setattr(owner, name, stand_in)
        yield
    finally:
        for owner, name, real in before:
            setattr(owner, name, real)
