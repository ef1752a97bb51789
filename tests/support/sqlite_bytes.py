"""What files are made of whose pages are damaged, and a reader of its own of how SQLite keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

D = TypeVar("D", bound=Callable[..., None])

WORDS = [
    "harbour",
    "lamp",
    "fog",
    "bell",
    "潮汐",
    "灯塔",
    "rope",
    "tar",
    "cedar",
    "plank",
    "船",
    "oakum",
    "signal",
    "keeper",
    "brass",
    "海图",
    "tide",
    "log",
    "winter",
    "quay",
]


def registered(damages: dict[str, D], name: str) -> Callable[[D], D]:
    """Return what enters a kind of damage by its name."""

    def take(made: D) -> D:
        damages[name] = made
        return made

    return take


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends."""
    value = 0
    for length in range(8):
        value = value << 7 | data[at + length] & 0x7F
        if data[at + length] < 0x80:
            return value, at + length + 1
    return value << 8 | data[at + 8], at + 9


def local_bytes(payload: int, usable: int) -> int:
    """Return how many bytes of a row are on its leaf, where a page has so many usable ones."""
    if payload <= usable - 35:
        return payload
    least = (usable - 12) * 32 // 255 - 23
    part = least + (payload - least) % (usable - 4)
    return part if part <= usable - 35 else least
