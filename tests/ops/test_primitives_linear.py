"""The linear primitives of every backend: splat, slice, convolve and their partial gradients, as dense matrices.

The tables here are random, not those of a lattice: the contract of these primitives does not ask where they
come from.
"""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from support import DEVICE, assert_close, to_tensor
from torch import Tensor

from permutohedral.ops.backend import Backend
from permutohedral.ops.dispatch import backend_on

POINTS, LATTICE_POINTS, CORNERS = 37, 19, 4
FILTER_SIZE, TARGETS = 7, 23
CHANNELS = [1, 2, 3, 5, 8, 17, 64]
# in_channels, out_channels, groups
SHAPES = [(1, 1, 1), (3, 2, 1), (4, 6, 2), (6, 6, 6), (5, 10, 5), (16, 32, 1), (64, 33, 1), (32, 64, 4)]


@pytest.fixture
def primitives(backend: str) -> Backend:
    return backend_on(DEVICE.type)


@pytest.fixture
def vertices(random: np.random.Generator) -> Tensor:
    """The last lattice point is touched by no point."""
    return to_tensor(random.integers(0, LATTICE_POINTS - 1, size=(POINTS, CORNERS)), torch.int32)


@pytest.fixture
def neighbors(random: np.random.Generator) -> Tensor:
    """A third is missing, and one target has no neighbor at all; a source is met once per tap at most."""
    rows = np.stack([random.permutation(40)[:TARGETS] for _ in range(FILTER_SIZE)])
    rows = np.where(rows < LATTICE_POINTS, rows, -1)
    rows[:, 5] = -1
    return to_tensor(rows, torch.int32)


def dense_weights(vertices: Tensor, barycentric: np.ndarray) -> np.ndarray:
    dense = np.zeros((POINTS, LATTICE_POINTS))
    np.add.at(dense, (np.arange(POINTS)[:, None], vertices.cpu().numpy()), barycentric)
    return dense


def gather(lattice_values: np.ndarray, neighbors: Tensor) -> np.ndarray:
    """`[filter_size, targets, channels]`, zero where missing."""
    padded = np.concatenate([lattice_values, np.zeros((1, lattice_values.shape[1]))])
    gathered: np.ndarray = padded[neighbors.cpu().numpy()]
    return gathered


@pytest.mark.parametrize("channels", CHANNELS)
def test_splat(
    primitives: Backend, dtype: torch.dtype, vertices: Tensor, channels: int, random: np.random.Generator
) -> None:
    values, barycentric = random.normal(size=(POINTS, channels)), random.random((POINTS, CORNERS))
    result = primitives.splat(to_tensor(values, dtype), vertices, to_tensor(barycentric, dtype), LATTICE_POINTS)
    assert result.dtype == dtype
    assert_close(result, dense_weights(vertices, barycentric).T @ values)
    assert (result[-1] == 0).all()


@pytest.mark.parametrize("channels", CHANNELS)
def test_slice(
    primitives: Backend, dtype: torch.dtype, vertices: Tensor, channels: int, random: np.random.Generator
) -> None:
    values, barycentric = random.normal(size=(LATTICE_POINTS, channels)), random.random((POINTS, CORNERS))
    result = primitives.slice(to_tensor(values, dtype), vertices, to_tensor(barycentric, dtype))
    assert result.dtype == dtype
    assert_close(result, dense_weights(vertices, barycentric) @ values)


@pytest.mark.parametrize("channels", CHANNELS)
def test_barycentric_gradient(
    primitives: Backend, dtype: torch.dtype, vertices: Tensor, channels: int, random: np.random.Generator
) -> None:
    values, lattice_values = random.normal(size=(POINTS, channels)), random.normal(size=(LATTICE_POINTS, channels))
    result = primitives.barycentric_gradient(to_tensor(values, dtype), to_tensor(lattice_values, dtype), vertices)
    assert result.dtype == dtype
    assert_close(result, np.einsum("pc,pjc->pj", values, lattice_values[vertices.cpu().numpy()]))


@pytest.mark.parametrize(("in_channels", "out_channels", "groups"), SHAPES)
def test_convolve(
    primitives: Backend, dtype: torch.dtype, neighbors: Tensor, in_channels: int, out_channels: int, groups: int
) -> None:
    random = np.random.default_rng(1)
    values = random.normal(size=(LATTICE_POINTS, in_channels))
    weight = random.normal(size=(FILTER_SIZE, in_channels // groups, out_channels))
    result = primitives.convolve(to_tensor(values, dtype), to_tensor(weight, dtype), neighbors, groups)
    assert result.dtype == dtype
    expected = np.einsum("kvi,kio->vo", gather(values, neighbors), oracle.block_diagonal(weight, groups))
    assert_close(result, expected)
    assert (result[5] == 0).all()


@pytest.mark.parametrize(("in_channels", "out_channels", "groups"), SHAPES)
def test_convolve_weight_gradient(
    primitives: Backend, dtype: torch.dtype, neighbors: Tensor, in_channels: int, out_channels: int, groups: int
) -> None:
    random = np.random.default_rng(1)
    values, gradient = random.normal(size=(LATTICE_POINTS, in_channels)), random.normal(size=(TARGETS, out_channels))
    result = primitives.convolve_weight_gradient(
        to_tensor(values, dtype), to_tensor(gradient, dtype), neighbors, groups
    )
    assert result.dtype == dtype
    full = np.einsum("kvi,vo->kio", gather(values, neighbors), gradient)
    expected = np.empty((FILTER_SIZE, in_channels // groups, out_channels))
    block_in, block_out = in_channels // groups, out_channels // groups
    for g in range(groups):
        columns = np.s_[g * block_out : (g + 1) * block_out]
        expected[:, :, columns] = full[:, g * block_in : (g + 1) * block_in, columns]
    assert_close(result, expected)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_sixteen_bit_values_are_rounded_once(
    primitives: Backend, half: torch.dtype, vertices: Tensor, neighbors: Tensor, random: np.random.Generator
) -> None:
    """Sums are kept in float32: the result is that of float32, rounded. A sum kept in 16 bits would drift."""
    points = 5000
    many = to_tensor(np.zeros((points, 1)), torch.int32)
    ones = torch.ones(points, 1, device=vertices.device)
    total = primitives.splat(torch.ones(points, 2, device=vertices.device, dtype=half), many, ones, 1)
    assert total.dtype == half
    assert (total == torch.full_like(total, points)).all()
    assert primitives.barycentric_gradient(total, total, many[:1]).dtype == torch.float32

    values = to_tensor(random.normal(size=(LATTICE_POINTS, 8)), half)
    weight = to_tensor(random.normal(size=(FILTER_SIZE, 8, 6)), half)
    barycentric = to_tensor(random.random((POINTS, CORNERS)), torch.float32)
    exact = primitives.slice(values.float(), vertices, barycentric)
    assert_one_rounding(primitives.slice(values, vertices, barycentric), exact, half)
    exact = primitives.convolve(values.float(), weight.float(), neighbors, 1)
    assert_one_rounding(primitives.convolve(values, weight, neighbors, 1), exact, half)
    gradient = to_tensor(random.normal(size=(TARGETS, 6)), half)
    exact = primitives.convolve_weight_gradient(values.float(), gradient.float(), neighbors, 1)
    assert_one_rounding(primitives.convolve_weight_gradient(values, gradient, neighbors, 1), exact, half)
    axes = neighbors[:6, :LATTICE_POINTS].contiguous()
    exact = primitives.blur(values.float(), axes, False)
    assert_one_rounding(primitives.blur(values, axes, False), exact, half)


def assert_one_rounding(actual: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """At most one unit in the last place, element by element; another order of a float32 sum may tip a rounding."""
    assert actual.dtype == dtype
    unit = torch.finfo(dtype).eps * exact.abs().max() * 2**-8 + torch.finfo(dtype).eps * exact.abs()
    assert ((actual.float() - exact).abs() <= unit).all()


def test_splat_and_slice_take_strided_rows_of_one_channel(primitives: Backend, vertices: Tensor) -> None:
    """A column of a wider tensor, and a broadcast row: strides of n and of 0."""
    wide = to_tensor(np.arange(POINTS * 3).reshape(POINTS, 3))
    ones = to_tensor(np.ones((POINTS, CORNERS)))
    column = primitives.splat(wide[:, 1:2], vertices, ones, LATTICE_POINTS)
    assert (column == primitives.splat(wide, vertices, ones, LATTICE_POINTS)[:, 1:2]).all()
    constant = to_tensor(np.ones((1, 1))).expand(LATTICE_POINTS, 3)
    assert (primitives.slice(constant, vertices, ones) == CORNERS).all()
