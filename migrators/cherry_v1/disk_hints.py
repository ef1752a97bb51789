"""What the files beside a v1 state tell: real paths of a folder's files, and files that equal another one.

v1 keeps no path for a text file: its loader id hashes the text and its ``source`` is a snippet of it. A file found
again gives a better name; it is never a condition for anything (``docs/rules.md``, "Real paths").
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from migrators.cherry_v1.duplicates import find_twins, is_done_folder, lost_entries, lost_files
from migrators.cherry_v1.file_texts import TEXT_KINDS, WantedText
from migrators.pipeline.drafts import BaseDraft, ItemDraft
from migrators.pipeline.options import Options
from migrators.pipeline.source import Hints
from regraft import links
from regraft.formats.vector_survey import Survey
from regraft.locate import Located
from regraft.text import path_text, whole

#: A base's folders are looked through no further than this: a better name is not worth minutes.
MAX_FILES = 20_000
MAX_FILE_BYTES = 16 << 20
#: Bytes that are read, and the bytes of work that they come to: one text is tried in several encodings.
MAX_BYTES = 1 << 30
MAX_WORK = 4 << 30

_PATH_KINDS = ("LocalPathLoader_", "OdtLoader_", "OdsLoader_", "OdpLoader_")
_IMAGE = "ImageLoader_"


def hints(source: Located, draft: BaseDraft, survey: Survey, options: Options) -> Hints:
    """Return what the folders on disk and the uploads tell of a base."""
    found = real_paths(draft, survey)
    twins = find_twins(source, draft, survey, found, texts=options.carry_text)
    paths = {loader: path_text(path) for loader, path in found.items()}
    return Hints(paths=paths, twins=twins, restore_twins=options.restore_duplicates)


def real_paths(draft: BaseDraft, survey: Survey) -> dict[str, Path]:
    """Return the paths of those files of a base's completed folders that are still there, by loader id.

    Files are recognised by what their loader id hashes: the path, or the text in any usual encoding. Those whose rows
    have their path already are only looked for where another file may have lost its rows to them.
    """
    look = _Look()
    all_of_them = bool(lost_files(draft, survey) or lost_entries(draft, survey))
    for item in filter(is_done_folder, draft.folders):
        entries = set(item.entries) - look.found.keys()
        by_path = {entry for entry in entries if not entry.startswith(TEXT_KINDS)} if all_of_them else set()
        snippets = {entry: text for entry in entries if (text := _snippet(survey, entry)) is not None}
        if by_path or snippets:
            look.through(item, by_path, WantedText(snippets))
    return look.found


def _snippet(survey: Survey, loader: str) -> str | None:
    """Return the snippet that the rows of a text file's loader have, None for any other loader."""
    rows = survey.loaders.get(loader) if loader.startswith(TEXT_KINDS) else None
    return None if rows is None else rows.source


class _Look(msgspec.Struct):
    """A look through the folders of one base, with the bounds that they share."""

    found: dict[str, Path] = msgspec.field(default_factory=dict)
    files_left: int = msgspec.field(default_factory=lambda: MAX_FILES)
    bytes_left: int = msgspec.field(default_factory=lambda: MAX_BYTES)
    work_left: int = msgspec.field(default_factory=lambda: MAX_WORK)

    @property
    def may_read(self) -> bool:
        """Tell whether files may still be read."""
        return self.bytes_left > 0 and self.work_left > 0

    def through(self, item: ItemDraft, by_path: set[str], wanted: WantedText) -> None:
        """Look through one folder for files by their path and by their text, until all are found."""
        for path, size in _files(item.data["source"]):
            self.files_left -= 1
            if self.files_left < 0 or not (by_path or (wanted and self.may_read)):
                return
            for loader in _path_loaders(path_text(path)) & by_path:
                by_path.discard(loader)
                self.found[loader] = path
            if self.may_read and 0 < size <= MAX_FILE_BYTES and wanted.can_be(path.suffix.lower()):
                self._read(path, wanted)

    def _read(self, path: Path, wanted: WantedText) -> None:
        try:
            with links.reading(path) as file:
                raw = file.read(MAX_FILE_BYTES)
        except OSError:
            return
        self.bytes_left -= len(raw)
        before = wanted.spent
        for loader in wanted.of_file(raw, path.suffix.lower()):
            self.found[loader] = path
        self.work_left -= wanted.spent - before


def _path_loaders(path: str) -> set[str]:
    """Return the loader ids that v1 can have given to a file for its path."""
    digest = hashlib.md5(path.encode(), usedforsecurity=False).hexdigest()
    return {path, f"{_IMAGE}{path}", *(f"{kind}{digest}" for kind in _PATH_KINDS)}


def _files(name: str) -> Iterator[tuple[Path, int]]:
    """Yield the plain files below a folder with their sizes, in a fixed order; links are not followed.

    A folder of another system, or of a server that would have to be asked, has none.
    """
    folder = Path(name)
    if "\0" in name or name != whole(name) or not folder.is_absolute() or folder.drive.startswith("\\\\"):
        return
    for number, (place, folders, names) in enumerate(os.walk(folder)):
        if number >= MAX_FILES:
            return
        folders.sort()
        for one in sorted(names):
            path = Path(place, one)
            try:
                status = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield path, status.st_size
