"""Summarize AngelMemory's data folder for ``inspect``: records, tags, vectors, and the folders of providers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
from msgspec import UNSET, Struct, UnsetType, structs

from checks.angel_memory import audit
from checks.angel_memory.audit import folder_size
from checks.angel_memory.detect import (
    Providers,
    VectorDifferences,
    count_note_vectors,
    find_providers,
    find_vector_differences,
)
from checks.inspect import HealthSummary, StoreSummary
from checks.systems import Checks
from regraft.formats.angel_memory import database
from regraft.formats.angel_memory.database import AngelProblem, ProviderFolder
from regraft.formats.chroma import database as chroma
from regraft.formats.chroma.database import ChromaProblem
from regraft.language import format_count, join_list, tr
from regraft.report.labels import label_of
from regraft.stores.systems import Located
from regraft.text import format_bytes, one_line, pad_left

# --- lists of records and vectors (``--items``) ---------------------------------------------------------------------


#: Characters of a vector's text that are shown.
_LONGEST_TEXT = 100


class RecordSummary(Struct, frozen=True, kw_only=True):
    """A record; ``vector`` is "current", "stale", "unusable", "missing", or "none" if its tags give no text."""

    note_short_id: int | None
    source_id: str
    path: str
    headings: list[str]
    tags: list[str]
    total_lines: int
    updated_at: float
    vector: str | None

    def line(self) -> str:
        """Return the text output's line about this record."""
        number = "-" if self.note_short_id is None else str(self.note_short_id)
        place = one_line(" > ".join([self.path, *self.headings]))
        state = "" if self.vector in (None, "current") else tr(" (vector: {state})", state=label_of(self.vector))
        return f"  {pad_left(number, 6)}  {place}{state}"


class VectorSummary(Struct, frozen=True, kw_only=True):
    """An entry of the collection ``notes_index``.

    ``state`` is "current", "stale", "unusable" or "orphan". ``stored`` tells where the vector is: in Chroma's "queue",
    or in the "files" of a segment. Only chromadb can read files, so their ``dimensions`` are unknown (None).
    """

    source_id: str
    document: str | None
    metadata: dict[str, Any]
    state: str
    stored: str
    dimensions: int | None

    def line(self) -> str:
        """Return the text output's line about this entry."""
        state = "" if self.state == "current" else f" ({label_of(self.state)})"
        return f"  {one_line(self.source_id)}{state}  {one_line(self.document or '', _LONGEST_TEXT)}"


def summarize_records(db: apsw.Connection, differences: VectorDifferences | None) -> list[RecordSummary]:
    """List the records by short id. ``differences`` tell the state of their vectors; None: unknown."""
    states = {} if differences is None else _map_states(differences) | dict.fromkeys(differences.missing, "missing")
    looks = [
        RecordSummary(
            note_short_id=record.short_id,
            source_id=record.source_id,
            path=record.path,
            headings=list(filter(None, record.headings)),
            tags=list(record.names),
            total_lines=record.total_lines,
            updated_at=record.updated_at,
            vector=None
            if differences is None
            else states.get(record.source_id, "current")
            if record.vector_text
            else "none",
        )
        for record in database.iterate_records(db)
    ]
    return sorted(looks, key=lambda one: (one.note_short_id is None, one.note_short_id or 0, one.source_id))


def summarize_vectors(folder: ProviderFolder, differences: VectorDifferences) -> list[VectorSummary]:
    """List the entries of a provider's collection of notes by source id, with the state of each.

    Raises:
        ChromaProblem, apsw.Error, OSError: the database cannot be read.
    """
    if not folder.database.is_file():
        return []
    states = _map_states(differences) | dict.fromkeys(differences.orphans, "orphan")
    with chroma.open_chroma(folder.database) as db:
        notes = chroma.find_collection(db, database.COLLECTION)
        if notes is None:
            return []
        lengths = {key: len(vector) // 4 for key, vector in chroma.iterate_queued_vectors(db, notes)}
        looks = [
            VectorSummary(
                source_id=entry.id,
                document=entry.document,
                metadata=entry.metadata,
                state=states.get(entry.id, "current"),
                stored="queue" if entry.id in lengths else "files",
                dimensions=lengths.get(entry.id),
            )
            for entry in chroma.iterate_entries(db, notes)
        ]
    return sorted(looks, key=lambda one: one.source_id)


def _map_states(differences: VectorDifferences) -> dict[str, str]:
    """Map the source id of each stored vector that is not current to its state, "stale" or "unusable"."""
    states = dict.fromkeys(differences.stale, "stale")
    return states | dict.fromkeys((*differences.lengths, *differences.unusable), "unusable")


_PROBLEMS = (AngelProblem, ChromaProblem, OSError, apsw.Error, UnicodeDecodeError)


class ProviderSummary(Struct, frozen=True, kw_only=True):
    """The folder of a provider; without a collection of notes, ``vectors`` is unset (None)."""

    provider: str
    vectors: int | None
    bytes: int
    use: str

    def line(self) -> str:
        """Return the text output's line about this provider."""
        vectors = tr("no collection of notes") if self.vectors is None else format_count(self.vectors, "vector")
        return tr(
            "provider {provider} ({use}): {vectors}, {bytes}",
            provider=self.provider,
            use=self.use,
            vectors=vectors,
            bytes=format_bytes(self.bytes),
        )


class AngelHealthSummary(HealthSummary, frozen=True, kw_only=True):
    """Contents and health of a data folder."""

    records: int | UnsetType
    tags: int | UnsetType
    vectors: int | None
    providers: list[ProviderSummary]
    #: With ``--items``: every record, and every entry of the collection of the provider in use.
    record_list: list[RecordSummary] | UnsetType = UNSET
    vector_list: list[VectorSummary] | UnsetType = UNSET

    def lines(self) -> Iterator[str]:
        """Yield the text output's lines about the data folder."""
        if self.record_list is not UNSET and self.vector_list is not UNSET:
            yield tr("Records:")
            yield from (one.line() for one in self.record_list)
            yield ""
            yield tr("Vectors of the provider in use:")
            yield from (one.line() for one in self.vector_list)
            yield ""
        if self.records is not UNSET and self.tags is not UNSET:
            parts = join_list((format_count(self.records, "record"), format_count(self.tags, "tag")))
            yield tr("{parts}, {size}.", parts=parts, size=format_bytes(self.bytes))
        for one in self.providers:
            yield one.line()


def inspect_store(source: Located, *, items: bool = False) -> StoreSummary:
    """Summarize a data folder, which has no bases; ``items``: whether to list records and vectors."""
    root = source.tree.path
    problems: list[str] = []
    texts: dict[str, str] | None = None
    records: int | UnsetType = UNSET
    tags: int | UnsetType = UNSET
    try:
        with database.open_records(root) as db:
            texts = dict(database.iterate_vector_texts(db))
            records, tags = database.count_records(db), database.count_tags(db)
    except _PROBLEMS as error:
        problems.append(f"{database.DATABASE}: {error}")
    used = find_providers(root)
    found = _compare_vectors(used, texts, problems)
    if used.problem is not None:
        problems.append(f"{database.STATE}: {used.problem}")
    if used.is_changed and texts:
        problems.append(
            tr(
                "the provider in use is {in_use}: its vectors are still to be made",
                in_use=used.in_use and used.in_use.name,
            )
        )
    folders = _summarize_providers(root, used)
    health = AngelHealthSummary(
        orphans=0,
        stale=0,
        bytes=folder_size(root / database.CENTER) + sum(folder.bytes for folder in folders),
        problems=problems,
        records=records,
        tags=tags,
        vectors=None,
        providers=folders,
    )
    if found is not None:
        health = structs.replace(
            health,
            coverage=1 - len(found.missing) / len(texts) if texts else None,
            orphans=len(found.orphans),
            stale=len(found.stale),
            vectors=found.count,
        )
    if items:
        health = structs.replace(health, **_list_contents(root, used, found, problems))
    return StoreSummary([], health)


def _list_contents(
    root: Path, providers: Providers, differences: VectorDifferences | None, problems: list[str]
) -> dict[str, list[RecordSummary] | list[VectorSummary]]:
    """List records and vectors, by the names of the summary's fields. What cannot be read is added to ``problems``.

    ``differences`` tell the state of the vectors; None: unknown.
    """
    records: list[RecordSummary] = []
    vectors: list[VectorSummary] = []
    try:
        with database.open_records(root) as db:
            records = summarize_records(db, differences)
    except _PROBLEMS as error:
        _add_once(problems, f"{database.DATABASE}: {error}")
    if providers.in_use is not None and differences is not None:
        try:
            vectors = summarize_vectors(providers.in_use, differences)
        except _PROBLEMS as error:
            _add_once(problems, f"{providers.in_use.path.name}: {error}")
    return {"record_list": records, "vector_list": vectors}


def _add_once(problems: list[str], problem: str) -> None:
    """Add a problem to ``problems``, unless the list has it already."""
    if problem not in problems:
        problems.append(problem)


def _compare_vectors(
    providers: Providers, texts: dict[str, str] | None, problems: list[str]
) -> VectorDifferences | None:
    """Compare the vectors of the provider in use with the records' texts, by source id.

    None is returned if that is not possible. An error is added to ``problems``.
    """
    if providers.in_use is None or texts is None:
        return None
    try:
        return find_vector_differences(providers.in_use, texts)
    except _PROBLEMS as error:
        problems.append(f"{providers.in_use.path.name}: {error}")
        return None


def _summarize_providers(root: Path, providers: Providers) -> list[ProviderSummary]:
    """Summarize the folder of each embedding provider; ``providers`` tell which one is in use."""
    leftovers = {folder.name for folder in providers.leftovers}
    looks = []
    for one in database.find_provider_folders(root):
        use = tr("of the last sync")
        if providers.in_use is not None and one.name == providers.in_use.name:
            use = tr("in use")
        elif one.name in leftovers:
            use = tr("left over")
        looks.append(
            ProviderSummary(provider=one.name, vectors=count_note_vectors(one), bytes=folder_size(one.path), use=use)
        )
    return looks


CHECKS = Checks(
    inspect=lambda found, asked: inspect_store(found, items=asked.items),
    has_items=True,
    audit=audit.audit,
)
