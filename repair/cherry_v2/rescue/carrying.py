"""The files of a rescued base: its index, snapshots and uploads, each made beside and put into place by the engine.

Vectors and texts are carried by the same stages as in a migration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec
from msgspec import structs

from migrators.pipeline.carry import Origin, carry_base
from migrators.pipeline.drafts import Upload
from migrators.pipeline.plan_model import BasePlan, MaterialPlan, Rows
from migrators.pipeline.uploads import copy_upload
from regraft import clock, links, sqlite, steady, untouched
from regraft.formats.cherry_v2 import okf
from regraft.formats.cherry_v2.index import BODY_SEPARATOR
from regraft.formats.cherry_v2.index.opening import UNREADABLE
from regraft.formats.cherry_v2.index.schema import keep_full_text
from regraft.formats.vector_table import VectorTable
from regraft.ledger import durable
from regraft.locate import INDEX_FILE
from regraft.names import FreeNames
from regraft.records import replace
from regraft.text import decode_utf8
from regraft.tree import Tree
from regraft.tree_files import SourceFailed
from repair.changes.copies import copy_database

Make = Callable[[Path], None]


class V1File(msgspec.Struct, frozen=True, kw_only=True):
    """A base's vector file on disk, and what of it is carried."""

    #: Where it comes from, which may hold uploads, too.
    tree: Tree
    path: Path
    table: VectorTable
    plan: BasePlan
    #: What tells the state of the file that was planned.
    mark: steady.Mark

    def texts(self, db: apsw.Connection, material: MaterialPlan) -> Iterator[str]:
        """Stream the bodies of a material, in their order.

        Raises:
            RowsDiffer: at the end, where these are not the rows that were surveyed.
        """
        for body, _ in self.table.rows(db, material.runs, self.plan.vector_bytes, material.digest):
            yield body

    def carrying(self, materials: tuple[MaterialPlan, ...]) -> V1File:
        """Return it with a plan that carries these materials alone."""
        rows = sum(material.rows for material in materials)
        plan = replace(self.plan, materials=materials, rows=Rows(read=rows, carried=rows))
        return replace(self, plan=plan)


class NewSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that is to be written: of which material, its path below ``raw/``, and its block without a time."""

    material: MaterialPlan
    path: str
    snapshot: okf.Snapshot
    bytes: int
    #: Whether the very text lies there already.
    is_there: bool


def read_through(v1: V1File, names: FreeNames, raw: Path, known: Mapping[str, str]) -> tuple[V1File, list[NewSnapshot]]:
    """Read every text that is to be carried once, and name the snapshots as carrying does.

    Returns:
        What is carried, with the paths of snapshots, and these.


    Args:
        v1: what is carried; an item without a path is one that gets a snapshot.
        names: the names in ``raw/`` that are taken.
        raw: the base's folder of raw files.
        known: the paths of materials that the index has, by their ids.

    Raises:
        SourceFailed: a text cannot be read.
    """
    found = []
    with _reading(v1.path) as db:
        for material in v1.plan.materials:
            item = v1.plan.items[material.item]
            if "relativePath" in item.data:
                for _ in v1.texts(db, material):
                    pass
                continue
            content = BODY_SEPARATOR.join(v1.texts(db, material))
            is_url = item.type == "url"
            shot = okf.url_snapshot(item.data["url"], content) if is_url else okf.note_snapshot(item.data["source"])
            if item.id in known:
                path, is_there = known[item.id], (raw / known[item.id]).exists()
            else:
                path, is_there = free_name(names, f"{shot.stem}.md", raw, content)
            found.append(
                NewSnapshot(material=material, path=path, snapshot=shot, bytes=len(content.encode()), is_there=is_there)
            )
    items = list(v1.plan.items)
    for one in found:
        item = items[one.material.item]
        items[one.material.item] = structs.replace(item, data={**item.data, "relativePath": one.path})
    return replace(v1, plan=replace(v1.plan, items=tuple(items))), found


def free_name(names: FreeNames, wanted: str, raw: Path, content: str) -> tuple[str, bool]:
    """Return a name that no item has and no file but the very snapshot, and whether that lies there."""
    while True:
        path = names.take(wanted)
        place = raw / path
        if not place.exists():
            return path, False
        # What a run that was stopped has left.
        if place.is_file() and okf.strip_block(decode_utf8(links.content(place))) == content:
            return path, True


@contextmanager
def _reading(path: Path) -> Iterator[apsw.Connection]:
    try:
        with sqlite.reading(path) as db:
            yield db
    except UNREADABLE as error:
        raise SourceFailed(str(error)) from error


# --- what is made ----------------------------------------------------------------------------------------------------


def new_index(v1: V1File, now_ms: int) -> Make:
    """Return what writes a base's index, verified."""

    def make(new: Path) -> None:
        with _carried(v1, new, now_ms) as carried:
            durable.replace(carried, new)

    return make


#: What comes into an index from another, by table; bodies are numbered as they come.
_ADDED = {
    "content": "content_hash, text, created_at",
    "embedding": "embedding_text_hash, vector_blob, created_at",
    "material": "material_id, relative_path, current_content_hash, created_at, updated_at",
    "search_unit": "unit_id, material_id, content_hash, unit_type, unit_index, char_start, char_end, created_at",
    "search_text": "search_text_id, target_type, target_id, kind, text, embedding_text_hash, created_at",
}
#: Texts and vectors that are there already stay.
_SHARED = ("content", "embedding")
#: What is left of the units and bodies of materials that are gone and carried again: the same texts, or none.
_IS_CARRIED = "embedding_text_hash IN (SELECT embedding_text_hash FROM carried.search_text)"
_REMAINS = (
    f"""DELETE FROM main.search_text WHERE target_type = 'search_unit' AND {_IS_CARRIED} AND target_id IN (
          SELECT unit_id FROM carried.search_unit UNION ALL
          SELECT unit_id FROM main.search_unit WHERE material_id IN (SELECT material_id FROM carried.material))""",
    """DELETE FROM main.search_unit WHERE material_id IN (SELECT material_id FROM carried.material)
         AND unit_id NOT IN (SELECT target_id FROM main.search_text WHERE target_type = 'search_unit')""",
)


def grown_index(v1: V1File, current: Path, now_ms: int) -> Make:
    """Return what writes the index ``current`` with the carried materials added."""

    def make(new: Path) -> None:
        with _carried(v1, new, now_ms) as carried:
            copy_database(current, new)
            with sqlite.writing(new) as db, sqlite.attached(db, carried, "carried"):
                keep_full_text(db)
                with sqlite.transaction(db), untouched.others_untouched(db, new, _ADDED.keys()):
                    for statement in _REMAINS:
                        db.execute(statement)
                    for table, columns in _ADDED.items():
                        there = "WHERE TRUE ON CONFLICT DO NOTHING" if table in _SHARED else ""
                        rows = f"SELECT {columns} FROM carried.{table} ORDER BY rowid"
                        db.execute(f"INSERT INTO {table} ({columns}) SELECT * FROM ({rows}) {there}")

    return make


@contextmanager
def _carried(v1: V1File, new: Path, now_ms: int) -> Iterator[Path]:
    """Carry into a folder beside ``new`` and give the index in it; the folder is removed at the end."""
    folder = new.with_name(f"{new.name}.base")
    origin = Origin(tree=v1.tree, uploads=None, table=v1.table, vectors=v1.path, earlier=folder)
    try:
        with _blamed(v1):
            carry_base(v1.plan, origin, folder, now_ms, lambda _rows, _bytes: None)
        yield folder / INDEX_FILE
    finally:
        durable.remove_tree(folder)


def new_snapshot(v1: V1File, snapshot: NewSnapshot, now_ms: int) -> Make:
    """Return what writes a snapshot."""

    def make(new: Path) -> None:
        with (
            _blamed(v1),
            _reading(v1.path) as db,
            durable.open_text(new, "x") as file,
        ):
            file.write(snapshot.snapshot.block(clock.iso_time(now_ms)))
            for number, body in enumerate(v1.texts(db, snapshot.material)):
                file.write(f"{BODY_SEPARATOR if number else ''}{body}")

    return make


def new_upload(tree: Tree, uploads: str, upload: Upload) -> Make:
    """Return what copies an uploaded file of v1."""

    def make(new: Path) -> None:
        problem = copy_upload(tree, uploads, upload, new.with_name(f"{new.name}.none"), new)
        if problem:
            raise OSError(problem)

    return make


@contextmanager
def _blamed(v1: V1File) -> Iterator[None]:
    """Stop the run where a file that was read through can be read no more, or was written to meanwhile."""
    try:
        yield
    except (OSError, apsw.Error):
        raise
    except Exception as error:
        if steady.mark_of(v1.path) != v1.mark:
            raise OSError(f"{v1.path}: {steady.MOVED}") from error
        if isinstance(error, SourceFailed):
            raise OSError(f"{v1.path}: {error}") from error
        raise
    if steady.mark_of(v1.path) != v1.mark:
        raise OSError(f"{v1.path}: {steady.MOVED}")
