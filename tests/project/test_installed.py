"""The installed packages as other programs meet them: typed, and usable under ``python -OO``."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from extras import needs
from harness import REPO
from longest import LONGEST

SAMPLE = next((REPO / "sample_v1").glob("*.zip"))
#: A program of somebody else, which type checkers read with the strictest settings.
CONSUMER = """
from pathlib import Path

import regraft
from checks.systems import load_findings
from migrators.pipeline.run import migrate
from regraft.errors import RegraftError
from repair.changes.options import RepairOptions


def main(source: Path, target: Path) -> int:
    report = regraft.migrate(source, target)
    audit = regraft.check(target)
    options = RepairOptions(now_ms=0)
    names: list[str] = list(load_findings())
    print(report.head.regraft.command, len(audit.findings), options.salvage, names[:1], migrate.__name__)
    try:
        regraft.repair(target, dry_run=True)
    except RegraftError as error:
        return error.exit_status
    return 0
"""


@pytest.mark.parametrize("package", ["regraft", "migrators", "checks", "repair"])
def test_every_package_says_that_it_is_typed(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).with_name("py.typed").is_file()


@needs("lint")
def test_a_strictly_typed_program_can_use_the_packages(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(CONSUMER, "utf-8")
    command = [sys.executable, "-P", "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.thorough
def test_errors_have_messages_without_docstrings(tmp_path: Path) -> None:
    """``python -OO`` removes docstrings and assertions."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-OO", "-P", "-m", "regraft", *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    missing = run("inspect", "nowhere", "--json")
    assert missing.returncode == 2
    assert json.loads(missing.stdout)["error"]["message"].endswith(
        "nowhere: no such file or folder; check the spelling."
    )
    assert run("migrate", SAMPLE, "--to", "library", "--yes", "--fail-on", "never").returncode == 0
    assert run("check", "library", "--fail-on", "never").returncode == 0
    assert run("gc", "library", "--yes").returncode == 0
    assert "not empty and was not written by regraft" in run("explain", "TargetNotOurs").stdout
    assert run("search", "library", "ferry", "-k", "1").returncode == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a file").touch()
    refused = run("migrate", SAMPLE, "--to", "other", "--yes")
    assert (refused.returncode, "it contains a file" in refused.stderr) == (2, True)


def test_the_files_of_tests_that_start_first_are_there() -> None:
    assert [path for path in LONGEST if not (REPO / path).is_file()] == []
    assert len(set(LONGEST)) == len(LONGEST)


def test_no_test_starts_the_packages_of_the_clone() -> None:
    """Without ``-P``, Python finds packages in the working directory first, which is the clone."""
    starts = re.compile(r'sys\.executable,\s*"-m",\s*"regraft"')
    found = {path.name for path in (REPO / "tests").rglob("*.py") if starts.search(path.read_text("utf-8"))}
    # That one is about processes without it, in folders of their own.
    assert found <= {"test_safe_path.py"}
    assert starts.search('[sys.executable,\n "-m", "regraft"]')
