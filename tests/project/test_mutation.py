"""The mutation tester: the changes that it finds, and that it leaves the installed package as it was."""

from __future__ import annotations

import ast
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


@pytest.mark.parametrize("outcome", ["caught", "missed"])
def test_a_module_is_changed_while_its_tests_run_and_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    path = tmp_path / "regraft" / "disk" / "one.py"
    path.parent.mkdir(parents=True)
    path.write_text("a = b == c\n")
    before = path.stat().st_mtime_ns
    seen: list[str] = []

    def run_tests(tests: tuple[str, ...], seconds: float) -> str:
        assert "tests/regraft/test_areas.py" in tests
        seen.append(path.read_text())
        assert path.stat().st_mtime_ns != before
        return outcome

    monkeypatch.setattr(mutation, "INSTALLED", tmp_path)
    monkeypatch.setattr(mutation, "run_tests", run_tests)
    [mutant] = mutation.all_mutants()
    assert str(mutant) == "regraft/disk/one.py:1: flipped: b == c -> (b != c)"
    assert mutation.judge(mutant, 1) == outcome
    assert seen == ["a = (b != c)\n"]
    assert (path.read_text(), path.stat().st_mtime_ns) == ("a = b == c\n", before)
    assert [one.name for one in path.parent.iterdir()] == ["one.py"]


def test_what_a_killed_run_left_changed_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "regraft" / "disk"
    folder.mkdir(parents=True)
    (folder / "one.py").write_text("changed")
    (folder / "one.py.unchanged").write_text("as installed")
    monkeypatch.setattr(mutation, "INSTALLED", tmp_path)
    mutation.restore()
    assert [(one.name, one.read_text()) for one in folder.iterdir()] == [("one.py", "as installed")]


def test_every_part_of_the_core_has_tests() -> None:
    assert all(mutation.tests_of(f"{prefix}module.py") for prefix in mutation.TESTS)
    missing = [path for tests in mutation.TESTS.values() for path in tests if not (mutation.ROOT / path).exists()]
    assert missing == []
