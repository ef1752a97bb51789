"""The public packages as another program uses them: installed, in another folder, with nothing of these tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import angel_store
import codex_mem_store
import pytest
from harness import REPO

#: What lies in that folder, instead of a program's own modules.
OUTSIDE = REPO / "tests" / "support" / "outside"
#: Few examples: they are about whether it works at all.
FEW = """
settings.register_profile("few", settings.get_profile("stores"), max_examples=4, database=None)
settings.load_profile("few")
"""


def outside(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        shutil.copy(OUTSIDE / name, folder)
    return folder


def run_pytest(folder: Path, *arguments: str, **more: str) -> str:
    """Run pytest in a folder, and return what it says; nothing of this repository can be imported there."""
    # A cache of compiled modules elsewhere is no place from which anything can be imported.
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "PYTHONPYCACHEPREFIX" or not name.startswith(("PYTEST", "PYTHON"))
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--rootdir", "."]
    # The same examples every time: a test that never failed here does not fail by chance elsewhere.
    command += ["--hypothesis-seed", "0"]
    # Of its own: pytest also cleans up after others in the usual one.
    command += ["--basetemp", str(folder.with_name("temporary"))]
    done = subprocess.run(
        [*command, *arguments], cwd=folder, env={**kept, **more}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (REPO / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.thorough
def test_a_correct_store_is_accepted_and_every_mutant_is_caught(tmp_path: Path) -> None:
    folder = outside(tmp_path / "program", "plain_store.py", "mutants.py", "check_stores.py")
    said = run_pytest(folder, "check_stores.py")
    mutants = re.findall(r"^class \w+\(Store\):", (OUTSIDE / "mutants.py").read_text("utf-8"), re.MULTILINE)
    assert len(mutants) >= 25
    assert f"{len(mutants) + 4} passed" in said


@pytest.mark.thorough
def test_the_examples_run_as_they_stand(tmp_path: Path) -> None:
    """Each block is a file of its own: what it imports is all that it has. The Chinese page has the same blocks."""
    folder = outside(tmp_path / "program", "plain_store.py", "my_store.py", "my_writer.py", "my_auditor.py")
    profile, *others = blocks("docs/testing.md")
    (folder / "conftest.py").write_text(profile + FEW, "utf-8")
    for number, block in enumerate(others, 1):
        (folder / f"test_block_{number}.py").write_text(block, "utf-8")
    passed = sum(block.count("\ndef test_") + block.count(".TestCase") for block in others)
    assert passed >= 5
    assert f"{passed} passed" in run_pytest(folder)


def test_both_languages_have_the_same_examples() -> None:
    assert blocks("docs/testing.md") == blocks("docs/zh/testing.md")


@pytest.mark.thorough
def test_every_function_of_the_api(tmp_path: Path) -> None:
    folder = outside(tmp_path / "program", "check_api.py")
    said = run_pytest(
        folder,
        "check_api.py",
        SAMPLE=str(REPO / "sample_v1" / "cherry-studio.202503141200.zip"),
        ANGEL_MEMORY=str(angel_store.build(tmp_path / "data", {"a.txt": "one\ntwo\nthree\n"}).root),
        CODEX_MEM=str(codex_mem_store.write(tmp_path / "codex")),
    )
    assert " passed" in said
