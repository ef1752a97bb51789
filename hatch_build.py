"""Compiles the catalogs of messages when the package is built (``docs/translating.md``)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileCatalogs(BuildHookInterface):  # type: ignore[type-arg,unused-ignore]
    """Puts a compiled catalog beside each one."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - as hatchling calls it
        """Compile the catalogs; ``build_data`` names them as part of the package."""
        for path in sorted(Path(self.root, "regraft", "locale").glob("*/LC_MESSAGES/*.po")):
            with path.open("rb") as file:
                catalog = read_po(file)
            # Babel writes the time of the build, to the minute, where the catalog has none.
            catalog.creation_date = datetime(1970, 1, 1, tzinfo=UTC)
            compiled = path.with_suffix(".mo")
            with compiled.open("wb") as file:
                write_mo(file, catalog)
            build_data["artifacts"].append(compiled.relative_to(self.root).as_posix())
