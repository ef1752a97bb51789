"""Which documents of a KB are for a caller, and why the others are not.

A document is searched if the caller may see it, it is active, and it is the latest version of its source. Whether
it may be seen is asked first: nothing else is told of one that is hidden.

Rules: ``docs/formats/rsclaw.md``, "What is searched".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from regraft.errors import WrongUsage
from regraft.formats.rsclaw.database import ACTIVE, DOCS, TOMBSTONED, Mirror, Visibility
from regraft.language import tr

# Who asks, and what of a KB they may see (``docs/formats/rsclaw.md``, "Visibility").


#: Several callers in one word: a bar, and the beginning of the next.
_BAR = re.compile(r"\|(?=(?:user|agent|channel):)")


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """The users, agents and channels for whom is asked; without any, only what is global is seen."""

    users: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    channels: frozenset[str] = frozenset()

    def sees(self, visibility: Visibility, owner: str | None) -> bool:
        """Tell whether a document may be seen; one of a visibility that is not known, or without an owner, by nobody.

        Args:
            visibility: the document's.
            owner: the id of its owner, None where it has none.
        """
        match visibility.type:
            case "global":
                return True
            case "private":
                return owner in self.users
            case "agent":
                return visibility.agent_id in self.agents
            case "channel":
                return visibility.channel_id in self.channels
            case _:
                return False

    @property
    def words(self) -> tuple[str, ...]:
        """Return those for whom is asked as a user names them: ``user:ID``, ``agent:ID`` and ``channel:ID``."""
        named = {"user": self.users, "agent": self.agents, "channel": self.channels}
        return tuple(f"{kind}:{one}" for kind, ids in named.items() for one in sorted(ids))

    def __str__(self) -> str:
        return " ".join(self.words)


def parsed(words: Iterable[str], option: str) -> Scope:
    """Return the scope that a user names: ``user:ID``, ``agent:ID`` and ``channel:ID``, several with ``|`` between.

    Args:
        words: what was given.
        option: by which option.

    Raises:
        WrongUsage: a word is of another form.
    """
    found: dict[str, set[str]] = {"user": set(), "agent": set(), "channel": set()}
    for word in words:
        for one in _BAR.split(word):
            kind, _, name = one.partition(":")
            if kind not in found or not name:
                raise WrongUsage(
                    problem=tr("{option} {word}: nobody is named so", option=option, word=word),
                    hint=tr("give user:ID, agent:ID or channel:ID"),
                )
            found[kind].add(name)
    return Scope(users=frozenset(found["user"]), agents=frozenset(found["agent"]), channels=frozenset(found["channel"]))


class Verdict(StrEnum):
    """Why a document is not searched; as migrations have it, these are the reasons for which rows are skipped."""

    NOT_VISIBLE = "not_visible"
    TOMBSTONED = "tombstoned"
    UPDATING = "updating"
    SUPERSEDED = "superseded"


#: Where a document came from, for a person.
SOURCE = "coalesce(nullif(d.url, ''), nullif(d.source_path, ''), d.title)"
#: For one caller (:func:`judge`): a row for each document, in the order of creation; NULL where it is searched.
_VERDICTS = """CREATE TEMP TABLE verdict (doc_id TEXT PRIMARY KEY, place INTEGER UNIQUE, reason TEXT)"""


def is_latest(mirror: Mirror) -> str:
    """Return SQL that tells whether the document ``d`` is the latest version of its source.

    The system's own table says it. Where that has no row, or names a document of another source, the highest version
    is, if every document could be read. Where the latest cannot be read, no other takes its place: nobody knows who may
    see the source now.
    """
    highest = """NOT EXISTS (SELECT 1 FROM doc other WHERE other.lsid = d.lsid
                              AND (other.version, other.id) > (d.version, d.id))"""
    return f"""
        CASE WHEN EXISTS (SELECT 1 FROM latest l WHERE l.lsid = d.lsid
                           AND NOT EXISTS (SELECT 1 FROM doc named WHERE named.id = l.doc_id AND named.lsid <> d.lsid))
             THEN EXISTS (SELECT 1 FROM latest l WHERE l.lsid = d.lsid AND l.doc_id = d.id)
             ELSE {highest if mirror.is_whole(DOCS) else "0"} END"""


def judge(mirror: Mirror, scope: Scope) -> None:
    """Fill the temporary table ``verdict`` (``doc_id, place, reason``) for a caller.

    Args:
        mirror: of a KB, at least its documents and their latest versions.
        scope: who asks.
    """
    db = mirror.db

    def sees(*facts: Any) -> bool:
        kind, of, owner = facts
        return scope.sees(Visibility(type=kind, agent_id=of, channel_id=of), owner)

    db.create_scalar_function("regraft_sees", sees, 3)
    db.execute(_VERDICTS)
    db.execute(
        f"""INSERT INTO verdict
            SELECT d.id, row_number() OVER (ORDER BY d.created_at, d.id),
                   CASE WHEN NOT regraft_sees(d.visibility, d.visible_to, d.owner) THEN ?1
                        WHEN d.status = ?2 THEN ?3
                        WHEN d.status <> ?4 THEN ?5
                        WHEN NOT ({is_latest(mirror)}) THEN ?6 END
              FROM doc d""",
        (Verdict.NOT_VISIBLE, TOMBSTONED, Verdict.TOMBSTONED, ACTIVE, Verdict.UPDATING, Verdict.SUPERSEDED),
    )
