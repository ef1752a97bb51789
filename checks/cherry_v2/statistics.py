"""Numbers of an audit that a page can be drawn from: no text, no vector, no path."""

from __future__ import annotations

from typing import Annotated

import msgspec

from checks.audit.findings import BaseStatistics, Statistics
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


def statistics_of(indexes: dict[str, Index], names: dict[str, str], report: bytes) -> Statistics:
    """Return what was counted in every base, and where v1's rows went if a run's report says so.

    Args:
        indexes: what was seen, by the base's id.
        names: what a person calls each base.
        report: what the report of a library holds; nothing where there is none.
    """
    rows = _rows(report)
    return Statistics(bases=[_of_base(key, name, indexes.get(key) or Index(), rows) for key, name in names.items()])


def _of_base(key: str, name: str, index: Index, rows: dict[str, _Rows]) -> BaseStatistics:
    return BaseStatistics(
        id=key,
        name=name,
        units=index.counts.get("units"),
        bodies=index.counts.get("bodies"),
        covered=index.counts.get("covered"),
        embeddings=index.counts.get("embeddings"),
        lengths={str(size // 4): count for size, count in sorted(index.lengths.items())},
        norms=index.norms,
        rows=rows.get(key),
    )


def _rows(report: bytes) -> dict[str, _Rows]:
    try:
        found = msgspec.json.decode(report, type=_Report)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}  # another program's file of that name
    return {base.id: base.rows for base in found.bases if base.rows is not None}
