"""Lattices: fields, halos, statistics, memory, copies."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from support import DEVICE, ascending, assert_close, draw, to_numpy, to_tensor, vertices_of

import permutohedral as ph
from permutohedral.filters.normalization import NORMALIZATIONS

pytestmark = pytest.mark.usefixtures("backend")


def test_fields_of_one_point_set(dtype: torch.dtype) -> None:
    features = draw(20, 3).to(dtype)
    lattice = ph.build_lattice(features, neighborhood_size=2)
    assert (lattice.dimension, lattice.neighborhood_size) == (3, 2)
    assert lattice.target is lattice.source
    assert lattice.source.vertices.shape == lattice.source.barycentric.shape == (20, 4)
    assert lattice.neighbors.shape == (65, lattice.num_lattice_points)
    assert (lattice.neighbors[0] == torch.arange(lattice.num_lattice_points, device=DEVICE)).all()
    assert (lattice.dtype, lattice.device.type) == (dtype, DEVICE.type)
    assert (lattice.batch_size, lattice.axis_neighbors) == (None, None)
    assert lattice.neighborhood == ph.lattice.Neighborhood(3, 2)


def test_sources_and_targets_have_separate_lattice_points() -> None:
    features, targets = draw(20, 3), draw(8, 3, seed=1)
    lattice = ph.build_lattice(features, targets)
    for simplices, points in ((lattice.source, features), (lattice.target, targets)):
        found = vertices_of(simplices.keys)
        np.testing.assert_array_equal(found[ascending(found)], oracle.locate(to_numpy(points)).vertices)
    assert lattice.neighbors.shape == (15, lattice.target.num_lattice_points)
    assert lattice.num_lattice_points == lattice.source.num_lattice_points


def test_separable_lattice_joins_sources_and_targets() -> None:
    features, targets = draw(20, 3), draw(8, 3, seed=1)
    lattice = ph.build_lattice(features, targets, separable=True)
    both = oracle.locate(to_numpy(torch.cat([features, targets])))
    found = vertices_of(lattice.source.keys)
    np.testing.assert_array_equal(found[ascending(found)], both.vertices)
    assert lattice.target.num_lattice_points == lattice.num_lattice_points
    assert lattice.axis_neighbors is not None
    assert lattice.axis_neighbors.shape == (8, lattice.num_lattice_points)


def test_batches_number_their_items() -> None:
    lattice = ph.build_lattice(draw(3, 10, 2))
    assert lattice.batch_size == 3
    items = lattice.source.keys[lattice.source.vertices.long()][:, :, 0]
    assert (items == torch.arange(3, device=DEVICE).repeat_interleave(10)[:, None]).all()
    ragged = ph.build_lattice(draw(30, 2), batch=torch.arange(30, device=DEVICE) // 10)
    assert ragged.batch_size is None


def test_batch_may_be_a_column(backend: str) -> None:
    features, columns = draw(50, 2), torch.randint(0, 3, (50, 2), dtype=torch.int32, device=DEVICE)
    lattice = ph.build_lattice(features, batch=columns[:, 0])
    items = lattice.source.keys[lattice.source.vertices.long()][:, :, 0]
    assert torch.equal(items, columns[:, :1].expand(50, 3))


@pytest.mark.parametrize("apart", [False, True], ids=["same_points", "different_points"])
@pytest.mark.parametrize(("dimension", "halo"), [(1, 1), (1, 3), (2, 2), (3, 1)])
def test_halo(dimension: int, halo: int, apart: bool) -> None:
    """Exactly the vertices that taps of that size reach; the points keep their simplices."""
    features, targets = draw(10, dimension), draw(4, dimension, seed=1) if apart else None
    plain = oracle.locate(to_numpy(features if targets is None else torch.cat([features, targets])))
    lattice = ph.build_lattice(features, targets, halo=halo)
    found = vertices_of(lattice.source.keys)
    np.testing.assert_array_equal(found[ascending(found)], oracle.with_halo(plain.vertices, halo))
    assert lattice.target.num_lattice_points == lattice.num_lattice_points
    for simplices, points in ((lattice.source, features), (lattice.target, features if targets is None else targets)):
        corners = found[simplices.vertices.cpu().numpy()]
        reproduced = np.einsum("pj,pjc->pc", to_numpy(simplices.barycentric), corners)
        assert_close(torch.from_numpy(reproduced), to_numpy(points) @ oracle.elevation(dimension).T)


def test_halos_stay_within_items() -> None:
    features = draw(2, 6, 2)
    lattice = ph.build_lattice(features, halo=1)
    for item in range(2):
        found = vertices_of(lattice.source.keys[lattice.source.keys[:, 0] == item])
        expected = oracle.with_halo(oracle.locate(to_numpy(features[item])).vertices, 1)
        np.testing.assert_array_equal(found[ascending(found)], expected)


def test_halo_keeps_every_path_of_two_convolutions() -> None:
    """Two convolutions of size 1 on a lattice with a halo are one of size 2 with the composed filter."""
    features, values = draw(6, 1), draw(6, 1)
    taps = to_tensor([0.5, 0.2, 0.9])
    lattice = ph.build_lattice(features, halo=1)
    twice = ph.convolve(ph.convolve(ph.splat(values, lattice), taps, lattice), taps, lattice)
    # d = 1: tap 1 steps by e_1 = -e_0, tap 2 by e_0; of size 2 the taps are (0,0) (0,1) (0,2) (1,0) (2,0)
    composed = to_tensor([0.25 + 2 * 0.2 * 0.9, 2 * 0.5 * 0.2, 0.04, 2 * 0.5 * 0.9, 0.81])
    expected = ph.permutohedral_filter(values, features, composed, neighborhood_size=2)
    assert_close(ph.slice(twice, lattice), expected)


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_dilated_filter_reads_every_other_vertex(dimension: int) -> None:
    """The taps of size 1 at twice the distance are some of those of size 2: the others have no weight."""
    features = 2 * draw(20, dimension)
    lattice = ph.build_lattice(features, neighborhood_size=1, dilation=2)
    assert lattice.neighborhood == ph.lattice.Neighborhood(dimension, 1, dilation=2)
    values, weight = draw(lattice.num_lattice_points, 2), draw(lattice.neighborhood.filter_size, 2, 3, seed=1)
    large = np.zeros((len(oracle.taps(dimension, 2)), 2, 3))
    places = {tap: number for number, tap in enumerate(oracle.taps(dimension, 2))}
    for tap, each in zip(oracle.taps(dimension, 1), to_numpy(weight), strict=True):
        large[places[tuple(2 * step for step in tap)]] = each
    vertices = vertices_of(lattice.source.keys)
    assert_close(ph.convolve(values, weight, lattice), oracle.convolve(to_numpy(values), large, vertices, vertices, 2))
    apart = ph.build_lattice(features, neighborhood_size=2, dilation=2)
    with pytest.raises(ph.errors.InputError, match="without dilation"):
        ph.gaussian_filter(draw(20, 2), apart, method="dense")


def test_statistics() -> None:
    features = draw(20, 2)
    lattice = ph.build_lattice(features, neighborhood_size=1)
    statistics = lattice.statistics()
    located = oracle.locate(to_numpy(features))
    table = oracle.tap_table(located.vertices, located.vertices, 1)
    missing = 1 - (table > 0).sum() / (6 * len(table))
    assert statistics.num_points == 20
    assert statistics.num_lattice_points == len(located.vertices)
    assert statistics.points_per_lattice_point == pytest.approx(20 / len(located.vertices))
    assert statistics.missing_tap_share == pytest.approx(missing)
    assert 0 < missing < 1
    tables = (lattice.source.keys, lattice.source.vertices, lattice.source.barycentric, lattice.source.table)
    assert statistics.num_bytes == sum(each.nbytes for each in (*tables, lattice.neighbors))


def test_statistics_of_extreme_lattices() -> None:
    """One point, all of whose corners are neighbors of each other and nothing else; and none."""
    lonely = ph.build_lattice(draw(1, 2)).statistics()
    assert (lonely.num_points, lonely.num_lattice_points) == (1, 3)
    assert lonely.missing_tap_share == pytest.approx(4 / 6)
    centre_only = ph.build_lattice(draw(5, 2), neighborhood_size=0).statistics()
    assert centre_only.missing_tap_share == 0
    empty = ph.build_lattice(draw(0, 2)).statistics()
    assert (empty.num_points, empty.num_lattice_points, empty.points_per_lattice_point) == (0, 0, 0)
    assert empty.missing_tap_share == 0


@pytest.mark.parametrize("separable", [False, True])
@pytest.mark.parametrize("size", [0, 1, 2])
def test_forecast_bounds_allocated_memory(size: int, separable: bool, dtype: torch.dtype) -> None:
    lattice = ph.build_lattice(draw(50, 3).to(dtype), neighborhood_size=size, separable=separable)
    forecast = ph.lattice.forecast_memory(50, 3, size, 4, lattice.num_lattice_points, dtype=dtype, separable=separable)
    assert forecast.simplices == lattice.source.vertices.nbytes + lattice.source.barycentric.nbytes
    axes = 0 if lattice.axis_neighbors is None else lattice.axis_neighbors.nbytes
    assert forecast.neighbors == lattice.neighbors.nbytes + axes
    # a GPU's table has up to eight slots of 16 bytes for each lattice point, and a header
    on_gpu = ph.backends.explain(lattice.source.keys).name == "triton"
    table = 128 * lattice.num_lattice_points + 1152 if on_gpu else 0
    assert forecast.lattice_points + table >= lattice.source.keys.nbytes + lattice.source.table.nbytes
    # two channels in, two out
    assert forecast.values >= 2 * ph.splat(draw(50, 2).to(dtype), lattice).nbytes + 50 * 2 * dtype.itemsize
    lasting = forecast.simplices + forecast.lattice_points + forecast.neighbors
    assert forecast.total >= lasting + forecast.values >= lattice.statistics().num_bytes - table
    # without knowing the number of lattice points: every corner of every point could be a separate one
    assert (
        ph.lattice.forecast_memory(50, 3, size, 4, dtype=dtype).neighbors
        == 50 * 4 * ph.lattice.Neighborhood(3, size).filter_size * 4
    )


def same_lattice(one: ph.Lattice, other: ph.Lattice) -> bool:
    values = draw(one.source.num_points, 2).to(one.dtype)
    weight = draw(one.neighborhood.filter_size, 2, 3).to(one.dtype)
    # a GPU adds in the same order in this mode only
    torch.use_deterministic_algorithms(True)
    for normalization in ("none", "symmetric"):
        options: Any = {"normalization": normalization}
        results = [ph.permutohedral_filter(values, each, weight, **options) for each in (one, other)]
        if not torch.equal(*results):
            return False
    return True


@pytest.mark.parametrize("options", [{}, {"separable": True, "halo": 1}], ids=["plain", "separable"])
@pytest.mark.parametrize("apart", [False, True], ids=["same_points", "different_points"])
@pytest.mark.parametrize("way", ["pickle", "deepcopy", "torch.save", "to"])
def test_copies(way: str, apart: bool, options: dict[str, Any]) -> None:
    lattice = ph.build_lattice(draw(20, 2), draw(7, 2, seed=1) if apart else None, **options)
    if way == "pickle":
        restored = pickle.loads(pickle.dumps(lattice))
    elif way == "deepcopy":
        restored = copy.deepcopy(lattice)
    elif way == "torch.save":
        buffer = io.BytesIO()
        torch.save(lattice, buffer)
        restored = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    else:
        restored = lattice.to(DEVICE)
    assert restored.is_shared == lattice.is_shared
    assert (restored.target is restored.source) == (not apart)
    assert same_lattice(restored, lattice)
    assert restored.statistics() == lattice.statistics()


def test_load_of_weights_rejects_lattices() -> None:
    """Their tables are not checked: numbers beyond their rows would be read and written anywhere in memory."""
    lattice, pyramid = ph.build_lattice(draw(20, 2)), ph.levels.build_pyramid(draw(20, 2), 2)
    for each in (lattice, lattice.source, pyramid, pyramid.tables[0]):
        buffer = io.BytesIO()
        torch.save(each, buffer)
        with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
            torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)


def test_lattice_is_frozen_and_has_repr() -> None:
    lattice = ph.build_lattice(draw(20, 2), draw(7, 2, seed=1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        lattice.dimension = 3  # type: ignore[misc]
    text = repr(lattice)
    assert f"lattice_points={lattice.num_lattice_points}" in text
    assert "dimension=2" in text
    assert "points=20" in text
    assert "target_points=7" in text
    assert len(text) < 200


@pytest.mark.parametrize("leading", [(), (2,), (0,)])
def test_empty_point_sets(leading: tuple[int, ...]) -> None:
    """No sources: results are zero. No targets: results are empty. Neither: empty, too."""
    weight = draw(7, 2, 3)
    nothing, features, values = draw(*leading, 0, 2), draw(*leading, 5, 2), draw(*leading, 0, 2)
    result = ph.permutohedral_filter(values, nothing, weight)
    assert result.shape == (*leading, 0, 3)
    result = ph.permutohedral_filter(values, nothing, weight, features)
    assert result.shape == (*leading, 5, 3)
    assert (result == 0).all()
    assert ph.permutohedral_filter(draw(*leading, 5, 2), features, weight, nothing).shape == (*leading, 0, 3)
    for normalization in NORMALIZATIONS:
        assert (ph.gaussian_filter(values, nothing, features, normalization=normalization, halo=1) == 0).all()
        assert (ph.gaussian_filter(values, nothing, features, normalization=normalization, method="dense") == 0).all()


@pytest.mark.parametrize("shape", [(3, 0, 2), (0, 5, 2), (2, 0, 5, 2)])
def test_empty_batch(shape: tuple[int, ...]) -> None:
    features, values, weight = draw(shape[-2], 2), draw(*shape), draw(7, 2, 3)
    assert ph.permutohedral_filter(values, features, weight).shape == (*shape[:-1], 3)
    assert ph.gaussian_filter(values, features).shape == shape


def test_image_without_pixels() -> None:
    assert ph.bilateral_filter(draw(2, 0, 5), sigma_space=2.0, sigma_color=0.1).shape == (2, 0, 5)
    assert ph.bilateral_filter(draw(3, 2, 4, 0), sigma_space=2.0, sigma_color=0.1).shape == (3, 2, 4, 0)


def test_duplicated_points_add_up() -> None:
    features, values, weight = draw(6, 3), draw(6, 2), draw(15, 2, 2)
    once = ph.permutohedral_filter(values, features, weight)
    thrice = ph.permutohedral_filter(values.repeat(3, 1), features.repeat(3, 1), weight)
    assert_close(thrice, (3 * once).repeat(3, 1))
    assert ph.build_lattice(features.repeat(3, 1)).num_lattice_points == ph.build_lattice(features).num_lattice_points


def test_distant_points() -> None:
    """Keys over the whole range: an exact lookup finds every vertex again, and only it."""
    random = np.random.default_rng(0)
    features = to_tensor(random.uniform(-1e8, 1e8, size=(500, 2)))
    lattice = ph.build_lattice(features, neighborhood_size=1)
    assert lattice.num_lattice_points == 1500
    # each of the three corners sees the other two
    assert int((lattice.neighbors >= 0).sum()) == 1500 * 3
