"""How v2 data is looked at and audited."""

from __future__ import annotations

from checks.adapter import Checks
from checks.cherry_v2 import audit, inspect

CHECKS = Checks(
    inspect=lambda found, asked: inspect.look(found, items=asked.items),
    audit=audit.audit,
)
