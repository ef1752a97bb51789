"""Errors of stores of other systems; see :mod:`regraft.errors`."""

from __future__ import annotations

from regraft.errors import RegraftError


class GenerationUnknown(RegraftError, ValueError):
    """{path}: this is {what}, a later generation than regraft knows ({known}); nothing was read or written."""
