"""Summarize a folder of Chroma for ``inspect``: its application, its collections, and where their vectors are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

import apsw
from msgspec import structs

from checks.chroma import audit
from checks.inspect import BaseSummary, HealthSummary, StoreSummary, format_base_heading
from checks.systems import Checks
from regraft.disk import file_paths
from regraft.formats.chroma import database, layouts
from regraft.formats.chroma.collection import Origin, open_collection
from regraft.formats.chroma.database import ChromaProblem
from regraft.language import format_count, tr
from regraft.stores.systems import Located, system_of

_PROBLEMS = (ChromaProblem, OSError, apsw.Error, UnicodeDecodeError)


class CollectionSummary(BaseSummary, frozen=True, kw_only=True):
    """A collection. ``vectors`` counts the entries whose vector is proven, by where it is."""

    title: str | None
    distance: str | None
    dimensions: int | None
    entries: int = 0
    in_segment: int = 0
    in_queue: int = 0
    unproven: int = 0
    missing: int = 0
    orphans: int = 0

    def lines(self, *, verbose: bool) -> Iterator[str]:
        """Yield the text output's lines about this collection; ``verbose`` adds nothing."""
        del verbose
        yield format_base_heading(self.id, self.name)
        if self.title:
            yield tr("  for         {title}", title=self.title)
        size = "" if self.dimensions is None else tr(" × {dimensions} dimensions", dimensions=self.dimensions)
        yield tr(
            "  vectors     {entries}{size}, {distance}: {segment:,} in the segment, {queue:,} in the queue",
            entries=format_count(self.entries, "entry"),
            size=size,
            distance=self.distance or tr("unknown distance"),
            segment=self.in_segment,
            queue=self.in_queue,
        )
        if self.unproven:
            yield tr("  unproven    {unproven:,}", unproven=self.unproven)
        if self.missing:
            yield tr("  missing     {missing:,}", missing=self.missing)
        if self.problem:
            yield tr("  problem     {problem}", problem=self.problem)
        yield ""


class ChromaHealthSummary(HealthSummary, frozen=True, kw_only=True):
    """Health of a folder; ``application`` is "open-webui", "mempalace" or "none"."""

    application: str

    def lines(self) -> Iterator[str]:
        """Yield the text output's line about the application, if one is known."""
        names = {"open-webui": "Open WebUI", "mempalace": "MemPalace"}
        if self.application in names:
            yield tr("Application: {name}.", name=names[self.application])


def inspect_store(source: Located) -> StoreSummary:
    """Summarize a folder of Chroma: its collections, and which application it belongs to."""
    root = source.tree.path
    size = sum(file_paths.lstat(path).st_size for path in file_paths.iterate_below(root) if path.is_file())
    try:
        with database.open_chroma(root / database.FILE) as db:
            collections = database.list_collections(db)
            layout = layouts.read_layout(root, collections)
            bases = [_summarize_collection(db, one, root, layout.titles.get(one.id)) for one in collections]
    except _PROBLEMS as error:
        problem = tr("{name}: {error}", name=database.FILE, error=error)
        return StoreSummary([], ChromaHealthSummary(bytes=size, problems=[problem], application="none"))
    problems = [tr("{what}: {why}", what=one.name, why=one.problem) for one in bases if one.problem]
    if layout.problem is not None:
        problems.append(tr("{what}: {why}", what=layouts.OPEN_WEBUI_DATABASE, why=layout.problem))
    entries, missing = sum(map(attrgetter("entries"), bases)), sum(map(attrgetter("missing"), bases))
    missing += sum(map(attrgetter("unproven"), bases))
    health = ChromaHealthSummary(
        coverage=1 - missing / entries if entries else None,
        orphans=sum(map(attrgetter("orphans"), bases)),
        stale=0,
        bytes=size,
        problems=problems,
        application=layout.application,
    )
    return StoreSummary(list(bases), health)


def _summarize_collection(
    db: apsw.Connection, row: database.ChromaCollection, root: Path, title: str | None
) -> CollectionSummary:
    """Summarize a collection, given by its row of the database; ``title`` is its name in the application, or None."""
    summary = CollectionSummary(
        id=row.id, name=row.name, store=None, problem=None, title=title, distance=row.distance, dimensions=None
    )
    try:
        with open_collection(db, row, root) as state:
            return structs.replace(
                summary,
                problem=state.problem,
                dimensions=state.dimension,
                entries=state.count("entry"),
                in_segment=state.count_origin(Origin.SEGMENT),
                in_queue=state.count_origin(Origin.QUEUE) + state.count_origin(Origin.RECOVERED),
                unproven=state.count_origin(Origin.UNPROVEN),
                missing=sum(1 for _ in state.missing_ids()),
                orphans=state.count_orphans(),
            )
    except _PROBLEMS as error:
        return structs.replace(summary, problem=str(error))


def read_collection_ids(source: Located) -> Sequence[str]:
    """Return the ids of the collections of a folder; empty if they cannot be read."""
    return list(system_of(source.kind).part_names(source))


def read_ids_by_name(source: Located) -> Mapping[str, str]:
    """Map the names of collections, and their titles in the application, to ids; empty if they cannot be read."""
    try:
        with database.open_chroma(source.tree.path / database.FILE) as db:
            collections = database.list_collections(db)
            return layouts.ids_by_word(layouts.read_layout(source.tree.path, collections), collections)
    except _PROBLEMS:
        return {}


CHECKS = Checks(
    inspect=lambda found, _: inspect_store(found),
    audit=audit.audit,
    part_ids=read_collection_ids,
    ids_by_name=read_ids_by_name,
)
