"""The v1 vector file of a base: one table ``vectors`` written by embedjs through libSQL (``docs/formats/v1.md``)."""

from __future__ import annotations

from regraft.formats.vector_table import VectorTable


def chunk_number(row_id: bytes, loader: bytes) -> int:
    """Return n of a row id ``<loader id>_<n>``, or -1."""
    if not row_id.startswith(loader) or row_id[len(loader) : len(loader) + 1] != b"_":
        return -1
    digits = row_id[len(loader) + 1 :]
    return int(digits) if digits.isdigit() and len(digits) <= 15 else -1


VECTORS = VectorTable(
    name="vectors",
    loader=(("uniqueLoaderId", "uniqueLoaderId"),),
    source=(("source", "source"),),
    row_id=(("id", "id"),),
    body="pageContent",
    vector="vector",
    needed=("pageContent", "uniqueLoaderId", "source", "vector"),
    number=chunk_number,
)
