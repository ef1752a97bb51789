"""The docs: their generated parts are up to date, and they name what exists, no more and no less."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import codex_mem_store
import pytest
from cogapp.cogapp import Cog, CogError
from doc_text import fences, headings, keys, prose, section, spans, text_of
from harness import NOW, REPO, run

from regraft.cli import cli
from regraft.errors import RegraftError, error_classes
from regraft.kinds import KIND_NAMES
from regraft.report.notices import CODES

SAMPLE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"
PACKAGES = ("regraft", "migrators", "checks", "repair")
#: Folders at the root that hold no pages of ours.
FOREIGN = {"node_modules", "demo-library", "build", "dist"}


def pages() -> list[Path]:
    """Return every Markdown page of the repository but what tools have put there."""
    top = sorted(path for path in REPO.iterdir() if not path.name.startswith(".") and path.name not in FOREIGN)
    found = [page for path in top for page in ([path] if path.is_file() else sorted(path.rglob("*.md")))]
    return [page for page in found if page.suffix == ".md" and FOREIGN.isdisjoint(page.relative_to(REPO).parts)]


def named(page: Path) -> str:
    return page.relative_to(REPO).as_posix()


PAGES = pages()
#: Pages that tell a user what to type.
GUIDES = [
    REPO / name
    for name in (
        "README.md",
        "README.zh.md",
        "docs/README.md",
        "docs/upgrade.md",
        "docs/commands.md",
        "docs/backfill.md",
        "docs/codes.md",
        "docs/codex-mem.md",
        "docs/findings.md",
        "docs/errors.md",
        "docs/rules.md",
        "docs/rescue.md",
        "docs/translating.md",
        "docs/zh/README.md",
        "docs/sync.md",
        "docs/zh/backfill.md",
        "docs/zh/embedders.md",
        "docs/zh/move.md",
        "docs/zh/rescue.md",
        "docs/zh/sync.md",
        "docs/zh/upgrade.md",
    )
]
TRANSLATED = [
    ("README.md", "README.zh.md"),
    *(
        (f"docs/{name}.md", f"docs/zh/{name}.md")
        for name in ("upgrade", "app", "rescue", "move", "backfill", "embedders", "sync")
    ),
]


def on_each(subjects: Iterable[Any], rule: Callable[..., None]) -> None:
    """Hold every page, or whatever it is, against a rule, and fail with all that break it."""
    broken = []
    for subject in subjects:
        name = named(subject) if isinstance(subject, Path) else str(subject)
        try:
            rule(subject)
        except AssertionError as error:
            broken.append(f"{name}: {error}")
    assert not broken, "\n".join(broken)


# --- Markdown ------------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    for heading in headings(text):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        found[slug] = found.get(slug, 0) + 1
    return {f"{slug}-{number}" if number else slug for slug, count in found.items() for number in range(count)}


# --- what is generated ---------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("page", [page for page in PAGES if "[[[cog" in page.read_text("utf-8")], ids=named)
def test_generated_parts_are_up_to_date(page, monkeypatch, capsys):
    monkeypatch.chdir(REPO)
    try:
        Cog().callable_main(["cog", "--check", "--diff", page.relative_to(REPO).as_posix()])
    except CogError:
        pytest.fail(f"run `make docs`:\n{capsys.readouterr().out}", pytrace=False)


def test_pages_with_real_output_are_generated():
    for page in ("README.md", "README.zh.md", "docs/commands.md", "docs/errors.md", "docs/codes.md", "docs/upgrade.md"):
        assert "[[[cog" in text_of(page), f"{page} has no cog block"


def test_nothing_of_this_machine_is_in_a_page():
    def rule(page: Path) -> None:
        text = page.read_text("utf-8")
        for path in (REPO, Path.home(), Path(tempfile.gettempdir())):
            assert f"{path}/" not in text or path == Path("/"), f"{path}/ is in it"

    on_each(PAGES, rule)


# --- what is named -------------------------------------------------------------------------------------------------


def options(command: click.Command) -> set[str]:
    own = {name for option in command.params if isinstance(option, click.Option) for name in option.opts} | {"--help"}
    inner = command.commands.values() if isinstance(command, click.Group) and command is not cli else ()
    return own.union(*map(options, inner))


def test_every_command_and_option_has_its_place_in_the_reference():
    page = text_of("docs/commands.md")

    def rule(name: str) -> None:
        text = section(page, f"regraft {name}")
        for option in options(cli.commands[name]):
            assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text), f"no {option}"

    on_each(sorted(cli.commands), rule)


def test_every_error_is_in_the_table():
    text = text_of("docs/errors.md")
    for error in error_classes():
        assert f"| `{error.__name__}` | {error.exit_status} |" in text


def test_every_code_is_in_the_table():
    text = text_of("docs/codes.md")
    for code in CODES.values():
        assert f"| `{code.name}` | {code.subject} | {code.severity} |" in text


def test_every_exit_status_is_named():
    statuses = {0, 1, *(error.exit_status for error in error_classes())}
    for page, heading in (
        ("README.md", "Exit status"),
        ("README.zh.md", "退出码"),
        ("docs/commands.md", "Exit status"),
    ):
        table = section(text_of(page), heading)
        assert {int(status) for status in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == statuses


def test_every_key_of_the_documents_is_in_the_reference(tmp_path):
    library = tmp_path / "library"
    migrated = run("migrate", SAMPLE, "--to", library, "--json", "--now", NOW).document
    base = library / "KnowledgeBase" / migrated["bases"][0]["id"]
    config = tmp_path / "regraft.yaml"
    config.write_text("embedders: {one: {provider: openai, model: bge-m3}}")
    memory = codex_mem_store.write(tmp_path / "memory", notes=1, excluded=1)
    documents = {
        "backfill": [run("backfill", library, "--json", "--dry-run", "--config", config).document],
        "migrate": [migrated, run("migrate", SAMPLE, "--to", tmp_path / "other", "--json", "--dry-run").document],
        "check": [run("check", path, "--json").document for path in (SAMPLE, memory)],
        "inspect": [run("inspect", path, "--json").document for path in (SAMPLE, library, base, memory)],
        "search": [run("search", memory, "queue", "--json").document],
        "fleet": [
            run(
                "fleet",
                "backfill",
                f"{library}*",
                "--results",
                tmp_path / "filled.parquet",
                "--config",
                config,
                "--dry-run",
                "--json",
            ).document
        ],
    }
    reference = section(text_of("docs/commands.md"), "JSON")
    general = reference.partition("\n### ")[0]
    for command, answers in documents.items():
        own = section(reference, command)
        own += section(reference, "Commands that change a store") if "#commands-that-change-a-store" in own else ""
        words = set(re.findall(r"\w+", " ".join(spans(general + own))))
        for answer in answers:
            assert migrated["regraft"] == {**answer["regraft"], "command": "migrate"}
            ids = answer.pop("ids", {})
            answer.get("summary", {}).pop("by_name", None)
            unknown = {*keys(answer), *ids} - words
            assert not unknown, f"{command}: docs/commands.md does not name {sorted(unknown)}"


def test_the_error_document_is_in_the_reference():
    answer = run("inspect", "nothing-here", "--json").document
    words = set(re.findall(r"\w+", " ".join(spans(section(text_of("docs/commands.md"), "JSON")))))
    assert {*keys(answer)} <= words


# --- what a reader can do --------------------------------------------------------------------------------------------


def check_links(page: Path) -> None:
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(text))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), f"{target} is not there"
        assert there.resolve().is_relative_to(REPO.resolve()), f"{target} leads out of the repository"
        if anchor:
            assert anchor in anchors(there.read_text("utf-8")), f"{target}: no such section"


def test_links_lead_somewhere():
    on_each(PAGES, check_links)


def commands_of(text: str) -> Iterator[list[str]]:
    """Return the regraft commands of a page's console and shell fences, as lists of words."""
    for language, content in fences(text):
        if language not in ("console", "bash", "sh"):
            continue
        for line in content.replace("\\\n", " ").splitlines():
            typed = line.strip()
            if language == "console":
                if not typed.startswith("$ "):
                    continue
                typed = typed[2:]
            for part in re.split(r"&&|\|\||[|;>]", typed.partition(" #")[0]):
                words = shlex.split(part)
                if words[:1] == ["regraft"]:
                    yield words[1:]


def problem_with(words: list[str]) -> str | None:
    """Return what the command line itself has to say against these words; nothing is run."""
    try:
        if words[0] in cli.commands:
            # A command keeps the names of its help option from the first time.
            parent = click.Context(cli, help_option_names=["-h", "--help"])
            cli.commands[words[0]].make_context(words[0], words[1:], parent=parent)
        elif words[0].startswith("-"):
            cli.make_context("regraft", words)
        else:
            return f"there is no command {words[0]}"
    except click.exceptions.Exit:
        return None
    except click.UsageError as error:
        return error.format_message()
    return None


def test_commands_in_fences_work():
    def rule(page: Path) -> None:
        for words in commands_of(page.read_text("utf-8")):
            problem = problem_with(list(words))
            assert problem is None, f"regraft {shlex.join(words)}: {problem}"

    on_each(PAGES, rule)


def test_the_guides_show_commands():
    for page in ("README.md", "README.zh.md", "docs/upgrade.md", "docs/zh/upgrade.md"):
        assert list(commands_of(text_of(page)))


def check_commands_in_sentences(page: Path) -> None:
    known = {name for command in cli.commands.values() for name in options(command)} | options(cli)
    for span in spans(page.read_text("utf-8")):
        words = span.split()
        if words[0] == "regraft" and len(words) > 1:
            assert words[1] in cli.commands or words[1] in options(cli), f"`{span}`"
        if words[0] == "regraft" or words[0].startswith("-"):
            used = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
            # -vv is -v twice.
            assert {re.sub(r"^-(\w)\1+$", r"-\1", word) for word in used} <= known, f"`{span}`"


def test_commands_and_options_in_sentences_exist():
    on_each(GUIDES, check_commands_in_sentences)


def test_the_readme_names_the_commands_of_a_clone():
    for page in ("README.md", "README.zh.md"):
        assert {"make demo", "make test"} <= set(spans(text_of(page)))
        shell = "".join(content for language, content in fences(text_of(page)) if language == "bash")
        assert {"make demo", "make test"} <= set(shell.splitlines())
    targets = set(re.findall(r"^(\w+):", text_of("Makefile"), re.MULTILINE))
    made = {span.split()[1] for page in GUIDES for span in spans(page.read_text("utf-8")) if span.startswith("make ")}
    assert made <= targets


@pytest.mark.parametrize(("original", "translation"), TRANSLATED)
def test_a_translation_names_the_same_as_its_original(original, translation):
    first, second = text_of(original), text_of(translation)
    assert set(spans(first)) ^ set(spans(second)) == set()
    assert typed_in(first) == typed_in(second)
    levels = [re.findall(r"^#+ ", prose(text), re.MULTILINE) for text in (first, second)]
    assert levels[0] == levels[1]


def typed_in(page: str) -> list[tuple[str, str]]:
    """Return what a page has for a reader to type or to put into a file: of a session the commands alone."""
    typed = []
    for language, content in fences(page):
        if language == "console":
            commands = [line for line in content.splitlines() if line.startswith("$ ")]
            typed.append((language, "\n".join(commands)))
        elif language:
            typed.append((language, content))
    return typed


@pytest.mark.parametrize(("page", "heading"), [("upgrade.md", "Troubleshooting"), ("zh/upgrade.md", "常见问题")])
def test_troubleshooting_quotes_real_messages(page, heading):
    said = [re.sub(r"\{\w+\}", "…", error.template()) for error in (RegraftError, *error_classes())]
    rows = re.findall(r"^\| (`.*?) \|", section(text_of(f"docs/{page}"), heading), re.MULTILINE)
    quoted = [quote for row in rows for quote in re.findall(r"`([^`]+)`", row)]
    assert len(quoted) > 5
    for quote in quoted:
        assert quote in KIND_NAMES.values() or any(quote in message for message in said), quote


@pytest.mark.parametrize(
    ("page", "heading"), [("upgrade.md", "What to do about what it says"), ("zh/upgrade.md", "各种提示怎么处理")]
)
def test_the_guide_speaks_of_real_codes(page, heading):
    table = section(text_of(f"docs/{page}"), heading).partition("###")[0]
    quoted = re.findall(r"^\| `(?:failed \()?(\w+)\)?` \|", table, re.MULTILINE)
    assert len(quoted) > 5
    assert set(quoted) <= set(CODES)


# --- what the code says of the docs ----------------------------------------------------------------------------------


def references() -> Iterator[tuple[str, str, list[str]]]:
    """Return every page that a source file names, with the sections it names: ``docs/x.md``, "One" and "Two"."""
    pattern = r'``(docs/[\w./-]+\.md)``((?:(?:,|,? and)? "[^"]+")*)'
    for package in PACKAGES:
        for source in sorted((REPO / package).rglob("*.py")):
            text = re.sub(r"\s+(?:#:? )?", " ", source.read_text("utf-8"))
            for found in re.finditer(pattern, text):
                yield source.relative_to(REPO).as_posix(), found[1], re.findall(r'"([^"]+)"', found[2])


def test_pages_that_the_code_names_are_there():
    def rule(reference: tuple[str, str, list[str]]) -> None:
        _, page, sections = reference
        assert (REPO / page).is_file(), "there is no such page"
        missing = set(sections) - set(headings(text_of(page)))
        assert not missing, f"the page has no section {missing}"

    named_by_code = list(references())
    assert len(named_by_code) > 100
    on_each(named_by_code, rule)


def test_the_rules_say_what_to_do_about_every_code():
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| \S", (REPO / "docs" / "rules.md").read_text("utf-8"), re.MULTILINE)
    assert dict(rows) == {name: code.severity for name, code in CODES.items()}
