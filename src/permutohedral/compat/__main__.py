"""Runs a program with the drop-ins: `python -m permutohedral.compat program.py args`."""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from permutohedral.compat import install
from permutohedral.errors import InputError


def main() -> None:
    """Install the drop-ins, then run the program as `python program.py args` would."""
    parser = argparse.ArgumentParser(
        prog="python -m permutohedral.compat",
        description="Run a program with drop-ins for pydensecrf and other libraries. The environment variable "
        "PERMUTOHEDRAL_DEVICE chooses the device: cpu (default), cuda, ...",
    )
    parser.add_argument("--only", metavar="NAMES", default="", help="drop-ins to install, separated by commas")
    parser.add_argument("program", help="Python file, or a folder with __main__.py")
    # argparse reports a remainder as missing, though it may be empty
    parser.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the program").required = False
    options = parser.parse_args()
    if not os.path.exists(options.program):
        parser.error(f"program must be a file, got {options.program}, which does not exist")
    try:
        install(*filter(None, options.only.split(",")), device=os.environ.get("PERMUTOHEDRAL_DEVICE") or None)
    except InputError as error:
        parser.error(error.message)
    sys.argv = [options.program, *options.args]
    if not sys.flags.safe_path:
        # the current folder, which -m has put there
        del sys.path[0]
        if os.path.isfile(options.program):
            sys.path.insert(0, os.path.dirname(os.path.realpath(options.program)))
    runpy.run_path(options.program, run_name="__main__")


if __name__ == "__main__":
    main()
