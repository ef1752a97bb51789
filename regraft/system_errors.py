"""Errors of stores of other systems; see :mod:`regraft.errors`."""

from __future__ import annotations

from regraft.errors import BaseUnknown, RegraftError


class GenerationUnknown(RegraftError, ValueError):
    message = "{path}: this is {what}, a later generation than regraft knows ({known}); nothing was read or written."


class MigrationForeign(RegraftError, ValueError):
    message = (
        "{path}: {what}, which is not the migration 006 that regraft knows; nothing was changed, ask for a regraft "
        "of that codex-mem."
    )


class ProjectUnknown(BaseUnknown):
    message = "{base}: no project of the database has this id, and no single one this name or slug; it has {known}."


class SidecarUnfit(RegraftError, ValueError):
    message = "{path}: {reason}; regraft rebuild makes all vectors of the notes anew."


class CollectionOfOtherVersion(RegraftError, ValueError):
    message = (
        "{path}: another version of chromadb than {version} wrote it, and that one could not read it any more "
        "afterwards ({reason}); nothing was changed, install the chromadb that the application uses beside regraft."
    )


class FullTextNotRebuilt(RegraftError, ValueError):
    message = (
        "{path}: its full-text index could not be rebuilt ({reason}); nothing was changed in it. A backup of the "
        "file brings it back."
    )


class CollectionRefused(RegraftError, OSError):
    message = "{path}: chromadb cannot work with it: {reason}; nothing of it was changed."


class NotRecalled(RegraftError, ValueError):
    message = "{path}: this is {what}, which has no notes to recall; give a data folder of AngelMemory."


class NoteUnknown(RegraftError, LookupError):
    message = "{path}: no note has the short id {short_id} ({known}); AngelMemory itself shows the id 0 as -1."


class NoteAmbiguous(RegraftError, LookupError):
    message = "{path}: several notes have the short id {short_id} ({files}); regraft repair gives each one of its own."


class NoteGone(RegraftError, FileNotFoundError):
    message = (
        "{path}: the file of note {short_id} is gone (raw/{file}); put it back, or let regraft repair remove the "
        "record."
    )


class NoteOutside(RegraftError, ValueError):
    message = "{path}: the path of note {short_id} leads out of raw/ ({file}); it is not read."
