"""The jobs that processes do (:mod:`regraft.crew`): NumPy is loaded there, and not where they are dealt out."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from regraft.formats.fts5.jobs import RangeJob, Run, SortJob


def sort(job: SortJob) -> list[tuple[Run, list[int]]]:
    """See :func:`regraft.formats.fts5.making.sort`."""
    runs: list[tuple[Run, list[int]]] = _making().sort(job)
    return runs


def make_pages(job: RangeJob) -> int:
    """See :func:`regraft.formats.fts5.making.make_pages`."""
    return int(_making().make_pages(job))


def _making() -> Any:
    return import_module("regraft.formats.fts5.making")
