"""The command to run next for each finding, the model of vectors without one, and the names of items."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from harness import NOW_MS
from index_rows import BASE, put
from planted_v2 import run_sql

from checks.audit.findings import FINDINGS, Audit, Finding
from checks.cherry_v2 import advice
from regraft.formats.cherry_v2.catalog_reader import StoredCatalog
from regraft.formats.cherry_v2.index import IndexStore

Row = dict[str, Any]


def line(command: Sequence[str], options: Sequence[str]) -> str:
    return " ".join([*command, "STORE", *options])


def finding(name: str, base: str | None = "b", **more: Any) -> Finding:
    return Finding(name=name, severity=FINDINGS[name].severity, message="m", base=base, **more)


def commands(*findings: Finding, **options: Any) -> dict[str, str | None]:
    """Return the command of each finding by its name."""
    audit = Audit(findings=findings, checked={}, names={}, closing="")
    done = advice.add_commands(audit, line, **{"is_whole": True} | options)
    assert [one.name for one in done.findings] == [one.name for one in findings]
    return {one.name: one.repair for one in done.findings}


def command_of(name: str, *others: str, **options: Any) -> str | None:
    return commands(finding(name), *map(finding, others), **options)[name]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("unit.offsets", "repair STORE --only unit.offsets --base b"),
        ("embedding.missing", "backfill STORE --base b"),
        ("embedding.orphan", "gc STORE --only embedding.orphan --base b"),
        ("material.path", "reconcile STORE --base b"),
        ("schema.version", "upgrade STORE --base b"),
        ("base.status", "repair STORE --only base.status --base b"),
        ("item.status", "repair STORE --only item.status --base b"),
        ("material.path-clash", None),
        ("file.unreadable", None),
        ("v1.leftover", None),
    ],
)
def test_a_finding_by_itself(name: str, command: str | None) -> None:
    assert command_of(name) == command
    assert command_of(name, is_whole=False) == (command and command.removesuffix(" --base b"))
    of_no_base = commands(finding(name, None))[name]
    is_catalog = name == "file.unreadable"
    assert of_no_base == (None if is_catalog else command and command.removesuffix(" --base b"))


@pytest.mark.parametrize(
    ("name", "others", "command"),
    [
        # What must be fixed first, since its repair may need the rows.
        ("embedding.zero", ["embedding.orphan"], "gc STORE --only embedding.orphan --base b"),
        ("embedding.length", ["base.dimensions"], "repair STORE --only base.dimensions --base b"),
        ("embedding.non-finite", ["body.hash", "embedding.orphan"], "repair STORE --only body.hash --base b"),
        ("embedding.missing", ["meta.missing"], "repair STORE --only meta.missing --base b"),
        ("material.no-units", ["fts.desync"], "repair STORE --only fts.desync --base b"),
        ("item.no-material", ["body.rowid"], "repair STORE --only body.rowid --base b"),
        ("body.orphan", ["unit.no-body"], "repair STORE --only unit.no-body --base b"),
        ("body.orphan", ["material.no-units", "content.hash"], "repair STORE --only content.hash --base b"),
        ("content.orphan", ["unit.content"], None),
        ("embedding.orphan", ["material.no-units"], "backfill STORE --base b"),
        ("embedding.orphan", ["content.orphan"], "gc STORE --only embedding.orphan --base b"),
        ("base.status", ["embedding.orphan"], "repair STORE --only base.status --base b"),
        # The layout comes before the rows, and a damaged file before the layout.
        ("unit.offsets", ["schema.missing"], "upgrade STORE --base b"),
        ("unit.offsets", ["schema.foreign-view"], "repair STORE --only unit.offsets --base b"),
        ("unit.offsets", ["file.corrupt"], None),
        ("unit.offsets", ["file.unreadable", "schema.missing"], None),
        ("item.status", ["file.corrupt"], "repair STORE --only item.status --base b"),
        ("item.no-material", ["file.corrupt"], None),
        ("raw.orphan", ["file.corrupt"], "gc STORE --only raw.orphan --base b"),
        # An index of another base.
        ("material.orphan", ["meta.base-id"], None),
        ("embedding.missing", ["meta.base-id"], None),
        ("unit.offsets", ["meta.base-id"], "repair STORE --only unit.offsets --base b"),
        # Nothing is embedded for a failed base.
        ("embedding.missing", ["base.failed"], None),
        ("material.no-units", ["base.failed"], None),
        ("unit.offsets", ["base.failed"], "repair STORE --only unit.offsets --base b"),
    ],
)
def test_a_finding_beside_others(name: str, others: list[str], command: str | None) -> None:
    assert command_of(name, *others) == command
    elsewhere = commands(finding(name), *(finding(other, "c") for other in others))[name]
    assert elsewhere == command_of(name)


def test_what_is_beyond_repair_has_no_command() -> None:
    beyond = finding("unit.offsets", is_beyond_repair=True)
    assert commands(beyond) == {"unit.offsets": None}
    newer = finding("schema.version", is_beyond_repair=True)
    assert commands(finding("unit.id"), newer) == {"unit.id": None, "schema.version": None}
    assert commands(finding("embedding.zero"), finding("body.hash", is_beyond_repair=True))["embedding.zero"] is None
    kept = finding("unit.id", repair="another command")
    assert commands(kept) == {"unit.id": "another command"}


def test_a_damaged_index_is_salvaged_where_that_can_be() -> None:
    for name in ("file.unreadable", "file.corrupt"):
        assert command_of(name, is_salvaged=True) == "repair STORE --salvage --base b"
        assert command_of(name) is None
        assert commands(finding(name, None), is_salvaged=True)[name] is None
    assert command_of("unit.id", "file.corrupt", is_salvaged=True) is None


def test_without_a_catalog_only_commands_that_need_none() -> None:
    found = commands(
        *map(finding, ("embedding.missing", "embedding.orphan", "material.path", "unit.id", "body.id")),
        finding("file.unreadable", None),
    )
    assert found == {
        "embedding.missing": None,
        "embedding.orphan": None,
        "material.path": None,
        "unit.id": "repair STORE --only unit.id --base b",
        "body.id": "repair STORE --only body.id --base b",
        "file.unreadable": None,
    }


def test_a_folder_of_no_base_is_fixed_as_a_whole() -> None:
    names = ("material.orphan", "raw.orphan", "embedding.missing", "unit.id", "embedding.orphan")
    whole = "repair STORE --only index.orphan --adopt"
    assert commands(*map(finding, names), orphans={"b"}) == {
        "material.orphan": whole,
        "raw.orphan": whole,
        "embedding.missing": whole,
        "unit.id": "repair STORE --only unit.id --base b",
        "embedding.orphan": "gc STORE --only embedding.orphan --base b",
    }
    assert commands(finding("raw.orphan"), orphans={"c"}) == {"raw.orphan": "gc STORE --only raw.orphan --base b"}


def test_vectors_without_a_model_get_the_only_one_that_is_possible() -> None:
    given = "repair STORE --only embedding.unexpected --model m --base b"
    assert command_of("embedding.unexpected", attachable={"b": "m"}) == given
    assert command_of("embedding.unexpected", attachable={"c": "m"}) is None
    assert command_of("embedding.unexpected") is None
    assert command_of("embedding.zero", "embedding.unexpected", attachable={"b": "m"}) == given
    status = "repair STORE --only base.status --base b"
    assert command_of("embedding.unexpected", "base.status", attachable={"b": "m"}) == status


# --- the model of vectors whose base has none ------------------------------------------------------------------------


def model(key: object, *capabilities: str, raw: object = None) -> Row:
    return {"id": key, "capabilities": json.dumps(capabilities) if capabilities else raw}


def catalog(models: Collection[Row] | None, *uses: tuple[str, str | None, object]) -> StoredCatalog:
    bases = [
        {"id": base, "status": "completed", "embedding_model_id": used, "dimensions": number}
        for base, used, number in uses
    ]
    return StoredCatalog(bases=bases, models=None if models is None else list(models))


@pytest.mark.parametrize(
    ("rows", "uses", "found"),
    [
        ([model("m", "embedding")], [], "m"),
        ([model("m", "chat", "embedding")], [], "m"),
        ([model("m", "chat")], [], None),
        # What a model without capabilities inherits is unknown.
        ([model("m")], [], "m"),
        ([model("m", raw="[")], [], "m"),
        ([model("m", raw='{"embedding": 1}')], [], "m"),
        ([model("m", raw="[]")], [], None),
        ([model("m", raw="[]")], [("c", "m", 4)], "m"),
        ([model("m", "embedding"), model("n", "embedding")], [], None),
        ([model("m", "embedding"), model("n", "embedding")], [("c", "n", 8)], "m"),
        ([model("m", "embedding")], [("c", "m", 4)], "m"),
        ([model("m", "embedding")], [("c", "m", 8)], None),
        ([model("m", "embedding")], [("c", "m", 8), ("d", "m", 4)], "m"),
        ([model("m", "embedding")], [("c", "m", None)], "m"),
        # What the base itself states is what is in doubt.
        ([model("m", "embedding")], [("b", "m", 8)], "m"),
        ([model(7, "embedding")], [], None),
        (None, [], None),
    ],
)
def test_the_only_model_that_can_have_made_vectors(
    rows: list[Row] | None, uses: list[tuple[str, str | None, object]], found: str | None
) -> None:
    assert advice.find_only_candidate(4, catalog(rows, *uses), "b") == found


def test_why_a_model_cannot_have_made_vectors() -> None:
    rows = [model("m", "embedding"), model("chat", "chat"), model("empty", raw="[]")]
    stored = catalog(rows, ("b", "m", 3), ("c", "m", 8), ("d", "m", 16), ("e", None, 4), ("f", "chat", 4))

    def why(name: str, dimensions: int) -> str | None:
        return advice.find_model_conflict(name, dimensions, stored, "b")

    assert why("chat", 4) == "chat is not an embedding model, so it cannot have made these vectors"
    assert why("m", 8) is why("m", 16) is why("unknown", 4) is why("empty", 4) is None
    assert why("m", 4) == ("its vectors have 4 dimensions, and those of other bases with the model m have 8, 16")
    assert advice.find_model_conflict("m", 4, catalog(None), "b") is None


# --- names of items --------------------------------------------------------------------------------------------------


def test_the_names_of_items_behind_samples(tmp_path: Path) -> None:
    index, path = tmp_path / "index.sqlite", tmp_path / "catalog.sqlite"
    with IndexStore(index, BASE, create=True) as store:
        put(store, "i", "first", "second", now=NOW_MS, name="dir/i.md")
    with closing(sqlite3.connect(index)) as db:
        keys = db.execute(
            "SELECT current_content_hash, unit_id, search_text_id, embedding_text_hash FROM material, search_unit"
            " JOIN search_text ON target_id = unit_id LIMIT 1"
        ).fetchone()
    items = [
        ("i", "file", {"relativePath": "dir/Küche.md"}),
        ("n", "note", {"content": "Title\ntext"}),
        ("x", "url", {}),
    ]
    run_sql(path, "CREATE TABLE knowledge_base (id)", "CREATE TABLE knowledge_item (id, base_id, type, status, data)")
    with closing(sqlite3.connect(path)) as db, db:
        for key, kind, data in items:
            db.execute("INSERT INTO knowledge_item VALUES (?, 'b', ?, 'idle', ?)", (key, kind, json.dumps(data)))

    def names(*found: Finding, catalog: Path | None = path, **indexes: Path) -> list[dict[str, str]]:
        named = advice.add_item_names(found, catalog, {"b": index} | indexes)
        assert [(one.name, one.samples) for one in named] == [(one.name, one.samples) for one in found]
        return [dict(one.names) for one in named]

    of_rows = finding("unit.id", samples=(*keys, "dir/i.md", "unknown"))
    assert names(of_rows) == [dict.fromkeys((*keys, "dir/i.md"), "Küche.md")]
    of_items = finding("item.status", samples=("i", "n", "x"))
    assert names(of_items, finding("fts.desync")) == [{"i": "Küche.md", "n": "Title"}, {}]
    # Of another base's index and without one, only ids of items are known.
    assert names(finding("unit.id", "c", samples=(keys[1], "n"))) == [{"n": "Title"}]
    broken = tmp_path / "broken"
    broken.write_bytes(b"noise")
    assert names(finding("unit.id", "c", samples=(keys[1], "n")), c=broken) == [{"n": "Title"}]
    assert names(of_rows, catalog=None) == names(of_rows, catalog=broken) == [{}]
    assert names(finding("unit.id"), catalog=broken) == [{}]
