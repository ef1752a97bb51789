"""The house: who may call whom, what no module may do, and that the installed command finds its own packages."""

from __future__ import annotations

import ast
import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from harness import REPO
from write_rule import OTHER_FILE, READING, WRITING, writes

SAMPLE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"
PACKAGES = ("regraft", "migrators", "checks", "repair")
#: What each package may import of the four. The command line brings them together.
MAY_IMPORT = {
    "regraft": {"regraft"},
    "migrators": {"migrators", "regraft"},
    "checks": {"checks", "regraft"},
    "repair": {"repair", "checks", "migrators", "regraft"},
}


def is_command_line(module: str) -> bool:
    """Tell whether a module is part of the command line, which brings the four packages together."""
    return module == "regraft.__main__" or module.split(".")[:2] == ["regraft", "cli"]


def brings_together(module: str) -> bool:
    """Tell whether a module may import all four packages: command line and page, and the functions that they call."""
    return (
        is_command_line(module)
        or module == "regraft"
        or module.split(".")[:2] in (["regraft", "api"], ["regraft", "page"])
    )


def module_name(path: Path) -> str:
    parts = path.relative_to(REPO).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for package in PACKAGES for path in sorted((REPO / package).rglob("*.py"))}


def each_module(rule: Callable[[str], None]) -> Callable[[], None]:
    """Hold every module against a rule, in one test: thousands of tests of a few microseconds take their time."""

    def test() -> None:
        broken = []
        for module in SOURCES:
            try:
                rule(module)
            except AssertionError as error:
                broken.append(f"{module}: {error}")
        assert not broken, "\n".join(broken)

    test.__name__, test.__doc__ = rule.__name__, rule.__doc__
    return test


@pytest.fixture(scope="module", autouse=True)
def no_search_for_garbage() -> Iterator[None]:
    """Trees of all modules are kept: searching them for garbage takes twice the time of reading them."""
    gc.disable()
    yield
    gc.enable()


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(SOURCES[module].read_text("utf-8"))


@cache
def imports(module: str) -> tuple[str, ...]:
    """Return the full names that a module imports, wherever in it: ``a.b`` for ``from a import b``."""
    return tuple(_imports(module))


def _imports(module: str) -> Iterator[str]:
    package = module if SOURCES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in nodes(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            start = ".".join([*above, node.module] if node.module else above)
            yield from (f"{start}.{alias.name}" for alias in node.names)


def own_modules(module: str) -> set[str]:
    """Return those of our modules that a module imports: the longest name that is one."""
    found = set()
    for name in imports(module):
        parts = name.split(".")
        starts = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        found.add(next((start for start in starts if start in SOURCES), module))
    return found - {module}


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(module)))


# --- who may call whom ---------------------------------------------------------------------------------------------


def test_the_four_packages_are_there():
    assert set(PACKAGES) <= set(SOURCES)
    assert len(SOURCES) > 30


@each_module
def test_packages_import_only_what_they_may(module):
    if brings_together(module):
        return
    for name in imports(module):
        package = name.partition(".")[0]
        assert package not in PACKAGES or package in MAY_IMPORT[module.partition(".")[0]], f"{module} imports {name}"


@pytest.mark.thorough
@each_module
def test_nothing_imports_the_command_line(module):
    if not is_command_line(module):
        assert not any(map(is_command_line, own_modules(module)))


@each_module
def test_imports_lead_to_modules_that_are_there(module):
    for name in imports(module):
        if name.partition(".")[0] in PACKAGES:
            assert name in SOURCES or name.rpartition(".")[0] in SOURCES, f"{module} imports {name}"


def test_no_import_cycles():
    try:
        # The package itself names the functions of regraft.api for those who check types, and loads them when asked.
        TopologicalSorter({module: own_modules(module) for module in SOURCES if module != "regraft"}).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]), pytrace=False)


#: What works for every system, and is told by its caller which one it works on.
ENGINES = ("migrators.pipeline", "checks.audit", "repair.changes", "repair.embedding")
#: Systems by the name of their folders. The layouts of one application know each other; nobody else does.
FAMILIES = {
    **dict.fromkeys(("cherry_v1", "cherry_v2", "cherry_preview"), "cherry"),
    # AngelMemory keeps its vectors in folders of Chroma.
    **dict.fromkeys(("angel_memory", "chroma"), "chroma"),
    **dict.fromkeys(("codex_mem", "rsclaw", "parquet"), None),
}
#: The only modules that bring systems together, each for one package.
REGISTRIES = {"migrators.registry", "checks.systems", "repair.systems"}


def system_of(module: str) -> str | None:
    """Return the system whose folder a module lies in, None where it is of none."""
    return next((part for part in module.split(".")[1:] if part in FAMILIES), None)


#: What the engines do know: the layout that they write, and how the application shows that it is running.
WRITTEN = ("regraft.formats.cherry_v2", "regraft.formats.cherry_v1.profile")


@each_module
def test_an_engine_imports_no_system(module):
    if module.startswith(tuple(f"{engine}." for engine in ENGINES)):
        for name in own_modules(module):
            assert name.startswith(WRITTEN) or system_of(f"{name}.x") is None, f"{module} imports {name}"


@each_module
def test_systems_stand_side_by_side(module):
    own = system_of(module)
    if own is None or module.startswith("regraft."):
        return
    for name in own_modules(module):
        other = system_of(f"{name}.x")
        is_family = other == own or (FAMILIES[own] is not None and FAMILIES.get(other or "") == FAMILIES[own])
        assert name.startswith("regraft.") or other is None or is_family, f"{module} imports {name}"


def test_every_registry_is_there():
    assert set(SOURCES) >= REGISTRIES


#: Fewer arguments without names are understood at the place where they are given.
MOST_POSITIONAL = 3


@cache
def own_records() -> frozenset[str]:
    """Return the names of our data classes and structs."""
    return frozenset(
        node.name for module in SOURCES for node in nodes(module) if isinstance(node, ast.ClassDef) and is_record(node)
    )


def is_record(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(one) for one in node.decorator_list) or any(
        ast.unparse(one) == "msgspec.Struct" for one in node.bases
    )


@pytest.mark.thorough
@each_module
def test_a_record_is_made_by_the_names_of_its_fields(module):
    records = own_records()
    for node in nodes(module):
        if isinstance(node, ast.Call) and len(node.args) > MOST_POSITIONAL:
            name = written(node.func).rpartition(".")[2]
            assert name not in records, f"line {node.lineno}: {name} is made with {len(node.args)} arguments"


# --- what no module may do -------------------------------------------------------------------------------------------


@each_module
def test_a_module_is_named_after_what_it_is_about(module):
    assert {"utils", "util", "helpers", "misc", "common"}.isdisjoint(module.split("."))


@each_module
def test_no_pickle(module):
    forbidden = {"pickle", "cPickle", "shelve", "marshal", "dill", "cloudpickle"}
    assert forbidden.isdisjoint(name.partition(".")[0] for name in imports(module))


@each_module
def test_one_module_quotes_words_for_a_shell(module):
    """Those of shlex are for POSIX shells only. What completes for bash alone needs them."""
    if module not in ("regraft.text", "regraft.cli.options"):
        assert calls(module).isdisjoint({"shlex.join", "shlex.quote"})


@each_module
def test_no_time_of_a_file_is_converted_by_the_system(module):
    """Windows rejects times before 1970 and after the year 3000; ``regraft.identity.utc_datetime`` takes them."""
    assert calls(module).isdisjoint({"datetime.fromtimestamp", "datetime.utcfromtimestamp"})


@each_module
def test_paths_below_a_folder_become_text_with_slashes(module):
    """Such texts are stored and compared, and stores move between systems: ``as_posix()``, not ``str`` or a format."""
    for node in nodes(module):
        inner = node.value if isinstance(node, ast.FormattedValue) else None
        if isinstance(node, ast.Call) and written(node.func) == "str" and node.args:
            inner = node.args[0]
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "relative_to":
            assert written(inner.func).startswith("PurePosixPath("), f"{module}:{node.lineno}"


def opens_a_database(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and written(node.func) in ("apsw.Connection", "sqlite3.connect", "Connection")


@pytest.mark.thorough
@each_module
def test_only_two_modules_open_sqlite_files(module):
    if module.startswith(TEST_KIT):
        # It judges files of other programs, by another library as well, and not what regraft writes.
        return
    assert "sqlite3" not in {name.partition(".")[0] for name in imports(module)}
    if module not in ("regraft.disk.sqlite", "regraft.disk.lock_files"):
        assert not any(opens_a_database(node) for node in nodes(module))


#: Modules that write, and what with; all other modules go through them (:mod:`regraft.disk.writable`).
WRITERS = {
    "regraft.disk.durable": None,
    # Folders, open for nothing but to act in them.
    "regraft.disk.writable": {"os.open", "os.mkdir", "os.rename", "os.rmdir", "os.unlink", "os.link"},
    "regraft.disk.sqlite": {"apsw.Connection"},
    "regraft.disk.lock_files": {"apsw.Connection"},
    # Temporary folders are made, and those that were just made removed; a file without a name is no one else's.
    "regraft.disk.scratch": {
        "tempfile.gettempdir",
        "tempfile.mkdtemp",
        "tempfile.SpooledTemporaryFile",
        "shutil.rmtree",
    },
    # For reading, and no link.
    "regraft.disk.links": {"os.open"},
    # The file that leads a browser to the page: nobody else may read it, so it is made with its mode.
    "regraft.page.server": {"os.open", "os.fdopen", "webbrowser.open"},
    # The one library that takes a path; it is demanded first.
    "regraft.formats.chroma.core": {"chromadb.PersistentClient"},
    # For reading: a label map of any size.
    "regraft.formats.chroma.label_map": {"mmap.mmap"},
    # The command line of the user that prints the text of a document, without a shell.
    "repair.cherry_v2.sync.sources": {"subprocess.Popen", "subprocess.DEVNULL", "subprocess.PIPE"},
    # The installed application, when the user asks for it.
    "regraft.api.application": {"subprocess.Popen", "subprocess.DEVNULL"},
}
#: What damages libraries that it made itself, for other people's tests.
TEST_KIT = "regraft.testing"


@each_module
def test_no_other_module_writes_to_a_file_system(module):
    if module == TEST_KIT or module.startswith(f"{TEST_KIT}."):
        return
    allowed = WRITERS.get(module, set())
    found = [] if allowed is None else [one for one in writes(tree_of(module)) if one[1] not in allowed]
    assert not found, "\n".join(f"line {line}: {text}" for line, text in found)


@each_module
def test_only_one_module_lets_sqlite_open_another_file(module):
    if module != "regraft.disk.sqlite":
        texts = (node.value for node in nodes(module) if isinstance(node, ast.Constant))
        assert not [text for text in texts if isinstance(text, str) and OTHER_FILE.match(text)]


def test_the_rule_catches_what_writes_and_nothing_else():
    """The control: each of the first writes, by whatever name."""
    assert [text for text in WRITING if not writes(ast.parse(text))] == []
    assert [text for text in READING if writes(ast.parse(text))] == []


@cache
def calls(module: str) -> frozenset[str]:
    """Return what a module calls, as it is written there, and what it reaches of ``sys``."""
    called = {written(node.func) for node in nodes(module) if isinstance(node, ast.Call)}
    return frozenset(called | {written(node) for node in nodes(module) if isinstance(node, ast.Attribute)})


def written(node: ast.AST) -> str:
    """Return an expression as it is written; of a plain name with dots without the detour over all of the language."""
    parts: list[str] = []
    inner = node
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name):
        return ".".join([inner.id, *reversed(parts)])
    return ast.unparse(node)


@pytest.mark.thorough
@each_module
def test_one_module_prints(module):
    """All that is printed goes through one function, which shows names so that they cannot write on the terminal."""
    printing = {"print", "click.echo", "click.secho", "click.confirm", "click.prompt", "traceback.print_exception"}
    if module != "regraft.cli.output":
        assert printing.isdisjoint(calls(module))
        assert not {"sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer", "sys.stderr.buffer"} & calls(module)


@each_module
def test_one_module_reads_json_of_any_numbers(module):
    if module not in ("regraft.formats.json_text", "migrators.cherry_v1.file_matching"):
        assert {"json.loads", "json.load"}.isdisjoint(calls(module))


def undocumented(node: ast.Module | ast.ClassDef, name: str) -> Iterator[str]:
    """Yield what is public and has no docstring, but for errors, whose message says what they are."""
    has_message = any(isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "message" for one in node.body)
    if ast.get_docstring(node) is None and not has_message:
        yield name
    for inner in node.body:
        if isinstance(inner, ast.ClassDef) and not inner.name.startswith("_"):
            yield from undocumented(inner, f"{name}.{inner.name}")
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and not inner.name.startswith("_"):
            overload = any(ast.unparse(decorator).endswith("overload") for decorator in inner.decorator_list)
            if ast.get_docstring(inner) is None and not overload:
                yield f"{name}.{inner.name}"


@each_module
def test_what_is_public_says_what_it_does(module):
    assert list(undocumented(tree_of(module), module)) == []


# --- the installed command -------------------------------------------------------------------------------------------

SCRIPT = Path(sys.executable).with_name("regraft.exe" if os.name == "nt" else "regraft")


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    """Return a folder that holds packages of our names, each of which fails when it is imported."""
    for package in PACKAGES:
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").write_text(f'raise RuntimeError("the decoy {package} was imported")\n', "utf-8")
    return tmp_path


@pytest.mark.thorough
@pytest.mark.skipif(not SCRIPT.exists(), reason="no console script is installed next to the interpreter")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["inspect", str(SAMPLE)],
        # With processes of their own, which find the packages anew.
        ["migrate", str(SAMPLE), "--to", "library", "--jobs", "2", "--fail-on", "never"],
    ],
    ids=["version", "inspect", "migrate"],
)
def test_the_installed_command_is_not_fooled_by_decoys(arguments, decoys):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PYTHONIOENCODING"] = "utf-8"
    done = subprocess.run(
        [SCRIPT, *arguments], cwd=decoys, env=environment, capture_output=True, check=False, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "decoy" not in done.stderr


# --- the page ---------------------------------------------------------------------------------------------------------


def defined_names(path: Path) -> set[str]:
    """Return the names that a module defines or assigns, those of its classes' members too."""
    return set(
        re.findall(r"^[ ]*(?:class |(?:async )?def |)(\w+)(?:[(:]| *=|: )", path.read_text("utf-8"), re.MULTILINE)
    )


def test_every_name_on_the_page_is_there() -> None:
    """Paths, ``module.function``, ``Class.member`` and class names in back-quotes; SYSTEM stands for any system."""
    page = re.sub(r"```.*?```", "", (REPO / "docs" / "architecture.md").read_text("utf-8"), flags=re.DOTALL)
    spans = dict.fromkeys(re.findall(r"`([^`\n]+)`", page))
    modules = [path for top in (*PACKAGES, "tests") for path in (REPO / top).rglob("*.py")]
    names = {path: defined_names(path) for path in modules}
    places = {path.relative_to(REPO).as_posix() for path in modules}
    places |= {folder.as_posix() for path in modules for folder in path.relative_to(REPO).parents}

    def is_path(span: str) -> bool:
        wanted = span.rstrip("/")
        return (REPO / wanted).exists() or any(place == wanted or place.endswith(f"/{wanted}") for place in places)

    def is_member(span: str) -> bool:
        owner, member = span.split(".")[-2:]
        owners = [path for path in modules if owner in (path.stem, path.parent.name) or owner in names[path]]
        return any(member in names[path] for path in owners) or any(path.stem == member for path in owners)

    unknown = []
    for span in spans:
        if "SYSTEM" in span or span in ("raw/", "README.zh.md", "catalog.sqlite"):
            continue
        if re.fullmatch(r"[\w./-]+(\.py|/)", span):
            found = is_path(span)
        elif re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", span):
            found = is_member(span)
        elif re.fullmatch(r"[A-Z][a-z]\w+", span):
            found = any(span in defined for defined in names.values())
        else:
            continue
        if not found:
            unknown.append(span)
    assert unknown == []
