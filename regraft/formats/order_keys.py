"""``order_key``: strings that sort like rows and leave room for another key between any two.

A key consists of an integer part and a fraction. The first letter of the integer part determines its number of digits:
``a`` one, ``b`` two and so on; ``Z`` one, ``Y`` two and so on for keys before ``a0``. Keys are compared byte by byte
(``docs/formats/catalog.md``).
"""

from __future__ import annotations

from regraft.language import tr

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_FIRST = "a0"
#: Appended to a key that has no regular successor; the result sorts after the key.
_SUFFIX = "V"


def order_key(position: int) -> str:
    """Return the key of the row at ``position`` (from 0) in a new table: ``a0``, ``a1``, … ``az``, ``b00``, …

    Raises:
        ValueError: keys have no more digits.
    """
    for length in range(1, 8):
        count = len(DIGITS) ** length
        if position < count:
            digits = ""
            for _ in range(length):
                position, digit = divmod(position, len(DIGITS))
                digits = DIGITS[digit] + digits
            return chr(ord("a") + length - 1) + digits
        position -= count
    raise ValueError(tr("there are more rows than order keys"))


def key_after(last: str | None) -> str:
    """Return the key that the application gives to a row inserted after the one with the key ``last``.

    None: the table is empty. If ``last`` is not a valid key, the result still sorts after it by its bytes.
    """
    if not last:
        return _FIRST
    length = _length(last[0])
    number = last[:length]
    if length is None or len(number) < length or not set(number) <= set(DIGITS):
        # Not a valid key: find one that sorts after it.
        if last[0] < "A" or "Z" < last[0] < "a":
            return _FIRST
        following = _first_with_next_letter(last[0]) if last[0] <= "z" else None
        return last + _SUFFIX if following is None else following
    following = _next_integer(number)
    # After the highest integer only fractions of it follow.
    return number + _next_fraction(last[length:]) if following is None else following


def _length(letter: str) -> int | None:
    """Return the length of the integer part that begins with a letter, including it; None for any other character."""
    if "a" <= letter <= "z":
        return ord(letter) - ord("a") + 2
    return ord("Z") - ord(letter) + 2 if "A" <= letter <= "Z" else None


def _next_integer(integer_part: str) -> str | None:
    """Return the integer part that follows another one; None after the last one."""
    head, digits = integer_part[0], integer_part[1:]
    kept = digits.rstrip(DIGITS[-1])
    if kept:
        following = DIGITS[DIGITS.index(kept[-1]) + 1]
        return head + kept[:-1] + following + DIGITS[0] * (len(digits) - len(kept))
    return _first_with_next_letter(head)


def _first_with_next_letter(letter: str) -> str | None:
    """Return the first integer part that begins with the letter after ``letter``; None after ``z``."""
    if letter == "z":
        return None
    following = "a" if letter == "Z" else chr(ord(letter) + 1)
    return following + DIGITS[0] * ((_length(following) or 2) - 1)


def _next_fraction(fraction: str) -> str:
    """Return a fraction (the digits after a key's integer part) that sorts after another one."""
    kept = ""
    for character in fraction:
        digit_value = DIGITS.find(character)
        if 0 <= digit_value < len(DIGITS) - 1:
            return kept + DIGITS[(digit_value + len(DIGITS) + 1) // 2]
        kept += character
    return kept + _SUFFIX
