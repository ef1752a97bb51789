"""Find the original files of a base on this computer, and read their texts (``docs/sync.md``, "What is followed").

The paths come from a catalog, which may be untrusted. Nothing here is followed through a link, and hidden files, the
store itself and whole disks are read only if the user names them on the command line.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PureWindowsPath

import msgspec

from regraft.disk import durable, file_paths, links, scratch
from regraft.disk.file_paths import NO_TEXT_EXTENSIONS, disk_name
from regraft.errors import WrongUsage
from regraft.language import tr
from regraft.text import is_blank, replace_surrogates, split_command
from repair.cherry_v2.item_texts import BLANK, LARGEST_FILE, ItemText, NoText, read_file_text

#: Most files of one folder. In a larger folder, only known files are followed.
MOST_FILES = 200_000
#: Documents that an extractor command can read.
DOCUMENTS = frozenset(
    {".pdf", ".doc", ".docx", ".ppt", ".pptx", ".xls", ".xlsx", ".odt", ".ods", ".odp", ".epub"} & NO_TEXT_EXTENSIONS
)
#: Longest time an extractor may take for one file, in seconds, and the most text that it may print, in bytes.
EXTRACTOR_SECONDS = 120
EXTRACTOR_BYTES = 64 << 20
#: The place of the file's path in the command line of an extractor.
PLACEHOLDER = "{}"
#: Programs that Windows runs in cmd.exe, and what takes effect there if it is in the path of a document.
_BATCH_FILE, _SPECIAL_IN_BATCH = re.compile(r"(?i)\.(?:bat|cmd)[. ]*$"), re.compile(r'[&|<>^%!"]')
_OF_ONE_TYPE = re.compile(r"(\.\w+)=(.+)", re.DOTALL)


class Unreachable(Exception):
    """An original file or folder cannot be followed; the message says why.

    ``is_note``: it is reported as a note, not as a warning, because the user need not do anything about it.
    """

    def __init__(self, reason: str, *, is_note: bool = False) -> None:
        super().__init__(reason)
        self.is_note = is_note


# --- paths -----------------------------------------------------------------------------------------------------------


def locate(source: str) -> Path:
    """Return the path of an original on this system, given as the catalog has it.

    Raises:
        Unreachable: it is not an absolute path of this system.
    """
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise Unreachable(tr("the path is not valid Unicode")) from error
    if "\0" in source:
        raise Unreachable(tr("the path has a NUL"))
    if not Path(source).is_absolute():
        if PureWindowsPath(source).is_absolute() or source.startswith("/"):
            raise Unreachable(tr("the path is of another operating system; --moved OLD=NEW says where the files are"))
        raise Unreachable(tr("the catalog has no path of the file"), is_note=True)
    path = Path(source)
    if ".." in path.parts:
        raise Unreachable(tr("the path has .."))
    return path


def path_key(path: Path) -> str:
    """Return the form in which paths are compared on this system."""
    return disk_name(str(path))


def is_hidden(name: str) -> bool:
    """Whether a name is that of a hidden file or folder, or of the lock file of an office program."""
    return name.startswith((".", "~$"))


def _is_marked_hidden(status: os.stat_result) -> bool:
    """Whether a file or folder has the Windows attribute "hidden", such as ``desktop.ini``."""
    return bool(getattr(status, "st_file_attributes", 0) & stat.FILE_ATTRIBUTE_HIDDEN)


class SourceRoot(msgspec.Struct, frozen=True, kw_only=True):
    """A folder whose files may be read: one that is followed, or that of a file that was added alone."""

    path: Path
    #: The path with all links resolved.
    real: Path
    #: The real path of the store, which is never followed.
    store: Path

    @classmethod
    def open(cls, path: Path, store: Path, *, is_named: bool, is_for_one_file: bool = False) -> SourceRoot:
        """Check that the files of a folder may be read.

        Args:
            path: the folder.
            store: the root of the store.
            is_named: whether the user named it on the command line.
            is_for_one_file: whether one of its files was added alone.

        Raises:
            Unreachable: it does not exist, is empty, or must not be followed.
        """
        if not is_named:
            if any(map(is_hidden, path.parts)):
                raise Unreachable(tr("it is hidden; --source follows it"), is_note=True)
            if not is_for_one_file and (path == Path(path.anchor) or _is_above_home(path)):
                raise Unreachable(tr("it is a whole disk or home folder; --source follows it"))
        if not is_for_one_file and path == Path(path.anchor) and _is_above_home(path):
            raise Unreachable(tr("it is the disk of the system, with all programs and homes"))
        if links.is_at_or_below(path, store):
            raise Unreachable(tr("it is inside the store"), is_note=True)
        _demand_files(path)
        return cls(path=path, real=links.real_path(path), store=links.real_path(store))

    def examine(self, path: Path) -> os.stat_result | None:
        """Return the status of a file in the folder; None if it does not exist.

        Raises:
            Unreachable: the file must not be read, or it cannot be examined.
        """
        if any(map(is_hidden, path.relative_to(self.path).parts)):
            raise Unreachable(tr("it is hidden"), is_note=True)
        try:
            status = file_paths.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise Unreachable(tr("it cannot be examined ({error})", error=error)) from error
        if _is_marked_hidden(status):
            raise Unreachable(tr("it is hidden"), is_note=True)
        real = links.real_path(path)
        if stat.S_ISLNK(status.st_mode) or not real.is_relative_to(self.real):
            raise Unreachable(tr("it is a link, or in a folder that is one"))
        if real.is_relative_to(self.store):
            raise Unreachable(tr("it is inside the store"), is_note=True)
        if not stat.S_ISREG(status.st_mode):
            raise Unreachable(tr("it is not a file"))
        return status


def _demand_files(path: Path) -> None:
    """Check that a folder exists and is not empty.

    Raises:
        Unreachable
    """
    try:
        if not stat.S_ISDIR(file_paths.stat(path).st_mode):
            raise Unreachable(tr("it is not a folder"))
        with os.scandir(file_paths.extended_path(path)) as entries:
            is_empty = next(entries, None) is None
    except FileNotFoundError as error:
        raise Unreachable(tr("the folder does not exist; if it moved, use --moved OLD=NEW")) from error
    except OSError as error:
        raise Unreachable(tr("it cannot be read ({strerror})", strerror=error.strerror)) from error
    if is_empty:
        raise Unreachable(tr("the folder is empty; its disk may not be mounted"))


def _is_above_home(path: Path) -> bool:
    """Whether a path is the user's home folder or above it."""
    home = file_paths.home_folder()
    return home is not None and home.is_relative_to(path)


class FolderScan(msgspec.Struct):
    """The files found below a folder, and what was skipped, as pairs of reason and path."""

    files: list[Path] = msgspec.field(default_factory=list)
    skipped: list[tuple[str, str]] = msgspec.field(default_factory=list)
    #: Whether the folder has more files than are followed.
    is_too_large: bool = False


def scan_folder(root: SourceRoot) -> FolderScan:
    """List the regular files below a folder, sorted, without hidden ones. Links and the store are not followed."""
    found = FolderScan()

    def unreadable(error: OSError) -> None:
        """Record a folder that cannot be read as skipped."""
        found.skipped.append((tr("it cannot be read ({strerror})", strerror=error.strerror), str(error.filename)))

    for within, folders, names in file_paths.walk(root.path, unreadable):
        folder = Path(within)
        folders[:] = [name for name in sorted(folders) if _is_followed_folder(folder / name, root, found)]
        for name in sorted(names):
            path = folder / name
            if is_hidden(name) or not _is_followed_file(path, found):
                continue
            if len(found.files) >= MOST_FILES:
                found.is_too_large = True
                return found
            found.files.append(path)
    return found


def _is_followed_folder(path: Path, root: SourceRoot, scan: FolderScan) -> bool:
    """Whether files below a folder are compared: not if it is hidden, a link or the store.

    A link is added to ``scan``.
    """
    try:
        if is_hidden(path.name) or _is_marked_hidden(file_paths.lstat(path)):
            return False
    except OSError:
        return True  # the walk reports that it cannot be read
    if file_paths.is_link(path):
        scan.skipped.append((tr("it is a link"), str(path)))
        return False
    return links.real_path(path) != root.store


def _is_followed_file(path: Path, scan: FolderScan) -> bool:
    """Whether a file is compared: a regular file that is not hidden. Other reasons are added to ``found.skipped``."""
    try:
        path.name.encode()
        status = file_paths.lstat(path)
    except UnicodeEncodeError:
        reason = tr("its name is not valid Unicode")
    except OSError as error:
        reason = tr("it cannot be examined ({error})", error=error.strerror)
    else:
        if stat.S_ISREG(status.st_mode):
            return not _is_marked_hidden(status)
        reason = tr("it is a link") if stat.S_ISLNK(status.st_mode) else tr("it is not a file")
    scan.skipped.append((reason, str(path)))
    return False


# --- texts -----------------------------------------------------------------------------------------------------------


class SourceReader:
    """Reads the texts of original files; those of documents with the extractor commands of the user.

    Args:
        extractors: command lines by extension; "" is for every document.
        keep: extracted texts are kept in files until it closes.
    """

    def __init__(self, extractors: Mapping[str, tuple[str, ...]], keep: ExitStack) -> None:
        self._extractors = extractors
        self._keep = keep
        self._folder: Path | None = None

    def can_read(self, path: Path) -> bool:
        """Whether regraft or an extractor reads files with the extension of this one."""
        return path.suffix.lower() not in NO_TEXT_EXTENSIONS or self._command(path) is not None

    def read(self, path: Path) -> ItemText:
        """Return the text of a file, which is never blank.

        Raises:
            NoText: it has none, or it cannot be read.
            WrongUsage: a library that reads it is not installed.
        """
        command = self._command(path)
        found = read_file_text(path) if command is None else self._extract(path, command)
        if is_blank(found.text):
            raise NoText(BLANK)
        return ItemText(replace_surrogates(found.text), found.guessed)

    def _command(self, path: Path) -> tuple[str, ...] | None:
        """Return the user's extractor command for a file, or None."""
        suffix = path.suffix.lower()
        return self._extractors.get(suffix) or (self._extractors.get("") if suffix in DOCUMENTS else None)

    def _extract(self, path: Path, command: tuple[str, ...]) -> ItemText:
        """Return the text that an extractor command prints for a file; it runs once for each content of a file."""
        try:
            if file_paths.stat(path).st_size > LARGEST_FILE:
                raise NoText(tr("it is larger than {size} MiB", size=LARGEST_FILE >> 20))
            key = hashlib.sha256("\0".join((links.hash_file(path), *command)).encode()).hexdigest()
        except OSError as error:
            raise NoText(tr("it cannot be read ({strerror})", strerror=error.strerror)) from error
        if self._folder is None:
            self._folder = self._keep.enter_context(scratch.temporary_folder())
        kept = self._folder / key
        if not file_paths.exists(kept):
            durable.put_bytes(kept, run_extractor(command, path))
        raw = links.read_bytes(kept)
        try:
            return ItemText(raw.decode("utf-8-sig").replace("\0", ""))
        except UnicodeDecodeError as error:
            raise NoText(tr("{program} did not print UTF-8", program=command[0])) from error


def parse_extractors(values: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Map file extensions to command lines from the values of ``--extractor``.

    ``.docx=pandoc …`` is for one extension, any other for every document ("").

    Raises:
        WrongUsage: a command line does not have the placeholder of the file, or an extension has two.
    """
    found: dict[str, tuple[str, ...]] = {}
    for value in values:
        limited = _OF_ONE_TYPE.fullmatch(value)
        suffix, line = limited.groups() if limited else ("", value)
        try:
            command = tuple(split_command(line))
        except ValueError:
            command = ()  # a quote is not closed
        if len(command) < 2 or not any(PLACEHOLDER in word for word in command[1:]):
            problem = tr("--extractor: {value!r} is not a command line with {place}", value=value, place=PLACEHOLDER)
            raise WrongUsage(problem=problem, hint=tr('for example "pdftotext {place} -"', place=PLACEHOLDER))
        if suffix.lower() in found:
            problem = tr("--extractor: two commands for {suffix}", suffix=suffix or tr("every document"))
            raise WrongUsage(problem=problem, hint=tr("use one of them"))
        found[suffix.lower()] = command
    return found


def run_extractor(command: tuple[str, ...], path: Path, *, windows: bool = os.name == "nt") -> bytes:
    """Run an extractor command of the user on a file, without a shell, and return what it prints.

    ``windows``: whether this is Windows.

    Raises:
        NoText: it cannot be run, fails, takes too long, or prints too much; or Windows would run it in cmd.exe, which
            would take characters of the path for commands.
    """
    if windows and _BATCH_FILE.search(command[0]) and (special := _SPECIAL_IN_BATCH.search(str(path))):
        problem = tr(
            "{program} is a batch file, in which {character} in a path could be a command; use a program",
            program=command[0],
            character=special[0],
        )
        raise NoText(problem)
    words = [word.replace(PLACEHOLDER, str(path)) for word in command]
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise NoText(tr("{program} cannot be run ({reason})", program=command[0], reason=reason)) from error
    late: list[bool] = []

    def end_late() -> None:
        """End an extractor that exceeds its time."""
        late.append(True)
        end()

    with process, _started_programs(process) as end:
        # A program that hangs without printing anything is ended as well.
        timer = threading.Timer(EXTRACTOR_SECONDS, end_late)
        timer.start()
        try:
            printed = b"".join(_limited_output(process, end))
            status = process.wait()
        finally:
            timer.cancel()
            end()
    if len(printed) > EXTRACTOR_BYTES:
        raise NoText(tr("{program} prints more than {size} MiB", program=command[0], size=EXTRACTOR_BYTES >> 20))
    if late:
        raise NoText(tr("{program} takes longer than {seconds} seconds", program=command[0], seconds=EXTRACTOR_SECONDS))
    if status != 0:
        raise NoText(tr("{program} failed with status {status}", program=command[0], status=status))
    return printed


@contextmanager
def _started_programs(process: subprocess.Popen[bytes]) -> Iterator[Callable[[], None]]:
    """Context with a function that ends a process and the programs that it started, which may keep its output open."""
    if sys.platform == "win32":
        import ctypes  # noqa: PLC0415 - only there

        kernel = ctypes.windll.kernel32
        kernel.CreateJobObjectW.restype = ctypes.c_void_p
        job = ctypes.c_void_p(kernel.CreateJobObjectW(None, None))
        kernel.AssignProcessToJobObject(job, ctypes.c_void_p(int(process._handle)))

    def end() -> None:
        """End the process and the programs that it started."""
        if process.poll() is None:
            if sys.platform == "win32":
                kernel.TerminateJobObject(job, 1)
            else:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        process.kill()

    try:
        yield end
    finally:
        if sys.platform == "win32":
            kernel.CloseHandle(job)


def _limited_output(process: subprocess.Popen[bytes], end: Callable[[], None]) -> Iterator[bytes]:
    """Yield the output of a process in parts. Above the limit, call ``end``, which ends the process, and stop."""
    assert process.stdout is not None
    size = 0
    while chunk := process.stdout.read(1 << 20):
        yield chunk
        size += len(chunk)
        if size > EXTRACTOR_BYTES:
            end()
            return
