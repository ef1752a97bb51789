"""The rows of a base and its items, as its index and its files tell them (``docs/findings.md``, "Adopting")."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import msgspec

from checks.cherry_v2.index_file import path_problem
from regraft import identity
from regraft.formats.cherry_v2.catalog import MAX_NOTE_UNITS
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.defaults import Settings
from regraft.formats.cherry_v2.item_data import data_of
from regraft.language import joined
from regraft.names import PROCESSED_EXTENSIONS
from regraft.report.notices import MISSING_MODEL
from regraft.text import counted, is_blank, utf16_cut, whole
from repair.cherry_v2.adopt.folder import FoundMaterial, OrphanFolder
from repair.cherry_v2.rules.evidence import Evidence, Snapshot
from repair.cherry_v2.rules.items import INTERRUPTED

#: What the block of every snapshot has, so that no other Markdown file is taken for one.
_BLOCK_FIELDS = {"type", "title", "timestamp"}
#: What a person calls the items of each type.
_NOUNS = {"directory": "folder", "file": "file", "url": "url", "note": "note"}
_NUMBERED = re.compile(r"_\d+$")
_ABSOLUTE = re.compile(r"/|\\\\|[A-Za-z]:[/\\]")


class Container(msgspec.Struct, frozen=True):
    """A folder that the catalog lists: the id of its item, and the path of the original folder, if that is known."""

    item: str
    source: str | None = None

    def source_of(self, rest: str) -> str | None:
        """Return the path of an original file by its path in the folder.

        None where the folder's path is not absolute, and where the name may have got a number to be free.
        """
        if self.source is None or _ABSOLUTE.match(self.source) is None or _NUMBERED.search(PurePosixPath(rest).stem):
            return None
        separator = "\\" if "\\" in self.source and "/" not in self.source else "/"
        return f"{self.source.rstrip(separator)}{separator}{rest.replace('/', separator)}"


def base_row(folder: OrphanFolder, items: list[Row], model: str | None) -> Row:
    """Return the row of a base. One with vectors of which nobody says the model is a failed one."""
    settings = Settings()
    is_failed = model is None and folder.dimensions is not None
    return {
        "id": folder.base,
        "name": _name(folder, items),
        "dimensions": folder.dimensions,
        "embedding_model_id": model if folder.dimensions is not None else None,
        "status": "failed" if is_failed else "completed",
        "error": MISSING_MODEL if is_failed else None,
        "chunk_size": settings.chunk_size,
        "chunk_overlap": settings.chunk_overlap,
        "chunk_strategy": settings.chunk_strategy,
        "chunk_separator": settings.chunk_separator,
        "created_at": folder.created_at,
        "updated_at": folder.updated_at,
    }


def _name(folder: OrphanFolder, items: list[Row]) -> str:
    """Return the name of the only folder of a base, else its id."""
    folders = [data_of(item)["relativePath"] for item in items if item["type"] == "directory"]
    return folders[0] if len(folders) == 1 and not is_blank(folders[0]) else folder.base


def item_rows(folder: OrphanFolder, evidence: Evidence) -> Iterator[Row]:
    """Yield the rows of a base's items: a folder before its files, materials in their order, then files without one.

    The id of an item tells when it was made. A material of which every body has its vector, or of a base without any,
    is that of a completed item.
    """
    builder = _Builder(folder, evidence, {}, ())
    for material in folder.materials:
        yield from builder.of_material(material)
    for path, changed_at in sorted(folder.files.items()):
        if path not in builder.used and path_problem(path.encode("utf-8", "surrogatepass")) is None:
            key = identity.item_id(folder.base, path, folder.created_at)
            yield from builder.item(key, path, (folder.created_at, changed_at), is_whole=False)


def listed_kinds(items: Iterable[Row]) -> str:
    """Return how many items there are of each type, for a person; empty where there are none."""
    kinds = Counter(item["type"] for item in items)
    return joined(counted(kinds[kind], noun) for kind, noun in _NOUNS.items() if kinds[kind])


def material_rows(
    folder: OrphanFolder,
    evidence: Evidence,
    materials: Iterable[FoundMaterial],
    containers: Mapping[str, Container],
    named: Iterable[str],
) -> Iterator[Row]:
    """Yield the rows of the items of some materials, each behind that of its folder where this is new.

    Args:
        folder: the base.
        evidence: its files.
        materials: those whose items have no row.
        containers: folders that the catalog lists, by their prefixes below ``raw/``.
        named: files below ``raw/`` that items of the catalog name.
    """
    builder = _Builder(folder, evidence, containers, named)
    for material in materials:
        yield from builder.of_material(material)


class _Builder:
    def __init__(
        self, folder: OrphanFolder, evidence: Evidence, containers: Mapping[str, Container], named: Iterable[str]
    ) -> None:
        self._folder, self._evidence = folder, evidence
        #: By the first segment of the paths of their files.
        self._containers = dict(containers)
        #: Files below ``raw/`` that an item names.
        self.used: set[str] = {*named, *(material.path for material in folder.materials)}
        self._originals = _originals(folder, self.used)
        self.used.update(self._originals.values())

    def of_material(self, material: FoundMaterial) -> Iterator[Row]:
        """Yield the row of the item that a material was made of."""
        times = identity.time_of(material.item) or material.created_at, material.updated_at
        yield from self.item(material.item, material.path, times, is_whole=self._folder.is_whole(material.item))

    def item(self, key: str, path: str, times: tuple[int, int], *, is_whole: bool) -> Iterator[Row]:
        """Yield the row of an item, behind that of its folder where this comes first."""
        prefix, slash, rest = path.partition("/")
        container = None
        if slash:
            container = self._containers.get(prefix)
            if container is None:
                container = Container(identity.item_id(self._folder.base, f"{prefix}/", times[0]))
                self._containers[prefix] = container
                data = {"source": prefix, "relativePath": prefix}
                yield self._row(container.item, "directory", data, times, is_whole=True)
        kind, data = self._content(path)
        source = None if container is None else container.source_of(rest)
        if source is not None and kind == "file":
            data["source"] = source
        group = None if container is None else container.item
        yield self._row(key, kind, data, times, is_whole=is_whole, group=group)

    def _row(
        self, key: str, kind: str, data: Row, times: tuple[int, int], *, is_whole: bool, group: str | None = None
    ) -> Row:
        texts = {name: whole(value) for name, value in data.items()}
        return {
            "id": key,
            "base_id": self._folder.base,
            "group_id": group,
            "type": kind,
            "data": json.dumps(texts, ensure_ascii=False, separators=(",", ":")),
            "status": "completed" if is_whole else "failed",
            "error": None if is_whole else INTERRUPTED,
            "created_at": times[0],
            "updated_at": times[1],
        }

    def _content(self, path: str) -> tuple[str, dict[str, Any]]:
        """Return type and data of the item whose path below ``raw/`` that is."""
        snapshot = self._evidence.snapshot(path) if "/" not in path and path.endswith(".md") else None
        if snapshot is not None and snapshot.fields.keys() >= _BLOCK_FIELDS:
            found = _of_snapshot(snapshot)
            if found is not None:
                kind, data = found
                return kind, {**data, "relativePath": path}
        original = self._originals.get(path)
        if original is not None:
            return "file", {"source": original, "relativePath": original, "indexedRelativePath": path}
        return "file", {"source": path, "relativePath": path}


def _of_snapshot(snapshot: Snapshot) -> tuple[str, dict[str, str]] | None:
    fields = snapshot.fields
    address = fields.get("resource", "")
    if fields["type"] == "URL" and not is_blank(address):
        return "url", {"source": address, "url": address}
    if fields["type"] != "Note":
        return None
    text = utf16_cut(snapshot.body, MAX_NOTE_UNITS)
    source = next((one for one in (fields["title"], text) if not is_blank(one)), None)
    return None if source is None else ("note", {"source": source, "content": text})


def _originals(folder: OrphanFolder, used: set[str]) -> dict[str, str]:
    """Return the files that a file processor made other ones of, by the paths of those that were indexed instead."""
    materials = {material.path for material in folder.materials}
    originals: dict[str, str] = {}
    for path in folder.files:
        if path in used or PurePosixPath(path).suffix.lower() not in PROCESSED_EXTENSIONS:
            continue
        made = (f"{path.rpartition('.')[0]}.md", f"{path}.md")
        found = next((one for one in made if one in materials), None)
        if found is not None:
            originals.setdefault(found, path)
    return originals
