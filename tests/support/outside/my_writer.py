"""The writer of another program, under the name that docs/testing.md gives it: it writes the indexes of bases."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from plain_store import Store


class OfWords(Store):
    """An index of a base without a model."""

    def _demand_coverage(self) -> None:
        pass


def write(bases: Iterable[Any], library: Path) -> None:
    for base in bases:
        if base.record.base.status != "completed":
            continue
        path = library / "KnowledgeBase" / base.id / ".cherry" / "index.sqlite"
        path.parent.mkdir(parents=True)
        store = (Store if base.record.base.embedding_model_id else OfWords)(path, base.id, create=True)
        for one in base.materials:
            store.replace(one.material_id, one.relative_path, one.content, one.units, one.embeddings)
        store.close()
