"""Errors of definitions that a layout does not have; see :mod:`regraft.errors`."""

from __future__ import annotations

from regraft.errors import RegraftError


class SchemaForeign(RegraftError, ValueError):
    """{path}: {what}, which the layout does not have and which could change other rows than are meant; no row was
    changed, see regraft check and mend that first."""


class OtherRowsChanged(RegraftError, RuntimeError):
    """{path}: rows of {tables} changed with those that were meant, by a rule that the layout does not have; all of it
    was taken back, see regraft check and mend that first."""
