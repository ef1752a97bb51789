"""Which of the two commit slots of a redb file is read (``docs/formats/redb.md``, "Which slot counts")."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from regraft.formats.redb.damage import PageDamage, Report
from regraft.formats.redb.header import SLOT_BYTES, Header, Slot
from regraft.language import tr

#: Since this version a file that was closed cleanly never has a newer state in the slot that it does not name.
_NEWEST_IS_NAMED = 3


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The slots in the order in which they are to be tried, those alone whose checksums are right."""

    slots: tuple[Slot, ...]
    #: Whether the second is to be read where not all pages of the first are right.
    may_fall_back: bool = False


def choose(header: Header, size: int, report: Report) -> Choice:
    """Return which slot of a file of this size to read, and report those that are damaged."""
    primary, secondary = header.primary, header.secondary
    if not primary.is_whole:
        if secondary.is_whole:
            report(_damaged(primary, tr("its checksum is wrong, and the other commit was read")))
        return Choice(slots=(secondary,) if secondary.is_whole else ())
    if not secondary.is_whole:
        # Whoever is killed in the midst of a commit leaves such a slot.
        if not header.needs_recovery:
            report(_damaged(secondary, tr("its checksum is wrong")))
        return Choice(slots=(primary,))
    is_newer = secondary.transaction_id > primary.transaction_id
    if _was_left(header, size) and not header.is_two_phase:
        return Choice(slots=(secondary, primary) if is_newer else (primary, secondary), may_fall_back=True)
    if is_newer and not header.needs_recovery and primary.version >= _NEWEST_IS_NAMED:
        report(_damaged(primary, tr("the file names it, but the other commit is newer and was read")))
        return Choice(slots=(secondary, primary))
    return Choice(slots=(primary, secondary))


def settle(choice: Choice, is_right: Callable[[Slot], bool], report: Report) -> Slot:
    """Return the slot of a choice that counts, given what tells whether all pages of a slot are right."""
    first = choice.slots[0]
    if not choice.may_fall_back or is_right(first) or not is_right(choice.slots[1]):
        return first
    report(_damaged(first, tr("not all of this commit reached the disk, and the one before was read")))
    return choice.slots[1]


def _was_left(header: Header, size: int) -> bool:
    """Tell whether redb would mend the file when it opens it."""
    return header.needs_recovery or header.layout.file_bytes != size


def _damaged(slot: Slot, reason: str) -> PageDamage:
    words = tr("commit slot {index}", index=slot.index)
    return PageDamage(table=None, page=words, offset=slot.offset, length=SLOT_BYTES, reason=reason)
