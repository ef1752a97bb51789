"""Upgrade data of v2 preview builds: seven tables in each base's own index file, under the ids of its catalog.

Rows and items are planned as in a migration. Files below ``raw/`` stay in place, and rows that become no unit stay in
the preview table (``docs/formats/preview.md``, "In place").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import apsw
import msgspec
from msgspec import structs

from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import get_indexed_path
from checks.cherry_v2.raw_files import find_path_problem
from migrators import ModelOverrides
from migrators.cherry_preview.draft import draft_library
from migrators.pipeline.plan import BasePlan, ItemPlan, MaterialPlan, plan_base
from migrators.pipeline.preflight import estimate_base_bytes
from migrators.pipeline.source import BaseDraft, LibraryDraft
from regraft import identity
from regraft.disk import durable, file_paths, links, sqlite, untrusted_sqlite
from regraft.disk.file_paths import FreeNames, sanitize_material_name
from regraft.errors import PlanOutdated, VerificationFailed
from regraft.formats import cherry_preview, okf
from regraft.formats.cherry_preview import PREVIEW_VECTORS
from regraft.formats.cherry_v2 import index
from regraft.formats.cherry_v2.catalog_reader import (
    CatalogProblem,
    Row,
    StoredCatalog,
    dump_item_data,
    parse_item_data,
    read_catalog,
)
from regraft.formats.cherry_v2.index import BODY_SEPARATOR, older
from regraft.formats.cherry_v2.index.schema import TABLE_RULES
from regraft.formats.cherry_v2.layout import INDEX_FILE, RAW_FOLDER
from regraft.formats.cherry_v2.layout import StoreFile as Place
from regraft.formats.cherry_v2.models import ModelChoice
from regraft.formats.vector_survey import StoreProblem, VectorSurvey
from regraft.identity import replace
from regraft.language import format_count, tr
from regraft.report import notices
from regraft.text import decode_utf8, replace_surrogates
from repair.changes.plan import Action, FileChange, Plan, RowsChange, Unresolved
from repair.changes.store import Store

WriteFile = Callable[[Path], None]


class PreviewSource(msgspec.Struct, frozen=True, kw_only=True):
    """A store of a preview build: the store, its catalog, and the drafts that a migration would make."""

    store: Store
    catalog: StoredCatalog | None
    drafts: dict[str, BaseDraft]
    now_ms: int


class RawFile(NamedTuple):
    """A file to write below ``raw/`` of a base: its path there, the function that writes it, and its size in bytes."""

    path: str
    write: WriteFile
    action: Action
    size: int


class CatalogUpdate(NamedTuple):
    """An update of a row of the catalog: the statement with its values; ``what`` is "base" or "item"."""

    sql: str
    values: tuple[Any, ...]
    what: str


class BaseUpgrade(msgspec.Struct):
    """Planned upgrade of one base."""

    base: str
    place: Place
    plan: BasePlan
    #: Path of each material below ``raw/``, in the order of materials.
    paths: list[str] = msgspec.field(default_factory=list)
    files: list[RawFile] = msgspec.field(default_factory=list)
    updates: list[CatalogUpdate] = msgspec.field(default_factory=list)
    #: Number of rows that stay in the preview table.
    kept: int = 0


class PathAssigner:
    """Assigns a path to every material of a base, and updates the catalog's items to match.

    Args:
        source: the store.
        upgrade: the planned upgrade of the base, which gets paths, files and updates.
        row: the base's row in the catalog; None: the catalog does not list it.
        db: the base's index in the preview layout.
    """

    def __init__(self, source: PreviewSource, upgrade: BaseUpgrade, row: Row | None, db: apsw.Connection) -> None:
        draft = upgrade.plan.draft
        items = None if source.catalog is None else source.catalog.items
        self._upgrade = upgrade
        self._db = db
        self._path = source.store.root / upgrade.place.name
        self._raw = source.store.root / upgrade.place.raw
        self._timestamp = identity.iso_time(source.now_ms)
        rows = items.get(upgrade.base, []) if items is not None and row is not None else []
        self._rows = {str(item.get("id")): item for item in rows}
        self._names = FreeNames(draft.taken_names, reserve_processed=draft.file_processor_id is not None)
        self._used: set[str] = set()

    def assign(self) -> None:
        """Assign all paths, in the order of materials."""
        for material in self._upgrade.plan.materials:
            item = self._upgrade.plan.items[material.item]
            row = self._rows.get(item.id)
            path = self._unlisted_path(item) if row is None else self._listed_path(item, row, material)
            self._used.add(path.casefold())
            self._upgrade.paths.append(path)
            if row is not None:
                self._plan_item(item, row, path)

    def _unlisted_path(self, item: ItemPlan) -> str:
        """Return the path of an item that no catalog lists: that of its file if there is one, else the item's id."""
        path = item.data.get("relativePath", "")
        if path and self._is_free(path) and file_paths.is_file(self._raw / path):
            return path
        return self._id_path(item)

    def _id_path(self, item: ItemPlan) -> str:
        """Return the item's id as its path, or a free variant of the id."""
        return item.id if self._is_free(item.id) else self._names.take(sanitize_material_name(item.id))

    def _listed_path(self, item: ItemPlan, row: Row, material: MaterialPlan) -> str:
        """Return the path that the catalog's ``row`` of an item states, or a new one.

        If the item is not a file and its text is not there, writing the text as a file is planned.
        """
        stored = get_indexed_path(row)
        if stored is not None and self._is_free(stored):
            if item.type == "file" or file_paths.is_file(self._raw / stored):
                return stored
            self._plan_snapshot(stored, item, material)
            return stored
        if item.type == "file":
            return self._file_path(item)
        content = self._content(material)
        snapshot = okf.item_snapshot(item.type, item.data, content)
        while True:
            path = self._names.take(f"{snapshot.stem}.md")
            if _is_snapshot_of(self._raw / path, content):
                return path  # written by a run that was stopped
            if not file_paths.exists(self._raw / path) and self._is_free(path):
                self._plan_snapshot(path, item, material)
                return path

    def _is_free(self, path: str) -> bool:
        """Whether a path below ``raw/`` is safe and not yet assigned."""
        return find_path_problem(path.encode("utf-8", "replace")) is None and path.casefold() not in self._used

    def _file_path(self, item: ItemPlan) -> str:
        """Return the path of a file item: its own, to which its file is copied if another item uses the same file.

        If that path is unsafe or taken, the item's id is the path.
        """
        path, upload = item.data["relativePath"], item.upload
        if not self._is_free(path) or upload is None:
            return self._id_path(item)
        there = PurePosixPath(upload.folder or "", upload.name)
        source, target = self._raw.joinpath(*there.relative_to(self._upgrade.place.raw).parts), self._raw / path
        if source == target or not file_paths.is_file(source):
            return path
        if file_paths.exists(target):
            same = file_paths.is_file(target) and links.have_same_bytes(source, target)
            return path if same else self._id_path(item)
        message = tr("copy {name} to {path}, because another item uses the same file", name=source.name, path=path)
        action = Action(
            action="copy-file",
            message=message,
            base=self._upgrade.base,
            subject=path,
            bytes=file_paths.stat(source).st_size,
        )
        self._upgrade.files.append(
            RawFile(path=path, write=partial(durable.copy_file, source), action=action, size=action.bytes)
        )
        return path

    def _content(self, material: MaterialPlan) -> str:
        """Return the text of a material: the bodies of its rows, joined."""
        rows = PREVIEW_VECTORS.rows(self._db, material.runs, self._upgrade.plan.vector_bytes)
        return BODY_SEPARATOR.join(body for body, _ in rows)

    def _plan_snapshot(self, path: str, item: ItemPlan, material: MaterialPlan) -> None:
        """Plan to write the text of an item, with a header, to ``path`` below ``raw/``."""
        message = tr("write the text of a {type} to {path}", path=path, type=item.type)
        action = Action(
            action="write-snapshot", message=message, base=self._upgrade.base, subject=path, bytes=material.body_bytes
        )
        origin, size, stamp = self._path, self._upgrade.plan.vector_bytes, self._timestamp

        def write(new: Path) -> None:
            """Read the text from the preview's index, and write it with its header to ``new``."""
            with cherry_preview.readable_copy(origin) as copy, sqlite.open_readonly(copy) as db:
                content = BODY_SEPARATOR.join(body for body, _ in PREVIEW_VECTORS.rows(db, material.runs, size))
            text = okf.item_snapshot(item.type, item.data, content).block(stamp) + content
            durable.put_text(new, text)

        self._upgrade.files.append(RawFile(path=path, write=write, action=action, size=material.body_bytes))

    def _plan_item(self, item: ItemPlan, row: Row, path: str) -> None:
        """Plan to update the catalog's ``row`` of an item if its path or data differ from the planned ones."""
        stored = parse_item_data(row)
        wanted = {**stored, **{key: replace_surrogates(value) for key, value in item.data.items()}}
        if get_indexed_path({"data": json.dumps(stored)}) != path:
            wanted.pop("indexedRelativePath", None)
            wanted["relativePath"] = path
        elif "relativePath" in stored:
            wanted["relativePath"] = stored["relativePath"]
        if wanted != stored:
            new = dump_item_data(wanted)
            sql = "UPDATE knowledge_item SET data = ? WHERE id = ? AND base_id = ? AND data IS ?"
            values = (new, item.id, self._upgrade.base, row.get("data"))
            self._upgrade.updates.append(CatalogUpdate(sql, values, "item"))


def _is_snapshot_of(path: Path, content: str) -> bool:
    """Whether a file contains this text below its header."""
    try:
        return file_paths.is_file(path) and okf.strip_block(decode_utf8(links.read_bytes(path))) == content
    except OSError:
        return False


# --- planning --------------------------------------------------------------------------------------------------------

#: Placeholder model of a base without a row in the catalog.
_ANY_MODEL = ModelChoice("?")


class _NotUpgradable(Exception):
    """A base cannot be upgraded; the text says why."""


def plan_upgrade(store: Store, places: dict[str, Place], model_overrides: ModelOverrides, now_ms: int) -> Plan:
    """Plan the upgrade of the bases that are in the layout of preview builds.

    Args:
        store: the store.
        places: their index files, by base id.
        model_overrides: models that the user names for bases.
        now_ms: the time of the run.
    """
    try:
        catalog = None if store.catalog is None else read_catalog(store.root / store.catalog)
    except CatalogProblem as problem:
        message = tr("its items cannot be read: the catalog {problem}", problem=problem)
        return Plan(left=[_leave(base, place, message) for base, place in places.items()])
    library: LibraryDraft = draft_library(store.found, model_overrides)
    drafts = {draft.vector_file: draft for draft in library.bases}
    drafts_by_base = {base: drafts[place.name] for base, place in places.items()}
    source = PreviewSource(store=store, catalog=catalog, drafts=drafts_by_base, now_ms=now_ms)
    made = Plan(left=_unused_options(library))
    upgrades: list[BaseUpgrade] = []
    for base, place in places.items():
        found = _try_plan_base(source, base, place)
        if isinstance(found, Unresolved):
            made.left.append(found)
        else:
            made.left += _skipped_rows(found)
            upgrades.append(found)
    made.changes += chain.from_iterable(map(_file_changes, upgrades))
    made.changes += _catalog_change(store, upgrades)
    made.changes += chain.from_iterable(map(partial(_index_changes, source), upgrades))
    made.resolves = {(v2.SCHEMA_PREVIEW, upgrade.base) for upgrade in upgrades if not upgrade.kept}
    return made


def _unused_options(library: LibraryDraft) -> list[Unresolved]:
    """Report the options of the user that no base of the planned migration uses."""
    unused = [notice.message for notice in library.notices if notice.code == notices.OPTION_UNUSED]
    return [Unresolved(finding=v2.SCHEMA_PREVIEW, reason=one) for one in unused]


def _leave(base: str, place: Place, reason: str) -> Unresolved:
    """Report that a base cannot be upgraded, and why; ``place`` is its index file."""
    return Unresolved(finding=v2.SCHEMA_PREVIEW, reason=reason, base=base, subject=place.name, severity="error")


# --- one base --------------------------------------------------------------------------------------------------------


def _try_plan_base(source: PreviewSource, base: str, place: Place) -> BaseUpgrade | Unresolved:
    """Plan the upgrade of a base (its id), or say why it cannot be upgraded; ``place`` is its index file."""
    try:
        return _plan_base(source, base, place)
    except _NotUpgradable as stays:
        return _leave(base, place, str(stays))
    except StoreProblem as problem:
        return _leave(base, place, f"{place.name} {problem}")
    except (apsw.Error, OSError, UnicodeDecodeError) as error:
        return _leave(base, place, tr("{name} cannot be read: {error}", name=place.name, error=error))


def _plan_base(source: PreviewSource, base: str, place: Place) -> BaseUpgrade:
    """Plan the upgrade of a base (its id); ``place`` is its index file.

    Raises:
        _NotUpgradable: the base cannot be migrated completely.
        StoreProblem, apsw.Error, OSError, UnicodeDecodeError: the base cannot be read.
    """
    catalog_rows = [] if source.catalog is None else source.catalog.bases
    row = next((one for one in catalog_rows if one.get("id") == base), None)
    draft = source.drafts[base]
    draft = replace(draft, embedding=_ANY_MODEL) if row is None else draft
    with cherry_preview.readable_copy(source.store.root / place.name) as path, sqlite.open_readonly(path) as db:
        survey = PREVIEW_VECTORS.survey(path)
        planned = plan_base(draft, survey)
        kept = planned.rows.read - planned.rows.carried
        problem = (
            _draft_problem(planned, survey)
            or _model_problem(source, planned, row)
            or _table_problem(db)
            or _encoding_problem(db, kept)
        )
        if problem:
            raise _NotUpgradable(problem)
        upgrade = BaseUpgrade(base, place, planned, kept=kept)
        PathAssigner(source, upgrade, row, db).assign()
    _plan_base_row(upgrade, row)
    return upgrade


def _skipped_rows(upgrade: BaseUpgrade) -> Iterator[Unresolved]:
    """Report the rows of a base that become no unit and stay in the preview table."""
    planned = upgrade.plan
    for notice in planned.notices:
        if notice.code in planned.rows.skipped:
            message = tr("{what}; they are kept in the preview table", what=notice.message)
            stays = _leave(upgrade.base, upgrade.place, message)
            yield structs.replace(stays, count=notice.count, severity="warning")


def _draft_problem(planned: BasePlan, survey: VectorSurvey) -> str | None:
    """Why the rows of a planned base cannot be migrated completely; None if they can."""
    if planned.error is None or not survey.rows:
        return None
    return next((notice.message for notice in planned.notices if notice.code == planned.error), planned.error)


def _model_problem(source: PreviewSource, planned: BasePlan, row: Row | None) -> str | None:
    """Why a base cannot use the model of its vectors; None if it can."""
    model = planned.draft.embedding.id
    known = None if source.catalog is None else source.catalog.models
    if row is None or known is None or model in (None, row.get("embedding_model_id")):
        return None
    if model not in {one.get("id") for one in known}:
        return tr("the catalog has no model {model}: add it in the application first", model=model)
    return None


def _encoding_problem(db: apsw.Connection, remaining: int) -> str | None:
    """Why an index cannot keep the preview rows that become no unit, in the encoding of its file; None if it can."""
    if remaining and db.execute("PRAGMA encoding").get != older.ENCODING:
        return tr(
            "{rows} cannot be converted and would have to be kept unchanged, which is impossible here because the "
            "index file is not in {encoding}",
            rows=format_count(remaining, "row"),
            encoding=older.ENCODING,
        )
    return None


def _table_problem(db: apsw.Connection) -> str | None:
    """Say that a table of the current layout has rows although the preview's table has them too; None if none has."""
    tables = {str(name).lower() for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    for table in TABLE_RULES:
        if table in tables and db.execute(f"SELECT 1 FROM {table} NOT INDEXED LIMIT 1").get is not None:
            return tr("its table {table} also has rows; cannot tell which are valid", table=table)
    return None


def _plan_base_row(upgrade: BaseUpgrade, row: Row | None) -> None:
    """Plan to update the catalog's ``row`` of a base that has vectors again. A base without rows keeps its row."""
    planned = upgrade.plan
    if row is None or planned.error is not None or not planned.materials:
        return
    wanted = {"dimensions": planned.dimensions, "embedding_model_id": planned.draft.embedding.id}
    # If the catalog stores a search mode, a base without vectors was searched by words.
    wanted |= {"search_mode": "hybrid"} if row.get("search_mode") == "bm25" else {}
    wanted |= {"status": "completed", "error": None}
    changed = {name: value for name, value in wanted.items() if name in row and row[name] != value}
    if changed:
        sets = ", ".join(f"{name} = ?" for name in changed)
        sql = f"UPDATE knowledge_base SET {sets} WHERE id = ?"
        upgrade.updates.append(CatalogUpdate(sql, (*changed.values(), upgrade.base), "base"))


# --- changes ---------------------------------------------------------------------------------------------------------


def _catalog_change(store: Store, upgrades: list[BaseUpgrade]) -> Iterator[RowsChange]:
    """Yield the change of the catalog's rows for all upgraded bases, if there is any."""
    updates = [update for upgrade in upgrades for update in upgrade.updates]
    if not updates or store.catalog is None:
        return
    actions = tuple(chain.from_iterable(map(_catalog_actions, upgrades)))
    path = store.root / store.catalog

    def apply(db: apsw.Connection) -> None:
        """Update the rows; refuse if one of them changed since the plan."""
        for update in updates:
            db.execute(update.sql, update.values)
            if db.changes() != 1:
                raise PlanOutdated(path=path, reason=tr("a row of the catalog was changed in the meantime"))

    tables = [name for name in ("knowledge_base", "knowledge_item") if any(f" {name} " in one.sql for one in updates)]
    size = sum(len(str(value)) for update in updates for value in update.values)
    yield RowsChange(path=store.catalog, actions=actions, apply=apply, tables=tuple(tables), bytes=size)


def _catalog_actions(upgrade: BaseUpgrade) -> Iterator[Action]:
    """Yield the actions that update the rows of a base and its items in the catalog."""
    items = sum(update.what == "item" for update in upgrade.updates)
    if items:
        message = tr("add the data that v2 requires to {items}", items=format_count(items, "item"))
        yield Action(action="update-items", message=message, base=upgrade.base, count=items)
    if items < len(upgrade.updates):
        yield Action(
            action="update-base", message=tr("mark the base as completed and set its dimensions"), base=upgrade.base
        )


def _folder_of(place: Place) -> str | None:
    """Return the folder that replaces a flat index file; None if the file is in the base's own folder already."""
    path = PurePosixPath(place.name)
    if place.base_id is None or place.name.endswith(INDEX_FILE) or path.name == PurePosixPath(INDEX_FILE).name:
        return None
    return str(path.parent / place.base_id)


def _file_changes(upgrade: BaseUpgrade) -> Iterator[FileChange]:
    """Yield the changes that write files below ``raw/`` of a base, unless its whole folder is new."""
    folder = _folder_of(upgrade.place)
    if folder == upgrade.place.name:
        return
    raw = upgrade.place.raw if folder is None else f"{folder}/{RAW_FOLDER}"
    for file in upgrade.files:
        yield FileChange(path=f"{raw}/{file.path}", actions=(file.action,), make=file.write, bytes=file.size)


def _index_changes(source: PreviewSource, upgrade: BaseUpgrade) -> Iterator[FileChange]:
    """Plan the index of a base and the files of its folder, which may replace the flat file of the preview build."""
    planned, place, folder = upgrade.plan, upgrade.place, _folder_of(upgrade.place)
    size = estimate_base_bytes(replace(planned, error=None))
    units = planned.rows.carried
    message = tr("convert {rows} of a preview build to v2 units, with their vectors", rows=format_count(units, "row"))
    action = Action(
        action="upgrade-preview",
        message=message,
        base=upgrade.base,
        subject=place.name,
        count=units,
        bytes=size,
        finding=v2.SCHEMA_PREVIEW,
    )
    make = partial(_make_index, source, upgrade)
    if folder is None:
        yield FileChange(path=place.name, actions=(action,), make=make, bytes=size)
    elif folder == place.name:
        # The folder has the same path as the flat file and replaces it.
        yield FileChange(
            path=folder,
            actions=(action, *(file.action for file in upgrade.files)),
            make=partial(_make_folder, upgrade, make),
        )
    else:
        yield FileChange(path=f"{folder}/{INDEX_FILE}", actions=(action,), make=make, bytes=size)
        gone = Action(
            action="remove-file",
            message=tr("remove {name}, whose rows are now in the base's folder", name=place.name),
            base=upgrade.base,
        )
        yield FileChange(path=place.name, actions=(gone,), make=None)


def _make_folder(upgrade: BaseUpgrade, make: WriteFile, new: Path) -> None:
    """Write the files of a base and its index to a new folder; ``make`` writes the index."""
    for file in upgrade.files:
        path = new / RAW_FOLDER / file.path
        durable.make_folders(path.parent, flush=False)
        file.write(path)
    path = new / INDEX_FILE
    durable.make_folders(path.parent, flush=False)
    make(path)


def _make_index(source: PreviewSource, upgrade: BaseUpgrade, new: Path) -> None:
    """Write the index of a base to ``new`` and verify it against the plan."""
    planned, path = upgrade.plan, source.store.root / upgrade.place.name
    if untrusted_sqlite.find_companions(path):
        raise PlanOutdated(path=path, reason=tr("it has an unfinished transaction"))
    base, size = (upgrade.place.base_id or upgrade.plan.draft.id), planned.vector_bytes
    with cherry_preview.readable_copy(path) as copy:
        with sqlite.open_readonly(copy) as db:
            materials = (
                _index_material(db, planned, one, name)
                for one, name in zip(planned.materials, upgrade.paths, strict=True)
            )
            tallies, digests = index.build_index(new, base, source.now_ms, materials, lambda *_: None)
        if tallies.units != planned.rows.carried:
            message = tr(
                "{units} rows were migrated instead of {carried}", units=tallies.units, carried=planned.rows.carried
            )
            raise VerificationFailed(base=upgrade.base, reason=message)
        index.verify(new, base, tallies, digests, size or None)
        if upgrade.kept:
            runs = chain.from_iterable(one.runs for one in planned.materials)
            kept = cherry_preview.copy_remaining_rows(copy, new, runs, size)
            if kept != upgrade.kept:
                message = tr(
                    "{kept} rows remain in the preview table instead of {kept2}", kept=kept, kept2=upgrade.kept
                )
                raise VerificationFailed(base=upgrade.base, reason=message)
    durable.copy_mode(path, new)


def _index_material(db: apsw.Connection, planned: BasePlan, material: MaterialPlan, path: str) -> index.Material:
    """Return a planned material in the form that the index is built from, with its rows and its path."""
    rows = PREVIEW_VECTORS.rows(db, material.runs, planned.vector_bytes, material.digest)
    return index.Material(planned.items[material.item].id, lambda _: path, rows)
