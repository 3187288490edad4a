"""Convert LDraw parts to clouds: `python -m experiments.data.ldraw LIBRARY OUTPUT`.

LIBRARY is the folder `ldraw` of the Debian package `ldraw-parts-free` or of the download of ldraw.org, with `parts` and
`p`. The parts are under CC BY 4.0. OUTPUT is a folder of clouds as in
`experiments/points/PROTOCOL.md`.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import zlib
from collections import defaultdict
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from permutohedral.errors import DataError

LEAST_SHAPES, POINTS = 25, 1024
# percent of the base numbers
_SPLITS = (("train", 60), ("validation", 75), ("test", 100))
# base number, variant of the shape, then suffixes of prints, stickers and composites
_NAME = re.compile(r"([a-z]*\d+)([a-oq-z]?)((?:p|d|c)\w*)?$")
# not parts: moved or unlisted files, aliases, and things without a shape of their own
_SKIPPED = re.compile(r"[~=_|]|sticker", re.IGNORECASE)


class Library:
    """Triangles of the files of a parts library."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "parts").is_dir():
            raise DataError(f"{folder} has no folder parts; pass the folder ldraw of the library")
        roots = [folder / "parts", folder / "p"]
        # references are relative to either folder, and in any case
        self.paths = {
            path.relative_to(root).as_posix().lower(): path for root in reversed(roots) for path in root.rglob("*.dat")
        }
        self.triangles = lru_cache(maxsize=2000)(self._read)

    def _read(self, name: str) -> NDArray[np.float32]:
        """Return the triangles of a file and of the files it refers to, `[triangles, 3, 3]`."""
        if name not in self.paths:
            raise DataError(f"{self.folder} lacks {name}, which a part refers to")
        found, own = [], []
        for line in self.paths[name].read_text(errors="replace").splitlines():
            words = line.split()
            if not words or words[0] not in "134":
                continue
            if words[0] == "1":
                numbers = np.array(words[2:14], dtype=np.float32)
                inner = self.triangles(" ".join(words[14:]).replace("\\", "/").lower())
                found.append(inner @ numbers[3:].reshape(3, 3).T + numbers[:3])
            else:
                corners = np.array(words[2:], dtype=np.float32).reshape(-1, 3)
                own += [corners[[0, 1, 2]]] + ([corners[[0, 2, 3]]] if words[0] == "4" else [])
        return np.concatenate([np.array(own, dtype=np.float32).reshape(-1, 3, 3), *found])

    def parts(self) -> dict[str, dict[str, str]]:
        """Return one file of each distinct shape by category: base number and variant, and its file."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for path in sorted((self.folder / "parts").glob("*.dat")):
            match = _NAME.match(path.stem.lower())
            lines = path.read_text(errors="replace").splitlines()
            title = lines[0][1:].strip() if lines else ""
            if match is None or not title or _SKIPPED.match(title):
                continue
            named = [line.split("!CATEGORY", 1)[1].strip() for line in lines[:20] if "!CATEGORY" in line]
            # a shape without suffix comes first in the order of names
            found[named[0] if named else title.split()[0]].setdefault(match[1] + match[2], path.name.lower())
        return {name: shapes for name, shapes in sorted(found.items()) if len(shapes) >= LEAST_SHAPES}


def sample_surface(triangles: NDArray[np.float32], points: int, seed: int) -> NDArray[np.float32]:
    """Return random points on triangles, uniform in area, scaled to the unit ball; the last coordinate is up.

    >>> square = np.array([[[0, 0, 0], [2, 0, 0], [2, 0, 2]], [[0, 0, 0], [2, 0, 2], [0, 0, 2]]], dtype=np.float32)
    >>> sample_surface(square, 100, seed=0)[:, 2].tolist() == [0.0] * 100
    True
    """
    random = np.random.default_rng(seed)
    edges = triangles[:, 1:] - triangles[:, :1]
    areas = np.linalg.norm(np.cross(edges[:, 0], edges[:, 1]), axis=1)
    chosen = random.choice(len(triangles), points, p=areas / areas.sum())
    shares = random.random((points, 2))
    # points beyond the diagonal of the parallelogram come back
    shares = np.where(shares.sum(axis=1, keepdims=True) > 1, 1 - shares, shares)
    found = triangles[chosen, 0] + (shares[:, :, None] * edges[chosen]).sum(axis=1)
    found = found - (found.max(axis=0) + found.min(axis=0)) / 2
    # y points down in the library
    found = np.stack([found[:, 0], found[:, 2], -found[:, 1]], axis=1)
    unit: NDArray[np.float32] = (found / np.linalg.norm(found, axis=1).max()).astype(np.float32)
    return unit


def split_of(base: str) -> str:
    """Return the part of a base number.

    >>> [split_of(base) for base in ("3001", "3003", "3004", "3010")]
    ['train', 'train', 'test', 'train']
    """
    percent = int(hashlib.sha256(base.encode()).hexdigest(), 16) % 100
    return next(name for name, limit in _SPLITS if percent < limit)


def convert(folder: Path, output: Path, points: int = POINTS) -> dict[str, int]:
    """Write the clouds of a library, and return the number of shapes of each category."""
    library = Library(folder)
    categories = library.parts()
    for label, shapes in enumerate(categories.values()):
        for shape, name in shapes.items():
            base = re.match(r"[a-z]*\d+", shape)
            assert base is not None
            path = output / split_of(base[0]) / f"{shape}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            cloud = sample_surface(library.triangles(name), points, zlib.crc32(shape.encode()))
            # 16 bits resolve a two-thousandth of the radius, and halve the files
            np.savez_compressed(path, positions=cloud.astype(np.float16), labels=np.int64(label))
    (output / "classes.txt").write_text("\n".join(categories))
    return {name: len(shapes) for name, shapes in categories.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    for category, number in convert(arguments.library, arguments.output).items():
        print(f"{category:30}{number}")
