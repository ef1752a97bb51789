"""Which command line mends a finding: what comes first where several things are wrong (``docs/findings.md``)."""

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
    read_item_data,
)
from regraft.formats.cherry_v2.index.schema import catalog_dimensions
from regraft.identity import replace
from regraft.language import join_list, tr
from regraft.text import lenient_text

#: What is said of the rows of an index file: nothing mends these while it cannot be read as a whole.
_OF_AN_INDEX = (
    *("schema.", "meta.", "content.", "material.", "unit.", "body.", "fts.", "embedding."),
    *(v2.ITEM_NO_MATERIAL, v2.ITEM_NOT_INDEXED),
)
_UNREADABLE = frozenset({v2.UNREADABLE, v2.CORRUPT})
_LAYOUT = frozenset({v2.SCHEMA_MISSING, v2.SCHEMA_VERSION})
#: What the catalog is asked about: in the folder of a base that it does not name, all of it goes with the folder.
_BY_CATALOG = frozenset({v2.MATERIAL_ORPHAN, v2.RAW_ORPHAN})
#: Commands that go by what the catalog says of the base of an index.
_OF_ONE_BASE = {FINDINGS[v2.MATERIAL_ORPHAN].command, FINDINGS[v2.VECTOR_MISSING].command}
#: Commands that refuse a catalog that they cannot read.
_NEED_CATALOG = frozenset({"gc", "reconcile", "backfill"})
#: What has to be mended before something else is waste: it may need just that.
_FIRST: dict[str, tuple[str, ...]] = {
    # Vectors that nobody needs are not made anew.
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


#: Of an index file that SQLite refuses, or breaks off in.
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
    """Return an audit whose findings give the command lines that mend them, where one does.

    Args:
        audit: of v2 data.
        command_line: makes a command line.
        is_whole: whether it is of several bases, one of which a command has to be told.
        orphans: ids of the bases that have a folder and are not in the catalog.
        is_salvaged: whether damaged index files can be written anew from what is left in them.
        attachable: by the base, the one model that may be that of vectors whose base has no model.
    """
    together: dict[str | None, dict[str, Finding]] = defaultdict(dict)
    for finding in audit.findings:
        together[finding.base].setdefault(finding.name, finding)
    has_catalog = v2.UNREADABLE not in together[None]

    def mended(finding: Finding) -> Finding:
        words = _find_command(finding, together[finding.base])
        if words == FINDINGS[v2.VECTOR_UNEXPECTED].command:
            # Where several models may be it, a person has to say which one it is.
            model = (attachable or {}).get(finding.base or "")
            words = (*words, model) if model is not None else ()
        if is_salvaged and finding.name in _UNREADABLE and finding.base is not None:
            words = _SALVAGE
        # Nothing is embedded for a base that no catalog names.
        asks_catalog = finding.name in _BY_CATALOG or words == FINDINGS[v2.VECTOR_MISSING].command
        goes_with_folder = asks_catalog and finding.base in orphans
        if goes_with_folder:
            words = FINDINGS[v2.INDEX_ORPHAN].command
        if finding.repair is not None or not words or (words[0] in _NEED_CATALOG and not has_catalog):
            return finding
        if goes_with_folder:
            return replace(finding, repair=command_line(words[:1], words[1:]))
        base = ("--base", finding.base) if finding.base is not None and is_whole else ()
        return replace(finding, repair=command_line(words[:1], (*words[1:], *base)))

    return replace(audit, findings=tuple(map(mended, audit.findings)))


def _find_command(finding: Finding, others: Mapping[str, Finding]) -> Sequence[str]:
    """Return the words of the command that is to be run next because of a finding; none where none helps."""
    words = FINDINGS[finding.name].command
    # A failed base gets no vectors: a new one is made of it.
    if finding.is_beyond_repair or (words == FINDINGS[v2.VECTOR_MISSING].command and v2.BASE_FAILED in others):
        return ()
    return _find_index_command(finding, others) if words and finding.name.startswith(_OF_AN_INDEX) else words


def _find_index_command(finding: Finding, others: Mapping[str, Finding]) -> Sequence[str]:
    words = FINDINGS[finding.name].command
    if _UNREADABLE & others.keys() or (words in _OF_ONE_BASE and v2.META_BASE in others):
        return ()
    layout = sorted(_LAYOUT & others.keys())
    # A version that is newer than ours says nothing of what its tables should be.
    if any(others[name].is_beyond_repair for name in layout):
        return ()
    if layout:
        return FINDINGS[layout[0]].command
    first = next((name for name in _FIRST.get(finding.name, ()) if name in others), None)
    return words if first is None else _find_command(others[first], others)


# Which model may be that of vectors whose base has none: what a catalog says for and against it.


_EMBEDDING = "embedding"


def find_model_conflict(model: str, dimensions: int, catalog: StoredCatalog, base: str) -> str | None:
    """Return why a model cannot be that of the vectors of a base; None where nothing speaks against it.

    Args:
        model: the id of the model.
        dimensions: those of the vectors.
        catalog: has the model, and the bases that use it.
        base: the id of the base.
    """
    row = next((one for one in catalog.models or () if one.get("id") == model), None)
    capabilities = None if row is None else _capabilities(row)
    if capabilities and _EMBEDDING not in capabilities:
        return tr("the model {model} is not one for embeddings", model=model)
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
    """Return the one model of a catalog that may have made the vectors of a base; None for none or several.

    A model that inherits its capabilities from a preset, which the catalog does not have, may be one for embeddings.
    """
    used = {row.get("embedding_model_id") for row in catalog.bases}
    candidates = []
    for row in catalog.models or ():
        model, capabilities = row.get("id"), _capabilities(row)
        may_embed = model in used or capabilities is None or _EMBEDDING in capabilities
        if isinstance(model, str) and may_embed and find_model_conflict(model, dimensions, catalog, base) is None:
            candidates.append(model)
    return candidates[0] if len(candidates) == 1 else None


def _capabilities(row: Row) -> list[object] | None:
    """Return what a model can do; None where its row does not say."""
    try:
        found = json_text.loads(str(row["capabilities"])) if row.get("capabilities") is not None else None
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def _dimensions_of(model: str, catalog: StoredCatalog, base: str) -> set[int]:
    """Return the dimensions of the other bases with a model."""
    rows = (row for row in catalog.bases if base_id_text(row) != base and row.get("embedding_model_id") == model)
    return {dimensions for row in rows if (dimensions := catalog_dimensions(row)) is not None}


# What a person calls the items that a finding gives as examples (``docs/commands.md``, "check").
#
# A finding names rows: items, and what an index has of them. A person knows the item, by the name that the application
# shows.


#: The materials of rows of an index: by the path or content of a material, by a unit, a body, a vector.
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
            item_of |= _find_materials(index, samples)
    names = _read_item_names(catalog, {*wanted, *item_of.values()})
    named = {sample: names[item_of.get(sample, sample)] for sample in wanted if item_of.get(sample, sample) in names}
    return tuple(
        replace(finding, names={one: named[one] for one in finding.samples if one in named}) for finding in found
    )


def _find_materials(index: Path, samples: Iterable[str]) -> dict[str, str]:
    """Return the ids of the materials that rows of an index belong to."""
    try:
        with sqlite.open_readonly(index) as db:
            rows = db.execute(_MATERIALS_OF_ROWS, (json.dumps(sorted(samples)),)).fetchall()
    except (apsw.Error, OSError, UnicodeDecodeError):
        return {}
    return {str(key): lenient_text(material) for key, material in rows if isinstance(material, str | bytes)}


def _read_item_names(catalog: Path, ids: Iterable[str]) -> dict[str, str]:
    """Return the names of items by their ids."""
    try:
        with open_catalog(catalog) as rows:
            items = rows.items(ids) or {}
    except CatalogProblem:
        return {}
    names = {item: item_name(row.get("type"), read_item_data(row)) for item, row in items.items()}
    return {item: name for item, name in names.items() if name is not None}
