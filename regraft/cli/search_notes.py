"""How ``regraft search`` asks a database of codex-mem, and how it shows what that answers."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from regraft import config
from regraft.cli.embedding import query_vector
from regraft.errors import QueryNotEmbedded, RegraftError, WrongUsage
from regraft.kinds import NAMES, Kind
from regraft.language import tr
from regraft.ranking.codex_mem import Answer, Embed, NoVector
from regraft.report.document import Head, Report
from regraft.text import counted, one_line, shown_lines


class FoundNote(Struct, frozen=True, kw_only=True):
    """A note that was found; ``material_id`` is its project."""

    rank: int
    score: float
    unit_id: str
    material_id: str
    relative_path: str | None
    unit_index: int
    text: str
    title: str
    type: str
    status: str


class NotesReport(Report, kw_only=True):
    """What ``regraft search`` tells of a database of codex-mem; ``base`` is the project, None for all."""

    base: str | None
    mode: str
    state: str
    count: int
    score_kind: str
    notes: tuple[str, ...]
    hits: list[FoundNote]


def refuse(options: dict[str, bool]) -> None:
    """Refuse options that say nothing about notes.

    Raises:
        WrongUsage
    """
    for name, given in options.items():
        if given:
            hint = tr("leave it out; --mode hybrid searches by words and by meaning")
            raise WrongUsage(problem=tr("{name} is not for {names}", name=name, names=NAMES[Kind.CODEX_MEM]), hint=hint)


def embed_for(query: str, name: str, config_path: Path | None) -> Embed:
    """Return what has an embedder of the configuration make a query's vector, if it is of the model that is asked for.

    Raises:
        EmbedderUnknown, ConfigInvalid, SourceNotFound, SourceUnreadable: the embedder cannot be used at all.
    """
    settings = config.load(config_path).embedder(name)

    def embed(model_id: str) -> tuple[float, ...]:
        if not settings.serves(model_id):
            raise NoVector(
                tr(
                    "embedder {name} is model {model}, the vectors are of {model_id}",
                    name=name,
                    model=settings.model,
                    model_id=model_id,
                )
            )
        try:
            return query_vector(settings, query)
        except QueryNotEmbedded as error:
            raise NoVector(
                tr("embedder {name} gave no vector for the query ({reason})", name=name, reason=error.facts["reason"])
            ) from error
        except RegraftError as error:
            raise NoVector(tr("embedder {name} cannot be used: {error}", name=name, error=error)) from error

    return embed


def report(head: Head, answer: Answer) -> NotesReport:
    """Return the command's result."""
    return NotesReport(
        head=head,
        base=answer.project,
        mode=answer.mode.value,
        state=answer.state.value,
        count=answer.count,
        score_kind="ranking",
        notes=answer.notes,
        hits=[
            FoundNote(
                rank=rank,
                score=found.hit.score,
                unit_id=found.hit.unit_id,
                material_id=found.hit.material_id,
                relative_path=found.hit.relative_path,
                unit_index=found.hit.unit_index,
                text=found.hit.text,
                title=found.title,
                type=found.type,
                status=found.status,
            )
            for rank, found in enumerate(answer.found, 1)
        ],
    )


def as_text(answer: Answer, title: str, excerpt: int | None) -> str:
    """Return an answer for a person.

    Args:
        answer: what was found.
        title: the first line.
        excerpt: how many code points of a note are shown; None: all.
    """
    where = tr("All projects") if answer.project is None else tr("Project {project}", project=one_line(answer.project))
    lines = [
        title,
        tr(
            "{where}: {hits} by {mode}, {state}.",
            where=where,
            hits=counted(len(answer.found), "hit"),
            mode=answer.mode,
            state=answer.state,
        ),
    ]
    for rank, found in enumerate(answer.found, 1):
        body = one_line(found.hit.text.removeprefix(found.title), None if excerpt is None else excerpt + 1)
        shown = body if excerpt is None or len(body) <= excerpt else f"{body[:excerpt]}…"
        kind = one_line(f"{found.type}, {found.status}, {found.hit.material_id}")
        lines += ["", f"{rank:>3}  {found.hit.score:.6g}  {one_line(found.title)}  ({kind})", f"     {shown}"]
    return shown_lines(lines)
