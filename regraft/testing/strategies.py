"""Hypothesis strategies for texts, vectors, materials, v2 libraries and v1 knowledge bases (``docs/testing.md``)."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from regraft import identity
from regraft.disk import sqlite, writable
from regraft.disk.file_paths import vector_file_name
from regraft.formats.cherry_v2.catalog import RERANK, BaseRecord, BaseRow, ItemRow, ModelRow, ProviderRow, write_catalog
from regraft.formats.cherry_v2.index import BODY_SEPARATOR, IndexStore
from regraft.formats.cherry_v2.layout import CATALOG_FILE, INDEX_FILE, KNOWLEDGE_FOLDER, RAW_FOLDER
from regraft.formats.okf import note_snapshot, url_snapshot
from regraft.identity import iso_time, replace
from regraft.report.notices import MISSING_MODEL, MISSING_STORE, NOT_MIGRATED
from regraft.text import trim, utf16_len

#: Texts that offsets, hashes and full-text search often handle wrongly: surrogate pairs, zero-width characters,
#: scripts.
_STUMBLES = (
    "🎉", "👩‍👩‍👧‍👦", "𝒳", "\U0010ffff", "中文分词", "한국어", "日本語テキスト", "עברית", "e\u0301", "é", "ﬁ", "ß",
    "\u200b", "\u2028", "\ufeff", "\x85", "\u00a0", "\t", "\n", "\r\n", "\n\n", "a", "ab", "abc", "%", "_", "\\", '"',
    "'", "AND", "NOT", "*", "---\n", "# heading\n",
)  # fmt: skip
#: Vectors with a direction have no number above this, and a length of at least its reciprocal.
_LONGEST = 2.0**40


def texts(*, min_size: int = 0, max_size: int = 40) -> st.SearchStrategy[str]:
    """Generate texts that UTF-8 can represent: no unpaired surrogates, no NUL. Sizes are approximate."""
    plain = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=min_size, max_size=max_size)
    pieces = st.lists(st.sampled_from(_STUMBLES), min_size=min_size, max_size=max(min_size, max_size // 3))
    return st.one_of(plain, pieces.map("".join))


def javascript_texts(*, max_size: int = 40) -> st.SearchStrategy[str]:
    """Generate texts as JavaScript can hold them: with unpaired surrogates, as left by cutting inside an emoji."""
    halves = st.sampled_from(["\ud83c", "\udf89", "\ud800", "\udfff"])
    return st.lists(st.one_of(texts(max_size=max_size), halves), max_size=4).map("".join)


def vectors(dimensions: int, *, degenerate: bool = True) -> st.SearchStrategy[bytes]:
    """Generate raw little-endian float32 vectors of ``4 × dimensions`` bytes.

    With ``degenerate``, some vectors have no direction: zero, NaN of any payload, infinite, or with a square beyond
    single precision. A store must keep them byte for byte (``docs/formats/index.md``, "What always holds").
    """

    def packed(number: st.SearchStrategy[float]) -> st.SearchStrategy[bytes]:
        """Generate the bytes of vectors whose numbers are drawn from a strategy."""
        numbers = st.lists(number, min_size=dimensions, max_size=dimensions)
        return numbers.map(lambda found: struct.pack(f"<{dimensions}f", *found))

    directed = packed(st.floats(-_LONGEST, _LONGEST, width=32)).filter(
        lambda vector: math.hypot(*struct.unpack(f"<{dimensions}f", vector)) > 1 / _LONGEST
    )
    if not degenerate:
        return directed
    usual = packed(st.floats(width=32, allow_nan=False, allow_infinity=False))
    anything = st.binary(min_size=4 * dimensions, max_size=4 * dimensions)
    # NaN of two payloads, infinity, the smallest number.
    odd = st.sampled_from([b"\x00\x00\xc0\x7f", b"\x2a\x00\xc0\xff", b"\x00\x00\x80\x7f", b"\x01\x00\x00\x00"])
    same = odd.map(lambda number: number * dimensions)
    return st.one_of(directed, directed, usual, anything, same, st.just(bytes(4 * dimensions)))


# --- materials -----------------------------------------------------------------------------------------------------


_PATHS = (
    "a.md",
    "b.md",
    "c.pdf",
    "notes/n.md",
    "notes/deep/x.txt",
    "名字.md",
    "é.md",
    "🎉.md",
    "_.cherry",
    "a b.md",
)
_IDS = tuple(f"item-{number}" for number in range(8))
#: All blank: any other text between two units is a part that no unit covers (``unit.missing``).
_SEPARATORS = ("", "\n\n", " ", "\u3000")
#: Bodies that several materials share.
_SHARED = ("one", "two", "three words here", "🎉", "")


@dataclass(frozen=True)
class MaterialInput:
    """A material as a store gets it. ``units`` are offsets in UTF-16 units of ``content``, in order.

    ``embeddings`` has a vector for the hash of every unit's body.
    """

    material_id: str
    relative_path: str
    content: str
    units: tuple[tuple[int, int], ...]
    embeddings: dict[str, bytes]

    @property
    def bodies(self) -> list[str]:
        """The body of every unit: the slice of the content that JavaScript would return."""
        wide = self.content.encode("utf-16-le")
        return [wide[2 * start : 2 * end].decode("utf-16-le") for start, end in self.units]


@st.composite
def materials(draw: st.DrawFn, dimensions: int = 4, *, degenerate: bool = True) -> MaterialInput:
    """Generate valid materials with vectors of ``dimensions`` numbers. Ids, paths and texts often collide.

    ``degenerate``: see :func:`~regraft.testing.strategies.vectors`.
    """
    bodies = draw(st.lists(st.one_of(st.sampled_from(_SHARED), texts(max_size=12)), max_size=5))
    separator = draw(st.sampled_from(_SEPARATORS))
    parts: list[str] = []
    units: list[tuple[int, int]] = []
    place = 0
    for body in bodies:
        if parts:
            parts.append(separator)
            place += utf16_len(separator)
        parts.append(body)
        units.append((place, place + utf16_len(body)))
        place += utf16_len(body)
    return MaterialInput(
        material_id=draw(st.sampled_from(_IDS)),
        relative_path=draw(st.sampled_from(_PATHS)),
        content="".join(parts),
        units=tuple(units),
        embeddings={identity.text_hash(body): draw(vectors(dimensions, degenerate=degenerate)) for body in bodies},
    )


# --- v2 libraries --------------------------------------------------------------------------------------------------


_NOW_MS = 1_795_262_400_000
_TIMES = st.integers(1_600_000_000_000, _NOW_MS)
_PROVIDER = ProviderRow("acme", "Acme", True)
_MODEL = ModelRow(id="acme::embed-3", provider_id="acme", model_id="embed-3", name="Embed 3", group="embed")
_RERANK_MODEL = ModelRow(
    id="acme::rerank-1", provider_id="acme", model_id="rerank-1", name="Rerank 1", group=None, capabilities=RERANK
)
_STEMS = ("a", "Report", "名字", "é", "e\u0301", "🎉", "a b", "_.cherry", "100%_")
_ERRORS = ("indexing_interrupted", "the page is gone (404)")
#: Items that a base must have so that every kind of damage applies to it.
_EVERYTHING = ("directory", "file", "url", "note", "file")


@dataclass(frozen=True, kw_only=True)
class BaseCase:
    """A base: its catalog rows, the content of its index, and its files by path below ``raw/``.

    A failed base has no index. If two materials share a body, the index has the vector of the first.
    """

    record: BaseRecord
    items: tuple[ItemRow, ...] = ()
    materials: tuple[MaterialInput, ...] = ()
    raw: dict[str, bytes] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Id of the base, which is the name of its folder."""
        return self.record.base.id

    def write(self, folder: Path) -> None:
        """Write the folder of the base. A failed base without raw files has no folder."""
        for path, content in self.raw.items():
            file = folder / RAW_FOLDER / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        base = self.record.base
        if base.status == "failed":
            return
        index = folder / INDEX_FILE
        index.parent.mkdir(parents=True)
        has_model = base.embedding_model_id is not None
        with IndexStore(index, base.id, create=True) as store:
            for one in self.materials:
                store.rebuild_material(
                    one.material_id,
                    one.relative_path,
                    one.content,
                    one.units,
                    one.embeddings,
                    _NOW_MS,
                    has_model=has_model,
                )


@dataclass(frozen=True)
class LibraryCase:
    """A whole v2 library. :meth:`write` puts it on disk."""

    bases: tuple[BaseCase, ...]

    def write(self, folder: Path) -> Path:
        """Write the library to a folder that does not exist yet, and return it (``docs/formats/library.md``)."""
        bases = folder / KNOWLEDGE_FOLDER
        with writable.allow_writes(folder):
            bases.mkdir(parents=True)
            write_catalog(folder / CATALOG_FILE, [(base.record, base.items) for base in self.bases])
            for base in self.bases:
                base.write(bases / base.id)
        return folder


@st.composite
def libraries(draw: st.DrawFn, *, max_bases: int = 3, whole: bool = False) -> LibraryCase:
    """Generate valid v2 libraries, for which an audit reports nothing more severe than notes.

    Bases have vectors, or words alone, or have failed. Items have every type, and every status that items can be left
    in. Folders contain folders, and some are tombstones.

    Args:
        max_bases: maximum number of bases, at least 1.
        whole: give the first base vectors and an item of every type, as ``damaged_libraries`` needs it.
    """
    kinds = draw(st.lists(st.sampled_from(["vectors", "words", "failed"]), min_size=1, max_size=max_bases))
    if whole:
        kinds[0] = "vectors"
    return LibraryCase(
        tuple(
            _BaseDrawer(draw, number, kind).base(_EVERYTHING if whole and number == 0 else ())
            for number, kind in enumerate(kinds)
        )
    )


class _BaseDrawer:
    """Draws one base."""

    def __init__(self, draw: st.DrawFn, number: int, kind: str) -> None:
        self._draw = draw
        self._legacy_id = f"base {number}"
        self._id = identity.base_id(self._legacy_id)
        self._kind = kind
        self._dimensions = draw(st.integers(1, 8))
        self._items: list[ItemRow] = []
        self._materials: list[MaterialInput] = []
        self._raw: dict[str, bytes] = {}
        #: Folders that items can be in, with the path prefix of their files.
        self._folders: dict[str, str] = {}

    def base(self, needed: Iterable[str]) -> BaseCase:
        """Draw the base, with a completed item of each needed type (``file``, ``url``…), and further items."""
        for kind in needed:
            self._item(kind, is_needed=True)
        for kind in self._draw(st.lists(st.sampled_from(["file", "url", "note", "directory"]), max_size=5)):
            self._item(kind)
        record = BaseRecord(base=self._row(), models=(_MODEL, _RERANK_MODEL), providers=(_PROVIDER,), now_ms=_NOW_MS)
        return BaseCase(record=record, items=tuple(self._items), materials=tuple(self._materials), raw=self._raw)

    def _row(self) -> BaseRow:
        """Draw the catalog row of the base."""
        draw = self._draw
        has_model = self._kind == "vectors" or (self._kind == "failed" and draw(st.booleans()))
        size = draw(st.integers(1, 2000))
        return BaseRow(
            id=self._id,
            name=trim(f"{self._legacy_id} {draw(texts(max_size=12))}"),
            dimensions=self._dimensions if has_model else None,
            embedding_model_id=_MODEL.id if has_model else None,
            status="failed" if self._kind == "failed" else "completed",
            error=draw(st.sampled_from([MISSING_MODEL, MISSING_STORE])) if self._kind == "failed" else None,
            rerank_model_id=draw(st.sampled_from([None, _RERANK_MODEL.id])),
            file_processor_id=None,
            chunk_size=size,
            chunk_overlap=draw(st.integers(0, size - 1)),
            threshold=draw(st.none() | st.floats(0, 1)),
            document_count=draw(st.none() | st.integers(1, 50)),
            created_at=draw(_TIMES),
            updated_at=draw(_TIMES),
        )

    # --- items -----------------------------------------------------------------------------------------------------

    def _item(self, kind: str, *, is_needed: bool = False) -> None:
        """Draw an item of the type ``kind`` and add it; with ``is_needed``, a completed one with a file and a text."""
        draw = self._draw
        created = draw(_TIMES)
        item_id = identity.item_id(self._legacy_id, str(len(self._items)), created)
        folder = draw(st.sampled_from([None, *self._folders]))
        status = "completed" if is_needed else draw(st.sampled_from(["completed", "idle", "failed", "deleting"]))
        error = draw(st.sampled_from(_ERRORS)) if status == "failed" else None
        # A failed base has no index.
        is_indexed = status == "completed" and self._kind != "failed"
        if kind == "directory":
            data = self._directory(item_id, status)
            error = error and draw(st.sampled_from([error, NOT_MIGRATED]))
        elif kind == "file":
            data = self._file(item_id, folder, is_indexed, is_needed)
        else:
            # Pages and notes may be completed without being indexed.
            is_indexed = is_needed or (is_indexed and draw(st.booleans()))
            data = self._page_or_note(kind, item_id, folder, is_indexed, is_needed)
        self._items.append(
            ItemRow(
                id=item_id,
                base_id=self._id,
                group_id=folder,
                type=kind,
                data=data,
                status=status,
                error=error,
                created_at=created,
                updated_at=draw(_TIMES),
            )
        )

    def _directory(self, item_id: str, status: str) -> dict[str, str]:
        """Draw the column ``data`` of a folder, and let later items be in it if it is completed."""
        data = {"source": f"/home/user/{self._text()}"}
        prefix = ""
        if self._draw(st.booleans()):
            data["relativePath"] = f"folder {len(self._items)}"
            prefix = f"{data['relativePath']}/"
        # A folder that failed or is being deleted is empty.
        if status == "completed":
            self._folders[item_id] = prefix
        return data

    def _file(self, item_id: str, folder: str | None, is_indexed: bool, is_needed: bool) -> dict[str, str]:
        """Draw the column ``data`` of a file item, the file itself, and its text if it is indexed.

        ``folder`` is the id of the folder item that it is in.
        """
        path = self._path(folder, ".pdf")
        if folder is not None and not is_needed and self._draw(st.booleans()):
            path = item_id  # virtual: the files of a migrated folder are not in raw/
        else:
            self._raw[path] = self._draw(st.binary(max_size=20))
        data = {"source": f"/home/user/{self._text()}", "relativePath": path}
        if path != item_id and self._draw(st.booleans()):
            # The output of a file processor.
            path = data["indexedRelativePath"] = f"{path}.md"
            self._raw[path] = self._draw(texts()).encode()
        if is_indexed:
            self._add_material(item_id, path, is_needed)
        return data

    def _page_or_note(
        self, kind: str, item_id: str, folder: str | None, is_indexed: bool, is_needed: bool
    ) -> dict[str, str]:
        """Draw the column ``data`` of a url or note, and its text and snapshot if it is indexed.

        ``folder`` is the id of the folder item that it is in.
        """
        source = f"https://example.com/{len(self._items)}" if kind == "url" else self._text()
        path = self._path(folder, ".md")
        content = self._add_material(item_id, path, is_needed) if is_indexed else self._draw(texts())
        data = {"source": source, "url": source} if kind == "url" else {"source": source, "content": content}
        if is_indexed:
            data["relativePath"] = path
            snapshot = url_snapshot(source, content) if kind == "url" else note_snapshot(source)
            self._raw[path] = (snapshot.block(iso_time(_NOW_MS)) + content).encode()
        return data

    def _text(self) -> str:
        """Draw a text that is not blank."""
        return f"{self._draw(texts(max_size=12))} {len(self._items)}"

    def _path(self, folder: str | None, extension: str) -> str:
        """Draw a path below ``raw/`` for a file in a folder item; no other has it, in any case and normalization."""
        stem = self._draw(st.sampled_from(_STEMS))
        return f"{self._folders.get(folder or '', '')}{stem} {len(self._items)}{extension}"

    # --- texts -----------------------------------------------------------------------------------------------------

    def _add_material(self, item_id: str, path: str, is_needed: bool) -> str:
        """Draw a material for an item and add it; return its content. With ``is_needed`` it has a body of its own."""
        material = self._draw(materials(self._dimensions, degenerate=False))
        material = replace(material, material_id=item_id, relative_path=path)
        if is_needed:
            # A body that no other material has.
            body = f"What item {len(self._items)} says."
            start = utf16_len(material.content + BODY_SEPARATOR)
            vector = self._draw(vectors(self._dimensions, degenerate=False))
            material = replace(
                material,
                content=material.content + BODY_SEPARATOR + body,
                units=(*material.units, (start, start + utf16_len(body))),
                embeddings={**material.embeddings, identity.text_hash(body): vector},
            )
        if self._kind == "words":
            material = replace(material, embeddings={})
        self._materials.append(material)
        return material.content


# --- v1 knowledge bases --------------------------------------------------------------------------------------------


_V1_MODEL = {"id": "embed-3", "provider": "acme", "name": "Embed 3", "group": "embed"}
_PROVIDERS = [{"id": "acme", "name": "Acme", "enabled": True, "models": [_V1_MODEL]}]
_V1_TIMES = st.integers(1_600_000_000_000, 1_800_000_000_000)
_SCHEMA = """CREATE TABLE vectors (
    id TEXT PRIMARY KEY, pageContent TEXT UNIQUE, uniqueLoaderId TEXT NOT NULL, source TEXT NOT NULL,
    vector F32_BLOB, metadata TEXT)"""


@dataclass(frozen=True, kw_only=True)
class V1Row:
    """A row of a v1 vector file."""

    id: str
    body: str
    loader_id: str
    source: str
    vector: bytes


@dataclass(frozen=True)
class V1Case:
    """A whole v1 knowledge base: state by slice, Dexie's tables, uploads, and rows by base id."""

    redux: dict[str, Any]
    tables: dict[str, list[dict[str, Any]]]
    uploads: dict[str, bytes] = field(default_factory=dict)
    rows: dict[str, list[V1Row]] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write an export folder that does not exist yet, and return it (``docs/formats/v1.md``, "Export folder")."""
        (folder / "dexie").mkdir(parents=True)
        # JavaScript writes an unpaired surrogate as an escape; so does Python.
        (folder / "redux.json").write_text(json.dumps(self.redux), "utf-8")
        for name, table in self.tables.items():
            (folder / "dexie" / f"{name}.json").write_text(json.dumps(table), "utf-8")
        for place in ("Files", "KnowledgeBase"):
            (folder / place).mkdir()
        for name, raw in self.uploads.items():
            (folder / "Files" / name).write_bytes(raw)
        with writable.allow_writes(folder):
            for base_id, rows in self.rows.items():
                path = folder / "KnowledgeBase" / vector_file_name(base_id)
                with sqlite.open_writable(path, create=True) as db:
                    db.execute(_SCHEMA)
                    db.executemany(
                        "INSERT INTO vectors (id, pageContent, uniqueLoaderId, source, vector) VALUES (?, ?, ?, ?, ?)",
                        [(row.id, row.body, row.loader_id, row.source, row.vector) for row in rows],
                    )
        return folder


@st.composite
def v1_cases(draw: st.DrawFn, *, dimensions: int = 4, max_bases: int = 3) -> V1Case:
    """Generate valid v1 knowledge bases: every base has an existing model and a readable vector file.

    Bases have files with uploads, urls and notes, in any order. Names and texts may have unpaired surrogates, as
    JavaScript leaves them.
    """
    drawn = _V1Drawer(draw, dimensions)
    bases = [drawn.base(f"base {number}") for number in range(draw(st.integers(1, max_bases)))]
    return V1Case(
        redux={"knowledge": {"bases": bases}, "llm": {"providers": _PROVIDERS}},
        tables={"files": [], "knowledge_notes": drawn.notes},
        uploads=drawn.uploads,
        rows=drawn.rows,
    )


class _V1Drawer:
    """Draws one case."""

    def __init__(self, draw: st.DrawFn, dimensions: int) -> None:
        self._draw = draw
        self._dimensions = dimensions
        self.notes: list[dict[str, Any]] = []
        self.uploads: dict[str, bytes] = {}
        self.rows: dict[str, list[V1Row]] = {}

    def base(self, base_id: str) -> dict[str, Any]:
        """Draw a base: return it as Redux has it, and add the rows of its vector file, its notes and uploads."""
        kinds = self._draw(st.lists(st.sampled_from(["file", "url", "note"]), max_size=4))
        self.rows[base_id] = []
        items = [getattr(self, f"_{kind}")(f"{base_id} {place}") for place, kind in enumerate(kinds)]
        for item in items:
            loader_id = item["uniqueId"]
            for number in range(self._draw(st.integers(1, 4))):
                # Texts are unique within a base, because v1 leaves out duplicates.
                body = f"{self._draw(texts())} {loader_id} {number}"
                self.rows[base_id].append(self._row(loader_id, number, body, loader_id))
        if not self.rows[base_id]:
            # A base without usable vectors would fail, so it gets a row that no item owns.
            self.rows[base_id].append(self._row("left", 0, "left over", "note"))
        return {
            "id": base_id,
            "name": self._draw(javascript_texts(max_size=12)) + base_id,
            "model": _V1_MODEL,
            "dimensions": self._dimensions,
            "created_at": self._draw(_V1_TIMES),
            "updated_at": self._draw(_V1_TIMES),
            "version": 1,
            "items": items,
        }

    def _item(self, item_id: str, kind: str, loader_id: str, content: object) -> dict[str, Any]:
        """Draw an item of v1 as Redux has it; ``loader_id`` is that of its rows in the vector file."""
        return {
            "id": item_id,
            "type": kind,
            "content": content,
            "uniqueId": loader_id,
            "uniqueIds": [loader_id],
            "processingStatus": "completed",
            "created_at": self._draw(_V1_TIMES),
            "updated_at": self._draw(_V1_TIMES),
        }

    def _file(self, item_id: str) -> dict[str, Any]:
        """Draw a file item of v1, and add its upload."""
        file_id = hashlib.md5(item_id.encode(), usedforsecurity=False).hexdigest()
        raw = self._draw(st.binary(max_size=20))
        self.uploads[f"{file_id}.md"] = raw
        path = f"/home/user/Files/{file_id}.md"
        metadata = {
            "id": file_id,
            "name": f"{file_id}.md",
            "origin_name": self._draw(texts(min_size=1, max_size=12)) + ".md",
            "path": path,
            "ext": ".md",
            "type": "text",
            "created_at": "2025-03-14T12:00:00.000Z",
            "size": len(raw),
            "count": 1,
        }
        digest = hashlib.md5(path.encode(), usedforsecurity=False).hexdigest()
        return self._item(item_id, "file", f"LocalPathLoader_{digest}", metadata)

    def _url(self, item_id: str) -> dict[str, Any]:
        """Draw a url item of v1."""
        address = f"https://example.com/{item_id.replace(' ', '-')}"
        digest = hashlib.md5(address.encode(), usedforsecurity=False).hexdigest()
        return self._item(item_id, "url", f"WebLoader_{digest}", address)

    def _note(self, item_id: str) -> dict[str, Any]:
        """Draw a note item of v1, and add the note."""
        text = f"{self._draw(javascript_texts())} {item_id}"
        digest = hashlib.md5(item_id.encode(), usedforsecurity=False).hexdigest()
        self.notes.append({"id": item_id, "content": text})
        return self._item(item_id, "note", f"NoteLoader_{digest}", "")

    def _row(self, loader_id: str, number: int, body: str, source: str) -> V1Row:
        """Draw a row of a vector file: the chunk ``number`` of a loader, with the text ``body``."""
        return V1Row(
            id=f"{loader_id}_{number}",
            body=body,
            loader_id=loader_id,
            source=source,
            vector=self._draw(vectors(self._dimensions)),
        )
