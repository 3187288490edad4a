"""Pictures as points, in the compiled core: the same numbers as by torch, and no threads but its own."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.ops import dispatch

_REFUSAL = next(backend for backend in dispatch._BACKENDS if backend.name == "native").refusal("cpu")
pytestmark = pytest.mark.skipif(_REFUSAL is not None, reason=f"the native backend does not run here: {_REFUSAL}")

if _REFUSAL is None:
    from permutohedral.ops import native

# a filter in a new process: how many threads were there before, and after
THREADS = """
import os, sys
import numpy as np
import torch
import permutohedral as ph

picture = torch.from_numpy(np.random.default_rng(0).random((3, 300, 400), dtype=np.float32))
torch.set_num_threads(4)
before = len(os.listdir("/proc/self/task"))
ph.bilateral_filter(picture, 4.0, 0.1)
print(len(os.listdir("/proc/self/task")) - before)
"""


def composed(guide: Tensor, sigma_space: float, sigma_range: float) -> Tensor:
    """By torch, one step after another."""
    height, width = guide.shape[-2:]
    positions = ph.position_features(height, width, sigma_space, dtype=guide.dtype)
    return ph.join_features(positions, ph.color_features(guide, sigma_range))


@pytest.mark.parametrize(
    "shape", [(3, 5, 7), (1, 1, 1), (2, 3, 65, 33), (2, 2, 1, 130, 129), (0, 4, 5), (3, 0, 5)], ids=str
)
def test_features_of_pictures(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    guide = torch.rand(shape, dtype=dtype)
    assert torch.equal(native.picture_features(guide, 3.0, 0.07), composed(guide, 3.0, 0.07))
    flipped = guide.movedim(-1, -2)
    assert torch.equal(native.picture_features(flipped, 3.0, 0.07), composed(flipped, 3.0, 0.07))


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16], ids=str)
def test_features_of_sixteen_bits(narrow: torch.dtype) -> None:
    guide = torch.rand(3, 6, 7).to(narrow)
    assert torch.equal(native.picture_features(guide, 2.0, 0.1), composed(guide.float(), 2.0, 0.1))


@pytest.mark.parametrize("points", [1, 7, 2048, 5000])
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_planes_and_rows_give_the_same(points: int, channels: int, dtype: torch.dtype) -> None:
    planes, features = torch.rand(channels, points, dtype=dtype), 9 * torch.rand(points, 2, dtype=dtype)
    actual = ph.gaussian_filter(planes.mT, features)
    assert torch.equal(actual, ph.gaussian_filter(planes.mT.contiguous(), features))


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_no_other_threads_are_waited_for() -> None:
    """Those of torch would wait without sleep, for long if the machine is busy."""
    found = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)
    assert int(found.stdout) == 3
