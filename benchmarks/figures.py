"""Measures how hard the code is to read, and holds it to limits.

``python -m benchmarks.figures`` prints each figure beside its limit and ends with 1 where one is over; ``make lint``
runs it. Complexity is radon's: a way through an expression counts, too.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from radon.complexity import cc_visit, sorted_results

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("regraft", "migrators", "checks", "repair")
#: A block with more ways through it is complex, and one with more lines is long.
COMPLEX, LONG_FUNCTION, LONG_FILE = 10, 60, 900
#: Positional arguments with which a record is no longer readable where it is made.
POSITIONAL = 4


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure, its limit, and where it comes from."""

    name: str
    value: float
    limit: float
    where: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Tell whether it is over its limit."""
        return self.value > self.limit


def sources() -> dict[str, str]:
    """Return the product's modules by their paths."""
    files = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in files}


def complexity(texts: dict[str, str]) -> Figure:
    """Return the share of blocks that are complex, in percent."""
    blocks = [(path, block) for path, text in texts.items() for block in sorted_results(cc_visit(text))]
    over = [
        f"{path}:{block.lineno} {block.name} ({block.complexity})"
        for path, block in blocks
        if block.complexity > COMPLEX
    ]
    return Figure(
        name=f"blocks of complexity over {COMPLEX}, %",
        value=100 * len(over) / len(blocks),
        limit=2,
        where=tuple(over),
    )


def made_by_position(trees: dict[str, ast.Module]) -> Figure:
    """Return how often a record of ours is made with many positional arguments."""
    classes = (node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    records = {node.name for node in classes if _is_record(node)}
    calls = ((path, node) for path, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.Call))
    found = [
        f"{path}:{call.lineno}" for path, call in calls if _name(call.func) in records and len(call.args) >= POSITIONAL
    ]
    return Figure(name=f"records made by {POSITIONAL} positions or more", value=len(found), limit=0, where=tuple(found))


def _is_record(node: ast.ClassDef) -> bool:
    is_data_class = any("dataclass" in ast.unparse(mark) for mark in node.decorator_list)
    return is_data_class or any(ast.unparse(base) == "msgspec.Struct" for base in node.bases)


def used_once(trees: dict[str, ast.Module]) -> Figure:
    """Return the share of private functions that one place names, in percent of all functions."""
    uses: Counter[str] = Counter()
    functions: list[str] = []
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                functions.append(node.name)
            else:
                uses[_name(node)] += 1
    once = [name for name in functions if name.startswith("_") and not name.startswith("__") and uses[name] == 1]
    return Figure(name="private functions named once, %", value=100 * len(once) / len(functions), limit=20)


def lengths(texts: dict[str, str], trees: dict[str, ast.Module]) -> Iterator[Figure]:
    """Yield how many files and functions are too long."""
    files = [path for path, text in texts.items() if text.count("\n") > LONG_FILE]
    yield Figure(name=f"files of over {LONG_FILE} lines", value=len(files), limit=0, where=tuple(files))
    functions = ((path, node) for path, tree in trees.items() for node in ast.walk(tree))
    long = [
        f"{path}:{node.lineno} {node.name}"
        for path, node in functions
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= LONG_FUNCTION
    ]
    yield Figure(name=f"functions of over {LONG_FUNCTION} lines", value=len(long), limit=0, where=tuple(long))


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def main() -> int:
    """Print every figure, and what is over its limit."""
    texts = sources()
    trees = {path: ast.parse(text) for path, text in texts.items()}
    figures = [complexity(texts), made_by_position(trees), used_once(trees), *lengths(texts, trees)]
    for figure in figures:
        print(f"{figure.name:42} {figure.value:6.1f}   at most {figure.limit}")
    over = [figure for figure in figures if figure.is_over]
    for figure in over:
        print(f"\n{figure.name}:", *figure.where, sep="\n  ")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
