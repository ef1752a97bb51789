"""Measure how hard the code is to read, and fail where a figure exceeds its limit.

``python -m benchmarks.figures`` prints each figure beside its limit and exits with 1 if one exceeds it; ``make lint``
runs it, and ``benchmarks/prose.py`` for the texts. Complexity is radon's, which counts branches in expressions as well.
Code lines are lines without blanks, comments and docstrings. Limits are lowered when the code gets better.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from radon.complexity import cc_visit, sorted_results

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("regraft", "migrators", "checks", "repair")
#: Branches of a complex block, lines of a long function and of a long file.
COMPLEX, LONG_FUNCTION, LONG_FILE = 10, 60, 900
#: Positional arguments from which a call that makes a record is hard to read.
POSITIONAL = 4
#: Modules that are looked up like a table, one entry after the other: their length is no obstacle.
CATALOGUES = ("regraft/errors.py",)
#: Public classes of one name in the whole tree.
NAMESAKES = 2


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A measured value and its limit."""

    name: str
    value: float
    limit: float
    #: Whether the limit is a lower bound.
    is_minimum: bool = False
    #: The passages that count against the limit.
    where: tuple[str, ...] = ()

    @property
    def exceeds_limit(self) -> bool:
        """Whether the value is on the wrong side of the limit."""
        return self.value < self.limit if self.is_minimum else self.value > self.limit


def sources() -> dict[str, str]:
    """Return the text of each product module by its path."""
    files = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in files}


def complexity(texts: dict[str, str]) -> Figure:
    """Return the share of complex functions, methods and classes, in percent."""
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
    """Return the number of calls that make a record with many positional arguments."""
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
    """Return the share of private functions that are used in one place, in percent of all functions.

    Uses are counted in the function's own module. A count over all modules would favor vague names, which several
    modules have, over exact ones.
    """
    once: list[str] = []
    count = 0
    for path, tree in trees.items():
        uses: Counter[str] = Counter()
        functions: list[ast.FunctionDef] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                functions.append(node)
            else:
                uses[_name(node)] += 1
        count += len(functions)
        private = (one for one in functions if one.name.startswith("_") and not one.name.startswith("__"))
        once += [f"{path}:{one.lineno} {one.name}" for one in private if uses[one.name] == 1]
    return Figure(name="private functions used once, %", value=100 * len(once) / count, limit=26.5, where=tuple(once))


def lengths(texts: dict[str, str], trees: dict[str, ast.Module]) -> Iterator[Figure]:
    """Yield the numbers of long files and of long functions."""
    files = [path for path, text in texts.items() if text.count("\n") > LONG_FILE and path not in CATALOGUES]
    yield Figure(name=f"files of over {LONG_FILE} lines", value=len(files), limit=0, where=tuple(files))
    functions = ((path, node) for path, tree in trees.items() for node in ast.walk(tree))
    long = [
        f"{path}:{node.lineno} {node.name}"
        for path, node in functions
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= LONG_FUNCTION
    ]
    yield Figure(name=f"functions of over {LONG_FUNCTION} lines", value=len(long), limit=0, where=tuple(long))


def sizes(texts: dict[str, str], trees: dict[str, ast.Module]) -> Iterator[Figure]:
    """Yield the mean and the median of code lines per module, and the share of headers in all lines.

    A header is the module's docstring and its imports.
    """
    counts = {path: len(_code_lines(text, trees[path])) for path, text in texts.items()}
    headers = 0
    for tree in trees.values():
        headers += sum(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for node in tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
        )
        headers += (tree.body[0].end_lineno or 0) if ast.get_docstring(tree) else 0
    small = sorted(counts, key=counts.__getitem__)[:20]
    yield Figure(name="code lines per module, mean", value=statistics.mean(counts.values()), limit=150, is_minimum=True)
    yield Figure(
        name="code lines per module, median",
        value=statistics.median(counts.values()),
        limit=140,
        is_minimum=True,
        where=tuple(small),
    )
    yield Figure(
        name="headers, % of all lines",
        value=100 * headers / sum(text.count("\n") for text in texts.values()),
        limit=7.1,
    )


def _code_lines(text: str, tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that hold code: no blank line, comment or docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                docstrings.update(range(first.lineno, (first.end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docstrings


_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def namesakes(trees: dict[str, ast.Module]) -> Figure:
    """Return the number of names that more public classes have than :data:`NAMESAKES`."""
    classes: dict[str, list[str]] = {}
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes.setdefault(node.name, []).append(path)
    over = {name: paths for name, paths in classes.items() if len(paths) > NAMESAKES}
    where = tuple(f"{name}: {', '.join(paths)}" for name, paths in sorted(over.items()))
    return Figure(name=f"names of more than {NAMESAKES} public classes", value=len(over), limit=0, where=where)


def dependencies(trees: dict[str, ast.Module]) -> Iterator[Figure]:
    """Yield the numbers of folders and modules in import cycles, and of modules that one other module imports.

    Imports inside functions do not count: they are made when the function runs.
    """
    modules = {_module(path): path for path in trees}
    imports: dict[str, set[str]] = {module: set() for module in modules}
    for module, path in modules.items():
        for node in trees[path].body:
            if isinstance(node, ast.ImportFrom) and node.module in modules | _packages(modules):
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    target = full if full in modules else node.module
                    if target in modules and target != module:
                        imports[module].add(target)
    cycle = _in_cycles(imports)
    yield Figure(name="modules in an import cycle", value=len(cycle), limit=0, where=tuple(sorted(cycle)))
    folders: dict[str, set[str]] = {}
    for module, targets in imports.items():
        own = str(Path(modules[module]).parent)
        others = {str(Path(modules[target]).parent) for target in targets} - {own}
        folders.setdefault(own, set()).update(others)
    cycle = _in_cycles(folders)
    yield Figure(name="folders in an import cycle", value=len(cycle), limit=0, where=tuple(sorted(cycle)))
    importers: Counter[str] = Counter(target for targets in imports.values() for target in targets)
    single = sorted(
        modules[module]
        for module, count in importers.items()
        if count == 1 and not modules[module].endswith("__init__.py")
    )
    yield Figure(name="modules with one importer", value=len(single), limit=40, where=tuple(single))


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _packages(modules: dict[str, str]) -> dict[str, str]:
    """Return the packages of the modules, with or without an ``__init__`` of their own."""
    return {module.rpartition(".")[0]: "" for module in modules if "." in module}


def _in_cycles(graph: dict[str, set[str]]) -> set[str]:
    """Return the nodes that can reach themselves."""
    reached: dict[str, set[str]] = {}
    for start, targets in graph.items():
        seen: set[str] = set()
        waiting = list(targets)
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting += graph.get(node, ())
        reached[start] = seen
    return {node for node, nodes in reached.items() if node in nodes}


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def main() -> int:
    """Print every figure, and the passages behind those that exceed their limit."""
    texts = sources()
    trees = {path: ast.parse(text) for path, text in texts.items()}
    figures = [
        *sizes(texts, trees),
        complexity(texts),
        made_by_position(trees),
        used_once(trees),
        *lengths(texts, trees),
        namesakes(trees),
        *dependencies(trees),
    ]
    print(f"{len(texts)} modules")
    for figure in figures:
        print(f"{figure.name:42} {figure.value:6.1f}   at {'least' if figure.is_minimum else 'most'} {figure.limit}")
    over = [figure for figure in figures if figure.exceeds_limit]
    for figure in over:
        print(f"\n{figure.name}:", *figure.where, sep="\n  ")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
