"""Properties that hold for any points, values and filters, checked by hypothesis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import oracle
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from support import DEVICE, TOLERANCE, assert_close, to_numpy, to_tensor, vertices_of
from torch import Tensor

import permutohedral as ph
from permutohedral.ops.contract import transpose_weight

pytestmark = pytest.mark.usefixtures("backend")

Array = NDArray[np.float64]

dimensions = st.integers(1, 5)
sizes = st.integers(0, 2)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def point_sets(draw: st.DrawFn, num_points: st.SearchStrategy[int] | None = None) -> Array:
    """Up to twenty points, among them duplicates, points on faces, and points far out."""
    shape = (draw(num_points or st.integers(1, 20)), draw(dimensions))
    coordinates = st.floats(-4, 4) | st.integers(-3, 3).map(float) | st.floats(-1000, 1000)
    features = draw(arrays(np.float64, shape, elements=coordinates))
    if draw(st.booleans()):
        # onto vertices, edges and faces of the lattice
        y = features @ oracle.elevation(shape[1]).T
        features = np.round(y) @ np.linalg.pinv(oracle.elevation(shape[1])).T
    return features


def normal(seed: int, *shape: int) -> Tensor:
    return to_tensor(np.random.default_rng(seed).normal(size=shape))


def weight_for(lattice: ph.Lattice, seed: int, in_channels: int, out_channels: int) -> Tensor:
    return normal(seed, lattice.neighborhood.filter_size, in_channels, out_channels)


@given(features=point_sets())
def test_barycentric_weights(features: Array) -> None:
    """Not negative, sum to one, and reproduce the point: sum_j b_j corner_j = E f."""
    lattice = ph.build_lattice(to_tensor(features), neighborhood_size=0)
    barycentric = lattice.source.barycentric
    assert (barycentric >= 0).all()
    assert_close(barycentric.sum(dim=1), np.ones(len(features)))
    corners = vertices_of(lattice.source.keys)[lattice.source.vertices.cpu().numpy()]
    reproduced = np.einsum("pj,pjc->pc", to_numpy(barycentric), corners)
    assert_close(torch.from_numpy(reproduced), features @ oracle.elevation(features.shape[1]).T)


@given(features=point_sets())
def test_vertices_are_lattice_points(features: Array) -> None:
    """Coordinates sum to zero and are congruent modulo d+1, and no vertex is listed twice or untouched."""
    lattice = ph.build_lattice(to_tensor(features), neighborhood_size=0)
    corners = features.shape[1] + 1
    vertices = vertices_of(lattice.source.keys)
    assert (vertices % corners == vertices[:, :1] % corners).all()
    assert len(np.unique(vertices, axis=0)) == len(vertices) == lattice.num_lattice_points
    assert set(lattice.source.vertices.flatten().tolist()) == set(range(len(vertices)))


@given(features=point_sets(), seed=seeds)
def test_splat_and_slice_are_adjoint(features: Array, seed: int) -> None:
    """<splat(v), l> = <v, slice(l)>."""
    lattice = ph.build_lattice(to_tensor(features), neighborhood_size=0)
    values, lattice_values = normal(seed, len(features), 3), normal(seed + 1, lattice.num_lattice_points, 3)
    left = (ph.splat(values, lattice) * lattice_values).sum()
    right = (values * ph.slice(lattice_values, lattice)).sum()
    bound = TOLERANCE[torch.float64] * float(values.norm() * lattice_values.norm())
    assert abs(float(left - right)) <= bound


@given(features=point_sets(), seed=seeds)
def test_splat_preserves_the_sum(features: Array, seed: int) -> None:
    lattice = ph.build_lattice(to_tensor(features), neighborhood_size=0)
    values = normal(seed, len(features), 3).abs()
    assert_close(ph.splat(values, lattice).sum(dim=0), values.sum(dim=0))


@given(features=point_sets())
def test_slice_interpolates_linearly(features: Array) -> None:
    """A function that is linear in the features, sampled at the vertices, is reproduced at the points."""
    lattice = ph.build_lattice(to_tensor(features), neighborhood_size=0)
    at_vertices = vertices_of(lattice.source.keys) @ np.linalg.pinv(oracle.elevation(features.shape[1])).T
    assert_close(ph.slice(to_tensor(at_vertices), lattice), features)


@given(features=point_sets(), targets=st.integers(1, 10), size=sizes, seed=seeds)
def test_input_gradient_of_convolve_is_convolve(features: Array, targets: int, size: int, seed: int) -> None:
    """Back from targets to sources, over the opposite taps with transposed filters."""
    points = to_tensor(features)
    target_points = points[torch.arange(targets, device=DEVICE) % len(points)] + 0.3 * normal(
        seed, targets, points.shape[1]
    )
    there = ph.build_lattice(points, target_points, neighborhood_size=size)
    back = ph.build_lattice(target_points, points, neighborhood_size=size)
    weight = weight_for(there, seed, 2, 6)
    inputs = normal(seed + 1, there.num_lattice_points, 4).requires_grad_()
    upstream = normal(seed + 2, back.num_lattice_points, 6)
    (gradient,) = torch.autograd.grad(ph.convolve(inputs, weight, there), inputs, upstream)
    opposite = there.neighborhood.opposite(DEVICE)
    adjoint = torch.cat([weight[opposite][:, :, :3].mT, weight[opposite][:, :, 3:].mT], dim=2)
    assert (adjoint == transpose_weight(weight, opposite, groups=2)).all()
    assert_close(gradient, ph.convolve(upstream, adjoint, back))


@given(features=point_sets(), size=sizes, seed=seeds)
def test_equivariant_to_point_order(features: Array, size: int, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(features))
    points, values = to_tensor(features), normal(seed, len(features), 2)
    weight = weight_for(ph.build_lattice(points, neighborhood_size=size), seed, 2, 2)
    straight = ph.permutohedral_filter(values, points, weight, neighborhood_size=size)
    shuffled = ph.permutohedral_filter(values[order], points[order], weight, neighborhood_size=size)
    assert_close(shuffled, straight[order])


@given(features=point_sets(), size=sizes, seed=seeds)
def test_invariant_to_lattice_translation(features: Array, size: int, seed: int) -> None:
    """Adding a vector of the lattice to all features moves the lattice onto itself."""
    dimension = features.shape[1]
    digits = np.random.default_rng(seed).integers(-5, 6, size=dimension + 1)
    step = ((dimension + 1) * digits - digits.sum()) @ np.linalg.pinv(oracle.elevation(dimension)).T
    values = normal(seed, len(features), 2)
    weight = weight_for(ph.build_lattice(to_tensor(features), neighborhood_size=size), seed, 2, 2)
    here = ph.permutohedral_filter(values, to_tensor(features), weight, neighborhood_size=size)
    there = ph.permutohedral_filter(values, to_tensor(features + step), weight, neighborhood_size=size)
    assert_close(there, here)


@given(features=point_sets(), items=st.integers(1, 4), size=st.integers(0, 1), seed=seeds)
def test_batch_equals_its_items(features: Array, items: int, size: int, seed: int) -> None:
    """Ragged, with the points of all items in one heap; and again as a dense batch of copies of the same points."""
    random = np.random.default_rng(seed)
    batch = to_tensor(random.integers(0, items, size=len(features)), torch.int64)
    points, values = to_tensor(features), normal(seed, len(features), 2)
    lattice = ph.build_lattice(points, neighborhood_size=size, batch=batch)
    weight = weight_for(lattice, seed, 2, 3)
    together = ph.permutohedral_filter(values, lattice, weight)
    for item in range(items):
        mine = batch == item
        alone = ph.permutohedral_filter(values[mine], points[mine], weight, neighborhood_size=size)
        assert_close(together[mine], alone)

    copies = normal(seed + 1, items, len(features), 2)
    dense = ph.permutohedral_filter(copies, points.expand(items, -1, -1), weight, neighborhood_size=size)
    shared = ph.permutohedral_filter(copies, points, weight, neighborhood_size=size)
    for item in range(items):
        alone = ph.permutohedral_filter(copies[item], points, weight, neighborhood_size=size)
        assert_close(dense[item], alone)
        assert_close(shared[item], alone)


@given(features=point_sets(), seed=seeds)
def test_items_never_mix(features: Array, seed: int) -> None:
    """What one item holds changes no other, even where the others have the very same points."""
    points = to_tensor(features).repeat(3, 1, 1)
    values = normal(seed, 3, len(features), 2)
    others = values.clone()
    others[1] = 1e9
    weight = weight_for(ph.build_lattice(points), seed, 2, 2)
    runs: list[Callable[[Tensor], Tensor]] = [
        lambda given: ph.permutohedral_filter(given, points, weight),
        lambda given: ph.permutohedral_filter(given, points, weight, normalization="density"),
        lambda given: ph.gaussian_filter(given, points),
        lambda given: ph.permutohedral_filter(given, points[0], weight),
    ]
    for run in runs:
        before, after = run(values), run(others)
        assert torch.equal(before[[0, 2]], after[[0, 2]])
        assert not torch.equal(before[1], after[1])


@given(features=point_sets(), size=sizes, seed=seeds)
def test_center_tap_is_slice_of_splat(features: Array, size: int, seed: int) -> None:
    lattice = ph.build_lattice(to_tensor(features), neighborhood_size=size)
    values, mixing = normal(seed, len(features), 2), normal(seed + 1, 2, 3)
    weight = torch.zeros(lattice.neighborhood.filter_size, 2, 3, device=DEVICE, dtype=torch.float64)
    weight[0] = mixing
    actual = ph.permutohedral_filter(values, lattice, weight)
    assert_close(actual, ph.slice(ph.splat(values, lattice), lattice) @ mixing)


@given(features=point_sets(), constant=st.floats(-100, 100), halo=st.integers(0, 1))
def test_homogeneous_normalization_preserves_constants(features: Array, constant: float, halo: int) -> None:
    assume(abs(constant) > 1e-3)
    points = to_tensor(features)
    values = torch.full((len(features), 2), constant, device=DEVICE, dtype=torch.float64)
    assert_close(ph.gaussian_filter(values, points, method="lattice", halo=halo), values)
    assert_close(ph.gaussian_filter(values, points, method="dense"), values)
    taps = ph.lattice.gaussian_weight(features.shape[1], 1, torch.float64).to(DEVICE)
    assert_close(ph.permutohedral_filter(values, points, taps, normalization="homogeneous"), values)


@given(num_points=st.integers(1, 20), dimension=dimensions, seed=seeds)
def test_density_normalization_splats_means(num_points: int, dimension: int, seed: int) -> None:
    """Duplicating every point changes nothing.

    Points in general position: a vertex touched with the weight of a rounding error holds a mean like any other.
    """
    points, values = normal(seed + 1, num_points, dimension), normal(seed, num_points, 2)
    lattice = ph.build_lattice(points)
    weight = weight_for(lattice, seed, 2, 2)
    once = ph.permutohedral_filter(values, points, weight, normalization="density")
    twice = ph.permutohedral_filter(values.repeat(2, 1), points.repeat(2, 1), weight, normalization="density")
    assert_close(twice[: len(points)], once)


@given(features=point_sets(), seed=seeds)
def test_symmetric_normalization_is_symmetric(features: Array, seed: int) -> None:
    """<u, F v> = <F u, v> for the Gaussian F."""
    points = to_tensor(features)
    lattice = ph.build_lattice(points, neighborhood_size=2)
    left, right = normal(seed, len(features), 1), normal(seed + 1, len(features), 1)
    both = ph.gaussian_filter(torch.cat([left, right], dim=1), lattice, None, normalization="symmetric", method="dense")
    difference = (left * both[:, 1:]).sum() - (both[:, :1] * right).sum()
    assert abs(float(difference)) <= TOLERANCE[torch.float64] * float(left.norm() * right.norm())


@given(features=point_sets(), size=sizes, seed=seeds)
def test_filter_is_linear_in_values_and_weight(features: Array, size: int, seed: int) -> None:
    lattice = ph.build_lattice(to_tensor(features), neighborhood_size=size)
    one, other = normal(seed, len(features), 2), normal(seed + 1, len(features), 2)
    weight, further = weight_for(lattice, seed, 2, 2), weight_for(lattice, seed + 1, 2, 2)

    def filtered(values: Tensor, taps: Tensor) -> Tensor:
        return ph.permutohedral_filter(values, lattice, taps)

    parts = filtered(one, weight), filtered(other, weight)
    scale = torch.stack([parts[0], 2 * parts[1]]).abs().max()
    assert_close((filtered(one - 2 * other, weight) - parts[0] + 2 * parts[1]) / scale, torch.zeros(len(features), 2))
    parts = filtered(one, weight), filtered(one, further)
    assert_close(
        (filtered(one, weight + further) - parts[0] - parts[1]) / torch.stack(parts).abs().max(),
        torch.zeros(len(features), 2),
    )


@given(features=point_sets(), halo=st.integers(0, 2), size=st.integers(0, 1), seed=seeds)
def test_halo_does_not_change_one_convolution(features: Array, halo: int, size: int, seed: int) -> None:
    assume(features.shape[1] <= 3)
    points, values = to_tensor(features), normal(seed, len(features), 2)
    plain, ringed = (
        ph.build_lattice(points, None, neighborhood_size=size),
        ph.build_lattice(points, None, neighborhood_size=size, halo=halo),
    )
    weight = weight_for(plain, seed, 2, 2)
    expected = ph.permutohedral_filter(values, plain, weight)
    assert_close(ph.permutohedral_filter(values, ringed, weight), expected)
