"""`permutohedral` and `python -m permutohedral`: start the command line, or say what it lacks."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

# as shells count: 128 and the number of the signal
INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    # where Ctrl-C is ignored, as in a background job, it stays ignored
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        # all is written; while the interpreter ends, an exception would be a traceback that nobody can catch
        if signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run() -> None:
    try:
        import typer  # noqa: F401  (only asked whether it is there)
    except ModuleNotFoundError:
        sys.exit("permutohedral: the command line needs an extra: pip install 'permutohedral[cli,images]'")
    from permutohedral.cli.application import application

    application(prog_name="permutohedral")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End at once while a module is being imported: there the exception may get lost, or become another one."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
