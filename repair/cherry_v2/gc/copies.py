"""Whether the text of a raw file that no item names is anywhere else in its base, so that nothing is lost with it."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from functools import cached_property
from pathlib import Path

import apsw

from checks.cherry_v2.raw_files import files_below
from regraft import identity, links, sqlite
from regraft.formats.cherry_v2 import okf
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.item_data import data_of
from regraft.language import tr
from repair.changes.store import Store

#: Larger files are compared with files only, and not read as a text.
_LARGEST_TEXT = 64 << 20
#: A text that an index has for an item.
_TEXT = """SELECT m.material_id, CAST(c.text AS BLOB) FROM content c
  JOIN material m ON m.current_content_hash = c.content_hash WHERE c.content_hash = ?"""


class Copies:
    """Finds other copies of raw files of one base: a file that an item names, or the indexed text of an item.

    Args:
        store: the store.
        base: the base's id.
        items: its items.
        raw: its folder of raw files.
    """

    def __init__(self, store: Store, base: str, items: list[Row], raw: Path) -> None:
        self._raw = raw
        self._listed = {item.get("id") for item in items if item.get("status") != "deleting"}
        self._named = {data_of(item).get(key) for item in items for key in ("relativePath", "indexedRelativePath")}
        one = store.stores.get(base)
        self._index = None if one is None else store.root / one.name

    def of(self, name: str) -> str | None:
        """Return what else holds the bytes or the text of a file, for a person; None where nothing is known to."""
        path = self._raw / name
        try:
            return self._file_like(path) or self._text_like(path)
        except (apsw.Error, OSError, UnicodeDecodeError):
            return None

    @cached_property
    def _by_size(self) -> dict[int, list[Path]]:
        found: dict[int, list[Path]] = defaultdict(list)
        for name, _ in files_below(self._raw):
            if name in self._named and not (self._raw / name).is_symlink():
                found[(self._raw / name).lstat().st_size].append(self._raw / name)
        return found

    def _file_like(self, path: Path) -> str | None:
        candidates = self._by_size.get(path.lstat().st_size, [])
        digest = _digest(path) if candidates else None
        found = next((one for one in candidates if _digest(one) == digest), None)
        return None if found is None else f"raw/{found.relative_to(self._raw).as_posix()}"

    def _text_like(self, path: Path) -> str | None:
        if self._index is None or path.lstat().st_size > _LARGEST_TEXT:
            return None
        text = links.content(path).decode()
        bodies = {identity.text_hash(one): one.encode() for one in (text, okf.strip_block(text))}
        with sqlite.reading(self._index) as db:
            for key, body in bodies.items():
                for material, stored in db.execute(_TEXT, (key,)):
                    if stored == body and material in self._listed:
                        return tr("the indexed text of item {item}", item=material)
        return None


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
