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
from typing import Any

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
    plain = message.format(**{name: english(fact) for name, fact in facts.items()}) if facts else message
    return in_other_words(plain, message, facts)


def tr_in(context: str, message: str, /) -> str:
    """Return a message without facts that means something of its own in a context, such as "note" of a severity."""
    return in_other_words(message, message, {}, context)


def joined(parts: Iterable[object], last: str = "", *, between: str = "") -> str:
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
    return together(texts[1:])


def together(parts: Iterable[str]) -> str:
    """Return parts of a text, those that were translated among them, as one text (:func:`filled`)."""
    texts = list(parts)
    return remembered(_spaced(texts), "".join(str(english(text)) for text in texts))


def put_in(message: str, mark: str, text: str) -> str:
    """Return a message with a text in the place of a mark, such as "{n}"; nothing else in it is read as a template."""
    plain = str(english(message)).replace(mark, str(english(text)))
    before, *after = message.split(mark)
    parts = [before]
    for one in after:
        parts += [text, one]
    return remembered(_spaced(parts), plain)


def remembered(translated: str, plain: str) -> str:
    """Return a translated text after its English was noted."""
    if translated != plain:
        _english[translated] = plain
    return translated


def in_other_words(plain: str, message: str, facts: Mapping[str, object], context: str = "") -> str:
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
    return remembered(filled(found, facts) if facts else found, plain)


def filled(template: str, facts: Mapping[str, object]) -> str:
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


def english(text: object) -> object:
    """Return a translated message, an error's, too, as it was before; anything else as it is."""
    if isinstance(text, BaseException):
        text = str(text)
    return _english.get(text, text) if isinstance(text, str) else text


def in_english(value: Any) -> Any:
    """Return a document with every message in it as it was before it was translated."""
    if isinstance(value, dict):
        return {key: in_english(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [in_english(inner) for inner in value]
    return english(value)


def language() -> str:
    """Return the language of this process, such as "en" or "zh"."""
    return os.environ.get(VARIABLE) or ENGLISH


def languages() -> list[str]:
    """Return the languages that there are: English and those with a catalog."""
    return [ENGLISH, *sorted(path.parent.parent.name for path in FOLDER.glob(f"*/LC_MESSAGES/{DOMAIN}.mo"))]


class Catalog(gettext.GNUTranslations):
    """The messages of a language."""

    _catalog: dict[str | tuple[str, int], str]

    def messages(self) -> list[str]:
        """Return the messages that it has a translation of, but for those with a context."""
        return [one for one in self._catalog if isinstance(one, str) and one and "\x04" not in one]


@cache
def catalog_of(wanted: str) -> Catalog:
    """Return the catalog of a language.

    Raises:
        FileNotFoundError: it has none.
    """
    return gettext.translation(DOMAIN, str(FOLDER), [wanted], class_=Catalog)


def _catalog() -> Catalog | None:
    """Return the catalog of this process; None: it speaks English."""
    if language() == ENGLISH:
        return None
    try:
        return catalog_of(language())
    except FileNotFoundError:
        return None


# --- which language a command line speaks ----------------------------------------------------------------------------


def settle(arguments: list[str]) -> list[str]:
    """Settle in which language this process speaks: by ``--lang`` or the locale; return the arguments without it.

    JSON is for programs: with ``--json`` it speaks English. A language that is not there stays among the arguments.
    """
    left, asked = _taken_out(arguments)
    chosen = asked or spoken_by(os.environ)
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
        if value in languages():
            return [*arguments[:at], *arguments[last + 1 :]], value
    return arguments, None


def spoken_by(environment: Mapping[str, str]) -> str:
    """Return the language that an environment asks for, as far as it is there; else English."""
    wanted = environment.get(VARIABLE) or next(
        (environment[name] for name in _LOCALE_VARIABLES if environment.get(name)), ""
    )
    if not wanted and sys.platform == "win32":
        wanted = _of_windows()
    return _known(wanted, languages())


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
