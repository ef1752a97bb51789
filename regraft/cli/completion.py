"""What a shell offers for a word that is being written: bases of the store at PATH, and names of findings.

The packages that look at data are loaded only when a shell asks. Nothing is written, and nothing is raised: what
cannot be read is not offered.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import click
from click.shell_completion import CompletionItem

from regraft.errors import RegraftError
from regraft.text import shown

if TYPE_CHECKING:
    from regraft.located import Located

#: What commands call the path whose bases are meant.
_PATHS = ("path", "source", "v1")


def bases(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the bases of the store that the command line names, by their names or, of v1 data, by their ids."""
    # While the option has no value yet, click leaves the arguments as they came.
    given = [*(context.params.get(name) for name in _PATHS), *context.args]
    paths = [path for path in given if path is not None]
    if not paths:
        return []
    try:
        offered = _words_of(Path(paths[0]))
    except (RegraftError, apsw.Error, OSError, ValueError):
        return []
    return [_item(word, text) for word, text in offered if word.startswith(incomplete) and _is_plain(word)]


def findings(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the findings that a command takes."""
    from checks.systems import every_finding  # noqa: PLC0415
    from repair import fix, systems  # noqa: PLC0415

    taken = {
        "fix": fix.names_taken(),
        "gc": systems.COLLECTED,
        "repair": systems.REPAIRED,
        "reconcile": systems.RECONCILED,
    }.get(context.info_name or "", tuple(every_finding()))
    return [CompletionItem(name) for name in taken if name.startswith(incomplete)]


def _words_of(path: Path) -> list[tuple[str, str]]:
    """Return the words that choose a base of a store, each with what is said of it."""
    from checks import systems  # noqa: PLC0415
    from checks.cherry_v2.audit import base_names  # noqa: PLC0415
    from regraft.kinds import SYSTEMS, V1_SOURCES  # noqa: PLC0415
    from regraft.locate import located  # noqa: PLC0415

    with located(path) as found:
        if found.kind in V1_SOURCES:
            return _v1_words(found)
        if found.kind in SYSTEMS:
            return list(systems.checks_of(found.kind).ids_by_name(found).items())
        return [] if found.is_archive else _by_name(base_names(found))


def _v1_words(found: Located) -> list[tuple[str, str]]:
    from regraft.formats.cherry_v1.state import read_state  # noqa: PLC0415

    state = read_state(found.tree, found.places)
    raws = [raw for raw in state.bases if isinstance(raw, dict) and isinstance(raw.get("id"), str)]
    return [(raw["id"], str(raw.get("name"))) for raw in raws]


def _by_name(names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the names of bases with their ids; where several have one name, their ids with the name."""
    every = list(names.values())
    return [(name, base) if every.count(name) == 1 else (base, name) for base, name in names.items()]


def _is_plain(word: str) -> bool:
    """Tell whether a word is shown as it is and keeps its form on its way through a shell."""
    return bool(word.strip()) and shown(word) == word and "\\" not in word


def _item(word: str, text: str) -> CompletionItem:
    # Other shells quote what they insert.
    is_bash = os.environ.get("_REGRAFT_COMPLETE", "").startswith("bash")
    value = shlex.quote(word) if is_bash else word
    return CompletionItem(value, help=shown(text))
