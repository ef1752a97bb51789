"""The auditor of another program, under the name that docs/testing.md gives it; it asks regraft."""

from __future__ import annotations

from pathlib import Path

import regraft


def severities(library: Path) -> dict[tuple[str, str | None], str]:
    return {(one.name, one.base): one.severity for one in regraft.check(library, level="deep").findings}
