"""What a person calls the items that a finding gives as examples (``docs/commands.md``, "check").

A finding names rows: items, and what an index has of them. A person knows the item, by the name that the application
shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import apsw

from checks.audit.findings import Finding
from regraft import sqlite
from regraft.formats.cherry_v2.catalog_lookup import item_data, opened_catalog
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem
from regraft.formats.cherry_v2.item_names import item_name
from regraft.records import replace
from regraft.text import lenient_text

#: The materials of rows of an index: by the path or content of a material, by a unit, a body, a vector.
_MATERIALS = """
    WITH wanted (key) AS MATERIALIZED (SELECT value FROM json_each(?))
    SELECT relative_path, material_id FROM material WHERE relative_path IN wanted
    UNION ALL
    SELECT current_content_hash, material_id FROM material WHERE current_content_hash IN wanted
    UNION ALL
    SELECT unit_id, material_id FROM search_unit WHERE unit_id IN wanted
    UNION ALL
    SELECT t.search_text_id, u.material_id
      FROM search_text t JOIN search_unit u ON u.unit_id = t.target_id WHERE t.search_text_id IN wanted
    UNION ALL
    SELECT t.embedding_text_hash, u.material_id
      FROM search_text t JOIN search_unit u ON u.unit_id = t.target_id WHERE t.embedding_text_hash IN wanted"""


def with_names(findings: Iterable[Finding], catalog: Path | None, indexes: Mapping[str, Path]) -> tuple[Finding, ...]:
    """Return findings with the names of the items that their samples are, or are of, as far as a catalog has them.

    Args:
        findings: of a whole store.
        catalog: its catalog; without one nobody knows a name.
        indexes: the index file of each base, by its id.

    Never raises for what is in the data: what cannot be read has no names.
    """
    found = tuple(findings)
    wanted = {sample for finding in found for sample in finding.samples}
    if catalog is None or not wanted:
        return found
    item_of: dict[str, str] = {}
    for base, index in indexes.items():
        samples = {sample for finding in found if finding.base == base for sample in finding.samples}
        if samples:
            item_of |= _materials(index, samples)
    names = _names(catalog, {*wanted, *item_of.values()})
    named = {sample: names[item_of.get(sample, sample)] for sample in wanted if item_of.get(sample, sample) in names}
    return tuple(
        replace(finding, names={one: named[one] for one in finding.samples if one in named}) for finding in found
    )


def _materials(index: Path, samples: Iterable[str]) -> dict[str, str]:
    """Return the ids of the materials that rows of an index belong to."""
    try:
        with sqlite.reading(index) as db:
            rows = db.execute(_MATERIALS, (json.dumps(sorted(samples)),)).fetchall()
    except (apsw.Error, OSError, UnicodeDecodeError):
        return {}
    return {str(key): lenient_text(material) for key, material in rows if isinstance(material, str | bytes)}


def _names(catalog: Path, ids: Iterable[str]) -> dict[str, str]:
    """Return the names of items by their ids."""
    try:
        with opened_catalog(catalog) as rows:
            items = rows.items(ids) or {}
    except CatalogProblem:
        return {}
    names = {item: item_name(row.get("type"), item_data(row)) for item, row in items.items()}
    return {item: name for item, name in names.items() if name is not None}
