"""Errors of the application's profiles; see :mod:`regraft.errors`."""

from __future__ import annotations

from regraft.errors import RegraftError


class ProfilePending(RegraftError, BlockingIOError):
    message = (
        "{path}: {pending}. What is written now would be thrown away at the next start: start the application once, "
        "let it finish, quit it, then run the same command again."
    )
