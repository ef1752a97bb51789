"""Text that was kept in English, in another language: by the messages of the catalog that it was made of."""

from __future__ import annotations

import re
from functools import cache
from string import Formatter

from regraft.language import ENGLISH, catalog_of, filled, language, remembered

#: Messages in one another, at the most.
_DEEPEST = 4
#: What stands between messages that follow one another.
_BETWEEN = "; "


def spoken(text: str) -> str:
    """Return a kept text in the language of this process; what is written of it to files stays English."""
    return remembered(translated(text, language()), text)


def translated(text: str, wanted: str, depth: int = 0) -> str:
    """Return a kept text in a language; what no message of the catalog gives stays as it is.

    Args:
        text: English, as :func:`regraft.language.tr` made it.
        wanted: the language.
        depth: how many messages it stands in.
    """
    if wanted == ENGLISH or not text:
        return text
    catalog = catalog_of(wanted)
    found = catalog.gettext(text)
    if found != text or depth == _DEEPEST:
        return found
    counted = _COUNTED.fullmatch(text)
    if counted is not None:
        return _counted(counted[1], counted[2], wanted) or text
    return _by_form(text, wanted, depth) or text


def _by_form(text: str, wanted: str, depth: int) -> str | None:
    """Return a text by the message whose facts it has; None where no message has such.

    Several messages may stand in it one after the other. So a message of which a fact would hold more than one of them
    comes last.
    """
    unlikely: tuple[str, dict[str, str]] | None = None
    for message, words, form in _forms(wanted):
        match = form.fullmatch(text) if words in text else None
        if match is None:
            continue
        if not any(_BETWEEN in value for value in match.groupdict().values()):
            return _filled(message, match.groupdict(), wanted, depth)
        unlikely = unlikely or (message, match.groupdict())
    parts = text.split(_BETWEEN)
    if len(parts) > 1:
        translations = [translated(part, wanted, depth + 1) for part in parts]
        if all(found != part for found, part in zip(translations, parts, strict=True)):
            return catalog_of(wanted).gettext(_BETWEEN).join(translations)
    return None if unlikely is None else _filled(*unlikely, wanted, depth)


def _filled(message: str, facts: dict[str, str], wanted: str, depth: int) -> str:
    again = {name: translated(value, wanted, depth + 1) for name, value in facts.items()}
    return filled(_WITHOUT_FORM.sub(r"{\1}", catalog_of(wanted).gettext(message)), again)


#: What a fact is formatted by is in the text already.
_WITHOUT_FORM = re.compile(r"\{(\w+)[!:][^{}]*\}")


#: A number with what it counts.
_COUNTED = re.compile(r"([0-9,]+) ([a-z][a-z -]*)")


def _counted(number: str, noun: str, wanted: str) -> str | None:
    """Return a number with its noun; None where the catalog does not count such."""
    for singular in (noun, noun.removesuffix("s"), f"{noun.removesuffix('ies')}y"):
        message = f"{{count:,}} {singular}"
        found = catalog_of(wanted).gettext(message)
        if found != message:
            return filled(_WITHOUT_FORM.sub(r"{\1}", found), {"count": number})
    return None


@cache
def _forms(wanted: str) -> list[tuple[str, str, re.Pattern[str]]]:
    """Return the messages with facts, those with the most words of their own first, each with its longest literal part
    and with what it looks like.
    """
    messages = [message for message in catalog_of(wanted).messages() if "{" in message]
    messages.sort(key=lambda message: len(re.sub(r"\{[^{}]*\}", "", message)), reverse=True)
    forms = []
    for message in messages:
        form = _form(message)
        if form is not None:
            words = max((literal for literal, *_ in Formatter().parse(message)), key=len)
            forms.append((message, words, form))
    return forms


def _form(message: str) -> re.Pattern[str] | None:
    """Return what a message with its facts looks like; None for one that has hardly a word, which is like anything."""
    form, seen, own = "", set[str](), 0
    for literal, name, _, _ in Formatter().parse(message):
        form += re.escape(literal)
        own += sum(map(str.isalpha, literal))
        if name is None:
            continue
        if not name.isidentifier():
            return None
        form += f"(?P={name})" if name in seen else f"(?P<{name}>.*?)"
        seen.add(name)
    return re.compile(form, re.DOTALL) if own > 2 else None
