"""The form in which each system says how its stores are looked at and audited."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from checks.audit.findings import Audit
from checks.audit.options import CheckOptions, CommandLine
from checks.looks import Look, LookOptions
from regraft.located import Located


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """What can be told of the stores of a system without writing: ``CHECKS`` in ``checks/SYSTEM/adapter.py``."""

    #: Looks at a store, and never raises for what is in the data but where all of its state is unreadable.
    inspect: Callable[[Located, LookOptions], Look]
    #: Whether it has items that ``--items`` lists.
    has_items: bool = False
    #: Audits it, and never raises for what is in the data; with command lines where it can make them. None: a source
    #: that is migrated is audited by a plan of its migration.
    audit: Callable[[Located, CheckOptions, CommandLine | None], Audit] | None = None
    #: Returns the ids by which a user can choose a part of the store.
    part_ids: Callable[[Located], Sequence[str]] = lambda _: ()
    #: Returns the ids of the parts by what else chooses one of them, such as its name.
    ids_by_name: Callable[[Located], Mapping[str, str]] = lambda _: {}
