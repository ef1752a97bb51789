"""Plan ``regraft sync`` for v2 data: a base follows its original files (``docs/sync.md``).

``reconcile`` makes index and catalog of a store agree; ``sync`` follows files outside of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from msgspec import structs

from checks.audit.collector import Level
from checks.audit.findings import Finding
from checks.cherry_v2 import findings as v2
from regraft.disk import file_paths, sqlite
from regraft.disk.file_paths import fold_name, path_segments
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import WrongUsage
from regraft.formats.cherry_preview import IndexLayout
from regraft.formats.cherry_v2.catalog_reader import Row, base_id_text, parse_item_data
from regraft.formats.cherry_v2.settings import read_base_settings
from regraft.language import format_count, tr
from regraft.text import is_blank
from repair.changes.plan import Plan, Unresolved, group_by_base
from repair.changes.store import Store
from repair.cherry_v2.catalog_changes import (
    CatalogStatements,
    demand_catalog,
    is_selected,
    make_catalog_change,
    read_store_catalog,
)
from repair.cherry_v2.index_vectors import IndexFiller
from repair.cherry_v2.indexing import BLOCKING
from repair.cherry_v2.item_paths import MovedRoot, demand_known, moved_items
from repair.cherry_v2.protection import Protection
from repair.cherry_v2.sync.base import BaseComparison, IndexReader, SyncRequest
from repair.cherry_v2.sync.changes import BaseChanges, read_bodies
from repair.cherry_v2.sync.sources import Unreachable, locate
from repair.embedding.scope import BackfillOptions, FillTargets, PreparationStep


class NothingToEmbed(Exception):
    """No chosen base has the model of the embedder, so that the bases are synced without one."""


class SyncFiller:
    """Backfill that first updates the bases from their original files, as the options of ``sync`` say."""

    def __init__(self, options: SyncRequest) -> None:
        self._options = options
        self._filler = IndexFiller()

    def models(self, store: Store, options: BackfillOptions) -> frozenset[str]:
        """Return the model ids of the selected bases."""
        return self._filler.models(store, options)

    def targets(self, store: Store, settings: EmbedderSettings, options: BackfillOptions) -> FillTargets:
        """Return the bases that an embedder can fill, and, as the first step, the changes of their texts.

        Raises:
            NothingToEmbed: no base can be filled.
        """
        found = self._filler.targets(store, settings, options)
        if not found.targets:
            raise NothingToEmbed
        embedded = frozenset(target.base_id for target in found.targets)
        step = PreparationStep(partial(plan, options=structs.replace(self._options, embedded=embedded)))
        return structs.replace(found, steps=(step, *found.steps))


def plan(store: Store, options: SyncRequest) -> Plan:
    """Plan to update the chosen bases of a store from their original files.

    Raises:
        NotChanged: there is no catalog that names the original files.
        WrongUsage: a folder that the user named cannot be followed.
        SourceUnreadable: the catalog cannot be read.
    """
    demand_catalog(store, "sync", tr("give the library or profile that contains it"))
    catalog = read_store_catalog(store)
    chosen = [row for row in catalog.bases if is_selected(store, base_id_text(row))]
    items = {base_id_text(row): catalog.items_of(base_id_text(row)) for row in chosen}
    if options.sources and len(chosen) != 1:
        problem = tr(
            "--source adds a folder to one base, and {bases} are chosen", bases=format_count(len(chosen), "base")
        )
        raise WrongUsage(problem=problem, hint=tr("choose it with --base"))
    demand_known(options.moved, items)
    findings = group_by_base(store.findings(Level.QUICK))
    made, statements = Plan(), CatalogStatements.of(store)
    protection = Protection(store, catalog)
    for row in chosen:
        base = base_id_text(row)
        obstacle = _find_obstacle(store, row, findings.get(base, []))
        if obstacle is not None:
            made.left.append(obstacle)
            continue
        done, changes = _plan_base(store, row, items[base], options, protection)
        made.add(done)
        statements.actions += changes.update(statements)
    if statements.actions:
        made.changes.append(make_catalog_change(statements, ("knowledge_item",)))
    return made


def _find_obstacle(store: Store, row: Row, findings: list[Finding]) -> Unresolved | None:
    """Report why a base cannot be synced, or return None; ``findings`` are the audit's about the base."""
    base = base_id_text(row)
    index = store.stores.get(base)
    if row.get("status") != "completed":
        repair = store.command_line("restore", "--base", base)
        reason = tr("the base failed ({get}); restore makes a new one", get=row.get("error"))
        return Unresolved(finding=v2.BASE_FAILED, reason=reason, base=base, repair=repair)
    if index is None:
        repair = store.command_line("backfill", "--base", base)
        return Unresolved(finding=v2.BASE_NO_INDEX, reason=tr("the base has no index"), base=base, repair=repair)
    if index.look.layout is not IndexLayout.CURRENT:
        reason = tr("its index has another layout; run regraft upgrade first")
        return Unresolved(finding=v2.SCHEMA_PREVIEW, reason=reason, base=base)
    blocking = next((finding for finding in findings if finding.name in BLOCKING), None)
    if blocking is not None:
        reason = tr("the index was not changed: {what}", what=blocking.message)
        return Unresolved.of(blocking, reason, repair=blocking.repair)
    return None


def _plan_base(
    store: Store, row: Row, items: list[Row], options: SyncRequest, protection: Protection
) -> tuple[Plan, BaseChanges]:
    """Compare a base with its original files, and plan the changes.

    Returns:
        The plan for index and files, and the object that adds statements for the catalog.

    Raises:
        WrongUsage: a folder that the user named cannot be followed.
        apsw.Error, OSError: the index cannot be read.
    """
    base = base_id_text(row)
    index = store.stores[base]
    moved = [*options.moved, *_match_missing_folders(items, options.sources)]
    with sqlite.open_readonly(store.root / index.name) as db:
        compared = BaseComparison(
            base=base,
            row=row,
            items=items,
            settings=read_base_settings(row)[0],
            raw=store.root / index.raw,
            root=store.root,
            index=IndexReader(db),
            options=options,
            sources={str(item.get("id")): new for item, new in moved_items(items, moved)},
        )
        compared.compare()
    gone = _removed_items(compared, protection.reason(base))
    changes = BaseChanges(compared=compared, index=index.name, raw=index.raw, gone=gone)
    made = Plan([*changes.changes()], [*compared.left()])
    texts = [*compared.changed, *compared.new]
    made.bodies[base] = partial(read_bodies, texts, options.reader)
    lacking = {key for one in texts if one.text is not None for key in one.text.lacking}
    if lacking and base not in options.embedded and not is_blank(row.get("embedding_model_id")):
        count = len(lacking)
        repair = store.command_line("backfill", "--base", base)
        reason = tr("left for backfill: {texts} without a vector", texts=format_count(count, "new text"))
        made.left.append(Unresolved(finding=v2.VECTOR_MISSING, reason=reason, base=base, count=count, repair=repair))
    return made, changes


def _removed_items(compared: BaseComparison, protected: str | None) -> list[Row]:
    """Return the items to remove because their file is gone; if they stay, report them.

    Args:
        compared: the comparison of the base with its files.
        protected: why nothing is deleted from the base; None: it is not protected.
    """
    if compared.options.delete and protected is None:
        return compared.gone
    reason = protected or tr("the file no longer exists; --delete removes the item")
    for item in compared.gone:
        source = compared.sources.get(str(item.get("id"))) or str(parse_item_data(item).get("source"))
        compared.leave(v2.SOURCE_GONE, reason, source)
    return []


def _match_missing_folders(items: list[Row], sources: Iterable[Path]) -> Iterator[MovedRoot]:
    """Yield missing folders of items, each with the one of the given ``sources`` that has its name.

    A name that several missing folders have is skipped.
    """
    missing = list(_missing_folders(items)) if sources else []
    for path in sources:
        same = [source for source in missing if fold_name(path_segments(source)[-1]) == fold_name(path.name)]
        if len(same) == 1:
            yield MovedRoot(same[0], str(path))


def _missing_folders(items: list[Row]) -> Iterator[str]:
    """Yield the paths of original folders of folder items that do not exist on this computer."""
    for item in items:
        source = parse_item_data(item).get("source")
        if item.get("type") == "directory" and isinstance(source, str) and path_segments(source):
            try:
                if not file_paths.exists(locate(source)):
                    yield source
            except (Unreachable, OSError):
                yield source
