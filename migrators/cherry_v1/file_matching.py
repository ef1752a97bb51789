"""What the files beside a v1 state tell: real paths of a folder's files, and files that equal another one.

v1 keeps no path for a text file: its loader id hashes the text and its ``source`` is a snippet of it. A file found
again gives a better name; it is never a condition for anything (``docs/rules.md``, "Real paths").
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from decimal import Decimal
from functools import cache, cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import msgspec

from migrators.pipeline.accounting import LoaderOwners, expand_folders
from migrators.pipeline.losses import folder_read_times
from migrators.pipeline.source import BaseDraft, Duplicate, Hints, ItemDraft, Options
from migrators.pipeline.source_files import find_upload
from regraft.disk import links
from regraft.disk.file_paths import NO_TEXT_EXTENSIONS
from regraft.disk.trees import CHUNK_BYTES
from regraft.formats.vector_survey import VectorSurvey
from regraft.stores.locate import Located
from regraft.text import JS_WHITESPACE, path_text, replace_surrogates, trim

# Files that v1 left without a row because another file of the base has the same bytes.
#
# v1 stores no chunk twice in a base (``docs/formats/v1.md``, "Vector file"), so that the second of two equal files gets
# none. A file that v1 failed on has none either: only equal bytes tell that a file is such a duplicate. An upload never
# changes; a file of a folder is compared only where it was last changed before v1 read it.


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


def files_without_rows(draft: BaseDraft, survey: VectorSurvey) -> list[ItemDraft]:
    """Return a base's completed standalone files that have no row at all."""
    return [
        item
        for item in draft.items
        if item.type == "file" and item.status == "completed" and item.loader_ids and not _has_rows(item, survey)
    ]


def is_completed_folder(item: ItemDraft) -> bool:
    """Tell whether an item is a folder that v1 had read."""
    return item.type == "directory" and item.status == "completed"


def entries_without_rows(draft: BaseDraft, survey: VectorSurvey) -> list[str]:
    """Return the entries of a base's completed folders that have no row at all, in order."""
    folders = filter(is_completed_folder, draft.folders)
    entries = dict.fromkeys(entry for item in folders for entry in item.entries)
    return [entry for entry in entries if entry not in survey.loaders]


def _has_rows(item: ItemDraft, survey: VectorSurvey) -> bool:
    return any(loader in survey.loaders for loader in item.loader_ids)


def find_duplicates(
    source: Located, draft: BaseDraft, survey: VectorSurvey, paths: Mapping[str, Path], *, texts: bool = False
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


def _lost(source: Located, draft: BaseDraft, survey: VectorSurvey, paths: Mapping[str, Path]) -> Iterator[_File]:
    """Yield the files without rows: standalone ones, then those of folders."""
    for item in files_without_rows(draft, survey):
        yield from _upload(source, item, item.loader_ids[0])
    times = folder_read_times(draft)
    for loader in entries_without_rows(draft, survey):
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
    source: Located, draft: BaseDraft, survey: VectorSurvey, paths: Mapping[str, Path], *, texts: bool
) -> Iterator[_File]:
    """Yield the files that have rows to carry, in item order. Rows that go to another item are not a file's."""
    owners, times = LoaderOwners(draft, expand_folders(draft, survey)), folder_read_times(draft)
    for item in draft.items:
        rows = _rows_to_carry(survey, item, texts=texts)
        if item.type == "file":
            own = {loader: count for loader, count in rows.items() if owners.owner(loader) == item.id}
            if own:
                yield from _upload(source, item, next(iter(own)), sum(own.values()))
        elif is_completed_folder(item):
            for loader in (one for one in rows if _is_of_child(owners, one)):
                yield from _on_disk(loader, paths, times, rows[loader])


def _to_carry(survey: VectorSurvey, loader_id: str, *, texts: bool) -> int:
    """Return how many rows of a loader have a vector of the base's length, or (``texts``) a text at least."""
    rows, length = survey.loaders.get(loader_id), survey.vector_bytes
    kinds = {} if rows is None else rows.kinds
    bare = sum(tally.with_text.count for kind, tally in kinds.items() if kind != length) if texts else 0
    return bare + (kinds[length].count if length in kinds else 0)


def _rows_to_carry(survey: VectorSurvey, item: ItemDraft, *, texts: bool) -> dict[str, int]:
    """Return how many rows of an item can be carried, by loader id; none of a loader that has none."""
    return {loader: count for loader in item.loader_ids if (count := _to_carry(survey, loader, texts=texts))}


def _is_of_child(owners: LoaderOwners, loader_id: str) -> bool:
    """Tell whether the rows of a folder's file go to the item that is made of the file."""
    child = owners.children.get(loader_id)
    return child is not None and child.id == owners.owner(loader_id)


def _upload(source: Located, item: ItemDraft, loader_id: str, rows: int = 0) -> Iterator[_File]:
    """Yield a standalone item's upload, if it is in the source."""
    name = None if item.upload is None else find_upload(source.tree, source.places.uploads, item.upload)
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
    return links.open_for_reading(path)


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


# The loader ids that v1 gave to a text file, told from the file's bytes.
#
# The ids of text, HTML and JSON files hash what v1 read (``docs/formats/v1.md``, "Loader ids" and "Text"). v1 guessed the
# encoding, and its guess is not kept, so that every usual one is tried, guided by the snippet that v1 did keep.


TEXT_LOADER, WEB_LOADER, JSON_LOADER = "TextLoader_", "WebLoader_", "JsonLoader_"
#: Loaders that are named after a file's text; their rows have a snippet of it for a ``source``.
HASHED_TEXT_LOADERS = (TEXT_LOADER, WEB_LOADER, JSON_LOADER)
#: Where v1 cut a snippet, in UTF-16 units.
SNIPPET_UNITS = 24
#: Units at the start of a text and of its snippet that are surely the same: the cut may halve the one after them.
_SURE_UNITS = SNIPPET_UNITS - 1
#: Bytes in which they are, whatever the encoding, after a byte order mark.
_START_BYTES = 4 * _SURE_UNITS + 4
#: Bytes in which the first character surely is.
_FIRST_BYTES = 4

#: What v1's detection can name and its decoder knows, most likely first; ASCII is ASCII in all of them.
ENCODINGS = (
    *("utf-8", "gb18030", "gbk", "big5hkscs", "cp950", "cp932", "euc_jisx0213", "cp949"),
    *("cp1252", "latin-1", "cp1251", "cp1250", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258"),
    *(f"iso8859-{part}" for part in (*range(2, 12), *range(13, 17))),
    *("koi8-r", "koi8-u", "cp866", "cp855", "cp874", "mac_roman", "mac_cyrillic", "mac_latin2", "ascii"),
)
#: Those in which ASCII is not ASCII.
WIDE_ENCODINGS = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
#: Where v1's decoder, like browsers, has the full-width form of a sign for which Python's table has another one.
_FULL_WIDTH = {
    "euc_jisx0213": {0x301C: 0xFF5E, 0x2016: 0x2225, 0x2212: 0xFF0D, 0xA2: 0xFFE0, 0xA3: 0xFFE1, 0xAC: 0xFFE2},
    "big5hkscs": {0x223C: 0xFF5E},
}
_BOM = "\ufeff"
#: What reading a byte as JSON takes, compared with hashing it.
_JSON_WEIGHT = 20
#: What trying one JSON file in many encodings may come to; 1 is hashing a byte.
MAX_JSON_WORK = 512 << 20


class WantedLoaders:
    """Loader ids of text files that are looked for, each with the snippet that v1 kept.

    ``spent`` counts the bytes that were decoded and hashed, JSON several times over, for a bound on the work.
    """

    def __init__(self, snippets: Mapping[str, str]) -> None:
        self.loaders = set(snippets)
        self.spent = 0
        self._snippets = snippets
        #: How many of each kind are left.
        self._left = Counter(_kind(loader) for loader in snippets)

    def __bool__(self) -> bool:
        return bool(self.loaders)

    def can_be(self, suffix: str) -> bool:
        """Tell whether a file with this extension (lower case, with the dot) can be one that is looked for."""
        return bool(
            (self._left[TEXT_LOADER] and suffix not in NO_TEXT_EXTENSIONS)
            or (self._left[WEB_LOADER] and suffix in (".html", ".htm"))
            or (self._left[JSON_LOADER] and suffix == ".json")
        )

    def of_file(self, raw: bytes, suffix: str) -> Iterator[str]:
        """Yield every wanted loader id that v1 can have given to a file of these bytes; each is wanted no more.

        ``suffix`` is its extension in lower case, with the dot.
        """
        for text in self._texts(raw):
            self.spent += len(text)
            digest = _md5(text)
            yield from self._take(f"{TEXT_LOADER}{digest}", f"{WEB_LOADER}{digest}")
        if suffix == ".json" and self._left[JSON_LOADER]:
            end = self.spent + MAX_JSON_WORK
            for plain in _json_texts(raw):
                self.spent += _JSON_WEIGHT * len(plain)
                if self.spent > end:
                    return
                form = normalize_json(plain)
                if form is not None:
                    yield from self._take(f"{JSON_LOADER}{_md5(clean_text(form).encode())}")

    def _take(self, *loaders: str) -> Iterator[str]:
        for loader in loaders:
            if loader in self.loaders:
                self.loaders.discard(loader)
                self._left[_kind(loader)] -= 1
                yield loader

    def _texts(self, raw: bytes) -> Iterator[bytes]:
        """Yield what v1 can have read in a file, as UTF-8."""
        if self._left[TEXT_LOADER] or self._left[WEB_LOADER]:
            yield raw
            if raw.startswith(codecs.BOM_UTF8):
                yield raw.removeprefix(codecs.BOM_UTF8)
            for encoding in self._likely(raw):
                text = _as_v1(raw.decode(encoding, "replace"), encoding)
                yield text.encode()
                if text.startswith(_BOM):
                    yield text[1:].encode()

    def _likely(self, raw: bytes) -> Iterator[str]:
        """Yield the encodings in which a file begins as one of the snippets does."""
        for encoding in ENCODINGS + WIDE_ENCODINGS:
            # Decoding a few bytes tells nearly always.
            if self._first(_begun(raw, _FIRST_BYTES, encoding)) and self._begins(_begun(raw, _START_BYTES, encoding)):
                self.spent += len(raw)
                yield encoding

    def _first(self, text: str) -> bool:
        return not text or text[0] in self._firsts or text[0] == _BOM

    def _begins(self, text: str) -> bool:
        return _start(text) in self._starts or _start(text.removeprefix(_BOM)) in self._starts

    @cached_property
    def _starts(self) -> set[bytes]:
        return {_start(text) for loader, text in self._snippets.items() if not loader.startswith(JSON_LOADER)}

    @cached_property
    def _firsts(self) -> set[str]:
        return {start.decode("utf-16-le", "replace")[:1] for start in self._starts}


def _kind(loader: str) -> str:
    return loader.partition("_")[0] + "_"


def _begun(raw: bytes, size: int, encoding: str) -> str:
    """Return what the first bytes of a file read as, without a character that is not whole yet."""
    text = _decoder(encoding)("replace").decode(raw[:size], len(raw) <= size)
    return _as_v1(text, encoding)


@cache
def _decoder(encoding: str) -> Callable[[str], codecs.IncrementalDecoder]:
    return codecs.getincrementaldecoder(encoding)


def _as_v1(text: str, encoding: str) -> str:
    """Return a decoded text as v1's decoder has it."""
    return replace_surrogates(text.translate(_FULL_WIDTH[encoding]) if encoding in _FULL_WIDTH else text)


def _start(text: str) -> bytes:
    return text[:_SURE_UNITS].encode("utf-16-le")[: 2 * _SURE_UNITS]


def _md5(text: bytes) -> str:
    return hashlib.md5(text, usedforsecurity=False).hexdigest()


# --- JSON ----------------------------------------------------------------------------------------------------------


def _json_texts(raw: bytes) -> Iterator[str]:
    """Yield what a JSON file can have been read as: UTF-8, or, where it is none, any other encoding."""
    try:
        yield raw.decode().removeprefix(_BOM)
    except UnicodeDecodeError:
        for encoding in (*ENCODINGS, *WIDE_ENCODINGS):
            yield raw.decode(encoding, "replace").removeprefix(_BOM)


class _Number(str):
    """A number as JavaScript writes it."""

    __slots__ = ()


def normalize_json(text: str) -> str | None:
    """Return JSON as JavaScript's ``JSON.stringify`` writes it again, or None for what is no JSON.

    Numbers are doubles in their shortest form, and keys that are array indexes come first.
    """
    try:
        value = json.loads(
            text,
            parse_int=_number,
            parse_float=_number,
            parse_constant=_refuse,
            object_pairs_hook=_ordered,
        )
        return _written(value)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _number(text: str) -> _Number:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        return _Number("null")
    if value == 0:
        return _Number("0")
    if 1e-6 <= abs(value) < 1e21:
        plain = format(Decimal(repr(value)), "f")
        return _Number(plain.removesuffix(".0"))
    digits, _, exponent = repr(value).partition("e")
    return _Number(f"{digits.removesuffix('.0')}e{int(exponent):+d}")


_INDEX = re.compile("0|[1-9][0-9]{0,9}")
_LAST_INDEX = (1 << 32) - 2


def _ordered(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    indexes = sorted((key for key in found if _INDEX.fullmatch(key) and int(key) <= _LAST_INDEX), key=int)
    return {key: found[key] for key in indexes} | found if indexes else found


def _written(value: Any) -> str:
    if isinstance(value, _Number):
        return value
    if isinstance(value, str):
        quoted = json.dumps(value, ensure_ascii=False)
        return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", quoted)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_written(key)}:{_written(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return {None: "null", True: "true", False: "false"}[value]


_SPACES = re.compile(f"[{JS_WHITESPACE}]{{2,}}")


def clean_text(text: str) -> str:
    """Return a text as v1 cleans it, also before it hashes a JSON file's (``docs/formats/v1.md``, "Text")."""
    text = text.replace("\\", "").replace("#", " ").replace(". .", ".")
    text = re.sub(r"\r\n|\n|\r", " ", _SPACES.sub(" ", text))
    return trim(text)


#: A base's folders are looked through no further than this: a better name is not worth minutes.
MAX_FILES = 20_000
MAX_FILE_BYTES = 16 << 20
#: Bytes that are read, and the bytes of work that they come to: one text is tried in several encodings.
MAX_BYTES = 1 << 30
MAX_WORK = 4 << 30

_PATH_KINDS = ("LocalPathLoader_", "OdtLoader_", "OdsLoader_", "OdpLoader_")
_IMAGE = "ImageLoader_"


def collect_hints(source: Located, draft: BaseDraft, survey: VectorSurvey, options: Options) -> Hints:
    """Return what the folders on disk and the uploads tell of a base."""
    found = find_file_paths(draft, survey)
    twins = find_duplicates(source, draft, survey, found, texts=options.carry_text)
    paths = {loader: path_text(path) for loader, path in found.items()}
    return Hints(paths=paths, twins=twins, restore_twins=options.restore_duplicates)


def find_file_paths(draft: BaseDraft, survey: VectorSurvey) -> dict[str, Path]:
    """Return the paths of those files of a base's completed folders that are still there, by loader id.

    Files are recognised by what their loader id hashes: the path, or the text in any usual encoding. Those whose rows
    have their path already are only looked for where another file may have lost its rows to them.
    """
    look = _FolderSearch()
    all_of_them = bool(files_without_rows(draft, survey) or entries_without_rows(draft, survey))
    for item in filter(is_completed_folder, draft.folders):
        entries = set(item.entries) - look.found.keys()
        by_path = {entry for entry in entries if not entry.startswith(HASHED_TEXT_LOADERS)} if all_of_them else set()
        snippets = {entry: text for entry in entries if (text := _snippet(survey, entry)) is not None}
        if by_path or snippets:
            look.through(item, by_path, WantedLoaders(snippets))
    return look.found


def _snippet(survey: VectorSurvey, loader: str) -> str | None:
    """Return the snippet that the rows of a text file's loader have, None for any other loader."""
    rows = survey.loaders.get(loader) if loader.startswith(HASHED_TEXT_LOADERS) else None
    return None if rows is None else rows.source


class _FolderSearch(msgspec.Struct):
    """A look through the folders of one base, with the bounds that they share."""

    found: dict[str, Path] = msgspec.field(default_factory=dict)
    files_left: int = msgspec.field(default_factory=lambda: MAX_FILES)
    bytes_left: int = msgspec.field(default_factory=lambda: MAX_BYTES)
    work_left: int = msgspec.field(default_factory=lambda: MAX_WORK)

    @property
    def may_read(self) -> bool:
        """Tell whether files may still be read."""
        return self.bytes_left > 0 and self.work_left > 0

    def through(self, item: ItemDraft, by_path: set[str], wanted: WantedLoaders) -> None:
        """Look through one folder for files by their path and by their text, until all are found."""
        for path, size in _walk_files(item.data["source"]):
            self.files_left -= 1
            if self.files_left < 0 or not (by_path or (wanted and self.may_read)):
                return
            for loader in _path_loaders(path_text(path)) & by_path:
                by_path.discard(loader)
                self.found[loader] = path
            if self.may_read and 0 < size <= MAX_FILE_BYTES and wanted.can_be(path.suffix.lower()):
                self._read(path, wanted)

    def _read(self, path: Path, wanted: WantedLoaders) -> None:
        try:
            with links.open_for_reading(path) as file:
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


def _walk_files(name: str) -> Iterator[tuple[Path, int]]:
    """Yield the plain files below a folder with their sizes, in a fixed order; links are not followed.

    A folder of another system, or of a server that would have to be asked, has none.
    """
    folder = Path(name)
    if "\0" in name or name != replace_surrogates(name) or not folder.is_absolute() or folder.drive.startswith("\\\\"):
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
