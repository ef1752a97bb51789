"""The language in which regraft speaks: messages are English in the code, and translated where they are made.

A process speaks one language, which is settled before the modules that have messages are loaded: ``REGRAFT_LANG`` says
it, and the command line sets that from ``--lang`` or the locale. Programs, and ``--json``, get English. Catalogs are
gettext's, ``locale/LANGUAGE/LC_MESSAGES/regraft.po`` (``docs/translating.md``).
"""

from __future__ import annotations

import gettext
import locale
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


#: Says in which language a process speaks.
VARIABLE = "REGRAFT_LANG"
DOMAIN = "regraft"
FOLDER = Path(__file__).parent / "locale"
ENGLISH = "en"
OPTION = "--lang"
_LOCALE_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")

#: Where a blank parts the two characters.
_MIXED = re.compile("[\u4e00-\u9fff][0-9A-Za-z/~._]|[0-9A-Za-z/_.][\u4e00-\u9fff]")

#: What was translated, by what became of it: what is kept in files is English.
_english: dict[str, str] = {}


def tr(message: str, /, **facts: object) -> str:
    """Return a message in the language of this process.

    Args:
        message: English, a ``str.format`` template if there are facts.
        facts: what stands in it by its names; a fact that is a message is translated already.
    """
    if _catalog() is None:
        return message.format(**facts) if facts else message
    plain = message.format(**{name: to_english(fact) for name, fact in facts.items()}) if facts else message
    return translate_as(plain, message, facts)


def tr_in(context: str, message: str, /) -> str:
    """Return a message without facts that means something of its own in a context, such as "note" of a severity."""
    return translate_as(message, message, {}, context)


def join_list(parts: Iterable[object], last: str = "", *, between: str = "") -> str:
    """Return things one after the other, as a list is written in the language of this process: "a, b".

    Args:
        parts: texts, those that were translated among them.
        last: what stands before the last one instead of a comma, such as ``tr(" and ")``.
        between: what stands between them instead of a comma, such as ``tr("; ")``.
    """
    between = between or tr(", ")
    texts: list[str] = []
    for part in parts:
        texts += [between, str(part)]
    if last and len(texts) > 2:
        texts[-2] = last
    return join_parts(texts[1:])


def join_parts(parts: Iterable[str]) -> str:
    """Return parts of a text, those that were translated among them, as one text (:func:`filled`)."""
    texts = list(parts)
    return remember_english(_spaced(texts), "".join(str(to_english(text)) for text in texts))


def insert_at_mark(message: str, mark: str, text: str) -> str:
    """Return a message with a text in the place of a mark, such as "{n}"; nothing else in it is read as a template."""
    plain = str(to_english(message)).replace(mark, str(to_english(text)))
    before, *after = message.split(mark)
    parts = [before]
    for one in after:
        parts += [text, one]
    return remember_english(_spaced(parts), plain)


def remember_english(translated: str, plain: str) -> str:
    """Return a translated text after its English was noted."""
    if translated != plain:
        _english[translated] = plain
    return translated


def translate_as(plain: str, message: str, facts: Mapping[str, object], context: str = "") -> str:
    """Return ``plain`` in the language of this process, by a message that a catalog has for it.

    Args:
        plain: what it is in English.
        message: the English template of the catalog.
        facts: what stands in it.
        context: that of the message in the catalog, if it has one.
    """
    catalog = _catalog()
    if catalog is None:
        return plain
    found = catalog.pgettext(context, message) if context else catalog.gettext(message)
    if found == message:
        return plain
    return remember_english(fill_template(found, facts) if facts else found, plain)


def fill_template(template: str, facts: Mapping[str, object]) -> str:
    """Return a template with its facts; between these and it a blank parts Chinese characters from Latin ones."""
    parts = []
    for literal, name, spec, conversion in Formatter().parse(template):
        parts.append(literal)
        if name is not None:
            converted = f"!{conversion}" if conversion else ""
            parts.append(f"{{{name}{converted}:{spec}}}".format(**facts))
    return _spaced(parts)


def _spaced(parts: Iterable[str]) -> str:
    """Return parts of a text one after the other, with a blank where Chinese meets Latin."""
    text = ""
    for part in parts:
        text += f" {part}" if _MIXED.match(text[-1:] + part[:1]) else part
    return text


def to_english(text: object) -> object:
    """Return a translated message, an error's, too, as it was before; anything else as it is."""
    if isinstance(text, BaseException):
        text = str(text)
    return _english.get(text, text) if isinstance(text, str) else text


def document_in_english(value: Any) -> Any:
    """Return a document with every message in it as it was before it was translated."""
    if isinstance(value, dict):
        return {key: document_in_english(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [document_in_english(inner) for inner in value]
    return to_english(value)


def current_language() -> str:
    """Return the language of this process, such as "en" or "zh"."""
    return os.environ.get(VARIABLE) or ENGLISH


def available_languages() -> list[str]:
    """Return the languages that there are: English and those with a catalog."""
    return [ENGLISH, *sorted(path.parent.parent.name for path in FOLDER.glob(f"*/LC_MESSAGES/{DOMAIN}.mo"))]


class Catalog(gettext.GNUTranslations):
    """The messages of a language."""

    _catalog: dict[str | tuple[str, int], str]

    def messages(self) -> list[str]:
        """Return the messages that it has a translation of, but for those with a context."""
        return [one for one in self._catalog if isinstance(one, str) and one and "\x04" not in one]


@cache
def load_catalog(wanted: str) -> Catalog:
    """Return the catalog of a language.

    Raises:
        FileNotFoundError: it has none.
    """
    return gettext.translation(DOMAIN, str(FOLDER), [wanted], class_=Catalog)


def _catalog() -> Catalog | None:
    """Return the catalog of this process; None: it speaks English."""
    if current_language() == ENGLISH:
        return None
    try:
        return load_catalog(current_language())
    except FileNotFoundError:
        return None


# --- which language a command line speaks ----------------------------------------------------------------------------


def set_language(arguments: list[str]) -> list[str]:
    """Settle in which language this process speaks: by ``--lang`` or the locale; return the arguments without it.

    JSON is for programs: with ``--json`` it speaks English. A language that is not there stays among the arguments.
    """
    left, asked = _taken_out(arguments)
    chosen = asked or language_of_environment(os.environ)
    if "--json" in left:
        chosen = ENGLISH
    os.environ[VARIABLE] = chosen
    # What click says itself is in our catalog, too, and comes by the way of the standard library.
    os.environ["LANGUAGE"] = chosen
    gettext.bindtextdomain(DOMAIN, str(FOLDER))
    gettext.textdomain(DOMAIN)
    return left


def _taken_out(arguments: list[str]) -> tuple[list[str], str | None]:
    """Return arguments without ``--lang`` and its value, if that is a language that there is; and that."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    for at in range(end):
        name, is_one, value = arguments[at].partition("=")
        if name != OPTION:
            continue
        last = at if is_one else at + 1
        if not is_one:
            value = arguments[last] if last < end else ""
        if value in available_languages():
            return [*arguments[:at], *arguments[last + 1 :]], value
    return arguments, None


def language_of_environment(environment: Mapping[str, str]) -> str:
    """Return the language that an environment asks for, as far as it is there; else English."""
    wanted = environment.get(VARIABLE) or next(
        (environment[name] for name in _LOCALE_VARIABLES if environment.get(name)), ""
    )
    if not wanted and sys.platform == "win32":
        wanted = _of_windows()
    return _known(wanted, available_languages())


def _known(wanted: str, there: Sequence[str]) -> str:
    """Return the language of a locale such as "zh_CN.UTF-8", if it is there; else English."""
    name = wanted.replace("-", "_").split(".")[0].split("@")[0]
    for candidate in (name, name.split("_")[0].lower()):
        if candidate in there:
            return candidate
    return ENGLISH


def _of_windows() -> str:
    """Return the locale of Windows' own texts, which has no variable."""
    import ctypes  # noqa: PLC0415 - on one system alone

    number = ctypes.windll.kernel32.GetUserDefaultUILanguage()  # type: ignore[attr-defined,unused-ignore]
    return locale.windows_locale.get(number, "")


# Text that was kept in English, in another language: by the messages of the catalog that it was made of.


#: Messages in one another, at the most.
_DEEPEST = 4
#: What stands between messages that follow one another.
_BETWEEN = "; "


def translate_kept_text(text: str) -> str:
    """Return a kept text in the language of this process; what is written of it to files stays English."""
    return remember_english(translate_text(text, current_language()), text)


def translate_text(text: str, wanted: str, depth: int = 0) -> str:
    """Return a kept text in a language; what no message of the catalog gives stays as it is.

    Args:
        text: English, as :func:`regraft.language.tr` made it.
        wanted: the language.
        depth: how many messages it stands in.
    """
    if wanted == ENGLISH or not text:
        return text
    catalog = load_catalog(wanted)
    found = catalog.gettext(text)
    if found != text or depth == _DEEPEST:
        return found
    counted = _NUMBER_WITH_NOUN.fullmatch(text)
    if counted is not None:
        return _translate_count(counted[1], counted[2], wanted) or text
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
            return _translate_filled(message, match.groupdict(), wanted, depth)
        unlikely = unlikely or (message, match.groupdict())
    parts = text.split(_BETWEEN)
    if len(parts) > 1:
        translations = [translate_text(part, wanted, depth + 1) for part in parts]
        if all(found != part for found, part in zip(translations, parts, strict=True)):
            return load_catalog(wanted).gettext(_BETWEEN).join(translations)
    return None if unlikely is None else _translate_filled(*unlikely, wanted, depth)


def _translate_filled(message: str, facts: dict[str, str], wanted: str, depth: int) -> str:
    again = {name: translate_text(value, wanted, depth + 1) for name, value in facts.items()}
    return fill_template(_WITHOUT_FORM.sub(r"{\1}", load_catalog(wanted).gettext(message)), again)


#: What a fact is formatted by is in the text already.
_WITHOUT_FORM = re.compile(r"\{(\w+)[!:][^{}]*\}")


#: A number with what it counts.
_NUMBER_WITH_NOUN = re.compile(r"([0-9,]+) ([a-z][a-z -]*)")


def _translate_count(number: str, noun: str, wanted: str) -> str | None:
    """Return a number with its noun; None where the catalog does not count such."""
    for singular in (noun, noun.removesuffix("s"), f"{noun.removesuffix('ies')}y"):
        message = f"{{count:,}} {singular}"
        found = load_catalog(wanted).gettext(message)
        if found != message:
            return fill_template(_WITHOUT_FORM.sub(r"{\1}", found), {"count": number})
    return None


@cache
def _forms(wanted: str) -> list[tuple[str, str, re.Pattern[str]]]:
    """Return the messages with facts, those with the most words of their own first, each with its longest literal part
    and with what it looks like.
    """
    messages = [message for message in load_catalog(wanted).messages() if "{" in message]
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


def format_count(number: int, noun: str, *, context: str = "") -> str:
    """Return a number with its English noun, in the plural where it is not one, in the language of this process.

    A catalog has it as a message of its own, "{count:,} row", with ``context`` where the noun has several meanings.
    """
    if number == 1:
        plain = f"{number:,} {noun}"
    elif noun.endswith("y") and noun[-2] not in "aeiou":
        plain = f"{number:,} {noun[:-1]}ies"
    else:
        plain = f"{number:,} {noun}s"
    return translate_as(plain, f"{{count:,}} {noun}", {"count": number}, context)
