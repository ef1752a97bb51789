"""Errors of stores of other systems; see :mod:`regraft.errors`."""

from __future__ import annotations

from regraft.errors import RegraftError


class GenerationUnknown(RegraftError, ValueError):
    """{path}: this is {what}, a later generation than regraft knows ({known}); nothing was read or written."""


class MigrationForeign(RegraftError, ValueError):
    """{path}: {what}, which is not the migration 006 that regraft knows; nothing was changed, ask for a regraft of
    that codex-mem."""
