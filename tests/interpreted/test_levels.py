"""Kernels between levels, and those that normalize items: in Triton's interpreter against the reference."""

from __future__ import annotations

import pytest
import torch
from interpreted.internals import PackedTable, item_norm
from support import assert_close
from torch import Tensor
from torch.autograd import gradgradcheck

import permutohedral as ph
from permutohedral.lattice.neighborhood import Neighborhood
from permutohedral.ops.binding import bind
from permutohedral.ops.dispatch import use as use_backend
from permutohedral.ops.triton.build import lattice


def assert_same_levels(keys: Tensor, table: Tensor, vertices: Tensor, barycentric: Tensor) -> tuple[Tensor, ...]:
    """The same parents and simplices, however the coarse lattice points are numbered; returns the coarse ones."""
    with use_backend("triton"):
        coarse_keys, parents, *coarse = bind(torch.empty(0)).coarsen_lattice(keys, table, vertices, barycentric)
    with use_backend("reference"):
        expected_keys, expected_parents, _, *expected = bind(torch.empty(0)).coarsen_lattice(
            keys, table, vertices, barycentric
        )
    assert len(coarse_keys) == len(expected_keys)
    assert torch.equal(coarse_keys[parents.long()], expected_keys[expected_parents.long()])
    assert torch.equal(coarse_keys[coarse[1].long()], expected_keys[expected[0].long()])
    assert_close(coarse[2], expected[1])
    return coarse_keys, *coarse


@pytest.mark.parametrize(("dimension", "dtype", "items"), [(1, torch.float64, 1), (3, torch.float32, 3)])
def test_levels(dimension: int, dtype: torch.dtype, items: int) -> None:
    """From level to level, of one item and of several."""
    features = 4 * torch.randn(8, dimension, dtype=dtype)
    batch = None if items == 1 else torch.randint(0, items, (8,), dtype=torch.int32)
    with use_backend("triton"):
        keys, vertices, barycentric, table = bind(torch.empty(0)).index_points(features, batch)
    coarse = assert_same_levels(keys, table, vertices, barycentric)
    assert PackedTable.holds(coarse[1])
    assert_same_levels(*coarse)


@pytest.mark.parametrize(
    ("points", "dimension", "levels", "fewest_rows"),
    # room for more rows than there are, and for too few; above seven dimensions keys of coarse levels are wide
    [(20, 2, 3, 100), (20, 2, 2, 7), (4, 8, 2, 100), (0, 2, 2, 100)],
)
def test_the_forecast_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, points: int, dimension: int, levels: int, fewest_rows: int
) -> None:
    """The tables that are kept take no more memory than was forecast."""
    monkeypatch.setattr(lattice, "_FEWEST_ROWS", fewest_rows)
    # many taps would take minutes
    size = 1 if dimension < 8 else 0
    with use_backend("triton"):
        pyramid = ph.levels.build_pyramid(4 * torch.randn(points, dimension), levels, neighborhood_size=size)
    numbers = [level.num_lattice_points for level in pyramid.levels]
    forecast = ph.lattice.forecast_memory(points, dimension, size, 0, numbers, levels=levels, device="cuda")
    simplices = [each for level in pyramid.levels for each in (level.source.vertices, level.source.barycentric)]
    lattice_points = [each for level in pyramid.levels for each in (level.source.keys, level.source.table)]
    between = [each for tables in pyramid.tables for each in (tables.parents, tables.down, tables.up)]
    assert forecast.simplices == allocated(simplices)
    assert forecast.lattice_points >= allocated(lattice_points)
    assert forecast.neighbors >= allocated([level.neighbors for level in pyramid.levels] + between)
    assert forecast.total >= forecast.simplices + forecast.lattice_points + forecast.neighbors


def allocated(tensors: list[Tensor]) -> int:
    return sum(each.untyped_storage().nbytes() for each in tensors)


def test_levels_of_keys_without_a_table() -> None:
    with use_backend("triton"):
        keys, vertices, barycentric, table = bind(torch.empty(0)).index_points(4 * torch.randn(9, 2), None)
    assert_same_levels(keys, table[:0], vertices.contiguous(), barycentric)


def test_levels_are_numbered_alike_where_that_is_asked_for() -> None:
    """And their tables hold these numbers."""
    with use_backend("triton"):
        keys, vertices, barycentric, table = bind(torch.empty(0)).index_points(4 * torch.randn(5, 3), None)
        torch.use_deterministic_algorithms(True)
        order = torch.randperm(len(keys))
        place = torch.empty_like(order).scatter(0, order, torch.arange(len(keys)))
        one = bind(torch.empty(0)).coarsen_lattice(keys, table, vertices, barycentric)
        other = bind(torch.empty(0)).coarsen_lattice(keys[order], table, place.int()[vertices.long()], barycentric)
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1][order], other[1])
    assert torch.equal(one[3], other[3])
    offsets, found = Neighborhood(3, 1).offsets(), []
    for backend in ("triton", "reference"):
        with use_backend(backend):
            found.append(bind(torch.empty(0)).find_neighbors(one[0], one[2], one[0], offsets))
    assert torch.equal(*found)


# one corner after another in memory
FEW = torch.tensor([[0, 1, 1, 4, 4, 0, 1], [0, 0, 2, 4, 1, 2, 1]], dtype=torch.int32).T
# most of them at one lattice point
MANY = torch.tensor([0, 0, 1, 0, 0, 0, 0] * 30, dtype=torch.int32)[:, None]


@pytest.mark.parametrize("vertices", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_largest(dtype: torch.dtype, vertices: Tensor) -> None:
    """Equal values, NaN, corners named twice, rows without points, and more channels than a tile has."""
    channels = 3 if dtype is torch.float64 else 70
    values = torch.randint(-2, 2, (len(vertices), channels)).to(dtype)
    values[1::50, 0] = float("nan")
    values[:, 1] = -float("inf")
    found = []
    for backend in ("reference", "triton"):
        with use_backend(backend):
            found.append(bind(torch.empty(0)).find_largest(values, vertices, 6))
    assert torch.equal(*found)


def test_the_largest_on_lattices_without_room_for_all() -> None:
    """Lattice points beyond the last row are left out, as in splat and slice."""
    values = torch.randn(len(FEW), 3)
    with use_backend("triton"):
        whole = bind(torch.empty(0)).find_largest(values, FEW, 5)
        part = bind(torch.empty(0)).find_largest(values, FEW, 2)
    assert torch.equal(part, whole[:2])


def test_a_pyramid_of_nothing() -> None:
    with use_backend("triton"):
        pyramid = ph.levels.build_pyramid(torch.zeros(0, 2), 2)
    assert [level.num_lattice_points for level in pyramid.levels] == [0, 0]
    assert pyramid.tables[0].up.shape == (7, 0)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two programs share an item, and take its rows in several blocks."""
    monkeypatch.setattr(item_norm, "_PROGRAMS", 2)
    monkeypatch.setattr(item_norm, "_TILE", 16)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("items", [1, 3])
@pytest.mark.parametrize(("channels", "groups", "dtype"), [(6, 2, torch.float64), (17, 1, torch.bfloat16)])
def test_items_norm(
    channels: int, groups: int, dtype: torch.dtype, items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values far from zero, items of different sizes that two programs share."""
    monkeypatch.setattr(item_norm, "_PROGRAMS", 2 * items)
    lattice = ph.build_lattice(4 * torch.randn(30, 2), batch=(torch.arange(30) ** 2) % 7 % items)
    layer = ph.nn.LatticeGroupNorm(groups, channels, dtype=torch.float64 if dtype is torch.float64 else None)
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    values = (torch.randn(lattice.num_lattice_points, channels) + 3).to(dtype)
    found = []
    for backend in ("reference", "triton"):
        leaf = values.clone().requires_grad_()
        with use_backend(backend):
            output = layer(leaf, lattice, relu=items == 3)
            gradients = torch.autograd.grad(output, [leaf, layer.weight, layer.bias], torch.cos(values))
            with torch.no_grad():
                assert torch.equal(layer(leaf, lattice, relu=items == 3), output)
        found.append([output.detach(), *gradients])
    for expected, actual in zip(*found, strict=True):
        assert actual.dtype == expected.dtype
        assert_close(actual, expected)


@pytest.mark.usefixtures("small_parts")
def test_items_norm_is_differentiated_twice() -> None:
    lattice = ph.build_lattice(torch.randn(5, 2), batch=torch.arange(5) % 2)
    layer = ph.nn.LatticeGroupNorm(1, 2, dtype=torch.float64)
    values = torch.randn(lattice.num_lattice_points, 2, dtype=torch.float64, requires_grad=True)
    with use_backend("triton"):
        assert gradgradcheck(lambda each: layer(each, lattice), values, fast_mode=True)


def test_items_norm_of_weights_that_lie_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a part of a larger tensor, or one number for all channels."""
    monkeypatch.setattr(item_norm, "_PROGRAMS", 2)
    lattice = ph.build_lattice(torch.randn(5, 2))
    layer, values = ph.nn.LatticeGroupNorm(1, 4), torch.randn(lattice.num_lattice_points, 4, requires_grad=True)
    given = {"weight": torch.randn(8)[::2], "bias": torch.randn(1).expand(4)}
    found = []
    for backend in ("reference", "triton"):
        with use_backend(backend):
            output = torch.func.functional_call(layer, given, (values, lattice))
            found.append([output.detach(), *torch.autograd.grad(output.square().sum(), values)])
    for expected, actual in zip(*found, strict=True):
        assert_close(actual, expected)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize(
    ("channels", "out_channels", "dtype"), [(3, 5, torch.float64), (8, 17, torch.float32), (16, 9, torch.float16)]
)
def test_convolution_step(channels: int, out_channels: int, dtype: torch.dtype, down: bool) -> None:
    """Gradients of all inputs, on a level and from level to level."""
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    pyramid = ph.levels.build_pyramid(2 * torch.randn(12, 2, dtype=wide), 2, batch=torch.arange(12) % 2)
    lattice = pyramid.levels[0]
    layer: torch.nn.Module = (ph.nn.LatticeConvDown if down else ph.nn.LatticeConv)(
        channels, out_channels, 2, dtype=dtype
    )
    values = torch.randn(lattice.num_lattice_points, channels).to(dtype).requires_grad_()
    upstream = torch.randn(pyramid.levels[int(down)].num_lattice_points, out_channels).to(dtype)
    others = (pyramid, 0) if down else (lattice,)
    found = []
    for backend in ("reference", "triton"):
        with use_backend(backend):
            output = layer(values, *others)
            gradients = torch.autograd.grad(output, [values, *layer.parameters()], upstream)
            with torch.no_grad():
                assert torch.equal(layer(values, *others), output)
        found.append([output.detach(), *gradients])
    for expected, actual in zip(*found, strict=True):
        assert actual.dtype == expected.dtype
        assert_close(actual, expected)


def test_a_convolution_step_is_differentiated_twice() -> None:
    lattice = ph.build_lattice(torch.randn(3, 1, dtype=torch.float64))
    layer = ph.nn.LatticeConv(2, 2, 1, dtype=torch.float64)
    values = torch.randn(lattice.num_lattice_points, 2, dtype=torch.float64, requires_grad=True)
    with use_backend("triton"):
        assert gradgradcheck(lambda each: layer(each * each, lattice), values, fast_mode=True)
