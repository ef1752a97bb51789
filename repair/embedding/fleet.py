"""Backfill of all libraries of a fleet: each distinct text is sent once (``docs/fleet.md``).

A run has four phases. Jobs collect the texts of each library; the embedder is compared with the vectors of each base;
the texts are sent, and their answers stored in the work folder; jobs fill each library with the answers. A resumed run
uses the answers of an interrupted one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext
from functools import partial
from itertools import chain, islice
from pathlib import Path

import msgspec

from regraft import identity
from regraft.disk import durable, scratch, untrusted_sqlite, writable
from regraft.embedders import Embedder, TextsRejected, Unanswered
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import (
    STOPPED,
    AnswerUnfit,
    BackfillStopped,
    Declined,
    EmbedderUnsteady,
    FleetRefused,
    Interrupted,
    RegraftError,
)
from regraft.fleet import results
from regraft.fleet.engine import Pool, Task, TaskError, TaskResult
from regraft.fleet.metrics import Tally
from regraft.fleet.results import LIMITED, Journal, ResultRow
from regraft.fleet.run import Fleet, FleetReport, Watch, make_report
from regraft.language import tr
from regraft.options import BackfillOptions
from regraft.report.document import Run
from regraft.report.progress import Progress, SilentProgress, stage
from repair.embedding import answers, fleet_texts, probing
from repair.embedding.answers import (
    NOTHING_SPENT,
    KnownEmbedder,
    SendingTerms,
    SpentTotals,
    StopReason,
    TextAnswer,
)
from repair.embedding.budget import Limits, Rates
from repair.embedding.fleet_sending import FleetKeeper, SendingBackend
from repair.embedding.fleet_texts import BackfillSummary, DistinctTexts, EmbedderJson, EmbeddingJob, WantedText
from repair.embedding.report import EmbedderName, Estimate, ScopeReport, cost_of, empty_estimate
from repair.embedding.sender import VectorLengths
from repair.embedding.survey import estimate_sending

logger = logging.getLogger(__name__)

#: Texts for which the keeper is asked at a time.
_CHUNK = 256
#: Why a text has no answer although no limit or error kept it from being sent.
_CHANGED = tr("the library was changed during the run")
#: Counts of a scope's report that are summed up for its library.
_COUNTS = ("eligible", "skipped_ready", "newly_ready", "shared", "reused", "ready", "failed")


# --- reports ---------------------------------------------------------------------------------------------------------


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent to compare the embedder with existing vectors; ``texts`` are distinct.

    ``cost`` counts against ``--max-cost``. ``remembered``: an earlier run has compared the same texts.
    """

    texts: int
    requests: int
    tokens: int
    cost: float | None
    remembered: bool


class SentReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet sent (``docs/commands.md``, "fleet").

    ``wanted`` texts of ``libraries`` lack a vector; ``distinct`` of them were to be sent, without those that an earlier
    run has an answer to. ``answered`` got a vector, ``failed`` were rejected. ``stopped`` is why not all were sent.
    ``reused`` texts more get a vector of another store and are not sent.
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
    reused: int = 0


class FleetBackfillReport(FleetReport, kw_only=True):
    """Counts of the libraries of a fleet, and what was sent to which embedder."""

    embedder: EmbedderName
    sent: SentReport


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet will send.

    ``wanted`` texts of ``libraries`` lack a vector; ``distinct`` of them are sent. ``planned`` is the estimate, within
    the limits. ``reused`` texts more get a vector of another store.
    """

    libraries: int
    wanted: int
    distinct: int
    planned: Estimate
    reused: int = 0


class SurveyedLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """What the run keeps of a library that lacks vectors.

    ``dimensions`` are the vector lengths of its bases that lack vectors; None: unknown for one of them.
    ``reused`` texts get a vector of another store.
    """

    seconds: float
    attempts: int
    dimensions: frozenset[int | None]
    reused: int = 0

    @classmethod
    def of(cls, ended: TaskResult, summary: BackfillSummary) -> SurveyedLibrary:
        """Extract it from the result of the job that collected the texts."""
        found = frozenset(scope.dimensions for scope in summary.scopes if scope.planned.texts)
        reused = sum(scope.planned.reused for scope in summary.scopes)
        return cls(seconds=ended.seconds, attempts=ended.attempts, dimensions=found, reused=reused)


# --- the run ---------------------------------------------------------------------------------------------------------


class FleetBackfill(Fleet, kw_only=True):
    """One run over a fleet. Single use.

    Args:
        settings: the embedder's.
        open_sending: returns the processes that send; called with the pool.
        limits: the most that may be sent; of these, only the cost limit includes probes.
        rates: the most that may be sent per minute.
        probes: whether each library is compared with the embedder once more while it is filled.
        reuse: stores whose vectors are taken instead of sending their texts; absolute paths.
        dry_run: only collect, and report what would be sent.
        show_plan: called with the plan before anything is sent; returns False to stop.
        progress: told of libraries and texts.
    """

    settings: EmbedderSettings
    open_sending: Callable[[Pool], SendingBackend]
    limits: Limits = Limits()
    rates: Rates = Rates()
    probes: bool = True
    reuse: tuple[Path, ...] = ()
    show_plan: Callable[[FleetPlan], bool] = lambda _: True
    progress: Progress = msgspec.field(default_factory=SilentProgress)
    _watch: Watch = lambda _: None
    _tally: Tally = msgspec.field(default_factory=Tally)
    #: The size in bytes of each library, by its number.
    _sizes: dict[int, int] = msgspec.field(default_factory=dict)
    _journal: Journal | None = None
    _sent: SentReport | None = None

    @property
    def work(self) -> Path:
        """The work folder, with texts and answers."""
        return work_folder(self.path)

    def run(self, run: Run, watch: Watch = lambda _: None) -> FleetBackfillReport:
        """Run all phases, write the results, and report.

        Raises:
            Interrupted: before there was anything to go on with.
            FleetInterrupted, FleetRefused: libraries that ended are in the journal, answers in the work folder.
            Declined: the plan was declined, and nothing was sent.
            WrongUsage: another process works on these results, or the stored answers are another embedder's.
            RegraftError, OSError, apsw.Error: the run cannot go on; the next one resumes it.
        """
        self._watch = watch
        try:
            with results.lock_results(self.path), self.metrics.kept(self._tally) if self.metrics else nullcontext():
                before = [path for path in (self.work, results.journal_path(self.path)) if path.exists()]
                try:
                    self._work()
                except BaseException as error:
                    # Files of a run that has sent nothing are removed, unless it can be resumed after an interrupt.
                    is_interrupted = self._journal is not None and isinstance(error, KeyboardInterrupt | FleetRefused)
                    is_kept = not self.dry_run and (self._sent is not None or is_interrupted)
                    self._remove_texts() if is_kept else self._remove_new_files(before)
                    raise
                if self.dry_run:
                    self._remove_new_files(before)
                else:
                    self._finish()
        except KeyboardInterrupt:
            if self._journal is None:
                raise Interrupted(finished=0) from None
            raise self.interrupted(self._tally) from None
        run.end()
        assert self._sent is not None
        fields = msgspec.structs.asdict(make_report(run, self._tally, len(self.order.libraries)))
        return FleetBackfillReport(**fields, embedder=EmbedderName.of(self.settings), sent=self._sent)

    def _work(self) -> None:
        with ExitStack() as stack:
            # Runs last, when all processes have ended.
            stack.callback(scratch.remove_leftovers)
            # Before anything is written: the pool may be refused.
            pool = stack.enter_context(closing(self.pool()))
            answers.demand_same_embedder(self.work, self.settings)
            # The journal first: a work folder without one cannot be resumed.
            if not self.dry_run:
                self._journal = stack.enter_context(closing(self.open_journal(self.left, self._tally)))
            with writable.allow_writes(self.work.parent, entries_only=True):
                durable.make_folder(self.work, exist_ok=True)
                durable.sync_folder(self.work.parent)
            libraries = self._collect_texts(pool)
            texts = stack.enter_context(fleet_texts.open_distinct_texts(self.work, "texts"))
            plan = self._make_plan(texts, libraries)
            if libraries and not self.dry_run:
                if not self.show_plan(plan):
                    raise Declined(path=self.path)
                self._embed_and_fill(pool, texts, libraries, plan)
            else:
                self._sent = _sent_report(self.settings, plan, 0)

    def _collect_texts(self, pool: Pool) -> dict[int, SurveyedLibrary]:
        """Run the collecting job of each library; returns those that lack vectors, by number. The others have ended."""
        surveyed: dict[int, SurveyedLibrary] = {}
        left = self.left
        self._sizes = self.measure(left)
        with stage(self.progress, "Looking", len(left), "libraries"):
            for task, ended in self._run_jobs(pool, left, fills=False):
                self.progress.step(1, task.bytes)
                summary = ended.summary
                lacks_vectors = isinstance(summary, BackfillSummary) and summary.collected is not None
                if isinstance(summary, BackfillSummary) and lacks_vectors:
                    surveyed[task.number] = SurveyedLibrary.of(ended, summary)
                if not lacks_vectors or self.dry_run:
                    self._end_library(task, ended, None)
        return dict(sorted(surveyed.items()))

    def _make_plan(self, texts: DistinctTexts, libraries: dict[int, SurveyedLibrary]) -> FleetPlan:
        """Merge the texts of all libraries, without those that have an answer, and estimate what sending them takes."""
        with answers.read_answers(self.work) as db:
            for library in libraries:
                texts.add(fleet_texts.read_wanted(self.work, library), db)
        planned = estimate_sending(texts.sized(), self.settings, self.limits, empty_estimate(self.settings))
        return FleetPlan(
            libraries=len(libraries),
            wanted=texts.added,
            distinct=texts.count,
            planned=planned,
            reused=sum(one.reused for one in libraries.values()),
        )

    def _embed_and_fill(
        self, pool: Pool, texts: DistinctTexts, libraries: dict[int, SurveyedLibrary], plan: FleetPlan
    ) -> None:
        refused, stop = self._embed(self.open_sending(pool), texts, libraries, plan)
        for number, refusal in refused.items():
            task = Task(number=number, job=None, bytes=self._sizes[number])
            surveyed = libraries[number]
            error = None if refusal.code is None else TaskError(code=refusal.code, message=refusal.reason)
            ended = TaskResult(
                status=refusal.exit_status, error=error, seconds=surveyed.seconds, attempts=surveyed.attempts
            )
            rows = self.rows_of(task, ended)
            if refusal.code is None:
                rows = [msgspec.structs.replace(rows[0], outcome=LIMITED, message=refusal.reason)]
            self.end_library(rows, self._journal, self._tally, self._watch)
        fillable = [number for number in libraries if number not in refused]
        why = _CHANGED if stop is None else stop.reason
        with stage(self.progress, "Filling", len(fillable), "libraries"):
            for task, ended in self._run_jobs(pool, fillable, fills=True, why=why):
                self.progress.step(1, task.bytes)
                self._end_library(task, ended, stop)

    def _embed(
        self,
        sending: SendingBackend,
        texts: DistinctTexts,
        libraries: dict[int, SurveyedLibrary],
        plan: FleetPlan,
    ) -> tuple[dict[int, StopReason], StopReason | None]:
        """Compare the embedder, then send all texts.

        Returns:
            The libraries that are not filled, and why not all texts have an answer.
        """
        terms = SendingTerms(folder=self.work, settings=self.settings, limits=self.limits, rates=self.rates)
        with (
            sending.keeper(terms) as keeper,
            fleet_texts.open_distinct_texts(self.work, "compared") as compared,
        ):
            # From here on, files of the run stay: something may have been paid for.
            self._sent = _sent_report(self.settings, plan, 0)
            for library in libraries:
                for sample in fleet_texts.read_samples(self.work, library):
                    compared.add((WantedText.of(text, 0) for text, _ in sample.known), None)
            remembered = bool(texts.count) and self._recall_compared(sending, terms, keeper, compared)
            refused = self._compare(sending, terms, keeper, compared, libraries)
            fillable = {number: one for number, one in libraries.items() if number not in refused}
            if refused:
                texts.clear()
                for library in fillable:
                    texts.add(fleet_texts.read_wanted(self.work, library), None)
            lengths = _vector_lengths(fillable.values())
            with stage(self.progress, "Embedding", texts.count, "texts"):
                sending.send(texts, terms, keeper, "texts", lengths, self._step)
            stop = keeper.stopped()
            spent = keeper.spent("texts"), keeper.spent("probes")
            self._sent = _sent_report(
                self.settings,
                plan,
                compared.count,
                *spent,
                stopped=None if stop is None else stop.reason,
                remembered=remembered,
            )
        return refused, stop

    def _recall_compared(
        self, sending: SendingBackend, terms: SendingTerms, keeper: FleetKeeper, compared: DistinctTexts
    ) -> bool:
        """Send one of the texts that an earlier run has compared; keep the other answers if its vector is the same.

        The server may serve another model under the same name by now.
        """
        sentences = ((identity.text_hash(text), text) for text in probing.SENTENCES)
        texts = chain(compared.keyed(), sentences)
        before: dict[str, TextAnswer] = {}
        # Many at a time: the keeper may be another process.
        while not before and (chunk := dict(islice(texts, _CHUNK))):
            before = {key: one for key, one in keeper.find(list(chunk), "probes").items() if one.vector is not None}
        if not before:
            keeper.forget_compared()
            return False
        key, known = min(before.items(), key=lambda one: len(chunk[one[0]]))
        try:
            [vector] = self._ask(sending, terms, keeper, [chunk[key]])
        except Unanswered:
            # Nothing more is sent by this run either.
            return True
        except TextsRejected:
            vector = b""
        is_same = probing.is_same_vector(known.vector or b"", vector)
        if not is_same:
            keeper.forget_compared()
        return is_same

    def _ask(
        self, sending: SendingBackend, terms: SendingTerms, keeper: FleetKeeper, texts: Sequence[str]
    ) -> Sequence[bytes]:
        """Send texts as probes, whether or not they have an answer, in this order; returns their vectors.

        Raises:
            TextsRejected: one of them was rejected.
            Unanswered: one of them was not sent.
        """
        keeper.forget_compared([identity.text_hash(text) for text in texts])
        with fleet_texts.open_distinct_texts(self.work, "asked") as asked:
            asked.add([WantedText.of(text, 0) for text in texts], None)
            sending.send(asked, terms, keeper, "probes", None, lambda _: None)
        return KnownEmbedder(self.settings, partial(keeper.find, kind="probes"), _CHANGED).embed(texts).vectors

    def _check_steadiness(self, sending: SendingBackend, terms: SendingTerms, keeper: FleetKeeper) -> StopReason | None:
        """Check that the embedder gives one vector for one text; returns the error for bases without vectors, or None.

        If the embedder does not answer, the keeper permits no more requests.
        """
        sentences = [identity.text_hash(text) for text in probing.SENTENCES]
        if len(keeper.find(sentences, "probes")) == len(sentences):
            # An earlier run has checked it.
            return None
        try:
            name = self.settings.name
            probing.compare_vectors(name, name, [], None, partial(self._ask, sending, terms, keeper))
        except (EmbedderUnsteady, AnswerUnfit) as error:
            keeper.forget_compared(sentences)
            return StopReason.of(error)
        except RegraftError as error:
            keeper.stop(StopReason.of(error))
        except Unanswered:
            # The keeper knows why.
            pass
        return None

    def _compare(
        self,
        sending: SendingBackend,
        terms: SendingTerms,
        keeper: FleetKeeper,
        compared: DistinctTexts,
        libraries: Iterable[int],
    ) -> dict[int, StopReason]:
        """Send the samples of all bases; returns the libraries that have a base of another model, and the error."""
        with stage(self.progress, "Comparing", compared.count, "texts"):
            sending.send(compared, terms, keeper, "probes", None, self._step)
        unsteady = None
        has_empty_base = any(
            not sample.raw for library in libraries for sample in fleet_texts.read_samples(self.work, library)
        )
        if has_empty_base and keeper.stopped() is None:
            unsteady = self._check_steadiness(sending, terms, keeper)
        embedder = KnownEmbedder(self.settings, partial(keeper.find, kind="probes"), _CHANGED)
        refused = {}
        for library in libraries:
            refusal = check_library(self.work, library, embedder, unsteady, keeper.stopped())
            if refusal is not None:
                refused[library] = refusal
        return refused

    def _step(self, count: int) -> None:
        self.progress.step(count, 0)
        # No pool refreshes the metrics while texts are sent.
        if self.metrics is not None:
            self.metrics.refresh()

    # --- libraries ---------------------------------------------------------------------------------------------------

    def _run_jobs(
        self, pool: Pool, numbers: Iterable[int], *, fills: bool, why: str = ""
    ) -> Iterator[tuple[Task, TaskResult]]:
        sizes = {number: self._sizes[number] for number in numbers}
        embedder = EmbedderJson.of(self.settings)

        def job(number: int, cores: int) -> EmbeddingJob:
            line = self.make_job(number, cores)
            assert isinstance(line.options.values, BackfillOptions)
            values = msgspec.structs.replace(
                line.options.values,
                dry_run=not fills,
                probe=self.probes,
                reuse=(*line.options.values.reuse, *self.reuse),
                reuse_configured=False,
            )
            line = msgspec.structs.replace(line, options=msgspec.structs.replace(line.options, values=values))
            return EmbeddingJob(embedder=embedder, library=number, line=line, work=str(self.work), fills=fills, why=why)

        return self.run_jobs(pool, sizes, job, self._journal, notes_starts=fills)

    def _end_library(self, task: Task, ended: TaskResult, stop: StopReason | None) -> None:
        """Record how a library ended."""
        rows = self.rows_of(task, ended)
        if isinstance(ended.summary, BackfillSummary):
            rows = filled_library_rows(rows, ended.summary.scopes, stop)
        self.end_library(rows, self._journal, self._tally, self._watch)

    # --- files -------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Write the results; the answers stay until every library is filled."""
        assert self._journal is not None
        # First, so that a failure below leaves no texts behind, and the limits of the next run start at zero.
        self._remove_texts()
        answers.end_run(self.work)
        self.write_results(self._journal.rows)
        if self._tally.good == len(self.order.libraries):
            self._remove(self.work)

    def _remove_texts(self) -> None:
        """Remove everything but the answers from the work folder."""
        kept = {
            answers.ANSWERS_FILE,
            *(f"{answers.ANSWERS_FILE}{ending}" for ending in untrusted_sqlite.COMPANION_SUFFIXES),
        }
        if self.work.is_dir():
            self._remove(*(path for path in self.work.iterdir() if path.name not in kept))

    def _remove_new_files(self, before: list[Path]) -> None:
        """Remove the work folder and the journal unless they existed before the run."""
        self._remove_texts()
        every = (self.work, results.journal_path(self.path))
        self._remove(*(path for path in every if path not in before))

    def _remove(self, *paths: Path) -> None:
        with writable.allow_writes(self.work.parent, entries_only=True), writable.allow_writes(self.work):
            for path in paths:
                durable.remove_tree(path)


def work_folder(path: Path) -> Path:
    """Return the folder beside the results that holds texts and answers until all libraries are filled."""
    return path.with_name(f"{path.name}.backfill")


def check_library(
    work: Path, library: int, embedder: Embedder, unsteady: StopReason | None, stop: StopReason | None
) -> StopReason | None:
    """Compare an embedder with the bases of a library; returns the error if one differs, or None.

    Args:
        work: the fleet's work folder.
        library: the library's number.
        embedder: has the answers to all samples.
        unsteady: the error for bases without vectors, if any.
        stop: why some samples have no answer, if so.
    """
    for sample in fleet_texts.read_samples(work, library):
        if not sample.raw and unsteady is not None:
            return unsteady
        canary = sample.canary()
        try:
            if canary is not None:
                canary.compare(embedder)
            else:
                probing.compare_with_base(embedder, sample.base, sample.known, sample.dimensions)
        except Unanswered as unanswered:
            if stop is not None:
                return stop
            return StopReason(code=BackfillStopped.__name__, reason=str(unanswered), exit_status=STOPPED)
        except RegraftError as error:
            return StopReason.of(error)
    return None


def _vector_lengths(libraries: Iterable[SurveyedLibrary]) -> VectorLengths:
    """Return the lengths that an answer may have: one of another length would fit no base, in any run."""
    dimensions = frozenset(size for one in libraries for size in one.dimensions)
    return None if None in dimensions else frozenset(size for size in dimensions if size is not None)


# --- results ---------------------------------------------------------------------------------------------------------


def filled_library_rows(
    rows: list[ResultRow], found: Sequence[ScopeReport], stop: StopReason | None
) -> list[ResultRow]:
    """Add the counts and stop reasons of a backfill's scopes to the rows of its library.

    Args:
        rows: made by :func:`regraft.fleet.results.result_rows`.
        found: the scopes of the library.
        stop: why the fleet did not send all texts, if so.
    """
    if not found:
        return rows
    own, *bases = rows
    scopes = {scope.scope: scope for scope in found}
    base_rows = []
    for base in bases:
        scope = scopes.get(str(base.base))
        if scope is None:
            base_rows.append(base)
        else:
            outcome = base.outcome if scope.stopped is None else "stopped"
            totals = _sum_counts([scope])
            base_rows.append(msgspec.structs.replace(base, outcome=outcome, message=scope.stopped, totals=totals))
    reason = next((scope.stopped for scope in found if scope.stopped), None)
    own = msgspec.structs.replace(own, totals=_sum_counts(found))
    if reason is None:
        return [own, *base_rows]
    if stop is None:
        # The fleet sent everything: these texts were added to the library after its survey.
        stop = StopReason(reason=reason, code=BackfillStopped.__name__, exit_status=STOPPED)
    if stop.code is None:
        own = msgspec.structs.replace(own, outcome=LIMITED, message=reason)
    else:
        outcome = "stopped" if stop.exit_status == STOPPED else "refused"
        own = msgspec.structs.replace(
            own, outcome=outcome, message=reason, code=stop.code, exit_status=stop.exit_status
        )
    return [own, *base_rows]


def _sum_counts(scopes: Sequence[ScopeReport]) -> str:
    """Sum the counts of scopes; returns a JSON object."""
    counts = {name: sum(getattr(scope, name) for scope in scopes) for name in _COUNTS}
    return msgspec.json.encode(counts, order="sorted").decode()


def _sent_report(
    settings: EmbedderSettings,
    plan: FleetPlan,
    compared: int,
    texts: SpentTotals = NOTHING_SPENT,
    probes: SpentTotals = NOTHING_SPENT,
    *,
    stopped: str | None = None,
    remembered: bool = False,
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
        probe=ProbeReport(
            texts=compared,
            requests=probes.requests,
            tokens=probes.tokens,
            cost=cost_of(probes.tokens, settings),
            remembered=remembered,
        ),
        reused=plan.reused,
    )
