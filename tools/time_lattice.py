"""Times the lattice of the installation it runs in; `tools/accuracy_pictures.py --before` starts it.

It says where its package lies, one line, and then answers pictures: of each a line of JSON, with the shape, the
bandwidths, and then the pixels come in; the processor time of one thread, in milliseconds, goes out, as a line. It uses
nothing but what versions of the package have in common.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

import permutohedral as ph


def main() -> None:
    """Answer until the input ends."""
    torch.set_num_threads(1)
    print(Path(ph.__file__).parent, flush=True)
    while line := sys.stdin.buffer.readline():
        asked = json.loads(line)
        pixels = np.frombuffer(sys.stdin.buffer.read(4 * int(np.prod(asked["shape"]))), dtype=np.float32)
        image = torch.from_numpy(pixels.reshape(asked["shape"]).copy())
        started = time.process_time()
        ph.bilateral_filter(image, asked["sigma_space"], asked["sigma_range"], method="separable")
        print(1e3 * (time.process_time() - started), flush=True)


if __name__ == "__main__":
    main()
