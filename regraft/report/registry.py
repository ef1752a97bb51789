"""The registry of what a run can say: codes, how grave each is, and what is said by them (``docs/codes.md``)."""

from __future__ import annotations

from collections import ChainMap
from typing import Literal

import msgspec

Severity = Literal["error", "warning", "note"]
#: What a code speaks of; those of ``row``, ``item`` and ``base`` are also reasons for not carrying one.
Subject = Literal["run", "base", "item", "row"]

_SEVERITIES: dict[Severity, int] = {"note": 0, "warning": 1, "error": 2}


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """A registered code: what it is about, how grave it is, and what it means in the user's words."""

    name: str
    subject: Subject
    severity: Severity
    meaning: str
    #: The finding that it is where a source is checked (``docs/findings.md``); empty: none.
    finding: str = ""


#: What a migration can say.
CODES: dict[str, Code] = {}
#: What only an import can say (``docs/codes.md``, "An import").
IMPORT_CODES: dict[str, Code] = {}
EVERY_CODE = ChainMap(CODES, IMPORT_CODES)


def register(subject: Subject, severity: Severity, name: str, finding: str, meaning: str) -> str:
    """Register what a migration can say, and the finding that it is where a source is checked; return its name."""
    CODES[name] = Code(name=name, subject=subject, severity=severity, finding=finding, meaning=meaning)
    return name


def register_import(subject: Subject, severity: Severity, name: str, meaning: str) -> str:
    """Register what only an import can say; return its name."""
    IMPORT_CODES[name] = Code(name=name, subject=subject, severity=severity, meaning=meaning)
    return name


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a run says: ``base`` and ``item`` are v1 ids, ``count`` counts items or rows.

    ``samples`` names a few of the rows. ``model`` is one that is gone, where the user's word for it would do.
    """

    code: str
    message: str
    base: str | None = None
    item: str | None = None
    count: int = 1
    samples: tuple[str, ...] = ()
    model: str | None = None

    @property
    def severity(self) -> Severity:
        """Return how grave the code is."""
        return EVERY_CODE[self.code].severity


def at_least(severity: Severity, line: Severity) -> bool:
    """Tell whether ``severity`` reaches ``line``."""
    return _SEVERITIES[severity] >= _SEVERITIES[line]
