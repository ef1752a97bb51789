"""Damage of every kind: a check ends with findings, never with a traceback, a hang or a write."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from audits import audit
from harness import run
from planted_v2 import KB, index, run_sql

SEEDS = 300
PARTS = 10


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
def test_damage_ends_in_findings(part: int, healthy: Path, tmp_path: Path) -> None:
    copy = tmp_path / "library"
    complaints = []
    for seed in range(part, SEEDS, PARTS):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(healthy, copy)
        complaints.append(audit.complaint(copy, seed))
    assert [said for said in complaints if said is not None] == []


@pytest.mark.thorough
def test_the_damage_is_real(healthy: Path, tmp_path: Path) -> None:
    """Most of it is found; the rest hit what no reader looks at, such as free space in a page."""
    found = 0
    for seed in range(30):
        copy = tmp_path / str(seed)
        shutil.copytree(healthy, copy)
        before = audit.state(copy)
        audit.damage(copy, seed)
        if audit.state(copy) != before:
            found += run("check", copy, "--deep").status
    assert found >= 20


def test_a_view_without_end_in_place_of_a_table(healthy: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(healthy, tmp_path / "library")
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS content_hash, i AS text,"
    run_sql(index(copy), "DROP TABLE content", f"CREATE VIEW content AS {endless} i AS created_at FROM n")
    answer = run("check", copy, "--json").document["findings"]
    assert "schema.missing" in {finding["name"] for finding in answer if finding["base"] == KB}


@pytest.mark.thorough
def test_a_trigger_without_end(healthy: Path, tmp_path: Path) -> None:
    """The effects of triggers are tried out; one that never ends is one that does something else."""
    copy = shutil.copytree(healthy, tmp_path / "library")
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    run_sql(
        index(copy),
        "DROP TRIGGER search_text_ad",
        f"CREATE TRIGGER search_text_ad AFTER DELETE ON search_text BEGIN {endless}; END",
    )
    answer = run("check", copy, "--json").document["findings"]
    assert [finding["name"] for finding in answer] == ["schema.missing"]
    assert answer[0]["samples"] == ["search_text_ad"]


def test_a_base_whose_id_leads_elsewhere(healthy: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(healthy, tmp_path / "library")
    for key in ("../../..", "a/b", ".", "a' || char(0) || 'b"):
        run_sql(
            copy / "catalog.sqlite",
            f"UPDATE knowledge_base SET id = '{key}', status = 'failed', error = 'x' WHERE rowid = 1",
        )
        done = run("check", copy, "--deep", "--json")
        assert done.status == 1
        named = {one["name"] for one in done.document["findings"]}
        assert {"base.failed", "item.no-base", "index.orphan"} <= named, named


def test_a_statement_with_a_nul_in_it(healthy: Path, tmp_path: Path) -> None:
    """SQLite reads a statement of the schema up to a NUL; what was written by hand goes on after it."""
    copy = shutil.copytree(healthy, tmp_path / "library")
    path = index(copy)
    raw = path.read_bytes()
    spot = raw.index(b"CREATE TRIGGER search_text_ad") + len(b"CREATE TRIGGER search_text_ad")
    path.write_bytes(raw[:spot] + b"\0" + raw[spot + 1 :])
    answer = run("check", copy, "--json")
    assert answer.status == 1
    assert {"schema.missing", "file.corrupt", "file.unreadable"} & {one["name"] for one in answer.document["findings"]}
