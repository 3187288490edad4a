"""The permutohedral encoding in Triton's interpreter against the reference."""

from __future__ import annotations

import pytest
import torch
from support import assert_close
from torch import Tensor

import permutohedral as ph
from permutohedral.ops import reference
from permutohedral.ops.triton import BACKEND as kernels


def sample(
    dimension: int, levels: int, channels: int, points: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor], Tensor]:
    """Positions, directions, table, tables of the levels, and a gradient."""
    sigmas = torch.logspace(0, -1, levels)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    layer = ph.nn.PermutohedralEncoding(dimension, levels, channels, 50, sigmas=sigmas, dtype=wide)
    positions, directions = torch.rand(points, dimension, dtype=wide), torch.randn(points, dimension, dtype=wide)
    table, gradient = torch.randn(levels, 50, channels), torch.randn(points, levels * channels)
    return positions, directions, table.to(dtype), (layer.transforms, layer.strides), gradient.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("dimension", "levels", "channels", "points"),
    [(1, 1, 1, 5), (2, 3, 2, 40), (3, 5, 2, 1), (4, 2, 3, 17), (3, 1, 20, 9)],
)
def test_encodings(dimension: int, levels: int, channels: int, points: int, dtype: torch.dtype) -> None:
    positions, directions, table, plan, gradient = sample(dimension, levels, channels, points, dtype)
    for along in (None, directions):
        inputs = positions, along, table
        assert_close(kernels.encode(*inputs, *plan), reference.encode(*inputs, *plan))
        for wanted in ((True, True), (True, False), (False, True)):
            expected = reference.encode_backward(*inputs, gradient, *plan, *wanted)
            for found, truth in zip(kernels.encode_backward(*inputs, gradient, *plan, *wanted), expected, strict=True):
                assert found.dtype == truth.dtype
                assert_close(found, truth)


@pytest.mark.parametrize("dimension", [9, 16])
def test_encodings_of_many_dimensions(dimension: int) -> None:
    positions, directions, table, plan, gradient = sample(dimension, 2, 2, 5, torch.float64)
    inputs = positions, directions, table
    assert_close(kernels.encode(*inputs, *plan), reference.encode(*inputs, *plan))
    expected = reference.encode_backward(*inputs, gradient, *plan, True, True)
    for found, truth in zip(kernels.encode_backward(*inputs, gradient, *plan, True, True), expected, strict=True):
        assert_close(found, truth)


def test_encodings_of_no_points_and_in_deterministic_mode() -> None:
    positions, _, table, plan, gradient = sample(3, 2, 2, 0, torch.float32)
    assert kernels.encode(positions, None, table, *plan).shape == (0, 4)
    to_positions, to_table = kernels.encode_backward(positions, None, table, gradient, *plan, True, True)
    assert (to_positions.shape, bool((to_table == 0).all())) == ((0, 3), True)
    torch.use_deterministic_algorithms(True)
    positions, _, table, plan, gradient = sample(3, 2, 2, 30, torch.float32)
    inputs = positions, None, table, gradient, *plan
    found, expected = kernels.encode_backward(*inputs, True, True), reference.encode_backward(*inputs, True, True)
    assert_close(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
