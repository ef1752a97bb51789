"""Cells of large texts in Arrow's memory: one copy of each, written and read without a text of Python beside it.

Such a text is UTF-8: ``bytes`` on the way into a file, a ``memoryview`` of Arrow's own bytes on the way out. A text of
Python takes up to four times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regraft.formats.large_text import LARGE_BYTES


def size_of(value: Any) -> int:
    """Return how much a text is, by its length; 0 of None."""
    return 0 if value is None else len(value)


def is_large(value: Any) -> bool:
    """Tell whether a text is one that is written alone."""
    return isinstance(value, bytes) and len(value) > LARGE_BYTES


def array(pa: Any, values: Sequence[Any], kind: Any) -> Any:
    """Return a column; that of one large text alone shares its bytes."""
    if len(values) != 1 or not is_large(values[0]):
        return pa.array(values, kind)
    ends = pa.py_buffer(b"".join(place.to_bytes(4, "little") for place in (0, len(values[0]))))
    return pa.Array.from_buffers(kind, 1, [None, ends, pa.py_buffer(values[0])])


def listed(pa: Any, column: Any) -> list[Any]:
    """Return the values of a column of a batch: large texts as views of their UTF-8, valid while the views live.

    Raises:
        pyarrow.ArrowException: a column of large texts is not UTF-8.
    """
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if not is_text or column.nbytes <= LARGE_BYTES:
        found: list[Any] = column.to_pylist()
        return found
    column.validate(full=True)
    return [_value(cell) for cell in column]


def _value(cell: Any) -> Any:
    raw = cell.as_buffer() if cell.is_valid else None
    return cell.as_py() if raw is None or raw.size <= LARGE_BYTES else memoryview(raw)
