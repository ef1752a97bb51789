"""Errors about where regraft may write; see :mod:`regraft.errors` and :mod:`regraft.areas`.

None is an ``OSError``: what goes on after a file that cannot be written must not go on after one of these.
"""

from __future__ import annotations

from regraft.errors import RegraftError


class LinkInStore(RegraftError):
    message = (
        "{path}: a link (to {goal}) stands where a folder or file itself belongs; regraft writes and removes nothing "
        "through links, so put what it leads to in its place, or remove it."
    )


class JournalNamesAnother(RegraftError):
    message = (
        "{path}: this unfinished transaction names another file ({named}), which would be removed with it; open the "
        "database once in the program that wrote it, or move this file away."
    )


class OutsideStore(RegraftError):
    message = "{path}: lies outside of what this command may change; nothing was written there."


class ConsentMissing(RegraftError, RuntimeError):
    message = (
        "regraft {command} would change what is there, and nobody is there to be asked: nothing was written; see the "
        "plan with --dry-run, and add --yes to go on."
    )
