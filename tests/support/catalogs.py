"""Catalogs of messages: what there is to translate, as gettext has it (``docs/translating.md``). Needs Babel.

``make messages LANGUAGE=zh`` brings the catalog of a language up to date, or begins one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import get_args

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from jinja2.ext import babel_extract

from regraft.cli import cli, help_paragraphs
from regraft.errors import error_classes
from regraft.language import DOMAIN, SYSTEM_REASONS
from regraft.report.notices import Severity

#: Of the head of a catalog: what changes with every run, and what is about other projects.
_UNKEPT = (
    *(b'"%s' % name for name in (b"POT-", b"PO-", b"Last-", b"Language-T", b"Report-", b"Generated-")),
    *(b"# %s" % name for name in (b"Copyright", b"This file", b"FIRST")),
)
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "regraft" / "locale"
_OPTIONS = {"trim_blocks": "true", "lstrip_blocks": "true"}
_SOURCES = ("regraft", "migrators", "checks", "repair")
#: What click says itself, by its releases from 8.1 on: that is looked up in the catalog of this package, too.
_OF_CLICK = (
    "(dynamic)",
    "%(prog)s, version %(version)s",
    "Commands",
    "Invalid value for {param_hint}: {message}",
    "Invalid value: {message}",
    "Missing argument",
    "Missing command.",
    "Missing option",
    "Missing parameter",
    "Missing parameter: {param_name}",
    "Missing {param_type}",
    "No such command {name!r}.",
    "No such option: {name}",
    "No such option {name!r}.",
    "Option {name!r} does not take a value.",
    "Options",
    "Show the version and exit.",
    "Show this message and exit.",
    "Usage:",
    "Value must be an iterable.",
    "default: {default}",
    "required",
    "{value!r} is not a valid {number_type}.",
    "{value} is not in the range {range}.",
    "directory",
    "file",
    "path",
    "{name} {filename!r} does not exist.",
    "{name} {filename!r} is a directory.",
    "{name} {filename!r} is a file.",
    "{name} {filename!r} is not readable.",
    ("Did you mean {possibility}?", "(Did you mean one of: {possibilities}?)"),
    ("Got unexpected extra argument ({args})", "Got unexpected extra arguments ({args})"),
    ("Option {name!r} requires an argument.", "Option {name!r} requires {nargs} arguments."),
    ("{value!r} is not {choice}.", "{value!r} is not one of {choices}."),
)


def messages() -> Catalog:
    """Return the catalog of everything that there is to translate, with the places where it stands."""
    catalog = Catalog(domain=DOMAIN, project="regraft", fuzzy=False)
    for name, message in [*_of_python(), *_of_pages(), *_of_errors(), *_of_help()]:
        catalog.add(message, locations=[(name, 0)])
    for context, message in _of_contexts():
        catalog.add(message, context=context)
    for words in _OF_CLICK:
        catalog.add(words, locations=[("click", 0)])
    for reason in SYSTEM_REASONS:
        catalog.add(reason, locations=[("system", 0)])
    return catalog


def _of_python() -> Iterator[tuple[str, str]]:
    for folder in _SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name, tree = path.relative_to(ROOT).as_posix(), ast.parse(path.read_text("utf-8"))
            for message, *_ in _calls(tree, "tr"):
                yield name, message
            for noun in _nouns(tree):
                yield name, f"{{count:,}} {noun}"


def _of_contexts() -> Iterator[tuple[str, str]]:
    """Yield the messages that mean something of their own in a context, with that."""
    for severity in get_args(Severity):
        yield "severity", f"{{count:,}} {severity}"
    for folder in _SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if b"tr_in(" in path.read_bytes():
                yield from _calls(ast.parse(path.read_text("utf-8")), "tr_in")


def _calls(tree: ast.AST, function: str) -> Iterator[tuple[str, ...]]:
    """Yield the texts that calls of a function begin with. Babel leaves out texts in parentheses of their own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == function:
            texts = tuple(_texts(node.args))
            # A name in the place of a text is not to be translated there.
            if texts:
                yield texts


def _nouns(tree: ast.AST) -> Iterator[str]:
    """Yield the nouns that a module counts: arguments of ``format_count``, keywords ``noun``, values of ``NOUNS``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            is_counted = isinstance(node.func, ast.Name) and node.func.id == "format_count"
            given = [
                *(node.args[1:2] if is_counted else ()),
                *(one.value for one in node.keywords if one.arg == "noun"),
            ]
            yield from _texts(given)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if isinstance(node.value, ast.Dict) and any(name.endswith("NOUNS") for name in names):
                yield from _texts(node.value.values)


def _texts(nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _of_pages() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "regraft").glob("*/templates/*.html")):
        with path.open("rb") as file:
            for _, _, message, _ in babel_extract(file, ["tr"], [], _OPTIONS):
                yield path.relative_to(ROOT).as_posix(), _first(message)
        with path.open("rb") as file:
            for _, _, message, _ in babel_extract(file, ["count"], [], _OPTIONS):
                noun = message[-1] if isinstance(message, tuple) else message
                yield path.relative_to(ROOT).as_posix(), f"{{count:,}} {noun}"


def _first(message: object) -> str:
    """Return the message of a call, which Babel gives with the other arguments; nothing where it is no text."""
    first = message[0] if isinstance(message, tuple) and message else message
    return first if isinstance(first, str) else ""


def _of_errors() -> Iterator[tuple[str, str]]:
    for error in error_classes():
        yield "regraft/errors.py", error.template()


def _of_help() -> Iterator[tuple[str, str]]:
    for command in [cli, *(cli.commands[name] for name in cli.commands)]:
        for paragraph in help_paragraphs(command.help or ""):
            yield "regraft/cli", paragraph


def path_of(language: str) -> Path:
    """Return where the catalog of a language is."""
    return FOLDER / language / "LC_MESSAGES" / f"{DOMAIN}.po"


def read(language: str) -> Catalog:
    """Return the catalog of a language; one without a message where it is not there."""
    path = path_of(language)
    if not path.exists():
        return Catalog(locale=language, domain=DOMAIN, project="regraft", fuzzy=False)
    with path.open("rb") as file:
        return read_po(file, locale=language, domain=DOMAIN)


def update(language: str) -> None:
    """Bring the catalog of a language up to date: what is new has no translation, what is gone goes, and compile it."""
    catalog, path = read(language), path_of(language)
    catalog.update(messages(), no_fuzzy_matching=True)
    for message in catalog:
        message.flags.discard("fuzzy")
    catalog.obsolete.clear()
    path.parent.mkdir(parents=True, exist_ok=True)
    text = BytesIO()
    write_po(text, catalog, width=110, no_location=True, sort_output=True)
    lines = text.getvalue().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if not line.startswith(_UNKEPT)))
    with path.with_suffix(".mo").open("wb") as file:
        write_mo(file, catalog)


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        update(wanted)
