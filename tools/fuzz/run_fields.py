"""Runs random programs for the drop-in of pydensecrf: `python tools/fuzz/run_fields.py 100000`.

Writes `results/reliability/fuzz-fields.json`: how many programs there were, and what they ended with, now and then;
with `--resume` after those that it has. A crash or a NaN ends it before.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "results" / "reliability" / "fuzz-fields.json"
# programs between two writes
PART = 5000


def main(programs: int, resume: bool) -> None:
    """Run and write."""
    sys.path.insert(0, str(ROOT / "tests"))
    from fuzz.field_calls import run_program

    before: dict[str, Any] = {"programs": 0, "first_outcomes": {}, "seconds": 0}
    if resume:
        before = json.loads(PATH.read_text())
    outcomes: collections.Counter[str] = collections.Counter(before["first_outcomes"])
    started = time.process_time()
    for first in range(before["programs"], programs, PART):
        last = min(first + PART, programs)
        outcomes.update(run_program(seed) for seed in range(first, last))
        result = {
            "command": f"python tools/fuzz/run_fields.py {last}",
            "programs": last,
            "first_outcomes": dict(sorted(outcomes.items())),
            "seconds": before["seconds"] + round(time.process_time() - started),
        }
        PATH.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=int)
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    main(arguments.programs, arguments.resume)
