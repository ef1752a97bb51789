"""Cherry Studio v1 → v2: one flat vector table per base plus a Redux state become seven tables plus a catalog.

Rules: ``docs/rules.md``. :mod:`.draft`, :mod:`.items` and :mod:`.values` make drafts of v1's state, :mod:`.on_disk`
finds what files beside it tell; the shared stages do the rest.
"""

from __future__ import annotations

from dataclasses import replace

from migrators.cherry_v1.draft import draft_library
from migrators.cherry_v1.on_disk import hints
from migrators.stages.drafts import LibraryDraft
from migrators.stages.journey import Journey
from migrators.stages.options import Options
from regraft import notices, profiles
from regraft.errors import ApplicationRunning
from regraft.formats import embedjs
from regraft.formats.v1_state import read_state
from regraft.locate import Located
from regraft.notices import Notice


def _read(source: Located, options: Options) -> LibraryDraft:
    said = _check_running(source, options)
    library = draft_library(read_state(source.tree, source.places), options.word)
    return replace(library, notices=(*said, *library.notices))


def _check_running(source: Located, options: Options) -> tuple[Notice, ...]:
    """Refuse to read a profile that an application is using, or say so where the user allows it.

    Raises:
        ApplicationRunning
    """
    sign = None if source.profile is None else profiles.sign_of_life(source.profile)
    if sign is None:
        return ()
    if not options.while_running:
        raise ApplicationRunning(path=source.profile, sign=sign)
    return (Notice(notices.APPLICATION_RUNNING, f"read while the application was running ({sign})"),)


JOURNEY = Journey(table=embedjs.VECTORS, read=_read, hints=hints)
