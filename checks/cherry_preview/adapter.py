"""How what preview builds wrote is looked at."""

from __future__ import annotations

from checks.adapter import Checks
from checks.cherry_preview import inspect

CHECKS = Checks(inspect=lambda found, asked: inspect.look(found, items=asked.items))
