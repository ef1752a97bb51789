"""``regraft explain``: whatever regraft names can be looked up without a connection, and the pages come along."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from faults import said
from harness import REPO, run

from checks.systems import load_findings
from regraft.cli import explain
from regraft.errors import error_classes
from regraft.report.notices import EVERY_CODE


def test_every_finding_code_and_error_is_explained():
    names = [*load_findings(), *EVERY_CODE, *(error.__name__ for error in error_classes())]
    document = run("explain", *names, "--json").document
    assert {one["name"] for one in document["explained"]} == set(names)
    assert all(one["meaning"] for one in document["explained"])
    assert not any(re.search(r"[{}]", one["meaning"]) for one in document["explained"])
    assert document["pages"] == []


def test_a_finding_says_what_mends_it_and_which_codes_it_is():
    done = run("explain", "item.tombstone", "v1.no-vectors", "missing_vector_store", "TargetNotOurs")
    assert done.status == 0
    assert "item.tombstone  (finding, error)\n  A folder failed in the application's upgrade" in done.stdout
    assert "  What to do: `regraft rescue`" in done.stdout
    assert "  Codes of a migration: missing_vector_store" in done.stdout
    assert "  Finding of regraft check: v1.no-vectors" in done.stdout
    salvage = "  What to do: If the file is truncated or damaged, `regraft migrate --salvage` migrates every row"
    assert done.stdout.count(salvage) == 2
    assert (
        "TargetNotOurs  (error, exit status 2)\n  PATH: the folder is not empty and was not written by regraft"
        in done.stdout
    )


def test_what_nothing_is_called_is_refused_with_the_nearest_names():
    message = said(run("explain", "item.tombston", "--json"), "WrongUsage", 2)
    assert "item.tombstone" in message


def test_pages_are_listed_and_read():
    listed = run("explain").stdout.split()
    assert set(explain.page_names()) <= set(listed)
    assert run("explain", "--json").document["pages"] == explain.page_names()
    for name in explain.page_names():
        text = run("explain", name).stdout
        assert text.startswith("# ")
        assert "[[[cog" not in text


def test_no_message_names_a_file_that_is_not_there() -> None:
    """An installed regraft has no folder ``docs``: its messages name ``regraft explain``."""
    files = sorted(REPO.glob("regraft/**/*.py"))
    assert len(files) > 100
    strings = {file: re.findall(r'(?<!")"(?!"")([^"\n]*)"(?!")', file.read_text("utf-8")) for file in files}
    assert not [(file, text) for file in files for text in strings[file] if re.search(r"docs/\w+\.md", text)]


def test_the_pages_are_in_the_package(tmp_path: Path) -> None:
    settings = (REPO / "pyproject.toml").read_text("utf-8")
    assert '"docs" = "regraft/docs"' in settings
    for wheel in (REPO / "dist").glob("*.whl"):
        assert "regraft/docs/upgrade.md" in zipfile.ZipFile(wheel).namelist()
