"""Standard output and error that are full, closed, or have lost their reader: the work is done all the same."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from faults import small_source, untouched
from harness import NOW, REPO, run
from planted_v2 import index, library, run_sql

from regraft import cli
from regraft.errors import OutputLost
from regraft.processes import interrupts, startup

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
FULL = "No space left on device"
LOST = f"regraft: {OutputLost(output='Standard output', reason=FULL)}\n"
CLOSED = f"regraft: {OutputLost(output='Standard output', reason='it is closed')}\n"
COMMANDS = sorted(cli.cli.commands)


def text_file(raw: io.RawIOBase) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8")


def full() -> io.TextIOWrapper:
    return text_file(io.FileIO("/dev/full", "w"))


def without_reader() -> io.TextIOWrapper:
    reader, writer = os.pipe()
    os.close(reader)
    return text_file(io.FileIO(writer, "w"))


@contextmanager
def swapped(stdout: io.TextIOWrapper | None, stderr: io.TextIOWrapper | None) -> Iterator[None]:
    """Put other streams into the place of this process's own."""
    own = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = stdout, stderr
    try:
        yield
    finally:
        sys.stdout, sys.stderr = own
        for stream in (stdout, stderr):
            if stream is not None:
                stream.buffer.raw.close()


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Run the command as its script does, with a given stdout; return its exit status and what stderr was given."""
    monkeypatch.setattr(interrupts, "install_handlers", lambda: None)
    monkeypatch.setattr(startup, "_fill_closed", lambda: None)

    def run_main(stdout: io.TextIOWrapper | None, *arguments: object, stderr: object = ...) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["regraft", *map(str, arguments)])
        log = tmp_path / "stderr.txt"
        given = text_file(io.FileIO(log, "w")) if stderr is ... else stderr
        with swapped(stdout, given), pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0), log.read_text("utf-8") if stderr is ... else ""

    return run_main


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return small_source(tmp_path / "v1").write()


# --- every command ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_on_a_full_disk(command: str, main: Callable[..., tuple[int, str]]) -> None:
    assert main(full(), *command.split(), "--help") == (3, LOST)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_error_on_a_full_disk_keeps_its_own_status(command: str, main: Callable[..., tuple[int, str]]) -> None:
    status, said = main(full(), command, "--no-such-option", "--json")
    assert status == 2
    assert said.count("\n") == 1
    assert "No such option" in said


@pytest.mark.thorough
@pytest.mark.parametrize("command", COMMANDS)
def test_an_error_that_nobody_can_read(command: str, main: Callable[..., tuple[int, str]]) -> None:
    assert main(full(), command, "--no-such-option", "--json", stderr=full()) == (2, "")
    assert main(None, command, "--no-such-option", "--json", stderr=None) == (2, "")


def test_what_is_lost_has_a_name() -> None:
    error = OutputLost(output="Standard output", reason=FULL)
    assert (error.code, error.exit_status) == ("OutputLost", 3)


# --- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("options", [[], ["--json"], ["-v"]])
def test_a_result_that_cannot_be_written_is_said(
    options: list[str], source: Path, main: Callable[..., tuple[int, str]]
) -> None:
    for command in ("inspect", "check"):
        assert main(full(), command, source, *options) == (3, LOST)
        assert main(None, command, source, *options) == (3, CLOSED)
        assert main(full(), command, source, *options, stderr=full()) == (3, "")
        assert main(None, command, source, *options, stderr=None) == (3, "")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_has_gone_decides_nothing(
    options: list[str], source: Path, main: Callable[..., tuple[int, str]]
) -> None:
    expected = run("inspect", source).status
    assert main(without_reader(), "inspect", source, *options) == (expected, "")
    assert main(without_reader(), "inspect", source, *options, stderr=without_reader()) == (expected, "")


@pytest.mark.thorough
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_migration_stands_whose_result_cannot_be_written(
    options: list[str], source: Path, tmp_path: Path, main: Callable[..., tuple[int, str]]
) -> None:
    target = tmp_path / "library"
    with untouched(source):
        assert main(full(), "migrate", source, "--to", target, "--now", NOW, *options) == (3, LOST)
    again = run("migrate", source, "--to", target, "--now", NOW, "--json").document
    assert {base["outcome"] for base in again["bases"]} == {"unchanged", "failed"}
    assert json.loads((target / "report.json").read_text("utf-8"))["run"]["finished_at"] is not None


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_migration_stands_whose_page_cannot_be_written(
    options: list[str], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(path: Path, page: str) -> None:
        raise OSError(errno.ENOSPC, FULL, str(path))

    page = tmp_path / "page.html"
    monkeypatch.setattr("regraft.report.html.write_page", no_space)
    done = run("migrate", source, "--to", tmp_path / "library", "--report", page, "--now", NOW, *options)
    assert (done.status, done.stderr) == (3, f"regraft: {OutputLost(output=page, reason=FULL)}\n")
    assert not page.exists()
    if options:
        assert done.document["run"]["finished_at"] is not None
    else:
        assert "Written:" in done.stdout
        assert str(page) not in done.stdout


def test_a_full_stderr_changes_nothing(source: Path, main: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    log = tmp_path / "stdout.txt"
    assert main(text_file(io.FileIO(log, "w")), "inspect", source, stderr=full()) == (run("inspect", source).status, "")
    assert log.read_text("utf-8") == run("inspect", source).stdout


def test_a_question_that_nobody_sees_is_not_asked(
    tmp_path: Path, main: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    store = library(tmp_path)
    run_sql(index(store), f"INSERT INTO embedding SELECT '{'ab' * 32}', vector_blob, 0 FROM embedding LIMIT 1")
    monkeypatch.setattr("regraft.cli.changes.sys.stdin", Terminal("y\n"))
    for make, reason in ((full, FULL), (without_reader, "Broken pipe")):
        with untouched(store):
            status, said = main(make(), "gc", store)
        assert status == 3
        assert (
            said
            == f"regraft: Stopped by the system: nothing was done, because the question cannot be shown ({reason}).\n"
        )


@pytest.mark.skipif(not hasattr(os, "set_blocking"), reason="pipes always wait")
def test_a_pipe_that_does_not_wait_gets_everything() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    process = subprocess.Popen([sys.executable, "-c", "import sys; print(len(sys.stdin.read()))"], stdin=reader,
                               stdout=subprocess.PIPE)  # fmt: skip
    os.close(reader)
    with swapped(text_file(io.FileIO(writer, "w")), text_file(io.FileIO(os.devnull, "w"))):
        startup.protect_streams()
        sys.stdout.write("x" * 1_000_000)
        assert startup.find_lost_output() is None
    assert process.communicate()[0] == b"1000000\n"


# --- the process itself ----------------------------------------------------------------------------------------------


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of a shell in which ``$R`` is the command."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LC_", "LANG"))}
    settings = {**own, "R": f"{sys.executable} -P -m regraft", **environment}
    return subprocess.run(["/bin/sh", "-c", line], env=settings, capture_output=True, check=False)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("$R --version >/dev/full", 3, LOST),
        ("$R --version >&-", 3, CLOSED),
        ("$R --version >&- 2>&- <&-", 3, ""),
        ("$R --version >/dev/full 2>/dev/full", 3, ""),
        ("_REGRAFT_COMPLETE=bash_source $R >/dev/full", 3, LOST),
        ("$R --version | true", 0, ""),
    ],
)
def test_streams_of_a_process(line: str, status: int, said: str) -> None:
    done = shell(line)
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    assert (done.returncode, done.stderr.decode()) == (status, said)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
    ],
    ids=["POSIX", "C", "latin-1"],
)
def test_a_system_without_unicode(environment: dict[str, str], tmp_path: Path) -> None:
    sample = REPO / "sample_v1" / "cherry-studio.202503141200.zip"
    done = shell(f"$R migrate '{sample}' --to '{tmp_path}/文' --now {NOW} --fail-on never", **environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u793e\u533a\u83dc\u56ed" in done.stdout
    made = {path.name for path in (tmp_path / "文").rglob("*")}
    assert "Rota for March 🗓️.md" in made
    assert done.stdout.isascii()
