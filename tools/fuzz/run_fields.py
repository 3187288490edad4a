"""Runs random programs for the drop-in of pydensecrf: `python tools/fuzz/run_fields.py 100000`.

Writes `results/reliability/fuzz-fields.json`: how many programs there were, and what they ended with. A crash or a NaN
ends it before.
"""

from __future__ import annotations

import collections
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(programs: int) -> None:
    """Run and write."""
    sys.path.insert(0, str(ROOT / "tests"))
    from fuzz.field_calls import run_program

    started = time.monotonic()
    outcomes = collections.Counter(run_program(seed) for seed in range(programs))
    result = {
        "command": f"python tools/fuzz/run_fields.py {programs}",
        "programs": programs,
        "first_outcomes": dict(sorted(outcomes.items())),
        "seconds": round(time.monotonic() - started),
    }
    path = ROOT / "results" / "reliability" / "fuzz-fields.json"
    path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
