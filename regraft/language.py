"""Translate messages into the language of the process: they are English in the code, and translated where they are
created.

The language is set before any module with messages is imported: ``REGRAFT_LANG`` names it, and the command line sets
that from ``--lang`` or the locale. Programs and ``--json`` get English. Catalogs are gettext's,
``locale/LANGUAGE/LC_MESSAGES/regraft.po`` (``docs/translating.md``). Files keep English text;
:func:`translate_kept_text` translates it when it is shown.
"""

from __future__ import annotations

import gettext
import locale
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from pathlib import Path
from string import Formatter
from typing import Any

#: The variable with the language of the process.
VARIABLE = "REGRAFT_LANG"
DOMAIN = "regraft"
FOLDER = Path(__file__).parent / "locale"
ENGLISH = "en"
OPTION = "--lang"
#: What the system (Linux, macOS) and SQLite answer in English, as reasons in messages.
SYSTEM_REASONS = frozenset({
    "Address already in use",
    "Broken pipe",
    "Cannot allocate memory",
    "Connection refused",
    "Connection reset by peer",
    "Connection timed out",
    "Cross-device link",
    "Device or resource busy",
    "Directory not empty",
    "Disc quota exceeded",
    "Disk quota exceeded",
    "File exists",
    "File name too long",
    "File too large",
    "Input/output error",
    "Invalid argument",
    "Invalid cross-device link",
    "Is a directory",
    "Network is unreachable",
    "No route to host",
    "No space left on device",
    "No such device or address",
    "No such file or directory",
    "Not a directory",
    "Operation not permitted",
    "Operation not supported",
    "Operation timed out",
    "Permission denied",
    "Read-only file system",
    "Resource busy",
    "Resource temporarily unavailable",
    "Stale file handle",
    "Text file busy",
    "Too many levels of symbolic links",
    "Too many open files",
    "Too many open files in system",
    "attempt to write a readonly database",
    "database disk image is malformed",
    "database is locked",
    "database or disk is full",
    "disk I/O error",
    "file is not a database",
    "out of memory",
    "unable to open database file",
})  # fmt: skip
_LOCALE_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")

#: A Chinese character next to a Latin one, between which a blank is inserted.
_MIXED = re.compile("[\u4e00-\u9fff][0-9A-Za-z/~._]|[0-9A-Za-z/_.][\u4e00-\u9fff]")

#: English texts by their translations: files keep English.
_english: dict[str, str] = {}
#: The language of the reader whom this thread or task answers; None: the process has one language for all.
_reader: ContextVar[str | None] = ContextVar("reader", default=None)


@contextmanager
def use_language(language: str) -> Iterator[None]:
    """Translate into ``language`` within the context, in this thread or task only: a server answers several readers."""
    before = _reader.set(language)
    try:
        yield
    finally:
        _reader.reset(before)


@contextmanager
def language_of_children(language: str) -> Iterator[None]:
    """Set the language of this process and of child processes that are started within the context.

    A language set by :func:`use_language` still has priority in its thread or task.
    """
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = language
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def tr(message: str, /, **facts: object) -> str:
    """Translate a message.

    Args:
        message: English; a ``str.format`` template if there are facts.
        facts: values by their names in the template; messages among them are already translated.
    """
    if _catalog() is None:
        return message.format(**facts) if facts else message
    plain = message.format(**{name: to_english(fact) for name, fact in facts.items()}) if facts else message
    return translate_as(plain, message, facts)


def tr_in(context: str, message: str, /) -> str:
    """Translate a message without facts whose meaning depends on the context, such as "note" as a severity."""
    return translate_as(message, message, {}, context)


def join_list(parts: Iterable[object], last: str = "", *, between: str = "") -> str:
    """Join texts to a list as the language writes it: "a, b".

    Args:
        parts: texts, translated or not.
        last: separator before the last one instead of a comma, such as ``tr(" and ")``.
        between: separator instead of a comma, such as ``tr("; ")``.
    """
    between = between or tr(", ")
    texts: list[str] = []
    for part in parts:
        texts += [between, str(part)]
    if last and len(texts) > 2:
        texts[-2] = last
    return join_parts(texts[1:])


def join_first(parts: Sequence[object], most: int) -> str:
    """Join the first ``most`` parts to a list, and count the others: "a, b, 3 more"."""
    more = len(parts) - most
    return join_list(parts) if more <= 0 else join_list([*parts[:most], tr("{more:,} more", more=more)])


def join_parts(parts: Iterable[str]) -> str:
    """Concatenate texts, translated or not, with a blank where Chinese and Latin letters meet."""
    texts = list(parts)
    return remember_english(_join_spaced(texts), "".join(str(to_english(text)) for text in texts))


def insert_at_mark(message: str, mark: str, text: str) -> str:
    """Replace a mark such as "{n}" in a message by a text; other braces are not interpreted."""
    plain = str(to_english(message)).replace(mark, str(to_english(text)))
    before, *after = message.split(mark)
    parts = [before]
    for one in after:
        parts += [text, one]
    return remember_english(_join_spaced(parts), plain)


def remember_english(translated: str, plain: str) -> str:
    """Record the English form ``plain`` of a translated text for :func:`to_english`; return the translation."""
    # A server that answers for days must not collect every sentence that it has shown.
    if translated != plain and _reader.get() is None:
        _english[translated] = plain
    return translated


def translate_as(plain: str, message: str, facts: Mapping[str, object], context: str = "") -> str:
    """Translate ``plain`` through a message of the catalog.

    Args:
        plain: the English text.
        message: its English template in the catalog.
        facts: values in the template; a reason of the system is translated as well.
        context: the message's context in the catalog, if any.
    """
    catalog = _catalog()
    if catalog is None:
        return plain
    found = catalog.pgettext(context, message) if context else catalog.gettext(message)
    if found == message and not facts:
        return plain
    shown = {name: catalog.gettext(str(fact)) if str(fact) in SYSTEM_REASONS else fact for name, fact in facts.items()}
    return remember_english(fill_template(found, shown) if facts else found, plain)


def fill_template(template: str, facts: Mapping[str, object]) -> str:
    """Fill a template with facts; a blank separates Chinese characters from Latin ones at their borders."""
    parts = []
    for literal, name, spec, conversion in Formatter().parse(template):
        parts.append(literal)
        if name is not None:
            converted = f"!{conversion}" if conversion else ""
            parts.append(f"{{{name}{converted}:{spec}}}".format(**facts))
    return _join_spaced(parts)


def _join_spaced(parts: Iterable[str]) -> str:
    """Concatenate parts, with a blank between Chinese and Latin characters."""
    text = ""
    for part in parts:
        text += f" {part}" if _MIXED.match(text[-1:] + part[:1]) else part
    return text


def to_english(text: object) -> object:
    """Return the English form of a translated message or error; other values are returned unchanged.

    The English forms are those that :func:`remember_english` recorded in this process.
    """
    if isinstance(text, BaseException):
        text = str(text)
    return _english.get(text, text) if isinstance(text, str) else text


def document_in_english(value: Any) -> Any:
    """Return a copy of a JSON document in which every translated message is in English."""
    if isinstance(value, dict):
        return {key: document_in_english(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [document_in_english(inner) for inner in value]
    return to_english(value)


def current_language() -> str:
    """Return the language of this process or of :func:`use_language`, such as "en" or "zh"."""
    return _reader.get() or os.environ.get(VARIABLE) or ENGLISH


def available_languages() -> list[str]:
    """Return the available languages: English and those with a catalog."""
    return [ENGLISH, *sorted(path.parent.parent.name for path in FOLDER.glob(f"*/LC_MESSAGES/{DOMAIN}.mo"))]


class Catalog(gettext.GNUTranslations):
    """The messages of one language."""

    _catalog: dict[str | tuple[str, int], str]

    def messages(self) -> list[str]:
        """Return the English messages that the catalog translates, without those that have a context."""
        return [one for one in self._catalog if isinstance(one, str) and one and "\x04" not in one]


@cache
def load_catalog(wanted: str) -> Catalog:
    """Return the catalog of a language, such as "zh".

    Raises:
        FileNotFoundError: the language has no catalog.
    """
    return gettext.translation(DOMAIN, str(FOLDER), [wanted], class_=Catalog)


def _catalog() -> Catalog | None:
    """Return the catalog of :func:`current_language`; None for English, or if there is no such catalog."""
    if current_language() == ENGLISH:
        return None
    try:
        return load_catalog(current_language())
    except FileNotFoundError:
        return None


# --- which language a command line speaks ----------------------------------------------------------------------------


def set_language(arguments: list[str]) -> list[str]:
    """Set the language of this process by ``--lang`` or the locale; return the arguments without the option.

    With ``--json``, which is for programs, it is English. An unknown language is left in the arguments.
    """
    left, asked = _split_option(arguments)
    chosen = asked or language_of_environment(os.environ)
    if "--json" in left:
        chosen = ENGLISH
    os.environ[VARIABLE] = chosen
    # Our catalog also has click's own messages, which it translates through the standard library.
    os.environ["LANGUAGE"] = chosen
    gettext.bindtextdomain(DOMAIN, str(FOLDER))
    gettext.textdomain(DOMAIN)
    return left


def _split_option(arguments: list[str]) -> tuple[list[str], str | None]:
    """Remove ``--lang LANGUAGE`` from arguments of the command line; return the others, and the language.

    If the option is missing, or the language is not available, all arguments and None are returned.
    """
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
    """Return the available language that an environment asks for, or English."""
    wanted = environment.get(VARIABLE) or next(
        (environment[name] for name in _LOCALE_VARIABLES if environment.get(name)), ""
    )
    if not wanted and sys.platform == "win32":
        import ctypes  # noqa: PLC0415 - on Windows only

        # The display language of Windows, which has no variable.
        number = ctypes.windll.kernel32.GetUserDefaultUILanguage()  # type: ignore[attr-defined,unused-ignore]
        wanted = locale.windows_locale.get(number, "")
    # A locale such as "zh_CN.UTF-8".
    name = wanted.replace("-", "_").split(".")[0].split("@")[0]
    available = available_languages()
    return next((one for one in (name, name.split("_")[0].lower()) if one in available), ENGLISH)


# Translating kept text: English text in files is matched with the messages of the catalog that it was made of.


#: Maximum nesting of messages.
_DEEPEST = 4
#: Separator of consecutive messages.
_BETWEEN = "; "


def translate_kept_text(text: str) -> str:
    """Translate an English text from a file into the language of this process."""
    return remember_english(translate_text(text, current_language()), text)


def translate_text(text: str, wanted: str) -> str:
    """Translate a text from a file; what matches no message of the catalog stays unchanged.

    Args:
        text: English, as :func:`tr` made it.
        wanted: the language.
    """
    return text if wanted == ENGLISH or not text else _translate(text, wanted, 0)[0]


@lru_cache(maxsize=4096)
def _translate(text: str, wanted: str, depth: int) -> tuple[str, int]:
    """Translate a text of a file; return it with the number of words that stay English.

    A text may be several messages inside each other, and often more than one combination of messages has its words. The
    one that leaves the fewest English words is right; among equals, one that begins as the text does.
    ``depth`` is the number of enclosing messages.
    """
    catalog = load_catalog(wanted)
    found = catalog.gettext(text) if text else text
    if found != text:
        return found, 0
    unchanged = len(_ENGLISH_WORD.findall(text))
    if not unchanged or depth == _DEEPEST:
        return text, unchanged
    counted = _NUMBER_WITH_NOUN.fullmatch(text)
    count_message = counted and _counting_message(counted[2], wanted)
    if counted and count_message:
        return fill_template(_WITHOUT_FORM.sub(r"{\1}", catalog.gettext(count_message)), {"count": counted[1]}), 0
    candidates = _candidates(text, wanted, depth)
    best, left, _ = min(candidates, key=lambda one: (one[2], one[1]), default=(text, unchanged, False))
    return best, left


def _candidates(text: str, wanted: str, depth: int) -> Iterator[tuple[str, int, bool]]:
    """Yield the translations of a text by each combination of messages that gives it, better ones first.

    The text may consist of several messages, so a message in which a fact would contain more than one of them is
    unlikely (the last value). The arguments and the number are those of :func:`_translate`.
    """
    catalog = load_catalog(wanted)
    for message, words in _messages_with_facts(wanted):
        form = _pattern(message, wanted) if words in text else None
        match = None if form is None else form.fullmatch(text)
        if match is None:
            continue
        facts = match.groupdict()
        translated = {name: _translate(value, wanted, depth + 1) for name, value in facts.items()}
        template = _name_mark(_WITHOUT_FORM.sub(r"{\1}", catalog.gettext(message)))
        filled = fill_template(template, {name: one for name, (one, _) in translated.items()})
        is_unlikely = any(_BETWEEN in value for value in facts.values())
        yield filled, sum(left for _, left in translated.values()), is_unlikely
    yield from _candidates_of_parts(text, wanted, depth)


def _candidates_of_parts(text: str, wanted: str, depth: int) -> Iterator[tuple[str, int, bool]]:
    """Yield the translations of a text as several messages; arguments and values are those of :func:`_candidates`."""
    catalog = load_catalog(wanted)
    parts = text.split(_BETWEEN)
    if len(parts) > 1:
        several = [_translate(part, wanted, depth + 1) for part in parts]
        if all(found != part for (found, _), part in zip(several, parts, strict=True)):
            joined = catalog.gettext(_BETWEEN).join(one for one, _ in several)
            yield joined, sum(left for _, left in several), False
    yield from _candidates_with_addition(text, wanted, depth)


def _candidates_with_addition(text: str, wanted: str, depth: int) -> Iterator[tuple[str, int, bool]]:
    """Yield the translations of a text as a message with an addition, such as ", under the name {name}".

    The arguments and the values are those of :func:`_candidates`.
    """
    at = text.rfind(", ")
    while at > 0:
        (head, of_head), (tail, of_tail) = (_translate(part, wanted, depth + 1) for part in (text[:at], text[at:]))
        if head != text[:at] and tail != text[at:]:
            yield join_parts((head, tail)), of_head + of_tail, False
        at = text.rfind(", ", 0, at)


#: A word that is no part of a path, an id or an option.
_ENGLISH_WORD = re.compile(r"(?<![\w./:@-])[a-z]{2,}(?![\w/:@=-]|\.\w)")

#: A format specification has been applied to the text already.
_WITHOUT_FORM = re.compile(r"\{(\w+)[!:][^{}]*\}")


#: A number and a noun.
_NUMBER_WITH_NOUN = re.compile(r"([0-9,]+) ([a-z][a-z -]*)")


def _counting_message(noun: str, wanted: str) -> str | None:
    """Return the message that counts a noun, in the singular or plural; None if there is none."""
    catalog = load_catalog(wanted)
    for singular in (noun, noun.removesuffix("s"), f"{noun.removesuffix('ies')}y"):
        message = f"{{count:,}} {singular}"
        if catalog.gettext(message) != message:
            return message
    return None


@cache
def _messages_with_facts(wanted: str) -> list[tuple[str, str]]:
    """List the messages with facts in the catalog of the language ``wanted``, each with its longest literal part.

    Those that begin with literal text come first, and among these those with most of it.
    """
    messages = [message for message in load_catalog(wanted).messages() if "{" in message]
    messages.sort(key=lambda message: (message[0] == "{", -len(re.sub(r"\{[^{}]*\}", "", message))))
    return [(message, max((literal for literal, *_ in Formatter().parse(message)), key=len)) for message in messages]


@cache
def _counts(wanted: str) -> str:
    """Return a pattern of a number with a noun that the catalog counts."""
    nouns = [message.removeprefix("{count:,} ") for message in load_catalog(wanted).messages()]
    known = sorted({noun for noun in nouns if re.fullmatch("[a-z -]+", noun)}, key=len, reverse=True)
    forms = (rf"{re.escape(noun[:-1])}(?:y|ies)" if noun.endswith("y") else rf"{re.escape(noun)}s?" for noun in known)
    return rf"[0-9,]+ (?:{'|'.join(forms)})(?!\w)"


def _name_mark(message: str) -> str:
    """Make facts of the marks of :func:`insert_at_mark` in a message."""
    for mark in ("{{}}", "{}", "{{n}}"):
        message = message.replace(mark, "{n}")
    return message


@cache
def _pattern(message: str, wanted: str) -> re.Pattern[str] | None:
    """Return the pattern of the texts that a message with facts gives; its groups are the facts.

    None if the message has hardly any letters, because the pattern would match anything.
    """
    form, seen, own = "", set[str](), 0
    parts = list(Formatter().parse(_name_mark(message)))
    for at, (literal, name, _, _) in enumerate(parts):
        form += re.escape(literal)
        own += sum(map(str.isalpha, literal))
        if name is None:
            continue
        if not name.isidentifier():
            return None
        # Before another fact, only a number with its noun shows where this one ends.
        is_before_fact = at + 1 < len(parts) and parts[at + 1][0] == " " and parts[at + 1][1] is not None
        value = rf"{_counts(wanted)}|.*?" if is_before_fact else ".*?"
        form += f"(?P={name})" if name in seen else f"(?P<{name}>{value})"
        seen.add(name)
    return re.compile(form, re.DOTALL) if own > 2 else None


def format_count(number: int, noun: str, *, context: str = "") -> str:
    """Format a number with its noun, such as "2 rows", in the current language.

    ``noun`` is the English singular. The catalog translates the message "{count:,} row", with ``context`` if the noun
    has several meanings.
    """
    if number == 1:
        plain = f"{number:,} {noun}"
    elif noun.endswith("y") and noun[-2] not in "aeiou":
        plain = f"{number:,} {noun[:-1]}ies"
    else:
        plain = f"{number:,} {noun}s"
    return translate_as(plain, f"{{count:,}} {noun}", {"count": number}, context)
