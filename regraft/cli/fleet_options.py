"""Which options a library of a fleet may have: those of the command, each whole, and none that writes another file.

They come from a manifest or from results, which others may have made, and would otherwise take effect in a process that
nobody looks at.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from regraft.cli import cli
from regraft.errors import WrongUsage
from regraft.fleet.results import Order
from regraft.language import tr
from regraft.text import LONGEST_NAME, one_line

#: Options that take the path of what is read. The target of ``--to`` is the library's own.
_READ = frozenset({"--config", "--from", "--reuse", "--v1", "--to"})


def demand_usable(order: Order) -> None:
    """Refuse options that the command line of a library cannot have, before anything is done.

    Raises:
        WrongUsage: see the module; the message names the library, if the options are its own.
    """
    command = cli.commands[order.command]
    for where, words in _every(order):
        problem = _problem(command, words)
        if problem is not None:
            raise WrongUsage(
                problem=problem if where is None else tr("{source}: {problem}", source=where, problem=problem),
                hint=tr("see regraft {name} --help", name=order.command),
            )


def _every(order: Order) -> Iterator[tuple[str | None, tuple[str, ...]]]:
    """Yield all options that there are, each once, and which library has them; None: all have."""
    yield None, order.options
    seen = {(), order.options}
    for library in order.libraries:
        if library.options not in seen:
            seen.add(library.options)
            yield one_line(library.source, LONGEST_NAME), library.options


def _problem(command: click.Command, words: tuple[str, ...]) -> str | None:
    """Say why a library cannot have these options; None where it can."""
    context = click.Context(command, **cli.context_settings)
    try:
        found, rest, _ = command.make_parser(context).parse_args(list(words))
    except click.UsageError as error:
        return " ".join(error.format_message().split()).rstrip(".")
    given = [one for one in command.get_params(context) if one.name in found]
    # What is no option is taken for a path.
    paths = (found[str(one.name)] for one in given if isinstance(one, click.Argument))
    loose = [*rest, *(path for path in paths if isinstance(path, str)), *(word for word in words if word == "--")]
    if loose:
        return tr("{word} is no option", word=one_line(loose[0], LONGEST_NAME))
    problems = (_problem_of(one) for one in given if isinstance(one, click.Option))
    return next((problem for problem in problems if problem is not None), None)


def _problem_of(option: click.Option) -> str | None:
    name = max(option.opts, key=len)
    if option.is_flag and option.is_eager and not option.expose_value:
        return tr("{name} only shows something, and does nothing with a library", name=name)
    if isinstance(option.type, click.Path) and name not in _READ:
        return tr("{name} writes a file beside the libraries, which a fleet does not", name=name)
    return None
