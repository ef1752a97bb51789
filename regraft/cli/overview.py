"""What ``regraft --help`` lists: every command in its group, with one line; no command is loaded for that."""

from __future__ import annotations

from collections.abc import Iterable

from regraft.language import tr

#: The groups in their order, and what each of their commands does, in one line of a terminal of 80 columns.
GROUPS = {
    tr("Move"): {
        "migrate": tr("Migrate v1 data to a v2 library, vectors byte for byte."),
        "import": tr("Write a library that a Parquet file holds."),
        "export": tr("Write texts and vectors to a Parquet file."),
        "pack": tr("Write bases to one zip file, for another machine."),
        "install": tr("Put bases into a v2 profile."),
        "fleet": tr("Run one command over many libraries."),
    },
    tr("Look"): {
        "inspect": tr("Tell what a path is and what is in it."),
        "check": tr("Audit a store: findings, and what mends each."),
        "search": tr("Search a base as the application does."),
        "compare": tr("Ask v1's vectors and a v2 index the same."),
        "history": tr("List what regraft did, and what can be taken back."),
        "explain": tr("Explain a finding, a code or an error."),
    },
    tr("Repair"): {
        "fix": tr("Do all that check offers, in the right order."),
        "repair": tr("Mend what check finds, where other data prove what is right."),
        "gc": tr("Remove what nothing reaches: vectors, texts, files."),
        "reconcile": tr("Make indexes and vectors follow what they are derived from."),
        "upgrade": tr("Bring older files to the current layout, every vector kept."),
        "rescue": tr("Bring back what the application's own upgrade left behind."),
        "undo": tr("Take back what a run did."),
    },
    tr("Embed"): {
        "backfill": tr("Embed what has no vector yet, and nothing else."),
        "restore": tr("Make a new base with another model, of the same texts."),
        "embedders": tr("List what makes vectors, and for which bases; test it."),
    },
    tr("codex-mem and AngelMemory"): {
        "rebuild": tr("codex-mem: make the vectors of all notes anew."),
        "clear-failed": tr("codex-mem: have notes tried again that were refused."),
        "recall": tr("AngelMemory: read a note by its short id."),
    },
}
OTHER = tr("Other")
SUMMARIES = {name: summary for group in GROUPS.values() for name, summary in group.items()}


def grouped(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the groups with those of their commands that there are; a command of no group is in the last one."""
    there = list(names)
    groups = {title: [name for name in group if name in there] for title, group in GROUPS.items()}
    groups[OTHER] = [name for name in there if name not in SUMMARIES]
    return {title: members for title, members in groups.items() if members}
