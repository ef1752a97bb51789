"""Plan ``regraft upgrade``: bring old or incomplete index layouts, and a library's catalog, to the current version.

Every vector is kept. Indexes of preview builds are planned in :mod:`repair.cherry_preview`. A catalog is written again
beside the old one; the search mode is dropped because it follows from the model (``docs/formats/catalog.md``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec

from checks.audit.collector import FindingCollector, display_text
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.schema import SchemaShape, compare_schema
from migrators import ModelOverrides
from regraft.disk import durable, scratch, sqlite, untrusted_sqlite
from regraft.errors import PlanOutdated
from regraft.formats import cherry_preview
from regraft.formats.cherry_preview import IndexLayout
from regraft.formats.cherry_v2.catalog import EMBEDDING, RERANK, TABLES
from regraft.formats.cherry_v2.catalog_generation import (
    BASES,
    INSERTED_COLUMNS,
    ITEMS,
    MODELS,
    PROVIDERS,
    CatalogTables,
    Generation,
    read_tables,
)
from regraft.formats.cherry_v2.index import SCHEMA_VERSION, older
from regraft.formats.cherry_v2.index.older import OldIndex
from regraft.formats.cherry_v2.layout import CATALOG_FILE
from regraft.formats.cherry_v2.layout import StoreFile as Place
from regraft.identity import replace
from regraft.language import format_count, tr
from repair.changes.files import copy_database
from repair.changes.plan import Action, FileChange, Plan, RowsChange, Unresolved
from repair.changes.store import Store
from repair.cherry_preview import plan_upgrade as plan_preview_upgrade

# --- the catalog -----------------------------------------------------------------------------------------------------

#: The tables of a library's catalog, parents first.
_TABLE_ORDER = (PROVIDERS, MODELS, BASES, ITEMS)


def add_catalog_upgrade(own: Plan, store: Store) -> Plan:
    """Return the plan ``own`` with the upgrade of the library's catalog, if that needs one.

    Other changes of the catalog are merged into it.

    Raises:
        apsw.Error, OSError: the catalog cannot be read.
    """
    if (
        store.catalog is None
        or Path(store.catalog).name != CATALOG_FILE
        or store.chosen
        or not store.found.stores.is_whole
    ):
        return own
    path = store.root / store.catalog
    count = _rows_to_write(path)
    if count is None:
        return own
    others = [one for one in own.changes if isinstance(one, RowsChange) and one.path == store.catalog]
    refused = _find_refusal(path, others)
    if refused is None:
        rewrite = _rewrite_change(store.catalog, path, count, others)
        # The rewrite includes the other changes of the catalog, in place of the first of them.
        position = own.changes.index(others[0]) if others else 0
        kept = [one for one in own.changes if one not in others]
        return replace(own, changes=[*kept[:position], rewrite, *kept[position:]])
    message = tr("the catalog was not upgraded: {refused}", refused=refused)
    left = Unresolved(finding=v2.BASE_STATUS, reason=message, subject=store.catalog, severity="error")
    return replace(own, left=[*own.left, left])


def _rows_to_write(path: Path) -> int | None:
    """Return the number of rows in the catalog of an earlier regraft; None if the catalog needs no upgrade."""
    with sqlite.open_readonly(path) as db:
        tables = read_tables(path, db)
        if tables.generation is not Generation.EARLIER_LIBRARY or not {BASES, ITEMS} <= tables.columns.keys():
            return None
        if any(_unknown_names(db, tables)):
            return None  # not written by regraft
        return sum(
            int(db.execute(f"SELECT count(*) FROM {table}").get) for table in _TABLE_ORDER if table in tables.columns
        )


def _find_refusal(path: Path, others: list[RowsChange]) -> str | None:
    """Try the upgrade in a temporary folder, and return why the current tables refuse a row, or None.

    ``others`` are other planned changes of the catalog.
    """
    with scratch.temporary_folder() as folder:
        try:
            _convert(path, others, folder / "new.sqlite")
        except PlanOutdated as problem:
            return str(problem.facts["reason"])
    return None


def _rewrite_change(name: str, path: Path, count: int, others: list[RowsChange]) -> FileChange:
    """Make the change that writes the catalog ``name``, with ``count`` rows, in the current layout.

    ``others`` are other planned changes of the catalog, which are made first.
    """
    size = path.stat().st_size
    message = tr(
        "rewrite the catalog with its {rows} in the current layout",
        rows=format_count(count, "row"),
    )
    action = Action(action="upgrade-catalog", message=message, subject=name, count=count, bytes=size)

    def make(new: Path) -> None:
        """Write the converted catalog."""
        _convert(path, others, new)

    actions = (action, *(act for other in others for act in other.actions))
    return FileChange(path=name, actions=actions, make=make, bytes=2 * size)


def _convert(path: Path, others: list[RowsChange], new: Path) -> None:
    """Convert a catalog, after other planned changes of it, to the new file ``new``."""
    with scratch.temporary_folder() as folder:
        old = folder / "old.sqlite"
        copy_database(path, old)
        with sqlite.open_writable(old) as db, sqlite.transaction(db):
            for other in others:
                other.apply(db)
        convert(old, new)


def _unknown_names(db: apsw.Connection, tables: CatalogTables) -> Iterator[str]:
    """Yield the names of tables and columns that no catalog of a library has."""
    own = "type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    for (name,) in db.execute(f"SELECT name FROM sqlite_schema WHERE {own}"):
        if name not in _TABLE_ORDER:
            yield str(name)
    for table in _TABLE_ORDER:
        for column in tables.columns.get(table, {}):
            if column not in INSERTED_COLUMNS[table]:
                yield column


def convert(old: Path, new: Path) -> None:
    """Convert a catalog that an earlier regraft wrote for a library to the current layout, in a new file.

    Rows keep their order.

    Raises:
        PlanOutdated: the current tables refuse a row.
        apsw.Error, OSError: a file cannot be read or written.
    """
    with sqlite.open_writable(new, create=True) as db, sqlite.attach_readonly(db, old, "old"):
        # Copy invalid rows unchanged: repairing them is not part of an upgrade.
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        with sqlite.transaction(db):
            for statement in TABLES:
                db.execute(statement)
            for table in _TABLE_ORDER:
                try:
                    _copy(db, table)
                except apsw.ConstraintError as error:
                    raise PlanOutdated(
                        path=old, reason=tr("the current layout refuses one of its rows ({error})", error=error)
                    ) from error


#: Capabilities of a model whose row does not state them: reranking if bases use it only for that, else embedding.
_CAPABILITIES = f"""CASE
  WHEN json_valid(capabilities) AND json_array_length(capabilities) > 0 THEN capabilities
  WHEN id IN (SELECT rerank_model_id FROM old.{BASES})
   AND id NOT IN (SELECT embedding_model_id FROM old.{BASES} WHERE embedding_model_id NOT NULL)
  THEN '{json.dumps(RERANK)}' ELSE '{json.dumps(EMBEDDING)}' END"""


def _copy(db: apsw.Connection, table: str) -> None:
    """Copy the rows of a table from the attached old catalog, in the columns that both catalogs have."""
    there, names = (untrusted_sqlite.list_columns(db, table, schema) for schema in ("old", "main"))
    values = {name: untrusted_sqlite.quote_name(name) for name in names if name in there}
    if not values:
        return
    if table == MODELS:
        values |= {"capabilities": _CAPABILITIES if "capabilities" in there else f"'{json.dumps(EMBEDDING)}'"}
        values.setdefault("supports_streaming", "1")
    columns = ", ".join(map(untrusted_sqlite.quote_name, values))
    read = f"SELECT {', '.join(values.values())} FROM old.{table} ORDER BY rowid"
    db.execute(f"INSERT INTO main.{table} ({columns}) {read}")


#: Errors of reading a damaged file.
_DAMAGE = (apsw.Error, OSError, UnicodeDecodeError)


class UpgradeOptions(msgspec.Struct, frozen=True):
    """The user's choice of models for bases of preview builds, and the time of the run."""

    now_ms: int
    model_overrides: ModelOverrides = msgspec.field(default_factory=ModelOverrides)


def plan(store: Store, options: UpgradeOptions) -> Plan:
    """Plan the upgrade of every chosen index file, and of the catalog, to the current layout."""
    made = Plan()
    previews: dict[str, Place] = {}
    for base, place in store.stores.items():
        if store.wants(base):
            planned = _plan_file(store, base, place, options)
            made.add(planned)
            if place.look.layout is IndexLayout.PREVIEW and not planned.left:
                previews[base] = place
    if previews:
        made.add(plan_preview_upgrade(store, previews, options.model_overrides, options.now_ms))
    try:
        return add_catalog_upgrade(made, store)
    except _DAMAGE as error:
        made.left.append(
            Unresolved(
                finding=v2.UNREADABLE, reason=tr("the catalog cannot be read: {error}", error=error), severity="error"
            )
        )
    return made


def _plan_file(store: Store, base: str, file: Place, options: UpgradeOptions) -> Plan:
    """Plan the upgrade of the index file of a base. For a file of a preview build, only report problems."""
    if file.look.layout is IndexLayout.UNREADABLE:
        return Plan(left=[_leave_damaged(base, file, file.look.problem)])
    try:
        with cherry_preview.readable_copy(store.root / file.name) as path, sqlite.open_readonly(path) as db:
            version, _ = older.read_version(db)
        if older.is_newer_version(version):
            message = tr(
                "the index has version {named}, but this regraft supports versions up to {schema_version}",
                named=display_text(version),
                schema_version=SCHEMA_VERSION,
            )
            return Plan(left=[_leave(v2.SCHEMA_VERSION, message, base, file)])
        return Plan() if file.look.layout is IndexLayout.PREVIEW else _plan_index(store, base, file, options)
    except _DAMAGE as error:
        return Plan(left=[_leave_damaged(base, file, str(error))])


def _leave_damaged(base: str, file: Place, problem: str) -> Unresolved:
    """Report that the index file of a base cannot be read."""
    reason = tr("{name} cannot be read: {problem}", name=file.name, problem=problem)
    return Unresolved(finding=v2.UNREADABLE, reason=reason, base=base, severity="error")


def _leave(finding: str, reason: str, base: str, file: Place, count: int = 1) -> Unresolved:
    """Report that the index file of a base is not upgraded, and why; ``count`` is the number of rows concerned."""
    return Unresolved(finding=finding, reason=reason, base=base, subject=file.name, count=count, severity="error")


# --- index files -----------------------------------------------------------------------------------------------------


class _IndexState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an index file in the layout of seven tables."""

    shape: SchemaShape
    version: object
    has_identity: bool
    #: Number of bodies without a row number in the full-text index.
    unnumbered: int
    #: Number of rows of a preview build beside the seven tables.
    previews: int
    #: Whether SQLite refuses the schema, so that no program can open the file.
    is_refused: bool

    @property
    def is_stamped(self) -> bool:
        """Whether the file states the current layout version."""
        return isinstance(self.version, int) and self.version == SCHEMA_VERSION

    @property
    def findings(self) -> tuple[str, ...]:
        """Names of the findings that an upgrade resolves."""
        has_version = "meta" in self.shape.tables and self.has_identity
        wrong = {
            v2.SCHEMA_VERSION: has_version and not self.is_stamped,
            v2.SCHEMA_MISSING: bool(self.shape.missing),
            v2.BODY_ROWID: bool(self.unnumbered),
        }
        return tuple(name for name, is_wrong in wrong.items() if is_wrong)

    @property
    def is_current(self) -> bool:
        """Whether the file needs no upgrade."""
        return not self.findings and not self.is_refused

    @property
    def lacks_only_stamp(self) -> bool:
        """Whether only the stated layout version is wrong."""
        return self.findings == (v2.SCHEMA_VERSION,) and self.version != 1 and not self.is_refused


def _plan_index(store: Store, base: str, file: Place, options: UpgradeOptions) -> Plan:
    """Plan the upgrade of an index file in the layout of seven tables."""
    made, path = Plan(), store.root / file.name
    with cherry_preview.readable_copy(path) as copy, sqlite.open_readonly(copy) as db:
        state = _read_state(db, is_refused=copy != path)
        if state.previews:
            rows = format_count(state.previews, "row")
            message = tr("it has {rows} of a preview build beside v2 units; cannot tell which are valid", rows=rows)
            made.left.append(_leave(v2.SCHEMA_PREVIEW, message, base, file, state.previews))
        if state.is_current:
            return made
        if state.lacks_only_stamp:
            made.changes.append(_stamp_change(base, file.name, state))
            made.resolves.add((v2.SCHEMA_VERSION, base))
            return made
        try:
            old = older.examine_index(db, options.now_ms, knows_base=file.base_id is not None)
        except _DAMAGE as error:
            made.left.append(_leave_damaged(base, file, str(error)))
            return made
    if old.problems:
        finding = v2.SCHEMA_MISSING if v2.SCHEMA_MISSING in state.findings else (state.findings or (v2.CORRUPT,))[0]
        made.left += [
            _leave(finding, tr("it was not upgraded: {problem}", problem=problem), base, file)
            for problem in old.problems
        ]
        return made
    made.changes.append(_rebuild_change(path, base, file, old, state))
    made.resolves |= {(finding, base) for finding in state.findings}
    return made


def _read_state(db: apsw.Connection, *, is_refused: bool) -> _IndexState:
    """Read the state of an open index; ``is_refused``: SQLite refuses the schema of the original file."""
    version, has_identity = older.read_version(db)
    shape = compare_schema(db, FindingCollector())
    unnumbered = 0
    if shape.has_rowid and shape.has("search_text"):
        unnumbered = db.execute("SELECT count(*) FROM search_text NOT INDEXED WHERE fts_rowid IS NULL").get
    return _IndexState(
        shape=shape,
        version=version,
        has_identity=has_identity,
        unnumbered=unnumbered,
        previews=cherry_preview.count_rows(db),
        is_refused=is_refused,
    )


def _stamp_change(base: str, name: str, state: _IndexState) -> RowsChange:
    """Make the change that writes the current layout version to the index file ``name``."""
    message = tr(
        "set the index version to {schema_version}, which its tables have (it says {named})",
        schema_version=SCHEMA_VERSION,
        named=display_text(state.version),
    )
    action = Action(action="stamp-version", message=message, base=base, subject=name, finding=v2.SCHEMA_VERSION)

    def apply(db: apsw.Connection) -> None:
        """Write the version number to the open index."""
        first = "(SELECT id FROM meta ORDER BY id LIMIT 1)"
        db.execute(f"UPDATE meta SET schema_version = ? WHERE id = {first}", (SCHEMA_VERSION,))

    return RowsChange(path=name, actions=(action,), apply=apply, tables=("meta",))


def _rebuild_change(path: Path, base: str, file: Place, old: OldIndex, state: _IndexState) -> FileChange:
    """Make the change that writes all rows of an old index, at ``path``, to a new file in the current layout."""
    size = old.bytes(path.stat().st_size)
    units, vectors = old.counts["search_unit"], old.counts["embedding"]
    was = tr("an unknown version") if old.version is None else tr("version {named}", named=display_text(old.version))
    if state.is_stamped:
        was = tr("an unfinished version {schema_version}", schema_version=SCHEMA_VERSION)
    message = tr(
        "rewrite the index as version {schema_version} (from {was}) with all of its {units} and {vectors}",
        schema_version=SCHEMA_VERSION,
        was=was,
        units=format_count(units, "unit"),
        vectors=format_count(vectors, "vector"),
    )
    finding = state.findings[0] if state.findings else None
    action = Action(
        action="upgrade-index", message=message, base=base, subject=file.name, count=units, bytes=size, finding=finding
    )

    def make(new: Path) -> None:
        """Write the new index file; raises PlanOutdated if the old one was changed."""
        # SQLite would apply a log beside the old file to the new one.
        beside = untrusted_sqlite.find_companions(path)
        if beside:
            raise PlanOutdated(path=path, reason=tr("it has an unfinished transaction ({name})", name=beside[0].name))
        with cherry_preview.readable_copy(path) as copy:
            older.build_current_index(copy, new, old, str(file.base_id))
            kept = cherry_preview.copy_remaining_rows(copy, new) if state.previews else 0
        if kept != state.previews:
            raise PlanOutdated(path=path, reason=tr("rows of a preview build were added or removed"))
        durable.copy_mode(path, new)

    return FileChange(path=file.name, actions=(action,), make=make, bytes=size)
