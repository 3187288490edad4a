"""Entry point of `permutohedral` and `python -m permutohedral`."""

from __future__ import annotations

import errno
import os
import signal
import sys
from types import FrameType

# by the convention of shells: 128 plus the number of the signal
INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        # closed by the parent, such as a daemon
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r"))  # noqa: SIM115 (open until the end)
    # where Ctrl-C is ignored, as in a background job, it stays ignored
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    # unwritten files are deleted on the way out
    for ending in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        if signal.getsignal(ending) is signal.SIG_DFL:
            signal.signal(ending, lambda number, frame: sys.exit(128 + number))
    try:
        try:
            _run()
        finally:
            # an error while the interpreter ends would print a traceback
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except OSError as error:
        _explain_output(error)
    finally:
        # everything is written; an exception while the interpreter ends would print a traceback
        if signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run() -> None:
    try:
        import typer  # noqa: F401  (check that it is installed)
    except ModuleNotFoundError:
        from permutohedral.apps.cli.extras import extra_of_command

        sys.exit(f"permutohedral: the command line needs an extra: pip install 'permutohedral[{extra_of_command()}]'")
    from permutohedral.apps.cli.application import application

    application(prog_name="permutohedral")


def _explain_output(error: OSError) -> None:
    """Print why stdout cannot be written; errors of files are handled by the commands."""
    # Windows reports a closed pipe as EINVAL
    closed = errno.EINVAL if sys.platform == "win32" else errno.EPIPE
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, closed):
        raise error
    # the rest of the buffer would fail again when the interpreter ends
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # a closed pipe needs no message
    if error.errno != closed:
        print(f"error: cannot write to stdout: {error.strerror}; send it elsewhere", file=sys.stderr)
    sys.exit(1)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Exit immediately during an import, which could swallow or replace the exception."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"interrupted\n")
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
