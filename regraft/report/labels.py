"""Names of statuses, outcomes, kinds and the like as people read them; JSON uses the untranslated names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from regraft.language import format_count, to_english, tr, tr_in, translate_as

E = TypeVar("E")

_LABELS = {
    # Statuses of bases, items, notes and runs
    "completed": tr("completed"),
    "failed": tr("failed"),
    "idle": tr("idle"),
    "processing": tr("processing"),
    "preparing": tr("preparing"),
    "reading": tr("reading"),
    "embedding": tr("embedding"),
    "deleting": tr("deleting"),
    "pending": tr("pending"),
    "ready": tr("ready"),
    "stale": tr("stale"),
    "unusable": tr("unusable"),
    "orphan": tr("orphan"),
    "excluded": tr("excluded"),
    "running": tr("running"),
    "finished": tr("finished"),
    "interrupted": tr("interrupted"),
    "stopped": tr("stopped"),
    "undone": tr("undone"),
    "done": tr("done"),
    "active": tr("active"),
    "resolved": tr("resolved"),
    "superseded": tr("superseded"),
    "archived": tr("archived"),
    "updating": tr("updating"),
    "tombstoned": tr("tombstoned"),
    "other": tr("other"),
    # What a library of a fleet comes to
    "worth-reading": tr("worth reading"),
    "refused": tr("refused"),
    "killed": tr("killed"),
    "limit-reached": tr("limit reached"),
    # Who may see a document
    "global": tr("global"),
    "private": tr("private"),
    "agent": tr("agent"),
    "channel": tr("channel"),
    # What a migration or a comparison comes to
    "written": tr("written"),
    "unchanged": tr("unchanged"),
    "rewritten": tr("rewritten"),
    "kept": tr("kept"),
    "equal": tr("equal"),
    "different": tr("different"),
    "missing": tr("missing"),
    "damaged": tr("damaged"),
    "not-compared": tr("not-compared"),
    # Outcomes of a proof
    "proven": tr("proven"),
    "sampled": tr("sampled"),
    "found": tr("contradicted"),
    "not-checked": tr("not checked"),
    # Types of items, and what stores of other systems are made of
    "file": tr("file"),
    "url": tr("url"),
    "note": tr("note"),
    "directory": tr("directory"),
    "sitemap": tr("sitemap"),
    "folder": tr("folder"),
    "memory": tr("memory"),
    "video": tr("video"),
    "project": tr("project"),
    "workspace": tr("workspace"),
    "session": tr("session"),
    "handoff": tr("handoff"),
    "system": tr("system"),
    "chunk": tr("chunk"),
    "relation": tr("relation"),
    "device": tr("device"),
    # Types of notes in codex-mem
    "bugfix": tr("bugfix"),
    "constraint": tr("constraint"),
    "decision": tr("decision"),
    "discovery": tr("discovery"),
    "preference": tr("preference"),
    "todo": tr("todo"),
    # The state of vector search in codex-mem
    "retrieval mode": tr("retrieval mode"),
    "lexical": tr("lexical"),
    "semantic enabled": tr("semantic enabled"),
    "implicit resurfacing": tr("implicit resurfacing"),
    "model id": tr("model id"),
    "eligible": tr("eligible"),
    "not applicable": tr("not applicable"),
    "sidecar present": tr("sidecar present"),
    "sidecar compatible": tr("sidecar compatible"),
    "sidecar version": tr("sidecar version"),
    "last backfill": tr("last backfill"),
    "last rebuild": tr("last rebuild"),
    # What is counted
    "bases": tr("bases"),
    "items": tr("items"),
    "rows": tr("rows"),
    "units": tr("units"),
    "bodies": tr("bodies"),
    "materials": tr("materials"),
    "contents": tr("contents"),
    "embeddings": tr("embeddings"),
    "vectors": tr("vectors"),
    "texts": tr("texts"),
    "notes": tr("notes"),
    "records": tr("records"),
    "tags": tr("tags"),
    "files": tr("files"),
    "raw files": tr("raw files"),
    "collections": tr("collections"),
    "providers": tr("providers"),
    "projects": tr("projects"),
    "handoffs": tr("handoffs"),
    "workspaces": tr("workspaces"),
    "sessions": tr("sessions"),
    "parts": tr("parts"),
    "databases": tr("databases"),
    "indexes": tr("indexes"),
    "size": tr("size"),
    "requests": tr("requests"),
    "changes": tr("changes"),
    "queries": tr("queries"),
    "carried": tr("migrated"),
    "dimensions": tr("dimensions"),
    "coverage": tr("coverage"),
    "orphans": tr("orphans"),
    "outcome": tr("outcome"),
    "base": tr("base"),
    "findings": tr("findings"),
    "count": tr("count"),
    "reason": tr("reason"),
    "means": tr("means"),
    "severity": tr("severity"),
    "code": tr("code"),
    # Parts of an audit
    "structure": tr("structure"),
    "identity": tr("identity"),
    "counts": tr("counts"),
    "relations": tr("relations"),
    "integrity": tr("integrity"),
    "migration": tr("migration"),
    "scope": tr("scope"),
    "full text": tr("full text"),
    "checksums": tr("checksums"),
    "upgrade": tr("upgrade"),
    # Stages of work
    "Writing": tr("Writing"),
    "Comparing": tr("Comparing"),
    "Carrying": tr("Carrying"),
    "Reading": tr("Reading"),
    "Checking": tr("Checking"),
    "Changing": tr("Changing"),
    "Embedding": tr("Embedding"),
    "Looking": tr("Looking"),
    "Filling": tr("Filling"),
    "Packing": tr("Packing"),
    # Ways of searching
    "vector": tr("vector"),
    "bm25": tr("bm25"),
    "hybrid": tr("hybrid"),
    "words": tr("words"),
    # Others
    "none": tr("none"),
    "nothing": tr("nothing"),
    "unknown": tr("unknown"),
    "yes": tr("yes"),
    "no": tr("no"),
    "absolute": tr("absolute"),
    "empty": tr("empty"),
    "inside .cherry": tr("inside .cherry"),
    "table": tr("table"),
    "column": tr("column"),
    "view": tr("view"),
    "trigger": tr("trigger"),
    "index": tr("index"),
    "key": tr("key"),
}
_SEVERITIES = {
    "error": tr_in("severity", "error"),
    "warning": tr_in("severity", "warning"),
    "note": tr_in("severity", "note"),
}
_HEADINGS = {
    "error": tr_in("severity", "errors"),
    "warning": tr_in("severity", "warnings"),
    "note": tr_in("severity", "notes"),
}
_MODES = {
    "vector": tr_in("search", "meaning"),
    "bm25": tr_in("search", "words"),
    "hybrid": tr_in("search", "words and meaning"),
    "simple": tr_in("search", "tags"),
}
#: States of vector search in codex-mem.
_STATES = {
    "disabled": tr("off"),
    "ready": tr("ready"),
    "degraded_missing_index": tr("not possible, the vector file is missing or cannot be read"),
    "rebuilding": tr("not possible until the rebuild has finished"),
    "degraded_incompatible_index": tr("not possible, the vector file does not match the notes"),
    "degraded_failed_embeddings": tr("partly: some notes could not be embedded"),
    "degraded_stale_embeddings": tr("partly: some notes have changed since"),
    "degraded_partial_coverage": tr("partly: some notes have no vector yet"),
}


def mode_label(mode: str) -> str:
    """Describe a search mode: by words, by meaning, both, or by tags."""
    return _MODES[mode]


def state_label(state: str) -> str:
    """Describe whether vector search finds notes of codex-mem; the states are in ``docs/formats/codex_mem.md``."""
    return _STATES[state]


def label_of(name: object) -> str:
    """Translate a name of a status, outcome, kind or unit for people; an unknown name is returned unchanged."""
    label = _LABELS.get(str(name))
    if label is None:
        return str(name)
    # The labels are in the language of the process; a reader of the page may have another one.
    plain = str(to_english(label))
    return translate_as(plain, plain, {})


def format_labeled_count(number: int, name: object) -> str:
    """Format a number with the label of a status, outcome, kind or unit, such as "2 failed"."""
    return tr("{count:,} {label}", count=number, label=label_of(name))


def severity_label(severity: str) -> str:
    """Return the label of a severity."""
    return _SEVERITIES[severity]


def severity_heading(severity: str) -> str:
    """Return the heading above findings of a severity."""
    return _HEADINGS[severity]


def format_severity_count(number: int, severity: str) -> str:
    """Return a count of findings with its severity, such as "2 errors"."""
    return format_count(number, severity, context="severity")


def first_of_each(entries: Iterable[E], name_of: Callable[[E], str], most: int) -> Iterator[E]:
    """Yield the first ``most`` entries of each name; ``name_of`` returns the name of an entry."""
    seen: Counter[str] = Counter()
    for entry in entries:
        seen[name_of(entry)] += 1
        if seen[name_of(entry)] <= most:
            yield entry


def omitted_lines(names: Iterable[str], shown: int) -> Iterator[str]:
    """Yield a line for each name that has more than ``shown`` entries; ``names`` has the name of every entry."""
    for name, count in Counter(names).items():
        if count > shown:
            yield tr("… and {count:,} more of {name} (-v shows all)", count=count - shown, name=name)
