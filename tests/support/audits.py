"""The benchmarks' own audit, loaded as a module."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from harness import REPO


def loaded(name: str) -> ModuleType:
    """Load a benchmark from its file: it is no installed package."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", REPO / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


audit = loaded("audit")
