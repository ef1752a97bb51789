"""How databases of codex-mem are looked at and audited."""

from __future__ import annotations

from checks.adapter import Checks
from checks.codex_mem import audit, inspect

CHECKS = Checks(
    inspect=lambda found, _: inspect.look(found),
    audit=audit.audit,
    part_ids=audit.base_ids,
    ids_by_name=audit.ids_by_name,
)
