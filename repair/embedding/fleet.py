"""A backfill of all libraries of a fleet: what they want is collected, each text sent once, and each library filled."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, nullcontext
from functools import partial
from pathlib import Path

import msgspec

from regraft.disk import durable, untrusted_sqlite, writable
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import Declined, FleetInterrupted, Interrupted
from regraft.fleet import engine, jobs, manifest, results
from regraft.fleet.engine import ObservedPool, Pool, PoolObserver, Task, TaskResult
from regraft.fleet.metrics import Metrics, Tally
from regraft.fleet.results import FleetOrder, Journal, KnownRows, ResultRow
from regraft.fleet.run import ATTEMPTS, FleetReport, Watch, finished_rows, is_retried, make_report, make_tasks
from regraft.language import tr
from regraft.report.document import Run
from regraft.report.progress import Progress, SilentProgress, stage
from regraft.text import path_argument
from repair.embedding import answers, fleet_sending, fleet_texts
from repair.embedding.answers import NOTHING_SPENT, SendingTerms, SpentTotals, StopReason
from repair.embedding.budget import Limits, Rates
from repair.embedding.filling import Estimate, cost_of, empty_estimate, estimate_sending
from repair.embedding.fleet_sending import FleetKeeper, LibraryRefusal, SendingBackend
from repair.embedding.fleet_texts import COLLECTED, DistinctTexts, EmbedderJson, EmbeddingJob, filled_library_rows
from repair.embedding.report import EmbedderName
from repair.embedding.sender import VectorLengths

# Backfill of all libraries of a fleet: each distinct text is embedded once (``docs/fleet.md``, "Embedding what has no
# vector").


# What a fleet embedded, or would embed, as its document has it (``docs/commands.md``, "fleet").


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What comparing with vectors that are there took; ``texts`` are different ones."""

    texts: int
    requests: int
    tokens: int


class SentReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet sent.

    ``wanted`` texts lack a vector, of so many ``libraries`` together; ``distinct`` of them were to be sent: each once,
    and not those that an earlier run had an answer to. ``answered`` got a vector by these requests, ``failed`` were
    rejected. ``stopped`` says why not all were sent.
    """

    libraries: int
    wanted: int
    distinct: int
    answered: int
    failed: int
    requests: int
    tokens: int
    cost: float | None
    currency: str
    stopped: str | None
    planned: Estimate
    probe: ProbeReport


class FleetBackfillReport(FleetReport, kw_only=True):
    """What became of a fleet, and what was sent for it to which embedder."""

    embedder: EmbedderName
    sent: SentReport


logger = logging.getLogger(__name__)

#: What is said of a text without an answer where nothing kept it from being sent.
_CHANGED = tr("the library was changed meanwhile")


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet is going to send.

    ``wanted`` texts lack a vector, of ``libraries`` together; ``distinct`` of them are sent. ``planned`` is what that
    takes, within the limits.
    """

    libraries: int
    wanted: int
    distinct: int
    planned: Estimate


class FleetBackfill(msgspec.Struct, kw_only=True):
    """One run over a fleet; used once.

    Args:
        order: what is to be done.
        path: the file of the results.
        settings: the embedder's.
        pool: gives where libraries are worked on: what is done is a :class:`~repair.embedding.fleet_texts.EmbeddingJob`.
        sending: where texts are sent from.
        command: returns what is done with a library that is filled, or (False) only looked at, by its number and the
            cores that it has.
        limits: how much is sent at most; probes count against none.
        rates: how much is sent in a minute at most.
        dry_run: only look.
        attempts: how often a library is tried.
        known: the rows of libraries that have ended in an earlier run.
        metrics: follow what happens, where they are wanted.
        show_plan: is shown what is going to be sent; False stops here.
        progress: told of libraries and texts.
        watch: told of each library that has ended.
        pause_seconds: how long to wait before a second attempt.
    """

    order: FleetOrder
    path: Path
    settings: EmbedderSettings
    pool: Callable[[], Pool]
    sending: SendingBackend
    command: Callable[[int, bool, int], jobs.LibraryJob]
    limits: Limits = Limits()
    rates: Rates = Rates()
    dry_run: bool = False
    attempts: int = ATTEMPTS
    known: KnownRows[ResultRow] = msgspec.field(default_factory=KnownRows)
    metrics: Metrics | None = None
    show_plan: Callable[[FleetPlan], bool] = lambda _: True
    progress: Progress = msgspec.field(default_factory=SilentProgress)
    watch: Watch = lambda _: None
    pause_seconds: float = 1.0
    _tally: Tally = msgspec.field(default_factory=Tally)
    #: The bytes of each library that is worked on, by its number.
    _sizes: dict[int, int] = msgspec.field(default_factory=dict)
    _journal: Journal | None = None
    _sent: SentReport | None = None

    @property
    def work(self) -> Path:
        """Return the folder of what is wanted and answered."""
        return work_folder(self.path)

    @property
    def left(self) -> list[int]:
        """Return the numbers of the libraries that are to be worked on: those that have not ended well."""
        return [number for number in range(len(self.order.libraries)) if number not in self.known.good]

    def run(self, run: Run) -> FleetBackfillReport:
        """Do it, write the results, and return what became of all libraries.

        Raises:
            Interrupted: it was stopped before there was anything to go on with.
            FleetInterrupted: it was stopped; what had ended is in the journal, what was answered in the work folder.
            Declined: the plan was not agreed to, and nothing was sent.
            WrongUsage: another process is at work, or the answers that are there are of another embedder.
            RegraftError, OSError, apsw.Error: it cannot go on; the next run does.
        """
        try:
            with results.lock_results(self.path), self.metrics.kept(self._tally) if self.metrics else nullcontext():
                before = [path for path in (self.work, results.journal_path(self.path)) if path.exists()]
                try:
                    self._work()
                except BaseException as error:
                    # Of a run that has sent nothing nothing stays, unless it was interrupted: then the order does.
                    is_interrupted = self._journal is not None and isinstance(error, KeyboardInterrupt)
                    is_kept = not self.dry_run and (self._sent is not None or is_interrupted)
                    self._tidy() if is_kept else self._take_back(before)
                    raise
                if self.dry_run:
                    self._take_back(before)
                else:
                    self._finish()
        except KeyboardInterrupt:
            if self._journal is None:
                raise Interrupted(finished=0) from None
            command = shlex.join(["regraft", "fleet", "resume", path_argument(self.path)])
            raise FleetInterrupted(finished=self._tally.good, command=command) from None
        run.end()
        return self._report(run)

    # --- the phases --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        with ExitStack() as stack:
            # When all processes have ended.
            stack.callback(jobs.remove_copies, self.order.id)
            # First of all: where it cannot be had, nothing is written.
            pool = stack.enter_context(closing(self.pool()))
            answers.demand_same_embedder(self.work, self.settings)
            # A folder without a journal is one that no run can go on with.
            if not self.dry_run:
                known = finished_rows(self.known, self._tally)
                self._journal = stack.enter_context(closing(Journal(self.path, self.order, known)))
            with writable.allow_writes(self.work.parent, entries_only=True):
                durable.make_folder(self.work, exist_ok=True)
                durable.sync_folder(self.work.parent)
            wanting = self._collected(pool)
            texts = stack.enter_context(fleet_texts.open_distinct_texts(self.work, "texts"))
            plan = self._planned(texts, list(wanting))
            if self.dry_run:
                self._sent = _sent(self.settings, plan, 0)
            elif wanting and not self.show_plan(plan):
                raise Declined(path=self.path)
            elif wanting:
                self._embed_and_fill(pool, texts, wanting, plan)
            else:
                self._sent = _sent(self.settings, plan, 0)

    def _collected(self, pool: Pool) -> dict[int, SurveyedLibrary]:
        """Have each library's wishes written down, and return how those ended that have any; the others are done."""
        wanting: dict[int, SurveyedLibrary] = {}
        left = self.left
        sizes = manifest.source_sizes(self.order.libraries[number] for number in left)
        self._sizes = dict(zip(left, sizes, strict=True))
        with stage(self.progress, "Looking", len(left), "libraries"):
            for task, ended in self._done(pool, left, fills=False):
                self.progress.step(1, task.bytes)
                if COLLECTED in ended.document:
                    wanting[task.number] = SurveyedLibrary.of(ended)
                if COLLECTED not in ended.document or self.dry_run:
                    self._end(task, ended, None)
        return dict(sorted(wanting.items()))

    def _planned(self, texts: DistinctTexts, libraries: list[int]) -> FleetPlan:
        with answers.read_answers(self.work) as db:
            for library in libraries:
                texts.add(fleet_texts.read_wanted(self.work, library), db)
        planned = estimate_sending(texts.sized(), self.settings, self.limits, empty_estimate(self.settings))
        return FleetPlan(libraries=len(libraries), wanted=texts.came, distinct=texts.count, planned=planned)

    def _embed_and_fill(
        self, pool: Pool, texts: DistinctTexts, wanting: dict[int, SurveyedLibrary], plan: FleetPlan
    ) -> None:
        refused, stop = self._embedded(texts, wanting, plan)
        for number, verdict in refused.items():
            task = Task(number=number, job=None, bytes=self._sizes[number])
            self._end(task, _refused(verdict, wanting[number]), stop)
        fillable = [number for number in wanting if number not in refused]
        with stage(self.progress, "Filling", len(fillable), "libraries"):
            for task, ended in self._done(pool, fillable, fills=True, why=_CHANGED if stop is None else stop.reason):
                self.progress.step(1, task.bytes)
                self._end(task, ended, stop)

    def _embedded(
        self, texts: DistinctTexts, wanting: dict[int, SurveyedLibrary], plan: FleetPlan
    ) -> tuple[dict[int, LibraryRefusal], StopReason | None]:
        """Have all texts answered; return the libraries that are not filled, and why not all have an answer."""
        terms = SendingTerms(folder=self.work, settings=self.settings, limits=self.limits, rates=self.rates)
        with self.sending.keeper(terms) as keeper, fleet_texts.open_distinct_texts(self.work, "compared") as compared:
            # From now on something may have been paid for, which stays.
            self._sent = _sent(self.settings, plan, 0)
            if texts.count:
                # What is sent now must be of the model that is there now.
                keeper.compare_anew()
            compared.add(fleet_sending.compared_texts(self.work, wanting), None)
            refused = self._proven(terms, keeper, compared, wanting)
            if refused:
                texts.clear()
                for library in (number for number in wanting if number not in refused):
                    texts.add(fleet_texts.read_wanted(self.work, library), None)
            lengths = _lengths(looked for number, looked in wanting.items() if number not in refused)
            with stage(self.progress, "Embedding", texts.count, "texts"):
                self.sending.send(texts, terms, keeper, "texts", lengths, self._step)
            stop = keeper.stopped()
            spent = keeper.spent("texts"), keeper.spent("probes")
            self._sent = _sent(self.settings, plan, compared.count, *spent, None if stop is None else stop.reason)
        return refused, stop

    def _proven(
        self, terms: SendingTerms, keeper: FleetKeeper, compared: DistinctTexts, wanting: Iterable[int]
    ) -> dict[int, LibraryRefusal]:
        """Return the libraries that are not filled, since the embedder is not the model of each base, and why."""
        with stage(self.progress, "Comparing", compared.count, "texts"):
            self.sending.send(compared, terms, keeper, "probes", None, self._step)
        unsteady = None
        if fleet_sending.has_base_without_vectors(self.work, wanting) and keeper.stopped() is None:
            unsteady = self.sending.steadiness(terms, keeper)
        embedder = answers.KnownEmbedder(self.settings, partial(keeper.answers_of, kind="probes"), _CHANGED)
        refused = {}
        for library in wanting:
            verdict = fleet_sending.check_library(self.work, library, embedder, unsteady, keeper.stopped())
            if verdict is not None:
                refused[library] = verdict
        return refused

    def _step(self, count: int) -> None:
        self.progress.step(count, 0)
        # Nothing else looks at it meanwhile: no library is worked on.
        if self.metrics is not None:
            self.metrics.refresh()

    # --- libraries ---------------------------------------------------------------------------------------------------

    def _done(
        self, pool: Pool, numbers: Iterable[int], *, fills: bool, why: str = ""
    ) -> Iterator[tuple[Task, TaskResult]]:
        sizes = {number: self._sizes[number] for number in numbers}
        # The settings are the same for all: they are there once.
        settings = EmbedderJson.of(self.settings)

        def job(number: int, cores: int) -> EmbeddingJob:
            line = self.command(number, fills, cores)
            return EmbeddingJob(embedder=settings, library=number, line=line, work=str(self.work), fills=fills, why=why)

        tasks = make_tasks(sizes, pool.count, job)
        watchers = [] if self._journal is None else [PoolObserver(looked=self._journal.flush)]
        if self.metrics is not None:
            watchers.append(self.metrics.begin(tasks, pool))
        return engine.run_tasks(
            tasks,
            ObservedPool(pool, watchers),
            attempts=self.attempts,
            is_retried=is_retried,
            pause_seconds=self.pause_seconds,
        )

    def _end(self, task: Task, ended: TaskResult, stop: StopReason | None) -> None:
        """Take note of how a library ended."""
        library = self.order.libraries[task.number]
        rows = results.result_rows(library, task, self.order.command, ended)
        rows = filled_library_rows(rows, ended.document, stop)
        self._tally.add(rows)
        logger.info("%s: %s after %.1f s", rows[0].source, rows[0].outcome, ended.seconds)
        if self._journal is not None:
            self._journal.add(rows)
        self.watch(rows[0])

    # --- the end -----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Write the results; what was answered stays where a library needs it."""
        assert self._journal is not None
        # First of all: whatever comes, the texts are gone, and the next run has its limits anew.
        self._tidy()
        answers.end_run(self.work)
        results.write_results(self.path, self.order, self._journal.rows)
        if self._tally.good == len(self.order.libraries):
            self._remove(self.work)

    def _tidy(self) -> None:
        """Remove all but the answers from the work folder: the user's texts, which a killed run may have left."""
        kept = {
            answers.ANSWERS_FILE,
            *(f"{answers.ANSWERS_FILE}{ending}" for ending in untrusted_sqlite.COMPANION_SUFFIXES),
        }
        if self.work.is_dir():
            self._remove(*(path for path in self.work.iterdir() if path.name not in kept))

    def _take_back(self, before: list[Path]) -> None:
        """Remove what this run has made, but for what was there before."""
        self._tidy()
        every = (self.work, results.journal_path(self.path))
        self._remove(*(path for path in every if path not in before))

    def _remove(self, *paths: Path) -> None:
        with writable.allow_writes(self.work.parent, entries_only=True), writable.allow_writes(self.work):
            for path in paths:
                durable.remove_tree(path)

    def _report(self, run: Run) -> FleetBackfillReport:
        assert self._sent is not None
        told = msgspec.structs.asdict(make_report(run, self._tally))
        return FleetBackfillReport(**told, embedder=EmbedderName.of(self.settings), sent=self._sent)


class SurveyedLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """How looking at a library ended that wants anything: its document may be large, and is not kept.

    ``dimensions`` are those of its bases that want any; None: of one nobody knows them.
    """

    seconds: float
    attempts: int
    dimensions: frozenset[int | None]

    @classmethod
    def of(cls, ended: TaskResult) -> SurveyedLibrary:
        """Return what is kept of how it ended."""
        found = frozenset(scope["dimensions"] for scope in ended.document["scopes"] if scope["planned"]["texts"])
        return cls(seconds=ended.seconds, attempts=ended.attempts, dimensions=found)


def work_folder(path: Path) -> Path:
    """Return the folder beside results in which texts and answers lie until all libraries are filled."""
    return path.with_name(f"{path.name}.backfill")


def _lengths(every: Iterable[SurveyedLibrary]) -> VectorLengths:
    """Return how many numbers an answer may have: one that fits no base would fit none in the next run either."""
    found = {size for looked in every for size in looked.dimensions}
    return None if None in found else frozenset(size for size in found if size is not None)


def _refused(verdict: LibraryRefusal, looked: SurveyedLibrary) -> TaskResult:
    error = {"code": verdict.code, "message": verdict.message}
    return TaskResult(
        status=verdict.exit_status, document={"error": error}, seconds=looked.seconds, attempts=looked.attempts
    )


def _sent(
    settings: EmbedderSettings,
    plan: FleetPlan,
    compared: int,
    texts: SpentTotals = NOTHING_SPENT,
    probes: SpentTotals = NOTHING_SPENT,
    stopped: str | None = None,
) -> SentReport:
    return SentReport(
        libraries=plan.libraries,
        wanted=plan.wanted,
        distinct=plan.distinct,
        answered=texts.answered,
        failed=texts.failed,
        requests=texts.requests,
        tokens=texts.tokens,
        cost=cost_of(texts.tokens, settings),
        currency=settings.currency,
        stopped=stopped,
        planned=plan.planned,
        probe=ProbeReport(texts=compared, requests=probes.requests, tokens=probes.tokens),
    )
