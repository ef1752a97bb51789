"""Files that v1 left without a row because another file of the base has the same bytes.

v1 stores no chunk twice in a base (``docs/formats/v1.md``, "Vector file"), so that the second of two equal files gets
none. A file that v1 failed on has none either: only equal bytes tell that a file is such a duplicate. An upload never
changes; a file of a folder is compared only where it was last changed before v1 read it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import msgspec

from migrators.pipeline.drafts import BaseDraft, ItemDraft
from migrators.pipeline.duplicates import read_times
from migrators.pipeline.ownership import Owners, expand
from migrators.pipeline.source import Duplicate
from migrators.pipeline.uploads import upload_name
from regraft import links
from regraft.formats.vector_survey import Survey
from regraft.locate import Located
from regraft.text import path_text
from regraft.tree import CHUNK_BYTES

#: Bytes of a base's files that are read to compare them. Only files of one size and extension are.
MAX_COMPARED_BYTES = 1 << 30


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """A file that can be read: a standalone item's upload, or a file of a folder on disk (then with its path)."""

    loader_id: str
    name: str
    #: The extension decides how v1 read a file: other extension, other chunks.
    suffix: str
    size: int
    open: Callable[[], BinaryIO]
    #: Rows that can be carried.
    rows: int = 0
    path: str = ""
    #: The id of the standalone item, or when v1 read the file of a folder (ms).
    item: str = ""
    read_at: int | None = None
    #: Whether the file of a folder may have been changed since.
    changed: bool = False


def lost_files(draft: BaseDraft, survey: Survey) -> list[ItemDraft]:
    """Return a base's completed standalone files that have no row at all."""
    return [
        item
        for item in draft.items
        if item.type == "file" and item.status == "completed" and item.loader_ids and not _has_rows(item, survey)
    ]


def is_done_folder(item: ItemDraft) -> bool:
    """Tell whether an item is a folder that v1 had read."""
    return item.type == "directory" and item.status == "completed"


def lost_entries(draft: BaseDraft, survey: Survey) -> list[str]:
    """Return the entries of a base's completed folders that have no row at all, in order."""
    folders = filter(is_done_folder, draft.folders)
    entries = dict.fromkeys(entry for item in folders for entry in item.entries)
    return [entry for entry in entries if entry not in survey.loaders]


def _has_rows(item: ItemDraft, survey: Survey) -> bool:
    return any(loader in survey.loaders for loader in item.loader_ids)


def find_twins(
    source: Located, draft: BaseDraft, survey: Survey, paths: Mapping[str, Path], *, texts: bool = False
) -> tuple[Duplicate, ...]:
    """Return the files without rows whose bytes are those of a file with rows, with the best such file for each.

    That is the one with the most rows to carry, then the first in item order. Files that are not there or cannot be
    read are passed over.

    Args:
        source: where the uploads are.
        draft: the base.
        survey: what its vector file holds.
        paths: the files of the base's folders that are on disk, by loader id.
        texts: whether rows are carried for their text alone, too.
    """
    lost = list(_lost(source, draft, survey, paths))
    if not lost:
        return ()
    kept: dict[tuple[str, int], list[_File]] = {}
    for file in sorted(_kept(source, draft, survey, paths, texts=texts), key=lambda file: -file.rows):
        kept.setdefault((file.suffix, file.size), []).append(file)
    digests = _Digests()
    twins = []
    for file in lost:
        candidates = kept.get((file.suffix, file.size), ())
        mark = digests.of(file) if candidates else None
        like = next((one for one in candidates if mark is not None and digests.of(one) == mark), None)
        if like is not None:
            twins.append(_twin(file, like))
    return tuple(twins)


def _lost(source: Located, draft: BaseDraft, survey: Survey, paths: Mapping[str, Path]) -> Iterator[_File]:
    """Yield the files without rows: standalone ones, then those of folders."""
    for item in lost_files(draft, survey):
        yield from _upload(source, item, item.loader_ids[0])
    times = read_times(draft)
    for loader in lost_entries(draft, survey):
        yield from _on_disk(loader, paths, times)


def _twin(file: _File, like: _File) -> Duplicate:
    return Duplicate(
        loader_id=file.loader_id,
        like=like.loader_id,
        name=file.name,
        like_name=like.name,
        path=file.path,
        item=file.item,
        like_item=like.item,
        read_at=file.read_at,
        like_read_at=like.read_at,
        changed=file.changed or like.changed,
    )


def _kept(
    source: Located, draft: BaseDraft, survey: Survey, paths: Mapping[str, Path], *, texts: bool
) -> Iterator[_File]:
    """Yield the files that have rows to carry, in item order. Rows that go to another item are not a file's."""
    owners, times = Owners(draft, expand(draft, survey)), read_times(draft)
    for item in draft.items:
        rows = _rows_to_carry(survey, item, texts=texts)
        if item.type == "file":
            own = {loader: count for loader, count in rows.items() if owners.owner(loader) == item.id}
            if own:
                yield from _upload(source, item, next(iter(own)), sum(own.values()))
        elif is_done_folder(item):
            for loader in (one for one in rows if _is_of_child(owners, one)):
                yield from _on_disk(loader, paths, times, rows[loader])


def _to_carry(survey: Survey, loader_id: str, *, texts: bool) -> int:
    """Return how many rows of a loader have a vector of the base's length, or (``texts``) a text at least."""
    rows, length = survey.loaders.get(loader_id), survey.vector_bytes
    kinds = {} if rows is None else rows.kinds
    bare = sum(tally.with_text.count for kind, tally in kinds.items() if kind != length) if texts else 0
    return bare + (kinds[length].count if length in kinds else 0)


def _rows_to_carry(survey: Survey, item: ItemDraft, *, texts: bool) -> dict[str, int]:
    """Return how many rows of an item can be carried, by loader id; none of a loader that has none."""
    return {loader: count for loader in item.loader_ids if (count := _to_carry(survey, loader, texts=texts))}


def _is_of_child(owners: Owners, loader_id: str) -> bool:
    """Tell whether the rows of a folder's file go to the item that is made of the file."""
    child = owners.children.get(loader_id)
    return child is not None and child.id == owners.owner(loader_id)


def _upload(source: Located, item: ItemDraft, loader_id: str, rows: int = 0) -> Iterator[_File]:
    """Yield a standalone item's upload, if it is in the source."""
    name = None if item.upload is None else upload_name(source.tree, source.places.uploads, item.upload)
    if name is not None:
        with suppress(OSError):
            size, suffix = source.tree.size(name), PurePosixPath(name).suffix.lower()
            called, opened = item.data["relativePath"], partial(source.tree.open, name)
            yield _File(
                loader_id=loader_id, name=called, suffix=suffix, size=size, open=opened, rows=rows, item=item.id
            )


def _on_disk(loader_id: str, paths: Mapping[str, Path], times: Mapping[str, int], rows: int = 0) -> Iterator[_File]:
    """Yield the file of a folder's entry, if it is on disk."""
    path, read_at = paths.get(loader_id), times.get(loader_id)
    if path is not None:
        with suppress(OSError):
            status, suffix = path.stat(), path.suffix.lower()
            changed = read_at is None or status.st_mtime_ns // 1_000_000 > read_at
            name, opened, full = path_text(path.name), partial(_opened, path), path_text(path)
            yield _File(
                loader_id=loader_id,
                name=name,
                suffix=suffix,
                size=status.st_size,
                open=opened,
                rows=rows,
                path=full,
                read_at=read_at,
                changed=changed,
            )


def _opened(path: Path) -> BinaryIO:
    return links.reading(path)


class _Digests:
    """Hashes of files, each made once, for as long as the bound on what is read allows."""

    def __init__(self) -> None:
        self._left = MAX_COMPARED_BYTES
        self._known: dict[int, bytes | None] = {}

    def of(self, file: _File) -> bytes | None:
        """Return the hash of a file's bytes, or None where it cannot be read or would be too much."""
        if id(file) not in self._known:
            self._known[id(file)] = self._hashed(file) if file.size <= self._left else None
        return self._known[id(file)]

    def _hashed(self, file: _File) -> bytes | None:
        self._left -= file.size
        hasher = hashlib.blake2b(digest_size=32)
        try:
            with closing(file.open()) as opened:
                while chunk := opened.read(CHUNK_BYTES):
                    hasher.update(chunk)
        except OSError:
            return None
        return hasher.digest()
