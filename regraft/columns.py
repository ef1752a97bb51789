"""How many columns a text takes in a terminal, and text filled up to some."""

from __future__ import annotations


def columns(text: str) -> int:
    """Return how many columns a text of one line takes in a terminal."""
    text = text.rstrip("\n")
    if text.isascii():
        return len(text)
    from wcwidth import wcswidth  # noqa: PLC0415 - takes its time, and ASCII needs none of it

    width = wcswidth(text)
    return width if width >= 0 else len(text)


def padded(text: str, width: int) -> str:
    """Return a text with blanks behind it, of so many columns at least."""
    return text + " " * (width - columns(text))


def padded_left(text: str, width: int) -> str:
    """Return a text with blanks before it, of so many columns at least."""
    return " " * (width - columns(text)) + text
