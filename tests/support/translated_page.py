"""The examples of a page as regraft prints them in another language: the page's own code, run in that language."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache


def example(language: str, page: str, command: str) -> str:
    """Return the example of a page that begins with a command line, with what it prints in a language.

    Args:
        language: such as "zh".
        page: the page's path in the repository, from where this runs.
        command: the command line, or its beginning.
    """
    found = re.search(rf"```console\n\$ {re.escape(command)}.*?```", _made(language, page), re.DOTALL)
    assert found is not None, f"{page} has no example `{command}`"
    return found[0]


@cache
def _made(language: str, page: str) -> str:
    """Return a page whose generated parts are made in a language."""
    environment = {**os.environ, "REGRAFT_LANG": language, "PYTHONUTF8": "1"}
    made = subprocess.run(
        [sys.executable, "-P", "-m", "cogapp", page], env=environment, capture_output=True, check=True
    )
    return made.stdout.decode()
