"""What a salvage could not bring back is named by its own result and by the next check; nothing is passed over."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from harness import run
from planted_v2 import KB, index, library

from regraft import identity
from regraft.formats.index import IndexStore

PAGE = 4096
#: Findings about what an item lost.
LOST = {"item.no-material", "item.not-indexed", "material.no-units", "material.no-content", "unit.missing", "unit.gap"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("made"))


@pytest.fixture
def target(made: Path, tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "图书馆"
    shutil.copytree(made, place)
    yield place


def sql(path: Path, *statements: str) -> list[Any]:
    found: list[Any] = []
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            found = db.execute(statement).fetchall()
    return found


def units(path: Path) -> dict[str, int]:
    return dict(sql(path, "SELECT material_id, count(*) FROM search_unit GROUP BY 1"))


def counts(document: dict[str, Any], key: str = "findings", name: str = "name") -> dict[str, int]:
    found: dict[str, int] = {}
    for one in document[key]:
        if one["base"] == KB:
            found[one[name]] = found.get(one[name], 0) + one["count"]
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_lost_is_found(target: Path, seed: int) -> None:
    path = index(target)
    before = units(path)
    vectors = len(sql(path, "SELECT 1 FROM embedding"))
    rng = random.Random(seed)
    raw = bytearray(path.read_bytes())
    for _ in range(rng.randrange(6, 22)):
        at = PAGE * rng.randrange(1, len(raw) // PAGE)
        raw[at : at + PAGE] = bytes(PAGE) if rng.random() < 0.5 else rng.randbytes(PAGE)
    path.write_bytes(raw)
    done = run("repair", target, "--salvage", "--json")
    if not done.document.get("salvaged"):
        assert done.status != 0
        assert path.read_bytes() == raw, "nothing can be salvaged, but the file was changed"
        return
    after = units(path)
    lacking = {key for key, count in before.items() if after.get(key, 0) < count}
    without = sql(path, "SELECT count(*) FROM search_text WHERE embedding_text_hash NOT IN"
                  " (SELECT embedding_text_hash FROM embedding)")[0][0]  # fmt: skip
    told, found = counts(done.document, "left", "finding"), counts(run("check", target, "--json").document)
    assert bool(lacking) == bool(LOST & told.keys()) == bool(LOST & found.keys())
    assert sum(found.get(name, 0) for name in LOST) >= len(lacking)
    assert found.get("embedding.missing", 0) == told.get("embedding.missing", 0) == without
    is_whole = not lacking and len(sql(path, "SELECT 1 FROM embedding")) == vectors
    assert (done.status == 0) == is_whole


def test_an_item_whose_material_is_empty_has_no_text(target: Path) -> None:
    path = index(target)
    (material,) = sql(path, "SELECT material_id FROM material ORDER BY 1 LIMIT 1")[0]
    sql(
        path,
        "DELETE FROM search_text WHERE target_id IN"
        f" (SELECT unit_id FROM search_unit WHERE material_id = '{material}')",
        f"DELETE FROM search_unit WHERE material_id = '{material}'",
        f"DELETE FROM content WHERE content_hash ="
        f" (SELECT current_content_hash FROM material WHERE material_id = '{material}')",
    )
    findings = run("check", target, "--json").document["findings"]
    assert {one["subject"] for one in findings if one["name"] in ("item.no-material", "item.not-indexed")} == {material}


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["min", "max"])
def test_a_part_that_is_in_no_unit_is_found(target: Path, which: str) -> None:
    path = index(target)
    material, number = sql(
        path,
        f"SELECT material_id, {which}(unit_index) FROM search_unit GROUP BY 1 HAVING count(*) > 1 ORDER BY 1 LIMIT 1",
    )[0]
    unit = f"(SELECT unit_id FROM search_unit WHERE material_id = '{material}' AND unit_index = {number})"
    assert "unit.missing" not in counts(run("check", target, "--json").document)
    sql(path, f"DELETE FROM search_text WHERE target_id = {unit}", f"DELETE FROM search_unit WHERE unit_id = {unit}")
    found = run("check", target, "--json").document["findings"]
    (finding,) = (one for one in found if one["name"] == "unit.missing")
    assert (finding["subject"], finding["severity"], finding["repair"]) == (material, "warning", None)
    # Numbering the units that are left does not make the part whole.
    run("repair", target, "-q", "--fail-on", "never")
    assert counts(run("check", target, "--json").document)["unit.missing"] == 1


@pytest.mark.parametrize(("separator", "missing"), [("---", 0), ("\\n###\\n", 1)])
def test_what_stands_between_units_is_no_part(target: Path, separator: str, missing: int) -> None:
    """A base that is cut at a separator has it in none of its units."""
    path = index(target)
    sql(target / "catalog.sqlite", f"UPDATE knowledge_base SET chunk_separator = '{separator}' WHERE id = '{KB}'")
    material, place = sql(path, "SELECT material_id, relative_path FROM material ORDER BY 1 LIMIT 1")[0]
    (vector,) = sql(path, "SELECT vector_blob FROM embedding LIMIT 1")[0]
    vectors = {identity.text_hash(body): vector for body in ("one 一", "two 😀")}
    text = "one 一---two 😀\n"
    with IndexStore(path, KB) as store:
        store.rebuild_material(material, place, text, [(0, 5), (8, 14)], vectors, 1)
    assert counts(run("check", target, "--json").document).get("unit.missing", 0) == missing


@pytest.mark.thorough
@pytest.mark.parametrize(("options", "says"), [(("--quick",), False), ((), False), (("--deep",), True)])
def test_everything_was_checked_is_said_where_it_is_true(target: Path, options: tuple[str, ...], says: bool) -> None:
    text = run("check", target, *options).stdout
    assert ("Everything was checked." in text) == says
    assert ("--deep" in text) == (options == ())
    raw = bytearray(index(target).read_bytes())
    raw[2 * PAGE : 3 * PAGE] = bytes(PAGE)
    index(target).write_bytes(raw)
    assert "Everything was checked." not in run("check", target, *options).stdout
