"""Building lattices: every kernel in Triton's interpreter against the reference."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from interpreted.internals import PackedTable, lattice, search
from support import assert_close
from torch import Tensor

import permutohedral as ph
from permutohedral.apps.models.network import PermutohedralBlock
from permutohedral.errors import FeatureRangeError, InputError, MemoryLimitError
from permutohedral.lattice.neighborhood import Neighborhood
from permutohedral.ops import reference
from permutohedral.ops.constants import axis_offsets, axis_opposite
from permutohedral.ops.dispatch import use as use_backend
from permutohedral.ops.triton import BACKEND as kernels


def assert_same_lattice(found: tuple[Tensor, ...], features: Tensor, batch: Tensor | None = None) -> None:
    """The same key at every corner, each key once, the same weights and neighbors."""
    keys, vertices, barycentric, table = found
    expected_keys, expected_vertices, expected_barycentric, nothing = reference.index_points(features, batch)
    assert torch.equal(keys[vertices.long()], expected_keys[expected_vertices.long()])
    assert len(keys) == len(expected_keys)
    assert_close(barycentric, expected_barycentric)
    offsets, opposite = axis_offsets(features.shape[1]), axis_opposite(features.shape[1])
    expected = reference.find_neighbors(keys, nothing, keys, offsets)
    assert torch.equal(kernels.find_neighbors(keys, table, keys, offsets, opposite), expected)
    assert torch.equal(kernels.find_neighbors(keys, table, keys, offsets), expected)


@pytest.mark.parametrize(("dimension", "dtype"), [(1, torch.float64), (2, torch.float32), (5, torch.float32)])
def test_index_points(dimension: int, dtype: torch.dtype) -> None:
    features = 3 * torch.randn(40, dimension, dtype=dtype)
    found = kernels.index_points(features, None)
    assert PackedTable.holds(found[3])
    assert_same_lattice(found, features)


def test_index_points_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs that run side by side take points from three parts, of which the last one has less."""
    monkeypatch.setattr(lattice, "_PARTS", 3)
    monkeypatch.setattr(lattice, "_BLOCKS_OF_A_PART", 1)
    features = 3 * torch.randn(130, 2)
    assert_same_lattice(kernels.index_points(features, None), features)


def test_index_points_of_several_items() -> None:
    features, batch = 2 * torch.randn(40, 2), torch.randint(0, 3, (40,), dtype=torch.int32)
    assert_same_lattice(kernels.index_points(features, batch), features, batch)


def test_index_points_numbers_by_key_in_deterministic_mode() -> None:
    torch.use_deterministic_algorithms(True)
    features, shuffled = 9 * torch.randn(24, 2), torch.randperm(24)
    found, again = (kernels.index_points(each, None) for each in (features, features[shuffled]))
    assert_same_lattice(found, features)
    assert_same_lattice(again, features[shuffled])
    assert torch.equal(again[0], found[0])


def test_index_points_grows_a_full_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattice, "_DENSE_CAPACITY", 1)
    features = 50 * torch.randn(40, 2)
    assert lattice.first_capacity(*features.shape) < len(reference.index_points(features, None)[0])
    assert_same_lattice(kernels.index_points(features, None), features)


def test_index_points_leaves_an_empty_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattice, "_SMALL_CAPACITY", 1)
    features = 0.1 * torch.randn(200, 2)
    found = kernels.index_points(features, None)
    assert PackedTable(found[3]).capacity < lattice.first_capacity(*features.shape)
    assert_same_lattice(found, features)


def test_index_points_has_more_rows_than_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are unpacked before their number is known, with room for those of most point sets."""
    monkeypatch.setattr(lattice, "_FEWEST_ROWS", 4)
    monkeypatch.setattr(lattice, "_POINTS_PER_ROW", 1000)
    features = 9 * torch.randn(24, 3)
    found = kernels.index_points(features, None)
    assert len(found[0]) > 2 * lattice.expected_rows(24, 3)
    assert_same_lattice(found, features)


def test_rejects_points_whose_lattice_exceeds_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """450 million points in 5 dimensions on a GPU with 20 GB free."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 << 30, 24 << 30))
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    features = mock.Mock(shape=(450_000_000, 5), is_cuda=True, **{"element_size.return_value": 4})
    with pytest.raises(MemoryLimitError, match="450,000,000 points in 5 dimensions"):
        lattice._check_memory(features, lattice.first_capacity(450_000_000, 5))


def test_index_points_packs_by_range() -> None:
    features = torch.randn(33, 8)
    found = kernels.index_points(features, None)
    assert PackedTable.holds(found[3])
    assert_same_lattice(found, features)


def test_index_points_wider_than_one_word() -> None:
    features = 300 * torch.randn(17, 7, dtype=torch.float64)
    found = kernels.index_points(features, None)
    assert not PackedTable.holds(found[3])
    assert_same_lattice(found, features)


@pytest.mark.parametrize("value", [float("nan"), 1e30])
def test_index_points_rejects_features_without_a_key(value: float) -> None:
    features = torch.randn(40, 2)
    features[37, 1] = value
    with pytest.raises(FeatureRangeError):
        kernels.index_points(features, None)
    with pytest.raises(FeatureRangeError):
        lattice.index_unpacked(features, None)


@pytest.mark.parametrize("dimension", [2, 8, 20])
def test_index_points_rejects_negative_items(dimension: int) -> None:
    """Of evenly packed keys, of those packed by range, and of wide ones."""
    features, batch = torch.randn(40, dimension), torch.zeros(40, dtype=torch.int32)
    batch[11] = -3
    with pytest.raises(InputError, match="got -3 to 0"):
        kernels.index_points(features, batch)


def test_index_keys() -> None:
    keys = torch.randint(-2, 2, (70, 3), dtype=torch.int32)
    unique_keys, inverse, table = kernels.index_keys(keys)
    assert torch.equal(unique_keys[inverse.long()], keys)
    assert len(unique_keys) == len(torch.unique(keys, dim=0))
    offsets = Neighborhood(2, 1).offsets()
    expected = reference.find_neighbors(unique_keys, table, keys, offsets)
    assert torch.equal(kernels.find_neighbors(unique_keys, table, keys, offsets), expected)


def test_neighbors_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opposite taps looked up as one."""
    monkeypatch.setattr(search, "_WORTH_PAIRING", 1)
    keys, _, _, table = kernels.index_points(2 * torch.randn(30, 2), None)
    neighborhood = Neighborhood(2, 1)
    expected = reference.find_neighbors(keys, table[:0], keys, neighborhood.offsets())
    found = kernels.find_neighbors(keys, table, keys, neighborhood.offsets(), neighborhood.opposite())
    assert torch.equal(found, expected)


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


def fits(num_lattice_points: int) -> None:
    """There is enough memory."""


@pytest.mark.parametrize(("rows", "pairs"), [(7, 1 << 21), (1 << 16, 1 << 21), (1 << 16, 1)])
def test_index_with_neighbors(rows: int, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is room for all lattice points that the host does not know of yet, opposite taps apart or as one, and
    where there is not.
    """
    monkeypatch.setattr(lattice, "_FEWEST_ROWS", rows)
    monkeypatch.setattr(search, "_WORTH_PAIRING", pairs)
    features, batch = 3 * torch.randn(30, 3), torch.randint(0, 3, (30,), dtype=torch.int32)
    offsets = axis_offsets(3)
    found = kernels.index_with_neighbors(features, batch, offsets, axis_opposite(3), fits)
    keys, *others, neighbors = found
    assert (len(keys) > lattice.expected_rows(30, 3)) == (rows == 7)
    assert_same_lattice((keys, *others), features, batch)
    assert neighbors.is_contiguous()
    assert torch.equal(neighbors, reference.find_neighbors(keys, torch.empty(0), keys, offsets))


def test_index_with_neighbors_leaves_an_empty_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattice, "_SMALL_CAPACITY", 16)
    monkeypatch.setattr(lattice, "_FEWEST_ROWS", 10)
    monkeypatch.setattr(lattice, "_FEW_DIMENSIONS", 0)
    features, offsets = torch.rand(200, 2), axis_offsets(2)
    found = kernels.index_with_neighbors(features, None, offsets, axis_opposite(2), fits)
    keys, *others, table, neighbors = found
    assert PackedTable(table).capacity < lattice.first_capacity(*features.shape)
    assert_same_lattice((keys, *others, table), features)
    assert torch.equal(neighbors, reference.find_neighbors(keys, table[:0], keys, offsets))


def test_index_with_neighbors_rejects_and_declines() -> None:
    # no points; too many dimensions; and keys that do not fit are packed in another way
    for features in (torch.randn(0, 2), torch.randn(40, 8), 1000 * torch.randn(40, 7).double()):
        offsets = axis_offsets(features.shape[1])
        given = features, None, offsets, axis_opposite(features.shape[1]), fits
        (line,) = ph.backends.explain_call(kernels.index_with_neighbors, *given).decisions
        assert line.startswith("index_with_neighbors: composed of primitives")
        keys, *others, neighbors = kernels.index_with_neighbors(*given)
        assert_same_lattice((keys, *others), features)
        assert torch.equal(neighbors, reference.find_neighbors(keys, others[-1][:0], keys, offsets))
    features = torch.randn(40, 2)
    features[7] = float("nan")
    with pytest.raises(FeatureRangeError):
        kernels.index_with_neighbors(features, None, axis_offsets(2), axis_opposite(2), fits)


def test_a_bounded_lattice_is_the_same_as_long_as_there_is_room() -> None:
    features, batch = 2 * torch.randn(40, 2), torch.randint(0, 3, (40,), dtype=torch.int32)
    num = len(reference.index_points(features, batch)[0])
    keys, vertices, barycentric, table, count = kernels.index_points_bounded(features, batch, num + 9)
    assert int(count) == num
    assert_same_lattice((keys[:num], vertices, barycentric, table), features, batch)
    vertices, count = (kernels.index_points_bounded(features, batch, num - 9)[part] for part in (1, 4))
    assert int(count) == num
    assert int(vertices.max()) == num - 10


@pytest.mark.parametrize("shape", [(9, 3), (2, 7, 1), (1, 12, 2)])
def test_filters_on_a_bounded_lattice(shape: tuple[int, ...]) -> None:
    """The learned filter, the Gaussian, and gradients with respect to features."""
    features, values = 2 * torch.randn(shape, dtype=torch.float64), torch.randn(*shape[:-1], 2, dtype=torch.float64)
    weight = torch.randn(ph.lattice.Neighborhood(shape[-1], 1).filter_size, 2, 3, dtype=torch.float64)
    leaf = features.clone().requires_grad_()
    with use_backend("triton"):
        bounded, number = ph.lattice.build_bounded_lattice(leaf, 60, neighborhood_size=1, separable=True)
        found = ph.permutohedral_filter(values, bounded, weight, normalization="density")
        (gradient,) = torch.autograd.grad(found.square().sum(), leaf)
        blurred = ph.gaussian_filter(values, bounded)
    with use_backend("reference"):
        lattice = ph.build_lattice(leaf, neighborhood_size=1, separable=True)
        expected = ph.permutohedral_filter(values, lattice, weight, normalization="density")
        assert int(number) == lattice.num_lattice_points < 60 == bounded.num_lattice_points
        assert_close(found, expected)
        assert_close(gradient, torch.autograd.grad(expected.square().sum(), leaf)[0])
        assert_close(blurred, ph.gaussian_filter(values, lattice))


@pytest.mark.parametrize("batch", ["column", "expanded"])
def test_strided_batch(batch: str) -> None:
    """Kernels read the items of points one after another."""
    features, columns = 5 * torch.rand(50, 2), torch.randint(0, 3, (50, 2), dtype=torch.int32)
    items = columns[:, 0] if batch == "column" else columns[0, :1].expand(50)
    with use_backend("triton"):
        found, expected = ph.build_lattice(features, batch=items), ph.build_lattice(features, batch=items.clone())
    assert found.num_lattice_points == expected.num_lattice_points
    keys = [lattice.source.keys[lattice.source.vertices.long()] for lattice in (found, expected)]
    assert torch.equal(*keys)


def test_bounded_lattice_reports_failure() -> None:
    features = torch.randn(20, 2)
    with use_backend("triton"):
        assert int(ph.lattice.build_bounded_lattice(9 * features, 5)[1]) > 5
        features[3, 1] = float("nan")
        assert int(ph.lattice.build_bounded_lattice(features, 60)[1]) > 60
        with pytest.raises(InputError, match="1 to 7 dimensions"):
            ph.lattice.build_bounded_lattice(torch.randn(20, 8), 60)
        with pytest.raises(InputError, match="max_lattice_points"):
            ph.lattice.build_bounded_lattice(torch.randn(20, 2), 0)
        with pytest.raises(InputError, match="float16"):
            ph.lattice.build_bounded_lattice(torch.randn(20, 2).half(), 60)
    with pytest.raises(InputError, match="for GPUs"):
        ph.lattice.build_bounded_lattice(torch.randn(20, 2), 60)


def test_a_block_on_a_bounded_lattice_computes_what_it_computes_on_any_other() -> None:
    block = PermutohedralBlock(4, lattice_channels=2, sigma_space=3.0)
    torch.nn.init.normal_(block.mix.weight)
    hidden = torch.randn(2, 4, 3, 4)
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


def test_lattices_do_not_depend_on_those_before() -> None:
    """Equal points, others, far fewer lattice points, far more."""
    features = 100 * torch.randn(25, 2)
    features[15:] = features[0]
    for other in (features, features, 100 * torch.randn(25, 2), 0.001 * features, 100 * features):
        assert_same_lattice(kernels.index_points(other, None), other)


def test_a_lattice_is_saved(tmp_path: Path) -> None:
    """torch does not save tensors of different dtypes that share memory."""
    features, values = 0.2 * torch.randn(20, 2), torch.randn(20, 1)
    with use_backend("triton"):
        for _ in range(2):
            built = ph.build_lattice(features)
        torch.save(built, tmp_path / "lattice.pt")
        loaded = torch.load(tmp_path / "lattice.pt", weights_only=False)
        for other in (loaded, pickle.loads(pickle.dumps(built))):
            assert_close(ph.splat(values, other), ph.splat(values, built))
            # made with room for more lattice points, which is not saved
            assert built.neighbors.untyped_storage().nbytes() > other.neighbors.untyped_storage().nbytes()
            assert torch.equal(built.neighbors, other.neighbors)
        # lattice points that sources and targets share, which were made with room for more
        apart = ph.build_lattice(features, features[:7], separable=True)
        copied = pickle.loads(pickle.dumps(apart))
        assert apart.is_shared
        assert copied.is_shared
        assert copied.source.keys.untyped_storage().nbytes() < apart.source.keys.untyped_storage().nbytes()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_picture_features(dtype: torch.dtype) -> None:
    """The same as torch computes them, to the bit, also of pictures that lie otherwise in memory."""
    picture = torch.rand(2, 3, 5, 4).to(dtype)
    for guide in (picture, picture[0], picture[:, :1], picture.transpose(-1, -2), picture.flip(-1)[..., ::2]):
        with use_backend("triton"):
            found = ph.features.bilateral(guide, sigma_space=3.0, sigma_color=0.7)
            kernel: Any = ph.crf.bilateral_kernel(guide, sigma_space=3.0, sigma_color=0.7)
        with use_backend("reference"):
            assert torch.equal(found, ph.features.bilateral(guide, sigma_space=3.0, sigma_color=0.7))
            expected: Any = ph.crf.bilateral_kernel(guide, sigma_space=3.0, sigma_color=0.7)
            assert torch.equal(kernel.features, expected.features)
