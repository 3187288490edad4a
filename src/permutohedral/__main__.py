"""`permutohedral` and `python -m permutohedral`: start the command line, or say what it lacks."""

from __future__ import annotations

import errno
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
        try:
            _run()
        finally:
            # now, and not while the interpreter ends, where an error would be a traceback
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        _explain_output(error)
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


def _explain_output(error: OSError) -> None:
    """Tell why stdout takes nothing more; commands explain errors of files themselves, and raise others to be seen."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE):
        raise error
    # what is still in the buffer would fail once more when the interpreter ends
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # who stopped reading wants no message
    if error.errno != errno.EPIPE:
        print(f"error: cannot write to stdout: {error.strerror}; send it elsewhere", file=sys.stderr)
    sys.exit(1)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End at once while a module is being imported: there the exception may get lost, or become another one."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
