"""Add another system to a copy of the installed packages: its own modules, and one line in ``regraft/kinds.py``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from regraft import kinds

NOW = "2026-11-21T12:00:00.000Z"
#: The one line of an existing file that changes.
AFTER, LINE = '    RSCLAW = "rsclaw"', '    JOTTER = "jotter", tr("a folder of jotter"), "jotter"\n'

SYSTEM = '''
"""jotter: a folder with ``jotter.json``, which lists the notes in ``notes``."""

from collections.abc import Iterator
from pathlib import Path

from regraft.kinds import Kind
from regraft.stores.systems import Located, System


class Jotter(System):
    kind = Kind.JOTTER
    commands = frozenset({"fix", "gc", "history", "undo"})

    def store_at(self, path: Path) -> Path | None:
        return path if (path / "jotter.json").is_file() else None

    def databases(self, found: Located) -> Iterator[str]:
        yield from ()

    def files(self, found: Located) -> Iterator[str]:
        yield from ("jotter.json", "notes")


SYSTEM = Jotter()
'''
FINDINGS = '''
"""Findings of jotter."""

from checks.audit.findings import register

STRAY = register("warning", "jotter.stray", "A note that `jotter.json` does not list.", "`regraft gc`", "gc")
'''
INSPECT = '''
"""Inspect and audit folders of jotter."""

import json
from pathlib import Path

from checks.audit.collector import CheckOptions, CommandLine, FindingCollector, add_commands
from checks.audit.findings import Audit
from checks.jotter.findings import STRAY
from checks.inspect import HealthSummary, InspectOptions, StoreSummary
from checks.systems import Checks
from regraft.stores.systems import Located


def stray_notes(root: Path) -> list[Path]:
    """Return the notes that ``jotter.json`` does not list."""
    listed = set(json.loads((root / "jotter.json").read_text("utf-8"))["notes"])
    return sorted(path for path in (root / "notes").iterdir() if path.name not in listed)


def inspect_store(found: Located, options: InspectOptions) -> StoreSummary:
    size = sum(path.stat().st_size for path in (found.path / "notes").iterdir())
    orphans = len(stray_notes(found.path))
    return StoreSummary([], HealthSummary(bytes=size, problems=[], orphans=orphans))


def audit(found: Located, options: CheckOptions, command_line: CommandLine | None = None) -> Audit:
    collector = FindingCollector(options.level, options.max_duration, now_ms=options.now_ms)
    for path in stray_notes(found.path):
        collector.add(STRAY, "{n} not listed in jotter.json", noun="file", sample=path.name)
    audited = Audit(
        findings=collector.to_findings(),
        checked={"files": len(list((found.path / "notes").iterdir()))},
        names={},
        closing=collector.closing("texts", "hashes"),
        level=collector.level.name.lower(),
    )
    return audited if command_line is None else add_commands(audited, command_line)


CHECKS = Checks(inspect=inspect_store, audit=audit)
'''
REPAIR = '''
"""Plan changes of folders of jotter."""

from checks.jotter.findings import STRAY
from checks.jotter.inspect import stray_notes
from repair.changes import undo
from repair.changes.plan import Plan, move_to_trash
from repair.changes.store import Store
from repair.changes.options import GcOptions
from repair.systems import Repairs


def plan_gc(store: Store, options: GcOptions) -> Plan:
    made = Plan()
    for path in stray_notes(store.root) if options.wants(STRAY) else ():
        message = f"move {path.name}, which jotter.json does not list, to the trash"
        made.changes.append(move_to_trash(store, path, "trash-file", STRAY, message, as_is=True))
    if made.changes:
        made.resolves.add((STRAY, None))
    return undo.add_expired_runs(made, store, options)


REPAIRS = Repairs(gc=plan_gc, collected=(STRAY,))
'''


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the installed packages and add jotter to the copy."""
    installed = Path(kinds.__file__).resolve().parents[1]
    copy = tmp_path_factory.mktemp("packages")
    for name in ("regraft", "checks", "repair", "migrators"):
        shutil.copytree(installed / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for place, text in (
        ("regraft/formats/jotter/system.py", SYSTEM),
        ("checks/jotter/findings.py", FINDINGS),
        ("checks/jotter/inspect.py", INSPECT),
        ("repair/jotter/__init__.py", REPAIR),
    ):
        (copy / place).parent.mkdir(exist_ok=True)
        (copy / place).with_name("__init__.py").touch()
        (copy / place).write_text(text.lstrip(), "utf-8")
    registry = copy / "regraft" / "kinds.py"
    before, line, after = registry.read_text("utf-8").partition(AFTER)
    assert line, "the list of kinds looks different"
    registry.write_text(before + LINE + line + after, "utf-8")
    return copy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a folder of jotter with a listed and a stray note."""
    made = tmp_path / "jotter"
    (made / "notes").mkdir(parents=True)
    (made / "jotter.json").write_text(json.dumps({"notes": ["kept.txt"]}), "utf-8")
    (made / "notes" / "kept.txt").write_text("kept", "utf-8")
    (made / "notes" / "stray.txt").write_text("stray", "utf-8")
    return made


def run(packages: Path, cwd: Path, *arguments: object) -> tuple[int, str]:
    """Run regraft from the copied packages; return the exit status and standard output."""
    script = f"import sys; sys.path.insert(0, {str(packages)!r}); from regraft.__main__ import main; main()"
    command = [sys.executable, "-P", "-c", script, *map(str, arguments)]
    # Compiled once for all commands, beside the copy.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(packages.with_name("compiled"))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout


def document(packages: Path, folder: Path, command: str, *more: str) -> dict[str, Any]:
    arguments = (command, folder, "--now", NOW, "--json", *more)
    return json.loads(run(packages, folder.parent, *arguments)[1])


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "notes").iterdir())


def test_only_one_line_of_an_existing_file_changes(packages: Path) -> None:
    installed = Path(kinds.__file__).resolve().parents[1]
    changed = [
        path.relative_to(packages).as_posix()
        for path in packages.rglob("*.py")
        if "jotter" not in path.parts and path.read_bytes() != (installed / path.relative_to(packages)).read_bytes()
    ]
    assert changed == ["regraft/kinds.py"]


@pytest.mark.thorough
def test_it_is_recognized_and_inspected(packages: Path, folder: Path) -> None:
    found = document(packages, folder, "inspect")
    assert found["source"]["kind"] == "jotter"
    assert found["health"]["orphans"] == 1
    assert document(packages, folder, "inspect", "--kind", "jotter")["source"]["kind"] == "jotter"


@pytest.mark.thorough
def test_it_is_checked_and_its_finding_is_explained(packages: Path, folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found = document(packages, folder, "check")
    (finding,) = found["findings"]
    assert (finding["name"], finding["count"], finding["severity"]) == ("jotter.stray", 1, "warning")
    assert finding["repair"].startswith("regraft gc ")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert "jotter.json" in run(packages, folder.parent, "explain", "jotter.stray")[1]


@pytest.mark.thorough
def test_it_is_changed_and_the_change_is_undone(packages: Path, folder: Path) -> None:
    planned = document(packages, folder, "gc", "--dry-run")
    assert [one["finding"] for one in planned["actions"]] == ["jotter.stray"]
    assert names_in(folder) == ["kept.txt", "stray.txt"]

    document(packages, folder, "gc", "--yes")
    assert names_in(folder) == ["kept.txt"]
    assert document(packages, folder, "check")["findings"] == []

    assert run(packages, folder.parent, "undo", folder, "--yes")[0] == 0
    assert names_in(folder) == ["kept.txt", "stray.txt"]
    assert (folder / "notes" / "stray.txt").read_text("utf-8") == "stray"
