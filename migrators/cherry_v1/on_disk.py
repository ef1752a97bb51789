"""The real paths of a folder's text files, where the folder is still on disk.

v1 keeps no path for them: their loader id is the MD5 of the text and their ``source`` a snippet of it. A file found
again gives a better name; it is never a condition for anything (``docs/rules.md``, "Directories").
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from migrators.stages.drafts import BaseDraft
from migrators.stages.journey import Hints
from migrators.stages.options import Options
from regraft.formats.vector_table import Survey
from regraft.locate import Located

#: Loaders that are named after the MD5 of a file's text.
_TEXT_LOADERS = ("TextLoader_", "WebLoader_")
_BOM = b"\xef\xbb\xbf"
#: A folder is looked through no further than this: a better name is not worth minutes.
MAX_FILES = 20_000
MAX_FILE_BYTES = 16 << 20
MAX_BYTES = 1 << 30


def hints(source: Located, draft: BaseDraft, survey: Survey, options: Options) -> Hints:
    """Return what the folders on disk and the uploads tell of a base."""
    return Hints(paths=real_paths(draft, survey))


def real_paths(draft: BaseDraft, survey: Survey) -> dict[str, str]:
    """Return the paths of those text files of a base's folders that are still there, by loader id.

    Texts are taken for UTF-8, with or without a byte order mark. Files that cannot be read are passed over.
    """
    found: dict[str, str] = {}
    for item in draft.items:
        if item.type != "directory" or item.status != "completed":
            continue
        wanted = {loader for loader in item.entries if loader.startswith(_TEXT_LOADERS) and loader in survey.loaders}
        folder = Path(item.data["source"])
        if wanted and "\0" not in item.data["source"] and folder.is_absolute():
            found.update(_search(folder, wanted - found.keys()))
    return found


def _search(folder: Path, wanted: set[str]) -> Iterator[tuple[str, str]]:
    left = MAX_BYTES
    for number, path in enumerate(_files(folder)):
        if not wanted or number >= MAX_FILES or left <= 0:
            return
        try:
            size = path.stat().st_size
            raw = path.read_bytes() if size <= MAX_FILE_BYTES else b""
        except OSError:
            continue
        left -= len(raw)
        for text in {raw, raw.removeprefix(_BOM)}:
            digest = hashlib.md5(text, usedforsecurity=False).hexdigest()
            for loader in {f"{kind}{digest}" for kind in _TEXT_LOADERS} & wanted:
                wanted.discard(loader)
                yield loader, str(path)


def _files(folder: Path) -> Iterator[Path]:
    """Return the plain files below a folder in a fixed order; links are not followed."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                yield path
