"""Airborne laser scans of four places with classes: the samples that come with LAStools.

zurich: houses and trees on 100 m, 66 points a square meter, partly of two flights. fusa: a settlement of 250 m, 4
points a square meter. lake: a wood on a slope by the water, 1.5 points. house: a house among trees on 42 m, 32 points.
Their license is not stated, so they are not downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from experiments.data.download import find_folder, verify
from experiments.data.sample import draw_town, is_sample
from permutohedral.apps.io.clouds import read_cloud
from permutohedral.errors import DataError

PlaceName = Literal["zurich", "fusa", "lake", "house"]

CLASSES = ("ground", "vegetation", "building")
# by number in the LAS standard; others (unclassified, noise, water, bridges, overlap) are not counted
_CLASS_OF = {2: 0, 3: 1, 4: 1, 5: 1, 6: 2}
UNKNOWN = -1

_SHA256 = {
    "zurich": "97fcb229ecea0896e86b9c9d694244b6547a9ca8e7bffb81ca2dd071b76f75d4",
    "fusa": "3d75eca2d8026e6f4b07d37b4aa7e1fe81cb6f800b0f8f96873e1dbab31a55c9",
    "lake": "8e00bfb118d56e23bce3f68ade687e58ec6016962c9e060e38e96d87db5ce4b9",
    "house": "38450691c085a8535bb01a26faa57e4980a5ddddc01e1733d30fe5e7f31e05e3",
}
_SOURCE = "the folder data of LAStools/LAStools on GitHub"


@dataclass(frozen=True)
class Scan:
    """The points of a place or of a part of it.

    Attributes:
        name: of the place.
        positions: float32 `[points, 3]`, meters from the middle of the whole scan.
        labels: int64 `[points]`, the number of a class in `CLASSES`, or -1.
    """

    name: str
    positions: Tensor
    labels: Tensor

    def select(self, chosen: Tensor) -> Scan:
        """Return some of the points, by number or by a mask."""
        return Scan(self.name, self.positions[chosen], self.labels[chosen])


def load_scan(name: PlaceName, folder: str | Path | None = None) -> Scan:
    """Read the scan of a place.

    Args:
        name: of the place.
        folder: holds the folder lidar, or is it. Default: `PERMUTOHEDRAL_DATA`.

    Raises:
        DataError: a file is missing or damaged.
    """
    if is_sample(folder):
        return Scan(name, *draw_town(tuple(_SHA256).index(name)))
    root = find_folder("lidar", folder, f"NAME.laz, or the same points as NAME.npz, from {_SOURCE}")
    path = root / f"{name}.laz"
    if path.is_file():
        verify(path.read_bytes(), _SHA256[name], path)
    else:
        path = root / f"{name}.npz"
    if not path.is_file():
        raise DataError(f"{root / name}.laz is missing; take it from {_SOURCE}")
    cloud = read_cloud(path)
    if cloud.labels is None:
        raise DataError(f"the scan of {name} has no classes")
    middle = (cloud.positions.amin(dim=0) + cloud.positions.amax(dim=0)) / 2
    return Scan(name, (cloud.positions - middle).float(), to_classes(cloud.labels))


def to_classes(labels: Tensor) -> Tensor:
    """Map numbers of the LAS standard to those of `CLASSES`, int64; -1 for other classes.

    >>> to_classes(torch.tensor([2, 5, 6, 12])).tolist()
    [0, 1, 2, -1]
    """
    table = torch.full((256,), UNKNOWN, dtype=torch.int64)
    for number, place in _CLASS_OF.items():
        table[number] = place
    return table[labels.long()]


def halve(scan: Scan) -> tuple[Scan, Scan]:
    """Return the west and the east half of a scan."""
    west = scan.positions[:, 0] < 0
    return scan.select(west), scan.select(~west)
