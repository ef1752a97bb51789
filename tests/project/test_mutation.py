"""The mutation tester: the changes that it finds, and that it leaves the installed package as it was."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from benchmarks import mutation

MODULE = '''"""Words == 1."""

LIMIT = 4096


def check(path: Path, size: int = 1) -> bool:
    """Compare 1 == 2."""
    if size > LIMIT and not path:
        raise Refused(tr("{size} is over 3", size=size == 1))
    logger.info("%s", 1)
    compare(path, size)
    total = 0
    total += 2
    return [name for name in path if is_wanted(name)] if path is None else True


名 = "知识库" in names
'''
CHANGED = {
    "if (size >= LIMIT) and not path:",
    "if ((size > LIMIT) or (not path)):",
    "if (not (size > LIMIT and (not path))):",
    "        pass\n    logger.info",
    "    pass\n    total = 0",
    "    compare(size, path)\n",
    "total = 1",
    "    total = 0\n    pass\n",
    "total += 3",
    "if (not (is_wanted(name)))]",
    "if (path is not None) else True",
    "else False",
    "size: int = 2)",
    "名 = ('知识库' not in names)",
}


def test_every_kind_of_change_is_found_and_no_message_or_comment_is_changed() -> None:
    finder = mutation.MutantFinder("module.py", MODULE)
    finder.visit(ast.parse(MODULE))
    changed = [one.apply(MODULE) for one in finder.found]
    assert len(set(changed)) == len(changed)
    for text in changed:
        ast.parse(text)
        assert '"""Words == 1."""' in text
        assert '"""Compare 1 == 2."""' in text
        assert "LIMIT = 4096" in text
        assert 'logger.info("%s", 1)' in text
    for part in CHANGED:
        assert sum(part in text and part not in MODULE for text in changed) == 1, part
    assert len(changed) == len(CHANGED)


@pytest.mark.parametrize("answer", [("caught", "test_one.py::test_a"), ("missed", ""), ("timed out", "1 passed")])
def test_a_module_is_changed_while_its_tests_run_and_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: tuple[str, str]
) -> None:
    path = tmp_path / "regraft" / "disk" / "one.py"
    path.parent.mkdir(parents=True)
    path.write_text("a = b == c\n")
    os.utime(path, ns=(10**18, 10**18))
    seen: list[str] = []

    def run_tests(tests: tuple[str, ...], seconds: float) -> tuple[str, str]:
        assert tests == ("test_one.py",)
        seen.append(path.read_text("utf-8"))
        assert path.stat().st_mtime_ns != 10**18
        return answer

    monkeypatch.setattr(mutation, "INSTALLED", tmp_path)
    monkeypatch.setattr(mutation, "run_tests", run_tests)
    [mutant] = mutation.all_mutants()
    assert str(mutant) == "regraft/disk/one.py:1: flipped: b == c -> (b != c)"
    assert mutation.judge(mutant, ("test_one.py",), 1) == answer
    assert seen == ["a = (b != c)\n"]
    assert (path.read_text("utf-8"), path.stat().st_mtime_ns) == ("a = b == c\n", 10**18)
    assert [one.name for one in path.parent.iterdir()] == ["one.py"]


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a suite of its own: its first file passes but for a test that make test leaves out, the second fails."""
    marks = "slow", "needs", "thorough"
    (tmp_path / "pytest.ini").write_text("\n  ".join(("[pytest]\nmarkers =", *marks)), "utf-8")
    (tmp_path / "conftest.py").write_text('import hypothesis\nhypothesis.settings.register_profile("quick")\n')
    left_out = (f"@pytest.mark.{mark}\ndef test_{mark}():\n    raise ValueError\n" for mark in marks)
    passing = "def test_passing():\n    with open('log', 'a') as log:\n        log.write('z')\n"
    (tmp_path / "test_z.py").write_text("\n".join(("import pytest", passing, *left_out)), "utf-8")
    failing = "def test_failing():\n    with open('log', 'a') as log:\n        log.write('a')\n    raise ValueError\n"
    (tmp_path / "test_a.py").write_text(f"{failing}\n{failing.replace('_failing', '_after')}", "utf-8")
    (tmp_path / "test_b.py").write_text("import time\n\ndef test_sleeping():\n    time.sleep(3600)\n")
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.thorough
def test_files_run_in_the_order_given_until_a_test_fails(suite: Path) -> None:
    assert mutation.run_tests(("test_z.py", "test_a.py"), 3600) == ("caught", "test_a.py::test_failing")
    assert (suite / "log").read_text("utf-8") == "za"
    assert mutation.run_tests(("test_z.py",), 3600) == ("missed", "")
    assert (suite / "log").read_text("utf-8") == "zaz"


@pytest.mark.thorough
def test_tests_that_take_too_long_are_not_said_to_fail(suite: Path) -> None:
    assert mutation.run_tests(("test_b.py",), 3)[0] == "timed out"


def test_what_a_killed_run_left_changed_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "regraft" / "disk"
    folder.mkdir(parents=True)
    (folder / "one.py").write_text("changed")
    (folder / "one.py.unchanged").write_text("as installed")
    monkeypatch.setattr(mutation, "INSTALLED", tmp_path)
    mutation.restore()
    assert [(one.name, one.read_text("utf-8")) for one in folder.iterdir()] == [("one.py", "as installed")]


def test_every_part_of_the_core_has_tests() -> None:
    assert all(mutation.tests_of(f"{prefix}module.py") for prefix in mutation.TESTS)
    missing = [path for tests in mutation.TESTS.values() for path in tests if not (mutation.ROOT / path).exists()]
    assert missing == []
