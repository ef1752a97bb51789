"""Plan which rows of an index file ``gc`` deletes, and whether its free space is given back.

Rows that ``repair`` could still use are kept: the vector of a unit without a body, or of a body with a wrong hash, is
among those that no body names. Rows that may belong to an item without a material are kept unless the user names the
finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import apsw
import msgspec

from checks.audit.findings import FINDINGS, Finding
from checks.cherry_v2 import detect
from checks.cherry_v2 import findings as v2
from regraft.disk import sqlite
from regraft.errors import PlanOutdated
from regraft.formats.cherry_v2.index import store
from regraft.language import format_count, join_list, tr
from regraft.text import format_bytes
from repair.changes.options import GcOptions
from repair.changes.plan import Action, Plan, Reclaim, RowsChange, Unresolved
from repair.changes.store import Store
from repair.cherry_v2.indexing import find_lost_units

# --- findings that gc resolves --------------------------------------------------------------------------------------


#: Findings whose rows or files are removed. Those in BY_NAME could be used again, so they are removed only if the user
#: names them.
NAMES = (
    *(v2.BODY_ORPHAN, v2.VECTOR_ORPHAN, v2.CONTENT_ORPHAN, v2.RAW_ORPHAN, v2.INDEX_ORPHAN),
    *(v2.VECTOR_UNEXPECTED, v2.LEFTOVER),
)
BY_NAME = {v2.VECTOR_UNEXPECTED, v2.LEFTOVER}
#: Findings about schema objects that never run and do not affect rows.
_BESIDE_ROWS = {v2.FOREIGN_TRIGGER, v2.FOREIGN_VIEW, v2.FOREIGN_INDEX}


def is_wanted(options: GcOptions, finding: str) -> bool:
    """Whether the options say to remove the objects of a finding, such as orphan vectors."""
    if finding == v2.LEFTOVER and options.v1_leftovers:
        return True
    return finding in options.only if finding in BY_NAME else options.wants(finding)


def is_damage(finding: Finding) -> bool:
    """Whether a finding says that a file is damaged, so that it is unknown which rows are needed."""
    return finding.name.startswith(("file.", "schema.")) and finding.name not in _BESIDE_ROWS


def leave_damaged(finding: Finding) -> Unresolved:
    """Report that nothing of a base is removed, because the finding says that a file of it is damaged."""
    reason = tr("cannot determine what is in use, so nothing of this base is removed: {what}", what=finding.message)
    return Unresolved(
        finding=finding.name, reason=reason, base=finding.base, severity=finding.severity, repair=finding.repair
    )


def leave_for_repair(store: Store, finding: Finding, lacking: Sequence[str]) -> Unresolved:
    """Report that the rows of a finding are kept, because the repair of the findings ``lacking`` may need them."""
    command = None
    if any(FINDINGS[name].command[:1] == ("repair",) for name in lacking):
        command = store.command_line("repair", "--base", str(finding.base))
    reason = tr(
        "{what}; kept, because the repair of {lacking} may need this: repair that first",
        what=finding.message,
        lacking=join_list(lacking),
    )
    return Unresolved(finding=finding.name, reason=reason, base=finding.base, count=finding.count, repair=command)


class _Garbage(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of rows that nothing needs: the finding, the action that deletes them, and the SQL that selects them."""

    finding: str
    action: str
    noun: str
    which: str
    table: str
    where: str
    size: str
    #: Columns of the reference. If one holds other values than text, it is unknown which rows are needed.
    keys: tuple[tuple[str, str], ...]
    #: Findings whose repair may need these rows.
    needed_by: frozenset[str] = frozenset()
    #: The condition once orphan bodies are deleted.
    then: str = ""


_BODY_KEYS = (("search_text", "target_id"), ("search_unit", "unit_id"))
_VECTOR_KEYS = (("embedding", "embedding_text_hash"), ("search_text", "embedding_text_hash"))
_CONTENT_KEYS = (("content", "content_hash"), ("material", "current_content_hash"), ("search_unit", "content_hash"))
#: Columns that may be NULL.
_NULLABLE = {("material", "current_content_hash")}
_GARBAGE = (
    _Garbage(
        finding=v2.BODY_ORPHAN,
        action="delete-bodies",
        noun="body",
        which=tr("whose unit is missing"),
        table="search_text",
        where=detect.ORPHAN_BODY.condition,
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
        # The catalog may have lost the base's model.
        needed_by=frozenset({v2.BASE_STATUS}),
    ),
    _Garbage(
        finding=v2.VECTOR_ORPHAN,
        action="delete-embeddings",
        noun="vector",
        which=tr("not referenced by any indexed text"),
        table="embedding",
        where=detect.ORPHAN_VECTOR.condition,
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
        which=tr("not referenced by anything"),
        table="content",
        where=detect.ORPHAN_CONTENT.condition,
        size="text",
        keys=_CONTENT_KEYS,
        needed_by=frozenset({v2.CONTENT_HASH, v2.NO_CONTENT, v2.UNIT_CONTENT}),
    ),
)

#: Findings whose rows may be the text of an item without a material.
_OF_MATERIALS = frozenset({v2.BODY_ORPHAN, v2.VECTOR_ORPHAN, v2.CONTENT_ORPHAN})


@dataclass(kw_only=True)
class IndexGarbage:
    """An intact index file of the base ``base``, whose rows that nothing needs are to be deleted."""

    store: Store
    base: str
    #: The file, below the store's root.
    name: str
    #: Findings of the quick audit.
    found: list[Finding]
    #: Why nothing of the base is deleted; None: it is not protected.
    protected: str | None = None
    _proven: bool | None = None
    _odd: dict[tuple[str, str], bool] = field(default_factory=dict)

    @cached_property
    def findings(self) -> dict[str, Finding]:
        """Findings of the full audit about the base, by name."""
        audited = self.store.audit(bases=frozenset({self.base}))
        return {one.name: one for one in audited.findings if one.base == self.base}

    def plan(self, options: GcOptions) -> Plan:
        """Plan to delete the rows that nothing needs, as far as the options select them."""
        wanted = self._choose(options)
        if self.protected is not None:
            return Plan(left=[*self._report_protected(wanted, self.protected)])
        if not wanted:
            return Plan()
        damage = list(filter(is_damage, self.findings.values()))
        if damage:
            return Plan(left=[*map(leave_damaged, damage)])
        with sqlite.open_readonly(self.store.root / self.name) as db:
            left = [stays for one in wanted for stays in self._report_kept(db, one, options)]
            removed = [(waste, action) for waste, action in self._removals(db, wanted, options) if action.count]
        if not removed:
            return Plan(left=left)
        return Plan([self._change(removed)], left, {(waste.finding, self.base) for waste, _ in removed})

    def _choose(self, options: GcOptions) -> list[_Garbage]:
        """Return the kinds of garbage that the quick audit found in the file and that the options select."""
        named = {one.name for one in self.found}
        if v2.BODY_ORPHAN in named:
            # Deleting a body can leave an orphan vector.
            named.add(v2.VECTOR_ORPHAN)
        return [one for one in _GARBAGE if one.finding in named and is_wanted(options, one.finding)]

    def _report_protected(self, garbage: list[_Garbage], why: str) -> Iterator[Unresolved]:
        """Report, for each kind of rows that the base has, that they are kept, and why."""
        for name in sorted({one.finding for one in garbage} & self.findings.keys()):
            finding = self.findings[name]
            yield Unresolved.of(finding, tr("{what}, kept: {why}", what=finding.message, why=why))

    def _removals(
        self, db: apsw.Connection, garbage: list[_Garbage], options: GcOptions
    ) -> Iterator[tuple[_Garbage, Action]]:
        """Yield the ``garbage`` kinds of rows that may be deleted, each with the action that does it."""
        known = {
            one.finding: one
            for one in garbage
            if not self._needing(one)
            and not self._may_return(one, options)
            and not self._has_odd_keys(db, one)
            and not self._is_proven(db, one, options)
        }
        bodies_go = v2.BODY_ORPHAN in known
        if v2.VECTOR_UNEXPECTED in known:
            known.pop(v2.VECTOR_ORPHAN, None)
        for waste in known.values():
            yield waste, self._make_action(db, waste, bodies_go=bodies_go)

    def _report_kept(self, db: apsw.Connection, garbage: _Garbage, options: GcOptions) -> Iterator[Unresolved]:
        """Report why rows of this kind are kept although no row refers to them; nothing if they are deleted."""
        finding, needing = self.findings.get(garbage.finding), self._needing(garbage)
        if finding is not None and needing:
            yield leave_for_repair(self.store, finding, needing)
        elif finding is not None and self._is_proven(db, garbage, options):
            reason = tr(
                "{what}, kept: regraft repair writes their units again; gc deletes them only with --only {name}",
                what=finding.message,
                name=garbage.finding,
            )
            line = self.store.command_line("repair", "--only", garbage.finding, "--base", self.base)
            yield Unresolved.of(finding, reason, repair=line)
        elif finding is not None and self._may_return(garbage, options):
            reason = tr(
                "{what}, kept: items of the base have no text in the index, and it may be theirs; --only {name} "
                "removes it",
                what=finding.message,
                name=garbage.finding,
            )
            yield Unresolved.of(finding, reason)
        elif finding is not None and self._has_odd_keys(db, garbage):
            reason = tr(
                "{what}, but some ids are not text, so what is in use cannot be determined",
                what=finding.message,
            )
            yield Unresolved(finding=finding.name, reason=reason, base=self.base, count=finding.count)

    def _needing(self, garbage: _Garbage) -> list[str]:
        """Return the names of present findings whose repair may need rows of this kind."""
        return sorted(garbage.needed_by & self.findings.keys())

    def _is_proven(self, db: apsw.Connection, garbage: _Garbage, options: GcOptions) -> bool:
        """Whether the rows are bodies from which ``repair`` can write missing units again.

        False if the user names the finding.
        """
        if garbage.finding != v2.BODY_ORPHAN or garbage.finding in options.only:
            return False
        if self._proven is None:
            self._proven = bool(find_lost_units(db)[0])
        return self._proven

    def _may_return(self, garbage: _Garbage, options: GcOptions) -> bool:
        """Whether the rows may belong to items without a material. False if the user names the finding."""
        lacking = self.findings.get(v2.ITEM_NO_MATERIAL)
        is_lost = lacking is not None and lacking.severity != "note"
        return is_lost and garbage.finding in _OF_MATERIALS and garbage.finding not in options.only

    def _has_odd_keys(self, db: apsw.Connection, garbage: _Garbage) -> bool:
        """Whether a key column that shows which of these rows are unneeded has values that are not text.

        Comparisons would miss such values.
        """
        for table, column in garbage.keys:
            if (table, column) not in self._odd:
                usual = "'text', 'null'" if (table, column) in _NULLABLE else "'text'"
                query = f"SELECT EXISTS (SELECT 1 FROM {table} WHERE typeof({column}) NOT IN ({usual}))"
                self._odd[table, column] = bool(db.execute(query).get)
        return any(self._odd[key] for key in garbage.keys)

    def _make_action(self, db: apsw.Connection, garbage: _Garbage, *, bodies_go: bool) -> Action:
        """Count the rows of a kind and describe their deletion; ``bodies_go``: orphan bodies are deleted before."""
        where = garbage.then if bodies_go and garbage.then else garbage.where
        size = f"ifnull(sum(length(CAST({garbage.size} AS BLOB))), 0)"
        count, held = next(db.execute(f"SELECT count(*), {size} FROM {garbage.table} WHERE {where}"))
        message = tr("delete {counted} {which}", counted=format_count(count, garbage.noun), which=garbage.which)
        return Action(
            action=garbage.action, message=message, base=self.base, count=count, bytes=held, finding=garbage.finding
        )

    def _change(self, removed: list[tuple[_Garbage, Action]]) -> RowsChange:
        """Make the change that deletes rows; refused if another number of rows than planned would be deleted."""
        path = self.store.root / self.name

        def apply(db: apsw.Connection) -> None:
            """Delete the planned rows from the open index."""
            for waste, action in removed:
                db.execute(f"DELETE FROM {waste.table} WHERE {waste.where}")
                if db.changes() != action.count:
                    rows = tr("{count} rows of {table}", count=action.count, table=waste.table)
                    reason = tr(
                        "the plan deletes {rows}, but now {changes} would be deleted", rows=rows, changes=db.changes()
                    )
                    raise PlanOutdated(path=path, reason=reason)

        actions = tuple(action for _, action in removed)
        tables = tuple(dict.fromkeys(waste.table for waste, _ in removed))
        size, bodies = sum(action.bytes for action in actions), "search_text" in tables
        return RowsChange(path=self.name, actions=actions, apply=apply, tables=tables, bytes=size, bodies=bodies)


# --- free space (``docs/formats/index.md``, "How the store behaves") ------------------------------------------------


def plan_space(file: IndexGarbage, removal: Plan) -> Plan:
    """Plan to shrink an index file if it has much free space after the deletions that ``removal`` plans."""
    with sqlite.open_readonly(file.store.root / file.name) as db:
        size, free = store.database_sizes(db)
    free += sum(action.bytes for action in removal.actions)
    if not store.is_vacuum_worthwhile(size, free):
        return Plan()
    # If bodies are deleted, the full-text index is rebuilt.
    bodies_go = any(isinstance(change, RowsChange) and change.bodies for change in removal.changes)
    damage = (file.findings[name] for name in (v2.FTS_DESYNC, v2.BODY_ROWID) if name in file.findings)
    desync = None if bodies_go else next(damage, None)
    if desync is not None:
        reason = tr("free space is not given back until the full-text index is repaired: {what}", what=desync.message)
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
        "shrink the index file by about {free} of {size}",
        free=format_bytes(free),
        size=format_bytes(size),
    )
    action = Action(action="vacuum", message=message, base=file.base, subject=file.name, bytes=free)
    return Plan(reclaims=[Reclaim(file.name, action, size)])
