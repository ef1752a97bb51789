"""How knowledge bases of rsclaw are looked at and audited."""

from __future__ import annotations

from checks.adapter import Checks
from checks.rsclaw import audit, inspect

CHECKS = Checks(
    inspect=lambda found, asked: inspect.look(found, asked.now_ms),
    audit=audit.audit,
)
