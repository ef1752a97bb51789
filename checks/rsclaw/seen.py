"""What an audit of a KB has at hand, and how it names what it finds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import apsw
import msgspec

from checks.audit.collector import FindingCollector, Level, named
from checks.audit.findings import SAMPLES
from checks.rsclaw.findings import ADVICE
from regraft.formats.rsclaw.database import Mirror
from regraft.language import joined, put_in, tr
from regraft.report.notices import Severity
from regraft.text import counted

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
#: How a person calls a document in SQL: by its title and id. ``d`` is its row.
TITLED = "d.title || ' (' || d.id || ')'"
#: The same where ``d`` may be missing and only an id is known.
NAMED = f"coalesce({TITLED}, {{id}})"


class Seen(msgspec.Struct, kw_only=True):
    """A KB that is being audited."""

    #: The folder, and the database in it.
    root: Path
    path: Path
    mirror: Mirror
    ledger: FindingCollector
    checked: dict[str, int] = msgspec.field(default_factory=dict)
    #: Checks of what cannot be read, as a person calls them.
    unread: list[str] = msgspec.field(default_factory=list)

    @property
    def db(self) -> apsw.Connection:
        """Return the tables."""
        return self.mirror.db

    @property
    def now_ms(self) -> int:
        """Return what ages are relative to."""
        return self.ledger.now_ms

    @property
    def level(self) -> Level:
        """Return how deep to look."""
        return self.ledger.level

    def say(
        self,
        name: str,
        message: str,
        noun: str,
        samples: Iterable[str],
        *,
        severity: Severity | None = None,
        is_beyond_repair: bool = False,
    ) -> int:
        """Add one finding for all that ``samples`` name, and return how many that are; none where they are none.

        Args:
            name: the finding.
            message: ``{n}`` in it becomes the number with its noun, ``{named}`` the first few samples.
            noun: what is counted.
            samples: what names each instance; it may be long, and is read once.
            severity: that of the message, where it is not the gravest that the finding can be.
            is_beyond_repair: whether no command mends what it says.
        """
        first: list[str] = []
        count = 0
        for one in samples:
            if count < SAMPLES:
                first.append(named(one))
            if count % 1000 == 0:
                self.ledger.check_time()
            count += 1
        if count:
            more = ["…"] if count > len(first) else []
            said = put_in(put_in(message, "{n}", counted(count, noun)), "{named}", joined([*first, *more]))
            if severity != "note" and name in ADVICE:
                said = tr("{what}; {advice}", what=said, advice=ADVICE[name])
            for place, one in enumerate(first):
                self.ledger.add(
                    name,
                    said,
                    sample=one,
                    count=count - len(first) + 1 if place == 0 else 1,
                    severity=severity,
                    is_beyond_repair=is_beyond_repair,
                )
        return count

    def texts(self, query: str, *values: object) -> Iterator[str]:
        """Yield the first column of what a query gives."""
        for text, *_ in self.db.execute(query, values):
            yield str(text)
