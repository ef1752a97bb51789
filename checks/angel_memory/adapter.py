"""How data folders of AngelMemory are looked at and audited."""

from __future__ import annotations

from checks.adapter import Checks
from checks.angel_memory import audit, inspect

CHECKS = Checks(
    inspect=lambda found, asked: inspect.look(found, items=asked.items),
    has_items=True,
    audit=audit.audit,
)
