"""Catalogs: every message has its translation, none is stale, and each has the places that the English one has."""

from __future__ import annotations

import re
from string import Formatter

import pytest

from regraft import catalogs, language

pytest.importorskip("babel")

LANGUAGES = sorted(path.parent.parent.name for path in language.FOLDER.glob("*/LC_MESSAGES/*.po"))


def places(text: str) -> set[str]:
    if re.search(r"%\(\w+\)s", text):
        return set(re.findall(r"%\(\w+\)s", text))
    return {f"{name}!{conversion}:{spec}" for _, name, spec, conversion in Formatter().parse(text) if name is not None}
