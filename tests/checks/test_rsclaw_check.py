"""The audit of a knowledge base of rsclaw: every finding planted by itself, and the sample."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from harness import NOW, run
from planted_rsclaw import PLANTINGS, planted
from planting import Planting
from rsclaw_checks import check, untouched
from rsclaw_store import SAMPLE, RsclawStore, needs_samples
from whole_rsclaw import healthy

from checks.audit.findings import FINDINGS
from regraft import api

LEVELS = ("--quick", "", "--deep")
#: The time that ages in the sample are relative to.
SAMPLE_NOW = "2026-11-21T20:36:43Z"
#: What stands in no store that can be planted by rows: damage of the file itself.
OF_PAGES = {"kb.page", "kb.unreadable"}


def counts(found: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    """Return how much there is of each name and severity."""
    numbers: dict[tuple[str, str], int] = {}
    for one in found:
        key = one["name"], one["severity"]
        numbers[key] = numbers.get(key, 0) + one["count"]
    return numbers


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "kb"


# --- what is right ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_a_healthy_store_has_nothing_to_complain_about(root: Path, level: str) -> None:
    healthy(root).write()
    with untouched(root):
        answer = run("check", root, "--json", "--now", NOW, *filter(None, [level]))
    assert (answer.status, answer.document["findings"]) == (0, [])
    checked = answer.document["checked"]
    assert (checked["documents"], checked["chunks"], checked["files"]) == (9, 10, 18)
    assert (checked["bytes"] > 0) == (level != "--quick")
    assert answer.document["level"] == (level.strip("-") or "default")


@pytest.mark.parametrize("part", ["", "kb.redb"])
def test_a_store_is_recognised_by_its_parts(root: Path, part: str) -> None:
    healthy(root).write()
    for path in (root / part, root.parent):
        answer = run("check", path, "--json", "--now", NOW)
        assert (answer.status, answer.document["findings"]) == (0, [])
        assert (answer.document["source"]["kind"], answer.document["checked"]["documents"]) == ("rsclaw", 9)


def test_a_store_without_caches_and_files_to_hold_is_right(root: Path) -> None:
    store = healthy(root)
    shutil.rmtree(root / "hnsw")
    shutil.rmtree(root / "idx")
    store.write()
    assert check(root) == []


@pytest.mark.parametrize("options", [{"version": 2}, {"clean": False, "two_phase": False}])
def test_other_states_of_the_database_are_right(root: Path, options: dict[str, Any]) -> None:
    healthy(root).write(**options)
    assert check(root, "--deep") == []


def test_gaps_in_the_numbers_of_chunks_are_right(root: Path) -> None:
    store = healthy(root)
    store.doc("Gaps", ["One.", "Two."])
    key, chunk = list(store.tables["kb_chunks"].items())[-2]
    del store.tables["kb_chunks"][key]
    del store.tables["kb_chunk_by_logical"][f"{chunk['logical_source_id']}\0{chunk['id']}".encode()]
    shutil.rmtree(root / "hnsw")
    shutil.rmtree(root / "idx")
    store.write()
    assert check(root, "--deep") == []


def test_versions_of_a_document_may_share_a_file_under_its_older_name(root: Path) -> None:
    store = healthy(root)
    docs = {one["title"]: one for one in store.tables["kb_docs"].values()}
    (root / docs["Old"]["markdown_path"]).unlink()
    docs["Old"]["markdown_path"] = docs["New"]["markdown_path"]
    store.write()
    assert check(root, "--deep") == []


# --- what is planted -------------------------------------------------------------------------------------------------


def test_every_finding_is_planted() -> None:
    registered = {name for name in FINDINGS if name.startswith("kb.")}
    assert {one.finding for one in PLANTINGS.values()} | OF_PAGES == registered


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", PLANTINGS)
def test_damage_is_named_and_nothing_else(root: Path, name: str) -> None:
    planted(root, name)
    with untouched(root):
        answers = {level: check(root, level) for level in LEVELS}
    for level, found in answers.items():
        demand_found(PLANTINGS[name], root, level, found)


def demand_found(one: Planting, root: Path, level: str, found: list[dict[str, Any]]) -> None:
    """Assert that an audit at this level names the planted damage, if the level looks for it, and nothing else."""
    if level in one.unseen:
        assert found == []
        return
    [finding] = [other for other in found if other["name"] not in one.notes]
    assert [(other["name"], other["severity"]) for other in found[1:]] == [(name, "note") for name in one.notes]
    assert (finding["name"], finding["severity"], finding["count"]) == (one.finding, one.severity, one.count)
    for words in one.says:
        assert words in finding["message"], finding["message"]
    assert finding["base"] is None
    assert len(finding["samples"]) == min(one.count, 3)
    # A file that nothing names may be the last copy of its text: no command is recommended for it.
    assert finding["repair"] == (None if one.command is None else f"regraft {one.command} {root}")
    if level not in ("--quick", "--deep"):
        assert check(root, level, "--only", one.finding) == [finding]


def test_severities_are_the_gravest_of_the_registry() -> None:
    order = ["note", "warning", "error"]
    for one in PLANTINGS.values():
        assert order.index(one.severity) <= order.index(FINDINGS[one.finding].severity)


@pytest.mark.thorough
def test_many_of_one_kind_are_counted_and_some_are_named(root: Path) -> None:
    store = healthy(root)
    for number in range(2_500):
        store.file(f"raw/{number:05}.pdf", b"")
    store.write()
    [finding] = check(root)
    assert finding["count"] == 2_500
    assert finding["samples"] == ["raw/00000.pdf", "raw/00001.pdf", "raw/00002.pdf"]
    assert finding["message"].endswith("raw/00000.pdf, raw/00001.pdf, raw/00002.pdf, …")


def test_all_of_it_at_once(root: Path) -> None:
    """Findings do not hide one another; a text tells them by name, and its exit status is 1."""
    unnamed = ["a file that nothing names", "a file that was replaced"]
    names = [*unnamed, *(name for name, one in PLANTINGS.items() if one.finding.startswith("kb.url"))]
    planted(root, *names, "a job that failed")
    answer = run("check", root, "--now", NOW, "-v")
    assert answer.status == 1
    for name in {PLANTINGS[name].finding for name in names}:
        assert f"[{name}]" in answer.stdout
    assert "fix: regraft gc" not in answer.stdout
    assert "11 documents" in answer.stdout or "12 documents" in answer.stdout


# --- ages ------------------------------------------------------------------------------------------------------------


def test_ages_are_relative_to_the_time_that_is_given(root: Path) -> None:
    planted(root, "a file that is young", "a job that waits for long")
    assert {one["severity"] for one in check(root)} == {"note"}
    later = check(root, now="2026-12-31T12:00:00Z")
    assert {(one["name"], one["severity"]) for one in later} == {
        ("kb.file-orphan", "warning"),
        ("kb.job-stale", "warning"),
        ("kb.ledger-pending", "note"),
        ("kb.tombstone-expired", "warning"),
    }
    assert check(root, now="1999-01-01T00:00:00Z")[0]["severity"] == "note"


@pytest.mark.parametrize("time", ["yesterday", "2026-11-21T12:00:00"])
def test_a_time_that_is_none_is_refused(root: Path, time: str) -> None:
    healthy(root).write()
    with untouched(root):
        for command in ("check", "inspect", "gc", "reconcile", "fix"):
            done = run(command, root, "--now", time)
            assert (done.status, done.stdout) == (2, "")
            assert time in done.stderr


def test_programs_give_a_time_too(root: Path) -> None:
    store = planted(root, "a file that is young")
    [young] = api.check(root, now_ms=store.now_ms).findings
    [old] = api.check(root, now_ms=store.now_ms + 7_200_000, only=["kb.file-orphan"]).findings
    assert (young.severity, old.severity) == ("note", "warning")
    assert api.inspect(root, now_ms=store.now_ms).health.orphans == 0
    assert api.inspect(root, now_ms=store.now_ms + 7_200_000).health.orphans == 1


def test_nothing_is_looked_at_when_time_is_over(root: Path) -> None:
    planted(root, "a job that failed")
    answer = run("check", root, "--json", "--now", NOW, "--max-duration", "0")
    assert answer.status == 1
    assert answer.document["findings"] == []
    assert answer.document["not_checked"] == ["kb.redb"]


@pytest.mark.thorough
@pytest.mark.parametrize("latest", [1, 2, 3])
@pytest.mark.parametrize("level", LEVELS)
def test_no_advice_deletes_a_version_newer_than_the_one_in_use(root: Path, latest: int, level: str) -> None:
    store = RsclawStore(root)
    docs = [
        store.doc(f"Version {number}", [f"text {number}"], lsid="file:custom:a", version=number) for number in (1, 2, 3)
    ]
    store.put("kb_doc_latest_version", "file:custom:a", {"doc_id": docs[latest - 1]["id"], "version": latest})
    store.write()
    found = {one["name"]: one for one in check(root, level)}
    assert set(found) == {
        name for name, there in (("kb.superseded", latest > 1), ("kb.rolled-back", latest < 3)) if there
    }
    titles = {number: f"Version {number} (" for number in (1, 2, 3)}
    if latest > 1:
        message = found["kb.superseded"]["message"]
        assert [number for number in titles if titles[number] in message] == [*range(1, latest)]
        assert "rsclaw kb rm DOC" in message
    if latest < 3:
        note = found["kb.rolled-back"]
        assert (note["severity"], note["repair"]) == ("note", None)
        assert [number for number in titles if titles[number] in note["message"]] == [*range(latest + 1, 4)]
        assert "kb rm" not in note["message"]
    plan = run("gc", root, "--dry-run", "--json", "--now", NOW)
    assert plan.document["actions"] == []


# --- the sample ------------------------------------------------------------------------------------------------------


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """Copy the sample: its files are a week old, but for one."""
    root = shutil.copytree(SAMPLE / "kb", tmp_path / "kb")
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)
        os.utime(path, (1_794_700_000, 1_794_700_000))
    os.utime(root / "raw" / "FRESHORPHAN.pdf", (1_795_293_000, 1_795_293_000))
    return root


@needs_samples
@pytest.mark.parametrize("level", LEVELS)
def test_the_damage_of_the_sample_is_named_and_nothing_else(sample: Path, level: str) -> None:
    with untouched(sample):
        found = check(sample, level, now=SAMPLE_NOW)
    expected = {
        ("kb.file-missing", "error"): 1,
        ("kb.file-missing", "note"): 2,
        ("kb.file-changed", "error"): 1,
        ("kb.file-orphan", "warning"): 1,
        ("kb.file-orphan", "note"): 1,
        ("kb.url-twins", "warning"): 1,
        ("kb.superseded", "warning"): 1,
        ("kb.unreachable", "warning"): 1,
        ("kb.tombstone-expired", "warning"): 1,
        ("kb.job-failed", "error"): 1,
        ("kb.ledger-pending", "note"): 1,
        ("kb.job-stale", "warning"): 1,
        ("kb.dedupe", "warning"): 1,
        ("kb.chunk-orphan", "warning"): 1,
        ("kb.chunk-index", "error"): 2,
        ("kb.dimensions", "error"): 1,
        ("kb.embedders", "warning"): 1,
        ("kb.entity", "warning"): 1,
        ("kb.snapshot", "warning"): 1,
    }
    if level == "--quick":
        del expected["kb.file-changed", "error"]
    assert counts(found) == expected
    named = {
        "kb.file-missing": "No file (",
        "kb.file-changed": "Edited by hand (",
        "kb.url-twins": "https://example.com/x?a=1&b=2: Page (",
        "kb.superseded": "Rotating (01M7K173F5P5ZFDMCWF9DHXT1V)",
        "kb.unreachable": "Secret (",
        "kb.tombstone-expired": "Old removed (",
        "kb.job-failed": "Poison (01M7TRD8F51RBXNJJZ7RBNYH4B): handler panicked: boom",
        "kb.job-stale": "Stuck (",
        "kb.dimensions": "Other embedder (",
    }
    for name, words in named.items():
        messages = [one["message"] for one in found if one["name"] == name]
        assert not messages or any(words in message for message in messages), messages


@needs_samples
def test_a_look_at_the_sample(sample: Path) -> None:
    with untouched(sample):
        health = run("inspect", sample, "--json", "--now", SAMPLE_NOW).document["health"]
    assert health["documents"] == {"active": 13, "tombstoned": 1}
    assert health["visibility"] == {"global": 11, "private": 1, "agent": 1}
    assert health["jobs"] == {"ready": 1, "running": 1, "done": 11, "failed": 1}
    assert (health["chunks"], health["coverage"], health["orphans"], health["stale"]) == (21, 1.0, 2, 1)
    assert [(one["embedder"], one["dimensions"], one["vectors"]) for one in health["vectors"]] == [
        ("stub-sha256-1024", 1024, 20),
        ("bge-small-zh", 512, 1),
    ]
    assert (health["clean"], health["format_version"]) == (True, 3)


def test_pages_without_an_address_of_their_own_are_told_by_their_source(tmp_path: Path) -> None:
    store = RsclawStore(tmp_path / "kb")
    store.doc("One", ["a"], lsid="url:https://example.com/x", source={"type": "url", "url": ""})
    store.doc("Two", ["b"], lsid="file:custom:two", source={"type": "url", "url": "https://example.com/x#top"})
    assert [one["name"] for one in check(store.write())] == ["kb.url-twins"]


def test_a_snapshot_has_no_place_for_a_vector_of_another_length(tmp_path: Path) -> None:
    store = RsclawStore(tmp_path / "kb")
    store.doc("Many", ["a", "b", "c"])
    usual = [key.decode() for key in store.tables["kb_chunks"]]
    store.doc("Other", ["d"], dimensions=8)
    store.snapshot(usual)
    assert {one["name"] for one in check(store.write())} == {"kb.dimensions"}
