"""The campaign: commands are disturbed in every way a generator finds, and what they leave is held against a model.

``docs/reliability.md`` says what is tried and what came of it. One campaign is a class in :data:`CAMPAIGNS`; what all
of them share, counting and results, is in :mod:`campaign.campaign`.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Campaigns use the stores that the tests make, and what benchmarks/kills.py knows of states.
for _folder in (Path(__file__).parents[1], Path(__file__).parents[3]):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))

#: Every campaign by its name: the module that has it and the class in it. Modules are imported when they are asked for.
CAMPAIGNS = {
    "power-loss": ("power_loss", "PowerLoss"),
    "io-faults": ("io_faults", "IoFaults"),
    "kills": ("kills", "Kills"),
    "mutations": ("mutations", "Mutations"),
    "hostile-stores": ("hostile_stores", "HostileStores"),
    "machine": ("machine", "Machine"),
}
