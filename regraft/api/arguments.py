"""What callers give: paths and kinds as text, words on models, and what they leave out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from regraft import identity
from regraft.errors import ModelOptionInvalid, WrongUsage
from regraft.formats.cherry_v2.models import ModelOverrides, is_model_id, tidy_model_id
from regraft.kinds import Kind
from regraft.language import tr
from regraft.report.progress import Progress, SilentProgress
from regraft.text import trim


def as_path(path: str | Path) -> Path:
    """Return a path that is given in either way."""
    return Path(path)


def parse_kind(kind: Kind | str | None) -> Kind | None:
    """Return the kind that a caller names.

    Raises:
        ValueError: there is no such kind.
    """
    return None if kind is None else Kind(kind)


def progress_or_silent(progress: Progress | None) -> Progress:
    """Return what is told how far work is."""
    return SilentProgress() if progress is None else progress


def time_or_now(now_ms: int | None) -> int:
    """Return the time of a run, in ms."""
    return identity.now_ms() if now_ms is None else now_ms


def parse_base_name(name: str | None) -> str | None:
    """Return a name for a base without the blanks around it; None stays None.

    Raises:
        WrongUsage: the name is blank, or not valid Unicode.
    """
    if name is None:
        return None
    tidy = trim(name)
    if not tidy:
        raise WrongUsage(problem=tr("a base's name cannot be blank"), hint=tr("give a name"))
    try:
        tidy.encode()
    except UnicodeEncodeError as error:
        raise WrongUsage(problem=tr("a base's name must be valid Unicode"), hint=tr("give another name")) from error
    return tidy


def parse_model_overrides(mapped: Mapping[str, str], recreated: Iterable[str]) -> ModelOverrides:
    """Return what a caller says of models.

    Args:
        mapped: the new ids by the old ones, or by the ids of v1 bases.
        recreated: ids of models that v1 lost, and that will be there again.

    Raises:
        ModelOptionInvalid: an id is not of the form provider::model.
    """
    words = {}
    for old, new in mapped.items():
        if not old.strip() or not is_model_id(new):
            reason = tr("write OLD=NEW, NEW as provider::model")
            raise ModelOptionInvalid(option="--map-model", value=f"{old}={new}", reason=reason)
        words[tidy_model_id(old)] = tidy_model_id(new)
    return ModelOverrides(words, frozenset(parse_model_id("--recreate-model", text) for text in recreated))


def parse_model_id(option: str, text: str) -> str:
    """Return a model's id in its usual form.

    Raises:
        ModelOptionInvalid: it is not of the form provider::model.
    """
    if not is_model_id(text):
        raise ModelOptionInvalid(option=option, value=text, reason=tr("write it as provider::model"))
    return tidy_model_id(text)
