"""Copies of records with other values, whichever way they are made.

Most records are structs of msgspec: such a class is made, and its objects are, several times as fast as a data class.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import msgspec

Record = TypeVar("Record")


def replace(record: Record, **changes: Any) -> Record:
    """Return a copy of a struct or a data class with some other values."""
    if isinstance(record, msgspec.Struct):
        return msgspec.structs.replace(record, **changes)
    return dataclasses.replace(record, **changes)  # type: ignore[type-var]
