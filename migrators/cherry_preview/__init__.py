"""A preview build's single table → v2: one table per base, in a catalog or not, becomes seven tables plus a catalog.

Rules: ``docs/formats/preview.md``, "What becomes of it". Ids are v2's already and are kept. :mod:`.draft` makes drafts
of a catalog's bases (:mod:`.listed`, :mod:`.item_data`) and of stores that no catalog lists (:mod:`.told`); the shared
stages do the rest.
"""

from __future__ import annotations

from dataclasses import replace

from migrators.cherry_preview.draft import draft_library
from migrators.stages.drafts import BaseDraft, LibraryDraft
from migrators.stages.journey import Hints, Journey
from migrators.stages.options import Options
from regraft import notices, profiles
from regraft.errors import ApplicationRunning
from regraft.formats import libsql_preview
from regraft.formats.vector_table import Survey
from regraft.locate import Kind, Located
from regraft.notices import Notice


def _read(source: Located, options: Options) -> LibraryDraft:
    said = _check_running(source, options)
    library = draft_library(source, options.word)
    return replace(library, notices=(*said, *library.notices))


def _check_running(source: Located, options: Options) -> tuple[Notice, ...]:
    """Refuse to read a profile that an application is using, or say so where the user allows it.

    Raises:
        ApplicationRunning
    """
    is_live = source.kind is Kind.V2_PROFILE and not source.is_archive
    sign = profiles.sign_of_life(source.tree.path) if is_live else None
    if sign is None:
        return ()
    if not options.while_running:
        raise ApplicationRunning(path=source.tree.path, sign=sign)
    return (Notice(notices.APPLICATION_RUNNING, f"read while the application was running ({sign})"),)


def _hints(source: Located, draft: BaseDraft, survey: Survey, options: Options) -> Hints:  # noqa: ARG001 - a Journey's
    """Return nothing: a store and its catalog tell all that there is."""
    return Hints()


JOURNEY = Journey(table=libsql_preview.PREVIEW, read=_read, hints=_hints, opened=libsql_preview.readable)
