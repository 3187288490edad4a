"""The exact sums of the compiled core on every instruction set, against plain torch."""

from __future__ import annotations

import pytest
import torch
from support import assert_close

from permutohedral.ops import reference
from permutohedral.ops.backend import Backend


@pytest.mark.parametrize(("channels", "guides"), [(1, 1), (2, 3), (4, 2), (9, 3)])
@pytest.mark.parametrize("width", [1, 7, 40])
def test_sum_window(native: Backend, dtype: torch.dtype, channels: int, guides: int, width: int) -> None:
    values, guide = torch.randn(2, channels, 6, width, dtype=dtype), torch.randn(2, guides, 6, width, dtype=dtype)
    window = 1.4, 2.1, 3.0
    assert_close(native.sum_window(values, guide, *window), reference.sum_window(values, guide, *window))


@pytest.mark.parametrize(("points", "targets"), [(1, 1), (300, 77), (5, 130)])
@pytest.mark.parametrize(("dimension", "channels"), [(1, 1), (3, 5), (7, 2)])
def test_sum_neighbors(
    native: Backend, dtype: torch.dtype, points: int, targets: int, dimension: int, channels: int
) -> None:
    features, at = 4 * torch.randn(points, dimension, dtype=dtype), 4 * torch.randn(targets, dimension, dtype=dtype)
    values = torch.randn(points, channels, dtype=dtype)
    actual = native.sum_neighbors(values, features, at, 3.0)
    assert_close(actual, reference.sum_neighbors(values, features, at, 3.0))


def test_weights_of_any_size(native: Backend, dtype: torch.dtype) -> None:
    """The exponential, from one down to what is next to nothing; nothing from there on."""
    distances = torch.linspace(0, 10, 4001, dtype=dtype)[:, None]
    ones, origin = torch.ones(1, 1, dtype=dtype), torch.zeros(1, 1, dtype=dtype)
    weights = native.sum_neighbors(ones, origin, distances, 10.5)
    assert (native.sum_neighbors(ones, origin, 40 + distances, 60.0) == 0).all()
    relative = weights[:, 0].double() / (-0.5 * distances[:, 0].double().square()).exp() - 1
    # the square is rounded, which the exponential shows the more the larger it is
    assert relative.abs().max() < (1e-13 if dtype == torch.float64 else 3e-5)
    assert relative[:300].abs().max() < (1e-15 if dtype == torch.float64 else 5e-7)


def test_any_number_of_threads_gives_the_same_bits(native: Backend) -> None:
    values, guide = torch.randn(1, 3, 60, 50), torch.randn(1, 3, 60, 50)
    rows, features = torch.randn(900, 3), 5 * torch.randn(900, 3)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(
                (native.sum_window(values, guide, 2.0, 2.0, 3.0), native.sum_neighbors(rows, features, features, 4.0))
            )
    finally:
        torch.set_num_threads(before)
    for one, three in zip(*results, strict=True):
        assert torch.equal(one, three)
