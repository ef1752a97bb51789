"""Older index layouts, half-applied ones and those of preview builds → version 2, in place, every vector kept.

The catalog of a library that an earlier regraft wrote comes along (:mod:`repair.cherry_v2.upgrade_catalog`).
Rules: ``docs/commands.md``, "regraft upgrade". An index file is never changed row by row: a fresh one is written beside
it, compared with what was read, and takes its place.
"""

from __future__ import annotations

from pathlib import Path

import apsw
import msgspec

from checks.audit.collector import FindingCollector, named
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.schema_shape import Shape, shape_of
from migrators import ModelOverrides
from regraft import sqlite
from regraft.errors import PlanOutdated
from regraft.formats.cherry_preview import libsql
from regraft.formats.cherry_preview.libsql import Layout
from regraft.formats.cherry_v2.index import SCHEMA_VERSION, older
from regraft.formats.cherry_v2.index.older import OldIndex
from regraft.formats.cherry_v2.layout import Store as Place
from regraft.language import tr
from regraft.ledger import durable
from regraft.text import counted
from repair.changes.plan import Action, FileChange, Plan, RowsChange, Unresolved
from repair.changes.store import Store
from repair.cherry_preview import upgrade
from repair.cherry_v2 import upgrade_catalog

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
            if place.look.layout is Layout.PREVIEW and not planned.left:
                previews[base] = place
    if previews:
        made.add(upgrade.plan(store, previews, options.model_overrides, options.now_ms))
    try:
        return upgrade_catalog.beside(made, store)
    except _DAMAGE as error:
        made.left.append(
            Unresolved(
                finding=v2.UNREADABLE, reason=tr("the catalog cannot be read: {error}", error=error), severity="error"
            )
        )
    return made


def _plan_file(store: Store, base: str, place: Place, options: UpgradeOptions) -> Plan:
    """Plan the upgrade of one index file; of a preview build's, just say what keeps it from one."""
    if place.look.layout is Layout.UNREADABLE:
        return Plan(left=[_damaged(base, place, place.look.problem)])
    try:
        with libsql.readable(store.root / place.name) as path, sqlite.reading(path) as db:
            version, _ = older.version_of(db)
        if older.is_newer(version):
            message = tr(
                "the index is of version {named}, and {schema_version} is the latest that is known here",
                named=named(version),
                schema_version=SCHEMA_VERSION,
            )
            return Plan(left=[_left(v2.SCHEMA_VERSION, message, base, place)])
        return Plan() if place.look.layout is Layout.PREVIEW else _plan_index(store, base, place, options)
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

    shape: Shape
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
    with libsql.readable(path) as copy, sqlite.reading(copy) as db:
        seen = _look(db, is_refused=copy != path)
        if seen.previews:
            rows = counted(seen.previews, "row")
            message = tr("{rows} of a preview build beside units of v2: nothing says which are right", rows=rows)
            made.left.append(_left(v2.SCHEMA_PREVIEW, message, base, place, seen.previews))
        if seen.is_current:
            return made
        if seen.lacks_its_stamp:
            made.changes.append(_stamp(base, place.name, seen))
            made.resolves.add((v2.SCHEMA_VERSION, base))
            return made
        try:
            old = older.examine(db, options.now_ms, knows_base=place.base_id is not None)
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
    version, has_identity = older.version_of(db)
    shape = shape_of(db, FindingCollector())
    unnumbered = 0
    if shape.has_rowid and shape.has("search_text"):
        unnumbered = db.execute("SELECT count(*) FROM search_text NOT INDEXED WHERE fts_rowid IS NULL").get
    return _Seen(
        shape=shape,
        version=version,
        has_identity=has_identity,
        unnumbered=unnumbered,
        previews=libsql.count_rows(db),
        is_refused=is_refused,
    )


def _stamp(base: str, name: str, seen: _Seen) -> RowsChange:
    """Return what writes the layout's version for a file that is in its layout and says another one."""
    message = tr(
        "stamp the index as version {schema_version}: its tables are, but it says {named}",
        schema_version=SCHEMA_VERSION,
        named=named(seen.version),
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
    was = tr("a version nobody gives") if old.version is None else tr("version {named}", named=named(old.version))
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
        units=counted(units, "unit"),
        vectors=counted(vectors, "vector"),
    )
    finding = seen.findings[0] if seen.findings else None
    action = Action(
        action="upgrade-index", message=message, base=base, subject=place.name, count=units, bytes=size, finding=finding
    )

    def make(new: Path) -> None:
        demand_settled(path)
        with libsql.readable(path) as copy:
            older.build(copy, new, old, str(place.base_id))
            kept = libsql.keep_rows(copy, new) if seen.previews else 0
        if kept != seen.previews:
            raise PlanOutdated(path=path, reason=tr("rows of a preview build were added or removed"))
        durable.copy_mode(path, new)

    return FileChange(path=place.name, actions=(action,), make=make, bytes=size)


def demand_settled(path: Path) -> None:
    """Refuse to put a file in place of one with a log beside it, which would be taken for its own.

    Raises:
        PlanOutdated
    """
    beside = sqlite.companions(path)
    if beside:
        raise PlanOutdated(
            path=path, reason=tr("an unfinished transaction lies beside it ({name})", name=beside[0].name)
        )
