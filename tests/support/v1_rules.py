"""The rules of a migration from v1, written down a second time for property tests."""

from __future__ import annotations

import math
import struct
from collections import Counter
from typing import Any

from hypothesis import strategies as st
from v1 import CREATED, Library, Row

#: Loader ids of rows, and of items: those that match, those that nobody has, those that are no text.
OWN = ["L1", "L2", "L3", "L4"]
ROW_LOADERS = st.one_of(
    st.sampled_from(OWN), st.sampled_from(OWN), st.sampled_from(["gone", "", " ", None, 5, b"L1", "L1 "])
)
BODIES = st.one_of(
    st.sampled_from([None, "", "same", "🎉 same", "a\0b"]),
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.integers(-(2**40), 2**40),
    # Without what could be half of a surrogate pair: those are another test's.
    st.binary(max_size=4).filter(lambda raw: b"\xed" not in raw),
)
VECTORS = st.one_of(
    st.binary(min_size=8, max_size=8),
    st.binary(min_size=8, max_size=8),
    st.binary(min_size=8, max_size=8),
    st.binary(min_size=12, max_size=12),
    st.binary(max_size=9),
    st.sampled_from([None, "text", "", 7, 1.5, b"\0" * 8, b"\0\0\xc0\x7f" * 2, b"\xff" * 8]),
)
SOURCES = st.one_of(st.just("/docs/a.md"), st.sampled_from([None, "", " \ufeff", "/docs/b.md", 7, b"/docs/c.md"]))
ROWS = st.lists(st.builds(Row, loader=ROW_LOADERS, body=BODIES, vector=VECTORS, source=SOURCES), max_size=14)
LISTS = st.lists(st.sampled_from([*OWN, "", "nobody"]), max_size=4)


@st.composite
def indexed_items(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return well-formed items whose loaders overlap in every way."""
    items = []
    for number in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["note", "url", "directory", "directory"]))
        item = {"id": f"i{number}", "type": kind, "content": f"content {number}", "created_at": CREATED}
        item["uniqueId"] = draw(st.sampled_from(["", "own", *OWN]))
        if draw(st.booleans()) or kind == "directory":
            item["uniqueIds"] = draw(LISTS)
        item["processingStatus"] = draw(st.sampled_from(["completed", "completed", "failed", "pending"]))
        items.append(item)
    return items


def loaders_of(item: dict[str, Any]) -> list[str]:
    several = item.get("uniqueIds")
    return [loader for loader in (several or [item["uniqueId"]]) if loader.strip()]


def has_source(row: Row) -> bool:
    return isinstance(row.source, str) and bool(row.source.strip(" \ufeff"))


def owners_of(items: list[dict[str, Any]], rows: list[Row]) -> dict[str, tuple[str, bool]]:
    """Return whose rows a loader's are, and whether that item can hold any, by the words of the rules."""
    standalone: dict[str, tuple[str, bool]] = {}
    children: dict[str, tuple[str, bool]] = {}
    containers: dict[str, tuple[str, bool]] = {}
    sources = {row.loader for row in rows if isinstance(row.loader, str) and has_source(row)}
    for item in items:
        if item["type"] != "directory":
            standalone |= dict.fromkeys(loaders_of(item), (item["id"], True))
            continue
        completed = item["processingStatus"] == "completed" and item["uniqueId"].strip()
        listed = dict.fromkeys(item["uniqueIds"]) if completed else []
        entries = [loader for loader in listed if loader.strip() and loader in sources]
        children |= {loader: (f"{item['id']}#{place}", True) for place, loader in enumerate(entries)}
        if not entries:
            containers |= dict.fromkeys(loaders_of(item), (item["id"], False))
    return {**containers, **children, **standalone}


def usable(vector: Any) -> bool:
    return isinstance(vector, bytes) and bool(vector) and len(vector) % 4 == 0


def wanted_length(rows: list[Row]) -> int | None:
    lengths = Counter(len(row.vector) for row in rows if usable(row.vector))
    # The first of equals is the one that was counted first.
    return lengths.most_common(1)[0][0] if lengths else None


def why_not(row: Row, owners: dict[str, tuple[str, bool]], length: int | None) -> str | None:
    """Return why a row is not carried: base, owner, payload, encoding, length, numbers."""
    owner = owners.get(row.loader) if isinstance(row.loader, str) else None
    if length is None:
        return "missing_vector_store"
    if owner is None:
        return "unmapped_loader"
    if not owner[1]:
        return "non_indexable_container"
    if row.vector is None or row.vector in (b"", ""):
        return "missing_vector_payload"
    if not usable(row.vector):
        return "unsupported_vector_encoding"
    if len(row.vector) != length:
        return "dimension_mismatch"
    return None if is_finite(row.vector) else "non_finite_vector"


def is_finite(vector: bytes) -> bool:
    return all(map(math.isfinite, struct.unpack(f"<{len(vector) // 4}f", vector)))


def text_of(body: Any) -> str:
    if isinstance(body, bytes):
        return body.decode(errors="replace")
    return "" if body is None else str(body)


def names_of(library: Library) -> dict[str, str]:
    """Return the name that the oracle has for an item, by its new id."""
    names = {new: legacy for legacy, new in library.report["ids"]["items"].items()}
    for legacy, new in library.report["ids"]["items"].items():
        children = [row["id"] for row in library.catalog("knowledge_item") if row["group_id"] == new]
        names |= {child: f"{legacy}#{place}" for place, child in enumerate(children)}
    return names
