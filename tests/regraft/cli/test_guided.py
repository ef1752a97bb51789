"""``regraft`` alone on a terminal: its questions, with answers that a test gives and with a real terminal."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import pytest
from faults import INTERRUPTED, REFUSED, posix, said, small_source, untouched
from harness import REPO, run_as_given
from patience import NEVER_SECONDS
from profiles import profile

from regraft.api import application
from regraft.cli import guided
from regraft.errors import InputEnded, RegraftError
from regraft.processes import startup

SAMPLE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a person with a backup in Downloads and a profile in its usual place."""
    home = tmp_path / "home"
    (home / "Downloads").mkdir(parents=True)
    (home / "here").mkdir()
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.setenv("APPDATA", str(home / ".config"))
    shutil.copyfile(SAMPLE, home / "Downloads" / SAMPLE.name)
    profile(home / ".config" / "CherryStudio")
    monkeypatch.chdir(home / "here")
    return home


class Answers:
    """Answers to the questions of a run, and what they were."""

    def __init__(self, *answers: str | type[BaseException]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, question: str, **_: object) -> str:
        self.asked.append(question)
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            return answer
        try:
            raise answer
        except (EOFError, KeyboardInterrupt):
            raise click.Abort from None


def answered(monkeypatch: pytest.MonkeyPatch, *answers: str | type[BaseException]) -> tuple[int, Answers]:
    """Give these answers, and return the exit status."""
    given = Answers(*answers)
    monkeypatch.setattr(click, "prompt", given)
    monkeypatch.setattr("regraft.cli.changes.sys.stdin", Terminal())
    with pytest.raises(SystemExit) as end:
        guided.start()
    return int(str(end.value.code)), given


class Terminal:
    """Standard input of a person."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


def bases_of(folder: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(folder / "cherrystudio.sqlite")) as db:
        return sorted(db.execute("SELECT name, embedding_model_id FROM knowledge_base WHERE id != 'own'"))


@contextmanager
def nothing_written(home: Path) -> Iterator[None]:
    """Assert that backup and profile stay as they are, and that no library is made."""
    with untouched(home / "Downloads", home / ".config" / "CherryStudio"):
        yield
    assert list((home / "here").iterdir()) == []


# --- the journey -----------------------------------------------------------------------------------------------------


def test_enter_at_every_question_upgrades(home, monkeypatch, capsys):
    status, given = answered(monkeypatch, "", "", "", "", "")
    shown = capsys.readouterr()
    assert status == 1, shown.err
    assert given.answers == []
    place = home / ".config" / "CherryStudio"
    assert [name for name, _ in bases_of(place)] == ["Boat workshop", "Harbour museum", "Old clippings", "社区菜园 🌱"]
    assert "openai::text-embedding-3-small" in dict(bases_of(place))["Harbour museum"]
    assert f"1  {home / 'Downloads' / SAMPLE.name}" in shown.out
    assert f"1  {place}" in shown.out
    assert "The profile lacks the model silicon::BAAI/bge-m3 of 社区菜园 🌱." in shown.out
    assert f"To undo: regraft undo {place}" in shown.out
    assert (home / "here" / "library" / "catalog.sqlite").is_file()
    assert run_as_given("undo", place, "--yes").status == 0
    assert bases_of(place) == []
    assert list((home / "here").iterdir()) == []


@pytest.mark.thorough
@posix
@pytest.mark.parametrize("answer", ["", "n", EOFError])
def test_the_application_is_started_after_a_question(home, monkeypatch, capsys, answer):
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    program = home / "Applications" / "Cherry Studio.AppImage"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\ntouch "$HOME/started"\n')
    program.chmod(0o755)
    started = []
    start = application.start_application
    monkeypatch.setattr(application, "start_application", lambda path: started.append(start(path)))
    status, given = answered(monkeypatch, "", "", "", "", "", answer)
    assert (status, given.answers) == (1, [])
    assert "Start the application now? [Y/n]" in given.asked[-1]
    for process in started:
        assert process.wait(NEVER_SECONDS) == 0
    assert (home / "started").exists() == (answer == "")
    assert ("The application was started." in capsys.readouterr().out) == (answer == "")


@pytest.mark.thorough
def test_paths_can_be_typed_and_wrong_ones_are_asked_again(home, monkeypatch, capsys, tmp_path):
    source = small_source(tmp_path / "my source").write()
    other = profile(tmp_path / "other")
    answers = ("nowhere", str(home / "here"), f"'{source}'", str(source), str(other), "y")
    status, given = answered(monkeypatch, *answers)
    shown = capsys.readouterr()
    assert status == 1, shown.err
    assert given.answers == []
    assert "regraft: nowhere: no such file or folder" in shown.err
    assert "regraft: " + str(home / "here") in shown.err
    assert [name for name, _ in bases_of(other)] == ["Base alpha", "Base beta", "Base gamma"]
    assert bases_of(home / ".config" / "CherryStudio") == []


def test_a_dropped_path_has_backslashes_before_blanks(tmp_path, monkeypatch):
    (tmp_path / "a b.zip").write_bytes(b"")
    assert guided.parse_path(str(tmp_path).replace(" ", "\\ ") + "/a\\ b.zip") == tmp_path / "a b.zip"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert guided.parse_path("~/a b.zip") == tmp_path / "a b.zip"


@pytest.mark.thorough
def test_a_model_can_be_left_out_or_mapped(home, monkeypatch, capsys):
    place = home / ".config" / "CherryStudio"
    status, given = answered(monkeypatch, "1", "1", "not a model", "acme::other", "2", "y")
    shown = capsys.readouterr()
    assert status == 1, shown.err
    assert "--map-model: 'not a model'" in shown.err or "not a model" in shown.err
    assert given.answers == []
    found = dict(bases_of(place))
    assert set(found) == {"Boat workshop", "Harbour museum", "Old clippings"}
    assert set(found.values()) == {"acme::other"}


@pytest.mark.thorough
def test_no_means_that_nothing_is_written(home, monkeypatch, capsys):
    with nothing_written(home):
        status, _ = answered(monkeypatch, "", "", "", "", "no")
    shown = capsys.readouterr()
    assert status == REFUSED
    assert "you answered no; nothing was written" in shown.err


@pytest.mark.thorough
@pytest.mark.parametrize("question", range(5))
@pytest.mark.parametrize("end, expected", [(EOFError, 1), (KeyboardInterrupt, INTERRUPTED)])
def test_the_end_at_any_question_writes_nothing(home, monkeypatch, capsys, question, end, expected):
    with nothing_written(home):
        status, given = answered(monkeypatch, *[""] * question, end)
    shown = capsys.readouterr()
    assert status == expected
    assert len(given.asked) == question + 1
    [line] = [line for line in shown.err.splitlines() if line.startswith("regraft: ")]
    if end is EOFError:
        assert line == f"regraft: {InputEnded()}"


def test_the_end_of_the_input_has_a_code_of_its_own(home, monkeypatch):
    monkeypatch.setattr(click, "prompt", Answers(EOFError))
    with pytest.raises(RegraftError) as caught:
        guided.run()
    assert (caught.value.code, caught.value.exit_status) == ("InputEnded", 1)


@pytest.mark.thorough
def test_the_questions_in_chinese(home, monkeypatch, capsys):
    monkeypatch.setenv("REGRAFT_LANG", "zh")
    status, _ = answered(monkeypatch, "", "", "", "", "")
    shown = capsys.readouterr()
    assert status == 1, shown.err
    assert "选择哪份 v1 数据？" in shown.out
    assert "装入应用的哪个 v2 数据目录？" in shown.out


# --- when it asks ----------------------------------------------------------------------------------------------------


def test_without_a_terminal_it_shows_what_there_is(home):
    found = run_as_given()
    assert found.status == 0
    assert "Cherry Studio on this computer:" in found.stdout
    shutil.rmtree(home / ".config")
    nothing = run_as_given()
    assert nothing.status == REFUSED
    assert nothing.stdout.startswith("Usage: regraft")


def test_a_double_click_opens_the_page_if_it_is_there(home, monkeypatch):
    opened: list[str] = []

    @click.command()
    def ui() -> None:
        opened.append("page")

    from regraft.cli import cli

    monkeypatch.setattr(startup, "is_double_clicked", lambda: True)
    if "ui" not in cli.commands:
        assert run_as_given().stdout.startswith("Cherry Studio on this computer:")
    monkeypatch.setitem(cli.commands, "ui", ui)
    monkeypatch.setattr("regraft.cli.find_spec", lambda _: None)
    assert run_as_given().stdout.startswith("Cherry Studio on this computer:")
    assert opened == []
    monkeypatch.setattr("regraft.cli.find_spec", lambda name: name)
    assert run_as_given().status == 0
    assert opened == ["page"]


def test_a_double_click_is_told_by_program_and_console(monkeypatch):
    assert not startup.is_double_clicked()
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    if sys.platform != "win32":
        monkeypatch.setattr(sys, "stdin", None)
        assert startup.is_double_clicked()
        monkeypatch.setattr(sys, "stdin", Terminal())
        assert not startup.is_double_clicked()

    class Kernel:
        def __init__(self, processes: int) -> None:
            self.processes = processes

        def GetConsoleProcessList(self, found: Any, size: int) -> int:
            assert len(found) == size
            return self.processes

    assert startup.has_own_console(Kernel(1))
    assert not startup.has_own_console(Kernel(2))


def test_the_null_device_is_no_terminal():
    """``isatty`` takes it for one on Windows; a command that asks it for consent would take its end for Ctrl-C."""
    with Path(os.devnull).open(encoding="utf-8") as null:
        assert not startup.is_terminal(null)
    assert not startup.is_terminal(None)
    assert startup.is_terminal(Terminal())


# --- a backup in the folder ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "inspect"])
def test_a_folder_with_a_backup_names_the_command(home, command):
    shutil.copyfile(SAMPLE, home / "here" / "backup.zip")
    (home / "here" / "notes.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    found = run_as_given(command, ".")
    assert found.status == REFUSED
    place = home / ".config" / "CherryStudio"
    assert found.stderr == (
        f"regraft: {home / 'here'}: this folder is not a knowledge base, but contains the v1 backup backup.zip; "
        f"run: regraft migrate {home / 'here' / 'backup.zip'} --profile {place}.\n"
    )
    (place / "cherrystudio.sqlite").unlink()
    assert run_as_given(command, ".").stderr.endswith("backup.zip --to library.\n")
    assert "backup.zip" in said(run_as_given(command, ".", "--json"), "BackupInFolder", REFUSED)
    (home / "here" / "backup.zip").unlink()
    assert "not a knowledge base that regraft knows" in run_as_given(command, ".").stderr


# --- a real terminal -------------------------------------------------------------------------------------------------


class OnTerminal:
    """The real command on a pseudoterminal."""

    def __init__(self) -> None:
        self.master, slave = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "regraft"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=take_terminal,  # noqa: PLW1509 - the test has no threads
        )
        os.close(slave)
        self.text = ""

    def until(self, text: str) -> None:
        """Read what it shows up to a text."""
        while text not in self.text:
            ready, _, _ = select.select([self.master], [], [], NEVER_SECONDS)
            assert ready, self.text
            try:
                self.text += os.read(self.master, 65536).decode("utf-8", "replace")
            except OSError:
                pytest.fail(f"it ended before {text!r}: {self.text}")
        self.text = self.text.split(text, 1)[1]

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def end_with(self, key: bytes) -> int:
        """Type a key, again after five seconds of silence, until the command ends; return its exit status.

        Between the question and the read of its answer, a key may have no effect: Python acts on Ctrl-C when the read
        returns, and a terminal drops Ctrl-D when its mode changes.
        """
        for _ in range(NEVER_SECONDS // 5):
            with suppress(OSError):
                self.type(key)
                while select.select([self.master], [], [], 5)[0]:
                    os.read(self.master, 65536)
            if self.process.poll() is not None:
                break
        return self.status()

    def status(self) -> int:
        with suppress(OSError):
            while os.read(self.master, 65536):
                pass
        return self.process.wait(NEVER_SECONDS)


def take_terminal() -> None:
    """Make the pseudoterminal the one of this session, so that its keys send signals."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def terminal(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], OnTerminal]]:
    started: list[OnTerminal] = []
    monkeypatch.setenv("TERM", "dumb")

    def start() -> OnTerminal:
        started.append(OnTerminal())
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        os.close(one.master)


@pytest.mark.thorough
@posix
def test_on_a_real_terminal(home, terminal):
    it = terminal()
    for question in ("Which v1 data?", "Into which v2 profile", "What do you want to do?", "What do you want to do?"):
        it.until(question)
        it.until("(Enter: 1)")
        it.type(b"\n")
    it.until("[Y/n]")
    it.type(b"\n")
    assert it.status() == 1
    assert len(bases_of(home / ".config" / "CherryStudio")) == 4


@pytest.mark.thorough
@posix
@pytest.mark.parametrize("key, expected", [(b"\x03", INTERRUPTED), (b"\x04", 1)], ids=["Ctrl-C", "Ctrl-D"])
@pytest.mark.parametrize("answers", [0, 1])
def test_keys_that_end_it_on_a_real_terminal(home, terminal, key, expected, answers):
    with nothing_written(home):
        it = terminal()
        for _ in range(answers):
            it.until("(Enter: 1)")
            it.type(b"\n")
        it.until("(Enter: 1)")
        assert it.end_with(key) == expected
