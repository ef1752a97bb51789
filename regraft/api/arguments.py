"""Checks and conversions of the arguments of API functions."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from regraft import identity
from regraft.errors import ModelOptionInvalid, WrongUsage
from regraft.formats.cherry_v2.models import ModelOverrides, is_model_id, tidy_model_id
from regraft.language import tr
from regraft.options import BackfillOptions, FleetBackfillOptions, InstallOptions, RestoreOptions, SyncOptions
from regraft.report.progress import Progress, SilentProgress
from regraft.text import trim

if TYPE_CHECKING:
    from repair.embedding.scope import ReusePath

Options = TypeVar("Options", bound=msgspec.Struct)


def merge_options(struct: type[Options], options: Options | None, fields: Mapping[str, Any]) -> Options:
    """Put together the options of a call: a struct of :mod:`regraft.options`, single fields, or both; fields win.

    Lists become tuples, and text becomes paths and kinds. Limits are checked.

    Raises:
        TypeError: a field that the struct does not have, as Python raises it for an unknown argument.
        ValueError: a value that the field cannot have.
    """
    unknown = fields.keys() - set(struct.__struct_fields__)
    if unknown:
        raise TypeError(f"{struct.__name__} has no field {min(unknown)!r}")
    given = struct() if options is None else options
    values = {name: getattr(given, name) for name in given.__struct_fields__} | dict(fields)
    for name, value in values.items():
        if isinstance(value, Iterable) and not isinstance(value, (str, Path, Mapping)):
            values[name] = tuple(value)
        elif isinstance(value, float) and math.isnan(value):
            raise msgspec.ValidationError(f"Expected a number, got nan - at `$.{name}`")
    return msgspec.convert(values, struct, dec_hook=_convert)


def _convert(kind: type, value: object) -> object:
    """Convert a text to a path for an option of type ``kind``; msgspec calls this for types that it does not know.

    Raises:
        TypeError: the option has another type, or the value is not a path.
    """
    if kind is Path and isinstance(value, str | os.PathLike):
        return Path(value)
    raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")


def progress_or_silent(progress: Progress | None) -> Progress:
    """Return the caller's progress, or one that shows nothing if the caller gave none."""
    return SilentProgress() if progress is None else progress


def agree(_plan: object) -> bool:
    """Accept any plan: the default of ``confirm``."""
    return True


def time_or_now(now_ms: int | None) -> int:
    """Return ``now_ms``, or the current time if it is None, in Unix milliseconds."""
    return identity.now_ms() if now_ms is None else now_ms


def parse_base_name(name: str | None) -> str | None:
    """Strip the name of a base; None stays None.

    Raises:
        WrongUsage: the name is blank, or not valid Unicode.
    """
    if name is None:
        return None
    tidy = trim(name)
    if not tidy:
        raise WrongUsage(problem=tr("the name of a base cannot be blank"), hint=tr("give a name"))
    try:
        tidy.encode()
    except UnicodeEncodeError as error:
        raise WrongUsage(
            problem=tr("the name of a base must be valid Unicode"), hint=tr("give another name")
        ) from error
    return tidy


def parse_model_overrides(mapped: Mapping[str, str], recreated: Iterable[str]) -> ModelOverrides:
    """Parse the options on models.

    Args:
        mapped: new model ids by old ones, or by ids of v1 bases.
        recreated: ids of models that v1 no longer lists and that are created again.

    Raises:
        ModelOptionInvalid: an id has not the form provider::model.
    """
    words = {}
    for old, new in mapped.items():
        if not old.strip() or not is_model_id(new):
            reason = tr("write OLD=NEW, NEW as provider::model")
            raise ModelOptionInvalid(option="--map-model", value=f"{old}={new}", reason=reason)
        words[tidy_model_id(old)] = tidy_model_id(new)
    return ModelOverrides(words, frozenset(parse_model_id("--recreate-model", text) for text in recreated))


def parse_model_id(option: str, text: str) -> str:
    """Normalize the id of a model; ``option`` is the command line option that the error names.

    Raises:
        ModelOptionInvalid: it has not the form provider::model.
    """
    if not is_model_id(text):
        raise ModelOptionInvalid(option=option, value=text, reason=tr("write it as provider::model"))
    return tidy_model_id(text)


def list_sources(
    options: BackfillOptions | SyncOptions | RestoreOptions | FleetBackfillOptions | InstallOptions,
) -> tuple[ReusePath, ...]:
    """List the stores from which existing vectors are reused: those in ``options``, then those of the configuration.

    Raises:
        ConfigInvalid, SourceNotFound, SourceUnreadable: the configuration cannot be used.
    """
    # They import much that commands without vectors do not need.
    from regraft.embedders import config  # noqa: PLC0415
    from repair.embedding.scope import ReusePath  # noqa: PLC0415

    named = tuple(ReusePath(path) for path in options.reuse)
    if not options.reuse_configured:
        return named
    return (*named, *(ReusePath(path, is_required=False) for path in config.load_config(options.config).reuse))
