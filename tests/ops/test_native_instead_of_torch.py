"""What the compiled core does instead of torch: the same numbers, and no threads but its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from support import assert_close
from torch import Tensor

import permutohedral as ph
from permutohedral.filters import learned
from permutohedral.filters.normalization import Normalization
from permutohedral.ops import dispatch

_BLOCKER = next(backend for backend in dispatch._BACKENDS if backend.name == "native").blocker("cpu")
pytestmark = pytest.mark.skipif(_BLOCKER is not None, reason=f"the native backend does not run here: {_BLOCKER}")

if _BLOCKER is None:
    from permutohedral.ops import native

# in a new process: how many threads there are more after each call
THREADS = """
import os
import numpy as np
import torch
import permutohedral as ph

random = np.random.default_rng(0)
picture = torch.from_numpy(random.random((3, 300, 400), dtype=np.float32))
values = torch.from_numpy(random.random((60_000, 8), dtype=np.float32))
features = torch.from_numpy(10 * random.random((60_000, 3), dtype=np.float32))
layer = ph.nn.PermutohedralConv(8, 8, 3).requires_grad_(False)
torch.set_num_threads(4)
before = len(os.listdir("/proc/self/task"))
for call in (
    lambda: ph.bilateral_filter(picture, 4.0, 0.1),
    lambda: ph.gaussian_filter(values, features),
    lambda: layer(values, features),
):
    call()
    print(len(os.listdir("/proc/self/task")) - before)
"""


def composed(guide: Tensor, sigma_space: list[float], sigma_color: list[float], origin: tuple[int, ...]) -> Tensor:
    """By torch, one step after another."""
    axes, dtype = len(origin), guide.dtype
    space = guide.shape[-axes:]
    lines = [
        torch.arange(first, first + extent, dtype=dtype) / sigma
        for first, extent, sigma in zip(origin, space, sigma_space, strict=True)
    ]
    places = torch.stack(torch.meshgrid(*lines, indexing="ij"), dim=-1)
    colors = guide.movedim(-axes - 1, -1) / torch.tensor(sigma_color, dtype=dtype)
    joined = torch.cat([places.expand(*colors.shape[:-1], axes), colors], dim=-1)
    return joined.flatten(-axes - 1, -2)


@pytest.mark.parametrize(
    ("shape", "origin"),
    [
        ((3, 5, 7), (0, 0)),
        ((1, 1, 1), (9, 70_000)),
        ((2, 3, 65, 33), (0, 17)),
        ((2, 2, 1, 130, 129), (0, 0)),
        ((2, 4, 5, 6), (100, 0, 3)),
        ((3, 11), (5,)),
        ((0, 4, 5), (0, 0)),
        ((3, 0, 5), (0, 0)),
        ((0, 2, 4, 5), (1, 1)),
    ],
    ids=str,
)
def test_features_of_pictures(shape: tuple[int, ...], origin: tuple[int, ...], dtype: torch.dtype) -> None:
    guide, axes = torch.rand(shape, dtype=dtype), len(origin)
    sigmas = [3.0, 1.7, 0.4][:axes], [0.07 * (1 + channel) for channel in range(shape[-axes - 1])]
    last = guide.movedim(-axes - 1, -1).contiguous().movedim(-1, -axes - 1)
    # as it lies in memory usually, with channels last, and otherwise
    for given in (guide, last, guide.flip(-1).transpose(0, -1).contiguous().transpose(0, -1)):
        assert torch.equal(native.picture_features(given, *sigmas, origin), composed(given, *sigmas, origin))


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16], ids=str)
def test_features_of_sixteen_bits(narrow: torch.dtype) -> None:
    guide = torch.rand(3, 6, 7).to(narrow)
    sigmas = [2.0, 2.0], [0.1] * 3
    assert torch.equal(native.picture_features(guide, *sigmas, (0, 0)), composed(guide.float(), *sigmas, (0, 0)))


@pytest.mark.parametrize("points", [1, 7, 2048, 5000])
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_planes_and_rows_give_the_same(points: int, channels: int, dtype: torch.dtype) -> None:
    planes, features = torch.rand(channels, points, dtype=dtype), 9 * torch.rand(points, 2, dtype=dtype)
    actual = ph.gaussian_filter(planes.mT, features)
    assert torch.equal(actual, ph.gaussian_filter(planes.mT.contiguous(), features))


@pytest.mark.parametrize("apart", [False, True], ids=["same_points", "different_points"])
@pytest.mark.parametrize("normalization", ["none", "density"])
def test_the_learned_filter_at_once_and_in_steps(normalization: Any, apart: bool, dtype: torch.dtype) -> None:
    features = 20 * torch.rand(3000, 2, dtype=dtype)
    lattice = ph.build_lattice(features, features[:900] + 0.1 if apart else None)
    values, weight, bias = (torch.rand(shape, dtype=dtype) for shape in ((3000, 6), (7, 3, 4), (4,)))
    results = []
    for run in (learned.filter_with_bias, lambda v, at, w, b, n: learned.compose(v, w, b, at, n)):
        leaves = [tensor.clone().requires_grad_() for tensor in (values, weight, bias)]
        output = run(leaves[0], lattice, leaves[1], leaves[2], normalization)
        results.append((output, *torch.autograd.grad(output.sum(), leaves)))
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected.detach())
    # the forward pass to the bit
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(learned.filter_with_bias(values, lattice, weight, bias, normalization), results[0][0])


@pytest.mark.parametrize(
    ("narrow", "normalization"), [(torch.float16, "none"), (torch.bfloat16, "none"), (torch.bfloat16, "density")]
)
def test_sixteen_bits_are_rounded_in_every_step(narrow: torch.dtype, normalization: Normalization) -> None:
    lattice = ph.build_lattice(20 * torch.rand(3000, 2))
    values, weight, bias = (torch.rand(shape).to(narrow) for shape in ((3000, 6), (7, 3, 4), (4,)))
    actual = learned.filter_with_bias(values, lattice, weight, bias, normalization)
    assert torch.equal(actual, learned.compose(values, weight, bias, lattice, normalization))


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_no_other_threads_are_waited_for() -> None:
    """Those of torch would wait without sleep, for long if the machine is busy."""
    found = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["3", "3", "3"]
