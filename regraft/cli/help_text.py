"""The text of a command's help, paragraph by paragraph in the language of this process; examples stay as they are."""

from __future__ import annotations

import inspect

from regraft.language import tr

#: Begins a paragraph whose lines stay as they are.
_AS_IT_IS = "\b"


def paragraphs(text: str) -> list[str]:
    """Return what of a help is translated, each paragraph on one line."""
    return [_on_one_line(part) for part in _parts(text) if not part.startswith(_AS_IT_IS)]


def translated(text: str) -> str:
    """Return a help in the language of this process."""
    return "\n\n".join(_translated(part) for part in _parts(text))


def _translated(part: str) -> str:
    if part.startswith(_AS_IT_IS):
        return part.replace("Example:", tr("Example:"), 1)
    return tr(_on_one_line(part))


def _parts(text: str) -> list[str]:
    return inspect.cleandoc(text).split("\n\n")


def _on_one_line(part: str) -> str:
    return " ".join(part.split())
