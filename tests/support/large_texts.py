"""Run code with tiny limits, so that short texts count as large."""

from __future__ import annotations

import importlib

import pytest

from migrators.pipeline import base_writer, workers
from regraft.formats import large_text, vector_table
from regraft.formats.cherry_v2.index import bulk


def in_pieces(patch: pytest.MonkeyPatch, size: int) -> None:
    """Let texts be large from a few bytes on, and pieces be small."""
    verify = importlib.import_module("regraft.formats.cherry_v2.index.verify")
    for module in (large_text, bulk, verify, base_writer, vector_table, workers):
        patch.setattr(module, "LARGE_BYTES", 4)
    for module in (large_text, bulk):
        patch.setattr(module, "PIECE_BYTES", size)


def everywhere(patch: pytest.MonkeyPatch, size: int) -> None:
    in_pieces(patch, size)
    for name in ("checks.cherry_v2.detect", "regraft.formats.parquet.export"):
        patch.setattr(importlib.import_module(name), "LARGE_BYTES", 4)
    patch.setattr(importlib.import_module("checks.cherry_v2.detect"), "PIECE_BYTES", size)
    stored = importlib.import_module("regraft.formats.parquet.export")
    patch.setattr(stored, "_IS_LARGE", "(typeof(t.text) = 'text' AND octet_length(t.text) > 4)")
    patch.setattr(stored, "_SMALL", f"CASE WHEN NOT {stored._IS_LARGE} THEN {stored._TEXT.format('t.text')} END")
