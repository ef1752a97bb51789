"""A server that embeds, and stores restored with it."""

from __future__ import annotations

import struct
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
from catalog_rows import rows
from harness import NOW_MS
from planted_v2 import KB

from regraft.report import progress
from regraft.report.document import encoded
from repair.cherry_v2.old_base import RestoredBase
from repair.cherry_v2.restore import RestoreOptions, restore

MODEL = RestoredBase("acme::embed-9", 3)
NEW = MODEL.base_id(KB)
_MISSING = """SELECT DISTINCT text, embedding_text_hash FROM search_text
 WHERE embedding_text_hash NOT IN (SELECT embedding_text_hash FROM embedding) ORDER BY text"""


@dataclass
class Embedder:
    """Fills an index as an embedder would, and remembers what it was sent."""

    sent: list[str] = field(default_factory=list)
    #: How many texts it takes before it stops, None: all.
    most: int | None = None
    refused: frozenset[str] = frozenset()

    def fill(self, path: Path) -> None:
        missing = rows(path, _MISSING)
        with closing(apsw.Connection(str(path))) as db:
            for text, key in missing:
                if self.most == len(self.sent):
                    raise KeyboardInterrupt
                self.sent.append(text)
                if text not in self.refused:
                    vector = struct.pack("<3f", int(key[:6], 16), 1, 0)
                    db.execute("INSERT INTO embedding VALUES (?, ?, ?)", (key, vector, NOW_MS))


def restored_by(
    store: Path, embedder: Embedder, *, base: str | None = KB, wanted: RestoredBase = MODEL, **more: Any
) -> Any:
    options = RestoreOptions(base=base, wanted=wanted, now_ms=NOW_MS)
    return encoded(restore(store, options, embedder.fill, progress=progress.SilentProgress(), **more))
