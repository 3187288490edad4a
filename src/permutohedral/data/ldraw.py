"""The shapes of the LDraw parts library as point clouds: bricks and other parts of toys, with their categories.

They come with Debian's package `ldraw-parts-free` (CC BY 4.0), which is read as it is. A part with a print has the same
shape as the part without: such are joined. Parts whose numbers begin alike are variants of each other, so a split into
parts to learn from and parts to test on goes by that number.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.data.download import CACHE_VARIABLE, DATA_VARIABLE, checksum, damaged
from permutohedral.errors import DataError

PACKAGE = "ldraw-parts-free_2502+dfsg-2_all.deb"
_SHA256 = "da276e526ea7eea3ec8776712286c21d65465c6a320e1c1256e5e0e81a37e4bf"
CONVERTED = "parts.npz"
# points of a cloud, and shapes that a category needs to be a class
POINTS, FEWEST = 1024, 50
# of the parts that are tested on: those whose base number has this rest
_TESTED, _OF = 0, 4
# a file may name itself, by mistake
_DEEPEST = 12
_NOT_SHAPES = ("Sticker",)

_PRINTED = re.compile(r"^(.*\d[a-z]?)p[0-9a-z]{1,4}$")
_BASE = re.compile(r"^[a-z]*(\d+)")


@dataclass(frozen=True)
class Parts:
    """Parts as clouds.

    Attributes:
        classes: names of the categories.
        positions: float32 `[parts, points, 3]`, around the origin, the farthest point at distance 1.
        labels: int64 `[parts]`, the number of a class.
        bases: int64 `[parts]`, the number that variants of a part share.
    """

    classes: tuple[str, ...]
    positions: Tensor
    labels: Tensor
    bases: Tensor

    def select(self, chosen: Tensor) -> Parts:
        """Some of the parts, by number or by a mask."""
        return Parts(self.classes, self.positions[chosen], self.labels[chosen], self.bases[chosen])

    def split(self) -> tuple[Parts, Parts]:
        """Parts to learn from, and about a quarter to test on; variants of a part are on one side."""
        # spread over all numbers, of which neighbors are often alike
        tested = (self.bases * 2_654_435_761 >> 7) % _OF == _TESTED
        return self.select(~tested), self.select(tested)


def load_parts(folder: str | Path | None = None) -> Parts:
    """Read the parts.

    Args:
        folder: holds the folder ldraw, or is it; default: `PERMUTOHEDRAL_DATA`. It holds the package, which is
            converted once, into the user's cache; or `parts.npz`, as it lies there then.

    Raises:
        DataError: there is no folder, the file is missing or damaged.
    """
    given = folder or os.environ.get(DATA_VARIABLE)
    how = f"`apt-get download ldraw-parts-free` gets {PACKAGE}; point --data or {DATA_VARIABLE} to its folder"
    if not given:
        raise DataError(f"the parts are not downloaded: {how}")
    root = Path(given).expanduser()
    root = root / "ldraw" if (root / "ldraw").is_dir() else root
    if (root / CONVERTED).is_file():
        return _read(root / CONVERTED)
    package = root / PACKAGE
    if not package.is_file():
        raise DataError(f"{package} is missing: {how}")
    import pooch

    cache = Path(os.environ.get(CACHE_VARIABLE) or pooch.os_cache("permutohedral")) / "ldraw" / CONVERTED
    if not cache.is_file():
        convert(package, cache)
    return _read(cache)


def convert(package: Path, output: Path, limit: int | None = None) -> None:
    """Sample all parts of the package and write them into one file: minutes.

    Args:
        package: Debian's.
        output: the file to write, whole or not at all.
        limit: take so many of the parts, for a trial.
    """
    content = package.read_bytes()
    if checksum(content) != _SHA256:
        raise damaged(package)
    files = read_package(content)
    categories = {name: category for name, category in find_shapes(files).items() if category not in _NOT_SHAPES}
    common = sorted(name for name, count in Counter(categories.values()).items() if count >= FEWEST)
    meshes, random = Meshes(files), np.random.default_rng(0)
    positions, labels, bases = [], [], []
    for name in sorted(name for name, category in categories.items() if category in common)[:limit]:
        triangles = meshes.of(f"parts/{name}")
        base = _BASE.match(name)
        if base is None or not len(triangles):
            continue
        positions.append(to_int16(sample_surface(triangles, POINTS, random)))
        labels.append(common.index(categories[name]))
        bases.append(int(base[1]))
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_suffix(f".{os.getpid()}.part.npz")
    np.savez_compressed(
        part,
        positions=np.stack(positions),
        labels=np.array(labels),
        bases=np.array(bases),
        classes=np.array(common),
    )
    part.replace(output)


def _read(path: Path) -> Parts:
    try:
        with np.load(path) as arrays:
            positions = torch.from_numpy(arrays["positions"]).float() / 32767
            labels, bases = (torch.from_numpy(arrays[name]).long() for name in ("labels", "bases"))
            return Parts(tuple(map(str, arrays["classes"])), positions, labels, bases)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} holds no parts: {error!r}; delete it, and it is made again") from error


def read_package(content: bytes) -> dict[str, str]:
    """The files of the library in a package of Debian, by their names below its folder, in lower case."""
    files = {}
    with tarfile.open(fileobj=io.BytesIO(_member(content, "data.tar"))) as archive:
        for entry in archive:
            _, found, name = entry.name.lower().partition("/ldraw/")
            opened = archive.extractfile(entry) if found and name.endswith(".dat") else None
            if opened is not None:
                files[name] = opened.read().decode("utf-8", "replace")
    return files


def _member(content: bytes, name: str) -> bytes:
    """The member of an `ar` archive whose name begins so: a header of 60 bytes before each, at even places."""
    place = 8
    while place + 60 <= len(content):
        header = content[place : place + 60]
        size = int(header[48:58])
        if header[:16].decode("ascii", "replace").startswith(name):
            return content[place + 60 : place + 60 + size]
        place += 60 + size + size % 2
    raise DataError(f"the package has no member {name}")


def find_shapes(files: Mapping[str, str]) -> dict[str, str]:
    """The category of every distinct shape, by the name of its file in the folder parts.

    >>> brick = "0 Brick  2 x  4\\n0 !LDRAW_ORG Part UPDATE 2004-03"
    >>> find_shapes({"parts/3001.dat": brick, "parts/3001p01.dat": brick, "parts/s/3001s01.dat": brick})
    {'3001.dat': 'Brick'}
    """
    shapes: dict[str, str] = {}
    seen = set()
    # the shortest name of a shape first: that without a print
    for path in sorted(files, key=lambda path: (len(path), path)):
        folder, _, name = path.rpartition("/")
        category = _category(files[path]) if folder == "parts" else None
        if category is None:
            continue
        stem = name.removesuffix(".dat")
        printed = _PRINTED.match(stem)
        shape = printed[1] if printed else stem
        if shape not in seen:
            seen.add(shape)
            shapes[name] = category
    return shapes


def _category(text: str) -> str | None:
    """Of a part that is one; None for parts of parts, aliases, and such as have moved."""
    lines = text.splitlines()
    title = lines[0][2:].strip() if lines else ""
    if not title or title[0] in "~_=|":
        return None
    kind = next((line.split() for line in lines if line.startswith("0 !LDRAW_ORG")), [])
    if len(kind) < 3 or kind[2] != "Part" or "Alias" in kind or "Physical_Colour" in kind:
        return None
    named = next((line for line in lines if line.startswith("0 !CATEGORY")), None)
    return title.split()[0] if named is None else named[len("0 !CATEGORY") :].strip()


class Meshes:
    """The triangles of files, with those of the files they name; each is read once."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files
        self._known: dict[str, NDArray[np.float32]] = {}

    def of(self, path: str, depth: int = 0) -> NDArray[np.float32]:
        """float32 `[triangles, 3, 3]` of a file; none if it is missing."""
        if path not in self._known:
            found = [] if depth > _DEEPEST else list(self._read(path, depth))
            self._known[path] = np.concatenate([np.zeros((0, 3, 3), np.float32), *found])
        return self._known[path]

    def _read(self, path: str, depth: int) -> Iterator[NDArray[np.float32]]:
        flat: list[list[float]] = []
        for line in self._files.get(path, "").splitlines():
            words = line.split()
            kind = words[0] if words else ""
            if kind == "1" and len(words) >= 15:
                numbers = np.array(words[2:14], np.float32)
                child = self.of(self._find(" ".join(words[14:])), depth + 1)
                yield child @ numbers[3:].reshape(3, 3).T + numbers[:3]
            elif kind == "3" and len(words) >= 11:
                flat.append([float(word) for word in words[2:11]])
            elif kind == "4" and len(words) >= 14:
                corners = [float(word) for word in words[2:14]]
                flat += [corners[:9], corners[:3] + corners[6:]]
        yield np.array(flat, np.float32).reshape(-1, 3, 3)

    def _find(self, name: str) -> str:
        name = name.lower().replace("\\", "/")
        return next((path for path in (f"parts/{name}", f"p/{name}") if path in self._files), name)


def sample_surface(triangles: NDArray[np.float32], points: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Points spread evenly over triangles, moved and scaled into the unit ball, float32 `[points, 3]`.

    >>> flat = np.array([[[0, 0, 0], [9, 0, 0], [0, 9, 0]]], np.float32)
    >>> cloud = sample_surface(flat, 100, np.random.default_rng(0))
    >>> cloud.shape, round(float(np.linalg.norm(cloud, axis=1).max()), 3)
    ((100, 3), 1.0)
    """
    first, along, across = triangles[:, 0], triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]
    area = np.linalg.norm(np.cross(along, across), axis=1).astype(np.float64)
    if not area.sum() > 0:
        area = np.ones(len(area))
    chosen = random.choice(len(triangles), points, p=area / area.sum())
    u, v = random.random((2, points, 1), dtype=np.float32)
    # the other half of the parallelogram folds back
    folded = u + v > 1
    u, v = np.where(folded, 1 - u, u), np.where(folded, 1 - v, v)
    cloud = first[chosen] + u * along[chosen] + v * across[chosen]
    cloud = cloud - (cloud.min(axis=0) + cloud.max(axis=0)) / 2
    scaled: NDArray[np.float32] = cloud / max(float(np.linalg.norm(cloud, axis=1).max()), 1e-6)
    return scaled


def to_int16(cloud: NDArray[np.float32]) -> NDArray[np.int16]:
    """Numbers from -1 to 1 as 16 bits."""
    return (cloud * 32767).round().astype(np.int16)
