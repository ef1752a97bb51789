"""What a fleet says where it is stopped."""

from __future__ import annotations

from regraft.errors import INTERRUPTED, RegraftError


class FleetInterrupted(RegraftError, RuntimeError):
    """Interrupted; what was finished stays (libraries: {finished}), go on with: {command}."""

    exit_status = INTERRUPTED
