"""Whether the application is going to replace or delete a profile's data at its next start.

What is written until then is thrown away (``docs/formats/catalog.md``, "Pending restores and resets").
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from regraft.formats import json_text
from regraft.language import tr

#: What a restore records of itself, in the profile.
RESTORE_JOURNAL = "Data/restore-journal.json"
#: What a reset that waits for the next start records of itself, in the profile.
RESET_RECORD = "data-reset.pending.json"
#: The states of each version of that journal in which a restore is to come, and what they mean.
_STAGED = {
    1: {"staged": tr("a restore is staged"), "promoting": tr("a restore is being put into place")},
    2: {
        "prepared": tr("a restore is prepared"),
        "armed": tr("a restore is staged"),
        "promoting": tr("a restore is being put into place"),
        "reverting": tr("a restore is being taken back"),
        "rollback-armed": tr("taking a restore back is staged"),
    },
}
#: The states in which it is over.
_SETTLED = {1: {"completed", "failed", "expired"}, 2: {"completed", "rolled-back", "failed", "expired"}}
#: Neither holds more than a few paths and times.
_LARGEST = 16 << 20


def pending_in(profile: Path) -> str | None:
    """Return what of a profile's data is going to be replaced or deleted, for a person; None where nothing is.

    A record that cannot be read counts as pending. Nothing is raised.
    """
    return _restore(profile) or _reset(profile)


def _restore(profile: Path) -> str | None:
    problem, journal = _read(profile / RESTORE_JOURNAL)
    if problem is None and journal is None:
        return None
    version, state = (None, None) if journal is None else (journal.get("version"), journal.get("state"))
    if type(version) is int and isinstance(state, str):
        if state in _SETTLED.get(version, ()):
            return None
        if state in _STAGED.get(version, ()):
            return f"{_STAGED[version][state]} ({RESTORE_JOURNAL})"
    return tr(
        "a restore may be pending: {restore_journal} {problem}",
        restore_journal=RESTORE_JOURNAL,
        problem=problem or tr("says of none of the known states"),
    )


def _reset(profile: Path) -> str | None:
    problem, record = _read(profile / RESET_RECORD)
    if problem is None and record is None:
        return None
    status = None if record is None else record.get("status")
    if isinstance(status, str) and status != "pending":
        return None
    deleted = tr("at its next start the application deletes all data here: copy what you want to keep first")
    if status == "pending":
        return tr("a reset is pending ({reset_record}); {deleted}", reset_record=RESET_RECORD, deleted=deleted)
    return tr(
        "a reset may be pending: {reset_record} {problem}; if so, {deleted}",
        reset_record=RESET_RECORD,
        problem=problem or tr("has no status"),
        deleted=deleted,
    )


def _read(path: Path) -> tuple[str | None, dict[str, Any] | None]:
    """Return what is wrong with a record and what it holds; both None where there is none."""
    try:
        if not os.path.lexists(path):
            return None, None
        if not path.is_file():
            return tr("is not a file"), None
        with path.open("rb") as file:
            # The application reads UTF-8 and takes no byte order mark; from bytes Python would take both and more.
            found: Any = json_text.loads(file.read(_LARGEST).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else tr("not JSON")
        return tr("cannot be read ({reason})", reason=reason), None
    return (None, found) if isinstance(found, dict) else (tr("is not a JSON object"), None)
