"""What ``-vv`` shows besides: what was decided while a command ran, and why; one line on standard error each.

Modules say it through :mod:`logging`, each under its own name, so that a program that uses them can hear it, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from regraft.cli.output import note

_PACKAGES = ("regraft", "migrators", "checks", "repair")


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(f"{record.name}: {record.getMessage()}")


@contextmanager
def shown() -> Iterator[None]:
    """Show decisions as long as this lasts."""
    loggers = [logging.getLogger(package) for package in _PACKAGES]
    lines = _Lines()
    for logger in loggers:
        logger.addHandler(lines)
        logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(lines)
            logger.setLevel(logging.NOTSET)
