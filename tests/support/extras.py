"""Groups of tests that ``make test-extras`` runs: with large packages or a browser, and the thorough ones."""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from typing import Any

import pytest

#: What each group imports, and how it is installed. ``test-NAME`` is an extra in pyproject.toml (``lint`` is its own).
PACKAGES = {
    "parquet": ("pyarrow", "duckdb"),
    "s3": ("pyarrow", "s3fs", "moto"),
    "ray": ("pyarrow", "s3fs", "moto", "ray"),
    "chroma": ("chromadb",),
    "models": ("model2vec", "tokenizers"),
    "lint": ("mypy",),
}
#: Groups of the tests that use one of these fixtures.
FIXTURES = {"bucket": "s3", "address": "ray", "real_url": "models", "browser_sources": "browser"}


def needs(group: str) -> pytest.MarkDecorator:
    """Mark a test, a parameter or (as ``pytestmark``) a module that belongs to a group."""
    assert group in PACKAGES or group == "browser", group
    return pytest.mark.needs(group)


def optional(module: str) -> Any:
    """Import a module of a group, or return None without it: the tests of that group are then skipped."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def missing(group: str) -> str | None:
    """Return why a group cannot run here, with the line that installs it; None if it can."""
    absent = [name for name in PACKAGES.get(group, ()) if importlib.util.find_spec(name) is None]
    extra = group if group == "lint" else f"test-{group}"
    return f"{', '.join(absent)} not installed: pip install '.[{extra}]'" if absent else None


def mark_groups(items: list[pytest.Item]) -> None:
    """Mark the tests whose fixtures belong to a group, and skip those whose group is not installed."""
    reasons = {group: missing(group) for group in (*PACKAGES, "browser")}
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in FIXTURES:
                item.add_marker(needs(FIXTURES[fixture]))
        for mark in item.iter_markers("needs"):
            if (reason := reasons[mark.args[0]]) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


def mark_thorough(items: list[pytest.Item]) -> None:
    """Mark all but one in N cases of each test that has the mark ``one_in(N)`` as thorough; slow cases do not count."""
    cases: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("one_in")
        if mark is not None and item.get_closest_marker("slow") is None:
            test = item.nodeid.partition("[")[0]
            if cases[test] % mark.args[0]:
                item.add_marker("thorough")
            cases[test] += 1
