"""Numbers of an audit that a page can be drawn from: no text, no vector, no path."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from checks.cherry_v2.index_file import Index

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _Rows(msgspec.Struct):
    read: _Number = 0
    carried: _Number = 0
    without_vector: _Number = 0
    v1_deduplicated: _Number = 0
    restored_duplicate: _Number = 0
    skipped: dict[str, _Number] = msgspec.field(default_factory=dict)


class _Base(msgspec.Struct):
    id: str
    rows: _Rows | None = None


class _Report(msgspec.Struct):
    bases: list[_Base] = msgspec.field(default_factory=list)


def statistics_of(indexes: dict[str, Index], names: dict[str, str], report: bytes) -> dict[str, Any]:
    """Return what was counted in every base, and where v1's rows went if a run's report says so.

    Args:
        indexes: what was seen, by the base's id.
        names: what a person calls each base.
        report: what the report of a library holds; nothing where there is none.
    """
    rows = _rows(report)
    return {
        "bases": [
            {
                "id": key,
                "name": name,
                "units": _count(indexes, key, "units"),
                "bodies": _count(indexes, key, "bodies"),
                "covered": _count(indexes, key, "covered"),
                "embeddings": _count(indexes, key, "embeddings"),
                "lengths": {str(size // 4): count for size, count in sorted(_of(indexes, key).lengths.items())},
                "norms": _of(indexes, key).norms,
                "rows": rows.get(key),
            }
            for key, name in names.items()
        ]
    }


def _of(indexes: dict[str, Index], key: str) -> Index:
    return indexes.get(key) or Index()


def _count(indexes: dict[str, Index], key: str, name: str) -> int | None:
    return _of(indexes, key).counts.get(name)


def _rows(report: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(report, type=_Report)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}  # another program's file of that name
    return {base.id: msgspec.to_builtins(base.rows) for base in found.bases if base.rows is not None}
