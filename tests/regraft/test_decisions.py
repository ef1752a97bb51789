"""``-vv``: what was decided is said on standard error, and only there."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest
from harness import NOW, REPO, run

SURVEY = "migrators.pipeline.survey"
SAMPLE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"


def lines(text: str, module: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"{module}: ")]


def test_a_migration_says_what_it_decided(tmp_path: Path) -> None:
    first = run("migrate", SAMPLE, "--to", tmp_path / "library", "--now", NOW, "--yes", "--json", "-vv")
    assert [f"{SAMPLE} is read as v1-backup"] == [
        line.partition(": ")[2] for line in lines(first.stderr, "regraft.stores.locate")
    ]
    bases = [base["id"] for base in first.document["bases"]]
    assert lines(first.stderr, SURVEY) == [
        f"{SURVEY}: base {base}: no earlier run wrote it to this target" for base in bases
    ]
    assert len(lines(first.stderr, "migrators.pipeline.publication")) == len(bases)
    again = run("migrate", SAMPLE, "--to", tmp_path / "library", "--now", NOW, "--yes", "--json", "-vv")
    said = [line for line in lines(again.stderr, SURVEY) if line.endswith("unchanged since an earlier run")]
    assert {base["outcome"] for base in again.document["bases"]} == {"unchanged", "failed"}
    assert len(said) == len(bases)


def test_without_it_nothing_of_the_kind_is_said(tmp_path: Path) -> None:
    run("inspect", SAMPLE, "-vv")
    for more in ((), ("-v",), ("--json",)):
        assert lines(run("inspect", SAMPLE, *more).stderr, "regraft.stores.locate") == []
    assert [logging.getLogger(name).handlers for name in ("regraft", "migrators", "checks", "repair")] == [[]] * 4


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_a_name_of_a_stranger_is_shown_with_escapes(tmp_path: Path) -> None:
    hostile = tmp_path / "a\x1b[31m\u202eb.zip"
    shutil.copyfile(SAMPLE, hostile)
    said = run("inspect", hostile, "-vv").stderr
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert "is read as v1-backup" in said


def test_another_program_hears_it_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="regraft"):
        run("inspect", SAMPLE)
    assert f"{SAMPLE} is read as v1-backup" in caplog.messages
