"""The jobs of a backfill of a fleet: collect the texts of one library, send a part of all texts, and fill one library.

Each library's collecting job writes its texts to a file in the work folder, with a sample of texts with vectors. The
process that runs the fleet merges them into another one. The files hold the user's texts and are removed when the run
ends. Texts are sent by this process, or by a cluster of Ray; one keeper stores the answers, in a cluster a process of
its own that all senders ask. If a sender is killed, the tokens of its requests in flight stay reserved, and its part of
the texts is sent by another process, which asks the keeper which of them have no answer yet.
"""

from __future__ import annotations

import io
import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, redirect_stdout, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from threading import Event
from typing import Any, NoReturn

import apsw
import msgspec

from regraft import embedders, errors, identity
from regraft.disk import durable, sqlite, writable
from regraft.embedders import Embedder, ServerFailing, Unanswered
from regraft.embedders.settings import EmbedderSettings, ServerSettings
from regraft.errors import STOPPED, BackfillStopped, RegraftError, StoppedBySystem
from regraft.fleet.engine import LibrarySummary, Pool, Schedule, Task, TaskResult
from regraft.fleet.jobs import LibraryJob
from regraft.fleet.ray_pool import RayPool
from regraft.fleet.results import to_json
from regraft.formats import json_text
from regraft.language import to_english, tr
from regraft.text import one_line
from repair.changes.store import Store
from repair.embedding import answers, probing
from repair.embedding.answers import Keeper, KindAccount, SendingTerms, StopReason, TextAnswer, TextKind
from repair.embedding.budget import LimitReached, MeteredEmbedder, SpendingAccount
from repair.embedding.report import BackfillReport, ScopeReport
from repair.embedding.reuse import Canary
from repair.embedding.run import EmbedderSource
from repair.embedding.sender import BatchResult, Outbox, Sender, TextBatch, VectorLengths, WorkerPool, pack_batches
from repair.embedding.survey import BackfillSurvey, SurveyedTarget, TokenCounter

#: A text with its key and its tokens.
CountedText = tuple[str, str, int]
#: Called with the number of texts that got an answer.
OnAnswered = Callable[[int], None]

#: Texts held in memory at a time, or for which the keeper is asked at a time.
CHUNK = 256
#: Counts of a scope's report that are summed up for its library.
_COUNTS = ("eligible", "skipped_ready", "newly_ready", "shared", "reused", "ready", "failed")
#: Requests' worth of texts that a process of a cluster gets at a time, for each of its threads, and the most texts.
_AHEAD, _PART_TEXTS = 4, 1000
#: How often a part is sent again after its process was killed.
_ATTEMPTS = 5
#: Seconds to wait for senders of a cluster when the run is interrupted, and between two looks at their progress.
_LAST_WAIT, _PAUSE = 5.0, 0.1
#: Characters of an error of Ray that are kept.
_LONGEST = 300


class BaseSample(msgspec.Struct, frozen=True, kw_only=True):
    """Texts of a base with their vectors, to compare the embedder by; empty if the base has no vectors.

    ``scope`` is the base's id in the store, ``base`` its display name. ``source``: the vectors are those of the base
    ``source_base`` in another store, which are taken for ``base`` if they are the embedder's.
    """

    scope: str
    base: str
    dimensions: int | None
    known: list[tuple[str, bytes]] = []
    source: str | None = None
    source_base: str = ""

    def compare(self, embedder: Embedder) -> None:
        """Compare the embedder with these vectors, or with itself if the base has no vectors.

        Raises the errors of :func:`~repair.embedding.probing.compare_with_base` and :meth:`Canary.compare`.
        """
        if self.source is None:
            probing.compare_with_base(embedder, self.base, self.known, self.dimensions)
            return
        place, size = Path(self.source), self.dimensions or 0
        Canary(source=place, base=self.source_base, store=self.base, dimensions=size, sample=tuple(self.known)).compare(
            embedder
        )


# --- files of texts --------------------------------------------------------------------------------------------------


def write_texts(path: Path, texts: Iterable[CountedText], samples: Iterable[BaseSample] = ()) -> int:
    """Write texts (each distinct one once, in their order) and samples to a file in an existing folder.

    A file that a killed run has left is replaced. The file is closed at the end, so that other machines can read it.
    Returns how many texts were given, with repetitions. apsw.Error, OSError: it cannot be written.
    """
    count = 0
    with writable.allow_writes(path.parent):
        durable.remove(path, missing_ok=True)
        with sqlite.open_writable(path, create=True) as db:
            # No durability needed: the next run creates it again.
            db.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
            db.execute("CREATE TABLE text (key TEXT PRIMARY KEY, text BLOB NOT NULL, tokens INTEGER NOT NULL)")
            db.execute("CREATE TABLE sample (json TEXT NOT NULL)")
            with sqlite.transaction(db):
                for key, text, tokens in texts:
                    count += 1
                    # Lone surrogates, which some applications store, are kept, here and in JSON.
                    row = key, text.encode("utf-8", "surrogatepass"), tokens
                    db.execute("INSERT OR IGNORE INTO text VALUES (?, ?, ?)", row)
                for sample in samples:
                    db.execute("INSERT INTO sample VALUES (?)", (json.dumps(msgspec.to_builtins(sample)),))
    return count


class TextFile:
    """A file of texts that is open for reading; iterating yields every key with its text."""

    def __init__(self, path: Path, db: apsw.Connection) -> None:
        self.path, self._db = path, db

    @property
    def count(self) -> int:
        """The number of distinct texts."""
        found: Any = self._db.execute("SELECT count(*) FROM text").get
        return int(found)

    def read(self, first: int = 0, count: int = -1) -> Iterator[CountedText]:
        """Yield all texts, or up to ``count`` of them from the index ``first`` on: key, text and tokens."""
        rows: Any = self._db.execute(
            "SELECT key, text, tokens FROM text WHERE rowid > ? ORDER BY rowid LIMIT ?", (first, count)
        )
        return ((key, text.decode("utf-8", "surrogatepass"), tokens) for key, text, tokens in rows)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield every key with its text."""
        return ((key, text) for key, text, _ in self.read())


@contextmanager
def read_texts(path: Path) -> Iterator[TextFile]:
    """Open a file of texts for reading. apsw.Error, OSError: it cannot be read."""
    with sqlite.open_readonly(path) as db:
        yield TextFile(path, db)


def library_file(work: Path, library: int) -> Path:
    """Return the file in the work folder with the texts and samples of a library, given by its number."""
    return work / f"{library:06}.sqlite"


def read_samples(work: Path, library: int) -> list[BaseSample]:
    """Return the samples of the bases of a library (its number). apsw.Error, OSError: its file cannot be read."""
    with sqlite.open_readonly(library_file(work, library)) as db:
        rows: Any = db.execute("SELECT json FROM sample ORDER BY rowid")
        return [msgspec.convert(json_text.loads(one), BaseSample) for (one,) in rows]


# --- collecting ------------------------------------------------------------------------------------------------------


class WantedTexts(msgspec.Struct, frozen=True, kw_only=True):
    """How many texts of a library lack a vector, and the vector lengths of their bases (None: unknown for one of them).

    ``reused`` texts more get a vector of another store.
    """

    count: int
    dimensions: frozenset[int | None]
    reused: int


class TextCollector(msgspec.Struct):
    """Writes the texts that a backfill of one library would send (called as ``EmbedderSource.on_survey``).

    ``work`` is the fleet's work folder, ``library`` the library's number. ``wanted`` is None if nothing was written:
    the library needs nothing, or was not surveyed.
    """

    work: Path
    library: int
    settings: EmbedderSettings
    wanted: WantedTexts | None = None

    def __call__(self, store: Store, survey: BackfillSurvey) -> None:
        """Write texts and samples of a surveyed library if it needs any vector.

        apsw.Error, OSError, ValueError: a file is damaged, or the disk is full.
        """
        if survey.is_needed:
            tokens_of = embedders.counter(self.settings)
            texts = (_texts_to_send(store, survey, one, tokens_of) for one in survey.targets)
            samples = (_samples_of(one, self.settings, tokens_of) for one in survey.targets)
            path = library_file(self.work, self.library)
            count = write_texts(path, chain.from_iterable(texts), chain.from_iterable(samples))
            outcomes = [one.outcome for one in survey.targets]
            self.wanted = WantedTexts(
                count=count,
                dimensions=frozenset(one.dimensions for one in outcomes if one.planned.texts),
                reused=sum(one.planned.reused for one in outcomes),
            )


def _samples_of(one: SurveyedTarget, settings: EmbedderSettings, tokens_of: TokenCounter) -> Iterator[BaseSample]:
    """Yield the samples by which the embedder is compared with a target, and with each source of vectors for it."""

    def fitting(sample: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """Select the texts of a sample that fit into one request."""
        return probing.texts_for_probe(list(sample), lambda text: tokens_of(settings.prefix + text), settings.batch)

    outcome, supply = one.outcome, one.expected.supply
    own = BaseSample(scope=outcome.scope, base=outcome.name, dimensions=outcome.dimensions)
    if one.sample is not None:
        yield msgspec.structs.replace(own, known=fitting(one.sample))
    for canary in () if supply is None else supply.canaries:
        known, source = fitting(canary.sample), str(canary.source.absolute())
        yield msgspec.structs.replace(own, known=known, source=source, source_base=canary.base)


def _texts_to_send(
    store: Store, survey: BackfillSurvey, one: SurveyedTarget, tokens_of: TokenCounter
) -> Iterator[CountedText]:
    """Yield the texts of a target that are sent, including those of units created first: key, text and tokens."""
    expected = msgspec.structs.replace(one.expected, free=set(one.expected.there))
    coming: dict[str, int] = {}
    with one.target.open_scope(store.root) as scope:
        sized = expected.texts_to_send(scope, tokens_of)
        while chunk := dict(islice(sized, CHUNK)):
            found = {key: lacking.text or "" for key, lacking in scope.texts(list(chunk)).items()}
            yield from ((identity.text_hash(text), text, chunk[key]) for key, text in found.items())
            coming.update((key, tokens) for key, tokens in chunk.items() if key not in found)
    if not coming:
        return
    for key, text in survey.first.bodies[one.target.base_id]():
        if key in coming:
            yield identity.text_hash(text), text, coming.pop(key)


# --- the job of one library ------------------------------------------------------------------------------------------


class EmbeddingJob(msgspec.Struct, frozen=True, kw_only=True):
    """Collect the texts of one library, or, if it ``fills`` the library, write known answers to it.

    ``line`` is the library's ``backfill`` command, ``work`` the fleet's work folder, and ``why`` the error message for
    a text without an answer. ``recovers``: the library is filled later, so the changes of a killed run are completed or
    undone.
    """

    library: int
    line: LibraryJob
    work: str
    embedder: EmbedderSettings
    fills: bool = False
    why: str = ""
    recovers: bool = False

    def embedder_source(self) -> EmbedderSource:
        """Return the source of vectors for the library's command: known answers, or a collector that sends nothing."""
        settings, work = self.embedder, Path(self.work)
        if self.fills:
            open_known = partial(answers.open_known_embedder, work, why=self.why)
            choose_sample = partial(compared_sample, work, self.library)
            return EmbedderSource(choose=lambda _: settings, open_embedder=open_known, choose_sample=choose_sample)

        def refuse(_: EmbedderSettings) -> NoReturn:
            """Raise: a job that collects texts must not send any."""
            raise AssertionError(f"{settings.name} was opened to collect texts")

        collector = TextCollector(work, self.library, settings)
        return EmbedderSource(
            choose=lambda _: settings, on_survey=collector, open_embedder=refuse, recovers=self.recovers
        )


class BackfillSummary(LibrarySummary, frozen=True, kw_only=True):
    """The summary of a backfill: what was collected, if anything, and why not all texts of a base have a vector."""

    wanted: WantedTexts | None
    stopped: str | None

    @classmethod
    def of(cls, summary: LibrarySummary, report: BackfillReport, source: EmbedderSource) -> BackfillSummary:
        """Make the summary of a library's job.

        Args:
            summary: that of the library's command.
            report: the report of the command.
            source: where the command got its vectors from, or the collector of texts.
        """
        more: dict[str | None, dict[str, str | None]] = {
            one.scope: {"outcome": one.stopped and "stopped", "message": one.stopped, "totals": _sum_counts([one])}
            for one in report.scopes
        }
        bases = [msgspec.structs.replace(base, **more.get(base.base, {})) for base in summary.bases]
        totals = _sum_counts(report.scopes) if report.scopes else None
        return cls(
            **msgspec.structs.asdict(summary) | {"bases": tuple(bases), "totals": totals},
            wanted=source.on_survey.wanted if isinstance(source.on_survey, TextCollector) else None,
            stopped=next((one.stopped for one in report.scopes if one.stopped), None),
        )


def _sum_counts(scopes: Iterable[ScopeReport]) -> str | None:
    """Add up the counts in the reports of scopes; return the sums as a JSON object by the name of the count."""
    return to_json({name: sum(getattr(scope, name) for scope in scopes) for name in _COUNTS})


def compared_sample(work: Path, library: int, one: SurveyedTarget) -> list[tuple[str, bytes]] | None:
    """Return the texts, with vectors, by which a target was compared before the fleet sent texts; None if it was not.

    ``work`` is the work folder, ``library`` the library's number. A second attempt to fill a library must not take a
    new sample: there may be no answers to its texts.
    """
    own = (sample for sample in read_samples(work, library) if sample.source is None)
    return next((sample.known for sample in own if sample.scope == one.outcome.scope), None)


# --- the keeper ------------------------------------------------------------------------------------------------------


class RemoteKeeper:
    """Proxy of a :class:`~repair.embedding.answers.Keeper` in another process, a Ray actor: it has the same methods."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a function that calls the keeper's method of this name in its process."""
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any, **named: Any) -> Any:
            """Call the method, and wait for its result."""
            with _translated_errors():
                return _ray().get(getattr(self._actor, name).remote(*args, **named))

        return call

    def account(self, kind: TextKind) -> SpendingAccount:
        """Return the account in which the requests for texts of a kind are reserved."""
        return KindAccount(self, kind)


#: The keeper, in this process or in another one.
AnyKeeper = Keeper | RemoteKeeper


# --- one sender ------------------------------------------------------------------------------------------------------


class FleetSender(Outbox):
    """Sends texts of a fleet from this process, as many requests at a time as the configuration says.

    The embedder is opened once. WrongUsage, EmbedderKeyMissing, ModelUnreadable: it cannot be opened.
    """

    splits_unfit = True
    lengths: VectorLengths = None

    def __init__(self, settings: EmbedderSettings, keeper: AnyKeeper) -> None:
        self.keeper, self._ending = keeper, ExitStack()
        self.embedder = self._ending.enter_context(embedders.open_embedder(settings))

    def send(
        self,
        texts: Iterable[tuple[str, str]],
        kind: TextKind,
        lengths: VectorLengths = None,
        step: OnAnswered = lambda _: None,
    ) -> None:
        """Send the texts (key and text) that have no answer, until all have one or the keeper permits no more requests.

        Args:
            texts: the texts.
            kind: whether they are texts to fill or to compare.
            lengths: the lengths that a vector may have; None: any.
            step: called with the number of texts that got an answer.

        KeyboardInterrupt: requests in flight were waited for five seconds, and their answers stored.
        """
        self._kind, self.lengths, self._step = kind, lengths, step
        self._batches = self._pack(iter(texts))
        halted, settings = Event(), self.embedder.settings
        meter = MeteredEmbedder(self.embedder, self.keeper.account(kind), halted.wait)
        with WorkerPool(settings.name, meter, settings.parallel) as workers:
            Sender(self.embedder, workers, halted.set, ahead=1).send(self)

    def _pack(self, texts: Iterator[tuple[str, str]]) -> Iterator[TextBatch]:
        """Claim texts (key and text) that no other sender has, and pack them into batches."""
        while chunk := dict(islice(texts, CHUNK)):
            wanted = self.keeper.claim(list(chunk), self._kind)
            sized = ((key, self.embedder.tokens(chunk[key])) for key in wanted)
            for batch in pack_batches(sized, self.embedder.settings.batch):
                keys = tuple(key for key, _ in batch)
                yield TextBatch(keys=keys, texts=tuple(chunk[key] for key in keys))

    def renew(self) -> None:
        """Do nothing: claims of a fleet do not expire."""

    def claim(self, count: int) -> Sequence[TextBatch] | None:
        """Return up to ``count`` batches of texts without an answer; None if no text is left."""
        return list(islice(self._batches, count)) or None

    def write(self, results: Sequence[BatchResult]) -> None:
        """Have the keeper store the vectors."""
        vectors = chain.from_iterable(zip(one.batch.keys, one.vectors, strict=True) for one in results)
        self._keep({key: TextAnswer(vector=vector) for key, vector in vectors})

    def fail(self, batch: TextBatch, code: str, reason: str) -> None:
        """Have the keeper store that a text cannot be embedded."""
        self._keep({key: TextAnswer(code=code, reason=str(to_english(reason))) for key in batch.keys})

    def _keep(self, found: dict[str, TextAnswer]) -> None:
        """Have the keeper store answers to texts, by key, and count them."""
        self.keeper.keep(found, self._kind)
        self._step(len(found))

    def stop(self, batch: TextBatch, problem: BaseException) -> None:  # noqa: ARG002
        """Have the keeper permit no more requests, of any sender, because of the problem."""
        self.keeper.stop(stop_reason(problem, self.embedder.settings))

    def close(self) -> None:
        """Close the embedder."""
        self._ending.close()


def stop_reason(problem: BaseException, settings: EmbedderSettings) -> StopReason:
    """Return why a fleet sends nothing more after an error. BaseException: the error is not one of the embedder."""
    if isinstance(problem, LimitReached):
        return StopReason(reason=str(problem))
    if isinstance(problem, RegraftError):
        return StopReason.of(problem)
    if not isinstance(problem, ServerFailing | Unanswered):
        raise problem
    reason = str(problem)
    if isinstance(problem, ServerFailing):
        reason = tr("embedder {embedder} does not answer: {reason}", embedder=settings.name, reason=problem.reason)
    return StopReason(reason=reason, code=BackfillStopped.__name__, exit_status=STOPPED)


# --- a cluster -------------------------------------------------------------------------------------------------------


class SendingJob(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the texts in a file, for a process of a cluster, which has one sender for each ``run``."""

    path: Path
    first: int
    count: int
    run: str
    settings: EmbedderSettings
    keeper: AnyKeeper
    kind: TextKind
    lengths: VectorLengths


#: The sender of this process, by the run that it is for: a local model is loaded once.
_open_senders: dict[str, FleetSender] = {}


def send_part(job: SendingJob) -> TaskResult:
    """Send the texts of a job, in a process of a cluster; if the embedder cannot be opened there, all senders stop."""
    begun = time.monotonic()
    try:
        if job.run not in _open_senders:
            while _open_senders:
                _open_senders.popitem()[1].close()
            _open_senders[job.run] = FleetSender(job.settings, job.keeper)
    except RegraftError as error:
        job.keeper.stop(stop_reason(error, job.settings))
    else:
        with read_texts(job.path) as texts:
            part = ((key, text) for key, text, _ in texts.read(job.first, job.count))
            _open_senders[job.run].send(part, job.kind, job.lengths)
    return TaskResult(status=0, seconds=time.monotonic() - begun)


class RaySending(msgspec.Struct, frozen=True, kw_only=True):
    """Sends from a cluster: each part of the texts is a task of a :class:`RayPool`, which Ray places as any other.

    The work function of the ``pool`` is to call :func:`send_part`. Other processes read the files of texts.
    """

    settings: EmbedderSettings
    pool: RayPool
    keeper: RemoteKeeper
    run: str = msgspec.field(default_factory=partial(secrets.token_hex, 8))

    def send(self, texts: TextFile, kind: TextKind, lengths: VectorLengths, step: OnAnswered) -> None:
        """Send texts as :meth:`FleetSender.send` does, in parts on the cluster.

        StoppedBySystem: a part was not sent, or killed in every attempt.
        """
        settings = self.settings
        count = min(_PART_TEXTS, _AHEAD * settings.batch.texts * settings.parallel)
        # A process that waits for a server needs half a core.
        cores = 0.5 if isinstance(settings, ServerSettings) else 1.0
        tasks = []
        for first in range(0, texts.count, count):
            job = SendingJob(
                path=texts.path,
                first=first,
                count=count,
                run=self.run,
                settings=settings,
                keeper=self.keeper,
                kind=kind,
                lengths=lengths,
            )
            tasks.append(Task(number=first, job=job, name=kind, cores=cores))
        known = self._count_answers(kind)

        def report_answers() -> None:
            """Report how many more texts have an answer since the last call."""
            nonlocal known
            before, known = known, self._count_answers(kind)
            step(known - before)

        with _translated_errors():
            try:
                # Again if their process was killed: the keeper knows what was answered.
                for _, ended in Schedule(tasks, self.pool, attempts=_ATTEMPTS, on_poll=report_answers):
                    if ended.error is not None and ended.status in (None, STOPPED):
                        raise StoppedBySystem(reason=f"{ended.error.code}: {ended.error.message}")
            except KeyboardInterrupt:
                self.keeper.stop(StopReason(reason=tr("interrupted")))
                # Later answers are lost: the senders end with the cluster, or with our job in it.
                end = time.monotonic() + _LAST_WAIT
                while self.pool.running and time.monotonic() < end:
                    deque(self.pool.answers(_PAUSE), maxlen=0)
                raise
            report_answers()

    def _count_answers(self, kind: TextKind) -> int:
        """Return how many texts of a kind the keeper has an answer to."""
        spent = self.keeper.spent(kind)
        return int(spent.answered + spent.failed)


#: What sends the texts of a fleet.
Sending = FleetSender | RaySending


@contextmanager
def open_sending(pool: Pool, terms: SendingTerms) -> Iterator[Sending]:
    """Open a sender for the texts, in this process or in the cluster that the pool has joined, with its keeper."""
    with ExitStack() as ending:
        if not isinstance(pool, RayPool):
            keeper = ending.enter_context(closing(Keeper(terms)))
            yield ending.enter_context(closing(FleetSender(terms.settings, keeper)))
            return
        # A process of its own on this machine, whose disk has the answers.
        actor = pool.start_beside_driver(Keeper, terms)
        ending.callback(_ray().kill, actor)
        remote = RemoteKeeper(actor)
        # Ray prints messages about killed processes to standard output, if it was loaded before RayPool could ask it
        # not to.
        ending.enter_context(redirect_stdout(io.StringIO()))
        try:
            remote.stopped()
            yield RaySending(settings=terms.settings, pool=pool, keeper=remote)
        finally:
            with suppress(StoppedBySystem):
                remote.close()


def _ray() -> Any:
    """Import Ray, which is an optional package."""
    return errors.import_optional("ray", tr("fleets on a cluster"), "ray")


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Context that turns errors of Ray into StoppedBySystem."""
    try:
        yield
    except _ray().exceptions.RayError as error:
        reason = one_line(str(error).strip().rpartition("\n")[2].rstrip("."), _LONGEST)
        raise StoppedBySystem(reason=reason) from error
