"""Tiles give what the filter of the whole gives, and take less memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from skimage import data

import permutohedral as ph
from permutohedral.filters import landmarks
from permutohedral.geometry import reach
from permutohedral.pictures import tiles

# filters a file in tiles of a size, and prints the megabytes this took beyond those of the loaded modules
PEAK = """
import functools, re, sys
from pathlib import Path
import torch
import permutohedral as ph
from permutohedral.pictures import bilateral

def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) / 1000

ph.bilateral_filter(torch.rand(3, 9, 9), 1.0, 1.0)
before = peak()
bilateral.filter_in_tiles = functools.partial(bilateral.filter_in_tiles, tile=int(sys.argv[3]))
bilateral.Bilateral(4.0, 0.1).process(Path(sys.argv[1]), Path(sys.argv[2]), lambda share: None)
print(peak() - before)
"""
PHOTOGRAPH = torch.from_numpy(data.astronaut()).permute(2, 0, 1).float() / 255


@pytest.mark.parametrize("sigmas", [(1.0, 0.05), (4.0, 0.1), (6.0, 0.5)], ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_tiles_are_the_whole(sigmas: tuple[float, float], channels: int) -> None:
    picture = PHOTOGRAPH[:channels, :300, :400]
    whole = ph.bilateral_filter(picture, *sigmas)
    done: list[float] = []
    torch.testing.assert_close(
        tiles.filter_in_tiles(picture, picture, *sigmas, done.append, tile=150), whole, rtol=0, atol=1e-6
    )
    assert len(done) >= 4
    assert done[-1] == 1


def test_progress_of_one_tile() -> None:
    done: list[float] = []
    tiles.filter_in_tiles(PHOTOGRAPH[:, :20, :30], PHOTOGRAPH[:, :20, :30], 1.0, 0.1, done.append)
    assert done == [1]


def test_tiles_take_the_edges_of_another_picture() -> None:
    values, guide = PHOTOGRAPH[:1], PHOTOGRAPH.flip(2)
    whole = ph.bilateral_filter(values, 3.0, 0.1, guide=guide)
    torch.testing.assert_close(tiles.filter_in_tiles(values, guide, 3.0, 0.1, tile=150), whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "halo", "sigmas"),
    [("exact", 0, (2.0, 0.1)), ("auto", 0, (2.0, 0.1)), ("auto", 0, (6.0, 0.5)), ("separable", 1, (6.0, 0.5))],
)
def test_tiles_of_every_method(method: Any, halo: int, sigmas: tuple[float, float]) -> None:
    picture = PHOTOGRAPH[:, :170, :260]
    whole = ph.bilateral_filter(picture, *sigmas, None, method, halo)
    parts = tiles.filter_in_tiles(picture, picture, *sigmas, method=method, halo=halo, tile=100)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("sigmas", [(8.0, 0.2), (5.0, 0.3)], ids=str)
def test_tiles_with_the_landmarks_of_the_whole(sigmas: tuple[float, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where more pixels are rare than can be summed again: which ones is decided for the whole."""
    monkeypatch.setattr(landmarks, "_PAIRS", 0.5)
    picture = PHOTOGRAPH[:, 100:370, 100:460]
    assert ph.explain_bilateral(picture, *sigmas).startswith("landmarks: ")
    done: list[float] = []
    parts = tiles.filter_in_tiles(picture, picture, *sigmas, done.append, method="auto", tile=200)
    torch.testing.assert_close(parts, ph.bilateral_filter(picture, *sigmas, method="auto"), rtol=0, atol=1e-5)
    assert len(done) >= 4
    assert sorted(done) == done
    assert done[-1] == 1


def test_tiles_with_the_axes_of_the_whole() -> None:
    """The colors of a tile alone would have other axes, and other nodes; so would one that begins within a cell."""
    random = torch.randn(3, 390, 400, generator=torch.Generator().manual_seed(0))
    picture, sigmas, done = PHOTOGRAPH[:, 100:490, 100:500] + 0.1 * random, (8.0, 0.1), list[float]()
    assert ph.explain_bilateral(picture, *sigmas).startswith("grid: ")
    parts = tiles.filter_in_tiles(picture, picture, *sigmas, done.append, method="auto", tile=365)
    assert len(done) == 4
    torch.testing.assert_close(parts, ph.bilateral_filter(picture, *sigmas, method="auto"), rtol=0, atol=1e-5)


def test_the_margins_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three quarters of them would be seen, so the bound is not generous."""
    monkeypatch.setattr(ph, "reach", lambda axis, halo: 0.75 * reach(axis, halo=halo))
    whole = ph.bilateral_filter(PHOTOGRAPH, 4.0, 0.1)
    assert (tiles.filter_in_tiles(PHOTOGRAPH, PHOTOGRAPH, 4.0, 0.1, tile=150) - whole).abs().max() > 1e-5


def test_a_large_picture_takes_little_memory(tmp_path: Path) -> None:
    """A process of its own, whose peak is told by the system; without tiles it is 693 MB, with them 216."""
    large = PHOTOGRAPH.repeat(1, 4, 4)[:, :2000, :2000]
    Image.fromarray((large * 255).byte().permute(1, 2, 0).numpy()).save(tmp_path / "a.bmp")
    arguments = [sys.executable, "-c", PEAK, str(tmp_path / "a.bmp"), str(tmp_path / "b.bmp"), "500"]
    megabytes = float(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)
    assert megabytes < 350
