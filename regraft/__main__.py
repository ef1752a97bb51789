"""Entry point of the command, installed or as ``python -m regraft``.

Before any other import, the working directory is removed from the import path, and from the first moment on, a stop
ends the command quietly. Standard streams that cannot be written to, and locales whose encoding is not UTF-8, are no
errors.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    from regraft.processes.interpreters import secure_import_path

    # ``python -m`` puts the working directory first on the import path for all following imports.
    secure_import_path()

import gc
import signal


def main() -> None:
    """Import the command line and run it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until there are handlers, a stop ends the process at once instead of with a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from contextlib import ExitStack  # noqa: PLC0415 - nothing is loaded before main

    from regraft import language  # noqa: PLC0415 - nothing is loaded before main
    from regraft.processes import interpreters, interrupts  # noqa: PLC0415 - nothing is loaded before main

    interpreters.secure_import_path()
    if interpreters.is_frozen():
        # A child process is this same program with special arguments; multiprocessing.freeze_support handles them on
        # Windows only.
        from multiprocessing.spawn import freeze_support  # noqa: PLC0415 - takes a while to load

        freeze_support()
    _restart_in_utf8_mode()
    arguments = language.set_language(sys.argv[1:])
    sys.argv[1:] = arguments
    # Imported modules stay until the end: exclude them from garbage collection.
    gc.disable()
    with ExitStack() as stack:
        # At exit, nothing needs to be collected.
        stack.callback(gc.freeze)
        try:
            # The import takes a while; a stop in that time is handled afterwards, as usual.
            with interrupts.defer_stops():
                interrupts.install_handlers()
                from regraft.processes import startup  # noqa: PLC0415 - loading is held back

                # The following imports may open files, which must not get the descriptor of a closed stream.
                startup.protect_streams()
                stack.enter_context(startup.prestart_helpers(arguments))
                from regraft import cli  # noqa: PLC0415 - loading is held back

                gc.freeze()
                gc.enable()
        except KeyboardInterrupt:
            cli.main(is_interrupted=True)
        cli.main()


def _restart_in_utf8_mode() -> None:
    """Restart Python in UTF-8 mode if file names have another encoding (``LC_ALL=POSIX``).

    Otherwise files whose names the locale cannot encode could not be created. Output keeps the encoding of the locale.
    """
    from regraft.processes import interpreters  # noqa: PLC0415

    if os.name != "posix" or sys.flags.utf8_mode or sys.getfilesystemencoding() == "utf-8" or not sys.executable:
        return
    if interpreters.is_frozen():
        # A frozen program takes no options of Python's.
        return
    coding = next((stream.encoding for stream in (sys.stdout, sys.stderr) if stream is not None), "ascii")
    environment = {"PYTHONIOENCODING": coding, **os.environ, "PYTHONUTF8": "1"}
    os.execve(sys.executable, interpreters.interpreter_command("-X", "utf8", *sys.orig_argv[1:]), environment)


if __name__ == "__main__":
    main()
