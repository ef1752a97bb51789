"""The functions for programs: each returns the document of its command, prints nothing, and raises by class."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import angel_store
import codex_mem_store
import pytest
from extras import needs
from harness import REPO, run

import regraft
from regraft import api
from regraft.errors import BaseUnknown, Declined, ModelOptionInvalid, RunUnknown, SourceNotFound
from regraft.options import OPTIONS, GcOptions
from regraft.report.progress import SilentProgress

SAMPLE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"
NOW_MS = 1_769_860_800_000
#: Differ from run to run.
_TIMES = ("run",)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api") / "library"
    regraft.migrate(SAMPLE, folder, now_ms=NOW_MS)
    return folder


def document(report: Any) -> dict[str, Any]:
    found = json.loads(json.dumps(regraft.encoded(report)))
    return {key: value for key, value in found.items() if key not in _TIMES}


def printed(*words: object) -> dict[str, Any]:
    found = json.loads(run(*words, "--json").stdout)
    return {key: value for key, value in found.items() if key not in _TIMES}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (regraft.inspect, ("inspect",)),
        (regraft.check, ("check",)),
        (
            lambda path: regraft.check(path, level="quick", bases=["Boat workshop"]),
            ("check", "--quick", "--base", "Boat workshop"),
        ),
        (lambda path: regraft.check(path, only=["base.failed"]), ("check", "--only", "base.failed")),
        (lambda path: regraft.search(path, "tomato"), ("search", "tomato")),
        (
            lambda path: regraft.search(path, "tomato", base="Boat workshop", count=3),
            ("search", "tomato", "--base", "Boat workshop", "-k", 3),
        ),
        (lambda path: regraft.repair(path, dry_run=True), ("repair", "--dry-run")),
        (lambda path: regraft.gc(path, dry_run=True, vacuum=True), ("gc", "--dry-run", "--vacuum")),
        (lambda path: regraft.reconcile(path, dry_run=True), ("reconcile", "--dry-run")),
        (lambda path: regraft.upgrade(path, dry_run=True), ("upgrade", "--dry-run")),
        (lambda path: regraft.fix(path, dry_run=True), ("fix", "--dry-run")),
        (regraft.history, ("history",)),
    ],
)
def test_a_function_returns_what_its_command_prints(
    library: Path, capfd: pytest.CaptureFixture[str], call: Callable[[Path], Any], words: tuple[object, ...]
) -> None:
    told = document(call(library))
    assert tuple(capfd.readouterr()) == ("", "")
    name, *options = words
    given = options if name != "search" else options[1:]
    path = (library, options[0]) if name == "search" else (library,)
    assert told == printed(name, *path, *given)


@pytest.mark.thorough
def test_v1_data_are_checked_and_compared(library: Path) -> None:
    assert document(regraft.check(SAMPLE)) == printed("check", SAMPLE)
    assert document(regraft.compare(SAMPLE, library)) == printed("compare", SAMPLE, library)


@pytest.mark.thorough
def test_a_migration_is_what_the_command_makes(library: Path, tmp_path: Path) -> None:
    other = tmp_path / "library"
    told = regraft.migrate(SAMPLE, other, now_ms=NOW_MS)
    assert told.totals.rows.carried == 76
    run("migrate", SAMPLE, "--to", tmp_path / "printed", "--now", "2026-01-31T12:00:00Z", "--yes", "-q")
    for place in ("catalog.sqlite", "KnowledgeBase"):
        first, second = (sorted((folder / place).rglob("*.md")) for folder in (other, tmp_path / "printed"))
        assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_plan_can_be_declined(tmp_path: Path) -> None:
    seen = []

    def confirm(planned: object) -> bool:
        seen.append(planned)
        return False

    with pytest.raises(Declined):
        regraft.migrate(SAMPLE, tmp_path / "library", confirm=confirm)
    assert (len(seen), list(tmp_path.iterdir())) == (1, [])


@needs("parquet")
def test_units_go_to_a_file_and_come_back(library: Path, tmp_path: Path) -> None:
    exported = regraft.export(library, tmp_path / "units.parquet", bases=["Boat workshop"])
    assert [base.rows.carried for base in exported.bases] == [22]
    imported = regraft.import_([tmp_path / "units.parquet"], tmp_path / "again", now_ms=NOW_MS)
    assert [base.outcome for base in imported.bases] == ["written"]


@pytest.mark.thorough
def test_a_change_is_made_and_taken_back(library: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(library, copy)
    base = next(one for one in (copy / "KnowledgeBase").iterdir() if (one / ".cherry" / "index.sqlite").exists())
    stray = base / "raw" / "stray.txt"
    stray.parent.mkdir(exist_ok=True)
    stray.write_text("of nothing")

    os.utime(stray, (1_600_000_000, 1_600_000_000))
    kept = regraft.gc(copy)
    assert (kept.actions, kept.left[0].finding, stray.exists()) == ([], "raw.orphan", True)
    done = regraft.gc(copy, only=["raw.orphan"])
    assert (len(done.actions), stray.exists()) == (1, False)
    last = regraft.history(copy).runs[0]
    assert last.command == "gc"
    assert regraft.undo(copy, last.id.rpartition("-")[2]).undone == last.id
    assert stray.read_text("utf-8") == "of nothing"
    with pytest.raises(RunUnknown, match="cannot be undone"):
        regraft.undo(copy, last.id)
    with pytest.raises(RunUnknown, match="there is no run 1999"):
        regraft.undo(copy, "1999")


def test_a_pack_is_written(library: Path, tmp_path: Path) -> None:
    packed = regraft.pack(library, tmp_path / "boats.zip", bases=["Boat workshop"], now_ms=NOW_MS)
    assert (tmp_path / "boats.zip").exists()
    assert document(packed)["target"]["path"] == str(tmp_path / "boats.zip")
    assert [base.name for base in regraft.inspect(tmp_path / "boats.zip").bases] == ["Boat workshop"]


def test_errors_are_classes(library: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound):
        regraft.inspect(tmp_path / "nowhere")
    with pytest.raises(BaseUnknown):
        regraft.check(library, bases=["nobody"])
    with pytest.raises(ModelOptionInvalid):
        regraft.migrate(SAMPLE, tmp_path / "x", map_model={"a": "no model"})
    with pytest.raises(ValueError, match="no-such"):
        regraft.inspect(library, kind="no-such")
    assert list(tmp_path.iterdir()) == []


def test_progress_is_told(library: Path) -> None:
    class Heard(SilentProgress):
        stages: list[str]

        def start(self, what: str, rows: int, unit: str = "rows") -> None:
            self.stages.append(what)

    heard = Heard()
    heard.stages = []
    regraft.check(library, progress=heard)
    assert heard.stages == ["Checking"]


@pytest.mark.parametrize("page", ["README.md", "docs/api.md"])
def test_the_examples_run(page: str, tmp_path: Path) -> None:
    """They run as one program, in a folder that has the backup that they name."""
    examples = re.findall(r"^```python\n(.*?)^```", (REPO / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert examples
    shutil.copy(SAMPLE, tmp_path)
    done = subprocess.run(
        [sys.executable, "-P", "-X", "utf8", "-c", "\n".join(examples)],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "76 of 76" in done.stdout


def test_it_works_in_a_thread(library: Path) -> None:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(regraft.repair(library, dry_run=True)))
    thread.start()
    thread.join()
    assert len(found) == 1


def test_every_function_takes_its_options_by_name_and_is_described() -> None:
    for name in api.__all__:
        function = getattr(regraft, name)
        assert (function.__doc__ or "").strip(), name
        if name == "encoded":
            continue
        parameters = inspect.signature(function).parameters
        for parameter in list(parameters.values())[3:]:
            assert parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD), parameter
        command = name.removesuffix("_collection").rstrip("_").replace("_", "-")
        struct = OPTIONS[command.replace("list-embedders", "embedders")]
        assert parameters["options"].annotation == f"{struct.__name__} | None", name


@pytest.mark.thorough
def test_the_package_lists_the_functions_and_loads_none_before() -> None:
    assert set(api.__all__) == set(regraft._FUNCTIONS)
    assert set(api.__all__) <= set(dir(regraft))
    with pytest.raises(AttributeError, match="no attribute 'migrat'"):
        _ = regraft.migrat
    code = "import regraft, sys; print(any(name.startswith(('click', 'migrators', 'apsw')) for name in sys.modules))"
    assert subprocess.check_output([sys.executable, "-P", "-c", code], text=True) == "False\n"
    code = "import regraft, sys; regraft.check; print('click' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-P", "-c", code], text=True) == "False\n"


def test_lines_of_a_note_are_read(tmp_path: Path) -> None:
    store = angel_store.build(tmp_path / "data", {"a.txt": "one\ntwo\nthree\n"})
    found = regraft.recall(store.root, 0, first=2)
    assert (found.content, found.actual_start_line, found.total_lines) == ("two\nthree", 2, 3)
    assert document(found) == printed("recall", store.root, 0, "--lines", "2:")
    with pytest.raises(ValueError, match="first line 3 is after last line 2"):
        regraft.recall(store.root, 0, first=3, last=2)


def test_failed_notes_are_tried_again(tmp_path: Path) -> None:
    path = codex_mem_store.write(tmp_path)
    codex_mem_store.embed(path, [codex_mem_store.note_id(1, 0)])
    codex_mem_store.mark_failed(path, codex_mem_store.note_id(0, 0))
    report = regraft.clear_failed(path)
    assert [(action.action, action.count) for action in report.actions] == [("clear-failed", 1)]
    assert regraft.clear_failed(path).actions == []


@pytest.mark.thorough
def test_what_would_be_embedded_is_planned_without_an_embedder(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    planned = regraft.restore(library, base="Boat workshop", model="acme::new", dimensions=8, dry_run=True)
    assert planned.scopes[0].planned.texts == 22
    words = ("--base", "Boat workshop", "--model", "acme::new", "--dimensions", 8, "--dry-run")
    again = printed("restore", library, *words)
    assert again["scopes"] == document(planned)["scopes"]
    path = codex_mem_store.write(tmp_path)
    assert document(regraft.rebuild(path, dry_run=True))["scopes"] == printed("rebuild", path, "--dry-run")["scopes"]


def test_options_are_a_struct_or_keywords(library: Path) -> None:
    planned = regraft.gc(library, GcOptions(dry_run=True, only=("raw.orphan",)), vacuum=True)
    assert document(planned) == document(regraft.gc(library, dry_run=True, only=["raw.orphan"], vacuum=True))
    with pytest.raises(TypeError, match="GcOptions has no field 'vacum'"):
        regraft.gc(library, vacum=True)
    with pytest.raises(ValueError, match="grace"):
        regraft.gc(library, grace=-1)


def test_nan_is_no_number_for_any_option(library: Path) -> None:
    for call, name in ((regraft.gc, "grace"), (partial(regraft.search, query="boat"), "alpha")):
        with pytest.raises(ValueError, match=f"Expected a number, got nan - at `\\$.{name}`"):
            call(library, **{name: float("nan")})
