"""Read the remaining v1 data of a profile, and write the files of a rescued base: index, snapshots, uploads.

v1's state is read as drafts that use the profile's models. Texts and vectors are migrated by the same stages as in
``migrate``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import apsw
import msgspec
from msgspec import structs

from migrators import cherry_v1
from migrators.cherry_v1.draft import draft_library
from migrators.pipeline import preflight
from migrators.pipeline.base_writer import BaseSource, write_base
from migrators.pipeline.losses import SalvageRequest, SalvageResult, check_for_damage, salvage_file, salvage_member
from migrators.pipeline.plan import BasePlan, MaterialPlan, PlannedRows
from migrators.pipeline.source import BaseDraft, Hints, LibraryDraft, Options, Upload
from migrators.pipeline.source_files import copy_upload, find_upload
from regraft import identity
from regraft.disk import durable, file_paths, links, scratch, sqlite, untrusted_sqlite
from regraft.disk.file_paths import FreeNames
from regraft.disk.trees import FolderTree, SourceReadFailed, Tree, ZipTree, join_path, require_free_space
from regraft.errors import SourceNotMigratable, SourceUnreadable, SourceUnrecognised
from regraft.formats import okf
from regraft.formats.cherry_v1.layout import StatePaths, find_vector_file
from regraft.formats.cherry_v1.state import V1State, read_state
from regraft.formats.cherry_v2.index import BODY_SEPARATOR
from regraft.formats.cherry_v2.index.opening import READ_ERRORS
from regraft.formats.cherry_v2.index.schema import add_full_text_triggers
from regraft.formats.cherry_v2.layout import DATA_FOLDER
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.formats.vector_survey import StoreProblem, VectorSurvey
from regraft.formats.vector_table import VectorTable
from regraft.identity import replace
from regraft.kinds import KIND_NAMES, V1_SOURCES, Kind
from regraft.language import tr
from regraft.stores.locate import INDEX_FILE, Located, open_store
from regraft.text import path_text
from repair.changes.files import copy_database
from repair.changes.store import Store
from repair.cherry_v2.item_paths import find_snapshot_name


class VectorFile(msgspec.Struct, frozen=True, kw_only=True):
    """The v1 vector file of a base, or what was salvaged of it: its survey, and how it is read."""

    survey: VectorSurvey
    path: Path
    table: VectorTable
    tree: Tree
    #: State of ``path``, to recognize later writes.
    mark: sqlite.FileState


def _as_vector_file(survey: VectorSurvey, salvaged: SalvageResult, tree: Tree) -> VectorFile:
    """Return the temporary file that a salvage has written for a vector file in ``tree``, with its survey."""
    assert salvaged.vectors is not None
    assert salvaged.table is not None
    mark = sqlite.read_file_state(salvaged.vectors)
    return VectorFile(survey=survey, path=salvaged.vectors, tree=tree, mark=mark, table=salvaged.table)


class V1Data(msgspec.Struct, frozen=True, kw_only=True):
    """Remaining v1 data: the places where its files may be, preferred first, and its bases as drafts."""

    source: Located
    places: tuple[tuple[Tree, StatePaths], ...]
    library: LibraryDraft
    keep: ExitStack
    #: Whether to salvage verifiable rows of damaged vector files.
    salvage: bool = False

    def survey(self, draft: BaseDraft) -> VectorFile:
        """Find and survey the vector file of a v1 base. A damaged file is salvaged if the user asked for that.

        Raises:
            StoreProblem: the file cannot be used; the text says why.
            WorkFolderTooSmall: it is in an archive, and there is no room to extract it.
        """
        missing = tr("does not exist")
        problems: list[StoreProblem] = []
        leftover: VectorFile | None = None
        for tree, places in self.places:
            if places.vectors is None:
                continue
            name = join_path(places.vectors, find_vector_file(tree, places.vectors, draft.vector_file))
            try:
                if isinstance(tree, ZipTree) and tree.kind(name) == "file":
                    require_free_space(scratch.temporary_root(), tree.size(name))
                path = self.keep.enter_context(tree.local(name, None))
                mark = sqlite.read_file_state(path)
                found = self._survey_file(path, tree, draft)
                if sqlite.read_file_state(path) != mark:
                    problems.append(StoreProblem(tr("cannot be read: {moved}", moved=sqlite.CHANGED_DURING_READ)))
                elif found.survey.salvage is None:
                    return found
                else:
                    # The file may be intact in another place.
                    leftover = leftover or found
            except StoreProblem as unusable:
                problems.append(unusable)
            except SourceUnreadable as unreadable:
                wish = SalvageRequest(is_wanted=self.salvage, work=None)
                left = salvage_member(cherry_v1.PIPELINE.salvager, tree, name, draft, unreadable, wish, self.keep)
                if isinstance(left.found, StoreProblem):
                    problems.append(left.found)
                else:
                    leftover = leftover or _as_vector_file(left.found, left, tree)
        if leftover is not None:
            return leftover
        # Report damage in one place rather than absence from another.
        problem = next((one for one in problems if str(one) != missing), StoreProblem(missing))
        raise StoreProblem(
            tr("its vector file {vector_file} {problem}", vector_file=draft.vector_file, problem=problem),
            salvage=problem.salvage,
        )

    def _survey_file(self, path: Path, tree: Tree, draft: BaseDraft) -> VectorFile:
        """Survey the v1 vector file at ``path``; if it is damaged, salvage it and survey the result."""
        mark = sqlite.read_file_state(path)
        pipeline = cherry_v1.PIPELINE
        try:
            survey = pipeline.table.survey(path)
            check_for_damage(pipeline.salvager, path, None, is_wanted=self.salvage)
            return VectorFile(survey=survey, path=path, tree=tree, mark=mark, table=pipeline.table)
        except StoreProblem as problem:
            wish = SalvageRequest(is_wanted=self.salvage, work=None)
            left = salvage_file(pipeline.salvager, path, draft, problem, wish, self.keep)
            if isinstance(left.found, StoreProblem):
                raise left.found from problem
            return _as_vector_file(left.found, left, tree)

    def hints(self, draft: BaseDraft, survey: VectorSurvey, now_ms: int) -> Hints:
        """Read optional facts about a v1 base from other files of v1."""
        return cherry_v1.PIPELINE.hints(self.source, draft, survey, Options(now_ms=now_ms))

    def upload(self, upload: Upload) -> tuple[Tree, str, int] | None:
        """Find an uploaded file of v1.

        Returns:
            The tree and its folder of uploads that have the file, and its size; None if it is missing.
        """
        for tree, places in self.places:
            name = find_upload(tree, places.uploads, upload)
            if name is not None and places.uploads is not None:
                return tree, places.uploads, tree.size(name)
        return None


def read_v1(
    store: Store, given: Path | None, model_overrides: ModelOverrides, keep: ExitStack, *, salvage: bool = False
) -> V1Data:
    """Read v1's state from the profile, or from the source ``given`` by the user.

    All models count as existing: whether they do is decided by the profile, not by v1. Opened and extracted files stay
    until ``keep`` closes. ``salvage``: damaged files may be read in part.

    Raises:
        SourceNotMigratable: there is no v1 data.
        RegraftError: it cannot be read, or an application is using the given profile.
    """
    path = store.root if given is None else given
    source, state = _open_v1_source(path, keep, salvage=salvage)
    if (
        given is not None
        and source.profile is not None
        and links.real_path(source.profile) != links.real_path(store.root)
    ):
        preflight.check_running(source.profile, Options(now_ms=0))
    tree = store.found.tree
    uploads = next((name for name in (f"{DATA_FOLDER}/Files", "Files") if tree.kind(name) == "folder"), None)
    own = StatePaths(vectors=store.bases, uploads=uploads)
    library = draft_library(replace(state, providers=None), model_overrides)
    places = ((source.tree, source.places), (tree, own))
    return V1Data(source=source, places=places, library=library, keep=keep, salvage=salvage)


def _open_v1_source(path: Path, keep: ExitStack, *, salvage: bool) -> tuple[Located, V1State]:
    """Open the path as the first kind of v1 source that has bases, and return it with v1's state."""
    found = keep.enter_context(open_store(path, salvage=salvage))
    kinds = [found.kind] if found.kind in V1_SOURCES else [Kind.V1_PROFILE, Kind.V1_EXPORT]
    for kind in kinds:
        try:
            source = keep.enter_context(open_store(path, kind, salvage=salvage))
        except SourceUnrecognised:
            continue
        state = read_state(source.tree, source.places)
        if state.bases:
            return source, state
    advice = tr("name a v1 backup, profile or export with --v1 SOURCE")
    raise SourceNotMigratable(
        path=path, what=tr("{names} without v1 knowledge bases", names=KIND_NAMES[found.kind]), advice=advice
    )


# --- files of a rescued base -----------------------------------------------------------------------------------------


class MigratedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The v1 vector file of a base, and the plan of what is migrated from it."""

    #: The tree that contains the file and maybe uploads.
    tree: Tree
    path: Path
    table: VectorTable
    plan: BasePlan
    #: State of the file when it was planned.
    mark: sqlite.FileState

    def origin(self, root: Path) -> str | None:
        """Return the path of the vector file: below ``root``, the profile, or else absolute.

        None for a member of an archive and a salvaged copy.
        """
        if not isinstance(self.tree, FolderTree) or not self.path.is_relative_to(self.tree.path):
            return None
        path, place = links.real_path(self.path.absolute()), links.real_path(root.absolute())
        return path_text(path.relative_to(place) if path.is_relative_to(place) else path)

    def texts(self, db: apsw.Connection, material: MaterialPlan) -> Iterator[str]:
        """Yield the bodies of a planned material in order; ``db`` is the open vector file.

        Raises:
            RowsDiffer: at the end, if the rows differ from those that were surveyed.
        """
        for body, _ in self.table.rows(db, material.runs, self.plan.vector_bytes, material.digest):
            yield body

    def limited_to(self, materials: tuple[MaterialPlan, ...]) -> MigratedFile:
        """Return a copy whose plan has only these materials."""
        rows = sum(material.rows for material in materials)
        plan = replace(self.plan, materials=materials, rows=PlannedRows(read=rows, carried=rows))
        return replace(self, plan=plan)


class NewSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot to write: its material, its path below ``raw/``, its front matter, and its text's size in bytes."""

    material: MaterialPlan
    path: str
    snapshot: okf.Snapshot
    bytes: int
    #: Whether the identical snapshot already exists.
    is_there: bool


def read_texts(
    v1: MigratedFile, names: FreeNames, raw: Path, known: Mapping[str, str]
) -> tuple[MigratedFile, list[NewSnapshot]]:
    """Read every text to migrate once, and choose the paths of new snapshots as a migration does.

    Args:
        v1: the file and its plan. An item without a path gets a snapshot.
        names: the names in ``raw/`` that are in use.
        raw: the base's folder of raw files.
        known: the paths of materials that the index has, by id.

    Returns:
        The file with the paths of snapshots in its plan, and the snapshots.

    Raises:
        SourceFailed: a text cannot be read.
    """
    found = []
    with _read_vector_file(v1.path) as db:
        for material in v1.plan.materials:
            item = v1.plan.items[material.item]
            if "relativePath" in item.data:
                for _ in v1.texts(db, material):
                    pass
                continue
            content = BODY_SEPARATOR.join(v1.texts(db, material))
            shot = okf.item_snapshot(item.type, item.data, content)
            if item.id in known:
                path, is_there = known[item.id], file_paths.exists(raw / known[item.id])
            else:
                path, is_there = find_snapshot_name(names, f"{shot.stem}.md", raw, content)
            found.append(
                NewSnapshot(material=material, path=path, snapshot=shot, bytes=len(content.encode()), is_there=is_there)
            )
    items = list(v1.plan.items)
    for one in found:
        item = items[one.material.item]
        items[one.material.item] = structs.replace(item, data={**item.data, "relativePath": one.path})
    return replace(v1, plan=replace(v1.plan, items=tuple(items))), found


@contextmanager
def _read_vector_file(path: Path) -> Iterator[apsw.Connection]:
    """Open a vector file for reading; errors of reading it are raised as SourceReadFailed."""
    try:
        with sqlite.open_readonly(path) as db:
            yield db
    except READ_ERRORS as error:
        raise SourceReadFailed(str(error)) from error


def write_index(new: Path, v1: MigratedFile, now_ms: int) -> None:
    """Migrate the planned rows into the new index file ``new``, and verify it."""
    with _migrate_base(v1, new, now_ms) as carried:
        durable.replace(carried, new)


#: Columns that are copied from one index into another, by table. Bodies get new row numbers.
_ADDED = {
    "content": "content_hash, text, created_at",
    "embedding": "embedding_text_hash, vector_blob, created_at",
    "material": "material_id, relative_path, current_content_hash, created_at, updated_at",
    "search_unit": "unit_id, material_id, content_hash, unit_type, unit_index, char_start, char_end, created_at",
    "search_text": "search_text_id, target_type, target_id, kind, text, embedding_text_hash, created_at",
}
#: Tables whose existing rows are kept.
_SHARED = ("content", "embedding")
#: Delete old units and bodies of materials that are migrated again, if the text is the same or missing.
_IS_MIGRATED = "embedding_text_hash IN (SELECT embedding_text_hash FROM carried.search_text)"
_DELETE_OLD = (
    f"""DELETE FROM main.search_text WHERE target_type = 'search_unit' AND {_IS_MIGRATED} AND target_id IN (
          SELECT unit_id FROM carried.search_unit UNION ALL
          SELECT unit_id FROM main.search_unit WHERE material_id IN (SELECT material_id FROM carried.material))""",
    """DELETE FROM main.search_unit WHERE material_id IN (SELECT material_id FROM carried.material)
         AND unit_id NOT IN (SELECT target_id FROM main.search_text WHERE target_type = 'search_unit')""",
)


def write_extended_index(new: Path, v1: MigratedFile, current: Path, now_ms: int) -> None:
    """Write a copy of the index ``current``, with the migrated materials added, to ``new``."""
    with _migrate_base(v1, new, now_ms) as carried:
        copy_database(current, new)
        with sqlite.open_writable(new) as db, sqlite.attach_readonly(db, carried, "carried"):
            add_full_text_triggers(db)
            with sqlite.transaction(db), untrusted_sqlite.change_only(db, new, _ADDED.keys()):
                for statement in _DELETE_OLD:
                    db.execute(statement)
                for table, columns in _ADDED.items():
                    there = "WHERE TRUE ON CONFLICT DO NOTHING" if table in _SHARED else ""
                    rows = f"SELECT {columns} FROM carried.{table} ORDER BY rowid"
                    db.execute(f"INSERT INTO {table} ({columns}) SELECT * FROM ({rows}) {there}")


@contextmanager
def _migrate_base(v1: MigratedFile, new: Path, now_ms: int) -> Iterator[Path]:
    """Migrate the planned rows into a temporary folder beside ``new``; the context gives the path of its index."""
    folder = new.with_name(f"{new.name}.base")
    origin = BaseSource(tree=v1.tree, uploads=None, table=v1.table, vectors=v1.path, earlier=folder)
    try:
        with _checked_reading(v1):
            write_base(v1.plan, origin, folder, now_ms, lambda _rows, _bytes: None)
        yield folder / INDEX_FILE
    finally:
        durable.remove_tree(folder)


def write_snapshot(new: Path, v1: MigratedFile, snapshot: NewSnapshot, now_ms: int) -> None:
    """Write a snapshot with the text from the vector file to ``new``."""
    with (
        _checked_reading(v1),
        _read_vector_file(v1.path) as db,
        durable.open_text(new, "x") as file,
    ):
        file.write(snapshot.snapshot.block(identity.iso_time(now_ms)))
        for number, body in enumerate(v1.texts(db, snapshot.material)):
            file.write(f"{BODY_SEPARATOR if number else ''}{body}")


def restore_upload(new: Path, tree: Tree, uploads: str, upload: Upload) -> None:
    """Copy an uploaded file from the folder ``uploads`` of a tree to ``new``; raises OSError if that fails."""
    problem = copy_upload(tree, uploads, upload, new.with_name(f"{new.name}.none"), new)
    if problem:
        raise OSError(problem)


@contextmanager
def _checked_reading(v1: MigratedFile) -> Iterator[None]:
    """Context that reports errors of reading v1's vector file as OSError.

    It fails as well if the file was written to since it was surveyed.
    """
    try:
        yield
    except (OSError, apsw.Error):
        raise
    except Exception as error:
        if sqlite.read_file_state(v1.path) != v1.mark:
            raise OSError(f"{v1.path}: {sqlite.CHANGED_DURING_READ}") from error
        if isinstance(error, SourceReadFailed):
            raise OSError(f"{v1.path}: {error}") from error
        raise
    if sqlite.read_file_state(v1.path) != v1.mark:
        raise OSError(f"{v1.path}: {sqlite.CHANGED_DURING_READ}")
