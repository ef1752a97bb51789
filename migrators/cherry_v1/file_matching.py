"""Find facts about a base in other files: real paths of the files in its folders, and files that are identical.

v1 stores no path for a text file: its loader id hashes the text, and its ``source`` is a snippet. Files found on disk
only improve names and never decide whether a row is migrated (``docs/rules.md``, "Real paths").
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

# --- identical files -----------------------------------------------------------------------------------------------


#: Maximum number of bytes of a base's files that are compared. Only files of equal size and extension are.
MAX_COMPARED_BYTES = 1 << 30


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """A file that can be read: the upload of a standalone item, or a file of a folder on disk (with its path)."""

    loader_id: str
    name: str
    #: The extension decides how v1 reads a file: files with different extensions have different chunks.
    suffix: str
    size: int
    open: Callable[[], BinaryIO]
    #: Number of rows that can be migrated.
    rows: int = 0
    path: str = ""
    #: Id of the standalone item; empty for a file of a folder, for which ``read_at`` is when v1 read it (ms).
    item: str = ""
    read_at: int | None = None
    #: Whether the file of a folder may have been changed after v1 read it.
    changed: bool = False


def files_without_rows(draft: BaseDraft, survey: VectorSurvey) -> list[ItemDraft]:
    """List the completed file items to which v1 gave loader ids, but of which the vector file has no rows."""
    return [
        item
        for item in draft.items
        if item.type == "file" and item.status == "completed" and item.loader_ids and not _has_rows(item, survey)
    ]


def is_completed_folder(item: ItemDraft) -> bool:
    """Whether an item is a folder that v1 finished reading."""
    return item.type == "directory" and item.status == "completed"


def entries_without_rows(draft: BaseDraft, survey: VectorSurvey) -> list[str]:
    """List the loader ids of files in completed folders that have no rows in the vector file, in order."""
    folders = filter(is_completed_folder, draft.folders)
    entries = dict.fromkeys(entry for item in folders for entry in item.entries)
    return [entry for entry in entries if entry not in survey.loaders]


def _has_rows(item: ItemDraft, survey: VectorSurvey) -> bool:
    """Whether the vector file has rows of one of the item's loader ids."""
    return any(loader_id in survey.loaders for loader_id in item.loader_ids)


def find_duplicates(
    source: Located, draft: BaseDraft, survey: VectorSurvey, paths: Mapping[str, Path], *, texts: bool = False
) -> tuple[Duplicate, ...]:
    """Pair each file without rows with an identical file that has rows.

    v1 stores no chunk twice in a base (``docs/formats/v1.md``, "Vector file"), so the second of two equal files has no
    rows. A file that v1 failed on has none either, so only equal bytes prove a duplicate. Of several identical files,
    the one with the most migrated rows is used, then the first in item order. Files that cannot be read are ignored.

    Args:
        source: the source, with its uploads.
        draft: the base.
        survey: the rows of its vector file.
        paths: files of the base's folders that are on disk, by loader id.
        texts: whether rows are migrated for their text alone.
    """
    without_rows = list(_list_files_without_rows(source, draft, survey, paths))
    if not without_rows:
        return ()
    with_rows: dict[tuple[str, int], list[_File]] = {}
    for file in sorted(_list_files_with_rows(source, draft, survey, paths, texts=texts), key=lambda file: -file.rows):
        with_rows.setdefault((file.suffix, file.size), []).append(file)
    digests = _FileHashes()
    twins = []
    for file in without_rows:
        candidates = with_rows.get((file.suffix, file.size), ())
        digest = digests.of(file) if candidates else None
        like = next((one for one in candidates if digest is not None and digests.of(one) == digest), None)
        if like is not None:
            duplicate = Duplicate(
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
            twins.append(duplicate)
    return tuple(twins)


def _list_files_without_rows(
    source: Located, draft: BaseDraft, survey: VectorSurvey, paths: Mapping[str, Path]
) -> Iterator[_File]:
    """Yield the files of a base that have no rows: standalone ones first, then those of folders.

    ``paths`` are the files of folders on disk, by loader id.
    """
    for item in files_without_rows(draft, survey):
        yield from _uploaded_file(source, item, item.loader_ids[0])
    times = folder_read_times(draft)
    for loader_id in entries_without_rows(draft, survey):
        yield from _file_on_disk(loader_id, paths, times)


def _list_files_with_rows(
    source: Located, draft: BaseDraft, survey: VectorSurvey, paths: Mapping[str, Path], *, texts: bool
) -> Iterator[_File]:
    """Yield the files with rows to migrate, in item order. Rows that another item owns do not count.

    ``paths`` are the files of folders on disk, by loader id. With ``texts``, rows without a usable vector count too.
    """
    owners, times = LoaderOwners(draft, expand_folders(draft, survey)), folder_read_times(draft)
    for item in draft.items:
        counts = {loader_id: _count_rows(survey, loader_id, texts=texts) for loader_id in item.loader_ids}
        rows = {loader_id: count for loader_id, count in counts.items() if count}
        if item.type == "file":
            own = {loader_id: count for loader_id, count in rows.items() if owners.item_of(loader_id) == item.id}
            if own:
                yield from _uploaded_file(source, item, next(iter(own)), sum(own.values()))
        elif is_completed_folder(item):
            for loader_id, count in rows.items():
                child = owners.children.get(loader_id)
                if child is not None and child.id == owners.item_of(loader_id):
                    yield from _file_on_disk(loader_id, paths, times, count)


def _count_rows(survey: VectorSurvey, loader_id: str, *, texts: bool) -> int:
    """Count the rows of a loader id that have a vector of the base's length, or (``texts``) at least a text."""
    rows, length = survey.loaders.get(loader_id), survey.vector_bytes
    kinds = {} if rows is None else rows.kinds
    bare = sum(tally.with_text.count for kind, tally in kinds.items() if kind != length) if texts else 0
    return bare + (kinds[length].count if length in kinds else 0)


def _uploaded_file(source: Located, item: ItemDraft, loader_id: str, rows: int = 0) -> Iterator[_File]:
    """Yield the upload of a standalone item, with a loader id of the item and its number of rows.

    Yield nothing if the upload is not in the source.
    """
    name = None if item.upload is None else find_upload(source.tree, source.places.uploads, item.upload)
    if name is not None:
        with suppress(OSError):
            size, suffix = source.tree.size(name), PurePosixPath(name).suffix.lower()
            called, opened = item.data["relativePath"], partial(source.tree.open, name)
            yield _File(
                loader_id=loader_id, name=called, suffix=suffix, size=size, open=opened, rows=rows, item=item.id
            )


def _file_on_disk(
    loader_id: str, paths: Mapping[str, Path], times: Mapping[str, int], rows: int = 0
) -> Iterator[_File]:
    """Yield the file of a folder that has this loader id, with its number of rows.

    ``paths`` are the files on disk, ``times`` the times at which v1 read them. Yield nothing without a path.
    """
    path, read_at = paths.get(loader_id), times.get(loader_id)
    if path is not None:
        with suppress(OSError):
            status, suffix = path.stat(), path.suffix.lower()
            changed = read_at is None or status.st_mtime_ns // 1_000_000 > read_at
            name, opened, full = path_text(path.name), partial(links.open_for_reading, path), path_text(path)
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


class _FileHashes:
    """Hashes of files, each computed once, until :data:`MAX_COMPARED_BYTES` are read."""

    def __init__(self) -> None:
        self._left = MAX_COMPARED_BYTES
        self._known: dict[int, bytes | None] = {}

    def of(self, file: _File) -> bytes | None:
        """Return the hash of a file's bytes, or None if it cannot be read or the limit is reached."""
        if id(file) not in self._known:
            self._known[id(file)] = self._hash(file) if file.size <= self._left else None
        return self._known[id(file)]

    def _hash(self, file: _File) -> bytes | None:
        """Hash a file and subtract its size from the budget; None if it cannot be read."""
        self._left -= file.size
        hasher = hashlib.blake2b(digest_size=32)
        try:
            with closing(file.open()) as opened:
                while chunk := opened.read(CHUNK_BYTES):
                    hasher.update(chunk)
        except OSError:
            return None
        return hasher.digest()


# --- loader ids of text files --------------------------------------------------------------------------------------
#
# The loader ids of text, HTML and JSON files hash the text that v1 read (``docs/formats/v1.md``, "Loader ids" and
# "Text"). The encoding that v1 guessed is not stored, so all usual ones are tried, guided by the snippet that v1
# stored.


TEXT_LOADER, WEB_LOADER, JSON_LOADER = "TextLoader_", "WebLoader_", "JsonLoader_"
#: Loaders whose id hashes the text of a file. Their rows have a snippet of it as ``source``.
HASHED_TEXT_LOADERS = (TEXT_LOADER, WEB_LOADER, JSON_LOADER)
#: Length of the first part of a snippet, in UTF-16 units.
SNIPPET_UNITS = 24
#: Units that a text and its snippet share for certain: the cut may split the character after them.
_SURE_UNITS = SNIPPET_UNITS - 1
#: Number of bytes that hold these units in any encoding, byte order mark included.
_START_BYTES = 4 * _SURE_UNITS + 4
#: Number of bytes that hold the first character in any encoding.
_FIRST_BYTES = 4

#: Encodings that v1's detection can report and its decoder knows, most likely first. All of them contain ASCII.
ENCODINGS = (
    *("utf-8", "gb18030", "gbk", "big5hkscs", "cp950", "cp932", "euc_jisx0213", "cp949"),
    *("cp1252", "latin-1", "cp1251", "cp1250", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258"),
    *(f"iso8859-{part}" for part in (*range(2, 12), *range(13, 17))),
    *("koi8-r", "koi8-u", "cp866", "cp855", "cp874", "mac_roman", "mac_cyrillic", "mac_latin2", "ascii"),
)
#: Encodings that do not contain ASCII.
WIDE_ENCODINGS = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
#: Characters that v1's decoder, like browsers, decodes to full-width forms while Python does not.
_FULL_WIDTH = {
    "euc_jisx0213": {0x301C: 0xFF5E, 0x2016: 0x2225, 0x2212: 0xFF0D, 0xA2: 0xFFE0, 0xA3: 0xFFE1, 0xAC: 0xFFE2},
    "big5hkscs": {0x223C: 0xFF5E},
}
_BOM = "\ufeff"
#: Cost of parsing a byte as JSON, relative to hashing it.
_JSON_WEIGHT = 20
#: Limit on the cost of trying one JSON file in many encodings; hashing a byte costs 1.
MAX_JSON_WORK = 512 << 20


class WantedLoaders:
    """Loader ids of text files to find, each with the snippet that v1 stored.

    ``cost`` is the cost so far: bytes decoded and hashed, JSON weighted by :data:`_JSON_WEIGHT`.
    """

    def __init__(self, snippets: Mapping[str, str]) -> None:
        self.loaders = set(snippets)
        self.cost = 0
        self._snippets = snippets
        #: Number of ids left to find, by kind of loader.
        self._left = Counter(_loader_kind(loader_id) for loader_id in snippets)

    def __bool__(self) -> bool:
        return bool(self.loaders)

    def may_match(self, suffix: str) -> bool:
        """Whether a file with this extension may have one of the wanted loader ids. Lower case, with the dot."""
        return bool(
            (self._left[TEXT_LOADER] and suffix not in NO_TEXT_EXTENSIONS)
            or (self._left[WEB_LOADER] and suffix in (".html", ".htm"))
            or (self._left[JSON_LOADER] and suffix == ".json")
        )

    def match(self, raw: bytes, suffix: str) -> Iterator[str]:
        """Yield the wanted loader ids that v1 can have given to a file with these bytes.

        They are no longer wanted then.

        ``suffix`` is the extension in lower case, with the dot.
        """
        for text in self._texts(raw):
            self.cost += len(text)
            digest = _md5(text)
            yield from self._take(f"{TEXT_LOADER}{digest}", f"{WEB_LOADER}{digest}")
        if suffix == ".json" and self._left[JSON_LOADER]:
            end = self.cost + MAX_JSON_WORK
            for plain in _json_texts(raw):
                self.cost += _JSON_WEIGHT * len(plain)
                if self.cost > end:
                    return
                form = normalize_json(plain)
                if form is not None:
                    yield from self._take(f"{JSON_LOADER}{_md5(clean_text(form).encode())}")

    def _take(self, *loaders: str) -> Iterator[str]:
        """Yield the given loader ids that are wanted. They are no longer wanted then."""
        for loader_id in loaders:
            if loader_id in self.loaders:
                self.loaders.discard(loader_id)
                self._left[_loader_kind(loader_id)] -= 1
                yield loader_id

    def _texts(self, raw: bytes) -> Iterator[bytes]:
        """Yield the texts that v1 may have read from a file with these bytes, as UTF-8."""
        if self._left[TEXT_LOADER] or self._left[WEB_LOADER]:
            yield raw
            if raw.startswith(codecs.BOM_UTF8):
                yield raw.removeprefix(codecs.BOM_UTF8)
            for encoding in self._likely_encodings(raw):
                text = _as_v1(raw.decode(encoding, "replace"), encoding)
                yield text.encode()
                if text.startswith(_BOM):
                    yield text[1:].encode()

    def _likely_encodings(self, raw: bytes) -> Iterator[str]:
        """Yield the encodings in which these bytes begin like one of the wanted snippets."""
        for encoding in ENCODINGS + WIDE_ENCODINGS:
            # Decoding one character rules out most encodings.
            first_character = _decode_start(raw, _FIRST_BYTES, encoding)[:1]
            if first_character and first_character != _BOM and first_character not in self._known_first_characters:
                continue
            text = _decode_start(raw, _START_BYTES, encoding)
            if not self._known_starts.isdisjoint((_start(text), _start(text.removeprefix(_BOM)))):
                self.cost += len(raw)
                yield encoding

    @cached_property
    def _known_starts(self) -> set[bytes]:
        """The first code units of the wanted texts, as search keys."""
        return {_start(text) for loader_id, text in self._snippets.items() if not loader_id.startswith(JSON_LOADER)}

    @cached_property
    def _known_first_characters(self) -> set[str]:
        """The first characters of the wanted texts."""
        return {start.decode("utf-16-le", "replace")[:1] for start in self._known_starts}


def _loader_kind(loader_id: str) -> str:
    """Return the prefix of a loader id that tells the kind of file, for example ``TextLoader_``."""
    return loader_id.partition("_")[0] + "_"


def _decode_start(raw: bytes, size: int, encoding: str) -> str:
    """Decode the first ``size`` bytes of a file, without an incomplete character at the end."""
    text = _decoder(encoding)("replace").decode(raw[:size], len(raw) <= size)
    return _as_v1(text, encoding)


@cache
def _decoder(encoding: str) -> Callable[[str], codecs.IncrementalDecoder]:
    """Return the incremental decoder of an encoding; a function from an error policy to a decoder."""
    return codecs.getincrementaldecoder(encoding)


def _as_v1(text: str, encoding: str) -> str:
    """Change a text that Python decoded to what v1's decoder gives for the same bytes."""
    return replace_surrogates(text.translate(_FULL_WIDTH[encoding]) if encoding in _FULL_WIDTH else text)


def _start(text: str) -> bytes:
    """Return the first code units of a text in UTF-16-LE, as a search key.

    A text of a file and its snippet share them.
    """
    return text[:_SURE_UNITS].encode("utf-16-le")[: 2 * _SURE_UNITS]


def _md5(text: bytes) -> str:
    return hashlib.md5(text, usedforsecurity=False).hexdigest()


# --- JSON ----------------------------------------------------------------------------------------------------------


def _json_texts(raw: bytes) -> Iterator[str]:
    """Decode a JSON file as UTF-8 or, if it is not UTF-8, in each encoding that v1 may have guessed."""
    try:
        yield raw.decode().removeprefix(_BOM)
    except UnicodeDecodeError:
        for encoding in (*ENCODINGS, *WIDE_ENCODINGS):
            yield raw.decode(encoding, "replace").removeprefix(_BOM)


class _Number(str):
    """A number in the form that JavaScript writes."""

    __slots__ = ()


def normalize_json(text: str) -> str | None:
    """Format JSON as JavaScript's ``JSON.stringify`` does after ``JSON.parse``. None if it is not JSON.

    Numbers are doubles in their shortest form, and keys that are array indexes come first.
    """
    try:
        value = json.loads(
            text,
            parse_int=_format_number,
            parse_float=_format_number,
            parse_constant=_refuse,
            object_pairs_hook=_order_keys,
        )
        return _stringify(value)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    """Refuse a constant that JSON does not have: NaN or an infinity."""
    raise ValueError(constant)


def _format_number(text: str) -> _Number:
    """Convert a JSON number to the text that JavaScript writes for it."""
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


def _order_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Order the keys of an object as JavaScript does: array indexes first, ascending."""
    found = dict(pairs)
    indexes = sorted((key for key in found if _INDEX.fullmatch(key) and int(key) <= _LAST_INDEX), key=int)
    return {key: found[key] for key in indexes} | found if indexes else found


def _stringify(value: Any) -> str:
    """Convert a value to JSON, exactly as JavaScript's `JSON.stringify` does."""
    if isinstance(value, _Number):
        return value
    if isinstance(value, str):
        quoted = json.dumps(value, ensure_ascii=False)
        return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", quoted)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_stringify(key)}:{_stringify(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_stringify, value)) + "]"
    return {None: "null", True: "true", False: "false"}[value]


_SPACES = re.compile(f"[{JS_WHITESPACE}]{{2,}}")


def clean_text(text: str) -> str:
    """Clean a text as v1 does, also before it hashes a JSON file (``docs/formats/v1.md``, "Text")."""
    text = text.replace("\\", "").replace("#", " ").replace(". .", ".")
    text = re.sub(r"\r\n|\n|\r", " ", _SPACES.sub(" ", text))
    return trim(text)


#: Maximum number of files looked at in a base's folders: better names are not worth minutes.
MAX_FILES = 20_000
MAX_FILE_BYTES = 16 << 20
#: Maximum number of bytes read, and of the cost of decoding them: a text is tried in several encodings.
MAX_BYTES = 1 << 30
MAX_WORK = 4 << 30

_PATH_KINDS = ("LocalPathLoader_", "OdtLoader_", "OdsLoader_", "OdpLoader_")
_IMAGE = "ImageLoader_"


def collect_hints(source: Located, draft: BaseDraft, survey: VectorSurvey, options: Options) -> Hints:
    """Collect facts about a base from its folders on disk and its uploads: real paths and identical files."""
    found = find_file_paths(draft, survey)
    twins = find_duplicates(source, draft, survey, found, texts=options.carry_text)
    paths = {loader_id: path_text(path) for loader_id, path in found.items()}
    return Hints(paths=paths, twins=twins, restore_twins=options.restore_duplicates)


def find_file_paths(draft: BaseDraft, survey: VectorSurvey) -> dict[str, Path]:
    """Find the files of a base's completed folders that are still on disk. Return paths by loader id.

    A file is recognized by what its loader id hashes: its path, or its text in any usual encoding. Files whose rows
    have their path already are only searched if identical files may be missing their rows.
    """
    look = _FolderSearch()
    all_of_them = bool(files_without_rows(draft, survey) or entries_without_rows(draft, survey))
    for item in filter(is_completed_folder, draft.folders):
        entries = set(item.entries) - look.found.keys()
        by_path = {entry for entry in entries if not entry.startswith(HASHED_TEXT_LOADERS)} if all_of_them else set()
        snippets = {entry: text for entry in entries if (text := _snippet(survey, entry)) is not None}
        if by_path or snippets:
            look.search(item, by_path, WantedLoaders(snippets))
    return look.found


def _snippet(survey: VectorSurvey, loader_id: str) -> str | None:
    """Return the snippet in the rows of a text file's loader id; None for other loaders."""
    rows = survey.loaders.get(loader_id) if loader_id.startswith(HASHED_TEXT_LOADERS) else None
    return None if rows is None else rows.source


class _FolderSearch(msgspec.Struct):
    """Looks for files of one base in its folders. The limits apply to all folders together."""

    found: dict[str, Path] = msgspec.field(default_factory=dict)
    files_left: int = msgspec.field(default_factory=lambda: MAX_FILES)
    bytes_left: int = msgspec.field(default_factory=lambda: MAX_BYTES)
    work_left: int = msgspec.field(default_factory=lambda: MAX_WORK)

    @property
    def has_budget(self) -> bool:
        """Whether the limits allow reading more files."""
        return self.bytes_left > 0 and self.work_left > 0

    def search(self, item: ItemDraft, by_path: set[str], wanted: WantedLoaders) -> None:
        """Search the folder of an item until all its files are found or a limit is reached.

        ``by_path`` are loader ids that hash a path; those of text files are ``wanted``.
        """
        for path, size in _walk_files(item.data["source"]):
            self.files_left -= 1
            if self.files_left < 0 or not (by_path or (wanted and self.has_budget)):
                return
            name = path_text(path)
            digest = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
            loader_ids = {name, f"{_IMAGE}{name}", *(f"{kind}{digest}" for kind in _PATH_KINDS)}
            for loader_id in loader_ids & by_path:
                by_path.discard(loader_id)
                self.found[loader_id] = path
            if self.has_budget and 0 < size <= MAX_FILE_BYTES and wanted.may_match(path.suffix.lower()):
                self._read_file(path, wanted)

    def _read_file(self, path: Path, wanted: WantedLoaders) -> None:
        """Compare the text of a file with the wanted loader ids, and subtract its cost from the limits."""
        try:
            with links.open_for_reading(path) as file:
                raw = file.read(MAX_FILE_BYTES)
        except OSError:
            return
        self.bytes_left -= len(raw)
        before = wanted.cost
        for loader_id in wanted.match(raw, path.suffix.lower()):
            self.found[loader_id] = path
        self.work_left -= wanted.cost - before


def _walk_files(name: str) -> Iterator[tuple[Path, int]]:
    """Yield the regular files below the folder of this path with their sizes, in a fixed order.

    Links are not followed. Yields nothing for a path of another system or on a network server.
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
