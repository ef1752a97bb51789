"""Putting a base that is built into its place, with all that it needs from the old one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from checks.audit.collector import FindingCollector, Level
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import MODES, is_tombstone
from checks.cherry_v2.index_file import ExpectedIndex, audit_index
from regraft import language
from regraft.disk import durable, file_paths, untrusted_sqlite
from regraft.errors import ModelNotSet, NotRestored, PlanOutdated, VerificationFailed
from regraft.formats.cherry_v2.catalog_generation import BASES, ITEMS, PROVIDERS
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.language import format_count, tr
from regraft.report import notices
from regraft.stores.locate import RAW_FOLDER
from regraft.text import is_blank
from repair.changes import files
from repair.changes.execution import RESTORING
from repair.changes.plan import Action, FileChange, Plan, RowsChange, Unresolved
from repair.changes.store import Store
from repair.cherry_v2.base_models import ModelUnusable, insert_model
from repair.cherry_v2.catalog_changes import CATALOG_TABLES, CatalogStatements, make_catalog_change
from repair.cherry_v2.restore.build import BuiltBase
from repair.cherry_v2.restore.source import ItemCopy, RestoredBase, RestoreSource, read_source

# The rows of the catalog: those of a restored base, and those that give a base its first model.


def new_rows(source: RestoreSource, wanted: RestoredBase, items: Sequence[ItemCopy], now_ms: int) -> RowsChange:
    """Return what lists a restored base with these items, and its model where that is new.

    Raises:
        NotRestored: the catalog cannot have the model.
        ProfileUnknown: the profile is of another time than this regraft.
    """
    base = wanted.base_id(source.key)
    statements = CatalogStatements(source.catalog, bases={source.key})
    for table in (BASES, ITEMS):
        statements.tables.insertable_columns(table, ())
    try:
        actions = list(_model(source, wanted.model_id, base, statements, now_ms))
    except ModelUnusable as reason:
        raise NotRestored(path=source.store.path, base=source.key, reason=reason) from reason
    row = source.row
    rerank = row.get("rerank_model_id")
    changed = {
        "id": base,
        "name": row.get("name") if is_blank(wanted.name) else wanted.name,
        "dimensions": wanted.dimensions,
        "embedding_model_id": wanted.model_id,
        "status": "completed",
        "error": None,
        **_searched(statements, row, wanted.model_id),
        "rerank_model_id": rerank if rerank in source.models or rerank == wanted.model_id else None,
        "created_at": now_ms,
        "updated_at": now_ms,
    }
    statements.copy_row(BASES, source.key, changed)
    for item in items:
        fields = {"id": item.id, "base_id": base, "group_id": item.group, "status": item.status}
        statements.copy_row(ITEMS, item.old, {**fields, "error": item.error})
        if item.path is not None:
            # Of an item that gets another path, what was indexed under the old one is no concern any more.
            moved = "json_set(json_remove(data, '$.indexedRelativePath'), '$.relativePath', ?)"
            statements.made.append((f"UPDATE knowledge_item SET data = {moved} WHERE id = ?", (item.path, item.id), ()))
    message = tr(
        "list it with the model {model_id}, {dimensions} dimensions, and",
        model_id=wanted.model_id,
        dimensions=wanted.dimensions,
    )
    message = f"{message} {format_count(len(items), 'item')}"
    actions.append(
        Action(
            action="insert-base", message=message, base=base, subject=None, count=1 + len(items), bytes=statements.bytes
        )
    )
    return _change(source, statements, actions)


def _searched(statements: CatalogStatements, row: Row, model: str) -> Row:
    """Return how a restored base is searched, where its catalog keeps that: as the old one, if that can be."""
    is_kept = row.get("embedding_model_id") is not None and row.get("search_mode") in MODES
    return {} if is_kept else statements.tables.derived(model)


def model_change(store: Store, base_id: str, model_id: str, dimensions: int, now_ms: int) -> RowsChange | None:
    """Return what gives a base that is searched by words alone a model; None where it has that very model.

    Raises:
        ModelNotSet: it has another model, it failed, or the catalog cannot have this one.
        NotChanged, SourceUnreadable, BaseUnknown, ProfileUnknown
    """
    source = read_source(store, base_id)
    row = source.row
    if (row.get("embedding_model_id"), row.get("dimensions")) == (model_id, dimensions):
        return None
    problem = _keeps_it_without(source)
    statements = CatalogStatements(source.catalog)
    try:
        if problem is not None:
            raise ModelUnusable(problem)  # noqa: TRY301 - said as what the catalog says
        actions = list(_model(source, model_id, source.key, statements, now_ms))
    except ModelUnusable as reason:
        raise ModelNotSet(path=store.path, base=source.key, reason=reason) from reason
    statements.set_model(row, model_id, dimensions, now_ms)
    message = tr(
        "give it the model {model_id} with {dimensions} dimensions, searched by both lanes",
        model_id=model_id,
        dimensions=dimensions,
    )
    actions.append(Action(action="update-base", message=message, base=source.key))
    return _change(source, statements, actions)


def _keeps_it_without(source: RestoreSource) -> str | None:
    row = source.row
    again = tr("regraft restore makes a new base of its texts")
    if row.get("status") != "completed":
        return tr("it failed ({get}); {again}", get=row.get("error"), again=again)
    if row.get("embedding_model_id") is not None:
        return tr(
            "it has {embedding_model_id} with {get} dimensions; {again} with another one",
            embedding_model_id=row["embedding_model_id"],
            get=row.get("dimensions"),
            again=again,
        )
    return None


def _model(
    source: RestoreSource, model: str, base: str, statements: CatalogStatements, now_ms: int
) -> Iterator[Action]:
    """Insert a model that is not there yet.

    Raises:
        ModelUnfit
    """
    return insert_model(
        statements,
        model,
        base,
        models=source.models,
        providers=source.providers,
        is_profile=source.store.is_profile,
        now_ms=now_ms,
    )


def _change(source: RestoreSource, statements: CatalogStatements, actions: list[Action]) -> RowsChange:
    return make_catalog_change(statements, str(source.store.catalog), actions, (*CATALOG_TABLES, PROVIDERS))


def build_folder(source: RestoreSource, wanted: RestoredBase) -> Path:
    """Return the folder where a base is built.

    Raises:
        NotRestored: the catalog has that base already.
    """
    base = wanted.base_id(source.key)
    if base in source.bases:
        reason = tr(
            "that was done: base {base} has {model_id}; regraft backfill makes vectors that it "
            "lacks, and --name or another model makes another base",
            base=base,
            model_id=wanted.model_id,
        )
        raise NotRestored(path=source.store.path, base=source.key, reason=reason)
    return source.store.own / RESTORING / base


def discard_build(staged: Path) -> None:
    """Remove what was built."""
    durable.remove_tree(staged)
    files.remove_empty_folders(staged.parent, staged.parent.parent)


def publish_plan(source: RestoreSource, wanted: RestoredBase, restored: BuiltBase, staged: Path, now_ms: int) -> Plan:
    """Return what puts a base that was built in ``staged`` into its place; nothing is written.

    Its vectors need not be there: then the plan is what a dry run shows.

    Raises:
        NotRestored: the catalog has it already, or cannot have its model.
        VerificationFailed: what was built is damaged.
        PlanOutdated: the old base was changed since.
        ProfileUnknown: the profile is of another time than this regraft.
    """
    build_folder(source, wanted)
    made = Plan()
    base, index = restored.base, restored.index(staged)
    source.store.names[base] = wanted.name or str(source.row.get("name"))
    if source.mark() != restored.mark:
        raise PlanOutdated(
            path=source.index.parent.parent, reason=tr("the base was changed while its texts were embedded")
        )
    missing = _missing(index, base, wanted.dimensions)
    name = source.folder(base)
    copied = sum((source.raw / path).stat().st_size for path in restored.files)
    size = copied + files.size_on_disk(restored.folder(staged))
    message = tr(
        "write the base: {texts} in {units}, and",
        texts=format_count(restored.texts, "text"),
        units=format_count(restored.units, "unit"),
    )
    message = tr("{message_} {files} of the old one", message_=message, files=format_count(len(restored.files), "file"))
    action = Action(action="write-base", message=message, base=base, subject=name, count=restored.units, bytes=size)
    guesses = [
        Action(
            action="guess-encoding",
            message=tr("read {path} as {encoding}, by its letters", path=path, encoding=encoding),
            base=base,
            subject=path,
        )
        for path, encoding in restored.guessed.items()
    ]
    make = _make(restored.folder(staged), source.raw, restored.files)
    made.changes.append(FileChange(path=name, actions=(action, *guesses), make=make, bytes=size))
    made.changes.append(new_rows(source, wanted, restored.items, now_ms))
    made.left += _left(restored)
    made.left += _tombstones(source, restored)
    if missing:
        message = tr("{bodys} without a vector", bodys=format_count(missing, "body"))
        made.left.append(
            Unresolved(
                finding=v2.VECTOR_MISSING, reason=message, base=base, subject=None, count=missing, severity="error"
            )
        )
    made.new_bases[base], made.lists_inherited = _of_copied_rows(source), True
    return made


def _tombstones(source: RestoreSource, restored: BuiltBase) -> Iterator[Unresolved]:
    """Yield the folders that the application's upgrade left behind and that have no text to restore either."""
    rows = {row["id"]: row for row in source.items}
    for item in restored.items:
        if is_tombstone({**rows[item.old], "status": item.status, "error": item.error}):
            reason = tr("a folder that the upgrade left behind: its index has no texts of it")
            yield Unresolved(
                finding=v2.ITEM_TOMBSTONE, reason=reason, base=restored.base, subject=item.id, severity="warning"
            )


def _of_copied_rows(source: RestoreSource) -> frozenset[str]:
    """Return the names of the findings that the rows of the old base have and that copies of them may have, too."""
    found = source.store.audit(Level.QUICK, frozenset({source.key})).findings
    copied = (v2.CATALOG_VALUE, v2.BASE_STATUS)
    return frozenset(one.name for one in found if one.name.startswith("item.") or one.name in copied)


def _left(restored: BuiltBase) -> Iterator[Unresolved]:
    """Yield what of the old base stays behind."""
    for one in restored.left:
        severity: notices.Severity = "note" if one.severity == "note" else "warning"
        # An earlier run may have built the base; what it kept is English.
        reason = language.translate_kept_text(one.reason)
        yield Unresolved(
            finding=one.finding, reason=reason, base=restored.base, subject=one.item, count=1, severity=severity
        )


def _missing(index: Path, base: str, dimensions: int) -> int:
    """Return how many bodies have no vector.

    Raises:
        VerificationFailed: something else is wrong with the index.
    """
    ledger = FindingCollector()
    audit_index(index, ExpectedIndex(base=base, folder=base, has_model=True, dimensions=dimensions), ledger)
    for finding in ledger.findings():
        if finding.severity == "error" and finding.name != v2.VECTOR_MISSING:
            raise VerificationFailed(base=base, reason=finding.message)
    return ledger.count(v2.VECTOR_MISSING, base)


def _make(built: Path, raw: Path, paths: tuple[str, ...]) -> Callable[[Path], None]:
    def make(new: Path) -> None:
        for place, _, names in file_paths.walk(built, durable.raise_unless_missing):
            for name in names:
                file = Path(place) / name
                if untrusted_sqlite.is_database(file):
                    files.flush_log(file)
                if not name.endswith(untrusted_sqlite.COMPANION_SUFFIXES):
                    _put(file, new / file.relative_to(built))
        for path in paths:
            target = new / RAW_FOLDER / path
            durable.make_folders(target.parent, flush=False)
            try:
                durable.copy_file(raw / path, target)
            except FileNotFoundError as error:
                raise PlanOutdated(path=raw / path, reason=tr("it is gone")) from error

    return make


def _put(file: Path, target: Path) -> None:
    """Give a file that was built a second name: what was paid for stays where it is until the run is over."""
    durable.make_folders(target.parent, flush=False)
    if not durable.try_link(file, target):
        durable.copy_file(file, target)
