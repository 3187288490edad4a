"""OpenCV's bilateral solver of noisy maps, for `noisy_maps.py`: `PYTHON opencv_solver.py FOLDER SETTINGS`.

It runs in any Python whose OpenCV was built with Eigen, as Debian's is, and needs nothing of this package. The folder
holds arrays, the settings are a list in JSON; the errors and seconds of each on each map are the last line printed.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np


def main() -> None:
    """Try all settings on all maps."""
    # not where tests are collected, which need none
    import cv2
    from cv2 import ximgproc

    cv2.setNumThreads(1)
    found = []
    for settings in json.loads(sys.argv[2]):
        scores = []
        for path in sorted(Path(sys.argv[1]).glob("*.npz")):
            with np.load(path) as scene:
                guide, noisy, confidence, truth = (scene[name] for name in ("guide", "noisy", "confidence", "truth"))
            began = time.process_time()
            solved = ximgproc.fastBilateralSolverFilter(guide, noisy, confidence, None, *settings)
            seconds = time.process_time() - began
            scores.append([float(np.sqrt(np.mean((solved.reshape(truth.shape) - truth) ** 2))), seconds])
        found.append(scores)
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
