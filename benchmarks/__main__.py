"""Command line of the benchmarks: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from benchmarks import bits, calls, compare, report, runner
from permutohedral.errors import PermutohedralError


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def main(arguments: list[str] | None = None) -> int:
    """Run, print the table, write the file; the exit code is 1 if a workload failed."""
    arguments = sys.argv[1:] if arguments is None else arguments
    commands = {"bits": bits.main, "calls": calls.main, "compare": compare.main}
    if arguments and arguments[0] in commands:
        return commands[arguments[0]](arguments[1:])
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time every operator next to its peers. `compare BASE` compares times with another version, and "
        "`bits BASE` results; `calls` counts Python calls.",
    )
    parser.add_argument("--list", action="store_true", help="print the workloads and stop")
    parser.add_argument("--only", action="append", help="workload, or all that start with it; may be repeated")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=_numbers, default=None, help="such as 1,2; default: one and all cores")
    parser.add_argument("--repeats", type=int, default=7, help="rounds of repetitions (default: 7)")
    parser.add_argument("--no-peers", action="store_true", help="leave the other libraries out")
    data = os.environ.get("PERMUTOHEDRAL_DATA")
    parser.add_argument("--data", type=Path, default=data, help="folder of data sets (default: PERMUTOHEDRAL_DATA)")
    parser.add_argument("--json", type=Path, help="write the report here")
    given = parser.parse_args(arguments)
    if given.list:
        for workload in runner.WORKLOADS:
            remark = " (only by --only)" if workload.optional else ""
            print(f"{workload.name:32} {workload.device:5} {workload.summary}{remark}")
        return 0
    if given.data is not None:
        if not given.data.is_dir():
            parser.error(f"--data: there is no folder {given.data}")
        os.environ["PERMUTOHEDRAL_DATA"] = str(given.data)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = given.threads or tuple(sorted({1, cores}))
    options = runner.Options(given.only, given.device, threads, given.repeats, not given.no_peers, given.data)
    try:
        found = runner.run(options, lambda message: print(message, file=sys.stderr, flush=True))
    except PermutohedralError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(report.format_table(found))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(any("failed" in result for result in found["results"]))


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader has enough; Python would complain when it flushes at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)
