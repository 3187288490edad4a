"""The compiled core against the reference: every instruction set, sizes that do not fill its vectors and blocks.

`test_primitives*.py` hold the backend to the oracle on small inputs; here are the sizes at which the
core takes other paths.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import assert_close

from permutohedral.errors import BackendUnavailable
from permutohedral.lattice.neighborhood import Neighborhood
from permutohedral.ops import dispatch, reference
from permutohedral.ops.backend import Backend
from permutohedral.ops.binding import bind
from permutohedral.ops.constants import axis_offsets
from permutohedral.ops.contract import SMALLEST_MASS, blur_gain


@pytest.mark.parametrize("channels", [*range(1, 10), 15, 16, 17, 22, 32, 33, 67])
def test_splat_slice_and_gradient(native: Backend, dtype: torch.dtype, channels: int) -> None:
    features = torch.randn(4500, 3, dtype=dtype) * 4
    keys, vertices, barycentric, _ = native.index_points(features, None)
    values, lattice_values = torch.randn(4500, channels, dtype=dtype), torch.randn(len(keys), channels, dtype=dtype)
    assert_close(
        native.splat(values, vertices, barycentric, len(keys)),
        reference.splat(values, vertices, barycentric, len(keys)),
    )
    assert_close(
        native.slice(lattice_values, vertices, barycentric), reference.slice(lattice_values, vertices, barycentric)
    )
    assert_close(
        native.barycentric_gradient(values, lattice_values, vertices),
        reference.barycentric_gradient(values, lattice_values, vertices),
    )


@pytest.mark.parametrize(("points", "channels"), [(0, 3), (1, 1), (63, 7), (64, 8), (65, 64), (1100, 77), (70000, 64)])
def test_slice_planes(native: Backend, dtype: torch.dtype, points: int, channels: int) -> None:
    rows = torch.randn(50, channels, dtype=dtype)
    vertices = torch.randint(50, (points, 5), dtype=torch.int32)
    weights = torch.randn(points, 5, dtype=dtype) * (torch.rand(points, 5) < 0.5)
    expected = torch.einsum("pk,pkc->cp", weights, rows[vertices.long()])
    assert_close(native.slice_planes(rows, vertices, weights), expected)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 7, 8, 9, 22, 40])
def test_blur(native: Backend, dtype: torch.dtype, channels: int) -> None:
    keys, _, _, table = native.index_points(torch.randn(3000, 4, dtype=dtype) * 3, None)
    neighbors = native.find_neighbors(keys, table, keys, axis_offsets(4))
    lattice_values = torch.randn(len(keys), channels, dtype=dtype)
    for reverse in (False, True):
        assert_close(
            native.blur(lattice_values, neighbors, reverse), reference.blur(lattice_values, neighbors, reverse)
        )


@pytest.mark.parametrize(
    ("in_channels", "out_channels", "groups"),
    [
        *[(channels, channels, channels) for channels in (1, 2, 3, 4, 7, 8, 11, 32)],
        *[(1, 5, 1), (3, 3, 1), (5, 1, 1), (2, 16, 1), (8, 17, 1), (32, 32, 1), (33, 31, 1), (64, 40, 1), (150, 70, 1)],
        *[(6, 4, 2), (8, 32, 4), (4, 8, 4), (40, 80, 2)],
    ],
)
def test_convolve_and_its_gradient(
    native: Backend, dtype: torch.dtype, in_channels: int, out_channels: int, groups: int
) -> None:
    keys, _, _, table = native.index_points(torch.randn(1200, 2, dtype=dtype) * 8, None)
    neighborhood = Neighborhood(2, 1)
    neighbors = native.find_neighbors(keys, table, keys, neighborhood.offsets())[:, : len(keys) - 3]
    assert (neighbors < 0).any()
    lattice_values = torch.randn(len(keys), in_channels, dtype=dtype)
    weight = torch.randn(neighborhood.filter_size, in_channels // groups, out_channels, dtype=dtype)
    gradient = torch.randn(neighbors.shape[1], out_channels, dtype=dtype)
    assert_close(
        native.convolve(lattice_values, weight, neighbors, groups),
        reference.convolve(lattice_values, weight, neighbors, groups),
    )
    assert_close(
        native.convolve_weight_gradient(lattice_values, gradient, neighbors, groups),
        reference.convolve_weight_gradient(lattice_values, gradient, neighbors, groups),
    )


def test_missing_neighbors_read_as_zero_whatever_the_values(native: Backend) -> None:
    """What pads a tile must not leak: here it would turn up as NaN."""
    neighbors = torch.full((3, 40), -1, dtype=torch.int32)
    neighbors[0, 5] = 1
    lattice_values = torch.full((2, 20), float("nan"))
    lattice_values[1] = 1
    out = native.convolve(lattice_values, torch.ones(3, 20, 9), neighbors, 1)
    assert_close(out[5], torch.full((9,), 20.0))
    out[5] = 0
    assert_close(out, torch.zeros(40, 9))


@pytest.mark.parametrize("dimension", [1, 2, 5, 6, 7, 9, 32])
def test_embed_gradient(native: Backend, dtype: torch.dtype, dimension: int) -> None:
    features = torch.randn(601, dimension, dtype=dtype) * 3
    gradient = torch.randn(601, dimension + 1, dtype=dtype)
    assert_close(native.embed_gradient(features, gradient), reference.embed_gradient(features, gradient))


def test_gradients_use_the_simplex_of_the_index(native: Backend, dtype: torch.dtype) -> None:
    """On faces several simplices are right, but the weights and their derivative must be of the same one."""
    features = (torch.randint(-4, 5, (3000, 3)) * (0.75**0.5 / 2)).to(dtype)
    keys, vertices, barycentric, _ = native.index_points(features, None)
    corners = keys[vertices.long()][:, :, 1:].to(dtype)
    # the corners, weighted, give the point: so does the derivative, for any step
    step = torch.randn(3000, 3, dtype=dtype)
    moved = (bind(features).embed_differential(features, step)[:, :, None] * corners).sum(dim=1)
    assert_close(moved, step @ reference.elevation_matrix(3, dtype, step.device)[:3].T)
    assert_close(barycentric.sum(dim=1), torch.ones(3000, dtype=dtype))


def test_a_core_that_does_not_load_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken installation must be seen, not replaced by the reference."""
    import importlib
    import sys

    import permutohedral

    for module in ("permutohedral.ops.native", "permutohedral.ops.native.bridge"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "permutohedral._native", None)
    monkeypatch.delattr(permutohedral, "_native", raising=False)
    with pytest.raises(BackendUnavailable, match="cannot be loaded"):
        importlib.import_module("permutohedral.ops.native")


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7, 8, 15, 16, 21, 32, 35])
def test_filter_gaussian_is_what_its_parts_make(native: Backend, dtype: torch.dtype, channels: int) -> None:
    source, target = torch.randn(2500, 3, dtype=dtype) * 4, torch.randn(900, 3, dtype=dtype) * 5
    keys, vertices, barycentric, table = native.index_points(torch.cat([source, target]), None)
    axes = native.find_neighbors(keys, table, keys, axis_offsets(3))
    corners = vertices[:2500], barycentric[:2500], axes, vertices[2500:], barycentric[2500:]
    values = torch.randn(2500, channels, dtype=dtype)
    with_mass = torch.cat([values, torch.ones(2500, 1, dtype=dtype)], dim=1)
    blurred = reference.blur(reference.splat(with_mass, *corners[:2], len(keys)), axes, False) / blur_gain(3)
    expected = reference.slice(blurred, *corners[3:])
    # targets that few sources reach: the quotient of two small numbers
    reached = expected[:, -1] > 1e-3
    assert 100 < int(reached.sum()) < 900
    filtered = native.filter_gaussian(values, *corners)
    assert_close(filtered[reached], (expected[:, :-1] / (expected[:, -1:] + SMALLEST_MASS))[reached])
    assert (filtered[expected[:, -1] == 0] == 0).all()


def test_what_follows_a_value_does_not_leak(native: Backend, dtype: torch.dtype) -> None:
    """A row of values is read in whole vectors, which reach into the next one: here that of another item, all NaN."""
    batch = (torch.arange(50) % 2).to(torch.int32)
    keys, vertices, barycentric, table = native.index_points(torch.randn(50, 3, dtype=dtype), batch)
    axes = native.find_neighbors(keys, table, keys, axis_offsets(3))
    for channels in (1, 2, 5, 21, 33):
        values = torch.randn(50, channels, dtype=dtype)
        values[1::2] = float("nan")
        filtered = native.filter_gaussian(values, vertices, barycentric, axes, vertices, barycentric)
        assert filtered[0::2].isfinite().all()
        assert filtered[1::2].isnan().all()


def test_backend_reports_a_processor_without_avx2(native: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of instruction sets is replaced: no processor here lacks them."""
    monkeypatch.setattr("permutohedral._native.instruction_sets", list)
    reason = dispatch._native_available.__wrapped__()
    assert reason is not None
    assert "AVX2" in reason


@pytest.mark.parametrize("rows", [0, 1, 511, 1024, 3001, 600_001])
def test_bias_gradient_keeps_all_digits(native: Any, rows: int) -> None:
    gradient = 1 + torch.rand(rows, 3, generator=torch.Generator().manual_seed(0))
    only_bias = (False, False, True)
    _, _, to_bias = native.filter_learned_backward(gradient, (), (None, None), only_bias, None)
    assert_close(to_bias, gradient.double().sum(0).float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("shape", "origin"),
    [
        ((1, 1, 1), (9, 70_000)),
        ((2, 3, 65, 33), (0, 17)),
        ((2, 2, 1, 130, 129), (0, 0)),
        ((2, 4, 5, 6), (100, 0, 3)),
        ((3, 11), (5,)),
        ((0, 4, 5), (0, 0)),
        ((3, 0, 5), (0, 0)),
    ],
    ids=str,
)
def test_picture_features(native: Backend, shape: tuple[int, ...], origin: tuple[int, ...], dtype: Any) -> None:
    guide, axes = torch.rand(shape).to(dtype), len(origin)
    sigma_space, sigma_color = [3.0, 1.7, 0.4][:axes], [0.07 * (1 + channel) for channel in range(shape[-axes - 1])]
    last = guide.movedim(-axes - 1, -1).contiguous().movedim(-1, -axes - 1)
    shift = 0.236
    for given in (guide, last, guide.flip(-1).transpose(0, -1).contiguous().transpose(0, -1)):
        wide = given.to(torch.promote_types(dtype, torch.float32))
        extents = zip(origin, given.shape[-axes:], sigma_space, strict=True)
        lines = [torch.arange(first, first + extent, dtype=wide.dtype) / sigma for first, extent, sigma in extents]
        places = torch.stack(torch.meshgrid(*lines, indexing="ij"), dim=-1)
        colors = wide.movedim(-axes - 1, -1) / torch.tensor(sigma_color, dtype=wide.dtype)
        expected = torch.cat([places.expand(*colors.shape[:-1], axes), colors], dim=-1).flatten(-axes - 1, -2) + shift
        assert torch.equal(native.picture_features(given, sigma_space, sigma_color, origin, shift), expected)


def test_written_buffers_are_never_converted(native: Backend) -> None:
    """The core would write to a copy. This checks the bridge, through which every result of the core passes."""
    from permutohedral.ops.native.bridge import core, written

    divide_rows, divisors = core(torch.float32).divide_rows, torch.full((3,), 2.0)
    rows = torch.ones(3, 2)
    divide_rows(written(rows), divisors, 1)
    assert_close(rows, torch.full((3, 2), 0.5))
    for wrong in (rows, written(rows.bfloat16()), written(torch.ones(2, 3).T), written(torch.ones(3, 4)[:, :2])):
        with pytest.raises(TypeError):
            divide_rows(wrong, divisors, 1)


def test_splat_with_more_corners_than_dimensions(native: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of the reference, which takes features of any dimension; threads divide the vertices."""
    monkeypatch.setattr("permutohedral.ops.native.bridge.threads", lambda work: 3)
    vertices, weights = torch.randint(3000, (2000, 900), dtype=torch.int32), torch.rand(2000, 900)
    values = torch.randn(2000, 2)
    assert_close(native.splat(values, vertices, weights, 3000), reference.splat(values, vertices, weights, 3000))
