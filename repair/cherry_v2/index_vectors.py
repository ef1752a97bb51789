"""Backfill of v2 index files: which bases an embedder can fill, and reading and writing their vectors.

:class:`IndexFiller` implements :class:`repair.embedding.scope.Filler` for libraries, profiles, bases and index files
(``docs/formats/index.md``, "Store").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.cherry_v2 import findings as v2
from regraft import identity
from regraft.disk import sqlite, untrusted_sqlite
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import (
    IndexForeign,
    IndexIncomplete,
    IndexVersionUnknown,
    ModelDiffers,
    ModelSet,
    RegraftError,
    SchemaForeign,
)
from regraft.formats.cherry_preview import IndexLayout
from regraft.formats.cherry_v2 import layout
from regraft.formats.cherry_v2.catalog_reader import Row, base_id_text
from regraft.formats.cherry_v2.index import opening
from regraft.formats.cherry_v2.index.schema import (
    IS_USABLE_SQL,
    choose_vector_length,
    count_vector_lengths,
    lengths_contradict,
    stated_dimensions,
)
from regraft.formats.vector_table import make_text_decoder
from regraft.identity import replace
from regraft.language import tr
from regraft.text import is_blank
from repair.changes.changesets import BUSY_MS, IncrementalChange, open_writer
from repair.changes.plan import Plan, Unresolved
from repair.changes.store import Store
from repair.cherry_v2 import indexing
from repair.cherry_v2.base_models import model_change
from repair.cherry_v2.catalog_changes import is_selected, read_store_catalog
from repair.embedding.scope import (
    BackfillOptions,
    CannotFill,
    FillTargets,
    NewModel,
    PreparationStep,
    Scope,
    TextCounts,
    TextWithoutVector,
    WrittenCounts,
)

#: Keys read at a time: an open query would block other writers.
_CHUNK = 1000
#: Only bodies of units; other texts are leftovers.
_TEXTS = """SELECT DISTINCT t.embedding_text_hash AS hash FROM search_text t
   WHERE t.target_type = 'search_unit' AND t.kind = 'body' AND typeof(t.embedding_text_hash) = 'text'
     AND EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = t.target_id)"""
_JUDGED = f"""SELECT b.hash AS hash,
     CASE WHEN e.embedding_text_hash IS NULL THEN NULL ELSE {IS_USABLE_SQL} END AS usable
   FROM ({_TEXTS}) b LEFT JOIN embedding e ON e.embedding_text_hash = b.hash"""
_SURVEY = f"SELECT count(*), total(usable IS NULL), total(usable = 0) FROM ({_JUDGED})"
#: The unary plus keeps SQLite from using an index on columns that are the same in every row.
_LACKING = f"""SELECT DISTINCT t.embedding_text_hash FROM search_text t
   LEFT JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash
   WHERE t.embedding_text_hash >= :first AND +t.target_type = 'search_unit' AND +t.kind = 'body'
     AND typeof(t.embedding_text_hash) = 'text'
     AND EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = t.target_id)
     AND (e.embedding_text_hash IS NULL OR NOT {IS_USABLE_SQL}) ORDER BY 1 LIMIT {_CHUNK}"""
_LACKING_OF = f"""SELECT t.embedding_text_hash, CAST(t.text AS BLOB), e.embedding_text_hash IS NOT NULL
   FROM search_text t
   LEFT JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash
   WHERE t.embedding_text_hash IN (SELECT value FROM json_each(:keys)) AND +t.kind = 'body'
     AND (e.embedding_text_hash IS NULL OR NOT {IS_USABLE_SQL})
   GROUP BY 1"""
_READY_OF = f"""SELECT e.embedding_text_hash, e.vector_blob FROM embedding e
   WHERE e.embedding_text_hash IN (SELECT value FROM json_each(:keys)) AND {IS_USABLE_SQL}"""
_SAMPLE = f"""SELECT t.embedding_text_hash, CAST(t.text AS BLOB), e.vector_blob FROM embedding e
   CROSS JOIN search_text t ON t.embedding_text_hash = e.embedding_text_hash AND +t.kind = 'body'
   WHERE e.rowid >= :start AND trim(t.text) <> '' AND {IS_USABLE_SQL} ORDER BY e.rowid LIMIT 1"""


class IndexScope:
    """The index of one base whose vectors are read or filled, opened by :func:`open_index_scope`.

    ``name`` is the base's id, ``label`` its display name, ``growing`` the open change that records what undo needs.
    """

    def __init__(
        self,
        db: apsw.Connection,
        *,
        name: str,
        label: str,
        dimensions: int | None,
        growing: IncrementalChange | None,
    ) -> None:
        """Wrap an open index; ``dimensions`` are those of its vectors by the catalog or the user, if known."""
        self._db = db
        self._decoded = make_text_decoder(db)
        self.name = name
        self.label = label
        self._growing = growing
        lengths = count_vector_lengths(db)
        length = choose_vector_length(lengths, dimensions)
        #: Whether most vectors contradict the catalog's dimensions, so that it is unknown which ones are right.
        self.is_at_odds = lengths_contradict(lengths, dimensions)
        #: The dimensions of most vectors; None without vectors.
        self.usual_dimensions = choose_vector_length(lengths, None) // 4 if lengths else None
        self.dimensions = length // 4 if lengths or dimensions is not None else None
        self._values: dict[str, Any] = {"length": length}

    def survey(self) -> TextCounts:
        """Count the unit texts with a usable vector, without a vector, and with an unusable one."""
        row: Any = self._db.execute(_SURVEY, self._values).get
        count, pending, stale = (int(number) for number in row)
        return TextCounts(ready=count - pending - stale, pending=pending, stale=stale)

    def lacking(self) -> Iterator[str]:
        """Yield the hash of every unit text without a usable vector, in ascending order."""
        first = ""
        while keys := self._db.execute(_LACKING, {**self._values, "first": first}).fetchall():
            yield from (str(key) for (key,) in keys)
            first = f"{keys[-1][0]}\0"  # the next text that there can be

    def vectors(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the usable vectors of the texts with these hashes, by hash."""
        rows = self._db.execute(_READY_OF, {**self._values, "keys": sqlite.json_array(keys)})
        return {str(key): vector for key, vector in rows}

    def texts(self, keys: Sequence[str]) -> dict[str, TextWithoutVector]:
        """Return the texts with the given hashes that lack a usable vector, by hash."""
        rows = self._db.execute(_LACKING_OF, {**self._values, "keys": sqlite.json_array(keys)})
        return {key: TextWithoutVector(self._text(raw, key), bool(stale)) for key, raw, stale in rows}

    def _text(self, raw: bytes | None, text_hash: str) -> str | None:
        """Decode the bytes of a text; None if they are not UTF-8, or if ``text_hash`` is not their hash."""
        text = self._decoded(raw)
        return text if text is not None and identity.text_hash(text) == text_hash else None

    def write(self, vectors: Mapping[str, bytes], now_ms: int) -> WrittenCounts:
        """Write vectors by text hash in one transaction, and count them; usable vectors are not replaced."""
        growing, db = self._growing, self._db
        with sqlite.transaction(db) if growing is None else growing.transaction(db, ("embedding",)):
            return self._write(vectors, now_ms)

    def _write(self, vectors: Mapping[str, bytes], now_ms: int) -> WrittenCounts:
        """Insert or replace vectors by text hash, unless there is a usable one.

        The caller has begun the transaction.
        """
        pending = stale = 0
        for key, vector in vectors.items():
            usable = self._db.execute(
                f"SELECT {IS_USABLE_SQL} FROM embedding e WHERE e.embedding_text_hash = :key",
                {**self._values, "key": key},
            ).get
            if usable is None:
                # Unless the text has been deleted.
                self._db.execute(
                    "INSERT INTO embedding (embedding_text_hash, vector_blob, created_at) SELECT ?1, ?2, ?3"
                    " WHERE EXISTS (SELECT 1 FROM search_text WHERE embedding_text_hash = ?1)",
                    (key, vector, now_ms),
                )
                pending += self._db.changes()
            elif not usable:
                self._db.execute(
                    "UPDATE embedding SET vector_blob = ?, created_at = ? WHERE embedding_text_hash = ?",
                    (vector, now_ms, key),
                )
                stale += 1
        return WrittenCounts(pending, stale)

    def failed(self, key: str, code: str, now_ms: int) -> None:
        """Do nothing: an index has no place to record that a text could not be embedded."""

    def sample(self, count: int) -> list[tuple[str, bytes]]:
        """Return about ``count`` texts with their vectors from all over the file, the same ones each time."""
        low, high = self._db.execute("SELECT min(rowid), max(rowid) FROM embedding").get or (None, None)
        if low is None:
            return []
        starts = {low + (high - low) * number // count for number in range(count)}
        found = {}
        for start in sorted(starts):
            row: Any = self._db.execute(_SAMPLE, {**self._values, "start": start}).fetchone()
            text = None if row is None else self._text(row[1], row[0])
            if text is not None and not is_blank(text):
                found[text] = row[2]
        return list(found.items())


@contextmanager
def open_index_scope(
    path: Path,
    base_id: str,
    *,
    is_placed: bool = True,
    label: str = "",
    dimensions: int | None = None,
    growing: IncrementalChange | None = None,
    writable: bool = False,
) -> Iterator[IndexScope]:
    """Open the index of a base to read or write its vectors.

    Args:
        path: the index file.
        base_id: the base's id.
        is_placed: whether the file lies where that base's index belongs, so that it must contain the base's id.
        label: the base's display name.
        dimensions: the number of dimensions of its vectors by the catalog or the user, or None.
        growing: records what undo needs.
        writable: open it for writing; otherwise no files are left beside it.

    Raises:
        IndexIncomplete, IndexVersionUnknown, IndexForeign: it is not the index of that base in the current layout.
        SchemaForeign: its vectors cannot be written without changing other rows.
        RowsMayBeRefused: a constraint or trigger may refuse a new vector.
        apsw.Error, OSError, ValueError: it cannot be read, or is damaged.
    """
    with ExitStack() as stack:
        if writable:
            stack.enter_context(opening.mark_open_for_writing(path))
            db = stack.enter_context(open_writer(path))
            sqlite.load_vector_extension(db)
        else:
            db = stack.enter_context(sqlite.open_readonly(path, vectors=True, beside_writers=True))
            db.set_busy_timeout(BUSY_MS)
        opening.check_identity(db, path, base_id if is_placed else None)
        # Check before anything is paid for that vectors can be written.
        untrusted_sqlite.refuse_foreign_rules(db, path, ("embedding",))
        untrusted_sqlite.refuse_restrictive_indexes(db, path, "embedding")
        yield IndexScope(db, name=base_id, label=label or base_id, dimensions=dimensions, growing=growing)


@contextmanager
def empty_index_scope(base_id: str, *, label: str, dimensions: int | None) -> Iterator[IndexScope]:
    """Open an empty index in memory, in place of one that is not built yet.

    ``dimensions`` are those of its future vectors; None: unknown.
    """
    with sqlite.open_in_memory() as db:
        sqlite.load_vector_extension(db)
        opening.create_index(db, base_id, 0)
        yield IndexScope(db, name=base_id, label=label, dimensions=dimensions, growing=None)


# --- targets ---------------------------------------------------------------------------------------------------------

#: A reason code of bases that are not filled; not a finding of ``check``.
MODEL_FINDING = "base.model"


#: The finding for each error with which opening an index fails.
_FINDINGS: dict[type[RegraftError], str] = {
    IndexVersionUnknown: v2.SCHEMA_VERSION,
    IndexIncomplete: v2.SCHEMA_MISSING,
    IndexForeign: v2.META_BASE,
    SchemaForeign: v2.FOREIGN_COLUMN,
}


class IndexTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A base whose missing vectors an embedder can fill; ``path`` is its index file, relative to the store's root."""

    base_id: str
    label: str
    path: str
    model_id: str | None
    dimensions: int | None
    #: Whether the file lies where the index of the base belongs.
    is_placed: bool = True
    #: Whether the catalog gets the model of the base before it is filled.
    is_new: bool = False
    is_unfinished: bool = False
    #: Whether the index is missing, and a step of the run builds it first.
    is_missing: bool = False
    #: Whether its dimensions are those of ``--dimensions``.
    is_given: bool = False
    finding: str = v2.VECTOR_MISSING
    is_file_shared: bool = False
    needs_dimensions: bool = True
    resolves: frozenset[str] = frozenset({v2.VECTOR_MISSING})

    @property
    def files(self) -> tuple[str, ...]:
        """The files that filling changes, relative to the store's root: the index file."""
        return (self.path,)

    def demand_fit(self, scope: Scope) -> None:
        """Check that most vectors in the opened index have the dimensions of the catalog, or of ``--dimensions``.

        Raises:
            CannotFill: they have others.
        """
        if isinstance(scope, IndexScope) and scope.is_at_odds:
            who, advice = (
                (tr("--dimensions says"), "")
                if self.is_given
                else (tr("the catalog says"), tr("; run regraft repair first"))
            )
            reason = tr(
                "{who} {dimensions} dimensions, the vectors have {dimensions2}{advice}",
                who=who,
                dimensions=self.dimensions,
                dimensions2=scope.usual_dimensions,
                advice=advice,
            )
            raise CannotFill(v2.BASE_DIMENSIONS, reason)

    def finding_of(self, error: RegraftError) -> str | None:
        """Return the name of the finding for an error with which opening the index failed, or None."""
        return next((finding for kind, finding in _FINDINGS.items() if isinstance(error, kind)), None)

    def finish(self, root: Path, growing: Sequence[IncrementalChange], now_ms: int, *, wrote: bool) -> None:
        """Do nothing: an index has no place to record that a run is complete."""

    def open_scope(self, root: Path, growing: Sequence[IncrementalChange] = ()) -> AbstractContextManager[IndexScope]:
        """Open the index below ``root``, for writing if there is an incremental change that records what undo needs.

        An index that is not built yet is empty.
        """
        if self.is_missing and not growing and not (root / self.path).exists():
            return empty_index_scope(self.base_id, label=self.label, dimensions=self.dimensions)
        return open_index_scope(
            root / self.path,
            self.base_id,
            is_placed=self.is_placed,
            label=self.label,
            dimensions=self.dimensions,
            growing=growing[0] if growing else None,
            writable=bool(growing),
        )


def index_targets(
    store: Store, settings: EmbedderSettings, new: NewModel | None, dimensions: int | None
) -> tuple[tuple[IndexTarget, ...], tuple[Unresolved, ...]]:
    """Split the selected bases of a store into those that an embedder can fill, and the others with the reason.

    Args:
        store: the store, with the selected bases.
        settings: the settings of the embedder.
        new: the model that bases without one get, if any.
        dimensions: the number of dimensions of vectors, for bases without a catalog row and without vectors.

    Raises:
        ModelDiffers: all selected bases have another model, or ``new`` is not the embedder's.
        ModelSet: a base that was named has a model already, and it is not ``new``.
        SourceUnreadable: the catalog cannot be read.
    """
    rows = _catalog_rows(store)
    listed = rows or {}
    known = {**dict.fromkeys(_selected_rows(store, listed)), **dict.fromkeys(filter(store.wants, store.stores))}
    found = [_make_target(store, base, rows, settings, new, dimensions) for base in known]
    if new is not None and not settings.serves(new.model_id):
        reason = tr("--model says {model_id}", model_id=new.model_id)
        raise ModelDiffers(embedder=settings.name, model=settings.model, reason=reason)
    targets = tuple(one for one in found if isinstance(one, IndexTarget))
    others = tuple(one for one in found if isinstance(one, Unresolved))
    if not targets:
        _demand_matching_model(store, listed, settings, others)
    return targets, others


def _demand_matching_model(
    store: Store, rows: dict[str, Row], settings: EmbedderSettings, others: tuple[Unresolved, ...]
) -> None:
    """Refuse an embedder if no selected base has its model.

    Otherwise bases of other models are left to other embedders.

    Args:
        store: the store.
        rows: catalog rows by base id.
        settings: the settings of the embedder.
        others: why each selected base cannot be filled.

    Raises:
        ModelDiffers
    """
    models = [rows.get(str(one.base), {}).get("embedding_model_id") for one in others]
    pairs = zip(others, models, strict=True)
    different = [one.reason for one, model in pairs if one.finding == MODEL_FINDING and model is not None]
    is_for_any = any(model and settings.serves(str(model)) for model in models)
    if different and (store.chosen or not is_for_any):
        raise ModelDiffers(embedder=settings.name, model=settings.model, reason=different[0])


def _selected_rows(store: Store, rows: dict[str, Row]) -> dict[str, Row]:
    """Return the catalog's ``rows``, by base id, that belong to selected bases."""
    return {base: row for base, row in rows.items() if is_selected(store, base)}


def _catalog_rows(store: Store) -> dict[str, Row] | None:
    """Read the catalog's rows by base id; None without a catalog."""
    return None if store.catalog is None else read_store_catalog(store, data=False).rows_by_base


def _make_target(
    store: Store,
    base: str,
    rows: dict[str, Row] | None,
    settings: EmbedderSettings,
    new: NewModel | None,
    dimensions: int | None,
) -> IndexTarget | Unresolved:
    """Describe a base to be filled, or report why it cannot be.

    Args:
        store: the store.
        base: the base's id.
        rows: catalog rows by base id; None without a catalog.
        settings: the settings of the embedder.
        new: the model that bases without one get, if any.
        dimensions: the number of dimensions that the user gives, if any.
    """
    row = None if rows is None else rows.get(base)
    if rows is not None and row is None:
        return Unresolved(finding=v2.INDEX_ORPHAN, reason=tr("the catalog has no such base"), base=base)
    unfit = _find_obstacle(store, base, row)
    if unfit is not None:
        return unfit
    index = store.stores.get(base)
    if row is not None:
        path = f"{store.bases}/{base}/{layout.INDEX_FILE}" if index is None else index.name
        target = _make_catalog_target(store, row, path, settings, new, dimensions)
        return replace(target, is_missing=index is None) if isinstance(target, IndexTarget) else target
    if index is None:
        return Unresolved(finding=v2.BASE_NO_INDEX, reason=tr("the base has no index"), base=base)
    return IndexTarget(
        base_id=base,
        label=base,
        path=index.name,
        model_id=None if new is None else new.model_id,
        dimensions=dimensions if new is None else new.dimensions,
        is_placed=index.base_id is not None and index.name.endswith(layout.INDEX_FILE),
    )


def _find_obstacle(store: Store, base: str, row: Row | None) -> Unresolved | None:
    """Report why a base cannot be filled with any model, or return None; ``row`` is its catalog row, if any."""
    if row is not None and row.get("status") == "failed":
        repair = store.command_line("restore", "--base", base)
        return Unresolved(
            finding=v2.BASE_FAILED,
            reason=tr("the base failed ({get}); restore makes a new one", get=row.get("error")),
            base=base,
            repair=repair,
        )
    index = store.stores.get(base)
    if index is None or index.look.layout is IndexLayout.CURRENT:
        # A step of the run builds a missing index from the items of the base.
        return None
    if index.look.layout is IndexLayout.UNREADABLE:
        return Unresolved(
            finding=v2.UNREADABLE,
            reason=tr("its index cannot be read ({problem})", problem=index.look.problem),
            base=base,
            severity="error",
        )
    return Unresolved(
        finding=v2.SCHEMA_PREVIEW, reason=tr("its index has another layout; run regraft upgrade first"), base=base
    )


def _make_catalog_target(
    store: Store, row: Row, path: str, settings: EmbedderSettings, new: NewModel | None, dimensions: int | None
) -> IndexTarget | Unresolved:
    """Describe a base to be filled by its catalog row, or report why it is not filled.

    Args:
        store: the store.
        row: the catalog row.
        path: the index file, relative to the store's root.
        settings: the settings of the embedder.
        new: the model that bases without one get, if any.
        dimensions: the number of dimensions that the user gives, if any.
    """
    base, label = base_id_text(row), str(row.get("name"))
    model: Any = row.get("embedding_model_id")
    if model is None:
        if new is None:
            reason = tr(
                "the base has no model and is searched by words only; use --model and --dimensions to give it one"
            )
            return Unresolved(
                finding=MODEL_FINDING, reason=reason, base=base, severity="warning" if base in store.chosen else "note"
            )
        return IndexTarget(
            base_id=base, label=label, path=path, model_id=new.model_id, dimensions=new.dimensions, is_new=True
        )
    if new is not None and new.model_id != model:
        if base in store.chosen:
            raise ModelSet(base=label, model=model, wanted=new.model_id)
        return Unresolved(
            finding=MODEL_FINDING,
            reason=tr("the base has the model {model} already, so it does not get the one of --model", model=model),
            base=base,
            severity="note",
        )
    if not settings.serves(str(model)):
        return Unresolved(
            finding=MODEL_FINDING,
            reason=tr(
                "the model of {label} is {model}, and {embedder} has another",
                label=label,
                model=model,
                embedder=settings.name,
            ),
            base=base,
            severity="note",
        )
    return IndexTarget(
        base_id=base,
        label=label,
        path=path,
        model_id=str(model),
        dimensions=stated_dimensions(row) or dimensions,
    )


class IndexFiller:
    """Backfill of vectors in libraries, profiles, bases and index files."""

    def models(self, store: Store, options: BackfillOptions) -> frozenset[str]:
        """Return the model ids of the selected bases, and of the model that the options give to bases without one."""
        rows = _selected_rows(store, _catalog_rows(store) or {}).values()
        ids = {row.get("embedding_model_id") for row in rows} | {None if options.new is None else options.new.model_id}
        return frozenset(str(one) for one in ids if one is not None)

    def targets(self, store: Store, settings: EmbedderSettings, options: BackfillOptions) -> FillTargets:
        """Return the bases that an embedder can fill, and the steps before: build missing indexes, and set models."""
        found, left = index_targets(store, settings, options.new, options.dimensions)
        found, without = _require_index(store, found)
        left = (*left, *without)
        units = PreparationStep(partial(_plan_units, bases={target.base_id for target in found}), may_wait=True)
        models = (PreparationStep(partial(_plan_model, target=target)) for target in found if target.is_new)
        # To name the source of the dimensions in error messages.
        targets = (replace(target, is_given=target.dimensions == options.dimensions) for target in found)
        return FillTargets(tuple(targets), left, (units, *models))


def _require_index(
    store: Store, targets: tuple[IndexTarget, ...]
) -> tuple[tuple[IndexTarget, ...], tuple[Unresolved, ...]]:
    """Split bases into those that have or get an index, and reports about those whose index cannot be built."""
    missing = {target.base_id for target in targets if target.is_missing}
    if not missing:
        return targets, ()
    plan = _plan_units(store, missing)
    built = {base for name, base in plan.resolves if name == v2.BASE_NO_INDEX}
    kept = tuple(one for one in targets if one.base_id not in missing - built)
    return kept, tuple(one for one in plan.left if one.base not in built)


def _plan_units(store: Store, bases: set[str]) -> Plan:
    """Plan units for the unindexed texts of the bases with these ids."""
    return indexing.plan(store, identity.now_ms(), bases)


def _plan_model(store: Store, target: IndexTarget) -> Plan:
    """Plan to record the model of the target's base in the catalog. Run when the base is filled, not before."""
    model, dimensions = str(target.model_id), target.dimensions or 0
    change = model_change(store, target.base_id, model, dimensions, identity.now_ms())
    return Plan([] if change is None else [change])
