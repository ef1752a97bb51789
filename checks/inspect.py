"""A first look at any store: what it is, what is in it, how healthy it seems (``regraft inspect``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from checks.angel_memory import inspect as angel_memory_inspect
from checks.cherry_preview import inspect as cherry_preview_inspect
from checks.cherry_v1 import inspect as cherry_v1_inspect
from checks.cherry_v2 import inspect as cherry_v2_inspect
from checks.codex_mem import inspect as codex_mem_inspect
from regraft.kinds import NAMES, PREVIEW_SOURCES, V1_SOURCES, Kind
from regraft.locate import Located
from regraft.report.progress import Progress, human_bytes
from regraft.text import LONGEST_NAME, counted, one_line, shown, shown_lines
from regraft.unpacking import on_disk

#: Kinds of v2 data; an archive is unpacked first.
_V2_KINDS = (Kind.LIBRARY, Kind.PACK, Kind.V2_BACKUP, Kind.V2_PROFILE, Kind.BASE, Kind.INDEX)
#: What looks into stores of other systems; ``health`` has whatever else is worth knowing of them.
_SYSTEMS: dict[Kind, Callable[[Located], tuple[list[dict[str, Any]], dict[str, Any]]]] = {
    Kind.CODEX_MEM: codex_mem_inspect.look,
    Kind.ANGEL_MEMORY: angel_memory_inspect.look,
}


def _nothing(_: dict[str, Any]) -> Iterator[str]:
    yield from ()


#: What a store of another system says of one of its parts, and of the whole beside what every store has.
_TOLD: dict[Kind, tuple[Callable[[dict[str, Any]], Iterator[str]], Callable[[dict[str, Any]], Iterator[str]]]] = {
    Kind.CODEX_MEM: (codex_mem_inspect.base_lines, codex_mem_inspect.health_lines),
    Kind.ANGEL_MEMORY: (_nothing, angel_memory_inspect.told),
}
#: Kinds that have no bases, nor anything in their place.
_WITHOUT_BASES = (Kind.ANGEL_MEMORY,)


def look(source: Located, progress: Progress) -> dict[str, Any]:
    """Return ``kind``, ``bases`` and ``health`` of a recognised path.

    Raises:
        BrokenJson, SourceUnreadable: its state cannot be read.
    """
    if source.kind in V1_SOURCES:
        bases, health = cherry_v1_inspect.look(source, progress)
    elif source.kind is Kind.V1_VECTORS:
        bases, health = cherry_v1_inspect.look_at_file(source.path)
    elif source.kind in PREVIEW_SOURCES:
        bases, health = cherry_preview_inspect.look(source)
    elif source.kind in _SYSTEMS:
        bases, health = _SYSTEMS[source.kind](source)
    elif source.kind in _V2_KINDS:
        with on_disk(source, raw=False) as unpacked:
            bases, health = cherry_v2_inspect.look(unpacked)
    else:
        bases, health = cherry_v1_inspect.look_without_state(source)
    return {"kind": source.kind.value, "bases": bases, "health": health}


def as_text(document: dict[str, Any], *, verbose: bool = False) -> str:
    """Return a look's document as text for a person."""
    kind = Kind(document["kind"])
    told, of_all = _TOLD.get(kind, (_nothing, _nothing))
    lines = [f"{document['source']['path']} is {NAMES[kind]}.", ""]
    for base in document["bases"]:
        head, *more = _base_lines(base, verbose)
        lines += [head, *told(base), *more]
    lines += of_all(document["health"])
    if kind not in _WITHOUT_BASES:
        noun = "project" if kind is Kind.CODEX_MEM else "base"
        lines.append(f"{counted(len(document['bases']), noun)}, {human_bytes(document['health']['bytes'])}.")
    lines += _health_lines(document["health"], document["bases"])
    return shown_lines(lines)


def _base_lines(base: dict[str, Any], verbose: bool) -> Iterator[str]:
    yield f"{one_line(str(base['name']), LONGEST_NAME)}  ({shown(base['id'], LONGEST_NAME)})"
    if base.get("status"):
        error = f": {base['error']}" if base.get("error") else ""
        yield f"  status      {base['status']}{error}"
    if base.get("model"):
        yield f"  model       {base['model']}"
    if base.get("items"):
        yield f"  items       {', '.join(f'{count:,} {name}' for name, count in base['items'].items())}"
    store = base.get("store")
    if store:
        yield f"  {_store_line(store)}"
        if verbose or store.get("coverage", 1) != 1:
            yield from _lacks(store)
    yield from map(_material_line, base.get("materials", ()))
    if base.get("problem"):
        yield f"  problem     {base['problem']}"
    yield ""


def _lacks(store: dict[str, Any]) -> Iterator[str]:
    for name in ("coverage", "orphans", "stale"):
        if store.get(name) is not None:
            yield f"  {name:<11} {store[name] if name != 'coverage' else f'{store[name]:.2%}'}"


def _material_line(material: dict[str, Any]) -> str:
    # A folder's file has its own id for a path: its source is what a person knows it by.
    virtual = material["path"] == material["id"] and material["source"]
    name = one_line(str(material["source"] if virtual else material["path"]))
    return f"    {counted(material['units'], 'unit'):>10}  {name}"


def _store_line(store: dict[str, Any]) -> str:
    names = ("rows", "materials", "units", "embeddings")
    parts = [f"{store[name]:,} {name}" for name in names if store.get(name) is not None]
    dimensions = f" × {store['dimensions']} dimensions" if store.get("dimensions") else ""
    return f"vectors     {', '.join(parts)}{dimensions}, {human_bytes(store['bytes'])}"


def _health_lines(health: dict[str, Any], bases: list[dict[str, Any]]) -> Iterator[str]:
    if health["coverage"] is not None:
        yield (
            f"{health['coverage']:.2%} of the texts have their vector; "
            f"{counted(health['orphans'], 'orphan')}, {health['stale']:,} stale."
        )
    shown = {f"{base['name']}: {base['problem']}" for base in bases}
    for problem in health["problems"]:
        if problem not in shown:
            yield f"problem: {problem}"
    above = sum(problem in shown for problem in health["problems"])
    if above:
        yield f"{counted(above, 'base')} with a problem, see above."
    yield from (f"note: {note}" for note in health.get("notes", ()))
    if not health["problems"]:
        yield "No problem at a glance."
