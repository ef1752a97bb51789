"""Damage of every kind: a check ends with findings, never with a traceback, a hang or a write."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import pytest
from audits import audit
from faults import untouched
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


def unreadable(library: Path) -> str:
    """Return what is said of the one index that cannot be read."""
    found = run("check", library, "--json").document["findings"]
    [message] = [one["message"] for one in found if (one["name"], one["base"]) == ("file.unreadable", KB)]
    return message


@pytest.mark.parametrize(("cut", "said"), [(1, "1 byte"), (100, "100 bytes"), (2 * 4096, "8,192 bytes")])
def test_what_is_missing_at_the_end_of_a_file_is_counted(cut: int, said: str, healthy: Path, tmp_path: Path) -> None:
    """SQLite itself reads zeros in the place of the rest of a page."""
    path = index(shutil.copytree(healthy, tmp_path / "library"))
    os.truncate(path, path.stat().st_size - cut)
    with untouched(path.parent):
        assert f"it lacks {said} at its end" in unreadable(tmp_path / "library")


def test_the_pages_that_a_header_counts_are_believed_if_its_counters_agree(healthy: Path, tmp_path: Path) -> None:
    """Writers before SQLite 3.7 counted no pages, and left the number that they found."""
    path = index(shutil.copytree(healthy, tmp_path / "library"))
    data = bytearray(path.read_bytes())
    (pages,) = struct.unpack_from(">L", data, 28)
    struct.pack_into(">L", data, 28, pages + 3)
    path.write_bytes(data)
    assert "it lacks 12,288 bytes at its end" in unreadable(tmp_path / "library")
    struct.pack_into(">L", data, 92, struct.unpack_from(">L", data, 24)[0] + 1)
    path.write_bytes(data)
    assert "file.unreadable" not in {
        one["name"] for one in run("check", tmp_path / "library", "--json").document["findings"]
    }


@pytest.mark.parametrize("size", [0, 2, 256, 1000, 4097])
def test_of_a_file_with_an_impossible_page_size_nothing_is_said_to_be_missing(
    size: int, healthy: Path, tmp_path: Path
) -> None:
    path = index(shutil.copytree(healthy, tmp_path / "library"))
    data = bytearray(path.read_bytes())
    struct.pack_into(">H", data, 16, size)
    path.write_bytes(data + b"x")
    message = unreadable(tmp_path / "library")
    assert "missing" not in message
    assert "not a database" in message


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
    named = {finding["name"]: finding["samples"] for finding in answer}
    assert named == {"schema.missing": ["search_text_ad"], "schema.foreign-trigger": ["search_text_ad"]}


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
