"""Errors about what stands in a store's files: damage, and definitions that a layout does not have."""

from __future__ import annotations

from regraft.errors import STOPPED, RegraftError


class SchemaForeign(RegraftError, ValueError):
    message = (
        "{path}: {what}, which the layout does not have and which could change other rows than are meant; no row was "
        "changed, see regraft check and mend that first."
    )


class OtherRowsChanged(RegraftError, RuntimeError):
    message = (
        "{path}: rows of {tables} changed with those that were meant, by a rule that the layout does not have; all "
        "of it was taken back, see regraft check and mend that first."
    )


class RowsMayBeRefused(RegraftError, ValueError):
    message = (
        "{path}: {index} is an index that the layout does not have and that can refuse new rows of {table}; nothing "
        "was begun, drop it first."
    )


class StoppedAtDamage(RegraftError, ValueError):
    message = (
        "{path}: stopped at damage ({reason}); what was done before is whole ({finished}), see regraft check; "
        "regraft undo takes it back."
    )

    exit_status = STOPPED
