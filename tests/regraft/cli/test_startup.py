"""What a command loads before it answers: the adapters of one system, and no library that it has no use for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[3] / "sample_v1" / "backup"

#: Runs a command and prints the names of all modules that it has loaded, after what it says itself.
_RUN = """
import json, sys
from regraft.__main__ import main
sys.argv[1:] = json.loads(sys.argv[1])
try:
    main()
except SystemExit as end:
    print(json.dumps([end.code, sorted(sys.modules)]))
"""
SYSTEMS = ("angel_memory", "cherry_preview", "cherry_v1", "cherry_v2", "codex_mem", "rsclaw")
#: Parts of the systems that nobody needs who looks at v1 data.
OTHERS = {f"checks.{system}" for system in SYSTEMS if not system.startswith("cherry_v")}
#: What takes its time to load: it draws bars, computes, reads settings, speaks with servers.
LIBRARIES = {"tqdm", "numpy", "yaml", "sqlite_vec", "pyarrow", "jinja2", "urllib.request", "multiprocessing"}


def loaded_by(*arguments: str) -> set[str]:
    """Run a command in a process of its own and return the modules that it has loaded at its end."""
    command = [sys.executable, "-P", "-c", _RUN, json.dumps(arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True)
    status, modules = json.loads(ran.stdout.splitlines()[-1])
    assert not status, ran.stderr
    return set(modules)


def parts_of(package: str, modules: set[str]) -> set[str]:
    """Return the modules of a package that are among ``modules``."""
    return {name for name in modules if name == package or name.startswith(f"{package}.")}


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [("--version",), ("--help",)])
def test_a_command_line_without_a_command_loads_none(arguments):
    modules = loaded_by(*arguments)
    assert "regraft.cli" in modules
    for package in ("apsw", "msgspec", "migrators", "checks", "repair", "regraft.api", "regraft.formats"):
        assert not parts_of(package, modules), package


def test_what_is_loaded_at_the_beginning_is_not_looked_at_again():
    """Garbage is collected while a command runs, but not among what was loaded for it, nor at its end."""
    code = """
import gc
from regraft import cli
from regraft.__main__ import main
cli.main = lambda: print(gc.isenabled(), gc.get_freeze_count() > 1_000)
main()
print(gc.get_count()[0] < 10)
"""
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, encoding="utf-8", check=True
    )
    assert ran.stdout.split() == ["True"] * 3


@pytest.mark.thorough
def test_a_look_at_v1_data_loads_its_adapter_alone():
    modules = loaded_by("inspect", str(SAMPLE))
    assert "checks.cherry_v1.inspect" in modules
    assert "checks.cherry_v2.audit" not in modules
    for package in (*OTHERS, *LIBRARIES, "migrators", "repair", "regraft.ranking"):
        assert not parts_of(package, modules), package


@pytest.mark.thorough
def test_a_check_loads_planners_only_for_findings_and_no_numpy(tmp_path):
    library = tmp_path / "library"
    loaded_by("migrate", str(SAMPLE), "--to", str(library), "--base", "Harbour museum")
    with_findings = loaded_by("check", str(library))
    assert "repair.fix.recommendations" in with_findings
    # The catalog has the items that have no text.
    (library / "catalog.sqlite").unlink()
    without = loaded_by("check", str(next(library.glob("KnowledgeBase/*/.cherry/index.sqlite"))))
    assert not parts_of("repair", without)
    assert not parts_of("numpy", with_findings | without)


@pytest.mark.thorough
def test_names_of_findings_are_known_without_what_finds_them():
    modules = loaded_by("explain", "item.tombstone", "kb.row", "angel.record-missing", "codex.vector", "v1.model")
    assert "checks.rsclaw.findings" in modules
    assert not {f"checks.{system}.{part}" for system in SYSTEMS for part in ("adapter", "audit", "inspect")} & modules
