"""No code of the working directory or of a store runs, whatever processes a command starts.

Modules are planted there under the name of everything that Python or regraft could import. All commands are run as a
user runs them: the installed script, or a program of somebody else's that uses :mod:`regraft.api`.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import angel_store
import pytest
from extras import needs
from fault_server import FaultServer, Reply, Request, answer
from harness import NOW, NOW_MS, REPO
from lacking import configured, library, taken_away
from planted_modules import plant, run_in

from regraft.processes import interpreters, startup

SCRIPT = Path(sys.executable).with_name("regraft.exe" if os.name == "nt" else "regraft")
SAMPLE = REPO / "sample_v1" / "backup"


pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="regraft is not installed as a script beside this Python")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a folder of planted modules in which a backup and a library lie that have them, too; and the mark."""
    place = tmp_path_factory.mktemp("prepared")
    mark, folder = place / "mark", place / "here"
    plant(folder, mark)
    shutil.copytree(SAMPLE, folder / "backup")
    plant(folder / "backup", mark)
    library(place)
    shutil.move(place / "library", folder / "library")
    taken_away(folder / "library")
    plant(folder / "library", mark)
    return folder, mark


def copy_or_link(source: str, target: str) -> None:
    """Copy a file; a planted module, which nothing changes, is linked where that works."""
    if source.endswith(".py"):
        with suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)


@pytest.fixture
def here(prepared: tuple[Path, Path], tmp_path: Path) -> Iterator[Path]:
    """Return a folder to stand in; at the end nothing that was planted there has run."""
    folder, mark = prepared
    shutil.copytree(folder, tmp_path / "here", copy_function=copy_or_link)
    yield tmp_path / "here"
    ran = mark.read_text("utf-8") if mark.exists() else ""
    mark.unlink(missing_ok=True)
    assert ran == ""


def regraft(here: Path, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    return run_in(here, SCRIPT, *arguments, **more)


def bases_done(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return how each base of a migration ended."""
    assert done.returncode in (0, 1), done.stderr
    return [base["outcome"] for base in json.loads(done.stdout)["bases"]]


@pytest.mark.thorough
def test_what_is_planted_runs_in_a_plain_process_of_multiprocessing(prepared: tuple[Path, Path]) -> None:
    """The trap is set: without a safe path, it snaps."""
    folder, mark = prepared
    code = f"import multiprocessing, os; os.chdir({str(folder)!r})\n"
    code += "multiprocessing.get_context('spawn').Process(target=print).start()"
    run_in(folder.parent, sys.executable, "-c", code)
    assert "multiprocessing" in mark.read_text("utf-8")
    mark.unlink()


# --- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_migrating_several_bases_at_once(here: Path) -> None:
    done = regraft(here, "migrate", "backup", "--to", "out", "--jobs", 2, "--yes", "--json", "--now", NOW)
    assert bases_done(done).count("written") > 1


@pytest.mark.thorough
def test_migrating_a_source_with_a_large_file(here: Path) -> None:
    with (here / "backup" / "Data" / "KnowledgeBase" / "large").open("wb") as file:
        file.truncate(startup.LARGE_FILE_BYTES)
    done = regraft(here, "migrate", "backup", "--to", "out", "--jobs", 1, "--yes", "--json", "--now", NOW)
    assert bases_done(done).count("written") > 1


@pytest.mark.thorough
def test_filling_a_library(here: Path) -> None:
    with FaultServer() as server:
        configured(here / "regraft.yaml", server)
        done = regraft(here, "backfill", "library", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert server.texts


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "library"),
        ("check", "library", "--deep"),
        ("check", "backup"),
        ("explain", "kb.row"),
        ("search", "library", "keeper"),
        ("export", "library", "units.parquet"),
        ("pack", "library", "library.cherry", "--yes"),
        ("gc", "library", "--yes"),
        ("fix", "library", "--dry-run"),
        ("upgrade", "library", "--dry-run"),
        ("repair", "library", "--yes"),
        ("compare", "backup", "library"),
        ("history", "library"),
        ("embedders",),
        (),
        ("--help",),
    ],
    ids=" ".join,
)
def test_every_other_command(here: Path, arguments: tuple[str, ...]) -> None:
    done = regraft(here, *arguments)
    assert done.returncode in (0, 1, 2), done.stderr
    assert "Traceback" not in done.stderr


def rows_of(here: Path, *arguments: object) -> list[dict[str, object]]:
    """Run a fleet and return its results, one for each library."""
    import pyarrow.parquet

    done = regraft(here, "fleet", *arguments, "--results", "results.parquet", "-q")
    assert done.returncode in (0, 1), done.stderr
    rows = pyarrow.parquet.read_table(here / "results.parquet").to_pylist()
    return [row for row in rows if row["base"] is None]


@pytest.mark.thorough
@needs("parquet")
def test_a_fleet_of_this_machine(here: Path) -> None:
    shutil.copytree(here / "backup", here / "backups" / "one")
    shutil.copytree(here / "backup", here / "backups" / "two")
    rows = rows_of(here, "migrate", "backups", "--to", "out", "--workers", 2)
    assert [row["outcome"] for row in rows] == ["worth-reading"] * 2


@pytest.mark.thorough
@needs("parquet")
def test_filling_a_fleet(here: Path) -> None:
    with FaultServer() as server:
        configured(here / "regraft.yaml", server)
        rows = rows_of(here, "backfill", "librar*", "--yes", "--workers", 2)
    assert [row["outcome"] for row in rows] == ["done"]
    assert server.texts


@pytest.mark.slow
@needs("ray")
def test_a_fleet_on_a_cluster(here: Path) -> None:
    shutil.copytree(here / "backup", here / "backups" / "one")
    shutil.copytree(here / "backup", here / "backups" / "two")
    rows = rows_of(here, "migrate", "backups", "--to", "out", "--workers", 2, "--engine", "ray")
    assert [row["outcome"] for row in rows] == ["worth-reading"] * 2


def as_the_store(request: Request) -> Reply:
    return answer(
        request, [struct.pack(f"<{angel_store.DIMENSION}f", *angel_store.embed(one)) for one in request.texts]
    )


@pytest.mark.thorough
@needs("chroma")
def test_chromadb(here: Path) -> None:
    """It has a process of its own, and reads no settings that lie about."""
    store = angel_store.build(here / "data", real=True)
    store.drop_vectors(next(iter(store.texts())))
    plant(here / "data", here.parent / "unused")
    (here / ".env").write_text("CHROMA_SERVER_HTTP_PORT=not a number\nCHROMA_API_IMPL=os.system\n")
    with FaultServer() as server:
        server.behave = as_the_store
        configured(here / "regraft.yaml", server)
        done = regraft(here, "reconcile", "data", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert {one["action"]: one["count"] for one in json.loads(done.stdout)["actions"]} == {"add-vectors": 1}


# --- how an interpreter is started -----------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.skipif(os.name == "nt", reason="there is no other coding of names")
def test_a_command_that_begins_again_in_another_coding(here: Path) -> None:
    """Python has UTF-8 by itself in the locales C and POSIX, unless it is told not to."""
    told = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    arguments = ("migrate", "backup", "--to", "out", "--jobs", "2", "--yes", "--json", "--now", NOW)
    done = regraft(here, *arguments, **told)
    assert bases_done(done).count("written") > 1
    code = "import sys; print(sys.getfilesystemencoding())"
    assert run_in(here, sys.executable, "-P", "-c", code, **told).stdout.strip() != "utf-8"


@pytest.mark.thorough
def test_a_module_run_with_a_safe_path(here: Path) -> None:
    arguments = ("-P", "-m", "regraft", "migrate", "backup", "--to", "out", "--jobs", 2, "--yes", "--json")
    assert bases_done(run_in(here, sys.executable, *arguments)).count("written") > 1


#: A program of somebody else's; it has all that it imports itself before it stands where others have planted modules.
PROGRAM = """
import json, os, sys
import regraft, regraft.api
from regraft.processes import pool
from migrators.pipeline import workers as _
{before}
def main():
    report = regraft.migrate("backup", "out", jobs=2, now_ms={now})
    print(json.dumps([base.outcome for base in report.bases]))
if __name__ == "__main__":
    main()
"""
#: What puts the working directory on the import path of what a program starts.
TRAPS = {
    "nothing": "",
    "an empty entry": "sys.path.append('')",
    "a relative entry": "sys.path.append('.')",
    "PYTHONPATH with an empty entry": "os.environ['PYTHONPATH'] = os.pathsep + os.path.dirname(regraft.__file__)",
    "PYTHONPATH with a relative entry": "os.environ['PYTHONPATH'] = '.'",
}


#: Where Python leaves out the variables of the environment, an empty entry is the trap that is left.
TRAPS_BY_FLAGS = [
    *(pytest.param(trap, (), id=trap) for trap in TRAPS),
    *(
        pytest.param(trap, (flag,), id=f"{trap}{flag}", marks=() if trap == "an empty entry" else pytest.mark.slow)
        for flag in ("-E", "-I")
        for trap in TRAPS
    ),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("trap", "flags"), TRAPS_BY_FLAGS)
def test_a_program_that_uses_the_api(here: Path, tmp_path: Path, trap: str, flags: tuple[str, ...]) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(before=TRAPS[trap], now=NOW_MS), "utf-8")
    done = run_in(here, sys.executable, *flags, program)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).count("written") > 1


@pytest.mark.thorough
def test_a_program_without_a_guard_runs_once(here: Path, tmp_path: Path) -> None:
    """Other programs of multiprocessing run their first module in each process once more."""
    program = tmp_path / "program.py"
    program.write_text(
        PROGRAM.format(before="print('begun')", now=NOW_MS).replace("if __name__", "if True or __name__"), "utf-8"
    )
    done = run_in(here, sys.executable, program)
    assert done.returncode == 0, done.stderr
    begun, outcomes = done.stdout.splitlines()
    assert (begun, json.loads(outcomes).count("written") > 1) == ("begun", True)


#: What a pool is asked for: how its process looks for modules, and what it tells those that it starts.
STATE = "[__import__('sys').flags.safe_path, __import__('sys').path, dict(__import__('os').environ)]"
CREW = """
import json, os, sys
from regraft.processes import pool
pool.usable_cores = lambda: 2
os.environ["PYTHONPATH"] = os.pathsep.join([".", "", os.path.dirname(__file__)])
sys.path[:0] = ["", "."]
with pool.open_pool() as helpers:
    found = helpers.take(helpers.put(eval, {state!r}))
print(json.dumps([found, os.environ["PYTHONPATH"], os.environ.get("PYTHONSAFEPATH"), sys.path[:2]]))
"""


@pytest.mark.thorough
def test_what_a_worker_starts_is_safe_and_the_program_keeps_its_own_settings(here: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(CREW.format(state=STATE), "utf-8")
    done = run_in(here, sys.executable, program)
    assert done.returncode == 0, done.stderr
    (is_safe, path, variables), *kept = json.loads(done.stdout)
    assert is_safe
    assert not {"", ".", str(here)} & set(path)
    assert str(tmp_path) in path
    assert (variables["PYTHONSAFEPATH"], variables["PYTHONPATH"]) == ("1", str(tmp_path))
    assert kept == [os.pathsep.join([".", "", str(tmp_path)]), None, ["", "."]]


#: Two threads start a process each at the same time: one for regraft, one of the program's own.
THREADS = """
import json, multiprocessing, os, sys, threading
from regraft.processes import pool
OWN = "the program's own"
def own(pipe):
    pipe.send([sys.flags.safe_path, OWN, sys.modules["__mp_main__"].__name__])
def start(done):
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=own, args=(there,))
    process.start()
    print(json.dumps(here.recv()))
    process.join()
if __name__ == "__main__":
    with pool._safe_interpreters():
        thread = threading.Thread(target=start, args=(None,))
        thread.start()
        thread.join()
"""


@pytest.mark.thorough
def test_what_other_threads_of_a_program_start_begins_as_ever(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(THREADS, "utf-8")
    done = run_in(tmp_path, sys.executable, program)
    assert json.loads(done.stdout) == [False, "the program's own", "__mp_main__"], done.stderr


#: A program that was packed together with its interpreter is told by its arguments what it is. Of options of Python's
#: it knows those before ``-c``, as the resource tracker is started.
FROZEN = """#!/bin/sh
for word do
    case "$word" in
    -c) exec {python} -P "$@" ;;
    -P|-X) echo "$@" > {refused} ; exit 9 ;;
    esac
done
exec {python} {program} "$@"
"""
FROZEN_PROGRAM = """
import sys
sys.frozen, sys.executable = True, {frozen!r}
import multiprocessing.spawn
multiprocessing.spawn.set_executable({frozen!r})
from regraft.__main__ import main
main()
"""


@pytest.mark.thorough
@pytest.mark.skipif(os.name == "nt", reason="what stands for such a program is a script of a shell")
def test_a_frozen_program(here: Path, tmp_path: Path) -> None:
    frozen, program, refused = tmp_path / "frozen", tmp_path / "program.py", tmp_path / "refused"
    frozen.write_text(FROZEN.format(python=sys.executable, program=program, refused=refused), "utf-8")
    frozen.chmod(0o755)
    program.write_text(FROZEN_PROGRAM.format(frozen=str(frozen)), "utf-8")
    done = run_in(here, frozen, "migrate", "backup", "--to", "out", "--jobs", 2, "--yes", "--json", "--now", NOW)
    assert not refused.exists(), refused.read_text("utf-8")
    assert bases_done(done).count("written") > 1


#: Notes each program that is started by its bare name: a path cannot be mistaken. Python itself asks ``uname`` for the
#: name of the processor, which Windows has no such program for.
AUDITED = """
import os, sys
started = []
def note(event, given):
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.startfile"):
        if given[0] != "uname" and not os.path.isabs(str(given[0])):
            started.append((event, given[:2]))
sys.addaudithook(note)
from regraft.__main__ import main
try:
    main()
finally:
    sys.stderr.write(f"STARTED {started}")
"""


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "arguments",
    [
        ("migrate", "backup", "--to", "out", "--jobs", "2", "--yes"),
        ("check", "library", "--deep"),
        ("pack", "library", "library.cherry", "--yes"),
        ("backfill", "library", "--yes"),
        ("embedders",),
        (),
    ],
    ids=" ".join,
)
def test_no_program_is_started_by_its_name(here: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Windows looks for a bare name in the working directory first."""
    program = tmp_path / "program.py"
    program.write_text(AUDITED, "utf-8")
    with FaultServer() as server:
        configured(here / "regraft.yaml", server)
        done = run_in(here, sys.executable, program, *arguments)
    assert done.stderr.endswith("STARTED []"), done.stderr


def test_windows_looks_for_programs_and_libraries_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    class Kernel:
        def __init__(self, name: str) -> None:
            asked.append(name)

        def SetDllDirectoryW(self, folder: str) -> None:
            asked.append(folder)

    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("PYTHONPATH", "PYTHONSAFEPATH", interpreters._NO_PROGRAMS):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr(ctypes, "WinDLL", Kernel, raising=False)
    monkeypatch.setattr(interpreters.os, "name", "nt")
    interpreters.secure_import_path()
    told = os.environ.get(interpreters._NO_PROGRAMS)
    monkeypatch.undo()
    assert (asked, told) == (["kernel32", ""], "1")


@pytest.mark.thorough
def test_a_module_run_as_python_runs_it_imports_nothing_after_its_first_line(tmp_path: Path) -> None:
    """What Python imports before regraft begins is Python's own affair, and told in the documentation."""
    mark = tmp_path / "mark"
    plant(tmp_path / "all", mark)
    (tmp_path / "here").mkdir()
    for name in ("typing", "signal", "json", "gc", "multiprocessing", "click", "msgspec", "apsw", "numpy", "migrators"):
        shutil.copy(tmp_path / "all" / f"{name}.py", tmp_path / "here")
    done = run_in(
        tmp_path / "here",
        sys.executable,
        "-m",
        "regraft",
        "migrate",
        SAMPLE,
        "--to",
        "out",
        "--jobs",
        2,
        "--yes",
        "--json",
    )
    assert not mark.exists(), mark.read_text("utf-8")
    assert bases_done(done).count("written") > 1
