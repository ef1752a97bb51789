"""How many tokens a text has."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from regraft.embedders.settings import EmbedderSettings, LocalSettings
from regraft.errors import ModelUnreadable
from regraft.extras import needed
from regraft.language import tr
from regraft.text import one_line

Counter = Callable[[str], int]


def estimate(text: str) -> int:
    """Return about how many tokens a text has: a quarter of one for an ASCII character, a third for any other byte of
    its UTF-8. So a Chinese character has one, a Cyrillic letter two thirds (``docs/embedders.md``, "Tokens").
    """
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    ascii_size = size if text.isascii() else len(text.encode("ascii", "ignore"))
    return math.ceil(ascii_size / 4 + (size - ascii_size) / 3)


def counter(settings: EmbedderSettings) -> Counter:
    """Return what counts the tokens of a text: the tokenizer of the configuration or of the local model, else
    :func:`estimate`.

    Raises:
        WrongUsage: the ``tokenizers`` library is not installed.
        ModelUnreadable: the tokenizer cannot be read.
    """
    file = settings.tokenizer
    if file is None and isinstance(settings, LocalSettings) and (settings.path / "tokenizer.json").is_file():
        file = settings.path / "tokenizer.json"
    return estimate if file is None else _exact(file)


def _exact(file: Path) -> Counter:
    tokenizers = needed("tokenizers", tr("Exact numbers of tokens"), "tokenizers")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ModelUnreadable(path=file, library="tokenizers", reason=one_line(str(error))[:200]) from error
    # What a model cuts away is paid for all the same.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text).ids)
