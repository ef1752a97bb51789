"""Help: commands in groups with whole lines, an example in each one's own, and what shells complete."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from harness import NOW, REPO, run

from regraft import cli as regraft_cli
from regraft.cli import cli

SAMPLE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"
COMMANDS = sorted(cli.commands)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("of the sample") / "library"
    run("migrate", SAMPLE, "--to", folder, "--now", NOW, "--yes", "-q")
    return folder


def test_every_command_stands_in_one_group_with_a_whole_line() -> None:
    text = run("--help").stdout
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles == ["Options", *regraft_cli.COMMAND_GROUPS]
    listed = re.findall(r"^  ([a-z-]+)  +(\S.*)$", text.partition("\nMove:")[2], re.MULTILINE)
    assert sorted(name for name, _ in listed) == COMMANDS
    assert all(line.endswith(".") and "…" not in line and "..." not in line for _, line in listed)
    assert max(map(len, text.splitlines())) <= 80


def test_no_command_is_in_two_groups() -> None:
    names = [name for group in regraft_cli.COMMAND_GROUPS.values() for name in group]
    assert len(names) == len(set(names))


def test_a_command_of_no_group_is_listed_too() -> None:
    @click.command()
    def tune() -> None:
        """Tune what there is."""

    cli.commands["tune"] = tune
    try:
        assert run("--help").stdout.rstrip().endswith("Other:\n  tune  Tune what there is.")
    finally:
        del cli.commands["tune"]


@pytest.mark.thorough
def test_the_list_loads_no_command() -> None:
    code = (
        "import sys, regraft.cli as c\n"
        "try: c.cli(['--help'], prog_name='regraft')\n"
        "finally: print([m for m in sys.modules if m.split('.')[0] in ('checks', 'migrators', 'repair')])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, cwd=REPO)
    # What options are made of needs the ids of models.
    assert "repair" not in done.stdout.splitlines()[-1] and "checks" not in done.stdout.splitlines()[-1]


@pytest.mark.thorough
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_it_takes(name: str) -> None:
    text = run(name, "--help").stdout
    lines = re.findall(r"^  Example:\n((?:    regraft .*\n)+)", text, re.MULTILINE)
    assert len(lines) == 1, text
    for line in lines[0].splitlines():
        words = shlex.split(line)
        assert words[:2] == ["regraft", name]
        parent = click.Context(cli, help_option_names=["-h", "--help"])
        cli.commands[name].make_context(name, words[2:], parent=parent)


def test_the_version_has_a_short_option() -> None:
    assert run("-V").stdout == run("--version").stdout != ""


# --- completion ------------------------------------------------------------------------------------------------------


def offered(*words: object) -> list[str]:
    """Return what a shell is offered for the last word."""
    completing = ShellComplete(cli, {"help_option_names": ["-h", "--help"]}, "regraft", "_REGRAFT_COMPLETE")
    return [item.value for item in completing.get_completions([str(word) for word in words[:-1]], str(words[-1]))]


def test_commands_are_completed() -> None:
    assert offered("re") == [name for name in COMMANDS if name.startswith("re")]
    assert offered("check", "--deep", "--qu") == ["--quick", "--quiet"]


@pytest.mark.thorough
def test_bases_are_completed_by_name(library: Path) -> None:
    names = ["Harbour museum", "社区菜园 🌱", "Boat workshop", "Old clippings"]
    for command in ("check", "backfill", "repair", "search", "export", "pack"):
        assert offered(command, library, "--base", "") == names, command
    assert offered("check", library, "--base", "Bo") == ["Boat workshop"]
    assert offered("check", library, "--base", "nothing") == []


@pytest.mark.thorough
@pytest.mark.parametrize(("shell", "answer"), [("bash", "plain,'Boat workshop'"), ("fish", "plain,Boat workshop\t")])
def test_shells_get_names_as_one_word(shell: str, answer: str, library: Path) -> None:
    line = ["regraft", "check", shlex.quote(str(library)), "--base"]
    number = {"bash": "4", "fish": "Bo"}[shell]
    asked = {"_REGRAFT_COMPLETE": f"{shell}_complete", "COMP_WORDS": " ".join([*line, "Bo"]), "COMP_CWORD": number}
    command = [sys.executable, "-P", "-m", "regraft"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env={**os.environ, **asked}, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(answer)


@pytest.mark.thorough
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell: str) -> None:
    asked = {**os.environ, "_REGRAFT_COMPLETE": f"{shell}_source"}
    done = subprocess.run([sys.executable, "-P", "-m", "regraft"], capture_output=True, env=asked, check=False)
    assert b"_REGRAFT_COMPLETE" in done.stdout
    assert f"_REGRAFT_COMPLETE={shell}_source" in (REPO / "docs" / "completion.md").read_text("utf-8")


def test_bases_of_v1_are_completed_by_id() -> None:
    assert "garden:2025/spring" in offered("migrate", SAMPLE, "--base", "")


@pytest.mark.parametrize("path", ["nothing-here", __file__])
def test_where_nothing_can_be_read_nothing_is_offered(path: str) -> None:
    assert offered("check", path, "--base", "") == []


def test_findings_are_completed() -> None:
    assert "item.no-material" in offered("check", "library", "--only", "item.")
    collected = offered("gc", "library", "--only", "")
    assert "embedding.orphan" in collected
    assert "item.no-material" not in collected
