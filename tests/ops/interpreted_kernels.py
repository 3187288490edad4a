"""Every kernel in Triton's interpreter against the reference; run by `test_triton.py` in a process of its own.

The interpreter must be chosen before the kernels are imported. It does not multiply matrices of bfloat16, which is left
to the suite on a GPU.
"""

from __future__ import annotations

import pytest
import torch
from support import assert_close
from torch import Tensor

from permutohedral import functional, memory
from permutohedral.errors import FeatureRangeError, MemoryLimitError
from permutohedral.lattice import build_lattice
from permutohedral.models.deep_denoising import PermutohedralBlock
from permutohedral.neighborhood import Neighborhood, axis_offsets, blur_gain
from permutohedral.ops import fused, reference
from permutohedral.ops import triton as kernels
from permutohedral.ops.dispatch import use_backend
from permutohedral.ops.triton import filtering, lattice, splatting, wide
from permutohedral.ops.triton.bounded import index_points_bounded
from permutohedral.ops.triton.table import PackedTable

pytestmark = pytest.mark.usefixtures("not_deterministic")


def assert_same_lattice(found: tuple[Tensor, ...], features: Tensor, batch: Tensor | None = None) -> None:
    """The same key at every corner, each key once, the same weights and neighbors."""
    keys, vertices, barycentric, table = found
    expected_keys, expected_vertices, expected_barycentric, nothing = reference.index_points(features, batch)
    assert torch.equal(keys[vertices.long()], expected_keys[expected_vertices.long()])
    assert len(keys) == len(expected_keys)
    assert_close(barycentric, expected_barycentric)
    # the first and its opposite, one whose opposite is left out, the centre
    offsets = torch.nn.functional.pad(axis_offsets(features.shape[1])[:3], (0, 0, 0, 1))
    expected = reference.find_neighbors(keys, nothing, keys, offsets)
    assert torch.equal(kernels.find_neighbors(keys, table, keys, offsets), expected)
    assert torch.equal(kernels.find_neighbors(keys, table, keys.clone(), offsets), expected)


@pytest.mark.parametrize(("dimension", "dtype"), [(1, torch.float64), (2, torch.float32), (5, torch.float32)])
def test_index_points(dimension: int, dtype: torch.dtype) -> None:
    features = 3 * torch.randn(40, dimension, dtype=dtype)
    found = kernels.index_points(features, None)
    assert PackedTable.holds(found[3])
    assert_same_lattice(found, features)


def test_index_points_of_several_items() -> None:
    features, batch = 2 * torch.randn(40, 2), torch.randint(0, 3, (40,), dtype=torch.int32)
    assert_same_lattice(kernels.index_points(features, batch), features, batch)


@pytest.mark.parametrize("exact", [True, False])
def test_index_points_renumbers(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattice, "WORTH_ORDERING", 1)
    torch.use_deterministic_algorithms(exact)
    features = 9 * torch.randn(40, 2)
    found = kernels.index_points(features, None)
    assert_same_lattice(found, features)
    shuffled = torch.randperm(40)
    again = kernels.index_points(features[shuffled], None)
    assert_same_lattice(again, features[shuffled])
    if exact:
        # the order is that of the keys, whatever that of the points
        assert torch.equal(again[0], found[0])


def test_index_points_grows_a_full_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattice, "_first_capacity", lambda num_entries: 64)
    features = 5 * torch.randn(40, 2)
    assert_same_lattice(kernels.index_points(features, None), features)


def test_index_points_packs_by_range() -> None:
    features = torch.randn(33, 8)
    found = kernels.index_points(features, None)
    assert PackedTable.holds(found[3])
    assert_same_lattice(found, features)


def test_index_points_wider_than_one_word() -> None:
    features = 300 * torch.randn(33, 7, dtype=torch.float64)
    found = kernels.index_points(features, None)
    assert not PackedTable.holds(found[3])
    assert_same_lattice(found, features)


@pytest.mark.parametrize("value", [float("nan"), 1e30])
def test_index_points_refuses(value: float) -> None:
    features = torch.randn(40, 2)
    features[37, 1] = value
    with pytest.raises(FeatureRangeError):
        kernels.index_points(features, None)
    with pytest.raises(FeatureRangeError):
        wide.index_points(features, None)


def test_index_keys() -> None:
    keys = torch.randint(-2, 2, (70, 3), dtype=torch.int32)
    unique_keys, inverse, table = kernels.index_keys(keys)
    assert torch.equal(unique_keys[inverse.long()], keys)
    assert len(unique_keys) == len(torch.unique(keys, dim=0))
    offsets = Neighborhood(2, 1).offsets()
    expected = reference.find_neighbors(unique_keys, table[:0], keys, offsets)
    assert torch.equal(kernels.find_neighbors(unique_keys, table, keys, offsets), expected)
    assert torch.equal(kernels.find_neighbors(unique_keys, table[:0], keys, offsets), expected)


def test_transpose_neighbors() -> None:
    neighborhood = Neighborhood(2, 1)
    keys, _, _, table = kernels.index_points(torch.randn(20, 2), None)
    neighbors = kernels.find_neighbors(keys, table, keys[::2], neighborhood.offsets())
    expected = reference.transpose_neighbors(neighbors, neighborhood.opposite(), len(keys))
    assert torch.equal(kernels.transpose_neighbors(neighbors, neighborhood.opposite(), len(keys)), expected)


@pytest.mark.parametrize("dimension", [1, 5])
def test_derivatives_of_the_weights(dimension: int) -> None:
    features = 3 * torch.randn(70, dimension, dtype=torch.float64)
    gradient = torch.randn(dimension + 1, 70, dtype=torch.float64).T
    assert_close(kernels.embed_gradient(features, gradient), reference.embed_gradient(features, gradient))
    change = torch.randn_like(features)
    assert_close(kernels.embed_differential(features, change), reference.embed_differential(features, change))


@pytest.mark.parametrize(
    ("dtype", "channels"), [(torch.float64, 3), (torch.float32, 70), (torch.float16, 4), (torch.bfloat16, 1)]
)
def test_filtering(dtype: torch.dtype, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splatting, "_WORTH_RUNS", 1)
    vertices = torch.randint(0, 5, (43, 3), dtype=torch.int32).sort(dim=0).values
    barycentric = torch.rand(3, 43, dtype=torch.float64 if dtype == torch.float64 else torch.float32).T
    values, lattice_values = torch.randn(43, channels).to(dtype), torch.randn(5, channels).to(dtype)
    expected = reference.splat(values, vertices, barycentric, 5)
    assert_close(kernels.splat(values, vertices, barycentric, 5), expected, dtype)
    torch.use_deterministic_algorithms(True)
    assert_close(kernels.splat(values, vertices, barycentric, 5), expected, dtype)
    torch.use_deterministic_algorithms(False)
    expected = reference.slice(lattice_values, vertices, barycentric)
    assert_close(kernels.slice(lattice_values, vertices, barycentric), expected)
    expected = reference.barycentric_gradient(values, lattice_values, vertices)
    assert_close(kernels.barycentric_gradient(values, lattice_values, vertices), expected)


@pytest.mark.parametrize("channels", [1, 66])
@pytest.mark.parametrize("deterministic", [False, True])
def test_filter_gaussian(channels: int, deterministic: bool) -> None:
    torch.use_deterministic_algorithms(deterministic)
    vertices, target_vertices = torch.randint(0, 7, (2, 20, 3), dtype=torch.int32)
    barycentric, target_barycentric = torch.rand(2, 20, 3)
    values = torch.randn(20, channels)
    axis_neighbors = torch.randint(-1, 7, (6, 7), dtype=torch.int32)
    found = kernels.filter_gaussian(
        values, vertices, barycentric, axis_neighbors, target_vertices, target_barycentric, 0.25
    )
    with_mass = torch.cat([values, torch.ones(20, 1)], dim=1)
    blurred = reference.blur(reference.splat(with_mass, vertices, barycentric, 7), axis_neighbors, False)
    expected = reference.slice(blurred / blur_gain(2), target_vertices, target_barycentric)
    assert_close(found, expected[:, :-1] / (expected[:, -1:] + 0.25))


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize(("axes", "dtype"), [(1, torch.float64), (3, torch.float32), (4, torch.float16)])
@pytest.mark.parametrize("reverse", [False, True])
def test_blur(reverse: bool, axes: int, dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtering, "_WORTH_SINGLE_AXES", 0 if at_once == 1 else 100)
    lattice_values = torch.randn(30, 3).to(dtype)
    before = lattice_values.clone()
    axis_neighbors = torch.randint(-1, 30, (2 * axes, 30), dtype=torch.int32)
    expected = reference.blur(lattice_values, axis_neighbors, reverse)
    assert_close(kernels.blur(lattice_values, axis_neighbors, reverse), expected)
    assert torch.equal(lattice_values, before)


def test_index_points_foresees_the_size_of_the_next_lattice() -> None:
    lattice._sizes.clear()
    features = 100 * torch.randn(25, 2)
    features[15:] = features[0]
    first = kernels.index_points(features, None)
    assert list(lattice._sizes.values()) == [len(first[0])] == [45]
    # alike, of so many more lattice points that the table still holds them, of far fewer, of far more
    for other in (features, 100 * torch.randn(25, 2), 0.001 * features, 100 * features):
        assert_same_lattice(kernels.index_points(other, None), other)


def test_index_both() -> None:
    features, targets = 3 * torch.randn(30, 2), 5 * torch.randn(20, 2)
    batch = torch.randint(0, 3, (30,), dtype=torch.int32)
    for _ in range(2):
        source, target = kernels.index_both(features, batch, targets, batch[:20])
        assert_same_lattice(source, features, batch)
        assert_same_lattice(target, targets, batch[:20])
    source, target = kernels.index_both(features, None, targets[:0], None)
    assert_same_lattice(source, features)
    assert len(target[0]) == 0


def test_index_both_refuses_either() -> None:
    features, targets = torch.randn(40, 2), torch.randn(30, 2)
    targets[3] = float("inf")
    with pytest.raises(FeatureRangeError):
        kernels.index_both(features, None, targets, None)
    with pytest.raises(FeatureRangeError):
        kernels.index_both(targets, None, features, None)
    assert_same_lattice(kernels.index_points(features, None), features)


@pytest.mark.parametrize(
    ("normalization", "in_channels", "out_channels", "dtype", "halo"),
    [("density", 1, 5, torch.float64, 1), ("density", 8, 3, torch.float64, 0), ("none", 4, 2, torch.float64, 0),
     ("density", 2, 4, torch.float16, 0), ("none", 4, 8, torch.float16, 0)],
)  # fmt: skip
def test_the_learned_filter(
    normalization: functional.Normalization, in_channels: int, out_channels: int, dtype: torch.dtype, halo: int
) -> None:
    """In one go what it is of operators, with all its derivatives; a halo holds no density."""
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    features, targets = 3 * torch.randn(2, 30, 2).to(exact), torch.randn(2, 20, 2).to(exact)
    tables = build_lattice(features, targets, neighborhood_size=1, halo=halo)
    shapes = ((2, 30, in_channels), (7, in_channels, out_channels), (out_channels,))
    inputs = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    upstream = torch.randn(2, 20, out_channels).to(dtype)

    def run(backend: str, *given: Tensor) -> tuple[Tensor, ...]:
        values, weight, bias = given
        with use_backend(backend):
            output = functional.filter_with_bias(values, tables, weight, bias, normalization)
            return output, *torch.autograd.grad(output, given, upstream.to(output.dtype))

    with use_backend("triton"):
        assert fused.can_fuse(*inputs, tables.source.barycentric)
    found = run("triton", *inputs)
    exactly = [each.detach().to(exact).requires_grad_() for each in inputs]
    expected = run("reference", *(exactly if dtype == torch.float64 else inputs))
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, dtype)


def test_the_learned_filter_is_differentiated_twice() -> None:
    tables = build_lattice(2 * torch.randn(6, 1, dtype=torch.float64), neighborhood_size=1)
    shapes = ((6, 1), (3, 1, 2), (2,))
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]

    def run(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.filter_with_bias(values, tables, weight, bias, "density").square()

    with use_backend("triton"):
        torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize(("in_channels", "out_channels", "groups"), [(3, 5, 1), (24, 20, 1), (32, 16, 2), (4, 8, 4)])
def test_convolve(dtype: torch.dtype, in_channels: int, out_channels: int, groups: int) -> None:
    neighbors = torch.randint(-1, 30, (3, 41), dtype=torch.int32)
    lattice_values = torch.randn(30, in_channels).to(dtype)
    weight = torch.randn(3, in_channels // groups, out_channels).to(dtype)
    expected = reference.convolve(lattice_values, weight, neighbors, groups)
    assert_close(kernels.convolve(lattice_values, weight, neighbors, groups), expected)
    turned = weight.transpose(1, 2).contiguous().transpose(1, 2)
    assert_close(kernels.convolve(lattice_values, turned, neighbors, groups), expected)
    gradient = torch.randn(41, out_channels).to(dtype)
    expected = reference.convolve_weight_gradient(lattice_values, gradient, neighbors, groups)
    assert_close(kernels.convolve_weight_gradient(lattice_values, gradient, neighbors, groups), expected)


def test_nothing_in_nothing_out() -> None:
    keys, vertices, barycentric, table = kernels.index_points(torch.empty(0, 2), None)
    assert keys.shape == vertices.shape == barycentric.shape == (0, 3)
    assert kernels.find_neighbors(keys, table, keys, Neighborhood(2, 1).offsets()).shape == (7, 0)
    assert kernels.splat(torch.empty(0, 4), vertices, barycentric, 0).shape == (0, 4)
    assert kernels.slice(torch.empty(0, 4), vertices, barycentric).shape == (0, 4)
    neighbors = torch.full((7, 2), -1, dtype=torch.int32)
    assert torch.equal(kernels.convolve(torch.empty(0, 4), torch.ones(7, 4, 2), neighbors, 1), torch.zeros(2, 2))


def test_a_bounded_lattice_is_the_same_as_long_as_there_is_room() -> None:
    features, batch = 2 * torch.randn(40, 2), torch.randint(0, 3, (40,), dtype=torch.int32)
    num = len(reference.index_points(features, batch)[0])
    keys, vertices, barycentric, table, last = index_points_bounded(features, batch, num + 9)
    assert int(last) + 1 == num
    assert_same_lattice((keys[:num], vertices, barycentric, table), features, batch)
    vertices, last = (index_points_bounded(features, batch, num - 9)[part] for part in (1, 4))
    assert int(last) + 1 == num
    assert int(vertices.max()) == num - 10


def test_a_block_on_a_bounded_lattice_computes_what_it_computes_on_any_other() -> None:
    block = PermutohedralBlock(6, lattice_channels=4, sigma_space=3.0)
    torch.nn.init.normal_(block.mix.weight)
    hidden = torch.randn(2, 6, 5, 4)
    found = []
    for rows_per_point in (None, 6.0):
        block.rows_per_point = rows_per_point
        block.zero_grad()
        leaf = hidden.clone().requires_grad_()
        with use_backend("triton"):
            output = block(leaf)
            output.square().sum().backward()
        found.append([output, leaf.grad, block.embed.weight.grad, block.weight.grad])
    assert 0 < float(block.fullest) < 1
    for expected, actual in zip(*found, strict=True):
        assert_close(actual, expected)


def test_the_learned_filter_is_refused_before_it_allocates(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = build_lattice(torch.randn(9, 2), neighborhood_size=1)
    monkeypatch.setattr(memory, "_NEGLIGIBLE_BYTES", 0)
    monkeypatch.setattr(memory, "available_memory", lambda device: 1000)
    with use_backend("triton"), pytest.raises(MemoryLimitError, match="channels"):
        functional.filter_with_bias(torch.randn(9, 1), tables, torch.randn(7, 1, 64), None, "none")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("channels", "ones"), [(3, 1), (1, 0), (2, 1)])
def test_splat_of_consecutive_points(
    dtype: torch.dtype, channels: int, ones: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of equal corners, corners in turn, and others; points that are no multiple of what a thread takes."""
    monkeypatch.setattr(splatting, "_WORTH_RUNS", 1)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    vertices = torch.randint(0, 6, (3, 2052), dtype=torch.int32)
    vertices[0, 9:40], vertices[1, 4:30:2], vertices[1, 5:31:2] = 2, 4, 1
    barycentric = torch.rand(3, 2052, dtype=exact)
    values = torch.randn(2052, channels).to(dtype)
    assert splatting._can_run(values, vertices.T, barycentric.T, channels + ones)
    found = splatting.splat_sums(values, vertices.T, barycentric.T, 6, ones)
    exactly = torch.cat([values.double(), torch.ones(2052, ones, dtype=torch.float64)], dim=1)
    expected = reference.splat(exactly, vertices.T, barycentric.T.double(), 6)
    assert_close(found, expected.to(exact))


@pytest.mark.parametrize("scale", [1.0, 1.05, 30.0])
@pytest.mark.parametrize("batched", [False, True])
def test_filter_points(scale: float, batched: bool) -> None:
    """Only after a lattice of the same shape, and only if this one is not much larger."""
    lattice._sizes.clear()
    shape = (2, 20) if batched else (40,)
    features, values = torch.randn(*shape, 2), torch.randn(*shape, 3)
    with use_backend("triton"):
        assert fused.filter_points(values, features, 1e-20) is None
        functional.gaussian_filter(values, features)
        found = fused.filter_points(values, scale * features, 1e-20)
        filtered = functional.gaussian_filter(values, scale * features)
    assert (found is None) == (scale == 30.0)
    with use_backend("reference"):
        expected = functional.gaussian_filter(values, scale * features)
    assert_close(filtered, expected)
    if found is not None:
        assert_close(found, expected)


def test_filter_points_gives_a_table_up_that_is_full() -> None:
    """Twice as many lattice points as it has slots: looking anything up there would never end."""
    features, values = 9 * torch.randn(60, 2), torch.randn(60, 3)
    with use_backend("triton"):
        functional.gaussian_filter(values, 0 * features)
        assert fused.filter_points(values, features, 1e-20) is None
        found = functional.gaussian_filter(values, features)
    with use_backend("reference"):
        assert_close(found, functional.gaussian_filter(values, features))


def test_filter_points_leaves_features_to_be_refused() -> None:
    features, values = torch.randn(40, 2), torch.randn(40, 1)
    with use_backend("triton"):
        functional.gaussian_filter(values, features)
        features[3, 1] = float("nan")
        assert fused.filter_points(values, features, 1e-20) is None
        with pytest.raises(FeatureRangeError):
            functional.gaussian_filter(values, features)
