"""Rows of an index file that nothing reaches.

What ``repair`` could still use is not removed: a unit without a body, or a body under a wrong hash, has its vector
among those that no body names. Nor is what an item without a material may get back, unless the finding is named.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import apsw
import msgspec

from checks.audit.findings import FINDINGS, Finding
from checks.cherry_v2 import findings as v2
from regraft.disk import sqlite
from regraft.errors import PlanOutdated
from regraft.formats.cherry_v2.index import store
from regraft.language import format_count, join_list, tr
from regraft.text import format_bytes, path_argument
from repair.changes.plan import Action, Plan, Reclaim, RowsChange, Unresolved
from repair.changes.store import Store
from repair.cherry_v2.rules.index import find_lost_units
from repair.options import GcOptions

# Which garbage is removed, and how what is not removed is said.


#: Findings whose rows or files are removed. Those of BY_NAME could be listed or attached again: they go only where the
#: user names them.
NAMES = (
    *(v2.BODY_ORPHAN, v2.VECTOR_ORPHAN, v2.CONTENT_ORPHAN, v2.RAW_ORPHAN, v2.INDEX_ORPHAN),
    *(v2.VECTOR_UNEXPECTED, v2.LEFTOVER),
)
BY_NAME = {v2.VECTOR_UNEXPECTED, v2.LEFTOVER}
#: Of these, what has another copy goes without being named.
UNLESS_COPIED = {v2.RAW_ORPHAN, v2.INDEX_ORPHAN}


#: What a stranger's schema has that says nothing of rows: it never runs.
_BESIDE_ROWS = {v2.FOREIGN_TRIGGER, v2.FOREIGN_VIEW, v2.FOREIGN_INDEX}


def is_wanted(options: GcOptions, finding: str) -> bool:
    """Tell whether what a finding is about is to be removed."""
    if finding == v2.LEFTOVER and options.v1_leftovers:
        return True
    return finding in options.only if finding in BY_NAME else options.wants(finding)


def is_damage(finding: Finding) -> bool:
    """Tell whether a finding says that a file is damaged, so that nobody can tell what is reached in it."""
    return finding.name.startswith(("file.", "schema.")) and finding.name not in _BESIDE_ROWS


def leave_damaged(finding: Finding) -> Unresolved:
    """Return what is left of a base that is damaged: all of it."""
    reason = tr(
        "what is reached cannot be told, so that nothing of this base is removed: {message_}", message_=finding.message
    )
    return Unresolved(
        finding=finding.name, reason=reason, base=finding.base, severity=finding.severity, repair=finding.repair
    )


def leave_for_repair(store: Store, finding: Finding, lacking: Sequence[str]) -> Unresolved:
    """Return what is left because it may be what other findings lack."""
    command = None
    if any(FINDINGS[name].command[:1] == ("repair",) for name in lacking):
        command = shlex.join(["regraft", "repair", path_argument(store.path), "--base", str(finding.base)])
    reason = tr(
        "{message_}, and it may be what {lacking} lacks: mend that first",
        message_=finding.message,
        lacking=join_list(lacking),
    )
    return Unresolved(finding=finding.name, reason=reason, base=finding.base, count=finding.count, repair=command)


class _Garbage(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one table that nothing reaches."""

    finding: str
    action: str
    noun: str
    which: str
    table: str
    where: str
    size: str
    #: The columns that tell what is reached: where one holds anything but text, nobody can tell.
    keys: tuple[tuple[str, str], ...]
    #: Findings whose repair may need these rows.
    needed_by: frozenset[str] = frozenset()
    #: Which rows they are once the bodies without a unit are gone, too.
    then: str = ""


_BODY_KEYS = (("search_text", "target_id"), ("search_unit", "unit_id"))
_VECTOR_KEYS = (("embedding", "embedding_text_hash"), ("search_text", "embedding_text_hash"))
_CONTENT_KEYS = (("content", "content_hash"), ("material", "current_content_hash"), ("search_unit", "content_hash"))
#: Columns that may be without a value.
_NULLABLE = {("material", "current_content_hash")}
_GARBAGE = (
    _Garbage(
        finding=v2.BODY_ORPHAN,
        action="delete-bodies",
        noun="body",
        which=tr("whose unit is gone"),
        table="search_text",
        where="NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = search_text.target_id)",
        size="text",
        keys=_BODY_KEYS,
        needed_by=frozenset({v2.NO_BODY, v2.NO_UNITS}),
    ),
    _Garbage(
        finding=v2.VECTOR_UNEXPECTED,
        action="delete-embeddings",
        noun="vector",
        which=tr("of a base without a model"),
        table="embedding",
        where="TRUE",
        size="vector_blob",
        keys=(),
        # Its model may be what the catalog has lost.
        needed_by=frozenset({v2.BASE_STATUS}),
    ),
    _Garbage(
        finding=v2.VECTOR_ORPHAN,
        action="delete-embeddings",
        noun="vector",
        which=tr("that no body names"),
        table="embedding",
        where="NOT EXISTS (SELECT 1 FROM search_text t WHERE t.embedding_text_hash = embedding.embedding_text_hash)",
        size="vector_blob",
        keys=_VECTOR_KEYS,
        needed_by=frozenset({v2.NO_BODY, v2.BODY_HASH, v2.NO_UNITS}),
        then="NOT EXISTS (SELECT 1 FROM search_text t WHERE t.embedding_text_hash = embedding.embedding_text_hash"
        " AND EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = t.target_id))",
    ),
    _Garbage(
        finding=v2.CONTENT_ORPHAN,
        action="delete-contents",
        noun="text",
        which=tr("that nothing names"),
        table="content",
        where="NOT EXISTS (SELECT 1 FROM material m WHERE m.current_content_hash = content.content_hash)"
        " AND NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.content_hash = content.content_hash)",
        size="text",
        keys=_CONTENT_KEYS,
        needed_by=frozenset({v2.CONTENT_HASH, v2.NO_CONTENT, v2.UNIT_CONTENT}),
    ),
)


#: What the text of an item without a material may still be among.
_OF_MATERIALS = frozenset({v2.BODY_ORPHAN, v2.VECTOR_ORPHAN, v2.CONTENT_ORPHAN})


@dataclass(kw_only=True)
class IndexGarbage:
    """An index file whose structure is whole, and what is going to be removed from it."""

    store: Store
    base: str
    #: Below the store's root.
    name: str
    #: What a quick look found.
    found: list[Finding]
    #: Why nothing of the base is deleted; None where it is not protected.
    protected: str | None = None
    _proven: bool | None = None
    _odd: dict[tuple[str, str], bool] = field(default_factory=dict)

    @cached_property
    def findings(self) -> dict[str, Finding]:
        """Return what is found once texts and vectors are read, too, by name."""
        audited = self.store.audit(bases=frozenset({self.base}))
        return {one.name: one for one in audited.findings if one.base == self.base}

    def plan(self, options: GcOptions) -> Plan:
        """Return what is removed from the file."""
        wanted = self._wanted(options)
        if self.protected is not None:
            return Plan(left=[*self._kept(wanted, self.protected)])
        damage = list(filter(is_damage, self.findings.values())) if wanted else []
        if damage or not wanted:
            return Plan(left=[*map(leave_damaged, damage)])
        with sqlite.open_readonly(self.store.root / self.name) as db:
            left = [stays for one in wanted for stays in self._left(db, one, options)]
            removed = [(waste, action) for waste, action in self._removed(db, wanted, options) if action.count]
        if not removed:
            return Plan(left=left)
        return Plan([self._change(removed)], left, {(waste.finding, self.base) for waste, _ in removed})

    def _wanted(self, options: GcOptions) -> list[_Garbage]:
        named = {one.name for one in self.found}
        if v2.BODY_ORPHAN in named:
            # With a body goes the vector that only it names.
            named.add(v2.VECTOR_ORPHAN)
        return [one for one in _GARBAGE if one.finding in named and is_wanted(options, one.finding)]

    def _kept(self, wanted: list[_Garbage], why: str) -> Iterator[Unresolved]:
        """Yield that the rows of a protected base stay."""
        for name in sorted({one.finding for one in wanted} & self.findings.keys()):
            finding = self.findings[name]
            yield Unresolved.of(finding, tr("{what}, kept: {why}", what=finding.message, why=why))

    def _removed(
        self, db: apsw.Connection, wanted: list[_Garbage], options: GcOptions
    ) -> Iterator[tuple[_Garbage, Action]]:
        """Yield the rows that are sure to be reached by nothing, with what removes them."""
        known = {
            one.finding: one
            for one in wanted
            if not self._needing(one)
            and not self._may_return(one, options)
            and not self._is_odd(db, one)
            and not self._is_proven(db, one, options)
        }
        bodies_go = v2.BODY_ORPHAN in known
        if v2.VECTOR_UNEXPECTED in known:
            known.pop(v2.VECTOR_ORPHAN, None)
        for waste in known.values():
            yield waste, self._action(db, waste, bodies_go=bodies_go)

    def _left(self, db: apsw.Connection, waste: _Garbage, options: GcOptions) -> Iterator[Unresolved]:
        """Yield why rows stay that were found, where they are not sure to be reached by nothing."""
        finding, needing = self.findings.get(waste.finding), self._needing(waste)
        if finding is not None and needing:
            yield leave_for_repair(self.store, finding, needing)
        elif finding is not None and self._is_proven(db, waste, options):
            reason = tr(
                "{what}, kept: regraft repair writes their units again; --only {name} deletes them",
                what=finding.message,
                name=waste.finding,
            )
            words = ["repair", path_argument(self.store.path), "--only", waste.finding, "--base", self.base]
            yield Unresolved.of(finding, reason, repair=shlex.join(["regraft", *words]))
        elif finding is not None and self._may_return(waste, options):
            reason = tr(
                "{what}, kept: items of the base have no text in the index, and it may be theirs; --only {name} "
                "removes it",
                what=finding.message,
                name=waste.finding,
            )
            yield Unresolved.of(finding, reason)
        elif finding is not None and self._is_odd(db, waste):
            reason = tr(
                "{message_}, but not every id is a text: what is reached cannot be told", message_=finding.message
            )
            yield Unresolved(finding=finding.name, reason=reason, base=self.base, count=finding.count)

    def _needing(self, waste: _Garbage) -> list[str]:
        """Return the findings whose repair may need rows."""
        return sorted(waste.needed_by & self.findings.keys())

    def _is_proven(self, db: apsw.Connection, waste: _Garbage, options: GcOptions) -> bool:
        """Whether bodies prove units that ``repair`` writes again; where the finding is named, they go all the same."""
        if waste.finding != v2.BODY_ORPHAN or waste.finding in options.only:
            return False
        if self._proven is None:
            self._proven = bool(find_lost_units(db)[0])
        return self._proven

    def _may_return(self, waste: _Garbage, options: GcOptions) -> bool:
        """Whether rows may be what items without a material lack; where the finding is named, they go all the same."""
        lacking = self.findings.get(v2.ITEM_NO_MATERIAL)
        is_lost = lacking is not None and lacking.severity != "note"
        return is_lost and waste.finding in _OF_MATERIALS and waste.finding not in options.only

    def _is_odd(self, db: apsw.Connection, waste: _Garbage) -> bool:
        """Tell whether a column that says what is reached holds anything but text."""
        return any(self._has_odd(db, *key) for key in waste.keys)

    def _has_odd(self, db: apsw.Connection, table: str, column: str) -> bool:
        key = (table, column)
        if key not in self._odd:
            usual = "'text', 'null'" if key in _NULLABLE else "'text'"
            query = f"SELECT EXISTS (SELECT 1 FROM {table} WHERE typeof({column}) NOT IN ({usual}))"
            self._odd[key] = bool(db.execute(query).get)
        return self._odd[key]

    def _action(self, db: apsw.Connection, waste: _Garbage, *, bodies_go: bool) -> Action:
        where = waste.then if bodies_go and waste.then else waste.where
        size = f"ifnull(sum(length(CAST({waste.size} AS BLOB))), 0)"
        count, held = next(db.execute(f"SELECT count(*), {size} FROM {waste.table} WHERE {where}"))
        message = tr("delete {counted} {which}", counted=format_count(count, waste.noun), which=waste.which)
        return Action(
            action=waste.action,
            message=message,
            base=self.base,
            subject=None,
            count=count,
            bytes=held,
            finding=waste.finding,
        )

    def _change(self, removed: list[tuple[_Garbage, Action]]) -> RowsChange:
        path = self.store.root / self.name

        def apply(db: apsw.Connection) -> None:
            for waste, action in removed:
                db.execute(f"DELETE FROM {waste.table} WHERE {waste.where}")
                if db.changes() != action.count:
                    rows = tr("{count} rows of {table}", count=action.count, table=waste.table)
                    reason = tr(
                        "{rows} were to be deleted, and now it would be {changes}", rows=rows, changes=db.changes()
                    )
                    raise PlanOutdated(path=path, reason=reason)

        actions = tuple(action for _, action in removed)
        tables = tuple(dict.fromkeys(waste.table for waste, _ in removed))
        size, bodies = sum(action.bytes for action in actions), "search_text" in tables
        return RowsChange(path=self.name, actions=actions, apply=apply, tables=tables, bytes=size, bodies=bodies)


# Space inside index files: whether giving it back pays (``docs/formats/index.md``, "How the store behaves").


def plan_space(file: IndexGarbage, removal: Plan) -> Plan:
    """Return what gives back the free space of a file, where that pays once its rows are removed."""
    with sqlite.open_readonly(file.store.root / file.name) as db:
        size, free = store.database_sizes(db)
    free += sum(action.bytes for action in removal.actions)
    if not store.is_vacuum_worthwhile(size, free):
        return Plan()
    # Where bodies go, the full-text index is built anew.
    bodies_go = any(isinstance(change, RowsChange) and change.bodies for change in removal.changes)
    desync = None if bodies_go else _desync(file)
    if desync is not None:
        reason = tr(
            "free space is not given back before the full-text index is mended: {message_}", message_=desync.message
        )
        stays = Unresolved(
            finding=desync.name,
            reason=reason,
            base=file.base,
            subject=file.name,
            count=desync.count,
            repair=desync.repair,
        )
        return Plan(left=[stays])
    message = tr(
        "give about {free} of {size} in the index file back to the disk",
        free=format_bytes(free),
        size=format_bytes(size),
    )
    action = Action(action="vacuum", message=message, base=file.base, subject=file.name, bytes=free)
    return Plan(reclaims=[Reclaim(file.name, action, size)])


def _desync(file: IndexGarbage) -> Finding | None:
    return next((file.findings[name] for name in (v2.FTS_DESYNC, v2.BODY_ROWID) if name in file.findings), None)
