"""What holds for every change of a KB: it is the application's own folder, and its database can be read."""

from __future__ import annotations

from regraft.errors import WrongUsage
from regraft.formats.rsclaw.database import FILE
from regraft.language import tr
from repair.changes.store import Store


def demand(store: Store) -> None:
    """Refuse a database under another name: the files beside it are those of ``kb.redb``, or of nobody.

    Raises:
        WrongUsage
    """
    if store.found.path.name != FILE:
        problem = tr(
            "{name} is not called {file}: whose files lie beside it is not known", name=store.found.path.name, file=FILE
        )
        raise WrongUsage(problem=problem, hint=tr("give the folder of the knowledge base"))
