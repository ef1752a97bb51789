"""The command lines that an audit gives for what it found, where the registry names the command."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from checks.audit.findings import FINDINGS, Audit, Finding
from checks.audit.options import CommandLine
from regraft.records import replace


def with_commands(
    audited: Audit, command_line: CommandLine, options_of: Callable[[Finding], Sequence[str]] = lambda _: ()
) -> Audit:
    """Return an audit whose findings give the command line that mends them.

    Args:
        audited: what was found.
        command_line: makes the line of a command for the path.
        options_of: gives what a finding's command is told besides what the registry says.
    """

    def mended(finding: Finding) -> Finding:
        words = FINDINGS[finding.name].command
        if not words or finding.is_beyond_repair:
            return finding
        return replace(finding, repair=command_line(words[:1], (*words[1:], *options_of(finding))))

    return replace(audited, findings=tuple(map(mended, audited.findings)))
