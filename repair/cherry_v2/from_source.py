"""Plan ``regraft repair --from``: copy missing texts and vectors, or a whole index, from another copy of the data.

Rules: ``docs/repair-from.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import apsw
import msgspec

from checks.audit.collector import Level
from checks.audit.findings import FINDINGS, Finding
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.audit import recorded_losses
from checks.cherry_v2.catalog_rows import get_indexed_path
from regraft import identity
from regraft.disk import scratch, sqlite
from regraft.errors import PlanOutdated, RegraftError, RepairSourceDiffers
from regraft.formats.cherry_v2 import salvage as index_salvage
from regraft.formats.cherry_v2.catalog_reader import Row, base_id_text
from regraft.formats.cherry_v2.index.opening import READ_ERRORS
from regraft.formats.vector_survey import SALVAGE_OPTION
from regraft.kinds import Kind
from regraft.language import format_count, tr
from regraft.stores.locate import open_store
from regraft.text import decode_utf8, join_command, path_argument, printable
from repair.changes import files
from repair.changes.options import RepairOptions
from repair.changes.plan import (
    Action,
    Change,
    FileChange,
    FindingsByBase,
    Plan,
    RowsChange,
    Unresolved,
    group_by_base,
)
from repair.changes.schema_objects import merge_changes
from repair.changes.store import Store
from repair.cherry_v2 import donor_indexes, salvage
from repair.cherry_v2.catalog_changes import (
    CatalogStatements,
    demand_catalog,
    is_selected,
    make_catalog_change,
    read_store_catalog,
)
from repair.cherry_v2.donor_indexes import BaseModel, Donor, DonorBases, Donors, MissingHashes
from repair.cherry_v2.indexing import BLOCKING, BaseTexts, has_own_text, write_index
from repair.cherry_v2.item_texts import find_raw_file
from repair.cherry_v2.salvage import DamagedIndex
from repair.embedding.vector_sources import is_parquet

#: Findings that another copy of the data may resolve.
LACKING = frozenset(
    {
        *(v2.BASE_NO_INDEX, v2.UNREADABLE, v2.CORRUPT, v2.NO_CONTENT, v2.CONTENT_HASH, v2.NO_UNITS),
        *(v2.ITEM_NO_MATERIAL, v2.VECTOR_MISSING, v2.VECTOR_LENGTH, v2.VECTOR_NON_FINITE, v2.VECTOR_ZERO),
    }
)
#: Tables whose rows cannot be derived from anything else.
_ROW_TABLES = {"content", "material", "search_unit", "search_text", "embedding"}
#: Hashes of texts that materials or units refer to, but that do not exist.
_ABSENT = """SELECT DISTINCT hash FROM (SELECT current_content_hash AS hash FROM material
     UNION SELECT content_hash FROM search_unit)
   WHERE typeof(hash) = 'text' AND hash NOT IN (SELECT content_hash FROM content)"""
_CONTENTS = "SELECT content_hash, CAST(text AS BLOB) FROM content WHERE typeof(content_hash) = 'text'"
_WITHOUT_UNITS = """SELECT DISTINCT current_content_hash FROM material m WHERE typeof(current_content_hash) = 'text'
   AND NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.material_id = m.material_id)"""
_MATERIALS = "SELECT material_id, relative_path FROM material"
_PUT_CONTENT = """INSERT INTO content (content_hash, text, created_at) VALUES (?, ?, ?)
   ON CONFLICT (content_hash) DO UPDATE SET text = excluded.text"""
_PAGE_SIZE = 500


def is_rebuilt(store: Store, base: str, findings: Sequence[Finding]) -> bool:
    """Whether the index of a base is so damaged that the whole file is written again; ``findings`` are the base's."""
    if salvage.is_damaged(findings):
        return True
    if base not in store.stores or all(one.name != v2.SCHEMA_MISSING for one in findings):
        return False
    try:
        with sqlite.open_readonly(store.root / store.stores[base].name) as db:
            names = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    except READ_ERRORS:
        return True
    return not names.issuperset(_ROW_TABLES)


class _Needs(msgspec.Struct):
    """What a base lacks, except vectors: items without a text, hashes of missing texts, and of texts without units."""

    items: list[Row]
    contents: list[str] = msgspec.field(default_factory=list)
    without_units: list[str] = msgspec.field(default_factory=list)


class BaseRepair(msgspec.Struct, kw_only=True):
    """Repairs one completed base from the bases of a source. Single use."""

    store: Store
    options: RepairOptions
    #: The source, as the user named it.
    source: Path
    bases: DonorBases
    row: Row
    items: list[Row]
    findings: list[Finding]
    #: Ids of the items that lost rows in a salvage, or may have.
    lost: Collection[str] = ()
    #: Changes of the catalog by all bases of the run.
    statements: CatalogStatements
    _plan: Plan = msgspec.field(default_factory=Plan)
    #: New snapshots. They are written before the catalog names them.
    snapshots: list[FileChange] = msgspec.field(default_factory=list)

    @property
    def key(self) -> str:
        """Id of the base."""
        return base_id_text(self.row)

    @property
    def _model(self) -> BaseModel:
        """The model of the base."""
        return BaseModel.of(self.row)

    def plan(self) -> Plan:
        """Plan what the source gives to the base: missing texts and vectors, or a new index.

        Raises:
            RepairSourceDiffers: the source has vectors that the base lacks, but they must not be used.
            apsw.Error, OSError, ValueError: the index of the base cannot be read.
        """
        is_damaged = is_rebuilt(self.store, self.key, self.findings)
        if is_damaged or self.key not in self.store.stores:
            damaged = DamagedIndex(
                store=self.store,
                base=self.key,
                findings=self.findings,
                row=self.row,
                items=self.items,
                now_ms=self._now,
            )
            self._rewrite_index(damaged if is_damaged else None)
            return self._plan
        blocking = next((one for one in self.findings if one.name in BLOCKING), None)
        if blocking is None:
            self._fill_index()
        else:
            reason = tr("the index was not changed: {what}", what=blocking.message)
            self._leave_all(reason, self._command_line(FINDINGS[blocking.name].command))
        return self._plan

    # --- add to an index ---------------------------------------------------------------------------------------------

    def _fill_index(self) -> None:
        """Plan to add the texts and vectors that a readable index lacks, from the source."""
        index = self.store.root / self.store.stores[self.key].name
        with sqlite.open_readonly(index) as db:
            materials = {str(key): str(path) for key, path in db.execute(_MATERIALS)}
            needs = _Needs(
                items=[item for item in self.items if _wants_text(item) and str(item.get("id")) not in materials],
                contents=list(self._missing_or_damaged_texts(db)),
                without_units=[str(key) for (key,) in db.execute(_WITHOUT_UNITS)],
            )

            donors = Donors(list(self.bases.each(self.key, partial(self._is_useful_donor, needs))))
            texts = self._base_texts(donors)
            texts.find_materials(db)
            texts.find_items(materials)
            texts.find_partial(db)
            wanted = self._find_missing_hashes(db, texts)
            vector_donors, count = self._find_vector_donors(wanted, index, donors, [])
            if self._model.id is not None and self._leave_out_texts(db, texts, vector_donors):
                wanted = self._find_missing_hashes(db, texts)
                count = wanted.found_in(vector_donors, self._model.bytes)
        changes = [*self._contents_change(index, needs, donors)]
        if texts.new:
            changes.append(texts.rows_change())
        if count:
            fill = partial(
                donor_indexes.write_missing_vectors,
                path=index,
                donors=vector_donors,
                model=self._model,
                count=count,
                now_ms=self._now,
            )
            size = count * self._model.bytes
            vectors_change = RowsChange(
                path=self._name, actions=(self._vectors_action(count),), apply=fill, tables=("embedding",), bytes=size
            )
            changes.append(vectors_change)
        if changes:
            self._plan.changes.append(merge_changes(changes))
        for change in texts.completed_snapshots():
            self._plan.changes.append(change)
            self._plan.read[change.path] = files.file_stamp(self.store.root / change.path)
        self._finish_findings(texts, wanted.count - count)
        # Last, because a base is planned again if its copy turns out to be damaged.
        self.snapshots += texts.copied_snapshots()
        self.statements.actions += texts.update(self.statements)

    def _find_missing_hashes(self, db: apsw.Connection, texts: BaseTexts) -> MissingHashes:
        """Collect the hashes of texts that have no usable vector in the open index, with those of the new ``texts``.

        None of a base without a model.
        """
        wanted = self._new_missing_hashes()
        if self._model.id is not None:
            wanted.add_all(donor_indexes.read_missing_hashes(db, self._model.bytes))
            for keys in _chunks(key for key, _ in texts.bodies()):
                wanted.add(donor_indexes.find_hashes_without_vector(db, keys, self._model.bytes))
        return wanted

    def _leave_out_texts(self, db: apsw.Connection, texts: BaseTexts, donors: Sequence[Donor]) -> bool:
        """Leave out the new texts of items for which the donors have none of the vectors that the open index lacks.

        Such a text would replace one finding by another: texts without a vector. Returns whether any was left out.
        """
        left_out = []
        for one in texts.new:
            if one.is_donated and one.finding != v2.NO_UNITS:
                keys = list({key for key, _ in texts.bodies((one,))})
                missing = donor_indexes.find_hashes_without_vector(db, keys, self._model.bytes)
                if missing and not donor_indexes.collect_vectors(donors, missing, self._model.bytes):
                    left_out.append(one)
        for one in left_out:
            reason = tr("{source} has its text, but no vector of it", source=printable(self.source))
            texts.leave_out(one, reason)
        return bool(left_out)

    def _missing_or_damaged_texts(self, db: apsw.Connection) -> Iterator[str]:
        """Yield the hashes that the open index has no text for.

        If damaged texts are among the findings to repair, the hashes that their text does not match follow.
        """
        yield from (str(key) for (key,) in db.execute(_ABSENT))
        if any(one.name == v2.CONTENT_HASH for one in self.findings):
            for key, raw in db.execute(_CONTENTS):
                if raw is None or identity.text_hash(decode_utf8(raw)) != key:
                    yield str(key)

    def _contents_change(self, index: Path, needs: _Needs, donors: Donors) -> Iterator[RowsChange]:
        """Yield the change, if any, that copies missing or damaged texts from the donors to the base's index.

        If the donors have all of them, the plan is also recorded as resolving the findings about damaged texts.
        """
        sizes = {key: len(text.encode()) for key in needs.contents if (text := donors.content(key)) is not None}
        if not sizes:
            return

        def apply(db: apsw.Connection) -> None:
            """Copy the texts to the open index; raises PlanOutdated if the source no longer has one."""
            for key in sizes:
                text = donors.content(key)
                if text is None:
                    raise PlanOutdated(path=index, reason=tr("the source was changed in the meantime"))
                db.execute(_PUT_CONTENT, (key, text, self._now))

        message = tr(
            "copy {texts} from {source}", texts=format_count(len(sizes), "text"), source=printable(self.source)
        )
        finding = v2.CONTENT_HASH if any(one.name == v2.CONTENT_HASH for one in self.findings) else v2.NO_CONTENT
        action = self._action("take-contents", message, len(sizes), sum(sizes.values()), finding)
        yield RowsChange(
            path=self._name, actions=(action,), apply=apply, tables=("content",), bytes=sum(sizes.values())
        )
        if len(sizes) == len(needs.contents):
            self._plan.resolves |= {(one.name, self.key) for one in self.findings if one.name == v2.CONTENT_HASH}

    def _finish_findings(self, texts: BaseTexts, lacking: int) -> None:
        """Record which findings are resolved, and report the others with a command that may help.

        ``texts`` are the texts that the index gets, ``lacking`` is the number of texts that stay without a vector.
        """
        self._plan.left += texts.left
        reported = {one.finding for one in texts.left}
        got = Counter(one.finding for one in texts.new)
        for finding in self.findings:
            names = {v2.NO_UNITS, v2.ITEM_NO_MATERIAL} - reported
            if finding.name in names or has_lost_rows(finding, self.lost):
                self._resolve_or_report(finding, got[finding.name])
        self._leave_vectors(lacking)
        if not lacking and any(one.name == v2.VECTOR_MISSING for one in self.findings):
            self._plan.resolves.add((v2.VECTOR_MISSING, self.key))

    def _resolve_or_report(self, finding: Finding, count: int) -> None:
        """Record a finding about items as resolved if the source has the text of all of them, or report it.

        ``count`` is the number of items that get a text, of all findings with this name. There can be two: a finding,
        and a note about files that had no rows in v1. If every item of the first gets its text, the note is not
        reported.
        """
        same = [one for one in self.findings if one.name == finding.name]
        urgent = sum(one.count for one in same if one.severity != "note")
        if count == sum(one.count for one in same):
            self._plan.resolves.add((finding.name, self.key))
        elif not 0 < urgent <= count:
            has_part = count or finding.name == v2.UNIT_MISSING
            name = printable(self.source)
            reason = self._other_ids(finding) or (
                tr("{source} has only part of it", source=name)
                if has_part
                else tr("{source} has none of them", source=name)
            )
            self._leave(finding, self._explain(reason))

    def _other_ids(self, finding: Finding) -> str | None:
        """Return what to do if the source has the items that a salvage lost rows of under other ids; None if not.

        Bases of which only the vector file was known have such ids. A migration of the source replaces their items.
        """
        items = self.bases.migrated_items(self.key)
        is_library = self.store.found.kind is Kind.LIBRARY
        if (
            not is_library
            or not items
            or not has_lost_rows(finding, self.lost)
            or not items.isdisjoint(finding.samples)
        ):
            return None
        return tr(
            "{source} has its items under other ids: {command} completes the base, before this repair or after "
            "regraft undo",
            source=printable(self.source),
            command=join_command(
                ["regraft", "migrate", path_argument(self.source), "--to", path_argument(self.store.path)]
            ),
        )

    # --- write a missing or damaged index ----------------------------------------------------------------------------

    def _rewrite_index(self, damaged: DamagedIndex | None) -> None:
        """Plan to write a missing index, or the ``damaged`` one, as a new file."""
        remains, own = self._salvage_remains(damaged)
        needs = _Needs(items=list(filter(_wants_text, self.items)))
        donors = Donors([*own, *self.bases.each(self.key, partial(self._is_useful_donor, needs))])
        texts = self._base_texts(donors, is_replaced=damaged is not None)
        texts.find_items({})
        if not all(_keep_unlisted(texts, donor) for donor in own):
            self._leave_all(tr("a text in the damaged file that belongs to no item has the same path as another text"))
            return
        wanted = self._new_missing_hashes()
        if self._model.id is not None:
            wanted.add_all(_chunks(key for key, _ in texts.bodies()))
        vector_donors, count = self._find_vector_donors(wanted, remains, donors, own)
        is_given = donors.used or any(wanted.is_known_to(donor) for donor in vector_donors if not donor.is_own)
        if needs.items and not is_given:
            self._leave_all(
                self._explain(tr("{source} has none of its texts or vectors", source=printable(self.source)))
            )
            return
        self._plan.changes.append(self._index_change(texts, damaged, vector_donors, count))
        names = {v2.BASE_NO_INDEX, v2.UNREADABLE, v2.CORRUPT, v2.SCHEMA_MISSING}
        self._plan.resolves |= {(one.name, self.key) for one in self.findings if one.name in names}
        self._plan.left += texts.left
        self._leave_vectors(wanted.count - count)

    def _index_change(
        self, texts: BaseTexts, damaged: DamagedIndex | None, vector_donors: Sequence[Donor], count: int
    ) -> FileChange:
        """Make the change that writes a new index; a damaged file, if any, is replaced.

        Args:
            texts: the texts of the index.
            damaged: the file to replace, if any.
            vector_donors: the donors of its vectors.
            count: the number of vectors that they give.
        """
        fill = partial(
            donor_indexes.write_missing_vectors, donors=vector_donors, model=self._model, count=count, now_ms=self._now
        )

        def make(new: Path) -> None:
            """Write the new index file."""
            write_index(new, self.key, texts.new, self._now, partial(fill, path=new))

        size = sum(one.bytes for one in texts.new) + count * self._model.bytes
        actions = tuple(self._index_actions(texts, count))
        if damaged is None:
            return FileChange(path=texts.index_name, actions=actions, make=make, bytes=size)
        self._plan.read |= {
            name: files.file_stamp(self.store.root / name) for name in salvage.index_file_names(damaged)
        }
        return salvage.plan_replacement(damaged, actions, make, size)

    def _index_actions(self, texts: BaseTexts, count: int) -> Iterator[Action]:
        """Yield the actions of writing ``texts``, and ``count`` vectors, to a new index, for the report."""
        taken = sum(one.is_donated for one in texts.new)
        message = tr(
            "rewrite the index with {taken} from {source} and {others} from raw files",
            taken=format_count(taken, "text"),
            source=printable(self.source),
            others=format_count(len(texts.new) - taken, "text"),
        )
        known = {one.name for one in self.findings}
        finding = next(one for one in (v2.BASE_NO_INDEX, v2.UNREADABLE, v2.CORRUPT, v2.SCHEMA_MISSING) if one in known)
        size = sum(one.bytes for one in texts.new)
        yield self._action("write-index", message, len(texts.new), size, finding)
        if count:
            yield self._vectors_action(count)

    def _salvage_remains(self, damaged: DamagedIndex | None) -> tuple[Path | None, list[Donor]]:
        """Salvage a damaged index into a temporary file.

        Returns:
            The file, and a list with a donor that reads it; (None, []) without a file or a readable row.
        """
        if damaged is None:
            return None, []
        new = self.options.keep.enter_context(scratch.temporary_folder()) / "index.sqlite"
        try:
            with index_salvage.salvage_index(damaged.path, damaged.expected) as found:
                found.write(new, self._now)
        except (index_salvage.Refused, apsw.Error, OSError):
            return None, []
        donor = Donor.of(new, self.options.keep, base=self.key, row=self.row, raw=None, is_same_base=True, is_own=True)
        return new, [donor]

    # --- donors ------------------------------------------------------------------------------------------------------

    def _is_useful_donor(self, needs: _Needs, donor: Donor) -> bool:
        """Whether a donor has a text that the base needs. The copy of the same base is always useful."""
        if donor.is_same_base:
            return True
        raw = self._raw
        return (
            any(donor.content(key) is not None for key in needs.contents)
            or any(donor.spans(key) for key in needs.without_units)
            or any(donor.proven_material(item, raw) is not None for item in needs.items)
        )

    def _find_vector_donors(
        self, wanted: MissingHashes, index: Path | None, donors: Donors, own: Sequence[Donor]
    ) -> tuple[list[Donor], int]:
        """Choose the donors of vectors, and count how many of the wanted vectors they have.

        Args:
            wanted: hashes of the texts that lack a vector.
            index: the base's index, or what was salvaged of it; None: its vectors cannot be compared.
            donors: the donors of texts.
            own: the donor of salvaged rows, if any; it comes last.

        Raises:
            RepairSourceDiffers: the only donors with wanted vectors must not be used.
        """
        agreed: list[Donor] = []
        refused: list[str] = []
        count = wanted.found_in(own, self._model.bytes)
        for donor in self.bases.each(self.key, lambda one: one.is_same_base or wanted.is_known_to(one)):
            reason = donor_indexes.find_disagreement(self._model, donor, index) or self._identity_problem(
                donor, index, donors
            )
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

    def _identity_problem(self, donor: Donor, index: Path | None, donors: Donors) -> str | None:
        """Return why a donor may belong to another base, or None. Checked only if ``index`` is None."""
        if index is not None or donor.base in donors.proven:
            return None
        raw = self._raw
        has_files = any(find_raw_file(get_indexed_path(item), raw) is not None for item in self.items)
        if donor.is_same_base and donor.base in donors.used and not has_files:
            return None
        return tr(
            "its index is missing, and the copy has no identical file or text to confirm that it is the same base"
        )

    # --- helpers -----------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> int:
        """Time of new rows: the last change of the base, so that repeating the repair gives identical rows."""
        changed = self.row.get("updated_at")
        return changed if isinstance(changed, int) and changed > 0 else self.options.now_ms

    @property
    def _name(self) -> str:
        """Path of the index, relative to the store's root."""
        return self.store.stores[self.key].name

    @property
    def _raw(self) -> Path:
        """The base's folder of raw files."""
        return self._base_texts(None).raw

    def _base_texts(self, donor: Donors | None, *, is_replaced: bool = False) -> BaseTexts:
        """Make the object that finds the texts of the base's index, in ``donor`` unless that is None.

        ``is_replaced``: a damaged index is rewritten.
        """
        return BaseTexts(
            store=self.store,
            row=self.row,
            items=self.items,
            now_ms=self._now,
            donor=donor,
            is_replaced=is_replaced,
            lost=self.lost,
        )

    def _new_missing_hashes(self) -> MissingHashes:
        """Make an empty set of text hashes on disk."""
        return MissingHashes(self.options.keep.enter_context(sqlite.open_scratch()))

    def _action(self, name: str, message: str, count: int, size: int, finding: str) -> Action:
        """Make an action about the base: ``count`` rows of ``size`` bytes, for a finding."""
        return Action(action=name, message=message, base=self.key, count=count, bytes=size, finding=finding)

    def _vectors_action(self, count: int) -> Action:
        """Make the action of copying ``count`` vectors from the source."""
        message = tr(
            "copy {vectors} from {source}", vectors=format_count(count, "vector"), source=printable(self.source)
        )
        return self._action("take-vectors", message, count, count * self._model.bytes, v2.VECTOR_MISSING)

    def _explain(self, reason: str) -> str:
        """Return why the source lacks something: its copy of the base is unusable, or else ``reason``."""
        problem = self.bases.problems.get(self.key)
        if problem is None:
            return reason
        return tr(
            "the copy of the base in {source} cannot be used: {problem}", source=printable(self.source), problem=problem
        )

    def _leave_vectors(self, count: int) -> None:
        """Report ``count`` texts that get no vector from the source, and why."""
        if not count:
            return
        reason = tr(
            "{what}: {why}",
            what=tr("{texts} without a vector", texts=format_count(count, "text")),
            why=self._explain(tr("{source} has none of them", source=printable(self.source))),
        )
        line = self._salvage_command or self._command_line(FINDINGS[v2.VECTOR_MISSING].command)
        self._plan.left.append(
            Unresolved(
                finding=v2.VECTOR_MISSING, reason=reason, base=self.key, count=count, severity="error", repair=line
            )
        )

    @property
    def _salvage_command(self) -> str | None:
        """Command line that salvages the source's copy of the base into a library, which can then be the source.

        None if the copy cannot be salvaged.
        """
        if SALVAGE_OPTION not in self.bases.problems.get(self.key, ""):
            return None
        return join_command(["regraft", "migrate", path_argument(self.source), "--to", "LIBRARY", SALVAGE_OPTION])

    def _leave(self, finding: Finding, reason: str, line: str | None = None) -> None:
        """Report that a finding stays, with the reason and a command line that may help.

        Without ``line``, the command is the one for the finding that needs no source.
        """
        line = line or self._salvage_command
        if line is None:
            is_file = finding.name in (v2.UNREADABLE, v2.CORRUPT)
            words = ("repair", "--salvage") if is_file else FINDINGS[finding.name].command
            line = self._command_line(() if finding.is_beyond_repair else words)
        reason = tr("{what}: {why}", what=finding.message, why=reason)
        self._plan.left.append(Unresolved.of(finding, reason, repair=line))

    def _leave_all(self, reason: str, line: str | None = None) -> None:
        """Report that all findings stay that a source could resolve: why, and a command line that may help, if any."""
        for one in self.findings:
            if one.name in LACKING:
                self._leave(one, reason, line)

    def _command_line(self, words: Sequence[str]) -> str | None:
        """Return the regraft command with these words and the option for this base; None if there are no words."""
        return self.store.command_line(*words, *self.store.base_option(self.key)) if words else None


def has_lost_rows(finding: Finding, lost: Collection[str]) -> bool:
    """Whether a finding is about items of which a salvage lost rows; ``lost`` are their ids."""
    return finding.name in (v2.UNIT_MISSING, v2.ITEM_NOT_INDEXED) and not set(lost).isdisjoint(finding.samples)


def _keep_unlisted(texts: BaseTexts, donor: Donor) -> bool:
    """Add the donor's texts that no completed item has to ``texts``, so that their items can be added later.

    Returns:
        False if one of them has the path of another text, and so cannot be kept.
    """
    known = {one.material for one in texts.new}
    paths = {one.path for one in texts.new}
    hashes = {one.content_hash for one in texts.new}
    for material, path in donor.materials():
        donated = None if material in known else donor.read_donated_text(material)
        if donated is None:
            continue
        if path not in paths:
            paths.add(path)
            texts.keep(material, path, donated)
        elif identity.text_hash(donated.text) not in hashes:
            return False
    return True


def _wants_text(item: Row) -> bool:
    """Whether an item should have a text in the index."""
    return has_own_text(item) and item.get("status") == "completed" and get_indexed_path(item) is not None


def _chunks(keys: Iterator[str]) -> Iterator[Collection[str]]:
    """Split keys into lists that are short enough for one SQL statement."""
    while chunk := list(islice(keys, _PAGE_SIZE)):
        yield chunk


# --- all bases -------------------------------------------------------------------------------------------------------


def plan(store: Store, options: RepairOptions) -> Plan:
    """Plan what the selected bases of a store get from the source that the options name.

    Raises:
        WrongUsage: other options of ``repair`` are given as well, or the source is the store itself.
        NotChanged: the store has no catalog, which names the models.
        RepairSourceDiffers: the source has vectors that a base lacks, but they must not be used.
        RegraftError: the source or the catalog cannot be read.
    """
    source = options.source
    if source is None:
        raise ValueError(tr("no source was given"))
    options.demand_alone("--from")
    demand_catalog(store, "repair --from")
    catalog = read_store_catalog(store)
    found = group_by_base(one for one in store.findings(Level.DEFAULT) if one.base is not None)
    lost = recorded_losses(store.root, store.found)[1].keys()
    rows = [
        row for row in catalog.bases if _is_repairable(store, base_id_text(row), found.get(base_id_text(row), []), lost)
    ]
    unusable = list(_unusable_indexes(store, found))
    if not rows:
        # An unusable source is refused even if there is nothing to repair.
        if not is_parquet(source):
            with open_store(source, None):
                pass
        return Plan(left=unusable)
    planner = _SourcePlanner(store, options, source, lost)
    for row in rows:
        items = catalog.items_of(base_id_text(row))
        planner.plan_base(row, items, found[base_id_text(row)])
    made = planner.finish()
    made.left += unusable
    return made


def _unusable_indexes(store: Store, found: FindingsByBase) -> Iterator[Unresolved]:
    """Yield what a copy of the data cannot fix, and what keeps an index from being used at all.

    The index belongs to another base, or is of a newer version. ``found`` are the audit's findings.
    """
    for base, findings in found.items():
        if base is not None and is_selected(store, base) and not is_rebuilt(store, base, findings):
            for one in findings:
                if one.name == v2.META_BASE or (one.name == v2.SCHEMA_VERSION and one.is_beyond_repair):
                    yield Unresolved.with_remedy(one)


def _is_repairable(store: Store, base: str, findings: Sequence[Finding], lost: Collection[str]) -> bool:
    """Whether a base is selected and has a finding that a copy of the data can fix.

    ``lost`` are ids of items that lost rows in a salvage.
    """
    can_be_fixed = any(one.name in LACKING or has_lost_rows(one, lost) for one in findings)
    return is_selected(store, base) and (can_be_fixed or is_rebuilt(store, base, findings))


class _SourcePlanner:
    """Opens the source at ``path`` and plans the bases of a store from it, one by one."""

    def __init__(self, store: Store, options: RepairOptions, path: Path, lost: Collection[str]) -> None:
        """Open the source at ``path``, which the user named; ``lost`` are ids of items that lost rows in a salvage."""
        self._store = store
        self._lost = lost
        self._options = options
        self._path = path
        source = donor_indexes.open_source(path, store, options.keep, options.now_ms)
        self._bases = DonorBases(source, options.keep)
        self._statements = CatalogStatements.of(store)
        self._snapshots: list[FileChange] = []
        self.made = Plan()

    def finish(self) -> Plan:
        """Return the plan of all bases."""
        early: list[Change] = [*self._snapshots]
        if self._statements.actions:
            early.append(make_catalog_change(self._statements, ("knowledge_item",)))
        # If the run stops in between, the next one finds items with a path and no text.
        self.made.changes[:0] = early
        return self.made

    def plan_base(self, row: Row, items: list[Row], findings: list[Finding]) -> None:
        """Plan the repair of one base, given its row, its items and the audit's findings about it."""
        lacking = [one for one in findings if one.name in LACKING or has_lost_rows(one, self._lost)]
        if row.get("status") != "completed":
            self._leave(lacking, tr("the base failed; only completed bases can be repaired from a copy"))
            return
        base = BaseRepair(
            store=self._store,
            options=self._options,
            source=self._path,
            bases=self._bases,
            row=row,
            items=items,
            findings=findings,
            lost=self._lost,
            statements=self._statements,
        )
        try:
            self.made.add(base.plan())
            self._snapshots += base.snapshots
        except RegraftError:
            raise
        except READ_ERRORS as error:
            # The damage may be in a copy: plan again without it.
            if self._bases.exclude_damaged():
                self.plan_base(row, items, findings)
            else:
                self._leave(lacking, tr("its index cannot be read completely: {error}", error=error))

    def _leave(self, lacking: list[Finding], reason: str) -> None:
        """Report findings that the source cannot fix: why, and the command that ``check`` recommends."""
        self.made.left += [Unresolved.of(one, reason, repair=one.repair) for one in lacking]


__all__ = ["plan"]
