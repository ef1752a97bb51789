"""Which command line mends a finding: what comes first where several things are wrong (``docs/findings.md``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from checks.audit.findings import FINDINGS, Audit, Finding
from checks.audit.options import CommandLine
from checks.cherry_v2 import findings as v2
from regraft.records import replace

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


def with_commands(
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
        words = _words(finding, together[finding.base])
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


def _words(finding: Finding, others: Mapping[str, Finding]) -> Sequence[str]:
    """Return the words of the command that is to be run next because of a finding; none where none helps."""
    words = FINDINGS[finding.name].command
    # A failed base gets no vectors: a new one is made of it.
    if finding.is_beyond_repair or (words == FINDINGS[v2.VECTOR_MISSING].command and v2.BASE_FAILED in others):
        return ()
    return _words_of_index(finding, others) if words and finding.name.startswith(_OF_AN_INDEX) else words


def _words_of_index(finding: Finding, others: Mapping[str, Finding]) -> Sequence[str]:
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
    return words if first is None else _words(others[first], others)
