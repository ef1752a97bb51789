"""Which base a user means: by its id in v2 or in v1, by its name, or by the unique beginning of either."""

from __future__ import annotations

from collections.abc import Mapping

from regraft import identity
from regraft.errors import BaseUnknown
from regraft.language import joined
from regraft.move_errors import BaseAmbiguous
from regraft.text import one_line

#: A shorter beginning of an id is more likely a name that nothing has.
_SHORTEST_PREFIX = 4
#: A name may have two characters in all.
_SHORTEST_NAME = 2
_NO_LEGACY: Mapping[str, str] = {}


def known_id(wanted: str, names: Mapping[str, str], legacy: Mapping[str, str] = _NO_LEGACY) -> str | None:
    """Return the id of the base that an id is of: its own, or that which it had in v1; None where it is of none.

    Args:
        wanted: the id.
        names: the names of all bases by their ids.
        legacy: ids of bases by those that they had in v1, as far as their store knows these.
    """
    candidates = (wanted, legacy.get(wanted), identity.base_id(wanted.encode("utf-8", "replace").decode()))
    return next((one for one in candidates if one in names), None)


def meant(wanted: str, names: Mapping[str, str], legacy: Mapping[str, str] = _NO_LEGACY) -> str:
    """Return the id of the base that a user means; arguments as of :func:`known_id`.

    Raises:
        BaseUnknown, BaseAmbiguous
    """
    known = known_id(wanted, names, legacy)
    if known is not None:
        return known
    matching = [base for base, name in names.items() if name.strip() == wanted.strip()]
    matching = matching or _by_prefix(wanted, names, legacy) or _by_name(wanted, names)
    if not matching:
        listed = joined(base if name == base else f"{one_line(name)} ({base})" for base, name in names.items())
        raise BaseUnknown(base=wanted, known=listed or "none")
    if len(matching) > 1:
        raise BaseAmbiguous(base=wanted, known=joined(matching))
    return matching[0]


def _by_prefix(wanted: str, names: Mapping[str, str], legacy: Mapping[str, str]) -> list[str]:
    """Return the bases with an id, of v1 too, that begins with what a user wrote."""
    if len(wanted) < _SHORTEST_PREFIX:
        return []
    ids = [*((base, base) for base in names), *legacy.items()]
    return list(dict.fromkeys(base for key, base in ids if key.startswith(wanted) and base in names))


def _by_name(wanted: str, names: Mapping[str, str]) -> list[str]:
    """Return the bases that are called so in other letter case; else those whose name begins so."""
    word = wanted.strip().casefold()
    if len(word) < _SHORTEST_NAME:
        return []
    folded = {base: name.strip().casefold() for base, name in names.items()}
    same = [base for base, name in folded.items() if name == word]
    return same or [base for base, name in folded.items() if name.startswith(word)]
