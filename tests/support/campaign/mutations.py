"""Mutated input of every kind, through the commands that read it.

A case is bad when a command ends with an error of its own, an undocumented status or not at all, prints what is no JSON
or what moves a terminal's cursor, changes its source or anything outside of its target, or loses rows without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import apsw

from campaign import children, controls, mutator
from campaign.campaign import Campaign, Outcome
from campaign.specimens import COMPANIONS, SPECIMENS, Specimen  # it makes the helpers of the tests known
from campaign.workbench import Case, Workbench

from fault_server import FaultServer, Reply, Request, answer, saying, vectors_for  # isort: skip
from lacking import configured  # isort: skip


#: How many of the inputs are given to two commands, one after the other; the others to one.
TWO_COMMANDS = 0.1
#: What the user names himself, which may well be a pipe.
_WORDS = frozenset({"configuration", "query vectors", "a query vector"})


class Mutations(Campaign):
    """Commands of every kind on input that chance has changed."""

    name = "mutations"
    unit = "mutated inputs"
    whole = 100_000
    controls: ClassVar[Mapping[str, str]] = {
        "text": "text of the user's reaches the terminal as it is",
        "source": "what is only to be read is written to",
        "books": "one row of every vector file is dropped on the way",
    }

    def __init__(self, seed: int, work: Path, control: str | None = None) -> None:
        super().__init__(seed, work, control)
        self._bench = Workbench(work, COMPANIONS)
        self._server: FaultServer | None = None
        #: Kinds of input.
        self.names = tuple(SPECIMENS)

    def prepare(self) -> None:
        """Make all whole input, with nothing switched off."""
        for name in self.names:
            self._bench.whole(name, SPECIMENS[name].make)
        for name, (make, _) in COMPANIONS.items():
            self._bench.whole(f"with {name}", make)

    def cases(self, first: int = 1) -> Iterator[Outcome]:
        """Run case after case, for ever."""
        self.prepare()
        return children.each(self.case, first, self.figures)

    def case(self, number: int) -> Outcome:
        """Run one case in this process."""
        random = self.random(number)
        name = random.choices(self.names, [SPECIMENS[one].weight for one in self.names])[0]
        case, what = self._mutated(random, name, SPECIMENS[name])
        with controls.of(self.control):
            count = self._run(random, case, name)
        self.figures["commands"] = self.figures.get("commands", 0) + count
        return Outcome(name, "; ".join(case.problems), f"{name}: {what}")

    def _mutated(self, random: Random, name: str, specimen: Specimen) -> tuple[Case, str]:
        if specimen.craft is not None and random.random() < 0.5:
            case = self._bench.begin(None, specimen.subject)
            return case, specimen.craft(random, case.input, self._bench.whole(name, specimen.make))
        case = self._bench.begin(self._bench.whole(name, specimen.make), specimen.subject)
        if name == "embedder answers":
            return case, self._answers(random)
        if self._server is not None:
            self._server.behave = []
        return case, mutator.mutate(random, case.input, case.victim, specimen.prefer, moves=name not in _WORDS)

    def _run(self, random: Random, case: Case, name: str) -> int:
        specimen = SPECIMENS[name]
        most = 2 if random.random() < TWO_COMMANDS else 1
        commands = random.sample(specimen.commands, min(most, len(specimen.commands)))
        # What only reads goes first, and sees the input as it was changed.
        commands.sort(key=lambda command: "!}" in command)
        for number, command in enumerate(commands):
            places, outside = {}, "{config}" in command or name == "configuration"
            if "{config}" in command:
                (case.folder / "with" / "config").mkdir(exist_ok=True)
                places["config"] = configured(
                    case.folder / "with" / "config" / "regraft.yaml", self.server(), retries=0
                )
            done = self._bench.run(case, command, number, more=places, stopped_is_fine=outside)
            if command.startswith("migrate {in} --to {out} --yes --json") and isinstance(done.document, dict):
                case.problems += lost_rows(case, done.document, case.folder / f"out-{number}")
            if case.problems:
                return number + 1
        return len(commands)

    def server(self) -> FaultServer:
        """Return the server of this process."""
        if self._server is None:
            self._server = FaultServer()
            self._server.__enter__()
        return self._server

    def _answers(self, random: Random) -> str:
        seed = random.random()
        server = self.server()

        def behave(request: Request) -> Reply:
            chance = Random(seed + len(server.requests))
            right = answer(request, vectors_for(request))
            if chance.random() < 0.3:
                return right
            body = mutator.in_content(chance, right.body)[0]
            status = chance.choice([200] * 8 + [400, 401, 404, 413, 429, 500, 503, 302, 204])
            headers = {"Content-Type": "text/html"} if chance.random() < 0.1 else {}
            return saying(status, body, **headers)(request)

        server.requests.clear()
        server.behave = behave
        return "answers"


# --- rows ------------------------------------------------------------------------------------------------------------


def lost_rows(case: Case, document: dict[str, Any], library: Path) -> list[str]:
    """Return where the books of a migration do not balance, or are not those of the rows that are there."""
    found = []
    for base in document.get("bases", []):
        rows, name = base["rows"], base["legacy_id"]
        if rows["read"] != rows["carried"] + sum(rows["skipped"].values()):
            found.append(f"the books of {name!r} do not balance: {rows}")
        if base["index"] is not None and base["index"]["units"] != rows["carried"]:
            found.append(f"{name!r} carried {rows['carried']}, and its index has {base['index']['units']}")
        vectors = _vectors(case.subject, name)
        if vectors is None or base["status"] == "failed" or base["index"] is None:
            continue
        if rows["read"] != len(vectors):
            found.append(f"{name!r} has {len(vectors)} rows, and {rows['read']} were read")
        texts, new = _new_rows(library / base["index"]["path"])
        if texts != rows["carried"] + rows["restored_duplicate"]:
            found.append(f"{name!r} carried {rows['carried']}, and {texts} texts are in its index")
        if not new <= set(vectors):
            found.append(f"{name!r} has vectors that its source has not")
    return found


def _vectors(source: Path, name: str) -> list[Any] | None:
    """Return the vectors of a vector file that is whole, read with SQLite alone; None where it is not."""
    for folder in (source / "KnowledgeBase", source / "Data" / "KnowledgeBase"):
        path = folder / name
        try:
            if (
                not path.is_file()
                or path.is_symlink()
                or any(path.with_name(name + end).exists() for end in ("-wal", "-journal"))
            ):
                continue
            with closing(
                apsw.Connection(
                    f"{path.absolute().as_uri()}?mode=ro&immutable=1",
                    flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
                )
            ) as db:
                kind = db.execute("SELECT type FROM sqlite_schema WHERE name = 'vectors'").get
                if kind != "table" or db.execute("PRAGMA integrity_check").get != "ok":
                    return None
                return [row[0] for row in db.execute("SELECT vector FROM vectors NOT INDEXED")]
        except (apsw.Error, OSError, ValueError):
            return None
    return None


def _new_rows(path: Path) -> tuple[int, set[Any]]:
    """Return how many texts a new index has, and its vectors."""
    with closing(
        apsw.Connection(
            f"{path.absolute().as_uri()}?mode=ro&immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
    ) as db:
        texts = sum(1 for _ in db.execute("SELECT text FROM search_text NOT INDEXED"))
        return texts, {row[0] for row in db.execute("SELECT vector_blob FROM embedding NOT INDEXED")}
