"""Measure how many small defects in the core the tests notice.

``python -m benchmarks.mutation [-n COUNT] [--seed SEED] [--only TEXT]`` draws changes of the installed package at
random, one at a time, and runs the tests of the changed module until one fails: from the files in ``TESTS``, in that
order, those that ``make test`` runs. ``--tests FILE`` runs other files. Use it in a virtual environment that nothing
else uses meanwhile: it changes the installed files, and restores them at the end, or at the start of the next run if it
was killed.

A change flips a comparison, negates a condition, exchanges ``and`` and ``or``, changes a constant, deletes a
statement, or swaps two arguments. Not drawn are messages, log entries, annotations, and numbers at the top of a module,
most of which are sizes of buffers. Each change is *caught* (a test fails, whose name is printed), *missed*, or
*timed out*. On a loaded machine a time limit proves nothing, so the score leaves those out: look at each. A missed
change may be caught by a file that ``TESTS`` does not name; then add the file. Some missed changes do not change what
the program does; only reading tells. ``--known FILE`` names such changes, one per line as they are printed, and leaves
them out.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
INSTALLED = Path(sysconfig.get_paths()["purelib"])
BACKUP_SUFFIX = ".unchanged"
#: What ``make test`` runs.
MARKS = "not slow and not needs and not thorough"

#: Tests of every part.
EVERY_PART = ("tests/project/test_structs.py",)
#: The tests of each part of the core, the fastest first. The longest prefix of a module's path counts.
TESTS = {
    "regraft/disk/": (
        "tests/regraft/test_links.py",
        "tests/regraft/test_areas.py",
        "tests/regraft/test_scratch.py",
        "tests/regraft/ledger/test_durable.py",
        "tests/regraft/ledger/test_failing_disk.py",
        "tests/regraft/test_readable_paths.py",
        "tests/regraft/test_folder_paths.py",
        "tests/regraft/test_names.py",
        "tests/regraft/test_outputs.py",
        "tests/regraft/test_working_directory.py",
        "tests/regraft/test_other_systems.py",
        "tests/regraft/test_tree.py",
        "tests/regraft/test_unfinished.py",
        "tests/repair/test_imitated_windows.py",
        "tests/repair/test_hostile_links.py",
    ),
    "regraft/disk/file_paths": (
        "tests/regraft/test_names.py",
        "tests/regraft/test_folder_paths.py",
        "tests/regraft/test_readable_paths.py",
        "tests/regraft/test_other_systems.py",
        "tests/regraft/test_working_directory.py",
        "tests/migrators/test_items.py",
        "tests/migrators/test_plan.py",
        "tests/repair/test_imitated_windows.py",
    ),
    "regraft/disk/trees": (
        "tests/regraft/test_checksums.py",
        "tests/regraft/test_tree.py",
        "tests/regraft/test_early.py",
        "tests/regraft/test_own_records.py",
        "tests/regraft/formats/test_on_disk.py",
        "tests/migrators/test_items.py",
        "tests/regraft/test_locate.py",
    ),
    "regraft/disk/checksums": ("tests/regraft/test_checksums.py", "tests/regraft/test_tree.py"),
    "regraft/disk/links": (
        "tests/regraft/test_links.py",
        "tests/regraft/test_tree.py",
        "tests/regraft/test_following.py",
        "tests/regraft/test_outputs.py",
        "tests/regraft/test_other_systems.py",
        "tests/migrators/test_items.py",
        "tests/repair/test_hostile_links.py",
    ),
    "regraft/disk/sqlite": (
        "tests/regraft/test_sqlite_files.py",
        "tests/regraft/test_areas.py",
        "tests/regraft/test_other_systems.py",
        "tests/regraft/formats/test_index_store.py",
        "tests/regraft/test_search.py",
        "tests/regraft/cli/test_what_a_person_meets.py",
        "tests/repair/test_moving.py",
        "tests/repair/test_changing.py",
        "tests/checks/test_rolling_check.py",
    ),
    "regraft/disk/untrusted_sqlite": (
        "tests/regraft/test_sqlite_files.py",
        "tests/regraft/test_areas.py",
        "tests/regraft/ledger/test_failing_disk.py",
        "tests/regraft/test_other_systems.py",
        "tests/checks/test_foreign_schema.py",
        "tests/repair/test_foreign_others.py",
        "tests/repair/test_changing.py",
        "tests/checks/test_check_damage.py",
        "tests/repair/test_gc.py",
    ),
    "regraft/disk/zip_directory": ("tests/regraft/test_tree.py", "tests/regraft/test_zip_salvage.py"),
    "regraft/disk/zip_salvage": ("tests/regraft/test_zip_salvage.py", "tests/regraft/test_tree.py"),
    "regraft/ledger/": (
        "tests/regraft/ledger/test_ledger.py",
        "tests/regraft/ledger/test_ledger_values.py",
        "tests/repair/test_crash_order.py",
        "tests/regraft/ledger",
        "tests/regraft/test_unfinished.py",
        "tests/regraft/test_readable_paths.py",
        "tests/repair/test_stranger_undo.py",
        "tests/repair/test_endings.py",
        "tests/migrators/test_published.py",
        "tests/repair/test_undo.py",
        "tests/migrators/test_resume.py",
    ),
    "migrators/pipeline/": (
        "tests/migrators/test_run_steps.py",
        "tests/migrators/test_kept_bases.py",
        "tests/migrators/test_plan.py",
        "tests/migrators/test_published.py",
        "tests/migrators/test_items.py",
        "tests/migrators/test_target.py",
        "tests/migrators/test_two_readings.py",
        "tests/migrators/test_orphans.py",
        "tests/migrators/test_twins.py",
        "tests/migrators/test_salvage.py",
        "tests/migrators/test_properties.py",
        "tests/regraft/test_large_texts.py",
        "tests/regraft/report/test_report.py",
        "tests/migrators/test_carry_text.py",
        "tests/migrators/test_resume.py",
        "tests/migrators/test_odd_sources.py",
    ),
    "migrators/pipeline/base_writer": (
        "tests/migrators/test_base_writer.py",
        "tests/migrators/test_plan.py",
        "tests/migrators/test_two_readings.py",
        "tests/migrators/test_twins.py",
        "tests/migrators/test_rsclaw.py",
        "tests/migrators/test_properties.py",
        "tests/regraft/test_large_texts.py",
        "tests/migrators/test_carry_text.py",
    ),
    "migrators/pipeline/packed": ("tests/migrators/test_packed.py", "tests/repair/test_pack.py"),
    "migrators/pipeline/preflight": (
        "tests/migrators/test_preflight.py",
        "tests/migrators/test_room.py",
        "tests/migrators/test_target.py",
        "tests/migrators/test_items.py",
        "tests/migrators/test_published.py",
        "tests/regraft/test_other_systems.py",
        "tests/migrators/test_preview.py",
        "tests/migrators/test_odd_sources.py",
    ),
    "migrators/pipeline/publication": (
        "tests/migrators/test_target_library.py",
        "tests/regraft/ledger/test_ledger_entries.py",
        "tests/migrators/test_kept_bases.py",
        "tests/migrators/test_preflight.py",
        "tests/migrators/test_published.py",
        "tests/migrators/test_copied_library.py",
        "tests/regraft/test_unfinished.py",
        "tests/regraft/test_decisions.py",
        "tests/migrators/test_target.py",
        "tests/migrators/test_resume.py",
        "tests/regraft/test_faults.py",
        "tests/repair/test_crash_semantics.py",
    ),
    "migrators/pipeline/run": (
        "tests/migrators/test_run_steps.py",
        "tests/migrators/test_kept_bases.py",
        "tests/migrators/test_target.py",
        "tests/migrators/test_two_readings.py",
        "tests/migrators/test_items.py",
        "tests/migrators/test_resume.py",
        "tests/regraft/report/test_report.py",
        "tests/migrators/test_odd_sources.py",
    ),
    "migrators/pipeline/session": (
        "tests/migrators/test_target_library.py",
        "tests/migrators/test_target.py",
        "tests/regraft/test_unfinished.py",
        "tests/repair/test_hostile_links.py",
        "tests/migrators/test_resume.py",
        "tests/repair/test_crash_semantics.py",
    ),
    "migrators/pipeline/losses": ("tests/migrators/test_plan.py", "tests/migrators/test_salvage.py"),
    "migrators/pipeline/source_files": (
        "tests/migrators/test_source_files.py",
        "tests/migrators/test_base_writer.py",
        "tests/migrators/test_kept_bases.py",
        "tests/migrators/test_helping.py",
        "tests/migrators/test_items.py",
    ),
    "migrators/pipeline/workers": (
        "tests/migrators/test_workers.py",
        "tests/migrators/test_kept_bases.py",
        "tests/migrators/test_salvage.py",
        "tests/migrators/test_salvage_of_what_is_read.py",
        "tests/migrators/test_two_readings.py",
        "tests/migrators/test_jobs.py",
        "tests/regraft/test_large_texts.py",
    ),
    "repair/changes/": (
        "tests/repair/test_changesets.py",
        "tests/repair/test_replaced_files.py",
        "tests/repair/test_plans_and_runs.py",
        "tests/repair/test_executed_changes.py",
        "tests/repair/test_run_rules.py",
        "tests/repair/test_endings.py",
        "tests/repair/test_outdated_plans.py",
        "tests/repair/test_moving.py",
        "tests/repair/test_fix_dry_run.py",
        "tests/repair/test_hostile_links.py",
        "tests/repair/test_crash_changes.py",
        "tests/repair/test_changing.py",
        "tests/repair/test_crash_order.py",
        "tests/repair/test_crash_semantics.py",
        "tests/regraft/ledger/test_failing_disk.py",
        "tests/checks/test_foreign_schema.py",
        "tests/repair/test_mending.py",
        "tests/repair/test_undo.py",
        "tests/repair/test_repair.py",
    ),
    "repair/cherry_v2/gc/": (
        "tests/repair/test_gc_rules.py",
        "tests/repair/test_fix_dry_run.py",
        "tests/repair/test_external_items.py",
        "tests/repair/test_gc.py",
    ),
    "repair/cherry_v2/rules/": (
        "tests/repair/test_unsafe_paths.py",
        "tests/repair/test_mending.py",
        "tests/repair/test_mend_catalog.py",
        "tests/repair/test_moved_sources.py",
        "tests/regraft/test_readable_paths.py",
        "tests/checks/test_foreign_schema.py",
        "tests/repair/test_repair.py",
    ),
    "repair/cherry_v2/rules/planner": (
        "tests/repair/test_repair_planner.py",
        "tests/repair/test_repair.py",
        "tests/repair/test_mending.py",
        "tests/repair/test_salvage_index.py",
        "tests/repair/test_mend_catalog.py",
        "tests/regraft/test_readable_paths.py",
        "tests/repair/test_moved_sources.py",
        "tests/checks/test_foreign_schema.py",
        "tests/repair/test_adopt.py",
    ),
    "checks/cherry_v2/": (
        "tests/checks/test_index_rows.py",
        "tests/checks/test_row_pass.py",
        "tests/checks/test_check_v2.py",
        "tests/checks/test_check_damage.py",
        "tests/checks/test_damage_cases.py",
        "tests/checks/test_vectors_by_catalog.py",
        "tests/checks/test_foreign_schema.py",
        "tests/repair/test_imitated_windows.py",
        "tests/repair/test_mending.py",
        "tests/checks/test_rolling_check.py",
        "tests/repair/test_mend_catalog.py",
    ),
    "checks/cherry_v2/audit": (
        "tests/checks/test_check_stores.py",
        "tests/checks/test_check_v2.py",
        "tests/checks/test_damage_cases.py",
        "tests/repair/test_pack.py",
        "tests/repair/test_generations.py",
    ),
    "checks/cherry_v2/catalog_rows": (
        "tests/checks/test_catalog_rows.py",
        "tests/checks/test_check_v2.py",
        "tests/repair/test_mend_catalog.py",
        "tests/repair/test_moved_sources.py",
    ),
    "checks/cherry_v2/raw_files": (
        "tests/checks/test_raw_files.py",
        "tests/checks/test_check_v2.py",
        "tests/checks/test_damage_cases.py",
        "tests/repair/test_gc.py",
    ),
    "checks/cherry_v2/advice": (
        "tests/checks/test_next_commands.py",
        "tests/repair/test_advice.py",
        "tests/checks/test_check_v2.py",
    ),
    "checks/cherry_v2/inspect": ("tests/checks/test_inspect.py",),
    "checks/cherry_v2/installed": ("tests/checks/test_installed.py", "tests/repair/test_install.py"),
    "checks/cherry_v2/schema": (
        "tests/checks/test_index_schema.py",
        "tests/checks/test_foreign_schema.py",
        "tests/checks/test_check_v2.py",
        "tests/repair/test_mending.py",
        "tests/repair/test_upgrade.py",
    ),
    "checks/audit/": (
        "tests/checks/test_collector.py",
        "tests/checks/test_check_v2.py",
        "tests/checks/test_check_damage.py",
        "tests/checks/test_row_pass.py",
        "tests/checks/test_check_v1.py",
    ),
    "checks/audit/page": ("tests/regraft/report/test_check_page.py",),
    "checks/audit/rolling": ("tests/checks/test_rolling_part.py", "tests/checks/test_rolling_check.py"),
    "checks/audit/sqlite_checks": (
        "tests/checks/test_sqlite_checks.py",
        "tests/checks/test_index_schema.py",
        "tests/checks/test_check_v2.py",
        "tests/checks/test_check_damage.py",
        "tests/checks/test_damage_cases.py",
        "tests/checks/test_codex_mem_check.py",
        "tests/checks/test_angel_check.py",
    ),
}

FLIPPED: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
#: Calls whose arguments are text for people.
TEXT_CALLS = frozenset({"tr", "debug", "info", "warning", "error", "add_note"})


@dataclass(frozen=True, order=True, kw_only=True)
class Mutant:
    """One change of a module: ``old``, which begins at ``start`` of its text, becomes ``new``."""

    module: str
    line: int
    start: int
    kind: str
    old: str
    new: str

    def __str__(self) -> str:
        """Return it on one line."""
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.module}:{self.line}: {self.kind}: {old} -> {new}"

    def apply(self, text: str) -> str:
        """Return the changed text of the module."""
        assert text[self.start :].startswith(self.old)
        return text[: self.start] + self.new + text[self.start + len(self.old) :]


class MutantFinder(ast.NodeVisitor):
    """Finds every change of a module."""

    def __init__(self, module: str, text: str) -> None:
        self._module, self._text = module, text
        lines = text.splitlines(keepends=True)
        self._offsets = [0]
        for line in lines:
            self._offsets.append(self._offsets[-1] + len(line))
        self._lines = lines
        self._depth = 0
        self.found: list[Mutant] = []

    def _position(self, line: int, column: int) -> int:
        """Return the offset in characters; the column counts bytes."""
        return self._offsets[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _add(self, node: ast.expr | ast.stmt, kind: str, new: str) -> None:
        start = self._position(node.lineno, node.col_offset)
        end = self._position(node.end_lineno or 0, node.end_col_offset or 0)
        old = self._text[start:end]
        if old != new:
            self.found.append(Mutant(module=self._module, line=node.lineno, start=start, kind=kind, old=old, new=new))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Change the body and the default values, not the annotations."""
        self._depth += 1
        for part in (*node.args.defaults, *node.args.kw_defaults, *node.body):
            if part is not None:
                self.visit(part)
        self._depth -= 1

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Change the value, not the annotation."""
        if node.value is not None:
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Flip a comparison."""
        if len(node.ops) == 1:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            self._add(node, "flipped", f"({left} {FLIPPED[type(node.ops[0])]} {right})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Exchange ``and`` and ``or``."""
        other = " or " if isinstance(node.op, ast.And) else " and "
        self._add(node, "exchanged", f"({other.join(f'({ast.unparse(value)})' for value in node.values)})")
        self.generic_visit(node)

    def _negate(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Compare) and "TYPE_CHECKING" not in ast.unparse(test):
            self._add(test, "negated", f"(not ({ast.unparse(test)}))")

    def visit_If(self, node: ast.If) -> None:
        """Negate a condition."""
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Negate a condition."""
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        """Negate a condition."""
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Negate the conditions of a comprehension."""
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Change a truth value, or a number within a function."""
        if isinstance(node.value, bool):
            self._add(node, "constant", str(not node.value))
        elif isinstance(node.value, int) and self._depth:
            self._add(node, "constant", str(node.value + 1))

    def visit_JoinedStr(self, _: ast.JoinedStr) -> None:
        """Change no text."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """Delete the statement; change nothing in its message."""
        self._add(node, "deleted", "pass")

    def visit_Assert(self, _: ast.Assert) -> None:
        """Change no assertion: it holds always."""

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Delete the statement."""
        self._add(node, "deleted", "pass")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Delete a call whose result is not used."""
        if isinstance(node.value, ast.Call) and _name(node.value.func) not in TEXT_CALLS:
            self._add(node, "deleted", "pass")
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Swap the first two arguments, if both are names: a swapped literal fails at once."""
        if _name(node.func) in TEXT_CALLS:
            return
        first = node.args[:2]
        if len(first) == 2 and all(isinstance(one, ast.Name | ast.Attribute) for one in first):
            swapped = ast.Call(func=node.func, args=[*reversed(first), *node.args[2:]], keywords=node.keywords)
            if _name(node.func) not in ("isinstance", "issubclass"):
                self._add(node, "swapped", ast.unparse(swapped))
        self.generic_visit(node)


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else ""


def tests_of(module: str) -> tuple[str, ...]:
    """Return the tests of a module that exist."""
    prefix = max((one for one in TESTS if module.startswith(one)), key=len)
    return tuple(path for path in (*EVERY_PART, *TESTS[prefix]) if (ROOT / path).exists())


def all_mutants() -> Iterator[Mutant]:
    """Yield every change of every module of the core."""
    for prefix in TESTS:
        for path in sorted((INSTALLED / prefix).rglob("*.py")):
            module = path.relative_to(INSTALLED).as_posix()
            text = path.read_text("utf-8")
            finder = MutantFinder(module, text)
            finder.visit(ast.parse(text))
            yield from finder.found


def restore() -> None:
    """Restore modules that a killed run left changed."""
    for prefix in TESTS:
        for backup in (INSTALLED / prefix).rglob(f"*{BACKUP_SUFFIX}"):
            backup.replace(backup.with_name(backup.name.removesuffix(BACKUP_SUFFIX)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run files in the order of the arguments, as a plugin of the pytest that ``run_tests`` starts."""
    order = {argument: place for place, argument in enumerate(config.args)}

    def place(item: pytest.Item) -> int:
        path = item.nodeid.partition("::")[0]
        return min((place for argument, place in order.items() if path.startswith(argument)), default=len(order))

    items.sort(key=place)


def run_tests(tests: Sequence[str], seconds: float) -> tuple[str, str]:
    """Run tests until one fails; return ``caught``, ``missed`` or ``timed out``, and the test that failed."""
    with tempfile.TemporaryDirectory(prefix="mutation-", ignore_cleanup_errors=True) as folder:
        options = ("-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile", "quick", "--assert", "plain")
        place = ("--basetemp", str(Path(folder, "tests")), "-p", "benchmarks.mutation")
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pytest", *options, *place, "-m", MARKS, *tests],
            cwd=ROOT,
            # For the plugin alone: the tests remove it from their environment.
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            # With the processes that its tests started, which hold the pipe open.
            _end_group(process)
            output, _ = process.communicate()
            return "timed out", output.strip().rpartition("\n")[2]
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    if process.returncode:
        return "caught", failed[1] if failed else output.strip().rpartition("\n")[2]
    return "missed", ""


def _end_group(process: subprocess.Popen[str]) -> None:
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def judge(mutant: Mutant, tests: Sequence[str], seconds: float) -> tuple[str, str]:
    """Run tests over one change of the installed package, and return as :func:`run_tests` does."""
    path = INSTALLED / mutant.module
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    text = path.read_text("utf-8")
    path.rename(backup)
    try:
        # Written now, later than the unchanged file and all other changes of it: bytecode is cached by size and time,
        # and must not be mixed up.
        path.write_text(mutant.apply(text), "utf-8")
        return run_tests(tests, seconds)
    finally:
        backup.replace(path)


def main() -> int:
    """Draw changes, judge them, and print the score."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("-n", "--count", type=int, default=60, help="how many changes [60]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only changes whose line contains this text")
    parser.add_argument("--seconds", type=float, default=900, help="time limit of each change [900]")
    parser.add_argument("--known", type=Path, help="a file with changes that have no effect")
    parser.add_argument("--tests", nargs="+", help="files of tests, instead of those of the changed module")
    parser.add_argument("--list", action="store_true", help="print the changes and run no tests")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without a change first")
    asked = parser.parse_args()
    restore()
    known = set(asked.known.read_text("utf-8").splitlines()) if asked.known else set()
    mutants = sorted({one for one in all_mutants() if asked.only in str(one) and str(one) not in known})
    # In the order of the draw: what has run of an interrupted run is a fair sample, too.
    drawn = random.Random(asked.seed).sample(mutants, min(asked.count, len(mutants)))
    if asked.list:
        print(*drawn, sep="\n")
        return 0
    if not asked.unchecked:
        every = sorted({path for one in drawn for path in asked.tests or tests_of(one.module)})
        outcome, failed = run_tests(every, asked.seconds)
        if outcome != "missed":
            print(f"this fails without any change, too: {failed}", file=sys.stderr)
            return 2
    outcomes: Counter[str] = Counter()
    for number, mutant in enumerate(drawn, 1):
        begun = time.monotonic()
        outcome, failed = judge(mutant, asked.tests or tests_of(mutant.module), asked.seconds)
        outcomes[outcome] += 1
        print(f"{number}/{len(drawn)} {outcome} ({time.monotonic() - begun:.0f} s) {mutant}", flush=True)
        if failed:
            print(f"    {failed}", flush=True)
    score = 100 * outcomes["caught"] / max(outcomes["caught"] + outcomes["missed"], 1)
    print(json.dumps({"seed": asked.seed, "of": len(mutants), **outcomes, "score": round(score, 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
