"""The pages of the documentation, which come with regraft."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

#: What makes a table of a page, and is no part of its text.
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def _folder() -> Traversable:
    """Return the folder of the pages: in an installed package, or beside it in a checkout."""
    installed = files("regraft") / "docs"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "docs"


def page_names() -> list[str]:
    """Return what the pages are called: ``upgrade``, ``findings``…"""
    found = (page.name for page in _folder().iterdir())
    return sorted(name.removesuffix(".md") for name in found if name.endswith(".md") and name != "README.md")


def read_page(name: str) -> str:
    """Return the text of a page, as Markdown."""
    return _COMMENT.sub("", (_folder() / f"{name}.md").read_text("utf-8"))
