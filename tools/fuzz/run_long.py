"""Runs the fuzz tests with many examples and writes how many there were: `python tools/fuzz/run_long.py`.

Writes `results/reliability/fuzz-calls.json`; the exit code is that of the tests. `HYPOTHESIS_PROFILE` says how many.
With `TRITON_INTERPRET=1` the Triton kernels take part, in the interpreter and on smaller calls, and the result is
`fuzz-interpreted.json`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
RESULT = ROOT / "results" / "reliability" / f"fuzz-{'interpreted' if INTERPRETED else 'calls'}.json"


class Counter:
    """Adds up the examples that hypothesis ran."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        # what `--hypothesis-show-statistics` prints
        text = str(report.__dict__.get("_hypothesis_stats", ""))
        found = sum(int(number) for number in re.findall(r"(\d+) (?:passing|failing)", text))
        if found:
            self.calls[report.nodeid.rpartition("/")[2]] = found


def main() -> int:
    """Run and write."""
    counter, started = Counter(), time.monotonic()
    folder = str(ROOT / "tests" / "fuzz")
    code = pytest.main(["-q", "--rootdir", str(ROOT), "--hypothesis-show-statistics", folder], plugins=[counter])
    profile = os.environ.get("HYPOTHESIS_PROFILE", "suite")
    result = {
        "command": "TRITON_INTERPRET=1 " * INTERPRETED + f"HYPOTHESIS_PROFILE={profile} python tools/fuzz/run_long.py",
        "calls": sum(counter.calls.values()),
        "calls_by_test": counter.calls,
        "failed": counter.failed,
        "seconds": round(time.monotonic() - started),
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
