"""Filter taps and their Gaussian weights."""

from __future__ import annotations

import dataclasses

import numpy as np
import oracle
import pytest
import torch
from support import assert_close

from permutohedral.errors import NeighborhoodError
from permutohedral.lattice.geometry import tap_positions
from permutohedral.lattice.neighborhood import MAX_TAPS, Neighborhood, count_taps, gaussian_weight
from permutohedral.ops.constants import axis_offsets
from permutohedral.ops.contract import blur_gain

SIZES = [(d, s) for d in range(1, 7) for s in range(4)]


@pytest.mark.parametrize(("dimension", "size"), SIZES)
def test_taps_are_in_lexicographic_order(dimension: int, size: int) -> None:
    neighborhood = Neighborhood(dimension, size)
    expected = oracle.taps(dimension, size)
    assert [tuple(k) for k in neighborhood.taps.tolist()] == expected
    assert neighborhood.filter_size == len(expected) == (size + 1) ** (dimension + 1) - size ** (dimension + 1)
    assert neighborhood.taps[0].eq(0).all()


@pytest.mark.parametrize("dimension", [7, 12, 15])
def test_high_dimensions(dimension: int) -> None:
    neighborhood = Neighborhood(dimension, 1)
    assert neighborhood.filter_size == 2 ** (dimension + 1) - 1
    assert (neighborhood.taps.amin(dim=1) == 0).all()
    assert len(torch.unique(neighborhood.taps, dim=0)) == neighborhood.filter_size


@pytest.mark.parametrize("dimension", [1, 8, 32, 100])
def test_center_tap_fits_any_dimension(dimension: int) -> None:
    neighborhood = Neighborhood(dimension, 0)
    assert neighborhood.filter_size == 1
    assert neighborhood.offsets().eq(0).all()
    assert neighborhood.opposite().tolist() == [0]


@pytest.mark.parametrize(("dimension", "size"), SIZES)
def test_offsets_are_sums_of_steps(dimension: int, size: int) -> None:
    """offset_k = sum_j k_j e_j, of which the first d coordinates are kept."""
    steps = (dimension + 1) * np.eye(dimension + 1, dtype=np.int64) - 1
    expected = np.array(oracle.taps(dimension, size)) @ steps
    offsets = Neighborhood(dimension, size).offsets()
    assert offsets.dtype == torch.int32
    np.testing.assert_array_equal(offsets.numpy(), expected[:, :dimension])
    assert len(torch.unique(offsets, dim=0)) == len(offsets)


def test_dilation_scales_offsets() -> None:
    plain, dilated = Neighborhood(3, 2), Neighborhood(3, 2, dilation=3)
    assert dilated.filter_size == plain.filter_size
    assert torch.equal(dilated.offsets(), 3 * plain.offsets())
    assert torch.equal(dilated.opposite(), plain.opposite())
    assert_close(dilated.distances(), 3 * plain.distances())
    assert_close(tap_positions(dilated).norm(dim=1), dilated.distances())
    for wrong in (0, 2000, 1.5, True):
        with pytest.raises(NeighborhoodError, match="dilation must be a whole number from 1"):
            Neighborhood(3, 2, dilation=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("dimension", "size"), SIZES)
def test_opposite_tap_has_negative_offset(dimension: int, size: int) -> None:
    neighborhood = Neighborhood(dimension, size)
    opposite = neighborhood.opposite()
    assert (neighborhood.offsets()[opposite] == -neighborhood.offsets()).all()
    assert opposite[opposite].tolist() == list(range(neighborhood.filter_size))


@pytest.mark.parametrize(("dimension", "size"), SIZES)
def test_distances_are_in_feature_space(dimension: int, size: int) -> None:
    """E f = offset, so |f| = |pinv(E) offset|."""
    k = np.array(oracle.taps(dimension, size))
    offsets = (dimension + 1) * k - k.sum(axis=1, keepdims=True)
    expected = np.linalg.norm(offsets @ np.linalg.pinv(oracle.elevation(dimension)).T, axis=1)
    assert_close(Neighborhood(dimension, size).distances(), expected)


@pytest.mark.parametrize(("dimension", "size"), SIZES)
def test_gaussian_weight_matches_construction(dimension: int, size: int) -> None:
    assert_close(gaussian_weight(dimension, size, dtype=torch.float64), oracle.gaussian_weight(dimension, size))


def test_gaussian_weight_has_requested_dtype() -> None:
    assert gaussian_weight(2, 1).dtype == torch.float32
    assert gaussian_weight(2, 1, dtype=torch.float64).dtype == torch.float64


@pytest.mark.parametrize("dimension", range(1, 7))
def test_axis_offsets_and_gain(dimension: int) -> None:
    steps = (dimension + 1) * np.eye(dimension + 1, dtype=np.int64) - 1
    expected = np.stack([steps, -steps], axis=1).reshape(-1, dimension + 1)[:, :dimension]
    np.testing.assert_array_equal(axis_offsets(dimension).numpy(), expected)
    vertices = oracle.with_halo(np.zeros((1, dimension + 1), dtype=np.int64), 2 if dimension <= 3 else 1)
    centre = int(np.flatnonzero((vertices == 0).all(axis=1))[0])
    assert blur_gain(dimension) == pytest.approx(oracle.blur_matrix(vertices)[centre, centre], rel=1e-14)


def test_taps_do_not_alias_cached_tables() -> None:
    neighborhood = Neighborhood(2, 1)
    neighborhood.taps.fill_(9)
    assert Neighborhood(2, 1).taps[0].tolist() == [0, 0, 0]


def test_neighborhood_is_frozen_and_compares_by_value() -> None:
    neighborhood = Neighborhood(2, 1)
    assert neighborhood == Neighborhood(dimension=2, neighborhood_size=1)
    assert hash(neighborhood) == hash(Neighborhood(2, 1))
    assert neighborhood != Neighborhood(2, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        neighborhood.neighborhood_size = 3  # type: ignore[misc]


def test_size_limit() -> None:
    assert count_taps(19, 1) == MAX_TAPS - 1
    assert Neighborhood(19, 1).filter_size == MAX_TAPS - 1
