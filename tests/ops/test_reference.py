"""What is particular to the reference backend: exact numbering of keys wider than one integer."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from support import DEVICE, assert_close, to_numpy, to_tensor

from permutohedral.errors import FeatureRangeError
from permutohedral.ops import reference


@pytest.mark.parametrize("columns", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("magnitude", [1, 2**15, 2**30])
def test_distinct_rows_get_distinct_numbers_in_lexicographic_order(
    columns: int, magnitude: int, random: np.random.Generator
) -> None:
    keys = random.integers(-magnitude, magnitude + 1, size=(100, columns))
    keys[50:] = keys[random.integers(0, 50, size=50)]
    unique_keys, inverse, _ = reference.index_keys(to_tensor(keys, torch.int32))
    expected, numbers = np.unique(keys, axis=0, return_inverse=True)
    np.testing.assert_array_equal(to_numpy(unique_keys), expected)
    np.testing.assert_array_equal(to_numpy(inverse), numbers.reshape(-1))


def test_rows_that_differ_in_one_column_get_distinct_numbers() -> None:
    """The extremes of every column, over more columns than one integer can hold."""
    extreme = 2**30
    keys = np.concatenate([extreme * np.eye(20, dtype=np.int64), -extreme * np.eye(20, dtype=np.int64)])
    unique_keys, inverse, _ = reference.index_keys(to_tensor(keys, torch.int32))
    assert len(unique_keys) == 40
    assert sorted(inverse.tolist()) == list(range(40))


def test_a_lookup_outside_the_range_of_the_keys_finds_nothing() -> None:
    """A digit beyond its extent would otherwise carry into the next column and name another key."""
    source = to_tensor([[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]], torch.int32)
    offsets = to_tensor([[0, 0], [0, 2], [0, -1], [1, -1], [-1, 2], [7, 7]], torch.int32)
    neighbors = reference.find_neighbors(source, torch.empty(0, dtype=torch.int64), source, offsets)
    expected = [[0, 1, 2, 3], [-1] * 4, [-1, 0, -1, 2], [-1, 2, -1, -1], [-1, -1, -1, -1], [-1] * 4]
    assert neighbors.tolist() == expected


def test_a_lookup_of_one_item_does_not_carry_into_the_next() -> None:
    source = to_tensor([[0, 0], [0, 1], [1, 0], [1, 1]], torch.int32)
    offsets = to_tensor([[1], [-1]], torch.int32)
    neighbors = reference.find_neighbors(source, torch.empty(0, dtype=torch.int64), source, offsets)
    assert neighbors.tolist() == [[1, -1, 3, -1], [-1, 0, -1, 2]]


def test_range_error_counts_all_points() -> None:
    """Points are embedded in parts of fewer."""
    features = torch.zeros(40_000, 2, device=DEVICE)
    features[[100, 30_000], 1] = float("nan")
    with pytest.raises(FeatureRangeError, match="2 of 40000 points hold NaN or infinity, the first at row 100"):
        reference.index_points(features, None)


@pytest.mark.parametrize("dimension", [1, 2, 7])
def test_elevation(dimension: int) -> None:
    assert_close(reference.elevation_matrix(dimension, torch.float64, DEVICE), oracle.elevation(dimension))


@pytest.mark.parametrize("dimension", [1, 3, 8])
def test_find_simplex_names_the_corner_congruent_to_zero(dimension: int, random: np.random.Generator) -> None:
    """The corner has coordinates divisible by d+1 and zero sum, and the ranks sort what remains."""
    features = to_tensor(random.normal(size=(50, dimension)) * 3)
    cell, rank, delta = (each.T for each in reference.find_simplex(features))
    assert (cell == cell.round()).all()
    assert (cell.sum(dim=1) == 0).all()
    assert (rank.sort(dim=1).values == torch.arange(dimension + 1, device=DEVICE)).all()
    by_rank = torch.empty_like(delta).scatter_(1, rank.long(), delta)
    assert (by_rank[:, :-1] >= by_rank[:, 1:]).all()
    # inside the simplex the largest and the smallest lie at most one cell apart
    assert (by_rank[:, 0] - by_rank[:, -1] <= 1).all()
    y = to_numpy(features) @ oracle.elevation(dimension).T
    assert_close((dimension + 1) * (cell + delta), y)
