"""A first look at AngelMemory's data folder: records, tags, vectors, and the providers that have folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
from msgspec import UNSET, Struct, UnsetType, structs

from checks.angel_memory import lists
from checks.angel_memory.audit import size_of
from checks.angel_memory.lists import RecordLook, VectorLook
from checks.angel_memory.providers import Providers, entries_of, providers
from checks.angel_memory.vectors import Differences, differences
from checks.looks import HealthLook, Look
from regraft.formats.angel_memory import database
from regraft.formats.angel_memory.chroma import ChromaProblem
from regraft.formats.angel_memory.database import AngelProblem
from regraft.language import tr
from regraft.located import Located
from regraft.report.progress import human_bytes
from regraft.text import counted

_PROBLEMS = (AngelProblem, ChromaProblem, OSError, apsw.Error, UnicodeDecodeError)


class ProviderLook(Struct, frozen=True, kw_only=True):
    """The folder of a provider; ``vectors`` is None where it has no collection of notes."""

    provider: str
    vectors: int | None
    bytes: int
    use: str

    def line(self) -> str:
        """Return it as a line for a person."""
        vectors = tr("no collection of notes") if self.vectors is None else counted(self.vectors, "vector")
        return tr(
            "provider {provider} ({use}): {vectors}, {bytes}",
            provider=self.provider,
            use=self.use,
            vectors=vectors,
            bytes=human_bytes(self.bytes),
        )


class AngelHealthLook(HealthLook, frozen=True, kw_only=True):
    """What is in a data folder, and how healthy it seems."""

    records: int | UnsetType
    tags: int | UnsetType
    vectors: int | None
    providers: list[ProviderLook]
    #: With ``--items``: every record, and every entry of the collection of the provider in use.
    record_list: list[RecordLook] | UnsetType = UNSET
    vector_list: list[VectorLook] | UnsetType = UNSET

    def lines(self) -> Iterator[str]:
        """See :class:`HealthLook`."""
        if self.record_list is not UNSET and self.vector_list is not UNSET:
            yield from lists.lines(self.record_list, self.vector_list)
        if self.records is not UNSET and self.tags is not UNSET:
            records, tags = counted(self.records, "record"), counted(self.tags, "tag")
            yield f"{records}, {tags}, {human_bytes(self.bytes)}."
        for one in self.providers:
            yield one.line()


def look(source: Located, *, items: bool = False) -> Look:
    """Look at a data folder; there are no bases in it. ``items`` asks for its records and vectors."""
    root = source.tree.path
    problems: list[str] = []
    texts: dict[str, str] | None = None
    records: int | UnsetType = UNSET
    tags: int | UnsetType = UNSET
    try:
        with database.reading(root) as db:
            texts = dict(database.vector_texts(db))
            records, tags = database.record_count(db), database.tag_count(db)
    except _PROBLEMS as error:
        problems.append(f"{database.DATABASE}: {error}")
    used = providers(root)
    found = _differences(used, texts, problems)
    if used.problem is not None:
        problems.append(f"{database.STATE}: {used.problem}")
    if used.is_changed and texts:
        problems.append(
            tr(
                "the provider in use is {in_use}: its vectors are still to be made",
                in_use=used.in_use and used.in_use.name,
            )
        )
    folders = _folders(root, used)
    health = AngelHealthLook(
        orphans=0,
        stale=0,
        bytes=size_of(root / database.CENTER) + sum(folder.bytes for folder in folders),
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
        health = structs.replace(health, **_lists(root, used, found, problems))
    return Look([], health)


def _lists(
    root: Path, used: Providers, found: Differences | None, problems: list[str]
) -> dict[str, list[RecordLook] | list[VectorLook]]:
    """Return the lists of records and vectors, as far as they can be read; what cannot is added to ``problems``."""
    records: list[RecordLook] = []
    vectors: list[VectorLook] = []
    try:
        with database.reading(root) as db:
            records = lists.record_looks(db, found)
    except _PROBLEMS as error:
        _add_once(problems, f"{database.DATABASE}: {error}")
    if used.in_use is not None and found is not None:
        try:
            vectors = lists.vector_looks(used.in_use, found)
        except _PROBLEMS as error:
            _add_once(problems, f"{used.in_use.path.name}: {error}")
    return {"record_list": records, "vector_list": vectors}


def _add_once(problems: list[str], problem: str) -> None:
    if problem not in problems:
        problems.append(problem)


def _differences(used: Providers, texts: dict[str, str] | None, problems: list[str]) -> Differences | None:
    if used.in_use is None or texts is None:
        return None
    try:
        return differences(used.in_use, texts)
    except _PROBLEMS as error:
        problems.append(f"{used.in_use.path.name}: {error}")
        return None


def _folders(root: Path, used: Providers) -> list[ProviderLook]:
    """Return every provider's folder with how many vectors of notes it has, its size, and what it is."""
    leftovers = {folder.name for folder in used.leftovers}
    looks = []
    for one in database.provider_folders(root):
        use = tr("of the last sync")
        if used.in_use is not None and one.name == used.in_use.name:
            use = tr("in use")
        elif one.name in leftovers:
            use = tr("left over")
        looks.append(ProviderLook(provider=one.name, vectors=entries_of(one), bytes=size_of(one.path), use=use))
    return looks
