"""Valid v2 libraries: a catalog, and bases with their indexes and raw files (``docs/formats/library.md``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st

from regraft import areas, identity
from regraft.clock import iso_time
from regraft.formats.cherry_v2.catalog import RERANK, BaseRecord, BaseRow, ItemRow, ModelRow, ProviderRow, write_catalog
from regraft.formats.cherry_v2.index import BODY_SEPARATOR, IndexStore
from regraft.formats.cherry_v2.layout import CATALOG_FILE, INDEX_FILE, KNOWLEDGE_FOLDER, RAW_FOLDER
from regraft.formats.cherry_v2.okf import note_snapshot, url_snapshot
from regraft.records import replace
from regraft.report.notices import MISSING_MODEL, MISSING_STORE, NOT_MIGRATED
from regraft.testing.materials import MaterialInput, materials
from regraft.testing.texts import texts, vectors
from regraft.text import trim, utf16_len

_NOW_MS = 1_795_262_400_000
_TIMES = st.integers(1_600_000_000_000, _NOW_MS)
_PROVIDER = ProviderRow("acme", "Acme", True)
_MODEL = ModelRow(id="acme::embed-3", provider_id="acme", model_id="embed-3", name="Embed 3", group="embed")
_RERANK_MODEL = ModelRow(
    id="acme::rerank-1", provider_id="acme", model_id="rerank-1", name="Rerank 1", group=None, capabilities=RERANK
)
_STEMS = ("a", "Report", "名字", "é", "e\u0301", "🎉", "a b", "_.cherry", "100%_")
_ERRORS = ("indexing_interrupted", "the page is gone (404)")
#: What a base needs, so that any damage can be planted in it.
_EVERYTHING = ("directory", "file", "url", "note", "file")


@dataclass(frozen=True, kw_only=True)
class BaseCase:
    """One base: what the catalog has of it, what its index holds, and its files by their paths below ``raw/``.

    A failed base has no index. Of two materials with one body, the first one's vector is what the index keeps.
    """

    record: BaseRecord
    items: tuple[ItemRow, ...] = ()
    materials: tuple[MaterialInput, ...] = ()
    raw: dict[str, bytes] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Return the base's id, which is its folder's name."""
        return self.record.base.id

    def write(self, folder: Path) -> None:
        """Write the base's folder; one of a failed base without a raw file is not made."""
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
        """Write the library to a folder, which does not exist yet, and return it (``docs/formats/library.md``)."""
        bases = folder / KNOWLEDGE_FOLDER
        with areas.opened(folder):
            bases.mkdir(parents=True)
            write_catalog(folder / CATALOG_FILE, [(base.record, base.items) for base in self.bases])
            for base in self.bases:
                base.write(bases / base.id)
        return folder


@st.composite
def libraries(draw: st.DrawFn, *, max_bases: int = 3, whole: bool = False) -> LibraryCase:
    """Return valid v2 libraries: an audit has nothing graver than notes to say of them.

    Bases are searched by vectors or by words alone, or have failed. Items are of every type and of every status that
    they can be left in; folders hold folders, and some are tombstones.

    Args:
        max_bases: how many there are at most, 1 at least.
        whole: the first base has vectors and something of everything, as ``damaged_libraries`` needs it.
    """
    kinds = draw(st.lists(st.sampled_from(["vectors", "words", "failed"]), min_size=1, max_size=max_bases))
    if whole:
        kinds[0] = "vectors"
    return LibraryCase(
        tuple(
            _Drawn(draw, number, kind).base(_EVERYTHING if whole and number == 0 else ())
            for number, kind in enumerate(kinds)
        )
    )


class _Drawn:
    """Draws the parts of one base."""

    def __init__(self, draw: st.DrawFn, number: int, kind: str) -> None:
        self._draw = draw
        self._legacy_id = f"base {number}"
        self._id = identity.base_id(self._legacy_id)
        self._kind = kind
        self._dimensions = draw(st.integers(1, 8))
        self._items: list[ItemRow] = []
        self._materials: list[MaterialInput] = []
        self._raw: dict[str, bytes] = {}
        #: Folders that items can be in, with what the paths of their files begin with.
        self._folders: dict[str, str] = {}

    def base(self, needed: Iterable[str]) -> BaseCase:
        for kind in needed:
            self._item(kind, is_needed=True)
        for kind in self._draw(st.lists(st.sampled_from(["file", "url", "note", "directory"]), max_size=5)):
            self._item(kind)
        record = BaseRecord(base=self._row(), models=(_MODEL, _RERANK_MODEL), providers=(_PROVIDER,), now_ms=_NOW_MS)
        return BaseCase(record=record, items=tuple(self._items), materials=tuple(self._materials), raw=self._raw)

    def _row(self) -> BaseRow:
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
        """Add an item; one that is needed is completed, with its file and its text."""
        draw = self._draw
        created = draw(_TIMES)
        item_id = identity.item_id(self._legacy_id, str(len(self._items)), created)
        folder = draw(st.sampled_from([None, *self._folders]))
        status = "completed" if is_needed else draw(st.sampled_from(["completed", "idle", "failed", "deleting"]))
        error = draw(st.sampled_from(_ERRORS)) if status == "failed" else None
        # The index of a failed base is not there.
        is_indexed = status == "completed" and self._kind != "failed"
        if kind == "directory":
            data = self._directory(item_id, status)
            error = error and draw(st.sampled_from([error, NOT_MIGRATED]))
        elif kind == "file":
            data = self._file(item_id, folder, is_indexed, is_needed)
        else:
            # A page or a note may be completed and not be in the index.
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
        data = {"source": f"/home/user/{self._text()}"}
        prefix = ""
        if self._draw(st.booleans()):
            data["relativePath"] = f"folder {len(self._items)}"
            prefix = f"{data['relativePath']}/"
        # A folder that failed or is being deleted has nothing inside.
        if status == "completed":
            self._folders[item_id] = prefix
        return data

    def _file(self, item_id: str, folder: str | None, is_indexed: bool, is_needed: bool) -> dict[str, str]:
        path = self._path(folder, ".pdf")
        if folder is not None and not is_needed and self._draw(st.booleans()):
            path = item_id  # virtual: the files of a migrated folder are not in raw/
        else:
            self._raw[path] = self._draw(st.binary(max_size=20))
        data = {"source": f"/home/user/{self._text()}", "relativePath": path}
        if path != item_id and self._draw(st.booleans()):
            # What a file processor made of it.
            path = data["indexedRelativePath"] = f"{path}.md"
            self._raw[path] = self._draw(texts()).encode()
        if is_indexed:
            self._add_material(item_id, path, is_needed)
        return data

    def _page_or_note(
        self, kind: str, item_id: str, folder: str | None, is_indexed: bool, is_needed: bool
    ) -> dict[str, str]:
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
        """Return a text that is not blank."""
        return f"{self._draw(texts(max_size=12))} {len(self._items)}"

    def _path(self, folder: str | None, extension: str) -> str:
        """Return a path that no other item has, also where case and normalisation are ignored."""
        stem = self._draw(st.sampled_from(_STEMS))
        return f"{self._folders.get(folder or '', '')}{stem} {len(self._items)}{extension}"

    # --- texts -----------------------------------------------------------------------------------------------------

    def _add_material(self, item_id: str, path: str, is_needed: bool) -> str:
        """Add a material and return its content."""
        material = self._draw(materials(self._dimensions, degenerate=False))
        material = replace(material, material_id=item_id, relative_path=path)
        if is_needed:
            material = self._with_body(material, f"What item {len(self._items)} says.")
        if self._kind == "words":
            material = replace(material, embeddings={})
        self._materials.append(material)
        return material.content

    def _with_body(self, material: MaterialInput, body: str) -> MaterialInput:
        """Add a body that no other material has."""
        start = utf16_len(material.content + BODY_SEPARATOR)
        vector = self._draw(vectors(self._dimensions, degenerate=False))
        return replace(
            material,
            content=material.content + BODY_SEPARATOR + body,
            units=(*material.units, (start, start + utf16_len(body))),
            embeddings={**material.embeddings, identity.text_hash(body): vector},
        )
