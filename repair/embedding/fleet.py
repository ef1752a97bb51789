"""Backfill of all libraries of a fleet: each distinct text is sent once (``docs/fleet.md``).

A run has four phases. Jobs collect the texts of each library; the embedder is compared with the vectors of each base;
the texts are sent, and their answers stored in the work folder; jobs fill each library with the answers. A resumed run
uses the answers of an interrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path

import apsw
import msgspec

from regraft import identity
from regraft.disk import durable, writable
from regraft.embedders import TextsRejected, Unanswered
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import STOPPED, AnswerUnfit, Declined, EmbedderUnsteady, FleetRefused, RegraftError
from regraft.fleet import results
from regraft.fleet.engine import Pool, Task, TaskResult
from regraft.fleet.results import LIMITED, ResultRow
from regraft.fleet.run import Fleet, FleetPlan
from regraft.fleet.status import FleetReport, make_report
from regraft.language import to_english, tr
from regraft.options import BackfillOptions
from regraft.report.document import Run
from regraft.report.progress import stage
from repair.embedding import answers, fleet_jobs, probing
from repair.embedding.answers import NOTHING_SPENT, KnownEmbedder, SendingTerms, StopReason
from repair.embedding.budget import Limits, Rates
from repair.embedding.fleet_jobs import (
    CHUNK,
    AnyKeeper,
    BackfillSummary,
    BaseSample,
    CountedText,
    EmbeddingJob,
    Sending,
    TextFile,
    WantedTexts,
    stop_reason,
)
from repair.embedding.report import EmbedderName, Estimate, cost_of, empty_estimate
from repair.embedding.survey import estimate_sending

#: Why a text has no answer although no limit or error kept it from being sent.
_CHANGED = tr("the library was changed during the run")


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


class BackfillPlan(FleetPlan, frozen=True, kw_only=True):
    """What a fleet will send.

    ``wanted`` texts of ``libraries`` lack a vector; ``distinct`` of them are to be sent, without those that an earlier
    run has an answer to. ``planned`` is the estimate, within the limits. ``reused`` texts more get a vector of another
    store and are not sent.
    """

    wanted: int
    distinct: int
    planned: Estimate
    reused: int = 0


class SentReport(BackfillPlan, frozen=True, kw_only=True):
    """What a fleet was to send and has sent (``docs/commands.md``, "fleet").

    ``answered`` texts got a vector, ``failed`` were rejected. ``stopped`` is why not all were sent.
    """

    answered: int
    failed: int
    requests: int
    tokens: int
    cost: float | None
    currency: str
    stopped: str | None
    probe: ProbeReport


class FleetBackfillReport(FleetReport, kw_only=True):
    """Counts of the libraries of a fleet, and what was sent to which embedder."""

    embedder: EmbedderName
    sent: SentReport


class BackfillSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a backfill that its results keep, for a run that resumes it; ``config`` is an absolute path."""

    embedder: str
    config: str | None = None
    limits: Limits = Limits()
    rates: Rates = Rates()
    no_probe: bool = False
    #: Absolute paths of stores whose vectors are taken.
    reuse: tuple[str, ...] = ()


class SurveyedLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """A library that lacks vectors: the row that it gets if it is not filled, and what its survey found."""

    row: ResultRow
    wanted: WantedTexts


# --- the comparison --------------------------------------------------------------------------------------------------


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Compares the embedder with the vectors that bases have, or with itself.

    ``work`` is the fleet's work folder, ``compared`` has the texts of all samples. ``step`` is called with the number
    of texts that got an answer.
    """

    work: Path
    settings: EmbedderSettings
    sending: Sending
    compared: TextFile
    step: Callable[[int], None]

    @property
    def _known(self) -> KnownEmbedder:
        """An embedder that sends nothing and returns the answers to texts that were sent to compare."""
        return KnownEmbedder(self.settings, partial(self.sending.keeper.find, kind="probes"), _CHANGED)

    def recall(self) -> bool:
        """Decide whether the comparisons of an earlier run still hold: send one of their texts again.

        If its vector is the same, the other answers of that run are used, and the result is True. Otherwise the answers
        are forgotten: the server may serve another model under the same name by now.
        """
        keeper = self.sending.keeper
        texts = chain(self.compared, ((identity.text_hash(text), text) for text in probing.SENTENCES))
        found: dict[str, bytes] = {}
        # Many at a time: the keeper may be another process.
        while not found and (chunk := dict(islice(texts, CHUNK))):
            known = keeper.find(list(chunk), "probes")
            found = {chunk[key]: one.vector for key, one in known.items() if one.vector is not None}
        if found:
            text = min(found, key=len)
            try:
                if probing.is_same_vector(found[text], *self._ask([text])):
                    self._reuse_vectors()
                    return True
            except Unanswered:
                # Nothing more is sent by this run either.
                return True
            except TextsRejected:
                pass
        keeper.forget_compared()
        return False

    def _reuse_vectors(self) -> None:
        """Copy vectors that an earlier run got, when it filled bases, for texts to compare: they are not sent again."""
        texts = iter(self.compared)
        while chunk := [key for key, _ in islice(texts, CHUNK)]:
            self.sending.keeper.reuse_vectors(chunk)

    def _ask(self, texts: Sequence[str]) -> Sequence[bytes]:
        """Send texts to compare, even if they have an answer; returns their vectors in order.

        Raises TextsRejected or Unanswered if one of them was rejected, or was not sent.
        """
        keys = [identity.text_hash(text) for text in texts]
        self.sending.keeper.forget_compared(keys)
        path = self.work / "asked.sqlite"
        fleet_jobs.write_texts(path, ((key, text, 0) for key, text in zip(keys, texts, strict=True)))
        with fleet_jobs.read_texts(path) as asked:
            self.sending.send(asked, "probes", None, lambda _: None)
        return self._known.embed(texts).vectors

    def run(self, libraries: Iterable[int]) -> dict[int, StopReason]:
        """Send the samples of all bases and compare; returns the refused libraries, by number, with the reason.

        A library is refused if a base of it has vectors of another model.
        """
        self.sending.send(self.compared, "probes", None, self.step)
        check_steadiness = cache(self._check_steadiness)
        refused: dict[int, StopReason] = {}
        for library in libraries:
            samples = fleet_jobs.read_samples(self.work, library)
            found = ((None if one.known else check_steadiness()) or self._compare(one) for one in samples)
            if (refusal := next(filter(None, found), None)) is not None:
                refused[library] = refusal
        return refused

    def _check_steadiness(self) -> StopReason | None:
        """Check that the embedder gives equal vectors for one text; returns why bases without vectors are refused.

        None if they are not. If the embedder does not answer, the keeper permits no more requests.
        """
        keeper, name = self.sending.keeper, self.settings.name
        sentences = [identity.text_hash(text) for text in probing.SENTENCES]
        # An earlier run may have checked it.
        if len(keeper.find(sentences, "probes")) < len(sentences):
            try:
                probing.compare_vectors(name, name, [], None, self._ask)
            except (EmbedderUnsteady, AnswerUnfit) as error:
                keeper.forget_compared(sentences)
                return StopReason.of(error)
            except RegraftError as error:
                keeper.stop(StopReason.of(error))
            except Unanswered:
                # The keeper knows why.
                pass
        return None

    def _compare(self, sample: BaseSample) -> StopReason | None:
        """Compare the answers with the vectors of a base; returns why its library is refused, or None."""
        try:
            sample.compare(self._known)
        except (Unanswered, RegraftError) as error:
            stop = self.sending.keeper.stopped() if isinstance(error, Unanswered) else None
            return stop or stop_reason(error, self.settings)
        return None


# --- the run ---------------------------------------------------------------------------------------------------------


class FleetBackfill(Fleet, kw_only=True):
    """One run over a fleet, with the settings of its embedder and the options. Single use."""

    embedder: EmbedderSettings
    settings: BackfillSettings
    _sent: SentReport | None = None

    @property
    def folder(self) -> Path:
        """The work folder, with texts and answers."""
        return work_folder(self.path)

    def lock(self) -> AbstractContextManager[None]:
        """Lock the results against other runs, even in a dry run: its work folder is beside them."""
        return results.lock_results(self.path)

    def report(self, run: Run) -> FleetBackfillReport:
        """Report on all libraries, and on what was sent, at the end of the run."""
        more = {"embedder": EmbedderName.of(self.embedder), "sent": self._sent}
        return make_report(FleetBackfillReport, run, self._tally, len(self.order.libraries), **more)

    def work(self) -> None:
        """Run all phases, and write the results.

        Declined: the user declined the plan, and nothing was sent. WrongUsage: the stored answers are of another
        embedder. Any other error: the next run resumes this one.
        """
        every = (self.folder, results.journal_path(self.path))
        before = set(filter(Path.exists, every))
        try:
            self._run_phases()
        except BaseException as error:
            # Files of a run that has sent nothing are removed, unless it can be resumed after an interrupt.
            is_interrupted = self._journal is not None and isinstance(error, KeyboardInterrupt | FleetRefused)
            is_kept = not self.dry_run and (self._sent is not None or is_interrupted)
            self._remove_files(every if is_kept else before)
            raise
        # First, so that a failure below leaves no texts behind, and the limits of the next run start at zero.
        self._remove_files(before if self.dry_run else every)
        if not self.dry_run:
            answers.end_run(self.folder)
            self.write_results()
            if self._tally.good == len(self.order.libraries):
                # The answers stay until every library is filled.
                self._remove_files(every[1:])

    def _run_phases(self) -> None:
        """Collect texts, plan, compare, send and fill; stop after the plan in a dry run or if the user declines."""
        answers.demand_same_embedder(self.folder, self.embedder)
        # The journal first: a work folder without one cannot be resumed.
        with self.open_run(self.left) as pool:
            with writable.allow_writes(self.folder.parent, entries_only=True):
                durable.make_folder(self.folder, exist_ok=True)
                durable.sync_folder(self.folder.parent)
            libraries = self._collect_texts(pool)
            plan = self._make_plan(libraries)
            if pool is None or not libraries or self.dry_run:
                self._note_sent(plan)
                return
            if not self.confirm(plan):
                raise Declined(path=self.path)
            self._fill(pool, libraries, *self._send(pool, libraries, plan))

    def _collect_texts(self, pool: Pool | None) -> dict[int, SurveyedLibrary]:
        """Run the collecting job of each library; returns those that lack vectors, by number, and ends the others.

        ``pool`` runs the jobs; None: there are no libraries.
        """
        surveyed: dict[int, SurveyedLibrary] = {}
        sizes = self.measure(self.left)
        with stage(self.progress, "Looking", len(sizes), "libraries"):
            for task, ended in self._run_jobs(pool, sizes, fills=False):
                summary = ended.summary
                if isinstance(summary, BackfillSummary) and summary.wanted is not None:
                    [row] = self.rows_of(task, msgspec.structs.replace(ended, summary=None, status=0))
                    surveyed[task.number] = SurveyedLibrary(row=row, wanted=summary.wanted)
                if task.number not in surveyed or self.dry_run:
                    self._end_library(task, ended, None)
        return dict(sorted(surveyed.items()))

    @property
    def _texts(self) -> Path:
        """The file with the texts of all libraries."""
        return self.folder / "texts.sqlite"

    def _make_plan(self, libraries: dict[int, SurveyedLibrary]) -> BackfillPlan:
        """Merge the texts of all libraries, except those with an answer, and estimate what sending them takes."""
        with answers.read_answers(self.folder) as known:
            fleet_jobs.write_texts(self._texts, self._texts_of(libraries, known))
        with fleet_jobs.read_texts(self._texts) as texts:
            sized = ((key, tokens) for key, _, tokens in texts.read())
            return BackfillPlan(
                libraries=len(libraries),
                wanted=sum(one.wanted.count for one in libraries.values()),
                distinct=texts.count,
                planned=estimate_sending(sized, self.embedder, self.settings.limits, empty_estimate(self.embedder)),
                reused=sum(one.wanted.reused for one in libraries.values()),
            )

    def _texts_of(self, libraries: Iterable[int], known: apsw.Connection | None = None) -> Iterator[CountedText]:
        """Yield the texts of libraries that have no answer in ``known``, the file of answers (None: none is known)."""
        for library in libraries:
            with fleet_jobs.read_texts(fleet_jobs.library_file(self.folder, library)) as own:
                texts = own.read()
                while chunk := list(islice(texts, CHUNK)):
                    answered = answers.answered_keys(known, [key for key, _, _ in chunk])
                    yield from (one for one in chunk if one[0] not in answered)

    def _send(
        self, pool: Pool, libraries: dict[int, SurveyedLibrary], plan: BackfillPlan
    ) -> tuple[dict[int, StopReason], StopReason | None]:
        """Compare the embedder with the bases, then send all texts of the libraries that are not refused.

        Returns the refused libraries, by number, with the reason, and why not all texts have an answer, or None.
        """
        settings, folder = self.settings, self.folder
        terms = SendingTerms(folder=folder, settings=self.embedder, limits=settings.limits, rates=settings.rates)
        compared = folder / "compared.sqlite"
        samples = (one.known for library in libraries for one in fleet_jobs.read_samples(folder, library))
        pairs = chain.from_iterable(samples)
        fleet_jobs.write_texts(compared, ((identity.text_hash(text), text, 0) for text, _ in pairs))
        with fleet_jobs.open_sending(pool, terms) as sending, fleet_jobs.read_texts(compared) as probes:
            # From here on, files of the run stay: something may have been paid for.
            self._note_sent(plan)
            comparison = Comparison(
                work=folder, settings=self.embedder, sending=sending, compared=probes, step=self._step
            )
            remembered = plan.distinct > 0 and comparison.recall()
            with stage(self.progress, "Comparing", probes.count, "texts"):
                refused = comparison.run(libraries)
            filled = sorted(libraries.keys() - refused)
            if refused:
                fleet_jobs.write_texts(self._texts, self._texts_of(filled))
            # An answer of another length would fit no base, in any run.
            lengths = {size for number in filled for size in libraries[number].wanted.dimensions}
            known_lengths = None if None in lengths else frozenset(filter(None, lengths))
            with fleet_jobs.read_texts(self._texts) as texts, stage(self.progress, "Embedding", texts.count, "texts"):
                sending.send(texts, "texts", known_lengths, self._step)
            self._note_sent(plan, sending.keeper, compared=probes.count, remembered=remembered)
            return refused, sending.keeper.stopped()

    def _note_sent(
        self, plan: BackfillPlan, keeper: AnyKeeper | None = None, *, compared: int = 0, remembered: bool = False
    ) -> None:
        """Set the part of the report about sending: the plan, and what the keeper says was sent (None: nothing yet).

        ``compared`` is the number of texts compared; ``remembered``: an earlier run had compared the same texts.
        """
        texts = probes = NOTHING_SPENT
        stop = None
        if keeper is not None:
            texts, probes, stop = keeper.spent("texts"), keeper.spent("probes"), keeper.stopped()
        self._sent = SentReport(
            **msgspec.structs.asdict(plan),
            **msgspec.structs.asdict(texts),
            cost=cost_of(texts.tokens, self.embedder),
            currency=self.embedder.currency,
            stopped=None if stop is None else stop.reason,
            probe=ProbeReport(
                texts=compared,
                requests=probes.requests,
                tokens=probes.tokens,
                cost=cost_of(probes.tokens, self.embedder),
                remembered=remembered,
            ),
        )

    def _fill(
        self,
        pool: Pool,
        libraries: dict[int, SurveyedLibrary],
        refused: dict[int, StopReason],
        stop: StopReason | None,
    ) -> None:
        """End the refused libraries, and run the filling job of the others; ``stop`` is why not all texts were sent."""
        for number, refusal in refused.items():
            self.end_library([_stopped_row(libraries[number].row, refusal, refusal.reason)])
        sizes = {number: one.row.bytes or 0 for number, one in libraries.items() if number not in refused}
        why = _CHANGED if stop is None else stop.reason
        with stage(self.progress, "Filling", len(sizes), "libraries"):
            for task, ended in self._run_jobs(pool, sizes, fills=True, why=why):
                self._end_library(task, ended, stop)

    def _step(self, count: int) -> None:
        """Count texts that got an answer, and refresh the metrics."""
        self.progress.step(count, 0)
        # No pool refreshes the metrics while texts are sent.
        if self.metrics is not None:
            self.metrics.refresh()

    # --- libraries ---------------------------------------------------------------------------------------------------

    def _run_jobs(
        self, pool: Pool | None, sizes: Mapping[int, int], *, fills: bool, why: str = ""
    ) -> Iterator[tuple[Task, TaskResult]]:
        """Run a job for each library, and yield each task with its result as it ends.

        Args:
            pool: runs the jobs; None: none are run.
            sizes: the size of each library in bytes, by its number.
            fills: whether the jobs fill their libraries; otherwise they collect texts.
            why: the error message for a text without an answer.
        """

        def job(number: int, cores: int) -> EmbeddingJob:
            """Make the job of a library, given by its number, for a process with ``cores`` cores."""
            line = self.make_job(number, cores)
            assert isinstance(line.options.values, BackfillOptions)
            values = msgspec.structs.replace(
                line.options.values,
                dry_run=not fills,
                probe=not self.settings.no_probe,
                reuse=(*line.options.values.reuse, *map(Path, self.settings.reuse)),
                reuse_configured=False,
            )
            return EmbeddingJob(
                embedder=self.embedder,
                library=number,
                line=msgspec.structs.replace(line, options=msgspec.structs.replace(line.options, values=values)),
                work=str(self.folder),
                fills=fills,
                why=str(to_english(why)),
                recovers=not self.dry_run,
            )

        return self.run_jobs(pool, sizes, job, notes_starts=fills)

    def _end_library(self, task: Task, ended: TaskResult, stop: StopReason | None) -> None:
        """Write the result rows of a library that has ended; ``stop`` is why not all texts were sent, or None."""
        own, *bases = self.rows_of(task, ended)
        if isinstance(ended.summary, BackfillSummary) and (reason := ended.summary.stopped) is not None:
            # If the fleet sent everything, these texts were added to the library after its survey.
            own = _stopped_row(own, stop or stop_reason(Unanswered(reason), self.embedder), reason)
        self.end_library([own, *bases])

    def _remove_files(self, kept: Collection[Path]) -> None:
        """Remove the files with texts; also the work folder and the journal, except those among ``kept``."""
        paths = [path for path in self.folder.glob("*") if not path.name.startswith(answers.ANSWERS_FILE)]
        paths += [path for path in (self.folder, results.journal_path(self.path)) if path not in kept]
        with writable.allow_writes(self.folder.parent, entries_only=True), writable.allow_writes(self.folder):
            for path in paths:
                durable.remove_tree(path)


def work_folder(path: Path) -> Path:
    """Return the folder beside the results that holds texts and answers until all libraries are filled."""
    return path.with_name(f"{path.name}.backfill")


def _stopped_row(row: ResultRow, stop: StopReason, message: str) -> ResultRow:
    """Return the row of a library with the reason why it is not filled completely: ``stop``, and its ``message``."""
    if stop.code is None:
        return msgspec.structs.replace(row, outcome=LIMITED, message=message)
    outcome = "stopped" if stop.exit_status == STOPPED else "refused"
    return msgspec.structs.replace(row, outcome=outcome, message=message, code=stop.code, exit_status=stop.exit_status)
