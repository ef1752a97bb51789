"""Who asks, and what of a KB they may see (``docs/formats/rsclaw.md``, "Visibility")."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from regraft.errors import WrongUsage
from regraft.formats.rsclaw.rows import Visibility
from regraft.language import tr

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
