"""Record some test vectors of permutohedral_encoding: `python tools/record_encoding.py CHECKOUT`.

CHECKOUT is a clone of https://github.com/roym899/permutohedral_encoding (MIT License, Copyright (c) 2023 Leonard Bruns,
2021 University of Bonn). Of the first points in its tests/test_files, and of the rows of the table that they read,
`tests/dropins/recorded_encoding.npz` is written.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import encoding_oracle  # noqa: E402

POINTS = 12
SIGMAS = np.geomspace(1.0, 1e-4, 24)


def main() -> None:
    """Select points and rows, and write them."""
    folder = Path(sys.argv[1]) / "tests" / "test_files"
    vectors = {
        path.stem: torch.load(path, map_location="cpu", weights_only=True) for path in sorted(folder.glob("*.pt"))
    }
    table, shifts = vectors["encoding_state_dict"].values()
    positions = vectors["in_points"].detach().numpy()[:POINTS]
    read = np.zeros(table.shape[:2], bool)
    for level, sigma in enumerate(SIGMAS):
        keys, _ = encoding_oracle.find_simplices((positions.astype(np.longdouble) + shifts[level].numpy()) / sigma)
        read[level, encoding_oracle.hash_keys(keys, table.shape[1])] = True
    np.savez_compressed(
        ROOT / "tests" / "dropins" / "recorded_encoding.npz",
        positions=positions,
        shifts=shifts.numpy(),
        rows=np.argwhere(read).astype(np.int16),
        values=table.detach().numpy()[read],
        features=vectors["out_features"].detach().numpy()[:POINTS],
        gradient=vectors["in_points_grad"].numpy()[:POINTS],
    )


if __name__ == "__main__":
    main()
