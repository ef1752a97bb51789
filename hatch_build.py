"""What the build of the package does itself: compile its catalogs of messages, and complete the links of its README.

Catalogs: ``docs/translating.md``. Links of README.md are relative, and the page of an index of packages has no files
beside it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

#: The target of a relative link or picture in Markdown.
_RELATIVE = re.compile(r"(?<=\]\()(?![a-z]+:|#)[^)\s]+(?=\))")


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


class DescribeProject(MetadataHookInterface):  # type: ignore[misc,unused-ignore]
    """Makes the project's description of README.md: relative links lead to the files of this release."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field ``readme``."""

        def address(link: re.Match[str]) -> str:
            view = "raw" if link[0].endswith(".png") else "blob"
            return f"{metadata['urls']['Homepage']}/{view}/v{metadata['version']}/{link[0]}"

        text = _RELATIVE.sub(address, Path(self.root, "README.md").read_text("utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
