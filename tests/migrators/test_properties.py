"""Properties of any migration: no state crashes it, its books balance, and what it writes is what it read."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from harness import NOW_MS, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from v1 import CREATED, LLM, MODEL, UNTYPED, Row, Source, base, migrate, opened
from v1_rules import ROWS, indexed_items, names_of, owners_of, text_of, wanted_length, why_not

from migrators.cherry_v1.draft import draft_library
from migrators.pipeline import report
from migrators.pipeline.base_writer import BaseSource, catalog_rows, write_base
from migrators.pipeline.plan import plan_base
from migrators.pipeline.source import Duplicate, Hints
from migrators.pipeline.survey import BaseJob
from migrators.pipeline.workers import FinishedBase
from regraft.disk.trees import FolderTree
from regraft.formats import vector_survey
from regraft.formats.cherry_v1 import layout
from regraft.formats.cherry_v1.state import V1State
from regraft.formats.cherry_v2.catalog import write_catalog
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.formats.vector_survey import LoaderRows, RowTally, StoreProblem, VectorSurvey
from regraft.identity import replace
from regraft.report import migration
from regraft.report.document import Run, encoded

# --- arbitrary states ----------------------------------------------------------------------------------------------

#: Texts that rules look at, and any other.
TEXTS = st.one_of(
    st.sampled_from(["", " ", "\0", "\0x", "\ufeff", "\x85"]),
    st.sampled_from(
        ["kb", "L1", "..", "../up", "CON.txt", ".cherry", "::", "acme::embed-3", "acme", "embed-3", "512", "-1", "nan",
         "1e999", "https://example.com/a", "https://[", "a" * 300, "🎉" * 90, "failed", "directory_not_migrated"]
    ),
    st.text(st.characters(codec="utf-8"), max_size=12),
)  # fmt: skip
NUMBERS = st.one_of(
    st.integers(-3, 2000),
    st.sampled_from([CREATED, 1 << 53, 1 << 63, -(1 << 63) - 1, 1 << 64, 10**400, -(10**400), 1.5, 1e300, -1e300, 0.1]),
    st.floats(allow_nan=False, allow_infinity=False),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
JUNK = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
LOADERS = st.sampled_from(["L1", "L2", "L3", "L4", "DirectoryLoader_1"])


def mostly(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(usual, usual, usual, JUNK)


def objects(needed: dict[str, st.SearchStrategy[Any]], **possible: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return objects with these fields, each of which can be junk or (the possible ones) missing."""
    return mostly(
        st.fixed_dictionaries(
            {name: mostly(value) for name, value in needed.items()},
            optional={name: mostly(value) for name, value in possible.items()},
        )
    )


IDS = st.sampled_from(["kb", "kb2", "b/c", "b:c", "..", "i1", "i2", "i3", "i4", "i5", "i6", "up1", "up2"])
MODELS = objects(
    {
        "id": st.sampled_from(["embed-3", "gone", "acme::embed-3", "no::where"]),
        "provider": st.sampled_from(["acme", "x"]),
    },
    name=TEXTS,
    group=TEXTS,
)
FILES = objects(
    {"id": IDS, "name": TEXTS, "origin_name": TEXTS, "path": TEXTS, "ext": st.sampled_from(["", ".md", ".pdf"])},
    type=TEXTS,
    created_at=TEXTS,
    size=NUMBERS,
    count=NUMBERS,
)
COMPLETE = st.fixed_dictionaries(
    dict.fromkeys(("id", "name", "origin_name", "path", "ext", "type", "created_at"), TEXTS)
    | {"size": st.integers(0, 9), "count": st.integers(0, 9)}
)
ITEMS = objects(
    {
        "id": IDS,
        "type": st.sampled_from(["file", "url", "note", "sitemap", "directory", "memory", "video"]),
        "content": st.one_of(TEXTS, FILES, COMPLETE),
    },
    uniqueId=LOADERS,
    uniqueIds=st.lists(st.one_of(LOADERS, SCALARS), max_size=4),
    processingStatus=st.sampled_from(["completed", "failed", "pending", "processing"]),
    processingError=TEXTS,
    sourceUrl=TEXTS,
    remark=TEXTS,
    created_at=NUMBERS,
    updated_at=NUMBERS,
)
BASES = objects(
    {"id": IDS, "name": TEXTS, "model": MODELS, "items": st.lists(ITEMS, max_size=5)},
    dimensions=NUMBERS,
    rerankModel=MODELS,
    preprocessProvider=objects({"provider": objects({"id": TEXTS})}),
    chunkSize=st.one_of(NUMBERS, TEXTS),
    chunkOverlap=st.one_of(NUMBERS, TEXTS),
    threshold=st.one_of(NUMBERS, TEXTS),
    documentCount=st.one_of(NUMBERS, TEXTS),
    description=TEXTS,
    created_at=NUMBERS,
    updated_at=NUMBERS,
)
PROVIDERS = st.one_of(
    st.none(),
    st.just(LLM["providers"]),
    st.lists(objects({"id": TEXTS, "models": st.lists(MODELS, max_size=2)}), max_size=3),
)
TABLES = st.dictionaries(IDS, st.dictionaries(st.sampled_from(["content", "sourceUrl", "source_url", "name"]), JUNK))
STATES = st.builds(
    V1State,
    bases=st.lists(BASES, max_size=4),
    providers=PROVIDERS,
    files=st.one_of(TABLES, st.dictionaries(IDS, COMPLETE, max_size=2)),
    notes=TABLES,
    pending_delete=st.frozensets(IDS, max_size=1),
    notices=st.just(()),
)
WORDS = st.builds(
    ModelOverrides,
    mapped=st.dictionaries(st.sampled_from(["acme::gone", "no::where", "kb"]), st.just("a::b"), max_size=2),
    recreated=st.frozensets(st.sampled_from(["no::where", "x::gone"]), max_size=1),
)


HINTS = st.builds(
    Hints,
    paths=st.dictionaries(LOADERS, TEXTS, max_size=2),
    twins=st.lists(st.builds(Duplicate, LOADERS, LOADERS, TEXTS, TEXTS, TEXTS), max_size=3).map(tuple),
    restore_twins=st.booleans(),
)


@st.composite
def surveys(draw: st.DrawFn) -> VectorSurvey | StoreProblem:
    """Return what a vector file could hold of the loaders that items name."""
    if draw(st.booleans()) and draw(st.booleans()):
        return draw(st.sampled_from([StoreProblem("is a folder"), StoreProblem("lacks a column", 48)]))
    found = VectorSurvey()
    sources = st.one_of(st.none(), st.just("/docs/a.md"), TEXTS)
    for loader in draw(st.lists(st.one_of(st.none(), LOADERS), max_size=4, unique=True)):
        kinds = draw(
            st.lists(
                st.sampled_from([16, 20, -16, vector_survey.MISSING, vector_survey.UNSUPPORTED]), min_size=1, max_size=4
            )
        )
        source = draw(sources)
        entry = LoaderRows(rows=len(kinds), source=source if source and source.strip() else None)
        entry.highest_number = draw(st.integers(-1, 9))
        for kind in kinds:
            found.rows += 1
            entry.runs.extend((found.rows, found.rows))
            tally = entry.kinds.setdefault(kind, RowTally(first_rowid=found.rows))
            tally.count += 1
            if kind % 4 == 0:
                found.lengths[abs(kind)] = found.lengths.get(abs(kind), 0) + 1
        found.loaders[loader] = entry
    return found


@given(state=STATES, model_overrides=WORDS, data=st.data())
@settings(max_examples=examples(150))
def test_no_state_crashes_a_plan_and_the_catalog_takes_every_one(
    state: V1State, model_overrides: ModelOverrides, data: Any
) -> None:
    library = draft_library(state, model_overrides)
    assert len(library.bases) + len(library.skipped) == len(state.bases)
    assert len({draft.id for draft in library.bases}) == len(library.bases)
    plans = [plan_base(draft, data.draw(surveys()), data.draw(HINTS)) for draft in library.bases]
    outcomes = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        records = []
        for number, plan in enumerate(plans):
            assert plan.rows.is_balanced
            assert plan.units == sum(material.rows for material in plan.materials)
            assert len({material.item for material in plan.materials}) == len(plan.materials)
            assert len({item.id for item in plan.items}) == len(plan.items)
            # What tells whether a base has changed is made of its draft.
            msgspec.json.encode(replace(plan.draft, items=tuple(plan.draft.items)), order="deterministic")
            origin = BaseSource(
                tree=FolderTree(place), uploads=None, table=layout.VECTOR_TABLE, vectors=None, earlier=place / "earlier"
            )
            done = write_base(plan, origin, place / str(number), NOW_MS, lambda *_: None)
            records.append((done.record, tuple(catalog_rows(plan, done))))
            work = BaseJob(number, plan.draft, "", plan=plan)
            outcomes[plan.draft.legacy_id] = report.migrated_outcome(FinishedBase(work, plan, done))
        write_catalog(place / "catalog.sqlite", records)
        with opened(place / "catalog.sqlite") as db:
            assert db.execute("PRAGMA foreign_key_check").fetchall() == []
            assert db.execute("SELECT count(*) FROM knowledge_base").get == len(plans)
            items = sum(len(plan.items) for plan in plans)
            assert db.execute("SELECT count(*) FROM knowledge_item WHERE json_valid(data)").get == items
    document = encoded(report.build_migration_report(Run(command="migrate"), library, outcomes.values()))
    assert json.loads(migration.as_json(document)) == json.loads(json.dumps(document))
    assert migration.format_migration(document, verbose=True).encode()
    assert migration.migration_page(document).encode()


TORN = st.text(st.characters(exclude_categories=()), max_size=3)


@given(bases=st.lists(BASES, max_size=3), torn=TORN, files=st.lists(FILES, max_size=2), notes=JUNK)
@settings(max_examples=examples(40))
def test_no_state_stops_a_run(bases: list[Any], torn: str, files: list[Any], notes: Any) -> None:
    fine = base(
        "fine", {"id": f"n{torn}", "type": "note", "content": f"x{torn}", "uniqueId": "L9"}, name=f"Fine {torn}"
    )
    rows = [Row(loader, f"text of {loader} {at}") for at in range(2) for loader in ("L1", "L2", "L3", "L9")]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        stores = dict.fromkeys(("kb", "b_c", "fine", "untitled"), rows)
        source = Source([*bases, fine], stores, files=files, notes=notes).write(place / "v1")
        library = migrate(source, place / "library")
        assert library.base("fine")["rows"]["carried"] == 2


# --- arbitrary rows ------------------------------------------------------------------------------------------------


@given(items=indexed_items(), rows=ROWS)
@settings(max_examples=examples(60))
def test_every_row_is_carried_or_accounted_for(items: list[dict[str, Any]], rows: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        source = Source([base("kb", *items)], {"kb": rows}, ddl=UNTYPED).write(place / "v1")
        library = migrate(source, place / "library")
        owners, length = owners_of(items, rows), wanted_length(rows)
        reasons = [why_not(row, owners, length) for row in rows]
        booked = library.rows("kb")
        assert booked["read"] == len(rows)
        assert booked["skipped"] == Counter(reason for reason in reasons if reason)
        if length is None:
            assert library.base("kb")["error"] == "missing_vector_store"
        else:
            carried = [(owners[row.loader][0], row) for row, why in zip(rows, reasons, strict=True) if why is None]
            order = [*dict.fromkeys(owner for owner, _ in carried)]
            ordered = sorted(carried, key=lambda entry: order.index(entry[0]))
            names, units = names_of(library), library.units("kb")
            found = [(names[unit.item], unit.body) for unit in units]
            assert found == [(owner, text_of(row.body)) for owner, row in ordered]
            # Of equal texts the first vector wins: the first in the file or the first in the index.
            first: dict[str, set[bytes]] = {}
            for sequence in (carried, ordered):
                seen: dict[str, bytes] = {}
                for _, row in sequence:
                    seen.setdefault(text_of(row.body), row.vector)
                for body, vector in seen.items():
                    first.setdefault(body, set()).add(vector)
            assert all(unit.vector in first[unit.body] for unit in units)
        again = migrate(source, place / "library")
        assert again.report["bases"][0]["outcome"] == ("failed" if length is None else "unchanged")
        assert {**again.base("kb"), "outcome": None} == {**library.base("kb"), "outcome": None}


@given(rows=ROWS)
@settings(max_examples=10)
def test_without_a_model_every_row_is_accounted_for(rows: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        broken = base(
            "kb", {"id": "n", "type": "note", "content": "x", "uniqueId": "L1"}, model={**MODEL, "provider": "x"}
        )
        source = Source([broken], {"kb": rows}, ddl=UNTYPED).write(place / "v1")
        booked = migrate(source, place / "library").rows("kb")
        assert booked["skipped"] == ({"missing_embedding_model": len(rows)} if rows else {})
