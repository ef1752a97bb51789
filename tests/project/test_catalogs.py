"""Catalogs: every message has its translation, none is stale, and each has the places that the English one has."""

from __future__ import annotations

import ast
import re
from string import Formatter

import catalogs
import pytest

from regraft import language

pytest.importorskip("babel")

LANGUAGES = sorted(path.parent.parent.name for path in catalogs.FOLDER.glob("*/LC_MESSAGES/*.po"))


def places(text: str) -> set[str]:
    if re.search(r"%\(\w+\)s", text):
        return set(re.findall(r"%\(\w+\)s", text))
    return {f"{name}!{conversion}:{spec}" for _, name, spec, conversion in Formatter().parse(text) if name is not None}


def test_there_is_a_language_besides_english() -> None:
    assert "zh" in LANGUAGES
    assert "zh" in language.available_languages(), "the catalogs are not compiled: install the package"


@pytest.mark.thorough
@pytest.mark.parametrize("name", LANGUAGES)
def test_every_message_has_its_translation_and_none_is_stale(name: str) -> None:
    wanted = {(message.context, message.id) for message in catalogs.messages() if message.id}
    catalog = catalogs.read(name)
    there = {(message.context, message.id) for message in catalog if message.id}
    advice = f"make messages LANGUAGE={name}"
    assert sorted(map(str, wanted - there)) == [], f"missing: {advice}"
    assert sorted(map(str, there - wanted)) == [], f"stale: {advice}"
    assert [message.id for message in catalog if message.id and not all(_strings(message.string))] == []
    assert not catalog.obsolete


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_translation_has_the_facts_of_its_message(name: str) -> None:
    for message in catalogs.read(name):
        if message.id:
            first = message.id if isinstance(message.id, str) else message.id[0]
            for translation in _strings(message.string):
                assert places(translation) == places(first), first
                assert translation.endswith("\n") == first.endswith("\n"), first


def _strings(value: object) -> list[str]:
    return [value] if isinstance(value, str) else [str(one) for one in value]  # type: ignore[attr-defined]


def test_a_text_in_parentheses_of_its_own_is_a_message() -> None:
    lines = ('tr(("one " "text"), path=path)', 'language.tr("two", **facts)', 'tr(name, x="no message")', 'other("no")')
    tree = ast.parse("\n".join(lines))
    assert list(catalogs._calls(tree, "tr")) == [("one text",), ("two",)]
