"""What one base gets from a source: missing texts and vectors, or the whole index where that is missing or damaged."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import apsw
import msgspec

from checks.audit.findings import FINDINGS, Finding
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import path_of
from regraft import identity, sqlite
from regraft.errors import PlanOutdated
from regraft.formats.cherry_v2 import salvage as index_salvage
from regraft.formats.cherry_v2.catalog_reader import Row, base_key
from regraft.formats.cherry_v2.index.opening import UNREADABLE
from regraft.language import tr
from regraft.ledger import durable
from regraft.move_errors import RepairSourceDiffers
from regraft.text import argument, counted, decode_utf8, shown
from repair.changes import files
from repair.changes.foreign_definitions import joined
from repair.changes.plan import Action, FileChange, Plan, RowsChange, Unresolved
from repair.changes.store import Store
from repair.cherry_v2 import salvage
from repair.cherry_v2.from_source import vectors
from repair.cherry_v2.from_source.donor_bases import DonorBases
from repair.cherry_v2.from_source.donors import Donor, Donors
from repair.cherry_v2.from_source.vectors import Model, Wanted
from repair.cherry_v2.indexing.new_texts import write_index
from repair.cherry_v2.indexing.planning import BLOCKING, BaseTexts
from repair.cherry_v2.indexing.texts import file_of
from repair.cherry_v2.salvage import DamagedIndex
from repair.options import RepairOptions

#: Findings of what another copy may have.
LACKING = frozenset(
    {
        *(v2.BASE_NO_INDEX, v2.UNREADABLE, v2.CORRUPT, v2.NO_CONTENT, v2.CONTENT_HASH, v2.NO_UNITS),
        *(v2.ITEM_NO_MATERIAL, v2.VECTOR_MISSING, v2.VECTOR_LENGTH, v2.VECTOR_NON_FINITE, v2.VECTOR_ZERO),
    }
)
#: Tables whose rows nothing else tells.
_ROW_TABLES = {"content", "material", "search_unit", "search_text", "embedding"}
#: Hashes of texts that materials and units name and that are not there.
_ABSENT = """SELECT DISTINCT hash FROM (SELECT current_content_hash AS hash FROM material
     UNION SELECT content_hash FROM search_unit)
   WHERE typeof(hash) = 'text' AND hash NOT IN (SELECT content_hash FROM content)"""
_CONTENTS = "SELECT content_hash, CAST(text AS BLOB) FROM content WHERE typeof(content_hash) = 'text'"
_WITHOUT_UNITS = """SELECT DISTINCT current_content_hash FROM material m WHERE typeof(current_content_hash) = 'text'
   AND NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.material_id = m.material_id)"""
_MATERIALS = "SELECT material_id, relative_path FROM material"
_PUT_CONTENT = """INSERT INTO content (content_hash, text, created_at) VALUES (?, ?, ?)
   ON CONFLICT (content_hash) DO UPDATE SET text = excluded.text"""
_AT_ONCE = 500


def is_rebuilt(store: Store, base: str, findings: Sequence[Finding]) -> bool:
    """Whether the index of a base is so damaged that it is written again as a whole.

    Tables whose rows nothing else tells may be gone from it.
    """
    if salvage.is_damaged(findings):
        return True
    if base not in store.stores or all(one.name != v2.SCHEMA_MISSING for one in findings):
        return False
    try:
        with sqlite.reading(store.root / store.stores[base].name) as db:
            names = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    except UNREADABLE:
        return True
    return not names.issuperset(_ROW_TABLES)


class _Needs(msgspec.Struct):
    """What a base lacks besides vectors: items without a text, hashes of texts that are gone or have no unit."""

    items: list[Row]
    contents: list[str] = msgspec.field(default_factory=list)
    without_units: list[str] = msgspec.field(default_factory=list)


class BaseRepair(msgspec.Struct, kw_only=True):
    """One completed base that lacks something. Single use."""

    store: Store
    options: RepairOptions
    #: The source as the user named it, and its bases.
    source: Path
    bases: DonorBases
    row: Row
    items: list[Row]
    findings: list[Finding]
    _made: Plan = msgspec.field(default_factory=Plan)

    @property
    def key(self) -> str:
        """The id of the base."""
        return base_key(self.row)

    @property
    def _model(self) -> Model:
        return Model.of(self.row)

    def plan(self) -> Plan:
        """Return what the source gives to the base.

        Raises:
            RepairSourceDiffers: it has vectors that the base lacks, and may not give them.
            apsw.Error, OSError, ValueError: the index of the base cannot be read.
        """
        is_damaged = is_rebuilt(self.store, self.key, self.findings)
        if is_damaged or self.key not in self.store.stores:
            self._rebuild(self._damaged_index() if is_damaged else None)
            return self._made
        blocking = next((one for one in self.findings if one.name in BLOCKING), None)
        if blocking is None:
            self._fill()
        else:
            reason = tr("nothing of the index is changed: {message_}", message_=blocking.message)
            self._leave_all(reason, self._line(FINDINGS[blocking.name].command))
        return self._made

    # --- an index that is there --------------------------------------------------------------------------------------

    def _fill(self) -> None:
        index = self.store.root / self.store.stores[self.key].name
        with sqlite.reading(index) as db:
            materials = {str(key): str(path) for key, path in db.execute(_MATERIALS)}
            needs = self._needs(db, materials)
            donors = Donors(list(self.bases.each(self.key, partial(self._gives, needs))))
            texts = self._texts(donors, is_replaced=False)
            texts.find_materials(db)
            texts.find_items(materials)
            wanted = self._wanted()
            if self._model.id is not None:
                wanted.add_all(vectors.lacking(db, self._model.bytes))
                for keys in _chunks(key for key, _ in texts.bodies()):
                    wanted.add(vectors.without_vector(db, keys, self._model.bytes))
        givers, count = self._givers(wanted, index, donors, [])
        changes = [*self._contents(index, needs, donors)]
        if texts.new:
            changes.append(texts.rows_change())
        if count:
            changes.append(self._vectors(index, givers, count))
        if changes:
            self._made.changes.append(joined(changes))
        self._resolve(texts, wanted.count - count)

    def _needs(self, db: apsw.Connection, materials: Collection[str]) -> _Needs:
        return _Needs(
            items=[item for item in self.items if _has_text(item) and str(item.get("id")) not in materials],
            contents=list(self._bad_contents(db)),
            without_units=[str(key) for (key,) in db.execute(_WITHOUT_UNITS)],
        )

    def _bad_contents(self, db: apsw.Connection) -> Iterator[str]:
        """Yield the hashes of texts that are gone, and of those that are not what their hash says."""
        yield from (str(key) for (key,) in db.execute(_ABSENT))
        if any(one.name == v2.CONTENT_HASH for one in self.findings):
            for key, raw in db.execute(_CONTENTS):
                if raw is None or identity.text_hash(decode_utf8(raw)) != key:
                    yield str(key)

    def _contents(self, index: Path, needs: _Needs, donors: Donors) -> Iterator[RowsChange]:
        sizes = {key: len(text.encode()) for key in needs.contents if (text := donors.content(key)) is not None}
        if not sizes:
            return

        def apply(db: apsw.Connection) -> None:
            for key in sizes:
                text = donors.content(key)
                if text is None:
                    raise PlanOutdated(path=index, reason=tr("the source was written to meanwhile"))
                db.execute(_PUT_CONTENT, (key, text, self._now))

        message = tr("take {texts} from {source}", texts=counted(len(sizes), "text"), source=shown(self.source))
        finding = v2.CONTENT_HASH if any(one.name == v2.CONTENT_HASH for one in self.findings) else v2.NO_CONTENT
        action = self._action("take-contents", message, len(sizes), sum(sizes.values()), finding)
        yield RowsChange(
            path=self._name, actions=(action,), apply=apply, tables=("content",), bytes=sum(sizes.values())
        )
        if len(sizes) == len(needs.contents):
            self._made.resolves |= {(one.name, self.key) for one in self.findings if one.name == v2.CONTENT_HASH}

    def _vectors(self, index: Path, givers: Sequence[Donor], count: int) -> RowsChange:
        fill = partial(vectors.fill, path=index, donors=givers, model=self._model, count=count, now_ms=self._now)
        size = count * self._model.bytes
        return RowsChange(
            path=self._name, actions=(self._vectors_action(count),), apply=fill, tables=("embedding",), bytes=size
        )

    def _resolve(self, texts: BaseTexts, lacking: int) -> None:
        """Say what is still missing, with the command that makes it, and what must not be found again."""
        self._made.left += texts.left
        told = {one.finding for one in texts.left}
        got = Counter(one.finding for one in texts.new)
        for finding in self.findings:
            if finding.name not in {v2.NO_UNITS, v2.ITEM_NO_MATERIAL} - told:
                continue
            if got[finding.name] == finding.count:
                self._made.resolves.add((finding.name, self.key))
            else:
                reason = tr("{source} does not have all of it", source=shown(self.source))
                self._leave(finding, self._why_not(reason))
        self._leave_vectors(lacking)
        if not lacking and any(one.name == v2.VECTOR_MISSING for one in self.findings):
            self._made.resolves.add((v2.VECTOR_MISSING, self.key))

    # --- an index that is missing or damaged -------------------------------------------------------------------------

    def _rebuild(self, damaged: DamagedIndex | None) -> None:
        remains, own = self._remains(damaged)
        needs = _Needs(items=list(filter(_has_text, self.items)))
        donors = Donors([*own, *self.bases.each(self.key, partial(self._gives, needs))])
        texts = self._texts(donors, is_replaced=damaged is not None)
        texts.find_items({})
        if not all(_keep_unlisted(texts, donor) for donor in own):
            self._leave_all(tr("a text of the damaged file that no item lists has the path of another text"))
            return
        wanted = self._wanted()
        if self._model.id is not None:
            wanted.add_all(_chunks(key for key, _ in texts.bodies()))
        givers, count = self._givers(wanted, remains, donors, own)
        is_given = donors.used or any(wanted.is_known_to(donor) for donor in givers if not donor.is_own)
        if needs.items and not is_given:
            self._leave_all(self._why_not(tr("{source} has no text or vector of it", source=shown(self.source))))
            return
        self._made.changes.append(self._new_index(texts, damaged, givers, count))
        names = {v2.BASE_NO_INDEX, v2.UNREADABLE, v2.CORRUPT, v2.SCHEMA_MISSING}
        self._made.resolves |= {(one.name, self.key) for one in self.findings if one.name in names}
        self._made.left += texts.left
        self._leave_vectors(wanted.count - count)

    def _new_index(
        self, texts: BaseTexts, damaged: DamagedIndex | None, givers: Sequence[Donor], count: int
    ) -> FileChange:
        fill = partial(vectors.fill, donors=givers, model=self._model, count=count, now_ms=self._now)

        def make(new: Path) -> None:
            write_index(new, self.key, texts.new, self._now, partial(fill, path=new))

        size = sum(one.bytes for one in texts.new) + count * self._model.bytes
        actions = tuple(self._index_actions(texts, count))
        if damaged is None:
            return FileChange(path=texts.index_name, actions=actions, make=make, bytes=size)
        self._made.read |= {name: files.stamp_of(self.store.root / name) for name in salvage.files_of(damaged)}
        return salvage.replacement(damaged, actions, make, size)

    def _index_actions(self, texts: BaseTexts, count: int) -> Iterator[Action]:
        taken = sum(one.is_donated for one in texts.new)
        message = tr(
            "write the index again: {taken} from {source}, {others} from raw files",
            taken=counted(taken, "text"),
            source=shown(self.source),
            others=counted(len(texts.new) - taken, "text"),
        )
        known = {one.name for one in self.findings}
        finding = next(one for one in (v2.BASE_NO_INDEX, v2.UNREADABLE, v2.CORRUPT, v2.SCHEMA_MISSING) if one in known)
        size = sum(one.bytes for one in texts.new)
        yield self._action("write-index", message, len(texts.new), size, finding)
        if count:
            yield self._vectors_action(count)

    def _damaged_index(self) -> DamagedIndex:
        return DamagedIndex(
            store=self.store,
            base=self.key,
            place=self.store.stores[self.key],
            findings=self.findings,
            row=self.row,
            items=self.items,
            now_ms=self._now,
        )

    def _remains(self, damaged: DamagedIndex | None) -> tuple[Path | None, list[Donor]]:
        """Return an index of what is left in the damaged file and proves itself, and its donor; None: nothing is."""
        if damaged is None:
            return None, []
        new = self.options.keep.enter_context(durable.temporary_folder()) / "index.sqlite"
        try:
            with index_salvage.salvaged(damaged.path, damaged.expected) as found:
                found.write(new, self._now)
        except (index_salvage.Refused, apsw.Error, OSError):
            return None, []
        donor = Donor.of(new, self.options.keep, base=self.key, row=self.row, raw=None, is_same_base=True, is_own=True)
        return new, [donor]

    # --- what the source gives ---------------------------------------------------------------------------------------

    def _gives(self, needs: _Needs, donor: Donor) -> bool:
        """Whether a donor has a text of what a base lacks; the copy of the very base is asked for everything."""
        if donor.is_same_base:
            return True
        raw = self._texts(None, is_replaced=False).raw
        return (
            any(donor.content(key) is not None for key in needs.contents)
            or any(donor.spans(key) for key in needs.without_units)
            or any(donor.proven_material(item, raw) is not None for item in needs.items)
        )

    def _givers(
        self, wanted: Wanted, index: Path | None, donors: Donors, own: Sequence[Donor]
    ) -> tuple[list[Donor], int]:
        """Return the donors of vectors, ``own`` behind the others, and how many of those that are wanted they have.

        Raises:
            RepairSourceDiffers: only donors have some that may not give them.
        """
        agreed: list[Donor] = []
        refused: list[str] = []
        count = wanted.found_in(own, self._model.bytes)
        for donor in self.bases.each(self.key, lambda one: one.is_same_base or wanted.is_known_to(one)):
            reason = vectors.disagreement(self._model, donor, index) or self._unproven(donor, index, donors)
            if reason is None:
                agreed.append(donor)
                count = wanted.found_in([*agreed, *own], self._model.bytes)
            elif wanted.is_known_to(donor):
                refused.append(reason)
            if count == wanted.count:
                break
        if refused and not agreed:
            name = str(self.row.get("name") or self.key)
            raise RepairSourceDiffers(path=self.source, base=name, reason=refused[0])
        return [*agreed, *own], count

    def _unproven(self, donor: Donor, index: Path | None, donors: Donors) -> str | None:
        """Return why nothing proves that a donor has the texts of a base whose index is missing."""
        if index is not None or donor.base in donors.proven:
            return None
        raw = self._texts(None, is_replaced=False).raw
        has_files = any(file_of(path_of(item), raw) is not None for item in self.items)
        if donor.is_same_base and donor.base in donors.used and not has_files:
            return None
        return tr("its index is missing, and no file or text of it is there to prove that it is the same base")

    # --- helpers -----------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> int:
        """The time of new rows: the last change of the base, so that the same repair gives the same rows."""
        changed = self.row.get("updated_at")
        return changed if isinstance(changed, int) and changed > 0 else self.options.now_ms

    @property
    def _name(self) -> str:
        return self.store.stores[self.key].name

    def _texts(self, donor: Donors | None, *, is_replaced: bool) -> BaseTexts:
        return BaseTexts(
            store=self.store,
            row=self.row,
            items=self.items,
            now_ms=self._now,
            donor=donor,
            is_replaced=is_replaced,
        )

    def _wanted(self) -> Wanted:
        return Wanted(self.options.keep.enter_context(sqlite.scratch()))

    def _action(self, name: str, message: str, count: int, size: int, finding: str) -> Action:
        return Action(action=name, message=message, base=self.key, count=count, bytes=size, finding=finding)

    def _vectors_action(self, count: int) -> Action:
        message = tr("take {vectors} from {source}", vectors=counted(count, "vector"), source=shown(self.source))
        return self._action("take-vectors", message, count, count * self._model.bytes, v2.VECTOR_MISSING)

    def _why_not(self, reason: str) -> str:
        """Return why the source does not give something: its copy of the base is damaged, else ``reason``."""
        problem = self.bases.problems.get(self.key)
        if problem is None:
            return reason
        return tr(
            "the copy of the base in {source} cannot be used: {problem}", source=shown(self.source), problem=problem
        )

    def _leave_vectors(self, count: int) -> None:
        if not count:
            return
        reason = tr(
            "{what}: {why}",
            what=tr("{texts} without a vector", texts=counted(count, "text")),
            why=self._why_not(tr("{source} has none of them", source=shown(self.source))),
        )
        line = self._line(FINDINGS[v2.VECTOR_MISSING].command)
        self._made.left.append(
            Unresolved(
                finding=v2.VECTOR_MISSING, reason=reason, base=self.key, count=count, severity="error", repair=line
            )
        )

    def _leave(self, finding: Finding, reason: str, line: str | None = None) -> None:
        """Leave what a finding is about, with the command that may help without a source."""
        if line is None:
            is_file = finding.name in (v2.UNREADABLE, v2.CORRUPT)
            words = ("repair", "--salvage") if is_file else FINDINGS[finding.name].command
            line = self._line(words)
        reason = tr("{what}: {why}", what=finding.message, why=reason)
        self._made.left.append(Unresolved.of(finding, reason, repair=line))

    def _leave_all(self, reason: str, line: str | None = None) -> None:
        for one in self.findings:
            if one.name in LACKING:
                self._leave(one, reason, line)

    def _line(self, words: Sequence[str]) -> str | None:
        """Return the command line of a command for this base; None: there is none."""
        chosen = ("--base", self.key) if self.store.found.stores.is_whole else ()
        line = shlex.join(["regraft", *words[:1], argument(self.store.path), *words[1:], *chosen])
        return line if words else None


def _keep_unlisted(texts: BaseTexts, donor: Donor) -> bool:
    """Keep the texts of a damaged index that no completed item has: their items can be listed again.

    Returns:
        False where one of them has the path of another text.
    """
    known = {one.material for one in texts.new}
    paths = {one.path for one in texts.new}
    hashes = {one.content_hash for one in texts.new}
    for material, path in donor.materials():
        donated = None if material in known else donor.donated(material)
        if donated is None:
            continue
        if path not in paths:
            paths.add(path)
            texts.keep(material, path, donated)
        elif identity.text_hash(donated.text) not in hashes:
            return False
    return True


def _has_text(item: Row) -> bool:
    """Whether an item is to have a text in the index."""
    is_leaf = item.get("type") in ("file", "url", "note")
    return is_leaf and item.get("status") == "completed" and path_of(item) is not None


def _chunks(keys: Iterator[str]) -> Iterator[Collection[str]]:
    while chunk := list(islice(keys, _AT_ONCE)):
        yield chunk
