"""Text that was kept in English, in another language: by the messages of the catalog that it was made of."""

from __future__ import annotations

import re
from functools import cache
from string import Formatter

from regraft.language import ENGLISH, catalog_of, filled

#: Messages in one another, at the most.
_DEEPEST = 4


def translated(text: str, wanted: str, depth: int = 0) -> str:
    """Return a kept text in a language; what no message of the catalog gives stays as it is.

    Args:
        text: English, as :func:`regraft.language.tr` made it.
        wanted: the language.
        depth: how many messages it stands in.
    """
    if wanted == ENGLISH:
        return text
    catalog = catalog_of(wanted)
    found = catalog.gettext(text)
    if found != text or depth == _DEEPEST:
        return found
    counted = _COUNTED.fullmatch(text)
    if counted is not None:
        return _counted(counted[1], counted[2], wanted) or text
    for message, form in _forms(wanted):
        match = form.fullmatch(text)
        if match is not None:
            facts = {name: translated(value, wanted, depth + 1) for name, value in match.groupdict().items()}
            return filled(_WITHOUT_FORM.sub(r"{\1}", catalog.gettext(message)), facts)
    return text


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
def _forms(wanted: str) -> list[tuple[str, re.Pattern[str]]]:
    """Return the messages with facts, those with the most words of their own first, each as what it looks like."""
    messages = [message for message in catalog_of(wanted).messages() if "{" in message]
    messages.sort(key=lambda message: len(re.sub(r"\{[^{}]*\}", "", message)), reverse=True)
    forms = ((message, _form(message)) for message in messages)
    return [(message, form) for message, form in forms if form is not None]


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
