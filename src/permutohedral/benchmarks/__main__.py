"""`python -m permutohedral.benchmarks`: the command `permutohedral benchmark` where its extra is not installed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from permutohedral.benchmarks import command, runner
from permutohedral.errors import PermutohedralError


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(prog="python -m permutohedral.benchmarks", description="Time the operators.")
    parser.add_argument("--only", help="names of workloads with commas between them")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", help="thread counts, such as 1,2")
    parser.add_argument("--repeats", type=int, default=7, help="rounds of repetitions")
    parser.add_argument("--no-peers", action="store_true", help="leave out the other libraries")
    parser.add_argument("--data", type=Path, help="folder with bsds500/test")
    parser.add_argument("--json", type=Path, help="write everything here")
    parser.add_argument("--csv", type=Path, help="write one line for each figure here")
    given = parser.parse_args()
    try:
        options = runner.Options(
            only=given.only and given.only.split(","),
            device=given.device,
            threads=command.parse_threads(given.threads),
            repeats=given.repeats,
            with_peers=not given.no_peers,
            data=command.data_folder(given.data),
        )
        return command.main(options, given.json, given.csv, [])
    except PermutohedralError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
