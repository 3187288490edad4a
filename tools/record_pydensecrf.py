"""Records what pydensecrf2 answers to the cases of the tests: `python tools/record_pydensecrf.py`.

Needs NumPy and pydensecrf2 (`pip install pydensecrf2`, which compiles), not this package. Writes
`tests/dropins/recorded.npz`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Run every case and write the answers."""
    sys.path.insert(0, str(ROOT / "tests"))
    import pydensecrf.densecrf as dcrf
    import pydensecrf_cases

    answers = [pydensecrf_cases.solve(dcrf, case) for case in pydensecrf_cases.CASES]
    recorded: dict[str, Any] = {name: np.stack([answer[name] for answer in answers]) for name in answers[0]}
    np.savez_compressed(ROOT / "tests" / "dropins" / "recorded.npz", **recorded)


if __name__ == "__main__":
    main()
