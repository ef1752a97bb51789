"""The first half of the plan: everything that follows from v1's state alone, before a vector file is opened.

A pure function of the state and the user's word about models: no clock, no files. Rules: ``docs/rules.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migrators.cherry_v1 import items as item_rules
from migrators.pipeline.drafts import BaseDraft, LibraryDraft, SkippedBase, Upload
from regraft import identity
from regraft.formats.cherry_v1.state import V1State
from regraft.formats.cherry_v1.tables import Items
from regraft.formats.cherry_v2.models import ModelOverrides, Models
from regraft.formats.cherry_v2.values import read_settings, read_time, whole_number
from regraft.language import joined, tr
from regraft.names import FreeNames, vector_file_name
from regraft.report import notices
from regraft.report.notices import Notice
from regraft.text import counted, is_blank, trim, without_nul


def draft_library(
    state: V1State, model_overrides: ModelOverrides, is_binary: Callable[[Upload], bool] = lambda _: False
) -> LibraryDraft:
    """Draft every base of ``state``.

    Args:
        state: v1's state.
        model_overrides: what the user says of models.
        is_binary: whether an upload is there and is no text.
    """
    named = [raw.get("model") for raw in state.bases if isinstance(raw, dict)]
    models = Models(state.providers, model_overrides, named)
    context = item_rules.Context(files=state.files, notes=state.notes, migrated=set(), is_binary=is_binary)
    drafts: list[BaseDraft] = []
    skipped: list[SkippedBase] = []
    seen: set[str] = set()
    for raw in state.bases:
        reason = _reason_to_skip(raw, seen, state.pending_delete)
        if reason is None:
            seen.add(raw["id"])
            drafts.append(_draft_base(raw, models, context))
        else:
            skipped.append(_skip(raw, reason))
    message = [*state.notices, *map(_skipped_notice, skipped), *models.unused_words()]
    return LibraryDraft(tuple(drafts), tuple(skipped), tuple(message))


def _reason_to_skip(raw: Any, seen: set[str], pending: frozenset[str]) -> str | None:
    if not isinstance(raw, dict):
        return notices.INVALID_BASE
    legacy_id, name = raw.get("id"), raw.get("name")
    if not isinstance(legacy_id, str) or not legacy_id or not isinstance(name, str) or not name:
        return notices.INVALID_BASE
    if legacy_id in pending:
        return notices.PENDING_DELETE
    return notices.DUPLICATE_BASE if legacy_id in seen else None


def _skip(raw: Any, reason: str) -> SkippedBase:
    legacy_id = raw.get("id") if isinstance(raw, dict) else None
    items = raw.get("items") if isinstance(raw, dict) else None
    return SkippedBase(
        legacy_id if isinstance(legacy_id, str) else None, reason, len(items) if isinstance(items, list | Items) else 0
    )


def _skipped_notice(base: SkippedBase) -> Notice:
    message = notices.CODES[base.reason].meaning
    return Notice(
        code=base.reason,
        message=tr("{message_} It has {items}.", message_=message, items=counted(base.items, "item"))
        if base.items
        else message,
        base=base.legacy_id,
    )


def _draft_base(raw: dict[str, Any], models: Models, context: item_rules.Context) -> BaseDraft:
    legacy_id: str = raw["id"]
    found_notices: list[Notice] = []
    name = trim(without_nul(raw["name"]))
    if not name:
        name = trim(without_nul(legacy_id)) or identity.base_id(legacy_id)
        found_notices.append(
            Notice(code=notices.BLANK_NAME, message=tr("the base is called by its id"), base=legacy_id)
        )
    embedding = models.embedding(raw.get("model"), legacy_id)
    rerank = models.rerank(raw.get("rerankModel"), legacy_id)
    settings, invalid = read_settings(raw)
    if invalid:
        found_notices.append(
            Notice(
                code=notices.INVALID_CONFIG,
                message=tr("not valid: {invalid}", invalid=joined(invalid)),
                base=legacy_id,
                count=len(invalid),
            )
        )
    if not is_blank(raw.get("description")):
        found_notices.append(
            Notice(
                code=notices.DROPPED_FIELD,
                message=tr("description: {description}", description=raw["description"]),
                base=legacy_id,
            )
        )
    processor = _file_processor(raw)
    names = FreeNames(reserve_processed=processor is not None)
    raw_items = raw.get("items")
    if raw_items is not None and not isinstance(raw_items, list | Items):
        found_notices.append(
            Notice(code=notices.INVALID_ITEMS, message=tr("the list of items is not a list"), base=legacy_id)
        )
        raw_items = None
    drafted = item_rules.draft_items(raw_items or [], legacy_id, context, names)
    return BaseDraft(
        legacy_id=legacy_id,
        id=identity.base_id(legacy_id),
        name=name,
        embedding=embedding,
        rerank=rerank,
        stated_dimensions=whole_number(raw.get("dimensions"), minimum=1),
        file_processor_id=processor,
        settings=settings,
        created_at=read_time(raw.get("created_at")),
        updated_at=read_time(raw.get("updated_at")),
        items=drafted.items,
        skipped_items=tuple(drafted.skipped),
        taken_names=frozenset(),
        vector_file=vector_file_name(legacy_id),
        notices=(*found_notices, *embedding.notices, *rerank.notices, *drafted.notices),
    )


def _file_processor(raw: dict[str, Any]) -> str | None:
    provider = raw.get("preprocessProvider")
    provider = provider.get("provider") if isinstance(provider, dict) else None
    processor = provider.get("id") if isinstance(provider, dict) else None
    return None if is_blank(processor) else processor
