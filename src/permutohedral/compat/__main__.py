"""Runs a program with the drop-ins: `python -m permutohedral.compat program.py args`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys

from permutohedral.compat import install
from permutohedral.errors import InputError


def main() -> None:
    """Install the drop-ins, then run the program as `python program.py args` or `python -m module args` would."""
    parser = argparse.ArgumentParser(
        prog="python -m permutohedral.compat",
        usage="%(prog)s [-h] [--only NAMES] (program | -m module) [args ...]",
        description="Run a program with drop-ins for pydensecrf and other libraries. The environment variable "
        "PERMUTOHEDRAL_DEVICE chooses the device: cpu (default), cuda, ...",
    )
    parser.add_argument("--only", metavar="NAMES", default="", help="drop-ins to install, separated by commas")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="module to run, such as pytest")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="Python file, or a folder with __main__.py")
    options = parser.parse_args()
    if not options.module and not options.program:
        parser.error("program is missing; pass a file, or -m and a module")
    name, *arguments = options.module or options.program
    if not (_is_module(name) if options.module else os.path.exists(name)):
        parser.error(f"program must be a file, or -m and a module, got {name}, which does not exist")
    try:
        install(*filter(None, options.only.split(",")), device=os.environ.get("PERMUTOHEDRAL_DEVICE") or None)
    except InputError as error:
        parser.error(error.message)
    sys.argv = [name, *arguments]
    if options.module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        return
    if not sys.flags.safe_path:
        # the current folder, which -m has put there
        del sys.path[0]
        if os.path.isfile(name):
            sys.path.insert(0, os.path.dirname(os.path.realpath(name)))
    runpy.run_path(name, run_name="__main__")


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


if __name__ == "__main__":
    main()
