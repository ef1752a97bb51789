"""Complete the findings of v2 data: the command to run next, the model of vectors without one, and names of items.

If several problems affect each other, the command fixes the one that must come first (``docs/findings.md``).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import apsw

from checks.audit.collector import CommandLine
from checks.audit.findings import FINDINGS, Audit, Finding
from checks.cherry_v2 import findings as v2
from regraft.disk import sqlite
from regraft.formats import json_text
from regraft.formats.cherry_v2.catalog_reader import (
    CatalogProblem,
    Row,
    StoredCatalog,
    base_id_text,
    item_name,
    open_catalog,
    parse_item_data,
)
from regraft.formats.cherry_v2.index.schema import catalog_dimensions
from regraft.identity import replace
from regraft.language import join_list, tr
from regraft.text import lenient_text

#: Findings about the rows of an index file. No command fixes these while the file is damaged.
_OF_AN_INDEX = (
    *("schema.", "meta.", "content.", "material.", "unit.", "body.", "fts.", "embedding."),
    *(v2.ITEM_NO_MATERIAL, v2.ITEM_NOT_INDEXED),
)
_UNREADABLE = frozenset({v2.UNREADABLE, v2.CORRUPT})
_LAYOUT = frozenset({v2.SCHEMA_MISSING, v2.SCHEMA_VERSION})
#: Findings that depend on the catalog. In a folder that the catalog does not name, they are fixed with the folder.
_BY_CATALOG = frozenset({v2.MATERIAL_ORPHAN, v2.RAW_ORPHAN})
#: Commands that need the catalog's row of the base.
_OF_ONE_BASE = {FINDINGS[v2.MATERIAL_ORPHAN].command, FINDINGS[v2.VECTOR_MISSING].command}
#: Commands that refuse to run without a readable catalog.
_NEED_CATALOG = frozenset({"gc", "reconcile", "backfill"})
#: Findings that must be fixed first, by finding: their repair may need the affected rows.
_FIRST: dict[str, tuple[str, ...]] = {
    # Vectors that are not needed should not be embedded again.
    **dict.fromkeys(
        (v2.VECTOR_LENGTH, v2.VECTOR_NON_FINITE, v2.VECTOR_ZERO),
        (v2.BASE_DIMENSIONS, v2.VECTOR_UNEXPECTED, v2.VECTOR_ORPHAN, v2.BODY_HASH),
    ),
    v2.NO_UNITS: (v2.CONTENT_HASH, v2.FTS_DESYNC, v2.BODY_ROWID),
    v2.ITEM_NO_MATERIAL: (v2.FTS_DESYNC, v2.BODY_ROWID),
    v2.ITEM_NOT_INDEXED: (v2.FTS_DESYNC, v2.BODY_ROWID),
    v2.VECTOR_MISSING: (v2.BODY_HASH, v2.BASE_DIMENSIONS, v2.META_MISSING),
    v2.BODY_ORPHAN: (v2.NO_BODY, v2.NO_UNITS),
    v2.VECTOR_ORPHAN: (v2.NO_BODY, v2.BODY_HASH, v2.NO_UNITS),
    v2.CONTENT_ORPHAN: (v2.CONTENT_HASH, v2.NO_CONTENT, v2.UNIT_CONTENT),
    v2.VECTOR_UNEXPECTED: (v2.BASE_STATUS,),
}


#: For an index file that SQLite cannot read, or not completely.
_SALVAGE = ("repair", "--salvage")


def add_commands(
    audit: Audit,
    command_line: CommandLine,
    *,
    is_whole: bool,
    orphans: Collection[str] = (),
    is_salvaged: bool = False,
    attachable: Mapping[str, str] | None = None,
) -> Audit:
    """Give each finding the command line to run next, if one helps.

    Args:
        audit: an audit of v2 data.
        command_line: makes a command line for the audited path.
        is_whole: whether the store can have several bases, so that commands need ``--base``.
        orphans: ids of the bases that have a folder but no row in the catalog.
        is_salvaged: whether damaged index files of this store can be salvaged.
        attachable: for bases with vectors but no model, the only model that can have made the vectors.
    """
    by_base: dict[str | None, dict[str, Finding]] = defaultdict(dict)
    for finding in audit.findings:
        by_base[finding.base].setdefault(finding.name, finding)
    has_catalog = v2.UNREADABLE not in by_base[None]

    def with_command(finding: Finding) -> Finding:
        """Return the finding with the command line to run next, or unchanged if none helps."""
        words = _find_command(finding, by_base[finding.base])
        if words == FINDINGS[v2.VECTOR_UNEXPECTED].command:
            # If several models are possible, the user must choose.
            model = (attachable or {}).get(finding.base or "")
            words = (*words, model) if model is not None else ()
        if is_salvaged and finding.name in _UNREADABLE and finding.base is not None:
            words = _SALVAGE
        # Whether a command depends on the catalog's row of the base. Nothing is embedded for a base without a row.
        is_fixed_with_folder = finding.base in orphans and (
            finding.name in _BY_CATALOG or words == FINDINGS[v2.VECTOR_MISSING].command
        )
        if is_fixed_with_folder:
            words = FINDINGS[v2.INDEX_ORPHAN].command
        if finding.repair is not None or not words or (words[0] in _NEED_CATALOG and not has_catalog):
            return finding
        options = ("--base", finding.base) if finding.base is not None and is_whole and not is_fixed_with_folder else ()
        return replace(finding, repair=command_line(words[:1], (*words[1:], *options)))

    return replace(audit, findings=tuple(map(with_command, audit.findings)))


def _find_command(finding: Finding, others: Mapping[str, Finding]) -> Sequence[str]:
    """Return the words of the command to run next for a finding; empty if no command helps.

    ``others`` are all findings of the same base, by name.
    """
    words = FINDINGS[finding.name].command
    # A failed base gets no vectors; a new base is made from it.
    if finding.is_beyond_repair or (words == FINDINGS[v2.VECTOR_MISSING].command and v2.BASE_FAILED in others):
        return ()
    return _find_index_command(finding, others) if words and finding.name.startswith(_OF_AN_INDEX) else words


def _find_index_command(finding: Finding, others: Mapping[str, Finding]) -> Sequence[str]:
    """Return the words of the command to run next for a finding about an index; empty if no command helps.

    ``others`` are all findings of the same base, by name. One of these may have to be fixed first.
    """
    words = FINDINGS[finding.name].command
    if _UNREADABLE & others.keys() or (words in _OF_ONE_BASE and v2.META_BASE in others):
        return ()
    layout = sorted(_LAYOUT & others.keys())
    # The tables of a newer version are unknown.
    if any(others[name].is_beyond_repair for name in layout):
        return ()
    if layout:
        return FINDINGS[layout[0]].command
    first = next((name for name in _FIRST.get(finding.name, ()) if name in others), None)
    return words if first is None else _find_command(others[first], others)


# --- the model of vectors whose base has none -----------------------------------------------------------------------


_EMBEDDING = "embedding"


def find_model_conflict(model: str, dimensions: int, catalog: StoredCatalog, base: str) -> str | None:
    """Return the reason why a model cannot have made the vectors of a base; None if it can.

    Args:
        model: the id of the model.
        dimensions: the dimensions of the vectors.
        catalog: has the model and the bases that use it.
        base: the id of the base.
    """
    row = next((one for one in catalog.models or () if one.get("id") == model), None)
    capabilities = None if row is None else _read_capabilities(row)
    if capabilities and _EMBEDDING not in capabilities:
        return tr("{model} is not an embedding model, so it cannot have made these vectors", model=model)
    others = _dimensions_of(model, catalog, base)
    if others and dimensions not in others:
        return tr(
            "its vectors have {dimensions} dimensions, and those of other bases with the model {model} have {others}",
            dimensions=dimensions,
            model=model,
            others=join_list(sorted(others)),
        )
    return None


def find_only_candidate(dimensions: int, catalog: StoredCatalog, base: str) -> str | None:
    """Return the id of the only model in the catalog that can have made the vectors of a base; otherwise None.

    A model can inherit its capabilities from a preset that is not in the catalog. Such a model counts as possible.
    """
    used = {row.get("embedding_model_id") for row in catalog.bases}
    candidates = []
    for row in catalog.models or ():
        model, capabilities = row.get("id"), _read_capabilities(row)
        may_embed = model in used or capabilities is None or _EMBEDDING in capabilities
        if isinstance(model, str) and may_embed and find_model_conflict(model, dimensions, catalog, base) is None:
            candidates.append(model)
    return candidates[0] if len(candidates) == 1 else None


def _read_capabilities(row: Row) -> list[object] | None:
    """Return the capabilities that the row of a model states; None if it states none."""
    try:
        found = json_text.loads(str(row["capabilities"])) if row.get("capabilities") is not None else None
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def _dimensions_of(model: str, catalog: StoredCatalog, base: str) -> set[int]:
    """Return the dimensions that the catalog states for other bases than ``base`` that use a model."""
    rows = (row for row in catalog.bases if base_id_text(row) != base and row.get("embedding_model_id") == model)
    return {dimensions for row in rows if (dimensions := catalog_dimensions(row)) is not None}


# --- names of items (``docs/commands.md``, "check") -------------------------------------------------------------------


#: Materials by what samples name: a path, a content, a unit, a body or a vector.
_MATERIALS_OF_ROWS = """
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


def add_item_names(
    findings: Iterable[Finding], catalog: Path | None, indexes: Mapping[str, Path]
) -> tuple[Finding, ...]:
    """Add the names of items, as the application shows them, to the samples of findings.

    Args:
        findings: the findings of a store.
        catalog: the catalog; None: no names are known.
        indexes: the index file of each base, by id.

    The data never makes this raise: samples without a readable name stay as they are.
    """
    found = tuple(findings)
    wanted = {sample for finding in found for sample in finding.samples}
    if catalog is None or not wanted:
        return found
    item_of: dict[str, str] = {}
    for base, index in indexes.items():
        samples = {sample for finding in found if finding.base == base for sample in finding.samples}
        if samples:
            item_of |= _find_materials(index, samples)
    names = _read_item_names(catalog, {*wanted, *item_of.values()})
    named = {sample: names[item_of.get(sample, sample)] for sample in wanted if item_of.get(sample, sample) in names}
    return tuple(
        replace(finding, names={one: named[one] for one in finding.samples if one in named}) for finding in found
    )


def _find_materials(index: Path, samples: Iterable[str]) -> dict[str, str]:
    """Map samples of findings to the ids of the materials in the index that they name or belong to."""
    try:
        with sqlite.open_readonly(index) as db:
            rows = db.execute(_MATERIALS_OF_ROWS, (json.dumps(sorted(samples)),)).fetchall()
    except (apsw.Error, OSError, UnicodeDecodeError):
        return {}
    return {str(key): lenient_text(material) for key, material in rows if isinstance(material, str | bytes)}


def _read_item_names(catalog: Path, ids: Iterable[str]) -> dict[str, str]:
    """Map item ids to the names that the application shows; items without a name are left out."""
    try:
        with open_catalog(catalog) as rows:
            items = rows.items(ids) or {}
    except CatalogProblem:
        return {}
    names = {item: item_name(row.get("type"), parse_item_data(row)) for item, row in items.items()}
    return {item: name for item, name in names.items() if name is not None}
