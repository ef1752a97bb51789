"""Text on a terminal: wrapped at words, with colours; and nothing of that anywhere else."""

from __future__ import annotations

import os
import re
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from harness import NOW, run
from pseudo_terminal import SAMPLE, on_terminal

from regraft.cli import output
from regraft.report.progress import ProgressBar, stage
from regraft.text import text_width

posix = pytest.mark.skipif(os.name == "nt", reason="a pseudo-terminal as POSIX systems have it")
RED = "\x1b[31m"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("of the sample") / "library"
    run("migrate", SAMPLE, "--to", folder, "--now", NOW, "--yes", "-q")
    return folder


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


# --- wrapping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "one two three four five six seven eight|  nine ten",
        "  - one two three four five six seven|    eight nine",
        "  model    aaaa bbbb cccc dddd eeee ffff|           gggg",
        "see|  a/very/long/path/that/takes/more/than/there/is|  now",
        "mend it:|  regraft repair /a/library --only item.no-material",
        "  /a path/of many words/that is longer than/the terminal",
        "目录里的文件没有向量，|  目录里的文件没有向量，|  目录里的文件没有向量，",
        "short",
        "",
    ],
)
def test_lines_end_at_words(text: str) -> None:
    lines = text.split("|")
    line = ("" if "，" in text else " ").join([lines[0], *(one.strip() for one in lines[1:])])
    assert output.wrap_line(line, 40).split("\n") == lines
    assert output.wrap_line(f"{line}\n", 40).split("\n") == [*lines, ""]


def test_names_of_the_command_line_are_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    output._words_with_blanks.cache_clear()
    monkeypatch.setattr(sys, "argv", ["regraft", "check", "/a folder/of mine"])
    try:
        text = output.wrap_line("it has been found that in /a folder/of mine nothing is", 40)
    finally:
        output._words_with_blanks.cache_clear()
    assert text.split("\n") == ["it has been found that in", "  /a folder/of mine nothing is"]


@pytest.mark.one_in(2)
@posix
@pytest.mark.parametrize("width", [50, 80])
def test_a_terminal_gets_what_fits_and_the_same_words(width: int, library: Path) -> None:
    for command in ("inspect", "check", "history"):
        shown = on_terminal(width, command, library, NO_COLOR="1")
        assert shown.split() == run(command, library).stdout.split(), command
        for line in shown.splitlines():
            fits = text_width(line) <= width
            assert fits or "regraft " in line or str(library) in line or len(line.split()) == 1, line


@pytest.mark.thorough
@posix
def test_what_a_plan_said_is_not_said_again(tmp_path: Path) -> None:
    """A person who has read the plan, and agreed, is told what came of it."""
    made = tmp_path / "library"
    shown = on_terminal(80, "migrate", SAMPLE, "--to", made, typed="y\n", NO_COLOR="1")
    assert shown.count("[missing_vector_store]") == 1
    assert "Done: 3 of 4 bases." in shown
    assert "[missing_vector_store]" in run("migrate", SAMPLE, "--to", tmp_path / "other", "-y").stdout
    for index in made.glob("KnowledgeBase/*/.cherry/index.sqlite"):
        with closing(apsw.Connection(str(index))) as db:
            db.execute("INSERT INTO search_text_fts (search_text_fts) VALUES ('delete-all')")
    shown = on_terminal(80, "repair", made, typed="y\n", NO_COLOR="1")
    assert shown.count("[rebuild-full-text]") == 3
    assert "\nDone" in shown


@pytest.mark.thorough
@posix
def test_json_stays_as_it_is(library: Path) -> None:
    shown = on_terminal(50, "check", library, "--json")
    assert max(map(len, shown.splitlines())) > 50
    assert "\x1b" not in shown


# --- colour ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@posix
def test_colours_on_a_terminal(library: Path) -> None:
    assert f"{RED}failed" in on_terminal(80, "inspect", library)
    assert "\x1b" not in on_terminal(80, "inspect", library, NO_COLOR="1")
    assert "\x1b" not in on_terminal(80, "inspect", library, TERM="dumb")


@pytest.mark.usefixtures("plain")
def test_colours_elsewhere_only_where_they_are_asked_for(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in run("inspect", library).stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert f"{RED}failed" in run("inspect", library).stdout
    assert "\x1b" not in run("inspect", library, "--json").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("inspect", library).stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("error: this failed", ["error"]),
        ("2 warnings, 1 error.", ["warnings", "error"]),
        ("  status      failed: x", ["failed"]),
        ("Done; all of it", ["Done"]),
        ("a file error.txt and failed/", []),
        ("  error.log  (id)", []),
    ],
)
def test_what_is_coloured(text: str, words: list[str]) -> None:
    coloured = output.colorize(text)
    assert re.findall("\x1b\\[3[0-9]m(.*?)\x1b\\[0m", coloured) == words


# --- bars ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "size", "counts"),
    [("texts", 0, "2/4 texts, "), ("rows", 5000, "2/4 rows, 5.0 kB, "), ("bytes", 0, "2 bytes of 4 bytes, ")],
)
def test_a_bar_counts_by_its_unit(unit: str, size: int, counts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bar = ProgressBar()
    with stage(bar, "Working", 4, unit):
        bar.at("a name that is long, as names of bases and of files are")
        bar.step(2, size)
        assert bar._bar is not None
        shown = str(bar._bar)
        monkeypatch.setattr(bar._bar, "dynamic_ncols", lambda _: 80)
        assert counts in shown
        assert "0 bytes" not in shown
        assert "Working  50%" in shown


@pytest.mark.thorough
@posix
@pytest.mark.parametrize("command", ["check", "compare"])
def test_check_and_compare_show_how_far_they_are(command: str, library: Path) -> None:
    paths = [library] if command == "check" else [SAMPLE, library]
    shown = on_terminal(80, command, *paths, stream="stderr")
    assert "ing   0%" in shown
    assert max(map(text_width, shown.replace("\r", "\n").splitlines())) <= 80
    assert on_terminal(80, command, *paths, "-q", stream="stderr") == ""
