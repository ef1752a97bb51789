"""Runs commands in this process and says what is wrong with how they end, what they print and what they touch."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from regraft.cli import cli

#: What may never reach a terminal: control characters, changes of direction, half characters.
_RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
#: 0 and 1: done, 2: refused. What stops a run midway (3) is the system, a full disk for one, and here nothing does;
#: or damage that shows when something was changed already, and then it says so.
_STATUSES = (0, 1, 2)
_BLAMES_ITSELF = re.compile("bug in regraft|[Pp]lease report")
_AT_DAMAGE = "stopped at damage"
_FILE_STATE = tuple[int, int, str]
#: What is on disk, by its path: kind, time of change, content.
State = dict[str, _FILE_STATE]


@dataclass
class Ended:
    """How a command ended."""

    line: tuple[str, ...]
    status: int
    stdout: str
    stderr: str
    raised: str = ""
    document: Any = None
    problems: list[str] = field(default_factory=list)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def ended(line: Iterable[object], *, stopped_is_fine: bool = False) -> Ended:
    """Run a command line in this process, and judge how it ends and what it prints.

    Args:
        line: the command and its options.
        stopped_is_fine: whether exit status 3 is no problem: something outside stopped the run.
    """
    words = tuple(str(word) for word in line)
    result = CliRunner().invoke(cli, list(words), prog_name="regraft")
    raised = ""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raised = f"{type(result.exception).__name__}: {result.exception}"
    done = Ended(words, result.exit_code, result.stdout, result.stderr, raised)
    done.problems += _wrong_end(done, stopped_is_fine)
    done.problems += _wrong_output(done)
    return done


def _wrong_end(done: Ended, stopped_is_fine: bool) -> Iterable[str]:
    said = done.stderr.strip()[-300:]
    may_stop = done.status == 3 and (stopped_is_fine or _AT_DAMAGE in done.stderr)
    if done.raised:
        yield f"an error came through: {done.raised}"
    elif _BLAMES_ITSELF.search(done.stderr):
        yield f"it says it is at fault: {said}"
    elif done.status not in _STATUSES and not may_stop:
        yield f"exit status {done.status}: {said}"
    elif done.status >= 2 and done.stderr.count("regraft: ") < 1:
        yield f"exit status {done.status}, and it does not say why"
    if "Traceback (most recent call last)" in done.stderr + done.stdout:
        yield "a traceback"


def _ends_with_one_error(lines: list[str]) -> bool:
    """Tell whether of several lines the last one is the error, and no other; what one line says is judged elsewhere."""
    errors = [place for place, line in enumerate(lines, 1) if line.startswith("regraft: ")]
    return len(lines) < 2 or errors == [len(lines)]


def _wrong_output(done: Ended) -> Iterable[str]:
    for name, text in (("stdout", done.stdout), ("stderr", done.stderr)):
        raw = _RAW.search(text)
        if raw is not None:
            yield f"{raw[0]!r} on {name}: {text[max(0, raw.start() - 60) : raw.end() + 20]!r}"
    if done.status >= 2 and not _ends_with_one_error(done.stderr.strip().splitlines()):
        yield f"the error is not one line: {done.stderr[-300:]!r}"
    if "--json" in done.line and not done.raised:
        try:
            done.document = json.loads(done.stdout, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            yield f"no JSON on stdout ({error}): {done.stdout[:100]!r}"


# --- what is on disk -------------------------------------------------------------------------------------------------


def state(folder: Path, *, without: tuple[str, ...] = ()) -> dict[str, _FILE_STATE]:
    """Return everything below a folder: kind, time of change and what it holds; links are not followed.

    Args:
        folder: where.
        without: names at the top that are left out.
    """
    found: dict[str, _FILE_STATE] = {}
    _look(str(folder), "", found, without)
    return found


def _look(folder: str, prefix: str, found: dict[str, _FILE_STATE], without: tuple[str, ...]) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not prefix and entry.name in without:
                continue
            name = prefix + entry.name
            status = entry.stat(follow_symlinks=False)
            kind = stat.S_IFMT(status.st_mode)
            content = ""
            if kind == stat.S_IFLNK:
                content = str(Path(entry.path).readlink())
            elif kind == stat.S_IFREG:
                with open(entry.path, "rb") as file:  # noqa: PTH123
                    content = hashlib.blake2b(file.read(), digest_size=12).hexdigest()
            found[name] = (kind, 0 if kind == stat.S_IFDIR else status.st_mtime_ns, content)
            if kind == stat.S_IFDIR:
                _look(entry.path, f"{name}/", found, without)


def differences(before: Mapping[str, _FILE_STATE], after: Mapping[str, _FILE_STATE]) -> list[str]:
    """Return what is other than before, in a few words."""
    changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    return [
        f"{name} {'is gone' if name not in after else 'is new' if name not in before else 'was changed'}"
        for name in changed
    ]


def victim(folder: Path) -> Path:
    """Make a folder of the user's that nothing may touch."""
    (folder / "docs").mkdir(parents=True)
    (folder / "letter.txt").write_text("Dear Alice\n")
    (folder / "docs" / "plan.md").write_text("# the plan\n")
    (folder / "docs" / "index.sqlite").write_bytes(b"not yours")
    (folder / ".cherry").mkdir()
    (folder / "raw").mkdir()
    (folder / "raw" / "notes.md").write_text("notes\n")
    import apsw

    with apsw.Connection(str(folder / "database.sqlite")) as db:
        db.execute("CREATE TABLE t (x)")
        db.execute("INSERT INTO t VALUES ('the user''s own')")
    db.close()
    return folder
