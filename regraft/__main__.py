"""Where the command begins, installed or by ``python -m regraft``: a stop ends it quietly from its first moment.

Before anything else is imported, the working directory leaves the import path. Streams that cannot be written to, and
a system whose names are in another coding than UTF-8, are no reason to fail.
"""

from __future__ import annotations

import os
import sys

from regraft.processes import interpreters

if __name__ == "__main__":
    # ``python -m`` puts the working directory first on the path on which all that follows is looked for.
    interpreters.secure_import_path()

import gc
from contextlib import ExitStack

from regraft import language
from regraft.processes import interrupts, prestart


def main() -> None:
    """Load the command line and run it."""
    interpreters.secure_import_path()
    if interpreters.is_frozen():
        # A worker is this same program, told so by its arguments; multiprocessing.freeze_support asks on Windows only.
        from multiprocessing.spawn import freeze_support  # noqa: PLC0415 - takes a while to load

        freeze_support()
    _speak_utf8()
    settled = language.set_language(sys.argv[1:])
    sys.argv[1:] = settled
    interrupts.install_handlers()
    # What is loaded stays to the end: nobody has to look among it for what could go.
    gc.disable()
    with ExitStack() as stack:
        # What is left at the end goes with the process.
        stack.callback(gc.freeze)
        try:
            # Loading takes a while: who stops it meanwhile is answered as later, when it is there.
            with interrupts.defer_stops():
                from regraft.processes import streams  # noqa: PLC0415 - loading is held back

                # What is loaded next may open files, and must not take the number of a closed stream.
                streams.protect_streams()
                stack.enter_context(prestart.prestart_helpers(settled))
                from regraft import cli  # noqa: PLC0415 - loading is held back

                gc.freeze()
                gc.enable()
        except KeyboardInterrupt:
            cli.main(is_interrupted=True)
        cli.main()


def _speak_utf8() -> None:
    """Begin anew in Python's UTF-8 mode where names of files are in another coding (``LC_ALL=POSIX``).

    Only so can files be made whose names the locale cannot say. What is shown stays in the locale's own coding.
    """
    if os.name != "posix" or sys.flags.utf8_mode or sys.getfilesystemencoding() == "utf-8" or not sys.executable:
        return
    if interpreters.is_frozen():
        # Such a program takes no options of Python's.
        return
    coding = next((stream.encoding for stream in (sys.stdout, sys.stderr) if stream is not None), "ascii")
    environment = {"PYTHONIOENCODING": coding, **os.environ, "PYTHONUTF8": "1"}
    os.execve(sys.executable, interpreters.interpreter_command("-X", "utf8", *sys.orig_argv[1:]), environment)


if __name__ == "__main__":
    main()
