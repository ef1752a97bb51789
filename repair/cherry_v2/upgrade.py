"""Older index layouts, half-applied ones and those of preview builds → version 2, in place, every vector kept.

The catalog of a library that an earlier regraft wrote comes along (:mod:`repair.cherry_v2.upgrade`).
Rules: ``docs/commands.md``, "regraft upgrade". An index file is never changed row by row: a fresh one is written beside
it, compared with what was read, and takes its place.
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
from regraft.disk import durable, sqlite, untrusted_sqlite
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
from repair import cherry_preview as repair_cherry_preview
from repair.changes.files import copy_database
from repair.changes.plan import Action, Change, FileChange, Plan, RowsChange, Unresolved
from repair.changes.store import Store

# A library's catalog of an earlier regraft → the current one, with every row (``docs/formats/catalog.md``).
#
# The file is written anew beside the old one, which is kept whole. How a base is searched is in it no more, since that
# follows from its model; models are completed.


#: The tables of a library, parents first.
_ORDER = (PROVIDERS, MODELS, BASES, ITEMS)


def add_catalog_upgrade(own: Plan, store: Store) -> Plan:
    """Return a plan with the upgrade of a library's catalog, too, and in it what else the plan changes there.

    Raises:
        apsw.Error, OSError: it cannot be read.
    """
    if store.catalog is None or Path(store.catalog).name != CATALOG_FILE or store.chosen or not _is_whole(store):
        return own
    path = store.root / store.catalog
    count = _rows_to_write(path)
    if count is None:
        return own
    others = [one for one in own.changes if isinstance(one, RowsChange) and one.path == store.catalog]
    refused = _refused(path, others)
    if refused is None:
        anew = _anew(store.catalog, path, count, others)
        return replace(own, changes=_in_place(own.changes, others, anew))
    message = tr("the catalog stays in its layout: {refused}", refused=refused)
    left = Unresolved(finding=v2.BASE_STATUS, reason=message, base=None, subject=store.catalog, severity="error")
    return replace(own, left=[*own.left, left])


def _in_place(changes: list[Change], others: list[RowsChange], anew: FileChange) -> list[Change]:
    """Return changes with one in place of others, where the first of these was."""
    place = changes.index(others[0]) if others else 0
    kept: list[Change] = [one for one in changes if one not in others]
    return [*kept[:place], anew, *kept[place:]]


def _rows_to_write(path: Path) -> int | None:
    """Return how many rows a catalog of an earlier regraft has; None where it is none."""
    with sqlite.open_readonly(path) as db:
        tables = read_tables(path, db)
        if tables.generation is not Generation.EARLIER_LIBRARY or not {BASES, ITEMS} <= tables.columns.keys():
            return None
        if any(_unknown(db, tables)):
            return None  # no regraft wrote it
        return sum(_count(db, table) for table in _ORDER if table in tables.columns)


def _refused(path: Path, others: list[RowsChange]) -> str | None:
    """Try the upgrade in a temporary folder; return why the current tables refuse a row, None where they do not."""
    with durable.temporary_folder() as folder:
        try:
            _convert(path, others, folder / "new.sqlite")
        except PlanOutdated as problem:
            return str(problem.facts["reason"])
    return None


def _is_whole(store: Store) -> bool:
    return store.found.stores.is_whole


def _anew(name: str, path: Path, count: int, others: list[RowsChange]) -> FileChange:
    """Return what writes a catalog anew, with what else changes in it."""
    size = path.stat().st_size
    message = tr(
        "write the catalog anew with its {rows}: models in full, and no search mode beside them",
        rows=format_count(count, "row"),
    )
    action = Action(action="upgrade-catalog", message=message, base=None, subject=name, count=count, bytes=size)

    def make(new: Path) -> None:
        _convert(path, others, new)

    actions = (action, *(act for other in others for act in other.actions))
    return FileChange(path=name, actions=actions, make=make, bytes=2 * size)


def _convert(path: Path, others: list[RowsChange], new: Path) -> None:
    with durable.temporary_folder() as folder:
        old = folder / "old.sqlite"
        copy_database(path, old)
        with sqlite.open_writable(old) as db, sqlite.transaction(db):
            for other in others:
                other.apply(db)
        convert(old, new)


def _unknown(db: apsw.Connection, tables: CatalogTables) -> Iterator[str]:
    """Yield the tables and columns that no library's catalog has."""
    own = "type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    for (name,) in db.execute(f"SELECT name FROM sqlite_schema WHERE {own}"):
        if name not in _ORDER:
            yield str(name)
    for table in _ORDER:
        for column in tables.columns.get(table, {}):
            if column not in INSERTED_COLUMNS[table]:
                yield column


def _count(db: apsw.Connection, table: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {table}").get)


# --- writing ---------------------------------------------------------------------------------------------------------


def convert(old: Path, new: Path) -> None:
    """Write a library's catalog of any earlier regraft to ``new`` as the current one; rows keep their order.

    Raises:
        PlanOutdated: the current tables have no room for a row.
        apsw.Error, OSError: one cannot be read or written.
    """
    with sqlite.open_writable(new, create=True) as db, sqlite.attach_readonly(db, old, "old"):
        # Damage is no affair of an upgrade: what the tables' rules would refuse stays as it is.
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        with sqlite.transaction(db):
            for statement in TABLES:
                db.execute(statement)
            for table in _ORDER:
                try:
                    _copy(db, table)
                except apsw.ConstraintError as error:
                    raise PlanOutdated(
                        path=old, reason=tr("the current tables refuse a row of it ({error})", error=error)
                    ) from error


#: What a model can do where its row does not say so: what ranks hits, and makes no vectors, is a model for that.
_CAPABILITIES = f"""CASE
  WHEN json_valid(capabilities) AND json_array_length(capabilities) > 0 THEN capabilities
  WHEN id IN (SELECT rerank_model_id FROM old.{BASES})
   AND id NOT IN (SELECT embedding_model_id FROM old.{BASES} WHERE embedding_model_id NOT NULL)
  THEN '{json.dumps(RERANK)}' ELSE '{json.dumps(EMBEDDING)}' END"""


def _copy(db: apsw.Connection, table: str) -> None:
    there, names = (
        [str(row[1]) for row in db.execute(f"PRAGMA {one}.table_info('{table}')")] for one in ("old", "main")
    )
    values = {name: untrusted_sqlite.quote_name(name) for name in names if name in there}
    if not values:
        return
    if table == MODELS:
        values |= {"capabilities": _CAPABILITIES if "capabilities" in there else f"'{json.dumps(EMBEDDING)}'"}
        values.setdefault("supports_streaming", "1")
    columns = ", ".join(map(untrusted_sqlite.quote_name, values))
    read = f"SELECT {', '.join(values.values())} FROM old.{table} ORDER BY rowid"
    db.execute(f"INSERT INTO main.{table} ({columns}) {read}")


#: What reading a damaged file raises.
_DAMAGE = (apsw.Error, OSError, UnicodeDecodeError)


class UpgradeOptions(msgspec.Struct, frozen=True):
    """What the user says of models of preview builds; ``now_ms`` is the run's time."""

    now_ms: int
    model_overrides: ModelOverrides = msgspec.field(default_factory=ModelOverrides)


def plan(store: Store, options: UpgradeOptions) -> Plan:
    """Return what has to be done for every chosen index file to be of version 2; nothing is written."""
    made = Plan()
    previews: dict[str, Place] = {}
    for base, place in store.stores.items():
        if store.wants(base):
            planned = _plan_file(store, base, place, options)
            made.add(planned)
            if place.look.layout is IndexLayout.PREVIEW and not planned.left:
                previews[base] = place
    if previews:
        made.add(repair_cherry_preview.plan_upgrade(store, previews, options.model_overrides, options.now_ms))
    try:
        return add_catalog_upgrade(made, store)
    except _DAMAGE as error:
        made.left.append(
            Unresolved(
                finding=v2.UNREADABLE, reason=tr("the catalog cannot be read: {error}", error=error), severity="error"
            )
        )
    return made


def _plan_file(store: Store, base: str, place: Place, options: UpgradeOptions) -> Plan:
    """Plan the upgrade of one index file; of a preview build's, just say what keeps it from one."""
    if place.look.layout is IndexLayout.UNREADABLE:
        return Plan(left=[_damaged(base, place, place.look.problem)])
    try:
        with cherry_preview.readable_copy(store.root / place.name) as path, sqlite.open_readonly(path) as db:
            version, _ = older.read_version(db)
        if older.is_newer_version(version):
            message = tr(
                "the index is of version {named}, and {schema_version} is the latest that is known here",
                named=display_text(version),
                schema_version=SCHEMA_VERSION,
            )
            return Plan(left=[_left(v2.SCHEMA_VERSION, message, base, place)])
        return Plan() if place.look.layout is IndexLayout.PREVIEW else _plan_index(store, base, place, options)
    except _DAMAGE as error:
        return Plan(left=[_damaged(base, place, str(error))])


def _damaged(base: str, place: Place, problem: str) -> Unresolved:
    reason = tr("{name} cannot be read: {problem}", name=place.name, problem=problem)
    return Unresolved(finding=v2.UNREADABLE, reason=reason, base=base, severity="error")


def _left(finding: str, reason: str, base: str, place: Place, count: int = 1) -> Unresolved:
    return Unresolved(finding=finding, reason=reason, base=base, subject=place.name, count=count, severity="error")


# --- seven tables ----------------------------------------------------------------------------------------------------


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with an index file of seven tables."""

    shape: SchemaShape
    version: object
    has_identity: bool
    #: Bodies without a number in the full-text index.
    unnumbered: int
    #: Rows of a preview build beside them.
    previews: int
    #: Whether SQLite refuses its schema, so that nobody can open it.
    is_refused: bool

    @property
    def is_stamped(self) -> bool:
        """Tell whether its identity row gives the layout's version."""
        return isinstance(self.version, int) and self.version == SCHEMA_VERSION

    @property
    def findings(self) -> tuple[str, ...]:
        """Return what an upgrade mends in it."""
        has_version = "meta" in self.shape.tables and self.has_identity
        wrong = {
            v2.SCHEMA_VERSION: has_version and not self.is_stamped,
            v2.SCHEMA_MISSING: bool(self.shape.missing),
            v2.BODY_ROWID: bool(self.unnumbered),
        }
        return tuple(name for name, is_wrong in wrong.items() if is_wrong)

    @property
    def is_current(self) -> bool:
        """Tell whether an upgrade mends nothing in it."""
        return not self.findings and not self.is_refused

    @property
    def lacks_its_stamp(self) -> bool:
        """Tell whether nothing else is wrong than that it says another version than its own."""
        return self.findings == (v2.SCHEMA_VERSION,) and self.version != 1 and not self.is_refused


def _plan_index(store: Store, base: str, place: Place, options: UpgradeOptions) -> Plan:
    made, path = Plan(), store.root / place.name
    with cherry_preview.readable_copy(path) as copy, sqlite.open_readonly(copy) as db:
        seen = _look(db, is_refused=copy != path)
        if seen.previews:
            rows = format_count(seen.previews, "row")
            message = tr("{rows} of a preview build beside units of v2: nothing says which are right", rows=rows)
            made.left.append(_left(v2.SCHEMA_PREVIEW, message, base, place, seen.previews))
        if seen.is_current:
            return made
        if seen.lacks_its_stamp:
            made.changes.append(_stamp(base, place.name, seen))
            made.resolves.add((v2.SCHEMA_VERSION, base))
            return made
        try:
            old = older.examine_index(db, options.now_ms, knows_base=place.base_id is not None)
        except _DAMAGE as error:
            made.left.append(_damaged(base, place, str(error)))
            return made
    if old.problems:
        finding = v2.SCHEMA_MISSING if v2.SCHEMA_MISSING in seen.findings else (seen.findings or (v2.CORRUPT,))[0]
        made.left += [
            _left(finding, tr("it stays in its layout: {problem}", problem=problem), base, place)
            for problem in old.problems
        ]
        return made
    made.changes.append(_rebuild(path, base, place, old, seen))
    made.resolves |= {(finding, base) for finding in seen.findings}
    return made


def _look(db: apsw.Connection, *, is_refused: bool) -> _Seen:
    version, has_identity = older.read_version(db)
    shape = compare_schema(db, FindingCollector())
    unnumbered = 0
    if shape.has_rowid and shape.has("search_text"):
        unnumbered = db.execute("SELECT count(*) FROM search_text NOT INDEXED WHERE fts_rowid IS NULL").get
    return _Seen(
        shape=shape,
        version=version,
        has_identity=has_identity,
        unnumbered=unnumbered,
        previews=cherry_preview.count_rows(db),
        is_refused=is_refused,
    )


def _stamp(base: str, name: str, seen: _Seen) -> RowsChange:
    """Return what writes the layout's version for a file that is in its layout and says another one."""
    message = tr(
        "stamp the index as version {schema_version}: its tables are, but it says {named}",
        schema_version=SCHEMA_VERSION,
        named=display_text(seen.version),
    )
    action = Action(action="stamp-version", message=message, base=base, subject=name, finding=v2.SCHEMA_VERSION)

    def apply(db: apsw.Connection) -> None:
        first = "(SELECT id FROM meta ORDER BY id LIMIT 1)"
        db.execute(f"UPDATE meta SET schema_version = ? WHERE id = {first}", (SCHEMA_VERSION,))

    return RowsChange(path=name, actions=(action,), apply=apply, tables=("meta",))


def _rebuild(path: Path, base: str, place: Place, old: OldIndex, seen: _Seen) -> FileChange:
    """Plan a fresh file in place of an old one."""
    size = old.bytes(path.stat().st_size)
    units, vectors = old.counts["search_unit"], old.counts["embedding"]
    was = (
        tr("a version nobody gives") if old.version is None else tr("version {named}", named=display_text(old.version))
    )
    if seen.is_stamped:
        was = tr("an unfinished version {schema_version}", schema_version=SCHEMA_VERSION)
    message = tr(
        "write the index anew as version {schema_version} (it is {was}), with all of its",
        schema_version=SCHEMA_VERSION,
        was=was,
    )
    message = tr(
        "{message_} {units} and {vectors}",
        message_=message,
        units=format_count(units, "unit"),
        vectors=format_count(vectors, "vector"),
    )
    finding = seen.findings[0] if seen.findings else None
    action = Action(
        action="upgrade-index", message=message, base=base, subject=place.name, count=units, bytes=size, finding=finding
    )

    def make(new: Path) -> None:
        demand_no_log(path)
        with cherry_preview.readable_copy(path) as copy:
            older.build_current_index(copy, new, old, str(place.base_id))
            kept = cherry_preview.copy_remaining_rows(copy, new) if seen.previews else 0
        if kept != seen.previews:
            raise PlanOutdated(path=path, reason=tr("rows of a preview build were added or removed"))
        durable.copy_mode(path, new)

    return FileChange(path=place.name, actions=(action,), make=make, bytes=size)


def demand_no_log(path: Path) -> None:
    """Refuse to put a file in place of one with a log beside it, which would be taken for its own.

    Raises:
        PlanOutdated
    """
    beside = untrusted_sqlite.find_companions(path)
    if beside:
        raise PlanOutdated(
            path=path, reason=tr("an unfinished transaction lies beside it ({name})", name=beside[0].name)
        )
