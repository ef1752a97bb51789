"""Run a command in a pseudo-terminal and read what it prints."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

from harness import REPO

SAMPLE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"


def on_terminal(width: int, *arguments: object, stream: str = "stdout", typed: str = "", **more: str) -> str:
    """Return what the command shows in one of its streams, which is a terminal of so many columns.

    Whatever is typed is its input, before it asks for any.
    """
    import fcntl
    import pty
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    command = [sys.executable, "-P", "-m", "regraft", *map(str, arguments)]
    left_out = ("NO_COLOR", "FORCE_COLOR", "COLUMNS")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment = {**environment, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **more}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: slave}
    if typed:
        streams["stdin"] = slave
        os.write(master, typed.encode())
    with subprocess.Popen(command, env=environment, **streams):
        os.close(slave)
        shown = b"".join(iter(lambda: _read(master), b""))
    os.close(master)
    return shown.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux's way to say that the other end is closed
        return b""
