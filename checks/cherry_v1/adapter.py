"""How v1 data is looked at."""

from __future__ import annotations

from checks.adapter import Checks
from checks.cherry_v1 import inspect

CHECKS = Checks(inspect=lambda found, asked: inspect.look(found, asked.progress, items=asked.items))
