"""How data folders of AngelMemory are looked at and audited."""

from __future__ import annotations

from checks.adapter import Checks
from checks.angel_memory import audit, inspect

CHECKS = Checks(
    inspect=lambda found, _: inspect.look(found),
    audit=audit.audit,
)
