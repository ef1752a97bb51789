"""What a Parquet file of units says of itself (``docs/formats/parquet.md``, "Metadata")."""

from __future__ import annotations

from typing import Any

import msgspec

from regraft.text import whole

#: The key of the file's metadata that holds :class:`About` as JSON.
KEY = b"regraft"
#: The key under which other tools find the model, the dimensions and the metric of every base.
VDF_KEY = b"vdf"
SCHEMA = 1
#: The column of vectors.
VECTOR = "vector"


class BareMaterial(msgspec.Struct):
    """A material without units: it has no row."""

    id: str
    path: str
    content: str | None


class AboutBase(msgspec.Struct):
    """What a file says of one base; rows are those of the catalog, by column."""

    id: str
    name: str
    model: str | None
    dimensions: int | None
    #: Whether it has an index, be it an empty one.
    index: bool
    settings: dict[str, Any] | None = None
    items: list[dict[str, Any]] | None = None
    bare_materials: list[BareMaterial] = []


class About(msgspec.Struct):
    """The metadata of a file. ``layout`` is ``v2``, or ``v1`` for a legacy table."""

    schema: int
    layout: str
    dimensions: int | None
    bases: list[AboutBase]
    models: list[dict[str, Any]] = []
    providers: list[dict[str, Any]] = []


def encoded(about: About) -> dict[bytes, bytes]:
    """Return a file's metadata as Parquet has it."""
    return {
        KEY: msgspec.json.encode(_whole(msgspec.to_builtins(about))),
        VDF_KEY: msgspec.json.encode(_whole(_vdf(about))),
    }


def _vdf(about: About) -> dict[str, Any]:
    """Return what other tools ask of vectors, in the words of vdf-io (``docs/formats/parquet.md``, "Metadata")."""
    indexes = {}
    for base in about.bases:
        described = {
            "namespace": "",
            "index_name": base.name,
            "dimensions": base.dimensions,
            "model_name": base.model,
            "vector_columns": [VECTOR],
            "metric": "Cosine",
        }
        indexes[base.id] = [described]
    return {"id_column": "unit_id", "indexes": indexes}


def _whole(value: Any) -> Any:
    """Return data whose text can be stored: a folder's name need not be UTF-8."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, dict):
        return {whole(key): _whole(part) for key, part in value.items()}
    return [_whole(part) for part in value] if isinstance(value, list) else value
