"""``regraft import``: a library from Parquet files of units."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from migrators.parquet import import_files
from regraft import clock, progress
from regraft.cli.options import PATH, time_of
from regraft.cli.output import echo_json, reports_errors, say
from regraft.envelope import Run
from regraft.locate import CATALOG_FILE, KNOWLEDGE_FOLDER
from regraft.text import counted, shown


def _called_import(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command the name that Python does not allow it: errors are told under it."""
    command.__name__ = "import"
    return command


@click.command(name="import")
@click.argument("files", type=PATH, nargs=-1, required=True, metavar="FILE.parquet...")
@click.option("--to", "target", type=PATH, required=True, metavar="OUT", help="The library's folder: new or empty.")
@click.option("--now", callback=time_of, metavar="TIME", help="The run's time, ISO 8601 with Z. [default: now]")
@click.option("-v", "--verbose", count=True, help="-vv shows where an error came from.")
@click.option("-q", "--quiet", is_flag=True, help="No progress; only the result.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@reports_errors
@_called_import
def import_(
    files: tuple[Path, ...],
    target: Path,
    now: int | None,
    as_json: bool,
    quiet: bool,
    verbose: int,  # noqa: ARG001 - what reports errors reads it
) -> None:
    """Write the library that FILE.parquet holds to OUT.

    Files are those of regraft export, of a library or a part of one. Vectors come back byte for byte; ids, hashes and
    offsets are proven. The original files in raw/ are not part of them.
    """
    run = Run("import", False, "parquet", files[0], "library", target)
    moment = clock.now_ms() if now is None else now
    document = import_files(files, target, moment, progress.for_person(quiet=quiet or as_json))
    run.end()
    if as_json:
        echo_json({**run.document(), **document})
    else:
        written = [target / name for name in (CATALOG_FILE, KNOWLEDGE_FOLDER) if (target / name).exists()]
        said = "".join(map(_line, document["bases"])) + "".join(map(_left_out, document["skipped"].items()))
        say(f"{said}Written:\n" + "".join(f"  {shown(path)}\n" for path in written))
    sys.exit(1 if document["skipped"] or any(map(_is_worth_reading, document["bases"])) else 0)


def _left_out(counts: tuple[str, int]) -> str:
    return f"Left out: {counts[1]:,} {counts[0]}\n"


def _is_worth_reading(base: dict[str, Any]) -> bool:
    return any(base[name] for name in ("remade", "differing_vectors", "skipped_items")) or bool(base["rows"]["skipped"])


def _line(base: dict[str, Any]) -> str:
    said = f"{counted(base['rows']['carried'], 'unit')}, {counted(base['vectors'], 'vector')}"
    said += "".join(f", left out: {count:,} {reason}" for reason, count in base["rows"]["skipped"].items())
    said += "".join(f", items left out: {count:,} {reason}" for reason, count in base["skipped_items"].items())
    if base["remade"]:
        said += f", {counted(base['remade'], 'material')} made anew from its units"
    if base["differing_vectors"]:
        said += f", {counted(base['differing_vectors'], 'vector')} that differ for the same text left out"
    return f"{base['name']}: {said}\n"
