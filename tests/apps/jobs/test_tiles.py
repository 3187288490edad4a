"""Filters in tiles: the result of the whole image in less memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data

import permutohedral as ph
from permutohedral.filters import tiling as tiles
from permutohedral.filters.tiling import Tiling

# filters a file in tiles of a size, and prints the megabytes this took beyond those of the loaded modules
PEAK = """
import re, sys
from pathlib import Path
import torch
import permutohedral as ph

def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) / 1000

ph.bilateral_filter(torch.rand(3, 9, 9), sigma_space=1.0, sigma_color=1.0)
before = peak()
ph.apps.filter_image(*sys.argv[1:3], sigma_space=4.0, sigma_color=0.1, method="lattice", tile=int(sys.argv[3]))
print(peak() - before)
"""
PHOTOGRAPH = torch.from_numpy(data.astronaut()).permute(2, 0, 1).float() / 255


@pytest.mark.parametrize("sigmas", [(1.0, 0.05), (4.0, 0.1), (6.0, 0.5)], ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_tiles_equal_the_whole(sigmas: tuple[float, float], channels: int) -> None:
    image = PHOTOGRAPH[:channels, :300, :400]
    whole = ph.bilateral_filter(image, sigma_space=sigmas[0], sigma_color=sigmas[1])
    done: list[float] = []
    torch.testing.assert_close(
        tiles.filter_in_tiles(image, image, *sigmas, done.append, tile=150), whole, rtol=0, atol=1e-6
    )
    assert len(done) >= 4
    assert done[-1] == 1


def test_tiles_use_the_guide() -> None:
    values, guide = PHOTOGRAPH[:1], PHOTOGRAPH.flip(2)
    whole = ph.bilateral_filter(values, sigma_space=3.0, sigma_color=0.1, guide=guide)
    torch.testing.assert_close(tiles.filter_in_tiles(values, guide, 3.0, 0.1, tile=150), whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "halo", "sigmas"),
    [("exact", 0, (2.0, 0.1)), ("auto", 0, (2.0, 0.1)), ("auto", 0, (6.0, 0.5)), ("lattice", 1, (6.0, 0.5))],
)
def test_tiles_with_every_method(method: Any, halo: int, sigmas: tuple[float, float]) -> None:
    image = PHOTOGRAPH[:, :170, :260]
    whole = ph.bilateral_filter(
        image, sigma_space=sigmas[0], sigma_color=sigmas[1], guide=None, method=method, halo=halo
    )
    parts = tiles.filter_in_tiles(image, image, *sigmas, method=method, halo=halo, tile=100)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)


def test_tiles_with_the_axes_of_the_whole() -> None:
    """The colors of a tile alone would have other axes, and other nodes; so would one that begins within a cell."""
    random = torch.randn(3, 390, 400, generator=torch.Generator().manual_seed(0))
    image, sigmas, done = PHOTOGRAPH[:, 100:490, 100:500] + 0.1 * random, (10.0, 0.1), list[float]()
    assert ph.accuracy.explain_bilateral(image, sigma_space=sigmas[0], sigma_color=sigmas[1]).method == "grid"
    parts = tiles.filter_in_tiles(image, image, *sigmas, done.append, method="auto", tile=365)
    assert len(done) == 4
    torch.testing.assert_close(
        parts,
        ph.bilateral_filter(image, sigma_space=sigmas[0], sigma_color=sigmas[1], method="auto"),
        rtol=0,
        atol=1e-5,
    )


def test_large_image_takes_little_memory(tmp_path: Path) -> None:
    """The peak of another process is 693 MB without tiles, and 216 MB with them."""
    large = PHOTOGRAPH.repeat(1, 4, 4)[:, :2000, :2000]
    Image.fromarray((large * 255).byte().permute(1, 2, 0).numpy()).save(tmp_path / "a.bmp")
    arguments = [sys.executable, "-c", PEAK, str(tmp_path / "a.bmp"), str(tmp_path / "b.bmp"), "500"]
    megabytes = float(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)
    assert megabytes < 350


@pytest.mark.parametrize(
    ("covering", "shape"),
    [
        (Tiling.regular((7, 10), (3, 4), (2, 0)), (7, 10)),
        (Tiling.regular((7, 10), (20, 20), (1, 1)), (7, 10)),
        (Tiling(((2, 5), (1, 1, 8)), (1, 3)), (7, 10)),
        (Tiling.regular((0, 10), (3, 4), (2, 0)), (0, 10)),
    ],
)
def test_tiles_cover_the_array_once_and_read_their_margins(covering: Tiling, shape: tuple[int, ...]) -> None:
    image = np.arange(np.prod(shape)).reshape(shape)
    result, times = np.zeros_like(image), np.zeros(shape, int)
    for tile in covering:
        block = image[tile.read]
        assert tile.origin == tuple(part.start for part in tile.read)
        for read, write, margin, extent in zip(tile.read, tile.write, covering.margins, shape, strict=True):
            assert (read.start, read.stop) == (max(write.start - margin, 0), min(write.stop + margin, extent))
        result[tile.write] = block[tile.keep]
        times[tile.write] += 1
    np.testing.assert_array_equal(result, image)
    assert (times == 1).all()
    assert len(covering) == len(list(covering.indices()))
