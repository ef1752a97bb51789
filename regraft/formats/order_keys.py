"""The keys by which bases and items are ordered, for other programs."""

from __future__ import annotations

from regraft.language import tr

# ``order_key``: texts that sort as rows do, between any two of which another one fits (``docs/formats/catalog.md``).
#
# A key is a whole number and a fraction. The number's first letter tells how many digits it has: ``a`` one, ``b`` two and
# so on upwards, ``Z`` one, ``Y`` two and so on for what comes before ``a0``. Keys compare by their bytes.


DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_FIRST = "a0"
#: Stands for what follows on a key that no key can follow: it sorts behind its own beginning.
_BEHIND = "V"


def order_key(position: int) -> str:
    """Return the ``order_key`` of the n-th row of a table without any: ``a0``, ``a1``, … ``az``, ``b00``, …

    Raises:
        ValueError: no key has so many digits.
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
    raise ValueError(tr("more rows than order keys"))


def key_after(last: str | None) -> str:
    """Return the key that the application gives to a row behind ``last``, None where there is no row yet.

    What is no key by the rules still gets one that sorts behind it by its bytes.
    """
    if not last:
        return _FIRST
    length = _length(last[0])
    number = last[:length] if length is not None else ""
    if length is None or len(number) < length or not set(number) <= set(DIGITS):
        return _behind_damaged(last)
    following = _incremented(number)
    # Behind the highest number of all there are only fractions of it.
    return number + _fraction_behind(last[length:]) if following is None else following


def _length(head: str) -> int | None:
    """Return how long a key's whole number is with its first letter, None where that begins none."""
    if "a" <= head <= "z":
        return ord(head) - ord("a") + 2
    return ord("Z") - ord(head) + 2 if "A" <= head <= "Z" else None


def _incremented(number: str) -> str | None:
    head, digits = number[0], number[1:]
    kept = digits.rstrip(DIGITS[-1])
    if kept:
        following = DIGITS[DIGITS.index(kept[-1]) + 1]
        return head + kept[:-1] + following + DIGITS[0] * (len(digits) - len(kept))
    return _first_behind(head)


def _first_behind(head: str) -> str | None:
    """Return the first key with the next letter; None behind ``z``."""
    if head == "z":
        return None
    following = "a" if head == "Z" else chr(ord(head) + 1)
    return following + DIGITS[0] * ((_length(following) or 2) - 1)


def _fraction_behind(fraction: str) -> str:
    kept = ""
    for character in fraction:
        place = DIGITS.find(character)
        if 0 <= place < len(DIGITS) - 1:
            return kept + DIGITS[(place + len(DIGITS) + 1) // 2]
        kept += character
    return kept + _BEHIND


def _behind_damaged(last: str) -> str:
    if last[0] < "A" or "Z" < last[0] < "a":
        return _FIRST
    following = _first_behind(last[0]) if last[0] <= "z" else None
    return last + _BEHIND if following is None else following


__all__ = [
    "key_after",
    "order_key",
]
