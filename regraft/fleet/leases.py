"""Who works on a library in object storage: a lease in its place, which is taken, renewed and given back.

A lease keeps two fleets from doing the same work. That nothing is lost where both do it all the same, because one was
long asleep, follows from how versions are published (:mod:`regraft.fleet.versions`) and needs no clock.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from regraft import clock
from regraft.errors import RegraftError
from regraft.fleet.errors import LibraryHeld, StorageRefused
from regraft.fleet.storage import Place
from regraft.fleet.versions import FOLDER
from regraft.language import tr

#: How long a lease holds that is not renewed, in ms.
LEASE_MS = 60_000
_LEASE = re.compile(r"lease-([0-9]{6})\.json")


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Which fleet has a library, until when in ms, and what tells this lease from all others."""

    fleet: str
    until_ms: int
    token: str


@contextmanager
def held(place: Place, fleet: str) -> Iterator[None]:
    """Have a library meanwhile.

    What a fleet of the same id has is taken over at once: one process alone works for a fleet, and gives a library
    away again only when it knows that whoever had it is gone.

    Raises:
        LibraryHeld: another fleet has it.
        StorageRefused: it may not be written, or the store cannot keep two from writing one version.
        StorageFailed
    """
    name = _taken(place / FOLDER, place, fleet)
    stop = threading.Event()
    renewing = threading.Thread(target=_renew, args=(place / FOLDER / name, fleet, stop), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        stop.set()
        renewing.join()
        # What cannot be removed runs out.
        with suppress(RegraftError):
            (place / FOLDER).remove([name])


def _taken(own: Place, place: Place, fleet: str) -> str:
    """Take a lease, and return the name of its object."""
    numbers = sorted(int(found[1]) for name in own.entries() if (found := _LEASE.fullmatch(name)))
    now = clock.now_ms()
    if numbers:
        _demand_free(own / _name(numbers[-1]), place, fleet, now)
    name = _name(numbers[-1] + 1 if numbers else 1)
    if not (own / name).create(_encoded(fleet, now)):
        raise LibraryHeld(url=place.url, seconds=1)
    if (own / name).create(_encoded(fleet, now)):
        reason = tr("it writes over what is there, where it was asked not to")
        raise StorageRefused(url=place.url, reason=reason)
    own.remove(map(_name, numbers))
    return name


def _demand_free(lease: Place, place: Place, fleet: str, now: int) -> None:
    """Refuse what somebody else has; one that says nothing that can be read has run out.

    Raises:
        LibraryHeld
    """
    content = lease.content()
    try:
        found = msgspec.json.decode(content or b"", type=Lease)
    except msgspec.MsgspecError:
        return
    left = found.until_ms - now
    # One that holds much longer than a lease does is of a clock that is wrong, and says nothing.
    if 0 < left < 2 * LEASE_MS and found.fleet != fleet:
        raise LibraryHeld(url=place.url, seconds=min(left, LEASE_MS) // 1000 + 1)


def _renew(lease: Place, fleet: str, stop: threading.Event) -> None:
    while not stop.wait(LEASE_MS / 3000):
        # One that was lost is noticed when the version is published.
        with suppress(RegraftError):
            lease.put(_encoded(fleet, clock.now_ms()))


def _encoded(fleet: str, now: int) -> bytes:
    return msgspec.json.encode(Lease(fleet=fleet, until_ms=now + LEASE_MS, token=secrets.token_hex(8)))


def _name(number: int) -> str:
    return f"lease-{number:06}.json"
