"""Errors of stores of other systems; see :mod:`regraft.errors`."""

from __future__ import annotations

from regraft.errors import RegraftError


class GenerationUnknown(RegraftError, ValueError):
    """{path}: this is {what}, a later generation than regraft knows ({known}); nothing was read or written."""


class MigrationForeign(RegraftError, ValueError):
    """{path}: {what}, which is not the migration 006 that regraft knows; nothing was changed, ask for a regraft of
    that codex-mem."""


class CollectionOfOtherVersion(RegraftError, ValueError):
    """{path}: another version of chromadb than {version} wrote it, and that one could not read it any more afterwards
    ({reason}); nothing was changed, install the chromadb that the application uses beside regraft."""


class CollectionRefused(RegraftError, OSError):
    """{path}: chromadb cannot work with it: {reason}; nothing of it was changed."""
