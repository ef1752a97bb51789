"""Where the command begins, installed or by ``python -m regraft``: Ctrl-C ends it quietly from its first moment."""

from __future__ import annotations

import sys


def main() -> None:
    """Load the command line and run it."""
    try:
        from regraft import cli  # noqa: PLC0415 - loading takes a while, and can be interrupted too
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
