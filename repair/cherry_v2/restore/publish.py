"""Plan the publication of a base that was built: its folder, the files it needs from the old base, and its catalog
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from checks.audit.collector import Level
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import MODES, is_tombstone
from regraft import language
from regraft.disk import durable, file_paths, untrusted_sqlite
from regraft.errors import NotRestored, PlanOutdated
from regraft.formats.cherry_v2.catalog_generation import BASES, ITEMS
from regraft.language import format_count, tr
from regraft.report import notices
from regraft.stores.locate import RAW_FOLDER
from regraft.text import is_blank
from repair.changes import files
from repair.changes.execution import RESTORING
from repair.changes.plan import Action, FileChange, Plan, RowsChange, Unresolved
from repair.cherry_v2.base_models import ModelUnusable, insert_embedder_model, make_model_change
from repair.cherry_v2.catalog_changes import CatalogStatements
from repair.cherry_v2.old_base import ItemCopy, RestoredBase, RestoreSource
from repair.cherry_v2.restore.build import BuiltBase, count_missing_vectors

# --- catalog rows ----------------------------------------------------------------------------------------------------


def new_rows(source: RestoreSource, wanted: RestoredBase, items: Sequence[ItemCopy], now_ms: int) -> RowsChange:
    """Plan the catalog rows of a new base with these items, and of its model if that is new.

    Raises:
        NotRestored: the catalog cannot have the model.
        ProfileUnknown: the profile is of an unknown version of the application.
    """
    base = wanted.base_id(source.key)
    statements = CatalogStatements(source.catalog, bases={source.key})
    for table in (BASES, ITEMS):
        statements.tables.insertable_columns(table, ())
    try:
        actions = list(insert_embedder_model(source, wanted.model_id, base, statements, now_ms))
    except ModelUnusable as reason:
        raise NotRestored(path=source.store.path, base=source.key, reason=reason) from reason
    row = source.row
    # The search settings of the old base are kept if they are valid.
    is_search_kept = row.get("embedding_model_id") is not None and row.get("search_mode") in MODES
    rerank = row.get("rerank_model_id")
    changed = {
        "id": base,
        "name": row.get("name") if is_blank(wanted.name) else wanted.name,
        "dimensions": wanted.dimensions,
        "embedding_model_id": wanted.model_id,
        "status": "completed",
        "error": None,
        **({} if is_search_kept else statements.tables.derived(wanted.model_id)),
        "rerank_model_id": rerank if rerank in source.models or rerank == wanted.model_id else None,
        "created_at": now_ms,
        "updated_at": now_ms,
    }
    statements.copy_row(BASES, source.key, changed)
    for item in items:
        fields = {"id": item.id, "base_id": base, "group_id": item.group, "status": item.status}
        statements.copy_row(ITEMS, item.old, {**fields, "error": item.error})
        if item.path is not None:
            # The item gets another path, so what was indexed under the old one is irrelevant.
            moved = "json_set(json_remove(data, '$.indexedRelativePath'), '$.relativePath', ?)"
            statements.made.append((f"UPDATE knowledge_item SET data = {moved} WHERE id = ?", (item.path, item.id), ()))
    message = tr(
        "add it to the catalog with the model {model_id}, {dimensions} dimensions, and",
        model_id=wanted.model_id,
        dimensions=wanted.dimensions,
    )
    message = f"{message} {format_count(len(items), 'item')}"
    actions.append(
        Action(
            action="insert-base", message=message, base=base, subject=None, count=1 + len(items), bytes=statements.bytes
        )
    )
    return make_model_change(source, statements, actions)


def build_folder(source: RestoreSource, wanted: RestoredBase) -> Path:
    """Return the folder where a base is built.

    Raises:
        NotRestored: the catalog has that base already.
    """
    base = wanted.base_id(source.key)
    if base in source.bases:
        reason = tr(
            "it was restored already: base {base} has {model_id}; regraft backfill makes missing vectors, "
            "and --name or another model makes another base",
            base=base,
            model_id=wanted.model_id,
        )
        raise NotRestored(path=source.store.path, base=source.key, reason=reason)
    return source.store.own / RESTORING / base


def discard_build(staged: Path) -> None:
    """Remove the folder where a base was built."""
    durable.remove_tree(staged)
    files.remove_empty_folders(staged.parent, staged.parent.parent)


def publish_plan(source: RestoreSource, wanted: RestoredBase, restored: BuiltBase, staged: Path, now_ms: int) -> Plan:
    """Plan to publish a base that was built in ``staged``. Reads only.

    Vectors may be missing: then the plan is for a dry run.

    Raises:
        NotRestored: the catalog has the base already, or cannot have its model.
        VerificationFailed: the build is damaged.
        PlanOutdated: the old base was changed after the build.
        ProfileUnknown: the profile is of an unknown version of the application.
    """
    build_folder(source, wanted)
    made = Plan()
    base, index = restored.base, restored.index(staged)
    source.store.names[base] = wanted.name or str(source.row.get("name"))
    if source.mark() != restored.mark:
        raise PlanOutdated(
            path=source.index.parent.parent, reason=tr("the base was changed while its texts were embedded")
        )
    missing = count_missing_vectors(index, base, wanted.dimensions)
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
            message=tr("read {path} as {encoding}, guessed from its content", path=path, encoding=encoding),
            base=base,
            subject=path,
        )
        for path, encoding in restored.guessed.items()
    ]
    make = _copy_files(restored.folder(staged), source.raw, restored.files)
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
    # Findings about rows of the old base, which their copies may have as well.
    found = source.store.audit(Level.QUICK, frozenset({source.key})).findings
    row_findings = (v2.CATALOG_VALUE, v2.BASE_STATUS)
    inherited = frozenset(one.name for one in found if one.name.startswith("item.") or one.name in row_findings)
    made.new_bases[base], made.lists_inherited = inherited, True
    return made


def _tombstones(source: RestoreSource, restored: BuiltBase) -> Iterator[Unresolved]:
    """Yield the folders that the application's upgrade left behind, and that have no text to restore."""
    rows = {row["id"]: row for row in source.items}
    for item in restored.items:
        if is_tombstone({**rows[item.old], "status": item.status, "error": item.error}):
            reason = tr("a folder that the application's upgrade left behind; the index has no texts of it")
            yield Unresolved(
                finding=v2.ITEM_TOMBSTONE, reason=reason, base=restored.base, subject=item.id, severity="warning"
            )


def _left(restored: BuiltBase) -> Iterator[Unresolved]:
    """Yield the parts of the old base that are not restored."""
    for one in restored.left:
        severity: notices.Severity = "note" if one.severity == "note" else "warning"
        # The record keeps reasons in English, since another run may have built the base.
        reason = language.translate_kept_text(one.reason)
        yield Unresolved(
            finding=one.finding, reason=reason, base=restored.base, subject=one.item, count=1, severity=severity
        )


def _copy_files(built: Path, raw: Path, paths: tuple[str, ...]) -> Callable[[Path], None]:
    def make(new: Path) -> None:
        for folder, _, names in file_paths.walk(built, durable.raise_unless_missing):
            for name in names:
                file = Path(folder) / name
                if untrusted_sqlite.is_database(file):
                    files.flush_log(file)
                if name.endswith(untrusted_sqlite.COMPANION_SUFFIXES):
                    continue
                # A hard link: the original, which has paid vectors, stays until the run is complete.
                target = new / file.relative_to(built)
                durable.make_folders(target.parent, flush=False)
                if not durable.try_link(file, target):
                    durable.copy_file(file, target)
        for path in paths:
            target = new / RAW_FOLDER / path
            durable.make_folders(target.parent, flush=False)
            try:
                durable.copy_file(raw / path, target)
            except FileNotFoundError as error:
                raise PlanOutdated(path=raw / path, reason=tr("it is gone")) from error

    return make
