"""What asks a run to stop: every signal ends it as Ctrl-C does, once, and tears nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from faults import untouched
from harness import run
from toys import change, contents
from toys import library as small_library

from regraft.errors import BackfillInterrupted, SourceUnreadable
from repair.changes import session as changes_session
from repair.cherry_v2 import pack
from repair.cherry_v2 import pack as packing

_HEAD = """
import signal, sys
from regraft.processes import interrupts
# On Windows, a window that is closed sends what Ctrl-Break does.
HUP = signal.SIGBREAK if sys.platform == "win32" else signal.SIGHUP
INT, TERM = signal.SIGINT, signal.SIGTERM
# Whoever started the tests may have had them ignored.
signal.signal(INT, signal.default_int_handler)
for number in (HUP, TERM):
    signal.signal(number, signal.SIG_DFL)
"""


def ended(program: str) -> tuple[int, str, str]:
    """Run a program of its own, and return its exit status and what it said."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    line = [sys.executable, "-P", "-c", _HEAD + program]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("number", ["HUP", "INT", "TERM"])
def test_every_stop_is_raised_once_and_then_cleaning_up_is_undisturbed(number: str) -> None:
    program = f"""
interrupts.install_handlers()
try:
    signal.raise_signal({number})
    print("not raised")
except KeyboardInterrupt:
    for again in (HUP, INT, TERM):
        signal.raise_signal(again)
    print("cleaned up")
"""
    assert ended(program) == (0, "cleaned up\n", "")


def test_a_stop_while_the_command_loads_ends_it_without_a_traceback() -> None:
    program = """
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "regraft.language":
            signal.raise_signal(INT)

sys.modules.pop("regraft.language", None)
sys.meta_path.insert(0, Stop())
from regraft.__main__ import main
main()
"""
    # The C library of Windows ends a program that raises a signal of its own with 3.
    assert ended(program) == (3 if os.name == "nt" else -signal.SIGINT, "", "")


def test_what_is_ignored_stays_ignored() -> None:
    program = """
signal.signal(HUP, signal.SIG_IGN)
interrupts.install_handlers()
signal.raise_signal(HUP)
print("went on")
"""
    assert ended(program) == (0, "went on\n", "")


@pytest.mark.parametrize("number", ["HUP", "INT", "TERM"])
def test_a_stop_waits_for_the_end_of_what_is_held_back(number: str) -> None:
    program = f"""
interrupts.install_handlers()
try:
    with interrupts.defer_stops():
        with interrupts.defer_stops():
            signal.raise_signal({number})
            print("inner")
        print("outer")
    print("not raised")
except KeyboardInterrupt:
    print("raised")
"""
    assert ended(program) == (0, "inner\nouter\nraised\n", "")


def test_a_stop_is_not_forgotten_where_what_is_held_back_fails() -> None:
    program = """
interrupts.install_handlers()
try:
    with interrupts.defer_stops():
        signal.raise_signal(TERM)
        raise OSError("no room")
except KeyboardInterrupt as stop:
    print(repr(stop.__context__))
"""
    assert ended(program) == (0, "OSError('no room')\n", "")


def test_who_has_not_installed_anything_keeps_its_own_ways() -> None:
    program = """
before = [signal.getsignal(number) for number in interrupts.STOP_SIGNALS]
for again in range(2):
    try:
        with interrupts.defer_stops():
            signal.raise_signal(INT)
            print("held back")
    except KeyboardInterrupt:
        print("raised")
interrupts.ignore_stops()
assert [signal.getsignal(number) for number in interrupts.STOP_SIGNALS] == before
"""
    assert ended(program) == (0, "held back\nraised\n" * 2, "")


def test_a_stop_that_comes_where_nothing_can_be_raised_is_raised_again() -> None:
    program = """
import time
interrupts.install_handlers()

class Finalised:
    def __del__(self):
        signal.raise_signal(TERM)

try:
    Finalised()
    while True:
        # On Windows, no signal ends a wait without a limit.
        time.sleep(0.01)
except KeyboardInterrupt:
    print("raised")
"""
    assert ended(program) == (0, "raised\n", "")


def test_nothing_stops_a_run_that_is_over() -> None:
    program = """
interrupts.install_handlers()
interrupts.ignore_stops()
for number in interrupts.STOP_SIGNALS:
    signal.raise_signal(number)
print("over")
"""
    assert ended(program) == (0, "over\n", "")


def test_what_a_stop_tore_is_thrown_away_without_a_word() -> None:
    program = """
interrupts.install_handlers()
class Writer:
    def __del__(self):
        raise ValueError("write to closed file")
try:
    torn = Writer()
    signal.raise_signal(TERM)
except KeyboardInterrupt:
    del torn
    print("stopped")
"""
    assert ended(program) == (0, "stopped\n", "")


def test_other_errors_that_nothing_can_raise_are_told_as_before() -> None:
    program = """
interrupts.install_handlers()

class Finalised:
    def __del__(self):
        raise ValueError("odd")

Finalised()
"""
    status, stdout, stderr = ended(program)
    assert (status, stdout) == (0, "")
    assert "ValueError: odd" in stderr


def test_a_stop_is_said_where_cleaning_up_after_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that a stop leaves open keeps a file attached; nobody is told that the file is damaged for it."""
    library = small_library(tmp_path)
    real = pack._model_rows

    def stopped(db: apsw.Connection, *more: Any) -> Iterator[Any]:
        yield next(real(db, *more))
        left_open = db.execute("SELECT * FROM source.knowledge_item")
        left_open.fetchone()
        raise KeyboardInterrupt

    monkeypatch.setattr(pack, "_model_rows", stopped)
    with untouched(tmp_path):
        done = run("pack", library, tmp_path / "bases.zip", "--json")
    assert (done.status, done.document["error"]["code"]) == (130, "Interrupted")


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (SourceUnreadable(path="a", reason="it is torn"), "Interrupted", 130),
        (OSError("torn"), "Interrupted", 130),
        (RuntimeError("torn"), "Interrupted", 130),
        (BackfillInterrupted(written=3), "BackfillInterrupted", 130),
    ],
)
def test_what_a_stop_tore_is_not_said_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str, status: int
) -> None:
    def torn(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise error

    monkeypatch.setattr(packing, "pack", torn)
    done = run("pack", small_library(tmp_path), tmp_path / "bases.zip", "--json")
    assert (done.status, done.document["error"]["code"]) == (status, code)


def test_a_stop_at_the_very_end_of_a_run_leaves_what_takes_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came between the look at the ledger and the note of it, and the ledger went with all of its records."""
    library = small_library(tmp_path)
    before = contents(library)
    real = changes_session._is_unused

    def stopped(*more: Any) -> bool:
        real(*more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(changes_session, "_is_unused", stopped)
        with pytest.raises(KeyboardInterrupt):
            change(library)
    assert contents(library) != before
    assert run("undo", library, "--yes").status == 0
    assert contents(library) == before
