"""What a fleet says where it is stopped."""

from __future__ import annotations

from regraft.errors import INTERRUPTED, STOPPED, RegraftError


class FleetInterrupted(RegraftError, RuntimeError):
    message = "Interrupted; what was finished stays (libraries: {finished}), go on with: {command}."

    exit_status = INTERRUPTED


class StorageFailed(RegraftError, OSError):
    message = (
        "{url} could not be read or written ({reason}). It is tried again; after that, go on with regraft fleet resume."
    )

    exit_status = STOPPED


class StorageRefused(RegraftError, PermissionError):
    message = (
        "{url} may not be read or written ({reason}). Look at the credentials of this machine, and at the bucket's "
        "rules."
    )


class LibraryHeld(RegraftError, RuntimeError):
    message = (
        "{url} is worked on by somebody else, who has it for {seconds} s more. Go on later with regraft fleet resume."
    )

    exit_status = STOPPED


class LibraryChanged(RegraftError, RuntimeError):
    message = (
        "{url} was changed by somebody else meanwhile, so that nothing of this was published. It is tried again; "
        "after that, go on with regraft fleet resume."
    )

    exit_status = STOPPED


class LibraryUnsafe(RegraftError, ValueError):
    message = "{url} was not read: {reason}."
