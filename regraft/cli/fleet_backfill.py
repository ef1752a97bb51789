"""``regraft fleet backfill``: what the command of the fleet takes and says, and what is done with one library."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from regraft import extras
from regraft.api.embedding import limited_embedder
from regraft.cli import backfill, in_process
from regraft.cli.backfill import money
from regraft.errors import WrongUsage
from regraft.fleet import commands, results
from regraft.fleet import run as fleet_run
from regraft.fleet.engine import Ended
from regraft.fleet.known import Known
from regraft.fleet.manifest import Library
from regraft.fleet.results import Order, Row
from regraft.language import tr
from regraft.text import counted, one_line
from repair.backfill.budget import Limits, Rates
from repair.backfill.fleet import answers
from repair.backfill.fleet.jobs import Job
from repair.backfill.fleet.on_ray import RaySending
from repair.backfill.fleet.report import FleetBackfillReport
from repair.backfill.fleet.run import FleetBackfill, FleetPlan, work_folder
from repair.backfill.fleet.sending import HereSending, Sending

F = TypeVar("F", bound=Callable[..., Any])
#: Options that are of the whole fleet, so that no library may have its own.
_OF_THE_FLEET = frozenset(
    {"--embedder", "--config", "--limit", "--max-requests", "--max-cost", "--no-probe", "--dry-run"}
)


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the fleet is told, beside the options of its libraries; ``config`` is an absolute path."""

    embedder: str
    config: str | None = None
    limits: Limits = Limits()
    rates: Rates = Rates()
    no_probe: bool = False


def rate_options(command: F) -> F:
    """Add how much is sent in a minute at most."""
    for option in (
        click.option(
            "--tokens-per-minute",
            type=click.IntRange(min=1),
            metavar="N",
            help=tr("Send N tokens in a minute at most, of all workers together."),
        ),
        click.option(
            "--requests-per-minute",
            type=click.IntRange(min=1),
            metavar="N",
            help=tr("Send N requests in a minute at most, of all workers together."),
        ),
    ):
        command = option(command)
    return command


def told_of(
    *,
    embedder_name: str | None,
    config_path: Path | None,
    texts: int | None,
    requests: int | None,
    cost: float | None,
    no_probe: bool,
    requests_per_minute: int | None,
    tokens_per_minute: int | None,
) -> Told:
    """Return what the fleet is told, by the options of the command line.

    Raises:
        RegraftError: as :func:`regraft.api.embedding.limited_embedder` does.
    """
    limits = Limits(texts, requests, cost)
    settings = limited_embedder(config_path, embedder_name, limits, frozenset())
    return Told(
        embedder=settings.name,
        config=None if config_path is None else str(config_path.absolute()),
        limits=limits,
        rates=Rates(requests=requests_per_minute, tokens=tokens_per_minute),
        no_probe=no_probe,
    )


def order_of(told: Told, options: tuple[str, ...], libraries: list[Library]) -> Order:
    """Return what a fleet is told to do.

    Raises:
        WrongUsage: a library has an option that is of the whole fleet.
    """
    for words in (options, *(library.options for library in libraries)):
        for word in words:
            name = word.partition("=")[0]
            if name in _OF_THE_FLEET:
                problem = tr("{name} is of the whole fleet, not of one library", name=name)
                raise WrongUsage(problem=problem, hint=tr("write it before --"))
    return Order(
        command="backfill",
        options=options,
        libraries=tuple(libraries),
        id=secrets.token_hex(8),
        told=msgspec.to_builtins(told),
    )


def demand_new(path: Path) -> None:
    """Refuse results where there are some, or texts and answers of another run, or in no folder.

    Raises:
        WrongUsage
    """
    fleet_run.demand_new(path)
    folder = work_folder(path)
    if folder.exists():
        # Without a journal there is nothing to go on with.
        hint = tr("remove the folder, or name another file")
        if (folder / answers.FILE).exists():
            hint = tr("name another file, or remove the folder with the answers that were paid for")
        raise WrongUsage(problem=tr("{path} is there already", path=folder), hint=hint)


def files_of(path: Path) -> tuple[Path, ...]:
    """Return all that a fleet writes beside its libraries."""
    return (*results.files_of(path), work_folder(path))


def sending_of(engine: str, workers: int | None) -> Sending:
    """Return where texts are sent from.

    Raises:
        WrongUsage: something that it takes is not installed.
    """
    if engine != "ray":
        return HereSending()
    # Before anything is done: it needs more than Ray does by itself.
    extras.needed("ray.data", tr("fleets on a cluster"), "ray")
    return RaySending(workers)


def made(order: Order, path: Path, known: Known[Row], **more: Any) -> FleetBackfill:
    """Return the work of a fleet.

    Raises:
        WrongUsage: the order is none of a backfill's.
        RegraftError: as :func:`regraft.api.embedding.limited_embedder` does.
    """
    try:
        told = msgspec.convert(order.told, Told)
    except msgspec.ValidationError as error:
        problem = tr("{path} has no results of a fleet ({error})", path=path, error=error)
        raise WrongUsage(problem=problem, hint=tr("give the file that regraft fleet wrote with --results")) from error
    config = None if told.config is None else Path(told.config)

    def command(number: int, fills: bool, cores: int) -> commands.Job:
        mode = "--yes" if fills else "--dry-run"
        probing = ("--no-probe",) if told.no_probe else ()
        job = fleet_run.job_of(order, order.libraries[number], cores)
        return msgspec.structs.replace(job, options=(*job.options, *probing, mode))

    return FleetBackfill(
        order=order,
        path=path,
        settings=limited_embedder(config, told.embedder, told.limits, frozenset()),
        command=command,
        limits=told.limits,
        rates=told.rates,
        known=known,
        **more,
    )


def work(job: Job) -> Ended:
    """Look at one library, or fill it, and return how it ended."""
    supply = job.supply()
    return job.told(supply, in_process.safely(job.line, lambda arguments: in_process.run_line(arguments, supply)))


# --- for a person ----------------------------------------------------------------------------------------------------


def planned_lines(plan: FleetPlan) -> list[str]:
    """Return what is going to be sent, as lines for a person."""
    lines = [
        tr(
            "{libraries} lack {wanted:,} vectors, of {texts}",
            libraries=counted(plan.libraries, "library"),
            wanted=plan.wanted,
            texts=counted(plan.distinct, "different text"),
        )
    ]
    return [*lines, *backfill.estimate_lines(plan.planned)]


def sent_lines(report: FleetBackfillReport) -> list[str]:
    """Return what was sent, or would be, as lines for a person."""
    sent = report.sent
    if report.head.run.dry_run:
        plan = FleetPlan(libraries=sent.libraries, wanted=sent.wanted, distinct=sent.distinct, planned=sent.planned)
        return [*planned_lines(plan), tr("Dry run: nothing was sent, and nothing was written.")]
    spent = f"{counted(sent.requests, 'request')}, {counted(sent.tokens, 'token')}"
    if sent.cost is not None:
        spent += f", {money(sent.cost, sent.currency)}"
    lines = [tr("{texts} embedded: {spent}.", texts=counted(sent.answered, "text"), spent=spent)]
    if sent.probe.requests:
        more = tr(
            "{requests}, {tokens} more",
            requests=counted(sent.probe.requests, "request"),
            tokens=counted(sent.probe.tokens, "token"),
        )
        lines.append(
            tr(
                "  checking that it is the same model: {texts}, {sent}",
                texts=counted(sent.probe.texts, "text"),
                sent=more,
            )
        )
    if sent.failed:
        lines.append(tr("{texts} failed.", texts=counted(sent.failed, "text")))
    if sent.stopped is not None:
        lines.append(tr("Stopped: {stopped}; go on with regraft fleet resume.", stopped=one_line(sent.stopped)))
    return lines
