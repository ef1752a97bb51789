"""Plan ``regraft reconcile`` for v2 data: the index of a base follows the catalog.

A material without an item is kept, because it can be listed again. If the user names ``material.orphan``, it is deleted
with its units and bodies, and with vectors and contents that nothing else needs, as the application does it. What the
index lacks is only reported. Rules: ``docs/formats/index.md``, "Following the catalog".
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec

from checks.audit.collector import Level
from checks.audit.findings import Finding
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import get_indexed_path, has_newer_type
from checks.cherry_v2.raw_files import find_path_problem
from regraft.disk import file_paths, sqlite, untrusted_sqlite
from regraft.errors import PlanOutdated
from regraft.formats.cherry_v2 import layout
from regraft.language import format_count, tr
from regraft.stores.derived import OutOfOrder, compare_sorted
from regraft.text import decode_text, decode_utf8, join_command, path_argument, quote_word, replace_surrogates
from repair.changes.options import ReconcileOptions
from repair.changes.plan import Action, Plan, RowsChange, Unresolved, group_by_base
from repair.changes.store import Store
from repair.cherry_v2.catalog_changes import demand_catalog, read_store_catalog
from repair.cherry_v2.evidence import DAMAGE
from repair.cherry_v2.protection import Protection

#: Findings about what the index lacks, which are only reported.
_MISSING = (v2.ITEM_NO_MATERIAL, v2.ITEM_NOT_INDEXED, v2.BASE_NO_INDEX)
#: Findings that are resolved; materials are deleted only if the user names the finding.
NAMES = (v2.MATERIAL_ORPHAN, v2.MATERIAL_PATH)
_DIFFERENT = set(NAMES)
#: Options of the repair that lists materials again.
LISTING = ("--only", v2.MATERIAL_ORPHAN, "--adopt")
#: With these findings, an index cannot be read or may belong to another base.
_DAMAGE = {*DAMAGE, v2.META_MISSING}


def plan(store: Store, options: ReconcileOptions) -> Plan:
    """Plan to make the indexes of a store match its catalog.

    Raises:
        NotChanged: there is no catalog that an index could follow.
        SourceUnreadable: the catalog cannot be read.
    """
    demand_catalog(store, "reconcile", tr("give the library or profile that contains it"))
    catalog = read_store_catalog(store, data=False)
    known = catalog.rows_by_base
    protection = Protection(store, catalog, options.spared)
    findings = store.findings(Level.QUICK)
    made = Plan()
    if not options.only:
        has_v1_files = any(finding.name == v2.LEFTOVER for finding in findings)
        lacking = (finding for finding in findings if finding.base is not None and finding.name in _MISSING)
        made.left += [_report_lacking(store, finding, has_v1_files=has_v1_files) for finding in lacking]
    for base, found in group_by_base(findings).items():
        if base is not None:
            made.add(_plan_base(store, base, found, options, protection, is_known=base in known))
    return made


def _plan_base(
    store: Store, base: str, found: list[Finding], options: ReconcileOptions, protection: Protection, *, is_known: bool
) -> Plan:
    """Plan to make the index of a base match the catalog.

    Args:
        store: the store.
        base: the base's id.
        found: the audit's findings about the base.
        options: the options of ``reconcile``.
        protection: tells whether the base is protected from deletions.
        is_known: whether the catalog has a row of the base.
    """
    made = Plan()
    why = next((finding.message for finding in found if finding.name in _DAMAGE), None)
    if why is None and not is_known:
        why = tr("the catalog has no such base")
    if why is not None:
        reason = tr("the index is not changed: {why}", why=why)
        unchanged = (finding for finding in found if finding.name in _DIFFERENT | _DAMAGE)
        made.left += [Unresolved.of(finding, reason, repair=finding.repair) for finding in unchanged]
        return made
    names = {finding.name for finding in found}
    wanted = set(filter(options.wants, names & _DIFFERENT))
    if v2.MATERIAL_ORPHAN in wanted:
        kept = _why_kept(base, options, protection)
        if kept is not None:
            wanted.discard(v2.MATERIAL_ORPHAN)
            made.left += [_report_kept(store, one, kept) for one in found if one.name == v2.MATERIAL_ORPHAN]
    if wanted:
        made.add(_plan_index(store, base, wanted, has_items_without_material=v2.ITEM_NO_MATERIAL in names))
    return made


def _why_kept(base: str, options: ReconcileOptions, protection: Protection) -> str | None:
    """Return why the materials without an item of a base are not deleted, or None."""
    reason = protection.reason(base)
    if reason is not None:
        return reason
    if v2.MATERIAL_ORPHAN in options.only:
        return None
    return tr("they can be listed again; --only {name} deletes them", name=v2.MATERIAL_ORPHAN)


def _report_kept(store: Store, finding: Finding, why: str) -> Unresolved:
    """Report that materials without an item are kept, and the command that adds their items again."""
    words = ["regraft", "repair", path_argument(store.path), *LISTING, "--base", str(finding.base)]
    reason = tr("{what}, kept: {why}", what=finding.message, why=why)
    return Unresolved.of(finding, reason, repair=join_command(words))


def _plan_index(store: Store, base: str, wanted: set[str], *, has_items_without_material: bool) -> Plan:
    """Plan to resolve the ``wanted`` findings in the index of a base; report them if it cannot be compared.

    ``has_items_without_material`` is a result of the audit.
    """
    try:
        follows = _IndexComparison(store=store, base=base, index=store.stores[base], wanted=frozenset(wanted))
        follows.compare(has_items_without_material=has_items_without_material)
        change = follows.change()
    except (apsw.Error, OSError, UnicodeDecodeError, OutOfOrder) as problem:
        message = tr("index and catalog cannot be compared: {problem}", problem=problem)
        return Plan(left=[Unresolved.registered(name, message, base=base) for name in sorted(wanted)])
    resolved = wanted.difference(one.finding for one in follows.left)
    return Plan([] if change is None else [change], follows.left, {(name, base) for name in resolved})


def _report_lacking(store: Store, finding: Finding, *, has_v1_files: bool) -> Unresolved:
    """Report an item without a text in the index, with the command that may restore it.

    ``has_v1_files``: whether vector files that the upgrade left behind are still in the store.
    """
    repair = finding.repair
    if has_v1_files and store.is_profile and finding.name != v2.ITEM_NOT_INDEXED:
        repair = f"regraft rescue {quote_word(path_argument(store.root))}"
    return Unresolved.of(finding, finding.message, repair=repair)


# --- one base --------------------------------------------------------------------------------------------------------

_GONE = "(SELECT value FROM json_each(?1))"
_BODIES = f"""SELECT t.rowid FROM search_unit u
     CROSS JOIN search_text t ON t.target_type = 'search_unit' AND t.target_id = u.unit_id
    WHERE u.material_id IN {_GONE}"""


class _Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of rows that is deleted with materials, whose ids are the JSON list ``?1`` in the query."""

    action: str
    noun: str
    table: str
    #: Query for the row numbers to delete.
    rows: str
    size: str = ""


#: Kinds of rows to delete.
_KINDS = (
    _Kind(
        action="delete-embeddings",
        noun="vector",
        table="embedding",
        # CROSS JOIN: bodies first. Without statistics, SQLite would start with every vector.
        rows=f"""WITH bodies (body) AS MATERIALIZED ({_BODIES})
            SELECT DISTINCT e.rowid FROM bodies CROSS JOIN search_text t ON t.rowid = body
             CROSS JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash
             WHERE NOT EXISTS (SELECT 1 FROM search_text o WHERE o.embedding_text_hash = e.embedding_text_hash
                                  AND o.rowid NOT IN (SELECT body FROM bodies))""",
        size="octet_length(vector_blob)",
    ),
    _Kind(action="delete-bodies", noun="body", table="search_text", rows=_BODIES, size="octet_length(text)"),
    _Kind(
        action="delete-contents",
        noun="text",
        table="content",
        rows=f"""SELECT c.rowid FROM content c
             WHERE c.content_hash IN (SELECT current_content_hash FROM material WHERE material_id IN {_GONE}
                                      UNION SELECT content_hash FROM search_unit WHERE material_id IN {_GONE})
               AND NOT EXISTS (SELECT 1 FROM material m WHERE m.current_content_hash = c.content_hash
                                  AND m.material_id NOT IN {_GONE})
               AND NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.content_hash = c.content_hash
                                  AND u.material_id NOT IN {_GONE})""",
        size="octet_length(text)",
    ),
    _Kind(
        action="delete-units",
        noun="unit",
        table="search_unit",
        rows=f"SELECT rowid FROM search_unit WHERE material_id IN {_GONE}",
    ),
    _Kind(
        action="delete-materials",
        noun="material",
        table="material",
        rows=f"SELECT rowid FROM material WHERE material_id IN {_GONE}",
    ),
)
#: Tables in the order of deletion: contents after materials, which refer to them.
_ORDER = ("search_text", "search_unit", "material", "content", "embedding")


class _Move(msgspec.Struct, frozen=True):
    """A material that gets the path of its item: its id, and both paths."""

    material: str
    old: str
    new: str


class _IndexComparison(msgspec.Struct):
    """Compares the index of one base with the catalog, and plans the changes of the index."""

    store: Store
    base: str
    index: layout.StoreFile
    #: Findings to resolve.
    wanted: frozenset[str]
    #: Ids of materials to delete, and materials that get another path.
    gone: list[str] = msgspec.field(default_factory=list)
    moves: list[_Move] = msgspec.field(default_factory=list)
    left: list[Unresolved] = msgspec.field(default_factory=list)

    def compare(self, *, has_items_without_material: bool) -> None:
        """Collect the materials to delete or to move, and the reports.

        If ``has_items_without_material`` and no material has an item either, nothing is deleted: the index may belong
        to other items.

        Raises:
            OutOfOrder: an id is there twice, or the texts of a file are not UTF-8.
            apsw.Error, OSError, UnicodeDecodeError: one of both cannot be read.
        """
        catalog = self.store.root / str(self.store.catalog)
        with sqlite.open_readonly(catalog) as items, sqlite.open_readonly(self.store.root / self.index.name) as index:
            if {items.execute("PRAGMA encoding").get, index.execute("PRAGMA encoding").get} != {"UTF-8"}:
                raise OutOfOrder(tr("their texts are not UTF-8"))
            for one in compare_sorted(_items(items, self.base), _read_materials(index)):
                if one.kind == "orphaned" and v2.MATERIAL_ORPHAN in self.wanted:
                    self._plan_deletion(items, one.id)
                elif one.kind == "stale" and one.wanted is not None and v2.MATERIAL_PATH in self.wanted:
                    self._plan_move(one.id, one.found, one.wanted)
            self._cancel_uncertain_deletions(items, index, has_items_without_material=has_items_without_material)
            self._cancel_conflicting_moves(index)
        self._report_files_at_old_paths()

    def _leave(self, finding: str, reason: str, subject: str | None, count: int = 1) -> None:
        """Report a difference that is not resolved, and why; ``subject`` is the id of the material."""
        self.left.append(Unresolved.registered(finding, reason, base=self.base, subject=subject, count=count))

    def _plan_deletion(self, items: apsw.Connection, key: bytes) -> None:
        """Plan to delete the material with the id ``key``, unless an item of another base has its id.

        ``items`` is the open catalog.
        """
        material = decode_text(key)
        if material is None:
            self._leave(v2.MATERIAL_ORPHAN, tr("its id is not text"), None)
            return
        elsewhere = items.execute("SELECT base_id FROM knowledge_item WHERE id = ?", (material,)).fetchall()
        if any(base != self.base for (base,) in elsewhere):
            self._leave(
                v2.MATERIAL_ORPHAN, tr("its item belongs to base {elsewhere}", elsewhere=elsewhere[0][0]), material
            )
        else:
            self.gone.append(material)

    def _plan_move(self, key: bytes, found: bytes | None, wanted: bytes) -> None:
        """Plan to give the material with the id ``key`` the path ``wanted`` of its item, in place of ``found``."""
        material, old, new = decode_text(key), decode_text(found), decode_text(wanted)
        # A path with an unpaired surrogate cannot be found again.
        if material is None or old is None or new is None or "\ufffd" in old:
            self._leave(v2.MATERIAL_PATH, tr("one of its two paths is not text"), material)
        else:
            self.moves.append(_Move(material, old, new))

    def _cancel_uncertain_deletions(
        self, items: apsw.Connection, index: apsw.Connection, *, has_items_without_material: bool
    ) -> None:
        """Cancel all planned deletions if it is uncertain which materials have an item, and report why.

        ``items`` is the open catalog, ``index`` the open index.
        """
        odd = index.execute("SELECT count(*) FROM material WHERE typeof(material_id) <> 'text'").get
        if odd and v2.MATERIAL_ORPHAN in self.wanted:
            self._leave(v2.MATERIAL_ORPHAN, tr("its id is not text"), None, odd)
        reason = None
        if items.execute("SELECT 1 FROM knowledge_item WHERE typeof(id) <> 'text' LIMIT 1").get:
            reason = tr("the id of an item is not text, so their items are unknown")
        if has_items_without_material and len(self.gone) == index.execute("SELECT count(*) FROM material").get:
            reason = tr("no material has an item, and items have no material: the index may belong to other items")
        if self.gone and reason is not None:
            self._leave(v2.MATERIAL_ORPHAN, reason, None, len(self.gone))
            self.gone = []

    # --- paths -------------------------------------------------------------------------------------------------------

    def _cancel_conflicting_moves(self, index: apsw.Connection) -> None:
        """Cancel and report moves of materials whose new path is not valid, or is used in the open index."""
        while True:
            leaving = {*self.gone, *(move.material for move in self.moves)}
            wanted = Counter(move.new for move in self.moves)
            stays: set[_Move] = set()
            for move in self.moves:
                reason = find_path_problem(move.new) or self._find_conflict(index, move.new, wanted[move.new], leaving)
                if reason is not None:
                    self._leave(
                        v2.MATERIAL_PATH,
                        tr('the path of its item, "{new}", is {reason}', new=move.new, reason=reason),
                        move.material,
                    )
                    stays.add(move)
            if not stays:
                return
            self.moves = [move for move in self.moves if move not in stays]

    def _find_conflict(self, index: apsw.Connection, path: str, wanted: int, leaving: set[str]) -> str | None:
        """Describe what else uses ``path``, the new path of a material, or return None.

        ``wanted`` is how many items have that path. ``leaving`` are ids of materials that are deleted or moved.
        """
        if wanted > 1:
            return tr("that of several items")
        query = "SELECT CAST(material_id AS BLOB) FROM material WHERE relative_path = ?"
        raw = index.execute(query, (path,)).get
        owner = None if raw is None else raw.decode("utf-8", "replace")
        return None if owner is None or owner in leaving else tr("that of the material {owner}", owner=owner)

    def _report_files_at_old_paths(self) -> None:
        """Report raw files that still have the old path of a moved material, and not that of its item."""
        raw = self.store.root / self.index.raw
        for move in self.moves:
            if move.new != move.material and not _is_file(raw, move.new) and _is_file(raw, move.old):
                message = tr('its file is still called "{old}", and its item says "{new}"', old=move.old, new=move.new)
                self._leave(v2.RAW_MISSING, message, move.material)

    # --- the change --------------------------------------------------------------------------------------------------

    def change(self) -> RowsChange | None:
        """Make the change of the index from what :meth:`compare` collected, or return None.

        Raises:
            apsw.Error, OSError: the index cannot be read.
        """
        gone, moves, path = json.dumps(self.gone), tuple(self.moves), self.store.root / self.index.name
        with sqlite.open_readonly(path) as db:
            counts = _counts(db, gone)
        actions = list(self._deletions(counts))
        if moves:
            message = tr(
                "set the path of {materials} to the path of its item", materials=format_count(len(moves), "material")
            )
            subject = moves[0].material if len(moves) == 1 else None
            actions.append(
                Action(
                    action="update-paths",
                    message=message,
                    base=self.base,
                    subject=subject,
                    count=len(moves),
                    finding=v2.MATERIAL_PATH,
                )
            )
        if not actions:
            return None

        def apply(db: apsw.Connection) -> None:
            """Delete and move the planned materials in the open index; refused if they differ from the plan."""
            if _counts(db, gone) != counts:
                raise PlanOutdated(path=path, reason=tr("the rows to delete are no longer those of the plan"))
            _delete(db, gone)
            if not _rename(db, moves):
                raise PlanOutdated(path=path, reason=tr("the paths of the materials changed in the meantime"))

        tables = [table for table, (count, _) in counts.items() if count]
        tables += ["material"] if moves and "material" not in tables else []
        size = sum(held for _, held in counts.values())
        bodies = "search_text" in tables
        return RowsChange(
            path=self.index.name, actions=tuple(actions), apply=apply, tables=tuple(tables), bytes=size, bodies=bodies
        )

    def _deletions(self, counts: dict[str, tuple[int, int]]) -> Iterator[Action]:
        """Yield an action for the report for each kind of deleted rows; ``counts`` are rows and bytes by table."""
        for kind in reversed(_KINDS):
            count, size = counts[kind.table]
            if count:
                which = tr("without an item") if kind.table == "material" else tr("that nothing else needs")
                finding = v2.MATERIAL_ORPHAN if kind.table == "material" else None
                message = tr("delete {counted} {which}", counted=format_count(count, kind.noun), which=which)
                yield Action(
                    action=kind.action, message=message, base=self.base, count=count, bytes=size, finding=finding
                )


def _is_file(raw: Path, path: str) -> bool:
    """Whether a path is valid and leads to a file below the folder ``raw``."""
    try:
        return find_path_problem(path) is None and file_paths.is_file(raw / path)
    except (OSError, ValueError):
        return False


def _items(db: apsw.Connection, base: str) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield id and indexed path, as UTF-8, of a base's items that may have a material, in byte order of the ids."""
    of_base = "knowledge_item NOT INDEXED WHERE base_id = ? AND typeof(id) = 'text' ORDER BY CAST(id AS BLOB)"
    for key, kind, status, data in untrusted_sqlite.read_lenient_rows(
        db, ("id", "type", "status", "data"), of_base, (base,)
    ):
        item = {"type": kind, "data": data}
        if status == "deleting" and not has_newer_type(item):
            continue
        path = None if has_newer_type(item) else get_indexed_path(item)
        yield key.encode(), None if path is None else replace_surrogates(path).encode()


def _read_materials(db: apsw.Connection) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield id and path of each material of an open index, as UTF-8, in byte order of the ids."""
    rows = db.execute(
        "SELECT CAST(material_id AS BLOB), CAST(relative_path AS BLOB) FROM material"
        " WHERE typeof(material_id) = 'text' ORDER BY 1"
    )
    yield from ((key, None if path is None else _combine_surrogates(path)) for key, path in rows)


def _combine_surrogates(path: bytes) -> bytes:
    """Combine encoded surrogate pairs in a path, as item paths have them; unpaired ones become U+FFFD.

    A path that is not valid for another reason is returned unchanged.
    """
    try:
        path.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return path
    return decode_utf8(path).encode()


def _counts(db: apsw.Connection, gone: str) -> dict[str, tuple[int, int]]:
    """Count rows and bytes, by table, that are deleted with the materials in ``gone``, a JSON list of ids."""
    found: dict[str, tuple[int, int]] = {}
    for kind in _KINDS:
        sums = f"SELECT count(*), ifnull(sum({kind.size or 0}), 0) FROM {kind.table} WHERE rowid IN ({kind.rows})"
        for count, held in db.execute(sums, (gone,)):
            found[kind.table] = count, held
    return found


def _delete(db: apsw.Connection, gone: str) -> None:
    """Delete the materials in ``gone``, a JSON list of ids, and all rows that only they need."""
    for kind in _KINDS:
        db.execute(f"CREATE TEMP TABLE regraft_{kind.table} AS {kind.rows}", (gone,))
    for table in _ORDER:
        db.execute(f"DELETE FROM main.{table} WHERE rowid IN (SELECT rowid FROM temp.regraft_{table})")
    for kind in _KINDS:
        db.execute(f"DROP TABLE temp.regraft_{kind.table}")


def _rename(db: apsw.Connection, moves: tuple[_Move, ...]) -> bool:
    """Give materials in an open index their new paths; returns False if one no longer has its old path."""
    before = db.total_changes()
    # Temporary paths first: the new path of one material may be the old path of another.
    out = "UPDATE material SET relative_path = material_id || hex(randomblob(16)) WHERE material_id = ?"
    db.executemany(f"{out} AND relative_path = ?", ((move.material, move.old) for move in moves))
    home = "UPDATE material SET relative_path = ? WHERE material_id = ?"
    db.executemany(home, ((move.new, move.material) for move in moves))
    return bool(db.total_changes() - before == 2 * len(moves))
